/* reduce_rows: combines the partial results of a row, held by adjacent threads, and returns the result to all of them
   Shuffles within a warp, then one exchange through the shared memory of all blocks that share the row; in a fixed
   order. Include after strip.cuh */

/* Combines the partial results of the warps. */
template <class P, int WARPS> DEVICE typename P::total join_warps(const typename P::total (&partials)[WARPS]) {
    typename P::total sum = partials[0];
    if constexpr (WARPS <= 8) {
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            sum = P::joined(sum, partials[i]);
    } else {
        constexpr int LAST = WARPS > 16 ? 16 : 8;
        const int mine = threadIdx.x % (2 * LAST);
        sum = P::none();
        for (int i = mine; i < WARPS; i += 2 * LAST)
            sum = P::joined(sum, partials[i]);
        sum = P::template of_lanes<1, LAST>(sum);
    }
    return sum;
}

template <class P> DEVICE void reduce_row(typename P::total &sum, const span &s) {
    if constexpr (GROUP <= 32)
        sum = P::template of_lanes<1, GROUP / 2>(sum);
    if constexpr (GROUP > 32 || CLUSTER > 1) {
        constexpr int WARPS = GROUP > 32 ? GROUP / 32 : 1;
        __shared__ typename P::total s_warps[2][ACROSS][WARPS * CLUSTER];
        if constexpr (GROUP > 32)
            sum = P::template of_lanes<1, 16>(sum);
        typename P::total *own = &s_warps[s.buffer][s.across][s.rank * WARPS + s.lane / 32];
        if constexpr (CLUSTER > 1) {
            if (threadIdx.x % 32 < CLUSTER)
                store_to_peer(own, threadIdx.x % 32, sum);
            arrive_at_cluster();
            await_cluster();
        } else {
            if (threadIdx.x % 32 == 0)
                *own = sum;
            if constexpr (ACROSS == 1)
                __syncthreads();
            else
                team_barrier(1 + s.across, GROUP);
        }
        sum = join_warps<P>(s_warps[s.buffer][s.across]);
    }
}
