/* SPDX-License-Identifier: Apache-2.0 */
/* The attention family of Hopper. Gradients are repeatable, or dQ is summed in any order if the request allows it. */
#include "engines/cuda/attention/hopper/hopper.h"
#include "engines/cuda/families.h"

static weftStatus_t analyse(struct cuda_attention *c, const struct region *region, const struct device *device) {
    TRY(attention_hopper_check_device(device));
    return attention_analyse(c, region, device);
}

static weftStatus_t price(const struct region *region, const struct device *device, int used, double *seconds) {
    struct cuda_attention c;
    TRY(analyse(&c, region, device));
    if (c.backward)
        return attention_hopper_backward_accepts(&c, used & RELAX_ORDER, seconds);
    if (used)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only gradients are summed in any order.",
             descriptor_label(region_node(region, 0)->op));
    return attention_hopper_forward_accepts(&c, seconds);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    return offer_relaxed(offer, region, device, RELAX_ORDER, price);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct cuda_attention c;
    struct cuda_step *state;
    TRY(analyse(&c, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    return c.forward ? attention_hopper_forward_build(step, &c, knobs, state, arena)
                     : attention_hopper_backward_build(step, &c, step->used & RELAX_ORDER, state, arena);
}

static int relaxes(const struct graph *graph, int node) {
    return op_of(graph->nodes[node].op) == &sdpa_bwd_op ? RELAX_ORDER : 0;
}

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
    .relaxes = relaxes,
};
