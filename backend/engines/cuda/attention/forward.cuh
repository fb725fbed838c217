/* attention_fwd: O = dropout(softmax(mask(scale Q K^T + bias), sink)) V    any chip, any type, tensor cores for 16 bits
   Formula   with S the scores of a row and m their maximum: O = sum of e^(S - m) V / sum of e^(S - m). When a new block
             of keys raises m, the sums are rescaled by e^(old m - m)
   Tile      a warp has 16 M_TILES queries, a block WARPS warps; keys are processed in tiles of KEYS; a block computes
             VALUES columns of O
   Pipeline  memory |tile 0|tile 1|tile 2|...        STAGES 2: the next tile is loaded while the current one is used
             math          |tile 0|tile 1|...        a barrier per tile: it has arrived, the previous one is released
   Memory    queries, STAGES tiles of keys and values, and without tensor cores each warp's P
   Skipped   tiles that no query of the block sees; a warp without queries only loads tiles. Rows and columns beyond the
             tensors, and keys that no query sees, are zeros
   Sliced    IS_SLICED: Q and K that are too deep for shared memory are reloaded for each tile, DEPTH columns at a time
   Split     IS_SPLIT: `splits` blocks share the keys of one tile and store partial sums, which attention_merge combines
             in order
   Pages     K_PAGE, V_PAGE: each row of a tile looks up its page in the table
   Packed    IS_PACKED: the queries of all heads that share a key head are rows of one tile
   Params    staged_t sum_t WARPS M_TILES KEYS DEPTH VALUES STAGES PARTS ROWS_IN_REGISTERS IS_SLICED IS_SPLIT IS_PACKED,
             runs and features */

constexpr bool KV_RESIDENT = false;

#include "engines/cuda/attention/forward_geometry.h"
#include "core/async.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/scores.cuh"
#include "attention/online_softmax.cuh"
#include "attention/epilogue.cuh"
#include "attention/pages.cuh"
#include "attention/scales.cuh"
#include "attention/element_scales.cuh"

constexpr int ROWS = WARPS * M_TILES * 16, N = KEYS / 8;
static_assert(KEYS % (tiles::NEEDS_SCRATCH ? 8 : 16) == 0 && DEPTH % 16 == 0 && VALUES % 16 == 0,
              "MMAs need multiples of 16 rows of the other side, FMAs of 8");

constexpr forward_memory MEMORY =
    forward_memory_of(forward_shape{sizeof(staged_t), tiles::NEEDS_SCRATCH, ROWS, KEYS, STAGES, DEPTH, VALUES});

struct alignas(16) stage {
    staged_t k[MEMORY.k]; // [KEYS, DEPTH]
    staged_t v[MEMORY.v]; // [KEYS, VALUES]
};
struct alignas(16) memory {
    stage stages[STAGES];
    staged_t q[MEMORY.q]; // [ROWS, DEPTH]
    staged_t p[MEMORY.p];
    int non_finite[STAGES][KEYS];
};
static_assert(sizeof(memory) == MEMORY.bytes && MEMORY.bytes == SHARED_BYTES,
              "the host computed it from the same constants");

using q_loader = tile_loader<ROWS, DEPTH, Q_RUN, q_t>;
using k_loader = tile_loader<KEYS, DEPTH, K_RUN, k_t>;
using v_loader = tile_loader<KEYS, VALUES, V_RUN, v_t>;

/* ---- Position of a block ---- */

struct position {
    i64 batch, group; /* group: a query head or, if packed, all query heads that share a key head */
    int first;        /* first row within the group */
    int split, chunk;
};

template <class P> DEVICE position locate(const P &a) {
    i64 unit = blockIdx.x;
    position at;
    at.split = (int)(unit % a.splits), unit /= a.splits;
    at.chunk = (int)(unit % a.chunks), unit /= a.chunks;
    at.first = (int)(a.tiles - 1 - unit % a.tiles) * ROWS, unit /= a.tiles; /* the last tiles first: they see most keys
                                                                               if causal */
    at.group = unit % a.groups, at.batch = unit / a.groups;
    return at;
}

/* Head and query of a row of the group. */
struct query_row {
    i64 head;
    int query;
};
template <class P> DEVICE query_row row_of(const P &a, const position &at, int row) {
    if constexpr (IS_PACKED)
        return query_row{at.group * a.pack + row / (int)a.queries, row % (int)a.queries};
    else
        return query_row{at.group, row};
}

/* ---- Loading ---- */

/* Loads rows whose elements have block scales; S is element_scales. */
template <class C, class S, class T, class F, class G>
DEVICE void load_by_blocks(staged_t *to, const T *any, int columns, i64 step, F row_address, G scale) {
    C::template load<S::IS_BY_ELEMENT>(to, any, columns, step, row_address, scale);
}

/* Loads columns `column` .. column + DEPTH - 1. */
template <class P> DEVICE void load_q(const P &a, const position &at, const lengths &used, int column, memory &shared) {
    const auto row_address = [&](int i) -> const q_t * {
        if (at.first + i >= a.rows)
            return nullptr;
        const query_row row = row_of(a, at, at.first + i);
        return row.query < used.queries
                   ? a.q + at.batch * a.q_batch + row.head * a.q_head + row.query * a.q_row + column * a.q_column
                   : nullptr;
    };
    if constexpr (Q_SCALES == 2)
        q_loader::load(shared.q, a.q, (int)a.depth - column, a.q_column, row_address,
                       [&](int i, int) { return query_scale_of(a, at.batch, row_of(a, at, at.first + i).head); });
    else if constexpr (Q_SCALES == 3)
        load_by_blocks<q_loader, decltype(q_scales(a, 0, 0))>(
            shared.q, a.q, (int)a.depth - column, a.q_column, row_address, [&](int i, int j) {
                const query_row row = row_of(a, at, at.first + i);
                return q_scales(a, at.batch, row.head).of(row.query, column + j);
            });
    else
        q_loader::load(shared.q, a.q, (int)a.depth - column, a.q_column, row_address);
}

/* Loads the same columns of K. */
template <class P>
DEVICE void load_k(const P &a, const position &at, const span &keys, int first, int column, stage &to) {
    const i64 head = at.group * (IS_PACKED ? a.pack : 1);
    const k_t *k = a.k + (K_PAGE ? 0 : at.batch * a.k_batch) + head / a.k_group_size * a.k_head + column * a.k_column;
    const auto pages = k_pages_of(a, at.batch);
    const auto row_address = [&](int i) -> const k_t * {
        if (!keys.has(first + i))
            return nullptr;
        if constexpr (K_PAGE > 0)
            return k + pages.page_of(first + i) * a.k_batch + (first + i) % (K_PAGE > 0 ? K_PAGE : 1) * a.k_row;
        else
            return k + (first + i) * a.k_row;
    };
    if constexpr (K_SCALES == 2)
        k_loader::load(to.k, k, (int)a.depth - column, a.k_column, row_address,
                       [&](int i, int) { return key_scale_of(a, at.batch, head, pages, first + i); });
    else if constexpr (K_SCALES == 3)
        load_by_blocks<k_loader, decltype(k_scales(a, 0, 0))>(
            to.k, k, (int)a.depth - column, a.k_column, row_address, [&](int i, int j) {
                const i64 page = K_PAGE ? pages.page_of(first + i) : at.batch;
                const int row = K_PAGE ? (first + i) % max(K_PAGE, 1) : first + i;
                return k_scales(a, page, head / a.k_group_size).of(row, column + j);
            });
    else
        k_loader::load(to.k, k, (int)a.depth - column, a.k_column, row_address);
}

template <class P> DEVICE void load_v(const P &a, const position &at, const span &keys, int first, stage &to) {
    const i64 head = at.group * (IS_PACKED ? a.pack : 1);
    const v_t *v =
        a.v + (V_PAGE ? 0 : at.batch * a.v_batch) + head / a.v_group_size * a.v_head + at.chunk * VALUES * a.v_column;
    const auto pages = v_pages_of(a, at.batch);
    const auto row_address = [&](int i) -> const v_t * {
        if (!keys.has(first + i))
            return nullptr;
        if constexpr (V_PAGE > 0)
            return v + pages.page_of(first + i) * a.v_batch + (first + i) % (V_PAGE > 0 ? V_PAGE : 1) * a.v_row;
        else
            return v + (first + i) * a.v_row;
    };
    const int columns = (int)a.value_depth - at.chunk * VALUES;
    if constexpr (V_SCALES == 2)
        v_loader::load(to.v, v, columns, a.v_column, row_address,
                       [&](int i, int) { return value_row_scale_of(a, at.batch, head, pages, first + i); });
    else if constexpr (V_SCALES == 3)
        load_by_blocks<v_loader, decltype(v_scales(a, 0, 0))>(
            to.v, v, columns, a.v_column, row_address, [&](int i, int j) {
                const i64 page = V_PAGE ? pages.page_of(first + i) : at.batch;
                const int row = V_PAGE ? (first + i) % max(V_PAGE, 1) : first + i;
                return v_scales(a, page, head / a.v_group_size).of(row, at.chunk * VALUES + j);
            });
    else
        v_loader::load(to.v, v, columns, a.v_column, row_address);
}

template <class P> DEVICE void load_tile(const P &a, const position &at, const span &keys, int first, stage &to) {
    if constexpr (!IS_SLICED)
        load_k(a, at, keys, first, 0, to);
    load_v(a, at, keys, first, to);
    commit_tiles();
}

/* ---- Storing ---- */

template <class P>
DEVICE void store_rows(const P &a, const position &at, const lengths &used, row_state &rows, sum_t (&o)[VALUES / 8][4],
                       int first, largest &amax) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + score_row(h);
        const sum_t sum = quad_sum(rows.row_sum[h]);
        if (row >= a.rows)
            continue;
        const query_row to = row_of(a, at, row);
        const bool leads = lane() % 4 == 0 && at.chunk == 0;
        const int columns = (int)a.value_depth - at.chunk * VALUES;
        if constexpr (IS_SPLIT) {
            const i64 line = (i64)at.split * a.lines + (at.batch * a.heads + to.head) * a.queries + to.query;
            if (leads)
                a.split_max[line] = rows.row_max[h], a.split_sum[line] = sum;
#pragma unroll
            for (int j = 0; j < VALUES / 8; j++)
                store_two<false>(a.split_o + line * a.value_depth + at.chunk * VALUES, 1, tiles::result_column(j),
                                 columns, o[j][2 * h], o[j][2 * h + 1]);
        } else {
            sum_t factor = end_row(a, at.batch, to.head, to.query, used, rows.row_max[h], sum, leads);
            amax.note_row(factor);
            factor *= value_scale_of(a, at.batch, to.head) * dropout_scale_of<sum_t>(a);
#pragma unroll
            for (int j = 0; j < VALUES / 8; j++)
                amax.note(o[j][2 * h] * factor), amax.note(o[j][2 * h + 1] * factor);
            factor *= result_scale_of(a);
            if constexpr (HAS_O) {
                if (is_ragged(a.o_batch) && to.query >= used.queries)
                    continue; /* the row belongs to another entry */
                o_t *o_row = a.o + at.batch * a.o_batch + to.head * a.o_head + to.query * a.o_row +
                             at.chunk * VALUES * a.o_column;
#pragma unroll
                for (int j = 0; j < VALUES / 8; j++)
                    store_two<O_IS_PAIR>(o_row, a.o_column, tiles::result_column(j), columns, o[j][2 * h] * factor,
                                         o[j][2 * h + 1] * factor);
            }
        }
    }
}

/* ---- Kernel ---- */

/* The first active tile of keys in `tile` .. until - 1; a tile is within one tile of the block mask. */
template <class P> DEVICE int next_tile(const P &a, const position &at, int tile, int until) {
    static_assert(!HAS_BLOCK_MASK || (!IS_PACKED && MASK_TILE % ROWS == 0 && MASK_TILE % KEYS == 0),
                  "block masks need tiles of one head");
    while (HAS_BLOCK_MASK && tile < until && !is_active_tile(a, at.batch, at.group, at.first, tile * KEYS))
        tile++;
    return tile;
}

template <class P> DEVICE void attend(const P &a, memory &shared) {
    const position at = locate(a);
    const lengths used = lengths_of(a, at.batch);
    const int last = min(at.first + ROWS, (int)a.rows),
              resident_first = at.first + (int)threadIdx.x / 32 * M_TILES * 16;
    const int query_first = IS_PACKED ? 0 : at.first, query_last = IS_PACKED ? (int)a.queries : last;
    const span keys = visible_to_any(a, used, query_first, query_last),
               common = visible_to_each(a, used, query_first, query_last);
    const int begin = keys.first / KEYS, end = keys.first < keys.last ? (keys.last + KEYS - 1) / KEYS : begin;
    const int share = (end - begin + (int)a.splits - 1) / (int)a.splits;
    const int until = min(begin + (at.split + 1) * share, end);
    const int from = next_tile(a, at, min(begin + at.split * share, end), until);

    row_state rows[M_TILES];
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = resident_first + 16 * m + score_row(h);
            const query_row row = row_of(a, at, min(i, last - 1));
            rows[m].resident[h] = resident_row_of(a, used, at.batch, row.head, row.query);
            if (i >= last)
                rows[m].resident[h].visible = span{0, 0};
            rows[m].clear(h);
        }
    sum_t o[M_TILES][VALUES / 8][4] = {};
    const sum_t scale = to_score_units(score_scale_of(a, at.batch, at.group * (IS_PACKED ? a.pack : 1)));
    const rng_state rng = rng_state_of(a);
    tiles::rows<DEPTH, M_TILES, ROWS_IN_REGISTERS> q;
    typename tiles::p_operand<M_TILES, N, PARTS> p;
    q.point(shared.q + (int)threadIdx.x / 32 * M_TILES * 16 * (DEPTH + PAD));

    for (int i = threadIdx.x; i < STAGES * KEYS; i += THREADS)
        shared.non_finite[i / KEYS][i % KEYS] = -1;
    __syncthreads();
    if (from < until) {
        if constexpr (!IS_SLICED)
            load_q(a, at, used, 0, shared);
        load_tile(a, at, keys, from * KEYS, shared.stages[0]);
    }
    int stage_index = 0; /* index of the current stage */
#pragma unroll 1
    for (int tile = from, next; tile < until; tile = next, stage_index = (stage_index + 1) % STAGES) {
        stage &now = shared.stages[stage_index];
        const int first = tile * KEYS;
        next = next_tile(a, at, tile + 1, until);
        const bool is_whole = !MAY_HIDE && common.covers(first, first + KEYS);
        await_tiles();
        bool is_non_finite = false;
        if (!is_whole)
            is_non_finite = v_loader::clear_non_finite_rows(now.v, shared.non_finite[stage_index], tile);
        is_non_finite = __syncthreads_or(is_non_finite);
        if (tile == from)
            q.load();
        if (STAGES > 1 && next < until)
            load_tile(a, at, keys, next * KEYS, shared.stages[(stage_index + 1) % STAGES]);
        bool overlaps = false;
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
            overlaps = overlaps || rows[m].resident[0].visible.overlaps(first, first + KEYS) ||
                       rows[m].resident[1].visible.overlaps(first, first + KEYS);
        overlaps = __any_sync(0xffffffffu, overlaps);
        sum_t s[M_TILES][N][4] = {};
        if constexpr (IS_SLICED)
            add_slices<DEPTH>(s, q, now.k, a.depth, overlaps, [&](int column) {
                load_q(a, at, used, column, shared);
                load_k(a, at, keys, first, column, now);
            });
        if (overlaps) {
            if constexpr (!IS_SLICED)
                tiles::scores(s, q, now.k);
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                sum_t nan_or_zero[2];
                score_tile(a, rows[m].resident, first, is_whole, scale, s[m]);
                if (is_non_finite)
                    find_non_finite(shared.non_finite[stage_index], tile, s[m], nan_or_zero);
                online_softmax(rows[m], s[m], o[m]);
                if (is_non_finite)
                    for (int j = 0; j < VALUES / 8; j++)
                        for (int e = 0; e < 4; e++)
                            o[m][j][e] += nan_or_zero[e / 2];
                if constexpr (HAS_DROPOUT)
                    drop(a, rng, rows[m], first, s[m]);
            }
            p.set(s, shared.p + (int)threadIdx.x / 32 * M_TILES * 16 * (KEYS + PAD));
            tiles::template results<VALUES + PAD, VALUES>(o, p, now.v);
        }
        if (STAGES == 1 && next < until) {
            __syncthreads();
            load_tile(a, at, keys, next * KEYS, now);
        }
    }
    largest amax{};
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
        store_rows(a, at, used, rows[m], o[m], resident_first + 16 * m, amax);
    amax.store(a);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attention_fwd(const __grid_constant__ arguments a) {
    extern __shared__ __align__(16) u8 shared[];
    attend(a, *(memory *)shared);
}
