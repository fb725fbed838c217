/* attention_bwd_sink: dSink[h] = -sum over batches and queries of e^(sink - stats) dO O
   Tile      a block computes one head: each thread sums every THREADS-th row, followed by a pairwise reduction
   Params    sum_t, features */

constexpr bool KV_RESIDENT = false;

#include "core/async.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/scores.cuh"

static_assert((THREADS & (THREADS - 1)) == 0, "sums are added in pairs");

template <class P> DEVICE void compute_head(const P &a, i64 head) {
    __shared__ sum_t sums[THREADS];
    const sum_t sink = to_score_units(as<sum_t>::of(a.sink[head * a.sink_step]));
    sum_t sum = 0;
    for (i64 i = threadIdx.x; i < a.batches * a.queries; i += THREADS) {
        const i64 line = (i / a.queries * a.heads + head) * a.queries + i % a.queries;
        const sum_t distance = sink - a.shifts[line],
                    p = sink == hidden_score() ? (sum_t)0 : power(distance > 0 ? (sum_t)0 : distance);
        sum -= p == 0 ? (sum_t)0 : p * a.dots[line];
    }
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        a.dsink[head * a.dsink_step] = from<dsink_t>::number(sums[0]);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attention_bwd_sink(const __grid_constant__ arguments a) {
    compute_head(a, blockIdx.x);
}
