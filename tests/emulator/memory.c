/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores, atomic operations and fences of single lanes. */
#include "machine.h"
#include "numbers.h"

#include <math.h>
#include <string.h>

/* ---- Loads and stores ----------------------------------------------------------------------------------------------------- */

static uint64_t address_of(const struct warp *w, const struct operand *o, int lane) {
    uint64_t address = lane_value(w, o, lane) + (uint64_t)o->displacement;
    return o->file == FILE_NARROW ? (uint32_t)address : address;
}

static void put(struct warp *w, const struct operand *o, int lane, enum ptx_type type, const unsigned char *bytes) {
    uint64_t value = 0;
    if (o->kind != OPERAND_VALUE)
        return;
    memcpy(&value, bytes, ptx_type_bytes(type));
    if (type == TYPE_S8)
        value = (uint64_t)(int64_t)(int8_t)value;
    if (type == TYPE_S16)
        value = (uint64_t)(int64_t)(int16_t)value;
    if (type == TYPE_S32)
        value = (uint64_t)(int64_t)(int32_t)value;
    if (o->file == FILE_WIDE)
        wide(w, o)[lane] = value;
    else
        narrow(w, o)[lane] = (uint32_t)value;
}

static enum outcome load(struct warp *w, const struct instruction *i, uint32_t mask) {
    const struct operand *d = &i->operands[0];
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type);
    FOR_LANES(mask, l) {
        uint64_t address = address_of(w, &i->operands[1], l);
        const unsigned char *from = machine_memory(w, l, (enum ptx_space)i->space, address, bytes * i->width);
        for (unsigned k = 0; k < i->width; k++)
            put(w,
                i->width > 1                ? &d->items[k]
                : d->kind == OPERAND_VECTOR ? &d->items[0]
                                            : d,
                l, (enum ptx_type)i->type, from + k * bytes);
    }
    return i->rounding ? YIELD : NEXT; /* a load that looks at what others do */
}

static enum outcome store(struct warp *w, const struct instruction *i, uint32_t mask) {
    const struct operand *s = &i->operands[1];
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type);
    FOR_LANES(mask, l) {
        uint64_t address = address_of(w, &i->operands[0], l);
        unsigned char *to = machine_memory(w, l, (enum ptx_space)i->space, address, bytes * i->width);
        for (unsigned k = 0; k < i->width; k++) {
            uint64_t value = lane_value(w,
                                        i->width > 1                ? &s->items[k]
                                        : s->kind == OPERAND_VECTOR ? &s->items[0]
                                                                    : s,
                                        l);
            memcpy(to + k * bytes, &value, bytes);
        }
    }
    machine->progress++;
    return NEXT;
}

/* ---- Atomic operations ------------------------------------------------------------------------------------------------------ */

enum { ATOM_ADD, ATOM_INC, ATOM_DEC, ATOM_MIN, ATOM_MAX, ATOM_EXCH, ATOM_CAS, ATOM_AND, ATOM_OR, ATOM_XOR, ATOMS };
static const char *const atoms[] = {"add", "inc", "dec", "min", "max", "exch", "cas", "and", "or", "xor"};

static uint64_t changed_float(uint64_t old, uint64_t a, const struct instruction *i) {
    if (i->type == TYPE_F64) {
        double x, y;
        memcpy(&x, &old, sizeof x);
        memcpy(&y, &a, sizeof y);
        x += y;
        memcpy(&old, &x, sizeof x);
        return old;
    }
    float x, y;
    uint32_t bits;
    memcpy(&x, &old, sizeof x);
    memcpy(&y, &a, sizeof y);
    x += y;
    memcpy(&bits, &x, sizeof x);
    return bits;
}

static uint64_t changed(uint64_t old, uint64_t a, uint64_t b, const struct instruction *i) {
    bool is_signed = i->type == TYPE_S32 || i->type == TYPE_S64;
    int64_t x = i->type == TYPE_S32 ? (int32_t)old : (int64_t)old, y = i->type == TYPE_S32 ? (int32_t)a : (int64_t)a;
    bool is_less = is_signed ? x < y : old < a;
    switch (i->compare) {
    case ATOM_ADD:
        return i->type == TYPE_F32 || i->type == TYPE_F64 ? changed_float(old, a, i) : old + a;
    case ATOM_INC:
        return old >= a ? 0 : old + 1;
    case ATOM_DEC:
        return old == 0 || old > a ? a : old - 1;
    case ATOM_MIN:
        return is_less ? old : a;
    case ATOM_MAX:
        return is_less ? a : old;
    case ATOM_EXCH:
        return a;
    case ATOM_CAS:
        return old == a ? b : old;
    case ATOM_AND:
        return old & a;
    case ATOM_OR:
        return old | a;
    default:
        return old ^ a;
    }
}

static enum outcome atom(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool has_result = i->opcode[0] == 'a';
    const struct operand *address = &i->operands[has_result];
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type);
    FOR_LANES(mask, l) {
        unsigned char *at = machine_memory(w, l, (enum ptx_space)i->space, address_of(w, address, l), bytes);
        uint64_t old = 0, a = lane_value(w, address + 1, l), b = 0;
        memcpy(&old, at, bytes);
        if (bytes == 4)
            a = (uint32_t)a;
        if (i->operand_count > has_result + 2)
            b = lane_value(w, address + 2, l);
        uint64_t new = changed(old, a, b, i);
        memcpy(at, &new, bytes);
        if (has_result)
            put(w, &i->operands[0], l, (enum ptx_type)i->type, (const unsigned char *)&old);
    }
    machine->progress++;
    return YIELD;
}

/* Fences order what is in order here; prefetches and hints change nothing. */
static enum outcome nothing(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)w;
    (void)i;
    (void)mask;
    return NEXT;
}

static enum outcome trap(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)mask;
    machine_fail(w, "'%s'", i->opcode);
}

static bool begins(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

operation decode_memory(struct instruction *i) {
    static const char *const harmless[] = {"fence.",      "membar.",         "prefetch",   "prefetchu.",
                                           "setmaxnreg.", "griddepcontrol.", "nanosleep.", "cp.async.bulk.prefetch.",
                                           "discard.",    "applypriority.",  "isspacep."};
    for (size_t k = 0; k + 1 < sizeof harmless / sizeof *harmless; k++)
        if (begins(i->opcode, harmless[k]))
            return nothing;
    if (begins(i->opcode, "trap") || begins(i->opcode, "brkpt"))
        return trap;
    bool is_access = begins(i->opcode, "ld.") || begins(i->opcode, "st.") || begins(i->opcode, "ldu."),
         is_atom = begins(i->opcode, "atom.") || begins(i->opcode, "red.");
    if ((!is_access && !is_atom) || begins(i->opcode, "st.async") || begins(i->opcode, "red.async"))
        return NULL;
    bool is_shared =
        ptx_has(i->opcode, "shared") || ptx_has(i->opcode, "shared::cta") || ptx_has(i->opcode, "shared::cluster");
    i->space = is_shared                      ? SPACE_SHARED
               : ptx_has(i->opcode, "local")  ? SPACE_LOCAL
               : ptx_has(i->opcode, "global") ? SPACE_GLOBAL
                                              : SPACE_GENERIC;
    i->width = ptx_has(i->opcode, "v8") ? 8 : ptx_has(i->opcode, "v4") ? 4 : ptx_has(i->opcode, "v2") ? 2 : 1;
    i->rounding = ptx_has(i->opcode, "acquire") || ptx_has(i->opcode, "relaxed") || ptx_has(i->opcode, "volatile");
    if (is_access)
        return i->opcode[0] == 'l' ? load : store;
    i->compare = ATOMS;
    for (uint8_t k = 0; k < ATOMS; k++)
        if (ptx_has(i->opcode, atoms[k]))
            i->compare = k;
    bool is_half = i->type == TYPE_F16X2 || i->type == TYPE_BF16X2 || i->type == TYPE_F16 || i->type == TYPE_BF16;
    return i->compare == ATOMS || i->width > 1 || is_half ? NULL : atom;
}
