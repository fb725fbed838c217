/* SPDX-License-Identifier: Apache-2.0 */
/* A list of freed blocks under a lock, oldest first. A block goes to the stream that freed it alone: work on it is in
   order there, so nobody has to wait. */
#include "runtime/pool.h"
#include "runtime/launch.h"

#include <string.h>

enum { STEP_BYTES = 512, STEPS = 8 /* at least, in a block: no more than an eighth is beyond what was asked for */ };

void pool_init(struct pool *pool, size_t bytes_max) {
    /* A zeroed struct and a mutex; nothing is allocated before memory is given back. */
    *pool = (struct pool){.bytes_max = bytes_max};
    pthread_mutex_init(&pool->lock, NULL);
}

/* Blocks are of few sizes, so that one fits again where another size is asked for. */
static size_t block_bytes(size_t bytes) {
    size_t step = STEP_BYTES;
    /* Steps grow with the size: 8 to 16 of them make a block. */
    while (bytes / STEPS / 2 >= step)
        step *= 2;
    return bytes > SIZE_MAX - step ? bytes : (bytes + step - 1) / step * step;
}

/* Takes block i off the list, in its order; its memory is the caller's now. */
static uint64_t remove_block(struct pool *pool, int i) {
    uint64_t address = pool->blocks[i].address;
    pool->bytes -= pool->blocks[i].bytes;
    pool->count--;
    memmove(&pool->blocks[i], &pool->blocks[i + 1], (size_t)(pool->count - i) * sizeof pool->blocks[0]);
    return address;
}

/* The driver's number of a stream: no other gets it, though another may come to have the address. 0 for the default
   streams, which stay, and where the driver does not say. */
static weftStatus_t stream_number(uint64_t *number, const struct driver *driver, weftStream_t stream) {
    *number = 0;
    if (!driver->stream_get_id || (uintptr_t)stream <= (uintptr_t)CUDA_STREAM_PER_THREAD)
        return WEFT_STATUS_SUCCESS;
    int result = driver->stream_get_id(stream, number);
    return result ? driver_fail(result, "asking for the number of a stream") : WEFT_STATUS_SUCCESS;
}

/* Gives what is kept for the stream of an address back to the driver, which waits for the work on it. From the end:
   removing a block moves only those behind it. */
static void free_blocks_of(struct pool *pool, const struct driver *driver, weftStream_t stream) {
    for (int i = pool->count - 1; i >= 0; i--)
        if (pool->blocks[i].stream == stream)
            memory_free(driver, remove_block(pool, i));
}

/* Index in pool->streams, or -1. At most 16 of them. */
static int find_stream(const struct pool *pool, weftStream_t stream) {
    int i = pool->stream_count - 1;
    while (i >= 0 && pool->streams[i].stream != stream)
        i--;
    return i;
}

/* Makes sure that what is kept under a stream's address is the stream's own. A stream's address may be another stream's
   by now, and blocks of the old one may still be in use by work on it. Where the table is full, streams are forgotten
   in turn. */
static void meet_stream(struct pool *pool, const struct driver *driver, weftStream_t stream, uint64_t number) {
    int i = find_stream(pool, stream);
    if (i >= 0 && pool->streams[i].number == number)
        return;
    bool is_new = i < 0 && pool->stream_count < POOL_STREAMS_MAX;
    if (is_new)
        i = pool->stream_count++;
    else if (i < 0)
        i = pool->stream_turn++ % POOL_STREAMS_MAX;
    if (!is_new)
        free_blocks_of(pool, driver, pool->streams[i].stream);
    pool->streams[i].stream = stream;
    pool->streams[i].number = number;
}

/* The block that was freed last, for it may still lie in L2; 0: none fits. */
static uint64_t find_block(struct pool *pool, const struct driver *driver, size_t bytes, weftStream_t stream,
                           uint64_t number) {
    uint64_t found = 0;
    pthread_mutex_lock(&pool->lock);
    meet_stream(pool, driver, stream, number);
    for (int i = pool->count - 1; i >= 0 && !found; i--)
        if (pool->blocks[i].bytes == bytes && pool->blocks[i].stream == stream)
            found = remove_block(pool, i);
    pthread_mutex_unlock(&pool->lock);
    return found;
}

/* Blocks are compared by their rounded size, so that what was asked for slightly smaller fits. */
weftStatus_t pool_take(uint64_t *address, struct pool *pool, const struct driver *driver, size_t bytes,
                       weftStream_t stream) {
    int capture = 0, result = driver->stream_is_capturing(stream, &capture);
    *address = 0;
    /* A CUDA graph that is captured would use the block at every replay, when it may long be somebody else's. */
    if (result || capture)
        return driver_fail(result ? result : CUDA_CAPTURE_UNSUPPORTED, "allocating %zu bytes for a stream", bytes);
    uint64_t number;
    TRY(stream_number(&number, driver, stream));
    size_t whole = block_bytes(bytes);
    *address = find_block(pool, driver, whole, stream, number);
    /* Outside the lock: the driver may take long. */
    return *address ? WEFT_STATUS_SUCCESS : memory_make(address, driver, whole);
}

void pool_give(struct pool *pool, const struct driver *driver, uint64_t address, size_t bytes, weftStream_t stream) {
    size_t whole = block_bytes(bytes);
    /* The name of the default stream per thread means another stream in each. 0 bytes of bytes_max switch the pool
       off. */
    bool is_kept = stream != CUDA_STREAM_PER_THREAD && whole <= pool->bytes_max;
    pthread_mutex_lock(&pool->lock);
    /* A stream that pool_take has forgotten, or never met, has no number by which a later one could be told from it. */
    is_kept = is_kept && find_stream(pool, stream) >= 0;
    /* The block that was freed longest ago makes room. `whole` is at most bytes_max, so the difference does not
       wrap. */
    while (is_kept && (pool->count == POOL_BLOCKS_MAX || pool->bytes > pool->bytes_max - whole))
        memory_free(driver, remove_block(pool, 0));
    if (is_kept) {
        pool->blocks[pool->count].address = address;
        pool->blocks[pool->count].bytes = whole;
        pool->blocks[pool->count++].stream = stream;
        pool->bytes += whole;
    }
    pthread_mutex_unlock(&pool->lock);
    /* Frees when the device is done with the memory: cuMemFree waits by itself. */
    if (!is_kept)
        memory_free(driver, address);
}

/* Handles call it when they are destroyed, and whoever found the device's memory full, before trying again. */
bool pool_empty(struct pool *pool, const struct driver *driver) {
    pthread_mutex_lock(&pool->lock);
    bool was_kept = pool->count > 0;
    while (pool->count)
        memory_free(driver, remove_block(pool, pool->count - 1));
    pthread_mutex_unlock(&pool->lock);
    return was_kept;
}
