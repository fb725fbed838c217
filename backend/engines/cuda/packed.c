/* SPDX-License-Identifier: Apache-2.0 */
/* The packed family: products whose factors the copy engine cannot read as they lie, or that are of two types. A kernel
   of the map family first copies such a factor into the workspace, along the dimension that is summed innermost and rows
   padded to 16 bytes; the Hopper family multiplies the copy. Taken where that is predicted to be faster than the
   contraction family, which reads everything as it lies. */
#include "engines/cuda/families.h"
#include "engines/cuda/staged.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/transpose.h"

#include <string.h>

enum { FACTORS = 2, ROW_BYTES = 16 };

/* What the contraction family predicts of its kernel beyond the start, where Hopper declines, is exceeded 1.8 to 6 times:
   30 products on an H200. */
static const double CONTRACTION_SLOWNESS = 1.8, START_SECONDS = 3e-6;

/* Who multiplies the copies, best first. */
static const struct family *const plain_families[] = {&cuda_patch_sm90, &cuda_hopper, NULL};
static const struct family *const narrowing_families[] = {&cuda_hopper_tf32, NULL};

/* ---- Layouts ------------------------------------------------------------------------------------------------------ */

/* A factor of the region's product, the dimension of it that shall be without gaps, and its type in tensor cores. */
struct wish {
    int value, dim;
    const struct tensor *tensor;
    weftDataType_t type;
};

static const struct node *find_product(const struct region *region) {
    const struct node *found = NULL;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        if (op_of(node->op) != &matmul_op && !conv_is(node->op))
            continue;
        if (found)
            return NULL;
        found = node;
    }
    return found;
}

static bool is_half(weftDataType_t type) { return type == WEFT_DATA_HALF || type == WEFT_DATA_BFLOAT16; }

static bool is_fp8(weftDataType_t type) { return type == WEFT_DATA_FP8_E4M3 || type == WEFT_DATA_FP8_E5M2; }

static bool is_int8(weftDataType_t type) { return type == WEFT_DATA_INT8 || type == WEFT_DATA_UINT8; }

static bool fits_tensor_cores(weftDataType_t type) {
    return type == WEFT_DATA_FLOAT || type == WEFT_DATA_FP4_E2M1 || is_half(type) || is_fp8(type) || is_int8(type);
}

/* Types for tensor cores in which the factors are exact: what is shorter is widened. */
static weftStatus_t find_types(struct wish wishes[FACTORS], const struct node *node) {
    for (int f = 0; f < FACTORS; f++) {
        weftDataType_t type = (weftDataType_t)wishes[f].tensor->type;
        wishes[f].type = type == WEFT_DATA_INT4 ? WEFT_DATA_INT8 : type == WEFT_DATA_UINT4 ? WEFT_DATA_UINT8 : type;
    }
    weftDataType_t a = wishes[0].type, b = wishes[1].type;
    if (a == b || (is_fp8(a) && is_fp8(b)) || (is_int8(a) && is_int8(b)))
        return WEFT_STATUS_SUCCESS;
    if (!fits_tensor_cores(a) || !fits_tensor_cores(b))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: no type of tensor cores holds both %s and %s.",
             descriptor_label(node->op), dtype_of(a)->name, dtype_of(b)->name);
    bool has_float = a == WEFT_DATA_FLOAT || b == WEFT_DATA_FLOAT || (is_half(a) && is_half(b));
    wishes[0].type = wishes[1].type = has_float ? WEFT_DATA_FLOAT : is_half(a) ? a : is_half(b) ? b : WEFT_DATA_HALF;
    return WEFT_STATUS_SUCCESS;
}

static void find_factors(struct wish wishes[FACTORS], const struct node *node) {
    if (op_of(node->op) == &matmul_op) {
        const struct matmul_op *op = (const struct matmul_op *)node->op;
        wishes[0].tensor = op->a;
        wishes[1].tensor = op->b;
    } else {
        struct conv_geometry g = conv_geometry(node->op);
        wishes[0].tensor = g.direction == CONV_FORWARD ? g.x.tensor : g.y.tensor;
        wishes[1].tensor = g.direction == CONV_FILTER ? g.x.tensor : g.w.tensor;
    }
}

/* What is summed lies innermost. Of a filter gradient that is the image's number, as pixels under taps are anywhere; but
   factors of 16 bits are turned on the way, and keep their channels. */
static void find_dims(struct wish wishes[FACTORS], const struct node *node) {
    if (op_of(node->op) == &matmul_op) {
        wishes[0].dim = (int)wishes[0].tensor->dims.count - 1;
        wishes[1].dim = wishes[0].dim - 1;
        return;
    }
    struct conv_geometry g = conv_geometry(node->op);
    int channel = (int)g.x.tensor->dims.count - g.spatial - 1;
    wishes[0].dim = wishes[1].dim = channel;
    if (g.direction == CONV_DATA)
        wishes[1].dim = channel - 1; /* filters, behind their group if that has a dimension */
    if (g.direction == CONV_FILTER && !is_half(wishes[0].type))
        wishes[0].dim = wishes[1].dim = 0;
}

static weftStatus_t find_wishes(struct wish wishes[FACTORS], const struct region *region, const struct node *node) {
    find_factors(wishes, node);
    for (int f = 0; f < FACTORS; f++) {
        const struct tensor *tensor = wishes[f].tensor;
        wishes[f].value = graph_find_value(region->graph, tensor);
        if (tensor->is_by_value || tensor->is_constant || tensor->vector_count != 1 || tensor_elements(tensor) == 0)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s is empty, vectorised or not in memory.",
                 descriptor_label(node->op), descriptor_label(&tensor->base));
    }
    TRY(find_types(wishes, node));
    find_dims(wishes, node);
    return WEFT_STATUS_SUCCESS;
}

/* `dim` innermost, in rows of whole ROW_BYTES, and the others around it in the order in which they lie. */
static weftStatus_t make_packed(struct tensor **made, const struct wish *wish, struct arena *arena) {
    const struct tensor *like = wish->tensor;
    int64_t unit = ROW_BYTES * 8 / dtype_of(wish->type)->bits;
    TRY(staged_make_plain(made, like, arena));
    struct tensor *packed = *made;
    packed->type = (int32_t)wish->type;
    packed->is_virtual = false;
    packed->strides = like->strides;
    for (int64_t i = 0; i < like->dims.count; i++) {
        int64_t stride = (like->dims.at[wish->dim] + unit - 1) / unit * unit;
        for (int64_t j = 0; j < like->dims.count; j++) {
            int64_t apart = like->strides.at[i] - like->strides.at[j];
            if (j != i && j != wish->dim && (apart > 0 || (apart == 0 && j > i)))
                stride *= like->dims.at[j];
        }
        packed->strides.at[i] = i == wish->dim ? 1 : stride;
    }
    return tensor_check_reach(packed);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------- */

enum { COPY_FROM, COPY_TO, COPY_VALUES };

/* A graph of one node that copies a tensor to its packed one: a movement, or between types the identity. */
struct copy {
    struct graph graph;
    struct value values[COPY_VALUES];
    struct node node;
    int operands[COPY_VALUES], number;
    bool is_output[COPY_VALUES];
    struct tensor to;
    struct transpose_op move;
    struct pointwise_op convert;
    struct pointwise identity;
    struct region region;
};

static weftStatus_t make_copy(struct copy **made, const struct staged_value *value, struct arena *arena) {
    struct copy *copy;
    struct tensor *from = (struct tensor *)value->tensor;
    TRY(arena_alloc(arena, &copy, sizeof *copy));
    copy->to = *value->plain;
    copy->to.uid = from->uid + 1; /* values are told apart, and sorted, by theirs */
    copy->move = (struct transpose_op){.base.schema = &transpose_op.schema, .x = from, .y = &copy->to};
    copy->move.permutation.count = from->dims.count;
    for (int64_t i = 0; i < from->dims.count; i++)
        copy->move.permutation.at[i] = i;
    copy->identity = (struct pointwise){.mode = WEFT_POINTWISE_IDENTITY, .math = WEFT_DATA_FLOAT};
    copy->convert = (struct pointwise_op){.base.schema = &pointwise_op.schema,
                                          .pw = &copy->identity,
                                          .x = from,
                                          .y = &copy->to,
                                          .alpha1 = 1,
                                          .alpha2 = 1};
    copy->operands[COPY_TO] = COPY_TO;
    copy->is_output[COPY_TO] = true;
    copy->node = (struct node){.op = from->type == copy->to.type ? &copy->move.base : &copy->convert.base,
                               .operand_count = COPY_VALUES,
                               .operands = copy->operands,
                               .is_output = copy->is_output};
    copy->values[COPY_FROM] = (struct value){.tensor = from, .producer = -1, .readers = 1};
    copy->values[COPY_TO] = (struct value){.tensor = &copy->to, .producer = 0, .first_reader = -1, .last_reader = -1};
    copy->graph =
        (struct graph){.node_count = 1, .nodes = &copy->node, .value_count = COPY_VALUES, .values = copy->values};
    copy->region = (struct region){.graph = &copy->graph, .count = 1, .nodes = &copy->number};
    *made = copy;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_copy(struct cuda_step *state, const struct staged_value *value, const struct device *device,
                             struct arena *arena) {
    struct copy *copy;
    TRY(make_copy(&copy, value, arena));
    struct step step = {.family = &cuda_map, .region = copy->region};
    const struct staged_place places[] = {{COPY_FROM, value->value, 0}, {COPY_TO, -1, value->scratch}};
    TRY(cuda_map.build(&step, device, NULL, arena));
    return staged_take(state, step.state, places, COPY_VALUES, 0, arena);
}

/* ---- Accepting ---------------------------------------------------------------------------------------------------- */

/* The region with some factors packed: a bit of `chosen` for each. */
static weftStatus_t try_packing(struct staged *staged, const struct region *region, const struct wish wishes[FACTORS],
                                int chosen, const struct family *const *families, const struct device *device,
                                double *seconds, struct arena *arena) {
    double copying = 0, inner = 0;
    for (int f = 0; f < FACTORS; f++) {
        struct tensor *packed;
        struct copy *copy;
        double more;
        if (!(chosen & 1 << f))
            continue;
        TRY(make_packed(&packed, &wishes[f], arena));
        TRY(make_copy(&copy, staged_add(staged, wishes[f].value, wishes[f].tensor, packed), arena));
        TRY(cuda_map.accepts(&copy->region, device, &more));
        copying += more;
    }
    TRY(staged_exchange(staged, region, arena));
    weftStatus_t status = WEFT_STATUS_NOT_SUPPORTED;
    for (int i = 0; status && families[i]; i++) {
        staged->inner = families[i];
        status = families[i]->accepts(&staged->region, device, &inner);
    }
    *seconds = copying + inner;
    return status;
}

static weftStatus_t analyse(struct staged *best, const struct region *region, const struct family *const *families,
                            const struct device *device, double *seconds, struct arena *arena) {
    const struct node *node = find_product(region);
    struct wish wishes[FACTORS];
    weftStatus_t status = WEFT_STATUS_NOT_SUPPORTED;
    if (!node)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: factors are packed for one matmul or convolution at a time.",
             descriptor_label(region_node(region, 0)->op));
    if (device->cuda.major != 9 || device->cuda.minor != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
             "%s: factors are packed for the Hopper family, on compute capability 9.0; '%s' has %d.%d",
             descriptor_label(node->op), device->name, device->cuda.major, device->cuda.minor);
    TRY(find_wishes(wishes, region, node));
    bool is_square = wishes[0].value == wishes[1].value;
    for (int chosen = 1; chosen < 1 << FACTORS; chosen++) {
        struct staged staged = {0};
        double took;
        bool fits = !is_square || chosen != 3;
        for (int f = 0; f < FACTORS; f++)
            fits = fits && (is_square || chosen & 1 << f || (weftDataType_t)wishes[f].tensor->type == wishes[f].type);
        weftStatus_t tried = fits ? try_packing(&staged, region, wishes, chosen, families, device, &took, arena)
                                  : WEFT_STATUS_NOT_SUPPORTED;
        if (tried || (!status && took >= *seconds))
            continue;
        status = WEFT_STATUS_SUCCESS;
        *best = staged;
        *seconds = took;
    }
    return status;
}

/* Whether the contraction family would be done sooner. */
static bool is_slower(const struct region *region, const struct family *const *families, const struct device *device,
                      double seconds) {
    const struct family *rival = families[0]->narrows ? &cuda_contraction_tf32 : &cuda_contraction;
    double without;
    if (rival->accepts(region, device, &without) != WEFT_STATUS_SUCCESS) {
        status_clear();
        return false;
    }
    return seconds - START_SECONDS >= CONTRACTION_SLOWNESS * (without - START_SECONDS);
}

static weftStatus_t accepts_for(const struct region *region, const struct family *const *families,
                                const struct device *device, double *seconds) {
    struct staged staged = {0};
    struct arena arena = {0};
    weftStatus_t status = analyse(&staged, region, families, device, seconds, &arena);
    arena_free(&arena);
    TRY(status);
    if (is_slower(region, families, device, *seconds))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: copying its factors would take longer than it saves.",
             descriptor_label(find_product(region)->op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    return accepts_for(region, plain_families, device, seconds);
}

static weftStatus_t accepts_tf32(const struct region *region, const struct device *device, double *seconds) {
    return accepts_for(region, narrowing_families, device, seconds);
}

/* ---- Building ----------------------------------------------------------------------------------------------------- */

static weftStatus_t build_for(struct step *step, const struct family *const *families, const struct device *device,
                              const struct knob_choices *knobs, struct arena *arena) {
    struct staged *staged;
    struct cuda_step *state;
    struct step inner;
    double seconds;
    TRY(arena_alloc(arena, &staged, sizeof *staged));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    TRY(analyse(staged, &step->region, families, device, &seconds, arena));
    for (int k = 0; k < staged->count; k++)
        TRY(add_copy(state, &staged->at[k], device, arena));
    TRY(staged_build_inner(state, staged, device, knobs, &inner, arena));
    step->workspace_bytes = staged->scratch_bytes + inner.workspace_bytes;
    return arena_print(arena, &step->detail, "%d of its factors packed, %s: %s", staged->count, staged->inner->name,
                       inner.detail ? inner.detail : "");
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    return build_for(step, plain_families, device, knobs, arena);
}

static weftStatus_t build_tf32(struct step *step, const struct device *device, const struct knob_choices *knobs,
                               struct arena *arena) {
    return build_for(step, narrowing_families, device, knobs, arena);
}

static bool may_alias(const struct region *region, int in, int out) {
    return cuda_contraction.may_alias(region, in, out);
}

const struct family cuda_packed = {
    .name = "cuda.packed",
    .doc = "a matmul or convolution whose factors are copied first as Hopper's copy engine wants them",
    .accepts = accepts,
    .build = build,
    .load = cuda_load,
    .run = cuda_run,
    .may_alias = may_alias,
    .release = cuda_release,
};

const struct family cuda_packed_tf32 = {
    .name = "cuda.packed.tf32",
    .doc = "the same of floats, narrowed to tf32",
    .narrows = true,
    .accepts = accepts_tf32,
    .build = build_tf32,
    .load = cuda_load,
    .run = cuda_run,
    .may_alias = may_alias,
    .release = cuda_release,
};
