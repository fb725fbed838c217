/* element_scales: scales that multiply the elements of an operand as they are loaded: one per row, or one per block of
   32 elements along its rows or along the sequence.
   Params    for each operand, NAME_scales(arguments, batch, head), which returns element_scales or no_scales */

/* Scales of a head. F::ROWS x F::COLUMNS: extents of a block, one of which is 1. F::IS_TILED: stored in tiles of 128 x
   4, whose columns are the blocks; a row has `row_step` tiles. */
template <class F, class T> struct element_scales {
    static constexpr bool IS_BY_ELEMENT = F::ROWS > 1; /* adjacent elements of a row have different scales */
    const T *at;
    i64 row_step, column_step;

    DEVICE sum_t of(int row, int column) const {
        const u32 r = row / F::ROWS, c = column / F::COLUMNS;
        if constexpr (F::IS_TILED) {
            const u32 line = F::ROWS > 1 ? c : r, block = F::ROWS > 1 ? r : c;
            const i64 tile = line / 128 * row_step + block / 4;
            return as<sum_t>::of(at[tile * 512 + line % 32 * 16 + line / 32 % 4 * 4 + block % 4]);
        } else {
            return as<sum_t>::of(at[r * row_step + c * column_step]);
        }
    }
};
template <class F, class T> DEVICE element_scales<F, T> scales_at(F, const T *at, i64 row_step, i64 column_step) {
    return element_scales<F, T>{at, row_step, column_step};
}
template <class P> DEVICE no_scales scales_at(const P &) { return no_scales{}; }
