/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous operations: barriers in shared memory, cp.async, and bulk copies by the copy engine. A copy that begins
   here completes when the machine decides; its destination is filled with invalid data immediately. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

/* ---- Barriers: 64 bits of shared memory -------------------------------------------------------------------------- */

/* Bytes may arrive before they are announced, so the count can be negative. */
struct barrier_state {
    int64_t bytes : 24;
    uint64_t pending : 16, expected : 15, phase : 1, mark : 8;
};
enum { MARK = 0xB7, ARRIVALS_MOST = (1 << 15) - 1, BYTES_MOST = (1 << 20) - 1 };

static struct barrier_state read_barrier(const struct warp *w, const unsigned char *at) {
    struct barrier_state state;
    memcpy(&state, at, sizeof state);
    if (state.mark != MARK)
        machine_fail(w, "a barrier that was not initialised, or was written over");
    return state;
}

bool barrier_is_over(const struct warp *w, const unsigned char *at, uint32_t parity) {
    return read_barrier(w, at).phase != (parity & 1);
}

void barrier_count(const struct warp *w, struct block *block, uint32_t address, uint32_t arrivals,
                   int64_t expected_bytes) {
    unsigned char *at = block->shared + address;
    struct barrier_state state = read_barrier(w, at);
    int64_t bytes = state.bytes + expected_bytes;
    if (arrivals > state.pending)
        machine_fail(w, "%u arrivals at a barrier that waits for %u", arrivals, (unsigned)state.pending);
    if (bytes > BYTES_MOST || bytes < -BYTES_MOST)
        machine_fail(w, "a barrier counts %lld bytes, %d are the most", (long long)bytes, BYTES_MOST);
    state.bytes = bytes;
    state.pending -= arrivals;
    if (!state.pending && !state.bytes) {
        state.phase ^= 1;
        state.pending = state.expected;
        order_end_phase(block, address);
    }
    memcpy(at, &state, sizeof state);
    machine->progress++;
}

static enum outcome barrier_init(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        uint32_t count = narrow(w, &i->operands[1])[l];
        struct barrier_state state = {.pending = count, .expected = count, .mark = MARK};
        if (!count || count > ARRIVALS_MOST)
            machine_fail(w, "a barrier for %u arrivals", count);
        memcpy(machine_shared(w, address_of(w, &i->operands[0], l), 8), &state, sizeof state);
    }
    return NEXT;
}

/* mbarrier.inval: the word becomes ordinary memory again. */
static enum outcome barrier_end(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) memset(machine_shared(w, address_of(w, &i->operands[0], l), 8), 0, 8);
    return NEXT;
}

/* mbarrier.arrive{.expect_tx} _, [address], count or bytes; and mbarrier.expect_tx [address], bytes. */
static enum outcome barrier_arrive(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool announces = ptx_has(i->opcode, "expect_tx"), arrives = ptx_has(i->opcode, "arrive");
    const struct operand *address = &i->operands[arrives];
    FOR_LANES(mask, l) {
        uint32_t number = i->operand_count > arrives + 1 ? narrow(w, address + 1)[l] : 1;
        uint32_t at = (uint32_t)address_of(w, address, l);
        struct block *block = machine_block_of(w, at);
        machine_shared(w, at, 8);
        at &= OWN_ADDRESS;
        barrier_count(w, block, at, 0, announces ? number : 0); /* before the arrival, which may complete the phase */
        order_arrive_at(w, block, at);
        barrier_count(w, block, at, !arrives ? 0 : announces ? 1 : number, 0);
    }
    return YIELD;
}

static enum outcome barrier_try(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool waits = false;
    FOR_LANES(mask, l) {
        uint32_t address = (uint32_t)address_of(w, &i->operands[1], l), parity = narrow(w, &i->operands[2])[l];
        if (machine_block_of(w, address) != w->block)
            machine_fail(w, "waits for a barrier of another block");
        bool is_over = barrier_is_over(w, machine_shared(w, address, 8), parity);
        set_predicate(w, result_number(&i->operands[0]), UINT32_C(1) << l, is_over ? ~UINT32_C(0) : 0);
        if (is_over)
            order_pass(w, address & OWN_ADDRESS);
        else {
            waits = true;
            w->waits_at = (int)(address & OWN_ADDRESS);
            w->waits_for = parity & 1;
        }
    }
    if (!waits)
        return NEXT;
    w->state = WARP_POLLS;
    w->now = i;
    return WAIT;
}

/* ---- cp.async: per-lane copies, which complete when the lane waits for them -------------------------------------- */

/* cp.async... [to], [from], bytes {, the number of source bytes, or a predicate to ignore the source}: the remaining
   bytes are zero-filled. */
static enum outcome lane_copy(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_wide = ptx_has(i->opcode, "cg");
    FOR_LANES(mask, l) {
        uint32_t bytes = narrow(w, &i->operands[2])[l], read = bytes;
        if (i->operand_count > 3 && i->operands[3].kind == OPERAND_PREDICATE)
            read = predicate(w, &i->operands[3]) >> l & 1 ? 0 : bytes;
        else if (i->operand_count > 3)
            read = narrow(w, &i->operands[3])[l];
        struct lane_copy copy = {.to = (uint32_t)address_of(w, &i->operands[0], l),
                                 .from = address_of(w, &i->operands[1], l),
                                 .lane = l,
                                 .group = w->copy_group[l],
                                 .bytes = (uint8_t)bytes,
                                 .read = (uint8_t)read};
        if ((bytes != 16 && (is_wide || (bytes != 4 && bytes != 8))) || read > bytes || copy.from % bytes)
            machine_fail(w, "cp.async of %u of %u bytes from 0x%llx", read, bytes, (unsigned long long)copy.from);
        memset(machine_shared(w, copy.to, bytes), 0xFF, bytes);
        order_write(w, machine_block_of(w, copy.to), copy.to & OWN_ADDRESS, (uint32_t)i->line);
        if (read) {
            machine_memory(w, l, SPACE_GLOBAL, copy.from, 1);
            machine_memory(w, l, SPACE_GLOBAL, copy.from + read - 1, 1);
        }
        if (w->copy_count == w->copy_room) {
            w->copy_room = w->copy_room ? 2 * w->copy_room : 256;
            w->copies = realloc(w->copies, (size_t)w->copy_room * sizeof *w->copies);
            if (!w->copies)
                abort();
        }
        w->copies[w->copy_count++] = copy;
    }
    return NEXT;
}

static enum outcome commit_lane_copies(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)i;
    FOR_LANES(mask, l) w->copy_group[l]++;
    return NEXT;
}

static enum outcome wait_lane_copies(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool all = ptx_has(i->opcode, "wait_all");
    int kept = 0;
    for (int k = 0; k < w->copy_count; k++) {
        struct lane_copy copy = w->copies[k];
        int pending = all ? 0 : (int)narrow(w, &i->operands[0])[0];
        if (!(mask >> copy.lane & 1) || (!all && copy.group >= w->copy_group[copy.lane] - pending)) {
            w->copies[kept++] = copy;
            continue;
        }
        unsigned char *to = machine_shared(w, copy.to, copy.bytes);
        memset(to, 0, copy.bytes);
        memcpy(to, (const void *)(uintptr_t)copy.from, copy.read);
    }
    w->copy_count = kept;
    return NEXT;
}

/* ---- The copy engine --------------------------------------------------------------------------------------------- */

static const struct tensor_map *map_at(const struct warp *w, uint64_t address) {
    const unsigned char *at = machine_memory(w, 0, SPACE_GENERIC, address, 1);
    if ((uintptr_t)at % 64)
        machine_fail(w, "a tensor map at 0x%llx, which is no multiple of 64", (unsigned long long)address);
    const struct tensor_map *map = (const struct tensor_map *)(const void *)at;
    if (map->magic != TENSOR_MAP_MAGIC)
        machine_fail(w, "no tensor map lies at 0x%llx", (unsigned long long)address);
    return map;
}

/* Reads the map and the coordinates at which its box begins: "[map, {coordinates}]". */
static void read_box(const struct warp *w, struct copy *copy, const struct operand *address, int lane) {
    const struct operand *list = &address->items[0];
    copy->map = map_at(w, address_of(w, address, lane));
    copy->bytes = (uint32_t)tensor_map_box_bytes(copy->map);
    if (list->count != copy->map->rank)
        machine_fail(w, "%u coordinates for a map of %u dimensions", list->count, copy->map->rank);
    for (int k = 0; k < list->count; k++)
        copy->coordinates[k] = (int32_t)narrow(w, &list->items[k])[lane];
    /* Hardware reports this as an illegal instruction. */
    int64_t first = (int64_t)copy->coordinates[0] * (int64_t)tensor_map_element_bytes(copy->map);
    if (first % 16)
        machine_fail(w, "a box that begins %lld bytes into a row, which is no multiple of 16", (long long)first);
}

static void check_range(const struct warp *w, const struct block *block, const struct copy *copy, const char *way) {
    if (copy->address >= block->shared_bytes || copy->bytes > block->shared_bytes - copy->address)
        machine_fail(w, "a copy of %u bytes %s shared address %u of %u", copy->bytes, way, copy->address,
                     block->shared_bytes);
}

/* Begins a copy into the shared memory of a block; the barrier of that block counts the bytes. */
static void begin_load(struct warp *w, struct copy copy, struct block *block) {
    copy.block = block;
    if (!block->warps_alive)
        machine_fail(w, "a copy to block %u, which has ended", block->rank);
    check_range(w, block, &copy, "to");
    if (copy.barrier + 8 > block->shared_bytes || copy.barrier % 8)
        machine_fail(w, "a barrier at shared address %u of %u", copy.barrier, block->shared_bytes);
    read_barrier(w, block->shared + copy.barrier);
    if (copy.is_words)
        order_sent_write(w, block, copy.address, copy.bytes, (uint32_t)copy.line);
    else
        order_engine_write(w, block, copy.address, copy.bytes, (uint32_t)copy.line);
    copy.clock = order_copy_clock(w);
    memset(block->shared + copy.address, 0xFF, copy.bytes);
    machine_add_copy(&copy);
}

/* Begins a load into the block to which these addresses belong. */
static void begin_own_load(struct warp *w, struct copy copy, uint32_t to, uint32_t barrier) {
    copy.address = to & OWN_ADDRESS;
    copy.barrier = barrier & OWN_ADDRESS;
    if (machine_block_of(w, to) != machine_block_of(w, barrier))
        machine_fail(w, "a copy to one block's memory, its barrier in another's");
    begin_load(w, copy, machine_block_of(w, to));
}

/* Begins a load to the same address in several blocks (multicast). */
static void begin_shared_load(struct warp *w, struct copy copy, uint32_t to, uint32_t barrier, uint32_t peers) {
    struct cluster *cluster = w->block->cluster;
    copy.address = to & OWN_ADDRESS;
    copy.barrier = barrier & OWN_ADDRESS;
    FOR_LANES(peers & 0xFFFF, rank) {
        if (rank >= cluster->block_count)
            machine_fail(w, "a box for block %d of a cluster of %d", rank, cluster->block_count);
        begin_load(w, copy, &cluster->blocks[rank]);
    }
}

/* cp.async.bulk.tensor.Nd.shared::cluster.global... [to], [map, {...}], [barrier], {offsets}, peers, policy. */
static enum outcome load_box(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_image = ptx_has(i->opcode, "im2col");
    FOR_LANES(mask, l) {
        struct copy copy = {.kind = COPY_LOAD, .warp = w, .lane = l, .line = i->line};
        uint32_t to = (uint32_t)address_of(w, &i->operands[0], l),
                 barrier = (uint32_t)address_of(w, &i->operands[2], l);
        read_box(w, &copy, &i->operands[1], l);
        if (is_image != (bool)copy.map->is_im2col)
            machine_fail(w, "a map of another kind than the instruction");
        const struct operand *offsets = &i->operands[3];
        for (int k = 0; is_image && k < offsets->count && k < 3; k++)
            copy.offsets[k] = (uint16_t)narrow(w, &offsets->items[k])[l];
        if (ptx_has(i->opcode, "multicast::cluster"))
            begin_shared_load(w, copy, to, barrier, narrow(w, &i->operands[3 + is_image])[l]);
        else
            begin_own_load(w, copy, to, barrier);
    }
    return YIELD;
}

static void check_alignment(const struct warp *w, const struct copy *copy) {
    if (copy->bytes % 16 || copy->global % 16 || copy->address % 16)
        machine_fail(w, "a copy of %u bytes, 0x%llx and shared address %u: not all are multiples of 16", copy->bytes,
                     (unsigned long long)copy->global, copy->address);
}

/* cp.async.bulk.shared::cluster.global... [to], [from], bytes, [barrier]. */
static enum outcome load_bytes(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        struct copy copy = {.kind = COPY_BYTES, .warp = w, .lane = l, .line = i->line};
        uint32_t to = (uint32_t)address_of(w, &i->operands[0], l);
        copy.address = to & OWN_ADDRESS;
        copy.global = address_of(w, &i->operands[1], l);
        copy.bytes = narrow(w, &i->operands[2])[l];
        check_alignment(w, &copy);
        if (copy.bytes)
            machine_memory(w, l, SPACE_GLOBAL, copy.global, 16);
        begin_own_load(w, copy, to, (uint32_t)address_of(w, &i->operands[3], l));
    }
    return YIELD;
}

/* st.async... [to], words, [barrier]: stores to another block, whose barrier counts the bytes. */
static enum outcome send_words(struct warp *w, const struct instruction *i, uint32_t mask) {
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type);
    const struct operand *s = &i->operands[1];
    unsigned count = s->kind == OPERAND_VECTOR ? s->count : 1;
    FOR_LANES(mask, l) {
        struct copy copy = {.kind = COPY_BYTES, .is_words = true, .warp = w, .lane = l, .line = i->line};
        uint32_t to = (uint32_t)address_of(w, &i->operands[0], l);
        copy.bytes = bytes * count;
        machine_shared(w, to, copy.bytes);
        for (unsigned k = 0; k < count; k++) {
            uint64_t value = lane_value(w, s->kind == OPERAND_VECTOR ? &s->items[k] : s, l);
            memcpy(copy.words + k * bytes, &value, bytes);
        }
        begin_own_load(w, copy, to, (uint32_t)address_of(w, &i->operands[2], l));
    }
    return YIELD;
}

static struct copy new_store(struct warp *w, const struct instruction *i, int lane) {
    return (struct copy){.kind = COPY_STORE,
                         .warp = w,
                         .lane = lane,
                         .group = w->store_group[lane],
                         .line = i->line,
                         .block = w->block,
                         .address = (uint32_t)address_of(w, &i->operands[1], lane) & OWN_ADDRESS};
}

static void begin_store(struct warp *w, const struct copy *copy) {
    check_range(w, w->block, copy, "from");
    for (uint32_t at = 0; at < copy->bytes; at += 16)
        order_engine_read(w, w->block, copy->address + at, (uint32_t)copy->line);
    machine_add_copy(copy);
}

/* cp.async.bulk.tensor.Nd.global.shared::cta... [map, {...}], [from]. */
static enum outcome store_box(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        struct copy copy = new_store(w, i, l);
        read_box(w, &copy, &i->operands[0], l);
        begin_store(w, &copy);
    }
    return YIELD;
}

/* cp.async.bulk.global.shared::cta.bulk_group [to], [from], bytes; cp.reduce.async.bulk: adds floats. */
static enum outcome store_bytes(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        struct copy copy = new_store(w, i, l);
        copy.adds = ptx_has(i->opcode, "reduce");
        copy.global = address_of(w, &i->operands[0], l);
        copy.bytes = narrow(w, &i->operands[2])[l];
        check_alignment(w, &copy);
        begin_store(w, &copy);
    }
    return YIELD;
}

static enum outcome commit_stores(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)i;
    FOR_LANES(mask, l) w->store_group[l]++;
    return NEXT;
}

/* If only the reads are waited for, the writes may complete later. */
static enum outcome wait_stores(struct warp *w, const struct instruction *i, uint32_t mask) {
    int pending = (int)narrow(w, &i->operands[0])[0];
    bool waits_for_reads = ptx_has(i->opcode, "read");
    for (struct copy **at = &machine->copies; *at;) {
        struct copy *copy = *at;
        bool is_meant = copy->kind == COPY_STORE && copy->warp == w && (mask >> copy->lane & 1) &&
                        copy->group < w->store_group[copy->lane] - pending;
        if (is_meant && waits_for_reads)
            machine_take_source(copy);
        if (is_meant && !(waits_for_reads && machine_random() % 2))
            machine_finish_copy(at);
        else
            at = &(*at)->next;
    }
    return YIELD;
}

#define BARRIERS "shared shared::cta shared::cluster b64"
#define ORDERS "release acquire relaxed cta cluster "

operation decode_copies(struct instruction *i) {
    static const struct {
        const char *start, *words;
        operation run;
    } families[] = {
        {"mbarrier.init.", "init " BARRIERS, barrier_init},
        {"mbarrier.inval.", "inval " BARRIERS, barrier_end},
        {"mbarrier.arrive.", "arrive expect_tx " ORDERS BARRIERS, barrier_arrive},
        {"mbarrier.expect_tx.", "expect_tx " ORDERS BARRIERS, barrier_arrive},
        {"mbarrier.try_wait.parity.", "try_wait parity " ORDERS BARRIERS, barrier_try},
        {"mbarrier.test_wait.parity.", "test_wait parity " ORDERS BARRIERS, barrier_try},
        {"st.async.", "async weak shared::cluster mbarrier::complete_tx::bytes v2 v4 b32 b64 u32 u64 s32 s64 f32 f64",
         send_words},
        {"cp.async.bulk.commit_group", "async bulk commit_group", commit_stores},
        {"cp.async.bulk.wait_group", "async bulk wait_group read", wait_stores},
        {"cp.async.commit_group", "async commit_group", commit_lane_copies},
        {"cp.async.wait_group", "async wait_group", wait_lane_copies},
        {"cp.async.wait_all", "async wait_all", wait_lane_copies},
        {"cp.async.ca.", "async ca shared shared::cta global L2::64B L2::128B L2::256B", lane_copy},
        {"cp.async.cg.", "async cg shared shared::cta global L2::64B L2::128B L2::256B", lane_copy},
        {"cp.async.bulk.tensor.",
         "async bulk tensor 1d 2d 3d 4d 5d shared::cluster shared::cta global tile im2col "
         "mbarrier::complete_tx::bytes multicast::cluster L2::cache_hint",
         load_box},
        {"cp.async.bulk.tensor.", "async bulk tensor 1d 2d 3d 4d 5d global shared::cta tile bulk_group L2::cache_hint",
         store_box},
        {"cp.async.bulk.shared::cluster.global.",
         "async bulk shared::cluster global mbarrier::complete_tx::bytes L2::cache_hint", load_bytes},
        {"cp.async.bulk.shared::cta.global.",
         "async bulk shared::cta global mbarrier::complete_tx::bytes L2::cache_hint", load_bytes},
        {"cp.async.bulk.global.shared::cta.", "async bulk global shared::cta bulk_group L2::cache_hint", store_bytes},
        {"cp.reduce.async.bulk.global.shared::cta.", "reduce async bulk global shared::cta bulk_group add f32",
         store_bytes},
    };
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        if (ptx_begins(i->opcode, families[k].start) && ptx_only(i->opcode, families[k].words))
            return families[k].run == barrier_arrive && i->operands[0].kind == OPERAND_VALUE ? NULL : families[k].run;
    return NULL;
}
