/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's bf16 products on AMX (product/gemm_amx.h). The left factor is packed in panels of 32 rows, one cache line
   per row for each 32 consecutive elements along the depth; the right factor is packed as pairs of elements along the
   depth, [depth / 2, PANEL]. Both extents are zero-padded to multiples of 32. This file must not know tensors or the
   terms of a score. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_PACKED_H
#define WEFT_ENGINES_CPU_ATTENTION_PACKED_H

#include "engines/cpu/attention/memory.h"
#include "engines/cpu/attention/tile.h"

/* Extent of a packed block along rows and along the depth: two bf16 fill the 4 bytes of a float. */
enum { PACKED = 32 };

/* True if this CPU supports AMX bf16. */
bool packed_runs(void);
/* Call these before and after a thread's products. */
void packed_begin(void);
void packed_end(void);

static inline int64_t packed_size(int64_t count) { return (count + PACKED - 1) / PACKED * PACKED; }
/* Size of a packed factor in floats, each of which holds two bf16. */
static inline int64_t packed_floats(int64_t rows, int64_t depth) { return packed_size(rows) * packed_size(depth) / 2; }

/* Packs a left factor: rows [row, row + count) of bf16 with contiguous elements. */
void packed_rows(const struct rows *rows, int64_t row, int64_t count, int64_t depth, uint32_t *to);
/* Like packed_rows, but transposed: elements become rows, and rows run along the depth. Returns true if any element is
   infinite or NaN. */
bool packed_columns(const struct rows *rows, int64_t row, int64_t count, int64_t depth, uint32_t *to);
/* Packs a right factor: floats [depth, PANEL], rounded to nearest even. */
void packed_pairs(const float *columns, int64_t depth, uint32_t *to);

/* c (+)= a b, [m, PANEL]; m is rounded up to a multiple of PACKED. */
void packed_product(int64_t m, int64_t depth, const uint32_t *a, const uint32_t *b, float *c, bool adds);

#endif
