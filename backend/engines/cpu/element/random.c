/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: several Philox blocks at once, then their words as numbers, in double and with the operation's
   formulas, so that results are bit-identical to the reference, except for the last bits of NORMAL's functions. */
#include "base/number.h"
#include "base/philox.h"
#include "engines/cpu/core/loops.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/element/element.h"
#include "graph/ops/rng.h"

#include <string.h>

enum { BLOCKS = 32, WORDS = 4 * BLOCKS }; /* blocks that are generated at once */

static const double UNIFORM_NANOSECONDS = 2, NORMAL_NANOSECONDS = 12; /* per number on one thread */

weftStatus_t element_random(struct element *e) {
    const struct rng_op *op = (const struct rng_op *)e->op;
    e->y = op->y;
    e->column_dim = (int)op->y->dims.count - 1;
    e->is_wide = true;
    e->nanoseconds =
        op->parameters->distribution == WEFT_RNG_DISTRIBUTION_NORMAL ? NORMAL_NANOSECONDS : UNIFORM_NANOSECONDS;
    return WEFT_STATUS_SUCCESS;
}

WIDE static void draw_words(uint32_t words[][4], uint64_t seed, uint64_t offset, uint64_t first) {
    INDEPENDENT
    for (int i = 0; i < BLOCKS; i++) {
        struct philox block = philox_words(seed, offset, first + (uint64_t)i);
        for (int k = 0; k < 4; k++)
            words[i][k] = block.word[k];
    }
}

/* Box-Muller: two words give two numbers, through a radius and an angle. */
static void make_normal(const struct rng *rng, const uint32_t *words, double *numbers) {
    const struct pointwise_parameters none = {0};
    double radius[WORDS / 2], angle[WORDS / 2], cosine[WORDS / 2];
    for (int i = 0; i < WORDS / 2; i++) {
        radius[i] = (words[2 * i] + 1.0) * 0x1p-32; /* never 0 */
        angle[i] = 6.283185307179586477 * philox_unit(words[2 * i + 1]);
    }
    loop_f64(WEFT_POINTWISE_LOG)(WORDS / 2, radius, radius, radius, radius, &none);
    for (int i = 0; i < WORDS / 2; i++)
        radius[i] *= -2;
    loop_f64(WEFT_POINTWISE_SQRT)(WORDS / 2, radius, radius, radius, radius, &none);
    loop_f64(WEFT_POINTWISE_COS)(WORDS / 2, cosine, angle, angle, angle, &none);
    loop_f64(WEFT_POINTWISE_SIN)(WORDS / 2, angle, angle, angle, angle, &none);
    for (int i = 0; i < WORDS / 2; i++) {
        numbers[2 * i] = rng->mean + rng->deviation * radius[i] * cosine[i];
        numbers[2 * i + 1] = rng->mean + rng->deviation * radius[i] * angle[i];
    }
}

static void make_numbers(const struct rng *rng, const uint32_t *words, double *numbers) {
    uint32_t threshold = philox_threshold(rng->probability);
    if (rng->distribution == WEFT_RNG_DISTRIBUTION_NORMAL)
        make_normal(rng, words, numbers);
    else if (rng->distribution == WEFT_RNG_DISTRIBUTION_UNIFORM)
        for (int i = 0; i < WORDS; i++)
            numbers[i] = rng->least + (rng->most - rng->least) * philox_unit(words[i]);
    else
        for (int i = 0; i < WORDS; i++)
            numbers[i] = words[i] >> 8 < threshold;
}

/* Every row starts a new Philox block; a part of the row may start anywhere within one. */
void element_draw(const struct element *e, const struct bindings *bindings, double *to, int64_t row, int64_t column,
                  int64_t count) {
    const struct rng_op *op = (const struct rng_op *)e->op;
    uint64_t seed = (uint64_t)rng_scalar(bindings, op->seed_tensor, op->seed);
    uint64_t offset = (uint64_t)rng_scalar(bindings, op->offset, 0);
    for (int64_t done = 0; done < count;) {
        uint32_t words[BLOCKS][4];
        double numbers[WORDS];
        int64_t skipped = (column + done) % 4, taken = min64(WORDS - skipped, count - done);
        draw_words(words, seed, offset, philox_index((uint64_t)row, (uint64_t)(column + done), (uint64_t)e->columns));
        make_numbers(op->parameters, words[0], numbers);
        memcpy(to + done, numbers + skipped, (size_t)taken * sizeof *to);
        done += taken;
    }
}
