/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that other operations of a graph spell: a product of queries and keys, pointwise operations on the scores,
   a softmax or what it is made of, dropout, and the product with the values; found, and written as the one operation
   that it is. */
#ifndef WEFT_GRAPH_SPELLED_ATTENTION_H
#define WEFT_GRAPH_SPELLED_ATTENTION_H

#include "graph/graph.h"
#include "graph/ops/attention.h"
#include "graph/ops/rng.h"

enum { SPELLED_NODES_MAX = 64 };

/* A tensor of the graph under other dims and strides. */
struct spelled_view {
    const struct tensor *tensor;
    struct dims dims, strides;
    const struct dims *whole; /* of the product that it is a factor or the result of */
};

struct spelled_attention {
    const struct graph *graph;
    int count, nodes[SPELLED_NODES_MAX]; /* what spells it, in order */
    bool modifies[SPELLED_NODES_MAX];    /* of each: the score modifier has it */

    struct spelled_view q, k, v, o; /* [.., Sq, Dqk], [.., Skv, Dqk], [.., Skv, Dv], [.., Sq, Dv] */
    const struct tensor *scores;    /* as the softmax takes them: [.., Sq, Skv] */
    const struct tensor *product;   /* as the modifier takes them, scaled, */
    const struct tensor *modified;  /* and as it gives them: the same where there is none */
    bool is_rounded;                /* the product is, to the type that was set for it */
    bool hides_by_number;           /* bounds were a number so low that it hides, not -inf */
    const struct tensor *scale, *bias, *sink;
    const struct tensor *stats, *max, *sum_exp; /* NULL: nobody wants them */
    const struct rng_op *dropout;               /* NULL: none */
    double scale_value;
    int64_t left_bound, right_bound;
    weftDataType_t math;
};

/* The attention whose product of weights and values is this node; NOT_SUPPORTED* and a sentence where there is none, or
   where a score is wanted elsewhere, or rounded in a way that attention does not round. */
weftStatus_t spelled_attention_find(struct spelled_attention *found, const struct graph *graph, int node);

/* The same as a graph of one sdpa_fwd. outer: the value of the whole graph, of each of its; -1: a constant that the
   graph has not as a tensor. */
weftStatus_t spelled_attention_make(struct graph **made, const int **outer, const struct spelled_attention *spelled,
                                    struct arena *arena);

#endif
