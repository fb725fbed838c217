/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules a row program and predicts its time. Instructions come first, because registers determine the size of a
   block; then loops, blocks and tiles; then tasks. */
#include "engines/cpu/rows/schedule.h"
#include "base/number.h"

#include <string.h>

/* Measured on one core of 2024: Zen 5 at 4 GHz, shared memory. */
static const double BYTES_PER_SECOND = 16e9, START_SECONDS = 1e-6;
static const double TASK_NANOSECONDS = 10e3;              /* cost of waking a thread */
static const double INSTRUCTION = 8, ROW_INSTRUCTION = 8; /* nanoseconds, independent of the number of elements */
static const double LOAD = 0.08, REDUCTION = 0.06;        /* nanoseconds per element */

enum { PART_SUMS_BYTES = 256 << 10 };             /* maximum bytes of one sum over all parts of tiles */
enum { KEPT_BYTES = 1 << 20, MOST_TASKS = 4096 }; /* kept bytes: maximum per tile, half of a typical L2 */

/* The time per element. Recalls and spreads read L1 and are too fast to count. */
static double instruction_nanoseconds(const struct row_schedule *s, const struct row_instruction *at) {
    switch (at->verb) {
    case ROW_CALCULATE:
        return s->rows->terms[at->term].nanoseconds;
    case ROW_LOAD:
    case ROW_STORE:
        return LOAD;
    case ROW_REDUCE:
    case ROW_SUM_COLUMN:
        return REDUCTION;
    default:
        return 0;
    }
}

/* The time of all passes over one tile on one thread. */
static double tile_nanoseconds(const struct row_schedule *s) {
    double elements = (double)row_schedule_tile_elements(s), nanoseconds = 0;
    /* Each instruction has a fixed overhead per block. */
    for (int i = 0; i < s->instruction_count; i++)
        nanoseconds += INSTRUCTION * (double)s->blocks + elements * instruction_nanoseconds(s, &s->instructions[i]);
    return nanoseconds + s->row_slots * (ROW_INSTRUCTION + 0.1 * (double)s->tile_rows);
}

/* Bytes of memory traffic. Operands are read once if tasks carry rows through all passes; in phases, each pass reads
   them again. */
static double moved_bytes(const struct row_schedule *s) {
    double bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct row_operand *operand = &s->rows->operands[k];
        /* Broadcast operands stay in the cache: each element counts once. */
        double elements = operand->value == VALUE_INDEX ? 0 : 1;
        for (int i = 0; i < s->loop_count; i++)
            elements *= s->loops[i].strides[k] ? (double)s->loops[i].extent : 1;
        bytes += elements * dtype_of(operand->type)->bits / 8;
    }
    return s->splits > 1 ? bytes * s->pass_count : bytes;
}

/* The number of tasks depends only on sizes, so that column sums do, too. Tasks with memory of their own are limited to
   ROWWISE_TASKS: the workspace grows with their number, not with the number of threads. A power of two gives two, four
   or eight threads equal shares. */
static void cut_tasks(struct row_schedule *s) {
    int64_t most = s->task_bytes || s->sum_count ? ROWWISE_TASKS : MOST_TASKS;
    double per_tile = tile_nanoseconds(s), nanoseconds = per_tile * (double)s->tiles;
    s->tasks = 1;
    while (s->tasks < most && (double)s->tasks * TASK_NANOSECONDS < nanoseconds)
        s->tasks *= 2;
    s->tasks = min64(s->tasks, s->tiles);
}

/* Column sums are private to a task, or to a part if there are few parts and short sums. They accumulate a block's
   columns side by side, or each of its rows as one. */
static void plan_sums(struct row_schedule *s) {
    s->partial_sums = s->splits > 1 ? s->tiles * s->splits : s->tasks;
    bool are_short = s->partial_sums * s->sum_length * (int64_t)sizeof(float) <= PART_SUMS_BYTES;
    s->sums_columns = s->loops[s->b].position <= 1 && (s->splits == 1 || are_short);
}

/* Seconds: the maximum of arithmetic, on as many threads as there are tasks, and memory traffic. */
static void predict(struct row_schedule *s, int threads) {
    double parts = (double)max64(s->splits > 1 ? s->tiles * s->splits : s->tasks, 1);
    double busy = threads < 1 ? 1 : parts < threads ? parts : threads;
    double computing = tile_nanoseconds(s) * (double)s->tiles * 1e-9 / busy, moving = moved_bytes(s) / BYTES_PER_SECOND;
    s->seconds = START_SECONDS + (computing > moving ? computing : moving);
}

/* kept_bytes: one slot of a tile. task_bytes: all slots, because each task has its own memory unless its stack has
   room. */
static void measure_memory(struct row_schedule *s) {
    int64_t width = s->has_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    s->kept_bytes = s->kept_count ? round_up(row_schedule_tile_elements(s) * width, 64) : 0;
    s->task_bytes = s->kept_bytes * s->kept_count;
    if (s->task_bytes <= ROWWISE_KEPT_BYTES)
        s->task_bytes = 0;
}

/* Kept elements must fit. Loads are kept only on stacks, because conversions cost less than memory accesses. Split rows
   keep nothing, because their passes are separate phases. */
static bool keeps_too_much(const struct row_schedule *s, enum row_keeping keeping) {
    bool is_large = s->kept_bytes > KEPT_BYTES || (keeping == KEEP_CONVERTED_LOADS && s->task_bytes);
    return keeping != KEEP_NOTHING && s->kept_count && (s->splits > 1 || is_large);
}

/* If the kept elements do not fit, instructions are generated again with less keeping. */
weftStatus_t row_schedule_plan(struct row_schedule *s, struct schedule_storage *storage, const struct rowwise *rows,
                               int threads) {
    /* Lists are stored in the storage; row_schedule_copy copies them. */
    *s = (struct row_schedule){.rows = rows,
                               .loops = storage->loops,
                               .passes = storage->passes,
                               .instructions = storage->instructions,
                               .row_terms = storage->row_terms,
                               .slot_of = storage->slot_of,
                               .kept = storage->kept,
                               .kept_pass = storage->kept_pass,
                               .kept_operand = storage->kept_operand,
                               .watched = -1};
    bool is_done = false;
    for (int keeping = KEEP_CONVERTED_LOADS; keeping >= KEEP_NOTHING && !is_done; keeping--) {
        TRY(row_schedule_list(s, keeping));
        row_schedule_nest(s);
        row_schedule_cut(s);
        measure_memory(s);
        is_done = !keeps_too_much(s, keeping);
    }
    cut_tasks(s);
    plan_sums(s);
    predict(s, threads);
    return WEFT_STATUS_SUCCESS;
}

/* Replaces a list by a copy of its items. `list` is the address of the pointer to them, of any type. */
static weftStatus_t copy_list(struct arena *arena, void *list, int count, size_t item_bytes) {
    void *items;
    memcpy(&items, list, sizeof items);
    return arena_copy(arena, list, items, (size_t)count * item_bytes);
}

/* Running needs operands and terms. `values` is needed only while terms are written. */
static weftStatus_t copy_program(const struct rowwise **out, const struct rowwise *rows, struct arena *arena) {
    struct rowwise *copy;
    TRY(arena_copy(arena, &copy, rows, sizeof *rows));
    copy->values = NULL;
    TRY(copy_list(arena, &copy->operands, rows->operand_count, sizeof *rows->operands));
    TRY(copy_list(arena, &copy->terms, rows->term_count, sizeof *rows->terms));
    *out = copy;
    return WEFT_STATUS_SUCCESS;
}

/* Running does not need the data for decisions about kept terms. */
weftStatus_t row_schedule_copy(const struct row_schedule **out, const struct row_schedule *s, struct arena *arena) {
    struct row_schedule *copy;
    TRY(arena_copy(arena, &copy, s, sizeof *s));
    copy->kept = copy->kept_pass = copy->kept_operand = NULL;
    TRY(copy_program(&copy->rows, s->rows, arena));
    TRY(copy_list(arena, &copy->loops, s->loop_count, sizeof *s->loops));
    TRY(copy_list(arena, &copy->passes, s->pass_count, sizeof *s->passes));
    TRY(copy_list(arena, &copy->instructions, s->instruction_count, sizeof *s->instructions));
    TRY(copy_list(arena, &copy->row_terms, s->stage_ends[ROWWISE_PASSES], sizeof *s->row_terms));
    TRY(copy_list(arena, &copy->slot_of, s->rows->term_count, sizeof *s->slot_of));
    *out = copy;
    return WEFT_STATUS_SUCCESS;
}

/* With splits: each tile's rows and totals, then the totals of each part. Otherwise what tasks keep between passes. */
int64_t row_schedule_bytes(const struct row_schedule *s) {
    int64_t totals = s->tile_bytes - s->totals_at;
    return s->splits > 1 ? s->tiles * (s->tile_bytes + s->splits * totals) : s->tasks * s->task_bytes;
}
