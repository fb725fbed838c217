/* SPDX-License-Identifier: Apache-2.0 */
/* Builds expansions: instructions are appended in the order of calculation, and referred to by their index. Nothing is
   simplified here; engines lower them to their own vectors. */
#include "graph/expansion.h"

#include <string.h>

void expansion_begin(struct expansion *e, int32_t math, const struct tensor *x) {
    bool is_double = math == WEFT_DATA_DOUBLE || x->type == WEFT_DATA_DOUBLE;
    /* Integers are calculated in 64 bits; floats in FLOAT, unless x or the user requires DOUBLE. */
    e->math = !dtype_is_float((weftDataType_t)math) ? WEFT_DATA_INT64 : is_double ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
}

weftStatus_t expansion_needs_float(const struct expansion *e, const struct descriptor *op, const char *subject) {
    if (e->math == WEFT_DATA_INT64)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s cannot be calculated in integers", descriptor_label(op),
             subject);
    return WEFT_STATUS_SUCCESS;
}

/* False if a tensor has one element per row: if it has extent 1 along a dimension, which broadcasts, or as many
   elements as there are rows. */
static bool differs_in_row(const struct expansion *e, const struct tensor *tensor) {
    for (int64_t d = 0; d < tensor->dims.count && d < e->dims.count; d++)
        if (e->dims.at[d] != 1 && tensor->dims.at[d] == e->dims.at[d] && e->parts[d] != e->dims.at[d])
            return true;
    return false;
}

static bool is_of_rows(enum opcode opcode) {
    return (opcode >= OPCODE_SUM && opcode <= OPCODE_SECOND) || opcode == OPCODE_SAMPLE;
}

/* No operation comes close to INSTRUCTIONS_MAX: sizes and modes select instructions, but do not repeat them. */
static int append(struct expansion *e, struct instruction next) {
    for (int i = 0; i < INSTRUCTION_ARGUMENTS; i++)
        /* The result of a per-element argument is per element, up to the next reduction. */
        if (next.arguments[i] >= 0)
            next.is_per_element = next.is_per_element || e->at[next.arguments[i]].is_per_element;
    next.is_per_element = next.is_per_element && !is_of_rows(next.opcode);
    e->at[e->count] = next;
    return e->count++;
}

int expand_input(struct expansion *e, const struct tensor *tensor) {
    if (!tensor)
        return -1;
    return append(e, (struct instruction){OPCODE_INPUT, {-1, -1, -1, -1}, tensor, 0, differs_in_row(e, tensor)});
}

int expand_number(struct expansion *e, double number) {
    return append(e, (struct instruction){OPCODE_NUMBER, {-1, -1, -1, -1}, NULL, number, false});
}

int expand_given(struct expansion *e, int name) {
    return append(e, (struct instruction){OPCODE_GIVEN, {-1, -1, -1, -1}, NULL, name, true});
}

int expand(struct expansion *e, enum opcode opcode, int a, int b) {
    return append(e, (struct instruction){opcode, {a, b, -1, -1}, NULL, 0, false});
}

int expand_choice(struct expansion *e, enum opcode opcode, int a, int b, int c, int d) {
    return append(e, (struct instruction){opcode, {a, b, c, d}, NULL, 0, false});
}

void expand_result(struct expansion *e, const struct tensor *tensor, int value) {
    if (tensor)
        append(e, (struct instruction){OPCODE_RESULT, {value, -1, -1, -1}, tensor, 0, false});
}

int expand_inverse_deviation(struct expansion *e, int variance, int epsilon) {
    return expand(e, OPCODE_INVERSE_ROOT, epsilon < 0 ? variance : expand_add(e, variance, epsilon), -1);
}

void expand_over_channels(struct expansion *e, const struct tensor *x) {
    e->dims = x->dims;
    for (int64_t d = 0; d < x->dims.count; d++)
        e->parts[d] = d == 1 ? x->dims.at[d] : 1;
}

weftStatus_t expansion_of(struct expansion *e, const struct descriptor *op) {
    e->count = 0;
    /* Callers may reuse the struct: the only state is these two and the count. */
    e->mean = e->inv = -1;
    return op_of(op)->expand(op, e);
}
