/* SPDX-License-Identifier: Apache-2.0 */
/* From the nodes of a region to a row program: the row space, operands with strides over it, and terms. It must not
   know how rows are given to threads. */
#include "engines/cuda/rows/plan.h"
#include "base/number.h"

#include <string.h>

static weftStatus_t check_tensor(const struct rows *rows, const struct descriptor *op, const struct tensor *tensor,
                                 bool is_output) {
    bool is_scalar = tensor_elements(tensor) == 1 && !is_output;
    bool fits = tensor->vector_count == 1 && (is_scalar || tensor->dims.count == rows->dims.count);
    for (int64_t d = 0; fits && !is_scalar && d < rows->dims.count; d++)
        fits = tensor->dims.at[d] == rows->dims.at[d] || tensor->dims.at[d] == 1 || rows_has_groups(rows, tensor, d);
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s, the rows of this region lie in %s",
             descriptor_label(op), descriptor_label(&tensor->base), tensor_dims_text(tensor),
             numbers_text(rows->dims.at, rows->dims.count));
    if (!cuda_type_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
             descriptor_label(op), descriptor_label(&tensor->base), dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* All operations of a region that reduce must share their rows; the first one sets them. */
static weftStatus_t find_space(struct rows *rows) {
    for (int i = 0; i < rows->region->count; i++) {
        struct dims dims;
        int64_t parts[WEFT_DIM_MAX];
        const struct node *node = region_node(rows->region, i);
        if (!rows_shape_of(node, &dims, parts))
            continue;
        if (rows->dims.count == 0) {
            rows->dims = dims;
            memcpy(rows->parts, parts, sizeof rows->parts);
            continue;
        }
        bool same = dims.count == rows->dims.count;
        for (int64_t d = 0; same && d < dims.count; d++)
            same = dims.at[d] == rows->dims.at[d] && (dims.at[d] == 1 || parts[d] == rows->parts[d]);
        if (!same)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s has other rows than the operations before it",
                 descriptor_label(node->op));
    }
    if (rows->dims.count == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no operation of the region combines elements to rows");
    return rows_make_axes(rows);
}

static bool is_pointwise(const struct node *node) { return op_of(node->op) == &pointwise_op; }

/* Only what stores depend on is computed, and only that is loaded. A value that spans the row is stored whole. */
static weftStatus_t finish(struct rows *rows) {
    TRY(rows->trouble);
    rows->is_brief = true;
    for (int k = 0; k < rows->operand_count; k++) {
        const struct operand *operand = &rows->operands[k];
        if (!operand->is_store)
            continue;
        const struct term *term = rows_find(rows, operand->value);
        if (term->spans && dtype_bytes(operand->type, 1) > 2)
            rows->is_brief = false;
        rows_need(rows, operand->value);
        const struct tensor *tensor = operand->memory >= 0 ? rows->graph->values[operand->memory].tensor : NULL;
        for (int i = 0; tensor && i < rows->axis_count; i++) {
            bool has = rows_has_axis(rows, tensor, i), should = term->spans || !rows->axes[i].is_reduced;
            if (has != should && rows->axes[i].extent != 1)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                     "%s with dims %s is neither one number for each row nor one for each element",
                     descriptor_label(&tensor->base), tensor_dims_text(tensor));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t start(struct rows *rows, const struct region *region) {
    rows->region = region;
    rows->graph = region->graph;
    rows->next_name = region->graph->value_count;
    rows->sampled = -1;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse(struct rows *rows, const struct region *region) {
    TRY(start(rows, region));
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        if (!is_pointwise(node) && !op_expands(node->op))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s is no pointwise operation, reduction, softmax or normalisation", descriptor_label(node->op));
    }
    TRY(find_space(rows));
    rows_find_softmax(rows);
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++)
            TRY(check_tensor(rows, node->op, rows->graph->values[node->operands[k]].tensor, node->is_output[k]));
        if (is_pointwise(node))
            TRY(formula_accepts(node->op));
        if (rows_expands(rows, node))
            TRY(rows_expand(rows, node));
        else
            rows_pointwise(rows, node);
        TRY(rows->trouble);
    }
    return finish(rows);
}

weftStatus_t rows_analyse(struct rows *rows, const struct region *region, enum statistics_method method,
                          bool sums_apart) {
    memset(rows, 0, sizeof *rows);
    rows->method = method;
    rows->sums_apart = sums_apart;
    return analyse(rows, region);
}

/* ---- What is left over ------------------------------------------------------------------------------------------- */

static void sum_kept(struct rows *rows, const struct follow *follow, const struct tensor *tensor, int64_t at,
                     const int64_t *strides) {
    if (!tensor)
        return;
    int kept = rows_kept(rows, follow->type, at, strides);
    rows_result(rows, tensor, follow->type, rows_reduce(rows, OPCODE_SUM, follow->type, kept));
}

/* The blocks are one more axis, slowest; the places in the row are what is kept. */
static weftStatus_t follow_columns(struct rows *rows, const struct rows *first) {
    const struct follow *follow = &first->follow;
    int64_t strides[WEFT_DIM_MAX] = {0};
    rows->axis_count = 0;
    rows->axes[rows->axis_count++] = (struct axis){DIM_OF_BLOCKS, follow->blocks, 0, true, false};
    for (int i = 0; i < first->axis_count; i++)
        if (first->axes[i].is_reduced) {
            if (rows->axis_count == WEFT_DIM_MAX)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "rows of %d dims are too many to sum", WEFT_DIM_MAX);
            rows->axes[rows->axis_count] = first->axes[i];
            rows->axes[rows->axis_count++].is_reduced = false;
        }
    int64_t packed = 1;
    for (int i = rows->axis_count; i-- > 0; packed *= rows->axes[i].extent)
        strides[i] = packed;
    sum_kept(rows, follow, follow->scale, follow->at_scale, strides);
    sum_kept(rows, follow, follow->bias, follow->at_bias, strides);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t follow_fold(struct rows *rows, const struct rows *first) {
    const struct follow *follow = &first->follow;
    const struct tensor *any = follow->scale ? follow->scale : follow->bias;
    int64_t all[WEFT_DIM_MAX], strides[WEFT_DIM_MAX] = {0};
    rows_pack(first, all, false);
    rows->axis_count = 0;
    for (int i = 0; i < first->axis_count; i++)
        if (!first->axes[i].is_reduced) {
            strides[rows->axis_count] = all[i];
            rows->axes[rows->axis_count] = first->axes[i];
            rows->axes[rows->axis_count++].is_reduced = !rows_has_axis(first, any, i);
        }
    sum_kept(rows, follow, follow->scale, follow->at_scale, strides);
    sum_kept(rows, follow, follow->bias, follow->at_bias, strides);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t follow_apart(struct rows *rows, const struct rows *first) {
    const struct follow *follow = &first->follow;
    const struct tensor *any = follow->scale ? follow->scale : follow->bias;
    int64_t strides[WEFT_DIM_MAX] = {0};
    int mean = -1, inv = -1;
    rows_pack(first, strides, false);
    for (int i = 0; i < rows->axis_count; i++)
        rows->axes[i].is_reduced = !rows_has_axis(first, any, i);
    if (follow->at_mean >= 0)
        mean = rows_kept(rows, follow->type, follow->at_mean, strides);
    if (follow->at_inv >= 0)
        inv = rows_kept(rows, follow->type, follow->at_inv, strides);
    return rows_expand_apart(rows, follow, mean, inv);
}

weftStatus_t rows_follow(struct rows *rows, const struct rows *first) {
    memset(rows, 0, sizeof *rows);
    TRY(start(rows, first->region));
    rows->dims = first->dims;
    memcpy(rows->parts, first->parts, sizeof rows->parts);
    rows->axis_count = first->axis_count;
    memcpy(rows->axes, first->axes, sizeof rows->axes);
    rows->scratch_bytes = first->scratch_bytes;
    if (first->follow.kind == FOLLOW_COLUMNS)
        TRY(follow_columns(rows, first));
    else if (first->follow.kind == FOLLOW_FOLD)
        TRY(follow_fold(rows, first));
    else
        TRY(follow_apart(rows, first));
    return finish(rows);
}
