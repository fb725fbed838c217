/* causal_filter: partial sums of the gradient of long filters, from stored dS
   Formula   dW[d,k] = sum over b, l of dS[b,d,l] * X[b, d, l - K + 1 + k], dB[d] = sum over b, l of dS
   Tile      as forward.cuh; a block computes one chunk of TAPS taps, chunk blockIdx.z
   Order     as backward.cuh
   Params    TAPS x_t dy_t and those of strips.cuh; dy is dS */
#include "causal/strips.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) causal_filter(const __grid_constant__ arguments p) {
    const int channels = count_channels(p);
    const i32 steps = (i32)p.steps, chunk = blockIdx.z, numbers = (i32)p.taps + 1;
    sum_t sums[CHANNELS][TAPS] = {}, total[CHANNELS][1] = {};
    for_each_strip(p, [&](i64 entry, i32 first) {
        window<x_t, HEAD + STRIP> x;
        window<dy_t, STRIP> ds;
        x.load({p.x + (entry * p.x_b + first_channel() * p.x_c), p.x_c, p.x_l},
               first - HEAD - ((i32)p.chunks - 1 - chunk) * TAPS, steps, channels);
        ds.load({p.dy + (entry * p.dy_b + first_channel() * p.dy_c), p.dy_c, p.dy_l}, first, steps, channels);
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
#pragma unroll
            for (int t = 0; t < STRIP; t++) {
                if (first + t >= steps)
                    continue;
#pragma unroll
                for (int k = 0; k < TAPS; k++)
                    sums[c][k] += ds.at(c, t) * x.at(c, BEFORE + t + k);
                total[c][0] += ds.at(c, t);
            }
    });
    store_sums<TAPS>(p, sums, tap_number(p, chunk, 0), numbers);
    if (chunk == 0)
        store_sums<1>(p, total, numbers - 1, numbers);
}
