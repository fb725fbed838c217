/* SPDX-License-Identifier: Apache-2.0 */
/* Window sweeps over channels, compared with scalar code, on every kernel that this CPU supports. Prints a line per
   failed check; exits non-zero if there was one. */
#include "engines/cpu/pooling/sweep.h"

#include "base/dtype.h"
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAPS = 9, POSITIONS = 3, CHANNELS = 75, ELEMENTS = TAPS * POSITIONS * CHANNELS };

/* Integers that each type represents exactly, some of them equal; infinities, -0, a subnormal half, and NaN. */
static float number_at(int64_t i) {
    static const float rare[] = {INFINITY, -INFINITY, NAN, -0.0f, 0x1p-24f, 65280.0f};
    uint32_t bits = (uint32_t)i * 2654435761u >> 8;
    return bits % 5 == 0 ? rare[bits / 5 % 6] : (float)(bits / 5 % 17) - 8;
}

/* Allocations of exactly the size that is read, so that a sanitizer detects a read past the end. */
struct memory {
    char *rows, *picks;
};

static struct memory fill(const struct sweep *s) {
    struct memory m = {malloc((size_t)dtype_bytes(s->type, ELEMENTS)), malloc(ELEMENTS * 4)};
    m.picks = realloc(m.picks, (size_t)dtype_bytes(s->pick_type, ELEMENTS));
    for (int64_t i = 0; i < ELEMENTS; i++) {
        float value = number_at(i);
        int32_t pick = (int32_t)((uint32_t)i * 40503u >> 4) % 4;
        dtype_from_f32(s->type, m.rows, i, &value, 1);
        if (s->pick_type == WEFT_DATA_INT8)
            ((int8_t *)m.picks)[i] = (int8_t)pick;
        else
            memcpy(m.picks + i * 4, &pick, 4);
    }
    return m;
}

static float read(const struct sweep *s, const struct memory *m, int64_t element) {
    float value;
    dtype_to_f32(&value, s->type, m->rows, element, 1);
    return value;
}

/* Offset of an element: taps, positions and channels, from the slowest to the fastest dimension. */
static int64_t element_at(int tap, int64_t position, int64_t channel) {
    return ((int64_t)tap * POSITIONS + position) * CHANNELS + channel;
}

static float maximum_at(const struct sweep *s, const struct memory *m, int64_t position, int64_t channel, int *where) {
    float best = read(s, m, element_at(0, position, channel));
    *where = 0;
    for (int k = 1; k < TAPS; k++) {
        float value = read(s, m, element_at(k, position, channel));
        bool wins = s->nan_wins ? isnan(value) || value > best : !isnan(value) && (isnan(best) || value > best);
        if (wins)
            best = value, *where = k;
    }
    return best * s->factor;
}

static float sum_at(const struct sweep *s, const struct memory *m, int64_t position, int64_t channel) {
    float sum = 0;
    for (int k = 0; k < TAPS; k++) {
        int64_t element = element_at(k, position, channel);
        int pick = s->pick_type == WEFT_DATA_INT8 ? ((int8_t *)m->picks)[element] : ((int32_t *)m->picks)[element];
        if (!s->has_picks || pick == k % 4)
            sum += read(s, m, element) * s->weights[k];
    }
    return sum * s->factor;
}

/* Lists the taps from `first` to `end` (exclusive). */
static void list(struct sweep *s, const struct memory *m, int first, int end) {
    s->count = 0;
    for (int k = first; k < end; k++) {
        s->rows[s->count] = m->rows + dtype_bytes(s->type, element_at(k, 0, 0));
        s->picks[s->count] = m->picks + dtype_bytes(s->pick_type, element_at(k, 0, 0));
        s->weights[s->count] = 1 + (float)(k % 3);
        s->numbers[s->count++] = s->has_picks ? k % 4 : k;
    }
}

static bool is_same(float a, float b) { return a == b || (isnan(a) && isnan(b)); }

/* Runs two sweeps; the second one continues the first. */
static void check(const struct sweep_kernels *kernels, struct sweep s, bool is_maximum) {
    struct memory m = fill(&s);
    float results[POSITIONS * CHANNELS];
    int32_t where[POSITIONS * CHANNELS];
    void (*run)(const struct sweep *) = is_maximum ? kernels->maximum : kernels->sum;
    s.channels = CHANNELS, s.positions = POSITIONS;
    s.row_step = dtype_bytes(s.type, CHANNELS), s.pick_step = dtype_bytes(s.pick_type, CHANNELS);
    s.result_step = s.where_step = CHANNELS;
    s.results = results, s.where = s.where ? where : NULL, s.factor = 1;
    list(&s, &m, 0, 4);
    run(&s);
    list(&s, &m, 4, TAPS);
    s.continues = true, s.factor = 0.5f;
    run(&s);
    list(&s, &m, 0, TAPS);
    for (int64_t i = 0; i < POSITIONS * CHANNELS; i++) {
        int tap = 0;
        float want = is_maximum ? maximum_at(&s, &m, i / CHANNELS, i % CHANNELS, &tap)
                                : sum_at(&s, &m, i / CHANNELS, i % CHANNELS);
        CHECK(is_same(results[i], want), "%s: type %d: result %d is %g, not %g", kernels->name, (int)s.type, (int)i,
              results[i], want);
        CHECK(!s.where || where[i] == tap, "%s: type %d: place %d is %d, not %d", kernels->name, (int)s.type, (int)i,
              where[i], tap);
    }
    free(m.rows);
    free(m.picks);
}

static void check_all(const struct sweep_kernels *kernels, weftDataType_t type) {
    static int32_t asked;
    for (int i = 0; i < 4; i++)
        check(kernels,
              (struct sweep){
                  .type = type, .pick_type = WEFT_DATA_INT8, .nan_wins = i & 1, .where = i & 2 ? &asked : NULL},
              true);
    for (int i = 0; i < 3; i++)
        check(kernels,
              (struct sweep){.type = type, .has_picks = i > 0, .pick_type = i > 1 ? WEFT_DATA_INT32 : WEFT_DATA_INT8},
              false);
}

int main(void) {
    const struct sweep_kernels *kernels;
    int rank = 0;
    for (; (kernels = sweep_kernels(rank)); rank++) {
        check_all(kernels, WEFT_DATA_FLOAT);
        check_all(kernels, WEFT_DATA_BFLOAT16);
        check_all(kernels, WEFT_DATA_HALF);
    }
    CHECK(rank > 0, "no kernel");
    return harness_end();
}
