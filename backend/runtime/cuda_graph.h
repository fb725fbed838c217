/* SPDX-License-Identifier: Apache-2.0 */
/* Launches recorded as a CUDA graph, whose launch costs the host about as much as that of one kernel. They are captured
   on the graph's own stream, so that attributes such as programmatic dependent launch become part of the graph. All
   functions except the last two require the device's context to be current. */
#ifndef WEFT_RUNTIME_CUDA_GRAPH_H
#define WEFT_RUNTIME_CUDA_GRAPH_H

#include "runtime/driver.h"
#include "runtime/launch.h"

struct cuda_graph {
    const struct driver *driver;
    void *context;
    weftStream_t stream; /* only for captures; nothing runs on it */
    void *executable;    /* NULL until something has been captured */
    int capture_mode;    /* mode of this thread before the capture */
};

weftStatus_t cuda_graph_make(struct cuda_graph *graph, const struct driver *driver);

/* Work launched on graph->stream between the two calls becomes the graph; an executable graph with the same kernels is
   updated. is_complete false: a launch failed, and the graph stays as it was. */
weftStatus_t cuda_graph_begin(struct cuda_graph *graph);
weftStatus_t cuda_graph_end(struct cuda_graph *graph, bool is_complete);

/* The same, but the launches become the only node of a graph of the caller. is_update false: that graph must be empty;
   otherwise an earlier call has written it. */
weftStatus_t cuda_graph_end_in(struct cuda_graph *graph, bool is_complete, void *target, bool is_update);

weftStatus_t cuda_graph_launch(const struct cuda_graph *graph, weftStream_t stream);

/* True if launches on a stream would become part of another graph, or would fail because of another stream's capture.
   */
weftStatus_t stream_find_capture(bool *is_captured, const struct driver *driver, weftStream_t stream);

/* Waits for runs in progress. Failures cannot be reported and are ignored. */
void cuda_graph_free(struct cuda_graph *graph);

#endif
