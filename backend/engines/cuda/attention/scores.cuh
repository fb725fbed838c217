/* attention: code shared by the forward and the backward kernels: visibility, scores with all their terms, dropout, and
   loading of tiles into shared memory. Functions are templates on the arguments, so that fields that were not emitted
   are not looked up. */

#include "attention/alibi.cuh"
#include "attention/block_mask.cuh"
#include "attention/dropout.cuh"
#include "attention/lengths.cuh"

using tiles = warp_tiles<staged_t>;
constexpr int PAD = tiles::PAD, THREADS = WARPS * 32;

/* ---- Visibility ---- */

/* first .. last - 1 */
struct span {
    int first, last;
    DEVICE bool has(int i) const { return (u32)(i - first) < (u32)(last - first); }
    DEVICE bool overlaps(int from, int until) const { return first < until && last > from && first < last; }
    DEVICE bool covers(int from, int until) const { return first <= from && last >= until; }
};

/* Queries and keys in use of a batch entry, and the offset of the diagonal. */
struct lengths {
    int queries, keys;
    i64 shift;
};

template <class P> DEVICE lengths lengths_of(const P &a, i64 batch) {
    const int queries = queries_in_use(a, batch), keys = keys_in_use(a, batch);
    return lengths{queries, keys, IS_BOTTOM_RIGHT ? keys - queries : 0};
}

DEVICE span span_of(i64 first, i64 last, int all) {
    const int from = (int)min(max(first, 0ll), (i64)all);
    return span{from, (int)max(min(last, (i64)all), (i64)from)};
}

template <class P> DEVICE span visible_keys(const P &a, const lengths &used, int query) {
    if (query >= used.queries)
        return span{0, 0};
    return span_of(query + used.shift - a.left + 1, query + used.shift + a.right + 1, used.keys);
}
template <class P> DEVICE span visible_queries(const P &a, const lengths &used, int key) {
    if (key >= used.keys)
        return span{0, 0};
    return span_of(key - used.shift - a.right, key - used.shift + a.left, used.queries);
}

/* The span of the other side that is visible from a resident query or, with KV_RESIDENT, from a resident key. Both ends
   grow with the index. */
template <class P> DEVICE span visible_to(const P &a, const lengths &used, int resident) {
    if constexpr (KV_RESIDENT)
        return visible_queries(a, used, resident);
    else
        return visible_keys(a, used, resident);
}
DEVICE int resident_in_use(const lengths &used) { return KV_RESIDENT ? used.keys : used.queries; }

/* The span that any, and that each, of first .. last - 1 sees. */
template <class P> DEVICE span visible_to_any(const P &a, const lengths &used, int first, int last) {
    last = min(last, resident_in_use(used));
    return first < last ? span{visible_to(a, used, first).first, visible_to(a, used, last - 1).last} : span{0, 0};
}
template <class P> DEVICE span visible_to_each(const P &a, const lengths &used, int first, int last) {
    return last <= resident_in_use(used) ? span{visible_to(a, used, last - 1).first, visible_to(a, used, first).last}
                                         : span{0, 0};
}

/* ---- Scores: in natural units, or times log2(e) if that saves an operation and cannot overflow ---- */

/* A bias or a modifier may hide a score by -inf, in addition to the bounds. */
constexpr bool MAY_HIDE = BIAS != 0 || HAS_MODIFIER;
constexpr bool IS_LOG2 = sizeof(sum_t) == 4 && !MAY_HIDE;
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

DEVICE float low_of(float) { return __int_as_float(0xff800000); }
DEVICE double low_of(double) { return (double)low_of(0.0f); }
/* Returns the score of a hidden key. */
DEVICE sum_t hidden_score() { return low_of((sum_t)0); }
DEVICE sum_t not_a_number() { return (sum_t)__int_as_float(0x7fffffff); }

DEVICE sum_t to_score_units(sum_t natural) { return IS_LOG2 ? natural * (sum_t)LOG2_E : natural; }
DEVICE sum_t to_natural(sum_t score) { return IS_LOG2 ? score * (sum_t)LN_2 : score; }
/* Returns e^x, or 2^x, for a difference of scores x. */
DEVICE float power(float x) { return exp2_approx(IS_LOG2 ? x : x * LOG2_E); }
DEVICE double power(double x) { return ::exp(x); }

template <class P> DEVICE sum_t scale_of(const P &a) {
    if constexpr (HAS_SCALE)
        return as<sum_t>::of(*a.scale);
    else
        return (sum_t)__longlong_as_double(a.scale);
}

/* A row of scores, as seen by the thread that holds it: a query over keys, or a key over queries. */
struct resident_row {
    i64 batch, head;
    int index;
    span visible;
    sum_t slope;
    i64 bias; /* offset of the bias of its first score */
    u64 line; /* for a query: index of its first Philox block; for a key: that of query 0 */
    i64 mask; /* offset of the dropout mask of its first score */
};

template <class P>
DEVICE resident_row resident_row_of(const P &a, const lengths &used, i64 batch, i64 head, int index) {
    resident_row resident{batch, head, index, visible_to(a, used, index), 0, 0, 0, 0};
    if constexpr (HAS_ALIBI)
        resident.slope = to_score_units(alibi_slope<sum_t>((int)head, (int)a.heads));
    if constexpr (BIAS != 0)
        resident.bias = batch * a.bias_batch + head * a.bias_head + index * (KV_RESIDENT ? a.bias_key : a.bias_query);
    if constexpr (HAS_DROPOUT_MASK)
        resident.mask = batch * a.dropout_mask_batch + head * a.dropout_mask_head +
                        index * (KV_RESIDENT ? a.dropout_mask_key : a.dropout_mask_query);
    if constexpr (DRAWS_DROPOUT)
        resident.line = (u64)((batch * a.heads + head) * a.queries + (KV_RESIDENT ? 0 : index)) * ((a.keys + 3) / 4);
    return resident;
}

DEVICE int query_of(const resident_row &resident, int other) { return KV_RESIDENT ? other : resident.index; }
DEVICE int key_of(const resident_row &resident, int other) { return KV_RESIDENT ? resident.index : other; }

/* Returns the score of a scaled product. */
template <class P> DEVICE sum_t score_of(const P &a, const resident_row &resident, int other, sum_t score) {
    if constexpr (HAS_MODIFIER) {
        score = modified(a, resident.batch, resident.head, query_of(resident, other), key_of(resident, other), score);
        if (score == hidden_score())
            return score;
    }
    if constexpr (BIAS != 0) {
        const i64 offset = resident.bias + other * (KV_RESIDENT ? a.bias_query : a.bias_key);
        const sum_t number = as<sum_t>::of(load_run<bias_t, 1>(a.bias + offset).at[0]);
        if (BIAS == 1 ? number == hidden_score() : number == 0)
            return hidden_score();
        if constexpr (BIAS == 1)
            score += number;
    }
    if constexpr (HAS_ALIBI)
        score += resident.slope * (sum_t)(KV_RESIDENT ? resident.index - other : other - resident.index);
    return score;
}

/* Transforms the products of 16 rows with columns `first` .. into scores. is_whole: every row sees every column. */
template <int N, class P>
DEVICE void score_tile(const P &a, const resident_row (&resident)[2], int first, bool is_whole, sum_t scale,
                       sum_t (&s)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const resident_row &row = resident[e / 2];
            const int other = first + score_column(j) + e % 2;
            const bool is_visible = is_whole || row.visible.has(other);
            sum_t score = s[j][e] * scale;
            if constexpr (MAY_HIDE || HAS_ALIBI)
                if (is_visible)
                    score = score_of(a, row, other, score);
            s[j][e] = is_visible ? score : hidden_score();
        }
}

/* ---- Dropout: a Philox block serves four adjacent keys of a query; or a mask is multiplied ---- */

/* Returns the mask of a visible score. */
template <class P> DEVICE sum_t mask_of(const P &a, const resident_row &resident, int other) {
    const i64 offset = resident.mask + other * (KV_RESIDENT ? a.dropout_mask_query : a.dropout_mask_key);
    return as<sum_t>::of(load_run<dropout_mask_t, 1>(a.dropout_mask + offset).at[0]);
}

/* Bit e: dropout keeps s[j][e], for the block of 8 columns that starts at `first`. Each lane generates one Philox
   block, and exchanges its bits with the lanes that need them. */
DEVICE u32 keep_bits_of(const rng_state &c, const resident_row (&resident)[2], int first, u64 blocks_per_query) {
    const int t = lane() % 4, w = lane() / 4 % 4;
    if constexpr (!KV_RESIDENT) {
        /* two lanes share the words of both their rows: the even lane generates the upper row */
        const u32 drawn = keep_bits(c, (t % 2 ? resident[1].line : resident[0].line) + (u64)(first / 4 + t / 2));
        const u32 other = __shfl_xor_sync(0xffffffffu, drawn, 1);
        const u32 upper = t % 2 ? other : drawn, lower = t % 2 ? drawn : other;
        return (upper >> t % 2 * 2 & 3) | (lower >> t % 2 * 2 & 3) << 2;
    } else {
        /* four lanes share the words of their four elements: the lane of key w (mod 4) generates element w */
        const u32 drawn = keep_bits(c, resident[0].line + (u64)(first + 2 * t + w % 2) * blocks_per_query +
                                           (u64)((w / 2 ? resident[1].index : resident[0].index) / 4));
        u32 bits = 0;
#pragma unroll
        for (int e = 0; e < 4; e++)
            bits |= (__shfl_sync(0xffffffffu, drawn, (lane() & ~12) | e << 2) >> w & 1) << e;
        return bits;
    }
}

/* ---- Loading tiles ---- */

DEVICE bool is_finite(f16 x) { return (x.bits & 0x7c00) != 0x7c00; }
DEVICE bool is_finite(bf16 x) { return (x.bits & 0x7f80) != 0x7f80; }
DEVICE bool is_finite(e4m3 x) { return (x.bits & 0x7f) != 0x7f; }
DEVICE bool is_finite(e5m2 x) { return (x.bits & 0x7c) != 0x7c; }
DEVICE bool is_finite(i8) { return true; }
DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
DEVICE bool is_finite(double x) { return ((u32)__double2hiint(x) & 0x7ff00000u) != 0x7ff00000u; }

/* Stores a word to shared memory; several threads may store the same value at once. */
DEVICE void store_same(int *to, int value) { ptx::st_relaxed_shared(ptx::shared_address(to), value); }

/* Rows without scales. */
struct no_scales {};

/* Loads ROWS rows of WIDTH elements, RUN adjacent elements at a time, by a group of GROUP threads, whole warps. */
template <int ROWS, int WIDTH, int RUN, class T, int GROUP = THREADS> struct tile_loader {
    static constexpr int PITCH = WIDTH + PAD, ACROSS = WIDTH / RUN, RUNS = ROWS * ACROSS,
                         EACH = (RUNS + GROUP - 1) / GROUP;
    static constexpr bool IS_ASYNC = HAS_ASYNC && same<T, staged_t>::value && RUN * sizeof(T) >= 4;
    static constexpr int BATCH = EACH < 4 ? EACH : 4; /* loads in flight */

    static DEVICE int rank() { return GROUP == THREADS ? (int)threadIdx.x : (int)threadIdx.x % GROUP; }

    /* row_address(row) returns the address of a row, or NULL for a row of zeros; `any` is a valid address to read
       instead. scale(row, column) multiplies an element; the RUN elements of an access share a scale unless
       IS_BY_ELEMENT. AT_ONCE: loads in flight. */
    template <bool IS_BY_ELEMENT = false, int AT_ONCE = BATCH, class F, class S = no_scales>
    static DEVICE void load(staged_t *tile, const T *any, int columns, i64 step, F row_address, S scale = {}) {
        if constexpr (IS_ASYNC && same<S, no_scales>::value) {
#pragma unroll 4
            for (int u = 0; u < EACH; u++) {
                const int i = rank() + u * GROUP, row = i / ACROSS, column = i % ACROSS * RUN;
                if (RUNS % GROUP != 0 && i >= RUNS)
                    break;
                const T *from = row_address(row);
                const bool take = from && column < columns;
                copy_async<RUN *(int)sizeof(T)>(tile + row * PITCH + column,
                                                take ? from + column * (RUN == 1 ? step : 1) : any, take);
            }
        } else {
#pragma unroll 1
            for (int u = 0; u < EACH; u += AT_ONCE) {
                run<T, RUN> loaded[AT_ONCE];
#pragma unroll
                for (int b = 0; b < AT_ONCE; b++) {
                    const int i = rank() + (u + b) * GROUP, row = i / ACROSS, column = i % ACROSS * RUN;
                    loaded[b] = run<T, RUN>{};
                    if (i >= RUNS)
                        continue;
                    const T *from = row_address(row);
                    if (from && column < columns)
                        loaded[b] = load_run<T, RUN>(from + column * (RUN == 1 ? step : 1));
                }
#pragma unroll
                for (int b = 0; b < AT_ONCE; b++) {
                    const int i = rank() + (u + b) * GROUP, row = i / ACROSS, column = i % ACROSS * RUN;
                    run<staged_t, RUN> converted;
                    sum_t factor = 1;
                    const bool is_there =
                        !same<S, no_scales>::value && i < RUNS && column < columns && row_address(row);
                    if constexpr (!same<S, no_scales>::value && !IS_BY_ELEMENT)
                        if (is_there)
                            factor = scale(row, column);
#pragma unroll
                    for (int e = 0; e < RUN; e++) {
                        if constexpr (IS_BY_ELEMENT)
                            if (is_there && column + e < columns)
                                factor = scale(row, column + e);
                        converted.at[e] = convert<S>(loaded[b].at[e], factor);
                    }
                    if (i < RUNS)
                        store_run<staged_t, RUN>(tile + row * PITCH + column, converted);
                }
            }
        }
    }
    template <class S> static DEVICE staged_t convert(T x, sum_t factor) {
        if constexpr (!same<S, no_scales>::value)
            return from<staged_t>::number(as<sum_t>::of(x) * factor);
        else if constexpr (same<T, staged_t>::value)
            return x;
        else
            return from<staged_t>::number(as<sum_t>::of(x));
    }

    /* An MMA multiplies every element, including values of hidden keys by a P of 0, and 0 x NaN is NaN. So if a row may
       be hidden from some query, each thread clears elements that are not finite among those it loaded and flags the
       row; queries that see the row then set their results to NaN. To be called before the barrier that publishes the
       tile. */
    static DEVICE bool clear_non_finite_rows(staged_t *tile, int *non_finite, int mark) {
        bool any_non_finite = false;
#pragma unroll 2
        for (int u = 0; u < EACH; u++) {
            const int i = rank() + u * GROUP, row = i / ACROSS, column = i % ACROSS * RUN;
            if (i >= RUNS)
                break;
            run<staged_t, RUN> some = load_run<staged_t, RUN>(tile + row * PITCH + column);
            bool is_clean = true;
#pragma unroll
            for (int e = 0; e < RUN; e++)
                is_clean = is_clean && is_finite(some.at[e]);
            if (is_clean)
                continue;
#pragma unroll
            for (int e = 0; e < RUN; e++)
                if (!is_finite(some.at[e]))
                    some.at[e] = staged_t{};
            store_run<staged_t, RUN>(tile + row * PITCH + column, some);
            store_same(non_finite + row, mark);
            any_non_finite = true;
        }
        return any_non_finite;
    }
};

DEVICE void commit_tiles() {
    if constexpr (HAS_ASYNC)
        commit_copies();
}
DEVICE void await_tiles() {
    if constexpr (HAS_ASYNC)
        await_copies<0>();
}

/* Products of rows that are too deep for shared memory: load(column) loads slices of WIDTH columns of both sides. The
   whole block executes this; `takes` is true if this warp needs the sums. */
template <int WIDTH, int M, int N, class R, class F>
DEVICE void add_slices(sum_t (&s)[M][N][4], const R &resident, const staged_t *other, i64 depth, bool takes, F load) {
#pragma unroll 1
    for (int column = 0; column < depth; column += WIDTH) {
        __syncthreads();
        load(column);
        commit_tiles();
        await_tiles();
        __syncthreads();
        if (takes)
            tiles::scores(s, resident, other);
    }
}

/* The value to add to the results of a row: NaN if it sees a row with elements that are not finite, otherwise 0. */
template <int N>
DEVICE void find_non_finite(const int *non_finite, int mark, const sum_t (&s)[N][4], sum_t (&nan_or_zero)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool is_non_finite = false;
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                is_non_finite =
                    is_non_finite || (non_finite[score_column(j) + e] == mark && s[j][2 * h + e] != hidden_score());
        const u32 quad = 0xfu << lane() / 4 * 4;
        nan_or_zero[h] = __ballot_sync(0xffffffffu, is_non_finite) & quad ? not_a_number() : (sum_t)0;
    }
}

/* Sums and maxima over the four lanes that share a row. */
DEVICE sum_t quad_sum(sum_t x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
DEVICE sum_t quad_max(sum_t x) {
    x = fmax(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmax(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* ---- Results ---- */

/* Stores two adjacent elements of a row; IS_PAIR: they are contiguous in memory, and aligned as a pair. */
template <bool IS_PAIR, class T> DEVICE void store_two(T *row, i64 step, int column, int columns, sum_t x, sum_t y) {
    if (IS_PAIR && column + 1 < columns) {
        store_run<T, 2>(row + column, run<T, 2>{{from<T>::number(x), from<T>::number(y)}});
        return;
    }
    if (column < columns)
        row[column * step] = from<T>::number(x);
    if (column + 1 < columns)
        row[(column + 1) * step] = from<T>::number(y);
}
