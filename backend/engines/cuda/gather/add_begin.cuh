/* add_begin: sets floats to x, or to 0, before add_any.cuh
   Tile      a thread sets one element: adjacent threads have adjacent lines
   Params    THREADS HAS_X position */
#include "core/gather.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) add_begin(const __grid_constant__ arguments p) {
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.total; at += (i64)gridDim.x * THREADS) {
        position rest = (position)at;
        const u32 line = (u32)split(rest, p.inner);
        const i64 n = (i64)rest;
        float start = 0;
        if constexpr (HAS_X)
            start = to_float(p.x[x_line(p, line) + n * p.x_step]);
        p.y[y_line(p, line) + n * p.y_step] = start;
    }
}
