/* SPDX-License-Identifier: Apache-2.0 */
/* Lowers the nodes of a region to a row program: the row space of the operations, and their expansions
   (graph/expansion.h) as terms. Sums across rows become work for a second program, which rowwise_follow generates.
   Pure: reads the graph and writes terms. */
#include "engines/cpu/core/compute_type.h"
#include "engines/cpu/rows/terms.h"
#include "graph/ops/norm.h"
#include "graph/ops/reduction.h"

#include <math.h>
#include <string.h>

/* An expansion while it is lowered to terms. */
struct lowering {
    struct rowwise *rows;
    struct expansion e;
    /* True if the operation computes in double. */
    bool is_wide;
    int done;                    /* instructions lowered so far */
    int terms[INSTRUCTIONS_MAX]; /* terms of its values */
};

/* Callback of struct expansion; `context` is the program. */
static bool is_internal(const void *context, const struct tensor *tensor) {
    return region_producer(((const struct rowwise *)context)->region, tensor) != NULL;
}

static bool is_norm(const struct node *node) {
    return op_of(node->op) == &norm_forward_op || op_of(node->op) == &norm_backward_op;
}

/* Only norms support other methods for their statistics; other operations compute them one after the other. */
static void begin(struct lowering *l, struct rowwise *rows, const struct node *node) {
    l->rows = rows;
    l->done = l->e.count = 0;
    l->e.method = is_norm(node) ? rows->method : STATISTICS_IN_TURN;
    l->e.is_computed_inside = is_internal;
    l->e.context = rows;
}

/* ---- Gradients of scale and bias --------------------------------------------------------------------------------- */

/* Statistics that have no memory of their own are stored in scratch memory. */
static void keep_statistics(struct lowering *l, const struct norm_backward *op) {
    /* inv_variance and mean are operands of the node, or were computed by its expansion. */
    struct rowwise *rows = l->rows;
    if (!op->inv_variance || region_producer(rows->region, op->inv_variance))
        rows->follow.at_inv = rowwise_save(rows, l->terms[l->e.inv]);
    if (l->e.mean >= 0 && (!op->mean || region_producer(rows->region, op->mean)))
        rows->follow.at_mean = rowwise_save(rows, l->terms[l->e.mean]);
}

/* True if two tensors have the same axes. */
static bool have_same_axes(const struct row_space *space, const struct tensor *a, const struct tensor *b) {
    bool are_same = true;
    for (int i = 0; i < space->axis_count; i++)
        are_same = are_same && row_space_has_axis(space, a, i) == row_space_has_axis(space, b, i);
    return are_same;
}

/* Accumulates a term per element of a tensor in each task; a second program adds the tasks' sums. */
static weftStatus_t sum_columns(struct rowwise *rows, const struct tensor *sum, weftDataType_t math, int element) {
    const struct follow *follow = &rows->follow;
    if (follow->column_count && !have_same_axes(&rows->space, follow->columns[0].tensor, sum))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s and %s sum different elements, which needs two passes",
             descriptor_label(&follow->columns[0].tensor->base), descriptor_label(&sum->base));
    int term = rowwise_reduce(rows, TERM_COLUMN_SUM, OPCODE_SUM, element, math == WEFT_DATA_DOUBLE);
    return rows->trouble ? rows->trouble : follow_add_column(&rows->follow, sum, term, math);
}

/* Lowers a node that is itself a column sum. */
static weftStatus_t lower_column_sum(struct rowwise *rows, const struct node *node) {
    const struct reduction_op *op = (const struct reduction_op *)node->op;
    weftDataType_t math = reduction_math(op);
    math = rows->is_wide && math == WEFT_DATA_FLOAT ? WEFT_DATA_DOUBLE : math;
    if (rows->sums_apart || !dtype_is_float(math))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: column sums are computed together with rows only in float and if they fit in memory",
             descriptor_label(node->op));
    int element = rowwise_input(rows, op->x, math == WEFT_DATA_DOUBLE);
    TRY(rows->trouble);
    if (!rows->terms[element].spans)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: its elements are the same along a row",
             descriptor_label(node->op));
    return sum_columns(rows, op->y, math, element);
}

/* Scale and bias of one norm are summed in the same way; the second one uses the choice made for the first. */
static weftStatus_t sum_in_follow(struct lowering *l, const struct node *node, const struct instruction *at,
                                  enum follow_kind kind) {
    const struct norm_backward *op = (const struct norm_backward *)node->op;
    struct rowwise *rows = l->rows;
    /* follow_add refuses combinations that cannot be computed together. */
    struct follow *follow = &rows->follow;
    bool is_scale = at->tensor == op->dscale, is_first;
    TRY(follow_add(follow, rows->region, node, at->tensor, kind, &is_first));
    /* FOLD needs the row's own sum, COLUMNS the elements, APART x and dy again. */
    if (kind == FOLLOW_COLUMNS)
        return sum_columns(rows, at->tensor, l->e.math, l->terms[at->arguments[0]]);
    follow->math = l->e.math;
    if (kind == FOLLOW_FOLD)
        *(is_scale ? &follow->at_scale : &follow->at_bias) = rowwise_save(rows, l->terms[at->arguments[1]]);
    else if (is_first)
        keep_statistics(l, op);
    return WEFT_STATUS_SUCCESS;
}

/* A sum over everything that shares an element of the tensor: either the row's own, or completed by a second
   program. */
static weftStatus_t lower_sum_to(struct lowering *l, const struct node *node, const struct instruction *at) {
    enum follow_kind kind = row_space_sum_kind(&l->rows->space, at->tensor, l->rows->sums_apart);
    /* Sums over parts of rows, such as a group's channels, are computed as column sums. */
    if (kind == FOLLOW_APART && !l->rows->sums_apart)
        kind = FOLLOW_COLUMNS;
    if (!row_space_wants_sum(l->rows->region, at->tensor))
        return WEFT_STATUS_SUCCESS;
    if (kind != FOLLOW_NOTHING)
        return sum_in_follow(l, node, at, kind);
    rowwise_result(l->rows, at->tensor, l->terms[at->arguments[1]]);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

/* Arguments end at the first -1. */
static int lower_formula(struct lowering *l, const struct instruction *at) {
    int arguments[INSTRUCTION_ARGUMENTS], count = 0;
    for (int i = 0; i < INSTRUCTION_ARGUMENTS && at->arguments[i] >= 0; i++)
        arguments[count++] = l->terms[at->arguments[i]];
    return rowwise_formula(l->rows, at->opcode, arguments, count, l->is_wide);
}

/* The length of a row is known here, so these are constants (the GPU family passes kernel arguments). */
static int lower_value(struct lowering *l, const struct instruction *at) {
    struct rowwise *rows = l->rows;
    double length = (double)row_space_length(&rows->space);
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
    /* The term exists and is referenced by the index that sum_apart gave it. */
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
    /* struct rowwise requests no joined statistics; an expansion that uses them anyway is refused. */
    if (at->opcode == OPCODE_MOMENTS || at->opcode == OPCODE_WEIGHTS)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: joined statistics are not supported",
             descriptor_label(node->op));
    if (at->opcode == OPCODE_RESULT)
        rowwise_result(l->rows, at->tensor, l->terms[at->arguments[0]]);
    else if (at->opcode == OPCODE_SUM_TO)
        TRY(lower_sum_to(l, node, at));
    else
        l->terms[index] = lower_value(l, at);
    /* Failures of terms are collected in `trouble`, so that not every call needs a check. */
    return l->rows->trouble;
}

/* True if double represents every result and intermediate of an integer reduction. Integer quotients and roots round
   towards 0, for which no row formula exists. */
static bool is_exact_in_double(const struct rowwise *rows, const struct node *node) {
    const struct reduction_op *op = (const struct reduction_op *)node->op;
    if (op_of(node->op) != &reduction_op || dtype_is_float((weftDataType_t)op->x->type))
        return false;
    const struct dtype *type = dtype_of((weftDataType_t)op->x->type);
    double most = fmax(type->max, -type->lowest);
    switch (op->parameters->mode) {
    case WEFT_REDUCE_TENSOR_ADD:
    case WEFT_REDUCE_TENSOR_NORM1:
        return most * (double)row_space_length(&rows->space) <= 0x1p53;
    case WEFT_REDUCE_TENSOR_MIN:
    case WEFT_REDUCE_TENSOR_MAX:
    case WEFT_REDUCE_TENSOR_AMAX:
        return most <= 0x1p53;
    default:
        return false;
    }
}

/* Lowers the instructions that were written since the last call. */
static weftStatus_t lower(struct lowering *l, const struct node *node) {
    /* The expansion has determined the arithmetic, that of a norm or of an integer sum. */
    if (l->e.math == WEFT_DATA_INT64 && !is_exact_in_double(l->rows, node))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s computes in integers, which may exceed the 53 bits of a double",
             descriptor_label(node->op));
    if (l->rows->is_wide && l->e.math == WEFT_DATA_FLOAT)
        l->e.math = WEFT_DATA_DOUBLE;
    l->is_wide = l->e.math == WEFT_DATA_DOUBLE || l->e.math == WEFT_DATA_INT64;
    for (; l->done < l->e.count; l->done++)
        TRY(lower_instruction(l, node, l->done));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t lower_node(struct rowwise *rows, const struct node *node) {
    struct lowering l;
    if (row_space_sums_columns(&rows->space, node))
        return lower_column_sum(rows, node);
    begin(&l, rows, node);
    TRY(expansion_of(&l.e, node->op));
    return lower(&l, node);
}

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

/* Every operand of every node must fit the space, otherwise the region is refused. */
static weftStatus_t check_tensor(const struct rowwise *rows, const struct descriptor *op, const struct tensor *tensor,
                                 bool is_output) {
    TRY(row_space_check(&rows->space, op, tensor, is_output));
    if (!dtype_of((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %d, which has no storage on the CPU",
             descriptor_label(op), descriptor_label(&tensor->base), tensor->type);
    return WEFT_STATUS_SUCCESS;
}

/* Integer arithmetic is left to cpu.map, which checks that double suffices; indices and comparisons are exact. */
static weftStatus_t check_pointwise(const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    bool has_long = operands.x && operands.x->type == WEFT_DATA_INT64;
    has_long = has_long || (operands.b && operands.b->type == WEFT_DATA_INT64);
    if (mode->form == FORM_INDEX || dtype_is_float(pointwise_math(op)) || (mode->is_logical && !has_long))
        return WEFT_STATUS_SUCCESS;
    FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s computes in integers", descriptor_label(node->op));
}

/* Lists are stored in the storage, which is large enough for any program. */
static void start(struct rowwise *rows, struct rowwise_storage *storage, const struct region *region) {
    *rows = (struct rowwise){.region = region,
                             .graph = region->graph,
                             .operands = storage->operands,
                             .values = storage->values,
                             .terms = storage->terms};
}

weftStatus_t rowwise_analyse(struct rowwise *rows, struct rowwise_storage *storage, const struct region *region,
                             enum statistics_method method, bool sums_apart, bool is_wide) {
    start(rows, storage, region);
    rows->method = method;
    rows->sums_apart = sums_apart;
    rows->is_wide = is_wide;
    TRY(row_space_find(&rows->space, region));
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        /* Checks operands before terms, so that layout errors name the operation. */
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

/* ---- The second program ------------------------------------------------------------------------------------------ */

/* Sums what the first program stored for each element of this program's rows. tensor: NULL if the sum is not needed. */
static void sum_saved(struct rowwise *rows, const struct follow *follow, const struct tensor *tensor, int64_t at,
                      const int64_t *strides) {
    bool is_wide = follow->math == WEFT_DATA_DOUBLE;
    if (tensor)
        rowwise_result(
            rows, tensor,
            rowwise_reduce(rows, TERM_REDUCTION, OPCODE_SUM, rowwise_load_saved(rows, at, strides, is_wide), is_wide));
}

/* Reads statistics from scratch memory if they were stored there, otherwise from the node's operands. */
static weftStatus_t sum_apart(struct rowwise *rows, const struct follow *follow, const int64_t *strides) {
    const struct norm_backward *op = (const struct norm_backward *)follow->node->op;
    bool is_wide = follow->math == WEFT_DATA_DOUBLE;
    int mean = follow->at_mean < 0 ? -1 : rowwise_load_saved(rows, follow->at_mean, strides, is_wide);
    int inv = follow->at_inv < 0 ? -1 : rowwise_load_saved(rows, follow->at_inv, strides, is_wide);
    struct lowering l;
    begin(&l, rows, follow->node);
    expansion_begin(&l.e, op->math, op->x);
    row_space_expand_in(&rows->space, &l.e);
    norm_expand_sums(&l.e, op, follow->scale, follow->bias, mean, inv);
    return lower(&l, follow->node);
}

/* Reads what the first program stored in scratch memory; its space differs, see follow_space. */
weftStatus_t rowwise_follow(struct rowwise *rows, struct rowwise_storage *storage, const struct rowwise *first) {
    const struct follow *follow = &first->follow;
    int64_t strides[WEFT_DIM_MAX];
    start(rows, storage, first->region);
    rows->is_wide = first->is_wide;
    TRY(follow_space(follow, &first->space, &rows->space, strides));
    if (follow->kind == FOLLOW_APART) {
        TRY(sum_apart(rows, follow, strides));
        return rowwise_finish(rows);
    }
    if (follow->kind == FOLLOW_FOLD) {
        sum_saved(rows, follow, follow->scale, follow->at_scale, strides);
        sum_saved(rows, follow, follow->bias, follow->at_bias, strides);
        return rowwise_finish(rows);
    }
    /* strides[0] is along the partial sums: a task stores all its sums next to each other. */
    strides[0] *= follow->column_count;
    for (int i = 0; i < follow->column_count; i++)
        sum_saved(rows, follow, follow->columns[i].tensor, follow->columns[i].at, strides);
    return rowwise_finish(rows);
}
