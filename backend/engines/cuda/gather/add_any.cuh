/* add_any: adds slices or elements to floats at indices, in any order
   Tile      a thread adds one element: adjacent threads have adjacent lines
   Params    THREADS HAS_SLICES position */
#include "core/gather.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) add_any(const __grid_constant__ arguments p) {
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.total; at += (i64)gridDim.x * THREADS) {
        position rest = (position)at;
        const u32 line = (u32)split(rest, p.inner);
        const i64 m = (i64)rest;
        const i64 target = to_integer(p.index[(HAS_SLICES ? 0 : index_line(p, line)) + m * p.index_stride]);
        if (0 <= target && target < p.extent)
            atomicAdd(p.y + y_line(p, line) + target * p.y_step, to_float(p.src[src_line(p, line) + m * p.src_step]));
    }
}
