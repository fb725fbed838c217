/* attention_decode: O = softmax(mask(scale Q K^T + bias), sink) V of few queries and many keys      sm_80 on; 16 bits
   Formula   as attention_fwd
   Tile      a CTA has ROWS rows, which are the queries of all heads that share a key head, of HEADS key heads, and a
             segment of the keys. Its key groups, of ROW_WARPS warps each, have one head each and process its slices of
             KEYS keys in turn
   Pipeline  each group has its own ring of STAGES slices, STAGES - 1 of which are being loaded while one is multiplied;
             groups synchronise only at the end
   Loads     HAS_BOXES: TMA (sm_90), which reads memory 3 to 6 % faster; otherwise 16 bytes per thread
   Memory    rings and queries; at the end, the groups' partial sums replace them
   Split     SPLIT: the segments of `splits` CTAs cover the keys. 1: these are a cluster and read each other's partial
             sums; 2: attention_merge combines partial sums in the workspace; both in a fixed order
   Pages     K_PAGE, V_PAGE: the lanes of a warp read the page indices of a slice's keys and values one slice ahead of
             its copies
   Scales    row scales are copied with the rows, and multiply scores, and P
   Limits    DEPTH and VALUES <= 256; rows of K and V are read 16 bytes at a time
   Params    staged_t p_t ROW_WARPS KEY_GROUPS HEADS KEYS STAGES DEPTH VALUES PARTS Q_IN_REGISTERS HAS_BOXES SPLIT CTAS,
             runs and features
   Measured  docs/kernels.md, with alternatives that were tried; decode.c chooses tiles and splits from measurements of
             13 shapes */

constexpr bool OWN_IS_KEY = false;

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
#include "attention/slices.cuh"

constexpr int ROWS = ROW_WARPS * 16, GROUP = ROW_WARPS * 32, SHARES = KEY_GROUPS / HEADS;
static_assert(WARPS == ROW_WARPS * KEY_GROUPS && KEYS == 16 && STAGES >= 2 && KEY_GROUPS % HEADS == 0,
              "products go by 16 keys, a warp has two lanes for each, and one slice is loaded while another is used");
constexpr bool IS_BYTES = sizeof(k_t) == 1, HAS_ROW_SCALES = K_SCALES == 2 || V_SCALES == 2;
static_assert(sizeof(k_t) == sizeof(v_t) && (IS_BYTES || (same<k_t, staged_t>::value && same<v_t, staged_t>::value)),
              "keys and values are multiplied as they lie, or have 8 bits both");
constexpr bool IS_CLUSTER = SPLIT == 1, IS_SPLIT = SPLIT == 2; /* IS_SPLIT: sums are stored in the workspace */

using key_rows = slice_rows<k_t, DEPTH>;
using value_rows = slice_rows<v_t, VALUES>;

struct alignas(HAS_BOXES ? 1024 : 16) slice {
    k_t k[key_rows::SIZE / sizeof(k_t)];   // [KEYS, DEPTH]
    v_t v[value_rows::SIZE / sizeof(v_t)]; // [KEYS, VALUES]
};
struct alignas(16) partial_sums {
    float o[ROWS][VALUES + PAD];
    float maximum[ROWS], sum[ROWS];
};
struct memory {
    union {
        struct {
            slice slices[KEY_GROUPS][STAGES];
            staged_t q[HEADS][ROWS * (DEPTH + PAD)]; // [HEADS, ROWS, DEPTH]
        };
        partial_sums sums[KEY_GROUPS];
    };
    alignas(16) float scales[KEY_GROUPS][STAGES][HAS_ROW_SCALES ? 2 * KEYS : 4]; // of keys, then of values
    int non_finite[KEY_GROUPS][STAGES][KEYS];
    u64 arrived[KEY_GROUPS][STAGES];
};
static_assert(sizeof(memory) <= SHARED_BYTES, "the host asks for as much");

using query_carrier = carrier<ROWS, DEPTH, Q_RUN, q_t>;

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
    if constexpr (!IS_BYTES && Q_SCALES != 2) {
        query_carrier::bring(to, a.q, (int)a.depth, a.q_column, place);
    } else {
        for (int i = threadIdx.x; i < ROWS * DEPTH; i += THREADS) {
            const int row = i / DEPTH, column = i % DEPTH;
            const q_t *source = a.depth > column ? place(row) : nullptr;
            sum_t x = source ? as<sum_t>::of(source[column * a.q_column]) : 0;
            if constexpr (Q_SCALES == 2) {
                if (source)
                    x *= query_scale_of(a, at.batch, row_of(a, key_head, at.first + row).head);
            }
            to[row * (DEPTH + PAD) + (IS_BYTES ? byte_place(column) : column)] = from<staged_t>::number(x);
        }
    }
}

/* Loads KEYS rows of WIDTH elements by a group, 16 bytes per thread, as many rows at once as fit. A thread has a fixed
   column and steps from row to row, which keeps the instruction count of a copy low. */
template <int WIDTH, int PAGE, class T> struct row_loader {
    static constexpr int RUN = 16 / sizeof(T), ACROSS = WIDTH / RUN, ROWS_AT_ONCE = GROUP / ACROSS, PITCH = WIDTH + RUN;
    static_assert(ACROSS <= GROUP, "a row is read at once");

    static constexpr bool IS_SCATTERED = PAGE % KEYS != 0; /* the rows of a slice may be in several pages */

    const T *from;       /* this thread's address in the first key's row, or in the first row of its page */
    i64 step, page_step; /* strides of rows and pages */
    int row, column;
    bool takes_part;

    DEVICE row_loader(const T *first_key, i64 step, i64 page_step, int columns) : step(step), page_step(page_step) {
        const int rank = (int)threadIdx.x % GROUP;
        row = rank / ACROSS, column = rank % ACROSS * RUN;
        from = first_key + (IS_SCATTERED ? 0 : row * step) + column;
        takes_part = row < ROWS_AT_ONCE && column < columns;
    }
    /* Copies rows from `first` on to shared memory, zeros for those outside `keys`. Lane page_lane + i holds the page
       of row first + i. */
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
                copy_async_once(to + at * PITCH + column, place, takes_part && keys.has(first + at));
        }
    }
};
using key_loader = row_loader<DEPTH, K_PAGE, k_t>;
using value_loader = row_loader<VALUES, V_PAGE, v_t>;

/* Page indices of a slice: one lane per key, and one per value. */
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
DEVICE void load_box_rows(const void *to, const tensor_map &map, u32 arrived, int first, int head, int outer) {
#pragma unroll
    for (int i = 0; i < L::PANELS; i++)
        load_box(shared_address(to) + i * L::PANEL, map, arrived, i * 8 * L::RUN, PAGE ? first % max(PAGE, 1) : first,
                 head, outer);
}
/* Lane 0 holds the page of the keys, lane KEYS that of the values. */
template <class P>
DEVICE void load_boxes(const P &a, int batch, int head, const slice &to, const u64 *arrival, int first, int pages) {
    static_assert(K_PAGE % KEYS == 0 && V_PAGE % KEYS == 0, "a slice lies in one page");
    const int value_page = __shfl_sync(0xffffffffu, pages, KEYS);
    const u32 arrived = shared_address(arrival);
    if (lane() != 0)
        return;
    arrive_expecting(arrived, key_rows::SIZE + value_rows::SIZE);
    load_box_rows<K_PAGE, key_rows>(to.k, a.k_map, arrived, first, head, K_PAGE ? pages : batch);
    load_box_rows<V_PAGE, value_rows>(to.v, a.v_map, arrived, first, head, V_PAGE ? value_page : batch);
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

/* Adds one slice to the rows' sums. IS_WHOLE: every row sees every key. */
template <bool IS_WHOLE, class P, class Q>
DEVICE void add_slice(const P &a, const Q &q, const slice &from, const float *scales, int first, const int *non_finite,
                      sum_t scale, row_state &rows, sum_t (&o)[1][VALUES / 8][4]) {
    sum_t s[1][2][4] = {};
    multiply_keys<staged_t, DEPTH>(s, q, from.k);
    if constexpr (K_SCALES == 2)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[0][j][e] *= scales[score_column(j) + e % 2];
    score_tile(a, rows.own, first, IS_WHOLE, scale, s[0]);
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
    typename warp_tiles<weight_t>::weights<1, 2, PARTS> weights;
    weights.set(s, nullptr);
    multiply_values<weight_t, VALUES, PARTS>(o, weights, from.v);
}

/* ---- Storing ---- */

DEVICE void keep_sums(partial_sums &to, int first, row_state &rows, const sum_t (&o)[VALUES / 8][4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + lane() / 4 + 8 * h;
        const sum_t sum = row_sum(rows.sum[h]);
        if (lane() % 4 == 0)
            to.maximum[row] = rows.maximum[h], to.sum[row] = sum;
        keep_results<v_t, VALUES>(to.o[row], o, h);
    }
}

/* Addresses partial sum i of a head, counted by share, then by CTA of the cluster. */
struct partial_reader {
    u32 sums; /* address of the head's first share */
    DEVICE u32 at(int i, const void *member, const partial_sums *own) const {
        const u32 inside =
            sums + (u32)(i % SHARES * HEADS * sizeof(partial_sums)) + (u32)((const char *)member - (const char *)own);
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
    constexpr int LANES_MOST = 2; /* rescaling factors per lane, for up to 64 partial sums */
    const partial_sums *own = sums + head;
    const partial_reader reader{shared_address(own)};
    const int parts = SHARES * (IS_CLUSTER ? (int)a.splits : 1), column = chunk * COLUMNS + 2 * lane();
    const row_place to = row_of(a, at.key_head + head, at.first + row);
    sum_t weights[LANES_MOST], maximum = unseen(), sum = 0;
#pragma unroll
    for (int i = 0; i < LANES_MOST; i++) {
        const int part = lane() + 32 * i;
        weights[i] = part < parts ? reader.load(reader.at(part, &own->maximum[row], own)) : unseen();
        maximum = fmax(maximum, weights[i]);
    }
    maximum = warp_max(maximum);
#pragma unroll
    for (int i = 0; i < LANES_MOST; i++) {
        const int part = lane() + 32 * i;
        weights[i] = power(weights[i] - (maximum == unseen() ? (sum_t)0 : maximum));
        sum += part < parts ? weights[i] * reader.load(reader.at(part, &own->sum[row], own)) : (sum_t)0;
    }
    sum = warp_sum(sum);
    run<float, 2> o{};
#pragma unroll 8
    for (int i = 0; i < parts; i++) {
        const sum_t weight = __shfl_sync(0xffffffffu, i < 32 ? weights[0] : weights[1], i % 32);
        if (column >= VALUES)
            continue;
        const u32 from = reader.at(i, &own->o[row][column], own);
        o.at[0] += weight * reader.load(from), o.at[1] += weight * reader.load(from + 4);
    }
    const i64 line = at.split * a.lines + (at.batch * a.heads + to.head) * a.queries + to.query;
    if constexpr (IS_SPLIT) {
        if (lane() == 0 && chunk == 0)
            a.split_most[line] = maximum, a.split_sum[line] = sum;
        store_two<VALUES_ARE_EVEN>(a.split_o + line * a.value_depth, 1, column, (int)a.value_depth, o.at[0], o.at[1]);
    } else {
        sum_t factor = end_row(a, at.batch, to.head, to.query, used, maximum, sum, lane() == 0 && chunk == 0);
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
    segment own;
    own.used = lengths_of(a, at.batch);
    own.keys = seen_by_any(a, own.used, 0, (int)a.queries);
    own.common = seen_by_each(a, own.used, 0, (int)a.queries);
    const int begin = own.keys.first / KEYS;
    const int end = own.keys.first < own.keys.last ? (own.keys.last + KEYS - 1) / KEYS : begin;
    own.from = min(begin + at.split * (int)a.split_slices, end);
    own.until = min(own.from + (int)a.split_slices, end);
    return own;
}

/* A group's position in its CTA, and its ring of stages. */
template <class P> struct group_ring {
    const P &a;
    memory &shared;
    const segment &own;
    i64 batch, key_head;
    int group;
    bool leads; /* the warp that issues loads for its group if one warp does */
    key_loader load_keys;
    value_loader load_values;

    DEVICE group_ring(const P &a, memory &shared, const segment &own, const position &at, int group, bool leads)
        : a(a), shared(shared), own(own), batch(at.batch), key_head(at.key_head + group % HEADS), group(group),
          leads(leads),
          load_keys(a.k + (K_PAGE ? 0 : batch * a.k_batch) + key_head * a.k_head, a.k_row, a.k_batch, (int)a.depth),
          load_values(a.v + (V_PAGE ? 0 : batch * a.v_batch) + key_head * a.v_head, a.v_row, a.v_batch,
                      (int)a.value_depth) {}

    /* Loads slice i, whose pages are `pages`, into a stage. */
    DEVICE void load(int i, int stage, int pages) const {
        slice &to = shared.slices[group][stage];
        if (i < own.until) {
            if constexpr (HAS_ROW_SCALES)
                if (leads)
                    load_scales(a, shared.scales[group][stage], own.keys, batch, key_head, i * KEYS, pages);
            if constexpr (!HAS_BOXES) {
                load_keys.load(to.k, own.keys, i * KEYS, pages, 0);
                load_values.load(to.v, own.keys, i * KEYS, pages, KEYS);
            } else if (leads) {
                load_boxes(a, (int)batch, (int)key_head, to, &shared.arrived[group][stage], i * KEYS, pages);
            }
        }
        commit_tiles();
    }
    /* Waits until the slice's values are clean, its scales have arrived for the whole group, and the previous stage is
       free. */
    DEVICE void await(int i, int stage, u32 phase, bool is_whole) const {
        if constexpr (HAS_BOXES)
            wait(shared_address(&shared.arrived[group][stage]), phase);
        if constexpr (!HAS_BOXES || HAS_ROW_SCALES)
            await_copies<STAGES - 2>();
        if (!is_whole)
            clear_non_finite<value_rows, GROUP>(shared.slices[group][stage].v, shared.non_finite[group][stage],
                                                i * KEYS);
        if constexpr (HAS_BOXES)
            publish_to_async_proxy(); /* order reads and clears before the next TMA write */
        sync_group(group);
    }
};

/* The group's slices of the segment, every SHARES-th. next_pages: pages of the slice that is loaded next. */
template <class P, class Q>
DEVICE void multiply_slices(const group_ring<P> &ring, const slice_pages<P> &pages, int next_pages, const Q &q,
                            row_state &rows, sum_t (&o)[1][VALUES / 8][4]) {
    const P &a = ring.a;
    const sum_t scale = in_units(score_scale_of(a, ring.batch, ring.key_head * a.key_share));
    int stage = 0, before = STAGES - 1;
    u32 phase = 0;
#pragma unroll 1
    for (int i = ring.own.from + ring.group / HEADS; i < ring.own.until; i += SHARES) {
        const slice &now = ring.shared.slices[ring.group][stage];
        const float *scales = ring.shared.scales[ring.group][stage];
        const int *non_finite = ring.shared.non_finite[ring.group][stage];
        const bool is_whole = !MAY_HIDE && ring.own.common.covers(i * KEYS, (i + 1) * KEYS);
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
    if constexpr (HAS_BOXES)
        init_barriers(shared);
    begin_overlapped();
    const segment own = segment_of(a, at);
    const group_ring<P> ring(a, shared, own, at, group, warp % ROW_WARPS == 0);
    const slice_pages<P> pages{a, at.batch, own.keys};
    const int first = own.from + group / HEADS;
    int ahead[STAGES];
#pragma unroll
    for (int i = 0; i < STAGES; i++)
        ahead[i] = pages.read((first + i * SHARES) * KEYS);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        ring.load(first + i * SHARES, i, ahead[i]);
    for (int h = 0; h < HEADS && own.until > own.from; h++)
        load_queries(a, at, at.key_head + h, own.used, shared.q[h]);
    commit_tiles();
    row_state rows;
    clear_rows(a, at, ring.key_head, own.used, at.first + first_row, rows);
    for (int i = threadIdx.x; i < KEY_GROUPS * STAGES * KEYS; i += THREADS)
        (&shared.non_finite[0][0][0])[i] = -1;
    await_copies<0>();
    __syncthreads();
    tiles::rows<DEPTH, 1, IS_HELD> q;
    q.point(shared.q[group % HEADS] + first_row * (DEPTH + PAD));
    q.load();
    sum_t o[1][VALUES / 8][4] = {};
    multiply_slices(ring, pages, ahead[STAGES - 1], q, rows, o);
    __syncthreads();
    keep_sums(shared.sums[group], first_row, rows, o[0]);
    sync_sums();
    store_rows(a, at, own.used, shared.sums);
    if constexpr (IS_CLUSTER)
        cluster_sync(); /* peers have finished reading this CTA's shared memory */
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, CTAS) attention_decode(const __grid_constant__ arguments a) {
    extern __shared__ __align__(1024) u8 shared[];
    attend(a, *(memory *)shared);
}
