/* SPDX-License-Identifier: Apache-2.0 */
/* The two interfaces of this layer. A kernel family serves regions of a graph: it accepts a region with a predicted
   time or refuses it with a message, builds a step, and runs it. It knows no other family. An engine is a device kind,
   a list of families, and the relaxations that its requests allow. The planner covers a graph with regions of minimal
   total predicted time, so an engine whose list ends with the reference family runs every graph. */
#ifndef WEFT_ENGINES_ENGINE_H
#define WEFT_ENGINES_ENGINE_H

#include "base/arena.h"
#include "base/text.h"
#include "graph/graph.h"
#include "runtime/aot_code.h"
#include "runtime/context.h"

/* What a request may allow beyond results that are exact in the operands' types and equal in every run. Bits of `allow`
   and `used`. */
enum relaxation {
    RELAX_TF32 = 1,  /* floats are multiplied in TF32, which has 10 mantissa bits */
    RELAX_ORDER = 2, /* the order of sums differs from run to run */
};

/* Nodes of a graph that are served together, in the graph's order. A region borrows its graph and the list of nodes, so
   it is valid as long as both exist. */
struct region {
    const struct graph *graph;
    int count;
    const int *nodes;
    const struct engine *engine; /* engine whose families may serve parts of a combined region, or NULL */
    int allow;                   /* relaxations that the request allows */
};

struct knob {
    weftBackendKnobType_t type;
    int64_t least, most, stride;
    int64_t initial;
    const char *doc;
};

/* The value chosen for a knob type. Families read the knobs that they know. */
struct knob_choice {
    weftBackendKnobType_t type;
    int64_t value;
};

struct knob_choices {
    int count;
    const struct knob_choice *items;
};

/* Finds the choice for a knob, or NULL. The list itself may be NULL. */
static inline const struct knob_choice *knob_find(const struct knob_choices *knobs, weftBackendKnobType_t type) {
    for (int i = 0; knobs && i < knobs->count; i++)
        if (knobs->items[i].type == type)
            return &knobs->items[i];
    return NULL;
}

/* Like knob_find, but 0 stands for "not chosen". */
static inline int64_t knob_value(const struct knob_choices *knobs, weftBackendKnobType_t type) {
    const struct knob_choice *choice = knob_find(knobs, type);
    return choice ? choice->value : 0;
}

/* A region that is ready to run. */
struct step {
    const struct family *family;
    struct region region;
    const struct step *before; /* previous step of the plan, or NULL */
    void *state;               /* private to the family, allocated in the plan's arena */
    int64_t workspace_bytes;   /* scratch memory that run needs, aligned to 64 bytes */
    double seconds;            /* predicted */
    int used;                  /* relaxations, of those that the region allows */
    int assumption_count;   /* the by-value scalars whose assumed numbers the step relies on, as values of the graph */
    const int *assumptions; /* (graph/patterns/assumptions.h) */
    const char *detail;     /* description of the kernel, such as "6x16 tiles, K panels of 384", or NULL */
};

/* A family's answer for a region that it accepts. */
struct offer {
    const struct family *family;
    double seconds;        /* predicted */
    int used;              /* relaxations, of those that the region allows */
    weftStatus_t declined; /* why an allowed relaxation is not used; its message is the thread's error text */
};

struct family {
    const char *name; /* "cpu.map" */
    const char *doc;
    bool is_last_resort;      /* asked only about regions that no other family serves */
    bool combines;            /* rewrites a region and delegates it to another family, found with engine_offer */
    bool shares_reads;        /* accepts operations that share only their inputs */
    bool wants_boxes;         /* reads operands only as TMA boxes, so copying them first may pay off */
    const struct knob *knobs; /* terminated by a knob without doc; NULL if the family has none */
    /* Returns SUCCESS and fills in a cleared offer, or NOT_SUPPORTED* and a message that says what would have to
       change. Has no side effects. */
    weftStatus_t (*accepts)(const struct region *region, const struct device *device, struct offer *offer);
    /* Lists producer nodes whose only consumer is this node and that the family fuses with it. Fills in their indices,
       at most all nodes of the graph but one, and returns their count. NULL: never. */
    int (*companions)(const struct graph *graph, int node, int *nodes);
    /* Fills in step->state, workspace_bytes and detail for an accepted region. Inexpensive: compiles nothing. `seconds`
       and `used` are those of accepts; a family with knobs updates the time for the chosen knobs. */
    weftStatus_t (*build)(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena);
    /* Prepares what run needs when a plan is finalized for a device of this machine, after the engine's compile. NULL:
       use the engine's function. */
    weftStatus_t (*load)(struct step *step, const struct device *device);
    /* Runs on the memory of the graph's values (NULL: dead, or internal to the region). Allocates nothing. NULL: use
       the engine's function. */
    weftStatus_t (*run)(const struct step *step, void *const *values, void *workspace, weftStream_t stream);
    /* Caches packed copies of the inputs in `values` that are not NULL and whose contents will not change, for runs on
       the same addresses. Drops what an earlier call cached. No run is in progress. NULL: the family packs nothing. */
    weftStatus_t (*freeze)(struct step *step, void *const *values);
    /* True if output value `out` may be stored exactly over input value `in`. NULL: never. */
    bool (*may_alias)(const struct step *step, int in, int out);
    /* Frees what the arena does not own. NULL: use the engine's function. */
    void (*release)(struct step *step);
    /* Relaxations that the family might use for an operation. Must be fast and may return too many. NULL: none. */
    int (*relaxes)(const struct graph *graph, int node);
    /* True if the family might read this operand of the node as parts at separate addresses (graph/views.h). Must be
       fast and may err on the side of true. NULL: never; regions that would require it are not offered to the
       family. */
    bool (*gathers)(const struct graph *graph, int node, int value);
};

struct engine {
    const char *name; /* "cpu.fast" */
    const char *doc;
    weftDeviceKind_t device;
    /* in the order in which they start regions and win ties; terminated by NULL */
    const struct family *const *families;
    int allow; /* relaxations that its requests allow; graphs in which no part uses one are declined */
    const weftBackendNumericalNote_t *numerical_notes;
    int numerical_note_count;
    const weftBackendBehaviorNote_t *behavior_notes;
    int behavior_note_count;
    /* Intermediates of unset type are stored with the 16 bits of the type that they are computed from. The CPU does not
       do this: it is no faster there (norms next to products: 0.93 to 1.04) and rounds the scores between a product and
       a softmax. */
    bool stores_narrow;
    bool parts_batch_norms;   /* channel sums are fused into products, so splitting batch norms may be cheaper */
    bool takes_any_alignment; /* kernels require only element alignment */
    bool assumes_numbers;     /* plans assume the usual numbers of by-value scalars */
    bool is_fallback;         /* offered by heuristics mode FALLBACK */
    /* Compiles the kernels of a plan's steps, several at a time. Reuses code from `aot_codes` (may be NULL) if it
       matches a kernel. NULL: nothing to compile. */
    weftStatus_t (*compile)(struct step *steps, int count, const struct device *device,
                            const struct aot_codes *aot_codes);
    /* Checks that the kernels of a built step fit a device whose properties were limited (is_limited), so that families
       need not check. NULL: no limits exist. */
    weftStatus_t (*keeps)(const struct step *step, const struct device *device);
    /* Returns the i-th piece of code that compile produced for a step; false past the last one. */
    bool (*code)(const struct step *step, int i, struct aot_code *code);
    /* Defaults for families without load, run or release of their own. load and release may be NULL if they would do
       nothing. */
    weftStatus_t (*load)(struct step *step, const struct device *device);
    weftStatus_t (*run)(const struct step *step, void *const *values, void *workspace, weftStream_t stream);
    void (*release)(struct step *step);
    /* Writes the kernels of compiled steps as JSON, for the plan's kernels attribute. NULL: the engine has no
       kernels. */
    void (*show)(const struct step *steps, int count, struct text *json);
};

static inline weftStatus_t step_load(const struct engine *engine, struct step *step, const struct device *device) {
    weftStatus_t (*load)(struct step *, const struct device *) = step->family->load ? step->family->load : engine->load;
    return load ? load(step, device) : WEFT_STATUS_SUCCESS;
}

static inline weftStatus_t step_run(const struct engine *engine, const struct step *step, void *const *values,
                                    void *workspace, weftStream_t stream) {
    return (step->family->run ? step->family->run : engine->run)(step, values, workspace, stream);
}

static inline void step_release(const struct engine *engine, struct step *step) {
    void (*release)(struct step *) = step->family->release ? step->family->release : engine->release;
    if (release)
        release(step);
}

/* For a family with an exact and a relaxed kernel: offers the faster one; the relaxed one if both take the same time.
   `price` predicts the time with the relaxations `used`, and declines if the kernel would not use them. */
weftStatus_t offer_relaxed(struct offer *offer, const struct region *region, const struct device *device,
                           enum relaxation relaxation,
                           weftStatus_t (*price)(const struct region *region, const struct device *device, int used,
                                                 double *seconds));

/* Finds the family that serves a region at the lowest predicted time, among the engine's non-combining families that
   `may` allows (NULL: all). If none does, the status and message are those of the last refusal. */
weftStatus_t engine_offer(struct offer *best, const struct engine *engine, const struct region *region,
                          const struct device *device, bool (*may)(const struct family *family));

/* Returns NOT_SUPPORTED with a message if the region reads separate parts of a value and the family cannot do so. */
weftStatus_t family_check_gathered(const struct family *family, const struct region *region);

/* The list of engines, best first. An engine's index in it is its global index. */
extern const struct engine *const engines[];
extern const int engine_count;

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

bool node_is_pointwise(const struct node *node);

static inline const struct node *region_node(const struct region *region, int i) {
    return &region->graph->nodes[region->nodes[i]];
}

bool region_has(const struct region *region, int node);
/* True if a node of the region produces the value; region_producer returns that node, or NULL. */
bool region_makes(const struct region *region, int value);
const struct node *region_producer(const struct region *region, const struct tensor *tensor);

/* True if a value that the region produces is needed outside it: by the user or by other nodes. */
bool region_exports(const struct region *region, int value);

/* Extracts a region as a graph of its own, with the same uids. Producers of its inputs are left out; of the outside
   readers of a value, at most two are represented, as nodes without operands. outer: for each value of the extract, its
   index in the whole graph. */
weftStatus_t region_extract(struct region *extract, const int **outer, const struct region *region,
                            struct arena *arena);

#endif
