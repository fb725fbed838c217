/* SPDX-License-Identifier: Apache-2.0 */
/* From an operation to digits: which numbers the four indices are made of, and where each digit leads in A, B and the
   result.
     matmul    rows m, columns n, depth k; batch entries that share B count as rows, those that share A as columns
     forward   rows (image, position), columns filters, depth (taps, channels): A is x, B is w
     data      rows (image, position), columns channels, depth (taps, filters): A is dy, B is w
     filter    rows filters, columns (taps, channels), depth (image, position): A is dy, B is x
   It must not know tiles, types or text. */
#include "base/number.h"
#include "engines/cuda/product/contraction.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"

#include <string.h>

static const int64_t COORDINATE_MAX = INT64_C(1) << 30; /* sums of two stay in 32 bits */

int64_t digits_extent(const struct digits *digits) {
    int64_t extent = 1;
    for (int i = 0; i < digits->count; i++)
        extent *= digits->at[i].extent;
    return extent;
}

/* Adds a digit unless it stands still. */
static void add_digit(struct contraction *c, enum index index, struct digit digit) {
    if (digit.extent != 1 || digit.phase != NO_PHASE)
        c->digits[index].at[c->digits[index].count++] = digit;
}

static struct digit plain_digit(int64_t extent, int64_t a, int64_t b) {
    return (struct digit){.extent = extent, .stride = {a, b}, .dim = NO_DIM, .phase = NO_PHASE};
}

static struct digit result_digit(int64_t extent, int64_t a, int64_t b, int dim, int64_t dim_step) {
    struct digit digit = plain_digit(extent, a, b);
    digit.dim = dim;
    digit.dim_step = dim_step;
    return digit;
}

/* Sorts by falling distance in memory; digits that stay in place come first. */
static void sort_digits(struct digits *digits, int64_t (*distance)(const void *context, const struct digit *digit),
                        const void *context) {
    for (int i = 1; i < digits->count; i++)
        for (int at = i; at > 0; at--) {
            int64_t left = distance(context, &digits->at[at - 1]), right = distance(context, &digits->at[at]);
            if (left == 0 || (right != 0 && left >= right))
                break;
            struct digit moved = digits->at[at];
            digits->at[at] = digits->at[at - 1];
            digits->at[at - 1] = moved;
        }
}

static int64_t size_of(int64_t number) { return number < 0 ? -number : number; }

static int64_t distance_in_a(const void *context, const struct digit *digit) {
    (void)context;
    return size_of(digit->stride[FACTOR_A]);
}

static int64_t distance_in_b(const void *context, const struct digit *digit) {
    (void)context;
    return size_of(digit->stride[FACTOR_B]);
}

static int64_t distance_in_result(const void *context, const struct digit *digit) {
    const struct tensor *result = context;
    return result->strides.at[digit->dim] * digit->dim_step;
}

/* ---- Matmul ------------------------------------------------------------------------------------------------------ */

/* One batch dimension of C: the smaller extent of A's and B's outside, what shares its entries inside. */
static void add_batch(struct contraction *c, const struct matmul_op *op, int dim) {
    int64_t whole = op->c->dims.at[dim], extents[] = {op->a->dims.at[dim], op->b->dims.at[dim]};
    int64_t strides[] = {op->a->strides.at[dim], op->b->strides.at[dim]};
    int64_t least = extents[0] < extents[1] ? extents[0] : extents[1], shared = least ? whole / least : 1;
    struct digit outer = result_digit(least, 0, 0, dim, shared), inner = result_digit(shared, 0, 0, dim, 1);
    for (int f = 0; f < FACTORS; f++) {
        bool is_whole = extents[f] == whole;
        outer.stride[f] = least > 1 ? strides[f] * (is_whole ? shared : 1) : 0;
        inner.stride[f] = is_whole ? strides[f] : 0;
    }
    bool has_overrides = contraction_has_overrides(c);
    const struct digit both[] = {outer, inner};
    for (int i = 0; i < 2; i++) {
        bool in_a = both[i].stride[FACTOR_A] != 0, in_b = both[i].stride[FACTOR_B] != 0;
        add_digit(c, has_overrides || in_a == in_b ? BATCH : in_a ? ROW : COLUMN, both[i]);
    }
}

static void shape_matmul(struct contraction *c, const struct matmul_op *op) {
    int row = (int)op->c->dims.count - 2, column = row + 1;
    const struct tensor *a = op->a, *b = op->b;
    c->fill = op->parameters->padding;
    c->used[0] = op->m_override;
    c->used[1] = op->n_override;
    c->used[2] = op->k_override;
    for (int i = 0; i < row; i++)
        add_batch(c, op, i);
    add_digit(c, ROW, result_digit(a->dims.at[row], a->strides.at[row], 0, row, 1));
    add_digit(c, COLUMN, result_digit(b->dims.at[column], 0, b->strides.at[column], column, 1));
    add_digit(c, DEPTH, plain_digit(a->dims.at[column], a->strides.at[column], b->strides.at[row]));
}

/* ---- Convolution ------------------------------------------------------------------------------------------------- */

/* The dimension of channels of a tensor; one of groups stands before it or is part of it. */
static int channel_dim(const struct conv_geometry *g, const struct tensor *tensor) {
    return (int)tensor->dims.count - g->spatial - 1;
}

static void add_groups(struct contraction *c, const struct conv_geometry *g, const struct conv_operand *result,
                       const struct conv_operand *a, const struct conv_operand *b, int64_t channels) {
    bool is_filter = result == &g->w;
    bool has_dim = channel_dim(g, result->tensor) == 2;
    int dim = is_filter ? 0 : 1;
    add_digit(c, BATCH, result_digit(g->groups, a->group_stride, b->group_stride, dim, has_dim ? 1 : channels));
}

/* The dimension of the result that spatial dimension i (of three) counts; -1 for one that stands in front. */
static int spatial_dim(const struct conv_geometry *g, const struct tensor *tensor, int i) {
    return i < 3 - g->spatial ? NO_DIM : (int)tensor->dims.count - 3 + i;
}

static void shape_forward(struct contraction *c, const struct conv_geometry *g) {
    const struct conv_operand *x = &g->x, *w = &g->w, *y = &g->y;
    add_groups(c, g, y, x, w, g->k);
    add_digit(c, ROW, result_digit(g->n, x->outer_stride, 0, 0, 1));
    for (int i = 0; i < 3; i++) {
        struct digit position =
            result_digit(y->size[i], g->stride[i] * x->size_stride[i], 0, spatial_dim(g, y->tensor, i), 1);
        struct digit tap = plain_digit(w->size[i], g->dilation[i] * x->size_stride[i],
                                       g->flip ? -w->size_stride[i] : w->size_stride[i]);
        position.step[FACTOR_A][i] = g->stride[i];
        tap.step[FACTOR_A][i] = g->dilation[i];
        c->factor[FACTOR_A].start[i] = -g->pre[i];
        c->factor[FACTOR_A].size[i] = x->size[i];
        c->factor[FACTOR_A].first -= g->pre[i] * x->size_stride[i];
        c->factor[FACTOR_B].first += g->flip ? (w->size[i] - 1) * w->size_stride[i] : 0;
        add_digit(c, ROW, position);
        add_digit(c, DEPTH, tap);
    }
    add_digit(c, DEPTH, plain_digit(g->c, x->channel_stride, w->channel_stride));
    add_digit(c, COLUMN, result_digit(g->k, 0, w->outer_stride, channel_dim(g, y->tensor), 1));
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* One spatial dimension of the data gradient with a stride: a digit for the phase, one for the position within it, and
   one for the taps that the phase sees. */
static void add_phase(struct contraction *c, const struct conv_geometry *g, int i) {
    const struct conv_operand *x = &g->x, *w = &g->w, *y = &g->y;
    int64_t stride = g->stride[i], common = common_divisor(g->dilation[i], stride), tap_step = stride / common;
    int64_t tap_stride = g->flip ? -w->size_stride[i] : w->size_stride[i], moves = tap_step * g->dilation[i] / stride;
    struct phase phase = {.coordinate = i,
                          .taps = w->size[i],
                          .tap_step = tap_step,
                          .stride = stride,
                          .dilation = g->dilation[i],
                          .pre = g->pre[i],
                          .a_stride = y->size_stride[i],
                          .b_stride = tap_stride};
    int dim = spatial_dim(g, x->tensor, i);
    int64_t phases = stride < x->size[i] ? stride : x->size[i] > 0 ? x->size[i] : 1;
    struct digit which = result_digit(phases, 0, 0, dim, 1);
    struct digit position = result_digit(divide_up(x->size[i], stride), y->size_stride[i], 0, dim, stride);
    struct digit tap = plain_digit(divide_up(w->size[i], tap_step), -moves * y->size_stride[i], tap_step * tap_stride);
    which.phase = tap.phase = c->phase_count;
    position.step[FACTOR_A][i] = 1;
    tap.step[FACTOR_A][i] = -moves;
    c->phases[c->phase_count++] = phase;
    add_digit(c, BATCH, which);
    add_digit(c, ROW, position);
    add_digit(c, DEPTH, tap);
}

static void shape_data(struct contraction *c, const struct conv_geometry *g) {
    const struct conv_operand *x = &g->x, *w = &g->w, *y = &g->y;
    add_groups(c, g, x, y, w, g->c);
    add_digit(c, ROW, result_digit(g->n, y->outer_stride, 0, 0, 1));
    for (int i = 0; i < 3; i++) {
        int64_t tap_stride = g->flip ? -w->size_stride[i] : w->size_stride[i];
        c->factor[FACTOR_A].size[i] = y->size[i];
        c->factor[FACTOR_B].first += g->flip ? (w->size[i] - 1) * w->size_stride[i] : 0;
        if (g->stride[i] > 1) {
            add_phase(c, g, i);
            continue;
        }
        struct digit position = result_digit(x->size[i], y->size_stride[i], 0, spatial_dim(g, x->tensor, i), 1);
        struct digit tap = plain_digit(w->size[i], -g->dilation[i] * y->size_stride[i], tap_stride);
        position.step[FACTOR_A][i] = 1;
        tap.step[FACTOR_A][i] = -g->dilation[i];
        c->factor[FACTOR_A].start[i] = g->pre[i];
        c->factor[FACTOR_A].first += g->pre[i] * y->size_stride[i];
        add_digit(c, ROW, position);
        add_digit(c, DEPTH, tap);
    }
    add_digit(c, DEPTH, plain_digit(g->k, y->channel_stride, w->outer_stride));
    add_digit(c, COLUMN, result_digit(g->c, 0, w->channel_stride, channel_dim(g, x->tensor), 1));
}

static void shape_filter(struct contraction *c, const struct conv_geometry *g) {
    const struct conv_operand *x = &g->x, *w = &g->w, *y = &g->y;
    bool has_dim = channel_dim(g, w->tensor) == 2;
    add_groups(c, g, w, y, x, g->k);
    add_digit(c, ROW, result_digit(g->k, y->channel_stride, 0, has_dim ? 1 : 0, 1));
    add_digit(c, DEPTH, plain_digit(g->n, y->outer_stride, x->outer_stride));
    for (int i = 0; i < 3; i++) {
        int64_t tap_step = g->flip ? -g->dilation[i] : g->dilation[i];
        int64_t start = (g->flip ? (w->size[i] - 1) * g->dilation[i] : 0) - g->pre[i];
        struct digit position = plain_digit(y->size[i], y->size_stride[i], g->stride[i] * x->size_stride[i]);
        struct digit tap = result_digit(w->size[i], 0, tap_step * x->size_stride[i], spatial_dim(g, w->tensor, i), 1);
        position.step[FACTOR_B][i] = g->stride[i];
        tap.step[FACTOR_B][i] = tap_step;
        c->factor[FACTOR_B].start[i] = start;
        c->factor[FACTOR_B].size[i] = x->size[i];
        c->factor[FACTOR_B].first += start * x->size_stride[i];
        add_digit(c, DEPTH, position);
        add_digit(c, COLUMN, tap);
    }
    add_digit(c, COLUMN, result_digit(g->c, 0, x->channel_stride, channel_dim(g, w->tensor), 1));
    sort_digits(&c->digits[COLUMN], distance_in_result, w->tensor);
}

static bool has_unit_stride(const struct digits *digits, int factor) {
    for (int i = 0; i < digits->count; i++)
        if (digits->at[i].stride[factor] == 1)
            return true;
    return false;
}

static void shape_convolution(struct contraction *c, const struct node *node) {
    struct conv_geometry g = conv_geometry(node->op);
    c->alpha = g.alpha;
    c->beta = g.beta;
    c->factor[FACTOR_A].tensor = g.direction == CONV_FORWARD ? g.x.tensor : g.y.tensor;
    c->factor[FACTOR_B].tensor = g.direction == CONV_FILTER ? g.x.tensor : g.w.tensor;
    if (g.direction == CONV_FILTER) {
        shape_filter(c, &g);
        return;
    }
    if (g.direction == CONV_FORWARD)
        shape_forward(c, &g);
    else
        shape_data(c, &g);
    sort_digits(&c->digits[DEPTH], has_unit_stride(&c->digits[DEPTH], FACTOR_A) ? distance_in_a : distance_in_b, NULL);
}

/* ---- What is outside the image ----------------------------------------------------------------------------------- */

/* The least and the largest value of a coordinate. */
static void coordinate_range(const struct contraction *c, int factor, int i, int64_t *least, int64_t *most) {
    *least = *most = c->factor[factor].start[i];
    for (int index = 0; index < INDICES; index++)
        for (int d = 0; d < c->digits[index].count; d++) {
            const struct digit *digit = &c->digits[index].at[d];
            int64_t reach = digit->step[factor][i] * (digit->extent > 0 ? digit->extent - 1 : 0);
            *(reach < 0 ? least : most) += reach;
        }
}

static bool is_phased(const struct contraction *c, int i) {
    for (int p = 0; p < c->phase_count; p++)
        if (c->phases[p].coordinate == i)
            return true;
    return false;
}

static weftStatus_t check_phases(const struct contraction *c) {
    for (int p = 0; p < c->phase_count; p++) {
        const struct phase *phase = &c->phases[p];
        double reach =
            (double)phase->stride + (double)size_of(phase->pre) + (double)phase->taps * (double)phase->dilation;
        if (reach > (double)COORDINATE_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: stride, padding and filter reach %g elements along one dimension; kernels count to 2^30.",
                 descriptor_label(c->node->op), reach);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Finds which coordinates can leave the image, and forgets the others. */
static weftStatus_t find_checks(struct contraction *c) {
    TRY(check_phases(c));
    for (int f = 0; f < FACTORS; f++)
        for (int i = 0; i < COORDINATES; i++) {
            struct factor *factor = &c->factor[f];
            int64_t least, most;
            coordinate_range(c, f, i, &least, &most);
            if (least < -COORDINATE_MAX || most > COORDINATE_MAX || factor->size[i] > COORDINATE_MAX)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                     "%s: positions in %s reach from %lld to %lld along one dimension; kernels count to 2^30.",
                     descriptor_label(c->node->op), descriptor_label(&factor->tensor->base), (long long)least,
                     (long long)most);
            bool has_image = factor->size[i] > 0 || least != 0 || most != 0;
            factor->is_checked[i] =
                (f == FACTOR_A && is_phased(c, i)) || (has_image && (least < 0 || most >= factor->size[i]));
            for (int index = 0; index < INDICES && !factor->is_checked[i]; index++)
                for (int d = 0; d < c->digits[index].count; d++)
                    c->digits[index].at[d].step[f][i] = 0;
        }
    return WEFT_STATUS_SUCCESS;
}

/* ---- All operations ---------------------------------------------------------------------------------------------- */

static int result_of(const struct node *node) {
    int i = 0;
    while (!node->is_output[i])
        i++;
    return node->operands[i];
}

weftStatus_t contraction_shape(struct contraction *c, const struct node *node) {
    const struct graph *graph = c->region->graph;
    c->node = node;
    c->result = result_of(node);
    c->alpha = 1;
    if (op_of(node->op) == &matmul_op) {
        const struct matmul_op *op = (const struct matmul_op *)node->op;
        c->factor[FACTOR_A].tensor = op->a;
        c->factor[FACTOR_B].tensor = op->b;
        shape_matmul(c, op);
    } else {
        shape_convolution(c, node);
    }
    for (int f = 0; f < FACTORS; f++)
        c->factor[f].value = graph_find_value(graph, c->factor[f].tensor);
    c->depth = (double)digits_extent(&c->digits[DEPTH]);
    return find_checks(c);
}

void contraction_turn(struct contraction *c) {
    struct factor factor = c->factor[FACTOR_A];
    struct digits rows = c->digits[ROW];
    const struct tensor *rows_used = c->used[0];
    c->used[0] = c->used[1];
    c->used[1] = rows_used;
    c->factor[FACTOR_A] = c->factor[FACTOR_B];
    c->factor[FACTOR_B] = factor;
    c->digits[ROW] = c->digits[COLUMN];
    c->digits[COLUMN] = rows;
    for (int index = 0; index < INDICES; index++)
        for (int d = 0; d < c->digits[index].count; d++) {
            struct digit *digit = &c->digits[index].at[d], old = *digit;
            for (int f = 0; f < FACTORS; f++) {
                digit->stride[f] = old.stride[1 - f];
                memcpy(digit->step[f], old.step[1 - f], sizeof digit->step[f]);
            }
        }
}

static bool digits_join(const struct digit *outer, const struct digit *inner) {
    bool joins = outer->phase == NO_PHASE && inner->phase == NO_PHASE && outer->extent * inner->extent < INT32_MAX;
    for (int f = 0; f < FACTORS; f++) {
        joins = joins && outer->stride[f] == inner->stride[f] * inner->extent;
        for (int i = 0; i < COORDINATES; i++)
            joins = joins && outer->step[f][i] == inner->step[f][i] * inner->extent;
    }
    return joins;
}

void digits_merge(struct digits *digits) {
    for (int i = digits->count - 1; i-- > 0;)
        if (digits_join(&digits->at[i], &digits->at[i + 1])) {
            digits->at[i + 1].extent *= digits->at[i].extent;
            digits->count--;
            memmove(&digits->at[i], &digits->at[i + 1], (size_t)(digits->count - i) * sizeof *digits->at);
        }
}

void contraction_flatten(struct contraction *c) {
    struct digits *batch = &c->digits[BATCH];
    for (int index = ROW; index <= COLUMN; index++) {
        for (int i = 0; i < c->digits[index].count; i++)
            batch->at[batch->count++] = c->digits[index].at[i];
        c->digits[index].count = 0;
    }
    bool is_filter = op_of(c->node->op) == &conv_wgrad_op;
    if (is_filter)
        sort_digits(batch, distance_in_b, NULL);
    else
        sort_digits(batch, distance_in_result, c->region->graph->values[c->result].tensor);
}

int64_t contraction_elements(const struct contraction *c) {
    return digits_extent(&c->digits[BATCH]) * digits_extent(&c->digits[ROW]) * digits_extent(&c->digits[COLUMN]);
}
