/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of a constant operand (weftFreeze), packed once for one address. Executions with another address pack for
   themselves. */
#ifndef WEFT_ENGINES_CPU_PREPACKED_H
#define WEFT_ENGINES_CPU_PREPACKED_H

#include "weft/weft.h"

#include <stdint.h>

/* Zero-initialized: nothing is cached. */
struct prepacked {
    void *panels;   /* aligned to a cache line */
    const void *of; /* address of the operand that was packed */
};

/* Allocates panels for the operand at an address, which the caller then packs; frees the previous panels. */
weftStatus_t prepacked_alloc(struct prepacked *prepacked, const void *of, int64_t bytes);
void prepacked_free(struct prepacked *prepacked);

/* The panels of the operand at an address, or NULL if they are not cached. */
static inline const void *prepacked_find(const struct prepacked *prepacked, const void *address) {
    return prepacked->of == address ? prepacked->panels : NULL;
}

#endif
