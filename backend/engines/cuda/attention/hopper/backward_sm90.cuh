/* backward_sm90: attention backward pass                         bf16, f16 and FP8, float sums, wgmma; sm_90a
   Formula   P = 2^(scale2 S - lse2), S = Q K^T, scale2 = scale log2(e); dP = dO V^T; dS = P (dP - delta); dV = P^T dO,
             dK = scale dS^T Q, dQ = scale dS K, summed over the queries of all heads that share the key. ALiBi adds
             slope (key - query) to the scores. A score modifier f and a bias make the score f(scale S) + bias, and dS
             includes f' (has_derivatives: unless f' = 1). Dropout masks P for dV, and dP
   Loop      each CTA keeps the rows of one operand pair resident and iterates over streamed tiles of the other pair.
             kv_resident: computes dK and dV of resident K and V from streamed Q and dO. Otherwise, computes dQ of
             resident Q and dO from streamed K and V. The code is symmetric: `qk` is Q or K, `vdo` is V or dO, `dqk` is
             dK or dQ. reduces_dq: the CTAs with resident K and V compute dQ, too, so that S and dP are computed once,
             and add it to float sums in L2. stores_dq: one CTA holds all keys that a query sees, so it stores dQ
   Tile      BLOCK_RESIDENT resident rows, half of them per consumer, and block_streamed streamed rows
             has_dqk, has_dv: computes dK or dQ, and dV. Only one of them if registers do not hold both, or if K and V
             have different numbers of heads; then the resident K (for dV) or V (for dK) may change with the query head
             has_parts: a CTA iterates over only some of the query heads that share the resident keys, and stores
             partial gradients as floats in accumulator order; backward_sums_sm90 adds the parts in order
   Roles     warpgroup 0: thread 0 issues the loads (producer). reduces_dq: the whole warpgroup computes the dQ of a
             step, in parts of 64 x 64
             warpgroups 1 and 2 (consumers): S and dP accumulators have resident rows x streamed rows, so that P and dS
             are already the register A operands of the gradient MMAs, whose accumulators stay in registers to the end.
             reduces_dq: dS^T is also stored to shared memory, for dQ. The consumers never wait for each other
   Pipeline  producer  |tile 0|tile 1|tile 2|...     stages of qk_full, qk_empty, vdo_full, vdo_empty
             consumer         |S 0|P|dP 0|dS|dV, dK 0|S 1|...
             dQ                             |dQ 0     |...       two dS buffers: ds_full[s], ds_empty[s]
   Memory    resident rows (also the staging of gradients), stages of streamed rows and of the queries' statistics,
             barriers; reduces_dq: two dS buffers, staging of dQ
   Order     reduces_dq: dQ depends on the order in which CTAs add, so results differ between runs by rounding. CTAs of
             one head run concurrently, those with most steps first, heads_per_set heads at a time, so that streamed
             tiles stay in L2
   Terms     a score modifier and a bias are applied in registers. has_tma_bias: each consumer's bias of a step is a TMA
             box, which it reads transposed; otherwise, the bias is read from global memory
   Masks     a step is masked only if a bound or the end of the keys crosses its tile. Steps without any visible pair
             are skipped, and so are inactive tiles of a block mask
   Padding   rows past the lengths in use are cleared in shared memory because 0 x NaN is NaN. Rows past the tensors and
             past ragged entries are read as 0 (TMA) and not written: see varlen_sm90
   FP8       IS_FP8: P and dS are rounded to FP8 as operands: see backward_fp8. dK and dV are stored from registers, in
             any type. Operands are converted to f16 first: the gradient MMAs need MN-major operands, which FP8 wgmma
             does not support, and longer sums than its accumulators can represent (see forward_sm90). has_fp8_mma, with
             reduces_dq: S, dP and dQ, which sum over few columns and 128 keys, use FP8 MMAs. For dQ, dS is stored
             K-major, and warpgroup 0 transposes a second copy of K
             loads_twice: streamed rows are loaded in two versions, for S and for dQ or dK (MXFP8, has_fp8_mma)
   Limits    TMA pads depths to head and value_head; rows and strides are multiples of 16 bytes
   Params    in_t kv_resident has_dqk has_dv kv_heads_differ reduces_dq stores_dq head value_head BLOCK_RESIDENT
             block_streamed block_q stages vdo_stages consumer_registers producer_registers SHARED_BYTES
             has_derivatives has_factors has_parts loads_twice has_tma_bias skips_unused_tiles IS_FP8, those of scores,
             terms, block masks and dropout; emitted coordinate functions of the maps; emitted MMAs: mma_s(_first),
             mma_dp(_first), mma_dqk, mma_dv, mma_dq(_first)
   Measured  docs/kernels.md, with alternatives that were tried */

#include "engines/cuda/attention/hopper/backward_geometry.h"
#include "attention/block_mask.cuh"
#include "attention/hopper/dropout_sm90.cuh"
#include "attention/hopper/score_terms_sm90.cuh"
#include "attention/hopper/backward_scores_sm90.cuh"
#include "attention/hopper/backward_fp8_sm90.cuh"
#include "attention/hopper/fp8_transpose_sm90.cuh"

constexpr backward_memory MEMORY = backward_memory_of(CONFIG);
constexpr int STEP = CONFIG.has_fp8_mma ? 32 : 16;      /* k extent of the MMAs of S and dP: 32 bytes */
constexpr int THREADS = 384, HALF = BLOCK_RESIDENT / 2; /* HALF: resident rows per consumer */
constexpr int PANELS = CONFIG.head / 64, VALUE_PANELS = CONFIG.value_head / 64,
              STREAMED_PANELS = CONFIG.block_streamed / 64;
constexpr int S_PANELS = CONFIG.has_fp8_mma ? 1 : PANELS,
              DP_PANELS = CONFIG.has_fp8_mma ? 1 : VALUE_PANELS; /* read by S and dP */
constexpr int PARTS = PANELS * STREAMED_PANELS;                  /* 64 x 64 parts of dQ per step */

/* ---- Requirements ---- */

static_assert(BLOCK_RESIDENT == 128 && CONFIG.block_streamed % 64 == 0 && CONFIG.head % 64 == 0 &&
                  CONFIG.value_head % 64 == 0,
              "panels have 64 rows");
static_assert(!CONFIG.reduces_dq || (CONFIG.kv_resident && PARTS <= 2),
              "warpgroup 0 has registers for two parts, one at a time");
static_assert(!CONFIG.reduces_dq || (CONFIG.has_dqk && CONFIG.has_dv && CONFIG.stages == CONFIG.vdo_stages),
              "dQ needs both gradients and uses one stage counter");
static_assert(CONFIG.vdo_stages == CONFIG.stages || !CONFIG.has_dv, "V and dO are read until the end of a step");
static_assert(!CONFIG.has_tma_bias || (CONFIG.reduces_dq && sizeof(bias_t) == 2),
              "the warpgroup that computes dQ loads the bias");
static_assert(CONFIG.has_dqk || CONFIG.head >= CONFIG.value_head, "dV is staged in the buffer of K");
static_assert(!CONFIG.loads_twice || !CONFIG.reduces_dq || CONFIG.has_fp8_mma,
              "dQ would need a second copy of the resident K");
static_assert(!CONFIG.has_fp8_mma || (CONFIG.loads_twice && PANELS <= 2 && VALUE_PANELS <= 2 && BLOCK_RESIDENT == 128),
              "FP8 panels have 128 columns; dS has 128 keys");
static_assert(!CONFIG.has_parts || CONFIG.kv_resident, "a query head has only one key head");
static_assert(!CONFIG.kv_heads_differ || !(CONFIG.has_dqk && CONFIG.has_dv),
              "a CTA accumulates over one group of heads");
static_assert(MEMORY.bytes <= SHARED_MAX, "the maximum of a block is 227 KB");
static_assert(CONFIG.has_fp8_mma == (IS_FP8 && CONFIG.reduces_dq),
              "only sums over few columns or keys fit FP8 accumulators");
static_assert(2 * CONFIG.consumer_registers + CONFIG.producer_registers <= 3 * 168,
              "setmaxnreg would hang beyond the launch's registers");
static_assert(!CONFIG.kv_resident || CONFIG.block_streamed == CONFIG.block_q,
              "statistics are stored by blocks of queries");
static_assert(MASK_TILE % BLOCK_RESIDENT == 0 && MASK_TILE % CONFIG.block_streamed == 0,
              "a step is within one tile of a block mask");

extern __shared__ __align__(1024) unsigned char s_memory[];

/* GRADIENT_STAGED and RESIDENT_CLEARED are the first of one barrier per consumer. */
enum named_barrier : u32 { ALL_THREADS, PART_STAGED, GRADIENT_STAGED, STREAMED_CLEARED = 4, RESIDENT_CLEARED };

/* Addresses of the mbarriers. */
struct barriers {
    u32 resident_qk, resident_vdo, qk_full, qk_empty, vdo_full, vdo_empty, ds_full, ds_empty, resident_empty;
    u32 bias_full, bias_empty; /* has_tma_bias */
    u32 kt_full;               /* has_fp8_mma, which excludes has_tma_bias */
    DEVICE barriers(u32 base)
        : resident_qk(base + MEMORY.barriers), resident_vdo(resident_qk + 8), qk_full(resident_vdo + 8),
          qk_empty(qk_full + 8 * CONFIG.stages), vdo_full(qk_empty + 8 * CONFIG.stages),
          vdo_empty(vdo_full + 8 * CONFIG.vdo_stages), ds_full(vdo_empty + 8 * CONFIG.vdo_stages),
          ds_empty(ds_full + 8 * DS_STAGES), resident_empty(ds_empty + 8 * DS_STAGES), bias_full(resident_empty + 8),
          bias_empty(bias_full + 8), kt_full(bias_full) {}
};

template <int N> DEVICE void fence_registers(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        fence_register(r[i]);
}
template <int N> DEVICE void fence_registers(u32 (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        fence_register(r[i]);
}

/* Low word of the matrix descriptor of an operand in swizzled 128-byte rows; multiples of 16 bytes may be added to it.
   MN-major: panels of 64 columns, with a stride of panel_bytes. */
DEVICE u32 k_major(u32 address) { return address >> 4; }
DEVICE constexpr u32 mn_major(u32 panel_bytes) { return panel_bytes >> 4 << 16; }

/* ---- Work of a CTA ---- */

struct work {
    band visible;
    i32 resident, head, batch; /* the first resident row, and its head in the resident tensors */
    i32 part;                  /* has_parts: index over all resident heads of the batch entry */
    i32 first, last;           /* range of streamed blocks, per head */
    i32 steps;                 /* over all heads */
    box_origin qk_at, vdo_at;  /* TMA coordinates of the streamed tensors */

    DEVICE i32 resident_used() const { return CONFIG.kv_resident ? visible.keys : visible.queries; }
    DEVICE i32 streamed_used() const { return CONFIG.kv_resident ? visible.queries : visible.keys; }
    /* Streamed rows that are visible to a resident row, or that see it: low .. high - 1. Both grow with the row. */
    DEVICE i32 low(i32 row) const { return CONFIG.kv_resident ? row + visible.first : row - visible.last + 1; }
    DEVICE i32 high(i32 row) const {
        return CONFIG.kv_resident ? row + visible.last : min(row - visible.first + 1, visible.keys);
    }
};
constexpr bool HAS_LOW = CONFIG.kv_resident ? HAS_RIGHT : HAS_LEFT, HAS_HIGH = CONFIG.kv_resident ? HAS_LEFT : true;

/* Range of query heads: those that share the resident keys, or the head of the resident queries. */
template <class P> DEVICE i32 first_head(const P &p, const work &w) {
    i32 head = CONFIG.kv_resident ? w.head * (i32)p.group : w.head;
    if constexpr (CONFIG.has_parts)
        head += (w.part - w.head * (i32)p.parts) * (i32)p.heads_per_part;
    return head;
}
template <class P> DEVICE i32 last_head(const P &p, const work &w) {
    const i32 last = CONFIG.kv_resident ? (w.head + 1) * (i32)p.group : w.head + 1;
    if constexpr (CONFIG.has_parts)
        return min(first_head(p, w) + (i32)p.heads_per_part, last);
    else
        return last;
}

/* True if a streamed block is in an active tile of the block mask; head: of the queries. */
template <class P> DEVICE bool is_active_block(const P &p, const work &w, i32 head, i32 block) {
    const i32 streamed = block * CONFIG.block_streamed;
    return is_active_tile(p, w.batch, head, CONFIG.kv_resident ? streamed : w.resident,
                          CONFIG.kv_resident ? w.resident : streamed);
}
/* For a whole warp: the shuffle shows the compiler that the result is warp-uniform. */
template <class P> DEVICE bool is_active_for_warp(const P &p, const work &w, i32 head, i32 block) {
    return __shfl_sync(~0u, is_active_block(p, w, head, block), 0);
}
/* Counts the active steps, by whole warps. */
template <class P> DEVICE i32 count_steps(const P &p, const work &w) {
    i32 count = 0;
    for (i32 head = first_head(p, w), last = last_head(p, w); head < last; ++head)
        for (i32 from = w.first; from < w.last; from += 32) {
            const i32 block = from + (i32)lane_index();
            count += __popc(__ballot_sync(~0u, block < w.last && is_active_block(p, w, head, block)));
        }
    return count;
}

/* Splits w.head, which counts parts, into head and part. */
template <class P> DEVICE void find_part(const P &p, work &w) {
    w.part = w.head;
    w.head /= (i32)p.parts;
}

/* The CTA's resident rows. Their order puts those with most steps first: the first keys, or the last queries. */
DEVICE work find_resident_rows(const arguments &p) {
    const u32 blocks = (u32)p.resident_blocks, set_heads = (u32)p.heads_per_set,
              set = blockIdx.x / (blocks * set_heads);
    const u32 within = blockIdx.x - set * blocks * set_heads,
              heads = min(gridDim.x / blocks - set * set_heads, set_heads);
    const u32 number = within / heads, outer = set * set_heads + within - number * heads;
    const u32 block = CONFIG.kv_resident ? number : blocks - 1 - number, batch = outer / (u32)p.resident_heads;
    work w{band(p, (i32)batch), (i32)block * BLOCK_RESIDENT, (i32)(outer - batch * (u32)p.resident_heads), (i32)batch};
    if constexpr (CONFIG.has_parts)
        find_part(p, w);
    return w;
}
DEVICE work find_work(const arguments &p) {
    work w = find_resident_rows(p);
    w.qk_at = streamed_qk_entry(p, w.batch, w.streamed_used());
    w.vdo_at = streamed_vdo_entry(p, w.batch, w.streamed_used());
    const i32 last_resident = min(w.resident + BLOCK_RESIDENT, w.resident_used()) - 1;
    if (last_resident < w.resident)
        return w;
    w.first = max(w.low(w.resident), 0) / CONFIG.block_streamed;
    w.last = max((min(w.high(last_resident), w.streamed_used()) + CONFIG.block_streamed - 1) / CONFIG.block_streamed,
                 w.first);
    w.steps = HAS_BLOCK_MASK ? count_steps(p, w) : (w.last - w.first) * (last_head(p, w) - first_head(p, w));
    return w;
}

/* The streamed block of a step. With a block mask, w.steps determines which active block is the last one. */
struct cursor {
    i32 block, head;
    DEVICE explicit cursor(const arguments &p, const work &w)
        : block(w.first), head(CONFIG.kv_resident ? first_head(p, w) : w.head / (i32)p.group) {
        if (HAS_BLOCK_MASK && w.steps > 0)
            skip_inactive(p, w);
    }
    DEVICE void advance(const arguments &p, const work &w, bool is_last = false) {
        step(w);
        if (HAS_BLOCK_MASK && !is_last)
            skip_inactive(p, w);
    }
    DEVICE void step(const work &w) {
        if (++block < w.last)
            return;
        block = w.first;
        ++head;
    }
    DEVICE void skip_inactive(const arguments &p, const work &w) {
        while (!is_active_block(p, w, CONFIG.kv_resident ? head : w.head, block))
            step(w);
    }
};

/* ---- Loads ---- */

template <u32 BYTES>
DEVICE void load_resident(const tensor_map &map, u32 dst, u32 full, const work &w, i32 head, const box_origin &entry) {
    arrive_expecting(full, BYTES);
#pragma unroll
    for (u32 i = 0; i < BYTES / MEMORY.resident_panel; ++i)
        load_box(dst + i * MEMORY.resident_panel, map, full, i * 64, entry.row + w.resident, head, entry.outer);
}

template <u32 BYTES>
DEVICE void load_streamed(const tensor_map &map, u32 dst, u32 full, const cursor &at, i32 head,
                          const box_origin &entry) {
#pragma unroll
    for (u32 i = 0; i < BYTES / MEMORY.streamed_panel; ++i)
        load_box(dst + i * MEMORY.streamed_panel, map, full, i * 64, entry.row + at.block * CONFIG.block_streamed, head,
                 entry.outer);
}

/* Index of a block of block_q queries over all heads. */
DEVICE i64 q_tile(const arguments &p, i32 batch, i32 head, i32 block) {
    return (i64)(batch * (i32)p.heads + head) * p.q_blocks + block;
}

/* Head of the streamed V or dO. */
template <class P> DEVICE i32 vdo_head(const P &p, const work &w, const cursor &at) {
    if constexpr (!CONFIG.kv_resident && CONFIG.kv_heads_differ)
        return w.head / (i32)p.other_group_size;
    else
        return at.head;
}
/* kv_heads_differ: for a query head, the head of the resident tensor whose gradient this CTA does not compute. */
template <class P> DEVICE i32 other_head(const P &p, i32 head) {
    if constexpr (CONFIG.kv_heads_differ)
        return head / (i32)p.other_group_size;
    else
        return 0;
}
constexpr bool RELOADS = CONFIG.kv_resident && CONFIG.kv_heads_differ;

/* loads_twice: the streamed operand of dQ or dK. */
template <class P> DEVICE void load_dqk_operand(const P &p, u32 dst, u32 full, const cursor &at, const work &w) {
    load_streamed<MEMORY.dqk_operand_bytes>(p.dqk_operand_map, dst, full, at, at.head,
                                            dqk_operand_entry(p, w.batch, w.streamed_used()));
}

/* has_fp8_mma: dO in the version that dV reads. */
template <class P> DEVICE void load_dv_operand(const P &p, u32 dst, u32 full, const cursor &at, const work &w) {
    load_streamed<MEMORY.dv_operand_bytes>(p.dv_operand_map, dst, full, at, vdo_head(p, w, at), w.vdo_at);
}

/* Loads step i after the consumers have released its stages. */
DEVICE void load_step(const arguments &p, const work &w, u32 base, const barriers &b, const cursor &at, i32 i,
                      i32 stage) {
    const i32 vdo_stage = CONFIG.vdo_stages == CONFIG.stages ? stage : i % CONFIG.vdo_stages;
    const u32 qk_full = b.qk_full + 8 * stage, vdo_full = b.vdo_full + 8 * vdo_stage;
    if (i >= CONFIG.stages) {
        wait(b.qk_empty + 8 * stage, i / CONFIG.stages & 1 ^ 1);
        if (CONFIG.vdo_stages == CONFIG.stages)
            wait(b.vdo_empty + 8 * stage, i / CONFIG.stages & 1 ^ 1);
    }
    arrive_expecting(qk_full, MEMORY.qk_bytes + MEMORY.statistics_bytes);
    load_streamed<MEMORY.s_operand_bytes>(p.streamed_qk_map, base + MEMORY.streamed_qk + stage * MEMORY.qk_bytes,
                                          qk_full, at, at.head, w.qk_at);
    if constexpr (CONFIG.loads_twice)
        load_dqk_operand(p, base + MEMORY.streamed_qk + stage * MEMORY.qk_bytes + MEMORY.s_operand_bytes, qk_full, at,
                         w);
    if constexpr (CONFIG.kv_resident)
        load_bytes(base + MEMORY.statistics + stage * MEMORY.statistics_bytes,
                   p.statistics + q_tile(p, w.batch, at.head, at.block) * 2 * CONFIG.block_q, MEMORY.statistics_bytes,
                   qk_full);
    if (CONFIG.vdo_stages != CONFIG.stages && i >= CONFIG.vdo_stages)
        wait(b.vdo_empty + 8 * vdo_stage, i / CONFIG.vdo_stages & 1 ^ 1);
    arrive_expecting(vdo_full, MEMORY.vdo_bytes);
    load_streamed<MEMORY.dp_operand_bytes>(p.streamed_vdo_map,
                                           base + MEMORY.streamed_vdo + vdo_stage * MEMORY.vdo_bytes, vdo_full, at,
                                           vdo_head(p, w, at), w.vdo_at);
    if constexpr (CONFIG.has_fp8_mma)
        load_dv_operand(p, base + MEMORY.streamed_vdo + vdo_stage * MEMORY.vdo_bytes + MEMORY.dp_operand_bytes,
                        vdo_full, at, w);
}

/* has_tma_bias: loads each consumer's bias of a step: its keys of the streamed queries. */
template <class P> DEVICE void load_bias(const P &p, const work &w, u32 base, const barriers &b, const cursor &at) {
    arrive_expecting(b.bias_full, MEMORY.bias_bytes);
#pragma unroll
    for (int half = 0; half < 2; ++half)
        load_box(base + MEMORY.bias + half * MEMORY.streamed_panel, p.bias_map, b.bias_full, w.resident + half * HALF,
                 at.block * CONFIG.block_streamed, p.bias_head ? at.head : 0, p.bias_batch ? w.batch : 0);
}
/* Loads the bias of step i + 1 after the consumers have read that of step i. */
template <class P>
DEVICE void load_next_bias(const P &p, const work &w, u32 base, const barriers &b, cursor at, i32 i) {
    if (i + 1 == w.steps)
        return;
    at.advance(p, w);
    wait(b.bias_empty, i & 1);
    load_bias(p, w, base, b, at);
}

/* has_fp8_mma: loads the resident K in tiles, to be transposed for dQ. */
template <class P> DEVICE void load_kt(const P &p, const work &w, u32 base, const barriers &b) {
    arrive_expecting(b.kt_full, MEMORY.kt_bytes);
#pragma unroll
    for (u32 i = 0; i < MEMORY.kt_bytes / FP8_TILE_BYTES; ++i)
        load_box(base + MEMORY.kt + i * FP8_TILE_BYTES, p.kt_map, b.kt_full, i % PANELS * 64,
                 w.resident + i / PANELS * 64, w.head, w.batch);
}
/* By warpgroup 0. */
DEVICE void transpose_k(const work &w, u32 base, const barriers &b) {
    wait(b.kt_full, 0);
#pragma unroll 1
    for (i32 i = (i32)warp_index(); i < (i32)(2 * MEMORY.kt_bytes / FP8_TILE_BYTES); i += 4)
        transpose_pair<true>(base + MEMORY.kt + i / 2 * FP8_TILE_BYTES, i % 2,
                             w.visible.keys - w.resident - i / 2 / PANELS * 64);
    publish_to_async_proxy();
    sync_threads(PART_STAGED, 128);
}

DEVICE void load_first_steps(const arguments &p, const work &w, u32 base, const barriers &b) {
    cursor at(p, w);
    load_resident<MEMORY.resident_qk_bytes>(p.resident_qk_map, base + MEMORY.resident_qk, b.resident_qk, w, w.head,
                                            resident_qk_entry(p, w.batch, w.resident_used()));
    load_step(p, w, base, b, at, 0, 0);
    if constexpr (CONFIG.has_tma_bias)
        load_bias(p, w, base, b, at);
    if constexpr (CONFIG.has_dqk)
        load_resident<MEMORY.resident_vdo_bytes>(p.resident_vdo_map, base + MEMORY.resident_vdo, b.resident_vdo, w,
                                                 w.head, resident_vdo_entry(p, w.batch, w.resident_used()));
    if constexpr (CONFIG.has_fp8_mma)
        load_kt(p, w, base, b);
#pragma unroll 1
    for (i32 i = 1; i < CONFIG.stages && i < w.steps; ++i) {
        at.advance(p, w);
        load_step(p, w, base, b, at, i, i);
    }
}

/* Loads step i + stages - 1 into the stage that step i - 1 released. */
DEVICE void load_next_step(const arguments &p, const work &w, u32 base, const barriers &b, cursor at, i32 i,
                           i32 stage) {
    const i32 next = i + CONFIG.stages - 1;
    if (i == 0 || next >= w.steps)
        return;
#pragma unroll 1
    for (int k = 0; k < CONFIG.stages - 1; ++k)
        at.advance(p, w);
    load_step(p, w, base, b, at, next, stage > 0 ? stage - 1 : CONFIG.stages - 1);
}

/* Reloads the resident tensor whose gradient this CTA does not compute, after the consumers have released the previous
   head; `i` counts the reloads. */
template <class P>
DEVICE void reload_resident(const P &p, const work &w, u32 base, const barriers &b, i32 head, i32 i) {
    wait(b.resident_empty, i & 1);
    if constexpr (CONFIG.has_dqk)
        load_resident<MEMORY.resident_vdo_bytes>(p.resident_vdo_map, base + MEMORY.resident_vdo, b.resident_vdo, w,
                                                 head, resident_vdo_entry(p, w.batch, w.resident_used()));
    else
        load_resident<MEMORY.resident_qk_bytes>(p.resident_qk_map, base + MEMORY.resident_qk, b.resident_qk, w, head,
                                                resident_qk_entry(p, w.batch, w.resident_used()));
}

/* RELOADS: one thread loads in the order of use. */
DEVICE void load_steps_of_heads(const arguments &p, const work &w, u32 base, const barriers &b) {
    cursor at(p, w);
    i32 resident = other_head(p, at.head), reloads = 0;
    load_resident<MEMORY.resident_qk_bytes>(p.resident_qk_map, base + MEMORY.resident_qk, b.resident_qk, w,
                                            CONFIG.has_dqk ? w.head : resident,
                                            resident_qk_entry(p, w.batch, w.resident_used()));
    if constexpr (CONFIG.has_dqk)
        load_resident<MEMORY.resident_vdo_bytes>(p.resident_vdo_map, base + MEMORY.resident_vdo, b.resident_vdo, w,
                                                 resident, resident_vdo_entry(p, w.batch, w.resident_used()));
    for (i32 i = 0; i < w.steps; ++i) {
        if (const i32 now = other_head(p, at.head); now != resident)
            reload_resident(p, w, base, b, resident = now, reloads++);
        load_step(p, w, base, b, at, i, i % CONFIG.stages);
        at.advance(p, w, i + 1 == w.steps);
    }
}

/* For one thread that has no other work. */
DEVICE void load_steps(const arguments &p, u32 base) {
    const work w = find_work(p);
    const barriers b(base);
    if (threadIdx.x != 0 || w.steps == 0)
        return;
    if constexpr (RELOADS) {
        load_steps_of_heads(p, w, base, b);
        return;
    }
    load_first_steps(p, w, base, b);
    cursor at(p, w);
    for (i32 i = 0, stage = 0; i < w.steps; ++i) {
        load_next_step(p, w, base, b, at, i, stage);
        at.advance(p, w, i + 1 == w.steps);
        if (++stage == CONFIG.stages)
            stage = 0;
    }
}

/* ---- Warpgroup 0, reduces_dq: dQ ---- */

/* 64 queries x 64 columns of dS K with FP8 operands, from transposed K. */
DEVICE void issue_dq_fp8(float (&dq)[32], u32 base, u32 slot, int part) {
    const u32 ds = k_major(base + MEMORY.ds + slot * MEMORY.ds_bytes),
              keys = k_major(base + MEMORY.kt + part * FP8_TILE_BYTES);
    mma_dq_first(dq, ds, keys);
#pragma unroll
    for (int k = 1; k < BLOCK_RESIDENT / 32; ++k)
        mma_dq(dq, ds + k * 2, keys + k / 2 * (PANELS * FP8_TILE_BYTES >> 4) + k % 2 * 2);
}
/* 64 queries x 64 columns of dS K. */
DEVICE void issue_dq(float (&dq)[32], u32 base, u32 slot, int part) {
    const u32 ds = k_major(base + MEMORY.ds + slot * MEMORY.ds_bytes + part / PANELS * MEMORY.resident_panel) +
                   mn_major(MEMORY.resident_panel);
    const u32 keys =
        k_major(base + MEMORY.resident_qk + part % PANELS * MEMORY.resident_panel) + mn_major(MEMORY.resident_panel);
    mma_dq_first(dq, ds, keys);
#pragma unroll
    for (int k = 1; k < BLOCK_RESIDENT / 16; ++k)
        mma_dq(dq, ds + k * 128, keys + k * 128);
}

/* stores_dq: stores 64 columns from `column` on of rows of the gradient's type. */
DEVICE void store_dq_part(const float (&dq)[32], float scale, u32 s_part, const tensor_map &map, i32 column, i32 row,
                          i32 head, i32 batch) {
    const u32 lane = lane_index(), to = s_part + (16 * warp_index() + lane % 16) * 128;
#pragma unroll
    for (int c = 0; c < 8; c += 2) {
        const float *const x = dq + 4 * c;
        const u32 four[4] = {
            rounded_pair<in_t>(x[0] * scale, x[1] * scale), rounded_pair<in_t>(x[2] * scale, x[3] * scale),
            rounded_pair<in_t>(x[4] * scale, x[5] * scale), rounded_pair<in_t>(x[6] * scale, x[7] * scale)};
        store_matrices(to + ((c + lane / 16) ^ (lane & 7)) * 16, four);
    }
    publish_to_async_proxy();
    sync_threads(PART_STAGED, 128);
    if (threadIdx.x != 0)
        return;
    store_box(map, s_part, column, row, head, batch);
    commit_stores();
}

/* Stages a part in accumulator order. */
DEVICE void stage_part(const float (&dq)[32], u32 s_part, u32 warp) {
#pragma unroll
    for (int c = 0; c < 8; ++c)
        store_quad(s_part + sums_offset(c, warp) * 4, dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]);
    publish_to_async_proxy();
}
DEVICE void reduce_part(const float (&dq)[32], u32 s_part, float *sum) {
    stage_part(dq, s_part, 0);
    sync_threads(PART_STAGED, 128);
    if (threadIdx.x != 0)
        return;
    add_bytes(sum, s_part, PART_BYTES);
    commit_stores();
}
/* has_fp8_mma: each warp adds its own rows. This is slower with 16-bit operands. */
DEVICE void reduce_warp_part(const float (&dq)[32], u32 s_part, float *sum) {
    constexpr u32 WARP_BYTES = PART_BYTES / 4;
    const u32 warp = warp_index();
    stage_part(dq, s_part, warp);
    __syncwarp();
    if (lane_index() == 0) {
        add_bytes(sum + warp * (WARP_BYTES / 4), s_part + warp * WARP_BYTES, WARP_BYTES);
        commit_stores();
    }
    __syncwarp();
}
/* Waits until TMA has read the previous contents of the staging buffer. */
DEVICE void await_staging(int staged) {
    if constexpr (CONFIG.has_fp8_mma) {
        if (lane_index() == 0)
            wait_stores_read<0>();
        __syncwarp();
    } else if (staged == 0) {
        if (threadIdx.x == 0)
            wait_stores_read<0>();
        __syncwarp();
        sync_threads(PART_STAGED, 128);
    }
}

template <class P> DEVICE void compute_dq(const P &p, u32 base) {
    const work w = find_work(p);
    const barriers b(base);
    cursor at(p, w);
    float dq[32];
    [[maybe_unused]] const float scale = CONFIG.stores_dq ? scale_of(p) * derivative_factor_of(p) : 1.0f;
    if (threadIdx.x == 0 && w.steps > 0)
        load_first_steps(p, w, base, b);
    __syncwarp();
    if (CONFIG.has_fp8_mma && w.steps > 0)
        transpose_k(w, base, b);
    i32 stage = 0; /* of step i */
    for (i32 i = 0; i < w.steps; ++i) {
        const u32 slot = i % DS_STAGES;
        if constexpr (CONFIG.has_tma_bias) {
            if (threadIdx.x == 0)
                load_next_bias(p, w, base, b, at, i);
            __syncwarp();
        }
        wait(b.ds_full + 8 * slot, i / DS_STAGES & 1);
        if (!CONFIG.has_fp8_mma && i == 0)
            wait(b.resident_qk, 0);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int staged = part % MEMORY.parts_staged;
            mma_fence();
            if constexpr (CONFIG.has_fp8_mma)
                issue_dq_fp8(dq, base, slot, part);
            else
                issue_dq(dq, base, slot, part);
            mma_commit();
            if (part == 0 && threadIdx.x == 0)
                load_next_step(p, w, base, b, at, i, stage);
            await_staging(staged);
            mma_wait<0>();
            fence_registers(dq);
            if (part == PARTS - 1 && lane_index() == 0)
                arrive(b.ds_empty + 8 * slot);
            if constexpr (CONFIG.stores_dq)
                store_dq_part(dq, scale, base + MEMORY.dq + staged * PART_BYTES, p.dq_map, part % PANELS * 64,
                              at.block * CONFIG.block_streamed + part / PANELS * 64, at.head, w.batch);
            else {
                float *const sum = p.dq_sum + (q_tile(p, w.batch, at.head, at.block) * PARTS + part) * (PART_BYTES / 4);
                if constexpr (CONFIG.has_fp8_mma)
                    reduce_warp_part(dq, base + MEMORY.dq + staged * PART_BYTES, sum);
                else
                    reduce_part(dq, base + MEMORY.dq + staged * PART_BYTES, sum);
            }
        }
        at.advance(p, w, i + 1 == w.steps);
        if (++stage == CONFIG.stages)
            stage = 0;
    }
    if (CONFIG.has_fp8_mma ? lane_index() == 0 : threadIdx.x == 0)
        wait_stores_read<0>();
}

/* ---- Consumers: P, dS, and the gradients of resident rows ---- */

/* S and dP: resident rows x streamed rows. */
DEVICE void issue_s_tile(float (&s)[CONFIG.block_streamed / 2], u32 resident, u32 streamed) {
    mma_s_first(s, resident, streamed);
#pragma unroll
    for (int k = 1; k < CONFIG.head / STEP; ++k)
        mma_s(s, resident + k / 4 * (MEMORY.resident_panel >> 4) + k % 4 * 2,
              streamed + k / 4 * (MEMORY.streamed_panel >> 4) + k % 4 * 2);
}
DEVICE void issue_dp_tile(float (&dp)[CONFIG.block_streamed / 2], u32 resident, u32 streamed) {
    mma_dp_first(dp, resident, streamed);
#pragma unroll
    for (int k = 1; k < CONFIG.value_head / STEP; ++k)
        mma_dp(dp, resident + k / 4 * (MEMORY.resident_panel >> 4) + k % 4 * 2,
               streamed + k / 4 * (MEMORY.streamed_panel >> 4) + k % 4 * 2);
}
DEVICE void issue_dqk(float (&sum)[CONFIG.head / 2], const u32 (&operand)[CONFIG.block_streamed / 4], u32 streamed) {
#pragma unroll
    for (int k = 0; k < CONFIG.block_streamed / 16; ++k)
        mma_dqk(sum, operand + 4 * k, streamed + mn_major(MEMORY.streamed_panel) + k * 128);
}
DEVICE void issue_dv(float (&sum)[CONFIG.value_head / 2], const u32 (&operand)[CONFIG.block_streamed / 4],
                     u32 streamed) {
#pragma unroll
    for (int k = 0; k < CONFIG.block_streamed / 16; ++k)
        mma_dv(sum, operand + 4 * k, streamed + mn_major(MEMORY.streamed_panel) + k * 128);
}

/* Position of a thread's elements: 4c + e is resident row + 8 (e / 2), streamed row 8c + column + e % 2. */
struct fragment_position {
    i32 row, column;
    DEVICE fragment_position() : row(16 * (warp_index() & 3) + lane_index() / 4), column(2 * (lane_index() & 3)) {}
};

/* lse2 and delta of queries: in shared memory if queries are streamed, in registers if they are resident. */
struct row_statistics {
    float lse2[2] = {}, delta[2] = {};
    DEVICE row_statistics(const arguments &p, const work &w, i32 resident) {
        if constexpr (!CONFIG.kv_resident) {
            const fragment_position at;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const i32 row = resident + at.row + 8 * h, block = min(row / CONFIG.block_q, (i32)p.q_blocks - 1);
                const float *const tile = p.statistics + q_tile(p, w.batch, w.head, block) * 2 * CONFIG.block_q;
                lse2[h] = tile[row % CONFIG.block_q];
                delta[h] = tile[CONFIG.block_q + row % CONFIG.block_q];
            }
        }
    }
    static DEVICE void load(float (&four)[4], u32 s_pair, const float (&resident)[2]) {
        float pair[2];
        if constexpr (CONFIG.kv_resident)
            load_pair(pair, s_pair);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            four[e] = CONFIG.kv_resident ? pair[e % 2] : resident[e / 2];
    }
};

/* ALiBi slope of a query head, times log2(e). */
DEVICE float slope2_of(const arguments &p, i32 head) {
    return HAS_ALIBI ? alibi_slope<float>(head, (i32)p.heads) * 1.44269504f : 0.0f;
}

/* P = 2^(scale2 S + slope2 (key - query) - lse2); resident and streamed: the tile's first rows. */
DEVICE void compute_p(float (&s)[CONFIG.block_streamed / 2], const row_statistics &resident_statistics, u32 s_lse2,
                      float scale2, float slope2, i32 resident, i32 streamed) {
    const fragment_position at;
    const float distance = (float)(streamed + at.column - resident - at.row); /* streamed row minus resident row */
    const float alibi_step = CONFIG.kv_resident ? slope2 : -slope2; /* of lse2 minus ALiBi per unit of distance */
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 8; ++c) {
        float lse2[4];
        row_statistics::load(lse2, s_lse2 + c * 32, resident_statistics.lse2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float shift = lse2[e];
            if constexpr (HAS_ALIBI)
                shift += alibi_step * (distance + (8 * c + e % 2 - e / 2 * 8));
            s[4 * c + e] = exp2_approx(s[4 * c + e] * scale2 - shift);
        }
    }
}

/* Derivatives of the score modifier, in pairs. */
using derivative_pairs = u32[CONFIG.has_derivatives ? CONFIG.block_streamed / 4 : 1];
constexpr bool HAS_SCORES = HAS_MODIFIER || BIAS != 0; /* scores are computed per element, in natural units */

/* has_factors: constant factors of all inputs of the modifier, and of all its outputs; otherwise 1. */
template <class P> DEVICE float first_factor(const P &p) {
    if constexpr (CONFIG.has_factors)
        return factor_before(p);
    else
        return 1.0f;
}
template <class P> DEVICE float last_factor(const P &p) {
    if constexpr (CONFIG.has_factors)
        return factor_after(p);
    else
        return 1.0f;
}
/* Without a bias, the last factor is folded into log2(e). */
constexpr bool FUSES_LAST_FACTOR = CONFIG.has_factors && BIAS == 0;

/* Score without ALiBi, from the product times the scale and first_factor. */
template <class P>
DEVICE float transform_score(const P &p, i32 batch, i32 head, i32 query, i32 key, float scaled, float bias) {
    if constexpr (FUSES_LAST_FACTOR)
        return modified_between(p, batch, head, query, key, scaled);
    else if constexpr (CONFIG.has_factors)
        return with_bias<true>(modified_between(p, batch, head, query, key, scaled) * last_factor(p), bias);
    else
        return score_of<true>(p, batch, head, query, key, scaled, bias);
}
/* is_soft_cap: a tanh between two factors, whose derivative is always finite, so it is multiplied into P, in pairs. Not
   with dropout, which needs P itself. */
constexpr bool FUSES_DERIVATIVES = CONFIG.is_soft_cap && !HAS_DROPOUT;

/* Derivative of the score, without derivative_factor_of. If the score hides a key it is arbitrary, because P is 0
   then. */
template <class P> DEVICE float derivative_at(const P &p, i32 batch, i32 head, i32 query, i32 key, float scaled) {
    if constexpr (CONFIG.is_soft_cap) {
        const float tanh = modified_between(p, batch, head, query, key, scaled);
        return fmaf(-tanh, tanh, 1.0f);
    } else if constexpr (CONFIG.has_factors)
        return between_gradient(p, batch, head, query, key, scaled, first_factor(p) * last_factor(p));
    else
        return modified_gradient(p, batch, head, query, key, scaled, 1.0f);
}

/* Bias of 16 queries from 8c on, in pairs in accumulator order; s_bias: this consumer's box. */
DEVICE void load_bias_fragment(u32 (&pairs)[4], u32 s_bias, int c) {
    const u32 lane = lane_index(), key = 2 * (warp_index() & 3) + lane / 8 % 2; /* in units of eight keys */
    load_matrices_transposed(pairs, s_bias + (lane / 16 * 8 + lane % 8) * 128 + (key ^ lane % 8) * 16 + c * 1024);
}

/* P with a modifier or a bias. Indices beyond the tensors are clamped; such elements are masked, or their statistics
   are +inf. head: of the queries. */
template <class P>
DEVICE void compute_p_with_terms(float (&s)[CONFIG.block_streamed / 2], derivative_pairs &derivatives, const P &p,
                                 i32 batch, i32 head, const row_statistics &resident_statistics, u32 s_lse2, u32 s_bias,
                                 float scale, float slope2, i32 resident, i32 streamed) {
    const fragment_position at;
    [[maybe_unused]] const float distance = (float)(streamed + at.column - resident - at.row);
    [[maybe_unused]] const float alibi_step = CONFIG.kv_resident ? slope2 : -slope2;
    const i32 last_row = (i32)(CONFIG.kv_resident ? p.keys : p.queries) - 1,
              last_column = (i32)(CONFIG.kv_resident ? p.queries : p.keys) - 1;
    const float to_exponent = FUSES_LAST_FACTOR ? last_factor(p) * 1.44269504f : 1.44269504f;
    scale *= first_factor(p);
    i32 rows[2];
    bias_offset bias[2];
    [[maybe_unused]] u32 pairs[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        rows[h] = min(resident + at.row + 8 * h, last_row);
        bias[h] = bias_row(p, batch, head, rows[h], CONFIG.kv_resident);
    }
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 8; ++c) {
        float lse2[4];
        [[maybe_unused]] float derivative[4];
        [[maybe_unused]] float tma_bias[2][2];
        if constexpr (CONFIG.has_tma_bias) {
            if (c % 2 == 0)
                load_bias_fragment(pairs, s_bias, c);
#pragma unroll
            for (int h = 0; h < 2; ++h)
                unpack_bias(tma_bias[h], pairs[c % 2 * 2 + h]);
        }
        row_statistics::load(lse2, s_lse2 + c * 32, resident_statistics.lse2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const i32 column = min(streamed + at.column + 8 * c + e % 2, last_column);
            const i32 query = CONFIG.kv_resident ? column : rows[e / 2],
                      key = CONFIG.kv_resident ? rows[e / 2] : column;
            const float scaled = s[4 * c + e] * scale;
            const float bias_value =
                CONFIG.has_tma_bias ? tma_bias[e / 2][e % 2] : bias_at<CONFIG.kv_resident>(p, bias[e / 2], column);
            const float score = transform_score(p, batch, head, query, key, scaled, bias_value);
            if constexpr (CONFIG.has_derivatives)
                derivative[e] = derivative_at(p, batch, head, query, key, scaled);
            float shift = lse2[e];
            if constexpr (HAS_ALIBI)
                shift += alibi_step * (distance + (8 * c + e % 2 - e / 2 * 8));
            s[4 * c + e] = exp2_approx(score * to_exponent - shift);
        }
        if constexpr (CONFIG.has_derivatives)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                derivatives[2 * c + h] = rounded_pair<in_t>(derivative[2 * h], derivative[2 * h + 1]);
    }
}

/* Products of pairs, rounded to the operand type. */
DEVICE u32 multiply_pairs(u32 a, u32 b) {
    constexpr u32 NEGATIVE_ZERO = 0x80008000; /* -0, the neutral addend */
    return IS_BF16 ? ptx::fma_bf16x2(a, b, NEGATIVE_ZERO) : ptx::fma_f16x2(a, b, NEGATIVE_ZERO);
}

constexpr int KEEP_WORDS = CONFIG.block_streamed / 64;

/* P is rounded after dS has been computed from it. Otherwise it is unpacked for dS, which costs an instruction per
   element but needs fewer registers. */
constexpr bool ROUNDS_P_LAST =
    CONFIG.has_dqk && !CONFIG.has_derivatives && !HAS_DROPOUT && (!CONFIG.reduces_dq || CONFIG.has_fp8_mma);

/* True if the tile of HALF resident and block_streamed streamed rows needs masking. */
DEVICE bool needs_mask(const work &w, i32 resident, i32 streamed) {
    return (CONFIG.kv_resident && resident + HALF > w.visible.keys) ||
           (HAS_LOW && w.low(resident + HALF - 1) > streamed) ||
           (HAS_HIGH && w.high(resident) < streamed + CONFIG.block_streamed);
}
/* Zeroes P of invisible pairs. */
DEVICE void mask_p(float (&s)[CONFIG.block_streamed / 2], const work &w, i32 resident, i32 streamed) {
    const fragment_position at;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const i32 row = resident + at.row + e / 2 * 8, column = streamed + at.column + e % 2;
        const i32 low = CONFIG.kv_resident && row >= w.visible.keys ? CONFIG.block_streamed
                        : HAS_LOW                                   ? w.low(row) - column
                                                                    : -CONFIG.block_streamed;
        const i32 high = HAS_HIGH ? w.high(row) - column : CONFIG.block_streamed;
#pragma unroll
        for (int c = 0; c < CONFIG.block_streamed / 8; ++c)
            if (8 * c < low || (HAS_HIGH && 8 * c >= high))
                s[4 * c + e] = 0;
    }
}

/* has_fp8_mma: dS as FP8, as it is published: per 8 columns, two elements of a row and two of the row 8 below. */
using fp8_words = u32[CONFIG.has_fp8_mma ? CONFIG.block_streamed / 8 : 1];
DEVICE void widen_ds(u32 (&ds)[CONFIG.block_streamed / 4], const fp8_words &ds_fp8) {
#pragma unroll
    for (int i = 0; i < CONFIG.block_streamed / 4; ++i)
        ds[i] = widened_pair<ds_operand_t>((u16)(ds_fp8[i / 2] >> i % 2 * 16));
}

/* dS = P (dP - delta), from rounded P, or from exact P with ROUNDS_P_LAST. HAS_DROPOUT: computes P' dP - P delta, where
   P' is P with dropped elements zeroed, and replaces P by P'; the statistics include the keep probability, see
   backward_rows. */
DEVICE void compute_ds(u32 (&ds)[CONFIG.block_streamed / 4], fp8_words &ds_fp8,
                       u32 (&p_pairs)[CONFIG.block_streamed / 4], const float (&p_exact)[CONFIG.block_streamed / 2],
                       const derivative_pairs &derivatives, const float (&dp)[CONFIG.block_streamed / 2],
                       const row_statistics &resident, u32 s_delta, const u32 (&keep_mask)[KEEP_WORDS],
                       score_factors &factors) {
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 8; ++c) {
        float delta[4];
        row_statistics::load(delta, s_delta + c * 32, resident.delta);
        const auto scaled_dp = [&](int i) { return IS_FP8 ? dp[i] * factors.dp_factor : dp[i]; };
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 pair = p_pairs[2 * c + h];
            const int i = 4 * c + 2 * h;
            float low, high;
            if constexpr (HAS_DROPOUT) {
                drop_pair(p_pairs[2 * c + h], keep_mask, i);
                const u32 p_pair = p_pairs[2 * c + h];
                low = low_half(p_pair) * dp[i] - low_half(pair) * delta[2 * h];
                high = high_half(p_pair) * dp[i + 1] - high_half(pair) * delta[2 * h + 1];
            } else if constexpr (ROUNDS_P_LAST) {
                low = p_exact[i] * (scaled_dp(i) - delta[2 * h]);
                high = p_exact[i + 1] * (scaled_dp(i + 1) - delta[2 * h + 1]);
            } else {
                const u32 p_pair = FUSES_DERIVATIVES ? derivatives[2 * c + h] : pair;
                low = low_half(p_pair) * (scaled_dp(i) - delta[2 * h]);
                high = high_half(p_pair) * (scaled_dp(i + 1) - delta[2 * h + 1]);
            }
            if constexpr (CONFIG.has_derivatives &&
                          !FUSES_DERIVATIVES) { /* derivatives may be infinite or NaN if P is 0 */
                low = low == 0 ? 0.0f : low * low_half(derivatives[2 * c + h]);
                high = high == 0 ? 0.0f : high * high_half(derivatives[2 * c + h]);
            }
            factors.note(low, high);
            if constexpr (CONFIG.has_fp8_mma)
                ds_fp8[c] = (h == 0 ? 0 : ds_fp8[c]) | (u32)byte_pair<ds_operand_t>(low, high) << 16 * h;
            else
                ds[2 * c + h] = IS_FP8 ? factor_pair<ds_operand_t>(low, high) : rounded_pair<in_t>(low, high);
        }
    }
}

/* Stores the dS of this warp's 16 keys, transposed for dQ. */
DEVICE void store_ds(const u32 (&ds)[CONFIG.block_streamed / 4], u32 s_row) {
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 16; ++c) {
        const u32 four[4] = {ds[4 * c], ds[4 * c + 1], ds[4 * c + 2], ds[4 * c + 3]};
        store_matrices(s_row + c / 4 * MEMORY.resident_panel +
                           ((2 * (c & 3) + lane_index() / 16) ^ (lane_index() & 7)) * 16,
                       four);
    }
}

/* FP8 version, K-major: rows are queries, and keys r and r + 8 of a warp are adjacent, in the order of transpose_k. */
DEVICE void store_ds_fp8(const fp8_words &ds_fp8, u32 s_ds, int half) {
    const u32 lane = lane_index(), chunk = (u32)half * 4 + (warp_index() & 3);
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 8; c += 4) {
        const u32 four[4] = {__byte_perm(ds_fp8[c], 0, 0x3120), __byte_perm(ds_fp8[c + 1], 0, 0x3120),
                             __byte_perm(ds_fp8[c + 2], 0, 0x3120), __byte_perm(ds_fp8[c + 3], 0, 0x3120)};
        store_matrices_transposed(s_ds + (c * 8 + lane) * 128 + (chunk ^ lane & 7) * 16, four);
    }
}

/* Clears rows `from` .. `last` - 1 of COUNT panels, 16 bytes at a time. */
template <int COUNT> DEVICE void clear_rows(u32 s_tile, i32 from, i32 last, u32 panel, u32 thread, u32 threads) {
    for (i32 i = from * 8 + (i32)thread; i < last * 8; i += (i32)threads)
#pragma unroll
        for (int s = 0; s < COUNT; ++s)
            store_words(s_tile + s * panel + i * 16, words{});
}
/* Clears resident rows past the length in use. */
DEVICE void clear_resident(const work &w, u32 base, int half) {
    const i32 used = w.resident_used() - w.resident - half * HALF;
    if (used >= HALF)
        return;
    clear_rows<S_PANELS>(base + MEMORY.resident_qk + half * HALF * 128, max(used, 0), HALF, MEMORY.resident_panel,
                         threadIdx.x & 127, 128);
    if constexpr (CONFIG.has_dqk)
        clear_rows<DP_PANELS>(base + MEMORY.resident_vdo + half * HALF * 128, max(used, 0), HALF, MEMORY.resident_panel,
                              threadIdx.x & 127, 128);
    publish_to_async_proxy();
    sync_threads(RESIDENT_CLEARED + half, 128);
}
/* Clears streamed rows past the length in use. Both consumers execute this for such a step. */
DEVICE void clear_streamed(const work &w, u32 base, const barriers &b, i32 streamed, i32 stage, i32 vdo_stage,
                           i32 vdo_phase) {
    const i32 used = w.streamed_used() - streamed;
    if (used >= CONFIG.block_streamed)
        return;
    wait(b.vdo_full + 8 * vdo_stage, vdo_phase);
    clear_rows<MEMORY.qk_bytes / MEMORY.streamed_panel>(base + MEMORY.streamed_qk + stage * MEMORY.qk_bytes, used,
                                                        CONFIG.block_streamed, MEMORY.streamed_panel, threadIdx.x - 128,
                                                        256);
    clear_rows<MEMORY.vdo_bytes / MEMORY.streamed_panel>(base + MEMORY.streamed_vdo + vdo_stage * MEMORY.vdo_bytes,
                                                         used, CONFIG.block_streamed, MEMORY.streamed_panel,
                                                         threadIdx.x - 128, 256);
    publish_to_async_proxy();
    sync_threads(STREAMED_CLEARED, 256);
}
constexpr bool CLEARS_RESIDENT =
    (CONFIG.kv_resident ? HAS_SEQ_LEN_KV : HAS_SEQ_LEN_Q) && !(RESIDENT_QK_IS_RAGGED && RESIDENT_VDO_IS_RAGGED);
constexpr bool CLEARS_STREAMED =
    (CONFIG.kv_resident ? HAS_SEQ_LEN_Q : HAS_SEQ_LEN_KV) && !(STREAMED_QK_IS_RAGGED && STREAMED_VDO_IS_RAGGED);

/* True if nothing in this step is visible to the second consumer. The first step can be such a step if streamed blocks
   are half as long as resident ones. A step whose rows must be cleared needs both consumers. */
DEVICE bool is_step_hidden(const work &w, i32 resident, i32 streamed) {
    const bool is_whole = !CLEARS_STREAMED || streamed + CONFIG.block_streamed <= w.streamed_used();
    return CONFIG.kv_resident && HAS_LOW && CONFIG.block_streamed <= HALF && is_whole &&
           w.low(resident) >= streamed + CONFIG.block_streamed;
}

/* Stores a gradient through this consumer's resident rows. */
template <bool IS_RAGGED, int N>
DEVICE void store_gradient(const float (&sum)[N], float scale, u32 s_rows, const tensor_map &map, const work &w,
                           const box_origin &entry, int half) {
    const u32 lane = lane_index(), to = s_rows + (16 * (warp_index() & 3) + lane % 16) * 128;
#pragma unroll
    for (int c = 0; c < N / 4; c += 2) {
        const float *const x = sum + 4 * c;
        const u32 four[4] = {
            rounded_pair<in_t>(x[0] * scale, x[1] * scale), rounded_pair<in_t>(x[2] * scale, x[3] * scale),
            rounded_pair<in_t>(x[4] * scale, x[5] * scale), rounded_pair<in_t>(x[6] * scale, x[7] * scale)};
        store_matrices(to + c / 8 * MEMORY.resident_panel + ((c % 8 + lane / 16) ^ (lane & 7)) * 16, four);
    }
    publish_to_async_proxy();
    if (half == 0)
        sync_threads(GRADIENT_STAGED, 128);
    else
        sync_threads(GRADIENT_STAGED + 1, 128);
    if ((threadIdx.x & 127) != 0 || (IS_RAGGED && w.resident + half * HALF >= w.resident_used()))
        return;
#pragma unroll
    for (int s = 0; s < N / 32; ++s)
        store_box(map, s_rows + s * MEMORY.resident_panel, s * 64, entry.row + w.resident + half * HALF, w.head,
                  entry.outer);
    commit_stores();
}

/* Releases a stage of streamed qk and its statistics. Every lane has read statistics, so every lane arrives unless
   another barrier follows: an arrival orders only the reads of its own thread. */
constexpr bool LANES_ARRIVE = CONFIG.kv_resident && !CONFIG.reduces_dq;
DEVICE void release_qk(u32 qk_empty) {
    if (LANES_ARRIVE || lane_index() == 0)
        arrive(qk_empty);
}

struct gradients {
    float dqk[CONFIG.head / 2], dv[CONFIG.value_head / 2]; /* has_dqk, has_dv */
};

/* A consumer's step: its number, first streamed row, query head, and stage. */
struct consumer_step {
    i32 streamed, stage = 0, phase = 0, number = 0, head;

    template <class P>
    DEVICE consumer_step(const P &p, const work &w)
        : streamed(w.first * CONFIG.block_streamed), head(first_head(p, w)) {
        if constexpr (HAS_BLOCK_MASK)
            if (!is_active_for_warp(p, w, head, w.first)) {
                advance(p, w);
                stage = phase = number = 0;
            }
    }
    template <class P> DEVICE void advance(const P &p, const work &w) {
        do {
            streamed += CONFIG.block_streamed;
            if (streamed == w.last * CONFIG.block_streamed) {
                streamed = w.first * CONFIG.block_streamed;
                ++head;
            }
        } while (HAS_BLOCK_MASK && !is_active_for_warp(p, w, head, streamed / CONFIG.block_streamed));
        if (++stage == CONFIG.stages)
            stage = 0, phase ^= 1;
        ++number;
    }
    DEVICE i32 vdo_stage() const { return CONFIG.vdo_stages == CONFIG.stages ? stage : number % CONFIG.vdo_stages; }
    DEVICE i32 vdo_phase() const { return CONFIG.vdo_stages == CONFIG.stages ? phase : number / CONFIG.vdo_stages & 1; }
};

/* RELOADS: the current head of the resident tensor whose gradient this CTA does not compute. */
struct resident_head {
    i32 head, phase = 0;

    DEVICE explicit resident_head(i32 first) : head(first) {}
    /* Releases the current head and waits for the next one. */
    DEVICE void follow(i32 now, const work &w, u32 base, const barriers &b, int half) {
        if (!RELOADS || now == head)
            return;
        head = now, phase ^= 1;
        if (lane_index() == 0)
            arrive(b.resident_empty);
        wait(CONFIG.has_dqk ? b.resident_vdo : b.resident_qk, phase);
        if (CLEARS_RESIDENT)
            clear_resident(w, base, half);
    }
};

DEVICE void await_resident(const work &w, u32 base, const barriers &b, int half) {
    wait(b.resident_qk, 0);
    if constexpr (CONFIG.has_dqk)
        wait(b.resident_vdo, 0);
    if (CLEARS_RESIDENT)
        clear_resident(w, base, half);
}

/* Publishes dS of a step for dQ; s_ds: this warp's address. */
DEVICE void publish_ds(const u32 (&ds)[CONFIG.block_streamed / 4], const fp8_words &ds_fp8, u32 s_ds, int half,
                       u32 full) {
    if constexpr (CONFIG.has_fp8_mma)
        store_ds_fp8(ds_fp8, s_ds, half);
    else
        store_ds(ds, s_ds);
    publish_to_async_proxy();
    __syncwarp();
    if (lane_index() == 0)
        arrive(full);
}

/* Skips the first step, which is hidden from this consumer. */
DEVICE void skip_first_step(u32 s_ds, int half, const barriers &b) {
    wait(b.vdo_full, 0);
    if constexpr (CONFIG.has_tma_bias)
        wait(b.bias_full, 0);
    if (lane_index() == 0) {
        if constexpr (CONFIG.has_tma_bias)
            arrive(b.bias_empty);
        arrive(b.vdo_empty);
    }
    if constexpr (CONFIG.reduces_dq)
        publish_ds({}, {}, s_ds, half, b.ds_full);
    release_qk(b.qk_empty);
}

/* Issues S of a step whose qk operands have arrived. */
DEVICE void start_s(float (&s)[CONFIG.block_streamed / 2], const work &w, u32 base, const barriers &b,
                    u32 resident_rows, const consumer_step &at) {
    if (CLEARS_STREAMED)
        clear_streamed(w, base, b, at.streamed, at.stage, at.vdo_stage(), at.vdo_phase());
    mma_fence();
    issue_s_tile(s, resident_rows + (MEMORY.resident_qk >> 4),
                 k_major(base + MEMORY.streamed_qk + at.stage * MEMORY.qk_bytes));
    mma_commit();
}

DEVICE void round_p(u32 (&p_pairs)[CONFIG.block_streamed / 4], const float (&s)[CONFIG.block_streamed / 2]) {
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 4; ++c)
        p_pairs[c] = rounded_pair<in_t>(s[2 * c], s[2 * c + 1]);
}

/* Computes rounded P of a step from S. FUSES_DERIVATIVES: multiplies `derivatives` by P. */
template <class P>
DEVICE void finish_p(u32 (&p_pairs)[CONFIG.block_streamed / 4], float (&s)[CONFIG.block_streamed / 2],
                     derivative_pairs &derivatives, const P &p, const work &w, const consumer_step &at,
                     const row_statistics &statistics, u32 s_statistics, u32 s_bias, const barriers &b, float scale2,
                     i32 resident) {
    if constexpr (CONFIG.has_tma_bias)
        wait(b.bias_full, at.number & 1);
    if constexpr (HAS_SCORES)
        compute_p_with_terms(s, derivatives, p, w.batch, at.head, statistics, s_statistics, s_bias, score_scale_of(p),
                             slope2_of(p, at.head), resident, at.streamed);
    else
        compute_p(s, statistics, s_statistics, scale2, slope2_of(p, at.head), resident, at.streamed);
    if constexpr (CONFIG.has_tma_bias) {
        publish_to_async_proxy(); /* order these reads before the TMA load that overwrites them */
        arrive_where(b.bias_empty, lane_index() == 0);
    }
    if (needs_mask(w, resident, at.streamed))
        mask_p(s, w, resident, at.streamed);
    if constexpr (!ROUNDS_P_LAST)
        round_p(p_pairs, s);
    if constexpr (FUSES_DERIVATIVES)
#pragma unroll
        for (int c = 0; c < CONFIG.block_streamed / 4; ++c)
            derivatives[c] = multiply_pairs(p_pairs[c], derivatives[c]);
}

/* Fully unrolled, so that round keys are in uniform registers and nothing is spilled. */
template <class P>
DEVICE void compute_all_keep_masks(u32 (&keep_mask)[KEEP_WORDS], const P &p, const work &w, const consumer_step &at,
                                   i32 resident) {
    const fragment_position position; /* recomputed here; keeping it would cost registers */
#pragma unroll
    for (int i = 0; i < KEEP_WORDS; ++i)
        keep_mask[i] = compute_keep_mask<CONFIG.kv_resident, 8>(p, w.batch, at.head, resident + position.row,
                                                                at.streamed + position.column + 64 * i);
}

/* Keeps the compiler from moving the computation of these operands across the next MMA. */
DEVICE void fence_factors(u32 (&p_pairs)[CONFIG.block_streamed / 4], derivative_pairs &derivatives,
                          float (&dp)[CONFIG.block_streamed / 2], u32 (&keep_mask)[KEEP_WORDS]) {
    if constexpr (CONFIG.has_derivatives)
        fence_registers(derivatives);
    if constexpr (HAS_DROPOUT) { /* otherwise both are unpacked earlier, which needs more registers */
        fence_registers(p_pairs);
        fence_registers(keep_mask);
    }
    fence_registers(dp);
}

/* Releases both stages after the MMAs have read them. */
DEVICE void release_step(u32 qk_empty, u32 vdo_empty) {
    if constexpr (LANES_ARRIVE) /* order the reads of the statistics before the TMA load that overwrites them */
        publish_to_async_proxy();
    if (lane_index() == 0 && (CONFIG.vdo_stages == CONFIG.stages || !CONFIG.has_dqk))
        arrive(vdo_empty);
    release_qk(qk_empty);
}

template <class P>
DEVICE void accumulate_gradients(const P &p, const work &w, u32 base, const barriers &b, int half, gradients &sum,
                                 score_factors &factors) {
    const i32 resident = w.resident + half * HALF;
    const u32 lane = lane_index(), resident_rows = k_major(base + half * HALF * 128);
    const u32 s_ds =
        base + MEMORY.ds + (CONFIG.has_fp8_mma ? 0 : (half * HALF + 16 * (warp_index() & 3) + lane % 16) * 128);
    const row_statistics statistics(p, w, resident);
    const float scale2 = score_scale_of(p) * 1.44269504f;
    float s[CONFIG.block_streamed / 2];
    u32 p_pairs[CONFIG.block_streamed / 4], ds[CONFIG.block_streamed / 4];
    [[maybe_unused]] fp8_words ds_fp8;
    [[maybe_unused]] float dp[CONFIG.block_streamed / 2];
    [[maybe_unused]] u32 keep_mask[KEEP_WORDS] = {};
    derivative_pairs derivatives = {};
    consumer_step at(p, w);
    resident_head other(other_head(p, at.head));
    await_resident(w, base, b, half);
    wait(b.qk_full, 0);
    if (half == 1 && w.steps > 1 && is_step_hidden(w, resident, at.streamed)) {
        skip_first_step(s_ds, half, b);
        at.advance(p, w);
        other.follow(other_head(p, at.head), w, base, b, half);
        wait(b.qk_full + 8 * at.stage, at.phase);
    }
    start_s(s, w, base, b, resident_rows, at);
    for (;;) {
        const u32 qk_empty = b.qk_empty + 8 * at.stage, vdo_empty = b.vdo_empty + 8 * at.vdo_stage();
        const u32 qk = k_major(base + MEMORY.streamed_qk + at.stage * MEMORY.qk_bytes),
                  vdo = k_major(base + MEMORY.streamed_vdo + at.vdo_stage() * MEMORY.vdo_bytes);
        const u32 s_statistics = base + MEMORY.statistics + at.stage * MEMORY.statistics_bytes + (lane & 3) * 8;
        mma_wait<0>();
        fence_registers(s);
        finish_p(p_pairs, s, derivatives, p, w, at, statistics, s_statistics,
                 base + MEMORY.bias + half * MEMORY.streamed_panel, b, scale2, resident);
        wait(b.vdo_full + 8 * at.vdo_stage(), at.vdo_phase());
        if constexpr (CONFIG.has_dqk) {
            mma_fence();
            issue_dp_tile(dp, resident_rows + (MEMORY.resident_vdo >> 4), vdo);
            mma_commit();
        }
        if constexpr (HAS_DROPOUT)
            compute_all_keep_masks(keep_mask, p, w, at, resident);
        if constexpr (CONFIG.has_dqk) {
            mma_wait<0>();
            fence_factors(p_pairs, derivatives, dp, keep_mask);
            if (CONFIG.vdo_stages != CONFIG.stages &&
                lane == 0) /* vdo has been read, and the next step needs this stage */
                arrive(vdo_empty);
            compute_ds(ds, ds_fp8, p_pairs, s, derivatives, dp, statistics, s_statistics + CONFIG.block_streamed * 4,
                       keep_mask, factors);
        }
        if constexpr (HAS_DROPOUT && !CONFIG.has_dqk)
#pragma unroll
            for (int k = 0; k < CONFIG.block_streamed / 4; ++k)
                drop_pair(p_pairs[k], keep_mask, 2 * k);
        if constexpr (IS_FP8)
#pragma unroll
            for (int k = 0; k < CONFIG.block_streamed / 4; ++k)
                p_pairs[k] = ROUNDS_P_LAST ? factor_pair<p_operand_t>(s[2 * k], s[2 * k + 1])
                                           : factor_pair<p_operand_t>(p_pairs[k]);
        else if constexpr (ROUNDS_P_LAST)
            round_p(p_pairs, s);
        if constexpr (CONFIG.has_dv) {
            mma_fence();
            issue_dv(sum.dv, p_pairs, CONFIG.has_fp8_mma ? vdo + (MEMORY.dp_operand_bytes >> 4) : vdo);
            mma_commit();
        }
        if constexpr (CONFIG.reduces_dq) {
            const u32 slot = at.number % DS_STAGES;
            wait(b.ds_empty + 8 * slot, at.number / DS_STAGES & 1 ^ 1);
            publish_ds(ds, ds_fp8, s_ds + slot * MEMORY.ds_bytes, half, b.ds_full + 8 * slot);
        }
        if constexpr (CONFIG.has_fp8_mma)
            widen_ds(ds, ds_fp8);
        if constexpr (CONFIG.has_dqk) {
            mma_fence();
            issue_dqk(sum.dqk, ds, CONFIG.loads_twice ? qk + (MEMORY.s_operand_bytes >> 4) : qk);
            mma_commit();
        }
        if (at.number + 1 == w.steps)
            break;
        at.advance(p, w);
        mma_wait<0>();
        fence_registers(p_pairs);
        if constexpr (CONFIG.has_dqk)
            fence_registers(ds);
        release_step(qk_empty, vdo_empty);
        other.follow(other_head(p, at.head), w, base, b, half);
        wait(b.qk_full + 8 * at.stage, at.phase);
        start_s(s, w, base, b, resident_rows, at);
    }
    mma_wait<0>();
}

/* HALF resident rows. */
template <int N> DEVICE void store_accumulators(float *to, const float (&sum)[N], float scale) {
#pragma unroll
    for (int c = 0; c < N / 4; ++c) {
        const float *const x = sum + 4 * c;
        const run<float, 4> four = {{x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale}};
        store_run(to + sums_offset(c, warp_index() % 4), four);
    }
}
template <class P> DEVICE void store_part(const P &p, const work &w, int half, const gradients &sum) {
    const i64 tile =
        ((i64)(w.batch * (i32)p.resident_heads + w.part) * (i32)p.resident_blocks * 2) + w.resident / HALF + half;
    if constexpr (CONFIG.has_dqk)
        store_accumulators(p.dqk_parts + tile * HALF * CONFIG.head, sum.dqk,
                           IS_FP8 ? 1.0f : scale_of(p) * derivative_factor_of(p));
    if constexpr (CONFIG.has_dv)
        store_accumulators(p.dv_parts + tile * HALF * CONFIG.value_head, sum.dv, 1.0f);
}

/* Stores rows of the gradients' type, staged in the buffers of the resident rows. */
template <class P>
DEVICE void store_gradients(const P &p, const work &w, u32 base, const barriers &b, int half, const gradients &sum) {
    constexpr u32 DV_STAGING = CONFIG.has_dqk ? MEMORY.resident_vdo : MEMORY.resident_qk;
    if constexpr (CONFIG.has_dv)
        store_gradient<DV_IS_RAGGED>(sum.dv, 1.0f, base + DV_STAGING + half * HALF * 128, p.dv_map, w,
                                     dv_entry(p, w.batch, w.resident_used()), half);
    const i32 last = w.steps - 1;
    if (CONFIG.reduces_dq && w.steps > 0)
        wait(b.ds_empty + 8 * (last % DS_STAGES), last / DS_STAGES & 1); /* K has been read */
    if constexpr (CONFIG.has_dqk)
        store_gradient<DQK_IS_RAGGED>(sum.dqk, scale_of(p) * derivative_factor_of(p),
                                      base + MEMORY.resident_qk + half * HALF * 128, p.dqk_map, w,
                                      dqk_entry(p, w.batch, w.resident_used()), half);
    if ((threadIdx.x & 127) == 0)
        wait_stores_read<0>();
}

/* IS_FP8: stores this consumer's resident rows from registers; at: the tensor's head. */
template <bool HAS_AMAX, class T, int N>
DEVICE float store_scaled(const float (&sum)[N], float scale, float to_memory, T *at, i64 row_step, i32 first, i32 rows,
                          i32 columns) {
    const fragment_position position;
    float largest = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 row = first + position.row + 8 * h;
        if (row >= rows)
            continue;
#pragma unroll
        for (int c = 0; c < N / 4; ++c)
            if (8 * c + position.column < columns)
                store_scaled_pair<HAS_AMAX>(at + row * row_step + 8 * c + position.column, sum[4 * c + 2 * h] * scale,
                                            sum[4 * c + 2 * h + 1] * scale, to_memory, largest);
    }
    return largest;
}
template <class P> DEVICE void store_scaled_gradients(const P &p, const work &w, const gradients &sum, int half) {
    const i32 rows = (i32)(CONFIG.kv_resident ? p.keys : p.queries), resident = w.resident + half * HALF;
    if constexpr (CONFIG.has_dv) {
        const float largest = store_scaled<HAS_AMAX_DV>(sum.dv, descale_s_of(p) * descale_d_o_of(p), scale_dv_of(p),
                                                        p.dv + w.batch * p.dv_batch + w.head * p.dv_head, p.dv_row,
                                                        resident, rows, (i32)p.value_depth);
        if constexpr (HAS_AMAX_DV)
            raise_amax(p.amax_dv, largest);
    }
    if constexpr (CONFIG.has_dqk) {
        const float largest = store_scaled<HAS_AMAX_DQK>(
            sum.dqk, descale_dp_of(p) * (CONFIG.kv_resident ? descale_q_of(p) : descale_k_of(p)),
            CONFIG.kv_resident ? scale_dk_of(p) : scale_dq_of(p), p.dqk + w.batch * p.dqk_batch + w.head * p.dqk_head,
            p.dqk_row, resident, rows, (i32)p.depth);
        if constexpr (HAS_AMAX_DQK)
            raise_amax(p.amax_dqk, largest);
    }
}

template <class P> DEVICE void compute_gradients(const P &p, u32 base, int half) {
    const work w = find_work(p);
    const barriers b(base);
    gradients sum;
    score_factors factors(p);
#pragma unroll
    for (int i = 0; i < CONFIG.head / 2; ++i)
        sum.dqk[i] = 0;
#pragma unroll
    for (int i = 0; i < CONFIG.value_head / 2; ++i)
        sum.dv[i] = 0;
    if (w.steps > 0)
        accumulate_gradients(p, w, base, b, half, sum, factors);
    if constexpr (CONFIG.has_dqk)
        fence_registers(sum.dqk);
    if constexpr (CONFIG.has_dv)
        fence_registers(sum.dv);
    if constexpr (CONFIG.has_parts)
        store_part(p, w, half, sum);
    else if constexpr (IS_FP8)
        store_scaled_gradients(p, w, sum, half);
    else
        store_gradients(p, w, base, b, half, sum);
    if constexpr (IS_FP8)
        factors.store(p);
}

/* ---- Kernel ---- */

DEVICE void init_barriers(const barriers &b) {
    constexpr int CONSUMER_WARPS = 8, PRODUCER_WARPS = 4;
    barrier_init(b.resident_qk, 1);
    barrier_init(b.resident_vdo, 1);
    for (int i = 0; i < CONFIG.stages; ++i) {
        barrier_init(b.qk_full + 8 * i, 1);
        if (i < CONFIG.vdo_stages)
            barrier_init(b.vdo_full + 8 * i, 1);
        barrier_init(b.qk_empty + 8 * i, CONSUMER_WARPS * (LANES_ARRIVE ? 32 : 1));
        if (i < CONFIG.vdo_stages)
            barrier_init(b.vdo_empty + 8 * i, CONSUMER_WARPS);
    }
    for (int i = 0; i < DS_STAGES; ++i) {
        barrier_init(b.ds_full + 8 * i, CONSUMER_WARPS);
        barrier_init(b.ds_empty + 8 * i, PRODUCER_WARPS);
    }
    if (RELOADS)
        barrier_init(b.resident_empty, CONSUMER_WARPS);
    if (CONFIG.has_fp8_mma)
        barrier_init(b.kt_full, 1);
    if (CONFIG.has_tma_bias) {
        barrier_init(b.bias_full, 1);
        barrier_init(b.bias_empty, CONSUMER_WARPS);
    }
    barrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_backward_sm90(const __grid_constant__ arguments p) {
    const u32 base = shared_address(s_memory);
    if constexpr (CONFIG.skips_unused_tiles) {
        const work w = find_resident_rows(p);
        if (w.resident >= w.resident_used())
            return;
    }
    if (threadIdx.x == 0) {
        prefetch_map(p.resident_qk_map);
        prefetch_map(p.resident_vdo_map);
        prefetch_map(p.streamed_qk_map);
        prefetch_map(p.streamed_vdo_map);
        init_barriers(barriers(base));
    }
    __syncthreads();
    const int warpgroup = warp_index() / 4;
    if (warpgroup == 0) {
        shrink_registers<CONFIG.producer_registers>();
        if constexpr (CONFIG.reduces_dq)
            compute_dq(p, base);
        else
            load_steps(p, base);
    } else {
        grow_registers<CONFIG.consumer_registers>();
        compute_gradients(p, base, warpgroup - 1);
    }
}
