/* SPDX-License-Identifier: Apache-2.0 */
/* Matches the scores of attention: a product, its scale, bias, masks and bounds; all other pointwise operations in
   between form the score modifier. All of them are collected as the modifier first. Then the parts that attention has
   an operand or option for are peeled off: the scale from the product's side, bias and masks from the softmax's
   side. */
#include "graph/patterns/match.h"

#include <math.h>
#include <string.h>

/* A score hidden by this constant or a lower one has weight 0 next to any score that is not hidden, because exp
   underflows in FLOAT. */
static const double HIDDEN_MOST = -1e30;

/* ---- The score modifier ------------------------------------------------------------------------------------------ */

/* The order of additions does not matter, because pattern_sort orders the nodes. Index operations are leaves: they read
   only extents, which the modifier's input provides. */
weftStatus_t pattern_gather(struct attention_pattern *s, const struct tensor *tensor, bool modifies) {
    int node = pattern_producer(s, tensor);
    if (!pattern_is_pointwise(s, node) || pattern_contains(s, node))
        return WEFT_STATUS_SUCCESS;
    TRY(pattern_add(s, node));
    s->nodes[s->count - 1].modifies = modifies;
    /* An index operation reads no elements, so its input need not be part of the pattern. */
    if (pattern_form(s, node) == FORM_INDEX)
        return WEFT_STATUS_SUCCESS;
    struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, node));
    TRY(pattern_gather(s, operands.x, modifies));
    TRY(pattern_gather(s, operands.b, modifies));
    return pattern_gather(s, operands.t, modifies);
}

/* True if a product computes scores of these dims. */
static bool computes_scores(const struct attention_pattern *s, const struct tensor *tensor) {
    int node = pattern_producer(s, pattern_skip_view(s, tensor));
    return node >= 0 && op_of(pattern_op(s, node)) == &matmul_op && tensor_same_dims(tensor, s->scores);
}

/* If several products are added, because one may be a bias, the first one counts. */
static weftStatus_t find_product(struct attention_pattern *s, int *match) {
    s->product = computes_scores(s, s->scores) ? s->scores : NULL;
    for (int i = 0; i < s->count && !s->product; i++) {
        if (!s->nodes[i].modifies || pattern_form(s, s->nodes[i].node) == FORM_INDEX)
            continue;
        struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, s->nodes[i].node));
        const struct tensor *inputs[] = {operands.x, operands.b};
        for (int k = 0; k < 2 && !s->product; k++)
            s->product = inputs[k] && computes_scores(s, inputs[k]) ? inputs[k] : NULL;
    }
    if (!s->product)
        return pattern_decline_tensor(s->scores, "is not computed from a product of queries and keys");
    const struct tensor *product = s->product;
    TRY(pattern_add_view(s, &product));
    *match = pattern_producer(s, product);
    return pattern_check_product(s, *match);
}

/* True if the result of a node depends on the product's elements; `depends` has the answer for the nodes before it. */
static bool depends_on_product(const struct attention_pattern *s, int node, const bool *depends) {
    if (pattern_form(s, node) == FORM_INDEX)
        return false;
    struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, node));
    const struct tensor *inputs[] = {operands.x, operands.b, operands.t};
    for (int k = 0; k < 3; k++) {
        /* Nodes are sorted, so the answer for earlier nodes is known. */
        int index = inputs[k] && inputs[k] != s->product ? pattern_index(s, pattern_producer(s, inputs[k])) : -1;
        if (inputs[k] == s->product || (index >= 0 && s->nodes[index].modifies && depends[index]))
            return true;
    }
    return false;
}

/* Removes nodes whose results can be read from memory and which are read elsewhere or do not have the layout of the
   scores. */
static void drop_shared(struct attention_pattern *s) {
    bool depends[PATTERN_NODES_MAX] = {0};
    for (int i = 0; i < s->count; i++)
        depends[i] = s->nodes[i].modifies && depends_on_product(s, s->nodes[i].node, depends);
    /* Backwards, because removing a node turns it into an outside reader of its operands. */
    for (int i = s->count; i-- > 0;)
        if (s->nodes[i].modifies && !depends[i] &&
            (pattern_is_read_outside(s, pattern_result(s, s->nodes[i].node)) ||
             pattern_result(s, s->nodes[i].node)->dims.count != s->scores->dims.count))
            pattern_remove(s, i);
}

/* True if a tensor with more than one element is available before the attention. */
static bool is_in_memory(const struct attention_pattern *s, const struct tensor *tensor) {
    return !pattern_contains(s, pattern_producer(s, tensor)) && !tensor->is_by_value && !tensor->is_constant;
}

/* True if a node is, at this point of the search, part of the score modifier. */
static bool is_modifier(const struct attention_pattern *s, int node) {
    int index = pattern_index(s, node);
    return index >= 0 && s->nodes[index].modifies;
}

/* The only operation of the modifier that reads a tensor's elements, or -1 if no operation or more than one does.
   Operations of the backward pass are not counted. */
static int sole_modifier(const struct attention_pattern *s, const struct tensor *tensor) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    int match = -1;
    for (int i = 0; i < value->readers; i++) {
        int reader = value->read_by[i];
        if (!is_modifier(s, reader) || pattern_form(s, reader) == FORM_INDEX)
            continue;
        if (match >= 0)
            return -1;
        match = reader;
    }
    return match;
}

/* Peels the scales that directly follow the product: numbers are multiplied into scale_value, and the last one may be a
   scalar tensor. Attention scales in FLOAT, so operations after a rounding are not peeled. */
static void peel_scale(struct attention_pattern *s) {
    for (int node; pattern_is_exact(s, s->product) && (node = sole_modifier(s, s->product)) >= 0;) {
        const struct pointwise_op *op = pattern_pointwise(s, node);
        /* A number moves into scale_value, a tensor of one element becomes attn_scale; any other operand ends the
           loop. */
        const struct tensor *x, *other = op->x == s->product ? op->b : op->x;
        double factor;
        /* A product that is rounded after scaling would be rounded differently before it. */
        if (!pattern_is_exact(s, pattern_result(s, node)))
            return;
        if (pattern_read_factor(op, &x, &factor) && x == s->product) {
            s->scale_value *= factor;
        } else if (op->pw->mode == WEFT_POINTWISE_MUL && op->alpha1 == 1 && op->alpha2 == 1 && s->scale_value == 1 &&
                   !s->scale && tensor_elements(other) == 1 && !pattern_contains(s, pattern_producer(s, other)) &&
                   dtype_is_float((weftDataType_t)other->type) && tensor_same_dims(op->y, s->product)) {
            s->scale = other;
        } else {
            return;
        }
        s->nodes[pattern_index(s, node)].modifies = false;
        s->product = op->y;
        /* attn_scale is a single tensor: factors after it stay in the modifier. */
        if (s->scale)
            return;
    }
}

/* ---- Masks ------------------------------------------------------------------------------------------------------- */

/* row * query + column * key + number. */
struct linear {
    double row, column, number;
};

/* Depth of a mask's formula, which limits the recursion. */
enum { FORMULA_DEPTH = 8 };

/* Queries and keys are the last two dimensions. An index along a dimension that the scores extend broadcasts, and its
   only value is 0. */
static bool read_index(struct linear *form, const struct attention_pattern *s, const struct pointwise_op *op) {
    int64_t rank = s->scores->dims.count, axis = op->pw->axis;
    *form = (struct linear){axis == rank - 2, axis == rank - 1, 0};
    return op->y->dims.count == rank && axis >= rank - 2 && op->y->dims.at[axis] == s->scores->dims.at[axis];
}

/* True for types in which indices and their sums with numbers are exact for any length that fits into memory. */
static bool is_wide(const struct tensor *tensor) {
    return tensor->type == WEFT_DATA_INT32 || tensor->type == WEFT_DATA_INT64 || tensor->type == WEFT_DATA_FLOAT ||
           tensor->type == WEFT_DATA_DOUBLE;
}

/* Matches a sum of indices and numbers. */
static bool read_linear(struct linear *form, const struct attention_pattern *s, const struct tensor *tensor,
                        int depth) {
    struct linear b;
    *form = (struct linear){0};
    if (pattern_read_constant(tensor, &form->number))
        return true;
    int node = pattern_producer(s, tensor);
    /* In a type that cannot represent all indices, the comparison might differ from the formula. */
    if (!pattern_is_pointwise(s, node) || depth == 0 || !is_wide(tensor))
        return false;
    const struct pointwise_op *op = pattern_pointwise(s, node);
    double sign = op->pw->mode == WEFT_POINTWISE_SUB ? -1 : 1;
    if (op->pw->mode == WEFT_POINTWISE_GEN_INDEX)
        return read_index(form, s, op);
    if (op->alpha1 != 1 || op->alpha2 != 1)
        return false;
    /* Conversions between such types keep the value. */
    if (op->pw->mode == WEFT_POINTWISE_IDENTITY)
        return read_linear(form, s, op->x, depth - 1);
    if (op->pw->mode != WEFT_POINTWISE_ADD && op->pw->mode != WEFT_POINTWISE_SUB)
        return false;
    if (!read_linear(form, s, op->x, depth - 1) || !read_linear(&b, s, op->b, depth - 1))
        return false;
    *form = (struct linear){form->row + sign * b.row, form->column + sign * b.column, form->number + sign * b.number};
    return true;
}

/* x >= b or x > b: true for large x. */
static bool is_no_less(int mode) { return mode == WEFT_POINTWISE_CMP_GE || mode == WEFT_POINTWISE_CMP_GT; }

/* Matches a comparison of indices that is a bound: column <= row + number, or column >= row + number. */
static bool read_bound(const struct attention_pattern *s, const struct pointwise_op *op, bool *is_right,
                       double *number) {
    struct linear x, b;
    int mode = op->pw->mode;
    bool is_strict = mode == WEFT_POINTWISE_CMP_GT || mode == WEFT_POINTWISE_CMP_LT;
    bool compares = is_strict || mode == WEFT_POINTWISE_CMP_GE || mode == WEFT_POINTWISE_CMP_LE;
    if (!compares || op->alpha1 != 1 || op->alpha2 != 1 || !read_linear(&x, s, op->x, FORMULA_DEPTH) ||
        !read_linear(&b, s, op->b, FORMULA_DEPTH))
        return false;
    struct linear d = {x.row - b.row, x.column - b.column, x.number - b.number}; /* only its sign matters */
    /* The bound must be parallel to the diagonal; attention has no other slopes. */
    if (!(d.row == 1 && d.column == -1) && !(d.row == -1 && d.column == 1))
        return false;
    /* Bounds are integers of at most 32 bits. */
    if (d.number != floor(d.number) || fabs(d.number) > INT32_MAX)
        return false;
    *is_right = is_no_less(mode) == (d.row == 1);
    /* column < n is column <= n - 1 */
    *number = d.row * d.number + (is_strict ? (*is_right ? -1 : 1) : 0);
    return true;
}

/* Restricts the scores to columns up to (or from) row + number. Several masks combine to the tighter bound. left_bound
   counts from the diagonal: column > row - left. */
static void tighten_bound(struct attention_pattern *s, bool is_right, int64_t number) {
    if (is_right)
        s->right_bound = number < s->right_bound ? number : s->right_bound;
    else
        s->left_bound = 1 - number < s->left_bound ? 1 - number : s->left_bound;
}

/* Expresses "scores are kept where a mask is true (`keeps_true`) or false" by bounds, or by attention's boolean bias.
   Returns false if neither is possible. */
static bool match_mask(struct attention_pattern *s, const struct tensor *mask, bool keeps_true, int depth) {
    int node = pattern_producer(s, mask);
    const struct pointwise_op *op = pattern_is_pointwise(s, node) ? pattern_pointwise(s, node) : NULL;
    bool is_right;
    double number;
    if (op && depth && op->pw->mode == WEFT_POINTWISE_LOGICAL_NOT)
        return match_mask(s, op->x, !keeps_true, depth - 1);
    /* Kept where both are true means hidden where either is false. */
    if (op && depth && op->pw->mode == (keeps_true ? WEFT_POINTWISE_LOGICAL_AND : WEFT_POINTWISE_LOGICAL_OR))
        return match_mask(s, op->x, keeps_true, depth - 1) && match_mask(s, op->b, keeps_true, depth - 1);
    if (op && read_bound(s, op, &is_right, &number)) {
        if (!keeps_true) { /* the complement starts at the next column */
            is_right = !is_right;
            number += is_right ? -1 : 1;
        }
        tighten_bound(s, is_right, (int64_t)number);
        return true;
    }
    if (!keeps_true || s->bias || !is_in_memory(s, mask) || !dtype_is_boolean((weftDataType_t)mask->type))
        return false;
    s->bias = mask;
    return true;
}

/* True if the bounds leave at least one key to every query. */
static bool bounds_leave_keys(const struct attention_pattern *s) {
    int64_t rank = s->scores->dims.count;
    int64_t rows = s->scores->dims.at[rank - 2], columns = s->scores->dims.at[rank - 1];
    /* The band of the first query ends at key 0 or later, that of the last query starts at an existing key, and the
       band is not empty. */
    bool first = s->right_bound >= 0 || s->right_bound == ATTENTION_UNBOUNDED;
    bool last = s->left_bound == ATTENTION_UNBOUNDED || rows - 1 - s->left_bound + 1 < columns;
    bool between = s->left_bound == ATTENTION_UNBOUNDED || s->right_bound == ATTENTION_UNBOUNDED ||
                   s->left_bound + s->right_bound > 0;
    return first && last && between;
}

/* Attention's own masks hide scores by -inf. A finite number instead gives equal weights to a row that is hidden
   completely, so no such row may exist. Works on s itself and restores it on failure, because match_mask may have added
   only a part of the mask. */
static bool peel_mask(struct attention_pattern *s, const struct tensor *mask, bool keeps_true, double hidden) {
    struct attention_pattern saved = *s;
    bool matches = hidden <= HIDDEN_MOST && match_mask(s, mask, keeps_true, FORMULA_DEPTH);
    /* A finite number such as -1e30 gives nonzero weights to a row whose keys are all hidden: the bounds must leave a
       key. */
    if (matches && hidden != -INFINITY) {
        matches = s->bias == saved.bias && bounds_leave_keys(s);
        s->hides_by_number = true;
    }
    if (!matches)
        *s = saved;
    return matches;
}

bool pattern_peel_infinite_mask(struct attention_pattern *s, const struct pointwise_op *select) {
    double hidden;
    return select->alpha1 == 1 && select->alpha2 == 1 && pattern_read_constant(select->b, &hidden) &&
           hidden == -INFINITY && peel_mask(s, select->t, true, hidden);
}

/* Peels a select between scores and a number that hides them. */
static const struct tensor *peel_select(struct attention_pattern *s, const struct pointwise_op *op) {
    double hidden;
    if (op->alpha1 != 1 || op->alpha2 != 1)
        return NULL;
    if (pattern_read_constant(op->b, &hidden) && peel_mask(s, op->t, true, hidden))
        return op->x;
    return pattern_read_constant(op->x, &hidden) && peel_mask(s, op->t, false, hidden) ? op->b : NULL;
}

/* True if a bias consists of zeros and numbers that hide. */
static bool is_added_mask(struct attention_pattern *s, const struct tensor *bias) {
    const struct pointwise_op *op = pattern_produced_by(s, bias, WEFT_POINTWISE_BINARY_SELECT);
    double x, b;
    if (!op || op->alpha1 != 1 || op->alpha2 != 1 || !pattern_read_constant(op->x, &x) ||
        !pattern_read_constant(op->b, &b))
        return false;
    /* One branch of the select leaves scores unchanged, the other hides them. */
    return x == 0 ? peel_mask(s, op->t, true, b) : b == 0 && peel_mask(s, op->t, false, x);
}

/* Peels the addition of a mask of zeros and hiding numbers, or of a bias in memory. A second bias, or one of another
   rank, stays in the modifier. */
static const struct tensor *peel_add(struct attention_pattern *s, const struct pointwise_op *op) {
    const struct tensor *sides[] = {op->x, op->b};
    for (int i = 0; i < 2 && op->alpha1 == 1 && op->alpha2 == 1; i++) {
        const struct tensor *scores = sides[i], *bias = sides[1 - i];
        /* The operand that depends on the product is the scores; the other one is the bias. */
        if (scores != s->product && !is_modifier(s, pattern_producer(s, scores)))
            continue;
        if (is_added_mask(s, bias))
            return scores;
        bool is_read = is_in_memory(s, bias) && bias->dims.count == s->scores->dims.count &&
                       dtype_is_float((weftDataType_t)bias->type);
        if (is_read && !s->bias) {
            s->bias = bias;
            return scores;
        }
    }
    return NULL;
}

/* The scores before an operation that adds a bias, applies a mask, or converts exactly; NULL for any other operation.
   */
static const struct tensor *peel(struct attention_pattern *s, const struct pointwise_op *op) {
    if (op->pw->mode == WEFT_POINTWISE_IDENTITY)
        return op->alpha1 == 1 && pattern_is_exact(s, op->y) ? op->x : NULL;
    /* Each of these is exact, or rounds only values that were rounded before. */
    if (op->pw->mode == WEFT_POINTWISE_ADD)
        return pattern_is_exact(s, op->y) ? peel_add(s, op) : NULL;
    const struct tensor *source = op->pw->mode == WEFT_POINTWISE_BINARY_SELECT ? peel_select(s, op) : NULL;
    return source && (pattern_is_exact(s, op->y) || op->y->type == source->type) ? source : NULL;
}

/* Peels bias and masks, backwards from the softmax. Stops at the first other operation: everything before it belongs to
   the modifier. */
static void peel_masks(struct attention_pattern *s) {
    s->modified = s->scores;
    /* `original` is the state before all steps, `kept` that before one step: a failing step leaves the previous ones
       peeled. */
    const struct attention_pattern original = *s;
    for (int node; s->modified != s->product; s->nodes[pattern_index(s, node)].modifies = false) {
        const struct attention_pattern on_chip = *s;
        node = pattern_producer(s, s->modified);
        const struct tensor *source = peel(s, pattern_pointwise(s, node));
        bool leads_on = source && tensor_same_dims(source, s->scores) && sole_modifier(s, source) == node &&
                        (source == s->product || is_modifier(s, pattern_producer(s, source)));
        if (!leads_on) {
            *s = on_chip;
            break;
        }
        s->modified = source;
    }
    if (s->hides_by_number && (s->modified != s->product || s->bias)) /* these may be as low as the number that hides */
        *s = original;
}

/* Marks the operations of the modifier that its result depends on. Indices of a mask that became a bound, for example,
   are not marked. */
static void mark_needed(struct attention_pattern *s, const struct tensor *tensor, bool *needed) {
    int index = tensor && tensor != s->product ? pattern_index(s, pattern_producer(s, tensor)) : -1;
    if (index < 0 || !s->nodes[index].modifies || needed[index])
        return;
    needed[index] = true;
    if (pattern_form(s, s->nodes[index].node) == FORM_INDEX)
        return;
    struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, s->nodes[index].node));
    mark_needed(s, operands.x, needed);
    mark_needed(s, operands.b, needed);
    mark_needed(s, operands.t, needed);
}

/* Adds all operations that lead to the scores to the modifier. Records the scale of queries and keys; the scale of the
   product is peeled in pattern_split_scores. */
weftStatus_t pattern_gather_scores(struct attention_pattern *s) {
    int product = -1;
    TRY(pattern_gather(s, s->scores, true));
    TRY(find_product(s, &product));
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, product);
    s->q = pattern_view_of(op->a, op);
    s->k = pattern_view_of(op->b, op);
    /* Factors of queries and keys are factors of their product. */
    TRY(pattern_look_through(s, &s->q, product, &s->scale_value));
    TRY(pattern_look_through(s, &s->k, product, &s->scale_value));
    pattern_swap_last(&s->k);
    return WEFT_STATUS_SUCCESS;
}

/* Peels the scale from the front, then bias and masks from the back. The modifier is the rest in between, without
   operations that its result does not depend on. */
void pattern_split_scores(struct attention_pattern *s) {
    bool needed[PATTERN_NODES_MAX] = {0};
    pattern_sort(s);
    drop_shared(s);
    /* Read before scales are peeled, when `product` is still the matmul's own result. */
    s->is_rounded = !pattern_is_exact(s, s->product);
    peel_scale(s);
    peel_masks(s);
    /* Nodes that only feed a peeled mask are not part of the modifier. */
    mark_needed(s, s->modified, needed);
    for (int i = 0; i < s->count; i++)
        s->nodes[i].modifies = needed[i];
}
