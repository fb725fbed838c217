/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver: declarations of exactly what Weft uses, one table of its functions, and messages for its errors.
   Building needs no CUDA header, and running needs no driver until a CUDA device is requested. The library is loaded
   once and never unloaded. This file knows nothing of devices, kernels or plans. WEFT_LIBCUDA names another file to
   load instead of the system's libcuda.so.1. */
#ifndef WEFT_RUNTIME_DRIVER_H
#define WEFT_RUNTIME_DRIVER_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

/* Results are the driver's CUresult; contexts, modules, functions, streams and events are its opaque pointers; device
   memory is an address. Functions and constants have the driver's names without their prefix. */
enum {
    CUDA_SUCCESS = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_NO_DEVICE = 100,
    CUDA_NOT_SUPPORTED = 801,
    CUDA_CAPTURE_UNSUPPORTED = 900,
    CUDA_CAPTURE_IMPLICIT = 906,
};

enum cuda_device_attribute {
    CUDA_MAX_THREADS_PER_BLOCK = 1,
    CUDA_MAX_GRID_DIM_X = 5,
    CUDA_MAX_GRID_DIM_Y = 6,
    CUDA_MAX_GRID_DIM_Z = 7,
    CUDA_CLOCK_RATE = 13, /* kHz */
    CUDA_MULTIPROCESSOR_COUNT = 16,
    CUDA_MEMORY_CLOCK_RATE = 36,       /* kHz */
    CUDA_GLOBAL_MEMORY_BUS_WIDTH = 37, /* bits */
    CUDA_L2_CACHE_SIZE = 38,
    CUDA_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CUDA_COMPUTE_CAPABILITY_MAJOR = 75,
    CUDA_COMPUTE_CAPABILITY_MINOR = 76,
    CUDA_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    CUDA_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
    CUDA_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};

enum cuda_function_attribute {
    CUDA_FUNC_MAX_THREADS_PER_BLOCK = 0,
    CUDA_FUNC_SHARED_SIZE_BYTES = 1,
    CUDA_FUNC_LOCAL_SIZE_BYTES = 3,
    CUDA_FUNC_NUM_REGS = 4,
    CUDA_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CUDA_FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
};

enum cuda_launch_attribute_id {
    CUDA_LAUNCH_COOPERATIVE = 2,
    CUDA_LAUNCH_CLUSTER_DIMENSION = 4,
    CUDA_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

enum { CUDA_JIT_ERROR_LOG_BUFFER = 5, CUDA_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6 };
enum { CUDA_CAPTURE_MODE_RELAXED = 2 };
enum { CUDA_EVENT_DEFAULT = 0 };
enum { CUDA_STREAM_NON_BLOCKING = 1 };
#define CUDA_STREAM_PER_THREAD ((void *)2)

struct cuda_launch_attribute {
    uint32_t id, pad;
    union {
        uint32_t words[16];
        uint32_t cluster[3];
        int32_t cooperative, programmatic;
    } value;
};

struct cuda_launch_config {
    uint32_t grid[3], block[3], shared_bytes;
    void *stream;
    struct cuda_launch_attribute *attributes;
    uint32_t attribute_count;
};

/* A tensor map as TMA reads it: 128 opaque bytes, always 64-byte aligned. */
struct cuda_tensor_map {
    _Alignas(64) uint64_t words[16];
};

/* Why an executable graph could not be updated with the kernels of another. */
struct cuda_graph_update {
    uint32_t reason;
    void *node, *from_node;
};

struct driver {
    int version; /* CUDA version that it supports: 1000 * major + 10 * minor */
    int device_count;

    int (*init)(unsigned flags);
    int (*get_error_name)(int result, const char **name);
    int (*get_error_string)(int result, const char **words);

    int (*device_get_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_get_name)(char *name, int bytes, int device);
    int (*device_get_attribute)(int *value, enum cuda_device_attribute attribute, int device);
    int (*device_total_mem)(size_t *bytes, int device);
    int (*device_get_uuid)(uint8_t uuid[16], int device);
    int (*device_primary_ctx_retain)(void **context, int device);
    int (*ctx_get_current)(void **context);
    int (*ctx_push_current)(void *context);
    int (*ctx_pop_current)(void **context);
    int (*thread_exchange_stream_capture_mode)(int *mode);

    int (*module_load_data_ex)(void **module, const void *image, unsigned count, const int *options, void **values);
    int (*module_unload)(void *module);
    int (*module_get_function)(void **function, void *module, const char *name);
    int (*func_get_attribute)(int *value, enum cuda_function_attribute attribute, void *function);
    int (*func_set_attribute)(void *function, enum cuda_function_attribute attribute, int value);
    int (*func_get_param_info)(void *function, size_t index, size_t *offset, size_t *bytes); /* NULL before 12.4 */
    int (*occupancy_blocks)(int *blocks, void *function, int threads, size_t shared_bytes);
    int (*launch_kernel_ex)(const struct cuda_launch_config *config, void *function, void **arguments, void **extra);

    int (*mem_alloc)(uint64_t *address, size_t bytes);
    int (*mem_free)(uint64_t address);
    int (*memcpy_async)(uint64_t dst, uint64_t src, size_t bytes, void *stream);
    int (*stream_synchronize)(void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_is_capturing)(void *stream, int *status); /* 0: not capturing */
    int (*stream_begin_capture)(void *stream, int mode);
    int (*stream_end_capture)(void *stream, void **graph);
    int (*graph_instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*graph_exec_update)(void *executable, void *graph, struct cuda_graph_update *update);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_exec_destroy)(void *executable); /* waits for runs in progress */
    int (*graph_destroy)(void *graph);
    int (*graph_get_nodes)(void *graph, void **nodes, size_t *count);
    int (*graph_destroy_node)(void *node);
    int (*graph_add_child)(void **node, void *graph, void *const *dependencies, size_t count, void *child); /* copies */
    int (*stream_get_id)(void *stream, uint64_t *number); /* may be NULL */
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_synchronize)(void *event);
    int (*event_elapsed_time)(float *milliseconds, void *start, void *stop);

    int (*tensor_map_encode_tiled)(struct cuda_tensor_map *map, int type, uint32_t rank, uint64_t address,
                                   const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                   const uint32_t *element_strides, int interleave, int swizzle, int promotion,
                                   int fill);
    int (*tensor_map_encode_im2col)(struct cuda_tensor_map *map, int type, uint32_t rank, uint64_t address,
                                    const uint64_t *dims, const uint64_t *strides, const int *lower, const int *upper,
                                    uint32_t channels, uint32_t pixels, const uint32_t *element_strides, int interleave,
                                    int swizzle, int promotion, int fill);
};

/* Returns the driver with at least one device. It is loaded by the first call; all later calls return the same. Fails
   with
     NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING   no driver exists, it cannot be loaded, or it has no GPU
     NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER       it is older than CUDA 12.0, or its parts do not match
     EXECUTION_FAILED_CUDA_DRIVER                 it fails to start, or this process was forked after it started */
weftStatus_t driver_get(const struct driver **driver);

/* The same, silently: NULL if driver_get would fail. */
const struct driver *driver_find(void);

/* Reports a driver result together with a fix, and returns the corresponding status. what: the object and the action,
   such as "cuda:0: loading kernel 'softmax'". */
weftStatus_t driver_fail(int result, const char *what, ...) __attribute__((format(printf, 2, 3)));

#endif
