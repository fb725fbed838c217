/* SPDX-License-Identifier: Apache-2.0 */
/* Where printed text comes from, in the comments beside it: kinds of operations and the names of their operands, never
   the user's names or sizes, so that graphs that differ in these alone share their kernels. */
#include "engines/cuda/core/kernel.h"
#include "graph/descriptor.h"
#include "graph/ops/pointwise.h"

#include <ctype.h>

/* Pointwise operations by their mode, in lower case; others by their schema. */
void emit_operation(struct text *text, const struct node *node) {
    if (!node_is_pointwise(node)) {
        text_add(text, "%s", node->op->schema->name);
        return;
    }
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    for (const char *at = pointwise_find_mode(op->pw->mode)->name; *at; at++)
        text_add(text, "%c", tolower((unsigned char)*at));
}

/* The operand that is looked for, and its name once it is found. */
struct operand_search {
    int operand; /* how many come before it, in the order of the node's operands */
    const char *key;
};

/* Called for the operands in the order in which node->operands has them. */
static weftStatus_t note_key(void *search, const struct row *row, struct tensor *tensor) {
    struct operand_search *wanted = search;
    (void)tensor;
    if (wanted->operand-- == 0)
        wanted->key = row->key;
    return WEFT_STATUS_SUCCESS;
}

/* Prints "image of conv_fprop" if the node writes the value, or reads it. */
static bool emit_role(struct text *text, const struct node *node, int value, bool writes) {
    for (int k = 0; k < node->operand_count; k++) {
        struct operand_search search = {.operand = k};
        if (node->operands[k] != value || node->is_output[k] != writes)
            continue;
        op_each_operand(node->op, note_key, &search);
        text_add(text, "%s of ", search.key ? search.key : "an operand");
        emit_operation(text, node);
        return true;
    }
    return false;
}

/* Who writes a value says more than who reads it, so outputs are asked first. */
void emit_origin(struct text *text, const struct region *region, int value) {
    for (int writes = 1; writes >= 0; writes--)
        for (int i = 0; i < region->count; i++)
            if (emit_role(text, region_node(region, i), value, writes))
                return;
    text_add(text, "of the graph");
}
