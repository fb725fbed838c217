/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor as a kernel walks it: an offset and a stride per dimension of the region's index space. Operations that only
   move data (reshape, transpose, slice) turn into other strides here, and cost nothing. */
#ifndef WEFT_ENGINES_CUDA_OPERAND_H
#define WEFT_ENGINES_CUDA_OPERAND_H

#include "engines/engine.h"
#include "graph/ops/concat.h"

struct operand {
    int value;  /* of the graph: what is loaded or stored */
    int memory; /* of the graph: whose memory it is; another's for a moved tensor, -1 for an index */
    bool is_store;
    weftDataType_t type;
    int64_t offset;                /* in elements */
    int64_t strides[WEFT_DIM_MAX]; /* 0 where it broadcasts */
    /* Of a value without memory, which lies in parts by a coordinate; NULL: in one piece. Only rows have such. */
    const struct concat_op *parts;
    int coordinate; /* the operand that is this coordinate; the parts after the first are operands behind it */
};

/* An index space: the extents that a kernel walks, slowest first. */
struct space {
    int rank;
    int64_t extents[WEFT_DIM_MAX];
};

/* The strides of a tensor over dims that it has or broadcasts to. */
void operand_of_tensor(struct operand *operand, const struct graph *graph, int value, const struct space *space,
                       bool is_store);

/* Orders the dims by the strides of operands[lead] and merges neighbours that every operand walks as one. */
void space_coalesce(struct space *space, struct operand *operands, int count, int lead);

int64_t space_elements(const struct space *space);

/* Whether an operand lies in memory without gaps, in the order of the space. */
bool operand_is_dense(const struct space *space, const struct operand *operand);

/* How many neighbours along a dim, in which it is contiguous, one access to an operand may take: 16 bytes at most. */
int operand_run_length(const struct space *space, const struct operand *operand, int dim, const struct graph *graph);

/* How many neighbours along the last dim a thread takes of all operands: what one access to each may take, but no less
   than fills a byte of the smallest type. Every row begins at a multiple of it; a space of one dim may leave a rest. */
int space_run_length(const struct space *space, const struct operand *operands, int count, const struct graph *graph);

/* The same where runs pass from row to row, for the dense operands; others are taken one by one. */
int space_flat_length(const struct space *space, const struct operand *operands, int count, const struct graph *graph);

#endif
