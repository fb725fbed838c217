/* SPDX-License-Identifier: Apache-2.0 */
/* A descriptor kind: a struct, and one row per attribute with its location in the struct and its legal values. The
   generic functions set, get, finalize, copy and describe (descriptor.c) use these rows for every kind. */
#ifndef WEFT_GRAPH_SCHEMA_H
#define WEFT_GRAPH_SCHEMA_H

#include "base/arena.h"
#include "base/text.h"
#include "weft/weft.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Up to WEFT_DIM_MAX numbers, one per dimension. count == 0: unset. */
struct dims {
    int64_t count;
    int64_t at[WEFT_DIM_MAX];
};

/* Any number of elements, owned by the descriptor's arena. */
struct list {
    int64_t count;
    union {
        void *items;
        int64_t *i64;
        char *chars;
        void **pointers;
        weftFraction_t *fractions;
        struct descriptor **descriptors;
        struct tensor **tensors;
        int32_t *enums; /* elements of any enumeration */
    };
};

enum role {
    ROLE_OPTION, /* a value that the user sets */
    ROLE_INPUT,  /* a tensor that the operation reads */
    ROLE_OUTPUT, /* a tensor that the operation writes */
    ROLE_RESULT, /* get only */
};

/* How the value of a row is stored at its offset. Floating-point attributes are always stored as double, enumerations
   as int32_t. */
enum storage { STORE_VALUE, STORE_DIMS, STORE_LIST };

/* Targets of rows that accept more than one descriptor kind. */
enum { TARGET_ANY_OPERATION = -1 };

struct descriptor;

struct row {
    weftBackendAttributeName_t name;
    const char *key; /* short name in messages, documentation and frontends */
    weftBackendAttributeType_t type;
    enum role role;
    enum storage storage;
    bool required;
    bool keeps_fast;      /* for DATA_TYPE: FAST_FLOAT_FOR_FP8 is stored unchanged; see settle_compute_type */
    int target;           /* for BACKEND_DESCRIPTOR: the descriptor kind, or TARGET_ANY_OPERATION */
    size_t offset;        /* offset of the value in the kind's struct */
    int64_t least, most;  /* legal values of integers and enumerations, if most > least */
    double initial;       /* default of a number, enumeration or boolean */
    const char *in_place; /* for an output: keys of the inputs whose memory it may overwrite element by element */
    const char *shape;    /* for a tensor: its dimensions as text */
    /* For long texts, which are generated when the user reads them; NULL if the characters are stored at the offset. */
    void (*write)(const struct descriptor *descriptor, struct text *text);
    const char *doc;
};

/* Macros for rows; other fields are set with designators, such as .required = true. */
#define TENSOR_ROW(role_, struct_, field_, name_, key_, ...)                                                           \
    {.name = name_,                                                                                                    \
     .key = key_,                                                                                                      \
     .type = WEFT_TYPE_BACKEND_DESCRIPTOR,                                                                             \
     .role = role_,                                                                                                    \
     .target = WEFT_BACKEND_TENSOR_DESCRIPTOR,                                                                         \
     .offset = offsetof(struct_, field_),                                                                              \
     __VA_ARGS__}
#define VALUE_ROW(type_, struct_, field_, name_, key_, ...)                                                            \
    {.name = name_, .key = key_, .type = type_, .offset = offsetof(struct_, field_), __VA_ARGS__}

struct schema {
    weftBackendDescriptorType_t kind;
    const char *name; /* in messages: "tensor", "matmul", "execution plan" */
    const char *doc;
    size_t size; /* size of the kind's struct, which begins with struct descriptor */
    const struct row *rows;
    int row_count;
    /* Checks the descriptor and infers unset fields; all required rows are set. May be NULL. */
    weftStatus_t (*finalize)(struct descriptor *);
    /* Copies fields that have no row into a target whose rows have been copied. NULL if no such fields exist. */
    weftStatus_t (*copy)(struct descriptor *target, const struct descriptor *source);
    /* Frees resources that neither the rows nor the arena own. May be NULL. */
    void (*release)(struct descriptor *);
    const struct op *op; /* set for operation kinds */
};

#define ROWS(array) .rows = array, .row_count = sizeof array / sizeof *array

enum { DESCRIPTOR_MAGIC = 0x57454654 };

/* The common head of all descriptors. */
struct descriptor {
    uint32_t magic;
    atomic_int holders;
    const struct schema *schema;
    struct arena arena;
    uint64_t set_rows; /* bit i is set if the user set row i */
    struct list label; /* the user's name, WEFT_ATTR_NAME_EXT; count excludes the terminating zero */
    bool finalized;
};

#endif
