/* SPDX-License-Identifier: Apache-2.0 */
/* Writing terms: operands, formulas, reductions and results, in float or double as their types ask. A term is never
   changed once it is written; equal ones are not looked for, as expansions say each thing once. It must not know
   blocks, registers or passes beyond a term's stage. */
#include "engines/cpu/rows/terms.h"
#include "base/number.h"
#include "engines/cpu/core/compute_type.h"
#include "engines/cpu/rows/kernels.h"

/* Of an element, on the core that schedule.c names; they decide what is kept between passes, and prices. */
static const double PLAIN = 0.06, ROOT = 0.3, WEIGHT = 0.6, WIDE = 4; /* nanoseconds; WIDE times as many in double */

/* -1 is what calls give that find no term, so that failures pass through them. */
static int fail(struct rowwise *rows, weftStatus_t status) {
    rows->trouble = rows->trouble ? rows->trouble : status;
    return -1;
}

/* A term whose arguments are set already takes from them what it is: of an element where one of them is, and of the
   latest of their stages. */
static int append(struct rowwise *rows, struct term term) {
    if (rows->trouble)
        return -1;
    if (rows->term_count == ROWWISE_TERMS)
        return fail(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                      "the region would take more than %d terms", ROWWISE_TERMS));
    for (int i = 0; i < term.argument_count; i++) {
        const struct term *used = &rows->terms[term.arguments[i]];
        term.spans = term.spans || used->spans;
        term.stage = used->stage > term.stage ? used->stage : term.stage;
    }
    rows->terms[rows->term_count] = term;
    return rows->term_count++;
}

/* A term of one argument; -1 passes a failure on. A reduction's `spans` is put right by its caller. */
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

/* Gives the operand's number; -1: there are too many. */
static int add_operand(struct rowwise *rows, struct row_operand operand) {
    if (rows->operand_count == ROWWISE_OPERANDS)
        return fail(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                      "the region would have more than %d operands", ROWWISE_OPERANDS));
    rows->operands[rows->operand_count] = operand;
    return rows->operand_count++;
}

/* A tensor of the graph along the axes of the space; `term` is what it stores, -1 for a load until that is written. */
static int add_value(struct rowwise *rows, int value, int term, bool is_store) {
    const struct tensor *tensor = rows->graph->values[value].tensor;
    struct row_operand operand = {
        .value = value, .term = term, .is_store = is_store, .type = (weftDataType_t)tensor->type};
    /* Strides stay 0 for a scalar, which may have any rank. */
    for (int i = 0; i < rows->space.axis_count && tensor_elements(tensor) != 1; i++)
        operand.strides[i] = row_space_stride(&rows->space, tensor, i);
    return add_operand(rows, operand);
}

/* The term of an operand: of an element where a stride along the row is not 0, else of the row. */
static int add_load(struct rowwise *rows, int operand, bool is_wide) {
    struct term term = {.kind = TERM_LOAD, .operand = operand, .is_wide = is_wide, .nanoseconds = PLAIN};
    if (operand < 0)
        return -1;
    for (int i = 0; i < rows->space.axis_count; i++)
        term.spans = term.spans || (rows->space.axes[i].is_reduced && rows->operands[operand].strides[i]);
    return rows->operands[operand].term = append(rows, term);
}

/* A term in the other width, made once. Going there and back gives a third term, as rounding may have changed it. */
static int in_width(struct rowwise *rows, int term, bool is_wide) {
    if (term < 0 || rows->terms[term].is_wide == is_wide)
        return term;
    for (int i = 0; i < rows->term_count; i++)
        if (rows->terms[i].kind == TERM_CONVERT && rows->terms[i].arguments[0] == term)
            return i;
    return unary(rows, TERM_CONVERT, term, (struct term){.is_wide = is_wide});
}

/* The term of a value; a new one is -1. `none` is written to after a failure, and never read as a term: trouble is
   asked first. */
static int *term_of(struct rowwise *rows, int value) {
    static _Thread_local int none; /* after a failure */
    for (int i = 0; i < rows->made_count; i++)
        if (rows->made[i].value == value)
            return &rows->made[i].term;
    if (rows->made_count == ROWWISE_TERMS)
        fail(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would have more than %d values",
                               ROWWISE_TERMS));
    if (rows->trouble)
        return &none;
    rows->made[rows->made_count].value = value;
    rows->made[rows->made_count].term = -1;
    return &rows->made[rows->made_count++].term;
}

/* A value of the graph in the width that it was made in, or that its type asks for. Loaded when it is first asked
   for. */
static int term_of_value(struct rowwise *rows, int value) {
    int *term = term_of(rows, value);
    bool is_wide = rows->is_wide || type_is_wide(rows->graph->values[value].tensor->type);
    if (*term < 0 && !rows->trouble && region_makes(rows->region, value)) /* known when the last row is done */
        fail(rows, status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                               "%s is a sum over rows, and read by operations on them",
                               descriptor_label(&rows->graph->values[value].tensor->base)));
    if (*term < 0 && !rows->trouble)
        *term = add_load(rows, add_value(rows, value, -1, false), is_wide);
    return rows->trouble ? -1 : *term;
}

/* Belongs to a row, as no argument spans one. */
int rowwise_constant(struct rowwise *rows, double number, bool is_wide) {
    return append(rows, (struct term){.kind = TERM_CONSTANT, .number = number, .is_wide = is_wide});
}

int rowwise_input(struct rowwise *rows, const struct tensor *tensor, bool is_wide) {
    return tensor ? in_width(rows, term_of_value(rows, graph_find_value(rows->graph, tensor)), is_wide) : -1;
}

/* An operand of its own with strides 0 within the row: it belongs to the row. Elements are found by the strides of the
   operand that all of them are read by. */
int rowwise_sample(struct rowwise *rows, const struct tensor *tensor, bool is_wide) {
    int value = graph_find_value(rows->graph, tensor);
    /* A row of no elements has no first one, and what the region makes has no memory to read it from. */
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

/* Of one element in float; other opcodes are one or two instructions each. */
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

/* The only number that expansions multiply by without looking. */
static bool is_one(const struct rowwise *rows, int term) {
    return term >= 0 && rows->terms[term].kind == TERM_CONSTANT && rows->terms[term].number == 1;
}

/* Times 1 is the term itself: expansions need not look. */
int rowwise_formula(struct rowwise *rows, int opcode, const int *arguments, int count, bool is_wide) {
    if (opcode == OPCODE_MULTIPLY && is_one(rows, arguments[1]))
        return arguments[0];
    struct term term = {.kind = TERM_FORMULA, .opcode = opcode, .is_wide = is_wide, .argument_count = count};
    for (int i = 0; i < count; i++)
        term.arguments[i] = arguments[i];
    term.nanoseconds = nanoseconds_of(opcode) * (is_wide ? WIDE : 1);
    return append(rows, term);
}

/* Of a row, and one stage later than what it takes in: its pass must be closed before it is known. */
int rowwise_reduce(struct rowwise *rows, enum term_kind kind, enum opcode opcode, int of, bool is_wide) {
    int made = unary(rows, kind, of, (struct term){.opcode = opcode, .is_wide = is_wide});
    if (made >= 0) {
        rows->terms[made].spans = false;
        /* A sum of columns closes no pass, and nothing in the program reads it. */
        rows->terms[made].stage += kind == TERM_REDUCTION;
    }
    return made;
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* Somebody outside reads the value, and what they make of it reaches the user. */
static bool is_wanted(const struct rowwise *rows, int value) {
    return region_exports(rows->region, value) && !value_is_dead(&rows->graph->values[value]);
}

/* A value may be stored and read by nodes of the region as well. */
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
    /* Its own instruction, so that load and store are never of one register. */
    if (rows->terms[term].kind == TERM_LOAD) /* its memory may be that of another output, which is stored before */
        term = unary(rows, TERM_FORMULA, term, (struct term){.opcode = OPCODE_COPY, .is_wide = is_wide});
    bool is_kept = type == WEFT_DATA_DOUBLE || (type == WEFT_DATA_FLOAT && !is_wide);
    if (!is_kept && is_read_inside(rows, value)) /* readers see what memory would hold */
        term = unary(rows, TERM_ROUND, term, (struct term){.type = type, .is_wide = is_wide});
    *term_of(rows, value) = term;
    if (is_wanted(rows, value) && term >= 0)
        add_value(rows, value, term, true);
}

/* What one program leaves for the next has the width that it was calculated in: no rounding between. */
static int64_t scratch_bytes_of(bool is_wide) { return is_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float); }

static weftDataType_t scratch_type(bool is_wide) { return is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT; }

/* Counted in elements of its own width from the beginning of scratch memory, whose parts are multiples of 64 bytes. */
int64_t rowwise_keep(struct rowwise *rows, int term) {
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

/* The other side of rowwise_keep: strides say where each row's number lies, along the axes of this program's space. */
int rowwise_kept(struct rowwise *rows, int64_t at, const int64_t *strides, bool is_wide) {
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

/* The position along an axis, counted in elements of the dimension: an operand of no memory. */
static void add_index(struct rowwise *rows, const struct pointwise_op *op) {
    struct row_operand operand = {.value = VALUE_INDEX, .term = -1, .type = WEFT_DATA_INT64};
    /* A split dimension has two axes, groups and within one: together they count through it. */
    for (int i = 0; i < rows->space.axis_count; i++)
        operand.strides[i] = rows->space.axes[i].dim == op->pw->axis ? rows->space.axes[i].inner : 0;
    bool is_wide = rows->is_wide || node_is_wide(op);
    rowwise_result(rows, pointwise_operands(op).out, add_load(rows, add_operand(rows, operand), is_wide));
}

/* The opcode that says the same as a mode; -1: none. Row kernels have these as formulas that merge with others, where
   modes have a loop of their own. */
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

/* A loop takes three operands; those that a mode has not repeat the first. */
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
    /* A formula keeps only the arguments that it has. */
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

/* ---- What is needed ---------------------------------------------------------------------------------------------- */

/* Marks a term and all that it is made of. Ends: arguments point backwards; a term that is marked has marked its
   own. */
static void mark_needed(struct rowwise *rows, int index) {
    struct term *term = &rows->terms[index];
    for (int i = 0; i < term->argument_count && !term->is_needed; i++)
        mark_needed(rows, term->arguments[i]);
    term->is_needed = true;
}

/* Below 8 bits, neighbouring rows that share a byte could be two threads'. */
static weftStatus_t check_store(const struct rowwise *rows, const struct row_operand *operand) {
    const struct tensor *tensor = rows->graph->values[operand->value].tensor;
    if (dtype_of(operand->type)->bits < 8)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s has data type %s, of which rows would share bytes",
             descriptor_label(&tensor->base), dtype_of(operand->type)->name);
    return row_space_check_result(&rows->space, tensor, rows->terms[operand->term].spans);
}

/* Marks what results depend on; the rest is never scheduled. Sums of columns are stored by what follows, so no store
   names them here. */
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
