/* SPDX-License-Identifier: Apache-2.0 */
/* Heuristics: the engines that can serve a graph on a device, as configurations sorted by predicted time. The result is
   a function of graph, device and version only; ties keep the order of the engine list. */
#include "graph/descriptor.h"
#include "plan/engine.h"

/* `results` are engine configurations; this descriptor holds a reference to each. */
struct heuristics {
    struct descriptor base;
    int32_t mode;
    struct graph *graph;
    /* At most one per engine. */
    struct list results;
    struct engine_limits limits;
    struct device_properties *device;
};

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_HEUR_MODE, struct heuristics, mode, WEFT_ATTR_ENGINEHEUR_MODE, "mode", .required = true,
              .doc = "A, B and INSTANT rank all engines; FALLBACK offers those that run any graph"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct heuristics, graph, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH,
              "operation_graph", .required = true, .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
              .doc = "the graph to serve"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct heuristics, results, WEFT_ATTR_ENGINEHEUR_RESULTS, "results",
              .storage = STORE_LIST, .role = ROLE_RESULT, .target = WEFT_BACKEND_ENGINECFG_DESCRIPTOR,
              .doc = "engine configurations, fastest first"),
    VALUE_ROW(WEFT_TYPE_INT32, struct heuristics, limits.sm_count_target, WEFT_ATTR_ENGINEHEUR_SM_COUNT_TARGET,
              "sm_count_target", .most = INT32_MAX, .doc = "multiprocessors of a GPU to plan for at most; 0: all"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct heuristics, device, WEFT_ATTR_ENGINEHEUR_DEVICEPROP,
              "device_properties", .target = WEFT_BACKEND_DEVICEPROP_DESCRIPTOR, .doc = "the device to plan for"),
    VALUE_ROW(WEFT_TYPE_INT32, struct heuristics, limits.shared_memory_limit, WEFT_ATTR_ENGINEHEUR_SHARED_MEMORY_LIMIT,
              "shared_memory_limit", .most = INT32_MAX,
              .doc = "bytes of a GPU's shared memory per block to use at most; 0: all"),
};

/* Insertion sort, because there are only a handful of engines. */
static void insert_by_time(struct list *results, struct engine_config *config) {
    int64_t at = results->count++;
    /* Strictly greater, so that ties keep the order of the engine list. */
    for (; at > 0 && ((struct engine_config *)results->descriptors[at - 1])->seconds > config->seconds; at--)
        results->descriptors[at] = results->descriptors[at - 1];
    results->descriptors[at] = &config->base;
}

/* Each engine plans the graph. Running out of memory is the only failure that is passed on, because it is unrelated to
   the engine. */
static weftStatus_t finalize(struct descriptor *descriptor) {
    struct heuristics *self = (struct heuristics *)descriptor;
    TRY(arena_alloc(&descriptor->arena, &self->results.items, (size_t)engine_count * sizeof(void *)));
    for (int i = 0; i < engine_count; i++) {
        struct engine_config *config;
        struct device device;
        if (self->mode == WEFT_HEUR_MODE_FALLBACK && !engines[i]->is_fallback)
            continue;
        /* Engines for other kinds of devices are not candidates. */
        if (choose_device(&device, self->device, self->graph->handle, NULL) || device.kind != engines[i]->device)
            continue;
        weftStatus_t status = make_config(&config, self->graph, i, self->device, &(struct list){0}, &self->limits);
        if (status == WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)
            return status;
        /* Engines that decline are left out; weftQuerySupport reports why. */
        if (status == WEFT_STATUS_SUCCESS)
            insert_by_time(&self->results, config);
    }
    /* The refusals are not errors of this call. */
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

const struct schema heuristics_schema = {
    .kind = WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR,
    .name = "heuristics",
    .doc = "the engines that can serve a graph, fastest first",
    .size = sizeof(struct heuristics),
    ROWS(rows),
    .finalize = finalize,
};

/* The list holds one reference; the caller gets another. */
weftStatus_t heuristics_first(const struct descriptor *heuristics, struct engine_config **config) {
    const struct list *results = &((const struct heuristics *)heuristics)->results;
    if (results->count == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: no engine can run it on this device. weftQuerySupport reports why each one declines.",
             descriptor_label(&((const struct heuristics *)heuristics)->graph->base));
    *config = (struct engine_config *)descriptor_retain(results->descriptors[0]);
    return WEFT_STATUS_SUCCESS;
}
