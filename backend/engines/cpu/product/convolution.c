/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution and its gradients as products of packed matrices. With t a tap index (filter tap and channel):
     forward   y[position, k]  = sum over t of patches(x)[position, t] * w[t, k]
     data      dx[position, c] = sum over t of patches(dy)[position, t] * w[t, c], by the phases of the stride: elements
               of dx at a distance of `stride` see dy through the same taps, so each phase is a convolution of stride 1
     filter    dw[t, k]        = sum over positions of patches(x)[position, t] * dy[position, k]
   If positions rather than channels are contiguous, or there are few channels, the first two are computed transposed,
   image by image. */
#include "graph/ops/convolution.h"
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/product/contraction.h"

#include <string.h>

/* Thresholds below which the alternative is chosen. None depends on the number of threads. */
enum {
    FEW_POSITIONS = 128, /* per image: packing the filter for each image would cost too much */
    FEW_CHANNELS = 16,   /* half of a kernel's columns */
    FEW_GROUPS = 8,      /* too few for vectors over depthwise channels */
    MAX_PHASES = 4096,   /* phases of a data gradient's stride, each a separate product */
};

/* Costs in multiplications of a FLOAT kernel, measured on a Sapphire Rapids: of packing an element without conversion,
   in two steps, or without contiguous elements to copy together; and the overhead of each contiguous run. */
static const double PACK_COST = 16, STEPS_COST = 40, SCATTER_COST = 64, RUN_COST = 128, STEPS_RUN_COST = 256;

/* ---- Interface to the family ------------------------------------------------------------------------------------- */

/* One channel per group on both sides: a matrix product would have one column, and all others would be padding. */
static bool is_depthwise(const struct conv_geometry *g) { return g->c == 1 && g->k == 1 && g->groups >= FEW_GROUPS; }

/* Number of phases along each dimension: positions within a step of the stride, as far as x has them. */
static void count_phases(const struct conv_geometry *g, int64_t *phases) {
    for (int i = 0; i < 3; i++)
        phases[i] = g->stride[i] < g->x.size[i] ? g->stride[i] : g->x.size[i] > 0 ? g->x.size[i] : 1;
}

/* For the prediction, a data gradient's phases count as one product of all their positions. */
static struct product product(const struct node *node) {
    struct conv_geometry g = conv_geometry(node->op);
    const struct conv_op *op = (const struct conv_op *)node->op;
    /* The result: y, or dx for the data gradient. */
    const struct conv_operand *image = g.direction == CONV_DATA ? &g.x : &g.y;
    int64_t outputs = g.direction == CONV_DATA ? g.c : g.k, read = g.direction == CONV_DATA ? g.k : g.c;
    struct product product = {.a = g.direction == CONV_DATA ? g.y.tensor : g.x.tensor,
                              .b = g.direction == CONV_FILTER ? g.y.tensor : g.w.tensor,
                              .math = g.math,
                              .alpha = op->alpha,
                              .beta = op->beta,
                              .packing = read % FEW_CHANNELS == 0 ? PACK_COST : SCATTER_COST,
                              .reads_in_place = true};
    if (g.direction == CONV_FILTER) {
        product.depth = (double)g.n * (double)patches_count(g.y.size);
        product.rows = g.c * patches_count(g.w.size);
        product.columns = g.k;
    } else {
        product.depth = (double)read * (double)patches_count(g.w.size);
        product.rows = outputs < FEW_CHANNELS ? outputs : g.n * patches_count(image->size);
        product.columns = outputs < FEW_CHANNELS ? patches_count(image->size) : outputs;
    }
    if (is_depthwise(&g))
        product.rows = product.columns = 0;
    return product;
}

/* Elements narrower than 8 bits have no address of their own, so rectangles of them cannot be packed. */
static weftStatus_t check(const struct region *region, const struct node *node) {
    (void)region;
    struct product p = product(node);
    const struct tensor *operands[] = {p.a, p.b};
    for (int i = 0; i < 2; i++)
        if (dtype_of((weftDataType_t)operands[i]->type)->bits < 8)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has elements of %d bits. Convert it to 8 bits or more.",
                 descriptor_label(node->op), descriptor_label(&operands[i]->base),
                 dtype_of((weftDataType_t)operands[i]->type)->bits);
    struct conv_geometry g = conv_geometry(node->op);
    int64_t phases[3];
    count_phases(&g, phases);
    if (g.direction == CONV_DATA && (double)phases[0] * (double)phases[1] * (double)phases[2] > MAX_PHASES)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: its stride %s requires more than %d products, one for each position within a step. Use a smaller "
             "stride.",
             descriptor_label(node->op), numbers_text(g.stride + 3 - g.spatial, g.spatial), MAX_PHASES);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Planning ---------------------------------------------------------------------------------------------------- */

/* State while a step is planned. */
struct planner {
    struct contraction *contraction;
    const struct graph *graph;
    struct conv_geometry g;
    const struct gemm_kernel *kernel;
};

/* The taps of one dimension that a phase of the data gradient sees: every `step`th one, starting at `first`. The i-th
   of these reads the image at position + offset + i * tap_step. */
struct phase {
    int64_t count, first, step, offset, tap_step;
};

/* The image that is read, without its geometry. With one tap at offset 0 it is the image itself, position by
   position. */
static struct patches patches_of(const struct planner *planner, const struct conv_operand *operand, int64_t channels) {
    struct patches patches = {.type = (weftDataType_t)operand->tensor->type,
                              .groups = planner->g.groups,
                              .channels = channels,
                              .image_stride = operand->outer_stride,
                              .group_stride = operand->group_stride,
                              .channel_stride = operand->channel_stride};
    for (int i = 0; i < 3; i++) {
        patches.size[i] = operand->size[i];
        patches.stride[i] = operand->size_stride[i];
        /* Dimensions that the convolution does not have are 1. */
        patches.positions[i] = operand->size[i];
        patches.step[i] = patches.taps[i] = 1;
    }
    return patches;
}

/* x as the forward operation reads it, with taps in the filter's memory order. */
static struct patches forward_patches(const struct planner *planner) {
    const struct conv_geometry *g = &planner->g;
    struct patches patches = patches_of(planner, &g->x, g->c);
    for (int i = 0; i < 3; i++) {
        patches.positions[i] = g->y.size[i];
        patches.step[i] = g->stride[i];
        patches.taps[i] = g->w.size[i];
        /* pre is the padding in front. A flipped filter is read backwards: its last tap comes first in the image. */
        patches.offset[i] = -g->pre[i] + (g->flip ? (g->w.size[i] - 1) * g->dilation[i] : 0);
        patches.tap_step[i] = g->flip ? -g->dilation[i] : g->dilation[i];
    }
    return patches;
}

/* Returns the filter with k over taps and `channels`, and rows over the other channels. */
static struct filter filter_of(const struct planner *planner, int64_t channels, int64_t channel_stride,
                               int64_t row_stride) {
    const struct conv_operand *w = &planner->g.w;
    struct filter filter = {.type = (weftDataType_t)w->tensor->type,
                            .groups = planner->g.groups,
                            .channels = channels,
                            .group_stride = w->group_stride,
                            .row_stride = row_stride,
                            .channel_stride = channel_stride};
    for (int i = 0; i < 3; i++) {
        filter.taps[i] = w->size[i];
        filter.tap_stride[i] = w->size_stride[i];
    }
    return filter;
}

/* Simplified here, so that callers plan with the original dimensions. */
static struct factor image_factor(const struct planner *planner, const struct tensor *tensor, struct patches patches) {
    struct factor factor = {.pack = patches_pack, .value = graph_find_value(planner->graph, tensor)};
    patches_simplify(&patches);
    factor.patches = patches;
    return factor;
}

static struct factor filter_factor(const struct planner *planner, struct filter filter) {
    struct factor factor = {.pack = filter_pack, .value = graph_find_value(planner->graph, planner->g.w.tensor)};
    filter_simplify(&filter);
    factor.filter = filter;
    return factor;
}

/* Rectangles of a filter or an image have a multiple of this number of elements along the depth; those of a shifted
   image may have any number. */
static int64_t rectangle_depths(const struct factor *factor) {
    const struct patches *p = &factor->patches;
    if (factor->pack == filter_pack)
        return factor->filter.channels;
    if (!p->positions_are_depth)
        return p->channels;
    bool is_whole = true;
    for (int i = 0; i < 3; i++)
        is_whole = is_whole && p->taps[i] == 1 && p->offset[i] == 0 && p->step[i] * (p->positions[i] - 1) < p->size[i];
    return is_whole ? p->positions[2] : 1;
}

/* Packs rectangles in the kernel's groups if they consist of whole groups. */
static void choose_packing(const struct planner *planner, struct factor *factor, bool is_a) {
    const struct gemm_kernel *kernel = planner->kernel;
    int64_t depths = rectangle_depths(factor);
    struct packing packing = {gemm_pack_matrix, 1, sizeof(float)};
    if (is_a && depths % kernel->group_a == 0)
        packing = (struct packing){gemm_pack_of_a(kernel), kernel->group_a, 0};
    else if (depths % kernel->group_b == 0)
        packing = (struct packing){gemm_pack_of_b(kernel), kernel->group_b, 0};
    if (packing.group > 1 || kernel->factors != WEFT_DATA_BFLOAT16)
        packing.bytes = (int)dtype_bytes(kernel->factors, packing.group);
    factor->group = packing.group;
    if (factor->pack == filter_pack)
        factor->filter.packing = packing;
    else
        factor->patches.packing = packing;
}

static void choose_packings(const struct planner *planner, struct piece *piece) {
    choose_packing(planner, &piece->a, true);
    choose_packing(planner, &piece->b, false);
}

/* ---- Choosing between gemm and direct ---------------------------------------------------------------------------- */

/* The cost per element of a panel. */
static double packing_cost(const struct factor *factor, int group) {
    const struct patches *p = &factor->patches;
    const struct filter *f = &factor->filter;
    bool is_filter = factor->pack == filter_pack;
    bool is_plain = factor->group == group && (is_filter ? f->type : p->type) == WEFT_DATA_BFLOAT16;
    bool are_channels = is_filter ? f->channel_stride == 1 || f->row_stride == 1 : p->channel_stride == 1;
    int64_t run = are_channels                                   ? (is_filter ? f->channels : p->channels)
                  : !is_filter && p->step[2] * p->stride[2] == 1 ? p->positions[2]
                                                                 : 1;
    if (is_filter && !are_channels)
        return SCATTER_COST;
    return is_plain ? PACK_COST + RUN_COST / (double)run : STEPS_COST + STEPS_RUN_COST / (double)run;
}

/* True if gemm is faster or the only choice; direct multiplies floats without packing the image. */
static bool packs(const struct planner *planner, const struct piece *piece) {
    const struct gemm_kernel *kernel = planner->kernel;
    const struct gemm *gemm = &piece->gemm;
    const struct conv_geometry *g = &planner->g;
    if (kernel->factors != WEFT_DATA_BFLOAT16 || is_depthwise(g))
        return kernel->type != WEFT_DATA_FLOAT;
    /* A filter gradient whose taps are contiguous would be stored element by element, each to a different cache
       line. */
    if (g->direction == CONV_FILTER && g->w.channel_stride != 1 && patches_count(g->w.size) > 1)
        return false;
    double m = (double)round_up(gemm->m, kernel->rows), n = (double)round_up(gemm->n, kernel->columns);
    return m * n / kernel->speed + packing_cost(&piece->a, kernel->group_a) * m +
               packing_cost(&piece->b, kernel->group_b) * n <
           (double)gemm->m * (double)gemm->n;
}

/* ---- Loops over the result --------------------------------------------------------------------------------------- */

/* The channel dimension of a tensor; the group dimension precedes it or is part of it. Dims are [image, (group,)
   channel, spatial ...]. */
static int channel_dim(const struct planner *planner, const struct tensor *tensor) {
    return (int)tensor->dims.count - planner->g.spatial - 1;
}

/* Returns the groups of an image: a dimension of their own, or blocks of channels. */
static struct axis group_axis(const struct planner *planner, const struct tensor *image, int64_t channels) {
    return (struct axis){
        .dim = 1, .extent = planner->g.groups, .step = channel_dim(planner, image) == 2 ? 1 : channels};
}

/* An image that is computed (forward, data) from patches of `source` and a filter, at positions along `axes`. channels:
   per group of the computed image; axes: its spatial dimensions, outermost first. */
struct image_plan {
    const struct tensor *image, *source;
    int64_t channels;
    struct patches patches;
    struct filter filter;
    struct axis axes[3];
};

/* Positions are contiguous in memory (NCHW), so as columns they form long runs. */
static bool has_contiguous_positions(const struct planner *planner, const struct image_plan *plan) {
    const struct tensor *image = plan->image;
    int last = (int)image->dims.count - 1, channel = channel_dim(planner, image);
    return image->strides.at[last] < image->strides.at[channel];
}

/* True if images are computed one by one, with channels as rows and positions as columns. */
static bool image_is_transposed(const struct planner *planner, const struct image_plan *plan) {
    int64_t positions = patches_count(plan->patches.positions);
    bool is_transposed = has_contiguous_positions(planner, plan) && positions >= FEW_POSITIONS;
    return (is_transposed || (plan->channels < FEW_CHANNELS && positions > plan->channels)) &&
           axes_merge(&planner->contraction->program, plan->axes, planner->g.spatial);
}

/* Either loops over images, groups and channels outside and positions inside, or over groups, images, positions and
   then channels, which are the groups of a depthwise filter. The last loop must match gemm's columns, so it is not
   merged with others. */
static void walk_image(struct planner *planner, struct rows_columns *walk, const struct image_plan *plan,
                       bool is_transposed, bool is_depthwise) {
    struct axis axes[ROWS_COLUMNS_AXES];
    int spatial = planner->g.spatial, count = 0;
    struct axis image = {.dim = 0, .extent = planner->g.n, .step = 1};
    struct axis group = group_axis(planner, plan->image, plan->channels);
    struct axis channel = {.dim = channel_dim(planner, plan->image), .extent = plan->channels, .step = 1};
    /* Positions form one loop with the last dimension's step: axes_merge has checked this. */
    if (is_transposed) {
        axes[count++] = image;
        axes[count++] = group;
        axes[count++] = channel;
        axes[count] = plan->axes[spatial - 1];
        axes[count++].extent = patches_count(plan->patches.positions);
    } else {
        /* The columns of a depthwise piece are its groups: vectors run over them. */
        if (!is_depthwise)
            axes[count++] = group;
        axes[count++] = image;
        for (int i = 0; i < spatial; i++)
            axes[count++] = plan->axes[i];
        axes[count++] = is_depthwise ? group : channel;
    }
    rows_columns_plan(walk, &planner->contraction->program, axes, count, false);
}

/* The same product without packing the image. With single channels, the groups are the columns. */
static void plan_direct_image(struct planner *planner, struct piece *piece, const struct image_plan *plan, int image,
                              int filter) {
    struct direct *direct = &piece->direct;
    bool lies = has_contiguous_positions(planner, plan);
    bool is_transposed = lies && axes_merge(&planner->contraction->program, plan->axes, planner->g.spatial);
    struct patches patches = plan->patches;
    struct filter weights = plan->filter;
    bool has_single = is_depthwise(&planner->g);
    patches.batch_has_images = false;
    patches_simplify(&patches);
    direct->order = is_transposed ? DIRECT_POSITIONS : DIRECT_CHANNELS;
    direct->scatters = lies && !is_transposed;
    direct->image_value = image;
    direct->other_value = filter;
    walk_image(planner, &direct->walk, plan, is_transposed, has_single);
    if (packs(planner, piece))
        return;
    if (has_single)
        direct_plan_channels(direct, &patches, &weights, planner->g.n, planner->contraction->threads);
    else
        direct_plan_image(direct, &patches, &weights, planner->g.n, plan->channels, planner->contraction->threads);
}

static void plan_image(struct planner *planner, struct piece *piece, struct image_plan *plan) {
    const struct conv_geometry *g = &planner->g;
    int64_t positions = patches_count(plan->patches.positions),
            depth = plan->patches.channels * patches_count(plan->patches.taps);
    bool is_transposed = image_is_transposed(planner, plan);
    plan->patches.batch_has_images = is_transposed;
    struct factor read = image_factor(planner, plan->source, plan->patches);
    struct factor weights = filter_factor(planner, plan->filter);
    /* There is one product per group: the positions of all images x the group's channels. */
    piece->gemm = (struct gemm){.batch = g->groups, .m = g->n * positions, .n = plan->channels, .k = depth};
    piece->a = read;
    piece->b = weights;
    if (is_transposed) {
        /* Transposed, there is one product per image and group: channels x positions. */
        piece->gemm = (struct gemm){.batch = g->n * g->groups, .m = plan->channels, .n = positions, .k = depth};
        piece->a = weights;
        piece->b = read;
    }
    walk_image(planner, &piece->walk, plan, is_transposed, false);
    choose_packings(planner, piece);
    plan_direct_image(planner, piece, plan, read.value, weights.value);
}

/* True if single channels are computed plane by plane: if positions are contiguous in either image. `phases` are all
   phases of `image`. */
static bool plan_planes(struct planner *planner, struct piece *piece, const struct image_plan *image,
                        const struct direct_phase *phases, const int64_t *counts) {
    struct direct *direct = &piece->direct;
    const struct patches *p = &phases[0].patches;
    bool are_neighbours = p->stride[2] == 1 && p->step[0] * p->step[1] * p->step[2] == 1;
    if (!is_depthwise(&planner->g) || planner->kernel->type != WEFT_DATA_FLOAT || !are_neighbours ||
        patches_count(image->patches.positions) == 0 || !has_contiguous_positions(planner, image) ||
        !axes_merge(&planner->contraction->program, image->axes, planner->g.spatial))
        return false;
    struct direct planned = {.order = DIRECT_POSITIONS,
                             .image_value = graph_find_value(planner->graph, image->source),
                             .other_value = graph_find_value(planner->graph, planner->g.w.tensor),
                             .planes = {.phases = phases}};
    memcpy(planned.planes.counts, counts, sizeof planned.planes.counts);
    memcpy(planned.planes.size, image->patches.positions, sizeof planned.planes.size);
    walk_image(planner, &planned.walk, image, true, true);
    direct_plan_planes(&planned, planner->g.n, planner->contraction->threads);
    if (planned.is_on)
        *direct = planned;
    return planned.is_on;
}

/* ---- Forward, data gradient, filter gradient --------------------------------------------------------------------- */

/* One piece. The filter's depth is over taps and input channels, its rows are output channels. */
static weftStatus_t plan_forward(struct planner *planner, struct arena *arena) {
    const struct conv_geometry *g = &planner->g;
    struct image_plan plan = {.image = g->y.tensor,
                              .source = g->x.tensor,
                              .channels = g->k,
                              .patches = forward_patches(planner),
                              .filter = filter_of(planner, g->c, g->w.channel_stride, g->w.outer_stride)};
    int first = (int)g->y.tensor->dims.count - g->spatial;
    for (int i = 0; i < g->spatial; i++)
        plan.axes[i] = (struct axis){.dim = first + i, .extent = g->y.size[3 - g->spatial + i], .step = 1};
    struct direct_phase *phase;
    TRY(arena_alloc(arena, &planner->contraction->pieces, sizeof(struct piece)));
    TRY(arena_alloc(arena, &phase, sizeof *phase));
    planner->contraction->piece_count = 1;
    *phase = (struct direct_phase){plan.patches, plan.filter};
    if (!plan_planes(planner, planner->contraction->pieces, &plan, phase, (const int64_t[]){1, 1, 1}))
        plan_image(planner, planner->contraction->pieces, &plan);
    return WEFT_STATUS_SUCCESS;
}

/* dx at place + stride * position meets tap m if place + pre - r(m) * dilation is a multiple of the stride; r(m) is m,
   or for a flipped filter the m-th tap from the end. Such taps have a constant distance, so two of them determine all.
   Without any, the depth is 0, and the program processes zeros like other sums. */
static struct phase phase_of(const struct conv_geometry *g, int i, int64_t position) {
    int64_t stride = g->stride[i], taps = g->w.size[i];
    struct phase phase = {.step = 1};
    for (int64_t m = 0; m < taps; m++) {
        int64_t distance = position + g->pre[i] - (g->flip ? taps - 1 - m : m) * g->dilation[i];
        if (distance % stride != 0)
            continue;
        if (phase.count == 0)
            phase.first = m, phase.offset = distance / stride;
        if (phase.count == 1)
            phase.step = m - phase.first, phase.tap_step = distance / stride - phase.offset;
        phase.count++;
    }
    return phase;
}

/* Plans dx as a whole, without its taps. */
static struct image_plan data_plan(const struct planner *planner) {
    const struct conv_geometry *g = &planner->g;
    /* Compared with the forward filter, rows and depth are exchanged: depth over output channels, rows over input
       channels. */
    struct image_plan plan = {.image = g->x.tensor,
                              .source = g->y.tensor,
                              .channels = g->c,
                              .patches = patches_of(planner, &g->y, g->k),
                              .filter = filter_of(planner, g->k, g->w.outer_stride, g->w.channel_stride)};
    int first = (int)g->x.tensor->dims.count - g->spatial;
    for (int i = 0; i < g->spatial; i++)
        plan.axes[i] = (struct axis){.dim = first + i, .extent = g->x.size[3 - g->spatial + i], .step = 1};
    memcpy(plan.patches.positions, g->x.size, sizeof g->x.size);
    return plan;
}

/* The part of dx at these positions within a step of the stride; origins: one along each dimension. */
static struct image_plan phase_plan(const struct planner *planner, const int64_t *origins) {
    const struct conv_geometry *g = &planner->g;
    struct image_plan plan = data_plan(planner);
    struct patches *patches = &plan.patches;
    struct filter *filter = &plan.filter;
    for (int i = 0; i < 3; i++) {
        struct phase phase = phase_of(g, i, origins[i]);
        /* Number of elements of dx along the dimension that belong to the phase. */
        int64_t count = divide_up(g->x.size[i] - origins[i], g->stride[i]);
        patches->positions[i] = count;
        patches->taps[i] = filter->taps[i] = phase.count;
        patches->offset[i] = phase.offset;
        patches->tap_step[i] = phase.tap_step;
        /* The phase's taps as a filter of its own: it starts at the first one and skips those of other phases. */
        filter->first += phase.first * filter->tap_stride[i];
        filter->tap_stride[i] *= phase.step;
        if (i >= 3 - g->spatial) {
            struct axis *axis = &plan.axes[i - 3 + g->spatial];
            axis->extent = count, axis->first = origins[i], axis->step = g->stride[i];
        }
    }
    return plan;
}

/* One piece per phase, in row-major order of the positions; each writes different elements of dx. Or a single piece for
   all planes. */
static weftStatus_t plan_data(struct planner *planner, struct arena *arena) {
    const struct conv_geometry *g = &planner->g;
    struct contraction *contraction = planner->contraction;
    struct image_plan image = data_plan(planner);
    struct direct_phase *all;
    int64_t phases[3], origins[3], count = 0;
    count_phases(g, phases);
    TRY(arena_alloc(arena, &contraction->pieces, (size_t)patches_count(phases) * sizeof(struct piece)));
    TRY(arena_alloc(arena, &all, (size_t)patches_count(phases) * sizeof *all));
    for (bool more = index_begin(origins, 3, phases); more; more = index_next(origins, 3, phases)) {
        struct image_plan plan = phase_plan(planner, origins);
        all[count++] = (struct direct_phase){plan.patches, plan.filter};
    }
    if (plan_planes(planner, contraction->pieces, &image, all, phases)) {
        contraction->piece_count = 1;
        return WEFT_STATUS_SUCCESS;
    }
    for (bool more = index_begin(origins, 3, phases); more; more = index_next(origins, 3, phases)) {
        struct image_plan plan = phase_plan(planner, origins);
        plan_image(planner, &contraction->pieces[contraction->piece_count++], &plan);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Loop orders of a filter gradient, outermost first: all taps as rows; taps and channels of x as columns, with either
   one fastest in memory; single channels as columns. */
enum filter_walk {
    GROUPS_TAPS_READ_MADE,
    GROUPS_MADE_TAPS_READ,
    GROUPS_MADE_READ_TAPS,
    TAPS_GROUPS,
};

/* Lists the taps in order, followed or preceded by the channels of x. */
static void filter_columns(const struct planner *planner, struct axis *axes, bool read_is_first) {
    const struct conv_geometry *g = &planner->g;
    int channel = channel_dim(planner, g->w.tensor);
    for (int i = 0; i < g->spatial; i++)
        axes[i + read_is_first] =
            (struct axis){.dim = channel + 1 + i, .extent = g->w.size[3 - g->spatial + i], .step = 1};
    axes[read_is_first ? 0 : g->spatial] = (struct axis){.dim = channel, .extent = g->c, .step = 1};
}

/* False if the columns cannot be merged into one loop in all tensors. */
static bool walk_filter(struct planner *planner, struct rows_columns *walk, enum filter_walk order) {
    const struct conv_geometry *g = &planner->g;
    int channel = channel_dim(planner, g->w.tensor), count = 0, taps = g->spatial;
    struct axis group = {.dim = 0, .extent = g->groups, .step = channel == 2 ? 1 : g->k};
    struct axis output_channels = {.dim = channel == 2 ? 1 : 0, .extent = g->k, .step = 1}, axes[ROWS_COLUMNS_AXES],
                columns[4];
    filter_columns(planner, columns, order == GROUPS_MADE_READ_TAPS);
    bool are_rows = order == GROUPS_TAPS_READ_MADE || order == TAPS_GROUPS;
    if (!are_rows && !axes_merge(&planner->contraction->program, columns, taps + 1))
        return false;
    if (order != TAPS_GROUPS)
        axes[count++] = group;
    if (!are_rows)
        axes[count++] = output_channels;
    for (int i = 0; are_rows && i < taps + (order != TAPS_GROUPS); i++)
        axes[count++] = columns[i];
    axes[count] = order == TAPS_GROUPS ? group : are_rows ? output_channels : columns[taps];
    if (!are_rows)
        axes[count].extent = g->c * patches_count(g->w.size);
    rows_columns_plan(walk, &planner->contraction->program, axes, count + 1, false);
    return true;
}

/* Plans the same product without packing dy. */
static void plan_direct_filter(struct planner *planner, struct piece *piece, const struct patches *x,
                               const struct patches *dy) {
    struct direct *direct = &piece->direct;
    if (packs(planner, piece))
        return;
    direct->image_value = piece->a.value;
    direct->other_value = piece->b.value;
    if (is_depthwise(&planner->g)) {
        walk_filter(planner, &direct->walk, TAPS_GROUPS);
        direct_plan_channel_sums(direct, x, dy, planner->g.n, planner->contraction->threads);
        return;
    }
    direct->order = DIRECT_TAPS_CHANNELS;
    if (!walk_filter(planner, &direct->walk, GROUPS_MADE_TAPS_READ)) {
        direct->order = DIRECT_CHANNELS_TAPS;
        if (!walk_filter(planner, &direct->walk, GROUPS_MADE_READ_TAPS))
            return;
    }
    direct_plan_filter(direct, x, dy, planner->g.n, planner->contraction->threads);
}

/* Plans one product per group, with k over all positions of all images and rows over taps and channels of x. */
static weftStatus_t plan_filter(struct planner *planner, struct arena *arena) {
    const struct conv_geometry *g = &planner->g;
    struct piece *piece;
    TRY(arena_alloc(arena, &piece, sizeof *piece));
    struct patches x = forward_patches(planner), dy = patches_of(planner, &g->y, g->k);
    /* Both factors are read along their positions; dy has one tap, at its own position. */
    x.positions_are_depth = dy.positions_are_depth = true;
    piece->gemm = (struct gemm){
        .batch = g->groups, .m = g->c * patches_count(g->w.size), .n = g->k, .k = g->n * patches_count(g->y.size)};
    piece->a = image_factor(planner, g->x.tensor, x);
    piece->b = image_factor(planner, g->y.tensor, dy);
    choose_packings(planner, piece);
    walk_filter(planner, &piece->walk, GROUPS_TAPS_READ_MADE);
    plan_direct_filter(planner, piece, &x, &dy);
    planner->contraction->pieces = piece;
    planner->contraction->piece_count = 1;
    return WEFT_STATUS_SUCCESS;
}

/* Regions are already checked, so the last line is never reached. */
static weftStatus_t plan(struct contraction *contraction, const struct region *region, const struct node *node,
                         const struct gemm_kernel *kernel, struct arena *arena) {
    struct planner planner = {
        .contraction = contraction, .graph = region->graph, .g = conv_geometry(node->op), .kernel = kernel};
    switch (planner.g.direction) {
    case CONV_FORWARD:
        return plan_forward(&planner, arena);
    case CONV_DATA:
        return plan_data(&planner, arena);
    case CONV_FILTER:
        return plan_filter(&planner, arena);
    }
    return WEFT_STATUS_INTERNAL_ERROR;
}

const struct contraction_kind conv_contraction = {check, product, plan};
