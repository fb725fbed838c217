/* SPDX-License-Identifier: Apache-2.0 */
/* A matmul or a convolution with pointwise operations behind it, as products of packed matrices: what the parts of the
   family share. */
#ifndef WEFT_ENGINES_CPU_CONTRACTION_H
#define WEFT_ENGINES_CPU_CONTRACTION_H

#include "engines/cpu/gemm.h"
#include "engines/cpu/patches.h"
#include "engines/cpu/walk.h"

/* A factor of a product: how gemm packs it, and the value whose memory it is. */
struct factor {
    gemm_pack *pack;
    int value;
    union {
        const void *base; /* each of the others begins with it; filled in when it runs */
        struct gemm_matrix matrix;
        struct patches patches;
        struct filter filter;
    };
};

/* One product. Its rows, over all of its batch, and its columns are those of the walk. */
struct piece {
    struct gemm gemm;
    struct factor a, b;
    struct walk walk;
};

struct contraction {
    struct program program; /* what becomes of each element of the product */
    int threads;
    int piece_count;
    struct piece *pieces;
};

/* The value that a contraction's node makes. */
int contraction_result(const struct node *node);

/* What a kind of contraction answers. `node` has passed `check` wherever it is given. */
struct contraction_kind {
    weftStatus_t (*check)(const struct node *node);
    /* The tensors that are multiplied, and how many products make one element at most. */
    void (*factors)(const struct node *node, const struct tensor **a, const struct tensor **b, double *depth);
    weftDataType_t (*math)(const struct node *node);
    void (*scales)(const struct node *node, double *alpha, double *beta);
    /* Lists the pieces; the program is compiled. */
    weftStatus_t (*plan)(struct contraction *contraction, const struct graph *graph, const struct node *node,
                         const struct gemm_kernel *kernel, struct arena *arena);
};

extern const struct contraction_kind matmul_contraction, conv_contraction;

#endif
