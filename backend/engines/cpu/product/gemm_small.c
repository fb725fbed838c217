/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small matrices. The order in which an element is summed depends only on the depth. */
#include "engines/cpu/product/gemm_small.h"

#include "base/vectors.h"
#include "engines/cpu/core/fastmath.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/dot.h"

#include <stddef.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast") /* strict C11 does not allow a * b + c to be fused */
#endif

/* Sums stay in registers for the whole depth, like in gemm_kernel.c. Elements of A are broadcast, so they may have any
   strides. Measured on AVX-512: 12 rows are no faster than 8, and strided A is no slower than packed A. */
#define SMALL_KERNEL(function, attribute, lanes, height, vectors)                                                      \
    attribute static void function(int64_t m, int64_t depth, struct small_factor factor, const float *b,               \
                                   int64_t b_depth, float *c, int64_t ld, bool adds) {                                 \
        typedef float vector __attribute__((vector_size(lanes * sizeof(float)), may_alias, aligned(sizeof(float))));   \
        const int64_t row = factor.row, step = factor.depth;                                                           \
        for (; m > 0; m -= height, factor.at += height * row) {                                                        \
            vector sum[height][vectors] = {{{0}}};                                                                     \
            const float *a = factor.at, *right = b;                                                                    \
            for (int64_t d = 0; d < depth; d++, a += step, right += b_depth) {                                         \
                vector line[vectors];                                                                                  \
                for (int j = 0; j < vectors; j++)                                                                      \
                    line[j] = *(const vector *)(right + j * lanes);                                                    \
                _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) for (int j = 0; j < vectors; j++)            \
                    sum[i][j] += a[i * row] * line[j];                                                                 \
            }                                                                                                          \
            _Pragma("GCC unroll 16") for (int i = 0; i < height; i++, c += ld) for (int j = 0; j < vectors; j++) {     \
                vector *to = (vector *)(c + j * lanes);                                                                \
                if (adds)                                                                                              \
                    sum[i][j] += *to;                                                                                  \
                *to = sum[i][j];                                                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }

/* ---- A few vectors ---- */

enum { AHEAD = 16, LINE = 64 }; /* rows to prefetch: strides defeat the hardware prefetcher */

typedef float four __attribute__((vector_size(16), may_alias, aligned(4)));
typedef float f32 __attribute__((may_alias, aligned(1)));
typedef uint16_t bf16 __attribute__((may_alias, aligned(1)));
typedef uint16_t f16 __attribute__((may_alias, aligned(1)));

static inline __attribute__((always_inline)) void fetch_row(const void *row, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += LINE)
        __builtin_prefetch((const char *)row + b, 0, 2);
}

/* Numbers of a matrix as floats, and vectors of them: bf16 is the upper half of a float. */
#define FLOAT_OF_f32(number) (number)
#define FLOAT_OF_bf16(number) fast_of_bits((uint32_t)(number) << 16)
#define FLOAT_OF_f16(number) LOAD_HALF(number)
#define VECTOR_OF_f32(lanes, numbers) (*(const vector *)(numbers))
#define VECTOR_OF_bf16(lanes, numbers) ((vector)(CONVERT(*(const halves *)(numbers), words) << 16))
#define VECTOR_OF_f16(lanes, numbers) HALVES_##lanes(numbers)
#define HALVES_16 LOAD_HALVES_AVX512
#define HALVES_8 LOAD_HALVES_AVX2
#define VECTOR_TYPES(lanes)                                                                                            \
    typedef float vector __attribute__((vector_size(lanes * sizeof(float)), may_alias, aligned(1)));                   \
    typedef vector factors __attribute__((unused));                                                                    \
    typedef uint32_t words __attribute__((vector_size(lanes * sizeof(float)), unused));                                \
    typedef uint16_t halves __attribute__((vector_size(lanes * sizeof(bf16)), may_alias, aligned(1), unused));

/* Sums the lanes of four rows at a time, which gives one vector of four numbers. */
static inline __attribute__((always_inline)) four sum_lanes(four a, four b, four c, four d) {
    four ab = SHUFFLE(a, b, 0, 4, 1, 5) + SHUFFLE(a, b, 2, 6, 3, 7);
    four cd = SHUFFLE(c, d, 0, 4, 1, 5) + SHUFFLE(c, d, 2, 6, 3, 7);
    return SHUFFLE(ab, cd, 0, 1, 4, 5) + SHUFFLE(ab, cd, 2, 3, 6, 7);
}

/* `height` vectors and four rows: each load of either is multiplied by all of the other. Prefetches rows `ahead`
   elements further on, line by line, unless this was done for earlier vectors. */
#define DOTS_BLOCK(function, attribute, lanes, height, element)                                                        \
    attribute static inline __attribute__((always_inline)) void function(const element *const *rows, int64_t ahead,    \
                                                                         int64_t depth, const float *x, int64_t x_ld,  \
                                                                         float *products, int64_t ld, bool fetches) {  \
        VECTOR_TYPES(lanes)                                                                                            \
        const int64_t full_depth = depth - depth % lanes, line = LINE / (int64_t)sizeof(element);                      \
        vector sums[height][4] = {{{0}}};                                                                              \
        for (int64_t d = 0; d < full_depth; d += lanes) {                                                              \
            vector row[4];                                                                                             \
            for (int i = 0; fetches && i < 4 && d % line == 0; i++)                                                    \
                __builtin_prefetch((const void *)(rows[i] + ahead + d), 0, 2);                                         \
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) row[i] = VECTOR_OF_##element(lanes, rows[i] + d);      \
            _Pragma("GCC unroll 4") for (int c = 0; c < height; c++) {                                                 \
                vector left = *(const vector *)(x + c * x_ld + d);                                                     \
                _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) sums[c][i] += left * row[i];                       \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 4") for (int c = 0; c < height; c++) {                                                     \
            four parts[4];                                                                                             \
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {                                                      \
                parts[i] = ((const four *)&sums[c][i])[0];                                                             \
                for (size_t j = 1; j < lanes / 4; j++)                                                                 \
                    parts[i] += ((const four *)&sums[c][i])[j];                                                        \
            }                                                                                                          \
            four products_of_rows = sum_lanes(parts[0], parts[1], parts[2], parts[3]);                                 \
            for (int64_t d = full_depth; d < depth; d++)                                                               \
                for (int i = 0; i < 4; i++)                                                                            \
                    products_of_rows[i] += x[c * x_ld + d] * FLOAT_OF_##element(rows[i][d]);                           \
            *(four *)(products + c * ld) = products_of_rows;                                                           \
        }                                                                                                              \
    }

/* `matrix` has four rows; if fewer are left, the last one is repeated. */
#define SMALL_DOTS(function, attribute, lanes, height, element)                                                        \
    DOTS_BLOCK(block_##function, attribute, lanes, height, element)                                                    \
    DOTS_BLOCK(line_##function, attribute, lanes, 1, element)                                                          \
    attribute static void function(const struct small_skinny *few, const float *vectors, int64_t vector_ld,            \
                                   float *products, int64_t product_ld) {                                              \
        const element *matrix = few->matrix;                                                                           \
        for (int64_t row = 0; row < few->rows; row += 4, products += 4) {                                              \
            const element *rows[4];                                                                                    \
            for (int i = 0; i < 4; i++)                                                                                \
                rows[i] = matrix + (row + i < few->rows ? row + i : few->rows - 1) * few->ld;                          \
            int c = 0;                                                                                                 \
            for (; c + height <= few->count; c += height)                                                              \
                block_##function(rows, AHEAD * few->ld, few->depth, vectors + c * vector_ld, vector_ld,                \
                                 products + c * product_ld, product_ld, c == 0);                                       \
            for (; c < few->count; c++)                                                                                \
                line_##function(rows, AHEAD * few->ld, few->depth, vectors + c * vector_ld, vector_ld,                 \
                                products + c * product_ld, product_ld, c == 0);                                        \
        }                                                                                                              \
    }

/* Sums of four vectors stay in registers for all rows; the remaining depth is processed one by one. */
#define SMALL_COMBINE(function, attribute, lanes, element)                                                             \
    attribute static void function(const struct small_skinny *few, const float *weights, int64_t weight_ld,            \
                                   float *sums, int64_t sum_ld) {                                                      \
        VECTOR_TYPES(lanes)                                                                                            \
        const int64_t full_depth = few->depth - few->depth % (4 * lanes);                                              \
        const element *matrix = few->matrix;                                                                           \
        for (int c = 0; c < few->count; c++) {                                                                         \
            float *to = sums + c * sum_ld;                                                                             \
            for (int64_t d = 0; d < full_depth; d += 4 * lanes) {                                                      \
                vector sum[4];                                                                                         \
                const element *x = matrix + d;                                                                         \
                for (int i = 0; i < 4; i++)                                                                            \
                    sum[i] = *(vector *)(to + d + i * lanes);                                                          \
                for (int64_t row = 0; row < few->rows; row++, x += few->ld) {                                          \
                    float weight = weights[c * weight_ld + row];                                                       \
                    if (c == 0)                                                                                        \
                        fetch_row(x + AHEAD * few->ld, 4 * lanes * (int64_t)sizeof(element));                          \
                    if (weight == 0)                                                                                   \
                        continue;                                                                                      \
                    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) sum[i] +=                                      \
                        weight * VECTOR_OF_##element(lanes, x + i * lanes);                                            \
                }                                                                                                      \
                for (int i = 0; i < 4; i++)                                                                            \
                    *(vector *)(to + d + i * lanes) = sum[i];                                                          \
            }                                                                                                          \
            for (int64_t row = 0; row < few->rows && full_depth < few->depth; row++) {                                 \
                float weight = weights[c * weight_ld + row];                                                           \
                for (int64_t d = full_depth; d < few->depth && weight != 0; d++)                                       \
                    to[d] += weight * FLOAT_OF_##element(matrix[row * few->ld + d]);                                   \
            }                                                                                                          \
        }                                                                                                              \
    }

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f,f16c")))
#define AVX2 __attribute__((target("avx2,fma,f16c")))
SMALL_KERNEL(whole_avx512, AVX512, 16, 8, 2)
SMALL_KERNEL(half_avx512, AVX512, 16, 8, 1)
SMALL_DOTS(dots_avx512_f32, AVX512, 16, 4, f32)
SMALL_COMBINE(combine_avx512_f32, AVX512, 16, f32)
SMALL_DOTS(dots_avx512_bf16, AVX512, 16, 4, bf16)
SMALL_COMBINE(combine_avx512_bf16, AVX512, 16, bf16)
SMALL_DOTS(dots_avx512_f16, AVX512, 16, 4, f16)
SMALL_KERNEL(whole_avx2, AVX2, 8, 6, 2)
SMALL_KERNEL(half_avx2, AVX2, 8, 6, 1)
SMALL_DOTS(dots_avx2_f32, AVX2, 8, 2, f32)
SMALL_COMBINE(combine_avx2_f32, AVX2, 8, f32)
SMALL_DOTS(dots_avx2_bf16, AVX2, 8, 2, bf16)
SMALL_COMBINE(combine_avx2_bf16, AVX2, 8, bf16)
SMALL_DOTS(dots_avx2_f16, AVX2, 8, 2, f16)
#endif
/* 16-byte vectors: SSE2, NEON, or whatever the compiler lowers them to */
SMALL_KERNEL(whole_plain, , 4, 6, 2)
SMALL_KERNEL(half_plain, , 4, 6, 1)
SMALL_DOTS(dots_plain_f32, , 4, 2, f32)
SMALL_COMBINE(combine_plain_f32, , 4, f32)
SMALL_DOTS(dots_plain_bf16, , 4, 2, bf16)
SMALL_COMBINE(combine_plain_bf16, , 4, bf16)

#define DOTS(name) .dots = {dots_##name##_f32, dots_##name##_bf16}
#define DOTS_OF_ALL(name) .dots = {dots_##name##_f32, dots_##name##_bf16, dots_##name##_f16}
#define COMBINE(name) .combine = {combine_##name##_f32, combine_##name##_bf16}

static const struct small_kernel kernels[] = {
#if defined(__x86_64__)
    {"avx512 8x32", 8, 32, whole_avx512, half_avx512, DOTS_OF_ALL(avx512), COMBINE(avx512)},
    {"avx2 6x16", 6, 16, whole_avx2, half_avx2, DOTS_OF_ALL(avx2), COMBINE(avx2)},
#endif
    {"plain 6x8", 6, 8, whole_plain, half_plain, DOTS(plain), COMBINE(plain)},
};

/* Rank 1 and above are for tests, which run every kernel that the CPU supports. */
const struct small_kernel *small_kernel(int rank) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (cpu_runs(kernels[i].name) && rank-- == 0)
            return &kernels[i];
    return NULL;
}

/* Columns are the outer loop: those of B stay in the L1 cache for all rows of A. */
void small_product(const struct small_kernel *kernel, int64_t m, int64_t n, int64_t depth, struct small_factor a,
                   struct small_factor b, float *c, int64_t ld, bool adds) {
    int half = kernel->columns / 2;
    for (int64_t j = 0; j < n; j += kernel->columns) {
        small_multiply *multiply = n - j <= half ? kernel->half : kernel->full;
        multiply(m, depth, a, b.at + j, b.depth, c + j, ld, adds);
    }
}
