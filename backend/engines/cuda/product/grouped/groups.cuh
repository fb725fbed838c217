/* groups: the rows of experts according to first_token_offset on the device. Rows before the first expert's rows are a
   separate group, -1, which has no weight.
   Params    GATHERS SCATTERS LEFT_OUT: 1 if the first expert has no offset; its rows then start at row 0 */

/* A tile of rows of one group; rows 0: no tile. */
struct group_tile {
    i64 first;
    i32 rows, expert;
};

/* Returns the first row of a group, or the end of the last one, clamped to 0 .. group_rows for invalid offsets. */
template <class P> DEVICE i64 group_start(const P &p, i64 expert) {
    if (expert < LEFT_OUT)
        return 0;
    const i64 offset = (expert - LEFT_OUT) * p.offset_stride;
    const i64 first = expert < p.experts ? (i64)to_integer(*(p.offset + offset)) : p.group_rows;
    return first < 0 ? 0 : first > p.group_rows ? p.group_rows : first;
}

/* Returns the row of the result for the product of a row, or -1. */
template <class P> DEVICE i64 find_row(const P &p, i64 row) {
    if constexpr (SCATTERS) {
        const i64 token = to_integer(*(p.token_index + row * p.token_index_stride)),
                  k = to_integer(*(p.token_ks + row * p.token_ks_stride));
        const bool fits = token >= 0 && token < p.group_rows && k >= 0 && k < p.top_k;
        return fits && token * p.top_k + k < p.group_rows ? token * p.top_k + k : -1;
    }
    return row;
}

/* The token that is the source of a row, or -1 for a row of zeros. */
template <class P> DEVICE i64 find_token(const P &p, i64 row) {
    if constexpr (GATHERS) {
        const i64 token = to_integer(*(p.token_index + row * p.token_index_stride));
        return token >= 0 && token < p.tokens ? token : -1;
    }
    return row;
}
