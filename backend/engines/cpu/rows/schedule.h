/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a row program: its loops, the blocks and tiles into which they are divided, and the instructions of
   each pass over a row. A block covers two loops of the nest and is sized so that the registers of a pass stay in the
   L1 cache; a register holds one term's values of a block. A tile is the set of rows that one task carries through all
   passes. If there are few and long rows, the passes become phases that all tasks share, each processing parts of the
   rows. */
#ifndef WEFT_ENGINES_CPU_ROWS_SCHEDULE_H
#define WEFT_ENGINES_CPU_ROWS_SCHEDULE_H

#include "engines/cpu/rows/kernels.h"
#include "engines/cpu/rows/terms.h"

enum {
    ROWWISE_BLOCK = 2048, /* maximum elements of a register */
    ROWWISE_REGISTERS = 40,
    ROWWISE_REGISTER_BYTES = 56 << 10, /* for all registers, on the stack of the running thread */
    ROWWISE_ROW_BYTES = 48 << 10,      /* for the values and totals of a tile's rows, also on the stack */
    ROWWISE_KEPT_BYTES = 48 << 10,     /* for elements that a tile keeps between passes, also on the stack, if they
                                          fit */
    ROWWISE_PASSES = 6,
    ROWWISE_INSTRUCTIONS = 256,
    ROWWISE_LOOPS = WEFT_DIM_MAX + 2,
    ROWWISE_TASKS = 64, /* maximum number of tasks with scratch memory of their own */
};

enum row_verb {
    ROW_SPREAD,      /* dst = row values, for each element */
    ROW_LOAD,        /* dst = memory */
    ROW_RECALL,      /* dst = elements that an earlier pass kept */
    ROW_CALCULATE,   /* dst = the term's formula of x */
    ROW_REDUCE,      /* totals of rows = x, or x[0] * x[1] */
    ROW_REDUCE_PAIR, /* two totals in one loop: x[0], x[1] and x[2] are x, m and p of struct row_pair */
    ROW_SUM_COLUMN,  /* the task's column sums += x, or x[0] * x[1] */
    ROW_STORE,       /* memory = x */
};

/* A term of rows has a slot among the tile's rows; a term of elements has a register for the duration of a pass. */
struct row_instruction {
    enum row_verb verb;
    int term;
    int dst, x[ROW_ARGUMENTS]; /* registers, or -1 */
    int opcode;                /* for CALCULATE of a formula: the term's opcode, or one of enum row_opcode */
    /* for SPREAD: only formulas read it, so one chunk suffices; for LOAD: all readers step from row to row, so it may
       stay in place */
    bool is_compact;
    bool is_row_invariant; /* for LOAD: converted, and the same for all rows, so one block serves the whole tile */
    /* for LOAD: only formulas and sums of products read it, so one number per row of a block suffices */
    bool is_row_constant;
    /* for LOAD and STORE; for CALCULATE: memory to which dst may be written directly, also if it is kept; for RECALL:
       that memory; otherwise -1 */
    int operand;
    int slot;            /* slot of kept elements (LOAD, CALCULATE, RECALL; -1: none), a total or a sum */
    int pair, pair_slot; /* for REDUCE_PAIR: the term of the product's total, and its slot */
};

struct row_pass {
    int first, spreads, count; /* instructions; spreads come first */
    int totals;                /* number of reductions that it closes */
    bool only_reduces;         /* reduces memory directly, so it needs no registers */
    int64_t block_a, blocks;   /* rows of a block, which may exceed those of other passes; blocks of a tile */
    int uses_count, uses[ROWWISE_OPERANDS];
};

/* One loop of the nest, outermost first: loops over rows, then loops within a row. */
struct row_loop {
    int64_t extent;
    bool is_reduced;
    /* in elements; for row values, if columns are parts of rows, that of a whole row */
    int64_t strides[ROWWISE_OPERANDS];
    /* elements of a column sum per iteration; 0: all iterations add to the same one */
    int64_t position;
};

/* Working memory for a schedule, like struct rowwise_storage. */
struct schedule_storage {
    struct row_loop loops[ROWWISE_LOOPS];
    struct row_pass passes[ROWWISE_PASSES];
    struct row_instruction instructions[ROWWISE_INSTRUCTIONS];
    int row_terms[ROWWISE_TERMS], slot_of[ROWWISE_TERMS];
    int kept[ROWWISE_TERMS], kept_pass[ROWWISE_TERMS], kept_operand[ROWWISE_TERMS];
};

struct row_schedule {
    const struct rowwise *rows;
    int loop_count;
    struct row_loop *loops;
    int a, b;                 /* the loops of a block's rows and columns */
    int64_t span;             /* adjacent columns that are parts of one row, such as a group's channels; otherwise 1 */
    int64_t block_a, block_b; /* extents of a block */
    bool steps_rows;          /* formulas process a block row by row instead of as one run */
    int64_t tile_a;           /* extent of a tile along a, if that is a loop over rows: a multiple of the block */
    int64_t pieces[ROWWISE_LOOPS]; /* per loop: number of tiles, or of blocks within a tile */
    int64_t tile_rows;             /* maximum rows of a tile; columns that are parts of rows count separately */
    /* blocks: blocks of a tile in the pass with the fewest; splits: parts into which they are divided, or 1 if tasks
       process whole tiles */
    int64_t tiles, blocks, splits;
    int64_t tasks;          /* if splits is 1: they share the tiles equally, to within one */
    bool sums_columns;      /* the layout of the rows allows column sums */
    int pass_count, closed; /* number of passes; how many of them, which come first, end in reductions */
    struct row_pass *passes;
    int instruction_count, register_count;
    struct row_instruction *instructions;
    bool has_wide;
    int64_t register_bytes;
    int *row_terms, stage_ends[ROWWISE_PASSES + 1]; /* formulas and loads of rows, stage by stage */
    int invariants;                                 /* the first `invariants` of these are the same for all rows */
    int row_slots, *slot_of;                        /* slots of row terms; -1: none */
    /* bytes of one slot; offset of the totals; bytes of all slots and totals */
    int64_t row_bytes, totals_at, tile_bytes;
    int kept_count, *kept;      /* slot of a term whose elements are kept between passes, or -1; NULL when running */
    int *kept_pass;             /* the pass that computes them; NULL when running */
    int *kept_operand;          /* operand in whose memory they are kept, or -1; NULL when running */
    int64_t kept_bytes;         /* bytes of one slot */
    int sum_count;              /* number of column sums */
    int64_t sum_length;         /* elements of one sum */
    int64_t partial_sums;       /* tasks, or parts of tiles, that have private sums */
    int64_t sums_at, sum_bytes; /* offset of the first of these in scratch memory; bytes of each */
    int64_t task_bytes;         /* scratch memory of a task; 0: it keeps elements on its stack */
    double seconds;
    int watched; /* the term of the inverse deviation that a norm's gradient reads, or -1 */
};

/* Schedules a program, or fails with a message. */
weftStatus_t row_schedule_plan(struct row_schedule *s, struct schedule_storage *storage, const struct rowwise *rows,
                               int threads);
/* Copies a schedule and its program into an arena, for running. */
weftStatus_t row_schedule_copy(const struct row_schedule **kept, const struct row_schedule *s, struct arena *arena);

/* Memory of a run. All users share the first part; it consists of tiles and parts of tiles if splits > 1, otherwise of
   tasks. */
int64_t row_schedule_bytes(const struct row_schedule *s);

/* In nest.c. Requires that the instructions have been generated. */
void row_schedule_nest(struct row_schedule *s);
void row_schedule_cut(struct row_schedule *s);
int64_t row_schedule_tile_elements(const struct row_schedule *s);
/* In instructions.c. What is kept between passes; each value includes the previous ones. */
enum row_keeping { KEEP_NOTHING, KEEP_FORMULAS, KEEP_CONVERTED_LOADS };
weftStatus_t row_schedule_list(struct row_schedule *s, enum row_keeping keeping);

/* In run.c: scratch memory is shared by all programs, memory is private to the program. */
/* False if the sum of a row, or the square of the watched term, is outside the range of float. Results are written in
   any case. */
bool row_schedule_run(const struct row_schedule *s, void *const *values, void *scratch, void *memory);

#endif
