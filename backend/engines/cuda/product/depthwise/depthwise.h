/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise family: convolutions whose groups have one input and one output channel, forward and both gradients,
   followed by pointwise operations. They are limited by memory and by the instructions around each product, so taps,
   sums and a strip of the image stay in registers: filter, strides and dilations are constants of the generated code,
   the rest of the geometry are arguments. The epilogue is that of the contraction family. */
#ifndef WEFT_ENGINES_CUDA_DEPTHWISE_H
#define WEFT_ENGINES_CUDA_DEPTHWISE_H

#include "engines/cuda/product/contraction.h"
#include "graph/ops/convolution.h"

/* Positions of outputs, taps and inputs along a dimension; explained in product/depthwise/index_map.cuh. */
struct axis {
    int64_t taps, step, spread, dilation, pre;
    int64_t in, out; /* extents of the image and of the result or, for the filter gradient, of dy */
};

enum { DEPTH_AXIS, HEIGHT_AXIS, WIDTH_AXIS, AXES };

struct depthwise {
    struct contraction c; /* the result and the epilogue */
    struct conv_geometry g;
    const struct conv_operand *image;
    struct axis axes[AXES];
    bool is_channels_last, is_mma;
    int image_run, loss_run; /* elements per copy */
    int64_t strip, strips, channels, threads, band_periods, unrolled, stages, blocks;
    int64_t images; /* images per block */
    int64_t shared_bytes;
    int64_t channel_blocks, tiles, segments, segment_rows, patches; /* patches: number of blocks per channel block */
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

/* Computes axes, the result's modes, the epilogue, and the vector width of the image; NOT_SUPPORTED, with a reason, for
   operations that the family does not support. */
weftStatus_t depthwise_shape(struct depthwise *d, const struct device *device);

/* ---- plan.c: blocks ------------------------------------------------------------------------------------ */

/* Chooses the block size and the number of blocks, and predicts the time. */
weftStatus_t depthwise_plan(struct depthwise *d, const struct device *device);

/* ---- emit.c: text and arguments of the kernels -------------------------------------------------------- */

/* Generates the kernel; grid and block are set elsewhere. */
weftStatus_t depthwise_emit(struct cuda_kernel *kernel, struct depthwise *d, struct arena *arena);

#endif
