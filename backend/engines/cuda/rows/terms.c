/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a row program: its operands and terms. */
#include "base/number.h"
#include "engines/cuda/rows/plan.h"
#include "graph/views.h"

#include <string.h>

/* Bytes: the alignment of driver allocations, which suits 16-byte vectors and L2 lines. */
enum { SCRATCH_ALIGNMENT = 256 };

/* Building a program checks no status at each step: the first failure is kept and checked once at the end. */
static void record_failure(struct rows *rows, weftStatus_t status) {
    if (!rows->failure)
        rows->failure = status;
}

/* 0 after a failure: a valid index, so that callers can continue without checks. */
static int add_operand(struct rows *rows, struct operand operand) {
    if (rows->operand_count == ROWS_OPERANDS_MAX) {
        record_failure(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                         "the region would have more than %d operands", ROWS_OPERANDS_MAX));
        return 0;
    }
    rows->operands[rows->operand_count] = operand;
    return rows->operand_count++;
}

/* An operand whose elements are the coordinate along a dimension; it has no memory. */
static struct operand coordinate_along(const struct rows *rows, int64_t dim) {
    struct operand operand = {.memory = MEMORY_INDEX, .type = WEFT_DATA_INT64};
    for (int i = 0; i < rows->space.axis_count; i++)
        operand.strides[i] = rows->space.axes[i].dim == dim ? rows->space.axes[i].inner : 0;
    return operand;
}

/* True if it differs from element to element of a row. */
static bool operand_spans(const struct rows *rows, int operand) {
    for (int i = 0; i < rows->space.axis_count; i++)
        if (rows->space.axes[i].is_reduced && rows->operands[operand].strides[i])
            return true;
    return false;
}

/* Must come after the terms that it reads: terms are stored in the order of evaluation. */
static struct term *new_term(struct rows *rows, struct term term) {
    if (rows->term_count == TERMS_MAX) {
        record_failure(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                         "the region would take more than %d terms", TERMS_MAX));
        /* Overwrite the last term: the program is rejected anyway, and writes stay within the array. */
        rows->term_count--;
    }
    rows->terms[rows->term_count] = term;
    return &rows->terms[rows->term_count++];
}

/* Adds an operand that addresses need but no term reads. */
static int add_unread(struct rows *rows, struct operand operand) {
    struct term term = {.kind = TERM_LOAD, .name = rows->next_name++, .names = 1, .type = "i64"};
    operand.value = term.name;
    term.operand = add_operand(rows, operand);
    term.spans = operand_spans(rows, term.operand);
    return new_term(rows, term)->operand;
}

static void set_strides(const struct rows *rows, struct operand *operand, const struct tensor *tensor) {
    for (int i = 0; i < rows->space.axis_count && tensor_elements(tensor) != 1; i++)
        operand->strides[i] = row_space_stride(&rows->space, tensor, i);
}

/* Adds the coordinate that selects a part and, after it, the parts after the first, each with the strides of the whole
   value. */
static int add_parts(struct rows *rows, const struct concat_op *parts, const struct tensor *joined) {
    int coordinate = add_unread(rows, coordinate_along(rows, concat_axis(parts)));
    for (int64_t k = 1; k < parts->inputs.count; k++) {
        const struct tensor *tensor = parts->inputs.tensors[k];
        struct operand operand = {.memory = graph_find_value(rows->graph, tensor),
                                  .type = (weftDataType_t)joined->type};
        struct tensor as = tensor_mirror(joined);
        as.strides = tensor->strides;
        set_strides(rows, &operand, &as);
        add_unread(rows, operand);
    }
    return coordinate;
}

static int add_value(struct rows *rows, int value, bool is_store) {
    const struct tensor *tensor = rows->graph->values[value].tensor;
    struct operand operand = {.value = value, .memory = value, .is_store = is_store};
    operand.type = (weftDataType_t)tensor->type;
    set_strides(rows, &operand, tensor);
    operand.parts = views_gathered(rows->graph, value);
    if (operand.parts)
        operand.coordinate = add_parts(rows, operand.parts, tensor);
    return add_operand(rows, operand);
}

/* Linear search, over at most TERMS_MAX terms. */
static int find_index(const struct rows *rows, int name) {
    for (int i = 0; i < rows->term_count; i++)
        if (name >= rows->terms[i].name && name < rows->terms[i].name + rows->terms[i].names)
            return i;
    return -1;
}

/* Precondition: a term of this name exists. */
const struct term *rows_find(const struct rows *rows, int name) { return &rows->terms[find_index(rows, name)]; }

/* Records that `term`, which is not in the program yet, reads a name. */
static void use(struct rows *rows, struct term *term, int name) {
    int index = find_index(rows, name);
    if (index < 0 || term->use_count == TERM_USES)
        record_failure(rows, status_fail(WEFT_STATUS_INTERNAL_ERROR, "row program: v%d cannot be used", name));
    if (rows->failure)
        return;
    const struct term *used = &rows->terms[index];
    term->uses[term->use_count++] = index;
    term->spans = term->spans || used->spans;
    /* The stage is the number of reductions that must be complete first: the maximum over the operands. */
    term->stage = used->stage > term->stage ? used->stage : term->stage;
}

/* Makes a value available to later terms. It is loaded once, at its first use, unless a node of the region produces it:
   as a term, or as a column sum, which is known only after the last row. */
static void need_value(struct rows *rows, int value) {
    if (find_index(rows, value) >= 0)
        return;
    if (region_makes(rows->region, value))
        record_failure(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                         "%s is a sum over rows, and read by operations on them",
                                         descriptor_label(&rows->graph->values[value].tensor->base)));
    struct term term = {.kind = TERM_LOAD, .name = value, .names = 1};
    term.operand = add_value(rows, value, false);
    term.type = cuda_type_name(rows->operands[term.operand].type);
    term.spans = operand_spans(rows, term.operand);
    new_term(rows, term);
}

/* Arguments without a name are literals, not uses. */
int rows_formula(struct rows *rows, const char *type, int opcode, const struct term_argument *arguments, int count) {
    struct term term = {.kind = TERM_FORMULA, .opcode = opcode, .name = rows->next_name++, .names = 1, .type = type};
    for (int i = 0; i < count; i++) {
        term.arguments[term.argument_count++] = arguments[i];
        if (arguments[i].name >= 0)
            use(rows, &term, arguments[i].name);
    }
    return new_term(rows, term)->name;
}

/* A load converted to the compute type. */
static int convert(struct rows *rows, const char *type, int name) {
    return rows_formula(rows, type, ROWS_CONVERT, &(struct term_argument){.name = name}, 1);
}

int rows_input(struct rows *rows, const struct tensor *tensor, const char *type) {
    if (!tensor)
        return -1;
    int value = graph_find_value(rows->graph, tensor);
    need_value(rows, value);
    if (strcmp(rows_find(rows, value)->type, type) == 0)
        return value;
    return convert(rows, type, value);
}

/* The operand has stride 0 within the row, so it changes only from row to row. It gets a name of its own, because the
   same value is also loaded per element. */
int rows_first(struct rows *rows, const struct tensor *tensor, const char *type) {
    int value = graph_find_value(rows->graph, tensor);
    /* Values that the region produces are not in memory yet, and rows without elements have no first one. */
    if (region_makes(rows->region, value) || row_space_length(&rows->space) == 0)
        return -1;
    struct term term = {.kind = TERM_LOAD, .name = rows->next_name++, .names = 1};
    term.operand = add_value(rows, value, false);
    struct operand *operand = &rows->operands[term.operand];
    operand->value = term.name;
    for (int i = 0; i < rows->space.axis_count; i++)
        operand->strides[i] = rows->space.axes[i].is_reduced ? 0 : operand->strides[i];
    term.type = cuda_type_name(operand->type);
    return convert(rows, type, new_term(rows, term)->name);
}

int rows_reduce(struct rows *rows, int opcode, const char *type, int of) {
    /* Moments (mean and squares) and weights (maximum and sum) are two numbers; the second has the next name. */
    int names = opcode == OPCODE_MOMENTS || opcode == OPCODE_WEIGHTS ? 2 : 1;
    struct term term = {
        .kind = TERM_REDUCTION, .opcode = opcode, .name = rows->next_name, .names = names, .type = type};
    rows->next_name += names;
    use(rows, &term, of);
    term.spans = false;
    /* A term that needs a sum of the row waits for the next pass; nothing in the kernel reads column sums. */
    term.stage += opcode != ROWS_COLUMN_SUM;
    return new_term(rows, term)->name;
}

/* True if a value is stored, because it is read outside the region. */
static bool is_wanted(const struct rows *rows, int value) {
    return region_exports(rows->region, value) && !value_is_dead(&rows->graph->values[value]);
}

void rows_result(struct rows *rows, const struct tensor *tensor, const char *type, int name) {
    int value = graph_find_value(rows->graph, tensor);
    struct term term = {.kind = TERM_FORMULA, .name = value, .names = 1, .type = type, .argument_count = 1};
    const char *stored = cuda_type_name((weftDataType_t)tensor->type);
    /* Readers of the node see the stored value. */
    bool is_narrower = rows->graph->values[value].readers && strcmp(stored, type) != 0 && !tensor->is_free &&
                       tensor->type != WEFT_DATA_DOUBLE &&
                       !(tensor->type == WEFT_DATA_FLOAT && strcmp(type, "i64") == 0);
    term.opcode = is_narrower ? ROWS_ROUND : OPCODE_COPY;
    term.stored = stored;
    term.arguments[0] = (struct term_argument){.name = name};
    use(rows, &term, name);
    new_term(rows, term);
    if (is_wanted(rows, value))
        add_value(rows, value, true);
}

/* Values passed between programs keep the width of the compute type: rounding them would show in gradients. */
static weftDataType_t scratch_type(const char *type) {
    return strcmp(type, "double") == 0 ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
}

/* Offset in bytes from the start of the workspace. */
static int64_t reserve(struct rows *rows, int64_t bytes) {
    int64_t at = rows->scratch_bytes;
    rows->scratch_bytes += round_up(bytes, SCRATCH_ALIGNMENT);
    return at;
}

/* by_place: all rows share the element, and each block stores its own sums (place_columns in rows.c). */
int64_t rows_save(struct rows *rows, const char *type, int name, bool by_place) {
    weftDataType_t stored = scratch_type(type);
    struct operand operand = {.value = name, .memory = MEMORY_SCRATCH, .is_store = true, .type = stored};
    row_space_pack(&rows->space, operand.strides, by_place);
    /* Sums by position have one copy per block, so their size is not known yet. */
    int64_t at = by_place ? 0 : reserve(rows, dtype_bytes(stored, row_space_rows(&rows->space)));
    operand.offset = at / dtype_bytes(stored, 1);
    add_operand(rows, operand);
    return at;
}

/* Loads what rows_save stored, by strides over the axes of this program. */
int rows_load_saved(struct rows *rows, const char *type, int64_t at, const int64_t *strides) {
    weftDataType_t stored = scratch_type(type);
    struct term term = {.kind = TERM_LOAD, .name = rows->next_name++, .names = 1, .type = type};
    struct operand operand = {
        .value = term.name, .memory = MEMORY_SCRATCH, .type = stored, .offset = at / dtype_bytes(stored, 1)};
    memcpy(operand.strides, strides, sizeof operand.strides);
    term.operand = add_operand(rows, operand);
    term.spans = operand_spans(rows, term.operand);
    return new_term(rows, term)->name;
}

/* GEN_INDEX: an operand whose offset is the coordinate; `inner` is its increment per step of the axis. */
static void add_index(struct rows *rows, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    int value = node->operands[node->is_output[0] ? 0 : 1];
    struct term term = {.kind = TERM_LOAD, .name = value, .names = 1, .type = "i64"};
    struct operand operand = coordinate_along(rows, op->pw->axis);
    operand.value = value;
    term.operand = add_operand(rows, operand);
    term.spans = operand_spans(rows, term.operand);
    new_term(rows, term);
    if (is_wanted(rows, value))
        add_value(rows, value, true);
}

/* Operands first, so that their terms exist before the node's. */
void rows_pointwise(struct rows *rows, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    if (op->pw->mode == WEFT_POINTWISE_GEN_INDEX) {
        add_index(rows, node);
        return;
    }
    struct term term = {.kind = TERM_NODE, .names = 1, .type = formula_type(op), .node = node};
    for (int k = 0; k < node->operand_count; k++)
        if (!node->is_output[k])
            need_value(rows, node->operands[k]);
    for (int k = 0; k < node->operand_count && !rows->failure; k++)
        if (node->is_output[k])
            term.name = node->operands[k];
        else
            use(rows, &term, node->operands[k]);
    new_term(rows, term);
    if (is_wanted(rows, term.name))
        add_value(rows, term.name, true);
}

/* Terminates, because terms only read earlier ones. The operands of a marked term are already marked. */
static void mark_needed(struct rows *rows, int index) {
    struct term *term = &rows->terms[index];
    if (term->is_needed)
        return;
    term->is_needed = true;
    for (int i = 0; i < term->use_count; i++)
        mark_needed(rows, term->uses[i]);
}

void rows_need(struct rows *rows, int name) { mark_needed(rows, find_index(rows, name)); }

/* Loads and reductions are fields, set when rows are opened or passes closed; formulas are fields only if other code
   reads them. */
bool rows_is_field(const struct rows *rows, const struct term *term) {
    if (!term->is_needed || term->spans || term_is_column_sum(term))
        return false;
    bool is_field = term->kind == TERM_LOAD || term->kind == TERM_REDUCTION;
    /* Stores read fields, and so do elements, reductions and later stages. */
    int index = (int)(term - rows->terms);
    for (int k = 0; k < rows->operand_count && !is_field; k++)
        is_field = rows->operands[k].is_store && rows->operands[k].value == term->name;
    for (int i = 0; i < rows->term_count && !is_field; i++) {
        const struct term *user = &rows->terms[i];
        for (int u = 0; u < user->use_count && user->is_needed && !is_field; u++)
            is_field =
                user->uses[u] == index && (user->spans || user->kind == TERM_REDUCTION || user->stage > term->stage);
    }
    return is_field;
}
