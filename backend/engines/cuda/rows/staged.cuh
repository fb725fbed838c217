/* staged: as persistent.cuh, with rows in shared memory                                                 sm_90 and newer
   Formula   as persistent.cuh
   Tile      as persistent.cuh
   Memory    each group has STAGES rows in shared memory: TMA loads a row STAGES - 1 rows early, in vectors of
             KEPT_BYTES, SLOT_VECTORS of them per stage, and every pass reads them there. An element of head or tail is
             in a register
   Pipeline  copy    | row 1 | row 2 | row 3 | ...         arrived[stage]: the group's part of the row has arrived
             threads         | row 1 | row 2 | ...         after a reduction of row n all are done with row n - 1:
                                                           its stage loads row n + STAGES - 1
   Unaligned as persistent.cuh
   Limits    rows are contiguous and a multiple of 16 bytes; otherwise as persistent.cuh
   Params    WIDTH GROUP ACROSS CLUSTER THREADS MIN_BLOCKS STEPS PASSES IS_WHOLE UNALIGNED MARGIN GUARANTEED SAMPLES
             COLUMN_SUMS STAGES STAGES_BEGIN SLOT_VECTORS KEPT_BYTES PREFETCHES_EARLY TRIGGER position
   Tried     all on an H200, gradient of RMS norm of 16384x4096
             two rows in flight per three resident ones: 121 us
             prefetching one more row to L2 after the stages: 102 us instead of 99 */

static_assert(!COLUMNS && STEPS > 0 && STAGES > 1, "one row is processed while another is in flight");

#include "rows/persistent_tiles.cuh"

#include "rows/column_sums.cuh"

__shared__ u64 s_arrived[ACROSS][STAGES];
extern __shared__
    __align__(128) words4 s_stages[]; // STAGES_BEGIN bytes, then [ACROSS][STAGES][SLOT_VECTORS] of KEPT_BYTES

/* A row's numbers, and a thread's element of head or tail. */
struct loaded {
    kept unaligned;
    row_inputs numbers;
};

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

DEVICE char *stage_of(const span &s, int stage) {
    return (char *)s_stages + STAGES_BEGIN + (s.across * STAGES + stage) * (SLOT_VECTORS * KEPT_BYTES);
}

/* One thread of a group issues the copy of the block's part of a row. */
DEVICE void fill_stage(const arguments &a, i64 tile, int rank, int stage) {
    const span s = span_of(a, tile, rank, 0);
    const position first = rank * SLOT_VECTORS;
    const position rest = (position)vectors_of(a, s.strip) - first; // the last blocks may have none
    const position vectors = rest < 0 ? 0 : rest < SLOT_VECTORS ? rest : SLOT_VECTORS;
    if (tile < a.jobs && s.inside && s.lane == 0)
        copy_kept(stage_of(s, stage), &s_arrived[s.across][stage], a, base_of(a, s.strip), first, vectors);
}

/* The stage of the previous row loads the row STAGES - 1 later. */
DEVICE void refill_stage(const span &s, const arguments &a, i64 tile, int stage) {
    if (s.lane == 0)
        loads_before_copies();
    fill_stage(a, tile + (i64)(gridDim.x / CLUSTER) * (STAGES - 1), s.rank, stage == 0 ? STAGES - 1 : stage - 1);
}

DEVICE void load_numbers(loaded &in, const arguments &a, const span &s) {
    const base at = base_of(a, s.inside ? s.strip : 0);
    if constexpr (UNALIGNED > 0)
        if (has_unaligned(a, s))
            load_kept<1>(in.unaligned, a, at, s.lane);
    load_row_inputs(in.numbers, a, at);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

template <class P>
DEVICE void accumulate(typename P::accumulators (&sums)[1], const span &s, const char *stage, kept *unaligned,
                       const broadcast *all, const row *now, column *columns, const arguments &a, const base &at) {
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (!has_vector(a, s, step))
            continue;
        kept values;
        typename P::inputs in[1];
        read_kept(values, stage, step * GROUP + s.lane);
        elements<P, 1>(&values, all + step, in, now, sums, columns + step, a, at, vector_of(s, step));
    }
    if constexpr (UNALIGNED > 0)
        if (has_unaligned(a, s)) {
            typename P::inputs in[1];
            elements<P, 1, 1>(unaligned, all + KEPT, in, now, sums, columns + KEPT, a, at, s.lane);
        }
}

template <int P>
DEVICE void run_passes(const span &s, i64 tile, int stage, kept *unaligned, const broadcast *all, row *now,
                       column *columns, const arguments &a, const base &at) {
    if constexpr (P < PASSES) {
        typename pass<P>::total sum[1];
        typename pass<P>::accumulators sums[1];
        clear<pass<P>>(sums);
        accumulate<pass<P>>(sums, s, stage_of(s, stage), unaligned, all, now, columns, a, at);
        if constexpr (pass<P>::CLOSES)
            reduce<pass<P>>(sum, sums, s);
        if constexpr (P == 0)
            refill_stage(s, a, tile, stage); // all threads are done with the previous row
        if constexpr (pass<P>::CLOSES)
            close<pass<P>>(sum, now, a);
        run_passes<P + 1>(s, tile, stage, unaligned, all, now, columns, a, at);
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows_staged(const __grid_constant__ arguments a) {
    const persistent_tiles own = begin_tiles(a);
    const int rank = own.rank;
    i64 tile = own.first;
    loaded in;
    broadcast all[OWN];
    column columns[OWN];
    if constexpr (CLUSTER > 1)
        arrive_at_cluster();
    clear_columns(columns);
    if (threadIdx.x < ACROSS * STAGES)
        make_arrival(&s_arrived[0][threadIdx.x]);
    __syncthreads();
    for (int stage = 0; stage < STAGES - 1; stage++)
        fill_stage(a, tile + stage * own.step, rank, stage);
    load_numbers(in, a, span_of(a, tile, rank, 0));
    load_all_broadcast(all, a, span_of(a, tile, rank, 0));
    int stage = 0;
    u32 phase = 0; // of the stages' barriers
    for (int buffer = 0; tile < a.jobs; tile += own.step, buffer ^= 1) {
        const span s = span_of(a, tile, rank, buffer);
        const base at = base_of(a, s.inside ? s.strip : 0);
        row now[1];
        loaded mine = in;
        if (tile + own.step < a.jobs)
            load_numbers(in, a, span_of(a, tile + own.step, rank, 0));
        await_cluster_once(tile);
        const int current = stage;
        if (s.inside)
            await_arrival(&s_arrived[s.across][stage], phase);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        phase ^= stage == 0;
        open_rows(now, mine.numbers, a, at);
        run_passes<0>(s, tile, current, &mine.unaligned, all, now, columns, a, at);
        if (is_leader(s))
            store_rows(now, a, at);
    }
    end_tiles(columns, rank, a);
}
