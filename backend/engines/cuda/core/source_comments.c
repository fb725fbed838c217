/* SPDX-License-Identifier: Apache-2.0 */
/* Comments in generated source that name its origin: kinds of operations and names of their operands, never the user's
   names or sizes, so that graphs that differ only in these share their kernels. */
#include "engines/cuda/core/kernel.h"
#include "graph/descriptor.h"
#include "graph/ops/pointwise.h"

#include <ctype.h>

/* Pointwise operations are named by their mode, in lower case; others by their schema. */
void emit_operation(struct text *text, const struct node *node) {
    if (!node_is_pointwise(node)) {
        text_add(text, "%s", node->op->schema->name);
        return;
    }
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    for (const char *at = pointwise_find_mode(op->pw->mode)->name; *at; at++)
        text_add(text, "%c", tolower((unsigned char)*at));
}

/* The operand to find, and its name once found. */
struct operand_search {
    int operand; /* number of preceding operands, in the order of the node's operands */
    const char *key;
};

/* Called for the operands in the order of node->operands. */
static weftStatus_t note_key(void *search, const struct row *row, struct tensor *tensor) {
    struct operand_search *wanted = search;
    (void)tensor;
    if (wanted->operand-- == 0)
        wanted->key = row->key;
    return WEFT_STATUS_SUCCESS;
}

/* Emits "image of conv_fprop" if the node writes the value (or reads it), otherwise returns false. */
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

/* The writer of a value is more informative than its readers, so outputs are searched first. */
void emit_origin(struct text *text, const struct region *region, int value) {
    for (int writes = 1; writes >= 0; writes--)
        for (int i = 0; i < region->count; i++)
            if (emit_role(text, region_node(region, i), value, writes))
                return;
    text_add(text, "of the graph");
}
