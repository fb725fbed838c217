/* SPDX-License-Identifier: Apache-2.0 */
/* One cover of one graph while it is computed: the state that the files of this folder share, and their functions. */
#ifndef WEFT_PLAN_PARTITION_COVER_H
#define WEFT_PLAN_PARTITION_COVER_H

#include "plan/partition/partition.h"

/* Values of `owner` for nodes without a part: not assigned yet; no consumer of its results; its result is a view of
   other memory. */
enum { UNASSIGNED = -1, NOT_NEEDED = -2, VIEW = -3 };

enum { CANDIDATES_MAX = 64 /* two per family */ };

/* A region that a family would serve. */
struct candidate {
    struct part part;
    double seconds; /* including the nodes of other candidates that this one leaves out */
};

/* State of one cover of one graph. All lists have one entry per node and are allocated once; each function that sets
   flags and marks clears them again. */
struct partitioning {
    const struct graph *graph;
    const struct engine *engine;
    const struct device *device;
    const struct knob_choices *knobs;
    int64_t scratch_limit;         /* per part; INT64_MAX: none */
    const struct family *excluded; /* a family that is not considered; NULL: all are */
    struct arena *arena;
    int *owner; /* per node: its part, or one of the values above */
    struct part *parts;
    int part_count;

    /* The candidates at a node. The last one is growing. */
    struct candidate candidates[CANDIDATES_MAX];
    int candidate_count;
    int *nodes, *grown; /* nodes of the growing region, and its nodes before the current attempt */
    int *adjacent;      /* adjacent nodes of the growing region, in order */
    int adjacent_count;
    bool *is_adjacent, *is_inside; /* per node */
    int *all, *rest_nodes;  /* union of the candidates' nodes, and the nodes that one candidate leaves out, in order */
    double *single_seconds; /* per node: time as a region of one node; 0: unknown, INFINITY: not accepted */
    struct refusal *rejected; /* per node: the combining family that was rejected as slower than separate steps */

    /* An order in which groups (parts and single nodes) can run. The name of a group is one of its nodes. */
    int *group;       /* per node: its group */
    int *position;    /* per group: its position in the order */
    int *at_position; /* per position: its group, or -1 if that group was merged into another */
    int *reached;     /* scratch of join_groups */
    char *mark;       /* scratch of join_groups, per group: see enum mark */
};

/* ---- prices.c: the families' predicted times --------------------------------------------------------------------- */

/* Asks a family for its offer for a region. */
weftStatus_t query_family(const struct partitioning *p, const struct family *family, const struct region *region,
                          struct offer *offer);

/* Time of nodes (in graph order) outside the region in question: the smaller of one region with all of them and one
   region per node. */
double separate_seconds(struct partitioning *p, const int *nodes, int count);

/* ---- region_nodes.c: sorted lists of nodes ----------------------------------------------------------------------- */

/* A region of the graph, with the engine and the relaxations that it allows. */
struct region make_region(const struct partitioning *p, const int *nodes, int count);

/* Regions list their nodes in graph order, in which producers come first. Lists have room for all nodes of the
   graph. */
void insert_sorted(int *nodes, int count, int node);

/* Lists the nodes of `nodes` that are not in a region; both are sorted. */
int subtract_region(int *rest_nodes, const int *nodes, int count, const struct region *region);

void set_inside(struct partitioning *p, const struct region *region, bool is_inside);

/* Counts the open results of a region: produced inside, consumed outside, not stored in the user's memory. A region
   with more than one would store intermediates. *reader is the first consumer of an open result, or -1. */
int open_results(const struct partitioning *p, const struct region *region, int *reader);

/* ---- group_order.c: the order of execution ----------------------------------------------------------------------- */

/* True if the nodes of a region can run as one step without a dependency cycle. */
bool is_acyclic(struct partitioning *p, const struct region *region);

/* Merges the groups of an acyclic region into one. */
void join_groups(struct partitioning *p, const struct region *region);

/* Lists the parts in execution order: order[i] is the part that runs i-th. */
void list_order(const struct partitioning *p, int *order);

/* ---- grow.c, shrink.c: the region of one candidate, in p->nodes -------------------------------------------------- */

/* Grows the region of a part from a node, with its companions (struct family) or without. False if the family declines
   it. */
bool grow_region(struct partitioning *p, struct part *part, int seed, bool has_companions);

/* Removes results from a grown region that its consumers can recompute at a lower cost. */
void shrink_region(struct partitioning *p, struct part *part, int seed);

/* ---- candidates.c: the choice at one node ------------------------------------------------------------------------ */

/* Lists the candidates of family f and all later ones at a node, provided that f itself yields one. Earlier families
   have already declined this node. */
weftStatus_t find_candidates(struct partitioning *p, int f, int seed);

/* The candidate with the smallest total time for the union of all candidates' nodes; the first one in case of a tie. */
const struct candidate *cheapest_candidate(struct partitioning *p);

/* ---- refusals.c: why other families do not serve a part ---------------------------------------------------------- */

/* Records the times of the families whose candidates lost in the next part. */
weftStatus_t list_rivals(struct partitioning *p, const struct candidate *best);

/* Collects the reasons why other families do not serve a part: the times of its rivals, and the refusals of the
   families before `until` (NULL: all) for a single node. */
weftStatus_t collect_refusals(struct partitioning *p, struct part *part, int node, const struct family *until);

/* Fails with the refusals of all families for a node, so that the user learns what each would need. */
weftStatus_t fail_for_node(struct partitioning *p, int node);

/* ---- cover.c ----------------------------------------------------------------------------------------------------- */

/* Covers the graph of `views` with the engine, device and limits of `like`. Fails with the refusals for the first node
   that no family serves. */
weftStatus_t cover_graph(struct partitioning *p, const struct partitioning *like, const struct views *views);

#endif
