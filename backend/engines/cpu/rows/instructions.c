/* SPDX-License-Identifier: Apache-2.0 */
/* Generates the instructions of each pass from terms: which terms it evaluates, which results it keeps for later
   passes, and the register of each. A pass reads all elements of a tile once. Decisions depend only on the terms; block
   sizes are chosen afterwards. */
#include "engines/cpu/rows/schedule.h"

#include <string.h>

static const double KEEPS = 0.4; /* nanoseconds per element above which a term is kept rather than recomputed */
/* KEPT: maximum number of terms kept between passes. */
enum { KEPT = 4 };

static const struct term *term_at(const struct row_schedule *s, int term) { return &s->rows->terms[term]; }

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* Counts the passes. `closed` of them end in reductions; one more may only store. Elements are stored in the last pass,
   a reduction of stage n closes pass n - 1, and a column sum is accumulated as soon as its elements are known. */
static weftStatus_t count_passes(struct row_schedule *s) {
    int last = -1;
    s->closed = 0;
    for (int i = 0; i < s->rows->term_count; i++) {
        const struct term *term = term_at(s, i);
        if (term->is_needed && term->kind == TERM_REDUCTION && term->stage > s->closed)
            s->closed = term->stage;
        if (term->is_needed && term->kind == TERM_COLUMN_SUM && term->stage > last)
            last = term->stage;
    }
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct row_operand *operand = &s->rows->operands[k];
        if (operand->is_store && term_at(s, operand->term)->spans && term_at(s, operand->term)->stage > last)
            last = term_at(s, operand->term)->stage;
    }
    /* Without reductions and stores of elements there are no passes: only row values are computed. */
    s->pass_count = s->closed > last + 1 ? s->closed : last + 1;
    if (s->pass_count > ROWWISE_PASSES)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region needs %d passes, at most %d are supported",
             s->pass_count, ROWWISE_PASSES);
    return WEFT_STATUS_SUCCESS;
}

/* Row values are stored after a tile's passes. */
static bool stores_elements(const struct row_schedule *s, const struct row_operand *operand) {
    return operand->is_store && term_at(s, operand->term)->spans;
}

/* True if a term is stored without conversion. */
static bool is_stored(const struct row_schedule *s, int term) {
    bool stored = false;
    for (int k = 0; k < s->rows->operand_count; k++)
        stored = stored || (s->rows->operands[k].is_store && s->rows->operands[k].term == term);
    return stored;
}

/* The pass that stores elements: the last one that any of them needs, so that outputs may overwrite inputs. -1 if no
   elements are stored. */
static int storing_pass(const struct row_schedule *s) {
    int pass = -1;
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct row_operand *operand = &s->rows->operands[k];
        if (stores_elements(s, operand) && term_at(s, operand->term)->stage > pass)
            pass = term_at(s, operand->term)->stage;
    }
    return pass;
}

/* True if a pass ends with this reduction or accumulates this column sum. */
static bool closes(const struct term *term, int pass) {
    return term->is_needed && ((term->kind == TERM_REDUCTION && term->stage == pass + 1) ||
                               (term->kind == TERM_COLUMN_SUM && term->stage == pass));
}

/* Marks a term and, recursively, the arguments of its elements, except what an earlier pass kept. */
static void mark(const struct row_schedule *s, int pass, int term, bool *is_marked) {
    const struct term *at = term_at(s, term);
    bool is_there = !at->spans || (s->kept[term] >= 0 && s->kept_pass[term] < pass);
    for (int i = 0; i < at->argument_count && !is_marked[term] && !is_there; i++)
        mark(s, pass, at->arguments[i], is_marked);
    is_marked[term] = true;
}

/* Marks what a pass evaluates: everything that its reductions and stores depend on. */
static void mark_pass(const struct row_schedule *s, int pass, bool *is_marked) {
    memset(is_marked, 0, (size_t)s->rows->term_count * sizeof *is_marked);
    for (int i = 0; i < s->rows->term_count; i++)
        if (closes(term_at(s, i), pass))
            mark(s, pass, term_at(s, i)->arguments[0], is_marked);
    for (int k = 0; k < s->rows->operand_count; k++)
        if (stores_elements(s, &s->rows->operands[k]) && pass == storing_pass(s))
            mark(s, pass, s->rows->operands[k].term, is_marked);
}

/* ---- Keeping terms between passes -------------------------------------------------------------------------------- */

/* Nanoseconds to recompute an element of each term; shared arguments count once per use. Stops adding at KEEPS, because
   only that threshold matters. */
static void price_terms(const struct row_schedule *s, double *nanoseconds) {
    for (int i = 0; i < s->rows->term_count; i++) {
        const struct term *at = term_at(s, i);
        /* A load costs as much as reading a kept value, except for conversions: see is_converted. */
        nanoseconds[i] = at->spans && at->kind != TERM_LOAD ? at->nanoseconds : 0;
        for (int k = 0; k < at->argument_count && at->spans && nanoseconds[i] < KEEPS; k++)
            nanoseconds[i] += nanoseconds[at->arguments[k]];
    }
}

/* True if a reduction of the later pass, or one of its terms that the earlier pass does not evaluate, reads this term.
   If only terms of the earlier pass read it, keeping it is useless: the later pass reads those. */
static bool is_reused_later(const struct row_schedule *s, int term, const bool *earlier, const bool *later, int pass) {
    for (int i = term + 1; i < s->rows->term_count; i++)
        for (int k = 0; k < term_at(s, i)->argument_count; k++)
            if (term_at(s, i)->arguments[k] == term && ((later[i] && !earlier[i]) || closes(term_at(s, i), pass)))
                return true;
    return false;
}

/* True if a term loads elements that need a conversion. */
static bool is_converted(const struct row_schedule *s, int term) {
    const struct term *at = term_at(s, term);
    return at->kind == TERM_LOAD && at->spans && s->rows->operands[at->operand].value != VALUE_INDEX &&
           s->rows->operands[at->operand].type != (at->is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
}

/* True if a load reads the same elements for all rows. */
static bool is_row_invariant(const struct row_schedule *s, int term) {
    bool is_row_invariant = true;
    for (int i = 0; i < s->rows->space.axis_count; i++)
        is_row_invariant = is_row_invariant && (s->rows->space.axes[i].is_reduced ||
                                                s->rows->operands[term_at(s, term)->operand].strides[i] == 0);
    return is_row_invariant;
}

/* Keeps expensive terms that both passes evaluate, at most KEPT of them: each needs memory for all rows of a tile. */
static void keep_between(struct row_schedule *s, int earlier, int later, const double *nanoseconds,
                         enum row_keeping keeping) {
    bool before[ROWWISE_TERMS], after[ROWWISE_TERMS];
    mark_pass(s, earlier, before);
    mark_pass(s, later, after);
    for (int i = 0; i < s->rows->term_count && s->kept_count < KEPT; i++)
        if (before[i] && after[i] && s->kept[i] < 0 && term_at(s, i)->spans &&
            (nanoseconds[i] >= KEEPS ||
             (keeping == KEEP_CONVERTED_LOADS && is_converted(s, i) && !is_row_invariant(s, i))) &&
            is_reused_later(s, i, before, after, later)) {
            s->kept[i] = s->kept_count++;
            s->kept_pass[i] = earlier;
        }
}

/* Fills in s->kept: slot of each term, or -1; kept_pass: the pass that fills it; kept_operand: set by keep_in_place. */
static void choose_kept(struct row_schedule *s, enum row_keeping keeping) {
    double nanoseconds[ROWWISE_TERMS];
    price_terms(s, nanoseconds);
    s->kept_count = 0;
    for (int i = 0; i < s->rows->term_count; i++)
        s->kept[i] = s->kept_operand[i] = -1;
    for (int later = 1; keeping != KEEP_NOTHING && later < s->pass_count; later++)
        for (int earlier = 0; earlier < later; earlier++)
            keep_between(s, earlier, later, nanoseconds, keeping);
}

/* ---- Generating -------------------------------------------------------------------------------------------------- */

/* A pass while its instructions are generated; on the stack of list_pass. */
struct listing {
    struct row_schedule *s;
    int pass;
    bool is_marked[ROWWISE_TERMS];
    int at[ROWWISE_TERMS]; /* the instruction that computes a term, or -1 */
    struct {
        int opcode, count, x[ROW_ARGUMENTS]; /* a formula after merging with its arguments */
    } formulas[ROWWISE_TERMS];
    bool is_merged[ROWWISE_TERMS];
    bool is_product[ROWWISE_TERMS]; /* in a pair of sums, the sum of products */
    int pair_of[ROWWISE_TERMS]; /* the sum that is computed together with a sum of products, and vice versa; -1: none */
    bool is_full;
};

/* Initializes only the existing terms: most programs have few. */
static void begin_listing(struct listing *l, struct row_schedule *s, int pass) {
    l->s = s;
    l->pass = pass;
    l->is_full = false;
    for (int i = 0; i < s->rows->term_count; i++) {
        l->at[i] = l->pair_of[i] = -1;
        l->is_merged[i] = l->is_product[i] = false;
    }
}

/* Appends an instruction. If no room is left, the last one is overwritten and is_full discards the listing. Verbs up to
   CALCULATE have a result. */
static struct row_instruction *add(struct listing *l, enum row_verb verb, int term) {
    struct row_schedule *s = l->s;
    l->is_full = l->is_full || s->instruction_count == ROWWISE_INSTRUCTIONS;
    s->instruction_count -= l->is_full;
    struct row_instruction *instruction = &s->instructions[s->instruction_count++];
    *instruction = (struct row_instruction){verb, term, -1, {0}, -1, false, false, false, -1, -1, -1, -1};
    for (int i = 0; i < ROW_ARGUMENTS; i++)
        instruction->x[i] = -1;
    if (verb <= ROW_CALCULATE) {
        instruction->dst = s->instruction_count - 1; /* its own index, until registers are assigned */
        l->at[term] = instruction->dst;
    }
    return instruction;
}

/* Registers an operand whose address is updated from block to block. */
static void add_use(struct row_pass *pass, int operand) {
    for (int i = 0; i < pass->uses_count; i++)
        if (pass->uses[i] == operand)
            return;
    pass->uses[pass->uses_count++] = operand;
}

/* Row values that the pass reads for each element. They come first, because they are spread once for all blocks of a
   tile. */
static void add_spreads(struct listing *l) {
    for (int i = 0; i < l->s->rows->term_count; i++)
        if (l->is_marked[i] && !term_at(l->s, i)->spans)
            add(l, ROW_SPREAD, i);
}

/* True if a product is only summed in this pass, so that its elements need no register. */
static bool is_only_summed(const struct listing *l, int term) {
    const struct row_schedule *s = l->s;
    const struct term *at = term_at(s, term);
    if (at->kind != TERM_FORMULA || at->opcode != OPCODE_MULTIPLY || s->kept[term] >= 0)
        return false;
    /* Other readers in this pass, and reductions other than sums, need the elements. */
    for (int i = term + 1; i < s->rows->term_count; i++)
        for (int k = 0; k < term_at(s, i)->argument_count; k++)
            if (term_at(s, i)->arguments[k] == term &&
                (l->is_marked[i] || (closes(term_at(s, i), l->pass) && term_at(s, i)->opcode != OPCODE_SUM)))
                return false;
    return !is_stored(s, term);
}

/* True if an earlier pass kept the term. */
static bool is_recalled(const struct listing *l, int term) {
    return l->s->kept[term] >= 0 && l->s->kept_pass[term] < l->pass;
}

/* Generates no instruction for a product that is only summed or for a formula that was merged into another. */
static void add_element(struct listing *l, int term) {
    const struct term *at = term_at(l->s, term);
    if (!at->spans || is_only_summed(l, term) || l->is_merged[term])
        return;
    /* The verb depends on the source of the elements. */
    struct row_instruction *instruction = add(l,
                                              is_recalled(l, term)    ? ROW_RECALL
                                              : at->kind == TERM_LOAD ? ROW_LOAD
                                                                      : ROW_CALCULATE,
                                              term);
    instruction->slot = l->s->kept[term];
    instruction->is_row_invariant =
        instruction->verb == ROW_LOAD && is_converted(l->s, term) && is_row_invariant(l->s, term);
    instruction->operand = instruction->verb == ROW_LOAD     ? at->operand
                           : instruction->verb == ROW_RECALL ? l->s->kept_operand[term]
                                                             : -1;
    /* The formula's own opcode, or that of several merged formulas. */
    instruction->opcode = instruction->verb == ROW_CALCULATE ? l->formulas[term].opcode : -1;
    for (int i = 0; i < l->formulas[term].count && instruction->verb == ROW_CALCULATE; i++)
        instruction->x[i] = l->at[l->formulas[term].x[i]];
    if (instruction->operand >= 0)
        add_use(&l->s->passes[l->pass], instruction->operand);
}

/* Generates the pair once both sums are known. Its factors are p (optional) and x - m. */
static void add_pair(struct listing *l, int product) {
    struct row_pass *pass = &l->s->passes[l->pass];
    /* One factor of the product is x - m; the other is p, or x - m again. */
    int sum = l->pair_of[product];
    const struct term *of = term_at(l->s, term_at(l->s, product)->arguments[0]);
    bool is_square = of->arguments[0] == of->arguments[1];
    const struct term *deviation = term_at(l->s, of->arguments[is_square || l->is_merged[of->arguments[1]]]);
    struct row_instruction *instruction = add(l, ROW_REDUCE_PAIR, sum);
    instruction->pair = product;
    instruction->slot = pass->totals++;
    instruction->pair_slot = pass->totals++;
    instruction->opcode = OPCODE_SUM; /* accepts row values as formulas do */
    /* x - m has no register: the kernel computes the difference itself. */
    instruction->x[0] = l->at[deviation->arguments[0]];
    instruction->x[1] = l->at[deviation->arguments[1]];
    instruction->x[2] = is_square ? -1 : l->at[of->arguments[!l->is_merged[of->arguments[1]] ? 1 : 0]];
}

/* If the product has no register, its two factors are reduced: x[0] * x[1]. A pair is generated at its second sum, when
   everything that both read has an instruction. */
static void add_reduction(struct listing *l, int term) {
    const struct term *at = term_at(l->s, term), *of = term_at(l->s, at->arguments[0]);
    if (l->pair_of[term] >= 0) {
        if (l->pair_of[term] < term) /* at the second sum, all operands of both are available */
            add_pair(l, l->is_product[term] ? term : l->pair_of[term]);
        return;
    }
    struct row_instruction *instruction = add(l, at->kind == TERM_REDUCTION ? ROW_REDUCE : ROW_SUM_COLUMN, term);
    /* Totals are numbered from 0 in each pass. */
    instruction->slot = at->kind == TERM_REDUCTION ? l->s->passes[l->pass].totals++ : l->s->sum_count++;
    instruction->x[0] = l->at[at->arguments[0]];
    if (instruction->x[0] >= 0)
        return;
    instruction->x[0] = l->at[of->arguments[0]];
    instruction->x[1] = l->at[of->arguments[1]];
}

/* Stores come last in a pass. */
static void add_stores(struct listing *l) {
    const struct rowwise *rows = l->s->rows;
    for (int k = 0; k < rows->operand_count; k++) {
        if (!stores_elements(l->s, &rows->operands[k]) || l->pass != storing_pass(l->s))
            continue;
        struct row_instruction *instruction = add(l, ROW_STORE, rows->operands[k].term);
        instruction->x[0] = l->at[instruction->term];
        instruction->operand = k;
        add_use(&l->s->passes[l->pass], k);
    }
}

/* The last formula of a pass may write directly to memory, because everything else has been read by then. This requires
   memory of the arithmetic type. */
static void store_directly(struct row_schedule *s, const struct row_pass *pass) {
    int last = pass->first + pass->count - 1, at = last;
    /* Stores come last. */
    while (at >= pass->first && s->instructions[at].verb == ROW_STORE)
        at--;
    struct row_instruction *formula = at >= pass->first ? &s->instructions[at] : NULL;
    /* A kept formula is written to its slot instead. */
    if (!formula || formula->verb != ROW_CALCULATE || formula->slot >= 0)
        return;
    weftDataType_t type = term_at(s, formula->term)->is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
    for (int i = at + 1; i <= last; i++)
        if (s->instructions[i].term == formula->term && s->rows->operands[s->instructions[i].operand].type == type)
            formula->operand = s->instructions[i].operand;
}

/* True if a later pass reads elements from memory. */
static bool reads_later(const struct row_schedule *s, int pass) {
    bool is_marked[ROWWISE_TERMS];
    while (++pass < s->pass_count) {
        mark_pass(s, pass, is_marked);
        for (int i = 0; i < s->rows->term_count; i++)
            if (is_marked[i] && term_at(s, i)->kind == TERM_LOAD && term_at(s, i)->spans)
                return true;
    }
    return false;
}

/* Returns an operand of this type to which elements are stored at the end and which holds no kept term yet, or -1. */
static int find_kept_operand(const struct row_schedule *s, weftDataType_t type) {
    for (int k = 0; k < s->rows->operand_count; k++) {
        bool is_free = stores_elements(s, &s->rows->operands[k]) && s->rows->operands[k].type == type;
        for (int i = 0; i < s->rows->term_count; i++)
            is_free = is_free && s->kept_operand[i] != k;
        if (is_free)
            return k;
    }
    return -1;
}

/* Writes a kept formula to the memory of a future result instead of a slot. That memory must be fetched anyway, and
   this overlaps with the computation. Results may be stored over inputs, so nothing may be read from memory afterwards:
   only reductions of the formula's own elements may follow, and later passes must recall everything that they need.
   Results must be stored in the last pass, and none of them may be the formula itself, because another one would
   overwrite it. */
static void keep_in_place(struct row_schedule *s, int number) {
    struct row_pass *pass = &s->passes[number];
    int at = pass->first + pass->count - 1;
    while (at >= pass->first && s->instructions[at].verb == ROW_REDUCE)
        at--;
    struct row_instruction *formula = at >= pass->first ? &s->instructions[at] : NULL;
    if (!formula || formula->verb != ROW_CALCULATE || formula->slot < 0 || reads_later(s, number))
        return;
    if (storing_pass(s) != s->pass_count - 1 || is_stored(s, formula->term))
        return;
    for (int i = at + 1; i < pass->first + pass->count; i++)
        if (s->instructions[i].x[0] != at || (s->instructions[i].x[1] >= 0 && s->instructions[i].x[1] != at))
            return;
    int operand = find_kept_operand(s, term_at(s, formula->term)->is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
    formula->operand = s->kept_operand[formula->term] = operand;
    if (operand >= 0)
        add_use(pass, operand);
}

/* ---- Merging formulas -------------------------------------------------------------------------------------------- */

/* Number of readers of a term in this pass. */
static int count_readers(const struct listing *l, int term) {
    const struct row_schedule *s = l->s;
    int readers = 0;
    for (int i = term + 1; i < s->rows->term_count; i++)
        for (int k = 0; k < term_at(s, i)->argument_count; k++)
            if (term_at(s, i)->arguments[k] == term)
                readers += (l->is_marked[i] && term_at(s, i)->spans) + closes(term_at(s, i), l->pass);
    for (int k = 0; k < s->rows->operand_count; k++)
        readers += s->rows->operands[k].is_store && s->rows->operands[k].term == term;
    return readers;
}

/* True if a formula of elements has this opcode and exactly one reader. A formula that is kept or read twice needs its
   own result. */
static bool can_merge(const struct listing *l, int term, int opcode) {
    const struct term *at = term_at(l->s, term);
    return at->kind == TERM_FORMULA && at->spans && l->formulas[term].opcode == opcode && l->s->kept[term] < 0 &&
           !l->is_merged[term] && count_readers(l, term) == 1;
}

/* Ordered so that later rows can match formulas that earlier rows merged. */
static const struct {
    int outer, inner, instruction; /* opcodes of a formula, of its argument, and of the merged formula */
    int first, last;               /* positions of the argument; any of them matches */
} merges[] = {
    {OPCODE_MULTIPLY, OPCODE_SUBTRACT, ROW_SUBTRACT_MULTIPLY, 0, 1},
    {OPCODE_ADD, ROW_SUBTRACT_MULTIPLY, ROW_SUBTRACT_MULTIPLY_ADD, 0, 1},
    {OPCODE_MULTIPLY, ROW_SUBTRACT_MULTIPLY, ROW_DEVIATION_MULTIPLY, 0, 1},
    {OPCODE_ADD, ROW_DEVIATION_MULTIPLY, ROW_DEVIATION_MULTIPLY_ADD, 0, 1},
    {OPCODE_ADD, OPCODE_MULTIPLY, ROW_MULTIPLY_ADD, 0, 1},
    {OPCODE_SUBTRACT, OPCODE_MULTIPLY, ROW_MULTIPLY_SUBTRACT, 0, 0},
    {OPCODE_MULTIPLY, OPCODE_MULTIPLY, ROW_MULTIPLY_MULTIPLY, 0, 1},
    {OPCODE_SUBTRACT, ROW_MULTIPLY_MULTIPLY, ROW_MULTIPLY_MULTIPLY_SUBTRACT, 0, 0},
    {ROW_MULTIPLY_ADD, ROW_SUBTRACT_MULTIPLY, ROW_DEVIATION_MULTIPLY_ADD, 0, 1},
    {ROW_SUBTRACT_MULTIPLY_ADD, ROW_SUBTRACT_MULTIPLY, ROW_NORMALISE, 0, 0},
    {ROW_MULTIPLY_MULTIPLY_SUBTRACT, ROW_DEVIATION_MULTIPLY_ADD, ROW_GRADIENT, 3, 3},
    {ROW_EXPONENTIAL, OPCODE_SUBTRACT, ROW_SUBTRACT_EXPONENTIAL, 0, 0},
};

/* Merges argument k: its arguments come first, then the others of the outer formula. The inner formula gets no
   instruction, because its result has no other reader. */
static void merge(struct listing *l, int term, int k, int opcode) {
    int others[ROW_ARGUMENTS], inner = l->formulas[term].x[k], outers = l->formulas[term].count;
    int count = l->formulas[inner].count;
    l->is_merged[inner] = true;
    memcpy(others, l->formulas[term].x, sizeof others);
    memcpy(l->formulas[term].x, l->formulas[inner].x, sizeof others);
    for (int i = 0; i < outers; i++)
        if (i != k)
            l->formulas[term].x[count++] = others[i];
    l->formulas[term].opcode = opcode;
    l->formulas[term].count = count;
}

/* True if the second argument is the maximum of the first one's row. */
static bool is_row_maximum(const struct listing *l, int term) {
    const int *x = l->formulas[term].x;
    const struct term *second = term_at(l->s, x[1]);
    return second->kind == TERM_REDUCTION && second->opcode == OPCODE_LARGEST && second->arguments[0] == x[0];
}

/* Applies the table in order. A merged formula may be merged again, such as (a - b) * c + d. */
static void merge_arguments(struct listing *l, int term) {
    for (size_t m = 0; m < sizeof merges / sizeof *merges; m++)
        for (int k = merges[m].first; k <= merges[m].last && l->formulas[term].opcode == merges[m].outer; k++)
            if (can_merge(l, l->formulas[term].x[k], merges[m].inner))
                merge(l, term, k, merges[m].instruction);
    if (l->formulas[term].opcode == ROW_SUBTRACT_EXPONENTIAL && is_row_maximum(l, term))
        l->formulas[term].opcode = ROW_LARGEST_EXPONENTIAL;
}

/* ---- Pairs of sums ----------------------------------------------------------------------------------------------- */

/* Returns another sum of a term that this pass closes and that is not yet part of a pair, or -1. */
static int sum_of(const struct listing *l, int term) {
    for (int i = term + 1; i < l->s->rows->term_count; i++) {
        const struct term *at = term_at(l->s, i);
        if (at->kind == TERM_REDUCTION && at->opcode == OPCODE_SUM && at->arguments[0] == term && closes(at, l->pass) &&
            l->pair_of[i] < 0)
            return i;
    }
    return -1;
}

/* True if a term is x - m, of an element and a row value, with this number of readers: 1 if only the product reads it;
   3 if a square reads it twice and the sum once. */
static bool is_deviation(const struct listing *l, int term, int readers) {
    const struct term *at = term_at(l->s, term);
    return at->kind == TERM_FORMULA && at->opcode == OPCODE_SUBTRACT && l->s->kept[term] < 0 &&
           term_at(l->s, at->arguments[0])->spans && !term_at(l->s, at->arguments[1])->spans &&
           count_readers(l, term) == readers;
}

/* Pairs a sum of products with the sum of one factor, if the other factor is a deviation without other readers. */
static void pair_sums(struct listing *l, int product) {
    const struct term *sum = term_at(l->s, product);
    if (sum->kind != TERM_REDUCTION || sum->opcode != OPCODE_SUM || !closes(sum, l->pass) ||
        !is_only_summed(l, sum->arguments[0]))
        return;
    const struct term *of = term_at(l->s, sum->arguments[0]);
    bool is_square = of->arguments[0] == of->arguments[1];
    for (int k = 0; k < 2; k++) {
        int deviation = of->arguments[k], other = sum_of(l, of->arguments[!k]);
        /* The other factor must consist of elements, because its sum is computed in the same loop. */
        if (other < 0 || !term_at(l->s, of->arguments[!k])->spans || !is_deviation(l, deviation, is_square ? 3 : 1))
            continue;
        l->pair_of[product] = other;
        l->pair_of[other] = product;
        l->is_product[product] = l->is_merged[deviation] = true;
        return;
    }
}

/* Starts with the first term, so that arguments are merged before the formulas that read them. */
static void merge_formulas(struct listing *l) {
    for (int i = 0; i < l->s->rows->term_count; i++) {
        const struct term *at = term_at(l->s, i);
        l->formulas[i].opcode = at->kind == TERM_FORMULA ? at->opcode : -1;
        l->formulas[i].count = at->argument_count;
        memcpy(l->formulas[i].x, at->arguments, sizeof at->arguments);
        /* Only formulas with an instruction in this pass can absorb others; the deviation of a pair has none. */
        if (at->kind == TERM_FORMULA && at->spans && l->is_marked[i] && !is_recalled(l, i) && !is_only_summed(l, i) &&
            !l->is_merged[i])
            merge_arguments(l, i);
    }
}

/* True if the reader accepts a single chunk of row values, or an operand in place in memory. Formulas repeat one chunk
   for a whole row; formulas, reductions and sums step from row to row; other instructions need every element. */
static bool accepts_compact(const struct row_instruction *reader, enum row_verb instruction) {
    return reader->opcode >= 0 ||
           (instruction == ROW_LOAD && (reader->verb == ROW_REDUCE || reader->verb == ROW_SUM_COLUMN));
}

/* True if the reader accepts one number per row of a block: formulas repeat the chunk, a sum of products multiplies the
   sum of the other factor. */
static bool accepts_row_constant(const struct row_instruction *reader) {
    bool is_product = reader->x[1] >= 0 && reader->x[0] != reader->x[1];
    return (reader->verb == ROW_CALCULATE && reader->opcode >= 0) || (reader->verb == ROW_REDUCE && is_product);
}

/* Here x still holds instruction indices, not registers. */
static void mark_compact(struct row_schedule *s, const struct row_pass *pass) {
    for (int i = pass->first; i < pass->first + pass->count; i++) {
        struct row_instruction *at = &s->instructions[i];
        at->is_compact = at->verb == ROW_SPREAD || at->verb == ROW_LOAD;
        at->is_row_constant = at->verb == ROW_LOAD;
        for (int j = pass->first + pass->spreads; j < pass->first + pass->count; j++) {
            const struct row_instruction *reader = &s->instructions[j];
            for (int k = 0; k < ROW_ARGUMENTS; k++)
                if (reader->x[k] == i) {
                    at->is_compact = at->is_compact && accepts_compact(reader, at->verb);
                    at->is_row_constant = at->is_row_constant && accepts_row_constant(reader);
                }
        }
    }
}

/* True if both factors are loaded from memory. */
static bool reads_elements(const struct row_schedule *s, const struct row_instruction *at) {
    bool reads = true;
    for (int k = 0; k < 2 && at->x[k] >= 0; k++)
        reads = reads && s->instructions[at->x[k]].verb == ROW_LOAD;
    return reads;
}

/* Detects passes that only reduce: their blocks may be larger than registers, because memory of the arithmetic width is
   reduced in place. */
static void find_reducing(const struct row_schedule *s, struct row_pass *pass) {
    pass->only_reduces = true;
    for (int i = pass->first; i < pass->first + pass->count; i++) {
        const struct row_instruction *at = &s->instructions[i];
        const struct term *term = term_at(s, at->term);
        weftDataType_t type = term->is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
        bool is_dense = at->verb == ROW_LOAD && s->rows->operands[at->operand].type == type;
        bool takes = at->verb == ROW_REDUCE_PAIR || at->verb == ROW_SPREAD;
        if (at->verb == ROW_REDUCE) /* a reduction of elements: row values are not spread to all elements */
            takes = reads_elements(s, at);
        pass->only_reduces = pass->only_reduces && (is_dense || takes);
    }
}

/* Pairs are found before formulas are merged, because a deviation in a pair must not be merged into another formula. */
static void list_pass(struct row_schedule *s, int number, bool *is_full) {
    struct row_pass *pass = &s->passes[number];
    struct listing l;
    begin_listing(&l, s, number);
    *pass = (struct row_pass){.first = s->instruction_count};
    mark_pass(s, number, l.is_marked);
    add_spreads(&l);
    pass->spreads = s->instruction_count - pass->first;
    for (int i = 0; i < s->rows->term_count; i++)
        pair_sums(&l, i);
    merge_formulas(&l);
    for (int i = 0; i < s->rows->term_count; i++) {
        if (l.is_marked[i])
            add_element(&l, i);
        if (closes(term_at(s, i), number))
            add_reduction(&l, i);
    }
    add_stores(&l);
    pass->count = s->instruction_count - pass->first;
    *is_full = *is_full || l.is_full;
    store_directly(s, pass);
    keep_in_place(s, number);
    mark_compact(s, pass);
    find_reducing(s, pass);
}

/* ---- Registers --------------------------------------------------------------------------------------------------- */

/* The result of a conversion has another width than its operand. */
static bool works_in_place(const struct row_schedule *s, const struct row_instruction *at) {
    return at->verb == ROW_CALCULATE && term_at(s, at->term)->kind != TERM_CONVERT;
}

/* Assigns a register that has no later readers to an instruction's result; false if none is left. Row values stay until
   the end of the pass, because every block reads them. */
static bool assign_register(struct row_schedule *s, const struct row_pass *pass, int index, int *free_from,
                            int *register_of) {
    struct row_instruction *at = &s->instructions[index];
    /* The last instruction that reads the result. */
    int end = pass->first + pass->count, last = index;
    for (int i = index + 1; i < end; i++)
        for (int k = 0; k < ROW_ARGUMENTS; k++)
            if (s->instructions[i].x[k] == index)
                last = i;
    /* Every block of the pass reads it. */
    if (at->verb == ROW_SPREAD || at->is_row_invariant)
        last = end;
    /* One chunk may represent the whole load, so its last reader must not write there. */
    last += at->is_row_constant;
    int r = 0;
    /* A value that the next block reuses needs a register that no earlier instruction of the pass has used. */
    while (r < ROWWISE_REGISTERS && free_from[r] > (at->is_row_invariant ? -1 : index - !works_in_place(s, at)))
        r++;
    if (r == ROWWISE_REGISTERS)
        return false;
    free_from[r] = last;
    register_of[index - pass->first] = r;
    s->register_count = r >= s->register_count ? r + 1 : s->register_count;
    return true;
}

/* Assigns registers to the results of a pass, in order. free_from: the last instruction that reads a register's value.
   Instructions that work in place may write where they read. False if registers run out. */
static bool assign_registers(struct row_schedule *s, const struct row_pass *pass) {
    int free_from[ROWWISE_REGISTERS], register_of[ROWWISE_INSTRUCTIONS];
    for (int r = 0; r < ROWWISE_REGISTERS; r++)
        free_from[r] = -1;
    for (int i = pass->first; i < pass->first + pass->count; i++)
        if (s->instructions[i].dst >= 0 && !assign_register(s, pass, i, free_from, register_of))
            return false;
    /* From this point, dst and x are registers. */
    for (int i = pass->first; i < pass->first + pass->count; i++) {
        struct row_instruction *at = &s->instructions[i];
        at->dst = at->dst >= 0 ? register_of[at->dst - pass->first] : -1;
        for (int k = 0; k < ROW_ARGUMENTS; k++)
            at->x[k] = at->x[k] >= 0 ? register_of[at->x[k] - pass->first] : -1;
    }
    return true;
}

/* ---- All passes -------------------------------------------------------------------------------------------------- */

/* True for constants and loads of one element: the same for all rows. */
static bool is_invariant(const struct row_schedule *s, const struct term *term) {
    bool is_one = term->kind == TERM_LOAD;
    for (int i = 0; i < s->rows->space.axis_count && is_one; i++)
        is_one = s->rows->operands[term->operand].strides[i] == 0;
    return is_one || term->kind == TERM_CONSTANT;
}

/* Orders the terms of rows by the number of passes that must be closed first: up to stage_ends[n] are those known after
   n passes. Invariants, which have no arguments, come first. */
static void order_row_terms(struct row_schedule *s) {
    int count = 0;
    for (int i = 0; i < s->rows->term_count; i++)
        if (s->slot_of[i] >= 0 && is_invariant(s, term_at(s, i)))
            s->row_terms[count++] = i;
    s->invariants = count;
    for (int stage = 0; stage <= ROWWISE_PASSES; stage++) {
        /* Reductions are rounded from totals, not computed by formulas. */
        for (int i = 0; i < s->rows->term_count; i++)
            if (s->slot_of[i] >= 0 && term_at(s, i)->stage == stage && term_at(s, i)->kind != TERM_REDUCTION &&
                !is_invariant(s, term_at(s, i)))
                s->row_terms[count++] = i;
        s->stage_ends[stage] = count;
    }
}

/* Assigns a slot to each needed term of rows. All slots have the same width: double if any needed term is double. */
static void give_row_slots(struct row_schedule *s) {
    s->row_slots = 0;
    s->has_wide = false;
    for (int i = 0; i < s->rows->term_count; i++) {
        const struct term *term = term_at(s, i);
        bool has = term->is_needed && !term->spans && term->kind != TERM_COLUMN_SUM;
        s->slot_of[i] = has ? s->row_slots++ : -1;
        s->has_wide = s->has_wide || (term->is_needed && term->is_wide);
    }
}

/* Generates all passes. May be called again with less keeping: it resets all counts. */
weftStatus_t row_schedule_list(struct row_schedule *s, enum row_keeping keeping) {
    bool is_full = false;
    TRY(count_passes(s));
    choose_kept(s, keeping);
    s->instruction_count = s->register_count = s->sum_count = 0;
    for (int p = 0; p < s->pass_count; p++)
        list_pass(s, p, &is_full);
    for (int p = 0; p < s->pass_count && !is_full; p++)
        is_full = !assign_registers(s, &s->passes[p]);
    /* This is refused, so that the planner splits the region. */
    if (is_full)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region needs more than %d instructions or %d registers",
             ROWWISE_INSTRUCTIONS, ROWWISE_REGISTERS);
    give_row_slots(s);
    order_row_terms(s);
    return WEFT_STATUS_SUCCESS;
}
