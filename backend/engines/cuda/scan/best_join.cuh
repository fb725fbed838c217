/* best_join: compares the best elements of the parts of each line
   Tile      a thread processes a line
   Params    THREADS IS_LEAST NAN_IS_FIRST HAS_VALUES HAS_INDICES, key_t, number_t */
#include "scan/keys.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) best_join(const __grid_constant__ arguments p) {
    const i64 number = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (number >= p.lines)
        return;
    const u32 line = (u32)number;
    element best = element::none();
    for (i64 part = 0; part < p.parts; part++)
        best = element::joined(best, p.parts_best[part * p.lines + line]);
    store_element(p, line, 0, best.position);
}
