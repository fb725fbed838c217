/* SPDX-License-Identifier: Apache-2.0 */
/* Executions with other shapes than the plan's: the graph is rebuilt with the overridden dims and strides, planned on
   the same engine if it accepts them, and cached for the next execution with these shapes. Only executions with
   overridden shapes take a lock or allocate. */
#include "graph/descriptor.h"
#include "plan/plan.h"
#include "plan/save.h"

#include <stdlib.h>
#include <string.h>

/* Number of cached plans. Each holds its kernels and steps, but plans of different shapes share most kernels. */
enum { OVERRIDES_MAX = 32 };

/* Cache entry. The key is copies of the pack's three lists. */
struct plan_override {
    struct plan_override *next; /* in order of last use, the most recent one first */
    struct list uids, shapes, strides;
    struct arena arena;
    struct plan *plan;
};

static bool same_list(const struct list *a, const struct list *b) {
    return a->count == b->count && memcmp(a->i64, b->i64, (size_t)a->count * sizeof *a->i64) == 0;
}

/* Removes the entry for a pack's shapes from the list. Packs that list the same uids in another order miss; programs
   build their packs in a fixed order. */
static struct plan_override *remove_entry(struct plan *plan, const struct variant_pack *pack) {
    for (struct plan_override **at = &plan->overrides; *at; at = &(*at)->next) {
        struct plan_override *entry = *at;
        if (!same_list(&entry->uids, &pack->override_uids) || !same_list(&entry->shapes, &pack->override_shapes) ||
            !same_list(&entry->strides, &pack->override_strides))
            continue;
        *at = entry->next;
        return entry;
    }
    return NULL;
}

/* The plan is NULL if building it failed. */
static void free_override(struct plan_override *entry) {
    descriptor_release(entry->plan ? &entry->plan->base : NULL);
    arena_free(&entry->arena);
    free(entry);
}

/* No lock is needed, because no execution is running any more. */
void plan_free_overrides(struct plan *plan) {
    while (plan->overrides) {
        struct plan_override *entry = plan->overrides;
        plan->overrides = entry->next;
        free_override(entry);
    }
}

/* Each overridden tensor has one dim and one stride per dimension. The pack has already checked that there are as many
   dims as strides. */
static weftStatus_t check_overrides(const struct plan *plan, const struct variant_pack *pack) {
    const struct graph *graph = plan->draft.graph;
    int64_t numbers = 0;
    for (int64_t i = 0; i < pack->override_uids.count; i++) {
        int value = graph_find_uid(graph, pack->override_uids.i64[i]);
        if (value < 0)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s overrides uid %lld, which is not in %s. Name a tensor of the graph.",
                 descriptor_label(&pack->base), (long long)pack->override_uids.i64[i], descriptor_label(&graph->base));
        /* The rank cannot be overridden. */
        numbers += graph->values[value].tensor->dims.count;
    }
    if (numbers != pack->override_shapes.count)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: override_shapes has %lld number%s, the overridden tensors have %lld dim%s in all. Give each dim.",
             descriptor_label(&pack->base), (long long)pack->override_shapes.count, plural(pack->override_shapes.count),
             (long long)numbers, plural(numbers));
    return WEFT_STATUS_SUCCESS;
}

/* Starts from the original graph; the shapes of its results are inferred again. */
weftStatus_t plan_change(struct plan **out, const struct plan *plan, const struct changes *changes) {
    struct graph *graph = NULL;
    struct engine_config *config = NULL;
    struct descriptor *created = NULL;
    weftStatus_t status = graph_change(&graph, plan->config->engine->graph, changes);
    if (!status)
        status = config_for_graph(&config, plan->config, graph);
    if (!status)
        status = descriptor_make(plan->base.schema, &created);
    /* Everything except the graph is taken from the original plan: device properties, handle, limit and ahead-of-time
       code. */
    if (!status) {
        ((struct plan *)created)->handle = context_retain(plan->handle);
        if (plan->device_properties)
            ((struct plan *)created)->device_properties =
                (struct device_properties *)descriptor_retain(&plan->device_properties->base);
        if (!changes->assumes_nothing) /* the workspace of a general plan is allocated */
            ((struct plan *)created)->workspace_limit = plan->workspace_limit;
        ((struct plan *)created)->aot_codes = plan->aot_codes; /* only used by finalize */
        ((struct plan *)created)->cuda_graph = plan->cuda_graph;
        void *held = config;
        status =
            descriptor_set(created, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &held);
    }
    if (!status)
        status = descriptor_finalize(created);
    descriptor_release(graph ? &graph->base : NULL);
    /* The plan holds a reference to the configuration, which holds one to the graph. */
    descriptor_release(config ? &config->base : NULL);
    if (status) {
        descriptor_release(created);
        return status;
    }
    *out = (struct plan *)created;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t make_override(struct plan_override **out, const struct plan *plan,
                                  const struct variant_pack *pack) {
    TRY(check_overrides(plan, pack));
    struct plan_override *entry = calloc(1, sizeof *entry);
    if (!entry)
        return status_no_memory(sizeof *entry);
    entry->uids = pack->override_uids;
    entry->shapes = pack->override_shapes;
    entry->strides = pack->override_strides;
    /* The caller may release the pack, so the entry copies its key. Planning comes first, so that shapes that cannot be
       planned leave nothing to clean up. */
    struct list *lists[] = {&entry->uids, &entry->shapes, &entry->strides};
    weftStatus_t status = plan_change(&entry->plan, plan, &(struct changes){.overrides = pack});
    if (status)
        status_prefix(status, "overridden shapes: ");
    for (int i = 0; i < 3 && !status; i++)
        status =
            arena_copy(&entry->arena, &lists[i]->items, lists[i]->items, (size_t)lists[i]->count * sizeof(int64_t));
    if (status) {
        free_override(entry);
        return status;
    }
    *out = entry;
    return WEFT_STATUS_SUCCESS;
}

/* Drops the least recently used entry if there are more than OVERRIDES_MAX. The list exceeds the limit by at most one.
   Executions that still run the dropped plan hold a reference. */
static void drop_least_recent(struct plan *plan) {
    int count = 0;
    for (struct plan_override **at = &plan->overrides; *at; at = &(*at)->next)
        if (++count > OVERRIDES_MAX) {
            free_override(*at);
            *at = NULL;
            return;
        }
}

weftStatus_t plan_for_pack(struct plan **out, struct plan *plan, const struct variant_pack *pack) {
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    struct plan_override *entry = NULL;
    if (pack->override_uids.count == 0) {
        *out = (struct plan *)descriptor_retain(&plan->base);
        return WEFT_STATUS_SUCCESS;
    }
    /* Held while planning, so that two threads with the same new shape compile once. */
    pthread_mutex_lock(&plan->override_lock);
    entry = remove_entry(plan, pack);
    if (!entry)
        status = make_override(&entry, plan, pack);
    if (!status) {
        entry->next = plan->overrides;
        plan->overrides = entry;
        /* Retained under the lock, because another thread may drop the entry as soon as the lock is released. */
        *out = (struct plan *)descriptor_retain(&entry->plan->base);
        drop_least_recent(plan);
    }
    pthread_mutex_unlock(&plan->override_lock);
    return status;
}
