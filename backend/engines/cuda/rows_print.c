/* SPDX-License-Identifier: Apache-2.0 */
/* A walk as CUDA text: what kernels/rows.cuh expects in front of it. Terms are named v<name> wherever they are in
   scope; what differs from row to row is a field of struct row. */
#include "engines/cuda/rows_walk.h"

#include <stdio.h>
#include <string.h>

/* The launch that is being printed. */
struct stage {
    int recalled, passes_end, join;
    bool is_split, has_row_stores;
    int64_t left;        /* place of the totals that it leaves; -1: none */
    int64_t *totals;     /* per pass: where the totals of the parts, or the joined ones, are */
    int64_t *part_count; /* and how many */
};

struct printer {
    const struct walk *walk;
    const struct rows *rows;
    const struct stage *stage;
    struct kernel_print *print;
    struct text *code;
};

static const struct {
    const char *type;
    const char *second; /* name of its second number's field */
} totals[] = {
    [TOTAL_SUM] = {"sum", NULL},          [TOTAL_PRODUCT] = {"product", NULL}, [TOTAL_LEAST] = {"least", NULL},
    [TOTAL_LARGEST] = {"largest", NULL},  [TOTAL_PEAK] = {"peak", NULL},       [TOTAL_MOMENTS] = {"moments", "squares"},
    [TOTAL_WEIGHTS] = {"weights", "sum"},
};

static bool closes(const struct term *term, int pass) {
    return term->is_needed && term->kind == TERM_TOTAL && term->total != TOTAL_COLUMN && term->stage == pass + 1;
}

static bool is_column(const struct term *term) { return term->kind == TERM_TOTAL && term->total == TOTAL_COLUMN; }

static const struct operand *operand_at(const struct printer *p, int k) { return &p->walk->operands[k]; }

static const char *type_of(const struct printer *p, int k) { return cuda_type_name(operand_at(p, k)->type); }

/* A load that elements want. */
static bool is_element_load(const struct printer *p, int k) {
    const struct operand *operand = operand_at(p, k);
    const struct term *term = rows_find(p->rows, operand->value);
    return !operand->is_store && operand->memory != MEMORY_INDEX && term->is_needed && term->spans;
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

static void print_operand_fields(struct printer *p, int k) {
    const struct operand *operand = operand_at(p, k);
    char name[32];
    snprintf(name, sizeof name, "p%d", k);
    if (operand->memory >= 0)
        print_pointer(p->print, operand->type, operand->memory, dtype_bytes(operand->type, operand->offset), name);
    else if (operand->memory == MEMORY_SCRATCH)
        print_scratch(p->print, type_of(p, k), dtype_bytes(operand->type, operand->offset), name);
    for (int i = 0; i < p->walk->rank; i++) {
        snprintf(name, sizeof name, "s%d_%d", k, i);
        if (operand->strides[i] > 1 || (operand->strides[i] == 1 && i != walk_fast_dim(p->walk)))
            print_number(p->print, operand->strides[i], name);
    }
    if (is_column(rows_find(p->rows, operand->value))) {
        snprintf(name, sizeof name, "block%d", k);
        print_number(p->print, rows_length(p->rows), name);
    }
}

/* The extent along which positions count, in runs. */
static int64_t extent_in_runs(const struct walk *walk, int dim) {
    return dim == walk_fast_dim(walk) ? walk->extents[dim] / walk->run : walk->extents[dim];
}

static void print_fields(struct printer *p) {
    const struct walk *walk = p->walk;
    const struct {
        const char *name;
        int64_t number;
    } numbers[] = {
        {"jobs", walk->tiles * (p->stage->is_split ? walk->parts : 1)},
        {"groups", walk->groups},
        {"runs", walk->runs},
        {"rows", rows_count(p->rows)},
        {"length", rows_length(p->rows)},
        {"parts", walk->parts},
        {"part_runs", walk->part_runs},
    };
    char name[32];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        print_number(p->print, numbers[i].number, numbers[i].name);
    print_scratch(p->print, "char", p->stage->left >= 0 ? p->stage->left : 0, "left");
    for (int pass = 0; pass < p->stage->recalled; pass++) {
        snprintf(name, sizeof name, "total%d", pass);
        print_scratch(p->print, "char", p->stage->totals[pass], name);
        snprintf(name, sizeof name, "parts%d", pass);
        print_number(p->print, p->stage->part_count[pass], name);
    }
    for (int i = 0; i < walk->rank; i++) {
        snprintf(name, sizeof name, "extent%d", i);
        if (i != 0 && i != walk->kept)
            print_divisor(p->print, extent_in_runs(walk, i), name);
    }
    for (int k = 0; k < p->rows->operand_count; k++)
        if (operand_at(p, k)->is_store || rows_find(p->rows, operand_at(p, k)->value)->is_needed)
            print_operand_fields(p, k);
}

static void print_constants(struct printer *p) {
    const struct walk *walk = p->walk;
    const struct stage *stage = p->stage;
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {
        {"RUN", walk->run},
        {"COLUMNS", walk->is_columns},
        {"TEAM", walk->team},
        {"ACROSS", walk->across},
        {"THREADS", walk->threads},
        {"MIN_BLOCKS", walk->min_blocks},
        {"STEPS", stage->join >= 0 ? 0 : walk->steps},
        {"UNROLL", walk->unroll},
        {"RECALLED", stage->recalled},
        {"PASSES_END", stage->passes_end},
        {"JOIN", stage->join},
        {"IS_SPLIT", stage->is_split},
        {"IS_REVERSED", stage->is_split && stage->recalled > 0},
        {"BETWEEN", stage->is_split && stage->recalled > 0 ? -walk->team : walk->team},
        {"HAS_ROW_STORES", stage->has_row_stores},
        {"COLUMN_TOTALS", walk->column_totals},
        {"AHEAD", walk->ahead},
        {"FORGETS", walk->forgets},
    };
    text_add(&p->print->constants, "#include \"lib/stream.cuh\"\n#include \"lib/reduce.cuh\"\n\n");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        print_constant(p->print, constants[i].name, constants[i].value);
    text_add(&p->print->constants, "using position = %s;\n", walk->runs < INT32_MAX / 2 ? "int" : "i64");
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

/* Coordinates c<first> .. of a position that counts through dims first .. end; runs along the fast dim count as one. */
static void print_coordinates(struct printer *p, int first, int end, const char *position) {
    const struct walk *walk = p->walk;
    int64_t count = 1;
    for (int i = first; i < end; i++)
        count *= walk->extents[i];
    bool small = count < INT32_MAX;
    const char *type = small ? "u32" : "i64";
    text_add(p->code, "    %s rest%d = (%s)(%s);\n", type, first, type, position);
    for (int i = end - 1; i > first; i--) {
        if (small)
            text_add(p->code, "    const u32 q%d = divide(rest%d, a.extent%d);\n", i, first, i);
        else
            text_add(p->code, "    const i64 q%d = rest%d / a.extent%d.value;\n", i, first, i);
        text_add(p->code, "    const i64 c%d = (i64)(rest%d - q%d * a.extent%d.value)%s;\n    rest%d = q%d;\n", i,
                 first, i, i, i == walk_fast_dim(walk) ? " * RUN" : "", first, i);
    }
    text_add(p->code, "    const i64 c%d = (i64)rest%d%s;\n", first, first,
             first == walk_fast_dim(walk) ? " * RUN" : "");
}

static bool depends_on(const struct operand *operand, int first, int end) {
    for (int i = first; i < end; i++)
        if (operand->strides[i])
            return true;
    return false;
}

/* The part of an operand's offset that dims first .. end give. */
static void print_offset(struct printer *p, int k, int first, int end) {
    const struct operand *operand = operand_at(p, k);
    bool any = false;
    for (int i = first; i < end; i++) {
        if (!operand->strides[i])
            continue;
        if (operand->strides[i] == 1 && i == walk_fast_dim(p->walk))
            text_add(p->code, "%sc%d", any ? " + " : "", i);
        else
            text_add(p->code, "%sc%d * a.s%d_%d", any ? " + " : "", i, k, i);
        any = true;
    }
    if (!any)
        text_add(p->code, "0");
}

/* Where rows begin: offsets that all elements of a row share. */
static void print_place(struct printer *p) {
    const struct walk *walk = p->walk;
    text_add(p->code, "struct place {\n    i64 group;\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (depends_on(operand_at(p, k), 0, walk->kept))
            text_add(p->code, "    i64 b%d;\n", k);
    text_add(p->code, "};\n\nDEVICE place place_of(const arguments& a, i64 group) {\n    place at;\n"
                      "    at.group = group;\n");
    print_coordinates(p, 0, walk->kept, "group");
    for (int k = 0; k < p->rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        if (!depends_on(operand, 0, walk->kept))
            continue;
        bool is_used = operand->is_store || rows_find(p->rows, operand->value)->is_needed;
        text_add(p->code, "    at.b%d = ", k);
        if (is_used)
            print_offset(p, k, 0, walk->kept);
        else
            text_add(p->code, "0");
        text_add(p->code, ";\n");
    }
    text_add(p->code, "    return at;\n}\n\n");
}

/* The address of a row's first element, or of the element at the coordinates in scope. */
static void print_address(struct printer *p, int k, bool of_row) {
    const struct walk *walk = p->walk;
    text_add(p->code, "a.p%d", k);
    if (depends_on(operand_at(p, k), 0, walk->kept))
        text_add(p->code, " + at.b%d", k);
    if (!of_row && depends_on(operand_at(p, k), walk->kept, walk->rank)) {
        text_add(p->code, " + ");
        print_offset(p, k, walk->kept, walk->rank);
    }
}

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

static int64_t fast_stride(const struct printer *p, int k) { return operand_at(p, k)->strides[walk_fast_dim(p->walk)]; }

static void print_run_field(struct printer *p, int k) {
    text_add(p->code, "    run<%s, %s> r%d;\n", type_of(p, k), fast_stride(p, k) ? "RUN" : "1", k);
}

/* One run of an operand: neighbours at once, a single one, or one by one. */
static void print_load(struct printer *p, int k, const char *into, bool once) {
    int64_t stride = fast_stride(p, k);
    if (stride > 1) {
        text_add(p->code, "    for (int e = 0; e < RUN; e++) %sr%d.at[e] = (", into, k);
        print_address(p, k, false);
        text_add(p->code, ")[e * a.s%d_%d];\n", k, walk_fast_dim(p->walk));
        return;
    }
    text_add(p->code, "    %sr%d = %s<%s, %s>(", into, k, once && stride ? "stream_run" : "load_run", type_of(p, k),
             stride ? "RUN" : "1");
    print_address(p, k, false);
    text_add(p->code, ");\n");
}

static void print_store(struct printer *p, int k, const char *from, bool of_row, const char *function) {
    int64_t stride = fast_stride(p, k);
    if (stride == 1) {
        text_add(p->code, "    %s<%s, RUN>(", function, type_of(p, k));
        print_address(p, k, of_row);
        text_add(p->code, ", %s);\n", from);
        return;
    }
    text_add(p->code, "    for (int e = 0; e < RUN; e++) (");
    print_address(p, k, of_row);
    text_add(p->code, ")[");
    if (stride)
        text_add(p->code, "e * a.s%d_%d", k, walk_fast_dim(p->walk));
    else
        text_add(p->code, "0");
    text_add(p->code, "] = %s.at[e];\n", from);
}

static bool is_broadcast_to_rows(const struct printer *p, int k) {
    return !depends_on(operand_at(p, k), 0, p->walk->kept);
}

static bool is_held(const struct printer *p, int k) { return walk_holds(p->walk, k) && is_element_load(p, k); }

static void print_held(struct printer *p) {
    text_add(p->code, "struct held {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_held(p, k))
            print_run_field(p, k);
    text_add(p->code, "};\n\nDEVICE void load_held(held& in, const arguments& a, const place& at, position q) {\n");
    print_coordinates(p, p->walk->kept, p->walk->rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_held(p, k))
            print_load(p, k, "in.", true);
    text_add(p->code, "}\n\n");
}

/* Runs on their way through shared memory: for each operand as many as there are buffers, steps and threads. */
static void print_ahead(struct printer *p) {
    const struct walk *walk = p->walk;
    int64_t at = 0;
    text_add(p->code, "extern __shared__ words4 s_ahead[];\n\n");
    for (int k = 0; k < p->rows->operand_count && walk->ahead; k++) {
        if (!is_held(p, k))
            continue;
        const char *count = fast_stride(p, k) ? "RUN" : "1";
        text_add(
            p->code,
            "DEVICE run<%s, %s>* ahead%d(int slot) { return (run<%s, %s>*)((char*)s_ahead + %lld) + slot * THREADS + "
            "threadIdx.x; }\n",
            type_of(p, k), count, k, type_of(p, k), count, (long long)at);
        at += walk_held_bytes(walk, k) * (walk->ahead + 1) * walk->steps * walk->threads;
    }
    text_add(p->code, "\nDEVICE void copy_held(int slot, const arguments& a, const place& at, position q) {\n");
    print_coordinates(p, walk->kept, walk->rank, "q");
    for (int k = 0; k < p->rows->operand_count && walk->ahead; k++) {
        if (!is_held(p, k))
            continue;
        text_add(p->code, "    copy_run<%s, %s>(ahead%d(slot), ", type_of(p, k), fast_stride(p, k) ? "RUN" : "1", k);
        print_address(p, k, false);
        text_add(p->code, ");\n");
    }
    text_add(p->code, "}\n\nDEVICE void take_held(held& in, int slot) {\n");
    for (int k = 0; k < p->rows->operand_count && walk->ahead; k++)
        if (is_held(p, k))
            text_add(p->code, "    in.r%d = *ahead%d(slot);\n", k, k);
    text_add(p->code, "}\n\nDEVICE void forget_held(held& in) {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_held(p, k))
            text_add(p->code, "    forget(in.r%d);\n", k);
    text_add(p->code, "}\n\n");
}

/* ---- Numbers of the row ------------------------------------------------------------------------------------------ */

/* What printed code of elements and of stores may ask a row for. */
static bool is_row_field(const struct term *term) { return term->is_needed && !term->spans && !is_column(term); }

static void print_row_struct(struct printer *p) {
    text_add(p->code, "struct row {\n");
    for (int i = 0; i < p->rows->term_count; i++)
        for (int n = 0; n < p->rows->terms[i].names && is_row_field(&p->rows->terms[i]); n++)
            text_add(p->code, "    %s v%d;\n", p->rows->terms[i].type, p->rows->terms[i].name + n);
    text_add(p->code, "};\n\n");
}

/* "    const float v7 = ..." of a term whose uses are in scope. */
static void print_term(struct printer *p, const struct term *term) {
    if (term->kind == TERM_NODE) {
        formula_print(p->code, p->rows->graph, term->node);
        return;
    }
    const char *at = term->text, *weight;
    text_add(p->code, "    const %s v%d = ", term->type, term->name);
    while ((weight = strstr(at, "WEIGHT(")) != NULL) {
        text_add_chars(p->code, at, (size_t)(weight - at));
        text_add(p->code, p->rows->is_brief ? "brief_weight(" : "weight(");
        at = weight + strlen("WEIGHT(");
    }
    text_add(p->code, "%s;\n", at);
}

/* Terms of the row that become known at a stage, from the fields of those before. */
static void print_row_terms(struct printer *p, int stage) {
    const struct rows *rows = p->rows;
    bool in_scope[TERMS_MAX] = {false};
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        bool is_formula = term->kind == TERM_NODE || term->kind == TERM_TEXT;
        if (!is_row_field(term) || term->stage != stage || !is_formula)
            continue;
        for (int u = 0; u < term->use_count; u++) {
            const struct term *used = &rows->terms[term->uses[u]];
            for (int n = 0; n < used->names && !in_scope[term->uses[u]]; n++)
                text_add(p->code, "    const %s v%d = r.v%d;\n", used->type, used->name + n, used->name + n);
            in_scope[term->uses[u]] = true;
        }
        print_term(p, term);
        text_add(p->code, "    r.v%d = v%d;\n", term->name, term->name);
        in_scope[i] = true;
    }
}

static void print_row_load(struct printer *p, const struct term *term) {
    int k = term->operand;
    bool has_place = depends_on(operand_at(p, k), 0, p->walk->kept);
    if (operand_at(p, k)->memory == MEMORY_INDEX) {
        text_add(p->code, "    for (int l = 0; l < LANES_OF_ROWS; l++) now[l].v%d = 0", term->name);
        if (has_place)
            text_add(p->code, " + at.b%d", k);
        if (p->walk->is_columns && fast_stride(p, k) == 1)
            text_add(p->code, " + l");
        else if (p->walk->is_columns && fast_stride(p, k))
            text_add(p->code, " + l * a.s%d_%d", k, walk_fast_dim(p->walk));
        text_add(p->code, ";\n");
        return;
    }
    bool is_run = p->walk->is_columns && fast_stride(p, k) == 1;
    bool gathers = p->walk->is_columns && fast_stride(p, k) > 1;
    if (!gathers) {
        text_add(p->code, "    const run<%s, %s> r%d = load_run<%s, %s>(", type_of(p, k), is_run ? "RUN" : "1", k,
                 type_of(p, k), is_run ? "RUN" : "1");
        print_address(p, k, true);
        text_add(p->code, ");\n");
    }
    text_add(p->code, "    for (int l = 0; l < LANES_OF_ROWS; l++) now[l].v%d = ", term->name);
    if (gathers) {
        text_add(p->code, "(");
        print_address(p, k, true);
        text_add(p->code, ")[l * a.s%d_%d];\n", k, walk_fast_dim(p->walk));
    } else {
        text_add(p->code, "r%d.at[%s];\n", k, is_run ? "l" : "0");
    }
}

static void print_open(struct printer *p) {
    text_add(p->code, "constexpr int LANES_OF_ROWS = COLUMNS ? RUN : 1;\n\n"
                      "DEVICE void open_rows(row* now, const arguments& a, const place& at) {\n");
    for (int i = 0; i < p->rows->term_count; i++)
        if (is_row_field(&p->rows->terms[i]) && p->rows->terms[i].kind == TERM_LOAD)
            print_row_load(p, &p->rows->terms[i]);
    text_add(p->code, "    #pragma unroll\n    for (int l = 0; l < LANES_OF_ROWS; l++) {\n    row& r = now[l];\n");
    print_row_terms(p, 0);
    text_add(p->code, "    }\n}\n\n");
}

static void print_row_stores(struct printer *p) {
    text_add(p->code, "DEVICE void store_rows(const row* now, const arguments& a, const place& at) {\n");
    for (int k = 0; k < p->rows->operand_count && p->stage->has_row_stores; k++) {
        const struct operand *operand = operand_at(p, k);
        const struct term *term = rows_find(p->rows, operand->value);
        if (!operand->is_store || !is_row_field(term))
            continue;
        if (p->walk->is_columns) {
            text_add(p->code,
                     "    run<%s, RUN> w%d;\n    for (int e = 0; e < RUN; e++) w%d.at[e] = "
                     "from<%s>::number(as_number(now[e].v%d));\n",
                     type_of(p, k), k, k, type_of(p, k), operand->value);
            char from[16];
            snprintf(from, sizeof from, "w%d", k);
            print_store(p, k, from, true, "store_run");
        } else {
            text_add(p->code, "    *(");
            print_address(p, k, true);
            text_add(p->code, ") = from<%s>::number(as_number(now[0].v%d));\n", type_of(p, k), operand->value);
        }
    }
    text_add(p->code, "}\n\n");
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

static void print_total(struct printer *p, int pass) {
    const struct rows *rows = p->rows;
    text_add(p->code, "    struct total {\n");
    bool any = false;
    for (int i = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass)) {
            any = true;
            text_add(p->code, "        %s<%s> t%d;\n", totals[rows->terms[i].total].type, rows->terms[i].type,
                     rows->terms[i].name);
        }
    text_add(p->code, "    };\n    static constexpr bool CLOSES = %s;\n", any ? "true" : "false");
    text_add(p->code, "    static DEVICE total none() {\n        total t;\n");
    for (int i = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass))
            text_add(p->code, "        t.t%d = t.t%d.none();\n", rows->terms[i].name, rows->terms[i].name);
    text_add(p->code, "        return t;\n    }\n    static DEVICE total joined(const total& a, const total& b) {\n"
                      "        total t;\n");
    for (int i = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass))
            text_add(p->code, "        t.t%d = t.t%d.joined(a.t%d, b.t%d);\n", rows->terms[i].name, rows->terms[i].name,
                     rows->terms[i].name, rows->terms[i].name);
    text_add(p->code, "        return t;\n    }\n");
    text_add(p->code, "    static DEVICE void close(const total& t, row& r, const arguments& a) {\n");
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        if (!closes(term, pass))
            continue;
        text_add(p->code, "    r.v%d = t.t%d.number;\n", term->name, term->name);
        if (totals[term->total].second)
            text_add(p->code, "    r.v%d = t.t%d.%s;\n", term->name + 1, term->name, totals[term->total].second);
    }
    print_row_terms(p, pass + 1);
    text_add(p->code, "    }\n");
    if (pass < p->stage->recalled)
        text_add(p->code,
                 "    static DEVICE const total* recalled(const arguments& a) { return (const total*)a.total%d; }\n"
                 "    static DEVICE i64 parts(const arguments& a) { return a.parts%d; }\n",
                 pass, pass);
}

static bool is_loaded_by_pass(const struct printer *p, int k, const bool *takes_part) {
    return is_element_load(p, k) && !walk_holds(p->walk, k) &&
           takes_part[rows_find(p->rows, operand_at(p, k)->value) - p->rows->terms];
}

static void print_inputs(struct printer *p, const bool *takes_part) {
    text_add(p->code, "    struct inputs {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_loaded_by_pass(p, k, takes_part))
            print_run_field(p, k);
    text_add(p->code,
             "    };\n    static DEVICE void load(inputs& in, const arguments& a, const place& at, position q) {\n");
    print_coordinates(p, p->walk->kept, p->walk->rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_loaded_by_pass(p, k, takes_part))
            print_load(p, k, "in.", !p->walk->steps && !is_broadcast_to_rows(p, k));
    text_add(p->code, "    }\n");
}

static void print_element_load(struct printer *p, const struct term *term) {
    int k = term->operand;
    const struct operand *operand = operand_at(p, k);
    const struct walk *walk = p->walk;
    if (operand->memory == MEMORY_INDEX) {
        text_add(p->code, "    const i64 v%d = ", term->name);
        if (depends_on(operand, 0, walk->kept))
            text_add(p->code, "at.b%d + ", k);
        text_add(p->code, "o%d[u]", k);
        if (fast_stride(p, k) == 1)
            text_add(p->code, " + e");
        else if (fast_stride(p, k))
            text_add(p->code, " + e * a.s%d_%d", k, walk_fast_dim(walk));
        text_add(p->code, ";\n");
        return;
    }
    text_add(p->code, "    const %s v%d = %s[u].r%d.at[%s];\n", term->type, term->name,
             walk_holds(walk, k) ? "own" : "in", k, fast_stride(p, k) ? "e" : "0");
}

/* Offsets of indices, which have no memory to load from. */
static void print_index_offsets(struct printer *p, const bool *takes_part) {
    for (int k = 0; k < p->rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        if (operand->memory != MEMORY_INDEX || operand->is_store ||
            !takes_part[rows_find(p->rows, operand->value) - p->rows->terms])
            continue;
        text_add(p->code, "    i64 o%d[U];\n    for (int u = 0; u < U; u++) {\n", k);
        print_coordinates(p, p->walk->kept, p->walk->rank, "q + u * BETWEEN");
        text_add(p->code, "    o%d[u] = ", k);
        print_offset(p, k, p->walk->kept, p->walk->rank);
        text_add(p->code, ";\n    }\n");
    }
}

static bool stores_elements(const struct printer *p, int k, int pass) {
    const struct operand *operand = operand_at(p, k);
    return pass == p->walk->last_pass && operand->is_store && rows_find(p->rows, operand->value)->spans;
}

/* What elements put where: arrays for totals, runs for stores, sums of places. */
static void print_element_results(struct printer *p, int pass) {
    const struct rows *rows = p->rows;
    for (int i = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass))
            text_add(p->code, "    x%d[inner] = v%d;\n", rows->terms[i].name, rows->terms[rows->terms[i].uses[0]].name);
    for (int k = 0, column = 0; k < rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        const struct term *term = rows_find(rows, operand->value);
        if (operand->is_store && is_column(term) && pass == p->walk->last_pass)
            text_add(p->code, "    columns->at[%d][e] += v%d;\n", column++, rows->terms[term->uses[0]].name);
        else if (stores_elements(p, k, pass))
            text_add(p->code, "    w%d[u].at[e] = from<%s>::number(as_number(v%d));\n", k, type_of(p, k),
                     operand->value);
    }
}

static void print_elements(struct printer *p, int pass, const bool *takes_part) {
    const struct rows *rows = p->rows;
    text_add(p->code,
             "    template <int U>\n    static DEVICE void elements(const held* own, const inputs* in, const row* now, "
             "total* taken, column* columns, const arguments& a, const place& at, position q) {\n"
             "    constexpr int OUTER = COLUMNS ? RUN : U, INNER = COLUMNS ? U : RUN;\n");
    print_index_offsets(p, takes_part);
    for (int k = 0; k < rows->operand_count; k++)
        if (stores_elements(p, k, pass))
            text_add(p->code, "    run<%s, RUN> w%d[U];\n", type_of(p, k), k);
    text_add(p->code, "    #pragma unroll\n    for (int outer = 0; outer < OUTER; outer++) {\n");
    for (int i = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass))
            text_add(p->code, "    %s x%d[INNER];\n", rows->terms[i].type, rows->terms[i].name);
    text_add(p->code, "    #pragma unroll\n    for (int inner = 0; inner < INNER; inner++) {\n"
                      "    const int u = COLUMNS ? inner : outer, e = COLUMNS ? outer : inner;\n"
                      "    const row& r = now[COLUMNS ? e : 0];\n");
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        if (!takes_part[i])
            continue;
        for (int n = 0; n < term->names && !term->spans; n++)
            text_add(p->code, "    const %s v%d = r.v%d;\n", term->type, term->name + n, term->name + n);
        if (term->spans && term->kind == TERM_LOAD)
            print_element_load(p, term);
        else if (term->spans)
            print_term(p, term);
    }
    print_element_results(p, pass);
    text_add(p->code, "    }\n");
    for (int i = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass))
            text_add(p->code, "    taken[COLUMNS ? outer : 0].t%d.added(x%d);\n", rows->terms[i].name,
                     rows->terms[i].name);
    text_add(p->code, "    }\n    for (int u = 0; u < U; u++) {\n");
    print_coordinates(p, p->walk->kept, p->walk->rank, "q + u * BETWEEN");
    for (int k = 0; k < rows->operand_count; k++) {
        char from[16];
        snprintf(from, sizeof from, "w%d[u]", k);
        if (stores_elements(p, k, pass))
            print_store(p, k, from, false, "stream_out");
    }
    text_add(p->code, "    }\n    }\n");
}

static void print_passes(struct printer *p) {
    text_add(p->code, "template <int P> struct pass;\n\n");
    for (int pass = 0; pass < p->walk->passes; pass++) {
        bool takes_part[TERMS_MAX];
        walk_terms_of_pass(p->walk, pass, takes_part);
        text_add(p->code, "template <> struct pass<%d> {\n", pass);
        print_total(p, pass);
        print_inputs(p, takes_part);
        print_elements(p, pass, takes_part);
        text_add(p->code, "};\n\n");
    }
}

/* ---- Sums of places ---------------------------------------------------------------------------------------------- */

static void print_columns(struct printer *p) {
    const char *type = p->rows->follow.type ? p->rows->follow.type : "float";
    text_add(p->code,
             "using column_t = %s;\nstruct column { column_t at[COLUMN_TOTALS > 0 ? COLUMN_TOTALS : 1][RUN]; };\n\n"
             "DEVICE void clear_column(column& c) {\n    #pragma unroll\n    for (int k = 0; k < COLUMN_TOTALS; k++)\n"
             "        for (int e = 0; e < RUN; e++) c.at[k][e] = 0;\n}\n\n"
             "DEVICE void store_column(int k, const column_t (&from)[RUN], const arguments& a, position q) {\n",
             type);
    print_coordinates(p, p->walk->kept, p->walk->rank, "q");
    for (int k = 0, column = 0; k < p->rows->operand_count; k++) {
        if (!operand_at(p, k)->is_store || !is_column(rows_find(p->rows, operand_at(p, k)->value)))
            continue;
        text_add(p->code, "    if (k == %d)\n        for (int e = 0; e < RUN; e++) (a.p%d + blockIdx.x * a.block%d + ",
                 column++, k, k);
        print_offset(p, k, p->walk->kept, p->walk->rank);
        if (fast_stride(p, k) > 1)
            text_add(p->code, ")[e * a.s%d_%d] = from[e];\n", k, walk_fast_dim(p->walk));
        else
            text_add(p->code, ")[e] = from[e];\n");
    }
    text_add(p->code, "}\n\n");
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static weftStatus_t print_launch(const struct walk *planned, const struct stage *stage, struct cuda_step *state,
                                 struct arena *arena) {
    struct walk joining, *walk = &joining;
    joining = *planned;
    if (stage->passes_end <= stage->recalled)
        walk_for_joining(walk, planned->parts);
    if (state->count == KERNELS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would take more than %d launches", KERNELS_MAX);
    struct kernel_print print;
    kernel_print_init(&print, walk->rows->graph);
    struct printer p = {walk, walk->rows, stage, &print, &print.code};
    print_constants(&p);
    print_fields(&p);
    text_add(p.code, "DEVICE float as_number(float x) { return x; }\nDEVICE double as_number(double x) { return x; }\n"
                     "DEVICE i64 as_number(i64 x) { return x; }\n"
                     "template <class T> DEVICE float as_number(T x) { return to_float(x); }\n\n");
    print_place(&p);
    print_held(&p);
    print_ahead(&p);
    print_row_struct(&p);
    print_open(&p);
    print_columns(&p);
    print_passes(&p);
    print_row_stores(&p);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    int64_t most = walk->tiles * (stage->is_split ? walk->parts : 1);
    kernel->grid[0] = (uint32_t)(walk->blocks < most ? walk->blocks : most);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)walk->threads;
    kernel->shared_bytes = stage->join >= 0 ? 0 : (uint32_t)walk_ahead_bytes(walk, walk->ahead + 1);
    return kernel_finish(&print, kernel, "rows.cuh", "rows", arena);
}

static int64_t take_scratch(int64_t *scratch_bytes, int64_t bytes) {
    int64_t at = *scratch_bytes;
    *scratch_bytes += (bytes + 255) / 256 * 256;
    return at;
}

weftStatus_t walk_print(const struct walk *walk, struct cuda_step *state, int64_t *scratch_bytes, struct arena *arena) {
    int64_t places[TERMS_MAX], counts[TERMS_MAX], bytes = rows_count(walk->rows) * walk_total_bytes(walk);
    struct stage stage = {0, walk->passes, -1, false, true, -1, places, counts};
    if (walk->groups == 0)
        return WEFT_STATUS_SUCCESS;
    if (walk->parts == 1)
        return print_launch(walk, &stage, state, arena);
    for (int pass = 0; pass < walk->closed; pass++) {
        places[pass] = take_scratch(scratch_bytes, bytes * walk->parts);
        counts[pass] = walk->parts;
        stage = (struct stage){pass, pass + 1, -1, true, false, places[pass], places, counts};
        TRY(print_launch(walk, &stage, state, arena));
        if (!walk_joins(walk, pass))
            continue;
        int64_t joined = take_scratch(scratch_bytes, bytes);
        stage = (struct stage){pass + 1, 0, pass, false, false, joined, places, counts};
        TRY(print_launch(walk, &stage, state, arena));
        places[pass] = joined;
        counts[pass] = 1;
    }
    bool stores = walk->last_pass >= walk->closed;
    stage =
        (struct stage){walk->closed, stores ? walk->closed + 1 : walk->closed, -1, stores, true, -1, places, counts};
    return print_launch(walk, &stage, state, arena);
}
