/* SPDX-License-Identifier: Apache-2.0 */
/* Fused pointwise operations: the nodes of a region as a short list of instructions over registers. A register is a
   block of up to PROGRAM_BLOCK elements; all registers together fit in the L1 cache. Values internal to the region
   never reach memory. A program knows the index space of its values, but not the order of traversal
   (rows_columns.h). */
#ifndef WEFT_ENGINES_CPU_PROGRAM_H
#define WEFT_ENGINES_CPU_PROGRAM_H

#include "engines/cpu/core/compute_type.h"
#include "engines/cpu/core/loops.h"
#include "engines/engine.h"

enum {
    PROGRAM_BLOCK = 1024,     /* maximum elements of a register: 4 KiB in float, 8 KiB in double */
    PROGRAM_REGISTERS = 12,   /* live at a time */
    PROGRAM_BYTES = 32 << 10, /* for all registers, on the stack of the running thread */
    PROGRAM_INSTRUCTIONS = 96,
    PROGRAM_ACCESSES = 40,
    PROGRAM_NO_REGISTER = 255,
};

enum verb {
    VERB_LOAD,    /* dst = memory, converted to float or double */
    VERB_INDEX,   /* dst = index along a dimension */
    VERB_GIVEN,   /* dst = the caller's block */
    VERB_APPLY,   /* dst = formula(x, b, t) */
    VERB_SCALE,   /* dst = factor * x */
    VERB_ROUND,   /* dst = x rounded to `type` */
    VERB_CONVERT, /* dst = x, between float and double */
    VERB_STORE,   /* memory = x */
};

struct instruction {
    enum verb verb;
    bool is_wide;               /* double instead of float: for dst; for STORE: for x */
    unsigned char dst, x, b, t; /* registers, or PROGRAM_NO_REGISTER */
    int access;                 /* for LOAD, INDEX, STORE; for APPLY: memory to which dst is written directly, or -1 */
    weftDataType_t type;        /* for ROUND; for GIVEN: type of the block, INT32 or that of dst */
    double factor;              /* for SCALE */
    pointwise_loop *loop;       /* for APPLY, with its parameters */
    struct pointwise_parameters parameters;
};

/* A tensor as instructions traverse it. */
struct access {
    int value; /* index of the graph's value; -1 for INDEX, which counts offsets and reads no memory */
    bool is_store;
    weftDataType_t type;
    int64_t strides[WEFT_DIM_MAX]; /* in elements, along the dims of the space; 0 where the tensor broadcasts */
};

struct program {
    int instruction_count, access_count, register_count;
    int block, register_bytes; /* elements and bytes of a register */
    struct instruction instructions[PROGRAM_INSTRUCTIONS];
    struct access accesses[PROGRAM_ACCESSES];
    bool shares_bytes;  /* stores elements narrower than 8 bits, so only one thread may run it */
    double nanoseconds; /* predicted, per element */
    double bytes;       /* total bytes loaded and stored */
};

/* The starting value of a program whose region also contains a product, whose result the program completes. */
struct given {
    int value;          /* result of that node; -1: all nodes are pointwise */
    bool is_wide;       /* read as double instead of float */
    bool is_whole;      /* the block is INT32 instead of float or double */
    double alpha, beta; /* result = alpha * block + beta * (previous contents of the memory); defaults 1 and 0 */
};

/* Compiles the pointwise nodes of a region whose values all have the dims of `space` or broadcast to them, or fails
   with a message. Has no side effects. */
weftStatus_t program_compile(struct program *program, const struct region *region, const struct tensor *space,
                             const struct given *given);

/* Assigns the program's virtual registers to physical ones; each is free again after its last reader. False if too many
   are live at the same time. Part of compilation. */
bool program_assign_registers(struct program *program);

/* True if the program's output may be stored exactly over its input: same layout, and as large as the space. */
bool program_may_alias(const struct step *step, int in, int out);

#endif
