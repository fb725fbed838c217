/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling family (cuda_window): one pooling or interpolation, or its gradient, in one sweep over its result. The pool
   kernels (pooling.h) compute small windows with whole steps, resample.cuh and resample_bwd.cuh all others;
   pooling/geometry.cuh defines the geometry. plan.c plans, emit.c emits the kernels. */
#include "engines/cuda/pooling/pooling.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

/* Cost of a launch, including its first memory latencies. */
static const double LAUNCH_SECONDS = 2e-6;

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct pooling w;
    TRY(pooling_analyse(&w, region, device));
    const struct resample_operand *operands[] = {&w.g.x, &w.g.y, &w.g.index, &w.g.saved};
    double bytes = 0;
    for (int k = 0; k < 4; k++)
        if (pooling_uses(&w, operands[k]))
            bytes += (double)tensor_bytes(operands[k]->tensor);
    /* Counts each tensor once: overlapping windows hit L1 and L2. Other costs of the kernels of small windows are not
       modeled. */
    offer->seconds = LAUNCH_SECONDS + price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct pooling passes[2];
    struct cuda_step *state;
    int count = 1;
    TRY(pooling_analyse(&passes[0], &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (pooling_items(&passes[0]) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    /* The indices of maxima pass from one kernel to the other through the workspace. */
    if (pooling_finds_first(&passes[0])) {
        struct pooling unsplit = passes[0];
        TRY(pooling_split(passes, &unsplit, arena));
        step->workspace_bytes = tensor_bytes(passes[0].g.index.tensor);
        count = 2;
    }
    for (int i = 0; i < count; i++)
        if (pooling_items(&passes[i]) > 0)
            TRY(pooling_build_kernel(&state->kernels[state->count++], &passes[i], arena));
    const struct pooling *w = &passes[count - 1];
    return arena_print(
        arena, &step->detail, "%s%s: windows of %lldx%lldx%lld, runs of %d channel%s, patches of %lldx%lld",
        count > 1 ? "maxima first, " : "", pooling_entries[w->kernel], (long long)w->g.taps[0], (long long)w->g.taps[1],
        (long long)w->g.taps[2], w->run, plural(w->run), (long long)w->patch[1], (long long)w->patch[2]);
}

const struct family cuda_window = {
    .name = "cuda.window",
    .doc = "pooling and interpolation, and their gradients",
    .accepts = accepts,
    .build = build,
};
