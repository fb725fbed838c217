/* weight_only: C[i,j] = finish(sum over k of A[i,k] * (W[k,j] * scale[k / group, j / block]))     weights of 4 and 8 bits, few rows i, mma.sync; sm_80 and up
   Formula   weights become f16 or bf16 in registers, exactly; a scale of that type multiplies them there, rounded as the dequantised
             weight is (SCALES_SUMS 0); others multiply the sums of a step, as if weights were floats (1)
   Tile      a warp makes ROWS = 16 BLOCKS columns j for all i, which are 8 TOKENS at most: the product is turned, so that weights
             are the tensor core's 16 rows. WARPS_ACROSS warps stand side by side and read the same of A; WARPS_DEEP share the depth
   Step      a quad of lanes has a row of weights, each lane 16 bytes of it: LENGTH numbers. Sums do not mind the order of the depth,
             so a lane multiplies what it has, and reads the same k of A, 16 bytes at a time
   Pipeline  STAGES steps of a warp are on their way into shared memory, each lane's own 16 bytes side by side, so that nobody waits
             for another; with them A where it is small (STAGES_A). Scales come a step ahead
   End       sums of the warps meet in shared memory, 8 i at a time, and are added from the first warp to the last
   Limits    k of A and W without gaps, in multiples of 16 bytes; a lane's weights share a scale, a step's where sums are scaled
   Params    TOKENS BLOCKS WARPS_ACROSS WARPS_DEEP RESIDENT STAGES STAGES_A SCALES_SUMS IS_NEGATIVE LEAD_IS_ROW RUN factor_t weight_t
             scale_t sum_t index
   Tried     weights a step ahead in registers: half of the memory's bandwidth */
#include "lib/mma.cuh"
#include "lib/async.cuh"
#include "lib/overlap.cuh"
#include "lib/few_bits.cuh"

constexpr int ROWS = 16 * BLOCKS, COLUMNS = ROWS * WARPS_ACROSS, PITCH = COLUMNS + 4;
constexpr int WARPS = WARPS_ACROSS * WARPS_DEEP, THREADS = WARPS * 32;
constexpr int LENGTH = 128 / BITS<weight_t>, STEP = 4 * LENGTH; /* of a lane, of a warp */
constexpr int PARTS = LENGTH / 8;                               /* accesses to A of a lane, a step and a row */
constexpr int SLOTS = 2 * BLOCKS + (STAGES_A ? TOKENS * PARTS : 0);

extern __shared__ chunk<16> s_memory[]; /* [WARPS][STAGES][SLOTS][32 lanes]; at the end sums of 8 i */

/* Where a lane stands: its row in blocks of 8, its k within a step. */
DEVICE index lane_row() { return threadIdx.x % 32 / 4; }
DEVICE chunk<16>* slot_of(int stage, int slot) {
    return &s_memory[((threadIdx.x / 32 * STAGES + stage) * SLOTS + slot) * 32 + threadIdx.x % 32];
}

DEVICE const chunk<16>* place_in_a(const arguments& p, int f, int part, index k, bool& inside) {
    const index row = f * 8 + lane_row();
    inside = row < (index)p.rows && k < (index)p.depth;
    return (const chunk<16>*)(p.a + row * p.a_row + k + part * 8);
}

/* Begins to bring a step. */
DEVICE void fetch(const arguments& p, int stage, index first, index k) {
    #pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        const index row = first + i * 8 + lane_row();
        copy_async<16>(slot_of(stage, i), p.w + row * p.w_row + (i64)k * BITS<weight_t> / 8, row < (index)p.columns && k < (index)p.depth);
    }
    #pragma unroll
    for (int i = 0; i < TOKENS * PARTS && STAGES_A; i++) {
        bool inside;
        const chunk<16>* from = place_in_a(p, i / PARTS, i % PARTS, k, inside);
        copy_async<16>(slot_of(stage, 2 * BLOCKS + i), from, inside);
    }
    commit_copies();
}

struct scales {
    scale_t at[2 * BLOCKS];

    DEVICE void load(const arguments& p, index first, index k) {
        #pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++) {
            const index row = first + i * 8 + lane_row();
            at[i] = scale_t{};
            if (row < (index)p.columns && k < (index)p.depth)
                at[i] = p.scale[divide(row, p.scale_block) * p.scale_row + divide(k, p.scale_group) * p.scale_k];
        }
    }
};

using sums = float[BLOCKS][TOKENS][4];

DEVICE u32 twice(u16 bits) { return (IS_NEGATIVE ? bits ^ 0x8000u : (u32)bits) * 0x10001u; }

/* A template, so that scales of other types are not looked at. */
template <class S> DEVICE void multiply(const arguments& p, sums& r_c, int stage, const S& scale, index k) {
    using numbers = few_bits<weight_t>;
    constexpr int WORDS = 4 / numbers::PAIRS; /* of weights, to 8 of A */
    chunk<16> w[2 * BLOCKS];
    #pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) w[i] = *slot_of(stage, i);
    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
        chunk<16> a[TOKENS];
        #pragma unroll
        for (int f = 0; f < TOKENS; f++) {
            if constexpr (STAGES_A) {
                a[f] = *slot_of(stage, 2 * BLOCKS + f * PARTS + part);
            } else {
                bool inside;
                const chunk<16>* from = place_in_a(p, f, part, k, inside);
                a[f] = inside ? *from : chunk<16>{};
            }
        }
        #pragma unroll
        for (int e = 0; e < 4; e += 2)
            #pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                u32 r_w[4]; /* rows lane / 4 and lane / 4 + 8 of a pair, then of the next */
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const u32 word = w[b * 2 + i % 2].words[part * WORDS + e / numbers::PAIRS];
                    r_w[i] = numbers::pair(word, (e + i / 2) % numbers::PAIRS, factor_t{});
                    if constexpr (!SCALES_SUMS) r_w[i] = multiply_add(r_w[i], twice(scale.at[b * 2 + i % 2].bits), MINUS_ZEROS, factor_t{});
                }
                #pragma unroll
                for (int f = 0; f < TOKENS; f++) {
                    const u32 r_a[2] = {numbers::join(a[f].words, e), numbers::join(a[f].words, e + 1)};
                    product<factor_t, factor_t>::template add<true>(r_c[b][f], r_w, r_a);
                }
            }
    }
}

DEVICE void multiply_step(const arguments& p, sums& r_c, int stage, const scales& scale, index k) {
    if constexpr (!SCALES_SUMS) {
        multiply(p, r_c, stage, scale, k);
    } else {
        sums r_step = {};
        multiply(p, r_step, stage, scale, k);
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float factor = (IS_NEGATIVE ? -1.0f : 1.0f) * to_float(scale.at[b * 2 + e / 2]);
                #pragma unroll
                for (int f = 0; f < TOKENS; f++) r_c[b][f][e] += r_step[b][f][e] * factor;
            }
    }
}

DEVICE void end(const arguments& p, const sums& r_c, index first) {
    auto& s_sums = *(float(*)[WARPS_DEEP][8][PITCH])s_memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, beside = warp % WARPS_ACROSS * ROWS;
    #pragma unroll
    for (int f = 0; f < TOKENS; f++) {
        __syncthreads();
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            #pragma unroll
            for (int e = 0; e < 4; e++) s_sums[warp / WARPS_ACROSS][lane % 4 * 2 + e % 2][beside + b * 16 + e / 2 * 8 + lane / 4] = r_c[b][f][e];
        __syncthreads();
        for (int at = threadIdx.x; at < 8 * COLUMNS / RUN; at += THREADS) {
            const int token = at / (COLUMNS / RUN), column = at % (COLUMNS / RUN) * RUN;
            run<sum_t, RUN> sum = {};
            #pragma unroll
            for (int w = 0; w < WARPS_DEEP; w++)
                #pragma unroll
                for (int e = 0; e < RUN; e++) sum.at[e] += s_sums[w][token][column + e];
            if (f * 8 + token < (index)p.rows && first + column < (index)p.columns) finish(p, 0, f * 8 + token, first + column, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) weight_only(const __grid_constant__ arguments p) {
    constexpr index STRIDE = WARPS_DEEP * STEP;
    const index warp = threadIdx.x / 32, first = blockIdx.x * COLUMNS + warp % WARPS_ACROSS * ROWS;
    const index begin = warp / WARPS_ACROSS * STEP, own = threadIdx.x % 4 * LENGTH;
    begin_overlapped();
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) fetch(p, stage, first, begin + stage * STRIDE + own);
    sums r_c = {};
    scales now, next;
    now.load(p, first, begin + own);
    int stage = 0, free = STAGES - 1;
    for (index k = begin; k < (index)p.depth; k += STRIDE) {
        fetch(p, free, first, k + (STAGES - 1) * STRIDE + own);
        next.load(p, first, k + STRIDE + own);
        await_copies<STAGES - 1>();
        multiply_step(p, r_c, stage, now, k + own);
        now = next;
        free = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    await_copies<0>(); /* the last ones brought nothing, to memory that the sums take */
    end(p, r_c, blockIdx.x * COLUMNS);
}
