/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise operations on the scores of attention: a sub-graph that maps one score to another, and may read the indices
   of batch, head, query and key, and operands that broadcast to the scores. Also its gradients. */
#ifndef WEFT_GRAPH_OPS_SCORE_MODIFIER_H
#define WEFT_GRAPH_OPS_SCORE_MODIFIER_H

#include "graph/graph.h"

enum { SCORE_MODIFIER_VALUES_MAX = 128, SCORE_MODIFIER_GRADIENTS_MAX = 6 };

struct score_modifier {
    /* As set by attributes. */
    struct graph *graph; /* NULL: none */
    int64_t input_uid, output_uid;
    int64_t gradient_input_uid, gradient_output_uid;
    struct list operands;      /* operands that it reads, other than the score and its gradient */
    struct list gradient_uids; /* operands whose gradients are requested */
    struct list gradients;     /* the requested gradients, in the same order */
    /* Indices of values in the graph, or -1. */
    int input, output, gradient_input, gradient_output;
};

/* Looks up the values, lists the operands, and rejects graphs that cannot modify scores. `names`: the attributes. */
weftStatus_t score_modifier_resolve(struct score_modifier *modifier, struct descriptor *op,
                                    weftBackendAttributeName_t input_name, weftBackendAttributeName_t output_name,
                                    weftBackendAttributeName_t gradient_input_name,
                                    weftBackendAttributeName_t gradient_output_name);
/* Infers the fields that the gradients of operands leave unset. */
weftStatus_t score_modifier_infer(struct score_modifier *modifier, const struct descriptor *op);
/* Checks that operands and results broadcast to scores of these dims. */
weftStatus_t score_modifier_check(const struct score_modifier *modifier, const struct descriptor *op,
                                  const struct tensor *scores);

void score_modifier_copy(struct score_modifier *target, const struct score_modifier *source);

/* The value in the modifier's graph whose gradient is gradient i. */
int score_modifier_source(const struct score_modifier *modifier, int64_t i);
/* Marks the values that a value depends on. */
void score_modifier_mark_needed(const struct score_modifier *modifier, int value, bool *marks);
/* Marks the values whose derivative by `source` is not identically 0. */
void score_modifier_mark_dependent(const struct score_modifier *modifier, int source, bool *marks);

/* True if the modified score, unless it is -inf, is the score plus a term that does not depend on it. */
bool score_modifier_is_shift(const struct score_modifier *modifier);

/* True if a user-defined gradient is its input times a factor that does not depend on it. */
bool score_modifier_gradient_is_linear(const struct score_modifier *modifier);

/* ---- The reference: one score, at [batch, head, query, key] ---- */

double score_modifier_apply(const struct score_modifier *modifier, const struct bindings *bindings,
                            const int64_t index[4], double score);
/* The gradient of the score, given that of the modified score. */
double score_modifier_carry(const struct score_modifier *modifier, const struct bindings *bindings,
                            const int64_t index[4], double score, double gradient);
/* The gradient of the operand of gradient i at this score. */
double score_modifier_carry_to(const struct score_modifier *modifier, int64_t i, const struct bindings *bindings,
                               const int64_t index[4], double score, double gradient);

#endif
