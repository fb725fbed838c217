/* attention_gradient: code shared by the backward kernels: resident and streamed tiles, and the gradients of scores.
   `qk` is Q or K, `vdo` is V or dO: resident K and V with streamed Q and dO, or resident Q and dO with streamed
   K and V.
   Scales    of an operand, NAME_SCALES: 0 none; 1 one number, which multiplies the products; 2 one per row or block,
             which multiplies elements as they are loaded
   Copies    HAS_Q_T, HAS_K_T, HAS_D_O_T: an operand is given a second time for the matmuls of gradients, with block
             scales along the sequence. Requires IS_SLICED, because there is no room for whole tiles of both copies */

#include "attention/element_scales.cuh"

constexpr int ROWS = WARPS * M_TILES * 16, N = COLUMNS / 8, KEPT_WORDS = (N + 7) / 8;
static_assert(COLUMNS % (tiles::NEEDS_SCRATCH ? 8 : 16) == 0 && DEPTH % 16 == 0 && VALUE_DEPTH % 16 == 0,
              "products go by 16, multiply-adds by 8 rows of the other side");

struct alignas(16) passing {
    staged_t first[COLUMNS * (DEPTH + PAD)];
    staged_t second[COLUMNS * (VALUE_DEPTH + PAD)];
    sum_t shifts[OWN_IS_KEY ? COLUMNS : 16 / sizeof(sum_t)],
        dots[OWN_IS_KEY ? COLUMNS : 16 / sizeof(sum_t)]; /* of queries */
};
struct alignas(16) owned {
    staged_t first[ROWS * (DEPTH + PAD)];
    staged_t second[MAKES_FIRST ? ROWS * (VALUE_DEPTH + PAD) : PAD];
    staged_t
        slice[IS_SLICED ? COLUMNS * ((DEPTH > VALUE_DEPTH ? DEPTH : VALUE_DEPTH) + PAD) : PAD]; /* slice of the streamed
                                                                                                   side */
};

/* ---- Loading ---- */

/* An operand of one head, read RUN_ adjacent elements at a time. S: element_scales, or no_scales. */
template <int RUN_, class T, class S> struct head_operand {
    static constexpr int RUN = RUN_;
    const T *at;
    i64 row_step, column_step;
    S scales;
};
template <int RUN, class T, class S>
DEVICE head_operand<RUN, T, S> head_operand_at(const T *at, i64 row_step, i64 column_step, S scales) {
    return head_operand<RUN, T, S>{at, row_step, column_step, scales};
}

template <class P> DEVICE auto q_of(const P &a, i64 batch, i64 head) {
    return head_operand_at<Q_RUN>(a.q + batch * a.q_batch + head * a.q_head, a.q_row, a.q_column,
                                  q_scales(a, batch, head));
}
template <class P> DEVICE auto k_of(const P &a, i64 batch, i64 head) {
    const i64 shared = head / a.key_share;
    return head_operand_at<K_RUN>(a.k + batch * a.k_batch + shared * a.k_head, a.k_row, a.k_column,
                                  k_scales(a, batch, shared));
}
template <class P> DEVICE auto v_of(const P &a, i64 batch, i64 head) {
    const i64 shared = head / a.value_share;
    return head_operand_at<V_RUN>(a.v + batch * a.v_batch + shared * a.v_head, a.v_row, a.v_column,
                                  v_scales(a, batch, shared));
}
template <class P> DEVICE auto d_o_of(const P &a, i64 batch, i64 head) {
    return head_operand_at<D_O_RUN>(a.d_o + batch * a.d_o_batch + head * a.d_o_head, a.d_o_row, a.d_o_column,
                                    d_o_scales(a, batch, head));
}

/* The operands of gradients. */
template <class P> DEVICE auto q_for_dk(const P &a, i64 batch, i64 head) {
    if constexpr (HAS_Q_T)
        return head_operand_at<Q_T_RUN>(a.q_t + batch * a.q_t_batch + head * a.q_t_head, a.q_t_row, a.q_t_column,
                                        q_t_scales(a, batch, head));
    else
        return q_of(a, batch, head);
}
template <class P> DEVICE auto k_for_dq(const P &a, i64 batch, i64 head) {
    const i64 shared = head / a.key_share;
    if constexpr (HAS_K_T)
        return head_operand_at<K_T_RUN>(a.k_t + batch * a.k_t_batch + shared * a.k_t_head, a.k_t_row, a.k_t_column,
                                        k_t_scales(a, batch, shared));
    else
        return k_of(a, batch, head);
}
template <class P> DEVICE auto d_o_for_dv(const P &a, i64 batch, i64 head) {
    if constexpr (HAS_D_O_T)
        return head_operand_at<D_O_T_RUN>(a.d_o_t + batch * a.d_o_t_batch + head * a.d_o_t_head, a.d_o_t_row,
                                          a.d_o_t_column, d_o_t_scales(a, batch, head));
    else
        return d_o_of(a, batch, head);
}

/* Without conversion instructions, converting 8-bit numbers to f16 or bf16 needs many registers. */
constexpr int SCALED_AT_ONCE = CHIP < 890 ? 1 : 2;

/* Loads COUNT rows from `first` on, zeros for those outside `rows`, and WIDTH columns from `column` on. */
template <int COUNT, int WIDTH, int RUN, class T, class S>
DEVICE void bring_rows(staged_t *to, const head_operand<RUN, T, S> &from, const span &rows, int first, int column,
                       i64 columns) {
    using rows_carrier = carrier<COUNT, WIDTH, RUN, T>;
    const auto place = [&](int i) -> const T * {
        return rows.has(first + i) ? from.at + (first + i) * from.row_step + column * from.column_step : nullptr;
    };
    if constexpr (same<S, no_scales>::value)
        rows_carrier::bring(to, from.at, (int)columns - column, from.column_step, place);
    else
        rows_carrier::template bring<S::IS_BY_ELEMENT, SCALED_AT_ONCE>(
            to, from.at, (int)columns - column, from.column_step, place,
            [&](int i, int j) { return from.scales.of(first + i, column + j); });
}
/* IS_OPERAND_OF_GRADIENT: loads the copy that the gradient's matmul reads. */
template <bool IS_KEY, int COUNT, bool IS_FACTOR = false, class P>
DEVICE void bring_first(const P &a, i64 batch, i64 head, const span &rows, int first, int column, staged_t *to) {
    if constexpr (IS_KEY && IS_FACTOR)
        bring_rows<COUNT, DEPTH>(to, k_for_dq(a, batch, head), rows, first, column, a.depth);
    else if constexpr (IS_KEY)
        bring_rows<COUNT, DEPTH>(to, k_of(a, batch, head), rows, first, column, a.depth);
    else if constexpr (IS_FACTOR)
        bring_rows<COUNT, DEPTH>(to, q_for_dk(a, batch, head), rows, first, column, a.depth);
    else
        bring_rows<COUNT, DEPTH>(to, q_of(a, batch, head), rows, first, column, a.depth);
}
template <bool IS_KEY, int COUNT, bool IS_FACTOR = false, class P>
DEVICE void bring_second(const P &a, i64 batch, i64 head, const span &rows, int first, int column, staged_t *to) {
    if constexpr (IS_KEY)
        bring_rows<COUNT, VALUE_DEPTH>(to, v_of(a, batch, head), rows, first, column, a.value_depth);
    else if constexpr (IS_FACTOR)
        bring_rows<COUNT, VALUE_DEPTH>(to, d_o_for_dv(a, batch, head), rows, first, column, a.value_depth);
    else
        bring_rows<COUNT, VALUE_DEPTH>(to, d_o_of(a, batch, head), rows, first, column, a.value_depth);
}

template <class P> DEVICE void bring_owned(const P &a, i64 batch, i64 head, const span &rows, int first, owned &to) {
    bring_first<OWN_IS_KEY, ROWS>(a, batch, head, rows, first, 0, to.first);
    if constexpr (MAKES_FIRST)
        bring_second<OWN_IS_KEY, ROWS>(a, batch, head, rows, first, 0, to.second);
}
/* True if two query heads have the same resident tiles. */
template <class P> DEVICE bool same_own(const P &a, i64 head, i64 other) {
    return OWN_IS_KEY && head / a.key_share == other / a.key_share &&
           (!MAKES_FIRST || head / a.value_share == other / a.value_share);
}
template <class P> DEVICE void bring_statistics(const P &a, i64 batch, i64 head, int first, passing &to) {
    const i64 line = (batch * a.heads + head) * a.queries;
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
        const i64 query = min((i64)(first + i), a.queries - 1);
        if constexpr (HAS_ASYNC) {
            copy_async<sizeof(sum_t)>(to.shifts + i, a.shifts + line + query, true);
            copy_async<sizeof(sum_t)>(to.dots + i, a.dots + line + query, true);
        } else {
            to.shifts[i] = a.shifts[line + query];
            to.dots[i] = a.dots[line + query];
        }
    }
}
/* If sliced, only loads the columns of `chunk`, which the gradient's matmul reads. */
template <class P>
DEVICE void bring_passing(const P &a, i64 batch, i64 head, const span &seen, int first, int chunk, passing &to) {
    if constexpr (!IS_SLICED || MAKES_FIRST)
        bring_first<!OWN_IS_KEY, COLUMNS, IS_SLICED>(a, batch, head, seen, first, IS_SLICED ? chunk * DEPTH : 0,
                                                     to.first);
    if constexpr (!IS_SLICED || MAKES_SECOND)
        bring_second<!OWN_IS_KEY, COLUMNS, IS_SLICED>(a, batch, head, seen, first, IS_SLICED ? chunk * VALUE_DEPTH : 0,
                                                      to.second);
    if constexpr (OWN_IS_KEY)
        bring_statistics(a, batch, head, first, to);
}

/* For the tiles that gradients are computed from. */
DEVICE bool clear_non_finite_rows(passing &tile, int *non_finite, int mark) {
    bool found = false;
    if constexpr (!OWN_IS_KEY)
        found = carrier < COLUMNS, DEPTH, HAS_K_T ? K_T_RUN : K_RUN,
        k_t > ::clear_non_finite_rows(tile.first, non_finite, mark);
    else if constexpr (!IS_SLICED || MAKES_FIRST)
        found = carrier < COLUMNS, DEPTH, HAS_Q_T ? Q_T_RUN : Q_RUN,
        q_t > ::clear_non_finite_rows(tile.first, non_finite, mark);
    if constexpr (OWN_IS_KEY && (!IS_SLICED || MAKES_SECOND))
        found = carrier < COLUMNS, VALUE_DEPTH, HAS_D_O_T ? D_O_T_RUN : D_O_RUN,
        d_o_t > ::clear_non_finite_rows(tile.second, non_finite, mark) || found;
    return found;
}

/* ---- Scores of resident rows ---- */

struct scores_of_rows {
    own_row own[M_TILES][2];
    sum_t shift[M_TILES][2], dot[M_TILES][2]; /* of resident queries */
    sum_t scale, growth;
    sum_t dp_scale; /* factor of dO V^T */
    rng_state rng;
    u64 blocks_per_query;
    tiles::rows<DEPTH, M_TILES, IS_HELD> first;
    tiles::rows<VALUE_DEPTH, M_TILES, IS_HELD> second;

    template <class P> DEVICE void start(const P &a, const owned &tile, int warp_first) {
        scale = in_units(scale_of(a) * score_descale(a));
        growth = growth_of<sum_t>(a);
        dp_scale = growth * dp_descale(a);
        rng = rng_state_of(a);
        blocks_per_query = (u64)((a.keys + 3) / 4);
        first.point(tile.first + warp_first * (DEPTH + PAD));
        if constexpr (MAKES_FIRST)
            second.point(tile.second + warp_first * (VALUE_DEPTH + PAD));
    }
    template <class P> DEVICE void find(const P &a, const lengths &used, i64 batch, i64 head, int from, int last) {
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int i = from + 16 * m + lane() / 4 + 8 * h, row = min(i, last);
                own[m][h] = own_row_of(a, used, batch, head, row);
                if (i > last)
                    own[m][h].seen = span{0, 0};
                if constexpr (!OWN_IS_KEY) {
                    shift[m][h] = a.shifts[(batch * a.heads + head) * a.queries + row];
                    dot[m][h] = a.dots[(batch * a.heads + head) * a.queries + row];
                }
            }
    }
    DEVICE void load() {
        first.load();
        if constexpr (MAKES_FIRST)
            second.load();
    }
    /* True if any pair of the warp's rows and the tile is visible. */
    DEVICE bool meets(int from) const {
        bool found = false;
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
            found = found || own[m][0].seen.meets(from, from + COLUMNS) || own[m][1].seen.meets(from, from + COLUMNS);
        return __any_sync(0xffffffffu, found);
    }
};

/* The pair of tiles: resident rows from resident_first on, and streamed rows from `first` on. */
struct meeting {
    i64 batch, head;
    span own, others;
    int own_first, first;
};

/* Computes Q K^T and dO V^T by slices. */
template <class P>
DEVICE void add_all_slices(const P &a, const meeting &at, const scores_of_rows &rows, owned &tile, bool takes,
                           sum_t (&s)[M_TILES][N][4], sum_t (&g)[M_TILES][N][4]) {
    add_slices<DEPTH>(s, rows.first, tile.slice, a.depth, takes, [&](int column) {
        bring_first<OWN_IS_KEY, ROWS>(a, at.batch, at.head, at.own, at.own_first, column, tile.first);
        bring_first<!OWN_IS_KEY, COLUMNS>(a, at.batch, at.head, at.others, at.first, column, tile.slice);
    });
    if constexpr (MAKES_FIRST)
        add_slices<VALUE_DEPTH>(g, rows.second, tile.slice, a.value_depth, takes, [&](int column) {
            bring_second<OWN_IS_KEY, ROWS>(a, at.batch, at.head, at.own, at.own_first, column, tile.second);
            bring_second<!OWN_IS_KEY, COLUMNS>(a, at.batch, at.head, at.others, at.first, column, tile.slice);
        });
}

/* P = e^(S - stats). Exact stats are not less than S; rounded ones may be. */
DEVICE void find_probabilities(const scores_of_rows &rows, int m, const passing &now, sum_t (&s)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const sum_t distance = s[j][e] - (OWN_IS_KEY ? now.shifts[score_column(j) + e % 2] : rows.shift[m][e / 2]);
            s[j][e] = s[j][e] == unseen() ? (sum_t)0 : power(distance > 0 ? (sum_t)0 : distance);
        }
}

template <class P>
DEVICE void find_kept(const P &a, const scores_of_rows &rows, int m, int first, u32 (&kept)[KEPT_WORDS]) {
#pragma unroll
    for (int w = 0; w < KEPT_WORDS; w++)
        kept[w] = DRAWS_DROPOUT ? 0 : 0xffffffffu;
    if constexpr (DRAWS_DROPOUT) {
#pragma unroll
        for (int j = 0; j < N; j++)
            kept[j / 8] |= kept_of(rows.rng, rows.own[m], first + 8 * j, rows.blocks_per_query) << j % 8 * 4;
    }
}
/* Applies dropout to x, which belongs to P[j][e], without the dropout scale. A mask is read only if P is not 0. */
template <class P>
DEVICE sum_t dropped(const P &a, const scores_of_rows &rows, int m, int first, const u32 (&kept)[KEPT_WORDS], int j,
                     int e, sum_t p, sum_t x) {
    if constexpr (HAS_DROPOUT_MASK)
        return p == 0 ? (sum_t)0 : x * mask_of(a, rows.own[m][e / 2], first + score_column(j) + e % 2);
    else
        return !HAS_DROPOUT || (kept[j / 8] >> (j % 8 * 4 + e) & 1) ? x : (sum_t)0;
}

/* Converts dP to dS. */
template <class P>
DEVICE void find_score_gradients(const P &a, const scores_of_rows &rows, int m, int first, const passing &now,
                                 const u32 (&kept)[KEPT_WORDS], const sum_t (&p)[N][4], sum_t (&g)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const sum_t dot = OWN_IS_KEY ? now.dots[score_column(j) + e % 2] : rows.dot[m][e / 2];
            const sum_t grown = HAS_DROPOUT || HAS_DP_DESCALE ? g[j][e] * rows.dp_scale : g[j][e];
            const sum_t dp = dropped(a, rows, m, first, kept, j, e, p[j][e], grown);
            g[j][e] = p[j][e] == 0 ? (sum_t)0 : p[j][e] * (dp - dot);
        }
}

/* ---- Score modifiers: propagate gradients of scores back through them ---- */

/* Scaled products before the modifier; empty without one. */
struct scaled_products {
    sum_t at[HAS_MODIFIER ? N : 1][4];
    DEVICE void keep(const sum_t (&s)[N][4], sum_t scale) {
        if constexpr (HAS_MODIFIER)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    at[j][e] = s[j][e] * scale;
    }
    /* Replaces each dS that is not 0 by propagate(row, query, key, product, dS). */
    template <class F> DEVICE void carry(const own_row (&own)[2], int first, sum_t (&g)[N][4], F carry) const {
        if constexpr (HAS_MODIFIER)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const own_row &row = own[e / 2];
                    const int other = first + score_column(j) + e % 2;
                    if (g[j][e] != 0)
                        g[j][e] = carry(row, query_of(row, other), key_of(row, other), at[j][e], g[j][e]);
                }
    }
};

/* Converts dS of the scores to that of the scaled products. */
template <class P>
DEVICE void carry_back(const P &a, const scaled_products &products, const own_row (&own)[2], int first,
                       sum_t (&g)[N][4]) {
    if constexpr (HAS_MODIFIER)
        products.carry(own, first, g, [&](const own_row &row, int query, int key, sum_t product, sum_t ds) {
            return modified_gradient(a, row.batch, row.head, query, key, product, ds);
        });
}
