/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions whose rows are read in place. A task packs panels of B for some columns and a part of the depth, and
   multiplies strips of rows by them:

       task: rows x columns          sums per thread, in L2; if the depth has one part, a strip of them in L1
         panels of B [depth, columns]  packed once per task and part, in L2
           strip of rows               pointers to what each tap sees
             kernel [6, 64]            sums in registers, one cache line of each of 6 rows in L1

   This file must not know tensors or operations. */
#include "engines/cpu/product/direct_task.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/direct_kernel.h"

#include <string.h>

enum {
    FEW_COLUMNS = 8, /* transposed at a time */
    ADDED_ROWS = 16, /* rows of the splits' sums that are added at a time */
    LINE_BYTES = 64
};

/* ---- Prefetching ---------------------------------------------------------------------------------------- */

static void fetch(struct ahead *ahead) {
    for (int64_t i = 0; i < ahead->per_kernel && ahead->rows > 0; i++) {
        if (ahead->is_written)
            __builtin_prefetch(ahead->row + ahead->line * LINE_BYTES, 1, 2);
        else
            __builtin_prefetch(ahead->row + ahead->line * LINE_BYTES, 0, 2);
        if (++ahead->line == ahead->lines) {
            ahead->line = 0;
            ahead->row += ahead->row_bytes;
            ahead->rows--;
        }
    }
}

/* Number of kernel calls for some rows of a task. */
static int64_t kernels_of(const struct task *task, int64_t rows) {
    const struct direct_shape *shape = direct_shape(task->columns);
    if (task->job->direct->is_depthwise)
        return divide_up(rows, direct_kernel(0)->channel_rows);
    return divide_up(rows, shape->rows) * divide_up(task->columns, shape->columns);
}

/* Prefetches `bytes` of each of some rows, spread over this number of kernel calls. */
static struct ahead plan_prefetch(const void *at, int64_t row_bytes, int64_t rows, int64_t bytes, int64_t kernels) {
    struct ahead ahead = {.row = at, .row_bytes = row_bytes, .rows = rows, .lines = divide_up(bytes, LINE_BYTES)};
    ahead.per_kernel = divide_up(ahead.lines * rows, max64(1, kernels));
    return ahead;
}

/* Prefetches a part of a filter; it is contiguous in each row. */
static struct ahead prefetch_filter(const struct task *task, const struct depths *depths) {
    const struct filter *f = &task->job->direct->filter;
    int64_t taps = patches_count(f->taps), bytes = dtype_of(f->type)->bits / 8;
    int64_t index = f->first + task->group * f->group_stride + task->channel * f->row_stride;
    bool is_run = f->channel_stride == 1 || f->channel_stride == taps;
    if (task->job->direct->is_filter || task->job->direct->is_depthwise || !is_run)
        return (struct ahead){0};
    index += f->channel_stride == 1 ? depths->segment * f->channels + depths->first : depths->first * taps;
    return plan_prefetch((const char *)f->base + index * bytes, f->row_stride * bytes, task->columns,
                         depths->segments * depths->count * bytes, kernels_of(task, task->rows));
}

/* Prefetches a part of dy for each channel, or for each position if channels are contiguous. Only short parts are
   prefetched, because the hardware prefetches long ones. */
static struct ahead prefetch_dy(const struct task *task, const struct depths *depths) {
    const struct direct *d = task->job->direct;
    const struct patches *dy = &d->dy.to;
    const int64_t size = (int64_t)sizeof(float), kernels = kernels_of(task, task->rows);
    const float *at = (const float *)dy->base + task->group * dy->group_stride + depths->segment * dy->image_stride +
                      task->row * dy->channel_stride + depths->first * d->step;
    if (d->step == 1)
        return plan_prefetch(at, dy->channel_stride * size, task->rows, depths->count * size, kernels);
    return plan_prefetch(at, d->step * size, depths->count, task->rows * size, kernels);
}

/* Prefetches approximately what the next strip sees of an image: at a distance equal to this strip's length. Single
   channels are processed as soon as they are loaded. */
static struct ahead prefetch_image(const struct task *task, int64_t rows, const struct depths *depths) {
    const struct direct *d = task->job->direct;
    const float *at = depths->segments > 0 ? task->pointers[(depths->segments - 1) * STRIP] : direct_zeros;
    int64_t pixel = d->image.to.stride[2] * (int64_t)sizeof(float), pixels = STRIP * d->image.to.step[2];
    if (!d->is_depthwise || d->image.is_on || at == direct_zeros)
        return (struct ahead){0};
    return plan_prefetch((const char *)at + pixels * pixel, pixel, pixels, task->columns * (int64_t)sizeof(float),
                         kernels_of(task, rows));
}

/* Prefetches the destination to which a strip's sums will be transposed; for positions in several images, that of the
   first. */
static struct ahead prefetch_result(const struct task *task, int64_t row, int64_t rows) {
    const struct job *job = task->job;
    const struct direct *d = job->direct;
    int64_t ld = job->memory_ld, size = (int64_t)sizeof(float), kernels = kernels_of(task, rows);
    struct ahead ahead = {0};
    if (job->memory && d->order == DIRECT_CHANNELS_TAPS)
        ahead = plan_prefetch(job->memory + (task->group * d->rows + row) * ld + task->channel * d->taps, ld * size,
                              rows, task->columns * size, kernels);
    if (job->memory && d->order == DIRECT_POSITIONS) {
        int64_t positions = patches_count(d->image.to.positions), image = row / positions, position = row % positions;
        int64_t first = (image * d->groups + task->group) * d->columns + task->channel;
        ahead = plan_prefetch(job->memory + first * ld + position, ld * size, task->columns,
                              min64(rows, positions - position) * size, kernels);
    }
    ahead.is_written = true;
    return ahead;
}

/* ---- Products ------------------------------------------------------------------------------------------- */

static void pack(const struct task *task, const struct depths *depths) {
    const struct direct *d = task->job->direct;
    /* Merged taps use the filter's own depths, which are the same numbers in the same order. */
    struct depths filter_depths = *depths;
    if (d->is_depthwise) {
        panels_of_channels(&d->filter, task->panels, task->channel, task->columns, depths);
        return;
    }
    if (d->reads_columns_in_place) {
        direct_set_column_pointers(task, depths);
        return;
    }
    if (!d->is_filter && d->depth != d->filter.channels)
        filter_depths = (struct depths){0, patches_count(d->filter.taps), 0, d->filter.channels};
    float *panel = task->panels;
    for (int64_t j = 0, width; j < task->columns; j += width) {
        width = direct_panel(task, j)->columns;
        int64_t count = min64(width, task->columns - j);
        bool has_all = d->taps == 1 || task->columns == d->columns;
        if (d->is_filter && has_all)
            panels_of_image(&d->image.to, panel, (int)width, task->group, 0, d->image.to.channels, task->channel + j,
                            (int)count, depths);
        else if (d->is_filter)
            panels_of_image(&d->image.to, panel, (int)width, task->group, task->channel, task->channels, j, (int)count,
                            depths);
        else
            panels_of_filter(&d->filter, panel, (int)width, task->group, task->channel + j, (int)count, &filter_depths);
        panel += depths->segments * depths->count * width;
    }
}

/* Multiplies the rows of one kernel by a panel, whose columns are packed or read through pointers, depending on
   reads_columns_in_place. */
static void multiply_rows(const struct task *task, const struct direct_shape *shape, const void *panel, float *sums,
                          int64_t ld, int64_t row, int64_t rows, const struct depths *depths, bool adds) {
    bool is_low = rows - row <= shape->rows / 2;
    int64_t step = task->job->direct->step;
    if (task->job->direct->reads_columns_in_place)
        shape->multiply_pointers[is_low](depths->segments, depths->count, task->pointers + row, STRIP, step, panel,
                                         sums, ld, adds);
    else
        shape->multiply[is_low](depths->segments, depths->count, task->pointers + row, STRIP, step, panel, sums, ld,
                                adds);
}

static void multiply_channels(const struct task *task, float *sums, int64_t ld, int64_t row, int64_t rows,
                              const struct depths *depths) {
    const struct direct_kernel *kernel = direct_kernel(0);
    for (int64_t i = row; i < rows; i += kernel->channel_rows) {
        fetch(&task->ahead[0]);
        fetch(&task->ahead[1]);
        kernel->filter_channels(depths->segments, task->pointers + i, STRIP, task->panels, sums + i * ld, ld,
                                task->columns);
    }
}

/* Columns are the outer loop: a panel stays in the cache for all rows of the strip. */
static void multiply(const struct task *task, float *sums, int64_t ld, int64_t row, int64_t rows,
                     const struct depths *depths, bool adds) {
    const struct direct *d = task->job->direct;
    const char *panel = (const char *)task->panels;
    if (d->is_depthwise) {
        multiply_channels(task, sums, ld, row, rows, depths);
        return;
    }
    for (int64_t j = 0, width; j < task->columns; j += width) {
        const struct direct_shape *shape = direct_panel(task, j);
        width = shape->columns;
        for (int64_t i = row; i < rows; i += shape->rows) {
            fetch(&task->ahead[0]);
            fetch(&task->ahead[1]);
            multiply_rows(task, shape, panel, sums + i * ld + j, ld, i, rows, depths, adds);
        }
        int64_t row_bytes = (int64_t)(d->reads_columns_in_place ? sizeof(float *) : (size_t)width * sizeof(float));
        panel += depths->segments * depths->count * row_bytes;
    }
}

/* ---- Storing -------------------------------------------------------------------------------------------- */

/* Computes a strip's sums directly in the result's memory, for whole kernels. Returns the number of rows. */
static int64_t multiply_in_place(const struct task *task, int64_t row, int64_t rows, const struct depths *depths) {
    const struct job *job = task->job;
    const struct direct *d = job->direct;
    bool is_transposed = d->order == DIRECT_POSITIONS || d->order == DIRECT_CHANNELS_TAPS;
    if (!job->memory || is_transposed || task->columns != task->width)
        return 0;
    int64_t full_rows = rows - rows % DIRECT_ROWS;
    multiply(task, job->memory + (task->group * d->rows + row) * job->memory_ld + task->channel, job->memory_ld, 0,
             full_rows, depths, false);
    return full_rows;
}

static void store(const struct task *task, float *block, int64_t ld, int64_t row, int64_t rows, int64_t column,
                  int64_t columns) {
    const struct job *job = task->job;
    program_run(job->program, &job->direct->walk, job->values, (struct block){block, ld}, row, rows, column, columns);
}

/* transposed[column, row] = sums[row, column]. Only a few columns at a time, because all rows of a plane may map to one
   cache set. */
static void transpose_sums(float *transposed, int64_t transposed_ld, const float *sums, int64_t ld, int64_t rows,
                           int64_t columns) {
    for (int64_t j = 0; j < columns; j += FEW_COLUMNS) {
        struct gemm_matrix matrix = {.base = sums + j, .type = WEFT_DATA_FLOAT, .stride = ld, .depth_stride = 1};
        gemm_pack_matrix(&matrix, transposed + j * transposed_ld, (int)transposed_ld, 0, 0, (int)rows, 0,
                         (int)min64(FEW_COLUMNS, columns - j));
    }
}

/* Channels become rows, one image at a time. */
static void store_positions(const struct task *task, const float *sums, int64_t row, int64_t rows) {
    const struct job *job = task->job;
    const struct direct *d = job->direct;
    int64_t positions = patches_count(d->image.to.positions);
    for (int64_t i = 0, count; i < rows; i += count) {
        int64_t image = (row + i) / positions, position = (row + i) % positions;
        int64_t first = (image * d->groups + task->group) * d->columns + task->channel;
        count = min64(rows - i, positions - position);
        float *to = job->memory ? job->memory + first * job->memory_ld + position : task->transposed;
        transpose_sums(to, job->memory ? job->memory_ld : count, sums + i * task->width, task->width, count,
                       task->columns);
        if (!job->memory)
            store(task, task->transposed, count, first, task->columns, position, count);
    }
}

/* In each row, [taps, channels] becomes [channels, taps]. */
static void store_channels_taps(const struct task *task, const float *sums, int64_t row, int64_t rows) {
    const struct job *job = task->job;
    int64_t taps = job->direct->taps, first = task->group * job->direct->rows + row;
    int64_t ld = job->memory ? job->memory_ld : task->columns;
    float *to = job->memory ? job->memory + first * ld + task->channel * taps : task->transposed;
    for (int64_t i = 0; i < rows; i++)
        transpose_sums(to + i * ld, taps, sums + i * task->width, task->channels, taps, task->channels);
    if (!job->memory)
        store(task, task->transposed, task->columns, first, rows, task->channel * taps, task->columns);
}

static void store_strip(const struct task *task, float *sums, int64_t row, int64_t rows) {
    const struct direct *d = task->job->direct;
    switch (d->order) {
    case DIRECT_CHANNELS:
    case DIRECT_TAPS_CHANNELS:
        store(task, sums, task->width, task->group * d->rows + row, rows, task->channel, task->columns);
        break;
    case DIRECT_POSITIONS:
        store_positions(task, sums, row, rows);
        break;
    case DIRECT_CHANNELS_TAPS:
        store_channels_taps(task, sums, row, rows);
        break;
    }
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* Runs one part of the depth, whose panels are packed. If the depth has only one part, sums are stored per strip. */
static void run_part(const struct task *task, const struct depths *depths, bool is_first, bool is_last) {
    bool is_only = is_first && is_last;
    for (int64_t i = 0; i < task->rows; i += STRIP) {
        int64_t rows = min64(STRIP, task->rows - i);
        float *sums = task->sums + (is_only ? 0 : i * task->width);
        direct_set_pointers(task, task->row + i, rows, depths);
        if (task->job->direct->is_depthwise)
            task->ahead[0] = prefetch_image(task, rows, depths);
        task->ahead[1] = is_last ? prefetch_result(task, task->row + i, rows) : (struct ahead){0};
        int64_t done = is_only ? multiply_in_place(task, task->row + i, rows, depths) : 0;
        if (done == rows)
            continue;
        multiply(task, sums, task->width, done, rows, depths, !is_first);
        if (is_last)
            store_strip(task, sums + done * task->width, task->row + i + done, rows - done);
    }
}

/* Parts iterate over the segments first. */
static struct depths part_of(const struct direct *d, int64_t part) {
    const struct direct_tiling *t = &d->tiling;
    int64_t along_segments = max64(1, divide_up(d->segments, t->segments));
    struct depths depths = {.segment = part % along_segments * t->segments, .first = part / along_segments * t->depth};
    depths.segments = min64(t->segments, d->segments - depths.segment);
    depths.count = min64(t->depth, d->depth - depths.first);
    return depths;
}

/* A depth of 0 also counts as one part, which stores zeros. */
static int64_t parts_of(const struct direct *d) {
    const struct direct_tiling *t = &d->tiling;
    return max64(1, divide_up(d->segments, t->segments)) * max64(1, divide_up(d->depth, t->depth));
}

/* Location of a part's panels in a prepacked filter; tasks along the rows share them. */
static float *prepacked_panels(float *panels, const struct task *task, int64_t part) {
    const struct direct *d = task->job->direct;
    int64_t tasks = task->group * d->tiling.channel_tasks + task->channel / d->tiling.channels;
    return panels + (tasks * parts_of(d) + part) * d->tiling.panels;
}

/* Runs all parts of the depth, or those of one split, whose sums are stored later. */
static void run_task(struct task *task, int64_t split) {
    const struct job *job = task->job;
    const struct direct *d = job->direct;
    int64_t parts = parts_of(d), splits = d->tiling.splits;
    int64_t first = split * parts / splits, end = (split + 1) * parts / splits;
    float *buffer = task->panels;
    for (int64_t part = first; part < end; part++) {
        struct depths depths = part_of(d, part), next = part_of(d, part + 1);
        task->ahead[0] = (struct ahead){0};
        if (part + 1 < end && !job->prepacked)
            task->ahead[0] = d->reads_columns_in_place ? prefetch_dy(task, &next) : prefetch_filter(task, &next);
        if (job->prepacked)
            task->panels = prepacked_panels(job->prepacked, task, part);
        else
            pack(task, &depths);
        run_part(task, &depths, part == first, part == parts - 1 && splits == 1);
    }
    task->panels = buffer;
}

/* Tasks along the rows are consecutive, because they pack the same panels from the same memory. */
static void begin_task(struct task *task, int64_t index) {
    const struct direct *d = task->job->direct;
    const struct direct_tiling *t = &d->tiling;
    task->group = index / t->row_tasks / t->channel_tasks;
    task->row = index % t->row_tasks * t->rows;
    task->rows = min64(t->rows, d->rows - task->row);
    task->channel = index / t->row_tasks % t->channel_tasks * t->channels;
    task->channels = min64(t->channels, d->columns / d->taps - task->channel);
    task->columns = d->taps * task->channels;
    task->width = direct_width(d, task->channels);
}

/* Single channels that are computed in planes need nothing: packing a task's few weights costs little in comparison. */
weftStatus_t direct_prepack_filter(struct direct *d, const void *filter) {
    if (d->has_planes)
        return WEFT_STATUS_SUCCESS;
    const struct direct_tiling *t = &d->tiling;
    struct direct bound = *d;
    int64_t tasks = d->groups * t->channel_tasks, parts = parts_of(d);
    bound.filter.base = filter;
    struct job job = {.direct = &bound};
    struct task task = {.job = &job};
    TRY(prepacked_alloc(&d->prepacked, filter, tasks * parts * t->panels * (int64_t)sizeof(float)));
    for (int64_t i = 0; i < tasks; i++) {
        begin_task(&task, i * t->row_tasks);
        for (int64_t part = 0; part < parts; part++) {
            struct depths depths = part_of(d, part);
            task.panels = prepacked_panels(d->prepacked.panels, &task, part);
            pack(&task, &depths);
        }
    }
    return WEFT_STATUS_SUCCESS;
}

static void run_tasks(void *context, int64_t thread) {
    struct job *job = context;
    const struct direct *d = job->direct;
    const struct direct_tiling *t = &d->tiling;
    struct ahead ahead[2];
    struct task task = {.job = job, .ahead = ahead, .panels = job->buffers + thread * direct_thread_floats(t)};
    float *sums = task.panels + t->panels;
    task.transposed = sums + t->sums;
    task.pointers = (const float **)(void *)(task.transposed + t->transposed);
    int64_t index, tasks = direct_tasks(d, t);
    while ((index = atomic_fetch_add(&job->next, 1)) < tasks * t->splits) {
        begin_task(&task, index % tasks);
        task.sums = t->splits > 1 ? job->parts + index * t->sums : sums;
        run_task(&task, index / tasks);
    }
}

WIDE static void add(float *sums, const float *others, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        sums[i] += others[i];
}

/* Adds the splits' sums to the first one's, in order, and stores them. */
static void add_splits(void *context, int64_t thread) {
    struct job *job = context;
    const struct direct *d = job->direct;
    const struct direct_tiling *t = &d->tiling;
    struct task task = {.job = job,
                        .transposed = job->buffers + thread * direct_thread_floats(t) + t->panels + t->sums};
    int64_t index, tasks = direct_tasks(d, t), blocks = divide_up(t->rows, ADDED_ROWS);
    while ((index = atomic_fetch_add(&job->next, 1)) < tasks * blocks) {
        begin_task(&task, index / blocks);
        int64_t row = index % blocks * ADDED_ROWS, rows = min64(ADDED_ROWS, task.rows - row);
        float *sums = job->parts + index / blocks * t->sums + row * task.width;
        for (int64_t split = 1; split < t->splits && rows > 0; split++)
            add(sums, sums + split * tasks * t->sums, rows * task.width);
        if (rows > 0)
            store_strip(&task, sums, task.row + row, rows);
    }
}

/* Detects a program that only stores its input as floats, with a constant row pitch and contiguous columns. */
static void find_memory(struct job *job) {
    const struct program *program = job->program;
    const struct rows_columns *walk = &job->direct->walk;
    const struct instruction *last = &program->instructions[1];
    if (program->instruction_count != 2 || program->instructions[0].verb != VERB_GIVEN || last->verb != VERB_STORE ||
        last->is_wide || program->accesses[last->access].type != WEFT_DATA_FLOAT || walk->rank != 2 ||
        walk->strides[last->access][1] != 1)
        return;
    float *memory = job->values[program->accesses[last->access].value];
    if (!memory || (uintptr_t)memory % sizeof(float) != 0)
        return;
    job->memory = memory + walk->bases[last->access];
    job->memory_ld = walk->strides[last->access][0];
}

void direct_run(const struct direct *planned, const struct program *program, void *const *values, void *workspace,
                bool follows) {
    /* A copy on the stack: plans are immutable, and addresses differ between executions. */
    struct direct d = *planned;
    float *copy = (float *)((char *)workspace + (-(uintptr_t)workspace & (LINE * sizeof(float) - 1)));
    d.image.to.base = d.image.from.base = values[d.image_value];
    d.dy.to.base = d.dy.from.base = d.filter.base = values[d.other_value];
    if (d.image.is_on && !(follows && !d.image.is_bordered))
        staged_image_run(&d.image, values[d.image_value], copy);
    if (d.image.is_on)
        d.image.to.base = copy;
    copy += round_up(staged_image_floats(&d.image), LINE);
    if (d.dy.is_on)
        staged_image_run(&d.dy, values[d.other_value], copy);
    copy += round_up(staged_image_floats(&d.dy), LINE);
    struct job job = {.direct = &d, .program = program, .values = values, .buffers = copy};
    job.prepacked = d.is_filter ? NULL : (float *)prepacked_find(&d.prepacked, d.filter.base);
    if (d.is_depthwise && d.is_filter) {
        direct_run_sums(&job);
        return;
    }
    find_memory(&job);
    job.parts = job.buffers;
    job.buffers += direct_part_floats(&d);
    threads_for(d.tiling.threads, d.has_planes ? direct_compute_planes : run_tasks, &job);
    if (d.tiling.splits == 1)
        return;
    job.next = 0;
    threads_for(d.tiling.threads, add_splits, &job);
}
