/* SPDX-License-Identifier: Apache-2.0 */
/* A graph holds the addresses that it was captured with, and the numbers that are passed by value. A run with the same
   ones launches it; one with others captures the steps anew, into the same graph. No lock: a graph is taken out of its
   place by an exchange, and its place says meanwhile that it is in use. */
#include "plan/replay.h"
#include "base/number.h"
#include "runtime/cuda_graph.h"

#include <stdlib.h>
#include <string.h>

struct replay {
    struct cuda_graph graph;
    uint64_t key[]; /* a word per slot, then the workspace; all ones before the first run, as no address is */
};

/* What the place of a graph holds while a thread runs it. */
static struct replay in_use;

static size_t key_words(const struct plan *plan) { return (size_t)plan->slot_count + 1; }

static weftStatus_t make(struct replay **made, const struct plan *plan, const struct driver *driver) {
    size_t words = key_words(plan), bytes = sizeof **made + words * sizeof *(*made)->key;
    struct replay *replay = malloc(bytes);
    if (!replay)
        return status_no_memory(bytes);
    memset(replay->key, 0xff, words * sizeof *replay->key);
    weftStatus_t status = cuda_graph_make(&replay->graph, driver);
    if (status)
        free(replay);
    *made = status ? NULL : replay;
    return status;
}

/* A graph that nobody runs, or room for one: *made is NULL then. No place: all are in use. */
static _Atomic(void *) *take(struct replay **taken, struct plan *plan) {
    for (int i = 0; i < REPLAYS_MAX; i++) {
        *taken = atomic_exchange(&plan->replays[i], &in_use);
        if (*taken != &in_use)
            return &plan->replays[i];
    }
    return NULL;
}

/* Whether a run differs from the one that was captured; keeps what it is given. */
static bool note_run(struct replay *replay, const struct plan *plan, void *const *values, const void *workspace) {
    bool is_other = false;
    for (int i = 0; i <= plan->slot_count; i++) {
        const struct slot *slot = &plan->slots[i];
        uint64_t word = (uint64_t)(uintptr_t)workspace;
        if (i < plan->slot_count) {
            const struct tensor *tensor = plan->draft.graph->values[slot->value].tensor;
            word = (uint64_t)(uintptr_t)values[slot->value];
            if (tensor->is_by_value) { /* the number, not where it lies */
                word = 0;
                memcpy(&word, values[slot->value], (size_t)min64(sizeof word, slot->bytes));
            }
        }
        is_other |= word != replay->key[i];
        replay->key[i] = word;
    }
    return is_other;
}

static weftStatus_t capture(struct replay *replay, const struct plan *plan, void *const *values, void *workspace) {
    TRY(cuda_graph_begin(&replay->graph));
    weftStatus_t status = plan_run_steps(plan, values, workspace, replay->graph.stream, NULL);
    weftStatus_t ended = cuda_graph_end(&replay->graph, !status);
    return status ? status : ended;
}

static weftStatus_t run(struct replay *replay, const struct plan *plan, void *const *values, void *workspace,
                        weftStream_t stream) {
    if (note_run(replay, plan, values, workspace))
        TRY(capture(replay, plan, values, workspace));
    return cuda_graph_launch(&replay->graph, stream);
}

/* With the graph of a place, or one that is made for it; one that failed is not kept. */
static weftStatus_t run_in(_Atomic(void *) *place, struct replay *replay, const struct driver *driver,
                           const struct plan *plan, void *const *values, void *workspace, weftStream_t stream) {
    weftStatus_t status = replay ? WEFT_STATUS_SUCCESS : make(&replay, plan, driver);
    if (!status)
        status = run(replay, plan, values, workspace, stream);
    if (status && replay) {
        cuda_graph_free(&replay->graph);
        free(replay);
        replay = NULL;
    }
    atomic_store(place, replay);
    return status;
}

weftStatus_t replay_run(bool *is_done, struct plan *plan, void *const *values, void *workspace, weftStream_t stream) {
    struct device_scope scope;
    struct replay *replay = NULL;
    bool is_captured;
    *is_done = false;
    TRY(device_enter(&scope, &plan->draft.device));
    weftStatus_t status = stream_find_capture(&is_captured, scope.driver, stream);
    _Atomic(void *) *place = status || is_captured ? NULL : take(&replay, plan);
    if (place)
        status = run_in(place, replay, scope.driver, plan, values, workspace, stream);
    *is_done = place;
    device_leave(&scope);
    return status;
}

void replay_free(struct plan *plan) {
    for (int i = 0; i < REPLAYS_MAX; i++) {
        struct replay *replay = atomic_exchange(&plan->replays[i], NULL);
        if (replay)
            cuda_graph_free(&replay->graph);
        free(replay);
    }
}
