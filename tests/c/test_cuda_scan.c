/* SPDX-License-Identifier: Apache-2.0 */
/* The scan and top_k families of CUDA, without a GPU: which kernels process which lines, the cases that they decline
   and the exact messages, and that their kernels compile for all generations of chips without spills. */
#include "cuda_family.h"

static void scan(struct model *m, struct extents dims, int64_t axis, int mode, int type, bool has_index) {
    desc op = make(WEFT_BACKEND_OPERATION_SCAN_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_SCAN_XDESC_EXT, typed(m, dims, type)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SCAN_YDESC_EXT, typed(m, dims, type)));
    if (has_index)
        MUST(set_held(op, WEFT_ATTR_OPERATION_SCAN_INDEX_DESC_EXT, typed(m, dims, WEFT_DATA_INT64)));
    MUST(set_number(op, WEFT_ATTR_OPERATION_SCAN_AXIS_EXT, axis));
    MUST(set_enum(op, WEFT_ATTR_OPERATION_SCAN_MODE_EXT, WEFT_TYPE_REDUCTION_OPERATOR_TYPE, mode));
    add(m, op);
}

static void top_k(struct model *m, int64_t lines, int64_t length, int64_t k, int type) {
    desc op = make(WEFT_BACKEND_OPERATION_TOP_K_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_TOP_K_XDESC_EXT, typed(m, DIMS(lines, length), type)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_TOP_K_VALUES_DESC_EXT, typed(m, DIMS(lines, k), type)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_TOP_K_INDICES_DESC_EXT, typed(m, DIMS(lines, k), WEFT_DATA_INT64)));
    MUST(set_number(op, WEFT_ATTR_OPERATION_TOP_K_COUNT_EXT, k));
    add(m, op);
}

static void sums_of_short_lines(struct model *m) { scan(m, DIMS(4096, 512), 1, WEFT_REDUCE_TENSOR_ADD, BF16, false); }
static void sums_of_lines(struct model *m) { scan(m, DIMS(4096, 4096), 1, WEFT_REDUCE_TENSOR_ADD, F32, false); }
static void maxima_of_lines(struct model *m) { scan(m, DIMS(8, 65536), 1, WEFT_REDUCE_TENSOR_MAX, F64, true); }
static void products_of_columns(struct model *m) { scan(m, DIMS(2048, 256), 0, WEFT_REDUCE_TENSOR_MUL, F16, false); }
static void integers(struct model *m) { scan(m, DIMS(4096, 512), 1, WEFT_REDUCE_TENSOR_ADD, WEFT_DATA_INT64, false); }
static void best_of_lines(struct model *m) { top_k(m, 4096, 50000, 1, BF16); }
static void best_of_few_lines(struct model *m) { top_k(m, 8, 1000000, 1, F32); }
static void experts(struct model *m) { top_k(m, 16384, 256, 8, F32); }
static void samples(struct model *m) { top_k(m, 64, 128000, 50, BF16); }
static void long_lists(struct model *m) { top_k(m, 4, 128000, 10000, F64); }

static const struct family_case cases[] = {
    {&cuda_scan, sums_of_short_lines, "sums of short lines", "a warp per line, 1 part, sums in float"},
    {&cuda_scan, sums_of_lines, "sums of lines", "a block per line, 1 part, sums in float"},
    {&cuda_scan, maxima_of_lines, "maxima of lines", "a block per line, 8 parts, sums in double"},
    {&cuda_scan, products_of_columns, "products of columns", "a thread per line, 32 parts, sums in float"},
    {&cuda_scan, integers, "integers", "a warp per line, 1 part, sums in i64"},
    {&cuda_top_k, best_of_lines, "best of lines", "a block per line, 1 part"},
    {&cuda_top_k, best_of_few_lines, "best of few lines", "a block per line, 122 parts"},
    {&cuda_top_k, experts, "experts", "a warp per line, 8 keys per lane"},
    {&cuda_top_k, samples, "samples", "64 entries sorted in shared memory"},
    {&cuda_top_k, long_lists, "long lists", "16384 entries sorted in memory"},
};

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_scan, only_pointwise, "pointwise is not a scan."},
    {&cuda_top_k, only_pointwise, "pointwise does not select elements."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
