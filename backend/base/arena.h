/* SPDX-License-Identifier: Apache-2.0 */
/* Owns many allocations: everything that belongs to a descriptor, graph or plan is allocated in its arena and freed
   with it. */
#ifndef WEFT_BASE_ARENA_H
#define WEFT_BASE_ARENA_H

#include "base/status.h"

struct arena {
    struct arena_block *blocks;
};

/* Allocates `bytes` zeroed bytes aligned to 16; *out receives the address, which is valid even for 0 bytes. Fails only
   if the host is out of memory. A zeroed struct is an empty arena. */
weftStatus_t arena_alloc(struct arena *arena, void *out, size_t bytes);

/* Allocates a copy of `bytes` bytes. */
weftStatus_t arena_copy(struct arena *arena, void *out, const void *source, size_t bytes);

/* Allocates the text that printf would print. */
weftStatus_t arena_print(struct arena *arena, const char **out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Moves all allocations of `from` to another arena; addresses do not change. */
void arena_join(struct arena *arena, struct arena *from);

void arena_free(struct arena *arena);

#endif
