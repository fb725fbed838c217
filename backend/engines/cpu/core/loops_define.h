/* SPDX-License-Identifier: Apache-2.0 */
/* The body of loops_f32.c and loops_f64.c: one loop per mode over elements of type `real`. No include guard: define
   real, FIND_LOOP and the mathematical functions before including it. */
#include "engines/cpu/core/vector.h"

#define C(literal) ((real)(literal))
#define MODE(name, form, formula, method, arguments, doc)                                                              \
    WIDE static void loop_##name(int64_t count, void *y_row, const void *x_row, const void *b_row, const void *t_row,  \
                                 const struct pointwise_parameters *p) {                                               \
        const real *xs = x_row, *bs = b_row, *ts = t_row;                                                              \
        real *ys = y_row;                                                                                              \
        const real lower = (real)p->lower, upper = (real)p->upper, slope = (real)p->slope;                             \
        const real alpha = (real)p->alpha, beta = (real)p->beta;                                                       \
        (void)lower, (void)upper, (void)slope, (void)alpha, (void)beta;                                                \
        INDEPENDENT                                                                                                    \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            const real x = xs[i], b = bs[i], t = ts[i], dy = b;                                                        \
            (void)x, (void)b, (void)t, (void)dy;                                                                       \
            ys[i] = (real)(formula);                                                                                   \
        }                                                                                                              \
    }
#include "graph/ops/pointwise_modes.h"
#undef MODE

pointwise_loop *FIND_LOOP(int mode) {
    switch (mode) {
#define MODE(name, ...)                                                                                                \
    case WEFT_POINTWISE_##name:                                                                                        \
        return loop_##name;
#include "graph/ops/pointwise_modes.h"
#undef MODE
    }
    return NULL;
}
#undef C
