/* SPDX-License-Identifier: Apache-2.0 */
/* concat: concatenates the inputs along an axis. inplace_index may name an input that is already stored inside y; the
   reference copies every input, because copying one onto itself is harmless. A result without a data type gets the
   narrowest type that can represent the values of all inputs; inputs of other types are converted. Inputs that are
   computed within the graph may be stored directly in y (`operand_layout`). */
#include "graph/ops/concat.h"
#include "graph/ops/move.h"

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct concat_op, inputs, WEFT_ATTR_OPERATION_CONCAT_INPUT_DESCS, "inputs",
               .storage = STORE_LIST, .required = true, .shape = "[d..], equal except along the axis",
               .doc = "inputs, in order"),
    TENSOR_ROW(ROLE_OUTPUT, struct concat_op, y, WEFT_ATTR_OPERATION_CONCAT_OUTPUT_DESC, "y", .required = true,
               .shape = "[d..], the sum along the axis",
               .doc = "result; default data type: the narrowest that represents the values of all inputs, DOUBLE for "
                      "INT32 or INT64 with floats, FLOAT for HALF with BFLOAT16"),
    VALUE_ROW(WEFT_TYPE_INT64, struct concat_op, axis, WEFT_ATTR_OPERATION_CONCAT_AXIS, "axis", .required = true,
              .least = -WEFT_DIM_MAX, .most = WEFT_DIM_MAX - 1,
              .doc = "the dimension along which the inputs are concatenated; negative values count from the last"),
    /* For tensors of the user that share memory; the planner finds intermediates that can be stored in y by itself. */
    VALUE_ROW(WEFT_TYPE_INT64, struct concat_op, inplace_index, WEFT_ATTR_OPERATION_CONCAT_INPLACE_INDEX,
              "in_place_index", .initial = -1, .least = -1, .most = INT32_MAX,
              .doc = "index of the input that is already stored inside y; -1: none"),
};

static const struct method methods[] = {
    {"concatenate", "concatenation of tensors along an axis : y = [inputs[0], inputs[1], ..]", NULL,
     "inputs axis in_place_index=None", "y"},
    {0},
};

/* At least one input; all have the same rank, and the same extents except along the axis. */
static weftStatus_t check_inputs(const struct concat_op *op) {
    const char *label = descriptor_label(&op->base);
    if (op->inputs.count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: the list of inputs is empty. Give at least one.", label);
    /* The first input determines the extents, and the rank that a negative axis refers to. */
    const struct tensor *first = op->inputs.tensors[0];
    int64_t rank = first->dims.count;
    /* Checked against the first input's rank before the axis is used. */
    if (op->axis < -rank || op->axis >= rank)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: axis is %lld, the inputs have %lld dim%s. Use a value in -%lld..%lld.", label, (long long)op->axis,
             (long long)rank, plural(rank), (long long)rank, (long long)rank - 1);
    if (op->inplace_index >= op->inputs.count)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: in_place_index is %lld, there are %lld inputs. Use a value in 0..%lld, or leave it unset.", label,
             (long long)op->inplace_index, (long long)op->inputs.count, (long long)op->inputs.count - 1);
    /* Comparing each input with the first one is sufficient. */
    for (int64_t k = 1; k < op->inputs.count; k++) {
        const struct tensor *other = op->inputs.tensors[k];
        bool fits = other->dims.count == rank;
        for (int64_t i = 0; fits && i < rank; i++)
            fits = i == concat_axis(op) || other->dims.at[i] == first->dims.at[i];
        if (!fits)
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                 "%s: input 0 is %s, input %lld is %s. Make all dims but dimension %d equal.", label,
                 tensor_dims_text(first), (long long)k, tensor_dims_text(other), concat_axis(op));
    }
    return WEFT_STATUS_SUCCESS;
}

/* y: the sum of the extents along the axis, the order of the first input, and a type that can represent the values of
   all inputs. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct concat_op *op = (struct concat_op *)descriptor;
    TRY(check_inputs(op));
    const struct tensor *first = op->inputs.tensors[0];
    struct dims dims = first->dims;
    for (int64_t k = 1; k < op->inputs.count; k++)
        dims.at[concat_axis(op)] += op->inputs.tensors[k]->dims.at[concat_axis(op)];
    tensor_infer_dims(op->y, dims.count, dims.at);
    /* The concatenation of channels-last inputs is channels-last. */
    tensor_infer_strides(op->y, first);
    weftDataType_t type = (weftDataType_t)first->type;
    for (int64_t k = 1; k < op->inputs.count; k++)
        type = dtype_common(type, (weftDataType_t)op->inputs.tensors[k]->type);
    tensor_infer_type(op->y, type);
    return check_dims(descriptor, "y", op->y, dims.count, dims.at);
}

/* Offset inside y of the input that inplace_index names, which must have the strides of y. */
static int64_t offset_in_result(const struct descriptor *descriptor, const struct tensor *in,
                                const struct tensor *out) {
    const struct concat_op *op = (const struct concat_op *)descriptor;
    int axis = concat_axis(op);
    int64_t before = 0;
    /* With other types or vectors, the bytes would differ. */
    if (op->inplace_index < 0 || op->inputs.tensors[op->inplace_index] != in || in->type != out->type ||
        in->vector_count != 1 || out->vector_count != 1)
        return -1;
    /* Where the input begins in y, in elements along the axis. */
    for (int64_t k = 0; k < op->inplace_index; k++)
        before += op->inputs.tensors[k]->dims.at[axis];
    for (int64_t i = 0; i < in->dims.count; i++)
        /* The stride of an extent of 1 does not matter. */
        if (in->dims.at[i] != 1 && in->strides.at[i] != out->strides.at[i])
            return -1;
    return dtype_bytes((weftDataType_t)in->type, before * out->strides.at[axis]);
}

/* Where input k must be stored for y to need no copy: after all inputs before it. Always possible. */
static bool operand_layout(const struct descriptor *descriptor, int k, const struct placement *y, struct placement *x) {
    const struct concat_op *op = (const struct concat_op *)descriptor;
    int axis = concat_axis(op);
    *x = *y;
    for (int i = 0; i < k; i++)
        x->offset += op->inputs.tensors[i]->dims.at[axis] * y->strides.at[axis];
    return true;
}

/* `before` is the position along the axis of y at which input k begins. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct concat_op *op = (const struct concat_op *)descriptor;
    struct view y = view_of(bindings, op->y);
    int axis = concat_axis(op);
    int64_t in_x[WEFT_DIM_MAX], in_y[WEFT_DIM_MAX], before = 0;
    for (int64_t k = 0; y.data && k < op->inputs.count; k++) {
        /* Every element of y belongs to exactly one input: nothing is written twice. */
        struct view x = view_of(bindings, op->inputs.tensors[k]);
        for (bool more = index_begin(in_x, x.rank, x.dims); more; more = index_next(in_x, x.rank, x.dims)) {
            for (int i = 0; i < x.rank; i++)
                in_y[i] = in_x[i] + (i == axis ? before : 0);
            move_element(&y, view_offset(&y, in_y), &x, view_offset(&x, in_x));
        }
        before += x.dims[axis];
    }
}

const struct op concat_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CONCAT_DESCRIPTOR,
            .name = "concat",
            .doc = "concatenation of the inputs along an axis",
            .size = sizeof(struct concat_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &concat_op,
        },
    .methods = methods,
    .infer = infer,
    .offset_in_result = offset_in_result,
    .operand_layout = operand_layout,
    .reference = reference,
};
