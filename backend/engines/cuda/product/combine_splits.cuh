/* combine_splits: C[z,i,j] = epilogue(sum over splits of the partial sums in the workspace)
   Types     any types, sm_75 and up
   Formula   threads of a block share the partial sums of a run: each adds its own from the first to the last, and the
             first thread adds the threads' sums in the same order, so that every run gives the same bits; epilogue()
             is generated
   Tile      a block computes THREADS / sharers runs of RUN contiguous results at a time; if threads share runs, it does
             so only once
   Params    THREADS RUN LEAD_IS_ROW sum_t index position
   Tried     one thread per run: with few results and many splits, threads wait for one load after another, 6 us of the
             72 us of a filter gradient */

DEVICE void add(run<sum_t, RUN> &sum, const run<sum_t, RUN> &other) {
#pragma unroll
    for (int e = 0; e < RUN; e++)
        sum.at[e] += other.at[e];
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) combine_splits(const __grid_constant__ arguments p) {
    __shared__ run<sum_t, RUN> s_sums[THREADS]; /* [sharers][runs at a time] */
    const u32 sharers = (u32)p.sharers, together = THREADS / sharers, share = threadIdx.x / together,
              lane = threadIdx.x % together;
    const i64 first = share * p.parts_each, last = first + p.parts_each < p.splits ? first + p.parts_each : p.splits;
    for (i64 base = (i64)blockIdx.x * together; base < p.runs; base += (i64)gridDim.x * together) {
        const i64 at = base + lane;
        run<sum_t, RUN> sum = {};
        if (at < p.runs && first < last) {
            sum = load_run<sum_t, RUN>(p.partial + (first * p.runs + at) * RUN);
#pragma unroll 4
            for (i64 part = first + 1; part < last; part++)
                add(sum, load_run<sum_t, RUN>(p.partial + (part * p.runs + at) * RUN));
        }
        if (sharers > 1) {
            s_sums[threadIdx.x] = sum;
            __syncthreads();
            for (u32 other = 1; other < sharers && share == 0; other++)
                add(sum, s_sums[other * together + lane]);
        }
        if (share > 0 || at >= p.runs)
            continue;
        position rest = (position)(at * RUN);
        const index along = (index)split(rest, p.along), across = (index)split(rest, p.across);
        epilogue(p, (index)rest, LEAD_IS_ROW ? along : across, LEAD_IS_ROW ? across : along, sum);
    }
}
