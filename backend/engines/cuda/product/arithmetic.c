/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the instructions and types of products and sums from the operands' types, the math type and the chip. */
#include "engines/cuda/product/contraction.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"
#include "graph/ops/moe.h"

/* Staged types of A and B, type of the sum, whether tensor cores multiply, bytes of a staged element, elements of k per
   step. */
const struct arithmetic_row arithmetic_rows[] = {
    [MMA_F16] = {"f16", "f16", WEFT_DATA_FLOAT, true, 2, 32},
    [MMA_BF16] = {"bf16", "bf16", WEFT_DATA_FLOAT, true, 2, 32},
    [MMA_INT8] = {NULL, NULL, WEFT_DATA_INT32, true, 1, 64},
    [MMA_TF32] = {"tf32", "tf32", WEFT_DATA_FLOAT, true, 4, 16},
    [FMA_FLOAT] = {"float", "float", WEFT_DATA_FLOAT, false, 4, 16},
    [FMA_DOUBLE] = {"double", "double", WEFT_DATA_DOUBLE, false, 8, 16},
    [FMA_INT32] = {"i32", "i32", WEFT_DATA_INT32, false, 4, 16},
    [FMA_INT64] = {"i64", "i64", WEFT_DATA_INT64, false, 8, 16},
};

/* Types that int8 tensor cores multiply; booleans are 0 and 1. */
static bool is_byte(weftDataType_t type) {
    return type == WEFT_DATA_INT8 || type == WEFT_DATA_UINT8 || dtype_is_boolean(type);
}

/* True if f16 represents all values of the type: e5m2 has the exponent of f16 and fewer bits, e4m3 has fewer of both,
   and bytes are integers below 2^11. */
static bool is_exact_in_half(weftDataType_t type) { return is_byte(type) || dtype_is_fp8(type); }

/* Types that conversion to float would round. */
static bool is_wide(weftDataType_t type) {
    return !is_byte(type) && (dtype_is_integer(type) || type == WEFT_DATA_DOUBLE);
}

weftDataType_t contraction_math(const struct node *node) {
    const struct op *op = op_of(node->op);
    return op == &matmul_op    ? matmul_math((const struct matmul_op *)node->op)
           : op == &moe_op     ? moe_math((const struct moe_op *)node->op)
           : op == &moe_bwd_op ? moe_bwd_math((const struct moe_bwd_op *)node->op)
                               : conv_math((const struct conv_op *)node->op);
}

/* The first match applies, in this order: nonzero padding values, which need elements one by one; bytes; integers;
   types that float would round; halves; bfloat16, which tensor cores of sm_80 and newer support; floats, on tensor
   cores only if they may be narrowed to tf32. Sums are at least float. */
enum arithmetic contraction_arithmetic(const struct contraction *c, const struct device *device) {
    weftDataType_t a = operand_type(c, OPERAND_A), b = operand_type(c, OPERAND_B),
                   math = math_type(contraction_math(c->node));
    bool is_turing = device->cuda.major < 8, is_integer = !dtype_is_float(a) && !dtype_is_float(b);
    bool float_math = math != WEFT_DATA_DOUBLE && dtype_is_float(math);
    if (c->fill != 0)
        return float_math && !is_wide(a) && !is_wide(b) && !is_integer ? FMA_FLOAT : FMA_DOUBLE;
    if (is_byte(a) && is_byte(b)) {
        /* A product of two unsigned bytes can reach 2^16. */
        bool fits = c->k_count < 32768;
        return fits ? is_turing ? FMA_INT32 : MMA_INT8 : FMA_INT64;
    }
    if (is_integer && !float_math && math != WEFT_DATA_DOUBLE)
        return FMA_INT64;
    if (!float_math || is_wide(a) || is_wide(b))
        return FMA_DOUBLE;
    if ((a == WEFT_DATA_HALF || is_exact_in_half(a)) && (b == WEFT_DATA_HALF || is_exact_in_half(b)))
        return MMA_F16;
    if ((a == WEFT_DATA_BFLOAT16 || is_exact_in_half(a)) && (b == WEFT_DATA_BFLOAT16 || is_exact_in_half(b)) &&
        !is_turing)
        return MMA_BF16;
    return c->narrows && !is_turing ? MMA_TF32 : FMA_FLOAT;
}

/* Rates are by compute capability; a device that does not report its clock counts as 1.5 GHz. They are dense
   multiply-adds, two operations each, from the tables of the architectures: server chips have twice the tensor
   throughput per multiprocessor and sixteen times the throughput of doubles. */
double contraction_rate(enum arithmetic arithmetic, const struct device *device) {
    int chip = device->cuda.major * 10 + device->cuda.minor;
    bool is_server = chip == 80 || chip == 90 || chip == 100 || chip == 103;
    double half = is_server ? 2048 : 1024, clock = (double)device->cuda.clock_khz * 1e3;
    double per_clock[] = {[MMA_F16] = half,
                          [MMA_BF16] = half,
                          [MMA_INT8] = 2 * half,
                          [MMA_TF32] = half / 2,
                          [FMA_FLOAT] = chip <= 80 ? 128 : 256,
                          [FMA_DOUBLE] = is_server ? 64 : 4,
                          [FMA_INT32] = 128,
                          [FMA_INT64] = 32};
    return per_clock[arithmetic] * (clock > 0 ? clock : 1.5e9);
}

int64_t contraction_sum_bytes(const struct contraction *c) {
    return dtype_bytes(arithmetic_rows[c->arithmetic].sum, 1);
}
