/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered allocator: caches a few freed blocks of device memory, each for the stream on which its last work was
   enqueued. That stream can reuse the block at once, because its work runs in order; the driver needs tens of
   microseconds per allocation, and freeing waits for the device. Each handle has an allocator, which threads may share.
   The device must be entered. */
#ifndef WEFT_RUNTIME_STREAM_ALLOC_H
#define WEFT_RUNTIME_STREAM_ALLOC_H

#include "runtime/driver.h"
#include "weft/weft.h"
#include <pthread.h>

enum { CACHED_BLOCKS_MAX = 64, TRACKED_STREAMS_MAX = 16 };

struct stream_allocator {
    pthread_mutex_t lock;
    size_t bytes_max; /* limit of `bytes` */
    size_t bytes;     /* size of the cached blocks */
    int count;
    struct {
        uint64_t address;
        size_t bytes;
        weftStream_t stream;
    } blocks[CACHED_BLOCKS_MAX]; /* in the order in which they were freed */
    struct {
        weftStream_t stream;
        uint64_t id;
    } streams[TRACKED_STREAMS_MAX]; /* as seen by stream_alloc_get; blocks are only cached for these streams */
    int stream_count;
    unsigned next_replaced; /* the entry to replace next when the table is full */
};

void stream_alloc_init(struct stream_allocator *allocator, size_t bytes_max);

/* Allocates at least this many bytes: a cached block of the stream, or memory of the driver. Fails as memory_make does,
   and while the stream is captured, because others would reuse the memory while the captured graph still uses it. */
weftStatus_t stream_alloc_get(uint64_t *address, struct stream_allocator *allocator, const struct driver *driver,
                              size_t bytes, weftStream_t stream);

/* Frees memory of stream_alloc_get; `bytes` is the requested size, and all work on the memory is on the stream. The
   stream itself is not accessed: it may have been destroyed. Blocks beyond the limits are returned to the driver. */
void stream_alloc_free(struct stream_allocator *allocator, const struct driver *driver, uint64_t address, size_t bytes,
                       weftStream_t stream);

/* Returns all cached blocks to the driver. True if there were any. */
bool stream_alloc_trim(struct stream_allocator *allocator, const struct driver *driver);

#endif
