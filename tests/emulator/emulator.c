/* SPDX-License-Identifier: Apache-2.0 */
#include "emulator.h"
#include "coverage.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Serializes launches, because arguments are stored in the module. Coverage has a single list of all modules. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct module *emulator_load(const char *text, char error[512]) {
    struct module *module = ptx_read(text);
    snprintf(error, 512, "%s", module->error);
    if (*error) {
        ptx_free(module);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    coverage_add(module, text);
    pthread_mutex_unlock(&lock);
    return module;
}

void emulator_unload(struct module *module) {
    pthread_mutex_lock(&lock);
    coverage_remove(module);
    pthread_mutex_unlock(&lock);
    ptx_free(module);
}

bool emulator_tell(const struct module *module, int index, struct emulated_kernel *told) {
    const struct kernel *kernel = module->kernels;
    while (kernel && index--)
        kernel = kernel->next;
    if (kernel)
        *told = (struct emulated_kernel){kernel->name, kernel->parameter_bytes, kernel->static_shared_bytes,
                                         kernel->max_threads};
    return kernel != NULL;
}

bool emulator_launch(const struct module *module, const char *name, const struct launch_shape *shape,
                     const void *arguments, memory_finder *find_memory, char error[1024]) {
    static uint64_t launches;
    const char *seed = getenv("EMULATOR_SEED");
    struct machine *run = calloc(1, sizeof *run);
    if (!run)
        abort();
    pthread_mutex_lock(&lock);
    coverage_follow_test();
    run->module = module;
    run->kernel = ptx_find(module, name);
    run->shape = *shape;
    run->find_memory = find_memory;
    run->random = (seed ? strtoull(seed, NULL, 10) : 1) * UINT64_C(1000003) + launches++;
    if (run->kernel->parameter_bytes)
        memcpy(run->kernel->parameters, arguments, run->kernel->parameter_bytes);
    bool is_done = machine_run(run);
    pthread_mutex_unlock(&lock);
    snprintf(error, 1024, "%s", run->error);
    free(run);
    return is_done;
}
