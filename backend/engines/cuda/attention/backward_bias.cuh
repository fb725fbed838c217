/* attention_bwd_bias: dBias = sum of dS over the dimensions that the bias broadcasts. IS_OPERAND: the gradient of an
   operand of the score modifier, computed from dS
   Formula   dS as in attention_bwd, recomputed, so that memory stays linear
   Tile      a block computes ROWS x COLUMNS of dBias. It iterates over all batches, heads, tiles of queries and tiles
             of keys that share it, in order; an extent of 1 is reduced at the end
   Memory    one tile each of Q, dO, K, V, and of sums
   Params    as attention_bwd, with KV_RESIDENT false; IS_OPERAND; ONE_QUERY ONE_KEY: extents of the bias that are 1 */

#include "core/async.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/scores.cuh"
#include "attention/gradient.cuh"

struct alignas(16) memory {
    streamed_tile other;
    resident_tile resident;
    sum_t sums[ROWS * MEMORY.sum_pitch];
};
static_assert(sizeof(memory) == MEMORY.bias_bytes && MEMORY.bias_bytes == SHARED_BYTES,
              "the host computed it from the same constants");

/* Coordinates of a tile in dBias; 0 along extents of 1. */
struct position {
    i64 batch, head;
    int query, key;
};

template <class P> DEVICE position locate(const P &a) {
    i64 unit = blockIdx.x;
    position at;
    at.key = ONE_KEY ? 0 : (int)(unit % a.key_tiles) * COLUMNS;
    if (!ONE_KEY)
        unit /= a.key_tiles;
    at.query = ONE_QUERY ? 0 : (int)(unit % a.query_tiles) * ROWS;
    if (!ONE_QUERY)
        unit /= a.query_tiles;
    at.head = unit % a.bias_heads, at.batch = unit / a.bias_heads;
    return at;
}

/* Adds the gradients of one tile of scores. */
template <class P>
DEVICE void add_tile(const P &a, i64 batch, i64 head, int query, int key, memory &shared,
                     sum_t (&sums)[M_TILES][N][4]) {
    const lengths used = lengths_of(a, batch);
    const int last = min(query + ROWS, (int)a.queries), warp_first = (int)threadIdx.x / 32 * M_TILES * 16;
    const span keys = visible_to_any(a, used, query, last);
    if (!keys.overlaps(key, key + COLUMNS) || !is_active_tile(a, batch, head, query, key))
        return;
    const tile_pair at{batch, head, span{query, max(min(last, used.queries), query)}, keys, query, key};
    score_rows rows;
    rows.start(a, shared.resident, warp_first);
    __syncthreads();
    if constexpr (!IS_SLICED) {
        load_resident(a, batch, head, at.resident, query, shared.resident);
        load_streamed(a, batch, head, keys, key, 0, shared.other);
        commit_tiles();
    }
    rows.find(a, used, batch, head, query + warp_first, last - 1);
    await_tiles();
    __syncthreads();
    rows.load();
    const bool overlaps = rows.overlaps(key);
    sum_t s[M_TILES][N][4] = {}, g[M_TILES][N][4] = {};
    if constexpr (IS_SLICED)
        add_all_slices(a, at, rows, shared.resident, overlaps, s, g);
    if (!overlaps)
        return;
    if constexpr (!IS_SLICED) {
        tiles::scores(s, rows.qk, shared.other.qk);
        tiles::scores(g, rows.vdo, shared.other.vdo);
    }
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        u32 keep_mask[KEEP_WORDS];
        scaled_products products;
        products.keep(s[m], rows.scale);
        score_tile(a, rows.resident[m], key, false, rows.scale, s[m]);
        compute_p(rows, m, shared.other, s[m]);
        compute_keep_mask(a, rows, m, key, keep_mask);
        compute_ds(a, rows, m, key, shared.other, keep_mask, s[m], g[m]);
        if constexpr (IS_OPERAND)
            products.propagate(rows.resident[m], key, g[m],
                               [&](const resident_row &row, int i, int j, sum_t product, sum_t ds) {
                                   return operand_gradient(a, row.batch, row.head, i, j, product, ds);
                               });
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[m][j][e] += g[m][j][e];
    }
}

template <class P> DEVICE void store_tile(const P &a, const position &at, memory &shared) {
    const int rows = ONE_QUERY ? 1 : min(ROWS, (int)a.queries - at.query),
              columns = ONE_KEY ? 1 : min(COLUMNS, (int)a.keys - at.key);
    for (int i = threadIdx.x; i < rows * columns; i += THREADS) {
        const int row = i / columns, column = i % columns;
        sum_t sum = 0;
        for (int r = row; r < (ONE_QUERY ? ROWS : row + 1); r++)
            for (int c = column; c < (ONE_KEY ? COLUMNS : column + 1); c++)
                sum += shared.sums[r * MEMORY.sum_pitch + c];
        a.dbias[at.batch * a.dbias_batch + at.head * a.dbias_head + (at.query + row) * a.dbias_query +
                (at.key + column) * a.dbias_key] = from<dbias_t>::number(sum);
    }
}

template <class P> DEVICE void compute_bias(const P &a, memory &shared) {
    const position at = locate(a);
    sum_t sums[M_TILES][N][4] = {};
#pragma unroll 1
    for (i64 b = 0; b < a.batches / a.bias_batches; b++)
#pragma unroll 1
        for (i64 h = 0; h < a.heads / a.bias_heads; h++)
#pragma unroll 1
            for (int query = at.query; query < (ONE_QUERY ? (int)a.queries : at.query + 1); query += ROWS)
#pragma unroll 1
                for (int key = at.key; key < (ONE_KEY ? (int)a.keys : at.key + 1); key += COLUMNS)
                    add_tile(a, at.batch + b, at.head + h, query, key, shared, sums);
    const int warp_first = (int)threadIdx.x / 32 * M_TILES * 16;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                shared.sums[(warp_first + 16 * m + score_row(e / 2)) * MEMORY.sum_pitch + score_column(j) + e % 2] =
                    sums[m][j][e];
    __syncthreads();
    store_tile(a, at, shared);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attention_bwd_bias(const __grid_constant__ arguments a) {
    extern __shared__ __align__(16) u8 shared[];
    compute_bias(a, *(memory *)shared);
}
