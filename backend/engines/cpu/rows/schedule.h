/* SPDX-License-Identifier: Apache-2.0 */
/* How a row program runs: its loops, the blocks and tiles that they are cut into, and the instructions of each
   pass over a row. A block is two loops of the nest, cut so that a pass's registers stay in the L1 cache; one
   register holds one term's values of a block. A tile is the rows that one task carries through all passes; where
   there are few and long rows, the passes are phases that all tasks share, each taking parts of rows. */
#ifndef WEFT_ENGINES_CPU_ROWS_SCHEDULE_H
#define WEFT_ENGINES_CPU_ROWS_SCHEDULE_H

#include "engines/cpu/rows/kernels.h"
#include "engines/cpu/rows/terms.h"

enum {
    ROWWISE_BLOCK = 2048, /* elements of a register at most */
    ROWWISE_REGISTERS = 40,
    ROWWISE_REGISTER_BYTES = 56 << 10, /* of all registers, on the stack of the thread that runs them */
    ROWWISE_ROW_BYTES = 48 << 10,      /* of the values and totals of a tile's rows, likewise */
    ROWWISE_KEPT_BYTES = 48 << 10,     /* of what a tile keeps from pass to pass, likewise, where it fits */
    ROWWISE_PASSES = 6,
    ROWWISE_INSTRUCTIONS = 256,
    ROWWISE_LOOPS = WEFT_DIM_MAX + 2,
    ROWWISE_TASKS = 64, /* that have scratch memory of their own, at most */
};

enum row_verb {
    ROW_SPREAD,      /* dst = values of rows, at each element */
    ROW_LOAD,        /* dst = memory */
    ROW_RECALL,      /* dst = what a pass before has kept */
    ROW_CALCULATE,   /* dst = the term's formula of x */
    ROW_REDUCE,      /* totals of rows = x, or x[0] * x[1] */
    ROW_REDUCE_PAIR, /* two totals in one reading: x, m and p of struct row_pair are x[0], x[1] and x[2] */
    ROW_SUM_COLUMN,  /* the task's sums of columns, likewise */
    ROW_STORE,       /* memory = x */
};

/* A term of rows has a slot among the tile's rows; a term of elements a register, for the length of a pass. */
struct row_instruction {
    enum row_verb verb;
    int term;
    int dst, x[ROW_ARGUMENTS]; /* registers; -1: none */
    int opcode;                /* of CALCULATE of a formula: the term's, or one of enum row_opcode */
    bool is_thin;              /* of SPREAD: only formulas read it, for which one chunk will do; of LOAD: only
                                          what steps from row to row reads it, so that it may stay where it is */
    bool is_alike;    /* of LOAD: converted, and the same for all rows, so that one block's will do for a tile's */
    bool does_as_one; /* of LOAD: only formulas and sums of products read it, for which one number of a block will do */
    int operand;      /* of LOAD and STORE; of CALCULATE: where dst may be written to at once, also of what is kept;
                         of RECALL: where that was; -1 */
    int slot;         /* of kept elements (LOAD, CALCULATE, RECALL; -1: none), of totals, of sums */
    int pair, pair_slot; /* of REDUCE_PAIR: the term that is a product's total, and its slot */
};

struct row_pass {
    int first, spreads, count; /* instructions; the spreads come first */
    int totals;                /* reductions that it closes */
    bool only_reduces;         /* memory, into totals: nothing is calculated that needs a register */
    int64_t block_a, blocks;   /* rows of a block, which may be more than others'; blocks of a tile */
    int uses_count, uses[ROWWISE_OPERANDS];
};

/* One loop of the nest, outermost first: those over rows, then those within a row. */
struct row_loop {
    int64_t extent;
    bool is_reduced;
    int64_t strides[ROWWISE_OPERANDS]; /* elements; of columns that are parts of rows, and what rows have: a row's */
    int64_t position;                  /* elements of a sum of columns that one step passes over; 0: it adds to one */
};

/* What a schedule is made in, as struct rowwise_room. */
struct schedule_room {
    struct row_loop loops[ROWWISE_LOOPS];
    struct row_pass passes[ROWWISE_PASSES];
    struct row_instruction instructions[ROWWISE_INSTRUCTIONS];
    int row_terms[ROWWISE_TERMS], slot_of[ROWWISE_TERMS];
    int kept[ROWWISE_TERMS], kept_pass[ROWWISE_TERMS], kept_home[ROWWISE_TERMS];
};

struct row_schedule {
    const struct rowwise *rows;
    int loop_count;
    struct row_loop *loops;
    int a, b;                 /* the loops of a block's rows and columns */
    int64_t span;             /* columns beside each other that are parts of one row, as a group's channels; or 1 */
    int64_t block_a, block_b; /* extents of a block */
    bool steps_rows;          /* formulas take a block row by row: else as one run of elements */
    int64_t tile_a;           /* extent of a tile along a, where that is a loop over rows: some blocks */
    int64_t pieces[ROWWISE_LOOPS]; /* of each loop: tiles, or blocks within one */
    int64_t tile_rows;             /* rows of a tile, at most; columns that are parts of rows count each */
    int64_t tiles, blocks,
        splits;        /* blocks: of a tile in the pass that has fewest; splits: parts of them, 1: tasks take tiles */
    int64_t tasks;     /* where splits is 1: they take tiles in equal parts, to within one */
    bool sums_columns; /* rows lie so that sums of columns can be taken beside them */
    int pass_count, closed; /* passes; the first of them, which end in reductions */
    struct row_pass *passes;
    int instruction_count, register_count;
    struct row_instruction *instructions;
    bool has_wide;
    int64_t register_bytes;
    int *row_terms, stage_ends[ROWWISE_PASSES + 1]; /* formulas and loads of rows, stage after stage */
    int invariants;                                 /* the first of these are alike for all rows */
    int row_slots, *slot_of;                        /* of terms of rows; -1: none */
    int64_t row_bytes, totals_at, tile_bytes;       /* of one slot; of all, where totals begin; with totals */
    int kept_count, *kept;      /* slot of a term whose elements stay from pass to pass; -1: none; NULL to run */
    int *kept_pass;             /* that calculates them; NULL to run */
    int *kept_home;             /* operand whose memory holds them where it can, else -1; NULL to run */
    int64_t kept_bytes;         /* of one slot */
    int sum_count;              /* sums of columns */
    int64_t sum_length;         /* elements of one */
    int64_t partial_sums;       /* tasks, or parts of tiles, that have sums of their own */
    int64_t sums_at, sum_bytes; /* where in scratch memory the first of these are; bytes of each */
    int64_t task_bytes;         /* scratch memory of a task; 0: what it keeps is on its stack */
    double seconds;
    int watched; /* the inverse deviation that a gradient of a norm reads, a term; -1: none */
};

/* Decides everything for a program, or says why it cannot run. */
weftStatus_t row_schedule_make(struct row_schedule *s, struct schedule_room *room, const struct rowwise *rows,
                               int threads);
/* A copy with its program, in memory of an arena, to run. */
weftStatus_t row_schedule_keep(const struct row_schedule **kept, const struct row_schedule *s, struct arena *arena);

/* Memory of a run: what follows shares the first part; tiles and parts of tiles where splits > 1, else tasks. */
int64_t row_schedule_bytes(const struct row_schedule *s);

/* nest.c; nest and cut: when the instructions are listed. */
void row_schedule_nest(struct row_schedule *s);
void row_schedule_cut(struct row_schedule *s);
int64_t row_schedule_tile_elements(const struct row_schedule *s);
/* instructions.c; what stays from pass to pass, each beside what stands before it */
enum row_keeping { KEEP_NOTHING, KEEP_FORMULAS, KEEP_CONVERTED_LOADS };
weftStatus_t row_schedule_list(struct row_schedule *s, enum row_keeping keeping);

/* run.c: scratch is of all programs, memory is the program's own. */
/* False: the sum of a row is beyond the range of float, or the square of the watched term is. Results are written all
   the same. */
bool row_schedule_run(const struct row_schedule *s, void *const *values, void *scratch, void *memory);

#endif
