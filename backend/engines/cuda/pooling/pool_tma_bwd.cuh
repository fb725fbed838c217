/* pool_tma_bwd: pool_bwd.cuh for channels-last windows with steps of one                               any type, sm_90
   Formula   as pool_bwd.cuh
   Tile      a block computes `below` x `along` patches of PATCH1 x PATCH2 elements of dx, of LANES runs of channels.
             TMA loads their inputs in two boxes, of dy and of the indices of maxima, with zeros around the image, which
             contribute nothing. A thread iterates down a patch, and loads and converts each position's gradients once
             for all elements that they contribute to
   Limits    steps of one; maxima with indices
   Tried     3x3, 36.6 us (pool_bwd.cuh: 54): patches of 7 rows, which read less (38.5); 64 channels (37.6); blocks of
             256 threads (37.0, of 7 rows 39.7)
   Params    as pool_bwd.cuh, and LANES */

#include "pooling/tma.cuh"
#include "pooling/pool_gradient.cuh"

extern __shared__ __align__(128) u8 shared[];

/* The patch whose elements begin at `at`; `dy` and `numbers` are those of the first position that contributes to it, in
   boxes with a row pitch of `pitch` elements. Elements are stored as soon as they are complete. */
DEVICE void go_down(const arguments &p, const axis (&axes)[3], const coordinates &at, const y_t *dy,
                    const index_t *numbers, int pitch) {
    x_t *const dx = p.x + (at.n * (offset_t)p.x_n + at.c * (offset_t)p.x_c + at.at[1] * axes[1].x_stride +
                           at.at[2] * axes[2].x_stride);
    gathered all;
    all.clear();
#pragma unroll
    for (int k1 = 0; k1 < REACHING1; k1++) {
#pragma unroll
        for (int k2 = 0; k2 < REACHING2; k2++) {
            given from;
            from.dy = load_run<y_t, RUN>(dy + (k1 * pitch + k2 * PIXEL));
            from.load_numbers(numbers + (k1 * pitch + k2 * PIXEL));
            add_given(all, from, 1, 0, k1, k2);
        }
        const int row = k1 - BEFORE1;
#pragma unroll
        for (int e2 = 0; e2 < SIDE2; e2++)
            if (row >= 0 && at.at[1] + row < axes[1].x && at.at[2] + e2 < axes[2].x)
                store_dx(p, dx + (row * axes[1].x_stride + e2 * axes[2].x_stride), all, row, e2);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_tma_bwd(const __grid_constant__ arguments p) {
    __shared__ u64 arrival;
    axis axes[3];
    read_axes(axes, p);
    const box_tile tile = tile_of_block(p);
    u8 *const numbers = shared + p.numbers_at;
    if (threadIdx.x == 0)
        make_arrival(&arrival);
    __syncthreads();
    begin_overlapped();
    if (threadIdx.x == 0) {
        const i32 left = (i32)(tile.column + axes[2].offset - BEFORE2),
                  top = (i32)(tile.row + axes[1].offset - BEFORE1);
        expect_bytes(&arrival, (u32)p.box_bytes);
        load_box(shared_address(shared), p.y_map, shared_address(&arrival), tile.slice, left, top, (i32)tile.image);
        load_box(shared_address(numbers), p.index_map, shared_address(&arrival), tile.slice, left, top,
                 (i32)tile.image);
    }
    const box_patch patch = patch_of_thread(p);
    const coordinates at = {(offset_t)tile.image,
                            (offset_t)(tile.slice + patch.lane),
                            {0, tile.row + patch.down, tile.column + patch.right}};
    const int pitch = (int)p.columns_seen * PIXEL, first = patch.down * pitch + patch.right * PIXEL + patch.lane;
    await_arrival(&arrival, 0);
    if (patch.row >= p.below || at.c >= p.channels || at.at[1] >= axes[1].x || at.at[2] >= axes[2].x)
        return;
    go_down(p, axes, at, (const y_t *)shared + first, (const index_t *)numbers + first, pitch);
}
