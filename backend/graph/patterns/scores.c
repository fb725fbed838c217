/* SPDX-License-Identifier: Apache-2.0 */
/* The scores of spelled attention: a product, what it is scaled by, bias, masks and bounds, and, of all other pointwise
   operations on the way, the score modifier. All of them are gathered as the modifier's first; then what attention has
   an operand or option for is peeled off, the scale at the product's end, bias and masks at the softmax's. */
#include "graph/patterns/match.h"

#include <math.h>
#include <string.h>

/* A score that a constant of at most this hides has no weight beside one that is not hidden: float ends there. */
static const double HIDDEN_MOST = -1e30;

/* ---- The score modifier ------------------------------------------------------------------------------------------ */

/* Operands before the operation would do as well: pattern_sort orders them. Indices end it, as they read extents alone,
   which the modifier has of its input. */
weftStatus_t pattern_gather(struct attention_pattern *s, const struct tensor *tensor, bool modifies) {
    int node = pattern_producer(s, tensor);
    if (!pattern_is_pointwise(s, node) || pattern_contains(s, node))
        return WEFT_STATUS_SUCCESS;
    TRY(pattern_add(s, node));
    s->nodes[s->count - 1].modifies = modifies;
    /* An index reads no elements: what it is an index of need not be taken. */
    if (pattern_form(s, node) == FORM_INDEX)
        return WEFT_STATUS_SUCCESS;
    struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, node));
    TRY(pattern_gather(s, operands.x, modifies));
    TRY(pattern_gather(s, operands.b, modifies));
    return pattern_gather(s, operands.t, modifies);
}

/* A product that makes scores of these dims. */
static bool makes_scores(const struct attention_pattern *s, const struct tensor *tensor) {
    int node = pattern_producer(s, pattern_skip_view(s, tensor));
    return node >= 0 && op_of(pattern_op(s, node)) == &matmul_op && tensor_same_dims(tensor, s->scores);
}

/* Of several products that are added, as a bias may be one, the first. */
static weftStatus_t find_product(struct attention_pattern *s, int *found) {
    s->product = makes_scores(s, s->scores) ? s->scores : NULL;
    for (int i = 0; i < s->count && !s->product; i++) {
        if (!s->nodes[i].modifies || pattern_form(s, s->nodes[i].node) == FORM_INDEX)
            continue;
        struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, s->nodes[i].node));
        const struct tensor *inputs[] = {operands.x, operands.b};
        for (int k = 0; k < 2 && !s->product; k++)
            s->product = inputs[k] && makes_scores(s, inputs[k]) ? inputs[k] : NULL;
    }
    if (!s->product)
        return pattern_decline_tensor(s->scores, "is not made of a product of queries and keys");
    const struct tensor *product = s->product;
    TRY(pattern_add_view(s, &product));
    *found = pattern_producer(s, product);
    return pattern_check_product(s, *found);
}

/* Whether what a node makes depends on the product's elements; `depends` says it of those before. */
static bool depends_on_product(const struct attention_pattern *s, int node, const bool *depends) {
    if (pattern_form(s, node) == FORM_INDEX)
        return false;
    struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, node));
    const struct tensor *inputs[] = {operands.x, operands.b, operands.t};
    for (int k = 0; k < 3; k++) {
        /* Nodes are in order, so that those before have their answer. */
        int place = inputs[k] && inputs[k] != s->product ? pattern_index(s, pattern_producer(s, inputs[k])) : -1;
        if (inputs[k] == s->product || (place >= 0 && s->nodes[place].modifies && depends[place]))
            return true;
    }
    return false;
}

/* Leaves out what can be read from memory, and is read elsewhere as well, or does not lie as the scores do. */
static void drop_shared(struct attention_pattern *s) {
    bool depends[PATTERN_NODES_MAX] = {0};
    for (int i = 0; i < s->count; i++)
        depends[i] = s->nodes[i].modifies && depends_on_product(s, s->nodes[i].node, depends);
    /* From the last on: a node that is dropped makes those before it wanted from outside. */
    for (int i = s->count; i-- > 0;)
        if (s->nodes[i].modifies && !depends[i] &&
            (pattern_is_read_outside(s, pattern_result(s, s->nodes[i].node)) ||
             pattern_result(s, s->nodes[i].node)->dims.count != s->scores->dims.count))
            pattern_remove(s, i);
}

/* Whether a tensor, of more than a number, is there before the attention. */
static bool is_in_memory(const struct attention_pattern *s, const struct tensor *tensor) {
    return !pattern_contains(s, pattern_producer(s, tensor)) && !tensor->is_by_value && !tensor->is_constant;
}

/* Whether a node is, as far as is known by now, an operation of the score modifier. */
static bool is_modifier(const struct attention_pattern *s, int node) {
    int place = pattern_index(s, node);
    return place >= 0 && s->nodes[place].modifies;
}

/* The one operation of the modifier that minds a tensor's elements; -1: none does, or several. Of gradients, what
   carries them back reads it, too. */
static int sole_modifier(const struct attention_pattern *s, const struct tensor *tensor) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    int found = -1;
    for (int i = 0; i < value->readers; i++) {
        int reader = value->read_by[i];
        if (!is_modifier(s, reader) || pattern_form(s, reader) == FORM_INDEX)
            continue;
        if (found >= 0)
            return -1;
        found = reader;
    }
    return found;
}

/* Scales first, those of attention itself, as many as follow the product: numbers are multiplied here, and one scalar
   of the graph may be the last. Attention multiplies in FLOAT, so nothing that was rounded is peeled. */
static void peel_scale(struct attention_pattern *s) {
    for (int node; pattern_is_exact(s, s->product) && (node = sole_modifier(s, s->product)) >= 0;) {
        const struct pointwise_op *op = pattern_pointwise(s, node);
        /* A number moves into scale_value, a tensor of one element becomes attn_scale; anything else ends it. */
        const struct tensor *x, *other = op->x == s->product ? op->b : op->x;
        double factor;
        /* A product that is rounded after scaling would be rounded otherwise without. */
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
        /* attn_scale is one tensor: numbers behind it stay with the modifier. */
        if (s->scale)
            return;
    }
}

/* ---- Masks ------------------------------------------------------------------------------------------------------- */

/* row * query + column * key + number. */
struct linear {
    double row, column, number;
};

/* Operations that a mask's formula may be deep, so that recursion ends. */
enum { FORMULA_DEPTH = 8 };

/* Queries and keys are the last two dimensions. An index along a dimension in which the scores are longer broadcasts,
   and counts nothing. */
static bool read_index(struct linear *form, const struct attention_pattern *s, const struct pointwise_op *op) {
    int64_t rank = s->scores->dims.count, axis = op->pw->axis;
    *form = (struct linear){axis == rank - 2, axis == rank - 1, 0};
    return op->y->dims.count == rank && axis >= rank - 2 && op->y->dims.at[axis] == s->scores->dims.at[axis];
}

/* Types in which indices, and their sums with numbers, are exact for any length that fits memory. */
static bool is_wide(const struct tensor *tensor) {
    return tensor->type == WEFT_DATA_INT32 || tensor->type == WEFT_DATA_INT64 || tensor->type == WEFT_DATA_FLOAT ||
           tensor->type == WEFT_DATA_DOUBLE;
}

/* A sum of indices and numbers. */
static bool read_linear(struct linear *form, const struct attention_pattern *s, const struct tensor *tensor,
                        int depth) {
    struct linear b;
    *form = (struct linear){0};
    if (pattern_read_constant(tensor, &form->number))
        return true;
    int node = pattern_producer(s, tensor);
    /* In a type that cannot hold all indices the comparison would not be the one of the formula. */
    if (!pattern_is_pointwise(s, node) || depth == 0 || !is_wide(tensor))
        return false;
    const struct pointwise_op *op = pattern_pointwise(s, node);
    double sign = op->pw->mode == WEFT_POINTWISE_SUB ? -1 : 1;
    if (op->pw->mode == WEFT_POINTWISE_GEN_INDEX)
        return read_index(form, s, op);
    if (op->alpha1 != 1 || op->alpha2 != 1)
        return false;
    /* Conversions between such types change no index. */
    if (op->pw->mode == WEFT_POINTWISE_IDENTITY)
        return read_linear(form, s, op->x, depth - 1);
    if (op->pw->mode != WEFT_POINTWISE_ADD && op->pw->mode != WEFT_POINTWISE_SUB)
        return false;
    if (!read_linear(form, s, op->x, depth - 1) || !read_linear(&b, s, op->b, depth - 1))
        return false;
    *form = (struct linear){form->row + sign * b.row, form->column + sign * b.column, form->number + sign * b.number};
    return true;
}

/* x >= b, or x > b: true for large x. */
static bool is_no_less(int mode) { return mode == WEFT_POINTWISE_CMP_GE || mode == WEFT_POINTWISE_CMP_GT; }

/* A comparison of indices as a bound: column <= row + number, or column >= row + number. */
static bool read_bound(const struct attention_pattern *s, const struct pointwise_op *op, bool *is_right,
                       double *number) {
    struct linear x, b;
    int mode = op->pw->mode;
    bool is_strict = mode == WEFT_POINTWISE_CMP_GT || mode == WEFT_POINTWISE_CMP_LT;
    bool compares = is_strict || mode == WEFT_POINTWISE_CMP_GE || mode == WEFT_POINTWISE_CMP_LE;
    if (!compares || op->alpha1 != 1 || op->alpha2 != 1 || !read_linear(&x, s, op->x, FORMULA_DEPTH) ||
        !read_linear(&b, s, op->b, FORMULA_DEPTH))
        return false;
    struct linear d = {x.row - b.row, x.column - b.column, x.number - b.number}; /* of which the sign counts */
    /* One query against one key: parallel to the diagonal. Other slopes are no bound of attention's. */
    if (!(d.row == 1 && d.column == -1) && !(d.row == -1 && d.column == 1))
        return false;
    /* Bounds are whole numbers of 32 bits or less. */
    if (d.number != floor(d.number) || fabs(d.number) > INT32_MAX)
        return false;
    *is_right = is_no_less(mode) == (d.row == 1);
    /* Column below is column up to the one before. */
    *number = d.row * d.number + (is_strict ? (*is_right ? -1 : 1) : 0);
    return true;
}

/* Keeps the scores of columns up to, or from, row + number. Several masks hide what any of them hides: the tighter
   bound stays. left_bound counts from the diagonal: column > row - left. */
static void keep_bound(struct attention_pattern *s, bool is_right, int64_t number) {
    if (is_right)
        s->right_bound = number < s->right_bound ? number : s->right_bound;
    else
        s->left_bound = 1 - number < s->left_bound ? 1 - number : s->left_bound;
}

/* Whether scores stay where a mask is true (`keeps`), or false, by bounds, or as attention's boolean bias does it. */
static bool keep_where(struct attention_pattern *s, const struct tensor *mask, bool keeps, int depth) {
    int node = pattern_producer(s, mask);
    const struct pointwise_op *op = pattern_is_pointwise(s, node) ? pattern_pointwise(s, node) : NULL;
    bool is_right;
    double number;
    if (op && depth && op->pw->mode == WEFT_POINTWISE_LOGICAL_NOT)
        return keep_where(s, op->x, !keeps, depth - 1);
    /* Kept where both are true; hidden where either is. */
    if (op && depth && op->pw->mode == (keeps ? WEFT_POINTWISE_LOGICAL_AND : WEFT_POINTWISE_LOGICAL_OR))
        return keep_where(s, op->x, keeps, depth - 1) && keep_where(s, op->b, keeps, depth - 1);
    if (op && read_bound(s, op, &is_right, &number)) {
        if (!keeps) { /* the complement begins behind it */
            is_right = !is_right;
            number += is_right ? -1 : 1;
        }
        keep_bound(s, is_right, (int64_t)number);
        return true;
    }
    if (!keeps || s->bias || !is_in_memory(s, mask) || !dtype_is_boolean((weftDataType_t)mask->type))
        return false;
    s->bias = mask;
    return true;
}

/* Whether every query sees a key by the bounds alone. */
static bool bounds_leave_keys(const struct attention_pattern *s) {
    int64_t rank = s->scores->dims.count;
    int64_t rows = s->scores->dims.at[rank - 2], columns = s->scores->dims.at[rank - 1];
    /* The first query's band ends at key 0 or behind it, the last one's begins at a key that is there, and the band is
       not empty. */
    bool first = s->right_bound >= 0 || s->right_bound == ATTENTION_UNBOUNDED;
    bool last = s->left_bound == ATTENTION_UNBOUNDED || rows - 1 - s->left_bound + 1 < columns;
    bool between = s->left_bound == ATTENTION_UNBOUNDED || s->right_bound == ATTENTION_UNBOUNDED ||
                   s->left_bound + s->right_bound > 0;
    return first && last && between;
}

/* A mask is attention's own where what it hides is -inf; a finite number gives a row of nothing else equal weights,
   and must have no such row. Tried on s itself and put back where it fails: keep_where may have taken half of a
   mask. */
static bool peel_mask(struct attention_pattern *s, const struct tensor *mask, bool keeps, double hidden) {
    struct attention_pattern before = *s;
    bool is = hidden <= HIDDEN_MOST && keep_where(s, mask, keeps, FORMULA_DEPTH);
    /* Numbers, as -1e30, leave weights behind in a row that hides all of its keys: bounds must leave one. */
    if (is && hidden != -INFINITY) {
        is = s->bias == before.bias && bounds_leave_keys(s);
        s->hides_by_number = true;
    }
    if (!is)
        *s = before;
    return is;
}

/* Scores, or a number that hides them. */
static const struct tensor *peel_select(struct attention_pattern *s, const struct pointwise_op *op) {
    double hidden;
    if (op->alpha1 != 1 || op->alpha2 != 1)
        return NULL;
    if (pattern_read_constant(op->b, &hidden) && peel_mask(s, op->t, true, hidden))
        return op->x;
    return pattern_read_constant(op->x, &hidden) && peel_mask(s, op->t, false, hidden) ? op->b : NULL;
}

/* Zeros, and numbers that hide, added to scores. */
static bool is_added_mask(struct attention_pattern *s, const struct tensor *bias) {
    const struct pointwise_op *op = pattern_produced_by(s, bias, WEFT_POINTWISE_BINARY_SELECT);
    double x, b;
    if (!op || op->alpha1 != 1 || op->alpha2 != 1 || !pattern_read_constant(op->x, &x) ||
        !pattern_read_constant(op->b, &b))
        return false;
    /* One side of the selection leaves scores as they are, the other hides them. */
    return x == 0 ? peel_mask(s, op->t, true, b) : b == 0 && peel_mask(s, op->t, false, x);
}

/* Scores plus a mask of zeros and hiding numbers, or plus a bias that lies in memory. A second bias, or one of another
   rank, is left to the modifier. */
static const struct tensor *peel_add(struct attention_pattern *s, const struct pointwise_op *op) {
    const struct tensor *sides[] = {op->x, op->b};
    for (int i = 0; i < 2 && op->alpha1 == 1 && op->alpha2 == 1; i++) {
        const struct tensor *scores = sides[i], *bias = sides[1 - i];
        /* The side that the product leads to; the other one is the bias. */
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

/* The scores before a bias, a mask, or a conversion that changes nothing; NULL: it is something else. */
static const struct tensor *peel(struct attention_pattern *s, const struct pointwise_op *op) {
    if (op->pw->mode == WEFT_POINTWISE_IDENTITY)
        return op->alpha1 == 1 && pattern_is_exact(s, op->y) ? op->x : NULL;
    /* Each of these is exact, or rounds nothing that was not rounded before. */
    if (op->pw->mode == WEFT_POINTWISE_ADD)
        return pattern_is_exact(s, op->y) ? peel_add(s, op) : NULL;
    const struct tensor *before = op->pw->mode == WEFT_POINTWISE_BINARY_SELECT ? peel_select(s, op) : NULL;
    return before && (pattern_is_exact(s, op->y) || op->y->type == before->type) ? before : NULL;
}

/* Bias and masks last, those of attention itself, from the softmax backwards. It stops at the first operation that is
   something else: all before it is the modifier's. */
static void peel_masks(struct attention_pattern *s) {
    s->modified = s->scores;
    /* `whole` is before all of it, `kept` before one step: a step that fails leaves the rest peeled. */
    const struct attention_pattern whole = *s;
    for (int node; s->modified != s->product; s->nodes[pattern_index(s, node)].modifies = false) {
        const struct attention_pattern kept = *s;
        node = pattern_producer(s, s->modified);
        const struct tensor *before = peel(s, pattern_pointwise(s, node));
        bool leads_on = before && tensor_same_dims(before, s->scores) && sole_modifier(s, before) == node &&
                        (before == s->product || is_modifier(s, pattern_producer(s, before)));
        if (!leads_on) {
            *s = kept;
            break;
        }
        s->modified = before;
    }
    if (s->hides_by_number && (s->modified != s->product || s->bias)) /* which may reach as low */
        *s = whole;
}

/* Keeps in the modifier what its result is made of: indices of a mask that became a bound, say, are not. */
static void mark_needed(struct attention_pattern *s, const struct tensor *tensor, bool *needed) {
    int place = tensor && tensor != s->product ? pattern_index(s, pattern_producer(s, tensor)) : -1;
    if (place < 0 || !s->nodes[place].modifies || needed[place])
        return;
    needed[place] = true;
    if (pattern_form(s, s->nodes[place].node) == FORM_INDEX)
        return;
    struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, s->nodes[place].node));
    mark_needed(s, operands.x, needed);
    mark_needed(s, operands.b, needed);
    mark_needed(s, operands.t, needed);
}

/* All that leads to the scores is taken as the modifier's first. The scale of queries and keys is noted here, that of
   the product in pattern_split_scores. */
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

/* In the order of attention: the scale from the front, bias and masks from behind, and the modifier has what is left
   between, without what its result does not need. */
void pattern_split_scores(struct attention_pattern *s) {
    bool needed[PATTERN_NODES_MAX] = {0};
    pattern_sort(s);
    drop_shared(s);
    /* Told before scales are peeled: it is the matmul's own result. */
    s->is_rounded = !pattern_is_exact(s, s->product);
    peel_scale(s);
    peel_masks(s);
    /* Nodes that fed a peeled mask alone are no part of the modifier. */
    mark_needed(s, s->modified, needed);
    for (int i = 0; i < s->count; i++)
        s->nodes[i].modifies = needed[i];
}
