/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores, atomic operations and fences of individual lanes. */
#include "machine.h"
#include "numbers.h"

#include <math.h>
#include <string.h>

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

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
    set_value(w, o, lane, value);
}

/* The registers that one access transfers: one register, or the parts of a vector. */
static const struct operand *parts_of(const struct operand *o) { return o->kind == OPERAND_VECTOR ? o->items : o; }

static bool is_shared(const struct instruction *i, uint64_t address) {
    return i->space == SPACE_SHARED || (i->space == SPACE_GENERIC && address & SHARED_WINDOW);
}

static enum outcome load(struct warp *w, const struct instruction *i, uint32_t mask) {
    const struct operand *d = parts_of(&i->operands[0]);
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type);
    FOR_LANES(mask, l) {
        uint64_t address = address_of(w, &i->operands[1], l);
        const unsigned char *from = machine_memory(w, l, (enum ptx_space)i->space, address, bytes * i->width);
        if (is_shared(i, address) && !i->mode)
            order_read(w, machine_block_of(w, address), (uint32_t)address & OWN_ADDRESS, (uint32_t)i->line);
        else if (i->mode)
            order_flag(w, address, true, false);
        for (unsigned k = 0; k < i->width; k++)
            put(w, &d[k], l, (enum ptx_type)i->type, from + k * bytes);
    }
    return i->mode ? YIELD : NEXT; /* an access that observes other warps, such as a volatile load */
}

static enum outcome store(struct warp *w, const struct instruction *i, uint32_t mask) {
    const struct operand *s = parts_of(&i->operands[1]);
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type);
    FOR_LANES(mask, l) {
        uint64_t address = address_of(w, &i->operands[0], l);
        unsigned char *to = machine_memory(w, l, (enum ptx_space)i->space, address, bytes * i->width);
        if (is_shared(i, address) && !i->mode)
            order_write(w, machine_block_of(w, address), (uint32_t)address & OWN_ADDRESS, (uint32_t)i->line);
        else if (i->mode)
            order_flag(w, address, false, true);
        bool changes = false;
        for (unsigned k = 0; k < i->width; k++) {
            uint64_t value = lane_value(w, &s[k], l);
            changes |= memcmp(to + k * bytes, &value, bytes) != 0;
            memcpy(to + k * bytes, &value, bytes);
        }
        if (is_shared(i, address) && i->mode && changes)
            order_relaxed_write(w, machine_block_of(w, address), (uint32_t)address & OWN_ADDRESS, (uint32_t)i->line);
    }
    machine->progress++;
    return NEXT;
}

/* ---- Atomic operations ------------------------------------------------------------------------------------------- */

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
    switch (i->mode) {
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

/* The order of the lanes is undefined. */
static enum outcome atom(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool has_result = i->opcode[0] == 'a';
    const struct operand *address = &i->operands[has_result];
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type), turn = (unsigned)machine_random() % LANES;
    FOR_LANES(mask << turn | (turn ? mask >> (LANES - turn) : 0), k) {
        int l = (int)((unsigned)k + LANES - turn) % LANES;
        unsigned char *at = machine_memory(w, l, (enum ptx_space)i->space, address_of(w, address, l), bytes);
        order_flag(w, address_of(w, address, l), true, true);
        uint64_t old = 0, a = lane_value(w, address + 1, l), b = 0;
        memcpy(&old, at, bytes);
        if (bytes == 4)
            a = (uint32_t)a;
        if (i->mode == ATOM_CAS)
            b = lane_value(w, address + 2, l);
        uint64_t new = changed(old, a, b, i);
        memcpy(at, &new, bytes);
        if (has_result)
            put(w, &i->operands[0], l, (enum ptx_type)i->type, (const unsigned char *)&old);
    }
    machine->progress++;
    return YIELD;
}

/* Orders accesses of threads with those of the copy engine and of products. */
static enum outcome proxy_fence(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)i;
    (void)mask;
    order_fence(w);
    return NEXT;
}

/* Other fences order accesses that are already in order here; prefetches and hints have no effect. */
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

/* ---- Names ------------------------------------------------------------------------------------------------------- */

#define SPACES "global shared shared::cta shared::cluster "
#define ORDERS "weak volatile relaxed acquire release acq_rel cta cluster gpu sys "
#define HINTS "ca cg cs lu cv wb wt L1::* L2::* "
#define TYPES "u8 u16 u32 u64 s8 s16 s32 s64 b8 b16 b32 b64 f32 f64"

static enum ptx_space space_of(const char *opcode) {
    bool is_shared = ptx_has(opcode, "shared") || ptx_has(opcode, "shared::cta") || ptx_has(opcode, "shared::cluster");
    return is_shared                   ? SPACE_SHARED
           : ptx_has(opcode, "local")  ? SPACE_LOCAL
           : ptx_has(opcode, "global") ? SPACE_GLOBAL
           : ptx_has(opcode, "param")  ? SPACE_PARAMETERS
                                       : SPACE_GENERIC;
}

static operation decode_access(struct instruction *i) {
    const struct operand *moved = &i->operands[i->opcode[0] == 's'];
    i->space = space_of(i->opcode);
    i->width = ptx_has(i->opcode, "v4") ? 4 : ptx_has(i->opcode, "v2") ? 2 : 1;
    i->mode = ptx_has(i->opcode, "acquire") || ptx_has(i->opcode, "release") || ptx_has(i->opcode, "relaxed") ||
              ptx_has(i->opcode, "volatile");
    if (!ptx_only(i->opcode, SPACES "local param const nc v2 v4 " ORDERS HINTS TYPES) ||
        (moved->kind == OPERAND_VECTOR ? moved->count : 1) != i->width)
        return NULL;
    return i->opcode[0] == 'l' ? load : store;
}

static operation decode_atom(struct instruction *i) {
    bool is_float = i->type == TYPE_F32 || i->type == TYPE_F64;
    i->space = space_of(i->opcode);
    i->mode = ATOMS;
    for (uint8_t k = 0; k < ATOMS; k++)
        if (ptx_has(i->opcode, atoms[k]))
            i->mode = k;
    bool is_known = i->mode < ATOMS && (!is_float || i->mode == ATOM_ADD) && ptx_type_bytes((enum ptx_type)i->type) > 1;
    return is_known && ptx_only(i->opcode, "add inc dec min max exch cas and or xor " SPACES ORDERS HINTS TYPES) ? atom
                                                                                                                 : NULL;
}

operation decode_memory(struct instruction *i) {
    static const char *const harmless[] = {"fence.",        "membar.",         "prefetch.",  "prefetchu.",
                                           "setmaxnreg.",   "griddepcontrol.", "nanosleep.", "cp.async.bulk.prefetch.",
                                           "applypriority."};
    if (strcmp(i->opcode, "fence.proxy.async") == 0 || strcmp(i->opcode, "fence.proxy.async.shared::cta") == 0)
        return proxy_fence;
    for (size_t k = 0; k < sizeof harmless / sizeof *harmless; k++)
        if (ptx_begins(i->opcode, harmless[k]))
            return nothing;
    if (strcmp(i->opcode, "trap") == 0 || strcmp(i->opcode, "brkpt") == 0)
        return trap;
    if (ptx_begins(i->opcode, "ld.") || ptx_begins(i->opcode, "st."))
        return decode_access(i);
    return ptx_begins(i->opcode, "atom.") || ptx_begins(i->opcode, "red.") ? decode_atom(i) : NULL;
}
