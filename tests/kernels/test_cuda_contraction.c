/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA contraction, window, move and rng families without a GPU: what is computed how for shapes that people run, what is
   declined and in which words, and that every kernel printed compiles for all generations of chips with no spills.
   Without a copy of NVRTC the last is not observed, and said so. */
#include "engines/cuda/families.h"
#include "engines/cuda/kernel.h"
#include "graph/graph.h"
#include "harness.h"
#include "runtime/device.h"
#include "runtime/nvrtc.h"

enum { OPS_MAX = 8, TENSORS_MAX = 16, PACKED = 0, CHANNELS_LAST = 1 };

#define BF16 WEFT_DATA_BFLOAT16
#define F16 WEFT_DATA_HALF
#define F32 WEFT_DATA_FLOAT
#define F64 WEFT_DATA_DOUBLE
#define I8 WEFT_DATA_INT8
#define I32 WEFT_DATA_INT32
#define E4M3 WEFT_DATA_FP8_E4M3
#define E5M2 WEFT_DATA_FP8_E5M2

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* Operations under construction, and the tensors that they hold: ours until the graph is made. */
struct model {
    int64_t next_uid;
    int count, kept_count;
    desc ops[OPS_MAX], kept[TENSORS_MAX];
};

static desc keep(struct model *m, desc tensor) {
    m->kept[m->kept_count++] = tensor;
    return tensor;
}

static desc typed(struct model *m, struct extents dims, int layout, int type) {
    desc made = open_tensor(m->next_uid++, dims);
    int64_t strides[WEFT_DIM_MAX], channels = dims.at[1], stride = channels;
    MUST(set_enum(made, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, type));
    if (layout == CHANNELS_LAST) {
        strides[1] = 1;
        for (int64_t i = dims.count; i-- > 2; stride *= dims.at[i])
            strides[i] = stride;
        strides[0] = stride;
        MUST(set_numbers(made, WEFT_ATTR_TENSOR_STRIDES, dims.count, strides));
    }
    return keep(m, finalized(made));
}

/* Column-major in its last two dims. */
static desc turned(struct model *m, struct extents dims, int type) {
    desc made = open_tensor(m->next_uid++, dims);
    int64_t strides[WEFT_DIM_MAX], last = dims.count - 1, stride = dims.at[last] * dims.at[last - 1];
    MUST(set_enum(made, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, type));
    strides[last - 1] = 1;
    strides[last] = dims.at[last - 1];
    for (int64_t i = last - 1; i-- > 0; stride *= dims.at[i])
        strides[i] = stride;
    MUST(set_numbers(made, WEFT_ATTR_TENSOR_STRIDES, dims.count, strides));
    return keep(m, finalized(made));
}

static desc inner(struct model *m) { return keep(m, virtual_tensor(m->next_uid++)); }

static void add(struct model *m, desc op) { m->ops[m->count++] = finalized(op); }

static void add_matmul(struct model *m, int math, desc a, desc b, desc c, desc rows_used) {
    desc parameters = make(WEFT_BACKEND_MATMUL_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    double padding = 0.5;
    MUST(set_enum(parameters, WEFT_ATTR_MATMUL_COMP_TYPE, WEFT_TYPE_DATA_TYPE, math));
    if (rows_used)
        MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_MATMUL_PADDING_VALUE, WEFT_TYPE_DOUBLE, 1, &padding));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_DESC, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_ADESC, a));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_BDESC, b));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_CDESC, c));
    if (rows_used)
        MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, rows_used));
    drop(parameters);
    add(m, op);
}

enum direction { FORWARD, DATA, FILTER };

struct convolution_case {
    enum direction direction;
    struct extents x, w, y;
    int64_t stride, dilation, pre, post;
    int layout, type, out, math;
};

static void add_convolution(struct model *m, const struct convolution_case *c, desc x, desc w, desc y) {
    static const struct {
        weftBackendDescriptorType_t kind;
        weftBackendAttributeName_t parameters, x, w, y;
    } names[] = {
        {WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
        {WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
        {WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
    };
    int64_t spatial = c->x.count - 2;
    const int64_t stride[] = {c->stride, c->stride, c->stride}, dilation[] = {c->dilation, c->dilation, c->dilation};
    const int64_t pre[] = {c->pre, c->pre, c->pre}, post[] = {c->post, c->post, c->post};
    desc parameters = make(WEFT_BACKEND_CONVOLUTION_DESCRIPTOR), op = make(names[c->direction].kind);
    MUST(set_enum(parameters, WEFT_ATTR_CONVOLUTION_COMP_TYPE, WEFT_TYPE_DATA_TYPE, c->math));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_FILTER_STRIDES, spatial, stride));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_DILATIONS, spatial, dilation));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_PRE_PADDINGS, spatial, pre));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_POST_PADDINGS, spatial, post));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, names[c->direction].parameters, parameters));
    MUST(set_held(op, names[c->direction].x, x));
    MUST(set_held(op, names[c->direction].w, w));
    MUST(set_held(op, names[c->direction].y, y));
    drop(parameters);
    add(m, op);
}

static void convolve(struct model *m, const struct convolution_case *c) {
    desc x = typed(m, c->x, c->layout, c->direction == DATA ? c->out : c->type);
    desc w = typed(m, c->w, c->layout, c->direction == FILTER ? c->out : c->type);
    add_convolution(m, c, x, w, typed(m, c->y, c->layout, c->direction == FORWARD ? c->out : c->type));
}

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

/* ---- Cases: matmul ----------------------------------------------------------------------------------------------- */

static void square_bf16(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(4096, 4096), PACKED, BF16), turned(m, DIMS(4096, 4096), BF16),
               typed(m, DIMS(4096, 4096), PACKED, BF16), NULL);
}

static void linear_gelu(struct model *m) {
    desc c = inner(m), sum = inner(m), active = inner(m);
    add_matmul(m, F32, typed(m, DIMS(8, 512, 1024), PACKED, F16), typed(m, DIMS(1, 1024, 4096), PACKED, F16), c, NULL);
    m->ops[m->count++] = pointwise(WEFT_POINTWISE_ADD, c, typed(m, DIMS(1, 1, 4096), PACKED, F16), sum);
    m->ops[m->count++] = pointwise(WEFT_POINTWISE_GELU_APPROX_TANH_FWD, sum, NULL, active);
    m->ops[m->count++] = pointwise(WEFT_POINTWISE_ADD, active, typed(m, DIMS(8, 512, 4096), PACKED, F16),
                                   typed(m, DIMS(8, 512, 4096), PACKED, F16));
}

static void decode_splits(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(1, 8192), PACKED, BF16), typed(m, DIMS(8192, 1024), PACKED, BF16),
               typed(m, DIMS(1, 1024), PACKED, BF16), NULL);
}

static void float_odd(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(3, 501, 333), PACKED, F32), turned(m, DIMS(3, 333, 777), F32),
               typed(m, DIMS(3, 501, 777), PACKED, F32), NULL);
}

static void double_square(struct model *m) {
    add_matmul(m, F64, typed(m, DIMS(512, 512), PACKED, F64), typed(m, DIMS(512, 512), PACKED, F64),
               typed(m, DIMS(512, 512), PACKED, F64), NULL);
}

static void int8_square(struct model *m) {
    add_matmul(m, I32, typed(m, DIMS(1024, 1024), PACKED, I8), typed(m, DIMS(1024, 1024), PACKED, I8),
               typed(m, DIMS(1024, 1024), PACKED, I32), NULL);
}

static void fp8_to_fp8(struct model *m) {
    desc c = inner(m);
    add_matmul(m, F32, typed(m, DIMS(1024, 2048), PACKED, E4M3), turned(m, DIMS(2048, 1024), E5M2), c, NULL);
    m->ops[m->count++] = pointwise(WEFT_POINTWISE_MUL, c, keep(m, constant(m->next_uid++, 0.25f)),
                                   typed(m, DIMS(1024, 1024), PACKED, E4M3));
}

static void overridden(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(8, 256, 128), PACKED, BF16), typed(m, DIMS(8, 128, 256), PACKED, BF16),
               typed(m, DIMS(8, 256, 256), PACKED, BF16), typed(m, DIMS(8, 1, 1), PACKED, I32));
}

static void tiny_batch(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(100000, 4, 4), PACKED, F32), typed(m, DIMS(100000, 4, 4), PACKED, F32),
               typed(m, DIMS(100000, 4, 4), PACKED, F32), NULL);
}

/* ---- Cases: convolution ------------------------------------------------------------------------------------------ */

#define BLOCK .x = DIMS(32, 64, 56, 56), .w = DIMS(64, 64, 3, 3), .y = DIMS(32, 64, 56, 56), .pre = 1, .post = 1
#define HALVING .x = DIMS(32, 64, 56, 56), .w = DIMS(128, 64, 3, 3), .y = DIMS(32, 128, 28, 28), .pre = 1, .post = 1
#define DEPTHWISE .x = DIMS(8, 256, 28, 28), .w = DIMS(256, 1, 3, 3), .y = DIMS(8, 256, 28, 28), .pre = 1, .post = 1
#define PLAIN .stride = 1, .dilation = 1, .math = F32

static void forward_nhwc(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, BLOCK, PLAIN, .layout = CHANNELS_LAST, .type = BF16, .out = BF16});
}

static void forward_nchw(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, BLOCK, PLAIN, .layout = PACKED, .type = F16, .out = F16});
}

static void forward_float(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, BLOCK, PLAIN, .layout = PACKED, .type = F32, .out = F32});
}

static void forward_stem(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, .x = DIMS(32, 3, 224, 224), .w = DIMS(64, 3, 7, 7),
                                           .y = DIMS(32, 64, 112, 112), .stride = 2, .dilation = 1, .pre = 3, .post = 3,
                                           .layout = CHANNELS_LAST, .type = F16, .out = F16, .math = F32});
}

static void forward_volume(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, .x = DIMS(2, 16, 9, 12, 17), .w = DIMS(24, 8, 3, 3, 3),
                                           .y = DIMS(2, 24, 4, 6, 8), .stride = 2, .dilation = 1, .pre = 1, .post = 0,
                                           .layout = CHANNELS_LAST, .type = BF16, .out = F32, .math = F32});
}

static void forward_int8(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, BLOCK, .stride = 1, .dilation = 1, .math = I32,
                                           .layout = CHANNELS_LAST, .type = I8, .out = I32});
}

static void data_strided(struct model *m) {
    convolve(m, &(struct convolution_case){DATA, HALVING, .stride = 2, .dilation = 1, .math = F32,
                                           .layout = CHANNELS_LAST, .type = F16, .out = F16});
}

static void data_nchw(struct model *m) {
    convolve(m, &(struct convolution_case){DATA, BLOCK, PLAIN, .layout = PACKED, .type = BF16, .out = BF16});
}

static void filter_nhwc(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, BLOCK, PLAIN, .layout = CHANNELS_LAST, .type = BF16, .out = F32});
}

static void depthwise(struct model *m) {
    convolve(m,
             &(struct convolution_case){FORWARD, DEPTHWISE, PLAIN, .layout = CHANNELS_LAST, .type = F16, .out = F16});
}

static void depthwise_filter(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, DEPTHWISE, PLAIN, .layout = CHANNELS_LAST, .type = F16, .out = F16});
}

/* ---- Cases: windows ---------------------------------------------------------------------------------------------- */

static void max_pool(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_MAXPOOL, 3, 2, 1, typed(m, DIMS(32, 64, 112, 112), CHANNELS_LAST, F16),
                typed(m, DIMS(32, 64, 56, 56), CHANNELS_LAST, F16), typed(m, DIMS(32, 64, 56, 56), CHANNELS_LAST, I8));
}

static void mean_pool_nchw(struct model *m) {
    add_pooling(m, WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING, 7, 7, 0, typed(m, DIMS(32, 2048, 7, 7), PACKED, F32),
                typed(m, DIMS(32, 2048, 1, 1), PACKED, F32), NULL);
}

static void max_pool_backward(struct model *m) {
    add_pooling_backward(m, WEFT_RESAMPLE_MAXPOOL, 3, 2, 1, typed(m, DIMS(32, 64, 112, 112), CHANNELS_LAST, F16),
                         typed(m, DIMS(32, 64, 56, 56), CHANNELS_LAST, F16),
                         typed(m, DIMS(32, 64, 56, 56), CHANNELS_LAST, I8));
}

static void mean_pool_backward(struct model *m) {
    add_pooling_backward(m, WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING, 2, 2, 0,
                         typed(m, DIMS(32, 64, 56, 56), CHANNELS_LAST, BF16),
                         typed(m, DIMS(32, 64, 28, 28), CHANNELS_LAST, BF16), NULL);
}

/* ---- Cases: movement and random numbers -------------------------------------------------------------------------- */

static void concat_channels(struct model *m) {
    desc op = make(WEFT_BACKEND_OPERATION_CONCAT_DESCRIPTOR), inputs[10];
    for (int i = 0; i < 10; i++)
        inputs[i] = typed(m, DIMS(8, 32, 28, 28), CHANNELS_LAST, F16);
    MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_CONCAT_INPUT_DESCS, WEFT_TYPE_BACKEND_DESCRIPTOR, 10, inputs));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CONCAT_OUTPUT_DESC, typed(m, DIMS(8, 320, 28, 28), CHANNELS_LAST, F16)));
    MUST(set_number(op, WEFT_ATTR_OPERATION_CONCAT_AXIS, 1));
    add(m, op);
}

static void reshape_turned(struct model *m) {
    desc op = make(WEFT_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESHAPE_XDESC, typed(m, DIMS(8, 24, 5, 6), CHANNELS_LAST, F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RESHAPE_YDESC, typed(m, DIMS(8, 720), PACKED, BF16)));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_RESHAPE_MODE, WEFT_TYPE_RESHAPE_MODE, WEFT_RESHAPE_LOGICAL));
    add(m, op);
}

static void draw(struct model *m, weftRngDistribution_t distribution, desc y) {
    desc parameters = make(WEFT_BACKEND_RNG_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_RNG_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_RNG_DISTRIBUTION, WEFT_TYPE_RNG_DISTRIBUTION, distribution));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RNG_DESC, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_RNG_YDESC, y));
    MUST(set_number(op, WEFT_ATTR_OPERATION_RNG_SEED, 7));
    drop(parameters);
    add(m, op);
}

static void draw_normal(struct model *m) {
    draw(m, WEFT_RNG_DISTRIBUTION_NORMAL, typed(m, DIMS(64, 1023), PACKED, F32));
}

static void draw_double(struct model *m) {
    draw(m, WEFT_RNG_DISTRIBUTION_NORMAL, typed(m, DIMS(64, 1024), PACKED, F64));
}

static void draw_mask(struct model *m) {
    draw(m, WEFT_RNG_DISTRIBUTION_BERNOULLI, typed(m, DIMS(64, 1024), PACKED, WEFT_DATA_BYTE_BOOLEAN));
}

static void draw_uniform(struct model *m) {
    draw(m, WEFT_RNG_DISTRIBUTION_UNIFORM, typed(m, DIMS(64, 1024), PACKED, BF16));
}

/* How it is computed on sm_90: the beginning of the step's words. */
static const struct test_case {
    const struct family *family;
    void (*make)(struct model *m);
    const char *name, *words;
} cases[] = {
    {&cuda_contraction, square_bf16, "matmul 4096 bf16", "bf16 tensor cores, tiles of 128x128x32, 1 splits"},
    {&cuda_contraction, linear_gelu, "linear, gelu, residual", "f16 tensor cores, tiles of 128x128x32, 1 splits, 3"},
    {&cuda_contraction, decode_splits, "matmul 1x1024x8192", "bf16 tensor cores, tiles of 32x"},
    {&cuda_contraction, float_odd, "matmul f32 odd", "f32, tiles of "},
    {&cuda_contraction, double_square, "matmul f64", "f64, tiles of "},
    {&cuda_contraction, int8_square, "matmul int8", "int8 tensor cores, tiles of "},
    {&cuda_contraction, fp8_to_fp8, "matmul fp8 scaled to fp8", "f16 tensor cores, tiles of "},
    {&cuda_contraction, overridden, "matmul with overrides and padding", "f32, tiles of "},
    {&cuda_contraction, tiny_batch, "batch of 4x4", "f32, one thread per 4 results"},
    {&cuda_contraction, forward_nhwc, "conv NHWC", "bf16 tensor cores, tiles of 128x64x32"},
    {&cuda_contraction, forward_nchw, "conv NCHW", "f16 tensor cores, tiles of 128x64x32"},
    {&cuda_contraction, forward_float, "conv f32", "f32, tiles of 128x64x16"},
    {&cuda_contraction, forward_stem, "conv stem", "f16 tensor cores, tiles of 128x64x32"},
    {&cuda_contraction, forward_volume, "conv 3-D in groups", "bf16 tensor cores, tiles of "},
    {&cuda_contraction, forward_int8, "conv int8", "int8 tensor cores, tiles of 128x64x64"},
    {&cuda_contraction, data_strided, "data gradient, stride 2", "f16 tensor cores, tiles of "},
    {&cuda_contraction, data_nchw, "data gradient NCHW", "bf16 tensor cores, tiles of 128x64x32"},
    {&cuda_contraction, filter_nhwc, "filter gradient", "bf16 tensor cores, tiles of "},
    {&cuda_contraction, depthwise, "depthwise", "f32, one thread per 8 results, 1 splits"},
    {&cuda_contraction, depthwise_filter, "depthwise filter gradient", "f32, one thread per 8 results"},
    {&cuda_window, max_pool, "max pool with index", "windows of 1x3x3, runs of 8 channels"},
    {&cuda_window, mean_pool_nchw, "mean of the whole image", "windows of 1x7x7, runs of 1 channels"},
    {&cuda_window, max_pool_backward, "max pool backward", "windows of 1x3x3, runs of 8 channels"},
    {&cuda_window, mean_pool_backward, "mean pool backward", "windows of 1x2x2, runs of 8 channels"},
    {&cuda_move, concat_channels, "concat of channels", "10 copies, runs of 8"},
    {&cuda_move, reshape_turned, "reshape of what is not packed", "1 copies, runs of 1"},
    {&cuda_rng, draw_normal, "normal, odd rows", "Philox, one per store"},
    {&cuda_rng, draw_double, "normal in double", "Philox, four per store"},
    {&cuda_rng, draw_mask, "mask", "Philox, four per store"},
    {&cuda_rng, draw_uniform, "uniform", "Philox, four per store"},
};

/* ---- Building and compiling -------------------------------------------------------------------------------------- */

struct built {
    desc graph;
    int nodes[OPS_MAX];
    struct step step;
    struct arena arena;
};

static weftStatus_t build(struct built *built, const struct family *family, void (*describe)(struct model *m),
                          const struct device *device) {
    struct model m = {.next_uid = 1};
    struct knob_choices none = {0};
    double seconds = -1;
    *built = (struct built){0};
    describe(&m);
    built->graph = graph_of(m.count, m.ops);
    for (int i = 0; i < m.kept_count; i++)
        drop(m.kept[i]);
    const struct graph *graph = (const struct graph *)built->graph;
    for (int i = 0; i < graph->node_count; i++)
        built->nodes[i] = i;
    built->step.family = family;
    built->step.region = (struct region){graph, graph->node_count, built->nodes};
    TRY(family->accepts(&built->step.region, device, &seconds));
    CHECK(seconds > 0 && seconds < 1, "%g seconds", seconds);
    return family->build(&built->step, device, &none, &built->arena);
}

static void release(struct built *built) {
    arena_free(&built->arena);
    drop(built->graph);
}

static void compile(const char *name, const struct built *built, const struct device *device) {
    static const char *const options[] = {"-std=c++17", "--ptxas-options=-v"};
    const struct cuda_step *state = built->step.state;
    struct nvrtc_choice choice;
    char arch[16];
    device_arch(arch, device);
    if (nvrtc_choose(&choice, arch)) {
        printf("not observed: %s for %s: %s\n", name, arch, status_text());
        status_clear();
        return;
    }
    for (int i = 0; i < state->count; i++) {
        struct compiled compiled;
        struct program program = {
            .name = "contraction.cu", .text = state->kernels[i].program, .option_count = 2, .options = options};
        program.headers = kernel_files(&program.header_count);
        weftStatus_t status = nvrtc_compile(&compiled, &choice, &program);
        CHECK(status == WEFT_STATUS_SUCCESS, "%s for %s: %s", name, arch, status_text());
        bool spills = false;
        for (const char *at = compiled.log; at && (at = strstr(at, "bytes stack frame, ")) != NULL; at++)
            spills = spills || strncmp(at, "bytes stack frame, 0 bytes spill", 32) != 0;
        CHECK(!spills, "%s for %s, kernel %d spills:\n%s", name, arch, i, compiled.log);
        const char *used = compiled.log ? strstr(compiled.log, "Used ") : NULL;
        if (getenv("WEFT_TEST_VERBOSE"))
            printf("%-34s %-8s %-20s %.18s | grid %u x %u | %s\n", name, arch, state->kernels[i].file, used ? used : "",
                   state->kernels[i].grid[0], state->kernels[i].block, built->step.detail);
        compiled_free(&compiled);
        status_clear();
    }
}

static void cases_build_and_compile(void) {
    static const int archs[][2] = {{7, 5}, {8, 0}, {9, 0}, {10, 0}, {12, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int a = 0; a < 5; a++) {
            struct device device;
            struct built built;
            MUST(device_describe_cuda(&device, archs[a][0], archs[a][1]));
            weftStatus_t status = build(&built, cases[c].family, cases[c].make, &device);
            CHECK(status == WEFT_STATUS_SUCCESS, "%s: %s", cases[c].name, status_text());
            if (!status && archs[a][0] == 9)
                CHECK(strncmp(built.step.detail, cases[c].words, strlen(cases[c].words)) == 0, "%s: %s", cases[c].name,
                      built.step.detail);
            if (!status)
                compile(cases[c].name, &built, &device);
            release(&built);
        }
}

/* ---- Turing, where tensor cores take f16 alone ------------------------------------------------------------------- */

static void turing_uses_what_it_has(void) {
    static const struct {
        void (*make)(struct model *m);
        const char *words;
    } expected[] = {{linear_gelu, "f16 tensor cores"},
                    {fp8_to_fp8, "f16 tensor cores"},
                    {square_bf16, "f32, "},
                    {int8_square, "i32, "}};
    struct device device;
    MUST(device_describe_cuda(&device, 7, 5));
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct built built;
        MUST(build(&built, &cuda_contraction, expected[i].make, &device));
        CHECK(strncmp(built.step.detail, expected[i].words, strlen(expected[i].words)) == 0, "%s", built.step.detail);
        release(&built);
    }
}

static void empty_results_launch_nothing(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(0, 16), PACKED, F32), typed(m, DIMS(16, 8), PACKED, F32),
               typed(m, DIMS(0, 8), PACKED, F32), NULL);
}

static void nothing_is_launched(void) {
    struct device device;
    struct built built;
    MUST(device_describe_cuda(&device, 9, 0));
    MUST(build(&built, &cuda_contraction, empty_results_launch_nothing, &device));
    CHECK(((const struct cuda_step *)built.step.state)->count == 0, "%s", built.step.detail);
    release(&built);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void only_pointwise(struct model *m) {
    m->ops[m->count++] = pointwise(WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), PACKED, F32),
                                   typed(m, DIMS(4, 8), PACKED, F32), typed(m, DIMS(4, 8), PACKED, F32));
}

static void two_products(struct model *m) {
    desc between = typed(m, DIMS(4, 4), PACKED, F32);
    add_matmul(m, F32, typed(m, DIMS(4, 8), PACKED, F32), typed(m, DIMS(8, 4), PACKED, F32), between, NULL);
    add_matmul(m, F32, typed(m, DIMS(4, 8), PACKED, F32), typed(m, DIMS(8, 4), PACKED, F32),
               typed(m, DIMS(4, 4), PACKED, F32), NULL);
}

static void before_a_product(struct model *m) {
    desc between = typed(m, DIMS(4, 8), PACKED, F32);
    m->ops[m->count++] = pointwise(WEFT_POINTWISE_ABS, typed(m, DIMS(4, 8), PACKED, F32), NULL, between);
    add_matmul(m, F32, between, typed(m, DIMS(8, 4), PACKED, F32), typed(m, DIMS(4, 4), PACKED, F32), NULL);
}

static void half_bytes(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(4, 8), PACKED, WEFT_DATA_INT4), typed(m, DIMS(8, 4), PACKED, F32),
               typed(m, DIMS(4, 4), PACKED, F32), NULL);
}

static void refusals_are_worded(void) {
    static const struct {
        const struct family *family;
        void (*make)(struct model *m);
        const char *reason;
    } refused[] = {
        {&cuda_contraction, only_pointwise, "there is no matmul or convolution for it to follow."},
        {&cuda_contraction, two_products, "one product is computed at a time."},
        {&cuda_contraction, before_a_product, "operations are fused behind a product, not before it."},
        {&cuda_contraction, half_bytes, "has data type i4, which kernels cannot store"},
        {&cuda_contraction, max_pool, "is neither a matmul, a convolution nor pointwise."},
        {&cuda_window, only_pointwise, "is neither pooling nor interpolation."},
        {&cuda_move, only_pointwise, "does more than move elements."},
        {&cuda_rng, only_pointwise, "makes no random numbers."},
    };
    struct device device;
    MUST(device_describe_cuda(&device, 9, 0));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct built built;
        weftStatus_t status = build(&built, refused[i].family, refused[i].make, &device);
        CHECK(status != WEFT_STATUS_SUCCESS && strstr(status_text(), refused[i].reason), "got %d: %s", (int)status,
              status_text());
        status_clear();
        release(&built);
    }
}

int main(void) {
    cases_build_and_compile();
    turing_uses_what_it_has();
    nothing_is_launched();
    refusals_are_worded();
    return harness_end();
}
