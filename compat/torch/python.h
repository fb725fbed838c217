/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of Python's stable ABI and of torch's exported C functions that Weft uses, declared here so that building
   needs no headers of either. Both are looked up in the calling process. All functions require the interpreter's lock.
   */
#ifndef WEFT_TORCH_PYTHON_H
#define WEFT_TORCH_PYTHON_H

#include <stdbool.h>
#include <stdint.h>

/* The header of each object, in interpreters with a global lock. */
struct object {
    intptr_t references;
    struct object *type;
};

typedef struct object *function(struct object *self, struct object *arguments, struct object *named);

/* A C function for Python; must outlive the functions created from it. */
struct method {
    const char *name;
    function *call;
    int flags;
    const char *text;
};

enum { METHOD_TAKES_NAMED = 3 }; /* a tuple of positional arguments, and a dict of named ones or NULL */

/* Results of new_ functions and of call() are new references; results of get_ functions are borrowed. */
struct python {
    struct object *none, *true_, *bool_, *int_, *float_, *str, *tuple, *list, *capsule;
    void (*retain)(struct object *), (*release)(struct object *);
    struct object *(*call)(struct object *called, struct object *arguments, struct object *named);
    struct object *(*error)(void); /* the exception that was raised, or NULL */
    void (*clear_error)(void);
    struct object *(*new_tuple)(intptr_t count), *(*get_of_tuple)(struct object *, intptr_t i);
    int (*set_of_tuple)(struct object *, intptr_t i, struct object *item);
    intptr_t (*tuple_count)(struct object *), (*list_count)(struct object *);
    struct object *(*get_of_list)(struct object *, intptr_t i);
    int (*dict_next)(struct object *, intptr_t *place, struct object **key, struct object **value);
    long long (*to_int)(struct object *);
    struct object *(*new_int)(long long);
    double (*to_float)(struct object *);
    const char *(*to_text)(struct object *, intptr_t *bytes);
    struct object *(*new_capsule)(void *held, const char *name, void (*end)(struct object *));
    void *(*of_capsule)(struct object *, const char *name);
    struct object *(*new_function)(struct method *, struct object *self, struct object *module);
    struct object *(*self_of_function)(struct object *);
    void *(*unlock)(void);
    void (*lock)(void *);
};

/* Functions of a tensor; 0 is success. The returned pointers are valid as long as the tensor keeps its shape. */
struct torch {
    int (*get_dim)(void *tensor, int64_t *dim), (*get_dtype)(void *tensor, int32_t *dtype);
    int (*get_sizes)(void *tensor, int64_t **sizes), (*get_strides)(void *tensor, int64_t **strides);
    int (*get_device_type)(void *tensor, int32_t *type), (*get_device_index)(void *tensor, int32_t *index);
    int (*get_layout)(void *tensor, int32_t *layout); /* 0: strided */
    int (*get_data)(void *tensor, void **data);
};

extern struct python python;
extern struct torch torch;

/* Finds both in the process; false where one is not there. */
bool python_find(void);

#endif
