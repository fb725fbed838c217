/* pool_loose: pool.cuh for channels side by side whose number fits no wide accesses                  any type, sm_75 and up
   Formula   as pool.cuh
   Tile      what tile_columns positions of a row see passes through shared memory: stretches of TAPS1 rows of x, in aligned chunks of 16
             bytes, as far from the start of a chunk as they are in memory. A thread makes one channel of PATCH2 positions, and lanes go along channels
   Limits    x is packed, and whole chunks; every window sees more than padding
   Tried     runs of eight channels out of two chunks each, shifted in registers (3x3 maxima of 63 channels: 90 us for 83, single elements
             from global memory 107); even numbers of channels, whose pairs are one access (80 us for 73)
   Params    as pool.cuh; RUN and PATCH1 are 1 */

#include "lib/async.cuh"
#include "lib/pool_results.cuh"

extern __shared__ __align__(16) u8 shared[];

constexpr int EACH = 16 / (int)sizeof(x_t);

/* How far from the start of a chunk an element lies. */
DEVICE int phase_of(const x_t* x) { return (int)((u64)x / sizeof(x_t) % EACH); }

/* `count` elements, and what else lies in their chunks. */
DEVICE void fill_row(x_t* to, const x_t* from, int count) {
    const int phase = phase_of(from);
    for (int at = (int)threadIdx.x * EACH - phase; at < count; at += THREADS * EACH) {
        if constexpr (CHIP >= 800) copy_async<16>(to + at, from + at, true);
        else *(chunk<16>*)(to + at) = *(const chunk<16>*)(from + at);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_loose(const __grid_constant__ arguments p) {
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    u32 rest = blockIdx.x;
    const length_t column = (length_t)split(rest, p.tiles) * (length_t)p.tile_columns, row = (length_t)split(rest, p.rows);
    const length_t above = first_of(axes[1], row), before = first_of(axes[2], column);
    const length_t columns = axes[2].y - column < (length_t)p.tile_columns ? axes[2].y - column : (length_t)p.tile_columns;
    const length_t left = nearest_inside(axes[2], before), right = nearest_inside(axes[2], before + (columns - 1) * STEP2 + TAPS2 - 1);
    const u32 channels = p.channels.value;
    /* Rows lie as far apart as keeps their phases; `tile` is where the image's first element would lie. */
    const x_t* const image = p.x + (offset_t)rest * (offset_t)p.x_n;
    const length_t pitch = (length_t)p.pitch, top = nearest_inside(axes[1], above);
    const int phase = phase_of(image + top * axes[1].x_stride + left * axes[2].x_stride);
    x_t* const tile = (x_t*)shared + (phase - top * pitch - left * (length_t)channels);
    #pragma unroll
    for (int t = 0; t < TAPS1; t++) {
        const length_t at = above + t;
        if (is_inside(axes[1], at)) fill_row(tile + (at * pitch + left * (length_t)channels), image + (at * axes[1].x_stride + left * axes[2].x_stride), (int)((right - left + 1) * (length_t)channels));
    }
    if constexpr (CHIP >= 800) {
        commit_copies();
        await_copies<0>();
    }
    __syncthreads();
    const length_t strides[3] = {0, pitch, (length_t)channels};
    for (u32 n = threadIdx.x; n < (u32)(columns + PATCH2 - 1) / PATCH2 * channels; n += THREADS) {
        u32 number = n;
        const length_t channel = (length_t)split(number, p.channels);
        const place to = {(offset_t)rest, (offset_t)channel, {0, row, column + (length_t)number * PATCH2}};
        const patch<1, PATCH2> made(tile + channel, axes, strides, to.at);
        #pragma unroll
        for (int s = 0; s < PATCH2; s++) {
            const length_t o[3] = {0, row, to.at[2] + s};
            if (o[2] >= axes[2].y) continue;
            store_values(p, axes, place_in_y(p, axes, to, o), o, made.at[0][s]);
            store_numbers(p, axes, to, o, made.at[0][s]);
            correct_numbers(p, axes, to, o, made.at[0][s]);
        }
    }
}
