/* depthwise_mma: Y[n,c,o] = epilogue(sum over taps t of X[n, c, (o * STEP + t * DILATION - pre) / SPREAD] * W[c,t])
   Types     f16 and bf16, NHWC, sm_80 and up
   Formula   a row of the filter as a matrix: 8 adjacent outputs see 16 adjacent inputs through B[k][n] = W[c, k - n], 0
             outside the filter. So a product of 16 lines x 8 outputs x 16 inputs costs one instruction per row of taps,
             although most of B is 0
   Tile      a block computes rows begin .. end - 1 of LINES = IMAGES x STRIPS strips of 8 columns, of CHANNELS
             channels; a warp two channels
   Order     as in depthwise.cuh: an input row is read once, for all outputs that it reaches, whose sums stay in
             registers
   Inputs    two channels are a word in shared memory; words of two columns exchange halves to become pairs along k of
             either channel. Lane l has columns l % 4 + {0, 4, 8, 12}, in this order in A and in B, so that elements
             read in one access are in different banks
   Pipeline  load  |band 1   |band 2   |...      bands as in depthwise.cuh; a complete row passes through
             sum   |band 0   |band 1   |...      shared memory, so that one thread gets 8 channels of a pixel:
                                                 one more barrier per row
   Limits    SPREAD and STEP along the width are 1, filters span at most 9 columns. An infinity or NaN in X affects all
             8 outputs of a strip that sees it: multiplied by 0, it makes them NaN
   Measured  2026-11-21, H200, N64 C384 28x28 7x7 bf16: 57-60 us where cuDNN takes 3668; depthwise.cuh takes 73
   Tried     six rows at a time: 88 us, one: 60, seven: 57; blocks of 32 channels: 67; 3x3, where depthwise.cuh is as
             fast
   Params    TAPS_* STEP_H SPREAD_H DILATION_* STRIPS CHANNELS IMAGE_RUN BAND_PERIODS UNROLLED STAGES THREADS BLOCKS RUN
             image_t sum_t index */
#include "core/async.cuh"
#include "core/mma.cuh"
#include "product/depthwise/index_map.cuh"

constexpr int LINES = MMA_LINES, DEPTH = MMA_DEPTH, IMAGES = LINES / STRIPS, COLUMNS = TILE_W + DEPTH - STRIP;
/* Layout of a row of sums on its way to the epilogue: 9 pixels per line, and 4 words after a pixel's channels, to avoid
   bank conflicts. */
constexpr int LINE_PITCH = STRIP + LINE_PAD, PIXEL_PITCH = CHANNELS + PIXEL_PAD;
static_assert(STRIP == MMA_STRIP && SPAN_W <= DEPTH - STRIP + 1 && STEP_W == 1 && SPREAD_W == 1,
              "16 inputs are under 8 outputs");
static_assert(LINES % STRIPS == 0 && THREADS == CHANNELS / 2 * 32 && CHANNELS_LAST && !HAS_DEPTH,
              "a warp has two channels");

using input_band = band<image_t, IMAGE_RUN, IMAGES, INPUT_ROWS, COLUMNS, PLANE_PAD>;

struct memory {
    union {
        input_band bands[STAGES];
        image_t taps[CHANNELS * TAPS];
    };
    alignas(16) float rows[2][LINES * LINE_PITCH * PIXEL_PITCH];
};

constexpr depthwise_memory MEMORY =
    depthwise_memory_of(depthwise_shape{true, CHANNELS_LAST, sizeof(image_t), 0, IMAGES, INPUT_ROWS, COLUMNS,
                                        BAND_PERIODS, TILE_W, CHANNELS, TAPS, STAGES});
static_assert(sizeof(memory) <= MEMORY.bytes, "the host allocates this");

extern __shared__ __align__(16) unsigned char s_memory[];

DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int own_pair() { return threadIdx.x / 32; }
DEVICE int image_of(int line) { return line % IMAGES; }
DEVICE int strip_of(int line) { return line / IMAGES; }

/* ---- The filter ---- */

DEVICE u32 tap_bits(const memory &s, int channel, int h, int column) {
    const int w = column - lane() / 4;
    const bool inside = w >= 0 && w < SPAN_W && w % DILATION_W == 0;
    return inside ? s.taps[channel * TAPS + h * TAPS_W + w / DILATION_W].bits : 0;
}

using filter = u32[TAPS_H][2][2]; /* B of each row of taps, for both channels */

DEVICE void load_filter(filter &b, memory &s, const arguments &p, i32 channel) {
    for (int e = threadIdx.x; e < CHANNELS * TAPS; e += THREADS) {
        const i64 c = channel + e / TAPS, h = e / TAPS_W % TAPS_H, w = e % TAPS_W;
        if (c < p.channels)
            s.taps[e] = p.filter[p.filter_first + c * p.filter_c + h * p.filter_h + w * p.filter_w];
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < TAPS_H; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = own_pair() * 2 + e / 2, k = lane() % 4 + e % 2 * 8;
            b[h][e / 2][e % 2] = tap_bits(s, c, h, k) | tap_bits(s, c, h, k + 4) << 16;
        }
    __syncthreads();
}

/* ---- A row of inputs ---- */

/* Returns the offset in a band, in words, of this lane's columns of line l / 4 or l / 4 + 8. */
DEVICE int own_inputs(int half) {
    const int line = lane() / 4 + half * 8;
    return (input_band::offset(image_of(line), 0) + (strip_of(line) * STRIP + lane() % 4) * CHANNELS) / 2 + own_pair();
}

DEVICE void read_row(u32 (&a)[2][4], const u32 *(&inputs)[2], int row) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 words[4];
#pragma unroll
        for (int t = 0; t < 4; t++)
            words[t] = inputs[half][(row * input_band::ROW_PITCH + t * 4 * CHANNELS) / 2];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            a[0][half + t * 2] = __byte_perm(words[2 * t], words[2 * t + 1], 0x5410);
            a[1][half + t * 2] = __byte_perm(words[2 * t], words[2 * t + 1], 0x7632);
        }
    }
}

using sums = float[2][4]; /* 16 lines x 8 outputs, for both channels */

/* Adds an input row to all outputs that it reaches; u: its position in the period. */
DEVICE void add_row(sums (&sum)[SLOTS], const u32 (&a)[2][4], const filter &b, int u) {
#pragma unroll
    for (int h = 0; h < TAPS_H; h++) {
        if (!has_output(u, h * DILATION_H))
            continue;
        const int slot = slot_of(u, h * DILATION_H);
#pragma unroll
        for (int c = 0; c < 2; c++)
            product<image_t, image_t>::add<true>(sum[slot][c], a[c], b[h][c]);
    }
}

/* ---- A row of outputs ---- */

DEVICE void store_row(float *to, const sums &sum) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int line = lane() / 4 + e / 2 * 8, q = lane() % 4 * 2 + e % 2;
        store_run<float, 2>(to + (line * LINE_PITCH + q) * PIXEL_PITCH + own_pair() * 2,
                            run<float, 2>{sum[0][e], sum[1][e]});
    }
}

/* A run of channels of a pixel on its way from shared memory to epilogue(). */
struct output_run {
    index position; /* position of the pixel in row 0 of its image */
    i32 from, channel;
    bool inside;
};

DEVICE output_run find_output_run(const arguments &p, const patch &at, i32 channel, int e) {
    constexpr int ACROSS = CHANNELS / RUN;
    static_assert(CHANNELS % RUN == 0 && LINES * STRIP * ACROSS % THREADS == 0, "the threads store all runs");
    const int c = e % ACROSS * RUN, q = e / ACROSS % STRIP, line = e / ACROSS / STRIP;
    const u32 n = at.n * IMAGES + image_of(line);
    const i32 column = at.column + strip_of(line) * STRIP + q;
    return output_run{(index)n * (index)p.height_out * (index)p.width_out + column,
                      (line * LINE_PITCH + q) * PIXEL_PITCH + c, channel + c,
                      n < (u32)p.images && column < (i32)p.width_out && channel + c < (i32)p.channels};
}

/* `first` is this thread's first run, and its only one if runs have 8 channels; `in`: its epilogue operands. */
DEVICE void finish_row(const float *from, const arguments &p, const patch &at, i32 channel, i32 row,
                       const output_run &first, const fetched &in) {
#pragma unroll
    for (int e = 0; e < LINES * STRIP * CHANNELS / RUN; e += THREADS) {
        const output_run out = e == 0 ? first : find_output_run(p, at, channel, e + threadIdx.x);
        const index pixel = out.position + row * (index)p.width_out;
        if (out.inside)
            epilogue(p, 0, pixel, out.channel, load_run<float, RUN>(from + out.from),
                     e == 0 ? in : fetch(p, 0, pixel, out.channel));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_mma(const __grid_constant__ arguments p) {
    memory &s = *(memory *)s_memory;
    u32 number = blockIdx.x;
    const i32 channel = (i32)split(number, p.channel_blocks) * CHANNELS;
    const patch at = find_patch(p, number);
    const i32 top = first_input_row(p, at), column = first_input_column(p, at), bands = count_bands(at);
    image<image_t> x = input_image(p, at.n * IMAGES, channel);
    x.stride_d = p.image_n; /* the images of the block take the role of planes */
    const output_run first = find_output_run(p, at, channel, threadIdx.x);
    filter taps;
    sums sum[SLOTS] = {};
    load_filter(taps, s, p, channel);
    const auto load = [&](i32 k) {
        if (k < bands)
            s.bands[k % STAGES].load(x, top + k * INPUT_ROWS, column,
                                     [&](int i) { return at.n * IMAGES + i < (u32)p.images ? i : -1; });
        commit_copies();
    };
#pragma unroll
    for (int k = 0; k < STAGES - 1; k++)
        load(k);
    for (i32 k = 0; k < bands; k++) {
        await_copies<STAGES - 2>();
        __syncthreads();
        load(k + STAGES - 1);
        const u32 *inputs[2] = {(const u32 *)s.bands[k % STAGES].at + own_inputs(0),
                                (const u32 *)s.bands[k % STAGES].at + own_inputs(1)};
#pragma unroll UNROLLED
        for (i32 period = 0; period < BAND_PERIODS; period++) {
            const i32 row = period * PERIOD_INPUTS, begin = at.top + (k * BAND_PERIODS + period) * COMPLETED - BACK;
            shift_rows(sum);
#pragma unroll
            for (int u = 0; u < PERIOD; u++) {
                const i32 output = begin + slot_of(u, SPAN_H - 1);
                const bool ends = has_output(u, SPAN_H - 1) && output >= at.begin && output < at.end;
                fetched in = {}; /* loaded before the last inputs are summed */
                if (FETCHED_WORDS > 0 && ends && first.inside)
                    in = fetch(p, 0, first.position + output * (index)p.width_out, first.channel);
                if (u % SPREAD_H == 0 && (u32)(top + k * INPUT_ROWS + row + u / SPREAD_H) < (u32)p.height_in) {
                    u32 a[2][4];
                    read_row(a, inputs, row + u / SPREAD_H);
                    add_row(sum, a, taps, u);
                }
                if (!ends)
                    continue;
                float *passing = s.rows[output & 1]; /* threads may still be reading the other one */
                store_row(passing, sum[slot_of(u, SPAN_H - 1)]);
                __syncthreads();
                finish_row(passing, p, at, channel, output, first, in);
            }
        }
    }
}
