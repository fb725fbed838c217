/* SPDX-License-Identifier: Apache-2.0 */
/* Runs, transposed planes and interleaved planes of elements: what copies between two orders of memory are made of. It
   must not know tensors. */
#ifndef WEFT_ENGINES_CPU_BLOCKS_H
#define WEFT_ENGINES_CPU_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum { TRANSPOSE_BYTES = 256 }; /* four cache lines: of a written row that a block with a buffer has */

/* to[i * to_stride + j] = from[j * from_stride + i] for i < rows and j < columns, elements of 1, 2, 4 or 8 bytes;
   strides in elements. */
struct plane {
    char *to;
    const char *from;
    int64_t to_stride, from_stride, rows, columns;
    int bytes;
    bool is_large; /* past the caches, as what is written is larger than these */
    char *next_to; /* a plane like this one follows; NULL: none */
    const char *next_from;
};

/* Of its rows, or of its columns, a strip: from about the start-th on `strip` of them, a multiple of TRANSPOSE_BYTES
   unless it is all. Strips meet where a cache line begins, so that no line that is written is in two tasks. */
void transpose(const struct plane *plane, bool is_rows, int64_t start, int64_t strip);

/* `rows` runs of `bytes` each, which begin `to_step` and `from_step` bytes apart. A run may be its own copy. */
void copy_runs(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t rows, int64_t bytes);

/* to[i] = from[2 * i] for i < count. */
void copy_second(void *to, const void *from, int64_t count, int bytes);

/* Between `few` (2, 3 or 4) planes and one memory that holds an element of each in turn: joined, to[i * few + j] =
   from[j * stride + i], and the other way round, to[j * stride + i] = from[i * few + j], for i < count. */
void interleave(void *to, const void *from, int64_t stride, int few, int64_t count, int bytes, bool is_joined);

#endif
