/* join_splits: combines the partial results of few rows with many splits each                        any chip, any type
   Used with streamed.cuh. JOINED: the partial results of this pass become one per row, which the blocks of the next
   pass read; -1: those of all CLOSED passes become numbers of the rows, which are stored
   Tile      GROUP threads per row, ACROSS groups per block
   Limits    GROUP is a multiple of the warp size
   Params    GROUP ACROSS THREADS CLOSED JOINED TRIGGER position */

static_assert(WIDTH == 1 && !COLUMNS && COLUMN_SUMS == 0, "rows are not interleaved, whatever their original layout");

constexpr int CLUSTER = 1, STEPS = 0, UNALIGNED = 0, GUARANTEED = 0;
constexpr bool IS_WHOLE = false;

#include "rows/strip.cuh"

#include "rows/reduce_rows.cuh"
template <class P> DEVICE void reduce_strip(typename P::total (&sum)[1], const span &s) { reduce_row<P>(sum[0], s); }

#include "rows/splits.cuh"

template <int P> DEVICE void close_passes(row *now, const span &s, const arguments &a) {
    if constexpr (P < CLOSED) {
        typename pass<P>::total sum[1];
        gather<P>(sum, s, a);
        pass<P>::close(sum[0], now[0], a);
        close_passes<P + 1>(now, s, a);
    }
}

template <int P> DEVICE void join_pass(const span &s, const arguments &a) {
    if constexpr (P >= 0) {
        typename pass<P>::total sum[1];
        gather<P>(sum, s, a);
        leave<P>(sum, s, a);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) rows_join_splits(const __grid_constant__ arguments a) {
    begin_launch<TRIGGER>();
    for (i64 tile = blockIdx.x, buffer = 0; tile < a.jobs; tile += gridDim.x, buffer ^= 1) {
        const span s = span_of(a, tile, 0, (int)buffer);
        if constexpr (JOINED >= 0) {
            join_pass<JOINED>(s, a);
        } else {
            const base at = base_of(a, s.inside ? s.strip : 0);
            row now[1];
            row_inputs numbers;
            load_row_inputs(numbers, a, at);
            open_rows(now, numbers, a, at);
            close_passes<0>(now, s, a);
            if (is_leader(s))
                store_rows(now, a, at);
        }
    }
}
