/* SPDX-License-Identifier: Apache-2.0 */
/* Windows whose channels lie side by side, forward and backward: each result is swept from the list of what it reads,
   and neighbours whose lists are the same but for a step are one sweep. A gradient gathers: the outputs that read an
   element of x are tabulated, so that dx is stored once and nothing is scattered. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/window/sweep.h"
#include "engines/cpu/window/window.h"

#include <math.h>

/* What padding of zeros reads. */
static const float zeros[WINDOW_LANES];

/* Results that are made at once: `positions` of them from `at` on, each `stride` behind the last one along the last
   axis. `result`: y or dx; `index` is written by the forward operation, read by the gradient. */
struct batch {
    const struct window *w;
    const struct sweep_kernels *kernels;
    struct window_side source, result, index;
    int64_t n, c, channels, at[WINDOW_AXES], positions, stride;
    bool finds_maximum, is_direct; /* is_direct: sums are the result's memory */
    struct sweep sweep;
    float *sums; /* with where: room for WINDOW_LANES */
    int32_t *where;
};

/* Bytes of an operand's elements. */
static int64_t bytes_of(const struct window_side *side, int64_t elements) { return dtype_bytes(side->type, elements); }

static const char *address(const struct window_side *side, const struct batch *b, const int64_t *at) {
    return (const char *)side->data + bytes_of(side, window_offset(side->operand, b->n, b->c, at));
}

/* The lists of the sweep before stay: clearing them takes as long as a short sweep. */
static void begin(struct batch *b, int64_t source_step) {
    const struct window_side *result = &b->result;
    struct sweep *s = &b->sweep;
    b->is_direct = result->data && result->type == WEFT_DATA_FLOAT;
    s->type = b->source.type, s->pick_type = b->index.type;
    s->channels = b->channels, s->positions = b->positions;
    s->row_step = bytes_of(&b->source, source_step * b->source.operand->size_stride[2]);
    s->results = b->is_direct ? (float *)address(result, b, b->at) : b->sums;
    s->result_step = b->is_direct ? b->stride * result->operand->size_stride[2] : b->channels;
    s->where = b->finds_maximum && b->index.data ? b->where : NULL, s->where_step = b->channels;
    s->has_picks = !b->finds_maximum && b->index.data;
    s->pick_step = s->has_picks ? bytes_of(&b->index, b->index.operand->size_stride[2]) : 0;
    s->count = 0, s->factor = 1;
    s->goes_on = false, s->nan_wins = b->w->g.propagates_nan;
}

static void sweep(struct batch *b) {
    (b->finds_maximum ? b->kernels->maximum : b->kernels->sum)(&b->sweep);
    b->sweep.goes_on = true;
    b->sweep.count = 0;
}

static void add(struct batch *b, const void *row, int32_t number, float weight) {
    struct sweep *s = &b->sweep;
    if (s->count == SWEEP_TAPS)
        sweep(b);
    s->rows[s->count] = row;
    s->numbers[s->count] = number;
    s->weights[s->count++] = weight;
}

/* A maximum of nothing is -inf, its place 0: one that exists. */
static void fill(struct batch *b) {
    const struct sweep *s = &b->sweep;
    for (int64_t p = 0; p < b->positions; p++)
        for (int64_t i = 0; i < b->channels; i++) {
            s->results[p * s->result_step + i] = -INFINITY * s->factor;
            b->where[p * b->channels + i] = 0;
        }
}

static void store_where(const struct window_side *index, int64_t offset, const int32_t *where, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (index->type == WEFT_DATA_INT8)
            ((int8_t *)index->data)[offset + i] = (int8_t)where[i];
        else
            ((int32_t *)index->data)[offset + i] = where[i];
}

static void finish(struct batch *b, float factor) {
    const struct window_side *result = &b->result;
    b->sweep.factor = factor;
    if (b->finds_maximum && b->sweep.count == 0 && !b->sweep.goes_on)
        fill(b);
    else
        sweep(b);
    int64_t at[] = {b->at[0], b->at[1], b->at[2]};
    for (int64_t p = 0; p < b->positions; p++, at[2] += b->stride) {
        if (b->sweep.where)
            store_where(&b->index, window_offset(b->index.operand, b->n, b->c, at), b->where + p * b->channels,
                        b->channels);
        if (result->data && !b->is_direct)
            dtype_from_f32(result->type, result->data, window_offset(result->operand, b->n, b->c, at),
                           b->sums + p * b->channels, b->channels);
    }
}

static float weight_of(const struct window_axis *axis, int64_t position, int64_t tap) {
    return axis->weights ? axis->weights[position * axis->taps + tap] : 1;
}

/* alpha over what a mean counts; a mean of nothing is 0. */
static float factor_at(const struct window *w, const int64_t *at) {
    int64_t count = 1;
    for (int i = 0; w->is_mean && i < WINDOW_AXES; i++)
        count *= w->axes[i].counts[at[i]];
    return count ? (float)(w->g.alpha / (double)count) : 0;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static void add_taps(struct batch *b) {
    const struct window_axis *axes = b->w->axes;
    int32_t number = 0;
    for (int i = 0; i < axes[0].taps; i++)
        for (int j = 0; j < axes[1].taps; j++)
            for (int k = 0; k < axes[2].taps; k++, number++) {
                const int64_t place[] = {axes[0].places[b->at[0] * axes[0].taps + i],
                                         axes[1].places[b->at[1] * axes[1].taps + j],
                                         axes[2].places[b->at[2] * axes[2].taps + k]};
                float weight = weight_of(&axes[0], b->at[0], i) * weight_of(&axes[1], b->at[1], j) *
                               weight_of(&axes[2], b->at[2], k);
                bool is_outside =
                    place[0] == WINDOW_OUTSIDE || place[1] == WINDOW_OUTSIDE || place[2] == WINDOW_OUTSIDE;
                if (!is_outside && weight != 0)
                    add(b, address(&b->source, b, place), number, weight);
                else if (is_outside && b->w->reads_zeros)
                    add(b, zeros, number, 1);
            }
}

static bool is_inside(const struct window *w, const int64_t *at) {
    bool all = true;
    for (int i = 0; i < WINDOW_AXES; i++)
        all = all && w->axes[i].insides[at[i]] == w->axes[i].taps;
    return all;
}

/* How many positions from one on have the same taps inside: none enters x or leaves it. */
static int64_t run_of(const struct window *w, const int64_t *at, int64_t most) {
    const struct window_axis *axis = &w->axes[2];
    int64_t end = min64(w->g.y.size[2], at[2] + most);
    if (!w->is_strided || (w->reads_zeros && !is_inside(w, at)))
        return 1;
    for (int k = 0; k < axis->taps; k++) {
        if (axis->starts[k] > at[2])
            end = min64(end, axis->starts[k]);
        else if (axis->ends[k] > at[2])
            end = min64(end, axis->ends[k]);
    }
    return end - at[2];
}

/* A row of positions, each with all its channels. */
static void forward_row(struct batch *b) {
    const struct window *w = b->w;
    float sums[WINDOW_LANES];
    int32_t where[WINDOW_LANES];
    b->sums = sums, b->where = where;
    for (b->c = 0; b->c < w->g.c; b->c += w->lanes) {
        b->channels = min64(w->lanes, w->g.c - b->c);
        for (b->at[2] = 0; b->at[2] < w->g.y.size[2]; b->at[2] += b->positions) {
            b->positions = run_of(w, b->at, WINDOW_LANES / b->channels);
            begin(b, w->axes[2].stride);
            add_taps(b);
            finish(b, factor_at(w, b->at));
        }
    }
}

static struct batch forward_batch(const struct window *w, int64_t task) {
    const int64_t *size = w->g.y.size;
    return (struct batch){.w = w,
                          .kernels = sweep_kernels(0),
                          .n = task / size[1] / size[0],
                          .at = {task / size[1] % size[0], task % size[1]},
                          .stride = 1,
                          .finds_maximum = w->is_max};
}

void window_channels_forward_task(void *context, int64_t task) {
    const struct window_job *job = context;
    const struct window *w = job->window;
    struct batch b = forward_batch(w, task);
    b.source = window_side_of(&w->g.x, job->values[w->x]);
    b.result = window_side_of(&w->g.y, job->values[w->y]);
    b.index = window_side_of(&w->g.index, w->index < 0 ? NULL : job->values[w->index]);
    forward_row(&b);
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* Where the maxima of a gradient are found anew, as they are not given: packed, [n][y][c], in the workspace. */
static struct resample_operand found_operand(const struct window *w) {
    const int64_t *y = w->g.y.size, c = w->g.c;
    return (struct resample_operand){.size = {y[0], y[1], y[2]},
                                     .batch_stride = y[0] * y[1] * y[2] * c,
                                     .channel_stride = 1,
                                     .size_stride = {y[1] * y[2] * c, y[2] * c, c}};
}

int64_t window_channels_workspace_bytes(const struct window *w) {
    const int64_t *y = w->g.y.size;
    return w->g.backward && w->is_max && w->index < 0 ? w->g.n * y[0] * y[1] * y[2] * w->g.c * 4 : 0;
}

void window_channels_find_task(void *context, int64_t task) {
    const struct window_job *job = context;
    const struct window *w = job->window;
    const struct resample_operand found = found_operand(w);
    struct batch b = forward_batch(w, task);
    b.source = window_side_of(&w->g.saved, job->values[w->saved]);
    b.result = (struct window_side){WEFT_DATA_FLOAT, NULL, &w->g.y};
    b.index = (struct window_side){WEFT_DATA_INT32, job->workspace, &found};
    forward_row(&b);
}

/* Outputs that read the element of x at b->at, each as a tap. */
static void add_readers(struct batch *b) {
    const struct window *w = b->w;
    const struct window_axis *a = w->axes;
    const struct window_reader *i, *j, *k;
    for (i = a[0].readers[b->at[0]]; i < a[0].readers[b->at[0] + 1]; i++)
        for (j = a[1].readers[b->at[1]]; j < a[1].readers[b->at[1] + 1]; j++)
            for (k = a[2].readers[b->at[2]]; k < a[2].readers[b->at[2] + 1]; k++) {
                const int64_t at[] = {i->position, j->position, k->position};
                int64_t number = (i->tap * a[1].taps + j->tap) * a[2].taps + k->tap;
                float weight = weight_of(&a[0], i->position, i->tap) * weight_of(&a[1], j->position, j->tap) *
                               weight_of(&a[2], k->position, k->tap) * factor_at(w, at);
                add(b, address(&b->source, b, at), (int32_t)number, weight);
                if (b->index.data)
                    b->sweep.picks[b->sweep.count - 1] = address(&b->index, b, at);
            }
}

/* Whether the element of x `steps` strides behind another is read as that one is, by outputs as many steps behind. */
static bool reads_alike(const struct window_axis *axis, int64_t place, int64_t steps) {
    const struct window_reader *one = axis->readers[place], *end = axis->readers[place + 1];
    const struct window_reader *other = axis->readers[place + steps * axis->stride];
    if (axis->readers[place + steps * axis->stride + 1] - other != end - one)
        return false;
    for (; one < end; one++, other++)
        if (other->tap != one->tap || other->position != one->position + steps ||
            axis->counts[one->position] != axis->counts[other->position])
            return false;
    return true;
}

/* Elements of dx from `at` on, a stride apart, that one sweep makes. */
static int64_t alike(const struct window *w, int64_t place, int64_t most) {
    const struct window_axis *axis = &w->axes[2];
    int64_t steps = 1;
    while (w->is_strided && steps < most && place + steps * axis->stride < w->g.x.size[2] &&
           reads_alike(axis, place, steps))
        steps++;
    return steps;
}

/* A row of dx: every stride-th element of it in turn. */
static void backward_row(struct batch *b) {
    const struct window *w = b->w;
    float sums[WINDOW_LANES];
    b->sums = sums;
    b->stride = w->is_strided ? w->axes[2].stride : 1;
    for (b->c = 0; b->c < w->g.c; b->c += w->lanes) {
        b->channels = min64(w->lanes, w->g.c - b->c);
        for (int64_t phase = 0; phase < min64(b->stride, w->g.x.size[2]); phase++)
            for (b->at[2] = phase; b->at[2] < w->g.x.size[2]; b->at[2] += b->positions * b->stride) {
                b->positions = alike(w, b->at[2], WINDOW_LANES / b->channels);
                begin(b, 1);
                add_readers(b);
                finish(b, 1);
            }
    }
}

void window_channels_backward_task(void *context, int64_t task) {
    const struct window_job *job = context;
    const struct window *w = job->window;
    const int64_t *size = w->g.x.size;
    const struct resample_operand found = found_operand(w);
    struct batch b = {.w = w,
                      .kernels = sweep_kernels(0),
                      .n = task / size[1] / size[0],
                      .at = {task / size[1] % size[0], task % size[1]}};
    b.source = window_side_of(&w->g.y, job->values[w->y]);
    b.result = window_side_of(&w->g.x, job->values[w->x]);
    if (w->index >= 0)
        b.index = window_side_of(&w->g.index, job->values[w->index]);
    else if (w->is_max)
        b.index = (struct window_side){WEFT_DATA_INT32, job->workspace, &found};
    backward_row(&b);
}
