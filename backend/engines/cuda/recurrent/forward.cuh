/* recurrent_forward: all steps of one direction of a recurrent layer, in one launch       any float types, any chip
   Formula   MODE 0 RELU, 1 TANH, 2 LSTM, 3 GRU, see graph/ops/recurrence.c
   Step      products of all units' gates with the state, and the unit's formula, in the lane of each sequence; with a
             projection, meet, then its products; meet
   Params    those of steps.cuh */
#include "recurrent/steps.cuh"

DEVICE sum_t clip(const arguments &p, sum_t c) {
    if constexpr (!CLIPS)
        return c;
    const sum_t least = (sum_t)__longlong_as_double(p.clip_min), most = (sum_t)__longlong_as_double(p.clip_max);
    return c < least ? least : c > most ? most : c;
}

/* The unit's new state from the products of the input and of the state; stores the gates. */
DEVICE sum_t advance(const arguments &p, const sum_t (&x)[GATES], const sum_t (&r)[GATES], sum_t h, sum_t &c, i64 t,
                     i64 entry, i64 u) {
    if constexpr (MODE == LSTM) {
        const sum_t i = logistic(x[0] + r[0]), f = logistic(x[1] + r[1]), g = tanh(x[2] + r[2]),
                    o = logistic(x[3] + r[3]);
        c = clip(p, f * c + i * g);
        STORE3(gates, t, entry, u, i);
        STORE3(gates, t, entry, p.units + u, f);
        STORE3(gates, t, entry, 2 * p.units + u, g);
        STORE3(gates, t, entry, 3 * p.units + u, o);
        STORE3(gates, t, entry, 4 * p.units + u, c);
        return o * tanh(c);
    } else if constexpr (MODE == GRU) {
        const sum_t reset = logistic(x[0] + r[0]), z = logistic(x[1] + r[1]), n = tanh(x[2] + reset * r[2]);
        STORE3(gates, t, entry, u, reset);
        STORE3(gates, t, entry, p.units + u, z);
        STORE3(gates, t, entry, 2 * p.units + u, n);
        STORE3(gates, t, entry, 3 * p.units + u, r[2]);
        return (1 - z) * n + z * h;
    } else if constexpr (MODE == RELU) {
        const sum_t sum = x[0] + r[0];
        return sum <= 0 ? (sum_t)0 : sum;
    } else {
        return tanh(x[0] + r[0]);
    }
}

/* Stores a step's element of the hidden state, for the next step and for the user. */
DEVICE void store_state(const arguments &p, sum_t *next, sum_t h, bool runs, i32 k, i64 t, i64 entry, i64 i) {
    next[entry * p.state_row + i] = h;
    STORE3(y, t, entry, i, runs ? h : (sum_t)0);
    if (k == p.steps - 1) {
        STORE2(hy, entry, i, h);
    }
}

DEVICE void run_unit(const arguments &p, const matrix_t *weights, const sum_t *now, sum_t *next, i32 k, i64 u,
                     i64 first) {
    const int lane = threadIdx.x % 32;
    const i64 entry = first + lane;
    const bool has_entry = lane < COLUMNS && entry < p.batch;
    /* Loaded before the products, which take longer. */
    sum_t x[GATES] = {}, r[GATES], h = 0, c = 0;
    i32 length = 0;
    i64 t = 0;
    if (has_entry) {
        length = length_of(p, entry), t = time_of(k, length);
        h = u < p.projected ? now[entry * p.state_row + u] : (sum_t)0;
        c = p.cells[entry * p.units + u];
#pragma unroll
        for (int g = 0; g < GATES; g++)
            x[g] = LOAD3(x, t, entry, g * p.units + u);
    }
    tile<GATES> products;
    products.multiply(weights, p.weight_row, now + first * p.state_row, p.state_row);
    if (!has_entry)
        return;
#pragma unroll
    for (int g = 0; g < GATES; g++)
        r[g] = products.of(g, lane) + LOAD1(bias, g * p.units + u);
    const bool runs = k < length;
    sum_t m = h;
    if (runs)
        m = advance(p, x, r, h, c, t, entry, u);
    else if constexpr (has_gates)
        for (int i = 0; i < SAVED; i++)
            AT3(gates, t, entry, i * p.units + u) = from<gates_t>::number((sum_t)0);
    p.cells[entry * p.units + u] = c;
    if (k == p.steps - 1) {
        STORE2(cy, entry, u, c);
    }
    if constexpr (has_projection)
        p.others[entry * p.other_row + u] = m;
    else
        store_state(p, next, m, runs, k, t, entry, u);
}

DEVICE void project(const arguments &p, const sum_t *now, sum_t *next, i32 k, i64 first_row, i64 end, i64 first) {
    tile<4> products;
    products.multiply((const matrix_t *)p.projections + first_row * p.projection_row, p.projection_row,
                      p.others + first * p.other_row, p.other_row);
    const int lane = threadIdx.x % 32;
    const i64 row = first_row + lane / COLUMNS, entry = first + lane % COLUMNS;
    if (lane >= 4 * COLUMNS || row >= end || entry >= p.batch)
        return;
    const i32 length = length_of(p, entry);
    const bool runs = k < length;
    const sum_t h = runs ? products.of(lane / COLUMNS, lane % COLUMNS) : now[entry * p.state_row + row];
    store_state(p, next, h, runs, k, time_of(k, length), entry, row);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) recurrent_forward(const __grid_constant__ arguments p) {
    part own = part_of(p);
    const matrix_t *weights = load_weights(p, (i64)own.first_unit * GATES, (i64)own.units * GATES);
    const i64 all = p.entries * p.state_row;
    for (i32 k = 0; k < (i32)p.steps; k++) {
        const sum_t *now = p.states + k % 2 * all;
        sum_t *next = p.states + (k + 1) % 2 * all;
        for_each_tile(own, own.units, 1, [&](i32 unit, i64 first) {
            run_unit(p, weights + unit * GATES * p.weight_row, now, next, k, own.first_unit + unit, first);
        });
        if constexpr (has_projection) {
            meet(own, p);
            for_each_tile(own, own.rows, 4, [&](i32 row, i64 first) {
                project(p, now, next, k, own.first_row + row, own.first_row + own.rows, first);
            });
        }
        if (k < (i32)p.steps - 1)
            meet(own, p);
    }
}
