/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA graph contains the addresses and by-value numbers that it was captured with. A run with the same ones launches
   it; other runs capture the steps again and update the graph. There is no lock: a thread takes a graph by exchanging
   its entry for a marker. */
#include "plan/cuda_graph_cache.h"
#include "base/number.h"
#include "runtime/cuda_graph.h"

#include <stdlib.h>
#include <string.h>

struct cached_graph {
    struct cuda_graph graph;
    uint64_t key[]; /* one word per slot, then the workspace; initially all ones, which is no valid address */
};

/* Marks the entry of a graph that a thread is running. */
static struct cached_graph in_use;

static size_t key_words(const struct plan *plan) { return (size_t)plan->slot_count + 1; }

static weftStatus_t create(struct cached_graph **out, const struct plan *plan, const struct driver *driver) {
    size_t words = key_words(plan), bytes = sizeof **out + words * sizeof *(*out)->key;
    struct cached_graph *cached = malloc(bytes);
    if (!cached)
        return status_no_memory(bytes);
    memset(cached->key, 0xff, words * sizeof *cached->key);
    weftStatus_t status = cuda_graph_make(&cached->graph, driver);
    if (status)
        free(cached);
    *out = status ? NULL : cached;
    return status;
}

/* Takes an idle graph, or an empty entry (*cached is NULL then). Returns NULL if all entries are in use. */
static _Atomic(void *) *acquire_entry(struct cached_graph **cached, struct plan *plan) {
    for (int i = 0; i < CACHED_GRAPHS_MAX; i++) {
        *cached = atomic_exchange(&plan->cached_graphs[i], &in_use);
        if (*cached != &in_use)
            return &plan->cached_graphs[i];
    }
    return NULL;
}

/* True if the run differs from the captured one. Updates the key to this run. */
static bool update_key(struct cached_graph *cached, const struct plan *plan, void *const *values,
                       const void *workspace) {
    bool differs = false;
    for (int i = 0; i <= plan->slot_count; i++) {
        const struct slot *slot = &plan->slots[i];
        uint64_t word = (uint64_t)(uintptr_t)workspace;
        if (i < plan->slot_count) {
            const struct tensor *tensor = plan->draft.graph->values[slot->value].tensor;
            word = (uint64_t)(uintptr_t)values[slot->value];
            if (tensor->is_by_value) { /* compare the number, not its address */
                word = 0;
                memcpy(&word, values[slot->value], (size_t)min64(sizeof word, slot->bytes));
            }
        }
        differs |= word != cached->key[i];
        cached->key[i] = word;
    }
    return differs;
}

static weftStatus_t capture(struct cached_graph *cached, const struct plan *plan, void *const *values,
                            void *workspace) {
    TRY(cuda_graph_begin(&cached->graph));
    weftStatus_t status = plan_run_steps(plan, values, workspace, cached->graph.stream, NULL);
    weftStatus_t ended = cuda_graph_end(&cached->graph, !status);
    return status ? status : ended;
}

static weftStatus_t run(struct cached_graph *cached, const struct plan *plan, void *const *values, void *workspace,
                        weftStream_t stream) {
    if (update_key(cached, plan, values, workspace))
        TRY(capture(cached, plan, values, workspace));
    return cuda_graph_launch(&cached->graph, stream);
}

/* Runs the graph of an entry, and creates it first if the entry is empty. A graph that failed is destroyed. */
static weftStatus_t run_entry(_Atomic(void *) *entry, struct cached_graph *cached, const struct driver *driver,
                              const struct plan *plan, void *const *values, void *workspace, weftStream_t stream) {
    weftStatus_t status = cached ? WEFT_STATUS_SUCCESS : create(&cached, plan, driver);
    if (!status)
        status = run(cached, plan, values, workspace, stream);
    if (status && cached) {
        cuda_graph_free(&cached->graph);
        free(cached);
        cached = NULL;
    }
    atomic_store(entry, cached);
    return status;
}

weftStatus_t cuda_graph_cache_run(bool *is_done, struct plan *plan, void *const *values, void *workspace,
                                  weftStream_t stream) {
    struct device_scope scope;
    struct cached_graph *cached = NULL;
    bool is_captured;
    *is_done = false;
    TRY(device_enter(&scope, &plan->draft.device));
    weftStatus_t status = stream_find_capture(&is_captured, scope.driver, stream);
    _Atomic(void *) *entry = status || is_captured ? NULL : acquire_entry(&cached, plan);
    if (entry)
        status = run_entry(entry, cached, scope.driver, plan, values, workspace, stream);
    *is_done = entry;
    device_leave(&scope);
    return status;
}

weftStatus_t cuda_graph_write(const struct plan *plan, void *const *values, void *workspace, void *target,
                              bool is_update) {
    struct device_scope scope;
    struct cuda_graph graph;
    TRY(device_enter(&scope, &plan->draft.device));
    weftStatus_t status = cuda_graph_make(&graph, scope.driver);
    if (!status)
        status = cuda_graph_begin(&graph);
    if (!status) {
        status = plan_run_steps(plan, values, workspace, graph.stream, NULL);
        weftStatus_t ended = cuda_graph_end_in(&graph, !status, target, is_update);
        status = status ? status : ended;
    }
    if (graph.stream)
        cuda_graph_free(&graph);
    device_leave(&scope);
    return status;
}

void cuda_graph_cache_free(struct plan *plan) {
    for (int i = 0; i < CACHED_GRAPHS_MAX; i++) {
        struct cached_graph *cached = atomic_exchange(&plan->cached_graphs[i], NULL);
        if (cached)
            cuda_graph_free(&cached->graph);
        free(cached);
    }
}
