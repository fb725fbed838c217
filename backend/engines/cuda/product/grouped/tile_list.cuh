/* tile_list: runs before the product of a mixture of experts: lists tiles of rows, each of a single expert
   Types     any chip, any type
   Formula   group e has ceil(rows of e / BLOCK_M) tiles, after those of all previous groups
   Tile      block 0 writes the list, with one thread per group, THREADS groups at a time; it ends with empty tiles.
             With SCATTERS, which may leave rows without a product, the other blocks fill the result with zeros, one row
             each; with COPIES, they copy the tokens that GATHERS selects into contiguous rows for TMA
   Memory    a running sum of each group's tiles
   Params    THREADS BLOCK_M GATHERS SCATTERS COPIES y_t */

/* Returns the inclusive prefix sum over the threads' values. */
DEVICE i64 inclusive_scan(i64 (&sums)[THREADS], i64 mine) {
    const int t = threadIdx.x;
    sums[t] = mine;
    __syncthreads();
    for (int step = 1; step < THREADS; step *= 2) {
        const i64 before = t >= step ? sums[t - step] : 0;
        __syncthreads();
        sums[t] += before;
        __syncthreads();
    }
    return sums[t];
}

DEVICE void list_tiles(const arguments &p) {
    __shared__ i64 sums[THREADS];
    i64 listed = 0;
    for (i64 base = -1; base < p.experts; base += THREADS) {
        const i64 expert = base + threadIdx.x, first = group_start(p, expert);
        const i64 until = expert < p.experts ? group_start(p, expert + 1) : first;
        const i64 tiles = until > first ? (until - first + BLOCK_M - 1) / BLOCK_M : 0;
        i64 at = listed + inclusive_scan(sums, tiles) - tiles;
        for (i64 row = first; row < until && at < p.max_entries; row += BLOCK_M, at++)
            p.list[at] = group_tile{row, (i32)(until - row < BLOCK_M ? until - row : BLOCK_M), (i32)expert};
        listed += sums[THREADS - 1];
        __syncthreads();
    }
    for (i64 at = listed + threadIdx.x; at < p.max_entries; at += THREADS)
        p.list[at] = group_tile{0, 0, -1};
}

/* A template, so that fields that were not generated are not looked up. */
template <class P> DEVICE void copy_row(const P &p, i64 row) {
    const i64 token = find_token(p, row);
    for (i64 at = threadIdx.x; at < p.row_words; at += THREADS)
        p.gathered[row * p.row_words + at] =
            token < 0 ? chunk<16>{} : ((const chunk<16> *)(p.tokens_at + token * p.token_row))[at];
}

extern "C" __global__ void __launch_bounds__(THREADS) tile_list(const __grid_constant__ arguments p) {
    if (blockIdx.x == 0)
        list_tiles(p);
    if constexpr (COPIES)
        for (i64 row = (i64)blockIdx.x - 1; row >= 0 && row < p.group_rows; row += gridDim.x - 1)
            copy_row(p, row);
    if constexpr (SCATTERS)
        for (i64 row = (i64)blockIdx.x - 1; row >= 0 && row < p.group_rows; row += gridDim.x - 1)
            for (i64 column = threadIdx.x; column < p.columns; column += THREADS)
                p.y[row * p.y_row + column * p.y_column] = convert<y_t>(0.0f);
}
