/* SPDX-License-Identifier: Apache-2.0 */
/* Writes terms: operands, formulas, reductions and results, in float or double as their types require. A term never
   changes once it is written. Duplicates are not searched for, because expansions do not produce them. This file must
   not know blocks, registers, or passes beyond a term's stage. */
#include "engines/cpu/rows/terms.h"
#include "base/number.h"
#include "engines/cpu/core/compute_type.h"
#include "engines/cpu/rows/kernels.h"

/* Cost per element on the core that schedule.c names; used to decide what is kept between passes, and for
   predictions. */
static const double PLAIN = 0.06, ROOT = 0.3, WEIGHT = 0.6, WIDE = 4; /* nanoseconds; double costs WIDE times as much */

/* Functions return -1 if they fail, and failures propagate through them. */
static int fail(struct rowwise *rows, weftStatus_t status) {
    rows->trouble = rows->trouble ? rows->trouble : status;
    return -1;
}

/* Derives properties of a term from its arguments: it is an element if any of them is, and has the latest of their
   stages. */
static int append(struct rowwise *rows, struct term term) {
    if (rows->trouble)
        return -1;
    if (rows->term_count == ROWWISE_TERMS)
        return fail(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region needs more than %d terms",
                                      ROWWISE_TERMS));
    for (int i = 0; i < term.argument_count; i++) {
        const struct term *used = &rows->terms[term.arguments[i]];
        term.spans = term.spans || used->spans;
        term.stage = used->stage > term.stage ? used->stage : term.stage;
    }
    rows->terms[rows->term_count] = term;
    return rows->term_count++;
}

/* A term with one argument; -1 propagates a failure. The caller corrects `spans` for a reduction. */
static int unary(struct rowwise *rows, enum term_kind kind, int of, struct term term) {
    if (of < 0)
        return -1;
    term.kind = kind;
    term.argument_count = 1;
    term.arguments[0] = of;
    term.nanoseconds = PLAIN;
    return append(rows, term);
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

/* Returns the operand's index, or -1 if there are too many. */
static int add_operand(struct rowwise *rows, struct row_operand operand) {
    if (rows->operand_count == ROWWISE_OPERANDS)
        return fail(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region has more than %d operands",
                                      ROWWISE_OPERANDS));
    rows->operands[rows->operand_count] = operand;
    return rows->operand_count++;
}

/* Adds a tensor of the graph with its strides along the axes of the space. `term`: the stored term; -1 for a load,
   whose term is written later. */
static int add_value(struct rowwise *rows, int value, int term, bool is_store) {
    const struct tensor *tensor = rows->graph->values[value].tensor;
    struct row_operand operand = {
        .value = value, .term = term, .is_store = is_store, .type = (weftDataType_t)tensor->type};
    /* Strides stay 0 for a scalar, which may have any rank. */
    for (int i = 0; i < rows->space.axis_count && tensor_elements(tensor) != 1; i++)
        operand.strides[i] = row_space_stride(&rows->space, tensor, i);
    return add_operand(rows, operand);
}

/* The term of a loaded operand: an element if any stride along the row is not 0, otherwise a row value. */
static int add_load(struct rowwise *rows, int operand, bool is_wide) {
    struct term term = {.kind = TERM_LOAD, .operand = operand, .is_wide = is_wide, .nanoseconds = PLAIN};
    if (operand < 0)
        return -1;
    for (int i = 0; i < rows->space.axis_count; i++)
        term.spans = term.spans || (rows->space.axes[i].is_reduced && rows->operands[operand].strides[i]);
    return rows->operands[operand].term = append(rows, term);
}

/* Converts a term to the other width, at most once. Converting back creates a third term, because rounding may have
   changed the value. */
static int in_width(struct rowwise *rows, int term, bool is_wide) {
    if (term < 0 || rows->terms[term].is_wide == is_wide)
        return term;
    for (int i = 0; i < rows->term_count; i++)
        if (rows->terms[i].kind == TERM_CONVERT && rows->terms[i].arguments[0] == term)
            return i;
    return unary(rows, TERM_CONVERT, term, (struct term){.is_wide = is_wide});
}

/* The term of a value; -1 if it is new. After a failure, `none` is written but never read as a term, because trouble is
   checked first. */
static int *term_of(struct rowwise *rows, int value) {
    static _Thread_local int none; /* after a failure */
    for (int i = 0; i < rows->value_count; i++)
        if (rows->values[i].value == value)
            return &rows->values[i].term;
    if (rows->value_count == ROWWISE_TERMS)
        fail(rows,
             status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region has more than %d values", ROWWISE_TERMS));
    if (rows->trouble)
        return &none;
    rows->values[rows->value_count].value = value;
    rows->values[rows->value_count].term = -1;
    return &rows->values[rows->value_count++].term;
}

/* A value of the graph, in the width in which it was computed or that its type requires. Loaded on first use. */
static int term_of_value(struct rowwise *rows, int value) {
    int *term = term_of(rows, value);
    bool is_wide = rows->is_wide || type_is_wide(rows->graph->values[value].tensor->type);
    if (*term < 0 && !rows->trouble && region_makes(rows->region, value)) /* known only after the last row */
        fail(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                               "%s is a sum over rows, but operations on the rows read it",
                               descriptor_label(&rows->graph->values[value].tensor->base)));
    if (*term < 0 && !rows->trouble)
        *term = add_load(rows, add_value(rows, value, -1, false), is_wide);
    return rows->trouble ? -1 : *term;
}

/* A row value, because no argument is an element. */
int rowwise_constant(struct rowwise *rows, double number, bool is_wide) {
    return append(rows, (struct term){.kind = TERM_CONSTANT, .number = number, .is_wide = is_wide});
}

int rowwise_input(struct rowwise *rows, const struct tensor *tensor, bool is_wide) {
    return tensor ? in_width(rows, term_of_value(rows, graph_find_value(rows->graph, tensor)), is_wide) : -1;
}

/* A separate operand with strides 0 within the row, so that it is a row value. Its elements are located with the
   strides of the operand that reads all of them. */
int rowwise_sample(struct rowwise *rows, const struct tensor *tensor, bool is_wide) {
    int value = graph_find_value(rows->graph, tensor);
    /* An empty row has no first element, and values that the region computes may have no memory to read. */
    if (region_makes(rows->region, value) || row_space_length(&rows->space) == 0)
        return -1;
    int all = term_of_value(rows, value), operand = all < 0 ? -1 : add_value(rows, value, -1, false);
    for (int i = 0; i < rows->space.axis_count && operand >= 0; i++)
        if (rows->space.axes[i].is_reduced)
            rows->operands[operand].strides[i] = 0;
    if (operand >= 0) {
        rows->operands[operand].is_sample = true;
        rows->operands[operand].sampled = rows->terms[all].operand;
    }
    return add_load(rows, operand, is_wide);
}

/* ---- Formulas and reductions ------------------------------------------------------------------------------------- */

/* The time per element in float; other opcodes take one or two instructions each. */
static double nanoseconds_of(int opcode) {
    switch (opcode) {
    case OPCODE_WEIGHT:
    case OPCODE_ROW_WEIGHT:
    case OPCODE_LOGARITHM:
        return WEIGHT;
    case OPCODE_DIVIDE:
    case OPCODE_SHARE:
    case OPCODE_ROOT:
    case OPCODE_INVERSE_ROOT:
        return ROOT;
    default:
        return PLAIN;
    }
}

/* The only constant by which expansions multiply without checking. */
static bool is_one(const struct rowwise *rows, int term) {
    return term >= 0 && rows->terms[term].kind == TERM_CONSTANT && rows->terms[term].number == 1;
}

/* Multiplication by 1 returns the term itself, so that expansions need not check. */
int rowwise_formula(struct rowwise *rows, int opcode, const int *arguments, int count, bool is_wide) {
    if (opcode == OPCODE_MULTIPLY && is_one(rows, arguments[1]))
        return arguments[0];
    struct term term = {.kind = TERM_FORMULA, .opcode = opcode, .is_wide = is_wide, .argument_count = count};
    for (int i = 0; i < count; i++)
        term.arguments[i] = arguments[i];
    term.nanoseconds = nanoseconds_of(opcode) * (is_wide ? WIDE : 1);
    return append(rows, term);
}

/* A row value, one stage later than its argument: its pass must be closed before it is known. */
int rowwise_reduce(struct rowwise *rows, enum term_kind kind, enum opcode opcode, int of, bool is_wide) {
    int term = unary(rows, kind, of, (struct term){.opcode = opcode, .is_wide = is_wide});
    if (term >= 0) {
        rows->terms[term].spans = false;
        /* A column sum closes no pass, and nothing in the program reads it. */
        rows->terms[term].stage += kind == TERM_REDUCTION;
    }
    return term;
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* The value is read outside the region, and the readers' results reach the user. */
static bool is_needed_outside(const struct rowwise *rows, int value) {
    return region_exports(rows->region, value) && !value_is_dead(&rows->graph->values[value]);
}

/* A value may be both stored and read by nodes of the region. */
static bool is_read_inside(const struct rowwise *rows, int value) {
    const struct value *at = &rows->graph->values[value];
    for (int i = 0; i < at->readers; i++)
        if (region_has(rows->region, at->read_by[i]))
            return true;
    return false;
}

void rowwise_result(struct rowwise *rows, const struct tensor *tensor, int term) {
    if (!tensor || rows->trouble)
        return;
    int value = graph_find_value(rows->graph, tensor);
    weftDataType_t type = (weftDataType_t)tensor->type;
    bool is_wide = rows->terms[term].is_wide;
    /* A separate instruction, so that a load and a store never share a register. */
    if (rows->terms[term].kind == TERM_LOAD) /* its memory may be that of another output, which is stored earlier */
        term = unary(rows, TERM_FORMULA, term, (struct term){.opcode = OPCODE_COPY, .is_wide = is_wide});
    bool is_kept = type == WEFT_DATA_DOUBLE || (type == WEFT_DATA_FLOAT && !is_wide);
    if (!is_kept && is_read_inside(rows, value)) /* readers see the stored value */
        term = unary(rows, TERM_ROUND, term, (struct term){.type = type, .is_wide = is_wide});
    *term_of(rows, value) = term;
    if (is_needed_outside(rows, value) && term >= 0)
        add_value(rows, value, term, true);
}

/* Values passed between programs have the width in which they were computed, without rounding. */
static int64_t scratch_bytes_of(bool is_wide) { return is_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float); }

static weftDataType_t scratch_type(bool is_wide) { return is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT; }

/* The location counts elements of the value's own width from the start of scratch memory, whose parts are multiples of
   64 bytes. */
int64_t rowwise_save(struct rowwise *rows, int term) {
    if (term < 0)
        return -1;
    bool is_wide = rows->terms[term].is_wide;
    int64_t bytes = scratch_bytes_of(is_wide), at = rows->scratch_bytes / bytes;
    struct row_operand operand = {
        .value = VALUE_SCRATCH, .term = term, .is_store = true, .type = scratch_type(is_wide), .offset = at};
    row_space_pack(&rows->space, operand.strides, false);
    rows->scratch_bytes += round_up(row_space_rows(&rows->space) * bytes, 64);
    add_operand(rows, operand);
    return at;
}

/* This is the counterpart of rowwise_save: strides locate each row's number along the axes of this program's space. */
int rowwise_load_saved(struct rowwise *rows, int64_t at, const int64_t *strides, bool is_wide) {
    struct row_operand operand = {.value = VALUE_SCRATCH, .term = -1, .type = scratch_type(is_wide), .offset = at};
    for (int i = 0; i < rows->space.axis_count; i++)
        operand.strides[i] = strides[i];
    return add_load(rows, add_operand(rows, operand), is_wide);
}

/* ---- Pointwise nodes --------------------------------------------------------------------------------------------- */

/* x times alpha, in the width of the node. */
static int scaled(struct rowwise *rows, const struct tensor *tensor, double factor, bool is_wide) {
    int term = rowwise_input(rows, tensor, is_wide);
    return factor == 1 ? term : unary(rows, TERM_SCALE, term, (struct term){.number = factor, .is_wide = is_wide});
}

/* The index along an axis, in elements of the dimension: an operand without memory. */
static void add_index(struct rowwise *rows, const struct pointwise_op *op) {
    struct row_operand operand = {.value = VALUE_INDEX, .term = -1, .type = WEFT_DATA_INT64};
    /* A split dimension has two axes: one over groups, one within a group. Together they enumerate it. */
    for (int i = 0; i < rows->space.axis_count; i++)
        operand.strides[i] = rows->space.axes[i].dim == op->pw->axis ? rows->space.axes[i].inner : 0;
    bool is_wide = rows->is_wide || node_is_wide(op);
    rowwise_result(rows, pointwise_operands(op).out, add_load(rows, add_operand(rows, operand), is_wide));
}

/* The opcode that is equivalent to a mode, or -1. Row kernels have opcodes as formulas that can be merged with others,
   whereas each mode is a separate loop. */
static int opcode_of(const struct pointwise_op *op) {
    switch (op->pw->mode) {
    case WEFT_POINTWISE_ADD:
        return OPCODE_ADD;
    case WEFT_POINTWISE_SUB:
        return OPCODE_SUBTRACT;
    case WEFT_POINTWISE_MUL:
        return OPCODE_MULTIPLY;
    case WEFT_POINTWISE_DIV:
        return OPCODE_DIVIDE;
    case WEFT_POINTWISE_EXP:
        return ROW_EXPONENTIAL;
    default:
        return -1;
    }
}

/* A loop has three operands; missing ones repeat the first. */
void rowwise_pointwise(struct rowwise *rows, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    struct pointwise_operands operands = pointwise_operands(op);
    bool is_wide = rows->is_wide || node_is_wide(op);
    if (op->pw->mode == WEFT_POINTWISE_GEN_INDEX) {
        add_index(rows, op);
        return;
    }
    struct term term = {.kind = TERM_LOOP, .is_wide = is_wide, .argument_count = 3};
    term.arguments[0] = term.arguments[1] = term.arguments[2] = scaled(rows, operands.x, op->alpha1, is_wide);
    if (operands.b)
        term.arguments[1] = scaled(rows, operands.b, op->alpha2, is_wide);
    if (operands.t)
        term.arguments[2] = rowwise_input(rows, operands.t, is_wide);
    /* A formula has only the arguments that it uses. */
    if (opcode_of(op) >= 0) {
        term.kind = TERM_FORMULA;
        term.opcode = opcode_of(op);
        term.argument_count = operands.b ? 2 : 1;
    }
    term.loop = is_wide ? loop_f64(op->pw->mode) : loop_f32(op->pw->mode);
    term.parameters = pointwise_parameters(op);
    term.nanoseconds = loop_cost(op->pw->mode, is_wide);
    rowwise_result(rows, operands.out, append(rows, term));
}

/* ---- Liveness ---------------------------------------------------------------------------------------------------- */

/* Marks a term and everything that it depends on. Terminates because arguments precede their readers and marked terms
   are not visited again. */
static void mark_needed(struct rowwise *rows, int index) {
    struct term *term = &rows->terms[index];
    for (int i = 0; i < term->argument_count && !term->is_needed; i++)
        mark_needed(rows, term->arguments[i]);
    term->is_needed = true;
}

/* If elements are narrower than 8 bits, adjacent rows could share a byte although different threads store them. */
static weftStatus_t check_store(const struct rowwise *rows, const struct row_operand *operand) {
    const struct tensor *tensor = rows->graph->values[operand->value].tensor;
    if (dtype_of(operand->type)->bits < 8)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s has data type %s, whose rows would share bytes",
             descriptor_label(&tensor->base), dtype_of(operand->type)->name);
    return row_space_check_result(&rows->space, tensor, rows->terms[operand->term].spans);
}

/* Marks everything that results depend on; the rest is never scheduled. Column sums are stored by the second program,
   so no store refers to them here. */
weftStatus_t rowwise_finish(struct rowwise *rows) {
    TRY(rows->trouble);
    for (int k = 0; k < rows->operand_count; k++) {
        const struct row_operand *operand = &rows->operands[k];
        if (operand->is_store && operand->value >= 0)
            TRY(check_store(rows, operand));
        if (operand->is_store)
            mark_needed(rows, operand->term);
    }
    for (int i = 0; i < rows->term_count; i++)
        if (rows->terms[i].kind == TERM_COLUMN_SUM)
            mark_needed(rows, i);
    return WEFT_STATUS_SUCCESS;
}
