/* SPDX-License-Identifier: Apache-2.0 */
/* The innermost loops of packed products, one version per instruction set. This file must not know tensors or
   operations. */
#include "base/number.h"
#include "base/vectors.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/dot.h"
#include "engines/cpu/product/gemm.h"
#include "engines/cpu/product/gemm_amx.h"

enum { LINE = 64 }; /* bytes of a cache line */

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast") /* strict C11 does not allow a * b + c to be fused */
#endif

/* Sums stay in registers for the whole depth of a panel: 2 * height vectors of sums, two of B, one broadcast of A. This
   is a macro, because GCC splits vectors according to the enclosing function's target before it inlines, so only an
   expansion can serve several targets. width: width of A's panel, whose first `height` rows are multiplied; factor: a
   group, as large as a sum; stored: type of B in memory; ADD, LOAD: see dot.h. b_step: row pitch of B in elements.
   fetches: prefetches the next columns of each row, because the hardware detects no stream in distant rows; it
   prefetches the end of each line, because rows are not aligned. Measured on a Xeon: 14 x 32, 8 x 48 and prefetching A
   are no faster; from L2 this reaches 94 % of the pure FMA rate. */
#define GEMM_LOOP(function, attribute, real, lanes, width, height, factor, ADD, has_start, stored, LOAD)               \
    attribute static inline __attribute__((always_inline)) void function(                                              \
        int64_t groups, const void *a_panel, const void *b_rows, int64_t b_step, bool fetches, void *c_block,          \
        int64_t ld, bool first) {                                                                                      \
        typedef real vector __attribute__((vector_size(lanes * sizeof(real)), may_alias));                             \
        typedef factor factors                                                                                         \
            __attribute__((vector_size(lanes * sizeof(factor)), may_alias, aligned(sizeof(factor))));                  \
        const factor *a = a_panel;                                                                                     \
        const stored *b = b_rows;                                                                                      \
        real *c = c_block;                                                                                             \
        /* C in user memory may be misaligned. */                                                                      \
        typedef vector unaligned __attribute__((aligned(sizeof(real))));                                               \
        vector sum[height][2] = {{{0}}};                                                                               \
        if (has_start) {                                                                                               \
            _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) for (int j = 0; j < 2; j++) sum[i][j] =          \
                *(const vector *)(b + j * lanes);                                                                      \
            b += b_step;                                                                                               \
        }                                                                                                              \
        for (; groups > 0; groups--, a += width, b += b_step) {                                                        \
            factors left = LOAD(b), right = LOAD(b + lanes);                                                           \
            for (size_t line = LINE - 1; fetches && line < LINE + 2 * lanes * sizeof *b - 1; line += LINE)             \
                __builtin_prefetch((const char *)(b + 2 * lanes) + line, 0, 2);                                        \
            _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) {                                                \
                sum[i][0] = ADD(sum[i][0], a[i], left);                                                                \
                sum[i][1] = ADD(sum[i][1], a[i], right);                                                               \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < height; i++, c += ld) {                                           \
            unaligned *left = (unaligned *)c, *right = (unaligned *)(c + lanes);                                       \
            if (first)                                                                                                 \
                *left = *right = (vector){0};                                                                          \
            *left += sum[i][0];                                                                                        \
            *right += sum[i][1];                                                                                       \
        }                                                                                                              \
    }

/* Expands the loops for all rows of a panel, and for its first few. */
#define GEMM_LOOPS(name, attribute, real, lanes, width, few, factor, ADD, has_start, stored, LOAD)                     \
    GEMM_LOOP(loop_##name, attribute, real, lanes, width, width, factor, ADD, has_start, stored, LOAD)                 \
    GEMM_LOOP(loop_few_##name, attribute, real, lanes, width, few, factor, ADD, has_start, stored, LOAD)

/* Expands the loop with B in panels. */
#define GEMM_PACKED(function, loop, attribute, lanes)                                                                  \
    attribute static void function(int64_t groups, const void *a, const void *b, void *c, int64_t ld, bool first) {    \
        loop(groups, a, b, 2 * lanes, false, c, ld, first);                                                            \
    }
#define GEMM_KERNELS(name, attribute, real, lanes, width, few, factor, ADD, has_start)                                 \
    GEMM_LOOPS(name, attribute, real, lanes, width, few, factor, ADD, has_start, factor, LOAD_FACTORS)                 \
    GEMM_PACKED(multiply_##name, loop_##name, attribute, lanes)                                                        \
    GEMM_PACKED(multiply_few_##name, loop_few_##name, attribute, lanes)

/* Expands the loop with B in place. */
#define GEMM_IN_PLACE(name, attribute)                                                                                 \
    attribute static void loose_##name(int64_t depth, const void *a, const void *b, int64_t b_step, void *c,           \
                                       int64_t ld, bool first) {                                                       \
        loop_##name(depth, a, b, b_step, true, c, ld, first);                                                          \
    }                                                                                                                  \
    attribute static void loose_few_##name(int64_t depth, const void *a, const void *b, int64_t b_step, void *c,       \
                                           int64_t ld, bool first) {                                                   \
        loop_few_##name(depth, a, b, b_step, true, c, ld, first);                                                      \
    }

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f")))
#define AVX512_PAIRS __attribute__((target("avx512f,avx512bf16")))
#define AVX512_BYTES __attribute__((target("avx512f,avx512vnni")))
#define AVX2 __attribute__((target("avx2,fma,f16c")))
GEMM_KERNELS(avx512_f32, AVX512, float, 16, 12, 4, float, ADD_PRODUCT, false)
GEMM_KERNELS(avx512_f64, AVX512, double, 8, 12, 4, double, ADD_PRODUCT, false)
#if HAS_AVX512_BF16
GEMM_KERNELS(avx512_bf16, AVX512_PAIRS, float, 16, 12, 4, uint32_t, ADD_PAIRS_AVX512, false)
#endif
GEMM_KERNELS(avx512_i8, AVX512_BYTES, uint32_t, 16, 12, 4, uint32_t, ADD_BYTES_AVX512, true)
GEMM_KERNELS(avx2_f32, AVX2, float, 8, 6, 2, float, ADD_PRODUCT, false)
GEMM_KERNELS(avx2_f64, AVX2, double, 4, 6, 2, double, ADD_PRODUCT, false)
GEMM_IN_PLACE(avx512_f32, AVX512)
GEMM_IN_PLACE(avx2_f32, AVX2)
GEMM_LOOPS(avx512_f16, AVX512, float, 16, 12, 4, float, ADD_PRODUCT, false, uint16_t, LOAD_HALVES_AVX512)
GEMM_LOOPS(avx2_f16, AVX2, float, 8, 6, 2, float, ADD_PRODUCT, false, uint16_t, LOAD_HALVES_AVX2)
GEMM_IN_PLACE(avx512_f16, AVX512)
GEMM_IN_PLACE(avx2_f16, AVX2)
#endif
/* 16-byte vectors: SSE2, NEON, or whatever the compiler lowers them to */
GEMM_KERNELS(plain_f32, , float, 4, 6, 2, float, ADD_PRODUCT, false)
GEMM_KERNELS(plain_f64, , double, 2, 6, 2, double, ADD_PRODUCT, false)
GEMM_IN_PLACE(plain_f32, )

#if defined(__x86_64__)
/* The CPU multiplies unsigned by signed bytes, so 128 is added to the bytes of A, and sums start from B's own sums
   times -128. */
AVX512_BYTES static void start_avx512_i8(int64_t groups, void *b_panel) {
    enum { LANES = 16 };
    typedef uint32_t vector __attribute__((vector_size(LANES * 4), may_alias));
    vector *b = b_panel, excess[2] = {{0}};
    for (int64_t g = 1; g <= groups; g++)
        for (int j = 0; j < 2; j++)
            excess[j] = ADD_BYTES_AVX512(excess[j], 0x80808080, b[2 * g + j]);
    for (int j = 0; j < 2; j++)
        b[j] = 0 - excess[j];
}
#endif

#define MULTIPLY(name) .multiply = multiply_##name, .multiply_few = multiply_few_##name
#define LOOSE(name) {loose_##name, loose_few_##name}
#define TILES(name)                                                                                                    \
    .multiply = amx_multiply_##name, .multiply_few = amx_multiply_few_##name, .begin = amx_begin, .end = amx_end

static const struct gemm_kernel kernels[] = {
#if HAS_AMX
    {"amx-int8 32x32", WEFT_DATA_INT8, WEFT_DATA_INT32, 64, 4, 32, 32, 16, 32, TILES(i8)},
    {"amx-bf16 32x32", WEFT_DATA_BFLOAT16, WEFT_DATA_FLOAT, 32, 2, 16, 32, 16, 32, TILES(bf16)},
#endif
#if defined(__x86_64__)
    {"avx512vnni 12x32", WEFT_DATA_INT8, WEFT_DATA_INT32, 4, 4, 4, 12, 4, 32, MULTIPLY(avx512_i8),
     .start = start_avx512_i8},
#if HAS_AVX512_BF16
    {"avx512bf16 12x32", WEFT_DATA_BFLOAT16, WEFT_DATA_FLOAT, 2, 2, 1, 12, 4, 32, MULTIPLY(avx512_bf16)},
#endif
    {"avx512 12x32", WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, 1, 1, 1, 12, 4, 32, MULTIPLY(avx512_f32),
     .in_place = LOOSE(avx512_f32), .in_place_halves = LOOSE(avx512_f16)},
    {"avx512 12x16", WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE, 1, 1, 1, 12, 4, 16, MULTIPLY(avx512_f64)},
    {"avx2 6x16", WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, 1, 1, 1, 6, 2, 16, MULTIPLY(avx2_f32), .in_place = LOOSE(avx2_f32),
     .in_place_halves = LOOSE(avx2_f16)},
    {"avx2 6x8", WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE, 1, 1, 1, 6, 2, 8, MULTIPLY(avx2_f64)},
#endif
    {"plain 6x8", WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, 1, 1, 1, 6, 2, 8, MULTIPLY(plain_f32),
     .in_place = LOOSE(plain_f32)},
    {"plain 6x4", WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE, 1, 1, 1, 6, 2, 4, MULTIPLY(plain_f64)},
};

/* Rank 1 and above are for tests, which run every kernel that the CPU supports. */
const struct gemm_kernel *gemm_kernel(weftDataType_t factors, int rank) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].factors == factors && cpu_runs(kernels[i].name) && rank-- == 0)
            return &kernels[i];
    return NULL;
}
