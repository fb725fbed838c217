/* grouped_sm90: offsets of the operands and of the result of a mixture of experts for product_sm90.cuh.
   Forward   rows of tiles are the tiles of tile_list.cuh, each as high as a cluster; columns are those of the result
   Gradient  of the weights: a batch entry is an expert, whose rows are k
   Ends      a tile must not write rows of the next expert, and k must end where the expert does. So maps of ragged rows
             count them twice, with one stride. Coordinate y ends at group_rows, which corresponds to the end of the
             expert or the tile; after it, reads return zeros and writes are dropped. Coordinate z is that end, and
             moves it to its position in memory. The map starts group_rows before the tensor. A box that is entirely
             outside would be read from the start of the map, in memory that may not exist: another box is read instead,
             whose products are dropped as well
   Params    FORWARD SCATTERS STORES_BOXES !A_IS_MN_MAJOR !B_IS_MN_MAJOR CLUSTER BLOCK_M RUN y_t. Templates, so that
             fields that a direction lacks are not looked up */

template <class P> DEVICE void find_group(const P &p, tile_coordinates &at) {
    if constexpr (FORWARD) {
        constexpr i32 HEIGHT = BLOCK_M * CLUSTER;
        const group_tile tile = p.list[at.row / HEIGHT];
        at.row = (i32)tile.first + at.row % HEIGHT;
        at.z = at.row_end = (i32)tile.first + tile.rows;
        at.entry[0] = tile.expert;
        at.phase_steps = tile.expert < 0 || tile.rows == 0 ? 0 : (i32)p.steps;
    } else {
        const i32 first = (i32)group_start(p, at.z), until = (i32)group_start(p, (i64)at.z + 1),
                  rows = until > first ? until - first : 0;
        at.entry[0] = (i32)p.group_rows - rows;
        at.entry[1] = first + rows;
        at.phase_steps = (rows + BLOCK_K - 1) / BLOCK_K;
    }
}
DEVICE void find_entry(const arguments &p, tile_coordinates &at) { find_group(p, at); }

DEVICE void load_a(const arguments &p, const tile_coordinates &at, const k_cursor &k, i32 outer, u32 dst, u32 full) {
    if constexpr (!FORWARD)
        load_box(dst, p.a_map, full, outer < (i32)p.rows ? outer : 0, at.entry[0] + k.c, at.entry[1]);
    else if constexpr (!A_IS_MN_MAJOR)
        load_box(dst, p.a_map, full, k.c, outer);
    else
        load_box(dst, p.a_map, full, outer, k.c);
}

/* All blocks of a cluster belong to one expert. */
DEVICE void load_b(const arguments &p, const tile_coordinates &at, const k_cursor &k, i32 outer, u32 dst, u32 full) {
    if (!FORWARD && outer >= (i32)p.columns)
        outer = 0;
    const i32 x = !B_IS_MN_MAJOR ? k.c : outer,
              y = !B_IS_MN_MAJOR ? outer
                  : FORWARD      ? k.c
                                 : at.entry[0] + k.c,
              z = at.entry[FORWARD ? 0 : 1];
    if constexpr (CLUSTER > 1)
        share_box((1 << CLUSTER) - 1, dst, p.b_map, full, x, y, z);
    else
        load_box(dst, p.b_map, full, x, y, z);
}

/* ---- Epilogue ---- */

struct fetched {};
struct results {
    run<y_t, RUN> y;
};

DEVICE fetched fetch(const arguments &, index, index, index) { return {}; }
DEVICE fetched fetch_below(const arguments &, index, index, index, fetched in) { return in; }
constexpr int FETCHED_WORDS = 0;
DEVICE results evaluate(const arguments &, index, index, index, const run<sum_t, RUN> &sum, const fetched &) {
    results out;
#pragma unroll
    for (int e = 0; e < RUN; e++)
        out.y.at[e] = convert<y_t>(sum.at[e]);
    return out;
}
DEVICE u32 pair_of(const results &out) { return *(const u32 *)&out.y; }

template <class P> DEVICE y_t *address_of_result(const P &p, index z, index row, index column) {
    const i64 line = FORWARD ? find_row(p, (i64)row) : row;
    return line < 0 ? nullptr : p.y + (FORWARD ? 0 : z * p.y_entry) + line * p.y_line + column;
}
template <class P>
DEVICE void epilogue(const P &p, index z, index row, index column, const run<sum_t, RUN> &sum, const fetched &in) {
    y_t *to = address_of_result(p, z, row, column);
    if (to)
        store_run<y_t, RUN>(to, evaluate(p, z, row, column, sum, in).y);
}
template <class P> DEVICE void store_result(const P &p, index z, u32 src, i32 column, i32 row) {
    store_box(p.c_map, src, column, FORWARD ? row + (i32)p.group_rows - z : row, z);
}
