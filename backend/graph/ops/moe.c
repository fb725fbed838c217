/* SPDX-License-Identifier: Apache-2.0 */
/* moe_grouped_matmul: multiplies the rows of expert e, first_token_offset[e] up to first_token_offset[e + 1], by
   weight[e]
     NONE     output[r] = token[r] * weight[e]
     GATHER   output[r] = token[token_index[r]] * weight[e]
     SCATTER  output[token_index[r] * top_k + token_ks[r]] = token[r] * weight[e]
   moe_grouped_matmul_bwd: dweight[e] = sum over rows r of expert e of token[r] * doutput[r]
   Offsets are ascending; the last expert ends with the last row. If there is one offset less than experts, the first
   expert begins with row 0. Rows before the first offset belong to no expert. Output rows without a product are 0. An
   index of -1 skips its row. Other indices out of range are an error on the CPU; on a GPU they skip their row, and
   offsets are clamped to the number of rows. For SCATTER, the positions of rows must be distinct: if rows share a
   position, it is undefined which one is stored. */
#include "graph/ops/moe.h"

#include "base/number.h"

/* ---- Common to both operations ----------------------------------------------------------------------------------- */

static const char offsets_doc[] =
    "first row of each expert, or of each except the first, which is then 0; ascending, INT32 or INT64";

/* [1, rows, columns]: the leading 1 comes from cuDNN, which merges batch and sequence. */
static weftStatus_t check_rows(const struct descriptor *op, const char *key, const struct tensor *tensor) {
    TRY(check_rank(op, key, tensor, 3, 3));
    if (tensor->dims.at[0] != 1)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s has dims %s, its first must be 1. Merge batch and sequence into one dimension of rows.",
             descriptor_label(op), key, tensor_dims_text(tensor));
    return WEFT_STATUS_SUCCESS;
}

/* [E, 1, 1] or [E - 1, 1, 1]. The last expert ends with the last row, so no offset follows it. */
static weftStatus_t check_offsets(const struct descriptor *op, const struct tensor *offsets) {
    TRY(check_rank(op, "first_token_offset", offsets, 3, 3));
    TRY(check_dims(op, "first_token_offset", offsets, 3, (int64_t[]){offsets->dims.at[0], 1, 1}));
    return check_index_type(op, "first_token_offset", offsets);
}

/* One offset per expert, or per expert except the first. `weight`: the tensor with one matrix per expert. */
static weftStatus_t check_offset_count(const struct descriptor *op, const char *key, const struct tensor *weight,
                                       const struct tensor *offsets) {
    int64_t experts = weight->dims.at[0], left_out = moe_left_out(offsets, experts);
    if (left_out != 0 && left_out != 1)
        FAIL(
            WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "%s: %s is %s, of %lld expert%s, first_token_offset is %s. Give it one offset per expert, or leave out the "
            "first.",
            descriptor_label(op), key, tensor_dims_text(weight), (long long)experts, plural(experts),
            tensor_dims_text(offsets));
    return WEFT_STATUS_SUCCESS;
}

/* The offsets of a number of experts. */
struct offsets {
    struct view at;
    int64_t experts;
};

/* The first row of an expert, or the end of the last one. check_offset_numbers has rejected offsets outside of 0 ..
   rows. */
static int64_t first_row(const struct offsets *offsets, int64_t expert, int64_t rows) {
    int64_t entry = expert - (offsets->experts - offsets->at.dims[0]);
    if (entry < 0)
        return 0;
    return expert < offsets->experts ? view_load_int(&offsets->at, (int64_t[]){entry, 0, 0}) : rows;
}

/* Checks that the offsets in memory are ascending and within 0 .. rows. */
static weftStatus_t check_offset_numbers(const struct descriptor *op, const struct tensor *offsets, int64_t rows,
                                         const struct bindings *bindings) {
    struct view view = view_of(bindings, offsets);
    int64_t least = 0;
    for (int64_t i = 0; view.data && i < view.dims[0]; i++) {
        int64_t first = view_load_int(&view, (int64_t[]){i, 0, 0});
        if (first < least || first > rows)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: entry %lld of first_token_offset, %s, is out of range: expected %lld..%lld, got %lld. Make the "
                 "offsets ascend, up to the number of rows.",
                 descriptor_label(op), (long long)i, descriptor_label(&offsets->base), (long long)least,
                 (long long)rows, (long long)first);
        least = first;
    }
    return WEFT_STATUS_SUCCESS;
}

/* The type of a product of a and b: the accumulation type for integers, the rule of matmul for floats. */
static weftDataType_t result_type(const struct tensor *result, const struct tensor *a, const struct tensor *b,
                                  weftDataType_t math) {
    weftDataType_t natural = dtype_promote((weftDataType_t)a->type, (weftDataType_t)b->type);
    return dtype_is_integer(natural) ? math : tensor_result_type(result, natural, math);
}

/* Each row is multiplied once, regardless of its expert. `depth` and `columns` are those of a weight. */
static double grouped_flops(int64_t rows, int64_t depth, int64_t columns) {
    return 2.0 * (double)rows * (double)depth * (double)columns;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* E: experts; M: rows of token; K and N: depth and columns of a weight. The rows of an expert are contiguous, as after
   a sort by expert. */
static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_MOE_GROUPED_MATMUL_MODE, struct moe_op, mode, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE,
              "mode", .doc = "gathers rows before the product, or scatters them after it, or neither"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct moe_op, math, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC,
              "compute_data_type", .doc = "accumulation type"),
    TENSOR_ROW(ROLE_INPUT, struct moe_op, token, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC, "token",
               .required = true, .shape = "[1, M, K]", .doc = "tokens"),
    TENSOR_ROW(ROLE_INPUT, struct moe_op, weight, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC, "weight",
               .required = true, .shape = "[E, K, N]", .doc = "one matrix per expert"),
    TENSOR_ROW(ROLE_INPUT, struct moe_op, first_token_offset,
               WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC, "first_token_offset", .required = true,
               .shape = "[E, 1, 1]", .doc = offsets_doc),
    TENSOR_ROW(ROLE_OUTPUT, struct moe_op, output, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC, "output",
               .required = true, .shape = "[1, rows, N]",
               .doc = "product; M rows, or as many as token_index has for GATHER"),
    /* Only for GATHER and SCATTER: NONE reads rows in their order. */
    TENSOR_ROW(ROLE_INPUT, struct moe_op, token_index, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC,
               "token_index", .shape = "[1, rows, 1]",
               .doc = "the token that each row is read from (GATHER) or belongs to (SCATTER), INT32 or INT64"),
    TENSOR_ROW(ROLE_INPUT, struct moe_op, token_ks, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC, "token_ks",
               .shape = "[1, M, 1]",
               .doc = "position of each row among the top_k of its token, INT32 or INT64; SCATTER"),
    VALUE_ROW(WEFT_TYPE_INT32, struct moe_op, top_k, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOP_K, "top_k",
              .doc = "positions per token; SCATTER"),
};

static const struct method methods[] = {
    {"moe_grouped_matmul",
     "product of each expert's rows with its weight : output[r] = token[r] * weight[e], first[e] <= r < first[e + 1]",
     NULL, "token weight first_token_offset token_index=None token_ks=None mode=NONE compute_data_type top_k=0",
     "output"},
    {0},
};

/* token is [1, M, K], weight [E, K, N], and there is an offset for each expert. */
static weftStatus_t check_inputs(const struct moe_op *op) {
    const struct tensor *token = op->token, *weight = op->weight;
    TRY(check_rows(&op->base, "token", token));
    TRY(check_rank(&op->base, "weight", weight, 3, 3));
    TRY(check_offsets(&op->base, op->first_token_offset));
    if (token->dims.at[2] != weight->dims.at[1])
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: inner sizes differ: token is %s (K=%lld), weight is %s (K=%lld). Swap weight's last two dims and "
             "strides if it is [E,N,K].",
             descriptor_label(&op->base), tensor_dims_text(token), (long long)token->dims.at[2],
             tensor_dims_text(weight), (long long)weight->dims.at[1]);
    return check_offset_count(&op->base, "weight", weight, op->first_token_offset);
}

/* Checks for operands that a mode requires, and for operands that it would ignore. */
static weftStatus_t check_indices(const struct moe_op *op) {
    static const char *const names[] = {"NONE", "GATHER", "SCATTER"};
    bool scatters = op->mode == WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER;
    /* For each of token_index and token_ks: true if the mode reads it. */
    bool wants[] = {op->mode != WEFT_MOE_GROUPED_MATMUL_MODE_NONE, scatters};
    const struct tensor *indices[] = {op->token_index, op->token_ks};
    static const char *const keys[] = {"token_index", "token_ks"};
    for (int i = 0; i < 2; i++) {
        if (wants[i] && !indices[i])
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode %s needs %s, which is unset. Set it.", descriptor_label(&op->base),
                 names[op->mode], keys[i]);
        if (!wants[i] && indices[i])
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode %s does not use %s. Omit it or choose mode %s.",
                 descriptor_label(&op->base), names[op->mode], keys[i], i ? "SCATTER" : "GATHER or SCATTER");
        TRY(check_index_type(&op->base, keys[i], indices[i]));
    }
    /* GATHER has as many rows as indices; otherwise the rows are those of token, and there are as many indices. */
    if (op->mode == WEFT_MOE_GROUPED_MATMUL_MODE_GATHER)
        TRY(check_rows(&op->base, "token_index", op->token_index));
    for (int i = 0; i < 2; i++)
        TRY(check_dims(&op->base, keys[i], indices[i], 3, (int64_t[]){1, moe_rows(op), 1}));
    /* top_k is the number of positions that a token has in the output. */
    if (scatters && op->top_k < 1)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode SCATTER with top_k %d. Give the number of experts per token, 1 or more.",
             descriptor_label(&op->base), op->top_k);
    return WEFT_STATUS_SUCCESS;
}

weftDataType_t moe_math(const struct moe_op *op) {
    return product_math(&op->base, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC, op->math, op->token, op->weight);
}

/* output: as many rows as the mode produces, row-major, as wide as a weight. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct moe_op *op = (struct moe_op *)descriptor;
    TRY(check_inputs(op));
    TRY(check_indices(op));
    const int64_t dims[] = {1, moe_rows(op), op->weight->dims.at[2]};
    tensor_infer_dims(op->output, 3, dims);
    /* Row-major, which is the order in which the next layer reads tokens. */
    tensor_infer_strides(op->output, NULL);
    tensor_infer_type(op->output, result_type(op->output, op->token, op->weight, moe_math(op)));
    return check_dims(descriptor, "output", op->output, 3, dims);
}

/* Checks one index: at least -1, which skips the row, and at most `most`. */
static weftStatus_t check_index(const struct moe_op *op, const char *key, const struct tensor *indices,
                                const struct view *view, int64_t row, int64_t most) {
    int64_t index = view_load_int(view, (int64_t[]){0, row, 0});
    if (index < -1 || index > most)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: entry %lld of %s, %s, is out of range: expected -1..%lld, got %lld. Correct the contents of the "
             "tensor; -1 skips a row.",
             descriptor_label(&op->base), (long long)row, key, descriptor_label(&indices->base), (long long)most,
             (long long)index);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_numbers(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct moe_op *op = (const struct moe_op *)descriptor;
    struct view index = view_of(bindings, op->token_index), ks = view_of(bindings, op->token_ks);
    int64_t count = moe_rows(op), tokens = op->token->dims.at[1];
    TRY(check_offset_numbers(descriptor, op->first_token_offset, count, bindings));
    for (int64_t r = 0; index.data && !op->token_ks && r < count; r++)
        TRY(check_index(op, "token_index", op->token_index, &index, r, tokens - 1));
    /* SCATTER: the last token may have fewer than top_k positions. */
    for (int64_t r = 0; index.data && ks.data && r < count; r++) {
        TRY(check_index(op, "token_ks", op->token_ks, &ks, r, op->top_k - 1));
        int64_t k = max64(0, view_load_int(&ks, (int64_t[]){0, r, 0}));
        TRY(check_index(op, "token_index", op->token_index, &index, r, divide_down(count - 1 - k, op->top_k)));
    }
    return WEFT_STATUS_SUCCESS;
}

struct forward_views {
    struct view token, weight, output, index, ks;
};

/* The row of the output that receives the product of row r, or -1. check_numbers has rejected all other values. */
static int64_t place_of(const struct moe_op *op, const struct forward_views *v, int64_t r) {
    if (op->mode != WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER)
        return r;
    int64_t at[] = {0, r, 0}, token = view_load_int(&v->index, at), k = view_load_int(&v->ks, at);
    return token >= 0 && k >= 0 ? token * op->top_k + k : -1;
}

/* The token that row r reads, or -1. */
static int64_t source_of(const struct moe_op *op, const struct forward_views *v, int64_t r) {
    if (op->mode != WEFT_MOE_GROUPED_MATMUL_MODE_GATHER)
        return r;
    return view_load_int(&v->index, (int64_t[]){0, r, 0});
}

/* Computes one row of the product: output[place] = token[source] * weight[expert]. */
static void multiply_row(const struct forward_views *v, weftDataType_t math, int64_t source, int64_t expert,
                         int64_t row) {
    for (int64_t n = 0; n < v->output.dims[2]; n++) {
        struct sum sum = sum_of_products(math, &v->token, &v->weight);
        for (int64_t k = 0; k < v->token.dims[2]; k++)
            sum_add(&sum, &v->token, (int64_t[]){0, source, k}, &v->weight, (int64_t[]){expert, k, n});
        sum_store(&sum, &v->output, (int64_t[]){0, row, n});
    }
}

/* Expert by expert: the rows between two offsets. Rows that are skipped keep their initial 0. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct moe_op *op = (const struct moe_op *)descriptor;
    struct forward_views v = {view_of(bindings, op->token), view_of(bindings, op->weight),
                              view_of(bindings, op->output), view_of(bindings, op->token_index),
                              view_of(bindings, op->token_ks)};
    const struct offsets offsets = {view_of(bindings, op->first_token_offset), op->weight->dims.at[0]};
    /* `count` rows are multiplied: those of token, or those of token_index for GATHER. */
    int64_t index[WEFT_DIM_MAX], count = moe_rows(op);
    /* The result is not requested, or has no memory. */
    if (!v.output.data)
        return;
    /* Rows without a product are 0, and SCATTER may leave such rows. */
    for (bool more = index_begin(index, 3, v.output.dims); more; more = index_next(index, 3, v.output.dims))
        view_store(&v.output, index, 0);
    for (int64_t expert = 0; expert < offsets.experts; expert++) {
        int64_t until = first_row(&offsets, expert + 1, count);
        for (int64_t r = first_row(&offsets, expert, count); r < until; r++) {
            int64_t source = source_of(op, &v, r), row = place_of(op, &v, r);
            if (source >= 0 && row >= 0)
                multiply_row(&v, moe_math(op), source, expert, row);
        }
    }
}

static double flops(const struct descriptor *descriptor) {
    const struct moe_op *op = (const struct moe_op *)descriptor;
    return grouped_flops(moe_rows(op), op->weight->dims.at[1], op->weight->dims.at[2]);
}

const struct op moe_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR,
            .name = "moe_grouped_matmul",
            .doc = "output[r] = token[r] * weight[e] for the rows r of expert e",
            .size = sizeof(struct moe_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &moe_op,
        },
    .methods = methods,
    .infer = infer,
    .check_indices = check_numbers,
    .reference = reference,
    .flops = flops,
    .reference_rate = 2.5e8,
};

/* ---- Gradient of the weights ------------------------------------------------------------------------------------- */

/* The gradient of token is a forward product with transposed weights, and needs no operation of its own. */
static const struct row bwd_rows[] = {
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct moe_bwd_op, math, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_MATH_PREC,
              "compute_data_type", .doc = "accumulation type"),
    TENSOR_ROW(ROLE_INPUT, struct moe_bwd_op, doutput, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_DOUTPUT_DESC,
               "doutput", .required = true, .shape = "[1, M, N]", .doc = "gradient of the output"),
    TENSOR_ROW(ROLE_INPUT, struct moe_bwd_op, token, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_TOKEN_DESC, "token",
               .required = true, .shape = "[1, M, K]", .doc = "tokens of the forward pass"),
    TENSOR_ROW(ROLE_INPUT, struct moe_bwd_op, first_token_offset,
               WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_FIRST_TOKEN_OFFSET_DESC, "first_token_offset",
               .required = true, .shape = "[E, 1, 1]", .doc = offsets_doc),
    TENSOR_ROW(ROLE_OUTPUT, struct moe_bwd_op, dweight, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_DWEIGHT_DESC,
               "dweight", .required = true, .shape = "[E, K, N]",
               .doc = "gradient of the weights; default strides are packed with K contiguous"),
};

static const struct method bwd_methods[] = {
    {"moe_grouped_matmul_bwd",
     "gradient of each expert's weight : dweight[e] = sum_r token[r] * doutput[r], first[e] <= r < first[e + 1]", NULL,
     "doutput token first_token_offset compute_data_type", "dweight"},
    {0},
};

weftDataType_t moe_bwd_math(const struct moe_bwd_op *op) {
    return product_math(&op->base, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_MATH_PREC, op->math, op->token,
                        op->doutput);
}

/* dweight: [E, K, N] with K contiguous, which is the layout of weights that are passed transposed, [E, N, K]. */
static weftStatus_t bwd_infer(struct descriptor *descriptor) {
    struct moe_bwd_op *op = (struct moe_bwd_op *)descriptor;
    const struct tensor *token = op->token, *doutput = op->doutput;
    TRY(check_rows(descriptor, "token", token));
    TRY(check_rows(descriptor, "doutput", doutput));
    TRY(check_offsets(descriptor, op->first_token_offset));
    if (token->dims.at[1] != doutput->dims.at[1])
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: token is %s (M=%lld), doutput is %s (M=%lld). Give both the same number of rows; gather them first "
             "if necessary.",
             descriptor_label(descriptor), tensor_dims_text(token), (long long)token->dims.at[1],
             tensor_dims_text(doutput), (long long)doutput->dims.at[1]);
    int64_t depth = token->dims.at[2];
    /* One matrix per expert, like the forward weight. If the number is not set, each expert has an offset. */
    bool is_set = op->dweight->dims.count == 3;
    int64_t experts = is_set ? op->dweight->dims.at[0] : op->first_token_offset->dims.at[0];
    const int64_t dims[] = {experts, depth, doutput->dims.at[2]};
    /* Strides that only define the order of dimensions: experts outermost, K innermost. */
    const struct tensor turned = {.dims = {3, {dims[0], dims[1], dims[2]}}, .strides = {3, {INT64_MAX, 1, 2}}};
    tensor_infer_dims(op->dweight, 3, dims);
    tensor_infer_strides(op->dweight, &turned);
    tensor_infer_type(op->dweight, result_type(op->dweight, token, doutput, moe_bwd_math(op)));
    TRY(check_dims(descriptor, "dweight", op->dweight, 3, dims));
    return check_offset_count(descriptor, "dweight", op->dweight, op->first_token_offset);
}

/* Computes dweight element by element: a sum over the rows of its expert. */
static void bwd_reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct moe_bwd_op *op = (const struct moe_bwd_op *)descriptor;
    struct view token = view_of(bindings, op->token), doutput = view_of(bindings, op->doutput);
    struct view dweight = view_of(bindings, op->dweight);
    const struct offsets offsets = {view_of(bindings, op->first_token_offset), op->dweight->dims.at[0]};
    int64_t index[WEFT_DIM_MAX], count = token.dims[1];
    if (!dweight.data)
        return;
    for (bool more = index_begin(index, 3, dweight.dims); more; more = index_next(index, 3, dweight.dims)) {
        /* An expert without rows has an empty sum: its gradient is 0. */
        int64_t until = first_row(&offsets, index[0] + 1, count);
        struct sum sum = sum_of_products(moe_bwd_math(op), &token, &doutput);
        for (int64_t r = first_row(&offsets, index[0], count); r < until; r++)
            sum_add(&sum, &token, (int64_t[]){0, r, index[1]}, &doutput, (int64_t[]){0, r, index[2]});
        sum_store(&sum, &dweight, index);
    }
}

static weftStatus_t bwd_check_numbers(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct moe_bwd_op *op = (const struct moe_bwd_op *)descriptor;
    return check_offset_numbers(descriptor, op->first_token_offset, op->token->dims.at[1], bindings);
}

static double bwd_flops(const struct descriptor *descriptor) {
    const struct moe_bwd_op *op = (const struct moe_bwd_op *)descriptor;
    return grouped_flops(op->token->dims.at[1], op->token->dims.at[2], op->doutput->dims.at[2]);
}

const struct op moe_bwd_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR,
            .name = "moe_grouped_matmul_bwd",
            .doc = "dweight[e] = sum of token[r] * doutput[r] over the rows r of expert e",
            .size = sizeof(struct moe_bwd_op),
            ROWS(bwd_rows),
            .finalize = op_finalize,
            .op = &moe_bwd_op,
        },
    .methods = bwd_methods,
    .infer = bwd_infer,
    .check_indices = bwd_check_numbers,
    .reference = bwd_reference,
    .flops = bwd_flops,
    .reference_rate = 2.5e8,
};
