/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that other operations of a graph spell: a product of queries and keys, pointwise operations on the scores,
   a softmax or what it is made of, dropout, and the product with the values; and its gradients, with or without it.
   Found, and written as the one operation, or the two, that it is. */
#ifndef WEFT_GRAPH_PATTERNS_ATTENTION_H
#define WEFT_GRAPH_PATTERNS_ATTENTION_H

#include "graph/graph.h"
#include "graph/ops/attention.h"
#include "graph/ops/rng.h"

enum { PATTERN_NODES_MAX = 64 };

/* A tensor of the graph under other dims and strides. */
struct pattern_view {
    const struct tensor *tensor;
    struct dims dims, strides;
    const struct dims *whole; /* of the product that it is a factor or the result of */
};

/* An operation that is a part of it. A score modifier has those that modify, or that carry its gradient back. */
struct pattern_node {
    int node;
    bool modifies, carries;
    bool is_view; /* a way to see an operand: may stay outside, where others read what it makes */
};

struct attention_pattern {
    const struct graph *graph;
    int count;
    struct pattern_node nodes[PATTERN_NODES_MAX]; /* what spells it, in order */

    struct pattern_view q, k, v, o; /* [.., Sq, Dqk], [.., Skv, Dqk], [.., Skv, Dv], [.., Sq, Dv] */
    const struct tensor *scores;    /* as the softmax takes them: [.., Sq, Skv] */
    const struct tensor *product;   /* as the modifier takes them, scaled, */
    const struct tensor *modified;  /* and as it gives them: the same where there is none */
    bool is_rounded;                /* the product is, to the type that was set for it */
    bool hides_by_number;           /* bounds were a number so low that it hides, not -inf */
    const struct tensor *scale, *bias, *sink;
    const struct tensor *stats, *max, *sum_exp; /* NULL: nobody wants them */
    const struct rng_op *dropout;               /* NULL: none, or by a mask */
    const struct tensor *drop_mask;             /* that lies in memory; NULL: none */
    double growth;                              /* of the weights that a mask keeps */
    double scale_value;
    int64_t left_bound, right_bound;
    weftDataType_t math;

    /* Of gradients; o.tensor may be NULL then: only the gradient's own sums want it. */
    bool is_gradient, makes_o;           /* makes_o: its product is here, and it is not read */
    struct pattern_view d_o, dq, dk, dv; /* tensor NULL: nobody wants it */
    const struct tensor *dbias;          /* NULL: none */
    const struct tensor *given_stats;    /* weights are exp(scores - these); NULL: a softmax makes them */
    const struct tensor *carried;        /* the gradient as the modifier's takes it, of its result, */
    const struct tensor *carried_back;   /* and as it gives it, of the scaled product times carried_factor */
    double carried_factor;
};

/* The attention whose product of weights and values is this node; NOT_SUPPORTED* and a sentence where there is none, or
   where a score is wanted elsewhere, or rounded in a way that attention does not round. */
weftStatus_t attention_pattern_match(struct attention_pattern *found, const struct graph *graph, int node);

/* The same of gradients, by the product of dO and values, that of the gradient of weights. is_gradient is set where one
   of a softmax is behind it, whatever else is missing. */
weftStatus_t attention_pattern_match_gradient(struct attention_pattern *found, const struct graph *graph, int node);

/* The same as a graph of an sdpa_fwd, an sdpa_bwd, or both in this order. outer: the value of the whole graph, of each
   of its; -1: a constant, or what passes from one to the other, that the graph has not as a tensor. */
weftStatus_t attention_pattern_rewrite(struct graph **made, const int **outer, const struct attention_pattern *spelled,
                                       struct arena *arena);

#endif
