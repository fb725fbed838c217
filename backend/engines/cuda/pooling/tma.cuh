/* tma: the results of a block whose pixels TMA loads in boxes: `below` x `along` patches of PATCH1 x PATCH2 results, of
   LANES vectors of channels. A box contains all pixels that they read, `columns_seen` per row. */

/* Elements from one pixel of a box to the next. */
constexpr int PIXEL = LANES * RUN;

/* The block's first result, and the first of its channels. */
struct box_tile {
    u32 image;
    length_t column, row;
    i32 slice;
};
DEVICE box_tile tile_of_block(const arguments &p) {
    u32 rest = blockIdx.x;
    const length_t column = (length_t)split(rest, p.tiles) * (length_t)p.tile_columns;
    const i32 slice = (i32)split(rest, p.slices) * PIXEL;
    const length_t row = (length_t)split(rest, p.bands) * (length_t)p.tile_rows;
    return {rest, column, row, slice};
}

/* A thread's patch: its first result and channel, relative to the block's. */
struct box_patch {
    length_t right, down;
    i32 lane;
    u32 row; /* row of patches; surplus threads get rows after the last one */
};
DEVICE box_patch patch_of_thread(const arguments &p) {
    u32 rest = threadIdx.x / LANES;
    const i32 lane = (i32)(threadIdx.x % LANES) * RUN;
    const length_t right = (length_t)split(rest, p.along) * PATCH2;
    return {right, (length_t)rest * PATCH1, lane, rest};
}
