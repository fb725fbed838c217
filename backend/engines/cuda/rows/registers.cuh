/* registers: elements in, reductions of rows, elements out; rows in registers                        any chip, any type
   Formula   printed from the graph as passes: pass<P>::elements takes vectors of WIDTH neighbours into the row's
             accumulators and, in the last one, stores results; pass<P>::close makes numbers of the row of them
   Tile      GROUP threads of each of CLUSTER blocks have a row, ACROSS groups in a block
   Memory    a thread loads its STEPS vectors once, all before its first arithmetic, and keeps them through all passes
   Unaligned rows that begin anywhere in memory, but alike in all operands: vectors begin where 16 bytes do, behind a
             head, and each thread has one element of head or tail. What all rows read is loaded across such bytes and
             shifted, up to MARGIN elements before its end. In the first GUARANTEED steps every thread has a vector
   Broadcast KEEPS_BROADCAST: what all rows read (scale, bias) is loaded once; else each pass loads it
   L2        groups ask for the row of a block that runs PREFETCH_DISTANCE tiles later; PREFETCHES_EARLY: and for what
             they read first, before the launch before has ended
   Convert   CONVERTS_AGAIN: between passes; else weights of softmax stay, as an exponential costs more than a register
   Samples   sums for a mean and a variance, where one pass takes both, are around the mean of SAMPLES of the row's
             elements
   Limits    WIDTH divides the extent that vectors lie along, but for UNALIGNED; GROUP is a power of two, or whole
             warps; CLUSTER > 1 wants one group of whole warps in a block
   Params    WIDTH GROUP ACROSS CLUSTER THREADS MIN_BLOCKS STEPS PASSES IS_WHOLE UNALIGNED MARGIN GUARANTEED SAMPLES
             KEEPS_BROADCAST CONVERTS_AGAIN PREFETCH_DISTANCE PREFETCHES_EARLY TRIGGER position
   Measured  docs/kernels.md, with what was tried */

static_assert(!COLUMNS && COLUMN_SUMS == 0 && STEPS > 0, "rows in registers, which nobody sums");

#include "rows/persistent_tiles.cuh"

#include "rows/resident.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows_registers(const __grid_constant__ arguments a) {
    const int rank = CLUSTER > 1 ? (int)(blockIdx.x % CLUSTER) : 0;
    const i64 step = gridDim.x / CLUSTER;
    i64 tile = blockIdx.x / CLUSTER;
    if constexpr (PREFETCHES_EARLY)
        prefetch_strip(a, tile, rank);
    begin_launch<TRIGGER>();
    loaded in;
    broadcast all[OWN];
    if constexpr (CLUSTER > 1)
        arrive_at_cluster();
    if constexpr (KEEPS_BROADCAST)
        load_all_broadcast(all, a, span_of(a, tile, rank, 0));
    for (int buffer = 0; tile < a.jobs; tile += step, buffer ^= 1) { // once, but for more tiles than a grid has blocks
        const span s = span_of(a, tile, rank, buffer);
        const base at = base_of(a, s.inside ? s.strip : 0);
        row now[1];
        load_strip(in, a, s);
        if constexpr (PREFETCH_DISTANCE > 0)
            prefetch_strip(a, tile + PREFETCH_DISTANCE, rank);
        await_cluster_once(tile);
        open_rows(now, in.numbers, a, at);
        run_passes<0>(s, in.vectors, all, now, nullptr, a, at);
        if (is_leader(s))
            store_rows(now, a, at);
    }
}
