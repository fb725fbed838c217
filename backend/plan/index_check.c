/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/index_check.h"

#include "base/environment.h"
#include "base/number.h"
#include "runtime/launch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- Which nodes are checked ---- */

static bool checks_gpu;
static void read_setting(void) { checks_gpu = environment_flag("WEFT_CHECK"); }

static bool is_checked(const struct plan *plan) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_setting);
    return plan->draft.device.kind == WEFT_DEVICE_CPU || checks_gpu;
}

static bool is_index(const struct graph *graph, const struct node *node, int operand) {
    const struct tensor *tensor = graph->values[node->operands[operand]].tensor;
    return !node->is_output[operand] && (tensor->type == WEFT_DATA_INT32 || tensor->type == WEFT_DATA_INT64);
}

/* Indices that a step of the plan computes are only available after that step. */
static bool has_computed_indices(const struct graph *graph, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++)
        if (is_index(graph, node, i) && graph->values[node->operands[i]].producer >= 0)
            return true;
    return false;
}

weftStatus_t index_check_list(struct plan *plan) {
    const struct graph *graph = plan->draft.graph;
    plan->index_check_count = 0;
    if (!is_checked(plan))
        return WEFT_STATUS_SUCCESS;
    TRY(arena_alloc(&plan->base.arena, &plan->index_checks, (size_t)graph->node_count * sizeof *plan->index_checks));
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        int step = plan->draft.cover.part_of_node[n];
        bool has_indices = false;
        for (int i = 0; i < node->operand_count; i++)
            has_indices = has_indices || is_index(graph, node, i);
        if (step < 0 || !has_indices || !op_of(node->op)->check_indices)
            continue;
        if (!has_computed_indices(graph, node))
            step = INDEX_CHECK_START;
        plan->index_checks[plan->index_check_count++] = (struct index_check){.node = n, .step = step};
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- GPU: indices are copied to the host ---- */

/* Copies of a node's index operands in host memory. */
struct host_indices {
    void **values; /* one entry per value of the graph; NULL: not copied */
    int count;     /* number of values */
};

static void free_copies(struct host_indices *host) {
    for (int v = 0; host->values && v < host->count; v++)
        free(host->values[v]);
    free(host->values);
}

/* Bytes of an index tensor. A ragged page table ends at its last offset, which has been copied to `host` before. */
static int64_t index_bytes(const struct graph *graph, const struct tensor *tensor, const struct host_indices *host) {
    if (!tensor->ragged_offset)
        return tensor_bytes(tensor);
    struct bindings bindings = {.graph = graph, .values = host->values};
    struct view offsets = view_of(&bindings, tensor->ragged_offset);
    int64_t end = view_load_int(&offsets, (const int64_t[]){offsets.dims[0] - 1, 0, 0, 0});
    end = max64(0, min64(end, tensor_ragged_entries(tensor).most));
    return dtype_bytes((weftDataType_t)tensor->type, end * tensor->ragged_multiplier);
}

static weftStatus_t copy_indices(struct host_indices *host, const struct graph *graph, const struct node *node,
                                 void *const *values, bool is_ragged, const struct driver *driver,
                                 weftStream_t stream) {
    for (int i = 0; i < node->operand_count; i++) {
        int v = node->operands[i];
        const struct tensor *tensor = graph->values[v].tensor;
        if (!is_index(graph, node, i) || !values[v] || host->values[v] || !tensor->ragged_offset == is_ragged)
            continue;
        int64_t bytes = index_bytes(graph, tensor, host);
        host->values[v] = calloc(1, (size_t)max64(bytes, 8));
        if (!host->values[v])
            return status_no_memory((size_t)bytes);
        if (tensor->is_by_value || tensor->is_constant)
            memcpy(host->values[v], values[v], (size_t)bytes);
        else if (bytes)
            TRY(launch_copy(driver, (uint64_t)(uintptr_t)host->values[v], (uint64_t)(uintptr_t)values[v], (size_t)bytes,
                            stream));
    }
    int result = driver->stream_synchronize(stream);
    return result ? driver_fail(result, "copying indices to the host, as WEFT_CHECK=1 requires") : WEFT_STATUS_SUCCESS;
}

/* Offsets are copied first, because the sizes of ragged tensors depend on them. */
static weftStatus_t check_copies(struct host_indices *host, const struct graph *graph, const struct node *node,
                                 void *const *values, const struct driver *driver, weftStream_t stream) {
    host->count = graph->value_count;
    host->values = calloc((size_t)graph->value_count, sizeof *host->values);
    if (!host->values)
        return status_no_memory((size_t)graph->value_count * sizeof *host->values);
    TRY(copy_indices(host, graph, node, values, false, driver, stream));
    TRY(copy_indices(host, graph, node, values, true, driver, stream));
    struct bindings bindings = {.graph = graph, .values = host->values};
    return op_of(node->op)->check_indices(node->op, &bindings);
}

static weftStatus_t check_on_gpu(const struct plan *plan, const struct node *node, void *const *values,
                                 weftStream_t stream) {
    struct device_scope scope;
    struct host_indices host = {0};
    TRY(device_enter(&scope, &plan->draft.device));
    weftStatus_t status = check_copies(&host, plan->draft.graph, node, values, scope.driver, stream);
    free_copies(&host);
    device_leave(&scope);
    return status;
}

weftStatus_t index_check_run(const struct plan *plan, void *const *values, int step, weftStream_t stream) {
    const struct graph *graph = plan->draft.graph;
    for (int i = 0; i < plan->index_check_count; i++) {
        const struct node *node = &graph->nodes[plan->index_checks[i].node];
        struct bindings bindings = {.graph = graph, .values = values};
        if (plan->index_checks[i].step != step)
            continue;
        if (plan->draft.device.kind == WEFT_DEVICE_CPU)
            TRY(op_of(node->op)->check_indices(node->op, &bindings));
        else
            TRY(check_on_gpu(plan, node, values, stream));
    }
    return WEFT_STATUS_SUCCESS;
}
