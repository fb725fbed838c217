/* SPDX-License-Identifier: Apache-2.0 */
/* The rows family: reductions, softmax and every norm, forward and backward, fused with adjacent pointwise operations.
   One pass over memory suffices if a tile of rows stays in the cache. A region is lowered to a row program (lower.c,
   terms.c), and the program to a schedule (nest.c, instructions.c), which run.c interprets. Gradients of scale and bias
   may need a second program. */
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"
#include "engines/cpu/rows/schedule.h"
#include "graph/ops/norm.h"
#include "graph/ops/reduction.h"

enum { LONG_ROW = 1 << 20 }; /* bytes of a row above which its second pass misses a typical L2 */

/* Both programs of a region and their storage, on the stack of accepts and build. */
struct sweep {
    bool is_wide; /* computes in double, even if operations request less */
    struct rowwise rows[2];
    struct row_schedule schedules[2];
    int programs;
    /* Bytes of workspace that the programs access through scratch operands. */
    int64_t scratch_bytes; /* for both; followed by the memory of each program */
    struct rowwise_storage storages[2];
    struct schedule_storage schedule_storages[2];
};

/* Programs of a step, in the plan's arena: schedules without their storage. */
struct programs {
    int count;
    int64_t scratch_bytes;
    const struct row_schedule *schedules[2];
    const struct programs *wide; /* the same programs in double, for values outside the range of float, or NULL */
};

/* Schedules the first program with this method of computing statistics and sums. */
static weftStatus_t try_schedule(struct sweep *sweep, const struct region *region, int threads,
                                 enum statistics_method method, bool separate) {
    TRY(rowwise_analyse(&sweep->rows[0], &sweep->storages[0], region, method, separate, sweep->is_wide));
    return row_schedule_plan(&sweep->schedules[0], &sweep->schedule_storages[0], &sweep->rows[0], threads);
}

/* True if a second pass would read rows from memory rather than the cache: tasks share them, or tiles are large. */
static bool rereads_memory(const struct sweep *sweep) {
    const struct row_schedule *s = &sweep->schedules[0];
    return s->splits > 1 || row_schedule_tile_elements(s) * (int64_t)sizeof(float) > LONG_ROW;
}

/* True if column sums are needed, but the layout of the rows does not allow tasks to accumulate them. */
static bool needs_separate_pass(const struct sweep *sweep) {
    return sweep->schedules[0].sum_count && !sweep->schedules[0].sums_columns;
}

/* Computes statistics of long rows in one pass if a sample of the row is in memory. Each attempt overwrites the
   previous one; if the one-pass form is refused, the region is not. */
static weftStatus_t first_program(struct sweep *sweep, const struct region *region, int threads) {
    bool separate = false;
    TRY(try_schedule(sweep, region, threads, STATISTICS_IN_TURN, separate));
    if (needs_separate_pass(sweep))
        TRY(try_schedule(sweep, region, threads, STATISTICS_IN_TURN, separate = true));
    /* With fewer than two dependent reductions, one pass suffices anyway. */
    if (sweep->schedules[0].closed < 2 || !rereads_memory(sweep))
        return WEFT_STATUS_SUCCESS;
    if (try_schedule(sweep, region, threads, STATISTICS_SHIFTED, separate) == WEFT_STATUS_SUCCESS &&
        !needs_separate_pass(sweep))
        return WEFT_STATUS_SUCCESS;
    status_clear();
    return try_schedule(sweep, region, threads, STATISTICS_IN_TURN, separate);
}

/* Returns the index of a term's sums within a task's sums, in units of a sum's length. */
static int64_t slot_of_sum(const struct row_schedule *s, int term) {
    for (int i = 0; i < s->instruction_count; i++)
        if (s->instructions[i].verb == ROW_SUM_COLUMN && s->instructions[i].term == term)
            return s->instructions[i].slot;
    return 0;
}

/* Column sums are stored task by task; within a task, those of all tensors are adjacent. Locations in `follow` are in
   elements, those of the schedule in bytes. 64: each program's part starts at a cache line. */
static void locate_sums(struct sweep *sweep) {
    struct rowwise *rows = &sweep->rows[0];
    struct row_schedule *s = &sweep->schedules[0];
    struct follow *follow = &rows->follow;
    int64_t width = follow->math == WEFT_DATA_DOUBLE ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    follow->partial_sums = s->partial_sums;
    s->sums_at = rows->scratch_bytes;
    s->sum_bytes = s->sum_count * s->sum_length * width;
    for (int i = 0; i < follow->column_count; i++)
        follow->columns[i].at = s->sums_at / width + slot_of_sum(s, follow->columns[i].term) * s->sum_length;
    rows->scratch_bytes += round_up(s->partial_sums * s->sum_bytes, 64);
}

/* Shared by accepts and build: nothing is cached, and build repeats the work. */
static weftStatus_t plan(struct sweep *sweep, const struct region *region, const struct device *device, bool is_wide) {
    struct rowwise *first = &sweep->rows[0];
    sweep->is_wide = is_wide;
    TRY(first_program(sweep, region, device->threads));
    sweep->programs = 1;
    if (first->follow.kind == FOLLOW_COLUMNS)
        locate_sums(sweep);
    /* The second program runs after the first has completed all rows. */
    if (first->follow.kind != FOLLOW_NOTHING) {
        TRY(rowwise_follow(&sweep->rows[1], &sweep->storages[1], first));
        TRY(row_schedule_plan(&sweep->schedules[1], &sweep->schedule_storages[1], &sweep->rows[1], device->threads));
        sweep->programs = 2;
    }
    sweep->scratch_bytes = first->scratch_bytes;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct sweep sweep;
    TRY(plan(&sweep, region, device, false));
    offer->seconds = 0;
    for (int i = 0; i < sweep.programs; i++)
        offer->seconds += sweep.schedules[i].seconds;
    return WEFT_STATUS_SUCCESS;
}

/* The term of the first inverse deviation that a norm's gradient reads in float, or -1. */
static int inverse_of(const struct rowwise *rows) {
    for (int i = 0; i < rows->region->count; i++) {
        const struct norm_backward *op = (const struct norm_backward *)region_node(rows->region, i)->op;
        if (op_of(&op->base) != &norm_backward_op || !op->inv_variance)
            continue;
        int value = graph_find_value(rows->graph, op->inv_variance);
        for (int k = 0; k < rows->operand_count; k++)
            if (rows->operands[k].value == value && !rows->operands[k].is_store &&
                !rows->terms[rows->operands[k].term].is_wide)
                return rows->operands[k].term;
    }
    return -1;
}

/* True if a region squares values, or sums them for a mean, in float: the sum may overflow although the result does
   not. */
static bool may_leave_range(const struct region *region) {
    for (int i = 0; i < region->count; i++) {
        const struct descriptor *op = region_node(region, i)->op;
        const struct reduction_op *reduction = (const struct reduction_op *)op;
        if (op_of(op) == &norm_forward_op || op_of(op) == &norm_backward_op)
            return true;
        if (op_of(op) == &reduction_op && reduction_math(reduction) == WEFT_DATA_FLOAT &&
            (reduction->parameters->mode == WEFT_REDUCE_TENSOR_AVG ||
             reduction->parameters->mode == WEFT_REDUCE_TENSOR_NORM2))
            return true;
    }
    return false;
}

/* Copies the programs into the step. They run one after the other and share the memory after the scratch memory, whose
   size is the larger requirement. */
static weftStatus_t copy_programs(struct programs **programs, const struct sweep *sweep, struct step *step,
                                  struct arena *arena) {
    TRY(arena_alloc(arena, programs, sizeof **programs));
    int64_t memory = 0;
    for (int i = 0; i < sweep->programs; i++) {
        TRY(row_schedule_copy(&(*programs)->schedules[i], &sweep->schedules[i], arena));
        memory = max64(memory, row_schedule_bytes(&sweep->schedules[i]));
    }
    (*programs)->count = sweep->programs;
    (*programs)->scratch_bytes = sweep->scratch_bytes;
    step->workspace_bytes = max64(step->workspace_bytes, sweep->scratch_bytes + memory);
    return WEFT_STATUS_SUCCESS;
}

/* Adds the same programs in double; none if double is refused, for example because registers run out. */
static weftStatus_t add_wide_programs(struct programs *narrow, struct sweep *sweep, struct step *step,
                                      const struct device *device, struct arena *arena) {
    struct programs *wide;
    if (plan(sweep, &step->region, device, true)) {
        status_clear();
        return WEFT_STATUS_SUCCESS;
    }
    TRY(copy_programs(&wide, sweep, step, arena));
    narrow->wide = wide;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct sweep sweep;
    struct programs *programs;
    TRY(plan(&sweep, &step->region, device, false));
    TRY(threads_start());
    sweep.schedules[0].watched = inverse_of(&sweep.rows[0]);
    step->workspace_bytes = 0;
    TRY(copy_programs(&programs, &sweep, step, arena));
    step->state = programs;
    const struct row_schedule *s = &sweep.schedules[0];
    const char *layout = s->splits > 1 ? "long rows in parts" : s->loops[s->b].is_reduced ? "rows" : "adjacent rows";
    TRY(arena_print(arena, &step->detail, "%s: %d %s on blocks of %lld x %lld, %lld task%s%s", layout, s->pass_count,
                    s->pass_count == 1 ? "pass" : "passes", (long long)s->block_a, (long long)s->block_b,
                    (long long)(s->splits > 1 ? s->tiles * s->splits : s->tasks),
                    plural((s->splits > 1 ? s->tiles * s->splits : s->tasks)),
                    sweep.programs > 1 ? "; then sums of their partial results" : ""));
    /* Comes last, because it overwrites the sweep. */
    return may_leave_range(&step->region) ? add_wide_programs(programs, &sweep, step, device, arena)
                                          : WEFT_STATUS_SUCCESS;
}

/* The workspace holds the scratch memory first, then the memory of the running program. */
static bool run_programs(const struct programs *programs, void *const *values, void *workspace) {
    bool is_in_range = true;
    for (int i = 0; i < programs->count; i++)
        is_in_range &=
            row_schedule_run(programs->schedules[i], values, workspace, (char *)workspace + programs->scratch_bytes);
    return is_in_range;
}

static bool overlap(const struct tensor *a, const char *at_a, const struct tensor *b, const char *at_b) {
    return at_a && at_b && at_a < at_b + tensor_bytes(b) && at_b < at_a + tensor_bytes(a);
}

/* True if the programs did not overwrite their inputs. */
static bool inputs_are_intact(const struct step *step, const struct programs *programs, void *const *values) {
    const struct rowwise *rows = programs->schedules[0]->rows;
    const struct value *all = step->region.graph->values;
    for (int i = 0; i < rows->operand_count; i++)
        for (int k = 0; k < step->region.graph->value_count; k++) {
            int in = rows->operands[i].value;
            bool is_read = in >= 0 && !rows->operands[i].is_store;
            if (is_read && k != in && region_makes(&step->region, k) &&
                overlap(all[in].tensor, values[in], all[k].tensor, values[k]))
                return false;
        }
    return true;
}

/* Sums of squares, or of large values, may overflow in float although the result is representable. In that case
   everything is recomputed in double, unless results have overwritten inputs. */
static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    const struct programs *programs = step->state;
    if (!run_programs(programs, values, workspace) && programs->wide && inputs_are_intact(step, programs, values))
        run_programs(programs->wide, values, workspace);
    return WEFT_STATUS_SUCCESS;
}

/* Elements are stored block by block in the last pass that reads them, row values when their tile is finished. A second
   program reads all inputs again. */
static bool may_alias(const struct step *step, int in, int out) {
    const struct programs *programs = step->state;
    const struct value *values = step->region.graph->values;
    return programs->count == 1 && tensor_same_layout(values[in].tensor, values[out].tensor);
}

const struct family cpu_rows = {
    .name = "cpu.rows",
    .doc = "reductions, softmax and norms, forward and backward, with adjacent pointwise operations",
    .shares_reads = true,
    .accepts = accepts,
    .build = build,
    .run = run,
    .may_alias = may_alias,
};
