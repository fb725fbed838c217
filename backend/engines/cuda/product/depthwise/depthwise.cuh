/* depthwise: Y[n,c,o] = epilogue(sum over taps t of X[n, c, (o * STEP + t * DILATION - pre) / SPREAD] * W[c,t])
   Types     any float types, NHWC and NCHW, sm_80 and up
   Formula   only inputs inside the image, and only where the division has no remainder. The forward operation has
             SPREAD 1, the data gradient STEP 1 and reversed taps; epilogue() is generated from the graph
   Tile      a block computes rows begin .. end - 1 of TILE_W columns of CHANNELS channels; a thread STRIP adjacent
             outputs of one channel
   Order     an input row is read once, for all outputs that it reaches: all taps of the channel and SLOTS rows of sums
             stay in registers
   Pipeline  load  |band 1   |band 2   |band 3   |...      a band is a few rows in shared memory
             sum             |band 0   |band 1   |...      STAGES of them; cp.async runs STAGES - 1 bands ahead
                                                           one barrier per band
   Memory    STAGES bands; the taps are loaded through the last one
   Limits    taps, sums and a strip of inputs must fit in registers: the host checks it before code generation
   Measured  2026-11-21, H200, N32 C384 28x28 7x7 float: 50 us, 19 TFLOP/s; figures of more shapes in
             benchmarks/results/h200-depthwise.csv
   Tried     a band of 7 rows of 7x7 unrolled, 62 KB of text: 56 us, one row at a time: 54, two: 50; of 3x3, N64 C144
             56x56 bf16, three rows at a time: 55, one: 69
             epilogue operands loaded one by one after their stores: N128 C144 56x56 3x3 bf16, the gradient of a swish
             after the data gradient, 748 us (H200)
   Params    TAPS_* STEP_* SPREAD_* DILATION_* HAS_DEPTH STRIP STRIPS CHANNELS CHANNELS_LAST IMAGE_RUN BAND_PERIODS
             UNROLLED STAGES THREADS BLOCKS image_t filter_t sum_t index */
#include "core/async.cuh"
#include "product/depthwise/index_map.cuh"

static_assert(THREADS == CHANNELS * STRIPS, "a thread has a strip of one channel");

using input_band = band<image_t, IMAGE_RUN, TAPS_D, INPUT_ROWS, INPUT_COLUMNS>;

struct memory {
    union {
        input_band bands[STAGES];
        float taps[CHANNELS * (TAPS | 1)]; /* an odd pitch puts each channel in its own bank */
    };
};

constexpr depthwise_memory MEMORY =
    depthwise_memory_of(depthwise_shape{false, CHANNELS_LAST, sizeof(image_t), 0, TAPS_D, INPUT_ROWS, INPUT_COLUMNS,
                                        BAND_PERIODS, TILE_W, CHANNELS, TAPS, STAGES});
static_assert(sizeof(memory) <= MEMORY.bytes, "the host allocates this");

extern __shared__ __align__(16) unsigned char s_memory[];

DEVICE void load_taps(float (&taps)[TAPS], memory &s, const arguments &p, i32 channel) {
    for (int e = threadIdx.x; e < CHANNELS * TAPS; e += THREADS) {
        const i64 c = channel + e / TAPS, d = e % TAPS / (TAPS_H * TAPS_W), h = e / TAPS_W % TAPS_H, w = e % TAPS_W;
        if (c < p.channels)
            s.taps[e / TAPS * (TAPS | 1) + e % TAPS] =
                to_float(p.filter[p.filter_first + c * p.filter_c + d * p.filter_d + h * p.filter_h + w * p.filter_w]);
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < TAPS; t++)
        taps[t] = s.taps[own_channel() * (TAPS | 1) + t];
    __syncthreads();
}

/* Adds an input row to all outputs that it reaches; u: its position in the period. */
DEVICE void add_row(float (&sums)[SLOTS][STRIP], const float (&x)[STRIP_INPUTS], const float *taps, int u) {
#pragma unroll
    for (int h = 0; h < TAPS_H; h++) {
        if (!has_output(u, h * DILATION_H))
            continue;
        const int slot = slot_of(u, h * DILATION_H);
#pragma unroll
        for (int w = 0; w < TAPS_W; w++)
#pragma unroll
            for (int q = 0; q < STRIP; q++) {
                const int at = q * STEP_W + w * DILATION_W;
                if (at % SPREAD_W == 0)
                    sums[slot][q] += x[at / SPREAD_W] * taps[h * TAPS_W + w];
            }
    }
}

/* Calls f(q, pixel) for the outputs of a thread's strip in a row. Most strips are entirely inside the image and need no
   test per output. */
template <class F> DEVICE void for_outputs(const arguments &p, const patch &at, i32 channel, i32 row, F f) {
    const i32 column = at.column + own_strip() * STRIP;
    const index line =
        (((index)at.n * (index)p.depth_out + at.depth) * (index)p.height_out + row) * (index)p.width_out + column;
    const bool is_whole = column >= 0 && column + STRIP <= (i32)p.width_out;
    if (row >= at.begin && row < at.end && channel < p.channels) {
        if (is_whole) {
#pragma unroll
            for (int q = 0; q < STRIP; q++)
                f(q, line + q);
        } else {
#pragma unroll
            for (int q = 0; q < STRIP; q++)
                if ((u32)(column + q) < (u32)p.width_out)
                    f(q, line + q);
        }
    }
}

/* Epilogue operands of a strip of outputs are loaded together if registers can hold them in addition to taps, sums and
   inputs, because after a store the compiler would make each load wait for it. If they need at most four words, they
   are loaded even before the last inputs are summed. */
constexpr bool HAS_ROOM = TAPS + SLOTS * STRIP + STRIP_INPUTS <= 104;
constexpr bool READS_WHOLE = HAS_ROOM && FETCHED_WORDS > 0 && FETCHED_WORDS <= 8;
constexpr bool READS_AHEAD = READS_WHOLE && FETCHED_WORDS <= 4;

DEVICE void fetch_row(fetched (&in)[STRIP], const arguments &p, const patch &at, i32 channel, i32 row) {
    for_outputs(p, at, channel, row, [&](int q, index pixel) { in[q] = fetch(p, 0, pixel, channel); });
}

DEVICE void epilogue_row(const float (&sums)[STRIP], fetched (&in)[STRIP], const arguments &p, const patch &at,
                         i32 channel, i32 row) {
    if constexpr (READS_WHOLE && !READS_AHEAD)
        fetch_row(in, p, at, channel, row);
    for_outputs(p, at, channel, row, [&](int q, index pixel) {
        if constexpr (READS_WHOLE)
            epilogue(p, 0, pixel, channel, run<sum_t, 1>{sums[q]}, in[q]);
        else
            epilogue(p, 0, pixel, channel, run<sum_t, 1>{sums[q]});
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(const __grid_constant__ arguments p) {
    memory &s = *(memory *)s_memory;
    u32 number = blockIdx.x;
    const i32 channel = (i32)split(number, p.channel_blocks) * CHANNELS;
    const patch at = find_patch(p, number);
    const i32 top = first_input_row(p, at), column = first_input_column(p, at), bands = count_bands(at);
    const image<image_t> x = input_image(p, at.n, channel);
    float taps[TAPS], sums[SLOTS][STRIP] = {};
    load_taps(taps, s, p, channel);
    const auto load = [&](i32 k) {
        if (k < bands)
            s.bands[k % STAGES].load(x, top + k * INPUT_ROWS, column,
                                     [&](int d) { return input_plane(p, at.depth, d); });
        commit_copies();
    };
#pragma unroll
    for (int k = 0; k < STAGES - 1; k++)
        load(k);
    for (i32 k = 0; k < bands; k++) {
        await_copies<STAGES - 2>();
        __syncthreads();
        load(k + STAGES - 1);
#pragma unroll UNROLLED
        for (i32 period = 0; period < BAND_PERIODS; period++) {
            const i32 row = period * PERIOD_INPUTS, output = at.top + (k * BAND_PERIODS + period) * COMPLETED - BACK;
            shift_rows(sums);
#pragma unroll
            for (int u = 0; u < PERIOD; u++) {
                const i32 ended = output + slot_of(u, SPAN_H - 1);
                fetched in[STRIP] = {};
                if (READS_AHEAD && has_output(u, SPAN_H - 1))
                    fetch_row(in, p, at, channel + own_channel(), ended);
                if (u % SPREAD_H == 0 && (u32)(top + k * INPUT_ROWS + row + u / SPREAD_H) < (u32)p.height_in) {
#pragma unroll
                    for (int d = 0; d < TAPS_D; d++) {
                        float r[STRIP_INPUTS];
                        read_strip<STRIP_INPUTS, STRIP * STEP_W / SPREAD_W>(r, s.bands[k % STAGES], d,
                                                                            row + u / SPREAD_H);
                        add_row(sums, r, taps + d * TAPS_H * TAPS_W, u);
                    }
                }
                if (has_output(u, SPAN_H - 1))
                    epilogue_row(sums[slot_of(u, SPAN_H - 1)], in, p, at, channel + own_channel(), ended);
            }
        }
    }
}
