/* geometry: which elements of x a position of y sees, along up to three dimensions, for pooling and interpolation.
   Position o reads `taps` elements, `dilation` apart, starting at floor((o * step - offset) / denominator); lengths are
   integers. */

struct axis {
    length_t x, y, taps, dilation, step, offset, denominator; /* extents, window, geometry */
    offset_t x_stride, y_stride, index_stride, saved_stride;
};

/* The image, the channel (the first of RUN), and the index along each axis of a position. */
struct coordinates {
    offset_t n, c;
    length_t at[3];
};

template <class P> DEVICE void read_axes(axis (&axes)[3], const P &p) {
    axes[0] = {(length_t)p.x0,
               (length_t)p.y0,
               TAPS0 ? (length_t)TAPS0 : (length_t)p.taps0,
               (length_t)DILATION0,
               STEP0 ? (length_t)STEP0 : (length_t)p.step0,
               (length_t)p.offset0,
               (length_t)p.denominator0,
               (offset_t)p.x_stride0,
               (offset_t)p.y_stride0,
               (offset_t)p.index_stride0,
               (offset_t)p.saved_stride0};
    axes[1] = {(length_t)p.x1,
               (length_t)p.y1,
               TAPS1 ? (length_t)TAPS1 : (length_t)p.taps1,
               (length_t)DILATION1,
               STEP1 ? (length_t)STEP1 : (length_t)p.step1,
               (length_t)p.offset1,
               (length_t)p.denominator1,
               (offset_t)p.x_stride1,
               (offset_t)p.y_stride1,
               (offset_t)p.index_stride1,
               (offset_t)p.saved_stride1};
    axes[2] = {(length_t)p.x2,
               (length_t)p.y2,
               TAPS2 ? (length_t)TAPS2 : (length_t)p.taps2,
               (length_t)DILATION2,
               STEP2 ? (length_t)STEP2 : (length_t)p.step2,
               (length_t)p.offset2,
               (length_t)p.denominator2,
               (offset_t)p.x_stride2,
               (offset_t)p.y_stride2,
               (offset_t)p.index_stride2,
               (offset_t)p.saved_stride2};
}

/* Quotients rounded down and up, for positive divisors. */
DEVICE length_t floor_of(length_t a, length_t b) { return a / b - (a % b < 0); }
DEVICE length_t ceil_of(length_t a, length_t b) { return a / b + (a % b > 0); }

DEVICE length_t first_of(const axis &a, length_t o) {
    const length_t scaled = o * a.step - a.offset;
    return IS_WHOLE ? scaled : floor_of(scaled, a.denominator);
}

/* The element that tap t of a window reads, where the window starts at `first`: out of bounds, or the nearest one
   inside. */
DEVICE length_t element_of(const axis &a, length_t first, length_t t) {
    const length_t at = first + t * a.dilation;
    return !CLAMPS ? at : at < 0 ? 0 : at >= a.x ? a.x - 1 : at;
}
DEVICE bool is_inside(const axis &a, length_t at) { return at >= 0 && at < a.x; }

/* Weight in linear interpolation along one axis; leading dims have one tap with all the weight. */
DEVICE math_t weight_of(const axis &a, length_t o, length_t first, length_t t) {
    if (!IS_LINEAR || a.taps != 2)
        return 1;
    const math_t fraction = (math_t)(o * a.step - a.offset - first * a.denominator) / (math_t)a.denominator;
    return t ? fraction : 1 - fraction;
}

/* Number of taps that a mean counts. */
DEVICE length_t counted_of(const axis &a, length_t first) {
    if (!EXCLUDES_PADDING)
        return a.taps;
    const length_t before = first < 0 ? ceil_of(-first, a.dilation) : 0, inside = ceil_of(a.x - first, a.dilation);
    const length_t until = inside < a.taps ? inside : a.taps;
    return until > before ? until - before : 0;
}

/* True if a value replaces the best so far: of equal maxima the first wins; NaN never wins or, if it propagates, the
   last one does. */
DEVICE bool beats(math_t value, math_t best) {
    return PROPAGATES_NAN ? value > best || value != value : !(value <= best) && value == value;
}

/* Loads runs of contiguous channels. */
template <class T> DEVICE run<T, RUN> load_channels(const T *p) { return load_run<T, RUN>(p); }

/* The maximum of each channel's window and its tap, -1 if there is only padding that never wins. `x` is the image's
   first element of these channels. */
template <class T> struct maximum {
    math_t best[RUN];
    i32 where[RUN];
    DEVICE maximum(const T *x, const axis (&axes)[3], const offset_t (&strides)[3], const length_t (&o)[3],
                   math_t lowest) {
        length_t first[3];
        i32 number = 0;
#pragma unroll
        for (int d = 0; d < 3; d++)
            first[d] = first_of(axes[d], o[d]);
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            best[e] = lowest;
            where[e] = -1;
        }
#pragma unroll
        for (length_t t0 = 0; t0 < axes[0].taps; t0++)
#pragma unroll
            for (length_t t1 = 0; t1 < axes[1].taps; t1++)
#pragma unroll
                for (length_t t2 = 0; t2 < axes[2].taps; t2++, number++) {
                    const length_t a0 = element_of(axes[0], first[0], t0), a1 = element_of(axes[1], first[1], t1),
                                   a2 = element_of(axes[2], first[2], t2);
                    const bool inside = is_inside(axes[0], a0) && is_inside(axes[1], a1) && is_inside(axes[2], a2);
                    if (!inside && SKIPS_PADDING)
                        continue;
                    run<T, RUN> values = {};
                    if (inside)
                        values = load_channels(x + (a0 * strides[0] + a1 * strides[1] + a2 * strides[2]));
#pragma unroll
                    for (int e = 0; e < RUN; e++) {
                        const math_t value = inside ? as<math_t>::of(values.at[e]) : (math_t)0;
                        if (where[e] >= 0 && !beats(value, best[e]))
                            continue;
                        best[e] = value;
                        where[e] = number;
                    }
                }
    }
};
