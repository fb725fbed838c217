/* SPDX-License-Identifier: Apache-2.0 */
/* From digits and geometry to views: which dimensions a factor's tensor map has, and what each of their coordinates
   is. It must not know tiles or text. */
#include "base/number.h"
#include "engines/cuda/product/hopper/hopper.h"
#include "graph/ops/matmul.h"

#include <string.h>

/* What the copy engine counts to in images of two and of three dimensions. */
enum {
    IMAGE_STRIDE_MAX = 8,
    IMAGE_CORNER_MAX = 127,
    VOLUME_CORNER_MAX = 15,
    IMAGE_REACH_MAX = 255,
    VOLUME_REACH_MAX = 31
};
enum { MAP_ALIGNMENT = 16, SLAB_ELEMENTS = 64 };

static int64_t element_bytes(const struct hopper *h, int factor) {
    return dtype_bytes((weftDataType_t)h->c.factor[factor].tensor->type, 1);
}

static weftStatus_t add_dim(struct hopper *h, int factor, struct view_dim dim) {
    struct map_view *view = &h->view[factor];
    const struct tensor *tensor = h->c.factor[factor].tensor;
    if (dim.extent == 1 && dim.walk != WALK_DEPTH && dim.walk != WALK_OUTER && dim.walk != WALK_IMAGE)
        return WEFT_STATUS_SUCCESS;
    if (dim.extent == 1 && view->count > 0) /* never moved along; the map wants a stride all the same */
        dim.stride = MAP_ALIGNMENT;
    if (view->count == VIEW_DIMS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s is walked along more than %d dimensions",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base), VIEW_DIMS_MAX);
    if (view->count == 0 ? dim.stride != 1 && dim.extent != 1
                         : dim.stride <= 0 || dim.stride * element_bytes(h, factor) % MAP_ALIGNMENT != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s has a stride of %lld elements; the copy engine wants multiples of %d bytes, and one dimension "
             "without gaps.",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base), (long long)dim.stride, MAP_ALIGNMENT);
    view->dims[view->count++] = dim;
    return WEFT_STATUS_SUCCESS;
}

/* Depth and outer index, whichever is contiguous first. */
static weftStatus_t add_matrix(struct hopper *h, int factor, struct view_dim depth, struct view_dim outer) {
    bool along_depth = depth.stride == 1 || (outer.stride != 1 && depth.extent == 1);
    h->view[factor].along_depth = along_depth;
    TRY(add_dim(h, factor, along_depth ? depth : outer));
    return add_dim(h, factor, along_depth ? outer : depth);
}

/* ---- Matmul, and what is one ------------------------------------------------------------------------------------- */

static struct view_dim dim_of(const struct contraction *c, int factor, enum index index, enum walk walk) {
    const struct digits *digits = &c->digits[index];
    const struct digit *last = &digits->at[digits->count - 1];
    return digits->count ? (struct view_dim){walk, 0, last->extent, last->stride[factor], 0}
                         : (struct view_dim){walk, 0, 1, 1, 0};
}

static bool is_matrix(const struct contraction *c) {
    bool is = c->digits[ROW].count <= 1 && c->digits[COLUMN].count <= 1 && c->digits[DEPTH].count <= 1 &&
              c->digits[BATCH].count <= ENTRIES_MAX && c->phase_count == 0;
    for (int f = 0; f < FACTORS; f++)
        for (int i = 0; i < COORDINATES; i++)
            is = is && !c->factor[f].is_checked[i];
    return is;
}

static weftStatus_t shape_matrices(struct hopper *h) {
    const struct contraction *c = &h->c;
    h->channels = digits_extent(&c->digits[DEPTH]);
    h->entry_count = c->digits[BATCH].count;
    for (int f = 0; f < FACTORS; f++) {
        TRY(add_matrix(h, f, dim_of(c, f, DEPTH, WALK_DEPTH), dim_of(c, f, f == FACTOR_A ? ROW : COLUMN, WALK_OUTER)));
        for (int d = 0; d < c->digits[BATCH].count; d++) {
            const struct digit *digit = &c->digits[BATCH].at[d];
            if (digit->stride[f])
                TRY(add_dim(h, f, (struct view_dim){WALK_ENTRY, d, digit->extent, digit->stride[f], 0}));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Convolution ------------------------------------------------------------------------------------------------- */

/* A dimension of channels or filters, or of what else a group has its own part of. */
static struct view_dim grouped_dim(const struct conv_geometry *g, enum walk walk, int number, int64_t extent,
                                   int64_t stride, int64_t group_stride) {
    int64_t per_group = g->groups > 1 && stride ? group_stride / stride : 0;
    return (struct view_dim){walk, number, extent + (g->groups - 1) * per_group, stride, per_group};
}

/* Groups are counted by coordinates. */
static bool lies_evenly(const struct conv_operand *operand, int64_t stride) {
    return stride > 0 && operand->group_stride % stride == 0;
}

/* Boxes along the depth must end where groups do. */
static weftStatus_t check_groups(const struct hopper *h, const struct conv_geometry *g) {
    int64_t block = HOPPER_DEPTH_BYTES / element_bytes(h, FACTOR_A), depth = g->direction == CONV_DATA ? g->k : g->c;
    bool is_even = (g->direction == CONV_DATA || lies_evenly(&g->x, g->x.channel_stride)) &&
                   (g->direction == CONV_FILTER || lies_evenly(&g->w, g->w.outer_stride)) &&
                   (g->direction == CONV_FORWARD || lies_evenly(&g->y, g->y.channel_stride));
    if (g->groups > 1 && !is_even)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its groups do not begin at whole channels or filters.",
             descriptor_label(h->c.node->op));
    if (g->groups > 1 && g->direction != CONV_FILTER && depth % block != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: it has %lld groups of %lld channels; multiples of %lld are summed here.",
             descriptor_label(h->c.node->op), (long long)g->groups, (long long)depth, (long long)block);
    return WEFT_STATUS_SUCCESS;
}

/* The image of a factor: what lies without gaps, then positions from the innermost dimension outwards, then images. */
static weftStatus_t add_image(struct hopper *h, int factor, const struct conv_geometry *g,
                              const struct conv_operand *image, struct view_dim first, struct view_dim images) {
    int64_t most = g->spatial == COORDINATES ? VOLUME_CORNER_MAX : IMAGE_CORNER_MAX;
    int64_t farthest = g->spatial == COORDINATES ? VOLUME_REACH_MAX : IMAGE_REACH_MAX;
    h->view[factor].is_image = true;
    h->view[factor].along_depth = !h->depth_is_pixels;
    TRY(add_dim(h, factor, first));
    for (int i = COORDINATES; i-- > 0;) {
        struct positions *at = &h->positions[i];
        int64_t last = at->corner + (at->count - 1) * at->stride + 1 - at->size;
        int64_t reach = at->offset + (at->tap_step > 0 ? (at->taps - 1) * at->tap_step : 0);
        if (at->stride > IMAGE_STRIDE_MAX || at->corner < -most || at->corner > most || last < -most || last > most ||
            reach > farthest)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: stride, padding or filter are larger than the copy engine walks: strides to %d, corners to "
                 "%lld, taps to %lld.",
                 descriptor_label(h->c.node->op), IMAGE_STRIDE_MAX, (long long)most, (long long)farthest);
        if (i > 0 || g->spatial == COORDINATES)
            TRY(add_dim(h, factor, (struct view_dim){WALK_IMAGE, i, at->size, image->size_stride[i], 0}));
    }
    return add_dim(h, factor, images);
}

/* The filter under an image: its taps are part of the depth. */
static weftStatus_t add_filter(struct hopper *h, int factor, const struct conv_operand *w, struct view_dim depth,
                               struct view_dim outer) {
    TRY(add_matrix(h, factor, depth, outer));
    for (int i = COORDINATES; i-- > 0;) {
        h->taps[i] = w->size[i];
        TRY(add_dim(h, factor, (struct view_dim){WALK_TAP, i, w->size[i], w->size_stride[i], 0}));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Positions that walk an image forwards. */
static struct positions forward_positions(const struct conv_geometry *g, int i) {
    return (struct positions){.count = g->y.size[i],
                              .stride = g->stride[i],
                              .corner = -g->pre[i],
                              .taps = g->w.size[i],
                              .tap_step = g->dilation[i],
                              .size = g->x.size[i]};
}

static weftStatus_t shape_forward(struct hopper *h, const struct conv_geometry *g, int image) {
    const struct conv_operand *x = &g->x, *w = &g->w;
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i] = forward_positions(g, i);
    h->channels = g->c;
    h->is_flipped = g->flip;
    TRY(add_image(h, image, g, x, grouped_dim(g, WALK_DEPTH, 0, g->c, x->channel_stride, x->group_stride),
                  (struct view_dim){WALK_IMAGE, -1, g->n, x->outer_stride, 0}));
    return add_filter(h, 1 - image, w, (struct view_dim){WALK_DEPTH, 0, g->c, w->channel_stride, 0},
                      grouped_dim(g, WALK_OUTER, 0, g->k, w->outer_stride, w->group_stride));
}

/* Positions in dy that see an element of dx through the taps, which run backwards. */
static struct positions backward_positions(const struct conv_geometry *g, int i) {
    int64_t reach = (g->w.size[i] - 1) * g->dilation[i];
    return (struct positions){.count = g->x.size[i],
                              .stride = 1,
                              .corner = g->pre[i] - reach,
                              .taps = g->w.size[i],
                              .offset = reach,
                              .tap_step = -g->dilation[i],
                              .size = g->y.size[i]};
}

/* The same with a stride: a position of each phase, whose taps differ. The corner is the least of all phases. */
static struct positions phase_positions(const struct conv_geometry *g, int i, const struct phase *phase) {
    int64_t moves = phase->tap_step * phase->dilation / phase->stride, least = INT64_MAX, most = INT64_MIN;
    for (int64_t z = 0; z < phase->stride; z++)
        for (int64_t tap = 0; tap < phase->taps; tap++) {
            int64_t place = z + phase->pre - tap * phase->dilation, pixel = place / phase->stride;
            if (place % phase->stride != 0)
                continue;
            least = pixel < least ? pixel : least;
            most = pixel > most ? pixel : most;
        }
    return (struct positions){.count = divide_up(g->x.size[i], phase->stride),
                              .stride = 1,
                              .corner = least,
                              .taps = divide_up(phase->taps, phase->tap_step),
                              .offset = most - least,
                              .tap_step = -moves,
                              .size = g->y.size[i],
                              .phase = *phase};
}

static weftStatus_t shape_data(struct hopper *h, const struct conv_geometry *g, int image) {
    const struct conv_operand *y = &g->y, *w = &g->w;
    int phases = 0;
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i] = g->stride[i] == 1 ? backward_positions(g, i) : phase_positions(g, i, &h->c.phases[phases++]);
    h->channels = g->k;
    h->is_flipped = g->flip;
    TRY(add_image(h, image, g, y, grouped_dim(g, WALK_DEPTH, 0, g->k, y->channel_stride, y->group_stride),
                  (struct view_dim){WALK_IMAGE, -1, g->n, y->outer_stride, 0}));
    TRY(add_filter(h, 1 - image, w, grouped_dim(g, WALK_DEPTH, 0, g->k, w->outer_stride, w->group_stride),
                   (struct view_dim){WALK_OUTER, 0, g->c, w->channel_stride, 0}));
    for (int i = 0; i < COORDINATES; i++)
        h->taps[i] = h->positions[i].taps;
    return WEFT_STATUS_SUCCESS;
}

/* Whether the pixels of an image, over all images, are evenly apart. */
static bool is_one_line(const struct conv_operand *image, int64_t images, int64_t *pixels, int64_t *stride) {
    *pixels = 1;
    *stride = 0;
    for (int i = COORDINATES; i-- >= 0;) {
        int64_t size = i >= 0 ? image->size[i] : images, step = i >= 0 ? image->size_stride[i] : image->outer_stride;
        if (size == 1)
            continue;
        if (*pixels > 1 && step != *pixels * *stride)
            return false;
        *stride = *pixels > 1 ? *stride : step;
        *pixels *= size;
    }
    return true;
}

/* Whether the pixels of each image are neighbours, and fill whole steps of the depth, none of which then belongs to two. */
static bool is_plane(const struct hopper *h, const struct conv_geometry *g, int factor, int64_t *pixels) {
    struct conv_operand plane = g->y;
    int64_t stride;
    plane.outer_stride = 0;
    return is_one_line(&plane, 1, pixels, &stride) && stride == 1 && g->groups == 1 &&
           *pixels * element_bytes(h, factor) % HOPPER_DEPTH_BYTES == 0;
}

/* dy is a matrix of pixels and filters, or one for each image; x is the image, of which the result's other index counts taps
   and channels. */
static weftStatus_t shape_filter(struct hopper *h, const struct conv_geometry *g, int image) {
    const struct conv_operand *x = &g->x, *y = &g->y;
    int64_t pixels, stride, plane = 0;
    bool is_line = is_one_line(y, g->n, &pixels, &stride);
    bool has_planes = !is_line && h->c.before_count == 0 && is_plane(h, g, 1 - image, &plane);
    if ((!is_line && !has_planes) || g->c == 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: filter gradients are multiplied here for more than one channel, and pixels of dy without gaps.",
             descriptor_label(h->c.node->op));
    bool has_dim = g->w.tensor->dims.count != g->spatial + 2;
    if (g->groups > 1 && g->c % SLAB_ELEMENTS != 0 && g->beta == 0 && !has_dim)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: it has %lld groups of %lld channels, which fill no slabs of %d; they shall be merged.",
             descriptor_label(h->c.node->op), (long long)g->groups, (long long)g->c, SLAB_ELEMENTS);
    if (g->groups > 1 && x->group_stride * element_bytes(h, image) % MAP_ALIGNMENT != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: its groups of %lld channels do not begin at multiples of %d bytes, where pixels can be taken apart.",
             descriptor_label(h->c.node->op), (long long)g->c, MAP_ALIGNMENT);
    for (int i = 0; i < COORDINATES; i++) {
        h->positions[i] = forward_positions(g, i);
        h->taps[i] = 1;
        if (g->flip) { /* the first tap reads farthest */
            h->positions[i].offset = (g->w.size[i] - 1) * g->dilation[i];
            h->positions[i].tap_step = -g->dilation[i];
        }
    }
    h->depth_is_pixels = true;
    h->channels = has_planes ? plane * g->n : pixels;
    TRY(add_image(h, image, g, x, grouped_dim(g, WALK_OUTER, 0, g->c, x->channel_stride, x->group_stride),
                  (struct view_dim){WALK_IMAGE, -1, g->n, x->outer_stride, 0}));
    struct view_dim outer = grouped_dim(g, WALK_OUTER, 0, g->k, y->channel_stride, y->group_stride);
    if (!has_planes)
        return add_matrix(h, 1 - image, (struct view_dim){WALK_DEPTH, 0, pixels, stride, 0}, outer);
    TRY(add_matrix(h, 1 - image, (struct view_dim){WALK_DEPTH, 0, plane, 1, 0}, outer));
    return add_dim(h, 1 - image, (struct view_dim){WALK_PLANE, 0, g->n, y->outer_stride, 0});
}

/* The same of one tap where the pixels of a channel lie without gaps: of both factors the depth is pixels, and images are
   counted as taps are. */
static weftStatus_t shape_planes(struct hopper *h) {
    const struct digits *depth = &h->c.digits[DEPTH];
    h->channels = depth->at[1].extent;
    h->taps[COORDINATES - 1] = depth->at[0].extent;
    h->is_planes = true;
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i].count = 1;
    for (int f = 0; f < FACTORS; f++) {
        TRY(add_matrix(h, f, (struct view_dim){WALK_DEPTH, 0, depth->at[1].extent, depth->at[1].stride[f], 0},
                       dim_of(&h->c, f, f == FACTOR_A ? ROW : COLUMN, WALK_OUTER)));
        TRY(add_dim(h, f,
                    (struct view_dim){WALK_TAP, COORDINATES - 1, depth->at[0].extent, depth->at[0].stride[f], 0}));
    }
    return WEFT_STATUS_SUCCESS;
}

static bool is_planes(const struct contraction *c) {
    const struct digits *depth = &c->digits[DEPTH];
    bool is = c->before_count == 0 && op_of(c->node->op) == &conv_wgrad_op && depth->count == 2 &&
              c->digits[BATCH].count == 0 && c->digits[ROW].count <= 1 && c->digits[COLUMN].count <= 1;
    for (int f = 0; f < FACTORS; f++) {
        is = is && depth->at[1].stride[f] == 1;
        for (int i = 0; i < COORDINATES; i++)
            is = is && !c->factor[f].is_checked[i];
    }
    return is;
}

/* The same where images lie without gaps: a forward convolution of x by dy, in which channels and images have changed
   places. Nothing needs to be turned, which only 16 bits can. */
static weftStatus_t shape_filter_by_images(struct hopper *h, const struct conv_geometry *g, int image) {
    const struct conv_operand *x = &g->x, *y = &g->y;
    if (g->flip)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: its filter is flipped; the copy engine walks forward only.",
             descriptor_label(h->c.node->op));
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i] = (struct positions){.count = g->w.size[i],
                                             .stride = g->dilation[i],
                                             .corner = -g->pre[i],
                                             .taps = y->size[i],
                                             .tap_step = g->stride[i],
                                             .size = x->size[i]};
    h->channels = g->n;
    TRY(add_image(h, image, g, x, (struct view_dim){WALK_DEPTH, 0, g->n, x->outer_stride, 0},
                  grouped_dim(g, WALK_IMAGE, -1, g->c, x->channel_stride, x->group_stride)));
    return add_filter(h, 1 - image, y, (struct view_dim){WALK_DEPTH, 0, g->n, y->outer_stride, 0},
                      grouped_dim(g, WALK_OUTER, 0, g->k, y->channel_stride, y->group_stride));
}

/* Digits of a filter gradient by their dimension; with `is_last` the channels behind the taps. */
static void sort_by_dim(struct digits *digits, int channel, bool is_last) {
    for (int i = 1; i < digits->count; i++)
        for (int at = i; at > 0; at--) {
            struct digit *left = &digits->at[at - 1], *right = &digits->at[at], moved = *right;
            bool is_behind = is_last && left->dim == channel, is_before = is_last && right->dim == channel;
            if (!is_behind && (is_before || left->dim < right->dim))
                break;
            *right = *left;
            *left = moved;
        }
}

/* Where a filter has one tap and the pixels of an image lie by themselves, as in NCHW, each image is a matrix of the batch. */
static void separate_images(struct hopper *h) {
    struct contraction *c = &h->c;
    struct digits *pixels = &c->digits[h->is_turned ? COLUMN : ROW], *batch = &c->digits[BATCH], merged = *pixels;
    digits_merge(&merged);
    if (c->digits[DEPTH].count > 1 || c->phase_count > 0 || c->before_count > 0 || merged.count != 2 ||
        merged.at[1].stride[h->is_turned ? FACTOR_B : FACTOR_A] != 1 || pixels->at[0].dim != 0)
        return;
    batch->at[batch->count++] = pixels->at[0];
    memmove(pixels->at, pixels->at + 1, (size_t)--pixels->count * sizeof *pixels->at);
}

void hopper_order(struct hopper *h) {
    struct contraction *c = &h->c;
    struct digits *digits = &c->digits[h->is_turned ? ROW : COLUMN];
    if (op_of(c->node->op) == &conv_fprop_op || op_of(c->node->op) == &conv_dgrad_op)
        separate_images(h);
    if (op_of(c->node->op) != &conv_wgrad_op)
        return;
    struct conv_geometry g = conv_geometry(c->node->op);
    int channel = (int)g.w.tensor->dims.count - g.spatial - 1;
    bool is_half = element_bytes(h, FACTOR_A) == 2;
    h->is_by_images = !is_half || (g.x.channel_stride != 1 && g.x.outer_stride == 1);
    sort_by_dim(digits, channel, !h->is_by_images);
    struct digit *last = digits->count ? &digits->at[digits->count - 1] : NULL;
    if (h->is_by_images || digits->count < 2 || last->dim != channel || last->extent % SLAB_ELEMENTS == 0)
        return;
    last->extent = round_up(last->extent, SLAB_ELEMENTS);
    c->has_limit = true;
    c->limited_dim = channel;
}

/* ---- All operations ---------------------------------------------------------------------------------------------- */

static weftStatus_t check_view(const struct hopper *h, int factor) {
    const struct tensor *tensor = h->c.factor[factor].tensor;
    int64_t offset = h->is_matrix ? h->c.factor[factor].first * element_bytes(h, factor) : 0;
    if (tensor->is_by_value || tensor->is_constant || tensor->alignment % MAP_ALIGNMENT || offset % MAP_ALIGNMENT)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s is not in memory aligned to %d bytes. Set its alignment.",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base), MAP_ALIGNMENT);
    if (!h->view[factor].along_depth && element_bytes(h, factor) != 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s must be contiguous along the summed dimension; only factors of 16 bits may lie otherwise.",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base));
    for (int i = 0; i < h->view[factor].count; i++)
        if (h->view[factor].dims[i].extent > INT32_MAX - 512)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: %s has %lld elements along one dimension; coordinates count to 2^31.",
                 descriptor_label(h->c.node->op), descriptor_label(&tensor->base),
                 (long long)h->view[factor].dims[i].extent);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t hopper_shape(struct hopper *h) {
    const struct node *node = h->c.node;
    for (int i = 0; i < COORDINATES; i++)
        h->taps[i] = 1;
    h->is_matrix = is_matrix(&h->c);
    if (h->is_matrix) {
        TRY(shape_matrices(h));
    } else if (is_planes(&h->c)) {
        TRY(shape_planes(h));
    } else if (op_of(node->op) == &matmul_op) {
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its batch entries do not lie evenly apart.",
             descriptor_label(node->op));
    } else {
        struct conv_geometry g = conv_geometry(node->op);
        int image = (g.direction == CONV_FILTER) != h->is_turned ? FACTOR_B : FACTOR_A;
        TRY(check_groups(h, &g));
        TRY(g.direction == CONV_FORWARD ? shape_forward(h, &g, image)
            : g.direction == CONV_DATA  ? shape_data(h, &g, image)
            : h->is_by_images           ? shape_filter_by_images(h, &g, image)
                                        : shape_filter(h, &g, image));
    }
    for (int f = 0; f < FACTORS; f++)
        TRY(check_view(h, f));
    return WEFT_STATUS_SUCCESS;
}
