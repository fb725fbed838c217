/* SPDX-License-Identifier: Apache-2.0 */
/* The attention pattern family: a group of operations that together compute attention, or its gradients, is served as
   one or two operations that other families accept. graph/patterns/ matches the pattern and builds these operations.
   This file provides what a plan needs: the grouping of nodes, their cost, and the other families' kernels as a step of
   this graph. */
#include "base/arena.h"
#include "base/number.h"
#include "engines/cuda/core/delegate.h"
#include "engines/cuda/families.h"
#include "graph/ops/matmul.h"
#include "graph/patterns/attention.h"

enum { OPERATIONS_MAX = 3 }; /* forward, backward, a copy of dQ */

struct served_pattern {
    struct attention_pattern attention;
    const struct graph *graph; /* contains the operations: an sdpa_fwd, an sdpa_bwd, or both */
    const int *outer;          /* for each of its values, the corresponding value of the whole graph, or -1 */
    int count;                 /* number of operations, each a region of its own with its own offer */
    struct region regions[OPERATIONS_MAX];
    struct offer offers[OPERATIONS_MAX];
};

/* ---- Matching
   ------------------------------------------------------------------------------------------------------ */

/* True if the region is exactly the matched set, so that attempts to grow a region by adjacent nodes are declined. Both
   lists are in graph order. */
static bool covers(const struct attention_pattern *a, const struct region *region) {
    bool is_match = a->count == region->count;
    for (int i = 0; is_match && i < a->count; i++)
        is_match = a->nodes[i].node == region->nodes[i];
    return is_match;
}

/* Matches the pattern around a matmul: gradients, in which it is dO V^T, or attention, in which it is the last matmul.
   If neither matches, the error is that of the closer pattern. */
static weftStatus_t find_around(struct attention_pattern *match, const struct graph *graph, int node) {
    weftStatus_t status = attention_pattern_match_gradient(match, graph, node);
    return status && !match->is_gradient ? attention_pattern_match(match, graph, node) : status;
}

/* Searches from the last matmul backwards: in attention, it is P V. */
static weftStatus_t find(struct attention_pattern *match, const struct region *region) {
    for (int i = region->count; i-- > 0;) {
        if (op_of(region_node(region, i)->op) != &matmul_op)
            continue;
        weftStatus_t status = find_around(match, region->graph, region->nodes[i]);
        if (!status && covers(match, region))
            return WEFT_STATUS_SUCCESS;
        /* a single matmul was asked about: report the reason */
        if (status && region->count == 1)
            return status;
    }
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
         "%s: is not part of an attention pattern that matches the whole region",
         descriptor_label(region_node(region, 0)->op));
}

/* A plan asks at each node. The node that answers is P V in the forward pass, and dO V^T for gradients. */
static int companions(const struct graph *graph, int node, int *nodes) {
    struct attention_pattern match;
    int count = 0;
    if (op_of(graph->nodes[node].op) != &matmul_op || find_around(&match, graph, node))
        return 0;
    for (int i = 0; i < match.count; i++)
        if (match.nodes[i].node != node)
            nodes[count++] = match.nodes[i].node;
    return count;
}

/* ---- Analysis
   ------------------------------------------------------------------------------------------------------ */

/* All memory is in the arena: accepts frees it at once, a step keeps it. Each operation is offered separately, because
   different families may be the fastest for them. */
static weftStatus_t analyse(struct served_pattern *s, const struct region *region, const struct device *device,
                            struct arena *arena) {
    static const int nodes[OPERATIONS_MAX] = {0, 1, 2};
    struct graph *graph;
    TRY(find(&s->attention, region));
    TRY(attention_pattern_rewrite(&graph, &s->outer, &s->attention, arena));
    s->graph = graph;
    s->count = graph->node_count;
    for (int i = 0; i < s->count; i++) {
        s->regions[i] = (struct region){
            .graph = graph, .count = 1, .nodes = &nodes[i], .engine = region->engine, .allow = region->allow};
        TRY(engine_offer(&s->offers[i], region->engine, &s->regions[i], device, NULL));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The cost is the sum of the offers: the same kernels run, without any overhead. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct served_pattern s = {0};
    struct arena arena = {0};
    weftStatus_t status = analyse(&s, region, device, &arena);
    for (int i = 0; i < s.count; i++) {
        offer->seconds += s.offers[i].seconds;
        offer->used |= s.offers[i].used;
    }
    arena_free(&arena);
    return status;
}

/* Inexpensive: most matmuls do not feed the gradient of a softmax. */
static int relaxes(const struct graph *graph, int node) {
    struct attention_pattern match;
    bool is_match =
        op_of(graph->nodes[node].op) == &matmul_op && !attention_pattern_match_gradient(&match, graph, node);
    status_clear();
    return is_match ? RELAX_ORDER : 0;
}

/* ---- Building
   ------------------------------------------------------------------------------------------------------ */

/* Describes what the operations on the scores became: "sdpa_fwd of 9 operations, causal, with a score modifier". */
static weftStatus_t describe(const char **detail, const struct served_pattern *s, struct arena *arena) {
    const struct attention_pattern *a = &s->attention;
    const struct node *last = &s->graph->nodes[s->count - 1 - (a->dq_sums.tensor != NULL)];
    bool is_causal = a->right_bound == 0,
         has_bounds = a->right_bound != ATTENTION_UNBOUNDED || a->left_bound != ATTENTION_UNBOUNDED;
    bool is_mask = a->bias && dtype_is_boolean((weftDataType_t)a->bias->type);
    return arena_print(arena, detail, "%s of %d operation%s%s%s%s%s",
                       !a->is_gradient  ? "sdpa_fwd"
                       : a->given_stats ? "sdpa_bwd"
                                        : "sdpa_fwd and sdpa_bwd",
                       a->count, plural(a->count),
                       is_causal    ? ", causal"
                       : has_bounds ? ", bounded"
                                    : "",
                       !a->bias  ? ""
                       : is_mask ? ", mask"
                                 : ", bias",
                       attention_of(last->op)->modifier.graph ? ", score modifier" : "",
                       a->dropout || a->drop_mask ? ", dropout" : "");
}

/* Size in the workspace, where each allocation is aligned to 64 bytes. */
static int64_t bytes_of(const struct tensor *tensor) {
    return round_up(tensor_elements(tensor) * (dtype_of((weftDataType_t)tensor->type)->bits / 8), 64);
}

/* Locates the values: those of the whole graph where they are, and intermediate or unused values at the start of the
   workspace, of which *bytes are used. */
static weftStatus_t locate_values(struct kernel_place **result, int64_t *bytes, const struct served_pattern *s,
                                  struct arena *arena) {
    struct kernel_place *targets;
    TRY(arena_alloc(arena, &targets, (size_t)s->graph->value_count * sizeof *targets));
    *bytes = 0;
    for (int v = 0; v < s->graph->value_count; v++) {
        const struct tensor *tensor = s->graph->values[v].tensor;
        bool is_constant = s->outer[v] < 0 && tensor->is_constant;
        targets[v] = (struct kernel_place){v, s->outer[v], *bytes, is_constant ? tensor : NULL};
        if (s->outer[v] < 0 && !is_constant)
            *bytes += bytes_of(tensor);
    }
    *result = targets;
    return WEFT_STATUS_SUCCESS;
}

/* Adds the assumed scalars that a node reads. */
static void list_assumed(int *list, int *count, const struct graph *graph, int node) {
    for (int k = 0; k < graph->nodes[node].operand_count; k++) {
        int value = graph->nodes[node].operands[k];
        if (graph->values[value].tensor->is_assumed)
            list[(*count)++] = value;
    }
}

/* Lists the scalars that the match relies on: of its own nodes, and of the sums that it does not need. */
static weftStatus_t list_assumptions(struct step *step, const struct attention_pattern *a, struct arena *arena) {
    const struct graph *graph = step->region.graph;
    int *list, operands = 0;
    int of_sums = a->stored_sums ? graph->values[graph_find_value(graph, a->stored_sums)].producer : -1;
    for (int i = 0; i < a->count; i++)
        operands += graph->nodes[a->nodes[i].node].operand_count;
    operands += of_sums < 0 ? 0 : graph->nodes[of_sums].operand_count;
    TRY(arena_alloc(arena, &list, (size_t)operands * sizeof *list));
    step->assumptions = list;
    for (int i = 0; i < a->count; i++)
        list_assumed(list, &step->assumption_count, graph, a->nodes[i].node);
    if (of_sums >= 0)
        list_assumed(list, &step->assumption_count, graph, of_sums);
    return WEFT_STATUS_SUCCESS;
}

/* One step with the kernels of both operations, in order. Both get the knobs, and each reads those that it knows. */
static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct served_pattern *s;
    struct cuda_step *state;
    struct kernel_place *targets;
    int64_t intermediate_bytes, scratch = 0;
    TRY(arena_alloc(arena, &s, sizeof *s));
    TRY(arena_alloc(arena, &state, sizeof *state));
    TRY(analyse(s, &step->region, device, arena));
    TRY(locate_values(&targets, &intermediate_bytes, s, arena));
    TRY(describe(&step->detail, s, arena));
    TRY(list_assumptions(step, &s->attention, arena));
    step->seconds = 0;
    for (int i = 0; i < s->count; i++) {
        const struct offer *offer = &s->offers[i];
        struct step inner = {
            .family = offer->family, .region = s->regions[i], .seconds = offer->seconds, .used = offer->used};
        TRY(inner.family->build(&inner, device, knobs, arena));
        TRY(kernels_take(state, inner.state, targets, s->graph->value_count, intermediate_bytes, arena));
        scratch = max64(scratch, inner.workspace_bytes);
        step->seconds += inner.seconds;
        TRY(arena_print(arena, &step->detail, "%s%s %s: %s", step->detail, i ? ";" : ",", inner.family->name,
                        inner.detail ? inner.detail : ""));
    }
    step->state = state;
    /* the operations run one after another, so they share scratch memory */
    step->workspace_bytes = intermediate_bytes + scratch;
    return WEFT_STATUS_SUCCESS;
}

const struct family cuda_attention_pattern = {
    .name = "cuda.attention_pattern",
    .doc = "attention matched from matmuls, pointwise operations and a softmax, and its gradients, served as single "
           "operations",
    .combines = true,
    .accepts = accepts,
    .companions = companions,
    .build = build,
    .relaxes = relaxes,
};
