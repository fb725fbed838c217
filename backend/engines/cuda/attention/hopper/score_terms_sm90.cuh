/* score_terms: transforms scaled products into scores, for the kernels of sm_90: score modifier, bias or boolean mask,
   and ALiBi. Scores are in natural units here, and -inf hides a key. Operands are read from global memory (L2), one
   element or two adjacent keys at a time. Requires HAS_MODIFIER BIAS BIAS_IS_PAIR BIAS_IS_NEAR HAS_ALIBI. Functions are
   templates on the arguments, so that fields that were not emitted are not looked up. */

#include "attention/alibi.cuh"

DEVICE float minus_infinity() { return __int_as_float(0xff800000); }

/* Returns the ALiBi slope for natural scores. */
template <class P> DEVICE float slope_of(const P &a, i32 head) {
    float slope = HAS_ALIBI ? alibi_slope<float>(head, (i32)a.heads) : 0.0f;
    fence_register(slope); /* otherwise the compiler recomputes it at each use */
    return slope;
}

/* Type of element offsets into the bias. */
template <bool IS_NEAR> struct offset_of_bias {
    using type = i32;
};
template <> struct offset_of_bias<false> {
    using type = i64;
};
using bias_offset = offset_of_bias<BIAS_IS_NEAR>::type;

/* Offset of the bias row of a query, or of a key. */
template <class P> DEVICE bias_offset bias_row(const P &a, i32 batch, i32 head, i32 index, bool is_key) {
    if constexpr (BIAS != 0)
        return (bias_offset)(batch * a.bias_batch + head * a.bias_head + index * (is_key ? a.bias_key : a.bias_query));
    else
        return 0;
}
/* Returns an element of such a row. */
template <bool ROW_IS_KEY, class P> DEVICE float bias_at(const P &a, bias_offset row, i32 index) {
    if constexpr (BIAS != 0)
        return to_float(
            load_run<bias_t, 1>(a.bias + (row + index * (bias_offset)(ROW_IS_KEY ? a.bias_query : a.bias_key))).at[0]);
    else
        return 0.0f;
}
/* Unpacks two 16-bit elements. */
template <class T = bias_t> DEVICE void unpack_bias(float (&pair)[2], u32 word) {
    if constexpr (sizeof(T) == 2) {
        pair[0] = to_float(T{(u16)word});
        pair[1] = to_float(T{(u16)(word >> 16)});
    }
}
/* Bias of an even key and the next key, both of which must exist. */
template <class P> DEVICE void load_bias_pair(float (&pair)[2], const P &a, bias_offset offset) {
    if constexpr (BIAS != 0 && BIAS_IS_PAIR) {
        const run<bias_t, 2> two = load_run<bias_t, 2>(a.bias + offset);
        pair[0] = to_float(two.at[0]), pair[1] = to_float(two.at[1]);
    }
}

/* Adds the bias to a modified score. CHECKS_BIAS_MASK: a bias of -inf hides any score; otherwise, -inf plus NaN or +inf
   gives NaN. */
template <bool CHECKS_BIAS_MASK> DEVICE float with_bias(float scaled, float bias) {
    if constexpr (BIAS == 1 && !CHECKS_BIAS_MASK)
        return scaled + bias;
    if constexpr (BIAS == 1)
        return bias == minus_infinity() || (HAS_MODIFIER && scaled == minus_infinity()) ? minus_infinity()
                                                                                        : scaled + bias;
    if constexpr (BIAS == 2)
        return bias == 0 ? minus_infinity() : scaled;
    return scaled;
}
/* Returns the score of a scaled product, without ALiBi. */
template <bool CHECKS_BIAS_MASK, class P>
DEVICE float score_of(const P &a, i32 batch, i32 head, i32 query, i32 key, float scaled, float bias) {
    if constexpr (HAS_MODIFIER)
        scaled = modified(a, batch, head, query, key, scaled);
    return with_bias<CHECKS_BIAS_MASK>(scaled, bias);
}
