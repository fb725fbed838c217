/* SPDX-License-Identifier: Apache-2.0 */
/* The body of steps_f32.c and steps_f64.c, with sums and states of type `real`. No include guard: define real, TO_REAL,
   FROM_REAL, FIND_LOOP and RUN before including it, after the headers that it needs. */

enum { THREADED = 1 << 14 }; /* numbers of a step for which the formulas of a single part use all threads */

/* A run: bias and packed matrices, which all parts share. */
struct job {
    const struct recurrent *c;
    void *const *values;
    char *workspace;
    real *bias;
};

/* Sequences [first, first + count) and their memory: one row per sequence in each array. */
struct part {
    const struct job *job;
    const struct recurrent *c;
    int64_t first, count, longest; /* longest: steps of the longest sequence */
    real *state, *next, *other;    /* [P]: hidden state or its gradient, its successor, and a temporary row */
    real *cell, *whole, *rest;     /* [H]: cell state or its gradient, states before the projection, temporary rows */
    real *last;                    /* [H] */
    real *sums;                    /* [G H]: products of the step */
    real *row;                     /* [5 H]: operands of the step */
    void *product;                 /* workspace of products */
    int64_t step;
};

static const struct pointwise_parameters none = {0};

static void apply(int mode, int64_t count, real *x) { FIND_LOOP(mode)(count, x, x, x, x, &none); }

/* ---- Rows of operands -------------------------------------------------------------------------------------------- */

/* Address of a value, or NULL if it is absent or dead. */
static void *memory_of(const struct part *p, const struct operand *operand) {
    return operand->value < 0 ? NULL : p->job->values[operand->value];
}

/* Offset of elements [first, ..) of a sequence in a [T, B, ..] operand, or in a [B, ..] operand, where t is -1. */
static int64_t offset_of(const struct tensor *tensor, int64_t t, int64_t entry, int64_t first) {
    const int64_t *strides = tensor->strides.at;
    return t < 0 ? entry * strides[0] + first * strides[1] : t * strides[0] + entry * strides[1] + first * strides[2];
}

static int64_t step_of(const struct tensor *tensor) { return tensor->strides.at[tensor->dims.count - 1]; }

/* Loads elements of a row; zeros if the operand is absent. */
static void load(const struct part *p, const struct operand *operand, int64_t t, int64_t e, int64_t first,
                 int64_t count, real *row) {
    const struct tensor *tensor = operand->tensor;
    const void *memory = memory_of(p, operand);
    if (!memory) {
        memset(row, 0, (size_t)count * sizeof *row);
        return;
    }
    int64_t at = offset_of(tensor, t, p->first + e, first), step = step_of(tensor);
    if (step == 1)
        TO_REAL(row, (weftDataType_t)tensor->type, memory, at, count);
    for (int64_t i = 0; i < count && step != 1; i++)
        TO_REAL(row + i, (weftDataType_t)tensor->type, memory, at + i * step, 1);
}

static void store(const struct part *p, const struct operand *operand, int64_t t, int64_t e, int64_t first,
                  int64_t count, const real *row) {
    const struct tensor *tensor = operand->tensor;
    void *memory = memory_of(p, operand);
    if (!memory)
        return;
    int64_t at = offset_of(tensor, t, p->first + e, first), step = step_of(tensor);
    if (step == 1)
        FROM_REAL((weftDataType_t)tensor->type, memory, at, row, count);
    for (int64_t i = 0; i < count && step != 1; i++)
        FROM_REAL((weftDataType_t)tensor->type, memory, at + i * step, row + i, 1);
}

static int64_t length_of(const struct part *p, int64_t e) {
    const struct operand *lengths = &p->c->seq_len;
    if (lengths->value < 0)
        return p->c->sizes.steps;
    return dtype_load_i64((weftDataType_t)lengths->tensor->type, memory_of(p, lengths),
                          (p->first + e) * lengths->tensor->strides.at[0]);
}

static int64_t time_of(const struct part *p, int64_t e, int64_t k) {
    return p->c->op->is_reverse ? length_of(p, e) - 1 - k : k;
}

/* Steps after the end of a sequence are 0. */
static void clear(const struct part *p, const struct operand *operand, int64_t e) {
    if (!memory_of(p, operand))
        return;
    int64_t count = operand->tensor->dims.at[RECURRENCE_UNIT];
    for (int64_t t = length_of(p, e); t < p->c->sizes.steps; t++)
        for (int64_t i = 0; i < count; i += p->c->sizes.units) { /* `rest` has a row of H zeros */
            int64_t some = min64(p->c->sizes.units, count - i);
            memset(p->rest + e * p->c->sizes.units, 0, (size_t)some * sizeof(real));
            store(p, operand, t, e, i, some, p->rest + e * p->c->sizes.units);
        }
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

struct sink {
    real *at;
    int64_t ld;
};

static void store_sums(const void *sink, void *block, int64_t ld, int64_t batch, int64_t row, int rows, int64_t column,
                       int columns) {
    const struct sink *s = sink;
    (void)batch;
    for (int i = 0; i < rows; i++)
        memcpy(s->at + (row + i) * s->ld + column, (real *)block + i * ld, (size_t)columns * sizeof(real));
}

/* to[e] = from[e] times the weights or the projection, for all sequences of a part. */
static void multiply(const struct part *p, bool is_projection, const real *from, real *to) {
    const struct recurrent *c = p->c;
    struct gemm gemm = recurrent_product(c, is_projection);
    struct gemm_matrix b = recurrent_matrix(c, is_projection, p->job->values);
    struct gemm_matrix a = {.base = from,
                            .type = sizeof(real) == 8 ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT,
                            .stride = gemm.k,
                            .depth_stride = 1};
    struct sink sink = {to, gemm.n};
    gemm.m = p->count;
    gemm.a = &a, gemm.b = &b, gemm.sink = &sink;
    gemm.store = store_sums;
    gemm.packed_b = c->packs ? p->job->workspace + (is_projection ? c->projection_at : c->weight_at) : NULL;
    gemm_run(&gemm, c->threads, p->product);
}

/* Calls body(part, e) for each sequence that has the current step. */
static void for_each_entry(struct part *p, void (*body)(void *part, int64_t e)) {
    if (p->c->threads > 1 && p->count * p->c->sizes.gates * p->c->sizes.units >= THREADED)
        threads_for(p->count, body, p);
    else
        for (int64_t e = 0; e < p->count; e++)
            body(p, e);
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

WIDE static void add_rows(int64_t count, real *restrict sums, const real *restrict x, const real *restrict bias) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        sums[i] += x[i] + bias[i];
}

/* c = f c + i g; h = c, for tanh. */
WIDE static void update_cells(int64_t units, real *restrict c, real *restrict h, const real *restrict gates, real least,
                              real most) {
    INDEPENDENT
    for (int64_t u = 0; u < units; u++) {
        real now = gates[units + u] * c[u] + gates[u] * gates[2 * units + u];
        now = now < least ? least : now > most ? most : now;
        c[u] = now;
        h[u] = now;
    }
}

WIDE static void multiply_rows(int64_t count, real *restrict x, const real *restrict factors) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        x[i] *= factors[i];
}

/* r = x + r b, which is the argument of n in GRU. */
WIDE static void add_reset(int64_t units, real *restrict n, const real *restrict x, const real *restrict reset,
                           const real *restrict product) {
    INDEPENDENT
    for (int64_t u = 0; u < units; u++)
        n[u] = x[u] + reset[u] * product[u];
}

WIDE static void mix(int64_t units, real *restrict to, const real *restrict h, const real *restrict z,
                     const real *restrict n) {
    INDEPENDENT
    for (int64_t u = 0; u < units; u++)
        to[u] = (1 - z[u]) * n[u] + z[u] * h[u];
}

static real infinite(void) { return (real)__builtin_inf(); }

static void advance_lstm(struct part *p, int64_t e, int64_t t) {
    const struct recurrent *c = p->c;
    const int64_t units = c->sizes.units;
    real *sums = p->sums + e * 4 * units, *cell = p->cell + e * units, *whole = p->whole + e * units;
    bool clips = recurrence_clips(c->op);
    add_rows(4 * units, sums, p->row + e * 5 * units, p->job->bias);
    apply(WEFT_POINTWISE_SIGMOID_FWD, 2 * units, sums);
    apply(WEFT_POINTWISE_TANH_FWD, units, sums + 2 * units);
    apply(WEFT_POINTWISE_SIGMOID_FWD, units, sums + 3 * units);
    update_cells(units, cell, whole, sums, clips ? (real)c->op->clip_min : -infinite(),
                 clips ? (real)c->op->clip_max : infinite());
    apply(WEFT_POINTWISE_TANH_FWD, units, whole);
    multiply_rows(units, whole, sums + 3 * units);
    store(p, &c->gates, t, e, 0, 4 * units, sums);
    store(p, &c->gates, t, e, 4 * units, units, cell);
}

static void advance_gru(struct part *p, int64_t e, int64_t t) {
    const struct recurrent *c = p->c;
    const int64_t units = c->sizes.units;
    real *sums = p->sums + e * 3 * units, *x = p->row + e * 5 * units, *n = p->rest + e * units;
    const real *bias = p->job->bias;
    add_rows(2 * units, sums, x, bias);
    apply(WEFT_POINTWISE_SIGMOID_FWD, 2 * units, sums);
    memset(n, 0, (size_t)units * sizeof *n);
    add_rows(units, sums + 2 * units, n, bias + 2 * units);
    add_reset(units, n, x + 2 * units, sums, sums + 2 * units);
    apply(WEFT_POINTWISE_TANH_FWD, units, n);
    mix(units, p->whole + e * units, p->state + e * units, sums + units, n);
    store(p, &c->gates, t, e, 0, 2 * units, sums);
    store(p, &c->gates, t, e, 2 * units, units, n);
    store(p, &c->gates, t, e, 3 * units, units, sums + 2 * units);
}

static void advance_plain(struct part *p, int64_t e) {
    const struct recurrent *c = p->c;
    const int64_t units = c->sizes.units;
    real *whole = p->whole + e * units;
    static const struct pointwise_parameters relu = {.upper = __builtin_inf()};
    memcpy(whole, p->sums + e * units, (size_t)units * sizeof *whole);
    add_rows(units, whole, p->row + e * 5 * units, p->job->bias);
    if (c->op->mode == WEFT_RNN_MODE_TANH)
        apply(WEFT_POINTWISE_TANH_FWD, units, whole);
    else
        FIND_LOOP(WEFT_POINTWISE_RELU_FWD)(units, whole, whole, whole, whole, &relu);
}

static void advance_entry(void *part, int64_t e) {
    struct part *p = part;
    const struct recurrent *c = p->c;
    const struct recurrence_sizes *s = &c->sizes;
    if (p->step >= length_of(p, e))
        return;
    int64_t t = time_of(p, e, p->step);
    load(p, &c->x, t, e, 0, s->gates * s->units, p->row + e * 5 * s->units);
    if (c->op->mode == WEFT_RNN_MODE_LSTM)
        advance_lstm(p, e, t);
    else if (c->op->mode == WEFT_RNN_MODE_GRU)
        advance_gru(p, e, t);
    else
        advance_plain(p, e);
}

/* The new state of a sequence, from the rows of `next`. */
static void finish_entry(void *part, int64_t e) {
    struct part *p = part;
    const struct recurrence_sizes *s = &p->c->sizes;
    const real *from = p->c->projection.tensor ? p->next + e * s->projected : p->whole + e * s->units;
    if (p->step >= length_of(p, e))
        return;
    memcpy(p->state + e * s->projected, from, (size_t)s->projected * sizeof(real));
    store(p, &p->c->y, time_of(p, e, p->step), e, 0, s->projected, from);
}

static void run_forward(struct part *p) {
    const struct recurrent *c = p->c;
    const struct recurrence_sizes *s = &c->sizes;
    for (int64_t e = 0; e < p->count; e++) {
        load(p, &c->hx, -1, e, 0, s->projected, p->state + e * s->projected);
        load(p, &c->cx, -1, e, 0, s->units, p->cell + e * s->units);
    }
    for (p->step = 0; p->step < p->longest; p->step++) {
        multiply(p, false, p->state, p->sums);
        for_each_entry(p, advance_entry);
        if (c->projection.tensor)
            multiply(p, true, p->whole, p->next);
        for_each_entry(p, finish_entry);
    }
    for (int64_t e = 0; e < p->count; e++) {
        store(p, &c->hy, -1, e, 0, s->projected, p->state + e * s->projected);
        store(p, &c->cy, -1, e, 0, s->units, p->cell + e * s->units);
        clear(p, &c->y, e);
        clear(p, &c->gates, e);
    }
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* From the gates i, f, g, o and c: gradients of the products, of the cell state, and the states before the
   projection. */
WIDE static void retreat_cells(int64_t units, real *restrict d, real *restrict dc, real *restrict whole,
                               const real *restrict gates, const real *restrict squashed, const real *restrict before,
                               const real *restrict dh, real least, real most) {
    INDEPENDENT
    for (int64_t u = 0; u < units; u++) {
        real i = gates[u], f = gates[units + u], g = gates[2 * units + u], o = gates[3 * units + u];
        real raw = f * before[u] + i * g, both = dc[u] + dh[u] * o * (1 - squashed[u] * squashed[u]);
        both = raw < least || raw > most ? 0 : both;
        d[u] = both * g * i * (1 - i);
        d[units + u] = both * before[u] * f * (1 - f);
        d[2 * units + u] = both * i * (1 - g * g);
        d[3 * units + u] = dh[u] * squashed[u] * o * (1 - o);
        dc[u] = both * f;
        whole[u] = o * squashed[u];
    }
}

/* From the gates r, z, n and the recurrent product of n: gradients of x, the recurrent gradient of n, and the part of
   the previous state's gradient that is no product. */
WIDE static void retreat_gru(int64_t units, real *restrict d, real *restrict dn, real *restrict direct,
                             const real *restrict gates, const real *restrict before, const real *restrict dh) {
    INDEPENDENT
    for (int64_t u = 0; u < units; u++) {
        real r = gates[u], z = gates[units + u], n = gates[2 * units + u];
        real of_n = dh[u] * (1 - z) * (1 - n * n);
        d[u] = of_n * gates[3 * units + u] * r * (1 - r);
        d[units + u] = dh[u] * (before[u] - n) * z * (1 - z);
        d[2 * units + u] = of_n;
        dn[u] = of_n * r;
        direct[u] = dh[u] * z;
    }
}

WIDE static void retreat_tanh(int64_t units, real *restrict d, const real *restrict y, const real *restrict dh) {
    INDEPENDENT
    for (int64_t u = 0; u < units; u++)
        d[u] = dh[u] * (1 - y[u] * y[u]);
}

WIDE static void retreat_relu(int64_t units, real *restrict d, const real *restrict y, const real *restrict dh) {
    INDEPENDENT
    for (int64_t u = 0; u < units; u++)
        d[u] = y[u] > 0 ? dh[u] : 0;
}

/* The hidden state before the current step. */
static void load_previous(const struct part *p, int64_t e, real *row) {
    const struct recurrent *c = p->c;
    if (p->step)
        load(p, &c->y, time_of(p, e, p->step - 1), e, 0, c->sizes.projected, row);
    else
        load(p, &c->hx, -1, e, 0, c->sizes.projected, row);
}

/* Adds dy to the state's gradient, and stores what is known before the products. */
static void begin_retreat(void *part, int64_t e) {
    struct part *p = part;
    const struct recurrent *c = p->c;
    const int64_t projected = c->sizes.projected;
    real *state = p->state + e * projected, *other = p->other + e * projected;
    if (p->step >= length_of(p, e))
        return;
    int64_t t = time_of(p, e, p->step);
    if (memory_of(p, &c->dy)) {
        load(p, &c->dy, t, e, 0, projected, other);
        INDEPENDENT
        for (int64_t i = 0; i < projected; i++)
            state[i] += other[i];
    }
    store(p, &c->dprojected, t, e, 0, projected, state);
    load_previous(p, e, other);
    store(p, &c->previous, t, e, 0, projected, other);
}

static void retreat_entry(void *part, int64_t e) {
    struct part *p = part;
    const struct recurrent *c = p->c;
    const int64_t units = c->sizes.units, all = c->sizes.gates * units;
    real *sums = p->sums + e * all, *gates = p->row + e * 5 * units, *rest = p->rest + e * units;
    real *cell = p->cell + e * units, *last = p->last + e * units;
    const real *dh = (c->projection.tensor ? p->whole : p->state) + e * units;
    if (p->step >= length_of(p, e)) {
        memset(sums, 0, (size_t)all * sizeof *sums);
        return;
    }
    int64_t t = time_of(p, e, p->step);
    if (c->op->mode == WEFT_RNN_MODE_LSTM) {
        bool clips = recurrence_clips(c->op);
        load(p, &c->gates, t, e, 0, 5 * units, gates);
        apply(WEFT_POINTWISE_TANH_FWD, units, gates + 4 * units);
        if (p->step)
            load(p, &c->gates, time_of(p, e, p->step - 1), e, 4 * units, units, rest);
        else
            load(p, &c->cx, -1, e, 0, units, rest);
        retreat_cells(units, sums, cell, last, gates, gates + 4 * units, rest, dh,
                      clips ? (real)c->op->clip_min : -infinite(), clips ? (real)c->op->clip_max : infinite());
        store(p, &c->unprojected, t, e, 0, units, last);
    } else if (c->op->mode == WEFT_RNN_MODE_GRU) {
        load(p, &c->gates, t, e, 0, 4 * units, gates);
        retreat_gru(units, sums, last, rest, gates, p->other + e * units, dh);
        store(p, &c->dx, t, e, 0, all, sums);
        memcpy(sums + 2 * units, last, (size_t)units * sizeof *sums);
        store(p, &c->drecurrent, t, e, 0, all, sums);
        return;
    } else {
        load(p, &c->y, t, e, 0, units, gates);
        (c->op->mode == WEFT_RNN_MODE_TANH ? retreat_tanh : retreat_relu)(units, sums, gates, dh);
    }
    store(p, &c->dx, t, e, 0, all, sums);
}

static void finish_retreat(void *part, int64_t e) {
    struct part *p = part;
    const int64_t projected = p->c->sizes.projected;
    real *state = p->state + e * projected;
    if (p->step >= length_of(p, e))
        return;
    memcpy(state, p->next + e * projected, (size_t)projected * sizeof *state);
    if (p->c->op->mode == WEFT_RNN_MODE_GRU)
        for (int64_t i = 0; i < projected; i++)
            state[i] += p->rest[e * projected + i];
}

static void run_backward(struct part *p) {
    const struct recurrent *c = p->c;
    const struct recurrence_sizes *s = &c->sizes;
    for (int64_t e = 0; e < p->count; e++) {
        load(p, &c->dhy, -1, e, 0, s->projected, p->state + e * s->projected);
        load(p, &c->dcy, -1, e, 0, s->units, p->cell + e * s->units);
    }
    for (p->step = p->longest; p->step-- > 0;) {
        for_each_entry(p, begin_retreat);
        if (c->projection.tensor)
            multiply(p, true, p->state, p->whole);
        for_each_entry(p, retreat_entry);
        multiply(p, false, p->sums, p->next);
        for_each_entry(p, finish_retreat);
    }
    const struct operand *const stepwise[] = {&c->dx, &c->drecurrent, &c->previous, &c->dprojected, &c->unprojected};
    for (int64_t e = 0; e < p->count; e++) {
        store(p, &c->dhx, -1, e, 0, s->projected, p->state + e * s->projected);
        store(p, &c->dcx, -1, e, 0, s->units, p->cell + e * s->units);
        for (int i = 0; i < 5; i++)
            clear(p, stepwise[i], e);
    }
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static void run_part(void *context, int64_t index) {
    const struct job *job = context;
    const struct recurrent *c = job->c;
    const struct recurrence_sizes *s = &c->sizes;
    int64_t n = c->entries;
    struct part p = {.job = job, .c = c, .first = index * n};
    p.count = min64(n, s->batch - p.first);
    for (int64_t e = 0; e < p.count; e++)
        p.longest = max64(p.longest, length_of(&p, e));
    char *memory = job->workspace + c->parts_at + index * c->part_bytes;
    p.product = memory;
    p.state = (real *)(void *)(memory + c->product_bytes);
    p.next = p.state + n * s->projected, p.other = p.next + n * s->projected, p.cell = p.other + n * s->projected;
    p.whole = p.cell + n * s->units, p.rest = p.whole + n * s->units, p.last = p.rest + n * s->units;
    p.sums = p.last + n * s->units, p.row = p.sums + n * s->gates * s->units;
    (c->is_backward ? run_backward : run_forward)(&p);
}

void RUN(const struct recurrent *c, void *const *values, char *workspace) {
    struct job job = {c, values, workspace, (real *)(void *)(workspace + c->bias_at)};
    const int64_t all = c->sizes.gates * c->sizes.units;
    memset(job.bias, 0, (size_t)all * sizeof(real));
    for (int64_t i = 0; i < all && c->bias.value >= 0; i++)
        TO_REAL(job.bias + i, (weftDataType_t)c->bias.tensor->type, values[c->bias.value],
                i * c->bias.tensor->strides.at[0], 1);
    for (int i = 0; c->packs && i < (c->projection.tensor ? 2 : 1); i++) {
        struct gemm gemm = recurrent_product(c, i == 1);
        struct gemm_matrix b = recurrent_matrix(c, i == 1, values);
        gemm.b = &b;
        gemm_prepack(&gemm, true, workspace + (i == 1 ? c->projection_at : c->weight_at));
    }
    threads_for(c->parts, run_part, &job);
}
