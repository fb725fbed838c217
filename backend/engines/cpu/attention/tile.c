/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/attention/tile.h"

#include "base/philox.h"
#include "engines/cpu/core/fastmath.h"
#include "engines/cpu/core/vector.h"

#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

/* ---- Terms of scores ---- */

WIDE void tile_hide(float *scores, int64_t keys, const int32_t *low, const int32_t *high) {
    for (int32_t k = 0; k < (int32_t)keys; k++, scores += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++)
            scores[c] = fast_pick((k >= low[c]) & (k < high[c]), scores[c], -INFINITY);
    }
}

WIDE void tile_mask(float *scores, int64_t keys, const float *keep) {
    INDEPENDENT
    for (int64_t i = 0; i < keys * PANEL; i++)
        scores[i] = fast_pick(keep[i] != 0, scores[i], -INFINITY);
}

WIDE void tile_add(float *scores, int64_t keys, const float *bias) {
    INDEPENDENT
    for (int64_t i = 0; i < keys * PANEL; i++)
        scores[i] = fast_pick((bias[i] == -INFINITY) | (scores[i] == -INFINITY), -INFINITY, scores[i] + bias[i]);
}

WIDE void tile_slope(float *scores, int64_t keys, const float *slope, const int64_t *row, int64_t first) {
    float distance[PANEL];
    for (int c = 0; c < PANEL; c++)
        distance[c] = (float)(first - row[c]);
    for (int64_t k = 0; k < keys; k++, scores += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++)
            scores[c] += slope[c] * (distance[c] + (float)k);
    }
}

WIDE void tile_multiply(float *numbers, int64_t keys, const float *by) {
    INDEPENDENT
    for (int64_t i = 0; i < keys * PANEL; i++)
        numbers[i] = fast_pick(numbers[i] == 0, 0, numbers[i] * by[i]);
}

/* ---- Softmax ---- */

/* Finds the maximum of each column, including the previous maximum. */
WIDE static void find_largest(const float *scores, int64_t keys, float *largest) {
    float maxima[PANEL];
    memcpy(maxima, largest, sizeof maxima);
    for (int64_t k = 0; k < keys; k++, scores += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++)
            maxima[c] = scores[c] > maxima[c] ? scores[c] : maxima[c];
    }
    memcpy(largest, maxima, sizeof maxima);
}

/* e^x for x <= 0, with a relative error of |x| 2^-24 plus 1.2 ulps: e^0 is exactly 1, and results with larger errors
   are smaller. */
FASTMATH float weight(float x) { return fast_exp2(x * 1.44269504f); }

/* base is finite, or infinite if a score is. */
WIDE static void exponentiate(float *scores, int64_t keys, const float *base, float *sum) {
    float total[PANEL] = {0};
    for (int64_t k = 0; k < keys; k++, scores += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++) {
            scores[c] = weight(scores[c] - base[c]);
            total[c] += scores[c];
        }
    }
    for (int c = 0; c < PANEL; c++)
        sum[c] += total[c];
}

/* Returns the reference for a column's exponentials, and the factor for the sums of earlier tiles. */
FASTMATH float rebase(float max, float before, float *factor) {
    float base = fast_pick(max == -INFINITY, 0, max);
    *factor = fast_pick(before == max, 1, weight(before - base));
    return base;
}

WIDE static bool rebase_columns(const float *max, const float *before, float *base, float *sum, float *factor) {
    int changed = 0;
    INDEPENDENT
    for (int c = 0; c < PANEL; c++) {
        base[c] = rebase(max[c], before[c], &factor[c]);
        sum[c] *= factor[c];
    }
    for (int c = 0; c < PANEL; c++)
        changed |= factor[c] != 1;
    return changed;
}

bool tile_softmax(float *scores, int64_t keys, float *max, float *sum, float *factor) {
    float base[PANEL], before[PANEL];
    memcpy(before, max, sizeof before);
    find_largest(scores, keys, max);
    bool is_changed = rebase_columns(max, before, base, sum, factor);
    exponentiate(scores, keys, base, sum);
    return is_changed;
}

bool row_softmax(float *scores, int64_t keys, float *max, float *sum, float *factor) {
    float base[PANEL], total[PANEL] = {0}, before = *max;
    /* A row is a tile of keys, contiguous across columns and lines. */
    int64_t lines = (keys + PANEL - 1) / PANEL;
    for (int64_t k = keys; k < lines * PANEL; k++)
        scores[k] = -INFINITY;
    for (int c = 0; c < PANEL; c++)
        base[c] = before;
    find_largest(scores, lines, base);
    for (int c = 0; c < PANEL; c++)
        *max = base[c] > *max ? base[c] : *max;
    float around = rebase(*max, before, factor);
    for (int c = 0; c < PANEL; c++)
        base[c] = around;
    exponentiate(scores, lines, base, total);
    *sum *= *factor;
    for (int c = 0; c < PANEL; c++)
        *sum += total[c];
    return *factor != 1;
}

WIDE void tile_scale(float *numbers, int64_t lines, const float *factor) {
    for (int64_t i = 0; i < lines; i++, numbers += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++)
            numbers[c] *= factor[c];
    }
}

/* ---- Gradients ---- */

WIDE void tile_weigh(float *scores, int64_t keys, const float *statistics) {
    for (int64_t k = 0; k < keys; k++, scores += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++) {
            /* The statistics are at least the score, but rounding may make them less. */
            float x = scores[c] - statistics[c];
            scores[c] = weight(x > 0 ? 0 : x);
        }
    }
}

WIDE void tile_count(const float *weights, int64_t keys, float *total, float *largest) {
    for (int64_t k = 0; k < keys; k++, weights += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++) {
            total[c] += weights[c];
            largest[c] = fast_pick(weights[c] > largest[c], weights[c], largest[c]);
        }
    }
}

WIDE void tile_collect(const float *products, int64_t keys, const float *weights, float *sum) {
    for (int64_t k = 0; k < keys; k++, products += PANEL, weights += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++)
            sum[c] += fast_pick(weights[c] == 0, 0, weights[c] * products[c]);
    }
}

WIDE void tile_gradient(float *products, int64_t keys, const float *weights, const float *mean) {
    for (int64_t k = 0; k < keys; k++, products += PANEL, weights += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++)
            products[c] = fast_pick(weights[c] == 0, 0, weights[c] * (products[c] - mean[c]));
    }
}

/* ---- Dropout ---- */

/* Four lines of factors, because one Philox block serves four adjacent keys. */
WIDE static void drop_four(float *factors, const struct tile_dropout *dropout, const int64_t *line, uint64_t quad) {
    for (int c = 0; c < PANEL; c++) {
        struct philox words = philox_words(dropout->seed, dropout->offset, (uint64_t)line[c] * dropout->quads + quad);
        for (int i = 0; i < 4; i++)
            factors[i * PANEL + c] = words.word[i] >> 8 < dropout->threshold ? dropout->factor : 0;
    }
}

void tile_drop(float *factors, int64_t keys, const struct tile_dropout *dropout, const int64_t *line, int64_t first) {
    for (int64_t k = 0; k < keys; k += 4, factors += 4 * PANEL)
        drop_four(factors, dropout, line, (uint64_t)(first + k) / 4);
}

/* ---- Infinities and NaN ---- */

/* 0 times a number is 0, of either sign, except for infinities and NaN. */
WIDE bool tile_has_nonfinite(const float *numbers, int64_t rows, int64_t columns, int64_t ld) {
    uint32_t nonfinite = 0;
    for (int64_t i = 0; i < rows; i++, numbers += ld)
        for (int64_t j = 0; j < columns; j++)
            nonfinite |= (fast_bits(numbers[j]) & 0x7f800000) == 0x7f800000;
    return nonfinite;
}

void tile_product_of_some(int64_t m, int64_t n, int64_t depth, struct small_factor a, struct small_factor b, float *c,
                          int64_t ld, bool weights_are_a) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t d = 0; d < depth; d++) {
                float left = a.at[i * a.row + d * a.depth], right = b.at[d * b.depth + j];
                if ((weights_are_a ? left : right) != 0)
                    c[i * ld + j] += left * right;
            }
}
