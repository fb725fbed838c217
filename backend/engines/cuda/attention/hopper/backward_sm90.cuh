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
   Params    in_t CONFIG (backward_geometry.h) IS_FP8, those of scores, terms, block masks and dropout; emitted
             coordinate functions of the maps; emitted MMAs: mma_s(_first), mma_dp(_first), mma_dqk, mma_dv,
             mma_dq(_first)
   Files     backward_work: rows and blocks of a CTA; backward_loads, backward_dq: warpgroup 0; backward_softmax,
             backward_consumer, backward_store: warpgroups 1 and 2; backward_fp8_mma: has_fp8_mma
   Measured  docs/kernels.md, with alternatives that were tried */

#include "engines/cuda/attention/hopper/backward_geometry.h"
#include "attention/block_mask.cuh"
#include "attention/hopper/fragment_sm90.cuh"
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

/* Accumulators of S and dP, and pairs of P and dS, which are A operands of the gradient MMAs. */
using s_tile = float[CONFIG.block_streamed / 2];
using p_tile = u32[CONFIG.block_streamed / 4];

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

#include "attention/hopper/backward_work_sm90.cuh"
#include "attention/hopper/backward_fp8_mma_sm90.cuh"
#include "attention/hopper/backward_loads_sm90.cuh"
#include "attention/hopper/backward_dq_sm90.cuh"
#include "attention/hopper/backward_softmax_sm90.cuh"
#include "attention/hopper/backward_store_sm90.cuh"
#include "attention/hopper/backward_consumer_sm90.cuh"

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
