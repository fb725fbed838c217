/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a row program: its loop nest, the vectors that threads load, the passes over a row, the threads that
   share a row, where a row is stored between passes, and the grid. Each of these phases reads the earlier ones and
   fills its own struct; code generation follows them exactly.

   A strip is what one group of threads processes at a time: one row or, if rows are interleaved in memory (columns), as
   many adjacent rows as a vector has elements. */
#ifndef WEFT_ENGINES_CUDA_ROWS_SCHEDULE_H
#define WEFT_ENGINES_CUDA_ROWS_SCHEDULE_H

#include "engines/cuda/core/kernel.h"
#include "engines/cuda/rows/plan.h"

/* Dims in memory order; dims that all operands step through alike are merged. Dims 0 .. row_dims - 1 distinguish rows,
   row_dims .. rank - 1 are within a row; the slowest of each kind comes first. */
struct loop_nest {
    int row_dims, rank;
    int64_t extents[WEFT_DIM_MAX];
    struct operand operands[ROWS_OPERANDS_MAX]; /* strides over these dims */
    bool is_columns;                            /* the fastest dim distinguishes rows */
};

/* Vectors that a thread loads of an operand at once: up to 16 bytes of adjacent elements along the fastest dim. */
struct vectors {
    int width;       /* in elements */
    int64_t strips;  /* rows, or vectors of interleaved rows */
    int64_t per_row; /* vectors in a row, or elements in each of the interleaved rows */
};

/* Rows of any alignment that is the same in all operands: vectors begin at multiples of 16 bytes, with a head and a
   tail of single elements before and after them. */
struct unaligned {
    int most;       /* maximum elements of head and tail together; 0: rows begin at a vector */
    int margin;     /* minimum elements after the last vector, so that the 16 bytes around a vector are in memory */
    int guaranteed; /* steps in which every thread has a vector */
    int leader;     /* the operand that determines heads: it differs from row to row */
};

/* Interleaved rows whose number the vector width does not divide: the last vector overlaps the one before. */
struct overlap {
    bool is_used;
    int elements; /* shared by the last two vectors */
    int64_t last; /* where the last vector would begin */
};

struct passes {
    int count;       /* passes over the elements of a row */
    int closed;      /* how many of them, the first ones, end in reductions */
    int storing;     /* the pass that stores elements; -1: none */
    int column_sums; /* sums over all rows, for each position in a row */
};

struct threads {
    int group;      /* threads of one block that share a strip */
    int across;     /* groups of a block, each with its own strip */
    int cluster;    /* blocks that share a strip */
    int block;      /* threads: group * across */
    int min_blocks; /* blocks per multiprocessor that registers must suffice for */
    /* segmented rows: vectors of a row before the next row's begin; 0: each row is read separately. Then `across`
       counts these vectors over all rows of a block, and `group` the threads with the same ones */
    int segment;
};

/* Where a row is stored between its passes; each scheme has its kernel, a file of the same name in rows/. */
enum memory_scheme {
    MEMORY_STREAMED,       /* in memory: every pass reads the row again */
    MEMORY_REGISTERS,      /* in registers; a block has one strip per group */
    MEMORY_PERSISTENT,     /* in registers; a block iterates over strips and sums columns */
    MEMORY_STAGED,         /* the same in stages of shared memory, loaded by TMA */
    MEMORY_PIPELINED,      /* in stages; the last pass of a row runs after the first pass of the next row */
    MEMORY_COLUMNS,        /* interleaved rows, in registers */
    MEMORY_COLUMNS_SHARED, /* interleaved rows, in shared memory; each thread loads its own vectors */
    MEMORY_CHANNELS,       /* rows/channels.cuh, whose schedule begins like the others */
};

struct memory {
    enum memory_scheme scheme;
    int steps;               /* vectors of a row that a thread holds; 0: rows are streamed */
    int unroll;              /* vectors that a thread has in flight */
    int stages;              /* rows of a group in shared memory; 0: the scheme has none */
    int warps_per_group;     /* MEMORY_PIPELINED: warps that share stages */
    bool is_whole;           /* every thread has all its vectors, every group a strip */
    bool keeps_broadcast;    /* operands that all rows share stay in registers */
    bool converts_again;     /* vectors stay in their stored type, and every pass converts them */
    bool keeps_weights;      /* exponentials of softmax stay in registers once they are known */
    bool stores_evict_first; /* MEMORY_CHANNELS: L2 evicts results before data that is read again */
    uint32_t accumulated;    /* MEMORY_CHANNELS: bit mask of the operands that reductions depend on; only these stay */
};

/* When the next launch may begin, by the names of core/stream.cuh. */
enum pdl_trigger { TRIGGER_AT_ONCE, TRIGGER_WHEN_BEGUN, TRIGGER_WHEN_DONE };

struct row_grid {
    int64_t tiles;                /* tiles of strips, one strip per group of a block */
    int64_t blocks;               /* or clusters of blocks */
    int64_t splits, store_splits; /* per row, for reductions and for the pass that only stores */
    /* distance in tiles from the current tile to the one that is prefetched to L2; 0: none */
    int64_t l2_distance;
    bool l2_early;     /* the first rows are prefetched to L2 before the preceding launch ends */
    bool is_dependent; /* programmatic dependent launch: may begin while the preceding launch ends */
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
    double seconds; /* predicted, for all launches */
};

/* Bytes from a cache line to the stages: kernels are 1 to 3 % faster there than at a line or at half of one (H200). */
enum { STAGES_BEGIN = 32 };

/* Makes all decisions for a program. must_stream: rows of any length do not stay in registers. */
weftStatus_t schedule_plan(struct schedule *s, const struct rows *rows, const struct device *device, bool must_stream);

/* True if blocks iterate over strips. */
static inline bool schedule_is_persistent(const struct schedule *s) {
    return s->memory.scheme == MEMORY_PERSISTENT || s->memory.scheme == MEMORY_STAGED ||
           s->memory.scheme == MEMORY_PIPELINED;
}

/* Strips per block. */
static inline int schedule_rows_across(const struct schedule *s) {
    return s->threads.segment ? s->threads.across / s->threads.segment : s->threads.across;
}

/* Number of launches of a program. */
int schedule_kernel_count(const struct schedule *s);
/* True if a separate launch joins the partial results of a row's splits after a pass. */
bool schedule_joins(const struct schedule *s, int pass);
/* The schedule of a launch that only joins partial results of few rows with `splits` each. */
void schedule_for_joining(struct schedule *s, int64_t splits);
/* Plans a launch that only stores elements, with as many threads as its registers allow. */
void schedule_for_storing(struct schedule *s);

/* ---- loop_nest.c: the loop nest, passes and vectors ---- */

/* Initializes a schedule. */
weftStatus_t schedule_begin(struct schedule *s, const struct rows *rows);
/* Allow unaligned rows, or overlapping last vectors of interleaved rows, if the program permits it. */
void schedule_allow_unaligned(struct schedule *s);
void schedule_allow_overlap(struct schedule *s);

/* True if operand k is a part of a split value other than the first, or the coordinate that selects the part. */
bool schedule_is_part(const struct schedule *s, int k);

/* The dim along which vectors are loaded. */
static inline int schedule_fast_dim(const struct schedule *s) {
    return s->nest.is_columns ? s->nest.row_dims - 1 : s->nest.rank - 1;
}
/* Segmented rows along the fast dim, such as the channel groups of each pixel: adjacent vectors of a row before those
   of the next row begin; 0: rows are not segmented. */
int schedule_segment(const struct schedule *s);
/* True if a thread needs only one vector of operand k for all of a segmented row. */
bool schedule_is_steady(const struct schedule *s, int k);
/* True if memory is read or written for operand k; and its bytes, where broadcast elements count once. */
bool schedule_uses_memory(const struct schedule *s, int k);
double schedule_operand_bytes(const struct schedule *s, int k);
/* Marks the terms that a pass evaluates for its reductions or its stores. */
void schedule_terms_of_pass(const struct schedule *s, int pass, bool *is_evaluated);
/* True if a term's values stay from the first pass that evaluates it. */
bool schedule_is_resident_term(const struct schedule *s, const struct term *term);
/* True if anything that is stored depends on doubles. */
bool schedule_calculates_in_double(const struct schedule *s);

/* ---- footprint.c: on-chip footprint in bytes ---- */

/* True if operand k stays on chip between passes; and bytes of one vector of it. */
bool schedule_is_resident(const struct schedule *s, int k);
int64_t schedule_vector_bytes(const struct schedule *s, int k);
/* Bytes of one vector of all resident operands, and of all operands that rows share. */
int64_t schedule_resident_bytes(const struct schedule *s);
int64_t schedule_broadcast_bytes(const struct schedule *s);
/* Bytes that a block's threads hold of one row; and of all its rows in shared memory, including what precedes them. */
int64_t schedule_row_bytes(const struct schedule *s);
int64_t schedule_shared_bytes(const struct schedule *s);
/* Maximum bytes of the partial results of one row in one pass; and the number of rows in the workspace, where rows of
   overlapping vectors have two slots. */
int64_t schedule_partial_bytes(const struct schedule *s);
int64_t schedule_slots(const struct schedule *s);
/* True if TMA can load the resident operands row by row; or if each thread can load its own vectors (cp.async). */
bool schedule_copies_rows(const struct schedule *s, const struct device *device);
bool schedule_copies_vectors(const struct schedule *s, const struct device *device);
/* True if the exchange buffers of the threads fit in shared memory. */
bool schedule_exchange_fits(const struct schedule *s);

/* ---- mapping.c: mapping of rows to threads and memory ---- */

/* The first finds a scheme that reads rows once, or returns false if none fits; the second streams them. */
bool schedule_map_resident(struct schedule *s, const struct device *device, bool must_stream);
void schedule_map_streamed(struct schedule *s, const struct device *device);

/* ---- emit.c ---- */

/* Emit the fields and functions of a program whose passes are one launch, for a kernel with its own constants. */
void rows_emit_functions(struct kernel_source *source, const struct schedule *s);
/* Appends the program's kernels to the step, and allocates workspace, starting at *scratch_bytes. */
weftStatus_t rows_emit(const struct schedule *s, struct cuda_step *state, int64_t *scratch_bytes, struct arena *arena);

#endif
