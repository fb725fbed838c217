/* SPDX-License-Identifier: Apache-2.0 */
/* Windows over up to three dimensions: pooling, and the sums of local normalizations. */
#ifndef WEFT_CUDNN_WINDOW_H
#define WEFT_CUDNN_WINDOW_H

#include "src/descriptors.h"

struct window {
    weftResampleMode_t mode;
    int32_t math;
    int64_t spatial, extent[SPATIAL_MAX], before[SPATIAL_MAX], after[SPATIAL_MAX], stride[SPATIAL_MAX];
};

node build_window_parameters(struct builder *b, const struct window *window);
void build_window(struct builder *b, const struct window *window, node x, node y);

#endif
