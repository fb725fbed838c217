/* SPDX-License-Identifier: Apache-2.0 */
/* What every CUDA family builds its steps from: kernels, each a device file (.cuh) with printed text in front of it,
   and a list of arguments. A family decides (accepts) and prints (build); compiling, loading, launching and releasing
   are the same for all and live here. Sizes are arguments, never text, so that a new shape finds its kernel
   compiled. */
#ifndef WEFT_ENGINES_CUDA_KERNEL_H
#define WEFT_ENGINES_CUDA_KERNEL_H

#include "base/text.h"
#include "engines/engine.h"
#include "runtime/carried.h"
#include "runtime/launch.h"
#include "runtime/module.h"

enum argument_kind {
    ARGUMENT_VALUE,    /* address of a value of the graph, plus `number` bytes */
    ARGUMENT_BY_VALUE, /* a by-value scalar or constant itself, `number` bytes of host memory */
    ARGUMENT_SCRATCH,  /* address in the step's workspace, `number` bytes from its start */
    ARGUMENT_NUMBER,   /* a 64-bit number; also the two words of a divisor */
    ARGUMENT_MAP, /* the first word of a tensor map of a value, or of the step's workspace where that is -1, of which
                         `number` is the form; 15 words follow */
};

/* Everything that a kernel is given is one word of 8 bytes, or several in a row: the struct needs no packing rules, and
   running it is one loop. */
struct argument {
    enum argument_kind kind;
    int value;
    int64_t number;
};

/* 480 words are 3,840 bytes: below the 4 KiB of parameters that a kernel takes on every chip and driver. A tensor map
   is 128 bytes, MAP_WORDS words. */
enum { ARGUMENTS_MAX = 480, KERNELS_MAX = 13, MAPS_MAX = 10, MAP_WORDS = 16 };

/* How a value is seen by the copy engine; its map is encoded when the kernel is launched, for the address of the
   day. */
struct cuda_map {
    struct tensor_map_form form;
    bool is_im2col;
    int64_t offset; /* bytes from the address of the value, or of the workspace */
};

/* Set by build, from the plan's arena, up to `is_cooperative`; `identity`, `code` and `is_carried` by compile; `loaded`
   by load. After that nothing changes it: threads run one plan at the same time. */
struct cuda_kernel {
    const char *file;    /* its path from engines/cuda: "map/map.cuh" */
    const char *entry;   /* its function */
    const char *program; /* the whole text but for the library's headers */
    int argument_count;
    const struct argument *arguments; /* the fields of the kernel's struct, 8 bytes each, in order */
    int map_count;
    const struct cuda_map *maps;
    uint32_t grid[3], block, shared_bytes;
    uint32_t cluster;     /* blocks along x; 0: no clusters */
    bool is_dependent;    /* may start while the work before it ends: it waits itself */
    bool is_cooperative;  /* its blocks wait for each other: all run at once, or none */
    uint8_t identity[32]; /* of the program, see cache_identify */
    const struct code *code;
    bool is_carried; /* the code came with a saved plan */
    struct kernel *loaded;
};

/* What step->state of every CUDA family is. */
struct cuda_step {
    struct device device;
    int count;
    struct cuda_kernel kernels[KERNELS_MAX];
};

/* Whether a kernel of the same plan comes before a step. In every step one kernel lets the next start only once it has
   waited itself (programmatic dependent launch): so what ran before the plan has ended, and inputs are there. */
static inline bool cuda_follows(const struct step *step) {
    for (const struct step *before = step->before; before; before = before->before)
        if (((const struct cuda_step *)before->state)->count > 0)
            return true;
    return false;
}

/* ---- Printing ---- */

/* A kernel under construction. `failed` of its texts and its count are asked once, by kernel_finish. */
struct kernel_source {
    struct text constants;       /* using in_t = bf16; constexpr int VECTOR = 8; */
    struct text fields;          /* of struct arguments */
    struct text code;            /* functions printed from the graph */
    const struct region *region; /* what is printed for: comments say of which operation an operand is */
    const struct graph *graph;   /* the region's */
    int argument_count;
    struct argument arguments[ARGUMENTS_MAX];
    int map_count;
    struct cuda_map maps[MAPS_MAX];
};

void kernel_source_init(struct kernel_source *source, const struct region *region);
void emit_constant(struct kernel_source *source, const char *name, int64_t value);
/* using NAME = the storage type of a data type; */
void emit_type(struct kernel_source *source, const char *name, weftDataType_t type);
/* The name of a data type in CUDA text, or NULL where its elements have no address: those below a byte. */
const char *cuda_type_name(weftDataType_t type);
/* The name of any data type as registers hold it. Types below a byte lie in memory behind a packed<T>. */
const char *cuda_element_name(weftDataType_t type);

/* A field that is a tensor map, 64-byte aligned: printed before all others. Precondition: no other field is printed
   yet, and fewer than MAPS_MAX maps are. */
void emit_map(struct kernel_source *source, int value, const struct cuda_map *map, const char *name);

/* Fields of the arguments. The pointer of a by-value scalar or constant is printed as by_value<T>, which holds the
   number and turns into a pointer to it wherever one is wanted: code reads both alike. */
void emit_pointer(struct kernel_source *source, weftDataType_t type, int value, int64_t offset_bytes, const char *name);
void emit_scratch(struct kernel_source *source, const char *type, int64_t offset_bytes, const char *name);
void emit_number(struct kernel_source *source, int64_t number, const char *name);
/* core/index.cuh's ragged, which stands for a stride of batch entries: they begin where a value says. */
void emit_ragged(struct kernel_source *source, weftDataType_t type, int value, int64_t step, int64_t multiplier,
                 const char *name);
/* core/index.cuh's ragged_limit for the entries of a tensor whose offsets have these values. */
struct ragged_limit {
    weftDataType_t type;
    int value;
    int64_t step, entries; /* elements between offsets, and batch entries */
    int64_t multiplier, most, latest, row, width, unit;
};
void emit_ragged_limit(struct kernel_source *source, const struct ragged_limit *limit, const char *name);
/* core/index.cuh's divisor for n / value, n < 2^31. Division by a number of the arguments is a multiplication and a
   shift there. */
void emit_divisor(struct kernel_source *source, int64_t value, const char *name);

/* Comments that say where text comes from: the kind of an operation, "relu_fwd"; and of which operation of the region a
   value is which operand, "image of conv_fprop", that of the one that makes it where both are there. emit_pointer and
   emit_map say it of every field. */
void emit_operation(struct text *text, const struct node *node);
void emit_origin(struct text *text, const struct region *region, int value);

/* Ends the printing: puts the program into the kernel, its parts into the arena, and frees the print. */
weftStatus_t kernel_finish(struct kernel_source *source, struct cuda_kernel *kernel, const char *file,
                           const char *entry, struct arena *arena);

/* ---- The part of a family that is the same for all ---- */

/* What the engine's compile, keeps, code and show are. */
weftStatus_t cuda_compile(struct step *steps, int count, const struct device *device,
                          const struct carried_codes *carried);
weftStatus_t cuda_keeps(const struct step *step, const struct device *device);
bool cuda_code(const struct step *step, int i, struct carried_code *code);
void cuda_show(const struct step *steps, int count, struct text *json);

/* One kernel: its code from `carried` where it is there (NULL: nowhere), else compiled. */
weftStatus_t kernel_compile(struct cuda_kernel *kernel, const struct device *device,
                            const struct carried_codes *carried);

/* What the engine's load, run and release are: those of all families whose steps are kernels and nothing else. */
weftStatus_t cuda_load(struct step *step, const struct device *device);
weftStatus_t cuda_run(const struct step *step, void *const *values, void *workspace, weftStream_t stream);
void cuda_release(struct step *step);

/* ---- Device files ------------------------------------------------------------------------------------------------ */

enum { DEVICE_FILES_MAX = 192 };

/* All of them, by the paths under which they include each other. */
const struct program_header *device_files(int *count);

/* Those that a program reaches by its includes, in the order of the list, and a hash of their names and texts; gives
   their count. */
int kernel_headers(struct program_header headers[DEVICE_FILES_MAX], uint8_t digest[32], const char *text);

#endif
