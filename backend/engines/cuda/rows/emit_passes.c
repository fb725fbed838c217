/* SPDX-License-Identifier: Apache-2.0 */
/* Emits the passes over the elements of a row: what each pass accumulates, and what it stores. */
#include "engines/cuda/rows/emit.h"

#include <stdio.h>

/* Names in core/reduce.cuh, by opcode. */
static const struct {
    const char *type;
    const char *second; /* field name of its second number */
} combinations[] = {
    [OPCODE_SUM] = {"sum", NULL},
    [OPCODE_PRODUCT] = {"product", NULL},
    [OPCODE_LEAST] = {"least", NULL},
    [OPCODE_LARGEST] = {"largest", NULL},
    [OPCODE_MOMENTS] = {"moments", "squares"},
    [OPCODE_WEIGHTS] = {"weights", "sum"},
};

/* Stage n + 1 is known when pass n ends. */
static bool closes(const struct term *term, int pass) {
    return term->is_needed && term_closes_pass(term) && term->stage == pass + 1;
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

/* Emits "sum<float>"; the reduction of softmax weights also states whether it may use the fast exponential. */
static void emit_reduction(struct emitter *p, const struct term *term) {
    text_add(p->code, "%s<%s%s>", combinations[term->opcode].type, term->type,
             term->opcode != OPCODE_WEIGHTS ? ""
             : p->rows->is_brief            ? ", true"
                                            : ", false");
}

/* Emits "reductions<sum<float>, largest<float>>" for a pass. */
static void emit_reductions(struct emitter *p, int pass) {
    bool any = false;
    text_add(p->code, "reductions<");
    for (int i = 0; i < p->rows->term_count; i++) {
        if (!closes(&p->rows->terms[i], pass))
            continue;
        text_add(p->code, any ? ", " : "");
        emit_reduction(p, &p->rows->terms[i]);
        any = true;
    }
    text_add(p->code, ">");
}

/* Emits the computation of a row's numbers from the reductions of a pass. member<i> counts only the reductions of this
   pass, in the order of terms, as emit_reductions lists them. Moments and weights give two numbers, the second under
   the next name. */
static void emit_close(struct emitter *p, int pass) {
    text_add(p->code, "    static DEVICE void close(const total& t, row& r, const arguments& a) {\n");
    for (int i = 0, member = 0; i < p->rows->term_count; i++) {
        const struct term *term = &p->rows->terms[i];
        if (!closes(term, pass))
            continue;
        text_add(p->code, "    r.v%d = member<%d>(t).number;\n", term->name, member);
        if (combinations[term->opcode].second)
            text_add(p->code, "    r.v%d = member<%d>(t).%s;\n", term->name + 1, member,
                     combinations[term->opcode].second);
        member++;
    }
    rows_emit_row_terms(p, pass + 1);
    text_add(p->code, "    }\n");
}

/* Emits access to the partial results that earlier launches wrote for a pass. IS_JOINED: one partial result per row. */
static void emit_left(struct emitter *p, int pass) {
    if (pass < p->stage->closed)
        text_add(
            p->code,
            "    static DEVICE const total* left_by_splits(const arguments& a) { return (const total*)a.total%d; }\n"
            "    static DEVICE i64 splits(const arguments& a) { return a.splits%d; }\n"
            "    static constexpr bool IS_JOINED = %s;\n",
            pass, pass, p->stage->split_counts[pass] == 1 ? "true" : "false");
}

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

/* Resident operands are not loaded again. */
static bool is_loaded_by_pass(const struct emitter *p, int k, const bool *is_evaluated) {
    return rows_is_element_load(p, k) && !schedule_is_resident(p->s, k) && !schedule_is_steady(p->s, k) &&
           is_evaluated[rows_find(p->rows, operand_at(p, k)->value) - p->rows->terms];
}

/* `once`: streamed elements are not worth caching in L1. The coordinates are those of vector q of the row. */
static void emit_inputs(struct emitter *p, const bool *is_evaluated) {
    text_add(p->code, "    struct inputs {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_loaded_by_pass(p, k, is_evaluated))
            rows_emit_vector_field(p, k);
    text_add(p->code, "    };\n    template <int N = WIDTH, bool IS_LAST = false>\n"
                      "    static DEVICE void load(inputs& in, const arguments& a, const base& at, position q) {\n");
    /* Coordinates of the vector within the row. */
    rows_emit_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_loaded_by_pass(p, k, is_evaluated))
            rows_emit_load(p, k, "in.",
                           (!p->s->memory.steps || p->s->memory.scheme == MEMORY_CHANNELS) &&
                               !rows_is_broadcast_to_rows(p, k));
    text_add(p->code, "    }\n");
}

/* Reads an element from its source: resident data, data shared by all rows, or what the pass loaded itself. */
static void emit_element_load(struct emitter *p, const struct term *term) {
    int k = term->operand;
    const struct operand *operand = operand_at(p, k);
    const struct schedule *s = p->s;
    bool is_broadcast = s->memory.keeps_broadcast || schedule_is_steady(s, k);
    const char *from = schedule_is_resident(s, k) ? "own" : is_broadcast ? "all" : "in";
    /* A coordinate is the sum of the row's contribution, the vector's, and e. */
    if (operand->memory == MEMORY_INDEX) {
        text_add(p->code, "    const i64 v%d = ", term->name);
        if (rows_depends_on(operand, 0, s->nest.row_dims))
            text_add(p->code, "at.b%d + ", k);
        text_add(p->code, "o.o%d", k);
        if (fast_stride(p, k) == 1)
            text_add(p->code, " + e");
        else if (fast_stride(p, k))
            text_add(p->code, " + e * a.s%d_%d", k, schedule_fast_dim(s));
        text_add(p->code, ";\n");
        return;
    }
    text_add(p->code, "    const %s v%d = %s->r%d.at(%s);\n", term->type, term->name, from, k,
             fast_stride(p, k) ? "e" : "0");
}

static bool is_index_of_pass(const struct emitter *p, int k, const bool *is_evaluated) {
    const struct operand *operand = operand_at(p, k);
    return operand->memory == MEMORY_INDEX && !operand->is_store &&
           is_evaluated[rows_find(p->rows, operand->value) - p->rows->terms];
}

/* Index operands have no memory to load from: locate() computes their offsets in the row, once per vector. The struct
   is empty in passes that read no coordinates. N is the number of elements of the vector at q: WIDTH, or 1 in the
   unaligned head and tail, whose positions are counted separately. */
static void emit_index_offsets(struct emitter *p, const bool *is_evaluated) {
    bool any = false;
    text_add(p->code, "    struct places {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_index_of_pass(p, k, is_evaluated)) {
            text_add(p->code, "    i64 o%d;\n", k);
            any = true;
        }
    text_add(p->code, "    };\n    template <int N>\n"
                      "    static DEVICE void locate(places& o, const arguments& a, const base& at, position q) {\n");
    if (any)
        rows_emit_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++) {
        if (!is_index_of_pass(p, k, is_evaluated))
            continue;
        text_add(p->code, "    o.o%d = ", k);
        rows_emit_offset(p, k, p->s->nest.row_dims, p->s->nest.rank);
        text_add(p->code, ";\n");
    }
    text_add(p->code, "    }\n");
}

/* Only the storing pass stores elements. */
static bool stores_elements(const struct emitter *p, int k, int pass) {
    const struct operand *operand = operand_at(p, k);
    return pass == p->s->passes.storing && operand->is_store && rows_find(p->rows, operand->value)->spans;
}

/* Emits where an element goes: into reductions, into sums of columns, and into the results of its vector. `inner`
   indexes the elements that are accumulated together. */
static void emit_element_results(struct emitter *p, int pass) {
    const struct rows *rows = p->rows;
    for (int i = 0, member = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass))
            text_add(p->code, "    member<%d>(x.of)[inner] = v%d;\n", member++,
                     rows->terms[rows->terms[i].uses[0]].name);
    for (int k = 0, column = 0; k < rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        const struct term *term = rows_find(rows, operand->value);
        bool is_summed = operand->is_store && term_is_column_sum(term);
        if (is_summed && pass == term->stage)
            text_add(p->code, "    columns->at[%d].at[e] += v%d;\n", column, rows->terms[term->uses[0]].name);
        else if (stores_elements(p, k, pass))
            text_add(p->code, "    w.w%d.at[e] = from<%s>::number(as_number(v%d));\n", k, type_of(p, k),
                     operand->value);
        column += is_summed; /* sums of other passes count, too */
    }
}

/* Terms are emitted in the order of evaluation, so that each finds its operands in scope. */
static void emit_element(struct emitter *p, int pass, const bool *is_evaluated) {
    text_add(
        p->code,
        "    template <int M, int N>\n    static DEVICE void element(values<M>& x, int inner, results<N>& w, kept* "
        "own, const broadcast* all, const inputs* in, const row& r, column* columns, const places& o, "
        "const arguments& a, const base& at, int e) {\n");
    for (int i = 0; i < p->rows->term_count; i++) {
        const struct term *term = &p->rows->terms[i];
        if (!is_evaluated[i])
            continue;
        /* Numbers of the row, under the names that formulas use. */
        for (int n = 0; n < term->names && !term->spans; n++)
            text_add(p->code, "    [[maybe_unused]] const %s v%d = r.v%d;\n", term->type, term->name + n,
                     term->name + n);
        /* Computed in one pass and read in later ones. */
        bool stays = schedule_is_resident_term(p->s, term);
        if (stays && term->stage < pass)
            text_add(p->code, "    const float v%d = own->e%d[e];\n", term->name, term->name);
        else if (term->spans && term->kind == TERM_LOAD)
            emit_element_load(p, term);
        else if (term->spans)
            rows_emit_term(p, term);
        if (stays && term->stage == pass)
            text_add(p->code, "    own->e%d[e] = v%d;\n", term->name, term->name);
    }
    emit_element_results(p, pass);
    text_add(p->code, "    }\n");
}

/* Emits the results of a vector and their stores: one access if the elements are contiguous. */
static void emit_results(struct emitter *p, int pass) {
    /* N is WIDTH, or 1 in head and tail. */
    text_add(p->code, "    template <int N> struct results {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (stores_elements(p, k, pass))
            text_add(p->code, "    run<%s, N> w%d;\n", type_of(p, k), k);
    text_add(p->code,
             "    };\n    template <int N>\n"
             "    static DEVICE void store(const results<N>& w, const arguments& a, const base& at, position q) "
             "{\n");
    if (pass == p->s->passes.storing)
        rows_emit_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++) {
        char from[16];
        snprintf(from, sizeof from, "w.w%d", k);
        if (stores_elements(p, k, pass))
            rows_emit_store(p, k, from, false, p->s->memory.stores_evict_first ? "put_away" : "stream_out");
    }
    text_add(p->code, "    }\n");
}

/* Describes a pass: "pass 1 of 3; v6 = sum<float>; stores y of softmax". A comment in the kernel source for readers of
   WEFT_DUMP_DIR. */
static void emit_purpose(struct emitter *p, int pass) {
    text_add(p->code, "// pass %d of %d", pass, p->s->passes.count);
    for (int i = 0; i < p->rows->term_count; i++)
        if (closes(&p->rows->terms[i], pass)) {
            text_add(p->code, "; v%d = ", p->rows->terms[i].name);
            emit_reduction(p, &p->rows->terms[i]);
        }
    for (int k = 0; k < p->rows->operand_count; k++)
        if (stores_elements(p, k, pass) && p->rows->operands[k].memory >= 0) {
            text_add(p->code, "; stores ");
            emit_origin(p->code, p->rows->region, p->rows->operands[k].memory);
        }
    text_add(p->code, "\n");
}

/* Each pass is a specialization that derives from its reductions: kernels are templates over it. */
void rows_emit_passes(struct emitter *p) {
    text_add(p->code, "template <int P> struct pass;\n\n");
    for (int pass = 0; pass < p->s->passes.count; pass++) {
        /* Indexed by term. */
        bool is_evaluated[TERMS_MAX];
        schedule_terms_of_pass(p->s, pass, is_evaluated);
        emit_purpose(p, pass);
        text_add(p->code, "template <> struct pass<%d> : ", pass);
        emit_reductions(p, pass);
        text_add(p->code, " {\n");
        emit_close(p, pass);
        emit_left(p, pass);
        emit_inputs(p, is_evaluated);
        emit_index_offsets(p, is_evaluated);
        emit_results(p, pass);
        emit_element(p, pass, is_evaluated);
        text_add(p->code, "};\n\n");
    }
}

/* ---- Sums of columns --------------------------------------------------------------------------------------------- */

/* Each block writes its own sums, `block` elements after those of the previous block: no atomics, so every run adds in
   the same order. k counts the sums in the order of their stores. */
void rows_emit_columns(struct emitter *p) {
    text_add(p->code, "template <int N = WIDTH>\nDEVICE void store_column(int k, const run<column_t, WIDTH>& from, "
                      "const arguments& a, i64 strip, position q) {\n");
    if (p->s->unaligned.most || p->s->threads.segment)
        text_add(p->code, "    const base at = base_of(a, strip);\n");
    rows_emit_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0, column = 0; k < p->rows->operand_count; k++) {
        if (!operand_at(p, k)->is_store || !term_is_column_sum(rows_find(p->rows, operand_at(p, k)->value)))
            continue;
        text_add(p->code, "    if (k == %d) {\n    auto* const to = a.p%d + blockIdx.x / CLUSTER * a.block%d + ",
                 column++, k, k);
        rows_emit_offset(p, k, p->s->nest.row_dims, p->s->nest.rank);
        if (fast_stride(p, k) > 1)
            text_add(p->code, ";\n    for (int e = 0; e < WIDTH; e++) to[e * a.s%d_%d] = from.at[e];\n    }\n", k,
                     schedule_fast_dim(p->s));
        else if (p->s->unaligned.most)
            text_add(p->code, ";\n    for (int e = 0; e < N; e++) to[e] = from.at[e];\n    }\n");
        else
            text_add(p->code, ";\n    store_run<column_t, WIDTH>(to, from);\n    }\n");
    }
    text_add(p->code, "}\n\n");
}
