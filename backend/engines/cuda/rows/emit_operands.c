/* SPDX-License-Identifier: Apache-2.0 */
/* Where the operands of a row program lie, and how vectors of them are loaded and stored, as CUDA text. */
#include "engines/cuda/rows/emit.h"

#include <stdio.h>

/* Others are numbers of rows, or coordinates. */
bool rows_is_element_load(const struct emitter *p, int k) {
    const struct operand *operand = operand_at(p, k);
    const struct term *term = rows_find(p->rows, operand->value);
    return !operand->is_store && operand->memory != MEMORY_INDEX && term->is_needed && term->spans;
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

/* Coordinates c<first> .. of a position that counts through dims first .. end; runs along the fast dim count as one. N
   is the length of a vector: WIDTH, or 1 of unaligned elements. 32 bits where all positions fit: a division by
   multiplication. Vectors count as one along the fast dim, hence * WIDTH. */
void rows_emit_coordinates(struct emitter *p, int first, int end, const char *position) {
    const struct schedule *s = p->s;
    int64_t count = 1;
    for (int i = first; i < end; i++)
        count *= s->nest.extents[i];
    bool small = count < INT32_MAX;
    const char *type = small ? "u32" : "i64";
    if (s->unaligned.most && first == s->nest.row_dims) {
        text_add(p->code, "    [[maybe_unused]] const i64 c%d = element_of<N>(at, %s);\n", first, position);
        return;
    }
    if (s->threads.segment && first == s->nest.row_dims) { /* the place in its segment is the thread's */
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

/* The part of an operand's offset that dims first .. end give. */
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

/* Vectors of a row; and where it has unaligned elements, the coordinate in the row of one of them, or of a vector.
   Elements of head and tail are counted through: those past the head lie behind all vectors. */
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

/* Where rows begin: offsets that all elements of a row share; and the unaligned elements before the first vector. head:
   elements to the next multiple of WIDTH, from the leader's offset, which is negative modulo a power of two. */
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

/* The coordinate along which a value has parts, of a row's first element or of the one at the coordinates in scope. */
static void emit_part_coordinate(struct emitter *p, int k, bool of_row) {
    const struct schedule *s = p->s;
    if (rows_depends_on(operand_at(p, k), 0, s->nest.row_dims))
        text_add(p->code, "at.b%d + ", k);
    if (of_row)
        text_add(p->code, "0");
    else
        rows_emit_offset(p, k, s->nest.row_dims, s->nest.rank);
}

/* From an operand's memory to a row's first element, or to the element at the coordinates in scope. */
static void emit_place(struct emitter *p, int k, bool of_row) {
    const struct schedule *s = p->s;
    if (rows_depends_on(operand_at(p, k), 0, s->nest.row_dims))
        text_add(p->code, " + at.b%d", k);
    if (!of_row && rows_depends_on(operand_at(p, k), s->nest.row_dims, s->nest.rank)) {
        text_add(p->code, " + ");
        rows_emit_offset(p, k, s->nest.row_dims, s->nest.rank);
    }
}

/* Of the parts, the one that ends behind the coordinate. */
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
        emit_place(p, part ? operand->coordinate + part : k, of_row);
        text_add(p->code, part < last ? " : " : ")");
    }
}

/* The address of a row's first element, or of the element at the coordinates in scope. */
void rows_emit_address(struct emitter *p, int k, bool of_row) {
    if (operand_at(p, k)->parts) {
        emit_part(p, k, of_row);
        return;
    }
    text_add(p->code, "a.p%d", k);
    emit_place(p, k, of_row);
}

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

void rows_emit_vector_field(struct emitter *p, int k) {
    text_add(p->code, "    raw<%s, %s> r%d;\n", type_of(p, k), fast_stride(p, k) ? "WIDTH" : "1", k);
}

bool rows_is_broadcast_to_rows(const struct emitter *p, int k) {
    return !rows_depends_on(operand_at(p, k), 0, p->s->nest.row_dims);
}

/* A run that begins anywhere: at.head elements behind whole 16 bytes, or as many as its offset says. Aligned words
   around the run are read, and shifted. */
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

/* One run of an operand: neighbours at once, a single one, or one by one. What rows that begin anywhere read alike lies
   otherwise than these. */
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

/* `from`: a run in scope. Neighbours in one access by `function`, unless runs overlap or are apart. */
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

/* Loaded once for all passes. */
static bool stays(const struct emitter *p, int k) { return schedule_keeps(p->s, k) && rows_is_element_load(p, k); }

/* What every row reads alike, at the same places; or what a thread reads alike of all of a row. */
static bool is_broadcast(const struct emitter *p, int k) {
    bool is = p->s->memory.keeps_broadcast && !schedule_keeps(p->s, k);
    return (is || schedule_is_steady(p->s, k)) && rows_is_element_load(p, k);
}

/* struct <name> and load_<name>(): one vector of each operand that `takes`; `row` is the parameter that says
   which row. */
static void emit_loader(struct emitter *p, const char *name, bool (*takes)(const struct emitter *, int),
                        const char *row, bool once) {
    text_add(p->code, "struct %s {\n", name);
    for (int k = 0; k < p->rows->operand_count; k++)
        if (takes(p, k))
            rows_emit_vector_field(p, k);
    for (int i = 0; i < p->rows->term_count && takes == stays; i++)
        if (p->rows->terms[i].is_needed && schedule_keeps_term(p->s, &p->rows->terms[i]))
            text_add(p->code, "    float e%d[WIDTH];\n", p->rows->terms[i].name);
    text_add(p->code,
             "};\n\ntemplate <int N = WIDTH> DEVICE void load_%s(%s& in, const arguments& a, %s, position q) {\n", name,
             name, row);
    /* What all rows share is shifted to where this row's vectors begin. */
    if (p->s->unaligned.most && takes == is_broadcast)
        text_add(p->code, "    const base at = base_of(a, strip);\n");
    rows_emit_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (takes(p, k))
            rows_emit_load(p, k, "in.", once);
    text_add(p->code, "}\n\n");
}

/* Shared memory: a slot has the vectors of one operand behind those of another, SLOT_VECTORS each. `line` is printed
   for each operand: # its number, $ its type, @ where it begins in a slot, % bytes of a vector, ^ the address of its
   first vector in the row, ~ the address at the coordinates in scope. A template of one letter for each thing that
   varies; none of these letters occurs in CUDA text otherwise. */
static void emit_slots(struct emitter *p, const char *line) {
    /* Bytes of a vector of all operands before this one. */
    int64_t at = 0;
    for (int k = 0; k < p->rows->operand_count; k++) {
        if (!stays(p, k))
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

/* To shared memory: the copy engine's way for part of a row, or a thread's own for one vector. Only schemes with stages
   have any. */
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

/* Part of a row, as far as L2. Always there, as kernels call it; empty where nothing is asked for. */
static void emit_prefetch(struct emitter *p) {
    text_add(p->code, "DEVICE void prefetch_kept(const arguments& a, const base& at, position first, "
                      "position vectors) {\n");
    if (p->s->grid.l2_distance || p->s->grid.l2_early || p->s->memory.scheme == MEMORY_PIPELINED)
        emit_slots(p, "    expect(^ + (i64)first * WIDTH, (u32)vectors * %);\n");
    text_add(p->code, "}\n\n");
}

/* forget_conversions: makes the compiler convert again in the next pass, instead of keeping converted numbers in
   registers. */
void rows_emit_kept(struct emitter *p) {
    emit_loader(p, "kept", stays, "const base& at", true);
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
        if (stays(p, k))
            text_add(p->code, "    in.r%d.forget();\n", k);
    text_add(p->code, "}\n\n");
}
