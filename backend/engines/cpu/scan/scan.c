/* SPDX-License-Identifier: Apache-2.0 */
/* The scan family: cumulative sums, products and extremes. A task is a group of lines, which advance together in tiles
   of double or int64, so that their chains of dependent operations overlap. */
#include "graph/ops/scan.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"
#include "engines/cpu/scan/tile.h"

#include <math.h>
#include <string.h>

/* Estimated, per thread. */
static const double ELEMENT_SECONDS = 1.5e-9, START_SECONDS = 1e-6;

enum { OF_X, OF_Y, OF_INDEX, SCAN_TENSORS };

struct scan {
    const struct scan_op *op;
    bool is_exact; /* in int64 */
    int64_t length, lanes;
    int values[SCAN_TENSORS]; /* of the graph, or -1 */
    struct lines lines;
};

struct job {
    const struct scan *scan;
    void *const *values;
};

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static weftStatus_t analyse(struct scan *s, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || op_of(op) != &scan_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only a single scan is supported, with nothing fused.",
             descriptor_label(op));
    *s = (struct scan){.op = (const struct scan_op *)op};
    const struct tensor *tensors[] = {s->op->x, s->op->y, s->op->index};
    for (int k = 0; k < SCAN_TENSORS; k++) {
        s->values[k] = tensors[k] ? graph_find_value(region->graph, tensors[k]) : -1;
        if (tensors[k] && dtype_of((weftDataType_t)tensors[k]->type)->bits < 8)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: elements of %s share bytes, which threads cannot write.",
                 descriptor_label(op), descriptor_label(&tensors[k]->base));
    }
    s->is_exact = !dtype_is_float(scan_math(s->op));
    int axis = axis_dimension(s->op->axis, s->op->x);
    s->length = s->op->x->dims.at[axis];
    lines_find(&s->lines, axis, tensors, SCAN_TENSORS);
    s->lanes = s->lines.count < TILE_LANES ? 1 : TILE_LANES;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct scan s;
    TRY(analyse(&s, region));
    double threads = fmin(device->threads > 1 ? device->threads : 1, fmax(1, (double)(s.lines.count / s.lanes)));
    offer->seconds = START_SECONDS + (double)tensor_elements(s.op->x) * ELEMENT_SECONDS / threads;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* Defines a loop over a tile that replaces elements by results. The number of lanes is a constant in each call, so that
   `totals` is in registers. */
#define LOOP(name, T, EXPRESSION)                                                                                      \
    static inline __attribute__((always_inline)) void name##_lanes(T *tile, T *totals, int lanes, int64_t count,       \
                                                                   bool is_exclusive, bool is_reversed) {              \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            T *at = tile + (is_reversed ? count - 1 - i : i);                                                          \
            for (int l = 0; l < lanes; l++) {                                                                          \
                const T x = at[l * TILE_STEPS], total = totals[l];                                                     \
                totals[l] = EXPRESSION;                                                                                \
                at[l * TILE_STEPS] = is_exclusive ? total : totals[l];                                                 \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name(T *tile, T *totals, int64_t lanes, int64_t count, bool is_exclusive, bool is_reversed) {          \
        if (lanes == TILE_LANES)                                                                                       \
            name##_lanes(tile, totals, TILE_LANES, count, is_exclusive, is_reversed);                                  \
        for (int64_t l = 0; l < lanes && lanes != TILE_LANES; l++)                                                     \
            name##_lanes(tile + l * TILE_STEPS, totals + l, 1, count, is_exclusive, is_reversed);                      \
    }
LOOP(sum_f64, double, total + x)
LOOP(product_f64, double, total *x)
LOOP(most_f64, double, total != total || total > x ? total : x)
LOOP(least_f64, double, total != total || total < x ? total : x)
LOOP(sum_i64, int64_t, (int64_t)((uint64_t)total + (uint64_t)x))
LOOP(product_i64, int64_t, (int64_t)((uint64_t)total * (uint64_t)x))
LOOP(most_i64, int64_t, total > x ? total : x)
LOOP(least_i64, int64_t, total < x ? total : x)

/* Replaces results by positions: `tile` holds the elements, and `results` what the loops above made of them. An element
   that equals its result is the latest extreme, and so is every NaN. */
#define POSITIONS(name, T)                                                                                             \
    static void name(int64_t *positions, int64_t *last, const T *tile, const T *results, int64_t lanes, int64_t count, \
                     int64_t begin, bool is_reversed) {                                                                \
        for (int64_t l = 0; l < lanes; l++)                                                                            \
            for (int64_t i = 0; i < count; i++) {                                                                      \
                int64_t s = is_reversed ? count - 1 - i : i, at = l * TILE_STEPS + s;                                  \
                last[l] = tile[at] == results[at] || tile[at] != tile[at] ? begin + s : last[l];                       \
                positions[at] = last[l];                                                                               \
            }                                                                                                          \
    }
POSITIONS(positions_f64, double)
POSITIONS(positions_i64, int64_t)

typedef void loop_f64(double *, double *, int64_t, int64_t, bool, bool);
typedef void loop_i64(int64_t *, int64_t *, int64_t, int64_t, bool, bool);

static const struct {
    loop_f64 *real;
    loop_i64 *whole;
    double identity;
    int64_t whole_identity;
} modes[] = {
    [WEFT_REDUCE_TENSOR_ADD] = {sum_f64, sum_i64, 0, 0},
    [WEFT_REDUCE_TENSOR_MUL] = {product_f64, product_i64, 1, 1},
    [WEFT_REDUCE_TENSOR_MIN] = {least_f64, least_i64, INFINITY, INT64_MAX},
    [WEFT_REDUCE_TENSOR_MAX] = {most_f64, most_i64, -INFINITY, INT64_MIN},
};

/* ---- Running ----------------------------------------------------------------------------------------------------- */

enum { TILE = TILE_LANES * TILE_STEPS };

/* A group of lines, between tiles. */
struct group {
    struct tile_lines lines[SCAN_TENSORS];
    void *memory[SCAN_TENSORS];
    int64_t lanes;
    double totals[TILE_LANES];
    int64_t whole_totals[TILE_LANES], last[TILE_LANES];
};

static void run_real(const struct scan *s, struct group *g, int64_t begin, int64_t count) {
    double tile[TILE], elements[TILE];
    int64_t positions[TILE];
    tile_load_f64(tile, &g->lines[OF_X], g->memory[OF_X], begin, count);
    if (g->memory[OF_INDEX])
        memcpy(elements, tile, (size_t)g->lanes * TILE_STEPS * sizeof *tile);
    modes[s->op->mode].real(tile, g->totals, g->lanes, count, s->op->is_exclusive, s->op->is_reversed);
    if (g->memory[OF_Y])
        tile_store_f64(tile, &g->lines[OF_Y], g->memory[OF_Y], begin, count);
    if (!g->memory[OF_INDEX])
        return;
    positions_f64(positions, g->last, elements, tile, g->lanes, count, begin, s->op->is_reversed);
    tile_store_i64(positions, &g->lines[OF_INDEX], g->memory[OF_INDEX], begin, count);
}

static void run_whole(const struct scan *s, struct group *g, int64_t begin, int64_t count) {
    int64_t tile[TILE], elements[TILE], positions[TILE];
    tile_load_i64(tile, &g->lines[OF_X], g->memory[OF_X], begin, count);
    if (g->memory[OF_INDEX])
        memcpy(elements, tile, (size_t)g->lanes * TILE_STEPS * sizeof *tile);
    modes[s->op->mode].whole(tile, g->whole_totals, g->lanes, count, s->op->is_exclusive, s->op->is_reversed);
    if (g->memory[OF_Y])
        tile_store_i64(tile, &g->lines[OF_Y], g->memory[OF_Y], begin, count);
    if (!g->memory[OF_INDEX])
        return;
    positions_i64(positions, g->last, elements, tile, g->lanes, count, begin, s->op->is_reversed);
    tile_store_i64(positions, &g->lines[OF_INDEX], g->memory[OF_INDEX], begin, count);
}

static void run_group(void *context, int64_t task) {
    const struct job *job = context;
    const struct scan *s = job->scan;
    const struct tensor *tensors[] = {s->op->x, s->op->y, s->op->index};
    int64_t first = task * s->lanes, parts = divide_up(s->length, TILE_STEPS);
    struct group g = {.lanes = min64(s->lanes, s->lines.count - first)};
    for (int k = 0; k < SCAN_TENSORS; k++) {
        g.memory[k] = s->values[k] < 0 ? NULL : job->values[s->values[k]];
        if (g.memory[k])
            g.lines[k] = tile_lines_at(&s->lines, k, (weftDataType_t)tensors[k]->type, first, g.lanes);
    }
    for (int l = 0; l < TILE_LANES; l++) {
        g.totals[l] = modes[s->op->mode].identity;
        g.whole_totals[l] = modes[s->op->mode].whole_identity;
    }
    for (int64_t i = 0; i < parts; i++) {
        int64_t begin = (s->op->is_reversed ? parts - 1 - i : i) * TILE_STEPS,
                count = min64(TILE_STEPS, s->length - begin);
        if (s->is_exact)
            run_whole(s, &g, begin, count);
        else
            run_real(s, &g, begin, count);
    }
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct scan *s;
    TRY(arena_alloc(arena, &s, sizeof *s));
    TRY(analyse(s, &step->region));
    TRY(threads_start());
    step->state = s;
    return arena_print(arena, &step->detail, "%lld line%s at a time, in %s", (long long)s->lanes, plural(s->lanes),
                       s->is_exact ? "64-bit integers" : "double");
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)workspace, (void)stream;
    struct job job = {step->state, values};
    threads_for(divide_up(job.scan->lines.count, job.scan->lanes), run_group, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_scan = {
    .name = "cpu.scan",
    .doc = "cumulative sums, products and extremes",
    .accepts = accepts,
    .build = build,
    .run = run,
};
