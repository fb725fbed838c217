/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on a device: machine code loaded into the device's context, and the properties that a launch needs. All
   loading happens when a plan is finalized, so that execution and stream capture load nothing. Plans that use the same
   code on the same device share one loaded copy. */
#ifndef WEFT_RUNTIME_MODULE_H
#define WEFT_RUNTIME_MODULE_H

#include "runtime/cache.h"
#include "runtime/device.h"

/* Requirements of later launches, checked when the kernel is loaded. */
struct kernel_needs {
    int shared_bytes;      /* dynamic shared memory per block */
    int cluster;           /* blocks per cluster; 0 or 1: no clusters */
    size_t argument_bytes; /* size of the only argument, a plain struct; 0: no argument */
};

struct kernel {
    const struct driver *driver;
    void *function;
    size_t argument_bytes;
    int64_t max_grid[3];
    int threads_per_block; /* maximum block size for this kernel */
    int registers;         /* per thread */
    int local_bytes;       /* per thread, in device memory: spills and indexed arrays */
    int shared_bytes;      /* static and dynamic, per block */
    int max_dynamic_shared_bytes;
    int32_t ordinal; /* ordinal of the device */
    struct module *module;
    char name[];
};

/* Loads function `name` of the code; release it with kernel_release. Fails with NOT_SUPPORTED_ARCH_MISMATCH for code of
   another chip, with NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT, and as device_enter and driver_fail do. */
weftStatus_t kernel_load(struct kernel **kernel, const struct device *device, const struct code *code, const char *name,
                         const struct kernel_needs *needs);

/* NULL is allowed. No launch of the kernel may still be running. */
void kernel_release(struct kernel *kernel);

/* Number of blocks of this many threads that fit on a multiprocessor. The device must be entered. */
weftStatus_t kernel_blocks_per_multiprocessor(int *blocks, const struct kernel *kernel, int threads, int shared_bytes);

#endif
