/* SPDX-License-Identifier: Apache-2.0 */
/* Finds batch norms that a user wrote as separate parts, and replaces each by one operation, so that the planner can
   decide about splitting it as for any other batch norm. Intermediate results of the parts must not be read by other
   nodes, or be stored in less than FLOAT. */
#include "graph/batch_norms.h"
#include "graph/ops/bn_bwd_weights.h"
#include "graph/ops/bn_finalize.h"
#include "graph/ops/genstats.h"
#include "graph/ops/norm.h"
#include "graph/ops/pointwise.h"

/* Replacements for the nodes of a norm. */
struct finder {
    const struct graph *graph;
    struct arena *arena;
    struct descriptor **ops; /* per node: its replacement, or NULL */
    bool any;
};

static int number_of(const struct finder *f, const struct node *node) { return (int)(node - f->graph->nodes); }

/* ---- Chains of operations ---------------------------------------------------------------------------------------- */

/* The only node that reads a value which is not visible elsewhere, or NULL. */
static const struct node *only_reader(const struct finder *f, const struct tensor *tensor) {
    const struct value *value = tensor ? &f->graph->values[graph_find_value(f->graph, tensor)] : NULL;
    bool is_hidden = value && tensor->is_virtual && tensor_type_inside(tensor) == WEFT_DATA_FLOAT;
    return is_hidden && value->readers == 1 ? &f->graph->nodes[value->read_by[0]] : NULL;
}

static const struct node *maker_of(const struct finder *f, const struct tensor *tensor) {
    int producer = f->graph->values[graph_find_value(f->graph, tensor)].producer;
    return producer < 0 ? NULL : &f->graph->nodes[producer];
}

/* The only operation that reads `tensor`, if it has this mode and calculates in floats; `other` is its other
   operand. */
static const struct pointwise_op *read_by(const struct finder *f, const struct tensor *tensor, weftPointwiseMode_t mode,
                                          const struct tensor **other) {
    const struct node *node = only_reader(f, tensor);
    const struct pointwise_op *op = node && op_of(node->op) == &pointwise_op ? (const void *)node->op : NULL;
    if (!op || op->pw->mode != (int32_t)mode || math_type(op->pw->math) != WEFT_DATA_FLOAT || op->alpha1 != 1 ||
        op->alpha2 != 1 || op->x == op->b)
        return NULL;
    *other = op->x == tensor ? op->b : op->x;
    return op;
}

/* The product of a tensor and a factor per channel, if it is the only reader of the factor. */
static const struct tensor *product_with(const struct finder *f, const struct tensor *factor, const struct tensor *x) {
    const struct tensor *other;
    const struct pointwise_op *op = read_by(f, factor, WEFT_POINTWISE_MUL, &other);
    return op && other == x && tensor_same_dims(op->y, x) ? op->y : NULL;
}

/* The sum of a and b, if a node adds them. */
static const struct tensor *sum_of(const struct finder *f, const struct tensor *a, const struct tensor *b) {
    const struct tensor *other;
    const struct pointwise_op *op = read_by(f, a, WEFT_POINTWISE_ADD, &other);
    return op && other == b && only_reader(f, b) == only_reader(f, a) ? op->y : NULL;
}

/* ---- Norms ------------------------------------------------------------------------------------------------------- */

static void take_out(struct finder *f, const struct tensor *result) {
    f->ops[number_of(f, maker_of(f, result))] = NULL;
}

/* Adds the result, named after the operation that it replaces. */
static void put_in(struct finder *f, struct descriptor *result, const struct op *op, const struct node *replaced) {
    result->magic = replaced->op->magic;
    result->schema = &op->schema;
    result->label = replaced->op->label;
    result->finalized = true;
    f->ops[number_of(f, replaced)] = result;
    f->any = true;
}

/* True if a constant scalar equals the number of elements of a channel. */
static bool counts_channel(const struct tensor *count, const struct tensor *x) {
    return count->is_constant && tensor_elements(count) == 1 && tensor_elements(x) > 0 &&
           dtype_load((weftDataType_t)count->type, count->constant, 0) == (double)(tensor_elements(x) / x->dims.at[1]);
}

/* The tensor whose statistics genstats computes, if it is x as a whole. */
static const struct tensor *normalised_of(const struct finder *f, const struct node *node,
                                          const struct bn_finalize_op *op) {
    bool is_training = op->mode == WEFT_BN_FINALIZE_STATISTICS_TRAINING && math_type(op->math) == WEFT_DATA_FLOAT;
    const struct node *maker = is_training ? maker_of(f, op->sum) : NULL;
    if (!maker || op_of(maker->op) != &genstats_op)
        return NULL;
    const struct genstats_op *sums = (const struct genstats_op *)maker->op;
    bool are_its_own = sums->sum == op->sum && sums->sq_sum == op->sq_sum && only_reader(f, op->sum) == node &&
                       only_reader(f, op->sq_sum) == node && math_type(sums->math) == WEFT_DATA_FLOAT;
    return are_its_own && counts_channel(op->accum_count, sums->x) ? sums->x : NULL;
}

/* The tensor, or NULL for an output that is not read. */
static struct tensor *seen(const struct finder *f, struct tensor *tensor) {
    bool is_dead = tensor && value_is_dead(&f->graph->values[graph_find_value(f->graph, tensor)]);
    return is_dead ? NULL : tensor;
}

/* False for running values without a previous value or without a factor: the norm does not have these. */
static bool moves_as_norm(const struct finder *f, const struct bn_finalize_op *op) {
    return (!seen(f, op->out_mean) || (op->in_running_mean && op->momentum)) &&
           (!seen(f, op->out_var) || (op->in_running_var && op->momentum));
}

/* y = eq_scale x + eq_bias. */
static weftStatus_t find_forward(struct finder *f, const struct node *node) {
    const struct bn_finalize_op *op = (const struct bn_finalize_op *)node->op;
    const struct tensor *x = normalised_of(f, node, op), *scaled = x ? product_with(f, op->eq_scale, x) : NULL;
    const struct tensor *y = scaled && op->eq_bias && moves_as_norm(f, op) ? sum_of(f, scaled, op->eq_bias) : NULL;
    struct norm_forward *result;
    if (!y)
        return WEFT_STATUS_SUCCESS;
    TRY(arena_alloc(f->arena, &result, sizeof *result));
    *result = (struct norm_forward){.mode = WEFT_BATCH_NORM,
                                    .phase = WEFT_NORM_FWD_TRAINING,
                                    .math = WEFT_DATA_FLOAT,
                                    .x = (struct tensor *)x,
                                    .scale = op->scale,
                                    .bias = op->bias,
                                    .epsilon = op->epsilon,
                                    .y = (struct tensor *)y,
                                    .mean = op->saved_mean,
                                    .inv_variance = op->saved_inv_variance,
                                    .momentum = op->momentum,
                                    .in_running_mean = op->in_running_mean,
                                    .in_running_var = op->in_running_var,
                                    .out_mean = seen(f, op->out_mean),
                                    .out_var = seen(f, op->out_var)};
    take_out(f, op->sum);
    take_out(f, scaled);
    take_out(f, y);
    put_in(f, &result->base, &norm_forward_op, node);
    return WEFT_STATUS_SUCCESS;
}

/* Finds the sum of three terms in any order: that of two of them, then that with the third. */
static const struct tensor *sum_of_three(const struct finder *f, const struct tensor *const terms[3],
                                         const struct tensor **inner) {
    for (int last = 0; last < 3; last++) {
        *inner = sum_of(f, terms[(last + 1) % 3], terms[(last + 2) % 3]);
        const struct tensor *all = *inner ? sum_of(f, *inner, terms[last]) : NULL;
        if (all)
            return all;
    }
    return NULL;
}

/* dx = eq_scale_dy dy + eq_scale_x x + eq_bias. */
static weftStatus_t find_backward(struct finder *f, const struct node *node) {
    const struct bn_bwd_weights_op *op = (const struct bn_bwd_weights_op *)node->op;
    if (math_type(op->math) != WEFT_DATA_FLOAT || op->x == op->dy || tensor_elements(op->x) == 0)
        return WEFT_STATUS_SUCCESS;
    const struct tensor *inner, *const terms[] = {product_with(f, op->eq_scale_dy, op->dy),
                                                  product_with(f, op->eq_scale_x, op->x), op->eq_bias};
    const struct tensor *dx = terms[0] && terms[1] && terms[2] ? sum_of_three(f, terms, &inner) : NULL;
    struct norm_backward *result;
    if (!dx)
        return WEFT_STATUS_SUCCESS;
    TRY(arena_alloc(f->arena, &result, sizeof *result));
    *result = (struct norm_backward){.mode = WEFT_BATCH_NORM,
                                     .math = WEFT_DATA_FLOAT,
                                     .dy = op->dy,
                                     .x = op->x,
                                     .scale = op->scale,
                                     .mean = op->mean,
                                     .inv_variance = op->inv_variance,
                                     .dx = (struct tensor *)dx,
                                     .dscale = op->dscale,
                                     .dbias = op->dbias};
    take_out(f, terms[0]);
    take_out(f, terms[1]);
    take_out(f, inner);
    take_out(f, dx);
    put_in(f, &result->base, &norm_backward_op, node);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t batch_norms_find(const struct graph **result, const struct graph *graph, struct arena *arena) {
    struct finder f = {.graph = graph, .arena = arena};
    int count = 0;
    TRY(arena_alloc(arena, &f.ops, (size_t)graph->node_count * sizeof *f.ops));
    for (int n = 0; n < graph->node_count; n++)
        f.ops[n] = (struct descriptor *)graph->nodes[n].op;
    for (int n = 0; n < graph->node_count; n++)
        if (op_of(graph->nodes[n].op) == &bn_finalize_op)
            TRY(find_forward(&f, &graph->nodes[n]));
        else if (op_of(graph->nodes[n].op) == &bn_bwd_weights_op)
            TRY(find_backward(&f, &graph->nodes[n]));
    for (int n = 0; n < graph->node_count; n++)
        if (f.ops[n])
            f.ops[count++] = f.ops[n];
    *result = graph;
    return f.any ? graph_rewrite(result, graph, f.ops, count, arena) : WEFT_STATUS_SUCCESS;
}
