/* pool_team: pool.cuh for few large windows, such as those of whole images          any type, any strides, sm_75 and up
   Formula   as pool.cuh
   Tile      a warp processes 32 runs of RUN channels, adjacent in memory, of one row of taps; TAPS1 warps compute a
             window, and the first of them combines their parts. So each thread has TAPS2 loads in flight, and there are
             enough threads
   Limits    windows of one plane
   Params    as pool.cuh; PATCH1 and PATCH2 are 1, THREADS is 32 TAPS1 */

#include "pooling/pool_results.cuh"

struct parts {
    unit_t value[TAPS1][UNITS][32];
    i32 where[WANTS_WHERE ? TAPS1 : 1][UNITS][32];

    DEVICE void put(const window_result &part, int row, int lane) {
#pragma unroll
        for (int e = 0; e < UNITS; e++) {
            value[row][e][lane] = part.value[e];
            if constexpr (WANTS_WHERE)
                where[row][e][lane] = part.where[e];
        }
    }
    DEVICE window_result take(int row, int lane) const {
        window_result part;
#pragma unroll
        for (int e = 0; e < UNITS; e++) {
            part.value[e] = value[row][e][lane];
            part.where[e] = WANTS_WHERE ? where[row][e][lane] : 0;
        }
        return part;
    }
};

DEVICE void find_row(window_result (&row)[1], const arguments &p, const axis (&axes)[3], const coordinates &to,
                     length_t t) {
    const length_t at = first_of(axes[1], to.at[1]) + t, first = first_of(axes[2], to.at[2]),
                   plane = first_of(axes[0], to.at[0]);
    const x_t *const x =
        p.x + (to.n * (offset_t)p.x_n + to.c * (offset_t)p.x_c + nearest_inside(axes[0], plane) * axes[0].x_stride +
               nearest_inside(axes[1], at) * axes[1].x_stride);
    const u32 row_mask = mask_of(is_inside(axes[0], plane) && is_inside(axes[1], at));
    run<x_t, RUN> loaded[TAPS2];
    u32 columns[TAPS2];
#pragma unroll
    for (int i = 0; i < TAPS2; i++)
        columns[i] = mask_of(is_inside(axes[2], first + i));
    load_row<false>(loaded, x, axes[2], first, axes[2].x_stride);
    find_in_row<false, false>(row, loaded, columns, row_mask);
}

/* Prefetches what a warp reads first, if it is one segment per tap. A template, so that names are looked up only if
   they were emitted. */
template <class P>
DEVICE void expect_row(const P &p, const axis (&axes)[3], const coordinates &to, int lane, length_t t) {
    const length_t row = first_of(axes[1], to.at[1]) + t, column = first_of(axes[2], to.at[2]) + lane;
    if (lane < TAPS2 && is_inside(axes[1], row) && is_inside(axes[2], column))
        expect(p.x + (to.n * (offset_t)p.x_n + to.c * (offset_t)p.x_c + row * axes[1].x_stride +
                      column * axes[2].x_stride),
               32 * sizeof(run<x_t, RUN>));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_team(const __grid_constant__ arguments p) {
    __shared__ parts shared;
    axis axes[3];
    read_axes(axes, p);
    const int lane = (int)threadIdx.x % 32, t = (int)threadIdx.x / 32;
    if constexpr (EXPECTS)
        expect_row(p, axes, locate(p, (position)(blockIdx.x * 32)), lane, t);
    begin_overlapped();
    for (i64 first = (i64)blockIdx.x * 32; first < p.runs; first += (i64)gridDim.x * 32) {
        const bool is_ours = first + lane < p.runs;
        const coordinates to = locate(p, (position)(is_ours ? first + lane : p.runs - 1));
        window_result result, row[1];
        find_row(row, p, axes, to, t);
        shared.put(row[0], t, lane);
        __syncthreads();
        if (t == 0) {
            if constexpr (WANTS_WHERE)
                start_numbers(result, axes, to.at);
#pragma unroll
            for (int i = 0; i < TAPS1; i++) {
                const window_result part = shared.take(i, lane);
                if (!WANTS_WHERE && i == 0)
                    result = part;
                else
                    result.combine(part, i * TAPS2);
            }
        }
        if (t == 0 && is_ours) {
            store_values(p, axes, offset_in_y(p, axes, to, to.at), to.at, result);
            store_numbers(p, axes, to, to.at, result);
            correct_numbers(p, axes, to, to.at, result);
        }
        __syncthreads();
    }
}
