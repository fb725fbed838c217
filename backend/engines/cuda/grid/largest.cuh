/* grid_largest: the largest finite |dy|     any float types, any chip
   Tile      a thread reads some elements; blocks join their results by an atomic maximum, whose order does not matter
   Params    THREADS y_t and those of taps.cuh and sums.cuh */
#include "grid/taps.cuh"
#include "grid/sums.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) grid_largest(const __grid_constant__ arguments p) {
    bits_t largest = 0;
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < p.items; item += (i64)gridDim.x * THREADS) {
        const place of = locate(p, item);
        const i64 first = of.chunk * p.chunk, last = min(first + p.chunk, p.channels);
        const y_t *dy = p.y + offset_in_y(p, of);
        for (i64 c = first; c < last; c += RUN) {
            const run<y_t, RUN> given = load_run<y_t, RUN>(dy + c * p.y_c);
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const bits_t bits = bits_of(fabs(as<real>::of(given.at[e])));
                largest = bits < bits_of(power_of_two(sizeof(real) == 8 ? 1024 : 128, (real)0)) ? max(largest, bits)
                                                                                                : largest;
            }
        }
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
        largest = max(largest, shuffle_xor(largest, mask));
    if (threadIdx.x % 32 == 0)
        atomicMax((bits_t *)p.largest, largest);
}
