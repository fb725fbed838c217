/* pipelined: elements in, reductions of rows, elements out, with overlapping rows                       sm_90 and newer
   Formula   emitted from the graph as for registers.cuh, in two passes: pass<0> accumulates the elements into the row's
             reductions, pass<1> stores results
   Tile      GROUP threads of each of CLUSTER blocks share a row. A block has ACROSS groups, which do not wait for each
             other. A warp has STEPS * 32 adjacent vectors of every row, lane i vectors i, i + 32, ...
   Pipeline  warp     | 0 of row 1 | 0 of row 2 | 1 of row 1 | 0 of row 3 | 1 of row 2 | ...
             partials              | row 1 joins            | row 2 joins            |
             pass<1> of a row runs after pass<0> of the next one, so that no warp waits while partial results combine
   Memory    WARPS_PER_STAGE warps share STAGES stages of SLOT_VECTORS vectors in shared memory, KEPT_BYTES each. TMA
             loads their part of the rows, STAGES - 1 rows early; the last warp to finish a stage refills it and
             prefetches the row after that to L2. Operands that all rows share (scale) stay in registers
   L2        PREFETCHES_EARLY: the first rows are prefetched before the preceding launch ends, because some of its
             blocks finish long before others
   Reduce    shuffles within a warp; each warp writes its partial result to the shared memory of every block of the
             cluster, and each warp combines them, in the order of the row
   Numbers   per-row inputs (mean, scale) are loaded for 32 rows at a time, one per lane, and 32 rows early
   Columns   COLUMN_SUMS sums over rows for every position in a row stay in the registers of a cluster, which writes
             them to the workspace; another launch adds up the clusters
   Limits    WIDTH divides the extent along which vectors are loaded; GROUP is a multiple of the warp size; CLUSTER > 1
             requires a single group
   Params    WIDTH GROUP ACROSS CLUSTER THREADS MIN_BLOCKS STEPS PASSES IS_WHOLE STAGES WARPS_PER_STAGE SLOT_VECTORS
             KEPT_BYTES SAMPLES PREFETCHES_EARLY TRIGGER COLUMN_SUMS position
   Measured  docs/kernels.md, including the alternatives that were tried */

constexpr int WARPS = GROUP / 32;                       // per group
constexpr int PARTIALS = WARPS * CLUSTER;               // per row
constexpr int FILLERS = THREADS / 32 / WARPS_PER_STAGE; // sets of warps with their own stages
constexpr int STAGE_BYTES = SLOT_VECTORS * KEPT_BYTES;
/* Rows with pending partial results. A warp that writes those of row r has processed all of row r - 2, so no other warp
   is still combining row r - 3. */
constexpr int OPEN = 4;

static_assert(!COLUMNS && GROUP % 32 == 0 && THREADS == GROUP * ACROSS, "a row is whole warps");
static_assert(CLUSTER == 1 || ACROSS == 1, "blocks that share a row have no other rows");
static_assert(COLUMN_SUMS == 0 || ACROSS == 1, "one group holds the sums of a column");
static_assert(PASSES == 2 && pass<0>::CLOSES && !pass<1>::CLOSES, "one pass for reductions, one for results");
static_assert(SLOT_VECTORS == STEPS * WARPS_PER_STAGE * 32, "a stage has the vectors of the warps that share it");
static_assert(WARPS % WARPS_PER_STAGE == 0, "warps that share stages are of one group");

#include "rows/elements.cuh"

using total = pass<0>::total;

extern __shared__ __align__(128) char s_stages[]; // [FILLERS][STAGES] of STAGE_BYTES
__shared__ u64 s_arrived[FILLERS][STAGES];        // a filler's part of a row has arrived
__shared__ u32 s_readers[FILLERS][STAGES];        // warps that have finished reading
__shared__ u64 s_closed[ACROSS][OPEN];            // all partial results of a row have arrived
__shared__ total s_partials[ACROSS][OPEN][PARTIALS];

/* Position of a thread in the hierarchy. */
struct worker {
    int lane, warp, filler, group; // of the warp, of the filler, of the block, of the block
    int part;                      // part of a row that the warp has
    i64 stride;                    // distance between its rows
};

DEVICE position vector_of(const worker &w, int step) { return (w.part * STEPS + step) * 32 + w.lane; }
DEVICE bool has_vector(const worker &w, const arguments &a, int step) {
    return IS_WHOLE || vector_of(w, step) < a.vectors;
}
DEVICE char *stage_of(const worker &w, int stage) { return s_stages + (w.filler * STAGES + stage) * STAGE_BYTES; }

/* The filler's part of a row: its first vector and their number. The last fillers may have none. */
DEVICE position first_of(const worker &w) { return w.part / WARPS_PER_STAGE * SLOT_VECTORS; }
DEVICE position vectors_of(const worker &w, const arguments &a) {
    const position rest = (position)a.vectors - first_of(w);
    return IS_WHOLE ? SLOT_VECTORS : rest < 0 ? 0 : rest < SLOT_VECTORS ? rest : SLOT_VECTORS;
}

/* One lane issues the copy. */
DEVICE void fill_stage(const worker &w, const arguments &a, i64 strip, int stage) {
    if (w.lane == 0 && strip < a.strips)
        copy_kept(stage_of(w, stage), &s_arrived[w.filler][stage], a, base_of(a, strip), first_of(w), vectors_of(w, a));
}

/* Prefetches the same part to L2, even before the launch that writes it has ended. */
DEVICE void prefetch_part(const worker &w, const arguments &a, i64 strip) {
    if (w.lane == 0 && strip < a.strips && vectors_of(w, a) > 0)
        prefetch_kept(a, base_of(a, strip), first_of(w), vectors_of(w, a));
}

/* The last warp to finish a stage refills it with the row that is STAGES rows later. */
DEVICE void release_stage(const worker &w, const arguments &a, i64 strip, int stage) {
    loads_before_copies();
    __syncwarp(); // all lanes have read the stage
    if (WARPS_PER_STAGE > 1 && (w.lane > 0 || !is_last(&s_readers[w.filler][stage], WARPS_PER_STAGE)))
        return;
    fill_stage(w, a, strip + STAGES * w.stride, stage);
    prefetch_part(w, a, strip + (STAGES + 1) * w.stride);
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

DEVICE void store_partial(const worker &w, const total &sum, u32 turn) {
    u64 *closed = &s_closed[w.group][turn % OPEN];
    total *own = &s_partials[w.group][turn % OPEN][w.part];
    if constexpr (CLUSTER > 1) {
        if (w.lane < CLUSTER)
            send_to_peer(own, closed, w.lane, sum);
        if (threadIdx.x == 0)
            expect_bytes(closed, sizeof(total) * PARTIALS);
    } else if (w.lane == 0) {
        *own = sum;
        count_arrival(closed);
    }
}

DEVICE total join_partials(const worker &w, u32 turn) {
    constexpr int LANES = PARTIALS > 16 ? 32 : PARTIALS > 8 ? 16 : PARTIALS > 4 ? 8 : PARTIALS > 2 ? 4 : 2;
    await_arrival(&s_closed[w.group][turn % OPEN], turn / OPEN & 1);
    constexpr int EACH = (PARTIALS + LANES - 1) / LANES;
    total sums[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int part = i * LANES + w.lane % LANES;
        sums[i] = part < PARTIALS ? s_partials[w.group][turn % OPEN][part] : pass<0>::none();
    }
#pragma unroll
    for (int left = EACH; left > 1; left = (left + 1) / 2)
#pragma unroll
        for (int i = 0; i + (left + 1) / 2 < left; i++)
            sums[i] = pass<0>::joined(sums[i], sums[i + (left + 1) / 2]);
    return pass<0>::of_lanes<1, LANES / 2>(sums[0]);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

template <class P>
DEVICE void accumulate(typename P::accumulators (&sums)[1], const worker &w, const char *stage, const broadcast *all,
                       const row &now, column *columns, const arguments &a, const base &at) {
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (!has_vector(w, a, step))
            continue;
        kept values;
        read_kept(values, stage, (w.warp * STEPS + step) * 32 + w.lane);
        elements<P, 1>(&values, all + step, nullptr, &now, sums, columns + step, a, at, vector_of(w, step));
    }
}

/* ---- Sums of columns --------------------------------------------------------------------------------------------- */

DEVICE void store_columns(const column (&columns)[STEPS], const worker &w, const arguments &a) {
#pragma unroll
    for (int i = 0; i < COLUMN_SUMS * STEPS; i++)
        if (has_vector(w, a, i % STEPS))
            store_column(i / STEPS, columns[i % STEPS].at[i / STEPS], a, 0, vector_of(w, i % STEPS));
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

DEVICE void make_barriers() {
    if (threadIdx.x < FILLERS * STAGES) {
        make_arrival(&s_arrived[0][threadIdx.x], 1);
        s_readers[0][threadIdx.x] = 0;
    }
    if (threadIdx.x < ACROSS * OPEN)
        make_arrival(&s_closed[0][threadIdx.x], CLUSTER > 1 ? 1 : PARTIALS);
    if constexpr (CLUSTER > 1) {
        arrive_at_cluster();
        await_cluster();
    } else {
        __syncthreads();
    }
}

DEVICE worker this_worker() {
    worker w;
    w.lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0); // marks it as uniform within the warp for the compiler
    w.warp = warp % WARPS_PER_STAGE;
    w.filler = warp / WARPS_PER_STAGE;
    w.group = warp / WARPS;
    w.part = (CLUSTER > 1 ? (int)(blockIdx.x % CLUSTER) : 0) * WARPS + warp % WARPS;
    w.stride = (i64)(gridDim.x / CLUSTER) * ACROSS;
    return w;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows_pipelined(const __grid_constant__ arguments a) {
    make_barriers();
    const worker w = this_worker();
    i64 strip = (i64)(blockIdx.x / CLUSTER) * ACROSS + w.group, behind = 0;
    if (PREFETCHES_EARLY && w.warp == 0)
        for (int stage = 0; stage < STAGES; stage++)
            prefetch_part(w, a, strip + stage * w.stride);
    begin_launch<TRIGGER>();
    // of 32 rows, one per lane; loaded before the rows, so as not to wait for them
    row_inputs numbers, next_numbers;
    if (strip + w.lane * w.stride < a.strips)
        load_row_inputs(next_numbers, a, base_of(a, strip + w.lane * w.stride));
    if (w.warp == 0)
        for (int stage = 0; stage < STAGES; stage++)
            fill_stage(w, a, strip + stage * w.stride, stage);
    broadcast all[STEPS];
    column columns[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (has_vector(w, a, step))
            load_broadcast(all[step], a, 0, vector_of(w, step));
        clear_column(columns[step]);
    }
    row now, next;
    total sum;
    int stage = 0, stage_behind = 0;
    u32 phase = 0; // of the stages' barriers
    for (u32 turn = 0;; turn++, strip += w.stride) {
        const bool has_row = strip < a.strips;
        total next_sum;
        if (has_row) {
            const base at = base_of(a, strip);
            if (turn % 32 == 0) {
                numbers = next_numbers;
                const i64 later = strip + (32 + w.lane) * w.stride;
                if (later < a.strips)
                    load_row_inputs(next_numbers, a, base_of(a, later));
            }
            open_rows(&next, shuffle_from(numbers, turn % 32), a, at);
            await_arrival(&s_arrived[w.filler][stage], phase);
            pass<0>::accumulators sums[1] = {pass<0>::nothing()};
            accumulate<pass<0>>(sums, w, stage_of(w, stage), all, next, columns, a, at);
            next_sum = pass<0>::of_lanes<1, 16>(pass<0>::finished(sums[0]));
            if constexpr (PARTIALS > 1)
                store_partial(w, next_sum, turn);
        }
        if (turn > 0) {
            const base at = base_of(a, behind);
            if constexpr (PARTIALS > 1)
                sum = join_partials(w, turn - 1);
            pass<0>::close(sum, now, a);
            pass<1>::accumulators none[1];
            accumulate<pass<1>>(none, w, stage_of(w, stage_behind), all, now, columns, a, at);
            if (w.lane == 0 && w.part == 0)
                store_rows(&now, a, at);
            release_stage(w, a, behind, stage_behind);
        }
        if (!has_row)
            break;
        behind = strip;
        stage_behind = stage;
        now = next;
        sum = next_sum;
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        phase ^= stage == 0;
    }
    if constexpr (COLUMN_SUMS > 0)
        store_columns(columns, w, a);
}
