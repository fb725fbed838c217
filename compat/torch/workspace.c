/* SPDX-License-Identifier: Apache-2.0 */
#include "torch/workspace.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* frees the memory when a thread ends */
static bool has_key;
static _Thread_local void *memory;
static _Thread_local size_t capacity;

static void make_key(void) { has_key = !pthread_key_create(&key, free); }

/* Without a key, memory would leak with each thread. */
static void *grow(size_t bytes) {
    pthread_once(&once, make_key);
    free(memory);
    size_t aligned_bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    memory = has_key && aligned_bytes >= bytes ? aligned_alloc(ALIGNMENT, aligned_bytes) : NULL;
    if (memory && pthread_setspecific(key, memory)) {
        free(memory);
        memory = NULL;
    }
    if (!memory && has_key)
        pthread_setspecific(key, NULL); /* it may be the old memory, which was freed */
    capacity = memory ? aligned_bytes : 0;
    return memory;
}

void *workspace_of_thread(size_t bytes) { return bytes <= capacity && memory ? memory : grow(bytes); }
