/* SPDX-License-Identifier: Apache-2.0 */
/* The candidates at a node: for each family a region that starts there, and the choice of the cheapest. */
#include "plan/partition/cover.h"

#include <string.h>

/* Grows a region from a node and adds it to the candidates, unless the family declines it. */
static weftStatus_t add_candidate(struct partitioning *p, const struct family *family, int seed, bool has_companions) {
    /* More candidates could only reduce the cost; the families with the highest priority come first. */
    if (p->candidate_count == CANDIDATES_MAX)
        return WEFT_STATUS_SUCCESS;
    struct part *part = &p->candidates[p->candidate_count].part;
    *part = (struct part){.family = family, .region = make_region(p, p->nodes, 0)};
    if (!grow_region(p, part, seed, has_companions))
        return WEFT_STATUS_SUCCESS;
    shrink_region(p, part, seed);
    p->candidate_count++;
    /* p->nodes is reused for the next candidate. */
    return arena_copy(p->arena, &part->region.nodes, p->nodes, (size_t)part->region.count * sizeof *p->nodes);
}

weftStatus_t find_candidates(struct partitioning *p, int f, int seed) {
    p->candidate_count = 0;
    for (int g = f; p->engine->families[g] && (g == f || p->candidate_count > 0); g++) {
        const struct family *family = p->engine->families[g];
        /* The cost of a last resort is not meaningful, so it is only asked if no other family starts a region here. */
        if (family == p->excluded || (g > f && family->is_last_resort))
            continue;
        /* A family with companions is tried both ways, so that both regions become candidates. */
        if (family->companions)
            TRY(add_candidate(p, family, seed, true));
        TRY(add_candidate(p, family, seed, false));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Computes the union of the candidates' nodes, in order. Uses is_inside as scratch, which is all false before and
   after. */
static int gather_candidate_nodes(struct partitioning *p) {
    int count = 0;
    for (int c = 0; c < p->candidate_count; c++) {
        const struct region *region = &p->candidates[c].part.region;
        for (int i = 0; i < region->count; i++)
            if (!p->is_inside[region->nodes[i]])
                insert_sorted(p->all, count++, region->nodes[i]);
        set_inside(p, region, true);
    }
    for (int i = 0; i < count; i++)
        p->is_inside[p->all[i]] = false;
    return count;
}

const struct candidate *cheapest_candidate(struct partitioning *p) {
    /* Other families must serve the nodes that a candidate leaves out, so only totals over the same nodes are
       comparable. */
    struct candidate *best = p->candidates;
    int all = gather_candidate_nodes(p);
    for (int c = 0; c < p->candidate_count; c++) {
        struct candidate *candidate = &p->candidates[c];
        int count = subtract_region(p->rest_nodes, p->all, all, &candidate->part.region);
        candidate->seconds = candidate->part.seconds + separate_seconds(p, p->rest_nodes, count);
        /* Strictly less, so that the order of the families decides ties. */
        best = candidate->seconds < best->seconds ? candidate : best;
    }
    return best;
}
