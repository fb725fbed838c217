/* SPDX-License-Identifier: Apache-2.0 */
/* The families' predicted times for regions. */
#include "plan/partition/cover.h"

#include <math.h>

/* If the workspace or the device is limited, also checks that the step respects the limits; only then, because building
   is much more expensive than accepting. */
weftStatus_t query_family(const struct partitioning *p, const struct family *family, const struct region *region,
                          struct offer *offer) {
    *offer = (struct offer){.family = family};
    TRY(family_check_gathered(family, region));
    TRY(family->accepts(region, p->device, offer));
    bool is_limited = p->engine->keeps && p->device->cuda.is_limited;
    if (p->scratch_limit == INT64_MAX && !is_limited)
        return WEFT_STATUS_SUCCESS;
    struct step step = {.family = family, .region = *region, .seconds = offer->seconds, .used = offer->used};
    TRY(family->build(&step, p->device, p->knobs, p->arena));
    weftStatus_t status = is_limited ? p->engine->keeps(&step, p->device) : WEFT_STATUS_SUCCESS;
    /* The step was only built to learn its requirements. */
    if (family->release)
        family->release(&step);
    TRY(status);
    if (step.workspace_bytes > p->scratch_limit)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: needs %lld bytes of workspace, the limit is %lld.",
             descriptor_label(region_node(region, 0)->op), (long long)step.workspace_bytes,
             (long long)p->scratch_limit);
    return WEFT_STATUS_SUCCESS;
}

/* Time of a node as a region of its own; INFINITY if no family accepts it, so that every region with the node is
   cheaper. */
static double single_node_seconds(struct partitioning *p, int node) {
    const struct region region = make_region(p, &node, 1);
    struct offer offer;
    /* Cached, because many comparisons need it. Views are free. */
    if (p->single_seconds[node] == 0 && p->owner[node] != VIEW) {
        weftStatus_t status = engine_offer(&offer, p->engine, &region, p->device, NULL);
        p->single_seconds[node] = status ? INFINITY : offer.seconds;
    }
    return p->single_seconds[node];
}

/* Only the times of single nodes are cached. */
double separate_seconds(struct partitioning *p, const int *nodes, int count) {
    const struct region region = make_region(p, nodes, count);
    struct offer offer;
    double each = 0;
    for (int i = 0; i < count; i++)
        each += single_node_seconds(p, nodes[i]);
    /* If a node is not accepted on its own, the sum is INFINITY, but the region may still be accepted. */
    if (count > 1 && each > 0 && engine_offer(&offer, p->engine, &region, p->device, NULL) == WEFT_STATUS_SUCCESS)
        each = offer.seconds < each ? offer.seconds : each;
    return each;
}
