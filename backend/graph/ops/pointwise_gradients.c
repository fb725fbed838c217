/* SPDX-License-Identifier: Apache-2.0 */
/* The table of derivatives by mode: includes graph/ops/pointwise_gradients.h twice, as functions and as rows. The
   gradients of score modifiers are derived from it. */
#include "graph/ops/pointwise.h"

#include <math.h>

#define C(literal) ((double)(literal))
/* GRADIENT_BY rows need no function here, because the backward mode that they name has one. */
#define GRADIENT_BY(name, backward)
#define GRADIENT(name, of_x, of_b)                                                                                     \
    static double name##_x(double x, double b, double t, double y, double dy) {                                        \
        (void)x, (void)b, (void)t, (void)y, (void)dy;                                                                  \
        return of_x;                                                                                                   \
    }                                                                                                                  \
    static double name##_b(double x, double b, double t, double y, double dy) {                                        \
        (void)x, (void)b, (void)t, (void)y, (void)dy;                                                                  \
        return of_b;                                                                                                   \
    }
#include "graph/ops/pointwise_gradients.h"
#undef GRADIENT
#undef GRADIENT_BY
#undef C

static const struct pointwise_gradient gradients[] = {
#define GRADIENT(name, of_x, of_b) {WEFT_POINTWISE_##name, #of_x, #of_b, name##_x, name##_b, -1},
#define GRADIENT_BY(name, backward) {WEFT_POINTWISE_##name, NULL, NULL, NULL, NULL, WEFT_POINTWISE_##backward},
#include "graph/ops/pointwise_gradients.h"
#undef GRADIENT
#undef GRADIENT_BY
};

/* NULL for modes without a derivative, such as comparisons. */
const struct pointwise_gradient *pointwise_find_gradient(int mode) {
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        if (gradients[i].mode == mode)
            return &gradients[i];
    return NULL;
}

/* The text of the derivative by x, or by b; modes with a backward mode have only x. */
const char *pointwise_gradient_formula(const struct pointwise_gradient *gradient, bool of_b) {
    if (gradient->backward_mode >= 0)
        return of_b ? "0" : pointwise_find_mode(gradient->backward_mode)->formula;
    return of_b ? gradient->of_b : gradient->of_x;
}
