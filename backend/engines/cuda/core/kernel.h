/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of all CUDA families: steps consist of kernels, each a device file (.cuh) with generated source
   before it, and a list of arguments. A family decides (accepts) and emits the source (build); compiling, loading,
   launching and releasing are common to all families and are implemented here. Sizes are arguments, never part of the
   text, so that a new shape reuses a compiled kernel. */
#ifndef WEFT_ENGINES_CUDA_KERNEL_H
#define WEFT_ENGINES_CUDA_KERNEL_H

#include "base/text.h"
#include "engines/engine.h"
#include "runtime/aot_code.h"
#include "runtime/launch.h"
#include "runtime/module.h"

enum argument_kind {
    ARGUMENT_VALUE,    /* address of a value of the graph, plus `number` bytes */
    ARGUMENT_BY_VALUE, /* the by-value scalar or constant itself, `number` bytes of host memory */
    ARGUMENT_SCRATCH,  /* address in the step's workspace, `number` bytes from its start */
    ARGUMENT_NUMBER,   /* a 64-bit number; also the two words of a divisor */
    /* first word of a tensor map of a value, or of the step's workspace if value is -1; `number` indexes the map; 15
       words follow */
    ARGUMENT_MAP,
};

/* Each argument is one word of 8 bytes, or several consecutive ones: the struct needs no packing rules, and launching
   is one loop. */
struct argument {
    enum argument_kind kind;
    int value;
    int64_t number;
};

/* 480 words are 3,840 bytes, below the 4 KiB of parameters that every device and driver accepts. A tensor map is 128
   bytes, MAP_WORDS words. */
enum { ARGUMENTS_MAX = 480, KERNELS_MAX = 13, MAPS_MAX = 10, MAP_WORDS = 16 };

/* The tensor map of a value. It is encoded when the kernel is launched, because the address may change between runs. */
struct cuda_map {
    struct tensor_map_form form;
    bool is_im2col;
    int64_t offset; /* bytes from the address of the value, or of the workspace */
};

/* build sets the members up to `is_cooperative`, from the plan's arena; compile sets `identity`, `code` and
   `is_precompiled`; load sets `loaded`. Afterwards it is immutable: threads run one plan concurrently. */
struct cuda_kernel {
    const char *file;    /* its path from engines/cuda: "map/map.cuh" */
    const char *entry;   /* its function */
    const char *program; /* the whole text except the device files */
    int argument_count;
    const struct argument *arguments; /* the fields of the kernel's struct, 8 bytes each, in order */
    int map_count;
    const struct cuda_map *maps;
    uint32_t grid[3], block, shared_bytes;
    uint32_t cluster;     /* blocks along x; 0: no clusters */
    bool is_dependent;    /* may start while the preceding kernel ends, because it waits itself */
    bool is_cooperative;  /* its blocks wait for each other: either all are resident, or none */
    uint8_t identity[32]; /* identity of the program, see cache_identify */
    const struct code *code;
    bool is_precompiled; /* the code came with a saved plan */
    struct kernel *loaded;
};

/* The state (step->state) of every CUDA family. */
struct cuda_step {
    struct device device;
    int count;
    struct cuda_kernel kernels[KERNELS_MAX];
};

/* True if a kernel of the same plan precedes a step. In every step, one kernel lets the next start only after it has
   waited itself (programmatic dependent launch), so work before the plan has ended and inputs are ready. */
static inline bool cuda_follows(const struct step *step) {
    for (const struct step *before = step->before; before; before = before->before)
        if (((const struct cuda_step *)before->state)->count > 0)
            return true;
    return false;
}

/* ---- Code generation ---- */

/* A kernel under construction. kernel_finish checks the texts' `failed` and the argument count once. */
struct kernel_source {
    struct text constants;       /* using in_t = bf16; constexpr int VECTOR = 8; */
    struct text fields;          /* fields of struct arguments */
    struct text code;            /* functions generated from the graph */
    const struct region *region; /* source of the comments that name the operation of each operand */
    const struct graph *graph;   /* the region's */
    int argument_count;
    struct argument arguments[ARGUMENTS_MAX];
    int map_count;
    struct cuda_map maps[MAPS_MAX];
};

void kernel_source_init(struct kernel_source *source, const struct region *region);
void emit_constant(struct kernel_source *source, const char *name, int64_t value);
/* Emits "using NAME = " and the storage type of a data type. */
void emit_type(struct kernel_source *source, const char *name, weftDataType_t type);
/* The CUDA name of a data type, or NULL if its elements have no address because they are smaller than a byte. */
const char *cuda_type_name(weftDataType_t type);
/* The CUDA name of any data type in registers. In memory, types narrower than a byte are accessed through packed<T>. */
const char *cuda_element_name(weftDataType_t type);

/* Emits a field that is a tensor map, 64-byte aligned: maps come before all other fields. Preconditions: no other field
   has been emitted, and fewer than MAPS_MAX maps. */
void emit_map(struct kernel_source *source, int value, const struct cuda_map *map, const char *name);

/* Fields of the arguments. The pointer of a by-value scalar or constant becomes by_value<T>, which holds the number and
   converts to a pointer to it, so that code reads both in the same way. */
void emit_pointer(struct kernel_source *source, weftDataType_t type, int value, int64_t offset_bytes, const char *name);
void emit_scratch(struct kernel_source *source, const char *type, int64_t offset_bytes, const char *name);
void emit_number(struct kernel_source *source, int64_t number, const char *name);
/* core/index.cuh's ragged, which replaces the stride of batch entries: a value holds their offsets. */
void emit_ragged(struct kernel_source *source, weftDataType_t type, int value, int64_t step, int64_t multiplier,
                 const char *name);
/* Arguments of emit_ragged_limit, which emits core/index.cuh's ragged_limit for the batch entries of a ragged
   tensor. */
struct ragged_limit {
    weftDataType_t type;
    int value;
    int64_t step, entries; /* elements between offsets, and number of batch entries */
    int64_t multiplier, most, latest, row, width, unit;
};
void emit_ragged_limit(struct kernel_source *source, const struct ragged_limit *limit, const char *name);
/* Emits core/index.cuh's divisor for n / value, n < 2^31: kernels divide by an argument with a multiplication and a
   shift. */
void emit_divisor(struct kernel_source *source, int64_t value, const char *name);

/* Comments that name the origin of generated code: emit_operation emits the kind of an operation, "relu_fwd";
   emit_origin emits which operand of which operation of the region a value is, "image of conv_fprop", preferring the
   operation that writes it. emit_pointer and emit_map add these to every field. */
void emit_operation(struct text *text, const struct node *node);
void emit_origin(struct text *text, const struct region *region, int value);

/* Completes the source: stores the program in the kernel and its parts in the arena, and frees the kernel_source. */
weftStatus_t kernel_finish(struct kernel_source *source, struct cuda_kernel *kernel, const char *file,
                           const char *entry, struct arena *arena);

/* ---- Functions common to all families ---- */

/* Implement the engine's compile, keeps, code and show. */
weftStatus_t cuda_compile(struct step *steps, int count, const struct device *device,
                          const struct aot_codes *aot_codes);
weftStatus_t cuda_keeps(const struct step *step, const struct device *device);
bool cuda_code(const struct step *step, int i, struct aot_code *code);
void cuda_show(const struct step *steps, int count, struct text *json);

/* Compiles one kernel, unless `aot_codes` (may be NULL) has its code. */
weftStatus_t kernel_compile(struct cuda_kernel *kernel, const struct device *device, const struct aot_codes *aot_codes);

/* Implement the engine's load, run and release, for all families whose steps consist only of kernels. */
weftStatus_t cuda_load(struct step *step, const struct device *device);
weftStatus_t cuda_run(const struct step *step, void *const *values, void *workspace, weftStream_t stream);
void cuda_release(struct step *step);

/* ---- Device files ------------------------------------------------------------------------------------------------ */

enum { DEVICE_FILES_MAX = 256 };

/* All device files, by the paths under which they include each other. */
const struct program_header *device_files(int *count);

/* Stores the device files that a program includes, directly or not, in the order of the list, and a hash of their names
   and texts; returns their number. */
int kernel_headers(struct program_header headers[DEVICE_FILES_MAX], uint8_t digest[32], const char *text);

#endif
