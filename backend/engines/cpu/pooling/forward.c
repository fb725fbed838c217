/* SPDX-License-Identifier: Apache-2.0 */
/* Computes outputs along rows, one pass of lanes at a time. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/pooling/loops.h"
#include "engines/cpu/pooling/pooling.h"

static void store_where(const struct pooling_side *index, int64_t offset, const int32_t *where, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int32_t position =
            where[i] < 0 ? 0 : where[i]; /* 0 is a valid position, for windows that contain only padding */
        if (index->type == WEFT_DATA_INT8)
            ((int8_t *)index->data)[offset + i] = (int8_t)position;
        else
            ((int32_t *)index->data)[offset + i] = position;
    }
}

static void run_lanes(const struct pooling *w, void *const *values, const struct pooling_lanes *lanes) {
    struct pooling_side x = pooling_side_of(&w->g.x, values[w->x]);
    struct pooling_side y = pooling_side_of(&w->g.y, values[w->y]);
    struct pooling_side index = pooling_side_of(&w->g.index, w->index < 0 ? NULL : values[w->index]);
    float results[POOLING_LANES], factors[POOLING_LANES];
    int32_t where[POOLING_LANES];
    bool is_scaled = w->is_mean || w->g.alpha != 1;
    if (is_scaled)
        pooling_factors(w, lanes, factors);
    if (w->is_max)
        pooling_maximum(w, &x, lanes, results, index.data ? where : NULL);
    else if (w->picks)
        pooling_interpolate(w, &x, lanes, results);
    else
        pooling_sum(w, &x, lanes, is_scaled ? factors : NULL, results);
    if (index.data)
        store_where(&index, pooling_offset(index.operand, lanes->n, lanes->c, lanes->at), where, lanes->count);
    if (!y.data)
        return;
    if (is_scaled && (w->is_max || w->picks))
        tap_scale(results, factors, lanes->count);
    dtype_from_f32(y.type, y.data, pooling_offset(y.operand, lanes->n, lanes->c, lanes->at), results, lanes->count);
}

/* Computes a plane of one channel. */
void pooling_forward_task(void *context, int64_t task) {
    const struct pooling_job *job = context;
    const struct pooling *w = job->pooling;
    const int64_t *size = w->g.y.size;
    struct pooling_lanes lanes = {.n = task / size[0] / w->g.c, .c = task / size[0] % w->g.c, .at = {task % size[0]}};
    for (lanes.at[1] = 0; lanes.at[1] < size[1]; lanes.at[1]++)
        for (lanes.at[2] = 0; lanes.at[2] < size[2]; lanes.at[2] += w->lanes) {
            lanes.count = min64(w->lanes, size[2] - lanes.at[2]);
            run_lanes(w, job->values, &lanes);
        }
}

/* Computes one plane's mean, or its gradient, for each channel. */
void pooling_mean_task(void *context, int64_t task) {
    const struct pooling_job *job = context;
    const struct resample_geometry *g = &job->pooling->g;
    int64_t count = g->x.size[0] * g->x.size[1] * g->x.size[2];
    double factor = g->alpha / (double)count;
    float *x = job->values[job->pooling->x], *y = job->values[job->pooling->y];
    int64_t first = task * POOLING_PLANES, end = min64(first + POOLING_PLANES, g->n * g->c);
    for (int64_t plane = first; plane < end; plane++) {
        int64_t n = plane / g->c, c = plane % g->c;
        float *all = x + n * g->x.batch_stride + c * g->x.channel_stride;
        float *one = y + n * g->y.batch_stride + c * g->y.channel_stride;
        if (g->backward)
            tap_fill(all, count, (float)factor * *one);
        else
            *one = (float)(factor * tap_total(all, count));
    }
}
