/* SPDX-License-Identifier: Apache-2.0 */
/* PTX in the form that the emulator runs: the text of a module becomes an array of instructions per kernel, whose
   operands are places in a warp's register files. It must not depend on blocks, memory or time. A register has 32
   lanes: uint32_t[32] in the narrow file (types of up to 32 bits), uint64_t[32] in the wide file, or a 32-bit mask for
   a predicate. Registers with disjoint live ranges share a place. */
#ifndef WEFT_TESTS_EMULATOR_PTX_H
#define WEFT_TESTS_EMULATOR_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 32, OPERANDS_MAX = 8, GLOBALS_ROOM = 1 << 20 };

/* Base addresses of the windows in the generic address space; all other addresses are host addresses. */
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
    bool is_negated;      /* predicate with a '!' prefix */
    int16_t other;        /* second predicate, after '|', or -1 */
    uint32_t offset;      /* value: bytes into its file; predicate: number; label: index of the instruction */
    uint32_t wide_offset; /* for reads as 64-bit lanes: constants are stored in both widths */
    int64_t displacement; /* address: added to its value */
    uint16_t count;       /* number of items: parts of a vector, or vectors in an address */
    struct operand *items;
    const char *name; /* name of a label that is not resolved yet */
    bool is_shared;   /* constant: address of a variable in shared memory */
};

struct warp;
struct instruction;

/* Runs an instruction for the lanes of a mask and returns how to continue. */
enum outcome {
    NEXT,  /* continue with the next instruction */
    YIELD, /* the same, after other warps had a turn */
    WAIT,  /* continue with the next instruction once the warp is woken */
};
typedef enum outcome (*operation)(struct warp *warp, const struct instruction *i, uint32_t mask);

/* The lanes that must converge before an instruction runs. */
enum meeting { MEETS_NOBODY, MEETS_WARP, MEETS_MEMBERS /* the last operand is their mask */ };

struct instruction {
    operation run;      /* NULL: a branch or an end */
    const char *opcode; /* whole, with modifiers */
    struct operand operands[OPERANDS_MAX];
    uint8_t operand_count, meets;
    bool is_branch, is_end, is_guard_negated;
    int16_t guard;         /* a predicate, or -1 */
    uint8_t type, from;    /* the last type of the opcode and, for conversions, the one before it: "cvt.type.from" */
    uint8_t space, width;  /* width: elements of a vector access */
    uint8_t mode, combine; /* variant: comparison, rounding mode or atomic operation */
    bool is_saturating, has_relu;
    int line;                     /* in the text */
    int source_file, source_line; /* source position; file 0: unknown */
};

struct kernel {
    struct kernel *next;
    char *name;
    size_t parameter_bytes, static_shared_bytes, local_bytes;
    unsigned char *parameters; /* where a launch stores its arguments */
    int max_threads;
    int instruction_count;
    struct instruction *instructions;
    unsigned char *is_reached; /* for each instruction: 1 if it has been executed */
    size_t file_bytes[FILES];  /* per warp; constants: per module */
    int predicate_count;
};

struct module {
    char *text;         /* a copy, split into lines */
    const char **lines; /* lines of the original text, for error messages */
    int line_count;
    const char **files; /* names of source files, by number; NULL for unused numbers */
    int file_count;
    struct kernel *kernels;
    unsigned char *constants;
    size_t constant_bytes, constant_room;
    unsigned char *globals; /* variables of the module */
    size_t global_bytes;
    void **owned; /* all allocations that belong to the module */
    int owned_count, owned_room;
    char error[512]; /* the reason why parsing failed */
};

/* Registers that are initialized when a warp starts, at the beginning of the narrow file. */
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

/* Parses a text. If `error` is not empty afterwards, the module may only be freed. */
struct module *ptx_read(const char *text);
void ptx_free(struct module *module);
const struct kernel *ptx_find(const struct module *module, const char *name);

/* Finds the operation of an opcode such as "add.s32", or NULL, and decodes the modifiers into the instruction.
   Implemented by the machine. */
operation ptx_decode(struct instruction *i);
unsigned ptx_type_bytes(enum ptx_type type);

/* Opcodes consist of parts separated by dots. */
bool ptx_begins(const char *opcode, const char *start);
bool ptx_has(const char *opcode, const char *part);
/* True if each part except the first is one of the words, which are separated by spaces; "L2::*" matches every part
   with that prefix. Modifiers that an operation ignores must be rejected here. */
bool ptx_only(const char *opcode, const char *words);

#endif
