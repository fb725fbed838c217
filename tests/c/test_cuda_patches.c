/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA families of depthwise convolutions, stems and patches, without a GPU: how common shapes are tiled, the cases
   that are declined and the exact messages, and that every generated kernel compiles for all generations of chips with
   no spills except one known one. */
#include "cuda_family.h"

/* ---- Operations -------------------------------------------------------------------------------------------------- */

enum direction { FORWARD, DATA, FILTER };
enum layout { PACKED, CHANNELS_LAST };

/* The same for each spatial dimension. */
struct window {
    int64_t stride, dilation, padding;
};

struct names {
    weftBackendDescriptorType_t kind;
    weftBackendAttributeName_t parameters, operands[3];
};

static const struct names names[] = {
    [FORWARD] = {WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                 WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                 {WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                  WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y}},
    [DATA] = {WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              {WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
               WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}},
    [FILTER] = {WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                {WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                 WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}},
};

/* Adds a convolution of x, w and y, which have `spatial` + 2 dims. */
static void convolve_tensors(struct model *m, enum direction direction, const desc tensors[3], int64_t spatial,
                             struct window window) {
    const int64_t stride[] = {window.stride, window.stride, window.stride};
    const int64_t dilation[] = {window.dilation, window.dilation, window.dilation};
    const int64_t padding[] = {window.padding, window.padding, window.padding};
    desc parameters = make(WEFT_BACKEND_CONVOLUTION_DESCRIPTOR), op = make(names[direction].kind);
    MUST(set_enum(parameters, WEFT_ATTR_CONVOLUTION_COMP_TYPE, WEFT_TYPE_DATA_TYPE, F32));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_FILTER_STRIDES, spatial, stride));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_DILATIONS, spatial, dilation));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_PRE_PADDINGS, spatial, padding));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, names[direction].parameters, parameters));
    for (int i = 0; i < 3; i++)
        MUST(set_held(op, names[direction].operands[i], tensors[i]));
    drop(parameters);
    add(m, op);
}

/* x, w and y have the same type and layout, except that the result has another type. */
static void convolve_to(struct model *m, enum direction direction, enum layout layout, int type, int made,
                        const struct extents dims[3], struct window window) {
    static const int results[] = {[FORWARD] = 2, [DATA] = 0, [FILTER] = 1};
    desc tensors[3];
    for (int i = 0; i < 3; i++) {
        int of = i == results[direction] ? made : type;
        tensors[i] = layout == CHANNELS_LAST ? channels_last(m, dims[i], of) : typed(m, dims[i], of);
    }
    convolve_tensors(m, direction, tensors, dims[0].count - 2, window);
}

static void convolve(struct model *m, enum direction direction, enum layout layout, int type,
                     const struct extents dims[3], struct window window) {
    convolve_to(m, direction, layout, type, type, dims, window);
}

#define THREE(x, w, y) ((const struct extents[]){x, w, y})
#define LARGE THREE(DIMS(64, 384, 28, 28), DIMS(384, 1, 7, 7), DIMS(64, 384, 28, 28))
#define HALVING THREE(DIMS(8, 96, 56, 56), DIMS(96, 1, 3, 3), DIMS(8, 96, 28, 28))
#define ODD THREE(DIMS(2, 37, 19, 23), DIMS(37, 1, 3, 3), DIMS(2, 37, 15, 19))
#define CAUSAL THREE(DIMS(4, 1024, 2048), DIMS(1024, 1, 4), DIMS(4, 1024, 2051))
#define VOLUME THREE(DIMS(2, 48, 8, 14, 14), DIMS(48, 1, 3, 3, 3), DIMS(2, 48, 8, 14, 14))
#define STEM THREE(DIMS(32, 3, 224, 224), DIMS(64, 3, 7, 7), DIMS(32, 64, 112, 112))
#define STEM_OF_8 THREE(DIMS(32, 8, 224, 224), DIMS(64, 8, 7, 7), DIMS(32, 64, 112, 112))
#define SMALL_STEM THREE(DIMS(32, 3, 64, 48), DIMS(24, 3, 3, 3), DIMS(32, 24, 32, 24))

/* ---- Depthwise --------------------------------------------------------------------------------------------------- */

static void large(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, BF16, LARGE, (struct window){1, 1, 3}); }
static void large_data(struct model *m) { convolve(m, DATA, CHANNELS_LAST, F16, LARGE, (struct window){1, 1, 3}); }
static void large_filter(struct model *m) { convolve(m, FILTER, CHANNELS_LAST, BF16, LARGE, (struct window){1, 1, 3}); }
static void large_float(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, F32, LARGE, (struct window){1, 1, 3}); }
static void large_packed(struct model *m) { convolve(m, FORWARD, PACKED, BF16, LARGE, (struct window){1, 1, 3}); }
static void halving(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, F16, HALVING, (struct window){2, 1, 1}); }
static void halving_data(struct model *m) { convolve(m, DATA, CHANNELS_LAST, F16, HALVING, (struct window){2, 1, 1}); }
static void halving_filter(struct model *m) { convolve(m, FILTER, PACKED, F32, HALVING, (struct window){2, 1, 1}); }
/* 2 x 2 results that are `stride` rows and columns of the image from each other. Shared memory holds two stages of
   `stride` rows of the strip that one result reads, 3 pixels of 32 channels; with 227 KiB, the limit is 302. */
static void far_apart(struct model *m, int64_t stride) {
    convolve(m, FORWARD, CHANNELS_LAST, F32,
             THREE(DIMS(1, 64, 2 * stride, 2 * stride), DIMS(64, 1, 3, 3), DIMS(1, 64, 2, 2)),
             (struct window){stride, 1, 1});
}
static void apart_132(struct model *m) { far_apart(m, 132); }
static void apart_302(struct model *m) { far_apart(m, 302); }
static void apart_303(struct model *m) { far_apart(m, 303); }
static void odd(struct model *m) { convolve_to(m, FORWARD, PACKED, E4M3, F32, ODD, (struct window){1, 2, 0}); }
static void odd_last(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, BF16, ODD, (struct window){1, 2, 0}); }
static void causal(struct model *m) { convolve(m, FORWARD, PACKED, BF16, CAUSAL, (struct window){1, 1, 3}); }
static void volume(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, BF16, VOLUME, (struct window){1, 1, 1}); }
static void volume_filter(struct model *m) { convolve(m, FILTER, PACKED, F16, VOLUME, (struct window){1, 1, 1}); }

static void with_bias(struct model *m) {
    desc y = inner(m), sum = inner(m), op = make(names[FORWARD].kind),
         parameters = make(WEFT_BACKEND_CONVOLUTION_DESCRIPTOR);
    const int64_t padding[] = {3, 3};
    MUST(set_enum(parameters, WEFT_ATTR_CONVOLUTION_COMP_TYPE, WEFT_TYPE_DATA_TYPE, F32));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_PRE_PADDINGS, 2, padding));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, names[FORWARD].parameters, parameters));
    MUST(set_held(op, names[FORWARD].operands[0], channels_last(m, LARGE[0], BF16)));
    MUST(set_held(op, names[FORWARD].operands[1], channels_last(m, LARGE[1], BF16)));
    MUST(set_held(op, names[FORWARD].operands[2], y));
    drop(parameters);
    add(m, op);
    add_pointwise(m, WEFT_POINTWISE_ADD, y, typed(m, DIMS(1, 384, 1, 1), BF16), sum);
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, sum, NULL, channels_last(m, LARGE[2], BF16));
}

/* ---- Stems ------------------------------------------------------------------------------------------------------- */

static void stem(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, F16, STEM, (struct window){2, 1, 3}); }
static void stem_data(struct model *m) { convolve(m, DATA, CHANNELS_LAST, F16, STEM, (struct window){2, 1, 3}); }
static void stem_filter(struct model *m) { convolve(m, FILTER, CHANNELS_LAST, F16, STEM, (struct window){2, 1, 3}); }
static void stem_packed(struct model *m) { convolve(m, FORWARD, PACKED, BF16, STEM, (struct window){2, 1, 3}); }
static void stem_of_8(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, BF16, STEM_OF_8, (struct window){2, 1, 3});
}
static void stem_of_8_data(struct model *m) {
    convolve(m, DATA, CHANNELS_LAST, BF16, STEM_OF_8, (struct window){2, 1, 3});
}
static void stem_of_8_filter(struct model *m) {
    convolve_to(m, FILTER, CHANNELS_LAST, BF16, F32, STEM_OF_8, (struct window){2, 1, 3});
}
static void small_stem(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, BF16, SMALL_STEM, (struct window){2, 1, 1});
}
static void small_stem_data(struct model *m) { convolve(m, DATA, PACKED, BF16, SMALL_STEM, (struct window){2, 1, 1}); }
static void small_stem_filter(struct model *m) {
    convolve(m, FILTER, PACKED, F16, SMALL_STEM, (struct window){2, 1, 1});
}

static const struct family_case cases[] = {
    {&cuda_depthwise, large, "7x7", "tensor cores, 49 taps in registers, strips of 8, 4 in a block of 16 channels"},
    {&cuda_depthwise, large_data, "7x7, data gradient", "tensor cores, 49 taps in registers, strips of 8"},
    {&cuda_depthwise, large_filter, "7x7, filter gradient",
     "49 taps in registers, strips of 7, 4 in a block of 64 channels"},
    {&cuda_depthwise, large_float, "7x7 float", "49 taps in registers, strips of 7, 4 in a block of 32 channels"},
    {&cuda_depthwise, large_packed, "7x7 NCHW", "49 taps in registers, strips of 4"},
    {&cuda_depthwise, with_bias, "7x7, bias, relu", "epilogue: 2 operations"},
    {&cuda_depthwise, apart_132, "3x3 stride 132", "strips of 1, 1 in a block of 32 channels"},
    {&cuda_depthwise, halving, "3x3 stride 2", "9 taps in registers"},
    {&cuda_depthwise, halving_data, "3x3 stride 2, data gradient", "9 taps in registers"},
    {&cuda_depthwise, halving_filter, "3x3 stride 2, filter gradient", "9 taps in registers"},
    {&cuda_depthwise, odd, "fp8, dilated, odd channels", "9 taps in registers"},
    {&cuda_depthwise, odd_last, "dilated, odd channels last", "9 taps in registers"},
    {&cuda_depthwise, causal, "4 taps along a line", "4 taps in registers"},
    {&cuda_depthwise, volume, "3x3x3", "27 taps in registers"},
    {&cuda_depthwise, volume_filter, "3x3x3, filter gradient", "27 taps in registers"},
    {&cuda_stem, stem, "stem of 3", "tiles of 16x16, 64 filters, 49 taps of 8 channels, 1 part"},
    {&cuda_stem, stem_data, "stem of 3, data gradient", "tiles of 8x32, 64 filters"},
    {&cuda_stem, stem_filter, "stem of 3, filter gradient",
     "tiles of 8x16, 64 filters, 49 taps of 8 channels, 132 parts"},
    {&cuda_stem, stem_packed, "stem of 3 NCHW", "tiles of 16x16, 64 filters"},
    {&cuda_stem, stem_of_8, "stem of 8", "tiles of 16x16, 64 filters"},
    {&cuda_stem, stem_of_8_data, "stem of 8, data gradient", "tiles of 8x32, 64 filters"},
    {&cuda_stem, stem_of_8_filter, "stem of 8, filter gradient", "132 parts"},
    {&cuda_stem, small_stem, "small stem", "32 filters, 9 taps of 8 channels"},
    {&cuda_stem, small_stem_data, "small stem NCHW, data gradient", "32 filters, 9 taps of 8 channels"},
    {&cuda_stem, small_stem_filter, "small stem NCHW, filter gradient", "32 filters, 9 taps of 8 channels"},
};

/* ---- Patches, only on Hopper ------------------------------------------------------------------------------------- */

#define NARROW THREE(DIMS(128, 64, 56, 56), DIMS(64, 64, 3, 3), DIMS(128, 64, 56, 56))
#define NARROW_END THREE(DIMS(8, 320, 128, 128), DIMS(24, 320, 3, 3), DIMS(8, 24, 128, 128))

static void narrow(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, BF16, NARROW, (struct window){1, 1, 1}); }
static void narrow_data(struct model *m) { convolve(m, DATA, CHANNELS_LAST, F16, NARROW, (struct window){1, 1, 1}); }
static void halved_data(struct model *m) {
    convolve(m, DATA, CHANNELS_LAST, BF16, THREE(DIMS(128, 128, 56, 56), DIMS(128, 128, 3, 3), DIMS(128, 128, 28, 28)),
             (struct window){2, 1, 1});
}
static void narrow_end(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, BF16, NARROW_END, (struct window){1, 1, 1});
}

/* With a prologue: the scale of a norm, and relu. */
static void prepared(struct model *m) {
    static const int64_t strides[] = {64 * 56 * 56, 1, 64 * 56, 64};
    desc x = channels_last(m, NARROW[0], BF16), scaled = inner(m), image = open_tensor(m->next_uid++, NARROW[0]);
    MUST(set_enum(image, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, BF16));
    MUST(set_numbers(image, WEFT_ATTR_TENSOR_STRIDES, 4, strides));
    MUST(set_flag(image, WEFT_ATTR_TENSOR_IS_VIRTUAL, true));
    image = keep(m, finalized(image));
    add_pointwise(m, WEFT_POINTWISE_MUL, x, channels_last(m, DIMS(1, 64, 1, 1), BF16), scaled);
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, scaled, NULL, image);
    const desc tensors[] = {image, channels_last(m, NARROW[1], BF16), channels_last(m, NARROW[2], BF16)};
    convolve_tensors(m, FORWARD, tensors, 2, (struct window){1, 1, 1});
}

/* 32 filters of three slices leave rows of the product unused. A second slice of the result can use them if adjacent
   slices read adjacent input. */
#define FEW THREE(DIMS(2, 32, 64, 64, 64), DIMS(32, 32, 3, 3, 3), DIMS(2, 32, 64, 64, 64))
static void few(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, BF16, FEW, (struct window){1, 1, 1}); }
static void few_data(struct model *m) { convolve(m, DATA, CHANNELS_LAST, F16, FEW, (struct window){1, 1, 1}); }
static void few_dilated(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, BF16, FEW, (struct window){1, 2, 2}); }
static void halved_volume(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, BF16,
             THREE(DIMS(2, 32, 64, 64, 64), DIMS(32, 32, 3, 3, 3), DIMS(2, 32, 32, 32, 32)), (struct window){2, 1, 1});
}

#define WIDE THREE(DIMS(2, 64, 64, 64, 64), DIMS(72, 64, 3, 3, 3), DIMS(2, 72, 64, 64, 64))
static void few_filter(struct model *m) { convolve(m, FILTER, CHANNELS_LAST, BF16, FEW, (struct window){1, 1, 1}); }
static void few_filter_dilated(struct model *m) {
    convolve_to(m, FILTER, CHANNELS_LAST, F16, F32, FEW, (struct window){1, 2, 2});
}
static void wide_filter(struct model *m) { convolve(m, FILTER, CHANNELS_LAST, BF16, WIDE, (struct window){1, 1, 1}); }
static void flat_filter(struct model *m) {
    convolve(m, FILTER, CHANNELS_LAST, BF16, THREE(DIMS(2, 16, 256, 256), DIMS(16, 16, 4, 4), DIMS(2, 16, 257, 257)),
             (struct window){1, 1, 2});
}
static void far_taps_filter(struct model *m) {
    convolve(m, FILTER, CHANNELS_LAST, BF16, THREE(DIMS(2, 16, 512, 512), DIMS(16, 16, 3, 3), DIMS(2, 16, 512, 512)),
             (struct window){1, 128, 128});
}
static void many_taps_filter(struct model *m) {
    convolve(m, FILTER, CHANNELS_LAST, BF16, THREE(DIMS(2, 16, 256, 256), DIMS(16, 16, 7, 7), DIMS(2, 16, 256, 256)),
             (struct window){1, 1, 3});
}

/* Adds another image to the result. */
static void joined(struct model *m) {
    desc y = inner(m), sum = inner(m);
    const desc tensors[] = {channels_last(m, NARROW[0], BF16), channels_last(m, NARROW[1], BF16), y};
    convolve_tensors(m, FORWARD, tensors, 2, (struct window){1, 1, 1});
    add_pointwise(m, WEFT_POINTWISE_ADD, y, channels_last(m, NARROW[2], BF16), sum);
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, sum, NULL, channels_last(m, NARROW[2], BF16));
}

static const struct family_case patch_cases[] = {
    {&cuda_depthwise, apart_302, "3x3 stride 302", "strips of 1, 1 in a block of 32 channels"},
    {&cuda_patch_sm90, narrow, "3x3 of 64",
     "wgmma over patches of 9x30 pixels, tiles of 7x28, 1 phase, 4 patches and 9 resident filter taps in shared "
     "memory"},
    {&cuda_patch_sm90, narrow_data, "3x3 of 64, data gradient", "wgmma over patches of 9x30 pixels, tiles of 7x28"},
    {&cuda_patch_sm90, halved_data, "3x3 of 128, data gradient of stride 2",
     "wgmma over patches of 8x29 pixels, tiles of 7x28, 4 phases"},
    {&cuda_patch_sm90, narrow_end, "3x3 of 320 to 24", "wgmma over patches of "},
    {&cuda_patch_sm90, prepared, "3x3 of 64 behind relu",
     "wgmma over patches of 10x30 pixels, tiles of 8x28, 1 phase, 4 patches and 9 resident filter taps in shared "
     "memory, prologue"},
    {&cuda_patch_sm90, joined, "3x3 of 64 and another image",
     "wgmma over patches of 9x30 pixels, tiles of 7x28, 1 phase, 3 patches and 9 resident filter taps in shared "
     "memory, auxiliary load"},
    {&cuda_patch_sm90, few, "3x3x3 of 32", "tiles of 2x4x32, 1 phase, 4 patches and 36 resident filter taps"},
    {&cuda_patch_sm90, few_data, "3x3x3 of 32, data gradient", "tiles of 2x4x32, 1 phase, 4 patches and 36 resident"},
    {&cuda_patch_sm90, few_dilated, "3x3x3 of 32, dilated", "tiles of 1x"},
    {&cuda_patch_wgrad_sm90, few_filter, "3x3x3 of 32, filter gradient",
     "wgmma over patches of 18x18 pixels, tiles of 16x16, 32 channels, 4 stages, 44 parts"},
    {&cuda_patch_wgrad_sm90, few_filter_dilated, "3x3x3 of 32, dilated, filter gradient",
     "wgmma over patches of 20x20 pixels, tiles of 16x16, 32 channels, 3 stages, 44 parts"},
    {&cuda_patch_wgrad_sm90, wide_filter, "3x3x3 of 64 to 72, filter gradient", "64 channels, 3 stages, 22 parts"},
    {&cuda_patch_wgrad_sm90, flat_filter, "4x4 of 16, filter gradient", "16 channels, 8 stages, 132 parts"},
};

/* ---- Empty problems ---------------------------------------------------------------------------------------------- */

static void no_images(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, BF16, THREE(DIMS(0, 32, 9, 9), DIMS(32, 1, 3, 3), DIMS(0, 32, 9, 9)),
             (struct window){1, 1, 1});
}

static void nothing_is_launched(void) {
    struct device device;
    struct built built;
    MUST(device_describe_cuda(&device, 9, 0));
    MUST(build(&built, &cuda_depthwise, no_images, &device));
    CHECK(state_of(&built)->count == 0, "%s", built.step.detail);
    release(&built);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void dense(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, BF16, THREE(DIMS(2, 64, 9, 9), DIMS(64, 64, 3, 3), DIMS(2, 64, 9, 9)),
             (struct window){1, 1, 1});
}
static void dense_float(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, F32, THREE(DIMS(2, 64, 9, 9), DIMS(64, 64, 3, 3), DIMS(2, 64, 9, 9)),
             (struct window){1, 1, 1});
}
static void dense_packed(struct model *m) {
    convolve(m, FORWARD, PACKED, F16, THREE(DIMS(2, 64, 9, 9), DIMS(64, 64, 3, 3), DIMS(2, 64, 9, 9)),
             (struct window){1, 1, 1});
}
static void huge_filter(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, F32, THREE(DIMS(2, 64, 32, 32), DIMS(64, 1, 31, 31), DIMS(2, 64, 32, 32)),
             (struct window){1, 1, 15});
}
static void whole_numbers(struct model *m) {
    convolve_to(m, FORWARD, CHANNELS_LAST, I8, I32, THREE(DIMS(2, 64, 9, 9), DIMS(64, 1, 3, 3), DIMS(2, 64, 9, 9)),
                (struct window){1, 1, 1});
}
/* Images whose channels TMA could load, except for one stride or the alignment. */
#define IMAGE(name, n, c, h, w, k, r, stride, image, channel, line, pixel, alignment)                                  \
    static void name(struct model *m) {                                                                                \
        desc x = strided(m, DIMS(n, c, h, w), DIMS(image, channel, line, pixel), BF16, alignment);                     \
        desc tensors[] = {x, channels_last(m, DIMS(k, c, r, r), BF16),                                                 \
                          channels_last(m, DIMS(n, k, (h) / (stride), (w) / (stride)), BF16)};                         \
        convolve_tensors(m, FORWARD, tensors, 2, (struct window){stride, 1, (r) / 2});                                 \
    }
#define STEM_IMAGE(name, ...) IMAGE(name, 32, 8, 224, 224, 64, 7, 2, __VA_ARGS__)
STEM_IMAGE(stem_of_wide_pixels, 602112, 1, 2688, 12, 16)
STEM_IMAGE(stem_of_wide_lines, 402304, 1, 1796, 8, 16)
STEM_IMAGE(stem_of_wide_images, 401412, 1, 1792, 8, 16)
STEM_IMAGE(stem_of_channels_apart, 802816, 2, 3584, 16, 16)
STEM_IMAGE(stem_of_less_alignment, 401408, 1, 1792, 8, 8)
#define DENSE_IMAGE(name, ...) IMAGE(name, 2, 64, 9, 9, 64, 3, 1, __VA_ARGS__)
DENSE_IMAGE(dense_of_wide_pixels, 5760, 1, 640, 68, 16)
DENSE_IMAGE(dense_of_wide_lines, 5760, 1, 580, 64, 16)
DENSE_IMAGE(dense_of_wide_images, 5188, 1, 576, 64, 16)
DENSE_IMAGE(dense_of_channels_apart, 10368, 2, 1152, 128, 16)
DENSE_IMAGE(dense_of_less_alignment, 5184, 1, 576, 64, 8)

static void float_stem(struct model *m) { convolve(m, FORWARD, CHANNELS_LAST, F32, STEM, (struct window){2, 1, 3}); }
static void pointwise_stem(struct model *m) {
    convolve(m, FORWARD, CHANNELS_LAST, BF16, THREE(DIMS(2, 8, 9, 9), DIMS(64, 8, 1, 1), DIMS(2, 64, 9, 9)),
             (struct window){1, 1, 0});
}

static const struct refused_case refusals[] = {
    {&cuda_depthwise, dense, "conv_fprop: its groups have 64 input and 64 output channels; expected one of each."},
    {&cuda_depthwise, huge_filter, "conv_fprop: its 961 taps and 31 rows of sums exceed the registers"},
    {&cuda_depthwise, apart_303,
     "conv_fprop: the rows that its filter covers, 232704 bytes, exceed the shared memory of a block"},
    {&cuda_depthwise, whole_numbers,
     "conv_fprop: tensor (uid 1) and tensor (uid 2) must be floats of 8 to 32 bits in memory"},
    {&cuda_patch_sm90, stem_of_8,
     "conv_fprop: this engine computes only convolutions of stride 1 in one group with at most 49 taps, and data "
     "gradients of at most 4 phases; in volumes, the taps are those of a slice, and filters have at most 7 slices."},
    {&cuda_patch_sm90, halved_volume,
     "conv_fprop: this engine computes only convolutions of stride 1 in one group with at most 49 taps, and data "
     "gradients of at most 4 phases; in volumes, the taps are those of a slice, and filters have at most 7 slices."},
    {&cuda_patch_wgrad_sm90, few,
     "conv_fprop: this engine computes only filter gradients of convolutions of stride 1 in one group, of images and "
     "volumes and of 2 to 18 taps in each slice."},
    {&cuda_patch_wgrad_sm90, stem_filter,
     "conv_wgrad: this engine computes only filter gradients of convolutions of stride 1 in one group, of images and "
     "volumes and of 2 to 18 taps in each slice."},
    {&cuda_patch_wgrad_sm90, many_taps_filter,
     "conv_wgrad: this engine computes only filter gradients of convolutions of stride 1 in one group, of images and "
     "volumes and of 2 to 18 taps in each slice."},
    {&cuda_patch_wgrad_sm90, far_taps_filter, "conv_wgrad: a patch of all taps exceeds a TMA box or shared memory."},
    {&cuda_patch_sm90, dense_float,
     "conv_fprop: unsupported operand types: f32 x f32; this engine multiplies two halves or two bfloat16 summed in "
     "float."},
    {&cuda_patch_sm90, dense_packed,
     "conv_fprop: operands must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_stem_sm90, stem_of_wide_pixels,
     "conv_fprop: tensors must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_stem_sm90, stem_of_wide_lines,
     "conv_fprop: tensors must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_stem_sm90, stem_of_wide_images,
     "conv_fprop: tensors must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_stem_sm90, stem_of_channels_apart,
     "conv_fprop: tensors must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_stem_sm90, stem_of_less_alignment,
     "conv_fprop: tensors must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_patch_sm90, dense_of_wide_pixels,
     "conv_fprop: operands must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_patch_sm90, dense_of_wide_lines,
     "conv_fprop: operands must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_patch_sm90, dense_of_wide_images,
     "conv_fprop: operands must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_patch_sm90, dense_of_channels_apart,
     "conv_fprop: operands must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_patch_sm90, dense_of_less_alignment,
     "conv_fprop: operands must be channels last and aligned to 16 bytes, with one 16-bit result."},
    {&cuda_stem, dense, "conv_fprop: expected one group of at most 8 channels in at most two dimensions"},
    {&cuda_stem, float_stem,
     "conv_fprop: tensor (uid 1) and tensor (uid 2) must have the same 16-bit float type, with products summed in "
     "float"},
    {&cuda_stem, pointwise_stem, "conv_fprop: its filters have 1 tap; expected 2 to 128"},
};

/* Known spill: one register of 128, in 2 of all pairs of chips and compilers (WEFT_TEST_ALL=1). */
static const struct spill spills[] = {
    {"7x7, filter gradient: depthwise_wgrad", "sm_90a", 12},
    {"7x7, filter gradient: depthwise_wgrad", "sm_90a", 13},
    {NULL, NULL, 0},
};

int main(void) {
    allowed_spills = spills;
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(build_cases(patch_cases, COUNT(patch_cases), 9));
    RUN(nothing_is_launched());
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
