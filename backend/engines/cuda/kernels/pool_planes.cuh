/* pool_planes: pool.cuh for images that lie in memory as planes (NCHW)                               any type, sm_75 and up
   Formula   as pool.cuh
   Tile      tile_planes whole planes of x, or what tile_rows rows of positions see of one, pass through shared memory with their
             padding around them, so that no window asks where an edge is. A thread makes RUN positions side by side of PATCH1 rows.
             A block takes one tile; blocks of one multiprocessor overlap their halves
   Limits    x is packed; every window sees more than padding; padding has a number
   Tried     eight positions side by side where windows go one by one (maxima 38 us for 35, means 52 for 39)
   Params    as pool.cuh, and FILL SHIFTS VECTOR PHASE (lib/planes.cuh) GRAIN; RUN counts positions, PATCH2 is 1 */

#include "lib/planes.cuh"
#include "lib/pool_results.cuh"

extern __shared__ __align__(16) u8 shared[];

constexpr int HEIGHT = (PATCH1 - 1) * STEP1 + TAPS1, WIDTH = (RUN - 1) * STEP2 + TAPS2;

/* What a row of the tile leaves of RUN windows side by side. */
DEVICE void find_along(found (&row)[1], const x_t* from) {
    x_t in[WIDTH];
    run<x_t, RUN> taps[TAPS2];
    u32 all[TAPS2];
    take_row<VECTOR, PHASE>(in, from);
    #pragma unroll
    for (int t = 0; t < TAPS2; t++) {
        all[t] = ~0u;
        #pragma unroll
        for (int e = 0; e < RUN; e++) taps[t].at[e] = in[t + e * STEP2];
    }
    find_in_row<true, true>(row, taps, all, ~0u);
}

/* The windows of PATCH1 rows of positions from `o` on, the first of which begins at `from`. */
DEVICE void find_windows(found (&made)[PATCH1], const axis (&axes)[3], const length_t (&o)[3], const x_t* from, u32 pitch) {
    if constexpr (WANTS_WHERE) {
        #pragma unroll
        for (int r = 0; r < PATCH1; r++) start_numbers(made[r], axes, {o[0], o[1] + r, o[2]});
    }
    #pragma unroll
    for (int j = 0; j < HEIGHT; j++) {
        found row[1];
        find_along(row, from + j * pitch);
        #pragma unroll
        for (int r = 0; r < PATCH1; r++) {
            const int t = j - r * STEP1;
            if (t < 0 || t >= TAPS1) continue;
            if (!WANTS_WHERE && t == 0) made[r] = row[0];
            else made[r].combine(row[0], t * TAPS2);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_planes(const __grid_constant__ arguments p) {
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    u32 group = blockIdx.x;
    const length_t start = (length_t)(split(group, p.bands) * p.tile_rows);
    const i64 plane = (i64)group * p.tile_planes;
    const u32 planes = (u32)(p.planes - plane < p.tile_planes ? p.planes - plane : p.tile_planes);
    const plane_reader<x_t, FILL, SHIFTS> reader = {p.x, p.elements, p.plane, axes[2].x, axes[1].x, (length_t)p.left, first_of(axes[1], start), p.row_fills, p.rows_seen};
    reader.fill(shared, plane, planes, padding_of<x_t>::WORD);
    await_planes();
    const u32 pitch = p.row_fills.value * FILL, positions = planes * p.groups.value * p.columns.value;
    for (u32 n = threadIdx.x; n < positions; n += THREADS) {
        u32 rest = n;
        const u32 column = split(rest, p.columns), down = split(rest, p.groups) * PATCH1;
        const x_t* const from = (const x_t*)shared + (rest * p.rows_seen.value + down * STEP1) * pitch + ((u32)p.first + column * (RUN * STEP2));
        const length_t o[3] = {0, start + (length_t)down, (length_t)column * RUN};
        found made[PATCH1];
        find_windows(made, axes, o, from, pitch);
        u32 image = (u32)(plane + rest);
        const offset_t channel = (offset_t)split(image, p.channels);
        const place to = {(offset_t)image, channel, {0, o[1], o[2]}};
        #pragma unroll
        for (int r = 0; r < PATCH1; r++) {
            const length_t at[3] = {0, o[1] + r, o[2]};
            if (at[1] >= axes[1].y) continue;
            store_values(p, axes, place_in_y(p, axes, to, at), at, made[r]);
            store_numbers(p, axes, to, at, made[r]);
            correct_numbers(p, axes, to, at, made[r]);
        }
    }
}
