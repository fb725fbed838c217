/* streamed: elements in, reductions of rows, elements out; every pass reads the rows from memory     any chip, any type
   Formula   as registers.cuh
   Tile      GROUP threads share a row; COLUMNS: they share a strip of WIDTH rows that are adjacent in memory, and
             adjacent threads have adjacent strips. ACROSS groups per block; UNROLL vectors of a thread at a time
   Pipeline  the next UNROLL vectors are in flight while the current ones are processed
   Segments  rows stored in alternating segments of SEGMENT vectors: a block reads them in memory order. A thread keeps
             its position in the segment, so operands that depend only on it are loaded once
   Splits    rows too few to fill the device are split round-robin, so that all blocks read adjacent memory: one launch
             per pass writes the splits' partial results to the workspace; the next one joins those of the CLOSED
             earlier passes and continues from the end (VECTOR_STEP < 0), which L2 still holds. IS_SINGLE: at most
             UNROLL vectors per thread
   Unaligned as registers.cuh: each thread has one of the UNALIGNED elements in head and tail
   Overlap   OVERLAPS: an odd number of interleaved rows that are only reduced: loads are unaligned, and the last vector
             repeats some rows of the one before. The last row in memory is loaded element by element
   Limits    as registers.cuh and columns.cuh
   Params    WIDTH COLUMNS GROUP ACROSS THREADS MIN_BLOCKS UNROLL PASSES CLOSED SEGMENT IS_SPLIT IS_SINGLE VECTOR_STEP
             UNALIGNED MARGIN OVERLAPS SAMPLES HAS_ROW_STORES TRIGGER position
   Tried     H200: splits as contiguous chunks: forward 3 % slower */

static_assert(COLUMN_SUMS == 0, "column sums need resident rows");

constexpr int CLUSTER = 1, STEPS = 0, GUARANTEED = 0;
constexpr bool IS_WHOLE = false;

#include "rows/strip.cuh"

#include "rows/reduce_columns.cuh"

#include "rows/reduce_rows.cuh"

#include "rows/segmented.cuh"
template <class P> DEVICE void reduce_strip(typename P::total (&sum)[LANES], const span &s) {
    if constexpr (SEGMENT > 0)
        reduce_segmented<P>(sum[0], s);
    else if constexpr (COLUMNS)
        reduce_columns<P>(sum, s);
    else
        reduce_row<P>(sum[0], s);
}

#include "rows/passes.cuh"

#include "rows/splits.cuh"

template <class P>
DEVICE void load_block(typename P::inputs (&in)[UNROLL], const arguments &a, const base &at, position q) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        P::load(in[u], a, at, q + u * VECTOR_STEP);
}

/* The last vectors of a thread, fewer than UNROLL, all requested before one is processed. */
template <class P>
DEVICE void accumulate_rest(typename P::accumulators (&sums)[LANES], const row *now, const broadcast *all,
                            const arguments &a, const base &at, position q, int vectors) {
    typename P::inputs in[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (u < vectors)
            P::load(in[u], a, at, q + u * VECTOR_STEP);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (u < vectors)
            elements<P, 1>(nullptr, all, in + u, now, sums, nullptr, a, at, q + u * VECTOR_STEP);
}

/* Runs all vectors of a thread through one pass. */
template <class P>
DEVICE void accumulate(typename P::accumulators (&sums)[LANES], const span &s, const row *now, const arguments &a,
                       const base &at) {
    constexpr bool IS_REVERSED = VECTOR_STEP < 0;
    const position last = s.inside ? (position)vectors_of(a, s.strip) : 0, ends = (position)vectors_of(a, s.strip) - 1;
    const position advance = UNROLL * GROUP * (IS_SPLIT ? (position)a.splits : 1);
    position i = UNROLL * GROUP * (position)s.split + s.lane;
    typename P::inputs now_in[UNROLL], next_in[UNROLL], unaligned_in[1];
    broadcast all[UNROLL];
    if constexpr (SEGMENT > 0)
        load_steady(all, a, at);
    if constexpr (UNALIGNED > 0)
        if (has_unaligned(a, s))
            P::template load<1>(unaligned_in[0], a, at, s.lane);
    bool is_full = i + (UNROLL - 1) * GROUP < last - OVERLAPS;
    if (is_full)
        load_block<P>(now_in, a, at, IS_REVERSED ? ends - i : i);
    while (is_full) {
        const position q = IS_REVERSED ? ends - i : i;
        i += advance;
        is_full = !IS_SINGLE && i + (UNROLL - 1) * GROUP < last - OVERLAPS;
        if (is_full)
            load_block<P>(next_in, a, at, IS_REVERSED ? ends - i : i);
        elements<P, UNROLL>(nullptr, all, now_in, now, sums, nullptr, a, at, q);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            now_in[u] = next_in[u];
    }
    if constexpr (SEGMENT > 0) {
        if (i < last)
            accumulate_rest<P>(sums, now, all, a, at, IS_REVERSED ? ends - i : i,
                               (int)((last - i + GROUP - 1) / GROUP));
    } else {
        for (int u = 0; u < UNROLL && i < last; u++, i += GROUP) {
            const position q = IS_REVERSED ? ends - i : i;
            typename P::inputs in[1];
            P::template load<WIDTH, OVERLAPS>(in[0], a, at, q);
            elements<P, 1>(nullptr, all, in, now, sums, nullptr, a, at, q);
        }
    }
    if constexpr (UNALIGNED > 0)
        if (has_unaligned(a, s))
            elements<P, 1, 1>(nullptr, nullptr, unaligned_in, now, sums, nullptr, a, at, s.lane);
}

/* Runs the passes of this launch, which follow the passes that earlier launches have reduced. */
template <int P> DEVICE void run_passes(const span &s, row *now, const arguments &a, const base &at) {
    if constexpr (P < PASSES) {
        typename pass<P>::total sum[LANES];
        if constexpr (P < CLOSED) {
            if constexpr (SEGMENT > 0 && !pass<P>::IS_JOINED)
                gather_segmented<P>(sum[0], s, a);
            else
                gather<P>(sum, s, a);
            close<pass<P>>(sum, now, a);
        } else {
            typename pass<P>::accumulators sums[LANES];
            clear<pass<P>>(sums);
            accumulate<pass<P>>(sums, s, now, a, at);
            if constexpr (pass<P>::CLOSES) {
                reduce<pass<P>>(sum, sums, s);
                if constexpr (IS_SPLIT) {
                    if (SEGMENT == 0 || s.across % SEGMENT_VECTORS == 0)
                        leave<P>(sum, s, a);
                } else
                    close<pass<P>>(sum, now, a);
            }
        }
        run_passes<P + 1>(s, now, a, at);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows_streamed(const __grid_constant__ arguments a) {
    begin_launch<TRIGGER>();
    int buffer = 0;
    // runs once unless there are more jobs than a grid has blocks
    for (i64 job = blockIdx.x; job < a.jobs; job += gridDim.x, buffer ^= 1) {
        const i64 split = IS_SPLIT ? divide((u32)job, a.tiles) : 0; // a grid has fewer than 2^31 blocks
        span s = span_of(a, job - split * a.tiles.value, 0, buffer);
        if constexpr (SEGMENT > 0)
            place_segmented(s, a, job - split * a.tiles.value);
        s.split = split;
        base at = base_of(a, s.inside ? s.strip : 0);
        if constexpr (SEGMENT > 0)
            set_place(at, s);
        row now[LANES];
        row_inputs numbers;
        load_row_inputs(numbers, a, at);
        open_rows(now, numbers, a, at);
        run_passes<0>(s, now, a, at);
        if (HAS_ROW_STORES && is_leader(s) && s.split == 0 && (SEGMENT == 0 || s.across % SEGMENT_VECTORS == 0))
            store_rows(now, a, at);
    }
}
