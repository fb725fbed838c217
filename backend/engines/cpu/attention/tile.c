/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/attention/tile.h"

#include "base/philox.h"
#include "engines/cpu/core/fastmath.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "fp-contract=fast")
#endif

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Compiled three times; the loader picks. */
#if defined __x86_64__ && defined __GLIBC__
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* ---- Terms of scores ---- */

WIDE void tile_hide(float *scores, int64_t keys, const int32_t *low, const int32_t *high) {
    for (int32_t k = 0; k < (int32_t)keys; k++, scores += PANEL) {
        INDEPENDENT
        for (int c = 0; c < PANEL; c++)
            scores[c] = fast_pick((k >= low[c]) & (k < high[c]), scores[c], -INFINITY);
    }
}

WIDE void tile_keep(float *scores, int64_t keys, const float *keep) {
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
        numbers[i] *= by[i];
}

/* ---- Softmax ---- */

/* Loops over all columns of a panel, or over the first few: each function twice, of a text with their number. */
#define FOR_COLUMNS(name, arguments, ...)                                                                              \
    WIDE static void name##_all arguments { name(__VA_ARGS__, PANEL); }                                                \
    WIDE static void name##_few arguments { name(__VA_ARGS__, FEW); }

/* The largest of each column, and of what was there. */
FASTMATH void find_largest(const float *scores, int64_t keys, float *largest, const int columns) {
    float found[PANEL];
    for (int c = 0; c < columns; c++)
        found[c] = largest[c];
    for (int64_t k = 0; k < keys; k++, scores += PANEL) {
        INDEPENDENT
        for (int c = 0; c < columns; c++)
            found[c] = scores[c] > found[c] ? scores[c] : found[c];
    }
    for (int c = 0; c < columns; c++)
        largest[c] = found[c];
}
FOR_COLUMNS(find_largest, (const float *scores, int64_t keys, float *largest), scores, keys, largest)

/* base is finite, or infinite where a score is. */
FASTMATH void exponentiate(float *scores, int64_t keys, const float *base, float *sum, const int columns) {
    float total[PANEL] = {0};
    for (int64_t k = 0; k < keys; k++, scores += PANEL) {
        INDEPENDENT
        for (int c = 0; c < columns; c++) {
            scores[c] = fast_exp_negative(scores[c] - base[c]);
            total[c] += scores[c];
        }
    }
    for (int c = 0; c < columns; c++)
        sum[c] += total[c];
}
FOR_COLUMNS(exponentiate, (float *scores, int64_t keys, const float *base, float *sum), scores, keys, base, sum)

bool tile_softmax(float *scores, int64_t keys, int count, float *max, float *sum, float *factor) {
    float base[PANEL];
    bool is_changed = false;
    memcpy(factor, max, PANEL * sizeof *max);
    (count <= FEW ? find_largest_few : find_largest_all)(scores, keys, max);
    for (int c = 0; c < count; c++) {
        base[c] = max[c] == -INFINITY ? 0 : max[c];
        is_changed = is_changed || factor[c] != max[c];
        factor[c] = factor[c] == max[c] ? 1 : fast_exp_negative(factor[c] - base[c]);
        sum[c] *= factor[c];
    }
    for (int c = count; c < PANEL; c++)
        base[c] = 0, factor[c] = 1;
    (count <= FEW ? exponentiate_few : exponentiate_all)(scores, keys, base, sum);
    return is_changed;
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
            /* The statistics are at least the score; rounded, they may be less. */
            float x = scores[c] - statistics[c];
            scores[c] = fast_exp_negative(x > 0 ? 0 : x);
        }
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

/* Four lines of factors, as one block of Philox serves four neighbouring keys. */
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

/* ---- Numbers that are none ---- */

/* 0 times a number is 0, of either sign, but for infinities and NaN. */
WIDE bool tile_is_wild(const float *numbers, int64_t rows, int64_t columns, int64_t ld) {
    uint32_t wild = 0;
    for (int64_t i = 0; i < rows; i++, numbers += ld)
        for (int64_t j = 0; j < columns; j++)
            wild |= (fast_bits(numbers[j]) & 0x7f800000) == 0x7f800000;
    return wild;
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
