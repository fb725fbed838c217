/* epilogue_direct: results from registers to memory, or partial sums to the workspace (IS_SPLIT: combine_splits.cuh
   then runs the epilogue, always in the same order). Lanes exchange sums so that a thread has 8 adjacent elements of
   one row, or of one column if columns are contiguous in memory. With reductions, or if accesses are short anyway,
   pairs stay in the layout of the accumulators
   Requires  BLOCK_N RUN LEAD_IS_ROW READS_TILE IS_SPLIT HAS_REDUCTIONS SPARE_REGISTERS; fetch and epilogue are
             generated
   Tried     launching combine_splits.cuh early: 10 % slower */

/* Destination of a run of sums, and its epilogue operands. A template, so that functions that were not generated are
   not looked up. */
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

/* A thread's sums in pieces of adjacent elements: 8 after an exchange between lanes, or the pairs of the
   accumulators. */
constexpr bool STAYS_IN_PAIRS = HAS_REDUCTIONS || (LEAD_IS_ROW && RUN == 1), IS_ALONG_ROWS = LEAD_IS_ROW && RUN > 1;
constexpr int PIECE = STAYS_IN_PAIRS ? 2 : 8, PIECES = BLOCK_N / 2 / PIECE, RUNS = PIECE / RUN;
/* Number of pieces whose operands are loaded ahead of the sums: as many as registers allow, or all before the first
   product. */
constexpr int PIECES_AHEAD = READS_TILE                                 ? PIECES
                             : SPARE_REGISTERS >= 80 && PIECES % 4 == 0 ? 4
                             : SPARE_REGISTERS >= 50 && PIECES % 2 == 0 ? 2
                                                                        : 1;
static_assert(STAYS_IN_PAIRS || BLOCK_N % (IS_ALONG_ROWS ? 16 : 32) == 0, "lanes exchange 16 or 32 columns");

/* Register 4j + 2h + e holds row 16 * warp + lane / 4 + 8h, column 8j + 2 (lane % 4) + e; see gather_piece. */
struct piece {
    i32 row, column;
    DEVICE piece(i32 block_row, i32 block_column, int number)
        : row(block_row + (warp_index() % 4) * 16), column(block_column) {
        const i32 lane = lane_index();
        if constexpr (IS_ALONG_ROWS) {
            row += lane / 8 % 2 * 8;
            column += number * 16 + lane / 16 * 8 + lane % 4 * 2 + lane / 4 % 2;
        } else {
            row += lane / 4 + number % 2 * 8;
            column += number / 2 * (STAYS_IN_PAIRS ? 8 : 32) + lane % 4 * PIECE;
        }
    }
    DEVICE i32 row_of(int r) const { return IS_ALONG_ROWS ? row + r * RUN : row; }
    DEVICE i32 column_of(int r) const { return IS_ALONG_ROWS ? column : column + r * RUN; }
    template <class P> DEVICE bool is_inside(const P &p, const tile_coordinates &at, int r) const {
        return row_of(r) < at.row_end && column_of(r) < (i32)p.columns;
    }
};

/* Swaps one bit of the register number with one bit of the lane number. */
template <int N> DEVICE void exchange(sum_t (&r)[N], int register_bit, int lane_bit) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (!(i & register_bit)) {
            const bool is_high = lane_index() & lane_bit;
            const sum_t received = __shfl_xor_sync(~0u, is_high ? r[i] : r[i | register_bit], lane_bit);
            (is_high ? r[i] : r[i | register_bit]) = received;
        }
}

/* Collects the sums of a piece, adjacent elements first: from 16 columns and both halves of the warp's rows, lane / 4
   becomes the register number; or from 32 columns and one half, lane % 4 does. */
template <int N> DEVICE void gather_piece(sum_t (&sums)[N], const sum_t (&r_c)[BLOCK_N / 2], int number) {
    if constexpr (STAYS_IN_PAIRS) {
        sums[0] = r_c[number * 2];
        sums[1] = r_c[number * 2 + 1];
    } else if constexpr (IS_ALONG_ROWS) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sums[i] = r_c[number * 8 + i];
        exchange(sums, 1, 4);
        exchange(sums, 2, 8);
        exchange(sums, 4, 16);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sums[i] = r_c[(number / 2 * 4 + i / 2) * 4 + number % 2 * 2 + i % 2];
        exchange(sums, 2, 1);
        exchange(sums, 4, 2);
    }
}

/* Passes one run of a piece to its destination and to the reductions. */
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
            out = epilogue(p, at.z, to.row_of(r), to.column_of(r), sum, in);
        reductions.add(p, at.z, to.row_of(r), to.column_of(r), number / 2, number % 2, out, r * RUN);
    } else if (to.is_inside(p, at, r)) {
        destination<P>::write(p, at, to.row_of(r), to.column_of(r), sum, in);
    }
}

/* Epilogue operands of PIECES_AHEAD pieces of a block of 64 rows. */
template <class P> struct piece_operands {
    typename destination<P>::fetched in[PIECES_AHEAD][RUNS];
    DEVICE void read(const P &p, const tile_coordinates &at, i32 row, int first) {
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD * RUNS; ++i) {
            const piece to(row, at.column, first + i / RUNS);
            if (to.is_inside(p, at, i % RUNS))
                in[i / RUNS][i % RUNS] = destination<P>::read(p, at, to.row_of(i % RUNS), to.column_of(i % RUNS));
        }
    }
};

/* Stores a block of 64 rows of the tile. */
template <class P, class R>
DEVICE void store_block(const sum_t (&r_c)[BLOCK_N / 2], const P &p, const tile_coordinates &at, i32 row,
                        piece_operands<P> &operands, R &reductions) {
#pragma unroll
    for (int first = 0; first < PIECES; first += PIECES_AHEAD) {
        if constexpr (!READS_TILE)
            operands.read(p, at, row, first);
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD; ++i) {
            const piece to(row, at.column, first + i);
            sum_t sums[PIECE];
            gather_piece(sums, r_c, first + i);
#pragma unroll
            for (int r = 0; r < RUNS; ++r)
                store_run_of(p, at, to, first + i, r, sums, operands.in[i][r], reductions);
        }
    }
}
