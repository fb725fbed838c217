/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/lines.h"

/* True if dimensions d and d + 1 are a single one to all tensors. */
static bool merges(const struct lines *lines, int d) {
    for (int k = 0; k < LINES_TENSORS; k++)
        if (lines->strides[k][d] != lines->strides[k][d + 1] * lines->extents[d + 1])
            return false;
    return true;
}

/* Inserts a dimension where it belongs by the stride of the first tensor. */
static void insert(struct lines *lines, const struct tensor *const *tensors, int count, int64_t dim) {
    int at = lines->rank++;
    for (; at && lines->strides[0][at - 1] < tensors[0]->strides.at[dim]; at--) {
        lines->extents[at] = lines->extents[at - 1];
        for (int k = 0; k < count; k++)
            lines->strides[k][at] = lines->strides[k][at - 1];
    }
    lines->extents[at] = tensors[0]->dims.at[dim];
    for (int k = 0; k < count; k++)
        lines->strides[k][at] = tensors[k] ? tensors[k]->strides.at[dim] : 0;
}

void lines_find(struct lines *lines, int axis, const struct tensor *const *tensors, int count) {
    *lines = (struct lines){.count = 1};
    for (int64_t d = 0; d < tensors[0]->dims.count; d++) {
        if (d == axis)
            continue;
        lines->count *= tensors[0]->dims.at[d];
        /* The stride of an extent of 1 does not matter. */
        if (tensors[0]->dims.at[d] != 1)
            insert(lines, tensors, count, d);
    }
    for (int k = 0; k < count; k++)
        lines->steps[k] = tensors[k] ? tensors[k]->strides.at[axis] : 0;
    for (int d = lines->rank - 1; d-- > 0;)
        if (merges(lines, d)) {
            lines->extents[d + 1] *= lines->extents[d];
            lines->rank--;
            for (int i = d; i < lines->rank; i++) {
                lines->extents[i] = lines->extents[i + 1];
                for (int k = 0; k < count; k++)
                    lines->strides[k][i] = lines->strides[k][i + 1];
            }
        }
}

int64_t lines_offset(const struct lines *lines, int tensor, int64_t line) {
    int64_t offset = 0;
    for (int d = lines->rank; d-- > 0; line /= lines->extents[d])
        offset += line % lines->extents[d] * lines->strides[tensor][d];
    return offset;
}
