/* SPDX-License-Identifier: Apache-2.0 */
/* The plan and the memory that the float and the double version of the recurrent family share. */
#ifndef WEFT_ENGINES_CPU_RECURRENT_H
#define WEFT_ENGINES_CPU_RECURRENT_H

#include "engines/cpu/product/gemm.h"
#include "graph/graph.h"
#include "graph/ops/recurrence.h"

/* An operand and its index among the graph's values. value: -1 if it is absent. */
struct operand {
    const struct tensor *tensor;
    int value;
};

struct recurrent {
    const struct recurrence_op *op;
    bool is_backward, is_double;
    struct recurrence_sizes sizes;
    /* Parts of the batch, each processed by one thread without waiting for others; 1 part uses all threads. */
    int64_t parts, entries; /* number of parts, and sequences of each, except perhaps the last */
    int threads;            /* of the products of a part */
    bool packs;             /* the matrices are packed before the first step */
    struct operand x, weight, bias, hx, cx, seq_len, projection, y, hy, cy, gates;
    struct operand dy, dhy, dcy, dx, drecurrent, previous, dhx, dcx, dprojected, unprojected;
    /* Offsets in the workspace, and bytes of a part's memory and of its products' buffers. */
    int64_t weight_at, projection_at, bias_at, parts_at, part_bytes, product_bytes;
};

/* Elements of a part's buffers per sequence. */
static inline int64_t recurrent_numbers(const struct recurrence_sizes *s) {
    return 3 * s->projected + 4 * s->units + (s->gates + 5) * s->units;
}

/* The product of a step with the weights, forward or backward, or with the projection. B and the sink are set later. */
struct gemm recurrent_product(const struct recurrent *c, bool is_projection);
struct gemm_matrix recurrent_matrix(const struct recurrent *c, bool is_projection, void *const *values);

/* Run all steps. */
void recurrent_run_f32(const struct recurrent *c, void *const *values, char *workspace);
void recurrent_run_f64(const struct recurrent *c, void *const *values, char *workspace);

#endif
