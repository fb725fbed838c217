/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of the geometry that kernels depend on: padding, empty windows, and patches. */
#include "base/number.h"
#include "engines/cuda/pooling/pooling.h"

bool pooling_uses(const struct pooling *w, const struct resample_operand *operand) {
    bool is_saved = operand == &w->g.saved;
    return operand->tensor && (!is_saved || (w->g.mode == WEFT_RESAMPLE_MAXPOOL && !w->g.index.tensor)) &&
           (operand != &w->g.index || w->has_index) && (operand != &w->g.y || w->has_y);
}

/* True if, along any axis, a window begins before the image or the last one ends after it. */
bool pooling_has_padding(const struct resample_geometry *g) {
    bool has_padding = false;
    for (int i = 0; i < 3; i++) {
        int64_t last = (g->y.size[i] - 1) * g->step[i] - g->offset[i];
        has_padding = has_padding || g->offset[i] > 0 || last + resample_span(g, i) > g->x.size[i];
    }
    return has_padding;
}

/* The first window ends before the image, the last one begins after it, or the image is between two taps of one;
   fractions of a step are treated conservatively. */
bool pooling_may_be_empty(const struct resample_geometry *g) {
    bool may_be_empty = false;
    for (int i = 0; i < 3; i++) {
        int64_t last = (g->y.size[i] - 1) * g->step[i] - g->offset[i];
        may_be_empty = may_be_empty || g->denominator[i] != 1 || g->offset[i] >= resample_span(g, i) ||
                       last >= g->x.size[i] || g->dilation[i] > g->x.size[i];
    }
    return may_be_empty;
}

/* Elements of a patch's side along one axis. Patches are counted from the start of the padding; along the first axis
   they are one plane. */
static int64_t side_of(const struct pooling *w, int axis) { return axis ? w->patch[axis] * w->g.step[axis] : 1; }

/* Rounded towards minus infinity: offsets may be negative. */
int64_t pooling_first_patch(const struct pooling *w, int axis) {
    int64_t offset = w->g.offset[axis], side = side_of(w, axis);
    return axis ? offset / side - (offset % side < 0) : 0;
}

/* The general kernels have no patches: each result is one. */
int64_t pooling_patches(const struct pooling *w, int axis) {
    const struct resample_operand *result = pooling_result(w);
    int64_t size = result->size[axis], side = side_of(w, axis);
    if (w->kernel < POOL)
        return size;
    if (!w->g.backward)
        return divide_up(size, w->patch[axis]);
    int64_t end = axis ? size + w->g.offset[axis] : size;
    return divide_up(end, side) - pooling_first_patch(w, axis);
}
