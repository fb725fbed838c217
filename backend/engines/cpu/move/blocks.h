/* SPDX-License-Identifier: Apache-2.0 */
/* Runs, transposed blocks and interleaved planes of elements: what copies between two orders of memory are made of. It
   must not know tensors. */
#ifndef WEFT_ENGINES_CPU_BLOCKS_H
#define WEFT_ENGINES_CPU_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum { TRANSPOSE_BYTES = 128 }; /* of a block's side: two cache lines of both memories */

/* to[i * to_stride + j] = from[j * from_stride + i] for i < rows and j < columns, each at most TRANSPOSE_BYTES of
   elements of 1, 2, 4 or 8 bytes; strides in elements. is_large: past the caches, as what is
   written is larger than these; a fence_blocks() makes it visible to other threads. */
void transpose_block(void *to, int64_t to_stride, const void *from, int64_t from_stride, int rows, int columns,
                     int bytes, bool is_large);

void fence_blocks(void);

void copy_run(char *to, const char *from, int64_t bytes);

/* Between `few` (2, 3 or 4) planes and one memory that holds an element of each in turn: joined, to[i * few + j] =
   from[j * stride + i], and the other way round, to[j * stride + i] = from[i * few + j], for i < count. */
void interleave(void *to, const void *from, int64_t stride, int few, int64_t count, int bytes, bool is_joined);

#endif
