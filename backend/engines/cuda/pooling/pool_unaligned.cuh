/* pool_unaligned: pool.cuh for channels-last images without wide aligned accesses                any type, sm_75 and up
   Formula   as pool.cuh
   Tile      the inputs of PATCH1 rows of tile_columns positions go through shared memory: a segment of each row of x
             (pooling/segment.cuh). A thread computes one channel of PATCH1 x PATCH2 positions, lanes follow channels
   Limits    x is packed, and whole chunks of 16 bytes; every window contains more than padding
   Tried     3x3 maxima of 63 channels, 67 us: single elements from global memory (107); runs of eight channels from two
             chunks each, shifted in registers (90); copies by threads (83), each row of which cost as much as its
             maxima; one row of positions (77); prefetching the inputs of later blocks (11 more); tiles of 9 or 28 KiB
             (4 and 2 more)
   Params    as pool.cuh, and LINE; RUN is 1 */

#include "pooling/pool_results.cuh"
#include "pooling/segment.cuh"

extern __shared__ __align__(128) u8 shared[];

constexpr int HEIGHT = (PATCH1 - 1) * STEP1 + TAPS1;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_unaligned(const __grid_constant__ arguments p) {
    __shared__ u64 arrival;
    begin_segments(&arrival, HEIGHT);
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    u32 rest = blockIdx.x;
    const length_t column = (length_t)split(rest, p.tiles) * (length_t)p.tile_columns,
                   row = (length_t)split(rest, p.bands) * PATCH1;
    const length_t above = first_of(axes[1], row), before = first_of(axes[2], column);
    const length_t columns =
        axes[2].y - column < (length_t)p.tile_columns ? axes[2].y - column : (length_t)p.tile_columns;
    const length_t left = nearest_inside(axes[2], before),
                   right = nearest_inside(axes[2], before + (columns - 1) * STEP2 + TAPS2 - 1);
    const u32 channels = p.channels.value;
    /* The row pitch preserves the rows' offsets; `tile` is where the image's first element would be. */
    const x_t *const image = p.x + (offset_t)rest * (offset_t)p.x_n;
    const length_t pitch = (length_t)p.pitch, top = nearest_inside(axes[1], above);
    const int phase = phase_of(image + top * axes[1].x_stride + left * axes[2].x_stride);
    x_t *const tile = (x_t *)shared + (phase - top * pitch - left * (length_t)channels);
#pragma unroll
    for (int t = 0; t < HEIGHT; t++) {
        const length_t at = nearest_inside(axes[1], above + t);
        const int count = at == above + t ? (int)((right - left + 1) * (length_t)channels) : 0;
        fill_segment(tile + (at * pitch + left * (length_t)channels),
                     image + (at * axes[1].x_stride + left * axes[2].x_stride), count, &arrival);
    }
    await_segments(&arrival);
    const length_t strides[3] = {0, pitch, (length_t)channels};
    for (u32 n = threadIdx.x; n < (u32)(columns + PATCH2 - 1) / PATCH2 * channels; n += THREADS) {
        u32 number = n;
        const length_t channel = (length_t)split(number, p.channels);
        const coordinates to = {(offset_t)rest, (offset_t)channel, {0, row, column + (length_t)number * PATCH2}};
        const patch<PATCH1, PATCH2> result(tile + channel, axes, strides, to.at);
#pragma unroll
        for (int r = 0; r < PATCH1; r++)
#pragma unroll
            for (int s = 0; s < PATCH2; s++) {
                const length_t o[3] = {0, row + r, to.at[2] + s};
                if (o[1] >= axes[1].y || o[2] >= axes[2].y)
                    continue;
                store_values(p, axes, offset_in_y(p, axes, to, o), o, result.at[r][s]);
                store_numbers(p, axes, to, o, result.at[r][s]);
                correct_numbers(p, axes, to, o, result.at[r][s]);
            }
    }
}
