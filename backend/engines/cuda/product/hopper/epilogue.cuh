/* epilogue: processes a tile with complete sums: staged through shared memory (IS_STAGED: one result of 8 to 32 bits,
   or two of 16), or directly from registers
   Requires  IS_STAGED HAS_PHASES HAS_OVERRIDES HAS_GROUPS, and the requirements of the two included files */
#include "product/hopper/epilogue_direct.cuh"

/* Operands that are loaded before the epilogue: all of them before the tile's first products if registers suffice, or
   some of them while the last products are executing. */
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

/* Processes a warpgroup's rows of a tile, starting at first_row. */
template <class P, class R>
DEVICE void store_tile(accumulators &r_c, const P &p, const tile_scheduler &at, u32 consumer_warp, i32 first_row,
                       i32 steps, epilogue_operands<P> &operands, epilogue_cursor &to, R &reductions) {
#pragma unroll
    for (int block = 0; block < ROW_BLOCKS; ++block) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2 && (HAS_PHASES || HAS_OVERRIDES); ++i)
            if (steps <= 0)
                r_c[block][i] = 0; /* no step has initialised the sums */
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

/* Waits after the last tile: the block must not exit while stores still read its shared memory. */
DEVICE void end_epilogue() {
    if constexpr (IS_STAGED)
        wait_stores_read<0>();
}
