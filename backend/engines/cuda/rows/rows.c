/* SPDX-License-Identifier: Apache-2.0 */
/* Rows family: reductions, softmax and every norm, forward and backward, fused with adjacent pointwise operations, in
   one sweep over memory if rows fit on chip. A region becomes a row program (plan.c, lower.c), the program a schedule
   (schedule.c), the schedule kernels (emit.c, one .cuh file per memory scheme). Gradients of scale and bias may need a
   second program. */
#include "base/number.h"
#include "engines/cuda/families.h"
#include "engines/cuda/rows/schedule.h"
#include "graph/ops/norm.h"

enum { LARGE_GROUP = 256 }; /* threads above which one pass over plain sums is faster than two */

/* The program of the region, and a second one that finishes its sums if needed. */
struct sweep {
    struct rows rows[2];
    struct schedule schedules[2];
    int programs;
};

/* `separate`: gradients of scale and bias in a sweep of their own. */
static weftStatus_t try_schedule(struct sweep *sweep, const struct region *region, const struct device *device,
                                 enum statistics_method method, bool must_stream, bool separate) {
    TRY(rows_analyse(&sweep->rows[0], region, method, separate));
    return schedule_plan(&sweep->schedules[0], &sweep->rows[0], device, must_stream);
}

/* Tries statistics in one pass. The samples of a row must be read before any of the row is stored, which parts of rows
   cannot guarantee, and for interleaved rows they would cost as many reads as the row has elements. Without samples,
   moments of the parts are combined instead. */
static weftStatus_t try_at_once(struct sweep *sweep, const struct region *region, const struct device *device,
                                bool must_stream, bool separate) {
    const struct schedule *s = &sweep->schedules[0];
    TRY(try_schedule(sweep, region, device, STATISTICS_SHIFTED, must_stream, separate));
    bool can_sample = !s->nest.is_columns && s->grid.splits == 1 && !schedule_calculates_in_double(s);
    if (sweep->rows[0].sampled >= 0 && !can_sample)
        TRY(try_schedule(sweep, region, device, STATISTICS_JOINED, must_stream, separate));
    return WEFT_STATUS_SUCCESS;
}

/* Segmented rows in memory: tries blocks that read all rows in memory order, and keeps that if it is faster. Only
   streamed schedules can do that. */
static weftStatus_t try_segmented(struct sweep *sweep, const struct region *region, const struct device *device) {
    struct sweep other;
    if (schedule_segment(&sweep->schedules[0]) == 0)
        return WEFT_STATUS_SUCCESS;
    TRY(try_schedule(&other, region, device, STATISTICS_JOINED, true, true));
    if (other.schedules[0].threads.segment && other.schedules[0].seconds < sweep->schedules[0].seconds)
        TRY(try_schedule(sweep, region, device, STATISTICS_JOINED, true, true));
    return WEFT_STATUS_SUCCESS;
}

/* Tries rows in registers with column sums, without them, through shared memory, and streamed. Blocks that share rows
   wait less for each other if rows go through shared memory, and large groups if one pass computes plain sums. Each
   attempt plans from scratch and overwrites the last one: the plan at return is the one that runs. */
static weftStatus_t first_program(struct sweep *sweep, const struct region *region, const struct device *device) {
    const struct schedule *s = &sweep->schedules[0];
    TRY(try_schedule(sweep, region, device, STATISTICS_IN_TURN, false, false));
    bool separate = s->memory.scheme == MEMORY_STREAMED && sweep->rows[0].follow.kind == FOLLOW_COLUMNS;
    if (separate)
        TRY(try_schedule(sweep, region, device, STATISTICS_IN_TURN, false, true));
    /* Properties of the last attempt; they are read before the next one overwrites it. */
    bool is_shared = s->threads.cluster > 1 && s->memory.scheme != MEMORY_PIPELINED;
    bool is_streamed = s->memory.scheme == MEMORY_STREAMED;
    bool is_large = s->memory.scheme != MEMORY_STREAMED && s->threads.group >= LARGE_GROUP && s->passes.closed > 1 &&
                    !s->nest.is_columns;
    if (is_shared || is_streamed)
        TRY(try_at_once(sweep, region, device, true, true));
    if (is_shared && s->memory.scheme != MEMORY_PIPELINED)
        TRY(try_schedule(sweep, region, device, STATISTICS_IN_TURN, false, separate));
    if (is_large && s->memory.scheme != MEMORY_PIPELINED)
        TRY(try_at_once(sweep, region, device, false, separate));
    if (is_large && s->memory.scheme != MEMORY_PIPELINED && sweep->rows[0].sampled < 0)
        TRY(try_schedule(sweep, region, device, STATISTICS_IN_TURN, false, separate));
    return try_segmented(sweep, region, device);
}

/* Returns the column sum whose term an operand stores. */
static struct column_sum *find_column(struct follow *follow, int term) {
    int i = 0;
    while (follow->columns[i].term != term)
        i++;
    return &follow->columns[i];
}

/* Reserves memory for the blocks' sums of each column, one block after another, each tensor aligned to 256 bytes. The
   schedule copied its operands before this, so plan() copies the offsets after it. */
static void reserve_column_sums(struct rows *rows, const struct schedule *s) {
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
        reserve_column_sums(first, &sweep->schedules[0]);
        for (int k = 0; k < first->operand_count; k++)
            sweep->schedules[0].nest.operands[k].offset = first->operands[k].offset;
    }
    if (first->follow.kind != FOLLOW_NOTHING) {
        TRY(rows_follow(&sweep->rows[1], first));
        TRY(schedule_plan(&sweep->schedules[1], &sweep->rows[1], device, false));
        if (first->follow.kind == FOLLOW_COLUMNS)
            /* The second program only adds up sums, so the next launch may begin at once. */
            sweep->schedules[1].grid.trigger = TRIGGER_AT_ONCE;
        sweep->programs = 2;
    }
    /* A program may need several launches: joins of splits, stores, column sums. */
    int kernels = 0;
    for (int i = 0; i < sweep->programs; i++)
        kernels += schedule_kernel_count(&sweep->schedules[i]);
    /* The capacity of struct cuda_step. */
    if (kernels > KERNELS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would need %d launches, at most %d are supported",
             kernels, KERNELS_MAX);
    return WEFT_STATUS_SUCCESS;
}

/* Has no side effects, and makes the same plan as build. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct sweep sweep;
    TRY(plan(&sweep, region, device));
    offer->seconds = 0;
    for (int i = 0; i < sweep.programs; i++)
        offer->seconds += sweep.schedules[i].seconds;
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
    const char *shape = s->nest.is_columns ? "interleaved rows" : s->threads.segment ? "rows in segments," : "rows";
    const char *rest = s->unaligned.most ? ", unaligned head and tail" : "";
    if (s->memory.scheme == MEMORY_STREAMED)
        /* The description covers the first program; the launch count covers both. */
        return arena_print(
            arena, &step->detail, "%s streamed in %d %s: %d thread%s each, vectors of %d%s, %lld split%s; %d %s", shape,
            s->passes.count, s->passes.count == 1 ? "pass" : "passes", s->threads.block / schedule_rows_across(s),
            plural(s->threads.block / schedule_rows_across(s)), s->vectors.width, rest, (long long)s->grid.splits,
            plural(s->grid.splits), state->count, state->count == 1 ? "launch" : "launches");
    return arena_print(arena, &step->detail, "%s in %s: %d x %d thread%s each, %d vectors of %d%s; %d %s, %d %s", shape,
                       s->memory.stages ? "shared memory" : "registers", s->threads.cluster, s->threads.group,
                       plural(s->threads.group), s->memory.steps, s->vectors.width, rest, s->passes.count,
                       s->passes.count == 1 ? "pass" : "passes", state->count,
                       state->count == 1 ? "launch" : "launches");
}

/* True if elements, or reductions of them, depend on a value that differs from row to row. Terms are in the order of
   evaluation, so one sweep over them suffices. */
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

/* True if a second launch reads again the elements that samples were taken from, which a result may have overwritten by
   then. */
static bool rereads_elements(const struct step *step) {
    bool has_statistics = false;
    for (int i = 0; i < step->region.count; i++)
        has_statistics = has_statistics || op_of(region_node(&step->region, i)->op) == &norm_forward_op;
    return has_statistics && ((const struct cuda_step *)step->state)->count > 1;
}

/* Elements are stored the last time they are read, by the thread that read them. A number of a row that only other
   numbers of the row depend on is read and stored by one thread. A second program reads everything again. An element
   that is read in a later stage than its store must not be overwritten. */
bool rows_may_alias(const struct step *step, int in, int out) {
    const struct region *region = &step->region;
    struct rows rows;
    if (!tensor_same_layout(region->graph->values[in].tensor, region->graph->values[out].tensor) ||
        rows_analyse(&rows, region, STATISTICS_IN_TURN, false) || rows.follow.kind != FOLLOW_NOTHING)
        return false;
    const struct term *produced = rows_find(&rows, out);
    if (!produced->spans)
        return !elements_depend_on(&rows, in);
    if (rereads_elements(step))
        return false;
    for (int i = 0; i < rows.term_count; i++)
        if (rows.terms[i].is_needed && rows.terms[i].stage > produced->stage)
            return false;
    return true;
}

/* True for any operation, because vectors are loaded from whatever it reads. */
static bool gathers(const struct graph *graph, int node, int value) {
    (void)value;
    return node_is_pointwise(&graph->nodes[node]) || op_of(graph->nodes[node].op)->expand;
}

const struct family cuda_rows = {
    .name = "cuda.rows",
    .doc = "reductions, softmax and norms, forward and backward, fused with adjacent pointwise operations",
    .shares_reads = true,
    .accepts = accepts,
    .build = build,
    .may_alias = rows_may_alias,
    .gathers = gathers,
};
