/* SPDX-License-Identifier: Apache-2.0 */
/* How a row program is walked: the order of its dims in memory, which threads have which rows, how often memory is
   read, and into how many launches that falls. Printing follows it to the letter. */
#ifndef WEFT_ENGINES_CUDA_ROWS_WALK_H
#define WEFT_ENGINES_CUDA_ROWS_WALK_H

#include "engines/cuda/core/kernel.h"
#include "engines/cuda/rows/plan.h"

/* When the next launch may begin, by the names of core/stream.cuh. */
enum lets_next { LETS_AT_ONCE, LETS_WHEN_BEGUN, LETS_WHEN_DONE };

/* Bytes from a line of memory to the ring of rows.cuh: it is 1 to 3 % faster there than at a line or at half of one. */
enum { RING_BEGINS = 32 };

struct walk {
    const struct rows *rows;
    int kept, rank; /* dims: the rows' first, then those within the row; slowest first */
    int64_t extents[WEFT_DIM_MAX];
    struct operand operands[ROWS_OPERANDS_MAX]; /* strides over these dims */
    bool is_columns;                            /* the fastest dim is one of the rows' */
    int run, team, across, cluster, threads, min_blocks;
    int loose;         /* elements of a row before and behind its runs, at most; 0: its first run is where it begins */
    int margin;        /* then: elements behind its runs, at least, so that 16 bytes around a run are in memory */
    int sure;          /* and steps in which every thread has a run */
    int leader;        /* and an operand that differs from row to row, and begins in memory as all such do */
    bool overlaps;     /* rows side by side whose runs begin anywhere in memory */
    int overlap;       /* then: how many of the last run are in the one before, too */
    int64_t last_run;  /* and where it would begin */
    int steps, unroll; /* steps 0: rows do not stay in registers */
    int column_totals; /* sums of places */
    bool is_persistent, prefetches; /* blocks that take row after row, and load one while they work on another */
    bool is_piped;                  /* passes of one row lie between those of the next: rows/rows_pipelined.cuh */
    int ring;                       /* rows of a team in shared memory; 0: none */
    int crew;                       /* piped: warps that share a ring */
    int64_t ahead;                  /* rows later: the one that a team asks the second cache for; 0: none */
    bool asks_early;                /* the same for the first ones, before the launch before ends */
    bool keeps_common;              /* what all rows read alike stays in registers */
    bool is_whole;                  /* every thread has all its runs, every team a row */
    bool forgets;                   /* runs in registers are converted anew in every pass */
    bool carries;                   /* weights of softmax stay in registers once they are known */
    bool is_dependent;              /* the launch may begin while the one before ends */
    enum lets_next lets_next;
    uint32_t counted; /* channels.cuh: bits of the operands that totals depend on, which alone stay; 0: rows.cuh */
    bool puts_away;   /* results leave the cache before what is read again */
    int64_t groups, runs, tiles, blocks;
    int64_t parts, store_parts;    /* of each row, for totals and for the pass that only stores */
    int closed, last_pass, passes; /* passes with totals; the pass that stores elements, -1: none; all */
    double seconds;
};

/* Decides everything for a program. must_stream: rows do not stay in registers whatever their length. */
weftStatus_t walk_plan(struct walk *walk, const struct rows *rows, const struct device *device, bool must_stream);

/* The part of it that any kernel starts from: dims, passes and runs. */
weftStatus_t walk_begin(struct walk *walk, const struct rows *rows);

/* Whether a term is evaluated in a pass, for its totals or its stores. */
void walk_terms_of_pass(const struct walk *walk, int pass, bool *takes_part);

/* An operand that stays in a thread's registers. */
bool walk_holds(const struct walk *walk, int operand);
/* Whether a term stays from the first pass that evaluates it. */
bool walk_carries(const struct walk *walk, const struct term *term);
/* Bytes of one run of it. */
int64_t walk_held_bytes(const struct walk *walk, int operand);
/* Bytes that a block's threads hold of one row; and of all rows in shared memory, with what lies before them. */
int64_t walk_row_bytes(const struct walk *walk);
int64_t walk_ring_bytes(const struct walk *walk);
/* Gives the threads of a launch that only joins totals to few rows, many parts each. */
void walk_for_joining(struct walk *walk, int64_t parts);
/* Gives a launch that only stores elements as many threads as its registers allow. */
void walk_for_storing(struct walk *walk);
/* The dim that runs lie along. */
static inline int walk_fast_dim(const struct walk *walk) { return walk->is_columns ? walk->kept - 1 : walk->rank - 1; }

/* Whether anything that is stored depends on doubles. */
bool walk_calculates_in_double(const struct walk *walk);

/* Launches that a program takes. */
int walk_kernel_count(const struct walk *walk);
/* Rows as totals in the workspace count them: those of runs that overlap have two places. */
int64_t walk_places(const struct walk *walk);
/* Whether the parts' totals of a pass are joined by a launch of their own. */
bool walk_joins(const struct walk *walk, int pass);
/* Bytes of the totals of one row in one pass, at most. */
int64_t walk_total_bytes(const struct walk *walk);

/* Fields and functions of a program whose passes are one launch, for a kernel that has constants of its own. */
void walk_print_functions(struct kernel_print *print, const struct walk *walk);

/* Prints the program's kernels behind those that the step has, and takes workspace from *scratch_bytes on. */
weftStatus_t walk_print(const struct walk *walk, struct cuda_step *state, int64_t *scratch_bytes, struct arena *arena);

#endif
