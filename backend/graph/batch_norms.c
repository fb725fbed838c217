/* SPDX-License-Identifier: Apache-2.0 */
/* The parts are made as descriptors that nobody holds, in the arena, as if the user had written them: genstats,
   bn_finalize with all that the norm keeps or updates, a multiplication and an addition. */
#include "graph/batch_norms.h"
#include "base/number.h"
#include "graph/ops/bn_finalize.h"
#include "graph/ops/convolution.h"
#include "graph/ops/genstats.h"
#include "graph/ops/matmul.h"
#include "graph/ops/norm.h"
#include "graph/ops/pointwise.h"

#include <string.h>

enum { PARTS = 4 }; /* operations that one norm becomes */

struct writer {
    const struct graph *graph;
    struct arena *arena;
    struct descriptor **ops;
    int count;
    int64_t uid; /* of the next tensor: above all that the graph has */
};

static bool is_product(const struct descriptor *op) {
    return op_of(op) == &matmul_op || op_of(op) == &conv_fprop_op || op_of(op) == &conv_dgrad_op;
}

bool batch_norm_has_parts(const struct graph *graph, int node) {
    const struct norm_forward *op = (const struct norm_forward *)graph->nodes[node].op;
    if (op_of(&op->base) != &norm_forward_op || op->mode != WEFT_BATCH_NORM || op->phase != WEFT_NORM_FWD_TRAINING ||
        op->peer_stats.count > 0 || math_type(op->math) != WEFT_DATA_FLOAT || op->x->dims.count < 2)
        return false;
    int x = graph_find_value(graph, op->x);
    return dtype_is_half((weftDataType_t)op->x->type) && x >= 0 && graph->values[x].producer >= 0 &&
           is_product(graph->nodes[graph->values[x].producer].op) && tensor_elements(op->x) > 0 &&
           graph->values[graph->value_count - 1].tensor->uid < INT64_MAX - PARTS * (int64_t)graph->node_count * PARTS;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* Inside the graph, of floats, and like another one in all else. */
static weftStatus_t add_tensor(struct writer *w, struct tensor **made, const struct tensor *like) {
    TRY(descriptor_mirror(w->arena, made, &like->base));
    (*made)->uid = w->uid++;
    (*made)->is_virtual = true;
    (*made)->is_free = (*made)->is_by_value = (*made)->is_constant = false;
    (*made)->ragged_offset = NULL;
    (*made)->type = WEFT_DATA_FLOAT;
    return WEFT_STATUS_SUCCESS;
}

/* One number for each channel. */
static weftStatus_t add_channels(struct writer *w, struct tensor **made, const struct tensor *x) {
    TRY(add_tensor(w, made, x));
    (*made)->dims = channel_dims(x);
    (*made)->strides.count = 0;
    tensor_infer_strides(*made, NULL);
    return WEFT_STATUS_SUCCESS;
}

/* How many elements a channel has. */
static weftStatus_t add_count(struct writer *w, struct tensor **made, const struct tensor *x) {
    float count = (float)(tensor_elements(x) / x->dims.at[1]);
    TRY(add_tensor(w, made, x));
    (*made)->is_virtual = false;
    (*made)->is_constant = (*made)->is_by_value = true;
    for (int64_t i = 0; i < x->dims.count; i++)
        (*made)->dims.at[i] = (*made)->strides.at[i] = 1;
    memcpy((*made)->constant, &count, sizeof count);
    (*made)->constant_address = (*made)->constant;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Under the name of the norm. */
static void add_op(struct writer *w, struct descriptor *made, const struct op *op, const struct norm_forward *norm) {
    made->magic = norm->base.magic;
    made->schema = &op->schema;
    made->label = norm->base.label;
    made->finalized = true;
    w->ops[w->count++] = made;
}

static weftStatus_t add_pointwise(struct writer *w, const struct norm_forward *norm, weftPointwiseMode_t mode,
                                  struct tensor *x, struct tensor *b, struct tensor *y) {
    struct pointwise_op *op;
    struct pointwise *parameters;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    TRY(arena_alloc(w->arena, &parameters, sizeof *parameters));
    parameters->base.schema = &pointwise_schema;
    parameters->mode = (int32_t)mode;
    parameters->math = WEFT_DATA_FLOAT;
    *op = (struct pointwise_op){.pw = parameters, .x = x, .b = b, .y = y, .alpha1 = 1, .alpha2 = 1};
    add_op(w, &op->base, &pointwise_op, norm);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_statistics(struct writer *w, const struct norm_forward *norm, struct tensor *sums[2]) {
    struct genstats_op *op;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    for (int i = 0; i < 2; i++)
        TRY(add_channels(w, &sums[i], norm->x));
    *op = (struct genstats_op){
        .mode = WEFT_GENSTATS_SUM_SQSUM, .math = WEFT_DATA_FLOAT, .x = norm->x, .sum = sums[0], .sq_sum = sums[1]};
    add_op(w, &op->base, &genstats_op, norm);
    return WEFT_STATUS_SUCCESS;
}

/* factors: of x, and what is added. */
static weftStatus_t add_finalize(struct writer *w, const struct norm_forward *norm, struct tensor *const sums[2],
                                 struct tensor *factors[2]) {
    struct bn_finalize_op *op;
    struct tensor *count;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    for (int i = 0; i < 2; i++)
        TRY(add_channels(w, &factors[i], norm->x));
    TRY(add_count(w, &count, norm->x));
    *op = (struct bn_finalize_op){.mode = WEFT_BN_FINALIZE_STATISTICS_TRAINING,
                                  .math = WEFT_DATA_FLOAT,
                                  .sum = sums[0],
                                  .sq_sum = sums[1],
                                  .accum_count = count,
                                  .scale = norm->scale,
                                  .bias = norm->bias,
                                  .epsilon = norm->epsilon,
                                  .momentum = norm->momentum,
                                  .in_running_mean = norm->in_running_mean,
                                  .in_running_var = norm->in_running_var,
                                  .eq_scale = factors[0],
                                  .eq_bias = factors[1],
                                  .saved_mean = norm->mean,
                                  .saved_inv_variance = norm->inv_variance,
                                  .out_mean = norm->out_mean,
                                  .out_var = norm->out_var};
    add_op(w, &op->base, &bn_finalize_op, norm);
    return WEFT_STATUS_SUCCESS;
}

/* What is multiplied is rounded to y's type alone, once something is added. */
static weftStatus_t add_parts(struct writer *w, const struct norm_forward *norm) {
    struct tensor *sums[2], *factors[2], *scaled;
    TRY(add_statistics(w, norm, sums));
    TRY(add_finalize(w, norm, sums, factors));
    TRY(add_tensor(w, &scaled, norm->y));
    TRY(add_pointwise(w, norm, WEFT_POINTWISE_MUL, norm->x, factors[0], scaled));
    return add_pointwise(w, norm, WEFT_POINTWISE_ADD, scaled, factors[1], norm->y);
}

weftStatus_t batch_norms_part(const struct graph **made, const struct graph *graph, const bool *is_apart,
                              struct arena *arena) {
    struct writer w = {.graph = graph, .arena = arena};
    w.uid = max64(graph->values[graph->value_count - 1].tensor->uid, 0) + 1;
    TRY(arena_alloc(arena, &w.ops, (size_t)graph->node_count * PARTS * sizeof *w.ops));
    for (int n = 0; n < graph->node_count; n++) {
        if (is_apart[n])
            TRY(add_parts(&w, (const struct norm_forward *)graph->nodes[n].op));
        else
            w.ops[w.count++] = (struct descriptor *)graph->nodes[n].op;
    }
    return graph_rewrite(made, graph, w.ops, w.count, arena);
}
