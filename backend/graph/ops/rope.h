/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding and its gradient: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_ROPE_H
#define WEFT_GRAPH_OPS_ROPE_H

#include "graph/op.h"

/* Shared by both directions: x and y are dy and dx of the gradient. */
struct rope_op {
    struct descriptor base;
    int32_t math;
    double scale;
    int64_t rotated; /* as set by the user; 0: all elements */
    bool is_interleaved;
    struct tensor *x, *y, *freqs, *positions;
};

extern const struct op rope_op;
extern const struct op rope_backward_op;

enum { ROPE_BATCH, ROPE_HEAD, ROPE_STEP, ROPE_ELEMENT };

/* Elements at the end of a head that are rotated, and those before them. */
static inline int64_t rope_rotated(const struct rope_op *op) {
    return op->rotated ? op->rotated : op->x->dims.at[ROPE_ELEMENT];
}
static inline int64_t rope_kept(const struct rope_op *op) { return op->x->dims.at[ROPE_ELEMENT] - rope_rotated(op); }

/* The elements of pair i among the rotated ones: first and first + distance. */
static inline int64_t rope_first(const struct rope_op *op, int64_t i) { return op->is_interleaved ? 2 * i : i; }
static inline int64_t rope_distance(const struct rope_op *op) { return op->is_interleaved ? 1 : rope_rotated(op) / 2; }

/* True if `positions` has the position of each sequence's first token only. */
static inline bool rope_has_offsets(const struct rope_op *op) {
    return op->positions && op->positions->dims.at[ROPE_STEP] == 1;
}

#endif
