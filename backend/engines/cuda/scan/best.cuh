/* best: the best element of lines
   Types     any, by their keys
   Tile      IS_COLUMNS: a thread processes a line, adjacent threads adjacent lines; otherwise GROUP threads
   Splits    IS_SPLIT: p.parts blocks process a line, each p.chunk elements; they store the best one of each part, which
             best_join.cuh compares
   Params    THREADS GROUP IS_COLUMNS IS_SPLIT IS_LEAST NAN_IS_FIRST HAS_VALUES HAS_INDICES, key_t, number_t */
#include "scan/keys.cuh"

DEVICE element best_of_group(element best) {
    best = reduce_lanes<element, 1, 16>(best);
    if constexpr (GROUP > 32) {
        __shared__ element bests[GROUP / 32];
        if (threadIdx.x % 32 == 0)
            bests[threadIdx.x / 32] = best;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < GROUP / 32; w++)
            best = element::joined(best, bests[w]);
    }
    return best;
}

extern "C" __global__ void __launch_bounds__(THREADS) best(const __grid_constant__ arguments p) {
    constexpr int MEMBERS = IS_COLUMNS ? 1 : GROUP;
    const i64 number = (i64)blockIdx.x * (THREADS / MEMBERS) + threadIdx.x / MEMBERS;
    if (number >= p.lines)
        return; // whole warps, and with larger groups whole blocks
    const u32 line = (u32)number;
    const x_t *x = p.x + x_line(p, line);
    const int member = threadIdx.x % MEMBERS;
    const i64 part = IS_SPLIT ? blockIdx.y : 0, begin = part * p.chunk;
    const i64 end = IS_SPLIT && begin + p.chunk < p.length ? begin + p.chunk : p.length;
    element best = element::none();
#pragma unroll 8
    for (i64 i = begin + member; i < end; i += MEMBERS)
        best = element::joined(best, element{key_of(x[i * p.x_step]), (i32)i});
    if constexpr (!IS_COLUMNS)
        best = best_of_group(best);
    if (member)
        return;
    if constexpr (IS_SPLIT)
        p.parts_best[part * p.lines + line] = best;
    else
        store_element(p, line, 0, best.position);
}
