/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program block by block, instruction by instruction. All memory of a block is read before any is written,
   except that the last computation may write while it reads, element by element. One call runs on one thread and
   allocates nothing; the caller divides the space among threads. */
#include "base/dtype.h"
#include "engines/cpu/core/rows_columns.h"

#include <string.h>

/* Location of a block of [rows, columns] elements in a tensor. */
struct location {
    void *base;
    int64_t index, row_stride, column_stride; /* in elements */
    weftDataType_t type;
};

/* State of a thread that runs a task, on its stack: PROGRAM_BYTES and little more. It is not cleared: every register is
   written before it is read. */
struct run {
    const struct program *program;
    const struct rows_columns *walk;
    void *const *values;
    struct block given;
    /* Size of the current block; rows * columns is at most program->block. */
    int rows, columns;
    int64_t indices[PROGRAM_ACCESSES];  /* index of the block's first element */
    void *registers[PROGRAM_REGISTERS]; /* the run's own memory, or a tensor's */
    unsigned char memory[PROGRAM_BYTES] __attribute__((aligned(64)));
};

/* Memory of register `reg`. It is aligned to a vector, because register_bytes is a multiple of one. */
static void *memory_of(struct run *run, int reg) { return run->memory + reg * run->program->register_bytes; }

/* Size of an element in a register. */
static int64_t bytes_of(bool is_wide) { return is_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float); }

static weftDataType_t type_of(bool is_wide) { return is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT; }

/* Rows are the inner row loop, columns the last loop. */
static struct location location_of(const struct run *run, int access) {
    const int64_t *strides = run->walk->strides[access];
    int column = run->walk->rank - 1;
    int value = run->program->accesses[access].value;
    return (struct location){.base = value >= 0 ? run->values[value] : NULL,
                             .index = run->indices[access],
                             .row_stride = strides[column - 1],
                             .column_stride = strides[column],
                             .type = run->program->accesses[access].type};
}

/* Returns the block's memory if it has the form of a register: dense and of this type. Otherwise NULL. User memory may
   be misaligned; then the block is copied. */
static void *find_dense(const struct run *run, const struct location *location, bool is_wide) {
    bool is_dense = (location->column_stride == 1 || run->columns == 1) &&
                    (location->row_stride == run->columns || run->rows == 1) && location->type == type_of(is_wide) &&
                    location->base && (uintptr_t)location->base % (uintptr_t)bytes_of(is_wide) == 0;
    return is_dense ? (char *)location->base + location->index * bytes_of(is_wide) : NULL;
}

/* ---- Rows in float or double ------------------------------------------------------------------------------------- */

/* Loads elements index, index + 1, ... of a tensor as float or double. dtype.h converts and rounds as every engine
   does. */
static void load_row(bool is_wide, void *dst, const struct location *location, int64_t index, int64_t count) {
    if (is_wide)
        dtype_to_f64(dst, location->type, location->base, index, count);
    else
        dtype_to_f32(dst, location->type, location->base, index, count);
}

static void store_row(bool is_wide, const struct location *location, int64_t index, const void *src, int64_t count) {
    if (is_wide)
        dtype_from_f64(location->type, location->base, index, src, count);
    else
        dtype_from_f32(location->type, location->base, index, src, count);
}

/* Broadcasts the first element of a row, which is already there, to the whole row. */
static void fill(bool is_wide, void *row, int64_t count) {
    double *wide = row, wide_value = is_wide ? *wide : 0;
    float *narrow = row, narrow_value = *narrow;
    for (int64_t i = 0; i < count && is_wide; i++)
        wide[i] = wide_value;
    for (int64_t i = 0; i < count && !is_wide; i++)
        narrow[i] = narrow_value;
}

/* dst[j * columns + i] = src[i * rows + j] */
static void transpose(bool is_wide, void *dst, const void *src, int rows, int columns) {
    const double *wide = src;
    const float *narrow = src;
    for (int j = 0; j < rows && is_wide; j++)
        for (int i = 0; i < columns; i++)
            ((double *)dst)[j * columns + i] = wide[i * rows + j];
    for (int j = 0; j < rows && !is_wide; j++)
        for (int i = 0; i < columns; i++)
            ((float *)dst)[j * columns + i] = narrow[i * rows + j];
}

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

/* Copies elements one by one between a tensor and a dense block; the inner loop is the one with the smaller tensor
   stride. Memory may be misaligned. Inlined for each size, which is then a constant. */
static inline __attribute__((always_inline)) void move_elements(const struct run *run, const struct location *location,
                                                                char *block, bool is_store, size_t bytes) {
    bool is_by_row = location->column_stride < location->row_stride;
    int outer = is_by_row ? run->rows : run->columns, inner = is_by_row ? run->columns : run->rows;
    int64_t size = (int64_t)bytes, row = is_by_row ? size : run->columns * size;
    int64_t outer_bytes = (is_by_row ? location->row_stride : location->column_stride) * size;
    int64_t inner_bytes = (is_by_row ? location->column_stride : location->row_stride) * size;
    char *corner = (char *)location->base + location->index * size;
    for (int o = 0; o < outer; o++) {
        char *at = corner + o * outer_bytes, *element = block + o * (is_by_row ? run->columns * size : size);
        for (int i = 0; i < inner; i++, at += inner_bytes, element += row)
            memcpy(is_store ? at : element, is_store ? element : at, bytes);
    }
}

static void move_scattered(const struct run *run, const struct location *location, void *block, bool is_store) {
    switch (dtype_of(location->type)->bits) {
    case 8:
        move_elements(run, location, block, is_store, 1);
        break;
    case 16:
        move_elements(run, location, block, is_store, 2);
        break;
    case 32:
        move_elements(run, location, block, is_store, 4);
        break;
    default:
        move_elements(run, location, block, is_store, 8);
        break;
    }
}

/* Elements of whole bytes are gathered first and converted together. */
static void load_scattered(const struct run *run, bool is_wide, char *dst, const struct location *location) {
    unsigned char codes[PROGRAM_BLOCK * sizeof(double)];
    if (dtype_of(location->type)->bits >= 8) {
        bool is_same = location->type == type_of(is_wide);
        move_scattered(run, location, is_same ? (void *)dst : codes, false);
        if (!is_same)
            load_row(is_wide, dst, &(struct location){.base = codes, .type = location->type}, 0,
                     (int64_t)run->rows * run->columns);
        return;
    }
    for (int r = 0; r < run->rows; r++)
        for (int c = 0; c < run->columns; c++, dst += bytes_of(is_wide))
            load_row(is_wide, dst, location, location->index + r * location->row_stride + c * location->column_stride,
                     1);
}

static void store_scattered(const struct run *run, bool is_wide, const char *src, const struct location *location) {
    unsigned char codes[PROGRAM_BLOCK * sizeof(double)];
    if (dtype_of(location->type)->bits >= 8) {
        bool is_same = location->type == type_of(is_wide);
        if (!is_same)
            store_row(is_wide, &(struct location){.base = codes, .type = location->type}, 0, src,
                      (int64_t)run->rows * run->columns);
        move_scattered(run, location, is_same ? (void *)src : codes, true);
        return;
    }
    for (int r = 0; r < run->rows; r++)
        for (int c = 0; c < run->columns; c++, src += bytes_of(is_wide))
            store_row(is_wide, location, location->index + r * location->row_stride + c * location->column_stride, src,
                      1);
}

/* Loads column by column, then transposes. */
static void load_columns(const struct run *run, bool is_wide, void *dst, const struct location *location) {
    double columns[PROGRAM_BLOCK];
    for (int c = 0; c < run->columns; c++)
        load_row(is_wide, (char *)columns + c * run->rows * bytes_of(is_wide), location,
                 location->index + c * location->column_stride, run->rows);
    transpose(is_wide, dst, columns, run->rows, run->columns);
}

/* Loads rows into a dense dst. A row stride of 0 repeats the first row, a column stride of 0 its only element. */
static void load_rows(const struct run *run, bool is_wide, char *dst, const struct location *location) {
    int64_t row_bytes = run->columns * bytes_of(is_wide);
    /* The rows are contiguous in memory, so one conversion serves all. */
    bool is_run = location->column_stride == 1 && location->row_stride == run->columns;
    if (is_run) {
        load_row(is_wide, dst, location, location->index, (int64_t)run->rows * run->columns);
        return;
    }
    for (int r = 0; r < run->rows; r++) {
        char *row = dst + r * row_bytes;
        /* Elements that are broadcast along the rows are copied in register width instead of converted again. */
        if (r > 0 && location->row_stride == 0) {
            memcpy(row, dst, (size_t)row_bytes);
            continue;
        }
        load_row(is_wide, row, location, location->index + r * location->row_stride,
                 location->column_stride ? run->columns : 1);
        if (location->column_stride == 0)
            fill(is_wide, row, run->columns);
    }
}

/* Tries from fastest to slowest: in place, by rows, by columns with a transposition, element by element. */
static void load(struct run *run, const struct instruction *instruction) {
    struct location location = location_of(run, instruction->access);
    /* A dense block is not copied: instructions read the tensor's own memory, which this block has not written yet. */
    void *dense = find_dense(run, &location, instruction->is_wide), *dst = run->registers[instruction->dst];
    if (dense)
        run->registers[instruction->dst] = dense;
    else if (location.column_stride == 0 || location.column_stride == 1 || run->columns == 1)
        load_rows(run, instruction->is_wide, dst, &location);
    else if (location.row_stride == 1)
        load_columns(run, instruction->is_wide, dst, &location);
    else
        load_scattered(run, instruction->is_wide, dst, &location);
}

/* Transposes first, so that each column of the tensor is contiguous. */
static void store_columns(const struct run *run, bool is_wide, const struct location *location, const void *src) {
    double columns[PROGRAM_BLOCK];
    transpose(is_wide, columns, src, run->columns, run->rows);
    for (int c = 0; c < run->columns; c++)
        store_row(is_wide, location, location->index + c * location->column_stride,
                  (const char *)columns + c * run->rows * bytes_of(is_wide), run->rows);
}

static void store(const struct run *run, const struct instruction *instruction) {
    struct location location = location_of(run, instruction->access);
    const char *src = run->registers[instruction->x];
    bool is_wide = instruction->is_wide;
    /* The last formula may have written directly to the tensor's memory. */
    if (!location.base || find_dense(run, &location, is_wide) == src)
        return; /* dead, or written as it was computed */
    if (location.row_stride == 1 && location.column_stride != 1 && run->rows > 1) {
        store_columns(run, is_wide, &location, src);
        return;
    }
    if (location.column_stride != 1) {
        store_scattered(run, is_wide, src, &location);
        return;
    }
    for (int r = 0; r < run->rows; r++, src += run->columns * bytes_of(is_wide))
        store_row(is_wide, &location, location.index + r * location.row_stride, src, run->columns);
}

/* ---- The other instructions -------------------------------------------------------------------------------------- */

/* The access has no memory: its strides count indices. */
static void count_index(const struct run *run, const struct instruction *instruction) {
    struct location location = location_of(run, instruction->access);
    double *wide = run->registers[instruction->dst];
    float *narrow = run->registers[instruction->dst];
    for (int r = 0; r < run->rows; r++)
        for (int c = 0; c < run->columns; c++) {
            int64_t index = location.index + r * location.row_stride + c * location.column_stride;
            if (instruction->is_wide)
                wide[r * run->columns + c] = (double)index;
            else
                narrow[r * run->columns + c] = (float)index;
        }
}

/* Converts rows of INT32 to a dense dst. */
static void take_whole(const struct run *run, bool is_wide, void *dst) {
    const int32_t *row = run->given.data;
    for (int r = 0; r < run->rows; r++, row += run->given.ld) {
        for (int c = 0; c < run->columns && is_wide; c++)
            ((double *)dst)[r * run->columns + c] = row[c];
        for (int c = 0; c < run->columns && !is_wide; c++)
            ((float *)dst)[r * run->columns + c] = (float)row[c];
    }
}

/* True if the program only stores the caller's block, in the block's own type. */
static bool stores_given(const struct program *program) {
    return program->instruction_count == 2 && program->instructions[0].verb == VERB_GIVEN &&
           program->instructions[1].verb == VERB_STORE &&
           program->accesses[program->instructions[1].access].type == program->instructions[0].type;
}

static bool copies_whole(const struct program *program) {
    return stores_given(program) && program->instructions[0].type == WEFT_DATA_INT32;
}

static void copy_whole(const struct run *run) {
    struct location location = location_of(run, run->program->instructions[1].access);
    const int32_t *row = run->given.data;
    char *to = (char *)location.base + location.index * (int64_t)sizeof *row;
    for (int r = 0; r < run->rows && location.base;
         r++, row += run->given.ld, to += location.row_stride * (int64_t)sizeof *row) {
        if (location.column_stride == 1)
            memcpy(to, row, (size_t)run->columns * sizeof *row);
        for (int c = 0; c < run->columns && location.column_stride != 1; c++)
            memcpy(to + c * location.column_stride * (int64_t)sizeof *row, row + c, sizeof *row);
    }
}

/* The caller's block has a row pitch of ld elements. If its rows are contiguous, it serves as the register itself. */
static void take_given(struct run *run, const struct instruction *instruction) {
    if (instruction->type == WEFT_DATA_INT32) {
        take_whole(run, instruction->is_wide, run->registers[instruction->dst]);
        return;
    }
    int64_t bytes = bytes_of(instruction->is_wide);
    char *src = run->given.data, *dst = run->registers[instruction->dst];
    if (run->rows == 1 || run->given.ld == run->columns)
        run->registers[instruction->dst] = src;
    /* Otherwise rows are copied together, because formulas run over the block as one row. */
    for (int r = 0; r < run->rows && run->registers[instruction->dst] != src; r++)
        memcpy(dst + r * run->columns * bytes, src + r * run->given.ld * bytes, (size_t)(run->columns * bytes));
}

/* Multiplies by alpha in the width of the register, which is how the operation defines it. */
static void scale(bool is_wide, int64_t count, void *dst, const void *src, double factor) {
    const double *wide = src;
    const float *narrow = src;
    for (int64_t i = 0; i < count && is_wide; i++)
        ((double *)dst)[i] = wide[i] * factor;
    for (int64_t i = 0; i < count && !is_wide; i++)
        ((float *)dst)[i] = narrow[i] * (float)factor;
}

/* Rounds by a conversion to the type and back, so that the value is what a reader outside the region would have
   loaded. */
static void round_to(bool is_wide, int64_t count, void *dst, const void *src, weftDataType_t type) {
    unsigned char memory[PROGRAM_BLOCK * sizeof(double)];
    struct location location = {.base = memory, .type = type};
    store_row(is_wide, &location, 0, src, count);
    load_row(is_wide, dst, &location, 0, count);
}

/* dst may be the same register as an operand. */
static void apply(struct run *run, const struct instruction *instruction, int64_t count) {
    const void *x = run->registers[instruction->x], *b = run->registers[instruction->b];
    const void *t = run->registers[instruction->t];
    /* Uses the result's own register, even if it pointed elsewhere for an earlier block. */
    void *dst = memory_of(run, instruction->dst);
    if (instruction->access >= 0) {
        struct location location = location_of(run, instruction->access);
        void *dense = find_dense(run, &location, instruction->is_wide);
        dst = dense ? dense : dst;
    }
    instruction->loop(count, dst, x, b, t, &instruction->parameters);
    run->registers[instruction->dst] = dst;
}

/* A load may replace the register by a tensor's own memory. */
static void execute(struct run *run, const struct instruction *instruction) {
    int64_t count = (int64_t)run->rows * run->columns;
    bool is_wide = instruction->is_wide;
    const void *x = instruction->x == PROGRAM_NO_REGISTER ? NULL : run->registers[instruction->x];
    void *dst = NULL;
    /* Reset for each block: a load may have replaced it by a tensor's memory. */
    if (instruction->dst != PROGRAM_NO_REGISTER && instruction->verb != VERB_APPLY)
        dst = run->registers[instruction->dst] = memory_of(run, instruction->dst);
    switch (instruction->verb) {
    case VERB_LOAD:
        load(run, instruction);
        break;
    case VERB_INDEX:
        count_index(run, instruction);
        break;
    case VERB_GIVEN:
        take_given(run, instruction);
        break;
    case VERB_APPLY:
        apply(run, instruction, count);
        break;
    case VERB_SCALE:
        scale(is_wide, count, dst, x, instruction->factor);
        break;
    case VERB_ROUND:
        round_to(is_wide, count, dst, x, instruction->type);
        break;
    case VERB_CONVERT: /* the source has the other width */
        load_row(is_wide, dst, &(struct location){.base = (void *)x, .type = type_of(!is_wide)}, 0, count);
        break;
    case VERB_STORE:
        store(run, instruction);
        break;
    }
}

/* ---- Traversal --------------------------------------------------------------------------------------------------- */

/* Offset in a tensor of a column of the outer loops of columns; the innermost loop is counted separately. */
static int64_t outer_offset(const struct rows_columns *walk, int access, int64_t outer) {
    int64_t offset = 0;
    for (int i = walk->outer_count; i-- > 0; outer /= walk->outer_extents[i])
        offset += outer % walk->outer_extents[i] * walk->outer_strides[access][i];
    return offset;
}

/* Runs all columns of a few adjacent rows of the inner row loop. Restores the position of the caller's block at the
   end, because the loop advances it. */
static void run_rows(struct run *run, const int64_t *position, int64_t column, int64_t columns, int64_t row) {
    const struct rows_columns *walk = run->walk;
    const struct block given = run->given;
    /* Element size of the caller's block: a program with one begins with GIVEN. */
    int64_t width = run->program->instructions[0].type == WEFT_DATA_DOUBLE ? 8 : 4, step = walk->block_columns;
    bool copies = copies_whole(run->program);
    for (int64_t done = 0; done < columns; done += run->columns) {
        int64_t inner = column + done, outer = 0, count = columns - done < step ? columns - done : step;
        if (walk->outer_count) {
            int64_t extent = walk->extents[walk->rank - 1];
            outer = inner / extent, inner %= extent;
            count = count < extent - inner ? count : extent - inner;
        }
        run->columns = (int)count;
        /* Elements from each tensor's start to the block's first element. */
        for (int a = 0; a < run->program->access_count; a++) {
            run->indices[a] = walk->bases[a] + inner * walk->strides[a][walk->rank - 1];
            if (outer)
                run->indices[a] += outer_offset(walk, a, outer);
            for (int i = 0; i < walk->rank - 1; i++)
                run->indices[a] += position[i] * walk->strides[a][i];
        }
        if (given.data)
            run->given.data = (char *)given.data + (row * given.ld + done) * width;
        if (copies)
            copy_whole(run);
        for (int i = 0; i < run->program->instruction_count && !copies; i++)
            execute(run, &run->program->instructions[i]);
    }
    run->given = given;
}

/* Decomposes a row number into loop indices, the inner row loop last. */
static void find_position(const struct rows_columns *walk, int64_t row, int64_t *position) {
    for (int i = walk->rank - 2; i >= 0; i--) {
        position[i] = row % walk->extents[i];
        row /= walk->extents[i];
    }
}

struct stored rows_columns_stored(const struct program *program, const struct rows_columns *walk, void *const *values,
                                  int64_t row, int64_t rows, int64_t column) {
    int64_t position[ROWS_COLUMNS_AXES];
    int a = 0, inner = walk->rank - 2;
    while (a < program->access_count && !program->accesses[a].is_store)
        a++;
    find_position(walk, row, position);
    if (a == program->access_count || walk->strides[a][inner + 1] != 1 ||
        position[inner] + rows > walk->extents[inner] || walk->outer_count)
        return (struct stored){0};
    weftDataType_t type = program->accesses[a].type;
    char *base = values[program->accesses[a].value];
    int64_t index = walk->bases[a] + column;
    for (int i = 0; i <= inner; i++)
        index += position[i] * walk->strides[a][i];
    return (struct stored){base ? base + dtype_bytes(type, index) : NULL, dtype_bytes(type, walk->strides[a][inner]),
                           dtype_bytes(type, 1), stores_given(program)};
}

/* A block consists of rows of the inner loop and columns; narrow spaces get more rows per block. A block never crosses
   the end of the inner row loop, so that its rows have a constant stride. */
void program_run(const struct program *program, const struct rows_columns *walk, void *const *values,
                 struct block block, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    struct run run;
    run.program = program, run.walk = walk, run.values = values, run.given = block;
    int64_t inner = walk->extents[walk->rank - 2];
    int64_t widest = columns < walk->block_columns ? columns : walk->block_columns;
    int64_t most = widest > 0 ? program->block / widest : 1;
    for (int64_t done = 0; done < rows; done += run.rows) {
        int64_t position[ROWS_COLUMNS_AXES];
        find_position(walk, row + done, position);
        int64_t count = rows - done < most ? rows - done : most;
        int64_t left = inner - position[walk->rank - 2];
        run.rows = (int)(count < left ? count : left);
        run_rows(&run, position, column, columns, done);
    }
}
