/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and launches the kernels of a step, for every family. Running writes addresses into a copy of the arguments on
   the stack and launches; it allocates nothing, takes no lock and does not wait. */
#include "base/trace.h"
#include "engines/cuda/core/kernel.h"
#include "runtime/launch.h"

#include <string.h>

/* If the driver rejects the code of a saved plan for this device, it is compiled here. */
static weftStatus_t load_kernel(struct cuda_kernel *kernel, const struct device *device) {
    /* Functions must opt in to shared memory above 48 KB and to clusters before their first launch. */
    struct kernel_needs needs = {.shared_bytes = (int)kernel->shared_bytes,
                                 .cluster = (int)kernel->cluster,
                                 .argument_bytes = (size_t)kernel->argument_count * sizeof(uint64_t)};
    weftStatus_t status = kernel_load(&kernel->loaded, device, kernel->code, kernel->entry, &needs);
    if (status != WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH || !kernel->is_precompiled)
        return status;
    trace(WEFT_SEV_WARNING, "saved plan: its code is not used: %s", status_text());
    status_clear();
    cache_release(kernel->code);
    kernel->code = NULL;
    TRY(kernel_compile(kernel, device, NULL));
    return kernel_load(&kernel->loaded, device, kernel->code, kernel->entry, &needs);
}

/* Blocks that wait for each other must all be resident. A plan for a described device may run on one of its kind that
   has fewer multiprocessors. */
static weftStatus_t check_residence(const struct cuda_kernel *kernel, const struct device *device) {
    struct device_scope scope;
    int blocks;
    TRY(device_enter(&scope, device));
    weftStatus_t status =
        kernel_blocks_per_multiprocessor(&blocks, kernel->loaded, (int)kernel->block, (int)kernel->shared_bytes);
    device_leave(&scope);
    TRY(status);
    int64_t all = (int64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    int64_t at_once = (int64_t)blocks * device->cuda.multiprocessors;
    if (at_once < all)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM,
             "%lld blocks wait for each other, but %s can run only %lld at once. Build the plan for this device.",
             (long long)all, device->name, (long long)at_once);
    return WEFT_STATUS_SUCCESS;
}

/* Runs once per plan, at finalize: the only place that changes a step's kernels after compile. */
weftStatus_t cuda_load(struct step *step, const struct device *device) {
    struct cuda_step *state = step->state;
    /* A plan for a described device now gets the actual one. */
    state->device = *device;
    for (int i = 0; i < state->count; i++) {
        TRY(load_kernel(&state->kernels[i], device));
        if (state->kernels[i].is_cooperative)
            TRY(check_residence(&state->kernels[i], device));
    }
    return WEFT_STATUS_SUCCESS;
}

/* A by-value scalar is read at every run, because the caller may change it between runs. Its bytes come first in the
   word, where by_value<T> expects them. */
static uint64_t argument_word(const struct argument *argument, void *const *values, const char *workspace) {
    uint64_t word = 0;
    switch (argument->kind) {
    case ARGUMENT_VALUE:
        return (uint64_t)(uintptr_t)values[argument->value] + (uint64_t)argument->number;
    case ARGUMENT_SCRATCH:
        return (uint64_t)(uintptr_t)workspace + (uint64_t)argument->number;
    case ARGUMENT_BY_VALUE:
        memcpy(&word, values[argument->value], (size_t)argument->number);
        return word;
    case ARGUMENT_NUMBER:
        return (uint64_t)argument->number;
    case ARGUMENT_MAP: /* encode_maps stores it */
        break;
    }
    return word;
}

/* Encoding is host arithmetic, a few hundred nanoseconds. A map contains its address, which may change at each run, so
   maps are not cached. */
static weftStatus_t encode_maps(uint64_t *words, const struct cuda_kernel *kernel, void *const *values,
                                const void *workspace) {
    for (int i = 0; i < kernel->argument_count; i += MAP_WORDS) {
        const struct argument *argument = &kernel->arguments[i];
        if (argument->kind != ARGUMENT_MAP) /* maps come first */
            break;
        const struct cuda_map *map = &kernel->maps[argument->number];
        struct cuda_tensor_map *encoded = (struct cuda_tensor_map *)&words[i];
        const void *memory = argument->value < 0 ? workspace : values[argument->value];
        uint64_t address = (uint64_t)(uintptr_t)memory + (uint64_t)map->offset;
        TRY(map->is_im2col ? tensor_map_im2col(encoded, kernel->loaded->driver, &map->form, address)
                           : tensor_map_tiled(encoded, kernel->loaded->driver, &map->form, address));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t run_kernel(const struct cuda_kernel *kernel, void *const *values, const void *workspace,
                               weftStream_t stream) {
    /* The words are on the stack, so that threads can run one plan concurrently. Maps need 64-byte alignment, which the
       kernel's struct has, too. */
    _Alignas(struct cuda_tensor_map) uint64_t words[ARGUMENTS_MAX + 1];
    for (int i = 0; i < kernel->argument_count; i++)
        words[i] = argument_word(&kernel->arguments[i], values, workspace);
    TRY(encode_maps(words, kernel, values, workspace));
    struct launch launch = {.kernel = kernel->loaded,
                            .grid = {kernel->grid[0], kernel->grid[1], kernel->grid[2]},
                            .block = {kernel->block, 1, 1},
                            .cluster = {kernel->cluster, kernel->cluster ? 1 : 0, kernel->cluster ? 1 : 0},
                            .is_dependent = kernel->is_dependent,
                            .is_cooperative = kernel->is_cooperative,
                            .shared_bytes = kernel->shared_bytes,
                            .arguments = words};
    return launch_kernel(&launch, stream);
}

/* values: device addresses, or host addresses of by-value scalars, indexed by the graph's numbers. workspace: the
   step's own. */
weftStatus_t cuda_run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    const struct cuda_step *state = step->state;
    struct device_scope scope;
    TRY(device_enter(&scope, &state->device));
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    /* All in one stream, so that each kernel sees the writes of the preceding one. */
    for (int i = 0; i < state->count && !status; i++)
        status = run_kernel(&state->kernels[i], values, workspace, stream);
    device_leave(&scope);
    return status;
}

/* Also releases a step whose build, compile or load failed: members that are not set yet are NULL, and releasing them
   has no effect. */
void cuda_release(struct step *step) {
    struct cuda_step *state = step->state;
    for (int i = 0; state && i < state->count; i++) {
        kernel_release(state->kernels[i].loaded);
        cache_release(state->kernels[i].code);
    }
}
