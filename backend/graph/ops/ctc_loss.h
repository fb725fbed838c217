/* SPDX-License-Identifier: Apache-2.0 */
/* The CTC loss of sequences without alignment, and its gradient: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_CTC_LOSS_H
#define WEFT_GRAPH_OPS_CTC_LOSS_H

#include "graph/op.h"

/* Shared by both directions: loss is a result of forward, dloss and dlog_probs belong to backward. Absent tensors are
   NULL. */
struct ctc_loss_op {
    struct descriptor base;
    int32_t math;
    bool zero_infinity;
    int64_t blank, max_target_length;
    struct tensor *log_probs, *targets, *input_lengths, *target_lengths;
    struct tensor *loss, *log_alpha; /* log_alpha: a result of forward, an operand of backward */
    struct tensor *dloss, *dlog_probs;
};

extern const struct op ctc_loss_op;
extern const struct op ctc_loss_bwd_op;

/* Dimensions of log_probs. */
enum { CTC_TIME, CTC_BATCH, CTC_CLASS };

/* Targets without padding: those of all sequences one after the other. */
static inline bool ctc_is_concatenated(const struct ctc_loss_op *op) { return op->targets->dims.count == 1; }
/* The largest number of labels of a sequence. */
static inline int64_t ctc_labels(const struct ctc_loss_op *op) {
    return ctc_is_concatenated(op) && op->max_target_length > 0 ? op->max_target_length
                                                                : op->targets->dims.at[op->targets->dims.count - 1];
}
/* Labels, with a blank before, between and after them. */
static inline int64_t ctc_states(const struct ctc_loss_op *op) { return 2 * ctc_labels(op) + 1; }

#endif
