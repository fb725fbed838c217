/* causal_backward: the gradients of a causal convolution, reading X and dY once
   Types     any float types, [B, D, L], any chip
   Formula   dS = dY * activation'(S), with S recomputed; dX[b,d,l] = sum over k of W[d,k] * dS[b, d, l + K - 1 - k];
             dW[d,k] = sum over b, l of dS[b,d,l] * X[b, d, l - K + 1 + k], dB[d] = sum over b, l of dS
   Tile      as forward.cuh; dS is also computed for the K - 1 steps after a strip, which the next strip recomputes
   Order     steps of a strip, strips of a thread, threads of a block, then, in combine.cuh, blocks: every run gives the
             same bits
   Memory    partial sums [part][K + 1][channel], dB after dW
   Limits    2 * TAPS + 1 numbers per channel in registers in addition to two windows
   Measured  2026-11-26, H100, 8 x 4096 x 2048 of 4 taps, SiLU: bf16 150 us, 2.7 TB/s, float 291 us, 2.8 TB/s, where
             copies reach 2.9 and torch's grouped convolution takes 1566 us in bf16; with 2047 steps 227
   Tried     three blocks instead of four: 162 us; five, and strips of one access: 160
   Params    TAPS HAS_DX HAS_BIAS IS_SILU x_t dy_t dx_t and those of strips.cuh */
#include "causal/strips.cuh"

constexpr int LAG = TAPS - 1, AHEAD = round_to_runs(LAG);

using x_window = window<x_t, HEAD + STRIP + AHEAD>;
using dy_window = window<dy_t, STRIP + AHEAD>;

/* Processes a channel's strip: computes dS of its steps and of the TAPS - 1 after them, adds their contributions to the
   filter's sums (the bias comes last), and computes dX step by step. Outside the sequence dS is 0 and contributes
   nothing, not even 0 times a non-finite number. */
DEVICE void make_strip(sum_t (&dx)[STRIP], sum_t (&sums)[TAPS + 1], const x_window &x, const dy_window &dy,
                       const sum_t (&taps)[TAPS], sum_t bias, int c, i32 first, i32 steps) {
    sum_t ds[STRIP + LAG];
#pragma unroll
    for (int t = 0; t < STRIP + LAG; t++) {
        sum_t sum = bias;
#pragma unroll
        for (int k = 0; k < TAPS && IS_SILU; k++)
            sum += taps[k] * x.at(c, BEFORE + t + k);
        const bool is_there = SHIFTS ? (u32)(first + t) < (u32)steps : first + t < steps;
        ds[t] = is_there ? differentiate(dy.at(c, t), sum) : (sum_t)0;
        if (t < STRIP && is_there) {
#pragma unroll
            for (int k = 0; k < TAPS; k++)
                sums[k] += ds[t] * x.at(c, BEFORE + t + k);
            sums[TAPS] += ds[t];
        }
        if (t >= LAG)
            dx[t - LAG] = correlate(ds + (t - LAG), taps);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) causal_backward(const __grid_constant__ arguments p) {
    const int channels = count_channels(p);
    const i32 steps = (i32)p.steps;
    sum_t bias[CHANNELS], sums[CHANNELS][TAPS + 1] = {};
    filters taps;
    load_bias(bias, p, channels);
    load_taps(taps, p, 0, channels);
    for_each_strip(p, [&](i64 entry, i32 first) {
        sum_t dx[CHANNELS][STRIP];
        x_window x;
        dy_window dy;
        x.load({p.x + (entry * p.x_b + first_channel() * p.x_c), p.x_c, p.x_l}, first - HEAD, steps, channels);
        dy.load({p.dy + (entry * p.dy_b + first_channel() * p.dy_c), p.dy_c, p.dy_l}, first, steps, channels);
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            make_strip(dx[c], sums[c], x, dy, taps[c], bias[c], c, first, steps);
        if constexpr (HAS_DX)
            store_strip<dx_t>({p.dx + (entry * p.dx_b + first_channel() * p.dx_c), p.dx_c, p.dx_l}, first, steps,
                              channels, dx);
    });
    store_sums<TAPS + 1>(p, sums, 0, TAPS + 1);
}
