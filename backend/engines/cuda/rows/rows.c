/* SPDX-License-Identifier: Apache-2.0 */
/* The rows family: reductions, softmax and every norm, forward and backward, with the pointwise operations around them,
   in one sweep over memory where rows fit on chip. A region becomes a row program (plan.c, lower.c), the program a
   schedule (schedule.c), the schedule kernels (emit.c, one .cuh file for each memory scheme). Gradients of scale and
   bias may take a second program. */
#include "base/number.h"
#include "engines/cuda/families.h"
#include "engines/cuda/rows/schedule.h"
#include "graph/ops/norm.h"

enum { LARGE_GROUP = 256 }; /* threads, of which one pass over plain sums is faster than two */

/* The program of the region, and the one that does what it left over, if there is any. */
struct sweep {
    struct rows rows[2];
    struct schedule schedules[2];
    int programs;
};

/* `apart`: gradients of scale and bias in a sweep of their own. */
static weftStatus_t try_schedule(struct sweep *sweep, const struct region *region, const struct device *device,
                                 enum statistics_method method, bool must_stream, bool apart) {
    TRY(rows_analyse(&sweep->rows[0], region, method, apart));
    return schedule_plan(&sweep->schedules[0], &sweep->rows[0], device, must_stream);
}

/* Statistics in one pass. Samples of a row are read before anything of it is stored, which parts of rows cannot
   promise, and where rows lie side by side they would be as many reads as the row is long. Where no samples can be,
   moments of parts are joined. */
static weftStatus_t try_at_once(struct sweep *sweep, const struct region *region, const struct device *device,
                                bool must_stream, bool apart) {
    const struct schedule *s = &sweep->schedules[0];
    TRY(try_schedule(sweep, region, device, STATISTICS_SHIFTED, must_stream, apart));
    bool can_sample = !s->nest.is_columns && s->grid.splits == 1 && !schedule_calculates_in_double(s);
    if (sweep->rows[0].sampled >= 0 && !can_sample)
        TRY(try_schedule(sweep, region, device, STATISTICS_JOINED, must_stream, apart));
    return WEFT_STATUS_SUCCESS;
}

/* Interleaved rows in memory: blocks that read all of them as they lie, where that is faster than what was planned.
   No schedule but a streamed one does. */
static weftStatus_t try_interleaved(struct sweep *sweep, const struct region *region, const struct device *device) {
    struct sweep other;
    if (schedule_segment(&sweep->schedules[0]) == 0)
        return WEFT_STATUS_SUCCESS;
    TRY(try_schedule(&other, region, device, STATISTICS_JOINED, true, true));
    if (other.schedules[0].threads.segment && other.schedules[0].seconds < sweep->schedules[0].seconds)
        TRY(try_schedule(sweep, region, device, STATISTICS_JOINED, true, true));
    return WEFT_STATUS_SUCCESS;
}

/* Rows in registers with sums of columns beside them, or without, or through shared memory, or streamed. Blocks that
   share rows wait for each other less where these go through shared memory, and large groups where one pass takes
   plain sums. Each try plans anew and overwrites the last: what is planned when it returns is what runs. */
static weftStatus_t first_program(struct sweep *sweep, const struct region *region, const struct device *device) {
    const struct schedule *s = &sweep->schedules[0];
    TRY(try_schedule(sweep, region, device, STATISTICS_IN_TURN, false, false));
    bool apart = s->memory.scheme == MEMORY_STREAMED && sweep->rows[0].follow.kind == FOLLOW_COLUMNS;
    if (apart)
        TRY(try_schedule(sweep, region, device, STATISTICS_IN_TURN, false, true));
    /* What the schedule of the last try says; each is asked before the next one overwrites it. */
    bool is_shared = s->threads.cluster > 1 && s->memory.scheme != MEMORY_PIPELINED;
    bool is_streamed = s->memory.scheme == MEMORY_STREAMED;
    bool is_large = s->memory.scheme != MEMORY_STREAMED && s->threads.group >= LARGE_GROUP && s->passes.closed > 1 &&
                    !s->nest.is_columns;
    if (is_shared || is_streamed)
        TRY(try_at_once(sweep, region, device, true, true));
    if (is_shared && s->memory.scheme != MEMORY_PIPELINED)
        TRY(try_schedule(sweep, region, device, STATISTICS_IN_TURN, false, apart));
    if (is_large && s->memory.scheme != MEMORY_PIPELINED)
        TRY(try_at_once(sweep, region, device, false, apart));
    if (is_large && s->memory.scheme != MEMORY_PIPELINED && sweep->rows[0].sampled < 0)
        TRY(try_schedule(sweep, region, device, STATISTICS_IN_TURN, false, apart));
    return try_interleaved(sweep, region, device);
}

/* Of the term that an operand stores. */
static struct column_sum *find_column(struct follow *follow, int term) {
    int i = 0;
    while (follow->columns[i].term != term)
        i++;
    return &follow->columns[i];
}

/* The blocks' sums of each column lie one block after the other. 256: those of each tensor begin at a line. The
   schedule copied its operands before, so plan() copies the offsets after it. */
static void place_columns(struct rows *rows, const struct schedule *s) {
    rows->follow.partial_sums = s->grid.blocks;
    for (int k = 0; k < rows->operand_count; k++) {
        struct operand *operand = &rows->operands[k];
        const struct term *term = rows_find(rows, operand->value);
        if (!operand->is_store || !term_is_column_sum(term))
            continue;
        int64_t size = dtype_bytes(operand->type, 1), bytes = s->grid.blocks * row_space_length(&rows->space) * size;
        find_column(&rows->follow, operand->value)->at = rows->scratch_bytes;
        operand->offset = rows->scratch_bytes / size;
        rows->scratch_bytes += round_up(bytes, 256);
    }
}

static weftStatus_t plan(struct sweep *sweep, const struct region *region, const struct device *device) {
    TRY(first_program(sweep, region, device));
    struct rows *first = &sweep->rows[0];
    sweep->programs = 1;
    if (first->follow.kind == FOLLOW_COLUMNS) {
        place_columns(first, &sweep->schedules[0]);
        for (int k = 0; k < first->operand_count; k++)
            sweep->schedules[0].nest.operands[k].offset = first->operands[k].offset;
    }
    if (first->follow.kind != FOLLOW_NOTHING) {
        TRY(rows_follow(&sweep->rows[1], first));
        TRY(schedule_plan(&sweep->schedules[1], &sweep->rows[1], device, false));
        if (first->follow.kind == FOLLOW_COLUMNS)
            /* The second program only adds up sums: whoever follows may begin at once. */
            sweep->schedules[1].grid.trigger = TRIGGER_AT_ONCE;
        sweep->programs = 2;
    }
    /* A program may take several launches: joins of splits, stores, sums of columns. */
    int kernels = 0;
    for (int i = 0; i < sweep->programs; i++)
        kernels += schedule_kernel_count(&sweep->schedules[i]);
    /* As many as struct cuda_step has room for. */
    if (kernels > KERNELS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would take %d launches, at most %d fit", kernels,
             KERNELS_MAX);
    return WEFT_STATUS_SUCCESS;
}

/* Pure, and the same plan as build's. */
static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct sweep sweep;
    TRY(plan(&sweep, region, device));
    *seconds = 0;
    for (int i = 0; i < sweep.programs; i++)
        *seconds += sweep.schedules[i].seconds;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct sweep sweep;
    struct cuda_step *state;
    TRY(plan(&sweep, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    int64_t scratch_bytes = sweep.rows[0].scratch_bytes;
    for (int i = 0; i < sweep.programs; i++)
        TRY(rows_emit(&sweep.schedules[i], state, &scratch_bytes, arena));
    step->state = state;
    step->workspace_bytes = scratch_bytes;
    const struct schedule *s = &sweep.schedules[0];
    const char *shape = s->nest.is_columns ? "rows side by side" : s->threads.segment ? "rows interleaved," : "rows";
    const char *rest = s->unaligned.most ? ", unaligned head and tail" : "";
    if (s->memory.scheme == MEMORY_STREAMED)
        /* Detail of the first program; launches count all. */
        return arena_print(arena, &step->detail,
                           "%s streamed in %d passes: %d threads each, vectors of %d%s, %lld splits; %d launches",
                           shape, s->passes.count, s->threads.block / schedule_rows_across(s), s->vectors.width, rest,
                           (long long)s->grid.splits, state->count);
    return arena_print(arena, &step->detail,
                       "%s in %s: %d x %d threads each, %d vectors of %d%s; %d passes, %d launches", shape,
                       s->memory.stages ? "shared memory" : "registers", s->threads.cluster, s->threads.group,
                       s->memory.steps, s->vectors.width, rest, s->passes.count, state->count);
}

/* Whether elements, or reductions of them, depend on a value. Terms lie in the order of evaluation, so one sweep sees
   all that depends. name: a value that differs from row to row. */
static bool elements_depend_on(const struct rows *rows, int name) {
    bool depends[TERMS_MAX] = {false};
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        depends[i] = term->name == name;
        for (int u = 0; u < term->use_count; u++)
            depends[i] = depends[i] || depends[term->uses[u]];
        if (depends[i] && term->is_needed && (term->spans || term->kind == TERM_REDUCTION))
            return true;
    }
    return false;
}

/* A second launch reads the elements again that sums were taken around, when others may lie there. */
static bool starts_anew_at_elements(const struct step *step) {
    bool has_statistics = false;
    for (int i = 0; i < step->region.count; i++)
        has_statistics = has_statistics || op_of(region_node(&step->region, i)->op) == &norm_forward_op;
    return has_statistics && ((const struct cuda_step *)step->state)->count > 1;
}

/* Elements are stored in the last reading of them, by the thread that read them; a number of a row that only numbers of
   the row depend on is read and stored by one thread. A second program reads everything again. An element that is read
   again in a later stage than the one that stores it must not be gone by then. */
bool rows_may_alias(const struct step *step, int in, int out) {
    const struct region *region = &step->region;
    struct rows rows;
    if (!tensor_same_layout(region->graph->values[in].tensor, region->graph->values[out].tensor) ||
        rows_analyse(&rows, region, STATISTICS_IN_TURN, false) || rows.follow.kind != FOLLOW_NOTHING)
        return false;
    const struct term *made = rows_find(&rows, out);
    if (!made->spans)
        return !elements_depend_on(&rows, in);
    if (starts_anew_at_elements(step))
        return false;
    for (int i = 0; i < rows.term_count; i++)
        if (rows.terms[i].is_needed && rows.terms[i].stage > made->stage)
            return false;
    return true;
}

/* In any of its operations: what they read, vectors are loaded of. */
static bool gathers(const struct graph *graph, int node, int value) {
    (void)value;
    return node_is_pointwise(&graph->nodes[node]) || op_of(graph->nodes[node].op)->expand;
}

const struct family cuda_rows = {
    .name = "cuda.rows",
    .doc = "reductions, softmax and norms, forward and backward, with the pointwise operations around them",
    .shares_reads = true,
    .accepts = accepts,
    .build = build,
    .may_alias = rows_may_alias,
    .gathers = gathers,
};
