/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients along rows. For means and interpolation, each row of dx is gathered: the rows of dy that read it are
   combined into one, which is then accumulated along the row with the same tables as in the channels-last case. For
   maxima, dx is computed in boxes: all outputs that read elements of a box add their dy to sums in float, which are
   stored once. A box covers whole rows of one channel; outputs at its border are visited for each box that they
   read. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/pooling/loops.h"
#include "engines/cpu/pooling/pooling.h"

#include <string.h>

/* The part of dx that a task computes. */
struct box {
    const struct pooling *w;
    struct pooling_side dx, dy, index, saved;
    int64_t n, c;
    int64_t first[2], size[2], width; /* along the outer two axes; rows are complete */
    float *sums;                      /* [size[0]][size[1]][width] */
};

/* Returns everything except the part. */
static struct box sides_of(const struct pooling *w, void *const *values) {
    return (struct box){.w = w,
                        .dx = pooling_side_of(&w->g.x, values[w->x]),
                        .dy = pooling_side_of(&w->g.y, values[w->y]),
                        .index = pooling_side_of(&w->g.index, w->index < 0 ? NULL : values[w->index]),
                        .saved = pooling_side_of(&w->g.saved, w->saved < 0 ? NULL : values[w->saved])};
}

/* Row of sums for positions along the outer two axes, or NULL if they are outside the box. */
static float *row_of(const struct box *box, int64_t place0, int64_t place1) {
    int64_t i = place0 - box->first[0], j = place1 - box->first[1];
    if (place0 == POOLING_OUTSIDE || place1 == POOLING_OUTSIDE || i < 0 || i >= box->size[0] || j < 0 ||
        j >= box->size[1])
        return NULL;
    return box->sums + (i * box->size[1] + j) * box->width;
}

static float *row_of_tap(const struct box *box, const struct pooling_lanes *lanes, int i, int j) {
    const struct pooling_axis *axes = box->w->axes;
    return row_of(box, axes[0].sources[lanes->at[0] * axes[0].taps + i],
                  axes[1].sources[lanes->at[1] * axes[1].taps + j]);
}

static int64_t place_along(const struct pooling *w, int64_t position, int64_t tap) {
    return w->axes[2].sources[position * w->axes[2].taps + tap];
}

/* ---- Maxima ------------------------------------------------------------------------------------------------------ */

/* Finds which taps are the maxima: reads the index, or recomputes it from the forward operation's input. */
static void find_where(const struct box *box, const struct pooling_lanes *lanes, int32_t *where) {
    float best[POOLING_LANES];
    if (!box->index.data) {
        pooling_maximum(box->w, &box->saved, lanes, best, where);
        return;
    }
    int64_t offset = pooling_offset(box->index.operand, lanes->n, lanes->c, lanes->at);
    for (int64_t i = 0; i < lanes->count; i++)
        where[i] = box->index.type == WEFT_DATA_INT8 ? ((const int8_t *)box->index.data)[offset + i]
                                                     : ((const int32_t *)box->index.data)[offset + i];
}

/* The sum to which lane i's maximum belongs. NULL: padding, another box, or an invalid tap number. */
static float *sum_of(const struct box *box, const struct pooling_lanes *lanes, int64_t lane, int32_t where) {
    const struct pooling *w = box->w;
    int across = w->axes[1].taps, along = w->axes[2].taps;
    if (where < 0 || where >= w->axes[0].taps * across * along)
        return NULL;
    float *row = row_of_tap(box, lanes, where / along / across, where / along % across);
    int64_t source_index = place_along(w, lanes->at[2] + lane, where % along);
    return row && source_index != POOLING_OUTSIDE ? row + source_index : NULL;
}

static void return_maxima(const struct box *box, const struct pooling_lanes *lanes, const float *dy) {
    int32_t where[POOLING_LANES];
    find_where(box, lanes, where);
    for (int64_t i = 0; i < lanes->count; i++) {
        float *sum = sum_of(box, lanes, i, where[i]);
        if (sum)
            *sum += dy[i];
    }
}

/* ---- Boxes ------------------------------------------------------------------------------------------------------- */

static void return_lanes(const struct box *box, const struct pooling_lanes *lanes) {
    const struct pooling *w = box->w;
    float dy[POOLING_LANES];
    dtype_to_f32(dy, box->dy.type, box->dy.data, pooling_offset(box->dy.operand, lanes->n, lanes->c, lanes->at),
                 lanes->count);
    for (int64_t i = 0; w->g.alpha != 1 && i < lanes->count; i++)
        dy[i] *= (float)w->g.alpha;
    return_maxima(box, lanes, dy);
}

/* True if any tap of an output position is inside the box, along one of the outer axes. */
static bool reads_box(const struct box *box, int axis, int64_t position) {
    const struct pooling_axis *a = &box->w->axes[axis];
    for (int k = 0; k < a->taps; k++) {
        int64_t at = a->sources[position * a->taps + k] - box->first[axis];
        if (a->sources[position * a->taps + k] != POOLING_OUTSIDE && at >= 0 && at < box->size[axis])
            return true;
    }
    return false;
}

/* Processes one row of outputs, in passes of lanes. */
static void return_outputs(const struct box *box, int64_t at0, int64_t at1) {
    const struct pooling *w = box->w;
    struct pooling_lanes lanes = {.n = box->n, .c = box->c, .at = {at0, at1}};
    for (lanes.at[2] = 0; lanes.at[2] < w->g.y.size[2]; lanes.at[2] += w->lanes) {
        lanes.count = min64(w->lanes, w->g.y.size[2] - lanes.at[2]);
        return_lanes(box, &lanes);
    }
}

static void store_box(const struct box *box) {
    for (int64_t i = 0; i < box->size[0]; i++)
        for (int64_t j = 0; j < box->size[1]; j++) {
            int64_t at[] = {box->first[0] + i, box->first[1] + j, 0};
            dtype_from_f32(box->dx.type, box->dx.data, pooling_offset(box->dx.operand, box->n, box->c, at),
                           box->sums + (i * box->size[1] + j) * box->width, box->width);
        }
}

/* ---- Maxima of whole planes -------------------------------------------------------------------------------------- */

/* A row of outputs that adds its dy to a plane of dx: tap t of lane i is plane[base + offsets[t] + i * step], and is
   inside if bit t of rows and of columns[i] is set. */
struct scatter {
    float *plane;
    int64_t base, *offsets, step, count;
    uint64_t rows, *columns;
    float alpha;
};

#define SCATTER(type)                                                                                                  \
    static void scatter_##type(const struct scatter *scatter, const float *dy, const type *where) {                    \
        const struct scatter s = *scatter;                                                                             \
        for (int64_t i = 0, at = s.base; i < s.count; i++, at += s.step) {                                             \
            uint64_t tap = (uint64_t)where[i];                                                                         \
            if (tap < 64 && (s.rows & s.columns[i]) >> tap & 1)                                                        \
                s.plane[at + s.offsets[tap]] += s.alpha * dy[i];                                                       \
        }                                                                                                              \
    }
SCATTER(int8_t)
SCATTER(int32_t)

/* Scatters lanes of a row, starting at lanes->at[2]. dy_at, index_at: offsets of the first lane. */
static void scatter_lanes(const struct box *box, const struct pooling_lanes *lanes, const struct scatter *s,
                          int64_t dy_at, int64_t index_at) {
    int32_t positions[POOLING_LANES];
    float converted[POOLING_LANES], best[POOLING_LANES];
    const float *dy = (const float *)box->dy.data + dy_at;
    if (box->dy.type != WEFT_DATA_FLOAT) {
        dtype_to_f32(converted, box->dy.type, box->dy.data, dy_at, lanes->count);
        dy = converted;
    }
    if (!box->index.data) {
        pooling_maximum(box->w, &box->saved, lanes, best, positions);
        scatter_int32_t(s, dy, positions);
    } else if (box->index.type == WEFT_DATA_INT8) {
        scatter_int8_t(s, dy, (const int8_t *)box->index.data + index_at);
    } else {
        scatter_int32_t(s, dy, (const int32_t *)box->index.data + index_at);
    }
}

/* Computes the offsets of the taps from the position of the first one. */
static void find_offsets(const struct pooling *w, int64_t *offsets) {
    const struct pooling_axis *a = w->axes;
    const int64_t *stride = w->g.x.size_stride, *dilation = w->g.dilation;
    for (int i = 0, tap = 0; i < a[0].taps; i++)
        for (int j = 0; j < a[1].taps; j++)
            for (int k = 0; k < a[2].taps; k++)
                offsets[tap++] = i * dilation[0] * stride[0] + j * dilation[1] * stride[1] + k * dilation[2];
}

static void clear_plane(const struct pooling *w, float *plane) {
    const int64_t *size = w->g.x.size, *stride = w->g.x.size_stride;
    bool is_whole = stride[1] == size[2] && (size[0] == 1 || stride[0] == size[1] * size[2]);
    int64_t rows = is_whole ? 1 : size[0] * size[1], columns = is_whole ? size[0] * size[1] * size[2] : size[2];
    for (int64_t i = 0; i < rows; i++)
        memset(plane + i / size[1] * stride[0] + i % size[1] * stride[1], 0, (size_t)columns * sizeof *plane);
}

/* Processes a row of outputs; where: offsets of the plane's first dy and index. */
static void scatter_row(const struct box *box, struct pooling_lanes *lanes, struct scatter *s, const int64_t *where) {
    const struct pooling *w = box->w;
    const int64_t *at = lanes->at, *step = w->g.step, *pre = w->g.offset, *stride = w->g.x.size_stride;
    const int64_t *dy = w->g.y.size_stride, *index = w->g.index.size_stride;
    int64_t base = (at[0] * step[0] - pre[0]) * stride[0] + (at[1] * step[1] - pre[1]) * stride[1] - pre[2];
    int64_t dy_at = where[0] + at[0] * dy[0] + at[1] * dy[1];
    int64_t index_at = where[1] + at[0] * index[0] + at[1] * index[1];
    s->rows = w->axes[0].masks[at[0]] & w->axes[1].masks[at[1]];
    for (lanes->at[2] = 0; at[2] < w->g.y.size[2]; lanes->at[2] += lanes->count) {
        lanes->count = s->count = min64(w->lanes, w->g.y.size[2] - at[2]);
        s->base = base + at[2] * step[2];
        s->columns = w->axes[2].masks + at[2];
        scatter_lanes(box, lanes, s, dy_at + at[2], index_at + at[2]);
    }
}

void pooling_scatter_task(void *context, int64_t task) {
    const struct pooling_job *job = context;
    const struct pooling *w = job->pooling;
    int64_t offsets[64];
    struct box box = sides_of(w, job->values);
    struct pooling_lanes lanes = {.n = task / w->g.c, .c = task % w->g.c};
    int64_t where[] = {pooling_offset(&w->g.y, lanes.n, lanes.c, lanes.at),
                       pooling_offset(&w->g.index, lanes.n, lanes.c, lanes.at)};
    float *plane = (float *)box.dx.data + pooling_offset(&w->g.x, lanes.n, lanes.c, lanes.at);
    struct scatter s = {.plane = plane, .offsets = offsets, .step = w->g.step[2], .alpha = (float)w->g.alpha};
    find_offsets(w, offsets);
    clear_plane(w, plane);
    for (lanes.at[0] = 0; lanes.at[0] < w->g.y.size[0]; lanes.at[0]++)
        for (lanes.at[1] = 0; lanes.at[1] < w->g.y.size[1]; lanes.at[1]++)
            scatter_row(&box, &lanes, &s, where);
}

/* ---- Means and interpolation ------------------------------------------------------------------------------------- */

/* Computes blended = sum (NULL: 0) + weight * a row of dy. */
static void blend_row(const struct pooling_side *dy, int64_t offset, float *blended, const float *sum, double weight) {
    float converted[POOLING_LANES];
    int64_t count = dy->operand->size[2];
    if (dy->type == WEFT_DATA_FLOAT)
        tap_blend(blended, sum, (const float *)dy->data + offset, count, (float)weight);
    for (int64_t i = 0; dy->type != WEFT_DATA_FLOAT && i < count; i += POOLING_LANES) {
        int64_t some = min64(POOLING_LANES, count - i);
        dtype_to_f32(converted, dy->type, dy->data, offset + i, some);
        tap_blend(blended + i, sum ? sum + i : NULL, converted, some, (float)weight);
    }
}

/* Combines all rows of dy that read a row of dx; false if no row does. */
static bool blend_rows(const struct box *box, const int64_t *at, float *blended) {
    const struct pooling_direction *direction = &box->w->gradient;
    const float *sum = NULL;
    for (const struct pooling_link *i = direction->links[0][at[0]]; i < direction->links[0][at[0] + 1]; i++)
        for (const struct pooling_link *j = direction->links[1][at[1]]; j < direction->links[1][at[1] + 1]; j++) {
            const int64_t from[] = {i->source_index, j->source_index, 0};
            blend_row(&box->dy, pooling_offset(box->dy.operand, box->n, box->c, from), blended, sum,
                      box->w->g.alpha * i->weight * j->weight);
            sum = blended;
        }
    return sum;
}

static void gather_row(const struct box *box, const int64_t *at) {
    const struct pooling_direction *direction = &box->w->gradient;
    float blended[POOLING_SUMS], sums[POOLING_SUMS];
    int64_t width = box->w->g.x.size[2];
    memset(sums, 0, (size_t)width * sizeof *sums);
    bool is_read = blend_rows(box, at, blended);
    for (const struct pooling_segment *s = direction->segments;
         is_read && s < direction->segments + direction->segment_count; s++)
        for (const struct pooling_link *k = direction->links[2][s->first]; k < direction->links[2][s->first + 1]; k++)
            tap_gather(sums + s->first, direction->result_step, blended + k->source_index, direction->source_step,
                       s->positions, (float)k->weight);
    dtype_from_f32(box->dx.type, box->dx.data, pooling_offset(box->dx.operand, box->n, box->c, at), sums, width);
}

void pooling_gather_task(void *context, int64_t task) {
    const struct pooling_job *job = context;
    const struct pooling *w = job->pooling;
    const int64_t *x = w->g.x.size, rows = w->gradient.task_rows, all = w->g.n * w->g.c * x[0] * x[1];
    struct box box = sides_of(w, job->values);
    for (int64_t row = task * rows; row < min64((task + 1) * rows, all); row++) {
        const int64_t at[] = {row / x[1] % x[0], row % x[1], 0}, plane = row / x[1] / x[0];
        box.n = plane / w->g.c, box.c = plane % w->g.c;
        gather_row(&box, at);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

void pooling_backward_task(void *context, int64_t task) {
    const struct pooling_job *job = context;
    const struct pooling *w = job->pooling;
    const int64_t *x = w->g.x.size, boxes1 = divide_up(x[1], w->box[1]), boxes0 = divide_up(x[0], w->box[0]);
    float sums[POOLING_SUMS];
    struct box box = sides_of(w, job->values);
    box.n = task / boxes1 / boxes0 / w->g.c, box.c = task / boxes1 / boxes0 % w->g.c;
    box.first[0] = task / boxes1 % boxes0 * w->box[0], box.first[1] = task % boxes1 * w->box[1];
    box.width = x[2], box.sums = sums;
    for (int i = 0; i < 2; i++)
        box.size[i] = min64(w->box[i], x[i] - box.first[i]);
    for (int64_t i = 0; i < box.size[0] * box.size[1] * box.width; i++)
        sums[i] = 0;
    for (int64_t i = 0; i < w->g.y.size[0]; i++)
        for (int64_t j = 0; reads_box(&box, 0, i) && j < w->g.y.size[1]; j++)
            if (reads_box(&box, 1, j))
                return_outputs(&box, i, j);
    store_box(&box);
}
