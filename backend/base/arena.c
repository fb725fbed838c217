/* SPDX-License-Identifier: Apache-2.0 */
/* A list of blocks, newest first; small requests share a block, large ones get their own. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* BLOCK_BYTES: enough for most tensors and operations and a name. Each further block is twice as large as the previous
   one, up to MOST_BYTES. ALIGNMENT: of every result; sufficient for any C type except vectors wider than 16 bytes. */
enum { BLOCK_BYTES = 256, MOST_BYTES = 64 << 10, ALIGNMENT = 16 };

/* One allocation. Only the newest block has space for further requests. */
struct arena_block {
    struct arena_block *next;
    /* Both are in bytes and multiples of ALIGNMENT. */
    size_t used, capacity;
    alignas(ALIGNMENT) unsigned char bytes[];
};

/* Size in bytes of the block after `last` (NULL: the first). Doubling keeps the number of blocks low; the limit keeps
   unused space below MOST_BYTES. */
static size_t next_capacity(const struct arena_block *last, size_t need) {
    size_t usual = !last ? BLOCK_BYTES : last->capacity < MOST_BYTES / 2 ? 2 * last->capacity : MOST_BYTES;
    return need > usual ? need : usual;
}

weftStatus_t arena_alloc(struct arena *arena, void *out, size_t bytes) {
    /* Rounding up and adding the header must not overflow. */
    if (bytes > SIZE_MAX / 2)
        return status_no_memory(bytes);
    size_t need = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct arena_block *block = arena->blocks;
    /* The rest of the previous block is not used. */
    if (!block || block->capacity - block->used < need) {
        size_t capacity = next_capacity(block, need);
        /* calloc, because callers rely on zeros, and blocks are never reused. */
        block = calloc(1, sizeof *block + capacity);
        if (!block)
            return status_no_memory(capacity);
        block->capacity = capacity;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    /* calloc and the flexible array are aligned to 16, and every request is rounded up to 16, so every result is
       aligned. */
    void *result = block->bytes + block->used;
    block->used += need;
    /* `out` is a pointer to a pointer of any type: memcpy stores to it without violating aliasing rules. */
    memcpy(out, &result, sizeof result);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t arena_copy(struct arena *arena, void *out, const void *source, size_t bytes) {
    void *copy = NULL;
    TRY(arena_alloc(arena, &copy, bytes));
    /* `source` may be NULL if there is nothing to copy, which memcpy does not permit. */
    if (bytes)
        memcpy(copy, source, bytes);
    memcpy(out, &copy, sizeof copy);
    return WEFT_STATUS_SUCCESS;
}

/* The text with its terminating zero. If printf rejects the format, the result is an empty string and not an error. */
weftStatus_t arena_print(struct arena *arena, const char **out, const char *format, ...) {
    /* A va_list can be read only once: one is for the length, one for the text. */
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *chars = NULL;
    weftStatus_t status = arena_alloc(arena, &chars, (size_t)(length < 0 ? 0 : length) + 1);
    if (status == WEFT_STATUS_SUCCESS)
        vsnprintf(chars, (size_t)(length < 0 ? 0 : length) + 1, format, again);
    va_end(again);
    *out = chars;
    return status;
}

/* Independent of the size of the blocks, and linear in the number of blocks of `from`, which is empty afterwards. */
void arena_join(struct arena *arena, struct arena *from) {
    /* Inserted after the newest block, which still has space. */
    struct arena_block **at = arena->blocks ? &arena->blocks->next : &arena->blocks, *rest = *at;
    *at = from->blocks;
    while (*at)
        at = &(*at)->next;
    *at = rest;
    from->blocks = NULL;
}

/* Leaves an empty arena, which may be used again. */
void arena_free(struct arena *arena) {
    for (struct arena_block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    arena->blocks = NULL;
}
