/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles the programs of a plan's steps, several at a time: each takes tens to hundreds of milliseconds, and the
   compiler scales with threads. Nothing is loaded, so that plans for devices that are not present compile as well. */
#include "engines/cuda/core/kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPILERS_MAX = 8 }; /* each uses some hundred MiB while it runs */

/* Part of a program's identity. if constexpr and inline variables need C++17. No option trades exactness for speed, as
   fast math would. */
static const char *const options[] = {"-std=c++17"};

/* Linear search: a saved plan carries some dozen programs, each of which takes far longer to compile. */
static const struct aot_code *find_aot_code(const struct aot_codes *aot_codes, const uint8_t identity[32]) {
    for (int i = 0; aot_codes && i < aot_codes->count; i++)
        if (memcmp(aot_codes->items[i].identity, identity, 32) == 0)
            return &aot_codes->items[i];
    return NULL;
}

weftStatus_t kernel_compile(struct cuda_kernel *kernel, const struct device *device,
                            const struct aot_codes *aot_codes) {
    struct program_header headers[DEVICE_FILES_MAX];
    uint8_t headers_digest[32];
    char name[64], arch[16];
    /* Named after its entry, which compiler messages and dumps show. */
    snprintf(name, sizeof name, "%s.cu", kernel->entry);
    device_arch(arch, device);
    struct program program = {.name = name,
                              .text = kernel->program,
                              .header_count = kernel_headers(headers, headers_digest, kernel->program),
                              .headers = headers,
                              .headers_digest = headers_digest,
                              .option_count = sizeof options / sizeof *options,
                              .options = options};
    /* Identifies code by its inputs and the architecture, not by the compiler, so that a plan saved elsewhere finds its
       code. */
    cache_identify(kernel->identity, &program, arch);
    program.identity = kernel->identity;
    const struct aot_code *code = find_aot_code(aot_codes, kernel->identity);
    kernel->is_precompiled = code != NULL;
    return code ? cache_adopt(&kernel->code, name, code->image, code->bytes, code->is_ptx)
                : cache_get(&kernel->code, &program, arch);
}

/* ---- In parallel ------------------------------------------------------------------------------------------------- */

/* State shared by the threads. They contend only for `next`: everything else is read-only or belongs to kernel i, which
   only one thread compiles. */
struct compilation {
    const struct device *device;
    const struct aot_codes *aot_codes;
    int count;
    struct cuda_kernel **kernels;
    atomic_int next;
    pthread_mutex_t lock; /* guards the next two */
    weftStatus_t status;  /* status of the first failure, and its text, since each thread has its own */
    char text[STATUS_TEXT_BYTES];
};

/* Keeps the first failure: other threads mostly fail for the same reason. */
static void record_failure(struct compilation *all, weftStatus_t status) {
    pthread_mutex_lock(&all->lock);
    if (!all->status) {
        all->status = status;
        snprintf(all->text, sizeof all->text, "%s", status_text());
    }
    atomic_store(&all->next, all->count); /* no further compilation starts */
    pthread_mutex_unlock(&all->lock);
}

/* Thread function: compiles programs until none is left. */
static void *work(void *compilation) {
    struct compilation *all = compilation;
    int i;
    /* Compile times differ tenfold, so each thread takes the next program when it is free. */
    while ((i = atomic_fetch_add(&all->next, 1)) < all->count) {
        weftStatus_t status = kernel_compile(all->kernels[i], all->device, all->aot_codes);
        if (status)
            record_failure(all, status);
    }
    return NULL;
}

/* The calling thread works too; helpers that cannot be started are not needed. */
static weftStatus_t compile_all(struct compilation *all) {
    pthread_t helpers[COMPILERS_MAX];
    int wanted = device_host_threads(), helper_count = 0;
    /* The calling thread is one of them: wanted - 1 helpers, none for a single program. */
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
                          const struct aot_codes *aot_codes) {
    /* This is on the heap because it contains a text of a few KiB. */
    struct compilation *all = calloc(1, sizeof *all);
    if (!all)
        return status_no_memory(sizeof *all);
    all->device = device;
    all->aot_codes = aot_codes;
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

/* Static shared memory is known only when a kernel is loaded (kernel_load), which checks the same limit. */
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
                 "%s: %s needs %u bytes of shared memory per block, the limit is %d", label, kernel->entry,
                 kernel->shared_bytes, cuda->shared_per_block);
    }
    return WEFT_STATUS_SUCCESS;
}

/* The image belongs to the kernel's code, which the plan owns: the caller copies it before the plan is destroyed. */
bool cuda_code(const struct step *step, int i, struct aot_code *code) {
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
