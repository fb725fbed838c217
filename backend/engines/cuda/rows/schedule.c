/* SPDX-License-Identifier: Apache-2.0 */
/* From a row program to its schedule: the phases in their order, and at the end the grid. */
#include "engines/cuda/rows/schedule.h"
#include "base/number.h"
#include "engines/cuda/core/price.h"

#include <stdint.h>

/* Where no chip or format sets the number it was measured on an H200; times are in the headers of the kernels (Tried).
   */
enum {
    /* Threads on a multiprocessor that registers are to suffice for, by what elements are put through. */
    THREADS_HEAVY = 512,    /* doubles, rows side by side, several dims within a row, sums of columns */
    THREADS_USUAL = 768,    /* formulas of the graph, or rows that are streamed */
    THREADS_REDUCING = 896, /* a few registers more for a second reduction */
    THREADS_LIGHT = 1024,
    REDUCING_BLOCK = 256, /* threads of a block, at most, whose second reduction takes these */
    MUCH_BYTES = 96,      /* of a thread's row, above which it is no longer light */

    JOIN_THREADS = 256,         /* of a block that joins partial results */
    SPLITS_MOST = 1024,         /* of a row */
    UNJOINED_SPLITS = 4,        /* more are joined by a launch of their own before many blocks read them */
    UNJOINED_INTERLEAVED = 160, /* of interleaved rows, whose blocks are few */
    STORE_UNROLL = 4,           /* vectors of a thread, at least, in a launch that only stores */
    NO_CLUSTER = 12,            /* multiprocessors that clusters of 4 and 8 leave idle: 30 and 15 of them fit on 132 */
};

static const double LAUNCH_SECONDS = 2e-6;
/* Interleaved rows. Read each by itself: bytes a second of a multiprocessor, of pieces of lines in vectors of 16
   bytes; of less half as many (H100). Read as they lie: what waves that end together add (H100: 4.2 to 5.8 us). */
static const double PIECES_RATE = 6.8e9, INTERLEAVED_SECONDS = 4.5e-6;
static const double SIDE_BY_SIDE_SHARE = 0.55; /* of memory's rate, that clusters holding rows side by side reach */

static bool is_streamed(const struct schedule *s) { return s->memory.scheme == MEMORY_STREAMED; }

/* ---- The grid ---------------------------------------------------------------------------------------------------- */

/* Steps in which every thread has a vector, however many elements head and tail have. width - 1: the longest head. The
   last block of a cluster has the fewest vectors, so what it has is what all have. */
static int guaranteed_steps(const struct schedule *s) {
    const struct threads *threads = &s->threads;
    int64_t of_others = (int64_t)threads->group * s->memory.steps * (threads->cluster - 1); /* than the last block */
    int64_t length = s->nest.extents[s->nest.row_dims] - s->unaligned.margin - (s->vectors.width - 1);
    int64_t vectors = length / s->vectors.width - of_others;
    bool has_all = s->vectors.strips == s->grid.tiles * threads->across;
    return s->unaligned.most && vectors > 0 && has_all ? (int)(vectors / threads->group) : 0;
}

/* How many strips blocks take, and whether every thread and group has all of its own. */
static void count_tiles(struct schedule *s) {
    const struct threads *threads = &s->threads;
    int64_t room = (int64_t)s->memory.steps * threads->group * threads->cluster;
    s->grid.tiles = divide_up(s->vectors.strips, schedule_rows_across(s));
    if (s->unaligned.most &&
        s->passes.column_sums) /* as many rows as a vector has elements are between those of groups */
        s->grid.tiles = divide_up(s->vectors.strips, threads->across * s->vectors.width) * s->vectors.width;
    s->grid.splits = s->grid.store_splits = 1;
    s->memory.is_whole = s->memory.steps && !s->unaligned.most && s->vectors.per_row == room &&
                         s->vectors.strips == s->grid.tiles * threads->across;
    s->unaligned.guaranteed = s->memory.steps ? guaranteed_steps(s) : 0;
}

/* Whether pointwise nodes of the graph are evaluated per element. */
static bool has_formulas(const struct schedule *s) {
    for (int i = 0; i < s->rows->term_count; i++) {
        const struct term *term = &s->rows->terms[i];
        if (term->is_needed && term->spans && term->kind == TERM_NODE)
            return true;
    }
    return false;
}

/* Threads that registers shall suffice for: launch bounds, from which the compiler derives registers per thread. 64
   registers at THREADS_LIGHT, 85 at THREADS_USUAL, 128 at THREADS_HEAVY, of the 65,536 of a multiprocessor. */
static int resident_threads(const struct schedule *s, const struct device *device) {
    bool is_double = schedule_calculates_in_double(s), only_reduces = s->passes.count == 1 && s->passes.storing < 0;
    bool is_heavy = is_double || s->nest.is_columns || s->nest.rank - s->nest.row_dims > 1 || s->passes.column_sums;
    if (s->threads.segment && !is_double)
        return THREADS_LIGHT;
    bool keeps_much = schedule_kept_bytes(s) * s->memory.steps > MUCH_BYTES;
    int threads = is_heavy ? THREADS_HEAVY : !is_streamed(s) && !keeps_much ? THREADS_LIGHT : THREADS_USUAL;
    bool is_narrow = s->nest.is_columns && !is_streamed(s) && only_reduces && !is_double;
    if (is_narrow && s->grid.tiles > device->cuda.multiprocessors)
        threads = THREADS_LIGHT; /* tiles side by side, which would wait for each other else */
    if (threads == THREADS_LIGHT && has_formulas(s))
        threads = THREADS_USUAL;
    int64_t wave = (int64_t)device->cuda.multiprocessors * (THREADS_LIGHT / s->threads.block);
    bool is_one_wave = s->grid.tiles <= wave && !s->unaligned.most; /* layer norm of 4096x1024, H100: 8.5 to 7.7 us */
    if (threads == THREADS_LIGHT && s->passes.closed > 1 && s->threads.block <= REDUCING_BLOCK && !is_one_wave)
        threads = s->unaligned.most ? THREADS_USUAL : THREADS_REDUCING;
    return threads;
}

/* Blocks that fill shared memory are alone on their multiprocessor. */
static void allot_registers(struct schedule *s, const struct device *device) {
    bool is_alone = s->memory.scheme == MEMORY_PIPELINED || s->memory.scheme == MEMORY_COLUMNS_SHARED;
    int blocks = resident_threads(s, device) / s->threads.block;
    s->threads.min_blocks = blocks > 0 && !is_alone ? blocks : 1;
}

/* Streams whose rows are too few for the chip are split. With reductions, rows that fill half of a wave are left whole:
   joining is a launch of its own, and every split reads the row's results again. */
static void split_rows(struct schedule *s, const struct device *device) {
    /* One wave of blocks; each split reads at least `smallest` vectors, below which joining costs more than it saves.
       */
    int64_t wanted = (int64_t)device->cuda.multiprocessors * s->threads.min_blocks;
    int64_t smallest = (int64_t)s->threads.group * s->memory.unroll;
    int64_t splits = divide_up(wanted, s->grid.tiles ? s->grid.tiles : 1);
    splits = min64(splits, min64(divide_up(s->vectors.per_row, smallest), SPLITS_MOST));
    if (splits <= 1 || (s->passes.closed && s->grid.tiles * 2 >= wanted))
        return;
    if (s->threads.segment) { /* one wave, and no more: the last blocks would be as long as all others */
        s->grid.splits = s->grid.store_splits = min64(splits, wanted / s->grid.tiles);
        return;
    }
    s->grid.splits = splits;
    /* Threads that read several operands last longer, and are fewer. */
    s->grid.store_splits =
        divide_up(s->vectors.per_row, smallest * (s->memory.unroll < STORE_UNROLL ? STORE_UNROLL : 1));
}

/* Blocks, or clusters of them, that are all on the chip at once. Never 0: a chip with fewer multiprocessors than
   NO_CLUSTER runs one cluster after the other. */
static int64_t blocks_at_once(const struct schedule *s, const struct device *device) {
    int64_t multiprocessors = device->cuda.multiprocessors - (s->threads.cluster <= 2 ? 0 : NO_CLUSTER);
    int64_t blocks = multiprocessors / s->threads.cluster * s->threads.min_blocks;
    return blocks > 1 ? blocks : 1;
}

/* No more blocks sum columns than share the rows evenly, as each leaves sums of its own: 132 of 4096 rows would wait
   for 4. Where rows begin anywhere, all rows of a block begin alike. */
static void count_blocks(struct schedule *s, const struct device *device) {
    struct row_grid *grid = &s->grid;
    bool is_persistent = schedule_is_persistent(s);
    grid->blocks = min64(grid->tiles * grid->splits, is_persistent ? blocks_at_once(s, device) : INT32_MAX);
    if (s->passes.column_sums && grid->blocks)
        grid->blocks = min64(grid->blocks, divide_up(grid->tiles, divide_up(grid->tiles, grid->blocks)));
    if (is_persistent && s->unaligned.most && grid->blocks < grid->tiles)
        grid->blocks -= grid->blocks % s->vectors.width;
    grid->is_dependent = device->cuda.major >= 9;
    bool is_late = grid->is_dependent && s->passes.column_sums && !s->memory.stages;
    grid->trigger = is_late ? TRIGGER_WHEN_DONE : TRIGGER_WHEN_BEGUN;
}

/* What L2 is asked for ahead: rows before the launch before ends, where that hides its end, as blocks of few rows or of
   long ones end one by one; and where no more than two blocks are side by side, rows of blocks to come, as nobody else
   asks while one of them begins. */
static void prefetch_l2(struct schedule *s, const struct device *device) {
    bool is_persistent = schedule_is_persistent(s);
    int64_t at_once = (int64_t)device->cuda.multiprocessors * s->threads.min_blocks / s->threads.cluster;
    if (is_streamed(s) || s->nest.is_columns || !schedule_copies_rows(s, device))
        return;
    s->grid.l2_early = s->memory.stages || s->grid.tiles <= 2 * (is_persistent ? s->grid.blocks : at_once);
    if (!is_persistent && s->passes.storing >= 0 && s->threads.min_blocks <= 2)
        s->grid.l2_distance = at_once;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

bool schedule_joins(const struct schedule *s, int pass) {
    bool is_read_by_many = pass < s->passes.closed - 1 || s->passes.storing >= s->passes.closed;
    return s->grid.splits > (s->threads.segment ? UNJOINED_INTERLEAVED : UNJOINED_SPLITS) && is_read_by_many;
}

/* Unsplit, all passes are one launch; split, each pass that closes ends one, and joins come between. */
int schedule_kernel_count(const struct schedule *s) {
    if (s->vectors.strips == 0)
        return 0;
    int kernels = 1;
    for (int pass = 0; pass < s->passes.closed && s->grid.splits > 1; pass++)
        kernels += schedule_joins(s, pass) ? 2 : 1;
    return kernels;
}

/* Each row's splits are few and rows are many: a warp or a few for each. Four partial results a thread. */
void schedule_for_joining(struct schedule *s, int64_t splits) {
    int64_t group = 32;
    while (group < divide_up(splits, 4) && group < JOIN_THREADS)
        group *= 2;
    s->nest.is_columns = false;
    s->unaligned = (struct unaligned){0};
    s->vectors = (struct vectors){1, schedule_slots(s), row_space_length(&s->rows->space)};
    s->memory = (struct memory){.scheme = MEMORY_STREAMED, .unroll = 1};
    s->threads = (struct threads){
        .group = (int)group, .across = JOIN_THREADS / (int)group, .cluster = 1, .block = JOIN_THREADS, .min_blocks = 1};
    s->grid.tiles = divide_up(s->vectors.strips, s->threads.across);
}

void schedule_for_storing(struct schedule *s) {
    int threads = s->memory.unroll < STORE_UNROLL ? THREADS_HEAVY : THREADS_USUAL;
    if (!s->threads.segment)
        s->threads.min_blocks = threads / s->threads.block;
}

/* ---- Price ------------------------------------------------------------------------------------------------------- */

/* Streamed rows are read once for each pass: that L2 may hold them is not counted on. */
static double bytes_moved(const struct schedule *s) {
    double bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++) {
        bool once = s->nest.operands[k].is_store || !is_streamed(s);
        if (schedule_moves(s, k))
            bytes += schedule_operand_bytes(s, k) * (once ? 1 : s->passes.count);
    }
    return bytes;
}

/* What interleaved rows in memory take at least, where each is read by itself. */
static double pieces_seconds(const struct schedule *s, const struct device *device) {
    int64_t widest = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_moves(s, k))
            widest = max64(widest, schedule_vector_bytes(s, k));
    double rate = PIECES_RATE * device->cuda.multiprocessors / (widest < 16 ? 2 : 1);
    return s->threads.segment || !schedule_segment(s) ? 0 : bytes_moved(s) / rate;
}

/* Half of the multiprocessors keep memory busy. */
static void predict(struct schedule *s, const struct device *device) {
    int64_t blocks = s->grid.blocks * s->threads.cluster, multiprocessors = device->cuda.multiprocessors;
    double busy = 2 * (double)blocks / (double)multiprocessors;
    double share = s->memory.scheme == MEMORY_COLUMNS_SHARED && s->threads.cluster > 1 ? SIDE_BY_SIDE_SHARE : 1;
    double moving = price_moving(bytes_moved(s), device) / share / (busy > 0 && busy < 1 ? busy : 1);
    double apart = pieces_seconds(s, device);
    moving = apart > moving ? apart : moving;
    s->seconds = LAUNCH_SECONDS * schedule_kernel_count(s) + moving + (s->threads.segment ? INTERLEAVED_SECONDS : 0);
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

static bool place_resident(struct schedule *s, const struct device *device, bool must_stream) {
    return s->passes.count > 0 && schedule_place_resident(s, device, must_stream) && schedule_exchange_fits(s);
}

/* Rows that begin anywhere want a number of blocks that sums of columns may not leave: these begin at vectors then. */
static weftStatus_t place(struct schedule *s, const struct device *device, bool must_stream) {
    schedule_allow_unaligned(s);
    if (place_resident(s, device, must_stream))
        return WEFT_STATUS_SUCCESS;
    if (s->unaligned.most && s->passes.column_sums) {
        TRY(schedule_begin(s, s->rows));
        if (place_resident(s, device, must_stream))
            return WEFT_STATUS_SUCCESS;
    }
    schedule_allow_overlap(s);
    schedule_place_streamed(s, device);
    return WEFT_STATUS_SUCCESS;
}

/* Phases in this order, each from those before: nest and vectors, place, tiles, registers, splits, blocks, what L2 is
   asked for. Halving `across` halves what groups exchange. */
weftStatus_t schedule_plan(struct schedule *s, const struct rows *rows, const struct device *device, bool must_stream) {
    TRY(schedule_begin(s, rows));
    TRY(place(s, device, must_stream));
    while (!schedule_exchange_fits(s) && s->threads.across > 1) {
        s->threads.across /= 2;
        s->threads.block /= 2;
    }
    if (!schedule_exchange_fits(s) || s->threads.block % 32)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "the partial results of %d rows at a time do not fit in shared memory", s->vectors.width);
    count_tiles(s);
    allot_registers(s, device);
    if (is_streamed(s))
        split_rows(s, device);
    count_blocks(s, device);
    prefetch_l2(s, device);
    predict(s, device);
    return WEFT_STATUS_SUCCESS;
}
