/* SPDX-License-Identifier: Apache-2.0 */
/* A list of freed blocks under a lock, oldest first. A block is only reused by the stream that freed it: work on a
   stream runs in order, so nothing has to wait. */
#include "runtime/stream_alloc.h"
#include "runtime/launch.h"

#include <string.h>

enum {
    STEP_BYTES = 512,
    STEPS_MIN = 8 /* minimum number of steps in a block, so that rounding adds at most an eighth */
};

void stream_alloc_init(struct stream_allocator *allocator, size_t bytes_max) {
    /* Allocates nothing before the first block is freed. */
    *allocator = (struct stream_allocator){.bytes_max = bytes_max};
    pthread_mutex_init(&allocator->lock, NULL);
}

/* Rounds sizes so that few different ones occur and blocks can be reused for slightly different requests. */
static size_t block_bytes(size_t bytes) {
    size_t step = STEP_BYTES;
    /* The step grows with the size: a block has 8 to 16 steps. */
    while (bytes / STEPS_MIN / 2 >= step)
        step *= 2;
    return bytes > SIZE_MAX - step ? bytes : (bytes + step - 1) / step * step;
}

/* Removes block i from the list, whose order is kept. The caller owns its memory. */
static uint64_t remove_block(struct stream_allocator *allocator, int i) {
    uint64_t address = allocator->blocks[i].address;
    allocator->bytes -= allocator->blocks[i].bytes;
    allocator->count--;
    memmove(&allocator->blocks[i], &allocator->blocks[i + 1],
            (size_t)(allocator->count - i) * sizeof allocator->blocks[0]);
    return address;
}

/* The driver's id of a stream, which is never reused, while its address may be. 0 for the default streams, which are
   never destroyed, and for drivers that do not report ids. */
static weftStatus_t find_stream_id(uint64_t *id, const struct driver *driver, weftStream_t stream) {
    *id = 0;
    if (!driver->stream_get_id || (uintptr_t)stream <= (uintptr_t)CUDA_STREAM_PER_THREAD)
        return WEFT_STATUS_SUCCESS;
    int result = driver->stream_get_id(stream, id);
    return result ? driver_fail(result, "querying the id of a stream") : WEFT_STATUS_SUCCESS;
}

/* Returns the blocks cached for a stream address to the driver, which waits for the work on them. Iterates backwards,
   because removing a block moves the ones after it. */
static void free_blocks_of(struct stream_allocator *allocator, const struct driver *driver, weftStream_t stream) {
    for (int i = allocator->count - 1; i >= 0; i--)
        if (allocator->blocks[i].stream == stream)
            memory_free(driver, remove_block(allocator, i));
}

/* Index in allocator->streams (at most 16), or -1. */
static int find_stream(const struct stream_allocator *allocator, weftStream_t stream) {
    int i = allocator->stream_count - 1;
    while (i >= 0 && allocator->streams[i].stream != stream)
        i--;
    return i;
}

/* Makes sure that the blocks cached under a stream's address belong to this stream. If the address was reused by a new
   stream, work on the old one may still use its blocks, so they are returned to the driver. When the table is full,
   entries are replaced round-robin. */
static void track_stream(struct stream_allocator *allocator, const struct driver *driver, weftStream_t stream,
                         uint64_t id) {
    int i = find_stream(allocator, stream);
    if (i >= 0 && allocator->streams[i].id == id)
        return;
    bool is_new = i < 0 && allocator->stream_count < TRACKED_STREAMS_MAX;
    if (is_new)
        i = allocator->stream_count++;
    else if (i < 0)
        i = allocator->next_replaced++ % TRACKED_STREAMS_MAX;
    if (!is_new)
        free_blocks_of(allocator, driver, allocator->streams[i].stream);
    allocator->streams[i].stream = stream;
    allocator->streams[i].id = id;
}

/* Takes the most recently freed block that fits, because it may still be in L2; 0 if none fits. */
static uint64_t take_cached_block(struct stream_allocator *allocator, const struct driver *driver, size_t bytes,
                                  weftStream_t stream, uint64_t id) {
    uint64_t address = 0;
    pthread_mutex_lock(&allocator->lock);
    track_stream(allocator, driver, stream, id);
    for (int i = allocator->count - 1; i >= 0 && !address; i--)
        if (allocator->blocks[i].bytes == bytes && allocator->blocks[i].stream == stream)
            address = remove_block(allocator, i);
    pthread_mutex_unlock(&allocator->lock);
    return address;
}

/* Blocks are matched by their rounded size. */
weftStatus_t stream_alloc_get(uint64_t *address, struct stream_allocator *allocator, const struct driver *driver,
                              size_t bytes, weftStream_t stream) {
    int capture = 0, result = driver->stream_is_capturing(stream, &capture);
    *address = 0;
    /* A captured CUDA graph would use the block at every replay, when it may have been reused. */
    if (result || capture)
        return driver_fail(result ? result : CUDA_CAPTURE_UNSUPPORTED, "allocating %zu bytes for a stream", bytes);
    uint64_t id;
    TRY(find_stream_id(&id, driver, stream));
    size_t rounded = block_bytes(bytes);
    *address = take_cached_block(allocator, driver, rounded, stream, id);
    /* Outside the lock, because the driver may take long. */
    return *address ? WEFT_STATUS_SUCCESS : memory_make(address, driver, rounded);
}

void stream_alloc_free(struct stream_allocator *allocator, const struct driver *driver, uint64_t address, size_t bytes,
                       weftStream_t stream) {
    size_t rounded = block_bytes(bytes);
    /* Each thread has its own default stream under this one name. bytes_max = 0 disables caching. */
    bool is_cached = stream != CUDA_STREAM_PER_THREAD && rounded <= allocator->bytes_max;
    pthread_mutex_lock(&allocator->lock);
    /* A stream that is not in the table has no id that distinguishes it from a later stream at the same address. */
    is_cached = is_cached && find_stream(allocator, stream) >= 0;
    /* Evict the oldest blocks. `rounded` is at most bytes_max, so the difference does not wrap. */
    while (is_cached && (allocator->count == CACHED_BLOCKS_MAX || allocator->bytes > allocator->bytes_max - rounded))
        memory_free(driver, remove_block(allocator, 0));
    if (is_cached) {
        allocator->blocks[allocator->count].address = address;
        allocator->blocks[allocator->count].bytes = rounded;
        allocator->blocks[allocator->count++].stream = stream;
        allocator->bytes += rounded;
    }
    pthread_mutex_unlock(&allocator->lock);
    /* cuMemFree waits until the device has finished with the memory. */
    if (!is_cached)
        memory_free(driver, address);
}

/* Called when a handle is destroyed, and before an allocation is retried when device memory is exhausted. */
bool stream_alloc_trim(struct stream_allocator *allocator, const struct driver *driver) {
    pthread_mutex_lock(&allocator->lock);
    bool had_blocks = allocator->count > 0;
    while (allocator->count)
        memory_free(driver, remove_block(allocator, allocator->count - 1));
    pthread_mutex_unlock(&allocator->lock);
    return had_blocks;
}
