/* attention_bwd_rows: per query, delta (dO O) and the statistics as the following kernels need them: +inf for a query
   without gradient, so that its P is 0
   Tile      a warp computes one row
   Params    sum_t, features */

constexpr bool KV_RESIDENT = false;

#include "core/async.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/scores.cuh"
#include "attention/element_scales.cuh"

/* An element times its scale, for row or block scales. */
template <class T, class S> DEVICE sum_t scaled(T x, const S &scales, int row, int column) {
    if constexpr (same<S, no_scales>::value)
        return as<sum_t>::of(x);
    else
        return as<sum_t>::of(x) * scales.of(row, column);
}

template <class P> DEVICE void compute_row(const P &a, i64 line) {
    const i64 query = line % a.queries, head = line / a.queries % a.heads, batch = line / a.queries / a.heads;
    sum_t stats = hidden_score();
    if (query < lengths_of(a, batch).queries)
        stats = as<sum_t>::of(a.stats[batch * a.stats_batch + head * a.stats_head + query * a.stats_row]);
    const bool has_gradient = stats != hidden_score();
    sum_t dot = 0;
    if (has_gradient) {
        const o_t *o = a.o + batch * a.o_batch + head * a.o_head + query * a.o_row;
        const d_o_t *d_o = a.d_o + batch * a.d_o_batch + head * a.d_o_head + query * a.d_o_row;
        const auto of_o = o_scales(a, batch, head);
        const auto of_d_o = d_o_scales(a, batch, head);
        for (i64 column = lane(); column < a.value_depth; column += 32)
            dot += scaled(o[column * a.o_column], of_o, (int)query, (int)column) *
                   scaled(d_o[column * a.d_o_column], of_d_o, (int)query, (int)column);
        dot *= dot_descale(a);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        dot += __shfl_xor_sync(0xffffffffu, dot, mask);
    if (lane() == 0)
        a.dots[line] = dot, a.shifts[line] = has_gradient ? to_score_units(stats) : -hidden_score();
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attention_bwd_rows(const __grid_constant__ arguments a) {
    for (i64 line = (i64)blockIdx.x * WARPS + threadIdx.x / 32; line < a.lines; line += (i64)gridDim.x * WARPS)
        compute_row(a, line);
}
