/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the loop nest of a row program, its passes, and the vectors that threads load. Independent of thread mapping
   and device. */
#include "base/number.h"
#include "engines/cuda/rows/schedule.h"

#include <string.h>

enum {
    ACCESS_BYTES = 16,   /* maximum size of one memory access */
    ROW_REGISTERS = 40,  /* registers per thread for the pass results of all its interleaved rows */
    UNALIGNED_MIN = 32,  /* minimum vectors in a row that may have a head and a tail */
    OVERLAP_MIN = 4,     /* minimum number of vectors of interleaved rows that may overlap */
    SEGMENT_BYTES = 256, /* maximum segment of interleaved rows; longer ones fill cache lines by themselves */
    WIDENS = 4,          /* factor by which vectors must grow to pay for unaligned rows and overlaps */
};

/* ---- Dims -------------------------------------------------------------------------------------------------------- */

bool schedule_uses_memory(const struct schedule *s, int k) {
    const struct operand *operand = &s->rows->operands[k];
    return operand->memory != MEMORY_INDEX && (operand->is_store || rows_find(s->rows, operand->value)->is_needed);
}

double schedule_operand_bytes(const struct schedule *s, int k) {
    const struct rows *rows = s->rows;
    double bytes = (double)dtype_bytes(rows->operands[k].type, 1);
    for (int i = 0; i < rows->space.axis_count; i++)
        bytes *= rows->operands[k].strides[i] ? (double)rows->space.axes[i].extent : 1;
    return bytes;
}

bool schedule_is_part(const struct schedule *s, int k) {
    const struct operand *operands = s->rows->operands;
    for (int i = 0; i < s->rows->operand_count; i++)
        if (operands[i].parts && k >= operands[i].coordinate &&
            k < operands[i].coordinate + operands[i].parts->inputs.count)
            return true;
    return false;
}

/* The operand with the most bytes; its memory order determines the order of dims. */
static int leading_operand(const struct schedule *s) {
    int leading = 0;
    double most = -1;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_uses_memory(s, k) && schedule_operand_bytes(s, k) > most) {
            most = schedule_operand_bytes(s, k);
            leading = k;
        }
    return leading;
}

/* Appends the dims of one kind, ordered and merged, to those already in the nest. */
static void append_dims(struct loop_nest *nest, const struct rows *rows, bool is_reduced, int lead) {
    struct space space = {0};
    struct operand part[ROWS_OPERANDS_MAX];
    memcpy(part, rows->operands, sizeof part);
    for (int k = 0; k < rows->operand_count; k++)
        memset(part[k].strides, 0, sizeof part[k].strides);
    for (int i = 0; i < rows->space.axis_count; i++) {
        if (rows->space.axes[i].is_reduced != is_reduced)
            continue;
        for (int k = 0; k < rows->operand_count; k++)
            part[k].strides[space.rank] = rows->operands[k].strides[i];
        space.extents[space.rank++] = rows->space.axes[i].extent;
    }
    if (space.rank == 0) /* one row, or rows of one element: the generated code needs one dim of each kind */
        space.extents[space.rank++] = 1;
    space_coalesce(&space, part, rows->operand_count, lead);
    for (int i = 0; i < space.rank; i++) {
        for (int k = 0; k < rows->operand_count; k++)
            nest->operands[k].strides[nest->rank] = part[k].strides[i];
        nest->extents[nest->rank++] = space.extents[i];
    }
}

/* Each kind has at least one dim, so both counts are at least 1. */
static weftStatus_t order_dims(struct schedule *s) {
    const struct rows *rows = s->rows;
    struct loop_nest *nest = &s->nest;
    int lead = leading_operand(s), kinds[2] = {0};
    for (int i = 0; i < rows->space.axis_count; i++)
        kinds[rows->space.axes[i].is_reduced]++;
    if ((kinds[0] ? kinds[0] : 1) + (kinds[1] ? kinds[1] : 1) > WEFT_DIM_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "rows in dims %s would need a loop nest of more than %d dims",
             numbers_text(rows->space.dims.at, rows->space.dims.count), WEFT_DIM_MAX);
    memcpy(nest->operands, rows->operands, sizeof nest->operands);
    for (int k = 0; k < rows->operand_count; k++)
        memset(nest->operands[k].strides, 0, sizeof nest->operands[k].strides);
    append_dims(nest, rows, false, lead);
    nest->row_dims = nest->rank;
    append_dims(nest, rows, true, lead);
    /* Rows are interleaved if adjacent elements of the leading operand belong to different rows. */
    const int64_t *strides = nest->operands[lead].strides;
    int64_t of_rows = strides[nest->row_dims - 1], of_row = strides[nest->rank - 1];
    nest->is_columns = of_rows && (of_rows < of_row || !of_row);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* A term's stage is the number of passes whose reductions it needs: elements are stored in the pass of their stage, and
   a reduction of stage n closes pass n - 1. */
static void count_passes(struct schedule *s) {
    const struct rows *rows = s->rows;
    struct passes *passes = &s->passes;
    passes->closed = 0;
    passes->storing = -1;
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        if (!term->is_needed)
            continue;
        if (term_is_column_sum(term))
            passes->column_sums++;
        if (term->stage > passes->closed)
            passes->closed = term->stage;
    }
    for (int k = 0; k < rows->operand_count; k++) {
        const struct operand *operand = &rows->operands[k];
        const struct term *term = rows_find(rows, operand->value);
        bool is_column = term_is_column_sum(term);
        if (operand->is_store && (term->spans || is_column) && term->stage > passes->storing)
            passes->storing = term->stage;
    }
    passes->count = passes->closed > passes->storing + 1 ? passes->closed : passes->storing + 1;
}

/* Only terms that a pass after the first reads again. */
bool schedule_is_resident_term(const struct schedule *s, const struct term *term) {
    return s->memory.keeps_weights && term->opcode == OPCODE_WEIGHT && term->kind == TERM_FORMULA &&
           term->stage < s->passes.storing;
}

/* Also marks row terms that elements read, but not what those depend on. Recursion is bounded by the nesting of
   formulas; marks end it. */
static void mark_evaluated(const struct schedule *s, int pass, int index, bool *is_evaluated) {
    const struct term *term = &s->rows->terms[index];
    if (is_evaluated[index])
        return;
    is_evaluated[index] = true;
    bool is_there = schedule_is_resident_term(s, term) && term->stage < pass;
    for (int i = 0; i < term->use_count && term->spans && !is_there; i++)
        mark_evaluated(s, pass, term->uses[i], is_evaluated);
}

/* A pass evaluates the inputs of its reductions, and the storing pass what it stores. A term that two passes need is
   evaluated in both unless it is kept. */
void schedule_terms_of_pass(const struct schedule *s, int pass, bool *is_evaluated) {
    const struct rows *rows = s->rows;
    memset(is_evaluated, 0, TERMS_MAX * sizeof *is_evaluated);
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        if (term->kind != TERM_REDUCTION || !term->is_needed)
            continue;
        bool is_column = term_is_column_sum(term);
        if (is_column ? term->stage == pass : term->stage == pass + 1)
            mark_evaluated(s, pass, term->uses[0], is_evaluated);
    }
    for (int k = 0; k < rows->operand_count && pass == s->passes.storing; k++) {
        const struct term *term = rows_find(rows, rows->operands[k].value);
        if (rows->operands[k].is_store && term->spans)
            mark_evaluated(s, pass, (int)(term - rows->terms), is_evaluated);
    }
}

int schedule_segment(const struct schedule *s) {
    const struct loop_nest *nest = &s->nest;
    const int64_t *strides = nest->operands[leading_operand(s)].strides;
    int last = nest->rank - 1, rows = nest->row_dims - 1;
    int64_t bytes = nest->extents[last] * dtype_bytes(nest->operands[leading_operand(s)].type, 1);
    bool is_segmented = !nest->is_columns && last > nest->row_dims && strides[last] == 1 && nest->extents[rows] > 1 &&
                        strides[rows] == nest->extents[last] && bytes < SEGMENT_BYTES && !s->passes.column_sums &&
                        !s->unaligned.most;
    return is_segmented ? (int)(nest->extents[last] / s->vectors.width) : 0;
}

/* True for operands that vary only along the fast dim, such as scale and bias: the distance between the vectors of a
   thread is a multiple of segments. */
bool schedule_is_steady(const struct schedule *s, int k) {
    const struct operand *operand = &s->nest.operands[k];
    bool is_match = s->threads.segment && operand->memory != MEMORY_INDEX && !operand->is_store && !operand->parts &&
                    !schedule_is_part(s, k) && rows_find(s->rows, operand->value)->spans;
    for (int i = s->nest.row_dims; i < s->nest.rank - 1; i++)
        is_match = is_match && operand->strides[i] == 0;
    return is_match;
}

bool schedule_calculates_in_double(const struct schedule *s) {
    for (int i = 0; i < s->rows->term_count; i++)
        if (s->rows->terms[i].is_needed && strcmp(s->rows->terms[i].type, "double") == 0)
            return true;
    return false;
}

/* ---- Vectors ----------------------------------------------------------------------------------------------------- */

/* Alignment in bytes, at most 16. Scratch memory as a whole is aligned, so only the offset counts. */
static int64_t operand_alignment(const struct rows *rows, const struct operand *operand) {
    int64_t offset = dtype_bytes(operand->type, operand->offset);
    return operand->memory < 0
               ? gcd64(ACCESS_BYTES, offset)
               : gcd64(gcd64(ACCESS_BYTES, offset), rows->graph->values[operand->memory].tensor->alignment);
}

/* Largest vector, at most `length`, that never crosses the boundary between parts of a value. */
static int64_t whole_in_parts(const struct loop_nest *nest, const struct operand *operand, int fast, int64_t length) {
    const int64_t *steps = nest->operands[operand->coordinate].strides;
    int64_t before = 0;
    if (!operand->parts || !steps[fast])
        return length;
    for (int64_t k = 0; k < operand->parts->inputs.count; k++) {
        before += operand->parts->inputs.tensors[k]->dims.at[concat_axis(operand->parts)];
        length = gcd64(length, before);
    }
    for (int i = 0; i < nest->rank; i++)
        length = i == fast ? length : gcd64(length, steps[i]);
    return steps[fast] == 1 ? length : 1;
}

/* Number of adjacent elements per access of every operand: the operand with the most bytes per element gets up to 16
   bytes, and every vector of an operand is aligned to its size or to 16 bytes. All of these are powers of two, since
   the gcd with a power of two is one. */
static int vector_width(const struct schedule *s) {
    const struct loop_nest *nest = &s->nest;
    int fast = schedule_fast_dim(s);
    int64_t length = gcd64(16, nest->extents[fast]), widest = 1;
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct operand *operand = &nest->operands[k];
        length = whole_in_parts(nest, operand, fast, length);
        if ((!schedule_uses_memory(s, k) && !schedule_is_part(s, k)) || operand->strides[fast] != 1)
            continue;
        int64_t bytes = dtype_bytes(operand->type, 1), fits = operand_alignment(s->rows, operand);
        bool is_whole = true; /* as many elements as the index space: broadcast operands transfer little */
        for (int i = 0; i < nest->rank; i++) {
            fits = i == fast ? fits : gcd64(fits, operand->strides[i] * bytes);
            is_whole = is_whole && (operand->strides[i] || nest->extents[i] == 1);
        }
        /* An operand whose rows are aligned to 16 bytes allows any power-of-two width. */
        if (fits < ACCESS_BYTES)
            length = gcd64(length, fits > bytes ? fits / bytes : 1);
        if (is_whole && bytes > widest)
            widest = bytes;
    }
    return (int)gcd64(length, ACCESS_BYTES / widest);
}

/* Interleaved rows each have their own mean, scale and so on; if these are many, a thread processes fewer rows. */
static void narrow_vectors(struct schedule *s) {
    int most = 0;
    for (int pass = 0; pass < s->passes.count && s->nest.is_columns; pass++) {
        bool is_evaluated[TERMS_MAX];
        int numbers = 0;
        schedule_terms_of_pass(s, pass, is_evaluated);
        for (int i = 0; i < s->rows->term_count; i++)
            numbers += is_evaluated[i] && !s->rows->terms[i].spans;
        most = numbers > most ? numbers : most;
    }
    /* Halving the width doubles the threads that share the same rows; below 4, accesses get too narrow. */
    while (s->vectors.width > 4 && s->vectors.width * most > ROW_REGISTERS)
        s->vectors.width /= 2;
}

/* ---- Unaligned rows ---------------------------------------------------------------------------------------------- */

/* True if a value is read whose parts are stored separately: vectors then must stay within one part. */
static bool reads_parts(const struct schedule *s) {
    for (int k = 0; k < s->rows->operand_count; k++)
        if (s->nest.operands[k].parts)
            return true;
    return false;
}

/* True if rows of operand k have the same alignment as those of the leader: both operands begin at a multiple of 16
   bytes and have the same row stride in elements, so that vectors of both begin at the same elements. */
static bool is_aligned_like(const struct schedule *s, int k, int leader) {
    const struct loop_nest *nest = &s->nest;
    const struct operand *operand = &nest->operands[k];
    bool is_match = operand->memory >= 0 && operand->strides[nest->row_dims] == 1 &&
                    operand_alignment(s->rows, operand) == ACCESS_BYTES;
    for (int i = 0; i < nest->row_dims; i++)
        is_match = is_match && (operand->strides[i] == nest->operands[leader].strides[i] || nest->extents[i] == 1);
    return is_match;
}

/* True for operands that all rows share: no dim of the rows has a stride. */
static bool is_broadcast(const struct schedule *s, const struct operand *operand) {
    bool is_match = s->vectors.strips > 1;
    for (int i = 0; i < s->nest.row_dims; i++)
        is_match = is_match && operand->strides[i] == 0;
    return is_match;
}

/* Sums of columns of unaligned rows are stored element by element, see rows_emit_columns. */
static bool is_column_sum(const struct schedule *s, const struct operand *operand) {
    const struct term *term = rows_find(s->rows, operand->value);
    return operand->is_store && term_is_column_sum(term);
}

/* Finds the operand that determines heads, the widest type of the operands that are aligned like it, and the margin;
   false if operands are aligned differently. The margin applies to operands that all rows share: 16-byte loads around a
   vector also read beyond it. */
static bool find_leader(const struct schedule *s, int *leader, int64_t *widest, int64_t *margin) {
    *leader = -1;
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct operand *operand = &s->nest.operands[k];
        bool is_common = is_broadcast(s, operand);
        if (!schedule_uses_memory(s, k) || operand->strides[s->nest.row_dims] == 0 || is_column_sum(s, operand))
            continue;
        if (!is_aligned_like(s, k, is_common || *leader < 0 ? k : *leader))
            return false;
        int64_t bytes = dtype_bytes(operand->type, 1);
        *leader = is_common ? *leader : k;
        *widest = !is_common && bytes > *widest ? bytes : *widest;
        *margin = is_common && ACCESS_BYTES / bytes > *margin ? ACCESS_BYTES / bytes : *margin;
    }
    return *leader >= 0;
}

/* Broadcast operands are shifted to the start of the rows' vectors. Unless vectors grow by the factor WIDENS, head and
   tail cost more than wider vectors save. */
void schedule_allow_unaligned(struct schedule *s) {
    int64_t widest = 1, margin = 0;
    bool is_one_dim = !s->nest.is_columns && s->nest.rank == s->nest.row_dims + 1 && !reads_parts(s);
    if (!is_one_dim || (s->passes.column_sums && s->nest.row_dims > 1) ||
        !find_leader(s, &s->unaligned.leader, &widest, &margin))
        return;
    int64_t width = ACCESS_BYTES / widest, length = s->nest.extents[s->nest.row_dims];
    if (s->vectors.width * WIDENS > width || length < UNALIGNED_MIN * width)
        return;
    s->vectors.width = (int)width;
    /* The minimum number of whole vectors for any alignment of a row. */
    s->vectors.per_row = (length - margin) / width;
    /* Up to width - 1 elements before the first vector, the same number after the last, and the margin. */
    s->unaligned.most = (int)(2 * width - 2 + margin);
    s->unaligned.margin = (int)margin;
}

/* True if vectors of interleaved rows may begin at any row: only operands in memory can be shifted. */
static bool may_overlap(const struct schedule *s, const struct operand *operand) {
    bool can_overlap =
        operand->memory >= 0 && operand->strides[0] == 1 && operand_alignment(s->rows, operand) == ACCESS_BYTES;
    for (int i = 1; i < s->nest.rank; i++)
        can_overlap = can_overlap && (operand->strides[i] >= 16 || s->nest.extents[i] == 1);
    return can_overlap;
}

/* This is only for pure reductions, because two threads must not store elements of the same row. All vectors are
   shifted to where they begin, and loads stop before the last row in memory. */
void schedule_allow_overlap(struct schedule *s) {
    int64_t widest = 1, rows = s->nest.extents[0];
    bool is_allowed =
        s->nest.is_columns && s->nest.row_dims == 1 && s->passes.count == 1 && s->passes.storing < 0 && !reads_parts(s);
    for (int k = 0; k < s->rows->operand_count && is_allowed; k++) {
        const struct operand *operand = &s->nest.operands[k];
        if (operand->is_store || !rows_find(s->rows, operand->value)->is_needed)
            continue;
        int64_t bytes = dtype_bytes(operand->type, 1);
        widest = bytes > widest ? bytes : widest;
        is_allowed = may_overlap(s, operand);
    }
    int width = (int)(ACCESS_BYTES / widest);
    if (!is_allowed || s->vectors.width * WIDENS > width || rows < OVERLAP_MIN * width)
        return;
    s->vectors.width = width;
    narrow_vectors(s);
    s->vectors.strips = divide_up(rows, s->vectors.width);
    s->overlap.is_used = true;
    s->overlap.elements = (int)(s->vectors.strips * s->vectors.width - rows);
    s->overlap.last = (s->vectors.strips - 1) * s->vectors.width;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* Vector elements have the same stride in every part. */
static weftStatus_t check_parts(const struct schedule *s) {
    int fast = schedule_fast_dim(s);
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct operand *operand = &s->nest.operands[k];
        for (int part = 1; operand->parts && part < operand->parts->inputs.count; part++)
            if (s->nest.operands[operand->coordinate + part].strides[fast] != operand->strides[fast])
                FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "the parts of %s have different strides along the vectors",
                     descriptor_label(&s->rows->graph->values[operand->memory].tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t schedule_begin(struct schedule *s, const struct rows *rows) {
    memset(s, 0, sizeof *s);
    s->rows = rows;
    s->memory.unroll = s->threads.cluster = 1;
    TRY(order_dims(s));
    TRY(check_parts(s));
    count_passes(s);
    s->vectors.width = vector_width(s);
    narrow_vectors(s);
    s->vectors.strips = s->vectors.per_row = 1;
    for (int i = 0; i < s->nest.rank; i++)
        *(i < s->nest.row_dims ? &s->vectors.strips : &s->vectors.per_row) *= s->nest.extents[i];
    *(s->nest.is_columns ? &s->vectors.strips : &s->vectors.per_row) /= s->vectors.width;
    return WEFT_STATUS_SUCCESS;
}
