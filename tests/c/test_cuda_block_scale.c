/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA families of block scales, and of products with block-scaled weights, without a GPU: how they compute and
   apply scales, the cases that they decline and the exact messages, and that every generated kernel compiles for all
   generations of chips without spills. */
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

/* Rows times dequantized weights, and the epilogue. */
static void add_product_of(struct model *m, desc a, desc weights, struct extents scales, struct extents result,
                           int type, int through, int32_t group) {
    desc product = inner(m), w = open_tensor(m->next_uid++, UNSET);
    MUST(set_enum(w, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, through));
    MUST(set_flag(w, WEFT_ATTR_TENSOR_IS_VIRTUAL, true));
    keep(m, finalized(w));
    dequantize(m, (int32_t[]){group, 1}, weights, typed(m, scales, type), w);
    add(m, open_matmul(a, w, product));
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, product, NULL, typed(m, result, type));
}

/* A few rows times weights whose columns are contiguous. */
static void add_product(struct model *m, int64_t rows, int64_t depth, int64_t columns, int type, int through,
                        int weights, int32_t group) {
    add_product_of(m, typed(m, DIMS(1, rows, depth), type), turned(m, DIMS(1, depth, columns), weights),
                   DIMS(1, depth / group, columns), DIMS(1, rows, columns), type, through, group);
}

static void one_row_int4(struct model *m) { add_product(m, 1, 8192, 8192, BF16, BF16, WEFT_DATA_INT4, 128); }
static void two_tokens_int4(struct model *m) { add_product(m, 16, 4096, 28672, BF16, F32, WEFT_DATA_INT4, 128); }
static void odd_rows_int8(struct model *m) { add_product(m, 33, 4096, 1031, F16, F16, I8, 64); }
static void all_rows_uint4(struct model *m) { add_product(m, 64, 4096, 28672, F16, F32, WEFT_DATA_UINT4, 128); }
static void all_rows_int8(struct model *m) { add_product(m, 64, 4096, 8192, BF16, F32, I8, 128); }
static void many_rows(struct model *m) { add_product(m, 65, 4096, 8192, BF16, BF16, I8, 128); }
static void some_rows_int4(struct model *m) { add_product(m, 33, 4128, 4096, BF16, BF16, WEFT_DATA_INT4, 32); }
static void hundreds_of_rows(struct model *m) { add_product(m, 256, 4096, 8192, F16, F32, WEFT_DATA_UINT8, 128); }
static void short_blocks_int8(struct model *m) { add_product(m, 64, 4096, 8192, F16, F32, I8, 64); }
static void thousands_of_rows(struct model *m) { add_product(m, 1025, 4096, 8192, F16, F32, I8, 128); }
static void small_blocks(struct model *m) { add_product(m, 8, 4096, 8192, BF16, F32, WEFT_DATA_INT4, 32); }

/* Each case violates one condition: two matrices, rows of k that are no multiple of 16 bytes, or the strides or
   alignment of one operand. */
#define LAYOUT(name, batch, depth, a_row, a_alignment, w_column, w_alignment)                                          \
    static void name(struct model *m) {                                                                                \
        desc a = strided(m, DIMS(batch, 8, depth), DIMS(8 * (a_row), a_row, 1), BF16, a_alignment);                    \
        desc w = strided(m, DIMS(batch, depth, 64), DIMS(64 * (w_column), 1, w_column), I8, w_alignment);              \
        add_product_of(m, a, w, DIMS(batch, 1, 64), DIMS(batch, 8, 64), BF16, BF16, depth);                            \
    }
LAYOUT(whole_k, 1, 4096, 4096, 16, 4096, 16)
LAYOUT(two_matrices, 2, 4096, 4096, 16, 4096, 16)
LAYOUT(broken_k, 1, 4104, 4104, 16, 4112, 16)
LAYOUT(wide_rows, 1, 4096, 4100, 16, 4096, 16)
LAYOUT(wide_columns, 1, 4096, 4096, 16, 4104, 16)
LAYOUT(rows_of_less_alignment, 1, 4096, 4096, 8, 4096, 16)
LAYOUT(weights_of_less_alignment, 1, 4096, 4096, 16, 4096, 8)

static const struct family_case cases[] = {
    {&cuda_weight_only, whole_k, "one block of scales", "by 8 rows"},
    {&cuda_block_scale, quantize_mxfp8, "to MXFP8, scales in tiles", "scales by 32 threads each, then elements"},
    {&cuda_block_scale, quantize_nvfp4, "to NVFP4 along columns", "scales by 1 thread each, then elements"},
    {&cuda_block_scale, quantize_double, "double to INT4", "scales by 32 threads each, then elements"},
    {&cuda_block_scale, dequantize_weights, "weights of 4 bits", "times the scales of blocks"},
    {&cuda_block_scale, dequantize_fp8, "FP8 in boxes", "times the scales of blocks"},
    {&cuda_weight_only, one_row_int4, "a row, INT4",
     "weights dequantised in registers, 32 columns by 8 rows, epilogue: 1 operation"},
    {&cuda_weight_only, two_tokens_int4, "16 rows, INT4", "32 columns by 16 rows"},
    {&cuda_weight_only, odd_rows_int8, "33 rows, INT8", "16 columns by 64 rows"},
    {&cuda_weight_only, all_rows_uint4, "64 rows, UINT4", "by 64 rows"},
    {&cuda_weight_only, all_rows_int8, "64 rows, INT8", "by 64 rows"},
};

/* Cases of the Hopper kernels, in which wgmma reads one operand from registers. */
static const struct family_case hopper_cases[] = {
    {&cuda_weight_only_sm90, all_rows_uint4, "64 rows, UINT4, on Hopper", "by 64 rows"},
    {&cuda_weight_only_sm90, all_rows_int8, "64 rows, INT8, on Hopper", "by 64 rows"},
    {&cuda_weight_only_sm90, some_rows_int4, "33 rows, INT4, blocks of 32", "by 48 rows"},
    {&cuda_weight_only_sm90, many_rows, "65 rows, INT8", "by 96 rows"},
    {&cuda_weight_only_sm90, hundreds_of_rows, "256 rows, UINT8", "128 columns by 128 rows"},
};

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_block_scale, only_pointwise, "pointwise has no block scales."},
    {&cuda_weight_only, only_pointwise, "pointwise: the region has no weights to dequantise."},
    {&cuda_weight_only, dequantize_weights, "block_scale_dequantize: its result must be read by exactly one matmul."},
    {&cuda_weight_only, many_rows,
     "matmul: this engine supports up to 64 rows; for 65 rows, dequantise the weights in memory."},
    {&cuda_weight_only_sm90, only_pointwise, "pointwise: the region has no weights to dequantise."},
    {&cuda_weight_only_sm90, short_blocks_int8,
     "matmul: expected rows times one matrix of weights, both contiguous along k and aligned to 16 bytes, with blocks "
     "of multiples of 128 weights along k."},
    {&cuda_weight_only_sm90, thousands_of_rows,
     "matmul: this engine supports up to 1024 rows; for 1025 rows, dequantise the weights in memory."},
    {&cuda_weight_only, two_matrices,
     "matmul: expected rows times one matrix of weights, both contiguous along k and aligned to 16 bytes, with blocks "
     "of multiples of 16 weights along k."},
    {&cuda_weight_only, broken_k,
     "matmul: expected rows times one matrix of weights, both contiguous along k and aligned to 16 bytes, with blocks "
     "of multiples of 16 weights along k."},
    {&cuda_weight_only, wide_rows,
     "matmul: expected rows times one matrix of weights, both contiguous along k and aligned to 16 bytes, with blocks "
     "of multiples of 16 weights along k."},
    {&cuda_weight_only, wide_columns,
     "matmul: expected rows times one matrix of weights, both contiguous along k and aligned to 16 bytes, with blocks "
     "of multiples of 16 weights along k."},
    {&cuda_weight_only, rows_of_less_alignment,
     "matmul: expected rows times one matrix of weights, both contiguous along k and aligned to 16 bytes, with blocks "
     "of multiples of 16 weights along k."},
    {&cuda_weight_only, weights_of_less_alignment,
     "matmul: expected rows times one matrix of weights, both contiguous along k and aligned to 16 bytes, with blocks "
     "of multiples of 16 weights along k."},
    {&cuda_weight_only, small_blocks,
     "matmul: expected rows times one matrix of weights, both contiguous along k and aligned to 16 bytes, with blocks "
     "of multiples of 128 weights along k."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(build_cases(hopper_cases, COUNT(hopper_cases), 9));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
