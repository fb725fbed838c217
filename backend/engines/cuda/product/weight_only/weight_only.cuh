/* weight_only: C[i,j] = epilogue(sum over k of A[i,k] * (W[k,j] * scale[k / group, j / block]))
   Types     weights of 4 and 8 bits, few rows i, mma.sync; sm_80 and up
   Formula   weights are converted to f16 or bf16 in registers, exactly; a scale of that type multiplies them there,
             with the rounding of the dequantised weight (SCALES_SUMS 0); other scales multiply the sums of a step, as
             if weights were floats (1)
   Tile      a warp computes ROWS = 16 BLOCKS columns j for all i, at most 8 TOKENS: A and B are swapped, so that
             weights are the tensor core's 16 rows. WARPS_ACROSS warps cover different columns and read the same A;
             WARPS_DEEP share k
   Step      a quad of lanes has a row of weights, each lane 16 bytes of it: LENGTH numbers. Sums do not depend on the
             order of k, so a lane multiplies what it has, and reads the same k of A, 16 bytes at a time
   Pipeline  STAGES steps of a warp are in flight to shared memory, with each lane's own 16 bytes adjacent; if A is
             small (STAGES_A), it is staged, too: the warps along columns share the loads and synchronise. Scales are
             loaded one step ahead
   End       sums of the warps are exchanged through shared memory, 8 i at a time, and added from the first warp to the
             last
   Limits    k of A and W contiguous, in multiples of 16 bytes; the weights of a lane share a scale or, if sums are
             scaled, those of a step
   Params    TOKENS BLOCKS WARPS_ACROSS WARPS_DEEP RESIDENT STAGES STAGES_A SCALES_SUMS IS_NEGATIVE LEAD_IS_ROW RUN
             factor_t weight_t scale_t sum_t index
   Cache     all blocks read the same elements of A at about the same time: without L1, from few lines of L2, A would
   take
             longer than the weights. So for few rows shared memory holds only two stages, and leaves the rest to L1
   Tried     weights a step ahead in registers: half of the memory's bandwidth. Four stages: up to 30 % slower. Blocks
             that start at different k: within noise, or slower. 64 columns per warp: 10 % faster for one row of 4 bits,
             slower for others. Half as many columns per warp, or two and four warps along columns for few rows: slower
             */
#include "engines/cuda/product/weight_only/weight_only_geometry.h"
#include "core/mma.cuh"
#include "core/async.cuh"
#include "core/dependent_launch.cuh"
#include "product/weight_only/few_bits.cuh"

constexpr int ROWS = 16 * BLOCKS, COLUMNS = ROWS * WARPS_ACROSS;
constexpr int WARPS = WARPS_ACROSS * WARPS_DEEP, THREADS = WARPS * 32;
constexpr int LENGTH = 128 / BITS<weight_t>, STEP = 4 * LENGTH; /* weights of a lane, and weights of a warp along k */
constexpr index STRIDE = WARPS_DEEP * STEP;                     /* distance along k between two steps of a warp */
constexpr int PARTS = LENGTH / 8;                               /* accesses to A per lane, step and row */
constexpr float UNIT = few_bits<weight_t>::unit(factor_t{});    /* a weight divided by the result of pair() */
constexpr weight_only_memory MEMORY =
    weight_only_memory_of(weight_only_shape{WARPS_ACROSS, WARPS_DEEP, BLOCKS, TOKENS, LENGTH, STAGES_A, STAGES});
constexpr int W_SLOTS = MEMORY.w_slots, A_SLOTS = MEMORY.a_slots;

/* [WARPS][STAGES][W_SLOTS][32 lanes] of weights, [WARPS_DEEP][STAGES][A_SLOTS][32 lanes] of A; at the end sums of 8
   i */
extern __shared__ chunk<16> s_memory[];

/* A lane's row in blocks of 8. */
DEVICE index lane_row() { return threadIdx.x % 32 / 4; }
DEVICE chunk<16> *w_slot(int stage, int slot) {
    return &s_memory[((threadIdx.x / 32 * STAGES + stage) * W_SLOTS + slot) * 32 + threadIdx.x % 32];
}
DEVICE chunk<16> *a_slot(int stage, int slot) {
    return &s_memory[(WARPS * STAGES * W_SLOTS + (threadIdx.x / 32 / WARPS_ACROSS * STAGES + stage) * A_SLOTS + slot) *
                         32 +
                     threadIdx.x % 32];
}
/* Synchronises the warps along columns: their loads of A have arrived for all of them, and all have finished reading
   the previous ones. */
DEVICE void sync_warps() {
    if constexpr (WARPS_ACROSS > 1 && STAGES_A)
        ptx::bar_sync(1 + threadIdx.x / 32 / WARPS_ACROSS, WARPS_ACROSS * 32);
}
DEVICE index least(index x, index y) { return x < y ? x : y; }

/* Loads of a lane, step by step. Columns past the edge repeat the last one; their results are not used. */
struct lane_loads {
    const unsigned char *w[2 * BLOCKS];
    const factor_t *a[TOKENS];
    u32 scale_row[2 * BLOCKS];
    index own, k, scale_k;

    DEVICE lane_loads(const arguments &p, index first, index begin)
        : own(threadIdx.x % 4 * LENGTH), k(begin), scale_k(begin) {
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++) {
            const index row = least(first + i * 8 + lane_row(), (index)p.columns - 1);
            w[i] = p.w + row * p.w_row + (i64)own * BITS<weight_t> / 8;
            scale_row[i] = (u32)(divide(row, p.scale_block) * p.scale_row);
        }
#pragma unroll
        for (int f = 0; f < TOKENS; f++)
            a[f] = p.a + least(f * 8 + lane_row(), (index)p.rows - 1) * p.a_row + own;
    }
    /* Starts to load a step; zeros past k and for rows that do not exist. */
    DEVICE void fetch(const arguments &p, int stage) {
        const bool inside = k + own < (index)p.k_count;
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++)
            copy_async_once(w_slot(stage, i), w[i] + (i64)k * BITS<weight_t> / 8, inside);
#pragma unroll
        for (int i = 0; i < A_SLOTS; i++)
            if (i % WARPS_ACROSS == threadIdx.x / 32 % WARPS_ACROSS)
                copy_async_often(a_slot(stage, i), a[i / PARTS] + k + i % PARTS * 8,
                                 inside && i / PARTS * 8 + lane_row() < (index)p.rows);
        commit_copies();
        k += STRIDE;
    }
    DEVICE void fetch_scales(const arguments &p, scale_t (&scale)[2 * BLOCKS]) {
        const u32 along = (u32)(divide(least(scale_k + own, (index)p.k_count - 1), p.scale_group) * p.scale_k);
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++)
            scale[i] = p.scale[scale_row[i] + along];
        scale_k += STRIDE;
    }
    /* Reads A if it is not staged in shared memory. */
    DEVICE chunk<16> read_a(const arguments &p, int f, int part, index at) const {
        const bool inside = f * 8 + lane_row() < (index)p.rows && at + own < (index)p.k_count;
        return inside ? *(const chunk<16> *)(a[f] + at + part * 8) : chunk<16>{};
    }
};

using sums = float[BLOCKS][TOKENS][4];

DEVICE u32 duplicate(u16 bits) { return (IS_NEGATIVE ? bits ^ 0x8000u : (u32)bits) * 0x10001u; }

/* A template, so that scales of other types are not compiled. */
template <class S>
DEVICE void multiply(const arguments &p, const lane_loads &at, sums &r_c, int stage, const S (&scale)[2 * BLOCKS],
                     index k) {
    using numbers = few_bits<weight_t>;
    constexpr int WORDS = 4 / numbers::PAIRS; /* words of weights for 8 elements of A */
    chunk<16> w[2 * BLOCKS];
    u32 r_scale[2 * BLOCKS];
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        w[i] = *w_slot(stage, i);
        if constexpr (!SCALES_SUMS)
            r_scale[i] = numbers::times_unit(duplicate(scale[i].bits), factor_t{});
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        chunk<16> a[TOKENS];
#pragma unroll
        for (int f = 0; f < TOKENS; f++) {
            if constexpr (STAGES_A)
                a[f] = *a_slot(stage, f * PARTS + part);
            else
                a[f] = at.read_a(p, f, part, k);
        }
#pragma unroll
        for (int e = 0; e < 4; e += 2)
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                u32 r_w[4]; /* rows lane / 4 and lane / 4 + 8 of a pair, then of the next pair */
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const u32 word = w[b * 2 + i % 2].words[part * WORDS + e / numbers::PAIRS];
                    r_w[i] = numbers::pair(word, (e + i / 2) % numbers::PAIRS, factor_t{});
                    if constexpr (!SCALES_SUMS)
                        r_w[i] = multiply_add(r_w[i], r_scale[b * 2 + i % 2], MINUS_ZEROS, factor_t{});
                }
#pragma unroll
                for (int f = 0; f < TOKENS; f++) {
                    const u32 r_a[2] = {numbers::join(a[f].words, e), numbers::join(a[f].words, e + 1)};
                    product<factor_t, factor_t>::template add<true>(r_c[b][f], r_w, r_a);
                }
            }
    }
}

DEVICE void multiply_step(const arguments &p, const lane_loads &at, sums &r_c, int stage,
                          const scale_t (&scale)[2 * BLOCKS], index k) {
    if constexpr (!SCALES_SUMS) {
        multiply(p, at, r_c, stage, scale, k);
    } else {
        sums r_step = {};
        multiply(p, at, r_step, stage, scale, k);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float operand = (IS_NEGATIVE ? -UNIT : UNIT) * to_float(scale[b * 2 + e / 2]);
#pragma unroll
                for (int f = 0; f < TOKENS; f++)
                    r_c[b][f][e] += r_step[b][f][e] * operand;
            }
    }
}

DEVICE void reduce_and_store(const arguments &p, const sums &r_c, index first) {
    auto &s_sums = *(float (*)[WARPS_DEEP][8][MEMORY.pitch])s_memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_column = warp % WARPS_ACROSS * ROWS;
#pragma unroll
    for (int f = 0; f < TOKENS; f++) {
        __syncthreads();
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s_sums[warp / WARPS_ACROSS][lane % 4 * 2 + e % 2][first_column + b * 16 + e / 2 * 8 + lane / 4] =
                    r_c[b][f][e];
        __syncthreads();
        for (int at = threadIdx.x; at < 8 * COLUMNS / RUN; at += THREADS) {
            const int token = at / (COLUMNS / RUN), column = at % (COLUMNS / RUN) * RUN;
            run<sum_t, RUN> sum = {};
#pragma unroll
            for (int w = 0; w < WARPS_DEEP; w++)
#pragma unroll
                for (int e = 0; e < RUN; e++)
                    sum.at[e] += s_sums[w][token][column + e];
            if (f * 8 + token < (index)p.rows && first + column < (index)p.columns)
                epilogue(p, 0, f * 8 + token, first + column, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) weight_only(const __grid_constant__ arguments p) {
    const index warp = threadIdx.x / 32;
    begin_overlapped();
    const index begin = warp / WARPS_ACROSS * STEP;
    lane_loads at(p, blockIdx.x * COLUMNS + warp % WARPS_ACROSS * ROWS, begin);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++)
        at.fetch(p, stage);
    sums r_c = {};
    scale_t now[2 * BLOCKS], next[2 * BLOCKS];
    at.fetch_scales(p, now);
    int stage = 0, free_stage = STAGES - 1;
    for (index k = begin; k < (index)p.k_count; k += STRIDE) {
        await_copies<STAGES - 2>();
        sync_warps();
        at.fetch(p, free_stage);
        at.fetch_scales(p, next);
        multiply_step(p, at, r_c, stage, now, k);
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++)
            now[i] = next[i];
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    await_copies<0>(); /* the last copies load nothing, but would write to the memory of the sums */
    reduce_and_store(p, r_c, blockIdx.x * COLUMNS);
}
