/* SPDX-License-Identifier: Apache-2.0 */
/* Runs, transposed planes and interleaved planes of elements: what copies between two orders of memory are made of. It
   must not know tensors. */
#ifndef WEFT_ENGINES_CPU_BLOCKS_H
#define WEFT_ENGINES_CPU_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum { TRANSPOSE_BYTES = 256 }; /* of a written row that a block has at most: four cache lines */

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

void transpose(const struct plane *plane);

/* Elements before a cache line's begin, of rows of `count` elements that lie `stride` apart; 0 where their lines begin
   at different elements, they are too short to be cut there, or need not be, as AVX-512 reads rows anywhere:
   a line in two blocks costs less than one more block. */
int64_t transpose_head(const void *memory, int64_t stride, int64_t count, int bytes, bool is_read);

/* `rows` runs of `bytes` each, which begin `to_step` and `from_step` bytes apart. A run may be its own copy. */
void copy_runs(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t rows, int64_t bytes);

/* to[i] = from[2 * i] for i < count. */
void copy_second(void *to, const void *from, int64_t count, int bytes);

/* Between `few` (2, 3 or 4) planes and one memory that holds an element of each in turn: joined, to[i * few + j] =
   from[j * stride + i], and the other way round, to[j * stride + i] = from[i * few + j], for i < count. */
void interleave(void *to, const void *from, int64_t stride, int few, int64_t count, int bytes, bool is_joined);

#endif
