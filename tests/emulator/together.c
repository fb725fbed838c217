/* SPDX-License-Identifier: Apache-2.0 */
/* What lanes of a warp, warps of a block and blocks of a cluster do together: votes, shuffles, barriers. */
#include "machine.h"

#include <string.h>

/* ---- Of a warp ------------------------------------------------------------------------------------------------------------ */

/* shfl.sync.mode d|p, a, b, c, members: c holds the clamp and, above, which bits of the lane's number stay. */
static enum outcome shuffle(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t a[LANES], *d = narrow(w, &i->operands[0]), valid = 0;
    memcpy(a, narrow(w, &i->operands[1]), sizeof a);
    const uint32_t *b = narrow(w, &i->operands[2]), *c = narrow(w, &i->operands[3]);
    uint32_t r[LANES];
    FOR_LANES(mask, l) {
        uint32_t clamp = c[l] & 31, kept = c[l] >> 8 & 31, most = ((uint32_t)l & kept) | (clamp & ~kept),
                 least = (uint32_t)l & kept, j;
        bool is_valid;
        switch (i->compare) {
        case 0: /* up */
            j = (uint32_t)l - b[l];
            is_valid = (int32_t)j >= (int32_t)most;
            break;
        case 1: /* down */
            j = (uint32_t)l + b[l];
            is_valid = j <= most;
            break;
        case 2: /* bfly */
            j = (uint32_t)l ^ b[l];
            is_valid = j <= most;
            break;
        default:
            j = least | (b[l] & 31 & ~kept);
            is_valid = j <= most;
        }
        if (!is_valid)
            j = (uint32_t)l;
        if (!(mask >> j & 1))
            machine_fail(w, "lane %d reads a register of lane %u, which does not take part", l, j);
        r[l] = a[j];
        valid |= (uint32_t)is_valid << l;
    }
    FOR_LANES(mask, l) d[l] = r[l];
    set_predicate(w, i->operands[0].other, mask, valid);
    return NEXT;
}

static enum outcome vote(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t bits = predicate(w, &i->operands[1]) & mask;
    if (ptx_has(i->opcode, "ballot")) {
        FOR_LANES(mask, l) narrow(w, &i->operands[0])[l] = bits;
    } else if (ptx_has(i->opcode, "any"))
        set_predicate(w, (int)i->operands[0].offset, mask, bits ? mask : 0);
    else if (ptx_has(i->opcode, "all"))
        set_predicate(w, (int)i->operands[0].offset, mask, bits == mask ? mask : 0);
    else
        set_predicate(w, (int)i->operands[0].offset, mask, bits == mask || !bits ? mask : 0);
    return NEXT;
}

static enum outcome elect(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t first = mask & -mask;
    if (i->operands[0].kind == OPERAND_VALUE) {
        FOR_LANES(mask, l) narrow(w, &i->operands[0])[l] = (uint32_t)__builtin_ctz(first);
    }
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

/* ---- Of a block ----------------------------------------------------------------------------------------------------------- */

/* A barrier for all waits for the warps that have not ended. */
static uint32_t expected(const struct block *block, const struct named_barrier *barrier) {
    return barrier->count ? barrier->count : (uint32_t)block->warps_alive * LANES;
}

static void release_if_complete(struct block *block, int id) {
    struct named_barrier *barrier = &block->barriers[id];
    if (!barrier->arrived || barrier->arrived < expected(block, barrier))
        return;
    if (barrier->count && barrier->arrived > barrier->count)
        machine_fail(NULL, "barrier %d counts %u threads of %u", id, barrier->arrived, barrier->count);
    for (int k = 0; k < block->warp_count; k++) {
        struct warp *w = &block->warps[k];
        if (w->state != WARP_AT_BARRIER || w->waits_at != id)
            continue;
        w->state = WARP_READY;
        if (strncmp(w->now->opcode, "bar.red", 7) && strncmp(w->now->opcode, "barrier.red", 11) &&
            strncmp(w->now->opcode, "barrier.cta.red", 15))
            continue;
        if (ptx_has(w->now->opcode, "popc"))
            for (int l = 0; l < LANES; l++)
                narrow(w, &w->now->operands[0])[l] = barrier->all;
        else
            set_predicate(w, (int)w->now->operands[0].offset, ~UINT32_C(0),
                          ptx_has(w->now->opcode, "or")      ? (barrier->any ? ~UINT32_C(0) : 0)
                          : barrier->all == barrier->arrived ? ~UINT32_C(0)
                                                             : 0);
    }
    *barrier = (struct named_barrier){0};
    machine->progress++;
}

static enum outcome arrive(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool reduces = ptx_has(i->opcode, "red"), waits = !ptx_has(i->opcode, "arrive");
    const struct operand *first = &i->operands[reduces];
    int id = (int)narrow(w, first)[__builtin_ctz(mask)], operands = i->operand_count - reduces * 2;
    uint32_t count = operands > 1 ? narrow(w, first + 1)[__builtin_ctz(mask)] : 0;
    if (id < 0 || id >= NAMED_BARRIERS || count % LANES)
        machine_fail(w, "barrier %d of %u threads", id, count);
    struct named_barrier *barrier = &w->block->barriers[id];
    if (barrier->arrived && barrier->count != count)
        machine_fail(w, "barrier %d is for %u threads, others said %u", id, count, barrier->count);
    barrier->count = count;
    barrier->arrived += LANES;
    if (reduces) {
        uint32_t bits = predicate(w, &i->operands[i->operand_count - 1]) & mask;
        barrier->any |= bits;
        barrier->all += (uint32_t)__builtin_popcount(bits) + (uint32_t)(LANES - __builtin_popcount(mask));
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

/* ---- Of a cluster ----------------------------------------------------------------------------------------------------------- */

static void release_cluster(struct cluster *cluster) {
    if (!cluster->arrived || cluster->arrived < cluster->threads_alive)
        return;
    cluster->arrived = 0;
    cluster->phase++;
    machine->progress++;
    for (int b = 0; b < cluster->block_count; b++)
        for (int k = 0; k < cluster->blocks[b].warp_count; k++) {
            struct warp *w = &cluster->blocks[b].warps[k];
            if (w->state == WARP_AT_CLUSTER)
                w->state = WARP_READY;
        }
}

static enum outcome cluster_arrive(struct warp *w, const struct instruction *i, uint32_t mask) {
    (void)i;
    (void)mask;
    if (w->cluster_ticket & 2)
        machine_fail(w, "arrives at the cluster's barrier twice without a wait");
    w->cluster_ticket = (w->block->cluster->phase & 1) | 2;
    w->block->cluster->arrived += LANES;
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
    if (is_over)
        return NEXT;
    w->state = WARP_AT_CLUSTER;
    return WAIT;
}

void machine_wake(struct block *block) {
    for (int id = 0; id < NAMED_BARRIERS; id++)
        release_if_complete(block, id);
    release_cluster(block->cluster);
}

static bool begins(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

operation decode_together(struct instruction *i) {
    i->meets = MEETS_MEMBERS;
    if (begins(i->opcode, "shfl.sync.")) {
        i->compare = ptx_has(i->opcode, "up") ? 0 : ptx_has(i->opcode, "down") ? 1 : ptx_has(i->opcode, "bfly") ? 2 : 3;
        return shuffle;
    }
    if (begins(i->opcode, "vote.sync."))
        return vote;
    if (begins(i->opcode, "elect.sync"))
        return elect;
    if (begins(i->opcode, "match.any.sync."))
        return match;
    if (begins(i->opcode, "redux.sync."))
        return redux;
    if (begins(i->opcode, "bar.warp.sync"))
        return meet;
    i->meets = MEETS_WARP;
    if (begins(i->opcode, "barrier.cluster.arrive"))
        return cluster_arrive;
    if (begins(i->opcode, "barrier.cluster.wait"))
        return cluster_wait;
    if (begins(i->opcode, "bar.") || begins(i->opcode, "barrier."))
        return arrive;
    i->meets = MEETS_NOBODY;
    return begins(i->opcode, "activemask") ? activemask : NULL;
}
