/* backward_sums_sm90: converts float gradient sums, stored in accumulator order, to rows of the gradient's type
   Tile      a CTA of one warpgroup converts ROWS rows of one head through swizzled shared memory
   Memory    sums: [batch][head][part][block of rows][64 rows][sums_offset]
   Limits    the gradient has 16-byte aligned rows of whole chunks. Padded gradients get zeros in rows past those in
             use; in ragged ones, these rows belong to other entries and are not written
   Params    in_t ROWS WIDTH (padded columns) IS_OF_KEYS (rows are keys) HAS_PARTS (partial sums, which are added in
             order) SCALES (multiply by the scale of the scores) HAS_SCALE, those of the band and of backward_fp8
   FP8       rows of any type: sums_scale_of(arguments) gives true values, output_scale_of the stored ones;
             HAS_AMAX_DQK: the largest absolute true value */

#include "attention/hopper/backward_scores_sm90.cuh"
#include "attention/hopper/backward_fp8_sm90.cuh"

constexpr int THREADS = 128, PANELS = WIDTH / 64, PANEL = ROWS * 128; /* 64 columns, in bytes */
constexpr int OCTETS = ROWS / 64 * WIDTH / 8;                         /* 8 columns of 64 rows */
constexpr int CHUNKS = WIDTH / 8;                                     /* 16-byte chunks per row */
static_assert(ROWS % 64 == 0 && WIDTH % 64 == 0 && ROWS * CHUNKS % THREADS == 0, "the threads store all chunks");

DEVICE u32 chunk_at(u32 panel, u32 row, u32 chunk) { return panel + row * 128 + (chunk ^ (row & 7)) * 16; }

/* Two octets of columns are four 8 x 8 matrices. */
DEVICE void stage_octets(u32 s_tile, int octet, const run<float, 4> &a, const run<float, 4> &b, float scale) {
    const u32 lane = lane_index(), part = octet / 8, row = part / PANELS * 64 + warp_index() * 16 + lane % 16;
    const u32 pairs[4] = {
        rounded_pair<in_t>(a.at[0] * scale, a.at[1] * scale), rounded_pair<in_t>(a.at[2] * scale, a.at[3] * scale),
        rounded_pair<in_t>(b.at[0] * scale, b.at[1] * scale), rounded_pair<in_t>(b.at[2] * scale, b.at[3] * scale)};
    store_matrices(chunk_at(s_tile + part % PANELS * PANEL, row, octet % 8 + lane / 16), pairs);
}

/* Loads this thread's sums of a block, and adds further parts in order. */
template <class P> DEVICE void load_sums(run<float, 4> (&x)[OCTETS], const P &p, u32 outer, u32 block) {
    const i64 step = (i64)p.blocks.value * ROWS * WIDTH;
    i64 parts = 1;
    if constexpr (HAS_PARTS)
        parts = (i64)p.parts;
    const float *const sums = p.sums + outer * parts * step + (i64)block * ROWS * WIDTH;
#pragma unroll
    for (int i = 0; i < OCTETS; ++i)
        x[i] = load_run<float, 4>(sums + sums_offset(i, warp_index()));
#pragma unroll 1
    for (i32 part = 1; part < parts; ++part)
#pragma unroll
        for (int i = 0; i < OCTETS; ++i) {
            const run<float, 4> more = load_run<float, 4>(sums + part * step + sums_offset(i, warp_index()));
#pragma unroll
            for (int e = 0; e < 4; ++e)
                x[i].at[e] += more.at[e];
        }
}

/* Stores rows of any type, 64 columns at a time. first: the block's first row; at: the tensor's head. */
template <class P, class T>
DEVICE void store_scaled(const P &p, const run<float, 4> (&x)[OCTETS], T *at, i32 first, i32 used, i32 rows) {
    constexpr i32 CHUNK = 16 / sizeof(T), OF_ROW = 64 / CHUNK; /* elements in 16 bytes, and chunks per row of a panel */
    __shared__ alignas(16) T tile[ROWS][64 + CHUNK];
    const float scale = sums_scale_of(p), to_memory = output_scale_of(p);
    float largest = 0;
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel) {
#pragma unroll
        for (int i = 0; i < ROWS / 64 * 16; ++i) { /* 64 rows, an octet of columns, and the rows 8 below */
            const int octet = i / 2 % 8, h = i % 2;
            const i32 row = i / 16 * 64 + warp_index() * 16 + lane_index() / 4 + 8 * h;
            const run<float, 4> &four = x[(i / 16 * PANELS + panel) * 8 + octet];
            const float factor = first + row < used ? scale : 0.0f;
            store_scaled_pair<HAS_AMAX_DQK>(&tile[row][octet * 8 + 2 * (lane_index() & 3)], four.at[2 * h] * factor,
                                            four.at[2 * h + 1] * factor, to_memory, largest);
        }
        __syncthreads();
#pragma unroll
        for (i32 i = threadIdx.x; i < ROWS * OF_ROW; i += THREADS) {
            const i32 row = i / OF_ROW, in_panel = i % OF_ROW * CHUNK, column = panel * 64 + in_panel;
            if (first + row < rows && column < (i32)p.width)
                *(words *)(at + (i64)(first + row) * p.gradient_row + column) = *(const words *)&tile[row][in_panel];
        }
        __syncthreads();
    }
    if constexpr (HAS_AMAX_DQK)
        raise_amax(p.amax_dqk, largest);
}

/* Stores rows of 16-bit types. */
template <class P, class T>
DEVICE void store_staged(const P &p, const run<float, 4> (&x)[OCTETS], T *gradient, i32 first, i32 used, i32 rows) {
    __shared__ alignas(1024) unsigned char tile[PANELS * PANEL];
    const float scale = SCALES ? scale_of(p) * derivative_factor_of(p) : 1.0f;
#pragma unroll
    for (int i = 0; i < OCTETS; i += 2)
        stage_octets(shared_address(tile), i, x[i], x[i + 1], scale);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; ++i) {
        /* CHUNKS need not divide THREADS: a row of 192 columns has 24 chunks. */
        const i32 n = threadIdx.x + i * THREADS, row = n / CHUNKS, chunk = n % CHUNKS;
        words some = load_words(chunk_at(shared_address(tile) + chunk / 8 * PANEL, row, chunk % 8));
        if (first + row >= used)
            some = words{};
        if (first + row < (is_ragged(p.gradient_batch) ? used : rows) && chunk * 8 < (i32)p.width)
            *(words *)(gradient + (i64)(first + row) * p.gradient_row + chunk * 8) = some;
    }
}

template <class P> DEVICE void store_gradient_rows(const P &p) {
    const u32 outer = divide(blockIdx.x, p.blocks), m = blockIdx.x - outer * p.blocks.value;
    const i32 batch = (i32)divide(outer, p.heads), head = (i32)(outer - batch * p.heads.value), first = (i32)m * ROWS;
    const band visible(p, batch);
    const i32 used = IS_OF_KEYS ? visible.keys : visible.queries, rows = (i32)(IS_OF_KEYS ? p.keys : p.queries);
    if (is_ragged(p.gradient_batch) && first >= used)
        return;
    run<float, 4> x[OCTETS];
    load_sums(x, p, outer, m);
    auto *const gradient = p.gradient + batch * p.gradient_batch + head * p.gradient_head;
    if constexpr (IS_FP8)
        store_scaled(p, x, gradient, first, used, rows);
    else
        store_staged(p, x, gradient, first, used, rows);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_sums_sm90(const __grid_constant__ arguments p) {
    store_gradient_rows(p);
}
