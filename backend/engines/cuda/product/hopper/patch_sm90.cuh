/* patch_sm90: a convolution of stride 1, or a data gradient, whose image is loaded once, not once per tap
   Types     16-bit, sm_90a
   Formula   y[n,p,q,k] = epilogue(sum over taps r, s and c of x[n, p + corner_h + line(r), q + corner_w + column(s), c]
             * w(r, s, c, k))
   Idea      a patch of the image, [PATCH_H][PITCH] pixels of some channels, is in shared memory and serves as the
             operand of all taps: pixel (i, j) of the tile is row i * PITCH + j, and each tap reads rows at its own
             offset. The swizzle is a function of the address, so an operand may start at any pixel. Rows with j >=
             TILE_W are computed and discarded. Filters are the product's 64 rows and pixels its columns: 64 x 256 reads
             80 bytes of shared memory per clock, 64 x 64 would read 128
   Volumes   IS_VOLUME: a patch is one of the SLICES that a tile reads. With few filters, the product's rows hold STACK
             slices of the result: row block i sees slice j of the image through tap j - i of the filter, or through the
             zeros that TMA fills in. 32 filters, 3 taps: 4 slices for 2, instead of 3 for 1
   Tile      64 filters x TILE_H * TILE_W pixels for each of two consumer warpgroups; persistent over pairs of tiles
   Roles     warp 0: load_patches;   warp 1: load_filters;   warps 2, 3: store_tiles, one per consumer warpgroup
             warpgroups 1, 2: multiply_tile, then write_tile
   Read      patch_memory.cuh (barriers), patch_scheduler.cuh, patch_producer.cuh, patch_main_loop.cuh,
             patch_reductions.cuh, patch_epilogue.cuh, patch_store.cuh, then the kernel
   Gradient  dx is a convolution of dy with reversed taps and filters that are contiguous along their own index
             (A_IS_MN_MAJOR); with strides, elements of dx at a distance of `stride` form a phase, which sees only some
             of the taps: a separate image with its own map
   Limits    one 16-bit result; other epilogue operands depend only on the filter, or have the result's layout; strides
             of 16 bytes
   Params    CHANNELS (of a patch: 64, 32, 16) STACK IS_VOLUME TAPS_T TAPS_R TAPS_S TILE_H TILE_W PATCH_H PITCH
             PATCH_SLOTS FILTER_SLOTS RESULT_SLOTS IS_RESIDENT A_IS_MN_MAJOR IS_PLANAR HAS_PHASES
             HAS_PROLOGUE CHANNELS_ARE_WHOLE AUX_LOAD REDUCES_STORED RUN index sum_t, and
             multiply_accumulate (m64 x PIXELS x 32 bytes)
   Measured  docs/kernels.md, with rejected variants */

#include "engines/cuda/product/hopper/patch_geometry.h"

constexpr int THREADS = (1 + CONSUMER_GROUPS) * 128;
#include "product/hopper/patch_memory.cuh"
#include "product/hopper/patch_scheduler.cuh"
#include "product/hopper/patch_producer.cuh"
#include "product/hopper/patch_main_loop.cuh"
#include "product/hopper/patch_reductions.cuh"
#include "product/hopper/patch_epilogue.cuh"
#include "product/hopper/patch_store.cuh"

template <class P> DEVICE void multiply_tiles(const P &p, int group) {
    sums r_y;
    register_reductions<P> reductions;
    patch_cursor patch;
    slot_cursor<FILTER_SLOTS> filter;
    patch.begin(group);
    result_cursor result;
    u32 tile = 0;
    for (tile_scheduler item(p); item.more(p); item.advance(p)) {
        const u32 slot = multiply_tile(r_y, p, item.seen(p), HAS_PROLOGUE ? item.locate(p, group) : tile_coordinates{},
                                       group, patch, filter, 2 * tile++ + group);
        write_tile(r_y, p, item.filter(p), slot, group, result, item.locate(p, group), reductions);
        result.advance();
    }
    reductions.end_all(p, tile_scheduler(p).filter(p), group);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) patch_sm90(const __grid_constant__ arguments p) {
    const u32 warp = warp_index();
    if (warp == 0 && elect_one()) {
        prefetch_map(p.x_map);
        prefetch_map(p.w_map);
        for (u32 fill = 0; fill < 2 * PATCH_SLOTS; ++fill)
            barrier_init(patch_arrived(fill), 1);
        for (u32 slot = 0; slot < PATCH_SLOTS; ++slot)
            barrier_init(patch_released(slot), 4);
        for (u32 slot = 0; slot < FILTER_SLOTS; ++slot) {
            barrier_init(filter_arrived(slot), 1);
            barrier_init(filter_released(slot), CONSUMER_GROUPS * 4);
        }
        for (u32 out = 0; out < CONSUMER_GROUPS * RESULT_SLOTS; ++out) {
            barrier_init(result_written(out), 4);
            barrier_init(result_ready(out), 1);
        }
        barrier_init(main_loop_issued(), 4);
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (warp < 4) {
        shrink_registers<40>();
        if (warp == 0 && elect_one())
            load_patches(p);
        if (warp == 1 && elect_one())
            load_filters(p);
        if (warp >= 2 && elect_one())
            store_tiles(p, warp - 2);
    } else {
        grow_registers<232>();
        multiply_tiles(p, warp / 4 - 1);
    }
}
