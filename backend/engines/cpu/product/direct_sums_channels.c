/* SPDX-License-Identifier: Apache-2.0 */
/* Filter gradients of single channels: vectors over channels, with the sums of a few taps in registers. Rows are summed
   in parts, which are added in order, so that the result does not depend on the number of threads. */
#include "engines/cpu/product/direct_task.h"

#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/product/direct_kernel.h"

/* Adds the products of one strip to sums [taps, columns of all tasks]; `is_first`: overwrites them. */
static void sum_strip(const struct task *task, float *sums, const float *dy, int64_t dy_ld, int64_t rows,
                      bool is_first) {
    const struct direct *d = task->job->direct;
    for (int64_t tap = 0; tap < d->tiling.segments; tap += DIRECT_TAPS) {
        direct_kernel(0)->sum_channels(rows, task->pointers + tap * STRIP, STRIP, dy, dy_ld, task->sums, task->columns);
        for (int64_t i = 0; i < DIRECT_TAPS; i++) {
            float *to = sums + (tap + i) * d->columns, *from = task->sums + i * task->columns;
            for (int64_t j = 0; j < task->columns; j++)
                to[j] = is_first ? from[j] : to[j] + from[j];
        }
    }
}

/* Sums strip by strip. Taps past the last one see zeros. */
static void sum_rows(const struct task *task, float *sums, const float *dy, int64_t dy_ld) {
    const struct direct *d = task->job->direct;
    const struct depths taps = {.segments = d->segments, .count = 1};
    for (int64_t i = d->segments * STRIP; i < d->tiling.segments * STRIP; i++)
        task->pointers[i] = direct_zeros;
    for (int64_t i = 0; i < task->rows; i += STRIP) {
        int64_t rows = min64(STRIP, task->rows - i);
        direct_set_pointers(task, task->row + i, rows, &taps);
        sum_strip(task, sums, dy + i * dy_ld, dy_ld, rows, i == 0);
    }
}

/* Thread main loop over tasks, each one part of the rows and some channels. */
static void sum_parts(void *context, int64_t thread) {
    struct job *job = context;
    const struct direct *d = job->direct;
    const struct direct_tiling *t = &d->tiling;
    struct task task = {.job = job, .sums = job->buffers + thread * direct_thread_floats(t)};
    task.pointers = (const float **)(void *)(task.sums + t->sums);
    int64_t index, dy_ld = d->dy.to.stride[2];
    while ((index = atomic_fetch_add(&job->next, 1)) < t->channel_tasks * t->row_tasks) {
        int64_t part = index % t->row_tasks;
        task.row = part * t->rows;
        task.rows = min64(t->rows, d->rows - task.row);
        task.channel = index / t->row_tasks * t->channels;
        task.columns = min64(t->channels, d->columns - task.channel);
        float *sums = job->parts + part * t->segments * d->columns + task.channel;
        sum_rows(&task, sums, (const float *)d->dy.to.base + task.row * dy_ld + task.channel, dy_ld);
    }
}

/* Computes all parts, which are then added to the first one; without rows the sums are zeros. */
void direct_run_sums(struct job *job) {
    const struct direct *d = job->direct;
    int64_t floats = d->tiling.segments * d->columns;
    job->parts = job->buffers;
    job->buffers += direct_part_floats(d);
    threads_for(d->tiling.threads, d->has_planes ? direct_sum_lines : sum_parts, job);
    for (int64_t part = 1; part < d->tiling.row_tasks; part++)
        for (int64_t i = 0; i < floats; i++)
            job->parts[i] += job->parts[part * floats + i];
    program_run(job->program, &d->walk, job->values, (struct block){job->parts, d->columns}, 0, d->segments, 0,
                d->columns);
}
