/* SPDX-License-Identifier: Apache-2.0 */
/* What the search for spelled attention asks of the graph around it. */
#ifndef WEFT_GRAPH_SPELLED_PARTS_H
#define WEFT_GRAPH_SPELLED_PARTS_H

#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reduction.h"
#include "graph/ops/reshape.h"
#include "graph/spelled/attention.h"

/* The search's beginning. */
struct spelled_attention spelled_nothing(const struct graph *graph);

/* The node that makes a tensor; -1: none, it is an input. */
int spelled_maker(const struct spelled_attention *s, const struct tensor *tensor);
/* The operation at a node; where it is a pointwise one, as such, its result and its form. */
const struct descriptor *spelled_op(const struct spelled_attention *s, int node);
bool spelled_is_pointwise(const struct spelled_attention *s, int node);
const struct pointwise_op *spelled_pointwise(const struct spelled_attention *s, int node);
const struct tensor *spelled_result(const struct spelled_attention *s, int node);
enum pointwise_form spelled_form(const struct spelled_attention *s, int node);
/* The pointwise operation of this mode that makes a tensor; NULL: another one does. */
const struct pointwise_op *spelled_made_by(const struct spelled_attention *s, const struct tensor *tensor, int mode);
/* Where a node stands among those that spell the attention; -1: it is none of them. */
int spelled_place(const struct spelled_attention *s, int node);
bool spelled_has(const struct spelled_attention *s, int node);
/* Adds a node to them; takes one out, by its place; puts them in order. */
weftStatus_t spelled_take(struct spelled_attention *s, int node);
void spelled_drop(struct spelled_attention *s, int place);
void spelled_sort(struct spelled_attention *s);
/* NOT_SUPPORTED, with the name of a node, or of a tensor, before what is to be said of it. */
weftStatus_t spelled_refuse(const struct spelled_attention *s, int node, const char *what);
weftStatus_t spelled_refuse_tensor(const struct tensor *tensor, const char *what);
/* Whether a tensor is read by one node alone, and by nobody who could be told. */
bool spelled_is_private(const struct spelled_attention *s, const struct tensor *tensor, int reader);
/* The reshape, at a node, that is another view of its input's memory; NULL: something else is there. */
const struct reshape_op *spelled_view_at(const struct spelled_attention *s, int node);
/* Scores, or weights, under the extents in which an operation made them. */
const struct tensor *spelled_behind_view(const struct spelled_attention *s, const struct tensor *tensor);
/* The same of a tensor of the attention, which takes the view, too. */
weftStatus_t spelled_take_view(struct spelled_attention *s, const struct tensor **tensor);
/* Whether something outside of what spells the attention reads a tensor, or a view of it. */
bool spelled_is_wanted(const struct spelled_attention *s, const struct tensor *tensor);
/* The one node that minds a tensor's elements; -1: none does, or several. */
int spelled_sole_reader(const struct spelled_attention *s, const struct tensor *tensor);
/* Whether a tensor keeps what attention keeps of a number on chip. */
bool spelled_is_exact(const struct spelled_attention *s, const struct tensor *tensor);
/* Refuses what is not calculated as the rest is, in FLOAT or DOUBLE. */
weftStatus_t spelled_note_math(struct spelled_attention *s, const struct descriptor *op, weftDataType_t math);
/* The number of a constant of one element. */
bool spelled_read_constant(const struct tensor *tensor, double *number);
/* What an operation multiplies a tensor by, where that is a number: c x, x / c, and x in another type. */
bool spelled_read_factor(const struct pointwise_op *op, const struct tensor **x, double *factor);
/* Takes a matmul of plain tensors. */
weftStatus_t spelled_check_product(struct spelled_attention *s, int node);
/* A factor, or the result, of a product as it is. */
struct spelled_view spelled_view_of(const struct tensor *tensor, const struct matmul_op *op);
/* An operand of a product as it lies in memory, before it was transposed, and scaled where `factor` is not NULL. */
weftStatus_t spelled_look_through(struct spelled_attention *s, struct spelled_view *view, int reader, double *factor);
/* The result as it will lie in memory: transposed, with columns side by side, under other extents, and scaled where
   `factor` is not NULL. is_transposed: the view is that of the transposed result. */
weftStatus_t spelled_look_behind(struct spelled_attention *s, struct spelled_view *view, bool is_transposed,
                                 double *factor);
/* With its last two dimensions exchanged. */
void spelled_swap_last(struct spelled_view *view);

/* From the weights to the scores: a softmax, or what one is made of. */
weftStatus_t spelled_take_softmax(struct spelled_attention *s, int node);
/* The reduction of rows of x that makes a tensor; NULL: something else does. */
const struct reduction_op *spelled_reduced_by(const struct spelled_attention *s, const struct tensor *tensor, int mode);
/* Whether an operation drops some of the weights; then `weights` are those before, which grow by *growth. */
bool spelled_drops(struct spelled_attention *s, const struct pointwise_op *op, const struct tensor **weights,
                   double *growth);
/* Dropout as attention has it, or none and no growth. */
weftStatus_t spelled_check_dropout(struct spelled_attention *s, int node, double growth);
/* Factors of products are rounded to a type that was set only where that is the type of the other factor. */
weftStatus_t spelled_check_weights(const struct spelled_attention *s, const struct tensor *weights,
                                   const struct tensor *other);

/* Nothing on the way but what attention gives is wanted elsewhere. */
weftStatus_t spelled_check_closed(const struct spelled_attention *s);

/* From the scores that the softmax takes to queries and keys: the product, and all that could be a modifier of it. */
weftStatus_t spelled_gather_scores(struct spelled_attention *s);
/* Of that, the scale, bias and masks; what is left is the score modifier. All that spells the attention is taken. */
void spelled_part_scores(struct spelled_attention *s);
/* Takes the pointwise operations that lead to a tensor. Ends at what no pointwise operation makes, and at nodes that
   are taken already. */
weftStatus_t spelled_gather(struct spelled_attention *s, const struct tensor *tensor, bool modifies);

#endif
