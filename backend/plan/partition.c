/* SPDX-License-Identifier: Apache-2.0 */
/* Each family of the engine, best first, seeds regions at the nodes that it accepts and lets them grow over neighbours
   for as long as it accepts the larger region and the regions stay free of cycles. */
#include "plan/partition.h"
#include "base/text.h"

#include <string.h>

enum { UNASSIGNED = -1, NOT_NEEDED = -2, VIEW = -3 };
enum { JOINED_MAX = 8 /* operations added at once */ };

struct partitioning {
    const struct graph *graph;
    const struct engine *engine;
    const struct device *device;
    const struct knob_choices *knobs;
    int64_t scratch_limit; /* of a part; INT64_MAX: none */
    struct arena *arena;
    int *owner;  /* of each node: a part, or one of the above */
    int *memory; /* see struct cover */
    struct part *parts;
    int part_count;
    bool *beside; /* per node: a neighbour of the newest part */
    int *waiting; /* scratch of the acyclicity test: per node */
    int *grown;   /* scratch of growing: the part before */
};

/* ---- Asking a family ---------------------------------------------------------------------------------------------- */

/* What the family says of a region; and where there is a limit, whether the step would keep to it. */
static weftStatus_t ask(const struct partitioning *p, const struct family *family, const struct region *region,
                        double *seconds) {
    TRY(family->accepts(region, p->device, seconds));
    if (p->scratch_limit == INT64_MAX)
        return WEFT_STATUS_SUCCESS;
    struct step step = {.family = family, .region = *region, .seconds = *seconds};
    TRY(family->build(&step, p->device, p->knobs, p->arena));
    if (family->release)
        family->release(&step);
    if (step.workspace_bytes > p->scratch_limit)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: it takes %lld bytes of workspace, the limit is %lld.",
             descriptor_label(region_node(region, 0)->op), (long long)step.workspace_bytes,
             (long long)p->scratch_limit);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Which nodes matter ------------------------------------------------------------------------------------------ */

static void drop_needless_nodes(struct partitioning *p) {
    for (int n = 0; n < p->graph->node_count; n++)
        p->owner[n] = graph_needs(p->graph, &p->graph->nodes[n]) ? UNASSIGNED : NOT_NEEDED;
}

/* ---- Views ------------------------------------------------------------------------------------------------------- */

/* Nodes whose virtual result is the memory of an input run nothing. */
static void find_views(struct partitioning *p) {
    const struct graph *graph = p->graph;
    for (int v = 0; v < graph->value_count; v++)
        p->memory[v] = v;
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        struct tensor *source = op_of(node->op)->memory_of ? op_of(node->op)->memory_of(node->op) : NULL;
        for (int i = 0; source && p->owner[n] == UNASSIGNED && i < node->operand_count; i++)
            if (node->is_output[i] && graph->values[node->operands[i]].tensor->is_virtual) {
                p->memory[node->operands[i]] = p->memory[graph_find_value(graph, source)];
                p->owner[n] = VIEW;
            }
    }
}

/* ---- Cycles ------------------------------------------------------------------------------------------------------ */

/* The nodes that run together with a node: those of its part, or itself alone. */
static struct region companions(const struct partitioning *p, const int *node) {
    if (p->owner[*node] >= 0)
        return p->parts[p->owner[*node]].region;
    return (struct region){.graph = p->graph, .count = 1, .nodes = node};
}

/* Whether all that a group reads from outside of it is made. */
static bool group_is_ready(const struct partitioning *p, const struct region *group) {
    for (int k = 0; k < group->count; k++) {
        const struct node *node = region_node(group, k);
        for (int i = 0; i < node->operand_count; i++) {
            int producer = p->graph->values[node->operands[i]].producer;
            bool inside =
                producer >= 0 && (producer == group->nodes[k] ||
                                  (p->owner[producer] >= 0 && p->owner[producer] == p->owner[group->nodes[k]]));
            if (!node->is_output[i] && producer >= 0 && !inside && p->waiting[producer])
                return false;
        }
    }
    return true;
}

/* Nodes of one part wait for each other; so the parts, with every other node a part of its own, must have an order in
   which each finds its inputs made. Writes that order (of parts) to `order` when it is given. */
static bool parts_are_acyclic(struct partitioning *p, int *order) {
    int placed = 0, left = 0;
    for (int n = 0; n < p->graph->node_count; n++) {
        p->waiting[n] = p->owner[n] != NOT_NEEDED;
        left += p->waiting[n];
    }
    for (bool moved = true; left && moved;) {
        moved = false;
        for (int n = 0; n < p->graph->node_count; n++) {
            struct region group = companions(p, &n);
            if (!p->waiting[n] || n != group.nodes[0] || !group_is_ready(p, &group))
                continue;
            for (int k = 0; k < group.count; k++)
                p->waiting[group.nodes[k]] = 0;
            left -= group.count;
            moved = true;
            if (order && p->owner[n] >= 0)
                order[placed++] = p->owner[n];
        }
    }
    return left == 0;
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

static bool node_writes(const struct node *node, int value) {
    for (int i = 0; i < node->operand_count; i++)
        if (node->operands[i] == value && node->is_output[i])
            return true;
    return false;
}

/* Marks the nodes that make what a node reads, or read what it makes. */
static void mark_neighbours_of(struct partitioning *p, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        const struct value *value = &p->graph->values[node->operands[i]];
        if (value->producer >= 0)
            p->beside[value->producer] = true;
        for (int m = value->first_reader; node_writes(node, node->operands[i]) && m >= 0 && m <= value->last_reader;
             m++)
            for (int k = 0; k < p->graph->nodes[m].operand_count; k++)
                p->beside[m] = p->beside[m] || p->graph->nodes[m].operands[k] == node->operands[i];
    }
}

static void mark_neighbours(struct partitioning *p, const struct region *region) {
    for (int i = 0; i < region->count; i++)
        mark_neighbours_of(p, region_node(region, i));
}

static void insert_sorted(int *nodes, int count, int node) {
    int at = count;
    for (; at > 0 && nodes[at - 1] > node; at--)
        nodes[at] = nodes[at - 1];
    nodes[at] = node;
}

/* The first node outside of a region that reads a value and is needed; -1: none. */
static int outside_reader(const struct partitioning *p, const struct region *region, int value) {
    const struct value *read = &p->graph->values[value];
    for (int m = read->first_reader; m >= 0 && m <= read->last_reader; m++)
        for (int k = 0; k < p->graph->nodes[m].operand_count; k++)
            if (p->graph->nodes[m].operands[k] == value && p->owner[m] != NOT_NEEDED && !region_has(region, m))
                return m;
    return -1;
}

/* How many results of a region others read, those left out that have memory of their own; and the first that reads one of
   them, -1: nobody. */
static int open_results(const struct partitioning *p, const struct region *region, int *reader) {
    int count = 0;
    *reader = -1;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            bool is_hidden = node->is_output[k] && !value_is_slot(&p->graph->values[node->operands[k]]);
            int m = is_hidden ? outside_reader(p, region, node->operands[k]) : -1;
            count += m >= 0;
            *reader = m >= 0 && (*reader < 0 || m < *reader) ? m : *reader;
        }
    }
    return count;
}

/* Adds what reads the results, until they have come together in one: of x sigmoid(x) both operations. */
static bool add_readers(const struct partitioning *p, struct part *part, int *nodes) {
    int reader;
    open_results(p, &part->region, &reader);
    for (int added = 0; reader >= 0 && p->owner[reader] == UNASSIGNED && added < JOINED_MAX; added++) {
        insert_sorted(nodes, part->region.count++, reader);
        if (open_results(p, &part->region, &reader) <= 1)
            return true;
    }
    return false;
}

/* Adds what makes an operand of operations that were added, which has no memory of its own. */
static bool add_maker(const struct partitioning *p, struct part *part, int *nodes) {
    struct region *region = &part->region;
    for (int i = region->count; i-- > 0 && region->count > 1;) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            const struct value *value = &p->graph->values[node->operands[k]];
            int maker = node->is_output[k] || value_is_slot(value) ? -1 : value->producer;
            if (maker >= 0 && p->owner[maker] == UNASSIGNED && !region_has(region, maker)) {
                insert_sorted(nodes, region->count++, maker);
                return true;
            }
        }
    }
    return false;
}

/* A family may decline what an operation makes, and take what the operations behind it make of that, and of what others do. */
static bool accepts_with_readers(struct partitioning *p, struct part *part, int *nodes) {
    double seconds;
    do {
        weftStatus_t status = ask(p, part->family, &part->region, &seconds);
        if (status == WEFT_STATUS_SUCCESS) {
            part->seconds = seconds;
            return true;
        }
        if (status != WEFT_STATUS_NOT_SUPPORTED_LAYOUT && status != WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE)
            return false;
    } while (add_readers(p, part, nodes) || add_maker(p, part, nodes));
    return false;
}

static void set_owner(struct partitioning *p, const struct region *region, int owner) {
    for (int i = 0; i < region->count; i++)
        p->owner[region->nodes[i]] = owner;
}

/* Adds one more neighbour to the newest part, or several, if family and order allow it. */
static bool grow_once(struct partitioning *p, struct part *part, int *nodes) {
    const struct part before = *part;
    int id = p->part_count - 1;
    memcpy(p->grown, nodes, (size_t)before.region.count * sizeof *nodes);
    for (int n = 0; n < p->graph->node_count; n++) {
        if (p->owner[n] != UNASSIGNED || !p->beside[n])
            continue;
        insert_sorted(nodes, part->region.count++, n);
        if (accepts_with_readers(p, part, nodes)) {
            set_owner(p, &part->region, id);
            if (parts_are_acyclic(p, NULL)) {
                mark_neighbours(p, &part->region);
                return true;
            }
            set_owner(p, &part->region, UNASSIGNED);
        }
        memcpy(nodes, p->grown, (size_t)before.region.count * sizeof *nodes);
        *part = before;
        set_owner(p, &part->region, id);
    }
    return false;
}

/* A family may take an operation only together with those that prepare what it alone reads. */
static bool accepts_with_companions(struct partitioning *p, struct part *part, int *nodes, int seed) {
    const struct family *family = part->family;
    int count = family->companions ? family->companions(p->graph, seed, nodes) : 0;
    bool are_free = count > 0;
    for (int i = 0; i < count; i++)
        are_free = are_free && p->owner[nodes[i]] == UNASSIGNED;
    for (int i = 1; i < count; i++)
        insert_sorted(nodes, i, nodes[i]);
    insert_sorted(nodes, count, seed);
    part->region.count = are_free ? count + 1 : 0;
    if (are_free && accepts_with_readers(p, part, nodes))
        return true;
    part->region.count = 0;
    return false;
}

static bool accepts_alone(struct partitioning *p, struct part *part, int *nodes, int seed) {
    nodes[0] = seed;
    part->region.count = 1;
    return accepts_with_readers(p, part, nodes);
}

static weftStatus_t start_part(struct partitioning *p, const struct family *family, int seed, bool *started) {
    int *nodes;
    TRY(arena_alloc(p->arena, &nodes, (size_t)p->graph->node_count * sizeof *nodes));
    struct part *part = &p->parts[p->part_count];
    *part = (struct part){.family = family, .region = {.graph = p->graph, .nodes = nodes}};
    *started = accepts_with_companions(p, part, nodes, seed) || accepts_alone(p, part, nodes, seed);
    if (!*started)
        return WEFT_STATUS_SUCCESS;
    memset(p->beside, 0, (size_t)p->graph->node_count * sizeof *p->beside);
    set_owner(p, &part->region, p->part_count++);
    *started = parts_are_acyclic(p, NULL);
    if (!*started) {
        set_owner(p, &part->region, UNASSIGNED);
        p->part_count--;
        return WEFT_STATUS_SUCCESS;
    }
    mark_neighbours(p, &part->region);
    while (grow_once(p, part, nodes)) {
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Reasons ----------------------------------------------------------------------------------------------------- */

/* What the families before `until` (all when NULL) say of a node on its own. */
static weftStatus_t collect_refusals(struct partitioning *p, struct part *part, int node, const struct family *until) {
    struct region alone = {.graph = p->graph, .count = 1, .nodes = &node};
    int families = 0;
    while (p->engine->families[families])
        families++;
    TRY(arena_alloc(p->arena, &part->refusals, (size_t)families * sizeof *part->refusals));
    for (int f = 0; p->engine->families[f] && p->engine->families[f] != until; f++) {
        double seconds;
        struct refusal *refusal = &part->refusals[part->refusal_count];
        if (!engine_uses(p->engine, p->engine->families[f]) ||
            ask(p, p->engine->families[f], &alone, &seconds) == WEFT_STATUS_SUCCESS)
            continue;
        refusal->family = p->engine->families[f]->name;
        TRY(arena_print(p->arena, &refusal->reason, "%s", status_text()));
        part->refusal_count++;
    }
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t fail_for_node(struct partitioning *p, int node) {
    struct part nobody = {0};
    struct text reasons;
    text_init(&reasons);
    TRY(collect_refusals(p, &nobody, node, NULL));
    for (int i = 0; i < nobody.refusal_count; i++)
        text_add(&reasons, " %s: %s.", nobody.refusals[i].family, nobody.refusals[i].reason);
    weftStatus_t status =
        status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "engine %s: no kernel family serves %s.%s",
                    p->engine->name, descriptor_label(p->graph->nodes[node].op), text_string(&reasons));
    text_free(&reasons);
    return status;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* What an engine is for that does as another one but for one liberty: whether a family takes it at a node. NULL: no such engine. */
typedef bool liberty(const struct graph *graph, int node);
static liberty *liberty_of(const struct engine *engine, const struct family *family) {
    return engine->narrows ? family->narrows : engine->reorders ? family->reorders : NULL;
}
static bool is_liberal(const struct engine *engine) { return engine->narrows || engine->reorders; }

static bool may_take_liberty(const struct partitioning *p) {
    for (int f = 0; p->engine->families[f]; f++)
        for (int n = 0; n < p->graph->node_count && liberty_of(p->engine, p->engine->families[f]); n++)
            if (p->owner[n] == UNASSIGNED && liberty_of(p->engine, p->engine->families[f])(p->graph, n))
                return true;
    return false;
}

static weftStatus_t fail_without_liberty(const struct partitioning *p) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "engine %s: nothing in %s is %s.", p->engine->name,
         descriptor_label(&p->graph->base), p->engine->narrows ? "narrowed" : "summed in an order that differs");
}

/* An engine that would do as another does is no choice. */
static weftStatus_t check_liberty(struct partitioning *p) {
    bool is_taken = !is_liberal(p->engine);
    for (int i = 0; i < p->part_count; i++)
        is_taken = is_taken || liberty_of(p->engine, p->parts[i].family);
    if (is_taken)
        return WEFT_STATUS_SUCCESS;
    double seconds;
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    for (int f = 0; p->part_count == 1 && p->engine->families[f]; f++) /* the most general one's reason counts */
        if (liberty_of(p->engine, p->engine->families[f]))
            status = p->engine->families[f]->accepts(&p->parts[0].region, p->device, &seconds);
    return status ? status : fail_without_liberty(p);
}

static weftStatus_t assign_all(struct partitioning *p) {
    if (is_liberal(p->engine) && !may_take_liberty(p)) /* known before all else is planned as another engine would */
        return fail_without_liberty(p);
    for (int f = 0; p->engine->families[f]; f++)
        for (int n = 0; n < p->graph->node_count; n++) {
            bool started = false;
            if (p->owner[n] == UNASSIGNED && engine_uses(p->engine, p->engine->families[f]))
                TRY(start_part(p, p->engine->families[f], n, &started));
        }
    for (int n = 0; n < p->graph->node_count; n++)
        if (p->owner[n] == UNASSIGNED)
            return fail_for_node(p, n);
    if (p->part_count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s computes nothing: every tensor that it writes is virtual. Mark an output.",
             descriptor_label(&p->graph->base));
    return check_liberty(p);
}

weftStatus_t partition(struct cover *cover, const struct graph *graph, const struct engine *engine,
                       const struct device *device, const struct knob_choices *knobs, int64_t scratch_limit,
                       struct arena *arena) {
    struct partitioning p = {.graph = graph,
                             .engine = engine,
                             .device = device,
                             .knobs = knobs,
                             .scratch_limit = scratch_limit,
                             .arena = arena};
    size_t nodes = (size_t)graph->node_count;
    int *order, *place;
    if (engine->device != device->kind)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
             "engine %s runs on %s devices, the device is %s:%d. Use another engine, or give a handle or device "
             "properties of such a device.",
             engine->name, device_kind_name(engine->device), device_kind_name(device->kind), (int)device->ordinal);
    TRY(arena_alloc(arena, &p.owner, nodes * sizeof *p.owner));
    TRY(arena_alloc(arena, &p.memory, (size_t)graph->value_count * sizeof *p.memory));
    TRY(arena_alloc(arena, &p.beside, nodes * sizeof *p.beside));
    TRY(arena_alloc(arena, &p.waiting, nodes * sizeof *p.waiting));
    TRY(arena_alloc(arena, &p.grown, nodes * sizeof *p.grown));
    TRY(arena_alloc(arena, &p.parts, (nodes + 1) * sizeof *p.parts));
    TRY(arena_alloc(arena, &order, nodes * sizeof *order));
    TRY(arena_alloc(arena, &place, nodes * sizeof *place));
    drop_needless_nodes(&p);
    find_views(&p);
    TRY(assign_all(&p));
    if (!parts_are_acyclic(&p, order))
        FAIL(WEFT_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE, "%s: regions depend on each other in a circle.",
             descriptor_label(&graph->base));

    cover->count = p.part_count;
    cover->part_of_node = p.owner;
    cover->memory = p.memory;
    TRY(arena_alloc(arena, &cover->parts, (size_t)p.part_count * sizeof *cover->parts));
    for (int i = 0; i < p.part_count; i++) {
        place[order[i]] = i;
        cover->parts[i] = p.parts[order[i]];
        TRY(collect_refusals(&p, &cover->parts[i], cover->parts[i].region.nodes[0], cover->parts[i].family));
    }
    for (int n = 0; n < graph->node_count; n++)
        p.owner[n] = p.owner[n] >= 0 ? place[p.owner[n]] : -1;
    return WEFT_STATUS_SUCCESS;
}
