/* SPDX-License-Identifier: Apache-2.0 */
/* Staged family: a fallback for tensors that kernels cannot address, because their types are narrower than a byte or in
   vectors, or that some kernels do not accept, such as softmax rows of one element. They are copied to plain tensors in
   the workspace, another family computes there, and results are copied back. */
#include "engines/cuda/map/copy_fallback.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "engines/cuda/map/copy.h"

#include <string.h>

enum { SCRATCH_ALIGNMENT = 256 }; /* bytes: a multiple of L2 lines, and larger than any access */

/* True for families that may compute on plain tensors: those that do not copy more. */
static bool can_compute_plain(const struct family *family) { return !family->wants_boxes; }

/* ---- Plain tensors ----------------------------------------------------------------------------------------------- */

/* True if several positions share an element of memory. */
static bool shares_elements(const struct tensor *tensor) {
    for (int64_t i = 0; i < tensor->strides.count; i++)
        if (tensor->strides.at[i] == 0 && tensor->dims.at[i] > 1)
            return true;
    return false;
}

/* Results cannot be written with a stride of 0, and some kernels reject it. */
static bool is_plain(const struct tensor *tensor) {
    return tensor->vector_count == 1 && cuda_type_name((weftDataType_t)tensor->type) && !shares_elements(tensor);
}

/* A type that kernels can address and that represents every value of `type`. If it is written, rounding from it to
   `type` must give the same result as rounding once: integers that saturate can saturate again, and float is exact
   before the only rounding. */
static weftDataType_t plain_type(weftDataType_t type, bool is_written) {
    switch (type) {
    case WEFT_DATA_BOOLEAN:
        return WEFT_DATA_BYTE_BOOLEAN;
    case WEFT_DATA_INT4:
        return WEFT_DATA_INT8;
    case WEFT_DATA_UINT4:
        return WEFT_DATA_UINT8;
    case WEFT_DATA_FP4_E2M1:
        return is_written ? WEFT_DATA_FLOAT : WEFT_DATA_HALF;
    default:
        return type;
    }
}

/* Packed strides in the order of the tensor's own. Allocated in `arena` and copied from the descriptor, so that errors
   name it as the user did. */
static weftStatus_t make_plain(struct tensor **out, const struct tensor *tensor, bool is_written, struct arena *arena) {
    struct tensor like = tensor_mirror(tensor), *plain;
    TRY(descriptor_mirror(arena, &plain, &tensor->base));
    plain->type = (int32_t)plain_type((weftDataType_t)tensor->type, is_written);
    plain->vector_count = 1;
    /* The copy is in memory, wherever its source was. */
    plain->is_by_value = plain->is_constant = false;
    /* SCRATCH_ALIGNMENT guarantees this. */
    plain->alignment = 16;
    plain->strides.count = 0;
    if (tensor->vector_count > 1) /* lanes stay adjacent */
        like.strides.at[tensor->vector_dim] = 0;
    tensor_infer_strides(plain, &like);
    *out = plain;
    return WEFT_STATUS_SUCCESS;
}

/* ---- The graph with plain tensors -------------------------------------------------------------------------------- */

/* Returns the index of a value in the list, or -1 if it is not found. */
static int find_staged(const struct staged *staged, int value) {
    for (int k = 0; k < staged->count; k++)
        if (staged->at[k].value == value)
            return k;
    return -1;
}

/* Its scratch follows all values added before. */
struct staged_value *staged_add(struct staged *staged, int value, const struct tensor *tensor,
                                const struct tensor *plain) {
    struct staged_value *added = &staged->at[staged->count++];
    *added = (struct staged_value){.value = value, .tensor = tensor, .plain = plain, .scratch = staged->scratch_bytes};
    staged->scratch_bytes += (tensor_bytes(plain) + SCRATCH_ALIGNMENT - 1) & -SCRATCH_ALIGNMENT;
    return added;
}

/* True if an operation reads the previous contents of its output (beta times the old result): the copy must contain
   them. */
static bool reads_outputs(const struct descriptor *op) {
    for (int i = 0; i < op->schema->row_count; i++) {
        const struct row *row = &op->schema->rows[i];
        if (row->type == WEFT_TYPE_DOUBLE && row->storage == STORE_VALUE && strcmp(row->key, "beta") == 0)
            return *(const double *)row_at(op, row) != 0;
    }
    return false;
}

/* Adds operand k of a node, unless it is plain. Values inside the region have no memory to copy, and their type is part
   of the region's semantics. */
static weftStatus_t note_operand(struct staged *staged, const struct region *region, const struct node *node, int k,
                                 struct arena *arena) {
    const struct value *value = &region->graph->values[node->operands[k]];
    bool is_made = region_makes(region, node->operands[k]);
    if (is_plain(value->tensor) || value_is_dead(value))
        return WEFT_STATUS_SUCCESS;
    if (is_made && !node->is_output[k])
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: %s would stay in registers with a different type",
             descriptor_label(node->op), descriptor_label(&value->tensor->base));
    int at = find_staged(staged, node->operands[k]);
    struct staged_value *operand = at < 0 ? NULL : &staged->at[at];
    if (!operand && staged->count == STAGED_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: more than %d tensors would be copied",
             descriptor_label(node->op), STAGED_MAX);
    if (!operand) {
        struct tensor *plain;
        TRY(make_plain(&plain, value->tensor, is_made, arena));
        operand = staged_add(staged, node->operands[k], value->tensor, plain);
    }
    operand->is_written = operand->is_written || node->is_output[k];
    operand->is_read = operand->is_read || !node->is_output[k] || reads_outputs(node->op);
    return WEFT_STATUS_SUCCESS;
}

/* Replaces a staged tensor by its plain one, for op_exchange. */
static struct tensor *exchange(const void *context, struct tensor *tensor) {
    const struct staged *staged = context;
    for (int k = 0; k < staged->count; k++)
        if (tensor == staged->at[k].tensor)
            return (struct tensor *)staged->at[k].plain;
    return tensor;
}

/* Copies an operation with the plain tensors as operands. Uses the schema's rows, which list every operation's
   tensors. */
static weftStatus_t exchange_operands(const struct staged *staged, struct node *node, struct arena *arena) {
    struct descriptor *op;
    TRY(op_exchange(&op, node->op, exchange, staged, arena));
    node->op = op;
    return WEFT_STATUS_SUCCESS;
}

/* Values keep their uids, and `outer` maps them to the whole graph. */
weftStatus_t staged_exchange(struct staged *staged, const struct region *region, struct arena *arena) {
    TRY(region_extract(&staged->region, &staged->outer, region, arena));
    for (int v = 0; v < staged->region.graph->value_count; v++) {
        int at = find_staged(staged, staged->outer[v]);
        if (at >= 0)
            staged->region.graph->values[v].tensor = (struct tensor *)staged->at[at].plain;
    }
    for (int i = 0; i < region->count; i++)
        TRY(exchange_operands(staged, &staged->region.graph->nodes[i], arena));
    return WEFT_STATUS_SUCCESS;
}

/* copying: the cost of the copies. Each copy is written and read once, hence the factor 2; its source is at most as
   large. */
static weftStatus_t analyse(struct staged *staged, const struct region *region, const struct device *device,
                            double *copying, struct arena *arena) {
    for (int i = 0; i < region->count; i++)
        for (int k = 0; k < region_node(region, i)->operand_count; k++)
            TRY(note_operand(staged, region, region_node(region, i), k, arena));
    if (staged->count == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: all of its tensors are plain already",
             descriptor_label(region_node(region, 0)->op));
    TRY(staged_exchange(staged, region, arena));
    staged->region.allow = 0;
    /* The cheapest of the engine's families that qualify. */
    TRY(engine_offer(&staged->inner, region->engine, &staged->region, device, can_compute_plain));
    *copying = 0;
    for (int k = 0; k < staged->count; k++)
        *copying += price_moving(2 * (double)tensor_bytes(staged->at[k].plain), device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct staged staged = {0};
    struct arena arena = {0};
    double copying = 0;
    weftStatus_t status = analyse(&staged, region, device, &copying, &arena);
    /* The analysis is discarded: build repeats it in the plan's arena. */
    offer->seconds = copying + staged.inner.seconds;
    arena_free(&arena);
    return status;
}

/* ---- Building steps ---------------------------------------------------------------------------------------------- */

/* Describes a side over the modes of the vectorized tensor: its dims, with the lanes right after the dim that they
   split. */
static struct side side_of(const struct staged_value *value, bool is_scratch) {
    const struct tensor *held = is_scratch ? value->plain : value->tensor;
    int64_t lanes = value->tensor->vector_count, held_lanes = held->vector_count;
    struct side side = {
        .tensor = held, .type = (weftDataType_t)held->type, .is_scratch = is_scratch, .scratch = value->scratch};
    for (int64_t i = 0; i < held->dims.count; i++) {
        /* Lanes are a mode of both sides: contiguous in vectors, along the dim in the plain tensor. */
        bool splits = lanes > 1 && i == value->tensor->vector_dim;
        side.extents[side.rank] = held->dims.at[i] / (splits ? lanes : 1);
        side.strides[side.rank++] = held->strides.at[i] * (splits ? lanes : held_lanes);
        if (splits) {
            side.extents[side.rank] = lanes;
            side.strides[side.rank++] = is_scratch ? held->strides.at[i] : 1;
        }
    }
    return side;
}

/* Adds kernels that copy inputs to the workspace or, with `back`, results from there. */
static weftStatus_t add_copies(struct cuda_step *state, const struct staged *staged, const struct region *region,
                               bool back, const struct device *device, struct arena *arena) {
    struct part parts[STAGED_MAX];
    int count = 0;
    for (int k = 0; k < staged->count; k++) {
        const struct staged_value *value = &staged->at[k];
        if (tensor_elements(value->tensor) == 0 || !(back ? value->is_written : value->is_read))
            continue;
        struct part *part = &parts[count++];
        *part = (struct part){.from = side_of(value, back), .to = side_of(value, !back)};
        part_order(part);
        part_merge(part);
    }
    return copy_add_kernels(state, region, parts, count, device, arena);
}

/* The inner step's workspace begins after the copies. Each value of the small graph is one of the whole graph, or an
   offset in the workspace (-1). */
weftStatus_t staged_build_inner(struct cuda_step *state, const struct staged *staged, const struct device *device,
                                const struct knob_choices *knobs, struct step *inner, struct arena *arena) {
    struct kernel_place *targets;
    int count = staged->region.graph->value_count;
    TRY(arena_alloc(arena, &targets, (size_t)count * sizeof *targets));
    for (int v = 0; v < count; v++) {
        int at = find_staged(staged, staged->outer[v]);
        targets[v] =
            (struct kernel_place){v, at < 0 ? staged->outer[v] : -1, at < 0 ? 0 : staged->at[at].scratch, NULL};
    }
    const struct offer *offer = &staged->inner;
    *inner = (struct step){
        .family = offer->family, .region = staged->region, .seconds = offer->seconds, .used = offer->used};
    TRY(offer->family->build(inner, device, knobs, arena));
    return kernels_take(state, inner->state, targets, count, staged->scratch_bytes, arena);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct staged *staged;
    struct cuda_step *state;
    double copying;
    TRY(arena_alloc(arena, &staged, sizeof *staged));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    TRY(analyse(staged, &step->region, device, &copying, arena));
    struct step inner;
    /* The kernels of all three phases run one after another, as one step. */
    TRY(add_copies(state, staged, &step->region, false, device, arena));
    TRY(staged_build_inner(state, staged, device, knobs, &inner, arena));
    TRY(add_copies(state, staged, &step->region, true, device, arena));
    step->workspace_bytes = staged->scratch_bytes + inner.workspace_bytes;
    step->seconds = copying + inner.seconds;
    return arena_print(arena, &step->detail, "%d tensors through plain copies, %s: %s", staged->count,
                       staged->inner.family->name, inner.detail ? inner.detail : "");
}

const struct family cuda_staged = {
    .name = "cuda.staged",
    .is_last_resort = true,
    .combines = true,
    .doc = "operations on types narrower than a byte and on vectorised tensors, by plain copies in the workspace",
    .accepts = accepts,
    .build = build,
};
