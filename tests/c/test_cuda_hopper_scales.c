/* SPDX-License-Identifier: Apache-2.0 */
/* Products of FP8 factors with block scales, on Hopper, without a GPU: which of them are one kernel, the exact messages
   for the others, and that no kernel spills. */
#include "cuda_family.h"

static desc scaled(struct model *m, desc x, desc scale, int32_t rows, int32_t columns, desc y) {
    const int32_t block[] = {rows, columns};
    desc op = make(WEFT_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC, x));
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC, scale));
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC, y));
    MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, WEFT_TYPE_INT32, 2, block));
    add(m, op);
    return y;
}

static void multiply(struct model *m, desc a, desc b, desc c) {
    desc parameters = make(WEFT_BACKEND_MATMUL_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_DESC, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_ADESC, a));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_BDESC, b));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_CDESC, c));
    drop(parameters);
    add(m, op);
}

/* ---- One kernel -------------------------------------------------------------------------------------------------- */

enum { M = 512, N = 1024, K = 2048 };

static desc left(struct model *m) { return typed(m, DIMS(M, K), E4M3); }
static desc right(struct model *m) { return turned(m, DIMS(K, N), E4M3); }
static desc scaled_left(struct model *m) {
    return scaled(m, left(m), typed(m, DIMS(M, K / 128), F32), 1, 128, inner(m));
}
static desc scaled_right(struct model *m) {
    return scaled(m, right(m), typed(m, DIMS(K / 128, N / 128), F32), 128, 128, inner(m));
}

static void tokens_and_weights(struct model *m) {
    desc b = scaled_right(m);
    multiply(m, scaled_left(m), b, typed(m, DIMS(M, N), BF16));
}

/* A tile of 192 columns, which spans two or three scales of B. */
static void many_tokens(struct model *m) {
    desc b = scaled(m, turned(m, DIMS(8192, 8192), E4M3), typed(m, DIMS(64, 64), F32), 128, 128, inner(m));
    desc a = scaled(m, typed(m, DIMS(8192, 8192), E4M3), turned(m, DIMS(8192, 64), F32), 1, 128, inner(m));
    multiply(m, a, b, typed(m, DIMS(8192, 8192), BF16));
}

static void weights_and_tokens(struct model *m) {
    desc a = scaled(m, left(m), typed(m, DIMS(M / 128, K / 128), WEFT_DATA_FP8_E8M0), 128, 128, inner(m));
    desc b = scaled(m, right(m), typed(m, DIMS(K / 128, N), WEFT_DATA_FP8_E8M0), 128, 1, inner(m));
    multiply(m, a, b, typed(m, DIMS(M, N), F32));
}

static void one_factor_and_gelu(struct model *m) {
    desc c = inner(m);
    multiply(m, scaled_left(m), right(m), c);
    add_pointwise(m, WEFT_POINTWISE_GELU_APPROX_TANH_FWD, c, NULL, typed(m, DIMS(M, N), E4M3));
}

static void batches(struct model *m) {
    desc a = scaled(m, typed(m, DIMS(4, M, K), E4M3), typed(m, DIMS(4, M, K / 256), F32), 1, 256, inner(m));
    multiply(m, a, turned(m, DIMS(4, K, N), E5M2), typed(m, DIMS(4, M, N), F16));
}

static const struct family_case cases[] = {
    {&cuda_hopper, tokens_and_weights, "scales of tokens and weights",
     "scaled by blocks, staged, epilogue: 0 operations"},
    {&cuda_hopper, many_tokens, "scales of many tokens", "tiles of 192x128"},
    {&cuda_hopper, weights_and_tokens, "scales of weights and tokens", "swapped"},
    {&cuda_hopper, one_factor_and_gelu, "scales of tokens, gelu", "scaled by blocks, staged, epilogue: 1 operation"},
    {&cuda_hopper, batches, "scales in a batch", "scaled by blocks, staged"},
};

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void short_blocks(struct model *m) {
    desc a = scaled(m, left(m), typed(m, DIMS(M, K / 32), F32), 1, 32, inner(m));
    multiply(m, a, right(m), typed(m, DIMS(M, N), BF16));
}

static void scales_of_columns(struct model *m) {
    desc b = scaled(m, right(m), typed(m, DIMS(K / 128, N), F32), 128, 1, inner(m));
    multiply(m, scaled_left(m), b, typed(m, DIMS(M, N), BF16));
}

static void scaled_bytes(struct model *m) {
    desc a = scaled(m, typed(m, DIMS(M, K), I8), typed(m, DIMS(M, K / 128), F32), 1, 128, inner(m));
    multiply(m, a, turned(m, DIMS(K, N), I8), typed(m, DIMS(M, N), F32));
}

static void wanted_elsewhere(struct model *m) {
    desc x = left(m), scale = typed(m, DIMS(M, K / 128), F32), y = typed(m, DIMS(M, K), F32);
    multiply(m, scaled(m, x, scale, 1, 128, y), right(m), typed(m, DIMS(M, N), BF16));
}

static void scaled_residual(struct model *m) {
    desc c = inner(m);
    multiply(m, left(m), right(m), c);
    desc rest = scaled(m, typed(m, DIMS(M, N), E4M3), typed(m, DIMS(M, N / 128), F32), 1, 128, inner(m));
    add_pointwise(m, WEFT_POINTWISE_ADD, c, rest, typed(m, DIMS(M, N), BF16));
}

static const struct refused_case refusals[] = {
    {&cuda_hopper, short_blocks,
     "block_scale_dequantize: scale has dims [512,64] and strides [64,1]; its blocks must be multiples of 128 along "
     "the "
     "summed dimension to be part of a product."},
    {&cuda_hopper, scales_of_columns, "matmul: no tile of the Hopper family fits."},
    {&cuda_hopper, scaled_bytes, "matmul: block scales are supported only in matmuls of FP8."},
    {&cuda_hopper, wanted_elsewhere,
     "block_scale_dequantize: tensor (uid 3) must have the strides of tensor (uid 1) and be read only by the product, "
     "to be scaled inside it."},
    {&cuda_hopper, scaled_residual, "matmul: block scales may only multiply its operands."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 9));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
