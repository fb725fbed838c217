/* SPDX-License-Identifier: Apache-2.0 */
/* The graph around spelled attention: who makes and who reads a tensor, types, and the operands of its products. The
   searches of find.c, scores.c and gradient.c ask here and never look at a graph's arrays themselves. Views are
   followed in both directions: an operand is read where it lies, a result written where it goes, and transposes,
   reshapes and copies of heads between cost nothing. */
#include "graph/ops/transpose.h"
#include "graph/patterns/match.h"

#include <string.h>

/* ---- The graph around a tensor ----------------------------------------------------------------------------------- */

/* A binary search: values are sorted by uid. -1 also of no tensor at all, so that calls nest. */
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

/* A few dozen at most: a scan is quicker than an index that would have to be kept. */
int pattern_index(const struct attention_pattern *s, int node) {
    for (int i = 0; i < s->count; i++)
        if (s->nodes[i].node == node)
            return i;
    return -1;
}

bool pattern_contains(const struct attention_pattern *s, int node) { return pattern_index(s, node) >= 0; }

/* Taking twice is no harm: several ways may lead to a node. Roles are those that it got first. */
weftStatus_t pattern_add(struct attention_pattern *s, int node) {
    if (s->count == PATTERN_NODES_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: attention would be spelled by more than %d operations",
             descriptor_label(pattern_op(s, node)), PATTERN_NODES_MAX);
    if (!pattern_contains(s, node)) {
        s->nodes[s->count++] = (struct pattern_node){.node = node};
    }
    return WEFT_STATUS_SUCCESS;
}

/* By insertion: they come nearly sorted, backwards. Regions list nodes in the graph's order, and so does the modifier,
   whose operations find their operands written. */
void pattern_sort(struct attention_pattern *s) {
    for (int i = 1; i < s->count; i++)
        for (int at = i; at > 0 && s->nodes[at - 1].node > s->nodes[at].node; at--) {
            struct pattern_node node = s->nodes[at];
            s->nodes[at] = s->nodes[at - 1];
            s->nodes[at - 1] = node;
        }
}

/* Those behind it move up; their order stays. */
void pattern_remove(struct attention_pattern *s, int place) {
    int behind = --s->count - place;
    memmove(&s->nodes[place], &s->nodes[place + 1], (size_t)behind * sizeof *s->nodes);
}

/* Texts without a fix: a refusal here only says that operations run one by one. */
weftStatus_t pattern_decline(const struct attention_pattern *s, int node, const char *what) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: %s", descriptor_label(pattern_op(s, node)), what);
}

weftStatus_t pattern_decline_tensor(const struct tensor *tensor, const char *what) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s %s", descriptor_label(&tensor->base), what);
}

/* A node that reads it as two operands counts once. */
bool pattern_is_private(const struct attention_pattern *s, const struct tensor *tensor, int reader) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    bool is = tensor->is_virtual;
    for (int i = 0; i < value->readers; i++)
        is = is && value->read_by[i] == reader;
    return is;
}

/* Whether a reshape sees its packed input as the same elements in the same order, packed. */
static bool keeps_packed(const struct reshape_op *op) {
    return reshape_keeps_order(op) && tensor_is_packed(op->x) && tensor_is_packed(op->y);
}

/* Types must agree: a reshape that converts is no view. A result that is stored is none either, as somebody wants it in
   that place. */
const struct reshape_op *pattern_view_at(const struct attention_pattern *s, int node) {
    const struct descriptor *op = node < 0 ? NULL : pattern_op(s, node);
    const struct reshape_op *reshape = (const struct reshape_op *)op;
    bool is = op && op_of(op) == &reshape_op && reshape->y->is_virtual && reshape->y->type == reshape->x->type;
    return is && keeps_packed(reshape) ? reshape : NULL;
}

/* Only batch and head dimensions may be joined or split by the view: rows and columns of the scores are told by the
   last two, as masks and softmax count them. */
const struct tensor *pattern_skip_view(const struct attention_pattern *s, const struct tensor *tensor) {
    const struct reshape_op *op = pattern_view_at(s, pattern_producer(s, tensor));
    int64_t x = op ? op->x->dims.count : 0, y = tensor->dims.count;
    /* The last two dimensions, rows and columns of scores, must stay; those before may be joined or split. */
    bool is_of_batches = x >= 2 && y >= 2 && op->x->dims.at[x - 1] == tensor->dims.at[y - 1] &&
                         op->x->dims.at[x - 2] == tensor->dims.at[y - 2];
    return is_of_batches ? op->x : tensor;
}

weftStatus_t pattern_add_view(struct attention_pattern *s, const struct tensor **tensor) {
    const struct tensor *behind = pattern_skip_view(s, *tensor);
    if (behind != *tensor)
        TRY(pattern_add(s, pattern_producer(s, *tensor)));
    *tensor = behind;
    return WEFT_STATUS_SUCCESS;
}

/* Recursive over views, as these have no elements of their own: a chain of them is as deep as the graph makes it. */
bool pattern_is_read_outside(const struct attention_pattern *s, const struct tensor *tensor) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    bool is = !tensor->is_virtual;
    for (int i = 0; i < value->readers && !is; i++) {
        const struct reshape_op *view = pattern_view_at(s, value->read_by[i]);
        /* A view of it is the same memory: what counts is who reads that. */
        is = view ? pattern_is_read_outside(s, view->y) : !pattern_contains(s, value->read_by[i]);
    }
    return is;
}

/* Indices read the extents of a tensor, not its elements. */
int pattern_sole_reader(const struct attention_pattern *s, const struct tensor *tensor) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    int found = -1;
    for (int i = 0; i < value->readers; i++) {
        int reader = value->read_by[i];
        if (pattern_is_pointwise(s, reader) && pattern_form(s, reader) == FORM_INDEX)
            continue;
        if (found >= 0)
            return -1;
        found = reader;
    }
    return found;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* An unset type of an intermediate is free, and inside a kernel that of its calculation; DOUBLE keeps more than
   attention does, which nobody can tell from results that are narrower. */
bool pattern_is_exact(const struct attention_pattern *s, const struct tensor *tensor) {
    weftDataType_t type = tensor_type_inside(tensor);
    return type == WEFT_DATA_DOUBLE || type == s->math;
}

/* The first one taken decides; all others must be the same, as one kernel calculates in one type. */
weftStatus_t pattern_check_math(struct attention_pattern *s, const struct descriptor *op, weftDataType_t math) {
    math = math_type((int32_t)math); /* attention's sums have all bits of FLOAT, which is allowed */
    if ((math != WEFT_DATA_FLOAT && math != WEFT_DATA_DOUBLE) || (s->count && math != s->math))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: calculates in %s, attention all in FLOAT or all in DOUBLE",
             descriptor_label(op), dtype_of(math)->name);
    s->math = math;
    return WEFT_STATUS_SUCCESS;
}

/* Whether a copy of a tensor has the same numbers. */
static bool keeps_numbers(const struct attention_pattern *s, const struct tensor *from, const struct tensor *to) {
    return from->type == to->type || (pattern_is_exact(s, to) && dtype_is_float((weftDataType_t)from->type));
}

/* Strides say all about where its elements lie. */
static bool is_plain(const struct tensor *tensor) {
    return !tensor->ragged_offset && tensor->vector_count == 1 && tensor->reordering == WEFT_TENSOR_REORDERING_NONE;
}

/* One that the graph holds: a scalar that comes by value with each call is not known here. */
bool pattern_read_constant(const struct tensor *tensor, double *number) {
    if (!tensor || !tensor->is_constant || tensor_elements(tensor) != 1)
        return false;
    *number = dtype_load((weftDataType_t)tensor->type, tensor->constant, 0);
    return true;
}

/* The identity counts, with alpha1, so that conversions need no case of their own. The result must be as large as x:
   a factor that broadcasts x is no factor. */
bool pattern_read_factor(const struct pointwise_op *op, const struct tensor **x, double *factor) {
    double number = 1;
    *x = op->x;
    *factor = op->alpha1;
    switch (op->pw->mode) {
    case WEFT_POINTWISE_IDENTITY:
        break;
    case WEFT_POINTWISE_MUL:
        /* The number may stand on either side. */
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

/* Sizes that are only known on the device, and layouts that strides do not tell, attention does not take. */
weftStatus_t pattern_check_product(struct attention_pattern *s, int node) {
    if (op_of(pattern_op(s, node)) != &matmul_op)
        return pattern_decline(s, node, "is no matmul: attention ends with the product of weights and values");
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, node);
    if (op->m_override || op->n_override || op->k_override)
        return pattern_decline(s, node, "has sizes that are known at run time, attention has lengths");
    if (!is_plain(op->a) || !is_plain(op->b) || !is_plain(op->c))
        return pattern_decline(s, node, "has a tensor with ragged offsets, in vectors or in another order");
    /* Before it is taken: the first product decides the type for all that follow. */
    TRY(pattern_check_math(s, &op->base, matmul_math(op)));
    return pattern_add(s, node);
}

/* Under its own dims and strides until it is looked through. */
struct pattern_view pattern_view_of(const struct tensor *tensor, const struct matmul_op *op) {
    return (struct pattern_view){tensor, tensor->dims, tensor->strides, &op->c->dims};
}

static void swap_numbers(int64_t *a, int64_t *b) {
    int64_t number = *a;
    *a = *b;
    *b = number;
}

/* Extents and strides of rows and columns: the transposed matrix, in the same memory. */
void pattern_swap_last(struct pattern_view *view) {
    int64_t rank = view->dims.count;
    swap_numbers(&view->dims.at[rank - 2], &view->dims.at[rank - 1]);
    swap_numbers(&view->strides.at[rank - 2], &view->strides.at[rank - 1]);
}

/* Where the dimensions of a view lie in the input of the transpose that makes its tensor. `order`: which dimension of
   the tensor each one of the view is, as looked through so far; permutations compose. Extents of the view stay. */
static void look_through_transpose(struct pattern_view *view, const struct dims *permutation,
                                   const struct tensor *input, int64_t *order) {
    for (int64_t i = 0; i < permutation->count; i++) {
        order[i] = permutation->at[order[i]];
        view->strides.at[i] = input->strides.at[order[i]];
    }
    view->tensor = input;
}

/* Heads that are copied for each query head that shares them, [B, Hk, 1, ..] to [B, Hk, G, ..] to [B, Hk G, ..]: the
   view becomes one of those that are there. */
static bool look_through_copies(struct pattern_view *view, const struct attention_pattern *s, int *copier,
                                const int64_t *order) {
    const struct reshape_op *joined = pattern_view_at(s, pattern_producer(s, view->tensor));
    int node = joined ? pattern_producer(s, joined->x) : -1;
    if (!joined || view->dims.count != 4 || joined->x->dims.count != 5 || order[0] != 0 || order[1] != 1 ||
        !pattern_is_pointwise(s, node) || !pattern_is_private(s, joined->x, pattern_producer(s, view->tensor)))
        return false;
    const struct pointwise_op *op = pattern_pointwise(s, node);
    /* Dimension 2 of five is the group that shares a head; its copies are what the product needs no longer. */
    const int64_t *many = joined->x->dims.at, *few = op->x->dims.at;
    bool copies = op->pw->mode == WEFT_POINTWISE_IDENTITY && op->alpha1 == 1 && keeps_numbers(s, op->x, joined->x) &&
                  is_plain(op->x) && op->x->dims.count == 5 && few[2] == 1 && few[0] == many[0] && few[1] == many[1] &&
                  few[3] == many[3] && few[4] == many[4] && many[1] * many[2] == view->dims.at[1];
    if (!copies)
        return false;
    view->tensor = op->x;
    view->dims.at[1] = few[1];
    for (int i = 0; i < 4; i++)
        /* Dimensions behind the group are one further in the tensor of five. */
        view->strides.at[i] = op->x->strides.at[order[i] + (order[i] >= 2)];
    *copier = node;
    return true;
}

/* [B, Hk, ..] seen as the [B, Hk, 1, ..] that heads are copied from. */
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

/* One operation back from an operand of a product: a transpose, a factor where that may be, copies of heads. */
static bool look_back(struct attention_pattern *s, struct pattern_view *view, int *node, double *factor,
                      int64_t *order) {
    const struct transpose_op *transpose = (const struct transpose_op *)pattern_op(s, *node);
    const struct tensor *x;
    double number;
    if (op_of(pattern_op(s, *node)) == &transpose_op && keeps_numbers(s, transpose->x, view->tensor) &&
        is_plain(transpose->x)) {
        look_through_transpose(view, &transpose->permutation, transpose->x, order);
        return true;
    }
    /* A factor may go to the scores: it is the same for all elements. */
    if (factor && pattern_is_pointwise(s, *node) && pattern_is_exact(s, view->tensor) &&
        pattern_read_factor(pattern_pointwise(s, *node), &x, &number) && is_plain(x)) {
        *factor *= number;
        /* x has the tensor's extents, and strides of its own. */
        view->tensor = x;
        for (int64_t i = 0; i < view->dims.count; i++)
            view->strides.at[i] = x->strides.at[order[i]];
        return true;
    }
    return look_through_copies(view, s, node, order);
}

/* Gradients read their operands twice, in several ways. What else reads a view decides in the end whether the operation
   that makes it is taken. */
static bool may_look_through(const struct attention_pattern *s, const struct tensor *tensor, int reader) {
    return s->is_gradient ? tensor->is_virtual : pattern_is_private(s, tensor, reader);
}

/* Marked where gradients see through it: what a node took for another reason stays taken. */
static weftStatus_t take_seen(struct attention_pattern *s, int node) {
    bool is_new = !pattern_contains(s, node);
    TRY(pattern_add(s, node));
    if (is_new)
        s->nodes[s->count - 1].is_view = s->is_gradient;
    return WEFT_STATUS_SUCCESS;
}

/* Step by step while the tensor is private to what read it last. Ranks must stay, but for the unit dimension before
   heads are copied; where they don't, the view ends at the tensor that has the new rank. */
weftStatus_t pattern_look_through(struct attention_pattern *s, struct pattern_view *view, int reader, double *factor) {
    int64_t order[WEFT_DIM_MAX], rank = view->tensor->dims.count;
    for (int i = 0; i < WEFT_DIM_MAX; i++)
        order[i] = i;
    for (int node; (node = pattern_producer(s, view->tensor)) >= 0 && may_look_through(s, view->tensor, reader);
         reader = node) {
        int maker = node; /* of what is seen, which may be a view of copies */
        bool is_seen = view->tensor->dims.count == rank ? look_back(s, view, &node, factor, order)
                                                        : look_through_unit(view, pattern_view_at(s, node), order);
        if (!is_seen)
            break;
        TRY(take_seen(s, maker));
        TRY(take_seen(s, node));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The strides, in the order of a view, of the result of a transpose of its tensor. */
static bool follow_transpose(struct pattern_view *view, const struct transpose_op *op, int64_t *order) {
    int64_t inverse[WEFT_DIM_MAX] = {0}, last = view->dims.count - 1;
    for (int64_t i = 0; i < op->permutation.count; i++)
        inverse[op->permutation.at[i]] = i;
    /* Rows of the result are written as vectors: columns must stay side by side. */
    if (!is_plain(op->y) || (op->y->strides.at[inverse[order[last]]] != 1 && !op->y->is_virtual))
        return false;
    for (int64_t i = 0; i <= last; i++) {
        order[i] = inverse[order[i]];
        view->strides.at[i] = op->y->strides.at[order[i]];
    }
    view->tensor = op->y;
    return true;
}

/* The result of a factor, in the order of a view; false: the operation is another one. */
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

/* The sums, over heads or batch entries that share an operand, of its gradient: extents that become 1. Rows and columns
   stay. The kernels make these sums in registers, so the tensor before them must not be rounded. */
static bool follow_sums(struct pattern_view *view, const struct reduction_op *op, const int64_t *order) {
    int64_t rank = view->dims.count;
    bool is = op->parameters->mode == WEFT_REDUCE_TENSOR_ADD && op->y->dims.count == rank && is_plain(op->y);
    for (int64_t i = 0; is && i < rank; i++)
        is = op->y->dims.at[order[i]] == view->dims.at[i] || (i < rank - 2 && op->y->dims.at[order[i]] == 1);
    for (int64_t i = 0; is && i < rank; i++) {
        view->dims.at[i] = op->y->dims.at[order[i]];
        view->strides.at[i] = op->y->strides.at[order[i]];
    }
    view->tensor = is ? op->y : view->tensor;
    return is;
}

/* The one private reader of a tensor, if it is this operation; -1: it is not. */
static int sole_reader_of(const struct attention_pattern *s, const struct tensor *tensor, const struct op *op) {
    int node = pattern_sole_reader(s, tensor);
    bool is = node >= 0 && pattern_is_private(s, tensor, node) && op_of(pattern_op(s, node)) == op;
    return is ? node : -1;
}

/* A reshape of whatever lies behind it, in the order of its elements. */
static const struct reshape_op *reshape_at(const struct attention_pattern *s, int node) {
    const struct reshape_op *op = (const struct reshape_op *)pattern_op(s, node);
    bool is = op_of(&op->base) == &reshape_op && op->y->is_virtual && op->y->type == op->x->type;
    return is && reshape_keeps_order(op) ? op : NULL;
}

/* The same of heads that were copied for each that shares them: [B, Hk G, ..] to [B, Hk, G, ..] to [B, Hk, 1, ..] to
   [B, Hk, ..]. The reshape at `node` is the first. */
static weftStatus_t look_behind_copies(struct attention_pattern *s, struct pattern_view *view, int node,
                                       bool *is_found) {
    const struct reshape_op *apart = reshape_at(s, node);
    int sum = apart ? sole_reader_of(s, apart->y, &reduction_op) : -1;
    const struct reduction_op *op = sum < 0 ? NULL : (const struct reduction_op *)pattern_op(s, sum);
    int last = op ? sole_reader_of(s, op->y, &reshape_op) : -1;
    const struct reshape_op *joined = last < 0 ? NULL : (const struct reshape_op *)pattern_op(s, last);
    *is_found = false;
    if (!joined || view->dims.count != 4 || apart->y->dims.count != 5 || joined->y->dims.count != 4 ||
        op->parameters->mode != WEFT_REDUCE_TENSOR_ADD || !pattern_is_exact(s, apart->y) ||
        !pattern_is_exact(s, op->y) || !reshape_keeps_order(joined) || !is_plain(joined->y))
        return WEFT_STATUS_SUCCESS;
    /* Extents of the four tensors, from the result with a head for each query head to that of shared heads. */
    const int64_t *many = apart->y->dims.at, *few = op->y->dims.at, *to = joined->y->dims.at;
    const int64_t *from = view->dims.at;
    *is_found = many[0] == from[0] && many[1] * many[2] == from[1] && many[3] == from[2] && many[4] == from[3] &&
                few[0] == many[0] && few[1] == many[1] && few[2] == 1 && few[3] == many[3] && few[4] == many[4] &&
                to[0] == few[0] && to[1] == few[1] && to[2] == few[3] && to[3] == few[4];
    if (!*is_found)
        return WEFT_STATUS_SUCCESS;
    TRY(pattern_check_math(s, &op->base, reduction_math(op)));
    *view = (struct pattern_view){joined->y, joined->y->dims, joined->y->strides, view->whole};
    TRY(pattern_add(s, node));
    TRY(pattern_add(s, sum));
    return pattern_add(s, last);
}

/* One operation on from a result: another view of it, a factor where that may be, sums of gradients, a transpose. */
static bool look_ahead(const struct attention_pattern *s, struct pattern_view *view, int node, double *factor,
                       int64_t *order) {
    const struct descriptor *op = pattern_op(s, node);
    const struct reshape_op *reshape = (const struct reshape_op *)op;
    const struct reduction_op *sums = (const struct reduction_op *)op;
    if (op_of(op) == &reshape_op && !reshape->y->is_virtual && is_plain(reshape->y) && keeps_packed(reshape)) {
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

/* Whether each dimension of a view is that of its tensor. */
static bool is_identity(const int64_t *order, int64_t rank) {
    bool is = true;
    for (int64_t i = 0; i < rank; i++)
        is = is && order[i] == i;
    return is;
}

/* Whether the kernels can write a result as runs: its columns lie side by side. */
static bool has_rows(const struct pattern_view *view) { return view->strides.at[view->dims.count - 1] == 1; }

/* Step by step while one operation alone reads the result. It ends where somebody else does, where a narrower type was
   set on the way, and with the last result whose columns are side by side: of transposes the first may put them apart
   and the next one back. */
weftStatus_t pattern_follow_result(struct attention_pattern *s, struct pattern_view *view, bool is_transposed,
                                   double *factor) {
    int64_t order[WEFT_DIM_MAX], rank = view->dims.count;
    for (int i = 0; i < WEFT_DIM_MAX; i++)
        order[i] = i;
    if (is_transposed) {
        pattern_swap_last(view);
        swap_numbers(&order[rank - 2], &order[rank - 1]);
    }
    /* The last result that can be written, and how many operations it took: those behind it are given back. */
    struct pattern_view last = *view;
    double known = factor ? *factor : 1;
    int taken = s->count;
    for (int node; (node = pattern_sole_reader(s, view->tensor)) >= 0 && pattern_is_private(s, view->tensor, node);) {
        bool is_shared = false;
        if (s->is_gradient && is_identity(order, rank))
            TRY(look_behind_copies(s, view, node, &is_shared));
        if (!is_shared) {
            const struct tensor *from = view->tensor;
            if (!look_ahead(s, view, node, factor, order) ||
                (view->tensor->type != from->type && !pattern_is_exact(s, from))) /* rounded once, and not twice */
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
