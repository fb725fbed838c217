/* pool_tma: pool.cuh for channels-last windows with steps of one                                       any type, sm_90
   Formula   as pool.cuh
   Tile      a block computes `below` x `along` patches of PATCH1 x PATCH2 positions, of LANES runs of channels. TMA
             loads their inputs in one box, with zeros around the image, so that means check no edges; maxima read the
             nearest element inside. A thread iterates down a patch, and loads and converts each element once: only
             adjacent patches read it again
   Limits    steps of one; no indices of maxima; padding is zero, or repeats edges and changes no maximum
   Tried     patches of 7 rows (means of 3x3: 27.9 us instead of 26.9, maxima 27.3 instead of 26.7), of 14 (77); boxes
             of 64 bytes of channels (29.3 instead of 27.9)
   Params    as pool.cuh, and LANES */

#include "pooling/tma.cuh"
#include "pooling/pool_results.cuh"

extern __shared__ __align__(128) u8 shared[];

constexpr int HEIGHT = PATCH1 + TAPS1 - 1, WIDTH = PATCH2 + TAPS2 - 1;

/* The offset of element `at` along an axis in a box that begins at `first`. */
DEVICE int offset_in_box(const axis &a, length_t at, length_t first) {
    return (int)((REPEATS_EDGES ? nearest_inside(a, at) : at) - first);
}

/* The windows of a patch, whose elements are WIDTH columns of the box, with rows of `pitch` elements; stored as soon as
   they are complete. */
DEVICE void go_down(const arguments &p, const axis (&axes)[3], const coordinates &to,
                    const x_t *const (&columns)[WIDTH], length_t top, int pitch) {
    const u32 all[WIDTH] = {};
    window_result result[PATCH1][PATCH2];
#pragma unroll
    for (int j = 0; j < HEIGHT; j++) {
        const int offset = offset_in_box(axes[1], first_of(axes[1], to.at[1]) + j, top) * pitch;
        run<x_t, RUN> loaded[WIDTH];
        window_result row[PATCH2];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            loaded[i] = load_run<x_t, RUN>(columns[i] + offset);
        find_in_row<true, true>(row, loaded, all, ~0u);
#pragma unroll
        for (int r = 0; r < PATCH1; r++)
#pragma unroll
            for (int s = 0; s < PATCH2; s++) {
                if (j < r || j >= r + TAPS1)
                    continue;
                if (j == r)
                    result[r][s] = row[s];
                else
                    result[r][s].add(row[s]);
                const length_t o[3] = {0, to.at[1] + r, to.at[2] + s};
                if (j == r + TAPS1 - 1 && o[1] < axes[1].y && o[2] < axes[2].y)
                    store_values(p, axes, offset_in_y(p, axes, to, o), o, result[r][s]);
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_tma(const __grid_constant__ arguments p) {
    __shared__ u64 arrival;
    axis axes[3];
    read_axes(axes, p);
    const box_tile tile = tile_of_block(p);
    const length_t left = first_of(axes[2], tile.column), top = first_of(axes[1], tile.row);
    if (threadIdx.x == 0)
        make_arrival(&arrival);
    __syncthreads();
    begin_overlapped();
    if (threadIdx.x == 0) {
        expect_bytes(&arrival, (u32)p.box_bytes);
        load_box(shared_address(shared), p.x_map, shared_address(&arrival), tile.slice, (i32)left, (i32)top,
                 (i32)tile.image);
    }
    const box_patch patch = patch_of_thread(p);
    const length_t o2 = tile.column + patch.right, o1 = tile.row + patch.down;
    const i32 channel = tile.slice + patch.lane;
    const x_t *columns[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        columns[i] =
            (const x_t *)shared + (offset_in_box(axes[2], first_of(axes[2], o2) + i, left) * PIXEL + patch.lane);
    await_arrival(&arrival, 0);
    if (patch.row >= p.below || channel >= p.channels || o1 >= axes[1].y || o2 >= axes[2].y)
        return;
    go_down(p, axes, {(offset_t)tile.image, (offset_t)channel, {0, o1, o2}}, columns, top, (int)p.columns_seen * PIXEL);
}
