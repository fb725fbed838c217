/* SPDX-License-Identifier: Apache-2.0 */
/* Rewrites a match as attention operations: a graph of an sdpa_fwd, an sdpa_bwd, or both. Its tensors are [batch, head,
   row, column] views of those of the whole graph. The remaining operations on the scores and on their gradient become
   the score modifier. */
#include "graph/patterns/match.h"

#include <string.h>

/* Values of a modifier plus attention's own operands. */
enum { TENSORS_MAX = SCORE_MODIFIER_VALUES_MAX + 32 };

/* Tensors get the uids 0, 1, .. in the order in which they are added: the modifier's tensors first, then those of the
   operations. All of it is allocated in the arena; the whole graph is not changed. */
struct writer {
    const struct attention_pattern *s;
    struct arena *arena;
    int count;
    struct tensor *tensors[TENSORS_MAX];
    const struct tensor *sources[TENSORS_MAX]; /* source of each view in the whole graph, or NULL */
    bool is_inside[TENSORS_MAX];               /* internal to the modifier */
    struct tensor *input, *gradient;           /* the inputs of the modifier and of its backward pass */
    struct tensor *gradient_result;            /* the result of the backward pass; NULL if it is derived */
    struct descriptor *ops[PATTERN_NODES_MAX + 2];
    int op_count;
};

/* ---- Views in attention's layout --------------------------------------------------------------------------------- */

enum { BATCH, HEAD, ROW, COLUMN };

static weftStatus_t decline(const struct tensor *tensor, const char *reason) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s %s", descriptor_label(&tensor->base), reason);
}

/* Joins the dimensions of heads, starting at `first`; `full` has the extents of the scores. If the tensor lacks
   trailing head dimensions of the scores, groups of heads share its elements. */
static bool join_heads(int64_t *extent, int64_t *stride, const struct pattern_view *view, const struct dims *full,
                       int64_t first) {
    *extent = 1;
    *stride = 0;
    /* Starts with the last dimension. Each dimension must extend those that are joined already, so that one stride
       covers all of them. */
    for (int64_t i = full->count - 2; i-- > first;) {
        int64_t extent_here = view->dims.at[i];
        /* The stride of a dimension of extent 1 does not matter. */
        if (full->at[i] == 1 || (extent_here == 1 && *extent == 1))
            continue;
        /* From the innermost dimension outwards: the stride must be the total size of the inner ones. */
        bool follows = *extent == 1 || view->strides.at[i] == *stride * *extent;
        /* Fewer heads than the scores have: adjacent heads share one, which is attention's rule, too. */
        bool shares = extent_here != full->at[i] && *extent == 1 && extent_here > 1 && full->at[i] % extent_here == 0;
        if (!follows || (extent_here != full->at[i] && !shares))
            return false;
        *stride = *extent == 1 ? view->strides.at[i] : *stride;
        *extent *= extent_here;
    }
    return true;
}

/* Number of heads of the scores: the product of all dimensions between `first` and the rows. */
static int64_t head_count(const struct dims *full, int64_t first) {
    int64_t heads = 1;
    for (int64_t i = first; i < full->count - 2; i++)
        heads *= full->at[i];
    return heads;
}

/* Splits the leading dimension of a 3-D tensor. It counts heads, or batch entries times heads if the scores have
   both. */
static bool split_batches(struct dims *dims, struct dims *strides, int64_t batches) {
    if (dims->at[HEAD] == 1 || batches == 1)
        return true;
    if (batches == 0 || dims->at[HEAD] % batches)
        return false;
    /* Batch entries are outermost; each contains its heads. */
    dims->at[BATCH] = batches;
    dims->at[HEAD] /= batches;
    /* Batch entries are contiguous, like the heads of one entry. */
    strides->at[BATCH] = strides->at[HEAD] * dims->at[HEAD];
    return true;
}

/* Converts a view to [batch, head, row, column]. With four or more dimensions the first is the batch, and all further
   ones before the rows are heads. With three, the first is heads; with two, there is one head. Declines views that
   cannot be described by four strides. */
static weftStatus_t fold(struct dims *dims, struct dims *strides, const struct pattern_view *view,
                         const struct dims *scores) {
    const struct dims *full = view->product_dims;
    /* Four or more dimensions begin with the batch; three begin with heads, or batch times heads; two have neither. */
    int64_t rank = full->count, first = rank >= 4 ? 1 : 0, batches = scores->count >= 4 ? scores->at[0] : 1;
    *dims = *strides = (struct dims){.count = 4, .at = {1, 1, 1, 1}};
    if (view->dims.count != rank || rank < 2)
        return decline(view->tensor, "has a different rank than the scores");
    if (first) {
        dims->at[BATCH] = view->dims.at[0];
        strides->at[BATCH] = view->strides.at[0];
    }
    if (!join_heads(&dims->at[HEAD], &strides->at[HEAD], view, full, first))
        return decline(view->tensor, "cannot be viewed as one dimension of heads");
    /* Rows and columns are always the last two dimensions. */
    for (int i = 0; i < 2; i++) {
        dims->at[ROW + i] = view->dims.at[rank - 2 + i];
        strides->at[ROW + i] = view->strides.at[rank - 2 + i];
    }
    bool is_split = first || split_batches(dims, strides, batches);
    bool fits = is_split && (dims->at[BATCH] == 1 || dims->at[BATCH] == batches);
    return fits ? WEFT_STATUS_SUCCESS : decline(view->tensor, "has a different batch size than the scores");
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* Copies a tensor's fields except its uid; the caller changes the copy, which is allocated in the arena. */
static weftStatus_t add(struct writer *w, struct tensor **result, const struct tensor *like,
                        const struct tensor *source) {
    if (w->count == TENSORS_MAX)
        return decline(like, "exceeds the number of tensors of an attention operation");
    TRY(descriptor_mirror(w->arena, result, &like->base));
    (*result)->uid = w->count;
    /* All operands of a graph of one operation are in memory, even if they are virtual in the whole graph. */
    (*result)->is_virtual = false;
    w->sources[w->count] = source;
    w->tensors[w->count++] = *result;
    return WEFT_STATUS_SUCCESS;
}

/* Adds an operand of the operation with the memory layout of a view. */
static weftStatus_t add_view(struct writer *w, struct tensor **result, const struct pattern_view *view) {
    struct dims dims, strides;
    TRY(fold(&dims, &strides, view, &w->s->scores->dims));
    TRY(add(w, result, view->tensor, view->tensor));
    (*result)->dims = dims;
    (*result)->strides = strides;
    return WEFT_STATUS_SUCCESS;
}

/* Adds an operand in the layout of the scores, such as bias, masks, statistics and inputs of a modifier. Any of its
   extents may be 1, which broadcasts. Adds nothing for NULL. */
static weftStatus_t add_like_scores(struct writer *w, struct tensor **result, const struct tensor *tensor) {
    *result = NULL;
    if (!tensor)
        return WEFT_STATUS_SUCCESS;
    const struct pattern_view view = {tensor, tensor->dims, tensor->strides, &w->s->scores->dims};
    TRY(add_view(w, result, &view));
    /* Only all heads or a single one: groups of heads would need a stride of their own. */
    int64_t heads = (*result)->dims.at[HEAD];
    if (heads != 1 && heads != head_count(&w->s->scores->dims, w->s->scores->dims.count >= 4))
        return decline(tensor, "has fewer heads than the scores, but more than one");
    return WEFT_STATUS_SUCCESS;
}

/* Adds an operand or result of a product, for all batch entries: an operand with a single entry gets the batch stride
   0. has_heads: it must have as many heads as the scores, as queries and all tensors with one row per query do; keys
   and values may have fewer. */
static weftStatus_t add_factor(struct writer *w, struct tensor **result, const struct pattern_view *view,
                               bool has_heads) {
    const struct dims *scores = &w->s->scores->dims;
    const int64_t first = scores->count >= 4, extents[] = {first ? scores->at[0] : 1, head_count(scores, first)};
    TRY(add_view(w, result, view));
    for (int i = BATCH; i <= (has_heads ? HEAD : BATCH); i++)
        if ((*result)->dims.at[i] == 1 && extents[i] != 1) {
            (*result)->dims.at[i] = extents[i];
            /* Stride 0 reads the same entry for each batch index. */
            (*result)->strides.at[i] = 0;
        }
    /* Keys and values may have fewer heads; queries and results have all. */
    bool fits = !has_heads || (*result)->dims.at[HEAD] == extents[HEAD];
    return fits ? WEFT_STATUS_SUCCESS : decline(view->tensor, "has a different number of heads than the scores");
}

/* Adds a tensor with one element, with its own dims. */
static weftStatus_t add_scalar(struct writer *w, struct tensor **result, const struct tensor *tensor) {
    *result = NULL;
    return tensor ? add(w, result, tensor, tensor) : WEFT_STATUS_SUCCESS;
}

/* Adds a new constant for a number that is an attribute of an operation. */
static weftStatus_t add_constant(struct writer *w, struct tensor **result, weftDataType_t type, const void *number,
                                 const struct tensor *like) {
    TRY(add(w, result, like, NULL));
    (*result)->type = type;
    (*result)->is_constant = (*result)->is_by_value = true;
    (*result)->dims = (*result)->strides = (struct dims){.count = 4, .at = {1, 1, 1, 1}};
    memcpy((*result)->constant, number, (size_t)dtype_bytes(type, 1));
    return WEFT_STATUS_SUCCESS;
}

/* ---- The score modifier ------------------------------------------------------------------------------------------ */

/* The modifier's view of a tensor if it exists already, otherwise NULL. */
static struct tensor *find(const struct writer *w, const struct tensor *source) {
    for (int i = 0; source && i < w->count; i++)
        if (w->sources[i] == source)
            return w->tensors[i];
    return NULL;
}

/* Replaces an operand by the modifier's view: an internal tensor, or a tensor in memory. */
static weftStatus_t replace_operand(struct writer *w, struct tensor **tensor) {
    struct tensor *result = find(w, *tensor);
    if (!result && *tensor && tensor_elements(*tensor) == 1)
        TRY(add_scalar(w, &result, *tensor));
    else if (!result)
        TRY(add_like_scores(w, &result, *tensor));
    *tensor = result;
    return WEFT_STATUS_SUCCESS;
}

/* Replaces a result by a virtual tensor internal to the modifier. Results that an operation does not have, such as dx
   of forward modes, stay NULL. */
static weftStatus_t replace_result(struct writer *w, struct tensor **tensor) {
    if (!*tensor)
        return WEFT_STATUS_SUCCESS;
    TRY(add_like_scores(w, tensor, *tensor));
    (*tensor)->is_virtual = true;
    w->is_inside[w->count - 1] = true;
    return WEFT_STATUS_SUCCESS;
}

/* Declines indices along a dimension that is joined with others into the heads. */
static weftStatus_t replace_axis(struct writer *w, struct pointwise_op *op) {
    int64_t rank = w->s->scores->dims.count, axis = op->pw->axis;
    if (rank > 4 && axis > 0 && axis < rank - 2)
        return decline(op->y, "is an index along one of several dimensions of heads");
    struct pointwise *parameters;
    TRY(descriptor_mirror(w->arena, &parameters, &op->pw->base));
    /* Rows and columns are the last two of four dimensions; the first of three is heads. */
    parameters->axis = axis >= rank - 2 ? axis - rank + 4 : rank == 3 ? HEAD : axis;
    op->pw = parameters;
    op->x = w->input; /* an index operation reads only the extents of x */
    return WEFT_STATUS_SUCCESS;
}

/* Copies an operation onto the modifier's tensors. Alphas, mode and parameters are shared with the original. */
static weftStatus_t write_pointwise(struct writer *w, const struct descriptor *from) {
    struct pointwise_op *op;
    TRY(descriptor_mirror(w->arena, &op, from));
    if (pointwise_find_mode(op->pw->mode)->form == FORM_INDEX)
        TRY(replace_axis(w, op));
    else
        TRY(replace_operand(w, &op->x));
    /* Absent operands stay NULL. The result comes last, because an operation may read only tensors that exist
       already. */
    TRY(replace_operand(w, &op->b));
    TRY(replace_operand(w, &op->t));
    TRY(replace_operand(w, &op->dy));
    TRY(replace_result(w, &op->y));
    TRY(replace_result(w, &op->dx));
    w->ops[w->op_count++] = &op->base;
    return WEFT_STATUS_SUCCESS;
}

/* y = factor x. Filled in directly and never finalized: only the fields that engines read are set. */
static weftStatus_t make_identity(struct pointwise_op **out, struct writer *w, struct tensor *x, double factor) {
    struct pointwise *parameters;
    TRY(arena_alloc(w->arena, out, sizeof **out));
    TRY(arena_alloc(w->arena, &parameters, sizeof *parameters));
    parameters->base.schema = &pointwise_schema;
    parameters->mode = WEFT_POINTWISE_IDENTITY;
    parameters->math = (int32_t)w->s->math;
    **out = (struct pointwise_op){.pw = parameters, .x = x, .alpha1 = factor, .alpha2 = 1};
    (*out)->base.schema = &pointwise_op.schema;
    return WEFT_STATUS_SUCCESS;
}

/* y = factor x, rounded to the type of `like`; other operations find y as the view of `like`. */
static weftStatus_t write_factor(struct writer *w, struct tensor **y, struct tensor *x, const struct tensor *like,
                                 double factor) {
    struct pointwise_op *op;
    TRY(make_identity(&op, w, x, factor));
    op->y = (struct tensor *)(uintptr_t)like;
    TRY(replace_result(w, &op->y));
    *y = op->y;
    w->ops[w->op_count++] = &op->base;
    return WEFT_STATUS_SUCCESS;
}

/* Creates the input of the modifier, or of its backward pass. */
static weftStatus_t write_modifier_input(struct writer *w, struct tensor **result, const struct tensor *tensor) {
    TRY(add_like_scores(w, result, tensor));
    w->is_inside[w->count - 1] = true;
    return WEFT_STATUS_SUCCESS;
}

/* The modifier's input. If the type of the product was set, the modifier reads the product before it is rounded. */
static weftStatus_t write_input(struct writer *w) {
    struct tensor *rounded;
    TRY(write_modifier_input(w, &w->input, w->s->product));
    if (!w->s->is_rounded)
        return WEFT_STATUS_SUCCESS;
    w->input->type = (int32_t)w->s->math;
    /* Other operations find the rounded tensor by this source. */
    w->sources[w->count - 1] = NULL;
    return write_factor(w, &rounded, w->input, w->s->product, 1);
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* A node whose operands are being listed. */
struct binding {
    struct graph *graph;
    struct node *node;
};

static weftStatus_t count_operand(void *context, const struct row *row, struct tensor *tensor) {
    (void)row, (void)tensor;
    ++*(int *)context;
    return WEFT_STATUS_SUCCESS;
}

/* Counts producers and readers; list_readers fills in the readers. */
static weftStatus_t bind_operand(void *context, const struct row *row, struct tensor *tensor) {
    const struct binding *binding = context;
    struct node *node = binding->node;
    int value = graph_find_value(binding->graph, tensor);
    node->is_output[node->operand_count] = row->role == ROLE_OUTPUT;
    node->operands[node->operand_count++] = value;
    if (row->role == ROLE_OUTPUT)
        binding->graph->values[value].producer = (int)(node - binding->graph->nodes);
    else
        binding->graph->values[value].readers++;
    return WEFT_STATUS_SUCCESS;
}

/* Counts operands first, so that the arena allocates lists of the right length. */
static weftStatus_t write_node(struct graph *graph, struct descriptor *op, struct arena *arena) {
    struct node *node = &graph->nodes[graph->node_count];
    int operands = 0;
    node->op = op;
    TRY(op_each_operand(op, count_operand, &operands));
    TRY(arena_alloc(arena, &node->operands, (size_t)operands * sizeof *node->operands));
    TRY(arena_alloc(arena, &node->is_output, (size_t)operands * sizeof *node->is_output));
    struct binding binding = {graph, node};
    TRY(op_each_operand(op, bind_operand, &binding));
    graph->node_count++;
    return WEFT_STATUS_SUCCESS;
}

/* Readers are listed in the order of nodes, one entry per operand, as in user-defined graphs. */
static void list_readers(struct graph *graph, int v, int *readers) {
    struct value *value = &graph->values[v];
    value->read_by = readers;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < graph->nodes[n].operand_count; i++)
            if (graph->nodes[n].operands[i] == v && !graph->nodes[n].is_output[i])
                *readers++ = n;
}

/* Builds a graph from operations in topological order and these tensors. Values are in the order of uids, because
   graph_find_value searches by uid. */
static weftStatus_t write_graph(struct graph **result, struct writer *w, struct descriptor *const *ops, int op_count,
                                bool is_modifier) {
    struct graph *graph;
    TRY(descriptor_mirror(w->arena, &graph, &w->s->graph->base));
    graph->node_count = graph->value_count = 0;
    TRY(arena_alloc(w->arena, &graph->values, (size_t)w->count * sizeof *graph->values));
    TRY(arena_alloc(w->arena, &graph->nodes, (size_t)op_count * sizeof *graph->nodes));
    for (int i = 0; i < w->count; i++)
        /* Internal tensors of the modifier are not part of the attention graph. */
        if (is_modifier || !w->is_inside[i])
            graph->values[graph->value_count++] = (struct value){.tensor = w->tensors[i], .producer = -1};
    for (int i = 0; i < op_count; i++)
        TRY(write_node(graph, ops[i], w->arena));
    /* Readers are listed once all nodes exist, like in graph.c. */
    for (int v = 0; v < graph->value_count; v++) {
        int *readers;
        TRY(arena_alloc(w->arena, &readers, (size_t)graph->values[v].readers * sizeof *readers));
        list_readers(graph, v, readers);
    }
    *result = graph;
    return WEFT_STATUS_SUCCESS;
}

/* Lists the operands that the modifier's result depends on, and those of its gradient if the gradient is not derived.
   Forward and backward share one graph that contains both. */
static weftStatus_t list_operands(struct score_modifier *m, struct writer *w) {
    bool output[SCORE_MODIFIER_VALUES_MAX], gradient[SCORE_MODIFIER_VALUES_MAX] = {0};
    score_modifier_mark_needed(m, m->output, output);
    if (m->gradient_output >= 0)
        score_modifier_mark_needed(m, m->gradient_output, gradient);
    TRY(arena_alloc(w->arena, &m->operands.tensors, (size_t)w->count * sizeof *m->operands.tensors));
    for (int v = 0; v < m->graph->value_count; v++) {
        const struct tensor *tensor = m->graph->values[v].tensor;
        if (!w->is_inside[tensor->uid] && (output[v] || gradient[v]))
            m->operands.tensors[m->operands.count++] = m->graph->values[v].tensor;
    }
    return WEFT_STATUS_SUCCESS;
}

/* The gradient of the scaled product: the modifier's result times the remaining factor. */
static weftStatus_t write_gradient_result(struct writer *w) {
    const struct attention_pattern *s = w->s;
    w->gradient_result = find(w, s->d_product);
    if (s->d_product_factor == 1 && w->gradient_result != w->gradient)
        return WEFT_STATUS_SUCCESS;
    /* Even a factor of 1 needs an operation, because the gradient must be the result of one. */
    TRY(write_factor(w, &w->gradient_result, w->gradient_result, s->d_modified, s->d_product_factor));
    w->sources[w->count - 1] = NULL;
    return WEFT_STATUS_SUCCESS;
}

/* Nodes are in the graph's order, so operands exist before their readers. */
static weftStatus_t write_modifier(struct score_modifier *m, struct writer *w) {
    const struct attention_pattern *s = w->s;
    bool modifies_gradient = s->is_gradient && (s->d_modified != s->d_product || s->d_product_factor != 1);
    m->input = m->output = m->gradient_input = m->gradient_output = -1;
    if (s->modified == s->product && !s->is_rounded && !modifies_gradient)
        return WEFT_STATUS_SUCCESS;
    TRY(write_input(w));
    TRY(s->is_gradient ? write_modifier_input(w, &w->gradient, s->d_modified) : WEFT_STATUS_SUCCESS);
    for (int i = 0; i < s->count; i++)
        if (s->nodes[i].modifies || s->nodes[i].modifies_gradient)
            TRY(write_pointwise(w, s->graph->nodes[s->nodes[i].node].op));
    TRY(s->is_gradient ? write_gradient_result(w) : WEFT_STATUS_SUCCESS);
    if (w->count > SCORE_MODIFIER_VALUES_MAX)
        return decline(s->modified, "depends on more tensors than a score modifier can have");
    TRY(write_graph(&m->graph, w, w->ops, w->op_count, true));
    /* Values are looked up by uid, as score_modifier_resolve does. */
    m->input = graph_find_value(m->graph, w->input);
    m->output = graph_find_value(m->graph, find(w, s->modified));
    m->input_uid = w->input->uid;
    m->output_uid = find(w, s->modified)->uid;
    return WEFT_STATUS_SUCCESS;
}

/* Completes the modifier of one of the two operations. It contains the operations of the backward pass unless the
   gradient is derived. */
static weftStatus_t finish_modifier(struct score_modifier *m, const struct score_modifier *complete, struct writer *w,
                                    bool is_gradient) {
    *m = *complete;
    if (!is_gradient && m->output == m->input)
        m->graph = NULL;
    if (!m->graph)
        return WEFT_STATUS_SUCCESS;
    bool is_derived = w->s->d_modified == w->s->d_product && w->s->d_product_factor == 1 && score_modifier_is_shift(m);
    if (is_gradient && !is_derived) {
        m->gradient_input = graph_find_value(m->graph, w->gradient);
        m->gradient_output = graph_find_value(m->graph, w->gradient_result);
        m->gradient_input_uid = w->gradient->uid;
        m->gradient_output_uid = w->gradient_result->uid;
    }
    return list_operands(m, w);
}

/* ---- The operation ----------------------------------------------------------------------------------------------- */

/* Adds the mask in memory, and the factor of the weights that it keeps. */
static weftStatus_t write_mask(struct attention *a, struct writer *w) {
    const struct tensor *mask = w->s->drop_mask;
    TRY(add_like_scores(w, &a->dropout_mask, mask));
    float dropout_scale = (float)w->s->dropout_scale;
    return mask && dropout_scale != 1 ? add_constant(w, &a->dropout_scale, WEFT_DATA_FLOAT, &dropout_scale, mask)
                                      : WEFT_STATUS_SUCCESS;
}

/* Passes on the generator's seed and offset, so that attention draws the same numbers. */
static weftStatus_t write_dropout(struct attention *a, struct writer *w) {
    const struct rng_op *rng = w->s->dropout;
    TRY(write_mask(a, w));
    if (!rng)
        return WEFT_STATUS_SUCCESS;
    /* rng has the probability of keeping a weight, attention that of dropping it */
    a->dropout_probability = 1 - rng->parameters->probability;
    /* A seed may be a tensor or a number; attention accepts tensors only. */
    if (rng->seed_tensor)
        TRY(add_scalar(w, &a->dropout_seed, rng->seed_tensor));
    else
        TRY(add_constant(w, &a->dropout_seed, WEFT_DATA_INT64, &rng->seed, rng->y));
    return add_scalar(w, &a->dropout_offset, rng->offset);
}

/* Adds the operands and options that determine the scores. */
static weftStatus_t write_scores(struct attention *a, struct writer *w) {
    const struct attention_pattern *s = w->s;
    a->scale_value = s->scale_value;
    a->left_bound = s->left_bound;
    a->right_bound = s->right_bound;
    a->alignment = WEFT_DIAGONAL_TOP_LEFT;
    a->math = (int32_t)s->math;
    TRY(write_modifier(&a->modifier, w));
    /* Queries and results have as many heads as the scores; keys and values may have fewer. */
    TRY(add_factor(w, &a->q, &s->q, true));
    TRY(add_factor(w, &a->k, &s->k, false));
    TRY(add_factor(w, &a->v, &s->v, false));
    TRY(add_scalar(w, &a->scale, s->scale));
    TRY(add_like_scores(w, &a->bias, s->bias));
    TRY(add_like_scores(w, &a->sink, s->sink));
    return write_dropout(a, w);
}

/* Adds a packed tensor that the whole graph does not contain: [batch, head, row, `columns`], with the rows of the
   queries. */
static weftStatus_t add_intermediate(struct writer *w, struct tensor **result, const struct tensor *like,
                                     weftDataType_t type, int64_t columns) {
    TRY(add(w, result, like, NULL));
    const int64_t *at = like->dims.at, dims[] = {at[BATCH], at[HEAD], at[ROW], columns};
    (*result)->type = (int32_t)type;
    (*result)->dims.at[COLUMN] = columns;
    for (int64_t i = 4, stride = 1; i-- > 0; stride *= dims[i])
        (*result)->strides.at[i] = stride;
    return WEFT_STATUS_SUCCESS;
}

/* Returns O of the graph. If only the backward pass needs O, it is an intermediate tensor between the two operations.
   */
static weftStatus_t add_o(struct writer *w, struct tensor **result, const struct attention *a) {
    const struct attention_pattern *s = w->s;
    bool is_passed = !s->o.tensor || (s->computes_o && !pattern_is_read_outside(s, s->o.tensor));
    return is_passed ? add_intermediate(w, result, a->q, (weftDataType_t)a->v->type, a->v->dims.at[COLUMN])
                     : add_factor(w, result, &s->o, true);
}

/* The forward operation of a backward pattern. It always computes the statistics, and O if O is an output or if the
   sums read it. No attention kernel computes only statistics, so an O that was stored earlier is computed again into
   the workspace. */
static weftStatus_t write_forward(struct sdpa_fwd_op **result, struct writer *w, const struct attention *a,
                                  struct tensor *o) {
    const struct attention_pattern *s = w->s;
    struct sdpa_fwd_op *op;
    bool stores_o = !s->is_gradient || s->computes_o || !s->o.tensor;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    op->base.schema = &sdpa_fwd_op.schema;
    op->base.label = s->graph->nodes[s->nodes[s->count - 1].node].op->label;
    op->a = *a;
    TRY(finish_modifier(&op->a.modifier, &a->modifier, w, false));
    op->o = o;
    if (!stores_o) /* only the statistics are needed */
        TRY(add_intermediate(w, &op->o, a->q, (weftDataType_t)a->v->type, a->v->dims.at[COLUMN]));
    TRY(s->stats || !s->is_gradient ? add_like_scores(w, &op->stats, s->stats)
                                    : add_intermediate(w, &op->stats, a->q, WEFT_DATA_FLOAT, 1));
    TRY(add_like_scores(w, &op->max, s->max));
    TRY(add_like_scores(w, &op->sum_exp, s->sum_exp));
    if (s->dropout && pattern_is_read_outside(s, s->dropout->y))
        TRY(add_like_scores(w, &op->rng_dump, s->dropout->y));
    *result = op;
    TRY(sdpa_fwd_op.infer(&op->base));
    return sdpa_fwd_op.check(&op->base);
}

/* Adds the gradient of an operand with all of its elements: no sums follow it. */
static weftStatus_t add_gradient(struct writer *w, struct tensor **result, const struct pattern_view *view,
                                 const struct tensor *operand) {
    if (!view->tensor) {
        TRY(add(w, result, operand, NULL));
        int64_t stride = 1;
        for (int i = 4; i-- > 0; stride *= operand->dims.at[i])
            (*result)->strides.at[i] = stride;
        return WEFT_STATUS_SUCCESS;
    }
    return add_view(w, result, view);
}

/* True if the user required determinism of one of the sums that this operation replaces. */
static bool is_deterministic(const struct attention_pattern *s) {
    for (int i = 0; i < s->count; i++) {
        const struct descriptor *op = s->graph->nodes[s->nodes[i].node].op;
        if (op_of(op) == &reduction_op && ((const struct reduction_op *)op)->parameters->is_deterministic)
            return true;
    }
    return false;
}

/* The operation computes dQ, dK and dV in any case; those that are not read go to the workspace. dBias is optional. */
static weftStatus_t write_backward(struct sdpa_bwd_op **result, struct writer *w, const struct attention *a,
                                   struct tensor *o, struct tensor *stats) {
    const struct attention_pattern *s = w->s;
    struct sdpa_bwd_op *op;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    op->base.schema = &sdpa_bwd_op.schema;
    op->base.label = s->graph->nodes[s->nodes[s->count - 1].node].op->label;
    op->a = *a; /* the tensors of the forward operation, each once in the graph */
    TRY(finish_modifier(&op->a.modifier, &a->modifier, w, true));
    op->o = o;
    op->stats = stats;
    op->is_deterministic = is_deterministic(s);
    TRY(add_factor(w, &op->d_o, &s->d_o, true));
    TRY(add_gradient(w, &op->dq, &s->dq, a->q));
    TRY(add_gradient(w, &op->dk, &s->dk, a->k));
    TRY(add_gradient(w, &op->dv, &s->dv, a->v));
    TRY(add_like_scores(w, &op->dbias, s->dbias));
    *result = op;
    TRY(sdpa_bwd_op.infer(&op->base));
    return sdpa_bwd_op.check(&op->base);
}

enum { OPS_MAX = 3 }; /* forward, backward, a copy of dQ */

/* Builds the operations in order. */
static weftStatus_t write_attention(struct descriptor *ops[OPS_MAX], int *count, struct writer *w) {
    const struct attention_pattern *s = w->s;
    struct attention a = {0};
    struct tensor *o, *stats = NULL;
    struct sdpa_fwd_op *forward;
    struct sdpa_bwd_op *backward = NULL;
    TRY(write_scores(&a, w));
    TRY(add_o(w, &o, &a));
    if (s->given_stats) {
        TRY(add_like_scores(w, &stats, s->given_stats));
    } else {
        TRY(write_forward(&forward, w, &a, o));
        stats = forward->stats;
        ops[(*count)++] = &forward->base;
    }
    if (s->is_gradient) {
        TRY(write_backward(&backward, w, &a, o, stats));
        ops[(*count)++] = &backward->base;
    }
    if (s->dq_sums.tensor) {
        struct pointwise_op *copy;
        TRY(make_identity(&copy, w, backward->dq, 1));
        TRY(add_view(w, &copy->y, &s->dq_sums));
        ops[(*count)++] = &copy->base;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Checks that all inputs of the operations exist before them: an operand of the modifier may turn out to be computed by
   a product of the pattern. */
static weftStatus_t check_inputs(const struct writer *w, const struct graph *graph) {
    for (int v = 0; v < graph->value_count; v++) {
        const struct tensor *source = w->sources[graph->values[v].tensor->uid];
        if (graph->values[v].producer < 0 && source && pattern_contains(w->s, pattern_producer(w->s, source)))
            return decline(source, "is read by the attention that it is part of");
    }
    return WEFT_STATUS_SUCCESS;
}

/* Infers and checks the operations as if a user had created them; any error means that there is no match. */
weftStatus_t attention_pattern_rewrite(struct graph **result, const int **outer,
                                       const struct attention_pattern *pattern, struct arena *arena) {
    struct writer *w;
    struct descriptor *ops[OPS_MAX];
    int *values, count = 0, op_count = 0;
    TRY(arena_alloc(arena, &w, sizeof *w));
    w->s = pattern;
    w->arena = arena;
    TRY(write_attention(ops, &op_count, w) ? WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN : WEFT_STATUS_SUCCESS);
    TRY(write_graph(result, w, ops, op_count, false));
    TRY(check_inputs(w, *result));
    TRY(arena_alloc(arena, &values, (size_t)w->count * sizeof *values));
    for (int i = 0; i < w->count; i++)
        /* In the order of uids, which is the order of the new graph's values. */
        if (!w->is_inside[i])
            values[count++] = w->sources[i] ? graph_find_value(pattern->graph, w->sources[i]) : -1;
    *outer = values;
    return WEFT_STATUS_SUCCESS;
}
