/* SPDX-License-Identifier: Apache-2.0 */
/* For a product, the tensors that TMA could read better: their types, dims and strides. This file must not know times
   or kernels. */
#include "base/number.h"
#include "engines/cuda/product/repack/repack.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"

enum { ROW_BYTES = 16, BLOCK_BYTES = 128 }; /* alignment of rows for TMA; bytes of a step along k */

/* ---- Tensors and types ------------------------------------------------------------------------------------------- */

/* Finds the only matmul or convolution; the other nodes of the region are pointwise. */
static weftStatus_t find_product(struct repack_candidates *candidates, const struct region *region) {
    const struct node *first = region_node(region, 0);
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        bool is_product = op_of(node->op) == &matmul_op || conv_is(node->op);
        if (is_product && candidates->node)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s and %s: only the operands of one product can be repacked at a time.",
                 descriptor_label(candidates->node->op), descriptor_label(node->op));
        candidates->node = is_product ? node : candidates->node;
    }
    if (!candidates->node)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: the region has no matmul or convolution whose operands could be repacked.",
             descriptor_label(first->op));
    return WEFT_STATUS_SUCCESS;
}

/* Adds a candidate with the tensor's own layout; type, dims and strides of `packed` are set later. */
static weftStatus_t add_candidate(struct repack_candidates *candidates, int at, const struct region *region,
                                  const struct tensor *tensor) {
    struct repack_candidate *candidate = &candidates->at[at];
    if (tensor->is_by_value || tensor->is_constant || tensor->vector_count != 1 || tensor_elements(tensor) == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s is empty, vectorised or not in memory.",
             descriptor_label(candidates->node->op), descriptor_label(&tensor->base));
    *candidate = (struct repack_candidate){
        .value = graph_find_value(region->graph, tensor), .tensor = tensor, .packed = tensor_mirror(tensor)};
    /* It is in the workspace, so it has an address and an alignment. */
    candidate->packed.is_virtual = false;
    candidate->packed.alignment = ROW_BYTES;
    candidate->tensor_view = tensor_mirror(tensor);
    return WEFT_STATUS_SUCCESS;
}

/* Adds A and B as in the contraction: the image and the filter; for filter gradients dy and x. */
static weftStatus_t add_operands(struct repack_candidates *candidates, const struct region *region) {
    if (op_of(candidates->node->op) == &matmul_op) {
        const struct matmul_op *op = (const struct matmul_op *)candidates->node->op;
        TRY(add_candidate(candidates, PACKED_A, region, op->a));
        return add_candidate(candidates, PACKED_B, region, op->b);
    }
    struct conv_geometry g = conv_geometry(candidates->node->op);
    TRY(add_candidate(candidates, PACKED_A, region, g.direction == CONV_FORWARD ? g.x.tensor : g.y.tensor));
    return add_candidate(candidates, PACKED_B, region, g.direction == CONV_FILTER ? g.x.tensor : g.w.tensor);
}

static weftDataType_t type_of(const struct repack_candidate *candidate) {
    return (weftDataType_t)candidate->packed.type;
}

static bool is_int8(weftDataType_t type) { return type == WEFT_DATA_INT8 || type == WEFT_DATA_UINT8; }

/* Types that the tensor cores of some kernel multiply, floats as tf32. */
static bool fits_tensor_cores(weftDataType_t type) {
    return type == WEFT_DATA_FLOAT || type == WEFT_DATA_FP4_E2M1 || dtype_is_half(type) || dtype_is_fp8(type) ||
           is_int8(type);
}

/* Chooses types for tensor cores that represent both operands exactly: the narrower one is widened. Widened operands
   are always copied. */
static weftStatus_t find_types(struct repack_candidates *candidates) {
    struct repack_candidate *left = &candidates->at[PACKED_A], *right = &candidates->at[PACKED_B];
    /* 4-bit integers are multiplied as 8-bit ones. */
    for (int f = PACKED_A; f <= PACKED_B; f++) {
        struct tensor *packed = &candidates->at[f].packed;
        packed->type = packed->type == WEFT_DATA_INT4    ? WEFT_DATA_INT8
                       : packed->type == WEFT_DATA_UINT4 ? WEFT_DATA_UINT8
                                                         : packed->type;
    }
    weftDataType_t a = type_of(left), b = type_of(right);
    /* Pairs of FP8 types, and of signed and unsigned bytes, are multiplied unchanged. */
    if (a != b && !(dtype_is_fp8(a) && dtype_is_fp8(b)) && !(is_int8(a) && is_int8(b))) {
        if (!fits_tensor_cores(a) || !fits_tensor_cores(b))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: no type of tensor cores represents both %s and %s.",
                 descriptor_label(candidates->node->op), dtype_of(a)->name, dtype_of(b)->name);
        /* Float represents both of two 16-bit types; a 16-bit type represents FP8, FP4 and bytes. */
        bool has_float = a == WEFT_DATA_FLOAT || b == WEFT_DATA_FLOAT || (dtype_is_half(a) && dtype_is_half(b));
        left->packed.type = right->packed.type = (int32_t)(has_float          ? WEFT_DATA_FLOAT
                                                           : dtype_is_half(a) ? a
                                                           : dtype_is_half(b) ? b
                                                                              : WEFT_DATA_HALF);
    }
    left->must_replace = left->packed.type != left->tensor->type;
    right->must_replace = right->packed.type != right->tensor->type;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Layouts ----------------------------------------------------------------------------------------------------- */

/* Sets the packed tensor's strides: `dim` is innermost, with rows padded to ROW_BYTES, and the other dims keep their
   order. The packed view gets the same strides; callers that split dims change it afterwards. */
static weftStatus_t set_layout(struct repack_candidate *candidate, int dim) {
    struct tensor *packed = &candidate->packed;
    const int64_t *like = candidate->tensor->strides.at, *dims = packed->dims.at;
    /* Elements per ROW_BYTES. */
    int64_t unit = ROW_BYTES * 8 / dtype_of(type_of(candidate))->bits;
    packed->strides.count = packed->dims.count;
    for (int64_t i = 0; i < packed->dims.count; i++) {
        int64_t stride = round_up(dims[dim], unit);
        for (int64_t j = 0; j < packed->dims.count; j++)
            /* Multiplies by the dims inside i, which have smaller strides or, among equal strides, come later. */
            if (j != i && j != dim && (like[i] > like[j] || (like[i] == like[j] && j > i)))
                stride *= dims[j];
        packed->strides.at[i] = i == dim ? 1 : stride;
    }
    candidate->packed_view = *packed;
    return tensor_check_reach(packed);
}

/* `k` of an operand, or its other index if 16-bit elements are already contiguous along that one: MN-major operands
   need no copy. */
static int matrix_dim(const struct repack_candidate *candidate, int k, int other) {
    const int64_t *strides = candidate->tensor->strides.at;
    return dtype_is_half(type_of(candidate)) && strides[k] != 1 && strides[other] == 1 ? other : k;
}

/* The summed dimension becomes innermost. For a filter gradient that is the image's number, because pixels under taps
   are not contiguous; but 16-bit operands keep their channels innermost, because wgmma transposes them (MN-major). */
static weftStatus_t set_operand_layouts(struct repack_candidates *candidates) {
    struct repack_candidate *left = &candidates->at[PACKED_A], *right = &candidates->at[PACKED_B];
    if (op_of(candidates->node->op) == &matmul_op) {
        int last = (int)left->tensor->dims.count - 1;
        TRY(set_layout(left, matrix_dim(left, last, last - 1)));
        return set_layout(right, matrix_dim(right, last - 1, last));
    }
    struct conv_geometry g = conv_geometry(candidates->node->op);
    int channel = (int)g.x.tensor->dims.count - g.spatial - 1;
    if (g.direction == CONV_FILTER && !dtype_is_half(type_of(left)))
        channel = 0;
    TRY(set_layout(left, channel));
    /* For a data gradient, the filters become innermost, after the group if it has a separate dimension; for 16-bit
       types the channels (NHWC). */
    bool is_swapped =
        g.direction == CONV_DATA && (!dtype_is_half(type_of(right)) || right->tensor->strides.at[channel - 1] == 1);
    return set_layout(right, is_swapped ? channel - 1 : channel);
}

/* ---- Merged groups ----------------------------------------------------------------------------------------------- */

/* Dims of filter_view, slowest first; taps follow. */
enum { MERGES, MERGING, FILTERS, BLOCKS, CHANNELS, TAPS };

/* A filter as a tensor over merges, the groups merged in each, their filters, blocks of channels and channels in a
   block. It covers either all blocks, or only the group's own one, which is on the diagonal of a merged filter.
   copy_diagonal_region compares dims 1 and 3, the group and its block. */
static struct tensor filter_view(const struct tensor *tensor, const struct conv_geometry *g, int64_t merged,
                                 bool has_blocks, bool is_diagonal) {
    struct tensor view = tensor_mirror(tensor);
    int64_t filter = tensor->strides.at[0], channel = tensor->strides.at[1];
    const int64_t dims[] = {g->groups / merged, merged, g->k, has_blocks ? merged : 1, g->c};
    const int64_t strides[] = {merged * g->k * filter, g->k * filter + (is_diagonal ? g->c * channel : 0), filter,
                               g->c * channel, channel};
    view.dims.count = view.strides.count = tensor->dims.count - 2 + TAPS;
    for (int64_t i = 0; i < view.dims.count; i++) {
        view.dims.at[i] = i < TAPS ? dims[i] : tensor->dims.at[i - TAPS + 2];
        view.strides.at[i] = i < TAPS ? strides[i] : tensor->strides.at[i - TAPS + 2];
    }
    return view;
}

/* Groups whose channels do not fill a block of the tensor cores are merged until they do, or all of them. For a filter
   gradient whose dy has its channels innermost, merged groups of filters must also start at multiples of ROW_BYTES,
   where TMA can read. Merging n groups multiplies the work by n. BLOCK_BYTES is the step along k of a product. */
static int64_t groups_to_merge(const struct repack_candidates *candidates, const struct conv_geometry *g) {
    weftDataType_t type = type_of(&candidates->at[PACKED_A]);
    int64_t block = BLOCK_BYTES * 8 / dtype_of(type)->bits, merged = 1;
    int64_t k = g->direction == CONV_DATA ? g->k : g->c;
    int64_t start = g->direction == CONV_FILTER && dtype_is_half(type) ? ROW_BYTES * 8 / dtype_of(type)->bits : 1;
    while (merged < g->groups && (g->groups % merged != 0 || merged * k % block != 0 || merged * g->k % start != 0))
        merged++;
    return merged;
}

/* Merges the groups of the filter, which is copied to the diagonal, or of a filter gradient, of which only the diagonal
   is copied back. Infinities and NaN affect adjacent groups because of 0 * NaN, see repack.c. */
static weftStatus_t merge_groups(struct repack_candidates *candidates, const struct region *region) {
    struct conv_geometry g = {.groups = 1};
    if (conv_is(candidates->node->op))
        g = conv_geometry(candidates->node->op);
    int64_t merged = g.groups > 1 ? groups_to_merge(candidates, &g) : 1;
    bool is_result = g.direction == CONV_FILTER;
    /* For a filter gradient, the product computes the merged filter, so it must have no epilogue and no old value. */
    if (merged == 1 || g.w.tensor->dims.count != g.spatial + 2 || (is_result && (region->count > 1 || g.beta != 0)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it has no narrow groups to merge.",
             descriptor_label(candidates->node->op));
    if (is_result)
        TRY(add_candidate(candidates, PACKED_RESULT, region, g.w.tensor));
    struct repack_candidate *candidate = &candidates->at[is_result ? PACKED_RESULT : PACKED_B];
    bool is_swapped = g.direction == CONV_DATA && !dtype_is_half(type_of(candidate));
    candidate->packed.dims.at[1] = merged * g.c;
    TRY(set_layout(candidate, is_swapped ? 0 : 1));
    candidate->tensor_view = filter_view(candidate->tensor, &g, merged, false, false);
    candidate->packed_view = filter_view(&candidate->packed, &g, merged, !is_result, is_result);
    candidate->is_diagonal = !is_result;
    candidate->must_replace = true;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Patches ----------------------------------------------------------------------------------------------------- */

/* True if each pixel is read by at most one tap, and taps tile the image, starting at its first pixel. */
static bool has_disjoint_taps(const struct conv_geometry *g) {
    bool is_disjoint = g->direction != CONV_DATA && g->groups == 1 && !g->flip && g->spatial <= 2 &&
                       g->w.tensor->dims.count == g->spatial + 2;
    for (int i = 0; i < 3; i++)
        is_disjoint = is_disjoint && g->stride[i] == g->w.size[i] && (g->dilation[i] == 1 || g->w.size[i] == 1) &&
                      g->pre[i] == 0 && g->y.size[i] * g->stride[i] <= g->x.size[i];
    return is_disjoint && g->w.size[0] * g->w.size[1] * g->w.size[2] > 1;
}

/* Adds a dim to both views: strides in the tensor and in the packed one. */
static void add_mode(struct repack_candidate *candidate, int64_t extent, int64_t stride, int64_t packed_stride) {
    struct tensor *from = &candidate->tensor_view, *to = &candidate->packed_view;
    from->strides.at[from->dims.count] = stride;
    to->strides.at[to->dims.count] = packed_stride;
    from->dims.at[from->dims.count++] = to->dims.at[to->dims.count++] = extent;
    from->strides.count = to->strides.count = to->dims.count;
}

/* Makes patches of an image, or of a filter, which is a single patch: channels and taps become one dimension of the
   packed tensor. `dim`: the innermost dim of the packed tensor. */
static weftStatus_t make_patches(struct repack_candidate *candidate, const struct conv_geometry *g,
                                 const struct conv_operand *operand, int dim, bool is_filter) {
    struct tensor *packed = &candidate->packed;
    int first = 3 - g->spatial;
    int64_t taps = g->w.size[0] * g->w.size[1] * g->w.size[2];
    packed->dims.at[1] = g->c * taps;
    for (int i = first; i < 3; i++)
        packed->dims.at[2 + i - first] = is_filter ? 1 : g->y.size[i];
    TRY(set_layout(candidate, dim));
    candidate->tensor_view.dims.count = candidate->packed_view.dims.count = 0;
    add_mode(candidate, packed->dims.at[0], operand->outer_stride, packed->strides.at[0]);
    /* A channel of the packed tensor is channel * taps + tap, with the taps of the slowest dimension first. */
    add_mode(candidate, g->c, operand->channel_stride, taps * packed->strides.at[1]);
    for (int i = first; i < 3; i++) {
        taps /= g->w.size[i];
        add_mode(candidate, g->w.size[i], operand->size_stride[i], taps * packed->strides.at[1]);
    }
    for (int i = first; i < 3 && !is_filter; i++)
        add_mode(candidate, g->y.size[i], g->stride[i] * operand->size_stride[i], packed->strides.at[2 + i - first]);
    candidate->must_replace = true;
    return WEFT_STATUS_SUCCESS;
}

/* Rewrites image and filter, or image and result; dy is unchanged. */
static weftStatus_t cut_patches(struct repack_candidates *candidates, const struct region *region) {
    struct conv_geometry g = {.groups = 0};
    if (conv_is(candidates->node->op))
        g = conv_geometry(candidates->node->op);
    bool is_result = g.direction == CONV_FILTER;
    if (!g.groups || !has_disjoint_taps(&g) || (is_result && (region->count > 1 || g.beta != 0)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it has a single tap, or its taps overlap.",
             descriptor_label(candidates->node->op));
    if (is_result)
        TRY(add_candidate(candidates, PACKED_RESULT, region, g.w.tensor));
    struct repack_candidate *image = &candidates->at[is_result ? PACKED_B : PACKED_A];
    TRY(make_patches(image, &g, &g.x, is_result && !dtype_is_half(type_of(image)) ? 0 : 1, false));
    return make_patches(&candidates->at[is_result ? PACKED_RESULT : PACKED_B], &g, &g.w, 1, true);
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

/* True if a convolution reads only some lines, or planes, of its image. i: 0 or 1 of the three spatial dims. */
static bool reads_some_lines(const struct conv_geometry *g, int i) {
    return i >= 3 - g->spatial && i < 2 && g->w.size[i] == 1 && g->stride[i] > 1 && g->pre[i] == 0 &&
           (g->y.size[i] - 1) * g->stride[i] < g->x.size[i];
}

/* Copies only the lines of the image that are read; the convolution's stride becomes 1. */
static weftStatus_t skip_lines(struct repack_candidates *candidates) {
    struct conv_geometry g = {.groups = 0};
    if (conv_is(candidates->node->op))
        g = conv_geometry(candidates->node->op);
    if (!g.groups || g.direction == CONV_DATA || (!reads_some_lines(&g, 0) && !reads_some_lines(&g, 1)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it reads all lines of the image.",
             descriptor_label(candidates->node->op));
    struct repack_candidate *image = &candidates->at[g.direction == CONV_FILTER ? PACKED_B : PACKED_A];
    /* The dim that set_operand_layouts made innermost stays innermost. */
    int inner = 0;
    while (image->packed.strides.at[inner] != 1)
        inner++;
    for (int i = 0; i < 2; i++) {
        int64_t dim = image->packed.dims.count - 3 + i;
        if (!reads_some_lines(&g, i))
            continue;
        image->packed.dims.at[dim] = image->tensor_view.dims.at[dim] = g.y.size[i];
        image->tensor_view.strides.at[dim] *= g.stride[i];
    }
    image->must_replace = true;
    return set_layout(image, inner);
}

/* The operation belongs to the staged graph, a copy; its parameters are shared with the user's graph, so they are
   copied here. */
weftStatus_t repack_rewrite(const struct repack_candidates *candidates, const struct descriptor *op,
                            struct arena *arena) {
    struct conv_op *conv = (struct conv_op *)op;
    struct convolution *parameters;
    if (candidates->rewrite != PATCHES && candidates->rewrite != LINES)
        return WEFT_STATUS_SUCCESS;
    TRY(arena_copy(arena, &parameters, conv->parameters, sizeof *parameters));
    conv->parameters = parameters;
    if (candidates->rewrite == PATCHES) {
        parameters->stride.count = parameters->dilation.count = 0; /* default: 1 */
        parameters->pre_padding.count = parameters->post_padding.count = 0;
        return WEFT_STATUS_SUCCESS;
    }
    struct conv_geometry g = conv_geometry(candidates->node->op);
    for (int i = 3 - g.spatial; i < 2; i++)
        if (reads_some_lines(&g, i)) {
            parameters->stride.at[i - 3 + g.spatial] = 1;
            parameters->post_padding.at[i - 3 + g.spatial] = 0;
        }
    return WEFT_STATUS_SUCCESS;
}

/* ---- The result -------------------------------------------------------------------------------------------------- */

/* True if a tensor has the dims of the product's result, but its channels are not innermost. */
static bool has_other_layout(const struct tensor *tensor, const struct tensor *result_tensor, int channel) {
    return tensor_same_dims(tensor, result_tensor) && tensor->strides.at[channel] != 1;
}

/* Adds a candidate with contiguous channels. */
static weftStatus_t add_rows(struct repack_candidates *candidates, int at, const struct region *region, int value,
                             int channel) {
    TRY(add_candidate(candidates, at, region, region->graph->values[value].tensor));
    return set_layout(&candidates->at[at], channel);
}

/* Adds the only tensor of the result's size that a convolution and its epilogue store, and one that the epilogue reads:
   the product stores rows of channels as a whole, and a copy transposes them to the layout with another innermost
   dimension. Without such a tensor no candidate is added, which is not an error. */
static weftStatus_t add_result(struct repack_candidates *candidates, const struct region *region) {
    if (!conv_is(candidates->node->op) || candidates->at[PACKED_RESULT].tensor)
        return WEFT_STATUS_SUCCESS;
    struct conv_geometry g = conv_geometry(candidates->node->op);
    const struct tensor *result_tensor = (g.direction == CONV_FORWARD ? &g.y
                                          : g.direction == CONV_DATA  ? &g.x
                                                                      : &g.w)
                                             ->tensor;
    int channel = (int)result_tensor->dims.count - g.spatial - 1, result = -1, operand = -1, results = 0;
    for (int i = 0; i < region->count; i++)
        for (int k = 0; k < region_node(region, i)->operand_count; k++) {
            const struct node *node = region_node(region, i);
            const struct value *value = &region->graph->values[node->operands[k]];
            /* The product always has a result; of the other nodes, only tensors with another innermost dimension
               count. */
            if (node == candidates->node ? !node->is_output[k]
                                         : !has_other_layout(value->tensor, result_tensor, channel))
                continue;
            if (node->is_output[k] && region_exports(region, node->operands[k])) {
                result = node->operands[k];
                results++;
            } else if (!node->is_output[k] && (value->producer < 0 || !region_has(region, value->producer)))
                operand = node->operands[k];
        }
    if (results != 1 || g.beta != 0 || !has_other_layout(region->graph->values[result].tensor, result_tensor, channel))
        return WEFT_STATUS_SUCCESS;
    TRY(add_rows(candidates, PACKED_RESULT, region, result, channel));
    /* Operands of the product are candidates already. */
    if (operand < 0 || operand == candidates->at[PACKED_A].value || operand == candidates->at[PACKED_B].value)
        return WEFT_STATUS_SUCCESS;
    return add_rows(candidates, PACKED_OPERAND, region, operand, channel);
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

/* Each rewrite starts from the layouts of the unchanged product. */
weftStatus_t repack_find(struct repack_candidates *candidates, const struct region *region, enum rewrite rewrite) {
    *candidates = (struct repack_candidates){.rewrite = rewrite};
    TRY(find_product(candidates, region));
    TRY(add_operands(candidates, region));
    TRY(find_types(candidates));
    TRY(set_operand_layouts(candidates));
    TRY(rewrite == MERGED    ? merge_groups(candidates, region)
        : rewrite == PATCHES ? cut_patches(candidates, region)
        : rewrite == LINES   ? skip_lines(candidates)
                             : WEFT_STATUS_SUCCESS);
    return add_result(candidates, region);
}
