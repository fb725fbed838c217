/* attention_gradient: what the backward kernels share: own and passing tiles, and the gradients of scores. `first` is the
   side of q k: own k and passing q, or own q and passing k; `second` the side of v and dO alike. */

constexpr int ROWS = WARPS * M_TILES * 16, N = COLUMNS / 8, KEPT_WORDS = (N + 7) / 8;
static_assert(COLUMNS % (tiles::NEEDS_SCRATCH ? 8 : 16) == 0 && DEPTH % 16 == 0 && VALUE_DEPTH % 16 == 0, "products go by 16, multiply-adds by 8 rows of the other side");

struct alignas(16) passing {
    staged_t first[COLUMNS * (DEPTH + PAD)];
    staged_t second[COLUMNS * (VALUE_DEPTH + PAD)];
    sum_t shifts[OWN_IS_KEY ? COLUMNS : 16 / sizeof(sum_t)], dots[OWN_IS_KEY ? COLUMNS : 16 / sizeof(sum_t)]; /* of queries */
};
struct alignas(16) owned {
    staged_t first[ROWS * (DEPTH + PAD)];
    staged_t second[MAKES_FIRST ? ROWS * (VALUE_DEPTH + PAD) : PAD];
};

template <class P> DEVICE sum_t growth_of(const P& a) {
    if constexpr (HAS_DROPOUT) return (sum_t)__longlong_as_double(a.growth);
    else return (sum_t)1;
}

/* ---- Bringing ---- */

template <int COUNT, class P> DEVICE void bring_queries(const P& a, i64 batch, i64 head, int from, int until, int first, staged_t* to_q, staged_t* to_d_o) {
    const q_t* q = a.q + batch * a.q_batch + head * a.q_head;
    const d_o_t* d_o = a.d_o + batch * a.d_o_batch + head * a.d_o_head;
    const auto has = [&](int i) { return first + i >= from && first + i < until; };
    carrier<COUNT, DEPTH, Q_RUN, q_t>::bring(to_q, q, (int)a.depth, a.q_column, [&](int i) -> const q_t* { return has(i) ? q + (first + i) * a.q_row : nullptr; });
    if constexpr (OWN_IS_KEY || MAKES_FIRST)
        carrier<COUNT, VALUE_DEPTH, D_O_RUN, d_o_t>::bring(to_d_o, d_o, (int)a.value_depth, a.d_o_column, [&](int i) -> const d_o_t* { return has(i) ? d_o + (first + i) * a.d_o_row : nullptr; });
}
template <int COUNT, class P> DEVICE void bring_keys(const P& a, i64 batch, i64 head, int from, int until, int first, staged_t* to_k, staged_t* to_v) {
    const k_t* k = a.k + batch * a.k_batch + head / a.key_share * a.k_head;
    const v_t* v = a.v + batch * a.v_batch + head / a.value_share * a.v_head;
    const auto has = [&](int i) { return first + i >= from && first + i < until; };
    carrier<COUNT, DEPTH, K_RUN, k_t>::bring(to_k, k, (int)a.depth, a.k_column, [&](int i) -> const k_t* { return has(i) ? k + (first + i) * a.k_row : nullptr; });
    if constexpr (MAKES_FIRST)
        carrier<COUNT, VALUE_DEPTH, V_RUN, v_t>::bring(to_v, v, (int)a.value_depth, a.v_column, [&](int i) -> const v_t* { return has(i) ? v + (first + i) * a.v_row : nullptr; });
}

template <class P> DEVICE void bring_owned(const P& a, i64 batch, i64 head, int first, int until, owned& to) {
    if constexpr (OWN_IS_KEY) bring_keys<ROWS>(a, batch, head, first, until, first, to.first, to.second);
    else bring_queries<ROWS>(a, batch, head, first, until, first, to.first, to.second);
}
/* Whether two query heads have the same own tiles. */
template <class P> DEVICE bool same_own(const P& a, i64 head, i64 other) {
    return OWN_IS_KEY && head / a.key_share == other / a.key_share && (!MAKES_FIRST || head / a.value_share == other / a.value_share);
}
template <class P> DEVICE void bring_passing(const P& a, i64 batch, i64 head, const span& seen, int first, passing& to) {
    if constexpr (OWN_IS_KEY) {
        bring_queries<COLUMNS>(a, batch, head, seen.first, seen.last, first, to.first, to.second);
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
    } else {
        bring_keys<COLUMNS>(a, batch, head, seen.first, seen.last, first, to.first, to.second);
    }
}

/* Of the tiles that gradients are products with. */
DEVICE bool clear_spoiled(passing& tile, int* spoiled, int mark) {
    if constexpr (OWN_IS_KEY) {
        const bool found = carrier<COLUMNS, DEPTH, Q_RUN, q_t>::clear_spoiled(tile.first, spoiled, mark);
        return carrier<COLUMNS, VALUE_DEPTH, D_O_RUN, d_o_t>::clear_spoiled(tile.second, spoiled, mark) || found;
    } else {
        return carrier<COLUMNS, DEPTH, K_RUN, k_t>::clear_spoiled(tile.first, spoiled, mark);
    }
}

/* ---- The scores of own rows ---- */

struct scores_of_rows {
    own_row own[M_TILES][2];
    sum_t shift[M_TILES][2], dot[M_TILES][2]; /* of own queries */
    sum_t scale, growth;
    chance luck;
    u64 blocks_per_query;
    tiles::rows<DEPTH, M_TILES, IS_HELD> first;
    tiles::rows<VALUE_DEPTH, M_TILES, IS_HELD> second;

    template <class P> DEVICE void start(const P& a, const owned& tile, int warp_first) {
        scale = in_units(scale_of(a));
        growth = growth_of(a);
        luck = chance_of(a);
        blocks_per_query = (u64)((a.keys + 3) / 4);
        first.point(tile.first + warp_first * (DEPTH + PAD));
        if constexpr (MAKES_FIRST) second.point(tile.second + warp_first * (VALUE_DEPTH + PAD));
    }
    template <class P> DEVICE void find(const P& a, const lengths& used, i64 batch, i64 head, int from, int last) {
        #pragma unroll
        for (int m = 0; m < M_TILES; m++)
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                const int i = from + 16 * m + lane() / 4 + 8 * h, row = min(i, last);
                own[m][h] = own_row_of(a, used, batch, head, row);
                if (i > last) own[m][h].seen = span{0, 0};
                if constexpr (!OWN_IS_KEY) {
                    shift[m][h] = a.shifts[(batch * a.heads + head) * a.queries + row];
                    dot[m][h] = a.dots[(batch * a.heads + head) * a.queries + row];
                }
            }
    }
    DEVICE void load() {
        first.load();
        if constexpr (MAKES_FIRST) second.load();
    }
    /* Whether the warp sees anything of a tile. */
    DEVICE bool meets(int from) const {
        bool found = false;
        #pragma unroll
        for (int m = 0; m < M_TILES; m++)
            found = found || own[m][0].seen.meets(from, from + COLUMNS) || own[m][1].seen.meets(from, from + COLUMNS);
        return __any_sync(0xffffffffu, found);
    }
};

/* Scores become e^(score - stats). Statistics are at least the score; rounded, they may be less. */
DEVICE void find_probabilities(const scores_of_rows& rows, int m, const passing& now, sum_t (&s)[N][4]) {
    #pragma unroll
    for (int j = 0; j < N; j++)
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const sum_t distance = s[j][e] - (OWN_IS_KEY ? now.shifts[score_column(j) + e % 2] : rows.shift[m][e / 2]);
            s[j][e] = s[j][e] == unseen() ? (sum_t)0 : power(distance > 0 ? (sum_t)0 : distance);
        }
}

template <class P> DEVICE void find_kept(const P& a, const scores_of_rows& rows, int m, int first, u32 (&kept)[KEPT_WORDS]) {
    #pragma unroll
    for (int w = 0; w < KEPT_WORDS; w++) kept[w] = HAS_DROPOUT ? 0 : 0xffffffffu;
    if constexpr (HAS_DROPOUT) {
        #pragma unroll
        for (int j = 0; j < N; j++) kept[j / 8] |= kept_of(rows.luck, rows.own[m], first + 8 * j, rows.blocks_per_query) << j % 8 * 4;
    }
}
DEVICE bool is_kept(const u32 (&kept)[KEPT_WORDS], int j, int e) { return !HAS_DROPOUT || (kept[j / 8] >> (j % 8 * 4 + e) & 1); }

/* dp becomes ds. */
DEVICE void find_score_gradients(const scores_of_rows& rows, int m, const passing& now, const u32 (&kept)[KEPT_WORDS], const sum_t (&p)[N][4], sum_t (&g)[N][4]) {
    #pragma unroll
    for (int j = 0; j < N; j++)
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const sum_t dot = OWN_IS_KEY ? now.dots[score_column(j) + e % 2] : rows.dot[m][e / 2];
            const sum_t dp = is_kept(kept, j, e) ? (HAS_DROPOUT ? g[j][e] * rows.growth : g[j][e]) : (sum_t)0;
            g[j][e] = p[j][e] == 0 ? (sum_t)0 : p[j][e] * (dp - dot);
        }
}
