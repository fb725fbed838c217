/* scales: the layout of block scales in tiles of 128 rows and 4 columns, 512 elements each. */

/* tiles: number of tiles side by side. */
DEVICE i64 tile_offset(u32 row, u32 column, i64 tiles) {
    return ((i64)(row / 128) * tiles + column / 4) * 512 + row % 32 * 16 + row / 32 % 4 * 4 + column % 4;
}
