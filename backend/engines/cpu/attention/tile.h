/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over a tile of scores in the L1 cache: [keys, PANEL] with one column per query, so that everything that belongs
   to a query is in one lane and no sums cross lanes. This file must not know tensors or the terms of a score. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_TILE_H
#define WEFT_ENGINES_CPU_ATTENTION_TILE_H

#include "engines/cpu/product/gemm_small.h"

#include <stdbool.h>
#include <stdint.h>

enum { PANEL = SMALL_COLUMNS, KEY_TILE = 128 }; /* maximum queries, and keys, of a tile */

/* Sets the scores of keys outside [low, high) to -inf. */
void tile_hide(float *scores, int64_t keys, const int32_t *low, const int32_t *high);
/* Sets the scores to -inf where keep is 0. */
void tile_mask(float *scores, int64_t keys, const float *keep);
/* Adds a tile; -inf in either operand gives -inf. */
void tile_add(float *scores, int64_t keys, const float *bias);
/* Adds slope (key - row); `first` is the key of the first line. */
void tile_slope(float *scores, int64_t keys, const float *slope, const int64_t *row, int64_t first);
/* Multiplies element by element; 0 stays 0 for any factor. */
void tile_multiply(float *numbers, int64_t keys, const float *by);

/* Turns scores into weights e^(score - max), 0 for -inf. max and sum of each column are updated from those of the
   earlier tiles; factor: multiplier for sums and products of the earlier tiles. False if all factors are 1. */
bool tile_softmax(float *scores, int64_t keys, float *max, float *sum, float *factor);
/* Like tile_softmax, for one query with contiguous scores; memory up to the next multiple of PANEL may be
   overwritten. */
bool row_softmax(float *scores, int64_t keys, float *max, float *sum, float *factor);

/* Multiplies the columns of [lines, PANEL]. */
void tile_scale(float *numbers, int64_t lines, const float *factor);

/* Turns scores into weights e^(score - statistics), at most 1; 0 for -inf. */
void tile_weigh(float *scores, int64_t keys, const float *statistics);
/* Adds up the weights of each column and finds the largest. */
void tile_count(const float *weights, int64_t keys, float *total, float *largest);
/* Adds weights times products of each column to its sum; a weight of 0 adds 0 for any product. */
void tile_collect(const float *products, int64_t keys, const float *weights, float *sum);
/* products becomes weights (products - mean); elements with a weight of 0 become 0 for any product. */
void tile_gradient(float *products, int64_t keys, const float *weights, const float *mean);

/* Computes dropout factors: 1 / keep probability, or 0, from the Philox words of the keys that start at `first`, a
   multiple of 4. line: a column's row of scores; quads: blocks of 4 keys per row. */
struct tile_dropout {
    uint64_t seed, offset, quads;
    uint32_t threshold;
    float factor;
};
void tile_drop(float *factors, int64_t keys, const struct tile_dropout *dropout, const int64_t *line, int64_t first);

/* True if [rows, columns] contains an infinity or NaN. */
bool tile_has_nonfinite(const float *numbers, int64_t rows, int64_t columns, int64_t ld);

/* Like small_product, but skips zero weights, even if they would be multiplied by NaN. Slow; for operands that contain
   NaN. The weights are A if weights_are_a, otherwise B. */
void tile_product_of_some(int64_t m, int64_t n, int64_t depth, struct small_factor a, struct small_factor b, float *c,
                          int64_t ld, bool weights_are_a);

#endif
