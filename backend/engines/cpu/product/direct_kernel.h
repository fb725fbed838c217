/* SPDX-License-Identifier: Apache-2.0 */
/* The innermost loop of a convolution: rows of A are read in place through pointers, because their elements are
   broadcast; B is packed or read through pointers, too. This file must not know images or filters. */
#ifndef WEFT_ENGINES_CPU_DIRECT_KERNEL_H
#define WEFT_ENGINES_CPU_DIRECT_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

/* C[i] (+)= sum over segments s and depths d of rows[s * rows_ld + i][d * step] * b[s * depth + d]. Rows of b are
   contiguous and as wide as the kernel; those of c have pitch `ld` and need no alignment. */
typedef void direct_multiply(int64_t segments, int64_t depth, const float *const *rows, int64_t rows_ld, int64_t step,
                             const float *b, float *c, int64_t ld, bool adds);

/* The same sum with a pointer to each row of B: b [segments, depth]. */
typedef void direct_multiply_pointers(int64_t segments, int64_t depth, const float *const *rows, int64_t rows_ld,
                                      int64_t step, const float *const *b, float *c, int64_t ld, bool adds);

/* One channel separately: C[i][channel] = sum over taps t of pointers[t * pointers_ld + i][channel] * weights[t *
   channels + channel], for channel_rows rows i. */
typedef void direct_filter_channels(int64_t taps, const float *const *pointers, int64_t pointers_ld,
                                    const float *weights, float *c, int64_t ld, int64_t channels);

enum { DIRECT_TAPS = 5 }; /* taps whose gradients are summed together */

/* C[t * channels + channel] = sum over rows i of pointers[t * pointers_ld + i][channel] * dy[i * dy_ld + channel], for
   DIRECT_TAPS taps t. */
typedef void direct_sum_channels(int64_t rows, const float *const *pointers, int64_t pointers_ld, const float *dy,
                                 int64_t dy_ld, float *c, int64_t channels);

enum { DIRECT_PLANE_TAPS = 9 };

/* C[t] = sum over lines i and positions j of pointers[t][i * pointers_ld + j] * dy[i * width + j], for
   DIRECT_PLANE_TAPS taps t. The width is a multiple of 16. */
typedef void direct_sum_of_planes(int64_t lines, int64_t width, const float *const *pointers, int64_t pointers_ld,
                                  const float *dy, float *c);

enum { DIRECT_VECTOR = 16 }; /* floats of the widest vector */

/* C[j] = sum over taps t of weights[t * weights_ld] * image[offsets[t] + j], for `count` contiguous positions j. Up to
   the next multiple of DIRECT_VECTOR they are read and written. */
typedef void direct_filter_plane(int64_t taps, const float *image, const int64_t *offsets, const float *weights,
                                 int64_t weights_ld, float *c, int64_t count);

enum { DIRECT_ROWS = 12 }; /* a multiple of half the rows of every shape, and of channel_rows */

/* The columns of a panel, and the numbers of rows that are multiplied at once: full and half. */
struct direct_shape {
    int rows, columns;
    direct_multiply *multiply[2];
    direct_multiply_pointers *multiply_pointers[2]; /* NULL for the narrowest panel */
};

/* One compiled version. Every shape is half as wide as the previous one; the last one is one vector wide. */
struct direct_kernel {
    const char *name; /* "avx512 6x64" */
    int lanes, channel_rows;
    struct direct_shape shapes[3];
    direct_filter_channels *filter_channels;
    direct_sum_channels *sum_channels;
    direct_sum_of_planes *sum_planes;
    direct_filter_plane *filter_plane;
};

/* The kernels that this CPU supports, best first; NULL if rank is past the last one. */
const struct direct_kernel *direct_kernel(int rank);

/* The best kernel's shape for the first panel of this number of columns: the widest that they fill, except for its last
   vector. */
const struct direct_shape *direct_shape(int64_t columns);

#endif
