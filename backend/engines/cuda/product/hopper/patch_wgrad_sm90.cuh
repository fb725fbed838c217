/* patch_wgrad_sm90: the filter gradient of a convolution of stride 1 whose image is loaded once per slice of taps
   Types     16-bit, channels last, wgmma; sm_90a
   Formula   dW[k,t,r,s,c] = epilogue(sum over n,o,p,q of dY[n,o,p,q,k] * X[n, o + t, p + r, q + s, c]), taps from the
             padding's corner on, at a distance of DILATION pixels
   Idea      products of 64 filters x CHANNELS x 16 adjacent pixels. A patch of X, [PATCH_H][PITCH] pixels, is in shared
             memory and serves as the operand of all taps: the swizzle is a function of the address, so the 16 pixels of
             a tap may start at any row. dY is transposed on its way into registers, once for all taps of a warpgroup,
             which leaves the bandwidth of shared memory to X
   Kinds     a block sums one slice of taps, 64 filters and CHANNELS channels over one of p.splits parts of all tiles.
             Blocks of one part are adjacent and share its pixels in L2
   Roles     warpgroup 0: load_tiles;   warpgroups 1 to 3: multiply_tiles, a third of the taps each
   Barriers  arrived[slot]: patch and loss have arrived; released[slot]: all 12 warps have read them. STAGES slots
   Order     tiles of a block from the first to the last, then parts, in combine_splits.cuh: the same bits in every run
   Limits    sums of a warpgroup's taps in registers: OWN_TAPS * CHANNELS / 2 <= 96. An infinity or NaN within a tile's
             width of an image's end affects taps that do not see it, because they multiply it by 0
   Params    CHANNELS (16, 32, 64) IS_VOLUME IS_FLIPPED TAPS_T TAPS_R TAPS_S DILATION_T DILATION_R DILATION_S TILE_H
             TILE_W PATCH_H PITCH STAGES LEAD_IS_ROW index sum_t, and multiply_accumulate (m64 x CHANNELS x 16, A from
             registers, B MN-major)
   Predicted 3x3x3 of 32 channels on 2x32x128^3: 490 us at the rate of the tensor cores, half of whose rows are padding.
             Not measured */

#include "engines/cuda/product/hopper/patch_wgrad_geometry.h"

constexpr int THREADS = (1 + CONSUMER_GROUPS) * 128;
constexpr int TAPS = TAPS_R * TAPS_S, OWN_TAPS = (TAPS + CONSUMER_GROUPS - 1) / CONSUMER_GROUPS;
constexpr int STEPS = TILE_H * TILE_W / 16; /* steps along k per tile */
constexpr patch_wgrad_memory MEMORY =
    patch_wgrad_memory_of(patch_wgrad_shape{CHANNELS, TILE_H, TILE_W, PATCH_H, PITCH, STAGES});
constexpr u32 LOSS_BYTES = ROWS * 2; /* bytes per pixel of dY */
static_assert(TILE_W % 16 == 0, "the 16 pixels of a product are neighbours in the patch");
static_assert(OWN_TAPS * CHANNELS / 2 <= 96, "the sums must fit in registers");
static_assert(MEMORY.bytes <= SHARED_MAX, "227 KB is all a block can have");

extern __shared__ __align__(1024) unsigned char s_memory[];

DEVICE u32 patch_slot(u32 slot) { return shared_address(s_memory) + slot * MEMORY.stage_bytes; }
DEVICE u32 loss_slot(u32 slot) { return patch_slot(slot) + MEMORY.patch_slot; }
DEVICE u32 arrived(u32 slot) { return shared_address(s_memory) + MEMORY.barriers + slot * 8; }
DEVICE u32 released(u32 slot) { return arrived(STAGES + slot); }

struct slot_cursor {
    u32 slot = 0, phase = 0;
    DEVICE void advance() {
        if (++slot == STAGES) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/* ---- The work of a block ---- */

struct share {
    i32 tap, channel, filter;
    u32 part;
};

DEVICE share own_share(const arguments &p) {
    u32 rest = blockIdx.x;
    fence_register(rest); /* keeps the compiler from holding derived values in registers over all tiles */
    const i32 tap = (i32)split(rest, p.taps_t), channel = (i32)split(rest, p.channel_blocks) * CHANNELS,
              filter = (i32)split(rest, p.filter_tiles) * 64;
    return {tap, channel, filter, rest};
}

/* A tile of dY, in pixels. */
struct tile {
    i32 image, slice, line, column;
};

DEVICE tile find_tile(const arguments &p, u32 number) {
    const i32 column = (i32)split(number, p.tiles_q) * TILE_W, line = (i32)split(number, p.tiles_p) * TILE_H,
              slice = IS_VOLUME ? (i32)split(number, p.slices) : 0;
    return {(i32)number, slice, line, column};
}

/* The slice of X that the block's taps read. */
DEVICE i32 slice_under(const arguments &p, const share &job, const tile &at) {
    return at.slice + job.tap * DILATION_T - (i32)p.pre_d;
}

/* False if that slice is outside the volume, where X is zero. */
DEVICE bool is_inside_volume(const arguments &p, const share &job, const tile &at) {
    return !IS_VOLUME || (u32)slice_under(p, job, at) < (u32)p.depth;
}

/* ---- The loader: one thread; TMA fills zeros outside an image ---- */

/* A template, because images have no fifth coordinate. */
template <class P> DEVICE void load_tile(const P &p, const share &job, const tile &at, u32 slot) {
    const i32 column = at.column - (i32)p.pre_w, line = at.line - (i32)p.pre_h;
    arrive_expecting(arrived(slot), MEMORY.patch_bytes + MEMORY.loss_bytes);
    if constexpr (IS_VOLUME) {
        load_box(patch_slot(slot), p.x_map, arrived(slot), job.channel, column, line, slice_under(p, job, at),
                 at.image);
        load_box(loss_slot(slot), p.loss_map, arrived(slot), job.filter, at.column, at.line, at.slice, at.image);
    } else {
        load_box(patch_slot(slot), p.x_map, arrived(slot), job.channel, column, line, at.image);
        load_box(loss_slot(slot), p.loss_map, arrived(slot), job.filter, at.column, at.line, at.image);
    }
}

DEVICE void load_tiles(const arguments &p, const share &job) {
    slot_cursor fill;
    for (u32 number = job.part; number < (u32)p.tiles; number += (u32)p.splits) {
        const tile at = find_tile(p, number);
        if (!is_inside_volume(p, job, at))
            continue;
        wait(released(fill.slot), fill.phase ^ 1);
        load_tile(p, job, at, fill.slot);
        fill.advance();
    }
}

/* ---- The math warpgroups ---- */

using sums = sum_t[OWN_TAPS][CHANNELS / 2]; /* a thread's share of [OWN_TAPS][64 filters, CHANNELS] */

DEVICE int own_tap(int group, int i) { return group * OWN_TAPS + i; }

/* Returns the offset of X under a tap from that under the first one, in units of descriptors. Surplus taps repeat the
   last one. */
DEVICE u32 tap_offset(int tap) {
    const int t = tap < TAPS ? tap : TAPS - 1;
    return (t / TAPS_S * (DILATION_R * PITCH) + t % TAPS_S * DILATION_S) * (MEMORY.pixel_bytes / 16);
}

/* Offset of a lane's row of dY. Of 16 pixels, lane l has pixel l / 16 * 8 + l % 8; of the warp's 16 filters, its row
   starts at filter l / 8 % 2 * 8. */
DEVICE u32 lane_offset() {
    const u32 lane = lane_index(), pixel = lane / 16 * 8 + lane % 8, chunk = warp_index() % 4 * 2 + lane / 8 % 2;
    return pixel * LOSS_BYTES + (chunk ^ pixel % 8) * 16;
}

DEVICE void multiply_tile(sums &r_w, u32 slot, const u32 (&taps)[OWN_TAPS], u32 lane_at) {
    u32 r_loss[2][4];
    const u64 x = operand<MEMORY.pixel_bytes>(patch_slot(slot), 0);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        constexpr int STEPS_OF_LINE = TILE_W / 16;
        const u32 pixel = step / STEPS_OF_LINE * PITCH + step % STEPS_OF_LINE * 16;
        load_matrices_transposed(r_loss[step % 2], loss_slot(slot) + lane_at + step * 16 * LOSS_BYTES);
        mma_fence();
#pragma unroll
        for (int t = 0; t < OWN_TAPS; ++t)
            multiply_accumulate(r_w[t], r_loss[step % 2], x + (taps[t] + pixel * (MEMORY.pixel_bytes / 16)), true);
        mma_commit();
        mma_wait<1>(); /* the previous step has read its dY */
    }
    mma_wait<0>();
    publish_to_async_proxy(); /* orders these reads before the copy that overwrites the slot; NVRTC 12 crashes if it is
                                 before the wait */
}

/* Stores the partial sums of one part as [filters][taps, channels], or transposed. */
DEVICE void store_partials(const sums &r_w, const arguments &p, const share &job, int group) {
    const i64 columns = (i64)(TAPS_T * TAPS) * p.channels;
    const i32 row = job.filter + warp_index() % 4 * 16 + lane_index() / 4;
#pragma unroll
    for (int t = 0; t < OWN_TAPS; ++t)
#pragma unroll
        for (int i = 0; i < CHANNELS / 2; ++i) {
            const int tap = job.tap * TAPS + own_tap(group, t);
            const i64 k = row + i / 2 % 2 * 8, c = job.channel + i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
            const i64 column = (IS_FLIPPED ? TAPS_T * TAPS - 1 - tap : tap) * p.channels + c;
            if (own_tap(group, t) < TAPS && k < p.filters && c < p.channels)
                p.partial[job.part * p.filters * columns +
                          (LEAD_IS_ROW ? column * p.filters + k : k * columns + column)] = r_w[t][i];
        }
}

DEVICE void multiply_tiles(const arguments &p, const share &job, int group) {
    sums r_w = {};
    u32 taps[OWN_TAPS];
#pragma unroll
    for (int t = 0; t < OWN_TAPS; ++t)
        taps[t] = tap_offset(own_tap(group, t));
    const u32 lane_at = lane_offset();
    slot_cursor use;
    for (u32 number = job.part; number < (u32)p.tiles; number += (u32)p.splits) {
        if (!is_inside_volume(p, job, find_tile(p, number)))
            continue;
        wait(arrived(use.slot), use.phase);
        multiply_tile(r_w, use.slot, taps, lane_at);
        if (lane_index() == 0)
            arrive(released(use.slot));
        use.advance();
#pragma unroll
        for (int t = 0; t < OWN_TAPS; ++t)
#pragma unroll
            for (int i = 0; i < CHANNELS / 2; ++i)
                fence_register(r_w[t][i]);
    }
    store_partials(r_w, p, own_share(p), group);
}

/* ---- The kernel ---- */

extern "C" __global__ void __launch_bounds__(THREADS, 1) patch_wgrad_sm90(const __grid_constant__ arguments p) {
    const u32 warp = warp_index();
    const share job = own_share(p);
    if (warp == 0 && elect_one()) {
        prefetch_map(p.x_map);
        prefetch_map(p.loss_map);
        for (u32 slot = 0; slot < STAGES; ++slot) {
            barrier_init(arrived(slot), 1);
            barrier_init(released(slot), CONSUMER_GROUPS * 4);
        }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (warp < 4) {
        shrink_registers<40>();
        if (warp == 0 && elect_one())
            load_tiles(p, job);
    } else {
        grow_registers<152>();
        multiply_tiles(p, job, warp / 4 - 1);
    }
}
