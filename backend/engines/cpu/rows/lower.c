/* SPDX-License-Identifier: Apache-2.0 */
/* From the nodes of a region to a row program: the row space of its operations, and their expansions
   (graph/expansion.h) as terms. Sums over other things than rows find a way of their own. */
#include "engines/cpu/core/width.h"
#include "engines/cpu/rows/terms.h"
#include "graph/ops/norm.h"

#include <string.h>

/* An expansion on its way to terms. */
struct lowering {
    struct rowwise *rows;
    struct expansion e;
    bool is_wide;
    int done;                    /* instructions */
    int terms[INSTRUCTIONS_MAX]; /* of its values */
};

static bool is_made_inside(const void *context, const struct tensor *tensor) {
    const struct rowwise *rows = context;
    int producer = rows->graph->values[graph_find_value(rows->graph, tensor)].producer;
    return producer >= 0 && region_has(rows->region, producer);
}

static bool is_norm(const struct node *node) {
    return op_of(node->op) == &norm_forward_op || op_of(node->op) == &norm_backward_op;
}

static void begin(struct lowering *l, struct rowwise *rows, const struct node *node) {
    l->rows = rows;
    l->done = l->e.count = 0;
    l->e.method = is_norm(node) ? rows->method : STATISTICS_IN_TURN;
    l->e.is_made_inside = is_made_inside;
    l->e.context = rows;
}

/* ---- Gradients of scale and bias --------------------------------------------------------------------------------- */

/* How a tensor's axes lie to those of the rows. */
struct reach {
    bool in_row, whole_row; /* it differs within a row; along all of it */
    bool in_rows, all_rows; /* it differs from row to row; for all rows */
};

static struct reach reach_of(const struct rowwise *rows, const struct tensor *tensor) {
    struct reach reach = {.whole_row = true, .all_rows = true};
    for (int i = 0; i < rows->axis_count; i++) {
        bool has = rowwise_has_axis(rows, tensor, i), is_reduced = rows->axes[i].is_reduced;
        reach.in_row = reach.in_row || (is_reduced && has);
        reach.whole_row = reach.whole_row && (!is_reduced || has);
        reach.in_rows = reach.in_rows || (!is_reduced && has);
        reach.all_rows = reach.all_rows && (is_reduced || has);
    }
    return reach;
}

/* Statistics that have no memory of their own are left in scratch memory. */
static weftStatus_t keep_statistics(struct lowering *l, const struct node *node) {
    const struct norm_backward *op = (const struct norm_backward *)node->op;
    struct rowwise *rows = l->rows;
    if (is_made_inside(rows, op->x) || is_made_inside(rows, op->dy))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: its scale's gradient is summed in a sweep of its own, which needs x and dy in memory",
             descriptor_label(node->op));
    rows->follow.kind = FOLLOW_APART;
    if (!op->inv_variance || is_made_inside(rows, op->inv_variance))
        rows->follow.at_inv = rowwise_keep(rows, l->terms[l->e.inv]);
    if (l->e.mean >= 0 && (!op->mean || is_made_inside(rows, op->mean)))
        rows->follow.at_mean = rowwise_keep(rows, l->terms[l->e.mean]);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t sum_in_follow(struct lowering *l, const struct node *node, const struct instruction *at,
                                  const struct reach *reach) {
    struct rowwise *rows = l->rows;
    struct follow *follow = &rows->follow;
    bool is_scale = at->tensor == ((const struct norm_backward *)node->op)->dscale;
    int64_t *place = is_scale ? &follow->at_scale : &follow->at_bias;
    bool is_first = follow->kind == FOLLOW_NOTHING;
    if (!is_first && follow->node != node)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the gradients of one scale at a time",
             descriptor_label(node->op));
    if (is_first)
        *follow = (struct follow){
            .node = node, .is_wide = l->is_wide, .at_scale = -1, .at_bias = -1, .at_mean = -1, .at_inv = -1};
    *(is_scale ? &follow->scale : &follow->bias) = at->tensor;
    if (!reach->in_row) {
        follow->kind = FOLLOW_FOLD;
        *place = rowwise_keep(rows, l->terms[at->arguments[1]]);
    } else if (!reach->in_rows && reach->whole_row && !rows->sums_apart) {
        follow->kind = FOLLOW_COLUMNS;
        *(is_scale ? &follow->scale_sum : &follow->bias_sum) =
            rowwise_reduce(rows, TERM_COLUMN_SUM, OPCODE_SUM, l->terms[at->arguments[0]], l->is_wide);
    } else if (is_first) {
        TRY(keep_statistics(l, node));
    }
    return WEFT_STATUS_SUCCESS;
}

/* A sum over everything that shares an element of the tensor: the row's own, or one of what follows. */
static weftStatus_t lower_sum_to(struct lowering *l, const struct node *node, const struct instruction *at) {
    struct reach reach = reach_of(l->rows, at->tensor);
    int value = graph_find_value(l->rows->graph, at->tensor);
    if (!region_exports(l->rows->region, value) || value_is_dead(&l->rows->graph->values[value]))
        return WEFT_STATUS_SUCCESS;
    if (reach.in_row || !reach.all_rows)
        return sum_in_follow(l, node, at, &reach);
    rowwise_result(l->rows, at->tensor, l->terms[at->arguments[1]]);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

static int lower_formula(struct lowering *l, const struct instruction *at) {
    int arguments[INSTRUCTION_ARGUMENTS], count = 0;
    for (int i = 0; i < INSTRUCTION_ARGUMENTS && at->arguments[i] >= 0; i++)
        arguments[count++] = l->terms[at->arguments[i]];
    return rowwise_formula(l->rows, at->opcode, arguments, count, l->is_wide);
}

static int lower_value(struct lowering *l, const struct instruction *at) {
    struct rowwise *rows = l->rows;
    double length = (double)rowwise_length(rows);
    switch (at->opcode) {
    case OPCODE_NUMBER:
        return rowwise_constant(rows, at->number, l->is_wide);
    case OPCODE_LENGTH:
        return rowwise_constant(rows, length, l->is_wide);
    case OPCODE_COUNT:
        return rowwise_constant(rows, length < 1 ? 1 : length, l->is_wide);
    case OPCODE_INPUT:
        return rowwise_input(rows, at->tensor, l->is_wide);
    case OPCODE_SAMPLE:
        return rowwise_sample(rows, at->tensor, l->is_wide);
    case OPCODE_GIVEN:
        return (int)at->number;
    case OPCODE_SUM:
    case OPCODE_PRODUCT:
    case OPCODE_LEAST:
    case OPCODE_LARGEST:
        return rowwise_reduce(rows, TERM_REDUCTION, at->opcode, l->terms[at->arguments[0]], l->is_wide);
    default:
        return lower_formula(l, at);
    }
}

static weftStatus_t lower_instruction(struct lowering *l, const struct node *node, int index) {
    const struct instruction *at = &l->e.at[index];
    if (at->opcode == OPCODE_MOMENTS || at->opcode == OPCODE_WEIGHTS)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: joined statistics are not taken here",
             descriptor_label(node->op));
    if (at->opcode == OPCODE_RESULT)
        rowwise_result(l->rows, at->tensor, l->terms[at->arguments[0]]);
    else if (at->opcode == OPCODE_SUM_TO)
        TRY(lower_sum_to(l, node, at));
    else
        l->terms[index] = lower_value(l, at);
    return l->rows->trouble;
}

/* The instructions that were written since the last call. */
static weftStatus_t lower(struct lowering *l, const struct node *node) {
    if (l->e.math == WEFT_DATA_INT64)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s calculates in integers", descriptor_label(node->op));
    l->is_wide = l->e.math == WEFT_DATA_DOUBLE;
    for (; l->done < l->e.count; l->done++)
        TRY(lower_instruction(l, node, l->done));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t lower_node(struct rowwise *rows, const struct node *node) {
    struct lowering l;
    begin(&l, rows, node);
    TRY(expansion_of(&l.e, node->op));
    return lower(&l, node);
}

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

static weftStatus_t check_tensor(const struct rowwise *rows, const struct descriptor *op, const struct tensor *tensor,
                                 bool is_output) {
    bool is_scalar = tensor_elements(tensor) == 1 && !is_output;
    bool fits = is_scalar || tensor->dims.count == rows->dims.count;
    TRY(tensor_check_plain(tensor, op));
    for (int64_t d = 0; fits && !is_scalar && d < rows->dims.count; d++)
        fits = tensor->dims.at[d] == rows->dims.at[d] || tensor->dims.at[d] == 1 || rowwise_has_groups(rows, tensor, d);
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s, the rows of this region lie in %s",
             descriptor_label(op), descriptor_label(&tensor->base), tensor_dims_text(tensor),
             numbers_text(rows->dims.at, rows->dims.count));
    if (!dtype_of((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %d, which has no storage on the CPU",
             descriptor_label(op), descriptor_label(&tensor->base), tensor->type);
    return WEFT_STATUS_SUCCESS;
}

/* Integer arithmetic is left to cpu.map, which knows what double holds of it; indices and comparisons are exact. */
static weftStatus_t check_pointwise(const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    bool has_long = operands.x && operands.x->type == WEFT_DATA_INT64;
    has_long = has_long || (operands.b && operands.b->type == WEFT_DATA_INT64);
    if (mode->form == FORM_INDEX || dtype_is_float(pointwise_math(op)) || (mode->is_logical && !has_long))
        return WEFT_STATUS_SUCCESS;
    FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s calculates in integers", descriptor_label(node->op));
}

/* Takes the row space of an operation; false: it has none, or another than the one before. */
static bool take_space(struct rowwise *rows, const struct node *node) {
    struct expansion e = {.method = STATISTICS_IN_TURN};
    if (expansion_of(&e, node->op))
        status_clear(); /* it is worded when the operation is lowered */
    bool is_same = e.dims.count == rows->dims.count;
    if (rows->dims.count == 0) {
        rows->dims = e.dims;
        memcpy(rows->parts, e.parts, sizeof rows->parts);
        return true;
    }
    for (int64_t d = 0; is_same && d < e.dims.count; d++)
        is_same = e.dims.at[d] == rows->dims.at[d] && (e.dims.at[d] == 1 || e.parts[d] == rows->parts[d]);
    return is_same;
}

static weftStatus_t find_space(struct rowwise *rows) {
    for (int i = 0; i < rows->region->count; i++) {
        const struct node *node = region_node(rows->region, i);
        if (!node_is_pointwise(node) && !op_expands(node->op))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s is no pointwise operation, reduction, softmax or normalisation", descriptor_label(node->op));
        if (op_expands(node->op) && !take_space(rows, node))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s has other rows than the operations before it",
                 descriptor_label(node->op));
    }
    if (rows->dims.count == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no operation of the region combines elements to rows");
    return rowwise_make_axes(rows);
}

static void start(struct rowwise *rows, const struct region *region) {
    memset(rows, 0, sizeof *rows);
    rows->region = region;
    rows->graph = region->graph;
}

weftStatus_t rowwise_analyse(struct rowwise *rows, const struct region *region, enum statistics_method method,
                             bool sums_apart) {
    start(rows, region);
    rows->method = method;
    rows->sums_apart = sums_apart;
    TRY(find_space(rows));
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++)
            TRY(check_tensor(rows, node->op, rows->graph->values[node->operands[k]].tensor, node->is_output[k]));
        if (node_is_pointwise(node)) {
            TRY(check_pointwise(node));
            rowwise_pointwise(rows, node);
        } else {
            TRY(lower_node(rows, node));
        }
        TRY(rows->trouble);
    }
    return rowwise_finish(rows);
}

/* ---- What follows ------------------------------------------------------------------------------------------------ */

static void sum_kept(struct rowwise *rows, const struct follow *follow, const struct tensor *tensor, int64_t at,
                     const int64_t *strides) {
    if (!tensor)
        return;
    int kept = rowwise_kept(rows, at, strides, follow->is_wide);
    rowwise_result(rows, tensor, rowwise_reduce(rows, TERM_REDUCTION, OPCODE_SUM, kept, follow->is_wide));
}

/* The tasks are one more axis, the slowest; positions in the row are the rows. */
static weftStatus_t follow_columns(struct rowwise *rows, const struct rowwise *first, int64_t tasks) {
    const struct follow *follow = &first->follow;
    int64_t strides[WEFT_DIM_MAX] = {0}, packed = 1;
    rows->axis_count = 0;
    rows->axes[rows->axis_count++] = (struct row_axis){DIM_OF_TASKS, tasks, 0, true, false};
    for (int i = 0; i < first->axis_count; i++)
        if (first->axes[i].is_reduced) {
            if (rows->axis_count == WEFT_DIM_MAX)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "rows of %d dims are too many to sum", WEFT_DIM_MAX);
            rows->axes[rows->axis_count] = first->axes[i];
            rows->axes[rows->axis_count++].is_reduced = false;
        }
    for (int i = rows->axis_count; i-- > 0; packed *= rows->axes[i].extent)
        strides[i] = packed;
    strides[0] *= (follow->scale != NULL) + (follow->bias != NULL); /* beside each other in each task's part */
    sum_kept(rows, follow, follow->scale, follow->at_scale, strides);
    sum_kept(rows, follow, follow->bias, follow->at_bias, strides);
    return rowwise_finish(rows);
}

/* The rows' totals as elements, those that share a scale as rows. */
static weftStatus_t follow_fold(struct rowwise *rows, const struct rowwise *first) {
    const struct follow *follow = &first->follow;
    const struct tensor *any = follow->scale ? follow->scale : follow->bias;
    int64_t all[WEFT_DIM_MAX], strides[WEFT_DIM_MAX] = {0};
    rowwise_pack(first, all, false);
    rows->axis_count = 0;
    for (int i = 0; i < first->axis_count; i++)
        if (!first->axes[i].is_reduced) {
            strides[rows->axis_count] = all[i];
            rows->axes[rows->axis_count] = first->axes[i];
            rows->axes[rows->axis_count++].is_reduced = !rowwise_has_axis(first, any, i);
        }
    sum_kept(rows, follow, follow->scale, follow->at_scale, strides);
    sum_kept(rows, follow, follow->bias, follow->at_bias, strides);
    return rowwise_finish(rows);
}

static weftStatus_t follow_apart(struct rowwise *rows, const struct rowwise *first) {
    const struct follow *follow = &first->follow;
    const struct norm_backward *op = (const struct norm_backward *)follow->node->op;
    const struct tensor *any = follow->scale ? follow->scale : follow->bias;
    int64_t strides[WEFT_DIM_MAX] = {0};
    struct lowering l;
    rowwise_pack(first, strides, false);
    for (int i = 0; i < rows->axis_count; i++)
        rows->axes[i].is_reduced = !rowwise_has_axis(first, any, i);
    begin(&l, rows, follow->node);
    expansion_begin(&l.e, op->math, op->x);
    l.e.dims = rows->dims;
    memcpy(l.e.parts, rows->parts, sizeof l.e.parts);
    int mean = follow->at_mean < 0 ? -1 : rowwise_kept(rows, follow->at_mean, strides, follow->is_wide);
    int inv = follow->at_inv < 0 ? -1 : rowwise_kept(rows, follow->at_inv, strides, follow->is_wide);
    if (follow->scale) {
        int mean_value = mean < 0 ? expand_input(&l.e, op->mean) : expand_given(&l.e, mean);
        int inv_value = inv < 0 ? expand_input(&l.e, op->inv_variance) : expand_given(&l.e, inv);
        expand_result(&l.e, follow->scale, expand_sum(&l.e, norm_expand_weighted(&l.e, op, mean_value, inv_value)));
    }
    if (follow->bias)
        expand_result(&l.e, follow->bias, expand_sum(&l.e, expand_input(&l.e, op->dy)));
    TRY(lower(&l, follow->node));
    return rowwise_finish(rows);
}

weftStatus_t rowwise_follow(struct rowwise *rows, const struct rowwise *first, int64_t tasks) {
    start(rows, first->region);
    rows->dims = first->dims;
    memcpy(rows->parts, first->parts, sizeof rows->parts);
    rows->axis_count = first->axis_count;
    memcpy(rows->axes, first->axes, sizeof rows->axes);
    switch (first->follow.kind) {
    case FOLLOW_COLUMNS:
        return follow_columns(rows, first, tasks);
    case FOLLOW_FOLD:
        return follow_fold(rows, first);
    default:
        return follow_apart(rows, first);
    }
}
