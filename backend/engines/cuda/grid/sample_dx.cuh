/* grid_sample_dx: adds dy[n,c,o] * weight to the sums of the elements that position o reads
   Types     any float types, any chip
   Tile      as sample.cuh
   Order     IN_ANY_ORDER: any, by floating-point atomics. Otherwise the result does not depend on it, see sums.cuh
   Params    THREADS y_t and those of taps.cuh and sums.cuh */
#include "grid/taps.cuh"
#include "grid/sums.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) grid_sample_dx(const __grid_constant__ arguments p) {
    const scale by = IN_ANY_ORDER ? scale(1, 0) : scale_of(p);
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < p.items; item += (i64)gridDim.x * THREADS) {
        const place of = locate(p, item);
        const reads s(p, of, p.sums_s0, p.sums_s1, p.sums_s2);
        const i64 first = of.chunk * p.chunk, last = min(first + p.chunk, p.channels);
        const y_t *dy = p.y + offset_in_y(p, of);
        for (i64 c = first; c < last; c += RUN) {
            const run<y_t, RUN> given = load_run<y_t, RUN>(dy + c * p.y_c);
#pragma unroll
            for (int k = 0; k < COUNT; k++) {
                const i64 offset = s.offset(k);
                if (offset < 0)
                    continue;
                const i64 at = of.n * p.sums_n + c * p.sums_c + offset;
                const real weight = s.weight(k);
#pragma unroll
                for (int e = 0; e < RUN; e++)
                    if constexpr (IN_ANY_ORDER)
                        atomicAdd((real *)p.sums + (at + e * p.sums_c), weight * as<real>::of(given.at[e]));
                    else
                        add(p, at + e * p.sums_c, weight * as<real>::of(given.at[e]), by);
            }
        }
    }
}
