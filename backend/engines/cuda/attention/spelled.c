/* SPDX-License-Identifier: Apache-2.0 */
/* The spelled attention family: operations that are attention together, as one operation that the other families are
   asked for. */
#include "base/arena.h"
#include "engines/cuda/core/take.h"
#include "engines/cuda/families.h"
#include "graph/ops/matmul.h"
#include "graph/spelled/attention.h"

struct spelled {
    struct spelled_attention attention;
    struct region region; /* of a graph of one sdpa_fwd */
    const int *outer;     /* of each of its values: that of the whole graph */
    struct offer offer;
};

/* ---- Which operations -------------------------------------------------------------------------------------------- */

/* Both lists are in the order of the graph. */
static bool covers(const struct spelled_attention *a, const struct region *region) {
    bool is = a->count == region->count;
    for (int i = 0; is && i < a->count; i++)
        is = a->nodes[i] == region->nodes[i];
    return is;
}

/* From the last product backwards: the one of weights and values. */
static weftStatus_t find(struct spelled_attention *found, const struct region *region) {
    for (int i = region->count; i-- > 0;)
        if (op_of(region_node(region, i)->op) == &matmul_op) {
            TRY(spelled_attention_find(found, region->graph, region->nodes[i]));
            if (covers(found, region))
                return WEFT_STATUS_SUCCESS;
            break;
        }
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: spells no attention together with what goes with it",
         descriptor_label(region_node(region, 0)->op));
}

static int companions(const struct graph *graph, int node, int *nodes) {
    struct spelled_attention found;
    int count = 0;
    if (op_of(graph->nodes[node].op) != &matmul_op || spelled_attention_find(&found, graph, node))
        return 0;
    for (int i = 0; i < found.count; i++)
        if (found.nodes[i] != node)
            nodes[count++] = found.nodes[i];
    return count;
}

/* ---- Who serves them --------------------------------------------------------------------------------------------- */

static weftStatus_t analyse(struct spelled *s, const struct region *region, const struct device *device,
                            struct arena *arena) {
    static const int only[] = {0};
    struct graph *graph;
    TRY(find(&s->attention, region));
    TRY(spelled_attention_make(&graph, &s->outer, &s->attention, arena));
    s->region = (struct region){.graph = graph, .count = 1, .nodes = only, .engine = region->engine};
    return engine_offer(&s->offer, region->engine, &s->region, device, NULL);
}

/* The price is the offer's: the same kernels run, and nothing beside them. */
static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct spelled s = {0};
    struct arena arena = {0};
    weftStatus_t status = analyse(&s, region, device, &arena);
    *seconds = s.offer.seconds;
    arena_free(&arena);
    return status;
}

/* "causal, with a score modifier": what became of the operations on the scores. */
static weftStatus_t describe(struct step *step, const struct spelled *s, const char *detail, struct arena *arena) {
    const struct spelled_attention *a = &s->attention;
    bool is_causal = a->right_bound == 0,
         has_bounds = a->right_bound != ATTENTION_UNBOUNDED || a->left_bound != ATTENTION_UNBOUNDED;
    bool is_mask = a->bias && dtype_is_boolean((weftDataType_t)a->bias->type);
    return arena_print(arena, &step->detail, "sdpa_fwd of %d operations%s%s%s%s, %s: %s", a->count,
                       is_causal    ? ", causal"
                       : has_bounds ? ", bounded"
                                    : "",
                       !a->bias  ? ""
                       : is_mask ? ", mask"
                                 : ", bias",
                       a->modified != a->product || a->is_rounded ? ", score modifier" : "",
                       a->dropout ? ", dropout" : "", s->offer.family->name, detail ? detail : "");
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct spelled *s;
    struct cuda_step *state;
    struct kernel_place *places;
    TRY(arena_alloc(arena, &s, sizeof *s));
    TRY(arena_alloc(arena, &state, sizeof *state));
    TRY(analyse(s, &step->region, device, arena));
    const struct graph *graph = s->region.graph;
    TRY(arena_alloc(arena, &places, (size_t)graph->value_count * sizeof *places));
    for (int v = 0; v < graph->value_count; v++)
        places[v] = (struct kernel_place){v, s->outer[v], 0, s->outer[v] < 0 ? graph->values[v].tensor : NULL};
    struct step inner = {.family = s->offer.family, .region = s->region, .seconds = s->offer.seconds};
    TRY(inner.family->build(&inner, device, knobs, arena));
    TRY(kernels_take(state, inner.state, places, graph->value_count, 0, arena));
    step->state = state;
    step->workspace_bytes = inner.workspace_bytes;
    step->seconds = inner.seconds;
    return describe(step, s, inner.detail, arena);
}

const struct family cuda_spelled_attention = {
    .name = "cuda.spelled_attention",
    .doc = "attention spelled out of products, pointwise operations and a softmax, as the operation that it is",
    .combines = true,
    .accepts = accepts,
    .companions = companions,
    .build = build,
};
