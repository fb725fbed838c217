/* SPDX-License-Identifier: Apache-2.0 */
/* An executable graph is updated with the arguments of a new capture; a new one is only instantiated if the driver
   declines the update. */
#include "runtime/cuda_graph.h"

static weftStatus_t check_result(int result, const char *what) {
    return result ? driver_fail(result, "CUDA graph of a plan: %s", what) : WEFT_STATUS_SUCCESS;
}

weftStatus_t cuda_graph_make(struct cuda_graph *graph, const struct driver *driver) {
    *graph = (struct cuda_graph){.driver = driver};
    TRY(check_result(driver->ctx_get_current(&graph->context), "finding the context"));
    return check_result(driver->stream_create(&graph->stream, CUDA_STREAM_NON_BLOCKING),
                        "creating a stream to capture");
}

/* Uses relaxed mode for the capture and for the thread until it ends, so that captures of this and of other threads do
   not invalidate each other. */
weftStatus_t cuda_graph_begin(struct cuda_graph *graph) {
    const struct driver *driver = graph->driver;
    graph->capture_mode = CUDA_CAPTURE_MODE_RELAXED;
    TRY(check_result(driver->thread_exchange_stream_capture_mode(&graph->capture_mode), "relaxing the capture mode"));
    int result = driver->stream_begin_capture(graph->stream, CUDA_CAPTURE_MODE_RELAXED);
    if (result)
        driver->thread_exchange_stream_capture_mode(&graph->capture_mode);
    return check_result(result, "beginning a capture");
}

static weftStatus_t update_executable(struct cuda_graph *graph, void *captured) {
    const struct driver *driver = graph->driver;
    struct cuda_graph_update update = {0};
    if (graph->executable && !driver->graph_exec_update(graph->executable, captured, &update))
        return WEFT_STATUS_SUCCESS;
    if (graph->executable)
        driver->graph_exec_destroy(graph->executable);
    graph->executable = NULL;
    return check_result(driver->graph_instantiate(&graph->executable, captured, 0), "instantiating");
}

/* Ends the capture; *captured is NULL if the launches were not complete. The capture mode stays relaxed. */
static weftStatus_t end_capture(void **captured, const struct cuda_graph *graph, bool is_complete) {
    const struct driver *driver = graph->driver;
    *captured = NULL;
    int result = driver->stream_end_capture(graph->stream, captured);
    weftStatus_t status = is_complete ? check_result(result, "ending a capture") : WEFT_STATUS_SUCCESS;
    if (*captured && (status || !is_complete)) {
        driver->graph_destroy(*captured);
        *captured = NULL;
    }
    return status;
}

/* Destroys a captured graph, and restores the thread's capture mode. */
static void release_capture(struct cuda_graph *graph, void *captured) {
    if (captured)
        graph->driver->graph_destroy(captured);
    graph->driver->thread_exchange_stream_capture_mode(&graph->capture_mode);
}

weftStatus_t cuda_graph_end(struct cuda_graph *graph, bool is_complete) {
    void *captured;
    weftStatus_t status = end_capture(&captured, graph, is_complete);
    if (captured)
        status = update_executable(graph, captured);
    release_capture(graph, captured);
    return status;
}

/* Removes the node that an earlier call has written. */
static weftStatus_t clear_target(const struct driver *driver, void *target, bool is_update) {
    void *node = NULL;
    size_t count = 0;
    TRY(check_result(driver->graph_get_nodes(target, NULL, &count), "counting the nodes of the caller's graph"));
    if (count != (is_update ? 1 : 0))
        FAIL(
            WEFT_STATUS_BAD_PARAM,
            "the CUDA graph has %zu node%s: expected %s. Create a graph for the plan, and add it to others as a child.",
            count, plural((int64_t)count), is_update ? "one, which weftBackendPopulateCudaGraph has written" : "none");
    if (!is_update)
        return WEFT_STATUS_SUCCESS;
    TRY(check_result(driver->graph_get_nodes(target, &node, &count), "listing the nodes of the caller's graph"));
    return check_result(driver->graph_destroy_node(node), "removing the node of an earlier call");
}

weftStatus_t cuda_graph_end_in(struct cuda_graph *graph, bool is_complete, void *target, bool is_update) {
    void *captured, *node;
    weftStatus_t status = end_capture(&captured, graph, is_complete);
    if (captured)
        status = clear_target(graph->driver, target, is_update);
    if (captured && !status)
        status = check_result(graph->driver->graph_add_child(&node, target, NULL, 0, captured),
                              "adding the plan to the caller's graph");
    release_capture(graph, captured);
    return status;
}

weftStatus_t cuda_graph_launch(const struct cuda_graph *graph, weftStream_t stream) {
    return check_result(graph->driver->graph_launch(graph->executable, stream), "launching");
}

void cuda_graph_free(struct cuda_graph *graph) {
    const struct driver *driver = graph->driver;
    void *popped;
    bool is_pushed = !driver->ctx_push_current(graph->context);
    if (graph->executable)
        driver->graph_exec_destroy(graph->executable);
    if (graph->stream)
        driver->stream_destroy(graph->stream);
    if (is_pushed)
        driver->ctx_pop_current(&popped);
}

weftStatus_t stream_find_capture(bool *is_captured, const struct driver *driver, weftStream_t stream) {
    int capture = 0, result = driver->stream_is_capturing(stream, &capture);
    *is_captured = capture || result == CUDA_CAPTURE_IMPLICIT;
    return *is_captured ? WEFT_STATUS_SUCCESS : check_result(result, "querying the capture status");
}
