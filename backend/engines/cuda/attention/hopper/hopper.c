/* SPDX-License-Identifier: Apache-2.0 */
/* The two attention families of Hopper. The first is deterministic; the second adds dQ in arbitrary order and is
   offered only to engines that allow it. */
#include "engines/cuda/attention/hopper/hopper.h"
#include "engines/cuda/families.h"

/* Analyses the operation. is_unordered: for the family whose dQ depends on the order of CTAs; it has no forward
   pass. */
static weftStatus_t analyse(struct cuda_attention *c, const struct region *region, const struct device *device,
                            bool is_unordered) {
    TRY(attention_hopper_check_device(device));
    TRY(attention_analyse(c, region, device));
    if (is_unordered && !c->backward)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: this family serves sdpa_bwd.",
             descriptor_label(region_node(region, 0)->op));
    return WEFT_STATUS_SUCCESS;
}

/* Both families share accepts and build, which dispatch to forward or backward here. */
static weftStatus_t accepts_either(const struct region *region, const struct device *device, bool is_unordered,
                                   double *seconds) {
    struct cuda_attention c;
    TRY(analyse(&c, region, device, is_unordered));
    return c.forward ? attention_hopper_forward_accepts(&c, seconds)
                     : attention_hopper_backward_accepts(&c, is_unordered, seconds);
}

static weftStatus_t build_either(struct step *step, const struct device *device, const struct knob_choices *knobs,
                                 bool is_unordered, struct arena *arena) {
    struct cuda_attention c;
    struct cuda_step *state;
    TRY(analyse(&c, &step->region, device, is_unordered));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    return c.forward ? attention_hopper_forward_build(step, &c, knobs, state, arena)
                     : attention_hopper_backward_build(step, &c, is_unordered, state, arena);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    return accepts_either(region, device, false, seconds);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    return build_either(step, device, knobs, false, arena);
}

static weftStatus_t accepts_unordered(const struct region *region, const struct device *device, double *seconds) {
    return accepts_either(region, device, true, seconds);
}

static weftStatus_t build_unordered(struct step *step, const struct device *device, const struct knob_choices *knobs,
                                    struct arena *arena) {
    return build_either(step, device, knobs, true, arena);
}

/* Operations of the unordered family whose results may differ between runs by rounding; deterministic engines ask. */
static bool reorders(const struct graph *graph, int node) { return op_of(graph->nodes[node].op) == &sdpa_bwd_op; }

/* Only the scheduler is a knob: each case has one tile size, from the tables in forward.c and backward.c. */
static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_KERNEL_CFG, 0, ATTENTION_SCHEDULE_DYNAMIC, 1, 0,
     "tile scheduler of the forward pass: 1 static, 2 dynamic; 0 chooses"},
    {0},
};

const struct family cuda_attention_hopper = {
    .name = "cuda.attention_hopper",
    .doc = "scaled dot-product attention of 16 bits and FP8, and its gradients, on Hopper, by TMA and wgmma",
    .knobs = knobs,
    .accepts = accepts,
    .build = build,
};

const struct family cuda_attention_hopper_unordered = {
    .name = "cuda.attention_hopper_unordered",
    .doc = "its gradients, with dQ summed by blocks in any order",
    .accepts = accepts_unordered,
    .build = build_unordered,
    .reorders = reorders,
};
