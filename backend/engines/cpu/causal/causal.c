/* SPDX-License-Identifier: Apache-2.0 */
/* The causal family: causal convolutions of sequences and their gradients. A tile of some channels and steps is loaded
   into float buffers, [step][lane], where each tap is one vectorized pass. Lanes are adjacent channels, or there is a
   single channel whose steps are contiguous. One thread sums the gradient of a filter, in the order of the steps. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/loops.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/families.h"
#include "graph/ops/causal_conv.h"

#include <string.h>

enum {
    TILE = 8192,     /* floats of a buffer: what a task reads or computes for some steps and channels */
    LANES_MOST = 64, /* adjacent channels */
    /* minimum ratio of the steps of a tile to the taps of a filter; otherwise lanes are reduced */
    FEW_TAPS = 6,
};

/* Measured with two threads on an EPYC. */
static const double BYTES_PER_SECOND = 14e9;
static const double TAP_SECONDS = 0.1e-9;        /* per thread: one tap of one step */
static const double ACTIVATION_SECONDS = 1.2e-9; /* per thread: one activation, including the copies through buffers */
static const double START_SECONDS = 1e-6;

struct causal {
    const struct causal_conv_op *op;
    bool is_backward, is_silu;
    int64_t batch, channels, steps, taps;
    int64_t lanes, blocks;                          /* channels per tile; tiles per step */
    int64_t length, parts;                          /* steps that a tile computes; tiles per sequence */
    int x, y, weight, bias, dy, dx, dweight, dbias; /* values of the graph, or -1 */
};

struct job {
    const struct causal *c;
    void *const *values;
};

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static int value_of(const struct region *region, const struct tensor *tensor) {
    return tensor ? graph_find_value(region->graph, tensor) : -1;
}

static weftStatus_t check_types(const struct causal_conv_op *op) {
    const struct tensor *tensors[] = {op->x, op->weight, op->bias, op->y, op->dy, op->dx, op->dweight, op->dbias};
    for (int i = 0; i < 8; i++)
        if (tensors[i] && (tensors[i]->type == WEFT_DATA_DOUBLE || op->math == WEFT_DATA_DOUBLE))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
                 "%s: its compute data type is DOUBLE, but this family sums in FLOAT. Use FLOAT.",
                 descriptor_label(&op->base));
    return WEFT_STATUS_SUCCESS;
}

/* Chooses as many lanes as leave a tile enough steps in addition to the halo that the taps read before and after it. */
static weftStatus_t choose_tile(struct causal *c) {
    c->lanes = c->op->x->strides.at[CAUSAL_TIME] == 1 && c->steps > 1 ? 1 : min64(LANES_MOST, max64(c->channels, 1));
    while (c->lanes > 1 && TILE / c->lanes < FEW_TAPS * c->taps)
        c->lanes = divide_up(c->lanes, 2);
    if (TILE / c->lanes < FEW_TAPS * c->taps)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its filters have %lld tap%s, at most %d are supported.",
             descriptor_label(&c->op->base), (long long)c->taps, plural(c->taps), TILE / FEW_TAPS);
    c->blocks = divide_up(c->channels, c->lanes);
    c->length = TILE / c->lanes - 2 * (c->taps - 1);
    c->parts = divide_up(c->steps, c->length);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse(struct causal *c, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || (op_of(op) != &causal_conv_op && op_of(op) != &causal_conv_bwd_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: only a single causal convolution is supported, with nothing fused.", descriptor_label(op));
    *c = (struct causal){.op = (const struct causal_conv_op *)op, .is_backward = op_of(op) == &causal_conv_bwd_op};
    const struct tensor *x = c->op->x;
    TRY(check_types(c->op));
    c->is_silu = causal_conv_is_silu(c->op);
    c->batch = x->dims.at[CAUSAL_BATCH], c->channels = x->dims.at[CAUSAL_CHANNEL], c->steps = x->dims.at[CAUSAL_TIME];
    c->taps = causal_conv_taps(c->op);
    c->x = value_of(region, x), c->y = value_of(region, c->op->y), c->dy = value_of(region, c->op->dy);
    c->dx = value_of(region, c->op->dx), c->weight = value_of(region, c->op->weight);
    c->bias = value_of(region, c->op->bias), c->dweight = value_of(region, c->op->dweight);
    c->dbias = value_of(region, c->op->dbias);
    return choose_tile(c);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct causal c;
    TRY(analyse(&c, region));
    double elements = (double)tensor_elements(c.op->x), bytes = (double)tensor_bytes(c.op->x);
    double each = (double)c.taps * TAP_SECONDS + ACTIVATION_SECONDS;
    double computing = elements * each * (c.is_backward ? 3 : 1) / (device->threads > 1 ? device->threads : 1);
    double moving = bytes * (c.is_backward ? 3 : 2) / BYTES_PER_SECOND;
    offer->seconds = START_SECONDS + (computing > moving ? computing : moving);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

WIDE static void add_scaled(int64_t count, float *restrict sums, const float *restrict x, float w) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        sums[i] += x[i] * w;
}

WIDE static void add_products(int64_t count, float *restrict sums, const float *restrict x, const float *restrict w) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        sums[i] += x[i] * w[i];
}

enum { CHAINS = 16 };

/* Sums products in CHAINS independent chains, so that the loop is vectorized in a fixed order. */
WIDE static float dot(int64_t count, const float *restrict x, const float *restrict w) {
    float chains[CHAINS] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + CHAINS <= count; i += CHAINS)
        for (int k = 0; k < CHAINS; k++)
            chains[k] += x[i + k] * w[i + k];
    for (; i < count; i++)
        chains[i % CHAINS] += x[i] * w[i];
    for (int k = 0; k < CHAINS; k++)
        sum += chains[k];
    return sum;
}

/* Position of a task: channels [first, first + lanes) of a sequence. */
struct position {
    int64_t entry, first, lanes;
};

static const int64_t *strides_of(const struct tensor *t) { return t->strides.at; }

/* Loads rows of steps [begin, begin + count) into [step][lane]; 0 outside the sequence. */
static void load(const struct job *job, int value, const struct tensor *t, struct position at, int64_t begin,
                 int64_t count, float *tile) {
    const int64_t *strides = strides_of(t), steps = job->c->steps, lanes = at.lanes;
    int64_t from = max64(begin, 0), end = max64(min64(begin + count, steps), from);
    int64_t origin = at.entry * strides[CAUSAL_BATCH] + at.first * strides[CAUSAL_CHANNEL];
    weftDataType_t type = (weftDataType_t)t->type;
    memset(tile, 0, (size_t)(min64(from - begin, count) * lanes) * sizeof *tile);
    if (begin + count > end)
        memset(tile + max64(end - begin, 0) * lanes, 0,
               (size_t)((begin + count - max64(end, begin)) * lanes) * sizeof *tile);
    if (lanes == 1 && strides[CAUSAL_TIME] == 1) {
        dtype_to_f32(tile + (from - begin), type, job->values[value], origin + from, end - from);
        return;
    }
    for (int64_t l = from; l < end; l++) {
        int64_t row = origin + l * strides[CAUSAL_TIME];
        if (strides[CAUSAL_CHANNEL] == 1)
            dtype_to_f32(tile + (l - begin) * lanes, type, job->values[value], row, lanes);
        else
            for (int64_t d = 0; d < lanes; d++)
                dtype_to_f32(tile + (l - begin) * lanes + d, type, job->values[value],
                             row + d * strides[CAUSAL_CHANNEL], 1);
    }
}

/* The inverse of load, for `count` steps within the sequence. */
static void store(const struct job *job, int value, const struct tensor *t, struct position at, int64_t begin,
                  int64_t count, const float *tile) {
    const int64_t *strides = strides_of(t), lanes = at.lanes;
    int64_t origin = at.entry * strides[CAUSAL_BATCH] + at.first * strides[CAUSAL_CHANNEL];
    weftDataType_t type = (weftDataType_t)t->type;
    if (lanes == 1 && strides[CAUSAL_TIME] == 1) {
        dtype_from_f32(type, job->values[value], origin + begin, tile, count);
        return;
    }
    for (int64_t l = 0; l < count; l++) {
        int64_t row = origin + (begin + l) * strides[CAUSAL_TIME];
        if (strides[CAUSAL_CHANNEL] == 1)
            dtype_from_f32(type, job->values[value], row, tile + l * lanes, lanes);
        else
            for (int64_t d = 0; d < lanes; d++)
                dtype_from_f32(type, job->values[value], row + d * strides[CAUSAL_CHANNEL], tile + l * lanes + d, 1);
    }
}

/* Filters of a block's channels as floats, [tap][lane], and their biases. */
struct filters {
    float taps[TILE / FEW_TAPS], bias[LANES_MOST];
};

static void load_filters(struct filters *f, const struct job *job, struct position at) {
    const struct causal *c = job->c;
    const struct tensor *weight = c->op->weight, *bias = c->op->bias;
    for (int64_t d = 0; d < at.lanes; d++) {
        for (int64_t k = 0; k < c->taps; k++)
            dtype_to_f32(f->taps + k * at.lanes + d, (weftDataType_t)weight->type, job->values[c->weight],
                         (at.first + d) * weight->strides.at[0] + k * weight->strides.at[1], 1);
        f->bias[d] = 0;
        if (bias)
            dtype_to_f32(f->bias + d, (weftDataType_t)bias->type, job->values[c->bias],
                         (at.first + d) * bias->strides.at[0], 1);
    }
}

/* Applies one tap to `count` steps: sums[l] += x[l] * w, for each lane. */
static void add_tap(float *sums, const float *x, const float *w, int64_t count, int64_t lanes) {
    if (lanes == 1)
        add_scaled(count, sums, x, *w);
    for (int64_t l = 0; l < count && lanes > 1; l++)
        add_products(lanes, sums + l * lanes, x + l * lanes, w);
}

/* sums[l] = bias + the taps applied to x[l] to x[l + taps - 1]. */
static void compute_sums(float *sums, const float *x, const struct filters *f, int64_t taps, int64_t count,
                         int64_t lanes) {
    for (int64_t l = 0; l < count; l++)
        memcpy(sums + l * lanes, f->bias, (size_t)lanes * sizeof *sums);
    for (int64_t k = 0; k < taps; k++)
        add_tap(sums, x + k * lanes, f->taps + k * lanes, count, lanes);
}

static const struct pointwise_parameters silu = {.beta = 1};

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* A task is a tile: steps of some channels of one sequence. */
static void run_forward(void *context, int64_t task) {
    const struct job *job = context;
    const struct causal *c = job->c;
    float x[TILE], sums[TILE];
    struct filters f;
    int64_t part = task % c->parts, block = task / c->parts % c->blocks, begin = part * c->length;
    struct position at = {task / c->parts / c->blocks, block * c->lanes, 0};
    at.lanes = min64(c->lanes, c->channels - at.first);
    int64_t count = min64(c->length, c->steps - begin);
    load_filters(&f, job, at);
    load(job, c->x, c->op->x, at, begin - (c->taps - 1), count + c->taps - 1, x);
    compute_sums(sums, x, &f, c->taps, count, at.lanes);
    if (c->is_silu)
        loop_f32(WEFT_POINTWISE_SWISH_FWD)(count * at.lanes, sums, sums, sums, sums, &silu);
    store(job, c->y, c->op->y, at, begin, count, sums);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* Sums over all sequences, [tap][lane], followed by those of the bias; double, because every tile adds to them. */
struct totals {
    double at[TILE / FEW_TAPS + LANES_MOST];
};

/* Adds a tile's contribution: ds of its own steps, whose taps see x starting at its first row. */
static void add_totals(struct totals *totals, const float *ds, const float *x, int64_t taps, int64_t count,
                       int64_t lanes) {
    float sums[LANES_MOST];
    static const float one[LANES_MOST] = {[0 ... LANES_MOST - 1] = 1};
    for (int64_t k = 0; k <= taps; k++) {
        memset(sums, 0, sizeof sums);
        if (lanes == 1 && k < taps)
            sums[0] = dot(count, ds, x + k);
        for (int64_t l = 0; l < count && (lanes > 1 || k == taps); l++)
            add_products(lanes, sums, ds + l * lanes, k == taps ? one : x + (l + k) * lanes);
        for (int64_t d = 0; d < lanes; d++)
            totals->at[k * lanes + d] += sums[d];
    }
}

/* dx[l] = sum over k of taps[taps - 1 - k] * ds[l + k]. */
static void compute_dx(float *dx, const float *ds, const struct filters *f, int64_t taps, int64_t count,
                       int64_t lanes) {
    memset(dx, 0, (size_t)(count * lanes) * sizeof *dx);
    for (int64_t k = 0; k < taps; k++)
        add_tap(dx, ds + k * lanes, f->taps + (taps - 1 - k) * lanes, count, lanes);
}

static void run_tile(const struct job *job, struct position at, int64_t begin, const struct filters *f,
                     struct totals *totals) {
    const struct causal *c = job->c;
    float x[TILE], ds[TILE], sums[TILE];
    int64_t count = min64(c->length, c->steps - begin), around = c->taps - 1, lanes = at.lanes;
    /* ds is also needed for the existing steps after the tile; load() fills the others with 0. */
    int64_t padded_count = min64(count + around, c->steps - begin);
    load(job, c->x, c->op->x, at, begin - around, count + 2 * around, x);
    load(job, c->dy, c->op->dy, at, begin, count + around, ds);
    if (c->is_silu) {
        compute_sums(sums, x, f, c->taps, padded_count, lanes);
        loop_f32(WEFT_POINTWISE_SWISH_BWD)(padded_count * lanes, ds, sums, ds, sums, &silu);
    }
    add_totals(totals, ds, x, c->taps, count, lanes);
    if (c->dx < 0 || !job->values[c->dx])
        return;
    compute_dx(sums, ds, f, c->taps, count, lanes);
    store(job, c->dx, c->op->dx, at, begin, count, sums);
}

/* One number per tap and channel, or per channel; values without readers have no memory. */
static void store_totals(const struct job *job, int value, const struct tensor *t, struct position at, int64_t taps,
                         const double *totals) {
    if (value < 0 || !job->values[value])
        return;
    for (int64_t k = 0; k < taps; k++)
        for (int64_t d = 0; d < at.lanes; d++) {
            float sum = (float)totals[k * at.lanes + d];
            int64_t index = (at.first + d) * t->strides.at[0] + (k ? k * t->strides.at[1] : 0);
            dtype_from_f32((weftDataType_t)t->type, job->values[value], index, &sum, 1);
        }
}

/* A task is a block of channels, for all sequences. */
static void run_backward(void *context, int64_t task) {
    const struct job *job = context;
    const struct causal *c = job->c;
    struct filters f;
    struct totals totals = {0};
    struct position at = {0, task * c->lanes, min64(c->lanes, c->channels - task * c->lanes)};
    load_filters(&f, job, at);
    for (at.entry = 0; at.entry < c->batch; at.entry++)
        for (int64_t part = 0; part < c->parts; part++)
            run_tile(job, at, part * c->length, &f, &totals);
    store_totals(job, c->dweight, c->op->dweight, at, c->taps, totals.at);
    store_totals(job, c->dbias, c->op->dbias, at, 1, totals.at + c->taps * at.lanes);
}

/* ---- Building and running ---------------------------------------------------------------------------------------- */

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct causal *c;
    TRY(arena_alloc(arena, &c, sizeof *c));
    TRY(analyse(c, &step->region));
    TRY(threads_start());
    step->state = c;
    return arena_print(arena, &step->detail, "tiles of %lld step%s of %lld channel%s", (long long)c->length,
                       plural(c->length), (long long)c->lanes, plural(c->lanes));
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)workspace, (void)stream;
    struct job job = {step->state, values};
    const struct causal *c = job.c;
    if (c->is_backward)
        threads_for(c->blocks, run_backward, &job);
    else if (values[c->y])
        threads_for(c->batch * c->blocks * c->parts, run_forward, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_causal = {
    .name = "cpu.causal",
    .doc = "causal depthwise convolutions of sequences, and their gradients",
    .accepts = accepts,
    .build = build,
    .run = run,
};
