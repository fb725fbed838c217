/* SPDX-License-Identifier: Apache-2.0 */
/* Launches kept as one CUDA graph, which costs the host about as much as one kernel. They are captured on a stream of
   the graph's own, so that what a launch asks for, as programmatic dependent launch, becomes the graph's by the driver.
   Calls but the last want the device's context current. */
#ifndef WEFT_RUNTIME_CUDA_GRAPH_H
#define WEFT_RUNTIME_CUDA_GRAPH_H

#include "runtime/driver.h"
#include "runtime/launch.h"

struct cuda_graph {
    const struct driver *driver;
    void *context;
    weftStream_t stream; /* of captures; nothing runs there */
    void *executable;    /* NULL: nothing was captured yet */
    int capture_mode;    /* of this thread before a capture began */
};

weftStatus_t cuda_graph_make(struct cuda_graph *graph, const struct driver *driver);

/* Between the two, what is launched on graph->stream becomes the graph; an executable one of the same kernels takes
   other arguments. is_whole false: something failed, and the graph stays as it was. */
weftStatus_t cuda_graph_begin(struct cuda_graph *graph);
weftStatus_t cuda_graph_end(struct cuda_graph *graph, bool is_whole);

weftStatus_t cuda_graph_launch(const struct cuda_graph *graph, weftStream_t stream);

/* Whether launches on a stream would be captured into somebody's graph, or fail as another stream's capture forbids
   them. */
weftStatus_t stream_find_capture(bool *is_captured, const struct driver *driver, weftStream_t stream);

/* Runs that are under way end first; what fails has nobody to tell. */
void cuda_graph_free(struct cuda_graph *graph);

#endif
