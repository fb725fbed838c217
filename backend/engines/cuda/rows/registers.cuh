/* registers: elements in, reductions of rows, elements out; rows in registers                        any chip, any type
   Formula   emitted from the graph as passes: pass<P>::elements accumulates vectors of WIDTH adjacent elements into the
             row's accumulators and, in the last pass, stores results; pass<P>::close computes the row's numbers
   Tile      GROUP threads of each of CLUSTER blocks share a row, ACROSS groups per block
   Memory    a thread loads its STEPS vectors once, all before its first arithmetic, and holds them through all passes
   Unaligned rows may have any alignment if it is the same in all operands: vectors begin at multiples of 16 bytes,
             after a head, and each thread has one element of head or tail. Operands that all rows share are loaded
             across 16-byte boundaries and shifted, reading up to MARGIN elements before their end. In the first
             GUARANTEED steps every thread has a vector
   Broadcast KEEPS_BROADCAST: operands that all rows share (scale, bias) are loaded once; otherwise once per pass
   L2        groups prefetch the row of a block that runs PREFETCH_DISTANCE tiles later. PREFETCHES_EARLY: they also
             prefetch what they read first, before the preceding launch ends
   Convert   CONVERTS_AGAIN: in each pass; otherwise softmax weights stay, since an exponential costs more than a
             register
   Samples   sums for a mean and a variance computed in a single pass are taken around the mean of SAMPLES elements of
             the row
   Limits    WIDTH divides the extent along which vectors are loaded, except with UNALIGNED; GROUP is a power of two or
             a multiple of the warp size; CLUSTER > 1 requires one group of whole warps per block
   Params    WIDTH GROUP ACROSS CLUSTER THREADS MIN_BLOCKS STEPS PASSES IS_WHOLE UNALIGNED MARGIN GUARANTEED SAMPLES
             KEEPS_BROADCAST CONVERTS_AGAIN PREFETCH_DISTANCE PREFETCHES_EARLY TRIGGER position
   Measured  docs/kernels.md, including the alternatives that were tried */

static_assert(!COLUMNS && COLUMN_SUMS == 0 && STEPS > 0, "rows in registers without column sums");

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
    // runs once unless there are more tiles than a grid has blocks
    for (int buffer = 0; tile < a.jobs; tile += step, buffer ^= 1) {
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
