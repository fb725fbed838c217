/* persistent: as registers.cuh, with column sums over rows                                           any chip, any type
   Formula   as registers.cuh, plus COLUMN_SUMS sums over all rows, for each position in a row
   Tile      as registers.cuh; a block iterates over tiles and loads the next one before it processes the current one
   Memory    as registers.cuh. Operands that all rows share stay in registers, and so do the column sums, which a block
             writes to the workspace at its end; another launch adds up the blocks. Vectors stay in their stored type
             and are converted again in each pass
   Unaligned as registers.cuh. The rows of a block have the same alignment, so that their columns do: WIDTH rows are
             between those of adjacent groups, and the number of blocks is a multiple of WIDTH
   Trigger   WHEN_DONE: other blocks on the multiprocessors while columns are summed from registers cost 1 to 4 %
   Limits    as registers.cuh
   Params    WIDTH GROUP ACROSS CLUSTER THREADS MIN_BLOCKS STEPS PASSES IS_WHOLE UNALIGNED MARGIN GUARANTEED SAMPLES
             COLUMN_SUMS PREFETCHES_EARLY TRIGGER position
   Measured  docs/kernels.md, including the alternatives that were tried */

static_assert(!COLUMNS && STEPS > 0, "rows in registers");

constexpr bool KEEPS_BROADCAST = true, CONVERTS_AGAIN = true;

#include "rows/persistent_tiles.cuh"

#include "rows/resident.cuh"

#include "rows/column_sums.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows_persistent(const __grid_constant__ arguments a) {
    const persistent_tiles own = begin_tiles(a);
    const int rank = own.rank;
    i64 tile = own.first;
    loaded in;
    broadcast all[OWN];
    column columns[OWN];
    if constexpr (CLUSTER > 1)
        arrive_at_cluster();
    clear_columns(columns);
    load_strip(in, a, span_of(a, tile, rank, 0));
    load_all_broadcast(all, a, span_of(a, tile, rank, 0));
    for (int buffer = 0; tile < a.jobs; tile += own.step, buffer ^= 1) {
        const span s = span_of(a, tile, rank, buffer);
        const base at = base_of(a, s.inside ? s.strip : 0);
        row now[1];
        loaded mine = in;
        if (tile + own.step < a.jobs)
            load_strip(in, a, span_of(a, tile + own.step, rank, 0));
        await_cluster_once(tile);
        open_rows(now, mine.numbers, a, at);
        run_passes<0>(s, mine.vectors, all, now, columns, a, at);
        if (is_leader(s))
            store_rows(now, a, at);
    }
    end_tiles(columns, rank, a);
}
