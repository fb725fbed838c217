/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA map family without a GPU: how it iterates, the cases that it declines and the exact messages, and that every
   generated kernel compiles for all generations of chips without spills. */
#include "cuda_family.h"

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static void relu(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_RELU_FWD, typed(m, DIMS(1 << 20, 64), F32), NULL, typed(m, DIMS(1 << 20, 64), F32));
}

/* y = gelu(x + bias) * residual, in bf16. */
static void biased_gelu(struct model *m) {
    desc sum = inner(m), active = inner(m), rows = typed(m, DIMS(16384, 4096), BF16);
    add_pointwise(m, WEFT_POINTWISE_ADD, rows, typed(m, DIMS(1, 4096), BF16), sum);
    add_pointwise(m, WEFT_POINTWISE_GELU_FWD, sum, NULL, active);
    add_pointwise(m, WEFT_POINTWISE_MUL, active, typed(m, DIMS(16384, 4096), BF16), typed(m, DIMS(16384, 4096), BF16));
}

/* Two results of one kernel; the first is also an operand of the second. */
static void two_results(struct model *m) {
    desc x = typed(m, DIMS(512, 1000), F16), sum = typed(m, DIMS(512, 1000), F32);
    add_pointwise(m, WEFT_POINTWISE_ADD, x, typed(m, DIMS(512, 1), F32), sum);
    add_pointwise(m, WEFT_POINTWISE_EXP, sum, NULL, typed(m, DIMS(512, 1000), F16));
}

static void quantise(struct model *m) {
    desc scaled = inner(m);
    add_pointwise(m, WEFT_POINTWISE_MUL, typed(m, DIMS(4096, 4096), BF16), number(m, 0.25f), scaled);
    add_pointwise(m, WEFT_POINTWISE_IDENTITY, scaled, NULL, typed(m, DIMS(4096, 4096), E4M3));
}

static void across(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_ADD, typed(m, DIMS(32, 256, 56, 56), F16),
                  channels_last(m, DIMS(32, 256, 56, 56), F16), channels_last(m, DIMS(32, 256, 56, 56), F16));
}

static void odd_and_unaligned(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_TANH_FWD, strided(m, DIMS(333, 77), DIMS(79, 1), BF16, 2), NULL,
                  strided(m, DIMS(333, 77), UNSET, BF16, 2));
}

static void in_double(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_DIV, typed(m, DIMS(1000, 33), F64), typed(m, DIMS(1000, 1), F64),
                  typed(m, DIMS(1000, 33), F64));
}

static void integers(struct model *m) {
    add_pointwise(m, WEFT_POINTWISE_MAX, typed(m, DIMS(64, 64), I8), typed(m, DIMS(64, 64), I8),
                  typed(m, DIMS(64, 64), I8));
}

/* A comparison, stored as bits, and a selection by it. */
static void compare_and_choose(struct model *m) {
    desc x = typed(m, DIMS(64, 256), F32), b = typed(m, DIMS(64, 256), F32);
    desc bits = typed(m, DIMS(64, 256), WEFT_DATA_BOOLEAN), op;
    add_pointwise(m, WEFT_POINTWISE_CMP_LT, x, b, bits);
    op = open_pointwise(WEFT_POINTWISE_BINARY_SELECT, x, b, typed(m, DIMS(64, 256), F32));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_TDESC, bits));
    add(m, op);
}

static void gelu_backward(struct model *m) {
    desc op = make(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR), parameters = make(WEFT_BACKEND_POINTWISE_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, WEFT_POINTWISE_GELU_BWD));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finalized(parameters)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_DYDESC, typed(m, DIMS(8192, 4096), F16)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, typed(m, DIMS(8192, 4096), F16)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_DXDESC, typed(m, DIMS(8192, 4096), F16)));
    drop(parameters);
    add(m, op);
}

static void positions(struct model *m) {
    desc parameters = make(WEFT_BACKEND_POINTWISE_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, WEFT_POINTWISE_GEN_INDEX));
    MUST(set_number(parameters, WEFT_ATTR_POINTWISE_AXIS, 1));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finalized(parameters)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, typed(m, DIMS(16, 100), F32)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_YDESC, typed(m, DIMS(16, 100), I32)));
    drop(parameters);
    add(m, op);
}

static void eight_dims(struct model *m) {
    struct extents dims = DIMS(2, 3, 4, 5, 2, 3, 4, 6), line = DIMS(2, 1, 4, 1, 2, 1, 4, 1);
    add_pointwise(m, WEFT_POINTWISE_POW, typed(m, dims, F32), typed(m, line, BF16), typed(m, dims, F32));
}

static void turn(struct model *m, int64_t rows, int64_t columns, int type) {
    desc op = make(WEFT_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR);
    const int64_t order[] = {0, 2, 1};
    MUST(set_held(op, WEFT_ATTR_OPERATION_TRANSPOSE_XDESC, typed(m, DIMS(8, rows, columns), type)));
    MUST(set_held(op, WEFT_ATTR_OPERATION_TRANSPOSE_YDESC, typed(m, DIMS(8, columns, rows), type)));
    MUST(set_numbers(op, WEFT_ATTR_OPERATION_TRANSPOSE_PERMUTATION, 3, order));
    add(m, op);
}

static void turn_odd(struct model *m) { turn(m, 8191, 8193, BF16); }
static void turn_odd_bytes(struct model *m) { turn(m, 1023, 1025, I8); }
static void turn_short_rows(struct model *m) { turn(m, 2048, 49, BF16); }
static void turn_to_short_rows(struct model *m) { turn(m, 3, 50176, F32); }
static void turn_even(struct model *m) { turn(m, 1024, 1024, I8); }

static const struct family_case cases[] = {
    {&cuda_map, relu, "relu f32", NULL},
    {&cuda_map, biased_gelu, "gelu(x + bias) * residual", NULL},
    {&cuda_map, two_results, "two results", NULL},
    {&cuda_map, quantise, "quantise to fp8", NULL},
    {&cuda_map, across, "NCHW + NHWC", NULL},
    {&cuda_map, odd_and_unaligned, "odd rows, unaligned", NULL},
    {&cuda_map, in_double, "division in double", NULL},
    {&cuda_map, integers, "maximum of int8", NULL},
    {&cuda_map, compare_and_choose, "compare and choose", NULL},
    {&cuda_map, gelu_backward, "gelu backward", NULL},
    {&cuda_map, positions, "positions", NULL},
    {&cuda_map, eight_dims, "eight dims", NULL},
    {&cuda_map, turn_odd, "transpose of odd rows", "transposes"},
    {&cuda_map, turn_odd_bytes, "transpose of odd rows of bytes", "transposes"},
    {&cuda_map, turn_short_rows, "transpose of short rows", "transposes"},
    {&cuda_map, turn_to_short_rows, "transpose to short rows", "transposes"},
    {&cuda_map, turn_even, "transpose of bytes", "1 operation, tiles"},
};

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void a_product(struct model *m) {
    add(m, open_matmul(typed(m, DIMS(4, 8), F32), typed(m, DIMS(8, 4), F32), typed(m, DIMS(4, 4), F32)));
}

static const struct refused_case refusals[] = {
    {&cuda_map, a_product, "matmul is neither pointwise nor data movement"},
};

/* Values are numbered in the order in which a program uses them; a name that only contains the name of a value stays
   unchanged. */
static void test_names_of_values(void) {
    static const struct region nothing;
    struct kernel_source source;
    struct cuda_kernel kernel = {0};
    struct arena arena = {0};
    kernel_source_init(&source, &nothing);
    text_add(&source.code, "v70 = r.v5 + v70(v700, v7x, _v7, 3v7, prev7, v, v_7) - v5;v0");
    MUST(kernel_finish(&source, &kernel, "map/map.cuh", "map", &arena));
    CHECK(strstr(kernel.program, "v0 = r.v1 + v0(v2, v7x, _v7, 3v7, prev7, v, v_7) - v1;v3\n"), "%s", kernel.program);
    arena_free(&arena);
}

int main(void) {
    RUN(test_names_of_values());
    RUN(build_cases(cases, COUNT(cases), 0));
    RUN(check_refusals(refusals, COUNT(refusals)));
    return compile_wanted();
}
