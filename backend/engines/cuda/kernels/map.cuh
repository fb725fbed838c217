/* map: a sweep over one index space                                                                  any chip, any type
   Formula   printed from the graph: compute() evaluates its nodes on a run of RUN neighbours and stores the results
   Tile      a thread takes UNROLL runs, THREADS runs apart, so that a warp touches whole lines; persistent over the rest
   Memory    all loads of a thread are issued before its first arithmetic; nothing is shared
   Limits    RUN divides the last extent; lengths that no power of two divides run with RUN 1
   Params    RUN THREADS UNROLL */

extern "C" __global__ void __launch_bounds__(THREADS) map(const __grid_constant__ arguments a) {
    const i64 step = (i64)gridDim.x * THREADS * UNROLL;
    const i64 runs = a.elements / RUN;
    for (i64 first = (i64)blockIdx.x * THREADS * UNROLL + threadIdx.x; first < runs; first += step) {
        inputs in[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < runs) load_inputs(in[u], a, (first + u * THREADS) * RUN);
        #pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < runs) compute(in[u], a, (first + u * THREADS) * RUN);
    }
}
