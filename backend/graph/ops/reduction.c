/* SPDX-License-Identifier: Apache-2.0 */
/* reduction: y[i] = op over the group of x that belongs to i. In each dimension y has the extent of x (kept), 1
   (reduced) or a divisor (groups of adjacent elements are reduced to one). NaN propagates through every operator.
   Reducing no elements gives the operator's identity: 0 for ADD, AMAX and the norms, 1 for the products, +inf for MIN,
   -inf for MAX, NaN for AVG; in integer types infinities saturate and NaN becomes 0. An integer compute type calculates
   exactly in 64 bits, wrapping around, with AVG and NORM2 rounded towards 0. Softmax and norms are separate operations,
   because they read rows more than once. */
#include "graph/ops/reduction.h"
#include "graph/expansion.h"

#include <math.h>

/* ---- The parameter descriptor ------------------------------------------------------------------------------------ */

static const struct row parameter_rows[] = {
    VALUE_ROW(WEFT_TYPE_REDUCTION_OPERATOR_TYPE, struct reduction, mode, WEFT_ATTR_REDUCTION_OPERATOR, "mode",
              .required = true, .doc = "the operator: weftReduceTensorOp_t"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct reduction, math, WEFT_ATTR_REDUCTION_COMP_TYPE, "compute_data_type",
              .doc = "compute type; integer types are exact. Unset: INT64 for integers and booleans, except FLOAT for "
                     "AVG and NORM2, FLOAT for all others"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct reduction, is_deterministic, WEFT_ATTR_REDUCTION_IS_DETERMINISTIC,
              "is_deterministic", .doc = "true: results are bitwise reproducible"),
};

const struct schema reduction_schema = {
    .kind = WEFT_BACKEND_REDUCTION_DESCRIPTOR,
    .name = "reduction parameters",
    .doc = "operator and compute type of a reduction",
    .size = sizeof(struct reduction),
    ROWS(parameter_rows),
};

/* ---- The operation ----------------------------------------------------------------------------------------------- */

/* If y has no dims, `dims` determines the dimensions that are reduced; otherwise the dims of y do. */
static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct reduction_op, parameters, WEFT_ATTR_OPERATION_REDUCTION_DESC,
              "parameters", .required = true, .target = WEFT_BACKEND_REDUCTION_DESCRIPTOR,
              .doc = "operator and compute type"),
    TENSOR_ROW(ROLE_INPUT, struct reduction_op, x, WEFT_ATTR_OPERATION_REDUCTION_XDESC, "x", .required = true,
               .shape = "[d..]", .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct reduction_op, y, WEFT_ATTR_OPERATION_REDUCTION_YDESC, "y", .required = true,
               .shape = "[d.. with reduced extents 1 or a divisor]", .doc = "result"),
    /* Weft's own attribute, named as in array libraries; the dims of y carry the same information and more. */
    VALUE_ROW(WEFT_TYPE_INT64, struct reduction_op, dims, WEFT_ATTR_OPERATION_REDUCTION_DIMS, "dims",
              .storage = STORE_DIMS, .least = -WEFT_DIM_MAX, .most = WEFT_DIM_MAX - 1,
              .doc = "dimensions to reduce if y's dims are unset; negative ones count from the last"),
    /* User-defined reducers and segments follow, which refuse_unserved rejects. */
    TENSOR_ROW(ROLE_INPUT, struct reduction_op, group_offset, WEFT_ATTR_OPERATION_REDUCTION_GROUP_OFFSET_DESC,
               "group_offset", .shape = "[segments]",
               .doc = "start of each segment of a packed dimension; not supported"),
    VALUE_ROW(WEFT_TYPE_VOID_PTR, struct reduction_op, init_values, WEFT_ATTR_OPERATION_REDUCTION_INIT_VALUES,
              "init_values", .storage = STORE_LIST, .doc = "start values of a user-defined reducer; not supported"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct reduction_op, subgraph, WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH,
              "subgraph", .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR, .doc = "user-defined reducer; refused"),
    VALUE_ROW(WEFT_TYPE_INT64, struct reduction_op, accumulator_uids,
              WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_ACCUMULATOR_UIDS, "subgraph_accumulator_uids",
              .storage = STORE_LIST, .doc = "accumulators of a user-defined reducer; not supported"),
    VALUE_ROW(WEFT_TYPE_INT64, struct reduction_op, current_uids, WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS,
              "subgraph_current_uids", .storage = STORE_LIST,
              .doc = "current elements of a user-defined reducer; not supported"),
    VALUE_ROW(WEFT_TYPE_INT64, struct reduction_op, output_uids, WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS,
              "subgraph_output_uids", .storage = STORE_LIST,
              .doc = "new accumulators of a user-defined reducer; not supported"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct reduction_op, compute_types,
              WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_COMPUTE_TYPES, "subgraph_compute_types", .storage = STORE_LIST,
              .doc = "accumulator types of a user-defined reducer; not supported"),
};

static const struct method methods[] = {
    {"reduction",
     "reduction of whole dimensions or of groups of adjacent elements : y[i] = op over the x that belong to i", NULL,
     "input:x mode * dims=None is_deterministic=None", "y"},
    {0},
};

/* Attributes of cuDNN that Weft knows only to reject them with a clear message. */
static weftStatus_t refuse_unserved(const struct descriptor *op) {
    static const weftBackendAttributeName_t unserved[] = {WEFT_ATTR_OPERATION_REDUCTION_GROUP_OFFSET_DESC,
                                                          WEFT_ATTR_OPERATION_REDUCTION_INIT_VALUES,
                                                          WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH,
                                                          WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_ACCUMULATOR_UIDS,
                                                          WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS,
                                                          WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS,
                                                          WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_COMPUTE_TYPES};
    for (size_t i = 0; i < sizeof unserved / sizeof *unserved; i++)
        if (descriptor_row_is_set(op, unserved[i]))
            FAIL(WEFT_STATUS_NOT_SUPPORTED,
                 "%s: attribute %s is set, but reductions have the built-in operators and equal groups only. Leave it "
                 "unset.",
                 descriptor_label(op), schema_find_row(op->schema, unserved[i])->key);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t reduction_named_dims(const struct descriptor *op, const struct tensor *x, const struct dims *dims,
                                  bool named[WEFT_DIM_MAX]) {
    int64_t rank = x->dims.count;
    for (int64_t i = 0; i < dims->count; i++) {
        /* Negative numbers count from the last dimension. */
        int64_t dim = dims->at[i] < 0 ? dims->at[i] + rank : dims->at[i];
        if (dim < 0 || dim >= rank)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: attribute dims is %s, but x has %lld dim%s %s. Use dimensions in -%lld..%lld.",
                 descriptor_label(op), numbers_text(dims->at, dims->count), (long long)rank, plural(rank),
                 tensor_dims_text(x), (long long)rank, (long long)rank - 1);
        if (named[dim])
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: attribute dims is %s, which names dimension %lld twice. Name each once.",
                 descriptor_label(op), numbers_text(dims->at, dims->count), (long long)dim);
        named[dim] = true;
    }
    return WEFT_STATUS_SUCCESS;
}

/* The type that the user set; otherwise exact for integers and booleans, unless the operator is not. */
weftDataType_t reduction_math(const struct reduction_op *op) {
    int mode = op->parameters->mode;
    bool is_set = descriptor_row_is_set(&op->parameters->base, WEFT_ATTR_REDUCTION_COMP_TYPE);
    /* A mean or a root of integers is not an integer. */
    bool is_exact = !dtype_is_float((weftDataType_t)op->x->type) && mode != WEFT_REDUCE_TENSOR_AVG &&
                    mode != WEFT_REDUCE_TENSOR_NORM2;
    return is_set ? (weftDataType_t)op->parameters->math : is_exact ? WEFT_DATA_INT64 : WEFT_DATA_FLOAT;
}

/* Infers the dims of y from the attribute dims if y has none, and its order from x. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct reduction_op *op = (struct reduction_op *)descriptor;
    bool named[WEFT_DIM_MAX] = {false};
    TRY(refuse_unserved(descriptor));
    /* Checked before y: with y's dims, an invalid number in dims would go unnoticed. */
    TRY(reduction_named_dims(descriptor, op->x, &op->dims, named));
    /* Without dims of y and without the attribute, all dimensions would be kept, which is no reduction. */
    if (op->y->dims.count == 0 && !descriptor_row_is_set(descriptor, WEFT_ATTR_OPERATION_REDUCTION_DIMS))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: it is not specified which dimensions of x %s to reduce. Set y's dims, with 1 where x is reduced, or "
             "attribute dims.",
             descriptor_label(descriptor), tensor_dims_text(op->x));
    /* If y has no dims, reduced dimensions become 1; only y's dims can express groups. */
    struct dims dims = op->x->dims;
    for (int64_t i = 0; i < dims.count; i++)
        dims.at[i] = named[i] ? 1 : dims.at[i];
    tensor_infer_dims(op->y, dims.count, dims.at);
    tensor_infer_strides(op->y, op->x);
    weftDataType_t natural = (weftDataType_t)op->x->type, math = reduction_math(op);
    /* Integers keep the 64-bit type in which they are combined: a sum may not fit the type of x. */
    tensor_infer_type(op->y, dtype_is_float(natural) ? tensor_result_type(op->y, natural, math) : math);
    return WEFT_STATUS_SUCCESS;
}

/* Checks the extents of y against those of x, and against the attribute dims if both are set. */
static weftStatus_t check(const struct descriptor *descriptor) {
    const struct reduction_op *op = (const struct reduction_op *)descriptor;
    bool has_dims = descriptor_row_is_set(descriptor, WEFT_ATTR_OPERATION_REDUCTION_DIMS);
    bool named[WEFT_DIM_MAX] = {false};
    TRY(reduction_named_dims(descriptor, op->x, &op->dims, named));
    TRY(check_rank(descriptor, "y", op->y, op->x->dims.count, op->x->dims.count));
    for (int64_t i = 0; i < op->x->dims.count; i++) {
        int64_t from = op->x->dims.at[i], to = op->y->dims.at[i];
        /* Equal extents are kept; 1 or a divisor reduces to that many groups. An extent of 0 may become any number of
           empty groups. */
        bool fits = from == to || (to && from % to == 0);
        if (!fits)
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                 "%s: dimension %lld is %lld in x %s and %lld in y %s. In y make it equal, 1 or a divisor.",
                 descriptor_label(descriptor), (long long)i, (long long)from, tensor_dims_text(op->x), (long long)to,
                 tensor_dims_text(op->y));
        /* Along an extent of 1, reducing and keeping are the same. */
        if (has_dims && named[i] != (from != to) && from != 1)
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                 "%s: attribute dims %s %s dimension %lld, but y %s %s it (x is %s). Let them agree, or set one only.",
                 descriptor_label(descriptor), numbers_text(op->dims.at, op->dims.count),
                 named[i] ? "reduces" : "keeps", (long long)i, tensor_dims_text(op->y), named[i] ? "keeps" : "reduces",
                 tensor_dims_text(op->x));
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- The reference ----------------------------------------------------------------------------------------------- */

/* The result for no elements, and the initial value of the accumulation; the mean of no elements is NaN. */
static double identity_of(int mode) {
    switch (mode) {
    case WEFT_REDUCE_TENSOR_MUL:
    case WEFT_REDUCE_TENSOR_MUL_NO_ZEROS:
        return 1;
    case WEFT_REDUCE_TENSOR_MIN:
        return INFINITY;
    case WEFT_REDUCE_TENSOR_MAX:
        return -INFINITY;
    default:
        return 0;
    }
}

/* Combines one more element. x != x accepts NaN, which compares false, and NaN then remains the result. */
static double combine(int mode, double so_far, double x) {
    switch (mode) {
    case WEFT_REDUCE_TENSOR_MUL:
        return so_far * x;
    case WEFT_REDUCE_TENSOR_MUL_NO_ZEROS:
        /* Zeros are ignored. */
        return x == 0 ? so_far : so_far * x;
    case WEFT_REDUCE_TENSOR_MIN:
        return x < so_far || x != x ? x : so_far;
    case WEFT_REDUCE_TENSOR_MAX:
        return x > so_far || x != x ? x : so_far;
    case WEFT_REDUCE_TENSOR_AMAX:
        return fabs(x) > so_far || x != x ? fabs(x) : so_far;
    case WEFT_REDUCE_TENSOR_NORM1:
        return so_far + fabs(x);
    case WEFT_REDUCE_TENSOR_NORM2:
        return so_far + x * x;
    default: /* ADD, AVG */
        return so_far + x;
    }
}

/* Converts the total of `count` elements to the result: 0 / 0, the mean of no elements, is NaN. */
static double finish(int mode, double total, int64_t count) {
    return mode == WEFT_REDUCE_TENSOR_AVG     ? total / (double)count
           : mode == WEFT_REDUCE_TENSOR_NORM2 ? sqrt(total)
                                              : total;
}

static int64_t integer_identity(int mode) {
    double identity = identity_of(mode);
    return identity == INFINITY ? INT64_MAX : identity == -INFINITY ? INT64_MIN : (int64_t)identity;
}

/* Like combine, but wraps around: the arithmetic is unsigned, for which C defines overflow. */
static int64_t integer_combine(int mode, int64_t so_far, int64_t x) {
    /* The magnitude of the smallest integer does not fit into 64 bits: it becomes the largest integer. */
    int64_t magnitude = x == INT64_MIN ? INT64_MAX : x < 0 ? -x : x;
    switch (mode) {
    case WEFT_REDUCE_TENSOR_MUL:
        return (int64_t)((uint64_t)so_far * (uint64_t)x);
    case WEFT_REDUCE_TENSOR_MUL_NO_ZEROS:
        return x == 0 ? so_far : (int64_t)((uint64_t)so_far * (uint64_t)x);
    case WEFT_REDUCE_TENSOR_MIN:
        return x < so_far ? x : so_far;
    case WEFT_REDUCE_TENSOR_MAX:
        return x > so_far ? x : so_far;
    case WEFT_REDUCE_TENSOR_AMAX:
        return magnitude > so_far ? magnitude : so_far;
    case WEFT_REDUCE_TENSOR_NORM1:
        return (int64_t)((uint64_t)so_far + (uint64_t)magnitude);
    case WEFT_REDUCE_TENSOR_NORM2:
        return (int64_t)((uint64_t)so_far + (uint64_t)x * (uint64_t)x);
    default: /* ADD, AVG */
        return (int64_t)((uint64_t)so_far + (uint64_t)x);
    }
}

/* The largest integer whose square is at most x. */
static int64_t integer_root(int64_t x) {
    if (x <= 0)
        return 0;
    /* The square root in double may be off by one in either direction if x has more than 53 bits. */
    uint64_t root = (uint64_t)sqrt((double)x);
    while (root * root > (uint64_t)x)
        root--;
    while ((root + 1) * (root + 1) <= (uint64_t)x)
        root++;
    return (int64_t)root;
}

/* The mean is rounded towards 0. The mean of no elements is 0, and so is the root of a sum that wrapped around below
   0. */
static int64_t integer_finish(int mode, int64_t total, int64_t count) {
    if (mode == WEFT_REDUCE_TENSOR_AVG)
        return count ? total / count : 0;
    return mode == WEFT_REDUCE_TENSOR_NORM2 ? integer_root(total) : total;
}

/* Computes y element by element, over the group of x that belongs to it. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct reduction_op *op = (const struct reduction_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y);
    int mode = op->parameters->mode;
    bool exact = !dtype_is_float(reduction_math(op));
    int64_t index[WEFT_DIM_MAX], group[WEFT_DIM_MAX], member[WEFT_DIM_MAX], in_x[WEFT_DIM_MAX];
    if (!y.data)
        return;
    /* Number of elements of x along each dimension that are reduced to one element of y. */
    for (int i = 0; i < x.rank; i++)
        group[i] = reduction_group(op, i);
    for (bool more = index_begin(index, y.rank, y.dims); more; more = index_next(index, y.rank, y.dims)) {
        /* Accumulates an exact integer and a double; only one of them is used. */
        double total = identity_of(mode);
        int64_t integer_total = integer_identity(mode), count = 0;
        /* `member` iterates over the group of the element of y. */
        for (bool left = index_begin(member, x.rank, group); left; left = index_next(member, x.rank, group)) {
            for (int i = 0; i < x.rank; i++)
                in_x[i] = index[i] * group[i] + member[i];
            if (exact)
                integer_total = integer_combine(mode, integer_total, view_load_int(&x, in_x));
            else
                total = combine(mode, total, view_load(&x, in_x));
            count++;
        }
        if (exact)
            view_store_int(&y, index, integer_finish(mode, integer_total, count));
        else
            view_store(&y, index, finish(mode, total, count));
    }
}

/* One operation for each element that is combined. */
static double flops(const struct descriptor *descriptor) {
    return (double)tensor_elements(((const struct reduction_op *)descriptor)->x);
}

/* ---- As instructions --------------------------------------------------------------------------------------------- */

/* The function of an element that is accumulated. */
static int expand_element(struct expansion *e, int32_t mode, int x) {
    switch (mode) {
    case WEFT_REDUCE_TENSOR_AMAX:
    case WEFT_REDUCE_TENSOR_NORM1:
        return expand(e, OPCODE_ABSOLUTE, x, -1);
    case WEFT_REDUCE_TENSOR_NORM2:
        return expand_multiply(e, x, x);
    /* Replacing a zero by 1 leaves the product unchanged. */
    case WEFT_REDUCE_TENSOR_MUL_NO_ZEROS:
        return expand_choice(e, OPCODE_IF_EQUAL, x, expand_number(e, 0), expand_number(e, 1), x);
    default:
        return x;
    }
}

/* AMAX is the maximum of magnitudes, NORM1 and NORM2 are sums; expand_element has computed the terms. */
static enum opcode combination_of(int32_t mode) {
    switch (mode) {
    case WEFT_REDUCE_TENSOR_MUL:
    case WEFT_REDUCE_TENSOR_MUL_NO_ZEROS:
        return OPCODE_PRODUCT;
    case WEFT_REDUCE_TENSOR_MIN:
        return OPCODE_LEAST;
    case WEFT_REDUCE_TENSOR_MAX:
    case WEFT_REDUCE_TENSOR_AMAX:
        return OPCODE_LARGEST;
    default:
        return OPCODE_SUM;
    }
}

/* The function of the total. The mean of no integers is 0, and so is the AMAX of no elements. */
static int expand_end(struct expansion *e, int32_t mode, int total) {
    /* COUNT is at least 1, so that no integer is divided by 0; LENGTH may be 0, which makes the mean NaN. */
    bool is_exact = e->math == WEFT_DATA_INT64;
    int zero = expand_number(e, 0);
    switch (mode) {
    case WEFT_REDUCE_TENSOR_AMAX:
        /* OPCODE_LARGEST begins at -inf, below every magnitude. */
        return expand_choice(e, OPCODE_IF_GREATER, zero, total, zero, total);
    case WEFT_REDUCE_TENSOR_AVG:
        return expand_divide(e, total, expand(e, is_exact ? OPCODE_COUNT : OPCODE_LENGTH, -1, -1));
    case WEFT_REDUCE_TENSOR_NORM2:
        return expand(e, OPCODE_ROOT, total, -1);
    default:
        return total;
    }
}

/* Along each dimension, the number of rows is the extent of y. */
static weftStatus_t expand_reduction(const struct descriptor *descriptor, struct expansion *e) {
    const struct reduction_op *op = (const struct reduction_op *)descriptor;
    int32_t mode = op->parameters->mode;
    e->dims = op->x->dims;
    for (int64_t d = 0; d < e->dims.count; d++)
        e->parts[d] = op->y->dims.at[d];
    expansion_begin(e, (int32_t)reduction_math(op), op->x);
    /* Three steps for every operator: for an element, for all elements, and for the total. */
    int element = expand_element(e, mode, expand_input(e, op->x));
    expand_result(e, op->y, expand_end(e, mode, expand(e, combination_of(mode), element, -1)));
    return WEFT_STATUS_SUCCESS;
}

const struct op reduction_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
            .name = "reduction",
            .doc = "y[i] = op over the group of x that belongs to i",
            .size = sizeof(struct reduction_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &reduction_op,
        },
    .parameters = &reduction_schema,
    .methods = methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .expand = expand_reduction,
    .reference = reference,
    .flops = flops,
};
