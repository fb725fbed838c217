/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations of lanes of a warp, warps of a block and blocks of a cluster: votes, shuffles, barriers. */
#include "machine.h"

#include <string.h>

/* ---- Warp -------------------------------------------------------------------------------------------------------- */

enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_FLY, SHUFFLE_TO };

/* Finds the lane whose register lane l reads. c contains the clamp and, above it, a mask of the bits of the lane number
   that stay fixed. Returns false if the source is out of range; the lane then keeps its own value. */
static bool find_source(int mode, uint32_t l, uint32_t b, uint32_t c, uint32_t *source) {
    uint32_t clamp = c & 31, kept = c >> 8 & 31, least = l & kept, most = least | (clamp & ~kept);
    b &= 31;
    *source = mode == SHUFFLE_UP     ? l - b
              : mode == SHUFFLE_DOWN ? l + b
              : mode == SHUFFLE_FLY  ? l ^ b
                                     : least | (b & ~kept);
    bool is_found = mode == SHUFFLE_UP ? (int32_t)*source >= (int32_t)most : *source <= most;
    if (!is_found)
        *source = l;
    return is_found;
}

/* shfl.sync.mode d|p, a, b, c, members. */
static enum outcome shuffle(struct warp *w, const struct instruction *i, uint32_t mask) {
    const uint32_t *a = narrow(w, &i->operands[1]), *b = narrow(w, &i->operands[2]), *c = narrow(w, &i->operands[3]);
    uint32_t *d = narrow(w, &i->operands[0]), r[LANES], valid = 0;
    FOR_LANES(mask, l) {
        uint32_t source;
        valid |= (uint32_t)find_source(i->mode, (uint32_t)l, b[l], c[l], &source) << l;
        if (!(mask >> source & 1))
            machine_fail(w, "lane %d reads a register of lane %u, which does not take part", l, source);
        r[l] = a[source];
    }
    FOR_LANES(mask, l) d[l] = r[l];
    set_predicate(w, i->operands[0].other, mask, valid);
    return NEXT;
}

static enum outcome vote(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t bits = predicate(w, &i->operands[1]) & mask;
    if (ptx_has(i->opcode, "ballot")) {
        FOR_LANES(mask, l) narrow(w, &i->operands[0])[l] = bits;
        return NEXT;
    }
    bool holds = ptx_has(i->opcode, "any") ? bits != 0 : bits == mask || (!bits && ptx_has(i->opcode, "uni"));
    set_predicate(w, result_number(&i->operands[0]), mask, holds ? mask : 0);
    return NEXT;
}

static enum outcome elect(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t first = mask & -mask;
    FOR_LANES(i->operands[0].kind == OPERAND_VALUE ? mask : 0, l)
    narrow(w, &i->operands[0])[l] = (uint32_t)__builtin_ctz(first);
    set_predicate(w, i->operands[0].other, mask, first);
    return NEXT;
}

static enum outcome activemask(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) narrow(w, &i->operands[0])[l] = mask;
    return NEXT;
}

static enum outcome match(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t r[LANES] = {0};
    FOR_LANES(mask, l)
    FOR_LANES(mask, k) r[l] |= (uint32_t)(lane_value(w, &i->operands[1], l) == lane_value(w, &i->operands[1], k)) << k;
    FOR_LANES(mask, l) narrow(w, &i->operands[0])[l] = r[l];
    return NEXT;
}

/* redux.sync.op d, a, members. */
static enum outcome redux(struct warp *w, const struct instruction *i, uint32_t mask) {
    const uint32_t *a = narrow(w, &i->operands[1]);
    uint32_t r = 0;
    bool is_first = true, is_signed = i->type == TYPE_S32;
    FOR_LANES(mask, l) {
        bool is_less = is_signed ? (int32_t)a[l] < (int32_t)r : a[l] < r;
        r = is_first                    ? a[l]
            : ptx_has(i->opcode, "add") ? r + a[l]
            : ptx_has(i->opcode, "min") ? (is_less ? a[l] : r)
            : ptx_has(i->opcode, "max") ? (is_less ? r : a[l])
            : ptx_has(i->opcode, "and") ? (r & a[l])
            : ptx_has(i->opcode, "or")  ? (r | a[l])
                                        : (r ^ a[l]);
        is_first = false;
    }
    FOR_LANES(mask, l) narrow(w, &i->operands[0])[l] = r;
    return NEXT;
}

static enum outcome meet(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)w;
    (void)i;
    (void)mask;
    return NEXT;
}

/* ---- Block ------------------------------------------------------------------------------------------------------- */

/* A barrier for the whole block expects all warps that have not ended. */
static uint32_t expected(const struct block *block, const struct named_barrier *barrier) {
    return barrier->count ? barrier->count : (uint32_t)block->warps_alive * LANES;
}

static bool reduces(const struct instruction *i) { return ptx_has(i->opcode, "red"); }

/* Writes the result of bar.red to a warp that waits at the barrier. */
static void tell_votes(struct warp *w, const struct named_barrier *barrier) {
    const struct instruction *i = w->now;
    bool holds = ptx_has(i->opcode, "or") ? barrier->agreed != 0 : barrier->agreed == barrier->voted;
    if (!ptx_has(i->opcode, "popc"))
        set_predicate(w, result_number(&i->operands[0]), ~UINT32_C(0), holds ? ~UINT32_C(0) : 0);
    else
        for (int l = 0; l < LANES; l++)
            narrow(w, &i->operands[0])[l] = barrier->agreed;
}

static void release_if_complete(struct block *block, int id) {
    struct named_barrier *barrier = &block->barriers[id];
    if (!barrier->arrived || barrier->arrived < expected(block, barrier))
        return;
    for (int k = 0; k < block->warp_count; k++) {
        struct warp *w = &block->warps[k];
        if (w->state != WARP_AT_BARRIER || w->waits_at != id)
            continue;
        w->state = WARP_READY;
        order_leave(w, id);
        if (reduces(w->now))
            tell_votes(w, barrier);
    }
    *barrier = (struct named_barrier){0};
    order_reset(block, id);
    machine->progress++;
}

/* bar.sync and bar.arrive a {, threads}; bar.red.op d, a {, threads}, p. */
static enum outcome arrive(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool has_vote = reduces(i), waits = !ptx_has(i->opcode, "arrive");
    const struct operand *first = &i->operands[has_vote];
    int lane = __builtin_ctz(mask), id = (int)narrow(w, first)[lane];
    uint32_t count = i->operand_count - 2 * has_vote > 1 ? narrow(w, first + 1)[lane] : 0;
    if (id < 0 || id >= NAMED_BARRIERS || count % LANES)
        machine_fail(w, "barrier %d of %u threads", id, count);
    if (count > (uint32_t)w->block->warp_count * LANES)
        machine_fail(w, "barrier %d is for %u threads of a block of %d", id, count, w->block->warp_count * LANES);
    struct named_barrier *barrier = &w->block->barriers[id];
    if (barrier->arrived && barrier->count != count)
        machine_fail(w, "barrier %d is for %u threads, others said %u (0: all)", id, count, barrier->count);
    barrier->count = count;
    barrier->arrived += LANES;
    order_arrive(w, id);
    if (has_vote) {
        barrier->voted += (uint32_t)__builtin_popcount(mask);
        barrier->agreed += (uint32_t)__builtin_popcount(predicate(w, &i->operands[i->operand_count - 1]) & mask);
    }
    machine->progress++;
    if (waits) {
        w->state = WARP_AT_BARRIER;
        w->waits_at = id;
        w->now = i;
    }
    release_if_complete(w->block, id);
    return waits ? WAIT : NEXT;
}

/* ---- Cluster ----------------------------------------------------------------------------------------------------- */

static void release_cluster(struct cluster *cluster) {
    if (!cluster->arrived || cluster->arrived < cluster->threads_alive)
        return;
    cluster->arrived = 0;
    cluster->phase++;
    order_tell_cluster(cluster);
    machine->progress++;
    for (int b = 0; b < cluster->block_count; b++)
        for (int k = 0; k < cluster->blocks[b].warp_count; k++) {
            struct warp *w = &cluster->blocks[b].warps[k];
            if (w->state != WARP_AT_CLUSTER)
                continue;
            w->state = WARP_READY;
            order_leave_cluster(w);
        }
}

static enum outcome cluster_arrive(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)i;
    (void)mask;
    if (w->cluster_ticket & 2)
        machine_fail(w, "arrives at the cluster's barrier twice without a wait");
    w->cluster_ticket = (w->block->cluster->phase & 1) | 2;
    w->block->cluster->arrived += LANES;
    order_arrive_cluster(w);
    machine->progress++;
    release_cluster(w->block->cluster);
    return NEXT;
}

static enum outcome cluster_wait(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)i;
    (void)mask;
    if (!(w->cluster_ticket & 2))
        machine_fail(w, "waits at the cluster's barrier without having arrived");
    bool is_over = (w->block->cluster->phase & 1) != (w->cluster_ticket & 1);
    w->cluster_ticket = 0;
    if (is_over) {
        order_leave_cluster(w);
        return NEXT;
    }
    w->state = WARP_AT_CLUSTER;
    return WAIT;
}

void machine_leave(struct warp *w) {
    struct block *block = w->block;
    struct cluster *cluster = block->cluster;
    cluster->threads_alive -= LANES;
    if (w->cluster_ticket & 2 && (w->cluster_ticket & 1) == (cluster->phase & 1))
        cluster->arrived -= LANES;
    for (int id = 0; id < NAMED_BARRIERS; id++)
        release_if_complete(block, id);
    release_cluster(cluster);
}

operation decode_together(struct instruction *i) {
    static const struct {
        const char *start, *words;
        operation run;
        enum meeting meets;
    } families[] = {
        {"shfl.sync.", "sync up down bfly idx b32", shuffle, MEETS_MEMBERS},
        {"vote.sync.", "sync ballot any all uni b32 pred", vote, MEETS_MEMBERS},
        {"elect.sync", "sync", elect, MEETS_MEMBERS},
        {"match.any.sync.", "any sync b32 b64", match, MEETS_MEMBERS},
        {"redux.sync.", "sync add min max and or xor u32 s32 b32", redux, MEETS_MEMBERS},
        {"bar.warp.sync", "warp sync", meet, MEETS_MEMBERS},
        {"barrier.cluster.arrive", "cluster arrive release relaxed aligned", cluster_arrive, MEETS_WARP},
        {"barrier.cluster.wait", "cluster wait acquire aligned", cluster_wait, MEETS_WARP},
        {"bar.", "cta sync arrive red popc and or pred u32", arrive, MEETS_WARP},
        {"barrier.", "cta sync arrive red popc and or pred u32 aligned", arrive, MEETS_WARP},
        {"activemask.", "b32", activemask, MEETS_NOBODY},
    };
    i->mode = ptx_has(i->opcode, "up")     ? SHUFFLE_UP
              : ptx_has(i->opcode, "down") ? SHUFFLE_DOWN
              : ptx_has(i->opcode, "bfly") ? SHUFFLE_FLY
                                           : SHUFFLE_TO;
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        if (ptx_begins(i->opcode, families[k].start)) {
            i->meets = (uint8_t)families[k].meets;
            bool is_aligned = !ptx_begins(i->opcode, "barrier.") || ptx_has(i->opcode, "aligned");
            return is_aligned && ptx_only(i->opcode, families[k].words) ? families[k].run : NULL;
        }
    return NULL;
}
