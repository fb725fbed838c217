/* SPDX-License-Identifier: Apache-2.0 */
/* The two interfaces of this floor. A kernel family serves regions of a graph: it says yes with a predicted time or no
   with a sentence, builds a step, and runs it; it knows no other family. An engine is a device kind and a list of
   families; the planner covers a graph with regions of them, by price, so an engine whose list ends with the reference
   runs every graph. */
#ifndef WEFT_ENGINES_ENGINE_H
#define WEFT_ENGINES_ENGINE_H

#include "base/arena.h"
#include "base/text.h"
#include "graph/graph.h"
#include "runtime/carried.h"
#include "runtime/context.h"

/* Nodes of a graph that are served together, in the graph's order. Borrowed: it lives as long as its graph and the list
   of nodes. */
struct region {
    const struct graph *graph;
    int count;
    const int *nodes;
    const struct engine *engine; /* whose families a combination may leave a region to; NULL: none */
};

struct knob {
    weftBackendKnobType_t type;
    int64_t least, most, stride;
    int64_t initial;
    const char *doc;
};

/* The value chosen for a knob type; families read the knobs they know. */
struct knob_choice {
    weftBackendKnobType_t type;
    int64_t value;
};

struct knob_choices {
    int count;
    const struct knob_choice *items;
};

/* NULL: nothing was chosen for the knob. No choices at all (NULL) are allowed. */
static inline const struct knob_choice *knob_find(const struct knob_choices *knobs, weftBackendKnobType_t type) {
    for (int i = 0; knobs && i < knobs->count; i++)
        if (knobs->items[i].type == type)
            return &knobs->items[i];
    return NULL;
}

/* The same where 0 stands for nothing. */
static inline int64_t knob_value(const struct knob_choices *knobs, weftBackendKnobType_t type) {
    const struct knob_choice *choice = knob_find(knobs, type);
    return choice ? choice->value : 0;
}

/* A region made ready to run. */
struct step {
    const struct family *family;
    struct region region;
    const struct step *before; /* it in its plan; NULL: it is the first */
    void *state;               /* the family's own, in the plan's arena */
    int64_t workspace_bytes;   /* scratch that run wants, aligned to 64 */
    double seconds;            /* predicted */
    const char *detail;        /* what runs, in words: "6x16 tiles, K panels of 384"; may be NULL */
};

struct family {
    const char *name; /* "cpu.map" */
    const char *doc;
    bool is_last_resort;      /* asked only about what no other family serves */
    bool combines;            /* changes a region and leaves it to another family, which it finds by engine_offer */
    bool shares_reads;        /* takes operations that have nothing in common but what they read */
    bool wants_boxes;         /* reads operands only as the copy engine brings them: it may pay to copy them first */
    const struct knob *knobs; /* ends with a knob without doc; NULL: none */
    /* SUCCESS and a predicted time, or NOT_SUPPORTED* and a sentence that says what would have to change. Pure. */
    weftStatus_t (*accepts)(const struct region *region, const struct device *device, double *seconds);
    /* Nodes that prepare what a node alone reads, and that the family takes with it: fills in their numbers, at most
       all of the graph but one, and gives their count. NULL: none. */
    int (*companions)(const struct graph *graph, int node, int *nodes);
    /* Fills step->state, workspace_bytes and detail for a region that was accepted. Cheap: compiles nothing. seconds is
       what accepts predicted; a family with knobs says what it predicts with them. */
    weftStatus_t (*build)(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena);
    /* Makes ready what run needs, when a plan is finalized for a device of this machine, after the engine's compile.
       NULL: as the engine does. */
    weftStatus_t (*load)(struct step *step, const struct device *device);
    /* Runs on the memory of the graph's values (NULL: dead, or inside the region). Allocates nothing. NULL: as the
       engine does. */
    weftStatus_t (*run)(const struct step *step, void *const *values, void *workspace, weftStream_t stream);
    /* Keeps what it packs of inputs whose memory keeps its numbers, `values` that are not NULL, for runs on the same
       addresses; what was kept before is dropped. No run is under way. NULL: it packs nothing. */
    weftStatus_t (*freeze)(struct step *step, void *const *values);
    /* Whether the memory of output value `out` may be exactly that of input value `in`. NULL: never. */
    bool (*may_alias)(const struct step *step, int in, int out);
    /* Frees what the arena does not own. NULL: as the engine does. */
    void (*release)(struct step *step);
    /* Whether it would calculate an operation with fewer bits than the operands have: cheap, and true where it may be.
       NULL: it never does. */
    bool (*narrows)(const struct graph *graph, int node);
    /* The same of sums in an order that differs from run to run. */
    bool (*reorders)(const struct graph *graph, int node);
    /* Whether it may read what a node reads as parts, which lie apart in memory (graph/views.h): cheap, and true where
       it may be. NULL: never, and regions that would have it do so are not shown to it. */
    bool (*gathers)(const struct graph *graph, int node, int value);
};

struct engine {
    const char *name; /* "cpu.fast" */
    const char *doc;
    weftDeviceKind_t device;
    const struct family *const *families; /* whose regions begin first; of equal prices the first; ends with NULL */
    bool narrows, reorders;               /* uses families that do, and declines graphs where none serves a part */
    const weftBackendNumericalNote_t *numerical_notes;
    int numerical_note_count;
    const weftBackendBehaviorNote_t *behavior_notes;
    int behavior_note_count;
    /* Intermediates of unset type go through memory in the 16 bits of what they are made of. Not so on the CPU, where
       it is no faster (norms beside products: 0.93 to 1.04) and rounds scores between a product and a softmax. */
    bool stores_narrow;
    bool parts_batch_norms;   /* sums of channels are taken behind products: batch norms may be cheaper in parts */
    bool takes_any_alignment; /* kernels read and write memory that is aligned to its elements alone */
    bool is_fallback;         /* what heuristics mode FALLBACK offers */
    /* Compiles what the steps of a plan need, several programs at a time; takes code from `carried` (NULL: none) where
       it is that of a program. NULL: nothing to compile. */
    weftStatus_t (*compile)(struct step *steps, int count, const struct device *device,
                            const struct carried_codes *carried);
    /* Whether the kernels of a built step keep to a device whose properties were limited (is_limited), which families
       need not look at. NULL: nothing is limited. */
    weftStatus_t (*keeps)(const struct step *step, const struct device *device);
    /* The i-th piece of code that compile got for a step; false behind the last. */
    bool (*code)(const struct step *step, int i, struct carried_code *code);
    /* What load, run and release of its families are that have none; load and release may be NULL: there is nothing to
       do. */
    weftStatus_t (*load)(struct step *step, const struct device *device);
    weftStatus_t (*run)(const struct step *step, void *const *values, void *workspace, weftStream_t stream);
    void (*release)(struct step *step);
    /* The programs of compiled steps, as the JSON that attribute kernels of a plan gives. NULL: there are none. */
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

/* Whether a family on its list serves an engine. */
static inline bool engine_uses(const struct engine *engine, const struct family *family) {
    return (engine->narrows || !family->narrows) && (engine->reorders || !family->reorders);
}

struct offer {
    const struct family *family;
    double seconds;
};

/* Who serves a region soonest, as predicted, of the engine's families that `may` names (NULL: any) and that are no
   combination; what the last of them said where none does. */
weftStatus_t engine_offer(struct offer *best, const struct engine *engine, const struct region *region,
                          const struct device *device, bool (*may)(const struct family *family));

/* NOT_SUPPORTED, with a sentence, for a region that reads the parts of a value as the family never does. */
weftStatus_t family_check_gathered(const struct family *family, const struct region *region);

/* The list of engines, best first; an engine's index here is its global index. */
extern const struct engine *const engines[];
extern const int engine_count;

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

bool node_is_pointwise(const struct node *node);

static inline const struct node *region_node(const struct region *region, int i) {
    return &region->graph->nodes[region->nodes[i]];
}

bool region_has(const struct region *region, int node);
/* Whether a node of the region makes a value; and that node, NULL: none. */
bool region_makes(const struct region *region, int value);
const struct node *region_producer(const struct region *region, const struct tensor *tensor);

/* Whether a value that the region makes is needed outside it: by the user or by other nodes. */
bool region_exports(const struct region *region, int value);

/* A region as a graph of its own, under the same uids: what makes its inputs is left out, and of those outside that
   read its values two stand for all, as nodes without operands. outer: the values of the whole graph, of each of
   its. */
weftStatus_t region_extract(struct region *made, const int **outer, const struct region *region, struct arena *arena);

#endif
