/* SPDX-License-Identifier: Apache-2.0 */
/* Channels-last pooling, forward and backward: each result is computed by a sweep over the list of its inputs, and
   adjacent results whose lists differ only by a constant step share one sweep. A gradient gathers: the outputs that
   read an element of x are tabulated, so dx is stored once and nothing is scattered. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/pooling/loops.h"
#include "engines/cpu/pooling/pooling.h"
#include "engines/cpu/pooling/sweep.h"

#include <math.h>

/* Read instead of zero padding. */
static const float zeros[POOLING_LANES];

/* Results that are computed together: `positions` of them, starting at `at`, at a distance of one result step along the
   last axis. `result`: y or dx; `index` is written by the forward operation and read by the gradient. */
struct batch {
    const struct pooling *w;
    const struct pooling_direction *direction;
    const struct sweep_kernels *kernels;
    struct pooling_side source, result, index;
    int64_t n, c, channels, at[POOLING_AXES], positions;
    bool finds_maximum, is_direct; /* is_direct: sums are accumulated in the result's memory */
    bool is_blended;               /* the rows of the outer axes are combined into one */
    bool is_single;                /* padding is read, which has no next position */
    struct sweep sweep;
    float *sums; /* with where: room for POOLING_LANES */
    /* A sum that needs several sweeps of `run` taps continues in double: `totals` accumulates the sweeps' results,
       which are stored in `partial`; both are packed. */
    bool is_long;
    int run;
    double *totals;
    float *partial;
    int32_t *where;
    /* Channels of the current row: address of the first one of the source and of the picks, and the strides between
       positions in bytes. */
    const char *rows, *picks;
    float *results; /* if sums are in the result's memory: the row's first position */
    int64_t row_bytes[POOLING_AXES], pick_bytes[POOLING_AXES];
};

/* Bytes of an operand's elements. */
static int64_t bytes_of(const struct pooling_side *side, int64_t elements) { return dtype_bytes(side->type, elements); }

static const char *address(const struct pooling_side *side, const struct batch *b, const int64_t *at) {
    return (const char *)side->data + bytes_of(side, pooling_offset(side->operand, b->n, b->c, at));
}

/* Sets the fields that all sweeps over these channels share. */
static void begin_channels(struct batch *b) {
    static const int64_t origin[POOLING_AXES];
    const int64_t row[] = {b->at[0], b->at[1], 0};
    struct sweep *s = &b->sweep;
    b->is_direct = b->result.data && b->result.type == WEFT_DATA_FLOAT;
    s->type = b->source.type, s->pick_type = b->index.type;
    s->channels = b->channels;
    s->has_picks = !b->finds_maximum && b->index.data;
    s->where = b->finds_maximum && b->index.data ? b->where : NULL, s->where_step = b->channels;
    s->nan_wins = b->w->g.propagates_nan;
    b->rows = address(&b->source, b, origin);
    b->picks = s->has_picks ? address(&b->index, b, origin) : b->rows;
    for (int i = 0; i < POOLING_AXES; i++) {
        b->row_bytes[i] = bytes_of(&b->source, b->source.operand->size_stride[i]);
        b->pick_bytes[i] = s->has_picks ? bytes_of(&b->index, b->index.operand->size_stride[i]) : 0;
    }
    s->row_step = b->direction->source_step * b->row_bytes[2];
    s->pick_step = b->direction->source_step * b->pick_bytes[2];
    b->results = b->is_direct ? (float *)address(&b->result, b, row) : b->sums;
    s->result_step = b->is_direct ? b->direction->result_step * b->result.operand->size_stride[2] : b->channels;
}

/* Keeps the lists of the previous sweep: clearing them takes as long as a short sweep. */
static void begin(struct batch *b) {
    struct sweep *s = &b->sweep;
    s->positions = b->positions;
    s->results = b->is_direct ? b->results + b->at[2] * b->result.operand->size_stride[2] : b->sums;
    s->count = 0, s->factor = 1;
    s->continues = false;
    for (int64_t i = 0; i < b->positions * b->channels && b->is_long; i++)
        b->totals[i] = 0;
}

static void add_to_totals(struct batch *b) {
    struct sweep part = b->sweep;
    part.results = b->partial, part.result_step = b->channels, part.factor = 1;
    b->kernels->sum(&part);
    for (int64_t i = 0; i < b->positions * b->channels; i++)
        b->totals[i] += (double)b->partial[i];
    b->sweep.count = 0;
}

static void store_totals(struct batch *b) {
    const struct sweep *s = &b->sweep;
    for (int64_t p = 0; p < b->positions; p++)
        for (int64_t i = 0; i < b->channels; i++)
            s->results[p * s->result_step + i] = (float)(b->totals[p * b->channels + i] * (double)s->factor);
}

static void sweep(struct batch *b) {
    if (b->is_long) {
        add_to_totals(b);
        return;
    }
    (b->finds_maximum ? b->kernels->maximum : b->kernels->sum)(&b->sweep);
    b->sweep.continues = true;
    b->sweep.count = 0;
}

static void add(struct batch *b, const char *row, const char *pick, int64_t number, double weight) {
    struct sweep *s = &b->sweep;
    if (s->count == b->run)
        sweep(b);
    s->rows[s->count] = row;
    s->picks[s->count] = pick;
    s->numbers[s->count] = (int32_t)number;
    s->weights[s->count++] = (float)weight;
}

/* The maximum of an empty window is -inf at position 0, which exists. */
static void fill(struct batch *b) {
    const struct sweep *s = &b->sweep;
    for (int64_t p = 0; p < b->positions; p++)
        for (int64_t i = 0; i < b->channels; i++) {
            s->results[p * s->result_step + i] = -INFINITY * s->factor;
            b->where[p * b->channels + i] = 0;
        }
}

static void store_where(const struct pooling_side *index, int64_t offset, const int32_t *where, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (index->type == WEFT_DATA_INT8)
            ((int8_t *)index->data)[offset + i] = (int8_t)where[i];
        else
            ((int32_t *)index->data)[offset + i] = where[i];
}

static void finish(struct batch *b, float factor) {
    const struct pooling_side *result = &b->result;
    b->sweep.factor = factor;
    if (b->finds_maximum && b->sweep.count == 0 && !b->sweep.continues)
        fill(b);
    else
        sweep(b);
    if (b->is_long)
        store_totals(b);
    if (b->is_direct && !b->sweep.where)
        return;
    int64_t at[] = {b->at[0], b->at[1], b->at[2]};
    for (int64_t p = 0; p < b->positions; p++, at[2] += b->direction->result_step) {
        if (b->sweep.where)
            store_where(&b->index, pooling_offset(b->index.operand, b->n, b->c, at), b->where + p * b->channels,
                        b->channels);
        if (result->data && !b->is_direct)
            dtype_from_f32(result->type, result->data, pooling_offset(result->operand, b->n, b->c, at),
                           b->sums + p * b->channels, b->channels);
    }
}

/* alpha divided by the number of elements that a mean counts; an empty mean is 0. */
static float factor_at(const struct pooling *w, const int64_t *at) {
    int64_t count = 1;
    for (int i = 0; w->is_mean && i < POOLING_AXES; i++)
        count *= w->axes[i].counts[at[i]];
    return count ? (float)(w->g.alpha / (double)count) : 0;
}

/* ---- Rows of results --------------------------------------------------------------------------------------------- */

/* Adds the links along the last axis at one position of the others. NULL: that position is outside, and so are all its
   taps. */
static void add_links(struct batch *b, const char *row, const char *pick, int64_t number, double weight) {
    struct pooling_link *const *links = &b->direction->links[2][b->at[2]];
    int taps = b->w->axes[2].taps;
    for (const struct pooling_link *k = links[0]; k < links[1]; k++)
        if (row && k->source_index != POOLING_OUTSIDE)
            add(b, row + k->source_index * b->row_bytes[2], pick + k->source_index * b->pick_bytes[2],
                number * taps + k->tap, weight * k->weight);
        else
            add(b, (const char *)zeros, NULL, number * taps + k->tap, 1);
}

/* False if the results of a sum overflowed or their operands are not finite. */
static bool is_finite(const struct batch *b) {
    const struct sweep *s = &b->sweep;
    if (s->result_step == b->channels)
        return tap_is_finite(s->results, b->positions * b->channels);
    for (int64_t p = 0; p < b->positions; p++)
        if (!tap_is_finite(s->results + p * s->result_step, b->channels))
            return false;
    return true;
}

/* Adds all links of the batch's first result in the order of the tap numbers, so that the first of equal maxima
   wins. */
static void add_all(struct batch *b) {
    struct pooling_link *const *i_links = &b->direction->links[0][b->at[0]], *const *j_links =
                                                                                 &b->direction->links[1][b->at[1]];
    double alpha = b->direction->is_gradient ? b->w->g.alpha : 1;
    if (b->is_blended) {
        add_links(b, b->rows, b->picks, 0, 1);
        return;
    }
    for (const struct pooling_link *i = i_links[0]; i < i_links[1]; i++)
        for (const struct pooling_link *j = j_links[0]; j < j_links[1]; j++) {
            bool is_outside = i->source_index == POOLING_OUTSIDE || j->source_index == POOLING_OUTSIDE;
            add_links(
                b, is_outside ? NULL : b->rows + i->source_index * b->row_bytes[0] + j->source_index * b->row_bytes[1],
                b->picks + i->source_index * b->pick_bytes[0] + j->source_index * b->pick_bytes[1],
                i->tap * b->w->axes[1].taps + j->tap, alpha * i->weight * j->weight);
        }
}

static bool reads_outside(const struct batch *b) {
    for (int i = 0; i < 2; i++)
        for (const struct pooling_link *k = b->direction->links[i][b->at[i]]; k < b->direction->links[i][b->at[i] + 1];
             k++)
            if (k->source_index == POOLING_OUTSIDE)
                return true;
    return false;
}

/* True if the sum of the batch's first result needs more than one sweep. */
static bool is_long(const struct batch *b) {
    int64_t count = 1;
    for (int i = b->is_blended ? 2 : 0; i < POOLING_AXES; i++)
        count *= b->direction->links[i][b->at[i] + 1] - b->direction->links[i][b->at[i]];
    return !b->finds_maximum && count > SWEEP_TAPS;
}

static int64_t most_positions(const struct batch *b) {
    if (b->is_single)
        return 1;
    return b->is_direct && !b->is_long && !b->sweep.where ? INT64_MAX : POOLING_LANES / b->channels;
}

/* True if rows of the outer axes may be combined for a sum: all channels of a row are contiguous. */
static bool blends(const struct batch *b) {
    const struct resample_operand *o = b->source.operand;
    int64_t channels = b->w->g.c, row = o->size[2] * channels;
    int64_t taps = (b->direction->links[0][b->at[0] + 1] - b->direction->links[0][b->at[0]]) *
                   (b->direction->links[1][b->at[1] + 1] - b->direction->links[1][b->at[1]]);
    return taps <= SWEEP_TAPS && !b->finds_maximum && !b->sweep.has_picks && b->source.type == WEFT_DATA_FLOAT &&
           channels <= b->w->lanes && o->size_stride[2] == channels && row <= POOLING_ROW &&
           b->w->axes[0].taps * b->w->axes[1].taps > 1;
}

/* Combining rows leaves fewer taps per result. */
static void blend_rows(struct batch *b, float *blended) {
    struct sweep *s = &b->sweep;
    double alpha = b->direction->is_gradient ? b->w->g.alpha : 1;
    b->is_long = false;
    begin(b);
    s->channels = b->source.operand->size[2] * b->channels, s->positions = 1, s->results = blended;
    for (const struct pooling_link *i = b->direction->links[0][b->at[0]]; i < b->direction->links[0][b->at[0] + 1]; i++)
        for (const struct pooling_link *j = b->direction->links[1][b->at[1]]; j < b->direction->links[1][b->at[1] + 1];
             j++)
            add(b, b->rows + i->source_index * b->row_bytes[0] + j->source_index * b->row_bytes[1], NULL, 0,
                alpha * i->weight * j->weight);
    sweep(b);
    s->channels = b->channels;
    b->rows = (const char *)blended;
}

/* True if a row of results is computed in cache and then flushed as a whole. */
static bool is_staged(const struct batch *b) {
    const struct resample_operand *o = b->result.operand;
    return b->result.data && b->result.type == WEFT_DATA_FLOAT && tensor_bytes(o->tensor) > POOLING_LARGE &&
           o->size_stride[2] == b->w->g.c && o->size[2] * b->w->g.c <= POOLING_ROW;
}

static void make(struct batch *b) {
    begin(b);
    add_all(b);
    finish(b, b->direction->is_gradient ? 1 : factor_at(b->w, b->at));
}

/* Recomputes a sum that overflowed in float, because its mean may be representable: each tap is a separate sweep, added
   in double. */
static void recompute(const struct batch *b) {
    static const int64_t origin[POOLING_AXES];
    struct batch one = *b;
    one.is_long = true, one.run = 1, one.positions = 1;
    one.is_blended = false, one.rows = address(&b->source, b, origin);
    for (int64_t p = 0; p < b->positions; p++, one.at[2] += b->direction->result_step)
        make(&one);
}

/* Computes a row of results, each with all its channels. */
static void run_row(struct batch *b) {
    const struct pooling *w = b->w;
    const struct pooling_direction *direction = b->direction;
    float sums[POOLING_LANES], partial[POOLING_LANES], row[POOLING_ROW], blended[POOLING_ROW];
    double totals[POOLING_LANES];
    int32_t where[POOLING_LANES];
    const int64_t first[] = {b->at[0], b->at[1], 0};
    bool stages = is_staged(b);
    b->sums = sums, b->where = where, b->partial = partial, b->totals = totals, b->run = SWEEP_TAPS;
    b->is_single = reads_outside(b);
    for (b->c = 0; b->c < w->g.c; b->c += w->lanes) {
        b->channels = min64(w->lanes, w->g.c - b->c);
        begin_channels(b);
        b->is_blended = blends(b);
        if (b->is_blended)
            blend_rows(b, blended);
        if (stages)
            b->results = row + b->c;
        for (const struct pooling_segment *s = direction->segments; s < direction->segments + direction->segment_count;
             s++)
            for (int64_t done = 0; done < s->positions; done += b->positions) {
                b->at[2] = s->first + done * direction->result_step;
                b->is_long = is_long(b);
                b->positions = min64(s->positions - done, most_positions(b));
                make(b);
                if (w->is_mean && !direction->is_gradient && !is_finite(b))
                    recompute(b);
            }
    }
    b->c = 0;
    if (stages)
        sweep_flush((float *)address(&b->result, b, first), row, b->result.operand->size[2] * w->g.c);
}

/* Computes the rows of a task. size: the extents of the results. */
static void run_rows(struct batch *b, const int64_t *size, int64_t task) {
    int64_t first = task * b->direction->task_rows,
            end = min64(first + b->direction->task_rows, b->w->g.n * size[0] * size[1]);
    for (int64_t row = first; row < end; row++) {
        b->n = row / size[1] / size[0];
        b->at[0] = row / size[1] % size[0], b->at[1] = row % size[1];
        run_row(b);
    }
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

void pooling_channels_forward_task(void *context, int64_t task) {
    const struct pooling_job *job = context;
    const struct pooling *w = job->pooling;
    struct batch b = {.w = w, .direction = &w->forward, .kernels = sweep_kernels(0), .finds_maximum = w->is_max};
    b.source = pooling_side_of(&w->g.x, job->values[w->x]);
    b.result = pooling_side_of(&w->g.y, job->values[w->y]);
    b.index = pooling_side_of(&w->g.index, w->index < 0 ? NULL : job->values[w->index]);
    run_rows(&b, w->g.y.size, task);
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* Location of the recomputed maxima of a gradient without an index: packed, [n][y][c], in the workspace. */
static struct resample_operand recomputed_index(const struct pooling *w) {
    const int64_t *y = w->g.y.size, c = w->g.c;
    return (struct resample_operand){.size = {y[0], y[1], y[2]},
                                     .batch_stride = y[0] * y[1] * y[2] * c,
                                     .channel_stride = 1,
                                     .size_stride = {y[1] * y[2] * c, y[2] * c, c}};
}

int64_t pooling_channels_workspace_bytes(const struct pooling *w) {
    const int64_t *y = w->g.y.size;
    return w->g.backward && w->is_max && w->index < 0 ? w->g.n * y[0] * y[1] * y[2] * w->g.c * 4 : 0;
}

void pooling_channels_find_task(void *context, int64_t task) {
    const struct pooling_job *job = context;
    const struct pooling *w = job->pooling;
    const struct resample_operand positions = recomputed_index(w);
    struct batch b = {.w = w, .direction = &w->forward, .kernels = sweep_kernels(0), .finds_maximum = w->is_max};
    b.source = pooling_side_of(&w->g.saved, job->values[w->saved]);
    b.result = (struct pooling_side){WEFT_DATA_FLOAT, NULL, &w->g.y};
    b.index = (struct pooling_side){WEFT_DATA_INT32, job->workspace, &positions};
    run_rows(&b, w->g.y.size, task);
}

void pooling_channels_backward_task(void *context, int64_t task) {
    const struct pooling_job *job = context;
    const struct pooling *w = job->pooling;
    const struct resample_operand positions = recomputed_index(w);
    struct batch b = {.w = w, .direction = &w->gradient, .kernels = sweep_kernels(0)};
    b.source = pooling_side_of(&w->g.y, job->values[w->y]);
    b.result = pooling_side_of(&w->g.x, job->values[w->x]);
    if (w->index >= 0)
        b.index = pooling_side_of(&w->g.index, job->values[w->index]);
    else if (w->is_max)
        b.index = (struct pooling_side){WEFT_DATA_INT32, job->workspace, &positions};
    run_rows(&b, w->g.x.size, task);
}
