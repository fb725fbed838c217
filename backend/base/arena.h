/* SPDX-License-Identifier: Apache-2.0 */
/* One owner for many allocations: everything a descriptor, graph or plan holds lives in its arena and dies with it. */
#ifndef WEFT_BASE_ARENA_H
#define WEFT_BASE_ARENA_H

#include "base/status.h"

struct arena {
    struct arena_block *blocks;
};

/* Gives `bytes` zeroed bytes aligned to 16 in *out; 0 bytes give a valid pointer. Fails only when the host is out of
   memory. A zeroed struct is an empty arena. */
weftStatus_t arena_alloc(struct arena *arena, void *out, size_t bytes);

/* Gives a copy of `bytes` bytes. */
weftStatus_t arena_copy(struct arena *arena, void *out, const void *source, size_t bytes);

/* Gives the printf text. */
weftStatus_t arena_print(struct arena *arena, const char **out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Gives all that lives in `from` to another arena; nothing moves. */
void arena_join(struct arena *arena, struct arena *from);

void arena_free(struct arena *arena);

#endif
