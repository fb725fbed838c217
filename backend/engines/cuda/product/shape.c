/* SPDX-License-Identifier: Apache-2.0 */
/* From an operation to modes: the modes of each of the four indices and their strides in A, B and the result.
     matmul    rows m, columns n, k k; batch entries that share B count as rows, those that share A as columns
     forward   rows (image, position), columns filters, k (taps, channels): A is x, B is w
     data      rows (image, position), columns channels, k (taps, filters): A is dy, B is w
     filter    rows filters, columns (taps, channels), k (image, position): A is dy, B is x
   This file must not know about tiles, types or text. */
#include "base/number.h"
#include "engines/cuda/product/contraction.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"

#include <string.h>

static const int64_t COORDINATE_MAX = INT64_C(1) << 30; /* so that the sum of two fits in 32 bits */

int64_t modes_extent(const struct modes *modes) {
    int64_t extent = 1;
    for (int i = 0; i < modes->count; i++)
        extent *= modes->at[i].extent;
    return extent;
}

/* Adds a mode unless its extent is 1. A phase mode is always added because the kernel reads the phase's taps from
   it. */
static void add_mode(struct contraction *c, enum index index, struct mode mode) {
    if (mode.extent != 1 || mode.phase != NO_PHASE)
        c->modes[index].at[c->modes[index].count++] = mode;
}

/* A mode of k, which the result does not have. */
static struct mode plain_mode(int64_t extent, int64_t a, int64_t b) {
    return (struct mode){.extent = extent, .stride = {a, b}, .dim = NO_DIM, .phase = NO_PHASE};
}

/* A mode that counts dimension `dim` of the result in increments of dim_step. */
static struct mode result_mode(int64_t extent, int64_t a, int64_t b, int dim, int64_t dim_step) {
    struct mode mode = plain_mode(extent, a, b);
    mode.dim = dim;
    mode.dim_step = dim_step;
    return mode;
}

/* Sorts by decreasing distance in memory, with distances of 0 first. A mode of distance 0 broadcasts: its position
   changes no address, and in front it interrupts no contiguous run. Insertion sort, because it is stable and there are
   at most MODES_MAX modes. */
static void sort_modes(struct modes *modes, int64_t (*distance)(const void *context, const struct mode *mode),
                       const void *context) {
    for (int i = 1; i < modes->count; i++)
        for (int at = i; at > 0; at--) {
            int64_t left = distance(context, &modes->at[at - 1]), right = distance(context, &modes->at[at]);
            if (left == 0 || (right != 0 && left >= right))
                break;
            struct mode moved = modes->at[at];
            modes->at[at] = modes->at[at - 1];
            modes->at[at - 1] = moved;
        }
}

static int64_t magnitude(int64_t number) { return number < 0 ? -number : number; }

/* Returns the absolute distance between consecutive elements of a mode. */
static int64_t distance_in_a(const void *context, const struct mode *mode) {
    (void)context;
    return magnitude(mode->stride[OPERAND_A]);
}

static int64_t distance_in_b(const void *context, const struct mode *mode) {
    (void)context;
    return magnitude(mode->stride[OPERAND_B]);
}

static int64_t distance_in_result(const void *context, const struct mode *mode) {
    const struct tensor *result = context;
    return result->strides.at[mode->dim] * mode->dim_step;
}

/* ---- Matmul ------------------------------------------------------------------------------------------------------ */

/* Adds one batch dimension of C as two modes: the outer one has the smaller extent of A and B, the inner one counts the
   entries that share an element. A mode that only one operand has becomes rows or columns, which gives one large
   product instead of many that read the same operand. */
static void add_batch(struct contraction *c, const struct matmul_op *op, int dim) {
    /* Both extents divide `extent`; the rules of matmul guarantee it. */
    int64_t extent = op->c->dims.at[dim], extents[] = {op->a->dims.at[dim], op->b->dims.at[dim]};
    int64_t strides[] = {op->a->strides.at[dim], op->b->strides.at[dim]};
    int64_t least = extents[0] < extents[1] ? extents[0] : extents[1], shared = least ? extent / least : 1;
    struct mode outer = result_mode(least, 0, 0, dim, shared), inner = result_mode(shared, 0, 0, dim, 1);
    for (int f = 0; f < OPERANDS; f++) {
        bool is_whole = extents[f] == extent;
        outer.stride[f] = least > 1 ? strides[f] * (is_whole ? shared : 1) : 0;
        inner.stride[f] = is_whole ? strides[f] : 0;
    }
    bool has_overrides = contraction_has_overrides(c);
    const struct mode both[] = {outer, inner};
    for (int i = 0; i < 2; i++) {
        bool in_a = both[i].stride[OPERAND_A] != 0, in_b = both[i].stride[OPERAND_B] != 0;
        add_mode(c, has_overrides || in_a == in_b ? BATCH : in_a ? ROW : COLUMN, both[i]);
    }
}

/* With overrides, all batch dimensions stay in the batch, because each entry has its own sizes. Rows are m of C,
   columns n. */
static void shape_matmul(struct contraction *c, const struct matmul_op *op) {
    int row = (int)op->c->dims.count - 2, column = row + 1;
    const struct tensor *a = op->a, *b = op->b;
    c->fill = op->parameters->padding;
    c->used[0] = op->m_override;
    c->used[1] = op->n_override;
    c->used[2] = op->k_override;
    for (int i = 0; i < row; i++)
        add_batch(c, op, i);
    add_mode(c, ROW, result_mode(a->dims.at[row], a->strides.at[row], 0, row, 1));
    add_mode(c, COLUMN, result_mode(b->dims.at[column], 0, b->strides.at[column], column, 1));
    add_mode(c, K, plain_mode(a->dims.at[column], a->strides.at[column], b->strides.at[row]));
}

/* ---- Convolution ------------------------------------------------------------------------------------------------- */

/* The channel dimension of a tensor; the group dimension precedes it or is part of it. It is counted from the end,
   because the number of spatial dimensions varies and they come last. */
static int channel_dim(const struct conv_geometry *g, const struct tensor *tensor) {
    return (int)tensor->dims.count - g->spatial - 1;
}

/* Groups are the first mode of the batch: each group is a product of its own channels and filters. `channels`: channels
   per group of the result, if groups and channels share a dimension. */
static void add_groups(struct contraction *c, const struct conv_geometry *g, const struct conv_operand *result,
                       const struct conv_operand *a, const struct conv_operand *b, int64_t channels) {
    bool is_filter = result == &g->w;
    bool has_dim = channel_dim(g, result->tensor) == 2;
    int dim = is_filter ? 0 : 1;
    add_mode(c, BATCH, result_mode(g->groups, a->group_stride, b->group_stride, dim, has_dim ? 1 : channels));
}

/* The dimension of the result for spatial dimension i of three; NO_DIM for the leading ones that the tensor does not
   have. */
static int spatial_dim(const struct conv_geometry *g, const struct tensor *tensor, int i) {
    return i < 3 - g->spatial ? NO_DIM : (int)tensor->dims.count - 3 + i;
}

/* Position p at tap t reads pixel p * stride + t * dilation - pre; coordinates outside the image are padding. A is x, B
   is w. A flipped filter starts at its last tap and steps backwards. */
static void shape_forward(struct contraction *c, const struct conv_geometry *g) {
    const struct conv_operand *x = &g->x, *w = &g->w, *y = &g->y;
    add_groups(c, g, y, x, w, g->k);
    add_mode(c, ROW, result_mode(g->n, x->outer_stride, 0, 0, 1));
    for (int i = 0; i < 3; i++) {
        struct mode position =
            result_mode(y->size[i], g->stride[i] * x->size_stride[i], 0, spatial_dim(g, y->tensor, i), 1);
        struct mode tap = plain_mode(w->size[i], g->dilation[i] * x->size_stride[i],
                                     g->flip ? -w->size_stride[i] : w->size_stride[i]);
        position.step[OPERAND_A][i] = g->stride[i];
        tap.step[OPERAND_A][i] = g->dilation[i];
        c->operand[OPERAND_A].start[i] = -g->pre[i];
        c->operand[OPERAND_A].size[i] = x->size[i];
        c->operand[OPERAND_A].first -= g->pre[i] * x->size_stride[i];
        c->operand[OPERAND_B].first += g->flip ? (w->size[i] - 1) * w->size_stride[i] : 0;
        add_mode(c, ROW, position);
        add_mode(c, K, tap);
    }
    add_mode(c, K, plain_mode(g->c, x->channel_stride, w->channel_stride));
    add_mode(c, COLUMN, result_mode(g->k, 0, w->outer_stride, channel_dim(g, y->tensor), 1));
}

/* Adds one spatial dimension of a strided data gradient: a mode for the phase, one for the position within it, and one
   for the taps that the phase sees. With stride s and dilation d, x + pre - t * d is a multiple of s for at most every
   (s / gcd(d, s))-th tap: tap_step. From one such tap to the next, dy advances by `moves` = d / gcd(d, s) positions. A
   dimension shorter than the stride has only as many phases as elements. */
static void add_phase(struct contraction *c, const struct conv_geometry *g, int i) {
    const struct conv_operand *x = &g->x, *w = &g->w, *y = &g->y;
    int64_t stride = g->stride[i], common = gcd64(g->dilation[i], stride), tap_step = stride / common;
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
    struct mode phase_mode = result_mode(phases, 0, 0, dim, 1);
    struct mode position = result_mode(divide_up(x->size[i], stride), y->size_stride[i], 0, dim, stride);
    struct mode tap = plain_mode(divide_up(w->size[i], tap_step), -moves * y->size_stride[i], tap_step * tap_stride);
    phase_mode.phase = tap.phase = c->phase_count;
    position.step[OPERAND_A][i] = 1;
    tap.step[OPERAND_A][i] = -moves;
    c->phases[c->phase_count++] = phase;
    add_mode(c, BATCH, phase_mode);
    add_mode(c, ROW, position);
    add_mode(c, K, tap);
}

/* Element x of the gradient sees position (x + pre - t * dilation) / stride of dy if that is an integer; each remainder
   is a phase. A is dy, B is w. With stride 1, all taps see all positions. */
static void shape_data(struct contraction *c, const struct conv_geometry *g) {
    const struct conv_operand *x = &g->x, *w = &g->w, *y = &g->y;
    add_groups(c, g, x, y, w, g->c);
    add_mode(c, ROW, result_mode(g->n, y->outer_stride, 0, 0, 1));
    for (int i = 0; i < 3; i++) {
        int64_t tap_stride = g->flip ? -w->size_stride[i] : w->size_stride[i];
        c->operand[OPERAND_A].size[i] = y->size[i];
        c->operand[OPERAND_B].first += g->flip ? (w->size[i] - 1) * w->size_stride[i] : 0;
        if (g->stride[i] > 1) {
            add_phase(c, g, i);
            continue;
        }
        struct mode position = result_mode(x->size[i], y->size_stride[i], 0, spatial_dim(g, x->tensor, i), 1);
        struct mode tap = plain_mode(w->size[i], -g->dilation[i] * y->size_stride[i], tap_stride);
        position.step[OPERAND_A][i] = 1;
        tap.step[OPERAND_A][i] = -g->dilation[i];
        c->operand[OPERAND_A].start[i] = g->pre[i];
        c->operand[OPERAND_A].first += g->pre[i] * y->size_stride[i];
        add_mode(c, ROW, position);
        add_mode(c, K, tap);
    }
    add_mode(c, K, plain_mode(g->k, y->channel_stride, w->outer_stride));
    add_mode(c, COLUMN, result_mode(g->c, 0, w->channel_stride, channel_dim(g, x->tensor), 1));
}

/* The result counts taps and channels; images and positions are summed. A is dy, B is x. The taps of a flipped filter
   start at the last one. */
static void shape_filter(struct contraction *c, const struct conv_geometry *g) {
    const struct conv_operand *x = &g->x, *w = &g->w, *y = &g->y;
    bool has_dim = channel_dim(g, w->tensor) == 2;
    add_groups(c, g, w, y, x, g->k);
    add_mode(c, ROW, result_mode(g->k, y->channel_stride, 0, has_dim ? 1 : 0, 1));
    add_mode(c, K, plain_mode(g->n, y->outer_stride, x->outer_stride));
    for (int i = 0; i < 3; i++) {
        int64_t tap_step = g->flip ? -g->dilation[i] : g->dilation[i];
        int64_t start = (g->flip ? (w->size[i] - 1) * g->dilation[i] : 0) - g->pre[i];
        struct mode position = plain_mode(y->size[i], y->size_stride[i], g->stride[i] * x->size_stride[i]);
        struct mode tap = result_mode(w->size[i], 0, tap_step * x->size_stride[i], spatial_dim(g, w->tensor, i), 1);
        position.step[OPERAND_B][i] = g->stride[i];
        tap.step[OPERAND_B][i] = tap_step;
        c->operand[OPERAND_B].start[i] = start;
        c->operand[OPERAND_B].size[i] = x->size[i];
        c->operand[OPERAND_B].first += start * x->size_stride[i];
        add_mode(c, K, position);
        add_mode(c, COLUMN, tap);
    }
    add_mode(c, COLUMN, result_mode(g->c, 0, x->channel_stride, channel_dim(g, w->tensor), 1));
    sort_modes(&c->modes[COLUMN], distance_in_result, w->tensor);
}

/* True if elements are contiguous along one of the modes, so that vector loads are possible. */
static bool has_unit_stride(const struct modes *modes, int operand) {
    for (int i = 0; i < modes->count; i++)
        if (modes->at[i].stride[operand] == 1)
            return true;
    return false;
}

static void shape_convolution(struct contraction *c, const struct node *node) {
    struct conv_geometry g = conv_geometry(node->op);
    c->alpha = g.alpha;
    c->beta = g.beta;
    c->operand[OPERAND_A].tensor = g.direction == CONV_FORWARD ? g.x.tensor : g.y.tensor;
    c->operand[OPERAND_B].tensor = g.direction == CONV_FILTER ? g.x.tensor : g.w.tensor;
    if (g.direction == CONV_FILTER) {
        shape_filter(c, &g);
        return;
    }
    if (g.direction == CONV_FORWARD)
        shape_forward(c, &g);
    else
        shape_data(c, &g);
    /* Elements that are adjacent in memory should be adjacent in k. Operand A decides if it has such elements,
       otherwise B. */
    sort_modes(&c->modes[K], has_unit_stride(&c->modes[K], OPERAND_A) ? distance_in_a : distance_in_b, NULL);
}

/* ---- Padding ----------------------------------------------------------------------------------------------------- */

/* The smallest and the largest value of a coordinate. A coordinate is a sum with one term per mode, so each mode adds
   its minimum or its maximum. */
static void coordinate_range(const struct contraction *c, int operand, int i, int64_t *least, int64_t *most) {
    *least = *most = c->operand[operand].start[i];
    for (int index = 0; index < INDICES; index++)
        for (int d = 0; d < c->modes[index].count; d++) {
            const struct mode *mode = &c->modes[index].at[d];
            int64_t reach = mode->step[operand][i] * (mode->extent > 0 ? mode->extent - 1 : 0);
            *(reach < 0 ? least : most) += reach;
        }
}

/* True if the coordinate belongs to a phase. Its taps start anywhere, so it may leave the image for any range. */
static bool is_phased(const struct contraction *c, int i) {
    for (int p = 0; p < c->phase_count; p++)
        if (c->phases[p].coordinate == i)
            return true;
    return false;
}

/* Coordinates in kernels have 32 bits, and so have the sums in first_tap(). */
static weftStatus_t check_phases(const struct contraction *c) {
    for (int p = 0; p < c->phase_count; p++) {
        const struct phase *phase = &c->phases[p];
        /* In double, because the sum itself may exceed 64 bits. */
        double reach =
            (double)phase->stride + (double)magnitude(phase->pre) + (double)phase->taps * (double)phase->dilation;
        if (reach > (double)COORDINATE_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: stride, padding and filter span %g elements along one dimension; kernels support up to 2^30.",
                 descriptor_label(c->node->op), reach);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Determines which coordinates can leave the image. The steps of the others are set to 0, so that the generated code
   does not compute them, and modes that differed only in such a coordinate can merge and vectorise. Operands that are
   not images have size 0. */
static weftStatus_t find_checks(struct contraction *c) {
    TRY(check_phases(c));
    for (int f = 0; f < OPERANDS; f++)
        for (int i = 0; i < COORDINATES; i++) {
            struct product_operand *operand = &c->operand[f];
            int64_t least, most;
            coordinate_range(c, f, i, &least, &most);
            if (least < -COORDINATE_MAX || most > COORDINATE_MAX || operand->size[i] > COORDINATE_MAX)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                     "%s: positions in %s range from %lld to %lld along one dimension; kernels support up to 2^30.",
                     descriptor_label(c->node->op), descriptor_label(&operand->tensor->base), (long long)least,
                     (long long)most);
            bool has_image = operand->size[i] > 0 || least != 0 || most != 0;
            operand->is_checked[i] =
                (f == OPERAND_A && is_phased(c, i)) || (has_image && (least < 0 || most >= operand->size[i]));
            for (int index = 0; index < INDICES && !operand->is_checked[i]; index++)
                for (int d = 0; d < c->modes[index].count; d++)
                    c->modes[index].at[d].step[f][i] = 0;
        }
    return WEFT_STATUS_SUCCESS;
}

/* ---- All operations ---------------------------------------------------------------------------------------------- */

weftStatus_t contraction_shape(struct contraction *c, const struct node *node) {
    const struct graph *graph = c->region->graph;
    c->node = node;
    c->result = node_result(node);
    c->alpha = 1;
    if (op_of(node->op) == &matmul_op) {
        const struct matmul_op *op = (const struct matmul_op *)node->op;
        c->operand[OPERAND_A].tensor = op->a;
        c->operand[OPERAND_B].tensor = op->b;
        shape_matmul(c, op);
    } else {
        shape_convolution(c, node);
    }
    for (int f = 0; f < OPERANDS; f++)
        c->operand[f].value = graph_find_value(graph, c->operand[f].tensor);
    c->k_count = (double)modes_extent(&c->modes[K]);
    return find_checks(c);
}

/* C^T = B^T A^T. The modes of batch and K stay; only their strides of A and B are swapped. */
void contraction_swap(struct contraction *c) {
    struct product_operand operand = c->operand[OPERAND_A];
    struct modes rows = c->modes[ROW];
    const struct tensor *rows_used = c->used[0];
    c->used[0] = c->used[1];
    c->used[1] = rows_used;
    c->operand[OPERAND_A] = c->operand[OPERAND_B];
    c->operand[OPERAND_B] = operand;
    c->modes[ROW] = c->modes[COLUMN];
    c->modes[COLUMN] = rows;
    for (int index = 0; index < INDICES; index++)
        for (int d = 0; d < c->modes[index].count; d++) {
            struct mode *mode = &c->modes[index].at[d], old = *mode;
            for (int f = 0; f < OPERANDS; f++) {
                mode->stride[f] = old.stride[1 - f];
                memcpy(mode->step[f], old.step[1 - f], sizeof mode->step[f]);
            }
        }
}

/* True if two modes can be merged: both operands and all coordinates traverse them like one mode. The extent stays
   below 2^31, so that one 32-bit division splits the index again. Phases are never merged, because their extents are
   not constant. */
static bool modes_join(const struct mode *outer, const struct mode *inner) {
    bool joins = outer->phase == NO_PHASE && inner->phase == NO_PHASE && outer->extent * inner->extent < INT32_MAX;
    for (int f = 0; f < OPERANDS; f++) {
        joins = joins && outer->stride[f] == inner->stride[f] * inner->extent;
        for (int i = 0; i < COORDINATES; i++)
            joins = joins && outer->step[f][i] == inner->step[f][i] * inner->extent;
    }
    return joins;
}

/* Starts at the fastest pair, so that one pass merges a chain of modes. */
void modes_merge(struct modes *modes) {
    for (int i = modes->count - 1; i-- > 0;)
        if (modes_join(&modes->at[i], &modes->at[i + 1])) {
            modes->at[i + 1].extent *= modes->at[i].extent;
            modes->count--;
            memmove(&modes->at[i], &modes->at[i + 1], (size_t)(modes->count - i) * sizeof *modes->at);
        }
}

/* A filter gradient reads x far more often than it writes w, so x determines the order there. The direct kernel has one
   thread per run along the last mode. */
void contraction_flatten(struct contraction *c) {
    struct modes *batch = &c->modes[BATCH];
    for (int index = ROW; index <= COLUMN; index++) {
        for (int i = 0; i < c->modes[index].count; i++)
            batch->at[batch->count++] = c->modes[index].at[i];
        c->modes[index].count = 0;
    }
    bool is_filter = op_of(c->node->op) == &conv_wgrad_op;
    if (is_filter)
        sort_modes(batch, distance_in_b, NULL);
    else
        sort_modes(batch, distance_in_result, c->region->graph->values[c->result].tensor);
}

int64_t contraction_elements(const struct contraction *c) {
    return modes_extent(&c->modes[BATCH]) * modes_extent(&c->modes[ROW]) * modes_extent(&c->modes[COLUMN]);
}
