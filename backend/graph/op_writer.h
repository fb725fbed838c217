/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the operations that replace another one: descriptors without reference counts, in an arena, complete as if the
   user had set and finalized them. */
#ifndef WEFT_GRAPH_OP_WRITER_H
#define WEFT_GRAPH_OP_WRITER_H

#include "graph/op.h"
#include "graph/ops/pointwise.h"

struct op_writer {
    struct arena *arena;
    struct descriptor **ops; /* has room for all operations that are written */
    int count;
    int64_t uid; /* uid of the next tensor: greater than all uids of the graph */
};

/* A virtual tensor that otherwise equals another one. */
weftStatus_t op_writer_add_tensor(struct op_writer *w, struct tensor **result, const struct tensor *like,
                                  weftDataType_t type);

/* Adds an operation with the name of the one that it replaces. */
void op_writer_add(struct op_writer *w, struct descriptor *result, const struct op *op,
                   const struct descriptor *replaced);

/* Adds a pointwise operation. `axis` is that of GEN_INDEX; -1 for all other modes. */
weftStatus_t op_writer_add_pointwise(struct op_writer *w, const struct descriptor *replaced, weftPointwiseMode_t mode,
                                     weftDataType_t math, int64_t axis, struct pointwise_operands operands);

#endif
