/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the rows of a region and the layout of its tensors along them, for the row families of all engines, and decides
   how a sum across rows is computed, such as the gradient of a norm's scale. Formulas of a row are in
   graph/expansion.h; each engine schedules them in its rows/ folder. */
#include "engines/row_space.h"
#include "graph/ops/norm.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reduction.h"

#include <string.h>

/* Groups of adjacent indices along a dimension, such as the channel groups of group norm, need two axes: one over the
   groups and one within a group. Groups are contiguous and all of the same size. */
static bool is_split(const struct row_space *space, int64_t dim) {
    return space->parts[dim] != 1 && space->parts[dim] != space->dims.at[dim];
}

/* ---- Finding the space ------------------------------------------------------------------------------------------- */

/* Refuses spaces that need more loops than tensors have dims. */
static weftStatus_t add_axis(struct row_space *space, struct row_axis axis) {
    /* An axis of one element needs no loop. */
    if (axis.extent == 1)
        return WEFT_STATUS_SUCCESS;
    if (space->axis_count == WEFT_DIM_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "dims %s split into groups exceed %d dims",
             numbers_text(space->dims.at, space->dims.count), WEFT_DIM_MAX);
    space->axes[space->axis_count++] = axis;
    return WEFT_STATUS_SUCCESS;
}

/* parts is 0 only if the extent is 0. If parts equals the extent, each element is a row, which needs one axis. */
static weftStatus_t build_axes(struct row_space *space) {
    for (int64_t d = 0; d < space->dims.count; d++) {
        int64_t extent = space->dims.at[d], parts = space->parts[d], inner = parts ? extent / parts : 0;
        /* parts == 1: the row contains the whole dimension. parts == extent: each element along it is a row of its
           own. */
        bool splits = is_split(space, d);
        if (splits)
            TRY(add_axis(space, (struct row_axis){(int)d, parts, inner, false, true}));
        TRY(add_axis(space, (struct row_axis){(int)d, splits ? inner : extent, 1, splits || parts == 1, false}));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Sets the space from an operation's expansion; false if it differs from that of earlier operations. Dims of one
   element fit any row. Dims and parts are filled in before anything that may be refused. */
static bool set_space(struct row_space *space, const struct node *node) {
    struct expansion e = {.method = STATISTICS_IN_TURN};
    if (expansion_of(&e, node->op))
        status_clear(); /* a refused operation has a space, too; its message is produced when its terms are written */
    if (space->dims.count == 0) {
        space->dims = e.dims;
        memcpy(space->parts, e.parts, sizeof space->parts);
        return true;
    }
    bool is_same = e.dims.count == space->dims.count;
    for (int64_t d = 0; is_same && d < e.dims.count; d++)
        is_same = e.dims.at[d] == space->dims.at[d] && (e.dims.at[d] == 1 || e.parts[d] == space->parts[d]);
    return is_same;
}

static bool is_sum(const struct node *node) {
    return op_of(node->op) == &reduction_op &&
           ((const struct reduction_op *)node->op)->parameters->mode == WEFT_REDUCE_TENSOR_ADD;
}

/* Plain sums come last: next to operations that have rows, they may be column sums. */
static weftStatus_t set_spaces(struct row_space *space, const struct region *region, bool are_sums) {
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        if (op_expands(node->op) && is_sum(node) == are_sums && !(are_sums && row_space_sums_columns(space, node)) &&
            !set_space(space, node))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s has different rows than the operations before it",
                 descriptor_label(node->op));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Pointwise nodes have no rows of their own: they use those of the operations that combine elements. */
weftStatus_t row_space_find(struct row_space *space, const struct region *region) {
    *space = (struct row_space){0};
    for (int i = 0; i < region->count; i++)
        if (!node_is_pointwise(region_node(region, i)) && !op_expands(region_node(region, i)->op))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s is not a pointwise operation, reduction, softmax or normalisation",
                 descriptor_label(region_node(region, i)->op));
    TRY(set_spaces(space, region, false));
    bool is_set = space->dims.count > 0;
    if (is_set)
        TRY(build_axes(space));
    TRY(set_spaces(space, region, true));
    /* A region of only pointwise nodes is a map without rows. */
    if (space->dims.count == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no operation of the region combines elements of rows");
    return is_set ? WEFT_STATUS_SUCCESS : build_axes(space);
}

/* For expansions that are written again, such as those of the second program. */
void row_space_expand_in(const struct row_space *space, struct expansion *e) {
    e->dims = space->dims;
    memcpy(e->parts, space->parts, sizeof e->parts);
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* Product of the extents of one kind of axis: 1 if no such axis exists, 0 if one is empty. */
static int64_t elements_along(const struct row_space *space, bool is_reduced) {
    int64_t count = 1;
    for (int i = 0; i < space->axis_count; i++)
        count *= space->axes[i].is_reduced == is_reduced ? space->axes[i].extent : 1;
    return count;
}

int64_t row_space_length(const struct row_space *space) { return elements_along(space, true); }

int64_t row_space_rows(const struct row_space *space) { return elements_along(space, false); }

/* The last axis of the kind has stride 1. */
void row_space_pack(const struct row_space *space, int64_t *strides, bool is_reduced) {
    int64_t packed = 1;
    for (int i = space->axis_count; i-- > 0;) {
        strides[i] = space->axes[i].is_reduced == is_reduced ? packed : 0;
        packed *= space->axes[i].is_reduced == is_reduced ? space->axes[i].extent : 1;
    }
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* True if a tensor has one element per group of a split dimension. */
static bool has_groups(const struct row_space *space, const struct tensor *tensor, int64_t dim) {
    return is_split(space, dim) && tensor->dims.at[dim] == space->parts[dim];
}

/* Each extent must equal the space's, be 1, or be the number of groups. */
static bool fits_along(const struct row_space *space, const struct tensor *tensor, int64_t dim) {
    int64_t extent = tensor->dims.at[dim];
    return extent == space->dims.at[dim] || extent == 1 || has_groups(space, tensor, dim);
}

/* A scalar input may have any rank, because it broadcasts everywhere. */
weftStatus_t row_space_check(const struct row_space *space, const struct descriptor *op, const struct tensor *tensor,
                             bool is_output) {
    bool is_scalar = tensor_elements(tensor) == 1 && !is_output;
    bool fits = is_scalar || tensor->dims.count == space->dims.count;
    TRY(tensor_check_plain(tensor, op));
    for (int64_t d = 0; fits && !is_scalar && d < space->dims.count; d++)
        fits = fits_along(space, tensor, d);
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s, but the rows of this region have dims %s",
             descriptor_label(op), descriptor_label(&tensor->base), tensor_dims_text(tensor),
             numbers_text(space->dims.at, space->dims.count));
    return WEFT_STATUS_SUCCESS;
}

/* spans: the result differs within a row. It must then have all axes within the row, otherwise none of them. */
weftStatus_t row_space_check_result(const struct row_space *space, const struct tensor *tensor, bool spans) {
    for (int i = 0; i < space->axis_count; i++)
        if (row_space_has_axis(space, tensor, i) != (spans || !space->axes[i].is_reduced))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s with dims %s has neither one element per row nor one per element of the row space",
                 descriptor_label(&tensor->base), tensor_dims_text(tensor));
    return WEFT_STATUS_SUCCESS;
}

/* A tensor with one element per group has the axis of groups, but not the axis within a group. */
bool row_space_has_axis(const struct row_space *space, const struct tensor *tensor, int axis) {
    int64_t dim = space->axes[axis].dim;
    if (dim == DIM_OF_PARTIAL_SUMS)
        return false;
    return tensor->dims.at[dim] == space->dims.at[dim] ||
           (has_groups(space, tensor, dim) && space->axes[axis].counts_groups);
}

/* A tensor with one element per group uses its own stride. Along the axis of groups, a full tensor steps by `inner`
   elements. */
int64_t row_space_stride(const struct row_space *space, const struct tensor *tensor, int axis) {
    const struct row_axis *at = &space->axes[axis];
    if (!row_space_has_axis(space, tensor, axis))
        return 0;
    if (at->extent == 0)
        return 1; /* 0 would mean broadcasting, but the tensor has no elements */
    bool is_by_group = tensor->dims.at[at->dim] != space->dims.at[at->dim];
    return tensor->strides.at[at->dim] * (is_by_group ? 1 : at->inner);
}

/* ---- Sums that cross rows ---------------------------------------------------------------------------------------- */

/* Which axes of the space a tensor has. This determines what a sum into its elements has to cross. */
struct reach {
    bool in_row, whole_row; /* the tensor has an axis within the row; it has all of them */
    bool in_rows, all_rows; /* the tensor has an axis across rows; it has all of them */
};

/* An empty space has no axes, so `whole_row` and `all_rows` are both true. */
static struct reach reach_of(const struct row_space *space, const struct tensor *tensor) {
    struct reach reach = {.whole_row = true, .all_rows = true};
    for (int i = 0; i < space->axis_count; i++) {
        bool has = row_space_has_axis(space, tensor, i), is_reduced = space->axes[i].is_reduced;
        reach.in_row = reach.in_row || (is_reduced && has);
        reach.whole_row = reach.whole_row && (!is_reduced || has);
        reach.in_rows = reach.in_rows || (!is_reduced && has);
        reach.all_rows = reach.all_rows && (is_reduced || has);
    }
    return reach;
}

/* Tries the kinds in the order of cost. The row's own sum needs nothing more. Rows that share a scale need a small
   second program. Columns need partial sums per block and a second program. Everything else needs a second pass over x
   and dy. sums_apart: the schedule cannot hold partial sums of columns. */
enum follow_kind row_space_sum_kind(const struct row_space *space, const struct tensor *tensor, bool sums_apart) {
    struct reach reach = reach_of(space, tensor);
    if (!reach.in_row)
        return reach.all_rows ? FOLLOW_NOTHING : FOLLOW_FOLD;
    return !reach.in_rows && reach.whole_row && !sums_apart ? FOLLOW_COLUMNS : FOLLOW_APART;
}

/* A gradient without readers is not computed. */
bool row_space_wants_sum(const struct region *region, const struct tensor *tensor) {
    return !value_is_dead(&region->graph->values[graph_find_value(region->graph, tensor)]);
}

static bool is_read_inside(const struct region *region, const struct tensor *tensor) {
    const struct value *value = &region->graph->values[graph_find_value(region->graph, tensor)];
    for (int i = 0; i < value->readers; i++)
        if (region_has(region, value->read_by[i]))
            return true;
    return false;
}

/* True if a tensor has every element of the space, without broadcasting along any of its dims. */
static bool has_all(const struct row_space *space, const struct tensor *tensor) {
    return tensor->dims.count == space->dims.count &&
           !memcmp(tensor->dims.at, space->dims.at, (size_t)space->dims.count * sizeof *space->dims.at);
}

/* A space that is not known yet has no columns. */
bool row_space_sums_columns(const struct row_space *space, const struct node *node) {
    const struct reduction_op *op = (const struct reduction_op *)node->op;
    return space->dims.count > 0 && is_sum(node) && has_all(space, op->x) && op->y->dims.count == space->dims.count &&
           row_space_sum_kind(space, op->y, false) == FOLLOW_COLUMNS;
}

/* Scale and bias of one norm share x, dy and statistics, and therefore the second program. */
weftStatus_t follow_add(struct follow *follow, const struct region *region, const struct node *node,
                        const struct tensor *gradient, enum follow_kind kind, bool *is_first) {
    const struct norm_backward *op = (const struct norm_backward *)node->op;
    *is_first = !follow->node;
    if ((!*is_first && follow->node != node) || (follow->kind != FOLLOW_NOTHING && follow->kind != kind))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only the gradients of one scale are computed at a time",
             descriptor_label(node->op));
    /* The second program computes it after the first one has finished all that the region reads. */
    if (is_read_inside(region, gradient))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: its gradient %s is summed after all rows, so operations on the rows cannot read it",
             descriptor_label(node->op), descriptor_label(&gradient->base));
    /* Values produced within the region may have no memory at all. */
    if (kind == FOLLOW_APART && (region_producer(region, op->x) || region_producer(region, op->dy)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: its scale's gradient is summed in a separate pass, which needs x and dy in memory",
             descriptor_label(node->op));
    if (*is_first)
        follow->at_scale = follow->at_bias = follow->at_mean = follow->at_inv = -1;
    follow->node = node;
    follow->kind = kind;
    *(gradient == op->dscale ? &follow->scale : &follow->bias) = gradient;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t follow_add_column(struct follow *follow, const struct tensor *tensor, int term, weftDataType_t math) {
    bool is_mixed = follow->column_count > 0 && follow->math != math;
    if ((follow->kind != FOLLOW_NOTHING && follow->kind != FOLLOW_COLUMNS) || is_mixed ||
        follow->column_count == COLUMN_SUMS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: at most %d column sums are computed together, all of one type, and not with a norm whose gradients "
             "need a separate pass",
             descriptor_label(&tensor->base), COLUMN_SUMS_MAX);
    follow->kind = FOLLOW_COLUMNS;
    follow->math = math;
    follow->columns[follow->column_count++] = (struct column_sum){tensor, term, -1};
    return WEFT_STATUS_SUCCESS;
}

/* The partial sums form one more axis, the slowest; the elements of the result are the rows. Strides describe what the
   first program stored: [partial_sums, element], packed. */
static weftStatus_t columns_space(const struct follow *follow, const struct row_space *first, struct row_space *space,
                                  int64_t *strides) {
    int64_t packed = 1;
    space->axes[space->axis_count++] = (struct row_axis){DIM_OF_PARTIAL_SUMS, follow->partial_sums, 0, true, false};
    for (int i = 0; i < first->axis_count; i++)
        if (row_space_has_axis(first, follow->columns[0].tensor, i)) {
            if (space->axis_count == WEFT_DIM_MAX)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "rows of %d dims are too many to sum", WEFT_DIM_MAX);
            space->axes[space->axis_count] = first->axes[i];
            space->axes[space->axis_count++].is_reduced = false;
        }
    for (int i = space->axis_count; i-- > 0; packed *= space->axes[i].extent)
        strides[i] = packed;
    return WEFT_STATUS_SUCCESS;
}

/* Row totals become the elements, and those that share a scale become the rows. */
static void fold_space(const struct tensor *gradient, const struct row_space *first, struct row_space *space,
                       int64_t *strides) {
    /* `all`: strides of the row totals, as packed by the first program. */
    int64_t all[WEFT_DIM_MAX];
    row_space_pack(first, all, false);
    for (int i = 0; i < first->axis_count; i++)
        if (!first->axes[i].is_reduced) {
            strides[space->axis_count] = all[i];
            space->axes[space->axis_count] = first->axes[i];
            space->axes[space->axis_count++].is_reduced = !row_space_has_axis(first, gradient, i);
        }
}

/* The same elements, regrouped so that those that share a scale form a row; each original row left its statistics.
   Strides are those of the statistics, 0 within a row, so that each element reads those of its own row. */
static void apart_space(const struct tensor *gradient, const struct row_space *first, struct row_space *space,
                        int64_t *strides) {
    row_space_pack(first, strides, false);
    for (int i = 0; i < first->axis_count; i++) {
        space->axes[space->axis_count] = first->axes[i];
        space->axes[space->axis_count++].is_reduced = !row_space_has_axis(first, gradient, i);
    }
}

weftStatus_t follow_space(const struct follow *follow, const struct row_space *first, struct row_space *space,
                          int64_t *strides) {
    const struct tensor *gradient = follow->scale ? follow->scale : follow->bias; /* both have the same layout */
    *space = *first;
    space->axis_count = 0;
    memset(strides, 0, WEFT_DIM_MAX * sizeof *strides);
    if (follow->kind == FOLLOW_COLUMNS)
        return columns_space(follow, first, space, strides);
    (follow->kind == FOLLOW_FOLD ? fold_space : apart_space)(gradient, first, space, strides);
    return WEFT_STATUS_SUCCESS;
}
