/* SPDX-License-Identifier: Apache-2.0 */
/* The part of XLA's foreign function interface, version 0.1, that Weft uses, declared here so that building needs no
   XLA header. New versions only append members to structs, whose first member is the size that the caller knows; later
   runtimes accept handlers of this version. */
#ifndef WEFT_XLA_FFI_H
#define WEFT_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_MAJOR = 0, XLA_MINOR = 1 };

/* True if a struct from XLA has a member: its size covers the member. */
#define XLA_HAS(address, type, member)                                                                                 \
    ((address)->head.bytes >= offsetof(type, member) + sizeof(((const type *)0)->member))

struct xla_extension;

/* The first member of each struct. */
struct xla_head {
    size_t bytes; /* of the struct */
    struct xla_extension *extensions;
};

/* ---- Metadata: a handler may be called to report its version and traits ---- */

enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_COMMAND_BUFFER_COMPATIBLE = 1 }; /* launches the same work on each call, so it can be captured */

struct xla_version {
    struct xla_head head;
    int major, minor;
};

struct xla_metadata {
    size_t bytes;
    struct xla_version version;
    uint32_t traits;
};

/* Its head differs from that of structs: size, type, next. */
struct xla_extension {
    size_t bytes;
    int type;
    struct xla_extension *next;
    struct xla_metadata *metadata; /* if the type is XLA_EXTENSION_METADATA */
};

/* ---- Arguments, results, attributes ---- */

enum xla_type { XLA_S64 = 5 };
enum { XLA_BUFFER = 1 };
enum { XLA_ARRAY = 1, XLA_SCALAR = 3, XLA_STRING = 4 };

/* Packed, row-major. */
struct xla_buffer {
    struct xla_head head;
    int type;
    void *data;
    int64_t rank;
    int64_t *dims;
};

/* For arguments and for results. */
struct xla_buffers {
    struct xla_head head;
    int64_t count;
    int *kinds;
    void **each; /* struct xla_buffer */
};

struct xla_span {
    const char *chars; /* not zero-terminated */
    size_t length;
};

struct xla_array {
    int type;
    size_t count;
    void *data;
};

struct xla_scalar {
    int type;
    void *value;
};

struct xla_attributes {
    struct xla_head head;
    int64_t count;
    int *kinds;
    struct xla_span **names;
    void **each; /* struct xla_array, xla_scalar or xla_span */
};

/* ---- Functions of the runtime: each takes a struct of arguments and returns an error or NULL ---- */

enum xla_code {
    XLA_INVALID_ARGUMENT = 3,
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_UNIMPLEMENTED = 12,
    XLA_INTERNAL = 13,
};

struct xla_error; /* owned by the receiver; returning it passes it on */

struct xla_error_arguments {
    struct xla_head head;
    const char *message;
    int code;
};

struct xla_stream_arguments {
    struct xla_head head;
    void *context;
    void *stream; /* result: a CUstream */
};

struct xla_ordinal_arguments {
    struct xla_head head;
    void *context;
    int32_t ordinal; /* result */
};

typedef struct xla_error *xla_function(void *arguments);

struct xla_api {
    struct xla_head head;
    struct xla_version version;
    const void *internal;
    xla_function *error_create;
    xla_function *errors[2], *handler_register;
    xla_function *stream_get;
    xla_function *types_and_state[4], *device_memory[2], *thread_pool[2], *futures[3], *run_id_get;
    xla_function *device_ordinal_get;
};

/* ---- A call ---- */

enum xla_stage { XLA_INITIALIZE = 2, XLA_EXECUTE = 3 };

struct xla_call {
    struct xla_head head;
    const struct xla_api *api;
    void *context;
    int stage;
    struct xla_buffers arguments, results;
    struct xla_attributes attributes;
};

#endif
