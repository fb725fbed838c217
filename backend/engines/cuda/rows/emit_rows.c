/* SPDX-License-Identifier: Apache-2.0 */
/* Emits the numbers of rows: what is loaded once per row, computed from the passes, and stored. */
#include "engines/cuda/rows/emit.h"

#include <stdio.h>
#include <string.h>

/* ---- Numbers of the row ------------------------------------------------------------------------------------------ */

/* Emits struct row: the numbers of one row that passes or stores read. */
static void emit_row_struct(struct emitter *p) {
    text_add(p->code, "struct row {\n");
    for (int i = 0; i < p->rows->term_count; i++)
        for (int n = 0; n < p->rows->terms[i].names && rows_is_field(p->rows, &p->rows->terms[i]); n++)
            text_add(p->code, "    %s v%d;\n", p->rows->terms[i].type, p->rows->terms[i].name + n);
    text_add(p->code, "};\n\n");
}

/* Formulas as CUDA text: A, B, C and D are arguments, T is the compute type, S the storage type. Function names must be
   in lower case, because the letters A to D, S and T are replaced wherever they occur. */
static const char *const formulas[] = {
    [OPCODE_COPY] = "A",
    [OPCODE_ADD] = "A + B",
    [OPCODE_SUBTRACT] = "A - B",
    [OPCODE_MULTIPLY] = "A * B",
    [OPCODE_DIVIDE] = "A / B",
    [OPCODE_SHARE] = "share(A, B)",
    [OPCODE_NEGATE] = "-A",
    [OPCODE_ABSOLUTE] = "fabs(A)",
    [OPCODE_ROOT] = "sqrt(A)",
    [OPCODE_INVERSE_ROOT] = "inverse_root(A)",
    [OPCODE_LOGARITHM] = "log(A)",
    [OPCODE_LARGER] = "larger(A, B)",
    [OPCODE_IF_GREATER] = "A > B ? C : D",
    [OPCODE_IF_EQUAL] = "A == B ? C : D",
    [OPCODE_SHIFT] = "shift_of(A)",
    [OPCODE_WEIGHT] = "weight(A, B)",
    [OPCODE_ROW_WEIGHT] = "weight(A, B)",
    [ROWS_CONVERT] = "as<T>::of(A)",
    [ROWS_ROUND] = "rounded<S>(A)",
};

/* Integer arithmetic wraps around, and its functions are exact. All other formulas are the same as for floats. */
static const char *integer_formula(int opcode) {
    return opcode == OPCODE_MULTIPLY   ? "(i64)((u64)A * (u64)B)"
           : opcode == OPCODE_ABSOLUTE ? "magnitude(A)"
           : opcode == OPCODE_ROOT     ? "integer_root(A)"
                                       : formulas[opcode];
}

/* %.17g is exact for every double. Lengths are arguments, because sizes are not part of the text. */
static void emit_argument(struct emitter *p, const char *type, const struct term_argument *argument) {
    if (argument->name >= 0)
        text_add(p->code, "v%d", argument->name);
    else if (argument->literal == OPCODE_NUMBER)
        text_add(p->code, "(%s)%.17g", type, argument->number);
    else if (argument->literal == OPCODE_LENGTH)
        text_add(p->code, "(%s)a.length", type);
    else
        text_add(p->code, "(%s)(a.length ? a.length : 1)", type);
}

/* is_brief: results have at most 16 bits, which hide the error of the fast exponential. */
void rows_emit_term(struct emitter *p, const struct term *term) {
    if (term->kind == TERM_NODE) {
        formula_emit(p->code, p->rows->graph, term->node);
        return;
    }
    bool is_exact = strcmp(term->type, "i64") == 0;
    const char *formula = is_exact ? integer_formula(term->opcode) : formulas[term->opcode];
    if (term->opcode == OPCODE_WEIGHT && p->rows->is_brief)
        formula = "brief_weight(A, B)";
    text_add(p->code, "    const %s v%d = ", term->type, term->name);
    /* Placeholder letters are replaced; all other characters are copied. */
    for (const char *at = formula; *at; at++)
        if (*at >= 'A' && *at <= 'D')
            emit_argument(p, term->type, &term->arguments[*at - 'A']);
        else if (*at == 'T' || *at == 'S')
            text_add(p->code, "%s", *at == 'T' ? term->type : term->stored);
        else
            text_add_chars(p->code, at, 1);
    text_add(p->code, ";\n");
}

/* Emits the row's terms that become known at a stage, from the fields of earlier stages. Each field is copied into
   scope once, and the terms that are fields themselves are written back. */
void rows_emit_row_terms(struct emitter *p, int stage) {
    const struct rows *rows = p->rows;
    bool in_scope[TERMS_MAX] = {false};
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        bool is_formula = term->kind == TERM_NODE || term->kind == TERM_FORMULA;
        if (!term->is_needed || term->spans || term->stage != stage || !is_formula)
            continue;
        /* Reads a row's field once for all formulas of this stage. */
        for (int u = 0; u < term->use_count; u++) {
            const struct term *used = &rows->terms[term->uses[u]];
            for (int n = 0; n < used->names && !in_scope[term->uses[u]]; n++)
                text_add(p->code, "    const %s v%d = r.v%d;\n", used->type, used->name + n, used->name + n);
            in_scope[term->uses[u]] = true;
        }
        rows_emit_term(p, term);
        if (rows_is_field(rows, term))
            text_add(p->code, "    r.v%d = v%d;\n", term->name, term->name);
        in_scope[i] = true;
    }
}

/* True for a number that is loaded once per row, before its elements. */
static bool is_entry(const struct emitter *p, const struct term *term) {
    return rows_is_field(p->rows, term) && term->kind == TERM_LOAD &&
           operand_at(p, term->operand)->memory != MEMORY_INDEX;
}

/* Interleaved rows have a vector of numbers if these are contiguous, and a single number if all rows share it. Other
   numbers are loaded once per strip. */
static bool has_number_for_each(const struct emitter *p, int k) { return p->s->nest.is_columns && fast_stride(p, k); }

static const char *input_width(const struct emitter *p, int k) { return has_number_for_each(p, k) ? "WIDTH" : "1"; }

/* Emits struct row_inputs, the raw numbers of the rows. Loads come first and conversions later (open_rows), so that all
   loads of a strip are in flight at once. */
static void emit_entry(struct emitter *p) {
    /* raw<> holds the stored representation, without conversion. */
    text_add(p->code, "struct row_inputs {\n");
    for (int i = 0; i < p->rows->term_count; i++)
        if (is_entry(p, &p->rows->terms[i])) {
            int k = p->rows->terms[i].operand;
            text_add(p->code, "    raw<%s, %s> r%d%s;\n", type_of(p, k), input_width(p, k), k,
                     k == p->rows->sampled ? "[SAMPLES]" : "");
        }
    text_add(p->code, "};\n\nDEVICE void load_row_inputs(row_inputs& in, const arguments& a, const base& at) {\n");
    for (int i = 0; i < p->rows->term_count; i++) {
        int k = p->rows->terms[i].operand;
        if (!is_entry(p, &p->rows->terms[i]))
            continue;
        /* Numbers of interleaved rows that are strided are loaded separately. */
        if (p->s->nest.is_columns && fast_stride(p, k) > 1) {
            text_add(p->code, "    for (int l = 0; l < WIDTH; l++) in.r%d.put(l, (", k);
            rows_emit_address(p, k, true);
            text_add(p->code, ")[l * a.s%d_%d]);\n", k, schedule_fast_dim(p->s));
            continue;
        }
        /* SAMPLES elements of the row at intervals of sample_step. */
        if (k == p->rows->sampled)
            text_add(p->code,
                     "    #pragma unroll\n    for (int i = 0; i < SAMPLES; i++) in.r%d[i] = raw<%s, 1>::load<false>(",
                     k, type_of(p, k));
        else
            text_add(p->code, "    in.r%d = raw<%s, %s>::load<false>(", k, type_of(p, k), input_width(p, k));
        rows_emit_address(p, k, true);
        text_add(p->code, k == p->rows->sampled ? " + i * a.sample_step);\n" : ");\n");
    }
    text_add(p->code, "}\n\n");
}

/* Emits the step from the first of the interleaved rows to the l-th. Empty if they share the number, or if rows are not
   interleaved. */
static void emit_step(struct emitter *p, int k) {
    if (p->s->nest.is_columns && fast_stride(p, k) == 1)
        text_add(p->code, " + l");
    else if (p->s->nest.is_columns && fast_stride(p, k))
        text_add(p->code, " + l * a.s%d_%d", k, schedule_fast_dim(p->s));
}

/* Emits a coordinate of the row as a number. */
static void emit_row_index(struct emitter *p, const struct term *term) {
    int k = term->operand;
    text_add(p->code, "    r.v%d = 0", term->name);
    if (rows_depends_on(operand_at(p, k), 0, p->s->nest.row_dims))
        text_add(p->code, " + at.b%d", k);
    emit_step(p, k);
    text_add(p->code, ";\n");
}

/* Emits open_rows(): computes the fields that need no pass from the loaded numbers. */
static void emit_open(struct emitter *p) {
    text_add(p->code, "DEVICE void open_rows(row* now, const row_inputs& in, const arguments& a, const base& at) {\n"
                      "    #pragma unroll\n    for (int l = 0; l < (COLUMNS ? WIDTH : 1); l++) {\n"
                      "    [[maybe_unused]] row& r = now[l];\n");
    for (int i = 0; i < p->rows->term_count; i++) {
        const struct term *term = &p->rows->terms[i];
        if (is_entry(p, term) && term->operand == p->rows->sampled)
            text_add(p->code,
                     "    %s some[SAMPLES];\n    for (int i = 0; i < SAMPLES; i++) some[i] = in.r%d[i].at(0);\n"
                     "    r.v%d = mean_of(some);\n",
                     type_of(p, term->operand), term->operand, term->name);
        /* Fields keep the storage type; they are converted where they are used. */
        else if (is_entry(p, term))
            text_add(p->code, "    r.v%d = in.r%d.at(%s);\n", term->name, term->operand,
                     has_number_for_each(p, term->operand) ? "l" : "0");
        else if (rows_is_field(p->rows, term) && term->kind == TERM_LOAD)
            emit_row_index(p, term);
    }
    rows_emit_row_terms(p, 0);
    text_add(p->code, "    }\n}\n\n");
}

/* Emits store_rows(): one vector for interleaved rows; the channels scheme has store_row(). */
void rows_emit_row_stores(struct emitter *p) {
    /* The channels scheme stores rows separately, see emit_one_row. */
    if (p->s->memory.scheme == MEMORY_CHANNELS)
        return;
    text_add(p->code, "DEVICE void store_rows(const row* now, const arguments& a, const base& at) {\n");
    for (int k = 0; k < p->rows->operand_count && p->stage->has_row_stores; k++) {
        const struct operand *operand = operand_at(p, k);
        const struct term *term = rows_find(p->rows, operand->value);
        if (!operand->is_store || !rows_is_field(p->rows, term))
            continue;
        if (p->s->nest.is_columns) {
            text_add(p->code,
                     "    run<%s, WIDTH> w%d;\n    for (int e = 0; e < WIDTH; e++) w%d.at[e] = "
                     "from<%s>::number(as_number(now[e].v%d));\n",
                     type_of(p, k), k, k, type_of(p, k), operand->value);
            char from[16];
            snprintf(from, sizeof from, "w%d", k);
            rows_emit_store(p, k, from, true, "store_run");
        } else {
            text_add(p->code, "    *(");
            rows_emit_address(p, k, true);
            text_add(p->code, ") = from<%s>::number(as_number(now[0].v%d));\n", type_of(p, k), operand->value);
        }
    }
    text_add(p->code, "}\n\n");
}

/* Emits the same for a single row: the first of a vector of interleaved rows, or the l-th after it. Channels are opened
   separately: each thread computes the numbers of one and shares them through shared memory. */
static void emit_one_row(struct emitter *p) {
    text_add(p->code, "DEVICE void open_row(row& r, const arguments& a, const base& at, int l) {\n");
    for (int i = 0; i < p->rows->term_count; i++) {
        const struct term *term = &p->rows->terms[i];
        int k = term->operand;
        if (is_entry(p, term)) {
            text_add(p->code, "    {\n    const %s* p = ", type_of(p, k));
            rows_emit_address(p, k, true);
            text_add(p->code, ";\n    r.v%d = %s(p", term->name, k == p->rows->sampled ? "sample" : "*");
            emit_step(p, k);
            text_add(p->code, "%s);\n    }\n", k == p->rows->sampled ? ", a.sample_step" : "");
        } else if (rows_is_field(p->rows, term) && term->kind == TERM_LOAD) {
            emit_row_index(p, term);
        }
    }
    rows_emit_row_terms(p, 0);
    text_add(p->code, "}\n\nDEVICE void store_row(const row& r, const arguments& a, const base& at, int l) {\n");
    for (int k = 0; k < p->rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        if (!operand->is_store || !rows_is_field(p->rows, rows_find(p->rows, operand->value)))
            continue;
        text_add(p->code, "    *(");
        rows_emit_address(p, k, true);
        emit_step(p, k);
        text_add(p->code, ") = from<%s>::number(as_number(r.v%d));\n", type_of(p, k), operand->value);
    }
    text_add(p->code, "}\n\n");
}

/* Channels are opened separately, other rows by the strip. */
void rows_emit_row_numbers(struct emitter *p) {
    emit_row_struct(p);
    if (p->s->memory.scheme == MEMORY_CHANNELS) {
        emit_one_row(p);
    } else {
        emit_entry(p);
        emit_open(p);
    }
}
