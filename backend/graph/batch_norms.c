/* SPDX-License-Identifier: Apache-2.0 */
/* The parts are created in the arena, as descriptors without reference counts, as if the user had written them:
   genstats, bn_finalize with all outputs and running values of the norm, a multiplication and an addition; for a
   gradient dbn_weight, two multiplications and two additions; for a norm with given statistics, the terms of its
   formula. */
#include "graph/batch_norms.h"
#include "base/number.h"
#include "graph/op_writer.h"
#include "graph/ops/bn_bwd_weights.h"
#include "graph/ops/bn_finalize.h"
#include "graph/ops/convolution.h"
#include "graph/ops/genstats.h"
#include "graph/ops/matmul.h"
#include "graph/ops/norm.h"
#include "graph/ops/pointwise.h"

#include <string.h>

enum {
    PARTS = 6,      /* maximum number of operations that replace a norm */
    TENSORS = 6,    /* maximum number of tensors between them */
    BEHIND_MOST = 8 /* maximum number of pointwise operations between a product and a norm */
};

static bool is_product(const struct descriptor *op) {
    return op_of(op) == &matmul_op || op_of(op) == &conv_fprop_op || op_of(op) == &conv_dgrad_op;
}

/* True if a tensor is computed by a product, or by pointwise operations after one. */
static bool is_behind_product(const struct graph *graph, const struct tensor *tensor, int most) {
    int value = graph_find_value(graph, tensor), producer = value < 0 ? -1 : graph->values[value].producer;
    if (producer < 0 || most < 0 || tensor_elements(tensor) == 0)
        return false;
    const struct node *node = &graph->nodes[producer];
    bool holds = is_product(node->op);
    for (int k = 0; k < node->operand_count && !holds && op_of(node->op) == &pointwise_op; k++) {
        const struct tensor *operand = graph->values[node->operands[k]].tensor;
        holds = !node->is_output[k] && tensor_same_dims(operand, tensor) && is_behind_product(graph, operand, most - 1);
    }
    return holds;
}

static bool calculates_in_float(int32_t math, const struct tensor *x) {
    return math_type(math) == WEFT_DATA_FLOAT && dtype_is_half((weftDataType_t)x->type) && x->dims.count >= 2;
}

static bool forward_has_parts(const struct graph *graph, const struct norm_forward *op) {
    return op->mode == WEFT_BATCH_NORM && op->phase == WEFT_NORM_FWD_TRAINING && op->peer_stats.count == 0 &&
           calculates_in_float(op->math, op->x) && is_behind_product(graph, op->x, 0);
}

static bool is_float(const struct tensor *tensor) {
    return !tensor || (int32_t)tensor->type == WEFT_DATA_FLOAT || dtype_is_half((weftDataType_t)tensor->type);
}

/* One operation per element: nothing is summed, and separate operations on floats lose no precision. */
static bool inference_has_parts(const struct graph *graph, const struct norm_forward *op) {
    const struct tensor *operands[] = {
        op->x, op->mean, op->inv_variance, op->scale, op->bias, op->in_running_mean, op->in_running_var};
    bool holds = norm_is_inference_of_batch(op) && math_type(op->math) == WEFT_DATA_FLOAT &&
                 is_behind_product(graph, op->x, BEHIND_MOST);
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++)
        holds = holds && is_float(operands[i]);
    return holds && (op->mean || op->epsilon->is_constant);
}

/* True only if the statistics of forward are given: recomputing them needs sums over all of x before the first sum of
   dy. */
static bool backward_has_parts(const struct graph *graph, const struct norm_backward *op) {
    return op->mode == WEFT_BATCH_NORM && op->peer_stats.count == 0 && op->mean && op->inv_variance &&
           calculates_in_float(op->math, op->x) && dtype_is_half((weftDataType_t)op->dy->type) &&
           is_behind_product(graph, op->dy, BEHIND_MOST);
}

bool batch_norm_has_parts(const struct graph *graph, int node) {
    const struct descriptor *op = graph->nodes[node].op;
    if (graph->values[graph->value_count - 1].tensor->uid >= INT64_MAX - TENSORS * (int64_t)graph->node_count)
        return false;
    return op_of(op) == &norm_forward_op    ? forward_has_parts(graph, (const struct norm_forward *)op) ||
                                                  inference_has_parts(graph, (const struct norm_forward *)op)
           : op_of(op) == &norm_backward_op ? backward_has_parts(graph, (const struct norm_backward *)op)
                                            : false;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static weftStatus_t add_tensor(struct op_writer *w, struct tensor **result, const struct tensor *like) {
    return op_writer_add_tensor(w, result, like, WEFT_DATA_FLOAT);
}

/* Adds a tensor with one number per channel. */
static weftStatus_t add_channels(struct op_writer *w, struct tensor **result, const struct tensor *x) {
    TRY(add_tensor(w, result, x));
    (*result)->dims = channel_dims(x);
    (*result)->strides.count = 0;
    tensor_infer_strides(*result, NULL);
    return WEFT_STATUS_SUCCESS;
}

/* Adds a constant with the rank of x, as pointwise operations require. */
static weftStatus_t add_number(struct op_writer *w, struct tensor **result, const struct tensor *like, int64_t rank) {
    TRY(descriptor_mirror(w->arena, result, &like->base));
    (*result)->uid = w->uid++;
    (*result)->dims.count = (*result)->strides.count = rank;
    for (int64_t i = 0; i < rank; i++)
        (*result)->dims.at[i] = (*result)->strides.at[i] = 1;
    (*result)->constant_address = (*result)->constant;
    return WEFT_STATUS_SUCCESS;
}

/* Adds the number of elements of a channel. */
static weftStatus_t add_count(struct op_writer *w, struct tensor **result, const struct tensor *x) {
    float count = (float)(tensor_elements(x) / x->dims.at[1]);
    TRY(add_tensor(w, result, x));
    (*result)->is_virtual = false;
    (*result)->is_constant = (*result)->is_by_value = true;
    for (int64_t i = 0; i < x->dims.count; i++)
        (*result)->dims.at[i] = (*result)->strides.at[i] = 1;
    memcpy((*result)->constant, &count, sizeof count);
    (*result)->constant_address = (*result)->constant;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static weftStatus_t add_pointwise(struct op_writer *w, const struct descriptor *norm, weftPointwiseMode_t mode,
                                  struct tensor *x, struct tensor *b, struct tensor *y) {
    return op_writer_add_pointwise(w, norm, mode, WEFT_DATA_FLOAT, -1,
                                   (struct pointwise_operands){.x = x, .b = b, .out = y});
}

static weftStatus_t add_statistics(struct op_writer *w, const struct norm_forward *norm, struct tensor *sums[2]) {
    struct genstats_op *op;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    for (int i = 0; i < 2; i++) {
        TRY(add_channels(w, &sums[i], norm->x));
        sums[i]->type = WEFT_DATA_DOUBLE;
    }
    *op = (struct genstats_op){
        .mode = WEFT_GENSTATS_SUM_SQSUM, .math = WEFT_DATA_FLOAT, .x = norm->x, .sum = sums[0], .sq_sum = sums[1]};
    op_writer_add(w, &op->base, &genstats_op, &norm->base);
    return WEFT_STATUS_SUCCESS;
}

/* `factors`: the factor of x, and the summand. Calculated in DOUBLE, because float sums would give a variance with an
   error of 2^-24 of the squared mean. */
static weftStatus_t add_finalize(struct op_writer *w, const struct norm_forward *norm, struct tensor *const sums[2],
                                 struct tensor *factors[2]) {
    struct bn_finalize_op *op;
    struct tensor *count;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    for (int i = 0; i < 2; i++)
        TRY(add_channels(w, &factors[i], norm->x));
    TRY(add_count(w, &count, norm->x));
    *op = (struct bn_finalize_op){.mode = WEFT_BN_FINALIZE_STATISTICS_TRAINING,
                                  .math = WEFT_DATA_DOUBLE,
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
    op_writer_add(w, &op->base, &bn_finalize_op, &norm->base);
    return WEFT_STATUS_SUCCESS;
}

/* The product is not rounded; only the sum is, to y's type. */
static weftStatus_t add_forward(struct op_writer *w, const struct norm_forward *norm) {
    struct tensor *sums[2], *factors[2], *scaled;
    TRY(add_statistics(w, norm, sums));
    TRY(add_finalize(w, norm, sums, factors));
    TRY(add_tensor(w, &scaled, norm->y));
    TRY(add_pointwise(w, &norm->base, WEFT_POINTWISE_MUL, norm->x, factors[0], scaled));
    return add_pointwise(w, &norm->base, WEFT_POINTWISE_ADD, scaled, factors[1], norm->y);
}

/* Adds the factors of dy and of x, and the summand. */
static weftStatus_t add_weights(struct op_writer *w, const struct norm_backward *norm, struct tensor *factors[3]) {
    struct bn_bwd_weights_op *op;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    for (int i = 0; i < 3; i++)
        TRY(add_channels(w, &factors[i], norm->x));
    *op = (struct bn_bwd_weights_op){.math = WEFT_DATA_FLOAT,
                                     .dy = norm->dy,
                                     .x = norm->x,
                                     .mean = norm->mean,
                                     .inv_variance = norm->inv_variance,
                                     .scale = norm->scale,
                                     .dscale = norm->dscale,
                                     .dbias = norm->dbias,
                                     .eq_scale_dy = factors[0],
                                     .eq_scale_x = factors[1],
                                     .eq_bias = factors[2]};
    op_writer_add(w, &op->base, &bn_bwd_weights_op, &norm->base);
    return WEFT_STATUS_SUCCESS;
}

/* dx = of_dy dy + (of_x x + rest): the term of x and the rest may be large and cancel, so they are added first. */
static weftStatus_t add_backward(struct op_writer *w, const struct norm_backward *norm) {
    struct tensor *factors[3], *result[3];
    const struct descriptor *base = &norm->base;
    TRY(add_weights(w, norm, factors));
    for (int i = 0; i < 3; i++)
        TRY(add_tensor(w, &result[i], norm->dx));
    TRY(add_pointwise(w, base, WEFT_POINTWISE_MUL, norm->x, factors[1], result[0]));
    TRY(add_pointwise(w, base, WEFT_POINTWISE_ADD, result[0], factors[2], result[1]));
    TRY(add_pointwise(w, base, WEFT_POINTWISE_MUL, norm->dy, factors[0], result[2]));
    return add_pointwise(w, base, WEFT_POINTWISE_ADD, result[2], result[1], norm->dx);
}

/* Adds 1 / sqrt(variance + epsilon), for each channel. */
static weftStatus_t add_inverse(struct op_writer *w, const struct norm_forward *norm, struct tensor **inverse) {
    struct tensor *sum, *epsilon;
    TRY(add_channels(w, &sum, norm->x));
    TRY(add_channels(w, inverse, norm->x));
    TRY(add_number(w, &epsilon, norm->epsilon, norm->x->dims.count));
    TRY(add_pointwise(w, &norm->base, WEFT_POINTWISE_ADD, norm->in_running_var, epsilon, sum));
    return add_pointwise(w, &norm->base, WEFT_POINTWISE_RSQRT, sum, NULL, *inverse);
}

/* y = (x - mean) inverse scale + bias; absent operands are omitted. */
static weftStatus_t add_inference(struct op_writer *w, const struct norm_forward *norm) {
    struct tensor *mean = norm->mean ? norm->mean : norm->in_running_mean, *inverse = norm->inv_variance, *x = norm->x;
    if (!norm->mean)
        TRY(add_inverse(w, norm, &inverse));
    struct tensor *const operands[] = {mean, inverse, norm->scale, norm->bias};
    static const weftPointwiseMode_t modes[] = {WEFT_POINTWISE_SUB, WEFT_POINTWISE_MUL, WEFT_POINTWISE_MUL,
                                                WEFT_POINTWISE_ADD};
    int last = norm->bias ? 3 : norm->scale ? 2 : 1;
    for (int i = 0; i <= last; i++) {
        struct tensor *y = norm->y;
        if (!operands[i])
            continue;
        if (i < last)
            TRY(add_tensor(w, &y, norm->y));
        TRY(add_pointwise(w, &norm->base, modes[i], x, operands[i], y));
        x = y;
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_parts(struct op_writer *w, const struct descriptor *norm) {
    if (op_of(norm) == &norm_backward_op)
        return add_backward(w, (const struct norm_backward *)norm);
    const struct norm_forward *forward = (const struct norm_forward *)norm;
    return norm_is_inference_of_batch(forward) ? add_inference(w, forward) : add_forward(w, forward);
}

weftStatus_t batch_norms_part(const struct graph **result, const struct graph *graph, const bool *is_apart,
                              struct arena *arena) {
    struct op_writer w = {.arena = arena};
    w.uid = max64(graph->values[graph->value_count - 1].tensor->uid, 0) + 1;
    TRY(arena_alloc(arena, &w.ops, (size_t)graph->node_count * PARTS * sizeof *w.ops));
    for (int n = 0; n < graph->node_count; n++) {
        if (is_apart[n])
            TRY(add_parts(&w, graph->nodes[n].op));
        else
            w.ops[w.count++] = (struct descriptor *)graph->nodes[n].op;
    }
    return graph_rewrite(result, graph, w.ops, w.count, arena);
}
