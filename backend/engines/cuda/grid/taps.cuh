/* taps: what a position of a grid reads along each dimension of an image, and the numbers of threads
   Params    SPATIAL MODE (0 nearest, 1 linear, 2 cubic) PADDING (0 zeros, 1 edge, 2 reflection) ALIGN CHANNELS_LAST RUN
             IS_WIDE real grid_t, and the arguments of emit_geometry() in grid.c */

constexpr int TAPS = MODE == 0 ? 1 : MODE == 1 ? 2 : 4; /* per dimension */
constexpr int COUNT = SPATIAL == 2 ? TAPS * TAPS : TAPS * TAPS * TAPS;

/* The tap along a dimension that number k of a position's COUNT elements has. */
DEVICE constexpr int tap_of(int k, int d) {
    for (int i = SPATIAL - 1; i > d; i--)
        k /= TAPS;
    return k % TAPS;
}

/* A number and its derivative by the coordinate. */
struct dual {
    real value, slope;
};

DEVICE dual padded(dual at, real extent) {
    const real low = ALIGN ? (real)0 : (real)-0.5, span = ALIGN ? extent - 1 : extent;
    if constexpr (PADDING == 0)
        return at;
    if (PADDING == 2 && span > 0) {
        const real distance = fabs(at.value - low), turns = floor(distance / span), rest = fmod(distance, span);
        const bool is_turned = fmod(turns, (real)2) != 0;
        at.slope = (at.value < low) != is_turned ? -at.slope : at.slope;
        at.value = (is_turned ? span - rest : rest) + low;
    }
    at.slope = at.value > 0 && at.value < extent - 1 ? at.slope : (real)0;
    /* Not a number: 0. */
    at.value = at.value > 0 ? at.value : (real)0;
    at.value = at.value < extent - 1 ? at.value : extent - 1;
    return at;
}

/* The cubic convolution with a = -0.75. */
DEVICE dual cubic(real distance) {
    const real a = (real)-0.75, d = fabs(distance), sign = distance < 0 ? (real)-1 : (real)1;
    if (d <= 1)
        return {((a + 2) * d - (a + 3)) * d * d + 1, sign * (3 * (a + 2) * d - 2 * (a + 3)) * d};
    return {((a * d - 5 * a) * d + 8 * a) * d - 4 * a, sign * ((3 * a * d - 10 * a) * d + 8 * a)};
}

/* The taps along one dimension: offsets in an image, or -1 outside of it, and weights. */
struct taps {
    i64 offset[TAPS];
    dual weight[TAPS];
    DEVICE void set(int t, real at, real extent, i64 stride, dual w) {
        offset[t] = at >= 0 && at < extent ? (i64)at * stride : -1;
        weight[t] = w;
    }
    DEVICE void find(real coordinate, i64 elements, i64 stride) {
        const real extent = (real)elements, half = (ALIGN ? extent - 1 : extent) / 2;
        dual at{(coordinate + 1) * half - (ALIGN ? (real)0 : (real)0.5), half};
        if constexpr (MODE == 2) {
            const real first = floor(at.value), rest = at.value - first;
            const real known = rest == rest ? rest : (real)0;
#pragma unroll
            for (int t = 0; t < TAPS; t++) {
                const dual w = cubic(known + 1 - (real)t);
                set(t, padded({first - 1 + (real)t, 1}, extent).value, extent, stride, {w.value, w.slope * at.slope});
            }
        } else if constexpr (MODE == 1) {
            at = padded(at, extent);
            const real first = floor(at.value), rest = at.value - first;
            set(0, first, extent, stride, {1 - rest, -at.slope});
            set(1, first + 1, extent, stride, {rest, at.slope});
        } else {
            set(0, rint(padded(at, extent).value), extent, stride, {1, 0});
        }
    }
};

/* ---- Threads ---- */

/* Removes the fastest number from a list's position, and returns it. */
DEVICE i64 split(i64 &rest, const divisor &d) {
    const i64 quotient = IS_WIDE ? rest / (i64)d.value : (i64)divide((u32)rest, d), part = rest - quotient * d.value;
    rest = quotient;
    return part;
}

/* A position of a grid, and the chunk of channels that a thread processes. */
struct place {
    i64 n, chunk, at[SPATIAL];
};

template <class P> DEVICE void split_position(const P &p, i64 &rest, place &made) {
    const divisor extents[3] = {p.out0, p.out1, p.out2};
#pragma unroll
    for (int d = SPATIAL - 1; d >= 0; d--)
        made.at[d] = split(rest, extents[d]);
}

/* Adjacent threads have adjacent elements of y. */
template <class P> DEVICE place locate(const P &p, i64 item) {
    place made;
    if (CHANNELS_LAST)
        made.chunk = split(item, p.chunks);
    split_position(p, item, made);
    if (!CHANNELS_LAST)
        made.chunk = split(item, p.chunks);
    made.n = item;
    return made;
}

template <class P> DEVICE i64 offset_in_y(const P &p, const place &of) {
    const i64 strides[3] = {p.y_s0, p.y_s1, p.y_s2};
    i64 offset = of.n * p.y_n;
#pragma unroll
    for (int d = 0; d < SPATIAL; d++)
        offset += of.at[d] * strides[d];
    return offset;
}

template <class P> DEVICE i64 offset_in_grid(const P &p, const place &of, i64 n, i64 s0, i64 s1, i64 s2) {
    const i64 strides[3] = {s0, s1, s2};
    i64 offset = of.n * n;
#pragma unroll
    for (int d = 0; d < SPATIAL; d++)
        offset += of.at[d] * strides[d];
    return offset;
}

/* The taps of a position in an image with these strides. */
struct reads {
    taps along[SPATIAL];
    template <class P> DEVICE reads(const P &p, const place &of, i64 s0, i64 s1, i64 s2) {
        const grid_t *grid = p.grid + offset_in_grid(p, of, p.grid_n, p.grid_s0, p.grid_s1, p.grid_s2);
        const i64 extents[3] = {p.x0, p.x1, p.x2}, strides[3] = {s0, s1, s2};
#pragma unroll
        for (int d = 0; d < SPATIAL; d++)
            along[d].find(as<real>::of(grid[(SPATIAL - 1 - d) * p.grid_c]), extents[d], strides[d]);
    }
    /* The offset of element k, or -1 outside of the image. */
    DEVICE i64 offset(int k) const {
        i64 sum = 0;
        bool is_inside = true;
#pragma unroll
        for (int d = 0; d < SPATIAL; d++) {
            const i64 part = along[d].offset[tap_of(k, d)];
            is_inside = is_inside && part >= 0;
            sum += part;
        }
        return is_inside ? sum : -1;
    }
    /* The weight of element k, or its derivative along dimension `by`. */
    DEVICE real weight(int k, int by = -1) const {
        real product = 1;
#pragma unroll
        for (int d = 0; d < SPATIAL; d++) {
            const dual &w = along[d].weight[tap_of(k, d)];
            product *= d == by ? w.slope : w.value;
        }
        return product;
    }
};
