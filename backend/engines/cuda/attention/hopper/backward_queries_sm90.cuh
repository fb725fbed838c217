/* backward_queries_sm90: dQ from its float sums, which lie in the order of accumulators, to rows
   Tile      a block of one warpgroup makes BLOCK_Q queries of one head, through shared memory, swizzled by row
   Memory    sums: [batch][head][block of queries][part: 64 x 64][8 columns][thread][4]
   Limits    dQ has 16-byte aligned rows of whole chunks. Rows past the queries in use become 0; ragged ones belong to
             others
   Params    in_t BLOCK_Q HEAD HAS_SCALE and the band's */

#include "attention/hopper/backward_scores_sm90.cuh"

constexpr int THREADS = 128, PANELS = HEAD / 64, PANEL = BLOCK_Q * 128; /* of 64 columns, bytes */
constexpr int OCTETS = BLOCK_Q / 64 * HEAD / 8;                         /* 8 columns of 64 rows */
constexpr int CHUNKS = HEAD / 8;                                        /* of 16 bytes, of a row */

DEVICE u32 chunk_at(u32 panel, u32 row, u32 chunk) { return panel + row * 128 + (chunk ^ (row & 7)) * 16; }

/* Two octets of columns are four blocks of 8 x 8. */
DEVICE void stage_octets(u32 s_tile, int octet, const run<float, 4> &a, const run<float, 4> &b, float scale) {
    const u32 lane = lane_index(), part = octet / 8, row = part / PANELS * 64 + warp_index() * 16 + lane % 16;
    const u32 pairs[4] = {
        rounded_pair<in_t>(a.at[0] * scale, a.at[1] * scale), rounded_pair<in_t>(a.at[2] * scale, a.at[3] * scale),
        rounded_pair<in_t>(b.at[0] * scale, b.at[1] * scale), rounded_pair<in_t>(b.at[2] * scale, b.at[3] * scale)};
    store_matrices(chunk_at(s_tile + part % PANELS * PANEL, row, octet % 8 + lane / 16), pairs);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_queries_sm90(const __grid_constant__ arguments p) {
    __shared__ alignas(1024) unsigned char tile[PANELS * PANEL];
    const u32 outer = divide(blockIdx.x, p.q_blocks), m = blockIdx.x - outer * p.q_blocks.value;
    const i32 batch = (i32)divide(outer, p.heads), head = (i32)(outer - batch * p.heads.value),
              first = (i32)m * BLOCK_Q;
    const band used(p, batch);
    if (is_ragged(p.dq_batch) && first >= used.queries)
        return;
    const float *const sums = p.dq_sum + (i64)blockIdx.x * BLOCK_Q * HEAD + threadIdx.x * 4;
    const float scale = scale_of(p);
    run<float, 4> x[OCTETS];
#pragma unroll
    for (int i = 0; i < OCTETS; ++i)
        x[i] = load_run<float, 4>(sums + i * THREADS * 4);
#pragma unroll
    for (int i = 0; i < OCTETS; i += 2)
        stage_octets(shared_address(tile), i, x[i], x[i + 1], scale);
    __syncthreads();
    in_t *const dq = p.dq + batch * p.dq_batch + head * p.dq_head;
#pragma unroll
    for (int i = 0; i < BLOCK_Q * CHUNKS / THREADS; ++i) {
        const i32 chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS + i * (THREADS / CHUNKS);
        words some = load_words(chunk_at(shared_address(tile) + chunk / 8 * PANEL, row, chunk % 8));
        if (first + row >= used.queries)
            some = words{};
        if (first + row < (is_ragged(p.dq_batch) ? used.queries : (i32)p.queries) && chunk * 8 < (i32)p.depth)
            *(words *)(dq + (i64)(first + row) * p.dq_row + chunk * 8) = some;
    }
}
