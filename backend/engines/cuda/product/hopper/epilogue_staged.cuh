/* epilogue_staged: results of 8, 16 or 32 bits from accumulators to memory. Pairs of a row pass through an epilogue
   tile in shared memory, which belongs to one warp and has 16 rows x EPILOGUE_TILE_N columns. From there, whole rows
   are stored: by TMA (STORES_BOXES: store_result is generated), or with 16 bytes per thread if the addresses of rows
   have to be computed. No barrier is wider than a warp
   AUX_LOAD  the epilogue tiles hold an operand that has the result's layout; set_aux_pair adds it to the fetched ones
   RESULTS   2: both have 16 bits and are stored by TMA
   Requires  RESULTS BLOCK_N RESULT_BYTES EPILOGUE_TILES STORES_BOXES AUX_LOAD FETCHED_WORDS, and SPARE_REGISTERS
             HAS_REDUCTIONS of the including kernel. Templates, so that functions that were not generated are not looked
             up
   Tried     exchanging sums in quads for 16-bit results, too: 25 instead of 6 instructions per element, convolutions
             with few channels 30 % slower
             unsigned indices after the sum: the compiler keeps an address per access, and spills */

#include "engines/cuda/product/hopper/epilogue_geometry.h"

constexpr int EPILOGUE_TILE_N = epilogue_tile_columns(RESULT_BYTES, BLOCK_N);
constexpr u32 EPILOGUE_ROW_BYTES = EPILOGUE_TILE_N * RESULT_BYTES; /* the swizzle span: 128, 64 or 32 bytes */
constexpr u32 EPILOGUE_TILE_BYTES = epilogue_tile_bytes(RESULT_BYTES, BLOCK_N),
              EPILOGUE_SLOT_BYTES = RESULTS * EPILOGUE_TILE_BYTES; /* two results are adjacent */

/* The next epilogue tile of a warp, over all tiles of the product. */
struct epilogue_cursor {
    u32 s_tiles, next = 0;
    DEVICE u32 advance() {
        const u32 s_tile = s_tiles + next * EPILOGUE_SLOT_BYTES;
        next = (next + 1) % EPILOGUE_TILES;
        return s_tile;
    }
};

/* Returns the XOR mask for the 16-byte chunks of a row of an epilogue tile. */
DEVICE u32 tile_swizzle(u32 tile_row) { return (tile_row * EPILOGUE_ROW_BYTES >> 7) % (EPILOGUE_ROW_BYTES / 16); }

/* Stores rows in pieces of 16 bytes per thread. Computing a row's address takes divisions, so lane l does it for row l
   % 16 (0: the row does not exist). */
template <class P> DEVICE void scatter_tile(const P &p, u64 line, i32 column, u32 s_tile) {
    constexpr u32 CHUNKS = EPILOGUE_ROW_BYTES / 16, ROWS_AT_ONCE = 32 / CHUNKS;
    static_assert(32 % CHUNKS == 0 && 16 % ROWS_AT_ONCE == 0, "a warp stores whole rows");
    const u32 chunk = lane_index() % CHUNKS;
    column += chunk * (16 / RESULT_BYTES);
#pragma unroll
    for (u32 first = 0; first < 16; first += ROWS_AT_ONCE) {
        const u32 tile_row = first + lane_index() / CHUNKS;
        const u64 to = __shfl_sync(~0u, line, tile_row);
        if (to && column < (i32)p.columns)
            *(words *)(to + (u64)column * RESULT_BYTES) =
                load_words(s_tile + tile_row * EPILOGUE_ROW_BYTES + (chunk ^ tile_swizzle(tile_row)) * 16);
    }
}

/* Coordinates of a thread's pairs: register 4j + 2h + e holds row lane / 4 + 8h of the warp's 16, column 8j + 2 (lane %
   4) + e. Two octets of columns are four blocks of 8 x 8. */
struct pair_coordinates {
    i32 row, column;
    DEVICE pair_coordinates(i32 warp_row, i32 block_column, int octets, int number)
        : row(warp_row + lane_index() / 4 + number % 2 * 8),
          column(block_column + octets * 16 + number / 2 * 8 + lane_index() % 4 * 2) {}
};

/* 8-bit pairs in the accumulator layout: four lanes fill half a 16-byte chunk of a row, without bank conflicts between
   rows. */
DEVICE void store_pairs(u32 s_tile, u32 chunk, const u16 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 tile_row = lane_index() / 4 + i % 2 * 8;
        store_pair(s_tile + tile_row * EPILOGUE_ROW_BYTES + (chunk ^ tile_swizzle(tile_row)) * 16 + i / 2 * 8 +
                       lane_index() % 4 * 2,
                   pairs[i]);
    }
}

/* 32-bit pairs in the accumulator layout: two lanes fill a 16-byte chunk of a row. */
DEVICE void store_pairs(u32 s_tile, u32 first_chunk, const u64 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 tile_row = lane_index() / 4 + i % 2 * 8, chunk = first_chunk + i / 2 * 2 + lane_index() % 4 / 2;
        store_pair(s_tile + tile_row * EPILOGUE_ROW_BYTES + (chunk ^ tile_swizzle(tile_row)) * 16 +
                       lane_index() % 2 * 8,
                   pairs[i]);
    }
}

/* Epilogue operands for the sums of BLOCKS blocks of 64 rows, prefetched for AHEAD pairs of column octets, because
   loads take hundreds of clocks. */
template <class P, int BLOCKS> struct operands_ahead {
    static constexpr int NUMBERS = BLOCK_N / 16;            /* pairs of octets per block */
    static constexpr bool IS_CONVERTED = (sum_t)1 / 2 == 0; /* the sum is an integer */
    static constexpr int LEFT =
        SPARE_REGISTERS - 32 - (HAS_REDUCTIONS ? 16 : 0) - (FETCHED_WORDS > 4 || IS_CONVERTED ? 20 : 0);
    static constexpr int FIT = FETCHED_WORDS > 0 ? LEFT / FETCHED_WORDS : 1, AHEAD = FIT < 1 ? 1 : FIT > 5 ? 5 : FIT;
    using fetched = decltype(fetch(*(const P *)0, index(0), index(0), index(0)));
    fetched in[AHEAD][4];
    index z;
    i32 row, row_end, column; /* start of this warp's rows in the first block */

    DEVICE operands_ahead() {}
    DEVICE operands_ahead(const P &p, index z, i32 row, i32 row_end, i32 column)
        : z(z), row(row), row_end(row_end), column(column) {
#pragma unroll
        for (int number = 0; number < AHEAD; ++number)
            fetch_octets(p, number);
    }
    DEVICE void fetch_octets(const P &p, int number) {
#pragma unroll
        for (int i = 0; i < 4 && number < BLOCKS * NUMBERS; ++i) {
            const pair_coordinates to(row + number / NUMBERS * 64, column, number % NUMBERS, i);
            fetched *const r = in[number % AHEAD];
            const bool is_inside = to.row < row_end && to.column < (i32)p.columns;
            if (i % 2)
                r[i] = r[i - 1];
            if (is_inside)
                r[i] = i % 2 ? fetch_below(p, z, to.row, to.column, r[i]) : fetch(p, z, to.row, to.column);
        }
    }
};

/* Used if there are no reductions. */
struct no_reductions {
    template <class P, class F> DEVICE void add(const P &, index, i32, i32, int, int, const F &, int = 0) {}
    template <class P> DEVICE void add_tile(const P &, u32, int, bool) {}
    template <class P, class L> DEVICE void end_rows(const P &, const L &, i32) {}
    template <class P, class L> DEVICE void end_tile(const P &, const L &, int) {}
};

/* Converts the sums of two octets of columns of a warp's 16 rows, starting at row and column, to results in the
   epilogue tile. number: index of the pair of octets in the block. */
template <class P, int BLOCKS, class R>
DEVICE void stage_octets(const sum_t (&r_c)[BLOCK_N / 2], const P &p, operands_ahead<P, BLOCKS> &ahead, int block,
                         int number, i32 row, i32 column, u32 s_tile, R &reductions) {
    constexpr int PAIRS = EPILOGUE_TILE_N / 16, AHEAD = operands_ahead<P, BLOCKS>::AHEAD;
    const int octets = number % PAIRS, octet = block * (BLOCK_N / 16) + number;
    const u32 lane = lane_index();
    auto &in = ahead.in[octet % AHEAD];
    const u32 s_blocks =
        s_tile + lane % 16 * EPILOGUE_ROW_BYTES + ((octets * 2 + lane / 16) ^ tile_swizzle(lane % 16)) * 16;
    if constexpr (AUX_LOAD) {
        u32 r_aux[4];
        load_matrices(r_aux, s_blocks);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            set_aux_pair(in[i], r_aux[i]);
    }
    decltype(pair_of(evaluate(p, ahead.z, index(0), index(0), run<sum_t, RUN>{}, in[0]))) packed[4];
    [[maybe_unused]] u32 second[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const pair_coordinates at(row, column, octets, i);
        const int r = number * 8 + i * 2;
        const auto out = evaluate(p, ahead.z, at.row, at.column, run<sum_t, RUN>{{r_c[r], r_c[r + 1]}}, in[i]);
        packed[i] = pair_of(out);
        if constexpr (RESULTS == 2)
            second[i] = pair_of_second(out);
        reductions.add(p, ahead.z, at.row, at.column, r / 4, i % 2, out);
    }
    ahead.fetch_octets(p, octet + AHEAD);
    if constexpr (RESULT_BYTES == 2)
        store_matrices(s_blocks, packed);
    else
        store_pairs(s_tile, octets * RESULT_BYTES, packed); /* 16 columns are RESULT_BYTES chunks */
    if constexpr (RESULTS == 2)
        store_matrices(s_blocks + EPILOGUE_TILE_BYTES, second);
}

/* Stores a warp's epilogue tile to memory. line: address of the lane's row if rows are stored individually. */
template <class P> DEVICE void send_tile(const P &p, index z, i32 row, i32 column, u32 s_tile, u64 line) {
    if constexpr (STORES_BOXES) {
        publish_to_async_proxy();
        __syncwarp();
        if (lane_index() == 0) { /* TMA drops rows and columns outside the result */
            store_result(p, z, s_tile, column, row);
            if constexpr (RESULTS == 2)
                store_second(p, z, s_tile + EPILOGUE_TILE_BYTES, column, row);
            commit_stores();
        }
    } else {
        __syncwarp();
        scatter_tile(p, line, column, s_tile);
    }
}

/* Processes the warp's 16 rows of a block of sums; rows at row_end and beyond do not exist. */
template <class P, int BLOCKS, class R>
DEVICE void stage_block(const sum_t (&r_c)[BLOCK_N / 2], const P &p, operands_ahead<P, BLOCKS> &ahead, int block,
                        epilogue_cursor &to, R &reductions) {
    constexpr int PAIRS = EPILOGUE_TILE_N / 16;
    const u32 lane = lane_index();
    const index z = ahead.z;
    const i32 row = ahead.row + block * 64, row_end = ahead.row_end;
    i32 column = ahead.column;
    u64 line = 0;
    if constexpr (!STORES_BOXES)
        if (row + (i32)(lane % 16) < row_end)
            line = (u64)address_of_result(p, z, row + (i32)(lane % 16), 0);
    const bool has_row = STORES_BOXES ? row + (i32)(lane % 16) < row_end : line != 0;
#pragma unroll
    for (int tile = 0; tile < BLOCK_N / EPILOGUE_TILE_N; ++tile, column += EPILOGUE_TILE_N) {
        const u32 s_tile = to.advance();        /* [16, EPILOGUE_TILE_N], swizzled */
        wait_stores_read<EPILOGUE_TILES - 1>(); /* only lane 0 has stores, which finished long ago */
        __syncwarp();
#pragma unroll
        for (int octets = 0; octets < PAIRS; ++octets)
            stage_octets(r_c, p, ahead, block, tile * PAIRS + octets, row, column, s_tile, reductions);
        send_tile(p, z, row, column, s_tile, line);
        reductions.add_tile(p, s_tile, tile, has_row);
    }
}
