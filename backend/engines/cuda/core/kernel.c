/* SPDX-License-Identifier: Apache-2.0 */
/* Assembles kernel sources: constants, argument fields and code are collected separately and placed before the kernel's
   device file. */
#include "base/bytes.h"
#include "engines/cuda/core/kernel.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The texts belong to the kernel_source until kernel_finish, which must be called. */
void kernel_source_init(struct kernel_source *source, const struct region *region) {
    source->region = region;
    source->graph = region->graph;
    text_init(&source->constants);
    text_init(&source->fields);
    text_init(&source->code);
    source->argument_count = source->map_count = 0;
}

/* Designated initializers, so that types without an address are NULL like unknown ones. */
const char *cuda_type_name(weftDataType_t type) {
    static const char *const names[] = {
        [WEFT_DATA_FLOAT] = "float",   [WEFT_DATA_DOUBLE] = "double", [WEFT_DATA_HALF] = "f16",
        [WEFT_DATA_BFLOAT16] = "bf16", [WEFT_DATA_INT8] = "i8",       [WEFT_DATA_UINT8] = "u8",
        [WEFT_DATA_INT32] = "i32",     [WEFT_DATA_UINT32] = "u32",    [WEFT_DATA_INT64] = "i64",
        [WEFT_DATA_FP8_E4M3] = "e4m3", [WEFT_DATA_FP8_E5M2] = "e5m2", [WEFT_DATA_BYTE_BOOLEAN] = "bool8",
        [WEFT_DATA_FP8_E8M0] = "e8m0",
    };
    return (size_t)type < sizeof names / sizeof *names ? names[type] : NULL;
}

const char *cuda_element_name(weftDataType_t type) {
    switch (type) {
    case WEFT_DATA_FP4_E2M1:
        return "e2m1";
    case WEFT_DATA_INT4:
        return "i4";
    case WEFT_DATA_UINT4:
        return "u4";
    case WEFT_DATA_BOOLEAN:
        return "bool1";
    default:
        return cuda_type_name(type);
    }
}

/* inline, because the compiler warns of other constants that a variant of the kernel does not use. */
void emit_constant(struct kernel_source *source, const char *name, int64_t value) {
    text_add(&source->constants, "inline constexpr int %s = %lld;\n", name, (long long)value);
}

void emit_type(struct kernel_source *source, const char *name, weftDataType_t type) {
    text_add(&source->constants, "using %s = %s;\n", name, cuda_element_name(type));
}

/* Adds a field with a comment that names its origin. value: -1 for the workspace. Users' names are omitted, so that
   graphs share kernels. */
static void add_field(struct kernel_source *source, int value, const char *type, const char *name) {
    text_add(&source->fields, "    %s %s; // ", type, name);
    if (value < 0)
        text_add(&source->fields, "workspace");
    else
        emit_origin(&source->fields, source->region, value);
    text_add(&source->fields, "\n");
}

/* Must match the emitted fields: word i of the arguments is field i of the struct, 8 bytes each. */
static void add_argument(struct kernel_source *source, struct argument argument) {
    /* Continues counting beyond the capacity, so that kernel_finish can report the number. */
    if (source->argument_count < ARGUMENTS_MAX)
        source->arguments[source->argument_count] = argument;
    source->argument_count++;
}

void emit_pointer(struct kernel_source *source, weftDataType_t type, int value, int64_t offset_bytes,
                  const char *name) {
    const struct tensor *tensor = source->graph->values[value].tensor;
    /* Kernels cannot dereference host memory: such a scalar is passed in the arguments. */
    bool is_by_value = tensor->is_by_value || tensor->is_constant;
    const char *element = cuda_element_name(type); /* families check the type before they emit code */
    char field[32];
    snprintf(field, sizeof field,
             is_by_value            ? "by_value<%s>"
             : cuda_type_name(type) ? "%s*"
                                    : "packed<%s>",
             element ? element : "void");
    add_field(source, value, field, name);
    if (is_by_value)
        add_argument(source, (struct argument){ARGUMENT_BY_VALUE, value, dtype_bytes(type, 1)});
    else
        add_argument(source, (struct argument){ARGUMENT_VALUE, value, offset_bytes});
}

/* Aligned as its offset is, up to WORKSPACE_ALIGNMENT of plan/steps.h. */
void emit_scratch(struct kernel_source *source, const char *type, int64_t offset_bytes, const char *name) {
    char field[64];
    snprintf(field, sizeof field, "%s*", type);
    add_field(source, -1, field, name);
    add_argument(source, (struct argument){ARGUMENT_SCRATCH, -1, offset_bytes});
}

void emit_map(struct kernel_source *source, int value, const struct cuda_map *map, const char *name) {
    if (source->map_count == 0)
        /* Only programs with maps pay for compiling the sm_90 instructions. */
        text_add(&source->constants, "#include \"core/ptx_sm90.cuh\"\n");
    add_field(source, value, "tensor_map", name);
    add_argument(source, (struct argument){ARGUMENT_MAP, value, source->map_count});
    /* Reserves words for the rest of the map, which is encoded at each launch; see core/load.c. */
    for (int i = 1; i < MAP_WORDS; i++)
        add_argument(source, (struct argument){ARGUMENT_NUMBER, -1, 0});
    /* Continues counting beyond the capacity, as for arguments. */
    if (source->map_count < MAPS_MAX)
        source->maps[source->map_count] = *map;
    source->map_count++;
}

void emit_number(struct kernel_source *source, int64_t number, const char *name) {
    text_add(&source->fields, "    i64 %s;\n", name);
    add_argument(source, (struct argument){ARGUMENT_NUMBER, -1, number});
}

/* Emits three words: the address of the offsets, the step from one to the next, and their multiplier. */
void emit_ragged(struct kernel_source *source, weftDataType_t type, int value, int64_t step, int64_t multiplier,
                 const char *name) {
    text_add(&source->fields, "    ragged<%s> %s;\n", cuda_element_name(type), name);
    add_argument(source, (struct argument){ARGUMENT_VALUE, value, 0});
    add_argument(source, (struct argument){ARGUMENT_NUMBER, -1, step});
    add_argument(source, (struct argument){ARGUMENT_NUMBER, -1, multiplier});
}

/* Emits nine words, in the order of the struct. */
void emit_ragged_limit(struct kernel_source *source, const struct ragged_limit *limit, const char *name) {
    const int64_t numbers[] = {limit->step, limit->multiplier, limit->most, limit->latest,
                               limit->row,  limit->width,      limit->unit};
    text_add(&source->fields, "    ragged_limit<%s> %s;\n", cuda_element_name(limit->type), name);
    add_argument(source, (struct argument){ARGUMENT_VALUE, limit->value, 0});
    add_argument(source, (struct argument){ARGUMENT_VALUE, limit->value,
                                           dtype_bytes(limit->type, limit->entries * limit->step)});
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        add_argument(source, (struct argument){ARGUMENT_NUMBER, -1, numbers[i]});
}

/* magic = ceil(2^(31 + bits) / value), where 2^bits is the smallest power of two that is at least value: 32 bits, and
   exact for n < 2^31. */
void emit_divisor(struct kernel_source *source, int64_t value, const char *name) {
    uint64_t bits = 0, divisor = value > 0 ? (uint64_t)value : 1;
    while (UINT64_C(1) << bits < divisor)
        bits++;
    /* A divisor of 1 has no such representation: device code tests for it. */
    uint64_t magic = divisor == 1 ? 0 : ((UINT64_C(1) << (31 + bits)) + divisor - 1) / divisor;
    uint64_t shift = bits ? bits - 1 : 0;
    text_add(&source->fields, "    divisor %s;\n", name);
    add_argument(source, (struct argument){ARGUMENT_NUMBER, -1, (int64_t)(divisor | magic << 32)});
    add_argument(source, (struct argument){ARGUMENT_NUMBER, -1, (int64_t)shift});
}

/* ---- The whole program ------------------------------------------------------------------------------------------- */

/* The values that a text names, in the order of their first occurrence. */
struct named_values {
    int *numbers;
    size_t bytes;
    int count;
};

/* Index of a value in this list, to which it is appended if it is new; -1: out of memory. Linear search: a program
   names some dozen values. */
static int place_of(struct named_values *named, int number) {
    for (int i = 0; i < named->count; i++)
        if (named->numbers[i] == number)
            return i;
    int *grown = bytes_grow(named->numbers, &named->bytes, ((size_t)named->count + 1) * sizeof *grown);
    if (!grown)
        return -1;
    named->numbers = grown;
    named->numbers[named->count] = number;
    return named->count++;
}

static bool is_in_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Families name values by their numbers in the graph, such as v17. The program renumbers them in the order of
   occurrence, so that equal layers of a graph share a program. */
static void add_code(struct text *to, const char *code) {
    struct named_values named = {0};
    const char *rest = code; /* not yet copied */
    for (const char *at = code; *at; at++) {
        if (*at != 'v' || !isdigit((unsigned char)at[1]) || (at > code && is_in_name(at[-1])))
            continue;
        char *end;
        int number = (int)strtol(at + 1, &end, 10);
        if (is_in_name(*end))
            continue;
        int place = place_of(&named, number);
        text_add_chars(to, rest, (size_t)(at - rest));
        text_add(to, "v%d", place);
        to->failed = to->failed || place < 0;
        rest = end;
        at = end - 1;
    }
    text_add_chars(to, rest, strlen(rest));
    free(named.numbers);
}

/* Frees the texts in every case; the kernel keeps no reference to the kernel_source. */
weftStatus_t kernel_finish(struct kernel_source *source, struct cuda_kernel *kernel, const char *file,
                           const char *entry, struct arena *arena) {
    struct text program;
    while (source->map_count &&
           source->argument_count % (MAP_WORDS / 2) != 0) /* the struct has the alignment of its maps */
        add_argument(source, (struct argument){ARGUMENT_NUMBER, -1, 0});
    /* Types first, then constants, which kernels and headers use; arguments; generated functions; the kernel's file
       last. */
    text_init(&program);
    text_add(&program, "#include \"core/types.cuh\"\n#include \"core/index.cuh\"\n#include \"core/math.cuh\"\n\n");
    text_add_chars(&program, text_string(&source->constants), source->constants.length);
    text_add(&program, "\nnamespace weft {\n\nstruct arguments {\n");
    text_add_chars(&program, text_string(&source->fields), source->fields.length);
    text_add(&program, "};\n\n");
    add_code(&program, text_string(&source->code));
    text_add(&program, "\n#include \"%s\"\n\n} // namespace weft\n", file);
    /* Checks once whether any text ran out of memory. */
    bool failed = program.failed || source->constants.failed || source->fields.failed || source->code.failed;
    weftStatus_t status = failed ? status_no_memory(program.capacity) : WEFT_STATUS_SUCCESS;
    if (!status && source->argument_count > ARGUMENTS_MAX)
        status = status_fail(WEFT_STATUS_NOT_SUPPORTED, "the kernel would take %d arguments, at most %d fit",
                             source->argument_count, ARGUMENTS_MAX);
    if (!status && source->map_count > MAPS_MAX)
        status = status_fail(WEFT_STATUS_NOT_SUPPORTED, "the kernel would take %d tensor maps, at most %d fit",
                             source->map_count, MAPS_MAX);
    /* Not copied: paths and entry names are literals, or already in the arena. */
    kernel->file = file;
    kernel->entry = entry;
    kernel->argument_count = source->argument_count;
    kernel->map_count = source->map_count;
    if (!status)
        status = arena_copy(arena, &kernel->program, text_string(&program), program.length + 1);
    if (!status)
        status = arena_copy(arena, &kernel->arguments, source->arguments,
                            (size_t)source->argument_count * sizeof *source->arguments);
    if (!status)
        status = arena_copy(arena, &kernel->maps, source->maps, (size_t)source->map_count * sizeof *source->maps);
    text_free(&program);
    text_free(&source->constants);
    text_free(&source->fields);
    text_free(&source->code);
    return status;
}
