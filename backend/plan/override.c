/* SPDX-License-Identifier: Apache-2.0 */
/* Executions with other shapes than the plan's: the graph is made again with the overridden dims and strides, planned
   on the same engine where that serves them, and kept for the next execution of these shapes. Only such an execution
   takes a lock or allocates. */
#include "graph/descriptor.h"
#include "plan/plan.h"
#include "plan/save.h"

#include <stdlib.h>
#include <string.h>

/* Plans kept: each holds its kernels and steps, but kernels of other shapes are mostly the same. */
enum { OVERRIDES_MAX = 32 };

/* An entry of the list is found by its three lists, which are the pack's, copied. */
struct plan_override {
    struct plan_override *next; /* most recently used first */
    struct list uids, shapes, strides;
    struct arena arena;
    struct plan *plan;
};

/* Exact equality, the order included. */
static bool same_list(const struct list *a, const struct list *b) {
    return a->count == b->count && memcmp(a->i64, b->i64, (size_t)a->count * sizeof *a->i64) == 0;
}

/* Takes the entry of a pack's shapes out of the list. The order of uids is part of what is compared: packs are made by
   programs, which keep to one. */
static struct plan_override *take(struct plan *plan, const struct variant_pack *pack) {
    for (struct plan_override **at = &plan->overrides; *at; at = &(*at)->next) {
        struct plan_override *found = *at;
        if (!same_list(&found->uids, &pack->override_uids) || !same_list(&found->shapes, &pack->override_shapes) ||
            !same_list(&found->strides, &pack->override_strides))
            continue;
        *at = found->next;
        return found;
    }
    return NULL;
}

/* The plan may be NULL, where making it failed. */
static void free_override(struct plan_override *entry) {
    descriptor_release(entry->plan ? &entry->plan->base : NULL);
    arena_free(&entry->arena);
    free(entry);
}

/* Nobody runs the plan any more, so no lock is needed. */
void plan_free_overrides(struct plan *plan) {
    while (plan->overrides) {
        struct plan_override *entry = plan->overrides;
        plan->overrides = entry->next;
        free_override(entry);
    }
}

/* Dims and strides have one number for each dim of each named tensor; the pack itself has checked that they are as many
   as each other. */
static weftStatus_t check_overrides(const struct plan *plan, const struct variant_pack *pack) {
    const struct graph *graph = plan->draft.graph;
    int64_t numbers = 0;
    for (int64_t i = 0; i < pack->override_uids.count; i++) {
        int value = graph_find_uid(graph, pack->override_uids.i64[i]);
        if (value < 0)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s overrides uid %lld, which %s has not. Name a tensor of the graph.",
                 descriptor_label(&pack->base), (long long)pack->override_uids.i64[i], descriptor_label(&graph->base));
        /* Ranks do not change, so the old dims say how many numbers a tensor has. */
        numbers += graph->values[value].tensor->dims.count;
    }
    if (numbers != pack->override_shapes.count)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: override_shapes has %lld numbers, the overridden tensors have %lld dims in all. Give each dim.",
             descriptor_label(&pack->base), (long long)pack->override_shapes.count, (long long)numbers);
    return WEFT_STATUS_SUCCESS;
}

/* The graph with other shapes, as a plan: the graph as it was given, whose results have the shapes that follow. */
static weftStatus_t plan_anew(struct plan **out, const struct plan *plan, const struct variant_pack *pack) {
    struct graph *graph = NULL;
    struct engine_config *config = NULL;
    struct descriptor *made = NULL;
    weftStatus_t status = graph_change(&graph, plan->config->engine->graph, &(struct changes){.overrides = pack});
    if (!status)
        status = plan_config_again(&config, plan->config, graph);
    if (!status)
        status = descriptor_make(&plan_schema, &made);
    /* Properties, handle, limit and carried code as the plan's own: what differs is the graph alone. */
    if (!status) {
        ((struct plan *)made)->handle = context_retain(plan->handle);
        if (plan->device_properties)
            ((struct plan *)made)->device_properties =
                (struct device_properties *)descriptor_retain(&plan->device_properties->base);
        ((struct plan *)made)->workspace_limit = plan->workspace_limit;
        ((struct plan *)made)->carried = plan->carried; /* used by finalize alone */
        ((struct plan *)made)->cuda_graph = plan->cuda_graph;
        void *held = config;
        status = descriptor_set(made, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &held);
    }
    if (!status)
        status = descriptor_finalize(made);
    descriptor_release(graph ? &graph->base : NULL);
    /* The configuration holds the graph, the plan the configuration. */
    descriptor_release(config ? &config->base : NULL);
    if (status) {
        descriptor_release(made);
        return status_prefix(status, "overridden shapes: ");
    }
    *out = (struct plan *)made;
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
    /* The pack is the caller's and may go: the entry keeps its own copy of what it is found by. Planned first: shapes
       that cannot be planned leave nothing behind. */
    struct list *lists[] = {&entry->uids, &entry->shapes, &entry->strides};
    weftStatus_t status = plan_anew(&entry->plan, plan, pack);
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

/* Keeps the OVERRIDES_MAX that were used last. The list is one entry too long at most, so dropping ends with it.
   Executions that still run it hold a reference. */
static void drop_oldest(struct plan *plan) {
    int kept = 0;
    for (struct plan_override **at = &plan->overrides; *at; at = &(*at)->next)
        if (++kept > OVERRIDES_MAX) {
            free_override(*at);
            *at = NULL;
            return;
        }
}

weftStatus_t plan_for_pack(struct plan **found, struct plan *plan, const struct variant_pack *pack) {
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    struct plan_override *entry = NULL;
    if (pack->override_uids.count == 0) {
        *found = (struct plan *)descriptor_retain(&plan->base);
        return WEFT_STATUS_SUCCESS;
    }
    /* Held while a plan is made: two threads with the same new shape then compile once. */
    pthread_mutex_lock(&plan->override_lock);
    entry = take(plan, pack);
    if (!entry)
        status = make_override(&entry, plan, pack);
    if (!status) {
        entry->next = plan->overrides;
        plan->overrides = entry;
        /* Retained under the lock: another thread may drop the entry as soon as it is released. */
        *found = (struct plan *)descriptor_retain(&entry->plan->base);
        drop_oldest(plan);
    }
    pthread_mutex_unlock(&plan->override_lock);
    return status;
}
