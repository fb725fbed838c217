/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small matrices. Each element is summed in one order, which the depth alone fixes. */
#include "engines/cpu/product/small.h"

#include <stddef.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "fp-contract=fast") /* strict C11 would keep a * b + c from fusing */
#endif

/* Sums stay in registers for all of the depth, as in gemm.c; elements of A are broadcast, and so may lie anywhere.
   Measured on AVX-512: 12 rows are no faster than 8, strided A no slower than packed. */
#define SMALL_KERNEL(function, attribute, lanes, height, vectors)                                                      \
    attribute static void function(int64_t depth, struct small_factor factor, const float *b, int64_t b_depth,         \
                                   float *c, int64_t ld, bool adds) {                                                  \
        typedef float vector __attribute__((vector_size(lanes * sizeof(float)), may_alias, aligned(sizeof(float))));   \
        vector sum[height][vectors] = {{{0}}};                                                                         \
        const float *a = factor.at;                                                                                    \
        const int64_t row = factor.row, step = factor.depth;                                                           \
        for (; depth > 0; depth--, a += step, b += b_depth) {                                                          \
            vector right[vectors];                                                                                     \
            for (int j = 0; j < vectors; j++)                                                                          \
                right[j] = *(const vector *)(b + j * lanes);                                                           \
            _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) for (int j = 0; j < vectors; j++) sum[i][j] +=   \
                a[i * row] * right[j];                                                                                 \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < height; i++, c += ld) for (int j = 0; j < vectors; j++) {         \
            vector *to = (vector *)(c + j * lanes);                                                                    \
            if (adds)                                                                                                  \
                sum[i][j] += *to;                                                                                      \
            *to = sum[i][j];                                                                                           \
        }                                                                                                              \
    }

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f")))
#define AVX2 __attribute__((target("avx2,fma")))
SMALL_KERNEL(whole_avx512, AVX512, 16, 8, 2)
SMALL_KERNEL(half_avx512, AVX512, 16, 8, 1)
SMALL_KERNEL(whole_avx2, AVX2, 8, 6, 2)
SMALL_KERNEL(half_avx2, AVX2, 8, 6, 1)
#endif
/* 16-byte vectors: SSE2, NEON, or whatever the compiler makes of them */
SMALL_KERNEL(whole_plain, , 4, 6, 2)
SMALL_KERNEL(half_plain, , 4, 6, 1)

static const struct small_kernel kernels[] = {
#if defined(__x86_64__)
    {"avx512 8x32", 8, 32, whole_avx512, half_avx512},
    {"avx2 6x16", 6, 16, whole_avx2, half_avx2},
#endif
    {"plain 6x8", 6, 8, whole_plain, half_plain},
};

/* By the name's beginning, which says what a kernel was compiled for. */
static bool cpu_runs(const struct small_kernel *kernel) {
#if defined(__x86_64__)
    if (strncmp(kernel->name, "avx512", 6) == 0)
        return __builtin_cpu_supports("avx512f");
    if (strncmp(kernel->name, "avx2", 4) == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)kernel;
    return true;
}

/* Rank 1 and above are for tests, which run every kernel that the CPU has. */
const struct small_kernel *small_kernel(int rank) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (cpu_runs(&kernels[i]) && rank-- == 0)
            return &kernels[i];
    return NULL;
}

/* Columns outside: B's stay in the L1 cache while rows of A pass. */
void small_product(const struct small_kernel *kernel, int64_t m, int64_t n, int64_t depth, struct small_factor a,
                   struct small_factor b, float *c, int64_t ld, bool adds) {
    int half = kernel->columns / 2;
    for (int64_t j = 0; j < n; j += kernel->columns) {
        small_multiply *multiply = n - j <= half ? kernel->half : kernel->whole;
        for (int64_t i = 0; i < m; i += kernel->rows)
            multiply(depth, (struct small_factor){a.at + i * a.row, a.row, a.depth}, b.at + j, b.depth, c + i * ld + j,
                     ld, adds);
    }
}
