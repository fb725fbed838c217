/* pool_nchw_bwd: pool_bwd.cuh for NCHW images                                                  any type, sm_75 and up
   Formula   as pool_bwd.cuh: along columns, elements are counted from the start of the padding, so that the compiler
             knows which tap contributes to which element; along rows they are counted as in memory, and the first of
             RUN is SHIFT after the start of a window
   Tile      the inputs of tile_rows groups of rows of a plane of dx, or of tile_planes whole planes, go through shared
             memory: dy, and the indices of maxima. If rows are whole words (IS_SEGMENT), each input is one segment of
             memory (pooling/segment.cuh): rows outside are read from a row of zeros, and elements beyond the sides of
             the image count as zero; else dy is surrounded by zeros (pooling/nchw.cuh). A thread computes RUN adjacent
             elements of SIDE1 rows
   Limits    dy and the indices are packed; steps of 1 or 2 along rows
   Tried     zeros around all tiles (3x3 with steps of one: 126 us instead of 55); eight adjacent elements with steps of
             one (55 instead of 50)
   Params    as pool_bwd.cuh, and LINE IS_SEGMENT OUTSIDE LEFT_OUT RIGHT_IN, VECTOR PHASE FILL SHIFTS
             (pooling/nchw.cuh) of dy, INDEX_FILL INDEX_SHIFTS, SHIFT GRAIN; RUN counts elements of a row, PATCH2 is
             1 */

#include "pooling/nchw.cuh"
#include "pooling/segment.cuh"

extern __shared__ __align__(128) u8 shared[];

constexpr int SIDE1 = PATCH1 * STEP1;
/* Positions before the first element's own that contribute to it, and all positions that contribute to some element. */
constexpr int BEFORE1 = (TAPS1 - 1) / STEP1, REACHING1 = BEFORE1 + PATCH1;
constexpr int BEFORE2 = TAPS2 > SHIFT ? (TAPS2 - 1 - SHIFT) / STEP2 : -1,
              REACHING2 = BEFORE2 + (RUN - 1 + SHIFT) / STEP2 + 1;

DEVICE bool is_position(const axis &a, length_t o) { return o >= 0 && o < a.y; }

/* Adds the contributions of a row of positions, beginning with o; `j` counts rows that contribute to the patch. */
DEVICE void add_row(math_t (&sum)[SIDE1][RUN], const axis (&axes)[3], const length_t (&o)[3],
                    const y_t (&dy)[REACHING2], const index_t (&where)[REACHING2], int j) {
#pragma unroll
    for (int k = 0; k < REACHING2; k++) {
        const bool is_there = !IS_SEGMENT || (k >= LEFT_OUT && k < RIGHT_IN) || is_position(axes[2], o[2] + k);
        const math_t given = is_there ? as<math_t>::of(dy[k]) : (math_t)0;
        const length_t counted =
            EXCLUDES_PADDING ? taps_inside(axes[1], o[1]) * taps_inside(axes[2], o[2] + k) : TAPS1 * TAPS2;
        const math_t back = IS_MAXIMUM ? given : share<x_t>(given, counted);
        const i32 number = IS_MAXIMUM ? (i32)to_integer(where[k]) : 0;
#pragma unroll
        for (int e1 = 0; e1 < SIDE1; e1++)
#pragma unroll
            for (int e2 = 0; e2 < RUN; e2++) {
                const int t1 = e1 - (j - BEFORE1) * STEP1, t2 = e2 + SHIFT - (k - BEFORE2) * STEP2;
                if (t1 < 0 || t1 >= TAPS1 || t2 < 0 || t2 >= TAPS2)
                    continue;
                if (!IS_MAXIMUM || number == t1 * TAPS2 + t2)
                    sum[e1][e2] += back;
            }
    }
}

DEVICE void store_row(const arguments &p, x_t *dx, const math_t (&sum)[RUN], offset_t stride, length_t left) {
    run<x_t, RUN> out, old = {};
    if constexpr (HAS_OLD)
        old = load_results(dx, stride, left);
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        math_t scaled = IS_SCALED ? (math_t)__longlong_as_double(p.alpha) * sum[e] : sum[e];
        if constexpr (HAS_OLD)
            scaled += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(old.at[e]);
        out.at[e] = from<x_t>::number(scaled);
    }
    store_results(dx, out, stride, left);
}

/* Fills the tile; returns where its indices begin. A template, so that names are looked up only if they were
   emitted. */
template <class P>
DEVICE const index_t *fill_tile(const P &p, const axis (&axes)[3], i64 plane, u32 planes, length_t top) {
    const plane_reader<y_t, FILL, SHIFTS> reader = {
        p.y, p.elements, p.plane, axes[2].y, axes[1].y, (length_t)p.left, top, p.row_fills, p.rows_seen};
    u8 *const numbers = shared + p.tile_planes * p.rows_seen.value * p.row_fills.value * (FILL * sizeof(y_t));
    reader.fill(shared, plane, planes, 0);
    if constexpr (HAS_INDEX) {
        const plane_reader<index_t, INDEX_FILL, INDEX_SHIFTS> indices = {
            p.index, p.elements, p.plane, axes[2].y, axes[1].y, (length_t)p.left, top, p.index_row_fills, p.rows_seen};
        indices.fill(numbers, plane, planes, 0);
    }
    return (const index_t *)numbers;
}

/* The same if rows are whole words: two segments of memory, starting at element `first`, after a row of zeros. */
template <class P> DEVICE const index_t *fill_segments(const P &p, i64 first, int count, u64 *arrival) {
    y_t *const dy = (y_t *)shared;
    const index_t *numbers = (const index_t *)shared;
    for (u32 i = threadIdx.x; i < OUTSIDE; i += THREADS)
        dy[i] = y_t{};
    fill_segment(dy + (OUTSIDE + phase_of(p.y + first) + p.left), p.y + first, count, arrival);
    if constexpr (HAS_INDEX) {
        index_t *const to = (index_t *)(shared + p.numbers_at) + phase_of(p.index + first);
        fill_segment(to + p.left, p.index + first, count, arrival);
        numbers = to;
    }
    await_segments(arrival);
    return numbers;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_nchw_bwd(const __grid_constant__ arguments p) {
    __shared__ u64 arrival;
    if constexpr (IS_SEGMENT)
        begin_segments(&arrival, HAS_INDEX ? 2 : 1);
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    u32 group = blockIdx.x;
    const length_t start = (length_t)((i64)split(group, p.bands) * p.tile_rows + p.first1);
    const i64 plane = (i64)group * p.tile_planes;
    const u32 planes = (u32)(p.planes - plane < p.tile_planes ? p.planes - plane : p.tile_planes);
    const length_t top = start * PATCH1 - BEFORE1;
    const y_t *tile = (const y_t *)shared, *outside = tile;
    const index_t *numbers;
    if constexpr (IS_SEGMENT) {
        const length_t from = top > 0 ? top : 0, until = top + (length_t)p.rows_seen.value < axes[1].y
                                                             ? top + (length_t)p.rows_seen.value
                                                             : axes[1].y;
        const int count = (int)((planes - 1) * p.plane + (until - from) * axes[2].y);
        numbers = fill_segments(p, plane * p.plane + from * axes[2].y, count, &arrival) + (top - from) * axes[2].y;
        tile += OUTSIDE + phase_of(p.y + (plane * p.plane + from * axes[2].y)) + (top - from) * axes[2].y;
    } else {
        numbers = fill_tile(p, axes, plane, planes, top);
        await_planes();
    }
    const u32 pitch = IS_SEGMENT ? (u32)axes[2].y : p.row_fills.value * FILL,
              apart = IS_SEGMENT ? (u32)p.plane : p.rows_seen.value * pitch;
    const u32 pieces = planes * p.groups.value * p.columns.value;
    for (u32 n = threadIdx.x; n < pieces; n += THREADS) {
        u32 rest = n;
        const u32 column = split(rest, p.columns), down = split(rest, p.groups);
        const i32 at = (i32)(rest * apart + down * PATCH1 * pitch) + (i32)((u32)p.first + column * (RUN / STEP2));
        math_t sum[SIDE1][RUN] = {};
#pragma unroll
        for (int j = 0; j < REACHING1; j++) {
            y_t dy[REACHING2];
            index_t where[REACHING2] = {};
            const bool is_row = !IS_SEGMENT || is_position(axes[1], top + (length_t)down * PATCH1 + j);
            take_row<VECTOR, PHASE>(dy, is_row ? tile + (at + j * (i32)pitch) : outside);
            if constexpr (HAS_INDEX)
                take_row<VECTOR, PHASE>(where, is_row ? numbers + (at + j * (i32)pitch) : (const index_t *)outside);
            add_row(sum, axes,
                    {0, top + (length_t)down * PATCH1 + j, (length_t)p.before + (length_t)column * (RUN / STEP2)}, dy,
                    where, j);
        }
        u32 image = (u32)(plane + rest);
        const offset_t channel = (offset_t)split(image, p.channels);
        const length_t i1 = (start + (length_t)down) * SIDE1 - axes[1].offset, i2 = (length_t)column * RUN;
        x_t *const dx = p.x + ((offset_t)image * (offset_t)p.x_n + channel * (offset_t)p.x_c + i1 * axes[1].x_stride +
                               i2 * axes[2].x_stride);
#pragma unroll
        for (int e1 = 0; e1 < SIDE1; e1++)
            if (is_inside(axes[1], i1 + e1))
                store_row(p, dx + e1 * axes[1].x_stride, sum[e1], axes[2].x_stride, axes[2].x - i2);
    }
}
