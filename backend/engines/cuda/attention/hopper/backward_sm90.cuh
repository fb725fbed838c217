/* backward_sm90: dQ, dK and dV of attention                           bf16 and f16, float sums, wgmma; sm_90a
   Formula   P = 2^(scale2 S - lse2), S = Q K^T, scale2 = scale log2(e); dP = dO V^T; dS = P (dP - delta)
             dV = P^T dO, dK = scale dS^T Q, dQ = scale dS K, over the queries of all heads that share the key
   Tile      a block owns BLOCK_K keys of one key head and steps through blocks of BLOCK_Q queries, of each query head
             of its group
   Roles     warpgroup 0: thread 0 loads (producer); all of it makes dQ of a step, in two parts of 64 x 64, and adds
             them to sums in L2
             warpgroups 1 and 2 (consumers): 64 keys each. S^T and dP^T lie in accumulators as P^T and dS^T are wanted
             in registers: as the A operand of dV and dK, which stay in registers to the end. dS^T is stored once, for
             dQ. The two never wait for each other
   Pipeline  producer  |Q, dO 0|Q, dO 1|Q, dO 2|...    STAGES of q_full (with statistics), q_empty, do_full, do_empty
             consumer          |S 0|P|dP 0|dS|dV, dK 0|S 1|...
             dQ                              |dQ 0     |...    two dS: ds_full[s] is stored, ds_empty[s] is multiplied
   Memory    K, V (dK and dV leave through them), STAGES of Q, dO and statistics, two dS, staging of dQ, barriers
   Order     sums of dQ depend on the order in which blocks add: runs differ by rounding. Blocks of one head run side by
             side, those that have most steps first, heads_per_set heads at a time, whose Q, dO and dQ fit L2
   Masks     a step masks where its tile lies across a bound or the end of the keys; steps of which no key sees a query
             are not made
   Padding   rows past the lengths in use are cleared in shared memory: 0 x NaN would be NaN. Those past the tensors
             are 0 (TMA)
   Limits    both depths are HEAD after padding by TMA; rows and strides of whole 16 bytes
   Params    in_t HEAD BLOCK_Q BLOCK_K STAGES CONSUMER_REGISTERS PRODUCER_REGISTERS SHARED_BYTES, those of the scores;
             printed products: multiply_scores(_first), multiply_keys, multiply_queries(_first)
   Measured  tools/bench/results/h200-attention.csv. The adds into L2 take 13 to 30 %: without, 715 TFLOP/s at 8192
   Tried     adds from registers (red.v4): within noise
             P kept in float: 224 registers, too many beside warpgroup 0
             dQ as one product of 128 columns: 96 registers in warpgroup 0, too many
             two stages: 4 to 14 % slower
             each block starting at another block of queries, so that none add to one tile at once: within noise
             a fixed order of adds: 3 to 38 % slower */

#include "attention/hopper/backward_scores_sm90.cuh"

constexpr int THREADS = 384, HALF = BLOCK_K / 2;         /* HALF: keys of a warpgroup */
constexpr int SLABS = HEAD / 64, Q_SLABS = BLOCK_Q / 64; /* of 64 columns: rows of 128 bytes, swizzled */
constexpr u32 KV_SLAB = BLOCK_K * 128, Q_SLAB = BLOCK_Q * 128, DS_SLAB = BLOCK_K * 128;
constexpr u32 KV_BYTES = SLABS * KV_SLAB, Q_BYTES = SLABS * Q_SLAB, DS_BYTES = Q_SLABS * DS_SLAB;
constexpr u32 STATISTICS_BYTES = 2 * BLOCK_Q * 4;
constexpr int DS_STAGES = 2, PARTS = SLABS * Q_SLABS; /* of dQ: 64 queries x 64 columns */
constexpr u32 PART_BYTES = 64 * 64 * 4, PARTS_STAGED = HEAD == 64 ? 1 : PARTS;

constexpr u32 K_AT = 0, V_AT = K_AT + KV_BYTES, Q_AT = V_AT + KV_BYTES, DO_AT = Q_AT + STAGES * Q_BYTES,
              DS_AT = DO_AT + STAGES * Q_BYTES;
constexpr u32 DQ_AT = DS_AT + DS_STAGES * DS_BYTES, STATISTICS_AT = DQ_AT + PARTS_STAGED * PART_BYTES;
constexpr u32 BARRIERS_AT = STATISTICS_AT + STAGES * STATISTICS_BYTES, BARRIERS = 2 + 4 * STAGES + 2 * DS_STAGES;

/* ---- What this kernel demands ---- */

static_assert(BLOCK_K == 128 && HEAD % 64 == 0 && BLOCK_Q % 64 == 0 && PARTS == 2,
              "warpgroup 0 has registers for two parts, in turn");
static_assert(BARRIERS_AT + BARRIERS * 8 == SHARED_BYTES && SHARED_BYTES <= 232448,
              "the host asks for as much; 227 KB is all a block can have");
static_assert(2 * CONSUMER_REGISTERS + PRODUCER_REGISTERS <= 3 * 168, "growing beyond what the launch gave would hang");

extern __shared__ __align__(1024) unsigned char s_memory[];

/* The third and the last of another number for each consumer warpgroup. */
enum named_barrier : u32 { ALL_THREADS, PART_STAGED, GRADIENT_STAGED, QUERIES_CLEARED = 4, KEYS_CLEARED };

/* Their addresses. */
struct barriers {
    u32 k, v, q_full, q_empty, do_full, do_empty, ds_full, ds_empty;
    DEVICE barriers(u32 base)
        : k(base + BARRIERS_AT), v(k + 8), q_full(v + 8), q_empty(q_full + 8 * STAGES), do_full(q_empty + 8 * STAGES),
          do_empty(do_full + 8 * STAGES), ds_full(do_empty + 8 * STAGES), ds_empty(ds_full + 8 * DS_STAGES) {}
};

template <int N> DEVICE void settle_all(float (&r)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) settle(r[i]);
}
template <int N> DEVICE void settle_all(u32 (&r)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) settle(r[i]);
}

/* An operand in swizzled rows of 128 bytes: the low word of its descriptor, to which multiples of 16 bytes may be
   added. MN-major: slabs of 64 columns, so many bytes apart. */
DEVICE u32 k_major(u32 address) { return address >> 4; }
DEVICE constexpr u32 mn_major(u32 slab_bytes) { return slab_bytes >> 4 << 16; }

/* ---- Which keys, and which queries ---- */

struct work {
    band seen;
    i32 first_key, key_head, batch;
    i32 first, last; /* blocks of queries, of each head */
    i32 steps;       /* over all heads */
};

DEVICE work find_work(const arguments& p) {
    const u32 set_blocks = p.kv_blocks * p.heads_per_set, set = blockIdx.x / set_blocks,
              within = blockIdx.x - set * set_blocks;
    const u32 heads_left = gridDim.x / (u32)p.kv_blocks - set * (u32)p.heads_per_set;
    const u32 heads = min(heads_left, (u32)p.heads_per_set),
              block = within / heads; /* of keys: the first ones have most steps */
    const u32 outer = set * (u32)p.heads_per_set + within - block * heads, batch = outer / (u32)p.key_heads;
    work w{band(p, (i32)batch), (i32)block * BLOCK_K, (i32)(outer - batch * (u32)p.key_heads), (i32)batch, 0, 0, 0};
    const i32 last_key = min(w.first_key + BLOCK_K, w.seen.keys) - 1;
    if (last_key < w.first_key) return w;
    w.first = w.seen.first_query(w.first_key) / BLOCK_Q;
    w.last = max((w.seen.last_query(last_key) + BLOCK_Q - 1) / BLOCK_Q, w.first);
    w.steps = (w.last - w.first) * (i32)p.group;
    return w;
}

/* A step's block of queries. */
struct cursor {
    i32 block, head;
    DEVICE explicit cursor(const arguments& p, const work& w) : block(w.first), head(w.key_head * (i32)p.group) {}
    DEVICE void advance(const work& w) {
        if (++block < w.last) return;
        block = w.first;
        ++head;
    }
};

/* ---- Warpgroup 0: loads, and dQ ---- */

DEVICE void load_keys(const tensor_map& map, u32 dst, u32 full, const work& w) {
    arrive_expecting(full, KV_BYTES);
    #pragma unroll
    for (int i = 0; i < SLABS; ++i) load_box(dst + i * KV_SLAB, map, full, i * 64, w.first_key, w.key_head, w.batch);
}

DEVICE void load_queries(const tensor_map& map, u32 dst, u32 full, const work& w, const cursor& at) {
    #pragma unroll
    for (int i = 0; i < SLABS; ++i) load_box(dst + i * Q_SLAB, map, full, i * 64, at.block * BLOCK_Q, at.head, w.batch);
}

DEVICE i64 q_tile(const arguments& p, const work& w, const cursor& at) {
    return (i64)(w.batch * (i32)p.heads + at.head) * p.q_blocks + at.block;
}

/* Loads step i, once the consumers have left what its stage held. */
DEVICE void load_step(const arguments& p, const work& w, u32 base, const barriers& b, const cursor& at, i32 i,
                      i32 stage) {
    const u32 q_full = b.q_full + 8 * stage, do_full = b.do_full + 8 * stage;
    if (i >= STAGES) {
        wait(b.q_empty + 8 * stage, i / STAGES & 1 ^ 1);
        wait(b.do_empty + 8 * stage, i / STAGES & 1 ^ 1);
    }
    arrive_expecting(q_full, Q_BYTES + STATISTICS_BYTES);
    load_queries(p.q_map, base + Q_AT + stage * Q_BYTES, q_full, w, at);
    load_bytes(base + STATISTICS_AT + stage * STATISTICS_BYTES, p.statistics + q_tile(p, w, at) * 2 * BLOCK_Q,
               STATISTICS_BYTES, q_full);
    arrive_expecting(do_full, Q_BYTES);
    load_queries(p.d_o_map, base + DO_AT + stage * Q_BYTES, do_full, w, at);
}

DEVICE void load_first_steps(const arguments& p, const work& w, u32 base, const barriers& b) {
    cursor at(p, w);
    load_keys(p.k_map, base + K_AT, b.k, w);
    load_step(p, w, base, b, at, 0, 0);
    load_keys(p.v_map, base + V_AT, b.v, w);
    #pragma unroll 1
    for (i32 i = 1; i < STAGES && i < w.steps; ++i) {
        at.advance(w);
        load_step(p, w, base, b, at, i, i);
    }
}

/* The step behind those that are loaded, into the stage that step i - 1 left. */
DEVICE void load_next_step(const arguments& p, const work& w, u32 base, const barriers& b, cursor at, i32 i,
                           i32 stage) {
    const i32 next = i + STAGES - 1;
    if (i == 0 || next >= w.steps) return;
    #pragma unroll 1
    for (int k = 0; k < STAGES - 1; ++k) at.advance(w);
    load_step(p, w, base, b, at, next, stage > 0 ? stage - 1 : STAGES - 1);
}

/* 64 queries x 64 columns of dS K. */
DEVICE void multiply_part(float (&dq)[32], u32 base, u32 slot, int part) {
    const u32 ds = k_major(base + DS_AT + slot * DS_BYTES + part / SLABS * DS_SLAB) + mn_major(DS_SLAB);
    const u32 keys = k_major(base + K_AT + part % SLABS * KV_SLAB) + mn_major(KV_SLAB);
    mma_fence();
    multiply_queries_first(dq, ds, keys);
    #pragma unroll
    for (int k = 1; k < BLOCK_K / 16; ++k) multiply_queries(dq, ds + k * 128, keys + k * 128);
    mma_commit();
}

/* In the order of accumulators: 8 columns, thread, 4. */
DEVICE void add_part(const float (&dq)[32], u32 s_part, float* sum) {
    #pragma unroll
    for (int c = 0; c < 8; ++c)
        store_quad(s_part + (c * 128 + threadIdx.x) * 16, dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]);
    publish_to_async_proxy();
    sync_threads(PART_STAGED, 128);
    if (threadIdx.x != 0) return;
    add_bytes(sum, s_part, PART_BYTES);
    commit_stores();
}

DEVICE void make_query_gradients(const arguments& p, u32 base) {
    const work w = find_work(p);
    const barriers b(base);
    cursor at(p, w);
    float dq[32];
    if (threadIdx.x == 0 && w.steps > 0) load_first_steps(p, w, base, b);
    __syncwarp();
    i32 stage = 0; /* of step i */
    for (i32 i = 0; i < w.steps; ++i) {
        const u32 slot = i % DS_STAGES;
        wait(b.ds_full + 8 * slot, i / DS_STAGES & 1);
        if (i == 0) wait(b.k, 0);
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int staged = part % (int)PARTS_STAGED;
            multiply_part(dq, base, slot, part);
            if (part == 0 && threadIdx.x == 0) load_next_step(p, w, base, b, at, i, stage);
            if (staged == 0) { /* the copy engine has read what was staged before */
                if (threadIdx.x == 0) wait_stores_read<0>();
                __syncwarp();
                sync_threads(PART_STAGED, 128);
            }
            mma_wait<0>();
            settle_all(dq);
            if (part == PARTS - 1 && lane_index() == 0) arrive(b.ds_empty + 8 * slot);
            add_part(dq, base + DQ_AT + staged * PART_BYTES,
                     p.dq_sum + (q_tile(p, w, at) * PARTS + part) * (PART_BYTES / 4));
        }
        at.advance(w);
        if (++stage == STAGES) stage = 0;
    }
    if (threadIdx.x == 0) wait_stores_read<0>();
}

/* ---- Warpgroups 1 and 2: P, dS, dK and dV ---- */

DEVICE float low_half(u32 pair) {
    if constexpr (IS_BF16)
        return __uint_as_float(pair << 16);
    else
        return to_float(f16{(u16)pair});
}
DEVICE float high_half(u32 pair) {
    if constexpr (IS_BF16)
        return __uint_as_float(pair & 0xffff0000u);
    else
        return to_float(f16{(u16)(pair >> 16)});
}

DEVICE void multiply_tile(float (&s)[BLOCK_Q / 2], u32 keys, u32 queries) {
    multiply_scores_first(s, keys, queries);
    #pragma unroll
    for (int k = 1; k < HEAD / 16; ++k)
        multiply_scores(s, keys + k / 4 * (KV_SLAB >> 4) + k % 4 * 2, queries + k / 4 * (Q_SLAB >> 4) + k % 4 * 2);
}
DEVICE void add_gradients(float (&sum)[HEAD / 2], const u32 (&factor)[BLOCK_Q / 4], u32 queries) {
    #pragma unroll
    for (int k = 0; k < BLOCK_Q / 16; ++k) multiply_keys(sum, factor + 4 * k, queries + mn_major(Q_SLAB) + k * 128);
}

/* Where a thread's elements lie: 4c + e is key row + 8 (e / 2), query 8c + column + e % 2. */
struct tile_place {
    i32 row, column;
    DEVICE tile_place() : row(16 * (warp_index() & 3) + lane_index() / 4), column(2 * (lane_index() & 3)) {}
};

/* P = 2^(scale2 S - lse2). */
DEVICE void make_weights(float (&s)[BLOCK_Q / 2], u32 s_statistics, float scale2) {
    #pragma unroll
    for (int c = 0; c < BLOCK_Q / 8; ++c) {
        float lse2[2];
        load_pair(lse2, s_statistics + c * 32);
        #pragma unroll
        for (int e = 0; e < 4; ++e) s[4 * c + e] = exp2_approx(s[4 * c + e] * scale2 - lse2[e % 2]);
    }
}

DEVICE bool needs_mask(const work& w, i32 first_key, i32 first_query) {
    return first_key + HALF > w.seen.keys || (HAS_RIGHT && first_key + HALF - 1 + w.seen.first > first_query) ||
           (HAS_LEFT && first_query + BLOCK_Q > first_key + w.seen.last);
}
/* A step in which none of the second consumer's keys is seen: so the first one is, where tiles of queries are half as
   long as those of keys. One that has queries to be cleared is for both. */
DEVICE bool hides_all(const work& w, i32 first_key, i32 first_query) {
    const bool is_whole = !HAS_SEQ_LEN_Q || first_query + BLOCK_Q <= w.seen.queries;
    return HAS_RIGHT && BLOCK_Q <= HALF && is_whole && first_key + w.seen.first >= first_query + BLOCK_Q;
}
/* What is not seen has no weight. */
DEVICE void mask_weights(float (&s)[BLOCK_Q / 2], const work& w, i32 first_key, i32 first_query) {
    const tile_place at;
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        const i32 key = first_key + at.row + e / 2 * 8, query = first_query + at.column + e % 2;
        const i32 first = key < w.seen.keys ? (HAS_RIGHT ? key + w.seen.first - query : -BLOCK_Q) : BLOCK_Q,
                  last = key + w.seen.last - query;
        #pragma unroll
        for (int c = 0; c < BLOCK_Q / 8; ++c)
            if (8 * c < first || (HAS_LEFT && 8 * c >= last)) s[4 * c + e] = 0;
    }
}

/* dS = P (dP - delta), from the rounded weights. */
DEVICE void make_score_gradients(u32 (&ds)[BLOCK_Q / 4], const u32 (&weights)[BLOCK_Q / 4],
                                 const float (&dp)[BLOCK_Q / 2], u32 s_delta) {
    #pragma unroll
    for (int c = 0; c < BLOCK_Q / 8; ++c) {
        float delta[2];
        load_pair(delta, s_delta + c * 32);
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 pair = weights[2 * c + h];
            const float* const d = dp + 4 * c + 2 * h;
            ds[2 * c + h] = rounded_pair<in_t>(low_half(pair) * (d[0] - delta[0]), high_half(pair) * (d[1] - delta[1]));
        }
    }
}

/* This warp's 16 keys, as columns of queries for dQ. */
DEVICE void store_score_gradients(const u32 (&ds)[BLOCK_Q / 4], u32 s_row) {
    #pragma unroll
    for (int c = 0; c < BLOCK_Q / 16; ++c) {
        const u32 four[4] = {ds[4 * c], ds[4 * c + 1], ds[4 * c + 2], ds[4 * c + 3]};
        store_matrices(s_row + c / 4 * DS_SLAB + ((2 * (c & 3) + lane_index() / 16) ^ (lane_index() & 7)) * 16, four);
    }
}

/* Rows from `from` on, of slabs of `rows` rows, by so many threads. */
DEVICE void clear_rows(u32 s_tile, i32 from, i32 rows, u32 slab_bytes, u32 thread, u32 threads) {
    for (i32 i = from * 8 + (i32)thread; i < rows * 8; i += (i32)threads)
        #pragma unroll
        for (int s = 0; s < SLABS; ++s) store_words(s_tile + s * slab_bytes + i * 16, words{});
}
/* Keys past the length in use: products multiply them, if by 0. */
DEVICE void clear_keys(const work& w, u32 base, int half) {
    const i32 used = w.seen.keys - w.first_key - half * HALF;
    if (used >= HALF) return;
    clear_rows(base + K_AT + half * HALF * 128, max(used, 0), HALF, KV_SLAB, threadIdx.x & 127, 128);
    clear_rows(base + V_AT + half * HALF * 128, max(used, 0), HALF, KV_SLAB, threadIdx.x & 127, 128);
    publish_to_async_proxy();
    sync_threads(KEYS_CLEARED + half, 128);
}
/* The same of queries: both consumers come to a step that has some. */
DEVICE void clear_queries(const work& w, u32 base, const barriers& b, i32 first_query, i32 stage, i32 phase) {
    const i32 used = w.seen.queries - first_query;
    if (used >= BLOCK_Q) return;
    wait(b.do_full + 8 * stage, phase);
    clear_rows(base + Q_AT + stage * Q_BYTES, used, BLOCK_Q, Q_SLAB, threadIdx.x - 128, 256);
    clear_rows(base + DO_AT + stage * Q_BYTES, used, BLOCK_Q, Q_SLAB, threadIdx.x - 128, 256);
    publish_to_async_proxy();
    sync_threads(QUERIES_CLEARED, 256);
}

/* Out through the rows of K or V that this warpgroup owns. */
DEVICE void store_gradient(const float (&sum)[HEAD / 2], float scale, u32 s_rows, const tensor_map& map, const work& w,
                           int half) {
    const u32 lane = lane_index(), to = s_rows + (16 * (warp_index() & 3) + lane % 16) * 128;
    #pragma unroll
    for (int c = 0; c < HEAD / 8; c += 2) {
        const float* const x = sum + 4 * c;
        const u32 four[4] = {
            rounded_pair<in_t>(x[0] * scale, x[1] * scale), rounded_pair<in_t>(x[2] * scale, x[3] * scale),
            rounded_pair<in_t>(x[4] * scale, x[5] * scale), rounded_pair<in_t>(x[6] * scale, x[7] * scale)};
        store_matrices(to + c / 8 * KV_SLAB + ((c % 8 + lane / 16) ^ (lane & 7)) * 16, four);
    }
    publish_to_async_proxy();
    if (half == 0)
        sync_threads(GRADIENT_STAGED, 128);
    else
        sync_threads(GRADIENT_STAGED + 1, 128);
    if ((threadIdx.x & 127) != 0) return;
    #pragma unroll
    for (int s = 0; s < SLABS; ++s)
        store_box(map, s_rows + s * KV_SLAB, s * 64, w.first_key + half * HALF, w.key_head, w.batch);
    commit_stores();
}

struct key_gradients {
    float dk[HEAD / 2], dv[HEAD / 2];
};

DEVICE void sum_key_gradients(const arguments& p, const work& w, u32 base, const barriers& b, int half,
                              key_gradients& sum) {
    const i32 first_key = w.first_key + half * HALF;
    const u32 lane = lane_index(), keys = k_major(base + K_AT + half * HALF * 128);
    const u32 ds_row = base + DS_AT + (half * HALF + 16 * (warp_index() & 3) + lane % 16) * 128;
    const float scale2 = scale_of(p) * 1.44269504f;
    float s[BLOCK_Q / 2], dp[BLOCK_Q / 2];
    u32 weights[BLOCK_Q / 4], ds[BLOCK_Q / 4];
    i32 first_query = w.first * BLOCK_Q, stage = 0, phase = 0, i = 0;
    const auto advance = [&] {
        first_query += BLOCK_Q;
        if (first_query == w.last * BLOCK_Q) first_query = w.first * BLOCK_Q;
        if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    wait(b.k, 0);
    wait(b.v, 0);
    if (HAS_SEQ_LEN_KV) clear_keys(w, base, half);
    wait(b.q_full, 0);
    if (half == 1 && w.steps > 1 && hides_all(w, first_key, first_query)) {
        #pragma unroll
        for (int k = 0; k < BLOCK_Q / 4; ++k) ds[k] = 0;
        store_score_gradients(ds, ds_row);
        publish_to_async_proxy();
        __syncwarp();
        wait(b.do_full, 0);
        if (lane == 0) {
            arrive(b.ds_full);
            arrive(b.do_empty);
            arrive(b.q_empty);
        }
        advance();
        i = 1;
        wait(b.q_full + 8 * stage, phase);
    }
    if (HAS_SEQ_LEN_Q) clear_queries(w, base, b, first_query, stage, phase);
    mma_fence();
    multiply_tile(s, keys, k_major(base + Q_AT + stage * Q_BYTES));
    mma_commit();
    for (;; ++i) {
        const u32 slot = i % DS_STAGES, q_empty = b.q_empty + 8 * stage, do_empty = b.do_empty + 8 * stage;
        const u32 queries = k_major(base + stage * Q_BYTES);
        const u32 statistics = base + STATISTICS_AT + stage * STATISTICS_BYTES + (lane & 3) * 8;
        mma_wait<0>();
        settle_all(s);
        make_weights(s, statistics, scale2);
        if (needs_mask(w, first_key, first_query)) mask_weights(s, w, first_key, first_query);
        #pragma unroll
        for (int c = 0; c < BLOCK_Q / 4; ++c) weights[c] = rounded_pair<in_t>(s[2 * c], s[2 * c + 1]);
        wait(b.do_full + 8 * stage, phase);
        mma_fence();
        multiply_tile(dp, keys + ((V_AT - K_AT) >> 4), queries + (DO_AT >> 4));
        mma_commit();
        mma_wait<0>();
        settle_all(dp);
        make_score_gradients(ds, weights, dp, statistics + BLOCK_Q * 4);
        mma_fence();
        add_gradients(sum.dv, weights, queries + (DO_AT >> 4));
        mma_commit();
        wait(b.ds_empty + 8 * slot, i / DS_STAGES & 1 ^ 1);
        store_score_gradients(ds, ds_row + slot * DS_BYTES);
        publish_to_async_proxy();
        __syncwarp();
        if (lane == 0) arrive(b.ds_full + 8 * slot);
        mma_fence();
        add_gradients(sum.dk, ds, queries + (Q_AT >> 4));
        mma_commit();
        if (i + 1 == w.steps) break;
        advance();
        mma_wait<0>();
        settle_all(weights);
        settle_all(ds);
        if (lane == 0) {
            arrive(do_empty);
            arrive(q_empty);
        }
        wait(b.q_full + 8 * stage, phase);
        if (HAS_SEQ_LEN_Q) clear_queries(w, base, b, first_query, stage, phase);
        mma_fence();
        multiply_tile(s, keys, k_major(base + Q_AT + stage * Q_BYTES));
        mma_commit();
    }
    mma_wait<0>();
}

DEVICE void make_key_gradients(const arguments& p, u32 base, int half) {
    const work w = find_work(p);
    const barriers b(base);
    key_gradients sum;
    #pragma unroll
    for (int i = 0; i < HEAD / 2; ++i) sum.dk[i] = sum.dv[i] = 0;
    if (w.steps > 0) sum_key_gradients(p, w, base, b, half, sum);
    settle_all(sum.dv);
    settle_all(sum.dk);
    store_gradient(sum.dv, 1.0f, base + V_AT + half * HALF * 128, p.dv_map, w, half);
    const i32 last = w.steps - 1;
    if (w.steps > 0) wait(b.ds_empty + 8 * (last % DS_STAGES), last / DS_STAGES & 1); /* warpgroup 0 has read K */
    store_gradient(sum.dk, scale_of(p), base + K_AT + half * HALF * 128, p.dk_map, w, half);
    if ((threadIdx.x & 127) == 0) wait_stores_read<0>();
}

/* ---- The kernel ---- */

DEVICE void init_barriers(const barriers& b) {
    constexpr int CONSUMER_WARPS = 8, PRODUCER_WARPS = 4;
    barrier_init(b.k, 1);
    barrier_init(b.v, 1);
    for (int i = 0; i < STAGES; ++i) {
        barrier_init(b.q_full + 8 * i, 1);
        barrier_init(b.do_full + 8 * i, 1);
        barrier_init(b.q_empty + 8 * i, CONSUMER_WARPS);
        barrier_init(b.do_empty + 8 * i, CONSUMER_WARPS);
    }
    for (int i = 0; i < DS_STAGES; ++i) {
        barrier_init(b.ds_full + 8 * i, CONSUMER_WARPS);
        barrier_init(b.ds_empty + 8 * i, PRODUCER_WARPS);
    }
    barrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_backward_sm90(const __grid_constant__ arguments p) {
    const u32 base = shared_address(s_memory);
    if (threadIdx.x == 0) {
        prefetch_map(p.q_map);
        prefetch_map(p.k_map);
        prefetch_map(p.v_map);
        prefetch_map(p.d_o_map);
        init_barriers(barriers(base));
    }
    __syncthreads();
    const int warpgroup = warp_index() / 4;
    if (warpgroup == 0) {
        shrink_registers<PRODUCER_REGISTERS>();
        make_query_gradients(p, base);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        make_key_gradients(p, base, warpgroup - 1);
    }
}
