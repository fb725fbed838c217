/* weight_only: C[i,j] = finish(sum over k of A[i,k] * (W[k,j] * scale[k / group, j / block]))     weights of 4 and 8 bits, few rows i, mma.sync; sm_80 and up
   Formula   weights become f16 or bf16 in registers, exactly; a scale of that type multiplies them there, rounded as the dequantised
             weight is (SCALES_SUMS 0); others multiply the sums of a step, as if weights were floats (1)
   Tile      a warp makes ROWS = 16 BLOCKS columns j for all i, which are 8 TOKENS at most: the product is turned, so that weights
             are the tensor core's 16 rows. WARPS_ACROSS warps stand side by side and read the same of A; WARPS_DEEP share the depth
   Step      a quad of lanes has a row of weights, each lane 16 bytes of it: LENGTH numbers. Sums do not mind the order of the depth,
             so a lane multiplies what it has, and reads the same k of A, 16 bytes at a time
   Pipeline  the next step's weights and scales are on their way while a step is multiplied
   End       sums of the warps meet in shared memory, 8 i at a time, and are added from the first warp to the last
   Limits    k of A and W without gaps, in multiples of 16 bytes; a lane's weights share a scale, a step's where sums are scaled
   Params    TOKENS BLOCKS WARPS_ACROSS WARPS_DEEP RESIDENT SCALES_SUMS IS_NEGATIVE LEAD_IS_ROW RUN factor_t weight_t scale_t sum_t index */
#include "lib/mma.cuh"
#include "lib/few_bits.cuh"

constexpr int ROWS = 16 * BLOCKS, COLUMNS = ROWS * WARPS_ACROSS, PITCH = COLUMNS + 4;
constexpr int THREADS = WARPS_ACROSS * WARPS_DEEP * 32;
constexpr int LENGTH = 128 / BITS<weight_t>, STEP = 4 * LENGTH; /* of a lane, of a warp */

struct alignas(16) words { u32 at[4]; };

/* What a lane has of a step: rows lane / 4 and lane / 4 + 8 of each block of 16. */
struct weights {
    words at[BLOCKS][2];
    scale_t scale[BLOCKS][2];

    DEVICE void load(const arguments& p, index first, index k) {
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                const index row = first + b * 16 + h * 8 + threadIdx.x % 32 / 4;
                at[b][h] = words{};
                scale[b][h] = scale_t{};
                if (row < (index)p.columns && k < (index)p.depth) {
                    at[b][h] = *(const words*)(p.w + row * p.w_row + (i64)k * BITS<weight_t> / 8);
                    scale[b][h] = p.scale[divide(row, p.scale_block) * p.scale_row + divide(k, p.scale_group) * p.scale_k];
                }
            }
    }
};

using sums = float[BLOCKS][TOKENS][4];

DEVICE u32 twice(u16 bits) { return (IS_NEGATIVE ? bits ^ 0x8000u : (u32)bits) * 0x10001u; }

template <class W> DEVICE void multiply(const arguments& p, sums& r_c, const W& w, index k) {
    using numbers = few_bits<weight_t>;
    constexpr int WORDS = 4 / numbers::PAIRS; /* of weights, to 8 of A */
    #pragma unroll
    for (int part = 0; part < LENGTH / 8; part++) {
        words a[TOKENS];
        #pragma unroll
        for (int f = 0; f < TOKENS; f++) {
            const index row = f * 8 + threadIdx.x % 32 / 4;
            a[f] = words{};
            if (row < (index)p.rows && k < (index)p.depth) a[f] = *(const words*)(p.a + row * p.a_row + k + part * 8);
        }
        #pragma unroll
        for (int e = 0; e < 4; e += 2)
            #pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                u32 r_w[4];
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const u32 word = w.at[b][i % 2].at[part * WORDS + e / numbers::PAIRS];
                    r_w[i] = numbers::pair(word, (e + i / 2) % numbers::PAIRS, factor_t{});
                    if constexpr (!SCALES_SUMS) r_w[i] = multiply_add(r_w[i], twice(w.scale[b][i % 2].bits), MINUS_ZEROS, factor_t{});
                }
                #pragma unroll
                for (int f = 0; f < TOKENS; f++) {
                    const u32 r_a[2] = {numbers::join(a[f].at, e), numbers::join(a[f].at, e + 1)};
                    product<factor_t, factor_t>::template add<true>(r_c[b][f], r_w, r_a);
                }
            }
    }
}

DEVICE void multiply_step(const arguments& p, sums& r_c, const weights& w, index k) {
    if constexpr (!SCALES_SUMS) {
        multiply(p, r_c, w, k);
    } else {
        sums r_step = {};
        multiply(p, r_step, w, k);
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            #pragma unroll
            for (int f = 0; f < TOKENS; f++)
                #pragma unroll
                for (int e = 0; e < 4; e++) r_c[b][f][e] += r_step[b][f][e] * (IS_NEGATIVE ? -to_float(w.scale[b][e / 2]) : to_float(w.scale[b][e / 2]));
    }
}

DEVICE void end(const arguments& p, const sums& r_c, index first) {
    __shared__ float s_sums[WARPS_DEEP][8][PITCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, beside = warp % WARPS_ACROSS * ROWS;
    #pragma unroll
    for (int f = 0; f < TOKENS; f++) {
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
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) weight_only(const __grid_constant__ arguments p) {
    const index warp = threadIdx.x / 32, first = blockIdx.x * COLUMNS + warp % WARPS_ACROSS * ROWS, own = threadIdx.x % 4 * LENGTH;
    sums r_c = {};
    weights now, next;
    index k = warp / WARPS_ACROSS * STEP;
    now.load(p, first, k + own);
    for (; k < (index)p.depth; k += WARPS_DEEP * STEP) {
        next.load(p, first, k + WARPS_DEEP * STEP + own);
        multiply_step(p, r_c, now, k + own);
        now = next;
    }
    end(p, r_c, blockIdx.x * COLUMNS);
}
