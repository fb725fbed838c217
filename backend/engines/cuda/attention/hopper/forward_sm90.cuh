/* forward_sm90: attention forward pass, O = softmax(scale Q K^T) V      bf16, f16 and FP8, float sums, wgmma; sm_90a
   Formula   P_j = 2^(scale2 S_j - m), scale2 = scale log2(e), O = sum P_j V_j / sum P_j; forward_softmax describes m
   Tile      a CTA computes BLOCK_Q queries of one head, 64 per consumer warpgroup. It iterates over blocks of BLOCK_K
             keys from the last visible one down to the first. CTAs are persistent; forward_tiles orders the tiles
   Roles     warpgroup 0: one thread issues the loads (producer); warpgroups 1 .. GROUPS (consumers): MMA and softmax
   Pipeline  producer  |Q|K 3|K 2|V 3|K 1|V 2|...   STAGES of k_full, k_empty, v_full, v_empty
             consumer      |S 3|  softmax 3  |S 2, O 3|  softmax 2  |S 1, O 2|...   O b: adds P V of block b
             The last step of a tile also issues the first S of the next tile, so the tensor cores stay busy between
             tiles. Q and the tile's coordinates use Q_STAGES of q_full and q_empty per consumer
   CTAS      CTAs per SM. Short sequences have few steps per tile; several resident CTAs hide prologues and epilogues
   PING_PONG two consumers take turns issuing MMAs, so that the softmax of one overlaps the MMAs of the other. Without
             it, each consumer skips the blocks that its own queries do not see
   Q regs    Q_REGISTER_STEPS k-steps of Q (32 bytes per row each) are loaded into registers once per tile, which halves
             the shared memory traffic of their MMAs
   Memory    Q_STAGES of Q, STAGES of K, staging of O unless it reuses a Q stage, STAGES of V, tiles, barriers
   Masks     a block is masked only if a bound or the end of the keys crosses it. V rows past the length in use are
             cleared in shared memory because 0 x NaN is NaN; rows past the tensor are 0 (TMA). V rows of keys that a
             bound, bias or modifier hides are multiplied by 0
             HAS_BLOCK_MASK: K and V blocks in inactive tiles of the block mask are never loaded
   Ragged    see varlen_sm90: nothing past the end of an entry is read or written. Boxes entirely past the end are not
             loaded; the stage keeps its old contents, which are masked. SKIPS_UNUSED_TILES: skips tiles without queries
   Terms     a score modifier and a bias are applied to scaled products in registers, in natural units. A factor common
             to all scores, and ALiBi, are folded into the exponents; so is a soft cap of small scores in unmasked
             blocks, see capped_exponent. BIAS_STAGES: bias boxes reach each consumer through its own ring, loaded by
             its own warp, so that K and V never wait for a bias to be read. Otherwise, the bias is read from memory
   Dropout   the keep mask of a block is generated while its scores are computed: two words per thread
   FP8       Q, K and V may differ in type; P is E4M3. Warps 1 .. 3 of the producer transpose V in place, see
             forward_values. Per-head scales of Q and K join the scale; those of V, P and O are applied in the epilogue
   ONES      rows of ones below V^T make the MMA compute the row sums of the rounded P, too, for 1/16 more MMA work;
             summing in registers takes a quarter of the softmax's instructions. The truncation described below affects
             these sums as much as values of one sign. Not used if sums are an output, or with dropout
   Promotion Hopper's FP8 MMAs accumulate with 13 fraction bits and truncate. Sums of positive values are too small, by
             1.5 % after 1,024 keys, by 38 % after 32,768. So after every 768 keys (1 %) the accumulator is spilled
             to shared memory as weighted f16 means, and accumulation restarts from 0
   Limits    TMA pads depths to HEAD_QK and HEAD_V; rows and strides are multiples of 16 bytes
   Params    in_t v_t out_t IS_BF16 HEAD_QK HEAD_V BLOCK_K GROUPS STAGES Q_STAGES O_STAGES PING_PONG BIAS_STAGES
             Q_REGISTER_STEPS EARLY_EXPS ONES CTAS CONSUMER_REGISTERS PRODUCER_REGISTERS SHARED_BYTES, those of scores,
             terms, dropout, scales and outputs; emitted coordinate functions of q, k, v and o; emitted MMAs:
             mma_s(_first), mma_s_registers(_first), mma_o
   Measured  docs/kernels.md, with bounds and alternatives that were tried */

#include "engines/cuda/attention/hopper/forward_geometry.h"
#include "attention/hopper/fp8_transpose_sm90.cuh"

constexpr bool IS_FP8 = sizeof(in_t) == 1;
constexpr forward_memory MEMORY = forward_memory_of(
    forward_shape{IS_FP8, HEAD_QK, HEAD_V, ONES, BLOCK_K, GROUPS, STAGES, Q_STAGES, O_STAGES, BIAS_STAGES});
constexpr i32 PANEL_COLUMNS = PANEL_ROW / sizeof(in_t), STEP = 32 / sizeof(in_t); /* STEP: extent of an MMA along k */
constexpr i32 BLOCK_Q = GROUP_Q * GROUPS, THREADS = 128 * (GROUPS + 1);
constexpr i32 V_BOX = IS_FP8 ? 64 : BLOCK_K; /* keys per TMA box of V, which has 64 columns */
constexpr int QK_PANELS = (HEAD_QK + PANEL_COLUMNS - 1) / PANEL_COLUMNS, V_PANELS = (HEAD_V + 63) / 64;
constexpr int O_PANELS = (HEAD_V * (int)sizeof(out_t) + 127) / 128;
constexpr u32 ONES_BYTES = ONES * FP8_TILE; /* below V^T of 64 keys */
constexpr bool STAGES_O_IN_Q = O_STAGES == 0;

/* ---- Requirements ---- */

static_assert(MEMORY.bytes == SHARED_BYTES && MEMORY.bytes <= SHARED_MAX,
              "the host computed it from the same constants; the maximum of a block is 227 KB");
static_assert(PRODUCER_REGISTERS + GROUPS * CONSUMER_REGISTERS <= (GROUPS + 1) * (65536 / CTAS / THREADS / 8 * 8),
              "setmaxnreg would hang beyond the launch's registers");
static_assert(BLOCK_K % STEP == 0 && HEAD_QK % STEP == 0 && HEAD_V % STEP == 0, "an MMA's k is 16, or 32 for FP8");
static_assert(!IS_FP8 || BLOCK_K % 64 == 0, "V is transposed in tiles of 64 x 64");
static_assert(STAGES_O_IN_Q ? Q_STAGES == 2 && O_PANELS <= QK_PANELS : Q_STAGES == 1,
              "O is staged in its Q stage while the next Q is loaded; two tiles are known at a time");
static_assert(!PING_PONG || GROUPS == 2, "ping-pong alternates between two consumers");
static_assert(!HAS_BLOCK_MASK || (PING_PONG && BLOCK_Q == 128 && 128 % BLOCK_K == 0),
              "a block is within one tile of the block mask");
static_assert(BIAS_STAGES == 0 || (BLOCK_K % 64 == 0 && !IS_FP8 && sizeof(bias_t) == 2),
              "bias boxes are whole panels, and their loading warps have no other role");

constexpr int Q_REGISTERS = 4 * Q_REGISTER_STEPS;
constexpr bool HAS_HEAD_SCALES = Q_SCALES == 1 || K_SCALES == 1;
constexpr i32 PROMOTION_BLOCKS = 768 / BLOCK_K; /* K blocks that one FP8 accumulator may sum */

using sum_t = float;
constexpr int K_PAGE = 0, V_PAGE = 0; /* no paged KV cache */

#include "attention/scales.cuh"
#include "attention/hopper/fragment_sm90.cuh"
#include "attention/hopper/dropout_sm90.cuh"
#include "attention/hopper/score_terms_sm90.cuh"
#include "attention/hopper/forward_tiles_sm90.cuh"
#include "attention/hopper/forward_softmax_sm90.cuh"
#include "attention/hopper/forward_epilogue_sm90.cuh"

extern __shared__ __align__(1024) unsigned char s_memory[];

/* MMA_SECTION and V_CLEARED are the first of one barrier per consumer. */
enum named_barrier : u32 { ALL_THREADS, MMA_SECTION, V_CLEARED = 4 };

DEVICE u32 barrier_at(u32 i) { return shared_address(s_memory) + MEMORY.barriers + i * 8; }
DEVICE u32 k_full(u32 stage) { return barrier_at(stage); }
DEVICE u32 k_empty(u32 stage) { return barrier_at(STAGES + stage); }
DEVICE u32 v_full(u32 stage) { return barrier_at(2 * STAGES + stage); }
DEVICE u32 v_empty(u32 stage) { return barrier_at(3 * STAGES + stage); }
DEVICE u32 v_loaded(u32 stage) {
    return barrier_at((IS_FP8 ? 4 : 2) * STAGES + stage);
} /* FP8: loaded, not yet
                                                                                                 transposed */
DEVICE u32 q_full(u32 stage, u32 group) { return barrier_at(MEMORY.kv_barriers * STAGES + stage * GROUPS + group); }
DEVICE u32 q_empty(u32 stage, u32 group) {
    return barrier_at(MEMORY.kv_barriers * STAGES + (Q_STAGES + stage) * GROUPS + group);
}
DEVICE u32 bias_full(u32 stage, u32 group) {
    return shared_address(s_memory) + MEMORY.bias_barriers + (stage * GROUPS + group) * 8;
}
DEVICE u32 bias_empty(u32 stage, u32 group) { return bias_full(BIAS_STAGES + stage, group); }
DEVICE u32 q_at(u32 stage) { return shared_address(s_memory) + stage * MEMORY.q_bytes; }
DEVICE u32 k_at(u32 stage) { return shared_address(s_memory) + MEMORY.k + stage * MEMORY.k_bytes; }
DEVICE u32 v_at(u32 stage) { return shared_address(s_memory) + MEMORY.v + stage * MEMORY.v_bytes; }
DEVICE u32 bias_at(u32 stage, u32 group) {
    return shared_address(s_memory) + MEMORY.bias + (stage * GROUPS + group) * MEMORY.bias_bytes;
}
DEVICE u32 tile_at(u32 parity, u32 group) {
    return shared_address(s_memory) + MEMORY.tiles + (parity * GROUPS + group) * TILE_BYTES;
}

/* Position in a ring of stages, and the parity of its current phase. */
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

/* Each warp arrives once. */
DEVICE void release(u32 barrier) {
    if (lane_index() == 0)
        arrive(barrier);
}

#include "attention/hopper/forward_values_sm90.cuh"

/* ---- Producer: one thread, which loads in the order of use ---- */

/* Loads a block of K or V in boxes of KEYS x COLUMNS. MAY_LACK: boxes without any row in use are not requested; `there`
   counts the rows in use from the block's first one. GAP: bytes between rows of boxes. */
template <int PANELS, i32 KEYS, i32 COLUMNS, bool MAY_LACK, u32 GAP>
DEVICE void load_block(const tensor_map &map, u32 to, u32 full, i32 block, i32 head, const box_origin &entry,
                       i32 there) {
    constexpr u32 BOX_BYTES = KEYS * COLUMNS * sizeof(in_t);
    constexpr i32 ROWS = BLOCK_K / KEYS; /* number of boxes along the keys */
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
                     entry.row + block * BLOCK_K + i / PANELS * KEYS, head, entry.outer);
}

DEVICE void load_q(const arguments &a, const tile &t, cursor<Q_STAGES> q, u32 parity) {
    const box_origin entry = q_entry(a, t.batch, t.queries);
#pragma unroll
    for (u32 group = 0; group < GROUPS; ++group) {
        const u32 full = q_full(q.stage, group), to = q_at(q.stage) + group * GROUP_Q * PANEL_ROW;
        wait(q_empty(q.stage, group), q.phase ^ 1);
        send_tile(tile_at(parity, group), t);
        if (t.blocks.last == 0 || (Q_IS_RAGGED && t.row + (i32)group * GROUP_Q >= t.queries)) {
            arrive(full);
            continue;
        }
        arrive_expecting(full, QK_PANELS * GROUP_Q * PANEL_ROW);
#pragma unroll
        for (int i = 0; i < QK_PANELS; ++i)
            load_box(to + i * MEMORY.q_panel, a.q_map, full, i * PANEL_COLUMNS,
                     entry.row + t.row + (i32)group * GROUP_Q, t.head, entry.outer);
    }
}

DEVICE void load_tiles(const arguments &a) {
    cursor<STAGES> k, v;
    cursor<Q_STAGES> q;
    u32 parity = 0;
    for (u32 index = blockIdx.x;; q.advance(), parity ^= 1) {
        if constexpr (SKIPS_UNUSED_TILES)
            index = skip_empty_tiles(a, index);
        const bool is_tile = index < (u32)a.all_tiles;
        const u32 next = is_tile ? next_index(a, index) : 0;
        const tile t = is_tile ? find_tile(a, index) : tile{};
        load_q(a, t, q, parity);
        if (!is_tile)
            break;
        const i32 k_head = t.head / (i32)a.k_group_size, v_head = t.head / (i32)a.v_group_size;
        const auto load_k = [&](i32 block) {
            wait(k_empty(k.stage), k.phase ^ 1);
            load_block<QK_PANELS, BLOCK_K, PANEL_COLUMNS, K_IS_RAGGED, 0>(a.k_map, k_at(k.stage), k_full(k.stage),
                                                                          block, k_head, k_entry(a, t.batch, t.keys),
                                                                          t.keys - block * BLOCK_K);
            k.advance();
        };
        const auto load_v = [&](i32 block) {
            wait(v_empty(v.stage), v.phase ^ 1);
            const i32 used = t.keys - block * BLOCK_K;
            if constexpr (IS_FP8)
                store_words(used_at(v.stage), words{{(u32)used}});
            load_block<V_PANELS, V_BOX, 64, V_IS_RAGGED, ONES_BYTES>(a.v_map, v_at(v.stage), v_loaded(v.stage), block,
                                                                     v_head, v_entry(a, t.batch, t.keys), used);
            v.advance();
        };
        i32 block = t.blocks.last - 1;
        load_k(block);
#pragma unroll 1
        while (block > t.blocks.first) {
            const i32 below = next_active_block(a, t, block);
            load_k(below);
            load_v(block);
            block = below;
        }
        load_v(block);
        index = next;
    }
    if constexpr (IS_FP8)
        end_v(v);
}

/* Loads the bias of one consumer's queries. One thread runs this; it learns of tiles in the same way as the
   consumer. */
template <class P> DEVICE void load_biases(const P &a, u32 group) {
    cursor<Q_STAGES> q;
    cursor<BIAS_STAGES> at;
    for (u32 parity = 0;; q.advance(), parity ^= 1) {
        wait(q_full(q.stage, group), q.phase);
        const tile t = read_tile(tile_at(parity, group));
        if (t.blocks.last == 0)
            break;
        const range active = group_blocks(a, t, group);
        for (i32 block = active.last - 1; block >= active.first; block = next_active_block(a, t, block), at.advance()) {
            const u32 full = bias_full(at.stage, group);
            wait(bias_empty(at.stage, group), at.phase ^ 1);
            publish_to_async_proxy(); /* the consumers' reads of this stage; doing it here does not delay their MMAs */
            arrive_expecting(full, MEMORY.bias_bytes);
#pragma unroll
            for (int i = 0; i < BLOCK_K / 64; ++i)
                load_box(bias_at(at.stage, group) + i * MEMORY.bias_panel, a.bias_map, full, block * BLOCK_K + i * 64,
                         t.row + (i32)group * GROUP_Q, a.bias_head ? t.head : 0, a.bias_batch ? t.batch : 0);
        }
        arrive(q_empty(q.stage, group)); /* the tile's coordinates may be overwritten */
    }
}

/* ---- Consumers ---- */

/* Low words of matrix descriptors; multiples of 16 bytes may be added to them. MN-major: panels of 64 columns, with a
   stride of panel_bytes. */
DEVICE u32 k_major(u32 address) { return address >> 4; }
DEVICE u32 mn_major(u32 address, u32 panel_bytes) { return address >> 4 | panel_bytes >> 4 << 16; }

/* FUSES_SOFT_CAP: approximates scale tanh(by s) by a polynomial in s. While |by s| < 1/2, that is, for exponents up to
   `edge`, its relative error is 2.8e-5, or 1.5e-8 where statistics are computed from the scores. The last coefficient
   is positive, so beyond that range the polynomial grows faster than the tanh. Hence the scores need not be checked: a
   score above 1/2 makes a P beyond `largest`. A score below -1/2 makes a P that is too small, by less than 2^-15 of the
   row sum if that sum exceeds 4 `least` or if the row uses a maximum. A row maximum, if one is used, is at most
   `farthest` from 0. */
struct soft_cap {
    static constexpr int TERMS = SOFT_CAP_TERMS > 0 ? SOFT_CAP_TERMS : 1;
    static constexpr float LARGEST_EXPONENT = IS_FP8    ? 9
                                              : IS_BF16 ? 16
                                                        : 15; /* largest exponent of a P that fits its type */
    static constexpr float LEAST_EDGE = 10; /* for a cap of 15; below, the sums of most blocks would exceed `largest` */
    float factor[TERMS];                    /* coefficients of s, s^3, s^5, ..; with 3 terms: a, b, c of c s ((s^2 +
                                               a)^2 + b) */
    float farthest, largest, least;         /* least: bound on the sum of one thread's columns */
    DEVICE void set(float by, float scale) {
        /* Coefficients of tanh(x) / x in powers of x^2. */
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
        if (farthest < 4) /* only rows whose exponents are relative to 0 */
            farthest = IS_FP8 || !(edge >= LEAST_EDGE) ? -1 : 0, largest = fminf(LARGEST_SUM, exp2_approx(edge));
        if (!(fabsf(by) > 1e-4f && fabsf(by) < 1e3f)) /* powers must fit float; typically 1e-3 */
            farthest = -1;
    }
    DEVICE bool holds(const row_pair &rows) const {
        return !__any_sync(~0u, fmaxf(fabsf(rows.row_max[0]), fabsf(rows.row_max[1])) > farthest);
    }
};

struct consumer {
    u32 group;
    float scale;         /* scale of S, times log2(e) */
    float product_scale; /* TRANSFORMS_SCORES: scale of Q K^T, before the modifier and the bias */
    u32 bias_first;      /* BIAS_STAGES: byte offset of this lane within a bias box */
    soft_cap cap;
    cursor<STAGES> block;                       /* the next K/V block whose S has not been issued */
    cursor<Q_STAGES> q;                         /* stage of the next tile's Q */
    u32 parity;                                 /* parity of the next tile's coordinates */
    cursor<BIAS_STAGES ? BIAS_STAGES : 1> bias; /* stage of the next block's bias */
    largest amax;
    u32 q_registers[Q_REGISTERS ? Q_REGISTERS : 1]; /* Q fragments of the first Q_REGISTER_STEPS */
    s_tile s;
    p_tile p;
    o_tile o;
    row_pair rows;
    i32 summed;           /* FP8: K blocks summed in o since the last spill */
    bool has_spill;       /* means of earlier blocks are stored in shared memory */
    float spilled_sum[2]; /* the row sums of the spilled blocks */
};

/* ---- Promotion: spill FP8 accumulators before truncation loses what is added. Each thread spills its own elements, 8
   at a time, divided by the row sums so far. The results are means of V, which are no larger than V and fit f16 ---- */

DEVICE u32 spill_at(const consumer &c, int eight) {
    return shared_address(s_memory) + MEMORY.means + ((c.group * (HEAD_V / 16) + eight) * 128 + threadIdx.x % 128) * 16;
}
DEVICE void add_spilled(consumer &c) {
    fence_registers(c.o);
#pragma unroll
    for (int i = 0; i < HEAD_V / 16; ++i) {
        const words means = load_words(spill_at(c, i));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const f16 mean{(u16)(means.at[j / 2] >> j % 2 * 16)};
            c.o[8 * i + j] = fmaf(to_float(mean), c.spilled_sum[j / 2 % 2], c.o[8 * i + j]);
        }
    }
    fence_registers(c.o);
}
/* ONES: the row sum that o holds in the columns after O. */
DEVICE float sum_of_accumulator(const consumer &c, int h) { return c.o[HEAD_V / 2 + 2 * h]; }

/* ONES: the final row sums of a tile; every lane gets the sums of its whole rows. */
DEVICE void read_row_sums(consumer &c) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
        c.rows.row_sum[h] = (c.spilled_sum[h] + sum_of_accumulator(c, h)) / 4;
}

/* Spills o; the next MMA overwrites it. */
DEVICE void promote(consumer &c) {
    float by[2];
    u32 old_weight[2]; /* weight of the previous means, in both halves */
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float sum = ONES > 0 ? c.spilled_sum[h] + sum_of_accumulator(c, h) : quad_sum(c.rows.row_sum[h]);
        by[h] = sum > 0 ? reciprocal_approx(sum) : 1.0f; /* 0: no key was visible */
        old_weight[h] = rounded_pair<f16>(c.spilled_sum[h] * by[h], c.spilled_sum[h] * by[h]);
        c.spilled_sum[h] = sum;
    }
    fence_registers(c.o);
#pragma unroll
    for (int i = 0; i < HEAD_V / 16; ++i) {
        words means{};
        if (c.has_spill)
            means = load_words(spill_at(c, i));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float *x = c.o + 8 * i + 2 * j, to = by[j % 2];
            means.at[j] = ptx::fma_f16x2(means.at[j], old_weight[j % 2], rounded_pair<f16>(x[0] * to, x[1] * to));
        }
        store_words_of_many(spill_at(c, i), means);
    }
    c.has_spill = true, c.summed = 0;
}

DEVICE void enter_mma_section(const consumer &c) {
    if constexpr (PING_PONG)
        sync_threads(MMA_SECTION + c.group, 256);
}
DEVICE void leave_mma_section(const consumer &c) {
    if constexpr (PING_PONG)
        arrive_threads(MMA_SECTION + 1 - c.group, 256);
}

DEVICE tile await_tile(const consumer &c) {
    wait(q_full(c.q.stage, c.group), c.q.phase);
    return receive_tile(tile_at(c.parity, c.group));
}

/* Returns the offset of a lane's ldmatrix address for the first 32 bytes of its row in a panel of a consumer's rows. */
DEVICE u32 ldmatrix_offset() {
    const u32 lane = lane_index(), row = warp_index() % 4 * 16 + lane % 16;
    return row * PANEL_ROW + (lane / 16 ^ row % 8) * 16;
}

/* Loads the first k-steps of Q into registers. No MMA may be reading these registers. */
DEVICE void load_q_registers(consumer &c) {
    if constexpr (Q_REGISTER_STEPS > 0) {
        const u32 first = q_at(c.q.stage) + c.group * GROUP_Q * PANEL_ROW + ldmatrix_offset();
#pragma unroll
        for (int k = 0; k < Q_REGISTER_STEPS; ++k) {
            u32 four[4];
            load_matrices(four, (first ^ k % 4 * 32) + k / 4 * MEMORY.q_panel);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                c.q_registers[4 * k + i] = four[i];
        }
        publish_to_async_proxy(); /* order these reads before the TMA load that overwrites them */
    }
}

/* Issues S = Q K^T. */
DEVICE void issue_s(consumer &c) {
    const u32 queries = k_major(q_at(c.q.stage) + c.group * GROUP_Q * PANEL_ROW), keys = k_major(k_at(c.block.stage));
    mma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_QK / STEP; ++k) {
        const u32 q = queries + k / 4 * (MEMORY.q_panel >> 4) + k % 4 * 2,
                  keys_at = keys + k / 4 * (MEMORY.k_panel >> 4) + k % 4 * 2;
        if (k < Q_REGISTER_STEPS && k == 0)
            mma_s_registers_first(c.s, c.q_registers, keys_at);
        else if (k < Q_REGISTER_STEPS)
            mma_s_registers(c.s, c.q_registers + 4 * k, keys_at);
        else if (k == 0)
            mma_s_first(c.s, q, keys_at);
        else
            mma_s(c.s, q, keys_at);
    }
    mma_commit();
}

/* Issues O += P V for the block before the next one. */
DEVICE void issue_o(consumer &c, u32 stage, bool is_first) {
    const bool replaces = IS_FP8 ? c.summed == 0 : is_first;
    const u32 values = IS_FP8 ? k_major(v_at(stage)) : mn_major(v_at(stage), MEMORY.v_panel);
    mma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_K / STEP; ++k) {
        const u32 at = IS_FP8 ? k / 2 * (MEMORY.vt_bytes >> 4) + k % 2 * 2 : k * (16 * PANEL_ROW >> 4);
        mma_o(c.o, c.p + 4 * k, values + at, !replaces || k > 0);
    }
    mma_commit();
    ++c.summed;
}

/* Clears V rows past the length in use. Both consumers do this, because both write zeros. Ragged V was padded with
   zeros by TMA, or not loaded at all. */
DEVICE void clear_v(const consumer &c, const tile &t, i32 block) {
    const cursor<STAGES> at = c.block.before();
    const i32 used = t.keys - block * BLOCK_K;
    if (used >= (V_IS_RAGGED ? 1 : BLOCK_K))
        return;
    wait(v_full(at.stage), at.phase);
    for (i32 i = max(used, 0) * 8 + (i32)threadIdx.x % 128; i < BLOCK_K * 8; i += 128)
#pragma unroll
        for (int panel = 0; panel < V_PANELS; ++panel)
            store_words_of_many(v_at(at.stage) + panel * MEMORY.v_panel + i * 16, words{});
    publish_to_async_proxy();
    sync_threads(V_CLEARED + c.group, 128);
}

/* Bias of 16 keys, starting at 16 i, as pairs of adjacent keys in the order of the accumulators. `first` includes the
   address of the box. */
DEVICE void load_bias_fragment(u32 (&pairs)[4], u32 first, int i) {
    load_matrices(pairs, (first ^ i % 4 * 32) + i / 4 * MEMORY.bias_panel);
}
DEVICE void release_bias(consumer &c) {
    arrive_where(bias_empty(c.bias.stage, c.group), lane_index() == 0);
    c.bias.advance();
}

/* True if each bias element is tested for -inf. Otherwise, -inf plus NaN or +inf gives NaN, which shows in the block's
   row sum; the softmax then takes its slow path, which tests each element. */
constexpr bool CHECKS_BIAS_MASK = IS_FP8 || HAS_MODIFIER;

/* True if a modifier or a bias transforms the products in registers. ALiBi is added to the exponents instead. */
constexpr bool TRANSFORMS_SCORES = HAS_MODIFIER || BIAS != 0;

/* The factor that remains for the exponent: the constant by which all modified scores are multiplied. */
template <class P> DEVICE float factor_of_scores(const P &a) {
    if constexpr (HAS_MODIFIER && BIAS == 0)
        return factor_after(a);
    else
        return 1.0f;
}

/* Score of a product, without ALiBi and factor_of_scores. `scale` includes the modifier's factor_before. */
template <class P>
DEVICE float transform_score(const P &a, i32 batch, i32 head, i32 query, i32 key, float product, float scale,
                             float bias) {
    float score = product * scale;
    if constexpr (HAS_MODIFIER)
        score = modified_between(a, batch, head, query, key, score);
    if constexpr (HAS_MODIFIER && BIAS != 0)
        score *= factor_after(a);
    return with_bias<CHECKS_BIAS_MASK>(score, bias);
}

/* Query index and bias offset of one of a thread's rows. */
struct terms_of_row {
    i32 query;
    bias_offset bias;
};

/* Factor of Q K^T before the modifier and the bias. */
template <class P> DEVICE float scale_of_products(const P &a, const tile &t) {
    const float scale = score_scale_of(a, t.batch, t.head);
    if constexpr (HAS_MODIFIER)
        return scale * factor_before(a);
    return scale;
}

/* Transforms products into scores. Elements beyond the tensors read the last bias element; they are masked later. */
template <class P> DEVICE void add_terms(consumer &c, const P &a, const tile &t, i32 first_query, i32 block) {
    const i32 column = block * BLOCK_K + first_column_of_thread(), last_key = (i32)a.keys - 1;
    terms_of_row rows[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 row = first_query + first_row_of_thread() + 8 * h;
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
                load_bias_fragment(pairs, bias_first, i / 2);
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
                x = transform_score(a, t.batch, t.head, rows[h].query, key, x, c.product_scale, bias[e]);
            }
        }
    }
    if constexpr (BIAS_STAGES > 0)
        release_bias(c);
    fence_registers(c.s);
}

/* ---- Soft cap fused into the exponent: its FMAs overlap with MUFU.EX2 (issue interval: 8 cycles), whereas a separate
   pass over the scores would add to the critical path ---- */

/* With ALiBi, a score beyond the polynomial's range could still make a P that fits. */
constexpr bool FUSES_SOFT_CAP = SOFT_CAP_TERMS > 0 && BIAS == 0 && !HAS_ALIBI && !ALWAYS_FINDS_ROW_MAX;

struct capped_exponent {
    const s_tile &s;
    const soft_cap &cap;
    DEVICE float operator()(int i, float first) const {
        if constexpr (soft_cap::TERMS == 3) { /* the same number of instructions as Horner's scheme, with fewer register
                                                 operands */
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
    /* True if a score may have been outside of the polynomial's range. `sum`: row sums of this block. */
    DEVICE bool loses(const float (&sum)[2], const row_pair &rows) const {
        bool is_inaccurate_score = false;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            is_inaccurate_score |= !(sum[h] < cap.largest);
            is_inaccurate_score |= rows.row_max[h] == 0 && !(rows.row_sum[h] + sum[h] > cap.least);
        }
        return is_inaccurate_score;
    }
};

DEVICE alibi_of_rows find_alibi(float slope, i32 first_query, i32 block) {
    const i32 row = first_query + first_row_of_thread(), column = block * BLOCK_K + first_column_of_thread();
    return HAS_ALIBI ? alibi_of_rows{slope, {slope * (float)(column - row), slope * (float)(column - row - 8)}}
                     : alibi_of_rows{};
}

/* Applies -inf biases that add_terms did not test for: there, a score that was NaN or +inf became NaN. */
template <class P> DEVICE void hide_by_bias(s_tile &s, const P &a, const tile &t, i32 first_query, i32 block) {
    const i32 column = block * BLOCK_K + first_column_of_thread();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 row = first_query + first_row_of_thread() + 8 * h;
        const bias_offset bias = bias_row(a, t.batch, t.head, min(row, (i32)a.queries - 1), false);
        visit_row<BLOCK_K / 2>(h, [&](int i) {
            if (s[i] != s[i] &&
                bias_at<false>(a, bias, min(column + fragment_column(i), (i32)a.keys - 1)) == minus_infinity())
                s[i] = minus_infinity();
        });
    }
}

constexpr int KEEP_WORDS = HAS_DROPOUT ? (BLOCK_K + 63) / 64 : 1;

/* Computes which elements of a block dropout keeps. */
template <class P>
DEVICE void compute_block_keep_mask(u32 (&keep_mask)[KEEP_WORDS], const P &a, const tile &t, i32 query, i32 block) {
    const i32 row = query + first_row_of_thread(), key = block * BLOCK_K + first_column_of_thread();
    constexpr int REST = BLOCK_K % 64;
#pragma unroll
    for (int i = 0; i < BLOCK_K / 64; ++i)
        keep_mask[i] = compute_keep_mask<false, 8>(a, t.batch, t.head, row, key + i * 64);
    if constexpr (REST)
        keep_mask[BLOCK_K / 64] = compute_keep_mask<false, 8, REST>(a, t.batch, t.head, row, key + BLOCK_K / 64 * 64);
#pragma unroll
    for (int i = 0; i < KEEP_WORDS; ++i)
        fence_register(keep_mask[i]);
}

/* Zeroes dropped elements of P. The row sums still include them. */
DEVICE void drop(p_tile &p, const u32 (&keep_mask)[KEEP_WORDS]) {
#pragma unroll
    for (int k = 0; HAS_DROPOUT && k < BLOCK_K * (int)sizeof(in_t) / 8; ++k)
        if constexpr (IS_FP8)
            drop_four(p[k], keep_mask, k / 2 * 8 + k % 2 * 2);
        else
            drop_pair(p[k], keep_mask, 2 * k);
}

/* True if some query of the group does not see some key of the block. */
DEVICE bool is_masked(const bounds &b, i32 first_query, i32 block) {
    const i32 last_query = first_query + GROUP_Q - 1;
    return b.last_key(first_query) < (block + 1) * BLOCK_K || (HAS_LEFT && last_query + b.low > block * BLOCK_K) ||
           (HAS_SEQ_LEN_Q && last_query >= b.queries);
}
/* `hidden` times the scale is -inf. */
DEVICE void mask(s_tile &s, const bounds &b, i32 first_query, i32 block, float hidden) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 query = first_query + first_row_of_thread() + 8 * h;
        const i32 column = block * BLOCK_K + first_column_of_thread();
        const i32 first = query + b.low - column,
                  last = query < b.queries || !HAS_SEQ_LEN_Q ? b.last_key(query) - column : 0;
        visit_row<BLOCK_K / 2>(h, [&](int i) {
            if (fragment_column(i) >= last || (HAS_LEFT && fragment_column(i) < first))
                s[i] = hidden;
        });
    }
    fence_registers(s);
}

/* Issues the first S of a tile and waits for it. */
DEVICE void start_tile(consumer &c) {
    load_q_registers(c);
    wait(k_full(c.block.stage), c.block.phase);
    enter_mma_section(c);
    issue_s(c);
    leave_mma_section(c);
    c.block.advance();
    mma_wait<0>();
    fence_registers(c.s);
}

/* Skips blocks that this consumer's queries do not see. It still waits for each, because an mbarrier wait distinguishes
   only two phases. */
DEVICE void skip_blocks(consumer &c, i32 blocks) {
    for (; blocks > 0; --blocks) {
        wait(k_full(c.block.stage), c.block.phase);
        release(k_empty(c.block.stage));
        wait(v_full(c.block.stage), c.block.phase);
        release(v_empty(c.block.stage));
        c.block.advance();
    }
}

/* The Q buffer doubles as O staging: release it after the TMA store has read it. */
DEVICE void release_q(const consumer &c) {
    const cursor<Q_STAGES> before = c.q.before();
    if (lane_index() != 0)
        return;
    wait_stores_read<0>();
    arrive(q_empty(before.stage, c.group));
}

/* Converts a factor of natural scores to base 2. The result is never 0, because 0 times a hidden score (-inf) is
   NaN. */
DEVICE float to_log2_scale(float scale) {
    scale *= 1.44269504f;
    return scale == 0 ? 1e-45f : scale;
}

DEVICE void consume_tiles(const arguments &a, u32 group) {
    consumer c;
    c.group = group, c.parity = 0, c.amax = largest{}, c.bias_first = ldmatrix_offset();
    c.scale = to_log2_scale(TRANSFORMS_SCORES ? factor_of_scores(a) : scale_of(a));
    float hidden_score = c.scale < 0 ? infinity() : -infinity();
    /* A 32-bit flag that is assigned in one place: with a bool, ptxas duplicated the code after it and treated the
       warps of the loop as divergent, in a third of the variants. */
    i32 has_scores = false;
    bool holds_q = false;
    i32 blocks_to_skip = 0;
    tile t = await_tile(c);
    if (group == GROUPS - 1)
        leave_mma_section(c);
    while (t.blocks.last) {
        const range active = group_blocks(a, t, group);
        if (!has_scores) {
            if (holds_q)
                release_q(c);
            holds_q = false;
            skip_blocks(c, blocks_to_skip + t.blocks.last - active.last);
            blocks_to_skip = 0;
            if (active.first == active.last) { /* this consumer has no queries in the tile */
                release(q_empty(c.q.stage, group));
                c.q.advance(), c.parity ^= 1;
                t = await_tile(c);
                continue;
            }
            start_tile(c);
        }
        start_rows(c.rows);
        c.summed = 0, c.has_spill = false, c.spilled_sum[0] = c.spilled_sum[1] = 0;
        if constexpr (TRANSFORMS_SCORES) {
            c.product_scale = scale_of_products(a, t);
            fence_register(c.product_scale); /* otherwise it is converted from double in every step */
        }
        if constexpr (FUSES_SOFT_CAP)
            c.cap.set(c.product_scale, c.scale);
        i32 fuses_cap = FUSES_SOFT_CAP && c.cap.holds(c.rows); /* until a row maximum exceeds cap.farthest */
        if constexpr ((IS_FP8 || HAS_HEAD_SCALES) && !TRANSFORMS_SCORES) {
            c.scale = to_log2_scale(score_scale_of(a, t.batch, t.head));
            hidden_score = c.scale < 0 ? infinity() : -infinity();
        }
        const bounds b(a, t.queries, t.keys);
        const i32 first_query = t.row + (i32)group * GROUP_Q;
        const float slope = slope_of(a, t.head) * 1.44269504f;
        bool is_first = true;
        i32 block = active.last - 1;
        [[maybe_unused]] u32
            keep_mask[KEEP_WORDS]; /* of the current block; computed while the MMA of its scores runs */
        if constexpr (HAS_DROPOUT)
            compute_block_keep_mask(keep_mask, a, t, first_query, block);
        if constexpr (HAS_SEQ_LEN_KV && !IS_FP8)
            clear_v(c, t, block);
#pragma unroll 1
        for (;; block = HAS_BLOCK_MASK ? uniform((u32)next_active_block(a, t, block)) : block - 1) {
            release(k_empty(c.block.before().stage));
            const bool needs_masking = is_masked(b, first_query, block);
            const bool scores_complete = needs_masking || !fuses_cap;
            if (TRANSFORMS_SCORES && scores_complete)
                add_terms(c, a, t, first_query, block);
            if (needs_masking)
                mask(c.s, b, first_query, block, hidden_score);
            const capped_exponent capped{c.s, c.cap};
            i32 found_row_max = false;
            const auto await_mma = [&] {
                mma_wait<0>();
                if (!is_first)
                    release(v_empty(c.block.before().before().stage));
                if (IS_FP8 && c.summed == PROMOTION_BLOCKS)
                    promote(c);
            };
            const auto complete_scores = [&] {
                found_row_max = true;
                if (!scores_complete)
                    add_terms(c, a, t, first_query, block);
                if constexpr (BIAS == 1 && !CHECKS_BIAS_MASK)
                    hide_by_bias(c.s, a, t, first_query, block);
            };
            alibi_of_rows alibi{};
            if constexpr (HAS_ALIBI)
                alibi = find_alibi(slope, first_query, block);
            softmax(c.p, c.rows, c.o, c.s, c.scale, alibi, is_first, scores_complete, capped, await_mma,
                    complete_scores, [&](const float (&by)[2]) {
                        if constexpr (IS_FP8)
                            c.spilled_sum[0] *= by[0], c.spilled_sum[1] *= by[1];
                    });
            if (FUSES_SOFT_CAP && found_row_max)
                fuses_cap = c.cap.holds(c.rows);
            drop(c.p, keep_mask);
            if (STAGES_O_IN_Q && is_first && holds_q)
                release_q(c);
            if (block == active.first)
                break;
            const cursor<STAGES> now = c.block.before();
            wait(k_full(c.block.stage), c.block.phase);
            wait(v_full(now.stage), now.phase);
            enter_mma_section(c);
            issue_s(c);
            issue_o(c, now.stage, is_first);
            leave_mma_section(c);
            c.block.advance();
            if constexpr (HAS_DROPOUT)
                compute_block_keep_mask(keep_mask, a, t, first_query,
                                        HAS_BLOCK_MASK ? next_active_block(a, t, block) : block - 1);
            mma_wait<1>();
            fence_registers(c.s);
            is_first = false;
        }
        if (!STAGES_O_IN_Q)
            release(q_empty(c.q.stage, group));
        const cursor<STAGES> now = c.block.before();
        const u32 o_at = STAGES_O_IN_Q
                             ? q_at(c.q.stage) + group * GROUP_Q * PANEL_ROW + warp_index() % 4 * WARP_PANEL
                             : shared_address(s_memory) + MEMORY.o + (warp_index() - 4) * O_STAGES * WARP_PANEL;
        const u32 t_at = tile_at(c.parity, group);
        c.q.advance(), c.parity ^= 1;
        blocks_to_skip = active.first - t.blocks.first;
        t = await_tile(c);
        has_scores = t.blocks.last && blocks_to_skip == 0 && group_blocks(a, t, group).last == t.blocks.last;
        fence_register(has_scores);
        wait(v_full(now.stage), now.phase);
        if (has_scores) {
            load_q_registers(c);
            wait(k_full(c.block.stage), c.block.phase);
            enter_mma_section(c);
            issue_s(c);
            issue_o(c, now.stage, is_first);
            leave_mma_section(c);
            c.block.advance();
            mma_wait<0>();
            fence_registers(c.s);
        } else {
            enter_mma_section(c);
            issue_o(c, now.stage, is_first);
            if (group + 1 < GROUPS)
                leave_mma_section(c);
            mma_wait<0>();
        }
        fence_registers(c.o);
        release(v_empty(now.stage));
        if constexpr (IS_FP8)
            mma_wait<0>(); /* redundant, but ptxas does not see the waits in the branches and would serialise MMAs */
        if (IS_FP8 && c.has_spill)
            add_spilled(c);
        if constexpr (ONES > 0)
            read_row_sums(c);
        store_tile(a, receive_tile(t_at), c.o, c.rows, first_row_of(group), o_at,
                   STAGES_O_IN_Q ? MEMORY.q_panel : WARP_PANEL, c.amax);
        holds_q = STAGES_O_IN_Q;
    }
    if (lane_index() == 0)
        wait_stores_read<0>(); /* shared memory must outlive the TMA stores */
    c.amax.store(a);
}

/* ---- Kernel ---- */

DEVICE void init_barriers() {
    for (u32 i = 0; i < STAGES; ++i) {
        barrier_init(k_full(i), 1);
        barrier_init(v_full(i), IS_FP8 ? TRANSPOSERS : 1);
        if (IS_FP8)
            barrier_init(v_loaded(i), 1);
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
            transpose_v(warp - 1);
        if constexpr (BIAS_STAGES > 0)
            if (warp > 0 && warp <= GROUPS && elect_one())
                load_biases(a, warp - 1);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        consume_tiles(a, warp / 4 - 1);
    }
}
