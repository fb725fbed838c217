/* SPDX-License-Identifier: Apache-2.0 */
/* Runs, transposed planes and interleaved planes of elements: the building blocks of copies between two memory orders.
   This file must not know tensors. */
#ifndef WEFT_ENGINES_CPU_BLOCKS_H
#define WEFT_ENGINES_CPU_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum { TRANSPOSE_BYTES = 256 }; /* four cache lines: written per row by a block that uses a buffer */

/* to[i * to_stride + j] = from[j * from_stride + i] for i < rows and j < columns, elements of 1, 2, 4 or 8 bytes;
   strides in elements. */
struct plane {
    char *to;
    const char *from;
    int64_t to_stride, from_stride, rows, columns;
    int bytes;
    bool is_large; /* larger than the caches, so stores bypass them */
    char *next_to; /* the next plane of the same shape, or NULL */
    const char *next_from;
};

/* Transposes a strip of rows or columns: `strip` of them, starting at about `start`, a multiple of TRANSPOSE_BYTES
   unless the strip is everything. Strips meet at cache lines, so that two tasks never write the same line. */
void transpose(const struct plane *plane, bool is_rows, int64_t start, int64_t strip);

/* Copies `rows` runs of `bytes` bytes, with pitches to_step and from_step. A run may be copied onto itself. */
void copy_runs(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t rows, int64_t bytes);

/* to[i] = from[2 * i] for i < count. */
void copy_second(void *to, const void *from, int64_t count, int bytes);

/* Interleaves `few` (2, 3 or 4) planes. is_joined: to[i * few + j] = from[j * stride + i]; otherwise the inverse, to[j
   * stride + i] = from[i * few + j]; for i < count. */
void interleave(void *to, const void *from, int64_t stride, int few, int64_t count, int bytes, bool is_joined);

#endif
