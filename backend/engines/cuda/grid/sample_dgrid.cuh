/* grid_sample_dgrid: dgrid[n,o,d] = sum over c and taps of dy[n,c,o] * x[n,c,index] * dweight/dgrid[n,o,d]
   Types     any float types, any chip
   Tile      LANES threads share the channels of one position, and add up their sums by a butterfly: every run gives the
             same bits
   Params    THREADS LANES x_t y_t dgrid_t and those of taps.cuh */
#include "grid/taps.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) grid_sample_dgrid(const __grid_constant__ arguments p) {
    const int lane = threadIdx.x % LANES;
    /* All lanes of a warp take part in shuffles: those past the last position compute it again. */
    for (i64 first = (i64)blockIdx.x * (THREADS / LANES); first < p.items;
         first += (i64)gridDim.x * (THREADS / LANES)) {
        const i64 item = min(first + threadIdx.x / LANES, p.items - 1);
        i64 rest = item;
        place of;
        split_position(p, rest, of);
        of.n = rest;
        const reads s(p, of, p.x_s0, p.x_s1, p.x_s2);
        const x_t *x = p.x + of.n * p.x_n;
        const y_t *dy = p.y + offset_in_y(p, of);
        real products[COUNT] = {};
        for (i64 c = lane * RUN; c < p.channels; c += LANES * RUN) {
            const run<y_t, RUN> given = load_run<y_t, RUN>(dy + c * p.y_c);
#pragma unroll
            for (int k = 0; k < COUNT; k++) {
                const i64 offset = s.offset(k);
                if (offset < 0)
                    continue;
                const run<x_t, RUN> read = load_run<x_t, RUN>(x + (offset + c * p.x_c));
#pragma unroll
                for (int e = 0; e < RUN; e++)
                    products[k] += as<real>::of(given.at[e]) * as<real>::of(read.at[e]);
            }
        }
        real slopes[SPATIAL] = {};
#pragma unroll
        for (int k = 0; k < COUNT; k++)
#pragma unroll
            for (int d = 0; d < SPATIAL; d++)
                slopes[d] += s.offset(k) < 0 ? (real)0 : s.weight(k, d) * products[k];
#pragma unroll
        for (int d = 0; d < SPATIAL; d++)
#pragma unroll
            for (int mask = 1; mask < LANES; mask *= 2)
                slopes[d] += shuffle_xor(slopes[d], mask);
        if (lane != 0 || first + threadIdx.x / LANES >= p.items)
            continue;
        dgrid_t *out = p.dgrid + offset_in_grid(p, of, p.dgrid_n, p.dgrid_s0, p.dgrid_s1, p.dgrid_s2);
#pragma unroll
        for (int d = 0; d < SPATIAL; d++)
            out[(SPATIAL - 1 - d) * p.dgrid_c] = from<dgrid_t>::number(slopes[d]);
    }
}
