/* grid_sample: y[n,c,o] = sum over taps of weight * x[n,c,index]     any float types, any chip
   Tile      a thread computes some channels of one position, RUN adjacent ones per access: of adjacent positions, or of
             adjacent channels if these are adjacent in memory
   Params    THREADS x_t y_t and those of taps.cuh */
#include "grid/taps.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) grid_sample(const __grid_constant__ arguments p) {
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < p.items; item += (i64)gridDim.x * THREADS) {
        const place of = locate(p, item);
        const reads s(p, of, p.x_s0, p.x_s1, p.x_s2);
        const i64 first = of.chunk * p.chunk, last = min(first + p.chunk, p.channels);
        const x_t *x = p.x + of.n * p.x_n;
        y_t *y = p.y + offset_in_y(p, of);
        for (i64 c = first; c < last; c += RUN) {
            real sums[RUN] = {};
#pragma unroll
            for (int k = 0; k < COUNT; k++) {
                const i64 offset = s.offset(k);
                if (offset < 0)
                    continue;
                const run<x_t, RUN> read = load_run<x_t, RUN>(x + (offset + c * p.x_c));
                const real weight = s.weight(k);
#pragma unroll
                for (int e = 0; e < RUN; e++)
                    sums[e] += weight * as<real>::of(read.at[e]);
            }
            run<y_t, RUN> out;
#pragma unroll
            for (int e = 0; e < RUN; e++)
                out.at[e] = from<y_t>::number(sums[e]);
            store_run<y_t, RUN>(y + c * p.y_c, out);
        }
    }
}
