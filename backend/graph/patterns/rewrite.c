/* SPDX-License-Identifier: Apache-2.0 */
/* Writing spelled attention as the operation that it is: a graph of an sdpa_fwd, an sdpa_bwd, or both, whose tensors
   are [batch, head, row, column] views of those of the whole graph, and whose score modifier has what was left of the
   operations on the scores and on their gradient. */
#include "graph/patterns/match.h"

#include <string.h>

/* A modifier's values and attention's own operands. */
enum { TENSORS_MAX = SCORE_MODIFIER_VALUES_MAX + 32 };

/* Tensors under uids 0, 1, .. in the order in which they are added: first those of the modifier, then the operations'
   own. All of it lives in the arena, and nothing of the whole graph is changed. */
struct writer {
    const struct attention_pattern *s;
    struct arena *arena;
    int count;
    struct tensor *tensors[TENSORS_MAX];
    const struct tensor *sources[TENSORS_MAX]; /* of which each is a view; NULL: of none */
    bool is_inside[TENSORS_MAX];               /* of the modifier */
    struct tensor *input, *gradient;           /* of the modifier, and of what carries its gradient back */
    struct tensor *gradient_result;            /* of the latter; NULL: it is derived */
    struct descriptor *ops[PATTERN_NODES_MAX + 2];
    int op_count;
};

/* ---- Views as attention has its operands ------------------------------------------------------------------------- */

enum { BATCH, HEAD, ROW, COLUMN };

static weftStatus_t refuse(const struct tensor *tensor, const char *what) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s %s", descriptor_label(&tensor->base), what);
}

/* Joins the dimensions of heads, from `first` on, of which the scores have the extents `whole`. Of trailing ones that
   the scores have not, heads share what lies there. */
static bool join_heads(int64_t *extent, int64_t *stride, const struct pattern_view *view, const struct dims *whole,
                       int64_t first) {
    *extent = 1;
    *stride = 0;
    /* From the last one on: each must follow on what is joined so far, so that one stride walks through all. */
    for (int64_t i = whole->count - 2; i-- > first;) {
        int64_t own = view->dims.at[i];
        /* Dimensions of one entry have no stride that counts. */
        if (whole->at[i] == 1 || (own == 1 && *extent == 1))
            continue;
        /* From the innermost outwards: each begins where those behind it end. */
        bool follows = *extent == 1 || view->strides.at[i] == *stride * *extent;
        /* Fewer heads than the scores have: neighbours share one, as attention has it. */
        bool shares = own != whole->at[i] && *extent == 1 && own > 1 && whole->at[i] % own == 0;
        if (!follows || (own != whole->at[i] && !shares))
            return false;
        *stride = *extent == 1 ? view->strides.at[i] : *stride;
        *extent *= own;
    }
    return true;
}

/* The heads of the scores, all dimensions between `first` and rows together. */
static int64_t head_count(const struct dims *whole, int64_t first) {
    int64_t heads = 1;
    for (int64_t i = first; i < whole->count - 2; i++)
        heads *= whole->at[i];
    return heads;
}

/* The leading dimension of three is that of heads, or, of scores that have both, of batch entries and heads. */
static bool split_batches(struct dims *dims, struct dims *strides, int64_t batches) {
    if (dims->at[HEAD] == 1 || batches == 1)
        return true;
    if (batches == 0 || dims->at[HEAD] % batches)
        return false;
    /* Batch entries are outermost, each with its heads behind one another. */
    dims->at[BATCH] = batches;
    dims->at[HEAD] /= batches;
    /* Batch entries lie one behind the other, as heads of one entry do. */
    strides->at[BATCH] = strides->at[HEAD] * dims->at[HEAD];
    return true;
}

/* A view as [batch, head, row, column]: of four dimensions and more the first is that of batch entries, and all up to
   the rows are those of heads; of three it is that of heads, and of two there is one head. Refuses what no strides
   say. */
static weftStatus_t fold(struct dims *dims, struct dims *strides, const struct pattern_view *view,
                         const struct dims *scores) {
    const struct dims *whole = view->whole;
    /* Four dimensions or more have batch entries in front; three have heads, or both in one; two have neither. */
    int64_t rank = whole->count, first = rank >= 4 ? 1 : 0, batches = scores->count >= 4 ? scores->at[0] : 1;
    *dims = *strides = (struct dims){.count = 4, .at = {1, 1, 1, 1}};
    if (view->dims.count != rank || rank < 2)
        return refuse(view->tensor, "has another rank than the scores");
    if (first) {
        dims->at[BATCH] = view->dims.at[0];
        strides->at[BATCH] = view->strides.at[0];
    }
    if (!join_heads(&dims->at[HEAD], &strides->at[HEAD], view, whole, first))
        return refuse(view->tensor, "does not lie in memory as one dimension of heads");
    /* Rows and columns stay as they are, the last two of any rank. */
    for (int i = 0; i < 2; i++) {
        dims->at[ROW + i] = view->dims.at[rank - 2 + i];
        strides->at[ROW + i] = view->strides.at[rank - 2 + i];
    }
    bool is_split = first || split_batches(dims, strides, batches);
    bool fits = is_split && (dims->at[BATCH] == 1 || dims->at[BATCH] == batches);
    return fits ? WEFT_STATUS_SUCCESS : refuse(view->tensor, "has other batch entries than the scores");
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* A mirror shares everything with its source but uid and what the caller changes; it lives in the arena. */
static weftStatus_t add(struct writer *w, struct tensor **made, const struct tensor *like,
                        const struct tensor *source) {
    if (w->count == TENSORS_MAX)
        return refuse(like, "is one tensor more than attention is written with");
    TRY(descriptor_mirror(w->arena, made, &like->base));
    (*made)->uid = w->count;
    /* Operands of a graph of one operation are all in memory, whatever they are in the whole one. */
    (*made)->is_virtual = false;
    w->sources[w->count] = source;
    w->tensors[w->count++] = *made;
    return WEFT_STATUS_SUCCESS;
}

/* The tensor of the operation that lies where a view does. */
static weftStatus_t add_view(struct writer *w, struct tensor **made, const struct pattern_view *view) {
    struct dims dims, strides;
    TRY(fold(&dims, &strides, view, &w->s->scores->dims));
    TRY(add(w, made, view->tensor, view->tensor));
    (*made)->dims = dims;
    (*made)->strides = strides;
    return WEFT_STATUS_SUCCESS;
}

/* A tensor that lies as the scores do, as bias, masks, statistics and what a modifier reads: any of its extents may be
   1, which broadcasts; NULL: there is none. */
static weftStatus_t add_like_scores(struct writer *w, struct tensor **made, const struct tensor *tensor) {
    *made = NULL;
    if (!tensor)
        return WEFT_STATUS_SUCCESS;
    const struct pattern_view view = {tensor, tensor->dims, tensor->strides, &w->s->scores->dims};
    TRY(add_view(w, made, &view));
    /* Heads are all there or one for all: a group of them would need a stride of its own. */
    int64_t heads = (*made)->dims.at[HEAD];
    if (heads != 1 && heads != head_count(&w->s->scores->dims, w->s->scores->dims.count >= 4))
        return refuse(tensor, "has a part of the heads of the scores");
    return WEFT_STATUS_SUCCESS;
}

/* An operand of a product, or a result, of all batch entries: an operand that has a single one is read for each, by a
   stride of 0. has_heads: it must have those of the scores, as queries and what has a row for each query do; keys and
   values may have fewer. */
static weftStatus_t add_factor(struct writer *w, struct tensor **made, const struct pattern_view *view,
                               bool has_heads) {
    const struct dims *whole = &w->s->scores->dims;
    const int64_t first = whole->count >= 4, extents[] = {first ? whole->at[0] : 1, head_count(whole, first)};
    TRY(add_view(w, made, view));
    for (int i = BATCH; i <= (has_heads ? HEAD : BATCH); i++)
        if ((*made)->dims.at[i] == 1 && extents[i] != 1) {
            (*made)->dims.at[i] = extents[i];
            /* Stride 0 reads the one entry again for each. */
            (*made)->strides.at[i] = 0;
        }
    /* Heads of keys and values may be fewer; queries and results have all. */
    bool fits = !has_heads || (*made)->dims.at[HEAD] == extents[HEAD];
    return fits ? WEFT_STATUS_SUCCESS : refuse(view->tensor, "has other heads than the scores");
}

/* One element, wherever it comes from: dims are as they are. */
static weftStatus_t add_scalar(struct writer *w, struct tensor **made, const struct tensor *tensor) {
    *made = NULL;
    return tensor ? add(w, made, tensor, tensor) : WEFT_STATUS_SUCCESS;
}

/* A number that is an attribute of an operation, as a constant that the whole graph has not. */
static weftStatus_t add_constant(struct writer *w, struct tensor **made, weftDataType_t type, const void *number,
                                 const struct tensor *like) {
    TRY(add(w, made, like, NULL));
    (*made)->type = type;
    (*made)->is_constant = (*made)->is_by_value = true;
    (*made)->dims = (*made)->strides = (struct dims){.count = 4, .at = {1, 1, 1, 1}};
    memcpy((*made)->constant, number, (size_t)dtype_bytes(type, 1));
    return WEFT_STATUS_SUCCESS;
}

/* ---- The score modifier ------------------------------------------------------------------------------------------ */

/* The modifier's view of a tensor, if it has one already. */
static struct tensor *find(const struct writer *w, const struct tensor *source) {
    for (int i = 0; source && i < w->count; i++)
        if (w->sources[i] == source)
            return w->tensors[i];
    return NULL;
}

/* The modifier's view of an operand: of what it makes itself, or of memory. */
static weftStatus_t exchange(struct writer *w, struct tensor **tensor) {
    struct tensor *made = find(w, *tensor);
    if (!made && *tensor && tensor_elements(*tensor) == 1)
        TRY(add_scalar(w, &made, *tensor));
    else if (!made)
        TRY(add_like_scores(w, &made, *tensor));
    *tensor = made;
    return WEFT_STATUS_SUCCESS;
}

/* What an operation of the modifier makes: virtual, and in the modifier alone. Results that an operation has not, as dx
   forward, stay NULL. */
static weftStatus_t exchange_result(struct writer *w, struct tensor **tensor) {
    if (!*tensor)
        return WEFT_STATUS_SUCCESS;
    TRY(add_like_scores(w, tensor, *tensor));
    (*tensor)->is_virtual = true;
    w->is_inside[w->count - 1] = true;
    return WEFT_STATUS_SUCCESS;
}

/* An index along one of the dimensions that are joined to one of heads cannot be told from the head's. */
static weftStatus_t exchange_axis(struct writer *w, struct pointwise_op *op) {
    int64_t rank = w->s->scores->dims.count, axis = op->pw->axis;
    if (rank > 4 && axis > 0 && axis < rank - 2)
        return refuse(op->y, "is an index of one of several dimensions of heads");
    struct pointwise *parameters;
    TRY(descriptor_mirror(w->arena, &parameters, &op->pw->base));
    /* Rows and columns are the last two of four; of three dimensions the first is that of heads. */
    parameters->axis = axis >= rank - 2 ? axis - rank + 4 : rank == 3 ? HEAD : axis;
    op->pw = parameters;
    op->x = w->input; /* whose extents count, no element */
    return WEFT_STATUS_SUCCESS;
}

/* A copy of the operation on the modifier's tensors; alphas, mode and parameters are shared. */
static weftStatus_t write_pointwise(struct writer *w, const struct descriptor *from) {
    struct pointwise_op *op;
    TRY(descriptor_mirror(w->arena, &op, from));
    if (pointwise_find_mode(op->pw->mode)->form == FORM_INDEX)
        TRY(exchange_axis(w, op));
    else
        TRY(exchange(w, &op->x));
    /* Absent operands stay so. Results come last: an operation reads what was written before it. */
    TRY(exchange(w, &op->b));
    TRY(exchange(w, &op->t));
    TRY(exchange(w, &op->dy));
    TRY(exchange_result(w, &op->y));
    TRY(exchange_result(w, &op->dx));
    w->ops[w->op_count++] = &op->base;
    return WEFT_STATUS_SUCCESS;
}

/* y = factor x, rounded to the type of `like`, of which y is the view that others find. */
static weftStatus_t write_factor(struct writer *w, struct tensor **y, struct tensor *x, const struct tensor *like,
                                 double factor) {
    struct pointwise_op *op;
    struct pointwise *parameters;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    TRY(arena_alloc(w->arena, &parameters, sizeof *parameters));
    /* Made by hand and never finalized: only what engines read of it is filled in. */
    parameters->base.schema = &pointwise_schema;
    parameters->mode = WEFT_POINTWISE_IDENTITY;
    parameters->math = (int32_t)w->s->math;
    *op = (struct pointwise_op){.pw = parameters, .x = x, .y = (struct tensor *)like, .alpha1 = factor, .alpha2 = 1};
    op->base.schema = &pointwise_op.schema;
    TRY(exchange_result(w, &op->y));
    *y = op->y;
    w->ops[w->op_count++] = &op->base;
    return WEFT_STATUS_SUCCESS;
}

/* What the modifier, or its gradient, takes. */
static weftStatus_t write_taken(struct writer *w, struct tensor **made, const struct tensor *tensor) {
    TRY(add_like_scores(w, made, tensor));
    w->is_inside[w->count - 1] = true;
    return WEFT_STATUS_SUCCESS;
}

/* The scores as the modifier takes them: of a product whose type was set, before the rounding to it. */
static weftStatus_t write_input(struct writer *w) {
    struct tensor *rounded;
    TRY(write_taken(w, &w->input, w->s->product));
    if (!w->s->is_rounded)
        return WEFT_STATUS_SUCCESS;
    w->input->type = (int32_t)w->s->math;
    /* Others find the rounded one by this source. */
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

/* Producers and readers are counted on the way; list_readers fills in who they are. */
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

/* Operands are counted first, so that the arena gets lists of the right length. */
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

/* In the order of nodes, one entry for each operand, as graphs that users make have them. */
static void list_readers(struct graph *graph, int v, int *readers) {
    struct value *value = &graph->values[v];
    value->read_by = readers;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < graph->nodes[n].operand_count; i++)
            if (graph->nodes[n].operands[i] == v && !graph->nodes[n].is_output[i])
                *readers++ = n;
}

/* Operations in an order in which they can run, on these tensors. Values are in the order of uids, as graph_find_value
   searches them. */
static weftStatus_t write_graph(struct graph **made, struct writer *w, struct descriptor *const *ops, int op_count,
                                bool is_modifier) {
    struct graph *graph;
    TRY(descriptor_mirror(w->arena, &graph, &w->s->graph->base));
    graph->node_count = graph->value_count = 0;
    TRY(arena_alloc(w->arena, &graph->values, (size_t)w->count * sizeof *graph->values));
    TRY(arena_alloc(w->arena, &graph->nodes, (size_t)op_count * sizeof *graph->nodes));
    for (int i = 0; i < w->count; i++)
        /* Attention itself knows nothing of what is inside of its modifier. */
        if (is_modifier || !w->is_inside[i])
            graph->values[graph->value_count++] = (struct value){.tensor = w->tensors[i], .producer = -1};
    for (int i = 0; i < op_count; i++)
        TRY(write_node(graph, ops[i], w->arena));
    /* Readers once all nodes are there, as in graph.c. */
    for (int v = 0; v < graph->value_count; v++) {
        int *readers;
        TRY(arena_alloc(w->arena, &readers, (size_t)graph->values[v].readers * sizeof *readers));
        list_readers(graph, v, readers);
    }
    *made = graph;
    return WEFT_STATUS_SUCCESS;
}

/* Operands that the modifier's result, and its gradient where one is given, are made of: forward and backward read what
   they need, and no more, from one graph that has both. */
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

/* The gradient of the scaled product: as it is given, times what is left of factors. */
static weftStatus_t write_gradient_result(struct writer *w) {
    const struct attention_pattern *s = w->s;
    w->gradient_result = find(w, s->carried_back);
    if (s->carried_factor == 1 && w->gradient_result != w->gradient)
        return WEFT_STATUS_SUCCESS;
    /* Also of a factor of 1: what a gradient gives must be the result of an operation. */
    TRY(write_factor(w, &w->gradient_result, w->gradient_result, s->carried, s->carried_factor));
    w->sources[w->count - 1] = NULL;
    return WEFT_STATUS_SUCCESS;
}

/* Nodes are in the graph's order, so that each finds its operands written. */
static weftStatus_t write_modifier(struct score_modifier *m, struct writer *w) {
    const struct attention_pattern *s = w->s;
    bool carries = s->is_gradient && (s->carried != s->carried_back || s->carried_factor != 1);
    m->input = m->output = m->gradient_input = m->gradient_output = -1;
    if (s->modified == s->product && !s->is_rounded && !carries)
        return WEFT_STATUS_SUCCESS;
    TRY(write_input(w));
    TRY(s->is_gradient ? write_taken(w, &w->gradient, s->carried) : WEFT_STATUS_SUCCESS);
    for (int i = 0; i < s->count; i++)
        if (s->nodes[i].modifies || s->nodes[i].carries)
            TRY(write_pointwise(w, s->graph->nodes[s->nodes[i].node].op));
    TRY(s->is_gradient ? write_gradient_result(w) : WEFT_STATUS_SUCCESS);
    if (w->count > SCORE_MODIFIER_VALUES_MAX)
        return refuse(s->modified, "is made of more tensors than a score modifier has");
    TRY(write_graph(&m->graph, w, w->ops, w->op_count, true));
    /* As score_modifier_resolve would find them by uid. */
    m->input = graph_find_value(m->graph, w->input);
    m->output = graph_find_value(m->graph, find(w, s->modified));
    m->input_uid = w->input->uid;
    m->output_uid = find(w, s->modified)->uid;
    return WEFT_STATUS_SUCCESS;
}

/* The modifier of one of two operations, with what carries its gradient back where it is no derivative. */
static weftStatus_t finish_modifier(struct score_modifier *m, const struct score_modifier *whole, struct writer *w,
                                    bool is_gradient) {
    *m = *whole;
    if (!is_gradient && m->output == m->input)
        m->graph = NULL;
    if (!m->graph)
        return WEFT_STATUS_SUCCESS;
    bool is_derived = w->s->carried == w->s->carried_back && w->s->carried_factor == 1 && score_modifier_is_shift(m);
    if (is_gradient && !is_derived) {
        m->gradient_input = graph_find_value(m->graph, w->gradient);
        m->gradient_output = graph_find_value(m->graph, w->gradient_result);
        m->gradient_input_uid = w->gradient->uid;
        m->gradient_output_uid = w->gradient_result->uid;
    }
    return list_operands(m, w);
}

/* ---- The operation ----------------------------------------------------------------------------------------------- */

/* The mask that lies in memory, and what the weights that it keeps are multiplied by. */
static weftStatus_t write_mask(struct attention *a, struct writer *w) {
    const struct tensor *mask = w->s->drop_mask;
    TRY(add_like_scores(w, &a->dropout_mask, mask));
    float growth = (float)w->s->growth;
    return mask && growth != 1 ? add_constant(w, &a->dropout_scale, WEFT_DATA_FLOAT, &growth, mask)
                               : WEFT_STATUS_SUCCESS;
}

/* Seed and offset as the generator has them: both draw the same numbers. */
static weftStatus_t write_dropout(struct attention *a, struct writer *w) {
    const struct rng_op *rng = w->s->dropout;
    TRY(write_mask(a, w));
    if (!rng)
        return WEFT_STATUS_SUCCESS;
    /* rng gives the chance to keep, attention takes that to drop. */
    a->dropout_probability = 1 - rng->parameters->probability;
    /* A seed may be a tensor or a number; attention has tensors alone. */
    if (rng->seed_tensor)
        TRY(add_scalar(w, &a->dropout_seed, rng->seed_tensor));
    else
        TRY(add_constant(w, &a->dropout_seed, WEFT_DATA_INT64, &rng->seed, rng->y));
    return add_scalar(w, &a->dropout_offset, rng->offset);
}

/* What scores are made of. */
static weftStatus_t write_scores(struct attention *a, struct writer *w) {
    const struct attention_pattern *s = w->s;
    a->scale_value = s->scale_value;
    a->left_bound = s->left_bound;
    a->right_bound = s->right_bound;
    a->alignment = WEFT_DIAGONAL_TOP_LEFT;
    a->math = (int32_t)s->math;
    TRY(write_modifier(&a->modifier, w));
    /* Queries and results have all heads of the scores; keys and values may have fewer. */
    TRY(add_factor(w, &a->q, &s->q, true));
    TRY(add_factor(w, &a->k, &s->k, false));
    TRY(add_factor(w, &a->v, &s->v, false));
    TRY(add_scalar(w, &a->scale, s->scale));
    TRY(add_like_scores(w, &a->bias, s->bias));
    TRY(add_like_scores(w, &a->sink, s->sink));
    return write_dropout(a, w);
}

/* A packed tensor that the whole graph has not: [batch, head, row, `columns`], of queries. */
static weftStatus_t add_passed(struct writer *w, struct tensor **made, const struct tensor *like, weftDataType_t type,
                               int64_t columns) {
    TRY(add(w, made, like, NULL));
    const int64_t *at = like->dims.at, dims[] = {at[BATCH], at[HEAD], at[ROW], columns};
    (*made)->type = (int32_t)type;
    (*made)->dims.at[COLUMN] = columns;
    for (int64_t i = 4, stride = 1; i-- > 0; stride *= dims[i])
        (*made)->strides.at[i] = stride;
    return WEFT_STATUS_SUCCESS;
}

/* O: where the graph has it, and where a gradient alone asks for it, what passes from one operation to the other. */
static weftStatus_t add_o(struct writer *w, struct tensor **made, const struct attention *a) {
    const struct attention_pattern *s = w->s;
    bool is_passed = !s->o.tensor || (s->makes_o && !pattern_is_read_outside(s, s->o.tensor));
    return is_passed ? add_passed(w, made, a->q, (weftDataType_t)a->v->type, a->v->dims.at[COLUMN])
                     : add_factor(w, made, &s->o, true);
}

/* Of a gradient it makes the statistics, in any case, and o where it is wanted, or is read by the sums: attention has
   no kernel that gives statistics alone, so an o that was stored before is made once more, and left in the workspace.
   */
static weftStatus_t write_forward(struct sdpa_fwd_op **made, struct writer *w, const struct attention *a,
                                  struct tensor *o) {
    const struct attention_pattern *s = w->s;
    struct sdpa_fwd_op *op;
    bool stores_o = !s->is_gradient || s->makes_o || !s->o.tensor;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    op->base.schema = &sdpa_fwd_op.schema;
    op->base.label = s->graph->nodes[s->nodes[s->count - 1].node].op->label;
    op->a = *a;
    TRY(finish_modifier(&op->a.modifier, &a->modifier, w, false));
    op->o = o;
    if (!stores_o) /* statistics alone are wanted */
        TRY(add_passed(w, &op->o, a->q, (weftDataType_t)a->v->type, a->v->dims.at[COLUMN]));
    TRY(s->stats || !s->is_gradient ? add_like_scores(w, &op->stats, s->stats)
                                    : add_passed(w, &op->stats, a->q, WEFT_DATA_FLOAT, 1));
    TRY(add_like_scores(w, &op->max, s->max));
    TRY(add_like_scores(w, &op->sum_exp, s->sum_exp));
    if (s->dropout && pattern_is_read_outside(s, s->dropout->y))
        TRY(add_like_scores(w, &op->rng_dump, s->dropout->y));
    *made = op;
    TRY(sdpa_fwd_op.infer(&op->base));
    return sdpa_fwd_op.check(&op->base);
}

/* A gradient of an operand, of all its elements: nothing is summed behind it. */
static weftStatus_t add_gradient(struct writer *w, struct tensor **made, const struct pattern_view *view,
                                 const struct tensor *operand) {
    if (!view->tensor) {
        TRY(add(w, made, operand, NULL));
        int64_t stride = 1;
        for (int i = 4; i-- > 0; stride *= operand->dims.at[i])
            (*made)->strides.at[i] = stride;
        return WEFT_STATUS_SUCCESS;
    }
    return add_view(w, made, view);
}

/* Whether one of the sums that it is made of was asked to be the same in each run. */
static bool is_deterministic(const struct attention_pattern *s) {
    for (int i = 0; i < s->count; i++) {
        const struct descriptor *op = s->graph->nodes[s->nodes[i].node].op;
        if (op_of(op) == &reduction_op && ((const struct reduction_op *)op)->parameters->is_deterministic)
            return true;
    }
    return false;
}

/* Gradients that nobody wants are made in the workspace, as the operation has all three. dBias alone may be left
   out. */
static weftStatus_t write_backward(struct sdpa_bwd_op **made, struct writer *w, const struct attention *a,
                                   struct tensor *o, struct tensor *stats) {
    const struct attention_pattern *s = w->s;
    struct sdpa_bwd_op *op;
    TRY(arena_alloc(w->arena, &op, sizeof *op));
    op->base.schema = &sdpa_bwd_op.schema;
    op->base.label = s->graph->nodes[s->nodes[s->count - 1].node].op->label;
    op->a = *a; /* the same tensors as forward, each once in the graph */
    TRY(finish_modifier(&op->a.modifier, &a->modifier, w, true));
    op->o = o;
    op->stats = stats;
    op->is_deterministic = is_deterministic(s);
    TRY(add_factor(w, &op->d_o, &s->d_o, true));
    TRY(add_gradient(w, &op->dq, &s->dq, a->q));
    TRY(add_gradient(w, &op->dk, &s->dk, a->k));
    TRY(add_gradient(w, &op->dv, &s->dv, a->v));
    TRY(add_like_scores(w, &op->dbias, s->dbias));
    *made = op;
    TRY(sdpa_bwd_op.infer(&op->base));
    return sdpa_bwd_op.check(&op->base);
}

/* The operations, in order. */
static weftStatus_t write_attention(struct descriptor *ops[2], int *count, struct writer *w) {
    const struct attention_pattern *s = w->s;
    struct attention a = {0};
    struct tensor *o, *stats = NULL;
    struct sdpa_fwd_op *forward;
    struct sdpa_bwd_op *backward;
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
    return WEFT_STATUS_SUCCESS;
}

/* What the operations read is there before them: an operand of the modifier may turn out to be made by a product that
   is a part. */
static weftStatus_t check_inputs(const struct writer *w, const struct graph *graph) {
    for (int v = 0; v < graph->value_count; v++) {
        const struct tensor *source = w->sources[graph->values[v].tensor->uid];
        if (graph->values[v].producer < 0 && source && pattern_contains(w->s, pattern_producer(w->s, source)))
            return refuse(source, "is read by attention that it is a part of");
    }
    return WEFT_STATUS_SUCCESS;
}

/* Inferred and checked as an operation of the user's would be; any refusal says that this pattern is none. */
weftStatus_t attention_pattern_rewrite(struct graph **made, const int **outer, const struct attention_pattern *pattern,
                                       struct arena *arena) {
    struct writer *w;
    struct descriptor *ops[2];
    int *values, count = 0, op_count = 0;
    TRY(arena_alloc(arena, &w, sizeof *w));
    w->s = pattern;
    w->arena = arena;
    TRY(write_attention(ops, &op_count, w) ? WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN : WEFT_STATUS_SUCCESS);
    TRY(write_graph(made, w, ops, op_count, false));
    TRY(check_inputs(w, *made));
    TRY(arena_alloc(arena, &values, (size_t)w->count * sizeof *values));
    for (int i = 0; i < w->count; i++)
        /* In the order of uids, which is that of the new graph's values. */
        if (!w->is_inside[i])
            values[count++] = w->sources[i] ? graph_find_value(pattern->graph, w->sources[i]) : -1;
    *outer = values;
    return WEFT_STATUS_SUCCESS;
}
