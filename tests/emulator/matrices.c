/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor core instructions: mma.sync, ldmatrix, stmatrix, and wgmma, at which the four warps of a group meet. A wgmma
   product is computed immediately; the wait verifies that its operands have not changed since. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

static bool find_matrix_type(const char *name, size_t length, enum matrix_type *type) {
    static const char *const names[] = {
        [MATRIX_F16] = "f16",   [MATRIX_BF16] = "bf16", [MATRIX_TF32] = "tf32", [MATRIX_E4M3] = "e4m3",
        [MATRIX_E5M2] = "e5m2", [MATRIX_S8] = "s8",     [MATRIX_U8] = "u8",
    };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (strlen(names[k]) == length && strncmp(names[k], name, length) == 0) {
            *type = (enum matrix_type)k;
            return true;
        }
    return false;
}

/* Returns a part of an opcode, counted from the end: 0 is the last one. */
static const char *part_from_end(const char *opcode, int index, size_t *length) {
    const char *end = opcode + strlen(opcode), *at = end;
    for (;; index--) {
        while (at > opcode && at[-1] != '.')
            at--;
        *length = (size_t)(end - at);
        if (!index || at == opcode)
            return at;
        end = --at;
    }
}

static bool is_part(const char *opcode, int index, const char *name) {
    size_t length;
    const char *part = part_from_end(opcode, index, &length);
    return strlen(name) == length && strncmp(part, name, length) == 0;
}

/* Reads "f32.bf16.bf16" at the end of an opcode, without the last `skipped` parts. Returns true if the types are known
   and the accumulator is f32 or, for integers, s32. */
static bool read_matrix_types(const char *opcode, int skipped, enum matrix_type *a, enum matrix_type *b) {
    size_t length;
    const char *b_name = part_from_end(opcode, skipped, &length);
    if (!find_matrix_type(b_name, length, b))
        return false;
    const char *a_name = part_from_end(opcode, skipped + 1, &length);
    if (!find_matrix_type(a_name, length, a))
        return false;
    bool is_integer = *a == MATRIX_S8 || *a == MATRIX_U8;
    return is_part(opcode, skipped + 2, is_integer ? "s32" : "f32");
}

static int number_behind(const char *opcode, const char *shape, char letter) {
    const char *at = strstr(opcode, shape);
    at = at ? strchr(at + 1, letter) : NULL;
    return at ? atoi(at + 1) : 0;
}

static enum outcome mma(struct warp *w, const struct instruction *i, uint32_t mask) {
    enum matrix_type a_type, b_type;
    uint32_t *d[4] = {0};
    const uint32_t *a[4] = {0}, *b[2] = {0}, *c[4] = {0};
    (void)mask;
    read_matrix_types(i->opcode, 1, &a_type, &b_type);
    for (int k = 0; k < i->operands[0].count && k < 4; k++)
        d[k] = narrow(w, &i->operands[0].items[k]);
    for (int k = 0; k < i->operands[1].count && k < 4; k++)
        a[k] = narrow(w, &i->operands[1].items[k]);
    for (int k = 0; k < i->operands[2].count && k < 2; k++)
        b[k] = narrow(w, &i->operands[2].items[k]);
    for (int k = 0; k < i->operands[3].count && k < 4; k++)
        c[k] = narrow(w, &i->operands[3].items[k]);
    matrix_mma(number_behind(i->opcode, ".m16n8k", 'k'), a_type, b_type, d, a, b, c);
    return NEXT;
}

/* ---- Blocks of 8 x 8 --------------------------------------------------------------------------------------------- */

static int block_count(const struct instruction *i) {
    return ptx_has(i->opcode, "x4") ? 4 : ptx_has(i->opcode, "x2") ? 2 : 1;
}

typedef void noting(struct warp *w, struct block *block, uint32_t address, uint32_t line);

static void find_rows(struct warp *w, const struct instruction *i, int operand, noting *note, unsigned char **rows) {
    for (int l = 0; l < 8 * block_count(i); l++) {
        uint32_t address = (uint32_t)address_of(w, &i->operands[operand], l);
        rows[l] = machine_shared(w, address, 16);
        note(w, machine_block_of(w, address), address & OWN_ADDRESS, (uint32_t)i->line);
    }
}

static enum outcome load_matrix(struct warp *w, const struct instruction *i, uint32_t mask) {
    unsigned char *rows[LANES];
    uint32_t *d[4];
    (void)mask;
    find_rows(w, i, 1, order_read, rows);
    for (int k = 0; k < block_count(i); k++)
        d[k] = narrow(w, i->operands[0].kind == OPERAND_VECTOR ? &i->operands[0].items[k] : &i->operands[0]);
    matrix_load(block_count(i), ptx_has(i->opcode, "trans"), d, (const unsigned char *const *)rows);
    return NEXT;
}

static enum outcome store_matrix(struct warp *w, const struct instruction *i, uint32_t mask) {
    unsigned char *rows[LANES];
    const uint32_t *s[4];
    (void)mask;
    find_rows(w, i, 0, order_write, rows);
    for (int k = 0; k < block_count(i); k++)
        s[k] = narrow(w, i->operands[1].kind == OPERAND_VECTOR ? &i->operands[1].items[k] : &i->operands[1]);
    matrix_store(block_count(i), ptx_has(i->opcode, "trans"), rows, s);
    machine->progress++;
    return NEXT;
}

/* ---- wgmma ------------------------------------------------------------------------------------------------------- */

static struct warpgroup *group_of(const struct warp *w) { return &w->block->groups[w->index / GROUP_WARPS]; }

/* Operands: d, a, b, scale-d, negate a, negate b {, transpose a, transpose b}. If a is in registers, "transpose a" is
   absent. */
static void describe(struct matrix_product *product, const struct warp *w, const struct instruction *i) {
    const struct operand *o = i->operands;
    product->n = number_behind(i->opcode, ".m64n", 'n');
    product->k = number_behind(i->opcode, ".m64n", 'k');
    read_matrix_types(i->opcode, 0, &product->a_type, &product->b_type);
    product->a_in_registers = o[1].kind == OPERAND_VECTOR;
    if (!product->a_in_registers)
        product->a_descriptor = wide(w, &o[1])[0];
    product->b_descriptor = wide(w, &o[2])[0];
    product->accumulates = i->operand_count < 4 || (predicate(w, &o[3]) & 1);
    product->negates_a = i->operand_count > 4 && (int32_t)narrow(w, &o[4])[0] < 0;
    product->negates_b = i->operand_count > 5 && (int32_t)narrow(w, &o[5])[0] < 0;
    product->transposes_a = !product->a_in_registers && i->operand_count > 7 && narrow(w, &o[6])[0];
    product->transposes_b =
        i->operand_count > (product->a_in_registers ? 6 : 7) && narrow(w, &o[product->a_in_registers ? 6 : 7])[0];
}

/* Checks that an operand of a product has the same value in all lanes of the warp. */
static void check_uniform(const struct warp *w, const struct operand *o) {
    for (int l = 1; l < LANES; l++)
        if (o->kind == OPERAND_VALUE && lane_value(w, o, l) != lane_value(w, o, 0))
            machine_fail(w, "lanes 0 and %d have different descriptors", l);
}

static bool differs(const struct matrix_product *a, const struct matrix_product *b) {
    return a->a_descriptor != b->a_descriptor || a->b_descriptor != b->b_descriptor || a->accumulates != b->accumulates;
}

static void note_operand(void *warp, uint32_t address) {
    struct warp *w = warp;
    order_engine_read(w, w->block, address, (uint32_t)w->now->line);
}

static void finish_product(struct warp *w, struct warpgroup *group, const struct instruction *i) {
    const struct block *block = w->block;
    const char *wrong = matrix_multiply(&group->product, block->shared, block->shared_bytes);
    if (wrong)
        machine_fail(w, "%s", wrong);
    struct warp *first = &block->warps[w->index / GROUP_WARPS * GROUP_WARPS];
    order_meet(first, GROUP_WARPS);
    if (group->pending_count == group->pending_room) {
        group->pending_room = group->pending_room ? 2 * group->pending_room : 64;
        group->pending = realloc(group->pending, (size_t)group->pending_room * sizeof *group->pending);
        if (!group->pending)
            abort();
    }
    group->pending[group->pending_count++] = (struct pending_product){
        .product = group->product,
        .digest = matrix_digest(&group->product, block->shared, block->shared_bytes, note_operand, w),
        .group = group->committed[0],
        .line = i->line,
    };
    group->met = 0;
    group->joint = NULL;
    order_part(first, GROUP_WARPS);
    for (int k = 0; k < GROUP_WARPS; k++)
        first[k].state = WARP_READY;
    machine->progress++;
}

static enum outcome multiply(struct warp *w, const struct instruction *i, uint32_t mask) {
    struct warpgroup *group = group_of(w);
    struct matrix_product product = {0};
    int rank = w->index % GROUP_WARPS;
    (void)mask;
    if (w->index / GROUP_WARPS * GROUP_WARPS + GROUP_WARPS > w->block->warp_count)
        machine_fail(w, "wgmma in a group of fewer than four warps");
    check_uniform(w, &i->operands[1]);
    check_uniform(w, &i->operands[2]);
    describe(&product, w, i);
    if (!group->met) {
        group->joint = i;
        group->product = product;
    } else if (group->joint != i || differs(&group->product, &product)) {
        machine_fail(w, "the warps of a group do not multiply the same: line %d and line %d", group->joint->line,
                     i->line);
    }
    for (int k = 0; k < i->operands[0].count; k++)
        group->product.d[rank][k] = narrow(w, &i->operands[0].items[k]);
    for (int k = 0; product.a_in_registers && k < i->operands[1].count; k++)
        group->product.a[rank][k] = narrow(w, &i->operands[1].items[k]);
    if (++group->met == GROUP_WARPS) {
        finish_product(w, group, i);
        return NEXT;
    }
    w->state = WARP_AT_PRODUCT;
    w->now = i;
    return WAIT;
}

static enum outcome commit_products(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)i;
    (void)mask;
    group_of(w)->committed[w->index % GROUP_WARPS]++;
    return NEXT;
}

/* Waits for all groups except the most recent ones; the operands of those groups must be unchanged since they were
   read. */
static enum outcome wait_products(struct warp *w, const struct instruction *i, uint32_t mask) {
    struct warpgroup *group = group_of(w);
    int over = group->committed[w->index % GROUP_WARPS] - (int)narrow(w, &i->operands[0])[0], kept = 0;
    (void)mask;
    for (int k = 0; k < group->pending_count; k++) {
        const struct pending_product *pending = &group->pending[k];
        if (pending->group >= over)
            group->pending[kept++] = *pending;
        else if (matrix_digest(&pending->product, w->block->shared, w->block->shared_bytes, NULL, NULL) !=
                 pending->digest)
            machine_fail(w, "what the product of line %d reads was overwritten before it was waited for",
                         pending->line);
    }
    group->pending_count = kept;
    return NEXT;
}

static enum outcome fence(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)w;
    (void)i;
    (void)mask;
    return NEXT;
}

#define MATRIX_TYPES "f32 s32 f16 bf16 tf32 e4m3 e5m2 s8 u8"

/* "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": k elements occupy 16 or 32 bytes. */
static operation decode_mma(const struct instruction *i) {
    enum matrix_type a, b;
    static const int element_bytes[] = {[MATRIX_F16] = 2,  [MATRIX_BF16] = 2, [MATRIX_TF32] = 4, [MATRIX_E4M3] = 1,
                                        [MATRIX_E5M2] = 1, [MATRIX_S8] = 1,   [MATRIX_U8] = 1};
    if (!ptx_only(i->opcode, "sync aligned m16n8k4 m16n8k8 m16n8k16 m16n8k32 row col " MATRIX_TYPES) ||
        !strstr(i->opcode, ".row.col.") || !read_matrix_types(i->opcode, 1, &a, &b))
        return NULL;
    int bytes = number_behind(i->opcode, ".m16n8k", 'k') * element_bytes[a];
    bool is_whole = a == MATRIX_S8 || a == MATRIX_U8;
    return (bytes == 16 || bytes == 32) && is_part(i->opcode, 0, is_whole ? "s32" : "f32") ? mma : NULL;
}

/* "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" */
static operation decode_wgmma(const struct instruction *i) {
    enum matrix_type a, b;
    return ptx_only(i->opcode, "mma_async sync aligned m64n* " MATRIX_TYPES) && read_matrix_types(i->opcode, 0, &a, &b)
               ? multiply
               : NULL;
}

operation decode_matrices(struct instruction *i) {
    static const char moves[] = "sync aligned m8n8 x1 x2 x4 trans shared shared::cta b16";
    i->meets = MEETS_WARP;
    if (ptx_begins(i->opcode, "ldmatrix.") && ptx_only(i->opcode, moves))
        return load_matrix;
    if (ptx_begins(i->opcode, "stmatrix.") && ptx_only(i->opcode, moves))
        return store_matrix;
    if (ptx_begins(i->opcode, "mma.sync."))
        return decode_mma(i);
    if (ptx_begins(i->opcode, "wgmma.mma_async."))
        return decode_wgmma(i);
    if (strcmp(i->opcode, "wgmma.fence.sync.aligned") == 0)
        return fence;
    if (strcmp(i->opcode, "wgmma.commit_group.sync.aligned") == 0)
        return commit_products;
    if (strcmp(i->opcode, "wgmma.wait_group.sync.aligned") == 0)
        return wait_products;
    i->meets = MEETS_NOBODY;
    return NULL;
}
