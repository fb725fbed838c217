/* SPDX-License-Identifier: Apache-2.0 */
/* From a product to the tensors that the copy engine would rather read: their types, dims and strides. It must not know
   time or kernels. */
#include "base/number.h"
#include "engines/cuda/product/packed/packed.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"

enum { ROW_BYTES = 16, BLOCK_BYTES = 128 }; /* what the copy engine wants rows to begin at; of a step along k */

/* ---- Which tensors, and of which types --------------------------------------------------------------------------- */

/* The one matmul or convolution; what is around it in the region is pointwise. */
static weftStatus_t find_product(struct repack_candidates *candidates, const struct region *region) {
    const struct node *first = region_node(region, 0);
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        bool is_product = op_of(node->op) == &matmul_op || conv_is(node->op);
        if (is_product && candidates->node)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s and %s: operands of one product are packed at a time.",
                 descriptor_label(candidates->node->op), descriptor_label(node->op));
        candidates->node = is_product ? node : candidates->node;
    }
    if (!candidates->node)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: there is no matmul or convolution whose operands to pack.",
             descriptor_label(first->op));
    return WEFT_STATUS_SUCCESS;
}

/* A candidate that still lies as its tensor does: type, dims and strides of `packed` follow. */
static weftStatus_t add_candidate(struct repack_candidates *candidates, int at, const struct region *region,
                                  const struct tensor *tensor) {
    struct repack_candidate *candidate = &candidates->at[at];
    if (tensor->is_by_value || tensor->is_constant || tensor->vector_count != 1 || tensor_elements(tensor) == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s is empty, vectorised or not in memory.",
             descriptor_label(candidates->node->op), descriptor_label(&tensor->base));
    *candidate = (struct repack_candidate){
        .value = graph_find_value(region->graph, tensor), .tensor = tensor, .packed = tensor_mirror(tensor)};
    /* The workspace holds it, so that it has an address and an alignment. */
    candidate->packed.is_virtual = false;
    candidate->packed.alignment = ROW_BYTES;
    candidate->tensor_view = tensor_mirror(tensor);
    return WEFT_STATUS_SUCCESS;
}

/* A and B as the contraction has them: what is slid over, and what it is multiplied with; of filter gradients dy
   and x. */
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

/* Types that some kernel's tensor cores multiply, floats as tf32. */
static bool fits_tensor_cores(weftDataType_t type) {
    return type == WEFT_DATA_FLOAT || type == WEFT_DATA_FP4_E2M1 || dtype_is_half(type) || dtype_is_fp8(type) ||
           is_int8(type);
}

/* Types for tensor cores in which both operands are exact: what is shorter is widened. Widened operands are always
   copied. */
static weftStatus_t find_types(struct repack_candidates *candidates) {
    struct repack_candidate *left = &candidates->at[PACKED_A], *right = &candidates->at[PACKED_B];
    /* Whole numbers of 4 bits are multiplied as 8. */
    for (int f = PACKED_A; f <= PACKED_B; f++) {
        struct tensor *packed = &candidates->at[f].packed;
        packed->type = packed->type == WEFT_DATA_INT4    ? WEFT_DATA_INT8
                       : packed->type == WEFT_DATA_UINT4 ? WEFT_DATA_UINT8
                                                         : packed->type;
    }
    weftDataType_t a = type_of(left), b = type_of(right);
    /* Pairs of FP8 types, and of signed and unsigned bytes, are multiplied as they are. */
    if (a != b && !(dtype_is_fp8(a) && dtype_is_fp8(b)) && !(is_int8(a) && is_int8(b))) {
        if (!fits_tensor_cores(a) || !fits_tensor_cores(b))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: no type of tensor cores holds both %s and %s.",
                 descriptor_label(candidates->node->op), dtype_of(a)->name, dtype_of(b)->name);
        /* Float holds both of two 16-bit types; a 16-bit type holds FP8, FP4 and bytes. */
        bool has_float = a == WEFT_DATA_FLOAT || b == WEFT_DATA_FLOAT || (dtype_is_half(a) && dtype_is_half(b));
        left->packed.type = right->packed.type = (int32_t)(has_float          ? WEFT_DATA_FLOAT
                                                           : dtype_is_half(a) ? a
                                                           : dtype_is_half(b) ? b
                                                                              : WEFT_DATA_HALF);
    }
    left->is_needed = left->packed.type != left->tensor->type;
    right->is_needed = right->packed.type != right->tensor->type;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Layouts ----------------------------------------------------------------------------------------------------- */

/* The packed tensor's strides: `dim` innermost, in rows of whole ROW_BYTES, and the others around it in the order in
   which they lie. Both views are of it, too: who cuts dims apart changes them after. */
static weftStatus_t lay_out(struct repack_candidate *candidate, int dim) {
    struct tensor *packed = &candidate->packed;
    const int64_t *like = candidate->tensor->strides.at, *dims = packed->dims.at;
    /* Elements in ROW_BYTES. */
    int64_t unit = ROW_BYTES * 8 / dtype_of(type_of(candidate))->bits;
    packed->strides.count = packed->dims.count;
    for (int64_t i = 0; i < packed->dims.count; i++) {
        int64_t stride = round_up(dims[dim], unit);
        for (int64_t j = 0; j < packed->dims.count; j++)
            /* The dims inside i: those nearer in the tensor; of equal strides the later ones. */
            if (j != i && j != dim && (like[i] > like[j] || (like[i] == like[j] && j > i)))
                stride *= dims[j];
        packed->strides.at[i] = i == dim ? 1 : stride;
    }
    candidate->packed_view = *packed;
    return tensor_check_reach(packed);
}

/* `k` of an operand, or where 16 bits lie along its other index already, that: MN-major operands need no copy. */
static int matrix_dim(const struct repack_candidate *candidate, int k, int other) {
    const int64_t *strides = candidate->tensor->strides.at;
    return dtype_is_half(type_of(candidate)) && strides[k] != 1 && strides[other] == 1 ? other : k;
}

/* What is summed lies innermost. Of a filter gradient that is the image's number, as pixels under taps are anywhere;
   but operands of 16 bits are transposed on the way (MN-major), and keep their channels. */
static weftStatus_t lay_out_operands(struct repack_candidates *candidates) {
    struct repack_candidate *left = &candidates->at[PACKED_A], *right = &candidates->at[PACKED_B];
    if (op_of(candidates->node->op) == &matmul_op) {
        int last = (int)left->tensor->dims.count - 1;
        TRY(lay_out(left, matrix_dim(left, last, last - 1)));
        return lay_out(right, matrix_dim(right, last - 1, last));
    }
    struct conv_geometry g = conv_geometry(candidates->node->op);
    int channel = (int)g.x.tensor->dims.count - g.spatial - 1;
    if (g.direction == CONV_FILTER && !dtype_is_half(type_of(left)))
        channel = 0;
    TRY(lay_out(left, channel));
    /* Of a data gradient the filters, behind their group if that has a dimension; of 16 bits channels, as NHWC has
       them. */
    bool is_swapped =
        g.direction == CONV_DATA && (!dtype_is_half(type_of(right)) || right->tensor->strides.at[channel - 1] == 1);
    return lay_out(right, is_swapped ? channel - 1 : channel);
}

/* ---- Merged groups ----------------------------------------------------------------------------------------------- */

/* Dims of filter_view, slowest first; taps follow. */
enum { MERGES, MERGING, FILTERS, BLOCKS, CHANNELS, TAPS };

/* A filter over merges, the groups merged in each, their filters, blocks of channels and channels in a block. All
   blocks, or the one that is the group's own, which in a merged filter lies on the diagonal. Dims 1 and 3, the group
   and its block, are those that copy_diagonal_region compares. */
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

/* Groups whose channels fill no block of the tensor cores are merged until they do, or all of them; of a filter
   gradient whose dy has its channels innermost also until merged groups of filters begin at ROW_BYTES, where the copy
   engine can read. Merging n groups multiplies n times as much. BLOCK_BYTES is the step along k of a product. */
static int64_t groups_to_merge(const struct repack_candidates *candidates, const struct conv_geometry *g) {
    weftDataType_t type = type_of(&candidates->at[PACKED_A]);
    int64_t block = BLOCK_BYTES * 8 / dtype_of(type)->bits, merged = 1;
    int64_t k = g->direction == CONV_DATA ? g->k : g->c;
    int64_t start = g->direction == CONV_FILTER && dtype_is_half(type) ? ROW_BYTES * 8 / dtype_of(type)->bits : 1;
    while (merged < g->groups && (g->groups % merged != 0 || merged * k % block != 0 || merged * g->k % start != 0))
        merged++;
    return merged;
}

/* Of the filter, which is copied to the diagonal; of a filter gradient, whose diagonal alone is copied back. What is
   not finite reaches neighbouring groups as 0 * NaN, see packed.c. */
static weftStatus_t merge_groups(struct repack_candidates *candidates, const struct region *region) {
    struct conv_geometry g = {.groups = 1};
    if (conv_is(candidates->node->op))
        g = conv_geometry(candidates->node->op);
    int64_t merged = g.groups > 1 ? groups_to_merge(candidates, &g) : 1;
    bool is_result = g.direction == CONV_FILTER;
    /* Of a filter gradient the product makes the merged filter: what is behind it, or an old value, would meet that. */
    if (merged == 1 || g.w.tensor->dims.count != g.spatial + 2 || (is_result && (region->count > 1 || g.beta != 0)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: there are no narrow groups to merge.",
             descriptor_label(candidates->node->op));
    if (is_result)
        TRY(add_candidate(candidates, PACKED_RESULT, region, g.w.tensor));
    struct repack_candidate *candidate = &candidates->at[is_result ? PACKED_RESULT : PACKED_B];
    bool is_swapped = g.direction == CONV_DATA && !dtype_is_half(type_of(candidate));
    candidate->packed.dims.at[1] = merged * g.c;
    TRY(lay_out(candidate, is_swapped ? 0 : 1));
    candidate->tensor_view = filter_view(candidate->tensor, &g, merged, false, false);
    candidate->packed_view = filter_view(&candidate->packed, &g, merged, !is_result, is_result);
    candidate->is_diagonal = !is_result;
    candidate->is_needed = true;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Patches ----------------------------------------------------------------------------------------------------- */

/* Each pixel is under one tap at most, and taps tile the image from its first pixel on. */
static bool never_overlaps(const struct conv_geometry *g) {
    bool never = g->direction != CONV_DATA && g->groups == 1 && !g->flip && g->spatial <= 2 &&
                 g->w.tensor->dims.count == g->spatial + 2;
    for (int i = 0; i < 3; i++)
        never = never && g->stride[i] == g->w.size[i] && (g->dilation[i] == 1 || g->w.size[i] == 1) && g->pre[i] == 0 &&
                g->y.size[i] * g->stride[i] <= g->x.size[i];
    return never && g->w.size[0] * g->w.size[1] * g->w.size[2] > 1;
}

/* One more dim of both views: strides in the tensor and in the packed one. */
static void add_mode(struct repack_candidate *candidate, int64_t extent, int64_t stride, int64_t packed_stride) {
    struct tensor *from = &candidate->tensor_view, *to = &candidate->packed_view;
    from->strides.at[from->dims.count] = stride;
    to->strides.at[to->dims.count] = packed_stride;
    from->dims.at[from->dims.count++] = to->dims.at[to->dims.count++] = extent;
    from->strides.count = to->strides.count = to->dims.count;
}

/* An image as patches, or a filter, which has one: channels and taps are one dimension of the packed tensor. `dim`: of
   the packed tensor, innermost. */
static weftStatus_t make_patches(struct repack_candidate *candidate, const struct conv_geometry *g,
                                 const struct conv_operand *operand, int dim, bool is_filter) {
    struct tensor *packed = &candidate->packed;
    int first = 3 - g->spatial;
    int64_t taps = g->w.size[0] * g->w.size[1] * g->w.size[2];
    packed->dims.at[1] = g->c * taps;
    for (int i = first; i < 3; i++)
        packed->dims.at[2 + i - first] = is_filter ? 1 : g->y.size[i];
    TRY(lay_out(candidate, dim));
    candidate->tensor_view.dims.count = candidate->packed_view.dims.count = 0;
    add_mode(candidate, packed->dims.at[0], operand->outer_stride, packed->strides.at[0]);
    /* A channel of the packed tensor is channel * taps + tap, taps slowest dimension first. */
    add_mode(candidate, g->c, operand->channel_stride, taps * packed->strides.at[1]);
    for (int i = first; i < 3; i++) {
        taps /= g->w.size[i];
        add_mode(candidate, g->w.size[i], operand->size_stride[i], taps * packed->strides.at[1]);
    }
    for (int i = first; i < 3 && !is_filter; i++)
        add_mode(candidate, g->y.size[i], g->stride[i] * operand->size_stride[i], packed->strides.at[2 + i - first]);
    candidate->is_needed = true;
    return WEFT_STATUS_SUCCESS;
}

/* Image and filter both, or image and result; dy stays as it is. */
static weftStatus_t cut_patches(struct repack_candidates *candidates, const struct region *region) {
    struct conv_geometry g = {.groups = 0};
    if (conv_is(candidates->node->op))
        g = conv_geometry(candidates->node->op);
    bool is_result = g.direction == CONV_FILTER;
    if (!g.groups || !never_overlaps(&g) || (is_result && (region->count > 1 || g.beta != 0)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its taps overlap or there is one, and are no patches.",
             descriptor_label(candidates->node->op));
    if (is_result)
        TRY(add_candidate(candidates, PACKED_RESULT, region, g.w.tensor));
    struct repack_candidate *image = &candidates->at[is_result ? PACKED_B : PACKED_A];
    TRY(make_patches(image, &g, &g.x, is_result && !dtype_is_half(type_of(image)) ? 0 : 1, false));
    return make_patches(&candidates->at[is_result ? PACKED_RESULT : PACKED_B], &g, &g.w, 1, true);
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

/* Whether a convolution sees some lines, or planes, of its image only. i: 0 or 1 of the three spatial dims. */
static bool skips(const struct conv_geometry *g, int i) {
    return i >= 3 - g->spatial && i < 2 && g->w.size[i] == 1 && g->stride[i] > 1 && g->pre[i] == 0 &&
           (g->y.size[i] - 1) * g->stride[i] < g->x.size[i];
}

/* The image is copied without the lines between, and the convolution's stride becomes 1. */
static weftStatus_t leave_lines_out(struct repack_candidates *candidates) {
    struct conv_geometry g = {.groups = 0};
    if (conv_is(candidates->node->op))
        g = conv_geometry(candidates->node->op);
    if (!g.groups || g.direction == CONV_DATA || (!skips(&g, 0) && !skips(&g, 1)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it sees all lines of an image.",
             descriptor_label(candidates->node->op));
    struct repack_candidate *image = &candidates->at[g.direction == CONV_FILTER ? PACKED_B : PACKED_A];
    /* The dim that lay_out_operands put innermost stays there. */
    int inner = 0;
    while (image->packed.strides.at[inner] != 1)
        inner++;
    for (int i = 0; i < 2; i++) {
        int64_t dim = image->packed.dims.count - 3 + i;
        if (!skips(&g, i))
            continue;
        image->packed.dims.at[dim] = image->tensor_view.dims.at[dim] = g.y.size[i];
        image->tensor_view.strides.at[dim] *= g.stride[i];
    }
    image->is_needed = true;
    return lay_out(image, inner);
}

/* The operation belongs to the staged graph, a copy; its parameters are shared with the user's, and copied here. */
weftStatus_t repack_rewrite(const struct repack_candidates *candidates, const struct descriptor *op,
                            struct arena *arena) {
    struct conv_op *conv = (struct conv_op *)op;
    struct convolution *parameters;
    if (candidates->writing != PATCHES && candidates->writing != LINES)
        return WEFT_STATUS_SUCCESS;
    TRY(arena_copy(arena, &parameters, conv->parameters, sizeof *parameters));
    conv->parameters = parameters;
    if (candidates->writing == PATCHES) {
        parameters->stride.count = parameters->dilation.count = 0; /* 1 */
        parameters->pre_padding.count = parameters->post_padding.count = 0;
        return WEFT_STATUS_SUCCESS;
    }
    struct conv_geometry g = conv_geometry(candidates->node->op);
    for (int i = 3 - g.spatial; i < 2; i++)
        if (skips(&g, i)) {
            parameters->stride.at[i - 3 + g.spatial] = 1;
            parameters->post_padding.at[i - 3 + g.spatial] = 0;
        }
    return WEFT_STATUS_SUCCESS;
}

/* ---- The result -------------------------------------------------------------------------------------------------- */

/* A tensor that could lie as the product's result does, with its channels innermost, and does not. */
static bool is_across(const struct tensor *tensor, const struct tensor *made, int channel) {
    return tensor_same_dims(tensor, made) && tensor->strides.at[channel] != 1;
}

/* A candidate with rows of channels. */
static weftStatus_t add_rows(struct repack_candidates *candidates, int at, const struct region *region, int value,
                             int channel) {
    TRY(add_candidate(candidates, at, region, region->graph->values[value].tensor));
    return lay_out(&candidates->at[at], channel);
}

/* The one tensor of its size that a convolution and what is behind it leave, and one that these read: rows of channels
   are stored whole, and transposed where another dimension shall lie innermost. Without such a pair there is no
   candidate, and no error. */
static weftStatus_t add_result(struct repack_candidates *candidates, const struct region *region) {
    if (!conv_is(candidates->node->op) || candidates->at[PACKED_RESULT].tensor)
        return WEFT_STATUS_SUCCESS;
    struct conv_geometry g = conv_geometry(candidates->node->op);
    const struct tensor *made = (g.direction == CONV_FORWARD ? &g.y : g.direction == CONV_DATA ? &g.x : &g.w)->tensor;
    int channel = (int)made->dims.count - g.spatial - 1, result = -1, operand = -1, results = 0;
    for (int i = 0; i < region->count; i++)
        for (int k = 0; k < region_node(region, i)->operand_count; k++) {
            const struct node *node = region_node(region, i);
            const struct value *value = &region->graph->values[node->operands[k]];
            /* The product itself leaves a result; of the others, tensors that lie across count. */
            if (node == candidates->node ? !node->is_output[k] : !is_across(value->tensor, made, channel))
                continue;
            if (node->is_output[k] && region_exports(region, node->operands[k])) {
                result = node->operands[k];
                results++;
            } else if (!node->is_output[k] && (value->producer < 0 || !region_has(region, value->producer)))
                operand = node->operands[k];
        }
    if (results != 1 || g.beta != 0 || !is_across(region->graph->values[result].tensor, made, channel))
        return WEFT_STATUS_SUCCESS;
    TRY(add_rows(candidates, PACKED_RESULT, region, result, channel));
    /* An operand of the product is exchanged already. */
    if (operand < 0 || operand == candidates->at[PACKED_A].value || operand == candidates->at[PACKED_B].value)
        return WEFT_STATUS_SUCCESS;
    return add_rows(candidates, PACKED_OPERAND, region, operand, channel);
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

/* Each writing starts from the layouts that the product would have as it is. */
weftStatus_t repack_find(struct repack_candidates *candidates, const struct region *region, enum writing writing) {
    *candidates = (struct repack_candidates){.writing = writing};
    TRY(find_product(candidates, region));
    TRY(add_operands(candidates, region));
    TRY(find_types(candidates));
    TRY(lay_out_operands(candidates));
    TRY(writing == MERGED    ? merge_groups(candidates, region)
        : writing == PATCHES ? cut_patches(candidates, region)
        : writing == LINES   ? leave_lines_out(candidates)
                             : WEFT_STATUS_SUCCESS);
    return add_result(candidates, region);
}
