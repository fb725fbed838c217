/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of the functions that are one graph each, cached in their handle. */
#ifndef WEFT_CUDNN_PLAN_CACHE_H
#define WEFT_CUDNN_PLAN_CACHE_H

#include "src/builder.h"
#include "src/handle.h"

/* Every key begins with these fields. A key is everything that the plan depends on, as bytes: clear it with memset
   first. alignment: of all addresses, in bytes, because kernels load by it. */
struct key_head {
    int32_t graph, alignment;
};

/* The graphs: the first field of keys, so that those of different functions differ. */
enum {
    GRAPH_CONVOLUTION = 1,
    GRAPH_CONVOLUTION_FUSED,
    GRAPH_CONVOLUTION_BIAS,
    GRAPH_NORM_FORWARD,
    GRAPH_NORM_BACKWARD,
    GRAPH_ACTIVATION,
    GRAPH_ACTIVATION_BACKWARD,
    GRAPH_ADD,
    GRAPH_SCALE,
    GRAPH_FILL,
    GRAPH_OP_TENSOR,
    GRAPH_REDUCTION,
    GRAPH_SOFTMAX,
    GRAPH_SOFTMAX_BACKWARD,
    GRAPH_POOLING,
    GRAPH_POOLING_BACKWARD,
    GRAPH_DROPOUT,
    GRAPH_DROPOUT_BACKWARD,
    GRAPH_DROPOUT_ADVANCE,
    GRAPH_LRN,
    GRAPH_LRN_BACKWARD,
    GRAPH_CAUSAL_CONV,
    GRAPH_CAUSAL_CONV_BACKWARD,
    GRAPH_AFFINE_GRID,
    GRAPH_AFFINE_GRID_BACKWARD,
    GRAPH_GRID_SAMPLE,
    GRAPH_GRID_SAMPLE_BACKWARD,
    GRAPH_CTC_LOSS
};

enum { PLAN_SLOTS_MAX = 24 };

struct cached_plan {
    struct cached_plan *next;
    uint64_t hash;
    size_t key_bytes;
    void *key;
    weftBackendDescriptor_t plan;
    int64_t workspace_bytes;
    int slot_count;
    int64_t slots[PLAN_SLOTS_MAX];
};

/* Builds the graph of a key. */
typedef void build_graph(struct builder *b, const void *key);

/* The plan of a key, built at the first call. is_exact: engines that round operands to TF32 are not used.
   Thread-safe. */
cudnnStatus_t plan_get(cudnnHandle_t handle, const void *key, size_t key_bytes, bool is_exact, build_graph *graph,
                       struct cached_plan **plan);

struct binding {
    int64_t uid;
    const void *address;
};

/* Runs a plan on the handle's stream. Surplus bindings are ignored. If the workspace is too small for the plan, the
   handle's scratch memory is used. */
cudnnStatus_t plan_execute(cudnnHandle_t handle, const struct cached_plan *plan, int count,
                           const struct binding *bindings, void *workspace, size_t workspace_bytes);

/* Both in one call, without a workspace. */
cudnnStatus_t plan_run_graph(cudnnHandle_t handle, const void *key, size_t key_bytes, build_graph *graph, int count,
                             const struct binding *bindings);
#define PLAN_RUN(handle, key, graph, ...)                                                                              \
    plan_run_graph(handle, &(key), sizeof(key), graph,                                                                 \
                   sizeof((struct binding[]){__VA_ARGS__}) / sizeof(struct binding), (struct binding[]){__VA_ARGS__})

/* The alignment that all addresses have, at most 16 bytes; NULL is ignored. */
int32_t common_alignment(int count, const void *const *addresses);
#define ALIGNMENT(...)                                                                                                 \
    common_alignment(sizeof((const void *[]){__VA_ARGS__}) / sizeof(void *), (const void *[]){__VA_ARGS__})

void plans_free(cudnnHandle_t handle);

#endif
