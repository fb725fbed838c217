/* SPDX-License-Identifier: Apache-2.0 */
/* The map family: a connected group of pointwise operations, data movement and random numbers of one shape, in one sweep
   over the memory of its result. Each thread takes runs of neighbours; what lives inside the region stays in registers.
   The host half decides and prints; kernels/map.cuh walks. */
#include "engines/cuda/families.h"
#include "engines/cuda/formula.h"
#include "engines/cuda/operand.h"
#include "graph/ops/concat.h"
#include "graph/ops/reshape.h"
#include "graph/ops/rng.h"
#include "graph/ops/slice.h"
#include "graph/ops/transpose.h"

#include <stdio.h>
#include <string.h>

enum { OPERANDS_MAX = 24, THREADS = 256, LONGEST_RUN = 16 };

struct map {
    const struct region *region;
    struct space space;
    int count, lead; /* operands, and the store whose memory order leads */
    struct operand operands[OPERANDS_MAX];
};

static bool is_op(const struct node *node, const struct op *op) { return op_of(node->op) == op; }

static const struct tensor *tensor_at(const struct map *map, int value) {
    return map->region->graph->values[value].tensor;
}

/* ---- What a region is made of ------------------------------------------------------------------------------------- */

/* The result whose dims and memory order lead: the first that leaves the region, of the most elements. */
static int leading_value(const struct region *region) {
    int found = -1;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            int value = node->operands[k];
            if (!node->is_output[k] || (found >= 0 && !region_exports(region, value)))
                continue;
            if (found < 0 || !region_exports(region, found) ||
                tensor_elements(region->graph->values[value].tensor) >
                    tensor_elements(region->graph->values[found].tensor))
                found = value;
        }
    }
    return found;
}

static bool made_inside(const struct region *region, int value) {
    int producer = region->graph->values[value].producer;
    return producer >= 0 && region_has(region, producer);
}

/* The movement node that makes a value inside the region, or NULL. */
static const struct node *movement_of(const struct region *region, int value) {
    if (!made_inside(region, value))
        return NULL;
    const struct node *node = &region->graph->nodes[region->graph->values[value].producer];
    return is_op(node, &transpose_op) || is_op(node, &slice_op) || is_op(node, &reshape_op) ? node : NULL;
}

/* Whether a movement node of the region reads a value. */
static bool movement_reads(const struct region *region, int value) {
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++)
            if (node->operands[k] == value && !node->is_output[k] && op_of(node->op) != &pointwise_op)
                return true;
    }
    return false;
}

/* A moved tensor's source as an operand over the moved tensor's own dims. */
static int movement_strides(const struct node *node, struct operand *operand) {
    if (is_op(node, &transpose_op)) {
        const struct transpose_op *op = (const struct transpose_op *)node->op;
        for (int64_t i = 0; i < op->y->dims.count; i++)
            operand->strides[i] = op->x->strides.at[op->permutation.at[i]];
    } else if (is_op(node, &slice_op)) {
        const struct slice_op *op = (const struct slice_op *)node->op;
        for (int64_t i = 0; i < op->y->dims.count; i++) {
            operand->offset += op->start.at[i] * op->x->strides.at[i];
            operand->strides[i] = op->x->strides.at[i] * slice_step(op, i);
        }
    } else {
        const struct reshape_op *op = (const struct reshape_op *)node->op;
        int64_t packed = 1;
        for (int64_t i = op->y->dims.count; i-- > 0; packed *= op->y->dims.at[i])
            operand->strides[i] = op->mode == WEFT_RESHAPE_LOGICAL ? packed : op->y->strides.at[i];
    }
    return node->operands[node->is_output[0] ? 1 : 0];
}

static bool is_index(const struct node *node) {
    return is_op(node, &pointwise_op) && ((const struct pointwise_op *)node->op)->pw->mode == WEFT_POINTWISE_GEN_INDEX;
}

/* The value of GEN_INDEX: an operand without memory, whose offset is the coordinate. */
static weftStatus_t add_index(struct map *map, const struct node *node) {
    if (map->count == OPERANDS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would have more than %d operands", OPERANDS_MAX);
    struct operand *operand = &map->operands[map->count++];
    *operand = (struct operand){.value = node->operands[node->is_output[0] ? 0 : 1], .memory = -1};
    operand->strides[((const struct pointwise_op *)node->op)->pw->axis] = 1;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_operand(struct map *map, int value, bool is_store) {
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].value == value && map->operands[k].is_store == is_store)
            return WEFT_STATUS_SUCCESS;
    if (map->count == OPERANDS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would have more than %d operands", OPERANDS_MAX);
    operand_of_tensor(&map->operands[map->count++], map->region->graph, value, &map->space, is_store);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Accepting ---------------------------------------------------------------------------------------------------- */

static weftStatus_t check_shape(const struct map *map, const struct descriptor *op, const struct tensor *tensor,
                                bool is_output) {
    bool fits = tensor->vector_count == 1 &&
                ((tensor_elements(tensor) == 1 && !is_output) || tensor->dims.count == map->space.rank);
    for (int64_t i = 0; fits && i < tensor->dims.count && tensor->dims.count == map->space.rank; i++)
        fits = tensor->dims.at[i] == map->space.extents[i] || (tensor->dims.at[i] == 1 && !is_output);
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s, this sweep goes over %s", descriptor_label(op),
             descriptor_label(&tensor->base), tensor_dims_text(tensor),
             numbers_text(map->space.extents, map->space.rank));
    if (!cuda_type_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
             descriptor_label(op), descriptor_label(&tensor->base), dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_movement(const struct map *map, const struct node *node) {
    const struct tensor *x = tensor_at(map, node->operands[0]), *y = tensor_at(map, node->operands[1]);
    if (made_inside(map->region, node->operands[0]))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s moves what this sweep computes; it needs a sweep of its own",
             descriptor_label(node->op));
    if (x->vector_count != 1 || !cuda_type_name((weftDataType_t)x->type) || x->type != y->type)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: x is vectorised, or of a type that kernels cannot store",
             descriptor_label(node->op));
    if (is_op(node, &reshape_op) && ((const struct reshape_op *)node->op)->mode == WEFT_RESHAPE_LOGICAL &&
        !tensor_is_packed(x))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: x with strides %s is not packed", descriptor_label(node->op),
             numbers_text(x->strides.at, x->strides.count));
    return check_shape(map, node->op, y, true);
}

static weftStatus_t check_node(const struct map *map, const struct node *node) {
    if (is_op(node, &transpose_op) || is_op(node, &slice_op) || is_op(node, &reshape_op))
        return check_movement(map, node);
    if (!is_op(node, &pointwise_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is neither pointwise nor data movement",
             descriptor_label(node->op));
    TRY(formula_accepts(node->op));
    for (int k = 0; k < node->operand_count; k++)
        TRY(check_shape(map, node->op, tensor_at(map, node->operands[k]), node->is_output[k]));
    return WEFT_STATUS_SUCCESS;
}

/* Fills the space and the operands, or says why the region is none of ours. */
static weftStatus_t analyse(struct map *map, const struct region *region) {
    *map = (struct map){.region = region};
    const struct graph *graph = region->graph;
    int lead = leading_value(region);
    const struct tensor *whole = graph->values[lead].tensor;
    map->space.rank = (int)whole->dims.count;
    memcpy(map->space.extents, whole->dims.at, sizeof map->space.extents);
    for (int i = 0; i < region->count; i++)
        TRY(check_node(map, region_node(region, i)));
    TRY(add_operand(map, lead, true));
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        if (is_index(node))
            TRY(add_index(map, node));
        for (int k = 0; k < node->operand_count; k++) {
            int value = node->operands[k];
            bool is_store = node->is_output[k] && region_exports(region, value);
            bool is_load = !node->is_output[k] && is_op(node, &pointwise_op) && !is_index(node);
            if (is_store || (is_load && !made_inside(region, value)))
                TRY(add_operand(map, value, is_store));
            if (node->is_output[k] && movement_of(region, value)) {
                TRY(add_operand(map, value, false));
                struct operand *operand = &map->operands[map->count - 1];
                memset(operand->strides, 0, sizeof operand->strides);
                operand->memory = movement_strides(node, operand);
            }
        }
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct map map;
    TRY(analyse(&map, region));
    double bytes = 0;
    for (int k = 0; k < map.count; k++)
        if (map.operands[k].memory >= 0)
            bytes += (double)tensor_bytes(tensor_at(&map, map.operands[k].memory));
    *seconds = 2e-6 + bytes / (double)device->cuda.bandwidth;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Printing ----------------------------------------------------------------------------------------------------- */

static void name_of(char *name, size_t bytes, const char *prefix, int k, int dim) {
    if (dim < 0)
        snprintf(name, bytes, "%s%d", prefix, k);
    else
        snprintf(name, bytes, "%s%d_%d", prefix, k, dim);
}

/* The fields: extents as divisors, and per operand its pointer and the strides that are neither 0 nor 1. */
static void print_fields(struct kernel_print *print, const struct map *map) {
    char name[32];
    int last = map->space.rank - 1;
    print_number(print, space_elements(&map->space), "elements");
    for (int i = 1; i <= last; i++) {
        name_of(name, sizeof name, "extent", i, -1);
        print_divisor(print, map->space.extents[i], name);
    }
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        name_of(name, sizeof name, "p", k, -1);
        if (operand->memory >= 0)
            print_pointer(print, operand->type, operand->memory, dtype_bytes(operand->type, operand->offset), name);
        for (int i = 0; i <= last; i++) {
            name_of(name, sizeof name, "s", k, i);
            if (operand->strides[i] > 1 || (operand->strides[i] == 1 && (i != last || operand->memory < 0)))
                print_number(print, operand->strides[i], name);
        }
    }
}

/* Coordinates c0 .. of the first element of a run, from its position in the walk. */
static void print_coordinates(struct text *code, const struct map *map, bool small) {
    int last = map->space.rank - 1;
    text_add(code, "    %s rest = (%s)at;\n", small ? "u32" : "i64", small ? "u32" : "i64");
    for (int i = last; i > 0; i--) {
        if (small)
            text_add(code,
                     "    const u32 q%d = divide(rest, a.extent%d); const i64 c%d = rest - q%d * a.extent%d.value; "
                     "rest = q%d;\n",
                     i, i, i, i, i, i);
        else
            text_add(code,
                     "    const i64 q%d = rest / a.extent%d.value; const i64 c%d = rest - q%d * a.extent%d.value; rest "
                     "= q%d;\n",
                     i, i, i, i, i, i);
    }
    text_add(code, "    const i64 c0 = rest;\n");
}

static void print_place(struct text *code, const struct map *map, int k) {
    const struct operand *operand = &map->operands[k];
    text_add(code, "a.p%d", k);
    for (int i = 0; i < map->space.rank; i++) {
        if (operand->strides[i] == 1 && i == map->space.rank - 1)
            text_add(code, " + c%d", i);
        else if (operand->strides[i])
            text_add(code, " + c%d * a.s%d_%d", i, k, i);
    }
}

/* struct inputs and load_inputs: the runs that one thread reads, all before it computes. */
static void print_loads(struct text *code, const struct map *map) {
    int last = map->space.rank - 1;
    text_add(code, "struct inputs {\n");
    for (int k = 0; k < map->count; k++)
        if (!map->operands[k].is_store && map->operands[k].memory >= 0)
            text_add(code, "    run<%s, %s> r%d;\n", cuda_type_name(map->operands[k].type),
                     map->operands[k].strides[last] ? "RUN" : "1", k);
    text_add(code, "};\n\nDEVICE void load_inputs(inputs& in, const arguments& a, i64 at) {\n");
    print_coordinates(code, map, space_elements(&map->space) < INT32_MAX);
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        if (operand->is_store || operand->memory < 0)
            continue;
        if (operand->strides[last] <= 1) {
            text_add(code, "    in.r%d = load_run<%s, %s>(", k, cuda_type_name(operand->type),
                     operand->strides[last] ? "RUN" : "1");
            print_place(code, map, k);
            text_add(code, ");\n");
        } else {
            text_add(code, "    for (int e = 0; e < RUN; e++) in.r%d.at[e] = (", k);
            print_place(code, map, k);
            text_add(code, ")[e * a.s%d_%d];\n", k, last);
        }
    }
    text_add(code, "}\n\n");
}

static void print_index(struct text *code, const struct map *map, int k) {
    const struct operand *operand = &map->operands[k];
    int last = map->space.rank - 1;
    text_add(code, "    const i64 v%d = 0", operand->value);
    for (int i = 0; i <= last; i++)
        if (operand->strides[i])
            text_add(code, " + (c%d%s) * a.s%d_%d", i, i == last ? " + e" : "", k, i);
    text_add(code, ";\n");
}

/* compute: the region's nodes for one run, and the stores. */
static void print_compute(struct text *code, const struct map *map) {
    const struct graph *graph = map->region->graph;
    int last = map->space.rank - 1;
    text_add(code, "DEVICE void compute(const inputs& in, const arguments& a, i64 at) {\n");
    print_coordinates(code, map, space_elements(&map->space) < INT32_MAX);
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].is_store)
            text_add(code, "    run<%s, RUN> w%d;\n", cuda_type_name(map->operands[k].type), k);
    text_add(code, "    #pragma unroll\n    for (int e = 0; e < RUN; e++) {\n");
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        if (operand->memory < 0)
            print_index(code, map, k);
        else if (!operand->is_store)
            text_add(code, "    const %s v%d = in.r%d.at[%s];\n", cuda_type_name(operand->type), operand->value, k,
                     operand->strides[last] ? "e" : "0");
    }
    for (int i = 0; i < map->region->count; i++) {
        const struct node *node = region_node(map->region, i);
        if (is_op(node, &pointwise_op) && !is_index(node))
            formula_print(code, graph, node);
    }
    for (int k = 0; k < map->count; k++)
        if (map->operands[k].is_store)
            text_add(code, "    w%d.at[e] = convert<%s>(v%d);\n", k, cuda_type_name(map->operands[k].type),
                     map->operands[k].value);
    text_add(code, "    }\n");
    for (int k = 0; k < map->count; k++) {
        const struct operand *operand = &map->operands[k];
        if (!operand->is_store)
            continue;
        if (operand->strides[last] == 1) {
            text_add(code, "    store_run<%s, RUN>(", cuda_type_name(operand->type));
            print_place(code, map, k);
            text_add(code, ", w%d);\n", k);
        } else {
            text_add(code, "    for (int e = 0; e < RUN; e++) (");
            print_place(code, map, k);
            if (operand->strides[last])
                text_add(code, ")[e * a.s%d_%d] = w%d.at[e];\n", k, last, k);
            else
                text_add(code, ")[e] = w%d.at[e];\n", k);
        }
    }
    text_add(code, "}\n");
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct map map;
    struct cuda_step *state;
    struct kernel_print print;
    TRY(analyse(&map, &step->region));
    TRY(arena_alloc(arena, &state, sizeof *state));
    space_coalesce(&map.space, map.operands, map.count, 0);
    int length = space_run_length(&map.space, map.operands, map.count, step->region.graph);
    kernel_print_init(&print, step->region.graph);
    print_constant(&print, "RUN", length);
    print_constant(&print, "THREADS", THREADS);
    print_constant(&print, "UNROLL", 2);
    print_fields(&print, &map);
    print_loads(&print.code, &map);
    print_compute(&print.code, &map);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&print, kernel, "map.cuh", "map", arena));
    int64_t runs = space_elements(&map.space) / length, per_block = THREADS * 2;
    int64_t blocks = (runs + per_block - 1) / per_block, most = (int64_t)device->cuda.multiprocessors * 64;
    kernel->grid[0] = (uint32_t)(blocks < most ? blocks : most);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    step->state = state;
    return arena_print(arena, &step->detail, "%d operations, runs of %d, %d dims", step->region.count, length,
                       map.space.rank);
}

/* Reads of a run come before its writes, and a thread writes only what it alone reads. */
static bool may_alias(const struct region *region, int in, int out) {
    return tensor_same_layout(region->graph->values[in].tensor, region->graph->values[out].tensor) &&
           !movement_reads(region, in);
}

const struct family cuda_map = {
    .name = "cuda.map",
    .doc = "pointwise operations and data movement of one shape in one sweep",
    .accepts = accepts,
    .build = build,
    .load = cuda_load,
    .run = cuda_run,
    .may_alias = may_alias,
    .release = cuda_release,
};
