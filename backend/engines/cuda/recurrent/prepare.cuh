/* recurrent_prepare: packs the matrices of a recurrent layer for steps.cuh, and initializes its states and counters
   Tile      a thread stores one element at a time, adjacent threads adjacent elements
   Params    THREADS GATES IS_BACKWARD sum_t matrix_t and the operands' types */

#define LOAD2(name, b, i) (has_##name ? as<sum_t>::of(p.name[(b) * p.name##_0 + (i) * p.name##_1]) : (sum_t)0)

template <class F> DEVICE void for_all(i64 count, const F &body) {
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < count; i += (i64)gridDim.x * THREADS)
        body(i);
}

/* Forward tiles contain the rows of all gates of a unit. Backward multiplies by the transposed matrices. */
DEVICE matrix_t weight_of(const arguments &p, i64 row, i64 k) {
    const i64 rows = IS_BACKWARD ? p.projected : GATES * p.units, depth = IS_BACKWARD ? GATES * p.units : p.projected;
    if (row >= rows || k >= depth)
        return from<matrix_t>::number((sum_t)0);
    const i64 at = IS_BACKWARD ? k * p.weight_0 + row * p.weight_1
                               : (row % GATES * p.units + row / GATES) * p.weight_0 + k * p.weight_1;
    return from<matrix_t>::number(as<sum_t>::of(p.weight[at]));
}

DEVICE matrix_t projection_of(const arguments &p, i64 row, i64 k) {
    const i64 r = IS_BACKWARD ? k : row, u = IS_BACKWARD ? row : k;
    return from<matrix_t>::number(r < p.projected && u < p.units ? LOAD2(projection, r, u) : (sum_t)0);
}

extern "C" __global__ void __launch_bounds__(THREADS) recurrent_prepare(const __grid_constant__ arguments p) {
    for_all(p.groups, [&](i64 i) { ((u32 *)p.counters)[i] = 0; });
    for_all(p.weight_rows * p.weight_row,
            [&](i64 i) { ((matrix_t *)p.weights)[i] = weight_of(p, i / p.weight_row, i % p.weight_row); });
    if constexpr (has_projection)
        for_all(p.projection_rows * p.projection_row, [&](i64 i) {
            ((matrix_t *)p.projections)[i] = projection_of(p, i / p.projection_row, i % p.projection_row);
        });
    /* Two sets of states, of which the first is the initial one; the gradients of products begin with 0. */
    for_all(2 * p.entries * p.state_row, [&](i64 i) {
        const i64 entry = i / p.state_row, k = i % p.state_row;
        const bool is_inside = !IS_BACKWARD && entry < p.batch && k < p.projected;
        p.states[i] = is_inside ? LOAD2(hx, entry, k) : (sum_t)0;
    });
    if constexpr (has_projection)
        for_all(p.entries * p.other_row, [&](i64 i) { p.others[i] = 0; });
    for_all(p.batch * p.units, [&](i64 i) { p.cells[i] = LOAD2(cx, i / p.units, i % p.units); });
    if constexpr (IS_BACKWARD)
        for_all(p.batch * p.projected, [&](i64 i) { p.direct[i] = LOAD2(dhy, i / p.projected, i % p.projected); });
}
