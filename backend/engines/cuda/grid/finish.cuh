/* grid_finish: rounds the sums of dx to its type     any float types, any chip
   Tile      a thread stores one element; adjacent threads have adjacent sums
   Params    THREADS dx_t CHANNELS_LAST SPATIAL IS_WIDE and those of sums.cuh */
#include "grid/taps.cuh"
#include "grid/sums.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) grid_finish(const __grid_constant__ arguments p) {
    const scale by = IN_ANY_ORDER ? scale(1, 0) : scale_of(p);
    const i64 strides[3] = {p.dx_s0, p.dx_s1, p.dx_s2};
    const divisor extents[3] = {p.in0, p.in1, p.in2};
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < p.elements; item += (i64)gridDim.x * THREADS) {
        i64 rest = item, at = 0;
        if (CHANNELS_LAST)
            at += split(rest, p.channels_in) * p.dx_c;
#pragma unroll
        for (int d = SPATIAL - 1; d >= 0; d--)
            at += split(rest, extents[d]) * strides[d];
        if (!CHANNELS_LAST)
            at += split(rest, p.channels_in) * p.dx_c;
        const real sum = IN_ANY_ORDER ? ((const real *)p.sums)[item] : total(p, item, by);
        p.dx[at + rest * p.dx_n] = from<dx_t>::number(sum);
    }
}
