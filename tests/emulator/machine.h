/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's parts as a launch uses them: clusters of blocks of warps, shared memory, barriers, and copies under way.
   Everything that a real chip leaves open is decided at random, from a seed: which warp goes on and for how long, when
   a copy arrives. It must not know a driver. */
#ifndef WEFT_TESTS_EMULATOR_MACHINE_H
#define WEFT_TESTS_EMULATOR_MACHINE_H

#include "matrix.h"
#include "ptx.h"
#include "tensor_map.h"

#include <setjmp.h>

enum { NAMED_BARRIERS = 16, CLUSTER_MAX = 16, GROUP_WARPS = 4 };
enum { SHARED_ADDRESS_BITS = 24 }; /* above: 1 + the block's rank in its cluster, or 0 for the block itself */
enum { OWN_ADDRESS = (1 << SHARED_ADDRESS_BITS) - 1 };

/* A product that wgmma has begun: what it reads must stay until somebody waits for it. */
struct pending_product {
    struct matrix_product product;
    uint64_t digest;
    int group; /* the commit that covers it, counted */
    int line;
};

/* Four warps that multiply together. */
struct warpgroup {
    struct matrix_product product;   /* in the making: each warp adds its registers */
    const struct instruction *joint; /* the instruction at which its warps meet */
    int met, committed[GROUP_WARPS];
    struct pending_product *pending;
    int pending_count, pending_room;
};

enum warp_state { WARP_READY, WARP_AT_BARRIER, WARP_AT_CLUSTER, WARP_AT_PRODUCT, WARP_POLLS, WARP_DONE };

/* cp.async of a lane: what to copy when it waits. */
struct lane_copy {
    uint32_t to;
    uint64_t from;
    int lane, group;
    uint8_t bytes, read; /* beyond `read` come zeros */
};

struct warp {
    unsigned char *files[FILES];
    uint32_t *predicates;
    struct block *block;
    int index;
    enum warp_state state;
    uint32_t carry;          /* of each lane, from an addition in a chain */
    uint32_t alive, stuck;   /* lanes: not ended; waiting for others of the warp */
    uint32_t places[LANES];  /* the next instruction of each lane */
    int waits_at;            /* the named barrier, the mbarrier's address */
    uint32_t waits_for;      /* the parity */
    uint32_t cluster_ticket; /* 2 and the phase of the cluster at which it arrived */
    const struct instruction *now;
    unsigned char *local;
    uint32_t *clock; /* how far it knows each warp of the cluster to have come */
    uint16_t number; /* in the cluster */
    uint32_t last_fence;
    int copy_group[LANES], store_group[LANES];
    struct lane_copy *copies;
    int copy_count, copy_room;
};

struct named_barrier {
    uint32_t arrived, count; /* threads; count 0: all of the block */
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
    int copies_under_way; /* from or to its shared memory */
    struct access *accesses;
    struct barrier_clock *barrier_clocks;
    uint32_t *gathered; /* the clocks of named barriers */
};

struct cluster {
    struct cluster *next;
    int block_count, blocks_alive;
    struct block *blocks;
    uint32_t threads_alive, arrived;
    uint32_t phase;
    int warp_count;
    uint32_t *gathered, *told, *flags; /* clocks: of its barrier, and of flags in memory */
};

enum copy_kind { COPY_LOAD, COPY_STORE, COPY_BYTES };

/* A copy by the engine that moves boxes, under way. */
struct copy {
    struct copy *next;
    enum copy_kind kind;
    struct block *block;          /* whose shared memory, and barrier */
    const struct tensor_map *map; /* NULL: plain bytes */
    int32_t coordinates[5];
    uint16_t offsets[3];
    uint32_t address, barrier, bytes;
    uint64_t global;
    uint8_t words[16]; /* st.async: what is stored */
    bool is_words;
    bool adds;               /* of a store: floats, to what is there */
    unsigned char *taken;    /* of a store: what it has read, while it has not written it */
    uint32_t *clock;         /* of a load: of the warp that began it */
    const struct warp *warp; /* of a store: whose group it belongs to */
    int lane, group, line;
};

/* A piece of the device's memory. */
struct memory_piece {
    uint64_t from, to;
    bool was_freed;
};

/* The piece that holds an address, or is the last before it; false: there is none. */
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
    uint64_t progress; /* counts everything that another warp could wait for */
    uint32_t fences;   /* fence.proxy.async, so far */
    memory_finder *find_memory;
    struct memory_piece known[4]; /* the last that were found */
    int last_known;
    jmp_buf failed;
    char error[1024];
};

extern _Thread_local struct machine *machine; /* of the launch that this thread runs */

/* Runs a launch to its end. False: `error` says what was wrong, and where. */
bool machine_run(struct machine *run);

void machine_fail(const struct warp *warp, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
uint64_t machine_random(void);

/* Where a lane's address lies on the host; fails where nothing lies or it is not aligned. */
unsigned char *machine_memory(const struct warp *warp, int lane, enum ptx_space space, uint64_t address, size_t bytes);
unsigned char *machine_shared(const struct warp *warp, uint64_t address, size_t bytes);
struct block *machine_block_of(const struct warp *warp, uint64_t shared_address);
/* Lets go on whoever waited for a warp that has ended. */
void machine_leave(struct warp *warp);
void machine_add_copy(const struct copy *copy);
void machine_finish_copy(struct copy **at);
/* A store reads what it will write, later, from shared memory, which is then free. */
void machine_take_source(struct copy *copy);

/* Barriers in shared memory. */
bool barrier_is_over(const struct warp *warp, const unsigned char *barrier, uint32_t parity);
void barrier_count(const struct warp *warp, struct block *block, uint32_t address, uint32_t arrivals,
                   int64_t expected_bytes);

/* What comes before what: see order.c. A barrier's clock takes what those who arrive know and tells those who leave. */
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
/* Accesses to shared memory, each of one thread; by the engine and products: of 16 bytes. */
void order_read(struct warp *warp, struct block *block, uint32_t address, uint32_t line);
void order_write(struct warp *warp, struct block *block, uint32_t address, uint32_t line);
/* By relaxed stores, which several warps may do at once; of words that it changes. */
void order_relaxed_write(struct warp *warp, struct block *block, uint32_t address, uint32_t line);
/* By st.async, which is no copy of the engine. */
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
/* A value of either width; constants are read wide. */
static inline uint64_t lane_value(const struct warp *w, const struct operand *o, int lane) {
    return o->file == FILE_NARROW ? narrow(w, o)[lane] : wide(w, o)[lane];
}
/* Of a lane; in a narrow register only 32 bits count. */
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
/* The number of a predicate that is a result; '_' has none. */
static inline int result_number(const struct operand *o) { return o->kind == OPERAND_PREDICATE ? (int)o->offset : -1; }
static inline void set_predicate(struct warp *w, int number, uint32_t mask, uint32_t bits) {
    if (number >= 0)
        w->predicates[number] = (w->predicates[number] & ~mask) | (bits & mask);
}

#define FOR_LANES(mask, l)                                                                                             \
    for (int l = 0; l < LANES; l++)                                                                                    \
        if ((mask) >> l & 1)

/* What each part of the machine runs: the operation of an opcode, or NULL. */
operation decode_arithmetic(struct instruction *i);
operation decode_conversion(struct instruction *i);
operation decode_memory(struct instruction *i);
operation decode_together(struct instruction *i);
operation decode_copies(struct instruction *i);
operation decode_matrices(struct instruction *i);

#endif
