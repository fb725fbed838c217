/* SPDX-License-Identifier: Apache-2.0 */
/* PTX parser. A first pass over the text declares names and creates instructions with virtual registers. A second pass
   allocates places for the registers of each kernel, based on their live ranges. */
#define _GNU_SOURCE
#include "ptx.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_MAX = 16 };  /* inside each other */
enum { FILES_MAX = 512 }; /* source files per module */
enum { BUCKETS = 4096, NARROW_BYTES = LANES * 4, WIDE_BYTES = LANES * 8, CONSTANT_BYTES = NARROW_BYTES + WIDE_BYTES };

enum symbol_kind { SYMBOL_NARROW, SYMBOL_WIDE, SYMBOL_PREDICATE, SYMBOL_LABEL, SYMBOL_MEMORY, SYMBOL_SHARED };

struct symbol {
    struct symbol *next;
    const char *name;
    int scope; /* 0: the module */
    enum symbol_kind kind;
    uint64_t value; /* register number, instruction of a label, or address */
};

/* Live range of a register, from its first to its last instruction. */
struct life {
    int first, last, place;
    bool is_wide;
};

/* A basic block, with the sets of registers (as bit sets) that it reads before writing them, always writes, and needs
   live at its entry and exit. */
struct stretch {
    int from, to, next[2]; /* to: last instruction; next: successors, or -1 */
    uint64_t *reads, *writes, *enters, *leaves;
};

/* A function and the location of its text. Calls are inlined. */
struct function {
    struct function *next;
    const char *name, *results, *parameters, *body;
    int line;
};

struct reader {
    struct module *module;
    struct function *functions;
    const char *end_label; /* of the function being read; NULL in a kernel */
    int calls, depth;      /* calls so far, and nesting depth */
    struct kernel *kernel;
    const char *at;
    int line;
    int source_file, source_line; /* of the next instruction */
    jmp_buf failed;
    struct symbol *buckets[BUCKETS];
    int scope, scope_count, *parents, parent_room;
    struct life *lives;
    int life_count, life_room, instruction_room;
    struct stretch *stretches;
    int stretch_count, stretch_room;
    int *scopes; /* scope of each instruction, for resolving labels */
};

static void fail(struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
static void fail(struct reader *r, const char *format, ...) {
    va_list arguments;
    int length = snprintf(r->module->error, sizeof r->module->error, "PTX line %d: ", r->line);
    va_start(arguments, format);
    vsnprintf(r->module->error + length, sizeof r->module->error - (size_t)length, format, arguments);
    va_end(arguments);
    longjmp(r->failed, 1);
}

static void *owned(struct module *module, size_t bytes) {
    if (module->owned_count == module->owned_room) {
        module->owned_room = module->owned_room ? 2 * module->owned_room : 64;
        module->owned = realloc(module->owned, (size_t)module->owned_room * sizeof(void *));
    }
    void *memory = module->owned ? calloc(1, bytes ? bytes : 1) : NULL;
    if (!memory)
        abort();
    return module->owned[module->owned_count++] = memory;
}

static void *grown(void *items, int count, int *room, size_t bytes) {
    if (count < *room)
        return items;
    *room = *room ? 2 * *room : 256;
    items = realloc(items, (size_t)*room * bytes);
    if (!items)
        abort();
    return items;
}

/* ---- Words ------------------------------------------------------------------------------------------------------- */

static void skip_space(struct reader *r) {
    for (;; r->at++) {
        if (r->at[0] == '/' && r->at[1] == '/')
            r->at += strcspn(r->at, "\n");
        if (*r->at == '\n')
            r->line++;
        else if (!*r->at || !isspace((unsigned char)*r->at))
            return;
    }
}

static bool takes(struct reader *r, const char *text) {
    skip_space(r);
    size_t length = strlen(text);
    bool is_word = isalnum((unsigned char)text[length - 1]);
    if (strncmp(r->at, text, length) != 0 ||
        (is_word && (isalnum((unsigned char)r->at[length]) || r->at[length] == '_')))
        return false;
    r->at += length;
    return true;
}

static void expect(struct reader *r, const char *text) {
    if (!takes(r, text))
        fail(r, "expected '%s' before '%.30s'", text, r->at);
}

static size_t word_length(const char *at) {
    size_t length = 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '_' || at[length] == '$' || at[length] == '%' ||
           (at[length] == '.' && at[0] != '.') || (at[length] == ':' && at[length + 1] == ':') ||
           (at[length] == ':' && length && at[length - 1] == ':'))
        length++;
    return length;
}

/* Skips past the next occurrence of a character. */
static void skip_past(struct reader *r, char character) {
    const char *found = strchr(r->at, character);
    if (!found)
        fail(r, "there is no '%c' behind '%.30s'", character, r->at);
    for (; r->at <= found; r->at++)
        r->line += *r->at == '\n';
}

static const char *take_word(struct reader *r) {
    skip_space(r);
    size_t length = word_length(r->at);
    if (!length)
        fail(r, "expected a name before '%.30s'", r->at);
    char *word = owned(r->module, length + 1);
    memcpy(word, r->at, length);
    r->at += length;
    return word;
}

static int64_t take_number(struct reader *r) {
    skip_space(r);
    char *end;
    bool is_negative = *r->at == '-';
    r->at += is_negative;
    uint64_t value = strtoull(r->at, &end, 0);
    if (end == r->at)
        fail(r, "expected a number before '%.30s'", r->at);
    r->at = end + (*end == 'U');
    return is_negative ? -(int64_t)value : (int64_t)value;
}

static bool is_number(const char *at) { return isdigit((unsigned char)at[at[0] == '-']); }

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    unsigned bytes;
} types[] = {
    [TYPE_NONE] = {"", 0},         [TYPE_U8] = {"u8", 1},         [TYPE_U16] = {"u16", 2},
    [TYPE_U32] = {"u32", 4},       [TYPE_U64] = {"u64", 8},       [TYPE_S8] = {"s8", 1},
    [TYPE_S16] = {"s16", 2},       [TYPE_S32] = {"s32", 4},       [TYPE_S64] = {"s64", 8},
    [TYPE_B8] = {"b8", 1},         [TYPE_B16] = {"b16", 2},       [TYPE_B32] = {"b32", 4},
    [TYPE_B64] = {"b64", 8},       [TYPE_F16] = {"f16", 2},       [TYPE_BF16] = {"bf16", 2},
    [TYPE_F32] = {"f32", 4},       [TYPE_F64] = {"f64", 8},       [TYPE_PRED] = {"pred", 0},
    [TYPE_TF32] = {"tf32", 4},     [TYPE_F16X2] = {"f16x2", 4},   [TYPE_BF16X2] = {"bf16x2", 4},
    [TYPE_E4M3X2] = {"e4m3x2", 2}, [TYPE_E5M2X2] = {"e5m2x2", 2}, [TYPE_E4M3] = {"e4m3", 1},
    [TYPE_E5M2] = {"e5m2", 1},
};

unsigned ptx_type_bytes(enum ptx_type type) { return types[type].bytes; }

static enum ptx_type find_type(const char *name, size_t length) {
    for (int i = TYPE_NONE + 1; i < (int)(sizeof types / sizeof *types); i++)
        if (strlen(types[i].name) == length && strncmp(types[i].name, name, length) == 0)
            return (enum ptx_type)i;
    return TYPE_NONE;
}

bool ptx_has(const char *opcode, const char *part) {
    size_t length = strlen(part);
    for (const char *at = opcode; (at = strstr(at, part)); at++)
        if ((at == opcode || at[-1] == '.') && (at[length] == '.' || !at[length]))
            return true;
    return false;
}

bool ptx_begins(const char *opcode, const char *start) { return strncmp(opcode, start, strlen(start)) == 0; }

static bool is_among(const char *part, size_t length, const char *words) {
    for (const char *word = words; *word; word += strspn(word, " ")) {
        size_t bytes = strcspn(word, " ");
        bool is_start = word[bytes - 1] == '*';
        size_t same = bytes - is_start;
        if ((is_start ? length >= same : length == same) && strncmp(part, word, same) == 0)
            return true;
        word += bytes;
    }
    return false;
}

bool ptx_only(const char *opcode, const char *words) {
    for (const char *at = strchr(opcode, '.'); at; at = strchr(at, '.')) {
        size_t length = strcspn(++at, ".");
        if (!is_among(at, length, words))
            return false;
    }
    return true;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static unsigned bucket_of(const char *name) {
    unsigned hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash % BUCKETS;
}

static struct symbol *declare(struct reader *r, const char *name, enum symbol_kind kind, uint64_t value) {
    struct symbol *symbol = owned(r->module, sizeof *symbol), **bucket = &r->buckets[bucket_of(name)];
    *symbol = (struct symbol){*bucket, name, r->scope, kind, value};
    return *bucket = symbol;
}

static const struct symbol *find(struct reader *r, const char *name, int scope) {
    for (;; scope = r->parents[scope]) {
        for (const struct symbol *symbol = r->buckets[bucket_of(name)]; symbol; symbol = symbol->next)
            if (symbol->scope == scope && strcmp(symbol->name, name) == 0)
                return symbol;
        if (!scope)
            return NULL;
    }
}

static void open_scope(struct reader *r) {
    int parent = r->scope;
    r->parents = grown(r->parents, r->scope_count, &r->parent_room, sizeof *r->parents);
    r->scope = r->scope_count++;
    r->parents[r->scope] = parent;
}

static int new_life(struct reader *r, bool is_wide) {
    r->lives = grown(r->lives, r->life_count, &r->life_room, sizeof *r->lives);
    r->lives[r->life_count] = (struct life){.first = -1, .last = -1, .place = -1, .is_wide = is_wide};
    return r->life_count++;
}

static void declare_register(struct reader *r, const char *name, enum ptx_type type) {
    if (type == TYPE_PRED)
        declare(r, name, SYMBOL_PREDICATE, (uint64_t)r->kernel->predicate_count++);
    else
        declare(r, name, ptx_type_bytes(type) == 8 ? SYMBOL_WIDE : SYMBOL_NARROW,
                (uint64_t)new_life(r, ptx_type_bytes(type) == 8));
}

/* .reg .b32 %r<5>, %x; */
static void read_registers(struct reader *r) {
    expect(r, ".");
    const char *type_name = take_word(r);
    enum ptx_type type = find_type(type_name, strlen(type_name));
    if (!type)
        fail(r, "registers of type '%s'", type_name);
    do {
        const char *name = take_word(r);
        if (!takes(r, "<")) {
            declare_register(r, name, type);
            continue;
        }
        int count = (int)take_number(r);
        expect(r, ">");
        for (int i = 0; i < count; i++) {
            char *numbered = owned(r->module, strlen(name) + 12);
            sprintf(numbered, "%s%d", name, i);
            declare_register(r, numbered, type);
        }
    } while (takes(r, ","));
    expect(r, ";");
}

/* ---- Variables --------------------------------------------------------------------------------------------------- */

struct variable {
    const char *name;
    enum ptx_type type;
    size_t alignment, count; /* count 0: unknown size */
};

/* Reads ".align 8 .b8 name[24]", where the alignment and the count are optional. */
static struct variable read_variable(struct reader *r) {
    struct variable v = {.count = 1};
    expect(r, ".");
    const char *word = take_word(r);
    if (strcmp(word, "align") == 0) {
        v.alignment = (size_t)take_number(r);
        expect(r, ".");
        word = take_word(r);
    }
    v.type = find_type(word, strlen(word));
    if (!v.type)
        fail(r, "a variable of type '%s'", word);
    v.name = take_word(r);
    if (takes(r, "[")) {
        v.count = takes(r, "]") ? 0 : (size_t)take_number(r);
        if (v.count)
            expect(r, "]");
    }
    v.alignment = v.alignment ? v.alignment : ptx_type_bytes(v.type);
    return v;
}

static uint64_t take_value(struct reader *r) {
    skip_space(r);
    if (r->at[0] == '0' && (r->at[1] == 'f' || r->at[1] == 'd' || r->at[1] == 'F' || r->at[1] == 'D')) {
        char *end;
        uint64_t bits = strtoull(r->at + 2, &end, 16);
        r->at = end;
        return bits;
    }
    if (r->at[strspn(r->at, "-0123456789")] == '.') {
        float decimal = strtof(r->at, (char **)&r->at);
        uint32_t bits;
        memcpy(&bits, &decimal, sizeof bits);
        return bits;
    }
    return (uint64_t)take_number(r);
}

static uint64_t place_in(size_t *bytes, const struct variable *v) {
    *bytes = (*bytes + v->alignment - 1) / v->alignment * v->alignment;
    uint64_t offset = *bytes;
    *bytes += v->count * ptx_type_bytes(v->type);
    return offset;
}

static void read_global(struct reader *r) {
    struct variable v = read_variable(r);
    unsigned bytes = ptx_type_bytes(v.type);
    struct module *module = r->module;
    if (!module->globals)
        module->globals = aligned_alloc(256, GLOBALS_ROOM);
    uint64_t offset = place_in(&module->global_bytes, &v);
    if (!module->globals || module->global_bytes > GLOBALS_ROOM)
        fail(r, "more than %d bytes of variables", GLOBALS_ROOM);
    unsigned char *memory = module->globals + offset;
    memset(memory, 0, v.count * bytes);
    declare(r, v.name, SYMBOL_MEMORY, (uintptr_t)memory);
    if (takes(r, "=")) {
        bool is_list = takes(r, "{");
        for (size_t i = 0; i < v.count; i++) {
            uint64_t value = take_value(r);
            memcpy(memory + i * bytes, &value, bytes);
            if (!takes(r, ","))
                break;
        }
        if (is_list)
            expect(r, "}");
    }
    expect(r, ";");
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

static struct operand at_constant(size_t at) {
    return (struct operand){.kind = OPERAND_VALUE,
                            .file = FILE_CONSTANTS,
                            .other = -1,
                            .offset = (uint32_t)at,
                            .wide_offset = (uint32_t)at + NARROW_BYTES};
}

static struct operand constant(struct reader *r, uint64_t value) {
    struct module *module = r->module;
    for (size_t at = 0; at < module->constant_bytes; at += CONSTANT_BYTES) {
        uint64_t other;
        memcpy(&other, module->constants + at + NARROW_BYTES, sizeof other);
        if (other == value)
            return at_constant(at);
    }
    if (module->constant_bytes + CONSTANT_BYTES > module->constant_room) {
        module->constant_room = module->constant_room ? 2 * module->constant_room : 64 * CONSTANT_BYTES;
        module->constants = realloc(module->constants, module->constant_room);
        if (!module->constants)
            abort();
    }
    unsigned char *at = module->constants + module->constant_bytes;
    for (int l = 0; l < LANES; l++) {
        memcpy(at + l * 4, &value, 4);
        memcpy(at + NARROW_BYTES + l * 8, &value, 8);
    }
    module->constant_bytes += CONSTANT_BYTES;
    return at_constant(module->constant_bytes - CONSTANT_BYTES);
}

static const char *const specials[] = {
    [SPECIAL_TID_X] = "%tid.x",
    [SPECIAL_TID_Y] = "%tid.y",
    [SPECIAL_TID_Z] = "%tid.z",
    [SPECIAL_NTID_X] = "%ntid.x",
    [SPECIAL_NTID_Y] = "%ntid.y",
    [SPECIAL_NTID_Z] = "%ntid.z",
    [SPECIAL_CTAID_X] = "%ctaid.x",
    [SPECIAL_CTAID_Y] = "%ctaid.y",
    [SPECIAL_CTAID_Z] = "%ctaid.z",
    [SPECIAL_NCTAID_X] = "%nctaid.x",
    [SPECIAL_NCTAID_Y] = "%nctaid.y",
    [SPECIAL_NCTAID_Z] = "%nctaid.z",
    [SPECIAL_CLUSTER_CTARANK] = "%cluster_ctarank",
    [SPECIAL_CLUSTER_NCTARANK] = "%cluster_nctarank",
    [SPECIAL_LANEID] = "%laneid",
    [SPECIAL_WARPID] = "%warpid",
    [SPECIAL_CLOCK] = "%clock",
    [SPECIAL_LANEMASK_LT] = "%lanemask_lt",
    [SPECIAL_LANEMASK_LE] = "%lanemask_le",
    [SPECIAL_LANEMASK_EQ] = "%lanemask_eq",
    [SPECIAL_LANEMASK_GT] = "%lanemask_gt",
    [SPECIAL_LANEMASK_GE] = "%lanemask_ge",
};

/* Until a register has a place, `offset` holds the number of its live range. */
static struct operand named(struct reader *r, const char *name) {
    struct operand o = {.kind = OPERAND_VALUE, .other = -1};
    for (uint32_t i = 0; i < SPECIALS; i++)
        if (strcmp(specials[i], name) == 0) {
            o.file = FILE_NARROW;
            o.offset = i;
            return o;
        }
    const struct symbol *symbol = find(r, name, r->scope);
    if (!symbol || symbol->kind == SYMBOL_LABEL) {
        o.kind = OPERAND_LABEL;
        o.name = name;
        return o;
    }
    if (symbol->kind == SYMBOL_MEMORY || symbol->kind == SYMBOL_SHARED) {
        o = constant(r, symbol->value);
        o.is_shared = symbol->kind == SYMBOL_SHARED;
        return o;
    }
    o.kind = symbol->kind == SYMBOL_PREDICATE ? OPERAND_PREDICATE : OPERAND_VALUE;
    o.file = symbol->kind == SYMBOL_WIDE ? FILE_WIDE : FILE_NARROW;
    o.offset = (uint32_t)symbol->value;
    return o;
}

static struct operand read_operand(struct reader *r);

static struct operand read_list(struct reader *r, enum operand_kind kind, const char *end) {
    struct operand items[160];
    struct operand list = {.kind = (uint8_t)kind, .other = -1};
    do {
        if (list.count == sizeof items / sizeof *items)
            fail(r, "a vector of more than %d parts", list.count);
        items[list.count++] = read_operand(r);
    } while (takes(r, ","));
    expect(r, end);
    list.items = owned(r->module, list.count * sizeof *items);
    memcpy(list.items, items, list.count * sizeof *items);
    return list;
}

/* "[%rd1+16]", "[name]", "[%rd1, {%r1, %r2}]": place of the value, displacement, and remaining items. */
static struct operand read_address(struct reader *r) {
    struct operand base = read_operand(r), rest = {0};
    int64_t displacement = takes(r, "+") ? take_number(r) : 0;
    if (takes(r, ","))
        rest = read_list(r, OPERAND_ADDRESS, "]");
    else
        expect(r, "]");
    base.kind = OPERAND_ADDRESS;
    base.displacement = displacement;
    base.count = rest.count;
    base.items = rest.items;
    return base;
}

static struct operand read_operand(struct reader *r) {
    skip_space(r);
    if (takes(r, "{"))
        return read_list(r, OPERAND_VECTOR, "}");
    if (takes(r, "["))
        return read_address(r);
    if (is_number(r->at))
        return constant(r, take_value(r));
    bool is_negated = takes(r, "!");
    const char *name = take_word(r);
    struct operand o = {.kind = OPERAND_NOTHING, .other = -1};
    if (strcmp(name, "_") != 0)
        o = named(r, name);
    o.is_negated = is_negated;
    if (takes(r, "|")) {
        struct operand other = read_operand(r);
        o.other = other.kind == OPERAND_PREDICATE ? (int16_t)other.offset : -1;
    }
    return o;
}

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

/* Reads the last type and the one before it: "cvt.rn.bf16x2.f32". */
static void read_types(struct instruction *i) {
    for (const char *at = strchr(i->opcode, '.'); at; at = strchr(at, '.')) {
        size_t length = strcspn(++at, ".");
        enum ptx_type type = find_type(at, length);
        if (type) {
            i->from = i->type;
            i->type = (uint8_t)type;
        }
    }
}

static void read_instruction(struct reader *r) {
    struct kernel *kernel = r->kernel;
    kernel->instructions =
        grown(kernel->instructions, kernel->instruction_count, &r->instruction_room, sizeof(struct instruction));
    r->scopes = realloc(r->scopes, (size_t)r->instruction_room * sizeof(int));
    r->scopes[kernel->instruction_count] = r->scope;
    struct instruction *i = &kernel->instructions[kernel->instruction_count++];
    *i = (struct instruction){
        .guard = -1, .line = r->line, .source_file = r->source_file, .source_line = r->source_line};
    if (takes(r, "@")) {
        i->is_guard_negated = takes(r, "!");
        struct operand guard = named(r, take_word(r));
        if (guard.kind != OPERAND_PREDICATE)
            fail(r, "a guard that is no predicate");
        i->guard = (int16_t)guard.offset;
    }
    i->opcode = take_word(r);
    i->line = r->line;
    if (!takes(r, ";")) {
        do {
            if (i->operand_count == OPERANDS_MAX)
                fail(r, "'%s' with more than %d operands", i->opcode, OPERANDS_MAX);
            i->operands[i->operand_count++] = read_operand(r);
        } while (takes(r, ","));
        expect(r, ";");
    }
    read_types(i);
    i->is_branch = strcmp(i->opcode, "bra") == 0 || strcmp(i->opcode, "bra.uni") == 0;
    i->is_end = strcmp(i->opcode, "ret") == 0 || strcmp(i->opcode, "exit") == 0;
    if (i->is_end && r->end_label) {
        i->is_branch = true;
        i->is_end = false;
        i->operands[i->operand_count++] = (struct operand){.kind = OPERAND_LABEL, .other = -1, .name = r->end_label};
    }
    if (!i->is_branch && !i->is_end)
        i->run = ptx_decode(i);
    if (!i->run && !i->is_branch && !i->is_end)
        fail(r, "the emulator does not know '%s'", i->opcode);
}

static void resolve_label(struct reader *r, struct operand *o, int number) {
    if (o->kind != OPERAND_LABEL)
        return;
    const struct symbol *label = find(r, o->name, r->scopes[number]);
    r->line = r->kernel->instructions[number].line;
    if (!label || label->kind != SYMBOL_LABEL)
        fail(r, "nothing is called '%s'", o->name);
    o->offset = (uint32_t)label->value;
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

typedef void (*visitor)(struct reader *r, struct operand *o, int number, bool is_written);

static void visit(struct reader *r, struct operand *o, int number, bool is_written, visitor act) {
    for (int i = 0; i < o->count; i++)
        visit(r, &o->items[i], number, is_written && o->kind == OPERAND_VECTOR, act);
    if ((o->kind == OPERAND_VALUE || o->kind == OPERAND_ADDRESS) && o->file != FILE_CONSTANTS)
        act(r, o, number, is_written && o->kind == OPERAND_VALUE);
}

/* True for instructions without a result, and for products, which may accumulate into it. */
static bool reads_all(const char *opcode) {
    static const char *const starts[] = {"st", "red.", "wgmma", "bar", "cp.", "nanosleep", "setmaxnreg"};
    for (size_t k = 0; k < sizeof starts / sizeof *starts; k++)
        if (ptx_begins(opcode, starts[k]))
            return true;
    return false;
}

/* Visits sources first. The result of a guarded instruction is also a source, because it may remain unchanged. */
static void visit_one(struct reader *r, int number, visitor act) {
    struct instruction *i = &r->kernel->instructions[number];
    bool writes = i->guard < 0 && !reads_all(i->opcode);
    for (int o = i->operand_count - 1; o >= 0; o--)
        visit(r, &i->operands[o], number, writes && o == 0, act);
}

static void visit_all(struct reader *r, visitor act) {
    for (int n = 0; n < r->kernel->instruction_count; n++)
        visit_one(r, n, act);
}

static void note_life(struct reader *r, struct operand *o, int number, bool is_written) {
    struct life *life = &r->lives[o->offset];
    (void)is_written;
    if (life->first < 0)
        life->first = number;
    life->last = number;
}

static void note_in_stretch(struct reader *r, struct operand *o, int number, bool is_written) {
    struct stretch *stretch = &r->stretches[r->stretch_count - 1];
    uint64_t bit = UINT64_C(1) << o->offset % 64;
    (void)number;
    if (is_written)
        stretch->writes[o->offset / 64] |= bit;
    else if (!(stretch->writes[o->offset / 64] & bit))
        stretch->reads[o->offset / 64] |= bit;
}

/* Splits the kernel into basic blocks at branches and branch targets. */
static void cut_stretches(struct reader *r) {
    const struct kernel *kernel = r->kernel;
    bool *begins = calloc((size_t)kernel->instruction_count + 2, sizeof *begins);
    int words = (r->life_count + 63) / 64,
        *stretch_of = calloc((size_t)kernel->instruction_count + 2, sizeof *stretch_of);
    for (int n = 0; n < kernel->instruction_count; n++) {
        const struct instruction *i = &kernel->instructions[n];
        if (i->is_branch)
            begins[i->operands[0].offset] = true;
        if (i->is_branch || i->is_end)
            begins[n + 1] = true;
    }
    r->stretch_count = 0;
    for (int n = 0; n < kernel->instruction_count; n++) {
        if (n == 0 || begins[n]) {
            r->stretches = grown(r->stretches, r->stretch_count, &r->stretch_room, sizeof *r->stretches);
            uint64_t *sets = owned(r->module, (size_t)words * 4 * sizeof *sets);
            r->stretches[r->stretch_count++] =
                (struct stretch){n, n, {-1, -1}, sets, sets + words, sets + 2 * words, sets + 3 * words};
        }
        r->stretches[r->stretch_count - 1].to = n;
        stretch_of[n] = r->stretch_count - 1;
        visit_one(r, n, note_in_stretch);
    }
    for (int k = 0; k < r->stretch_count; k++) {
        const struct instruction *last = &kernel->instructions[r->stretches[k].to];
        bool goes_on = !(last->is_branch || last->is_end) || last->guard >= 0;
        if (last->is_branch && (int)last->operands[0].offset < kernel->instruction_count)
            r->stretches[k].next[0] = stretch_of[last->operands[0].offset];
        if (goes_on && k + 1 < r->stretch_count)
            r->stretches[k].next[1] = k + 1;
    }
    free(begins);
    free(stretch_of);
}

/* Extends live ranges: a register is live from its first instruction to the last one that may still read it. */
static void extend_lives(struct reader *r) {
    int words = (r->life_count + 63) / 64;
    cut_stretches(r);
    for (bool is_changed = true; is_changed;) {
        is_changed = false;
        for (int k = r->stretch_count - 1; k >= 0; k--) {
            const struct stretch *s = &r->stretches[k];
            for (int word = 0; word < words; word++) {
                for (int way = 0; way < 2; way++)
                    if (s->next[way] >= 0)
                        s->leaves[word] |= r->stretches[s->next[way]].enters[word];
                uint64_t enters = s->reads[word] | (s->leaves[word] & ~s->writes[word]);
                is_changed |= enters != s->enters[word];
                s->enters[word] = enters;
            }
        }
    }
    for (int k = 0; k < r->stretch_count; k++)
        for (int n = 0; n < r->life_count; n++) {
            const struct stretch *s = &r->stretches[k];
            struct life *life = &r->lives[n];
            if (s->enters[n / 64] >> n % 64 & 1 && s->from < life->first)
                life->first = s->from;
            if (s->leaves[n / 64] >> n % 64 & 1 && s->to > life->last)
                life->last = s->to;
            if (s->enters[n / 64] >> n % 64 & 1 && s->from > life->last)
                life->last = s->from;
            if (s->leaves[n / 64] >> n % 64 & 1 && s->to < life->first)
                life->first = s->to;
        }
}

static _Thread_local const struct life *sorted_lives;
static int by_first(const void *a, const void *b) {
    const struct life *x = &sorted_lives[*(const int *)a], *y = &sorted_lives[*(const int *)b];
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : 0;
}

/* Allocates a place for each register that no other live register occupies. */
static void place_lives(struct reader *r, bool is_wide, int reserved) {
    int *order = malloc((size_t)(r->life_count + 1) * sizeof *order), *free_from = NULL;
    int count = 0, places = reserved, room = 0;
    for (int n = 0; n < r->life_count; n++)
        if (r->lives[n].first >= 0 && r->lives[n].is_wide == is_wide && n >= SPECIALS)
            order[count++] = n;
    sorted_lives = r->lives;
    qsort(order, (size_t)count, sizeof *order, by_first);
    for (int k = 0; k < count; k++) {
        struct life *life = &r->lives[order[k]];
        int place = reserved;
        while (place < places && free_from[place] >= life->first)
            place++;
        if (place >= places) {
            free_from = grown(free_from, place, &room, sizeof *free_from);
            places = place + 1;
        }
        free_from[place] = life->last;
        life->place = place;
    }
    r->kernel->file_bytes[is_wide ? FILE_WIDE : FILE_NARROW] = (size_t)places * (is_wide ? WIDE_BYTES : NARROW_BYTES);
    free(order);
    free(free_from);
}

static void set_place(struct reader *r, struct operand *o, int number, bool is_written) {
    (void)number;
    (void)is_written;
    o->offset = (uint32_t)r->lives[o->offset].place * (o->file == FILE_WIDE ? WIDE_BYTES : NARROW_BYTES);
    o->wide_offset = o->offset;
}

static void place_registers(struct reader *r) {
    for (int n = 0; n < r->kernel->instruction_count; n++)
        for (int o = 0; o < r->kernel->instructions[n].operand_count; o++)
            resolve_label(r, &r->kernel->instructions[n].operands[o], n);
    visit_all(r, note_life);
    extend_lives(r);
    for (int n = 0; n < SPECIALS; n++)
        r->lives[n].place = n;
    place_lives(r, false, SPECIALS);
    place_lives(r, true, 0);
    visit_all(r, set_place);
}

/* ---- Kernels and modules ----------------------------------------------------------------------------------------- */

static void read_parameters(struct reader *r) {
    struct kernel *kernel = r->kernel;
    struct variable v = {0};
    expect(r, "(");
    if (takes(r, ".param")) {
        v = read_variable(r);
        place_in(&kernel->parameter_bytes, &v);
    }
    if (takes(r, ","))
        fail(r, "kernel '%s' has more than one parameter, which the emulator does not know", kernel->name);
    expect(r, ")");
    unsigned char *memory = owned(r->module, kernel->parameter_bytes + 256);
    kernel->parameters = memory + (256 - (uintptr_t)memory % 256) % 256;
    if (v.name)
        declare(r, v.name, SYMBOL_MEMORY, (uintptr_t)kernel->parameters);
}

/* Reads ".maxntid 384, 1, 1" and similar directives; the largest number of threads is stored. */
static void read_tuning(struct reader *r) {
    while (!takes(r, "{")) {
        expect(r, ".");
        const char *word = take_word(r);
        int64_t product = 1;
        if (is_number((skip_space(r), r->at)))
            do
                product *= take_number(r);
            while (takes(r, ","));
        if (strcmp(word, "maxntid") == 0 || strcmp(word, "reqntid") == 0)
            r->kernel->max_threads = (int)product;
    }
}

static bool read_label(struct reader *r) {
    skip_space(r);
    size_t length = word_length(r->at);
    if (!length || r->at[length] != ':')
        return false;
    const char *name = take_word(r);
    expect(r, ":");
    declare(r, name, SYMBOL_LABEL, (uint64_t)r->kernel->instruction_count);
    return true;
}

static void read_local(struct reader *r, uint64_t window) {
    struct variable v = read_variable(r);
    declare(r, v.name, SYMBOL_MEMORY, window + place_in(&r->kernel->local_bytes, &v));
    expect(r, ";");
}

/* Reads ".loc 1 45 7"; the position at which the function was inlined is ignored. */
static void read_location(struct reader *r) {
    r->source_file = (int)take_number(r);
    r->source_line = (int)take_number(r);
    r->at += strcspn(r->at, "\n");
}

static void read_body(struct reader *r);

/* Binds "(a, b)" of a call to "(.param .b32 x, .param .b64 y)" of the function: each parameter becomes an alias of its
   argument. */
static void bind(struct reader *r, const char *formal, int scope) {
    const char *actual = r->at;
    expect(r, "(");
    while (!takes(r, ")")) {
        const struct symbol *argument = find(r, take_word(r), scope);
        takes(r, ",");
        actual = r->at;
        r->at = formal;
        takes(r, "(");
        takes(r, ",");
        expect(r, ".param");
        struct variable v = read_variable(r);
        formal = r->at;
        r->at = actual;
        if (!argument || argument->kind != SYMBOL_MEMORY)
            fail(r, "a call with what is no parameter");
        declare(r, v.name, SYMBOL_MEMORY, argument->value);
    }
}

/* "call.uni (result), name, (arguments);": inlines the text of the function; returns become branches to its end. */
static void read_call(struct reader *r) {
    int outside = r->scope;
    const char *end_outside = r->end_label, *results = NULL;
    take_word(r);
    skip_space(r);
    if (*r->at == '(') {
        results = r->at;
        skip_past(r, ')');
        expect(r, ",");
    }
    const char *name = take_word(r);
    const struct function *function = r->functions;
    while (function && strcmp(function->name, name) != 0)
        function = function->next;
    if (!function)
        fail(r, "the emulator does not know the function '%s'", name);
    if (++r->depth > CALLS_MAX)
        fail(r, "more than %d calls inside each other, of which the last is to '%s'", CALLS_MAX, name);
    open_scope(r);
    if (takes(r, ","))
        bind(r, function->parameters, outside);
    skip_past(r, ';');
    const char *after = r->at;
    int line = r->line;
    if (results) {
        r->at = results;
        bind(r, function->results, outside);
    }
    char *label = owned(r->module, 32);
    sprintf(label, "end of call %d", r->calls++);
    r->end_label = label;
    r->at = function->body;
    r->line = function->line;
    open_scope(r);
    read_body(r);
    declare(r, label, SYMBOL_LABEL, (uint64_t)r->kernel->instruction_count);
    r->depth--;
    r->scope = outside;
    r->end_label = end_outside;
    r->at = after;
    r->line = line;
}

static void read_body(struct reader *r) {
    for (int depth = 1; depth;) {
        skip_space(r);
        if (takes(r, "{")) {
            depth++;
            open_scope(r);
        } else if (takes(r, "}")) {
            depth--;
            r->scope = r->parents[r->scope];
        } else if (takes(r, ".reg")) {
            read_registers(r);
        } else if (takes(r, ".shared")) {
            struct variable v = read_variable(r);
            declare(r, v.name, SYMBOL_SHARED, place_in(&r->kernel->static_shared_bytes, &v));
            expect(r, ";");
        } else if (takes(r, ".local")) {
            read_local(r, 0);
        } else if (takes(r, ".param")) {
            read_local(r, LOCAL_WINDOW); /* parameter of a call: loads and stores use its generic address */
        } else if (takes(r, ".pragma")) {
            skip_past(r, ';');
        } else if (takes(r, ".loc")) {
            read_location(r);
        } else if (strncmp(r->at, "call", 4) == 0) {
            read_call(r);
        } else if (!read_label(r)) {
            read_instruction(r);
        }
    }
}

/* Places the variable of dynamic size after all others; a look-ahead finds those of the body. */
static const struct symbol *place_dynamic(struct reader *r, size_t bytes, struct variable dynamic) {
    const char *at = r->at, *end = strstr(at, "\n}");
    int line = r->line;
    for (const char *found = at; (found = strstr(found, ".shared .align")) && found < end;) {
        r->at = found + strlen(".shared");
        struct variable v = read_variable(r);
        place_in(&bytes, &v);
        found = r->at;
    }
    r->at = at;
    r->line = line;
    return declare(r, dynamic.name, SYMBOL_SHARED, place_in(&bytes, &dynamic));
}

/* Module-level shared variables are stored before each kernel's own. */
static void read_kernel(struct reader *r, size_t shared_bytes, const struct variable *dynamic) {
    struct kernel *kernel = owned(r->module, sizeof *kernel);
    kernel->name = (char *)take_word(r);
    kernel->next = r->module->kernels;
    kernel->static_shared_bytes = shared_bytes;
    kernel->max_threads = 1024;
    r->module->kernels = r->kernel = kernel;
    r->life_count = r->instruction_room = 0;
    for (int n = 0; n < SPECIALS; n++)
        new_life(r, false);
    open_scope(r);
    read_parameters(r);
    read_tuning(r);
    const struct symbol *placed = dynamic->name ? place_dynamic(r, shared_bytes, *dynamic) : NULL;
    read_body(r);
    if (placed && kernel->static_shared_bytes > placed->value)
        fail(r, "kernel '%s' has a shared variable without an alignment", kernel->name);
    if (placed)
        kernel->static_shared_bytes = placed->value;
    place_registers(r);
    kernel->is_reached = owned(r->module, (size_t)kernel->instruction_count + 1);
}

/* Records the location of the parts of a function and skips it. */
static void read_function(struct reader *r) {
    struct function *function = owned(r->module, sizeof *function);
    skip_space(r);
    if (*r->at == '(') {
        function->results = r->at;
        skip_past(r, ')');
    }
    function->name = take_word(r);
    skip_space(r);
    function->parameters = r->at;
    while (*r->at && *r->at != '{' && *r->at != ';')
        r->line += *r->at++ == '\n';
    if (takes(r, ";"))
        return; /* a declaration: the body comes later */
    function->body = r->at + 1;
    function->line = r->line;
    function->next = r->functions;
    r->functions = function;
    for (int depth = 0; *r->at; r->at++) {
        r->line += *r->at == '\n';
        depth += (*r->at == '{') - (*r->at == '}');
        if (!depth) {
            r->at++;
            return;
        }
    }
}

/* Runs before everything else, because a kernel may call a function that is defined after it. */
static void find_functions(struct reader *r) {
    const char *text = r->at;
    for (const char *at = text; (at = strstr(at, ".func "));) {
        r->at = at + strlen(".func");
        read_function(r);
        at = r->at;
    }
    r->at = text;
    r->line = 1;
}

/* ".file 1 "core/index.cuh"". */
static void read_file_name(struct reader *r) {
    struct module *module = r->module;
    int number = (int)take_number(r);
    expect(r, "\"");
    size_t length = strcspn(r->at, "\"\n");
    char *name = owned(module, length + 1);
    memcpy(name, r->at, length);
    if (number < 0 || number >= FILES_MAX)
        fail(r, "source file %d of %d", number, FILES_MAX);
    if (!module->files)
        module->files = owned(module, FILES_MAX * sizeof *module->files);
    module->files[number] = name;
    module->file_count = number >= module->file_count ? number + 1 : module->file_count;
    r->at += strcspn(r->at, "\n");
}

static void read_module(struct reader *r) {
    size_t shared_bytes = 0;
    struct variable dynamic = {0};
    open_scope(r);
    find_functions(r);
    while (skip_space(r), *r->at) {
        if (takes(r, ".version") || takes(r, ".target") || takes(r, ".address_size")) {
            r->at += strcspn(r->at, "\n");
        } else if (takes(r, ".file")) {
            read_file_name(r);
        } else if (takes(r, ".section")) { /* names of inlined functions */
            skip_past(r, '}');
        } else if (takes(r, ".extern")) {
            expect(r, ".shared");
            dynamic = read_variable(r);
            expect(r, ";");
        } else if (takes(r, ".visible") || takes(r, ".weak")) {
            continue;
        } else if (takes(r, ".global") || takes(r, ".const")) {
            read_global(r);
        } else if (takes(r, ".shared")) {
            struct variable v = read_variable(r);
            declare(r, v.name, SYMBOL_SHARED, place_in(&shared_bytes, &v));
            expect(r, ";");
        } else if (takes(r, ".func")) {
            read_function(r);
        } else if (takes(r, ".entry")) {
            read_kernel(r, shared_bytes, &dynamic);
        } else {
            fail(r, "the emulator does not know what begins with '%.30s'", r->at);
        }
    }
}

static void split_lines(struct module *module) {
    int room = 0;
    for (char *at = module->text; at && *at; module->line_count++) {
        module->lines = grown(module->lines, module->line_count, &room, sizeof *module->lines);
        module->lines[module->line_count] = at;
        at = strchr(at, '\n');
        if (at)
            *at++ = '\0';
    }
}

struct module *ptx_read(const char *text) {
    struct module *module = calloc(1, sizeof *module);
    struct reader *r = calloc(1, sizeof *r);
    if (!module || !r)
        abort();
    *r = (struct reader){.module = module, .at = text, .line = 1};
    if (!setjmp(r->failed))
        read_module(r);
    module->text = strdup(text);
    split_lines(module);
    free(r->parents);
    free(r->lives);
    free(r->stretches);
    free(r->scopes);
    free(r);
    return module;
}

void ptx_free(struct module *module) {
    for (const struct kernel *kernel = module->kernels; kernel; kernel = kernel->next)
        free(kernel->instructions);
    for (int i = 0; i < module->owned_count; i++)
        free(module->owned[i]);
    free(module->owned);
    free(module->constants);
    free(module->globals);
    free(module->lines);
    free(module->text);
    free(module);
}

const struct kernel *ptx_find(const struct module *module, const char *name) {
    for (const struct kernel *kernel = module->kernels; kernel; kernel = kernel->next)
        if (strcmp(kernel->name, name) == 0)
            return kernel;
    return NULL;
}
