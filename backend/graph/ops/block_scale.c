/* SPDX-License-Identifier: Apache-2.0 */
/* block_scale_quantize and block_scale_dequantize: narrow types whose elements share one scale per block.
   Quantisation: scale = a / m, where a is the largest finite magnitude of a block and m the largest number of y's type.
   The scale is rounded to its type: up to a power of two in E8M0, so that nothing overflows, otherwise to nearest, with
   saturation. y is x / scale, where scale is the stored value, rounded to nearest even and saturated, including
   infinities; NaN stays NaN if the type has one. If the stored scale is 0, the block is 0.
   Dequantisation: y = x scale. The last block along a dimension may be short. */
#include "graph/ops/block_scale.h"
#include "base/number.h"

#include <math.h>
#include <string.h>

/* y and scale are both results, because the scale of a block depends on its elements. */
static const struct row quantize_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct block_scale_quantize_op, x, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_XDESC, "x",
               .required = true, .shape = "[d..]", .doc = "input, a float type of 16 bits or more"),
    TENSOR_ROW(ROLE_OUTPUT, struct block_scale_quantize_op, y, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_YDESC, "y",
               .required = true, .shape = "like x", .doc = "result, FP8, FP4, INT8 or INT4; its type must be set"),
    TENSOR_ROW(ROLE_OUTPUT, struct block_scale_quantize_op, scale, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC,
               "scale", .required = true, .shape = "like x, with blocks along the axis",
               .doc =
                   "one scale per block; default E8M0 in blocks of 32, E4M3 in blocks of 16 of FP4, otherwise FLOAT"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct block_scale_quantize_op, math,
              WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC, "compute_data_type",
              .doc = "compute type, FLOAT or DOUBLE"),
    VALUE_ROW(WEFT_TYPE_INT32, struct block_scale_quantize_op, block_size,
              WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE, "block_size", .required = true, .least = 1,
              .most = INT32_MAX, .doc = "elements along the axis that share a scale"),
    /* Weft's own attributes come last. */
    VALUE_ROW(WEFT_TYPE_INT64, struct block_scale_quantize_op, axis, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_AXIS_EXT,
              "axis", .initial = -1, .least = -WEFT_DIM_MAX, .most = WEFT_DIM_MAX - 1,
              .doc = "dimension along which blocks run; negative values count from the last"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct block_scale_quantize_op, is_transposed,
              WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_TRANSPOSE_EXT, "transpose",
              .doc = "true: unset strides of y and scale have the last two dimensions swapped compared with x"),
};

static const struct row dequantize_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct block_scale_dequantize_op, x, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC, "x",
               .required = true, .shape = "[d..]", .doc = "input, FP8, FP4 or integers of 4 or 8 bits"),
    TENSOR_ROW(ROLE_INPUT, struct block_scale_dequantize_op, scale,
               WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC, "scale", .required = true,
               .shape = "like x, in blocks", .doc = "one scale per block"),
    TENSOR_ROW(ROLE_OUTPUT, struct block_scale_dequantize_op, y, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC, "y",
               .required = true, .shape = "like x", .doc = "result; default type: the compute type"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct block_scale_dequantize_op, math,
              WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC, "compute_data_type",
              .doc = "compute type, FLOAT or DOUBLE"),
    /* A list, because blocks may be two-dimensional: in some models 128 x 128 elements share a scale. */
    VALUE_ROW(WEFT_TYPE_INT32, struct block_scale_dequantize_op, block_size,
              WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, "block_size", .storage = STORE_LIST,
              .required = true, .least = 1, .most = INT32_MAX,
              .doc = "extents of a block in the last dimensions; 1 in all others"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct block_scale_dequantize_op, is_negative,
              WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE, "negative_scale",
              .doc = "true: scales are stored negated, y = -x scale"),
};

static const struct method quantize_methods[] = {
    {"block_scale_quantize",
     "quantisation to a narrow type with a scale per block; set y's type : scale = max|x| / max(type), y = x / scale",
     NULL, "input:x block_size axis=None transpose=false", "y scale"},
    {0},
};

static const struct method dequantize_methods[] = {
    {"block_scale_dequantize", "dequantisation of a narrow type with a scale per block : y = x scale", NULL,
     "input:x descale:scale block_size is_negative_scale:negative_scale=false", "y"},
    {0},
};

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* Extents of a block in every dimension of x. */
struct dims block_scale_extents(const struct descriptor *descriptor) {
    struct dims block;
    for (int64_t i = 0; i < WEFT_DIM_MAX; i++)
        block.at[i] = 1;
    /* Quantisation has blocks along one axis; dequantisation supports blocks along any of the last dimensions. */
    if (op_of(descriptor) == &block_scale_quantize_op) {
        const struct block_scale_quantize_op *op = (const struct block_scale_quantize_op *)descriptor;
        block.count = op->x->dims.count;
        block.at[block_scale_axis(op)] = op->block_size;
        return block;
    }
    /* Block sizes apply to the last dimensions; blocks have extent 1 in the others. */
    const struct block_scale_dequantize_op *op = (const struct block_scale_dequantize_op *)descriptor;
    block.count = op->x->dims.count;
    for (int64_t i = 0; i < op->block_size.count; i++)
        block.at[block.count - op->block_size.count + i] = ((const int32_t *)op->block_size.items)[i];
    return block;
}

/* One scale per block, rounded up to whole tiles if the storage is tiled. */
static struct dims scale_dims(const struct descriptor *op, const struct tensor *x, const struct tensor *scale) {
    struct dims block = block_scale_extents(op), dims = x->dims;
    for (int64_t i = 0; i < dims.count; i++)
        dims.at[i] = divide_up(dims.at[i], block.at[i]);
    if (!scale_is_tiled(scale) || dims.count < 2)
        return dims;
    /* If the scale has no strides yet it will inherit those of x, which distinguish rows from columns. */
    struct tensor like = {.dims = dims, .strides = scale->strides.count ? scale->strides : x->strides};
    /* Rows and columns are the last two dimensions, rank - 1 and rank - 2, in either order. */
    int column = scale_column(&like), row = 2 * (int)dims.count - 3 - column;
    /* Tiles have an internal order, so a partial tile would not be addressable. */
    dims.at[column] = round_up(dims.at[column], SCALE_TILE_COLUMNS);
    dims.at[row] = round_up(dims.at[row], SCALE_TILE_ROWS);
    return dims;
}

/* Offset in elements. The last two strides of a tiled scale have no meaning: the offset follows from row and column. */
static int64_t scale_offset(const struct view *view, const struct tensor *scale, const int64_t *index) {
    if (!scale_is_tiled(scale))
        return view_offset(view, index);
    int column = scale_column(scale), row = 2 * view->rank - 3 - column;
    int64_t r = index[row], c = index[column], offset = 0;
    for (int i = 0; i < view->rank - 2; i++)
        offset += index[i] * view->strides[i];
    return offset + scale_tile_offset(r, c, view->dims[column] / SCALE_TILE_COLUMNS);
}

/* ---- Rules of both operations ------------------------------------------------------------------------------------ */

/* True for types that narrow numbers are converted from and to. */
static bool is_wide_float(int32_t type) {
    return dtype_is_float((weftDataType_t)type) && dtype_of((weftDataType_t)type)->bits >= 16;
}

static bool is_scale_type(int32_t type) {
    return is_wide_float(type) || type == WEFT_DATA_FP8_E8M0 || type == WEFT_DATA_FP8_E4M3;
}

static bool is_narrow(int32_t type) {
    bool is_integer = dtype_is_integer((weftDataType_t)type) && dtype_of((weftDataType_t)type)->bits <= 8;
    return is_integer || type == WEFT_DATA_FP8_E4M3 || type == WEFT_DATA_FP8_E5M2 || type == WEFT_DATA_FP4_E2M1;
}

/* Quantisation divides by a magnitude, so an unsigned type would lose negative values. */
static bool is_signed_narrow(int32_t type) { return is_narrow(type) && dtype_of((weftDataType_t)type)->is_signed; }

/* `legal` describes the types that is_legal accepts. */
static weftStatus_t check_type(const struct descriptor *op, const char *key, const struct tensor *tensor,
                               bool (*is_legal)(int32_t), const char *legal) {
    if (!is_legal(tensor->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use %s.", descriptor_label(op), key,
             dtype_of((weftDataType_t)tensor->type)->name, legal);
    return WEFT_STATUS_SUCCESS;
}

/* Vectorized layouts are rejected, because elements of a block would not be adjacent. */
static weftStatus_t check_plain(const struct descriptor *op, const char *key, const struct tensor *tensor) {
    if (tensor->vector_count != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s has vector_count %lld. Use plain strides, vector_count 1.",
             descriptor_label(op), key, (long long)tensor->vector_count);
    return WEFT_STATUS_SUCCESS;
}

/* The last two dims of a tiled scale must be whole tiles without gaps. */
static weftStatus_t check_tiles(const struct descriptor *op, const struct tensor *scale) {
    if (!scale_is_tiled(scale))
        return WEFT_STATUS_SUCCESS;
    int column = scale_column(scale), row = 2 * (int)scale->dims.count - 3 - column;
    if (scale->strides.at[column] != 1 || scale->strides.at[row] != scale->dims.at[column])
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: scale has reordering_type F8_128x4, dims %s and strides %s. Tiles need the last two dims packed: one "
             "of stride 1, the other of its extent.",
             descriptor_label(op), tensor_dims_text(scale), numbers_text(scale->strides.at, scale->strides.count));
    return WEFT_STATUS_SUCCESS;
}

/* Rules for both directions; x and y are passed in the roles that they have in the operation. */
static weftStatus_t check_both(const struct descriptor *op, int32_t math, const struct tensor *x,
                               const struct tensor *y, const struct tensor *scale) {
    if (math != WEFT_DATA_FLOAT && math != WEFT_DATA_DOUBLE)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: compute_data_type is %s. Use FLOAT or DOUBLE.", descriptor_label(op),
             dtype_of((weftDataType_t)math) ? dtype_of((weftDataType_t)math)->name : "no number");
    /* The scale must have one number per block, rounded up to whole tiles if it is tiled. */
    struct dims dims = scale_dims(op, x, scale);
    TRY(check_plain(op, "x", x));
    TRY(check_plain(op, "y", y));
    TRY(check_plain(op, "scale", scale));
    TRY(check_type(op, "scale", scale, is_scale_type, "FP8_E8M0, FP8_E4M3 or a float type of 16 bits or more"));
    TRY(check_dims(op, "y", y, x->dims.count, x->dims.at));
    TRY(check_dims(op, "scale", scale, dims.count, dims.at));
    return check_tiles(op, scale);
}

/* Only scales may be tiled, and only matrices of them. */
static weftStatus_t check_reordering(const struct descriptor *op, const struct tensor *x, const struct tensor *y,
                                     const struct tensor *scale) {
    if (x->reordering || y->reordering)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s has reordering_type F8_128x4, which is for scales. Set NONE (0).", descriptor_label(op),
             x->reordering ? "x" : "y");
    if (scale_is_tiled(scale) && x->dims.count < 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: scale has reordering_type F8_128x4, tiles of a matrix, but x has dims %s. Use two dims or more.",
             descriptor_label(op), tensor_dims_text(x));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Quantisation ------------------------------------------------------------------------------------------------ */

/* The formats of OCP (MXFP: 32 elements, E8M0) and of NVFP4 (16 elements of FP4, E4M3). */
static weftDataType_t usual_scale_type(const struct block_scale_quantize_op *op) {
    if (op->block_size == 32)
        return WEFT_DATA_FP8_E8M0;
    return op->block_size == 16 && op->y->type == WEFT_DATA_FP4_E2M1 ? WEFT_DATA_FP8_E4M3 : WEFT_DATA_FLOAT;
}

/* Infers dims and order of y and scale, and the scale's type. The user must set the type of y: nothing determines
   it. */
static weftStatus_t infer_quantize(struct descriptor *descriptor) {
    struct block_scale_quantize_op *op = (struct block_scale_quantize_op *)descriptor;
    int64_t rank = op->x->dims.count;
    if (op->axis < -rank || op->axis >= rank)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: axis is %lld, x has %lld dim%s %s. Use a value in %lld..%lld.",
             descriptor_label(descriptor), (long long)op->axis, (long long)rank, plural(rank), tensor_dims_text(op->x),
             (long long)-rank, (long long)rank - 1);
    if (op->is_transposed && rank < 2)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: transpose exchanges the last two dims, but x has dims %s. Leave it false.",
             descriptor_label(descriptor), tensor_dims_text(op->x));
    TRY(check_reordering(descriptor, op->x, op->y, op->scale));
    struct tensor like = *op->x;
    /* Only the order in memory changes, not the dims: the quantised axis becomes the contiguous one. */
    if (op->is_transposed) {
        like.strides.at[rank - 1] = op->x->strides.at[rank - 2];
        like.strides.at[rank - 2] = op->x->strides.at[rank - 1];
    }
    /* Unset strides of the scale follow those of y, which distinguish rows from columns. */
    struct dims dims = scale_dims(descriptor, &like, op->scale);
    tensor_infer_dims(op->y, rank, op->x->dims.at);
    tensor_infer_strides(op->y, &like);
    tensor_infer_dims(op->scale, rank, dims.at);
    tensor_infer_strides(op->scale, &like);
    tensor_infer_type(op->scale, usual_scale_type(op));
    return WEFT_STATUS_SUCCESS;
}

/* Packed in the order of x; transpose with an axis rotates that order until the axis is contiguous. */
static bool cudnn_strides(const struct descriptor *descriptor, const struct tensor *out, struct dims *strides) {
    const struct block_scale_quantize_op *op = (const struct block_scale_quantize_op *)descriptor;
    int64_t rank = op->x->dims.count, axis = op->axis < 0 ? op->axis + rank : op->axis;
    struct dims order = op->x->strides;
    if (op->is_transposed && descriptor_row_is_set(descriptor, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_AXIS_EXT)) {
        /* Strides of a tensor with extent 2 in each dimension: powers of two by position in the order. */
        struct dims twos = {.count = rank};
        for (int64_t i = 0; i < rank; i++)
            twos.at[i] = 2;
        struct dims powers = dims_packed(&twos, &op->x->strides);
        for (int64_t i = 0; i < rank; i++)
            order.at[i] = powers.at[i] < powers.at[axis] ? powers.at[i] << rank : powers.at[i];
    }
    *strides = dims_packed(&out->dims, &order);
    return op->x->vector_count == 1;
}

static weftStatus_t check_quantize(const struct descriptor *descriptor) {
    const struct block_scale_quantize_op *op = (const struct block_scale_quantize_op *)descriptor;
    TRY(check_type(descriptor, "x", op->x, is_wide_float, "a float type of 16 bits or more"));
    TRY(check_type(descriptor, "y", op->y, is_signed_narrow, "FP8_E4M3, FP8_E5M2, FP4_E2M1, INT8 or INT4"));
    return check_both(descriptor, op->math, op->x, op->y, op->scale);
}

/* Rounded like the scale's type; powers of two are rounded up. */
double block_scale_stored(const struct block_scale_quantize_op *op, double magnitude) {
    double scale = magnitude / block_scale_most(op->y), stored[1];
    int exponent;
    /* frexp returns a fraction of 0.5 for powers of two, which are exact; all other values are rounded up to the next
       power. */
    if (op->scale->type == WEFT_DATA_FP8_E8M0 && frexp(scale, &exponent) > 0.5)
        scale = ldexp(1, exponent);
    scale = fmin(scale, block_scale_most(op->scale));
    /* Elements are divided by the scale as stored, because a reader will multiply by that. */
    dtype_store((weftDataType_t)op->scale->type, stored, 0, scale);
    return dtype_load((weftDataType_t)op->scale->type, stored, 0);
}

/* Block by block: computes the largest magnitude, then the scale, then divides the elements by the scale as stored. */
static void quantize(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct block_scale_quantize_op *op = (const struct block_scale_quantize_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y), scale = view_of(bindings, op->scale);
    int axis = block_scale_axis(op);
    int64_t block[WEFT_DIM_MAX], at[WEFT_DIM_MAX];
    struct dims dims = op->scale->dims;
    for (bool more = index_begin(block, x.rank, dims.at); more; more = index_next(block, x.rank, dims.at)) {
        memcpy(at, block, sizeof at);
        /* Elements first .. end of x along the axis; the last block may be short. */
        int64_t first = block[axis] * op->block_size, end = first + op->block_size;
        end = end < x.dims[axis] ? end : x.dims[axis];
        for (int i = 0; i < x.rank; i++) /* padding of tiles contains no elements */
            if (i != axis && block[i] >= x.dims[i])
                end = first;
        /* Infinities and NaN are ignored, because one of them would turn the whole block into 0 or NaN. */
        double magnitude = 0;
        for (at[axis] = first; at[axis] < end; at[axis]++) {
            double value = fabs(view_load(&x, at));
            magnitude = isfinite(value) && value > magnitude ? value : magnitude;
        }
        double divisor = block_scale_stored(op, magnitude);
        if (scale.data)
            dtype_store(scale.type, scale.data, scale_offset(&scale, op->scale, block), divisor);
        for (at[axis] = first; y.data && at[axis] < end; at[axis]++)
            /* A stored scale of 0, for a block of zeros or below the smallest number of its type, makes the block 0. */
            view_store(&y, at, divisor > 0 ? view_load(&x, at) / divisor : 0);
    }
}

/* ---- Dequantisation ---------------------------------------------------------------------------------------------- */

/* y has the dims and order of x, and the type of the calculation. */
static weftStatus_t infer_dequantize(struct descriptor *descriptor) {
    struct block_scale_dequantize_op *op = (struct block_scale_dequantize_op *)descriptor;
    if (op->block_size.count < 1 || op->block_size.count > op->x->dims.count)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: block_size has %lld extents, x has dims %s. Give one for each of its last dims, at most all.",
             descriptor_label(descriptor), (long long)op->block_size.count, tensor_dims_text(op->x));
    /* Must precede tensor_infer_like, which would give y the narrow type of x. */
    tensor_infer_type(op->y, (weftDataType_t)op->math);
    tensor_infer_like(op->y, op->x);
    return WEFT_STATUS_SUCCESS;
}

/* Unsigned types can be dequantised, but not quantised: see is_signed_narrow. */
static weftStatus_t check_dequantize(const struct descriptor *descriptor) {
    const struct block_scale_dequantize_op *op = (const struct block_scale_dequantize_op *)descriptor;
    TRY(check_type(descriptor, "x", op->x, is_narrow, "FP8_E4M3, FP8_E5M2, FP4_E2M1 or integers of 4 or 8 bits"));
    TRY(check_type(descriptor, "y", op->y, is_wide_float, "a float type of 16 bits or more"));
    TRY(check_reordering(descriptor, op->x, op->y, op->scale));
    return check_both(descriptor, op->math, op->x, op->y, op->scale);
}

/* Proceeds element by element, which supports any layout and blocks of any extents. */
static void dequantize(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct block_scale_dequantize_op *op = (const struct block_scale_dequantize_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y), scale = view_of(bindings, op->scale);
    struct dims block = block_scale_extents(descriptor);
    int64_t at[WEFT_DIM_MAX], in_scale[WEFT_DIM_MAX];
    if (!y.data)
        return;
    for (bool more = index_begin(at, x.rank, x.dims); more; more = index_next(at, x.rank, x.dims)) {
        for (int i = 0; i < x.rank; i++)
            /* The block that contains the element, along each dimension. */
            in_scale[i] = at[i] / block.at[i];
        double factor = dtype_load(scale.type, scale.data, scale_offset(&scale, op->scale, in_scale));
        view_store(&y, at, view_load(&x, at) * (op->is_negative ? -factor : factor));
    }
}

const struct op block_scale_quantize_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR,
            .name = "block_scale_quantize",
            .doc = "y = x / scale, with one scale per block",
            .size = sizeof(struct block_scale_quantize_op),
            ROWS(quantize_rows),
            .finalize = op_finalize,
            .op = &block_scale_quantize_op,
        },
    .methods = quantize_methods,
    .takes_reordered = true,
    .infer = infer_quantize,
    .cudnn_strides = cudnn_strides,
    .check = check_quantize,
    .reference = quantize,
};

const struct op block_scale_dequantize_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR,
            .name = "block_scale_dequantize",
            .doc = "y = x scale, with one scale per block",
            .size = sizeof(struct block_scale_dequantize_op),
            ROWS(dequantize_rows),
            .finalize = op_finalize,
            .op = &block_scale_dequantize_op,
        },
    .methods = dequantize_methods,
    .takes_reordered = true,
    .infer = infer_dequantize,
    .check = check_dequantize,
    .reference = dequantize,
};
