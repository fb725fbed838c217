/* combine: C[z,i,j] = finish(sum over splits of the parts in the workspace)                         any types, sm_75 and up
   Formula   parts are added from the first to the last, so that every run gives the same bits; finish() is printed
   Tile      a thread takes RUN neighbours of the result
   Params    THREADS RUN LEAD_IS_ROW sum_t index position */

extern "C" __global__ void __launch_bounds__(THREADS, 2) combine(const __grid_constant__ arguments p) {
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.runs; at += (i64)gridDim.x * THREADS) {
        run<sum_t, RUN> sum = load_run<sum_t, RUN>(p.partial + at * RUN);
        for (i64 part_of = 1; part_of < p.splits; part_of++) {
            const run<sum_t, RUN> part = load_run<sum_t, RUN>(p.partial + (part_of * p.runs + at) * RUN);
            #pragma unroll
            for (int e = 0; e < RUN; e++) sum.at[e] += part.at[e];
        }
        position rest = (position)(at * RUN);
        const index along = (index)split(rest, p.along), across = (index)split(rest, p.across);
        finish(p, (index)rest, LEAD_IS_ROW ? along : across, LEAD_IS_ROW ? across : along, sum);
    }
}
