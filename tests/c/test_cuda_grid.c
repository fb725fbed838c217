/* SPDX-License-Identifier: Apache-2.0 */
/* The grid families of CUDA, without a GPU: how positions are distributed over threads, the cases that they decline and
   the exact messages, and that their kernels compile for all generations of chips without spills. */
#include "cuda_family.h"

/* Images of 9 x 9 elements, or with is_last their channels adjacent, at 64 x 64 positions. */
static desc image(struct model *m, int64_t channels, int64_t side, int type, bool is_last) {
    struct extents dims = DIMS(8, channels, side, side);
    return is_last ? channels_last(m, dims, type) : typed(m, dims, type);
}

static void sample(struct model *m, int64_t channels, int type, bool is_last, int mode, int padding) {
    desc op = make(WEFT_BACKEND_OPERATION_GRID_SAMPLE_FWD_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_XDESC_EXT, image(m, channels, 9, type, is_last)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_GRID_DESC_EXT, typed(m, DIMS(8, 64, 64, 2), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_YDESC_EXT, image(m, channels, 64, type, is_last)));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_MODE_EXT, WEFT_TYPE_RESAMPLE_MODE, mode));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_PADDING_MODE_EXT, WEFT_TYPE_PADDING_MODE, padding));
    add(m, op);
}

static void differentiate(struct model *m, int64_t channels, int type, bool is_last, int mode) {
    desc op = make(WEFT_BACKEND_OPERATION_GRID_SAMPLE_BWD_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DYDESC_EXT, image(m, channels, 64, type, is_last)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_XDESC_EXT, image(m, channels, 9, type, is_last)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_GRID_DESC_EXT, typed(m, DIMS(8, 64, 64, 2), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DXDESC_EXT, image(m, channels, 9, type, is_last)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DGRID_DESC_EXT, typed(m, DIMS(8, 64, 64, 2), F32)));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_MODE_EXT, WEFT_TYPE_RESAMPLE_MODE, mode));
    add(m, op);
}

static void affine(struct model *m) {
    desc op = make(WEFT_BACKEND_OPERATION_AFFINE_GRID_FWD_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_THETA_DESC_EXT, typed(m, DIMS(8, 2, 3), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_GRID_DESC_EXT, typed(m, DIMS(8, 64, 64, 2), F32)));
    add(m, op);
}

static void affine_gradient(struct model *m) {
    desc op = make(WEFT_BACKEND_OPERATION_AFFINE_GRID_BWD_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_DGRID_DESC_EXT, typed(m, DIMS(8, 64, 64, 2), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_DTHETA_DESC_EXT, typed(m, DIMS(8, 2, 3), F32)));
    add(m, op);
}

static void planes(struct model *m) { sample(m, 12, F32, false, WEFT_RESAMPLE_BILINEAR, WEFT_ZERO_PAD); }
static void channels(struct model *m) { sample(m, 64, BF16, true, WEFT_RESAMPLE_BILINEAR, WEFT_EDGE_VAL_PAD); }
static void odd_channels(struct model *m) { sample(m, 7, F16, true, WEFT_RESAMPLE_NEAREST, WEFT_ZERO_PAD); }
static void cubic(struct model *m) { sample(m, 12, F64, false, WEFT_RESAMPLE_BICUBIC_EXT, WEFT_REFLECTION_PAD_EXT); }
static void gradients(struct model *m) { differentiate(m, 12, F32, false, WEFT_RESAMPLE_BILINEAR); }
static void gradients_of_channels(struct model *m) { differentiate(m, 64, BF16, true, WEFT_RESAMPLE_BILINEAR); }
static void gradients_of_doubles(struct model *m) { differentiate(m, 12, F64, false, WEFT_RESAMPLE_BICUBIC_EXT); }

static const struct family_case cases[] = {
    {&cuda_grid, planes, "planes", "4 taps, 3 channels per thread, 1 per access; 1 launch"},
    {&cuda_grid, channels, "channels", "4 taps, 8 channels per thread, 8 per access; 1 launch"},
    {&cuda_grid, odd_channels, "odd channels", "1 taps, 1 channel per thread, 1 per access; 1 launch"},
    {&cuda_grid, cubic, "cubic", "16 taps"},
    {&cuda_grid, gradients, "gradients", "sums of integers; 5 launches"},
    {&cuda_grid, gradients_of_channels, "gradients of channels", "8 per access, sums of integers; 5 launches"},
    {&cuda_grid, gradients_of_doubles, "gradients of doubles", "16 taps"},
    {&cuda_affine_grid, affine, "affine grid", "a thread per position"},
    {&cuda_affine_grid, affine_gradient, "gradient of an affine grid", "4 parts of each grid"},
};

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_grid, only_pointwise, "pointwise does not sample a grid."},
    {&cuda_affine_grid, only_pointwise, "pointwise is not an affine grid."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
