/* SPDX-License-Identifier: Apache-2.0 */
/* A list of blocks, newest first; small requests share a block, large ones get their own. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* BLOCK_BYTES: what most tensors and operations need, a name; each further block is twice as large as the one before,
   up to MOST_BYTES. ALIGNMENT: of every result; enough for any C type but vectors wider than 16 bytes. */
enum { BLOCK_BYTES = 256, MOST_BYTES = 64 << 10, ALIGNMENT = 16 };

/* One allocation. Blocks lie in no order of address; the newest is the only one that still gives room. */
struct arena_block {
    struct arena_block *next;
    /* In bytes, both multiples of ALIGNMENT. */
    size_t used, capacity;
    alignas(ALIGNMENT) unsigned char bytes[];
};

/* Bytes of the block after `last` (NULL: the first). Doubling keeps the allocations of a small arena few; the limit
   keeps what a large one leaves unused below MOST_BYTES. */
static size_t next_capacity(const struct arena_block *last, size_t need) {
    size_t usual = !last ? BLOCK_BYTES : last->capacity < MOST_BYTES / 2 ? 2 * last->capacity : MOST_BYTES;
    return need > usual ? need : usual;
}

weftStatus_t arena_alloc(struct arena *arena, void *out, size_t bytes) {
    /* Rounding up and the head of the block must not overflow. */
    if (bytes > SIZE_MAX / 2)
        return status_no_memory(bytes);
    size_t need = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct arena_block *block = arena->blocks;
    /* What is left of the block before is given up. */
    if (!block || block->capacity - block->used < need) {
        size_t capacity = next_capacity(block, need);
        /* calloc: callers count on zeros, and blocks are never used twice. */
        block = calloc(1, sizeof *block + capacity);
        if (!block)
            return status_no_memory(capacity);
        block->capacity = capacity;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    /* calloc and the flexible array both align to 16, and every request is rounded up to that: so is each result. */
    void *result = block->bytes + block->used;
    block->used += need;
    /* `out` is a pointer to a pointer of any type: copying its bytes is what C allows without aliasing trouble. */
    memcpy(out, &result, sizeof result);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t arena_copy(struct arena *arena, void *out, const void *source, size_t bytes) {
    void *copy = NULL;
    TRY(arena_alloc(arena, &copy, bytes));
    /* `source` may be NULL where there is nothing to copy; memcpy may not get it even then. */
    if (bytes)
        memcpy(copy, source, bytes);
    memcpy(out, &copy, sizeof copy);
    return WEFT_STATUS_SUCCESS;
}

/* The text with its zero. A format that printf refuses gives an empty string rather than an error. */
weftStatus_t arena_print(struct arena *arena, const char **out, const char *format, ...) {
    /* A va_list is read once: one for the length, one for the text. */
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

/* Takes constant time in what lies in the blocks, linear in the number of blocks of `from`, which is empty
   afterwards. */
void arena_join(struct arena *arena, struct arena *from) {
    /* Behind the newest block, in which there is room. */
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
