/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's kernel families. */
#ifndef WEFT_ENGINES_CPU_FAMILIES_H
#define WEFT_ENGINES_CPU_FAMILIES_H

#include "engines/engine.h"

extern const struct family cpu_attention;   /* attention and its gradients */
extern const struct family cpu_contraction; /* a product and pointwise operations behind it */
extern const struct family cpu_grouped;     /* products of experts, both ways */
extern const struct family cpu_rows;        /* reductions, softmax and norms with pointwise operations around them */
extern const struct family cpu_map;         /* pointwise operations in one sweep */
extern const struct family cpu_move;        /* one operation that only moves elements */
extern const struct family cpu_block_scale; /* numbers of few bits with a scale for each block */
extern const struct family cpu_element;     /* elements made from their places, with pointwise operations behind */
extern const struct family cpu_pooling;     /* pooling and interpolation, both ways */
extern const struct family cpu_causal;      /* causal convolutions of sequences, both ways */
extern const struct family cpu_reference;   /* one operation, as defined */

#endif
