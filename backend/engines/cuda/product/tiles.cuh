/* tiles: the walk over the tiles of a product, whatever makes its sums: struct sums, of the kernel that includes this
     multiply   adds the products of one stage
     each       gives all sums of one of SLABS slabs, with their row in the slab and their column
     tile_row   the row of the tile that a row of a slab is */

/* ---- Shared memory ---- */

constexpr int SLAB_PITCH = (LEAD_IS_ROW ? sums::SLAB_ROWS : BLOCK_N) + 16 / (int)sizeof(sum_t);
constexpr int SLAB_LINES = LEAD_IS_ROW ? BLOCK_N : sums::SLAB_ROWS;
static_assert(sums::SLAB_ROWS % RUN == 0 && 16 % RUN == 0, "runs stay within a slab");

struct memory {
    factor_a::place a_outers[BLOCK_M], a_depths[2][BLOCK_K];
    factor_b::place b_outers[BLOCK_N], b_depths[2][BLOCK_K];
    union {
        stage stages[2];
        alignas(16) sum_t slab[SLAB_LINES * SLAB_PITCH];
    };
};
static_assert(sizeof(memory) <= 49152, "48 KB is what every chip gives without asking");

/* ---- One tile ---- */

struct place_of_tile {
    index z, row, column;
    u32 split;
};

/* Tiles are numbered by split, batch entry, groups of GROUP_TILES rows of tiles, columns, rows. */
DEVICE place_of_tile locate(const arguments &p, position tile) {
    const position within = split(tile, p.tiles_per_entry), entry = split(tile, p.batches);
    position group = within;
    const u32 in_group = (u32)split(group, p.tiles_per_group), first = (u32)group * GROUP_TILES;
    const u32 left = (u32)p.tiles_m - first, rows = left < GROUP_TILES ? left : GROUP_TILES;
    return place_of_tile{(index)entry, (index)(first + in_group % rows) * BLOCK_M, (index)(in_group / rows) * BLOCK_N,
                         (u32)tile};
}

DEVICE void list_depths(memory &s, const arguments &p, const batch &g, i64 step) {
    for (int t = threadIdx.x; t < 2 * BLOCK_K; t += THREADS) {
        const index k = (index)(step * BLOCK_K + t % BLOCK_K);
        if (t < BLOCK_K)
            s.a_depths[step % 2][t] = a_depth(p, g, k);
        else
            s.b_depths[step % 2][t - BLOCK_K] = b_depth(p, g, k);
    }
}

/* Sums steps from .. until - 1. */
DEVICE void multiply_tile(sums &sum, memory &s, const arguments &p, const batch &g, const place_of_tile &at, i64 from,
                          i64 until) {
    carrier<factor_a, BLOCK_M> a;
    carrier<factor_b, BLOCK_N> b;
    for (int t = threadIdx.x; t < BLOCK_M; t += THREADS)
        s.a_outers[t] = a_outer(p, g, at.row + t);
    for (int t = threadIdx.x; t < BLOCK_N; t += THREADS)
        s.b_outers[t] = b_outer(p, g, at.column + t);
    list_depths(s, p, g, from);
    __syncthreads();
    a.fetch(p, p.a, s.a_outers, s.a_depths[from % 2]);
    b.fetch(p, p.b, s.b_outers, s.b_depths[from % 2]);
    list_depths(s, p, g, from + 1);
    a.put(s.stages[from % 2].a);
    b.put(s.stages[from % 2].b);
    __syncthreads();
    for (i64 step = from; step < until; step++) {
        if (step + 1 < until) {
            a.fetch(p, p.a, s.a_outers, s.a_depths[(step + 1) % 2]);
            b.fetch(p, p.b, s.b_outers, s.b_depths[(step + 1) % 2]);
            list_depths(s, p, g, step + 2); /* into the table of this step, which the last barrier has retired */
        }
        sum.multiply(s.stages[step % 2]);
        if (step + 1 < until) {
            a.put(s.stages[(step + 1) % 2].a);
            b.put(s.stages[(step + 1) % 2].b);
        }
        __syncthreads();
    }
}

/* A run of sums that lie side by side in the result. A template, so that what was not printed is not looked up. */
template <class P>
DEVICE void end_run(const P &p, const place_of_tile &at, index row, index column, const run<sum_t, RUN> &sum) {
    if (row >= (index)p.rows || column >= (index)p.columns)
        return;
    if constexpr (IS_SPLIT) {
        const i64 entry = (i64)at.split * p.batches.value + at.z;
        const i64 place =
            LEAD_IS_ROW ? (entry * p.columns + column) * p.rows + row : (entry * p.rows + row) * p.columns + column;
        store_run<sum_t, RUN>(p.partial + place, sum);
    } else {
        finish(p, at.z, row, column, sum);
    }
}

/* Passes the sums through shared memory, so that neighbours in the result meet in one thread. */
DEVICE void end_tile(sums &sum, memory &s, const arguments &p, const place_of_tile &at) {
    constexpr int RUNS = sums::SLAB_ROWS * BLOCK_N / RUN, ACROSS = (LEAD_IS_ROW ? sums::SLAB_ROWS : BLOCK_N) / RUN;
#pragma unroll
    for (int slab = 0; slab < sums::SLABS; slab++) {
        sum.each(slab, [&](int row, int column, sum_t x) {
            s.slab[LEAD_IS_ROW ? column * SLAB_PITCH + row : row * SLAB_PITCH + column] = x;
        });
        __syncthreads();
        for (int t = threadIdx.x; t < RUNS; t += THREADS) {
            const int line = t / ACROSS, along = t % ACROSS * RUN;
            const int row = sums::tile_row(slab, LEAD_IS_ROW ? along : line), column = LEAD_IS_ROW ? line : along;
            end_run(p, at, at.row + row, at.column + column, load_run<sum_t, RUN>(&s.slab[line * SLAB_PITCH + along]));
        }
        __syncthreads();
    }
}

DEVICE void make_tiles(const arguments &p) {
    __shared__ memory s;
    for (i64 tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const place_of_tile at = locate(p, (position)tile);
        const batch g = find_batch(p, at.z);
        const i64 steps = ((i64)g.depth + BLOCK_K - 1) / BLOCK_K, from = (i64)at.split * p.steps_per_split;
        const i64 until = steps < from + p.steps_per_split ? steps : from + p.steps_per_split;
        sums sum = {};
        if (from < until)
            multiply_tile(sum, s, p, g, at, from, until);
        end_tile(sum, s, p, at);
    }
}
