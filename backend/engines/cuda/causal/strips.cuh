/* strips: assigns sequences to the threads of a causal convolution, and reads and writes them
   Layout    CHANNELS_LAST: lanes of a warp have adjacent channels, RUN each, and read a step in one access; else a
             block has one channel, and an access is RUN adjacent steps. RUN is 1 for other layouts
   Strip     STRIP steps of CHANNELS channels, all of whose values are in registers; the strips of a block's channels
             are assigned to its WORKERS round-robin
   Shift     SHIFTS: if sequences are unaligned, their first strips begin before them, so that accesses are aligned
   Window    the steps that a strip reads. Before and after a sequence, values are 0
   Params    CHANNELS_LAST RUN STRIP SHIFTS THREADS TAPS IS_LONG IS_REVERSED HAS_BIAS IS_SILU x_t sum_t */
#include "core/gather.cuh"
#include "core/stream.cuh"

using namespace weft;

constexpr int CHANNELS = CHANNELS_LAST ? RUN : 1, LANES = CHANNELS_LAST ? 32 : 1, WORKERS = THREADS / LANES,
              WARPS = THREADS / 32;
static_assert(THREADS % 32 == 0, "a block is whole warps");

/* A thread's first channel, and how many channels exist after it: 0 to CHANNELS. */
DEVICE int lane() { return (int)threadIdx.x % LANES; }
DEVICE int worker() { return (int)threadIdx.x / LANES; }
DEVICE i64 first_channel() { return ((i64)blockIdx.x * LANES + lane()) * CHANNELS; }
DEVICE int count_channels(const arguments &p) {
    const i64 left = p.channels - first_channel();
    return left < 0 ? 0 : left < CHANNELS ? (int)left : CHANNELS;
}

/* Calls f(batch entry, first step) for each strip of this thread. The step is negative if strips are shifted. */
template <class F> DEVICE void for_each_strip(const arguments &p, F f) {
    const u32 begin = blockIdx.y * (u32)p.strips_each, most = (u32)p.strips_all,
              end = begin + (u32)p.strips_each < most ? begin + (u32)p.strips_each : most;
#pragma unroll 1
    for (u32 at = begin + worker(); at < end; at += WORKERS) {
        u32 entry = at;
        const i32 strip = (i32)split(entry, p.strips);
        const i64 row = (i64)entry * p.x_b + first_channel() * p.x_c;
        f((i64)entry, strip * (i32)p.length - (SHIFTS ? (i32)(row & (RUN - 1)) : 0));
    }
}

/* A few channels of one sequence. Points to the first step of the first channel; strides are in elements. */
template <class T> struct sequence {
    T *first;
    i64 channel, step;
};

/* STEPS steps of each channel, in whole accesses, in their stored form. */
template <class T, int STEPS> struct window {
    static constexpr int PIECES = CHANNELS_LAST ? STEPS : STEPS / RUN;
    static_assert(CHANNELS_LAST || STEPS % RUN == 0, "windows are whole accesses");
    raw<T, RUN> pieces[PIECES];

    DEVICE sum_t at(int channel, int step) const {
        return as<sum_t>::of(CHANNELS_LAST ? pieces[step].at(channel) : pieces[step / RUN].at(step % RUN));
    }

    /* Loads from step `begin` on, of a sequence of `steps`. Accesses are whole except at the edges, so that no branch
       separates them and all are in flight at once. */
    DEVICE void load(const sequence<const T> &source, i32 begin, i32 steps, int channels) {
        const bool ends_before = begin + STEPS <= steps;
        const bool is_whole =
            CHANNELS_LAST || RUN == 1 || (SHIFTS ? begin >= 0 && ends_before : ends_before || steps % RUN == 0);
        if (channels < CHANNELS || !is_whole)
            load_each(source, begin, steps, channels);
        else if (CHANNELS_LAST && begin >= 0 && begin + STEPS <= steps)
            load_whole<true>(source, begin, steps);
        else
            load_whole<false>(source, begin, steps);
    }

    template <bool IS_INSIDE> DEVICE void load_whole(const sequence<const T> &source, i32 begin, i32 steps) {
        const T *p = source.first + begin * source.step;
#pragma unroll
        for (int i = 0; i < PIECES; i++, p += CHANNELS_LAST ? source.step : RUN * source.step) {
            const i32 step = begin + (CHANNELS_LAST ? i : i * RUN);
            if (!IS_INSIDE)
                pieces[i] = {};
            if (IS_INSIDE || (step >= 0 && step < steps))
                pieces[i] = raw<T, RUN>::template load<false>(p);
        }
    }

    DEVICE void load_each(const sequence<const T> &source, i32 begin, i32 steps, int channels) {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const i32 step = begin + (CHANNELS_LAST ? i : i * RUN + e);
                const bool is_there = step >= 0 && step < steps && (CHANNELS_LAST ? e : 0) < channels;
                const T *p = source.first + step * source.step + (CHANNELS_LAST ? e * source.channel : 0);
                pieces[i].put(e, is_there ? *p : from<T>::number((sum_t)0));
            }
    }
};

/* Stores one access of results at p. It begins with step `step`, and only steps least .. steps - 1 are stored. */
template <class T>
DEVICE void store_piece(T *p, const sequence<T> &to, const run<T, RUN> &out, i32 step, i32 least, i32 steps,
                        int channels) {
    if (step >= least && (CHANNELS_LAST ? step < steps : step + RUN <= steps) && channels == CHANNELS) {
        stream_out<T, RUN>(p, out);
        return;
    }
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        const i32 s = CHANNELS_LAST ? step : step + e;
        if (s >= least && s < steps && (CHANNELS_LAST ? e : 0) < channels)
            p[e * (CHANNELS_LAST ? to.channel : to.step)] = out.at[e];
    }
}

/* Stores a strip of results. */
template <class T>
DEVICE void store_strip(const sequence<T> &to, i32 begin, i32 steps, int channels,
                        const sum_t (&values)[CHANNELS][STRIP]) {
    constexpr int PIECES = CHANNELS_LAST ? STRIP : STRIP / RUN;
    T *p = to.first + begin * to.step;
#pragma unroll
    for (int i = 0; i < PIECES; i++, p += CHANNELS_LAST ? to.step : RUN * to.step) {
        run<T, RUN> out;
#pragma unroll
        for (int e = 0; e < RUN; e++)
            out.at[e] = from<T>::number(CHANNELS_LAST ? values[CHANNELS_LAST ? e : 0][CHANNELS_LAST ? i : 0]
                                                      : values[0][CHANNELS_LAST ? 0 : i * RUN + e]);
        store_piece<T>(p, to, out, begin + (CHANNELS_LAST ? i : i * RUN), 0, steps, channels);
    }
}

/* ---- Filters ---- */

/* Taps of each channel in registers. If filters are shorter than TAPS times p.chunks, the first taps are missing: they
   are 0, and has_tap() prevents products with non-finite numbers. */
using filters = sum_t[CHANNELS][TAPS];

/* The number of tap k of a chunk within the filter; negative if it is missing. IS_REVERSED: in the order of the
   gradient of x, the last tap first. */
DEVICE i32 tap_number(const arguments &p, i32 chunk, int k) {
    const i32 at = chunk * TAPS + k;
    if constexpr (IS_REVERSED)
        return (i32)p.taps - 1 - at;
    return at - ((i32)p.chunks * TAPS - (i32)p.taps);
}
DEVICE bool has_tap(const arguments &p, i32 chunk, int k) { return !IS_LONG || tap_number(p, chunk, k) >= 0; }

DEVICE void load_taps(filters &taps, const arguments &p, i32 chunk, int channels) {
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const i32 number = tap_number(p, chunk, k);
            taps[c][k] = c < channels && has_tap(p, chunk, k)
                             ? as<sum_t>::of((p.weight + 0)[(first_channel() + c) * p.weight_c + number * p.weight_k])
                             : (sum_t)0;
        }
}

DEVICE void load_bias(sum_t (&bias)[CHANNELS], const arguments &p, int channels) {
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        bias[c] = HAS_BIAS && c < channels ? as<sum_t>::of((p.bias + 0)[(first_channel() + c) * p.bias_c]) : (sum_t)0;
}

/* The steps of a window before the first step of its strip and after its last one. */
constexpr DEVICE int round_to_runs(int steps) { return CHANNELS_LAST ? steps : (steps + RUN - 1) / RUN * RUN; }
constexpr int HEAD = round_to_runs(TAPS - 1), BEFORE = HEAD - (TAPS - 1);

/* The approximation is good enough for 16-bit sequences, whose rounding is coarser. */
DEVICE sum_t share(sum_t s) { return sizeof(x_t) > 2 ? logistic(s) : logistic_approx(s); }
/* The factor is clamped, so that infinity times a share of 0 does not become NaN. */
DEVICE sum_t activate(sum_t s) { return IS_SILU ? at_least(s, (sum_t)-3.4028234663852886e38) * share(s) : s; }
/* Uses a single exponential: the cancellation in 1 - share(s) is on the order of a rounding of the derivative. */
DEVICE sum_t differentiate(sum_t dy, sum_t s) {
    const sum_t part = share(s), bounded = fabs(s) < (sum_t)10000 ? s : (sum_t)0;
    return IS_SILU ? dy * part * (1 + bounded * (1 - part)) : dy;
}

/* The gradient of x at a step, from dS at this step and the TAPS - 1 steps after it. */
DEVICE sum_t correlate(const sum_t *ds, const sum_t (&taps)[TAPS]) {
    sum_t dx = 0;
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        dx += taps[TAPS - 1 - k] * ds[k];
    return dx;
}

/* ---- Sums of a block ---- */

/* Adds SUMS sums of each channel over all strips of a block, in a fixed order, and stores them in the block's part of
   the partial sums [part][sum][channel]. `number` is the index of the first sum. Sums with negative indices, and those
   of channels that do not exist, are skipped. */
template <int SUMS>
DEVICE void store_sums(const arguments &p, const sum_t (&sums)[CHANNELS][SUMS], i32 number, i32 numbers) {
    __shared__ sum_t s_sums[WARPS][SUMS][LANES * CHANNELS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
#pragma unroll
        for (int k = 0; k < SUMS; k++) {
            sum_t sum = sums[c][k];
            for (int mask = 16; mask > 0 && LANES == 1; mask /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, mask);
            if (LANES > 1 || lane == 0)
                s_sums[warp][k][(LANES > 1 ? lane : 0) * CHANNELS + c] = sum;
        }
    __syncthreads();
    for (int e = threadIdx.x; e < SUMS * LANES * CHANNELS; e += THREADS) {
        const int k = e / (LANES * CHANNELS), c = e % (LANES * CHANNELS);
        const i64 channel = (i64)blockIdx.x * LANES * CHANNELS + c;
        sum_t sum = s_sums[0][k][c];
        for (int w = 1; w < WARPS; w++)
            sum += s_sums[w][k][c];
        if (number + k >= 0 && channel < p.channels)
            p.partial[((i64)blockIdx.y * numbers + number + k) * p.channels + channel] = sum;
    }
}
