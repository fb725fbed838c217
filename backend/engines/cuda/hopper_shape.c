/* SPDX-License-Identifier: Apache-2.0 */
/* From digits and geometry to views: which dimensions a factor's tensor map has, and what each of their coordinates
   is. It must not know tiles or text. */
#include "engines/cuda/hopper.h"
#include "graph/ops/matmul.h"

/* What the copy engine counts to in images of two and of three dimensions. */
enum { MAP_ALIGNMENT = 16, IMAGE_STRIDE_MAX = 8, IMAGE_CORNER_MAX = 127, VOLUME_CORNER_MAX = 15, SLAB_ELEMENTS = 64 };

static int64_t element_bytes(const struct hopper *h, int factor) {
    return dtype_bytes((weftDataType_t)h->c.factor[factor].tensor->type, 1);
}

static weftStatus_t add_dim(struct hopper *h, int factor, enum walk walk, int number, int64_t extent, int64_t stride) {
    struct map_view *view = &h->view[factor];
    const struct tensor *tensor = h->c.factor[factor].tensor;
    if (extent == 1 && walk != WALK_DEPTH && walk != WALK_OUTER && walk != WALK_IMAGE)
        return WEFT_STATUS_SUCCESS;
    if (extent == 1 && view->count > 0) /* never moved along; the map wants a stride all the same */
        stride = MAP_ALIGNMENT;
    if (view->count == VIEW_DIMS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s is walked along more than %d dimensions",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base), VIEW_DIMS_MAX);
    if (view->count == 0 ? stride != 1 && extent != 1
                         : stride <= 0 || stride * element_bytes(h, factor) % MAP_ALIGNMENT != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s has a stride of %lld elements; the copy engine wants multiples of %d bytes, and one dimension "
             "without gaps.",
             descriptor_label(h->c.node->op), descriptor_label(&tensor->base), (long long)stride, MAP_ALIGNMENT);
    view->dims[view->count++] = (struct view_dim){walk, number, extent, stride};
    return WEFT_STATUS_SUCCESS;
}

/* Depth and outer index, whichever is contiguous first. */
static weftStatus_t add_matrix(struct hopper *h, int factor, struct view_dim depth, struct view_dim outer) {
    bool along_depth = depth.stride == 1 || (outer.stride != 1 && depth.extent == 1);
    struct view_dim first = along_depth ? depth : outer, second = along_depth ? outer : depth;
    h->view[factor].along_depth = along_depth;
    TRY(add_dim(h, factor, first.walk, first.number, first.extent, first.stride));
    return add_dim(h, factor, second.walk, second.number, second.extent, second.stride);
}

/* ---- Matmul, and what is one ------------------------------------------------------------------------------------- */

static struct view_dim dim_of(const struct contraction *c, int factor, enum index index, enum walk walk) {
    const struct digits *digits = &c->digits[index];
    const struct digit *last = &digits->at[digits->count - 1];
    return digits->count ? (struct view_dim){walk, 0, last->extent, last->stride[factor]}
                         : (struct view_dim){walk, 0, 1, 1};
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
                TRY(add_dim(h, f, WALK_ENTRY, d, digit->extent, digit->stride[f]));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Convolution ------------------------------------------------------------------------------------------------- */

static weftStatus_t check_geometry(const struct hopper *h, const struct conv_geometry *g) {
    if (g->groups != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it has %lld groups; one is multiplied here.",
             descriptor_label(h->c.node->op), (long long)g->groups);
    if (g->flip)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: its filter is flipped; the copy engine walks forward only.",
             descriptor_label(h->c.node->op));
    return WEFT_STATUS_SUCCESS;
}

/* The image of a factor: its channels without gaps, then positions from the innermost dimension outwards. */
static weftStatus_t add_image(struct hopper *h, int factor, const struct conv_geometry *g,
                              const struct conv_operand *image, int64_t channels) {
    h->view[factor].is_image = true;
    h->view[factor].along_depth = !h->depth_is_pixels;
    TRY(add_dim(h, factor, h->depth_is_pixels ? WALK_OUTER : WALK_DEPTH, 0, channels, image->channel_stride));
    for (int i = COORDINATES; i-- > 0;) {
        struct positions *at = &h->positions[i];
        int64_t last = at->corner + (at->count - 1) * at->stride + 1 - at->size;
        int64_t reach = at->offset + (at->tap_step > 0 ? (at->taps - 1) * at->tap_step : 0);
        int64_t most = g->spatial == COORDINATES ? VOLUME_CORNER_MAX : IMAGE_CORNER_MAX;
        if (at->stride > IMAGE_STRIDE_MAX || at->corner < -most || at->corner > most || last < -most || last > most ||
            reach > most)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: stride, padding or filter are larger than the copy engine walks: strides to %d, distances to "
                 "%lld.",
                 descriptor_label(h->c.node->op), IMAGE_STRIDE_MAX, (long long)most);
        if (i > 0 || g->spatial == COORDINATES)
            TRY(add_dim(h, factor, WALK_IMAGE, i, at->size, image->size_stride[i]));
    }
    return add_dim(h, factor, WALK_IMAGE, -1, g->n, image->outer_stride);
}

/* The filter under an image: its taps are part of the depth. */
static weftStatus_t add_filter(struct hopper *h, int factor, const struct conv_operand *w, struct view_dim depth,
                               struct view_dim outer) {
    TRY(add_matrix(h, factor, depth, outer));
    for (int i = COORDINATES; i-- > 0;) {
        h->taps[i] = w->size[i];
        TRY(add_dim(h, factor, WALK_TAP, i, w->size[i], w->size_stride[i]));
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
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i] = forward_positions(g, i);
    h->channels = g->c;
    TRY(add_image(h, image, g, &g->x, g->c));
    return add_filter(h, 1 - image, &g->w, (struct view_dim){WALK_DEPTH, 0, g->c, g->w.channel_stride},
                      (struct view_dim){WALK_OUTER, 0, g->k, g->w.outer_stride});
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
    return (struct positions){.count = (g->x.size[i] + phase->stride - 1) / phase->stride,
                              .stride = 1,
                              .corner = least,
                              .taps = (phase->taps + phase->tap_step - 1) / phase->tap_step,
                              .offset = most - least,
                              .tap_step = -moves,
                              .size = g->y.size[i],
                              .phase = phase};
}

static weftStatus_t shape_data(struct hopper *h, const struct conv_geometry *g, int image) {
    int phases = 0;
    for (int i = 0; i < COORDINATES; i++)
        h->positions[i] = g->stride[i] == 1 ? backward_positions(g, i) : phase_positions(g, i, &h->c.phases[phases++]);
    h->channels = g->k;
    TRY(add_image(h, image, g, &g->y, g->k));
    TRY(add_filter(h, 1 - image, &g->w, (struct view_dim){WALK_DEPTH, 0, g->k, g->w.outer_stride},
                   (struct view_dim){WALK_OUTER, 0, g->c, g->w.channel_stride}));
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

/* dy is a matrix of pixels and filters; x is the image, of which the result's other index counts taps and channels. */
static weftStatus_t shape_filter(struct hopper *h, const struct conv_geometry *g, int image) {
    int64_t pixels, stride;
    const struct conv_operand *w = &g->w;
    bool is_ordered = w->channel_stride == 1;
    for (int i = 0; i < COORDINATES; i++) {
        bool is_inner = i == COORDINATES - 1;
        int64_t next = is_inner ? g->c : w->size_stride[i + 1];
        is_ordered = is_ordered && (w->size[i] == 1 || (!is_inner && w->size[i + 1] == 1) || w->size_stride[i] >= next);
        h->positions[i] = forward_positions(g, i);
        h->taps[i] = 1;
    }
    if (!is_one_line(&g->y, g->n, &pixels, &stride) || !is_ordered || g->c % SLAB_ELEMENTS != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: filter gradients are multiplied here for channels last, multiples of %d of them, and pixels of dy "
             "without gaps.",
             descriptor_label(h->c.node->op), SLAB_ELEMENTS);
    h->depth_is_pixels = true;
    h->channels = pixels;
    TRY(add_image(h, image, g, &g->x, g->c));
    return add_matrix(h, 1 - image, (struct view_dim){WALK_DEPTH, 0, pixels, stride},
                      (struct view_dim){WALK_OUTER, 0, g->k, g->y.channel_stride});
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
    } else if (op_of(node->op) == &matmul_op) {
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its batch entries do not lie evenly apart.",
             descriptor_label(node->op));
    } else {
        struct conv_geometry g = conv_geometry(node->op);
        TRY(check_geometry(h, &g));
        int image = (g.direction == CONV_FILTER) != h->is_turned ? FACTOR_B : FACTOR_A;
        TRY(g.direction == CONV_FORWARD ? shape_forward(h, &g, image)
            : g.direction == CONV_DATA  ? shape_data(h, &g, image)
                                        : shape_filter(h, &g, image));
    }
    for (int f = 0; f < FACTORS; f++)
        TRY(check_view(h, f));
    return WEFT_STATUS_SUCCESS;
}
