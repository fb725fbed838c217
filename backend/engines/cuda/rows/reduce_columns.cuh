/* reduce_columns: combines the partial results of interleaved rows; adjacent threads have adjacent strips
   Shuffles within a warp, then exchanges through the shared memory of the block and of all blocks that share the rows;
   in a fixed order. Include after strip.cuh */

/* Combines the warps' results of each row and sends them to all blocks that share the rows. */
template <class P, int WARPS, int ROWS>
DEVICE void join_warps(const typename P::total (&s_warps)[WARPS][ROWS], typename P::total (&s_blocks)[CLUSTER][ROWS],
                       u32 rank) {
    constexpr int SPARE = THREADS / ROWS, JOINERS = SPARE < 1 ? 1 : SPARE > 32 ? 32 : SPARE; // threads per row
    static_assert(THREADS % JOINERS == 0 && (JOINERS & (JOINERS - 1)) == 0,
                  "threads of a row exchange values in pairs");
    static_assert(ROWS * JOINERS % 32 == 0, "all lanes of a warp exchange values");
    for (int c = threadIdx.x / JOINERS; c < ROWS; c += THREADS / JOINERS) {
        typename P::total total = P::none();
        for (int w = threadIdx.x % JOINERS; w < WARPS; w += JOINERS)
            total = P::joined(total, s_warps[w][c]);
        total = P::template of_lanes<1, JOINERS / 2>(total);
        auto *own = &s_blocks[rank][c];
        if constexpr (CLUSTER == 1)
            *own = total;
        else if (threadIdx.x % JOINERS < CLUSTER)
            store_to_peer(own, threadIdx.x % JOINERS, total);
    }
    if constexpr (CLUSTER == 1)
        __syncthreads();
    else {
        arrive_at_cluster();
        await_cluster();
    }
}

template <class P> DEVICE void reduce_columns(typename P::total (&sum)[LANES], const span &s) {
    // threads of a warp with the same strip
    constexpr int IN_WARP = ACROSS >= 32 ? 1 : GROUP * ACROSS >= 32 ? 32 / ACROSS : GROUP;
    constexpr int WARPS = GROUP / IN_WARP, ROWS = LANES * ACROSS;
    static_assert(GROUP % IN_WARP == 0 && (IN_WARP & (IN_WARP - 1)) == 0,
                  "threads of a strip exchange values in pairs");
    static_assert(CLUSTER == 1 || WARPS > 1, "blocks that share rows have several warps for each");
#pragma unroll
    for (int l = 0; l < LANES; l++)
        sum[l] = P::template of_lanes<ACROSS, ACROSS * IN_WARP / 2>(sum[l]);
    if constexpr (WARPS > 1) {
        __shared__ typename P::total s_warps[WARPS][ROWS];
        __shared__ typename P::total s_blocks[CLUSTER > 1 ? 2 : 1][CLUSTER][ROWS];
        const int buffer = CLUSTER > 1 ? s.buffer : 0;
        if (s.lane % IN_WARP == 0)
#pragma unroll
            for (int l = 0; l < LANES; l++)
                s_warps[s.lane / IN_WARP][l * ACROSS + s.across] = sum[l];
        __syncthreads();
        join_warps<P>(s_warps, s_blocks[buffer], s.rank);
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            sum[l] = s_blocks[buffer][0][l * ACROSS + s.across];
            for (int rank = 1; rank < CLUSTER; rank++)
                sum[l] = P::joined(sum[l], s_blocks[buffer][rank][l * ACROSS + s.across]);
        }
    }
}
