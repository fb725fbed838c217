/* SPDX-License-Identifier: Apache-2.0 */
/* A list of blocks, newest first; small requests share a block, large ones get their own. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 2048, ALIGNMENT = 16 };

struct arena_block {
    struct arena_block *next;
    size_t used, capacity;
    alignas(ALIGNMENT) unsigned char bytes[];
};

weftStatus_t arena_alloc(struct arena *arena, void *out, size_t bytes) {
    if (bytes > SIZE_MAX / 2)
        return status_no_memory(bytes);
    size_t need = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct arena_block *block = arena->blocks;
    if (!block || block->capacity - block->used < need) {
        size_t capacity = need > BLOCK_BYTES ? need : BLOCK_BYTES;
        block = calloc(1, sizeof *block + capacity);
        if (!block)
            return status_no_memory(capacity);
        block->capacity = capacity;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    void *result = block->bytes + block->used;
    block->used += need;
    memcpy(out, &result, sizeof result);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t arena_copy(struct arena *arena, void *out, const void *source, size_t bytes) {
    void *copy = NULL;
    TRY(arena_alloc(arena, &copy, bytes));
    if (bytes)
        memcpy(copy, source, bytes);
    memcpy(out, &copy, sizeof copy);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t arena_print(struct arena *arena, const char **out, const char *format, ...) {
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

void arena_free(struct arena *arena) {
    for (struct arena_block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    arena->blocks = NULL;
}
