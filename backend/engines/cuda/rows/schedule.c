/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules a row program: runs the phases in order, and finally chooses the grid. */
#include "engines/cuda/rows/schedule.h"
#include "base/number.h"
#include "engines/cuda/core/price.h"

#include <stdint.h>

/* Numbers that no device or format determines were measured on an H200; times are in the headers of the kernels
   (Tried). */
enum {
    /* Threads per multiprocessor that the registers must suffice for, by the work per element. */
    THREADS_HEAVY = 512,    /* doubles, interleaved rows, several dims within a row, or column sums */
    THREADS_USUAL = 768,    /* formulas of the graph, or streamed rows */
    THREADS_REDUCING = 896, /* a few more registers for a second reduction */
    THREADS_LIGHT = 1024,
    REDUCING_BLOCK = 256, /* maximum block size whose second reduction gets these */
    MUCH_BYTES = 96,      /* bytes of a thread's row above which it is no longer light */

    JOIN_THREADS = 256,       /* block size for joining partial results */
    SPLITS_MAX = 1024,        /* per row */
    UNJOINED_SPLITS = 4,      /* beyond this, a separate launch joins them before many blocks read them */
    UNJOINED_SEGMENTED = 160, /* the same for segmented rows, which have few blocks */
    STORE_UNROLL = 4,         /* minimum vectors per thread in a launch that only stores */
    NO_CLUSTER = 12,          /* multiprocessors that clusters of 4 and 8 leave idle: 30 and 15 of them fit on 132 */
};

static const double LAUNCH_SECONDS = 2e-6;
/* Segmented rows. Read separately: bytes per second per multiprocessor for partial cache lines in vectors of 16 bytes;
   half of that for smaller ones (H100). Read in memory order: additional time of waves that end together (H100: 4.2 to
   5.8 us). */
static const double PIECES_RATE = 6.8e9, SEGMENTED_SECONDS = 4.5e-6;
/* fraction of the memory rate that clusters holding interleaved rows reach */
static const double INTERLEAVED_SHARE = 0.55;

static bool is_streamed(const struct schedule *s) { return s->memory.scheme == MEMORY_STREAMED; }

/* ---- The grid ---------------------------------------------------------------------------------------------------- */

/* Number of steps in which every thread has a vector, for any number of elements in head and tail. width - 1 is the
   longest head. The last block of a cluster has the fewest vectors, so it sets the bound. */
static int guaranteed_steps(const struct schedule *s) {
    const struct threads *threads = &s->threads;
    /* vectors before those of the last block */
    int64_t of_others = (int64_t)threads->group * s->memory.steps * (threads->cluster - 1);
    int64_t length = s->nest.extents[s->nest.row_dims] - s->unaligned.margin - (s->vectors.width - 1);
    int64_t vectors = length / s->vectors.width - of_others;
    bool has_all = s->vectors.strips == s->grid.tiles * threads->across;
    return s->unaligned.most && vectors > 0 && has_all ? (int)(vectors / threads->group) : 0;
}

/* Counts the tiles, and checks whether every thread and group has a full share. */
static void count_tiles(struct schedule *s) {
    const struct threads *threads = &s->threads;
    int64_t room = (int64_t)s->memory.steps * threads->group * threads->cluster;
    s->grid.tiles = divide_up(s->vectors.strips, schedule_rows_across(s));
    if (s->unaligned.most &&
        s->passes.column_sums) /* between the rows of adjacent groups there are as many rows as a vector has elements */
        s->grid.tiles = divide_up(s->vectors.strips, threads->across * s->vectors.width) * s->vectors.width;
    s->grid.splits = s->grid.store_splits = 1;
    s->memory.is_whole = s->memory.steps && !s->unaligned.most && s->vectors.per_row == room &&
                         s->vectors.strips == s->grid.tiles * threads->across;
    s->unaligned.guaranteed = s->memory.steps ? guaranteed_steps(s) : 0;
}

/* True if pointwise nodes of the graph are evaluated per element. */
static bool has_formulas(const struct schedule *s) {
    for (int i = 0; i < s->rows->term_count; i++) {
        const struct term *term = &s->rows->terms[i];
        if (term->is_needed && term->spans && term->kind == TERM_NODE)
            return true;
    }
    return false;
}

/* Threads that registers must suffice for; the launch bounds from which the compiler derives registers per thread: 64
   registers at THREADS_LIGHT, 85 at THREADS_USUAL, 128 at THREADS_HEAVY, of the 65,536 of a multiprocessor. */
static int resident_threads(const struct schedule *s, const struct device *device) {
    bool is_double = schedule_calculates_in_double(s), only_reduces = s->passes.count == 1 && s->passes.storing < 0;
    bool is_heavy = is_double || s->nest.is_columns || s->nest.rank - s->nest.row_dims > 1 || s->passes.column_sums;
    if (s->threads.segment && !is_double)
        return THREADS_LIGHT;
    bool keeps_much = schedule_resident_bytes(s) * s->memory.steps > MUCH_BYTES;
    int threads = is_heavy ? THREADS_HEAVY : !is_streamed(s) && !keeps_much ? THREADS_LIGHT : THREADS_USUAL;
    bool is_narrow = s->nest.is_columns && !is_streamed(s) && only_reduces && !is_double;
    if (is_narrow && s->grid.tiles > device->cuda.multiprocessors)
        threads = THREADS_LIGHT; /* adjacent tiles would otherwise wait for each other */
    if (threads == THREADS_LIGHT && has_formulas(s))
        threads = THREADS_USUAL;
    int64_t wave = (int64_t)device->cuda.multiprocessors * (THREADS_LIGHT / s->threads.block);
    bool is_one_wave = s->grid.tiles <= wave && !s->unaligned.most; /* layer norm of 4096x1024, H100: 8.5 to 7.7 us */
    if (threads == THREADS_LIGHT && s->passes.closed > 1 && s->threads.block <= REDUCING_BLOCK && !is_one_wave)
        threads = s->unaligned.most ? THREADS_USUAL : THREADS_REDUCING;
    return threads;
}

/* A block that fills shared memory has a multiprocessor to itself. */
static void allot_registers(struct schedule *s, const struct device *device) {
    bool is_alone = s->memory.scheme == MEMORY_PIPELINED || s->memory.scheme == MEMORY_COLUMNS_SHARED;
    int blocks = resident_threads(s, device) / s->threads.block;
    s->threads.min_blocks = blocks > 0 && !is_alone ? blocks : 1;
}

/* Splits streamed rows that are too few for the device. With reductions, rows that fill half a wave stay whole: joining
   takes a launch of its own, and every split reads the row's results again. */
static void split_rows(struct schedule *s, const struct device *device) {
    /* One wave of blocks. Each split reads at least `smallest` vectors, below which joining costs more than it
       saves. */
    int64_t wanted = (int64_t)device->cuda.multiprocessors * s->threads.min_blocks;
    int64_t smallest = (int64_t)s->threads.group * s->memory.unroll;
    int64_t splits = divide_up(wanted, s->grid.tiles ? s->grid.tiles : 1);
    splits = min64(splits, min64(divide_up(s->vectors.per_row, smallest), SPLITS_MAX));
    if (splits <= 1 || (s->passes.closed && s->grid.tiles * 2 >= wanted))
        return;
    if (s->threads.segment) { /* exactly one wave: the last blocks would take as long as all others */
        s->grid.splits = s->grid.store_splits = min64(splits, wanted / s->grid.tiles);
        return;
    }
    s->grid.splits = splits;
    /* Threads that read several operands run longer, and are fewer. */
    s->grid.store_splits =
        divide_up(s->vectors.per_row, smallest * (s->memory.unroll < STORE_UNROLL ? STORE_UNROLL : 1));
}

/* Blocks, or clusters, that are resident at once. Never 0: a device with fewer multiprocessors than NO_CLUSTER runs one
   cluster after another. */
static int64_t blocks_at_once(const struct schedule *s, const struct device *device) {
    int64_t multiprocessors = device->cuda.multiprocessors - (s->threads.cluster <= 2 ? 0 : NO_CLUSTER);
    int64_t blocks = multiprocessors / s->threads.cluster * s->threads.min_blocks;
    return blocks > 1 ? blocks : 1;
}

/* Only as many blocks sum columns as share the rows evenly, because each writes sums of its own: with 4096 rows, 132
   blocks would wait for the last 4 rows. If rows are unaligned, all rows of a block have the same alignment. */
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

/* Chooses which rows to prefetch into L2: the first rows, before the preceding launch ends, if that hides its tail
   (blocks with few or with long rows finish at different times), and rows of later blocks if at most two blocks are
   resident, because no other block issues loads while one of them starts. */
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
    return s->grid.splits > (s->threads.segment ? UNJOINED_SEGMENTED : UNJOINED_SPLITS) && is_read_by_many;
}

/* Unsplit, all passes are one launch; split, each pass that closes ends one, with joins in between. */
int schedule_kernel_count(const struct schedule *s) {
    if (s->vectors.strips == 0)
        return 0;
    int kernels = 1;
    for (int pass = 0; pass < s->passes.closed && s->grid.splits > 1; pass++)
        kernels += schedule_joins(s, pass) ? 2 : 1;
    return kernels;
}

/* Plans for many rows with few splits each: one warp or a few per row, four partial results per thread. */
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

/* ---- Cost -------------------------------------------------------------------------------------------------------- */

/* Streamed rows are read once per pass; L2 hits are not assumed. */
static double bytes_moved(const struct schedule *s) {
    double bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++) {
        bool once = s->nest.operands[k].is_store || !is_streamed(s);
        if (schedule_uses_memory(s, k))
            bytes += schedule_operand_bytes(s, k) * (once ? 1 : s->passes.count);
    }
    return bytes;
}

/* Minimum time for segmented rows if each is read separately. */
static double pieces_seconds(const struct schedule *s, const struct device *device) {
    int64_t widest = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_uses_memory(s, k))
            widest = max64(widest, schedule_vector_bytes(s, k));
    double rate = PIECES_RATE * device->cuda.multiprocessors / (widest < 16 ? 2 : 1);
    return s->threads.segment || !schedule_segment(s) ? 0 : bytes_moved(s) / rate;
}

/* Half of the multiprocessors saturate memory. */
static void predict(struct schedule *s, const struct device *device) {
    int64_t blocks = s->grid.blocks * s->threads.cluster, multiprocessors = device->cuda.multiprocessors;
    double busy = 2 * (double)blocks / (double)multiprocessors;
    double share = s->memory.scheme == MEMORY_COLUMNS_SHARED && s->threads.cluster > 1 ? INTERLEAVED_SHARE : 1;
    double moving = price_moving(bytes_moved(s), device) / share / (busy > 0 && busy < 1 ? busy : 1);
    double apart = pieces_seconds(s, device);
    moving = apart > moving ? apart : moving;
    s->seconds = LAUNCH_SECONDS * schedule_kernel_count(s) + moving + (s->threads.segment ? SEGMENTED_SECONDS : 0);
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

static bool map_resident(struct schedule *s, const struct device *device, bool must_stream) {
    return s->passes.count > 0 && schedule_map_resident(s, device, must_stream) && schedule_exchange_fits(s);
}

/* Unaligned rows require a number of blocks that column sums may not allow; rows then begin at vectors. */
static weftStatus_t map_rows(struct schedule *s, const struct device *device, bool must_stream) {
    schedule_allow_unaligned(s);
    if (map_resident(s, device, must_stream))
        return WEFT_STATUS_SUCCESS;
    if (s->unaligned.most && s->passes.column_sums) {
        TRY(schedule_begin(s, s->rows));
        if (map_resident(s, device, must_stream))
            return WEFT_STATUS_SUCCESS;
    }
    schedule_allow_overlap(s);
    schedule_map_streamed(s, device);
    return WEFT_STATUS_SUCCESS;
}

/* Runs the phases in order, each based on the earlier ones: nest and vectors, mapping, tiles, registers, splits,
   blocks, L2 prefetches. Halving `across` halves the exchange buffer. */
weftStatus_t schedule_plan(struct schedule *s, const struct rows *rows, const struct device *device, bool must_stream) {
    TRY(schedule_begin(s, rows));
    TRY(map_rows(s, device, must_stream));
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
