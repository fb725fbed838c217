/* backward_softmax: recomputes P from S for backward_sm90, and masks it */

/* lse2 and delta of queries: in shared memory if queries are streamed, in registers if they are resident. */
struct row_statistics {
    float lse2[2] = {}, delta[2] = {};
    DEVICE row_statistics(const arguments &p, const work &w, i32 resident) {
        if constexpr (!CONFIG.kv_resident) {
            const fragment_position at;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const i32 row = resident + at.row + 8 * h, block = min(row / CONFIG.block_q, (i32)p.q_blocks - 1);
                const float *const tile = p.statistics + q_tile(p, w.batch, w.head, block) * 2 * CONFIG.block_q;
                lse2[h] = tile[row % CONFIG.block_q];
                delta[h] = tile[CONFIG.block_q + row % CONFIG.block_q];
            }
        }
    }
    static DEVICE void load(float (&four)[4], u32 s_pair, const float (&resident)[2]) {
        float pair[2];
        if constexpr (CONFIG.kv_resident)
            load_pair(pair, s_pair);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            four[e] = CONFIG.kv_resident ? pair[e % 2] : resident[e / 2];
    }
};

/* ALiBi slope of a query head, times log2(e). */
DEVICE float slope2_of(const arguments &p, i32 head) {
    return HAS_ALIBI ? alibi_slope<float>(head, (i32)p.heads) * 1.44269504f : 0.0f;
}

/* P = 2^(scale2 S + slope2 (key - query) - lse2); resident and streamed: the tile's first rows. */
DEVICE void compute_p(s_tile &s, const row_statistics &resident_statistics, u32 s_lse2, float scale2, float slope2,
                      i32 resident, i32 streamed) {
    const fragment_position at;
    const float distance = (float)(streamed + at.column - resident - at.row); /* streamed row minus resident row */
    const float alibi_step = CONFIG.kv_resident ? slope2 : -slope2; /* of lse2 minus ALiBi per unit of distance */
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 8; ++c) {
        float lse2[4];
        row_statistics::load(lse2, s_lse2 + c * 32, resident_statistics.lse2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float shift = lse2[e];
            if constexpr (HAS_ALIBI)
                shift += alibi_step * (distance + (fragment_column(4 * c + e) - fragment_row(e)));
            s[4 * c + e] = exp2_approx(s[4 * c + e] * scale2 - shift);
        }
    }
}

/* Derivatives of the score modifier, in pairs. */
using derivative_pairs = u32[CONFIG.has_derivatives ? CONFIG.block_streamed / 4 : 1];
constexpr bool HAS_SCORES = HAS_MODIFIER || BIAS != 0; /* scores are computed per element, in natural units */

/* has_factors: constant factors of all inputs of the modifier, and of all its outputs; otherwise 1. */
template <class P> DEVICE float first_factor(const P &p) {
    if constexpr (CONFIG.has_factors)
        return factor_before(p);
    else
        return 1.0f;
}
template <class P> DEVICE float last_factor(const P &p) {
    if constexpr (CONFIG.has_factors)
        return factor_after(p);
    else
        return 1.0f;
}
/* Without a bias, the last factor is folded into log2(e). */
constexpr bool FUSES_LAST_FACTOR = CONFIG.has_factors && BIAS == 0;

/* Score without ALiBi, from the product times the scale and first_factor. */
template <class P>
DEVICE float transform_score(const P &p, i32 batch, i32 head, i32 query, i32 key, float scaled, float bias) {
    if constexpr (FUSES_LAST_FACTOR)
        return modified_between(p, batch, head, query, key, scaled);
    else if constexpr (CONFIG.has_factors)
        return with_bias<true>(modified_between(p, batch, head, query, key, scaled) * last_factor(p), bias);
    else
        return score_of<true>(p, batch, head, query, key, scaled, bias);
}
/* is_soft_cap: a tanh between two factors, whose derivative is always finite, so it is multiplied into P, in pairs. Not
   with dropout, which needs P itself. */
constexpr bool FUSES_DERIVATIVES = CONFIG.is_soft_cap && !HAS_DROPOUT;

/* Derivative of the score, without derivative_factor_of. If the score hides a key it is arbitrary, because P is 0
   then. */
template <class P> DEVICE float derivative_at(const P &p, i32 batch, i32 head, i32 query, i32 key, float scaled) {
    if constexpr (CONFIG.is_soft_cap) {
        const float tanh = modified_between(p, batch, head, query, key, scaled);
        return fmaf(-tanh, tanh, 1.0f);
    } else if constexpr (CONFIG.has_factors)
        return between_gradient(p, batch, head, query, key, scaled, first_factor(p) * last_factor(p));
    else
        return modified_gradient(p, batch, head, query, key, scaled, 1.0f);
}

/* Bias of 16 queries from 8c on, in pairs in accumulator order; s_bias: this consumer's box. */
DEVICE void load_bias_fragment(u32 (&pairs)[4], u32 s_bias, int c) {
    const u32 lane = lane_index(), key = 2 * (warp_index() & 3) + lane / 8 % 2; /* in units of eight keys */
    load_matrices_transposed(pairs, s_bias + (lane / 16 * 8 + lane % 8) * 128 + (key ^ lane % 8) * 16 + c * 1024);
}

/* P with a modifier or a bias. Indices beyond the tensors are clamped; such elements are masked, or their statistics
   are +inf. head: of the queries. */
template <class P>
DEVICE void compute_p_with_terms(s_tile &s, derivative_pairs &derivatives, const P &p, i32 batch, i32 head,
                                 const row_statistics &resident_statistics, u32 s_lse2, u32 s_bias, float scale,
                                 float slope2, i32 resident, i32 streamed) {
    const fragment_position at;
    [[maybe_unused]] const float distance = (float)(streamed + at.column - resident - at.row);
    [[maybe_unused]] const float alibi_step = CONFIG.kv_resident ? slope2 : -slope2;
    const i32 last_row = (i32)(CONFIG.kv_resident ? p.keys : p.queries) - 1,
              last_column = (i32)(CONFIG.kv_resident ? p.queries : p.keys) - 1;
    const float to_exponent = FUSES_LAST_FACTOR ? last_factor(p) * 1.44269504f : 1.44269504f;
    scale *= first_factor(p);
    i32 rows[2];
    bias_offset bias[2];
    [[maybe_unused]] u32 pairs[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        rows[h] = min(resident + at.row + 8 * h, last_row);
        bias[h] = bias_row(p, batch, head, rows[h], CONFIG.kv_resident);
    }
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 8; ++c) {
        float lse2[4];
        [[maybe_unused]] float derivative[4];
        [[maybe_unused]] float tma_bias[2][2];
        if constexpr (CONFIG.has_tma_bias) {
            if (c % 2 == 0)
                load_bias_fragment(pairs, s_bias, c);
#pragma unroll
            for (int h = 0; h < 2; ++h)
                unpack_bias(tma_bias[h], pairs[c % 2 * 2 + h]);
        }
        row_statistics::load(lse2, s_lse2 + c * 32, resident_statistics.lse2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const i32 column = min(streamed + at.column + fragment_column(4 * c + e), last_column);
            const i32 query = CONFIG.kv_resident ? column : rows[e / 2],
                      key = CONFIG.kv_resident ? rows[e / 2] : column;
            const float scaled = s[4 * c + e] * scale;
            const float bias_value =
                CONFIG.has_tma_bias ? tma_bias[e / 2][e % 2] : bias_at<CONFIG.kv_resident>(p, bias[e / 2], column);
            const float score = transform_score(p, batch, head, query, key, scaled, bias_value);
            if constexpr (CONFIG.has_derivatives)
                derivative[e] = derivative_at(p, batch, head, query, key, scaled);
            float shift = lse2[e];
            if constexpr (HAS_ALIBI)
                shift += alibi_step * (distance + (fragment_column(4 * c + e) - fragment_row(e)));
            s[4 * c + e] = exp2_approx(score * to_exponent - shift);
        }
        if constexpr (CONFIG.has_derivatives)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                derivatives[2 * c + h] = rounded_pair<in_t>(derivative[2 * h], derivative[2 * h + 1]);
    }
}

/* True if the tile of HALF resident and block_streamed streamed rows needs masking. */
DEVICE bool needs_mask(const work &w, i32 resident, i32 streamed) {
    return (CONFIG.kv_resident && resident + HALF > w.visible.keys) ||
           (HAS_LOW && w.low(resident + HALF - 1) > streamed) ||
           (HAS_HIGH && w.high(resident) < streamed + CONFIG.block_streamed);
}
/* Zeroes P of invisible pairs. */
DEVICE void mask_p(s_tile &s, const work &w, i32 resident, i32 streamed) {
    const fragment_position at;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const i32 row = resident + at.row + e / 2 * 8, column = streamed + at.column + e % 2;
        const i32 low = CONFIG.kv_resident && row >= w.visible.keys ? CONFIG.block_streamed
                        : HAS_LOW                                   ? w.low(row) - column
                                                                    : -CONFIG.block_streamed;
        const i32 high = HAS_HIGH ? w.high(row) - column : CONFIG.block_streamed;
#pragma unroll
        for (int c = 0; c < CONFIG.block_streamed / 8; ++c)
            if (8 * c < low || (HAS_HIGH && 8 * c >= high))
                s[4 * c + e] = 0;
    }
}
