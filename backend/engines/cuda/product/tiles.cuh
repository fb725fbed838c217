/* tiles: the loop over the tiles of a product. The kernel that includes this defines struct sums, which computes the
   sums:
   multiply  adds the products of one stage
   for_each  visits all sums of one of EPILOGUE_TILES epilogue tiles, with their row in it and their column
   tile_row  the row of the tile for a row of an epilogue tile */

/* ---- Shared memory ---- */

constexpr int EPILOGUE_PITCH = (LEAD_IS_ROW ? sums::EPILOGUE_ROWS : BLOCK_N) + 16 / (int)sizeof(sum_t);
constexpr int EPILOGUE_LINES = LEAD_IS_ROW ? BLOCK_N : sums::EPILOGUE_ROWS;
static_assert(sums::EPILOGUE_ROWS % RUN == 0 && 16 % RUN == 0, "vectors stay within an epilogue tile");

struct memory {
    operand_a::coordinates a_outers[BLOCK_M], a_ks[2][BLOCK_K];
    operand_b::coordinates b_outers[BLOCK_N], b_ks[2][BLOCK_K];
    union {
        stage stages[2];
        alignas(16) sum_t epilogue_tile[EPILOGUE_LINES * EPILOGUE_PITCH];
    };
};
static_assert(sizeof(memory) <= 49152, "48 KB is what every chip gives without asking");

/* ---- One tile ---- */

struct tile_coordinates {
    index z, row, column;
    u32 split;
};

/* Tiles are numbered by split, batch entry, groups of GROUP_TILES rows of tiles, columns, rows. */
DEVICE tile_coordinates locate(const arguments &p, position tile) {
    const position within = split(tile, p.tiles_per_entry), entry = split(tile, p.batches);
    position group = within;
    const u32 in_group = (u32)split(group, p.tiles_per_group), first = (u32)group * GROUP_TILES;
    const u32 left = (u32)p.tiles_m - first, rows = left < GROUP_TILES ? left : GROUP_TILES;
    return tile_coordinates{(index)entry, (index)(first + in_group % rows) * BLOCK_M,
                            (index)(in_group / rows) * BLOCK_N, (u32)tile};
}

DEVICE void list_ks(memory &s, const arguments &p, const batch &g, i64 step) {
    for (int t = threadIdx.x; t < 2 * BLOCK_K; t += THREADS) {
        const index k = (index)(step * BLOCK_K + t % BLOCK_K);
        if (t < BLOCK_K)
            s.a_ks[step % 2][t] = a_k(p, g, k);
        else
            s.b_ks[step % 2][t - BLOCK_K] = b_k(p, g, k);
    }
}

/* Sums steps from `from` to until - 1. */
DEVICE void multiply_tile(sums &sum, memory &s, const arguments &p, const batch &g, const tile_coordinates &at,
                          i64 from, i64 until) {
    run_loader<operand_a, BLOCK_M> a;
    run_loader<operand_b, BLOCK_N> b;
    for (int t = threadIdx.x; t < BLOCK_M; t += THREADS)
        s.a_outers[t] = a_outer(p, g, at.row + t);
    for (int t = threadIdx.x; t < BLOCK_N; t += THREADS)
        s.b_outers[t] = b_outer(p, g, at.column + t);
    list_ks(s, p, g, from);
    __syncthreads();
    a.fetch(p, p.a, s.a_outers, s.a_ks[from % 2]);
    b.fetch(p, p.b, s.b_outers, s.b_ks[from % 2]);
    list_ks(s, p, g, from + 1);
    a.store(s.stages[from % 2].a);
    b.store(s.stages[from % 2].b);
    __syncthreads();
    for (i64 step = from; step < until; step++) {
        if (step + 1 < until) {
            a.fetch(p, p.a, s.a_outers, s.a_ks[(step + 1) % 2]);
            b.fetch(p, p.b, s.b_outers, s.b_ks[(step + 1) % 2]);
            list_ks(s, p, g, step + 2); /* into the table of this step, which is no longer read since the last
                                           barrier */
        }
        sum.multiply(s.stages[step % 2]);
        if (step + 1 < until) {
            a.store(s.stages[(step + 1) % 2].a);
            b.store(s.stages[(step + 1) % 2].b);
        }
        __syncthreads();
    }
}

/* Stores a run of sums that are contiguous in the result. A template, so that functions that were not generated are not
   looked up. */
template <class P>
DEVICE void store_sums(const P &p, const tile_coordinates &at, index row, index column, const run<sum_t, RUN> &sum) {
    if (row >= (index)p.rows || column >= (index)p.columns)
        return;
    if constexpr (IS_SPLIT) {
        const i64 entry = (i64)at.split * p.batches.value + at.z;
        const i64 offset =
            LEAD_IS_ROW ? (entry * p.columns + column) * p.rows + row : (entry * p.rows + row) * p.columns + column;
        store_run<sum_t, RUN>(p.partial + offset, sum);
    } else {
        epilogue(p, at.z, row, column, sum);
    }
}

/* Passes the sums through shared memory, so that one thread gets contiguous results. */
DEVICE void run_epilogue(sums &sum, memory &s, const arguments &p, const tile_coordinates &at) {
    constexpr int RUNS = sums::EPILOGUE_ROWS * BLOCK_N / RUN,
                  ACROSS = (LEAD_IS_ROW ? sums::EPILOGUE_ROWS : BLOCK_N) / RUN;
    static_assert((LEAD_IS_ROW ? sums::EPILOGUE_ROWS : BLOCK_N) % RUN == 0, "runs cover a line");
#pragma unroll
    for (int epilogue_tile = 0; epilogue_tile < sums::EPILOGUE_TILES; epilogue_tile++) {
        sum.for_each(epilogue_tile, [&](int row, int column, sum_t x) {
            s.epilogue_tile[LEAD_IS_ROW ? column * EPILOGUE_PITCH + row : row * EPILOGUE_PITCH + column] = x;
        });
        __syncthreads();
        for (int t = threadIdx.x; t < RUNS; t += THREADS) {
            const int line = t / ACROSS, along = t % ACROSS * RUN;
            const int row = sums::tile_row(epilogue_tile, LEAD_IS_ROW ? along : line),
                      column = LEAD_IS_ROW ? line : along;
            store_sums(p, at, at.row + row, at.column + column,
                       load_run<sum_t, RUN>(&s.epilogue_tile[line * EPILOGUE_PITCH + along]));
        }
        __syncthreads();
    }
}

DEVICE void compute_tiles(const arguments &p) {
    __shared__ memory s;
    for (i64 tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const tile_coordinates at = locate(p, (position)tile);
        const batch g = find_batch(p, at.z);
        const i64 steps = ((i64)g.k_count + BLOCK_K - 1) / BLOCK_K, from = (i64)at.split * p.steps_per_split;
        const i64 until = steps < from + p.steps_per_split ? steps : from + p.steps_per_split;
        sums sum = {};
        if (from < until)
            multiply_tile(sum, s, p, g, at, from, until);
        run_epilogue(sum, s, p, at);
    }
}
