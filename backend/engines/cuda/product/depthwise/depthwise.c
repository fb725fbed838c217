/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise family's interface to the engines. */
#include "engines/cuda/product/depthwise/depthwise.h"
#include "engines/cuda/families.h"

/* Analyses the axes first, then the blocks. */
static weftStatus_t analyse(struct depthwise *d, const struct region *region, const struct device *device) {
    *d = (struct depthwise){0};
    TRY(contraction_find(&d->c, region));
    TRY(depthwise_shape(d, device));
    return depthwise_plan(d, device);
}

/* Pure: the same analysis as in build, of which only the price is used. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct depthwise d;
    TRY(analyse(&d, region, device));
    offer->seconds = d.c.seconds;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct depthwise d;
    struct cuda_kernel *kernel;
    (void)knobs;
    TRY(analyse(&d, &step->region, device));
    TRY(contraction_add_kernel(&kernel, step, &d.c, arena));
    if (!kernel)
        return WEFT_STATUS_SUCCESS;
    TRY(depthwise_emit(kernel, &d, arena));
    /* A filter gradient has `splits` blocks per block of channels; otherwise each patch is a block. */
    int64_t blocks = (is_filter(&d) ? d.c.splits : d.patches) * d.channel_blocks;
    contraction_set_launch(kernel, blocks, d.threads, d.shared_bytes);
    /* Adds the parts in a fixed order, so that the result does not depend on which block finished first. */
    if (is_filter(&d))
        TRY(contraction_add_combine(step, &d.c, arena));
    return arena_print(
        arena, &step->detail,
        "%s%lld tap%s in registers, strips of %lld, %lld in a block of %lld channel%s, %lld segment%s of "
        "%lld row%s, %d part%s, epilogue: %d operation%s",
        d.is_mma ? "tensor cores, " : "", (long long)depthwise_taps(&d), plural(depthwise_taps(&d)), (long long)d.strip,
        (long long)d.strips, (long long)d.channels, plural(d.channels), (long long)d.segments, plural(d.segments),
        (long long)d.segment_rows, plural(d.segment_rows), d.c.splits, plural(d.c.splits), d.c.region->count - 1,
        plural(d.c.region->count - 1));
}

const struct family cuda_depthwise = {
    .name = "cuda.depthwise",
    .doc = "a convolution with one channel per group, and the pointwise operations after it",
    .accepts = accepts,
    .build = build,
    .may_alias = contraction_may_alias,
};
