/* resample_bwd: dx[n,c,i] = sum of dy[n,c,o] times the weight of x[n,c,i] in y[n,c,o] any type, any strides, sm_75+
   Formula   gathers: the positions o whose windows contain i form a box, and the weight of i in o is a product over the
             axes; for a maximum, dy counts if the window's maximum is i, according to the index or to x
   Tile      a thread computes RUN channels of one element of dx, adding in the order of memory: every run gives the
             same bits
   Limits    RUN above 1 only for contiguous channels
   Params    as resample.cuh, and IS_DILATED HAS_SAVED saved_t */

/* The positions whose windows contain element i along one axis. */
struct reach {
    length_t from, until;
};

DEVICE reach reach_of(const axis &a, length_t i) {
    length_t from = CLAMPS && i == 0 ? 0 : ceil_of((i - (a.taps - 1) * a.dilation) * a.denominator + a.offset, a.step);
    length_t last = CLAMPS && i == a.x - 1 ? a.y - 1 : floor_of((i + 1) * a.denominator - 1 + a.offset, a.step);
    return reach{from > 0 ? from : 0, last < a.y - 1 ? last + 1 : a.y};
}

/* The weight of element i in position o along one axis; several clamped taps may read it. A window with gaps may span i
   without reading it. */
DEVICE math_t share_of(const axis &a, length_t o, length_t i) {
    const length_t first = first_of(a, o);
    math_t sum = 0;
    if (!CLAMPS) {
        const length_t t = (i - first) / a.dilation;
        sum = i >= first && t < a.taps && (i - first) % a.dilation == 0 ? weight_of(a, o, first, t) : (math_t)0;
    } else {
        for (length_t t = 0; t < a.taps; t++)
            if (element_of(a, first, t) == i)
                sum += weight_of(a, o, first, t);
    }
    return IS_POOL && sum != 0 ? sum / (math_t)counted_of(a, first) : sum;
}

/* True if the maximum with this tap index of position o is element i. */
template <class W> DEVICE bool hits(const axis (&axes)[3], const length_t (&o)[3], const length_t (&i)[3], W where) {
    if (where < 0 || where >= (W)(axes[0].taps * axes[1].taps * axes[2].taps))
        return false;
    const length_t number = (length_t)where, t2 = number % axes[2].taps, rest = number / axes[2].taps;
    const length_t t[3] = {rest / axes[1].taps, rest % axes[1].taps, t2};
    bool same = true;
#pragma unroll
    for (int d = 0; d < 3; d++)
        same = same && element_of(axes[d], first_of(axes[d], o[d]), t[d]) == i[d];
    return same;
}

/* Adds the contribution of position o to element i of a maximum. Templates, so that names are looked up only if they
   were emitted. */
template <class P>
DEVICE void add_maximum(math_t (&sum)[RUN], const P &p, const axis (&axes)[3], const coordinates &at,
                        const length_t (&o)[3], const run<y_t, RUN> &dy) {
    if constexpr (HAS_INDEX) {
        const run<index_t, RUN> where = load_run<index_t, RUN>(
            p.index + (at.n * (offset_t)p.index_n + at.c * (offset_t)p.index_c + o[0] * axes[0].index_stride +
                       o[1] * axes[1].index_stride + o[2] * axes[2].index_stride));
#pragma unroll
        for (int e = 0; e < RUN; e++)
            if (hits(axes, o, at.at, to_integer(where.at[e])))
                sum[e] += as<math_t>::of(dy.at[e]);
    }
    if constexpr (HAS_SAVED) {
        const offset_t strides[3] = {axes[0].saved_stride, axes[1].saved_stride, axes[2].saved_stride};
        const maximum<saved_t> largest(p.saved + (at.n * (offset_t)p.saved_n + at.c * (offset_t)p.saved_c), axes,
                                       strides, o, (math_t)__longlong_as_double(p.lowest));
#pragma unroll
        for (int e = 0; e < RUN; e++)
            if (hits(axes, o, at.at, largest.where[e]))
                sum[e] += as<math_t>::of(dy.at[e]);
    }
}

template <class P>
DEVICE void store_dx(const P &p, const axis (&axes)[3], const coordinates &at, const math_t (&sum)[RUN]) {
    x_t *dx = p.x + (at.n * (offset_t)p.x_n + at.c * (offset_t)p.x_c + at.at[0] * axes[0].x_stride +
                     at.at[1] * axes[1].x_stride + at.at[2] * axes[2].x_stride);
    run<x_t, RUN> out, old = {};
    if constexpr (HAS_OLD)
        old = load_run<x_t, RUN>(dx);
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        math_t scaled = (math_t)__longlong_as_double(p.alpha) * sum[e];
        if constexpr (HAS_OLD)
            scaled += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(old.at[e]);
        out.at[e] = from<x_t>::number(scaled);
    }
    store_run<x_t, RUN>(dx, out);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) resample_bwd(const __grid_constant__ arguments p) {
    axis axes[3];
    read_axes(axes, p);
    for (i64 t = (i64)blockIdx.x * THREADS + threadIdx.x; t < p.runs; t += (i64)gridDim.x * THREADS) {
        const coordinates at = locate(p, (position)t);
        const reach r0 = reach_of(axes[0], at.at[0]), r1 = reach_of(axes[1], at.at[1]),
                    r2 = reach_of(axes[2], at.at[2]);
        const y_t *dy = p.y + (at.n * (offset_t)p.y_n + at.c * (offset_t)p.y_c);
        math_t sum[RUN] = {};
        for (length_t o0 = r0.from; o0 < r0.until; o0++)
            for (length_t o1 = r1.from; o1 < r1.until; o1++)
                for (length_t o2 = r2.from; o2 < r2.until; o2++) {
                    const length_t o[3] = {o0, o1, o2};
                    math_t share = 1;
                    /* Windows with gaps may span i without reading it. */
                    if (!IS_MAXIMUM || IS_DILATED) {
#pragma unroll
                        for (int d = 0; d < 3; d++)
                            share *= share_of(axes[d], o[d], at.at[d]);
                        if (share == 0)
                            continue;
                    }
                    const run<y_t, RUN> given =
                        load_channels(dy + (o0 * axes[0].y_stride + o1 * axes[1].y_stride + o2 * axes[2].y_stride));
                    if constexpr (IS_MAXIMUM) {
                        add_maximum(sum, p, axes, at, o, given);
                    } else {
#pragma unroll
                        for (int e = 0; e < RUN; e++)
                            sum[e] += share * as<math_t>::of(given.at[e]);
                    }
                }
        store_dx(p, axes, at, sum);
    }
}
