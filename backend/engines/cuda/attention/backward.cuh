/* attention_bwd: dQ, or dK and dV    any chip, any type, tensor cores for 16 bits
   Formula   P = e^(S - stats); dP = dO V^T; dS = P (dropout(dP) - dO O)
             KV_RESIDENT  dV = sum of dropout(P) dO, dK = scale * sum of dS Q, over the queries of all heads that share
                          the key, in order
             else         dQ = scale * sum of dS K, over keys
   Tile      a block has ROWS resident keys (or queries) and iterates over the other side in tiles of COLUMNS; it
             computes DQK columns of dK or dQ, and DV of dV. Both cases are symmetric: scores and dP are products of a
             resident tile and a streamed one, and gradients are products of P or dS and the streamed tile
   Pipeline  as attention_fwd: one barrier per tile, while the next one is loaded
   Memory    resident K and V (Q and dO), STAGES tiles of Q and dO with stats and delta (K and V), and P without
             tensor cores
   Skipped   tiles without any visible pair; rows that are not visible are not read
   Scales    P times p_scale is rounded to p_operand_t, and dS times ds_scale to ds_operand_t, before they are operands
             (without such scales: 1, and sum_t). amax.ds, amax.dqk and amax.dv are the maxima before that, and of the
             gradients
   Sliced    IS_SLICED: rows that are too deep for shared memory are reloaded for each tile, DEPTH or VALUE_DEPTH
             columns at a time
   Params    staged_t sum_t KV_RESIDENT HAS_DQK HAS_DV WARPS M_TILES COLUMNS DEPTH VALUE_DEPTH DQK DV STAGES PARTS
             IS_SLICED, runs and features */

#include "core/async.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/scores.cuh"
#include "attention/gradient.cuh"
#include "attention/amax.cuh"

static_assert(DEPTH % FIRST == 0 && (!MAKES_SECOND || VALUE_DEPTH % SECOND == 0),
              "a block makes whole columns of a tile");

struct alignas(16) memory {
    passing stages[STAGES];
    owned own;
    staged_t weights[tiles::NEEDS_SCRATCH ? ROWS * (COLUMNS + PAD) : PAD];
    int non_finite[STAGES][COLUMNS];
};
static_assert(sizeof(memory) == SHARED_BYTES, "the host asks for as much");

struct position {
    i64 batch, own_head;
    int first, chunk;
};

template <class P> DEVICE position locate(const P &a) {
    i64 unit = blockIdx.x;
    position at;
    at.chunk = (int)(unit % a.chunks), unit /= a.chunks;
    const int tile = (int)(unit % a.tiles);
    unit /= a.tiles;
    at.first = (OWN_IS_KEY ? tile : (int)a.tiles - 1 - tile) * ROWS; /* tiles with most visible pairs first, if causal
                                                                        */
    at.own_head = unit % a.own_heads, at.batch = unit / a.own_heads;
    return at;
}

/* Accumulators of a thread: gradients of its rows. */
struct gradients {
    sum_t first[M_TILES][FIRST / 8][4], second[M_TILES][SECOND / 8][4];
};

/* The largest magnitudes that this thread computed. */
struct largest {
    sum_t first, second, ds;
    template <class P> DEVICE void store(const P &a) const {
        if constexpr (HAS_AMAX_FIRST)
            raise_largest(a.amax_first, (float)first);
        if constexpr (HAS_AMAX_SECOND)
            raise_largest(a.amax_second, (float)second);
        if constexpr (HAS_AMAX_DS)
            raise_largest(a.amax_ds, (float)(ds * fabs(scale_of(a))));
    }
};

/* Stores two adjacent elements of a gradient's row times `scale`; the amax is of the unscaled values. */
template <bool IS_PAIR, bool HAS_AMAX, class T>
DEVICE void store_gradient(T *row, i64 step, int column, int columns, sum_t x, sum_t y, sum_t scale, sum_t &most) {
    if constexpr (HAS_AMAX)
        most = fmax(most, fmax(fabs(x), fabs(y)));
    store_two<IS_PAIR>(row, step, column, columns, x * scale, y * scale);
}

template <class P>
DEVICE void store_gradients(const P &a, const position &at, const lengths &used, const gradients &made, int first,
                            largest &amax) {
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = first + 16 * m + lane() / 4 + 8 * h;
            if (row >= (OWN_IS_KEY ? a.keys : a.queries))
                continue;
            const bool is_used = row < own_in_use(used); /* ragged rows past the end belong to other entries */
            if constexpr (MAKES_FIRST)
                if (is_used || !is_ragged(a.first_batch)) {
                    const sum_t scale = (HAS_DS_SCALE ? (sum_t)1 : scale_of(a)) * first_descale(a);
                    first_t *to = a.first + at.batch * a.first_batch + at.own_head * a.first_head + row * a.first_row;
#pragma unroll
                    for (int j = 0; j < FIRST / 8; j++)
                        store_gradient<FIRST_IS_PAIR, HAS_AMAX_FIRST>(
                            to, a.first_column, at.chunk * FIRST + tiles::result_column(j), (int)a.depth,
                            made.first[m][j][2 * h] * scale, made.first[m][j][2 * h + 1] * scale, first_scale(a),
                            amax.first);
                }
            if constexpr (MAKES_SECOND)
                if (is_used || !is_ragged(a.second_batch)) {
                    const sum_t growth = (HAS_WEIGHT_SCALE ? (sum_t)1 : growth_of<sum_t>(a)) * second_descale(a);
                    second_t *to =
                        a.second + at.batch * a.second_batch + at.own_head * a.second_head + row * a.second_row;
#pragma unroll
                    for (int j = 0; j < SECOND / 8; j++)
                        store_gradient<SECOND_IS_PAIR, HAS_AMAX_SECOND>(
                            to, a.second_column, at.chunk * SECOND + tiles::result_column(j), (int)a.value_depth,
                            made.second[m][j][2 * h] * growth, made.second[m][j][2 * h + 1] * growth, second_scale(a),
                            amax.second);
                }
        }
}

/* Scales and rounds P, or dS, for the gradients. */
template <class P> DEVICE sum_t as_weight_factor(const P &a, sum_t p) {
    if constexpr (HAS_WEIGHT_SCALE)
        return rounded<weight_factor_t>(p * growth_of<sum_t>(a) * weight_scale(a));
    else
        return p;
}
template <class P> DEVICE void make_ds_factors(const P &a, sum_t (&ds)[N][4], largest &amax) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (HAS_AMAX_DS)
                amax.ds = fmax(amax.ds, fabs(ds[j][e]));
            if constexpr (HAS_DS_SCALE)
                ds[j][e] = rounded<ds_factor_t>(ds[j][e] * scale_of(a) * ds_scale(a));
        }
}

/* Adds the contribution of one streamed tile. */
template <class P>
DEVICE void add_tile(const P &a, const position &at, const scores_of_rows &rows, passing &now, const int *non_finite,
                     int mark, bool is_non_finite, bool is_whole, int first, staged_t *scratch,
                     sum_t (&s)[M_TILES][N][4], sum_t (&g)[M_TILES][N][4], gradients &made, largest &amax) {
    u32 kept[M_TILES][KEPT_WORDS];
    typename tiles::weights<M_TILES, N, PARTS> weights;
    scaled_products products[M_TILES];
    if constexpr (!IS_SLICED)
        tiles::scores(s, rows.first, now.first);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        products[m].keep(s[m], rows.scale);
        score_tile(a, rows.own[m], first, is_whole, rows.scale, s[m]);
        if (is_non_finite) {
            sum_t nan_or_zero[2];
            find_non_finite(non_finite, mark, s[m], nan_or_zero);
            for (int j = 0; MAKES_FIRST && j < FIRST / 8; j++)
                for (int e = 0; e < 4; e++)
                    made.first[m][j][e] += nan_or_zero[e / 2];
            for (int j = 0; MAKES_SECOND && j < SECOND / 8; j++)
                for (int e = 0; e < 4; e++)
                    made.second[m][j][e] += nan_or_zero[e / 2];
        }
        find_probabilities(rows, m, now, s[m]);
        find_kept(a, rows, m, first, kept[m]);
    }
    if constexpr (MAKES_SECOND) {
        sum_t left[M_TILES][N][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    left[m][j][e] =
                        as_weight_factor(a, dropped(a, rows, m, first, kept[m], j, e, s[m][j][e], s[m][j][e]));
        weights.set(left, scratch);
        tiles::template results<VALUE_DEPTH + PAD, SECOND>(made.second, weights,
                                                           now.second + (IS_SLICED ? 0 : at.chunk * SECOND));
    }
    if constexpr (MAKES_FIRST) {
        if constexpr (!IS_SLICED)
            tiles::scores(g, rows.second, now.second);
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            find_score_gradients(a, rows, m, first, now, kept[m], s[m], g[m]);
            carry_back(a, products[m], rows.own[m], first, g[m]);
            make_ds_factors(a, g[m], amax);
        }
        weights.set(g, scratch);
        tiles::template results<DEPTH + PAD, FIRST>(made.first, weights,
                                                    now.first + (IS_SLICED ? 0 : at.chunk * FIRST));
    }
}

template <class P> DEVICE void make_gradients(const P &a, memory &shared) {
    const position at = locate(a);
    const lengths used = lengths_of(a, at.batch);
    const int extent = (int)(OWN_IS_KEY ? a.keys : a.queries), last = min(at.first + ROWS, extent);
    const int warp_first = (int)threadIdx.x / 32 * M_TILES * 16;
    const span others = seen_by_any(a, used, at.first, last), common = seen_by_each(a, used, at.first, last);
    const span own = span{at.first, others.first < others.last ? max(min(last, own_in_use(used)), at.first) : at.first};
    const int begin = others.first / COLUMNS,
              end = others.first < others.last ? (others.last + COLUMNS - 1) / COLUMNS : begin;
    const int each = end - begin, steps = each * (OWN_IS_KEY ? (int)a.own_share : 1);

    gradients made = {};
    largest amax = {};
    scores_of_rows rows;
    rows.start(a, shared.own, warp_first);
    const auto head_of = [&](int step) { return OWN_IS_KEY ? at.own_head * a.own_share + step / each : at.own_head; };
    /* The first step from this one on whose tile is active; a tile is within one tile of the block mask. */
    static_assert(!HAS_BLOCK_MASK || (MASK_TILE % ROWS == 0 && MASK_TILE % COLUMNS == 0), "tiles do not straddle");
    const auto kept_from = [&](int step) {
        for (; HAS_BLOCK_MASK && step < steps; step++) {
            const int other = (begin + step % each) * COLUMNS;
            if (keeps_tile(a, at.batch, head_of(step), OWN_IS_KEY ? other : at.first, OWN_IS_KEY ? at.first : other))
                break;
        }
        return step;
    };
    for (int i = threadIdx.x; i < STAGES * COLUMNS; i += THREADS)
        shared.non_finite[i / COLUMNS][i % COLUMNS] = -1;
    __syncthreads();
    const auto bring = [&](int step, passing &to) {
        bring_passing(a, at.batch, head_of(step), others, (begin + step % each) * COLUMNS, at.chunk, to);
        commit_tiles();
    };
    const int first_step = kept_from(0);
    if (first_step < steps)
        bring(first_step, shared.stages[0]);
    int turn = 0; /* index of the current stage */
    i64 last_head = -1;
#pragma unroll 1
    for (int step = first_step, next; step < steps; step = next, turn = (turn + 1) % STAGES) {
        passing &now = shared.stages[turn];
        const i64 head = head_of(step);
        next = kept_from(step + 1);
        const int first = (begin + step % each) * COLUMNS;
        const bool is_whole = !MAY_HIDE && common.covers(first, first + COLUMNS);
        const bool has_new_head = head != last_head;
        const bool has_new_own = !IS_SLICED && (step == first_step || (has_new_head && !same_own(a, head, last_head)));
        last_head = head;
        if (has_new_own) {
            if (step != first_step)
                __syncthreads();
            bring_owned(a, at.batch, head, own, at.first, shared.own);
            commit_tiles();
        }
        if (has_new_head)
            rows.find(a, used, at.batch, head, at.first + warp_first, last - 1);
        await_tiles();
        bool is_non_finite = false;
        if (!is_whole)
            is_non_finite = clear_non_finite_rows(now, shared.non_finite[turn], step);
        is_non_finite = __syncthreads_or(is_non_finite);
        if (has_new_own)
            rows.load();
        if (STAGES > 1 && next < steps)
            bring(next, shared.stages[(turn + 1) % STAGES]);
        const bool meets = rows.meets(first);
        sum_t s[M_TILES][N][4] = {}, g[M_TILES][N][4] = {};
        if constexpr (IS_SLICED)
            add_all_slices(a, meeting{at.batch, head, own, others, at.first, first}, rows, shared.own, meets, s, g);
        if (meets)
            add_tile(a, at, rows, now, shared.non_finite[turn], step, is_non_finite, is_whole, first,
                     shared.weights + warp_first * (COLUMNS + PAD), s, g, made, amax);
        if (STAGES == 1 && next < steps) {
            __syncthreads();
            bring(next, now);
        }
    }
    store_gradients(a, at, used, made, at.first + warp_first, amax);
    amax.store(a);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attention_bwd(const __grid_constant__ arguments a) {
    extern __shared__ __align__(16) u8 shared[];
    make_gradients(a, *(memory *)shared);
}
