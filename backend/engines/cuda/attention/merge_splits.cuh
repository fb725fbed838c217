/* attention_merge: combines the partial sums of key splits, in order
   Formula   m = maximum of the m of all splits; sum = sum of sum_i e^(m_i - m), O alike; then the epilogue of
             attention_fwd
   Tile      a warp computes one row. Partial O of splits that saw no key is not read
   Params    sum_t, features */

constexpr bool KV_RESIDENT = false;

#include "core/async.cuh"
#include "core/dependent_launch.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/scores.cuh"
#include "attention/epilogue.cuh"
#include "attention/scales.cuh"

template <class P> DEVICE sum_t rescale_of(const P &a, i64 line, int split, sum_t shift) {
    return power(a.split_max[split * a.lines + line] - shift);
}

template <class P> DEVICE void merge(const P &a, i64 line, largest &amax) {
    const int query = (int)(line % a.queries), splits = (int)a.splits;
    const i64 head = line / a.queries % a.heads, batch = line / a.queries / a.heads;
    const lengths used = lengths_of(a, batch);
    sum_t row_max = hidden_score(), sum = 0;
#pragma unroll 8
    for (int s = 0; s < splits; s++)
        row_max = fmax(row_max, a.split_max[s * a.lines + line]);
    const sum_t shift = row_max == hidden_score() ? (sum_t)0 : row_max;
#pragma unroll 8
    for (int s = 0; s < splits; s++)
        sum += a.split_sum[s * a.lines + line] * rescale_of(a, line, s, shift);
    sum_t factor = end_row(a, batch, head, query, used, row_max, sum, lane() == 0);
    amax.note_row(factor);
    factor *= value_scale_of(a, batch, head) * dropout_scale_of<sum_t>(a);
    if constexpr (HAS_O)
        if (is_ragged(a.o_batch) && query >= used.queries)
            return; /* the row belongs to another entry */
    if constexpr (HAS_O || HAS_AMAX_O)
        for (i64 column = lane(); column < a.value_depth; column += 32) {
            sum_t o = 0;
#pragma unroll 8
            for (int s = 0; s < splits; s++) {
                const sum_t rescale = rescale_of(a, line, s, shift);
                if (rescale != 0)
                    o += a.split_o[(s * a.lines + line) * a.value_depth + column] * rescale;
            }
            amax.note(o * factor);
            if constexpr (HAS_O)
                a.o[batch * a.o_batch + head * a.o_head + query * a.o_row + column * a.o_column] =
                    from<o_t>::number(o * factor * result_scale_of(a));
        }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attention_merge(const __grid_constant__ arguments a) {
    begin_overlapped();
    largest amax{};
    for (i64 line = (i64)blockIdx.x * WARPS + threadIdx.x / 32; line < a.lines; line += (i64)gridDim.x * WARPS)
        merge(a, line, amax);
    amax.store(a);
}
