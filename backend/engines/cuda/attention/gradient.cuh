/* gradient: code shared by the backward kernels: resident and streamed tiles, and the gradients of scores.
   `qk` is Q or K, `vdo` is V or dO: resident K and V with streamed Q and dO, or resident Q and dO with streamed
   K and V.
   Scales    of an operand, NAME_SCALES: 0 none; 1 one number, which multiplies the products; 2 one per row or block,
             which multiplies elements as they are loaded
   Copies    HAS_Q_T, HAS_K_T, HAS_D_O_T: an operand is given a second time for the matmuls of gradients, with block
             scales along the sequence. Requires IS_SLICED, because there is no room for whole tiles of both copies */

#include "engines/cuda/attention/backward_geometry.h"
#include "attention/element_scales.cuh"

constexpr int ROWS = WARPS * M_TILES * 16, N = COLUMNS / 8, KEEP_WORDS = (N + 7) / 8;
static_assert(COLUMNS % (tiles::NEEDS_SCRATCH ? 8 : 16) == 0 && DEPTH % 16 == 0 && VALUE_DEPTH % 16 == 0,
              "MMAs need multiples of 16 rows of the other side, FMAs of 8");

constexpr backward_memory MEMORY =
    backward_memory_of(backward_shape{sizeof(staged_t), sizeof(sum_t), tiles::NEEDS_SCRATCH, KV_RESIDENT, HAS_DQK,
                                      IS_SLICED, ROWS, COLUMNS, STAGES, DEPTH, VALUE_DEPTH});

struct alignas(16) streamed_tile {
    staged_t qk[MEMORY.streamed_qk];
    staged_t vdo[MEMORY.streamed_vdo];
    sum_t shifts[MEMORY.statistics], dots[MEMORY.statistics]; /* one per query */
};
struct alignas(16) resident_tile {
    staged_t qk[MEMORY.resident_qk];
    staged_t vdo[MEMORY.resident_vdo];
    staged_t slice[MEMORY.slice]; /* of the streamed side */
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
    const i64 shared = head / a.k_group_size;
    return head_operand_at<K_RUN>(a.k + batch * a.k_batch + shared * a.k_head, a.k_row, a.k_column,
                                  k_scales(a, batch, shared));
}
template <class P> DEVICE auto v_of(const P &a, i64 batch, i64 head) {
    const i64 shared = head / a.v_group_size;
    return head_operand_at<V_RUN>(a.v + batch * a.v_batch + shared * a.v_head, a.v_row, a.v_column,
                                  v_scales(a, batch, shared));
}
template <class P> DEVICE auto d_o_of(const P &a, i64 batch, i64 head) {
    return head_operand_at<D_O_RUN>(a.d_o + batch * a.d_o_batch + head * a.d_o_head, a.d_o_row, a.d_o_column,
                                    d_o_scales(a, batch, head));
}

/* Operands of the gradients. */
template <class P> DEVICE auto q_for_dk(const P &a, i64 batch, i64 head) {
    if constexpr (HAS_Q_T)
        return head_operand_at<Q_T_RUN>(a.q_t + batch * a.q_t_batch + head * a.q_t_head, a.q_t_row, a.q_t_column,
                                        q_t_scales(a, batch, head));
    else
        return q_of(a, batch, head);
}
template <class P> DEVICE auto k_for_dq(const P &a, i64 batch, i64 head) {
    const i64 shared = head / a.k_group_size;
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

/* Loads COUNT rows, starting at `first`, and WIDTH columns, starting at `column`; rows outside `rows` become zeros. */
template <int COUNT, int WIDTH, int RUN, class T, class S>
DEVICE void load_rows(staged_t *to, const head_operand<RUN, T, S> &from, const span &rows, int first, int column,
                      i64 columns) {
    using loader = tile_loader<COUNT, WIDTH, RUN, T>;
    const auto row_address = [&](int i) -> const T * {
        return rows.has(first + i) ? from.at + (first + i) * from.row_step + column * from.column_step : nullptr;
    };
    if constexpr (same<S, no_scales>::value)
        loader::load(to, from.at, (int)columns - column, from.column_step, row_address);
    else
        loader::template load<S::IS_BY_ELEMENT, SCALED_AT_ONCE>(
            to, from.at, (int)columns - column, from.column_step, row_address,
            [&](int i, int j) { return from.scales.of(first + i, column + j); });
}
/* IS_OPERAND_OF_GRADIENT: loads the copy that the gradient's matmul reads. */
template <bool IS_KEY, int COUNT, bool IS_OPERAND_OF_GRADIENT = false, class P>
DEVICE void load_qk(const P &a, i64 batch, i64 head, const span &rows, int first, int column, staged_t *to) {
    if constexpr (IS_KEY && IS_OPERAND_OF_GRADIENT)
        load_rows<COUNT, DEPTH>(to, k_for_dq(a, batch, head), rows, first, column, a.depth);
    else if constexpr (IS_KEY)
        load_rows<COUNT, DEPTH>(to, k_of(a, batch, head), rows, first, column, a.depth);
    else if constexpr (IS_OPERAND_OF_GRADIENT)
        load_rows<COUNT, DEPTH>(to, q_for_dk(a, batch, head), rows, first, column, a.depth);
    else
        load_rows<COUNT, DEPTH>(to, q_of(a, batch, head), rows, first, column, a.depth);
}
template <bool IS_KEY, int COUNT, bool IS_OPERAND_OF_GRADIENT = false, class P>
DEVICE void load_vdo(const P &a, i64 batch, i64 head, const span &rows, int first, int column, staged_t *to) {
    if constexpr (IS_KEY)
        load_rows<COUNT, VALUE_DEPTH>(to, v_of(a, batch, head), rows, first, column, a.value_depth);
    else if constexpr (IS_OPERAND_OF_GRADIENT)
        load_rows<COUNT, VALUE_DEPTH>(to, d_o_for_dv(a, batch, head), rows, first, column, a.value_depth);
    else
        load_rows<COUNT, VALUE_DEPTH>(to, d_o_of(a, batch, head), rows, first, column, a.value_depth);
}

template <class P>
DEVICE void load_resident(const P &a, i64 batch, i64 head, const span &rows, int first, resident_tile &to) {
    load_qk<KV_RESIDENT, ROWS>(a, batch, head, rows, first, 0, to.qk);
    if constexpr (HAS_DQK)
        load_vdo<KV_RESIDENT, ROWS>(a, batch, head, rows, first, 0, to.vdo);
}
/* True if two query heads have the same resident tiles. */
template <class P> DEVICE bool same_resident_tiles(const P &a, i64 head, i64 other) {
    return KV_RESIDENT && head / a.k_group_size == other / a.k_group_size &&
           (!HAS_DQK || head / a.v_group_size == other / a.v_group_size);
}
template <class P> DEVICE void load_statistics(const P &a, i64 batch, i64 head, int first, streamed_tile &to) {
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
DEVICE void load_streamed(const P &a, i64 batch, i64 head, const span &visible, int first, int chunk,
                          streamed_tile &to) {
    if constexpr (!IS_SLICED || HAS_DQK)
        load_qk<!KV_RESIDENT, COLUMNS, IS_SLICED>(a, batch, head, visible, first, IS_SLICED ? chunk * DEPTH : 0, to.qk);
    if constexpr (!IS_SLICED || HAS_DV)
        load_vdo<!KV_RESIDENT, COLUMNS, IS_SLICED>(a, batch, head, visible, first, IS_SLICED ? chunk * VALUE_DEPTH : 0,
                                                   to.vdo);
    if constexpr (KV_RESIDENT)
        load_statistics(a, batch, head, first, to);
}

/* Clears non-finite rows in the tiles from which gradients are computed. */
DEVICE bool clear_non_finite_rows(streamed_tile &tile, int *non_finite, int mark) {
    bool any_non_finite = false;
    if constexpr (!KV_RESIDENT)
        any_non_finite = tile_loader < COLUMNS, DEPTH, HAS_K_T ? K_T_RUN : K_RUN,
        k_t > ::clear_non_finite_rows(tile.qk, non_finite, mark);
    else if constexpr (!IS_SLICED || HAS_DQK)
        any_non_finite = tile_loader < COLUMNS, DEPTH, HAS_Q_T ? Q_T_RUN : Q_RUN,
        q_t > ::clear_non_finite_rows(tile.qk, non_finite, mark);
    if constexpr (KV_RESIDENT && (!IS_SLICED || HAS_DV))
        any_non_finite = tile_loader < COLUMNS, VALUE_DEPTH, HAS_D_O_T ? D_O_T_RUN : D_O_RUN,
        d_o_t > ::clear_non_finite_rows(tile.vdo, non_finite, mark) || any_non_finite;
    return any_non_finite;
}

/* ---- Scores of resident rows ---- */

struct score_rows {
    resident_row resident[M_TILES][2];
    sum_t shift[M_TILES][2], dot[M_TILES][2]; /* for resident queries */
    sum_t scale, keep_scale;
    sum_t dp_scale; /* factor of dO V^T */
    rng_state rng;
    u64 blocks_per_query;
    tiles::rows<DEPTH, M_TILES, ROWS_IN_REGISTERS> qk;
    tiles::rows<VALUE_DEPTH, M_TILES, ROWS_IN_REGISTERS> vdo;

    template <class P> DEVICE void start(const P &a, const resident_tile &tile, int warp_first) {
        scale = to_score_units(scale_of(a) * score_descale(a));
        keep_scale = dropout_scale_of<sum_t>(a);
        dp_scale = keep_scale * dp_descale(a);
        rng = rng_state_of(a);
        blocks_per_query = (u64)((a.keys + 3) / 4);
        qk.point(tile.qk + warp_first * (DEPTH + PAD));
        if constexpr (HAS_DQK)
            vdo.point(tile.vdo + warp_first * (VALUE_DEPTH + PAD));
    }
    template <class P> DEVICE void find(const P &a, const lengths &used, i64 batch, i64 head, int from, int last) {
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int i = from + 16 * m + score_row(h), row = min(i, last);
                resident[m][h] = resident_row_of(a, used, batch, head, row);
                if (i > last)
                    resident[m][h].visible = span{0, 0};
                if constexpr (!KV_RESIDENT) {
                    shift[m][h] = a.shifts[(batch * a.heads + head) * a.queries + row];
                    dot[m][h] = a.dots[(batch * a.heads + head) * a.queries + row];
                }
            }
    }
    DEVICE void load() {
        qk.load();
        if constexpr (HAS_DQK)
            vdo.load();
    }
    /* True if any pair of the warp's rows and the tile is visible. */
    DEVICE bool overlaps(int from) const {
        bool is_any_visible = false;
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
            is_any_visible = is_any_visible || resident[m][0].visible.overlaps(from, from + COLUMNS) ||
                             resident[m][1].visible.overlaps(from, from + COLUMNS);
        return __any_sync(0xffffffffu, is_any_visible);
    }
};

/* The pair of tiles: resident rows that start at resident_first, and streamed rows that start at `first`. */
struct tile_pair {
    i64 batch, head;
    span resident, others;
    int resident_first, first;
};

/* Computes Q K^T and dO V^T by slices. */
template <class P>
DEVICE void add_all_slices(const P &a, const tile_pair &at, const score_rows &rows, resident_tile &tile, bool takes,
                           sum_t (&s)[M_TILES][N][4], sum_t (&g)[M_TILES][N][4]) {
    add_slices<DEPTH>(s, rows.qk, tile.slice, a.depth, takes, [&](int column) {
        load_qk<KV_RESIDENT, ROWS>(a, at.batch, at.head, at.resident, at.resident_first, column, tile.qk);
        load_qk<!KV_RESIDENT, COLUMNS>(a, at.batch, at.head, at.others, at.first, column, tile.slice);
    });
    if constexpr (HAS_DQK)
        add_slices<VALUE_DEPTH>(g, rows.vdo, tile.slice, a.value_depth, takes, [&](int column) {
            load_vdo<KV_RESIDENT, ROWS>(a, at.batch, at.head, at.resident, at.resident_first, column, tile.vdo);
            load_vdo<!KV_RESIDENT, COLUMNS>(a, at.batch, at.head, at.others, at.first, column, tile.slice);
        });
}

/* P = e^(S - stats). Exact stats are not less than S; rounded ones may be. */
DEVICE void compute_p(const score_rows &rows, int m, const streamed_tile &now, sum_t (&s)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const sum_t distance = s[j][e] - (KV_RESIDENT ? now.shifts[score_column(j) + e % 2] : rows.shift[m][e / 2]);
            s[j][e] = s[j][e] == hidden_score() ? (sum_t)0 : power(distance > 0 ? (sum_t)0 : distance);
        }
}

template <class P>
DEVICE void compute_keep_mask(const P &a, const score_rows &rows, int m, int first, u32 (&keep_mask)[KEEP_WORDS]) {
#pragma unroll
    for (int w = 0; w < KEEP_WORDS; w++)
        keep_mask[w] = DRAWS_DROPOUT ? 0 : 0xffffffffu;
    if constexpr (DRAWS_DROPOUT) {
#pragma unroll
        for (int j = 0; j < N; j++)
            keep_mask[j / 8] |= keep_bits_of(rows.rng, rows.resident[m], first + 8 * j, rows.blocks_per_query)
                                << j % 8 * 4;
    }
}
/* Applies dropout to x, which belongs to P[j][e], without the dropout scale. A mask is read only if P is not 0. */
template <class P>
DEVICE sum_t dropped(const P &a, const score_rows &rows, int m, int first, const u32 (&keep_mask)[KEEP_WORDS], int j,
                     int e, sum_t p, sum_t x) {
    if constexpr (HAS_DROPOUT_MASK)
        return p == 0 ? (sum_t)0 : x * mask_of(a, rows.resident[m][e / 2], first + score_column(j) + e % 2);
    else
        return !HAS_DROPOUT || (keep_mask[j / 8] >> (j % 8 * 4 + e) & 1) ? x : (sum_t)0;
}

/* Converts dP to dS. */
template <class P>
DEVICE void compute_ds(const P &a, const score_rows &rows, int m, int first, const streamed_tile &now,
                       const u32 (&keep_mask)[KEEP_WORDS], const sum_t (&p)[N][4], sum_t (&g)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const sum_t dot = KV_RESIDENT ? now.dots[score_column(j) + e % 2] : rows.dot[m][e / 2];
            const sum_t scaled_dp = HAS_DROPOUT || HAS_DP_DESCALE ? g[j][e] * rows.dp_scale : g[j][e];
            const sum_t dp = dropped(a, rows, m, first, keep_mask, j, e, p[j][e], scaled_dp);
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
    template <class F>
    DEVICE void propagate(const resident_row (&resident)[2], int first, sum_t (&g)[N][4], F propagate) const {
        if constexpr (HAS_MODIFIER)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const resident_row &row = resident[e / 2];
                    const int other = first + score_column(j) + e % 2;
                    if (g[j][e] != 0)
                        g[j][e] = propagate(row, query_of(row, other), key_of(row, other), at[j][e], g[j][e]);
                }
    }
};

/* Converts dS of the scores to that of the scaled products. */
template <class P>
DEVICE void backpropagate(const P &a, const scaled_products &products, const resident_row (&resident)[2], int first,
                          sum_t (&g)[N][4]) {
    if constexpr (HAS_MODIFIER)
        products.propagate(resident, first, g,
                           [&](const resident_row &row, int query, int key, sum_t product, sum_t ds) {
                               return modified_gradient(a, row.batch, row.head, query, key, product, ds);
                           });
}
