/* auxiliary_load: AUX_LOAD: TMA loads a 16-bit epilogue operand that has the result's layout into the epilogue tiles
   from which the result is stored. There is then an epilogue tile for each part of a tile. The load is issued at the
   first step of the main loop. load_aux_box is generated. */

/* Loads the operand into a warp's epilogue tiles, whose previous results have long been stored. */
template <class P> DEVICE void load_aux(const P &p, const tile_coordinates &tile, u32 consumer_warp) {
    const u32 s_tiles = epilogue_tiles(consumer_warp), full = aux_arrived(consumer_warp);
    if (lane_index() == 0) {
        wait_stores_read<0>();
        arrive_expecting(full, EPILOGUE_TILES * MEMORY.epilogue_slot_bytes);
#pragma unroll 1
        for (int i = 0; i < EPILOGUE_TILES; ++i) {
            const i32 block = i / (BLOCK_N / EPILOGUE_TILE_N),
                      row = tile.row + (i32)(consumer_warp / 4 % TILE_GROUPS * GROUP_ROWS + consumer_warp % 4 * 16) +
                            block * 64;
            load_aux_box(p, tile.z, s_tiles + i * EPILOGUE_TILE_BYTES, full,
                         tile.column + i % (BLOCK_N / EPILOGUE_TILE_N) * EPILOGUE_TILE_N, row);
        }
    }
    __syncwarp();
}
