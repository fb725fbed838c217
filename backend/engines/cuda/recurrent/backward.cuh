/* recurrent_backward: gradients through all steps of one direction of a recurrent layer, in one launch
                                                                                             any float types, any chip
   Formula   MODE 0 RELU, 1 TANH, 2 LSTM, 3 GRU, see graph/ops/recurrence.c
   Step      from the last to the first: products of the next step's gradients with the transposed weights, and the
             unit's formula, in the lane of each unit and sequence; with a projection, meet, then products with it,
             before the formula; meet
   Ends      a sequence that has no step k carries its gradient in `direct`, and adds nothing to products
   Params    those of steps.cuh */
#include "recurrent/steps.cuh"

/* A unit's part of a step, from the gradient dh of its state. carry: the gradient before dy was added. */
DEVICE void retreat(const arguments &p, sum_t *to, sum_t dh, sum_t carry, bool runs, i32 k, i32 length, i64 entry,
                    i64 u) {
    const i64 t = time_of(k, length), before = k ? time_of(k - 1, length) : 0;
    sum_t d[GATES] = {}, direct = runs ? (sum_t)0 : carry, dc = p.cells[entry * p.units + u], whole = 0;
    if (MODE == LSTM && runs) {
        const sum_t i = LOAD3(gates, t, entry, u), f = LOAD3(gates, t, entry, p.units + u),
                    g = LOAD3(gates, t, entry, 2 * p.units + u), o = LOAD3(gates, t, entry, 3 * p.units + u),
                    squashed = tanh(LOAD3(gates, t, entry, 4 * p.units + u));
        const sum_t c = k ? LOAD3(gates, before, entry, 4 * p.units + u) : LOAD2(cx, entry, u);
        dc += dh * o * (1 - squashed * squashed);
        if constexpr (CLIPS) {
            const sum_t raw = f * c + i * g;
            if (raw < (sum_t)__longlong_as_double(p.clip_min) || raw > (sum_t)__longlong_as_double(p.clip_max))
                dc = 0;
        }
        d[0] = dc * g * i * (1 - i);
        d[1 % GATES] = dc * c * f * (1 - f);
        d[2 % GATES] = dc * i * (1 - g * g);
        d[3 % GATES] = dh * squashed * o * (1 - o);
        dc *= f;
        whole = o * squashed;
    } else if (MODE == GRU && runs) {
        const sum_t r = LOAD3(gates, t, entry, u), z = LOAD3(gates, t, entry, p.units + u),
                    n = LOAD3(gates, t, entry, 2 * p.units + u), product = LOAD3(gates, t, entry, 3 * p.units + u);
        const sum_t h = k ? LOAD3(y, before, entry, u) : LOAD2(hx, entry, u);
        const sum_t dn = dh * (1 - z) * (1 - n * n);
        d[0] = dn * product * r * (1 - r);
        d[1 % GATES] = dh * (h - n) * z * (1 - z);
        d[2 % GATES] = dn;
        direct = dh * z;
        whole = r; /* the factor of dn in the gradient of the recurrent product */
    } else if (runs) {
        const sum_t y = LOAD3(y, t, entry, u);
        d[0] = MODE == RELU ? (y > 0 ? dh : (sum_t)0) : dh * (1 - y * y);
    }
#pragma unroll
    for (int g = 0; g < GATES; g++) {
        STORE3(dx, t, entry, g * p.units + u, d[g]);
        if (MODE == GRU && g == 2)
            d[g] *= whole;
        STORE3(drecurrent, t, entry, g * p.units + u, d[g]);
        to[entry * p.state_row + g * p.units + u] = d[g];
    }
    STORE3(unprojected, t, entry, u, whole);
    if constexpr (!has_projection)
        p.direct[entry * p.projected + u] = direct;
    p.cells[entry * p.units + u] = dc;
    if (k == 0) {
        STORE2(dcx, entry, u, dc);
    }
}

/* The gradient of an element of the hidden state after step k; of the initial one, if k is -1. */
DEVICE void run_row(const arguments &p, const matrix_t *weights, const sum_t *now, sum_t *to, i32 k, i64 first_row,
                    i64 end, i64 first) {
    tile<4> products;
    products.multiply(weights, p.weight_row, now + first * p.state_row, p.state_row);
    const int lane = threadIdx.x % 32;
    const i64 row = first_row + lane / COLUMNS, entry = first + lane % COLUMNS;
    if (lane >= 4 * COLUMNS || row >= end || entry >= p.batch)
        return;
    const sum_t carry = products.of(lane / COLUMNS, lane % COLUMNS) + p.direct[entry * p.projected + row];
    if (k < 0) {
        STORE2(dhx, entry, row, carry);
        return;
    }
    const i32 length = length_of(p, entry);
    const i64 t = time_of(k, length);
    const bool runs = k < length;
    const sum_t dh = runs ? carry + LOAD3(dy, t, entry, row) : (sum_t)0;
    STORE3(dprojected, t, entry, row, dh);
    if constexpr (has_previous) {
        const sum_t h = k ? LOAD3(y, time_of(k - 1, length), entry, row) : LOAD2(hx, entry, row);
        AT3(previous, t, entry, row) = from<previous_t>::number(runs ? h : (sum_t)0);
    }
    if constexpr (has_projection) {
        p.others[entry * p.other_row + row] = dh;
        p.direct[entry * p.projected + row] = runs ? (sum_t)0 : carry;
    } else {
        retreat(p, to, dh, carry, runs, k, length, entry, row);
    }
}

DEVICE void run_unit(const arguments &p, sum_t *to, i32 k, i64 first_unit, i64 end, i64 first) {
    tile<4> products;
    products.multiply((const matrix_t *)p.projections + first_unit * p.projection_row, p.projection_row,
                      p.others + first * p.other_row, p.other_row);
    const int lane = threadIdx.x % 32;
    const i64 u = first_unit + lane / COLUMNS, entry = first + lane % COLUMNS;
    if (lane >= 4 * COLUMNS || u >= end || entry >= p.batch)
        return;
    const i32 length = length_of(p, entry);
    retreat(p, to, products.of(lane / COLUMNS, lane % COLUMNS), 0, k < length, k, length, entry, u);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) recurrent_backward(const __grid_constant__ arguments p) {
    part own = part_of(p);
    const matrix_t *weights = load_weights(p, own.first_row, (own.rows + 3) / 4 * 4);
    const i64 all = p.entries * p.state_row;
    for (i32 k = (i32)p.steps - 1; k >= -1; k--) {
        const sum_t *now = p.states + (k + 1) % 2 * all;
        sum_t *to = p.states + (k & 1) * all;
        for_each_tile(own, own.rows, 4, [&](i32 row, i64 first) {
            run_row(p, weights + row * p.weight_row, now, to, k, own.first_row + row, own.first_row + own.rows, first);
        });
        if (k < 0)
            break;
        if constexpr (has_projection) {
            meet(own, p);
            for_each_tile(own, own.units, 4, [&](i32 unit, i64 first) {
                run_unit(p, to, k, own.first_unit + unit, own.first_unit + own.units, first);
            });
        }
        meet(own, p);
    }
}
