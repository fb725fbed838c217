/* SPDX-License-Identifier: Apache-2.0 */
/* The row space: axes, and how tensors lie along them. */
#include "engines/cpu/rows/terms.h"

static bool is_split(const struct rowwise *rows, int64_t dim) {
    return rows->parts[dim] != 1 && rows->parts[dim] != rows->dims.at[dim];
}

static weftStatus_t add_axis(struct rowwise *rows, struct row_axis axis) {
    if (axis.extent == 1)
        return WEFT_STATUS_SUCCESS;
    if (rows->axis_count == WEFT_DIM_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "dims %s in groups would be more than %d loops",
             numbers_text(rows->dims.at, rows->dims.count), WEFT_DIM_MAX);
    rows->axes[rows->axis_count++] = axis;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t rowwise_make_axes(struct rowwise *rows) {
    for (int64_t d = 0; d < rows->dims.count; d++) {
        int64_t extent = rows->dims.at[d], parts = rows->parts[d], inner = parts ? extent / parts : 0;
        bool splits = is_split(rows, d);
        if (splits)
            TRY(add_axis(rows, (struct row_axis){(int)d, parts, inner, false, true}));
        TRY(add_axis(rows, (struct row_axis){(int)d, splits ? inner : extent, 1, splits || parts == 1, false}));
    }
    return WEFT_STATUS_SUCCESS;
}

static int64_t elements_along(const struct rowwise *rows, bool is_reduced) {
    int64_t elements = 1;
    for (int i = 0; i < rows->axis_count; i++)
        elements *= rows->axes[i].is_reduced == is_reduced ? rows->axes[i].extent : 1;
    return elements;
}

int64_t rowwise_length(const struct rowwise *rows) { return elements_along(rows, true); }
int64_t rowwise_count(const struct rowwise *rows) { return elements_along(rows, false); }

bool rowwise_has_groups(const struct rowwise *rows, const struct tensor *tensor, int64_t dim) {
    return is_split(rows, dim) && tensor->dims.at[dim] == rows->parts[dim];
}

bool rowwise_has_axis(const struct rowwise *rows, const struct tensor *tensor, int axis) {
    int64_t dim = rows->axes[axis].dim;
    if (dim == DIM_OF_TASKS)
        return false;
    return tensor->dims.at[dim] == rows->dims.at[dim] ||
           (rowwise_has_groups(rows, tensor, dim) && rows->axes[axis].counts_groups);
}

int64_t rowwise_stride(const struct rowwise *rows, const struct tensor *tensor, int axis) {
    const struct row_axis *at = &rows->axes[axis];
    if (!rowwise_has_axis(rows, tensor, axis))
        return 0;
    bool by_group = tensor->dims.at[at->dim] != rows->dims.at[at->dim];
    return tensor->strides.at[at->dim] * (by_group ? 1 : at->inner);
}

void rowwise_pack(const struct rowwise *rows, int64_t *strides, bool is_reduced) {
    int64_t packed = 1;
    for (int i = rows->axis_count; i-- > 0;) {
        strides[i] = rows->axes[i].is_reduced == is_reduced ? packed : 0;
        packed *= rows->axes[i].is_reduced == is_reduced ? rows->axes[i].extent : 1;
    }
}
