/* SPDX-License-Identifier: Apache-2.0 */
/* What the search for spelled attention asks of the graph around it. */
#ifndef WEFT_GRAPH_PATTERNS_MATCH_H
#define WEFT_GRAPH_PATTERNS_MATCH_H

#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reduction.h"
#include "graph/ops/reshape.h"
#include "graph/patterns/attention.h"

/* The search's beginning. */
struct attention_pattern pattern_empty(const struct graph *graph);

/* The node that makes a tensor; -1: none, it is an input. */
int pattern_producer(const struct attention_pattern *s, const struct tensor *tensor);
/* The operation at a node; where it is a pointwise one, as such, its result and its form. */
const struct descriptor *pattern_op(const struct attention_pattern *s, int node);
bool pattern_is_pointwise(const struct attention_pattern *s, int node);
const struct pointwise_op *pattern_pointwise(const struct attention_pattern *s, int node);
const struct tensor *pattern_result(const struct attention_pattern *s, int node);
enum pointwise_form pattern_form(const struct attention_pattern *s, int node);
/* The pointwise operation of this mode that makes a tensor; NULL: another one does. */
const struct pointwise_op *pattern_produced_by(const struct attention_pattern *s, const struct tensor *tensor,
                                               int mode);
/* Where a node stands among those that spell the attention; -1: it is none of them. */
int pattern_index(const struct attention_pattern *s, int node);
bool pattern_contains(const struct attention_pattern *s, int node);
/* Adds a node to them; takes one out, by its place; puts them in order. */
weftStatus_t pattern_add(struct attention_pattern *s, int node);
void pattern_remove(struct attention_pattern *s, int place);
void pattern_sort(struct attention_pattern *s);
/* NOT_SUPPORTED, with the name of a node, or of a tensor, before what is to be said of it. */
weftStatus_t pattern_decline(const struct attention_pattern *s, int node, const char *what);
weftStatus_t pattern_decline_tensor(const struct tensor *tensor, const char *what);
/* Whether a tensor is read by one node alone, and by nobody who could be told. */
bool pattern_is_private(const struct attention_pattern *s, const struct tensor *tensor, int reader);
/* The reshape, at a node, that is another view of its input's memory; NULL: something else is there. */
const struct reshape_op *pattern_view_at(const struct attention_pattern *s, int node);
/* Scores, or weights, under the extents in which an operation made them. */
const struct tensor *pattern_skip_view(const struct attention_pattern *s, const struct tensor *tensor);
/* The same of a tensor of the attention, which takes the view, too. */
weftStatus_t pattern_add_view(struct attention_pattern *s, const struct tensor **tensor);
/* Whether something outside of what spells the attention reads a tensor, or a view of it. */
bool pattern_is_read_outside(const struct attention_pattern *s, const struct tensor *tensor);
/* The one node that minds a tensor's elements; -1: none does, or several. */
int pattern_sole_reader(const struct attention_pattern *s, const struct tensor *tensor);
/* Whether a tensor keeps what attention keeps of a number on chip. */
bool pattern_is_exact(const struct attention_pattern *s, const struct tensor *tensor);
/* Refuses what is not calculated as the rest is, in FLOAT or DOUBLE. */
weftStatus_t pattern_check_math(struct attention_pattern *s, const struct descriptor *op, weftDataType_t math);
/* The number of a constant of one element. */
bool pattern_read_constant(const struct tensor *tensor, double *number);
/* What an operation multiplies a tensor by, where that is a number: c x, x / c, and x in another type. */
bool pattern_read_factor(const struct pointwise_op *op, const struct tensor **x, double *factor);
/* Takes a matmul of plain tensors. */
weftStatus_t pattern_check_product(struct attention_pattern *s, int node);
/* A factor, or the result, of a product as it is. */
struct pattern_view pattern_view_of(const struct tensor *tensor, const struct matmul_op *op);
/* An operand of a product as it lies in memory, before it was transposed, and scaled where `factor` is not NULL. */
weftStatus_t pattern_look_through(struct attention_pattern *s, struct pattern_view *view, int reader, double *factor);
/* The result as it will lie in memory: transposed, with columns side by side, under other extents, and scaled where
   `factor` is not NULL. is_transposed: the view is that of the transposed result. */
weftStatus_t pattern_follow_result(struct attention_pattern *s, struct pattern_view *view, bool is_transposed,
                                   double *factor);
/* With its last two dimensions exchanged. */
void pattern_swap_last(struct pattern_view *view);

/* From the weights to the scores: a softmax, or what one is made of. */
weftStatus_t pattern_match_softmax(struct attention_pattern *s, int node);
/* The reduction of rows of x that makes a tensor; NULL: something else does. */
const struct reduction_op *pattern_reduced_by(const struct attention_pattern *s, const struct tensor *tensor, int mode);
/* Whether an operation drops some of the weights; then `weights` are those before, which grow by *growth. */
bool pattern_match_dropout(struct attention_pattern *s, const struct pointwise_op *op, const struct tensor **weights,
                           double *growth);
/* Dropout as attention has it, or none and no growth. */
weftStatus_t pattern_check_dropout(struct attention_pattern *s, int node, double growth);
/* Factors of products are rounded to a type that was set only where that is the type of the other factor. */
weftStatus_t pattern_check_weights(const struct attention_pattern *s, const struct tensor *weights,
                                   const struct tensor *other);

/* Nothing on the way but what attention gives is wanted elsewhere. */
weftStatus_t pattern_check_closed(const struct attention_pattern *s);

/* From the scores that the softmax takes to queries and keys: the product, and all that could be a modifier of it. */
weftStatus_t pattern_gather_scores(struct attention_pattern *s);
/* Of that, the scale, bias and masks; what is left is the score modifier. All that spells the attention is taken. */
void pattern_split_scores(struct attention_pattern *s);
/* Takes the pointwise operations that lead to a tensor. Ends at what no pointwise operation makes, and at nodes that
   are taken already. */
weftStatus_t pattern_gather(struct attention_pattern *s, const struct tensor *tensor, bool modifies);

#endif
