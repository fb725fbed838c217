/* SPDX-License-Identifier: Apache-2.0 */
/* Images of single channels that are computed plane by plane: vectors run along all lines of a plane as one, including
   the gaps between them, because each tap sees the same window, shifted by some positions. The phases of a data
   gradient's stride are computed separately and then interleaved line by line:

       window  . . . . .      phases [0][0]  a a a a .      plane  a b a b a b a
               . x x x x             [0][1]  b b b . .             c d c d c d c
               . x x x x             ...                           a b a b a b a

   Measured on two threads in us, 3 x 3 taps of stride 2, 2 x 384 channels of 14 x 14: 76, compared with 182 for four
   products whose elements are stored one by one. With one phase, compared with transposing channels first: 3 x 3 taps,
   96 channels of 56 x 56, 121 and 188, 2 x 512 of 14 x 14 123 and 134, 4 x 960 of 7 x 7 232 and 144; 7 x 7 taps, 2 x
   384 of 14 x 14, 220 and 185. */
#include "engines/cpu/product/direct_task.h"

#include "base/number.h"
#include "base/vectors.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/direct_kernel.h"

#include <string.h>

enum {
    PLANE_FLOATS = 32 << 10, /* maximum of a window, and of all phases: 128 KiB */
    LEAST_POSITIONS = 160,   /* for a single phase */
    CHANNELS = 16,           /* maximum of a task: a cache line contains their weights for a tap */
    TASKS = 8                /* minimum per thread, as long as each has a channel */
};

/* ---- Planning ---------------------------------------------------------------------------------------------------- */

/* The window contains everything that any tap sees from any position. */
static void find_window(struct direct_planes *planes) {
    for (int i = 0; i < 3; i++) {
        int64_t first = INT64_MAX, end = INT64_MIN;
        for (int64_t n = 0; n < patches_count(planes->counts); n++) {
            const struct patches *p = &planes->phases[n].patches;
            int64_t reach = (p->taps[i] - 1) * p->tap_step[i];
            if (patches_count(p->taps) == 0)
                continue;
            first = min64(first, p->offset[i] + min64(0, reach));
            end = max64(end, p->offset[i] + max64(0, reach) + p->positions[i]);
        }
        bool is_seen = end > first;
        planes->first[i] = is_seen ? first : 0;
        planes->window[i] = is_seen ? end - first : 1;
    }
}

/* Floats of a phase in whole vectors; the first phase has the most positions. The line pitch is that of the window. */
static int64_t phase_floats(const struct direct_planes *planes) {
    const int64_t *count = planes->phases[0].patches.positions, *window = planes->window;
    return round_up(((count[0] - 1) * window[1] + count[1] - 1) * window[2] + count[2], LINE);
}

/* Vectors may read past the end, up to a cache line. */
static int64_t window_floats(const struct direct_planes *planes) {
    return round_up(patches_count(planes->window), LINE) + LINE;
}

static int64_t phase_sums_floats(const struct direct_planes *planes) {
    return patches_count(planes->counts) * phase_floats(planes);
}

/* Vectors may write past the end, up to a cache line. */
static int64_t plane_floats(const struct direct_planes *planes) {
    return round_up(patches_count(planes->size), LINE) + LINE;
}

/* Small planes with many gaps are faster with transposed channels, unless these would be stored element by element. */
static bool is_worth(const struct direct_planes *planes) {
    int64_t positions = patches_count(planes->size), floats = phase_sums_floats(planes);
    bool is_one = patches_count(planes->counts) == 1;
    return !is_one || (positions >= LEAST_POSITIONS && 5 * floats <= 7 * positions);
}

static int64_t taps_of(const struct direct_planes *planes) {
    int64_t taps = 0;
    for (int64_t n = 0; n < patches_count(planes->counts); n++)
        taps += patches_count(planes->phases[n].patches.taps);
    return taps;
}

void direct_plan_planes(struct direct *d, int64_t images, int threads) {
    struct direct_planes *planes = &d->planes;
    const struct patches *p = &planes->phases[0].patches;
    struct direct_tiling *t = &d->tiling;
    int64_t channels = p->groups;
    d->is_depthwise = d->has_planes = true;
    d->groups = d->taps = d->depth = 1;
    d->rows = images;
    d->columns = channels;
    d->image = (struct staged_image){.from = *p, .to = *p};
    find_window(planes);
    /* Extents are checked one by one, because their product may overflow. */
    d->is_on = images > 0 && planes->window[0] <= PLANE_FLOATS && planes->window[1] <= PLANE_FLOATS &&
               planes->window[2] <= PLANE_FLOATS && patches_count(planes->window) <= PLANE_FLOATS &&
               phase_sums_floats(planes) <= PLANE_FLOATS && is_worth(planes);
    int64_t most = min64(CHANNELS, PLANE_FLOATS / max64(1, max64(window_floats(planes), phase_sums_floats(planes))));
    t->channels = max64(1, min64(most, images * channels / (TASKS * max64(1, threads))));
    t->channel_tasks = divide_up(channels, t->channels);
    t->row_tasks = images;
    t->splits = 1;
    t->threads = min64(max64(1, threads), t->row_tasks * t->channel_tasks);
    t->panels = round_up(taps_of(planes) * t->channels, LINE);
    t->sums = t->channels * (window_floats(planes) + phase_sums_floats(planes)) + LINE;
    t->transposed = plane_floats(planes);
    t->pointers = taps_of(planes);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* Copies the window's part of a plane; zeros surround it. */
static void copy_window(const struct direct *d, int64_t image, int64_t channel, float *window) {
    const struct direct_planes *planes = &d->planes;
    const struct patches *p = &d->image.to;
    const int64_t *size = planes->window;
    int64_t begin[3], count[3], index = image * p->image_stride + channel * p->group_stride, at = 0;
    for (int i = 0; i < 3; i++) {
        begin[i] = max64(0, planes->first[i]);
        count[i] = min64(planes->first[i] + size[i], p->size[i]) - begin[i];
        if (count[i] <= 0)
            return;
        index += begin[i] * p->stride[i];
        at = at * size[i] + begin[i] - planes->first[i];
    }
    for (int64_t i = 0; i < count[0]; i++, index += p->stride[0], at += size[1] * size[2]) {
        struct gemm_matrix lines = {.type = p->type, .stride = 1, .depth_stride = p->stride[1]};
        lines.base = (const char *)p->base + dtype_bytes(p->type, index);
        gemm_pack_matrix(&lines, window + at, (int)size[2], 0, 0, (int)count[2], 0, (int)count[1]);
    }
}

/* Packs the weights of some channels, phase by phase: [taps, channels]. */
static void pack_weights(const struct task *task) {
    const struct direct_planes *planes = &task->job->direct->planes;
    float *panel = task->panels;
    for (int64_t n = 0; n < patches_count(planes->counts); n++) {
        struct filter filter = planes->phases[n].filter;
        struct depths taps = {.segments = patches_count(filter.taps), .count = 1};
        filter.base = task->job->direct->filter.base;
        if (taps.segments > 0)
            panels_of_channels(&filter, panel, task->channel, task->channels, &taps);
        panel += taps.segments * task->channels;
    }
}

/* Offset of the first position that each tap of each phase sees. */
static void find_offsets(const struct direct_planes *planes, int64_t *offset) {
    for (int64_t n = 0; n < patches_count(planes->counts); n++) {
        const struct patches *p = &planes->phases[n].patches;
        for (int64_t tap = 0, taps[3]; tap < patches_count(p->taps); tap++, offset++) {
            patches_unravel(tap, p->taps, taps);
            *offset = 0;
            for (int i = 0; i < 3; i++)
                *offset = *offset * planes->window[i] + p->offset[i] + taps[i] * p->tap_step[i] - planes->first[i];
        }
    }
}

/* Computes each phase of each of the task's channels: [channels, phases]. */
static void compute_phases(const struct task *task, const int64_t *offsets, const float *windows, float *sums) {
    const struct direct_planes *planes = &task->job->direct->planes;
    direct_filter_plane *filter_plane = direct_kernel(0)->filter_plane;
    int64_t floats = phase_floats(planes), channels = task->channels;
    for (int64_t i = 0; i < channels; i++, windows += window_floats(planes)) {
        const float *weights = task->panels + i;
        const int64_t *offset = offsets;
        for (int64_t n = 0; n < patches_count(planes->counts); n++, sums += floats) {
            int64_t taps = patches_count(planes->phases[n].patches.taps);
            filter_plane(taps, windows, offset, weights, channels, sums, floats);
            weights += taps * channels;
            offset += taps;
        }
    }
}

/* Interleaves a line of a plane from lines of phases with a pitch of `floats`. Writes up to a vector too much; the next
   line is written later. */
static inline __attribute__((always_inline)) void join_line(float *to, const float *from, int64_t floats,
                                                            int64_t phases, int64_t width) {
    enum { HALF = LINE / 2 };
    typedef float half __attribute__((vector_size(HALF * sizeof(float)), may_alias, aligned(sizeof(float))));
    for (int64_t i = 0; i < width && phases == 1; i += LINE)
        memcpy(to + i, from + i, LINE * sizeof *to);
    for (int64_t i = 0, j = 0; j < width && phases == 2; i += HALF, j += LINE) {
        half a = *(const half *)(from + i), b = *(const half *)(from + floats + i);
        *(half *)(to + j) = SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        *(half *)(to + j + HALF) = SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int64_t phase = 0; phase < phases && phases > 2; phase++, from += floats)
        for (int64_t i = 0, j = phase; j < width; i++, j += phases)
            to[j] = from[i];
}

/* Lines i0, i1 come from phase i0 % counts[0], i1 % counts[1]. */
WIDE static void join_phases(const struct direct_planes *planes, const float *sums, float *plane) {
    const int64_t *counts = planes->counts, *size = planes->size, *window = planes->window;
    int64_t floats = phase_floats(planes);
    for (int64_t i = 0; i < size[0]; i++) {
        const float *first =
            sums + i % counts[0] * counts[1] * counts[2] * floats + i / counts[0] * window[1] * window[2];
        for (int64_t j = 0, phase = 0; j < size[1]; j++, plane += size[2]) {
            join_line(plane, first + phase * counts[2] * floats, floats, counts[2], size[2]);
            phase = phase + 1 < counts[1] ? phase + 1 : 0;
            first += phase == 0 ? window[2] : 0;
        }
    }
}

static void store_plane(const struct job *job, int64_t row, float *plane) {
    int64_t count = patches_count(job->direct->planes.size);
    if (job->memory)
        memcpy(job->memory + row * job->memory_ld, plane, (size_t)count * sizeof *plane);
    else
        program_run(job->program, &job->direct->walk, job->values, (struct block){plane, count}, row, 1, 0, count);
}

/* A task has some channels of an image. Each step is completed for all of them before the next one, because data that
   was just stored cannot be forwarded to whole-vector loads yet. */
void direct_compute_planes(void *context, int64_t thread) {
    struct job *job = context;
    const struct direct *d = job->direct;
    const struct direct_tiling *t = &d->tiling;
    struct task task = {.job = job, .panels = job->buffers + thread * direct_thread_floats(t)};
    int64_t index, floats = window_floats(&d->planes);
    float *windows = task.panels + t->panels, *sums = windows + t->channels * floats;
    float *plane = windows + t->sums;
    int64_t *offsets = (int64_t *)(void *)(plane + t->transposed);
    /* The zeros around the copied data remain from task to task. */
    memset(windows, 0, (size_t)(t->channels * floats) * sizeof *windows);
    find_offsets(&d->planes, offsets);
    while ((index = atomic_fetch_add(&job->next, 1)) < t->row_tasks * t->channel_tasks) {
        int64_t image = index / t->channel_tasks;
        task.channel = index % t->channel_tasks * t->channels;
        task.channels = min64(t->channels, d->columns - task.channel);
        pack_weights(&task);
        for (int64_t i = 0; i < task.channels; i++)
            copy_window(d, image, task.channel + i, windows + i * floats);
        compute_phases(&task, offsets, windows, sums);
        for (int64_t i = 0; i < task.channels; i++) {
            join_phases(&d->planes, sums + i * phase_sums_floats(&d->planes), plane);
            store_plane(job, image * d->columns + task.channel + i, plane);
        }
    }
}
