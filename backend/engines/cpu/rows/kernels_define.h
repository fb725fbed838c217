/* SPDX-License-Identifier: Apache-2.0 */
/* The body of kernels_f32.c and kernels_f64.c, over elements of type `real`. No include guard: define real, KERNELS and the functions of one element (EXP, LOG, SQRT), then include. */

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Compiled three times; the loader picks. */
#if defined __x86_64__ && defined __GLIBC__
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

enum { LANES = 64 / sizeof(real), STRIDE = 4 * LANES };

typedef real lanes __attribute__((vector_size(64), aligned(sizeof(real)), may_alias));

/* ---- Formulas ---------------------------------------------------------------------------------------------------- */

#define ONE_FORMULA(expression)                                                                                        \
    const real a = as[i], b = bs[i], c = cs[i], d = ds[i];                                                             \
    (void)a, (void)b, (void)c, (void)d;                                                                                \
    y[i] = (expression);

#define FORMULA(name, expression)                                                                                      \
    WIDE static void formula_##name(int64_t count, void *result, const void *const *x, const int64_t *steps) {         \
        const real *as = x[0], *bs = x[1], *cs = x[2], *ds = x[3];                                                     \
        real *y = result;                                                                                              \
        for (; count >= ROW_CHUNK; count -= ROW_CHUNK) {                                                               \
            INDEPENDENT                                                                                                \
            for (int64_t i = 0; i < ROW_CHUNK; i++) {                                                                  \
                ONE_FORMULA(expression)                                                                                \
            }                                                                                                          \
            y += ROW_CHUNK, as += steps[0], bs += steps[1], cs += steps[2], ds += steps[3];                            \
        }                                                                                                              \
        INDEPENDENT                                                                                                    \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            ONE_FORMULA(expression)                                                                                    \
        }                                                                                                              \
    }

FORMULA(copy, a)
FORMULA(add, a + b)
FORMULA(subtract, a - b)
FORMULA(multiply, a *b)
FORMULA(divide, a / b)
FORMULA(negate, -a)
FORMULA(absolute, ABS(a))
FORMULA(root, SQRT(a))
FORMULA(inverse_root, 1 / SQRT(a))
FORMULA(logarithm, LOG(a))
FORMULA(larger, PICK((a > b) | (a != a), a, b))
FORMULA(if_greater, PICK(a > b, c, d))
FORMULA(if_equal, PICK(a == b, c, d))
FORMULA(shift, PICK(a == -(real)INFINITY, 0, a))
FORMULA(weight, PICK(a == b, 1, EXP(a - b)))
FORMULA(subtract_multiply, (a - b) * c)
FORMULA(multiply_add, a *b + c)
FORMULA(multiply_subtract, a *b - c)
FORMULA(subtract_multiply_add, (a - b) * c + d)
FORMULA(multiply_multiply, a * b * c)
FORMULA(exponential, EXP(a))
FORMULA(subtract_exponential, EXP(a - b))

static row_formula *const formulas[ROW_FORMULAS_END] = {
    [OPCODE_COPY] = formula_copy,
    [OPCODE_ADD] = formula_add,
    [OPCODE_SUBTRACT] = formula_subtract,
    [OPCODE_MULTIPLY] = formula_multiply,
    [OPCODE_DIVIDE] = formula_divide,
    [OPCODE_SHARE] = formula_divide,
    [OPCODE_NEGATE] = formula_negate,
    [OPCODE_ABSOLUTE] = formula_absolute,
    [OPCODE_ROOT] = formula_root,
    [OPCODE_INVERSE_ROOT] = formula_inverse_root,
    [OPCODE_LOGARITHM] = formula_logarithm,
    [OPCODE_LARGER] = formula_larger,
    [OPCODE_IF_GREATER] = formula_if_greater,
    [OPCODE_IF_EQUAL] = formula_if_equal,
    [OPCODE_SHIFT] = formula_shift,
    [OPCODE_WEIGHT] = formula_weight,
    [OPCODE_ROW_WEIGHT] = formula_weight,
    [ROW_SUBTRACT_MULTIPLY] = formula_subtract_multiply,
    [ROW_MULTIPLY_ADD] = formula_multiply_add,
    [ROW_MULTIPLY_SUBTRACT] = formula_multiply_subtract,
    [ROW_SUBTRACT_MULTIPLY_ADD] = formula_subtract_multiply_add,
    [ROW_MULTIPLY_MULTIPLY] = formula_multiply_multiply,
    [ROW_EXPONENTIAL] = formula_exponential,
    [ROW_SUBTRACT_EXPONENTIAL] = formula_subtract_exponential,
};

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

#define TAKE_SUM(s, v) ((s) + (v))
#define TAKE_PRODUCT(s, v) ((s) * (v))
#define JOIN_SUM(s, v) ((s) + (v))
#define JOIN_PRODUCT(s, v) ((s) * (v))
#define JOIN_LEAST(s, v) ((v) < (s) || (v) != (v) ? (v) : (s))
#define JOIN_LARGEST(s, v) ((v) > (s) || (v) != (v) ? (v) : (s))

/* LOAD(i): lanes from element i on; LOAD_REST(tail, i, left): `left` elements, before others that change nothing. */
#define REDUCE_ROWS(function, TAKE, JOIN, identity, LOAD, LOAD_REST)                                                   \
    WIDE static void function(int64_t rows, int64_t columns, double *totals, const void *xs, const void *bs) {         \
        const real *x = xs, *b = bs;                                                                                   \
        (void)b;                                                                                                       \
        for (int64_t row = 0; row < rows; row++, x += columns, b = b ? b + columns : b) {                              \
            lanes s0, s1, s2, s3, neutral;                                                                             \
            real all[LANES];                                                                                           \
            int64_t i = 0;                                                                                             \
            for (int k = 0; k < LANES; k++)                                                                            \
                neutral[k] = identity;                                                                                 \
            s0 = s1 = s2 = s3 = neutral;                                                                               \
            for (; i + STRIDE <= columns; i += STRIDE) {                                                               \
                s0 = TAKE(s0, LOAD(i));                                                                                \
                s1 = TAKE(s1, LOAD(i + LANES));                                                                        \
                s2 = TAKE(s2, LOAD(i + 2 * LANES));                                                                    \
                s3 = TAKE(s3, LOAD(i + 3 * LANES));                                                                    \
            }                                                                                                          \
            for (; i + LANES <= columns; i += LANES)                                                                   \
                s0 = TAKE(s0, LOAD(i));                                                                                \
            if (i < columns) {                                                                                         \
                lanes tail = neutral;                                                                                  \
                for (int k = 0; k < columns - i; k++)                                                                  \
                    tail[k] = LOAD_REST(i + k);                                                                        \
                s1 = TAKE(s1, tail);                                                                                   \
            }                                                                                                          \
            s0 = TAKE(s0, s1), s2 = TAKE(s2, s3);                                                                      \
            *(lanes *)all = TAKE(s0, s2);                                                                              \
            for (int width = LANES / 2; width > 0; width /= 2)                                                         \
                for (int k = 0; k < width; k++)                                                                        \
                    all[k] = JOIN(all[k], all[k + width]);                                                             \
            totals[row] = JOIN(totals[row], (double)all[0]);                                                           \
        }                                                                                                              \
    }

/* Comparisons of vectors are no vector code in all compilers; loops over arrays of lanes are. */
#define REDUCE_EXTREMES(function, JOIN, identity)                                                                      \
    WIDE static void function(int64_t rows, int64_t columns, double *totals, const void *xs, const void *bs) {         \
        const real *x = xs;                                                                                            \
        (void)bs;                                                                                                      \
        for (int64_t row = 0; row < rows; row++, x += columns) {                                                       \
            real all[STRIDE];                                                                                          \
            int64_t i = 0;                                                                                             \
            for (int k = 0; k < STRIDE; k++)                                                                           \
                all[k] = identity;                                                                                     \
            for (; i + STRIDE <= columns; i += STRIDE)                                                                 \
                for (int k = 0; k < STRIDE; k++)                                                                       \
                    all[k] = PICK((JOINS_##JOIN(x[i + k], all[k])), x[i + k], all[k]);                                 \
            for (int k = 0; k < columns - i; k++)                                                                      \
                all[k] = JOIN(all[k], x[i + k]);                                                                       \
            for (int width = STRIDE / 2; width > 0; width /= 2)                                                        \
                for (int k = 0; k < width; k++)                                                                        \
                    all[k] = JOIN(all[k], all[k + width]);                                                             \
            totals[row] = JOIN(totals[row], (double)all[0]);                                                           \
        }                                                                                                              \
    }
#define JOINS_JOIN_LEAST(v, s) (((v) < (s)) | ((v) != (v)))
#define JOINS_JOIN_LARGEST(v, s) (((v) > (s)) | ((v) != (v)))

/* A block's part of each column is summed in its own type, the blocks' parts in double. */
#define REDUCE_COLUMNS(function, JOIN, AT)                                                                             \
    WIDE static void function(int64_t rows, int64_t columns, double *totals, const void *xs, const void *bs) {         \
        enum { PART = 64 };                                                                                            \
        const real *x = xs, *b = bs;                                                                                   \
        (void)b;                                                                                                       \
        for (int64_t first = 0; first < columns; first += PART) {                                                      \
            int64_t count = columns - first < PART ? columns - first : PART;                                           \
            real part[PART];                                                                                           \
            INDEPENDENT                                                                                                \
            for (int64_t i = 0; i < count; i++)                                                                        \
                part[i] = AT(first + i);                                                                               \
            for (int64_t row = 1; row < rows; row++)                                                                   \
                INDEPENDENT                                                                                            \
            for (int64_t i = 0; i < count; i++)                                                                        \
                part[i] = JOIN(part[i], AT(row * columns + first + i));                                                \
            INDEPENDENT                                                                                                \
            for (int64_t i = 0; i < count; i++)                                                                        \
                totals[first + i] = JOIN(totals[first + i], (double)part[i]);                                          \
        }                                                                                                              \
    }

#define VECTOR_X(i) (*(const lanes *)(x + (i)))
#define VECTOR_PRODUCT(i) (*(const lanes *)(x + (i)) * *(const lanes *)(b + (i)))
#define ELEMENT_X(i) (x[i])
#define ELEMENT_PRODUCT(i) (x[i] * b[i])

REDUCE_ROWS(rows_sum, TAKE_SUM, JOIN_SUM, 0, VECTOR_X, ELEMENT_X)
REDUCE_ROWS(rows_sum_of_products, TAKE_SUM, JOIN_SUM, 0, VECTOR_PRODUCT, ELEMENT_PRODUCT)
REDUCE_ROWS(rows_product, TAKE_PRODUCT, JOIN_PRODUCT, 1, VECTOR_X, ELEMENT_X)
REDUCE_EXTREMES(rows_least, JOIN_LEAST, (real)INFINITY)
REDUCE_EXTREMES(rows_largest, JOIN_LARGEST, -(real)INFINITY)
REDUCE_COLUMNS(columns_sum, JOIN_SUM, ELEMENT_X)
REDUCE_COLUMNS(columns_sum_of_products, JOIN_SUM, ELEMENT_PRODUCT)
REDUCE_COLUMNS(columns_product, JOIN_PRODUCT, ELEMENT_X)
REDUCE_COLUMNS(columns_least, JOIN_LEAST, ELEMENT_X)
REDUCE_COLUMNS(columns_largest, JOIN_LARGEST, ELEMENT_X)

static void rows_any_sum(int64_t rows, int64_t columns, double *totals, const void *x, const void *b) {
    (b ? rows_sum_of_products : rows_sum)(rows, columns, totals, x, b);
}

static void columns_any_sum(int64_t rows, int64_t columns, double *totals, const void *x, const void *b) {
    (b ? columns_sum_of_products : columns_sum)(rows, columns, totals, x, b);
}

static row_reduction *find_of_rows(enum opcode opcode) {
    return opcode == OPCODE_PRODUCT   ? rows_product
           : opcode == OPCODE_LEAST   ? rows_least
           : opcode == OPCODE_LARGEST ? rows_largest
                                      : rows_any_sum;
}

static row_reduction *find_of_columns(enum opcode opcode) {
    return opcode == OPCODE_PRODUCT   ? columns_product
           : opcode == OPCODE_LEAST   ? columns_least
           : opcode == OPCODE_LARGEST ? columns_largest
                                      : columns_any_sum;
}

#define COLUMN_SUM(function, AT)                                                                                       \
    WIDE static void function(int64_t rows, int64_t columns, void *sums, const void *xs, const void *bs) {             \
        const real *x = xs, *b = bs;                                                                                   \
        real *y = sums;                                                                                                \
        (void)b;                                                                                                       \
        for (int64_t row = 0; row < rows; row++)                                                                       \
            INDEPENDENT                                                                                                \
        for (int64_t i = 0; i < columns; i++)                                                                          \
            y[i] += AT(row * columns + i);                                                                             \
    }
COLUMN_SUM(add_columns, ELEMENT_X)
COLUMN_SUM(add_columns_of_products, ELEMENT_PRODUCT)

static void add_any_columns(int64_t rows, int64_t columns, void *sums, const void *x, const void *b) {
    (b ? add_columns_of_products : add_columns)(rows, columns, sums, x, b);
}

/* ---- Others ------------------------------------------------------------------------------------------------------ */

WIDE static void scale(int64_t count, void *y, const void *x, double factor) {
    const real *from = x, by = (real)factor;
    real *to = y;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = from[i] * by;
}

WIDE static void fill(int64_t count, void *y, double number) {
    real *to = y, value = (real)number;
    for (int64_t i = 0; i < count; i++)
        to[i] = value;
}

WIDE static void of_totals(int64_t count, void *y, const double *totals) {
    real *to = y;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = (real)totals[i];
}

const struct row_kernels KERNELS = {formulas, find_of_rows, find_of_columns, add_any_columns, scale, fill, of_totals};
