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

static_assert(DEPTH % DQK == 0 && (!HAS_DV || VALUE_DEPTH % DV == 0), "a block computes whole columns of a tile");

struct alignas(16) memory {
    streamed_tile stages[STAGES];
    resident_tile resident;
    staged_t p[MEMORY.p];
    int non_finite[STAGES][COLUMNS];
};
static_assert(sizeof(memory) == MEMORY.bytes && MEMORY.bytes == SHARED_BYTES,
              "the host computed it from the same constants");

struct position {
    i64 batch, resident_head;
    int first, chunk;
};

template <class P> DEVICE position locate(const P &a) {
    i64 unit = blockIdx.x;
    position at;
    at.chunk = (int)(unit % a.chunks), unit /= a.chunks;
    const int tile = (int)(unit % a.tiles);
    unit /= a.tiles;
    at.first = (KV_RESIDENT ? tile : (int)a.tiles - 1 - tile) * ROWS; /* tiles with most visible pairs first, if
                                                                         causal */
    at.resident_head = unit % a.resident_heads, at.batch = unit / a.resident_heads;
    return at;
}

/* Accumulators of a thread: gradients of its rows. */
struct gradients {
    sum_t dqk[M_TILES][DQK / 8][4], dv[M_TILES][DV / 8][4];
};

/* The largest magnitudes that this thread computed. */
struct largest {
    sum_t dqk, dv, ds;
    template <class P> DEVICE void store(const P &a) const {
        if constexpr (HAS_AMAX_DQK)
            raise_amax(a.amax_dqk, (float)dqk);
        if constexpr (HAS_AMAX_DV)
            raise_amax(a.amax_dv, (float)dv);
        if constexpr (HAS_AMAX_DS)
            raise_amax(a.amax_ds, (float)(ds * fabs(scale_of(a))));
    }
};

/* Stores two adjacent elements of a gradient's row times `scale`; the amax is of the unscaled values. */
template <bool IS_PAIR, bool HAS_AMAX, class T>
DEVICE void store_gradient(T *row, i64 step, int column, int columns, sum_t x, sum_t y, sum_t scale,
                           sum_t &amax_value) {
    if constexpr (HAS_AMAX)
        amax_value = fmax(amax_value, fmax(fabs(x), fabs(y)));
    store_two<IS_PAIR>(row, step, column, columns, x * scale, y * scale);
}

template <class P>
DEVICE void store_gradients(const P &a, const position &at, const lengths &used, const gradients &grads, int first,
                            largest &amax) {
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = first + 16 * m + score_row(h);
            if (row >= (KV_RESIDENT ? a.keys : a.queries))
                continue;
            const bool is_used = row < resident_in_use(used); /* ragged rows past the end belong to other entries */
            if constexpr (HAS_DQK)
                if (is_used || !is_ragged(a.dqk_batch)) {
                    const sum_t scale = (HAS_DS_SCALE ? (sum_t)1 : scale_of(a)) * dqk_descale(a);
                    dqk_t *to = a.dqk + at.batch * a.dqk_batch + at.resident_head * a.dqk_head + row * a.dqk_row;
#pragma unroll
                    for (int j = 0; j < DQK / 8; j++)
                        store_gradient<DQK_IS_PAIR, HAS_AMAX_DQK>(
                            to, a.dqk_column, at.chunk * DQK + tiles::result_column(j), (int)a.depth,
                            grads.dqk[m][j][2 * h] * scale, grads.dqk[m][j][2 * h + 1] * scale, dqk_scale(a), amax.dqk);
                }
            if constexpr (HAS_DV)
                if (is_used || !is_ragged(a.dv_batch)) {
                    const sum_t keep_scale = (HAS_P_SCALE ? (sum_t)1 : dropout_scale_of<sum_t>(a)) * dv_descale(a);
                    dv_t *to = a.dv + at.batch * a.dv_batch + at.resident_head * a.dv_head + row * a.dv_row;
#pragma unroll
                    for (int j = 0; j < DV / 8; j++)
                        store_gradient<DV_IS_PAIR, HAS_AMAX_DV>(
                            to, a.dv_column, at.chunk * DV + tiles::result_column(j), (int)a.value_depth,
                            grads.dv[m][j][2 * h] * keep_scale, grads.dv[m][j][2 * h + 1] * keep_scale, dv_scale(a),
                            amax.dv);
                }
        }
}

/* Scales and rounds P, or dS, for the gradients. */
template <class P> DEVICE sum_t scale_p_operand(const P &a, sum_t p) {
    if constexpr (HAS_P_SCALE)
        return rounded<p_operand_t>(p * dropout_scale_of<sum_t>(a) * p_scale(a));
    else
        return p;
}
template <class P> DEVICE void scale_ds_operands(const P &a, sum_t (&ds)[N][4], largest &amax) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (HAS_AMAX_DS)
                amax.ds = fmax(amax.ds, fabs(ds[j][e]));
            if constexpr (HAS_DS_SCALE)
                ds[j][e] = rounded<ds_operand_t>(ds[j][e] * scale_of(a) * ds_scale(a));
        }
}

/* Adds the contribution of one streamed tile. */
template <class P>
DEVICE void add_tile(const P &a, const position &at, const score_rows &rows, streamed_tile &now, const int *non_finite,
                     int mark, bool is_non_finite, bool is_whole, int first, staged_t *scratch,
                     sum_t (&s)[M_TILES][N][4], sum_t (&g)[M_TILES][N][4], gradients &grads, largest &amax) {
    u32 keep_mask[M_TILES][KEEP_WORDS];
    typename tiles::p_operand<M_TILES, N, PARTS> p;
    scaled_products products[M_TILES];
    if constexpr (!IS_SLICED)
        tiles::scores(s, rows.qk, now.qk);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        products[m].keep(s[m], rows.scale);
        score_tile(a, rows.resident[m], first, is_whole, rows.scale, s[m]);
        if (is_non_finite) {
            sum_t nan_or_zero[2];
            find_non_finite(non_finite, mark, s[m], nan_or_zero);
            for (int j = 0; HAS_DQK && j < DQK / 8; j++)
                for (int e = 0; e < 4; e++)
                    grads.dqk[m][j][e] += nan_or_zero[e / 2];
            for (int j = 0; HAS_DV && j < DV / 8; j++)
                for (int e = 0; e < 4; e++)
                    grads.dv[m][j][e] += nan_or_zero[e / 2];
        }
        compute_p(rows, m, now, s[m]);
        compute_keep_mask(a, rows, m, first, keep_mask[m]);
    }
    if constexpr (HAS_DV) {
        sum_t dropped_p[M_TILES][N][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    dropped_p[m][j][e] =
                        scale_p_operand(a, dropped(a, rows, m, first, keep_mask[m], j, e, s[m][j][e], s[m][j][e]));
        p.set(dropped_p, scratch);
        tiles::template results<VALUE_DEPTH + PAD, DV>(grads.dv, p, now.vdo + (IS_SLICED ? 0 : at.chunk * DV));
    }
    if constexpr (HAS_DQK) {
        if constexpr (!IS_SLICED)
            tiles::scores(g, rows.vdo, now.vdo);
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            compute_ds(a, rows, m, first, now, keep_mask[m], s[m], g[m]);
            backpropagate(a, products[m], rows.resident[m], first, g[m]);
            scale_ds_operands(a, g[m], amax);
        }
        p.set(g, scratch);
        tiles::template results<DEPTH + PAD, DQK>(grads.dqk, p, now.qk + (IS_SLICED ? 0 : at.chunk * DQK));
    }
}

template <class P> DEVICE void compute_gradients(const P &a, memory &shared) {
    const position at = locate(a);
    const lengths used = lengths_of(a, at.batch);
    const int extent = (int)(KV_RESIDENT ? a.keys : a.queries), last = min(at.first + ROWS, extent);
    const int warp_first = (int)threadIdx.x / 32 * M_TILES * 16;
    const span others = visible_to_any(a, used, at.first, last), common = visible_to_each(a, used, at.first, last);
    const span resident =
        span{at.first, others.first < others.last ? max(min(last, resident_in_use(used)), at.first) : at.first};
    const int begin = others.first / COLUMNS,
              end = others.first < others.last ? (others.last + COLUMNS - 1) / COLUMNS : begin;
    const int each = end - begin, steps = each * (KV_RESIDENT ? (int)a.resident_group_size : 1);

    gradients grads = {};
    largest amax = {};
    score_rows rows;
    rows.start(a, shared.resident, warp_first);
    const auto head_of = [&](int step) {
        return KV_RESIDENT ? at.resident_head * a.resident_group_size + step / each : at.resident_head;
    };
    /* The first step at or after this one whose tile is active; a tile is within one tile of the block mask. */
    static_assert(!HAS_BLOCK_MASK || (MASK_TILE % ROWS == 0 && MASK_TILE % COLUMNS == 0),
                  "a tile is within one tile of the block mask");
    const auto next_active = [&](int step) {
        for (; HAS_BLOCK_MASK && step < steps; step++) {
            const int other = (begin + step % each) * COLUMNS;
            if (is_active_tile(a, at.batch, head_of(step), KV_RESIDENT ? other : at.first,
                               KV_RESIDENT ? at.first : other))
                break;
        }
        return step;
    };
    for (int i = threadIdx.x; i < STAGES * COLUMNS; i += THREADS)
        shared.non_finite[i / COLUMNS][i % COLUMNS] = -1;
    __syncthreads();
    const auto load = [&](int step, streamed_tile &to) {
        load_streamed(a, at.batch, head_of(step), others, (begin + step % each) * COLUMNS, at.chunk, to);
        commit_tiles();
    };
    const int first_step = next_active(0);
    if (first_step < steps)
        load(first_step, shared.stages[0]);
    int stage_index = 0; /* index of the current stage */
    i64 last_head = -1;
#pragma unroll 1
    for (int step = first_step, next; step < steps; step = next, stage_index = (stage_index + 1) % STAGES) {
        streamed_tile &now = shared.stages[stage_index];
        const i64 head = head_of(step);
        next = next_active(step + 1);
        const int first = (begin + step % each) * COLUMNS;
        const bool is_whole = !MAY_HIDE && common.covers(first, first + COLUMNS);
        const bool has_new_head = head != last_head;
        const bool has_new_resident =
            !IS_SLICED && (step == first_step || (has_new_head && !same_resident_tiles(a, head, last_head)));
        last_head = head;
        if (has_new_resident) {
            if (step != first_step)
                __syncthreads();
            load_resident(a, at.batch, head, resident, at.first, shared.resident);
            commit_tiles();
        }
        if (has_new_head)
            rows.find(a, used, at.batch, head, at.first + warp_first, last - 1);
        await_tiles();
        bool is_non_finite = false;
        if (!is_whole)
            is_non_finite = clear_non_finite_rows(now, shared.non_finite[stage_index], step);
        is_non_finite = __syncthreads_or(is_non_finite);
        if (has_new_resident)
            rows.load();
        if (STAGES > 1 && next < steps)
            load(next, shared.stages[(stage_index + 1) % STAGES]);
        const bool overlaps = rows.overlaps(first);
        sum_t s[M_TILES][N][4] = {}, g[M_TILES][N][4] = {};
        if constexpr (IS_SLICED)
            add_all_slices(a, tile_pair{at.batch, head, resident, others, at.first, first}, rows, shared.resident,
                           overlaps, s, g);
        if (overlaps)
            add_tile(a, at, rows, now, shared.non_finite[stage_index], step, is_non_finite, is_whole, first,
                     shared.p + warp_first * (COLUMNS + PAD), s, g, grads, amax);
        if (STAGES == 1 && next < steps) {
            __syncthreads();
            load(next, now);
        }
    }
    store_gradients(a, at, used, grads, at.first + warp_first, amax);
    amax.store(a);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attention_bwd(const __grid_constant__ arguments a) {
    extern __shared__ __align__(16) u8 shared[];
    compute_gradients(a, *(memory *)shared);
}
