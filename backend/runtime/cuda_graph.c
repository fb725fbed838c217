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

weftStatus_t cuda_graph_end(struct cuda_graph *graph, bool is_complete) {
    void *captured = NULL;
    int result = graph->driver->stream_end_capture(graph->stream, &captured);
    weftStatus_t status = is_complete ? check_result(result, "ending a capture") : WEFT_STATUS_SUCCESS;
    if (is_complete && !status)
        status = update_executable(graph, captured);
    if (captured)
        graph->driver->graph_destroy(captured);
    graph->driver->thread_exchange_stream_capture_mode(&graph->capture_mode);
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
