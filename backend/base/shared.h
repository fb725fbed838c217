/* SPDX-License-Identifier: Apache-2.0 */
/* The head of a reference-counted object of any type: the last release frees it. */
#ifndef WEFT_BASE_SHARED_H
#define WEFT_BASE_SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { SHARED_MAGIC = 0x57454653 };

struct shared {
    uint32_t magic;
    atomic_int holders;
    void (*free)(struct shared *);
};

static inline void shared_init(struct shared *shared, void (*free)(struct shared *)) {
    shared->magic = SHARED_MAGIC;
    atomic_init(&shared->holders, 1);
    shared->free = free;
}

/* Both allow NULL. */
static inline struct shared *shared_retain(struct shared *shared) {
    if (shared)
        atomic_fetch_add_explicit(&shared->holders, 1, memory_order_relaxed);
    return shared;
}

static inline void shared_release(struct shared *shared) {
    if (shared && atomic_fetch_sub_explicit(&shared->holders, 1, memory_order_acq_rel) == 1)
        shared->free(shared);
}

#endif
