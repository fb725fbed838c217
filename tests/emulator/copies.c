/* SPDX-License-Identifier: Apache-2.0 */
/* What goes on beside the threads: barriers in shared memory, cp.async, copies by the engine. A copy begun here arrives when
   the machine says so; what it will overwrite is spoilt at once. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

static bool begins(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

static uint32_t address_of(const struct warp *w, const struct operand *o, int lane) {
    return (uint32_t)(lane_value(w, o, lane) + (uint64_t)o->displacement);
}

/* ---- Barriers: 64 bits of shared memory ------------------------------------------------------------------------------------ */

/* Announced bytes may arrive before they are announced: the count goes below zero, too. */
struct barrier_state {
    int64_t bytes : 24;
    uint64_t pending : 16, expected : 15, phase : 1, mark : 8;
};
enum { MARK = 0xB7 };

static struct barrier_state read_barrier(const struct warp *w, const unsigned char *at) {
    struct barrier_state state;
    memcpy(&state, at, sizeof state);
    if (state.mark != MARK)
        machine_fail(w, "a barrier that was not initialised, or was written over");
    return state;
}

bool barrier_is_over(const unsigned char *at, uint32_t parity) { return read_barrier(NULL, at).phase != (parity & 1); }

void barrier_count(const struct warp *w, unsigned char *at, uint32_t arrivals, int64_t expected_bytes) {
    struct barrier_state state = read_barrier(w, at);
    if (arrivals > state.pending)
        machine_fail(w, "%u arrivals at a barrier that waits for %u", arrivals, (unsigned)state.pending);
    state.bytes += expected_bytes;
    state.pending -= arrivals;
    if (!state.pending && !state.bytes) {
        state.phase ^= 1;
        state.pending = state.expected;
    }
    memcpy(at, &state, sizeof state);
    machine->progress++;
}

static enum outcome barrier_init(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        uint32_t count = narrow(w, &i->operands[1])[l];
        struct barrier_state state = {.pending = count, .expected = count, .mark = MARK};
        memcpy(machine_shared(w, address_of(w, &i->operands[0], l), 8), &state, sizeof state);
    }
    return NEXT;
}

/* mbarrier.inval: the word is plain memory again. */
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
        unsigned char *at = machine_shared(w, address_of(w, address, l), 8);
        if (announces && arrives) {
            /* Bytes first, or the phase could end between the two. */
            struct barrier_state state = read_barrier(w, at);
            state.bytes += number;
            memcpy(at, &state, sizeof state);
            barrier_count(w, at, 1, 0);
        } else {
            barrier_count(w, at, announces ? 0 : number, announces ? number : 0);
        }
    }
    return YIELD;
}

static enum outcome barrier_try(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool waits = false;
    FOR_LANES(mask, l) {
        uint32_t address = address_of(w, &i->operands[1], l), parity = narrow(w, &i->operands[2])[l];
        bool is_over = read_barrier(w, machine_shared(w, address, 8)).phase != (parity & 1);
        set_predicate(w, (int)i->operands[0].offset, UINT32_C(1) << l, is_over ? ~UINT32_C(0) : 0);
        if (!is_over) {
            waits = true;
            w->waits_at = (int)address;
            w->waits_for = parity & 1;
        }
    }
    if (!waits)
        return NEXT;
    w->state = WARP_POLLS;
    w->now = i;
    return WAIT;
}

/* ---- cp.async: a lane's own copies, which land when it waits for them ----------------------------------------------------- */

static enum outcome lane_copy(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        uint32_t bytes = narrow(w, &i->operands[2])[l], read = bytes;
        if (i->operand_count > 3 && i->operands[3].kind == OPERAND_PREDICATE)
            read = predicate(w, &i->operands[3]) >> l & 1 ? 0 : bytes;
        else if (i->operand_count > 3)
            read = narrow(w, &i->operands[3])[l];
        struct lane_copy copy = {.to = address_of(w, &i->operands[0], l),
                                 .lane = l,
                                 .group = w->copy_group[l],
                                 .bytes = (uint8_t)bytes,
                                 .read = (uint8_t)read};
        copy.from = lane_value(w, &i->operands[1], l) + (uint64_t)i->operands[1].displacement;
        if ((bytes != 4 && bytes != 8 && bytes != 16) || read > bytes || copy.from % bytes)
            machine_fail(w, "cp.async of %u of %u bytes from 0x%llx", read, bytes, (unsigned long long)copy.from);
        machine_shared(w, copy.to, bytes);
        if (read)
            machine_memory(w, l, SPACE_GLOBAL, copy.from, bytes == read ? bytes : 1);
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
        if (copy.read)
            memcpy(to, machine_memory(w, copy.lane, SPACE_GLOBAL, copy.from, copy.read == copy.bytes ? copy.read : 1),
                   copy.read);
    }
    w->copy_count = kept;
    return NEXT;
}

/* ---- The copy engine -------------------------------------------------------------------------------------------------------- */

static const struct tensor_map *map_at(const struct warp *w, uint64_t address) {
    const unsigned char *at = machine_memory(w, 0, SPACE_GENERIC, address, 1);
    if ((uintptr_t)at % 64)
        machine_fail(w, "a tensor map at 0x%llx, which is no multiple of 64", (unsigned long long)address);
    const struct tensor_map *map = (const struct tensor_map *)(const void *)at;
    if (map->magic != TENSOR_MAP_MAGIC)
        machine_fail(w, "no tensor map lies at 0x%llx", (unsigned long long)address);
    return map;
}

static void read_coordinates(const struct warp *w, struct copy *copy, const struct operand *address, int lane) {
    const struct operand *list = &address->items[0];
    for (int k = 0; k < list->count; k++)
        copy->coordinates[k] = (int32_t)narrow(w, &list->items[k])[lane];
}

/* Begins a copy into the shared memory of a block, whose barrier will count its bytes. */
static void begin_load(struct warp *w, struct copy copy, struct block *block) {
    copy.block = copy.arrives = block;
    if (copy.address >= block->shared_bytes || copy.bytes > block->shared_bytes - copy.address)
        machine_fail(w, "a copy of %u bytes to shared address %u of %u", copy.bytes, copy.address, block->shared_bytes);
    if (copy.barrier + 8 > block->shared_bytes)
        machine_fail(w, "a barrier at shared address %u of %u", copy.barrier, block->shared_bytes);
    memset(block->shared + copy.address, 0xFF, copy.bytes);
    machine_add_copy(&copy);
}

/* cp.async.bulk.tensor.Nd.shared::cluster.global... [to], [map, {...}], [barrier], {offsets}, peers, policy. */
static enum outcome load_box(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_image = ptx_has(i->opcode, "im2col"), is_shared = ptx_has(i->opcode, "multicast::cluster");
    uint32_t own = (UINT32_C(1) << SHARED_ADDRESS_BITS) - 1;
    FOR_LANES(mask, l) {
        struct copy copy = {.kind = COPY_LOAD, .warp = w, .lane = l, .line = i->line};
        copy.map = map_at(w, lane_value(w, &i->operands[1], l) + (uint64_t)i->operands[1].displacement);
        read_coordinates(w, &copy, &i->operands[1], l);
        int next = 3;
        if (is_image) {
            const struct operand *offsets = &i->operands[next++];
            for (int k = 0; k < offsets->count; k++)
                copy.offsets[k] = (uint16_t)narrow(w, &offsets->items[k])[l];
        }
        if (is_image != (bool)copy.map->is_im2col)
            machine_fail(w, "a map of another kind than the instruction");
        uint32_t to = address_of(w, &i->operands[0], l), barrier = address_of(w, &i->operands[2], l);
        copy.address = to & own;
        copy.barrier = barrier & own;
        copy.bytes = (uint32_t)tensor_map_box_bytes(copy.map);
        if (!is_shared) {
            if (machine_block_of(w, to) != machine_block_of(w, barrier))
                machine_fail(w, "a box in one block's memory, its barrier in another's");
            begin_load(w, copy, machine_block_of(w, to));
            continue;
        }
        uint32_t peers = narrow(w, &i->operands[next])[l];
        struct cluster *cluster = w->block->cluster;
        for (int rank = 0; rank < CLUSTER_MAX; rank++)
            if (peers >> rank & 1) {
                if (rank >= cluster->block_count)
                    machine_fail(w, "a box for block %d of a cluster of %d", rank, cluster->block_count);
                begin_load(w, copy, &cluster->blocks[rank]);
            }
    }
    return YIELD;
}

/* cp.async.bulk.shared::cluster.global... [to], [from], bytes, [barrier]. */
static enum outcome load_bytes(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t own = (UINT32_C(1) << SHARED_ADDRESS_BITS) - 1;
    FOR_LANES(mask, l) {
        struct copy copy = {.kind = COPY_BYTES, .warp = w, .lane = l, .line = i->line};
        uint32_t to = address_of(w, &i->operands[0], l);
        copy.address = to & own;
        copy.global = lane_value(w, &i->operands[1], l) + (uint64_t)i->operands[1].displacement;
        copy.bytes = narrow(w, &i->operands[2])[l];
        copy.barrier = address_of(w, &i->operands[3], l) & own;
        if (copy.bytes % 16 || copy.global % 16 || copy.address % 16)
            machine_fail(w, "a copy of %u bytes from 0x%llx to shared address %u: not all are multiples of 16",
                         copy.bytes, (unsigned long long)copy.global, copy.address);
        if (copy.bytes)
            machine_memory(w, l, SPACE_GLOBAL, copy.global, 16);
        begin_load(w, copy, machine_block_of(w, to));
    }
    return YIELD;
}

/* st.async... [to], words, [barrier]: to another block, whose barrier counts. */
static enum outcome send_words(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t own = (UINT32_C(1) << SHARED_ADDRESS_BITS) - 1;
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type);
    const struct operand *s = &i->operands[1];
    FOR_LANES(mask, l) {
        struct copy copy = {.kind = COPY_BYTES, .is_words = true, .warp = w, .lane = l, .line = i->line};
        uint32_t to = address_of(w, &i->operands[0], l);
        unsigned count = s->kind == OPERAND_VECTOR ? s->count : 1;
        copy.address = to & own;
        copy.barrier = address_of(w, &i->operands[2], l) & own;
        copy.bytes = bytes * count;
        for (unsigned k = 0; k < count; k++) {
            uint64_t value = lane_value(w, s->kind == OPERAND_VECTOR ? &s->items[k] : s, l);
            memcpy(copy.words + k * bytes, &value, bytes);
        }
        begin_load(w, copy, machine_block_of(w, to));
    }
    return YIELD;
}

/* cp.async.bulk.tensor.Nd.global.shared::cta... [map, {...}], [from]. */
static enum outcome store_box(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        struct copy copy = {
            .kind = COPY_STORE, .warp = w, .lane = l, .group = w->store_group[l], .line = i->line, .block = w->block};
        copy.map = map_at(w, lane_value(w, &i->operands[0], l) + (uint64_t)i->operands[0].displacement);
        read_coordinates(w, &copy, &i->operands[0], l);
        copy.address = address_of(w, &i->operands[1], l);
        copy.bytes = (uint32_t)tensor_map_box_bytes(copy.map);
        if (copy.address >= w->block->shared_bytes || copy.bytes > w->block->shared_bytes - copy.address)
            machine_fail(w, "a copy of %u bytes from shared address %u of %u", copy.bytes, copy.address,
                         w->block->shared_bytes);
        machine_add_copy(&copy);
    }
    return YIELD;
}

/* cp.async.bulk.global.shared::cta.bulk_group [to], [from], bytes. */
static enum outcome store_bytes(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        struct copy copy = {
            .kind = COPY_STORE, .warp = w, .lane = l, .group = w->store_group[l], .line = i->line, .block = w->block};
        copy.global = lane_value(w, &i->operands[0], l) + (uint64_t)i->operands[0].displacement;
        copy.address = address_of(w, &i->operands[1], l);
        copy.bytes = narrow(w, &i->operands[2])[l];
        if (copy.bytes % 16 || copy.global % 16 || copy.address % 16 ||
            copy.address + copy.bytes > w->block->shared_bytes)
            machine_fail(w, "a copy of %u bytes from shared address %u to 0x%llx", copy.bytes, copy.address,
                         (unsigned long long)copy.global);
        machine_add_copy(&copy);
    }
    return YIELD;
}

static enum outcome commit_stores(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)i;
    FOR_LANES(mask, l) w->store_group[l]++;
    return NEXT;
}

static enum outcome wait_stores(struct warp *w, const struct instruction *i, uint32_t mask) {
    int pending = (int)narrow(w, &i->operands[0])[0];
    for (struct copy **at = &machine->copies; *at;) {
        const struct copy *copy = *at;
        if (copy->kind == COPY_STORE && copy->warp == w && (mask >> copy->lane & 1) &&
            copy->group < w->store_group[copy->lane] - pending)
            machine_finish_copy(at);
        else
            at = &(*at)->next;
    }
    return YIELD;
}

operation decode_copies(struct instruction *i) {
    if (begins(i->opcode, "mbarrier.init."))
        return barrier_init;
    if (begins(i->opcode, "mbarrier.inval."))
        return barrier_end;
    if (begins(i->opcode, "mbarrier.arrive.") || begins(i->opcode, "mbarrier.expect_tx."))
        return i->operands[0].kind == OPERAND_VALUE ? NULL : barrier_arrive;
    if (begins(i->opcode, "mbarrier.try_wait.parity.") || begins(i->opcode, "mbarrier.test_wait.parity."))
        return barrier_try;
    if (begins(i->opcode, "st.async."))
        return send_words;
    if (begins(i->opcode, "cp.async.ca.") || begins(i->opcode, "cp.async.cg."))
        return lane_copy;
    if (begins(i->opcode, "cp.async.commit_group"))
        return commit_lane_copies;
    if (begins(i->opcode, "cp.async.wait_group") || begins(i->opcode, "cp.async.wait_all"))
        return wait_lane_copies;
    if (begins(i->opcode, "cp.async.bulk.commit_group"))
        return commit_stores;
    if (begins(i->opcode, "cp.async.bulk.wait_group"))
        return wait_stores;
    bool is_load = ptx_has(i->opcode, "complete_tx::bytes") || ptx_has(i->opcode, "mbarrier::complete_tx::bytes");
    if (begins(i->opcode, "cp.async.bulk.tensor."))
        return is_load ? load_box : ptx_has(i->opcode, "bulk_group") ? store_box : NULL;
    if (begins(i->opcode, "cp.async.bulk.shared") || begins(i->opcode, "cp.async.bulk.global"))
        return is_load ? load_bytes : ptx_has(i->opcode, "bulk_group") ? store_bytes : NULL;
    return NULL;
}
