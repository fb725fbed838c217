/* SPDX-License-Identifier: Apache-2.0 */
/* Race detection: checks that accesses to shared memory are ordered, independently of the schedule that was run. Every
   warp has a vector clock with the latest time of each warp of its cluster that it has synchronized with. Barriers
   propagate clocks. For every 4 bytes of shared memory, the last write and one of the last reads are recorded; any
   later conflicting access must be ordered after them. Lanes of a warp are ordered with each other. Between writes by
   threads and reads of the same data by a product or the copy engine, a fence is required; the same holds between reads
   by threads and writes by the copy engine. Without it, the access may still be in flight. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

enum { GRAIN = 4, CHUNK = 16, FLAG_CLOCKS = 64 };

/* The recorded accesses of a granule. Clock 0 means never. */
struct access {
    uint32_t write_clock, read_clock, write_line, read_line;
    uint16_t writer, reader;
    /* The fence count that must follow stores (relaxed or not) and loads by threads; 0: no fence needed. */
    uint16_t storer;
    uint32_t store_line, store_fence, load_fence;
};

/* The clocks that a barrier in shared memory propagates: those of the current phase, and of the previous one. */
struct barrier_clock {
    struct barrier_clock *next;
    uint32_t address;
    uint32_t *gathered, *told;
};

static void *zeroed(size_t count, size_t bytes) {
    void *memory = calloc(count + 1, bytes);
    if (!memory)
        abort();
    return memory;
}

static void join(const struct cluster *cluster, uint32_t *to, const uint32_t *from) {
    for (int k = 0; k < cluster->warp_count; k++)
        to[k] = to[k] > from[k] ? to[k] : from[k];
}

void order_begin(struct cluster *cluster) {
    size_t warps = (size_t)cluster->warp_count;
    cluster->gathered = zeroed(warps, sizeof(uint32_t));
    cluster->told = zeroed(warps, sizeof(uint32_t));
    cluster->flags = zeroed(warps * FLAG_CLOCKS, sizeof(uint32_t));
    for (int b = 0; b < cluster->block_count; b++) {
        struct block *block = &cluster->blocks[b];
        block->accesses = zeroed(block->shared_bytes / GRAIN + 1, sizeof *block->accesses);
        block->gathered = zeroed(warps * NAMED_BARRIERS, sizeof(uint32_t));
        for (int k = 0; k < block->warp_count; k++) {
            struct warp *w = &block->warps[k];
            w->number = (uint16_t)(b * block->warp_count + k);
            w->clock = zeroed(warps, sizeof(uint32_t));
            w->clock[w->number] = 1;
        }
    }
}

void order_end(struct cluster *cluster) {
    free(cluster->gathered);
    free(cluster->told);
    free(cluster->flags);
    for (int b = 0; b < cluster->block_count; b++) {
        struct block *block = &cluster->blocks[b];
        free(block->accesses);
        free(block->gathered);
        for (int k = 0; k < block->warp_count; k++)
            free(block->warps[k].clock);
        while (block->barrier_clocks) {
            struct barrier_clock *first = block->barrier_clocks;
            block->barrier_clocks = first->next;
            free(first->gathered);
            free(first->told);
            free(first);
        }
    }
}

/* ---- Propagation of clocks --------------------------------------------------------------------------------------- */

static void release(struct warp *w, uint32_t *to) {
    join(w->block->cluster, to, w->clock);
    w->clock[w->number]++;
}

static void acquire(struct warp *w, const uint32_t *from) { join(w->block->cluster, w->clock, from); }

static uint32_t *gathered_at(struct block *block, int id) { return block->gathered + id * block->cluster->warp_count; }

void order_arrive(struct warp *w, int id) { release(w, gathered_at(w->block, id)); }

void order_leave(struct warp *w, int id) { acquire(w, gathered_at(w->block, id)); }

void order_reset(struct block *block, int id) {
    memset(gathered_at(block, id), 0, (size_t)block->cluster->warp_count * sizeof(uint32_t));
}

void order_arrive_cluster(struct warp *w) { release(w, w->block->cluster->gathered); }

void order_leave_cluster(struct warp *w) { acquire(w, w->block->cluster->told); }

void order_tell_cluster(struct cluster *cluster) {
    memcpy(cluster->told, cluster->gathered, (size_t)cluster->warp_count * sizeof(uint32_t));
}

static struct barrier_clock *clock_at(struct block *block, uint32_t address) {
    struct barrier_clock *found = block->barrier_clocks;
    while (found && found->address != address)
        found = found->next;
    if (found)
        return found;
    size_t warps = (size_t)block->cluster->warp_count;
    found = zeroed(1, sizeof *found);
    *found = (struct barrier_clock){block->barrier_clocks, address, zeroed(warps, sizeof(uint32_t)),
                                    zeroed(warps, sizeof(uint32_t))};
    return block->barrier_clocks = found;
}

void order_arrive_at(struct warp *w, struct block *block, uint32_t address) {
    release(w, clock_at(block, address)->gathered);
}

void order_land_at(const uint32_t *clock, struct block *block, uint32_t address) {
    join(block->cluster, clock_at(block, address)->gathered, clock);
}

void order_end_phase(struct block *block, uint32_t address) {
    struct barrier_clock *clock = clock_at(block, address);
    memcpy(clock->told, clock->gathered, (size_t)block->cluster->warp_count * sizeof(uint32_t));
}

void order_pass(struct warp *w, uint32_t address) { acquire(w, clock_at(w->block, address)->told); }

/* Flags that share a clock may propagate more than necessary, but never less. */
void order_flag(struct warp *w, uint64_t address, bool reads, bool writes) {
    uint32_t *flag = w->block->cluster->flags + (address >> 2) % FLAG_CLOCKS * (uint64_t)w->block->cluster->warp_count;
    if (reads)
        acquire(w, flag);
    if (writes)
        release(w, flag);
}

/* Warps that start a product together are synchronized with each other, and their reads count as one access. */
void order_meet(struct warp *first, int count) {
    for (int k = 1; k < count; k++) {
        acquire(first, first[k].clock);
        first->last_fence = first->last_fence > first[k].last_fence ? first->last_fence : first[k].last_fence;
    }
    for (int k = 1; k < count; k++) {
        acquire(&first[k], first->clock);
        first[k].last_fence = first->last_fence;
    }
}

void order_part(struct warp *first, int count) {
    for (int k = 0; k < count; k++)
        first[k].clock[first[k].number]++;
}

uint32_t *order_copy_clock(struct warp *w) {
    uint32_t *copy = zeroed((size_t)w->block->cluster->warp_count, sizeof *copy);
    memcpy(copy, w->clock, (size_t)w->block->cluster->warp_count * sizeof *copy);
    w->clock[w->number]++;
    return copy;
}

void order_fence(struct warp *w) { w->last_fence = ++machine->fences; }

/* ---- Accesses ---------------------------------------------------------------------------------------------------- */

static void fail(const struct warp *w, const struct block *block, uint32_t address, const char *does, uint16_t other,
                 const char *did, uint32_t line) __attribute__((noreturn));
static void fail(const struct warp *w, const struct block *block, uint32_t address, const char *does, uint16_t other,
                 const char *did, uint32_t line) {
    machine_fail(w, "%s shared address %u of block %u, which warp %d of block %d %s at line %u: nothing orders the two",
                 does, address, block->rank, other % block->warp_count, other / block->warp_count, did, line);
}

static bool knows(const struct warp *w, uint16_t other, uint32_t clock) { return clock <= w->clock[other]; }

static const struct warp *warp_of(const struct block *block, uint16_t number) {
    return &block->cluster->blocks[number / block->warp_count].warps[number % block->warp_count];
}

/* True if neither of two warps has executed a required fence. */
static bool lacks_fence(const struct warp *w, const struct warp *other, uint32_t needed) {
    return other->last_fence < needed && w->last_fence < needed;
}

static uint32_t next_fence(void) { return machine->fences + 1; }

static void read_access(struct warp *w, struct block *block, uint32_t address, uint32_t line, uint32_t fence) {
    if (address % GRAIN)
        return;
    struct access *last = &block->accesses[address / GRAIN];
    if (!knows(w, last->writer, last->write_clock))
        fail(w, block, address, "reads", last->writer, "wrote", last->write_line);
    /* If several warps read concurrently, any one of them is recorded. */
    if (!knows(w, last->reader, last->read_clock) && (address / GRAIN + w->number) % 2)
        return;
    last->reader = w->number;
    last->read_clock = w->clock[w->number];
    last->read_line = line;
    last->load_fence = fence;
}

void order_read(struct warp *w, struct block *block, uint32_t address, uint32_t line) {
    read_access(w, block, address, line, next_fence());
}

static void write_access(struct warp *w, struct block *block, uint32_t address, uint32_t line, uint32_t fence) {
    if (address % GRAIN)
        return;
    struct access *last = &block->accesses[address / GRAIN];
    if (!knows(w, last->writer, last->write_clock))
        fail(w, block, address, "writes", last->writer, "wrote", last->write_line);
    if (!knows(w, last->reader, last->read_clock))
        fail(w, block, address, "writes", last->reader, "read", last->read_line);
    last->writer = w->number;
    last->write_clock = w->clock[w->number];
    last->write_line = last->store_line = line;
    last->storer = w->number;
    last->store_fence = fence;
}

void order_write(struct warp *w, struct block *block, uint32_t address, uint32_t line) {
    write_access(w, block, address, line, next_fence());
}

void order_relaxed_write(struct warp *w, struct block *block, uint32_t address, uint32_t line) {
    struct access *last = &block->accesses[address / GRAIN];
    last->storer = w->number;
    last->store_line = line;
    last->store_fence = next_fence();
}

void order_sent_write(struct warp *w, struct block *block, uint32_t address, uint32_t bytes, uint32_t line) {
    for (uint32_t at = 0; at < bytes; at += CHUNK)
        write_access(w, block, address + at, line, 0);
}

void order_engine_write(struct warp *w, struct block *block, uint32_t address, uint32_t bytes, uint32_t line) {
    order_sent_write(w, block, address, bytes, line);
    for (uint32_t at = address; at < address + bytes; at += CHUNK) {
        const struct access *last = &block->accesses[at / GRAIN];
        const struct warp *reader = warp_of(block, last->reader);
        if (lacks_fence(w, reader, last->load_fence))
            machine_fail(w,
                         "copies to shared address %u, which warp %d of block %u read at line %u, without "
                         "fence.proxy.async",
                         at, reader->index, reader->block->rank, last->read_line);
    }
}

void order_engine_read(struct warp *w, struct block *block, uint32_t address, uint32_t line) {
    const struct access *last = &block->accesses[address / GRAIN];
    const struct warp *storer = warp_of(block, last->storer);
    read_access(w, block, address, line, 0);
    if (lacks_fence(w, storer, last->store_fence))
        machine_fail(w,
                     "reads shared address %u, which warp %d of block %u wrote at line %u, without fence.proxy.async",
                     address, storer->index, storer->block->rank, last->store_line);
}
