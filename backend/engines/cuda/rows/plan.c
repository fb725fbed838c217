/* SPDX-License-Identifier: Apache-2.0 */
/* From the nodes of a region to a row program: the row space, operands with strides over it, and terms. It must not
   know how rows are given to threads. */
#include "engines/cuda/rows/plan.h"
#include "base/number.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCRATCH_ALIGNMENT = 256, DIM_OF_BLOCKS = -1 };

/* ---- The row space ----------------------------------------------------------------------------------------------- */

static bool is_split(const struct rows *rows, int64_t dim) {
    return rows->parts[dim] != 1 && rows->parts[dim] != rows->dims.at[dim];
}

static weftStatus_t add_axis(struct rows *rows, int dim, int64_t extent, int64_t inner, bool is_reduced) {
    if (extent == 1)
        return WEFT_STATUS_SUCCESS;
    if (rows->axis_count == WEFT_DIM_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "dims %s in groups would be more than %d dims to walk",
             numbers_text(rows->dims.at, rows->dims.count), WEFT_DIM_MAX);
    rows->axes[rows->axis_count++] = (struct axis){dim, extent, inner, is_reduced, false};
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t make_axes(struct rows *rows) {
    for (int64_t d = 0; d < rows->dims.count; d++) {
        int64_t extent = rows->dims.at[d], parts = rows->parts[d], inner = parts ? extent / parts : 0;
        if (is_split(rows, d)) {
            TRY(add_axis(rows, (int)d, parts, inner, false));
            rows->axes[rows->axis_count - 1].counts_groups = true; /* there are 2 at least */
        }
        TRY(add_axis(rows, (int)d, is_split(rows, d) ? inner : extent, 1, is_split(rows, d) || parts == 1));
    }
    return WEFT_STATUS_SUCCESS;
}

int64_t rows_length(const struct rows *rows) {
    int64_t length = 1;
    for (int i = 0; i < rows->axis_count; i++)
        length *= rows->axes[i].is_reduced ? rows->axes[i].extent : 1;
    return length;
}

int64_t rows_count(const struct rows *rows) {
    int64_t count = 1;
    for (int i = 0; i < rows->axis_count; i++)
        count *= rows->axes[i].is_reduced ? 1 : rows->axes[i].extent;
    return count;
}

/* The part of a split dimension that a tensor has one element of for each group. */
static bool has_groups(const struct rows *rows, const struct tensor *tensor, int64_t dim) {
    return is_split(rows, dim) && tensor->dims.at[dim] == rows->parts[dim];
}

bool rows_has_axis(const struct rows *rows, const struct tensor *tensor, int axis) {
    int64_t dim = rows->axes[axis].dim;
    if (dim == DIM_OF_BLOCKS)
        return false;
    int64_t extent = tensor->dims.at[dim];
    if (extent == rows->dims.at[dim])
        return true;
    return has_groups(rows, tensor, dim) && rows->axes[axis].counts_groups;
}

static int64_t stride_along(const struct rows *rows, const struct tensor *tensor, int axis) {
    const struct axis *at = &rows->axes[axis];
    if (!rows_has_axis(rows, tensor, axis))
        return 0;
    bool by_group = tensor->dims.at[at->dim] != rows->dims.at[at->dim];
    return tensor->strides.at[at->dim] * (by_group ? 1 : at->inner);
}

static weftStatus_t check_tensor(const struct rows *rows, const struct descriptor *op, const struct tensor *tensor,
                                 bool is_output) {
    bool is_scalar = tensor_elements(tensor) == 1 && !is_output;
    bool fits = tensor->vector_count == 1 && (is_scalar || tensor->dims.count == rows->dims.count);
    for (int64_t d = 0; fits && !is_scalar && d < rows->dims.count; d++)
        fits = tensor->dims.at[d] == rows->dims.at[d] || tensor->dims.at[d] == 1 || has_groups(rows, tensor, d);
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s, the rows of this region lie in %s",
             descriptor_label(op), descriptor_label(&tensor->base), tensor_dims_text(tensor),
             numbers_text(rows->dims.at, rows->dims.count));
    if (!cuda_type_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
             descriptor_label(op), descriptor_label(&tensor->base), dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

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
    return make_axes(rows);
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

static void keep_trouble(struct rows *rows, weftStatus_t status) {
    if (!rows->trouble)
        rows->trouble = status;
}

static int add_operand(struct rows *rows, struct operand operand) {
    if (rows->operand_count == ROWS_OPERANDS_MAX) {
        keep_trouble(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                       "the region would have more than %d operands", ROWS_OPERANDS_MAX));
        return 0;
    }
    rows->operands[rows->operand_count] = operand;
    return rows->operand_count++;
}

static int add_value(struct rows *rows, int value, bool is_store) {
    const struct tensor *tensor = rows->graph->values[value].tensor;
    struct operand operand = {value, value, is_store, (weftDataType_t)tensor->type, 0, {0}};
    for (int i = 0; i < rows->axis_count && tensor_elements(tensor) != 1; i++)
        operand.strides[i] = stride_along(rows, tensor, i);
    return add_operand(rows, operand);
}

static bool operand_spans(const struct rows *rows, int operand) {
    for (int i = 0; i < rows->axis_count; i++)
        if (rows->axes[i].is_reduced && rows->operands[operand].strides[i])
            return true;
    return false;
}

/* ---- Terms ------------------------------------------------------------------------------------------------------- */

static struct term *new_term(struct rows *rows, struct term term) {
    if (rows->term_count == TERMS_MAX) {
        keep_trouble(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                       "the region would take more than %d terms", TERMS_MAX));
        rows->term_count--;
    }
    rows->terms[rows->term_count] = term;
    return &rows->terms[rows->term_count++];
}

static int find_index(const struct rows *rows, int name) {
    for (int i = 0; i < rows->term_count; i++)
        if (name >= rows->terms[i].name && name < rows->terms[i].name + rows->terms[i].names)
            return i;
    return -1;
}

const struct term *rows_find(const struct rows *rows, int name) { return &rows->terms[find_index(rows, name)]; }

static void use(struct rows *rows, struct term *term, int name) {
    int index = find_index(rows, name);
    if (index < 0 || term->use_count == TERM_USES)
        keep_trouble(rows, status_fail(WEFT_STATUS_INTERNAL_ERROR, "row program: v%d cannot be used", name));
    if (rows->trouble)
        return;
    const struct term *used = &rows->terms[index];
    term->uses[term->use_count++] = index;
    term->spans = term->spans || used->spans;
    term->stage = used->stage > term->stage ? used->stage : term->stage;
}

/* A value that terms may use from here on. */
static void need_value(struct rows *rows, int value) {
    if (find_index(rows, value) >= 0)
        return;
    struct term term = {.kind = TERM_LOAD, .name = value, .names = 1};
    term.operand = add_value(rows, value, false);
    term.type = cuda_type_name(rows->operands[term.operand].type);
    term.spans = operand_spans(rows, term.operand);
    new_term(rows, term);
}

int rows_text(struct rows *rows, const char *type, const char *format, ...) {
    struct term term = {.kind = TERM_TEXT, .name = rows->next_name++, .names = 1, .type = type};
    va_list list;
    va_start(list, format);
    int length = vsnprintf(term.text, sizeof term.text, format, list);
    va_end(list);
    if (length >= TERM_BYTES)
        keep_trouble(rows, status_fail(WEFT_STATUS_INTERNAL_ERROR, "row program: an expression of %d bytes", length));
    for (const char *at = term.text; *at && !rows->trouble; at++)
        if (*at == 'v' && isdigit((unsigned char)at[1]) &&
            (at == term.text || (!isalnum((unsigned char)at[-1]) && at[-1] != '_')))
            use(rows, &term, atoi(at + 1));
    return new_term(rows, term)->name;
}

int rows_input(struct rows *rows, const struct tensor *tensor, const char *type) {
    if (!tensor)
        return -1;
    int value = graph_find_value(rows->graph, tensor);
    need_value(rows, value);
    if (strcmp(rows_find(rows, value)->type, type) == 0)
        return value;
    return rows_text(rows, type, "as<%s>::of(v%d)", type, value);
}

int rows_first(struct rows *rows, const struct tensor *tensor, const char *type) {
    int value = graph_find_value(rows->graph, tensor), producer = rows->graph->values[value].producer;
    if ((producer >= 0 && region_has(rows->region, producer)) || rows_length(rows) == 0)
        return -1;
    struct term term = {.kind = TERM_LOAD, .name = rows->next_name++, .names = 1};
    term.operand = add_value(rows, value, false);
    struct operand *operand = &rows->operands[term.operand];
    operand->value = term.name;
    for (int i = 0; i < rows->axis_count; i++)
        operand->strides[i] = rows->axes[i].is_reduced ? 0 : operand->strides[i];
    term.type = cuda_type_name(operand->type);
    return rows_text(rows, type, "as<%s>::of(v%d)", type, new_term(rows, term)->name);
}

int rows_total(struct rows *rows, enum total_kind total, const char *type, int of) {
    int names = total == TOTAL_MOMENTS || total == TOTAL_WEIGHTS ? 2 : 1;
    struct term term = {.kind = TERM_TOTAL, .total = total, .name = rows->next_name, .names = names, .type = type};
    rows->next_name += names;
    use(rows, &term, of);
    term.spans = false;
    term.stage += total != TOTAL_COLUMN;
    return new_term(rows, term)->name;
}

static bool is_wanted(const struct rows *rows, int value) {
    return region_exports(rows->region, value) && !value_is_dead(&rows->graph->values[value]);
}

void rows_result(struct rows *rows, const struct tensor *tensor, const char *type, int name) {
    if (!tensor || rows->trouble)
        return;
    int value = graph_find_value(rows->graph, tensor);
    struct term term = {.kind = TERM_TEXT, .name = value, .names = 1, .type = type};
    const char *stored = cuda_type_name((weftDataType_t)tensor->type);
    /* Nodes that read it see what memory would hold. */
    bool is_narrower = rows->graph->values[value].readers && strcmp(stored, type) != 0 &&
                       tensor->type != WEFT_DATA_DOUBLE &&
                       !(tensor->type == WEFT_DATA_FLOAT && strcmp(type, "i64") == 0);
    if (is_narrower)
        snprintf(term.text, sizeof term.text, "rounded<%s>(v%d)", stored, name);
    else
        snprintf(term.text, sizeof term.text, "v%d", name);
    use(rows, &term, name);
    new_term(rows, term);
    if (is_wanted(rows, value))
        add_value(rows, value, true);
}

/* Row-major strides over the axes of the row, or of the rows. */
static void pack(const struct rows *rows, int64_t *strides, bool reduced) {
    int64_t packed = 1;
    for (int i = rows->axis_count; i-- > 0;) {
        strides[i] = rows->axes[i].is_reduced == reduced ? packed : 0;
        packed *= rows->axes[i].is_reduced == reduced ? rows->axes[i].extent : 1;
    }
}

static weftDataType_t scratch_type(const char *type) {
    return strcmp(type, "double") == 0 ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
}

static int64_t reserve(struct rows *rows, int64_t bytes) {
    int64_t at = rows->scratch_bytes;
    rows->scratch_bytes += round_up(bytes, SCRATCH_ALIGNMENT);
    return at;
}

int64_t rows_keep(struct rows *rows, const char *type, int name, bool by_place) {
    weftDataType_t stored = scratch_type(type);
    struct operand operand = {name, MEMORY_SCRATCH, true, stored, 0, {0}};
    pack(rows, operand.strides, by_place);
    /* Sums of places have one copy for each block, and their size is not known yet. */
    int64_t at = by_place ? 0 : reserve(rows, dtype_bytes(stored, rows_count(rows)));
    operand.offset = at / dtype_bytes(stored, 1);
    add_operand(rows, operand);
    return at;
}

int rows_kept(struct rows *rows, const char *type, int64_t at, const int64_t *strides) {
    weftDataType_t stored = scratch_type(type);
    struct term term = {.kind = TERM_LOAD, .name = rows->next_name++, .names = 1, .type = type};
    struct operand operand = {term.name, MEMORY_SCRATCH, false, stored, at / dtype_bytes(stored, 1), {0}};
    memcpy(operand.strides, strides, sizeof operand.strides);
    term.operand = add_operand(rows, operand);
    term.spans = operand_spans(rows, term.operand);
    return new_term(rows, term)->name;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static bool is_pointwise(const struct node *node) { return op_of(node->op) == &pointwise_op; }

static void add_index(struct rows *rows, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    int value = node->operands[node->is_output[0] ? 0 : 1];
    struct operand operand = {value, MEMORY_INDEX, false, WEFT_DATA_INT64, 0, {0}};
    for (int i = 0; i < rows->axis_count; i++)
        operand.strides[i] = rows->axes[i].dim == op->pw->axis ? rows->axes[i].inner : 0;
    struct term term = {.kind = TERM_LOAD, .name = value, .names = 1, .type = "i64"};
    term.operand = add_operand(rows, operand);
    term.spans = operand_spans(rows, term.operand);
    new_term(rows, term);
    if (is_wanted(rows, value))
        add_value(rows, value, true);
}

static void add_pointwise(struct rows *rows, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    if (op->pw->mode == WEFT_POINTWISE_GEN_INDEX) {
        add_index(rows, node);
        return;
    }
    struct term term = {.kind = TERM_NODE, .names = 1, .type = formula_type(op), .node = node};
    for (int k = 0; k < node->operand_count; k++)
        if (!node->is_output[k])
            need_value(rows, node->operands[k]);
    for (int k = 0; k < node->operand_count && !rows->trouble; k++)
        if (node->is_output[k])
            term.name = node->operands[k];
        else
            use(rows, &term, node->operands[k]);
    new_term(rows, term);
    if (is_wanted(rows, term.name))
        add_value(rows, term.name, true);
}

static void mark_needed(struct rows *rows, int index) {
    struct term *term = &rows->terms[index];
    if (term->is_needed)
        return;
    term->is_needed = true;
    for (int i = 0; i < term->use_count; i++)
        mark_needed(rows, term->uses[i]);
}

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
        mark_needed(rows, find_index(rows, operand->value));
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
        if (!is_pointwise(node) && !rows_serves(node))
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
            add_pointwise(rows, node);
        TRY(rows->trouble);
    }
    return finish(rows);
}

weftStatus_t rows_analyse(struct rows *rows, const struct region *region, enum taking taking, bool sums_apart) {
    memset(rows, 0, sizeof *rows);
    rows->taking = taking;
    rows->sums_apart = sums_apart;
    return analyse(rows, region);
}

/* ---- What is left over ------------------------------------------------------------------------------------------- */

static void sum_kept(struct rows *rows, const struct follow *follow, const struct tensor *tensor, int64_t at,
                     const int64_t *strides) {
    if (!tensor)
        return;
    int kept = rows_kept(rows, follow->type, at, strides);
    rows_result(rows, tensor, follow->type, rows_total(rows, TOTAL_SUM, follow->type, kept));
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
    pack(first, all, false);
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
    pack(first, strides, false);
    for (int i = 0; i < rows->axis_count; i++)
        rows->axes[i].is_reduced = !rows_has_axis(first, any, i);
    if (follow->at_mean >= 0)
        mean = rows_kept(rows, follow->type, follow->at_mean, strides);
    if (follow->at_inv >= 0)
        inv = rows_kept(rows, follow->type, follow->at_inv, strides);
    rows_expand_apart(rows, follow, mean, inv);
    return WEFT_STATUS_SUCCESS;
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
