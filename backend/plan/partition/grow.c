/* SPDX-License-Identifier: Apache-2.0 */
/* Grows a region from a node: adds adjacent nodes as long as the family accepts the larger region, the region costs no
   more than its parts, and no cycle arises. */
#include "graph/ops/concat.h"
#include "plan/partition/cover.h"

#include <string.h>

enum {
    JOINED_MAX = 8, /* operations added at once */
    SHARED_MAX = 8, /* consumers of a value up to which they count as adjacent to each other */
};

/* ---- Adjacent nodes ---------------------------------------------------------------------------------------------- */

/* Adds an unassigned node to the adjacent ones, once, in graph order. */
static void add_adjacent(struct partitioning *p, int node) {
    if (p->owner[node] != UNASSIGNED || p->is_inside[node] || p->is_adjacent[node])
        return;
    p->is_adjacent[node] = true;
    insert_sorted(p->adjacent, p->adjacent_count++, node);
}

/* Adds the producers of the other parts of a concatenation that is computed in place and reads the value. */
static void add_other_parts(struct partitioning *p, const struct value *value) {
    for (int r = 0; r < value->readers; r++) {
        const struct node *reader = &p->graph->nodes[value->read_by[r]];
        if (op_of(reader->op) != &concat_op || p->owner[value->read_by[r]] != VIEW)
            continue;
        for (int k = 0; k < reader->operand_count; k++) {
            int producer = reader->is_output[k] ? -1 : p->graph->values[reader->operands[k]].producer;
            if (producer >= 0)
                add_adjacent(p, producer);
        }
    }
}

/* The value of whose memory a value is a part, through operations of one operand that execute nothing. */
static int viewed_value(const struct partitioning *p, int value) {
    int producer = p->graph->values[value].producer;
    while (producer >= 0 && p->owner[producer] == VIEW && p->graph->nodes[producer].operand_count == 2) {
        value = p->graph->nodes[producer].operands[0];
        producer = p->graph->values[value].producer;
    }
    return value;
}

/* Adds the consumers of a value and of its views. A value that is read everywhere, such as a scale shared by all
   layers, would make the whole graph adjacent. */
static void add_consumers(struct partitioning *p, int value) {
    const struct value *at = &p->graph->values[value];
    for (int r = 0; r < at->readers && at->readers <= SHARED_MAX; r++) {
        const struct node *reader = &p->graph->nodes[at->read_by[r]];
        if (p->owner[at->read_by[r]] == VIEW && reader->operand_count == 2)
            add_consumers(p, node_result(reader));
        else
            add_adjacent(p, at->read_by[r]);
    }
}

/* Adds the producers of a node's operands and the consumers of its results; for a family that can share loads, also the
   other consumers of its operands, and the nodes that compute parts of the same tensor. */
static void add_adjacent_to(struct partitioning *p, const struct node *node, const struct family *family) {
    for (int i = 0; i < node->operand_count; i++) {
        const struct value *value = &p->graph->values[node->operands[i]];
        if (value->producer >= 0)
            add_adjacent(p, value->producer);
        if (family->shares_reads && node->is_output[i])
            add_other_parts(p, value);
        for (int r = 0; node->is_output[i] && r < value->readers; r++)
            add_adjacent(p, value->read_by[r]);
        if (family->shares_reads && !node->is_output[i])
            add_consumers(p, viewed_value(p, node->operands[i]));
    }
}

/* Adds the nodes adjacent to the region's new nodes, which are those not in `before` (a sorted subset), and removes the
   ones that are now in the region. */
static void update_adjacent(struct partitioning *p, const struct part *part, const int *before, int count) {
    for (int i = 0, k = 0; i < part->region.count; i++)
        if (k < count && before[k] == p->nodes[i])
            k++;
        else
            add_adjacent_to(p, region_node(&part->region, i), part->family);
    int remaining = 0;
    for (int i = 0; i < p->adjacent_count; i++)
        if (!p->is_inside[p->adjacent[i]])
            p->adjacent[remaining++] = p->adjacent[i];
        else
            p->is_adjacent[p->adjacent[i]] = false;
    p->adjacent_count = remaining;
}

/* The next candidate starts with an empty list. */
static void clear_adjacent(struct partitioning *p) {
    for (int i = 0; i < p->adjacent_count; i++)
        p->is_adjacent[p->adjacent[i]] = false;
    p->adjacent_count = 0;
}

/* ---- Nodes that a family needs in addition ----------------------------------------------------------------------- */

static void add_node(struct partitioning *p, struct part *part, int node) {
    insert_sorted(p->nodes, part->region.count++, node);
}

/* Adds consumers of the open results until only one result is open, such as both operations of x sigmoid(x). */
static bool add_readers(struct partitioning *p, struct part *part) {
    /* Only the first consumer is needed here, not the number of open results. */
    int reader;
    open_results(p, &part->region, &reader);
    for (int added = 0; reader >= 0 && p->owner[reader] == UNASSIGNED && added < JOINED_MAX; added++) {
        add_node(p, part, reader);
        if (open_results(p, &part->region, &reader) <= 1)
            return true;
    }
    return false;
}

/* Adds the producer of an operand that is not stored in the user's memory, one at a time, starting from the last node;
   the family is asked again after each. */
static bool add_producer(struct partitioning *p, struct part *part) {
    struct region *region = &part->region;
    for (int i = region->count; i-- > 0 && region->count > 1;) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            const struct value *value = &p->graph->values[node->operands[k]];
            int producer = node->is_output[k] || value_is_slot(value) ? -1 : value->producer;
            if (producer >= 0 && p->owner[producer] == UNASSIGNED && !region_has(region, producer)) {
                add_node(p, part, producer);
                return true;
            }
        }
    }
    return false;
}

/* A family may decline the result of an operation but accept the result of the operations that consume it. Only
   refusals of a layout or data type can be resolved by adding operations; shapes and devices stay the same. */
static bool accepts_with_readers(struct partitioning *p, struct part *part) {
    struct offer offer;
    /* Terminates, because each iteration adds an operation. */
    do {
        weftStatus_t status = query_family(p, part->family, &part->region, &offer);
        if (status == WEFT_STATUS_SUCCESS) {
            part->seconds = offer.seconds;
            part->used = offer.used;
            return true;
        }
        if (status != WEFT_STATUS_NOT_SUPPORTED_LAYOUT && status != WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE)
            return false;
    } while (add_readers(p, part) || add_producer(p, part));
    return false;
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

/* True if serving the grown region costs no more than serving the added nodes separately. Ties grow, because that saves
   a step. */
static bool is_worthwhile(struct partitioning *p, const struct part *part, const struct part *before) {
    /* The region before it grew. */
    struct region old = {.count = before->region.count, .nodes = p->grown};
    int count = subtract_region(p->rest_nodes, part->region.nodes, part->region.count, &old);
    return part->seconds <= before->seconds + separate_seconds(p, p->rest_nodes, count);
}

/* Grows a candidate by one adjacent node, or by several if the family requires it. On success part->seconds and
   p->nodes describe the grown region. */
static bool grow_once(struct partitioning *p, struct part *part) {
    /* A rejected attempt is undone: nodes and part are restored. */
    const struct part before = *part;
    int count = before.region.count;
    memcpy(p->grown, p->nodes, (size_t)count * sizeof *p->nodes);
    for (int i = 0; i < p->adjacent_count; i++) {
        add_node(p, part, p->adjacent[i]);
        /* The tests are ordered by cost; most attempts fail the first one. */
        if (accepts_with_readers(p, part) && is_worthwhile(p, part, &before) && is_acyclic(p, &part->region)) {
            set_inside(p, &part->region, true);
            update_adjacent(p, part, p->grown, count);
            return true;
        }
        memcpy(p->nodes, p->grown, (size_t)count * sizeof *p->nodes);
        *part = before;
    }
    return false;
}

/* Starts a region with a node, or with the consumers that the family needs to accept it, and with its companions if
   has_companions. False if the family declines, or if it has no companions here, or if one of them is in another part.
   Views among the companions have no other consumer. */
static bool start_region(struct partitioning *p, struct part *part, int seed, bool has_companions) {
    int count = has_companions ? part->family->companions(p->graph, seed, p->nodes) : 0;
    bool are_free = count > 0 || !has_companions;
    for (int i = 0; i < count; i++)
        are_free = are_free && (p->owner[p->nodes[i]] == UNASSIGNED || p->owner[p->nodes[i]] == VIEW);
    /* The family lists companions in any order; regions are sorted. */
    for (int i = 1; i < count; i++)
        insert_sorted(p->nodes, i, p->nodes[i]);
    insert_sorted(p->nodes, count, seed);
    part->region.count = count + 1;
    return are_free && accepts_with_readers(p, part);
}

bool grow_region(struct partitioning *p, struct part *part, int seed, bool has_companions) {
    if (!start_region(p, part, seed, has_companions) || !is_acyclic(p, &part->region))
        return false;
    set_inside(p, &part->region, true);
    update_adjacent(p, part, NULL, 0);
    /* Stops when no adjacent node can join. */
    while (grow_once(p, part)) {
    }
    clear_adjacent(p);
    set_inside(p, &part->region, false);
    return true;
}
