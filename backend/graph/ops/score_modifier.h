/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise operations on the scores of attention: a sub-graph that takes one score to another, with the indices of
   batch, head, query and key, and with operands that broadcast to the scores; and its gradients. */
#ifndef WEFT_GRAPH_OPS_SCORE_MODIFIER_H
#define WEFT_GRAPH_OPS_SCORE_MODIFIER_H

#include "graph/graph.h"

enum { SCORE_MODIFIER_VALUES_MAX = 128, SCORE_MODIFIER_GRADIENTS_MAX = 6 };

struct score_modifier {
    /* As attributes say. */
    struct graph *graph; /* NULL: none */
    int64_t input_uid, output_uid;
    int64_t gradient_input_uid, gradient_output_uid;
    struct list operands;      /* what it reads beside the score and its gradient */
    struct list gradient_uids; /* of operands whose gradients are wanted, */
    struct list gradients;     /* and these */
    /* As values of the graph; -1: none. */
    int input, output, gradient_input, gradient_output;
};

/* Finds the values, lists the operands, and refuses what no score can be taken through. names: the attributes. */
weftStatus_t score_modifier_resolve(struct score_modifier *modifier, struct descriptor *op,
                                    weftBackendAttributeName_t input_name, weftBackendAttributeName_t output_name,
                                    weftBackendAttributeName_t gradient_input_name,
                                    weftBackendAttributeName_t gradient_output_name);
/* Fills in what the gradients of operands leave unset. */
weftStatus_t score_modifier_infer(struct score_modifier *modifier, const struct descriptor *op);
/* What it reads and makes broadcasts to scores of these dims. */
weftStatus_t score_modifier_check(const struct score_modifier *modifier, const struct descriptor *op,
                                  const struct tensor *scores);

void score_modifier_copy(struct score_modifier *target, const struct score_modifier *source);

/* The operand, as a value of the modifier's graph, of which gradient i is. */
int score_modifier_source(const struct score_modifier *modifier, int64_t i);
/* Marks the values that one is made of. */
void score_modifier_mark_needed(const struct score_modifier *modifier, int value, bool *marks);
/* Marks the values whose derivative by `source` is not 0 everywhere. */
void score_modifier_mark_dependent(const struct score_modifier *modifier, int source, bool *marks);

/* Whether the modified score, where it is not -inf, is the score and something that does not depend on it. */
bool score_modifier_is_shift(const struct score_modifier *modifier);

/* Whether a gradient that is given is what it takes, times something that does not depend on it. */
bool score_modifier_gradient_is_linear(const struct score_modifier *modifier);

/* ---- The reference: one score, at [batch, head, query, key] ---- */

double score_modifier_apply(const struct score_modifier *modifier, const struct bindings *bindings,
                            const int64_t index[4], double score);
/* The gradient of the score from that of the modified one. */
double score_modifier_carry(const struct score_modifier *modifier, const struct bindings *bindings,
                            const int64_t index[4], double score, double gradient);
/* The same of the operand of gradient i, at this score. */
double score_modifier_carry_to(const struct score_modifier *modifier, int64_t i, const struct bindings *bindings,
                               const int64_t index[4], double score, double gradient);

#endif
