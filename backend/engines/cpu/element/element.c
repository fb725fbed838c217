/* SPDX-License-Identifier: Apache-2.0 */
/* The element family: one operation whose elements are computed one by one from their index, with fused pointwise
   operations: random numbers, dequantization of block-scaled numbers, moves that convert the type or have elements
   narrower than a byte. A task computes parts of rows, which a program (core/program.h) then processes. */
#include "engines/cpu/element/element.h"

#include "base/number.h"
#include "engines/cpu/core/rows_columns.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"
#include "graph/ops/block_scale.h"
#include "graph/ops/concat.h"
#include "graph/ops/reshape.h"
#include "graph/ops/rng.h"
#include "graph/ops/slice.h"
#include "graph/ops/transpose.h"

static const double BYTES_PER_SECOND = 14e9, START_SECONDS = 1e-6;
enum { TASK_ELEMENTS = 16 * PROGRAM_BLOCK };

struct elements {
    struct element element;
    struct program program;
    struct rows_columns walk;
    int64_t task_rows, tasks; /* rows per task */
};

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static const struct {
    const struct op *op;
    weftStatus_t (*find)(struct element *e);
} kinds[] = {{&rng_op, element_random},     {&block_scale_dequantize_op, element_dequantize},
             {&transpose_op, element_move}, {&slice_op, element_move},
             {&reshape_op, element_move},   {&concat_op, element_concat}};

/* The only node that is not pointwise; its inputs must not come from the region. */
static weftStatus_t find_node(const struct region *region, const struct node **out) {
    *out = NULL;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        if (node_is_pointwise(node))
            continue;
        if (*out)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s: only one operation followed by pointwise ones is supported", descriptor_label(node->op));
        *out = node;
    }
    if (!*out)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the region has no operation for pointwise ones to follow",
             descriptor_label(region_node(region, 0)->op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_operands(const struct region *region, const struct node *node) {
    for (int k = 0; k < node->operand_count; k++) {
        const struct tensor *tensor = region->graph->values[node->operands[k]].tensor;
        TRY(tensor_check_plain(tensor, node->op));
        if (!dtype_of((weftDataType_t)tensor->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has a data type without storage on the CPU",
                 descriptor_label(node->op), descriptor_label(&tensor->base));
        if (!node->is_output[k] && region_makes(region, node->operands[k]))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: it reads %s from memory", descriptor_label(node->op),
                 descriptor_label(&tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Finds the operation's implementation. */
static weftStatus_t find_element(struct element *e, const struct region *region) {
    const struct node *node;
    TRY(find_node(region, &node));
    TRY(check_operands(region, node));
    *e = (struct element){.op = node->op};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (op_of(node->op) == kinds[k].op)
            TRY(kinds[k].find(e));
    if (!e->y)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: its elements are not computed one by one",
             descriptor_label(node->op));
    for (int k = 0; k < e->part_count; k++)
        e->parts[k].value = graph_find_value(region->graph, e->parts[k].tensor);
    e->scale.value = e->has_scale ? graph_find_value(region->graph, e->scale.tensor) : -1;
    e->columns = e->y->dims.at[e->column_dim];
    e->rows = e->columns ? tensor_elements(e->y) / e->columns : 0;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t compile(struct elements *all, const struct region *region) {
    struct element *e = &all->element;
    TRY(find_element(e, region));
    struct given given = {.value = graph_find_value(region->graph, e->y), .is_wide = e->is_wide, .alpha = 1};
    return program_compile(&all->program, region, e->y, &given);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct elements all;
    TRY(compile(&all, region));
    double elements = (double)tensor_elements(all.element.y);
    int threads = all.program.shares_bytes || device->threads < 1 ? 1 : device->threads;
    double computing = elements * (all.element.nanoseconds + all.program.nanoseconds) * 1e-9 / threads;
    double moving = all.program.bytes / BYTES_PER_SECOND;
    offer->seconds = START_SECONDS + (computing > moving ? computing : moving);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building and running ---------------------------------------------------------------------------------------- */

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct elements *all;
    struct axis axes[WEFT_DIM_MAX];
    TRY(arena_alloc(arena, &all, sizeof *all));
    TRY(compile(all, &step->region));
    const struct element *e = &all->element;
    int rank = (int)e->y->dims.count;
    for (int i = 0; i < rank; i++) {
        int dim = i == rank - 1 ? e->column_dim : i + (i >= e->column_dim);
        axes[i] = (struct axis){.dim = dim, .extent = e->y->dims.at[dim], .step = 1};
    }
    rows_columns_plan(&all->walk, &all->program, axes, rank, false);
    /* Elements that share a byte are written by one task. */
    all->task_rows = all->program.shares_bytes ? max64(e->rows, 1) : max64(1, TASK_ELEMENTS / max64(e->columns, 1));
    all->tasks = divide_up(e->rows, all->task_rows);
    TRY(threads_start());
    step->state = all;
    return arena_print(arena, &step->detail, "%d operation%s, rows of %lld element%s", step->region.count,
                       plural(step->region.count), (long long)e->columns, plural(e->columns));
}

/* State of one execution, on the stack of `run`, which returns after all tasks. */
struct job {
    const struct elements *all;
    void *const *values;
    struct bindings bindings;
};

/* Computes a row in parts that fit a register. */
static void make_row(const struct job *job, int64_t row) {
    const struct elements *all = job->all;
    const struct element *e = &all->element;
    double block[PROGRAM_BLOCK];
    for (int64_t column = 0; column < e->columns; column += all->program.block) {
        int64_t count = min64(all->program.block, e->columns - column);
        if (op_of(e->op) == &rng_op)
            element_draw(e, &job->bindings, block, row, column, count);
        else
            element_read(e, job->values, block, row, column, count);
        program_run(&all->program, &all->walk, job->values, (struct block){block, count}, row, 1, column, count);
    }
}

static void run_task(void *context, int64_t task) {
    const struct job *job = context;
    int64_t first = task * job->all->task_rows, end = min64(first + job->all->task_rows, job->all->element.rows);
    for (int64_t row = first; row < end; row++)
        make_row(job, row);
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)workspace, (void)stream;
    struct job job = {step->state, values, {.graph = step->region.graph, .values = values}};
    threads_for(job.all->tasks, run_task, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_element = {
    .name = "cpu.element",
    .doc = "random numbers, dequantisation and converting moves, with fused pointwise operations",
    .accepts = accepts,
    .build = build,
    .run = run,
};
