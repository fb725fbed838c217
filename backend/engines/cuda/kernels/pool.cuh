/* pool: y[n,c,o] = the maximum or mean of a small window of x, as window.cuh                      any type, any strides, sm_75 and up
   Formula   lib/pool.cuh finds the windows of a patch of positions, so that what they share is read once
   Tile      a thread makes RUN channels of PATCH1 x PATCH2 positions along the last two axes; threads go along memory
   Limits    whole steps and taps, few of them; edges are padded with zeros or with what never wins
   Params    as window.cuh, and BLOCKS STEP0-2 PATCH1 PATCH2 WANTS_WHERE IS_PAIRED (pairs of 16-bit channels) IS_SCALED */

#include "lib/overlap.cuh"

/* Templates, so that what was not printed is not looked up. */
template <class P> DEVICE void store_values(const P& p, const axis (&axes)[3], const place& to, const length_t (&o)[3], const found& made) {
    if constexpr (HAS_Y) {
        y_t* y = p.y + (to.n * p.y_n + to.c * p.y_c + o[0] * axes[0].y_stride + o[1] * axes[1].y_stride + o[2] * axes[2].y_stride);
        const length_t inside = taps_inside(axes[0], o[0]) * taps_inside(axes[1], o[1]) * taps_inside(axes[2], o[2]);
        const length_t counted = EXCLUDES_PADDING ? inside : TAPS0 * TAPS1 * TAPS2;
        const math_t lowest = (math_t)__longlong_as_double(p.lowest);
        run<y_t, RUN> out, old = {};
        if constexpr (HAS_OLD) old = load_run<y_t, RUN>(y);
        #pragma unroll
        for (int e = 0; e < RUN; e++) {
            math_t value = made_of::number(made.value, e);
            if (!IS_MAXIMUM) value = share<y_t>(value, counted);
            else if (SKIPS_PADDING && inside == 0) value = lowest;
            math_t scaled = IS_SCALED ? (math_t)__longlong_as_double(p.alpha) * value : value;
            if constexpr (HAS_OLD) scaled += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(old.at[e]);
            out.at[e] = from<y_t>::number(scaled);
        }
        store_run<y_t, RUN>(y, out);
    }
}

template <class P> DEVICE void store_numbers(const P& p, const axis (&axes)[3], const place& to, const length_t (&o)[3], const found& made) {
    if constexpr (HAS_INDEX) {
        const bool is_any = !SKIPS_PADDING || (taps_inside(axes[0], o[0]) && taps_inside(axes[1], o[1]) && taps_inside(axes[2], o[2]));
        run<index_t, RUN> out;
        #pragma unroll
        for (int e = 0; e < RUN; e++) out.at[e] = (index_t)(is_any ? made.where[e] : 0);
        store_run<index_t, RUN>(p.index + (to.n * p.index_n + to.c * p.index_c + o[0] * axes[0].index_stride + o[1] * axes[1].index_stride + o[2] * axes[2].index_stride), out);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool(const __grid_constant__ arguments p) {
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    for (i64 turn = (i64)blockIdx.x * THREADS + threadIdx.x; turn < p.runs; turn += (i64)gridDim.x * THREADS) {
        const place to = locate(p, (position)turn);
        const i64 strides[3] = {axes[0].x_stride, axes[1].x_stride, axes[2].x_stride};
        const patch<PATCH1, PATCH2> made(p.x + (to.n * p.x_n + to.c * p.x_c), axes, strides, to.at);
        #pragma unroll
        for (int r = 0; r < PATCH1; r++)
            #pragma unroll
            for (int s = 0; s < PATCH2; s++) {
                const length_t o[3] = {to.at[0], to.at[1] + r, to.at[2] + s};
                if (o[1] >= axes[1].y || o[2] >= axes[2].y) continue;
                store_values(p, axes, to, o, made.at[r][s]);
                store_numbers(p, axes, to, o, made.at[r][s]);
            }
    }
}
