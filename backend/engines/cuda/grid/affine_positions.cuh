/* affine_positions: the coordinates of a grid's elements
   Params    SPATIAL ALIGN IS_WIDE real, and the arguments of emit_grid() in affine.c */

DEVICE i64 split(i64 &rest, const divisor &d) {
    const i64 quotient = IS_WIDE ? rest / (i64)d.value : (i64)divide((u32)rest, d), part = rest - quotient * d.value;
    rest = quotient;
    return part;
}

/* Splits a number into a position and what remains, stores (last, .., first, 1), and returns the offset in a grid. */
template <class P> DEVICE i64 find_position(real (&at)[SPATIAL + 1], const P &p, i64 &rest) {
    const divisor extents[3] = {p.out0, p.out1, p.out2};
    const i64 strides[3] = {p.grid_s0, p.grid_s1, p.grid_s2};
    i64 offset = 0;
#pragma unroll
    for (int d = SPATIAL - 1; d >= 0; d--) {
        const i64 i = split(rest, extents[d]), extent = extents[d].value;
        offset += i * strides[d];
        if constexpr (ALIGN)
            at[SPATIAL - 1 - d] = extent > 1 ? (real)(2 * i) / (real)(extent - 1) - 1 : (real)0;
        else
            at[SPATIAL - 1 - d] = (real)(2 * i + 1) / (real)extent - 1;
    }
    at[SPATIAL] = 1;
    return offset;
}
