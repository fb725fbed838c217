/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolution: sums for a block of the result are made in the L1 cache, tap by tap, and go through the
   program. Vectors run over the channels where they are side by side, else over positions. Each sum is taken in the
   order of the taps, whatever the number of threads. It must not know operations. */
#include "engines/cpu/product/depthwise.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"

#include <string.h>

/* 4 KiB of sums, beside which a row of the image and of weights stays in L1. */
enum { BLOCK = 1024 /* sums at a time */ };

/* Compiled twice; the loader picks. */
#if defined __x86_64__ && defined __GLIBC__
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

struct job {
    const struct contraction *contraction;
    const struct piece *piece;
    /* patches: those of piece->a, at hand. */
    const struct patches *patches;
    void *const *values;
    const float *weights; /* [taps, groups] */
    int64_t taps, pieces; /* pieces: of a row or plane of positions, one per task */
};

/* Extents of three dimensions. */
static int64_t count_of(const int64_t *extents) { return extents[0] * extents[1] * extents[2]; }

/* The index of a position or tap, row-major over three extents, as three. */
static void unravel(int64_t index, const int64_t *extents, int64_t *place) {
    place[2] = index % extents[2];
    place[1] = index / extents[2] % extents[1];
    place[0] = index / extents[2] / extents[1];
}

/* Plain sums, which the compiler turns into vectors, as the restricts allow. */
WIDE static void add_products(int64_t count, float *restrict sums, const float *restrict x, const float *restrict w) {
    for (int64_t i = 0; i < count; i++)
        sums[i] += x[i] * w[i];
}

/* x has an element every `step`. Two loops, as only neighbours load as a vector. */
WIDE static void add_scaled(int64_t count, float *restrict sums, const float *restrict x, int64_t step, float w) {
    if (step == 1)
        for (int64_t i = 0; i < count; i++)
            sums[i] += x[i] * w;
    else
        for (int64_t i = 0; i < count; i++)
            sums[i] += x[i * step] * w;
}

/* Elements base[index + i * step], as float where they lie, or else in `copy`, which has room for `count`; then *step
   becomes 1. */
static const float *read(const struct patches *p, const void *base, int64_t index, int64_t *step, int64_t count,
                         float *copy) {
    /* User memory promises no alignment. */
    bool is_aligned = (uintptr_t)base % sizeof(float) == 0;
    if (p->type == WEFT_DATA_FLOAT && is_aligned)
        return (const float *)base + index;
    if (*step == 1)
        dtype_to_f32(copy, p->type, base, index, count);
    for (int64_t i = 0; i < count && *step != 1; i++)
        dtype_to_f32(copy + i, p->type, base, index + i * *step, 1);
    *step = 1;
    return copy;
}

/* Where a tap sees the image from a position, along dimension i. */
static int64_t seen(const struct patches *p, int i, int64_t place, int64_t tap) {
    return place * p->step[i] + p->offset[i] + tap * p->tap_step[i];
}

/* What is outside is zero, and adds nothing. */
static bool is_inside(const struct patches *p, int i, int64_t at) { return at >= 0 && at < p->size[i]; }

/* ---- Over channels: one position of one image, all groups -------------------------------------------------------- */

/* sums[i]: of group + i, at one position; groups is at most BLOCK. */
static void sum_position(const struct job *job, int64_t image, int64_t position, int64_t group, int64_t groups,
                         float *sums) {
    const struct patches *p = job->patches;
    int64_t place[3], tap[3];
    float copy[BLOCK];
    unravel(position, p->positions, place);
    memset(sums, 0, (size_t)groups * sizeof *sums);
    for (int64_t t = 0; t < job->taps; t++) {
        /* Element of the image that the tap meets, of the first group. */
        int64_t index = image * p->image_stride + group * p->group_stride, step = p->group_stride;
        bool inside = true;
        unravel(t, p->taps, tap);
        for (int i = 0; i < 3; i++) {
            int64_t at = seen(p, i, place[i], tap[i]);
            inside = inside && is_inside(p, i, at);
            index += at * p->stride[i];
        }
        /* A tap outside the image is outside for all groups alike. */
        if (!inside)
            continue;
        const float *x = read(p, job->piece->a.base, index, &step, groups, copy);
        const float *w = job->weights + t * p->groups + group;
        /* Groups that lie apart in memory are taken element by element. */
        if (step == 1)
            add_products(groups, sums, x, w);
        for (int64_t i = 0; i < groups && step != 1; i++)
            sums[i] += x[i * step] * w[i];
    }
}

/* Rows of the walk are images and positions; a task takes job->pieces of them. */
static void run_channels(void *context, int64_t task) {
    const struct job *job = context;
    const struct patches *p = job->patches;
    float sums[BLOCK];
    int64_t positions = count_of(p->positions), rows = job->piece->walk.rows;
    /* All groups at a time where they fit, and as many positions as fit then. */
    int64_t width = min64(p->groups, BLOCK), height = BLOCK / width;
    int64_t end = min64(rows, (task + 1) * job->pieces);
    for (int64_t group = 0; group < p->groups; group += width) {
        int64_t groups = min64(width, p->groups - group), count;
        for (int64_t row = task * job->pieces; row < end; row += count) {
            count = min64(height, end - row);
            for (int64_t i = 0; i < count; i++)
                sum_position(job, (row + i) / positions, (row + i) % positions, group, groups, sums + i * groups);
            program_run(&job->contraction->program, &job->piece->walk, job->values, (struct block){sums, groups}, row,
                        count, group, groups);
        }
    }
}

/* ---- Over positions: one group of one image ---------------------------------------------------------------------- */

/* Sums for positions that follow each other along the last dimension. plane: image and group, as a row of the walk.
   position: the first of `count`. */
static void sum_run(const struct job *job, int64_t plane, int64_t position, int64_t count, float *sums) {
    const struct patches *p = job->patches;
    int64_t place[3], tap[3], group = plane % p->groups;
    float copy[BLOCK];
    unravel(position, p->positions, place);
    memset(sums, 0, (size_t)count * sizeof *sums);
    for (int64_t t = 0; t < job->taps; t++) {
        int64_t index = plane / p->groups * p->image_stride + group * p->group_stride;
        unravel(t, p->taps, tap);
        /* Only the last dimension differs within the run. */
        int64_t at[] = {seen(p, 0, place[0], tap[0]), seen(p, 1, place[1], tap[1]), seen(p, 2, place[2], tap[2])};
        int64_t first = 0, end = count, step = p->step[2] * p->stride[2];
        if (!is_inside(p, 0, at[0]) || !is_inside(p, 1, at[1]))
            continue;
        /* The part of the run whose tap lies in the image; few taps lie outside, so the loops end soon. */
        while (first < end && !is_inside(p, 2, at[2] + first * p->step[2]))
            first++;
        while (end > first && !is_inside(p, 2, at[2] + (end - 1) * p->step[2]))
            end--;
        if (first == end)
            continue;
        /* From the first position that is inside. */
        index += at[0] * p->stride[0] + at[1] * p->stride[1] + at[2] * p->stride[2] + first * step;
        const float *x = read(p, job->piece->a.base, index, &step, end - first, copy);
        add_scaled(end - first, sums + first, x, step, job->weights[t * p->groups + group]);
    }
}

/* Rows of the walk are images and groups; a task takes job->pieces of them. */
static void run_planes(void *context, int64_t task) {
    const struct job *job = context;
    const struct patches *p = job->patches;
    int64_t positions = count_of(p->positions), length = p->positions[2], rows = job->piece->walk.rows;
    /* Whole lines of positions where several fit, else a part of one line. */
    int64_t most = length >= BLOCK ? BLOCK : BLOCK / length * length;
    float sums[BLOCK];
    for (int64_t plane = task * job->pieces; plane < min64(rows, (task + 1) * job->pieces); plane++) {
        for (int64_t start = 0, count; start < positions; start += count) {
            int64_t left = length >= BLOCK ? length - start % length : positions - start;
            count = min64(most, left);
            /* Line by line: sum_run goes along one. */
            for (int64_t i = 0; i < count; i += min64(length, count))
                sum_run(job, plane, start + i, min64(length, count), sums + i);
            program_run(&job->contraction->program, &job->piece->walk, job->values, (struct block){sums, count}, plane,
                        1, start, count);
        }
    }
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* The filter unpacked: floats [taps, groups]. */
int64_t depthwise_workspace_bytes(const struct piece *piece) {
    return count_of(piece->b.filter.taps) * piece->b.filter.groups * (int64_t)sizeof(float);
}

/* Once for each execution, on one thread: a filter is small beside its images. */
static void unpack_filter(const struct filter *filter, float *weights) {
    int64_t taps = count_of(filter->taps), tap[3];
    for (int64_t t = 0; t < taps; t++) {
        unravel(t, filter->taps, tap);
        for (int64_t group = 0; group < filter->groups; group++) {
            int64_t index = filter->first + group * filter->group_stride;
            for (int i = 0; i < 3; i++)
                index += tap[i] * filter->tap_stride[i];
            dtype_to_f32(weights + t * filter->groups + group, filter->type, filter->base, index, 1);
        }
    }
}

void depthwise_run(const struct contraction *contraction, const struct piece *piece, void *const *values,
                   void *workspace) {
    const struct patches *p = &piece->a.patches;
    const struct walk *walk = &piece->walk;
    struct job job = {contraction, piece, p, values, workspace, count_of(p->taps), 1};
    int64_t columns = walk->extents[walk->rank - 1];
    /* An empty result has no tasks; columns divide below. */
    if (walk->rows == 0 || columns == 0)
        return;
    unpack_filter(&piece->b.filter, workspace);
    /* Tasks of some 2^16 multiplications; one where threads may not share the bytes of the result. */
    job.pieces = 1 + (1 << 16) / (columns * (job.taps + 1));
    if (contraction->threads == 1)
        job.pieces = walk->rows;
    threads_for(divide_up(walk->rows, job.pieces), p->batch_has_images ? run_planes : run_channels, &job);
}
