/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles pointwise nodes to instructions: the precision of each node, and what is loaded, rounded and stored when.
   This file must not know the traversal of the index space or the number of threads. */
#include "engines/cpu/core/program.h"

#include <string.h>

/* VALUES: maximum number of values of a region. Larger regions are refused, and the planner splits them. */
enum { NONE = PROGRAM_NO_REGISTER, VALUES = 128 };

/* Location of a value while instructions are generated: virtual registers, one per instruction with a result. */
struct location {
    int value, bits;            /* bits: upper bound from integer arithmetic, or 0 for the width of the type */
    unsigned char registers[2]; /* for float and for double, or NONE */
};

/* A program under construction, on the stack of program_compile. */
struct builder {
    struct program *program;
    const struct region *region;
    const struct tensor *space;
    /* next_register counts virtual registers: one for each instruction with a result, never reused. */
    int location_count, next_register;
    struct location locations[VALUES];
    /* A limit was exceeded: further writes overwrite the last entry, and the program is discarded. */
    bool is_full;
};

static const struct tensor *tensor_of(const struct builder *builder, int value) {
    return builder->region->graph->values[value].tensor;
}

/* The region's tensors belong to the graph, so each has a value. */
static int value_of(const struct builder *builder, const struct tensor *tensor) {
    return graph_find_value(builder->region->graph, tensor);
}

/* ---- Integers in double ------------------------------------------------------------------------------------------ */

/* DOUBLE_BITS: integers below 2^53 are exact. UNKNOWN_BITS is larger, so that the check refuses. */
enum { DOUBLE_BITS = 53, UNKNOWN_BITS = 64 };

/* Floating-point types of any width count as more than 53 bits. */
static int type_bits(const struct tensor *tensor) {
    weftDataType_t type = (weftDataType_t)tensor->type;
    return dtype_is_float(type) ? UNKNOWN_BITS : dtype_of(type)->bits;
}

/* Number of bits of the largest value that an operand can hold. Values that the region computes may be known to have
   fewer bits than their type. */
static int operand_bits(const struct builder *builder, const struct tensor *tensor) {
    int value = tensor ? value_of(builder, tensor) : -1;
    for (int i = 0; i < builder->location_count; i++)
        if (builder->locations[i].bits && builder->locations[i].value == value)
            return builder->locations[i].bits;
    return tensor ? type_bits(tensor) : 0;
}

/* Bits of the result of integer arithmetic on operands of x and b bits. */
static int result_bits(const struct pointwise_mode *mode, int x, int b) {
    if (mode->is_logical)
        return 1;
    switch (mode->mode) {
    case WEFT_POINTWISE_DIV:
    case WEFT_POINTWISE_MOD:
    case WEFT_POINTWISE_FLOOR_MOD:
    case WEFT_POINTWISE_POW:
        return UNKNOWN_BITS; /* their formulas differ in double */
    case WEFT_POINTWISE_MUL:
        return x + b;
    case WEFT_POINTWISE_ADD_SQUARE:
        return 1 + (x > 2 * b ? x : 2 * b);
    default:
        return 1 + (x > b ? x : b);
    }
}

/* Location of a value; creates the entry on first use. If the table is full, the last entry is overwritten and is_full
   discards the program. */
static struct location *location_of(struct builder *builder, int value) {
    for (int i = 0; i < builder->location_count; i++)
        if (builder->locations[i].value == value)
            return &builder->locations[i];
    builder->is_full = builder->is_full || builder->location_count == VALUES;
    builder->location_count -= builder->is_full;
    builder->locations[builder->location_count] = (struct location){value, 0, {NONE, NONE}};
    return &builder->locations[builder->location_count++];
}

/* ---- Checking regions -------------------------------------------------------------------------------------------- */

/* Inputs may broadcast to the space. Results must fill it, because each element is stored once. */
static weftStatus_t check_tensor(const struct builder *builder, const struct node *node, const struct tensor *tensor,
                                 bool is_output) {
    bool is_whole = tensor_same_dims(tensor, builder->space) ||
                    (tensor_elements(tensor) == 1 && tensor_elements(builder->space) == 1);
    TRY(tensor_check_plain(tensor, node->op));
    if (!dtype_of((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %d, which has no storage on the CPU.",
             descriptor_label(node->op), descriptor_label(&tensor->base), tensor->type);
    if (is_output && !is_whole)
        FAIL(
            WEFT_STATUS_NOT_SUPPORTED_SHAPE,
            "%s produces dims %s in a region with dims %s. Only operations whose results have the same dims are fused.",
            descriptor_label(node->op), tensor_dims_text(tensor), tensor_dims_text(builder->space));
    return WEFT_STATUS_SUCCESS;
}

/* Accepts integer arithmetic only if double gives the same numbers. If the result saturates to 32 bits or fewer, a
   double that lost its low bits still saturates correctly. */
static weftStatus_t check_integers(struct builder *builder, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    weftDataType_t math = pointwise_math(op);
    if (mode->form == FORM_INDEX || dtype_is_float(math))
        return WEFT_STATUS_SUCCESS;
    int x = operand_bits(builder, operands.x), b = operand_bits(builder, operands.b),
        result_width = result_bits(mode, x, b);
    int stored = type_bits(operands.out);
    bool saturates = stored <= 32 && result_width < UNKNOWN_BITS; /* whatever happens to the low bits of the double */
    if (x > DOUBLE_BITS || b > DOUBLE_BITS || (result_width > DOUBLE_BITS && !saturates))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: %s in %s arithmetic on its operands may need more than the 53 bits of a double. Use FLOAT or smaller "
             "integers.",
             descriptor_label(node->op), mode->name, dtype_of(math)->name);
    location_of(builder, value_of(builder, operands.out))->bits =
        saturates && stored < result_width ? stored : result_width;
    return WEFT_STATUS_SUCCESS;
}

/* Checks operands first, so that a layout error names the tensor rather than the arithmetic. */
static weftStatus_t check_node(struct builder *builder, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++)
        TRY(check_tensor(builder, node, tensor_of(builder, node->operands[i]), node->is_output[i]));
    return check_integers(builder, node);
}

/* ---- Generating instructions ------------------------------------------------------------------------------------- */

/* Appends an instruction. If no room is left, returns the last one, which is overwritten again and again. */
static struct instruction *add(struct builder *builder, enum verb verb, bool is_wide) {
    struct program *program = builder->program;
    builder->is_full = builder->is_full || program->instruction_count == PROGRAM_INSTRUCTIONS;
    program->instruction_count -= builder->is_full;
    struct instruction *instruction = &program->instructions[program->instruction_count++];
    *instruction = (struct instruction){
        .verb = verb, .is_wide = is_wide, .dst = NONE, .x = NONE, .b = NONE, .t = NONE, .access = -1};
    if (verb != VERB_STORE)
        instruction->dst = (unsigned char)builder->next_register++;
    return instruction;
}

/* Accesses are counted per use of memory: a tensor that is both read and written has two. */
static int add_access(struct builder *builder, int value, weftDataType_t type, bool is_store) {
    struct program *program = builder->program;
    builder->is_full = builder->is_full || program->access_count == PROGRAM_ACCESSES;
    program->access_count -= builder->is_full;
    struct access *access = &program->accesses[program->access_count];
    *access = (struct access){.value = value, .is_store = is_store, .type = type};
    return program->access_count++;
}

/* Strides are the tensor's own, in elements, and 0 where it broadcasts: along a dimension of one element, or for a
   scalar. */
static int add_tensor_access(struct builder *builder, int value, bool is_store) {
    const struct tensor *tensor = tensor_of(builder, value);
    int index = add_access(builder, value, (weftDataType_t)tensor->type, is_store);
    for (int64_t i = 0; i < builder->space->dims.count && tensor_elements(tensor) != 1; i++)
        if (tensor->dims.at[i] != 1)
            builder->program->accesses[index].strides[i] = tensor->strides.at[i];
    /* Bytes are counted once per access; broadcast elements stay in the cache. */
    builder->program->bytes += (double)tensor_own_bytes(tensor);
    return index;
}

/* Returns the register that holds a value in the given width; loads or converts it on first use. */
static unsigned char read_value(struct builder *builder, int value, bool is_wide) {
    struct location *location = location_of(builder, value);
    if (location->registers[is_wide] != NONE)
        return location->registers[is_wide];
    struct instruction *instruction;
    /* The value is in a register of the other width: conversion costs less than another load. */
    if (location->registers[!is_wide] != NONE) {
        instruction = add(builder, VERB_CONVERT, is_wide);
        instruction->x = location->registers[!is_wide];
    } else {
        instruction = add(builder, VERB_LOAD, is_wide);
        instruction->access = add_tensor_access(builder, value, false);
    }
    return location->registers[is_wide] = instruction->dst;
}

/* Returns x itself if the factor is 1, as for nearly all operands. */
static unsigned char add_scale(struct builder *builder, unsigned char x, double factor, bool is_wide) {
    if (factor == 1)
        return x;
    struct instruction *scale = add(builder, VERB_SCALE, is_wide);
    scale->x = x;
    scale->factor = factor;
    return scale->dst;
}

static unsigned char read_operand(struct builder *builder, const struct tensor *tensor, double factor, bool is_wide) {
    return add_scale(builder, read_value(builder, value_of(builder, tensor), is_wide), factor, is_wide);
}

static struct instruction *add_apply(struct builder *builder, int mode, bool is_wide) {
    struct instruction *apply = add(builder, VERB_APPLY, is_wide);
    apply->loop = is_wide ? loop_f64(mode) : loop_f32(mode);
    /* Nanoseconds per element; they add up, because instructions run one after another. */
    builder->program->nanoseconds += loop_cost(mode, is_wide);
    return apply;
}

/* Records the register of a result. If other nodes of the region read the value, it is rounded to its tensor's type
   first, as if it had been stored and loaded. */
static void define_value(struct builder *builder, int value, unsigned char result, bool is_wide, bool is_truth) {
    const struct tensor *tensor = tensor_of(builder, value);
    weftDataType_t type = (weftDataType_t)tensor->type;
    /* For these types the register already holds the stored value: doubles, floats in float registers, and booleans as
       0 or 1. */
    bool is_kept =
        type == WEFT_DATA_DOUBLE || (type == WEFT_DATA_FLOAT && !is_wide) || (is_truth && dtype_is_boolean(type));
    bool is_read = false;
    for (int i = 0; i < builder->region->count; i++) {
        const struct node *node = region_node(builder->region, i);
        for (int k = 0; k < node->operand_count; k++)
            is_read = is_read || (node->operands[k] == value && !node->is_output[k]);
    }
    /* Results that only leave the region are rounded by their store. */
    if (is_read && !is_kept) {
        struct instruction *round = add(builder, VERB_ROUND, is_wide);
        round->x = result;
        round->type = type;
        result = round->dst;
    }
    location_of(builder, value)->registers[is_wide] = result;
}

/* An access without memory and with stride 1 along the axis, so that its index is the position. */
static void add_index(struct builder *builder, const struct pointwise_op *op, bool is_wide) {
    struct instruction *index = add(builder, VERB_INDEX, is_wide);
    index->access = add_access(builder, -1, WEFT_DATA_INT64, false);
    builder->program->accesses[index->access].strides[op->pw->axis] = 1;
    define_value(builder, value_of(builder, op->y), index->dst, is_wide, false);
}

static void add_node(struct builder *builder, const struct pointwise_op *op) {
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    bool is_wide = node_is_wide(op);
    if (mode->form == FORM_INDEX) {
        add_index(builder, op, is_wide);
        return;
    }
    /* Absent operands are passed as x, so that loops read valid memory. */
    unsigned char x = read_operand(builder, operands.x, op->alpha1, is_wide), b = x, t = x;
    if (operands.b)
        b = read_operand(builder, operands.b, op->alpha2, is_wide);
    if (operands.t)
        t = read_operand(builder, operands.t, 1, is_wide);
    struct instruction *apply = add_apply(builder, op->pw->mode, is_wide);
    apply->parameters = pointwise_parameters(op);
    apply->x = x, apply->b = b, apply->t = t;
    define_value(builder, value_of(builder, operands.out), apply->dst, is_wide, mode->is_logical);
}

/* Loads the caller's block and applies the product's alpha and beta. beta applies to the previous contents of the
   result's memory, which each block reads before its store. */
static void add_given(struct builder *builder, const struct given *given) {
    bool is_wide = given->is_wide;
    struct instruction *take = add(builder, VERB_GIVEN, is_wide);
    take->type = given->is_whole ? WEFT_DATA_INT32 : is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
    unsigned char result = add_scale(builder, take->dst, given->alpha, is_wide);
    if (given->beta != 0) {
        struct instruction *load = add(builder, VERB_LOAD, is_wide);
        load->access = add_tensor_access(builder, given->value, false);
        unsigned char before = add_scale(builder, load->dst, given->beta, is_wide);
        struct instruction *sum = add_apply(builder, WEFT_POINTWISE_ADD, is_wide);
        /* An addition ignores t, but the field must name a register. */
        sum->x = result, sum->b = before, sum->t = result;
        result = sum->dst;
    }
    define_value(builder, given->value, result, is_wide, false);
}

/* Stores come last: all memory of a block is read before any is written. */
static void add_stores(struct builder *builder) {
    /* Values that the region computes and that are read outside, in the order of their computation. */
    for (int i = 0; i < builder->location_count && !builder->is_full; i++) {
        const struct location *location = &builder->locations[i];
        const struct value *value = &builder->region->graph->values[location->value];
        /* Skips inputs and values that only the region reads. */
        if (value->producer < 0 || !region_has(builder->region, value->producer) ||
            !region_exports(builder->region, location->value))
            continue;
        /* Virtual registers count upwards, so the smaller of two was written first. A value may have been converted for
           its readers; the width in which it was computed is stored. */
        bool is_wide = location->registers[0] == NONE ||
                       (location->registers[1] != NONE && location->registers[1] < location->registers[0]);
        struct instruction *store = add(builder, VERB_STORE, is_wide);
        store->x = location->registers[is_wide];
        store->access = add_tensor_access(builder, location->value, true);
        weftDataType_t type = (weftDataType_t)value->tensor->type;
        /* Elements narrower than 8 bits share bytes, so two threads could write the same byte. */
        builder->program->shares_bytes = builder->program->shares_bytes || dtype_of(type)->bits < 8;
    }
}

/* ---- Compiling --------------------------------------------------------------------------------------------------- */

/* Marks the nodes whose results leave the region or are read by marked nodes. Iterates backwards, because readers
   follow producers. Quadratic in the number of nodes. */
static void find_needed(const struct region *region, bool *is_needed) {
    for (int i = region->count; i-- > 0;) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            int value = node->operands[k];
            if (!node->is_output[k])
                continue;
            is_needed[i] = is_needed[i] || region_exports(region, value);
            /* Operands include outputs, which no other node shares. */
            for (int j = i + 1; j < region->count; j++)
                for (int m = 0; m < region_node(region, j)->operand_count; m++)
                    is_needed[i] = is_needed[i] || (is_needed[j] && region_node(region, j)->operands[m] == value);
        }
    }
}

/* Regions that are too large are NOT_SUPPORTED, so that the planner splits them. */
weftStatus_t program_compile(struct program *program, const struct region *region, const struct tensor *space,
                             const struct given *given) {
    struct builder builder = {.program = program, .region = region, .space = space};
    bool is_needed[PROGRAM_INSTRUCTIONS] = {false};
    const char *label = descriptor_label(region_node(region, 0)->op);
    if (region->count > PROGRAM_INSTRUCTIONS)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: a fusion of %d operations exceeds the limit of %d. It is split.", label, region->count,
             PROGRAM_INSTRUCTIONS);
    *program = (struct program){0};
    find_needed(region, is_needed);
    if (given->value >= 0)
        add_given(&builder, given);
    for (int i = 0; i < region->count && !builder.is_full; i++) {
        const struct node *node = region_node(region, i);
        if (!node_is_pointwise(node))
            continue;
        TRY(check_node(&builder, node));
        if (is_needed[i])
            add_node(&builder, (const struct pointwise_op *)node->op);
    }
    add_stores(&builder);
    if (builder.is_full || !program_assign_registers(program))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: a fusion of %d operations needs more than %d instructions, %d tensors or %d registers. It is split.",
             label, region->count, PROGRAM_INSTRUCTIONS, PROGRAM_ACCESSES, PROGRAM_REGISTERS);
    /* The cost of fetching an instruction, amortized over the elements of a block. */
    program->nanoseconds += 0.1 * program->instruction_count;
    return WEFT_STATUS_SUCCESS;
}

/* Allows only inputs that only pointwise operations read, because a product reads its operands in another order than it
   writes. The planner checks all other rules, such as later readers of the input. */
bool program_may_alias(const struct step *step, int in, int out) {
    const struct region *region = &step->region;
    const struct tensor *from = region->graph->values[in].tensor, *to = region->graph->values[out].tensor;
    int producer = region->graph->values[out].producer;
    if (producer < 0 || !region_has(region, producer) || !tensor_same_layout(from, to))
        return false;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++)
            if (node->operands[k] == in && !node_is_pointwise(node))
                return false;
    }
    return true;
}
