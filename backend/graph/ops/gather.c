/* SPDX-License-Identifier: Apache-2.0 */
/* gather: y[.., m, ..] = x[.., index[m], ..] along one dimension, as for an embedding, or with an index for each
   element, y[.., m, ..] = x[.., index[.., m, ..], ..]. An index of -1 selects 0.
   scatter_add, its gradient: y is x, or 0, plus src[.., m, ..] at y[.., index[m], ..], or with an index for each
   element; -1 is skipped. Summands with equal indices are added in their order, starting with x.
   Other indices out of range are an error on the CPU; on a GPU they have the effect of -1. */
#include "graph/ops/gather.h"

#include <string.h>

/* ---- Rows and methods -------------------------------------------------------------------------------------------- */

#define AXIS_ROW(name_)                                                                                                \
    VALUE_ROW(WEFT_TYPE_INT64, struct gather_op, axis, name_, "axis", .initial = 0, .least = -WEFT_DIM_MAX,            \
              .most = WEFT_DIM_MAX - 1,                                                                                \
              .doc = "dimension in which the indices are positions; negative values count from the last")

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct gather_op, x, WEFT_ATTR_OPERATION_GATHER_XDESC_EXT, "x", .required = true,
               .shape = "[d..]", .doc = "elements to select from"),
    TENSOR_ROW(ROLE_INPUT, struct gather_op, index, WEFT_ATTR_OPERATION_GATHER_INDEX_DESC_EXT, "index",
               .required = true, .shape = "[M], or like y",
               .doc = "positions along the axis, INT32 or INT64: one per slice, or one per element; -1 selects 0"),
    TENSOR_ROW(ROLE_OUTPUT, struct gather_op, y, WEFT_ATTR_OPERATION_GATHER_YDESC_EXT, "y", .required = true,
               .shape = "like x, M along the axis", .doc = "the selected slices or elements"),
    AXIS_ROW(WEFT_ATTR_OPERATION_GATHER_AXIS_EXT),
};

static const struct row scatter_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct gather_op, src, WEFT_ATTR_OPERATION_SCATTER_ADD_SRC_DESC_EXT, "src", .required = true,
               .shape = "like y, M along the axis", .doc = "summands"),
    TENSOR_ROW(ROLE_INPUT, struct gather_op, index, WEFT_ATTR_OPERATION_SCATTER_ADD_INDEX_DESC_EXT, "index",
               .required = true, .shape = "[M], or like src",
               .doc = "where src is added along the axis, INT32 or INT64: one position per slice, or one per element; "
                      "-1 is skipped"),
    TENSOR_ROW(ROLE_INPUT, struct gather_op, x, WEFT_ATTR_OPERATION_SCATTER_ADD_XDESC_EXT, "x", .shape = "like y",
               .doc = "initial values; unset: 0"),
    TENSOR_ROW(ROLE_OUTPUT, struct gather_op, y, WEFT_ATTR_OPERATION_SCATTER_ADD_YDESC_EXT, "y", .required = true,
               .shape = "[d..]", .doc = "sums; without x, its dims must be set"),
    AXIS_ROW(WEFT_ATTR_OPERATION_SCATTER_ADD_AXIS_EXT),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct gather_op, is_sorted, WEFT_ATTR_OPERATION_SCATTER_ADD_IS_SORTED_EXT,
              "is_sorted", .doc = "true: guarantees that the index of slices ascends, so that kernels can search it"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct gather_op, math, WEFT_ATTR_OPERATION_SCATTER_ADD_COMP_TYPE_EXT,
              "compute_data_type",
              .doc = "accumulation type; integer types are exact. Unset: INT64 for integers and booleans, FLOAT for "
                     "all others"),
};

static const struct method methods[] = {
    {"gather", "slices or elements of x that indices select along one dimension : y[.., m, ..] = x[.., index[m], ..]",
     NULL, "input:x index axis=0", "y"},
    {0},
};

static const struct method scatter_methods[] = {
    {"scatter_add",
     "sums of slices or elements with equal indices along one dimension, the gradient of gather : y[.., index[m], ..] "
     "= x[.., index[m], ..] + sum of src[.., m, ..]",
     NULL, "src index input:x=None axis=0 is_sorted=false", "y"},
    {0},
};

/* ---- Shapes and types -------------------------------------------------------------------------------------------- */

weftDataType_t scatter_math(const struct gather_op *op) {
    weftDataType_t type = (weftDataType_t)op->src->type;
    bool is_set = descriptor_row_is_set(&op->base, WEFT_ATTR_OPERATION_SCATTER_ADD_COMP_TYPE_EXT);
    return type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE
           : is_set                 ? (weftDataType_t)op->math
           : dtype_is_float(type)   ? WEFT_DATA_FLOAT
                                    : WEFT_DATA_INT64;
}

/* The dims of the selected tensor: those of `whole`, except along the axis, where they follow the index. */
static struct dims selected_dims(const struct gather_op *op, const struct tensor *whole) {
    struct dims dims = whole->dims;
    int axis = axis_dimension(op->axis, whole);
    dims.at[axis] = op->index->dims.at[gather_has_slices(op) ? 0 : axis];
    return dims;
}

/* The index has rank 1 or that of `whole`, with its extents except along the axis. */
static weftStatus_t check_index(const struct gather_op *op, const char *key, const struct tensor *whole) {
    TRY(check_axis(&op->base, op->axis, key, whole));
    TRY(check_index_type(&op->base, "index", op->index));
    if (op->index->dims.count != 1 && op->index->dims.count != whole->dims.count)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: index is %s, %s is %s. Give it one dimension, or one index per element with as many dimensions as "
             "%s.",
             descriptor_label(&op->base), tensor_dims_text(op->index), key, tensor_dims_text(whole), key);
    if (gather_has_slices(op))
        return WEFT_STATUS_SUCCESS;
    struct dims dims = selected_dims(op, whole);
    return check_dims(&op->base, "index", op->index, dims.count, dims.at);
}

static weftStatus_t infer(struct descriptor *descriptor) {
    struct gather_op *op = (struct gather_op *)descriptor;
    TRY(check_index(op, "x", op->x));
    struct dims dims = selected_dims(op, op->x);
    tensor_infer_type(op->y, (weftDataType_t)op->x->type);
    tensor_infer_dims(op->y, dims.count, dims.at);
    tensor_infer_strides(op->y, op->x);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct gather_op *op = (const struct gather_op *)descriptor;
    struct dims dims = selected_dims(op, op->x);
    return check_dims(descriptor, "y", op->y, dims.count, dims.at);
}

static weftStatus_t scatter_infer(struct descriptor *descriptor) {
    struct gather_op *op = (struct gather_op *)descriptor;
    weftDataType_t type = (weftDataType_t)op->src->type;
    if (op->x)
        tensor_infer_dims(op->y, op->x->dims.count, op->x->dims.at);
    if (op->y->dims.count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: y has no dims, and without x they do not follow from src. Set them.",
             descriptor_label(descriptor));
    TRY(check_axis(descriptor, op->axis, "y", op->y));
    tensor_infer_type(op->y, dtype_is_float(type) ? tensor_result_type(op->y, type, scatter_math(op)) : type);
    tensor_infer_strides(op->y, op->x ? op->x : op->src);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t scatter_check(const struct descriptor *descriptor) {
    const struct gather_op *op = (const struct gather_op *)descriptor;
    TRY(check_rank(descriptor, "y", op->y, op->src->dims.count, op->src->dims.count));
    TRY(check_index(op, "y", op->y));
    struct dims dims = selected_dims(op, op->y);
    if (op->is_sorted && !gather_has_slices(op))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: is_sorted is set, but the index %s has a number for each element. Leave it unset.",
             descriptor_label(descriptor), tensor_dims_text(op->index));
    TRY(check_dims(descriptor, "src", op->src, dims.count, dims.at));
    return check_dims(descriptor, "x", op->x, op->y->dims.count, op->y->dims.at);
}

static weftStatus_t check_numbers(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct gather_op *op = (const struct gather_op *)descriptor;
    const struct tensor *whole = gather_whole(op);
    struct view index = view_of(bindings, op->index);
    int64_t extent = whole->dims.at[axis_dimension(op->axis, whole)], at[WEFT_DIM_MAX];
    for (bool more = index.data && index_begin(at, index.rank, index.dims); more;
         more = index_next(at, index.rank, index.dims)) {
        int64_t number = view_load_int(&index, at);
        if (number < -1 || number >= extent)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: entry %s of index, %s, is out of range: expected -1..%lld, got %lld. Correct the contents of the "
                 "tensor; -1 selects nothing.",
                 descriptor_label(descriptor), numbers_text(at, index.rank), descriptor_label(&op->index->base),
                 (long long)extent - 1, (long long)number);
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

/* The position along the axis that belongs to an element of the selected tensor. */
static int64_t position_of(const struct gather_op *op, const struct view *index, const int64_t *at, int axis) {
    return view_load_int(index, gather_has_slices(op) ? at + axis : at);
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct gather_op *op = (const struct gather_op *)descriptor;
    struct view x = view_of(bindings, op->x), index = view_of(bindings, op->index), y = view_of(bindings, op->y);
    const int axis = axis_dimension(op->axis, op->x);
    const bool is_exact = !dtype_is_float(x.type) && !dtype_is_float(y.type);
    int64_t at[WEFT_DIM_MAX], from[WEFT_DIM_MAX];
    for (bool more = y.data && index_begin(at, y.rank, y.dims); more; more = index_next(at, y.rank, y.dims)) {
        memcpy(from, at, sizeof from);
        from[axis] = position_of(op, &index, at, axis);
        if (is_exact)
            view_store_int(&y, at, from[axis] < 0 ? 0 : view_load_int(&x, from));
        else
            view_store(&y, at, from[axis] < 0 ? 0 : view_load(&x, from));
    }
}

/* Sums are accumulated in scratch memory, a packed copy of y, in double or 64-bit integers. */
static void scatter_reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct gather_op *op = (const struct gather_op *)descriptor;
    struct view src = view_of(bindings, op->src), index = view_of(bindings, op->index), x = view_of(bindings, op->x),
                y = view_of(bindings, op->y);
    const int axis = axis_dimension(op->axis, op->y);
    const bool is_exact = !dtype_is_float(scatter_math(op));
    double *real = bindings->scratch;
    int64_t *whole = bindings->scratch, at[WEFT_DIM_MAX], to[WEFT_DIM_MAX], n = 0;
    if (!y.data)
        return;
    for (bool more = index_begin(at, y.rank, y.dims); more; more = index_next(at, y.rank, y.dims), n++)
        if (is_exact)
            whole[n] = x.data ? view_load_int(&x, at) : 0;
        else
            real[n] = view_load_or(&x, at, 0);
    for (bool more = index_begin(at, src.rank, src.dims); more; more = index_next(at, src.rank, src.dims)) {
        memcpy(to, at, sizeof to);
        to[axis] = position_of(op, &index, at, axis);
        if (to[axis] < 0)
            continue;
        if (is_exact)
            whole[dims_index(&op->y->dims, to)] += view_load_int(&src, at);
        else
            real[dims_index(&op->y->dims, to)] += view_load(&src, at);
    }
    n = 0;
    for (bool more = index_begin(at, y.rank, y.dims); more; more = index_next(at, y.rank, y.dims), n++)
        if (is_exact)
            view_store_int(&y, at, whole[n]);
        else
            view_store(&y, at, real[n]);
}

static int64_t scatter_scratch_bytes(const struct descriptor *descriptor) {
    return tensor_elements(((const struct gather_op *)descriptor)->y) * (int64_t)sizeof(double);
}

static double scatter_flops(const struct descriptor *descriptor) {
    const struct gather_op *op = (const struct gather_op *)descriptor;
    return (double)tensor_elements(op->src) + (double)tensor_elements(op->y);
}

const struct op gather_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_GATHER_DESCRIPTOR_EXT,
            .name = "gather",
            .doc = "slices or elements that indices select along one dimension",
            .size = sizeof(struct gather_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &gather_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .check_indices = check_numbers,
    .reference = reference,
};

const struct op scatter_add_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_SCATTER_ADD_DESCRIPTOR_EXT,
            .name = "scatter_add",
            .doc = "sums of slices or elements with equal indices along one dimension",
            .size = sizeof(struct gather_op),
            ROWS(scatter_rows),
            .finalize = op_finalize,
            .op = &scatter_add_op,
        },
    .methods = scatter_methods,
    .infer = scatter_infer,
    .check = scatter_check,
    .check_indices = check_numbers,
    .reference = scatter_reference,
    .scratch_bytes = scatter_scratch_bytes,
    .flops = scatter_flops,
};
