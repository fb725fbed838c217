/* forward_sm90: O = softmax(scale Q K^T) V of attention               bf16, f16 and FP8, float sums, wgmma; sm_90a
   Formula   p_j = 2^(scale2 s_j - m), scale2 = scale log2(e), o = sum p_j v_j / sum p_j; m: see forward_softmax
   Tile      a block makes BLOCK_Q queries of one head, each consumer warpgroup 64 of them; keys in blocks of BLOCK_K,
             from the last one that is seen to the first; persistent, see forward_tiles for the order of tiles
   Roles     warpgroup 0: one thread loads (producer); warpgroups 1 .. GROUPS (consumers): products and softmax
   Pipeline  producer  |Q|K 3|K 2|V 3|K 1|V 2|...   STAGES of k_full, k_empty, v_full, v_empty
             consumer      |S 3|  softmax 3  |S 2, O 3|  softmax 2  |S 1, O 2|...   O b: adds P V of block b
             The last step of a tile also makes the first scores of the next one: tensor cores see no end of a tile.
             Q and the tile's coordinates: Q_STAGES of q_full, q_empty for each consumer
   CTAS      blocks of one multiprocessor. Short sequences are tiles of few steps: several at once hide how each begins
             and ends
   PING_PONG two consumers issue products in turn, and one's softmax runs under the other's products. Without it, each
             passes over blocks that its own queries do not see
   Kept      KEPT_STEPS of Q, of 32 bytes a row, go to registers once a tile: their products read half as much from
             shared memory
   Memory    Q_STAGES of Q, STAGES of K, staging of O where it cannot leave through a Q, STAGES of V, tiles, barriers
   Masks     a block is masked where a bound or the end of the keys cuts it. V past the length in use is cleared in
             shared memory: 0 x NaN would be NaN; past the tensor it is 0 (TMA). V of keys that a bound, bias or
             modifier hides is multiplied by 0
             HAS_BLOCK_MASK: blocks of keys in tiles that do not take part are never loaded
   Ragged    see entries_sm90: nothing behind an entry's end is read or written. What lies there in whole is not asked
             for: what a stage had stands for it, and is masked. MAKES_USED_ALONE: tiles of no queries are passed over
   Terms     a score modifier and a bias join scaled products in registers, and scores are natural; what multiplies all
             of them, and ALiBi, join the exponents, and so does a soft cap of small scores in blocks that no mask cuts:
             see capped_exponent. BIAS_STAGES: boxes of the bias come to each consumer through a ring of its own, loaded
             by a warp of its own, so that K and V never wait for a bias to be read; else elements are read from memory
   Dropout   which weights of a block are kept is found while its scores are made: two words a thread
   FP8       types of q, k and v may differ, weights are E4M3; warps 1 .. 3 of the producer turn V over where it lies,
             see forward_values. A scale of each head joins that of scores; those of values, softmax and o join the end
   ONES      rows of ones behind those of V^T: products sum the weights, too, as they were rounded, for a sixteenth more
             of them; in registers sums take a quarter of the softmax's instructions. They lose to the truncation below
             what results of values of one sign lose. Not where statistics are made of sums, nor where weights are
             dropped
   Promotion Hopper's products of FP8 add into 13 bits of fraction and truncate: sums of positive values come out too
             small, 1.5 % after 1,024 keys, 38 % after 32,768. So every 768 keys (1 %) they join means by weights, f16
             in shared memory, and begin anew
   Limits    depths are padded to HEAD_QK and HEAD_V by TMA; rows and strides of whole 16 bytes
   Params    in_t v_t out_t IS_BF16 HEAD_QK HEAD_V BLOCK_K GROUPS STAGES Q_STAGES O_STAGES PING_PONG BIAS_STAGES
             KEPT_STEPS EARLY ONES CTAS CONSUMER_REGISTERS PRODUCER_REGISTERS SHARED_BYTES, those of scores, terms,
             dropout, scales and outputs; printed entries of q, k, v and o; printed products: multiply_scores(_first),
             multiply_kept(_first), multiply_values
   Measured  docs/kernels.md, with its bounds and what was tried */

#include "attention/hopper/byte_squares_sm90.cuh"

constexpr bool IS_FP8 = sizeof(in_t) == 1;
constexpr u32 ROW_BYTES = 128;                                                    /* of a panel, swizzled */
constexpr i32 PANEL_COLUMNS = ROW_BYTES / sizeof(in_t), STEP = 32 / sizeof(in_t); /* STEP: k of a product */
constexpr i32 GROUP_Q = 64, BLOCK_Q = GROUP_Q * GROUPS, THREADS = 128 * (GROUPS + 1);
constexpr i32 V_BOX = IS_FP8 ? 64 : BLOCK_K; /* keys of a box of V, which has 64 columns */
constexpr int QK_PANELS = (HEAD_QK + PANEL_COLUMNS - 1) / PANEL_COLUMNS, V_PANELS = (HEAD_V + 63) / 64;
constexpr int O_PANELS = (HEAD_V * (int)sizeof(out_t) + 127) / 128;
constexpr u32 Q_PANEL = BLOCK_Q * ROW_BYTES, K_PANEL = BLOCK_K * ROW_BYTES, WARP_PANEL = 16 * ROW_BYTES;
constexpr u32 V_PANEL = BLOCK_K * 64 * sizeof(in_t), ONES_BYTES = ONES * 64;
constexpr u32 SQUARES_BYTES = V_PANELS * SQUARE_BYTES + ONES_BYTES; /* FP8: of 64 keys, whose columns are rows */
constexpr u32 Q_BYTES = QK_PANELS * Q_PANEL, K_BYTES = QK_PANELS * K_PANEL;
constexpr u32 V_BYTES = IS_FP8 ? BLOCK_K / 64 * SQUARES_BYTES : V_PANELS * V_PANEL;
constexpr bool O_LEAVES_THROUGH_Q = O_STAGES == 0;
constexpr u32 K_AT = Q_STAGES * Q_BYTES, O_AT = K_AT + STAGES * K_BYTES;
constexpr u32 V_AT = O_AT + 4 * GROUPS * O_STAGES * WARP_PANEL, MEANS_AT = V_AT + STAGES * V_BYTES;
constexpr u32 BIAS_PANEL = GROUP_Q * ROW_BYTES, BIAS_BYTES = BLOCK_K / 64 * BIAS_PANEL; /* of a consumer */
constexpr u32 BIAS_AT = MEANS_AT + (IS_FP8 ? BLOCK_Q * HEAD_V * 2 : 0);
constexpr u32 TILES_AT = BIAS_AT + BIAS_STAGES * GROUPS * BIAS_BYTES, TILE_BYTES = 32;
constexpr u32 USED_AT = TILES_AT + 2 * GROUPS * TILE_BYTES, USED_BYTES = IS_FP8 ? 16 : 0;
constexpr u32 BARRIERS_AT = USED_AT + STAGES * USED_BYTES, KV_BARRIERS = IS_FP8 ? 5 : 4;
constexpr u32 BIAS_BARRIERS_AT = BARRIERS_AT + (KV_BARRIERS * STAGES + 2 * Q_STAGES * GROUPS) * 8;
constexpr u32 BARRIERS = KV_BARRIERS * STAGES + 2 * (Q_STAGES + BIAS_STAGES) * GROUPS;

/* ---- What this kernel demands ---- */

static_assert(BARRIERS_AT + BARRIERS * 8 == SHARED_BYTES && SHARED_BYTES <= 232448,
              "the host asks for as much; 227 KB is all a block can have");
static_assert(PRODUCER_REGISTERS + GROUPS * CONSUMER_REGISTERS <= (GROUPS + 1) * (65536 / CTAS / THREADS / 8 * 8),
              "growing beyond what the launch gave would hang");
static_assert(BLOCK_K % STEP == 0 && HEAD_QK % STEP == 0 && HEAD_V % STEP == 0, "products go by 16, or 32");
static_assert(!IS_FP8 || BLOCK_K % 64 == 0, "V is turned over in squares");
static_assert(O_LEAVES_THROUGH_Q ? Q_STAGES == 2 && O_PANELS <= QK_PANELS : Q_STAGES == 1,
              "O fits where Q was, while the next Q is there; two tiles are known at a time");
static_assert(!PING_PONG || GROUPS == 2, "a turn is handed to the other one");
static_assert(!HAS_BLOCK_MASK || (PING_PONG && BLOCK_Q == 128 && 128 % BLOCK_K == 0),
              "a block lies in one of its tiles");
static_assert(BIAS_STAGES == 0 || (BLOCK_K % 64 == 0 && !IS_FP8 && sizeof(bias_t) == 2),
              "a bias has whole panels, and the warps that load it nothing else to do");

constexpr int QUERY_REGISTERS = 4 * KEPT_STEPS;
constexpr bool HAS_HEAD_SCALES = Q_SCALES == 1 || K_SCALES == 1;
constexpr i32 PROMOTED_BLOCKS = 768 / BLOCK_K; /* whose products one accumulator of FP8 sums */

using sum_t = float;
constexpr int K_PAGE = 0, V_PAGE = 0; /* there are no pages */

#include "attention/scales.cuh"
#include "attention/hopper/dropout_sm90.cuh"
#include "attention/hopper/score_terms_sm90.cuh"
#include "attention/hopper/forward_tiles_sm90.cuh"
#include "attention/hopper/forward_softmax_sm90.cuh"
#include "attention/hopper/forward_epilogue_sm90.cuh"

extern __shared__ __align__(1024) unsigned char s_memory[];

/* The first two of another number for each consumer. */
enum named_barrier : u32 { ALL_THREADS, TURN, VALUES_CLEARED = 4 };

DEVICE u32 barrier_at(u32 i) { return shared_address(s_memory) + BARRIERS_AT + i * 8; }
DEVICE u32 k_full(u32 stage) { return barrier_at(stage); }
DEVICE u32 k_empty(u32 stage) { return barrier_at(STAGES + stage); }
DEVICE u32 v_full(u32 stage) { return barrier_at(2 * STAGES + stage); }
DEVICE u32 v_empty(u32 stage) { return barrier_at(3 * STAGES + stage); }
DEVICE u32 values_loaded(u32 stage) { return barrier_at((IS_FP8 ? 4 : 2) * STAGES + stage); } /* FP8: to be turned */
DEVICE u32 q_full(u32 stage, u32 group) { return barrier_at(KV_BARRIERS * STAGES + stage * GROUPS + group); }
DEVICE u32 q_empty(u32 stage, u32 group) {
    return barrier_at(KV_BARRIERS * STAGES + (Q_STAGES + stage) * GROUPS + group);
}
DEVICE u32 bias_full(u32 stage, u32 group) {
    return shared_address(s_memory) + BIAS_BARRIERS_AT + (stage * GROUPS + group) * 8;
}
DEVICE u32 bias_empty(u32 stage, u32 group) { return bias_full(BIAS_STAGES + stage, group); }
DEVICE u32 q_at(u32 stage) { return shared_address(s_memory) + stage * Q_BYTES; }
DEVICE u32 k_at(u32 stage) { return shared_address(s_memory) + K_AT + stage * K_BYTES; }
DEVICE u32 v_at(u32 stage) { return shared_address(s_memory) + V_AT + stage * V_BYTES; }
DEVICE u32 bias_at(u32 stage, u32 group) {
    return shared_address(s_memory) + BIAS_AT + (stage * GROUPS + group) * BIAS_BYTES;
}
DEVICE u32 tile_at(u32 parity, u32 group) {
    return shared_address(s_memory) + TILES_AT + (parity * GROUPS + group) * TILE_BYTES;
}

/* A stage of a ring, and the parity of its phase. */
template <u32 COUNT> struct cursor {
    u32 stage = 0, phase = 0;
    DEVICE void advance() {
        if (++stage == COUNT)
            stage = 0, phase ^= 1;
    }
    DEVICE cursor before() const {
        cursor c = *this;
        if (c.stage-- == 0)
            c.stage = COUNT - 1, c.phase ^= 1;
        return c;
    }
};

/* One lane of each warp. */
DEVICE void release(u32 barrier) {
    if (lane_index() == 0)
        arrive(barrier);
}

#include "attention/hopper/forward_values_sm90.cuh"

/* ---- The producer: one thread, in the order of use ---- */

/* Block `block` of K or V, in boxes of so many keys and columns. MAY_LACK: a box of which no row is there is not
   asked for; `there`: keys from the block's first one on. GAP: bytes between rows of boxes. */
template <int PANELS, i32 KEYS, i32 COLUMNS, bool MAY_LACK, u32 GAP>
DEVICE void load_block(const tensor_map &map, u32 to, u32 full, i32 block, i32 head, const box_entry &entry,
                       i32 there) {
    constexpr u32 BOX_BYTES = KEYS * COLUMNS * sizeof(in_t);
    constexpr i32 ROWS = BLOCK_K / KEYS; /* of boxes */
    const i32 rows = MAY_LACK ? min(max((there + KEYS - 1) / KEYS, 0), ROWS) : ROWS;
    if (MAY_LACK && rows == 0) {
        arrive(full);
        return;
    }
    arrive_expecting(full, rows * PANELS * BOX_BYTES);
#pragma unroll
    for (int i = 0; i < ROWS * PANELS; ++i)
        if (!MAY_LACK || i / PANELS < rows)
            load_box(to + i * BOX_BYTES + i / PANELS * GAP, map, full, i % PANELS * COLUMNS,
                     entry.row + block * BLOCK_K + i / PANELS * KEYS, head, entry.place);
}

DEVICE void load_queries(const arguments &a, const tile &t, cursor<Q_STAGES> q, u32 parity) {
    const box_entry entry = q_entry(a, t.batch, t.queries);
#pragma unroll
    for (u32 group = 0; group < GROUPS; ++group) {
        const u32 full = q_full(q.stage, group), to = q_at(q.stage) + group * GROUP_Q * ROW_BYTES;
        wait(q_empty(q.stage, group), q.phase ^ 1);
        send_tile(tile_at(parity, group), t);
        if (t.blocks.last == 0 || (Q_IS_RAGGED && t.row + (i32)group * GROUP_Q >= t.queries)) {
            arrive(full);
            continue;
        }
        arrive_expecting(full, QK_PANELS * GROUP_Q * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < QK_PANELS; ++i)
            load_box(to + i * Q_PANEL, a.q_map, full, i * PANEL_COLUMNS, entry.row + t.row + (i32)group * GROUP_Q,
                     t.head, entry.place);
    }
}

DEVICE void load_tiles(const arguments &a) {
    cursor<STAGES> k, v;
    cursor<Q_STAGES> q;
    u32 parity = 0;
    for (u32 index = blockIdx.x;; q.advance(), parity ^= 1) {
        if constexpr (MAKES_USED_ALONE)
            index = pass_over_empty(a, index);
        const bool is_tile = index < (u32)a.all_tiles;
        const u32 next = is_tile ? next_index(a, index) : 0;
        const tile t = is_tile ? find_tile(a, index) : tile{};
        load_queries(a, t, q, parity);
        if (!is_tile)
            break;
        const i32 k_head = t.head / (i32)a.key_share, v_head = t.head / (i32)a.value_share;
        const auto load_keys = [&](i32 block) {
            wait(k_empty(k.stage), k.phase ^ 1);
            load_block<QK_PANELS, BLOCK_K, PANEL_COLUMNS, K_IS_RAGGED, 0>(a.k_map, k_at(k.stage), k_full(k.stage),
                                                                          block, k_head, k_entry(a, t.batch, t.keys),
                                                                          t.keys - block * BLOCK_K);
            k.advance();
        };
        const auto load_values = [&](i32 block) {
            wait(v_empty(v.stage), v.phase ^ 1);
            const i32 used = t.keys - block * BLOCK_K;
            if constexpr (IS_FP8)
                store_words(used_at(v.stage), words{{(u32)used}});
            load_block<V_PANELS, V_BOX, 64, V_IS_RAGGED, ONES_BYTES>(a.v_map, v_at(v.stage), values_loaded(v.stage),
                                                                     block, v_head, v_entry(a, t.batch, t.keys), used);
            v.advance();
        };
        i32 block = t.blocks.last - 1;
        load_keys(block);
#pragma unroll 1
        while (block > t.blocks.first) {
            const i32 below = block_below(a, t, block);
            load_keys(below);
            load_values(block);
            block = below;
        }
        load_values(block);
        index = next;
    }
    if constexpr (IS_FP8)
        end_values(v);
}

/* The bias of a consumer's queries, by one thread, which learns of tiles as the consumer does. */
template <class P> DEVICE void load_biases(const P &a, u32 group) {
    cursor<Q_STAGES> q;
    cursor<BIAS_STAGES> at;
    for (u32 parity = 0;; q.advance(), parity ^= 1) {
        wait(q_full(q.stage, group), q.phase);
        const tile t = read_tile(tile_at(parity, group));
        if (t.blocks.last == 0)
            break;
        const range own = own_blocks(a, t, group);
        for (i32 block = own.last - 1; block >= own.first; block = block_below(a, t, block), at.advance()) {
            const u32 full = bias_full(at.stage, group);
            wait(bias_empty(at.stage, group), at.phase ^ 1);
            publish_to_async_proxy(); /* what consumers read before; by them, it would hold up their products */
            arrive_expecting(full, BIAS_BYTES);
#pragma unroll
            for (int i = 0; i < BLOCK_K / 64; ++i)
                load_box(bias_at(at.stage, group) + i * BIAS_PANEL, a.bias_map, full, block * BLOCK_K + i * 64,
                         t.row + (i32)group * GROUP_Q, a.bias_head ? t.head : 0, a.bias_batch ? t.batch : 0);
        }
        arrive(q_empty(q.stage, group)); /* the tile's place may be written anew */
    }
}

/* ---- Consumers ---- */

/* The low words of the operands' descriptors, to which multiples of 16 bytes may be added. MN-major: panels of 64
   columns, so many bytes apart. */
DEVICE u32 k_major(u32 address) { return address >> 4; }
DEVICE u32 mn_major(u32 address, u32 panel_bytes) { return address >> 4 | panel_bytes >> 4 << 16; }

/* JOINS_SOFT_CAP: scale tanh(by s) as a polynomial of s: off by 2.8e-5 of itself, and by 1.5e-8 where statistics are
   made of scores, while |by s| is below 1/2, where exponents end at `edge`. Its last term is positive: beyond, it grows
   with s, and faster than the tanh. So nobody looks at scores: those above 1/2 make weights beyond `largest`, and of
   those below -1/2, whose weights are too small, each lacks less than 2^-15 of a row's sum that is above 4 `least`, or
   was made with a maximum. A maximum, where one was found, is no farther from 0 than `farthest`. */
struct soft_cap {
    static constexpr int TERMS = SOFT_CAP_TERMS > 0 ? SOFT_CAP_TERMS : 1;
    static constexpr float LARGEST_EXPONENT = IS_FP8 ? 9 : IS_BF16 ? 16 : 15; /* of weights that fit */
    static constexpr float LEAST_EDGE = 10; /* of a cap of 15: below, most blocks would make larger sums */
    float factor[TERMS];                    /* of s to the powers 1, 3, 5, ..; of three: in c s ((s^2 + a)^2 + b) */
    float farthest, largest, least;         /* least: of a thread's columns */
    DEVICE void set(float by, float scale) {
        /* Of tanh(x) / x in x^2. */
        constexpr float EXACT[5] = {1, -0.33333144f, 0.13325879f, -0.053045489f, 0.017241478f};
        const float square = by * by;
        float power = by * scale;
        if constexpr (TERMS == 3) {
            factor[0] = -1.4259183f / square, factor[1] = 6.5548379f / (square * square);
            factor[2] = 0.11644045f * power * square * square;
        } else {
#pragma unroll
            for (int k = 0; k < TERMS; ++k, power *= square)
                factor[k] = EXACT[k] * power;
        }
        const float edge = 0.46211716f * fabsf(scale);
        farthest = edge - LARGEST_EXPONENT, largest = LARGEST_SUM;
        least = exp2_approx(15 - edge) / 4;
        if (farthest < 4) /* only what is relative to 0 */
            farthest = IS_FP8 || !(edge >= LEAST_EDGE) ? -1 : 0, largest = fminf(LARGEST_SUM, exp2_approx(edge));
        if (!(fabsf(by) > 1e-4f && fabsf(by) < 1e3f)) /* powers are to be floats; by is 1e-3 or so */
            farthest = -1;
    }
    DEVICE bool holds(const row_pair &rows) const {
        return !__any_sync(~0u, fmaxf(fabsf(rows.maximum[0]), fabsf(rows.maximum[1])) > farthest);
    }
};

struct consumer {
    u32 group;
    float scale;         /* of scores, times log2(e) */
    float product_scale; /* CHANGES_SCORES: of products, before what joins them */
    u32 bias_first;      /* BIAS_STAGES: of 16 keys, in a box */
    soft_cap cap;
    cursor<STAGES> block;                       /* the next block, whose scores are not made yet */
    cursor<Q_STAGES> q;                         /* the next tile */
    u32 parity;                                 /* of the next tile */
    cursor<BIAS_STAGES ? BIAS_STAGES : 1> bias; /* the next block's */
    largest amax;
    u32 queries[QUERY_REGISTERS ? QUERY_REGISTERS : 1]; /* of the first KEPT_STEPS */
    scores s;
    weights p;
    results o;
    row_pair rows;
    i32 summed;      /* FP8: blocks in o */
    bool is_parked;  /* means of earlier blocks are in shared memory */
    float parked[2]; /* the weights of these blocks, by rows */
};

/* ---- Promotion: sums of FP8 products leave their accumulator before it loses what is added. Each thread parks its
   own, eight by eight, divided by the weights they were made with: such means are no larger than values, and fit f16 */

DEVICE u32 parked_at(const consumer &c, int eight) {
    return shared_address(s_memory) + MEANS_AT + ((c.group * (HEAD_V / 16) + eight) * 128 + threadIdx.x % 128) * 16;
}
DEVICE void add_parked(consumer &c) {
    fence_registers(c.o);
#pragma unroll
    for (int i = 0; i < HEAD_V / 16; ++i) {
        const words means = load_words(parked_at(c, i));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const f16 mean{(u16)(means.at[j / 2] >> j % 2 * 16)};
            c.o[8 * i + j] = fmaf(to_float(mean), c.parked[j / 2 % 2], c.o[8 * i + j]);
        }
    }
    fence_registers(c.o);
}
/* ONES: of what o holds, from the columns behind the results. */
DEVICE float sum_of_accumulator(const consumer &c, int h) { return c.o[HEAD_V / 2 + 2 * h]; }

/* ONES: all sums of a tile; each lane has those of its whole rows. */
DEVICE void take_sums(consumer &c) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
        c.rows.sum[h] = (c.parked[h] + sum_of_accumulator(c, h)) / 4;
}

/* The next product replaces what is in o. */
DEVICE void promote(consumer &c) {
    float by[2];
    u32 kept[2]; /* of the means so far, in both halves */
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float sum = ONES > 0 ? c.parked[h] + sum_of_accumulator(c, h) : sum_of_quad(c.rows.sum[h]);
        by[h] = sum > 0 ? reciprocal_approx(sum) : 1.0f; /* 0: no key was seen */
        kept[h] = rounded_pair<f16>(c.parked[h] * by[h], c.parked[h] * by[h]);
        c.parked[h] = sum;
    }
    fence_registers(c.o);
#pragma unroll
    for (int i = 0; i < HEAD_V / 16; ++i) {
        words means{};
        if (c.is_parked)
            means = load_words(parked_at(c, i));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float *x = c.o + 8 * i + 2 * j, to = by[j % 2];
            means.at[j] = ptx::fma_f16x2(means.at[j], kept[j % 2], rounded_pair<f16>(x[0] * to, x[1] * to));
        }
        store_words_of_many(parked_at(c, i), means);
    }
    c.is_parked = true, c.summed = 0;
}

DEVICE void take_turn(const consumer &c) {
    if constexpr (PING_PONG)
        sync_threads(TURN + c.group, 256);
}
DEVICE void pass_turn(const consumer &c) {
    if constexpr (PING_PONG)
        arrive_threads(TURN + 1 - c.group, 256);
}

DEVICE tile await_tile(const consumer &c) {
    wait(q_full(c.q.stage, c.group), c.q.phase);
    return receive_tile(tile_at(c.parity, c.group));
}

/* Where a lane's part of a row's first 32 bytes lies in a panel of a consumer's rows. */
DEVICE u32 place_in_panel() {
    const u32 lane = lane_index(), row = warp_index() % 4 * 16 + lane % 16;
    return row * ROW_BYTES + (lane / 16 ^ row % 8) * 16;
}

/* The tile's first columns go to registers, which no product may be reading. */
DEVICE void keep_queries(consumer &c) {
    if constexpr (KEPT_STEPS > 0) {
        const u32 first = q_at(c.q.stage) + c.group * GROUP_Q * ROW_BYTES + place_in_panel();
#pragma unroll
        for (int k = 0; k < KEPT_STEPS; ++k) {
            u32 four[4];
            load_matrices(four, (first ^ k % 4 * 32) + k / 4 * Q_PANEL);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                c.queries[4 * k + i] = four[i];
        }
        publish_to_async_proxy(); /* what is read before a copy overwrites it */
    }
}

/* S = Q K^T */
DEVICE void issue_scores(consumer &c) {
    const u32 queries = k_major(q_at(c.q.stage) + c.group * GROUP_Q * ROW_BYTES), keys = k_major(k_at(c.block.stage));
    mma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_QK / STEP; ++k) {
        const u32 q = queries + k / 4 * (Q_PANEL >> 4) + k % 4 * 2, keys_at = keys + k / 4 * (K_PANEL >> 4) + k % 4 * 2;
        if (k < KEPT_STEPS && k == 0)
            multiply_kept_first(c.s, c.queries, keys_at);
        else if (k < KEPT_STEPS)
            multiply_kept(c.s, c.queries + 4 * k, keys_at);
        else if (k == 0)
            multiply_scores_first(c.s, q, keys_at);
        else
            multiply_scores(c.s, q, keys_at);
    }
    mma_commit();
}

/* O += P V, of the block before the next one. */
DEVICE void issue_values(consumer &c, u32 stage, bool is_first) {
    const bool replaces = IS_FP8 ? c.summed == 0 : is_first;
    const u32 values = IS_FP8 ? k_major(v_at(stage)) : mn_major(v_at(stage), V_PANEL);
    mma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_K / STEP; ++k) {
        const u32 at = IS_FP8 ? k / 2 * (SQUARES_BYTES >> 4) + k % 2 * 2 : k * (16 * ROW_BYTES >> 4);
        multiply_values(c.o, c.p + 4 * k, values + at, !replaces || k > 0);
    }
    mma_commit();
    ++c.summed;
}

/* Values past the length in use, by each consumer for itself: zeros over zeros. Ragged ones came as zeros, or not at
   all. */
DEVICE void clear_values(const consumer &c, const tile &t, i32 block) {
    const cursor<STAGES> at = c.block.before();
    const i32 used = t.keys - block * BLOCK_K;
    if (used >= (V_IS_RAGGED ? 1 : BLOCK_K))
        return;
    wait(v_full(at.stage), at.phase);
    for (i32 i = max(used, 0) * 8 + (i32)threadIdx.x % 128; i < BLOCK_K * 8; i += 128)
#pragma unroll
        for (int panel = 0; panel < V_PANELS; ++panel)
            store_words_of_many(v_at(at.stage) + panel * V_PANEL + i * 16, words{});
    publish_to_async_proxy();
    sync_threads(VALUES_CLEARED + c.group, 128);
}

/* Pairs of neighbouring keys of the bias, in the order of the scores, of 16 keys from 16 i on; `first`: with the box's
   address. */
DEVICE void load_boxed_bias(u32 (&pairs)[4], u32 first, int i) {
    load_matrices(pairs, (first ^ i % 4 * 32) + i / 4 * BIAS_PANEL);
}
DEVICE void release_bias(consumer &c) {
    arrive_where(bias_empty(c.bias.stage, c.group), lane_index() == 0);
    c.bias.advance();
}

/* Whether a bias of -inf is looked for element by element. Else the sum of a block's weights tells that one may have
   met what is no number: it is none either, and softmax's slow path looks again. */
constexpr bool GUARDS_HIDDEN = IS_FP8 || HAS_MODIFIER;

/* Whether something joins products in registers; ALiBi joins exponents. */
constexpr bool CHANGES_SCORES = HAS_MODIFIER || BIAS != 0;

/* What is left to multiply: modified scores by the constant that multiplies them all. */
template <class P> DEVICE float factor_of_scores(const P &a) {
    if constexpr (HAS_MODIFIER && BIAS == 0)
        return factor_after(a);
    else
        return 1.0f;
}

/* A score from its product, but for ALiBi and factor_of_scores. scale: with the modifier's factor_before. */
template <class P>
DEVICE float changed(const P &a, i32 batch, i32 head, i32 query, i32 key, float product, float scale, float bias) {
    float score = product * scale;
    if constexpr (HAS_MODIFIER)
        score = modified_between(a, batch, head, query, key, score);
    if constexpr (HAS_MODIFIER && BIAS != 0)
        score *= factor_after(a);
    return with_bias<GUARDS_HIDDEN>(score, bias);
}

/* A thread's row, as terms see it. */
struct terms_of_row {
    i32 query;
    bias_offset bias;
};

/* What products are multiplied by before something joins them. */
template <class P> DEVICE float scale_of_products(const P &a, const tile &t) {
    const float scale = score_scale_of(a, t.batch, t.head);
    if constexpr (HAS_MODIFIER)
        return scale * factor_before(a);
    return scale;
}

/* Products become scores. What is beyond the tensors reads the last element, and is masked afterwards. */
template <class P> DEVICE void add_terms(consumer &c, const P &a, const tile &t, i32 first_query, i32 block) {
    const i32 column = block * BLOCK_K + (i32)(lane_index() % 4 * 2), last_key = (i32)a.keys - 1;
    terms_of_row rows[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 row = first_query + (i32)(warp_index() % 4 * 16 + lane_index() / 4) + 8 * h;
        rows[h].query = min(row, (i32)a.queries - 1);
        rows[h].bias = bias_row(a, t.batch, t.head, rows[h].query, false);
    }
    if constexpr (BIAS_STAGES > 0)
        wait(bias_full(c.bias.stage, c.group), c.bias.phase);
    [[maybe_unused]] u32 pairs[4];
    [[maybe_unused]] const u32 bias_first = bias_at(c.bias.stage, c.group) + c.bias_first;
#pragma unroll
    for (int i = 0; i < BLOCK_K / 8; ++i) {
        if constexpr (BIAS_STAGES > 0)
            if (i % 2 == 0)
                load_boxed_bias(pairs, bias_first, i / 2);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float bias[2];
            if constexpr (BIAS_STAGES > 0)
                unpack_bias(bias, pairs[i % 2 * 2 + h]);
            else if constexpr (BIAS != 0 && BIAS_IS_PAIR)
                load_bias_pair(bias, a, rows[h].bias + min(column + 8 * i, last_key - 1));
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const i32 key = min(column + 8 * i + e, last_key);
                if constexpr (BIAS != 0 && !BIAS_IS_PAIR && BIAS_STAGES == 0)
                    bias[e] = bias_at<false>(a, rows[h].bias, key);
                float &x = c.s[4 * i + 2 * h + e];
                x = changed(a, t.batch, t.head, rows[h].query, key, x, c.product_scale, bias[e]);
            }
        }
    }
    if constexpr (BIAS_STAGES > 0)
        release_bias(c);
    fence_registers(c.s);
}

/* ---- A soft cap of small scores, where these become exponents: in the shadow of 2^x, which keeps a warp from its next
   one for eight clocks. Before, its instructions would take time of their own ---- */

/* ALiBi would make weights that fit of scores beyond the polynomial. */
constexpr bool JOINS_SOFT_CAP = SOFT_CAP_TERMS > 0 && BIAS == 0 && !HAS_ALIBI && !ALWAYS_FINDS_MAXIMUM;

struct capped_exponent {
    const scores &s;
    const soft_cap &cap;
    DEVICE float operator()(int i, float first) const {
        if constexpr (soft_cap::TERMS == 3) { /* as many instructions, which read fewer registers */
            const float square = fmaf(s[i], s[i], cap.factor[0]);
            return fmaf(s[i] * cap.factor[2], fmaf(square, square, cap.factor[1]), first);
        }
        const float square = s[i] * s[i];
        float slope = cap.factor[soft_cap::TERMS - 1];
#pragma unroll
        for (int k = soft_cap::TERMS - 2; k >= 0; --k)
            slope = fmaf(slope, square, cap.factor[k]);
        return fmaf(s[i], slope, first);
    }
    /* sum: of this block's weights. */
    DEVICE bool loses(const float (&sum)[2], const row_pair &rows) const {
        bool is_lost = false;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            is_lost |= !(sum[h] < cap.largest);
            is_lost |= rows.maximum[h] == 0 && !(rows.sum[h] + sum[h] > cap.least);
        }
        return is_lost;
    }
};

DEVICE alibi_of_rows find_alibi(float slope, i32 first_query, i32 block) {
    const i32 row = first_query + (i32)(warp_index() % 4 * 16 + lane_index() / 4);
    const i32 column = block * BLOCK_K + (i32)(lane_index() % 4 * 2);
    return HAS_ALIBI ? alibi_of_rows{slope, {slope * (float)(column - row), slope * (float)(column - row - 8)}}
                     : alibi_of_rows{};
}

/* Where add_terms did not look whether a bias of -inf hides a key: a score that was NaN or +inf before is NaN. */
template <class P> DEVICE void hide_by_bias(scores &s, const P &a, const tile &t, i32 first_query, i32 block) {
    const i32 column = block * BLOCK_K + (i32)(lane_index() % 4 * 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 row = first_query + (i32)(warp_index() % 4 * 16 + lane_index() / 4) + 8 * h;
        const bias_offset bias = bias_row(a, t.batch, t.head, min(row, (i32)a.queries - 1), false);
#pragma unroll
        for (int j = 0; j < BLOCK_K / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (s[4 * j + 2 * h + e] != s[4 * j + 2 * h + e] &&
                    bias_at<false>(a, bias, min(column + 8 * j + e, (i32)a.keys - 1)) == minus_infinity())
                    s[4 * j + 2 * h + e] = minus_infinity();
    }
}

constexpr int KEPT_WORDS = HAS_DROPOUT ? (BLOCK_K + 63) / 64 : 1;

/* Which weights of a block are kept. */
template <class P>
DEVICE void find_block_kept(u32 (&kept)[KEPT_WORDS], const P &a, const tile &t, i32 query, i32 block) {
    const i32 row = query + (i32)(warp_index() % 4 * 16 + lane_index() / 4);
    const i32 key = block * BLOCK_K + (i32)(lane_index() % 4 * 2);
    constexpr int REST = BLOCK_K % 64;
#pragma unroll
    for (int i = 0; i < BLOCK_K / 64; ++i)
        kept[i] = find_kept<false, 8>(a, t.batch, t.head, row, key + i * 64);
    if constexpr (REST)
        kept[BLOCK_K / 64] = find_kept<false, 8, REST>(a, t.batch, t.head, row, key + BLOCK_K / 64 * 64);
#pragma unroll
    for (int i = 0; i < KEPT_WORDS; ++i)
        fence_register(kept[i]);
}

/* Dropped weights become 0; their sums keep them. */
DEVICE void drop(weights &p, const u32 (&kept)[KEPT_WORDS]) {
#pragma unroll
    for (int k = 0; HAS_DROPOUT && k < BLOCK_K * (int)sizeof(in_t) / 8; ++k)
        if constexpr (IS_FP8)
            drop_four(p[k], kept, k / 2 * 8 + k % 2 * 2);
        else
            drop_pair(p[k], kept, 2 * k);
}

/* Whether some query of the group does not see some key of the block. */
DEVICE bool is_masked(const bounds &b, i32 first_query, i32 block) {
    const i32 last_query = first_query + GROUP_Q - 1;
    return b.last_key(first_query) < (block + 1) * BLOCK_K || (HAS_LEFT && last_query + b.low > block * BLOCK_K) ||
           (HAS_SEQ_LEN_Q && last_query >= b.queries);
}
/* `hidden` times the scale is -inf. */
DEVICE void mask(scores &s, const bounds &b, i32 first_query, i32 block, float hidden) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 query = first_query + (i32)(warp_index() % 4 * 16 + lane_index() / 4) + 8 * h;
        const i32 column = block * BLOCK_K + (i32)(lane_index() % 4 * 2);
        const i32 first = query + b.low - column,
                  last = query < b.queries || !HAS_SEQ_LEN_Q ? b.last_key(query) - column : 0;
#pragma unroll
        for (int j = 0; j < BLOCK_K / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (8 * j + e >= last || (HAS_LEFT && 8 * j + e < first))
                    s[4 * j + 2 * h + e] = hidden;
    }
    fence_registers(s);
}

/* The first scores of a tile. */
DEVICE void start_tile(consumer &c) {
    keep_queries(c);
    wait(k_full(c.block.stage), c.block.phase);
    take_turn(c);
    issue_scores(c);
    pass_turn(c);
    c.block.advance();
    mma_wait<0>();
    fence_registers(c.s);
}

/* Blocks that this consumer's queries do not see. They are waited for, since a barrier tells only two phases apart. */
DEVICE void pass_over(consumer &c, i32 blocks) {
    for (; blocks > 0; --blocks) {
        wait(k_full(c.block.stage), c.block.phase);
        release(k_empty(c.block.stage));
        wait(v_full(c.block.stage), c.block.phase);
        release(v_empty(c.block.stage));
        c.block.advance();
    }
}

/* Q is free once O, which leaves through it, was read. */
DEVICE void release_queries(const consumer &c) {
    const cursor<Q_STAGES> before = c.q.before();
    if (lane_index() != 0)
        return;
    wait_stores_read<0>();
    arrive(q_empty(before.stage, c.group));
}

/* Of scores, times log2(e). Not 0: 0 times what hides a score is not -inf. */
DEVICE float in_units(float scale) {
    scale *= 1.44269504f;
    return scale == 0 ? 1e-45f : scale;
}

DEVICE void multiply_tiles(const arguments &a, u32 group) {
    consumer c;
    c.group = group, c.parity = 0, c.amax = largest{}, c.bias_first = place_in_panel();
    c.scale = in_units(CHANGES_SCORES ? factor_of_scores(a) : scale_of(a));
    float hidden_score = c.scale < 0 ? infinity() : -infinity();
    /* A flag in 32 bits, set in one place: as a bool, copies of the code behind it left ptxas with a loop whose warps
       it took for divergent, in a third of the variants. */
    i32 is_scored = false;
    bool holds_queries = false;
    i32 behind = 0; /* blocks to pass over */
    tile t = await_tile(c);
    if (group == GROUPS - 1)
        pass_turn(c);
    while (t.blocks.last) {
        const range own = own_blocks(a, t, group);
        if (!is_scored) {
            if (holds_queries)
                release_queries(c);
            holds_queries = false;
            pass_over(c, behind + t.blocks.last - own.last);
            behind = 0;
            if (own.first == own.last) { /* no queries */
                release(q_empty(c.q.stage, group));
                c.q.advance(), c.parity ^= 1;
                t = await_tile(c);
                continue;
            }
            start_tile(c);
        }
        start_rows(c.rows);
        c.summed = 0, c.is_parked = false, c.parked[0] = c.parked[1] = 0;
        if constexpr (CHANGES_SCORES) {
            c.product_scale = scale_of_products(a, t);
            fence_register(c.product_scale); /* else it is made of a double in each step */
        }
        if constexpr (JOINS_SOFT_CAP)
            c.cap.set(c.product_scale, c.scale);
        i32 joins_cap = JOINS_SOFT_CAP && c.cap.holds(c.rows); /* until a maximum is found that is too far */
        if constexpr ((IS_FP8 || HAS_HEAD_SCALES) && !CHANGES_SCORES) {
            c.scale = in_units(score_scale_of(a, t.batch, t.head));
            hidden_score = c.scale < 0 ? infinity() : -infinity();
        }
        const bounds b(a, t.queries, t.keys);
        const i32 first_query = t.row + (i32)group * GROUP_Q;
        const float slope = slope_of(a, t.head) * 1.44269504f;
        bool is_first = true;
        i32 block = own.last - 1;
        [[maybe_unused]] u32
            kept[KEPT_WORDS]; /* of the block; of the next one, they are found while its scores are made */
        if constexpr (HAS_DROPOUT)
            find_block_kept(kept, a, t, first_query, block);
        if constexpr (HAS_SEQ_LEN_KV && !IS_FP8)
            clear_values(c, t, block);
#pragma unroll 1
        for (;; block = HAS_BLOCK_MASK ? uniform((u32)block_below(a, t, block)) : block - 1) {
            release(k_empty(c.block.before().stage));
            const bool is_cut = is_masked(b, first_query, block);
            const bool is_made = is_cut || !joins_cap;
            if (CHANGES_SCORES && is_made)
                add_terms(c, a, t, first_query, block);
            if (is_cut)
                mask(c.s, b, first_query, block, hidden_score);
            const capped_exponent capped{c.s, c.cap};
            i32 found_maximum = false;
            const auto await_products = [&] {
                mma_wait<0>();
                if (!is_first)
                    release(v_empty(c.block.before().before().stage));
                if (IS_FP8 && c.summed == PROMOTED_BLOCKS)
                    promote(c);
            };
            const auto complete_scores = [&] {
                found_maximum = true;
                if (!is_made)
                    add_terms(c, a, t, first_query, block);
                if constexpr (BIAS == 1 && !GUARDS_HIDDEN)
                    hide_by_bias(c.s, a, t, first_query, block);
            };
            alibi_of_rows alibi{};
            if constexpr (HAS_ALIBI)
                alibi = find_alibi(slope, first_query, block);
            softmax(c.p, c.rows, c.o, c.s, c.scale, alibi, is_first, is_made, capped, await_products, complete_scores,
                    [&](const float (&by)[2]) {
                        if constexpr (IS_FP8)
                            c.parked[0] *= by[0], c.parked[1] *= by[1];
                    });
            if (JOINS_SOFT_CAP && found_maximum)
                joins_cap = c.cap.holds(c.rows);
            drop(c.p, kept);
            if (O_LEAVES_THROUGH_Q && is_first && holds_queries)
                release_queries(c);
            if (block == own.first)
                break;
            const cursor<STAGES> now = c.block.before();
            wait(k_full(c.block.stage), c.block.phase);
            wait(v_full(now.stage), now.phase);
            take_turn(c);
            issue_scores(c);
            issue_values(c, now.stage, is_first);
            pass_turn(c);
            c.block.advance();
            if constexpr (HAS_DROPOUT)
                find_block_kept(kept, a, t, first_query, HAS_BLOCK_MASK ? block_below(a, t, block) : block - 1);
            mma_wait<1>();
            fence_registers(c.s);
            is_first = false;
        }
        if (!O_LEAVES_THROUGH_Q)
            release(q_empty(c.q.stage, group));
        const cursor<STAGES> now = c.block.before();
        const u32 o_at = O_LEAVES_THROUGH_Q
                             ? q_at(c.q.stage) + group * GROUP_Q * ROW_BYTES + warp_index() % 4 * WARP_PANEL
                             : shared_address(s_memory) + O_AT + (warp_index() - 4) * O_STAGES * WARP_PANEL;
        const u32 t_at = tile_at(c.parity, group);
        c.q.advance(), c.parity ^= 1;
        behind = own.first - t.blocks.first;
        t = await_tile(c);
        is_scored = t.blocks.last && behind == 0 && own_blocks(a, t, group).last == t.blocks.last;
        fence_register(is_scored);
        wait(v_full(now.stage), now.phase);
        if (is_scored) {
            keep_queries(c);
            wait(k_full(c.block.stage), c.block.phase);
            take_turn(c);
            issue_scores(c);
            issue_values(c, now.stage, is_first);
            pass_turn(c);
            c.block.advance();
            mma_wait<0>();
            fence_registers(c.s);
        } else {
            take_turn(c);
            issue_values(c, now.stage, is_first);
            if (group + 1 < GROUPS)
                pass_turn(c);
            mma_wait<0>();
        }
        fence_registers(c.o);
        release(v_empty(now.stage));
        if constexpr (IS_FP8)
            mma_wait<0>(); /* again: ptxas sees none behind the branches, and would serialise all products */
        if (IS_FP8 && c.is_parked)
            add_parked(c);
        if constexpr (ONES > 0)
            take_sums(c);
        store_tile(a, receive_tile(t_at), c.o, c.rows, first_row_of(group), o_at,
                   O_LEAVES_THROUGH_Q ? Q_PANEL : WARP_PANEL, c.amax);
        holds_queries = O_LEAVES_THROUGH_Q;
    }
    if (lane_index() == 0)
        wait_stores_read<0>(); /* shared memory must outlive its last reader */
    c.amax.store(a);
}

/* ---- The kernel ---- */

DEVICE void init_barriers() {
    for (u32 i = 0; i < STAGES; ++i) {
        barrier_init(k_full(i), 1);
        barrier_init(v_full(i), IS_FP8 ? TRANSPOSERS : 1);
        if (IS_FP8)
            barrier_init(values_loaded(i), 1);
        barrier_init(k_empty(i), 4 * GROUPS);
        barrier_init(v_empty(i), 4 * GROUPS);
    }
    for (u32 i = 0; i < Q_STAGES; ++i)
        for (u32 group = 0; group < GROUPS; ++group) {
            barrier_init(q_full(i, group), 1);
            barrier_init(q_empty(i, group), BIAS_STAGES > 0 ? 5 : 4);
        }
    for (int i = 0; i < BIAS_STAGES; ++i)
        for (u32 group = 0; group < GROUPS; ++group) {
            barrier_init(bias_full(i, group), 1);
            barrier_init(bias_empty(i, group), 4);
        }
    barrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    attention_forward_sm90(const __grid_constant__ arguments a) {
    if (threadIdx.x == 0) {
        prefetch_map(a.q_map);
        prefetch_map(a.k_map);
        prefetch_map(a.v_map);
        prefetch_map(a.o_map);
        init_barriers();
    }
    if constexpr (ONES > 0)
        write_ones();
    __syncthreads();
    wait_for_previous_kernel();
    const u32 warp = warp_index();
    if (warp < 4) {
        shrink_registers<PRODUCER_REGISTERS>();
        if (warp == 0 && elect_one())
            load_tiles(a);
        if (IS_FP8 && warp > 0)
            transpose_values(warp - 1);
        if constexpr (BIAS_STAGES > 0)
            if (warp > 0 && warp <= GROUPS && elect_one())
                load_biases(a, warp - 1);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        multiply_tiles(a, warp / 4 - 1);
    }
}
