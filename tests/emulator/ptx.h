/* SPDX-License-Identifier: Apache-2.0 */
/* PTX as the emulator runs it: a module's text becomes an array of instructions per kernel, whose operands are places
   in a warp's register files. It must not know blocks, memory or time.
   A register is 32 lanes wide: uint32_t[32] in the narrow file (types up to 32 bits), uint64_t[32] in the wide file, a
   mask of 32 bits if it is a predicate. Registers whose lives do not meet share a place. */
#ifndef WEFT_TESTS_EMULATOR_PTX_H
#define WEFT_TESTS_EMULATOR_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 32, OPERANDS_MAX = 8, GLOBALS_ROOM = 1 << 20 };

/* Generic addresses at which the windows begin; all others are the host's. */
#define SHARED_WINDOW (UINT64_C(1) << 60)
#define LOCAL_WINDOW (UINT64_C(1) << 61)

enum ptx_file { FILE_CONSTANTS, FILE_NARROW, FILE_WIDE, FILES };

enum ptx_type {
    TYPE_NONE,
    TYPE_U8,
    TYPE_U16,
    TYPE_U32,
    TYPE_U64,
    TYPE_S8,
    TYPE_S16,
    TYPE_S32,
    TYPE_S64,
    TYPE_B8,
    TYPE_B16,
    TYPE_B32,
    TYPE_B64,
    TYPE_F16,
    TYPE_BF16,
    TYPE_F32,
    TYPE_F64,
    TYPE_PRED,
    TYPE_TF32,
    TYPE_F16X2,
    TYPE_BF16X2,
    TYPE_E4M3X2,
    TYPE_E5M2X2,
    TYPE_E4M3,
    TYPE_E5M2,
};

enum ptx_space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAMETERS };

enum operand_kind { OPERAND_NOTHING, OPERAND_VALUE, OPERAND_PREDICATE, OPERAND_VECTOR, OPERAND_ADDRESS, OPERAND_LABEL };

struct operand {
    uint8_t kind, file;
    bool is_negated; /* a predicate behind '!' */
    int16_t other;   /* the predicate behind '|', or -1 */
    uint32_t offset; /* of a value, in its file, in bytes; of a predicate its number; of a label the instruction's */
    uint32_t wide_offset; /* where 64-bit lanes are read: constants have both widths */
    int64_t displacement; /* of an address: what is added to its value */
    uint16_t count;       /* of items: a vector's parts, or the vectors inside an address */
    struct operand *items;
    const char *name; /* of a label, until all are known */
    bool is_shared;   /* a constant: where a variable in shared memory lies */
};

struct warp;
struct instruction;

/* Runs an instruction for the lanes of a mask, and says how to go on. */
enum outcome {
    NEXT,  /* with the next one */
    YIELD, /* so, after other warps had a turn */
    WAIT,  /* with the next one, when the warp is woken */
};
typedef enum outcome (*operation)(struct warp *warp, const struct instruction *i, uint32_t mask);

/* Which lanes have to come together before an instruction runs. */
enum meeting { MEETS_NOBODY, MEETS_WARP, MEETS_MEMBERS /* the last operand is their mask */ };

struct instruction {
    operation run;      /* NULL: a branch or an end */
    const char *opcode; /* whole, with modifiers */
    struct operand operands[OPERANDS_MAX];
    uint8_t operand_count, meets;
    bool is_branch, is_end, is_guard_negated;
    int16_t guard;         /* a predicate, or -1 */
    uint8_t type, from;    /* the last type in the opcode, and the one before it for conversions: "cvt.type.from" */
    uint8_t space, width;  /* width: of a vector access */
    uint8_t mode, combine; /* which of its kind: a comparison, a rounding, an atomic operation */
    bool is_saturating, has_relu;
    int line;                     /* in the text */
    int source_file, source_line; /* from which it was compiled; file 0: unknown */
};

struct kernel {
    struct kernel *next;
    char *name;
    size_t parameter_bytes, static_shared_bytes, local_bytes;
    unsigned char *parameters; /* where a launch puts its arguments */
    int max_threads;
    int instruction_count;
    struct instruction *instructions;
    unsigned char *is_reached; /* of each instruction: 1 once it ran */
    size_t file_bytes[FILES];  /* of a warp; constants: of the module */
    int predicate_count;
};

struct module {
    char *text;         /* a copy, cut into lines */
    const char **lines; /* of the text as it came, for messages */
    int line_count;
    const char **files; /* the names of source files, by number; NULL where there is none */
    int file_count;
    struct kernel *kernels;
    unsigned char *constants;
    size_t constant_bytes, constant_room;
    unsigned char *globals; /* the module's own variables */
    size_t global_bytes;
    void **owned; /* everything allocated for it */
    int owned_count, owned_room;
    char error[512]; /* why reading it failed */
};

/* The registers that a warp finds filled, in the narrow file from its beginning. */
enum special {
    SPECIAL_TID_X,
    SPECIAL_TID_Y,
    SPECIAL_TID_Z,
    SPECIAL_NTID_X,
    SPECIAL_NTID_Y,
    SPECIAL_NTID_Z,
    SPECIAL_CTAID_X,
    SPECIAL_CTAID_Y,
    SPECIAL_CTAID_Z,
    SPECIAL_NCTAID_X,
    SPECIAL_NCTAID_Y,
    SPECIAL_NCTAID_Z,
    SPECIAL_CLUSTER_CTARANK,
    SPECIAL_CLUSTER_NCTARANK,
    SPECIAL_LANEID,
    SPECIAL_WARPID,
    SPECIAL_CLOCK,
    SPECIAL_LANEMASK_LT,
    SPECIAL_LANEMASK_LE,
    SPECIAL_LANEMASK_EQ,
    SPECIAL_LANEMASK_GT,
    SPECIAL_LANEMASK_GE,
    SPECIALS
};

/* Reads a text; where error is not empty afterwards, the module is of no use but to be freed. */
struct module *ptx_read(const char *text);
void ptx_free(struct module *module);
const struct kernel *ptx_find(const struct module *module, const char *name);

/* What runs an opcode such as "add.s32"; NULL when nothing does. Sets what the instruction says by its modifiers. The
   machine has it. */
operation ptx_decode(struct instruction *i);
unsigned ptx_type_bytes(enum ptx_type type);

/* Opcodes are parts with dots between. */
bool ptx_begins(const char *opcode, const char *start);
bool ptx_has(const char *opcode, const char *part);
/* Whether each part but the first is one of the words, which have spaces between; "L2::*" stands for all that begin so.
   What an operation does not look at must not be in its opcode. */
bool ptx_only(const char *opcode, const char *words);

#endif
