/* combine_partials: totals of the reductions after a product               sums of float or double
   Formula   the partial sums that tiles stored in the workspace, [COUNT][entries][lines][along], are combined over the
             lines: first each thread's share, then in pairs, so that every run gives the same bits; conclude() is
             generated
   Tile      a block computes LANES adjacent totals of one entry; THREADS / LANES threads share the lines of each.
             Partial sums are in L2, and latency dominates: so each thread keeps many lines in flight
   Params    THREADS LANES SPAN_IS_ROW reductions index total_t conclude */

constexpr int SHARES = THREADS / LANES,
              LINES_IN_FLIGHT = 16 / ((reductions::COUNT + 1) / 2); /* lines in flight per thread */
static_assert(THREADS % LANES == 0 && (SHARES & (SHARES - 1)) == 0, "shares are combined in pairs");

extern "C" __global__ void __launch_bounds__(THREADS, 1) combine_partials(const __grid_constant__ arguments p) {
    __shared__ total_t s_shares[reductions::COUNT][THREADS];
    const u32 entry = divide(blockIdx.x, p.blocks), lane = threadIdx.x % LANES, share = threadIdx.x / LANES;
    const i64 at = (i64)(blockIdx.x - entry * p.blocks.value) * LANES + lane;
    const float *from = p.partials + entry * p.lines * p.along + at;
    total_t total[reductions::COUNT];
    let_next_kernel_start(); /* it waits for this kernel, as this one does for the tiles */
    wait_for_previous_kernel();
#pragma unroll
    for (int t = 0; t < reductions::COUNT; ++t)
        total[t] = reductions::none(t);
    for (i64 first = share; first < p.lines && at < p.along; first += LINES_IN_FLIGHT * SHARES) {
        total_t part[LINES_IN_FLIGHT][reductions::COUNT];
#pragma unroll
        for (int i = 0; i < LINES_IN_FLIGHT; ++i) {
            const i64 line = first + i * SHARES;
#pragma unroll
            for (int t = 0; t < reductions::COUNT; ++t)
                part[i][t] = line < p.lines ? from[(t * p.entries * p.lines + line) * p.along] : reductions::none(t);
        }
#pragma unroll
        for (int i = 0; i < LINES_IN_FLIGHT; ++i)
#pragma unroll
            for (int t = 0; t < reductions::COUNT; ++t)
                total[t] = reductions::joined(t, total[t], part[i][t]);
    }
#pragma unroll
    for (int t = 0; t < reductions::COUNT; ++t)
        s_shares[t][threadIdx.x] = total[t];
#pragma unroll
    for (int half = SHARES / 2; half > 0; half /= 2) {
        __syncthreads();
#pragma unroll
        for (int t = 0; t < reductions::COUNT && share < half; ++t)
            s_shares[t][threadIdx.x] = total[t] =
                reductions::joined(t, total[t], s_shares[t][threadIdx.x + half * LANES]);
    }
    if (share == 0 && at < p.along)
        conclude(p, (index)entry, SPAN_IS_ROW ? (index)at : 0, SPAN_IS_ROW ? 0 : (index)at, total);
}
