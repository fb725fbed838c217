/* SPDX-License-Identifier: Apache-2.0 */
/* The map family: any connected group of pointwise operations of one shape in one sweep, in the memory order of its
   result. Each element is computed alone, so that the numbers do not depend on blocks or threads. What a block computes
   is a program (core/program.h), in which order blocks come a walk (core/rows_columns.h): here it is chosen and cut
   into tasks. */
#include "base/number.h"
#include "engines/cpu/core/rows_columns.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"

/* Of memory that all cores share; START_SECONDS: of a step, before its first element. */
static const double BYTES_PER_SECOND = 16e9;
static const double START_SECONDS = 1e-6;
static const double TASK_NANOSECONDS = 20e3; /* what waking a thread is worth */

/* Elements of a task, at least and at most, in whole blocks. */
enum { LEAST_TASK = 4 * PROGRAM_BLOCK, MOST_TASK = 128 * PROGRAM_BLOCK };

/* No node but pointwise ones makes values here. */
static const struct given none = {.value = -1, .alpha = 1};

struct map {
    struct program program;
    struct rows_columns walk;
    /* The space of the walk, rows x columns, in tasks of task_rows x task_columns; column_tasks of them side by
       side. */
    int64_t task_rows, task_columns, column_tasks, tasks;
};

/* The result whose dims and memory order lead. The first that leaves the region; without any, the last that is made. */
static const struct tensor *leading_output(const struct region *region) {
    const struct tensor *found = NULL;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            bool is_exported = node->is_output[k] && region_exports(region, node->operands[k]);
            if (node->is_output[k] && (!found || is_exported))
                found = region->graph->values[node->operands[k]].tensor;
            if (is_exported)
                return found;
        }
    }
    return found;
}

/* All values of the region have the leading output's dims, or broadcast to them. */
static weftStatus_t compile(struct program *program, const struct region *region) {
    for (int i = 0; i < region->count; i++)
        if (!node_is_pointwise(region_node(region, i)))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is no pointwise operation. Only those are fused here.",
                 descriptor_label(region_node(region, i)->op));
    return program_compile(program, region, leading_output(region), &none);
}

/* Seconds: the dearer of arithmetic on all threads and of memory. Elements that share a byte are written by one
   thread. */
static double predict(const struct program *program, const struct region *region, const struct device *device) {
    double elements = (double)tensor_elements(leading_output(region));
    int threads = program->shares_bytes || device->threads < 1 ? 1 : device->threads;
    double computing = elements * program->nanoseconds * 1e-9 / threads, moving = program->bytes / BYTES_PER_SECOND;
    return START_SECONDS + (computing > moving ? computing : moving);
}

/* Compiling is cheap beside a plan, so it is the answer itself: what compiles is accepted. */
static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct program program;
    TRY(compile(&program, region));
    *seconds = predict(&program, region, device);
    return WEFT_STATUS_SUCCESS;
}

/* One loop per dimension, outermost where the tensor's stride is largest: the innermost loop then goes along its
   memory. By insertion, stable, so that dimensions of equal strides keep their order. */
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

/* Pieces large enough to be worth a thread, a whole number of blocks each. Elements that share a byte are all one
   task's. */
static void cut_tasks(struct map *map) {
    int64_t rows = map->walk.rows, columns = map->walk.extents[map->walk.rank - 1];
    /* Elements that one thread computes in the time that waking it is worth. */
    double elements = TASK_NANOSECONDS / map->program.nanoseconds;
    int64_t size = elements > MOST_TASK ? MOST_TASK : elements < LEAST_TASK ? LEAST_TASK : (int64_t)elements;
    /* A whole number of blocks: only the last task of a row has a shorter one. */
    size -= size % PROGRAM_BLOCK;
    /* A row longer than a task is cut; of shorter ones a task takes several. */
    map->task_columns = columns > size ? size : columns;
    map->task_rows = columns > 0 ? size / map->task_columns : 1;
    if (map->program.shares_bytes)
        map->task_columns = columns, map->task_rows = rows;
    /* An empty space has no task, and divide_up by 0 columns would be undefined. */
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
    /* Columns may merge with rows: no caller's block has a row length of its own. */
    rows_columns_plan(&map->walk, &map->program, axes, count, true);
    cut_tasks(map);
    TRY(threads_start());
    step->state = map;
    return arena_print(arena, &step->detail, "%d operations as %d instructions on blocks of %d", step->region.count,
                       map->program.instruction_count, map->program.block);
}

/* Of one execution; on the stack of `run`, which returns when all tasks are done. */
struct job {
    const struct map *map;
    void *const *values;
};

/* Tasks are numbered row-major over the grid of tasks; the last of each axis may be smaller. */
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
    .doc = "pointwise operations of one shape in one sweep",
    .shares_reads = true,
    .accepts = accepts,
    .build = build,
    .run = run,
    .may_alias = program_may_alias,
};
