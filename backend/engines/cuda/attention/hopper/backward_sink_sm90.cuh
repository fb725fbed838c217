/* backward_sink_sm90: dSink[h] = -sum over batch entries and queries of 2^(sink log2(e) - lse2) delta
   Tile      a CTA computes one head: each thread sums every THREADS-th row, followed by a pairwise reduction in a fixed
             order
   Memory    statistics in the layout of backward_rows_sm90
   Dropout   P includes 1 / keep_probability, so it is at most that
   Params    BLOCK_Q THREADS HAS_DROPOUT HAS_DROPOUT_SCALE, types of the sinks */

#include "attention/hopper/keep_probability_sm90.cuh"

static_assert((THREADS & (THREADS - 1)) == 0, "sums are added in pairs");

/* log2 of the largest P of a sink. */
template <class P> DEVICE float max_log2_p(const P &p) {
    const float share = keep_probability_of(p);
    return share > 0 ? -log2f(share) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_sink_sm90(const __grid_constant__ arguments p) {
    __shared__ float sums[THREADS];
    const i64 head = blockIdx.x, rows = p.q_blocks * BLOCK_Q;
    const float sink2 = to_float(p.sink[head * p.sink_step]) * 1.44269504f, max_log2 = max_log2_p(p);
    float sum = 0;
    for (i64 i = threadIdx.x; i < p.batches * rows; i += THREADS) {
        const i64 batch = i / rows, row = i - batch * rows;
        const float *const tile = p.statistics + ((batch * p.heads + head) * p.q_blocks + row / BLOCK_Q) * 2 * BLOCK_Q;
        sum -= exp2_approx(fminf(sink2 - tile[row % BLOCK_Q], max_log2)) * tile[BLOCK_Q + row % BLOCK_Q];
    }
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        p.dsink[head * p.dsink_step] = from<dsink_t>::number(sums[0]);
}
