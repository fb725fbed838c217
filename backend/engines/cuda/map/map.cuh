/* map: a sweep over one index space                                                                  any chip, any type
   Formula   emitted from the graph: compute() evaluates its nodes on a run of RUN adjacent elements and stores the
             results
   Tile      a thread processes UNROLL runs, THREADS runs apart, so that a warp accesses whole lines; it loops over the
             rest
   Memory    all loads of a thread are issued before its first arithmetic; nothing is shared
   Start     if all blocks are resident at once (EXPECTS), their inputs are prefetched to L2 before the preceding kernel
             ends
   Limits    RUN divides the last extent, except in flat spaces, whose rest is processed by element: one per thread, or
             all by one thread if results share bytes (SHARES_BYTES)
   Params    RUN THREADS UNROLL HAS_REST SHARES_BYTES EXPECTS, and the emitted locate(), load_inputs(), expect_inputs(),
             compute() */

#include "core/dependent_launch.cuh"

/* The elements after the last whole run of a flat space. A template, so that element() is looked up only if it was
   emitted. */
template <class A> DEVICE void sweep_rest(const A &a, i64 first) {
    constexpr int EACH = SHARES_BYTES ? RUN : 1;
    if (blockIdx.x > 0 || threadIdx.x >= RUN / EACH)
        return;
    coordinates to[EACH];
    inputs<1> in[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        to[e] = element(a, first + threadIdx.x + e);
        if (first + threadIdx.x + e < a.elements)
            load_inputs(in[e], a, to[e]);
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (first + threadIdx.x + e < a.elements)
            compute(in[e], a, to[e]);
}

extern "C" __global__ void __launch_bounds__(THREADS) map(const __grid_constant__ arguments a) {
    const i64 step = (i64)gridDim.x * THREADS * UNROLL;
    const i64 runs = a.elements / RUN;
    if constexpr (EXPECTS) {
        const i64 first = (i64)blockIdx.x * THREADS * UNROLL;
        if (threadIdx.x == 0 && first + UNROLL * THREADS <= runs)
            expect_inputs(a, locate(a, first));
    }
    begin_overlapped();
    for (i64 first = (i64)blockIdx.x * THREADS * UNROLL + threadIdx.x; first < runs; first += step) {
        inputs<RUN> in[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < runs)
                load_inputs(in[u], a, locate(a, first + u * THREADS));
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < runs)
                compute(in[u], a, locate(a, first + u * THREADS));
    }
    if constexpr (HAS_REST)
        sweep_rest(a, runs * RUN);
}
