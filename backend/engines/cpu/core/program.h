/* SPDX-License-Identifier: Apache-2.0 */
/* Fused pointwise operations: a region's nodes as a short list of instructions over registers, each a block of up to
   PROGRAM_BLOCK elements; together they stay in the L1 cache. Values that live inside the region never reach memory.
   A program knows the index space of its values, not the order in which it is walked (walk.h). */
#ifndef WEFT_ENGINES_CPU_PROGRAM_H
#define WEFT_ENGINES_CPU_PROGRAM_H

#include "engines/cpu/core/compute_type.h"
#include "engines/cpu/core/loops.h"
#include "engines/engine.h"

enum {
    PROGRAM_BLOCK = 1024,     /* elements of a register at most: 4 KiB in float, 8 KiB in double */
    PROGRAM_REGISTERS = 12,   /* in use at a time */
    PROGRAM_BYTES = 32 << 10, /* of all registers, on the stack of the thread that runs them */
    PROGRAM_INSTRUCTIONS = 96,
    PROGRAM_ACCESSES = 40,
    PROGRAM_NO_REGISTER = 255,
};

enum verb {
    VERB_LOAD,    /* dst = memory, converted to float or double */
    VERB_INDEX,   /* dst = position along a dimension */
    VERB_GIVEN,   /* dst = the block that the caller brings */
    VERB_APPLY,   /* dst = formula(x, b, t) */
    VERB_SCALE,   /* dst = factor * x */
    VERB_ROUND,   /* dst = x rounded to `type` */
    VERB_CONVERT, /* dst = x, between float and double */
    VERB_STORE,   /* memory = x */
};

struct instruction {
    enum verb verb;
    bool is_wide;               /* double, else float: of dst; of STORE: of x */
    unsigned char dst, x, b, t; /* registers, or PROGRAM_NO_REGISTER */
    int access;           /* of LOAD, INDEX, STORE; of APPLY: the memory that dst may be written to at once, or -1 */
    weftDataType_t type;  /* of ROUND; of GIVEN: of the block, INT32 or what dst has */
    double factor;        /* of SCALE */
    pointwise_loop *loop; /* of APPLY, with its parameters */
    struct pointwise_parameters parameters;
};

/* A tensor as instructions walk it. */
struct access {
    int value; /* of the graph; -1: of INDEX, which counts offsets and reads nothing */
    bool is_store;
    weftDataType_t type;
    int64_t strides[WEFT_DIM_MAX]; /* elements, along the dims of the space; 0 where the tensor broadcasts */
};

struct program {
    int instruction_count, access_count, register_count;
    int block, register_bytes; /* elements of a register; its bytes */
    struct instruction instructions[PROGRAM_INSTRUCTIONS];
    struct access accesses[PROGRAM_ACCESSES];
    bool shares_bytes;  /* stores elements below 8 bits: one thread only */
    double nanoseconds; /* per element, predicted */
    double bytes;       /* of all that is loaded and stored */
};

/* What a program starts from when its region holds another node whose result it finishes. */
struct given {
    int value;          /* that node's result; -1: none, all nodes are pointwise */
    bool is_wide;       /* it is taken as double, else as float */
    bool is_whole;      /* it comes as INT32, else as it is taken */
    double alpha, beta; /* the result is alpha * block + beta * (what the memory held); 1 and 0 */
};

/* Compiles the pointwise nodes of a region whose values all have the dims of `space` or broadcast to them, or says why
   not. Pure. */
weftStatus_t program_compile(struct program *program, const struct region *region, const struct tensor *space,
                             const struct given *given);

/* Gives the registers of a program, numbered so far as instructions make them, places among few: one is free again
   after its last reader. False when more are alive at a time than there are. Part of compiling. */
bool program_assign_registers(struct program *program);

/* Whether the memory of the program's output may be exactly that of its input: same layout, as big as the space. */
bool program_may_alias(const struct step *step, int in, int out);

#endif
