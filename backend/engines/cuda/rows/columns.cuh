/* columns: elements in, reductions of rows, elements out; rows interleaved in memory, in registers   any chip, any type
   Formula   as registers.cuh
   Tile      a strip is WIDTH rows that are adjacent in memory. GROUP threads along the rows' other dims share it, and
             adjacent threads have adjacent strips, ACROSS of them per block
   Memory    a thread loads its STEPS vectors once and holds them through all passes. They stay in their stored type and
             are converted again in each pass
   Limits    WIDTH divides the number of rows; GROUP and ACROSS are powers of two
   Params    WIDTH GROUP ACROSS THREADS MIN_BLOCKS STEPS PASSES IS_WHOLE TRIGGER position */

static_assert(COLUMNS && COLUMN_SUMS == 0 && STEPS > 0, "interleaved rows without column sums");

constexpr int CLUSTER = 1, UNALIGNED = 0, GUARANTEED = 0;
constexpr bool KEEPS_BROADCAST = false, CONVERTS_AGAIN = true;

#include "rows/strip.cuh"

#include "rows/reduce_columns.cuh"
template <class P> DEVICE void reduce_strip(typename P::total (&sum)[WIDTH], const span &s) {
    reduce_columns<P>(sum, s);
}

#include "rows/passes.cuh"

#include "rows/resident.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows_columns(const __grid_constant__ arguments a) {
    begin_launch<TRIGGER>();
    // runs once unless there are more tiles than a grid has blocks
    for (i64 tile = blockIdx.x; tile < a.jobs; tile += gridDim.x) {
        const span s = span_of(a, tile, 0, 0);
        const base at = base_of(a, s.inside ? s.strip : 0);
        row now[WIDTH];
        loaded in;
        load_strip(in, a, s);
        open_rows(now, in.numbers, a, at);
        run_passes<0>(s, in.vectors, nullptr, now, nullptr, a, at);
        if (is_leader(s))
            store_rows(now, a, at);
    }
}
