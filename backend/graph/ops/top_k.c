/* SPDX-License-Identifier: Apache-2.0 */
/* top_k: the k largest or smallest elements along one dimension, best first, and their positions. Of equal elements,
   the one with the lowest position is first, and -0 equals 0. NaN counts as the largest, or comes first in both modes,
   as for argmin. The gradient of x adds that of the values at the positions (scatter_add). */
#include "graph/ops/top_k.h"

#include <math.h>

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct top_k_op, x, WEFT_ATTR_OPERATION_TOP_K_XDESC_EXT, "x", .required = true,
               .shape = "[d..]", .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct top_k_op, values, WEFT_ATTR_OPERATION_TOP_K_VALUES_DESC_EXT, "values",
               .shape = "like x, k along the axis", .doc = "the elements, best first"),
    TENSOR_ROW(ROLE_OUTPUT, struct top_k_op, indices, WEFT_ATTR_OPERATION_TOP_K_INDICES_DESC_EXT, "indices",
               .shape = "like x, k along the axis",
               .doc =
                   "their positions along the axis, INT32 or INT64; of equal elements, the lowest position is first"),
    VALUE_ROW(WEFT_TYPE_REDUCTION_OPERATOR_TYPE, struct top_k_op, mode, WEFT_ATTR_OPERATION_TOP_K_MODE_EXT, "mode",
              .initial = WEFT_REDUCE_TENSOR_MAX, .doc = "MAX: the largest elements; MIN: the smallest"),
    VALUE_ROW(WEFT_TYPE_INT64, struct top_k_op, axis, WEFT_ATTR_OPERATION_TOP_K_AXIS_EXT, "axis", .initial = -1,
              .least = -WEFT_DIM_MAX, .most = WEFT_DIM_MAX - 1,
              .doc = "dimension along which elements are selected; negative values count from the last"),
    VALUE_ROW(WEFT_TYPE_INT64, struct top_k_op, count, WEFT_ATTR_OPERATION_TOP_K_COUNT_EXT, "k", .initial = 1,
              .least = 1, .most = INT32_MAX, .doc = "number of elements, at most the extent of the axis"),
    VALUE_ROW(WEFT_TYPE_NAN_PROPOGATION, struct top_k_op, nan_propagation,
              WEFT_ATTR_OPERATION_TOP_K_NAN_PROPAGATION_EXT, "nan_propagation", .initial = WEFT_NOT_PROPAGATE_NAN,
              .doc = "PROPAGATE_NAN: NaN comes first; NOT_PROPAGATE_NAN: it counts as the largest element"),
};

static const struct method methods[] = {
    {"top_k",
     "the k largest or smallest elements along one dimension, best first, and their positions : values[i] = "
     "x[indices[i]]",
     NULL, "input:x k axis=-1 mode=MAX nan_propagation=NOT_PROPAGATE_NAN", "values indices"},
    {"argmax",
     "position of the largest element along one dimension, which is kept with extent 1; that of the first NaN, if "
     "there "
     "is one : indices = argmax(x)",
     "mode=MAX", "input:x axis=-1", "indices"},
    {"argmin",
     "position of the smallest element along one dimension, which is kept with extent 1; that of the first NaN, if "
     "there is one : indices = argmin(x)",
     "mode=MIN nan_propagation=PROPAGATE_NAN", "input:x axis=-1", "indices"},
    {0},
};

static struct dims result_dims(const struct top_k_op *op) {
    struct dims dims = op->x->dims;
    dims.at[axis_dimension(op->axis, op->x)] = op->count;
    return dims;
}

static weftStatus_t infer(struct descriptor *descriptor) {
    struct top_k_op *op = (struct top_k_op *)descriptor;
    TRY(check_axis(descriptor, op->axis, "x", op->x));
    struct dims dims = result_dims(op);
    struct tensor *const results[] = {op->values, op->indices};
    for (int i = 0; i < 2; i++)
        if (results[i]) {
            tensor_infer_type(results[i], i ? WEFT_DATA_INT64 : (weftDataType_t)op->x->type);
            tensor_infer_dims(results[i], dims.count, dims.at);
            tensor_infer_strides(results[i], op->x);
        }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct top_k_op *op = (const struct top_k_op *)descriptor;
    struct dims dims = result_dims(op);
    int axis = axis_dimension(op->axis, op->x);
    if (op->mode != WEFT_REDUCE_TENSOR_MAX && op->mode != WEFT_REDUCE_TENSOR_MIN)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode selects no elements. Use MAX or MIN.", descriptor_label(descriptor));
    if (!op->values && !op->indices)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: it has no result: values and indices are unset. Set one.",
             descriptor_label(descriptor));
    if (op->count > op->x->dims.at[axis])
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: k is %lld, but x %s has %lld elements along axis %d. Select at most that many.",
             descriptor_label(descriptor), (long long)op->count, tensor_dims_text(op->x),
             (long long)op->x->dims.at[axis], axis);
    TRY(check_dims(descriptor, "values", op->values, dims.count, dims.at));
    TRY(check_dims(descriptor, "indices", op->indices, dims.count, dims.at));
    return check_index_type(descriptor, "indices", op->indices);
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

/* An element: `whole` counts for integers, `real` for all other types; the unused one is 0. */
struct element {
    double real;
    int64_t whole, position;
};

/* True if a comes before b in the result. */
static bool precedes(const struct top_k_op *op, struct element a, struct element b) {
    bool is_max = op->mode == WEFT_REDUCE_TENSOR_MAX;
    if (isnan(a.real) != isnan(b.real))
        return isnan(a.real) == (is_max || op->nan_propagation == WEFT_PROPAGATE_NAN);
    if (a.real != b.real && !isnan(a.real))
        return (a.real > b.real) == is_max;
    if (a.whole != b.whole)
        return (a.whole > b.whole) == is_max;
    return a.position < b.position;
}

static struct element element_at(const struct view *x, int64_t *at, int axis, int64_t position) {
    at[axis] = position;
    if (dtype_is_float(x->type))
        return (struct element){view_load(x, at), 0, position};
    return (struct element){0, view_load_int(x, at), position};
}

/* Each result is the first of the elements that come after the previous result. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct top_k_op *op = (const struct top_k_op *)descriptor;
    struct view x = view_of(bindings, op->x), values = view_of(bindings, op->values),
                indices = view_of(bindings, op->indices);
    const int axis = axis_dimension(op->axis, op->x);
    int64_t lines[WEFT_DIM_MAX], at[WEFT_DIM_MAX];
    for (int i = 0; i < x.rank; i++)
        lines[i] = i == axis ? 1 : x.dims[i];
    for (bool more = index_begin(at, x.rank, lines); more; more = index_next(at, x.rank, lines)) {
        struct element last = {0, 0, -1};
        for (int64_t k = 0; k < op->count; k++) {
            struct element best = {0, 0, -1};
            for (int64_t i = 0; i < x.dims[axis]; i++) {
                struct element e = element_at(&x, at, axis, i);
                if ((last.position < 0 || precedes(op, last, e)) && (best.position < 0 || precedes(op, e, best)))
                    best = e;
            }
            at[axis] = k;
            if (values.data && dtype_is_float(x.type))
                view_store(&values, at, best.real);
            else if (values.data)
                view_store_int(&values, at, best.whole);
            if (indices.data)
                view_store_int(&indices, at, best.position);
            last = best;
        }
        at[axis] = 0;
    }
}

/* What the reference does; other families need about one comparison per element. */
static double flops(const struct descriptor *descriptor) {
    const struct top_k_op *op = (const struct top_k_op *)descriptor;
    return (double)tensor_elements(op->x) * (double)op->count;
}

const struct op top_k_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_TOP_K_DESCRIPTOR_EXT,
            .name = "top_k",
            .doc = "the k largest or smallest elements along one dimension, and their positions",
            .size = sizeof(struct top_k_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &top_k_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .reference = reference,
    .flops = flops,
};
