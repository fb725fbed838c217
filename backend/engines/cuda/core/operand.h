/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor as a kernel iterates over it: an offset, and a stride per dimension of the region's index space. Operations
   that only move data (reshape, transpose, slice) become different strides here, at no cost. */
#ifndef WEFT_ENGINES_CUDA_OPERAND_H
#define WEFT_ENGINES_CUDA_OPERAND_H

#include "engines/engine.h"
#include "graph/ops/concat.h"

struct operand {
    int value;  /* index in the graph: what is loaded or stored */
    int memory; /* index in the graph: whose memory it is; another value's for a moved tensor, -1 for an index */
    bool is_store;
    weftDataType_t type;
    int64_t offset;                /* in elements */
    int64_t strides[WEFT_DIM_MAX]; /* 0 for broadcast dims */
    /* Used if the value has no memory but is split into parts along a coordinate; NULL: a single piece. Only rows use
       it. */
    const struct concat_op *parts;
    int coordinate; /* the operand that is this coordinate; operands after it are the parts after the first */
};

/* An index space: the extents of a kernel's loops, slowest first. */
struct space {
    int rank;
    int64_t extents[WEFT_DIM_MAX];
};

/* Sets the strides of a tensor over dims that it has or broadcasts to. */
void operand_of_tensor(struct operand *operand, const struct graph *graph, int value, const struct space *space,
                       bool is_store);

/* Orders the dims by the strides of operands[lead] and merges adjacent dims that are a single one to every operand. */
void space_coalesce(struct space *space, struct operand *operands, int count, int lead);

int64_t space_elements(const struct space *space);

/* True if an operand is stored without gaps, in the order of the space. */
bool operand_is_dense(const struct space *space, const struct operand *operand);

/* Number of adjacent elements along a contiguous dim that one access to an operand can load: at most 16 bytes. */
int operand_run_length(const struct space *space, const struct operand *operand, int dim, const struct graph *graph);

/* Number of adjacent elements along the last dim that a thread processes: as many as one access to each operand can
   load, but at least a byte of the smallest type. Every row begins at a multiple of it; a space of one dim may have a
   remainder. */
int space_run_length(const struct space *space, const struct operand *operands, int count, const struct graph *graph);

/* The same if runs may continue from row to row, for dense operands; others are accessed element by element. */
int space_flat_length(const struct space *space, const struct operand *operands, int count, const struct graph *graph);

#endif
