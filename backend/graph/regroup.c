/* SPDX-License-Identifier: Apache-2.0 */
/* A chain begins with a product and continues, while each result is virtual and has one reader, with pointwise
   operations, transposes, and reshapes that split dimensions. Each dimension of a result of the chain is a range of
   digits of a row or a column of the product. Atoms are the smallest such ranges; the rewritten operations have one
   dimension per atom. Other operands of the pointwise operations become views with these dimensions. */
#include "graph/regroup.h"
#include "base/number.h"
#include "graph/op_writer.h"
#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reshape.h"
#include "graph/ops/transpose.h"

#include <string.h>

enum { CHAIN_MAX = 16, OPS_PER_OPERAND = 2, OPERANDS_MAX = 3 };

/* The part of a dimension of the product that a dimension of a result counts: index / step % extent. */
struct range {
    int64_t dim, step, extent;
};

struct ranges {
    int count;
    struct range at[WEFT_DIM_MAX];
};

/* An operation of the chain, and the dimensions of its result. */
struct link {
    const struct node *node;
    struct ranges shape;
};

struct chain {
    const struct graph *graph;
    const struct node *product;
    int count;
    struct link links[CHAIN_MAX];
    struct ranges atoms; /* the dimensions of the rewritten results */
};

static const struct matmul_op *product_of(const struct chain *c) { return (const struct matmul_op *)c->product->op; }

/* ---- Finding a chain --------------------------------------------------------------------------------------------- */

static bool is_plain(const struct tensor *t) {
    return t->vector_count == 1 && !t->ragged_offset && t->reordering == WEFT_TENSOR_REORDERING_NONE &&
           tensor_elements(t) > 0;
}

static bool transpose_ranges(struct ranges *shape, const struct transpose_op *op) {
    struct ranges x = *shape;
    for (int i = 0; i < shape->count; i++)
        shape->at[i] = x.at[op->permutation.at[i]];
    return true;
}

/* Takes the last `extent` positions of the remaining ranges of x, which are of one dimension of the product. */
static bool take_range(struct range *taken, struct ranges *x, int64_t extent) {
    *taken = (struct range){.extent = 1, .step = 1};
    while (taken->extent < extent) {
        struct range *last = &x->at[x->count - 1];
        int64_t missing = extent / taken->extent, part = min64(missing, last->extent);
        if (last->extent == 1) {
            x->count--;
            continue;
        }
        if (missing * taken->extent != extent || missing % part || last->extent % part)
            return false;
        if (taken->extent > 1 && (last->dim != taken->dim || last->step != taken->step * taken->extent))
            return false;
        taken->step = taken->extent > 1 ? taken->step : last->step;
        taken->dim = last->dim;
        taken->extent *= part;
        last->step *= part;
        last->extent /= part;
    }
    return true;
}

static bool reshape_ranges(struct ranges *shape, const struct reshape_op *op) {
    struct ranges x = *shape;
    shape->count = (int)op->y->dims.count;
    for (int i = shape->count; i-- > 0;)
        if (!take_range(&shape->at[i], &x, op->y->dims.at[i]))
            return false;
    return reshape_keeps_order(op);
}

/* True if the operation computes its result element by element from operands that are given or broadcast. */
static bool is_elementwise(const struct chain *c, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    if (op_of(node->op) != &pointwise_op || pointwise_find_mode(op->pw->mode)->form == FORM_INDEX)
        return false;
    const struct tensor *y = c->graph->values[node_result(node)].tensor;
    for (int k = 0; k < node->operand_count; k++) {
        const struct tensor *x = c->graph->values[node->operands[k]].tensor;
        /* A number that is passed by value is no view of memory. */
        if (!is_plain(x) || (x->is_by_value && !x->is_constant) || (x->is_constant && tensor_elements(x) != 1) ||
            (x->dims.count != y->dims.count && !x->is_constant))
            return false;
    }
    return true;
}

/* Adds the operation that reads the last result of the chain, if it fits. */
static bool extend(struct chain *c, int *value) {
    const struct value *at = &c->graph->values[*value];
    if (!at->tensor->is_virtual || !is_plain(at->tensor) || at->readers == 0 ||
        at->read_by[0] != at->read_by[at->readers - 1] || c->count == CHAIN_MAX)
        return false;
    const struct node *node = &c->graph->nodes[at->read_by[0]];
    const struct tensor *y = c->graph->values[node->operands[node->operand_count - 1]].tensor;
    struct ranges shape = c->links[c->count - 1].shape;
    bool is_moved = is_plain(y) && y->type == at->tensor->type;
    bool fits = op_of(node->op) == &transpose_op ? is_moved && transpose_ranges(&shape, (const void *)node->op)
                : op_of(node->op) == &reshape_op ? is_moved && reshape_ranges(&shape, (const void *)node->op)
                                                 : is_elementwise(c, node) && tensor_same_dims(y, at->tensor);
    if (!fits)
        return false;
    c->links[c->count++] = (struct link){node, shape};
    *value = node_result(node);
    return true;
}

static bool moves(const struct link *link) { return op_of(link->node->op) != &pointwise_op; }

/* True if the product can have one dimension per atom: its batch extents are those of the result, or 1. */
static bool is_regular(const struct matmul_op *op) {
    bool holds = is_plain(op->a) && is_plain(op->b) && !op->a->is_by_value && !op->b->is_by_value && !op->m_override &&
                 !op->n_override && !op->k_override;
    for (int64_t i = 0; i < op->c->dims.count - 2; i++)
        holds = holds && (op->a->dims.at[i] == op->c->dims.at[i] || op->a->dims.at[i] == 1) &&
                (op->b->dims.at[i] == op->c->dims.at[i] || op->b->dims.at[i] == 1);
    return holds;
}

/* The ends of ranges of a dimension, in ascending order, without duplicates; false if one does not divide the next. */
static bool list_steps(const struct chain *c, int64_t dim, int64_t *steps, int *count) {
    *count = 1;
    steps[0] = 1;
    for (int i = 0; i < c->count; i++)
        for (int d = 0; d < c->links[i].shape.count; d++) {
            const struct range *range = &c->links[i].shape.at[d];
            int64_t end = range->step * range->extent;
            int at = *count;
            if (range->dim != dim || range->extent == 1)
                continue;
            while (at > 0 && steps[at - 1] >= end)
                at--;
            if (at < *count && steps[at] == end)
                continue;
            if (*count == WEFT_DIM_MAX || end % steps[at - 1] || (at < *count && steps[at] % end))
                return false;
            memmove(&steps[at + 1], &steps[at], (size_t)(*count - at) * sizeof *steps);
            steps[at] = end;
            ++*count;
        }
    return true;
}

static bool add_atom(struct chain *c, struct range atom) {
    if (c->atoms.count == WEFT_DIM_MAX)
        return false;
    c->atoms.at[c->atoms.count++] = atom;
    return true;
}

/* The atoms of a dimension, slowest first, except the fastest one of rows and columns, which `fastest` gets. */
static bool add_atoms(struct chain *c, int64_t dim, struct range *fastest) {
    int64_t steps[WEFT_DIM_MAX];
    int count;
    if (!list_steps(c, dim, steps, &count))
        return false;
    for (int i = count - 1; i > (fastest ? 1 : 0); i--)
        if (!add_atom(c, (struct range){dim, steps[i - 1], steps[i] / steps[i - 1]}))
            return false;
    if (fastest)
        *fastest = (struct range){dim, 1, count > 1 ? steps[1] : 1};
    return true;
}

/* Batch, slow parts of rows, slow parts of columns, rows, columns. */
static bool find_atoms(struct chain *c) {
    int64_t rank = product_of(c)->c->dims.count;
    struct range rows, columns;
    for (int64_t i = 0; i < rank - 2; i++)
        if (!add_atoms(c, i, NULL))
            return false;
    return add_atoms(c, rank - 2, &rows) && add_atoms(c, rank - 1, &columns) && add_atom(c, rows) &&
           add_atom(c, columns);
}

/* Finds the chain of a product. Its last operation is one that moves, or one after it. */
static bool find_chain(struct chain *c, const struct graph *graph, int product, const int *step_of) {
    *c = (struct chain){.graph = graph, .product = &graph->nodes[product], .count = 1};
    bool is_moved = false, is_apart = false;
    if (op_of(c->product->op) != &matmul_op || !is_regular(product_of(c)))
        return false;
    int value = node_result(c->product);
    c->links[0] = (struct link){.node = c->product, .shape.count = (int)product_of(c)->c->dims.count};
    for (int i = 0; i < c->links[0].shape.count; i++)
        c->links[0].shape.at[i] = (struct range){i, 1, product_of(c)->c->dims.at[i]};
    while (extend(c, &value)) {
        int step = step_of[c->links[c->count - 1].node - graph->nodes];
        is_moved = is_moved || moves(&c->links[c->count - 1]);
        is_apart = is_apart || (step >= 0 && step != step_of[product]);
    }
    return is_moved && is_apart && find_atoms(c);
}

/* ---- Rewriting it ------------------------------------------------------------------------------------------------ */

static struct dims dims_of(const struct ranges *ranges) {
    struct dims dims = {.count = ranges->count};
    for (int i = 0; i < ranges->count; i++)
        dims.at[i] = ranges->at[i].extent;
    return dims;
}

/* A virtual tensor that equals another one except for its dims. */
static weftStatus_t add_tensor(struct op_writer *w, struct tensor **result, const struct tensor *like,
                               struct dims dims) {
    TRY(op_writer_add_tensor(w, result, like, (weftDataType_t)like->type));
    (*result)->is_free = like->is_free;
    (*result)->dims = dims;
    (*result)->strides = dims_row_major(&dims);
    return WEFT_STATUS_SUCCESS;
}

/* `replaced` gives the operation its name. */
static weftStatus_t add_reshape(struct op_writer *w, const struct descriptor *replaced, struct tensor *x,
                                struct tensor *y) {
    struct reshape_op *op;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    *op = (struct reshape_op){.x = x, .y = y, .mode = WEFT_RESHAPE_LOGICAL};
    op_writer_add(w, &op->base, &reshape_op, replaced);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_transpose(struct op_writer *w, const struct descriptor *replaced, struct tensor *x,
                                  const struct dims *permutation, struct tensor *y) {
    struct transpose_op *op;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    *op = (struct transpose_op){.x = x, .y = y, .permutation = *permutation};
    op_writer_add(w, &op->base, &transpose_op, replaced);
    return WEFT_STATUS_SUCCESS;
}

/* A view of *tensor with other dims; replaces *tensor. */
static weftStatus_t view_reshaped(struct op_writer *w, const struct descriptor *replaced, struct tensor **tensor,
                                  struct dims dims) {
    struct tensor *y;
    if (tensor_same_dims(*tensor, &(struct tensor){.dims = dims}))
        return WEFT_STATUS_SUCCESS;
    TRY(add_tensor(w, &y, *tensor, dims));
    TRY(add_reshape(w, replaced, *tensor, y));
    *tensor = y;
    return WEFT_STATUS_SUCCESS;
}

static bool is_identity(const struct dims *permutation) {
    bool is_same = true;
    for (int64_t i = 0; i < permutation->count; i++)
        is_same = is_same && permutation->at[i] == i;
    return is_same;
}

/* A view of *tensor with other positions of its dims; replaces *tensor. */
static weftStatus_t view_transposed(struct op_writer *w, const struct descriptor *replaced, struct tensor **tensor,
                                    struct dims permutation) {
    struct tensor *y;
    struct dims dims = {.count = permutation.count};
    if (is_identity(&permutation))
        return WEFT_STATUS_SUCCESS;
    for (int64_t i = 0; i < dims.count; i++)
        dims.at[i] = (*tensor)->dims.at[permutation.at[i]];
    TRY(add_tensor(w, &y, *tensor, dims));
    TRY(add_transpose(w, replaced, *tensor, &permutation, y));
    *tensor = y;
    return WEFT_STATUS_SUCCESS;
}

/* Positions of atoms in the order of a result of the chain; those of extent 1 that it does not have come last. */
static struct dims order_of(const struct chain *c, const struct ranges *shape) {
    struct dims order = {0};
    for (int d = 0; d < shape->count; d++)
        for (int i = 0; i < c->atoms.count; i++) {
            const struct range *atom = &c->atoms.at[i], *range = &shape->at[d];
            if (atom->extent > 1 && range->extent > 1 && atom->dim == range->dim && atom->step >= range->step &&
                atom->step < range->step * range->extent)
                order.at[order.count++] = i;
        }
    for (int i = 0; i < c->atoms.count; i++)
        if (c->atoms.at[i].extent == 1)
            order.at[order.count++] = i;
    return order;
}

static struct dims invert(const struct dims *order) {
    struct dims inverse = {.count = order->count};
    for (int64_t i = 0; i < order->count; i++)
        inverse.at[order->at[i]] = i;
    return inverse;
}

/* True if the operand has all positions of an atom, as opposed to one that broadcasts. */
static bool has_atom(const struct tensor *tensor, const struct ranges *shape, const struct range *atom) {
    for (int d = 0; d < shape->count; d++) {
        const struct range *range = &shape->at[d];
        if (range->extent > 1 && range->dim == atom->dim && atom->step >= range->step &&
            atom->step < range->step * range->extent)
            return tensor->dims.at[d] != 1;
    }
    return false;
}

/* A copy of a constant with one dimension per atom. */
static weftStatus_t copy_number(struct op_writer *w, struct tensor **tensor, int64_t rank) {
    struct tensor *copy;
    TRY(descriptor_mirror(w->arena, &copy, &(*tensor)->base));
    copy->uid = w->uid++;
    copy->dims.count = copy->strides.count = rank;
    for (int64_t i = 0; i < rank; i++)
        copy->dims.at[i] = copy->strides.at[i] = 1;
    copy->constant_address = copy->constant;
    *tensor = copy;
    return WEFT_STATUS_SUCCESS;
}

/* A view with one dimension per atom of an operand whose dims are those of `shape`, or 1; replaces *tensor. */
static weftStatus_t view_operand(struct op_writer *w, const struct chain *c, const struct descriptor *replaced,
                                 const struct ranges *shape, struct tensor **tensor) {
    struct dims order = order_of(c, shape), dims = {.count = order.count};
    if ((*tensor)->is_constant)
        return copy_number(w, tensor, c->atoms.count);
    for (int64_t i = 0; i < order.count; i++) {
        const struct range *atom = &c->atoms.at[order.at[i]];
        dims.at[i] = has_atom(*tensor, shape, atom) ? atom->extent : 1;
    }
    TRY(view_reshaped(w, replaced, tensor, dims));
    return view_transposed(w, replaced, tensor, invert(&order));
}

/* A view of an operand of the product: the dimensions of its atoms, and K, which precedes the columns of B and follows
   the rows of A; replaces *tensor. `own` is the operand's other index, `foreign` the one that it does not have. */
static weftStatus_t view_factor(struct op_writer *w, const struct chain *c, struct tensor **tensor, bool is_b) {
    int64_t rank = product_of(c)->c->dims.count, foreign = is_b ? rank - 2 : rank - 1;
    int last = c->atoms.count - 1, inner = is_b ? last : last - 1, at = 0;
    struct dims dims = {.count = c->atoms.count}, order = {.count = c->atoms.count};
    /* In the order of the operand's memory: A [batch, slow rows, rows, K], B [batch, K, slow columns, columns]. */
    for (int i = 0; i <= last; i++)
        if (c->atoms.at[i].dim < rank - 2 || (c->atoms.at[i].dim == foreign && i < last - 1))
            order.at[at++] = i;
    if (is_b)
        order.at[at++] = last - 1;
    for (int i = 0; i < last - 1; i++)
        if (c->atoms.at[i].dim == (is_b ? rank - 1 : rank - 2))
            order.at[at++] = i;
    order.at[at++] = inner;
    if (!is_b)
        order.at[at] = last;
    for (int i = 0; i <= last; i++) {
        const struct range *atom = &c->atoms.at[order.at[i]];
        bool is_k = order.at[i] == (is_b ? last - 1 : last);
        bool is_missing = !is_k && (atom->dim == foreign || (*tensor)->dims.at[atom->dim] == 1);
        dims.at[i] = is_k ? (*tensor)->dims.at[is_b ? rank - 2 : rank - 1] : is_missing ? 1 : atom->extent;
    }
    TRY(view_reshaped(w, c->product->op, tensor, dims));
    return view_transposed(w, c->product->op, tensor, invert(&order));
}

/* Operands of a pointwise operation by their replacements. */
struct exchange {
    int count;
    struct tensor *from[OPERANDS_MAX + 1], *to[OPERANDS_MAX + 1];
};

static struct tensor *exchange_tensor(const void *context, struct tensor *tensor) {
    const struct exchange *exchange = context;
    for (int i = 0; i < exchange->count; i++)
        if (exchange->from[i] == tensor)
            return exchange->to[i];
    return tensor;
}

static weftStatus_t rewrite_pointwise(struct op_writer *w, const struct chain *c, int link, struct tensor *in,
                                      struct tensor *out) {
    const struct node *node = c->links[link].node;
    struct exchange exchange = {0};
    struct descriptor *op;
    const struct node *before = c->links[link - 1].node;
    for (int k = 0; k < node->operand_count; k++) {
        struct tensor *tensor = c->graph->values[node->operands[k]].tensor, *to = node->is_output[k] ? out : in;
        exchange.from[exchange.count] = tensor;
        if (!node->is_output[k] && node->operands[k] != node_result(before)) {
            to = tensor;
            TRY(view_operand(w, c, node->op, &c->links[link].shape, &to));
        }
        exchange.to[exchange.count++] = to;
    }
    TRY(op_exchange(&op, node->op, exchange_tensor, &exchange, w->arena));
    w->ops[w->count++] = op;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t rewrite_product(struct op_writer *w, const struct chain *c, struct tensor *out) {
    struct matmul_op *op;
    TRY(arena_copy(w->arena, &op, product_of(c), sizeof *op));
    op->c = out;
    TRY(view_factor(w, c, &op->a, false));
    TRY(view_factor(w, c, &op->b, true));
    op_writer_add(w, &op->base, &matmul_op, c->product->op);
    return WEFT_STATUS_SUCCESS;
}

/* Moves the last result to the tensor that the chain ends with. */
static weftStatus_t add_result(struct op_writer *w, const struct chain *c, struct tensor *in, struct tensor *out) {
    const struct link *last = &c->links[c->count - 1];
    const struct descriptor *replaced = last->node->op;
    struct dims order = order_of(c, &last->shape);
    TRY(view_transposed(w, replaced, &in, order));
    return add_reshape(w, replaced, in, out);
}

/* True if results with one dimension per atom have the dims of the last one. */
static bool ends_alike(const struct chain *c) {
    const struct ranges *shape = &c->links[c->count - 1].shape;
    struct dims order = order_of(c, shape), atoms = dims_of(&c->atoms), dims = dims_of(shape);
    return is_identity(&order) && tensor_same_dims(&(struct tensor){.dims = atoms}, &(struct tensor){.dims = dims});
}

static weftStatus_t rewrite(struct op_writer *w, const struct chain *c) {
    struct tensor *in = NULL, *end = c->graph->values[node_result(c->links[c->count - 1].node)].tensor;
    int last = c->count - 1;
    while (moves(&c->links[last]) && last > 0)
        last--;
    for (int i = 0; i <= last; i++) {
        struct tensor *like = c->graph->values[node_result(c->links[i].node)].tensor, *out = end;
        if (i > 0 && moves(&c->links[i]))
            continue;
        if (i < last || !ends_alike(c))
            TRY(add_tensor(w, &out, like, dims_of(&c->atoms)));
        TRY(i == 0 ? rewrite_product(w, c, out) : rewrite_pointwise(w, c, i, in, out));
        in = out;
    }
    return in == end ? WEFT_STATUS_SUCCESS : add_result(w, c, in, end);
}

weftStatus_t regroup_products(const struct graph **result, const struct graph *graph, const int *step_of,
                              struct arena *arena) {
    struct op_writer w = {.arena = arena};
    struct chain chain;
    bool *is_replaced, is_any = false;
    int64_t most = (CHAIN_MAX + 1) * (OPERANDS_MAX * OPS_PER_OPERAND + 1) * (int64_t)graph->node_count;
    *result = graph;
    w.uid = max64(graph->values[graph->value_count - 1].tensor->uid, 0);
    if (w.uid >= INT64_MAX - most)
        return WEFT_STATUS_SUCCESS;
    w.uid++;
    TRY(arena_alloc(arena, &is_replaced, (size_t)graph->node_count * sizeof *is_replaced));
    for (int n = 0; n < graph->node_count; n++) {
        if (!find_chain(&chain, graph, n, step_of))
            continue;
        if (!is_any)
            TRY(arena_alloc(arena, &w.ops, (size_t)most * sizeof *w.ops));
        is_any = true;
        for (int i = 0; i < chain.count; i++)
            is_replaced[chain.links[i].node - graph->nodes] = true;
        TRY(rewrite(&w, &chain));
    }
    for (int n = 0; n < graph->node_count && is_any; n++)
        if (!is_replaced[n])
            w.ops[w.count++] = (struct descriptor *)graph->nodes[n].op;
    return is_any ? graph_rewrite(result, graph, w.ops, w.count, arena) : WEFT_STATUS_SUCCESS;
}
