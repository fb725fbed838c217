/* causal_backward_channels: backward.cuh for channels-last sequences
   Types     any float types, [B, L, D], any chip
   Formula   as backward.cuh
   Tile      a thread iterates over p.length steps of CHANNELS channels, STRIP at a time. The last K - 1 steps of X and
             of dS stay in registers, so that both are read or computed twice only at the ends; dX is K - 1 steps late
   Order     as backward.cuh
   Limits    4 * TAPS numbers per channel in registers in addition to the loads in flight
   Measured  2026-11-26, H100, 8 x 4096 x 2048 of 4 taps, SiLU: bf16 181 us, 2.2 TB/s, float 303 us, 2.7 TB/s, where
             copies reach 2.9
   Tried     strips as in backward.cuh, read and computed twice at their ends: bf16 274 us; two blocks instead of three:
             222; strips of 4 steps: 202; 4 channels per thread: 212; all of dX before any store: three blocks spill
   Params    as backward.cuh */
#include "causal/strips.cuh"

constexpr int LAG = TAPS - 1;

/* Steps of each channel; those before a strip come first. */
using history = sum_t[CHANNELS][LAG + STRIP];

/* The position of a thread: the strip's first step, and the segment of the sequence that it computes. */
struct segment {
    i32 begin, end, steps;
};

DEVICE void begin_history(history &x, const sequence<const x_t> &entries, const segment &s, int channels) {
    window<x_t, LAG ? LAG : 1> before;
    before.load(entries, s.begin - LAG, s.steps, channels);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
#pragma unroll
        for (int t = 0; t < LAG; t++)
            x[c][t] = before.at(c, t);
}

DEVICE void move_history(history &x) {
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
#pragma unroll
        for (int t = 0; t < LAG; t++)
            x[c][t] = x[c][STRIP + t];
}

/* Computes step t of a strip in one channel: dS, its contributions to the filter's sums (the bias comes last), and dX
   of LAG steps before. After the sequence dS is 0. Steps after the segment contribute nothing, not even 0 times a
   non-finite number. */
DEVICE sum_t make_step(sum_t (&sums)[TAPS + 1], sum_t (&ds)[LAG + STRIP], const sum_t (&x)[LAG + STRIP], sum_t dy,
                       const sum_t (&taps)[TAPS], sum_t bias, int t, i32 step, const segment &s) {
    sum_t sum = bias;
#pragma unroll
    for (int k = 0; k < TAPS && IS_SILU; k++)
        sum += taps[k] * x[t + k];
    ds[LAG + t] = step < s.steps ? differentiate(dy, sum) : (sum_t)0;
    if (step < s.end) {
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            sums[k] += ds[LAG + t] * x[t + k];
        sums[TAPS] += ds[LAG + t];
    }
    return correlate(ds + t, taps);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    causal_backward_channels(const __grid_constant__ arguments p) {
    const int channels = count_channels(p);
    sum_t bias[CHANNELS], sums[CHANNELS][TAPS + 1] = {};
    filters taps;
    load_bias(bias, p, channels);
    load_taps(taps, p, 0, channels);
    for_each_strip(p, [&](i64 entry, i32 begin) {
        const i32 steps = (i32)p.steps, length = (i32)p.length;
        const segment s{begin, begin + length < steps ? begin + length : steps, steps};
        const sequence<const x_t> entries{p.x + (entry * p.x_b + first_channel() * p.x_c), p.x_c, p.x_l};
        const sequence<const dy_t> loss{p.dy + (entry * p.dy_b + first_channel() * p.dy_c), p.dy_c, p.dy_l};
        const sequence<dx_t> to{p.dx + (entry * p.dx_b + first_channel() * p.dx_c), p.dx_c, p.dx_l};
        history x, ds = {};
        begin_history(x, entries, s, channels);
#pragma unroll 1
        for (i32 first = begin; first < s.end + LAG; first += STRIP) {
            window<x_t, STRIP> read;
            window<dy_t, STRIP> dy;
            read.load(entries, first, steps, channels);
            dy.load(loss, first, steps, channels);
            dx_t *dx = to.first + (first - LAG) * to.step;
#pragma unroll
            for (int t = 0; t < STRIP; t++, dx += to.step) {
                run<dx_t, RUN> out;
#pragma unroll
                for (int c = 0; c < CHANNELS; c++) {
                    x[c][LAG + t] = read.at(c, t);
                    out.at[c] = from<dx_t>::number(
                        make_step(sums[c], ds[c], x[c], dy.at(c, t), taps[c], bias[c], t, first + t, s));
                }
                if constexpr (HAS_DX)
                    store_piece<dx_t>(dx, to, out, first + t - LAG, s.begin, s.end, channels);
            }
            move_history(x);
            move_history(ds);
        }
    });
    store_sums<TAPS + 1>(p, sums, 0, TAPS + 1);
}
