/* SPDX-License-Identifier: Apache-2.0 */
/* Each pointwise mode as one loop over contiguous rows, in float and in double: the formula of the mode table, written
   so that compilers vectorize it. This file must not know tensors or graphs. */
#ifndef WEFT_ENGINES_CPU_LOOPS_H
#define WEFT_ENGINES_CPU_LOOPS_H

#include "graph/ops/pointwise.h"

/* y[i] = formula(x[i], b[i], t[i]). Rows are float or double. All pointers must be valid, even those of operands that
   the mode does not have. y may be exactly x, b or t. */
typedef void pointwise_loop(int64_t count, void *y, const void *x, const void *b, const void *t,
                            const struct pointwise_parameters *p);

pointwise_loop *loop_f32(int mode);
pointwise_loop *loop_f64(int mode);

/* Approximate time of a mode's loop, in nanoseconds per element. */
double loop_cost(int mode, bool is_wide);

#endif
