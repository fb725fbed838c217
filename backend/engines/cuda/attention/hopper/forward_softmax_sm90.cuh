/* forward_softmax: computes P and the row sums of a block of keys, for forward_sm90.
   No maximum is searched on the fast path: exponents are relative to 0 or to the row maximum of an earlier block. This
   loses no accuracy while P fits its type, which the row sums, needed anyway, show. If some P may be too large, or the
   first sum of a row is so small that P underflowed, the warp takes the slow path for that block: it finds the maximum,
   rescales O and the sums, and uses that maximum from then on.
   FP8         P is E4M3, and 2^HEADROOM at the maximum, so P down to 2^-15 of it does not underflow, and no new maximum
               is needed until some P exceeds E4M3. The largest P of each row shows that; tracking it is free next to
               2^x. The first block always searches its maximum
   EARLY_EXPS  the number of a thread's scores that are exponentiated while the previous MMA still reads P, into
               separate registers. Only the fast path does so, and whether it was the fast path is known only after the
               wait
   Layout      of accumulators: see fragment_sm90 */

using s_tile = float[BLOCK_K / 2];
using p_tile = u32[BLOCK_K * sizeof(in_t) / 8]; /* A operand fragments of 16 or 32 keys */
using o_tile = float[(HEAD_V + ONES) / 2];

/* If the row sum of a block is within these bounds, all its P fit. */
constexpr float LARGEST_SUM = IS_BF16 ? 65536.0f : 32768.0f, LEAST_SUM = IS_BF16 ? 1.0f / 65536 : 1.0f / 16;
constexpr bool ALWAYS_FINDS_ROW_MAX = !IS_FP8 && (HAS_MAX || HAS_SUM_EXP);
constexpr float LARGEST_E4M3 = 448, HEADROOM = IS_FP8 ? 6 : 0;
constexpr bool TRACKS_LARGEST_P = IS_FP8 || HAS_AMAX_S;

template <class P> DEVICE float scale_of(const P &a) {
    if constexpr (HAS_SCALE)
        return to_float(*a.scale);
    else
        return (float)__longlong_as_double(a.scale);
}

DEVICE float infinity() { return __int_as_float(0x7f800000); }

/* A thread's two rows, in base 2: scores are multiplied by log2(e). */
struct row_pair {
    float row_max[2]; /* reference of the exponents; -inf: no key was visible */
    float row_sum[2]; /* over this thread's columns */
    float top[2];     /* TRACKS_LARGEST_P: the largest P of this thread's columns */
    bool finds_row_max;
};

/* ALiBi terms of a thread's exponents, times log2(e): `first` for a block's first column in each row, `slope` per
   column. */
struct alibi_of_rows {
    float slope;
    float first[2];
};

/* The part of exponent i that does not depend on the score; `first`: ALiBi of the row's first column minus row_max. */
DEVICE float alibi_term(float slope, int i, float first) {
    return HAS_ALIBI ? fmaf(slope, (float)fragment_column(i), first) : first;
}

template <class T, int N> DEVICE void fence_registers(T (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        fence_register(r[i]);
}

/* Hides a constant from the compiler, which would otherwise duplicate the loop for each value known at its start. */
DEVICE bool opaque(bool x) {
    i32 y = x;
    fence_register(y);
    return y;
}

DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* Sets elements i and i + 1 of an accumulator. FP8: a word holds keys 2t, 2t + 1, 2t + 8 and 2t + 9 of 16, t = lane %
   4, where the MMA expects 4t .. 4t + 3. V^T uses the same permutation. */
template <class T> DEVICE void set_p(p_tile &p, int i, float low, float high) {
    if constexpr (!IS_FP8)
        p[i / 2] = rounded_pair<T>(low, high);
    else if (i / 4 % 2 == 0)
        p[i / 8 * 2 + i / 2 % 2] = ptx::cvt_e4m3x2(high, low);
    else
        p[i / 8 * 2 + i / 2 % 2] |= (u32)ptx::cvt_e4m3x2(high, low) << 16;
}

/* P is not negative, so its bits compare as integers, and Hopper has a three-input integer maximum. NaN is the
   largest. */
DEVICE float largest_p(float x, float y, float z) {
    return __int_as_float(max(max(__float_as_int(x), __float_as_int(y)), __float_as_int(z)));
}

/* Computes elements FROM to TO - 1 of P, and updates the row sums and the largest P. exponent(i, first) returns
   exponent i. */
template <int FROM, int TO, class S>
DEVICE void exponentiate(p_tile &p, float (&sum)[2], float (&top)[2], S &exponent, const alibi_of_rows &alibi,
                         const float (&row_max)[2]) {
    const float first[2] = {HAS_ALIBI ? alibi.first[0] - row_max[0] : -row_max[0],
                            HAS_ALIBI ? alibi.first[1] - row_max[1] : -row_max[1]};
#pragma unroll
    for (int i = FROM; i < TO; i += 2) {
        const int h = i / 2 % 2;
        const float low = exp2_approx(exponent(i, alibi_term(alibi.slope, i, first[h])));
        const float high = exp2_approx(exponent(i + 1, alibi_term(alibi.slope, i + 1, first[h])));
        if constexpr (ONES == 0) {
            sum[h] += low;
            sum[h] += high;
        }
        if constexpr (TRACKS_LARGEST_P)
            top[h] = largest_p(top[h], low, high);
        set_p<in_t>(p, i, low, high);
    }
}

/* True if some P of the warp does not fit, or if the caller detected an inaccurate one (is_inaccurate_score). */
DEVICE bool is_inaccurate(const float (&sum)[2], const float (&top)[2], bool is_first, bool is_inaccurate_score) {
    if constexpr (IS_FP8)
        return __any_sync(~0u, fmaxf(top[0], top[1]) > LARGEST_E4M3);
    bool beyond = is_inaccurate_score || !(sum[0] < LARGEST_SUM && sum[1] < LARGEST_SUM);
    if (is_first)
        beyond |= !(fminf(quad_sum(sum[0]), quad_sum(sum[1])) > LEAST_SUM);
    return __any_sync(~0u, beyond);
}

/* Updates the row maximum and rescales the statistics; O is to be multiplied by `rescale`. */
DEVICE void find_row_max(row_pair &rows, float (&row_max)[2], float (&rescale)[2], const s_tile &s, float scale,
                         const alibi_of_rows &alibi) {
    float largest[2] = {-infinity(), -infinity()};
#pragma unroll
    for (int i = 0; i < BLOCK_K / 2; ++i) {
        const int h = i / 2 % 2;
        const float exponent = HAS_ALIBI ? fmaf(s[i], scale, alibi_term(alibi.slope, i, alibi.first[h])) : s[i] * scale;
        largest[h] = fmaxf(largest[h], exponent);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float now = fmaxf(rows.row_max[h], quad_max(largest[h]) - HEADROOM);
        row_max[h] = now == -infinity() ? 0.0f : now;
        rescale[h] = exp2_approx(rows.row_max[h] - row_max[h]);
        rows.row_max[h] = now;
        rows.row_sum[h] *= rescale[h];
        rows.top[h] *= rescale[h];
    }
}

DEVICE void start_rows(row_pair &rows) {
    constexpr bool FINDS_ROW_MAX = ALWAYS_FINDS_ROW_MAX || IS_FP8;
    rows.finds_row_max = opaque(FINDS_ROW_MAX);
#pragma unroll
    for (int h = 0; h < 2; ++h)
        rows.row_max[h] = FINDS_ROW_MAX ? -infinity() : 0.0f, rows.row_sum[h] = rows.top[h] = 0;
}

/* Merges the early elements into P. ptxas considers the registers of an operand free once its MMA is issued, so P is
   read again after the wait. keeps_p: true if the content of p still matters. */
DEVICE void merge_early(p_tile &p, const p_tile &early, bool keeps_p) {
#pragma unroll
    for (int i = 0; i < EARLY_EXPS * (int)sizeof(in_t) / 4; ++i)
        p[i] = select(keeps_p, p[i], early[i]);
}

/* exponent(i, first) and its loses() apply if the scores are not complete. await_mma() waits until p and o are free.
   complete_scores() transforms products into scores and applies the terms of the slow path. rescale_rest(rescale)
   rescales further per-row sums. */
template <class J, class W, class S, class F>
DEVICE void softmax(p_tile &p, row_pair &rows, o_tile &o, const s_tile &s, float scale, const alibi_of_rows &alibi,
                    bool is_first, bool scores_complete, J &exponent, const W &await_mma, const S &complete_scores,
                    const F &rescale_rest) {
    float sum[2] = {}, top[2] = {rows.top[0], rows.top[1]};
    p_tile early;
    const auto score_exponent = [&](int i, float first) { return fmaf(s[i], scale, first); };
    if (EARLY_EXPS > 0 && !rows.finds_row_max) {
        if (scores_complete)
            exponentiate<0, EARLY_EXPS>(early, sum, top, score_exponent, alibi, rows.row_max);
        else
            exponentiate<0, EARLY_EXPS>(early, sum, top, exponent, alibi, rows.row_max);
#pragma unroll
        for (int i = 0; i < EARLY_EXPS * (int)sizeof(in_t) / 4; ++i)
            fence_register(early[i]);
        fence_registers(sum);
    }
    await_mma();
    merge_early(p, early, rows.finds_row_max);
    if (!rows.finds_row_max) {
        if (scores_complete)
            exponentiate<EARLY_EXPS, BLOCK_K / 2>(p, sum, top, score_exponent, alibi, rows.row_max);
        else
            exponentiate<EARLY_EXPS, BLOCK_K / 2>(p, sum, top, exponent, alibi, rows.row_max);
        rows.finds_row_max = is_inaccurate(sum, top, is_first, !scores_complete && exponent.loses(sum, rows));
        if (rows.finds_row_max && is_first)
            rows.row_max[0] = rows.row_max[1] = -infinity();
        if (!rows.finds_row_max) {
            rows.row_sum[0] += sum[0], rows.row_sum[1] += sum[1];
            rows.top[0] = top[0], rows.top[1] = top[1];
        }
    }
    if (rows.finds_row_max) {
        float row_max[2], rescale[2];
        complete_scores();
        find_row_max(rows, row_max, rescale, s, scale, alibi);
        sum[0] = sum[1] = 0;
        exponentiate<0, BLOCK_K / 2>(p, sum, rows.top, score_exponent, alibi, row_max);
        rows.row_sum[0] += sum[0], rows.row_sum[1] += sum[1];
        if (!is_first) {
            fence_registers(o);
#pragma unroll
            for (int i = 0; i < (HEAD_V + ONES) / 2; ++i)
                o[i] *= rescale[i / 2 % 2];
            fence_registers(o);
            rescale_rest(rescale);
        }
        const bool is_fully_hidden = rows.row_max[0] == -infinity() || rows.row_max[1] == -infinity();
        rows.finds_row_max = ALWAYS_FINDS_ROW_MAX || __any_sync(~0u, is_fully_hidden);
    }
}
