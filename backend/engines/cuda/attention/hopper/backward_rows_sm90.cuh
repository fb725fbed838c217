/* backward_rows_sm90: prologue of the backward pass: per-query statistics; REDUCES_DQ: also clears the sums of dQ
   Formula   delta = sum of O dO; lse2 = stats log2(e), +inf for a query without gradient, so that its P is 2^-inf = 0;
             IS_FP8: with the scales of backward_fp8
             HAS_DROPOUT: the backward kernel's P is P / keep_probability, its dP is not rescaled: so lse2 includes
             log2(keep_probability), and delta is multiplied by keep_probability
   Tile      a CTA computes BLOCK_Q queries of one head; LANES threads share a row, 16 bytes each
   Memory    statistics: [batch][head][block of queries][lse2, delta][BLOCK_Q]
             sums:       [batch][head][block of queries][BLOCK_Q * HEAD]
   Limits    O and dO: 16-byte aligned rows of whole chunks. Rows past the queries in use are not read
   Params    in_t IS_BF16 IS_FP8 HAS_DROPOUT HAS_DROPOUT_SCALE REDUCES_DQ BLOCK_Q HEAD VALUE_HEAD THREADS and
             those of the scores */

#include "attention/hopper/backward_scores_sm90.cuh"
#include "attention/hopper/backward_fp8_sm90.cuh"
#include "attention/hopper/keep_probability_sm90.cuh"

constexpr int LANES = VALUE_HEAD <= 64    ? 8
                      : VALUE_HEAD <= 128 ? 16
                                          : 32,
              ROWS = THREADS / LANES, TURNS = BLOCK_Q / ROWS;
constexpr int SUMS = BLOCK_Q * HEAD / 4; /* of dQ, in units of 16 bytes */
static_assert(THREADS % LANES == 0 && BLOCK_Q % ROWS == 0 && SUMS % THREADS == 0 && LANES <= 32,
              "threads share rows and sums evenly");

template <class P> DEVICE float finish_row(const P &p, i32 batch, i32 head, i32 query, float dot, float &lse2) {
    const float infinite = __int_as_float(0x7f800000);
    const float stats = to_float(p.stats[batch * p.stats_batch + head * p.stats_head + query * p.stats_row]);
    lse2 = stats == -infinite ? infinite : stats * 1.44269504f;
    if constexpr (IS_FP8)
        lse2 -= log2f(scale_s_of(p)), dot *= delta_scale_of(p);
    if constexpr (HAS_DROPOUT) {
        const float share = keep_probability_of(p);
        lse2 = share > 0 ? lse2 + log2f(share) : infinite, dot *= share;
    }
    return stats == -infinite ? 0.0f : dot;
}

/* Eight adjacent elements of a row. */
template <class T, bool IS_HALF> struct eight_of {
    using type = words;
};
template <class T> struct eight_of<T, false> {
    using type = run<T, 8>;
};
template <class T> using eight = typename eight_of<T, !IS_FP8>::type;

DEVICE float dot_of(const words &a, const words &b) {
    float dot = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e)
        dot += low_half(a.at[e]) * low_half(b.at[e]) + high_half(a.at[e]) * high_half(b.at[e]);
    return dot;
}
template <class A, class B> DEVICE float dot_of(const run<A, 8> &a, const run<B, 8> &b) {
    float dot = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e)
        dot += to_float(a.at[e]) * to_float(b.at[e]);
    return dot;
}

template <class P> DEVICE void clear_sums(const P &p) {
    run<float, 4> *const sums = (run<float, 4> *)p.dq_sum + (i64)blockIdx.x * SUMS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SUMS / THREADS; ++i)
        sums[i * THREADS] = run<float, 4>{};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_rows_sm90(const __grid_constant__ arguments p) {
    const i32 lane = threadIdx.x % LANES, first_row = threadIdx.x / LANES;
    const u32 outer = divide(blockIdx.x, p.q_blocks), m = blockIdx.x - outer * p.q_blocks.value;
    const i32 batch = (i32)divide(outer, p.heads), head = (i32)(outer - batch * p.heads.value);
    const band used(p, batch);
    const o_t *const o = p.o + batch * p.o_batch + head * p.o_head + lane * 8;
    const d_o_t *const d_o = p.d_o + batch * p.d_o_batch + head * p.d_o_head + lane * 8;
    eight<o_t> a[TURNS] = {};
    eight<d_o_t> b[TURNS] = {};
#pragma unroll
    for (int t = 0; t < TURNS; ++t) {
        const i64 query = (i64)m * BLOCK_Q + first_row + t * ROWS;
        if (query >= used.queries || lane * 8 >= (i32)p.value_depth)
            continue;
        a[t] = *(const eight<o_t> *)(o + query * p.o_row);
        b[t] = *(const eight<d_o_t> *)(d_o + query * p.d_o_row);
    }
    if constexpr (REDUCES_DQ)
        if (!is_ragged(p.o_batch) || (i32)m * BLOCK_Q < used.queries) /* no CTA adds to the others */
            clear_sums(p);
#pragma unroll
    for (int t = 0; t < TURNS; ++t) {
        float dot = dot_of(a[t], b[t]), lse2 = __int_as_float(0x7f800000);
#pragma unroll
        for (int i = LANES / 2; i > 0; i /= 2)
            dot += __shfl_xor_sync(~0u, dot, i);
        if (lane != 0)
            continue;
        const i32 row = first_row + t * ROWS, query = (i32)m * BLOCK_Q + row;
        if (query < used.queries)
            dot = finish_row(p, batch, head, query, dot, lse2);
        float *const to = p.statistics + (i64)blockIdx.x * 2 * BLOCK_Q + row;
        to[0] = lse2;
        to[BLOCK_Q] = dot;
    }
}
