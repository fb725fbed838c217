/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of the graph that match.c, scores.c and gradient.c share: producers and consumers of tensors, types, and
   operands of products. Views are followed in both directions, so that transposes, reshapes and copies of heads cost
   nothing: an operand is read from its source, and a result is written to its destination. */
#include "graph/ops/transpose.h"
#include "graph/patterns/match.h"

#include <string.h>

/* ---- Producers and consumers ------------------------------------------------------------------------------------- */

/* A binary search, because values are sorted by uid. Returns -1 for NULL, too, so that calls can be nested. */
int pattern_producer(const struct attention_pattern *s, const struct tensor *tensor) {
    int value = tensor ? graph_find_value(s->graph, tensor) : -1;
    return value < 0 ? -1 : s->graph->values[value].producer;
}

const struct descriptor *pattern_op(const struct attention_pattern *s, int node) { return s->graph->nodes[node].op; }

bool pattern_is_pointwise(const struct attention_pattern *s, int node) {
    return node >= 0 && op_of(pattern_op(s, node)) == &pointwise_op;
}

const struct pointwise_op *pattern_pointwise(const struct attention_pattern *s, int node) {
    return (const struct pointwise_op *)pattern_op(s, node);
}

/* y, or dx of a backward mode. */
const struct tensor *pattern_result(const struct attention_pattern *s, int node) {
    return pointwise_operands(pattern_pointwise(s, node)).out;
}

enum pointwise_form pattern_form(const struct attention_pattern *s, int node) {
    return pointwise_find_mode(pattern_pointwise(s, node)->pw->mode)->form;
}

const struct pointwise_op *pattern_produced_by(const struct attention_pattern *s, const struct tensor *tensor,
                                               int mode) {
    int node = pattern_producer(s, tensor);
    return pattern_is_pointwise(s, node) && pattern_pointwise(s, node)->pw->mode == mode ? pattern_pointwise(s, node)
                                                                                         : NULL;
}

/* A linear scan: there are at most PATTERN_NODES_MAX nodes. */
int pattern_index(const struct attention_pattern *s, int node) {
    for (int i = 0; i < s->count; i++)
        if (s->nodes[i].node == node)
            return i;
    return -1;
}

bool pattern_contains(const struct attention_pattern *s, int node) { return pattern_index(s, node) >= 0; }

/* Adding a node again has no effect: several paths may lead to a node. It keeps its first role. */
weftStatus_t pattern_add(struct attention_pattern *s, int node) {
    if (s->count == PATTERN_NODES_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the attention pattern has more than %d operations",
             descriptor_label(pattern_op(s, node)), PATTERN_NODES_MAX);
    if (!pattern_contains(s, node)) {
        s->nodes[s->count++] = (struct pattern_node){.node = node};
    }
    return WEFT_STATUS_SUCCESS;
}

/* Insertion sort, because the nodes are nearly sorted, in reverse. Regions list nodes in the graph's order, and the
   modifier needs operands before the operations that read them. */
void pattern_sort(struct attention_pattern *s) {
    for (int i = 1; i < s->count; i++)
        for (int at = i; at > 0 && s->nodes[at - 1].node > s->nodes[at].node; at--) {
            struct pattern_node node = s->nodes[at];
            s->nodes[at] = s->nodes[at - 1];
            s->nodes[at - 1] = node;
        }
}

/* Keeps the order of the remaining nodes. */
void pattern_remove(struct attention_pattern *s, int index) {
    int after = --s->count - index;
    memmove(&s->nodes[index], &s->nodes[index + 1], (size_t)after * sizeof *s->nodes);
}

/* These messages suggest no fix: they only explain why the operations run separately. */
weftStatus_t pattern_decline(const struct attention_pattern *s, int node, const char *reason) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: %s", descriptor_label(pattern_op(s, node)), reason);
}

weftStatus_t pattern_decline_tensor(const struct tensor *tensor, const char *reason) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s %s", descriptor_label(&tensor->base), reason);
}

/* A node that reads the tensor as two operands counts once. */
bool pattern_is_private(const struct attention_pattern *s, const struct tensor *tensor, int reader) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    bool matches = tensor->is_virtual;
    for (int i = 0; i < value->readers; i++)
        matches = matches && value->read_by[i] == reader;
    return matches;
}

/* True if input and output of a reshape are packed and have the same elements in the same order. */
static bool is_packed_reshape(const struct reshape_op *op) {
    return reshape_keeps_order(op) && tensor_is_packed(op->x) && tensor_is_packed(op->y);
}

/* A reshape that converts is not a view. A stored result is not one either, because it needs memory of its own. */
const struct reshape_op *pattern_view_at(const struct attention_pattern *s, int node) {
    const struct descriptor *op = node < 0 ? NULL : pattern_op(s, node);
    const struct reshape_op *reshape = (const struct reshape_op *)op;
    bool matches = op && op_of(op) == &reshape_op && reshape->y->is_virtual && reshape->y->type == reshape->x->type;
    return matches && is_packed_reshape(reshape) ? reshape : NULL;
}

/* True if a permutation swaps the last two dimensions only. */
static bool is_swap(const struct dims *permutation) {
    int64_t last = permutation->count - 1;
    bool matches = last >= 1 && permutation->at[last] == last - 1 && permutation->at[last - 1] == last;
    for (int64_t i = 0; matches && i < last - 1; i++)
        matches = permutation->at[i] == i;
    return matches;
}

/* True if a reshape shows the storage of x with the last two dimensions swapped. */
static bool shows_swapped(const struct reshape_op *op) {
    struct dims dims = op->x->dims, strides = op->x->strides;
    int64_t last = dims.count - 1;
    if (op->mode != WEFT_RESHAPE_VIEW_ONLY || last < 1 || op->y->dims.count != dims.count)
        return false;
    for (int64_t i = 0; i <= last; i++) {
        int64_t from = i < last - 1 ? i : 2 * last - 1 - i;
        if (op->y->dims.at[i] != dims.at[from] || (dims.at[from] > 1 && op->y->strides.at[i] != strides.at[from]))
            return false;
    }
    return true;
}

bool pattern_swaps(const struct attention_pattern *s, int node, const struct tensor **x, const struct tensor **y) {
    const struct descriptor *op = node < 0 ? NULL : pattern_op(s, node);
    const struct transpose_op *transpose = (const struct transpose_op *)op;
    const struct reshape_op *reshape = (const struct reshape_op *)op;
    bool is_transpose = op && op_of(op) == &transpose_op && is_swap(&transpose->permutation);
    if (!is_transpose && !(op && op_of(op) == &reshape_op && shows_swapped(reshape)))
        return false;
    *x = is_transpose ? transpose->x : reshape->x;
    *y = is_transpose ? transpose->y : reshape->y;
    return true;
}

/* The view may join or split batch and head dimensions only, because masks and softmax identify rows and columns of the
   scores by the last two dimensions. */
const struct tensor *pattern_skip_view(const struct attention_pattern *s, const struct tensor *tensor) {
    const struct reshape_op *op = pattern_view_at(s, pattern_producer(s, tensor));
    int64_t x = op ? op->x->dims.count : 0, y = tensor->dims.count;
    bool is_of_batches = x >= 2 && y >= 2 && op->x->dims.at[x - 1] == tensor->dims.at[y - 1] &&
                         op->x->dims.at[x - 2] == tensor->dims.at[y - 2];
    return is_of_batches ? op->x : tensor;
}

weftStatus_t pattern_add_view(struct attention_pattern *s, const struct tensor **tensor) {
    const struct tensor *before_view = pattern_skip_view(s, *tensor);
    if (before_view != *tensor)
        TRY(pattern_add(s, pattern_producer(s, *tensor)));
    *tensor = before_view;
    return WEFT_STATUS_SUCCESS;
}

/* Recurses into views, because these have no elements of their own. The depth is that of the longest chain of views in
   the graph. */
bool pattern_is_read_outside(const struct attention_pattern *s, const struct tensor *tensor) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    bool matches = !tensor->is_virtual;
    for (int i = 0; i < value->readers && !matches; i++) {
        const struct reshape_op *view = pattern_view_at(s, value->read_by[i]);
        /* A view shares the memory: check its readers instead. */
        matches = view ? pattern_is_read_outside(s, view->y) : !pattern_contains(s, value->read_by[i]);
    }
    return matches;
}

/* Index operations read the extents of a tensor, not its elements. */
int pattern_sole_reader(const struct attention_pattern *s, const struct tensor *tensor) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    int match = -1;
    for (int i = 0; i < value->readers; i++) {
        int reader = value->read_by[i];
        if (pattern_is_pointwise(s, reader) && pattern_form(s, reader) == FORM_INDEX)
            continue;
        if (match >= 0)
            return -1;
        match = reader;
    }
    return match;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* Intermediates of unset type have the type of the calculation inside a kernel. DOUBLE is more precise than attention's
   values, which narrower results do not reveal. */
bool pattern_is_exact(const struct attention_pattern *s, const struct tensor *tensor) {
    weftDataType_t type = tensor_type_inside(tensor);
    return type == WEFT_DATA_DOUBLE || type == s->math;
}

/* The first operation determines the type; all others must match it, because one kernel calculates in one type. */
weftStatus_t pattern_check_math(struct attention_pattern *s, const struct descriptor *op, weftDataType_t math) {
    math = math_type((int32_t)math); /* attention calculates sums in full FLOAT, which this type allows */
    if ((math != WEFT_DATA_FLOAT && math != WEFT_DATA_DOUBLE) || (s->count && math != s->math))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: calculates in %s; all operations of attention must use FLOAT, or all DOUBLE", descriptor_label(op),
             dtype_of(math)->name);
    s->math = math;
    return WEFT_STATUS_SUCCESS;
}

/* True if a copy of a tensor has the same values. */
static bool is_exact_copy(const struct attention_pattern *s, const struct tensor *from, const struct tensor *to) {
    return from->type == to->type || (pattern_is_exact(s, to) && dtype_is_float((weftDataType_t)from->type));
}

/* True if the strides describe the layout completely. */
static bool is_plain(const struct tensor *tensor) {
    return !tensor->ragged_offset && tensor->vector_count == 1 && tensor->reordering == WEFT_TENSOR_REORDERING_NONE;
}

/* Accepts constants, and by-value scalars with an assumed number; the value of others is unknown here. */
bool pattern_read_constant(const struct tensor *tensor, double *number) {
    if (!tensor || !(tensor->is_constant || tensor->is_assumed) || tensor_elements(tensor) != 1)
        return false;
    *number = dtype_load((weftDataType_t)tensor->type, tensor->constant, 0);
    return true;
}

/* The identity counts as a factor of alpha1, so that conversions need no special case. The result must have the size of
   x, otherwise the operation broadcasts x. */
bool pattern_read_factor(const struct pointwise_op *op, const struct tensor **x, double *factor) {
    double number = 1;
    *x = op->x;
    *factor = op->alpha1;
    switch (op->pw->mode) {
    case WEFT_POINTWISE_IDENTITY:
        break;
    case WEFT_POINTWISE_MUL:
        /* The number may be either operand. */
        if (!pattern_read_constant(op->b, &number)) {
            *x = op->b;
            if (!pattern_read_constant(op->x, &number))
                return false;
        }
        *factor *= op->alpha2 * number;
        break;
    case WEFT_POINTWISE_DIV:
        if (!pattern_read_constant(op->b, &number))
            return false;
        *factor /= op->alpha2 * number;
        break;
    default:
        return false;
    }
    return dtype_is_float(pointwise_math(op)) && tensor_same_dims(op->y, *x) &&
           dtype_is_float((weftDataType_t)(*x)->type);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Attention does not accept sizes that are known only on the device, or layouts that strides do not describe. */
weftStatus_t pattern_check_product(struct attention_pattern *s, int node) {
    if (op_of(pattern_op(s, node)) != &matmul_op)
        return pattern_decline(s, node, "is not a matmul: attention ends with the product of weights and values");
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, node);
    if (op->m_override || op->n_override || op->k_override)
        return pattern_decline(s, node,
                               "has sizes that are known only at run time; attention has sequence lengths instead");
    if (!is_plain(op->a) || !is_plain(op->b) || !is_plain(op->c))
        return pattern_decline(s, node, "has a tensor with ragged offsets, vectors or a reordered layout");
    /* Check before the node is added: the first product determines the type for all others. */
    TRY(pattern_check_math(s, &op->base, matmul_math(op)));
    return pattern_add(s, node);
}

/* Has the tensor's own dims and strides until pattern_look_through. */
struct pattern_view pattern_view_of(const struct tensor *tensor, const struct matmul_op *op) {
    return (struct pattern_view){tensor, tensor->dims, tensor->strides, &op->c->dims};
}

static void swap_numbers(int64_t *a, int64_t *b) {
    int64_t number = *a;
    *a = *b;
    *b = number;
}

/* Swaps extents and strides of rows and columns: the transposed matrix in the same memory. */
void pattern_swap_last(struct pattern_view *view) {
    int64_t rank = view->dims.count;
    swap_numbers(&view->dims.at[rank - 2], &view->dims.at[rank - 1]);
    swap_numbers(&view->strides.at[rank - 2], &view->strides.at[rank - 1]);
}

/* Moves a view from the output of a transpose to its input. order[i] is the dimension of the tensor that corresponds to
   dimension i of the view; permutations compose. The view's extents do not change. */
static void look_through_transpose(struct pattern_view *view, const struct dims *permutation,
                                   const struct tensor *input, int64_t *order) {
    for (int64_t i = 0; i < permutation->count; i++) {
        order[i] = permutation->at[order[i]];
        view->strides.at[i] = input->strides.at[order[i]];
    }
    view->tensor = input;
}

/* Heads that are repeated for each query head that shares them, [B, Hk, 1, ..] to [B, Hk, G, ..] to [B, Hk G, ..]: the
   view becomes one of the original heads. */
static bool look_through_copies(struct pattern_view *view, const struct attention_pattern *s, int *copier,
                                const int64_t *order) {
    const struct reshape_op *joined = pattern_view_at(s, pattern_producer(s, view->tensor));
    int node = joined ? pattern_producer(s, joined->x) : -1;
    if (!joined || view->dims.count != 4 || joined->x->dims.count != 5 || order[0] != 0 || order[1] != 1 ||
        !pattern_is_pointwise(s, node) || !pattern_is_private(s, joined->x, pattern_producer(s, view->tensor)))
        return false;
    const struct pointwise_op *op = pattern_pointwise(s, node);
    /* Dimension 2 of five is the group that shares a head; the product does not need its copies any more. */
    const int64_t *all_heads = joined->x->dims.at, *shared_heads = op->x->dims.at;
    bool copies = op->pw->mode == WEFT_POINTWISE_IDENTITY && op->alpha1 == 1 && is_exact_copy(s, op->x, joined->x) &&
                  is_plain(op->x) && op->x->dims.count == 5 && shared_heads[2] == 1 &&
                  shared_heads[0] == all_heads[0] && shared_heads[1] == all_heads[1] &&
                  shared_heads[3] == all_heads[3] && shared_heads[4] == all_heads[4] &&
                  all_heads[1] * all_heads[2] == view->dims.at[1];
    if (!copies)
        return false;
    view->tensor = op->x;
    view->dims.at[1] = shared_heads[1];
    for (int i = 0; i < 4; i++)
        /* Dimensions after the group have an index that is higher by one in the 5-D tensor. */
        view->strides.at[i] = op->x->strides.at[order[i] + (order[i] >= 2)];
    *copier = node;
    return true;
}

/* A reshape of [B, Hk, ..] to [B, Hk, 1, ..], from which heads are repeated. */
static bool look_through_unit(struct pattern_view *view, const struct reshape_op *op, const int64_t *order) {
    if (!op || view->dims.count != 4 || op->x->dims.count != 4 || op->y->dims.count != 5 || !is_plain(op->x))
        return false;
    const int64_t *x = op->x->dims.at, *y = op->y->dims.at;
    if (y[2] != 1 || x[0] != y[0] || x[1] != y[1] || x[2] != y[3] || x[3] != y[4])
        return false;
    view->tensor = op->x;
    for (int i = 0; i < 4; i++)
        view->strides.at[i] = op->x->strides.at[order[i]];
    return true;
}

/* Goes back by one operation from an operand of a product: a transpose, a factor if allowed, or copies of heads. */
static bool look_back(struct attention_pattern *s, struct pattern_view *view, int *node, double *factor,
                      int64_t *order) {
    const struct transpose_op *transpose = (const struct transpose_op *)pattern_op(s, *node);
    const struct tensor *x, *y;
    double number;
    if (pattern_swaps(s, *node, &x, &y) && is_exact_copy(s, x, view->tensor) && is_plain(x)) {
        struct dims swap = {.count = x->dims.count};
        for (int64_t i = 0; i < swap.count; i++)
            swap.at[i] = i < swap.count - 2 ? i : 2 * swap.count - 3 - i;
        look_through_transpose(view, &swap, x, order);
        return true;
    }
    if (op_of(pattern_op(s, *node)) == &transpose_op && is_exact_copy(s, transpose->x, view->tensor) &&
        is_plain(transpose->x)) {
        look_through_transpose(view, &transpose->permutation, transpose->x, order);
        return true;
    }
    /* A factor can be moved to the scores, because it is the same for all elements. */
    if (factor && pattern_is_pointwise(s, *node) && pattern_is_exact(s, view->tensor) &&
        pattern_read_factor(pattern_pointwise(s, *node), &x, &number) && is_plain(x)) {
        *factor *= number;
        /* x has the same extents as the tensor, but other strides. */
        view->tensor = x;
        for (int64_t i = 0; i < view->dims.count; i++)
            view->strides.at[i] = x->strides.at[order[i]];
        return true;
    }
    return look_through_copies(view, s, node, order);
}

/* The backward pass reads its operands twice, through different views. Whether the node that computes a view becomes
   part of the pattern depends on the other readers of the view. */
static bool may_look_through(const struct attention_pattern *s, const struct tensor *tensor, int reader) {
    return s->is_gradient ? tensor->is_virtual : pattern_is_private(s, tensor, reader);
}

/* Marks the node as a view in backward patterns; nodes that were added for another reason keep their role. */
static weftStatus_t add_view_node(struct attention_pattern *s, int node) {
    bool is_new = !pattern_contains(s, node);
    TRY(pattern_add(s, node));
    if (is_new)
        s->nodes[s->count - 1].is_view = s->is_gradient;
    return WEFT_STATUS_SUCCESS;
}

/* Continues while the tensor is private to its last reader. The rank may change only by the unit dimension before heads
   are copied; otherwise the view ends at the tensor of the new rank. */
weftStatus_t pattern_look_through(struct attention_pattern *s, struct pattern_view *view, int reader, double *factor) {
    int64_t order[WEFT_DIM_MAX], rank = view->tensor->dims.count;
    for (int i = 0; i < WEFT_DIM_MAX; i++)
        order[i] = i;
    for (int node; (node = pattern_producer(s, view->tensor)) >= 0 && may_look_through(s, view->tensor, reader);
         reader = node) {
        int maker = node; /* the node whose result is looked through; it may be a view of copies */
        bool is_seen = view->tensor->dims.count == rank ? look_back(s, view, &node, factor, order)
                                                        : look_through_unit(view, pattern_view_at(s, node), order);
        if (!is_seen)
            break;
        TRY(add_view_node(s, maker));
        TRY(add_view_node(s, node));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The strides, in the order of a view, of the result of a transpose of the view's tensor. */
static bool follow_transpose(struct pattern_view *view, const struct transpose_op *op, int64_t *order) {
    int64_t inverse[WEFT_DIM_MAX] = {0}, last = view->dims.count - 1;
    for (int64_t i = 0; i < op->permutation.count; i++)
        inverse[op->permutation.at[i]] = i;
    /* Kernels write rows of the result as vectors, so columns must stay contiguous. */
    if (!is_plain(op->y) || (op->y->strides.at[inverse[order[last]]] != 1 && !op->y->is_virtual))
        return false;
    for (int64_t i = 0; i <= last; i++) {
        order[i] = inverse[order[i]];
        view->strides.at[i] = op->y->strides.at[order[i]];
    }
    view->tensor = op->y;
    return true;
}

/* Follows a multiplication by a factor, in the order of a view. Returns false for any other operation. */
static bool follow_factor(struct pattern_view *view, const struct pointwise_op *op, const int64_t *order,
                          double *factor) {
    const struct tensor *x;
    double number;
    if (!pattern_read_factor(op, &x, &number) || x != view->tensor || !is_plain(op->y))
        return false;
    *factor *= number;
    view->tensor = op->y;
    for (int64_t i = 0; i < view->dims.count; i++)
        view->strides.at[i] = op->y->strides.at[order[i]];
    return true;
}

/* Some heads or batch entries may share an operand: its gradient is then followed to the sums over these extents, which
   become 1. Rows and columns are not summed. The kernels sum in registers, so the tensor before the sums must not be
   rounded. */
static bool follow_sums(struct pattern_view *view, const struct reduction_op *op, const int64_t *order) {
    int64_t rank = view->dims.count;
    bool matches = op->parameters->mode == WEFT_REDUCE_TENSOR_ADD && op->y->dims.count == rank && is_plain(op->y);
    for (int64_t i = 0; matches && i < rank; i++)
        matches = op->y->dims.at[order[i]] == view->dims.at[i] || (i < rank - 2 && op->y->dims.at[order[i]] == 1);
    for (int64_t i = 0; matches && i < rank; i++) {
        view->dims.at[i] = op->y->dims.at[order[i]];
        view->strides.at[i] = op->y->strides.at[order[i]];
    }
    view->tensor = matches ? op->y : view->tensor;
    return matches;
}

/* The only private reader of a tensor if it is this operation, otherwise -1. */
static int sole_reader_of(const struct attention_pattern *s, const struct tensor *tensor, const struct op *op) {
    int node = pattern_sole_reader(s, tensor);
    bool matches = node >= 0 && pattern_is_private(s, tensor, node) && op_of(pattern_op(s, node)) == op;
    return matches ? node : -1;
}

/* The reshape at a node if it keeps the order of elements, otherwise NULL. */
static const struct reshape_op *reshape_at(const struct attention_pattern *s, int node) {
    const struct reshape_op *op = (const struct reshape_op *)pattern_op(s, node);
    bool matches = op_of(&op->base) == &reshape_op && op->y->is_virtual && op->y->type == op->x->type;
    return matches && reshape_keeps_order(op) ? op : NULL;
}

/* Follows the gradient of repeated heads: [B, Hk G, ..] to [B, Hk, G, ..] to [B, Hk, 1, ..] to [B, Hk, ..]. The reshape
   at `node` is the first of these. */
static weftStatus_t follow_copies(struct attention_pattern *s, struct pattern_view *view, int node, bool *is_found) {
    const struct reshape_op *split = reshape_at(s, node);
    int sum = split ? sole_reader_of(s, split->y, &reduction_op) : -1;
    const struct reduction_op *op = sum < 0 ? NULL : (const struct reduction_op *)pattern_op(s, sum);
    int last = op ? sole_reader_of(s, op->y, &reshape_op) : -1;
    const struct reshape_op *joined = last < 0 ? NULL : (const struct reshape_op *)pattern_op(s, last);
    *is_found = false;
    if (!joined || view->dims.count != 4 || split->y->dims.count != 5 || joined->y->dims.count != 4 ||
        op->parameters->mode != WEFT_REDUCE_TENSOR_ADD || !pattern_is_exact(s, split->y) ||
        !pattern_is_exact(s, op->y) || !reshape_keeps_order(joined) || !is_plain(joined->y))
        return WEFT_STATUS_SUCCESS;
    /* Extents of the four tensors, from one head per query head to shared heads. */
    const int64_t *all_heads = split->y->dims.at, *shared_heads = op->y->dims.at, *to = joined->y->dims.at;
    const int64_t *from = view->dims.at;
    *is_found = all_heads[0] == from[0] && all_heads[1] * all_heads[2] == from[1] && all_heads[3] == from[2] &&
                all_heads[4] == from[3] && shared_heads[0] == all_heads[0] && shared_heads[1] == all_heads[1] &&
                shared_heads[2] == 1 && shared_heads[3] == all_heads[3] && shared_heads[4] == all_heads[4] &&
                to[0] == shared_heads[0] && to[1] == shared_heads[1] && to[2] == shared_heads[3] &&
                to[3] == shared_heads[4];
    if (!*is_found)
        return WEFT_STATUS_SUCCESS;
    TRY(pattern_check_math(s, &op->base, reduction_math(op)));
    *view = (struct pattern_view){joined->y, joined->y->dims, joined->y->strides, view->product_dims};
    TRY(pattern_add(s, node));
    TRY(pattern_add(s, sum));
    return pattern_add(s, last);
}

/* Follows a result by one operation: a view, a factor if allowed, sums of gradients, or a transpose. */
static bool look_ahead(const struct attention_pattern *s, struct pattern_view *view, int node, double *factor,
                       int64_t *order) {
    const struct descriptor *op = pattern_op(s, node);
    const struct reshape_op *reshape = (const struct reshape_op *)op;
    const struct reduction_op *sums = (const struct reduction_op *)op;
    if (op_of(op) == &reshape_op && !reshape->y->is_virtual && is_plain(reshape->y) && is_packed_reshape(reshape)) {
        view->tensor = reshape->y;
        return true;
    }
    if (factor && pattern_is_pointwise(s, node))
        return pattern_is_exact(s, view->tensor) && follow_factor(view, pattern_pointwise(s, node), order, factor);
    if (s->is_gradient && op_of(op) == &reduction_op)
        return pattern_is_exact(s, view->tensor) && math_type((int32_t)reduction_math(sums)) == s->math &&
               follow_sums(view, sums, order);
    return op_of(op) == &transpose_op && follow_transpose(view, (const struct transpose_op *)op, order);
}

/* True if each dimension of a view is the same dimension of its tensor. */
static bool is_identity(const int64_t *order, int64_t rank) {
    bool matches = true;
    for (int64_t i = 0; i < rank; i++)
        matches = matches && order[i] == i;
    return matches;
}

/* True if the kernels can write a result as vectors, because its columns are contiguous. */
static bool has_rows(const struct pattern_view *view) { return view->strides.at[view->dims.count - 1] == 1; }

/* Continues while the result has one reader. Stops at a second reader, at a narrower type that the user set, and at the
   last result with contiguous columns: of two transposes the first may scatter the columns and the second may restore
   them. */
weftStatus_t pattern_follow_result(struct attention_pattern *s, struct pattern_view *view, bool is_transposed,
                                   double *factor) {
    int64_t order[WEFT_DIM_MAX], rank = view->dims.count;
    for (int i = 0; i < WEFT_DIM_MAX; i++)
        order[i] = i;
    if (is_transposed) {
        pattern_swap_last(view);
        swap_numbers(&order[rank - 2], &order[rank - 1]);
    }
    /* The last result that can be written, and the number of nodes up to it: nodes after it are dropped. */
    struct pattern_view last = *view;
    double known = factor ? *factor : 1;
    int taken = s->count;
    for (int node; (node = pattern_sole_reader(s, view->tensor)) >= 0 && pattern_is_private(s, view->tensor, node);) {
        bool is_shared = false;
        if (s->is_gradient && is_identity(order, rank))
            TRY(follow_copies(s, view, node, &is_shared));
        if (!is_shared) {
            const struct tensor *from = view->tensor;
            if (!look_ahead(s, view, node, factor, order) ||
                (view->tensor->type != from->type && !pattern_is_exact(s, from))) /* rounded once only */
                break;
            TRY(pattern_add(s, node));
        }
        if (!has_rows(view) && has_rows(&last))
            continue;
        last = *view;
        known = factor ? *factor : 1;
        taken = s->count;
    }
    *view = last;
    if (factor)
        *factor = known;
    s->count = taken;
    return WEFT_STATUS_SUCCESS;
}
