/* stem: Y[n,p,q,k] = epilogue(sum over r,s,c of X[n, p * STRIDE + r * DILATION - pre, .., c] * W[k,r,s,c])
   Types     f16 and bf16, at most 8 input channels, sm_80 and up
   Formula   products of 16 pixels x 8 filters x 2 taps of 8 channels; epilogue() is generated from the graph
   Tile      a block computes TILE_P x TILE_Q outputs of FILTERS filters; a warp FRAGMENTS rows of 16 adjacent outputs.
             Persistent over tiles
   Idea      each pixel of the image is loaded once per tile and padded to 8 channels, 16 bytes: a row that ldmatrix can
             read at any address, so that a tap is just an offset. There is no im2col matrix in memory
   Overlap   three blocks per multiprocessor, each with one warp per scheduler: while one waits for its patch or stores
             its sums, the others multiply. All filters stay in shared memory for the block's lifetime
   Memory    filters of all taps, one patch; sums pass to epilogue() through the patch just read
   Measured  2026-11-21, H200, N128 C8 224x224 K64 7x7 / 2 bf16: 246 us where cuDNN takes 873; C3: 282. stem_sm90.cuh
             takes 166-190 for the former
   Tried     two patches and two blocks: 234 us, and 322 with 3 channels; 8 warps with half the sums each: 264
   Params    TAPS_H TAPS_W STRIDE_H STRIDE_W DILATION_H DILATION_W CHANNELS TILE_P TILE_Q FILTERS WARPS BLOCKS IMAGE_RUN
             FILTER_RUN RUN LEAD_IS_ROW in_t */
#include "core/async.cuh"
#include "core/mma.cuh"
#include "product/stem/pixels.cuh"

constexpr int THREADS = WARPS * 32;
constexpr int TAPS = TAPS_H * TAPS_W, STEPS = (TAPS + 1) / 2;
constexpr stem_memory MEMORY = stem_memory_of(stem_shape{TAPS_H, TAPS_W, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W,
                                                         TILE_P, TILE_Q, FILTERS, WARPS, 1, LEAD_IS_ROW});
constexpr int PATCH_H = MEMORY.patch_h, PATCH_W = MEMORY.patch_w;
constexpr int FRAGMENTS_ACROSS = TILE_Q / 16, FRAGMENTS = TILE_P * FRAGMENTS_ACROSS / WARPS;
/* Layout of the sums of one fragment for the epilogue. */
constexpr int EPILOGUE_PITCH = MEMORY.epilogue_pitch, EPILOGUE_LINES = MEMORY.epilogue_lines;
static_assert(TILE_Q % 16 == 0 && FRAGMENTS * WARPS == TILE_P * FRAGMENTS_ACROSS && FRAGMENTS % FRAGMENTS_ACROSS == 0 &&
                  FILTERS % 16 == 0,
              "whole products only");

using patch = pixel_patch<in_t, IMAGE_RUN, PATCH_H, PATCH_W, STRIDE_W>;

struct memory {
    pixel<in_t> filters[2 * STEPS * FILTERS]; /* [tap][filter] */
    i32 taps[2 * STEPS];                      /* offset of each tap's pixel from that of the first tap */
    union {
        patch x;
        alignas(16) float epilogue_tiles[WARPS][EPILOGUE_LINES * EPILOGUE_PITCH];
    };
};
static_assert(sizeof(memory) == MEMORY.bytes, "the host allocates this");

extern __shared__ __align__(16) unsigned char s_memory[];

DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int warp() { return threadIdx.x / 32; }
/* The position of a warp's fragments in the tile. */
DEVICE int own_row() { return warp() * (FRAGMENTS / FRAGMENTS_ACROSS); }
constexpr DEVICE int fragment_row(int fragment) { return fragment / FRAGMENTS_ACROSS; }
constexpr DEVICE int fragment_column(int fragment) { return fragment % FRAGMENTS_ACROSS * 16; }

/* A dummy tap that makes their number even is 0, with the offset of the previous one. */
DEVICE void load_filters(memory &s, const arguments &p, i32 filter) {
    for (int e = threadIdx.x; e < 2 * STEPS; e += THREADS) {
        const int tap = e < TAPS ? e : TAPS - 1;
        s.taps[e] = patch::offset(tap / TAPS_W * DILATION_H, tap % TAPS_W * DILATION_W);
    }
    for (int e = threadIdx.x; e < 2 * STEPS * FILTERS; e += THREADS) {
        const i32 k = filter + e % FILTERS, tap = e / FILTERS;
        const bool inside = k < (i32)p.filters && tap < TAPS;
        const in_t *from = p.w + (inside ? k * p.w_k + tap / TAPS_W * p.w_h + tap % TAPS_W * p.w_w : 0);
        load_pixel<FILTER_RUN>(&s.filters[e], from, p.w_c, inside);
    }
}

struct tile_coordinates {
    u32 n;
    i32 row, column; /* position in the output */
};

DEVICE tile_coordinates find_tile(const arguments &p, u32 tile) {
    const i32 column = (i32)split(tile, p.tiles_q) * TILE_Q, row = (i32)split(tile, p.tiles_p) * TILE_P;
    return tile_coordinates{tile, row, column};
}

DEVICE void load_patch(patch &x, const arguments &p, u32 tile) {
    const tile_coordinates at = find_tile(p, tile);
    const channels_image<in_t> image{p.x + at.n * p.x_n, p.x_h, p.x_w, p.x_c, (i32)p.height, (i32)p.width};
    x.load<THREADS>(image, at.row * STRIDE_H - (i32)p.pre_h, at.column * STRIDE_W - (i32)p.pre_w);
}

DEVICE void multiply(float (&sums)[FRAGMENTS][FILTERS / 8][4], const memory &s) {
    const pixel<in_t> *pixels = s.x.at + (own_row() * STRIDE_H * patch::PITCH + lane() % 16);
    const pixel<in_t> *filters = s.filters + (lane() / 8 % 2 * FILTERS + lane() / 16 * 8 + lane() % 8);
#pragma unroll 1 /* unrolling would spill; warps of other blocks hide the loads */
    for (int step = 0; step < STEPS; step++) {
        const int tap = s.taps[2 * step + lane() / 16];
        u32 a[FRAGMENTS][4];
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++)
            load_blocks(a[f], pixels + (tap + fragment_row(f) * STRIDE_H * patch::PITCH + fragment_column(f)));
#pragma unroll
        for (int n = 0; n < FILTERS / 8; n += 2) {
            u32 b[4];
            load_blocks(b, filters + (step * 2 * FILTERS + n * 8));
#pragma unroll
            for (int f = 0; f < 2 * FRAGMENTS; f++)
                product<in_t, in_t>::add<true>(sums[f / 2][n + f % 2], a[f / 2], b + f % 2 * 2);
        }
    }
}

/* Passes the sums of a fragment through shared memory, so that one thread gets contiguous results. */
DEVICE void store_fragment(const float (&sums)[FILTERS / 8][4], float *epilogue_tile, const arguments &p,
                           const tile_coordinates &at, i32 row, i32 column, i32 filter) {
#pragma unroll
    for (int n = 0; n < FILTERS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = lane() / 4 + e / 2 * 8, j = n * 8 + lane() % 4 * 2 + e % 2;
            epilogue_tile[LEAD_IS_ROW ? j * EPILOGUE_PITCH + i : i * EPILOGUE_PITCH + j] = sums[n][e];
        }
    __syncwarp();
    constexpr int ACROSS = (LEAD_IS_ROW ? 16 : FILTERS) / RUN;
    for (int t = lane(); t < EPILOGUE_LINES * ACROSS; t += 32) {
        const int line = t / ACROSS, along = t % ACROSS * RUN;
        const i32 q = column + (LEAD_IS_ROW ? along : line), k = filter + (LEAD_IS_ROW ? line : along);
        if (row < (i32)p.rows && q < (i32)p.columns && k < (i32)p.filters)
            epilogue(p, 0, ((index)at.n * (index)p.rows + row) * (index)p.columns + q, k,
                     load_run<float, RUN>(epilogue_tile + line * EPILOGUE_PITCH + along));
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) stem(const __grid_constant__ arguments p) {
    memory &s = *(memory *)s_memory;
    u32 first = blockIdx.x;
    const i32 filter = (i32)split(first, p.filter_tiles) * FILTERS;
    const u32 tiles = (u32)p.tiles, step = gridDim.x / p.filter_tiles.value;
    load_filters(s, p, filter);
    for (u32 tile = first; tile < tiles; tile += step) {
        load_patch(s.x, p, tile);
        commit_copies();
        await_copies<0>();
        __syncthreads();
        float sums[FRAGMENTS][FILTERS / 8][4] = {};
        multiply(sums, s);
        __syncthreads();
        const tile_coordinates at = find_tile(p, tile);
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++)
            store_fragment(sums[f], s.epilogue_tiles[warp()], p, at, at.row + own_row() + fragment_row(f),
                           at.column + fragment_column(f), filter);
        __syncthreads();
    }
}
