/* pool_common: windows of a patch of adjacent positions at once. Steps and taps are constants, so each element of x is
   loaded once per patch, and loads wait for no branch: at the edges, positions outside are loaded from the nearest one
   inside and replaced by padding. Rows are reduced first, then combined: of equal maxima the first one wins. */

#include "core/dependent_launch.cuh"

/* The larger of two numbers; NaN propagates, or never wins. */
DEVICE double larger(double a, double b) { return PROPAGATES_NAN ? a != a || a > b ? a : b : ::fmax(a, b); }
DEVICE float larger(float a, float b) {
    if constexpr (PROPAGATES_NAN && CHIP >= 800)
        a = ptx::max_nan(a, b);
    else
        a = PROPAGATES_NAN ? a != a || a > b ? a : b : ::fmaxf(a, b);
    return a;
}

/* Two adjacent 16-bit channels, whose maxima one instruction computes; a single one has zeros above it. */
struct pair {
    u32 bits;
};
DEVICE pair larger(pair a, pair b) {
    if constexpr (same<x_t, bf16>::value && PROPAGATES_NAN)
        return pair{ptx::max_nan_bf16x2(a.bits, b.bits)};
    else if constexpr (same<x_t, bf16>::value)
        return pair{ptx::max_bf16x2(a.bits, b.bits)};
    else if constexpr (PROPAGATES_NAN)
        return pair{ptx::max_nan_f16x2(a.bits, b.bits)};
    else
        return pair{ptx::max_f16x2(a.bits, b.bits)};
}

/* Sets all bits of each half where it is larger than the other operand's or either is NaN; and where it is NaN. */
DEVICE u32 exceeds(pair a, pair b) {
    return same<x_t, bf16>::value ? ptx::set_gtu_bf16x2(a.bits, b.bits) : ptx::set_gtu_f16x2(a.bits, b.bits);
}
DEVICE u32 is_nan(pair a) { return same<x_t, bf16>::value ? ptx::set_nan_bf16x2(a.bits) : ptx::set_nan_f16x2(a.bits); }

/* One of two adjacent halves, extracted from their word: from elements, the compiler would need two steps for the
   second one. */
template <class T> DEVICE float half_of(u32 pair, int e) {
    return same<T, bf16>::value ? __uint_as_float(e ? pair & 0xffff0000u : pair << 16)
                                : to_float(f16{(u16)(pair >> e * 16)});
}
template <class T> struct taken_from { /* elements of runs, converted to the compute type */
    static constexpr bool WORDS = same<T, bf16>::value && same<math_t, float>::value && RUN % 2 == 0 && !ALONG_ROWS;
    static DEVICE math_t number(const run<T, RUN> &r, int e) {
        if constexpr (WORDS)
            return half_of<T>(((const u32 *)&r)[e / 2], e % 2);
        else
            return as<math_t>::of(r.at[e]);
    }
};

/* The values that windows combine: numbers of the compute type, or pairs in their stored form. none() is the initial
   value that every number of a window replaces: NaN if NaN never wins, else -infinity. */
template <bool PAIRED> struct units {
    using type = math_t;
    static constexpr int COUNT = RUN;
    template <class T> static DEVICE type of(const run<T, RUN> &r, int e) { return taken_from<T>::number(r, e); }
    static DEVICE type none() {
        return (math_t)__longlong_as_double(PROPAGATES_NAN ? (i64)0xfff0000000000000ull : 0x7ff8000000000000ll);
    }
    static DEVICE math_t number(const type *values, int e) { return values[e]; }
    template <class R> static DEVICE void copy(R &, int, const type *) {}
    static DEVICE i32 where(const i32 *numbers, int e) { return numbers[e]; }
    static constexpr i32 EACH = 1;
};
template <> struct units<true> {
    using type = pair;
    static constexpr int COUNT = (RUN + 1) / 2;
    template <class T> static DEVICE type of(const run<T, RUN> &r, int e) {
        return pair{RUN == 1 ? *(const u16 *)&r : ((const u32 *)&r)[e]};
    }
    static DEVICE type none() {
        return pair{!PROPAGATES_NAN ? 0x7fff7fffu : same<x_t, bf16>::value ? 0xff80ff80u : 0xfc00fc00u};
    }
    static DEVICE math_t number(const type *values, int e) {
        const u16 bits = (u16)(values[e / 2].bits >> e % 2 * 16);
        return same<x_t, bf16>::value ? to_float(bf16{bits}) : to_float(f16{bits});
    }
    template <class R> static DEVICE void copy(R &to, int e, const type *values) {
        if constexpr (RUN == 1)
            *(u16 *)&to = (u16)values[e].bits;
        else
            ((u32 *)&to)[e] = values[e].bits;
    }
    static DEVICE i32 where(const i32 *numbers, int e) { return numbers[e / 2] >> e % 2 * 16 & 0xffff; }
    static constexpr i32 EACH = 0x10001;
};
using unit_traits = units<IS_PAIRED>;
using unit_t = unit_traits::type;
constexpr int UNITS = unit_traits::COUNT;
DEVICE unit_t padding() { return IS_MAXIMUM && SKIPS_PADDING ? unit_traits::none() : unit_t{}; }

/* The result of a window: a channel's best or sum, and the tap of the best. A pair has two tap indices in a word; for
   NaN, this is the window's last tap, and correct_numbers() finds the NaN's. */
struct window_result {
    unit_t value[UNITS];
    i32 where[UNITS];

    DEVICE void start(const unit_t (&values)[UNITS], i32 number) {
#pragma unroll
        for (int e = 0; e < UNITS; e++) {
            value[e] = values[e];
            where[e] = number * unit_traits::EACH;
        }
    }
    /* Combines a part of the window that begins at tap `number`. */
    DEVICE void combine(const window_result &part, i32 number) {
#pragma unroll
        for (int e = 0; e < UNITS; e++)
            take(e, part.value[e], number * unit_traits::EACH + part.where[e]);
    }
    DEVICE void add(const window_result &part) { combine(part, 0); }
    /* A template, so that operations that a kind of unit lacks are not looked up. */
    template <class U> DEVICE void take(int e, U other, i32 number) {
        const U best = value[e];
        if constexpr (!IS_MAXIMUM)
            value[e] = best + other;
        else if constexpr (!WANTS_WHERE)
            value[e] = larger(best, other);
        else if constexpr (IS_PAIRED) {
            const u32 mask = exceeds(other, best);
            value[e] = larger(best, other);
            where[e] = (i32)((u32)number & mask | (u32)where[e] & ~mask);
        } else {
            const U most = larger(best, other);
            const bool is_better = PROPAGATES_NAN ? other > best || other != other : !(other <= best) && other == other;
            value[e] = most;
            where[e] = is_better ? number : where[e];
        }
    }
};

/* Two adjacent windows add up their overlap once, if it is more than one element. */
constexpr bool SHARES_COLUMNS = !IS_MAXIMUM && TAPS2 > STEP2 + 1, SHARES_ROWS = !IS_MAXIMUM && TAPS1 > STEP1 + 1;

template <int FROM, int UNTIL, int COUNT>
DEVICE void add_values(window_result &sum, const unit_t (&values)[COUNT][UNITS]) {
    sum.start(values[FROM], 0);
#pragma unroll
    for (int i = FROM + 1; i < UNTIL; i++)
#pragma unroll
        for (int e = 0; e < UNITS; e++)
            sum.take(e, values[i][e], 0);
}

/* The value of padding in its stored form: zeros, or a number that never wins, repeated to four bytes. If repeating the
   nearest element inside changes no maximum, it replaces padding; a few types have no number that never wins. */
constexpr bool PADS_ZEROS = !IS_MAXIMUM || !SKIPS_PADDING,
               REPEATS_EDGES = IS_MAXIMUM && SKIPS_PADDING && !WANTS_WHERE && !MAY_BE_EMPTY;
template <class T> struct padding_of {
    static constexpr bool IS_KNOWN = PADS_ZEROS;
    static constexpr u32 WORD = 0;
};
template <> struct padding_of<i8> {
    static constexpr bool IS_KNOWN = PADS_ZEROS || !WANTS_WHERE;
    static constexpr u32 WORD = PADS_ZEROS ? 0 : 0x80808080u;
};
template <> struct padding_of<u8> {
    static constexpr bool IS_KNOWN = PADS_ZEROS || !WANTS_WHERE;
    static constexpr u32 WORD = 0;
};
template <> struct padding_of<bf16> {
    static constexpr bool IS_KNOWN = true;
    static constexpr u32 WORD = PADS_ZEROS ? 0 : PROPAGATES_NAN ? 0xff80ff80u : 0x7fff7fffu;
};
template <> struct padding_of<f16> {
    static constexpr bool IS_KNOWN = true;
    static constexpr u32 WORD = PADS_ZEROS ? 0 : PROPAGATES_NAN ? 0xfc00fc00u : 0x7fff7fffu;
};
template <> struct padding_of<float> {
    static constexpr bool IS_KNOWN = true;
    static constexpr u32 WORD = PADS_ZEROS ? 0 : PROPAGATES_NAN ? 0xff800000u : 0x7fffffffu;
};

/* All bits, or none. Opaque to the compiler, which would otherwise branch before each load, and loads would wait for
   one another. */
DEVICE u32 mask_of(bool is_set) {
    u32 mask = is_set ? ~0u : 0;
    ptx::hide(mask);
    return mask;
}

/* Replaces elements whose bit in the mask is 0 by padding. */
template <class T> DEVICE void mask_run(run<T, RUN> &r, u32 mask, u32 padding) {
    if constexpr (sizeof r % 4 == 0) {
#pragma unroll
        for (int i = 0; i < (int)sizeof r / 4; i++)
            ((u32 *)&r)[i] = ((u32 *)&r)[i] & mask | padding & ~mask;
    } else if constexpr (sizeof r == 2) {
        *(u16 *)&r = (u16)(*(u16 *)&r & mask | padding & ~mask);
    } else {
        *(u8 *)&r = (u8)(*(u8 *)&r & mask | padding & ~mask);
    }
}

DEVICE length_t nearest_inside(const axis &a, length_t at) { return at < 0 ? 0 : at < a.x ? at : a.x - 1; }

/* Loads elements of one row of x, starting at column `first`; S is a type for offsets in memory. */
template <bool COLUMNS_INSIDE, int COLUMNS, class T, class S>
DEVICE void load_row(run<T, RUN> (&loaded)[COLUMNS], const T *x, const axis &a, length_t first, S stride) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        loaded[i] =
            load_channels(x + (COLUMNS_INSIDE ? first * stride + i * stride : nearest_inside(a, first + i) * stride));
}

/* The results of a row: one per position, COUNT in all. The masks select the elements inside, if some are not. */
template <bool ROWS_INSIDE, bool COLUMNS_INSIDE, int COUNT, int COLUMNS, class T>
DEVICE void find_in_row(window_result (&row)[COUNT], run<T, RUN> (&loaded)[COLUMNS], const u32 (&columns)[COLUMNS],
                        u32 row_mask) {
    constexpr bool IS_INTERIOR = ROWS_INSIDE && COLUMNS_INSIDE;
    unit_t values[COLUMNS][UNITS];
    if constexpr (!IS_INTERIOR && !REPEATS_EDGES && padding_of<T>::IS_KNOWN) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            mask_run(loaded[i], columns[i] & row_mask, padding_of<T>::WORD);
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
#pragma unroll
        for (int e = 0; e < UNITS; e++)
            values[i][e] = IS_INTERIOR || REPEATS_EDGES || padding_of<T>::IS_KNOWN || (columns[i] & row_mask)
                               ? unit_traits::of(loaded[i], e)
                               : padding();
    if constexpr (SHARES_COLUMNS && COUNT == 2) {
        window_result both;
        add_values<STEP2, TAPS2>(both, values);
        add_values<0, STEP2>(row[0], values);
        add_values<TAPS2, COLUMNS>(row[1], values);
        row[0].add(both);
        row[1].add(both);
    } else {
#pragma unroll
        for (int s = 0; s < COUNT; s++) {
            row[s].start(values[s * STEP2], 0);
#pragma unroll
            for (int t = 1; t < TAPS2; t++)
#pragma unroll
                for (int e = 0; e < UNITS; e++)
                    row[s].take(e, values[s * STEP2 + t][e], t * unit_traits::EACH);
        }
    }
}

/* The first tap that counts along one axis. */
DEVICE i32 first_counted(const axis &a, length_t o) {
    const length_t first = first_of(a, o);
    return SKIPS_PADDING && first < 0 ? (i32)-first : 0;
}

/* Initializes the indices to the first tap that counts. */
DEVICE void start_numbers(window_result &result, const axis (&axes)[3], const length_t (&o)[3]) {
#pragma unroll
    for (int e = 0; e < UNITS; e++) {
        result.value[e] = unit_traits::none();
        result.where[e] = 0;
    }
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        const i32 number = (first_counted(axes[0], o[0]) * TAPS1 + first_counted(axes[1], o[1])) * TAPS2 +
                           first_counted(axes[2], o[2] + (ALONG_ROWS ? e : 0));
        result.where[e * UNITS / RUN] |= number << (RUN > UNITS ? e % 2 * 16 : 0);
    }
}

/* True if `count` elements, starting with the first tap of position o, are inside. */
DEVICE bool lies_inside(const axis &a, length_t o, int count) {
    const length_t first = first_of(a, o);
    return first >= 0 && first + count <= a.x;
}

/* The windows of ROWS x COLUMNS positions, starting at `o`; x is the image's first element of these channels. A
   separate path without edge checks is used away from edges; if lanes follow rows, some lanes of a warp are always near
   the ends of these. */
template <int ROWS, int COLUMNS, bool GOES_ALONG_ROWS = false> struct patch {
    static constexpr int HEIGHT = (ROWS - 1) * STEP1 + TAPS1, WIDTH = (COLUMNS - 1) * STEP2 + TAPS2;
    window_result at[ROWS][COLUMNS];

    DEVICE void clear(const axis (&axes)[3], const length_t (&o)[3]) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int s = 0; s < COLUMNS; s++)
                start_numbers(at[r][s], axes, {o[0], o[1] + r, o[2] + s});
    }
    template <bool ROWS_INSIDE, bool COLUMNS_INSIDE, class T, class S>
    DEVICE void fill(const T *x, const axis (&axes)[3], const S (&strides)[3], const length_t (&o)[3]) {
        const length_t first0 = first_of(axes[0], o[0]), first1 = first_of(axes[1], o[1]),
                       first2 = first_of(axes[2], o[2]);
        window_result both[COLUMNS];
        u32 columns[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            columns[i] = COLUMNS_INSIDE ? ~0u : mask_of(is_inside(axes[2], first2 + i));
#pragma unroll
        for (int t0 = 0; t0 < TAPS0; t0++)
#pragma unroll
            for (int j = 0; j < HEIGHT; j++) {
                const u32 row_mask =
                    ROWS_INSIDE ? ~0u : mask_of(is_inside(axes[0], first0 + t0) && is_inside(axes[1], first1 + j));
                const S row_offset = ROWS_INSIDE
                                         ? first0 * strides[0] + first1 * strides[1] + t0 * strides[0] + j * strides[1]
                                         : nearest_inside(axes[0], first0 + t0) * strides[0] +
                                               nearest_inside(axes[1], first1 + j) * strides[1];
                window_result row[COLUMNS];
                run<T, RUN> loaded[WIDTH];
                load_row<COLUMNS_INSIDE>(loaded, x + row_offset, axes[2], first2, strides[2]);
                find_in_row<ROWS_INSIDE, COLUMNS_INSIDE>(row, loaded, columns, row_mask);
                if constexpr (SHARES_ROWS && ROWS == 2) {
                    const bool is_first = t0 == 0 && (j == 0 || j == STEP1 || j == TAPS1);
                    window_result(&sum)[COLUMNS] = j < STEP1 ? at[0] : j < TAPS1 ? both : at[1];
#pragma unroll
                    for (int s = 0; s < COLUMNS; s++)
                        if (is_first)
                            sum[s] = row[s];
                        else
                            sum[s].add(row[s]);
                    continue;
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const int t1 = j - r * STEP1;
                    if (t1 < 0 || t1 >= TAPS1)
                        continue;
#pragma unroll
                    for (int s = 0; s < COLUMNS; s++)
                        if (!WANTS_WHERE && t0 + t1 == 0)
                            at[r][s] = row[s];
                        else
                            at[r][s].combine(row[s], (t0 * TAPS1 + t1) * TAPS2);
                }
            }
        if constexpr (SHARES_ROWS && ROWS == 2) {
#pragma unroll
            for (int s = 0; s < COLUMNS; s++) {
                at[0][s].add(both[s]);
                at[1][s].add(both[s]);
            }
        }
    }
    template <class T, class S>
    DEVICE patch(const T *x, const axis (&axes)[3], const S (&strides)[3], const length_t (&o)[3]) {
        if constexpr (WANTS_WHERE)
            clear(axes, o);
        const bool has_rows = lies_inside(axes[0], o[0], TAPS0) && lies_inside(axes[1], o[1], HEIGHT);
        if (has_rows && (GOES_ALONG_ROWS || lies_inside(axes[2], o[2], WIDTH)))
            fill<true, !GOES_ALONG_ROWS>(x, axes, strides, o);
        else
            fill<false, false>(x, axes, strides, o);
    }
};

/* Number of a window's taps that are inside along one axis. */
DEVICE length_t taps_inside(const axis &a, length_t o) {
    const length_t first = first_of(a, o), from = first > 0 ? first : 0,
                   until = first + a.taps < a.x ? first + a.taps : a.x;
    return until > from ? until - from : 0;
}

/* Returns one term of the mean of `counted` taps. Narrow types hide the rounding of the reciprocal. */
template <class T> DEVICE math_t share(math_t x, length_t counted) {
    if (counted == 0)
        return 0;
    return sizeof(T) < 4 ? x * ((math_t)1 / (math_t)counted) : x / (math_t)counted;
}

/* If runs do not fit the rows of the result, stores GRAIN elements at a time, as many as exist. */
template <class T> DEVICE void store_results(T *to, const run<T, RUN> &out, offset_t stride, length_t left) {
    if constexpr (GRAIN == RUN) {
        store_run<T, RUN>(to, out);
    } else {
#pragma unroll
        for (int e = 0; e < RUN; e += GRAIN) {
            run<T, GRAIN> part;
#pragma unroll
            for (int i = 0; i < GRAIN; i++)
                part.at[i] = out.at[e + i];
            if (e < left)
                store_run<T, GRAIN>(to + e * stride, part);
        }
    }
}

template <class T> DEVICE run<T, RUN> load_results(const T *from, offset_t stride, length_t left) {
    if constexpr (GRAIN == RUN)
        return load_run<T, RUN>(from);
    run<T, RUN> in = {};
#pragma unroll
    for (int e = 0; e < RUN; e++)
        if (e < left)
            in.at[e] = from[e * stride];
    return in;
}
