/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA contraction and Hopper families without a GPU: which kernels compute common shapes, the cases that are
   declined and the exact messages, and that every generated kernel compiles for all generations of chips without
   spills. */
#include "cuda_family.h"

enum { PACKED, CHANNELS_LAST };

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* used: number of rows, columns and depth in use per batch entry; NULL: all. */
static void add_matmul_in_use(struct model *m, int math, desc a, desc b, desc c, const desc used[3], double padding) {
    static const weftBackendAttributeName_t overrides[] = {WEFT_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
                                                           WEFT_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
                                                           WEFT_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC};
    desc parameters = make(WEFT_BACKEND_MATMUL_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_MATMUL_COMP_TYPE, WEFT_TYPE_DATA_TYPE, math));
    MUST(weftBackendSetAttribute(parameters, WEFT_ATTR_MATMUL_PADDING_VALUE, WEFT_TYPE_DOUBLE, 1, &padding));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_DESC, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_ADESC, a));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_BDESC, b));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_CDESC, c));
    for (int i = 0; i < 3; i++)
        if (used[i])
            MUST(set_held(op, overrides[i], used[i]));
    drop(parameters);
    add(m, op);
}

static void add_matmul(struct model *m, int math, desc a, desc b, desc c, desc rows_used) {
    const desc used[3] = {rows_used};
    add_matmul_in_use(m, math, a, b, c, used, rows_used ? 0.5 : 0);
}

enum direction { FORWARD, DATA, FILTER };

struct convolution_case {
    enum direction direction;
    struct extents x, w, y;
    int64_t stride, dilation, pre, post;
    int layout, type, out, math;
    bool flips;
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
    if (c->flips)
        MUST(set_enum(parameters, WEFT_ATTR_CONVOLUTION_CONV_MODE, WEFT_TYPE_CONVOLUTION_MODE, WEFT_CONVOLUTION));
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
    desc (*make_tensor)(struct model *, struct extents, int) = c->layout == CHANNELS_LAST ? channels_last : typed;
    desc x = make_tensor(m, c->x, c->direction == DATA ? c->out : c->type);
    desc w = make_tensor(m, c->w, c->direction == FILTER ? c->out : c->type);
    add_convolution(m, c, x, w, make_tensor(m, c->y, c->direction == FORWARD ? c->out : c->type));
}

/* ---- Cases: matmul ----------------------------------------------------------------------------------------------- */

static void square_bf16(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(4096, 4096), BF16), turned(m, DIMS(4096, 4096), BF16),
               typed(m, DIMS(4096, 4096), BF16), NULL);
}

static void linear_gelu(struct model *m) {
    desc c = inner(m), sum = inner(m), active = inner(m);
    add_matmul(m, F32, typed(m, DIMS(8, 512, 1024), F16), typed(m, DIMS(1, 1024, 4096), F16), c, NULL);
    add_pointwise(m, WEFT_POINTWISE_ADD, c, typed(m, DIMS(1, 1, 4096), F16), sum);
    add_pointwise(m, WEFT_POINTWISE_GELU_APPROX_TANH_FWD, sum, NULL, active);
    add_pointwise(m, WEFT_POINTWISE_ADD, active, typed(m, DIMS(8, 512, 4096), F16), typed(m, DIMS(8, 512, 4096), F16));
}

static void decode_splits(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(1, 8192), BF16), typed(m, DIMS(8192, 1024), BF16), typed(m, DIMS(1, 1024), BF16),
               NULL);
}

static void few_rows(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(128, 8192), BF16), turned(m, DIMS(8192, 8192), BF16),
               typed(m, DIMS(128, 8192), BF16), NULL);
}

static void float_odd(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(3, 501, 333), F32), turned(m, DIMS(3, 333, 777), F32),
               typed(m, DIMS(3, 501, 777), F32), NULL);
}

static void double_square(struct model *m) {
    add_matmul(m, F64, typed(m, DIMS(512, 512), F64), typed(m, DIMS(512, 512), F64), typed(m, DIMS(512, 512), F64),
               NULL);
}

static void int8_square(struct model *m) {
    add_matmul(m, I32, typed(m, DIMS(1024, 1024), I8), typed(m, DIMS(1024, 1024), I8), typed(m, DIMS(1024, 1024), I32),
               NULL);
}

static void int8_turned(struct model *m) {
    add_matmul(m, I32, typed(m, DIMS(1024, 1024), I8), turned(m, DIMS(1024, 1024), I8), typed(m, DIMS(1024, 1024), I32),
               NULL);
}

static void fp8_to_fp8(struct model *m) {
    desc c = inner(m);
    add_matmul(m, F32, typed(m, DIMS(1024, 2048), E4M3), turned(m, DIMS(2048, 1024), E5M2), c, NULL);
    add_pointwise(m, WEFT_POINTWISE_MUL, c, number(m, 0.25f), typed(m, DIMS(1024, 1024), E4M3));
}

static void overridden(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(8, 256, 128), BF16), typed(m, DIMS(8, 128, 256), BF16),
               typed(m, DIMS(8, 256, 256), BF16), typed(m, DIMS(8, 1, 1), I32));
}

/* The depth is contiguous in one factor and strided in the other. */
static void in_use(struct model *m) {
    const desc used[3] = {typed(m, DIMS(8, 1, 1), I32), typed(m, DIMS(1, 1, 1), I64), typed(m, DIMS(8, 1, 1), I32)};
    add_matmul_in_use(m, F32, typed(m, DIMS(8, 512, 1024), BF16), typed(m, DIMS(8, 1024, 512), BF16),
                      typed(m, DIMS(8, 512, 512), BF16), used, 0);
}

static void fp8_in_use(struct model *m) {
    const desc used[3] = {NULL, NULL, typed(m, DIMS(4, 1, 1), I32)};
    add_matmul_in_use(m, F32, typed(m, DIMS(4, 512, 1024), E4M3), turned(m, DIMS(4, 1024, 512), E4M3),
                      typed(m, DIMS(4, 512, 512), BF16), used, 0);
}

/* Prologue: scale and bias of a norm, and relu, followed by a linear layer. */
static void prepared(struct model *m) {
    desc x = typed(m, DIMS(1, 65536, 64), BF16), scaled = inner(m), moved = inner(m);
    desc factor = open_tensor(m->next_uid++, DIMS(1, 65536, 64));
    MUST(set_enum(factor, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, BF16));
    MUST(set_flag(factor, WEFT_ATTR_TENSOR_IS_VIRTUAL, true));
    factor = keep(m, finalized(factor));
    add_pointwise(m, WEFT_POINTWISE_MUL, x, typed(m, DIMS(1, 1, 64), BF16), scaled);
    add_pointwise(m, WEFT_POINTWISE_ADD, scaled, typed(m, DIMS(1, 1, 64), F32), moved);
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, moved, NULL, factor);
    add_matmul(m, F32, factor, turned(m, DIMS(1, 64, 256), BF16), typed(m, DIMS(1, 65536, 256), BF16), NULL);
}

/* The input of the activation is an output, too. */
static void two_results(struct model *m) {
    desc c = typed(m, DIMS(4096, 4096), BF16);
    add_matmul(m, F32, typed(m, DIMS(4096, 1024), BF16), turned(m, DIMS(1024, 4096), BF16), c, NULL);
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, c, NULL, typed(m, DIMS(4096, 4096), BF16));
}

static void bf16_odd(struct model *m) {
    desc c = inner(m);
    add_matmul(m, F32, typed(m, DIMS(3, 1001, 1333), BF16), typed(m, DIMS(3, 1333, 1777), BF16), c, NULL);
    add_pointwise(m, WEFT_POINTWISE_ADD, c, typed(m, DIMS(1, 1, 1777), BF16), typed(m, DIMS(3, 1001, 1777), BF16));
}

static void bf16_by_int4(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(512, 4096), BF16), turned(m, DIMS(4096, 4096), WEFT_DATA_INT4),
               typed(m, DIMS(512, 4096), BF16), NULL);
}

static void half_by_bf16(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(512, 4096), F16), turned(m, DIMS(4096, 4096), BF16),
               typed(m, DIMS(512, 4096), F16), NULL);
}

static void tiny_batch(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(100000, 4, 4), F32), typed(m, DIMS(100000, 4, 4), F32),
               typed(m, DIMS(100000, 4, 4), F32), NULL);
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

static void data_float(struct model *m) {
    convolve(m, &(struct convolution_case){DATA, BLOCK, PLAIN, .layout = CHANNELS_LAST, .type = F32, .out = F32});
}

static void filter_nchw(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, BLOCK, PLAIN, .layout = PACKED, .type = BF16, .out = BF16});
}

static void filter_float(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, BLOCK, PLAIN, .layout = CHANNELS_LAST, .type = F32, .out = F32});
}

static void filter_narrow(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, .x = DIMS(8, 40, 28, 28), .w = DIMS(96, 40, 3, 3),
                                           .y = DIMS(8, 96, 28, 28), .pre = 1, .post = 1, PLAIN,
                                           .layout = CHANNELS_LAST, .type = F16, .out = F16});
}

#define GROUPS .x = DIMS(8, 256, 28, 28), .w = DIMS(256, 64, 3, 3), .y = DIMS(8, 256, 28, 28), .pre = 1, .post = 1

static void forward_groups(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, GROUPS, PLAIN, .layout = CHANNELS_LAST, .type = BF16, .out = BF16});
}

static void data_groups(struct model *m) {
    convolve(m, &(struct convolution_case){DATA, GROUPS, PLAIN, .layout = CHANNELS_LAST, .type = BF16, .out = BF16});
}

static void filter_groups(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, GROUPS, PLAIN, .layout = CHANNELS_LAST, .type = BF16, .out = BF16});
}

#define NARROW .x = DIMS(8, 128, 28, 28), .w = DIMS(128, 4, 3, 3), .y = DIMS(8, 128, 28, 28), .pre = 1, .post = 1

static void forward_narrow(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, NARROW, PLAIN, .layout = CHANNELS_LAST, .type = BF16, .out = BF16});
}

static void data_narrow(struct model *m) {
    convolve(m, &(struct convolution_case){DATA, NARROW, PLAIN, .layout = PACKED, .type = F32, .out = F32});
}

static void filter_narrow_groups(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, NARROW, PLAIN, .layout = CHANNELS_LAST, .type = BF16, .out = F32});
}

static void filter_of_8(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, .x = DIMS(8, 256, 28, 28), .w = DIMS(256, 8, 3, 3),
                                           .y = DIMS(8, 256, 28, 28), .pre = 1, .post = 1, PLAIN,
                                           .layout = CHANNELS_LAST, .type = BF16, .out = BF16});
}

#define PATCHES .x = DIMS(64, 3, 224, 224), .w = DIMS(768, 3, 16, 16), .y = DIMS(64, 768, 14, 14)

static void forward_patches(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, PATCHES, .stride = 16, .dilation = 1, .math = F32, .layout = PACKED,
                                           .type = BF16, .out = BF16});
}

static void filter_patches(struct model *m) {
    convolve(m, &(struct convolution_case){FILTER, PATCHES, .stride = 16, .dilation = 1, .math = F32, .layout = PACKED,
                                           .type = F32, .out = F32});
}

static void forward_flipped(struct model *m) {
    convolve(m, &(struct convolution_case){FORWARD, BLOCK, PLAIN, .layout = CHANNELS_LAST, .type = BF16, .out = BF16,
                                           .flips = true});
}

static void data_strided_flipped(struct model *m) {
    convolve(m, &(struct convolution_case){DATA, HALVING, .stride = 2, .dilation = 1, .math = F32, .flips = true,
                                           .layout = CHANNELS_LAST, .type = F16, .out = F16});
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

/* The expected kernel on sm_90. */
static const struct family_case cases[] = {
    {&cuda_contraction, square_bf16, "matmul 4096 bf16", "bf16 tensor cores, tiles of 128x128x32, 1 split"},
    {&cuda_contraction, linear_gelu, "linear, gelu, residual",
     "f16 tensor cores, tiles of 128x128x32, 1 split, epilogue: 3 operations"},
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
    {&cuda_contraction, depthwise, "depthwise", "f32, one thread per 8 results, 1 split"},
    {&cuda_contraction, depthwise_filter, "depthwise filter gradient", "f32, one thread per 8 results"},
};

/* Cases that are narrowed to tf32. */
static const struct family_case tf32_cases[] = {
    {&cuda_contraction, float_odd, "matmul tf32 odd", "tf32 tensor cores, tiles of "},
    {&cuda_contraction, forward_float, "conv tf32", "tf32 tensor cores, tiles of "},
};

/* Cases that TMA and wgmma support. */
static const struct family_case hopper_cases[] = {
    {&cuda_hopper, square_bf16, "matmul 4096 bf16, Hopper", NULL},
    {&cuda_hopper, linear_gelu, "linear, gelu, residual, Hopper", NULL},
    {&cuda_hopper, decode_splits, "matmul 1x1024x8192, Hopper", NULL},
    {&cuda_hopper, few_rows, "matmul 128x8192x8192, Hopper", "split over clusters"},
    {&cuda_hopper, forward_nhwc, "conv NHWC, Hopper", NULL},
    {&cuda_hopper, data_strided, "data gradient, stride 2, Hopper", NULL},
    {&cuda_hopper, filter_nhwc, "filter gradient, Hopper", NULL},
    {&cuda_hopper, fp8_to_fp8, "matmul fp8 scaled to fp8, Hopper", "promoted"},
    {&cuda_hopper, int8_turned, "matmul int8, Hopper", "wgmma"},
    {&cuda_hopper, in_use, "matmul with overrides, Hopper", "wgmma"},
    {&cuda_hopper, prepared, "linear behind relu, Hopper", "prologue"},
    {&cuda_hopper, two_results, "linear, relu, both kept, Hopper", "staged, epilogue: 1 operation"},
    {&cuda_hopper, fp8_in_use, "matmul fp8 with an override, Hopper", "promoted"},
    {&cuda_hopper, forward_int8, "conv int8, Hopper", "image"},
    {&cuda_hopper, filter_narrow, "filter gradient of 40 channels, Hopper", "image of pixels"},
    {&cuda_hopper, forward_groups, "conv in groups, Hopper", "image"},
    {&cuda_hopper, data_groups, "data gradient in groups, Hopper", "image"},
    {&cuda_hopper, filter_groups, "filter gradient in groups, Hopper", "image of pixels"},
    {&cuda_hopper, forward_flipped, "conv flipped, Hopper", "image"},
    {&cuda_hopper, data_strided_flipped, "data gradient flipped, stride 2, Hopper", "image"},
    {&cuda_packed, forward_nchw, "conv NCHW, packed", "2 tensors repacked, cuda.patch_sm90: wgmma"},
    {&cuda_packed, data_nchw, "data gradient NCHW, packed", "2 tensors repacked, cuda.patch_sm90: wgmma"},
    {&cuda_packed, filter_nchw, "filter gradient NCHW, packed", "1 tensor repacked, cuda.hopper: wgmma"},
    {&cuda_packed, bf16_odd, "matmul of odd sizes, packed", "2 tensors repacked, cuda.hopper: wgmma"},
    {&cuda_packed, bf16_by_int4, "matmul bf16 by int4, packed", "1 tensor repacked, cuda.hopper: wgmma"},
    {&cuda_packed, forward_patches, "conv of patches, packed", "2 tensors repacked, taps as channels, cuda.hopper"},
    {&cuda_packed, forward_narrow, "conv in narrow groups, packed",
     "1 tensor repacked, narrow groups merged, cuda.hopper"},
    {&cuda_packed, filter_narrow_groups, "filter gradient in narrow groups, packed",
     "1 tensor repacked, narrow groups merged, cuda.hopper"},
};

static const struct family_case hopper_tf32_cases[] = {
    {&cuda_packed, filter_patches, "filter gradient of f32 patches, packed",
     "3 tensors repacked, taps as channels, cuda.hopper"},
    {&cuda_packed, data_narrow, "data gradient f32 NCHW in narrow groups, packed",
     "2 tensors repacked, narrow groups merged, cuda.hopper"},
    {&cuda_packed, half_by_bf16, "matmul f16 by bf16, packed", "2 tensors repacked, cuda.hopper: wgmma"},
    {&cuda_packed, data_float, "data gradient f32, packed", "1 tensor repacked, cuda.hopper: wgmma"},
    {&cuda_packed, filter_float, "filter gradient f32, packed", "2 tensors repacked, cuda.hopper: wgmma"},
};

/* ---- Turing, whose tensor cores support only f16 ----------------------------------------------------------------- */

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
    add_matmul(m, F32, typed(m, DIMS(0, 16), F32), typed(m, DIMS(16, 8), F32), typed(m, DIMS(0, 8), F32), NULL);
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
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static void two_products(struct model *m) {
    desc between = typed(m, DIMS(4, 4), F32);
    add_matmul(m, F32, typed(m, DIMS(4, 8), F32), typed(m, DIMS(8, 4), F32), between, NULL);
    add_matmul(m, F32, typed(m, DIMS(4, 8), F32), typed(m, DIMS(8, 4), F32), typed(m, DIMS(4, 4), F32), NULL);
}

static void before_a_product(struct model *m) {
    desc between = typed(m, DIMS(4, 8), F32);
    add_pointwise(m, WEFT_POINTWISE_ABS, typed(m, DIMS(4, 8), F32), NULL, between);
    add_matmul(m, F32, between, typed(m, DIMS(8, 4), F32), typed(m, DIMS(4, 4), F32), NULL);
}

static void half_bytes(struct model *m) {
    add_matmul(m, F32, typed(m, DIMS(4, 8), WEFT_DATA_INT4), typed(m, DIMS(8, 4), F32), typed(m, DIMS(4, 4), F32),
               NULL);
}

static void mixed_integers(struct model *m) {
    add_matmul(m, I32, typed(m, DIMS(64, 64), I8), typed(m, DIMS(64, 64), I32), typed(m, DIMS(64, 64), I32), NULL);
}

static void a_softmax(struct model *m) {
    desc op = make(WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_SOFTMAX_XDESC, typed(m, DIMS(4, 8), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SOFTMAX_YDESC, typed(m, DIMS(4, 8), F32)));
    add(m, op);
}

static const struct refused_case refusals[] = {
    {&cuda_contraction, only_pointwise, "pointwise: the region has no matmul or convolution for it to follow."},
    {&cuda_contraction, two_products, "matmul and matmul: one product is computed at a time."},
    {&cuda_contraction, before_a_product,
     "matmul reads tensor (uid 1), which pointwise produces: only operations after a product are fused with it, not "
     "operations before it."},
    {&cuda_contraction, half_bytes, "matmul: tensor (uid 3) has data type i4, which kernels cannot store"},
    {&cuda_contraction, a_softmax, "softmax is neither a matmul, a convolution nor pointwise. Only those are fused."},
    {&cuda_hopper, float_odd,
     "matmul: unsupported operand types: f32 x f32; this engine multiplies two halves, bfloat16 or FP8 summed in "
     "float, or two 8-bit integers."},
    {&cuda_hopper, overridden,
     "matmul: elements outside its overrides have the value 0.5; this engine supports only 0."},
    {&cuda_hopper, int8_square,
     "matmul: tensor (uid 2) must be contiguous along the summed dimension; only 16-bit operands may have another "
     "layout."},
    {&cuda_hopper, forward_stem,
     "conv_fprop: tensor (uid 1) has a stride of 3 elements; TMA requires multiples of 16 bytes, and one contiguous "
     "dimension."},
    {&cuda_hopper, forward_volume, "conv_fprop: it has 2 groups of 8 channels; expected a multiple of 64 channels."},
    {&cuda_packed, two_products, "matmul and matmul: only the operands of one product can be repacked at a time."},
    {&cuda_hopper, filter_of_8,
     "conv_wgrad: it has 32 groups of 8 channels, which do not fill panels of 64; the groups should be merged."},
    {&cuda_packed, a_softmax, "softmax: the region has no matmul or convolution whose operands could be repacked."},
    {&cuda_packed, half_by_bf16,
     "matmul: unsupported operand types: f32 x f32; this engine multiplies two halves, bfloat16 or FP8 summed in "
     "float, or two 8-bit integers."},
    {&cuda_packed, mixed_integers, "matmul: no type of tensor cores represents both i8 and i32."},
};

static const struct refused_case tf32_refusals[] = {
    {&cuda_contraction, square_bf16,
     "matmul: only tiles of floats summed in float are narrowed to tf32, from compute capability 8.0 on."},
};

/* relu(x) times a square matrix, plus r, all of the same layout. */
static void square_behind_relu(struct model *m) {
    struct extents dims = DIMS(1, 256, 256);
    desc x = typed(m, dims, BF16), r = typed(m, dims, BF16), c = inner(m);
    desc factor = open_tensor(m->next_uid++, dims);
    MUST(set_enum(factor, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, BF16));
    MUST(set_flag(factor, WEFT_ATTR_TENSOR_IS_VIRTUAL, true));
    factor = keep(m, finalized(factor));
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, x, NULL, factor);
    add_matmul(m, F32, factor, turned(m, dims, BF16), c, NULL);
    add_pointwise(m, WEFT_POINTWISE_ADD, c, r, typed(m, dims, BF16));
}

static int value_of(const struct graph *graph, int64_t uid) {
    for (int v = 0; v < graph->value_count; v++)
        if (graph->values[v].tensor->uid == uid)
            return v;
    abort();
}

/* The result may alias the operand of the epilogue, but not an operand of the prologue, which all blocks read. */
static void results_spare_what_all_read(void) {
    struct device device;
    struct built built;
    MUST(device_describe_cuda(&device, 9, 0));
    DO(build(&built, &cuda_hopper, square_behind_relu, &device));
    const struct graph *graph = (const struct graph *)built.graph;
    const struct node *last = &graph->nodes[graph->node_count - 1];
    int x = value_of(graph, 1), r = value_of(graph, 2), y = last->operands[last->operand_count - 1];
    CHECK(last->is_output[last->operand_count - 1] && graph->node_count == 3, "the sum is last");
    CHECK(!cuda_hopper.may_alias(&built.step, x, y), "y may lie where x does, which all blocks read");
    CHECK(cuda_hopper.may_alias(&built.step, r, y), "y may not lie where r does");
    release(&built);
}

/* A partition of a chip may have fewer multiprocessors than a cluster requires. */
static void few_multiprocessors(void) {
    struct device device;
    struct built built;
    MUST(device_describe_cuda(&device, 9, 0));
    device.cuda.multiprocessors = 3;
    CHECK(build(&built, &cuda_hopper, square_bf16, &device) == WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "refused");
    EXACTLY(status_text(), "the Hopper family requires 4 multiprocessors, 'H200 (described)' has 3");
    status_clear();
    release(&built);
}

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(build_cases(hopper_cases, COUNT(hopper_cases), 9));
    relaxations = RELAX_TF32;
    RUN(build_cases(tf32_cases, COUNT(tf32_cases), 0));
    RUN(build_cases(hopper_tf32_cases, COUNT(hopper_tf32_cases), 9));
    RUN(check_refusals(tf32_refusals, COUNT(tf32_refusals)));
    relaxations = 0;
    RUN(turing_uses_what_it_has());
    RUN(nothing_is_launched());
    RUN(check_refusals(refusals, COUNT(refusals)));
    RUN(few_multiprocessors());
    RUN(results_spare_what_all_read());
    return compile_wanted();
}
