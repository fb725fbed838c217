/* SPDX-License-Identifier: Apache-2.0 */
/* A walk as CUDA text: what rows/rows.cuh expects in front of it. Terms are named v<name> wherever they are in
   scope; what differs from row to row is a field of struct row. */
#include "base/number.h"
#include "engines/cuda/rows/schedule.h"

#include <stdio.h>
#include <string.h>

enum { SAMPLES = 16 }; /* of core/reduce.cuh */

/* The launch that is being printed. */
struct stage {
    int recalled, passes_end, join;
    int64_t parts; /* of rows, when is_split */
    bool is_split, has_row_stores;
    int64_t left;        /* place of the totals that it leaves; -1: none */
    int64_t *totals;     /* per pass: where the totals of the parts, or the joined ones, are */
    int64_t *part_count; /* and how many */
};

struct printer {
    const struct schedule *s;
    const struct rows *rows;
    const struct stage *stage;
    struct kernel_print *print;
    struct text *code;
};

static const struct {
    const char *type;
    const char *second; /* name of its second number's field */
} totals[] = {
    [TOTAL_SUM] = {"sum", NULL},         [TOTAL_PRODUCT] = {"product", NULL},      [TOTAL_LEAST] = {"least", NULL},
    [TOTAL_LARGEST] = {"largest", NULL}, [TOTAL_MOMENTS] = {"moments", "squares"}, [TOTAL_WEIGHTS] = {"weights", "sum"},
};

static bool closes(const struct term *term, int pass) {
    return term->is_needed && term->kind == TERM_TOTAL && term->total != TOTAL_COLUMN && term->stage == pass + 1;
}

static bool is_column(const struct term *term) { return term->kind == TERM_TOTAL && term->total == TOTAL_COLUMN; }

static const struct operand *operand_at(const struct printer *p, int k) { return &p->s->nest.operands[k]; }

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
    for (int i = 0; i < p->s->nest.rank; i++) {
        snprintf(name, sizeof name, "s%d_%d", k, i);
        if (operand->strides[i] > 1 || (operand->strides[i] == 1 && i != schedule_fast_dim(p->s)))
            print_number(p->print, operand->strides[i], name);
    }
    if (is_column(rows_find(p->rows, operand->value))) {
        snprintf(name, sizeof name, "block%d", k);
        print_number(p->print, rows_length(p->rows), name);
    }
}

/* The extent along which positions count, in runs. */
static int64_t extent_in_runs(const struct schedule *s, int dim) {
    return dim == schedule_fast_dim(s) ? s->nest.extents[dim] / s->vectors.width : s->nest.extents[dim];
}

/* Samples lie as far apart as the row's last dim allows. */
static int64_t sample_step(const struct schedule *s) {
    int last = s->nest.rank - 1, memory = s->nest.operands[s->rows->sampled].memory;
    int64_t step = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (s->nest.operands[k].memory == memory && s->nest.operands[k].strides[last] > step)
            step = s->nest.operands[k].strides[last];
    return s->nest.extents[last] / SAMPLES * step;
}

static void print_fields(struct printer *p) {
    const struct schedule *s = p->s;
    const struct {
        const char *name;
        int64_t number;
    } numbers[] = {
        {"jobs", s->grid.tiles * p->stage->parts},
        {"groups", s->vectors.strips},
        {"runs", s->vectors.per_row},
        {"rows", schedule_slots(s)},
        {"length", rows_length(p->rows)},
        {"parts", p->stage->parts},
    };
    char name[32];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        print_number(p->print, numbers[i].number, numbers[i].name);
    if (p->rows->sampled >= 0)
        print_number(p->print, sample_step(s), "sample_step");
    if (s->overlap.is_used) {
        print_number(p->print, s->overlap.elements, "overlap");
        print_number(p->print, s->overlap.last, "last_run");
    }
    print_divisor(p->print, s->grid.tiles < INT32_MAX ? s->grid.tiles : 1, "tiles");
    print_scratch(p->print, "char", p->stage->left >= 0 ? p->stage->left : 0, "left");
    for (int pass = 0; pass < p->stage->recalled; pass++) {
        snprintf(name, sizeof name, "total%d", pass);
        print_scratch(p->print, "char", p->stage->totals[pass], name);
        snprintf(name, sizeof name, "parts%d", pass);
        print_number(p->print, p->stage->part_count[pass], name);
    }
    for (int i = 0; i < s->nest.rank; i++) {
        snprintf(name, sizeof name, "extent%d", i);
        if (i != 0 && i != s->nest.row_dims)
            print_divisor(p->print, extent_in_runs(s, i), name);
    }
    for (int k = 0; k < p->rows->operand_count; k++)
        if (operand_at(p, k)->is_store || rows_find(p->rows, operand_at(p, k)->value)->is_needed)
            print_operand_fields(p, k);
}

/* The last pass of rows in parts, when all totals are known. */
static bool stores_only(const struct stage *stage) { return stage->is_split && stage->left < 0; }

static void print_constants(struct printer *p) {
    const struct schedule *s = p->s;
    const struct stage *stage = p->stage;
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {
        {"RUN", s->vectors.width},
        {"COLUMNS", s->nest.is_columns},
        {"TEAM", s->threads.group},
        {"ACROSS", s->threads.across},
        {"CLUSTER", s->threads.cluster},
        {"THREADS", s->threads.block},
        {"MIN_BLOCKS", s->threads.min_blocks},
        {"STEPS", stage->join >= 0 ? 0 : s->memory.steps},
        {"UNROLL", s->memory.steps && s->memory.stages != 1 ? s->memory.steps : s->memory.unroll},
        {"IS_WHOLE", s->memory.is_whole && stage->join < 0},
        {"LOOSE", stage->join >= 0 ? 0 : s->unaligned.most},
        {"MARGIN", s->unaligned.margin},
        {"SURE", s->unaligned.guaranteed},
        {"OVERLAPS", s->overlap.is_used},
        {"PREFETCHES", schedule_is_persistent(s) && s->memory.scheme != MEMORY_PIPELINED},
        {"RING", s->memory.stages},
        {"RING_BEGINS", STAGES_BEGIN},
        {"CREW", s->memory.warps_per_group},
        {"SLOTS", s->memory.steps * (s->memory.scheme == MEMORY_PIPELINED ? 32 * s->memory.warps_per_group
                                     : s->nest.is_columns                 ? s->threads.block
                                                                          : s->threads.group)}, /* runs of a slot */
        {"HELD_BYTES", s->memory.steps ? schedule_row_bytes(s) / ((int64_t)s->memory.steps * s->threads.group) : 0},
        {"KEEPS_COMMON", s->memory.keeps_broadcast},
        {"RECALLED", stage->recalled},
        {"PASSES_END", stage->passes_end},
        {"JOIN", stage->join},
        {"IS_SPLIT", stage->is_split},
        {"IS_SINGLE", stores_only(stage) && stage->parts * s->threads.group * s->memory.unroll >= s->vectors.per_row},
        {"IS_REVERSED", stage->is_split && stage->recalled > 0},
        {"BETWEEN", stage->is_split && stage->recalled > 0 ? -s->threads.group : s->threads.group},
        {"LETS_NEXT", s->grid.trigger},
        {"ASKS_EARLY", s->grid.l2_early},
        {"AHEAD", s->grid.l2_distance},
        {"HAS_ROW_STORES", stage->has_row_stores},
        {"COLUMN_TOTALS", s->passes.column_sums},
        {"FORGETS", s->memory.converts_again},
        {"SOME", 4}, /* samples of a row */
    };
    text_add(&p->print->constants,
             "#include \"core/async.cuh\"\n#include \"core/stream.cuh\"\n#include \"core/dependent_launch.cuh\"\n"
             "#include \"core/reduce.cuh\"\n\n");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        print_constant(p->print, constants[i].name, constants[i].value);
    text_add(&p->print->constants, "using position = %s;\n", s->vectors.per_row < INT32_MAX / 2 ? "int" : "i64");
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

/* Coordinates c<first> .. of a position that counts through dims first .. end; runs along the fast dim count as one. N
   is the length of a run: RUN, or 1 of what is loose. */
static void print_coordinates(struct printer *p, int first, int end, const char *position) {
    const struct schedule *s = p->s;
    int64_t count = 1;
    for (int i = first; i < end; i++)
        count *= s->nest.extents[i];
    bool small = count < INT32_MAX;
    const char *type = small ? "u32" : "i64";
    if (s->unaligned.most && first == s->nest.row_dims) {
        text_add(p->code, "    const i64 c%d = element_of<N>(at, %s);\n", first, position);
        return;
    }
    if (end - first == 1) {
        text_add(p->code, "    const i64 c%d = (i64)(%s)%s", first, position,
                 first == schedule_fast_dim(s) || (s->overlap.is_used && first == 0) ? " * RUN" : "");
        if (s->overlap.is_used && first == 0)
            text_add(p->code, " - (%s * RUN < a.last_run ? 0 : a.overlap)", position);
        text_add(p->code, ";\n");
        return;
    }
    text_add(p->code, "    %s rest%d = (%s)(%s);\n", type, first, type, position);
    for (int i = end - 1; i > first; i--) {
        if (small)
            text_add(p->code, "    const u32 q%d = divide(rest%d, a.extent%d);\n", i, first, i);
        else
            text_add(p->code, "    const i64 q%d = rest%d / a.extent%d.value;\n", i, first, i);
        text_add(p->code, "    const i64 c%d = (i64)(rest%d - q%d * a.extent%d.value)%s;\n    rest%d = q%d;\n", i,
                 first, i, i, i == schedule_fast_dim(s) ? " * RUN" : "", first, i);
    }
    text_add(p->code, "    const i64 c%d = (i64)rest%d%s;\n", first, first,
             first == schedule_fast_dim(s) ? " * RUN" : "");
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
        if (operand->strides[i] == 1 && i == schedule_fast_dim(p->s))
            text_add(p->code, "%sc%d", any ? " + " : "", i);
        else
            text_add(p->code, "%sc%d * a.s%d_%d", any ? " + " : "", i, k, i);
        any = true;
    }
    if (!any)
        text_add(p->code, "0");
}

/* Runs of a row; and where it has loose elements, the place in the row of one of them, or of a run. */
static void print_runs(struct printer *p) {
    text_add(p->code, "DEVICE i64 runs_of(const arguments& a, i64 group) { return %s; }\n\n",
             p->s->unaligned.most ? "place_of(a, group).runs" : "a.runs");
    if (p->s->unaligned.most)
        text_add(p->code,
                 "template <int N> DEVICE i64 element_of(const place& at, position q) {\n"
                 "    return N > 1 ? at.head + (i64)q * RUN : q < at.head ? (i64)q : q + (i64)at.runs * RUN;\n}\n\n");
}

/* Where rows begin: offsets that all elements of a row share; and the loose elements before the first run. */
static void print_place(struct printer *p) {
    const struct schedule *s = p->s;
    text_add(p->code, "struct place {\n    i64 group;\n%s", s->unaligned.most ? "    position head, runs;\n" : "");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (depends_on(operand_at(p, k), 0, s->nest.row_dims))
            text_add(p->code, "    i64 b%d;\n", k);
    text_add(p->code, "};\n\nDEVICE place place_of(const arguments& a, i64 group) {\n    place at;\n"
                      "    at.group = group;\n");
    print_coordinates(p, 0, s->nest.row_dims, "group");
    for (int k = 0; k < p->rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        if (!depends_on(operand, 0, s->nest.row_dims))
            continue;
        bool is_used = operand->is_store || rows_find(p->rows, operand->value)->is_needed;
        text_add(p->code, "    at.b%d = ", k);
        if (is_used)
            print_offset(p, k, 0, s->nest.row_dims);
        else
            text_add(p->code, "0");
        text_add(p->code, ";\n");
    }
    if (s->unaligned.most && depends_on(operand_at(p, s->unaligned.leader), 0, s->nest.row_dims))
        text_add(p->code, "    at.head = (position)(-at.b%d & (RUN - 1));\n", s->unaligned.leader);
    else if (s->unaligned.most)
        text_add(p->code, "    at.head = 0;\n");
    if (s->unaligned.most)
        text_add(p->code, "    at.runs = ((position)a.length - at.head - MARGIN) / RUN;\n");
    text_add(p->code, "    return at;\n}\n\n");
    print_runs(p);
}

/* The address of a row's first element, or of the element at the coordinates in scope. */
static void print_address(struct printer *p, int k, bool of_row) {
    const struct schedule *s = p->s;
    text_add(p->code, "a.p%d", k);
    if (depends_on(operand_at(p, k), 0, s->nest.row_dims))
        text_add(p->code, " + at.b%d", k);
    if (!of_row && depends_on(operand_at(p, k), s->nest.row_dims, s->nest.rank)) {
        text_add(p->code, " + ");
        print_offset(p, k, s->nest.row_dims, s->nest.rank);
    }
}

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

static int64_t fast_stride(const struct printer *p, int k) {
    return operand_at(p, k)->strides[schedule_fast_dim(p->s)];
}

static void print_run_field(struct printer *p, int k) {
    text_add(p->code, "    raw<%s, %s> r%d;\n", type_of(p, k), fast_stride(p, k) ? "RUN" : "1", k);
}

static bool is_broadcast_to_rows(const struct printer *p, int k) {
    return !depends_on(operand_at(p, k), 0, p->s->nest.row_dims);
}

/* A run that begins anywhere: at.head elements behind whole 16 bytes, or as many as its offset says. */
static void print_load_across(struct printer *p, int k, const char *into) {
    text_add(p->code, "    %sr%d = raw<%s, RUN>::load_across<N%s>(", into, k, type_of(p, k),
             p->s->overlap.is_used ? ", IS_LAST" : "");
    print_address(p, k, false);
    text_add(p->code, ", (int)(");
    if (p->s->overlap.is_used) {
        text_add(p->code, "at.b%d + ", k);
        print_offset(p, k, p->s->nest.row_dims, p->s->nest.rank);
    } else {
        text_add(p->code, "at.head");
    }
    text_add(p->code, "));\n");
}

/* One run of an operand: neighbours at once, a single one, or one by one. What rows that begin anywhere read alike lies
   otherwise than these. */
static void print_load(struct printer *p, int k, const char *into, bool once) {
    int64_t stride = fast_stride(p, k);
    if (stride > 1) {
        text_add(p->code, "    for (int e = 0; e < RUN; e++) %sr%d.put(e, (", into, k);
        print_address(p, k, false);
        text_add(p->code, ")[e * a.s%d_%d]);\n", k, schedule_fast_dim(p->s));
        return;
    }
    if (p->s->overlap.is_used ||
        (p->s->unaligned.most && p->s->unaligned.margin && stride && is_broadcast_to_rows(p, k))) {
        print_load_across(p, k, into);
        return;
    }
    text_add(p->code, "    %sr%d = raw<%s, %s>::load<", into, k, type_of(p, k), stride ? "RUN" : "1");
    text_add(p->code, !stride ? "false>(" : once ? "true, N>(" : "false, N>(");
    print_address(p, k, false);
    text_add(p->code, ");\n");
}

static void print_store(struct printer *p, int k, const char *from, bool of_row, const char *function) {
    int64_t stride = fast_stride(p, k);
    if (stride == 1 && !p->s->overlap.is_used) {
        text_add(p->code, "    %s<%s, %s>(", function, type_of(p, k), of_row ? "RUN" : "N");
        print_address(p, k, of_row);
        text_add(p->code, ", %s);\n", from);
        return;
    }
    text_add(p->code, "    for (int e = 0; e < %s; e++) (", of_row ? "RUN" : "N");
    print_address(p, k, of_row);
    text_add(p->code, ")[");
    if (stride == 1)
        text_add(p->code, "e");
    else if (stride)
        text_add(p->code, "e * a.s%d_%d", k, schedule_fast_dim(p->s));
    else
        text_add(p->code, "0");
    text_add(p->code, "] = %s.at[e];\n", from);
}

static bool is_held(const struct printer *p, int k) { return schedule_keeps(p->s, k) && is_element_load(p, k); }

/* What every row reads alike, at the same places. */
static bool is_common(const struct printer *p, int k) {
    return p->s->memory.keeps_broadcast && is_element_load(p, k) && !schedule_keeps(p->s, k);
}

static void print_loader(struct printer *p, const char *name, bool (*takes)(const struct printer *, int),
                         const char *row, bool once) {
    text_add(p->code, "struct %s {\n", name);
    for (int k = 0; k < p->rows->operand_count; k++)
        if (takes(p, k))
            print_run_field(p, k);
    for (int i = 0; i < p->rows->term_count && takes == is_held; i++)
        if (p->rows->terms[i].is_needed && schedule_keeps_term(p->s, &p->rows->terms[i]))
            text_add(p->code, "    float e%d[RUN];\n", p->rows->terms[i].name);
    text_add(p->code,
             "};\n\ntemplate <int N = RUN> DEVICE void load_%s(%s& in, const arguments& a, %s, position q) {\n", name,
             name, row);
    if (p->s->unaligned.most && takes == is_common)
        text_add(p->code, "    const place at = place_of(a, group);\n");
    print_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (takes(p, k))
            print_load(p, k, "in.", once);
    text_add(p->code, "}\n\n");
}

/* Shared memory: a slot has the runs of one operand behind those of another, SLOTS each. `line` is printed for each:
   # its number, $ its type, @ where it begins in a slot, % bytes of a run, ^ the address of the row's first run, ~ the
   address at the coordinates in scope. */
static void print_slots(struct printer *p, const char *line) {
    int64_t at = 0;
    for (int k = 0; k < p->rows->operand_count; k++) {
        if (!is_held(p, k))
            continue;
        int64_t bytes = schedule_vector_bytes(p->s, k);
        for (const char *c = line; *c; c++)
            if (*c == '#')
                text_add(p->code, "%d", k);
            else if (*c == '$')
                text_add(p->code, "%s", type_of(p, k));
            else if (*c == '@')
                text_add(p->code, "%lld * SLOTS", (long long)at);
            else if (*c == '%')
                text_add(p->code, "%lld", (long long)bytes);
            else if (*c == '^' || *c == '~') {
                print_address(p, k, *c == '^');
                text_add(p->code, *c == '^' && p->s->unaligned.most ? " + at.head" : "");
            } else
                text_add_chars(p->code, c, 1);
        at += bytes;
    }
}

/* The copy engine's way for part of a row, as far as the second cache, a thread's own for one run, and from there to
   registers. */
static void print_ring(struct printer *p) {
    text_add(p->code, "DEVICE void copy_held(char* slot, u64* arrival, const arguments& a, const place& at, "
                      "position first, position runs) {\n    expect_bytes(arrival, (u32)runs * HELD_BYTES);\n");
    if (p->s->memory.stages > 1 || p->s->memory.scheme == MEMORY_PIPELINED)
        print_slots(p, "    copy_bulk(slot + @, ^ + (i64)first * RUN, (u32)runs * %, arrival);\n");
    text_add(p->code, "}\n\nDEVICE void expect_held(const arguments& a, const place& at, position first, "
                      "position runs) {\n");
    if (p->s->grid.l2_distance || p->s->grid.l2_early || p->s->memory.scheme == MEMORY_PIPELINED)
        print_slots(p, "    expect(^ + (i64)first * RUN, (u32)runs * %);\n");
    text_add(p->code, "}\n\nDEVICE void copy_run(char* slot, int index, const arguments& a, const place& at, "
                      "position q) {\n");
    if (p->s->memory.stages == 1 && p->s->memory.scheme != MEMORY_PIPELINED) {
        print_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
        print_slots(p, "    copy_pieces<%>(slot + @ + index * %, ~);\n");
    }
    text_add(p->code, "}\n\nDEVICE void take_held(held& in, const char* slot, int index) {\n");
    if (p->s->memory.stages)
        print_slots(p, "    in.r# = raw<$, % / sizeof($)>::load<false>((const $*)(slot + @ + index * %));\n");
    text_add(p->code, "}\n\n");
}

static void print_held(struct printer *p) {
    print_loader(p, "held", is_held, "const place& at", true);
    print_loader(p, "common", is_common, "i64 group", false);
    print_ring(p);
    text_add(p->code, "DEVICE void forget_held(held& in) {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_held(p, k))
            text_add(p->code, "    in.r%d.forget();\n", k);
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
    text_add(p->code, "    const %s v%d = ", term->type, term->name);
    if (term->kind == TERM_WEIGHT)
        text_add(p->code, p->rows->is_brief ? "brief_" : "");
    text_add(p->code, "%s;\n", term->text);
}

/* Terms of the row that become known at a stage, from the fields of those before. */
static void print_row_terms(struct printer *p, int stage) {
    const struct rows *rows = p->rows;
    bool in_scope[TERMS_MAX] = {false};
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        bool is_formula = term->kind != TERM_LOAD && term->kind != TERM_TOTAL;
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

static bool is_entry(const struct printer *p, const struct term *term) {
    return is_row_field(term) && term->kind == TERM_LOAD && operand_at(p, term->operand)->memory != MEMORY_INDEX;
}

/* Rows side by side have a run of numbers where these are neighbours, and one number where all share it. */
static const char *entry_length(const struct printer *p, int k) {
    return p->s->nest.is_columns && fast_stride(p, k) ? "RUN" : "1";
}

/* What the rows' own numbers are loaded to, before they are worked on. */
static void print_entry(struct printer *p) {
    text_add(p->code, "struct entry {\n");
    for (int i = 0; i < p->rows->term_count; i++)
        if (is_entry(p, &p->rows->terms[i])) {
            int k = p->rows->terms[i].operand;
            text_add(p->code, "    raw<%s, %s> r%d%s;\n", type_of(p, k), entry_length(p, k), k,
                     k == p->rows->sampled ? "[SOME]" : "");
        }
    text_add(p->code, "};\n\nDEVICE void load_entry(entry& in, const arguments& a, const place& at) {\n");
    for (int i = 0; i < p->rows->term_count; i++) {
        int k = p->rows->terms[i].operand;
        if (!is_entry(p, &p->rows->terms[i]))
            continue;
        if (p->s->nest.is_columns && fast_stride(p, k) > 1) {
            text_add(p->code, "    for (int l = 0; l < RUN; l++) in.r%d.put(l, (", k);
            print_address(p, k, true);
            text_add(p->code, ")[l * a.s%d_%d]);\n", k, schedule_fast_dim(p->s));
            continue;
        }
        if (k == p->rows->sampled)
            text_add(p->code,
                     "    #pragma unroll\n    for (int i = 0; i < SOME; i++) in.r%d[i] = raw<%s, 1>::load<false>(", k,
                     type_of(p, k));
        else
            text_add(p->code, "    in.r%d = raw<%s, %s>::load<false>(", k, type_of(p, k), entry_length(p, k));
        print_address(p, k, true);
        text_add(p->code, k == p->rows->sampled ? " + i * a.sample_step);\n" : ");\n");
    }
    text_add(p->code, "}\n\n");
}

/* From the first of rows side by side to the l-th. */
static void print_step(struct printer *p, int k) {
    if (p->s->nest.is_columns && fast_stride(p, k) == 1)
        text_add(p->code, " + l");
    else if (p->s->nest.is_columns && fast_stride(p, k))
        text_add(p->code, " + l * a.s%d_%d", k, schedule_fast_dim(p->s));
}

static void print_row_index(struct printer *p, const struct term *term) {
    int k = term->operand;
    text_add(p->code, "    r.v%d = 0", term->name);
    if (depends_on(operand_at(p, k), 0, p->s->nest.row_dims))
        text_add(p->code, " + at.b%d", k);
    print_step(p, k);
    text_add(p->code, ";\n");
}

static void print_open(struct printer *p) {
    text_add(p->code, "DEVICE void open_rows(row* now, const entry& in, const arguments& a, const place& at) {\n"
                      "    #pragma unroll\n    for (int l = 0; l < (COLUMNS ? RUN : 1); l++) {\n"
                      "    [[maybe_unused]] row& r = now[l];\n");
    for (int i = 0; i < p->rows->term_count; i++) {
        const struct term *term = &p->rows->terms[i];
        if (is_entry(p, term) && term->operand == p->rows->sampled)
            text_add(p->code,
                     "    %s some[SOME];\n    for (int i = 0; i < SOME; i++) some[i] = in.r%d[i].at(0);\n"
                     "    r.v%d = mean_of(some);\n",
                     type_of(p, term->operand), term->operand, term->name);
        else if (is_entry(p, term))
            text_add(p->code, "    r.v%d = in.r%d.at(%s);\n", term->name, term->operand,
                     *entry_length(p, term->operand) == 'R' ? "l" : "0");
        else if (is_row_field(term) && term->kind == TERM_LOAD)
            print_row_index(p, term);
    }
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
        if (p->s->nest.is_columns) {
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

/* The same of the row with which a run of rows side by side begins, or of the l-th after it. */
static void print_one_row(struct printer *p) {
    text_add(p->code, "DEVICE void open_row(row& r, const arguments& a, const place& at, int l) {\n");
    for (int i = 0; i < p->rows->term_count; i++) {
        const struct term *term = &p->rows->terms[i];
        int k = term->operand;
        if (is_entry(p, term)) {
            text_add(p->code, "    {\n    const %s* p = ", type_of(p, k));
            print_address(p, k, true);
            text_add(p->code, ";\n    r.v%d = %s(p", term->name, k == p->rows->sampled ? "sample" : "*");
            print_step(p, k);
            text_add(p->code, "%s);\n    }\n", k == p->rows->sampled ? ", a.sample_step" : "");
        } else if (is_row_field(term) && term->kind == TERM_LOAD) {
            print_row_index(p, term);
        }
    }
    print_row_terms(p, 0);
    text_add(p->code, "}\n\nDEVICE void store_row(const row& r, const arguments& a, const place& at, int l) {\n");
    for (int k = 0; k < p->rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        if (!operand->is_store || !is_row_field(rows_find(p->rows, operand->value)))
            continue;
        text_add(p->code, "    *(");
        print_address(p, k, true);
        print_step(p, k);
        text_add(p->code, ") = from<%s>::number(as_number(r.v%d));\n", type_of(p, k), operand->value);
    }
    text_add(p->code, "}\n\n");
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* A line for each total of a pass: # is its kind, @ the number in its name. */
static void print_totals(struct printer *p, int pass, const char *line) {
    for (int i = 0; i < p->rows->term_count; i++) {
        const struct term *term = &p->rows->terms[i];
        for (const char *at = line; *at && closes(term, pass); at++)
            if (*at == '#')
                text_add(p->code, "%s<%s%s>", totals[term->total].type, term->type,
                         term->total != TOTAL_WEIGHTS ? ""
                         : p->rows->is_brief          ? ", true"
                                                      : ", false");
            else if (*at == '@')
                text_add(p->code, "%d", term->name);
            else
                text_add_chars(p->code, at, 1);
    }
}

static void print_total(struct printer *p, int pass) {
    const struct rows *rows = p->rows;
    bool any = false;
    for (int i = 0; i < rows->term_count; i++)
        any = any || closes(&rows->terms[i], pass);
    text_add(p->code, "    static constexpr bool CLOSES = %s;\n    struct taken {\n", any ? "true" : "false");
    print_totals(p, pass, "        typename #::taker t@;\n");
    text_add(p->code, "    };\n    struct total {\n");
    print_totals(p, pass, "        # t@;\n");
    text_add(p->code, "    };\n    static constexpr bool COMMUTES = true");
    print_totals(p, pass, " && #::COMMUTES");
    text_add(p->code, ";\n    static DEVICE taken nothing() {\n        taken t;\n");
    print_totals(p, pass, "        t.t@ = #::taker::none();\n");
    text_add(p->code,
             "        return t;\n    }\n    static DEVICE total settled(const taken& a) {\n        total t;\n");
    print_totals(p, pass, "        t.t@ = a.t@.settled();\n");
    text_add(p->code, "        return t;\n    }\n    static DEVICE total none() {\n        total t;\n");
    print_totals(p, pass, "        t.t@ = #::none();\n");
    text_add(p->code, "        return t;\n    }\n    static DEVICE total joined(const total& a, const total& b) {\n"
                      "        total t;\n");
    print_totals(p, pass, "        t.t@ = #::joined(a.t@, b.t@);\n");
    text_add(p->code,
             "        return t;\n    }\n"
             "    template <int FIRST, int LAST> static DEVICE total of_lanes(const total& a) {\n        total t;\n");
    print_totals(p, pass, "        t.t@ = reduce_lanes<#, FIRST, LAST>(a.t@);\n");
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
                 "    static DEVICE i64 parts(const arguments& a) { return a.parts%d; }\n"
                 "    static constexpr bool IS_JOINED = %s;\n",
                 pass, pass, p->stage->part_count[pass] == 1 ? "true" : "false");
}

static bool is_loaded_by_pass(const struct printer *p, int k, const bool *takes_part) {
    return is_element_load(p, k) && !schedule_keeps(p->s, k) &&
           takes_part[rows_find(p->rows, operand_at(p, k)->value) - p->rows->terms];
}

static void print_inputs(struct printer *p, const bool *takes_part) {
    text_add(p->code, "    struct inputs {\n");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_loaded_by_pass(p, k, takes_part))
            print_run_field(p, k);
    text_add(p->code, "    };\n    template <int N = RUN, bool IS_LAST = false>\n"
                      "    static DEVICE void load(inputs& in, const arguments& a, const place& at, position q) {\n");
    print_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (is_loaded_by_pass(p, k, takes_part))
            print_load(p, k, "in.",
                       (!p->s->memory.steps || p->s->memory.scheme == MEMORY_CHANNELS) && !is_broadcast_to_rows(p, k));
    text_add(p->code, "    }\n");
}

static void print_element_load(struct printer *p, const struct term *term) {
    int k = term->operand;
    const struct operand *operand = operand_at(p, k);
    const struct schedule *s = p->s;
    const char *from = schedule_keeps(s, k) ? "own" : s->memory.keeps_broadcast ? "all" : "in";
    if (operand->memory == MEMORY_INDEX) {
        text_add(p->code, "    const i64 v%d = ", term->name);
        if (depends_on(operand, 0, s->nest.row_dims))
            text_add(p->code, "at.b%d + ", k);
        text_add(p->code, "o%d[u]", k);
        if (fast_stride(p, k) == 1)
            text_add(p->code, " + e");
        else if (fast_stride(p, k))
            text_add(p->code, " + e * a.s%d_%d", k, schedule_fast_dim(s));
        text_add(p->code, ";\n");
        return;
    }
    text_add(p->code, "    const %s v%d = %s[u].r%d.at(%s);\n", term->type, term->name, from, k,
             fast_stride(p, k) ? "e" : "0");
}

/* Offsets of indices, which have no memory to load from. */
static void print_index_offsets(struct printer *p, const bool *takes_part) {
    for (int k = 0; k < p->rows->operand_count; k++) {
        const struct operand *operand = operand_at(p, k);
        if (operand->memory != MEMORY_INDEX || operand->is_store ||
            !takes_part[rows_find(p->rows, operand->value) - p->rows->terms])
            continue;
        text_add(p->code, "    i64 o%d[U];\n    for (int u = 0; u < U; u++) {\n", k);
        print_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q + u * BETWEEN");
        text_add(p->code, "    o%d[u] = ", k);
        print_offset(p, k, p->s->nest.row_dims, p->s->nest.rank);
        text_add(p->code, ";\n    }\n");
    }
}

static bool stores_elements(const struct printer *p, int k, int pass) {
    const struct operand *operand = operand_at(p, k);
    return pass == p->s->passes.storing && operand->is_store && rows_find(p->rows, operand->value)->spans;
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
        bool is_summed = operand->is_store && is_column(term);
        if (is_summed && pass == term->stage)
            text_add(p->code, "    columns->at[%d].at[e] += v%d;\n", column, rows->terms[term->uses[0]].name);
        else if (stores_elements(p, k, pass))
            text_add(p->code, "    w%d[u].at[e] = from<%s>::number(as_number(v%d));\n", k, type_of(p, k),
                     operand->value);
        column += is_summed; /* those of other passes count, too */
    }
}

static void print_elements(struct printer *p, int pass, const bool *takes_part) {
    const struct rows *rows = p->rows;
    text_add(p->code,
             "    template <int U, int N = RUN>\n    static DEVICE void elements(%sheld* own, const common* all, const "
             "inputs* in, "
             "const row* now, taken* sums, column* columns, const arguments& a, const place& at, position q) {\n"
             "    constexpr int OUTER = COLUMNS ? RUN : U, INNER = COLUMNS ? U : N;\n",
             p->s->memory.keeps_weights ? "" : "const ");
    print_index_offsets(p, takes_part);
    for (int k = 0; k < rows->operand_count; k++)
        if (stores_elements(p, k, pass))
            text_add(p->code, "    run<%s, N> w%d[U];\n", type_of(p, k), k);
    text_add(p->code, "    #pragma unroll\n    for (int outer = 0; outer < OUTER; outer++) {\n");
    for (int i = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass))
            text_add(p->code, "    %s x%d[INNER];\n", rows->terms[i].type, rows->terms[i].name);
    text_add(p->code, "    #pragma unroll\n    for (int inner = 0; inner < INNER; inner++) {\n"
                      "    const int u = COLUMNS ? inner : outer, e = COLUMNS ? outer : inner;\n"
                      "    [[maybe_unused]] const row& r = now[COLUMNS ? e : 0];\n");
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        if (!takes_part[i])
            continue;
        for (int n = 0; n < term->names && !term->spans; n++)
            text_add(p->code, "    const %s v%d = r.v%d;\n", term->type, term->name + n, term->name + n);
        bool is_carried = schedule_keeps_term(p->s, term);
        if (is_carried && term->stage < pass)
            text_add(p->code, "    const float v%d = own[u].e%d[e];\n", term->name, term->name);
        else if (term->spans && term->kind == TERM_LOAD)
            print_element_load(p, term);
        else if (term->spans)
            print_term(p, term);
        if (is_carried && term->stage == pass)
            text_add(p->code, "    own[u].e%d[e] = v%d;\n", term->name, term->name);
    }
    print_element_results(p, pass);
    text_add(p->code, "    }\n");
    for (int i = 0; i < rows->term_count; i++)
        if (closes(&rows->terms[i], pass))
            text_add(p->code, "    sums[COLUMNS ? outer : 0].t%d.added(x%d);\n", rows->terms[i].name,
                     rows->terms[i].name);
    text_add(p->code, "    }\n    for (int u = 0; u < U; u++) {\n");
    print_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q + u * BETWEEN");
    for (int k = 0; k < rows->operand_count; k++) {
        char from[16];
        snprintf(from, sizeof from, "w%d[u]", k);
        if (stores_elements(p, k, pass))
            print_store(p, k, from, false, p->s->memory.stores_evict_first ? "put_away" : "stream_out");
    }
    text_add(p->code, "    }\n    }\n");
}

/* What a pass is for: "pass 1 of 3; reduces to sum<float> t6; stores y of softmax". */
static void print_purpose(struct printer *p, int pass) {
    text_add(p->code, "// pass %d of %d", pass, p->walk->passes);
    print_totals(p, pass, "; reduces to # t@");
    for (int k = 0; k < p->rows->operand_count; k++)
        if (stores_elements(p, k, pass) && p->rows->operands[k].memory >= 0) {
            text_add(p->code, "; stores ");
            print_origin(p->code, p->rows->region, p->rows->operands[k].memory);
        }
    text_add(p->code, "\n");
}

static void print_passes(struct printer *p) {
    text_add(p->code, "template <int P> struct pass;\n\n");
    for (int pass = 0; pass < p->s->passes.count; pass++) {
        bool takes_part[TERMS_MAX];
        schedule_terms_of_pass(p->s, pass, takes_part);
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
    text_add(
        p->code,
        "using column_t = %s;\nstruct column { run<column_t, RUN> at[COLUMN_TOTALS > 0 ? COLUMN_TOTALS : 1]; };\n\n"
        "DEVICE void clear_column(column& c) {\n    #pragma unroll\n    for (int k = 0; k < COLUMN_TOTALS; k++)\n"
        "        for (int e = 0; e < RUN; e++) c.at[k].at[e] = 0;\n}\n\n"
        "template <int N = RUN>\nDEVICE void store_column(int k, const run<column_t, RUN>& from, const arguments& a, "
        "i64 group, position q) {\n",
        type);
    if (p->s->unaligned.most)
        text_add(p->code, "    const place at = place_of(a, group);\n");
    print_coordinates(p, p->s->nest.row_dims, p->s->nest.rank, "q");
    for (int k = 0, column = 0; k < p->rows->operand_count; k++) {
        if (!operand_at(p, k)->is_store || !is_column(rows_find(p->rows, operand_at(p, k)->value)))
            continue;
        text_add(p->code, "    if (k == %d) {\n    auto* const to = a.p%d + blockIdx.x / CLUSTER * a.block%d + ",
                 column++, k, k);
        print_offset(p, k, p->s->nest.row_dims, p->s->nest.rank);
        if (fast_stride(p, k) > 1)
            text_add(p->code, ";\n    for (int e = 0; e < RUN; e++) to[e * a.s%d_%d] = from.at[e];\n    }\n", k,
                     schedule_fast_dim(p->s));
        else if (p->s->unaligned.most)
            text_add(p->code, ";\n    for (int e = 0; e < N; e++) to[e] = from.at[e];\n    }\n");
        else
            text_add(p->code, ";\n    store_run<column_t, RUN>(to, from);\n    }\n");
    }
    text_add(p->code, "}\n\n");
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* What kernels have in front of them, but for their constants. */
static void print_functions(struct printer *p) {
    print_fields(p);
    text_add(p->code, "DEVICE float as_number(float x) { return x; }\nDEVICE double as_number(double x) { return x; }\n"
                      "DEVICE i64 as_number(i64 x) { return x; }\n"
                      "template <class T> DEVICE float as_number(T x) { return to_float(x); }\n\n");
    print_place(p);
    print_held(p);
    print_row_struct(p);
    if (p->s->memory.scheme == MEMORY_CHANNELS)
        print_one_row(p);
    else {
        print_entry(p);
        print_open(p);
    }
    print_columns(p);
    print_passes(p);
    if (p->s->memory.scheme != MEMORY_CHANNELS)
        print_row_stores(p);
}

void print_row_functions(struct kernel_print *print, const struct schedule *s) {
    const struct stage stage = {
        .passes_end = s->passes.count, .parts = 1, .join = -1, .has_row_stores = true, .left = -1};
    struct printer p = {s, s->rows, &stage, print, &print->code};
    print_functions(&p);
}

static weftStatus_t print_launch(const struct schedule *planned, const struct stage *stage, struct cuda_step *state,
                                 struct arena *arena) {
    struct schedule joining, *s = &joining;
    joining = *planned;
    if (stage->passes_end <= stage->recalled)
        schedule_for_joining(s, planned->grid.splits);
    else if (stores_only(stage))
        schedule_for_storing(s);
    if (state->count == KERNELS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would take more than %d launches", KERNELS_MAX);
    struct kernel_print print;
    kernel_print_init(&print, s->rows->graph);
    struct printer p = {s, s->rows, stage, &print, &print.code};
    print_constants(&p);
    print_functions(&p);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    int64_t jobs = s->grid.tiles * stage->parts,
            most = schedule_is_persistent(s) ? s->grid.blocks : INT32_MAX / s->threads.cluster;
    kernel->grid[0] = (uint32_t)((jobs < most ? jobs : most) * s->threads.cluster);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)s->threads.block;
    kernel->shared_bytes = (uint32_t)schedule_shared_bytes(s);
    kernel->cluster = s->threads.cluster > 1 ? (uint32_t)s->threads.cluster : 0;
    kernel->is_dependent = s->grid.is_dependent;
    return kernel_finish(&print, kernel,
                         s->memory.scheme == MEMORY_PIPELINED ? "rows/rows_pipelined.cuh" : "rows/rows.cuh", "rows",
                         arena);
}

static int64_t take_scratch(int64_t *scratch_bytes, int64_t bytes) {
    int64_t at = *scratch_bytes;
    *scratch_bytes += round_up(bytes, 256);
    return at;
}

weftStatus_t print_rows(const struct schedule *s, struct cuda_step *state, int64_t *scratch_bytes,
                        struct arena *arena) {
    int64_t places[TERMS_MAX], counts[TERMS_MAX], bytes = schedule_slots(s) * schedule_partial_bytes(s);
    struct stage stage = {.passes_end = s->passes.count,
                          .parts = 1,
                          .join = -1,
                          .has_row_stores = true,
                          .left = -1,
                          .totals = places,
                          .part_count = counts};
    if (s->vectors.strips == 0)
        return WEFT_STATUS_SUCCESS;
    if (s->grid.splits == 1)
        return print_launch(s, &stage, state, arena);
    stage.has_row_stores = false;
    for (int pass = 0; pass < s->passes.closed; pass++) {
        places[pass] = take_scratch(scratch_bytes, bytes * s->grid.splits);
        counts[pass] = s->grid.splits;
        stage.is_split = true;
        stage.parts = s->grid.splits;
        stage.recalled = pass;
        stage.passes_end = pass + 1;
        stage.left = places[pass];
        TRY(print_launch(s, &stage, state, arena));
        if (!schedule_joins(s, pass))
            continue;
        stage.is_split = false;
        stage.parts = 1;
        stage.recalled = pass + 1;
        stage.passes_end = 0;
        stage.join = pass;
        stage.left = take_scratch(scratch_bytes, bytes);
        TRY(print_launch(s, &stage, state, arena));
        stage.join = -1;
        places[pass] = stage.left;
        counts[pass] = 1;
    }
    stage.is_split = s->passes.storing >= s->passes.closed;
    stage.parts = stage.is_split ? s->grid.store_splits : 1;
    stage.recalled = s->passes.closed;
    stage.passes_end = stage.is_split ? s->passes.closed + 1 : s->passes.closed;
    stage.has_row_stores = true;
    stage.left = -1;
    return print_launch(s, &stage, state, arena);
}
