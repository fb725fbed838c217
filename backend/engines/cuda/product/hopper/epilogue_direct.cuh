/* epilogue_direct: results from registers to memory, or partial sums to the workspace (IS_SPLIT: combine_splits.cuh
   runs the epilogue then, always in the same order). Quads of lanes exchange sums, so that a thread has 8 neighbours of
   one row; or pairs stay as they lie
   Demands   BLOCK_N RUN LEAD_IS_ROW IS_SPLIT HAS_REDUCTIONS SPARE_REGISTERS; fetch and epilogue are printed
   Tried     launching combine_splits.cuh early: 10 % slower */

/* Where a run of sums goes, and what it meets there. A template, so that what was not printed is not looked up. */
template <class P, bool SPLIT = IS_SPLIT> struct destination {
    using fetched = decltype(fetch(*(const P *)0, index(0), index(0), index(0)));
    static DEVICE fetched read(const P &p, const tile_coordinates &at, i32 row, i32 column) {
        return fetch(p, at.z, row, column);
    }
    static DEVICE void write(const P &p, const tile_coordinates &at, i32 row, i32 column, const run<sum_t, RUN> &sum,
                             const fetched &in) {
        epilogue(p, at.z, row, column, sum, in);
    }
};
template <class P> struct destination<P, true> {
    struct fetched {};
    static DEVICE fetched read(const P &, const tile_coordinates &, i32, i32) { return {}; }
    static DEVICE void write(const P &p, const tile_coordinates &at, i32 row, i32 column, const run<sum_t, RUN> &sum,
                             const fetched &) {
        const i64 entry = (i64)at.split * p.batches.value + at.z;
        const i64 to =
            LEAD_IS_ROW ? (entry * p.columns + column) * p.rows + row : (entry * p.rows + row) * p.columns + column;
        store_run<sum_t, RUN>(p.partial + to, sum);
    }
};

/* A thread's sums in pieces of neighbours: 8 of a row, after an exchange in its quad; or the pairs as they lie. */
constexpr bool STAYS_IN_PAIRS = LEAD_IS_ROW || HAS_REDUCTIONS;
constexpr int PIECE = STAYS_IN_PAIRS ? 2 : 8, PIECES = BLOCK_N / 2 / PIECE, RUNS = PIECE / RUN;
/* How many pieces' operands are read ahead of the sums: what registers allow. */
constexpr int PIECES_AHEAD = SPARE_REGISTERS >= 80 && PIECES % 4 == 0 ? 4 : SPARE_REGISTERS >= 50 ? 2 : 1;
static_assert(STAYS_IN_PAIRS || BLOCK_N % 32 == 0, "a quad of lanes exchanges 32 columns");

/* Register 4j + 2h + e is row 16 * warp + lane / 4 + 8h, column 8j + 2 (lane % 4) + e. */
struct piece {
    i32 row, column;
    DEVICE piece(i32 block_row, i32 block_column, int number)
        : row(block_row + (warp_index() % 4) * 16 + lane_index() / 4 + number % 2 * 8),
          column(block_column + number / 2 * (STAYS_IN_PAIRS ? 8 : 32) + lane_index() % 4 * PIECE) {}
    template <class P> DEVICE bool is_inside(const P &p, const tile_coordinates &at, int r) const {
        return row < at.row_end && column + r * RUN < (i32)p.columns;
    }
};

/* Before: slot s of lane q in a quad is pair q of octet s. After: slot s of lane q is pair s of octet q, 8 neighbours
     in all. */
DEVICE void gather_octet(sum_t (&pair)[4][2]) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit <<= 1)
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
            for (int e = 0; e < 2 && !(s & bit); ++e) {
                const bool is_high = lane_index() & bit;
                const sum_t received = __shfl_xor_sync(~0u, is_high ? pair[s][e] : pair[s | bit][e], bit);
                (is_high ? pair[s][e] : pair[s | bit][e]) = received;
            }
}

/* The sums of a piece, neighbours side by side. */
DEVICE void gather_piece(sum_t (&sums)[PIECE], const sum_t (&r_c)[BLOCK_N / 2], int number) {
    if constexpr (STAYS_IN_PAIRS) {
        sums[0] = r_c[number * 2];
        sums[1] = r_c[number * 2 + 1];
    } else {
        sum_t octet[4][2];
#pragma unroll
        for (int i = 0; i < 8; ++i)
            octet[i / 2][i % 2] = r_c[(number / 2 * 4 + i / 2) * 4 + number % 2 * 2 + i % 2];
        gather_octet(octet);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sums[i] = octet[i / 2][i % 2];
    }
}

/* One run of a piece: to its destination, and into the reductions. */
template <class P, class R>
DEVICE void store_run_of(const P &p, const tile_coordinates &at, const piece &to, int number, int r,
                         const sum_t (&sums)[PIECE], const typename destination<P>::fetched &in, R &reductions) {
    run<sum_t, RUN> sum;
#pragma unroll
    for (int e = 0; e < RUN; ++e)
        sum.at[e] = sums[r * RUN + e];
    if constexpr (HAS_REDUCTIONS) {
        decltype(epilogue(p, at.z, to.row, to.column, sum, in)) out = {};
        if (to.is_inside(p, at, r))
            out = epilogue(p, at.z, to.row, to.column + r * RUN, sum, in);
        reductions.add(p, at.z, to.row, to.column + r * RUN, number / 2, number % 2, out, r * RUN);
    } else if (to.is_inside(p, at, r)) {
        destination<P>::write(p, at, to.row, to.column + r * RUN, sum, in);
    }
}

/* A block of 64 rows of the tile. */
template <class P, class R>
DEVICE void store_block(const sum_t (&r_c)[BLOCK_N / 2], const P &p, const tile_coordinates &at, i32 row,
                        R &reductions) {
#pragma unroll
    for (int first = 0; first < PIECES; first += PIECES_AHEAD) {
        typename destination<P>::fetched in[PIECES_AHEAD][RUNS];
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD * RUNS; ++i) {
            const piece to(row, at.column, first + i / RUNS);
            if (to.is_inside(p, at, i % RUNS))
                in[i / RUNS][i % RUNS] = destination<P>::read(p, at, to.row, to.column + i % RUNS * RUN);
        }
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD; ++i) {
            const piece to(row, at.column, first + i);
            sum_t sums[PIECE];
            gather_piece(sums, r_c, first + i);
#pragma unroll
            for (int r = 0; r < RUNS; ++r)
                store_run_of(p, at, to, first + i, r, sums, in[i][r], reductions);
        }
    }
}
