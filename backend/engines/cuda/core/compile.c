/* SPDX-License-Identifier: Apache-2.0 */
/* Compiling what the steps of a plan need, several programs at a time: a program takes tens to hundreds of
   milliseconds, and the compiler runs well on many threads. It loads nothing, so that it serves devices that are
   elsewhere too. */
#include "engines/cuda/core/kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPILERS_MAX = 8 }; /* each takes some hundred MiB while it works */

/* Part of a program's identity. if constexpr and inline variables need C++17; there is no option that trades exactness
   for speed, as fast math would. */
static const char *const options[] = {"-std=c++17"};

/* Linear: a saved plan carries some dozen programs, each of which compiles for far longer. */
static const struct carried_code *find_carried(const struct carried_codes *carried, const uint8_t identity[32]) {
    for (int i = 0; carried && i < carried->count; i++)
        if (memcmp(carried->items[i].identity, identity, 32) == 0)
            return &carried->items[i];
    return NULL;
}

weftStatus_t kernel_compile(struct cuda_kernel *kernel, const struct device *device,
                            const struct carried_codes *carried) {
    struct program_header headers[DEVICE_FILES_MAX];
    uint8_t headers_digest[32];
    char name[64], arch[16];
    /* Named for its entry, which compiler messages and dumps show. */
    snprintf(name, sizeof name, "%s.cu", kernel->entry);
    device_arch(arch, device);
    struct program program = {.name = name,
                              .text = kernel->program,
                              .header_count = kernel_headers(headers, headers_digest, kernel->program),
                              .headers = headers,
                              .headers_digest = headers_digest,
                              .option_count = sizeof options / sizeof *options,
                              .options = options};
    /* By what goes in and the architecture, not by the compiler: a plan saved elsewhere finds its code again. */
    cache_identify(kernel->identity, &program, arch);
    program.identity = kernel->identity;
    const struct carried_code *found = find_carried(carried, kernel->identity);
    kernel->is_carried = found != NULL;
    return found ? cache_adopt(&kernel->code, name, found->image, found->bytes, found->is_ptx)
                 : cache_get(&kernel->code, &program, arch);
}

/* ---- In parallel ------------------------------------------------------------------------------------------------- */

/* What threads share. `next` is the one thing they contend for: all else is read only, or belongs to kernel i, which
   one thread takes. */
struct compilation {
    const struct device *device;
    const struct carried_codes *carried;
    int count;
    struct cuda_kernel **kernels;
    atomic_int next;
    pthread_mutex_t lock; /* guards the two below */
    weftStatus_t status;  /* of the first failure; its text, as each thread has its own */
    char text[STATUS_TEXT_BYTES];
};

/* The first failure is kept: those of other threads are mostly the same. */
static void note_failure(struct compilation *all, weftStatus_t status) {
    pthread_mutex_lock(&all->lock);
    if (!all->status) {
        all->status = status;
        snprintf(all->text, sizeof all->text, "%s", status_text());
    }
    atomic_store(&all->next, all->count); /* nothing more is begun */
    pthread_mutex_unlock(&all->lock);
}

/* Of each thread: programs until none is left. */
static void *work(void *compilation) {
    struct compilation *all = compilation;
    int i;
    /* Programs differ tenfold in time, so threads take the next one when they are free. */
    while ((i = atomic_fetch_add(&all->next, 1)) < all->count) {
        weftStatus_t status = kernel_compile(all->kernels[i], all->device, all->carried);
        if (status)
            note_failure(all, status);
    }
    return NULL;
}

/* This thread works too; helpers that cannot be made are done without. */
static weftStatus_t compile_all(struct compilation *all) {
    pthread_t helpers[COMPILERS_MAX];
    int wanted = device_host_threads(), helper_count = 0;
    /* This thread is one of them: wanted - 1 helpers, none for one program. */
    wanted = wanted < all->count ? wanted : all->count;
    wanted = wanted < COMPILERS_MAX ? wanted : COMPILERS_MAX;
    pthread_mutex_init(&all->lock, NULL);
    while (helper_count < wanted - 1 && pthread_create(&helpers[helper_count], NULL, work, all) == 0)
        helper_count++;
    work(all);
    for (int i = 0; i < helper_count; i++)
        pthread_join(helpers[i], NULL);
    pthread_mutex_destroy(&all->lock);
    return all->status ? status_fail(all->status, "%s", all->text) : WEFT_STATUS_SUCCESS;
}

weftStatus_t cuda_compile(struct step *steps, int count, const struct device *device,
                          const struct carried_codes *carried) {
    /* On the heap for its size: a text of a few KiB. */
    struct compilation *all = calloc(1, sizeof *all);
    if (!all)
        return status_no_memory(sizeof *all);
    all->device = device;
    all->carried = carried;
    for (int s = 0; s < count; s++)
        all->count += ((struct cuda_step *)steps[s].state)->count;
    all->kernels = malloc(((size_t)all->count + 1) * sizeof *all->kernels);
    int filled = 0;
    for (int s = 0; s < count && all->kernels; s++) {
        struct cuda_step *state = steps[s].state;
        for (int i = 0; i < state->count; i++)
            all->kernels[filled++] = &state->kernels[i];
    }
    weftStatus_t status = all->kernels ? compile_all(all) : status_no_memory((size_t)all->count * sizeof *all->kernels);
    free(all->kernels);
    free(all);
    return status;
}

/* Static shared memory is known when a kernel is loaded (kernel_load), which has the same limit. */
weftStatus_t cuda_keeps(const struct step *step, const struct device *device) {
    const struct cuda_step *state = step->state;
    const struct cuda_properties *cuda = &device->cuda;
    const char *label = descriptor_label(region_node(&step->region, 0)->op);
    for (int i = 0; i < state->count; i++) {
        const struct cuda_kernel *kernel = &state->kernels[i];
        if (kernel->cluster > 1 && (int)kernel->cluster > cuda->cluster_most)
            FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: %s has clusters of %u blocks, the limit is %d", label, kernel->entry,
                 kernel->cluster, cuda->cluster_most);
        if ((int)kernel->shared_bytes > cuda->shared_per_block)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
                 "%s: %s takes %u bytes of shared memory for a block, the limit is %d", label, kernel->entry,
                 kernel->shared_bytes, cuda->shared_per_block);
    }
    return WEFT_STATUS_SUCCESS;
}

/* The image belongs to the kernel's code, which the plan holds: the caller copies it before the plan goes. */
bool cuda_code(const struct step *step, int i, struct carried_code *code) {
    const struct cuda_step *state = step->state;
    if (i >= state->count)
        return false;
    const struct cuda_kernel *kernel = &state->kernels[i];
    memcpy(code->identity, kernel->identity, sizeof code->identity);
    code->image = kernel->code->image;
    code->bytes = kernel->code->bytes;
    code->is_ptx = kernel->code->is_ptx;
    return true;
}
