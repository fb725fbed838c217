/* pool: windows of a patch of neighbouring positions at once. Steps and taps are constants, so each element of x that the
   patch sees is loaded once, and loads wait for no branch: at the edges, places outside are loaded from the nearest one
   inside and replaced by what padding reads. Rows come first, then rows are combined: the first of the largest stays the first. */

/* The larger of two numbers; a NaN wins, or never does. */
DEVICE double larger(double a, double b) { return PROPAGATES_NAN ? a != a || a > b ? a : b : ::fmax(a, b); }
DEVICE float larger(float a, float b) {
    if constexpr (PROPAGATES_NAN && CHIP >= 800) asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    else a = PROPAGATES_NAN ? a != a || a > b ? a : b : ::fmaxf(a, b);
    return a;
}

/* Two neighbouring channels of 16 bits, whose larger ones one instruction finds. */
struct pair { u32 bits; };
DEVICE pair larger(pair a, pair b) {
    if constexpr (same<x_t, bf16>::value && PROPAGATES_NAN) asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(a.bits) : "r"(b.bits));
    else if constexpr (same<x_t, bf16>::value) asm("max.bf16x2 %0, %0, %1;" : "+r"(a.bits) : "r"(b.bits));
    else if constexpr (PROPAGATES_NAN) asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(a.bits) : "r"(b.bits));
    else asm("max.f16x2 %0, %0, %1;" : "+r"(a.bits) : "r"(b.bits));
    return a;
}

/* What windows are made of: numbers of the arithmetic, or pairs as they lie in memory. none() is what no number of a window
   has to beat: a NaN where it never wins, else -infinity. */
template <bool PAIRED> struct units {
    using type = math_t;
    static constexpr int COUNT = RUN;
    template <class T> static DEVICE type of(const run<T, RUN>& r, int e) { return as<math_t>::of(r.at[e]); }
    static DEVICE type none() { return (math_t)__longlong_as_double(PROPAGATES_NAN ? (i64)0xfff0000000000000ull : 0x7ff8000000000000ll); }
    static DEVICE math_t number(const type* values, int e) { return values[e]; }
};
template <> struct units<true> {
    using type = pair;
    static constexpr int COUNT = RUN / 2;
    template <class T> static DEVICE type of(const run<T, RUN>& r, int e) { return pair{((const u32*)&r)[e]}; }
    static DEVICE type none() { return pair{!PROPAGATES_NAN ? 0x7fff7fffu : same<x_t, bf16>::value ? 0xff80ff80u : 0xfc00fc00u}; }
    static DEVICE math_t number(const type* values, int e) {
        const u16 bits = (u16)(values[e / 2].bits >> e % 2 * 16);
        return same<x_t, bf16>::value ? to_float(bf16{bits}) : to_float(f16{bits});
    }
};
using made_of = units<IS_PAIRED>;
using unit_t = made_of::type;
constexpr int UNITS = made_of::COUNT;
DEVICE unit_t padding() { return IS_MAXIMUM && SKIPS_PADDING ? made_of::none() : unit_t{}; }

/* What windows combine: a channel's best or sum, and the number of the best among the taps. */
struct found {
    unit_t value[UNITS];
    i32 where[UNITS];

    DEVICE void start(const unit_t (&values)[UNITS], i32 number) {
        #pragma unroll
        for (int e = 0; e < UNITS; e++) {
            value[e] = values[e];
            where[e] = number;
        }
    }
    /* A template, so that what a kind of unit cannot do is not looked up. */
    template <class U> DEVICE void take(int e, U other, i32 number) {
        const U best = value[e];
        if constexpr (!IS_MAXIMUM) value[e] = best + other;
        else if constexpr (!WANTS_WHERE) value[e] = larger(best, other);
        else {
            const U most = larger(best, other);
            const bool is_better = PROPAGATES_NAN ? !(other <= best) && best == best : !(other <= best) && other == other;
            value[e] = most;
            where[e] = is_better ? number : where[e];
        }
    }
};

DEVICE length_t nearest_inside(const axis& a, length_t at) { return at < 0 ? 0 : at < a.x ? at : a.x - 1; }

/* One row of x, whose first element that the patch sees is column `first`: into a found for each of COUNT positions. */
template <bool IS_INTERIOR, int COUNT, class T> DEVICE void find_in_row(found (&row)[COUNT], const T* x, const axis& a, length_t first, i64 stride, bool inside) {
    constexpr int COLUMNS = (COUNT - 1) * STEP2 + TAPS2;
    run<T, RUN> loaded[COLUMNS];
    unit_t values[COLUMNS][UNITS];
    #pragma unroll
    for (int i = 0; i < COLUMNS; i++) loaded[i] = load_channels(x + (IS_INTERIOR ? first * stride + i * stride : nearest_inside(a, first + i) * stride));
    #pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        #pragma unroll
        for (int e = 0; e < UNITS; e++) values[i][e] = IS_INTERIOR || (inside && is_inside(a, first + i)) ? made_of::of(loaded[i], e) : padding();
    #pragma unroll
    for (int s = 0; s < COUNT; s++) {
        row[s].start(values[s * STEP2], 0);
        #pragma unroll
        for (int t = 1; t < TAPS2; t++)
            #pragma unroll
            for (int e = 0; e < UNITS; e++) row[s].take(e, values[s * STEP2 + t][e], t);
    }
}

/* The first tap that counts along one axis. */
DEVICE i32 first_counted(const axis& a, length_t o) {
    const length_t first = first_of(a, o);
    return SKIPS_PADDING && first < 0 ? (i32)-first : 0;
}

/* Whether `count` elements from the first tap of position o on lie inside. */
DEVICE bool lies_inside(const axis& a, length_t o, int count) {
    const length_t first = first_of(a, o);
    return first >= 0 && first + count <= a.x;
}

/* The windows of ROWS x COLUMNS positions from `o` on; x is the image's first element of these channels. */
template <int ROWS, int COLUMNS> struct patch {
    static constexpr int HEIGHT = (ROWS - 1) * STEP1 + TAPS1, WIDTH = (COLUMNS - 1) * STEP2 + TAPS2;
    found at[ROWS][COLUMNS];

    DEVICE void clear(const axis (&axes)[3], const length_t (&o)[3]) {
        unit_t nothing[UNITS];
        #pragma unroll
        for (int e = 0; e < UNITS; e++) nothing[e] = IS_MAXIMUM ? made_of::none() : unit_t{};
        #pragma unroll
        for (int r = 0; r < ROWS; r++)
            #pragma unroll
            for (int s = 0; s < COLUMNS; s++)
                at[r][s].start(nothing, (first_counted(axes[0], o[0]) * TAPS1 + first_counted(axes[1], o[1] + r)) * TAPS2 + first_counted(axes[2], o[2] + s));
    }
    template <bool IS_INTERIOR, class T> DEVICE void fill(const T* x, const axis (&axes)[3], const i64 (&strides)[3], const length_t (&o)[3]) {
        const length_t first0 = first_of(axes[0], o[0]), first1 = first_of(axes[1], o[1]), first2 = first_of(axes[2], o[2]);
        #pragma unroll
        for (int t0 = 0; t0 < TAPS0; t0++)
            #pragma unroll
            for (int j = 0; j < HEIGHT; j++) {
                const bool inside = is_inside(axes[0], first0 + t0) && is_inside(axes[1], first1 + j);
                const i64 row_offset = IS_INTERIOR ? first0 * strides[0] + first1 * strides[1] + t0 * strides[0] + j * strides[1]
                                                   : nearest_inside(axes[0], first0 + t0) * strides[0] + nearest_inside(axes[1], first1 + j) * strides[1];
                found row[COLUMNS];
                find_in_row<IS_INTERIOR>(row, x + row_offset, axes[2], first2, strides[2], inside);
                #pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const int t1 = j - r * STEP1;
                    if (t1 < 0 || t1 >= TAPS1) continue;
                    #pragma unroll
                    for (int s = 0; s < COLUMNS; s++)
                        #pragma unroll
                        for (int e = 0; e < UNITS; e++) at[r][s].take(e, row[s].value[e], (t0 * TAPS1 + t1) * TAPS2 + row[s].where[e]);
                }
            }
    }
    template <class T> DEVICE patch(const T* x, const axis (&axes)[3], const i64 (&strides)[3], const length_t (&o)[3]) {
        clear(axes, o);
        if (lies_inside(axes[0], o[0], TAPS0) && lies_inside(axes[1], o[1], HEIGHT) && lies_inside(axes[2], o[2], WIDTH)) fill<true>(x, axes, strides, o);
        else fill<false>(x, axes, strides, o);
    }
};

/* How many of a window's taps lie inside along one axis. */
DEVICE length_t taps_inside(const axis& a, length_t o) {
    const length_t first = first_of(a, o), from = first > 0 ? first : 0, until = first + a.taps < a.x ? first + a.taps : a.x;
    return until > from ? until - from : 0;
}

/* One part of what a mean of `counted` taps sums. Narrow types do not see that the reciprocal is rounded. */
template <class T> DEVICE math_t share(math_t x, length_t counted) {
    if (counted == 0) return 0;
    return sizeof(T) < 4 ? x * ((math_t)1 / (math_t)counted) : x / (math_t)counted;
}
