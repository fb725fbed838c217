/* pool_nchw: pool.cuh for NCHW images                                                          any type, sm_75 and up
   Formula   as pool.cuh
   Tile      tile_planes whole planes of x, or the input of tile_rows rows of positions of one plane, go through shared
             memory. If rows are whole words (IS_SEGMENT), a tile is one segment of memory (pooling/segment.cuh): rows
             outside the image are read from a row of padding, and elements beyond its sides are replaced. Other tiles
             are surrounded by padding, so that no window checks edges (pooling/nchw.cuh). A thread computes RUN
             adjacent positions of PATCH1 rows. A block has one tile; blocks of one multiprocessor overlap their halves
   Limits    x is packed; every window contains more than padding; padding has a number
   Tried     padding around all tiles (3x3 with steps of one: maxima 35 us instead of 31, means 37 instead of 31; of
             two: 67 instead of 60), whose chunks cost 40 instructions each; eight adjacent positions with steps of one
             (maxima 3 us more, means 13); prefetching the inputs of later blocks (8 us more); tiles of 5, 7, 9 or 22
             KiB instead of 14 (3 to 16 us more); seven rows of positions instead of four (3x3 with steps of one: 4 us
             more); means that share the sums of two windows (no effect)
   Params    as pool.cuh, and EXPECTS LINE IS_SEGMENT OUTSIDE LEFT_OUT RIGHT_IN, FILL SHIFTS VECTOR PHASE
             (pooling/nchw.cuh), GRAIN; RUN counts positions, PATCH2 is 1 */

#include "pooling/nchw.cuh"
#include "pooling/pool_results.cuh"
#include "pooling/segment.cuh"

extern __shared__ __align__(128) u8 shared[];

constexpr int HEIGHT = (PATCH1 - 1) * STEP1 + TAPS1, WIDTH = (RUN - 1) * STEP2 + TAPS2;

/* Replaces elements beyond the sides of the image, if rows are stored as in memory: the first LEFT_OUT elements, and
   those at RIGHT_IN and beyond, may be outside. */
struct edges {
    length_t first, end; /* column of the first element, and number of columns */
    DEVICE x_t of(const x_t &x, int i) const {
        if (i >= LEFT_OUT && i < RIGHT_IN)
            return x;
        return first + i >= 0 && first + i < end ? x : padding_element();
    }
    static DEVICE x_t padding_element() {
        __align__(8) u32 words[2] = {padding_of<x_t>::WORD, padding_of<x_t>::WORD};
        return *(const x_t *)words;
    }
};

/* Reduces a row of the tile for RUN adjacent windows. */
DEVICE void find_along(window_result (&row)[1], const x_t *from, const edges &near) {
    x_t in[WIDTH];
    run<x_t, RUN> taps[TAPS2];
    u32 all[TAPS2];
    take_row<VECTOR, PHASE>(in, from);
#pragma unroll
    for (int i = 0; IS_SEGMENT && i < WIDTH; i++)
        in[i] = near.of(in[i], i);
#pragma unroll
    for (int t = 0; t < TAPS2; t++) {
        all[t] = ~0u;
#pragma unroll
        for (int e = 0; e < RUN; e++)
            taps[t].at[e] = in[t + e * STEP2];
    }
    find_in_row<true, true>(row, taps, all, ~0u);
}

/* The windows of PATCH1 rows of positions, starting at `o`; the first window begins at `from`. Rows outside are read
   from `outside`. */
DEVICE void find_windows(window_result (&result)[PATCH1], const axis (&axes)[3], const length_t (&o)[3],
                         const x_t *from, u32 pitch, const x_t *outside) {
    const length_t top = first_of(axes[1], o[1]);
    const edges near = {first_of(axes[2], o[2]), axes[2].x};
    if constexpr (WANTS_WHERE) {
#pragma unroll
        for (int r = 0; r < PATCH1; r++)
            start_numbers(result[r], axes, {o[0], o[1] + r, o[2]});
    }
#pragma unroll
    for (int j = 0; j < HEIGHT; j++) {
        window_result row[1];
        find_along(row, !IS_SEGMENT || is_inside(axes[1], top + j) ? from + j * pitch : outside, near);
#pragma unroll
        for (int r = 0; r < PATCH1; r++) {
            const int t = j - r * STEP1;
            if (t < 0 || t >= TAPS1)
                continue;
            if (!WANTS_WHERE && t == 0)
                result[r] = row[0];
            else
                result[r].combine(row[0], t * TAPS2);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_nchw(const __grid_constant__ arguments p) {
    __shared__ u64 arrival;
    if constexpr (IS_SEGMENT)
        begin_segments(&arrival, 1);
    axis axes[3];
    read_axes(axes, p);
    u32 group = blockIdx.x;
    const length_t start = (length_t)(split(group, p.bands) * p.tile_rows), top = first_of(axes[1], start);
    const i64 plane = (i64)group * p.tile_planes;
    const u32 planes = (u32)(p.planes - plane < p.tile_planes ? p.planes - plane : p.tile_planes);
    x_t *tile = (x_t *)shared;
    const x_t *outside = tile;
    if constexpr (IS_SEGMENT) {
        /* A row of padding, then the tile; `tile` is where row `top` of the first plane would begin. */
        const length_t from = top > 0 ? top : 0, until = top + (length_t)p.rows_seen.value < axes[1].x
                                                             ? top + (length_t)p.rows_seen.value
                                                             : axes[1].x;
        const x_t *const memory = p.x + (plane * p.plane + from * axes[2].x);
#pragma unroll
        for (u32 i = 0; i < OUTSIDE; i += THREADS)
            if (i + threadIdx.x < OUTSIDE)
                tile[i + threadIdx.x] = edges::padding_element();
        tile += OUTSIDE + phase_of(memory);
        const int count = (int)((planes - 1) * p.plane + (until - from) * axes[2].x);
        expect_segment(memory, count);
        begin_overlapped();
        fill_segment(tile + p.left, memory, count, &arrival);
        await_segments(&arrival);
        tile += (top - from) * axes[2].x;
    } else {
        begin_overlapped();
        const plane_reader<x_t, FILL, SHIFTS> reader = {
            p.x, p.elements, p.plane, axes[2].x, axes[1].x, (length_t)p.left, top, p.row_fills, p.rows_seen};
        reader.fill(shared, plane, planes, padding_of<x_t>::WORD);
        await_planes();
    }
    const u32 pitch = IS_SEGMENT ? (u32)axes[2].x : p.row_fills.value * FILL,
              apart = IS_SEGMENT ? (u32)p.plane : p.rows_seen.value * pitch;
    const u32 positions = planes * p.groups.value * p.columns.value;
    for (u32 n = threadIdx.x; n < positions; n += THREADS) {
        u32 rest = n;
        const u32 column = split(rest, p.columns), down = split(rest, p.groups) * PATCH1;
        const x_t *const from =
            tile + ((i32)(rest * apart + down * STEP1 * pitch) + (i32)((u32)p.first + column * (RUN * STEP2)));
        const length_t o[3] = {0, start + (length_t)down, (length_t)column * RUN};
        window_result result[PATCH1];
        find_windows(result, axes, o, from, pitch, outside);
        u32 image = (u32)(plane + rest);
        const offset_t channel = (offset_t)split(image, p.channels);
        const coordinates to = {(offset_t)image, channel, {0, o[1], o[2]}};
        const offset_t first = offset_in_y(p, axes, to, o);
#pragma unroll
        for (int r = 0; r < PATCH1; r++) {
            const length_t at[3] = {0, o[1] + r, o[2]};
            if (at[1] >= axes[1].y)
                continue;
            store_values(p, axes, first + r * axes[1].y_stride, at, result[r]);
            store_numbers(p, axes, to, at, result[r]);
            correct_numbers(p, axes, to, at, result[r]);
        }
    }
}
