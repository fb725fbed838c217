/* pool_bwd: dx of a maximum or mean of small windows, as resample_bwd.cuh           any type, any strides, sm_75 and up
   Formula   gathers: element i + offset = b * SIDE + e of patch b is tap e - k * STEP of the position k after the
             patch's first
   Tile      a thread computes RUN channels of SIDE1 x SIDE2 elements of dx, whole steps of the windows, so that the
             compiler knows which tap contributes to which element; it adds in the order of memory: every run gives the
             same bits
   Ahead     a block prefetches the part of dy that the block AHEAD after it will read
   Limits    as pool.cuh
   Tried     indices one by one, and all sums in float (3x3 with steps of two: 86 us instead of 73, of one: 71 instead
             of 54); masks where sums are floats (of one: 56); one bit per index, tested per tap (as many steps);
             indices found just before retained in L2 by priority (no effect)
   Params    as pool.cuh, and AHEAD HAS_SAVED; PATCH1 and PATCH2 count steps per side */

#include "pooling/pool_gradient.cuh"

DEVICE length_t nearest_position(const axis &a, length_t o) { return o < 0 ? 0 : o < a.y ? o : a.y - 1; }

/* Adds the contribution of position (k1, k2) among those that reach the patch. Starting at position `first`, inner
   steps are the same for all threads; `again` has the indices of recomputed maxima. Templates, so that names are looked
   up only if they were emitted. */
template <bool IS_INTERIOR, class P, class A>
DEVICE void add_position(gathered &all, const P &p, const axis (&axes)[3], const coordinates &at,
                         const length_t (&first)[3], length_t t0, int k1, int k2, const A &again) {
    const length_t o[3] = {first[0], first[1] + k1, first[2] + k2};
    const bool inside = IS_INTERIOR || (o[1] >= 0 && o[1] < axes[1].y && o[2] >= 0 && o[2] < axes[2].y);
    const length_t near[3] = {o[0], IS_INTERIOR ? first[1] : nearest_position(axes[1], o[1]),
                              IS_INTERIOR ? first[2] : nearest_position(axes[2], o[2])};
    const offset_t dy_step = IS_INTERIOR ? k1 * axes[1].y_stride + k2 * axes[2].y_stride : 0;
    given from = {};
    from.dy = load_channels(p.y +
                            (at.n * (offset_t)p.y_n + at.c * (offset_t)p.y_c + near[0] * axes[0].y_stride +
                             near[1] * axes[1].y_stride + near[2] * axes[2].y_stride) +
                            dy_step);
    if constexpr (!IS_INTERIOR)
        mask_run(from.dy, mask_of(inside), 0);
    if constexpr (HAS_INDEX) {
        const offset_t step = IS_INTERIOR ? k1 * axes[1].index_stride + k2 * axes[2].index_stride : 0;
        from.load_numbers(p.index +
                          (at.n * (offset_t)p.index_n + at.c * (offset_t)p.index_c + near[0] * axes[0].index_stride +
                           near[1] * axes[1].index_stride + near[2] * axes[2].index_stride) +
                          step);
    }
    if constexpr (HAS_SAVED)
        from.take_numbers(again.at[k1][k2].where);
    const length_t counted = EXCLUDES_PADDING
                                 ? taps_inside(axes[0], o[0]) * taps_inside(axes[1], o[1]) * taps_inside(axes[2], o[2])
                                 : TAPS0 * TAPS1 * TAPS2;
    add_given(all, from, counted, TAPS0 == 1 ? 0 : (int)t0 * TAPS1 * TAPS2, k1, k2);
}

template <bool IS_INTERIOR, class P, class A>
DEVICE void add_positions(gathered &all, const P &p, const axis (&axes)[3], const coordinates &at,
                          const length_t (&first)[3], length_t t0, const A &again) {
#pragma unroll
    for (int k1 = 0; k1 < REACHING1; k1++)
#pragma unroll
        for (int k2 = 0; k2 < REACHING2; k2++) {
            add_position<IS_INTERIOR>(all, p, axes, at, first, t0, k1, k2, again);
        }
}

template <class P, class A>
DEVICE void add_around(gathered &all, const P &p, const axis (&axes)[3], const coordinates &at,
                       const length_t (&first)[3], length_t t0, const A &again) {
    const bool is_interior =
        first[1] >= 0 && first[1] + REACHING1 <= axes[1].y && first[2] >= 0 && first[2] + REACHING2 <= axes[2].y;
    if (is_interior)
        add_positions<true>(all, p, axes, at, first, t0, again);
    else
        add_positions<false>(all, p, axes, at, first, t0, again);
}

template <class P>
DEVICE void add_plane(gathered &all, const P &p, const axis (&axes)[3], const coordinates &at,
                      const length_t (&first)[3], length_t t0) {
    if constexpr (HAS_SAVED) {
        const offset_t strides[3] = {axes[0].saved_stride, axes[1].saved_stride, axes[2].saved_stride};
        const patch<REACHING1, REACHING2> again(p.saved + (at.n * (offset_t)p.saved_n + at.c * (offset_t)p.saved_c),
                                                axes, strides, first);
        add_around(all, p, axes, at, first, t0, again);
    } else {
        add_around(all, p, axes, at, first, t0, 0);
    }
}

/* A block prefetches the memory that the block AHEAD after it reads; the first blocks also their own. A template, so
   that names are looked up only if they were emitted. */
template <class P> DEVICE void expect_ahead(const P &p, const void *memory) {
    if constexpr (AHEAD > 0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const i64 from = (i64)(blockIdx.x + i * AHEAD) * p.ahead_bytes, left = p.whole - from;
            if (threadIdx.x == 0 && left > 0 && (i == 1 || (int)blockIdx.x < AHEAD))
                expect((const u8 *)memory + from, (u32)(left < p.ahead_bytes ? left : p.ahead_bytes));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_bwd(const __grid_constant__ arguments p) {
    expect_ahead(p, p.y);
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < p.runs; item += (i64)gridDim.x * THREADS) {
        const coordinates at = locate(p, (position)item);
        const length_t b1 = at.at[1] + (length_t)p.first1, b2 = at.at[2] + (length_t)p.first2;
        gathered all;
        all.clear();
#pragma unroll
        for (int back = 0; back < (TAPS0 + STEP0 - 1) / STEP0; back++) {
            const length_t last = floor_of(at.at[0] + axes[0].offset, STEP0),
                           o[3] = {last - back, b1 * PATCH1 - BEFORE1, b2 * PATCH2 - BEFORE2};
            const length_t t0 = at.at[0] - first_of(axes[0], o[0]);
            if (o[0] < 0 || o[0] >= axes[0].y || t0 >= TAPS0)
                continue;
            add_plane(all, p, axes, at, o, t0);
        }
        const length_t i1 = b1 * SIDE1 - axes[1].offset, i2 = b2 * SIDE2 - axes[2].offset;
        x_t *const dx = p.x + (at.n * (offset_t)p.x_n + at.c * (offset_t)p.x_c + at.at[0] * axes[0].x_stride +
                               i1 * axes[1].x_stride + i2 * axes[2].x_stride);
#pragma unroll
        for (int e1 = 0; e1 < SIDE1; e1++)
#pragma unroll
            for (int e2 = 0; e2 < SIDE2; e2++)
                if (is_inside(axes[1], i1 + e1) && is_inside(axes[2], i2 + e2))
                    store_dx(p, dx + (e1 * axes[1].x_stride + e2 * axes[2].x_stride), all, e1, e2);
    }
}
