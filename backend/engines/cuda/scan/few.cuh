/* few: the best elements of short lines
   Types     any, by their keys
   Tile      a warp keeps the keys of a line in registers, KEYS per lane, and finds the next best one p.count times
   Params    THREADS KEYS IS_LEAST NAN_IS_FIRST HAS_VALUES HAS_INDICES, key_t, number_t */
#include "scan/keys.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) few(const __grid_constant__ arguments p) {
    const i64 number = (i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (number >= p.lines)
        return;
    const u32 line = (u32)number;
    const int lane = threadIdx.x % 32;
    const x_t *x = p.x + x_line(p, line);
    key_t keys[KEYS];
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        const i64 i = k * 32 + lane;
        keys[k] = i < p.length ? key_of(x[i * p.x_step]) : (key_t)0;
    }
    element last = {(key_t) ~(key_t)0, -1};
    for (i64 r = 0; r < p.count; r++) {
        element best = element::none();
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const element e = {keys[k], k * 32 + lane};
            if (e.position < p.length && last.precedes(e))
                best = element::joined(best, e);
        }
        last = reduce_lanes<element, 1, 16>(best);
        if (lane == 0)
            store_element(p, line, r, last.position);
    }
}
