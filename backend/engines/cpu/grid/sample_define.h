/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of samples for one compute type. The includer defines REAL, NAME(), TO_REAL and FROM_REAL, and STORED, the
   data type that needs no conversion. */
/* There is no include guard, because this file is included once per type. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/grid/sample.h"

#include <string.h>
#include <tgmath.h>

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void NAME(load_run)(REAL *to, weftDataType_t type, const void *base, int64_t at, int64_t stride, int64_t count) {
    if (stride == 1 || count == 1)
        TO_REAL(to, type, base, at, count);
    else if (type == STORED)
        for (int64_t i = 0; i < count; i++)
            to[i] = ((const REAL *)base)[at + i * stride];
    else
        for (int64_t i = 0; i < count; i++)
            TO_REAL(to + i, type, base, at + i * stride, 1);
}

static void NAME(store_run)(weftDataType_t type, void *base, int64_t at, int64_t stride, const REAL *x, int64_t count) {
    if (stride == 1 || count == 1)
        FROM_REAL(type, base, at, x, count);
    else if (type == STORED)
        for (int64_t i = 0; i < count; i++)
            ((REAL *)base)[at + i * stride] = x[i];
    else
        for (int64_t i = 0; i < count; i++)
            FROM_REAL(type, base, at + i * stride, x + i, 1);
}

static void *NAME(memory)(const struct sample_job *job, const struct image *image) {
    return image->value < 0 ? job->workspace + image->offset : job->values[image->value];
}

/* ---- Rows of images ---------------------------------------------------------------------------------------------- */

/* Channels [first, first + count) of image n. */
struct NAME(part) {
    const struct sample_job *job;
    int64_t n, first, count;
};

/* The channels of a task. */
static struct NAME(part) NAME(part_of)(const struct sample_job *job, int64_t task) {
    const struct sampling *s = job->s;
    int64_t first = task % s->chunks * s->chunk;
    return (struct NAME(part)){job, task / s->chunks, first, min64(s->chunk, s->channels - first)};
}

/* A row: adjacent channels of one element, or a line of elements of one channel. */
struct NAME(row) {
    int64_t c, at[GRID_SPATIAL_MAX];
    int rank; /* dimensions of `at` that count */
    int64_t length;
};

static bool NAME(row_begin)(struct NAME(row) * row, const struct NAME(part) * part) {
    const struct sampling *s = part->job->s;
    row->c = part->first;
    row->rank = s->is_last ? s->spatial : s->spatial - 1;
    row->length = s->is_last ? part->count : s->extents[s->spatial - 1];
    return index_begin(row->at, row->rank, s->extents) && part->count > 0;
}

static bool NAME(row_next)(struct NAME(row) * row, const struct NAME(part) * part) {
    const struct sampling *s = part->job->s;
    if (index_next(row->at, row->rank, s->extents))
        return true;
    row->c++;
    return !s->is_last && row->c < part->first + part->count && index_begin(row->at, row->rank, s->extents);
}

static int64_t NAME(row_offset)(const struct NAME(row) * row, const struct NAME(part) * part,
                                const struct image *image) {
    int64_t at = part->n * image->n + row->c * image->c;
    for (int d = 0; d < row->rank; d++)
        at += row->at[d] * image->spatial[d];
    return at;
}

static int64_t NAME(row_step)(const struct sampling *s, const struct image *image) {
    return s->is_last ? image->c : image->spatial[s->spatial - 1];
}

#define FOR_ROWS(row, part) for (bool more = NAME(row_begin)(&(row), part); more; more = NAME(row_next)(&(row), part))

static void NAME(load)(void *context, int64_t task) {
    const struct sample_job *job = context;
    const struct sampling *s = job->s;
    struct NAME(part) part = NAME(part_of)(job, task);
    struct NAME(row) row;
    REAL *copy = NAME(memory)(job, &s->read);
    FOR_ROWS(row, &part)
    NAME(load_run)(copy + NAME(row_offset)(&row, &part, &s->read), s->x.type, NAME(memory)(job, &s->x),
                   NAME(row_offset)(&row, &part, &s->x), NAME(row_step)(s, &s->x), row.length);
}

static void NAME(clear)(const struct NAME(part) * part) {
    const struct sampling *s = part->job->s;
    struct NAME(row) row;
    REAL *sums = NAME(memory)(part->job, &s->written);
    int64_t step = NAME(row_step)(s, &s->written);
    FOR_ROWS(row, part) {
        REAL *to = sums + NAME(row_offset)(&row, part, &s->written);
        for (int64_t i = 0; i < row.length; i++)
            to[i * step] = 0;
    }
}

static void NAME(store)(const struct NAME(part) * part) {
    const struct sampling *s = part->job->s;
    struct NAME(row) row;
    const REAL *copy = NAME(memory)(part->job, &s->written);
    FOR_ROWS(row, part)
    NAME(store_run)(s->dx.type, NAME(memory)(part->job, &s->dx), NAME(row_offset)(&row, part, &s->dx),
                    NAME(row_step)(s, &s->dx), copy + NAME(row_offset)(&row, part, &s->written), row.length);
}

/* ---- Taps -------------------------------------------------------------------------------------------------------- */

/* A number and its derivative by the coordinate. */
struct NAME(dual) {
    REAL value, slope;
};

/* The elements that a position reads along one dimension. */
struct NAME(taps) {
    int64_t index[4]; /* -1: outside of the image */
    struct NAME(dual) weight[4];
};

static struct NAME(dual) NAME(padded)(const struct grid_sample_op *op, struct NAME(dual) at, REAL extent) {
    REAL low = op->align_corners ? 0 : (REAL)-0.5, span = op->align_corners ? extent - 1 : extent;
    if (op->padding_mode == WEFT_ZERO_PAD)
        return at;
    if (op->padding_mode == WEFT_REFLECTION_PAD_EXT && span > 0) {
        REAL distance = fabs(at.value - low), turns = floor(distance / span), rest = fmod(distance, span);
        bool is_turned = fmod(turns, (REAL)2) != 0;
        at.slope = (at.value < low) != is_turned ? -at.slope : at.slope;
        at.value = (is_turned ? span - rest : rest) + low;
    }
    at.slope = at.value > 0 && at.value < extent - 1 ? at.slope : 0;
    at.value = fmin(extent - 1, fmax(at.value, (REAL)0));
    return at;
}

static int64_t NAME(index_of)(REAL at, REAL extent) { return at >= 0 && at < extent ? (int64_t)at : -1; }

/* The cubic convolution with a = -0.75. */
static struct NAME(dual) NAME(cubic)(REAL distance) {
    const REAL a = (REAL)-0.75, d = fabs(distance), sign = distance < 0 ? -1 : 1;
    if (d <= 1)
        return (struct NAME(dual)){((a + 2) * d - (a + 3)) * d * d + 1, sign * (3 * (a + 2) * d - 2 * (a + 3)) * d};
    return (struct NAME(dual)){((a * d - 5 * a) * d + 8 * a) * d - 4 * a, sign * ((3 * a * d - 10 * a) * d + 8 * a)};
}

static void NAME(find_taps)(struct NAME(taps) * taps, const struct grid_sample_op *op, REAL coordinate, REAL extent) {
    REAL half = (op->align_corners ? extent - 1 : extent) / 2;
    struct NAME(dual) at = {(coordinate + 1) * half - (op->align_corners ? 0 : (REAL)0.5), half};
    if (op->mode == WEFT_RESAMPLE_BICUBIC_EXT) {
        REAL first = floor(at.value), rest = isfinite(at.value) ? at.value - first : 0;
        for (int t = 0; t < 4; t++) {
            struct NAME(dual) weight = NAME(cubic)(rest + 1 - (REAL)t), place = {first - 1 + (REAL)t, 1};
            taps->weight[t] = (struct NAME(dual)){weight.value, weight.slope * at.slope};
            taps->index[t] = NAME(index_of)(NAME(padded)(op, place, extent).value, extent);
        }
        return;
    }
    at = NAME(padded)(op, at, extent);
    if (op->mode == WEFT_RESAMPLE_NEAREST) {
        taps->index[0] = NAME(index_of)(rint(at.value), extent);
        taps->weight[0] = (struct NAME(dual)){1, 0};
        return;
    }
    REAL first = floor(at.value), rest = at.value - first;
    taps->index[0] = NAME(index_of)(first, extent), taps->index[1] = NAME(index_of)(first + 1, extent);
    taps->weight[0] = (struct NAME(dual)){1 - rest, -at.slope};
    taps->weight[1] = (struct NAME(dual)){rest, at.slope};
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* Positions of one line of an image, and the elements that they read: offsets in the plane of a channel. */
struct NAME(block) {
    int64_t n, first[GRID_SPATIAL_MAX], count;
    bool is_inside; /* no tap is outside of the image */
    int32_t offset[SAMPLE_TAPS_MAX][BLOCK], inside[SAMPLE_TAPS_MAX][BLOCK];
    REAL weight[SAMPLE_TAPS_MAX][BLOCK], slope[GRID_SPATIAL_MAX][SAMPLE_TAPS_MAX][BLOCK];
};

/* Index of position `i` of a block's line. */
static void NAME(position_of)(const struct sampling *s, int64_t linear, int64_t *at) {
    for (int d = s->spatial; d-- > 0; linear /= s->out[d])
        at[d] = linear % s->out[d];
}

static int64_t NAME(offset_in)(const struct sampling *s, const int64_t *strides, const int64_t *at) {
    int64_t offset = 0;
    for (int d = 0; d < s->spatial; d++)
        offset += at[d] * strides[d];
    return offset;
}

/* Combines the taps of all dimensions for position i of the block. */
static void NAME(combine)(struct NAME(block) * b, int64_t i, const struct sampling *s, const struct image *image,
                          const struct NAME(taps) * taps) {
    int64_t counts[GRID_SPATIAL_MAX], choice[GRID_SPATIAL_MAX];
    for (int d = 0; d < s->spatial; d++)
        counts[d] = grid_sample_taps(s->op);
    int k = 0;
    for (bool more = index_begin(choice, s->spatial, counts); more;
         more = index_next(choice, s->spatial, counts), k++) {
        int64_t offset = 0;
        bool is_inside = true;
        REAL weight = 1, slopes[GRID_SPATIAL_MAX] = {1, 1, 1};
        for (int d = 0; d < s->spatial; d++) {
            int64_t index = taps[d].index[choice[d]];
            is_inside = is_inside && index >= 0;
            offset += index * image->spatial[d];
            weight *= taps[d].weight[choice[d]].value;
            for (int e = 0; e < s->spatial; e++)
                slopes[e] *= d == e ? taps[d].weight[choice[d]].slope : taps[d].weight[choice[d]].value;
        }
        b->inside[k][i] = is_inside;
        b->is_inside = b->is_inside && is_inside;
        b->offset[k][i] = is_inside ? (int32_t)offset : 0;
        b->weight[k][i] = weight;
        for (int e = 0; e < s->spatial; e++)
            b->slope[e][k][i] = slopes[e];
    }
}

/* Fills in a block: positions from `linear` on, for offsets in `image`. */
static void NAME(sample)(struct NAME(block) * b, const struct sample_job *job, const struct image *image, int64_t n,
                         int64_t linear, int64_t count) {
    const struct sampling *s = job->s;
    const struct grid *grid = &s->grid;
    b->n = n, b->count = count, b->is_inside = true;
    for (int64_t i = 0; i < count; i++) {
        int64_t at[GRID_SPATIAL_MAX];
        struct NAME(taps) taps[GRID_SPATIAL_MAX];
        REAL coordinates[GRID_SPATIAL_MAX];
        NAME(position_of)(s, linear + i, at);
        NAME(load_run)(coordinates, grid->type, job->values[grid->value],
                       n * grid->n + NAME(offset_in)(s, grid->spatial, at), grid->coordinate, s->spatial);
        for (int d = 0; d < s->spatial; d++)
            NAME(find_taps)(&taps[d], s->op, coordinates[s->spatial - 1 - d], (REAL)s->extents[d]);
        NAME(combine)(b, i, s, image, taps);
    }
    NAME(position_of)(s, linear, b->first);
}

/* The block of a task. */
static void NAME(block_of)(struct NAME(block) * b, const struct sample_job *job, int64_t task) {
    const struct sampling *s = job->s;
    int64_t block = task % s->blocks, line = task / s->blocks % s->lines, first = block * BLOCK;
    NAME(sample)(b, job, &s->read, task / s->blocks / s->lines, line * s->line + first, min64(BLOCK, s->line - first));
}

/* sums[i] += weight[i] * x[offset[i]], for one tap. */
WIDE static void NAME(add_inside)(int64_t count, REAL *restrict sums, const REAL *restrict x,
                                  const int32_t *restrict offset, const REAL *restrict weight) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        sums[i] += weight[i] * x[offset[i]];
}

WIDE static void NAME(add_checked)(int64_t count, REAL *restrict sums, const REAL *restrict x,
                                   const int32_t *restrict offset, const int32_t *restrict inside,
                                   const REAL *restrict weight) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        REAL product = weight[i] * x[offset[i]];
        sums[i] += inside[i] ? product : 0;
    }
}

static void NAME(add_tap)(const struct NAME(block) * b, int k, REAL *sums, const REAL *x, const REAL *weight) {
    if (b->is_inside)
        NAME(add_inside)(b->count, sums, x, b->offset[k], weight);
    else
        NAME(add_checked)(b->count, sums, x, b->offset[k], b->inside[k], weight);
}

WIDE static void NAME(add_scaled)(int64_t count, REAL *restrict sums, const REAL *restrict x, REAL weight) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        sums[i] += weight * x[i];
}

enum { NAME(CHAINS) = 16 };

/* In independent chains, so that the loop is vectorized in a fixed order. */
WIDE static REAL NAME(dot)(int64_t count, const REAL *restrict x, const REAL *restrict y) {
    REAL chains[NAME(CHAINS)] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + NAME(CHAINS) <= count; i += NAME(CHAINS))
        for (int k = 0; k < NAME(CHAINS); k++)
            chains[k] += x[i + k] * y[i + k];
    for (; i < count; i++)
        chains[i % NAME(CHAINS)] += x[i] * y[i];
    for (int k = 0; k < NAME(CHAINS); k++)
        sum += chains[k];
    return sum;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* Where channel c of the block's first position is in y or dy. */
static int64_t NAME(y_offset)(const struct sampling *s, const struct NAME(block) * b, int64_t c) {
    return b->n * s->y.n + c * s->y.c + NAME(offset_in)(s, s->y.spatial, b->first);
}

static void NAME(forward_channels)(const struct sample_job *job, const struct NAME(block) * b, const REAL *x) {
    const struct sampling *s = job->s;
    REAL sums[SAMPLE_CHANNELS];
    for (int64_t first = 0; first < s->channels; first += SAMPLE_CHANNELS)
        for (int64_t i = 0; i < b->count; i++) {
            int64_t count = min64(SAMPLE_CHANNELS, s->channels - first);
            memset(sums, 0, sizeof sums);
            for (int k = 0; k < s->taps; k++)
                if (b->inside[k][i])
                    NAME(add_scaled)(count, sums, x + b->offset[k][i] + first, b->weight[k][i]);
            NAME(store_run)(s->y.type, job->values[s->y.value],
                            NAME(y_offset)(s, b, first) + i * s->y.spatial[s->spatial - 1], 1, sums, count);
        }
}

static void NAME(forward)(void *context, int64_t task) {
    const struct sample_job *job = context;
    const struct sampling *s = job->s;
    struct NAME(block) b;
    NAME(block_of)(&b, job, task);
    const REAL *x = (const REAL *)NAME(memory)(job, &s->read) + b.n * s->read.n;
    if (s->is_last) {
        NAME(forward_channels)(job, &b, x);
        return;
    }
    for (int64_t c = 0; c < s->channels; c++) {
        REAL sums[BLOCK] = {0};
        for (int k = 0; k < s->taps; k++)
            NAME(add_tap)(&b, k, sums, x + c * s->read.c, b.weight[k]);
        NAME(store_run)(s->y.type, job->values[s->y.value], NAME(y_offset)(s, &b, c), s->y.spatial[s->spatial - 1],
                        sums, b.count);
    }
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* Loads dy of one channel of a block, or of adjacent channels of position i. */
static void NAME(load_dy)(const struct sample_job *job, const struct NAME(block) * b, int64_t c, REAL *dy) {
    const struct sampling *s = job->s;
    NAME(load_run)(dy, s->y.type, job->values[s->y.value], NAME(y_offset)(s, b, c), s->y.spatial[s->spatial - 1],
                   b->count);
}

static void NAME(load_dy_channels)(const struct sample_job *job, const struct NAME(block) * b, int64_t i, int64_t first,
                                   int64_t count, REAL *dy) {
    const struct sampling *s = job->s;
    NAME(load_run)(dy, s->y.type, job->values[s->y.value],
                   NAME(y_offset)(s, b, first) + i * s->y.spatial[s->spatial - 1], s->y.c, count);
}

/* products[k][i]: the sum over channels of dy times the element that tap k reads. */
static void NAME(multiply)(const struct sample_job *job, const struct NAME(block) * b, const REAL *x,
                           REAL (*products)[BLOCK]) {
    const struct sampling *s = job->s;
    REAL dy[SAMPLE_CHANNELS];
    for (int64_t c = 0; c < s->channels && !s->is_last; c++) {
        NAME(load_dy)(job, b, c, dy);
        for (int k = 0; k < s->taps; k++)
            NAME(add_tap)(b, k, products[k], x + c * s->read.c, dy);
    }
    for (int64_t first = 0; first < s->channels && s->is_last; first += SAMPLE_CHANNELS)
        for (int64_t i = 0; i < b->count; i++) {
            int64_t count = min64(SAMPLE_CHANNELS, s->channels - first);
            NAME(load_dy_channels)(job, b, i, first, count, dy);
            for (int k = 0; k < s->taps; k++)
                if (b->inside[k][i])
                    products[k][i] += NAME(dot)(count, dy, x + b->offset[k][i] + first);
        }
}

static void NAME(dgrid)(void *context, int64_t task) {
    const struct sample_job *job = context;
    const struct sampling *s = job->s;
    const struct grid *dgrid = &s->dgrid;
    struct NAME(block) b;
    REAL products[SAMPLE_TAPS_MAX][BLOCK] = {{0}};
    NAME(block_of)(&b, job, task);
    NAME(multiply)(job, &b, (const REAL *)NAME(memory)(job, &s->read) + b.n * s->read.n, products);
    int64_t linear = task / s->blocks % s->lines * s->line + task % s->blocks * BLOCK;
    for (int64_t i = 0; i < b.count; i++) {
        int64_t at[GRID_SPATIAL_MAX];
        REAL slopes[GRID_SPATIAL_MAX] = {0};
        NAME(position_of)(s, linear + i, at);
        for (int d = 0; d < s->spatial; d++)
            for (int k = 0; k < s->taps; k++)
                slopes[s->spatial - 1 - d] += b.inside[k][i] ? b.slope[d][k][i] * products[k][i] : 0;
        NAME(store_run)(dgrid->type, job->values[dgrid->value], b.n * dgrid->n + NAME(offset_in)(s, dgrid->spatial, at),
                        dgrid->coordinate, slopes, s->spatial);
    }
}

/* Adds a block's contribution to some channels of dx. */
static void NAME(scatter)(const struct sample_job *job, const struct NAME(block) * b, const struct NAME(part) * part,
                          REAL *dx) {
    const struct sampling *s = job->s;
    REAL dy[SAMPLE_CHANNELS];
    for (int64_t c = part->first; c < part->first + part->count && !s->is_last; c++) {
        NAME(load_dy)(job, b, c, dy);
        REAL *plane = dx + c * s->written.c;
        for (int64_t i = 0; i < b->count; i++)
            for (int k = 0; k < s->taps; k++)
                if (b->inside[k][i])
                    plane[b->offset[k][i]] += b->weight[k][i] * dy[i];
    }
    for (int64_t i = 0; i < b->count && s->is_last; i++) {
        NAME(load_dy_channels)(job, b, i, part->first, part->count, dy);
        for (int k = 0; k < s->taps; k++)
            if (b->inside[k][i])
                NAME(add_scaled)(part->count, dx + b->offset[k][i] + part->first, dy, b->weight[k][i]);
    }
}

/* One thread adds to a channel, in the order of the positions. */
static void NAME(dx)(void *context, int64_t task) {
    const struct sample_job *job = context;
    const struct sampling *s = job->s;
    struct NAME(part) part = NAME(part_of)(job, task);
    struct NAME(block) b;
    REAL *dx = (REAL *)NAME(memory)(job, &s->written) + part.n * s->written.n;
    NAME(clear)(&part);
    for (int64_t line = 0; line < s->lines; line++)
        for (int64_t first = 0; first < s->line; first += BLOCK) {
            NAME(sample)(&b, job, &s->written, part.n, line * s->line + first, min64(BLOCK, s->line - first));
            NAME(scatter)(job, &b, &part, dx);
        }
    if (s->written.value < 0)
        NAME(store)(&part);
}

const struct sample_loops NAME(sample_loops) = {NAME(load), NAME(forward), NAME(dgrid), NAME(dx)};
