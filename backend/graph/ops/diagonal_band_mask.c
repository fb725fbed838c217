/* SPDX-License-Identifier: Apache-2.0 */
/* diagonal_band_mask: y = x where a comparison of row and column indices holds, and b elsewhere. Without a left bound,
   row + shift_right_bound is compared with col; with one, col + left_bound with row. Lengths align the band to the
   bottom right corner of the part in use: they add seq_len_kv - seq_len_q to the row, which is the left form's
   seq_len_q - seq_len_kv on the column. It is composite: indices, sums, a comparison and a selection, so that attention
   patterns match it like a mask that is written in parts. */
#include "graph/ops/diagonal_band_mask.h"
#include "graph/op_writer.h"
#include "graph/ops/slice.h"

struct diagonal_band_mask_op {
    struct descriptor base;
    struct tensor *x, *b, *y;
    struct tensor *seq_len_q, *seq_len_kv;       /* [B, 1, 1, 1] */
    struct tensor *cu_seq_len_q, *cu_seq_len_kv; /* [B + 1, 1, 1, 1], instead of seq_len_* */
    struct tensor *left_bound, *shift_right_bound;
    int32_t comparison_mode;
};

#define TENSOR(role, field, name, key, ...)                                                                            \
    TENSOR_ROW(ROLE_##role, struct diagonal_band_mask_op, field, WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_##name, key,   \
               __VA_ARGS__)
static const struct row rows[] = {
    TENSOR(INPUT, x, XDESC, "x", .required = true, .shape = "[.., Sq, Skv]", .doc = "scores"),
    TENSOR(INPUT, b, BDESC, "b", .required = true, .shape = "[1..]", .doc = "fill value of masked elements"),
    TENSOR(INPUT, seq_len_q, SEQ_LEN_QDESC, "seq_len_q", .shape = "[B, 1, 1, 1]",
           .doc = "queries in use of each batch, INT32 or INT64; subtracted from the row index"),
    TENSOR(INPUT, seq_len_kv, SEQ_LEN_KVDESC, "seq_len_kv", .shape = "[B, 1, 1, 1]",
           .doc = "keys in use of each batch, INT32 or INT64; added to the row index"),
    TENSOR(INPUT, left_bound, LEFT_BOUND_DESC, "left_bound", .shape = "[1..]",
           .doc = "compares col + left_bound with row; FLOAT, INT32 or INT64"),
    TENSOR(INPUT, shift_right_bound, SHIFT_RIGHT_BOUND_DESC, "shift_right_bound", .shape = "[1..]",
           .doc = "compares row + shift_right_bound with col; FLOAT, INT32 or INT64; unset: 0"),
    TENSOR(INPUT, cu_seq_len_q, CU_SEQ_LEN_QDESC, "cu_seq_len_q", .shape = "[B + 1, 1, 1, 1]",
           .doc = "running sums of seq_len_q, which they replace"),
    TENSOR(INPUT, cu_seq_len_kv, CU_SEQ_LEN_KVDESC, "cu_seq_len_kv", .shape = "[B + 1, 1, 1, 1]",
           .doc = "running sums of seq_len_kv, which they replace"),
    TENSOR(OUTPUT, y, YDESC, "y", .required = true, .shape = "like x", .in_place = "x",
           .doc = "x where the comparison holds, otherwise b"),
    VALUE_ROW(WEFT_TYPE_POINTWISE_MODE, struct diagonal_band_mask_op, comparison_mode,
              WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, "comparison_mode", .required = true,
              .initial = WEFT_POINTWISE_CMP_GE, .least = WEFT_POINTWISE_CMP_EQ, .most = WEFT_POINTWISE_CMP_LE,
              .doc = "the comparison, a CMP_ mode; CMP_GE without bounds keeps col <= row, the causal mask"),
};
#undef TENSOR

static const struct method methods[] = {
    {"diagonal_band_mask",
     "scores within a band along the diagonal : y = compare(row + shift_right_bound, col) ? x : b, or with left_bound "
     "compare(col + left_bound, row) ? x : b",
     NULL,
     "x b comparison_mode seq_len_q=None seq_len_kv=None left_bound=None shift_right_bound=None cu_seq_len_q=None "
     "cu_seq_len_kv=None",
     "y"},
    {0},
};

static weftStatus_t infer(struct descriptor *descriptor) {
    struct diagonal_band_mask_op *op = (struct diagonal_band_mask_op *)descriptor;
    tensor_infer_type(op->y, tensor_result_type(op->y, (weftDataType_t)op->x->type, WEFT_DATA_FLOAT));
    tensor_infer_like(op->y, op->x);
    return WEFT_STATUS_SUCCESS;
}

static bool is_index_type(const struct tensor *tensor) {
    return tensor->type == WEFT_DATA_INT32 || tensor->type == WEFT_DATA_INT64;
}

/* The dims of lengths: one per batch, plus `more`. */
static struct dims length_dims(const struct diagonal_band_mask_op *op, int64_t more) {
    struct dims dims = op->x->dims;
    for (int64_t i = 1; i < dims.count; i++)
        dims.at[i] = 1;
    dims.at[0] += more;
    return dims;
}

static weftStatus_t check_lengths(const struct diagonal_band_mask_op *op) {
    const struct tensor *const lengths[] = {op->seq_len_q, op->seq_len_kv, op->cu_seq_len_q, op->cu_seq_len_kv};
    static const char *const keys[] = {"seq_len_q", "seq_len_kv", "cu_seq_len_q", "cu_seq_len_kv"};
    const char *label = descriptor_label(&op->base);
    for (int i = 0; i < 4; i++) {
        struct dims dims = length_dims(op, i / 2);
        if (!lengths[i])
            continue;
        if (op->x->dims.count < 3)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s is set, but x has dims %s without a batch. Leave it unset.", label,
                 keys[i], tensor_dims_text(op->x));
        if (i >= 2 && lengths[i - 2])
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s and %s are both set. Set one of them.", label, keys[i - 2], keys[i]);
        TRY(check_dims(&op->base, keys[i], lengths[i], dims.count, dims.at));
        if (!is_index_type(lengths[i]))
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s is %s. Give it type INT32 or INT64.", label, keys[i],
                 dtype_of((weftDataType_t)lengths[i]->type)->name);
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct diagonal_band_mask_op *op = (const struct diagonal_band_mask_op *)descriptor;
    const char *label = descriptor_label(descriptor);
    TRY(check_rank(descriptor, "x", op->x, 2, WEFT_DIM_MAX));
    TRY(check_dims(descriptor, "y", op->y, op->x->dims.count, op->x->dims.at));
    TRY(check_scalar(descriptor, "b", op->b));
    if (op->left_bound && op->shift_right_bound)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: left_bound and shift_right_bound are both set. Use one operation for each side of the band.", label);
    const struct tensor *bound = op->left_bound ? op->left_bound : op->shift_right_bound;
    const char *key = op->left_bound ? "left_bound" : "shift_right_bound";
    TRY(check_scalar(descriptor, key, bound));
    if (bound && !is_index_type(bound) && bound->type != WEFT_DATA_FLOAT)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s is %s. Give it type FLOAT, INT32 or INT64.", label, key,
             dtype_of((weftDataType_t)bound->type)->name);
    return check_lengths(op);
}

/* ---- As primitive operations ------------------------------------------------------------------------------------- */

/* The type of indices and sums of them: exact for all integers, and FLOAT if the bound is. */
static weftDataType_t index_type(const struct diagonal_band_mask_op *op) {
    const struct tensor *const operands[] = {op->left_bound, op->shift_right_bound, op->seq_len_q,
                                             op->seq_len_kv, op->cu_seq_len_q,      op->cu_seq_len_kv};
    weftDataType_t type = WEFT_DATA_INT32;
    for (int i = 0; i < 6; i++) {
        if (operands[i] && operands[i]->type == WEFT_DATA_FLOAT)
            return WEFT_DATA_FLOAT;
        if (operands[i] && operands[i]->type == WEFT_DATA_INT64)
            type = WEFT_DATA_INT64;
    }
    return type;
}

/* Indices along the dimension `axis`, or sums of them (axis -1), as a packed tensor with the dims of x. */
static weftStatus_t add_indices(struct op_writer *w, const struct diagonal_band_mask_op *op, weftPointwiseMode_t mode,
                                int64_t axis, const struct tensor *x, const struct tensor *b, struct tensor **y) {
    weftDataType_t type = index_type(op);
    TRY(op_writer_add_tensor(w, y, op->x, type));
    (*y)->strides.count = 0;
    tensor_infer_strides(*y, op->x);
    return op_writer_add_pointwise(w, &op->base, mode, type == WEFT_DATA_FLOAT ? WEFT_DATA_FLOAT : WEFT_DATA_INT64,
                                   axis, (struct pointwise_operands){.x = x, .b = b, .out = *y});
}

/* Elements [start, start + B) of running sums. */
static weftStatus_t add_slice(struct op_writer *w, const struct diagonal_band_mask_op *op, struct tensor *sums,
                              int64_t start, struct tensor **y) {
    struct slice_op *slice;
    TRY(arena_alloc(w->arena, &slice, sizeof *slice));
    TRY(op_writer_add_tensor(w, y, sums, (weftDataType_t)sums->type));
    (*y)->dims = length_dims(op, 0);
    *slice = (struct slice_op){.x = sums, .y = *y, .limit = (*y)->dims, .start.count = sums->dims.count};
    slice->start.at[0] += start;
    slice->limit.at[0] += start;
    op_writer_add(w, &slice->base, &slice_op, &op->base);
    return WEFT_STATUS_SUCCESS;
}

/* Lengths from their running sums. */
static weftStatus_t add_differences(struct op_writer *w, const struct diagonal_band_mask_op *op, struct tensor *sums,
                                    const struct tensor **lengths) {
    struct tensor *begin, *end, *result;
    TRY(add_slice(w, op, sums, 0, &begin));
    TRY(add_slice(w, op, sums, 1, &end));
    TRY(op_writer_add_tensor(w, &result, begin, (weftDataType_t)sums->type));
    *lengths = result;
    return op_writer_add_pointwise(w, &op->base, WEFT_POINTWISE_SUB, WEFT_DATA_INT64, -1,
                                   (struct pointwise_operands){.x = end, .b = begin, .out = result});
}

/* The index that moves is the row, or the column if there is a left bound: then lengths have the opposite signs. */
static weftStatus_t decompose(const struct descriptor *descriptor, struct op_writer *w) {
    const struct diagonal_band_mask_op *op = (const struct diagonal_band_mask_op *)descriptor;
    const bool is_left = op->left_bound != NULL;
    const int64_t row = op->x->dims.count - 2;
    const struct tensor *seq_len_q = op->seq_len_q, *seq_len_kv = op->seq_len_kv;
    struct tensor *moved, *fixed, *is_inside;
    if (op->cu_seq_len_q)
        TRY(add_differences(w, op, op->cu_seq_len_q, &seq_len_q));
    if (op->cu_seq_len_kv)
        TRY(add_differences(w, op, op->cu_seq_len_kv, &seq_len_kv));
    TRY(add_indices(w, op, WEFT_POINTWISE_GEN_INDEX, is_left ? row + 1 : row, op->x, NULL, &moved));
    TRY(add_indices(w, op, WEFT_POINTWISE_GEN_INDEX, is_left ? row : row + 1, op->x, NULL, &fixed));
    const struct {
        const struct tensor *tensor;
        weftPointwiseMode_t mode;
    } terms[] = {{is_left ? op->left_bound : op->shift_right_bound, WEFT_POINTWISE_ADD},
                 {seq_len_kv, is_left ? WEFT_POINTWISE_SUB : WEFT_POINTWISE_ADD},
                 {seq_len_q, is_left ? WEFT_POINTWISE_ADD : WEFT_POINTWISE_SUB}};
    for (int i = 0; i < 3; i++)
        if (terms[i].tensor)
            TRY(add_indices(w, op, terms[i].mode, -1, moved, terms[i].tensor, &moved));
    TRY(op_writer_add_tensor(w, &is_inside, moved, WEFT_DATA_BYTE_BOOLEAN));
    TRY(op_writer_add_pointwise(w, descriptor, (weftPointwiseMode_t)op->comparison_mode,
                                index_type(op) == WEFT_DATA_FLOAT ? WEFT_DATA_FLOAT : WEFT_DATA_INT64, -1,
                                (struct pointwise_operands){.x = moved, .b = fixed, .out = is_inside}));
    /* Selecting rounds nothing in a type that represents x and b. */
    weftDataType_t math = dtype_promote((weftDataType_t)op->x->type, (weftDataType_t)op->b->type);
    math = math == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE : dtype_is_float(math) ? WEFT_DATA_FLOAT : WEFT_DATA_INT64;
    return op_writer_add_pointwise(w, descriptor, WEFT_POINTWISE_BINARY_SELECT, math, -1,
                                   (struct pointwise_operands){.x = op->x, .b = op->b, .t = is_inside, .out = op->y});
}

const struct op diagonal_band_mask_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR,
            .name = "diagonal_band_mask",
            .doc = "y = x within a band along the diagonal, otherwise a fill value",
            .size = sizeof(struct diagonal_band_mask_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &diagonal_band_mask_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .decompose = decompose,
};
