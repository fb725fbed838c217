/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA family of grouped products, without a GPU: how they are computed, the cases that it declines and the exact
   messages, and that every generated kernel compiles for all generations of chips without spills. */
#include "cuda_family.h"

static const weftMoeGroupedMatmulMode_t NONE = WEFT_MOE_GROUPED_MATMUL_MODE_NONE;

static desc open_grouped(weftMoeGroupedMatmulMode_t mode, int math, desc token, desc weight, desc first, desc output) {
    desc op = make(WEFT_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR);
    MUST(set_enum(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE, WEFT_TYPE_MOE_GROUPED_MATMUL_MODE, mode));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC, WEFT_TYPE_DATA_TYPE, math));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC, token));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC, weight));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC, first));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC, output));
    return op;
}

static void add_gradient(struct model *m, int math, desc doutput, desc token, desc first, desc dweight) {
    desc op = make(WEFT_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR);
    MUST(set_enum(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_MATH_PREC, WEFT_TYPE_DATA_TYPE, math));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_DOUTPUT_DESC, doutput));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_TOKEN_DESC, token));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_FIRST_TOKEN_OFFSET_DESC, first));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_DWEIGHT_DESC, dweight));
    add(m, op);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static void experts_bf16(struct model *m) {
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 8192, 2048), BF16), turned(m, DIMS(64, 2048, 1024), BF16),
                        typed(m, DIMS(64, 1, 1), I32), typed(m, DIMS(1, 8192, 1024), BF16)));
}

static void few_rows_f16(struct model *m) {
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 65, 512), F16), typed(m, DIMS(8, 512, 768), F16),
                        typed(m, DIMS(8, 1, 1), I32), typed(m, DIMS(1, 65, 768), F16)));
}

static void odd_float(struct model *m) {
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 333, 71), F32), typed(m, DIMS(3, 71, 129), F32),
                        typed(m, DIMS(3, 1, 1), I64), typed(m, DIMS(1, 333, 129), F32)));
}

static void in_double(struct model *m) {
    add(m, open_grouped(NONE, F64, typed(m, DIMS(1, 512, 64), F64), typed(m, DIMS(2, 64, 256), F64),
                        typed(m, DIMS(2, 1, 1), I32), typed(m, DIMS(1, 512, 256), F64)));
}

static void fp8_to_bf16(struct model *m) {
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 4096, 512), E4M3), turned(m, DIMS(8, 512, 512), E5M2),
                        typed(m, DIMS(8, 1, 1), I32), typed(m, DIMS(1, 4096, 512), BF16)));
}

static void int8_to_float(struct model *m) {
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 1024, 256), I8), typed(m, DIMS(4, 256, 512), I8),
                        typed(m, DIMS(4, 1, 1), I32), typed(m, DIMS(1, 1024, 512), F32)));
}

static void gathered(struct model *m) {
    desc op = open_grouped(WEFT_MOE_GROUPED_MATMUL_MODE_GATHER, F32, typed(m, DIMS(1, 1024, 512), BF16),
                           typed(m, DIMS(8, 512, 1024), BF16), typed(m, DIMS(8, 1, 1), I32),
                           typed(m, DIMS(1, 2048, 1024), BF16));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC, typed(m, DIMS(1, 2048, 1), I32)));
    add(m, op);
}

static void scattered(struct model *m) {
    int32_t top_k = 2;
    desc op = open_grouped(WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER, F32, typed(m, DIMS(1, 2048, 1024), F16),
                           typed(m, DIMS(8, 1024, 512), F16), typed(m, DIMS(8, 1, 1), I32),
                           typed(m, DIMS(1, 2048, 512), F16));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC, typed(m, DIMS(1, 2048, 1), I32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC, typed(m, DIMS(1, 2048, 1), I32)));
    MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOP_K, WEFT_TYPE_INT32, 1, &top_k));
    add(m, op);
}

static void gradient_bf16(struct model *m) {
    add_gradient(m, F32, typed(m, DIMS(1, 8192, 1024), BF16), typed(m, DIMS(1, 8192, 2048), BF16),
                 typed(m, DIMS(64, 1, 1), I32), turned(m, DIMS(64, 2048, 1024), BF16));
}

static void gradient_odd(struct model *m) {
    add_gradient(m, F32, typed(m, DIMS(1, 77, 65), F32), typed(m, DIMS(1, 77, 7), F32), typed(m, DIMS(3, 1, 1), I32),
                 typed(m, DIMS(3, 7, 65), F32));
}

static void gradient_to_float(struct model *m) {
    add_gradient(m, F32, typed(m, DIMS(1, 16384, 14336), BF16), typed(m, DIMS(1, 16384, 4096), BF16),
                 typed(m, DIMS(8, 1, 1), I32), typed(m, DIMS(8, 4096, 14336), F32));
}

static void few_rows_to_float(struct model *m) {
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 1024, 2048), BF16), typed(m, DIMS(64, 2048, 1408), BF16),
                        typed(m, DIMS(64, 1, 1), I64), typed(m, DIMS(1, 1024, 1408), F32)));
}

static void no_rows(struct model *m) {
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 0, 8), F32), typed(m, DIMS(2, 8, 8), F32),
                        typed(m, DIMS(2, 1, 1), I32), typed(m, DIMS(1, 0, 8), F32)));
}

static const struct family_case cases[] = {
    {&cuda_grouped, experts_bf16, "64 experts", "tensor cores, tiles of 128x128x32, at most 129 batch entries"},
    {&cuda_grouped, few_rows_f16, "few rows", "tensor cores, tiles of 64x64x32, at most 10 batch entries"},
    {&cuda_grouped, odd_float, "odd float", "fused multiply-adds, tiles of 128x128x16, at most 6 batch entries"},
    {&cuda_grouped, in_double, "double", "fused multiply-adds, tiles of 64x64x16, at most 11 batch entries"},
    {&cuda_grouped, fp8_to_bf16, "fp8", "tensor cores, tiles of 128x128x32"},
    {&cuda_grouped, int8_to_float, "int8", "tensor cores, tiles of 128x128x64"},
    {&cuda_grouped, gathered, "gathered", "tensor cores, tiles of 128x128x32, at most 25 batch entries"},
    {&cuda_grouped, scattered, "scattered", "tensor cores, tiles of 128x128x32, at most 25 batch entries"},
    {&cuda_grouped, gradient_bf16, "gradient", "tensor cores, tiles of 128x128x32, at most 64 batch entries"},
    {&cuda_grouped, gradient_odd, "odd gradient", "fused multiply-adds, tiles of 64x64x16"},
    {&cuda_grouped, no_rows, "no rows", "nothing to compute"},
};

static const struct family_case hopper_cases[] = {
    {&cuda_grouped_sm90, experts_bf16, "64 experts, wgmma",
     "wgmma, tiles of 64x256, 5 stages, clusters of 1, 64 experts, staged"},
    {&cuda_grouped_sm90, few_rows_to_float, "few rows, wgmma",
     "wgmma, tiles of 64x128, 8 stages, clusters of 1, 64 experts"},
    {&cuda_grouped_sm90, fp8_to_bf16, "fp8, wgmma", "8 experts, staged"},
    {&cuda_grouped_sm90, gathered, "gathered, wgmma", "8 experts, staged, rows gathered first"},
    {&cuda_grouped_sm90, scattered, "scattered, wgmma", "8 experts, staged"},
    {&cuda_grouped_sm90, gradient_bf16, "gradient, wgmma", "64 experts, staged"},
    {&cuda_grouped_sm90, gradient_to_float, "gradient to float, wgmma",
     "wgmma, tiles of 128x128 in ping-pong, 6 stages, clusters of 1, 8 experts"},
};

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static void followed(struct model *m) {
    desc product = inner(m);
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 9, 8), F32), typed(m, DIMS(2, 8, 8), F32),
                        typed(m, DIMS(2, 1, 1), I32), product));
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, product, NULL, typed(m, DIMS(1, 9, 8), F32));
}

static void odd_half(struct model *m) {
    add(m, open_grouped(NONE, F32, typed(m, DIMS(1, 9, 12), F16), typed(m, DIMS(2, 12, 8), F16),
                        typed(m, DIMS(2, 1, 1), I32), typed(m, DIMS(1, 9, 8), F16)));
}

static const struct refused_case refusals[] = {
    {&cuda_grouped, only_pointwise, "pointwise is not a grouped product."},
    {&cuda_grouped, followed,
     "moe_grouped_matmul: this engine fuses nothing with it; pointwise needs a separate kernel."},
    {&cuda_grouped_sm90, odd_float,
     "moe_grouped_matmul: unsupported operand types: f32 x f32; this engine multiplies two halves or two bfloat16 "
     "summed in float and, forward, FP8."},
    {&cuda_grouped_sm90, odd_half,
     "moe_grouped_matmul: tensor (uid 4) must have one contiguous dimension, which is not the rows that experts share "
     "if these are summed, and be aligned to 16 bytes along the others."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(build_cases(hopper_cases, COUNT(hopper_cases), 9));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
