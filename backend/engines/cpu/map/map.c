/* SPDX-License-Identifier: Apache-2.0 */
/* The map family: any connected group of pointwise operations of one shape in one pass, in the memory order of its
   result. Each element is computed separately, so results do not depend on blocks or threads. A program
   (core/program.h) computes a block; core/rows_columns.h defines the traversal, which this file chooses and divides
   into tasks. */
#include "base/number.h"
#include "engines/cpu/core/rows_columns.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"

/* BYTES_PER_SECOND: memory bandwidth shared by all cores. START_SECONDS: time before a step's first element. */
static const double BYTES_PER_SECOND = 16e9;
static const double START_SECONDS = 1e-6;
static const double TASK_NANOSECONDS = 20e3; /* cost of waking a thread */

/* Minimum and maximum elements of a task, in whole blocks. */
enum { LEAST_TASK = 4 * PROGRAM_BLOCK, MOST_TASK = 128 * PROGRAM_BLOCK };

/* Only pointwise nodes compute values here. */
static const struct given none = {.value = -1, .alpha = 1};

struct map {
    struct program program;
    struct rows_columns walk;
    /* The traversal's space, rows x columns, in tasks of task_rows x task_columns, with column_tasks of them per
       row. */
    int64_t task_rows, task_columns, column_tasks, tasks;
};

/* The result that determines dims and memory order: the first that leaves the region, or else the last one computed. */
static const struct tensor *leading_output(const struct region *region) {
    const struct tensor *leading = NULL;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            bool is_exported = node->is_output[k] && region_exports(region, node->operands[k]);
            if (node->is_output[k] && (!leading || is_exported))
                leading = region->graph->values[node->operands[k]].tensor;
            if (is_exported)
                return leading;
        }
    }
    return leading;
}

/* All values of the region have the leading output's dims or broadcast to them. */
static weftStatus_t compile(struct program *program, const struct region *region) {
    for (int i = 0; i < region->count; i++)
        if (!node_is_pointwise(region_node(region, i)))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a pointwise operation. Only those are fused.",
                 descriptor_label(region_node(region, i)->op));
    return program_compile(program, region, leading_output(region), &none);
}

/* Seconds: the maximum of arithmetic on all threads and memory traffic. Elements that share a byte are written by one
   thread. */
static double predict(const struct program *program, const struct region *region, const struct device *device) {
    double elements = (double)tensor_elements(leading_output(region));
    int threads = program->shares_bytes || device->threads < 1 ? 1 : device->threads;
    double computing = elements * program->nanoseconds * 1e-9 / threads, moving = program->bytes / BYTES_PER_SECOND;
    return START_SECONDS + (computing > moving ? computing : moving);
}

/* Compilation takes little time compared with planning, so it decides directly: what compiles is accepted. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct program program;
    TRY(compile(&program, region));
    offer->seconds = predict(&program, region, device);
    return WEFT_STATUS_SUCCESS;
}

/* One loop per dimension, sorted by decreasing stride of the tensor, so that the innermost loop follows its memory.
   Stable insertion sort: dimensions of equal strides keep their order. */
static int order_axes(const struct tensor *tensor, struct axis *axes) {
    int count = (int)tensor->dims.count;
    for (int i = 0; i < count; i++) {
        int at = i;
        for (; at > 0 && tensor->strides.at[axes[at - 1].dim] < tensor->strides.at[i]; at--)
            axes[at] = axes[at - 1];
        axes[at] = (struct axis){.dim = i, .extent = tensor->dims.at[i], .step = 1};
    }
    return count;
}

/* Tasks are large enough to be worth a thread and consist of whole blocks. Elements that share a byte belong to one
   task. */
static void cut_tasks(struct map *map) {
    int64_t rows = map->walk.rows, columns = map->walk.extents[map->walk.rank - 1];
    /* Elements that one thread computes in the time that a wake-up takes. */
    double elements = TASK_NANOSECONDS / map->program.nanoseconds;
    int64_t size = elements > MOST_TASK ? MOST_TASK : elements < LEAST_TASK ? LEAST_TASK : (int64_t)elements;
    /* Whole blocks: only the last task of a row has a partial one. */
    size -= size % PROGRAM_BLOCK;
    /* Rows longer than a task are divided; a task has several shorter ones. */
    map->task_columns = columns > size ? size : columns;
    map->task_rows = columns > 0 ? size / map->task_columns : 1;
    if (map->program.shares_bytes)
        map->task_columns = columns, map->task_rows = rows;
    /* An empty space has no tasks, and divide_up by 0 columns would be undefined. */
    map->column_tasks = columns > 0 ? divide_up(columns, map->task_columns) : 0;
    map->tasks = rows > 0 ? divide_up(rows, map->task_rows) * map->column_tasks : 0;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct map *map;
    struct axis axes[WEFT_DIM_MAX];
    TRY(arena_alloc(arena, &map, sizeof *map));
    TRY(compile(&map->program, &step->region));
    int count = order_axes(leading_output(&step->region), axes);
    /* Columns may be merged with rows, because no caller's block has its own row pitch. */
    rows_columns_plan(&map->walk, &map->program, axes, count, true);
    cut_tasks(map);
    TRY(threads_start());
    step->state = map;
    return arena_print(arena, &step->detail, "%d operation%s as %d instructions on blocks of %d", step->region.count,
                       plural(step->region.count), map->program.instruction_count, map->program.block);
}

/* State of one execution, on the stack of `run`, which returns after all tasks. */
struct job {
    const struct map *map;
    void *const *values;
};

/* Tasks are numbered row-major over the grid of tasks; the last one along each axis may be smaller. */
static void run_task(void *context, int64_t task) {
    const struct job *job = context;
    const struct map *map = job->map;
    int64_t row = task / map->column_tasks * map->task_rows, column = task % map->column_tasks * map->task_columns;
    int64_t rows = min64(map->walk.rows - row, map->task_rows);
    int64_t columns = min64(map->walk.extents[map->walk.rank - 1] - column, map->task_columns);
    program_run(&map->program, &map->walk, job->values, (struct block){0}, row, rows, column, columns);
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)workspace, (void)stream;
    struct job job = {step->state, values};
    threads_for(job.map->tasks, run_task, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_map = {
    .name = "cpu.map",
    .doc = "pointwise operations of one shape in one pass",
    .shares_reads = true,
    .accepts = accepts,
    .build = build,
    .run = run,
    .may_alias = program_may_alias,
};
