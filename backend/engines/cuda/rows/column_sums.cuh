/* column_sums: writes sums over rows, for each position in a row, from the registers of a block to the workspace.
   Another launch adds up the blocks. Groups within a warp combine by shuffles, then warps (or larger groups) through
   shared memory, one vector at a time, each added up by different threads. Include after strip.cuh */

DEVICE void clear_columns(column (&columns)[OWN]) {
#pragma unroll
    for (int i = 0; i < OWN; i++)
        clear_column(columns[i]);
}

DEVICE void store_columns(const column (&columns)[OWN], const span &s, const arguments &a) {
    // threads that hold one sum, and the number of such sums
    constexpr int JOINED = GROUP < 32 ? 32 : GROUP, JOINERS = THREADS / JOINED;
    static_assert(THREADS % JOINED == 0 && (GROUP % 32 == 0 || 32 % GROUP == 0), "groups do not straddle warps");
    using sums = run<column_t, WIDTH>;
    const int lane = threadIdx.x % GROUP, joiner = threadIdx.x / JOINED;
    const bool is_first = threadIdx.x % JOINED < GROUP;
#pragma unroll
    for (int i = 0; i < COLUMN_SUMS * OWN; i++) {
        sums mine = columns[i % OWN].at[i / OWN];
#pragma unroll
        for (int mask = GROUP; mask < 32; mask *= 2)
#pragma unroll
            for (int e = 0; e < WIDTH; e++)
                mine.at[e] += shuffle_xor(mine.at[e], mask);
        if constexpr (JOINERS > 1) {
            __shared__ sums s_sums[JOINERS][GROUP];
            if (i > 0)
                __syncthreads();
            if (is_first)
                s_sums[joiner][lane] = mine;
            __syncthreads();
            if (joiner != i % JOINERS)
                continue;
            mine = s_sums[0][lane];
#pragma unroll
            for (int g = 1; g < JOINERS; g++)
#pragma unroll
                for (int e = 0; e < WIDTH; e++)
                    mine.at[e] += s_sums[g][lane].at[e];
        }
        if (i % OWN == KEPT) {
            if (is_first && s.rank == 0 && s.lane < unaligned_of(a, s.strip))
                store_column<1>(i / OWN, mine, a, s.strip, s.lane);
        } else if (is_first && vector_of(s, i % OWN) < vectors_of(a, s.strip)) {
            store_column(i / OWN, mine, a, s.strip, vector_of(s, i % OWN));
        }
    }
}

/* Called after a block's last tile. If rows are unaligned, its columns are aligned like those of its first rows. */
DEVICE void end_tiles(const column (&columns)[OWN], int rank, const arguments &a) {
    if constexpr (TRIGGER == WHEN_DONE)
        allow_launch_after();
    store_columns(columns, span_of(a, UNALIGNED > 0 ? blockIdx.x / CLUSTER : 0, rank, 0), a);
}
