/* SPDX-License-Identifier: Apache-2.0 */
/* From modes and geometry to views: the dimensions of each operand's tensor map, and the meaning of their coordinates.
   This file must not know about tiles or text. */
#include "base/number.h"
#include "engines/cuda/product/hopper/hopper.h"
#include "engines/product.h"
#include "graph/ops/matmul.h"
#include "graph/views.h"

#include <string.h>

/* Limits of TMA for images of two and of three dimensions. */
enum {
    IMAGE_STRIDE_MAX = 8,
    IMAGE_CORNER_MAX = 127,
    VOLUME_CORNER_MAX = 15,
    IMAGE_REACH_MAX = 255,
    VOLUME_REACH_MAX = 31
};
enum {
    PARTS_MAX = 3 /* parts of an operand: a step has space for that many maps in addition to those of the results */
};
/* Bytes: the CUDA driver requires it for a tensor map's address and all its strides except the first. */
enum { MAP_ALIGNMENT = 16 };

/* Both operands have the same element size. */
static int64_t element_bytes(const struct hopper *h, int operand) {
    return dtype_bytes((weftDataType_t)h->c.operand[operand].tensor->type, 1);
}

/* Adds the next dimension of an operand's map. Dimensions of one element that no coordinate moves along are omitted,
   because maps have at most five. The order matters: the first dimension added is the contiguous one, and coordinates
   follow in the same order. */
static weftStatus_t add_dim(struct hopper *h, int operand, struct view_dim dim) {
    struct map_view *view = &h->view[operand];
    const struct tensor *tensor = h->c.operand[operand].tensor;
    /* Dimensions that every copy names are kept, even with extent 1. */
    if (dim.extent == 1 && dim.role != ROLE_K && dim.role != ROLE_OUTER && dim.role != ROLE_IMAGE)
        return WEFT_STATUS_SUCCESS;
    if (dim.extent == 1 && view->count > 0) /* not moved along, but the map requires a stride */
        dim.stride = MAP_ALIGNMENT;
    if (view->count == VIEW_DIMS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s is indexed along more than %d dimensions",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base), VIEW_DIMS_MAX);
    if (view->count == 0 ? dim.stride != 1 && dim.extent != 1
                         : dim.stride <= 0 || dim.stride * element_bytes(h, operand) % MAP_ALIGNMENT != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s has a stride of %lld elements; TMA requires multiples of %d bytes, and one contiguous "
             "dimension.",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base), (long long)dim.stride, MAP_ALIGNMENT);
    view->dims[view->count++] = dim;
    return WEFT_STATUS_SUCCESS;
}

/* k and the outer index; the contiguous one comes first. */
static weftStatus_t add_matrix(struct hopper *h, int operand, struct view_dim k, struct view_dim outer) {
    bool is_k_major = k.stride == 1 || (outer.stride != 1 && k.extent == 1);
    h->view[operand].is_k_major = is_k_major;
    TRY(add_dim(h, operand, is_k_major ? k : outer));
    return add_dim(h, operand, is_k_major ? outer : k);
}

/* ---- Matmul and its equivalents ---------------------------------------------------------------------------------- */

/* The single mode of an index as a dimension; an index without modes has one element. */
static struct view_dim dim_of(const struct contraction *c, int operand, enum index index, enum dim_role role) {
    const struct modes *modes = &c->modes[index];
    const struct mode *last = &modes->at[modes->count - 1];
    return modes->count ? (struct view_dim){role, 0, last->extent, last->stride[operand], 0}
                        : (struct view_dim){role, 0, 1, 1, 0};
}

/* True if each index is one mode and no coordinate is checked, so that tiled maps can be used. */
static bool is_matrix(const struct contraction *c) {
    bool is_plain = c->modes[ROW].count <= 1 && c->modes[COLUMN].count <= 1 && c->modes[K].count <= 1 &&
                    c->modes[BATCH].count <= ENTRIES_MAX && c->phase_count == 0;
    for (int f = 0; f < OPERANDS; f++)
        for (int i = 0; i < COORDINATES; i++)
            is_plain = is_plain && !c->operand[f].is_checked[i];
    return is_plain;
}

/* Batch entries are dimensions of the maps; an operand that all entries share has none. */
static weftStatus_t shape_matrices(struct hopper *h) {
    const struct contraction *c = &h->c;
    h->channels = modes_extent(&c->modes[K]);
    h->entry_count = c->modes[BATCH].count;
    for (int f = 0; f < OPERANDS; f++) {
        TRY(add_matrix(h, f, dim_of(c, f, K, ROLE_K), dim_of(c, f, f == OPERAND_A ? ROW : COLUMN, ROLE_OUTER)));
        for (int d = 0; d < c->modes[BATCH].count; d++) {
            const struct mode *mode = &c->modes[BATCH].at[d];
            if (mode->stride[f])
                TRY(add_dim(h, f, (struct view_dim){ROLE_ENTRY, d, mode->extent, mode->stride[f], 0}));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Convolution ------------------------------------------------------------------------------------------------- */

/* Describes a dimension of channels or filters, or another one of which each group has its own part. Its extent covers
   all groups; per_group is the offset of the coordinate per group. */
static struct view_dim grouped_dim(const struct conv_geometry *g, enum dim_role role, int number, int64_t extent,
                                   int64_t stride, int64_t group_stride) {
    int64_t per_group = g->groups > 1 && stride ? group_stride / stride : 0;
    return (struct view_dim){role, number, extent + (g->groups - 1) * per_group, stride, per_group};
}

/* True if groups start at whole coordinates. */
static bool has_whole_groups(const struct conv_operand *operand, int64_t stride) {
    return stride > 0 && operand->group_stride % stride == 0;
}

/* Boxes along k must end at group boundaries. The channels of a group are at an offset of the coordinate, so the
   filters or channels of all groups must be one evenly strided dimension. A box of k that extended into the next group
   would multiply its channels. */
static weftStatus_t check_groups(const struct hopper *h, const struct conv_geometry *g) {
    int64_t block = HOPPER_K_BYTES / element_bytes(h, OPERAND_A), k = g->direction == CONV_DATA ? g->k : g->c;
    bool is_even = (g->direction == CONV_DATA || has_whole_groups(&g->x, g->x.channel_stride)) &&
                   (g->direction == CONV_FILTER || has_whole_groups(&g->w, g->w.outer_stride)) &&
                   (g->direction == CONV_FORWARD || has_whole_groups(&g->y, g->y.channel_stride));
    if (g->groups > 1 && !is_even)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its groups do not start at whole channels or filters.",
             descriptor_label(h->c.node->op));
    if (g->groups > 1 && g->direction != CONV_FILTER && k % block != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: it has %lld groups of %lld channels; expected a multiple of %lld channels.",
             descriptor_label(h->c.node->op), (long long)g->groups, (long long)k, (long long)block);
    return WEFT_STATUS_SUCCESS;
}

/* Adds the image of an operand: the contiguous dimension `first`, then positions from the innermost dimension outwards,
   then `images`. `last`: the upper corner in terms of im2col maps, the end of the last position's box relative to the
   image. Taps are offsets of a copy, which have 8 bits for images and 5 for volumes. */
static weftStatus_t add_image(struct hopper *h, int operand, const struct conv_geometry *g,
                              const struct conv_operand *image, struct view_dim first, struct view_dim images) {
    int64_t most = g->spatial == COORDINATES ? VOLUME_CORNER_MAX : IMAGE_CORNER_MAX;
    int64_t farthest = g->spatial == COORDINATES ? VOLUME_REACH_MAX : IMAGE_REACH_MAX;
    h->view[operand].is_image = true;
    h->view[operand].is_k_major = !h->k_is_pixels;
    TRY(add_dim(h, operand, first));
    for (int i = COORDINATES; i-- > 0;) {
        struct positions *at = &h->positions[i];
        int64_t last = at->corner + (at->count - 1) * at->stride + 1 - at->size;
        int64_t reach = at->offset + (at->tap_step > 0 ? (at->taps - 1) * at->tap_step : 0);
        if (at->stride > IMAGE_STRIDE_MAX || at->corner < -most || at->corner > most || last < -most || last > most ||
            reach > farthest)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: stride, padding or filter exceed the limits of TMA: strides to %d, corners to "
                 "%lld, taps to %lld.",
                 descriptor_label(h->c.node->op), IMAGE_STRIDE_MAX, (long long)most, (long long)farthest);
        /* Images with fewer dimensions have no depth: their maps have four dimensions. */
        if (i > 0 || g->spatial == COORDINATES)
            TRY(add_dim(h, operand, (struct view_dim){ROLE_IMAGE, i, at->size, image->size_stride[i], 0}));
    }
    return add_dim(h, operand, images);
}

/* Adds the filter of an image convolution, whose taps are part of k. add_dim omits taps of one element. */
static weftStatus_t add_filter(struct hopper *h, int operand, const struct conv_operand *w, struct view_dim k,
                               struct view_dim outer) {
    TRY(add_matrix(h, operand, k, outer));
    for (int i = COORDINATES; i-- > 0;) {
        h->taps[i] = w->size[i];
        TRY(add_dim(h, operand, (struct view_dim){ROLE_TAP, i, w->size[i], w->size_stride[i], 0}));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Positions of an image whose taps are in forward order. */
static struct positions forward_positions(const struct conv_geometry *g, int i) {
    return (struct positions){.count = g->y.size[i],
                              .stride = g->stride[i],
                              .corner = -g->pre[i],
                              .taps = g->w.size[i],
                              .tap_step = g->dilation[i],
                              .size = g->x.size[i]};
}

/* Taps and channels are k; positions are the own index of the image operand. */
static weftStatus_t shape_forward(struct hopper *h, const struct conv_geometry *g, int image) {
    const struct conv_operand *x = &g->x, *w = &g->w;
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i] = forward_positions(g, i);
    h->channels = g->c;
    h->is_flipped = g->flip;
    TRY(add_image(h, image, g, x, grouped_dim(g, ROLE_K, 0, g->c, x->channel_stride, x->group_stride),
                  (struct view_dim){ROLE_IMAGE, -1, g->n, x->outer_stride, 0}));
    return add_filter(h, 1 - image, w, (struct view_dim){ROLE_K, 0, g->c, w->channel_stride, 0},
                      grouped_dim(g, ROLE_OUTER, 0, g->k, w->outer_stride, w->group_stride));
}

/* Positions in dy that see an element of dx through the taps, which are in reverse order. */
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

/* Like backward_positions, with a stride: positions of a phase. The taps differ between phases, and the corner is the
   minimum of all phases. */
static struct positions phase_positions(const struct conv_geometry *g, int i, const struct phase *phase) {
    int64_t moves = phase->tap_step * phase->dilation / phase->stride, least = INT64_MAX, most = INT64_MIN;
    for (int64_t z = 0; z < phase->stride; z++)
        for (int64_t tap = 0; tap < phase->taps; tap++) {
            int64_t position = z + phase->pre - tap * phase->dilation, pixel = position / phase->stride;
            if (position % phase->stride != 0)
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

/* Like shape_forward for dy, with reversed taps and the filter's channels as its own index. */
static weftStatus_t shape_data(struct hopper *h, const struct conv_geometry *g, int image) {
    const struct conv_operand *y = &g->y, *w = &g->w;
    int phases = 0;
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i] = g->stride[i] == 1 ? backward_positions(g, i) : phase_positions(g, i, &h->c.phases[phases++]);
    h->channels = g->k;
    h->is_flipped = g->flip;
    TRY(add_image(h, image, g, y, grouped_dim(g, ROLE_K, 0, g->k, y->channel_stride, y->group_stride),
                  (struct view_dim){ROLE_IMAGE, -1, g->n, y->outer_stride, 0}));
    TRY(add_filter(h, 1 - image, w, grouped_dim(g, ROLE_K, 0, g->k, w->outer_stride, w->group_stride),
                   (struct view_dim){ROLE_OUTER, 0, g->c, w->channel_stride, 0}));
    for (int i = 0; i < COORDINATES; i++)
        h->taps[i] = h->positions[i].taps;
    return WEFT_STATUS_SUCCESS;
}

/* True if the pixels of an image, over all images, are evenly spaced. Iterates from the innermost dimension outwards; i
   == -1 stands for the images. Returns their number and distance. */
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

/* True if the pixels of each image are contiguous and fill whole steps of k, so that no step belongs to two images. */
static bool is_plane(const struct hopper *h, const struct conv_geometry *g, int operand, int64_t *pixels) {
    struct conv_operand plane = g->y;
    int64_t stride;
    plane.outer_stride = 0;
    return is_one_line(&plane, 1, pixels, &stride) && stride == 1 && g->groups == 1 &&
           *pixels * element_bytes(h, operand) % HOPPER_K_BYTES == 0;
}

/* A copy whose first element is not at a multiple of 16 bytes from the start of its row is an illegal instruction. If
   groups are adjacent along the contiguous dimension, each group must therefore start at such an element. */
static weftStatus_t check_group_starts(const struct hopper *h, int operand, int64_t groups,
                                       const struct conv_operand *of, const char *members, int64_t count) {
    if (groups > 1 && of->channel_stride == 1 && of->group_stride * element_bytes(h, operand) % MAP_ALIGNMENT != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: its groups of %lld %s do not start at multiples of %d bytes, as TMA requires.",
             descriptor_label(h->c.node->op), (long long)count, members, MAP_ALIGNMENT);
    return WEFT_STATUS_SUCCESS;
}

/* dy is a matrix of pixels and filters, or one matrix per image; x is the image. The other index of the result counts
   taps and channels. */
static weftStatus_t shape_filter(struct hopper *h, const struct conv_geometry *g, int image) {
    const struct conv_operand *x = &g->x, *y = &g->y;
    int64_t pixels, stride, plane = 0;
    bool is_line = is_one_line(y, g->n, &pixels, &stride);
    bool has_planes = !is_line && h->c.prologue_count == 0 && is_plane(h, g, 1 - image, &plane);
    if ((!is_line && !has_planes) || g->c == 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: filter gradients require more than one channel, and contiguous pixels of dy.",
             descriptor_label(h->c.node->op));
    bool has_dim = g->w.tensor->dims.count != g->spatial + 2;
    if (g->groups > 1 && g->c % HOPPER_PANEL != 0 && g->beta == 0 && !has_dim)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: it has %lld groups of %lld channels, which do not fill panels of %d; the groups should be merged.",
             descriptor_label(h->c.node->op), (long long)g->groups, (long long)g->c, HOPPER_PANEL);
    TRY(check_group_starts(h, image, g->groups, x, "channels", g->c));
    if (!has_planes)
        TRY(check_group_starts(h, 1 - image, g->groups, y, "filters", g->k));
    for (int i = 0; i < COORDINATES; i++) {
        h->positions[i] = forward_positions(g, i);
        h->taps[i] = 1;
        if (g->flip) { /* the first tap reads farthest */
            h->positions[i].offset = (g->w.size[i] - 1) * g->dilation[i];
            h->positions[i].tap_step = -g->dilation[i];
        }
    }
    h->k_is_pixels = true;
    /* Number of elements of k. */
    h->channels = has_planes ? plane * g->n : pixels;
    TRY(add_image(h, image, g, x, grouped_dim(g, ROLE_OUTER, 0, g->c, x->channel_stride, x->group_stride),
                  (struct view_dim){ROLE_IMAGE, -1, g->n, x->outer_stride, 0}));
    struct view_dim outer = grouped_dim(g, ROLE_OUTER, 0, g->k, y->channel_stride, y->group_stride);
    if (!has_planes)
        return add_matrix(h, 1 - image, (struct view_dim){ROLE_K, 0, pixels, stride, 0}, outer);
    TRY(add_matrix(h, 1 - image, (struct view_dim){ROLE_K, 0, plane, 1, 0}, outer));
    return add_dim(h, 1 - image, (struct view_dim){ROLE_PLANE, 0, g->n, y->outer_stride, 0});
}

/* Filter gradient with one tap and contiguous pixels of each channel: k is the pixels of both operands, and images take
   the role of taps. */
static weftStatus_t shape_planes(struct hopper *h) {
    const struct modes *k = &h->c.modes[K];
    h->channels = k->at[1].extent;
    h->taps[COORDINATES - 1] = k->at[0].extent;
    h->is_planes = true;
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i].count = 1;
    for (int f = 0; f < OPERANDS; f++) {
        TRY(add_matrix(h, f, (struct view_dim){ROLE_K, 0, k->at[1].extent, k->at[1].stride[f], 0},
                       dim_of(&h->c, f, f == OPERAND_A ? ROW : COLUMN, ROLE_OUTER)));
        TRY(add_dim(h, f, (struct view_dim){ROLE_TAP, COORDINATES - 1, k->at[0].extent, k->at[0].stride[f], 0}));
    }
    return WEFT_STATUS_SUCCESS;
}

/* True if shape_planes() applies: one tap, and neither operand is an image with borders. k has two modes: images (0)
   and pixels (1). */
static bool is_planes(const struct contraction *c) {
    const struct modes *k = &c->modes[K];
    bool is_plain = c->prologue_count == 0 && op_of(c->node->op) == &conv_wgrad_op && k->count == 2 &&
                    c->modes[BATCH].count == 0 && c->modes[ROW].count <= 1 && c->modes[COLUMN].count <= 1;
    for (int f = 0; f < OPERANDS; f++) {
        is_plain = is_plain && k->at[1].stride[f] == 1;
        for (int i = 0; i < COORDINATES; i++)
            is_plain = is_plain && !c->operand[f].is_checked[i];
    }
    return is_plain;
}

/* Filter gradient with contiguous images: a forward convolution of x by dy, in which channels and images swap roles.
   Nothing needs to be MN-major, which requires 16-bit types. */
static weftStatus_t shape_filter_by_images(struct hopper *h, const struct conv_geometry *g, int image) {
    const struct conv_operand *x = &g->x, *y = &g->y;
    if (g->flip)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: its filter is flipped; TMA supports only forward steps.",
             descriptor_label(h->c.node->op));
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i] = (struct positions){.count = g->w.size[i],
                                             .stride = g->dilation[i],
                                             .corner = -g->pre[i],
                                             .taps = y->size[i],
                                             .tap_step = g->stride[i],
                                             .size = x->size[i]};
    h->channels = g->n;
    TRY(add_image(h, image, g, x, (struct view_dim){ROLE_K, 0, g->n, x->outer_stride, 0},
                  grouped_dim(g, ROLE_IMAGE, -1, g->c, x->channel_stride, x->group_stride)));
    return add_filter(h, 1 - image, y, (struct view_dim){ROLE_K, 0, g->n, y->outer_stride, 0},
                      grouped_dim(g, ROLE_OUTER, 0, g->k, y->channel_stride, y->group_stride));
}

/* Sorts the modes of a filter gradient by their dimension of the result; with `is_last`, the mode of dimension
   `channel` comes after the taps. */
static void sort_by_dim(struct modes *modes, int channel, bool is_last) {
    for (int i = 1; i < modes->count; i++)
        for (int at = i; at > 0; at--) {
            struct mode *left = &modes->at[at - 1], *right = &modes->at[at], moved = *right;
            bool left_is_last = is_last && left->dim == channel, right_is_last = is_last && right->dim == channel;
            if (!left_is_last && (right_is_last || left->dim < right->dim))
                break;
            *right = *left;
            *left = moved;
        }
}

/* If a filter has one tap and the pixels of an image are contiguous (NCHW), each image becomes a matrix of the
   batch. */
static void separate_images(struct hopper *h) {
    struct contraction *c = &h->c;
    struct modes *pixels = &c->modes[h->is_swapped ? COLUMN : ROW], *batch = &c->modes[BATCH], merged = *pixels;
    modes_merge(&merged);
    if (c->modes[K].count > 1 || c->phase_count > 0 || c->prologue_count > 0 || merged.count != 2 ||
        merged.at[1].stride[h->is_swapped ? OPERAND_B : OPERAND_A] != 1 || pixels->at[0].dim != 0)
        return;
    batch->at[batch->count++] = pixels->at[0];
    memmove(pixels->at, pixels->at + 1, (size_t)--pixels->count * sizeof *pixels->at);
}

/* Only 16-bit types can be MN-major, so FP8 uses images as k. Channels that do not fill panels of 64 are rounded up to
   a whole panel, so that a box never contains two taps; `has_limit` prevents stores of the surplus. */
void hopper_order(struct hopper *h) {
    struct contraction *c = &h->c;
    struct modes *modes = &c->modes[h->is_swapped ? ROW : COLUMN];
    if (op_of(c->node->op) == &conv_fprop_op || op_of(c->node->op) == &conv_dgrad_op)
        separate_images(h);
    if (op_of(c->node->op) != &conv_wgrad_op)
        return;
    struct conv_geometry g = conv_geometry(c->node->op);
    int channel = (int)g.w.tensor->dims.count - g.spatial - 1;
    bool is_half = element_bytes(h, OPERAND_A) == 2;
    h->is_by_images = !is_half || (g.x.channel_stride != 1 && g.x.outer_stride == 1);
    sort_by_dim(modes, channel, !h->is_by_images);
    struct mode *last = modes->count ? &modes->at[modes->count - 1] : NULL;
    if (h->is_by_images || modes->count < 2 || last->dim != channel || last->extent % HOPPER_PANEL == 0)
        return;
    last->extent = round_up(last->extent, HOPPER_PANEL);
    c->has_limit = true;
    c->limited_dim = channel;
}

/* ---- All operations ---------------------------------------------------------------------------------------------- */

/* Requirements of TMA and wgmma on every operand. 512: a tile and its cluster may extend past the end, and coordinates
   must still fit in 32 bits. */
static weftStatus_t check_view(const struct hopper *h, int operand) {
    const struct tensor *tensor = h->c.operand[operand].tensor;
    int64_t offset = h->is_matrix ? h->c.operand[operand].first * element_bytes(h, operand) : 0;
    if (tensor->is_by_value || tensor->is_constant || tensor->alignment % MAP_ALIGNMENT || offset % MAP_ALIGNMENT)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s is not in memory aligned to %d bytes. Set its alignment.",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base), MAP_ALIGNMENT);
    if (!h->view[operand].is_k_major && element_bytes(h, operand) != 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s must be contiguous along the summed dimension; only 16-bit operands may have another layout.",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base));
    for (int i = 0; i < h->view[operand].count; i++)
        if (h->view[operand].dims[i].extent > INT32_MAX - 512)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: %s has %lld elements along one dimension; coordinates are limited to 2^31.",
                 descriptor_label(h->c.node->op), descriptor_label(&tensor->base),
                 (long long)h->view[operand].dims[i].extent);
    return WEFT_STATUS_SUCCESS;
}

/* Chooses among the kinds of maps: matrices, one matrix of pixels per image, or images. Taps that are not set here are
   1. */
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
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its batch entries are not evenly spaced.",
             descriptor_label(node->op));
    } else {
        struct conv_geometry g = conv_geometry(node->op);
        int image = (g.direction == CONV_FILTER) != h->is_swapped ? OPERAND_B : OPERAND_A;
        TRY(check_groups(h, &g));
        TRY(g.direction == CONV_FORWARD ? shape_forward(h, &g, image)
            : g.direction == CONV_DATA  ? shape_data(h, &g, image)
            : h->is_by_images           ? shape_filter_by_images(h, &g, image)
                                        : shape_filter(h, &g, image));
    }
    for (int f = 0; f < OPERANDS; f++)
        TRY(check_view(h, f));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Operands in parts (concatenation) --------------------------------------------------------------------------- */

/* The dimension of an operand that is k, or -1 if none is or if taps are part of k. */
static int dim_of_k(const struct node *node, int value, const struct graph *graph) {
    const struct tensor *tensor = graph->values[value].tensor;
    if (op_of(node->op) == &matmul_op)
        return (int)tensor->dims.count - (tensor == ((const struct matmul_op *)node->op)->a ? 1 : 2);
    bool is_image = op_of(node->op) == &conv_fprop_op || op_of(node->op) == &conv_dgrad_op;
    struct conv_geometry g = conv_geometry(node->op);
    return is_image && tensor == (g.direction == CONV_FORWARD ? g.x.tensor : g.y.tensor) ? 1 : -1;
}

bool hopper_gathers(const struct graph *graph, int node, int value) {
    const struct node *product = &graph->nodes[node];
    const struct value *at = &graph->values[value];
    const struct concat_op *parts = at->producer < 0 ? NULL : (const struct concat_op *)graph->nodes[at->producer].op;
    return node_is_product(product) && parts && op_of(&parts->base) == &concat_op &&
           concat_axis(parts) == dim_of_k(product, value, graph);
}

/* Scaled by the ratio between the strides of this part and those of the first one, which are the operand's, in all
   dimensions except the concatenated axis. */
int64_t hopper_part_stride(const struct hopper *h, int operand, int part, int dim) {
    const struct view_dim *at = &h->view[operand].dims[dim];
    const struct concat_op *parts = h->parts[operand];
    const struct tensor *joined = h->c.operand[operand].tensor, *part_tensor = parts->inputs.tensors[part];
    for (int64_t d = 0; d < joined->dims.count; d++)
        if (d != concat_axis(parts) && joined->dims.at[d] != 1 && at->extent > 1)
            return at->stride * part_tensor->strides.at[d] / joined->strides.at[d];
    return at->stride;
}

/* True if the strides of all parts meet the requirements of TMA. */
static bool has_valid_strides(const struct hopper *h, int operand) {
    const struct map_view *view = &h->view[operand];
    for (int part = 0; part < h->parts[operand]->inputs.count; part++)
        for (int i = 1; i < view->count; i++) {
            int64_t stride = hopper_part_stride(h, operand, part, i) * element_bytes(h, operand);
            if (stride <= 0 || stride % MAP_ALIGNMENT)
                return false;
        }
    return true;
}

/* Each step of 128 bytes must belong to one part: only the last part may end within a step, which zeros complete. */
static weftStatus_t check_parts(const struct hopper *h, int operand) {
    const struct concat_op *parts = h->parts[operand];
    const struct map_view *view = &h->view[operand];
    const struct view_dim *k = &view->dims[0];
    const struct tensor *joined = h->c.operand[operand].tensor;
    int64_t step = HOPPER_K_BYTES / element_bytes(h, operand), end = 0;
    bool is_even = view->is_k_major && k->role == ROLE_K && k->extent == joined->dims.at[concat_axis(parts)] &&
                   k->per_group == 0 && !h->k_is_pixels && !h->is_planes && parts->inputs.count <= PARTS_MAX &&
                   has_valid_strides(h, operand);
    for (int64_t part = 0; part + 1 < parts->inputs.count && is_even; part++) {
        end += ((const struct tensor *)parts->inputs.tensors[part])->dims.at[concat_axis(parts)];
        is_even = end % step == 0;
    }
    if (!is_even || h->c.prologue_count > 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s consists of parts; this engine reads up to %d parts of whole steps of %d "
             "bytes along the summed dimension, without operations before it.",
             descriptor_label(h->c.node->op), descriptor_label(&joined->base), PARTS_MAX, HOPPER_K_BYTES);
    return WEFT_STATUS_SUCCESS;
}

/* Checks that no other operation of the region reads a value in parts. */
static weftStatus_t check_other_readers(const struct hopper *h) {
    const struct region *region = h->c.region;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++)
            if (region->graph->values[node->operands[k]].tensor->is_gathered && node != h->c.node)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s consists of parts, which only the product may read.",
                     descriptor_label(node->op),
                     descriptor_label(&region->graph->values[node->operands[k]].tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t hopper_find_parts(struct hopper *h) {
    for (int f = 0; f < OPERANDS; f++) {
        h->parts[f] = views_gathered(h->c.region->graph, h->c.operand[f].value);
        if (h->parts[f])
            TRY(check_parts(h, f));
        else if (h->c.operand[f].tensor->is_gathered)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the parts of %s are unknown.",
                 descriptor_label(h->c.node->op), descriptor_label(&h->c.operand[f].tensor->base));
    }
    return check_other_readers(h);
}
