/* SPDX-License-Identifier: Apache-2.0 */
/* Random formulas over matrices: their tensors and operations, their values in double precision, and memory of exactly
   the size that a plan may access. This header does not use descriptors. */
#ifndef WEFT_TESTS_FORMULA_H
#define WEFT_TESTS_FORMULA_H

#include "harness.h"

#include <math.h>

enum { VALUES_MAX = 128, EXTENTS = 4, DEPTH_MAX = 5 };

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

static uint64_t random_state;

/* SplitMix64: adjacent seeds give unrelated sequences. */
static inline uint64_t random_bits(void) {
    uint64_t bits = random_state += UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
    return bits ^ bits >> 31;
}

static inline int below(int limit) { return (int)(random_bits() % (uint64_t)limit); }
static inline bool one_in(int chances) { return below(chances) == 0; }

/* ---- Formulas ---------------------------------------------------------------------------------------------------- */

/* Source of a value: memory, a constant, or the operation that computes it. */
enum origin { MEMORY, BY_VALUE, CONSTANT, ADD, SUB, MUL, MAX, NEG, ABS, RELU, TANH, MATMUL, TRANSPOSE, SUM, SOFTMAX };

/* A matrix, or a broadcast number (if it is by value or constant). */
struct value {
    enum origin origin;
    int inputs[2]; /* indices of earlier values; the second is -1 for unary operations */
    int extent[2]; /* index of the extent of each dimension; 0: one element */
    int readers, depth;
    bool is_virtual, is_double;
    int64_t uid, alignment;
    double constant; /* also the content of memory passed by value */
};

struct formula {
    int count;
    struct value values[VALUES_MAX];
    int64_t extents[EXTENTS]; /* the first is 1 */
};

/* Sizes of one graph or execution of a formula. */
struct shapes {
    int64_t extents[EXTENTS], strides[VALUES_MAX][2];
};

static inline bool is_computed(const struct value *v) { return v->origin >= ADD; }
static inline bool is_number(const struct value *v) { return v->origin == BY_VALUE || v->origin == CONSTANT; }
static inline bool is_part(const struct value *v) { return v->readers || is_computed(v); } /* of the graph */
static inline bool has_memory(const struct value *v) { return is_part(v) && !v->is_virtual && v->origin != CONSTANT; }
static inline bool takes_two(enum origin origin) { return origin <= MAX || origin == MATMUL; }

static inline void choose_extents(int64_t extents[EXTENTS]) {
    static const int64_t choices[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 65};
    extents[0] = 1;
    for (int i = 1; i < EXTENTS; i++)
        extents[i] = one_in(40) ? 0 : choices[below(one_in(6) ? 12 : 8)];
}

static inline struct value input(enum origin origin) {
    struct value v = {.origin = origin, .inputs = {-1, -1}, .alignment = INT64_C(4) << below(4)};
    for (int axis = 0; axis < 2 && origin == MEMORY; axis++)
        v.extent[axis] = below(5) ? 1 + below(EXTENTS - 1) : 0;
    v.constant = (below(33) - 16) / 8.0;
    return v;
}

/* Index of the broadcast extent of two operands along one dimension, or -1 if they do not match. */
static inline int broadcast(int a, int b) { return a == b || !b ? a : a ? -1 : b; }

/* Sets the extents of a value from those of its operands. Returns false if the operands do not match. */
static inline bool fits(struct value *v, const struct value *x, const struct value *y) {
    memcpy(v->extent, x->extent, sizeof v->extent);
    if (v->origin == TRANSPOSE)
        v->extent[0] = x->extent[1], v->extent[1] = x->extent[0];
    if (v->origin == SUM)
        v->extent[1] = 0;
    if (v->origin == MATMUL)
        v->extent[1] = y->extent[1];
    if (v->origin == MATMUL)
        return !is_number(y) && x->extent[1] == y->extent[0];
    for (int axis = 0; axis < 2 && takes_two(v->origin); axis++)
        v->extent[axis] = broadcast(x->extent[axis], y->extent[axis]);
    return v->extent[0] >= 0 && v->extent[1] >= 0;
}

/* Picks one of the values so far. If there are many, it prefers a value without readers. */
static inline int find_operand(const struct formula *f) {
    int i = below(f->count);
    for (int attempt = 0; attempt < 8 && f->count > 10 && f->values[i].readers; attempt++)
        i = below(f->count);
    return i;
}

/* Adds an operation on the values so far, if a matching one is found within a few attempts. */
static inline void add_operation(struct formula *f) {
    for (int attempt = 0; attempt < 20; attempt++) {
        struct value v = {.origin = (enum origin)(ADD + below(SOFTMAX - ADD + 1)), .inputs = {find_operand(f), -1}};
        if (takes_two(v.origin))
            v.inputs[1] = find_operand(f);
        struct value *x = &f->values[v.inputs[0]], *y = v.inputs[1] >= 0 ? &f->values[v.inputs[1]] : x;
        v.depth = 1 + (x->depth > y->depth ? x->depth : y->depth);
        v.alignment = INT64_C(4) << below(4);
        if (is_number(x) || v.depth > DEPTH_MAX || !fits(&v, x, y))
            continue;
        x->readers++, y->readers += v.inputs[1] >= 0;
        f->values[f->count++] = v;
        return;
    }
}

/* Values and uids are in different orders, so that slots are in a different order, too. */
static inline void make_formula(struct formula *f, int number) {
    bool is_wide = one_in(12); /* more slots than the alias check compares pairwise */
    int inputs = is_wide ? 50 + below(10) : 2 + below(3), operations = is_wide ? 50 + below(10) : 1 + below(5);
    *f = (struct formula){0};
    choose_extents(f->extents);
    for (int i = 0; i < inputs; i++)
        f->values[f->count++] = input(i == 0 || below(4) ? MEMORY : one_in(2) ? BY_VALUE : CONSTANT);
    for (int i = 0; i < operations; i++)
        add_operation(f);
    for (int i = 0; i < f->count; i++) {
        struct value *v = &f->values[i];
        v->uid = number * 1000 + i * 50 % 131;
        v->is_double = v->origin != CONSTANT && one_in(8);
        v->is_virtual = is_computed(v) && v->readers && below(4);
        v->alignment = v->is_double && v->alignment < 8 ? 8 : v->alignment;
    }
}

/* ---- Values in double precision ---------------------------------------------------------------------------------- */

struct matrix {
    int64_t rows, columns;
    double *at;
    double largest; /* upper bound on the magnitude of all elements: the unit of rounding errors */
};

static inline double element(const struct matrix *m, int64_t row, int64_t column) {
    return m->at[(m->rows > 1 ? row : 0) * m->columns + (m->columns > 1 ? column : 0)];
}

static inline double row_sum(const struct matrix *x, int64_t row) {
    double sum = 0;
    for (int64_t k = 0; k < x->columns; k++)
        sum += element(x, row, k);
    return sum;
}

static inline double softmax_of(const struct matrix *x, int64_t row, int64_t column) {
    double sum = 0; /* sum of e^(x - the selected element) */
    for (int64_t k = 0; k < x->columns; k++)
        sum += exp(element(x, row, k) - element(x, row, column));
    return 1 / sum;
}

static inline double inner_product(const struct matrix *x, const struct matrix *y, int64_t row, int64_t column) {
    double sum = 0;
    for (int64_t k = 0; k < x->columns; k++)
        sum += element(x, row, k) * element(y, k, column);
    return sum;
}

static inline double compute_element(enum origin origin, const struct matrix *x, const struct matrix *y, int64_t row,
                                     int64_t column) {
    switch (origin) {
    case MATMUL:
        return inner_product(x, y, row, column);
    case TRANSPOSE:
        return element(x, column, row);
    case SUM:
        return row_sum(x, row);
    case SOFTMAX:
        return softmax_of(x, row, column);
    default:
        break;
    }
    double a = element(x, row, column), b = y ? element(y, row, column) : 0;
    double results[] = {[ADD] = a + b, [SUB] = a - b,   [MUL] = a * b,       [MAX] = fmax(a, b),
                        [NEG] = -a,    [ABS] = fabs(a), [RELU] = fmax(a, 0), [TANH] = tanh(a)};
    return results[origin];
}

static inline double largest_of(enum origin origin, const struct matrix *x, const struct matrix *y) {
    if (origin == MATMUL)
        return (double)x->columns * x->largest * y->largest + 1;
    if (origin == SUM)
        return (double)x->columns * x->largest + 1;
    return origin == MUL ? x->largest * y->largest : y ? x->largest + y->largest : x->largest;
}

static inline struct matrix new_matrix(const struct value *v, const int64_t *extents) {
    struct matrix made = {.rows = extents[v->extent[0]], .columns = extents[v->extent[1]], .largest = 2};
    made.at = calloc((size_t)(made.rows * made.columns) + 1, sizeof *made.at);
    return made;
}

/* Computes all values from the inputs, which must be set. */
static inline void evaluate(const struct formula *f, const int64_t *extents, struct matrix *values) {
    for (int i = 0; i < f->count; i++) {
        const struct value *v = &f->values[i];
        if (!is_computed(v))
            continue;
        struct matrix *out = &values[i], *x = &values[v->inputs[0]];
        struct matrix *y = v->inputs[1] >= 0 ? &values[v->inputs[1]] : NULL;
        *out = new_matrix(v, extents);
        for (int64_t n = 0; n < out->rows * out->columns; n++)
            out->at[n] = compute_element(v->origin, x, y, n / out->columns, n % out->columns);
        out->largest = largest_of(v->origin, x, y);
    }
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

enum { NOTHING = 0xff }; /* fills every byte that belongs to no element; as floats these bytes are NaN */

/* Memory of one execution of a formula. */
struct memory {
    const struct formula *formula;
    struct shapes shapes;
    char *block[VALUES_MAX];                                /* to be freed */
    void *device_block[VALUES_MAX], *on_device[VALUES_MAX]; /* owned by the caller, if the device has separate memory */
    char *address[VALUES_MAX], *before[VALUES_MAX];
    size_t bytes[VALUES_MAX];
    bool is_taken[VALUES_MAX]; /* an input whose memory an output overwrites */
    struct matrix values[VALUES_MAX];
};

static inline size_t item_bytes(const struct value *v) { return v->is_double ? sizeof(double) : sizeof(float); }

static inline size_t memory_bytes(const struct value *v, const int64_t *extents, const int64_t strides[2]) {
    int64_t rows = extents[v->extent[0]], columns = extents[v->extent[1]];
    int64_t last = (rows - 1) * strides[0] + (columns - 1) * strides[1];
    return rows && columns ? (size_t)(last + 1) * item_bytes(v) : 0;
}

static inline char *new_block(size_t alignment, size_t bytes) {
    void *block = NULL;
    CHECK(posix_memalign(&block, alignment < 8 ? 8 : alignment, bytes) == 0, "no memory");
    return block;
}

/* Places each value in a separate block that ends with the value, at an odd multiple of the alignment. */
static inline void place_apart(struct memory *m) {
    for (int i = 0; i < m->formula->count; i++) {
        size_t alignment = (size_t)m->formula->values[i].alignment;
        if (has_memory(&m->formula->values[i])) {
            m->block[i] = new_block(2 * alignment, alignment + m->bytes[i]);
            m->address[i] = m->block[i] + alignment;
        }
    }
}

/* Places all values in one block, each as close after the previous one as alignments allow. */
static inline void place_together(struct memory *m) {
    size_t at[VALUES_MAX], end = 0;
    for (int i = m->formula->count; i-- > 0; end = at[i] + m->bytes[i]) {
        size_t alignment = (size_t)m->formula->values[i].alignment;
        at[i] = (end + alignment - 1) / alignment * alignment;
    }
    m->block[0] = new_block(64, end);
    for (int i = 0; i < m->formula->count; i++)
        if (has_memory(&m->formula->values[i]))
            m->address[i] = m->block[0] + at[i];
}

static inline struct memory *new_memory(const struct formula *f, const struct shapes *shapes) {
    struct memory *m = calloc(1, sizeof *m);
    m->formula = f, m->shapes = *shapes;
    for (int i = 0; i < f->count; i++)
        if (has_memory(&f->values[i])) {
            m->bytes[i] = memory_bytes(&f->values[i], shapes->extents, shapes->strides[i]);
            m->before[i] = malloc(m->bytes[i] + 1);
        }
    one_in(3) ? place_together(m) : place_apart(m);
    return m;
}

static inline void free_memory(struct memory *m) {
    for (int i = 0; m && i < VALUES_MAX; i++)
        free(m->block[i]), free(m->before[i]), free(m->values[i].at);
    free(m);
}

static inline char *element_address(const struct memory *m, int i, int64_t n) {
    const int64_t *strides = m->shapes.strides[i], columns = m->values[i].columns;
    return m->address[i] +
           (n / columns * strides[0] + n % columns * strides[1]) * (int64_t)item_bytes(&m->formula->values[i]);
}

static inline double read_element(const struct memory *m, int i, int64_t n) {
    float single;
    double number;
    memcpy(&single, element_address(m, i, n), sizeof single);
    if (!m->formula->values[i].is_double)
        return single;
    memcpy(&number, element_address(m, i, n), sizeof number);
    return number;
}

static inline void write_element(const struct memory *m, int i, int64_t n, double number) {
    float single = (float)number;
    bool is_double = m->formula->values[i].is_double;
    memcpy(element_address(m, i, n), is_double ? (void *)&number : &single, is_double ? sizeof number : sizeof single);
}

/* A stride of 0 maps many elements to one address, where the last one written stays. */
static inline void fill_input(struct memory *m, int i) {
    const struct value *v = &m->formula->values[i];
    m->values[i] = new_matrix(v, m->shapes.extents);
    int64_t count = m->values[i].rows * m->values[i].columns;
    for (int64_t n = 0; n < count && v->origin != CONSTANT; n++)
        write_element(m, i, n, v->origin == BY_VALUE ? v->constant : (below(257) - 128) / 128.0);
    for (int64_t n = 0; n < count; n++)
        m->values[i].at[n] = v->origin == CONSTANT ? v->constant : read_element(m, i, n);
}

/* Prepares an execution: new inputs, outputs filled with NOTHING, and the expected results. */
static inline void fill_memory(struct memory *m) {
    const struct formula *f = m->formula;
    for (int i = 0; i < f->count; i++) {
        free(m->values[i].at);
        m->values[i].at = NULL;
        if (m->address[i])
            memset(m->address[i], NOTHING, m->bytes[i]);
    }
    for (int i = 0; i < f->count; i++)
        if (is_part(&f->values[i]) && !is_computed(&f->values[i]))
            fill_input(m, i);
    evaluate(f, m->shapes.extents, m->values);
    for (int i = 0; i < f->count; i++)
        if (m->address[i])
            memcpy(m->before[i], m->address[i], m->bytes[i]);
}

/* Compares an output with the expected result, and records it as the new content of its memory. */
static inline void check_output(struct memory *m, int i, double tolerance, const char *what) {
    const struct matrix *want = &m->values[i];
    for (int64_t n = 0; n < want->rows * want->columns; n++) {
        double got = read_element(m, i, n), most = tolerance * want->largest;
        char *at = element_address(m, i, n);
        CHECK(fabs(got - want->at[n]) <= most,
              "%s: value %d (uid %d), element %d of %dx%d: %.9g, expected %.9g, +- %.3g", what, i,
              (int)m->formula->values[i].uid, (int)n, (int)want->rows, (int)want->columns, got, want->at[n], most);
        memcpy(m->before[i] + (at - m->address[i]), at, item_bytes(&m->formula->values[i]));
    }
}

/* Checks after an execution that outputs are correct and that nothing else has changed. */
static inline void check_memory(struct memory *m, double tolerance, const char *what) {
    for (int i = 0; i < m->formula->count; i++) {
        if (!m->address[i] || m->is_taken[i])
            continue;
        if (is_computed(&m->formula->values[i]))
            check_output(m, i, tolerance, what);
        CHECK(!memcmp(m->before[i], m->address[i], m->bytes[i]), "%s: value %d (uid %d) is written beside its elements",
              what, i, (int)m->formula->values[i].uid);
    }
}

#endif
