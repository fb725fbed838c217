/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA pooling family without a GPU: the tiles and runs that it chooses, the cases that it declines and the exact
   messages, and that every generated kernel compiles for all generations of chips without spills. */
#include "cuda_family.h"

static void add_pooling(struct model *m, weftResampleMode_t mode, int64_t window, int64_t stride, int64_t pre, desc x,
                        desc y, desc index) {
    desc parameters = make(WEFT_BACKEND_RESAMPLE_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR);
    const weftFraction_t windows[] = {{window, 1}, {window, 1}}, strides[] = {{stride, 1}, {stride, 1}};
    const weftFraction_t pads[] = {{pre, 1}, {pre, 1}};
    MUST(set_enum(parameters, WEFT_ATTR_RESAMPLE_MODE, WEFT_TYPE_RESAMPLE_MODE, mode));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_RESAMPLE_WINDOW_DIMS, WEFT_TYPE_FRACTION, 2, windows));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_RESAMPLE_STRIDES, WEFT_TYPE_FRACTION, 2, strides));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_RESAMPLE_PRE_PADDINGS, WEFT_TYPE_FRACTION, 2, pads));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESAMPLE_FWD_DESC, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESAMPLE_FWD_XDESC, x));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESAMPLE_FWD_YDESC, y));
    if (index)
        MUST(set_held(op, WEFT_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC, index));
    drop(parameters);
    add(m, op);
}

static void add_pooling_backward(struct model *m, weftResampleMode_t mode, int64_t window, int64_t stride, int64_t pre,
                                 desc dx, desc dy, desc index) {
    desc parameters = make(WEFT_BACKEND_RESAMPLE_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR);
    const weftFraction_t windows[] = {{window, 1}, {window, 1}}, strides[] = {{stride, 1}, {stride, 1}};
    const weftFraction_t pads[] = {{pre, 1}, {pre, 1}};
    MUST(set_enum(parameters, WEFT_ATTR_RESAMPLE_MODE, WEFT_TYPE_RESAMPLE_MODE, mode));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_RESAMPLE_WINDOW_DIMS, WEFT_TYPE_FRACTION, 2, windows));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_RESAMPLE_STRIDES, WEFT_TYPE_FRACTION, 2, strides));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_RESAMPLE_PRE_PADDINGS, WEFT_TYPE_FRACTION, 2, pads));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESAMPLE_BWD_DESC, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESAMPLE_BWD_DXDESC, dx));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESAMPLE_BWD_DYDESC, dy));
    if (index)
        MUST(set_held(op, WEFT_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC, index));
    drop(parameters);
    add(m, op);
}

/* ---- Cases: windows ---------------------------------------------------------------------------------------------- */

static void max_pool(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_MAXPOOL, 3, 2, 1, channels_last(m, DIMS(32, 64, 112, 112), F16),
                channels_last(m, DIMS(32, 64, 56, 56), F16), channels_last(m, DIMS(32, 64, 56, 56), I8));
}

static void mean_pool_nchw(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING, 7, 7, 0, typed(m, DIMS(32, 2048, 7, 7), F32),
                typed(m, DIMS(32, 2048, 1, 1), F32), NULL);
}

static void max_pool_backward(struct model *m) {
    add_pooling_backward(m, WEFT_RESAMPLE_MAXPOOL, 3, 2, 1, channels_last(m, DIMS(32, 64, 112, 112), F16),
                         channels_last(m, DIMS(32, 64, 56, 56), F16), channels_last(m, DIMS(32, 64, 56, 56), I8));
}

static void mean_pool_backward(struct model *m) {
    add_pooling_backward(m, WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING, 2, 2, 0,
                         channels_last(m, DIMS(32, 64, 56, 56), BF16), channels_last(m, DIMS(32, 64, 28, 28), BF16),
                         NULL);
}

static void max_pool_planes(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_MAXPOOL, 3, 2, 1, typed(m, DIMS(32, 64, 112, 112), BF16),
                typed(m, DIMS(32, 64, 56, 56), BF16), typed(m, DIMS(32, 64, 56, 56), I8));
}

/* Images of which a tile holds only a part, with four-byte elements. */
static void mean_pool_bands(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING, 3, 1, 1, typed(m, DIMS(2, 3, 501, 333), F32),
                typed(m, DIMS(2, 3, 501, 333), F32), NULL);
}

/* Windows with a stride of one share rows and columns. */
static void dense_max_pool(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_MAXPOOL, 3, 1, 1, channels_last(m, DIMS(32, 64, 28, 28), BF16),
                channels_last(m, DIMS(32, 64, 28, 28), BF16), channels_last(m, DIMS(32, 64, 28, 28), I8));
}

static void dense_mean_pool(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING, 3, 1, 1, channels_last(m, DIMS(32, 64, 28, 28), BF16),
                channels_last(m, DIMS(32, 64, 28, 28), BF16), NULL);
}

static void dense_mean_pool_backward(struct model *m) {
    add_pooling_backward(m, WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING, 3, 1, 1,
                         channels_last(m, DIMS(32, 64, 28, 28), BF16), channels_last(m, DIMS(32, 64, 28, 28), BF16),
                         NULL);
}

static void dense_max_pool_backward(struct model *m) {
    add_pooling_backward(m, WEFT_RESAMPLE_MAXPOOL, 3, 1, 1, channels_last(m, DIMS(32, 64, 28, 28), BF16),
                         channels_last(m, DIMS(32, 64, 28, 28), BF16), channels_last(m, DIMS(32, 64, 28, 28), I8));
}

static void max_pool_planes_backward(struct model *m) {
    add_pooling_backward(m, WEFT_RESAMPLE_MAXPOOL, 3, 2, 1, typed(m, DIMS(32, 64, 112, 112), BF16),
                         typed(m, DIMS(32, 64, 56, 56), BF16), typed(m, DIMS(32, 64, 56, 56), I8));
}

/* Rows that start at any alignment. */
static void mean_pool_planes_backward(struct model *m) {
    add_pooling_backward(m, WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING, 3, 2, 1, typed(m, DIMS(32, 64, 55, 55), F32),
                         typed(m, DIMS(32, 64, 28, 28), F32), NULL);
}

static void odd_channels(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_MAXPOOL, 3, 2, 1, channels_last(m, DIMS(32, 63, 112, 112), BF16),
                channels_last(m, DIMS(32, 63, 56, 56), BF16), NULL);
}

static void large_windows(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING, 7, 7, 0, channels_last(m, DIMS(128, 2048, 7, 7), BF16),
                channels_last(m, DIMS(128, 2048, 1, 1), BF16), NULL);
}

static void no_channels(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING, 3, 1, 1, channels_last(m, DIMS(2, 0, 28, 28), BF16),
                channels_last(m, DIMS(2, 0, 28, 28), BF16), NULL);
}

static const struct family_case cases[] = {
    {&cuda_window, max_pool, "max pool with index", "windows of 1x3x3, runs of 8 channels"},
    {&cuda_window, mean_pool_nchw, "mean of the whole image", "pool_whole: windows of 1x7x7"},
    {&cuda_window, max_pool_backward, "max pool backward", "windows of 1x3x3, runs of 8 channels"},
    {&cuda_window, mean_pool_backward, "mean pool backward", "windows of 1x2x2, runs of 8 channels"},
    {&cuda_window, max_pool_planes, "max pool of planes", "pool_nchw: windows of 1x3x3, runs of 1 channel"},
    {&cuda_window, mean_pool_bands, "mean pool of bands", "pool_nchw: windows of 1x3x3, runs of 1 channel"},
    {&cuda_window, dense_max_pool, "dense max pool", "runs of 8 channels, patches of 2x2"},
    {&cuda_window, dense_mean_pool, "dense mean pool", "pool_tma: windows of 1x3x3"},
    {&cuda_window, dense_mean_pool_backward, "dense mean pool backward", "pool_tma: windows of 1x3x3"},
    {&cuda_window, dense_max_pool_backward, "dense max pool backward", "pool_tma_bwd: windows of 1x3x3"},
    {&cuda_window, max_pool_planes_backward, "max pool of planes backward", "pool_nchw_bwd: windows of 1x3x3"},
    {&cuda_window, mean_pool_planes_backward, "mean pool of planes backward", "pool_nchw_bwd: windows of 1x3x3"},
    {&cuda_window, odd_channels, "odd channels", "pool_unaligned: windows of 1x3x3"},
    {&cuda_window, no_channels, "no channels", "nothing to compute"},
    {&cuda_window, large_windows, "large windows", "pool_team: windows of 1x7x7, runs of 8 channels"},
};

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_window, only_pointwise, "pointwise is neither pooling nor interpolation."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
