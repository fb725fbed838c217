/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the family of an engine that serves a region at the lowest predicted time. No family is named here; callers
   restrict the choice with the `may` callback. */
#include "engines/engine.h"

weftStatus_t family_check_gathered(const struct family *family, const struct region *region) {
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            const struct tensor *tensor = region->graph->values[node->operands[k]].tensor;
            if (tensor->is_gathered && !node->is_output[k] &&
                !(family->gathers && family->gathers(region->graph, region->nodes[i], node->operands[k])))
                FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                     "%s: the parts of %s are at separate addresses, which this family does not read",
                     descriptor_label(node->op), descriptor_label(&tensor->base));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t offer_relaxed(struct offer *offer, const struct region *region, const struct device *device,
                           enum relaxation relaxation,
                           weftStatus_t (*price)(const struct region *region, const struct device *device, int used,
                                                 double *seconds)) {
    double seconds;
    weftStatus_t status = price(region, device, 0, &offer->seconds);
    if (!(region->allow & relaxation))
        return status;
    /* Asked last, so that its message remains if it declines. */
    offer->declined = price(region, device, relaxation, &seconds);
    if (offer->declined)
        return status ? offer->declined : WEFT_STATUS_SUCCESS;
    if (status || seconds <= offer->seconds)
        *offer = (struct offer){.family = offer->family, .seconds = seconds, .used = relaxation};
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t engine_offer(struct offer *best, const struct engine *engine, const struct region *region,
                          const struct device *device, bool (*may)(const struct family *family)) {
    /* The status if no family was asked. */
    weftStatus_t status = WEFT_STATUS_NOT_SUPPORTED;
    *best = (struct offer){0};
    for (int f = 0; engine && engine->families[f]; f++) {
        const struct family *family = engine->families[f];
        struct offer offer = {.family = family};
        /* A combining family would call this function again, without end. */
        if (family->combines || (may && !may(family)))
            continue;
        status = family_check_gathered(family, region);
        if (!status)
            /* A refusal leaves its message in the thread's error text; the caller clears it if another family serves
               the region. */
            status = family->accepts(region, device, &offer);
        /* Strictly less: if two families predict the same time, the one listed first wins. */
        if (!status && (!best->family || offer.seconds < best->seconds))
            *best = offer;
    }
    return best->family ? WEFT_STATUS_SUCCESS : status;
}
