/* SPDX-License-Identifier: Apache-2.0 */
/* A few freed blocks of device memory, each kept for the stream that its last work is on. There it may be used again at
   once, since what comes next waits for what went before; asking the driver costs tens of microseconds, and giving
   memory back to it waits for the device. A pool belongs to a handle; threads may share it. The device must be
   entered. */
#ifndef WEFT_RUNTIME_POOL_H
#define WEFT_RUNTIME_POOL_H

#include "runtime/driver.h"
#include "weft/weft.h"
#include <pthread.h>

enum { POOL_BLOCKS_MAX = 64, POOL_STREAMS_MAX = 16 };

struct pool {
    pthread_mutex_t lock;
    size_t bytes_max; /* that it may keep */
    size_t bytes;     /* that it keeps */
    int count;
    struct {
        uint64_t address;
        size_t bytes;
        weftStream_t stream;
    } blocks[POOL_BLOCKS_MAX]; /* longest kept first */
    struct {
        weftStream_t stream;
        uint64_t number;
    } streams[POOL_STREAMS_MAX]; /* as pool_take last met them; blocks are kept for these alone */
    int stream_count;
    unsigned stream_turn; /* the next one to be forgotten */
};

void pool_init(struct pool *pool, size_t bytes_max);

/* Memory of this many bytes or a few more: a kept block of the stream, else the driver's. Fails as memory_make does,
   and while the stream is captured, for what it gave would come to be used by others while the graph still uses it. */
weftStatus_t pool_take(uint64_t *address, struct pool *pool, const struct driver *driver, size_t bytes,
                       weftStream_t stream);

/* Takes back what pool_take gave for this many bytes, all work on it being on the stream, which is not asked anything:
   it may be gone. Beyond its limits the pool gives blocks back to the driver. */
void pool_give(struct pool *pool, const struct driver *driver, uint64_t address, size_t bytes, weftStream_t stream);

/* Gives all blocks back to the driver; whether there were any. */
bool pool_empty(struct pool *pool, const struct driver *driver);

#endif
