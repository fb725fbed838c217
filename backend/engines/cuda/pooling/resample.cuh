/* resample: y[n,c,o] = the maximum, mean or weighted sum of a window of x          any type, any strides, sm_75 and up
   Formula   pooling/geometry.cuh defines the window; the mode is constants, so that small windows unroll and load
             everything at once
   Tile      a thread computes RUN channels of one position; threads follow memory, so that windows of a block overlap
             in L1
   Limits    RUN above 1 only for contiguous channels
   Params    RUN THREADS TAPS0-2 DILATION0-2 IS_MAXIMUM IS_LINEAR IS_POOL IS_WHOLE CLAMPS SKIPS_PADDING EXCLUDES_PADDING
             PROPAGATES_NAN HAS_Y HAS_INDEX HAS_OLD math_t length_t index x_t y_t index_t, and the emitted locate() */

/* Sums of many numbers: RUN_TAPS of them at a time, whose sums are added with compensation of rounding errors. Windows
   of few taps, which are constants, are added directly. */
struct long_sum {
    static constexpr int RUN_TAPS = 64;
    math_t total = 0, lost = 0, part = 0;
    DEVICE void flush() {
        const math_t more = part - lost, next = total + more, off = (next - total) - more;
        lost = off == off ? off : (math_t)0; /* infinities lose nothing */
        total = next;
        part = 0;
    }
};

/* Every mode but the maximum. Taps of weight 0 are not read, and the mean of no elements is 0. */
struct weighted {
    static constexpr bool IS_LONG = TAPS0 == 0;
    math_t sum[RUN];
    DEVICE weighted(const x_t *x, const axis (&axes)[3], const length_t (&o)[3], math_t lowest) {
        length_t first[3];
        math_t divisor = 1;
#pragma unroll
        for (int d = 0; d < 3; d++) {
            first[d] = first_of(axes[d], o[d]);
            if (IS_POOL)
                divisor *= (math_t)counted_of(axes[d], first[d]);
        }
#pragma unroll
        for (int e = 0; e < RUN; e++)
            sum[e] = 0;
        [[maybe_unused]] long_sum sums[RUN];
        [[maybe_unused]] int pending = 0;
#pragma unroll
        for (length_t t0 = 0; t0 < axes[0].taps; t0++)
#pragma unroll
            for (length_t t1 = 0; t1 < axes[1].taps; t1++)
#pragma unroll
                for (length_t t2 = 0; t2 < axes[2].taps; t2++) {
                    const length_t a0 = element_of(axes[0], first[0], t0), a1 = element_of(axes[1], first[1], t1),
                                   a2 = element_of(axes[2], first[2], t2);
                    const bool inside = is_inside(axes[0], a0) && is_inside(axes[1], a1) && is_inside(axes[2], a2);
                    const math_t weight = weight_of(axes[0], o[0], first[0], t0) *
                                          weight_of(axes[1], o[1], first[1], t1) *
                                          weight_of(axes[2], o[2], first[2], t2);
                    if (weight == 0 || (!inside && EXCLUDES_PADDING))
                        continue;
                    run<x_t, RUN> values = {};
                    if (inside)
                        values =
                            load_channels(x + (a0 * axes[0].x_stride + a1 * axes[1].x_stride + a2 * axes[2].x_stride));
#pragma unroll
                    for (int e = 0; e < RUN; e++)
                        (IS_LONG ? sums[e].part : sum[e]) += weight * (inside          ? as<math_t>::of(values.at[e])
                                                                       : SKIPS_PADDING ? lowest
                                                                                       : (math_t)0);
                    if (IS_LONG && ++pending == long_sum::RUN_TAPS) {
#pragma unroll
                        for (int e = 0; e < RUN; e++)
                            sums[e].flush();
                        pending = 0;
                    }
                }
#pragma unroll
        for (int e = 0; e < RUN && IS_LONG; e++) {
            sums[e].flush();
            sum[e] = sums[e].total;
        }
#pragma unroll
        for (int e = 0; e < RUN; e++)
            sum[e] = divisor != 0 ? sum[e] / divisor : 0;
    }
};

/* Templates, so that names are looked up only if they were emitted. */
template <class P>
DEVICE void store_y(const P &p, const axis (&axes)[3], const coordinates &to, const math_t (&value)[RUN]) {
    if constexpr (HAS_Y) {
        y_t *y = p.y + (to.n * (offset_t)p.y_n + to.c * (offset_t)p.y_c + to.at[0] * axes[0].y_stride +
                        to.at[1] * axes[1].y_stride + to.at[2] * axes[2].y_stride);
        run<y_t, RUN> out, old = {};
        if constexpr (HAS_OLD)
            old = load_run<y_t, RUN>(y);
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            math_t scaled = (math_t)__longlong_as_double(p.alpha) * value[e];
            if constexpr (HAS_OLD)
                scaled += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(old.at[e]);
            out.at[e] = from<y_t>::number(scaled);
        }
        store_run<y_t, RUN>(y, out);
    }
}

template <class P>
DEVICE void store_index(const P &p, const axis (&axes)[3], const coordinates &to, const i32 (&where)[RUN]) {
    if constexpr (HAS_INDEX) {
        run<index_t, RUN> out;
#pragma unroll
        for (int e = 0; e < RUN; e++)
            out.at[e] = (index_t)(where[e] < 0 ? 0 : where[e]);
        store_run<index_t, RUN>(p.index + (to.n * (offset_t)p.index_n + to.c * (offset_t)p.index_c +
                                           to.at[0] * axes[0].index_stride + to.at[1] * axes[1].index_stride +
                                           to.at[2] * axes[2].index_stride),
                                out);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) resample(const __grid_constant__ arguments p) {
    axis axes[3];
    read_axes(axes, p);
    const math_t lowest = (math_t)__longlong_as_double(p.lowest);
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.runs; at += (i64)gridDim.x * THREADS) {
        const coordinates to = locate(p, (position)at);
        const x_t *x = p.x + (to.n * (offset_t)p.x_n + to.c * (offset_t)p.x_c);
        if constexpr (IS_MAXIMUM) {
            const offset_t strides[3] = {axes[0].x_stride, axes[1].x_stride, axes[2].x_stride};
            const maximum<x_t> largest(x, axes, strides, to.at, lowest);
            store_y(p, axes, to, largest.best);
            store_index(p, axes, to, largest.where);
        } else {
            const weighted result(x, axes, to.at, lowest);
            store_y(p, axes, to, result.sum);
        }
    }
}
