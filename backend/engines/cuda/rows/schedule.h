/* SPDX-License-Identifier: Apache-2.0 */
/* How a row program runs: its loop nest, the vectors that threads load, its passes over a row, the threads that share a
   row, where a row stays between passes, and the grid. Each of these phases reads those before it and fills its own
   struct; printing follows them to the letter.

   A strip is what one group of threads works on at a time: a row, or where rows lie side by side in memory (columns) as
   many neighbouring rows as a vector has elements. */
#ifndef WEFT_ENGINES_CUDA_ROWS_SCHEDULE_H
#define WEFT_ENGINES_CUDA_ROWS_SCHEDULE_H

#include "engines/cuda/core/kernel.h"
#include "engines/cuda/rows/plan.h"

/* The dims in the order of memory, neighbours that all operands step through alike merged. Dims 0 .. row_dims - 1 tell
   rows apart, row_dims .. rank - 1 lie within a row; of each kind the slowest comes first. */
struct loop_nest {
    int row_dims, rank;
    int64_t extents[WEFT_DIM_MAX];
    struct operand operands[ROWS_OPERANDS_MAX]; /* strides over these dims */
    bool is_columns;                            /* the fastest dim of memory is one of the rows' */
};

/* What a thread loads of an operand at once: up to 16 bytes of neighbours along the fastest dim. */
struct vectors {
    int width;       /* elements */
    int64_t strips;  /* rows, or vectors of rows side by side */
    int64_t per_row; /* vectors in a row, or elements in each of the rows side by side */
};

/* Rows that begin anywhere in memory, but alike in all operands: vectors begin where 16 bytes of memory do, and a head
   and a tail of elements are before and behind them. */
struct unaligned {
    int most;       /* elements of head and tail together; 0: rows begin at a vector */
    int margin;     /* elements behind the last vector, at least, so that 16 bytes around a vector are in memory */
    int guaranteed; /* steps in which every thread has a vector */
    int leader;     /* the operand by which heads are counted: it differs from row to row */
};

/* Rows side by side in a number that vectors do not divide: the last vector takes some rows of the one before, too. */
struct overlap {
    bool is_used;
    int elements; /* that the last two vectors share */
    int64_t last; /* where the last vector would begin */
};

struct passes {
    int count;       /* passes over the elements of a row */
    int closed;      /* the first of them, which end in reductions */
    int storing;     /* the pass that stores elements; -1: none */
    int column_sums; /* sums over all rows, for each position in a row */
};

struct threads {
    int group;      /* threads of one block that share a strip */
    int across;     /* groups of a block, each with a strip of its own */
    int cluster;    /* blocks that share a strip */
    int block;      /* threads: group * across */
    int min_blocks; /* blocks on a multiprocessor that registers must suffice for */
    int segment;    /* interleaved rows: vectors of one before the next one's begin; 0: each is read by itself.
                       across counts these vectors of all rows of a block, group threads with the same ones */
};

/* Where a row is between its passes, one kernel for each; rows/ has them under these names. */
enum memory_scheme {
    MEMORY_STREAMED,       /* in memory: every pass reads the row again */
    MEMORY_REGISTERS,      /* in registers; a block has one strip for each group */
    MEMORY_PERSISTENT,     /* in registers; a block takes strip after strip, and sums columns */
    MEMORY_STAGED,         /* the same in stages of shared memory, which the copy engine fills */
    MEMORY_PIPELINED,      /* in stages; the last pass of a row comes behind the first pass of the next */
    MEMORY_COLUMNS,        /* rows side by side, in registers */
    MEMORY_COLUMNS_SHARED, /* rows side by side, in shared memory that each thread fills for itself */
    MEMORY_CHANNELS,       /* rows/channels.cuh, whose schedule begins like the others */
};

struct memory {
    enum memory_scheme scheme;
    int steps;               /* vectors of a row that a thread keeps; 0: rows are streamed */
    int unroll;              /* vectors that a thread has under way at once */
    int stages;              /* rows of a group in shared memory; 0: the scheme has none */
    int warps_per_group;     /* MEMORY_PIPELINED: warps that share stages */
    bool is_whole;           /* every thread has all its vectors, every group a strip */
    bool keeps_broadcast;    /* what all rows read alike stays in registers */
    bool converts_again;     /* vectors stay as they are stored, and every pass converts them */
    bool keeps_weights;      /* exponentials of softmax stay in registers once they are known */
    bool stores_evict_first; /* MEMORY_CHANNELS: results leave L2 before what is read again */
    uint32_t accumulated;    /* MEMORY_CHANNELS: bits of the operands that reductions depend on, which alone stay */
};

/* When the launch after this one may begin, by the names of core/stream.cuh. */
enum pdl_trigger { TRIGGER_AT_ONCE, TRIGGER_WHEN_BEGUN, TRIGGER_WHEN_DONE };

struct row_grid {
    int64_t tiles;                /* strips by the groups of a block */
    int64_t blocks;               /* or clusters of blocks */
    int64_t splits, store_splits; /* of each row, for reductions and for the pass that only stores */
    int64_t l2_distance;          /* tiles from the one that is worked on to the one that L2 is asked for; 0: none */
    bool l2_early;                /* L2 is asked for the first rows before the launch before has ended */
    bool is_dependent;            /* programmatic dependent launch: may begin while the launch before ends */
    enum pdl_trigger trigger;
};

struct schedule {
    const struct rows *rows;
    struct loop_nest nest;
    struct vectors vectors;
    struct unaligned unaligned;
    struct overlap overlap;
    struct passes passes;
    struct threads threads;
    struct memory memory;
    struct row_grid grid;
    double seconds; /* predicted, of all launches */
};

/* Bytes from a line of memory to the stages: kernels are 1 to 3 % faster there than at a line or at half of one (H200).
   */
enum { STAGES_BEGIN = 32 };

/* Decides everything for a program. must_stream: rows do not stay in registers whatever their length. */
weftStatus_t schedule_plan(struct schedule *s, const struct rows *rows, const struct device *device, bool must_stream);

/* Whether blocks take strip after strip. */
static inline bool schedule_is_persistent(const struct schedule *s) {
    return s->memory.scheme == MEMORY_PERSISTENT || s->memory.scheme == MEMORY_STAGED ||
           s->memory.scheme == MEMORY_PIPELINED;
}

/* Strips of a block. */
static inline int schedule_rows_across(const struct schedule *s) {
    return s->threads.segment ? s->threads.across / s->threads.segment : s->threads.across;
}

/* Launches that a program takes. */
int schedule_kernel_count(const struct schedule *s);
/* Whether the partial results of a row's splits are joined by a launch of their own after a pass. */
bool schedule_joins(const struct schedule *s, int pass);
/* The schedule of a launch that only joins partial results to few rows, `splits` of each. */
void schedule_for_joining(struct schedule *s, int64_t splits);
/* The schedule of a launch that only stores elements: as many threads as its registers allow. */
void schedule_for_storing(struct schedule *s);

/* ---- loop_nest.c: the loop nest, passes and vectors ---- */

/* What any schedule starts from. */
weftStatus_t schedule_begin(struct schedule *s, const struct rows *rows);
/* Lets rows begin anywhere in memory, or the last vectors of rows side by side overlap, where the program allows it. */
void schedule_allow_unaligned(struct schedule *s);
void schedule_allow_overlap(struct schedule *s);

/* Whether operand k is one of the parts that others are read in, or the coordinate by which these are told apart. */
bool schedule_is_part(const struct schedule *s, int k);
/* Whether a value is read whose parts lie apart: vectors then stay within one. */
bool schedule_reads_parts(const struct schedule *s);

/* The dim that vectors lie along. */
static inline int schedule_fast_dim(const struct schedule *s) {
    return s->nest.is_columns ? s->nest.row_dims - 1 : s->nest.rank - 1;
}
/* Interleaved rows along the fast dim, as the groups of channels of each pixel do: vectors of a row side by side
   before those of the next row begin; 0: rows lie apart. */
int schedule_segment(const struct schedule *s);
/* Whether a thread of interleaved rows has one vector of operand k for all of a row. */
bool schedule_is_steady(const struct schedule *s, int k);
/* Whether memory is read or written for operand k, and the bytes of it: broadcast elements count once. */
bool schedule_moves(const struct schedule *s, int k);
double schedule_operand_bytes(const struct schedule *s, int k);
/* Whether a term is evaluated in a pass, for its reductions or its stores. */
void schedule_terms_of_pass(const struct schedule *s, int pass, bool *takes_part);
/* Whether anything that is stored depends on doubles. */
bool schedule_calculates_in_double(const struct schedule *s);

/* ---- footprint.c: what stays on chip, in bytes ---- */

/* Whether operand k stays on chip between passes; bytes of one vector of it. */
bool schedule_keeps(const struct schedule *s, int k);
int64_t schedule_vector_bytes(const struct schedule *s, int k);
/* Whether a term's values stay from the first pass that evaluates it. */
bool schedule_keeps_term(const struct schedule *s, const struct term *term);
/* Bytes of one vector of each operand that stays, and of each that all rows read alike. */
int64_t schedule_kept_bytes(const struct schedule *s);
int64_t schedule_broadcast_bytes(const struct schedule *s);
/* Bytes that a block's threads keep of one row; and of all its rows in shared memory, with what lies before them. */
int64_t schedule_row_bytes(const struct schedule *s);
int64_t schedule_shared_bytes(const struct schedule *s);
/* Bytes of the partial results of one row in one pass, at most; and rows as the workspace counts them: those of vectors
   that overlap have two slots. */
int64_t schedule_partial_bytes(const struct schedule *s);
int64_t schedule_slots(const struct schedule *s);
/* Whether the copy engine can fetch what stays, row by row; or each thread its own vectors (cp.async). */
bool schedule_copies_rows(const struct schedule *s, const struct device *device);
bool schedule_copies_vectors(const struct schedule *s, const struct device *device);
/* Whether what threads exchange fits in shared memory. */
bool schedule_exchange_fits(const struct schedule *s);

/* ---- mapping.c: rows given to threads and memory ---- */

/* Finds a scheme in which rows are read once, false: none fits; else streams them. */
bool schedule_place_resident(struct schedule *s, const struct device *device, bool must_stream);
void schedule_place_streamed(struct schedule *s, const struct device *device);

/* ---- emit.c ---- */

/* Fields and functions of a program whose passes are one launch, for a kernel that has constants of its own. */
void rows_emit_functions(struct kernel_source *source, const struct schedule *s);
/* Prints the program's kernels behind those that the step has, and takes workspace from *scratch_bytes on. */
weftStatus_t rows_emit(const struct schedule *s, struct cuda_step *state, int64_t *scratch_bytes, struct arena *arena);

#endif
