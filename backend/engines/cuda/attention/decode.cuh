/* attention_decode: O = softmax(mask(scale Q K^T + bias), sink) V of few queries and many keys       sm_80 and newer; f16 and bf16
   Formula   as attention_fwd
   Tile      a CTA takes ROWS rows, the queries of all heads that share a key head one after the other, and a segment of
             the keys. Its key groups, ROW_WARPS warps each, take slices of KEYS keys in turn
   Pipeline  each group has its own ring of STAGES slices, of which STAGES - 1 are under way while one is multiplied; groups
             meet only at the end
   Memory    rings and queries; in the end the groups' partial sums in their place
   Split     IS_SPLIT: the segments of `splits` CTAs cover the keys; attention_merge joins their partial sums in order
   Pages     K_PAGE, V_PAGE: the lanes of a warp read the pages of a slice's keys and values one slice ahead of its copies
   Limits    DEPTH and VALUES <= 256; rows of K and V are read 16 bytes at a time
   Params    staged_t ROW_WARPS KEY_GROUPS KEYS STAGES DEPTH VALUES PARTS IS_HELD IS_SPLIT CTAS, runs and features */

constexpr bool OWN_IS_KEY = false;

#include "core/async.cuh"
#include "core/dependent_launch.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "core/ptx_sm90.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/byte_tiles.cuh"
#include "attention/scores.cuh"
#include "attention/online_softmax.cuh"
#include "attention/epilogue.cuh"
#include "attention/pages.cuh"
#include "attention/scales.cuh"

constexpr int ROWS = ROW_WARPS * 16, N = KEYS / 8, GROUP = ROW_WARPS * 32, SHARES = KEY_GROUPS / HEADS;
static_assert(WARPS == ROW_WARPS * KEY_GROUPS && KEYS % 16 == 0 && STAGES >= 2 && KEY_GROUPS % HEADS == 0,
              "products go by 16 keys, and one slice is loaded while another is used");

/* Keys and values of 8 bits stay so until they are multiplied: keys in staged_t, values in weight_t. */
constexpr bool IS_BYTES = sizeof(k_t) == 1, HAS_ROW_SCALES = K_SCALES == 2 || V_SCALES == 2;
static_assert(sizeof(k_t) == sizeof(v_t) && (IS_BYTES || (same<k_t, staged_t>::value && same<v_t, staged_t>::value)),
              "keys and values are multiplied as they lie, or have 8 bits both");
constexpr int ROW_PAD = 16 / sizeof(k_t);
using byte_products = byte_tiles<staged_t, weight_t>;

struct alignas(16) slice {
    k_t k[KEYS * (DEPTH + ROW_PAD)];             // [KEYS, DEPTH]
    v_t v[KEYS * (VALUES + ROW_PAD)];            // [KEYS, VALUES]
    float scales[HAS_ROW_SCALES ? 2 * KEYS : 4]; // of keys, then of values
};
struct alignas(16) partial_sums {
    float o[ROWS][VALUES + PAD];
    float maximum[ROWS], sum[ROWS];
};
struct alignas(16) memory {
    union {
        struct {
            slice slices[KEY_GROUPS][STAGES];
            staged_t q[HEADS > 1 ? 8 : ROWS * (DEPTH + PAD)]; // [ROWS, DEPTH]; of several heads: in the last stages
        };
        partial_sums sums[KEY_GROUPS];
    };
    int spoiled[KEY_GROUPS][STAGES][KEYS];
    u64 arrived[KEY_GROUPS][STAGES];
};
static_assert(sizeof(memory) == SHARED_BYTES, "the host asks for as much");

using query_carrier = carrier<ROWS, DEPTH, Q_RUN, q_t>;

/* ---- Where a CTA is ---- */

struct position {
    i64 batch, key_head; /* the first of HEADS */
    int first;           /* row */
    int split;
};

/* CTAs that read the same keys, or neighbours in memory, are neighbours. */
template <class P> DEVICE position locate(const P &a) {
    i64 unit = blockIdx.x;
    position at;
    at.first = (int)(unit % a.tiles) * ROWS, unit /= a.tiles;
    at.key_head = unit % (a.key_heads / HEADS) * HEADS, unit /= a.key_heads / HEADS;
    at.split = (int)(unit % a.splits), at.batch = unit / a.splits;
    return at;
}

/* A row: whose query it is. */
struct row_place {
    i64 head;
    int query;
};
template <class P> DEVICE row_place row_of(const P &a, i64 key_head, int row) {
    const int queries = (int)a.queries;
    return row_place{key_head * a.group + row / queries, row % queries};
}

/* ---- Loading ---- */

template <class P>
DEVICE void load_queries(const P &a, const position &at, i64 key_head, const lengths &used, staged_t *to) {
    const auto place = [&](int i) -> const q_t * {
        if (at.first + i >= a.rows)
            return nullptr;
        const row_place row = row_of(a, key_head, at.first + i);
        return row.query < used.queries ? a.q + at.batch * a.q_batch + row.head * a.q_head + row.query * a.q_row
                                        : nullptr;
    };
    if constexpr (!IS_BYTES && Q_SCALES != 2)
        query_carrier::bring(to, a.q, (int)a.depth, a.q_column, place);
    else
        for (int i = threadIdx.x; i < ROWS * DEPTH; i += THREADS) {
            const int row = i / DEPTH, column = i % DEPTH;
            const q_t *from = place(row);
            sum_t x = from && column < a.depth ? as<sum_t>::of(from[column * a.q_column]) : 0;
            if constexpr (Q_SCALES == 2)
                if (from)
                    x *= query_scale_of(a, at.batch, row_of(a, key_head, at.first + row).head);
            to[row * (DEPTH + PAD) + (IS_BYTES ? byte_place(column) : column)] = ::from<staged_t>::number(x);
        }
}

DEVICE void copy_row(void *to, const void *from, bool take) {
    if constexpr (LOADER == 3)
        copy_async_once(to, from, take);
    else
        copy_async<16>(to, from, take);
}

/* KEYS rows of WIDTH elements by a group, 16 bytes a thread, as many rows at once as fit. A thread keeps its place in a
   row and steps from row to row, so that a copy takes few instructions. */
template <int WIDTH, int PAGE, class T> struct row_loader {
    static constexpr int RUN = 16 / sizeof(T), ACROSS = WIDTH / RUN, ROWS_AT_ONCE = GROUP / ACROSS, PITCH = WIDTH + RUN;
    static_assert(ACROSS <= GROUP, "a row is read at once");

    static constexpr bool IS_SCATTERED = PAGE % KEYS != 0; /* a slice may lie in several pages */

    const T *from;       /* this thread's place in the first key's row, or in its page's first row */
    i64 step, page_step; /* from row to row, from page to page */
    int row, column;
    bool takes_part;

    DEVICE row_loader(const T *first_key, i64 step, i64 page_step, int columns) : step(step), page_step(page_step) {
        const int rank = (int)threadIdx.x % GROUP;
        row = rank / ACROSS, column = rank % ACROSS * RUN;
        from = first_key + (IS_SCATTERED ? 0 : row * step) + column;
        takes_part = row < ROWS_AT_ONCE && column < columns;
    }
    /* Rows from `first` on into shared memory; those that `keys` has not are zeros. Lane page_lane + i has the page of row
       first + i. */
    DEVICE void load(T *to, const span &keys, int first, int pages, int page_lane) const {
        const T *source = from;
        if constexpr (PAGE == 0)
            source += first * step;
        else if constexpr (!IS_SCATTERED)
            source += __shfl_sync(0xffffffffu, pages, page_lane) * page_step + first % PAGE * step;
#pragma unroll
        for (int r = 0; r < KEYS; r += ROWS_AT_ONCE) {
            const int at = r + row;
            const T *place = source + r * step;
            if constexpr (IS_SCATTERED)
                place = from + __shfl_sync(0xffffffffu, pages, page_lane + at % KEYS) * page_step +
                        (first + at) % PAGE * step;
            if ((KEYS % ROWS_AT_ONCE == 0 && GROUP % ACROSS == 0) || (at < KEYS && row < ROWS_AT_ONCE))
                copy_row(to + at * PITCH + column, place, takes_part && keys.has(first + at));
        }
    }
};
using key_loader = row_loader<DEPTH, K_PAGE, k_t>;
using value_loader = row_loader<VALUES, V_PAGE, v_t>;

/* Where the keys and values of a sequence are: each of a slice's keys has a lane, and each of its values. */
constexpr bool IS_PAGED = K_PAGE || V_PAGE;
static_assert(!IS_PAGED || KEYS == 16, "a warp has two lanes for each key");

template <class P> struct slice_pages {
    const P &a;
    i64 batch;
    span keys;
    /* The page of this lane's row, of the slice that begins with key `first`; of a row beyond the keys that of the nearest. */
    DEVICE int read(int first) const {
        if constexpr (!IS_PAGED)
            return 0;
        const int key = min(max(first + lane() % KEYS, keys.first), max(keys.last - 1, 0));
        return (int)(lane() < KEYS ? k_pages_of(a, batch).page_of(key) : v_pages_of(a, batch).page_of(key));
    }
};

/* The copy engine brings rows whole, one a lane: those of keys, then those of values. Rows that `keys` has not are copies of
   the nearest. */
template <class P> struct bulk_loader {
    static_assert(KEYS == 16, "a lane for each row");
    const char *from;
    i64 step, page_step; /* bytes */
    u32 bytes, all_bytes;
    bool is_value;
    u64 policy;

    DEVICE bulk_loader(const P &a, i64 batch, i64 key_head) {
        is_value = lane() >= KEYS;
        from = is_value ? (const char *)(a.v + (V_PAGE ? 0 : batch * a.v_batch) + key_head * a.v_head)
                        : (const char *)(a.k + (K_PAGE ? 0 : batch * a.k_batch) + key_head * a.k_head);
        step = is_value ? a.v_row * (i64)sizeof(v_t) : a.k_row * (i64)sizeof(k_t);
        page_step = is_value ? a.v_batch * (i64)sizeof(v_t) : a.k_batch * (i64)sizeof(k_t);
        bytes = is_value ? (u32)a.value_depth * sizeof(v_t) : (u32)a.depth * sizeof(k_t);
        all_bytes = KEYS * ((u32)a.value_depth * sizeof(v_t) + (u32)a.depth * sizeof(k_t));
        if constexpr (LOADER == 2)
            asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    }
    DEVICE i64 row_in_page(int key) const {
        if constexpr (K_PAGE == V_PAGE)
            return K_PAGE ? key % (K_PAGE ? K_PAGE : 1) : key;
        else
            return is_value ? (V_PAGE ? key % (V_PAGE ? V_PAGE : 1) : key)
                            : (K_PAGE ? key % (K_PAGE ? K_PAGE : 1) : key);
    }
    DEVICE void load(slice &to, u64 *arrived, const span &keys, int first, int page) const {
        const int key = min(max(first + lane() % KEYS, keys.first), keys.last - 1);
        const char *place = from + row_in_page(key) * step;
        if constexpr (K_PAGE || V_PAGE)
            place += page * page_step;
        if (lane() == 0)
            arrive_expecting(shared_address(arrived), all_bytes);
        const u32 dst = is_value ? shared_address(to.v + lane() % KEYS * (VALUES + ROW_PAD))
                                 : shared_address(to.k + lane() % KEYS * (DEPTH + ROW_PAD));
        if constexpr (LOADER == 2)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], "
                         "%2, [%3], %4;" ::"r"(dst),
                         "l"(place), "r"(bytes), "r"(shared_address(arrived)), "l"(policy)
                         : "memory");
        else
            load_bytes(dst, place, bytes, shared_address(arrived));
    }
};
constexpr bool IS_BULK = LOADER == 1 || LOADER == 2;

/* The scales of a slice's rows, a lane for each. */
template <class P, class T>
DEVICE void load_scales(const P &a, float *to, const span &keys, i64 batch, i64 key_head, int first, T page) {
    const int key = first + lane() % KEYS;
    const bool is_value = lane() >= KEYS, is_there = keys.has(key);
    const float *from = nullptr;
    if constexpr (K_SCALES == 2)
        if (!is_value)
            from = a.descale_k + (K_PAGE ? page : batch) * a.descale_k_batch + key_head * a.descale_k_head +
                   (K_PAGE ? key % max(K_PAGE, 1) : key) * a.descale_k_row;
    if constexpr (V_SCALES == 2)
        if (is_value)
            from = a.descale_v + (V_PAGE ? page : batch) * a.descale_v_batch + key_head * a.descale_v_head +
                   (V_PAGE ? key % max(V_PAGE, 1) : key) * a.descale_v_row;
    if (from)
        copy_async<4>(to + lane(), from, is_there);
}

DEVICE void sync_group(int group) {
    if constexpr (ROW_WARPS == 1)
        __syncwarp();
    else
        ptx::bar_sync(1 + group, GROUP);
}

/* ---- Multiplying ---- */

template <class P>
DEVICE void clear_rows(const P &a, const position &at, i64 key_head, const lengths &used, int first, row_state &rows) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = first + lane() / 4 + 8 * h;
        const row_place row = row_of(a, key_head, min(i, (int)a.rows - 1));
        rows.own[h] = own_row_of(a, used, at.batch, row.head, row.query);
        if (i >= a.rows)
            rows.own[h].seen = span{0, 0};
        rows.clear(h);
    }
}

template <class Q, class T> DEVICE void multiply_keys(sum_t (&s)[1][N][4], const Q &q, const T *k) {
    if constexpr (sizeof(T) == 1)
        byte_products::scores<DEPTH>(s, q, k);
    else
        tiles::scores(s, q, k);
}
template <class W, class T> DEVICE void multiply_values(sum_t (&o)[1][VALUES / 8][4], const W &weights, const T *v) {
    if constexpr (sizeof(T) == 1)
        byte_products::results<VALUES, PARTS>(o, weights, v);
    else
        tiles::results<VALUES + PAD, VALUES>(o, weights, v);
}

/* One slice into the rows' sums. IS_WHOLE: every row sees every key. */
template <bool IS_WHOLE, class P, class Q>
DEVICE void add_slice(const P &a, const Q &q, const slice &from, int first, const int *spoiled, sum_t scale,
                      row_state &rows, sum_t (&o)[1][VALUES / 8][4]) {
    sum_t s[1][N][4] = {};
    multiply_keys(s, q, from.k);
    if constexpr (K_SCALES == 2)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[0][j][e] *= from.scales[score_column(j) + e % 2];
    score_tile(a, rows.own, first, IS_WHOLE, scale, s[0]);
    sum_t spoil[2];
    if constexpr (!IS_WHOLE)
        find_spoils(spoiled, first, s[0], spoil);
    soften<true>(rows, s[0], o[0]);
    if constexpr (!IS_WHOLE)
#pragma unroll
        for (int j = 0; j < VALUES / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[0][j][e] += spoil[e / 2];
    if constexpr (V_SCALES == 2) /* a weight of 0 stays 0 where the scale is not a number */
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[0][j][e] = s[0][j][e] == 0 ? 0 : s[0][j][e] * from.scales[KEYS + score_column(j) + e % 2];
    typename warp_tiles<weight_t>::weights<1, N, PARTS> weights;
    weights.set(s, nullptr);
    multiply_values(o, weights, from.v);
}

/* ---- Storing ---- */

DEVICE void keep_sums(partial_sums &to, int first, row_state &rows, const sum_t (&o)[VALUES / 8][4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + lane() / 4 + 8 * h;
        const sum_t sum = row_sum(rows.sum[h]);
        if (lane() % 4 == 0)
            to.maximum[row] = rows.maximum[h], to.sum[row] = sum;
        if constexpr (IS_BYTES)
#pragma unroll
            for (int j = 0; j < VALUES / 8; j += 2)
                store_run<float, 4>(
                    &to.o[row][8 * j + lane() % 4 * 4],
                    run<float, 4>{{o[j][2 * h], o[j + 1][2 * h], o[j][2 * h + 1], o[j + 1][2 * h + 1]}});
        else
#pragma unroll
            for (int j = 0; j < VALUES / 8; j++)
                store_run<float, 2>(&to.o[row][tiles::result_column(j)], run<float, 2>{{o[j][2 * h], o[j][2 * h + 1]}});
    }
}

/* A warp joins the groups' sums of a row, in their order. */
template <class P>
DEVICE void store_row(const P &a, const position &at, i64 key_head, const lengths &used, const partial_sums *sums,
                      int row, largest &amax) {
    const row_place to = row_of(a, key_head, at.first + row);
    sum_t maximum = unseen(), sum = 0, weights[SHARES];
#pragma unroll
    for (int g = 0; g < SHARES; g++)
        maximum = fmax(maximum, sums[g * HEADS].maximum[row]);
#pragma unroll
    for (int g = 0; g < SHARES; g++) {
        weights[g] = power(sums[g * HEADS].maximum[row] - (maximum == unseen() ? (sum_t)0 : maximum));
        sum += sums[g * HEADS].sum[row] * weights[g];
    }
    const i64 line = at.split * a.lines + (at.batch * a.heads + to.head) * a.queries + to.query;
    sum_t factor = 1;
    if constexpr (!IS_SPLIT) {
        factor = end_row(a, at.batch, to.head, to.query, used, maximum, sum, lane() == 0);
        amax.note_row(factor);
        factor *= value_scale_of(a, at.batch, to.head);
    } else if (lane() == 0)
        a.split_most[line] = maximum, a.split_sum[line] = sum;
#pragma unroll
    for (int column = 2 * lane(); column < VALUES; column += 64) {
        run<float, 2> o{};
#pragma unroll
        for (int g = 0; g < SHARES; g++) {
            const run<float, 2> some = load_run<float, 2>(&sums[g * HEADS].o[row][column]);
            o.at[0] += some.at[0] * weights[g], o.at[1] += some.at[1] * weights[g];
        }
        const sum_t scaled = factor * result_scale_of(a);
        if constexpr (!IS_SPLIT)
            amax.note(o.at[0] * factor), amax.note(o.at[1] * factor);
        if constexpr (IS_SPLIT)
            store_two<VALUES_ARE_EVEN>(a.split_o + line * a.value_depth, 1, column, (int)a.value_depth, o.at[0],
                                       o.at[1]);
        else if constexpr (HAS_O)
            store_two<O_IS_PAIR>(a.o + at.batch * a.o_batch + to.head * a.o_head + to.query * a.o_row, a.o_column,
                                 column, (int)a.value_depth, o.at[0] * scaled, o.at[1] * scaled);
    }
}

/* ---- The kernel ---- */

template <class P> DEVICE void attend(const P &a, memory &shared) {
    const position at = locate(a);
    const int warp = (int)threadIdx.x / 32, group = warp / ROW_WARPS, first_row = warp % ROW_WARPS * 16;
    const int head = group % HEADS, share = group / HEADS;
    const i64 key_head = at.key_head + head;
    if constexpr (IS_BULK) {
        if (threadIdx.x < KEY_GROUPS * STAGES)
            barrier_init(shared_address(&shared.arrived[0][0] + threadIdx.x), 1), barrier_init_fence();
        if (a.depth < DEPTH || a.value_depth < VALUES)
            for (int i = threadIdx.x; i < (int)sizeof(shared.slices) / 16; i += THREADS)
                ((run<u32, 4> *)shared.slices)[i] = run<u32, 4>{};
        publish_to_async_proxy();
        __syncthreads();
    }
    begin_overlapped();
    const lengths used = lengths_of(a, at.batch);
    const span keys = seen_by_any(a, used, 0, (int)a.queries), common = seen_by_each(a, used, 0, (int)a.queries);
    const int begin = keys.first / KEYS, end = keys.first < keys.last ? (keys.last + KEYS - 1) / KEYS : begin;
    const int from = min(begin + at.split * (int)a.split_slices, end), until = min(from + (int)a.split_slices, end);

    const key_loader load_keys(a.k + (K_PAGE ? 0 : at.batch * a.k_batch) + key_head * a.k_head, a.k_row, a.k_batch,
                               (int)a.depth);
    const value_loader load_values(a.v + (V_PAGE ? 0 : at.batch * a.v_batch) + key_head * a.v_head, a.v_row, a.v_batch,
                                   (int)a.value_depth);
    const bulk_loader<P> load_rows(a, at.batch, key_head);
    const slice_pages<P> pages{a, at.batch, keys};
    const auto load_slice = [&](int i, int stage, int pages) {
        slice &to = shared.slices[group][stage];
        if constexpr (HAS_ROW_SCALES)
            if (i < until && warp % ROW_WARPS == 0)
                load_scales(a, to.scales, keys, at.batch, key_head, i * KEYS, pages);
        if constexpr (IS_BULK) {
            if (i < until && warp % ROW_WARPS == 0)
                load_rows.load(to, &shared.arrived[group][stage], keys, i * KEYS, pages);
        } else if (i < until) {
            load_keys.load(to.k, keys, i * KEYS, pages, 0);
            load_values.load(to.v, keys, i * KEYS, pages, KEYS);
        }
        commit_tiles();
    };

    static_assert(HEADS == 1 || (IS_HELD && ROWS * (DEPTH + PAD) * sizeof(staged_t) <= sizeof(slice)),
                  "queries leave their slice at once");
    const auto queries_of = [&](int head) -> staged_t * {
        return HEADS > 1 ? (staged_t *)&shared.slices[head][STAGES - 1] : shared.q;
    };
    if (from < until)
        for (int h = 0; h < HEADS; h++)
            load_queries(a, at, at.key_head + h, used, queries_of(h));
    commit_tiles();
    int ahead[STAGES];
#pragma unroll
    for (int i = 0; i < STAGES; i++)
        ahead[i] = pages.read((from + share + i * SHARES) * KEYS);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        load_slice(from + share + i * SHARES, i, ahead[i]);
    int next_pages = ahead[STAGES - 1];
    row_state rows;
    clear_rows(a, at, key_head, used, at.first + first_row, rows);
    sum_t o[1][VALUES / 8][4] = {};
    const sum_t scale = in_units(score_scale_of(a, at.batch, key_head * a.key_share));
    for (int i = threadIdx.x; i < KEY_GROUPS * STAGES * KEYS; i += THREADS)
        (&shared.spoiled[0][0][0])[i] = -1;
    await_copies<STAGES - 1>();
    __syncthreads();
    tiles::rows<DEPTH, 1, IS_HELD> q;
    q.point(queries_of(head) + first_row * (DEPTH + PAD));
    q.load();
    if (HEADS > 1) {
        __syncthreads();
        if (a.depth < DEPTH || a.value_depth < VALUES) {
            for (int i = lane(); i < (int)sizeof(slice) / 16; i += 32)
                ((run<u32, 4> *)&shared.slices[group][STAGES - 1])[i] = run<u32, 4>{};
        }
        if constexpr (IS_BULK)
            publish_to_async_proxy();
        __syncwarp();
    }

    int stage = 0, before = STAGES - 1;
    u32 phase = 0;
#pragma unroll 1
    for (int i = from + share; i < until; i += SHARES) {
        slice &now = shared.slices[group][stage];
        int *spoiled = shared.spoiled[group][stage];
        const bool is_whole = !MAY_HIDE && common.covers(i * KEYS, (i + 1) * KEYS);
        if constexpr (IS_BULK)
            wait(shared_address(&shared.arrived[group][stage]), phase);
        if constexpr (!IS_BULK || HAS_ROW_SCALES)
            await_copies<STAGES - 2>();
        if (!is_whole)
            clear_non_finite<KEYS, VALUES, ROW_PAD, V_RUN, GROUP>(now.v, spoiled, i * KEYS);
        if constexpr (IS_BULK)
            publish_to_async_proxy();
        sync_group(group);
        load_slice(i + (STAGES - 1) * SHARES, before, next_pages);
        next_pages = pages.read((i + STAGES * SHARES) * KEYS);
        if (is_whole)
            add_slice<true>(a, q, now, i * KEYS, spoiled, scale, rows, o);
        else
            add_slice<false>(a, q, now, i * KEYS, spoiled, scale, rows, o);
        before = stage, stage = stage + 1 < STAGES ? stage + 1 : 0;
        phase ^= stage == 0;
    }
    __syncthreads();
    keep_sums(shared.sums[group], first_row, rows, o[0]);
    __syncthreads();
    largest amax{};
    for (int i = warp; i < HEADS * ROWS; i += WARPS)
        if (at.first + i / HEADS < a.rows)
            store_row(a, at, at.key_head + i % HEADS, used, shared.sums + i % HEADS, i / HEADS, amax);
    amax.store(a);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, CTAS) attention_decode(const __grid_constant__ arguments a) {
    extern __shared__ __align__(16) u8 shared[];
    attend(a, *(memory *)shared);
}
