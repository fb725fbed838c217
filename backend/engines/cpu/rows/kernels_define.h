/* SPDX-License-Identifier: Apache-2.0 */
/* The body of kernels_f32.c and kernels_f64.c, over elements of type `real`. No include guard: define real, integer (of
   the same size), the bit patterns of infinity and of everything except the sign, KERNELS, and the scalar functions
   (EXP, LOG, SQRT, ...) before including it. */
#include "engines/cpu/core/vector.h"

enum { LANES = 64 / sizeof(real), STRIDE = 4 * LANES, CACHE_LINE = 64 };

typedef real lanes __attribute__((vector_size(64), aligned(sizeof(real)), may_alias));

/* ---- Formulas ---------------------------------------------------------------------------------------------------- */

/* A formula of one element: each argument is either read at i, or is a number of the row, which is read once. */
#define AT_EACH(each, level) (each)
#define AT_LEVEL(each, level) (level)
#define ONE_FORMULA(expression, B, C, D, E, H)                                                                         \
    const real a = as[i], b = B(bs[i], level_b), c = C(cs[i], level_c), d = D(ds[i], level_d), e = E(es[i], level_e),  \
               f = fs[i], g = gs[i], h = H(hs[i], level_h);                                                            \
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;                                            \
    y[i] = (expression);

#define FORMULA_OF(function, expression, B, C, D, E, H)                                                                \
    WIDE static void function(int64_t rows, int64_t columns, void *result, int64_t ld, const void *const *x,           \
                              const struct row_steps *steps) {                                                         \
        for (int64_t row = 0; row < rows; row++) {                                                                     \
            const real *as = (const real *)x[0] + row * steps[0].row, *bs = (const real *)x[1] + row * steps[1].row;   \
            const real *cs = (const real *)x[2] + row * steps[2].row, *ds = (const real *)x[3] + row * steps[3].row;   \
            const real *es = (const real *)x[4] + row * steps[4].row, *fs = (const real *)x[5] + row * steps[5].row;   \
            const real *gs = (const real *)x[6] + row * steps[6].row, *hs = (const real *)x[7] + row * steps[7].row;   \
            const real level_b = *bs, level_c = *cs, level_d = *ds, level_e = *es, level_h = *hs;                      \
            real *y = (real *)result + row * ld;                                                                       \
            int64_t count = columns;                                                                                   \
            (void)level_b, (void)level_c, (void)level_d, (void)level_e, (void)level_h;                                 \
            for (; count >= ROW_CHUNK; count -= ROW_CHUNK) {                                                           \
                for (size_t byte = 0; byte < ROW_CHUNK * sizeof(real); byte += CACHE_LINE)                             \
                    __builtin_prefetch((const char *)(as + steps[0].ahead) + byte, 0, 2);                              \
                INDEPENDENT                                                                                            \
                for (int64_t i = 0; i < ROW_CHUNK; i++) {                                                              \
                    ONE_FORMULA(expression, B, C, D, E, H)                                                             \
                }                                                                                                      \
                y += ROW_CHUNK, as += steps[0].chunk, bs += steps[1].chunk;                                            \
                cs += steps[2].chunk, ds += steps[3].chunk, es += steps[4].chunk, fs += steps[5].chunk;                \
                gs += steps[6].chunk, hs += steps[7].chunk;                                                            \
            }                                                                                                          \
            INDEPENDENT                                                                                                \
            for (int64_t i = 0; i < count; i++) {                                                                      \
                ONE_FORMULA(expression, B, C, D, E, H)                                                                 \
            }                                                                                                          \
        }                                                                                                              \
    }

#define FORMULA(name, expression) FORMULA_OF(formula_##name, expression, AT_EACH, AT_EACH, AT_EACH, AT_EACH, AT_EACH)

/* Dispatches between two forms: in one, some arguments (levels: one bit each) are numbers of rows, held in
   registers. */
#define EITHER(name, levels)                                                                                           \
    static void formula_##name(int64_t rows, int64_t columns, void *result, int64_t ld, const void *const *x,          \
                               const struct row_steps *steps) {                                                        \
        (are_levels(steps, levels) ? level_##name : each_##name)(rows, columns, result, ld, x, steps);                 \
    }

#define FORMULA_OF_ROWS(name, expression, levels, B, C, D, E, H)                                                       \
    FORMULA_OF(each_##name, expression, AT_EACH, AT_EACH, AT_EACH, AT_EACH, AT_EACH)                                   \
    FORMULA_OF(level_##name, expression, B, C, D, E, H)                                                                \
    EITHER(name, levels)

/* True if each of these arguments repeats one chunk for a whole row. */
static bool are_levels(const struct row_steps *steps, unsigned levels) {
    for (int k = 0; levels; k++, levels >>= 1)
        if ((levels & 1) && steps[k].chunk != 0)
            return false;
    return true;
}

FORMULA(copy, a)
FORMULA(add, a + b)
FORMULA(subtract, a - b)
FORMULA(multiply, a *b)
FORMULA_OF(each_divide, a / b, AT_EACH, AT_EACH, AT_EACH, AT_EACH, AT_EACH)
FORMULA_OF(level_divide, QUOTIENT(a, b), AT_LEVEL, AT_EACH, AT_EACH, AT_EACH, AT_EACH)
EITHER(divide, 0x2)
FORMULA(negate, -a)
FORMULA(absolute, ABS(a))
FORMULA(root, SQRT(a))
FORMULA(inverse_root, 1 / SQRT(a))
FORMULA(logarithm, LOG(a))
FORMULA(larger, PICK((a > b) | (a != a), a, b))
FORMULA(if_greater, PICK(a > b, c, d))
FORMULA(if_equal, PICK(a == b, c, d))
FORMULA(shift, PICK(a == -(real)INFINITY, 0, a))
FORMULA_OF_ROWS(weight, WEIGHT(a - b), 0x2, AT_LEVEL, AT_EACH, AT_EACH, AT_EACH, AT_EACH)
FORMULA_OF_ROWS(subtract_multiply, (a - b) * c, 0x2, AT_LEVEL, AT_EACH, AT_EACH, AT_EACH, AT_EACH)
FORMULA(multiply_add, a *b + c)
FORMULA(multiply_subtract, a *b - c)
FORMULA(subtract_multiply_add, (a - b) * c + d)
FORMULA(multiply_multiply, a * b * c)
FORMULA(multiply_multiply_subtract, a * b * c - d)
FORMULA_OF_ROWS(deviation_multiply, (a - b) * c * d, 0x6, AT_LEVEL, AT_LEVEL, AT_EACH, AT_EACH, AT_EACH)
FORMULA(deviation_multiply_add, (a - b) * c * d + e)
FORMULA_OF_ROWS(normalise, ((a - b) * c - d) * e + f, 0xe, AT_LEVEL, AT_LEVEL, AT_LEVEL, AT_EACH, AT_EACH)
FORMULA_OF_ROWS(gradient, f * g * h - ((a - b) * c * d + e), 0x9e, AT_LEVEL, AT_LEVEL, AT_LEVEL, AT_LEVEL, AT_LEVEL)
FORMULA(exponential, EXP(a))
FORMULA_OF_ROWS(subtract_exponential, EXP(a - b), 0x2, AT_LEVEL, AT_EACH, AT_EACH, AT_EACH, AT_EACH)
FORMULA_OF_ROWS(largest_exponential, EXP_NONPOSITIVE(a - b), 0x2, AT_LEVEL, AT_EACH, AT_EACH, AT_EACH, AT_EACH)

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
    [ROW_MULTIPLY_MULTIPLY_SUBTRACT] = formula_multiply_multiply_subtract,
    [ROW_DEVIATION_MULTIPLY] = formula_deviation_multiply,
    [ROW_DEVIATION_MULTIPLY_ADD] = formula_deviation_multiply_add,
    [ROW_NORMALISE] = formula_normalise,
    [ROW_GRADIENT] = formula_gradient,
    [ROW_EXPONENTIAL] = formula_exponential,
    [ROW_SUBTRACT_EXPONENTIAL] = formula_subtract_exponential,
    [ROW_LARGEST_EXPONENTIAL] = formula_largest_exponential,
};

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

/* Number of columns to process together; their partial results stay in registers. */
static int64_t part_of_columns(int64_t left) {
    return left >= 8 * LANES ? 8 * LANES : left >= 4 * LANES ? 4 * LANES : left >= 2 * LANES ? 2 * LANES : left;
}

#define JOIN_SUM(s, v) ((s) + (v))
#define JOIN_PRODUCT(s, v) ((s) * (v))
#define JOIN_LEAST(s, v) PICK(((v) < (s)) | ((v) != (v)), v, s)
#define JOIN_LARGEST(s, v) PICK(((v) > (s)) | ((v) != (v)), v, s)

/* Combines lanes pairwise. */
#define JOIN_LANES(JOIN, count, all)                                                                                   \
    _Pragma("GCC unroll 8") for (int width = (count) / 2; width > 0; width /= 2)                                       \
        INDEPENDENT for (int k = 0; k < width; k++) all[k] = JOIN(all[k], all[k + width]);

/* LOAD(i): lanes that start at element i. LOAD_ONE(i): a single remaining element; the other lanes hold the
   identity. */
#define REDUCE_ROWS(function, TAKE, identity, LOAD, LOAD_ONE)                                                          \
    WIDE static void function(int64_t rows, int64_t columns, double *totals, const void *xs, int64_t ld_x,             \
                              const void *bs, int64_t ld_b) {                                                          \
        const real *x = xs, *b = bs;                                                                                   \
        for (int64_t row = 0; row < rows; row++, x += ld_x, b = b ? b + ld_b : b) {                                    \
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
                    tail[k] = LOAD_ONE(i + k);                                                                         \
                s1 = TAKE(s1, tail);                                                                                   \
            }                                                                                                          \
            s0 = TAKE(s0, s1), s2 = TAKE(s2, s3);                                                                      \
            *(lanes *)all = TAKE(s0, s2);                                                                              \
            JOIN_LANES(TAKE, LANES, all)                                                                               \
            totals[row] = TAKE(totals[row], (double)all[0]);                                                           \
        }                                                                                                              \
    }

/* Computes the extreme without NaN, which takes one vector instruction, and separately whether a NaN occurred. */
#define REDUCE_EXTREMES(function, JOIN, BEFORE, identity)                                                              \
    WIDE static void function(int64_t rows, int64_t columns, double *totals, const void *xs, int64_t ld_x,             \
                              const void *bs, int64_t ld_b) {                                                          \
        const real *x = xs;                                                                                            \
        (void)bs, (void)ld_b;                                                                                          \
        for (int64_t row = 0; row < rows; row++, x += ld_x) {                                                          \
            real all[STRIDE];                                                                                          \
            integer largest[STRIDE] = {0}; /* of the bits without the sign: a NaN is larger than infinity */           \
            int64_t i = 0;                                                                                             \
            for (int k = 0; k < STRIDE; k++)                                                                           \
                all[k] = identity;                                                                                     \
            for (; i + STRIDE <= columns; i += STRIDE)                                                                 \
                for (int k = 0; k < STRIDE; k++) {                                                                     \
                    integer bits = BITS(x[i + k]) & NUMBER_BITS;                                                       \
                    largest[k] = bits > largest[k] ? bits : largest[k];                                                \
                    all[k] = x[i + k] BEFORE all[k] ? x[i + k] : all[k];                                               \
                }                                                                                                      \
            for (int k = 0; k < columns - i; k++) {                                                                    \
                integer bits = BITS(x[i + k]) & NUMBER_BITS;                                                           \
                largest[k] = bits > largest[k] ? bits : largest[k];                                                    \
                all[k] = x[i + k] BEFORE all[k] ? x[i + k] : all[k];                                                   \
            }                                                                                                          \
            _Pragma("GCC unroll 8") for (int width = STRIDE / 2; width > 0; width /= 2)                                \
                INDEPENDENT for (int k = 0; k < width; k++) {                                                          \
                all[k] = all[k + width] BEFORE all[k] ? all[k + width] : all[k];                                       \
                largest[k] = largest[k + width] > largest[k] ? largest[k + width] : largest[k];                        \
            }                                                                                                          \
            all[0] = largest[0] > INFINITY_BITS ? (real)NAN : all[0];                                                  \
            totals[row] = JOIN(totals[row], (double)all[0]);                                                           \
        }                                                                                                              \
    }

/* Reduces `count` columns into `part`. */
#define PARTS_OF_COLUMNS(JOIN, AT, PARTS, PARTS_AT)                                                                    \
    if (count == 8 * LANES) {                                                                                          \
        PARTS(8, JOIN, PARTS_AT)                                                                                       \
    } else if (count == 4 * LANES) {                                                                                   \
        PARTS(4, JOIN, PARTS_AT)                                                                                       \
    } else if (count == 2 * LANES) {                                                                                   \
        PARTS(2, JOIN, PARTS_AT)                                                                                       \
    } else {                                                                                                           \
        for (int64_t k = 0; k < count; k++)                                                                            \
            part[k] = AT(0, k);                                                                                        \
        for (int64_t row = 1; row < rows; row++)                                                                       \
            for (int64_t k = 0; k < count; k++)                                                                        \
                part[k] = JOIN(part[k], AT(row, k));                                                                   \
    }

/* Reduces a block's part of each column in the element type and combines the blocks' parts in double. PARTS: used if
   all columns of a part exist, with partial results in registers. */
#define REDUCE_COLUMNS(function, JOIN, AT, PARTS, PARTS_AT)                                                            \
    WIDE static void function(int64_t rows, int64_t columns, double *totals, const void *xs, int64_t ld_x,             \
                              const void *bs, int64_t ld_b) {                                                          \
        for (int64_t first = 0, count; first < columns; first += count) {                                              \
            const real *x = (const real *)xs + first, *b = bs ? (const real *)bs + first : NULL;                       \
            real part[8 * LANES];                                                                                      \
            count = part_of_columns(columns - first);                                                                  \
            (void)b, (void)ld_b;                                                                                       \
            PARTS_OF_COLUMNS(JOIN, AT, PARTS, PARTS_AT)                                                                \
            INDEPENDENT                                                                                                \
            for (int64_t k = 0; k < count; k++)                                                                        \
                totals[first + k] = JOIN(totals[first + k], (double)part[k]);                                          \
        }                                                                                                              \
    }

/* Processes rows in order, each column separately. */
#define PARTS_IN_TURN(COUNT, JOIN, AT)                                                                                 \
    for (int k = 0; k < COUNT * LANES; k++)                                                                            \
        part[k] = AT(0, k);                                                                                            \
    for (int64_t row = 1; row < rows; row++)                                                                           \
        for (int k = 0; k < COUNT * LANES; k++)                                                                        \
            part[k] = JOIN(part[k], AT(row, k));

#define PARTS_OF_LANES(COUNT, JOIN, AT)                                                                                \
    lanes s[COUNT];                                                                                                    \
    _Pragma("GCC unroll 8") for (int k = 0; k < COUNT; k++) s[k] = AT(0, k * LANES);                                   \
    for (int64_t row = 1; row < rows; row++)                                                                           \
        _Pragma("GCC unroll 8") for (int k = 0; k < COUNT; k++) s[k] = JOIN(s[k], AT(row, k * LANES));                 \
    _Pragma("GCC unroll 8") for (int k = 0; k < COUNT; k++) * (lanes *)(part + k * LANES) = s[k];

#define VECTOR(p) (*(const lanes *)(p))
#define VECTOR_X(i) VECTOR(x + (i))
#define VECTOR_PRODUCT(i) (VECTOR(x + (i)) * VECTOR(b + (i)))
#define ELEMENT_X(i) (x[i])
#define ELEMENT_PRODUCT(i) (x[i] * b[i])
#define COLUMN_X(row, k) (x[(row) * ld_x + (k)])
#define COLUMN_PRODUCT(row, k) (x[(row) * ld_x + (k)] * b[(row) * ld_b + (k)])
#define COLUMNS_X(row, k) VECTOR(x + (row) * ld_x + (k))
#define COLUMNS_PRODUCT(row, k) (VECTOR(x + (row) * ld_x + (k)) * VECTOR(b + (row) * ld_b + (k)))

REDUCE_ROWS(rows_sum, JOIN_SUM, 0, VECTOR_X, ELEMENT_X)
REDUCE_ROWS(rows_sum_of_products, JOIN_SUM, 0, VECTOR_PRODUCT, ELEMENT_PRODUCT)
REDUCE_ROWS(rows_product, JOIN_PRODUCT, 1, VECTOR_X, ELEMENT_X)
REDUCE_EXTREMES(rows_least, JOIN_LEAST, <, (real)INFINITY)
REDUCE_EXTREMES(rows_largest, JOIN_LARGEST, >, -(real)INFINITY)
REDUCE_COLUMNS(columns_sum, JOIN_SUM, COLUMN_X, PARTS_OF_LANES, COLUMNS_X)
REDUCE_COLUMNS(columns_sum_of_products, JOIN_SUM, COLUMN_PRODUCT, PARTS_OF_LANES, COLUMNS_PRODUCT)
REDUCE_COLUMNS(columns_product, JOIN_PRODUCT, COLUMN_X, PARTS_OF_LANES, COLUMNS_X)
REDUCE_COLUMNS(columns_least, JOIN_LEAST, COLUMN_X, PARTS_IN_TURN, COLUMN_X)
REDUCE_COLUMNS(columns_largest, JOIN_LARGEST, COLUMN_X, PARTS_IN_TURN, COLUMN_X)

static void rows_any_sum(int64_t rows, int64_t columns, double *totals, const void *x, int64_t ld_x, const void *b,
                         int64_t ld_b) {
    (b ? rows_sum_of_products : rows_sum)(rows, columns, totals, x, ld_x, b, ld_b);
}

static void columns_any_sum(int64_t rows, int64_t columns, double *totals, const void *x, int64_t ld_x, const void *b,
                            int64_t ld_b) {
    (b ? columns_sum_of_products : columns_sum)(rows, columns, totals, x, ld_x, b, ld_b);
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

/* ---- Two totals in one loop -------------------------------------------------------------------------------------- */

/* P(p, d): the value that is summed, in addition to its product with d = x - m. */
#define OF_P(p, d) (p)
#define OF_D(p, d) (d)

#define PAIR_OF_ROWS(function, P, M, M_ONE)                                                                            \
    WIDE static void function(int64_t rows, int64_t columns, double *sums, double *products,                           \
                              const struct row_pair *pair) {                                                           \
        for (int64_t row = 0; row < rows; row++) {                                                                     \
            const real *x = (const real *)pair->x + row * pair->ld_x;                                                  \
            const real *p = pair->p ? (const real *)pair->p + row * pair->ld_p : x;                                    \
            const real *m = (const real *)pair->m + row * pair->ld_m, level = *m;                                      \
            lanes s[4] = {{0}}, t[4] = {{0}};                                                                          \
            real all_s[LANES], all_t[LANES];                                                                           \
            int64_t i = 0;                                                                                             \
            (void)p, (void)level;                                                                                      \
            for (; i + STRIDE <= columns; i += STRIDE)                                                                 \
                _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {                                                  \
                    lanes d = VECTOR(x + i + k * LANES) - M(i + k * LANES), y = P(VECTOR(p + i + k * LANES), d);       \
                    s[k] += y;                                                                                         \
                    t[k] += y * d;                                                                                     \
                }                                                                                                      \
            *(lanes *)all_s = (s[0] + s[1]) + (s[2] + s[3]), *(lanes *)all_t = (t[0] + t[1]) + (t[2] + t[3]);          \
            for (; i < columns; i++) {                                                                                 \
                real d = x[i] - M_ONE(i), y = P(p[i], d);                                                              \
                all_s[i % LANES] += y;                                                                                 \
                all_t[i % LANES] += y * d;                                                                             \
            }                                                                                                          \
            JOIN_LANES(JOIN_SUM, LANES, all_s)                                                                         \
            JOIN_LANES(JOIN_SUM, LANES, all_t)                                                                         \
            sums[row] += (double)all_s[0], products[row] += (double)all_t[0];                                          \
        }                                                                                                              \
    }

/* Rows whose part of a column is accumulated in the element type. Kept small, because each addition rounds the whole
   partial sum. */
enum { PART_ROWS = 32 };

#define PAIR_OF_COLUMNS(function, P)                                                                                   \
    WIDE static void function##_part(int64_t begin, int64_t rows, int64_t columns, double *sums, double *products,     \
                                     const struct row_pair *pair) {                                                    \
        for (int64_t first = 0, count; first < columns; first += count) {                                              \
            int64_t ld_x = pair->ld_x, ld_p = pair->p ? pair->ld_p : ld_x;                                             \
            const real *x = (const real *)pair->x + begin * ld_x + first, *m = (const real *)pair->m + first;          \
            const real *p = pair->p ? (const real *)pair->p + begin * ld_p + first : x;                                \
            real all_s[4 * LANES] = {0}, all_t[4 * LANES] = {0};                                                       \
            count = part_of_columns(columns - first < 4 * LANES ? columns - first : 4 * LANES);                        \
            (void)p, (void)ld_p;                                                                                       \
            if (count == 4 * LANES) {                                                                                  \
                PAIR_OF_LANES(4, P)                                                                                    \
            } else if (count == 2 * LANES) {                                                                           \
                PAIR_OF_LANES(2, P)                                                                                    \
            }                                                                                                          \
            for (int64_t row = 0; row < rows && count < 2 * LANES; row++)                                              \
                for (int64_t k = 0; k < count; k++) {                                                                  \
                    real d = x[row * ld_x + k] - m[k], y = P(p[row * ld_p + k], d);                                    \
                    all_s[k] += y;                                                                                     \
                    all_t[k] += y * d;                                                                                 \
                }                                                                                                      \
            INDEPENDENT                                                                                                \
            for (int64_t k = 0; k < count; k++) {                                                                      \
                sums[first + k] += (double)all_s[k];                                                                   \
                products[first + k] += (double)all_t[k];                                                               \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void function(int64_t rows, int64_t columns, double *sums, double *products, const struct row_pair *pair) { \
        for (int64_t begin = 0; begin < rows; begin += PART_ROWS)                                                      \
            function##_part(begin, rows - begin < PART_ROWS ? rows - begin : PART_ROWS, columns, sums, products,       \
                            pair);                                                                                     \
    }

#define PAIR_OF_LANES(COUNT, P)                                                                                        \
    lanes s[COUNT] = {{0}}, t[COUNT] = {{0}};                                                                          \
    for (int64_t row = 0; row < rows; row++)                                                                           \
        _Pragma("GCC unroll 4") for (int k = 0; k < COUNT; k++) {                                                      \
            lanes d = VECTOR(x + row * ld_x + k * LANES) - VECTOR(m + k * LANES);                                      \
            lanes y = P(VECTOR(p + row * ld_p + k * LANES), d);                                                        \
            s[k] += y;                                                                                                 \
            t[k] += y * d;                                                                                             \
        }                                                                                                              \
    _Pragma("GCC unroll 4") for (int k = 0; k < COUNT; k++) {                                                          \
        *(lanes *)(all_s + k * LANES) = s[k];                                                                          \
        *(lanes *)(all_t + k * LANES) = t[k];                                                                          \
    }

#define EVERY_M(i) VECTOR(m + (i))
#define EVERY_M_ONE(i) m[i]
#define LEVEL(i) level
PAIR_OF_ROWS(rows_pair, OF_P, EVERY_M, EVERY_M_ONE)
PAIR_OF_ROWS(rows_deviations, OF_D, EVERY_M, EVERY_M_ONE)
PAIR_OF_ROWS(rows_pair_level, OF_P, LEVEL, LEVEL)
PAIR_OF_ROWS(rows_deviations_level, OF_D, LEVEL, LEVEL)
PAIR_OF_COLUMNS(columns_pair, OF_P)
PAIR_OF_COLUMNS(columns_deviations, OF_D)

static void pair_of_rows(int64_t rows, int64_t columns, double *sums, double *products, const struct row_pair *pair) {
    row_pair_reduction *const functions[2][2] = {{rows_deviations_level, rows_pair_level},
                                                 {rows_deviations, rows_pair}};
    functions[pair->step != 0][pair->p != NULL](rows, columns, sums, products, pair);
}

static void pair_of_columns(int64_t rows, int64_t columns, double *sums, double *products,
                            const struct row_pair *pair) {
    (pair->p ? columns_pair : columns_deviations)(rows, columns, sums, products, pair);
}

/* Sums a block first and then adds it to the total, so that fewer elements are added to an already large sum. */
#define COLUMN_SUM(function, AT, LANES_AT)                                                                             \
    WIDE static void function(int64_t rows, int64_t columns, void *sums, const void *xs, int64_t ld_x, const void *bs, \
                              int64_t ld_b) {                                                                          \
        for (int64_t first = 0, count; first < columns; first += count) {                                              \
            const real *x = (const real *)xs + first, *b = bs ? (const real *)bs + first : NULL;                       \
            real *y = (real *)sums + first, part[8 * LANES];                                                           \
            count = part_of_columns(columns - first);                                                                  \
            (void)b, (void)ld_b;                                                                                       \
            PARTS_OF_COLUMNS(JOIN_SUM, AT, PARTS_OF_LANES, LANES_AT)                                                   \
            INDEPENDENT                                                                                                \
            for (int64_t k = 0; k < count; k++)                                                                        \
                y[k] += part[k];                                                                                       \
        }                                                                                                              \
    }
COLUMN_SUM(add_columns, COLUMN_X, COLUMNS_X)
COLUMN_SUM(add_columns_of_products, COLUMN_PRODUCT, COLUMNS_PRODUCT)

static void add_any_columns(int64_t rows, int64_t columns, void *sums, const void *x, int64_t ld_x, const void *b,
                            int64_t ld_b) {
    (b ? add_columns_of_products : add_columns)(rows, columns, sums, x, ld_x, b, ld_b);
}

/* ---- Other kernels ----------------------------------------------------------------------------------------------- */

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

WIDE static void fill_chunks(int64_t count, void *y, const void *values) {
    real *to = y;
    for (int64_t i = 0; i < count; i++, to += ROW_CHUNK)
        for (int k = 0; k < ROW_CHUNK; k++)
            to[k] = ((const real *)values)[i];
}

WIDE static void of_totals(int64_t count, void *y, const double *totals) {
    real *to = y;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = (real)totals[i];
}

const struct row_kernels KERNELS = {formulas,        find_of_rows,    find_of_columns, pair_of_rows,
                                    pair_of_columns, add_any_columns, scale,           fill,
                                    fill_chunks,     of_totals};
