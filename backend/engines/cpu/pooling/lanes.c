/* SPDX-License-Identifier: Apache-2.0 */
/* Computes lanes of outputs along a row from the taps that they read. A tap's number is its row-major index in the
   window; taps along the outer axes are the same for all lanes. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/pooling/loops.h"
#include "engines/cpu/pooling/pooling.h"

#include <math.h>

/* State of a pass over all taps of a window. */
struct pass {
    const struct pooling *w;
    const struct pooling_side *x;
    const struct pooling_lanes *lanes;
    float *values;  /* maxima or sums */
    int32_t *where; /* NULL if not needed, or for a sum */
    float *row;     /* buffer for POOLING_ROW converted elements */
    double *totals; /* for long windows: total of the sums of up to POOLING_RUN taps; NULL: values contain everything */
    int pending;    /* taps in values that are not yet in totals */
};

static void flush(struct pass *pass) {
    for (int64_t i = 0; i < pass->lanes->count; i++) {
        pass->totals[i] += (double)pass->values[i];
        pass->values[i] = 0;
    }
    pass->pending = 0;
}

static void take(const struct pass *pass, int64_t first, int64_t count, const float *x, int64_t stride, int32_t number,
                 float weight) {
    bool nan_wins = pass->w->g.propagates_nan;
    if (count <= 0)
        return;
    if (!pass->w->is_max)
        tap_add(pass->values + first, x, stride, count, weight);
    else if (pass->where)
        tap_maximum_where(pass->values + first, pass->where + first, x, stride, count, number, nan_wins);
    else
        tap_maximum(pass->values + first, x, stride, count, nan_wins);
}

/* Processes a tap in zero padding. Sums, and maxima with other padding, ignore it. */
static void process_zeros(struct pass *pass, int64_t first, int64_t count, int32_t number) {
    static const float zero = 0;
    if (pass->w->reads_zeros)
        take(pass, first, count, &zero, 0, number, 1);
}

/* Returns elements of x as floats, starting at an offset; converts other types into the pass's row buffer. */
static const float *load(struct pass *pass, int64_t offset, int64_t count) {
    if (pass->x->type == WEFT_DATA_FLOAT)
        return (const float *)pass->x->data + offset;
    dtype_to_f32(pass->row, pass->x->type, pass->x->data, offset, count);
    return pass->row;
}

static float weight_of(const struct pooling_axis *axis, int64_t position, int tap) {
    return axis->weights ? axis->weights[position * axis->taps + tap] : 1;
}

/* Processes a tap whose position advances by a constant step per lane: lanes before and after those inside are padding.
   `row`: x at position `base`. */
static void process_steps(struct pass *pass, int k, const float *row, int64_t base, int32_t number, float weight) {
    const struct pooling_axis *axis = &pass->w->axes[2];
    int64_t start = pass->lanes->at[2], end = start + pass->lanes->count;
    int64_t first = min64(max64(axis->starts[k], start), end), last = max64(min64(axis->ends[k], end), first);
    process_zeros(pass, 0, first - start, number);
    if (last > first)
        take(pass, first - start, last - first, row + axis->sources[first * axis->taps + k] - base, axis->stride,
             number, weight);
    process_zeros(pass, last - start, end - last, number);
}

/* Processes a tap for which each lane has its own position and weight. */
static void process_positions(struct pass *pass, int k, const float *row, int32_t number, float weight) {
    const struct pooling_axis *axis = &pass->w->axes[2];
    for (int64_t i = 0; i < pass->lanes->count; i++) {
        int64_t position = pass->lanes->at[2] + i, source_index = axis->sources[position * axis->taps + k];
        float tap_weight = weight * weight_of(axis, position, k);
        if (source_index == POOLING_OUTSIDE)
            process_zeros(pass, i, 1, number);
        else if (tap_weight != 0)
            take(pass, i, 1, row + source_index, 1, number, tap_weight);
    }
}

/* All elements of the row that the lanes may read are available, starting at `base`. */
static void process_row(struct pass *pass, const int64_t *outer, int32_t number, float weight) {
    const struct pooling_lanes *lanes = pass->lanes;
    const struct pooling_axis *axis = &pass->w->axes[2];
    int64_t base = 0, end = pass->w->g.x.size[2];
    if (pass->w->is_strided) {
        int64_t first = lanes->at[2] * axis->stride - pass->w->g.offset[2];
        base = max64(first, 0);
        end = max64(min64(end, first + (lanes->count - 1) * axis->stride + resample_span(&pass->w->g, 2)), base);
    }
    const int64_t at[] = {outer[0], outer[1], base};
    const float *row = load(pass, pooling_offset(pass->x->operand, lanes->n, lanes->c, at), end - base);
    for (int k = 0; k < axis->taps; k++, number++) {
        if (pass->w->is_strided)
            process_steps(pass, k, row, base, number, weight);
        else
            process_positions(pass, k, row, number, weight);
        if (pass->totals && ++pass->pending == POOLING_RUN)
            flush(pass);
    }
}

/* Iterates over the taps of the outer axes. */
static void process_all(struct pass *pass) {
    const struct pooling *w = pass->w;
    const struct pooling_lanes *lanes = pass->lanes;
    int taps[] = {w->axes[0].taps, w->axes[1].taps, w->axes[2].taps};
    for (int i = 0; i < taps[0]; i++)
        for (int j = 0; j < taps[1]; j++) {
            const int64_t outer[] = {w->axes[0].sources[lanes->at[0] * taps[0] + i],
                                     w->axes[1].sources[lanes->at[1] * taps[1] + j]};
            float weight = weight_of(&w->axes[0], lanes->at[0], i) * weight_of(&w->axes[1], lanes->at[1], j);
            int32_t number = (i * taps[1] + j) * taps[2];
            if (outer[0] == POOLING_OUTSIDE || outer[1] == POOLING_OUTSIDE)
                for (int k = 0; w->reads_zeros && k < taps[2]; k++)
                    process_zeros(pass, 0, lanes->count, number + k);
            else if (weight != 0)
                process_row(pass, outer, number, weight);
        }
}

/* Number of elements of x in a lane's window. */
static int64_t insides_of(const struct pooling *w, const struct pooling_lanes *lanes, int64_t lane) {
    return w->axes[0].insides[lanes->at[0]] * w->axes[1].insides[lanes->at[1]] *
           w->axes[2].insides[lanes->at[2] + lane];
}

/* A losing NaN ranks below everything, a winning NaN above; a window of only padding that is never selected gives
   -inf. */
void pooling_maximum(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                     float *best, int32_t *where) {
    float row[POOLING_ROW];
    struct pass pass = {.w = w, .x = x, .lanes = lanes, .values = best, .where = where, .row = row};
    for (int64_t i = 0; i < lanes->count; i++)
        best[i] = w->g.propagates_nan ? -INFINITY : NAN;
    for (int64_t i = 0; where && i < lanes->count; i++)
        where[i] = -1;
    process_all(&pass);
    for (int64_t i = 0; !w->reads_zeros && i < lanes->count; i++)
        if (insides_of(w, lanes, i) == 0)
            best[i] = -INFINITY;
}

/* Recomputes one lane in double, tap by tap: a sum that overflows in float may have a representable mean. */
static double recompute_sum(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                            int64_t lane) {
    const struct pooling_axis *a = w->axes;
    const int64_t at[] = {lanes->at[0], lanes->at[1], lanes->at[2] + lane};
    double sum = 0;
    for (int i = 0; i < a[0].taps; i++)
        for (int j = 0; j < a[1].taps; j++)
            for (int k = 0; k < a[2].taps; k++) {
                const int64_t source_index[] = {a[0].sources[at[0] * a[0].taps + i],
                                                a[1].sources[at[1] * a[1].taps + j],
                                                a[2].sources[at[2] * a[2].taps + k]};
                float weight = weight_of(&a[0], at[0], i) * weight_of(&a[1], at[1], j) * weight_of(&a[2], at[2], k);
                float value;
                if (source_index[0] == POOLING_OUTSIDE || source_index[1] == POOLING_OUTSIDE ||
                    source_index[2] == POOLING_OUTSIDE || weight == 0)
                    continue;
                dtype_to_f32(&value, x->type, x->data, pooling_offset(x->operand, lanes->n, lanes->c, source_index), 1);
                sum += (double)weight * (double)value;
            }
    return sum;
}

/* Windows of more than POOLING_RUN taps are accumulated in double, in runs of that length. */
void pooling_sum(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                 const float *factors, float *sum) {
    float row[POOLING_ROW];
    double totals[POOLING_LANES];
    bool is_long = (int64_t)w->axes[0].taps * w->axes[1].taps * w->axes[2].taps > POOLING_RUN;
    struct pass pass = {.w = w, .x = x, .lanes = lanes, .values = sum, .row = row, .totals = is_long ? totals : NULL};
    for (int64_t i = 0; i < lanes->count; i++)
        sum[i] = 0;
    for (int64_t i = 0; i < lanes->count && is_long; i++)
        totals[i] = 0;
    process_all(&pass);
    if (is_long)
        flush(&pass);
    for (int64_t i = 0; i < lanes->count && is_long; i++)
        sum[i] = (float)(totals[i] * (factors ? (double)factors[i] : 1));
    if (factors && !is_long)
        tap_scale(sum, factors, lanes->count);
    bool is_finite = tap_is_finite(sum, lanes->count);
    for (int64_t i = 0; i < lanes->count && !is_finite; i++)
        if (!isfinite(sum[i]))
            sum[i] = (float)(recompute_sum(w, x, lanes, i) * (factors ? (double)factors[i] : 1));
}

/* Returns a row of x at positions of the outer axes, as floats. */
static const float *outer_row(struct pass *pass, int64_t place0, int64_t place1) {
    const int64_t at[] = {place0, place1, 0};
    return load(pass, pooling_offset(pass->x->operand, pass->lanes->n, pass->lanes->c, at), pass->w->g.x.size[2]);
}

/* A single row of weight 1 is read in place. */
void pooling_interpolate(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                         float *sum) {
    float converted[POOLING_ROW], blended[POOLING_ROW];
    struct pass pass = {.w = w, .x = x, .lanes = lanes, .values = sum, .row = converted};
    const struct pooling_axis *a = w->axes;
    const float *row = NULL;
    int64_t width = w->g.x.size[2];
    for (int i = 0; i < a[0].taps; i++)
        for (int j = 0; j < a[1].taps; j++) {
            int64_t place0 = a[0].sources[lanes->at[0] * a[0].taps + i];
            int64_t place1 = a[1].sources[lanes->at[1] * a[1].taps + j];
            float weight = weight_of(&a[0], lanes->at[0], i) * weight_of(&a[1], lanes->at[1], j);
            if (place0 == POOLING_OUTSIDE || place1 == POOLING_OUTSIDE || weight == 0)
                continue;
            const float *next = outer_row(&pass, place0, place1);
            if (weight != 1)
                tap_blend(blended, row, next, width, weight);
            row = weight != 1 ? blended : next;
        }
    for (int64_t i = 0; !row && i < width; i++)
        blended[i] = 0;
    tap_pick(sum, row ? row : blended, a[2].sources + lanes->at[2] * a[2].taps,
             a[2].weights ? a[2].weights + lanes->at[2] * a[2].taps : NULL, a[2].taps, lanes->count);
}

/* An empty mean is 0. */
void pooling_factors(const struct pooling *w, const struct pooling_lanes *lanes, float *factors) {
    int64_t outer = w->is_mean ? w->axes[0].counts[lanes->at[0]] * w->axes[1].counts[lanes->at[1]] : 1;
    for (int64_t i = 0; i < lanes->count; i++) {
        int64_t count = w->is_mean ? outer * w->axes[2].counts[lanes->at[2] + i] : 1;
        factors[i] = count ? (float)(w->g.alpha / (double)count) : 0;
    }
}
