/* SPDX-License-Identifier: Apache-2.0 */
/* The gather family of CUDA, without a GPU: its kernels for slices and elements, in order and in any order, the cases
   that it declines and the exact messages, and that its kernels compile for all generations of chips without spills. */
#include "cuda_family.h"

static desc indices(struct model *m, struct extents dims) { return typed(m, dims, WEFT_DATA_INT64); }

static void gather(struct model *m, struct extents x, desc index, struct extents y, int64_t axis, int type) {
    desc op = make(WEFT_BACKEND_OPERATION_GATHER_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_GATHER_XDESC_EXT, typed(m, x, type)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_GATHER_INDEX_DESC_EXT, index));
    MUST(set_held(op, WEFT_ATTR_OPERATION_GATHER_YDESC_EXT, typed(m, y, type)));
    MUST(set_number(op, WEFT_ATTR_OPERATION_GATHER_AXIS_EXT, axis));
    add(m, op);
}

static void scatter(struct model *m, struct extents src, desc index, struct extents y, int type, bool is_sorted) {
    desc op = make(WEFT_BACKEND_OPERATION_SCATTER_ADD_DESCRIPTOR_EXT);
    MUST(set_held(op, WEFT_ATTR_OPERATION_SCATTER_ADD_SRC_DESC_EXT, typed(m, src, type)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SCATTER_ADD_INDEX_DESC_EXT, index));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SCATTER_ADD_YDESC_EXT, typed(m, y, type)));
    MUST(set_flag(op, WEFT_ATTR_OPERATION_SCATTER_ADD_IS_SORTED_EXT, is_sorted));
    add(m, op);
}

static void embedding(struct model *m) {
    gather(m, DIMS(50000, 1024), indices(m, DIMS(16384)), DIMS(16384, 1024), 0, BF16);
}
static void columns(struct model *m) { gather(m, DIMS(1024, 5000), indices(m, DIMS(70)), DIMS(1024, 70), 1, F32); }
static void elements(struct model *m) {
    gather(m, DIMS(1024, 5000), indices(m, DIMS(1024, 70)), DIMS(1024, 70), 1, F32);
}
static void gradient(struct model *m) {
    scatter(m, DIMS(16384, 1024), indices(m, DIMS(16384)), DIMS(50000, 1024), BF16, false);
}
static void sorted(struct model *m) {
    scatter(m, DIMS(16384, 1024), indices(m, DIMS(16384)), DIMS(50000, 1024), F64, true);
}
static void element_sums(struct model *m) {
    scatter(m, DIMS(70, 1024), indices(m, DIMS(70, 1024)), DIMS(5000, 1024), F16, false);
}

static const struct family_case cases[] = {
    {&cuda_gather, embedding, "embedding", "8 elements per access"},
    {&cuda_gather, columns, "columns", "1 element per access"},
    {&cuda_gather, elements, "elements", "1 element per access"},
    {&cuda_gather, gradient, "gradient", "slices, sums in float, in the order of the indices"},
    {&cuda_gather, sorted, "sorted", "slices, sums in double, in the order of the indices, which are searched"},
    {&cuda_gather, element_sums, "element sums", "elements, sums in float, in the order of the indices"},
};

static void only_pointwise(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(4, 8), F32), typed(m, DIMS(4, 8), F32),
                  typed(m, DIMS(4, 8), F32));
}

static const struct refused_case refusals[] = {
    {&cuda_gather, only_pointwise, "pointwise has no indices."},
};

int main(void) {
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
