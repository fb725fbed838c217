/* repack: rows of A in the order of k in which weight_only_sm90 unpacks weights
   Types     f16 and bf16; sm_90
   Formula   in each step of 128, zero-filled past k: half e % 2, pair q of product 2 part + e / 2 are the numbers
             32 q + 8 part + those of pair e, as few_bits joins 8 adjacent elements
   Tile      a thread reads four 16-byte pieces at a distance of 64 bytes, and writes 64 bytes
   Params    THREADS factor_t weight_t */
#include "core/dependent_launch.cuh"
#include "product/weight_only/few_bits.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) repack(const __grid_constant__ arguments p) {
    begin_overlapped();
    u32 rest = blockIdx.x * THREADS + threadIdx.x;
    const u32 at = rest, part = split(rest, p.parts);
    const i64 row = rest, first = part / 4 * 128 + part % 4 * 8;
    if (row >= p.rows)
        return;
    chunk<16> read[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
        read[q] = first + q * 32 < p.k_count ? *(const chunk<16> *)(p.a + row * p.a_row + first + q * 32) : chunk<16>{};
    chunk<16> *const to = (chunk<16> *)p.ordered + (i64)at * 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        chunk<16> pairs;
#pragma unroll
        for (int q = 0; q < 4; q++)
            pairs.words[q] = few_bits<weight_t>::join(read[q].words, e);
        to[e] = pairs;
    }
}
