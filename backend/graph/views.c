/* SPDX-License-Identifier: Apache-2.0 */
/* The search makes two passes over the nodes. The first goes backwards: if a node only moves elements to an output or
   into a concatenation, its input is computed in place. The second goes forwards: all other results that strides can
   express become views of their inputs, and the remaining concatenations are gathered if the layouts of their inputs
   match. Finally, tensors whose layout changed are copied, together with the operations that refer to them. */
#include "graph/views.h"
#include "base/number.h"
#include "graph/ops/attention.h"
#include "graph/ops/reshape.h"

/* State of both passes; arrays have one entry per value, or per node, of the graph. */
struct search {
    const struct graph *graph;
    struct views *views;
    struct placement *layouts; /* per value: layout in the memory that it uses */
    bool *is_fixed;            /* per value: layout and location must not change */
    bool *is_changed;          /* per value: its location or layout differs from its tensor's */
    const struct view_choices *choices;
    bool *is_stuck;    /* per node: the result cannot be a view of the input at the input's present location */
    bool *is_gathered; /* per value: it is a concatenation whose parts are read in place */
    uint64_t *placed;  /* per node: bits of operands that are computed inside the result's memory */
};

/* ---- Values that may become views -------------------------------------------------------------------------------- */

/* Elements are whole bytes and strides describe the layout, so an offset in elements determines an address. */
static bool is_plain(const struct tensor *t) {
    return t->vector_count == 1 && !t->ragged_offset && t->reordering == WEFT_TENSOR_REORDERING_NONE &&
           dtype_of((weftDataType_t)t->type)->bits % 8 == 0 && tensor_elements(t) > 0;
}

/* A reshape of a tensor that is not packed refers to storage, not to elements: neither side may have another layout. */
static bool is_of_storage(const struct descriptor *op) {
    const struct reshape_op *reshape = (const struct reshape_op *)op;
    return op_of(op) == &reshape_op && reshape->mode == WEFT_RESHAPE_VIEW_ONLY && !reshape_keeps_order(reshape);
}

static void fix_tensor(struct search *s, const struct tensor *tensor) {
    int value = tensor ? graph_find_value(s->graph, tensor) : -1;
    if (value >= 0)
        s->is_fixed[value] = true;
}

/* The graph of a score modifier refers to tensors directly, so these must not change. */
static void fix_modified(struct search *s, const struct descriptor *op) {
    const struct attention *attention = attention_of(op);
    const struct graph *modifier = attention ? attention->modifier.graph : NULL;
    for (int v = 0; modifier && v < modifier->value_count; v++)
        fix_tensor(s, modifier->values[v].tensor);
}

/* Inputs and outputs keep their layout; so do the offsets of ragged tensors, which are read as they are. */
static void find_fixed(struct search *s) {
    const struct graph *graph = s->graph;
    for (int v = 0; v < graph->value_count; v++) {
        const struct tensor *tensor = graph->values[v].tensor;
        s->is_fixed[v] = s->is_fixed[v] || !tensor->is_virtual || !is_plain(tensor);
        fix_tensor(s, tensor->ragged_offset);
    }
    /* Then tensors that single operations require unchanged: those of modifiers, and storage with other strides. */
    for (int n = 0; n < graph->node_count; n++) {
        fix_modified(s, graph->nodes[n].op);
        for (int k = 0; is_of_storage(graph->nodes[n].op) && k < graph->nodes[n].operand_count; k++)
            s->is_fixed[graph->nodes[n].operands[k]] = true;
    }
}

/* ---- Search ------------------------------------------------------------------------------------------------------ */

static bool takes_views(const struct search *s, int value) {
    return !s->choices->is_apart || !s->choices->is_apart[s->views->memory[value]];
}

/* True if a value uses another one's memory already. */
static bool has_place(const struct search *s, int value) { return s->views->memory[value] != value; }

static const struct tensor *tensor_at(const struct search *s, int value) { return s->graph->values[value].tensor; }

/* The only value that a view node writes, or -1 if the node is not a view node. */
static int result_of(const struct search *s, const struct node *node) {
    const struct op *op = op_of(node->op);
    int last = node->operand_count - 1; /* rows of outputs come last */
    bool holds = (op->result_layout || op->operand_layout) && graph_needs(s->graph, node) &&
                 is_plain(tensor_at(s, node->operands[last]));
    return holds ? node->operands[last] : -1;
}

/* Makes a value a view of `in` at `layout`, relative to the beginning of `in`, which may be a view itself. */
static void put(struct search *s, int value, int in, const struct placement *layout) {
    s->views->memory[value] = s->views->memory[in];
    s->layouts[value] = *layout;
    s->is_changed[value] = true;
}

/* True if operand k of a node can be computed at the location that result y implies; sets *found to it. */
static bool can_view_result(const struct search *s, const struct node *node, int k, int y, struct placement *layout) {
    int x = node->operands[k];
    return takes_views(s, y) && !s->is_fixed[x] && !has_place(s, x) && s->graph->values[x].producer >= 0 &&
           x != s->views->memory[y] && tensor_at(s, x)->type == tensor_at(s, y)->type &&
           op_of(node->op)->operand_layout(node->op, k, &s->layouts[y], layout);
}

static bool fit_operand(struct search *s, const struct node *node, int k, int y) {
    struct placement layout;
    if (!can_view_result(s, node, k, y, &layout))
        return false;
    put(s, node->operands[k], y, &layout);
    return true;
}

static bool may_gather(const struct search *s, int y) {
    return s->choices->may_gather && s->choices->may_gather[y] && takes_views(s, y) && !s->is_fixed[y] &&
           !has_place(s, y);
}

/* True if a concatenation should be gathered instead: there is no gain if all inputs can be computed in place. An input
   that occurs twice fits only once. */
static bool waits_for_parts(const struct search *s, const struct node *node, int y) {
    struct placement layout;
    bool is_viewed = true;
    for (int k = 0; k < node->operand_count - 1; k++) {
        is_viewed = is_viewed && can_view_result(s, node, k, y, &layout);
        for (int i = 0; i < k; i++)
            is_viewed = is_viewed && node->operands[i] != node->operands[k];
    }
    return !is_viewed && may_gather(s, y);
}

/* A virtual result with one input should be a view of the input if possible, because the input can then be stored
   anywhere. */
static bool wants_inputs(const struct search *s, int n, int y) {
    const struct op *op = op_of(s->graph->nodes[n].op);
    return op->operand_layout &&
           (!op->result_layout || s->is_stuck[n] || !tensor_at(s, y)->is_virtual || has_place(s, y));
}

/* A node needs no kernel only if all of its inputs are computed in place; for a concatenation, some of them may be. */
static void fit_inputs(struct search *s, int n) {
    const struct node *node = &s->graph->nodes[n];
    int y = result_of(s, node), fitted = 0;
    if (y < 0 || !wants_inputs(s, n, y) || waits_for_parts(s, node, y))
        return;
    for (int k = 0; k < node->operand_count - 1; k++) {
        bool holds = fit_operand(s, node, k, y);
        fitted += holds;
        s->placed[n] |= holds && k < 64 ? UINT64_C(1) << k : 0;
    }
    s->views->is_view[n] = fitted == node->operand_count - 1;
}

/* True if the result of a reshape of storage that is not packed can be a view: the storage has the layout of its
   tensor. */
static bool may_view_input(const struct search *s, const struct node *node, int x, int y) {
    bool is_free = takes_views(s, x) && !s->is_gathered[x] && tensor_at(s, y)->is_virtual && !has_place(s, y);
    bool is_right = is_of_storage(node->op) ? !s->is_changed[x] : !s->is_fixed[y];
    return is_free && is_right && is_plain(tensor_at(s, x)) && tensor_at(s, x)->type == tensor_at(s, y)->type &&
           !tensor_at(s, x)->is_by_value && !tensor_at(s, x)->is_constant;
}

/* Makes the result of a node a view of its input if strides can express it. */
static void look_through(struct search *s, int n) {
    const struct node *node = &s->graph->nodes[n];
    struct placement layout;
    int y = result_of(s, node), x = node->operands[0];
    if (y < 0 || s->views->is_view[n] || !op_of(node->op)->result_layout || !may_view_input(s, node, x, y) ||
        !op_of(node->op)->result_layout(node->op, &s->layouts[x], &layout))
        return;
    put(s, y, x, &layout);
    s->views->is_view[n] = true;
}

/* The alignment of a part's address. */
static int64_t part_alignment(const struct tensor *tensor, int64_t offset) {
    return offset ? min64(tensor->alignment, offset & -offset) : tensor->alignment;
}

/* The alignment, in bytes, of each part's address minus the offset of the part. */
static int64_t gathered_alignment(const struct search *s, const struct node *node, int y) {
    int64_t alignment = tensor_at(s, y)->alignment, before = 0;
    for (int k = 0; k < node->operand_count - 1; k++) {
        int x = node->operands[k], axis = concat_axis((const struct concat_op *)node->op);
        int64_t offset =
            (s->layouts[x].offset - before * s->layouts[y].strides.at[axis]) * tensor_element_bytes(tensor_at(s, x));
        alignment = min64(alignment, part_alignment(tensor_at(s, s->views->memory[x]), offset));
        before += tensor_at(s, x)->dims.at[axis];
    }
    return alignment;
}

/* True if a part has the layout of the first one: the same stride along the axis, and other strides that are larger by
   one common factor, which is the case for packed parts of different lengths. */
static bool lies_as(const struct search *s, int x, int first, int y, int axis) {
    const struct tensor *joined = tensor_at(s, y);
    const int64_t *strides_of_x = s->layouts[x].strides.at, *strides_of_first = s->layouts[first].strides.at;
    bool holds = is_plain(tensor_at(s, x)) && tensor_at(s, x)->type == joined->type && !tensor_at(s, x)->is_by_value &&
                 !tensor_at(s, x)->is_constant && !s->is_gathered[x] && strides_of_x[axis] == strides_of_first[axis];
    int64_t d, e = -1; /* a dimension that determines the factor */
    for (d = 0; d < joined->dims.count && holds; d++) {
        if (d == axis || joined->dims.at[d] == 1)
            continue;
        e = e < 0 ? d : e;
        holds = strides_of_x[d] > 0 && strides_of_first[d] > 0 && strides_of_first[d] < INT32_MAX &&
                strides_of_x[e] < INT32_MAX && strides_of_x[d] < INT32_MAX && strides_of_first[e] < INT32_MAX &&
                strides_of_x[d] * strides_of_first[e] == strides_of_first[d] * strides_of_x[e];
    }
    return holds;
}

/* Leaves the result of a concatenation without memory if the layouts of its parts match. */
static void gather(struct search *s, int n) {
    const struct node *node = &s->graph->nodes[n];
    int y = op_of(node->op) == &concat_op && !s->views->is_view[n] ? result_of(s, node) : -1;
    bool holds = y >= 0 && waits_for_parts(s, node, y);
    for (int k = 0; k < node->operand_count - 1 && holds; k++)
        holds = lies_as(s, node->operands[k], node->operands[0], y, concat_axis((const struct concat_op *)node->op));
    if (!holds)
        return;
    s->layouts[y] = (struct placement){.strides = s->layouts[node->operands[0]].strides};
    s->is_gathered[y] = s->is_changed[y] = s->views->is_view[n] = true;
    s->views->gathered++;
}

/* Resets every value to its own memory with the layout of its tensor. */
static void forget(struct search *s) {
    for (int v = 0; v < s->graph->value_count; v++) {
        s->views->memory[v] = v;
        s->is_changed[v] = false;
        s->layouts[v] = (struct placement){.strides = tensor_at(s, v)->strides};
    }
}

/* Finds the nodes whose results cannot be views if all inputs are stored as their tensors describe. */
static void find_stuck(struct search *s) {
    for (int n = 0; n < s->graph->node_count; n++) {
        look_through(s, n);
        s->is_stuck[n] = !s->views->is_view[n];
        s->views->is_view[n] = false;
    }
    forget(s);
}

/* ---- The graph with new layouts ---------------------------------------------------------------------------------- */

/* A tensor with its new layout, and the offset of its first element in bytes. */
static weftStatus_t copy_tensor(struct tensor **result, struct search *s, int v, struct arena *arena) {
    const struct tensor *tensor = tensor_at(s, v);
    struct tensor *copy;
    s->views->offset[v] = s->layouts[v].offset * tensor_element_bytes(tensor);
    TRY(descriptor_mirror(arena, &copy, &tensor->base));
    copy->strides = s->layouts[v].strides;
    copy->alignment = part_alignment(tensor_at(s, s->views->memory[v]), s->views->offset[v]);
    if (s->is_gathered[v])
        copy->alignment = gathered_alignment(s, &s->graph->nodes[s->graph->values[v].producer], v);
    copy->is_gathered = s->is_gathered[v];
    *result = copy;
    return WEFT_STATUS_SUCCESS;
}

/* Since the storage has changed, describes a reshape that keeps the order of elements as one of elements. */
static void name_elements(struct node *copy, const struct node *node) {
    if (copy->op != node->op && op_of(node->op) == &reshape_op && !is_of_storage(node->op))
        ((struct reshape_op *)copy->op)->mode = WEFT_RESHAPE_LOGICAL;
}

/* If a concatenation is copied after all, only the inputs that are not in place are. */
static void name_placed(struct node *copy, const struct node *node, uint64_t placed) {
    if (copy->op != node->op && op_of(node->op) == &concat_op)
        ((struct concat_op *)copy->op)->placed = placed;
}

/* The user's graph does not change; the planner gets a graph in which changed layouts have new tensors. */
static weftStatus_t copy_graph(struct search *s, struct arena *arena, struct arena *scratch) {
    const struct graph *graph = s->graph;
    struct tensor **tensors;
    struct graph *copy;
    TRY(arena_alloc(scratch, &tensors, (size_t)graph->value_count * sizeof *tensors));
    for (int v = 0; v < graph->value_count; v++)
        if (s->is_changed[v])
            TRY(copy_tensor(&tensors[v], s, v, arena));
    /* Tensors that did not change are NULL here, and are shared. */
    TRY(graph_exchange(&copy, graph, tensors, arena));
    for (int n = 0; n < graph->node_count; n++) {
        name_elements(&copy->nodes[n], &graph->nodes[n]);
        name_placed(&copy->nodes[n], &graph->nodes[n], s->placed[n]);
    }
    s->views->graph = copy;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Entry points ------------------------------------------------------------------------------------------------ */

weftStatus_t views_none(struct views *views, const struct graph *graph, struct arena *arena) {
    *views = (struct views){.graph = graph};
    TRY(arena_alloc(arena, &views->is_view, (size_t)graph->node_count * sizeof *views->is_view));
    TRY(arena_alloc(arena, &views->memory, (size_t)graph->value_count * sizeof *views->memory));
    TRY(arena_alloc(arena, &views->offset, (size_t)graph->value_count * sizeof *views->offset));
    for (int v = 0; v < graph->value_count; v++)
        views->memory[v] = v;
    return WEFT_STATUS_SUCCESS;
}

/* Most graphs move nothing and need no search. */
static bool has_any(const struct graph *graph) {
    for (int n = 0; n < graph->node_count; n++)
        if (op_of(graph->nodes[n].op)->result_layout || op_of(graph->nodes[n].op)->operand_layout)
            return true;
    return false;
}

static weftStatus_t search(struct search *s, struct arena *arena, struct arena *scratch) {
    const struct graph *graph = s->graph;
    size_t values = (size_t)graph->value_count;
    bool is_any = false;
    TRY(arena_alloc(scratch, &s->layouts, values * sizeof *s->layouts));
    TRY(arena_alloc(scratch, &s->is_fixed, values * sizeof *s->is_fixed));
    TRY(arena_alloc(scratch, &s->is_changed, values * sizeof *s->is_changed));
    TRY(arena_alloc(scratch, &s->is_gathered, values * sizeof *s->is_gathered));
    TRY(arena_alloc(scratch, &s->placed, (size_t)graph->node_count * sizeof *s->placed));
    TRY(arena_alloc(scratch, &s->is_stuck, (size_t)graph->node_count * sizeof *s->is_stuck));
    forget(s);
    find_fixed(s);
    /* The order matters: inputs that are computed in place are determined before results become views of their
       inputs. */
    find_stuck(s);
    for (int n = graph->node_count; n-- > 0;)
        fit_inputs(s, n);
    for (int n = 0; n < graph->node_count; n++) {
        look_through(s, n);
        gather(s, n);
    }
    for (int n = 0; n < graph->node_count; n++)
        s->views->count += s->views->is_view[n];
    for (int v = 0; v < graph->value_count; v++)
        is_any = is_any || s->is_changed[v];
    return is_any ? copy_graph(s, arena, scratch) : WEFT_STATUS_SUCCESS;
}

weftStatus_t views_find(struct views *views, const struct graph *graph, const struct view_choices *choices,
                        struct arena *arena) {
    struct arena scratch = {0};
    struct search s = {.graph = graph, .views = views, .choices = choices};
    TRY(views_none(views, graph, arena));
    weftStatus_t status = has_any(graph) ? search(&s, arena, &scratch) : WEFT_STATUS_SUCCESS;
    arena_free(&scratch);
    return status;
}

const struct concat_op *views_gathered(const struct graph *graph, int value) {
    const struct value *at = &graph->values[value];
    return at->tensor->is_gathered && at->producer >= 0 ? (const struct concat_op *)graph->nodes[at->producer].op
                                                        : NULL;
}
