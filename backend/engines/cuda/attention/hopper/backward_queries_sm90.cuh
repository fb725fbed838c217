/* backward_queries_sm90: dQ of FP8 from its float sums, which lie in the order of accumulators, to rows of any type
   Tile      a block of one warpgroup makes BLOCK_Q queries of one head, from registers
   Memory    sums: [batch][head][block of queries][part: 64 x 64][8 columns][thread][4]
   Limits    pairs of columns lie side by side. Rows past the queries in use become 0
   Params    BLOCK_Q HEAD HAS_AMAX_FIRST, the band's and those of backward_fp8 */

#include "attention/hopper/backward_scores_sm90.cuh"
#include "attention/hopper/backward_fp8_sm90.cuh"

constexpr int THREADS = 128, PANELS = HEAD / 64;
constexpr int OCTETS = BLOCK_Q / 64 * HEAD / 8; /* 8 columns of 64 rows */

/* first: the block's first query. */
template <class P>
DEVICE void store_scaled(const P &p, const run<float, 4> (&x)[OCTETS], i32 batch, i32 head, i32 first, i32 used) {
    const float scale = descale_dp_of(p) * descale_k_of(p), to_memory = scale_dq_of(p);
    float largest = 0;
    auto *const dq = p.dq + batch * p.dq_batch + head * p.dq_head;
#pragma unroll
    for (int i = 0; i < OCTETS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int part = i / 8, row = part / PANELS * 64 + warp_index() * 16 + lane_index() / 4 + 8 * h;
            const i32 column = part % PANELS * 64 + i % 8 * 8 + 2 * (lane_index() & 3);
            const float shown = first + row < used ? scale : 0.0f;
            if (first + row < (i32)p.queries && column < (i32)p.depth)
                store_scaled_pair<HAS_AMAX_FIRST>(dq + (i64)(first + row) * p.dq_row + column, x[i].at[2 * h] * shown,
                                                  x[i].at[2 * h + 1] * shown, to_memory, largest);
        }
    if constexpr (HAS_AMAX_FIRST)
        raise_largest(p.amax_first, largest);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_queries_sm90(const __grid_constant__ arguments p) {
    const u32 outer = divide(blockIdx.x, p.q_blocks), m = blockIdx.x - outer * p.q_blocks.value;
    const i32 batch = (i32)divide(outer, p.heads), head = (i32)(outer - batch * p.heads.value);
    const band used(p, batch);
    const float *const sums = p.dq_sum + (i64)blockIdx.x * BLOCK_Q * HEAD + threadIdx.x * 4;
    run<float, 4> x[OCTETS];
#pragma unroll
    for (int i = 0; i < OCTETS; ++i)
        x[i] = load_run<float, 4>(sums + i * THREADS * 4);
    store_scaled(p, x, batch, head, (i32)m * BLOCK_Q, used.queries);
}
