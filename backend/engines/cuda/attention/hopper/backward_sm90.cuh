/* backward_sm90: attention backward pass                         bf16, f16 and FP8, float sums, wgmma; sm_90a
   Formula   P = 2^(scale2 S - lse2), S = Q K^T, scale2 = scale log2(e); dP = dO V^T; dS = P (dP - delta); dV = P^T dO,
             dK = scale dS^T Q, dQ = scale dS K, summed over the queries of all heads that share the key. ALiBi adds
             slope (key - query) to the scores. A score modifier f and a bias make the score f(scale S) + bias, and dS
             includes f' (HAS_DERIVATIVES: unless f' = 1). Dropout masks P for dV, and dP
   Loop      each CTA keeps the rows of one operand pair resident and iterates over streamed tiles of the other pair.
             KV_RESIDENT: computes dK and dV of resident K and V from streamed Q and dO. Otherwise, computes dQ of
             resident Q and dO from streamed K and V. The code is symmetric: `qk` is Q or K, `vdo` is V or dO, `dqk` is
             dK or dQ. REDUCES_DQ: the CTAs with resident K and V compute dQ, too, so that S and dP are computed once,
             and add it to float sums in L2. STORES_DQ: one CTA holds all keys that a query sees, so it stores dQ
   Tile      BLOCK_RESIDENT resident rows, half of them per consumer, and BLOCK_STREAMED streamed rows
             HAS_DQK, HAS_DV: computes dK or dQ, and dV. Only one of them if registers do not hold both, or if K and V
             have different numbers of heads; then the resident K (for dV) or V (for dK) may change with the query head
             HAS_PARTS: a CTA iterates over only some of the query heads that share the resident keys, and stores
             partial gradients as floats in accumulator order; backward_sums_sm90 adds the parts in order
   Roles     warpgroup 0: thread 0 issues the loads (producer). REDUCES_DQ: the whole warpgroup computes the dQ of a
             step, in parts of 64 x 64
             warpgroups 1 and 2 (consumers): S and dP accumulators have resident rows x streamed rows, so that P and dS
             are already the register A operands of the gradient MMAs, whose accumulators stay in registers to the end.
             REDUCES_DQ: dS^T is also stored to shared memory, for dQ. The consumers never wait for each other
   Pipeline  producer  |tile 0|tile 1|tile 2|...     STAGES of qk_full, qk_empty, vdo_full, vdo_empty
             consumer         |S 0|P|dP 0|dS|dV, dK 0|S 1|...
             dQ                             |dQ 0     |...       two dS buffers: ds_full[s], ds_empty[s]
   Memory    resident rows (also the staging of gradients), STAGES of streamed rows and of the queries' statistics,
             barriers; REDUCES_DQ: two dS buffers, staging of dQ
   Order     REDUCES_DQ: dQ depends on the order in which CTAs add, so results differ between runs by rounding. CTAs of
             one head run concurrently, those with most steps first, heads_per_set heads at a time, so that streamed
             tiles stay in L2
   Terms     a score modifier and a bias are applied in registers. HAS_TMA_BIAS: each consumer's bias of a step is a TMA
             box, which it reads transposed; otherwise, the bias is read from global memory
   Masks     a step is masked only if a bound or the end of the keys crosses its tile. Steps without any visible pair
             are skipped, and so are inactive tiles of a block mask
   Padding   rows past the lengths in use are cleared in shared memory because 0 x NaN is NaN. Rows past the tensors and
             past ragged entries are read as 0 (TMA) and not written: see varlen_sm90
   FP8       IS_FP8: P and dS are rounded to FP8 as operands: see backward_fp8. dK and dV are stored from registers, in
             any type. Operands are converted to f16 first: the gradient MMAs need MN-major operands, which FP8 wgmma
             does not support, and longer sums than its accumulators can represent (see forward_sm90). HAS_FP8_MMA, with
             REDUCES_DQ: S, dP and dQ, which sum over few columns and 128 keys, use FP8 MMAs. For dQ, dS is stored
             K-major, and warpgroup 0 transposes a second copy of K
             LOADS_TWICE: streamed rows are loaded in two versions, for S and for dQ or dK (MXFP8, HAS_FP8_MMA)
   Limits    TMA pads depths to HEAD and VALUE_HEAD; rows and strides are multiples of 16 bytes
   Params    in_t KV_RESIDENT HAS_DQK HAS_DV KV_HEADS_DIFFER REDUCES_DQ STORES_DQ HEAD VALUE_HEAD BLOCK_RESIDENT
             BLOCK_STREAMED BLOCK_Q STAGES VDO_STAGES CONSUMER_REGISTERS PRODUCER_REGISTERS SHARED_BYTES
             HAS_DERIVATIVES HAS_FACTORS HAS_PARTS LOADS_TWICE HAS_TMA_BIAS SKIPS_UNUSED_TILES IS_FP8, those of scores,
             terms, block masks and dropout; emitted coordinate functions of the maps; emitted MMAs: mma_s(_first),
             mma_dp(_first), mma_dqk, mma_dv, mma_dq(_first)
   Measured  docs/kernels.md, with alternatives that were tried */

#include "attention/block_mask.cuh"
#include "attention/hopper/dropout_sm90.cuh"
#include "attention/hopper/score_terms_sm90.cuh"
#include "attention/hopper/backward_scores_sm90.cuh"
#include "attention/hopper/backward_fp8_sm90.cuh"
#include "attention/hopper/byte_squares_sm90.cuh"

constexpr bool HAS_BYTES = IS_FP8 && HAS_SUMS;
constexpr int STEP = HAS_BYTES ? 32 : 16;          /* k extent of the MMAs of S and dP: 32 bytes */
constexpr int THREADS = 384, HALF = BLOCK_OWN / 2; /* HALF: resident rows per consumer */
constexpr int PANELS = HEAD / 64, VALUE_PANELS = VALUE_HEAD / 64,
              PASS_PANELS = BLOCK_PASS / 64; /* panels of 64 columns, 128 bytes */
constexpr u32 OWN_PANEL = BLOCK_OWN * 128, PASS_PANEL = BLOCK_PASS * 128, DS_PANEL = BLOCK_OWN * 128;
constexpr int ONCE_PANELS = HAS_BYTES ? 1 : PANELS, SECOND_ONCE_PANELS = HAS_BYTES ? 1 : VALUE_PANELS; /* panels that S
                                                                                                          and dP read */
constexpr u32 OWN_FIRST_BYTES = ONCE_PANELS * OWN_PANEL;
constexpr u32 OWN_SECOND_BYTES = MAKES_FIRST ? SECOND_ONCE_PANELS * OWN_PANEL : 0;
constexpr u32 OWN_TURNED_BYTES = HAS_BYTES ? BLOCK_OWN / 64 * PANELS * SQUARE_BYTES : 0;
constexpr u32 ONCE_BYTES = ONCE_PANELS * PASS_PANEL, AGAIN_BYTES = HAS_AGAIN ? PANELS * PASS_PANEL : 0;
constexpr u32 SECOND_ONCE_BYTES = SECOND_ONCE_PANELS * PASS_PANEL;
constexpr u32 SECOND_AGAIN_BYTES = HAS_BYTES ? VALUE_PANELS * PASS_PANEL : 0;
constexpr u32 FIRST_BYTES = ONCE_BYTES + AGAIN_BYTES, SECOND_BYTES = SECOND_ONCE_BYTES + SECOND_AGAIN_BYTES;
constexpr u32 STATISTICS_BYTES = OWN_IS_KEY ? 2 * BLOCK_PASS * 4 : 0; /* per stage */
constexpr int DS_STAGES = 2, PARTS = PANELS * PASS_PANELS,
              PARTS_STAGED = PASS_PANELS > 1 || HAS_BOXED_BIAS || HAS_BYTES ? 1 : 2; /* PARTS: number of 64 x 64 parts
                                                                                        of dQ per step */
constexpr u32 DS_BYTES = HAS_BYTES ? PASS_PANEL : PASS_PANELS * DS_PANEL, PART_BYTES = 64 * 64 * 4;
constexpr u32 SUMS_BYTES = HAS_SUMS ? DS_STAGES * DS_BYTES + PARTS_STAGED * PART_BYTES : 0;
constexpr u32 BIAS_PANEL = BLOCK_PASS * 128, BIAS_BYTES = HAS_BOXED_BIAS ? 2 * BIAS_PANEL : 0; /* per consumer */

constexpr u32 OWN_FIRST = 0, OWN_SECOND = OWN_FIRST + OWN_FIRST_BYTES, OWN_TURNED = OWN_SECOND + OWN_SECOND_BYTES;
constexpr u32 FIRST = OWN_TURNED + OWN_TURNED_BYTES;
constexpr u32 SECOND = FIRST + STAGES * FIRST_BYTES, DS = SECOND + SECOND_STAGES * SECOND_BYTES;
constexpr u32 DQ = DS + DS_STAGES * DS_BYTES, BIAS_BOXES = DS + SUMS_BYTES, STATISTICS = BIAS_BOXES + BIAS_BYTES;
constexpr u32 BARRIERS = STATISTICS + STAGES * STATISTICS_BYTES,
              BARRIER_COUNT =
                  3 + 2 * STAGES + 2 * SECOND_STAGES + 2 * DS_STAGES + (HAS_BOXED_BIAS ? 2 : 0) + (HAS_BYTES ? 1 : 0);

/* ---- Requirements ---- */

static_assert(BLOCK_OWN == 128 && BLOCK_PASS % 64 == 0 && HEAD % 64 == 0 && VALUE_HEAD % 64 == 0, "panels of 64 rows");
static_assert(!HAS_SUMS || (OWN_IS_KEY && PARTS <= 2), "warpgroup 0 has registers for two parts, in turn");
static_assert(!HAS_SUMS || (MAKES_FIRST && MAKES_SECOND && STAGES == SECOND_STAGES), "it follows one count of stages");
static_assert(SECOND_STAGES == STAGES || !MAKES_SECOND, "else they are read to the end of a step");
static_assert(!HAS_BOXED_BIAS || (HAS_SUMS && sizeof(bias_t) == 2), "who makes dQ loads the bias of the next step");
static_assert(MAKES_FIRST || HEAD >= VALUE_HEAD, "dV leaves through own K");
static_assert(!HAS_AGAIN || !HAS_SUMS || HAS_BYTES, "dQ of the same dS would want own K twice");
static_assert(!HAS_BYTES || (HAS_AGAIN && PANELS <= 2 && VALUE_PANELS <= 2 && BLOCK_OWN == 128),
              "panels of bytes have 128 columns; dS has as many keys");
static_assert(!HAS_PARTS || OWN_IS_KEY, "a head of queries has one of keys");
static_assert(!HAS_OTHER_GROUP || !(MAKES_FIRST && MAKES_SECOND), "a block sums for one number of heads");
static_assert(BARRIERS + BARRIER_COUNT * 8 == SHARED_BYTES && SHARED_BYTES <= 232448, "227 KB is all a block can have");
static_assert(2 * CONSUMER_REGISTERS + PRODUCER_REGISTERS <= 3 * 168, "growing beyond what the launch gave would hang");
static_assert(!OWN_IS_KEY || BLOCK_PASS == BLOCK_Q, "statistics lie by blocks of queries");
static_assert(MASK_TILE % BLOCK_OWN == 0 && MASK_TILE % BLOCK_PASS == 0, "a step lies in one tile of a block mask");

extern __shared__ __align__(1024) unsigned char s_memory[];

/* GRADIENT_STAGED and RESIDENT_CLEARED are the first of one barrier per consumer. */
enum named_barrier : u32 { ALL_THREADS, PART_STAGED, GRADIENT_STAGED, PASS_CLEARED = 4, OWN_CLEARED };

/* Addresses of the mbarriers. */
struct barriers {
    u32 own_first, own_second, first_full, first_empty, second_full, second_empty, ds_full, ds_empty, own_empty;
    u32 bias_full, bias_empty; /* HAS_TMA_BIAS */
    u32 own_turned;            /* HAS_FP8_MMA, which excludes HAS_TMA_BIAS */
    DEVICE barriers(u32 base)
        : own_first(base + BARRIERS), own_second(own_first + 8), first_full(own_second + 8),
          first_empty(first_full + 8 * STAGES), second_full(first_empty + 8 * STAGES),
          second_empty(second_full + 8 * SECOND_STAGES), ds_full(second_empty + 8 * SECOND_STAGES),
          ds_empty(ds_full + 8 * DS_STAGES), own_empty(ds_empty + 8 * DS_STAGES), bias_full(own_empty + 8),
          bias_empty(bias_full + 8), own_turned(bias_full) {}
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
    band seen;
    i32 own, head, batch;          /* the first resident row, and its head in the resident tensors */
    i32 part;                      /* HAS_PARTS: index over all resident heads of the batch entry */
    i32 first, last;               /* range of streamed blocks, per head */
    i32 steps;                     /* over all heads */
    box_entry first_at, second_at; /* TMA coordinates of the streamed tensors */

    DEVICE i32 own_used() const { return OWN_IS_KEY ? seen.keys : seen.queries; }
    DEVICE i32 pass_used() const { return OWN_IS_KEY ? seen.queries : seen.keys; }
    /* Streamed rows that are visible to a resident row, or that see it: low .. high - 1. Both grow with the row. */
    DEVICE i32 low(i32 row) const { return OWN_IS_KEY ? row + seen.first : row - seen.last + 1; }
    DEVICE i32 high(i32 row) const { return OWN_IS_KEY ? row + seen.last : min(row - seen.first + 1, seen.keys); }
};
constexpr bool HAS_LOW = OWN_IS_KEY ? HAS_RIGHT : HAS_LEFT, HAS_HIGH = OWN_IS_KEY ? HAS_LEFT : true;

/* Range of query heads: those that share the resident keys, or the head of the resident queries. */
template <class P> DEVICE i32 first_head(const P &p, const work &w) {
    i32 head = OWN_IS_KEY ? w.head * (i32)p.group : w.head;
    if constexpr (HAS_PARTS)
        head += (w.part - w.head * (i32)p.parts) * (i32)p.heads_per_part;
    return head;
}
template <class P> DEVICE i32 last_head(const P &p, const work &w) {
    const i32 last = OWN_IS_KEY ? (w.head + 1) * (i32)p.group : w.head + 1;
    if constexpr (HAS_PARTS)
        return min(first_head(p, w) + (i32)p.heads_per_part, last);
    else
        return last;
}

/* True if a streamed block is in an active tile of the block mask; head: of the queries. */
template <class P> DEVICE bool takes_part(const P &p, const work &w, i32 head, i32 block) {
    const i32 pass = block * BLOCK_PASS;
    return keeps_tile(p, w.batch, head, OWN_IS_KEY ? pass : w.own, OWN_IS_KEY ? w.own : pass);
}
/* For a whole warp: the shuffle shows the compiler that the result is warp-uniform. */
template <class P> DEVICE bool warp_takes_part(const P &p, const work &w, i32 head, i32 block) {
    return __shfl_sync(~0u, takes_part(p, w, head, block), 0);
}
/* Counts the active steps, by whole warps. */
template <class P> DEVICE i32 count_steps(const P &p, const work &w) {
    i32 count = 0;
    for (i32 head = first_head(p, w), last = last_head(p, w); head < last; ++head)
        for (i32 from = w.first; from < w.last; from += 32) {
            const i32 block = from + (i32)lane_index();
            count += __popc(__ballot_sync(~0u, block < w.last && takes_part(p, w, head, block)));
        }
    return count;
}

/* Splits w.head, which counts parts, into head and part. */
template <class P> DEVICE void find_part(const P &p, work &w) {
    w.part = w.head;
    w.head /= (i32)p.parts;
}

/* The CTA's resident rows. Their order puts those with most steps first: the first keys, or the last queries. */
DEVICE work find_own(const arguments &p) {
    const u32 blocks = (u32)p.own_blocks, set_heads = (u32)p.heads_per_set, set = blockIdx.x / (blocks * set_heads);
    const u32 within = blockIdx.x - set * blocks * set_heads,
              heads = min(gridDim.x / blocks - set * set_heads, set_heads);
    const u32 number = within / heads, outer = set * set_heads + within - number * heads;
    const u32 block = OWN_IS_KEY ? number : blocks - 1 - number, batch = outer / (u32)p.own_heads;
    work w{band(p, (i32)batch), (i32)block * BLOCK_OWN, (i32)(outer - batch * (u32)p.own_heads), (i32)batch};
    if constexpr (HAS_PARTS)
        find_part(p, w);
    return w;
}
DEVICE work find_work(const arguments &p) {
    work w = find_own(p);
    w.first_at = first_entry(p, w.batch, w.pass_used());
    w.second_at = second_entry(p, w.batch, w.pass_used());
    const i32 last_own = min(w.own + BLOCK_OWN, w.own_used()) - 1;
    if (last_own < w.own)
        return w;
    w.first = max(w.low(w.own), 0) / BLOCK_PASS;
    w.last = max((min(w.high(last_own), w.pass_used()) + BLOCK_PASS - 1) / BLOCK_PASS, w.first);
    w.steps = HAS_BLOCK_MASK ? count_steps(p, w) : (w.last - w.first) * (last_head(p, w) - first_head(p, w));
    return w;
}

/* The streamed block of a step. With a block mask, w.steps determines which active block is the last one. */
struct cursor {
    i32 block, head;
    DEVICE explicit cursor(const arguments &p, const work &w)
        : block(w.first), head(OWN_IS_KEY ? first_head(p, w) : w.head / (i32)p.group) {
        if (HAS_BLOCK_MASK && w.steps > 0)
            pass_over_hidden(p, w);
    }
    DEVICE void advance(const arguments &p, const work &w, bool is_last = false) {
        step(w);
        if (HAS_BLOCK_MASK && !is_last)
            pass_over_hidden(p, w);
    }
    DEVICE void step(const work &w) {
        if (++block < w.last)
            return;
        block = w.first;
        ++head;
    }
    DEVICE void pass_over_hidden(const arguments &p, const work &w) {
        while (!takes_part(p, w, OWN_IS_KEY ? head : w.head, block))
            step(w);
    }
};

/* ---- Loads ---- */

template <u32 BYTES>
DEVICE void load_own(const tensor_map &map, u32 dst, u32 full, const work &w, i32 head, const box_entry &entry) {
    arrive_expecting(full, BYTES);
#pragma unroll
    for (u32 i = 0; i < BYTES / OWN_PANEL; ++i)
        load_box(dst + i * OWN_PANEL, map, full, i * 64, entry.row + w.own, head, entry.place);
}

template <u32 BYTES>
DEVICE void load_pass(const tensor_map &map, u32 dst, u32 full, const cursor &at, i32 head, const box_entry &entry) {
#pragma unroll
    for (u32 i = 0; i < BYTES / PASS_PANEL; ++i)
        load_box(dst + i * PASS_PANEL, map, full, i * 64, entry.row + at.block * BLOCK_PASS, head, entry.place);
}

/* Index of a block of BLOCK_Q queries over all heads. */
DEVICE i64 q_tile(const arguments &p, i32 batch, i32 head, i32 block) {
    return (i64)(batch * (i32)p.heads + head) * p.q_blocks + block;
}

/* Head of the streamed V or dO. */
template <class P> DEVICE i32 second_head(const P &p, const work &w, const cursor &at) {
    if constexpr (!OWN_IS_KEY && HAS_OTHER_GROUP)
        return w.head / (i32)p.other_group;
    else
        return at.head;
}
/* KV_HEADS_DIFFER: for a query head, the head of the resident tensor whose gradient this CTA does not compute. */
template <class P> DEVICE i32 other_head(const P &p, i32 head) {
    if constexpr (HAS_OTHER_GROUP)
        return head / (i32)p.other_group;
    else
        return 0;
}
constexpr bool RELOADS = OWN_IS_KEY && HAS_OTHER_GROUP;

/* LOADS_TWICE: the streamed operand of dQ or dK. */
template <class P> DEVICE void load_again(const P &p, u32 dst, u32 full, const cursor &at, const work &w) {
    load_pass<AGAIN_BYTES>(p.again_map, dst, full, at, at.head, again_entry(p, w.batch, w.pass_used()));
}

/* HAS_FP8_MMA: dO in the version that dV reads. */
template <class P> DEVICE void load_second_again(const P &p, u32 dst, u32 full, const cursor &at, const work &w) {
    load_pass<SECOND_AGAIN_BYTES>(p.second_again_map, dst, full, at, second_head(p, w, at), w.second_at);
}

/* Loads step i after the consumers have released its stages. */
DEVICE void load_step(const arguments &p, const work &w, u32 base, const barriers &b, const cursor &at, i32 i,
                      i32 stage) {
    const i32 second_stage = SECOND_STAGES == STAGES ? stage : i % SECOND_STAGES;
    const u32 first_full = b.first_full + 8 * stage, second_full = b.second_full + 8 * second_stage;
    if (i >= STAGES) {
        wait(b.first_empty + 8 * stage, i / STAGES & 1 ^ 1);
        if (SECOND_STAGES == STAGES)
            wait(b.second_empty + 8 * stage, i / STAGES & 1 ^ 1);
    }
    arrive_expecting(first_full, FIRST_BYTES + STATISTICS_BYTES);
    load_pass<ONCE_BYTES>(p.first_map, base + FIRST + stage * FIRST_BYTES, first_full, at, at.head, w.first_at);
    if constexpr (HAS_AGAIN)
        load_again(p, base + FIRST + stage * FIRST_BYTES + ONCE_BYTES, first_full, at, w);
    if constexpr (OWN_IS_KEY)
        load_bytes(base + STATISTICS + stage * STATISTICS_BYTES,
                   p.statistics + q_tile(p, w.batch, at.head, at.block) * 2 * BLOCK_Q, STATISTICS_BYTES, first_full);
    if (SECOND_STAGES != STAGES && i >= SECOND_STAGES)
        wait(b.second_empty + 8 * second_stage, i / SECOND_STAGES & 1 ^ 1);
    arrive_expecting(second_full, SECOND_BYTES);
    load_pass<SECOND_ONCE_BYTES>(p.second_map, base + SECOND + second_stage * SECOND_BYTES, second_full, at,
                                 second_head(p, w, at), w.second_at);
    if constexpr (HAS_BYTES)
        load_second_again(p, base + SECOND + second_stage * SECOND_BYTES + SECOND_ONCE_BYTES, second_full, at, w);
}

/* HAS_TMA_BIAS: loads each consumer's bias of a step: its keys of the streamed queries. */
template <class P> DEVICE void load_bias(const P &p, const work &w, u32 base, const barriers &b, const cursor &at) {
    arrive_expecting(b.bias_full, BIAS_BYTES);
#pragma unroll
    for (int half = 0; half < 2; ++half)
        load_box(base + BIAS_BOXES + half * BIAS_PANEL, p.bias_map, b.bias_full, w.own + half * HALF,
                 at.block * BLOCK_PASS, p.bias_head ? at.head : 0, p.bias_batch ? w.batch : 0);
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

/* HAS_FP8_MMA: loads the resident K in tiles, to be transposed for dQ. */
template <class P> DEVICE void load_turned(const P &p, const work &w, u32 base, const barriers &b) {
    arrive_expecting(b.own_turned, OWN_TURNED_BYTES);
#pragma unroll
    for (u32 i = 0; i < OWN_TURNED_BYTES / SQUARE_BYTES; ++i)
        load_box(base + OWN_TURNED + i * SQUARE_BYTES, p.own_turned_map, b.own_turned, i % PANELS * 64,
                 w.own + i / PANELS * 64, w.head, w.batch);
}
/* By warpgroup 0. */
DEVICE void turn_own(const work &w, u32 base, const barriers &b) {
    wait(b.own_turned, 0);
#pragma unroll 1
    for (i32 i = (i32)warp_index(); i < (i32)(2 * OWN_TURNED_BYTES / SQUARE_BYTES); i += 4)
        transpose_pair<true>(base + OWN_TURNED + i / 2 * SQUARE_BYTES, i % 2,
                             w.seen.keys - w.own - i / 2 / PANELS * 64);
    publish_to_async_proxy();
    sync_threads(PART_STAGED, 128);
}

DEVICE void load_first_steps(const arguments &p, const work &w, u32 base, const barriers &b) {
    cursor at(p, w);
    load_own<OWN_FIRST_BYTES>(p.own_first_map, base + OWN_FIRST, b.own_first, w, w.head,
                              own_first_entry(p, w.batch, w.own_used()));
    load_step(p, w, base, b, at, 0, 0);
    if constexpr (HAS_BOXED_BIAS)
        load_bias(p, w, base, b, at);
    if constexpr (MAKES_FIRST)
        load_own<OWN_SECOND_BYTES>(p.own_second_map, base + OWN_SECOND, b.own_second, w, w.head,
                                   own_second_entry(p, w.batch, w.own_used()));
    if constexpr (HAS_BYTES)
        load_turned(p, w, base, b);
#pragma unroll 1
    for (i32 i = 1; i < STAGES && i < w.steps; ++i) {
        at.advance(p, w);
        load_step(p, w, base, b, at, i, i);
    }
}

/* Loads step i + STAGES - 1 into the stage that step i - 1 released. */
DEVICE void load_next_step(const arguments &p, const work &w, u32 base, const barriers &b, cursor at, i32 i,
                           i32 stage) {
    const i32 next = i + STAGES - 1;
    if (i == 0 || next >= w.steps)
        return;
#pragma unroll 1
    for (int k = 0; k < STAGES - 1; ++k)
        at.advance(p, w);
    load_step(p, w, base, b, at, next, stage > 0 ? stage - 1 : STAGES - 1);
}

/* Reloads the resident tensor whose gradient this CTA does not compute, after the consumers have released the previous
   head; `i` counts the reloads. */
template <class P> DEVICE void reload_own(const P &p, const work &w, u32 base, const barriers &b, i32 head, i32 i) {
    wait(b.own_empty, i & 1);
    if constexpr (MAKES_FIRST)
        load_own<OWN_SECOND_BYTES>(p.own_second_map, base + OWN_SECOND, b.own_second, w, head,
                                   own_second_entry(p, w.batch, w.own_used()));
    else
        load_own<OWN_FIRST_BYTES>(p.own_first_map, base + OWN_FIRST, b.own_first, w, head,
                                  own_first_entry(p, w.batch, w.own_used()));
}

/* RELOADS: one thread loads in the order of use. */
DEVICE void load_steps_of_heads(const arguments &p, const work &w, u32 base, const barriers &b) {
    cursor at(p, w);
    i32 own = other_head(p, at.head), reloads = 0;
    load_own<OWN_FIRST_BYTES>(p.own_first_map, base + OWN_FIRST, b.own_first, w, MAKES_FIRST ? w.head : own,
                              own_first_entry(p, w.batch, w.own_used()));
    if constexpr (MAKES_FIRST)
        load_own<OWN_SECOND_BYTES>(p.own_second_map, base + OWN_SECOND, b.own_second, w, own,
                                   own_second_entry(p, w.batch, w.own_used()));
    for (i32 i = 0; i < w.steps; ++i) {
        if (const i32 now = other_head(p, at.head); now != own)
            reload_own(p, w, base, b, own = now, reloads++);
        load_step(p, w, base, b, at, i, i % STAGES);
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
        if (++stage == STAGES)
            stage = 0;
    }
}

/* ---- Warpgroup 0, REDUCES_DQ: dQ ---- */

/* 64 queries x 64 columns of dS K with FP8 operands, from transposed K. */
DEVICE void multiply_part_of_bytes(float (&dq)[32], u32 base, u32 slot, int part) {
    const u32 ds = k_major(base + DS + slot * DS_BYTES), keys = k_major(base + OWN_TURNED + part * SQUARE_BYTES);
    multiply_sums_first(dq, ds, keys);
#pragma unroll
    for (int k = 1; k < BLOCK_OWN / 32; ++k)
        multiply_sums(dq, ds + k * 2, keys + k / 2 * (PANELS * SQUARE_BYTES >> 4) + k % 2 * 2);
}
/* 64 queries x 64 columns of dS K. */
DEVICE void multiply_part(float (&dq)[32], u32 base, u32 slot, int part) {
    const u32 ds = k_major(base + DS + slot * DS_BYTES + part / PANELS * DS_PANEL) + mn_major(DS_PANEL);
    const u32 keys = k_major(base + OWN_FIRST + part % PANELS * OWN_PANEL) + mn_major(OWN_PANEL);
    multiply_sums_first(dq, ds, keys);
#pragma unroll
    for (int k = 1; k < BLOCK_OWN / 16; ++k)
        multiply_sums(dq, ds + k * 128, keys + k * 128);
}

/* STORES_DQ: stores 64 columns from `column` on of rows of the gradient's type. */
DEVICE void store_part_of_queries(const float (&dq)[32], float scale, u32 s_part, const tensor_map &map, i32 column,
                                  i32 row, i32 head, i32 batch) {
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
        store_quad(s_part + place_in_sums(c, warp) * 4, dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]);
    publish_to_async_proxy();
}
DEVICE void add_part(const float (&dq)[32], u32 s_part, float *sum) {
    stage_part(dq, s_part, 0);
    sync_threads(PART_STAGED, 128);
    if (threadIdx.x != 0)
        return;
    add_bytes(sum, s_part, PART_BYTES);
    commit_stores();
}
/* HAS_FP8_MMA: each warp adds its own rows. This is slower with 16-bit operands. */
DEVICE void add_part_of_warp(const float (&dq)[32], u32 s_part, float *sum) {
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
    if constexpr (HAS_BYTES) {
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

template <class P> DEVICE void sum_query_gradients(const P &p, u32 base) {
    const work w = find_work(p);
    const barriers b(base);
    cursor at(p, w);
    float dq[32];
    [[maybe_unused]] const float scale = STORES_QUERIES ? scale_of(p) * slope_factor_of(p) : 1.0f;
    if (threadIdx.x == 0 && w.steps > 0)
        load_first_steps(p, w, base, b);
    __syncwarp();
    if (HAS_BYTES && w.steps > 0)
        turn_own(w, base, b);
    i32 stage = 0; /* of step i */
    for (i32 i = 0; i < w.steps; ++i) {
        const u32 slot = i % DS_STAGES;
        if constexpr (HAS_BOXED_BIAS) {
            if (threadIdx.x == 0)
                load_next_bias(p, w, base, b, at, i);
            __syncwarp();
        }
        wait(b.ds_full + 8 * slot, i / DS_STAGES & 1);
        if (!HAS_BYTES && i == 0)
            wait(b.own_first, 0);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int staged = part % PARTS_STAGED;
            mma_fence();
            if constexpr (HAS_BYTES)
                multiply_part_of_bytes(dq, base, slot, part);
            else
                multiply_part(dq, base, slot, part);
            mma_commit();
            if (part == 0 && threadIdx.x == 0)
                load_next_step(p, w, base, b, at, i, stage);
            await_staging(staged);
            mma_wait<0>();
            fence_registers(dq);
            if (part == PARTS - 1 && lane_index() == 0)
                arrive(b.ds_empty + 8 * slot);
            if constexpr (STORES_QUERIES)
                store_part_of_queries(dq, scale, base + DQ + staged * PART_BYTES, p.dq_map, part % PANELS * 64,
                                      at.block * BLOCK_PASS + part / PANELS * 64, at.head, w.batch);
            else {
                float *const sum = p.dq_sum + (q_tile(p, w.batch, at.head, at.block) * PARTS + part) * (PART_BYTES / 4);
                if constexpr (HAS_BYTES)
                    add_part_of_warp(dq, base + DQ + staged * PART_BYTES, sum);
                else
                    add_part(dq, base + DQ + staged * PART_BYTES, sum);
            }
        }
        at.advance(p, w, i + 1 == w.steps);
        if (++stage == STAGES)
            stage = 0;
    }
    if (HAS_BYTES ? lane_index() == 0 : threadIdx.x == 0)
        wait_stores_read<0>();
}

/* ---- Consumers: P, dS, and the gradients of resident rows ---- */

/* S and dP: resident rows x streamed rows. */
DEVICE void multiply_first_tile(float (&s)[BLOCK_PASS / 2], u32 own, u32 pass) {
    multiply_scores_first(s, own, pass);
#pragma unroll
    for (int k = 1; k < HEAD / STEP; ++k)
        multiply_scores(s, own + k / 4 * (OWN_PANEL >> 4) + k % 4 * 2, pass + k / 4 * (PASS_PANEL >> 4) + k % 4 * 2);
}
DEVICE void multiply_second_tile(float (&dp)[BLOCK_PASS / 2], u32 own, u32 pass) {
    multiply_dp_first(dp, own, pass);
#pragma unroll
    for (int k = 1; k < VALUE_HEAD / STEP; ++k)
        multiply_dp(dp, own + k / 4 * (OWN_PANEL >> 4) + k % 4 * 2, pass + k / 4 * (PASS_PANEL >> 4) + k % 4 * 2);
}
DEVICE void add_first(float (&sum)[HEAD / 2], const u32 (&factor)[BLOCK_PASS / 4], u32 pass) {
#pragma unroll
    for (int k = 0; k < BLOCK_PASS / 16; ++k)
        multiply_first(sum, factor + 4 * k, pass + mn_major(PASS_PANEL) + k * 128);
}
DEVICE void add_second(float (&sum)[VALUE_HEAD / 2], const u32 (&factor)[BLOCK_PASS / 4], u32 pass) {
#pragma unroll
    for (int k = 0; k < BLOCK_PASS / 16; ++k)
        multiply_second(sum, factor + 4 * k, pass + mn_major(PASS_PANEL) + k * 128);
}

/* Position of a thread's elements: 4c + e is resident row + 8 (e / 2), streamed row 8c + column + e % 2. */
struct tile_place {
    i32 row, column;
    DEVICE tile_place() : row(16 * (warp_index() & 3) + lane_index() / 4), column(2 * (lane_index() & 3)) {}
};

/* lse2 and delta of queries: in shared memory if queries are streamed, in registers if they are resident. */
struct statistics_of_rows {
    float lse2[2] = {}, delta[2] = {};
    DEVICE statistics_of_rows(const arguments &p, const work &w, i32 own) {
        if constexpr (!OWN_IS_KEY) {
            const tile_place at;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const i32 row = own + at.row + 8 * h, block = min(row / BLOCK_Q, (i32)p.q_blocks - 1);
                const float *const tile = p.statistics + q_tile(p, w.batch, w.head, block) * 2 * BLOCK_Q;
                lse2[h] = tile[row % BLOCK_Q];
                delta[h] = tile[BLOCK_Q + row % BLOCK_Q];
            }
        }
    }
    static DEVICE void load(float (&four)[4], u32 s_pair, const float (&own)[2]) {
        float pair[2];
        if constexpr (OWN_IS_KEY)
            load_pair(pair, s_pair);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            four[e] = OWN_IS_KEY ? pair[e % 2] : own[e / 2];
    }
};

/* ALiBi slope of a query head, times log2(e). */
DEVICE float slope2_of(const arguments &p, i32 head) {
    return HAS_ALIBI ? alibi_slope<float>(head, (i32)p.heads) * 1.44269504f : 0.0f;
}

/* P = 2^(scale2 S + slope2 (key - query) - lse2); resident and streamed: the tile's first rows. */
DEVICE void make_weights(float (&s)[BLOCK_PASS / 2], const statistics_of_rows &own_statistics, u32 s_lse2, float scale2,
                         float slope2, i32 own, i32 pass) {
    const tile_place at;
    const float distance = (float)(pass + at.column - own - at.row); /* streamed row minus resident row */
    const float growth = OWN_IS_KEY ? slope2 : -slope2;              /* of lse2 minus ALiBi per unit of distance */
#pragma unroll
    for (int c = 0; c < BLOCK_PASS / 8; ++c) {
        float lse2[4];
        statistics_of_rows::load(lse2, s_lse2 + c * 32, own_statistics.lse2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float shift = lse2[e];
            if constexpr (HAS_ALIBI)
                shift += growth * (distance + (8 * c + e % 2 - e / 2 * 8));
            s[4 * c + e] = exp2_approx(s[4 * c + e] * scale2 - shift);
        }
    }
}

/* Derivatives of the score modifier, in pairs. */
using slope_pairs = u32[HAS_SLOPES ? BLOCK_PASS / 4 : 1];
constexpr bool HAS_SCORES = HAS_MODIFIER || BIAS != 0; /* scores are computed per element, in natural units */

/* HAS_FACTORS: constant factors of all inputs of the modifier, and of all its outputs; otherwise 1. */
template <class P> DEVICE float first_factor(const P &p) {
    if constexpr (HAS_FACTORS)
        return factor_before(p);
    else
        return 1.0f;
}
template <class P> DEVICE float last_factor(const P &p) {
    if constexpr (HAS_FACTORS)
        return factor_after(p);
    else
        return 1.0f;
}
/* Without a bias, the last factor is folded into log2(e). */
constexpr bool FACTOR_IS_LEFT = HAS_FACTORS && BIAS == 0;

/* Score without ALiBi, from the product times the scale and first_factor. */
template <class P>
DEVICE float changed_score(const P &p, i32 batch, i32 head, i32 query, i32 key, float scaled, float bias) {
    if constexpr (FACTOR_IS_LEFT)
        return modified_between(p, batch, head, query, key, scaled);
    else if constexpr (HAS_FACTORS)
        return with_bias<true>(modified_between(p, batch, head, query, key, scaled) * last_factor(p), bias);
    else
        return score_of<true>(p, batch, head, query, key, scaled, bias);
}
/* IS_SOFT_CAP: a tanh between two factors, whose derivative is always finite, so it is multiplied into P, in pairs. Not
   with dropout, which needs P itself. */
constexpr bool SLOPES_JOIN = IS_SOFT_CAP && !HAS_DROPOUT;

/* Derivative of the score, without derivative_factor_of. If the score hides a key it is arbitrary, because P is 0 then.
   */
template <class P> DEVICE float slope_at(const P &p, i32 batch, i32 head, i32 query, i32 key, float scaled) {
    if constexpr (IS_SOFT_CAP) {
        const float tanh = modified_between(p, batch, head, query, key, scaled);
        return fmaf(-tanh, tanh, 1.0f);
    } else if constexpr (HAS_FACTORS)
        return between_gradient(p, batch, head, query, key, scaled, first_factor(p) * last_factor(p));
    else
        return modified_gradient(p, batch, head, query, key, scaled, 1.0f);
}

/* Bias of 16 queries from 8c on, in pairs in accumulator order; s_bias: this consumer's box. */
DEVICE void load_boxed_bias(u32 (&pairs)[4], u32 s_bias, int c) {
    const u32 lane = lane_index(), key = 2 * (warp_index() & 3) + lane / 8 % 2; /* in units of eight keys */
    load_matrices_transposed(pairs, s_bias + (lane / 16 * 8 + lane % 8) * 128 + (key ^ lane % 8) * 16 + c * 1024);
}

/* P with a modifier or a bias. Indices beyond the tensors are clamped; such elements are masked, or their statistics
   are +inf. head: of the queries. */
template <class P>
DEVICE void make_weights_of_scores(float (&s)[BLOCK_PASS / 2], slope_pairs &slopes, const P &p, i32 batch, i32 head,
                                   const statistics_of_rows &own_statistics, u32 s_lse2, u32 s_bias, float scale,
                                   float slope2, i32 own, i32 pass) {
    const tile_place at;
    [[maybe_unused]] const float distance = (float)(pass + at.column - own - at.row);
    [[maybe_unused]] const float growth = OWN_IS_KEY ? slope2 : -slope2;
    const i32 last_row = (i32)(OWN_IS_KEY ? p.keys : p.queries) - 1,
              last_column = (i32)(OWN_IS_KEY ? p.queries : p.keys) - 1;
    const float to_exponent = FACTOR_IS_LEFT ? last_factor(p) * 1.44269504f : 1.44269504f;
    scale *= first_factor(p);
    i32 rows[2];
    bias_offset bias[2];
    [[maybe_unused]] u32 pairs[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        rows[h] = min(own + at.row + 8 * h, last_row);
        bias[h] = bias_row(p, batch, head, rows[h], OWN_IS_KEY);
    }
#pragma unroll
    for (int c = 0; c < BLOCK_PASS / 8; ++c) {
        float lse2[4];
        [[maybe_unused]] float slope[4];
        [[maybe_unused]] float boxed[2][2];
        if constexpr (HAS_BOXED_BIAS) {
            if (c % 2 == 0)
                load_boxed_bias(pairs, s_bias, c);
#pragma unroll
            for (int h = 0; h < 2; ++h)
                unpack_bias(boxed[h], pairs[c % 2 * 2 + h]);
        }
        statistics_of_rows::load(lse2, s_lse2 + c * 32, own_statistics.lse2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const i32 column = min(pass + at.column + 8 * c + e % 2, last_column);
            const i32 query = OWN_IS_KEY ? column : rows[e / 2], key = OWN_IS_KEY ? rows[e / 2] : column;
            const float scaled = s[4 * c + e] * scale;
            const float joins = HAS_BOXED_BIAS ? boxed[e / 2][e % 2] : bias_at<OWN_IS_KEY>(p, bias[e / 2], column);
            const float score = changed_score(p, batch, head, query, key, scaled, joins);
            if constexpr (HAS_SLOPES)
                slope[e] = slope_at(p, batch, head, query, key, scaled);
            float shift = lse2[e];
            if constexpr (HAS_ALIBI)
                shift += growth * (distance + (8 * c + e % 2 - e / 2 * 8));
            s[4 * c + e] = exp2_approx(score * to_exponent - shift);
        }
        if constexpr (HAS_SLOPES)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                slopes[2 * c + h] = rounded_pair<in_t>(slope[2 * h], slope[2 * h + 1]);
    }
}

/* Products of pairs, rounded to the operand type. */
DEVICE u32 multiply_pairs(u32 a, u32 b) {
    constexpr u32 NOTHING = 0x80008000; /* -0, the neutral addend */
    return IS_BF16 ? ptx::fma_bf16x2(a, b, NOTHING) : ptx::fma_f16x2(a, b, NOTHING);
}

constexpr int KEPT_WORDS = BLOCK_PASS / 64;

/* P is rounded after dS has been computed from it. Otherwise it is unpacked for dS, which costs an instruction per
   element but needs fewer registers. */
constexpr bool ROUNDS_LAST = MAKES_FIRST && !HAS_SLOPES && !HAS_DROPOUT && (!HAS_SUMS || HAS_BYTES);

/* True if the tile of HALF resident and BLOCK_STREAMED streamed rows needs masking. */
DEVICE bool needs_mask(const work &w, i32 own, i32 pass) {
    return (OWN_IS_KEY && own + HALF > w.seen.keys) || (HAS_LOW && w.low(own + HALF - 1) > pass) ||
           (HAS_HIGH && w.high(own) < pass + BLOCK_PASS);
}
/* Zeroes P of invisible pairs. */
DEVICE void mask_weights(float (&s)[BLOCK_PASS / 2], const work &w, i32 own, i32 pass) {
    const tile_place at;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const i32 row = own + at.row + e / 2 * 8, column = pass + at.column + e % 2;
        const i32 low = OWN_IS_KEY && row >= w.seen.keys ? BLOCK_PASS : HAS_LOW ? w.low(row) - column : -BLOCK_PASS;
        const i32 high = HAS_HIGH ? w.high(row) - column : BLOCK_PASS;
#pragma unroll
        for (int c = 0; c < BLOCK_PASS / 8; ++c)
            if (8 * c < low || (HAS_HIGH && 8 * c >= high))
                s[4 * c + e] = 0;
    }
}

/* HAS_FP8_MMA: dS as FP8, as it is published: per 8 columns, two elements of a row and two of the row 8 below. */
using byte_words = u32[HAS_BYTES ? BLOCK_PASS / 8 : 1];
DEVICE void widen_score_gradients(u32 (&ds)[BLOCK_PASS / 4], const byte_words &bytes) {
#pragma unroll
    for (int i = 0; i < BLOCK_PASS / 4; ++i)
        ds[i] = widened_pair<ds_factor_t>((u16)(bytes[i / 2] >> i % 2 * 16));
}

/* dS = P (dP - delta), from rounded P, or from exact P with ROUNDS_P_LAST. HAS_DROPOUT: computes P' dP - P delta, where
   P' is P with dropped elements zeroed, and replaces P by P'; the statistics include the keep probability, see
   backward_rows. */
DEVICE void make_score_gradients(u32 (&ds)[BLOCK_PASS / 4], byte_words &bytes, u32 (&weights)[BLOCK_PASS / 4],
                                 const float (&exact)[BLOCK_PASS / 2], const slope_pairs &slopes,
                                 const float (&dp)[BLOCK_PASS / 2], const statistics_of_rows &own, u32 s_delta,
                                 const u32 (&kept)[KEPT_WORDS], score_factors &factors) {
#pragma unroll
    for (int c = 0; c < BLOCK_PASS / 8; ++c) {
        float delta[4];
        statistics_of_rows::load(delta, s_delta + c * 32, own.delta);
        const auto grown = [&](int i) { return IS_FP8 ? dp[i] * factors.of_dp : dp[i]; };
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 pair = weights[2 * c + h];
            const int i = 4 * c + 2 * h;
            float low, high;
            if constexpr (HAS_DROPOUT) {
                drop_pair(weights[2 * c + h], kept, i);
                const u32 left = weights[2 * c + h];
                low = low_half(left) * dp[i] - low_half(pair) * delta[2 * h];
                high = high_half(left) * dp[i + 1] - high_half(pair) * delta[2 * h + 1];
            } else if constexpr (ROUNDS_LAST) {
                low = exact[i] * (grown(i) - delta[2 * h]);
                high = exact[i + 1] * (grown(i + 1) - delta[2 * h + 1]);
            } else {
                const u32 left = SLOPES_JOIN ? slopes[2 * c + h] : pair;
                low = low_half(left) * (grown(i) - delta[2 * h]);
                high = high_half(left) * (grown(i + 1) - delta[2 * h + 1]);
            }
            if constexpr (HAS_SLOPES && !SLOPES_JOIN) { /* derivatives may be infinite or NaN if P is 0 */
                low = low == 0 ? 0.0f : low * low_half(slopes[2 * c + h]);
                high = high == 0 ? 0.0f : high * high_half(slopes[2 * c + h]);
            }
            factors.note(low, high);
            if constexpr (HAS_BYTES)
                bytes[c] = (h == 0 ? 0 : bytes[c]) | (u32)byte_pair<ds_factor_t>(low, high) << 16 * h;
            else
                ds[2 * c + h] = IS_FP8 ? factor_pair<ds_factor_t>(low, high) : rounded_pair<in_t>(low, high);
        }
    }
}

/* Stores the dS of this warp's 16 keys, transposed for dQ. */
DEVICE void store_score_gradients(const u32 (&ds)[BLOCK_PASS / 4], u32 s_row) {
#pragma unroll
    for (int c = 0; c < BLOCK_PASS / 16; ++c) {
        const u32 four[4] = {ds[4 * c], ds[4 * c + 1], ds[4 * c + 2], ds[4 * c + 3]};
        store_matrices(s_row + c / 4 * DS_PANEL + ((2 * (c & 3) + lane_index() / 16) ^ (lane_index() & 7)) * 16, four);
    }
}

/* FP8 version, K-major: rows are queries, and keys r and r + 8 of a warp are adjacent, in the order of transpose_k. */
DEVICE void store_score_bytes(const byte_words &bytes, u32 s_ds, int half) {
    const u32 lane = lane_index(), chunk = (u32)half * 4 + (warp_index() & 3);
#pragma unroll
    for (int c = 0; c < BLOCK_PASS / 8; c += 4) {
        const u32 four[4] = {__byte_perm(bytes[c], 0, 0x3120), __byte_perm(bytes[c + 1], 0, 0x3120),
                             __byte_perm(bytes[c + 2], 0, 0x3120), __byte_perm(bytes[c + 3], 0, 0x3120)};
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
DEVICE void clear_own(const work &w, u32 base, int half) {
    const i32 used = w.own_used() - w.own - half * HALF;
    if (used >= HALF)
        return;
    clear_rows<ONCE_PANELS>(base + OWN_FIRST + half * HALF * 128, max(used, 0), HALF, OWN_PANEL, threadIdx.x & 127,
                            128);
    if constexpr (MAKES_FIRST)
        clear_rows<SECOND_ONCE_PANELS>(base + OWN_SECOND + half * HALF * 128, max(used, 0), HALF, OWN_PANEL,
                                       threadIdx.x & 127, 128);
    publish_to_async_proxy();
    sync_threads(OWN_CLEARED + half, 128);
}
/* Clears streamed rows past the length in use. Both consumers execute this for such a step. */
DEVICE void clear_pass(const work &w, u32 base, const barriers &b, i32 pass, i32 stage, i32 second_stage,
                       i32 second_phase) {
    const i32 used = w.pass_used() - pass;
    if (used >= BLOCK_PASS)
        return;
    wait(b.second_full + 8 * second_stage, second_phase);
    clear_rows<FIRST_BYTES / PASS_PANEL>(base + FIRST + stage * FIRST_BYTES, used, BLOCK_PASS, PASS_PANEL,
                                         threadIdx.x - 128, 256);
    clear_rows<SECOND_BYTES / PASS_PANEL>(base + SECOND + second_stage * SECOND_BYTES, used, BLOCK_PASS, PASS_PANEL,
                                          threadIdx.x - 128, 256);
    publish_to_async_proxy();
    sync_threads(PASS_CLEARED, 256);
}
constexpr bool CLEARS_OWN =
    (OWN_IS_KEY ? HAS_SEQ_LEN_KV : HAS_SEQ_LEN_Q) && !(OWN_FIRST_IS_RAGGED && OWN_SECOND_IS_RAGGED);
constexpr bool CLEARS_PASS = (OWN_IS_KEY ? HAS_SEQ_LEN_Q : HAS_SEQ_LEN_KV) && !(FIRST_IS_RAGGED && SECOND_IS_RAGGED);

/* True if nothing in this step is visible to the second consumer. The first step can be such a step if streamed blocks
   are half as long as resident ones. A step whose rows must be cleared needs both consumers. */
DEVICE bool hides_all(const work &w, i32 own, i32 pass) {
    const bool is_whole = !CLEARS_PASS || pass + BLOCK_PASS <= w.pass_used();
    return OWN_IS_KEY && HAS_LOW && BLOCK_PASS <= HALF && is_whole && w.low(own) >= pass + BLOCK_PASS;
}

/* Stores a gradient through this consumer's resident rows. */
template <bool IS_RAGGED, int N>
DEVICE void store_gradient(const float (&sum)[N], float scale, u32 s_rows, const tensor_map &map, const work &w,
                           const box_entry &entry, int half) {
    const u32 lane = lane_index(), to = s_rows + (16 * (warp_index() & 3) + lane % 16) * 128;
#pragma unroll
    for (int c = 0; c < N / 4; c += 2) {
        const float *const x = sum + 4 * c;
        const u32 four[4] = {
            rounded_pair<in_t>(x[0] * scale, x[1] * scale), rounded_pair<in_t>(x[2] * scale, x[3] * scale),
            rounded_pair<in_t>(x[4] * scale, x[5] * scale), rounded_pair<in_t>(x[6] * scale, x[7] * scale)};
        store_matrices(to + c / 8 * OWN_PANEL + ((c % 8 + lane / 16) ^ (lane & 7)) * 16, four);
    }
    publish_to_async_proxy();
    if (half == 0)
        sync_threads(GRADIENT_STAGED, 128);
    else
        sync_threads(GRADIENT_STAGED + 1, 128);
    if ((threadIdx.x & 127) != 0 || (IS_RAGGED && w.own + half * HALF >= w.own_used()))
        return;
#pragma unroll
    for (int s = 0; s < N / 32; ++s)
        store_box(map, s_rows + s * OWN_PANEL, s * 64, entry.row + w.own + half * HALF, w.head, entry.place);
    commit_stores();
}

/* Releases a stage of streamed qk and its statistics. Every lane has read statistics, so every lane arrives unless
   another barrier follows: an arrival orders only the reads of its own thread. */
constexpr bool LANES_ARRIVE = OWN_IS_KEY && !HAS_SUMS;
DEVICE void leave_first(u32 first_empty) {
    if (LANES_ARRIVE || lane_index() == 0)
        arrive(first_empty);
}

struct gradients {
    float first[HEAD / 2], second[VALUE_HEAD / 2]; /* HAS_DQK, HAS_DV */
};

/* A consumer's step: its number, first streamed row, query head, and stage. */
struct consumer_step {
    i32 pass, stage = 0, phase = 0, number = 0, head;

    template <class P>
    DEVICE consumer_step(const P &p, const work &w) : pass(w.first * BLOCK_PASS), head(first_head(p, w)) {
        if constexpr (HAS_BLOCK_MASK)
            if (!warp_takes_part(p, w, head, w.first)) {
                advance(p, w);
                stage = phase = number = 0;
            }
    }
    template <class P> DEVICE void advance(const P &p, const work &w) {
        do {
            pass += BLOCK_PASS;
            if (pass == w.last * BLOCK_PASS) {
                pass = w.first * BLOCK_PASS;
                ++head;
            }
        } while (HAS_BLOCK_MASK && !warp_takes_part(p, w, head, pass / BLOCK_PASS));
        if (++stage == STAGES)
            stage = 0, phase ^= 1;
        ++number;
    }
    DEVICE i32 second_stage() const { return SECOND_STAGES == STAGES ? stage : number % SECOND_STAGES; }
    DEVICE i32 second_phase() const { return SECOND_STAGES == STAGES ? phase : number / SECOND_STAGES & 1; }
};

/* RELOADS: the current head of the resident tensor whose gradient this CTA does not compute. */
struct own_head {
    i32 head, phase = 0;

    DEVICE explicit own_head(i32 first) : head(first) {}
    /* Releases the current head and waits for the next one. */
    DEVICE void follow(i32 now, const work &w, u32 base, const barriers &b, int half) {
        if (!RELOADS || now == head)
            return;
        head = now, phase ^= 1;
        if (lane_index() == 0)
            arrive(b.own_empty);
        wait(MAKES_FIRST ? b.own_second : b.own_first, phase);
        if (CLEARS_OWN)
            clear_own(w, base, half);
    }
};

DEVICE void await_own(const work &w, u32 base, const barriers &b, int half) {
    wait(b.own_first, 0);
    if constexpr (MAKES_FIRST)
        wait(b.own_second, 0);
    if (CLEARS_OWN)
        clear_own(w, base, half);
}

/* Publishes dS of a step for dQ; s_ds: this warp's address. */
DEVICE void hand_over(const u32 (&ds)[BLOCK_PASS / 4], const byte_words &bytes, u32 s_ds, int half, u32 full) {
    if constexpr (HAS_BYTES)
        store_score_bytes(bytes, s_ds, half);
    else
        store_score_gradients(ds, s_ds);
    publish_to_async_proxy();
    __syncwarp();
    if (lane_index() == 0)
        arrive(full);
}

/* Skips the first step, which is hidden from this consumer. */
DEVICE void pass_over_first_step(u32 s_ds, int half, const barriers &b) {
    wait(b.second_full, 0);
    if constexpr (HAS_BOXED_BIAS)
        wait(b.bias_full, 0);
    if (lane_index() == 0) {
        if constexpr (HAS_BOXED_BIAS)
            arrive(b.bias_empty);
        arrive(b.second_empty);
    }
    if constexpr (HAS_SUMS)
        hand_over({}, {}, s_ds, half, b.ds_full);
    leave_first(b.first_empty);
}

/* Issues S of a step whose qk operands have arrived. */
DEVICE void start_scores(float (&s)[BLOCK_PASS / 2], const work &w, u32 base, const barriers &b, u32 own_rows,
                         const consumer_step &at) {
    if (CLEARS_PASS)
        clear_pass(w, base, b, at.pass, at.stage, at.second_stage(), at.second_phase());
    mma_fence();
    multiply_first_tile(s, own_rows + (OWN_FIRST >> 4), k_major(base + FIRST + at.stage * FIRST_BYTES));
    mma_commit();
}

DEVICE void round_weights(u32 (&weights)[BLOCK_PASS / 4], const float (&s)[BLOCK_PASS / 2]) {
#pragma unroll
    for (int c = 0; c < BLOCK_PASS / 4; ++c)
        weights[c] = rounded_pair<in_t>(s[2 * c], s[2 * c + 1]);
}

/* Computes rounded P of a step from S. FUSES_DERIVATIVES: multiplies `derivatives` by P. */
template <class P>
DEVICE void finish_weights(u32 (&weights)[BLOCK_PASS / 4], float (&s)[BLOCK_PASS / 2], slope_pairs &slopes, const P &p,
                           const work &w, const consumer_step &at, const statistics_of_rows &statistics,
                           u32 s_statistics, u32 s_bias, const barriers &b, float scale2, i32 own) {
    if constexpr (HAS_BOXED_BIAS)
        wait(b.bias_full, at.number & 1);
    if constexpr (HAS_SCORES)
        make_weights_of_scores(s, slopes, p, w.batch, at.head, statistics, s_statistics, s_bias, score_scale_of(p),
                               slope2_of(p, at.head), own, at.pass);
    else
        make_weights(s, statistics, s_statistics, scale2, slope2_of(p, at.head), own, at.pass);
    if constexpr (HAS_BOXED_BIAS) {
        publish_to_async_proxy(); /* order these reads before the TMA load that overwrites them */
        arrive_where(b.bias_empty, lane_index() == 0);
    }
    if (needs_mask(w, own, at.pass))
        mask_weights(s, w, own, at.pass);
    if constexpr (!ROUNDS_LAST)
        round_weights(weights, s);
    if constexpr (SLOPES_JOIN)
#pragma unroll
        for (int c = 0; c < BLOCK_PASS / 4; ++c)
            slopes[c] = multiply_pairs(weights[c], slopes[c]);
}

/* Fully unrolled, so that round keys are in uniform registers and nothing is spilled. */
template <class P>
DEVICE void find_all_kept(u32 (&kept)[KEPT_WORDS], const P &p, const work &w, const consumer_step &at, i32 own) {
    const tile_place place; /* recomputed here; keeping it would cost registers */
#pragma unroll
    for (int i = 0; i < KEPT_WORDS; ++i)
        kept[i] = find_kept<OWN_IS_KEY, 8>(p, w.batch, at.head, own + place.row, at.pass + place.column + 64 * i);
}

/* Keeps the compiler from moving the computation of these operands across the next MMA. */
DEVICE void fence_factors(u32 (&weights)[BLOCK_PASS / 4], slope_pairs &slopes, float (&dp)[BLOCK_PASS / 2],
                          u32 (&kept)[KEPT_WORDS]) {
    if constexpr (HAS_SLOPES)
        fence_registers(slopes);
    if constexpr (HAS_DROPOUT) { /* otherwise both are unpacked earlier, which needs more registers */
        fence_registers(weights);
        fence_registers(kept);
    }
    fence_registers(dp);
}

/* Releases both stages after the MMAs have read them. */
DEVICE void leave_step(u32 first_empty, u32 second_empty) {
    if constexpr (LANES_ARRIVE) /* order the reads of the statistics before the TMA load that overwrites them */
        publish_to_async_proxy();
    if (lane_index() == 0 && (SECOND_STAGES == STAGES || !MAKES_FIRST))
        arrive(second_empty);
    leave_first(first_empty);
}

template <class P>
DEVICE void sum_gradients(const P &p, const work &w, u32 base, const barriers &b, int half, gradients &sum,
                          score_factors &factors) {
    const i32 own = w.own + half * HALF;
    const u32 lane = lane_index(), own_rows = k_major(base + half * HALF * 128);
    const u32 s_ds = base + DS + (HAS_BYTES ? 0 : (half * HALF + 16 * (warp_index() & 3) + lane % 16) * 128);
    const statistics_of_rows statistics(p, w, own);
    const float scale2 = score_scale_of(p) * 1.44269504f;
    float s[BLOCK_PASS / 2];
    u32 weights[BLOCK_PASS / 4], ds[BLOCK_PASS / 4];
    [[maybe_unused]] byte_words bytes;
    [[maybe_unused]] float dp[BLOCK_PASS / 2];
    [[maybe_unused]] u32 kept[KEPT_WORDS] = {};
    slope_pairs slopes = {};
    consumer_step at(p, w);
    own_head other(other_head(p, at.head));
    await_own(w, base, b, half);
    wait(b.first_full, 0);
    if (half == 1 && w.steps > 1 && hides_all(w, own, at.pass)) {
        pass_over_first_step(s_ds, half, b);
        at.advance(p, w);
        other.follow(other_head(p, at.head), w, base, b, half);
        wait(b.first_full + 8 * at.stage, at.phase);
    }
    start_scores(s, w, base, b, own_rows, at);
    for (;;) {
        const u32 first_empty = b.first_empty + 8 * at.stage, second_empty = b.second_empty + 8 * at.second_stage();
        const u32 first = k_major(base + FIRST + at.stage * FIRST_BYTES),
                  second = k_major(base + SECOND + at.second_stage() * SECOND_BYTES);
        const u32 s_statistics = base + STATISTICS + at.stage * STATISTICS_BYTES + (lane & 3) * 8;
        mma_wait<0>();
        fence_registers(s);
        finish_weights(weights, s, slopes, p, w, at, statistics, s_statistics, base + BIAS_BOXES + half * BIAS_PANEL, b,
                       scale2, own);
        wait(b.second_full + 8 * at.second_stage(), at.second_phase());
        if constexpr (MAKES_FIRST) {
            mma_fence();
            multiply_second_tile(dp, own_rows + (OWN_SECOND >> 4), second);
            mma_commit();
        }
        if constexpr (HAS_DROPOUT)
            find_all_kept(kept, p, w, at, own);
        if constexpr (MAKES_FIRST) {
            mma_wait<0>();
            fence_factors(weights, slopes, dp, kept);
            if (SECOND_STAGES != STAGES && lane == 0) /* vdo has been read, and the next step needs this stage */
                arrive(second_empty);
            make_score_gradients(ds, bytes, weights, s, slopes, dp, statistics, s_statistics + BLOCK_PASS * 4, kept,
                                 factors);
        }
        if constexpr (HAS_DROPOUT && !MAKES_FIRST)
#pragma unroll
            for (int k = 0; k < BLOCK_PASS / 4; ++k)
                drop_pair(weights[k], kept, 2 * k);
        if constexpr (IS_FP8)
#pragma unroll
            for (int k = 0; k < BLOCK_PASS / 4; ++k)
                weights[k] = ROUNDS_LAST ? factor_pair<weight_factor_t>(s[2 * k], s[2 * k + 1])
                                         : factor_pair<weight_factor_t>(weights[k]);
        else if constexpr (ROUNDS_LAST)
            round_weights(weights, s);
        if constexpr (MAKES_SECOND) {
            mma_fence();
            add_second(sum.second, weights, HAS_BYTES ? second + (SECOND_ONCE_BYTES >> 4) : second);
            mma_commit();
        }
        if constexpr (HAS_SUMS) {
            const u32 slot = at.number % DS_STAGES;
            wait(b.ds_empty + 8 * slot, at.number / DS_STAGES & 1 ^ 1);
            hand_over(ds, bytes, s_ds + slot * DS_BYTES, half, b.ds_full + 8 * slot);
        }
        if constexpr (HAS_BYTES)
            widen_score_gradients(ds, bytes);
        if constexpr (MAKES_FIRST) {
            mma_fence();
            add_first(sum.first, ds, HAS_AGAIN ? first + (ONCE_BYTES >> 4) : first);
            mma_commit();
        }
        if (at.number + 1 == w.steps)
            break;
        at.advance(p, w);
        mma_wait<0>();
        fence_registers(weights);
        if constexpr (MAKES_FIRST)
            fence_registers(ds);
        leave_step(first_empty, second_empty);
        other.follow(other_head(p, at.head), w, base, b, half);
        wait(b.first_full + 8 * at.stage, at.phase);
        start_scores(s, w, base, b, own_rows, at);
    }
    mma_wait<0>();
}

/* HALF resident rows. */
template <int N> DEVICE void store_accumulators(float *to, const float (&sum)[N], float scale) {
#pragma unroll
    for (int c = 0; c < N / 4; ++c) {
        const float *const x = sum + 4 * c;
        const run<float, 4> four = {{x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale}};
        store_run(to + place_in_sums(c, warp_index() % 4), four);
    }
}
template <class P> DEVICE void store_part(const P &p, const work &w, int half, const gradients &sum) {
    const i64 tile = ((i64)(w.batch * (i32)p.own_heads + w.part) * (i32)p.own_blocks * 2) + w.own / HALF + half;
    if constexpr (MAKES_FIRST)
        store_accumulators(p.first_parts + tile * HALF * HEAD, sum.first,
                           IS_FP8 ? 1.0f : scale_of(p) * slope_factor_of(p));
    if constexpr (MAKES_SECOND)
        store_accumulators(p.second_parts + tile * HALF * VALUE_HEAD, sum.second, 1.0f);
}

/* Stores rows of the gradients' type, staged in the buffers of the resident rows. */
template <class P>
DEVICE void store_gradients(const P &p, const work &w, u32 base, const barriers &b, int half, const gradients &sum) {
    constexpr u32 SECOND_LEAVES = MAKES_FIRST ? OWN_SECOND : OWN_FIRST;
    if constexpr (MAKES_SECOND)
        store_gradient<SECOND_GRADIENT_IS_RAGGED>(sum.second, 1.0f, base + SECOND_LEAVES + half * HALF * 128,
                                                  p.second_gradient_map, w,
                                                  second_gradient_entry(p, w.batch, w.own_used()), half);
    const i32 last = w.steps - 1;
    if (HAS_SUMS && w.steps > 0)
        wait(b.ds_empty + 8 * (last % DS_STAGES), last / DS_STAGES & 1); /* K has been read */
    if constexpr (MAKES_FIRST)
        store_gradient<FIRST_GRADIENT_IS_RAGGED>(sum.first, scale_of(p) * slope_factor_of(p),
                                                 base + OWN_FIRST + half * HALF * 128, p.first_gradient_map, w,
                                                 first_gradient_entry(p, w.batch, w.own_used()), half);
    if ((threadIdx.x & 127) == 0)
        wait_stores_read<0>();
}

/* IS_FP8: stores this consumer's resident rows from registers; at: the tensor's head. */
template <bool HAS_AMAX, class T, int N>
DEVICE float store_scaled(const float (&sum)[N], float scale, float to_memory, T *at, i64 row_step, i32 first, i32 rows,
                          i32 columns) {
    const tile_place place;
    float largest = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 row = first + place.row + 8 * h;
        if (row >= rows)
            continue;
#pragma unroll
        for (int c = 0; c < N / 4; ++c)
            if (8 * c + place.column < columns)
                store_scaled_pair<HAS_AMAX>(at + row * row_step + 8 * c + place.column, sum[4 * c + 2 * h] * scale,
                                            sum[4 * c + 2 * h + 1] * scale, to_memory, largest);
    }
    return largest;
}
template <class P> DEVICE void store_scaled_gradients(const P &p, const work &w, const gradients &sum, int half) {
    const i32 rows = (i32)(OWN_IS_KEY ? p.keys : p.queries), own = w.own + half * HALF;
    if constexpr (MAKES_SECOND) {
        const float largest = store_scaled<HAS_AMAX_SECOND>(
            sum.second, descale_s_of(p) * descale_d_o_of(p), scale_dv_of(p),
            p.second_gradient + w.batch * p.second_gradient_batch + w.head * p.second_gradient_head,
            p.second_gradient_row, own, rows, (i32)p.value_depth);
        if constexpr (HAS_AMAX_SECOND)
            raise_largest(p.amax_second, largest);
    }
    if constexpr (MAKES_FIRST) {
        const float largest = store_scaled<HAS_AMAX_FIRST>(
            sum.first, descale_dp_of(p) * (OWN_IS_KEY ? descale_q_of(p) : descale_k_of(p)),
            OWN_IS_KEY ? scale_dk_of(p) : scale_dq_of(p),
            p.first_gradient + w.batch * p.first_gradient_batch + w.head * p.first_gradient_head, p.first_gradient_row,
            own, rows, (i32)p.depth);
        if constexpr (HAS_AMAX_FIRST)
            raise_largest(p.amax_first, largest);
    }
}

template <class P> DEVICE void make_gradients(const P &p, u32 base, int half) {
    const work w = find_work(p);
    const barriers b(base);
    gradients sum;
    score_factors factors(p);
#pragma unroll
    for (int i = 0; i < HEAD / 2; ++i)
        sum.first[i] = 0;
#pragma unroll
    for (int i = 0; i < VALUE_HEAD / 2; ++i)
        sum.second[i] = 0;
    if (w.steps > 0)
        sum_gradients(p, w, base, b, half, sum, factors);
    if constexpr (MAKES_FIRST)
        fence_registers(sum.first);
    if constexpr (MAKES_SECOND)
        fence_registers(sum.second);
    if constexpr (HAS_PARTS)
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
    barrier_init(b.own_first, 1);
    barrier_init(b.own_second, 1);
    for (int i = 0; i < STAGES; ++i) {
        barrier_init(b.first_full + 8 * i, 1);
        if (i < SECOND_STAGES)
            barrier_init(b.second_full + 8 * i, 1);
        barrier_init(b.first_empty + 8 * i, CONSUMER_WARPS * (LANES_ARRIVE ? 32 : 1));
        if (i < SECOND_STAGES)
            barrier_init(b.second_empty + 8 * i, CONSUMER_WARPS);
    }
    for (int i = 0; i < DS_STAGES; ++i) {
        barrier_init(b.ds_full + 8 * i, CONSUMER_WARPS);
        barrier_init(b.ds_empty + 8 * i, PRODUCER_WARPS);
    }
    if (RELOADS)
        barrier_init(b.own_empty, CONSUMER_WARPS);
    if (HAS_BYTES)
        barrier_init(b.own_turned, 1);
    if (HAS_BOXED_BIAS) {
        barrier_init(b.bias_full, 1);
        barrier_init(b.bias_empty, CONSUMER_WARPS);
    }
    barrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_backward_sm90(const __grid_constant__ arguments p) {
    const u32 base = shared_address(s_memory);
    if constexpr (MAKES_USED_ALONE) {
        const work w = find_own(p);
        if (w.own >= w.own_used())
            return;
    }
    if (threadIdx.x == 0) {
        prefetch_map(p.own_first_map);
        prefetch_map(p.own_second_map);
        prefetch_map(p.first_map);
        prefetch_map(p.second_map);
        init_barriers(barriers(base));
    }
    __syncthreads();
    const int warpgroup = warp_index() / 4;
    if (warpgroup == 0) {
        shrink_registers<PRODUCER_REGISTERS>();
        if constexpr (HAS_SUMS)
            sum_query_gradients(p, base);
        else
            load_steps(p, base);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        make_gradients(p, base, warpgroup - 1);
    }
}
