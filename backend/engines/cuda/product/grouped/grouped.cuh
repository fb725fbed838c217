/* grouped: places of the factors and of the result of a mixture of experts, as portable_mma.cuh and portable_fma.cuh ask for them.
   Forward, a batch entry is one tile of rows, which tile_list.cuh found; for the gradient of the weights it is an expert, whose
   rows are the depth.
     Params   FORWARD LEAD_IS_ROW RUN A_RUN B_RUN A_ALONG_DEPTH B_ALONG_DEPTH a_t b_t y_t a_staged b_staged */

/* What reads fields that not every form has is a template: the others do not look them up. */

struct batch {
    i64 first, a, b;
    index rows, depth;
};

template <class P> DEVICE batch find_batch(const P &p, index z) {
    if constexpr (FORWARD) {
        const group_tile tile = p.list[z];
        return batch{tile.first, 0, tile.expert * p.b_entry, (index)tile.rows, tile.expert < 0 ? 0 : (index)p.depth};
    } else {
        const i64 first = group_start(p, z), until = group_start(p, (i64)z + 1),
                  rows = until > first ? until - first : 0;
        return batch{first, first * p.a_depth, first * p.b_depth, (index)p.rows, (index)rows};
    }
}

struct grouped_place {
    i64 offset;
};

DEVICE grouped_place a_outer(const arguments &p, const batch &g, index row) {
    if (row >= g.rows)
        return {NOWHERE};
    if constexpr (FORWARD) {
        const i64 token = find_token(p, g.first + row);
        return {token < 0 ? NOWHERE : token * p.a_outer};
    }
    return {g.a + row * p.a_outer};
}
DEVICE grouped_place a_depth(const arguments &p, const batch &g, index k) {
    return {k < g.depth ? k * p.a_depth : NOWHERE};
}
DEVICE grouped_place b_outer(const arguments &p, const batch &g, index column) {
    return {column < (index)p.columns ? g.b + column * p.b_outer : NOWHERE};
}
DEVICE grouped_place b_depth(const arguments &p, const batch &g, index k) {
    return {k < g.depth ? k * p.b_depth : NOWHERE};
}

template <class T, class S, int LENGTH, bool IS_ALONG_DEPTH> struct grouped_factor {
    using stored = T;
    using staged = S;
    using place = grouped_place;
    static constexpr int RUN = LENGTH;
    static constexpr bool ALONG_DEPTH = IS_ALONG_DEPTH;
    static DEVICE bool is_inside(const arguments &, const place &, const place &) { return true; }
};
using factor_a = grouped_factor<a_t, a_staged, A_RUN, A_ALONG_DEPTH>;
using factor_b = grouped_factor<b_t, b_staged, B_RUN, B_ALONG_DEPTH>;

template <class P> DEVICE void finish(const P &p, index z, index row, index column, const run<sum_t, RUN> &sum) {
    i64 entry = z, line = row;
    if constexpr (FORWARD) {
        const group_tile tile = p.list[z];
        entry = 0;
        line = row < (index)tile.rows && (!SCATTERS || tile.expert >= 0) ? find_row(p, tile.first + row) : -1;
        if (line < 0)
            return;
    }
    run<y_t, RUN> out;
#pragma unroll
    for (int e = 0; e < RUN; e++)
        out.at[e] = convert<y_t>(sum.at[e]);
    store_run<y_t, RUN>(p.y + entry * p.y_entry + line * p.y_row + column * p.y_column, out);
}
