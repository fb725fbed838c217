/* SPDX-License-Identifier: Apache-2.0 */
/* The random number operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_RNG_H
#define WEFT_GRAPH_OPS_RNG_H

#include "graph/op.h"

struct rng {
    struct descriptor base;
    int32_t distribution; /* weftRngDistribution_t */
    double mean, deviation, least, most, probability;
};

struct rng_op {
    struct descriptor base;
    struct rng *parameters;
    int64_t seed;
    struct tensor *seed_tensor; /* replaces the seed if set */
    struct tensor *offset;      /* NULL: 0 */
    struct tensor *y;
};

extern const struct op rng_op;
extern const struct schema rng_schema;

/* The value of a scalar integer operand, or `otherwise` if it is absent. */
int64_t rng_scalar(const struct bindings *bindings, const struct tensor *tensor, int64_t otherwise);

#endif
