/* SPDX-License-Identifier: Apache-2.0 */
/* The row space: axes, and how tensors lie along them. */
#include "engines/cuda/rows/plan.h"

/* Groups of neighbours along a dimension, as group norm has of channels: two axes, of groups and within one. */
static bool is_split(const struct rows *rows, int64_t dim) {
    return rows->parts[dim] != 1 && rows->parts[dim] != rows->dims.at[dim];
}

static weftStatus_t add_axis(struct rows *rows, int dim, int64_t extent, int64_t inner, bool is_reduced) {
    /* An axis of one element needs no loop. */
    if (extent == 1)
        return WEFT_STATUS_SUCCESS;
    if (rows->axis_count == WEFT_DIM_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "dims %s in groups would be more than %d dims to walk",
             numbers_text(rows->dims.at, rows->dims.count), WEFT_DIM_MAX);
    rows->axes[rows->axis_count++] = (struct axis){dim, extent, inner, is_reduced, false};
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t rows_make_axes(struct rows *rows) {
    for (int64_t d = 0; d < rows->dims.count; d++) {
        int64_t extent = rows->dims.at[d], parts = rows->parts[d], inner = parts ? extent / parts : 0;
        if (is_split(rows, d)) {
            TRY(add_axis(rows, (int)d, parts, inner, false));
            rows->axes[rows->axis_count - 1].counts_groups = true; /* there are 2 at least */
        }
        TRY(add_axis(rows, (int)d, is_split(rows, d) ? inner : extent, 1, is_split(rows, d) || parts == 1));
    }
    return WEFT_STATUS_SUCCESS;
}

int64_t rows_length(const struct rows *rows) {
    int64_t length = 1;
    for (int i = 0; i < rows->axis_count; i++)
        length *= rows->axes[i].is_reduced ? rows->axes[i].extent : 1;
    return length;
}

int64_t rows_count(const struct rows *rows) {
    int64_t count = 1;
    for (int i = 0; i < rows->axis_count; i++)
        count *= rows->axes[i].is_reduced ? 1 : rows->axes[i].extent;
    return count;
}

/* The part of a split dimension that a tensor has one element of for each group. */
bool rows_has_groups(const struct rows *rows, const struct tensor *tensor, int64_t dim) {
    return is_split(rows, dim) && tensor->dims.at[dim] == rows->parts[dim];
}

bool rows_has_axis(const struct rows *rows, const struct tensor *tensor, int axis) {
    int64_t dim = rows->axes[axis].dim;
    if (dim == DIM_OF_BLOCKS)
        return false;
    int64_t extent = tensor->dims.at[dim];
    if (extent == rows->dims.at[dim])
        return true;
    return rows_has_groups(rows, tensor, dim) && rows->axes[axis].counts_groups;
}

int64_t rows_stride(const struct rows *rows, const struct tensor *tensor, int axis) {
    const struct axis *at = &rows->axes[axis];
    if (!rows_has_axis(rows, tensor, axis))
        return 0;
    bool by_group = tensor->dims.at[at->dim] != rows->dims.at[at->dim];
    return tensor->strides.at[at->dim] * (by_group ? 1 : at->inner);
}

void rows_pack(const struct rows *rows, int64_t *strides, bool reduced) {
    int64_t packed = 1;
    for (int i = rows->axis_count; i-- > 0;) {
        strides[i] = rows->axes[i].is_reduced == reduced ? packed : 0;
        packed *= rows->axes[i].is_reduced == reduced ? rows->axes[i].extent : 1;
    }
}
