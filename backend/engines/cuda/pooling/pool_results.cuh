/* pool_results: stores the results of a pooling: the maximum or mean, and the tap of the maximum. Templates, so that
   names are looked up only if they were emitted. */

/* Runs are channels of one position or, with ALONG_ROWS, adjacent positions. */
DEVICE length_t counted_inside(const axis (&axes)[3], const length_t (&o)[3], int e) {
    return taps_inside(axes[0], o[0]) * taps_inside(axes[1], o[1]) * taps_inside(axes[2], o[2] + (ALONG_ROWS ? e : 0));
}

constexpr bool COPIES_PAIRS = IS_PAIRED && same<x_t, y_t>::value && !IS_SCALED && !HAS_OLD && !MAY_BE_EMPTY;

/* The new value of y for the positions that start at `o`; `old` is the previous one. */
template <class P>
DEVICE run<y_t, RUN> values_of(const P &p, const axis (&axes)[3], const length_t (&o)[3], const window_result &result,
                               const run<y_t, RUN> &old) {
    const math_t lowest = (math_t)__longlong_as_double(p.lowest);
    run<y_t, RUN> out;
    if constexpr (COPIES_PAIRS) {
#pragma unroll
        for (int e = 0; e < UNITS; e++)
            unit_traits::copy(out, e, result.value);
    } else {
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            math_t value = unit_traits::number(result.value, e);
            if (!IS_MAXIMUM)
                value = share<y_t>(value, EXCLUDES_PADDING ? counted_inside(axes, o, e) : TAPS0 * TAPS1 * TAPS2);
            else if (MAY_BE_EMPTY && counted_inside(axes, o, e) == 0)
                value = lowest;
            math_t scaled = IS_SCALED ? (math_t)__longlong_as_double(p.alpha) * value : value;
            if constexpr (HAS_OLD)
                scaled += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(old.at[e]);
            out.at[e] = from<y_t>::number(scaled);
        }
    }
    return out;
}

/* `at` is the offset in y. */
template <class P>
DEVICE void store_values(const P &p, const axis (&axes)[3], offset_t at, const length_t (&o)[3],
                         const window_result &result) {
    if constexpr (HAS_Y) {
        run<y_t, RUN> old = {};
        if constexpr (HAS_OLD)
            old = load_results(p.y + at, axes[2].y_stride, axes[2].y - o[2]);
        store_results(p.y + at, values_of(p, axes, o, result, old), axes[2].y_stride, axes[2].y - o[2]);
    }
}

DEVICE offset_t offset_in_y(const arguments &p, const axis (&axes)[3], const coordinates &to, const length_t (&o)[3]) {
    return to.n * (offset_t)p.y_n + to.c * (offset_t)p.y_c + o[0] * axes[0].y_stride + o[1] * axes[1].y_stride +
           o[2] * axes[2].y_stride;
}

template <class P>
DEVICE void store_numbers(const P &p, const axis (&axes)[3], const coordinates &to, const length_t (&o)[3],
                          const window_result &result) {
    if constexpr (HAS_INDEX) {
        const bool is_any =
            !MAY_BE_EMPTY || (taps_inside(axes[0], o[0]) && taps_inside(axes[1], o[1]) && taps_inside(axes[2], o[2]));
        run<index_t, RUN> out;
#pragma unroll
        for (int e = 0; e < RUN; e++)
            out.at[e] = (index_t)(is_any ? unit_traits::where(result.where, e) : 0);
        store_results(p.index + (to.n * (offset_t)p.index_n + to.c * (offset_t)p.index_c + o[0] * axes[0].index_stride +
                                 o[1] * axes[1].index_stride + o[2] * axes[2].index_stride),
                      out, axes[2].index_stride, axes[2].y - o[2]);
    }
}

/* If a maximum of pairs is NaN, finds the index of the last NaN. This is rare, so the code is optimized for size. */
template <class P, class F>
DEVICE void correct_numbers(const P &p, const axis (&axes)[3], const coordinates &to, const length_t (&o)[3],
                            const F &result) {
    if constexpr (HAS_INDEX && IS_PAIRED) {
        u32 any = 0;
#pragma unroll
        for (int e = 0; e < UNITS; e++)
            any |= is_nan(result.value[e]);
        if (any == 0)
            return;
#pragma unroll 1
        for (int number = 0; number < TAPS0 * TAPS1 * TAPS2 * RUN; number++) {
            const length_t t = number / RUN, e = number % RUN, channel = ALONG_ROWS ? 0 : e,
                           along = o[2] + (ALONG_ROWS ? e : 0);
            const length_t at[3] = {first_of(axes[0], o[0]) + t / (TAPS1 * TAPS2),
                                    first_of(axes[1], o[1]) + t / TAPS2 % TAPS1, first_of(axes[2], along) + t % TAPS2};
            if (!is_inside(axes[0], at[0]) || !is_inside(axes[1], at[1]) || !is_inside(axes[2], at[2]) ||
                along >= axes[2].y)
                continue;
            const float x =
                to_float(p.x[to.n * (offset_t)p.x_n + (to.c + channel) * (offset_t)p.x_c + at[0] * axes[0].x_stride +
                             at[1] * axes[1].x_stride + at[2] * axes[2].x_stride]);
            if (x != x)
                p.index[to.n * (offset_t)p.index_n + (to.c + channel) * (offset_t)p.index_c +
                        o[0] * axes[0].index_stride + o[1] * axes[1].index_stride + along * axes[2].index_stride] =
                    (index_t)t;
        }
    }
}
