/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise family: convolutions whose groups have one channel in and one out, forward and both gradients, and the
   pointwise operations behind them. They are bound by memory and by what surrounds each product, so taps, sums and a
   strip of the image live in registers: filter, strides and dilations are text here, the rest of the geometry are
   arguments. What follows the sum is the contraction's. */
#ifndef WEFT_ENGINES_CUDA_DEPTHWISE_H
#define WEFT_ENGINES_CUDA_DEPTHWISE_H

#include "engines/cuda/product/contraction.h"
#include "graph/ops/convolution.h"

/* Where outputs, taps and inputs lie along a dimension; product/depthwise/lattice.cuh knows what for. */
struct axis {
    int64_t taps, step, spread, dilation, pre;
    int64_t in, out; /* extents: of the image, and of the result or, in the filter gradient, of dy */
};

enum { DEPTH_AXIS, HEIGHT_AXIS, WIDTH_AXIS, AXES };

struct depthwise {
    struct contraction c; /* the result and what follows it */
    struct conv_geometry g;
    const struct conv_operand *image;
    struct axis axes[AXES];
    bool is_channels_last, is_mma;
    int image_run, loss_run; /* neighbours per copy */
    int64_t strip, strips, channels, threads, band_periods, unrolled, stages, blocks;
    int64_t images; /* side by side in a block */
    int64_t stage_bytes, shared_bytes;
    int64_t channel_blocks, tiles, segments, segment_rows, patches; /* patches: blocks of one channel block */
};

static inline int64_t wrap(int64_t n, int64_t size) { return (n % size + size) % size; }

static inline bool is_filter(const struct depthwise *d) { return d->g.direction == CONV_FILTER; }
static inline int64_t bytes_of(const struct tensor *tensor) { return dtype_bytes((weftDataType_t)tensor->type, 1); }

/* Inputs from the first to the last tap of an output, both included. */
static inline int64_t axis_span(const struct axis *axis) { return (axis->taps - 1) * axis->dilation + 1; }

static inline int64_t depthwise_taps(const struct depthwise *d) {
    return d->axes[DEPTH_AXIS].taps * d->axes[HEIGHT_AXIS].taps * d->axes[WIDTH_AXIS].taps;
}

/* ---- shape.c: from an operation to axes ---------------------------------------------------------------- */

/* Axes, the result's modes, what follows the sum, and how the image is read; NOT_SUPPORTED and a sentence for what is
   not served. */
weftStatus_t depthwise_shape(struct depthwise *d, const struct device *device);

/* ---- plan.c: blocks ------------------------------------------------------------------------------------ */

/* What a block makes, how many there are, and a prediction. */
weftStatus_t depthwise_plan(struct depthwise *d, const struct device *device);

/* ---- emit.c: text and arguments of the kernels -------------------------------------------------------- */

/* The kernel, without grid and block. */
weftStatus_t depthwise_emit(struct cuda_kernel *kernel, struct depthwise *d, struct arena *arena);

#endif
