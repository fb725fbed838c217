/* attention_decode: O = softmax(mask(scale Q K^T + bias), sink) V of few queries and many keys sm_80 and up; 16 bits
   Formula   as attention_fwd
   Tile      a CTA has ROWS rows, which are the queries of all heads that share a key head, of HEADS key heads, and a
             segment of the keys. Its key groups, of ROW_WARPS warps each, have one head each and process its slices of
             KEYS keys in turn
   Pipeline  each group has its own ring of STAGES slices, STAGES - 1 of which are being loaded while one is multiplied;
             groups synchronise only at the end
   Loads     USES_TMA: TMA (sm_90), which reads memory 3 to 6 % faster; otherwise 16 bytes per thread
   Memory    rings and queries; at the end, the groups' partial sums replace them
   Split     SPLIT: the segments of `splits` CTAs cover the keys. 1: these are a cluster and read each other's partial
             sums; 2: attention_merge combines partial sums in the workspace; both in a fixed order
   Pages     K_PAGE, V_PAGE: the lanes of a warp read the page indices of a slice's keys and values one slice ahead of
             its copies
   Scales    row scales are copied with the rows, and multiply scores, and P
   Limits    DEPTH and VALUES <= 256; rows of K and V are read 16 bytes at a time
   Params    staged_t p_t ROW_WARPS KEY_GROUPS HEADS KEYS STAGES DEPTH VALUES PARTS ROWS_IN_REGISTERS USES_TMA SPLIT
             CTAS, runs and features
   Measured  docs/kernels.md, with alternatives that were tried; decode.c chooses tiles and splits from measurements of
             13 shapes */

constexpr bool KV_RESIDENT = false;

#include "engines/cuda/attention/decode_geometry.h"
#include "core/async.cuh"
#include "core/dependent_launch.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/scores.cuh"
#include "attention/online_softmax.cuh"
#include "attention/epilogue.cuh"
#include "attention/pages.cuh"
#include "attention/scales.cuh"
#include "attention/kv_smem.cuh"

constexpr int ROWS = ROW_WARPS * 16, GROUP = ROW_WARPS * 32, SHARES = KEY_GROUPS / HEADS;
static_assert(WARPS == ROW_WARPS * KEY_GROUPS && KEYS == 16 && STAGES >= 2 && KEY_GROUPS % HEADS == 0,
              "MMAs process 16 keys, a warp has two lanes per key, and one slice is loaded while another is used");
constexpr bool IS_BYTES = sizeof(k_t) == 1, HAS_ROW_SCALES = K_SCALES == 2 || V_SCALES == 2;
static_assert(sizeof(k_t) == sizeof(v_t) && (IS_BYTES || (same<k_t, staged_t>::value && same<v_t, staged_t>::value)),
              "keys and values are multiplied without conversion, or both have 8 bits");
constexpr bool IS_CLUSTER = SPLIT == 1, IS_SPLIT = SPLIT == 2; /* IS_SPLIT: sums are stored in the workspace */

constexpr decode_memory MEMORY = decode_memory_of(
    decode_shape{sizeof(k_t), USES_TMA, HAS_ROW_SCALES, ROWS, HEADS, KEY_GROUPS, STAGES, DEPTH, VALUES});

using key_rows = slice_rows<k_t, DEPTH>;
using value_rows = slice_rows<v_t, VALUES>;

struct alignas(USES_TMA ? SLICE_ALIGNMENT : 16) slice {
    k_t k[MEMORY.k_bytes / sizeof(k_t)]; // [KEYS, DEPTH]
    v_t v[MEMORY.v_bytes / sizeof(v_t)]; // [KEYS, VALUES]
};
struct alignas(16) partial_sums {
    float o[ROWS][VALUES + ROW_PAD];
    float row_max[ROWS], sum[ROWS];
};
struct memory {
    union {
        struct {
            slice slices[KEY_GROUPS][STAGES];
            staged_t q[HEADS][MEMORY.q]; // [HEADS, ROWS, DEPTH]
        };
        partial_sums sums[KEY_GROUPS];
    };
    alignas(16) float scales[KEY_GROUPS][STAGES][MEMORY.scales]; // of keys, then of values
    int non_finite[KEY_GROUPS][STAGES][KEYS];
    u64 arrived[KEY_GROUPS][STAGES];
};
static_assert(sizeof(slice) == MEMORY.slice_bytes && sizeof(memory) <= MEMORY.bytes && MEMORY.bytes == SHARED_BYTES,
              "the host computed it from the same constants");

using q_loader = tile_loader<ROWS, DEPTH, Q_RUN, q_t>;

/* ---- Position of a CTA ---- */

struct position {
    i64 batch, key_head; /* the first of HEADS */
    int first;           /* row */
    int split;
};

/* CTAs that share a unit's keys are adjacent, because a cluster requires it. */
template <class P> DEVICE position locate(const P &a) {
    i64 unit = blockIdx.x;
    position at;
    at.split = (int)(unit % a.splits), unit /= a.splits;
    at.first = (int)(unit % a.tiles) * ROWS, unit /= a.tiles;
    at.key_head = unit % (a.key_heads / HEADS) * HEADS, at.batch = unit / (a.key_heads / HEADS);
    return at;
}

/* Head and query of a row. */
struct query_row {
    i64 head;
    int query;
};
template <class P> DEVICE query_row row_of(const P &a, i64 key_head, int row) {
    const int queries = (int)a.queries;
    return query_row{key_head * a.group + row / queries, row % queries};
}

/* ---- Loading ---- */

template <class P> DEVICE void load_q(const P &a, const position &at, i64 key_head, const lengths &used, staged_t *to) {
    const auto row_address = [&](int i) -> const q_t * {
        if (at.first + i >= a.rows)
            return nullptr;
        const query_row row = row_of(a, key_head, at.first + i);
        return row.query < used.queries ? a.q + at.batch * a.q_batch + row.head * a.q_head + row.query * a.q_row
                                        : nullptr;
    };
    if constexpr (!IS_BYTES && Q_SCALES != 2) {
        q_loader::load(to, a.q, (int)a.depth, a.q_column, row_address);
    } else {
        for (int i = threadIdx.x; i < ROWS * DEPTH; i += THREADS) {
            const int row = i / DEPTH, column = i % DEPTH;
            const q_t *source = a.depth > column ? row_address(row) : nullptr;
            sum_t x = source ? as<sum_t>::of(source[column * a.q_column]) : 0;
            if constexpr (Q_SCALES == 2) {
                if (source)
                    x *= query_scale_of(a, at.batch, row_of(a, key_head, at.first + row).head);
            }
            to[row * (DEPTH + PAD) + (IS_BYTES ? byte_position(column) : column)] = from<staged_t>::number(x);
        }
    }
}

/* Loads KEYS rows of WIDTH elements by a group, 16 bytes per thread, as many rows at once as fit. A thread has a fixed
   column and steps from row to row, which keeps the instruction count of a copy low. */
template <int WIDTH, int PAGE, class T> struct row_loader {
    static constexpr int RUN = 16 / sizeof(T), ACROSS = WIDTH / RUN, ROWS_AT_ONCE = GROUP / ACROSS, PITCH = WIDTH + RUN;
    static_assert(ACROSS <= GROUP, "a row is loaded in one step");

    static constexpr bool IS_SCATTERED = PAGE % KEYS != 0; /* the rows of a slice may be in several pages */

    const T *from;       /* this thread's address in the first key's row, or in the first row of its page */
    i64 step, page_step; /* strides of rows and pages */
    int row, column;
    bool loads;

    DEVICE row_loader(const T *first_key, i64 step, i64 page_step, int columns) : step(step), page_step(page_step) {
        const int rank = (int)threadIdx.x % GROUP;
        row = rank / ACROSS, column = rank % ACROSS * RUN;
        from = first_key + (IS_SCATTERED ? 0 : row * step) + column;
        loads = row < ROWS_AT_ONCE && column < columns;
    }
    /* Copies rows to shared memory, starting at `first`; rows outside `keys` become zeros. Lane page_lane + i holds the
       page of row first + i. */
    DEVICE void load(T *to, const span &keys, int first, int pages, int page_lane) const {
        const T *source = from;
        if constexpr (PAGE == 0)
            source += first * step;
        else if constexpr (!IS_SCATTERED)
            source += __shfl_sync(0xffffffffu, pages, page_lane) * page_step + first % PAGE * step;
#pragma unroll
        for (int r = 0; r < KEYS; r += ROWS_AT_ONCE) {
            const int at = r + row;
            const T *from_row = source + r * step;
            if constexpr (IS_SCATTERED)
                from_row = from + __shfl_sync(0xffffffffu, pages, page_lane + at % KEYS) * page_step +
                           (first + at) % PAGE * step;
            if ((KEYS % ROWS_AT_ONCE == 0 && GROUP % ACROSS == 0) || (at < KEYS && row < ROWS_AT_ONCE))
                copy_async_once(to + at * PITCH + column, from_row, loads && keys.has(first + at));
        }
    }
};
using key_loader = row_loader<DEPTH, K_PAGE, k_t>;
using value_loader = row_loader<VALUES, V_PAGE, v_t>;

/* If keys or values are paged, one lane holds the page index of each key, or of each value, of a slice. */
constexpr bool IS_PAGED = K_PAGE || V_PAGE;

template <class P> struct slice_pages {
    const P &a;
    i64 batch;
    span keys;
    /* Page of this lane's row in the slice that starts at key `first`; rows beyond the keys use that of the nearest
       key. */
    DEVICE int read(int first) const {
        if (!IS_PAGED || keys.first >= keys.last) /* a packed table may have no entry for a sequence without keys */
            return 0;
        const int key = min(max(first + lane() % KEYS, keys.first), max(keys.last - 1, 0));
        return (int)(lane() < KEYS ? k_pages_of(a, batch).page_of(key) : v_pages_of(a, batch).page_of(key));
    }
};

/* Loads the scales of a slice's rows, one per lane. */
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

/* Loads slices by TMA, which one lane issues. */
template <int PAGE, class L>
DEVICE void load_rows_by_tma(const void *to, const tensor_map &map, u32 arrived, int first, int head, int outer) {
#pragma unroll
    for (int i = 0; i < L::PANELS; i++)
        load_box(shared_address(to) + i * L::PANEL, map, arrived, i * 8 * L::RUN, PAGE ? first % max(PAGE, 1) : first,
                 head, outer);
}
/* Lane 0 holds the page of the keys, lane KEYS that of the values. */
template <class P>
DEVICE void load_slice_by_tma(const P &a, int batch, int head, const slice &to, const u64 *arrival, int first,
                              int pages) {
    static_assert(K_PAGE % KEYS == 0 && V_PAGE % KEYS == 0, "a slice is within one page");
    const int value_page = __shfl_sync(0xffffffffu, pages, KEYS);
    const u32 arrived = shared_address(arrival);
    if (lane() != 0)
        return;
    arrive_expecting(arrived, key_rows::SIZE + value_rows::SIZE);
    load_rows_by_tma<K_PAGE, key_rows>(to.k, a.k_map, arrived, first, head, K_PAGE ? pages : batch);
    load_rows_by_tma<V_PAGE, value_rows>(to.v, a.v_map, arrived, first, head, V_PAGE ? value_page : batch);
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
        const int i = first + score_row(h);
        const query_row row = row_of(a, key_head, min(i, (int)a.rows - 1));
        rows.resident[h] = resident_row_of(a, used, at.batch, row.head, row.query);
        if (i >= a.rows)
            rows.resident[h].visible = span{0, 0};
        rows.clear(h);
    }
}

/* Adds one slice to the rows' sums. IS_WHOLE: every row sees every key. */
template <bool IS_WHOLE, class P, class Q>
DEVICE void add_slice(const P &a, const Q &q, const slice &from, const float *scales, int first, const int *non_finite,
                      sum_t scale, row_state &rows, sum_t (&o)[1][VALUES / 8][4]) {
    sum_t s[1][2][4] = {};
    multiply_k<staged_t, DEPTH>(s, q, from.k);
    if constexpr (K_SCALES == 2)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[0][j][e] *= scales[score_column(j) + e % 2];
    score_tile(a, rows.resident, first, IS_WHOLE, scale, s[0]);
    sum_t nan_or_zero[2];
    if constexpr (!IS_WHOLE)
        find_non_finite(non_finite, first, s[0], nan_or_zero);
    online_softmax<true>(rows, s[0], o[0]);
    if constexpr (!IS_WHOLE)
#pragma unroll
        for (int j = 0; j < VALUES / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[0][j][e] += nan_or_zero[e / 2];
    if constexpr (V_SCALES == 2) /* P of 0 stays 0 even if the scale is NaN */
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[0][j][e] = s[0][j][e] == 0 ? 0 : s[0][j][e] * scales[KEYS + score_column(j) + e % 2];
    typename warp_tiles<p_t>::p_operand<1, 2, PARTS> p;
    p.set(s, nullptr);
    multiply_v<p_t, VALUES, PARTS>(o, p, from.v);
}

/* ---- Storing ---- */

DEVICE void store_partial_sums(partial_sums &to, int first, row_state &rows, const sum_t (&o)[VALUES / 8][4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + score_row(h);
        const sum_t sum = quad_sum(rows.row_sum[h]);
        if (lane() % 4 == 0)
            to.row_max[row] = rows.row_max[h], to.sum[row] = sum;
        store_results<v_t, VALUES>(to.o[row], o, h);
    }
}

/* Addresses partial sum i of a head, counted by share, then by CTA of the cluster. */
struct partial_reader {
    u32 sums; /* address of the head's first share */
    DEVICE u32 at(int i, const void *member, const partial_sums *local) const {
        const u32 inside =
            sums + (u32)(i % SHARES * HEADS * sizeof(partial_sums)) + (u32)((const char *)member - (const char *)local);
        return IS_CLUSTER ? peer_address(inside, i / SHARES) : inside;
    }
    static DEVICE float load(u32 at) { return IS_CLUSTER ? load_of_peer(at) : load_shared(at); }
};

DEVICE float warp_max(float x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x = fmax(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
DEVICE float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* A warp combines the partial sums of COLUMNS columns of a row, two columns per lane; lanes share the rescaling
   factors. */
constexpr int COLUMNS = 64, CHUNKS = (VALUES + COLUMNS - 1) / COLUMNS;
template <class P>
DEVICE void store_row(const P &a, const position &at, int head, const lengths &used, const partial_sums *sums, int row,
                      int chunk, largest &amax) {
    constexpr int LANES_MAX = 2; /* rescaling factors per lane, for up to 64 partial sums */
    const partial_sums *local = sums + head;
    const partial_reader reader{shared_address(local)};
    const int parts = SHARES * (IS_CLUSTER ? (int)a.splits : 1), column = chunk * COLUMNS + 2 * lane();
    const query_row to = row_of(a, at.key_head + head, at.first + row);
    sum_t rescale[LANES_MAX], row_max = hidden_score(), sum = 0;
#pragma unroll
    for (int i = 0; i < LANES_MAX; i++) {
        const int part = lane() + 32 * i;
        rescale[i] = part < parts ? reader.load(reader.at(part, &local->row_max[row], local)) : hidden_score();
        row_max = fmax(row_max, rescale[i]);
    }
    row_max = warp_max(row_max);
#pragma unroll
    for (int i = 0; i < LANES_MAX; i++) {
        const int part = lane() + 32 * i;
        rescale[i] = power(rescale[i] - (row_max == hidden_score() ? (sum_t)0 : row_max));
        sum += part < parts ? rescale[i] * reader.load(reader.at(part, &local->sum[row], local)) : (sum_t)0;
    }
    sum = warp_sum(sum);
    run<float, 2> o{};
#pragma unroll 8
    for (int i = 0; i < parts; i++) {
        const sum_t part_scale = __shfl_sync(0xffffffffu, i < 32 ? rescale[0] : rescale[1], i % 32);
        if (column >= VALUES)
            continue;
        const u32 from = reader.at(i, &local->o[row][column], local);
        o.at[0] += part_scale * reader.load(from), o.at[1] += part_scale * reader.load(from + 4);
    }
    const i64 line = at.split * a.lines + (at.batch * a.heads + to.head) * a.queries + to.query;
    if constexpr (IS_SPLIT) {
        if (lane() == 0 && chunk == 0)
            a.split_max[line] = row_max, a.split_sum[line] = sum;
        store_two<VALUES_ARE_EVEN>(a.split_o + line * a.value_depth, 1, column, (int)a.value_depth, o.at[0], o.at[1]);
    } else {
        sum_t factor = end_row(a, at.batch, to.head, to.query, used, row_max, sum, lane() == 0 && chunk == 0);
        amax.note_row(factor);
        factor *= value_scale_of(a, at.batch, to.head);
        amax.note(o.at[0] * factor), amax.note(o.at[1] * factor);
        factor *= result_scale_of(a);
        if constexpr (HAS_O)
            store_two<O_IS_PAIR>(a.o + at.batch * a.o_batch + to.head * a.o_head + to.query * a.o_row, a.o_column,
                                 column, (int)a.value_depth, o.at[0] * factor, o.at[1] * factor);
    }
}

DEVICE void sync_sums() {
    if constexpr (IS_CLUSTER)
        cluster_sync();
    else
        __syncthreads();
}

/* The warps of a CTA, or of a cluster, divide the rows and columns of all heads. */
template <class P>
DEVICE void store_rows(const P &a, const position &at, const lengths &used, const partial_sums *sums) {
    const int first = (IS_CLUSTER ? at.split * WARPS : 0) + (int)threadIdx.x / 32,
              step = IS_CLUSTER ? (int)a.splits * WARPS : WARPS;
    const int rows = min(ROWS, (int)a.rows - at.first);
    largest amax{};
    for (int i = first; i < rows * HEADS * CHUNKS; i += step)
        store_row(a, at, i / CHUNKS % HEADS, used, sums, i / CHUNKS / HEADS, i % CHUNKS, amax);
    amax.store(a);
}

/* ---- Kernel ---- */

DEVICE void init_barriers(memory &shared) {
    if (threadIdx.x < KEY_GROUPS * STAGES)
        barrier_init(shared_address(&shared.arrived[0][0] + threadIdx.x), 1);
    barrier_init_fence();
    __syncthreads();
}

/* The slices from .. until - 1 of a CTA, and which of their keys some query, and every query, sees. */
struct segment {
    lengths used;
    span keys, common;
    int from, until;
};
template <class P> DEVICE segment segment_of(const P &a, const position &at) {
    segment work;
    work.used = lengths_of(a, at.batch);
    work.keys = visible_to_any(a, work.used, 0, (int)a.queries);
    work.common = visible_to_each(a, work.used, 0, (int)a.queries);
    const int begin = work.keys.first / KEYS;
    const int end = work.keys.first < work.keys.last ? (work.keys.last + KEYS - 1) / KEYS : begin;
    work.from = min(begin + at.split * (int)a.split_slices, end);
    work.until = min(work.from + (int)a.split_slices, end);
    return work;
}

/* A group's position in its CTA, and its ring of stages. */
template <class P> struct group_ring {
    const P &a;
    memory &shared;
    const segment &work;
    i64 batch, key_head;
    int group;
    bool leads; /* the warp that issues loads for its group if one warp does */
    key_loader load_keys;
    value_loader load_values;

    DEVICE group_ring(const P &a, memory &shared, const segment &work, const position &at, int group, bool leads)
        : a(a), shared(shared), work(work), batch(at.batch), key_head(at.key_head + group % HEADS), group(group),
          leads(leads),
          load_keys(a.k + (K_PAGE ? 0 : batch * a.k_batch) + key_head * a.k_head, a.k_row, a.k_batch, (int)a.depth),
          load_values(a.v + (V_PAGE ? 0 : batch * a.v_batch) + key_head * a.v_head, a.v_row, a.v_batch,
                      (int)a.value_depth) {}

    /* Loads slice i, whose pages are `pages`, into a stage. */
    DEVICE void load(int i, int stage, int pages) const {
        slice &to = shared.slices[group][stage];
        if (i < work.until) {
            if constexpr (HAS_ROW_SCALES)
                if (leads)
                    load_scales(a, shared.scales[group][stage], work.keys, batch, key_head, i * KEYS, pages);
            if constexpr (!USES_TMA) {
                load_keys.load(to.k, work.keys, i * KEYS, pages, 0);
                load_values.load(to.v, work.keys, i * KEYS, pages, KEYS);
            } else if (leads) {
                load_slice_by_tma(a, (int)batch, (int)key_head, to, &shared.arrived[group][stage], i * KEYS, pages);
            }
        }
        commit_tiles();
    }
    /* Waits until the slice's values are clean, its scales have arrived for the whole group, and the previous stage is
       free. */
    DEVICE void await(int i, int stage, u32 phase, bool is_whole) const {
        if constexpr (USES_TMA)
            wait(shared_address(&shared.arrived[group][stage]), phase);
        if constexpr (!USES_TMA || HAS_ROW_SCALES)
            await_copies<STAGES - 2>();
        if (!is_whole)
            clear_non_finite<value_rows, GROUP>(shared.slices[group][stage].v, shared.non_finite[group][stage],
                                                i * KEYS);
        if constexpr (USES_TMA)
            publish_to_async_proxy(); /* order reads and clears before the next TMA write */
        sync_group(group);
    }
};

/* The group's slices of the segment, every SHARES-th. next_pages: pages of the slice that is loaded next. */
template <class P, class Q>
DEVICE void process_slices(const group_ring<P> &ring, const slice_pages<P> &pages, int next_pages, const Q &q,
                           row_state &rows, sum_t (&o)[1][VALUES / 8][4]) {
    const P &a = ring.a;
    const sum_t scale = to_score_units(score_scale_of(a, ring.batch, ring.key_head * a.k_group_size));
    int stage = 0, before = STAGES - 1;
    u32 phase = 0;
#pragma unroll 1
    for (int i = ring.work.from + ring.group / HEADS; i < ring.work.until; i += SHARES) {
        const slice &now = ring.shared.slices[ring.group][stage];
        const float *scales = ring.shared.scales[ring.group][stage];
        const int *non_finite = ring.shared.non_finite[ring.group][stage];
        const bool is_whole = !MAY_HIDE && ring.work.common.covers(i * KEYS, (i + 1) * KEYS);
        ring.await(i, stage, phase, is_whole);
        ring.load(i + (STAGES - 1) * SHARES, before, next_pages);
        next_pages = pages.read((i + STAGES * SHARES) * KEYS);
        if (is_whole)
            add_slice<true>(a, q, now, scales, i * KEYS, non_finite, scale, rows, o);
        else
            add_slice<false>(a, q, now, scales, i * KEYS, non_finite, scale, rows, o);
        before = stage, stage = stage + 1 < STAGES ? stage + 1 : 0;
        phase ^= stage == 0;
    }
}

template <class P> DEVICE void attend(const P &a, memory &shared) {
    const position at = locate(a);
    const int warp = (int)threadIdx.x / 32, group = warp / ROW_WARPS, first_row = warp % ROW_WARPS * 16;
    if constexpr (USES_TMA)
        init_barriers(shared);
    begin_overlapped();
    const segment work = segment_of(a, at);
    const group_ring<P> ring(a, shared, work, at, group, warp % ROW_WARPS == 0);
    const slice_pages<P> pages{a, at.batch, work.keys};
    const int first = work.from + group / HEADS;
    int ahead[STAGES];
#pragma unroll
    for (int i = 0; i < STAGES; i++)
        ahead[i] = pages.read((first + i * SHARES) * KEYS);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        ring.load(first + i * SHARES, i, ahead[i]);
    for (int h = 0; h < HEADS && work.until > work.from; h++)
        load_q(a, at, at.key_head + h, work.used, shared.q[h]);
    commit_tiles();
    row_state rows;
    clear_rows(a, at, ring.key_head, work.used, at.first + first_row, rows);
    for (int i = threadIdx.x; i < KEY_GROUPS * STAGES * KEYS; i += THREADS)
        (&shared.non_finite[0][0][0])[i] = -1;
    await_copies<0>();
    __syncthreads();
    tiles::rows<DEPTH, 1, ROWS_IN_REGISTERS> q;
    q.point(shared.q[group % HEADS] + first_row * (DEPTH + PAD));
    q.load();
    sum_t o[1][VALUES / 8][4] = {};
    process_slices(ring, pages, ahead[STAGES - 1], q, rows, o);
    __syncthreads();
    store_partial_sums(shared.sums[group], first_row, rows, o[0]);
    sync_sums();
    store_rows(a, at, work.used, shared.sums);
    if constexpr (IS_CLUSTER)
        cluster_sync(); /* peers have finished reading this CTA's shared memory */
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, CTAS) attention_decode(const __grid_constant__ arguments a) {
    extern __shared__ __align__(1024) u8 shared[];
    attend(a, *(memory *)shared);
}
