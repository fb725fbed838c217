/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over a tile of scores in the L1 cache: [keys, PANEL], one column for each query, so that whatever belongs to a
   query is a vector and nothing is summed across lanes. It must not know tensors or what terms scores have. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_TILE_H
#define WEFT_ENGINES_CPU_ATTENTION_TILE_H

#include "engines/cpu/product/gemm_small.h"

#include <stdbool.h>
#include <stdint.h>

enum { PANEL = SMALL_COLUMNS, KEY_TILE = 128 }; /* queries, and keys, of a tile at most */

/* Scores of keys outside [low, high) become -inf, whatever they are. */
void tile_hide(float *scores, int64_t keys, const int32_t *low, const int32_t *high);
/* The same where keep is 0. */
void tile_keep(float *scores, int64_t keys, const float *keep);
/* Adds a tile; -inf of either stays -inf. */
void tile_add(float *scores, int64_t keys, const float *bias);
/* Adds slope (key - row), `first` being the key of the first line. */
void tile_slope(float *scores, int64_t keys, const float *slope, const int64_t *row, int64_t first);
/* 0 stays 0, whatever it meets. */
void tile_multiply(float *numbers, int64_t keys, const float *by);

/* Scores become weights e^(score - max), 0 for -inf. max and sum of a column are those of tiles before, and then of
   this, too; factor: what sums and products of tiles before are to be multiplied by. False where all factors are 1. */
bool tile_softmax(float *scores, int64_t keys, float *max, float *sum, float *factor);
/* The same of one query, whose scores are neighbours; up to the next multiple of PANEL they may be written. */
bool row_softmax(float *scores, int64_t keys, float *max, float *sum, float *factor);

/* Multiplies the columns of [lines, PANEL]. */
void tile_scale(float *numbers, int64_t lines, const float *factor);

/* Scores become weights e^(score - statistics), at most 1; 0 for -inf. */
void tile_weigh(float *scores, int64_t keys, const float *statistics);
/* Adds up the weights of each column, and finds the largest. */
void tile_count(const float *weights, int64_t keys, float *total, float *largest);
/* Adds weights products of each column to its sum; 0 where a weight is 0, whatever the product is. */
void tile_collect(const float *products, int64_t keys, const float *weights, float *sum);
/* products becomes weights (products - mean); 0 where a weight is 0, whatever the product is. */
void tile_gradient(float *products, int64_t keys, const float *weights, const float *mean);

/* Factors of dropout: 1 / keeps or 0, of the words of Philox for the keys from `first` on, a multiple of 4. line: a
   column's row of scores; quads: blocks of 4 keys that such a row has. */
struct tile_dropout {
    uint64_t seed, offset, quads;
    uint32_t threshold;
    float factor;
};
void tile_drop(float *factors, int64_t keys, const struct tile_dropout *dropout, const int64_t *line, int64_t first);

/* Whether [rows, columns] holds an infinity or NaN. */
bool tile_is_wild(const float *numbers, int64_t rows, int64_t columns, int64_t ld);

/* small_product, leaving out the factors 0 of `weights` whatever stands opposite: slow, for operands that hold NaN.
   The weights are A, else B. */
void tile_product_of_some(int64_t m, int64_t n, int64_t depth, struct small_factor a, struct small_factor b, float *c,
                          int64_t ld, bool weights_are_a);

#endif
