/* SPDX-License-Identifier: Apache-2.0 */
/* Loads code once per device, however many plans use it, and looks up the kernels in it. This file knows neither where
   code comes from (runtime/cache.h) nor what its kernels compute. */
#include "runtime/module.h"
#include "runtime/driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Shared memory per block without opting in, in bytes; cluster size that every chip with clusters supports. */
enum { DEFAULT_SHARED_BYTES = 48 * 1024, PORTABLE_CLUSTER = 8 };

/* Code loaded into the context of one device. */
struct module {
    struct module *next;
    /* Ordinal and key identify a module: code is loaded separately for each device. */
    int32_t ordinal;
    uint8_t key[32]; /* hash of the code */
    /* The context is stored, because the last reference may be released on a thread with another current context. */
    void *context, *handle;
    int references;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list and the reference counts */
static struct module *modules;

/* Loads an image into the entered device. Another thread may be capturing a stream; loading and unloading are then only
   allowed in relaxed capture mode. `log` stays empty if the driver reports nothing. */
static int load_image(void **handle, const struct driver *driver, const struct code *code, char *log,
                      size_t log_bytes) {
    int mode = CUDA_CAPTURE_MODE_RELAXED;
    /* The driver's log explains PTX that it cannot translate. */
    int options[] = {CUDA_JIT_ERROR_LOG_BUFFER, CUDA_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)log_bytes};
    /* Swaps the modes: `mode` then holds the thread's own mode, which the second call restores. */
    int result = driver->thread_exchange_stream_capture_mode(&mode);
    if (result)
        return result;
    result = driver->module_load_data_ex(handle, code->image, 2, options, values);
    driver->thread_exchange_stream_capture_mode(&mode);
    return result;
}

/* Adds a reference to loaded code, or loads it into a new module with one reference. The lock is held and the device
   entered. */
static weftStatus_t get_module(struct module **out, const struct driver *driver, const struct device *device,
                               const struct code *code) {
    char log[1024] = "";
    /* Compared by key instead of address, because equal code may come from the blobs of two plans. */
    for (struct module *module = modules; module; module = module->next)
        if (module->ordinal == device->ordinal && memcmp(module->key, code->key, sizeof module->key) == 0) {
            module->references++;
            *out = module;
            return WEFT_STATUS_SUCCESS;
        }
    struct module *module = calloc(1, sizeof *module);
    if (!module)
        return status_no_memory(sizeof *module);
    int result = driver->ctx_get_current(&module->context);
    if (!result)
        result = load_image(&module->handle, driver, code, log, sizeof log);
    if (result) {
        free(module);
        return driver_fail(result, "cuda:%d (%s): loading '%s'%s%s%.900s", (int)device->ordinal, device->name,
                           code->name, code->is_ptx ? ", PTX" : "", *log ? ", log: " : "", log);
    }
    module->ordinal = device->ordinal;
    memcpy(module->key, code->key, sizeof module->key);
    module->references = 1;
    module->next = modules;
    modules = module;
    *out = module;
    return WEFT_STATUS_SUCCESS;
}

/* Releases a reference. The lock is held. Driver results are ignored: unloading only fails if the context is gone, and
   the code with it. A cleanup must not replace the message of the error that led to it. */
static void release_module(const struct driver *driver, struct module *module) {
    void *popped;
    if (--module->references)
        return;
    struct module **at = &modules;
    while (*at != module)
        at = &(*at)->next;
    *at = module->next;
    /* The module's own context: this thread may have another one, or none. */
    if (driver->ctx_push_current(module->context) == CUDA_SUCCESS) {
        int mode = CUDA_CAPTURE_MODE_RELAXED, result = driver->thread_exchange_stream_capture_mode(&mode);
        driver->module_unload(module->handle);
        if (!result)
            driver->thread_exchange_stream_capture_mode(&mode);
        driver->ctx_pop_current(&popped);
    }
    free(module);
}

/* Returns the first result that is not success. */
static int read_attributes(struct kernel *kernel, const struct driver *driver) {
    /* func_get_attribute writes ints. */
    const struct {
        enum cuda_function_attribute attribute;
        int *value;
    } wanted[] = {{CUDA_FUNC_MAX_THREADS_PER_BLOCK, &kernel->threads_per_block},
                  {CUDA_FUNC_NUM_REGS, &kernel->registers},
                  {CUDA_FUNC_LOCAL_SIZE_BYTES, &kernel->local_bytes},
                  {CUDA_FUNC_SHARED_SIZE_BYTES, &kernel->shared_bytes}};
    int result = CUDA_SUCCESS;
    for (size_t i = 0; !result && i < sizeof wanted / sizeof *wanted; i++)
        result = driver->func_get_attribute(wanted[i].value, wanted[i].attribute, kernel->function);
    return result;
}

/* Checks that the kernel has one argument of the expected size, by querying arguments 0 and 1. Some drivers cannot
   answer. */
static weftStatus_t check_arguments(const struct kernel *kernel, const struct driver *driver) {
    /* cuFuncGetParamInfo returns INVALID_VALUE if the argument does not exist, and NOT_SUPPORTED if the code has no
       parameter information. */
    size_t offset, bytes = 0, more;
    if (!driver->func_get_param_info)
        return WEFT_STATUS_SUCCESS;
    int first = driver->func_get_param_info(kernel->function, 0, &offset, &bytes);
    if (first == CUDA_NOT_SUPPORTED)
        return WEFT_STATUS_SUCCESS;
    int second = first ? CUDA_INVALID_VALUE : driver->func_get_param_info(kernel->function, 1, &offset, &more);
    if (first && first != CUDA_INVALID_VALUE)
        return driver_fail(first, "cuda:%d: reading the arguments of kernel '%s'", (int)kernel->ordinal, kernel->name);
    if (second && second != CUDA_INVALID_VALUE)
        return driver_fail(second, "cuda:%d: reading the arguments of kernel '%s'", (int)kernel->ordinal, kernel->name);
    if (second && bytes == kernel->argument_bytes)
        return WEFT_STATUS_SUCCESS;
    FAIL(WEFT_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM,
         "cuda:%d: kernel '%s': the host passes one struct of %zu bytes, the kernel expects %s%zu bytes. This is a "
         "defect of "
         "Weft: report it with this text.",
         (int)kernel->ordinal, kernel->name, kernel->argument_bytes, second ? "" : "several arguments, the first of ",
         bytes);
}

/* Loaded functions are shared, so their limits are set to the device's and not to one user's needs. That is harmless
   for other users: a launch only uses what it requests. */
static weftStatus_t prepare(struct kernel *kernel, const struct driver *driver, const struct device *device,
                            const struct kernel_needs *needs) {
    int result = read_attributes(kernel, driver);
    if (result)
        return driver_fail(result, "cuda:%d: reading the limits of kernel '%s'", (int)kernel->ordinal, kernel->name);
    TRY(check_arguments(kernel, driver));
    int fixed = kernel->shared_bytes, limit = device->cuda.shared_per_block;
    /* A difference, because a sum could overflow. shared_per_block covers static and dynamic shared memory. */
    if (needs->shared_bytes > limit - fixed)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
             "cuda:%d (%s): kernel '%s': a block may use %d bytes of shared memory, this one needs %d + %d. Choose a "
             "smaller tile.",
             (int)kernel->ordinal, device->name, kernel->name, limit, fixed, needs->shared_bytes);
    /* A kernel must opt in to more than 48 KiB. */
    kernel->shared_bytes += needs->shared_bytes;
    kernel->max_dynamic_shared_bytes = DEFAULT_SHARED_BYTES - fixed;
    if (needs->shared_bytes + fixed > DEFAULT_SHARED_BYTES) {
        kernel->max_dynamic_shared_bytes = limit - fixed;
        result = driver->func_set_attribute(kernel->function, CUDA_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit - fixed);
    }
    /* Clusters of more than 8 blocks are not portable and must be enabled; whether they fit is only known at the
       launch. */
    if (!result && needs->cluster > PORTABLE_CLUSTER)
        result = driver->func_set_attribute(kernel->function, CUDA_FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    return result
               ? driver_fail(result, "cuda:%d: setting the limits of kernel '%s'", (int)kernel->ordinal, kernel->name)
               : WEFT_STATUS_SUCCESS;
}

/* The lock is held and the device entered. On failure kernel->module is released. */
static weftStatus_t load(struct kernel *kernel, const struct device *device, const struct code *code,
                         const struct kernel_needs *needs) {
    TRY(get_module(&kernel->module, kernel->driver, device, code));
    int result = kernel->driver->module_get_function(&kernel->function, kernel->module->handle, kernel->name);
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    if (result)
        status =
            driver_fail(result, "cuda:%d: finding kernel '%s' in '%s'", (int)kernel->ordinal, kernel->name, code->name);
    if (!status)
        status = prepare(kernel, kernel->driver, device, needs);
    if (status)
        release_module(kernel->driver, kernel->module);
    return status;
}

/* The name is stored after the struct, in the same allocation. */
weftStatus_t kernel_load(struct kernel **out, const struct device *device, const struct code *code, const char *name,
                         const struct kernel_needs *needs) {
    struct device_scope scope;
    *out = NULL;
    TRY(device_enter(&scope, device));
    struct kernel *kernel = calloc(1, sizeof *kernel + strlen(name) + 1);
    /* Cannot fail, because the device was entered. */
    weftStatus_t status = kernel ? driver_get(&kernel->driver) : status_no_memory(sizeof *kernel);
    if (!status) {
        strcpy(kernel->name, name);
        kernel->ordinal = device->ordinal;
        kernel->argument_bytes = needs->argument_bytes;
        memcpy(kernel->max_grid, device->cuda.max_grid, sizeof kernel->max_grid);
        /* One lock for all devices, because loads are rare and take milliseconds. */
        pthread_mutex_lock(&lock);
        status = load(kernel, device, code, needs);
        pthread_mutex_unlock(&lock);
    }
    device_leave(&scope);
    if (status)
        free(kernel);
    else
        *out = kernel;
    return status;
}

void kernel_release(struct kernel *kernel) {
    if (!kernel)
        return;
    pthread_mutex_lock(&lock);
    release_module(kernel->driver, kernel->module);
    pthread_mutex_unlock(&lock);
    free(kernel);
}

/* The driver's occupancy calculation: registers, threads and shared memory, without clusters. */
weftStatus_t kernel_blocks_per_multiprocessor(int *blocks, const struct kernel *kernel, int threads, int shared_bytes) {
    int result = kernel->driver->occupancy_blocks(blocks, kernel->function, threads, (size_t)shared_bytes);
    return result ? driver_fail(result, "cuda:%d: querying the occupancy of kernel '%s'", (int)kernel->ordinal,
                                kernel->name)
                  : WEFT_STATUS_SUCCESS;
}
