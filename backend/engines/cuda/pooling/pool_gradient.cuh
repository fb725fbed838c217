/* pool_gradient: the contributions of windows of a maximum or mean to a patch of SIDE1 x SIDE2 elements of dx, RUN
   channels each. Steps and taps are constants, so that the compiler knows which tap of which position contributes to
   which element. */

constexpr int SIDE1 = PATCH1 * STEP1, SIDE2 = PATCH2 * STEP2;
/* Positions before the patch's own that contribute to it, and all that do. */
constexpr int BEFORE1 = (TAPS1 - 1) / STEP1, BEFORE2 = (TAPS2 - 1) / STEP2;
constexpr int REACHING1 = BEFORE1 + PATCH1, REACHING2 = BEFORE2 + PATCH2;

/* Number of windows that contain element e of a side. */
constexpr DEVICE int windows_over(int e, int taps, int step) {
    return e % step < taps ? (taps - 1 - e % step) / step + 1 : 0;
}

/* Gradients of 16-bit maxima stay in pairs in their stored form: indices are compared two at a time, and a sum of two
   elements rounds as it would in float. If more windows overlap, sums are floats. */
constexpr int PAIRS = (RUN + 1) / 2;
constexpr bool IS_BF16 = same<x_t, bf16>::value, IS_HALF = IS_BF16 || same<x_t, f16>::value;
constexpr bool KEEPS_PAIRS = IS_MAXIMUM && TAPS0 == 1 && RUN % 2 == 0 && CHIP >= 800 && IS_HALF &&
                             same<x_t, y_t>::value && same<math_t, float>::value && !IS_SCALED && !HAS_OLD;

DEVICE u32 add_pair(u32 a, u32 b) {
    if constexpr (IS_BF16)
        return ptx::fma_bf16x2(a, 0x3f803f80u, b); /* a * 1 + b */
    else
        return ptx::add_f16x2(a, b);
}

/* Sets all bits of each half where two indices are equal: integers below 2^10 compare like halves. */
DEVICE u32 mask_of_same(u32 a, u32 b) { return ptx::set_eq_f16x2(a, b); }

/* Adds a pair to two sums, each where the indices are equal; the first contribution initializes the sum. */
template <class M> DEVICE void add_where_same(M &low, M &high, u32 pair, u32 a, u32 b, bool is_first) {
    const auto half = [&](int e) { return half_of<x_t>(pair, e); };
    if (is_first)
        ptx::select_where_equal(low, high, a, b, half);
    else
        ptx::add_where_equal(low, high, a, b, half);
}

/* The indices of RUN maxima, in pairs of 16 bits; an invalid index stays invalid. Bytes are loaded as words. */
template <class T> DEVICE void load_pairs(u32 (&pairs)[PAIRS], const T *from) {
    if constexpr (sizeof(T) == 1 && RUN % 4 == 0) {
        const run<u32, (RUN + 3) / 4> words = load_run<u32, (RUN + 3) / 4>((const u32 *)from);
#pragma unroll
        for (int i = 0; i < RUN / 2; i++)
            pairs[i] = __byte_perm(words.at[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
    } else {
        const run<T, RUN> numbers = load_run<T, RUN>(from);
#pragma unroll
        for (int i = 0; i < RUN / 2; i++) {
            const u32 low = (u32)to_integer(numbers.at[2 * i]), high = (u32)to_integer(numbers.at[2 * i + 1]);
            pairs[i] = (low < 0xffff ? low : 0xffff) | (high < 0xffff ? high : 0xffff) << 16;
        }
    }
}

/* Accumulators of elements of dx. Which of the two forms is in use is known at compile time for each element; the other
   one is eliminated. */
struct gathered {
    math_t sum[SIDE1][SIDE2][RUN];
    u32 pairs[SIDE1][SIDE2][PAIRS];

    static constexpr DEVICE bool is_pair(int e1, int e2) {
        return KEEPS_PAIRS && windows_over(e1, TAPS1, STEP1) * windows_over(e2, TAPS2, STEP2) <= 2;
    }
    DEVICE void clear() {
#pragma unroll
        for (int e1 = 0; e1 < SIDE1; e1++)
#pragma unroll
            for (int e2 = 0; e2 < SIDE2; e2++)
#pragma unroll
                for (int e = 0; e < RUN; e++) {
                    sum[e1][e2][e] = 0;
                    pairs[e1][e2][e / 2] = 0;
                }
    }
    /* Adds the contribution of one more window to an element, where its indices equal the tap; is_first: the first
       one. */
    DEVICE void add(int e1, int e2, int pair, u32 given, u32 numbers, u32 tap, bool is_first) {
        if (is_pair(e1, e2)) {
            const u32 taken = given & mask_of_same(numbers, tap);
            pairs[e1][e2][pair] = is_first ? taken : add_pair(pairs[e1][e2][pair], taken);
        } else if constexpr (KEEPS_PAIRS) {
            add_where_same(sum[e1][e2][2 * pair], sum[e1][e2][2 * pair + 1], given, numbers, tap, is_first);
        }
    }
};

/* The contribution of a position: gradients in their stored form, and the indices of its maxima, in pairs or singly. */
struct given {
    run<y_t, RUN> dy;
    u32 pairs[PAIRS];
    i32 where[RUN];

    template <class T> DEVICE void load_numbers(const T *from) {
        if constexpr (KEEPS_PAIRS) {
            load_pairs(pairs, from);
        } else {
            const run<T, RUN> numbers = load_run<T, RUN>(from);
#pragma unroll
            for (int e = 0; e < RUN; e++)
                where[e] = (i32)to_integer(numbers.at[e]);
        }
    }
    DEVICE void take_numbers(const i32 (&numbers)[RUN]) {
#pragma unroll
        for (int e = 0; e < RUN; e++)
            where[e] = numbers[e];
#pragma unroll
        for (int i = 0; KEEPS_PAIRS && i < RUN / 2; i++)
            pairs[i] = (u32)numbers[2 * i] | (u32)numbers[2 * i + 1] << 16;
    }
};

/* Adds the contribution of position (k1, k2) among those that reach the patch; its mean counts `counted` taps, and its
   taps in the patch begin at index `plane_tap`. */
DEVICE void add_given(gathered &all, const given &from, length_t counted, int plane_tap, int k1, int k2) {
    math_t back[RUN];
#pragma unroll
    for (int e = 0; e < RUN && !KEEPS_PAIRS; e++) {
        const math_t number = taken_from<y_t>::number(from.dy, e);
        back[e] = IS_MAXIMUM ? number : share<x_t>(number, counted);
    }
#pragma unroll
    for (int e1 = 0; e1 < SIDE1; e1++)
#pragma unroll
        for (int e2 = 0; e2 < SIDE2; e2++) {
            const int t1 = e1 - (k1 - BEFORE1) * STEP1, t2 = e2 - (k2 - BEFORE2) * STEP2;
            if (t1 < 0 || t1 >= TAPS1 || t2 < 0 || t2 >= TAPS2)
                continue;
            const bool is_first = t1 + STEP1 >= TAPS1 && t2 + STEP2 >= TAPS2;
#pragma unroll
            for (int i = 0; KEEPS_PAIRS && i < RUN / 2; i++)
                all.add(e1, e2, i, ((const u32 *)&from.dy)[i], from.pairs[i], (t1 * TAPS2 + t2) * 0x10001u, is_first);
#pragma unroll
            for (int e = 0; e < RUN && !KEEPS_PAIRS; e++)
                if (!IS_MAXIMUM || from.where[e] == plane_tap + t1 * TAPS2 + t2)
                    all.sum[e1][e2][e] += back[e];
        }
}

template <class P> DEVICE void store_dx(const P &p, x_t *dx, const gathered &all, int e1, int e2) {
    run<x_t, RUN> out, old = {};
    if (gathered::is_pair(e1, e2)) {
#pragma unroll
        for (int i = 0; i < RUN / 2; i++)
            ((u32 *)&out)[i] = all.pairs[e1][e2][i];
        store_run<x_t, RUN>(dx, out);
        return;
    }
    if constexpr (HAS_OLD)
        old = load_run<x_t, RUN>(dx);
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        math_t scaled = IS_SCALED ? (math_t)__longlong_as_double(p.alpha) * all.sum[e1][e2][e] : all.sum[e1][e2][e];
        if constexpr (HAS_OLD)
            scaled += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(old.at[e]);
        out.at[e] = from<x_t>::number(scaled);
    }
    store_run<x_t, RUN>(dx, out);
}
