/* grouped: offsets of the operands and of the result of a mixture of experts for portable_mma.cuh and portable_fma.cuh.
   Forward, a batch entry is one tile of rows, which tile_list.cuh found; for the weight gradient it is an expert, whose
   rows are k.
   Params    FORWARD LEAD_IS_ROW RUN A_RUN B_RUN A_IS_K_MAJOR B_IS_K_MAJOR a_t b_t y_t a_staged b_staged */

/* Functions that read fields of only one direction are templates, so that the other direction does not look them up. */

struct batch {
    i64 first, a, b;
    index rows, k_count;
};

template <class P> DEVICE batch find_batch(const P &p, index z) {
    if constexpr (FORWARD) {
        const group_tile tile = p.list[z];
        return batch{tile.first, 0, tile.expert * p.b_entry, (index)tile.rows, tile.expert < 0 ? 0 : (index)p.k_count};
    } else {
        const i64 first = group_start(p, z), until = group_start(p, (i64)z + 1),
                  rows = until > first ? until - first : 0;
        return batch{first, first * p.a_k, first * p.b_k, (index)p.rows, (index)rows};
    }
}

struct grouped_coordinates {
    i64 offset;
};

DEVICE grouped_coordinates a_outer(const arguments &p, const batch &g, index row) {
    if (row >= g.rows)
        return {NOWHERE};
    if constexpr (FORWARD) {
        const i64 token = find_token(p, g.first + row);
        return {token < 0 ? NOWHERE : token * p.a_outer};
    }
    return {g.a + row * p.a_outer};
}
DEVICE grouped_coordinates a_k(const arguments &p, const batch &g, index k) {
    return {k < g.k_count ? k * p.a_k : NOWHERE};
}
DEVICE grouped_coordinates b_outer(const arguments &p, const batch &g, index column) {
    return {column < (index)p.columns ? g.b + column * p.b_outer : NOWHERE};
}
DEVICE grouped_coordinates b_k(const arguments &p, const batch &g, index k) {
    return {k < g.k_count ? k * p.b_k : NOWHERE};
}

template <class T, class S, int LENGTH, bool K_MAJOR> struct grouped_operand {
    using stored = T;
    using staged = S;
    using coordinates = grouped_coordinates;
    static constexpr int RUN = LENGTH;
    static constexpr bool IS_K_MAJOR = K_MAJOR;
    static DEVICE bool is_inside(const arguments &, const coordinates &, const coordinates &) { return true; }
};
using operand_a = grouped_operand<a_t, a_staged, A_RUN, A_IS_K_MAJOR>;
using operand_b = grouped_operand<b_t, b_staged, B_RUN, B_IS_K_MAJOR>;

template <class P> DEVICE void epilogue(const P &p, index z, index row, index column, const run<sum_t, RUN> &sum) {
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
