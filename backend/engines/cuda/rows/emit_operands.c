/* SPDX-License-Identifier: Apache-2.0 */
/* Emits the addresses of a row program's operands, and their vector loads and stores. */
#include "engines/cuda/rows/emit.h"
#include "engines/cuda/core/index_type.h"

#include <stdio.h>

/* Other operands are numbers of rows, or coordinates. */
bool rows_is_element_load(const struct emitter *p, int k) {
    const struct operand *operand = operand_at(p, k);
    const struct term *term = rows_find(p->rows, operand->value);
    return !operand->is_store && operand->memory != MEMORY_INDEX && term->is_needed && term->spans;
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* Emits coordinates c<first> .. of a position that counts through dims first .. end - 1. Positions count vectors along
   the fast dim, hence * WIDTH. N is the vector length: WIDTH, or 1 for unaligned elements. If all positions fit in 32
   bits, divisions are multiplications. */
void rows_emit_coordinates(struct emitter *p, int first, int end, const char *position) {
    const struct schedule *s = p->s;
    int64_t count = 1;
    for (int i = first; i < end; i++)
        count *= s->nest.extents[i];
    bool small = count < WEFT_INDEX32_MAX;
    const char *type = small ? "u32" : "i64";
    if (s->unaligned.most && first == s->nest.row_dims) {
        text_add(p->code, "    [[maybe_unused]] const i64 c%d = element_of<N>(at, %s);\n", first, position);
        return;
    }
    if (s->threads.segment && first == s->nest.row_dims) { /* the thread fixes the position within the segment */
        text_add(p->code, "    [[maybe_unused]] const i64 c%d = at.place;\n", --end);
    }
    if (end - first == 1) {
        text_add(p->code, "    [[maybe_unused]] const i64 c%d = (i64)(%s)%s", first, position,
                 first == schedule_fast_dim(s) || (s->overlap.is_used && first == 0) ? " * WIDTH" : "");
        if (s->overlap.is_used && first == 0)
            text_add(p->code, " - (%s * WIDTH < a.last_run ? 0 : a.overlap)", position);
        text_add(p->code, ";\n");
        return;
    }
    text_add(p->code, "    %s rest%d = (%s)(%s);\n", type, first, type, position);
    for (int i = end - 1; i > first; i--) {
        if (small)
            text_add(p->code, "    const u32 q%d = divide(rest%d, a.extent%d);\n", i, first, i);
        else
            text_add(p->code, "    const i64 q%d = rest%d / a.extent%d.value;\n", i, first, i);
        text_add(p->code,
                 "    [[maybe_unused]] const i64 c%d = (i64)(rest%d - q%d * a.extent%d.value)%s;\n    rest%d = q%d;\n",
                 i, first, i, i, i == schedule_fast_dim(s) ? " * WIDTH" : "", first, i);
    }
    text_add(p->code, "    [[maybe_unused]] const i64 c%d = (i64)rest%d%s;\n", first, first,
             first == schedule_fast_dim(s) ? " * WIDTH" : "");
}

bool rows_depends_on(const struct operand *operand, int first, int end) {
    for (int i = first; i < end; i++)
        if (operand->strides[i])
            return true;
    return false;
}

/* Emits the contribution of dims first .. end - 1 to an operand's offset. */
void rows_emit_offset(struct emitter *p, int k, int first, int end) {
    const struct operand *operand = operand_at(p, k);
    bool any = false;
    for (int i = first; i < end; i++) {
        if (!operand->strides[i])
            continue;
        if (operand->strides[i] == 1 && i == schedule_fast_dim(p->s))
            text_add(p->code, "%sc%d", any ? " + " : "", i);
        else
            text_add(p->code, "%sc%d * a.s%d_%d", any ? " + " : "", i, k, i);
        any = true;
    }
    /* An offset must be an expression. */
    if (!any)
        text_add(p->code, "0");
}

/* Emits the number of vectors of a row. If rows have unaligned elements, also emits the coordinate of one of them, or
   of a vector, within the row. Head and tail share one numbering: tail elements come after all vectors. */
static void emit_runs(struct emitter *p) {
    text_add(p->code, "DEVICE i64 vectors_of(const arguments& a, i64 strip) { return %s; }\n\n",
             p->s->unaligned.most ? "base_of(a, strip).vectors" : "a.vectors");
    if (p->s->unaligned.most)
        text_add(
            p->code,
            "template <int N> DEVICE i64 element_of(const base& at, position q) {\n"
            "    return N > 1 ? at.head + (i64)q * WIDTH : q < at.head ? (i64)q : q + (i64)at.vectors * WIDTH;\n}\n\n");
}

bool rows_is_located(const struct emitter *p, int k) {
    const struct operand *operand = operand_at(p, k);
    return operand->is_store || rows_find(p->rows, operand->value)->is_needed || schedule_is_part(p->s, k);
}

/* Emits where rows begin, as offsets that all elements of a row share, and the number of unaligned elements before the
   first vector. head: elements up to the next multiple of WIDTH, that is the negated offset of the leading operand
   modulo a power of two. */
void rows_emit_base(struct emitter *p) {
    const struct schedule *s = p->s;
    text_add(p->code, "struct base {\n    i64 strip;\n%s%s", s->unaligned.most ? "    position head, vectors;\n" : "",
             s->memory.scheme == MEMORY_STREAMED ? "    int place;\n" : "");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (rows_depends_on(operand_at(p, k), 0, s->nest.row_dims))
            text_add(p->code, "    i64 b%d;\n", k);
    text_add(p->code, "};\n\nDEVICE base base_of(const arguments& a, i64 strip) {\n    base at;\n"
                      "    at.strip = strip;\n");
    rows_emit_coordinates(p, 0, s->nest.row_dims, "strip");
    for (int k = 0; k < p->rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        if (!rows_depends_on(operand, 0, s->nest.row_dims))
            continue;
        text_add(p->code, "    at.b%d = ", k);
        if (rows_is_located(p, k))
            rows_emit_offset(p, k, 0, s->nest.row_dims);
        else
            text_add(p->code, "0");
        text_add(p->code, ";\n");
    }
    if (s->unaligned.most && rows_depends_on(operand_at(p, s->unaligned.leader), 0, s->nest.row_dims))
        text_add(p->code, "    at.head = (position)(-at.b%d & (WIDTH - 1));\n", s->unaligned.leader);
    else if (s->unaligned.most)
        text_add(p->code, "    at.head = 0;\n");
    if (s->unaligned.most)
        text_add(p->code, "    at.vectors = ((position)a.length - at.head - MARGIN) / WIDTH;\n");
    text_add(p->code, "    return at;\n}\n\n");
    emit_runs(p);
}

/* Emits the coordinate along which a value is split into parts, of a row's first element or at the coordinates in
   scope. */
static void emit_part_coordinate(struct emitter *p, int k, bool of_row) {
    const struct schedule *s = p->s;
    if (rows_depends_on(operand_at(p, k), 0, s->nest.row_dims))
        text_add(p->code, "at.b%d + ", k);
    if (of_row)
        text_add(p->code, "0");
    else
        rows_emit_offset(p, k, s->nest.row_dims, s->nest.rank);
}

/* Emits the offset from an operand's base to a row's first element, or to the element at the coordinates in scope. */
static void emit_element_offset(struct emitter *p, int k, bool of_row) {
    const struct schedule *s = p->s;
    if (rows_depends_on(operand_at(p, k), 0, s->nest.row_dims))
        text_add(p->code, " + at.b%d", k);
    if (!of_row && rows_depends_on(operand_at(p, k), s->nest.row_dims, s->nest.rank)) {
        text_add(p->code, " + ");
        rows_emit_offset(p, k, s->nest.row_dims, s->nest.rank);
    }
}

/* Selects the part that contains the coordinate: the first one that ends beyond it. */
static void emit_part(struct emitter *p, int k, bool of_row) {
    const struct operand *operand = operand_at(p, k);
    int last = (int)operand->parts->inputs.count - 1;
    text_add(p->code, "(");
    for (int part = 0; part <= last; part++) {
        if (part < last) {
            emit_part_coordinate(p, operand->coordinate, of_row);
            text_add(p->code, " < a.end%d_%d ? ", k, part);
        }
        text_add(p->code, "a.p%d_%d", k, part);
        emit_element_offset(p, part ? operand->coordinate + part : k, of_row);
        text_add(p->code, part < last ? " : " : ")");
    }
}

/* Emits the address of a row's first element, or of the element at the coordinates in scope. */
void rows_emit_address(struct emitter *p, int k, bool of_row) {
    if (operand_at(p, k)->parts) {
        emit_part(p, k, of_row);
        return;
    }
    text_add(p->code, "a.p%d", k);
    emit_element_offset(p, k, of_row);
}

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

void rows_emit_vector_field(struct emitter *p, int k) {
    text_add(p->code, "    raw<%s, %s> r%d;\n", type_of(p, k), fast_stride(p, k) ? "WIDTH" : "1", k);
}

bool rows_is_broadcast_to_rows(const struct emitter *p, int k) {
    return !rows_depends_on(operand_at(p, k), 0, p->s->nest.row_dims);
}

/* Loads a vector at an unaligned address: at.head elements after a multiple of 16 bytes, or at the operand's own
   offset. Reads the aligned words around the vector and shifts them. */
static void emit_load_across(struct emitter *p, int k, const char *into) {
    text_add(p->code, "    %sr%d = raw<%s, WIDTH>::load_across<N%s>(", into, k, type_of(p, k),
             p->s->overlap.is_used ? ", IS_LAST" : "");
    rows_emit_address(p, k, false);
    text_add(p->code, ", (int)(");
    if (p->s->overlap.is_used) {
        text_add(p->code, "at.b%d + ", k);
        rows_emit_offset(p, k, p->s->nest.row_dims, p->s->nest.rank);
    } else {
        text_add(p->code, "at.head");
    }
    text_add(p->code, "));\n");
}

/* Loads one vector of an operand: as one access, as one broadcast element, or element by element. Operands that all
   rows share have their own alignment if rows are unaligned. */
void rows_emit_load(struct emitter *p, int k, const char *into, bool once) {
    int64_t stride = fast_stride(p, k);
    if (stride > 1) {
        text_add(p->code, "    for (int e = 0; e < WIDTH; e++) %sr%d.put(e, (", into, k);
        rows_emit_address(p, k, false);
        text_add(p->code, ")[e * a.s%d_%d]);\n", k, schedule_fast_dim(p->s));
        return;
    }
    if (p->s->overlap.is_used ||
        (p->s->unaligned.most && p->s->unaligned.margin && stride && rows_is_broadcast_to_rows(p, k))) {
        emit_load_across(p, k, into);
        return;
    }
    text_add(p->code, "    %sr%d = raw<%s, %s>::load<", into, k, type_of(p, k), stride ? "WIDTH" : "1");
    text_add(p->code, !stride ? "false>(" : once ? "true, N>(" : "false, N>(");
    rows_emit_address(p, k, false);
    text_add(p->code, ");\n");
}

/* Stores `from`, a vector in scope. Contiguous elements are stored in one access by `function`, unless vectors overlap
   or elements are strided. */
void rows_emit_store(struct emitter *p, int k, const char *from, bool of_row, const char *function) {
    int64_t stride = fast_stride(p, k);
    if (stride == 1 && !p->s->overlap.is_used) {
        text_add(p->code, "    %s<%s, %s>(", function, type_of(p, k), of_row ? "WIDTH" : "N");
        rows_emit_address(p, k, of_row);
        text_add(p->code, ", %s);\n", from);
        return;
    }
    text_add(p->code, "    for (int e = 0; e < %s; e++) (", of_row ? "WIDTH" : "N");
    rows_emit_address(p, k, of_row);
    text_add(p->code, ")[");
    if (stride == 1)
        text_add(p->code, "e");
    else if (stride)
        text_add(p->code, "e * a.s%d_%d", k, schedule_fast_dim(p->s));
    else
        text_add(p->code, "0");
    text_add(p->code, "] = %s.at[e];\n", from);
}

/* True for operands that are loaded once for all passes. */
static bool is_resident(const struct emitter *p, int k) {
    return schedule_is_resident(p->s, k) && rows_is_element_load(p, k);
}

/* True for operands that all rows read at the same positions, or of which a thread needs the same vector throughout a
   row. */
static bool is_broadcast(const struct emitter *p, int k) {
    bool is_shared = p->s->memory.keeps_broadcast && !schedule_is_resident(p->s, k);
    return (is_shared || schedule_is_steady(p->s, k)) && rows_is_element_load(p, k);
}

/* Emits struct <name> and load_<name>(): one vector of each operand that `takes` selects. `row` is the parameter that
   identifies the row. */
static void emit_loader(struct emitter *p, const char *name, bool (*takes)(const struct emitter *, int),
                        const char *row, bool once) {
    text_add(p->code, "struct %s {\n", name);
    for (int k = 0; k < p->rows->operand_count; k++)
        if (takes(p, k))
            rows_emit_vector_field(p, k);
    for (int i = 0; i < p->rows->term_count && takes == is_resident; i++)
        if (p->rows->terms[i].is_needed && schedule_is_resident_term(p->s, &p->rows->terms[i]))
            text_add(p->code, "    float e%d[WIDTH];\n", p->rows->terms[i].name);
    text_add(p->code,
             "};\n\ntemplate <int N = WIDTH> DEVICE void load_%s(%s& in, const arguments& a, %s, position q) {\n", name,
             name, row);
    /* Operands shared by all rows are shifted to the start of this row's vectors. */
    if (p->s->unaligned.most && takes == is_broadcast)
        text_add(p->code, "    const base at = base_of(a, strip);\n");
    rows_emit_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (takes(p, k))
            rows_emit_load(p, k, "in.", once);
    text_add(p->code, "}\n\n");
}

/* Shared memory layout: a slot holds the vectors of one operand after those of another, SLOT_VECTORS each. `line` is a
   template that is expanded for each operand: # is its number, $ its type, @ its offset in the slot, % the bytes of a
   vector, ^ the address of its first vector in the row, ~ the address at the coordinates in scope. None of these
   characters occurs in CUDA code otherwise. */
static void emit_slots(struct emitter *p, const char *line) {
    /* Bytes of one vector of all preceding operands. */
    int64_t at = 0;
    for (int k = 0; k < p->rows->operand_count; k++) {
        if (!is_resident(p, k))
            continue;
        int64_t bytes = schedule_vector_bytes(p->s, k);
        for (const char *c = line; *c; c++)
            if (*c == '#')
                text_add(p->code, "%d", k);
            else if (*c == '$')
                text_add(p->code, "%s", type_of(p, k));
            else if (*c == '@')
                text_add(p->code, "%lld * SLOT_VECTORS", (long long)at);
            else if (*c == '%')
                text_add(p->code, "%lld", (long long)bytes);
            else if (*c == '^' || *c == '~') {
                rows_emit_address(p, k, *c == '^');
                text_add(p->code, *c == '^' && p->s->unaligned.most ? " + at.head" : "");
            } else
                text_add_chars(p->code, c, 1);
        at += bytes;
    }
}

/* Emits copies to shared memory: TMA copies of part of a row, or a thread's own copy (cp.async) of one vector. Only
   schemes with stages use them. */
static void emit_copies(struct emitter *p) {
    if (p->s->memory.scheme == MEMORY_STAGED || p->s->memory.scheme == MEMORY_PIPELINED) {
        text_add(p->code, "DEVICE void copy_kept(char* slot, u64* arrival, const arguments& a, const base& at, "
                          "position first, position vectors) {\n"
                          "    expect_bytes(arrival, (u32)vectors * KEPT_BYTES);\n");
        emit_slots(p, "    copy_bulk(slot + @, ^ + (i64)first * WIDTH, (u32)vectors * %, arrival);\n");
        text_add(p->code, "}\n\n");
    } else if (p->s->memory.scheme == MEMORY_COLUMNS_SHARED) {
        text_add(p->code, "DEVICE void copy_vector(char* slot, int index, const arguments& a, const base& at, "
                          "position q) {\n");
        rows_emit_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
        emit_slots(p, "    copy_pieces<%>(slot + @ + index * %, ~);\n");
        text_add(p->code, "}\n\n");
    }
}

/* Emits the L2 prefetch of part of a row. The function always exists because kernels call it; it is empty if nothing is
   prefetched. */
static void emit_prefetch(struct emitter *p) {
    text_add(p->code, "DEVICE void prefetch_kept(const arguments& a, const base& at, position first, "
                      "position vectors) {\n");
    if (p->s->grid.l2_distance || p->s->grid.l2_early || p->s->memory.scheme == MEMORY_PIPELINED)
        emit_slots(p, "    expect(^ + (i64)first * WIDTH, (u32)vectors * %);\n");
    text_add(p->code, "}\n\n");
}

/* forget_conversions makes the compiler convert again in the next pass instead of holding converted numbers in
   registers. */
void rows_emit_kept(struct emitter *p) {
    emit_loader(p, "kept", is_resident, "const base& at", true);
    emit_loader(p, "broadcast", is_broadcast, p->s->threads.segment ? "const base& at" : "i64 strip", false);
    emit_copies(p);
    emit_prefetch(p);
    if (p->s->memory.stages) {
        text_add(p->code, "DEVICE void read_kept(kept& in, const char* slot, int index) {\n");
        emit_slots(p, "    in.r# = raw<$, % / sizeof($)>::load<false>((const $*)(slot + @ + index * %));\n");
        text_add(p->code, "}\n\n");
    }
    text_add(p->code, "DEVICE void forget_conversions(kept& in) {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_resident(p, k))
            text_add(p->code, "    in.r%d.forget();\n", k);
    text_add(p->code, "}\n\n");
}
