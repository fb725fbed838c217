/* map: a sweep over one index space                                                                  any chip, any type
   Formula   printed from the graph: compute() evaluates its nodes on a run of RUN neighbours and stores the results
   Tile      a thread takes UNROLL runs, THREADS runs apart, so that a warp touches whole lines; persistent over the rest
   Memory    all loads of a thread are issued before its first arithmetic; nothing is shared
   Limits    RUN divides the last extent, but for spaces of one dim, whose rest goes one by one
   Params    RUN THREADS UNROLL HAS_REST, and locate(), load_inputs(), compute(), printed */

extern "C" __global__ void __launch_bounds__(THREADS) map(const __grid_constant__ arguments a) {
    const i64 step = (i64)gridDim.x * THREADS * UNROLL;
    const i64 runs = a.elements / RUN;
    for (i64 first = (i64)blockIdx.x * THREADS * UNROLL + threadIdx.x; first < runs; first += step) {
        inputs<RUN> in[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < runs) load_inputs(in[u], a, locate(a, first + u * THREADS));
        #pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < runs) compute(in[u], a, locate(a, first + u * THREADS));
    }
    if constexpr (HAS_REST) {
        place to = {};
        to.c0 = runs * RUN + threadIdx.x;
        if (blockIdx.x > 0 || to.c0 >= a.elements) return;
        inputs<1> in;
        load_inputs(in, a, to);
        compute(in, a, to);
    }
}
