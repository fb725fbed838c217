/* SPDX-License-Identifier: Apache-2.0 */
/* The causal family of CUDA, without a GPU: how sequences are distributed over threads, the cases that it declines and
   the exact messages, and that its kernels compile for all generations of chips with no spills except one known one. */
#include "cuda_family.h"

/* A sequence [B, D, L] in which either the channels or the time steps are contiguous. */
static desc sequence(struct model *m, struct extents dims, int type, bool is_last) {
    return is_last ? channels_last(m, dims, type) : typed(m, dims, type);
}

static void filter(struct model *m, int64_t channels, int64_t steps, int64_t taps, int type, bool is_last) {
    desc op = make(WEFT_BACKEND_OPERATION_CAUSAL_CONV1D_FWD_DESCRIPTOR_EXT);
    struct extents dims = DIMS(8, channels, steps);
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_XDESC_EXT, sequence(m, dims, type, is_last)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_WEIGHT_DESC_EXT, typed(m, DIMS(channels, taps), type)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_YDESC_EXT, sequence(m, dims, type, is_last)));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_ACTIVATION_EXT, WEFT_TYPE_POINTWISE_MODE,
                  WEFT_POINTWISE_SWISH_FWD));
    add(m, op);
}

static void differentiate(struct model *m, int64_t channels, int64_t steps, int64_t taps, int type, bool is_last) {
    desc op = make(WEFT_BACKEND_OPERATION_CAUSAL_CONV1D_BWD_DESCRIPTOR_EXT);
    struct extents dims = DIMS(8, channels, steps), filters = DIMS(channels, taps);
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DYDESC_EXT, sequence(m, dims, type, is_last)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_XDESC_EXT, sequence(m, dims, type, is_last)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_WEIGHT_DESC_EXT, typed(m, filters, type)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_BIAS_DESC_EXT, typed(m, DIMS(channels), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DXDESC_EXT, sequence(m, dims, type, is_last)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DWEIGHT_DESC_EXT, typed(m, filters, F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DBIAS_DESC_EXT, typed(m, DIMS(channels), F32)));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_ACTIVATION_EXT, WEFT_TYPE_POINTWISE_MODE,
                  WEFT_POINTWISE_SWISH_FWD));
    add(m, op);
}

static void of_steps(struct model *m) { filter(m, 4096, 2048, 4, BF16, false); }
static void of_channels(struct model *m) { filter(m, 4096, 2048, 4, F16, true); }
static void of_odd_rows(struct model *m) { filter(m, 96, 2047, 3, BF16, false); }
static void of_long_filters(struct model *m) { filter(m, 96, 512, 33, F32, true); }
static void gradients_of_steps(struct model *m) { differentiate(m, 4096, 2048, 4, BF16, false); }
static void gradients_of_channels(struct model *m) { differentiate(m, 4096, 2048, 4, BF16, true); }
static void gradients_of_doubles(struct model *m) { differentiate(m, 64, 512, 4, F64, true); }
static void gradients_of_long_filters(struct model *m) { differentiate(m, 64, 512, 100, BF16, false); }

static const struct family_case cases[] = {
    {&cuda_causal, of_steps, "steps", "4 taps in registers, strips of 8 steps, 8 elements per access; 1 launch"},
    {&cuda_causal, of_channels, "channels", "of adjacent channels, 2 elements per access; 1 launch"},
    {&cuda_causal, of_odd_rows, "odd rows", "8 elements per access, shifted"},
    {&cuda_causal, of_long_filters, "long filters", "33 taps in chunks of 8"},
    {&cuda_causal, gradients_of_steps, "gradients of steps", "8 elements per access; 2 launches"},
    {&cuda_causal, gradients_of_channels, "gradients of channels", "2 elements per access; 2 launches"},
    {&cuda_causal, gradients_of_doubles, "gradients of doubles", "strips of 8 steps"},
    {&cuda_causal, gradients_of_long_filters, "gradients of long filters", "4 launches"},
};

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_causal, only_pointwise, "pointwise is not a causal convolution."},
};

/* Known spill with the older compiler, to be fixed. No other pair of chip and compiler (WEFT_TEST_ALL=1) spills. */
static const struct spill spills[] = {
    {"gradients of channels: causal_backward_channels", "sm_100a", 12},
    {"gradients of channels: causal_backward_channels", "sm_120a", 12},
    {NULL, NULL, 0},
};

int main(void) {
    allowed_spills = spills;
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
