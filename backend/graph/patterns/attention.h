/* SPDX-License-Identifier: Apache-2.0 */
/* Matches attention that a graph builds from other operations: a product of queries and keys, pointwise operations on
   the scores, a softmax or its parts, dropout, and the product with the values. Also matches the backward pass, with or
   without the forward pass. A match is rewritten as one sdpa_fwd, one sdpa_bwd, or both. */
#ifndef WEFT_GRAPH_PATTERNS_ATTENTION_H
#define WEFT_GRAPH_PATTERNS_ATTENTION_H

#include "graph/graph.h"
#include "graph/ops/attention.h"
#include "graph/ops/rng.h"

enum { PATTERN_NODES_MAX = 64 };

/* A tensor of the graph, seen with other dims and strides. */
struct pattern_view {
    const struct tensor *tensor;
    struct dims dims, strides;
    const struct dims *product_dims; /* dims of the product that reads or computes the tensor */
};

/* A node of the pattern. The score modifier consists of the nodes with `modifies`, its backward pass of those with
   `modifies_gradient`. */
struct pattern_node {
    int node;
    bool modifies, modifies_gradient;
    bool is_view; /* computes a view of an operand; stays outside if other nodes read the view */
};

struct attention_pattern {
    const struct graph *graph;
    int count;
    struct pattern_node nodes[PATTERN_NODES_MAX]; /* nodes of the pattern, in topological order */

    struct pattern_view q, k, v, o; /* [.., Sq, Dqk], [.., Skv, Dqk], [.., Skv, Dv], [.., Sq, Dv] */
    const struct tensor *scores;    /* input of the softmax: [.., Sq, Skv] */
    const struct tensor *product;   /* scaled product, which is the modifier's input */
    const struct tensor *modified;  /* the modifier's output; equal to `product` if there is no modifier */
    bool is_rounded;                /* the product is rounded to a type that the user set */
    bool hides_by_number;           /* true if a mask that was replaced by bounds used a large negative number instead
                                       of -inf */
    const struct tensor *scale, *bias, *sink;
    const struct tensor *stats, *max, *sum_exp; /* NULL if not read */
    const struct rng_op *dropout;               /* NULL if there is no dropout, or if it is a mask */
    const struct tensor *drop_mask;             /* dropout mask in memory, or NULL */
    double dropout_scale;                       /* scale factor of the weights that a mask keeps */
    double scale_value;
    int64_t left_bound, right_bound;
    weftDataType_t math;

    /* Backward pass. o.tensor is NULL if only the sums of the softmax gradient need O. */
    bool is_gradient, computes_o;        /* computes_o: O is computed by this pattern and is not an input */
    struct pattern_view d_o, dq, dk, dv; /* tensor is NULL if not read */
    const struct tensor *stored_sums;    /* row sums of dO o that are computed outside, or NULL */
    struct pattern_view dq_sums;         /* dQ as FLOAT, which is stored, too; tensor is NULL if it is not */
    const struct tensor *dbias;          /* NULL: none */
    const struct tensor *given_stats;    /* weights are exp(scores - given_stats); NULL if a softmax computes them */
    const struct tensor *d_modified;     /* the gradient of `modified`, which is the input of the modifier's backward
                                            pass */
    const struct tensor *d_product;      /* the output of the modifier's backward pass; times d_product_factor it is the
                                            gradient of `product` */
    double d_product_factor;
};

/* Matches attention whose product of weights and values is `node`. Returns NOT_SUPPORTED* with a reason if there is no
   match, if a node outside of the pattern reads a score, or if a score is rounded where attention does not round. */
weftStatus_t attention_pattern_match(struct attention_pattern *match, const struct graph *graph, int node);

/* Matches the backward pass, given the node of dP = dO V^T, the gradient of the weights. Sets is_gradient if a softmax
   gradient follows that node, even if the rest does not match. */
weftStatus_t attention_pattern_match_gradient(struct attention_pattern *match, const struct graph *graph, int node);

/* True if a graph from a tensor of scores to another, both values of the graph, does nothing but hide scores outside of
   a band along the diagonal. */
bool attention_pattern_match_bounds(int64_t *left_bound, int64_t *right_bound, const struct graph *graph, int input,
                                    int output);

/* Rewrites a match as a graph of an sdpa_fwd, an sdpa_bwd, or both in this order, followed by a copy of dQ if its sums
   are stored, too. outer[i] is the value of the whole
   graph that corresponds to value i of the new graph, or -1 for constants and for tensors that exist only between the
   two operations. */
weftStatus_t attention_pattern_rewrite(struct graph **result, const int **outer,
                                       const struct attention_pattern *pattern, struct arena *arena);

#endif
