/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the matchers of attention share: queries of the graph, and parts of the pattern. */
#ifndef WEFT_GRAPH_PATTERNS_MATCH_H
#define WEFT_GRAPH_PATTERNS_MATCH_H

#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reduction.h"
#include "graph/ops/reshape.h"
#include "graph/patterns/attention.h"

/* A pattern without nodes. */
struct attention_pattern pattern_empty(const struct graph *graph);

/* The node that computes a tensor, or -1 if the tensor is an input. */
int pattern_producer(const struct attention_pattern *s, const struct tensor *tensor);
/* The operation at a node. For pointwise nodes: the operation by its own type, its result, and its form. */
const struct descriptor *pattern_op(const struct attention_pattern *s, int node);
bool pattern_is_pointwise(const struct attention_pattern *s, int node);
const struct pointwise_op *pattern_pointwise(const struct attention_pattern *s, int node);
const struct tensor *pattern_result(const struct attention_pattern *s, int node);
enum pointwise_form pattern_form(const struct attention_pattern *s, int node);
/* The pointwise operation that computes a tensor, or NULL if another operation or another mode computes it. */
const struct pointwise_op *pattern_produced_by(const struct attention_pattern *s, const struct tensor *tensor,
                                               int mode);
/* Index of a node in the pattern, or -1 if it is not part of it. */
int pattern_index(const struct attention_pattern *s, int node);
bool pattern_contains(const struct attention_pattern *s, int node);
/* Add a node to the pattern, remove the node at an index, and sort the nodes in topological order. */
weftStatus_t pattern_add(struct attention_pattern *s, int node);
void pattern_remove(struct attention_pattern *s, int index);
void pattern_sort(struct attention_pattern *s);
/* Return NOT_SUPPORTED with the name of a node or tensor, followed by `reason`. */
weftStatus_t pattern_decline(const struct attention_pattern *s, int node, const char *reason);
weftStatus_t pattern_decline_tensor(const struct tensor *tensor, const char *reason);
/* True if `reader` is the only consumer of a virtual tensor. */
bool pattern_is_private(const struct attention_pattern *s, const struct tensor *tensor, int reader);
/* The reshape at a node if its output is a view of its input's memory, otherwise NULL. */
const struct reshape_op *pattern_view_at(const struct attention_pattern *s, int node);
/* True if a node only swaps the last two dimensions, and possibly converts: a transpose, or a reshape of the same
   storage with swapped strides. */
bool pattern_swaps(const struct attention_pattern *s, int node, const struct tensor **x, const struct tensor **y);
/* Scores or weights before a reshape that only joins or splits batch and head dimensions. */
const struct tensor *pattern_skip_view(const struct attention_pattern *s, const struct tensor *tensor);
/* Like pattern_skip_view, for a tensor of the attention; also adds the reshape to the pattern. */
weftStatus_t pattern_add_view(struct attention_pattern *s, const struct tensor **tensor);
/* True if a node outside of the pattern reads a tensor or a view of it. */
bool pattern_is_read_outside(const struct attention_pattern *s, const struct tensor *tensor);
/* The only node that reads a tensor's elements, or -1 if no node or more than one reads them. */
int pattern_sole_reader(const struct attention_pattern *s, const struct tensor *tensor);
/* True if the tensor's type is at least as precise as attention's values on chip. */
bool pattern_is_exact(const struct attention_pattern *s, const struct tensor *tensor);
/* Declines operations that do not calculate in the same type as the rest, FLOAT or DOUBLE. */
weftStatus_t pattern_check_math(struct attention_pattern *s, const struct descriptor *op, weftDataType_t math);
/* Reads the value of a constant with one element. */
bool pattern_read_constant(const struct tensor *tensor, double *number);
/* Reads the number by which an operation multiplies a tensor: c x, x / c, or a conversion of x. */
bool pattern_read_factor(const struct pointwise_op *op, const struct tensor **x, double *factor);
/* Adds a matmul of plain tensors. */
weftStatus_t pattern_check_product(struct attention_pattern *s, int node);
/* An operand or the result of a product as it is, without following views. */
struct pattern_view pattern_view_of(const struct tensor *tensor, const struct matmul_op *op);
/* Replaces an operand of a product by the tensor in memory before transposes, and before scaling if `factor` is not
   NULL. */
weftStatus_t pattern_look_through(struct attention_pattern *s, struct pattern_view *view, int reader, double *factor);
/* Replaces a product's result by the tensor that is stored in the end, with contiguous columns: after transposes,
   reshapes, and scaling if `factor` is not NULL. is_transposed: the view is that of the transposed result. */
weftStatus_t pattern_follow_result(struct attention_pattern *s, struct pattern_view *view, bool is_transposed,
                                   double *factor);
/* Swaps the last two dimensions. */
void pattern_swap_last(struct pattern_view *view);

/* Matches from the weights up to the scores: a softmax, or its parts. */
weftStatus_t pattern_match_softmax(struct attention_pattern *s, int node);
/* The reduction of rows of x that computes a tensor, or NULL if another operation does. */
const struct reduction_op *pattern_reduced_by(const struct attention_pattern *s, const struct tensor *tensor, int mode);
/* True if an operation drops some of the weights. Sets `weights` to the tensor before dropout and multiplies *scale by
   the scale factor of dropout. */
bool pattern_match_dropout(struct attention_pattern *s, const struct pointwise_op *op, const struct tensor **weights,
                           double *dropout_scale);
/* Checks that the dropout is the one that attention has, or that there is neither dropout nor a scale factor. */
weftStatus_t pattern_check_dropout(struct attention_pattern *s, int node, double dropout_scale);
/* Factors of products may be rounded to a type that the user set only if it is the type of the other factor. */
weftStatus_t pattern_check_weights(const struct attention_pattern *s, const struct tensor *weights,
                                   const struct tensor *other);

/* Checks that no node outside of the pattern reads its intermediate results. */
weftStatus_t pattern_check_closed(const struct attention_pattern *s);

/* Matches from the softmax's input up to queries and keys: the product, and all nodes that may be part of a score
   modifier. */
weftStatus_t pattern_gather_scores(struct attention_pattern *s);
/* Separates scale, bias and masks from these nodes; the rest is the score modifier. All nodes of the pattern are known
   at this point. */
void pattern_split_scores(struct attention_pattern *s);
/* Peels a select that hides scores by -inf where its mask is false; the nodes of the mask belong to the pattern. */
bool pattern_peel_infinite_mask(struct attention_pattern *s, const struct pointwise_op *select);
/* Adds the pointwise operations that a tensor is computed by. Stops at tensors that no pointwise operation computes,
   and at nodes that the pattern contains already. */
weftStatus_t pattern_gather(struct attention_pattern *s, const struct tensor *tensor, bool modifies);

#endif
