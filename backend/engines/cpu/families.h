/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's kernel families. */
#ifndef WEFT_ENGINES_CPU_FAMILIES_H
#define WEFT_ENGINES_CPU_FAMILIES_H

#include "engines/engine.h"

extern const struct family cpu_attention;   /* attention and its gradients */
extern const struct family cpu_contraction; /* one product with fused pointwise operations */
extern const struct family cpu_grouped;     /* expert (grouped) products, forward and backward */
extern const struct family cpu_rows;        /* reductions, softmax and norms, with fused pointwise operations */
extern const struct family cpu_map;         /* fused pointwise operations in one pass */
extern const struct family cpu_move;        /* one operation that only moves elements */
extern const struct family cpu_block_scale; /* block-scaled low-precision numbers */
extern const struct family cpu_element;     /* one operation whose elements are computed one by one (random numbers,
                                               dequantization), with fused pointwise operations */
extern const struct family cpu_pooling;     /* pooling and interpolation, forward and backward */
extern const struct family cpu_causal;      /* causal convolutions of sequences, forward and backward */
extern const struct family cpu_recurrent;   /* steps of recurrent layers, forward and backward */
extern const struct family cpu_scan;        /* cumulative sums, products and extremes */
extern const struct family cpu_top_k;       /* the largest or smallest elements along a dimension */
extern const struct family cpu_grid;        /* samples of images at the positions of a grid, forward and backward */
extern const struct family cpu_affine_grid; /* grids of positions under affine transformations */
extern const struct family cpu_ctc;         /* losses of sequences without alignment, forward and backward */
extern const struct family cpu_gather;      /* selections by indices, and sums at indices */
extern const struct family cpu_rope;        /* rotary position embedding and its gradient */
extern const struct family cpu_reference;   /* any single operation, as defined */

#endif
