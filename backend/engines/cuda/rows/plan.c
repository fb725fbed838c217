/* SPDX-License-Identifier: Apache-2.0 */
/* Lowers the nodes of a region to a row program: the row space, operands with strides over it, and terms. Independent
   of how rows are mapped to threads. */
#include "engines/cuda/rows/plan.h"
#include "base/number.h"
#include "graph/views.h"

#include <string.h>

/* Along each dimension, a tensor has all elements, one, or one per group. */
static weftStatus_t check_tensor(const struct rows *rows, const struct descriptor *op, const struct tensor *tensor,
                                 bool is_output) {
    TRY(row_space_check(&rows->space, op, tensor, is_output));
    if (tensor->is_gathered && !views_gathered(rows->graph, graph_find_value(rows->graph, tensor)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the parts of %s are not available in this region",
             descriptor_label(op), descriptor_label(&tensor->base));
    if (!cuda_type_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
             descriptor_label(op), descriptor_label(&tensor->base), dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* Only terms that stores depend on are computed, and only their inputs are loaded. A value that spans the row is stored
   in full. */
static weftStatus_t finish(struct rows *rows) {
    TRY(rows->failure);
    rows->is_brief = true;
    for (int k = 0; k < rows->operand_count; k++) {
        const struct operand *operand = &rows->operands[k];
        if (!operand->is_store)
            continue;
        const struct term *term = rows_find(rows, operand->value);
        /* Results of at most 16 bits hide the error of the fast exponential, see rows_emit_term. */
        if (term->spans && dtype_bytes(operand->type, 1) > 2)
            rows->is_brief = false;
        rows_need(rows, operand->value);
        if (operand->memory >= 0)
            TRY(row_space_check_result(&rows->space, rows->graph->values[operand->memory].tensor, term->spans));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Names of new terms begin after the values of the graph, which keep their numbers. */
static void start(struct rows *rows, const struct region *region) {
    memset(rows, 0, sizeof *rows);
    rows->region = region;
    rows->graph = region->graph;
    rows->next_name = region->graph->value_count;
    rows->sampled = -1;
}

weftStatus_t rows_analyse(struct rows *rows, const struct region *region, enum statistics_method method,
                          bool sums_apart) {
    start(rows, region);
    rows->method = method;
    rows->sums_apart = sums_apart;
    TRY(row_space_find(&rows->space, region));
    /* Must precede the lowering of nodes: parts of a softmax are lowered differently from the same nodes elsewhere. */
    rows_find_softmax(rows);
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++)
            TRY(check_tensor(rows, node->op, rows->graph->values[node->operands[k]].tensor, node->is_output[k]));
        if (node_is_pointwise(node))
            TRY(formula_accepts(node->op));
        if (rows_expands(rows, node))
            TRY(rows_expand(rows, node));
        else
            rows_pointwise(rows, node);
        TRY(rows->failure);
    }
    return finish(rows);
}

/* ---- The second program ------------------------------------------------------------------------------------------ */

/* FOLLOW_FOLD and FOLLOW_COLUMNS: the first program wrote partial sums at `at`, which are added up into one tensor;
   NULL if it is not requested. */
static void sum_partials(struct rows *rows, const struct follow *follow, const struct tensor *tensor, int64_t at,
                         const int64_t *strides) {
    const char *type = math_name(follow->math);
    if (tensor)
        rows_result(rows, tensor, type, rows_reduce(rows, OPCODE_SUM, type, rows_load_saved(rows, type, at, strides)));
}

/* FOLLOW_APART: reads the elements again; statistics come from the workspace or, if -1, from the graph. */
static weftStatus_t sum_elements_again(struct rows *rows, const struct follow *follow, const int64_t *strides) {
    const char *type = math_name(follow->math);
    int mean = follow->at_mean < 0 ? -1 : rows_load_saved(rows, type, follow->at_mean, strides);
    int inv = follow->at_inv < 0 ? -1 : rows_load_saved(rows, type, follow->at_inv, strides);
    return rows_expand_separately(rows, follow, mean, inv);
}

/* Names start over, because programs share no code. Workspace does not: the first program's allocations remain. */
weftStatus_t rows_follow(struct rows *rows, const struct rows *first) {
    const struct follow *follow = &first->follow;
    int64_t strides[WEFT_DIM_MAX];
    start(rows, first->region);
    rows->scratch_bytes = first->scratch_bytes;
    TRY(follow_space(follow, &first->space, &rows->space, strides));
    if (follow->kind == FOLLOW_APART) {
        TRY(sum_elements_again(rows, follow, strides));
    } else if (follow->kind == FOLLOW_FOLD) {
        sum_partials(rows, follow, follow->scale, follow->at_scale, strides);
        sum_partials(rows, follow, follow->bias, follow->at_bias, strides);
    }
    for (int i = 0; i < follow->column_count; i++)
        sum_partials(rows, follow, follow->columns[i].tensor, follow->columns[i].at, strides);
    return finish(rows);
}
