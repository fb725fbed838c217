/* pool_results: what a pooling leaves of a position: the maximum or mean, and the number of the maximum among the taps.
   Templates, so that what was not printed is not looked up. */

constexpr bool COPIES_PAIRS = IS_PAIRED && same<x_t, y_t>::value && !IS_SCALED && !HAS_OLD && !MAY_BE_EMPTY;

/* `at` is the place in y. */
template <class P> DEVICE void store_values(const P& p, const axis (&axes)[3], i64 at, const length_t (&o)[3], const found& made) {
    if constexpr (HAS_Y) {
        y_t* y = p.y + at;
        const length_t inside = taps_inside(axes[0], o[0]) * taps_inside(axes[1], o[1]) * taps_inside(axes[2], o[2]);
        const length_t counted = EXCLUDES_PADDING ? inside : TAPS0 * TAPS1 * TAPS2;
        const math_t lowest = (math_t)__longlong_as_double(p.lowest);
        run<y_t, RUN> out, old = {};
        if constexpr (HAS_OLD) old = load_run<y_t, RUN>(y);
        if constexpr (COPIES_PAIRS) {
            #pragma unroll
            for (int e = 0; e < UNITS; e++) made_of::copy(out, e, made.value);
        } else {
            #pragma unroll
            for (int e = 0; e < RUN; e++) {
                math_t value = made_of::number(made.value, e);
                if (!IS_MAXIMUM) value = share<y_t>(value, counted);
                else if (MAY_BE_EMPTY && inside == 0) value = lowest;
                math_t scaled = IS_SCALED ? (math_t)__longlong_as_double(p.alpha) * value : value;
                if constexpr (HAS_OLD) scaled += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(old.at[e]);
                out.at[e] = from<y_t>::number(scaled);
            }
        }
        store_run<y_t, RUN>(y, out);
    }
}

DEVICE i64 place_in_y(const arguments& p, const axis (&axes)[3], const place& to, const length_t (&o)[3]) {
    return to.n * p.y_n + to.c * p.y_c + o[0] * axes[0].y_stride + o[1] * axes[1].y_stride + o[2] * axes[2].y_stride;
}

template <class P> DEVICE void store_numbers(const P& p, const axis (&axes)[3], const place& to, const length_t (&o)[3], const found& made) {
    if constexpr (HAS_INDEX) {
        const bool is_any = !MAY_BE_EMPTY || (taps_inside(axes[0], o[0]) && taps_inside(axes[1], o[1]) && taps_inside(axes[2], o[2]));
        run<index_t, RUN> out;
        #pragma unroll
        for (int e = 0; e < RUN; e++) out.at[e] = (index_t)(is_any ? made_of::where(made.where, e) : 0);
        store_run<index_t, RUN>(p.index + (to.n * p.index_n + to.c * p.index_c + o[0] * axes[0].index_stride + o[1] * axes[1].index_stride + o[2] * axes[2].index_stride), out);
    }
}

/* Where a maximum of pairs is NaN, its number: the first NaN's. Rare, so short rather than fast. */
template <class P, class F> DEVICE void correct_numbers(const P& p, const axis (&axes)[3], const place& to, const length_t (&o)[3], const F& made) {
    if constexpr (HAS_INDEX && IS_PAIRED) {
        u32 any = 0;
        #pragma unroll
        for (int e = 0; e < UNITS; e++) any |= is_nan(made.value[e]);
        if (any == 0) return;
        #pragma unroll 1
        for (int number = TAPS0 * TAPS1 * TAPS2 * RUN; number-- > 0;) {
            const length_t t = number / RUN, e = number % RUN;
            const length_t at[3] = {first_of(axes[0], o[0]) + t / (TAPS1 * TAPS2), first_of(axes[1], o[1]) + t / TAPS2 % TAPS1, first_of(axes[2], o[2]) + t % TAPS2};
            if (!is_inside(axes[0], at[0]) || !is_inside(axes[1], at[1]) || !is_inside(axes[2], at[2])) continue;
            const float x = to_float(p.x[to.n * p.x_n + (to.c + e) * p.x_c + at[0] * axes[0].x_stride + at[1] * axes[1].x_stride + at[2] * axes[2].x_stride]);
            if (x != x) p.index[to.n * p.index_n + (to.c + e) * p.index_c + o[0] * axes[0].index_stride + o[1] * axes[1].index_stride + o[2] * axes[2].index_stride] = (index_t)t;
        }
    }
}
