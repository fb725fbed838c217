/* pool: y[n,c,o] = the maximum or mean of a small window of x, as resample.cuh      any type, any strides, sm_75 and up
   Formula   pooling/pool_common.cuh computes the windows of a patch of positions, so that shared elements are read once
   Tile      a thread computes RUN channels of PATCH1 x PATCH2 positions along the last two axes; threads follow memory
   Limits    few taps and whole steps; edges are padded with zeros or with a number that never wins
   Tried     prefetching the inputs of later blocks (maxima 5 to 15 % slower); threads that iterate down columns and
             keep the overlap of rows, with a row of loads in flight (3x3 with steps of one: 33 us instead of 27, means
             43 instead of 34); blocks of more positions and fewer channels, which read less from L2 (30 us instead of
             27, means 36 instead of 30: in most warps some lane is near an edge)
   Params    as resample.cuh, and BLOCKS STEP0-2 PATCH1 PATCH2 WANTS_WHERE IS_PAIRED (pairs of 16-bit channels)
             IS_SCALED */

#include "pooling/pool_results.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool(const __grid_constant__ arguments p) {
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < p.runs; item += (i64)gridDim.x * THREADS) {
        const coordinates to = locate(p, (position)item);
        const offset_t strides[3] = {axes[0].x_stride, axes[1].x_stride, axes[2].x_stride};
        const patch<PATCH1, PATCH2> result(p.x + (to.n * (offset_t)p.x_n + to.c * (offset_t)p.x_c), axes, strides,
                                           to.at);
#pragma unroll
        for (int r = 0; r < PATCH1; r++)
#pragma unroll
            for (int s = 0; s < PATCH2; s++) {
                const length_t o[3] = {to.at[0], to.at[1] + r, to.at[2] + s};
                if (o[1] >= axes[1].y || o[2] >= axes[2].y)
                    continue;
                store_values(p, axes, offset_in_y(p, axes, to, o), o, result.at[r][s]);
                store_numbers(p, axes, to, o, result.at[r][s]);
                correct_numbers(p, axes, to, o, result.at[r][s]);
            }
    }
}
