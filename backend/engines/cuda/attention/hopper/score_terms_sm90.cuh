/* score_terms: what makes scores of scaled products, for the kernels of sm_90: a score modifier, a bias or a boolean
   mask, ALiBi. Scores are natural then, and -inf hides a key. Operands are read from memory (L2), element by element,
   or two neighbouring keys at a time.
   Demands HAS_MODIFIER BIAS BIAS_IS_PAIR BIAS_IS_NEAR HAS_ALIBI. Functions are templates on the arguments, so that what
   was not printed is not looked up. */

#include "attention/alibi.cuh"

DEVICE float minus_infinity() { return __int_as_float(0xff800000); }

/* ALiBi's, of natural scores. */
template <class P> DEVICE float slope_of(const P &a, i32 head) {
    float slope = HAS_ALIBI ? alibi_slope<float>(head, (i32)a.heads) : 0.0f;
    fence_register(slope); /* else it is made anew where it is used */
    return slope;
}

/* Elements from the bias's first one. */
template <bool IS_NEAR> struct offset_of_bias {
    using type = i32;
};
template <> struct offset_of_bias<false> {
    using type = i64;
};
using bias_offset = offset_of_bias<BIAS_IS_NEAR>::type;

/* Where the bias of a query, or of a key, begins. */
template <class P> DEVICE bias_offset bias_row(const P &a, i32 batch, i32 head, i32 index, bool is_key) {
    if constexpr (BIAS != 0)
        return (bias_offset)(batch * a.bias_batch + head * a.bias_head + index * (is_key ? a.bias_key : a.bias_query));
    else
        return 0;
}
/* Of an element of such a row. */
template <bool ROW_IS_KEY, class P> DEVICE float bias_at(const P &a, bias_offset row, i32 index) {
    if constexpr (BIAS != 0)
        return to_float(
            load_run<bias_t, 1>(a.bias + (row + index * (bias_offset)(ROW_IS_KEY ? a.bias_query : a.bias_key))).at[0]);
    else
        return 0.0f;
}
/* Two halves of a word. */
template <class T = bias_t> DEVICE void unpack_bias(float (&pair)[2], u32 word) {
    if constexpr (sizeof(T) == 2) {
        pair[0] = to_float(T{(u16)word});
        pair[1] = to_float(T{(u16)(word >> 16)});
    }
}
/* Of two neighbouring keys: an even one and the next; both are there. */
template <class P> DEVICE void load_bias_pair(float (&pair)[2], const P &a, bias_offset offset) {
    if constexpr (BIAS != 0 && BIAS_IS_PAIR) {
        const run<bias_t, 2> two = load_run<bias_t, 2>(a.bias + offset);
        pair[0] = to_float(two.at[0]), pair[1] = to_float(two.at[1]);
    }
}

/* A modified score with its bias. GUARDS_HIDDEN: a bias of -inf hides whatever it meets; else what is NaN or +inf
   becomes NaN. */
template <bool GUARDS_HIDDEN> DEVICE float with_bias(float scaled, float bias) {
    if constexpr (BIAS == 1 && !GUARDS_HIDDEN)
        return scaled + bias;
    if constexpr (BIAS == 1)
        return bias == minus_infinity() || (HAS_MODIFIER && scaled == minus_infinity()) ? minus_infinity()
                                                                                        : scaled + bias;
    if constexpr (BIAS == 2)
        return bias == 0 ? minus_infinity() : scaled;
    return scaled;
}
/* A score from its scaled product, but for ALiBi. */
template <bool GUARDS_HIDDEN, class P>
DEVICE float score_of(const P &a, i32 batch, i32 head, i32 query, i32 key, float scaled, float bias) {
    if constexpr (HAS_MODIFIER)
        scaled = modified(a, batch, head, query, key, scaled);
    return with_bias<GUARDS_HIDDEN>(scaled, bias);
}
