/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a row program: tile by tile, pass by pass, block by block, instruction by instruction. All memory of a block is
   read before any of it is written, except that the last formula may write while it reads, element by element. Results
   do not depend on threads: tiles, parts and the order in which they are combined depend only on sizes. */
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/rows/schedule.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* State of one execution, on the caller's stack; shared by the tasks. */
struct job {
    const struct row_schedule *s;
    void *const *values;
    char *scratch, *memory;
    int pass;                     /* current pass, if tasks share tiles */
    _Atomic bool is_out_of_range; /* see row_schedule_run */
};

/* State of a thread that runs tiles, on its stack: registers, and the position in the nest. */
struct run {
    const struct row_schedule *s;
    void *const *values;
    _Atomic bool *is_out_of_range; /* that of the job */
    char *scratch;
    char *rows;                         /* values of the tile's rows, by slot */
    double *totals;                     /* totals of the current pass, by slot */
    char *kept, *sums;                  /* kept elements and column sums of the task */
    int64_t tile_rows;                  /* rows of the current tile */
    int64_t row;                        /* first row of the block within the tile */
    int64_t first[ROWWISE_OPERANDS];    /* index of the tile's first element, for each operand */
    int64_t at[ROWWISE_OPERANDS];       /* index of the block's first element */
    int64_t rows_here, columns;         /* size of the block */
    int64_t tile_position, position;    /* position in column sums of the tile's and the block's first element */
    int64_t done;                       /* elements of all previous blocks */
    char *registers[ROWWISE_REGISTERS]; /* the run's own memory, or a tensor's */
    /* Steps of formulas through each register: see struct row_steps. */
    struct row_steps steps[ROWWISE_REGISTERS];
    char memory[ROWWISE_REGISTER_BYTES] __attribute__((aligned(64)));
};

static const struct row_kernels *kernels_of(bool is_wide) { return is_wide ? &row_kernels_f64 : &row_kernels_f32; }

static int64_t width_of(bool is_wide) { return is_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float); }

static const struct term *term_at(const struct run *run, int term) { return &run->s->rows->terms[term]; }

/* Returns the values of a row term, which are contiguous, one for each of tile_rows. */
static char *row_values(const struct run *run, int term) {
    return run->rows + run->s->slot_of[term] * run->s->row_bytes;
}

/* One double per row of the tile. */
static double *totals_of(const struct run *run, int slot) { return run->totals + slot * run->s->tile_rows; }

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* A [rows, columns] block of an operand in memory. */
struct location {
    char *base;
    weftDataType_t type;
    int64_t index, row_stride, column_stride; /* in elements */
    int64_t rows, columns;
};

/* NULL for an index operand, which counts positions and reads no memory. */
static char *base_of(const struct run *run, const struct row_operand *operand) {
    return operand->value >= 0 ? run->values[operand->value] : operand->value == VALUE_SCRATCH ? run->scratch : NULL;
}

/* Rows and columns are those of the block; strides are those of its two loops. */
static struct location block_location(const struct run *run, int k) {
    const struct row_schedule *s = run->s;
    const struct row_operand *operand = &s->rows->operands[k];
    return (struct location){.base = base_of(run, operand),
                             .type = operand->type,
                             .index = run->at[k],
                             .row_stride = s->loops[s->a].strides[k],
                             .column_stride = s->loops[s->b].strides[k],
                             .rows = run->rows_here,
                             .columns = run->columns};
}

/* Location of the tile's row values. The rows are along one loop, so they are described as one row of a block or, if
   each row has several columns, as rows that broadcast along the columns. */
static struct location row_location(const struct run *run, int k) {
    const struct row_schedule *s = run->s;
    const struct row_operand *operand = &s->rows->operands[k];
    int64_t stride = s->loops[s->loops[s->b].is_reduced ? s->a : s->b].strides[k];
    struct location location = {.base = base_of(run, operand), .type = operand->type, .index = run->first[k]};
    location.row_stride = s->span > 1 ? stride : 0;
    location.column_stride = s->span > 1 ? 0 : stride;
    location.rows = s->span > 1 ? run->tile_rows / s->span : 1;
    location.columns = run->tile_rows / location.rows;
    return location;
}

/* Returns the block's memory if it has the form of a register: dense and of this type. Otherwise NULL. */
static char *dense_memory(const struct location *location, bool is_wide) {
    bool is_dense = (location->column_stride == 1 || location->columns == 1) &&
                    (location->row_stride == location->columns || location->rows == 1) &&
                    location->type == (is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT) && location->base &&
                    (uintptr_t)location->base % (uintptr_t)width_of(is_wide) == 0;
    return is_dense ? location->base + location->index * width_of(is_wide) : NULL;
}

/* Like dense_memory, but allows gaps between rows if each row is dense: formulas that step from row to row use the
   operand in place. */
static char *dense_rows(const struct location *location, bool is_wide) {
    struct location row = *location;
    row.rows = 1;
    return dense_memory(&row, is_wide);
}

/* Loads elements index, index + 1, ... in the program's arithmetic type. */
static void load_run(bool is_wide, void *dst, const struct location *location, int64_t index, int64_t count) {
    if (is_wide)
        dtype_to_f64(dst, location->type, location->base, index, count);
    else
        dtype_to_f32(dst, location->type, location->base, index, count);
}

static void store_run(bool is_wide, const struct location *location, int64_t index, const void *src, int64_t count) {
    if (is_wide)
        dtype_from_f64(location->type, location->base, index, src, count);
    else
        dtype_from_f32(location->type, location->base, index, src, count);
}

/* Returns the first value of a register, in double. */
static double first_of(bool is_wide, const void *values) {
    return is_wide ? *(const double *)values : (double)*(const float *)values;
}

/* The index is the position: strides count it, starting from `index`. */
static void count_indices(bool is_wide, char *dst, const struct location *location) {
    for (int64_t r = 0; r < location->rows; r++)
        for (int64_t c = 0; c < location->columns; c++) {
            int64_t index = location->index + r * location->row_stride + c * location->column_stride;
            if (is_wide)
                ((double *)dst)[r * location->columns + c] = (double)index;
            else
                ((float *)dst)[r * location->columns + c] = (float)index;
        }
}

/* Loads a row of strided elements; floats are copied in place without a function call each. */
static void gather(bool is_wide, char *dst, const struct location *location, int64_t index) {
    const float *floats = (const float *)location->base;
    bool is_plain = location->type == WEFT_DATA_FLOAT && !is_wide && (uintptr_t)floats % sizeof(float) == 0;
    for (int64_t c = 0; c < location->columns; c++, index += location->column_stride)
        if (is_plain)
            ((float *)dst)[c] = floats[index];
        else
            load_run(is_wide, dst + c * width_of(is_wide), location, index, 1);
}

/* Contiguous elements need one conversion; broadcast elements are loaded once and repeated. */
static void load_row(bool is_wide, char *dst, const struct location *location, int64_t index) {
    if (location->column_stride == 1) {
        load_run(is_wide, dst, location, index, location->columns);
    } else if (location->column_stride == 0) {
        load_run(is_wide, dst, location, index, 1);
        kernels_of(is_wide)->fill(location->columns, dst, first_of(is_wide, dst));
    } else {
        gather(is_wide, dst, location, index);
    }
}

/* True if memory has the arithmetic type, so that contiguous rows are copied without conversion. */
static bool is_copied(const struct location *location, bool is_wide) {
    return location->base && location->type == (is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT) &&
           (location->column_stride == 1 || location->columns == 1);
}

/* Copies rows of `bytes` bytes with pitches ld_to and ld_from. A few channels per pixel are one or two vectors: copies
   of constant size need no function call. */
static void copy_rows(char *to, int64_t ld_to, const char *from, int64_t ld_from, int64_t rows, int64_t bytes) {
    if (bytes == 16)
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * ld_to, from + r * ld_from, 16);
    else if (bytes == 32)
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * ld_to, from + r * ld_from, 32);
    else
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * ld_to, from + r * ld_from, (size_t)bytes);
}

/* dst is dense. */
static void load(bool is_wide, char *dst, const struct location *location) {
    int64_t bytes = location->columns * width_of(is_wide);
    if (!location->base) {
        count_indices(is_wide, dst, location);
        return;
    }
    /* Rows are contiguous: one conversion for the whole block. */
    if (location->column_stride == 1 && location->row_stride == location->columns) {
        load_run(is_wide, dst, location, location->index, location->rows * location->columns);
        return;
    }
    if (is_copied(location, is_wide)) {
        const char *from = location->base + location->index * width_of(is_wide);
        copy_rows(dst, bytes, from, location->row_stride * width_of(is_wide), location->rows, bytes);
        return;
    }
    /* Values that are broadcast over rows are copied after the first conversion. */
    for (int64_t r = 0; r < location->rows; r++)
        if (r > 0 && location->row_stride == 0)
            memcpy(dst + r * bytes, dst, (size_t)bytes);
        else
            load_row(is_wide, dst + r * bytes, location, location->index + r * location->row_stride);
}

/* ld: row pitch of src in elements. */
static void store(bool is_wide, const struct location *location, const char *src, int64_t ld) {
    int64_t width = width_of(is_wide);
    /* A column with one element is contiguous. */
    bool is_run = location->column_stride == 1 || location->columns == 1;
    if (is_run && ((location->row_stride == location->columns && ld == location->columns) || location->rows == 1)) {
        store_run(is_wide, location, location->index, src, location->rows * location->columns);
        return;
    }
    if (is_copied(location, is_wide)) {
        char *to = location->base + location->index * width;
        copy_rows(to, location->row_stride * width, src, ld * width, location->rows, location->columns * width);
        return;
    }
    for (int64_t r = 0; r < location->rows; r++, src += ld * width) {
        int64_t index = location->index + r * location->row_stride;
        if (is_run)
            store_run(is_wide, location, index, src, location->columns);
        for (int64_t c = 0; c < location->columns && !is_run; c++)
            store_run(is_wide, location, index + c * location->column_stride, src + c * width, 1);
    }
}

/* ---- Formulas ---------------------------------------------------------------------------------------------------- */

/* Rounds to the storage type. Works in parts that stay in L1, because `count` may be that of a whole tile. */
static void round_to(bool is_wide, int64_t count, char *dst, const char *src, weftDataType_t type) {
    enum { PART = 512 };
    char stored[PART * sizeof(double)];
    struct location location = {.base = stored, .type = type};
    for (int64_t done = 0; done < count; done += PART) {
        int64_t part = min64(count - done, PART);
        store_run(is_wide, &location, 0, src + done * width_of(is_wide), part);
        load_run(is_wide, dst + done * width_of(is_wide), &location, 0, part);
    }
}

/* Evaluates one term over `count` elements or rows. dst may be exactly one of x, except for conversions. */
static void calculate(const struct term *term, int64_t count, char *dst, const void *const *x) {
    /* Steps of arguments without gaps. */
    static const struct row_steps steps[ROW_ARGUMENTS] = {{ROW_CHUNK, 0, 0}, {ROW_CHUNK, 0, 0}, {ROW_CHUNK, 0, 0},
                                                          {ROW_CHUNK, 0, 0}, {ROW_CHUNK, 0, 0}, {ROW_CHUNK, 0, 0},
                                                          {ROW_CHUNK, 0, 0}, {ROW_CHUNK, 0, 0}};
    const struct row_kernels *kernels = kernels_of(term->is_wide);
    switch (term->kind) {
    case TERM_FORMULA:
        kernels->formulas[term->opcode](1, count, dst, count, x, steps);
        break;
    case TERM_LOOP:
        term->loop(count, dst, x[0], x[1], x[2], &term->parameters);
        break;
    case TERM_SCALE:
        kernels->scale(count, dst, x[0], term->number);
        break;
    case TERM_ROUND:
        round_to(term->is_wide, count, dst, x[0], term->type);
        break;
    case TERM_CONVERT: /* the source has the other width */
        if (term->is_wide)
            row_widen(count, (double *)dst, x[0]);
        else
            row_narrow(count, (float *)dst, x[0]);
        break;
    default:
        kernels->fill(count, dst, term->number);
    }
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Fraction of a loop within a row that is sampled, and maximum number of elements. */
enum { SAMPLE_SHARE = 64, SAMPLE_MOST = 256 };

/* The loop along which a row has the most elements, and the number of them to sample. */
static int64_t sample_size(const struct row_schedule *s, int operand, int *along) {
    *along = s->loop_count - 1;
    for (int i = 0; i < s->loop_count; i++)
        if (s->loops[i].is_reduced && s->loops[i].strides[operand] && s->loops[i].extent > s->loops[*along].extent)
            *along = i;
    return max64(min64(s->loops[*along].extent / SAMPLE_SHARE, SAMPLE_MOST), 1);
}

/* Clears the last 8 of a float's 24 mantissa bits. Differences between elements and this value then rarely need
   rounding. Otherwise they would all be rounded in the same direction, because the low bits of the value are the same
   for each. */
static void shorten(int64_t count, float *values) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        bits &= ~UINT32_C(0xff);
        memcpy(values + i, &bits, sizeof bits);
    }
}

/* The mean of a row's first elements. Rounding errors of sums around it grow with its distance from the mean of all
   elements; with a single element as the reference, that distance is often many times the mean. No pass has started, so
   totals are free. */
static void sample_rows(struct run *run, int index) {
    const struct term *term = term_at(run, index);
    const struct row_kernels *kernels = kernels_of(term->is_wide);
    struct location location = row_location(run, term->operand);
    int along, sampled = run->s->rows->operands[term->operand].sampled;
    int64_t count = sample_size(run->s, sampled, &along), rows = run->tile_rows;
    int64_t stride = run->s->loops[along].strides[sampled];
    double *totals = totals_of(run, 0), elements[SAMPLE_MOST];
    row_kernels_f64.fill(rows, totals, 0);
    if (rows == 1) {
        location.columns = count, location.column_stride = stride;
        load(term->is_wide, (char *)elements, &location);
        kernels->of_rows(OPCODE_SUM)(1, count, totals, elements, 0, NULL, 0);
    }
    for (int64_t i = 0; i < count && rows > 1; i++, location.index += stride) {
        load(term->is_wide, row_values(run, index), &location);
        kernels->of_columns(OPCODE_SUM)(1, rows, totals, row_values(run, index), rows, NULL, 0);
    }
    row_kernels_f64.scale(rows, totals, totals, 1 / (double)count);
    kernels->of_totals(rows, row_values(run, index), totals);
    if (!term->is_wide)
        shorten(rows, (float *)row_values(run, index));
}

/* True if the magnitude of a row value is outside a range; 0 is always inside. */
static bool any_outside(int64_t count, const float *numbers, float least, float most) {
    bool is_outside = false;
    for (int64_t i = 0; i < count; i++) {
        float magnitude = fabsf(numbers[i]);
        is_outside |= (!(magnitude <= most)) | ((magnitude < least) & (magnitude > 0));
    }
    return is_outside;
}

/* Detects an inverse deviation whose square is not representable in float: squares of the row's elements then overflow
   or vanish, too, and the gradient of a norm multiplies by it twice. */
static void watch_inverse(struct run *run, int index) {
    const struct term *term = term_at(run, index);
    bool is_inverse = index == run->s->watched ||
                      (term->kind == TERM_FORMULA && term->opcode == OPCODE_INVERSE_ROOT && !term->is_wide);
    if (is_inverse && any_outside(run->tile_rows, (const float *)row_values(run, index), 0x1p-62f, 0x1p62f))
        atomic_store_explicit(run->is_out_of_range, true, memory_order_relaxed);
}

static void watch_sum(struct run *run, int index) {
    if (any_outside(run->tile_rows, (const float *)row_values(run, index), 0, FLT_MAX))
        atomic_store_explicit(run->is_out_of_range, true, memory_order_relaxed);
}

/* Evaluates one term for all rows of the tile. Missing arguments repeat the first; constants have none. */
static void evaluate_row(struct run *run, int index) {
    const struct term *term = term_at(run, index);
    const void *x[ROW_ARGUMENTS];
    for (int i = 0; i < ROW_ARGUMENTS; i++)
        x[i] = term->argument_count == 0 ? NULL : row_values(run, term->arguments[i < term->argument_count ? i : 0]);
    if (term->kind == TERM_LOAD && run->s->rows->operands[term->operand].is_sample) {
        sample_rows(run, index);
    } else if (term->kind == TERM_LOAD) {
        struct location location = row_location(run, term->operand);
        load(term->is_wide, row_values(run, index), &location);
    } else {
        calculate(term, run->tile_rows, row_values(run, index), x);
    }
    watch_inverse(run, index);
}

/* Evaluates what all tiles of a task share, for the maximum number of rows of a tile. Requires that a tile has
   begun. */
static void evaluate_invariants(struct run *run) {
    int64_t tile_rows = run->tile_rows;
    run->tile_rows = run->s->tile_rows;
    for (int i = 0; i < run->s->invariants; i++)
        evaluate_row(run, run->s->row_terms[i]);
    run->tile_rows = tile_rows;
}

/* Evaluates the row terms that are known after `stage` passes. */
static void evaluate_rows(struct run *run, int stage) {
    for (int i = stage ? run->s->stage_ends[stage - 1] : run->s->invariants; i < run->s->stage_ends[stage]; i++)
        evaluate_row(run, run->s->row_terms[i]);
}

/* Stores row values: statistics, and results with one number per row. */
static void store_rows(const struct run *run) {
    const struct rowwise *rows = run->s->rows;
    for (int k = 0; k < rows->operand_count; k++) {
        const struct row_operand *operand = &rows->operands[k];
        struct location location = row_location(run, k);
        /* Once per row, even if it has several columns. */
        location.columns = run->s->span > 1 ? 1 : location.columns;
        int64_t ld = run->tile_rows / location.rows;
        /* base is NULL for a dead result. */
        if (operand->is_store && !rows->terms[operand->term].spans && location.base)
            store(rows->terms[operand->term].is_wide, &location, row_values(run, operand->term), ld);
    }
}

/* ---- Totals ------------------------------------------------------------------------------------------------------ */

/* Totals are always double, so that sums of long rows lose little. */
static void begin_total(struct run *run, int slot, double identity) {
    row_kernels_f64.fill(run->tile_rows, totals_of(run, slot), identity);
}

/* Each pass resets its totals and numbers its own slots. */
static void begin_totals(struct run *run, const struct row_pass *pass) {
    for (int i = pass->first; i < pass->first + pass->count; i++) {
        const struct row_instruction *at = &run->s->instructions[i];
        if (at->verb == ROW_REDUCE || at->verb == ROW_REDUCE_PAIR)
            begin_total(run, at->slot, row_identity(term_at(run, at->term)->opcode));
        if (at->verb == ROW_REDUCE_PAIR)
            begin_total(run, at->pair_slot, row_identity(OPCODE_SUM));
    }
}

/* Columns that are parts of one row all receive their combined total. */
static void join_columns(const struct run *run, enum opcode opcode, double *totals) {
    int64_t span = run->s->span;
    for (int64_t first = 0; first < run->tile_rows && span > 1; first += span) {
        for (int64_t k = 1; k < span; k++)
            row_join(opcode, 1, totals + first, totals + first + k);
        row_kernels_f64.fill(span, totals + first, totals[first]);
    }
}

/* Rounds the total to the term's width once. */
static void end_total(struct run *run, int term, int slot) {
    join_columns(run, term_at(run, term)->opcode, totals_of(run, slot));
    kernels_of(term_at(run, term)->is_wide)->of_totals(run->tile_rows, row_values(run, term), totals_of(run, slot));
    if (term_at(run, term)->opcode == OPCODE_SUM && !term_at(run, term)->is_wide)
        watch_sum(run, term);
}

static void end_totals(struct run *run, const struct row_pass *pass) {
    for (int i = pass->first; i < pass->first + pass->count; i++) {
        const struct row_instruction *at = &run->s->instructions[i];
        if (at->verb == ROW_REDUCE || at->verb == ROW_REDUCE_PAIR)
            end_total(run, at->term, at->slot);
        if (at->verb == ROW_REDUCE_PAIR)
            end_total(run, at->pair, at->pair_slot);
    }
}

/* `others` uses the same slots as the run's own totals. */
static void join_total(struct run *run, enum opcode opcode, int slot, const double *others) {
    row_join(opcode, run->tile_rows, totals_of(run, slot), others + slot * run->s->tile_rows);
}

/* Combines with the totals of another part of the tile's rows. */
static void join_totals(struct run *run, const struct row_pass *pass, const double *others) {
    for (int i = pass->first; i < pass->first + pass->count; i++) {
        const struct row_instruction *at = &run->s->instructions[i];
        if (at->verb == ROW_REDUCE || at->verb == ROW_REDUCE_PAIR)
            join_total(run, term_at(run, at->term)->opcode, at->slot, others);
        if (at->verb == ROW_REDUCE_PAIR)
            join_total(run, OPCODE_SUM, at->pair_slot, others);
    }
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static char *register_memory(struct run *run, int reg) { return run->memory + reg * run->s->register_bytes; }

/* True if a register holds one number for the whole block or for each of its rows. */
static bool is_row_value(const struct run *run, int reg) { return run->steps[reg].chunk == 0; }

/* Sums products in which one or both factors are one number per row of the block. */
static void sum_multiples(const struct run *run, const struct row_instruction *at, bool is_wide, double *totals) {
    int64_t width = width_of(is_wide);
    int factor = is_row_value(run, at->x[0]) ? 0 : 1, other = at->x[!factor], level = at->x[factor];
    for (int64_t r = 0; r < run->rows_here; r++) {
        const char *elements = run->registers[other] + r * run->steps[other].row * width;
        const char *number = run->registers[level] + r * run->steps[level].row * width;
        double sum = 0;
        if (is_row_value(run, other))
            sum = (double)run->columns * first_of(is_wide, elements);
        else
            kernels_of(is_wide)->of_rows(OPCODE_SUM)(1, run->columns, &sum, elements, 0, NULL, 0);
        totals[r] += sum * first_of(is_wide, number);
    }
}

/* Reduces the block into the totals of its rows: the columns are rows, all of it is one row, or row by row. */
static void reduce(struct run *run, const struct row_instruction *at) {
    const struct term *term = term_at(run, at->term);
    const struct row_schedule *s = run->s;
    const struct row_kernels *kernels = kernels_of(term->is_wide);
    const char *x = run->registers[at->x[0]], *b = at->x[1] < 0 ? NULL : run->registers[at->x[1]];
    int64_t rows = run->rows_here, columns = run->columns;
    double *totals = totals_of(run, at->slot) + run->row;
    /* 0 if b is absent. */
    int64_t ld_x = run->steps[at->x[0]].row, ld_b = b ? run->steps[at->x[1]].row : 0;
    if (b && (is_row_value(run, at->x[0]) || is_row_value(run, at->x[1])))
        sum_multiples(run, at, term->is_wide, totals);
    else if (!s->loops[s->b].is_reduced)
        kernels->of_columns(term->opcode)(rows, columns, totals, x, ld_x, b, ld_b);
    /* Both loops are within the row, so the block is one run. */
    else if (s->loops[s->a].is_reduced)
        kernels->of_rows(term->opcode)(1, rows * columns, totals, x, 0, b, 0);
    else
        kernels->of_rows(term->opcode)(rows, columns, totals, x, ld_x, b, ld_b);
}

/* Reduces to two totals at once; m is one number per column or row, or one per element. */
static void reduce_pair(struct run *run, const struct row_instruction *at) {
    const struct row_schedule *s = run->s;
    const struct row_kernels *kernels = kernels_of(term_at(run, at->term)->is_wide);
    double *sums = totals_of(run, at->slot) + run->row, *products = totals_of(run, at->pair_slot) + run->row;
    struct row_pair pair = {.x = run->registers[at->x[0]],
                            .m = run->registers[at->x[1]],
                            .p = at->x[2] < 0 ? NULL : run->registers[at->x[2]],
                            .ld_x = run->steps[at->x[0]].row,
                            .ld_m = run->steps[at->x[1]].row,
                            .ld_p = at->x[2] < 0 ? 0 : run->steps[at->x[2]].row,
                            .step = run->steps[at->x[1]].chunk};
    if (!s->loops[s->b].is_reduced)
        kernels->pair_of_columns(run->rows_here, run->columns, sums, products, &pair);
    else if (s->loops[s->a].is_reduced)
        kernels->pair_of_rows(1, run->rows_here * run->columns, sums, products, &pair);
    else
        kernels->pair_of_rows(run->rows_here, run->columns, sums, products, &pair);
}

/* Adds each row of the block to one of the task's sums. step: distance between sums. */
static void sum_rows(const struct run *run, const struct row_instruction *at, char *sums, int64_t step) {
    enum { PART = 64 };
    bool is_wide = term_at(run, at->term)->is_wide;
    int64_t width = width_of(is_wide), ld_x = run->steps[at->x[0]].row;
    const char *x = run->registers[at->x[0]], *b = at->x[1] < 0 ? NULL : run->registers[at->x[1]];
    int64_t ld_b = b ? run->steps[at->x[1]].row : 0;
    for (int64_t first = 0; first < run->rows_here; first += PART) {
        int64_t rows = min64(run->rows_here - first, PART);
        double totals[PART] = {0};
        kernels_of(is_wide)->of_rows(OPCODE_SUM)(rows, run->columns, totals, x + first * ld_x * width, ld_x,
                                                 b ? b + first * ld_b * width : NULL, ld_b);
        for (int64_t r = 0; r < rows; r++)
            if (is_wide)
                ((double *)sums)[(first + r) * step] += totals[r];
            else
                ((float *)sums)[(first + r) * step] += (float)totals[r];
    }
}

/* Adds the block's elements to the task's sums. */
static void sum_column(struct run *run, const struct row_instruction *at) {
    const struct row_schedule *s = run->s;
    bool is_wide = term_at(run, at->term)->is_wide;
    int64_t width = width_of(is_wide), step = s->loops[s->a].position;
    const char *x = run->registers[at->x[0]], *b = at->x[1] < 0 ? NULL : run->registers[at->x[1]];
    int64_t ld_x = run->steps[at->x[0]].row, ld_b = b ? run->steps[at->x[1]].row : 0;
    char *sums = run->sums + (at->slot * s->sum_length + run->position) * width;
    if (s->loops[s->b].position == 0) {
        sum_rows(run, at, sums, step);
        return;
    }
    /* Either all rows of the block add to the same sums, or each has its own. */
    int64_t together = step == 0 ? run->rows_here : 1;
    for (int64_t r = 0; r < run->rows_here; r += together)
        kernels_of(is_wide)->column_sum(together, run->columns, sums + r * step * width, x + r * ld_x * width, ld_x,
                                        b ? b + r * ld_b * width : b, ld_b);
}

/* Location of a kept term's elements for the block: the memory of a result if it has the form of a register, otherwise
   the block's part of the slot. */
static char *kept_location(const struct run *run, const struct row_instruction *at) {
    bool is_wide = term_at(run, at->term)->is_wide;
    char *memory = NULL;
    if (at->operand >= 0) {
        struct location location = block_location(run, at->operand);
        memory = dense_memory(&location, is_wide);
    }
    return memory ? memory : run->kept + at->slot * run->s->kept_bytes + run->done * width_of(is_wide);
}

/* Missing arguments repeat the first, so that kernels read valid memory. */
static void calculate_block(struct run *run, const struct row_instruction *at) {
    const struct term *term = term_at(run, at->term);
    const void *x[ROW_ARGUMENTS];
    struct row_steps steps[ROW_ARGUMENTS];
    int64_t ld = run->columns;
    for (int i = 0; i < ROW_ARGUMENTS; i++) {
        int reg = at->x[i] < 0 ? at->x[0] : at->x[i];
        x[i] = run->registers[reg];
        steps[i] = run->steps[reg];
    }
    char *dst = register_memory(run, at->dst);
    if (at->slot >= 0) {
        dst = kept_location(run, at);
    } else if (at->operand >= 0) {
        struct location location = block_location(run, at->operand);
        /* Kernels that step over rows allow gaps; loops and conversions do not. */
        bool may_gap = run->s->steps_rows && at->opcode >= 0;
        char *in_place = may_gap ? dense_rows(&location, term->is_wide) : dense_memory(&location, term->is_wide);
        dst = in_place ? in_place : dst;
        ld = in_place && may_gap ? location.row_stride : ld;
    }
    /* Proceeds row by row if arguments or dst have gaps or represent whole rows. */
    if (at->opcode >= 0 && run->s->steps_rows)
        kernels_of(term->is_wide)->formulas[at->opcode](run->rows_here, run->columns, dst, ld, x, steps);
    else if (at->opcode >= 0)
        kernels_of(term->is_wide)->formulas[at->opcode](1, run->rows_here * run->columns, dst, 0, x, steps);
    else
        calculate(term, run->rows_here * run->columns, dst, x);
    run->registers[at->dst] = dst;
    run->steps[at->dst] = (struct row_steps){ROW_CHUNK, ld, 0};
}

/* Distance from an element to the same one of the next tile, if the rows of a tile are contiguous. The first pass reads
   this tile from memory; the later passes, which hit the cache, prefetch the next tile. */
static int64_t tile_ahead(const struct run *run, const struct row_pass *pass, int operand) {
    const struct row_loop *a = &run->s->loops[run->s->a];
    return pass == run->s->passes || a->is_reduced ? 0 : run->s->tile_a * a->strides[operand];
}

/* One number per row of a block: a chunk of it represents the row. Blocks of few columns have no room for a chunk. */
static void load_levels(struct run *run, const struct row_instruction *at, struct location location) {
    bool is_wide = term_at(run, at->term)->is_wide;
    const struct row_kernels *kernels = kernels_of(is_wide);
    char values[ROWWISE_BLOCK / ROW_CHUNK * sizeof(double)] __attribute__((aligned(64)));
    char *dst = run->registers[at->dst] = register_memory(run, at->dst);
    int64_t rows = location.rows;
    location.columns = rows, location.column_stride = location.row_stride, location.rows = 1;
    load(is_wide, values, &location);
    if (rows == 1)
        kernels->fill(min64(run->columns, ROW_CHUNK), dst, first_of(is_wide, values));
    else
        kernels->fill_chunks(rows, dst, values);
    run->steps[at->dst] = (struct row_steps){0, rows == 1 ? 0 : ROW_CHUNK, 0};
}

static void load_block(struct run *run, const struct row_pass *pass, const struct row_instruction *at) {
    bool is_wide = term_at(run, at->term)->is_wide;
    if (at->is_row_invariant && pass->blocks == 1 && run->row > 0)
        return;
    struct location location = block_location(run, at->operand);
    if (at->is_row_constant && run->s->loops[run->s->b].is_reduced && location.column_stride == 0 && location.base &&
        (location.rows == 1 || (run->s->steps_rows && !pass->only_reduces))) {
        load_levels(run, at, location);
        return;
    }
    /* Totals would then reduce the block as one run including its gaps, so it must have none. */
    bool is_run = run->s->loops[run->s->a].is_reduced && run->s->loops[run->s->b].is_reduced;
    bool may_gap = (pass->only_reduces && !is_run) || (run->s->steps_rows && at->is_compact);
    char *in_place = may_gap ? dense_rows(&location, is_wide) : dense_memory(&location, is_wide);
    run->registers[at->dst] = in_place        ? in_place
                              : at->slot >= 0 ? kept_location(run, at)
                                              : register_memory(run, at->dst);
    /* One row for all; formulas repeat it. */
    if (!in_place && location.row_stride == 0 && run->s->steps_rows && at->is_compact)
        location.rows = 1;
    int64_t row = in_place && may_gap                        ? location.row_stride
                  : location.rows == 1 && run->rows_here > 1 ? 0
                                                             : run->columns;
    run->steps[at->dst] = (struct row_steps){ROW_CHUNK, row, in_place ? tile_ahead(run, pass, at->operand) : 0};
    if (!in_place)
        load(is_wide, run->registers[at->dst], &location);
}

/* Compares addresses to detect that the last formula has already written to memory. */
static void store_block(struct run *run, const struct row_instruction *at) {
    bool is_wide = term_at(run, at->term)->is_wide;
    struct location location = block_location(run, at->operand);
    const char *src = run->registers[at->x[0]];
    if (!location.base || dense_rows(&location, is_wide) == src) /* dead, or written as it was computed */
        return;
    store(is_wide, &location, src, run->steps[at->x[0]].row);
}

static void execute(struct run *run, const struct row_pass *pass, const struct row_instruction *at) {
    switch (at->verb) {
    case ROW_LOAD:
        load_block(run, pass, at);
        break;
    case ROW_RECALL:
        run->registers[at->dst] = kept_location(run, at);
        run->steps[at->dst] = (struct row_steps){ROW_CHUNK, run->columns, 0};
        break;
    case ROW_CALCULATE:
        calculate_block(run, at);
        break;
    case ROW_REDUCE:
        reduce(run, at);
        break;
    case ROW_REDUCE_PAIR:
        reduce_pair(run, at);
        break;
    case ROW_SUM_COLUMN:
        sum_column(run, at);
        break;
    case ROW_STORE:
        store_block(run, at);
        break;
    case ROW_SPREAD: /* computed once, before the blocks of its rows */
        break;
    }
}

/* Provides row values for each element of a block, in the least expensive form that all readers accept: as they are, as
   one chunk per row, or repeated for every element. */
static void spread(struct run *run, const struct row_pass *pass, const struct row_instruction *at) {
    const struct row_schedule *s = run->s;
    const struct term *term = term_at(run, at->term);
    int64_t width = width_of(term->is_wide), columns = run->columns;
    const char *values = row_values(run, at->term) + run->row * width;
    char *dst = run->registers[at->dst] = register_memory(run, at->dst);
    /* True if all elements of the block belong to one row. */
    bool is_one = s->loops[s->b].is_reduced && (s->loops[s->a].is_reduced || s->block_a == 1);
    bool are_columns = !s->loops[s->b].is_reduced;
    bool is_compact = at->is_compact && s->steps_rows;
    if (pass->only_reduces || (are_columns && is_compact)) { /* in place: one for each column or row */
        run->registers[at->dst] = (char *)values;
        run->steps[at->dst].chunk = are_columns ? ROW_CHUNK : 0;
        run->steps[at->dst].row = are_columns || s->loops[s->a].is_reduced ? 0 : 1;
        return;
    }
    /* One chunk per row, which formulas repeat. */
    if (is_compact) {
        run->steps[at->dst] = (struct row_steps){0, ROW_CHUNK, 0};
        kernels_of(term->is_wide)->fill_chunks(run->rows_here, dst, values);
        return;
    }
    /* This is as large as any block of the pass: later blocks may have fewer columns, never more. */
    int64_t count = at->is_compact ? min64(ROW_CHUNK, s->block_a * s->block_b) : s->block_a * s->block_b;
    run->steps[at->dst] = (struct row_steps){is_one && at->is_compact ? 0 : ROW_CHUNK, is_one ? 0 : run->columns, 0};
    if (is_one)
        kernels_of(term->is_wide)->fill(count, dst, first_of(term->is_wide, values));
    /* Repeats a value along its row. */
    for (int64_t r = 0; r < run->rows_here && !is_one; r++, dst += columns * width)
        if (s->loops[s->b].is_reduced)
            kernels_of(term->is_wide)->fill(columns, dst, first_of(term->is_wide, values + r * width));
        else
            memcpy(dst, values, (size_t)(columns * width));
}

/* ---- Positions --------------------------------------------------------------------------------------------------- */

/* Position of the i-th tile, or of the i-th block within one. rows: its extent along the loop of rows. Row-major over
   the pieces of one kind of loop; begins stay 0 for loops with one piece. */
static void begin_at(const struct row_schedule *s, int64_t i, bool is_reduced, int64_t rows, int64_t *begins) {
    for (int loop = s->loop_count; loop-- > 0 && i > 0;) {
        int64_t step = loop == s->a ? rows : loop == s->b ? s->block_b : 1;
        int64_t pieces = loop == s->a ? divide_up(s->loops[loop].extent, rows) : s->pieces[loop];
        if (s->loops[loop].is_reduced != is_reduced || pieces == 1)
            continue;
        begins[loop] = i % pieces * step;
        i /= pieces;
    }
}

/* Computes `first` for every operand, including its offset in scratch memory. */
static void begin_tile(struct run *run, int64_t tile) {
    const struct row_schedule *s = run->s;
    int64_t begins[ROWWISE_LOOPS] = {0};
    begin_at(s, tile, false, s->tile_a, begins);
    run->tile_position = 0;
    for (int loop = 0; loop < s->loop_count; loop++)
        run->tile_position += begins[loop] * s->loops[loop].position;
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct row_operand *operand = &s->rows->operands[k];
        /* Row values step from row to row, not from column to column. */
        int64_t span = operand->term < 0 || s->rows->terms[operand->term].spans ? 1 : s->span;
        run->first[k] = operand->offset;
        for (int loop = 0; loop < s->loop_count; loop++)
            run->first[k] += begins[loop] / (loop == s->b ? span : 1) * s->loops[loop].strides[k];
    }
    /* Rows are along one loop of the block; the last tile may have fewer. */
    run->tile_rows = 1;
    if (!s->loops[s->a].is_reduced)
        run->tile_rows = min64(s->loops[s->a].extent - begins[s->a], s->tile_a);
    if (!s->loops[s->b].is_reduced)
        run->tile_rows = min64(s->loops[s->b].extent - begins[s->b], s->block_b);
}

/* Fast path for tiles whose rows fit in one block, which is the usual case: no divisions. */
static void begin_only_block(struct run *run, const struct row_pass *pass) {
    const struct row_loop *a = &run->s->loops[run->s->a], *b = &run->s->loops[run->s->b];
    run->position = run->tile_position + run->row * a->position;
    for (int u = 0; u < pass->uses_count; u++)
        run->at[pass->uses[u]] = run->first[pass->uses[u]] + run->row * a->strides[pass->uses[u]];
    run->rows_here = a->is_reduced ? a->extent : min64(run->tile_rows - run->row, pass->block_a);
    run->columns = b->is_reduced ? b->extent : run->tile_rows;
}

/* at: for the operands that the pass uses. */
static void begin_block(struct run *run, const struct row_pass *pass, int64_t block) {
    const struct row_schedule *s = run->s;
    const struct row_loop *a = &s->loops[s->a], *b = &s->loops[s->b];
    int64_t begins[ROWWISE_LOOPS] = {0};
    if (pass->blocks == 1) {
        begin_only_block(run, pass);
        return;
    }
    begin_at(s, block, true, pass->block_a, begins);
    /* run_pass iterates over the tile's rows. */
    if (!a->is_reduced)
        begins[s->a] = run->row;
    run->position = run->tile_position;
    for (int loop = 0; loop < s->loop_count; loop++)
        run->position += begins[loop] * s->loops[loop].position;
    for (int u = 0; u < pass->uses_count; u++) {
        int k = pass->uses[u];
        /* Skips multiplications by 0: most loops of most blocks start at 0. */
        run->at[k] = run->first[k];
        for (int loop = 0; loop < s->loop_count; loop++)
            run->at[k] += begins[loop] ? begins[loop] * s->loops[loop].strides[k] : 0;
    }
    /* The last block of a loop may be smaller. */
    run->rows_here = min64((a->is_reduced ? a->extent : run->tile_rows) - begins[s->a], pass->block_a);
    run->columns = b->is_reduced ? min64(b->extent - begins[s->b], s->block_b) : run->tile_rows;
}

/* ---- Passes and tiles -------------------------------------------------------------------------------------------- */

/* Runs the blocks of the same rows, for which row values are spread once: all of them have the same number of columns,
   or belong to one row. */
static void run_blocks(struct run *run, const struct row_pass *pass, int64_t first, int64_t end) {
    const struct row_instruction *instructions = run->s->instructions + pass->first;
    for (int64_t block = first; block < end; block++) {
        begin_block(run, pass, block);
        for (int i = 0; i < pass->spreads && block == first; i++)
            spread(run, pass, &instructions[i]);
        for (int i = pass->spreads; i < pass->count; i++)
            execute(run, pass, &instructions[i]);
        /* Location of the next block's kept elements: in the order of blocks, which is the same for all passes with
           registers. */
        run->done += run->rows_here * run->columns;
    }
}

/* Iterates over the blocks of rows; only one if the rows of a block are parts of one row. */
static void run_pass(struct run *run, const struct row_pass *pass) {
    const struct row_schedule *s = run->s;
    int64_t rows = s->loops[s->a].is_reduced ? 1 : run->tile_rows;
    run->done = 0;
    for (run->row = 0; run->row < rows; run->row += pass->block_a)
        run_blocks(run, pass, 0, pass->blocks);
}

/* Evaluates what is known before any pass, then runs pass after pass and evaluates what each makes known. */
static void run_tile(struct run *run, int64_t tile, bool is_first) {
    const struct row_schedule *s = run->s;
    begin_tile(run, tile);
    if (is_first)
        evaluate_invariants(run);
    evaluate_rows(run, 0);
    for (int p = 0; p < s->pass_count; p++) {
        begin_totals(run, &s->passes[p]);
        run_pass(run, &s->passes[p]);
        end_totals(run, &s->passes[p]);
        evaluate_rows(run, p + 1);
    }
    store_rows(run);
}

/* Registers and steps are set as instructions run. */
static void start(struct run *run, struct job *job) {
    run->s = job->s;
    run->values = job->values;
    run->scratch = job->scratch;
    run->is_out_of_range = &job->is_out_of_range;
}

/* Resets the column sums of a task, or of a part of a tile, before its first pass. */
static void begin_sums(struct run *run, const struct job *job, int64_t index, bool is_first) {
    const struct row_schedule *s = job->s;
    run->sums = job->scratch + s->sums_at + index * s->sum_bytes;
    if (s->sum_count && is_first)
        memset(run->sums, 0, (size_t)s->sum_bytes);
}

/* Runs consecutive tiles; kept elements and sums are private to the task. */
static void run_task(void *context, int64_t task) {
    struct job *job = context;
    const struct row_schedule *s = job->s;
    /* Slots of the tile's rows with their totals: tile_bytes is at most this. */
    char rows[ROWWISE_ROW_BYTES + 64 * ROWWISE_TERMS] __attribute__((aligned(64)));
    char kept[ROWWISE_KEPT_BYTES] __attribute__((aligned(64)));
    struct run run;
    start(&run, job);
    run.rows = rows;
    run.totals = (double *)(rows + s->totals_at);
    run.kept = s->task_bytes ? job->memory + task * s->task_bytes : kept;
    begin_sums(&run, job, task, true);
    int64_t first = task * s->tiles / s->tasks;
    for (int64_t tile = first; tile < (task + 1) * s->tiles / s->tasks; tile++)
        run_tile(&run, tile, tile == first);
}

/* ---- Long rows that several tasks share -------------------------------------------------------------------------- */

/* Rows and totals of a tile are stored in the workspace, because several tasks work on them, phase by phase. */
static void enter_tile(struct run *run, struct job *job, int64_t tile) {
    start(run, job);
    run->rows = job->memory + tile * job->s->tile_bytes;
    run->totals = (double *)(run->rows + job->s->totals_at);
    begin_tile(run, tile);
}

/* Returns the totals of a part, which are stored after all tiles. */
static double *part_totals(const struct job *job, int64_t part) {
    const struct row_schedule *s = job->s;
    return (double *)(job->memory + s->tiles * s->tile_bytes + part * (s->tile_bytes - s->totals_at));
}

/* Phase 0: evaluates what is known of rows before any pass. */
static void begin_rows(void *context, int64_t tile) {
    struct run run;
    enter_tile(&run, context, tile);
    evaluate_invariants(&run);
    evaluate_rows(&run, 0);
}

/* Runs one phase per pass: processes part `split` of a tile's blocks into totals of its own. */
static void run_part(void *context, int64_t part) {
    struct job *job = context;
    const struct row_schedule *s = job->s;
    int64_t split = part % s->splits;
    struct run run;
    enter_tile(&run, job, part / s->splits);
    run.totals = part_totals(job, part);
    begin_sums(&run, job, part, job->pass == 0);
    begin_totals(&run, &s->passes[job->pass]);
    run.done = run.row = 0;
    /* Parts are equal to within one block. */
    int64_t blocks = s->passes[job->pass].blocks;
    run_blocks(&run, &s->passes[job->pass], split * blocks / s->splits, (split + 1) * blocks / s->splits);
}

/* Combines the parts' totals in the order of the parts, regardless of which finished first. */
static void end_pass(void *context, int64_t tile) {
    struct job *job = context;
    const struct row_pass *pass = &job->s->passes[job->pass];
    struct run run;
    enter_tile(&run, job, tile);
    begin_totals(&run, pass);
    for (int64_t split = 0; split < job->s->splits; split++)
        join_totals(&run, pass, part_totals(job, tile * job->s->splits + split));
    end_totals(&run, pass);
    evaluate_rows(&run, job->pass + 1);
}

/* Runs the last phase, which stores the row values. */
static void end_rows(void *context, int64_t tile) {
    struct run run;
    enter_tile(&run, context, tile);
    store_rows(&run);
}

/* Each threads_for ends a phase: its results are visible to the next one. */
bool row_schedule_run(const struct row_schedule *s, void *const *values, void *scratch, void *memory) {
    struct job job = {s, values, scratch, memory, 0, false};
    if (s->splits == 1) {
        threads_for(s->tasks, run_task, &job);
        return !job.is_out_of_range;
    }
    threads_for(s->tiles, begin_rows, &job);
    for (job.pass = 0; job.pass < s->pass_count; job.pass++) {
        threads_for(s->tiles * s->splits, run_part, &job);
        threads_for(s->tiles, end_pass, &job);
    }
    threads_for(s->tiles, end_rows, &job);
    return !job.is_out_of_range;
}
