/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a GPU that a launch uses: clusters of blocks of warps, shared memory, barriers, and copies in flight.
   Everything that hardware leaves undefined is chosen at random from a seed: which warp runs and for how long, and when
   a copy completes. It must not depend on a driver. */
#ifndef WEFT_TESTS_EMULATOR_MACHINE_H
#define WEFT_TESTS_EMULATOR_MACHINE_H

#include "matrix.h"
#include "ptx.h"
#include "tensor_map.h"

#include <setjmp.h>

enum { NAMED_BARRIERS = 16, CLUSTER_MAX = 16, GROUP_WARPS = 4 };
enum { SHARED_ADDRESS_BITS = 24 }; /* bits above: 1 + rank of the block in its cluster, or 0 for the block itself */
enum { OWN_ADDRESS = (1 << SHARED_ADDRESS_BITS) - 1 };

/* A wgmma product in flight: its operands must not change until a warp waits for it. */
struct pending_product {
    struct matrix_product product;
    uint64_t digest;
    int group; /* sequence number of the commit that covers it */
    int line;
};

/* Four warps that execute a product together. */
struct warpgroup {
    struct matrix_product product;   /* under construction: each warp adds its registers */
    const struct instruction *joint; /* the instruction at which the warps meet */
    int met, committed[GROUP_WARPS];
    struct pending_product *pending;
    int pending_count, pending_room;
};

enum warp_state { WARP_READY, WARP_AT_BARRIER, WARP_AT_CLUSTER, WARP_AT_PRODUCT, WARP_POLLS, WARP_DONE };

/* cp.async of a lane: the copy to perform when the lane waits. */
struct lane_copy {
    uint32_t to;
    uint64_t from;
    int lane, group;
    uint8_t bytes, read; /* bytes beyond `read` are zero-filled */
};

struct warp {
    unsigned char *files[FILES];
    uint32_t *predicates;
    struct block *block;
    int index;
    enum warp_state state;
    uint32_t carry;          /* carry bit of each lane, from extended-precision arithmetic */
    uint32_t alive, stuck;   /* masks of lanes: not ended; waiting for other lanes of the warp */
    uint32_t places[LANES];  /* index of the next instruction of each lane */
    int waits_at;            /* the named barrier, or the address of the mbarrier */
    uint32_t waits_for;      /* the parity */
    uint32_t cluster_ticket; /* 2 plus the phase of the cluster at which it arrived */
    const struct instruction *now;
    unsigned char *local;
    uint32_t *clock; /* vector clock: latest time of each warp of the cluster that this warp has synchronized with */
    uint16_t number; /* in the cluster */
    uint32_t last_fence;
    int copy_group[LANES], store_group[LANES];
    struct lane_copy *copies;
    int copy_count, copy_room;
};

struct named_barrier {
    uint32_t arrived, count; /* threads; count 0: all threads of the block */
    uint32_t voted, agreed;  /* in bar.red */
};

struct block {
    struct cluster *cluster;
    uint32_t rank, index[3];
    unsigned char *shared;
    uint32_t shared_bytes;
    int warp_count, warps_alive;
    struct warp *warps;
    struct warpgroup *groups;
    struct named_barrier barriers[NAMED_BARRIERS];
    int copies_under_way; /* to or from its shared memory */
    struct access *accesses;
    struct barrier_clock *barrier_clocks;
    uint32_t *gathered; /* vector clocks of named barriers */
};

struct cluster {
    struct cluster *next;
    int block_count, blocks_alive;
    struct block *blocks;
    uint32_t threads_alive, arrived;
    uint32_t phase;
    int warp_count;
    uint32_t *gathered, *told, *flags; /* vector clocks: of the cluster barrier, and of flags in memory */
};

enum copy_kind { COPY_LOAD, COPY_STORE, COPY_BYTES };

/* A copy by the copy engine that is in flight. */
struct copy {
    struct copy *next;
    enum copy_kind kind;
    struct block *block;          /* owner of the shared memory and of the barrier */
    const struct tensor_map *map; /* NULL: plain bytes */
    int32_t coordinates[5];
    uint16_t offsets[3];
    uint32_t address, barrier, bytes;
    uint64_t global;
    uint8_t words[16]; /* st.async: the data to store */
    bool is_words;
    bool adds;               /* store: adds floats to the destination */
    unsigned char *taken;    /* store: data that has been read but not written yet */
    uint32_t *clock;         /* load: vector clock of the warp that began it */
    const struct warp *warp; /* store: the warp whose group it belongs to */
    int lane, group, line;
};

/* A range of device memory. */
struct memory_piece {
    uint64_t from, to;
    bool was_freed;
};

/* Finds the piece that contains an address, or the last one before it; returns false if no such piece exists. */
typedef bool memory_finder(uint64_t address, struct memory_piece *piece);

struct launch_shape {
    uint32_t grid[3], block[3], cluster[3], dynamic_shared_bytes;
};

struct machine {
    const struct module *module;
    const struct kernel *kernel;
    struct launch_shape shape;
    struct cluster *clusters; /* resident */
    struct copy *copies;
    uint64_t next_cluster, cluster_count;
    uint64_t random;
    uint64_t progress; /* counts every event that another warp could wait for */
    uint32_t fences;   /* fence.proxy.async, so far */
    memory_finder *find_memory;
    struct memory_piece known[4]; /* the most recently found pieces */
    int last_known;
    jmp_buf failed;
    char error[1024];
};

extern _Thread_local struct machine *machine; /* of the launch that runs on this thread */

/* Runs a launch to completion. On failure returns false and describes the cause and the location in `error`. */
bool machine_run(struct machine *run);

void machine_fail(const struct warp *warp, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
uint64_t machine_random(void);

/* Translates an address of a lane to the host's; fails if it is unmapped or misaligned. */
unsigned char *machine_memory(const struct warp *warp, int lane, enum ptx_space space, uint64_t address, size_t bytes);
unsigned char *machine_shared(const struct warp *warp, uint64_t address, size_t bytes);
struct block *machine_block_of(const struct warp *warp, uint64_t shared_address);
/* Wakes all warps that waited for a warp that has ended. */
void machine_leave(struct warp *warp);
void machine_add_copy(const struct copy *copy);
void machine_finish_copy(struct copy **at);
/* Reads the source of a store from shared memory, which may then be reused; the write happens later. */
void machine_take_source(struct copy *copy);

/* Barriers in shared memory. */
bool barrier_is_over(const struct warp *warp, const unsigned char *barrier, uint32_t parity);
void barrier_count(const struct warp *warp, struct block *block, uint32_t address, uint32_t arrivals,
                   int64_t expected_bytes);

/* Happens-before order: see order.c. A barrier merges the vector clocks of arriving warps and passes the result to the
   warps that it releases. */
void order_begin(struct cluster *cluster);
void order_end(struct cluster *cluster);
void order_arrive(struct warp *warp, int named_barrier);
void order_leave(struct warp *warp, int named_barrier);
void order_reset(struct block *block, int named_barrier);
void order_arrive_cluster(struct warp *warp);
void order_leave_cluster(struct warp *warp);
void order_tell_cluster(struct cluster *cluster);
void order_arrive_at(struct warp *warp, struct block *block, uint32_t barrier);
void order_land_at(const uint32_t *clock, struct block *block, uint32_t barrier);
void order_end_phase(struct block *block, uint32_t barrier);
void order_pass(struct warp *warp, uint32_t barrier);
void order_flag(struct warp *warp, uint64_t address, bool reads, bool writes);
void order_meet(struct warp *first, int count);
void order_part(struct warp *first, int count);
uint32_t *order_copy_clock(struct warp *warp);
void order_fence(struct warp *warp);
/* Accesses to shared memory, each by one thread. Accesses by the copy engine and by products have 16 bytes. */
void order_read(struct warp *warp, struct block *block, uint32_t address, uint32_t line);
void order_write(struct warp *warp, struct block *block, uint32_t address, uint32_t line);
/* Relaxed stores, which several warps may perform concurrently; called only if the stored data changes. */
void order_relaxed_write(struct warp *warp, struct block *block, uint32_t address, uint32_t line);
/* st.async, which does not use the copy engine. */
void order_sent_write(struct warp *warp, struct block *block, uint32_t address, uint32_t bytes, uint32_t line);
void order_engine_write(struct warp *warp, struct block *block, uint32_t address, uint32_t bytes, uint32_t line);
void order_engine_read(struct warp *warp, struct block *block, uint32_t address, uint32_t line);

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

static inline uint32_t *narrow(const struct warp *w, const struct operand *o) {
    return (uint32_t *)(void *)(w->files[o->file] + o->offset);
}
static inline uint64_t *wide(const struct warp *w, const struct operand *o) {
    return (uint64_t *)(void *)(w->files[o->file] + o->wide_offset);
}
/* Reads a value of either width; constants are read as 64-bit. */
static inline uint64_t lane_value(const struct warp *w, const struct operand *o, int lane) {
    return o->file == FILE_NARROW ? narrow(w, o)[lane] : wide(w, o)[lane];
}
/* Address in a lane; only 32 bits of a narrow register are used. */
static inline uint64_t address_of(const struct warp *w, const struct operand *o, int lane) {
    uint64_t address = lane_value(w, o, lane) + (uint64_t)o->displacement;
    return o->file == FILE_NARROW ? (uint32_t)address : address;
}
static inline void set_value(struct warp *w, const struct operand *o, int lane, uint64_t value) {
    if (o->file == FILE_WIDE)
        wide(w, o)[lane] = value;
    else
        narrow(w, o)[lane] = (uint32_t)value;
}
static inline uint32_t predicate(const struct warp *w, const struct operand *o) {
    if (o->kind != OPERAND_PREDICATE)
        return narrow(w, o)[0] ? ~UINT32_C(0) : 0; /* a constant */
    return o->is_negated ? ~w->predicates[o->offset] : w->predicates[o->offset];
}
/* The number of a result predicate, or -1 for "_". */
static inline int result_number(const struct operand *o) { return o->kind == OPERAND_PREDICATE ? (int)o->offset : -1; }
static inline void set_predicate(struct warp *w, int number, uint32_t mask, uint32_t bits) {
    if (number >= 0)
        w->predicates[number] = (w->predicates[number] & ~mask) | (bits & mask);
}

#define FOR_LANES(mask, l)                                                                                             \
    for (int l = 0; l < LANES; l++)                                                                                    \
        if ((mask) >> l & 1)

/* The decoders of each part of the machine: they return the operation of an opcode, or NULL. */
operation decode_arithmetic(struct instruction *i);
operation decode_conversion(struct instruction *i);
operation decode_memory(struct instruction *i);
operation decode_together(struct instruction *i);
operation decode_copies(struct instruction *i);
operation decode_matrices(struct instruction *i);

#endif
