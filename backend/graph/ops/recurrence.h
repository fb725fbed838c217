/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a recurrent layer and their gradients: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_RECURRENCE_H
#define WEFT_GRAPH_OPS_RECURRENCE_H

#include "graph/op.h"

/* Shared by both directions. Absent tensors are NULL. */
struct recurrence_op {
    struct descriptor base;
    int32_t mode, math;
    bool is_reverse;
    double clip_min, clip_max;
    struct tensor *x, *weight, *bias, *hx, *cx, *seq_len, *projection, *y, *hy, *cy, *gates;
    struct tensor *dy, *dhy, *dcy, *dx, *drecurrent, *previous, *dhx, *dcx, *dprojected, *unprojected;
};

extern const struct op recurrence_op;
extern const struct op recurrence_bwd_op;

/* Dimensions of x, y and the like. */
enum { RECURRENCE_TIME, RECURRENCE_BATCH, RECURRENCE_UNIT };

/* Rows of the recurrent weights per hidden unit: i, f, g, o of LSTM; r, z, n of GRU. */
static inline int64_t recurrence_gates(int32_t mode) {
    return mode == WEFT_RNN_MODE_LSTM ? 4 : mode == WEFT_RNN_MODE_GRU ? 3 : 1;
}

/* Numbers per hidden unit and step in `gates`: LSTM's gates and its cell state; GRU's gates, and the recurrent product
   of n with its bias. The others need only y. */
static inline int64_t recurrence_saved(int32_t mode) {
    return mode == WEFT_RNN_MODE_LSTM ? 5 : mode == WEFT_RNN_MODE_GRU ? 4 : 0;
}

/* Extents of a layer. `projected` is the size of the hidden state, which equals `units` without a projection. */
struct recurrence_sizes {
    int64_t steps, batch, gates, units, projected;
};

static inline struct recurrence_sizes recurrence_sizes(const struct recurrence_op *op) {
    const struct tensor *sequences = op->x ? op->x : op->y;
    int64_t gates = recurrence_gates(op->mode);
    return (struct recurrence_sizes){sequences->dims.at[RECURRENCE_TIME], sequences->dims.at[RECURRENCE_BATCH], gates,
                                     op->weight->dims.at[0] / gates, op->weight->dims.at[1]};
}

static inline bool recurrence_clips(const struct recurrence_op *op) { return op->clip_max > op->clip_min; }

enum { RECURRENCE_TENSORS = 21 };

/* All tensors of an operation, NULL if absent, in a fixed order. */
void recurrence_tensors(const struct recurrence_op *op, const struct tensor *tensors[RECURRENCE_TENSORS]);

#endif
