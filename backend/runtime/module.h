/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on a device: machine code loaded into the device's context, and what launching one of its functions needs to
   know. Loading happens when a plan is finalized, wholly, so that execution and stream capture load nothing. Plans that
   use the same code on the same device share one loaded copy. */
#ifndef WEFT_RUNTIME_MODULE_H
#define WEFT_RUNTIME_MODULE_H

#include "runtime/cache.h"
#include "runtime/device.h"

/* What a launch will ask of a kernel, told when it is loaded so that it cannot fail later. */
struct kernel_needs {
    int shared_bytes;      /* dynamic shared memory of a block */
    int cluster;           /* blocks of a cluster; 0 or 1: none */
    size_t argument_bytes; /* of its one argument, a plain struct; 0: it takes none */
};

struct kernel {
    const struct driver *driver;
    void *function;
    size_t argument_bytes;
    int64_t max_grid[3];
    int threads_per_block; /* the most that this kernel can run with */
    int registers;         /* per thread */
    int local_bytes;       /* per thread, in device memory: spills and indexed arrays */
    int shared_bytes;      /* static and dynamic, per block */
    int max_dynamic_shared_bytes;
    int32_t ordinal; /* of its device */
    struct module *module;
    char name[];
};

/* Loads function `name` of the code; give it back with kernel_release. Fails with NOT_SUPPORTED_ARCH_MISMATCH for code
   of another chip, with NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT, and as device_enter and driver_fail do. */
weftStatus_t kernel_load(struct kernel **kernel, const struct device *device, const struct code *code, const char *name,
                         const struct kernel_needs *needs);

/* NULL does nothing. Nothing that was launched may still be running. */
void kernel_release(struct kernel *kernel);

/* How many blocks of so many threads a multiprocessor holds at once. Needs the device entered. */
weftStatus_t kernel_blocks_per_multiprocessor(int *blocks, const struct kernel *kernel, int threads, int shared_bytes);

#endif
