/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/movement.h"

#include "graph/ops/concat.h"
#include "graph/ops/reshape.h"
#include "graph/ops/slice.h"
#include "graph/ops/transpose.h"

#include <string.h>

/* Describes a tensor's memory, or part of it, over the given extents. */
static struct side side_of(const struct tensor *tensor, const struct dims *extents, const int64_t *strides) {
    struct side side = {.tensor = tensor, .type = (weftDataType_t)tensor->type, .rank = (int)extents->count};
    memcpy(side.extents, extents->at, sizeof extents->at);
    memcpy(side.strides, strides, sizeof extents->at);
    return side;
}

/* Insertion sort of the modes by the result's strides, applied to both sides: elements are visited in the result's
   memory order. */
void part_order(struct part *part) {
    struct side *sides[] = {&part->from, &part->to};
    for (int i = 1; i < part->to.rank; i++)
        for (int at = i; at > 0 && part->to.strides[at - 1] < part->to.strides[at]; at--)
            for (int k = 0; k < 2; k++) {
                int64_t extent = sides[k]->extents[at], stride = sides[k]->strides[at];
                sides[k]->extents[at] = sides[k]->extents[at - 1];
                sides[k]->strides[at] = sides[k]->strides[at - 1];
                sides[k]->extents[at - 1] = extent;
                sides[k]->strides[at - 1] = stride;
            }
}

int64_t part_elements(const struct part *part) {
    int64_t elements = 1;
    for (int i = 0; i < part->to.rank; i++)
        elements *= part->to.extents[i];
    return elements;
}

/* Works in place: mode i is read before a mode at or before it is written. */
void side_merge(struct side *side) {
    /* Number of finished modes, at the front of the arrays. */
    int rank = 0;
    for (int i = 0; i < side->rank; i++) {
        /* Merged extents stay below 2^31, so that 32-bit divisions suffice. */
        bool merges = rank && side->strides[rank - 1] == side->strides[i] * side->extents[i] &&
                      side->extents[rank - 1] * side->extents[i] < INT32_MAX;
        if (side->extents[i] == 1)
            continue;
        rank += !merges;
        side->extents[rank - 1] = merges ? side->extents[rank - 1] * side->extents[i] : side->extents[i];
        side->strides[rank - 1] = side->strides[i];
    }
    side->rank = rank;
}

/* Both sides use the same dims. */
static struct part plain_part(const struct tensor *x, const struct tensor *y, const struct dims *extents,
                              const int64_t *x_strides, const int64_t *y_strides) {
    struct part part = {.from = side_of(x, extents, x_strides), .to = side_of(y, extents, y_strides)};
    part_order(&part);
    return part;
}

/* One part for each input that has elements, each stored after the previous one along the axis. */
static weftStatus_t list_concat(struct part *parts, int most, int *count, const struct concat_op *op) {
    int axis = concat_axis(op);
    int64_t before = 0;
    /* Parts are allocated on the stack, and a step has at most that many kernels. */
    if (op->inputs.count > most)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: it has %lld inputs, at most %d are supported.",
             descriptor_label(&op->base), (long long)op->inputs.count, most);
    for (int64_t k = 0; k < op->inputs.count; k++) {
        const struct tensor *x = op->inputs.tensors[k];
        struct part *part = &parts[*count];
        *part = plain_part(x, op->y, &x->dims, x->strides.at, op->y->strides.at);
        part->to.offset = before * op->y->strides.at[axis];
        before += x->dims.at[axis];
        *count += tensor_elements(x) > 0 && !concat_is_placed(op, k);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Dim i of y is dim permutation[i] of x. */
static struct part transpose_part(const struct transpose_op *op) {
    int64_t strides[WEFT_DIM_MAX] = {0};
    for (int64_t i = 0; i < op->y->dims.count; i++)
        strides[i] = op->x->strides.at[op->permutation.at[i]];
    return plain_part(op->x, op->y, &op->y->dims, strides, op->y->strides.at);
}

/* x is read with the slice's steps, starting at `start`. */
static struct part slice_part(const struct slice_op *op) {
    int64_t strides[WEFT_DIM_MAX] = {0}, offset = 0;
    for (int64_t i = 0; i < op->y->dims.count; i++) {
        strides[i] = op->x->strides.at[i] * slice_step(op, i);
        offset += op->start.at[i] * op->x->strides.at[i];
    }
    struct part part = plain_part(op->x, op->y, &op->y->dims, strides, op->y->strides.at);
    part.from.offset = offset;
    return part;
}

/* Positions count either storage locations or elements in the order of both tensors' dims. The two sides of a logical
   reshape count the same positions with different dims, so their modes stay in the order of the dims. */
static struct part reshape_part(const struct reshape_op *op) {
    if (op->mode == WEFT_RESHAPE_VIEW_ONLY)
        return plain_part(op->x, op->y, &op->y->dims, op->y->strides.at, op->y->strides.at);
    return (struct part){.from = side_of(op->x, &op->x->dims, op->x->strides.at),
                         .to = side_of(op->y, &op->y->dims, op->y->strides.at)};
}

weftStatus_t movement_list(struct part *parts, int most, int *count, const struct descriptor *descriptor) {
    const struct op *op = op_of(descriptor);
    *count = 0;
    if (op == &concat_op)
        return list_concat(parts, most, count, (const struct concat_op *)descriptor);
    if (op != &transpose_op && op != &slice_op && op != &reshape_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s does more than move elements.", descriptor_label(descriptor));
    parts[0] = op == &transpose_op ? transpose_part((const struct transpose_op *)descriptor)
               : op == &slice_op   ? slice_part((const struct slice_op *)descriptor)
                                   : reshape_part((const struct reshape_op *)descriptor);
    *count = tensor_elements(parts[0].to.tensor) > 0;
    return WEFT_STATUS_SUCCESS;
}
