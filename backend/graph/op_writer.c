/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/op_writer.h"

weftStatus_t op_writer_add_tensor(struct op_writer *w, struct tensor **result, const struct tensor *like,
                                  weftDataType_t type) {
    TRY(descriptor_mirror(w->arena, result, &like->base));
    (*result)->uid = w->uid++;
    (*result)->is_virtual = true;
    (*result)->is_free = (*result)->is_by_value = (*result)->is_constant = false;
    (*result)->ragged_offset = NULL;
    (*result)->type = (int32_t)type;
    descriptor_mark_set(&(*result)->base, WEFT_ATTR_TENSOR_DATA_TYPE); /* so that it is not narrowed */
    return WEFT_STATUS_SUCCESS;
}

void op_writer_add(struct op_writer *w, struct descriptor *result, const struct op *op,
                   const struct descriptor *replaced) {
    result->magic = replaced->magic;
    result->schema = &op->schema;
    result->label = replaced->label;
    result->finalized = true;
    w->ops[w->count++] = result;
}

weftStatus_t op_writer_add_pointwise(struct op_writer *w, const struct descriptor *replaced, weftPointwiseMode_t mode,
                                     weftDataType_t math, int64_t axis, struct pointwise_operands operands) {
    const struct setting settings[] = {{WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, &mode},
                                       {WEFT_ATTR_POINTWISE_MATH_PREC, WEFT_TYPE_DATA_TYPE, 1, &math},
                                       {WEFT_ATTR_POINTWISE_AXIS, WEFT_TYPE_INT64, axis >= 0, &axis}};
    struct descriptor *built;
    struct pointwise *parameters;
    struct pointwise_op *op;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    TRY(descriptor_build(&built, &pointwise_schema, settings, 3));
    weftStatus_t status = descriptor_mirror(w->arena, &parameters, built);
    descriptor_release(built);
    TRY(status);
    /* A pointwise operation declares its operands without const, but does not change them. */
    *op = (struct pointwise_op){.pw = parameters,
                                .x = (struct tensor *)operands.x,
                                .b = (struct tensor *)operands.b,
                                .t = (struct tensor *)operands.t,
                                .y = (struct tensor *)operands.out,
                                .alpha1 = 1,
                                .alpha2 = 1};
    op_writer_add(w, &op->base, &pointwise_op, replaced);
    return WEFT_STATUS_SUCCESS;
}
