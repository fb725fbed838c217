/* SPDX-License-Identifier: Apache-2.0 */
/* Maps rows to threads and memory: how many vectors a thread holds, and in which memory scheme. Row programs are
   memory-bound: enough bytes must be in flight (threads times bytes that each requests at once), whole cache lines must
   be read, and memory should be read as few times as possible. */
#include "base/number.h"
#include "engines/cuda/rows/schedule.h"

/* Numbers that no device or format determines were measured on an H200; times are in the headers of the kernels
   (Tried). */
enum {
    /* Bytes per thread. */
    WANTED_BYTES = 64,    /* bytes that a thread requests at once if rows are held in registers */
    KEPT_BYTES = 128,     /* maximum of one row in registers */
    SUMMED_BYTES = 256,   /* maximum in registers, including the next row and sums of columns */
    BROADCAST_BYTES = 32, /* maximum in registers for operands that all rows share, if blocks have few rows */
    STREAMED_BYTES = 32,  /* bytes that streaming kernels request at once; they have two such sets in flight */

    /* Vectors per thread, threads per block, blocks per cluster. */
    STEPS_MAX = 8,
    STREAM_THREADS = 256,
    SHORT_THREADS = 128,      /* threads of a block whose rows have at most a warp each */
    PERSISTENT_THREADS = 512, /* larger blocks leave no registers for the next row and sums of columns */
    SHARED_THREADS = 512,     /* MEMORY_COLUMNS_SHARED */
    NARROW_THREADS = 256,     /* threads of a block for interleaved rows that are only reduced */
    THREADS_MAX = 1024,       /* device limit */
    CLUSTER_MAX = 8,          /* guaranteed for compute capability 9.0 */
    LINE_VECTORS = 8,         /* 16-byte vectors in a 128-byte cache line */
    ACROSS_MAX = 16,          /* strips of interleaved rows per block */
    /* Segmented rows: few blocks, as each writes partial results of all rows. More threads would spill, except for
       vectors of one or two elements of a single operand (4 bytes). */
    SEGMENTED_THREADS = 768,
    SEGMENTED_THREADS_NARROW = 1024,
    NARROW_BYTES = 4,

    /* Shared memory, in bytes. */
    COLUMN_SUM_BYTES = 40960, /* sums that groups exchange, out of the 48 KiB that a kernel has without opting in */
    OTHER_BYTES = 1536,       /* barriers and partial results in addition to stages */
    BARRIER_BYTES = 3072,     /* barriers of MEMORY_PIPELINED */

    /* Stages: rows of a group in shared memory. */
    STAGES_MIN = 3,
    STAGES_MAX = 4,
    STAGED_THREADS = 256,   /* smaller groups load their rows faster without staging */
    PIPELINED_WARPS = 32,   /* per block */
    PIPELINED_OPEN = 4,     /* rows with pending partial results: OPEN in rows/pipelined.cuh */
    LASTING_REGISTERS = 40, /* per thread, for data that persists across rows */
    LASTING_FEWER = 24,     /* if the compiler uses more registers for the rest: sm_100 and sm_120 */
};

/* The smallest power of two that is at least n, but no more than `most`, a power of two. */
static int power_of_two_from(int64_t n, int most) {
    int power = 1;
    while (power < n && power < most)
        power *= 2;
    return power;
}

/* ---- Rows in registers ------------------------------------------------------------------------------------------- */

/* Vectors per thread; at least 1 even if rows have no elements. */
static int steps_of(const struct schedule *s, int64_t threads) {
    int64_t steps = divide_up(s->vectors.per_row, threads);
    return steps ? (int)steps : 1;
}

/* Rounds a group to part of a warp, which reduces by shuffles, or to whole warps, which exchange through shared
   memory. */
static void round_group(struct schedule *s, int64_t threads) {
    s->threads.group = threads <= 32 ? power_of_two_from(threads, 32) : (int)(divide_up(threads, 32) * 32);
}

/* Maximum number of vectors that a thread can hold in registers, together with the next row's and the sums of their
   columns. Doubles take two registers each in arithmetic, whatever their storage type. Returns 0 if not even one
   fits. */
static int64_t max_steps(const struct schedule *s) {
    int64_t bytes = schedule_resident_bytes(s),
            most = min64(KEPT_BYTES / bytes > 0 ? KEPT_BYTES / bytes : 1, STEPS_MAX);
    /* The row's vectors, the next row's, and a float for each summed column. */
    if (s->passes.column_sums)
        most = min64(most, SUMMED_BYTES / (2 * bytes + 4 * s->passes.column_sums * s->vectors.width));
    return schedule_calculates_in_double(s) && most > 2 ? most / 2 : most;
}

/* Vectors per thread: fewer if rows are short or few, so that more threads issue loads. */
static int64_t wanted_steps(const struct schedule *s, const struct device *device) {
    int64_t steps = divide_up(WANTED_BYTES, schedule_resident_bytes(s));
    /* Threads that saturate memory: 512 per multiprocessor. */
    int64_t resident = (int64_t)device->cuda.multiprocessors * 512;
    while (steps > 1 && s->vectors.strips * divide_up(s->vectors.per_row, steps) < resident)
        steps--;
    return min64(steps, max_steps(s));
}

/* Finds the smallest cluster whose threads hold a row in at most `most` vectors each. Clusters cost a barrier between
   blocks per reduction, so rows with a single pass are streamed instead. Sets cluster, group and steps; on failure the
   cluster is 1. A group has at least 8 threads, or one per vector of the row. */
static bool fit_rows(struct schedule *s, const struct device *device, int64_t widest, int64_t most) {
    int64_t wanted = min64(wanted_steps(s, device), most), vectors = s->vectors.per_row;
    int clusters = s->passes.count > 1 ? (int)min64(CLUSTER_MAX, device->cuda.cluster_most) : 1;
    for (s->threads.cluster = 1; s->threads.cluster <= clusters; s->threads.cluster *= 2) {
        int64_t group = divide_up(vectors, wanted * s->threads.cluster);
        if (group > widest) /* as few steps as the widest group needs, distributed evenly */
            group = divide_up(vectors, divide_up(vectors, widest * s->threads.cluster) * s->threads.cluster);
        if (s->unaligned.most) /* one thread for each element of head and tail, and no second group in its warp */
            group = group < s->unaligned.most || group < 32 ? 32 * divide_up(s->unaligned.most, 32) : group;
        round_group(s, group < 8 ? min64(8, power_of_two_from(vectors, 8)) : group);
        s->memory.steps = steps_of(s, (int64_t)s->threads.group * s->threads.cluster);
        if (s->memory.steps <= most)
            return true;
    }
    s->threads.cluster = 1;
    return false;
}

/* ---- Persistent blocks ------------------------------------------------------------------------------------------- */

/* Returns the bytes of the column sums of one vector. */
static int64_t column_sum_bytes(const struct schedule *s) {
    return s->vectors.width * (schedule_calculates_in_double(s) ? 8 : 4);
}

/* Returns how many rows of a group are in shared memory at a time, one of which is being processed, or 0 if too few fit
   to be worthwhile. The sums that the groups of a block exchange are in shared memory, too. */
static int stage_count(const struct schedule *s, const struct device *device) {
    if (!schedule_copies_rows(s, device))
        return 0;
    int64_t sums = s->threads.across > 1 ? column_sum_bytes(s) * s->threads.block : 0;
    int64_t room = device->cuda.shared_per_block - OTHER_BYTES - sums;
    int64_t stages = min64(STAGES_MAX, room / (schedule_row_bytes(s) * s->threads.across));
    bool is_worth_it = s->threads.group >= STAGED_THREADS && stages >= STAGES_MIN;
    return is_worth_it ? (int)stages : 0;
}

/* Column sums over all rows: few blocks, since each writes sums of every column. They iterate over rows and prefetch
   the next ones. */
static bool map_persistent(struct schedule *s, const struct device *device) {
    s->memory.scheme = MEMORY_PERSISTENT; /* determines what a thread holds */
    int64_t most = max_steps(s);
    if (!most || !fit_rows(s, device, PERSISTENT_THREADS, most))
        return false;
    /* The rows of a block must have the same alignment, so that their columns do, and the number of blocks is a
       multiple of the width: larger clusters would leave many multiprocessors idle. */
    if (s->unaligned.most &&
        (s->threads.cluster > 2 || device->cuda.multiprocessors < s->threads.cluster * s->vectors.width))
        return false;
    int groups = s->threads.cluster > 1 ? 1 : PERSISTENT_THREADS / s->threads.group;
    for (s->threads.across = groups > 1 ? groups : 1; s->threads.across > 1; s->threads.across /= 2)
        if (column_sum_bytes(s) * s->threads.group * s->threads.across <= COLUMN_SUM_BYTES)
            break;
    s->threads.block = s->threads.group * s->threads.across;
    s->memory.stages = stage_count(s, device);
    s->memory.scheme = s->memory.stages ? MEMORY_STAGED : MEMORY_PERSISTENT;
    s->memory.converts_again = s->memory.keeps_broadcast = true;
    return true;
}

/* ---- Pipelined rows ---------------------------------------------------------------------------------------------- */

/* Registers per thread and vector for data that persists across rows: column sums and operands that all rows share. 4
   bytes per register; at least 1, because callers divide by it. */
static int64_t lasting_registers(const struct schedule *s) {
    int64_t registers = s->passes.column_sums * s->vectors.width + divide_up(schedule_broadcast_bytes(s), 4);
    return registers ? registers : 1;
}

/* Blocks that share a row and sum columns are as fast with few stages: with more rows in flight, some multiprocessors
   run further ahead of others, and the last ones finish late. */
static int64_t max_stages(const struct schedule *s) {
    return s->passes.column_sums && s->threads.cluster > 1 ? STAGES_MIN : STAGES_MAX;
}

/* Fits the stages into the shared memory that barriers and partial results of pending rows leave. */
static bool fit_stages(struct schedule *s, const struct device *device) {
    int64_t warps = (int64_t)s->threads.block / 32 * s->threads.cluster;
    int64_t room = device->cuda.shared_per_block - BARRIER_BYTES - PIPELINED_OPEN * warps * schedule_partial_bytes(s);
    s->memory.stages = (int)min64(max_stages(s), room / (schedule_row_bytes(s) * s->threads.across));
    return s->memory.stages >= STAGES_MIN;
}

/* Chooses the groups of a block with this number of warps: starts with one group per unit of work and reduces the
   number until the stages fit. */
static bool fit_warps(struct schedule *s, const struct device *device, int64_t warps, int64_t registers) {
    int64_t most = min64(STEPS_MAX, registers / lasting_registers(s)), lanes = 32 * s->threads.cluster;
    int64_t groups = most ? warps / divide_up(s->vectors.per_row, lanes * most) : 0;
    groups = min64(groups, s->threads.cluster > 1 ? 1 : divide_up(s->vectors.strips, device->cuda.multiprocessors));
    for (; groups > 0; groups--) {
        s->memory.steps = (int)divide_up(s->vectors.per_row, lanes * (warps / groups));
        s->threads.group = (int)(32 * divide_up(s->vectors.per_row, lanes * s->memory.steps));
        s->threads.across = (int)groups;
        s->threads.block = s->threads.group * s->threads.across;
        if (fit_stages(s, device))
            return true;
    }
    return false;
}

/* Half the warps with twice the registers each are faster if these suffice; samples need some, too. */
static bool fit_pipelined(struct schedule *s, const struct device *device) {
    if (device->cuda.major != 9)
        return fit_warps(s, device, PIPELINED_WARPS, LASTING_FEWER);
    return (s->rows->sampled < 0 && fit_warps(s, device, PIPELINED_WARPS / 2, 2 * LASTING_REGISTERS)) ||
           fit_warps(s, device, PIPELINED_WARPS, LASTING_REGISTERS);
}

/* At least two blocks share rows whose columns are summed: these sums would leave a single block few registers for the
   rest. */
static bool map_pipelined(struct schedule *s, const struct device *device) {
    s->memory.scheme = MEMORY_PIPELINED;
    s->memory.steps = 1; /* as in copies, until the number is known */
    bool has_passes = s->passes.count == 2 && s->passes.closed == 1 && s->passes.storing == 1;
    bool has_rows = s->vectors.per_row > 0 && s->vectors.strips > 0;
    if (!has_passes || s->unaligned.most || !has_rows || schedule_calculates_in_double(s) ||
        !schedule_copies_rows(s, device))
        return false;
    s->threads.cluster = s->passes.column_sums ? 2 : 1;
    for (; s->threads.cluster <= min64(CLUSTER_MAX, device->cuda.cluster_most); s->threads.cluster *= 2)
        if (fit_pipelined(s, device)) {
            s->memory.keeps_broadcast = true;
            s->memory.warps_per_group = s->passes.column_sums ? s->threads.group / 32 : 1;
            return true;
        }
    s->threads.cluster = 1;
    s->memory.stages = 0;
    return false;
}

/* Long rows go through shared memory if they can. Persistent mapping runs again at the end, because the pipelined
   attempt has overwritten its results. */
static bool map_summed(struct schedule *s, const struct device *device) {
    bool is_short = map_persistent(s, device) && s->threads.cluster == 1;
    return is_short || map_pipelined(s, device) || map_persistent(s, device);
}

/* Keeps rows in registers, one group of adjacent threads per row; long rows are shared by the blocks of a cluster. Half
   the registers that a thread may use lets two blocks be resident, one loading while the other computes. */
static bool map_registers(struct schedule *s, const struct device *device) {
    s->memory.scheme = MEMORY_REGISTERS;
    int64_t widest = device->cuda.major >= 9 && s->passes.count > 1 ? 512 : THREADS_MAX, most = max_steps(s);
    if (!fit_rows(s, device, widest, most > 4 ? most / 2 : most) && !fit_rows(s, device, 512, most))
        return false;
    s->threads.block = s->threads.group <= 32 ? SHORT_THREADS : s->threads.group;
    s->threads.across = s->threads.block / s->threads.group;
    s->memory.keeps_broadcast = schedule_broadcast_bytes(s) * s->memory.steps <= BROADCAST_BYTES;
    s->memory.converts_again = s->memory.steps * s->vectors.width > 32 || schedule_resident_bytes(s) > 16;
    s->memory.keeps_weights = !s->memory.converts_again && !schedule_calculates_in_double(s);
    return true;
}

/* ---- Interleaved rows -------------------------------------------------------------------------------------------- */

/* For interleaved rows that are only reduced: chooses tiles that are narrow enough to occupy all multiprocessors. */
static bool map_narrow(struct schedule *s, const struct device *device) {
    int64_t most = min64(KEPT_BYTES / schedule_resident_bytes(s), STEPS_MAX);
    int64_t busy = device->cuda.multiprocessors * 3 / 4;
    s->threads.across = power_of_two_from(s->vectors.strips, ACROSS_MAX);
    while (s->threads.across > 4 && divide_up(s->vectors.strips, s->threads.across) < busy)
        s->threads.across /= 2;
    s->threads.group = power_of_two_from(s->vectors.per_row, NARROW_THREADS / s->threads.across);
    while (divide_up(s->vectors.per_row, s->threads.group) > most && s->threads.group * s->threads.across < THREADS_MAX)
        s->threads.group *= 2;
    s->threads.block = s->threads.group * s->threads.across;
    s->memory.steps = steps_of(s, s->threads.group);
    s->memory.converts_again = true;
    return s->memory.steps <= most && s->threads.block >= SHORT_THREADS;
}

/* Keeps interleaved rows in registers: few threads per row, as long as they can hold it and blocks have SHORT_THREADS.
   `across` grows last, beyond the number of strips: surplus groups are idle, and a block still has SHORT_THREADS. */
static bool map_columns(struct schedule *s, const struct device *device) {
    s->memory.scheme = MEMORY_COLUMNS;
    if (s->passes.count == 1 && s->passes.storing < 0 && map_narrow(s, device))
        return true;
    int64_t most = KEPT_BYTES / schedule_resident_bytes(s);
    s->threads.across = power_of_two_from(s->vectors.strips, ACROSS_MAX);
    int64_t group = power_of_two_from(s->vectors.per_row, THREADS_MAX / s->threads.across);
    int64_t steps = steps_of(s, group);
    if (steps > most || steps > STEPS_MAX)
        return false;
    while (steps * 2 <= 4 && steps * 2 <= most && group * s->threads.across > SHORT_THREADS) {
        steps *= 2;
        group /= 2;
    }
    while (group * s->threads.across < SHORT_THREADS)
        s->threads.across *= 2;
    s->threads.group = (int)group;
    s->memory.steps = (int)steps;
    s->threads.block = s->threads.group * s->threads.across;
    s->memory.converts_again = true;
    return true;
}

/* Keeps interleaved rows in the shared memory of a block or cluster, if that occupies most multiprocessors. Half a
   cache line allows smaller clusters than a full line: 25 us instead of 37 for 128x2048x7x7 (H200). For two operands,
   only full lines were measured. */
static bool map_columns_shared(struct schedule *s, const struct device *device) {
    int64_t multiprocessors = device->cuda.multiprocessors;
    s->memory.scheme = MEMORY_COLUMNS_SHARED;
    /* Every pass adds numbers per row: more than two passes need too many registers. */
    if (s->passes.count != 2 || s->vectors.per_row == 0 || !schedule_copies_vectors(s, device))
        return false;
    s->threads.block = SHARED_THREADS;
    s->threads.across =
        power_of_two_from(s->vectors.strips, schedule_resident_bytes(s) <= 16 ? LINE_VECTORS / 2 : LINE_VECTORS);
    s->threads.group = s->threads.block / s->threads.across;
    int64_t partials = s->vectors.width * s->threads.across * schedule_partial_bytes(s);
    int clusters = (int)min64(CLUSTER_MAX, device->cuda.cluster_most);
    for (s->threads.cluster = 1; s->threads.cluster <= clusters; s->threads.cluster *= 2) {
        s->memory.steps = (int)divide_up(s->vectors.per_row, (int64_t)s->threads.group * s->threads.cluster);
        int64_t blocks = divide_up(s->vectors.strips, s->threads.across) * s->threads.cluster;
        int64_t exchanged = (s->threads.block / 32 + 2 * s->threads.cluster) * partials;
        int64_t bytes = schedule_row_bytes(s) * s->threads.across + exchanged;
        bool is_busy = blocks * 4 >= divide_up(blocks, multiprocessors) * multiprocessors * 3;
        if (is_busy && bytes + OTHER_BYTES <= device->cuda.shared_per_block)
            break;
    }
    s->memory.stages = 1;
    s->memory.unroll = 4;
    return s->threads.cluster <= clusters;
}

/* ---- Streamed ---------------------------------------------------------------------------------------------------- */

/* Bytes that a thread requests with one vector of each operand that elements read. */
static int64_t streamed_bytes(const struct schedule *s) {
    int64_t bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct operand *operand = &s->nest.operands[k];
        if (schedule_uses_memory(s, k) && !operand->is_store && rows_find(s->rows, operand->value)->spans &&
            !schedule_is_steady(s, k))
            bytes += schedule_vector_bytes(s, k);
    }
    return bytes ? bytes : 1;
}

/* Moments and weights of interleaved rows are computed from all elements that a thread has in flight, and cost less per
   element the more these are. */
static int stream_unroll(const struct schedule *s) {
    int64_t unroll = min64(4, STREAMED_BYTES * (s->nest.is_columns ? 2 : 1) / streamed_bytes(s));
    if (s->nest.is_columns && s->passes.count > 2)
        unroll = min64(unroll, 2);
    return unroll < 1 ? 1 : (int)unroll;
}

static void stream_columns(struct schedule *s) {
    s->threads.block = STREAM_THREADS;
    s->threads.across = power_of_two_from(s->vectors.strips, ACROSS_MAX);
    s->threads.group = s->threads.block / s->threads.across;
    while (s->threads.group > 1 && s->threads.group / 2 >= s->vectors.per_row) {
        s->threads.group /= 2;
        s->threads.across *= 2;
    }
}

/* Segmented rows, all of them or a divisor of their number: threads are arranged like memory, first those of one
   segment of each row, then those of the next segments. A row has one step per segment. False if cache lines would not
   be read whole. */
static bool stream_segmented(struct schedule *s) {
    int64_t segment = schedule_segment(s), rows = s->nest.extents[s->nest.row_dims - 1];
    bool is_narrow = s->vectors.width <= 2 && streamed_bytes(s) <= NARROW_BYTES;
    int64_t most = is_narrow ? SEGMENTED_THREADS_NARROW : SEGMENTED_THREADS;
    for (int64_t across = rows; segment > 0 && across > 0; across--) {
        int64_t side_by_side = segment * across, lanes = most / side_by_side;
        while (lanes > 0 && side_by_side * lanes % 32 != 0)
            lanes--;
        if (rows % across != 0 || lanes == 0 || (across < rows && side_by_side < LINE_VECTORS))
            continue;
        s->threads = (struct threads){.group = (int)lanes,
                                      .across = (int)side_by_side,
                                      .cluster = 1,
                                      .block = (int)(side_by_side * lanes),
                                      .segment = (int)segment};
        s->memory.unroll = stream_unroll(s);
        s->vectors.per_row /= segment;
        return true;
    }
    return false;
}

/* Larger blocks if strips are few: then more of a row's loads are in flight. */
void schedule_map_streamed(struct schedule *s, const struct device *device) {
    bool is_few = s->vectors.strips < 3 * device->cuda.multiprocessors;
    s->memory = (struct memory){.scheme = MEMORY_STREAMED, .unroll = stream_unroll(s)};
    s->threads = (struct threads){.across = 1, .cluster = 1};
    if (stream_segmented(s))
        return;
    if (s->nest.is_columns) {
        stream_columns(s);
        return;
    }
    s->threads.block = s->threads.group = is_few ? 2 * STREAM_THREADS : STREAM_THREADS;
    while (s->passes.storing < 0 && s->passes.count == 1 && s->memory.unroll < 8 &&
           s->vectors.per_row >= 8 * s->memory.unroll * s->threads.group)
        s->memory.unroll *= 2; /* reads only */
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* Interleaved rows that go through shared memory or are streamed compute their statistics in one pass. They have no
   column sums here: their columns are other rows. */
bool schedule_map_resident(struct schedule *s, const struct device *device, bool must_stream) {
    if (s->nest.is_columns && s->passes.column_sums)
        return false;
    if (s->nest.is_columns)
        return must_stream ? map_columns_shared(s, device) : map_columns(s, device);
    if (must_stream)
        return map_pipelined(s, device);
    return s->passes.column_sums ? map_summed(s, device) : map_registers(s, device);
}
