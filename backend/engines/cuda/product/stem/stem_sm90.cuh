/* stem_sm90: a forward convolution of 8 channels, the first layer of a network
   Types     16-bit, channels last, wgmma; sm_90a
   Formula   y[n,p,q,k] = epilogue(sum over taps, c of x[n, p, q + taps, c] * w[k, tap, c])
   Idea      a pixel is 16 bytes, one row of half a product's k, so two taps make a product of 32 bytes of k. wgmma's
             unswizzled layout requires rows at multiples of 16 bytes, while the two halves of k may be anywhere. So the
             pixels that a tap reads along a line are adjacent, in one plane per remainder of the column modulo
             STRIDE_W, and a tap is an address in the patch. No channel is padding
   Tile      LINES lines of SEGMENTS * 64 positions x BLOCK_N filters for each of two math warpgroups, which alternate:
             one multiplies while the other stores
   Roles     warpgroup 0: load_patches;   warpgroups 1, 2: multiply_patch, then stage_block
   Barriers  arrived[slot]: the patch has arrived; released[slot]: it may be overwritten. SLOTS patches
   Limits    8 channels; columns of the image in whole strides; filters stay in shared memory
   Params    BLOCK_N LINES SEGMENTS SLOTS EPILOGUE_TILES PLANES STRIDE_H PATCH_H PATCH_W TAPS TAP_OFFSET TAP_R TAP_S
             RUN index sum_t stored, and multiply_accumulate (m64 x BLOCK_N x 32 bytes) */
#include "engines/cuda/product/stem/stem_sm90_geometry.h"
#include "core/async.cuh"

constexpr int BLOCKS = LINES * SEGMENTS, THREADS = (1 + CONSUMER_GROUPS) * 128, PRODUCERS = 128;
constexpr int PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = 224,
              SPARE_REGISTERS = CONSUMER_REGISTERS - BLOCKS * BLOCK_N / 2 - 40;
constexpr bool HAS_REDUCTIONS = false, AUX_LOAD = false;
constexpr int RESULTS = 1;
#include "product/hopper/epilogue_staged.cuh"

/* ---- Requirements of epilogue_staged.cuh, and shared memory ---- */

constexpr int PIXELS = PLANES * PATCH_H * PATCH_W, PAIRS_OF_TAPS = (TAPS + 1) / 2;
constexpr stem_sm90_memory MEMORY = stem_sm90_memory_of(stem_sm90_shape{PLANES, PATCH_H, PATCH_W, TAPS, BLOCK_N});
static_assert(MEMORY.bytes <= SHARED_MAX, "227 KB is all a block can have");
static_assert(BLOCKS * BLOCK_N / 2 <= 128, "the sums must fit in registers");

extern __shared__ __align__(1024) unsigned char s_memory[];

DEVICE u32 patch_slot(u32 slot) { return shared_address(s_memory) + slot * MEMORY.patch_bytes; }
DEVICE u32 filter_chunk(int tap) { return shared_address(s_memory) + MEMORY.filters + tap * MEMORY.chunk_bytes; }
DEVICE u32 arrived(u32 slot) { return shared_address(s_memory) + MEMORY.barriers + slot * 8; }
DEVICE u32 released(u32 slot) { return arrived(SLOTS + slot); }

struct slot_cursor {
    u32 slot = 0, phase = 0;
    DEVICE void advance(u32 by) {
        if ((slot += by) >= SLOTS) {
            slot -= SLOTS;
            phase ^= 1;
        }
    }
};

struct tile_coordinates {
    i32 image, line, column;
};

DEVICE tile_coordinates find_tile(const arguments &p, i32 tile) {
    u32 rest = (u32)tile;
    const i32 column = (i32)split(rest, p.tiles_q) * (SEGMENTS * 64), line = (i32)split(rest, p.tiles_p) * LINES;
    return {(i32)rest, line, column};
}

/* ---- The loaders: all threads of a warpgroup; each pixel of the patch goes to its plane, zeros outside the image
   ---------- */

DEVICE void load_patch(const arguments &p, const tile_coordinates &at, u32 slot) {
    const i32 top = at.line * STRIDE_H - (i32)p.pad_h, left = at.column * PLANES - (i32)p.pad_w;
    const stored *image = p.x + at.image * p.x_n;
    for (int t = threadIdx.x; t < PIXELS;
         t += PRODUCERS) { /* along a line of the image, whose pixels are contiguous in memory */
        const int line = t / (PATCH_W * PLANES), column = t % (PATCH_W * PLANES);
        const i32 h = top + line, w = left + column;
        const bool is_inside = (u32)h < (u32)p.height && (u32)w < (u32)p.width;
        const u32 to = ((column % PLANES * PATCH_H + line) * PATCH_W + column / PLANES) * PIXEL_BYTES;
        copy_async<16>(s_memory + slot * MEMORY.patch_bytes + to, is_inside ? image + h * p.x_h + w * p.x_w : image,
                       is_inside);
    }
    commit_copies();
}

DEVICE void publish_patch(u32 slot) {
    publish_to_async_proxy();
    arrive(arrived(slot));
}

DEVICE void load_patches(const arguments &p) {
    slot_cursor fill, ready;
    i32 loaded = 0;
    for (i32 tile = blockIdx.x; tile < (i32)p.tiles; tile += gridDim.x, ++loaded) {
        wait(released(fill.slot), fill.phase ^ 1);
        load_patch(p, find_tile(p, tile), fill.slot);
        fill.advance(1);
        if (loaded > 0) { /* the previous patch has arrived */
            await_copies<1>();
            publish_patch(ready.slot);
            ready.advance(1);
        }
    }
    await_copies<0>();
    if (loaded > 0)
        publish_patch(ready.slot);
}

/* Loads the taps in the order of their offsets, and zeros to make their number even. */
DEVICE void load_filters(const arguments &p) {
    for (int t = threadIdx.x; t < PAIRS_OF_TAPS * 2 * BLOCK_N; t += THREADS) {
        const int tap = t / BLOCK_N, k = t % BLOCK_N;
        run<stored, 8> w = {};
        if (tap < TAPS && k < (i32)p.columns)
            w = load_run<stored, 8>(p.w + k * p.w_k + TAP_R[tap] * p.w_r + TAP_S[tap] * p.w_s);
        *(run<stored, 8> *)(s_memory + MEMORY.filters + tap * MEMORY.chunk_bytes + k * PIXEL_BYTES) = w;
    }
    publish_to_async_proxy();
}

/* ---- The math warpgroups ---- */

/* An operand without swizzle: rows at multiples of 16 bytes, groups of 8 rows at multiples of 128 bytes; the second
   half of k is `next` bytes after the first. */
DEVICE u64 plain_operand(u32 address, u32 next) {
    constexpr u64 EIGHT_ROWS = (u64)(128 >> 4) << 32;
    return EIGHT_ROWS | (u64)(next >> 4) << 16 | (address & 0x3FFFF) >> 4;
}

using accumulators = sum_t[BLOCKS][BLOCK_N / 2];

DEVICE void multiply_patch(accumulators &r_y, u32 slot) {
    mma_fence();
#pragma unroll
    for (int pair = 0; pair < PAIRS_OF_TAPS; ++pair) {
        const u64 w = plain_operand(filter_chunk(pair * 2), MEMORY.chunk_bytes);
        /* If the number of taps is odd, the last one is used twice, with zeros as its second filter. */
        const u32 first = TAP_OFFSET[pair * 2], second = pair * 2 + 1 < TAPS ? TAP_OFFSET[pair * 2 + 1] : first;
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const u32 corner = (block / SEGMENTS * STRIDE_H * PATCH_W + block % SEGMENTS * 64 + first) * PIXEL_BYTES;
            multiply_accumulate(r_y[block], plain_operand(patch_slot(slot) + corner, (second - first) * PIXEL_BYTES), w,
                                pair > 0);
        }
    }
    mma_commit();
    mma_wait<0>();
    if (lane_index() == 0)
        arrive(released(slot));
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i)
            fence_register(r_y[block][i]);
}

DEVICE void multiply_patches(const arguments &p, u32 consumer_warp) {
    accumulators r_y;
    slot_cursor use;
    use.advance(consumer_warp / 4);
    epilogue_cursor to{shared_address(s_memory) + MEMORY.staging +
                       consumer_warp * EPILOGUE_TILES * EPILOGUE_TILE_BYTES};
    no_reductions none;
    for (i32 tile = blockIdx.x + consumer_warp / 4 * gridDim.x; tile < (i32)p.tiles;
         tile += CONSUMER_GROUPS * gridDim.x) {
        const tile_coordinates at = find_tile(p, tile);
        wait(arrived(use.slot), use.phase);
        multiply_patch(r_y, use.slot);
        use.advance(CONSUMER_GROUPS); /* the slot in between belongs to the other warpgroup */
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const i32 line = at.line + block / SEGMENTS, column = at.column + block % SEGMENTS * 64;
            const i32 first =
                (at.image * (i32)p.lines + line) * (i32)p.positions; /* row of the product at the start of the line */
            const i32 end = line < (i32)p.lines ? first + (i32)p.positions : 0;
            operands_ahead<arguments, 1> ahead(p, 0, first + column + consumer_warp % 4 * 16, end, 0);
            stage_block(r_y[block], p, ahead, 0, to, none);
        }
    }
}

/* ---- The kernel ---- */

extern "C" __global__ void __launch_bounds__(THREADS, 1) stem_sm90(const __grid_constant__ arguments p) {
    const u32 warp = warp_index();
    if (warp == 0 && elect_one()) {
        for (u32 slot = 0; slot < SLOTS; ++slot) {
            barrier_init(arrived(slot), PRODUCERS);
            barrier_init(released(slot), 4); /* the warps of the group that owns the patch */
        }
        barrier_init_fence();
    }
    wait_for_previous_kernel();
    load_filters(p);
    __syncthreads();
    let_next_kernel_start(); /* it waits before it accesses memory */
    if (warp < 4) {
        shrink_registers<PRODUCER_REGISTERS>();
        load_patches(p);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        multiply_patches(p, warp - 4);
    }
}
