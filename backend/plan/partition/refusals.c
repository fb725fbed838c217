/* SPDX-License-Identifier: Apache-2.0 */
/* Why other families do not serve a part: their predicted times or their refusals. */
#include "base/text.h"
#include "plan/partition/cover.h"

/* Once per family: its two candidates are adjacent in the list. */
weftStatus_t list_rivals(struct partitioning *p, const struct candidate *best) {
    struct part *part = &p->parts[p->part_count];
    TRY(arena_alloc(p->arena, &part->rivals, (size_t)p->candidate_count * sizeof *part->rivals));
    for (int c = 0; c < p->candidate_count; c++) {
        const struct candidate *rival = &p->candidates[c];
        struct refusal *last = part->rival_count ? &part->rivals[part->rival_count - 1] : NULL;
        if (rival->part.family == best->part.family || (last && last->family == rival->part.family->name))
            continue;
        struct refusal *refusal = &part->rivals[part->rival_count++];
        refusal->family = rival->part.family->name;
        TRY(arena_print(p->arena, &refusal->reason, "%s: predicted time %.3g us, %s takes %.3g us",
                        descriptor_label(region_node(&rival->part.region, 0)->op), rival->seconds * 1e6,
                        best->part.family->name, best->seconds * 1e6));
    }
    return WEFT_STATUS_SUCCESS;
}

/* True if the time of a family is among the reasons already. */
static bool is_rival(const struct part *part, const struct family *family) {
    for (int i = 0; i < part->rival_count; i++)
        if (part->rivals[i].family == family->name)
            return true;
    return false;
}

weftStatus_t collect_refusals(struct partitioning *p, struct part *part, int node, const struct family *until) {
    const struct region single = make_region(p, &node, 1);
    int families = 0;
    while (p->engine->families[families])
        families++;
    TRY(arena_alloc(p->arena, &part->refusals, (size_t)(families + part->rival_count) * sizeof *part->refusals));
    /* Times come first, because they are the most informative. */
    for (int i = 0; i < part->rival_count; i++)
        part->refusals[part->refusal_count++] = part->rivals[i];
    if (p->rejected[node].family)
        part->refusals[part->refusal_count++] = p->rejected[node];
    for (int f = 0; p->engine->families[f] && p->engine->families[f] != until; f++) {
        const struct family *family = p->engine->families[f];
        struct offer offer;
        struct refusal *refusal = &part->refusals[part->refusal_count];
        /* A family that accepts the single node has no objection to report. */
        if (is_rival(part, family) || family->name == p->rejected[node].family ||
            query_family(p, family, &single, &offer) == WEFT_STATUS_SUCCESS)
            continue;
        refusal->family = family->name;
        TRY(arena_print(p->arena, &refusal->reason, "%s", status_text()));
        part->refusal_count++;
    }
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t fail_for_node(struct partitioning *p, int node) {
    struct part unserved = {0};
    struct text reasons;
    text_init(&reasons);
    TRY(collect_refusals(p, &unserved, node, NULL));
    for (int i = 0; i < unserved.refusal_count; i++)
        text_add(&reasons, " %s: %s.", unserved.refusals[i].family, unserved.refusals[i].reason);
    weftStatus_t status =
        status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "engine %s: no kernel family serves %s.%s",
                    p->engine->name, descriptor_label(p->graph->nodes[node].op), text_string(&reasons));
    text_free(&reasons);
    return status;
}
