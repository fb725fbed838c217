/* stem_wgrad: dW[k,r,s,c] = epilogue(sum over n,p,q of dY[n,p,q,k] * X[n, p * STRIDE + r * DILATION - pre, .., c])
   Types     f16 and bf16, at most 8 channels, sm_80 and up
   Formula   products of 16 filters x 8 channels of a tap x 16 adjacent pixels
   Tile      a block sums TILE_P x TILE_Q pixels at a time for FILTERS filters and all taps; each half of its warps has
             half of the filters, and the warps of a half share the taps. Persistent over tiles, whose sums stay in
             registers
   Idea      as in stem.cuh: pixels of X are 16 bytes at any offset of a tap, and ldmatrix transposes pixels and
             channels
   Pipeline  load  |stage 1  |stage 2  |stage 3  |...      X and dY of a tile, STAGES - 1 tiles ahead
             math            |stage 0  |stage 1  |...      one barrier per tile
   Order     tiles of a block from the first to the last, then, in combine_splits.cuh, blocks: the same bits in every
             run
   Measured  2026-11-21, H200, N128 C8 224x224 K64 7x7 / 2 bf16: 265 us where cuDNN takes 457
   Params    TAPS_H TAPS_W STRIDE_H STRIDE_W DILATION_H DILATION_W CHANNELS TILE_P TILE_Q FILTERS STAGES IMAGE_RUN
             LOSS_RUN LEAD_IS_ROW in_t */
#include "core/async.cuh"
#include "core/mma.cuh"
#include "product/stem/pixels.cuh"

constexpr int THREADS = WARPS * 32, HALVES = 2;
constexpr int TAPS = TAPS_H * TAPS_W, OWN_TAPS = (TAPS + WARPS / HALVES - 1) / (WARPS / HALVES),
              TAP_PAIRS = (OWN_TAPS + 1) / 2;
constexpr int OWN_FILTERS = FILTERS / HALVES / 16; /* in units of 16 */
constexpr stem_memory MEMORY = stem_wgrad_memory_of(stem_shape{
    TAPS_H, TAPS_W, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, TILE_P, TILE_Q, FILTERS, WARPS, STAGES, LEAD_IS_ROW});
constexpr int PATCH_H = MEMORY.patch_h, PATCH_W = MEMORY.patch_w;
static_assert(TILE_Q % 16 == 0 && FILTERS % (HALVES * 16) == 0, "whole products only");

using patch = pixel_patch<in_t, IMAGE_RUN, PATCH_H, PATCH_W, STRIDE_W>;

struct stage {
    patch x;
    filter_patch<in_t, LOSS_RUN, FILTERS, TILE_P, TILE_Q> loss;
};
static_assert(STAGES * sizeof(stage) == MEMORY.bytes, "the host allocates this");

extern __shared__ __align__(16) unsigned char s_memory[];

DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int own_filter() { return (int)threadIdx.x / 32 % HALVES * (OWN_FILTERS * 16); }
DEVICE int own_tap(int t) { return (int)threadIdx.x / 32 / HALVES * OWN_TAPS + t; }

/* Returns the offset of the pixel of a tap from that of the first one; surplus taps repeat the last one. */
DEVICE int tap_offset(int tap) {
    const int t = tap < TAPS ? tap : TAPS - 1;
    return patch::offset(t / TAPS_W * DILATION_H, t % TAPS_W * DILATION_W);
}

DEVICE void load_stage(stage &s, const arguments &p, u32 tile, i32 filter) {
    const i32 column = (i32)split(tile, p.tiles_q) * TILE_Q, row = (i32)split(tile, p.tiles_p) * TILE_P;
    const channels_image<in_t> image{p.x + tile * p.x_n, p.x_h, p.x_w, p.x_c, (i32)p.height, (i32)p.width};
    s.x.load<THREADS>(image, row * STRIDE_H - (i32)p.pre_h, column * STRIDE_W - (i32)p.pre_w);
    const channels_image<in_t> loss{
        p.loss + (tile * p.loss_n + filter * p.loss_k), p.loss_h, p.loss_w, p.loss_k, (i32)p.rows, (i32)p.columns};
    s.loss.load<THREADS>(loss, (i32)p.filters - filter, row, column);
}

using sums = float[OWN_FILTERS][TAP_PAIRS * 2][4];

DEVICE void multiply(sums &sum, const stage &s, const int (&taps)[TAP_PAIRS]) {
    const in_t *loss = s.loss.at + (s.loss.offset(0, lane() / 16 * 8 + lane() % 8) + own_filter() + lane() / 8 % 2 * 8);
#pragma unroll 2
    for (int fragment = 0; fragment < TILE_P * TILE_Q / 16; fragment++) {
        const int row = fragment / (TILE_Q / 16), column = fragment % (TILE_Q / 16) * 16;
        const pixel<in_t> *x = s.x.at + (row * STRIDE_H * patch::PITCH + column + lane() % 16);
        u32 a[OWN_FILTERS][4], b[TAP_PAIRS][4];
#pragma unroll
        for (int m = 0; m < OWN_FILTERS; m++)
            load_blocks_transposed(a[m], loss + (s.loss.offset(0, fragment * 16) + m * 16));
#pragma unroll
        for (int t = 0; t < TAP_PAIRS; t++)
            load_blocks_transposed(b[t], x + taps[t]);
#pragma unroll
        for (int t = 0; t < OWN_TAPS; t++)
#pragma unroll
            for (int m = 0; m < OWN_FILTERS; m++)
                product<in_t, in_t>::add<true>(sum[m][t], a[m], b[t / 2] + t % 2 * 2);
    }
}

DEVICE void store_partials(const sums &sum, const arguments &p, i32 filter, u32 part) {
    const i64 columns = TAPS * CHANNELS;
#pragma unroll
    for (int m = 0; m < OWN_FILTERS; m++)
#pragma unroll
        for (int t = 0; t < OWN_TAPS; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const i64 k = filter + own_filter() + m * 16 + lane() / 4 + e / 2 * 8, c = lane() % 4 * 2 + e % 2;
                const i64 column = (IS_FLIPPED ? TAPS - 1 - own_tap(t) : own_tap(t)) * CHANNELS + c;
                if (k < p.filters && c < CHANNELS && own_tap(t) < TAPS)
                    p.partial[part * p.filters * columns +
                              (LEAD_IS_ROW ? column * p.filters + k : k * columns + column)] = sum[m][t][e];
            }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) stem_wgrad(const __grid_constant__ arguments p) {
    stage *stages = (stage *)s_memory;
    u32 part = blockIdx.x;
    const i32 filter = (i32)split(part, p.filter_tiles) * FILTERS;
    const u32 tiles = (u32)p.tiles, step = (u32)p.splits;
    int taps[TAP_PAIRS];
#pragma unroll
    for (int t = 0; t < TAP_PAIRS; t++)
        taps[t] = tap_offset(own_tap(2 * t + lane() / 16));
    const auto load = [&](u32 tile, int slot) {
        if (tile < tiles)
            load_stage(stages[slot], p, tile, filter);
        commit_copies();
    };
#pragma unroll
    for (int k = 0; k < STAGES - 1; k++)
        load(part + k * step, k);
    sums sum = {};
    int now = 0;
    for (u32 tile = part; tile < tiles; tile += step) {
        await_copies<STAGES - 2>();
        __syncthreads();
        load(tile + (STAGES - 1) * step, (now + STAGES - 1) % STAGES);
        multiply(sum, stages[now], taps);
        now = (now + 1) % STAGES;
    }
    store_partials(sum, p, filter, part);
}
