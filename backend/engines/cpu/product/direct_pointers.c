/* SPDX-License-Identifier: Apache-2.0 */
/* Pointers to the elements that rows see: pixels under taps, or planes of dy. */
#include "engines/cpu/product/direct_task.h"

#include "base/number.h"
#include "engines/cpu/product/direct_kernel.h"

const float direct_zeros[IMAGE_DEPTH];

/* Sets the pointers of a run of positions under one tap. */
static void set_run_pointers(const struct patches *p, const struct run *run, int64_t tap, int64_t channel,
                             const float **pointers) {
    int64_t taps[3], first[3], index = run->origin + channel, before, end;
    patches_unravel(tap, p->taps, taps);
    for (int i = 0; i < 3; i++) {
        first[i] = run->place[i] * p->step[i] + p->offset[i] + taps[i] * p->tap_step[i];
        index += first[i] * p->stride[i];
    }
    patches_inside(p, first, run->count, &before, &end);
    for (int64_t i = 0; i < run->count; i++)
        pointers[i] = direct_zeros;
    for (int64_t i = before, step = p->step[2] * p->stride[2]; i < end; i++)
        pointers[i] = (const float *)p->base + index + i * step;
}

/* Rows are positions, segments are taps. */
static void set_position_pointers(const struct task *task, int64_t row, int64_t rows, const struct depths *depths) {
    const struct patches *p = &task->job->direct->image.to;
    int64_t channel = task->job->direct->is_depthwise ? task->channel : depths->first;
    for (int64_t i = 0; i < rows;) {
        struct run run = patches_run(p, task->group, row + i, rows - i);
        for (int64_t s = 0; s < depths->segments; s++)
            set_run_pointers(p, &run, depths->segment + s, channel, task->pointers + s * STRIP + i);
        i += run.count;
    }
}

/* Rows are channels of dy, segments are images. */
static void set_channel_pointers(const struct task *task, int64_t row, int64_t rows, const struct depths *depths) {
    const struct patches *dy = &task->job->direct->dy.to;
    const float *base = (const float *)dy->base + task->group * dy->group_stride + depths->first * dy->stride[2];
    for (int64_t s = 0; s < depths->segments; s++)
        for (int64_t i = 0; i < rows; i++)
            task->pointers[s * STRIP + i] =
                base + (depths->segment + s) * dy->image_stride + (row + i) * dy->channel_stride;
}

void direct_set_pointers(const struct task *task, int64_t row, int64_t rows, const struct depths *depths) {
    if (task->job->direct->is_filter && !task->job->direct->is_depthwise)
        set_channel_pointers(task, row, rows, depths);
    else
        set_position_pointers(task, row, rows, depths);
    for (int64_t s = 0; s < depths->segments; s++)
        for (int64_t i = rows; i < STRIP && i % DIRECT_ROWS != 0; i++)
            task->pointers[s * STRIP + i] = task->pointers[s * STRIP + rows - 1];
}

/* The tap and the channel at which a panel of a task starts. */
static void begin_panel(const struct task *task, int64_t column, int64_t *tap, int64_t *channel) {
    int64_t all = task->job->direct->image.to.channels;
    bool has_all_taps = task->job->direct->taps > 1;
    *tap = has_all_taps ? column / task->channels : (task->channel + column) / all;
    *channel = has_all_taps ? task->channel + column % task->channels : (task->channel + column) % all;
}

const struct direct_shape *direct_panel(const struct task *task, int64_t column) {
    const struct direct *d = task->job->direct;
    int64_t columns = task->columns - column, tap, channel;
    if (d->reads_columns_in_place) {
        begin_panel(task, column, &tap, &channel);
        columns = min64(columns, (d->taps > 1 ? task->channel + task->channels : d->image.to.channels) - channel);
    }
    return direct_shape(columns);
}

void direct_set_column_pointers(const struct task *task, const struct depths *depths) {
    const struct patches *p = &task->job->direct->image.to;
    int64_t per_image = patches_count(p->positions), per_panel = depths->segments * depths->count, tap, channel;
    const float **pointers = (const float **)(void *)task->panels;
    for (int64_t s = 0; s < depths->segments; s++)
        for (int64_t i = 0; i < depths->count;) {
            struct run run =
                patches_run(p, task->group, (depths->segment + s) * per_image + depths->first + i, depths->count - i);
            for (int64_t j = 0, panel = 0; j < task->columns; j += direct_panel(task, j)->columns, panel++) {
                begin_panel(task, j, &tap, &channel);
                set_run_pointers(p, &run, tap, channel, pointers + panel * per_panel + s * depths->count + i);
            }
            i += run.count;
        }
}
