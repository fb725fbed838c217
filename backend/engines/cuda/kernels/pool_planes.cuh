/* pool_planes: pool.cuh for images that lie in memory as planes (NCHW), whose rows fit no wide accesses       any type, sm_75 and up
   Formula   as pool.cuh
   Tile      tile_planes whole planes of x, or what tile_rows rows of positions see of one, pass through shared memory in aligned
             chunks of 16 bytes, wherever planes begin. A thread makes PATCH1 positions one below the other, lanes go along rows.
             A block takes one tile; blocks of one multiprocessor overlap their halves
   Limits    x is packed; every window sees more than padding
   Params    as pool.cuh; RUN and PATCH2 are 1 */

#include "lib/overlap.cuh"
#include "lib/pool_results.cuh"

extern __shared__ __align__(16) u8 shared[];

constexpr int EACH = 16 / (int)sizeof(x_t), AT_ONCE = 4;

/* Where the chunk begins that holds an element. */
DEVICE int phase_of(const x_t* x) { return (int)((u64)x / sizeof(x_t) % EACH); }

/* `count` elements from `from` on, each as far from the start of a chunk as it is in memory. Chunks that reach over an end of x
   are copied one by one. */
DEVICE void fill_tile(x_t* tile, const arguments& p, const x_t* from, int count) {
    const x_t* const start = from - phase_of(from);
    const int chunks = (phase_of(from) + count + EACH - 1) / EACH;
    for (int first = threadIdx.x; first < chunks; first += AT_ONCE * THREADS) {
        chunk<16> in[AT_ONCE];
        bool has[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const x_t* const at = start + (first + i * THREADS) * EACH;
            has[i] = first + i * THREADS < chunks && at >= p.x && at + EACH <= p.x + p.elements;
            if (has[i]) in[i] = *(const chunk<16>*)at;
        }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = (first + i * THREADS) * EACH;
            if (has[i]) *(chunk<16>*)(tile + at) = in[i];
            #pragma unroll 1
            for (int e = 0; !has[i] && first + i * THREADS < chunks && e < EACH; e++)
                if (start + at + e >= from && start + at + e < from + count) tile[at + e] = start[at + e];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_planes(const __grid_constant__ arguments p) {
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    u32 group = blockIdx.x;
    const bool is_whole = p.bands.value == 1;
    const length_t start = (length_t)(split(group, p.bands) * p.tile_rows), end = start + (length_t)p.tile_rows, width = axes[2].x;
    const i64 plane = (i64)group * p.tile_planes;
    const int planes = (int)(p.planes - plane < p.tile_planes ? p.planes - plane : p.tile_planes);
    const length_t row = is_whole ? 0 : nearest_inside(axes[1], first_of(axes[1], start));
    const length_t until = is_whole || end >= axes[1].y ? axes[1].x : nearest_inside(axes[1], first_of(axes[1], end - 1) + TAPS1 - 1) + 1;
    const x_t* const from = p.x + (plane * p.plane + row * width);
    x_t* const tile = (x_t*)shared;
    fill_tile(tile, p, from, (int)(is_whole ? planes * p.plane : (until - row) * width));
    __syncthreads();
    const length_t strides[3] = {0, width, 1};
    const u32 positions = planes * p.groups.value * (u32)axes[2].y;
    for (u32 n = threadIdx.x; n < positions; n += THREADS) {
        u32 rest = n;
        const length_t column = (length_t)split(rest, p.columns), down = (length_t)split(rest, p.groups) * PATCH1;
        u32 image = (u32)(plane + rest);
        const i64 channel = split(image, p.channels);
        const place to = {(i64)image, channel, {0, start + down, column}};
        const patch<PATCH1, 1, true> made(tile + (phase_of(from) + (length_t)rest * (length_t)p.plane - row * width), axes, strides, to.at);
        const i64 first = place_in_y(p, axes, to, to.at);
        #pragma unroll
        for (int r = 0; r < PATCH1; r++) {
            const length_t o[3] = {0, to.at[1] + r, column};
            if (o[1] >= axes[1].y) continue;
            store_values(p, axes, first + r * axes[1].y_stride, o, made.at[r][0]);
            store_numbers(p, axes, to, o, made.at[r][0]);
            correct_numbers(p, axes, to, o, made.at[r][0]);
        }
    }
}
