/* depthwise_wgrad: dW[c,t] = epilogue(sum over n, o of X[n, c, o * STEP + t * DILATION - pre] * dY[n,c,o])
   Types     any float types, NHWC and NCHW, sm_80 and up
   Tile      a block sums patches of dY, each rows begin .. end - 1 of TILE_W columns, for CHANNELS channels; a thread
             has all taps of one channel, and sums the contributions of STRIP adjacent columns
   Order     as in depthwise.cuh, with dY in the place of the sums: each row of X is combined with the SLOTS rows of dY
             that it reaches, all in registers
   Order     patches from the first to the last, then strips, then, in combine_splits.cuh, the parts of the blocks: the
             same bits in every run
   Memory    STAGES bands of X and dY; the strips are added in the first one
   Limits    as in depthwise.cuh
   Measured  2026-11-21, H200, N64 C384 28x28 7x7 bf16: 67-78 us, depending on the number of parts; with 64 parts,
             combine_splits.cuh takes about 10 of them
   Params    TAPS_* STEP_* DILATION_* HAS_DEPTH STRIP STRIPS CHANNELS CHANNELS_LAST IMAGE_RUN LOSS_RUN BAND_PERIODS
             UNROLLED STAGES THREADS BLOCKS IS_FLIPPED LEAD_IS_ROW image_t loss_t */
#include "core/async.cuh"
#include "product/depthwise/index_map.cuh"

static_assert(THREADS == CHANNELS * STRIPS, "a thread has a strip of one channel");

struct stage {
    band<image_t, IMAGE_RUN, TAPS_D, INPUT_ROWS, INPUT_COLUMNS> image;
    band<loss_t, LOSS_RUN, 1, BAND_PERIODS, TILE_W> loss;
};

struct memory {
    union {
        stage stages[STAGES];
        float taps[CHANNELS * (TAPS | 1)]; /* an odd pitch puts each channel in its own bank */
    };
};

constexpr depthwise_memory MEMORY =
    depthwise_memory_of(depthwise_shape{false, CHANNELS_LAST, sizeof(image_t), sizeof(loss_t), TAPS_D, INPUT_ROWS,
                                        INPUT_COLUMNS, BAND_PERIODS, TILE_W, CHANNELS, TAPS, STAGES});
static_assert(sizeof(memory) <= MEMORY.bytes, "the host allocates this");

extern __shared__ __align__(16) unsigned char s_memory[];

/* Adds to the taps the products of a row of X and the rows of dY that it reaches; u: its position in the period. */
DEVICE void add_row(float *taps, const float (&x)[STRIP_INPUTS], const float (&loss)[SLOTS][STRIP], int u) {
#pragma unroll
    for (int h = 0; h < TAPS_H; h++) {
        if (!has_output(u, h * DILATION_H))
            continue;
        const int slot = slot_of(u, h * DILATION_H);
#pragma unroll
        for (int w = 0; w < TAPS_W; w++)
#pragma unroll
            for (int q = 0; q < STRIP; q++)
                taps[h * TAPS_W + w] += x[q * STEP_W + w * DILATION_W] * loss[slot][q];
    }
}

DEVICE void add_patch(float (&taps)[TAPS], memory &s, const arguments &p, const patch &at, i32 channel) {
    const i32 top = first_input_row(p, at), column = first_input_column(p, at), bands = count_bands(at);
    const image<image_t> x = input_image(p, at.n, channel);
    const image<loss_t> y{p.loss + (at.n * p.loss_n + channel * p.loss_c),
                          p.loss_d,
                          p.loss_h,
                          p.loss_w,
                          p.loss_c,
                          at.end,
                          (i32)p.width_out,
                          (i32)p.channels - channel};
    const auto load = [&](i32 k) {
        if (k < bands) {
            s.stages[k % STAGES].image.load(x, top + k * INPUT_ROWS, column,
                                            [&](int d) { return input_plane(p, at.depth, d); });
            s.stages[k % STAGES].loss.load(y, at.top + k * BAND_PERIODS, at.column, [&](int) { return at.depth; });
        }
        commit_copies();
    };
#pragma unroll
    for (int k = 0; k < STAGES - 1; k++)
        load(k);
    float loss[SLOTS][STRIP] = {};
    for (i32 k = 0; k < bands; k++) {
        await_copies<STAGES - 2>();
        __syncthreads();
        load(k + STAGES - 1);
        const stage &now = s.stages[k % STAGES];
#pragma unroll UNROLLED
        for (i32 period = 0; period < BAND_PERIODS; period++) {
            const i32 row = period * PERIOD_INPUTS;
            shift_rows(loss);
            read_strip<STRIP, STRIP>(loss[SLOTS - 1], now.loss, 0, period);
#pragma unroll
            for (int u = 0; u < PERIOD; u++) {
                if ((u32)(top + k * INPUT_ROWS + row + u) >= (u32)p.height_in)
                    continue;
#pragma unroll
                for (int d = 0; d < TAPS_D; d++) {
                    float r[STRIP_INPUTS];
                    read_strip<STRIP_INPUTS, STRIP * STEP_W>(r, now.image, d, row + u);
                    add_row(taps + d * TAPS_H * TAPS_W, r, loss, u);
                }
            }
        }
    }
    __syncthreads();
}

/* Adds the strips, from the first to the last, and stores the sums in the order that combine_splits.cuh reads. */
DEVICE void end_taps(const float (&taps)[TAPS], memory &s, const arguments &p, i32 channel, u32 part) {
    for (int strip = 0; strip < STRIPS; strip++) {
        if (strip == own_strip())
#pragma unroll
            for (int t = 0; t < TAPS; t++) {
                float &sum = s.taps[own_channel() * (TAPS | 1) + t];
                sum = strip == 0 ? taps[t] : sum + taps[t];
            }
        __syncthreads();
    }
    for (int e = threadIdx.x; e < CHANNELS * TAPS; e += THREADS) {
        const i64 c = channel + e / TAPS, t = IS_FLIPPED ? TAPS - 1 - e % TAPS : e % TAPS;
        const i64 at = LEAD_IS_ROW ? c * TAPS + t : t * p.channels + c;
        if (c < p.channels)
            p.partial[part * p.channels * TAPS + at] = s.taps[e / TAPS * (TAPS | 1) + e % TAPS];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_wgrad(const __grid_constant__ arguments p) {
    memory &s = *(memory *)s_memory;
    u32 part = blockIdx.x;
    const i32 channel = (i32)split(part, p.channel_blocks) * CHANNELS;
    float taps[TAPS] = {};
    for (i64 number = part; number < p.patches; number += p.splits)
        add_patch(taps, s, p, find_patch(p, (u32)number), channel);
    end_taps(taps, s, p, channel, part);
}
