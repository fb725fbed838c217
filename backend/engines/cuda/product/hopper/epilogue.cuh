/* epilogue: what becomes of a tile whose sums are complete: staged through shared memory (IS_STAGED: one result of 8 to
   32 bits, or two of 16), or directly from registers
   Demands   IS_STAGED HAS_PHASES HAS_OVERRIDES HAS_GROUPS, and what the two files do */
#include "product/hopper/epilogue_direct.cuh"

/* What is read ahead of the epilogue: before the first products of the tile where all of it fits, or while the last
   ones are under way. */
template <class P, bool STAGED = IS_STAGED> struct epilogue_operands {
    operands_ahead<P, ROW_BLOCKS> ahead;
    DEVICE void read_first(const P &, const tile_coordinates &, i32) {}
    DEVICE void read_ahead(const P &p, const tile_coordinates &at, i32 warp_row) {
        ahead = operands_ahead<P, ROW_BLOCKS>(p, at.z, warp_row, at.row_end, at.column);
    }
};
template <class P> struct epilogue_operands<P, false> {
    piece_operands<P> pieces;
    DEVICE void read_first(const P &p, const tile_coordinates &at, i32 row) {
        if constexpr (READS_TILE)
            pieces.read(p, at, row, 0);
    }
    DEVICE void read_ahead(const P &, const tile_coordinates &, i32) {}
};

DEVICE i32 first_row_of(const tile_coordinates &at, u32 consumer_warp) {
    return at.row + consumer_warp / 4 % TILE_GROUPS * GROUP_ROWS;
}

/* A warpgroup's rows of a tile, from first_row on. */
template <class P, class R>
DEVICE void store_tile(accumulators &r_c, const P &p, const tile_scheduler &at, u32 consumer_warp, i32 first_row,
                       i32 steps, epilogue_operands<P> &operands, epilogue_cursor &to, R &reductions) {
#pragma unroll
    for (int block = 0; block < ROW_BLOCKS; ++block) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2 && (HAS_PHASES || HAS_OVERRIDES); ++i)
            if (steps <= 0)
                r_c[block][i] = 0; /* nothing is summed */
        const i32 row = first_row + block * 64;
        if constexpr (HAS_OVERRIDES)
            clear_outside(r_c[block], at, row);
        if (HAS_GROUPS && row >= at.row_end)
            continue;
        if constexpr (IS_STAGED)
            stage_block(r_c[block], p, operands.ahead, block, to, reductions);
        else
            store_block(r_c[block], p, at, row, operands.pieces, reductions);
        reductions.end_rows(p, at, row + consumer_warp % 4 * 16);
    }
    reductions.end_tile(p, at, consumer_warp / 4);
}

/* After the last tile: shared memory must outlive the stores that read it. */
DEVICE void end_epilogue() {
    if constexpr (IS_STAGED)
        wait_stores_read<0>();
}
