/* SPDX-License-Identifier: Apache-2.0 */
/* Products of rows that are read through pointers. The order of summation depends only on segments and depth. */
#include "engines/cpu/product/direct_kernel.h"

#include "engines/cpu/core/vector.h"

#include <stddef.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast") /* strict C11 does not allow a * b + c to be fused */
#endif

/* Sums and pointers stay in registers for all segments. A row of B is `row_of_b`, from `b` of type `source`, and the
   next one is `b_step` elements further on. Measured on AVX-512 with 3 x 3 taps, relative to a loop of only fused
   multiply-adds: 6 rows x 4 vectors 0.90 to 0.95, 8 x 3 0.90, 8 x 2 0.82 to 0.86, because each broadcast element is
   used once per vector. */
#define DIRECT_KERNEL(function, attribute, lanes, height, vectors, source, row_of_b, b_step)                           \
    attribute static void function(int64_t segments, int64_t depth, const float *const *rows, int64_t rows_ld,         \
                                   int64_t step, source b, float *c, int64_t ld, bool adds) {                          \
        typedef float vector __attribute__((vector_size(lanes * sizeof(float)), may_alias, aligned(sizeof(float))));   \
        vector sum[height][vectors] = {{{0}}};                                                                         \
        for (; segments > 0; segments--, rows += rows_ld) {                                                            \
            const float *a[height];                                                                                    \
            _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) a[i] = rows[i];                                  \
            for (int64_t d = depth, at = 0; d > 0; d--, at += step, b += b_step) {                                     \
                vector right[vectors];                                                                                 \
                _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) right[j] =                                  \
                    *(const vector *)((row_of_b) + j * lanes);                                                         \
                _Pragma("GCC unroll 16") for (int i = 0; i < height; i++)                                              \
                    _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) sum[i][j] += a[i][at] * right[j];       \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < height; i++, c += ld)                                             \
            _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) {                                               \
            vector *to = (vector *)(c + j * lanes);                                                                    \
            if (adds)                                                                                                  \
                sum[i][j] += *to;                                                                                      \
            *to = sum[i][j];                                                                                           \
        }                                                                                                              \
    }

/* Some vectors of channels, starting at channel `at`. */
#define FILTER_VECTORS(lanes, height, vectors)                                                                         \
    {                                                                                                                  \
        vector sum[height][vectors] = {{{0}}};                                                                         \
        for (int64_t t = 0; t < taps; t++) {                                                                           \
            const float *const *x = pointers + t * pointers_ld, *w = weights + t * channels + at;                      \
            _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) {                                               \
                vector weight = *(const vector *)(w + j * lanes);                                                      \
                _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) sum[i][j] +=                                 \
                    weight * *(const vector *)(x[i] + at + j * lanes);                                                 \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < height; i++)                                                      \
                _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) *                                           \
            (vector *)(c + i * ld + at + j * lanes) = sum[i][j];                                                       \
    }

#define SUM_VECTORS(lanes, vectors)                                                                                    \
    {                                                                                                                  \
        vector sum[DIRECT_TAPS][vectors] = {{{0}}};                                                                    \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) {                                               \
                vector gradient = *(const vector *)(dy + i * dy_ld + at + j * lanes);                                  \
                _Pragma("GCC unroll 16") for (int t = 0; t < DIRECT_TAPS; t++) sum[t][j] +=                            \
                    gradient * *(const vector *)(pointers[t * pointers_ld + i] + at + j * lanes);                      \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int t = 0; t < DIRECT_TAPS; t++)                                                 \
                _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) *                                           \
            (vector *)(c + t * channels + at + j * lanes) = sum[t][j];                                                 \
    }

/* Processes vectors of channels, four or two at a time as long as possible. The last one starts earlier, so that it
   ends with the channels. If there are fewer channels than lanes, they are processed one by one. */
#define CHANNEL_KERNELS(name, attribute, lanes, height)                                                                \
    attribute static void name##_filter_channels(int64_t taps, const float *const *pointers, int64_t pointers_ld,      \
                                                 const float *weights, float *c, int64_t ld, int64_t channels) {       \
        typedef float vector __attribute__((vector_size(lanes * sizeof(float)), may_alias, aligned(sizeof(float))));   \
        int64_t at = 0;                                                                                                \
        for (; at + 4 * lanes <= channels; at += 4 * lanes)                                                            \
            FILTER_VECTORS(lanes, height, 4)                                                                           \
        for (; at + 2 * lanes <= channels; at += 2 * lanes)                                                            \
            FILTER_VECTORS(lanes, height, 2)                                                                           \
        for (; at < channels && channels >= lanes; at += lanes) {                                                      \
            at = at + lanes > channels ? channels - lanes : at;                                                        \
            FILTER_VECTORS(lanes, height, 1)                                                                           \
        }                                                                                                              \
        for (; at < channels; at++)                                                                                    \
            for (int i = 0; i < height; i++) {                                                                         \
                float sum = 0;                                                                                         \
                for (int64_t t = 0; t < taps; t++)                                                                     \
                    sum += weights[t * channels + at] * pointers[t * pointers_ld + i][at];                             \
                c[i * ld + at] = sum;                                                                                  \
            }                                                                                                          \
    }                                                                                                                  \
    attribute static void name##_sum_channels(int64_t rows, const float *const *pointers, int64_t pointers_ld,         \
                                              const float *dy, int64_t dy_ld, float *c, int64_t channels) {            \
        typedef float vector __attribute__((vector_size(lanes * sizeof(float)), may_alias, aligned(sizeof(float))));   \
        int64_t at = 0;                                                                                                \
        for (; at + 4 * lanes <= channels; at += 4 * lanes)                                                            \
            SUM_VECTORS(lanes, 4)                                                                                      \
        for (; at + 2 * lanes <= channels; at += 2 * lanes)                                                            \
            SUM_VECTORS(lanes, 2)                                                                                      \
        for (; at < channels && channels >= lanes; at += lanes) {                                                      \
            at = at + lanes > channels ? channels - lanes : at;                                                        \
            SUM_VECTORS(lanes, 1)                                                                                      \
        }                                                                                                              \
        for (; at < channels; at++)                                                                                    \
            for (int t = 0; t < DIRECT_TAPS; t++) {                                                                    \
                float sum = 0;                                                                                         \
                for (int64_t i = 0; i < rows; i++)                                                                     \
                    sum += dy[i * dy_ld + at] * pointers[t * pointers_ld + i][at];                                     \
                c[t * channels + at] = sum;                                                                            \
            }                                                                                                          \
    }

/* Vectors run along lines; their lanes are added in order at the end. */
#define PLANE_KERNEL(function, attribute, lanes)                                                                       \
    attribute static void function(int64_t lines, int64_t width, const float *const *pointers, int64_t pointers_ld,    \
                                   const float *dy, float *c) {                                                        \
        typedef float vector __attribute__((vector_size(lanes * sizeof(float)), may_alias, aligned(sizeof(float))));   \
        vector sum[DIRECT_PLANE_TAPS] = {{0}};                                                                         \
        for (int64_t i = 0; i < lines; i++, dy += width)                                                               \
            for (int64_t j = 0; j < width; j += lanes) {                                                               \
                vector gradient = *(const vector *)(dy + j);                                                           \
                _Pragma("GCC unroll 16") for (int t = 0; t < DIRECT_PLANE_TAPS; t++) sum[t] +=                         \
                    gradient * *(const vector *)(pointers[t] + i * pointers_ld + j);                                   \
            }                                                                                                          \
        float sums[DIRECT_PLANE_TAPS] = {0};                                                                           \
        for (int lane = 0; lane < lanes; lane++)                                                                       \
            _Pragma("GCC unroll 16") for (int t = 0; t < DIRECT_PLANE_TAPS; t++) sums[t] +=                            \
                ((const float *)&sum[t])[lane];                                                                        \
        memcpy(c, sums, sizeof sums);                                                                                  \
    }

/* Some vectors of contiguous positions, starting at `at`. */
#define PLANE_VECTORS(lanes, vectors)                                                                                  \
    {                                                                                                                  \
        vector sum[vectors] = {{0}};                                                                                   \
        for (int64_t t = 0; t < taps; t++) {                                                                           \
            const float *x = image + offsets[t] + at, weight = weights[t * weights_ld];                                \
            _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) sum[j] +=                                       \
                weight * *(const vector *)(x + j * lanes);                                                             \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int j = 0; j < vectors; j++) * (vector *)(c + at + j * lanes) = sum[j];          \
    }

/* As many vectors at a time as possible, except for the last one. */
#define FILTER_PLANE_KERNEL(function, attribute, lanes)                                                                \
    attribute static void function(int64_t taps, const float *image, const int64_t *offsets, const float *weights,     \
                                   int64_t weights_ld, float *c, int64_t count) {                                      \
        typedef float vector __attribute__((vector_size(lanes * sizeof(float)), may_alias, aligned(sizeof(float))));   \
        int64_t at = 0;                                                                                                \
        for (; at + 7 * lanes < count; at += 8 * lanes)                                                                \
            PLANE_VECTORS(lanes, 8)                                                                                    \
        for (; at + 3 * lanes < count; at += 4 * lanes)                                                                \
            PLANE_VECTORS(lanes, 4)                                                                                    \
        for (; at < count; at += lanes)                                                                                \
            PLANE_VECTORS(lanes, 1)                                                                                    \
    }

#define PACKED_KERNEL(function, attribute, lanes, height, vectors)                                                     \
    DIRECT_KERNEL(function, attribute, lanes, height, vectors, const float *, b, vectors *lanes)
#define POINTER_KERNEL(function, attribute, lanes, height, vectors)                                                    \
    DIRECT_KERNEL(function, attribute, lanes, height, vectors, const float *const *, *b, 1)

/* Kernels that are several vectors wide. */
#define WIDE_KERNELS(name, attribute, lanes, height, vectors)                                                          \
    PACKED_KERNEL(name, attribute, lanes, height, vectors)                                                             \
    PACKED_KERNEL(name##_low, attribute, lanes, height / 2, vectors)                                                   \
    POINTER_KERNEL(name##_seen, attribute, lanes, height, vectors)                                                     \
    POINTER_KERNEL(name##_seen_low, attribute, lanes, height / 2, vectors)

/* Instantiates the kernels for every instruction set. */
#define DIRECT_KERNELS(name, attribute, lanes, height)                                                                 \
    WIDE_KERNELS(name##_two, attribute, lanes, height, 2)                                                              \
    PACKED_KERNEL(name##_one, attribute, lanes, height, 1)                                                             \
    PACKED_KERNEL(name##_one_low, attribute, lanes, height / 2, 1)                                                     \
    PLANE_KERNEL(name##_sum_planes, attribute, lanes)                                                                  \
    FILTER_PLANE_KERNEL(name##_filter_plane, attribute, lanes)                                                         \
    CHANNEL_KERNELS(name, attribute, lanes, height / 2)

#define WIDE_SHAPE(name, lanes, height, vectors)                                                                       \
    {                                                                                                                  \
        height, vectors *lanes, {name, name##_low}, { name##_seen, name##_seen_low }                                   \
    }
#define NARROW_SHAPE(name, lanes, height)                                                                              \
    {                                                                                                                  \
        height, lanes, {name, name##_low}, { NULL, NULL }                                                              \
    }

#if defined(__x86_64__)
/* Sums of 6 x 4 vectors occupy 24 of 32 registers. */
WIDE_KERNELS(avx512_four, __attribute__((target("avx512f"))), 16, 6, 4)
DIRECT_KERNELS(avx512, __attribute__((target("avx512f"))), 16, 8)
DIRECT_KERNELS(avx2, __attribute__((target("avx2,fma"))), 8, 6)
#endif
/* 16-byte vectors: SSE2, NEON, or whatever the compiler lowers them to */
DIRECT_KERNELS(plain, , 4, 6)

static const struct direct_kernel kernels[] = {
#if defined(__x86_64__)
    {"avx512 6x64",
     16,
     4,
     {WIDE_SHAPE(avx512_four, 16, 6, 4), WIDE_SHAPE(avx512_two, 16, 8, 2), NARROW_SHAPE(avx512_one, 16, 8)},
     avx512_filter_channels,
     avx512_sum_channels,
     avx512_sum_planes,
     avx512_filter_plane},
    {"avx2 6x16",
     8,
     3,
     {WIDE_SHAPE(avx2_two, 8, 6, 2), NARROW_SHAPE(avx2_one, 8, 6)},
     avx2_filter_channels,
     avx2_sum_channels,
     avx2_sum_planes,
     avx2_filter_plane},
#endif
    {"plain 6x8",
     4,
     3,
     {WIDE_SHAPE(plain_two, 4, 6, 2), NARROW_SHAPE(plain_one, 4, 6)},
     plain_filter_channels,
     plain_sum_channels,
     plain_sum_planes,
     plain_filter_plane},
};

/* Rank 1 and above are for tests, which run every kernel that the CPU supports. */
const struct direct_kernel *direct_kernel(int rank) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (cpu_runs(kernels[i].name) && rank-- == 0)
            return &kernels[i];
    return NULL;
}

const struct direct_shape *direct_shape(int64_t columns) {
    const struct direct_kernel *kernel = direct_kernel(0);
    const struct direct_shape *shape = kernel->shapes;
    while (shape->columns > kernel->lanes && shape->columns >= columns + kernel->lanes)
        shape++;
    return shape;
}
