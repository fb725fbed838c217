/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA family of block scales, without a GPU: how it makes and uses scales, what it declines and in which words, and
   that every kernel printed compiles for all generations of chips with no spills. */
#include "cuda_family.h"

#define E8M0 WEFT_DATA_FP8_E8M0
#define E2M1 WEFT_DATA_FP4_E2M1

static desc tiled(struct model *m, struct extents dims, int type) {
    desc made = open_tensor(m->next_uid++, dims);
    MUST(set_enum(made, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, type));
    MUST(set_enum(made, WEFT_ATTR_TENSOR_REORDERING_MODE, WEFT_TYPE_TENSOR_REORDERING_MODE,
                  WEFT_TENSOR_REORDERING_F8_128x4));
    return keep(m, finalized(made));
}

static void quantize(struct model *m, int32_t block, int64_t axis, desc x, desc y, desc scale) {
    desc op = make(WEFT_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_XDESC, x));
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_YDESC, y));
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC, scale));
    MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE, WEFT_TYPE_INT32, 1, &block));
    MUST(set_number(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_AXIS_EXT, axis));
    add(m, op);
}

static void dequantize(struct model *m, const int32_t *block, desc x, desc scale, desc y) {
    desc op = make(WEFT_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC, x));
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC, scale));
    MUST(set_held(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC, y));
    MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, WEFT_TYPE_INT32, 2, block));
    add(m, op);
}

static void quantize_mxfp8(struct model *m) {
    quantize(m, 32, -1, typed(m, DIMS(300, 1000), BF16), typed(m, DIMS(300, 1000), E4M3),
             tiled(m, DIMS(384, 32), E8M0));
}

static void quantize_nvfp4(struct model *m) {
    quantize(m, 16, 0, typed(m, DIMS(64, 33), F32), typed(m, DIMS(64, 33), E2M1), typed(m, DIMS(4, 33), E4M3));
}

static void quantize_double(struct model *m) {
    quantize(m, 128, -1, typed(m, DIMS(3, 5, 300), F64), typed(m, DIMS(3, 5, 300), WEFT_DATA_INT4),
             typed(m, DIMS(3, 5, 3), F32));
}

static void dequantize_weights(struct model *m) {
    dequantize(m, (int32_t[]){1, 128}, typed(m, DIMS(64, 512), WEFT_DATA_INT4), typed(m, DIMS(64, 4), F16),
               typed(m, DIMS(64, 512), F16));
}

static void dequantize_fp8(struct model *m) {
    dequantize(m, (int32_t[]){128, 128}, typed(m, DIMS(300, 512), E5M2), typed(m, DIMS(3, 4), F32),
               typed(m, DIMS(300, 512), F64));
}

static const struct family_case cases[] = {
    {&cuda_block_scale, quantize_mxfp8, "to MXFP8, scales in tiles", "scales by 32 threads each, then quotients"},
    {&cuda_block_scale, quantize_nvfp4, "to NVFP4 along columns", "scales by 1 threads each, then quotients"},
    {&cuda_block_scale, quantize_double, "double to INT4", "scales by 32 threads each, then quotients"},
    {&cuda_block_scale, dequantize_weights, "weights of 4 bits", "times the scales of blocks"},
    {&cuda_block_scale, dequantize_fp8, "FP8 in boxes", "times the scales of blocks"},
};

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_block_scale, only_pointwise, "pointwise has no block scales."},
};

int main(void) {
    build_cases(cases, COUNT(cases), 0);
    check_refusals(refusals, COUNT(refusals));
    return compile_wanted(false);
}
