/* SPDX-License-Identifier: Apache-2.0 */
/* Block-scale family: quantization to few bits with a scale per block, and dequantization. One kernel computes the
   scales, another the elements, from the scales as stored. The host code emits the layouts of blocks and elements;
   map/block_scales.cuh and map/block_values.cuh compute. */
#include "graph/ops/block_scale.h"
#include "base/number.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

#include <stdio.h>

enum { THREADS = 256, WARP = 32 }; /* threads per block, and per warp */

/* Quantization or dequantization. */
struct scaling {
    const struct descriptor *op;
    const struct region *region;
    const struct graph *graph;
    const struct tensor *x, *y, *scale;
    const struct block_scale_quantize_op *quantize; /* NULL: dequantizes */
    struct dims block;
    int32_t math;
    bool is_negative, has_scale; /* has_scale: the scales are in a tensor of the graph, not in scratch */
};

/* True if it is read or visible in memory. */
static bool is_needed(const struct graph *graph, const struct tensor *tensor) {
    return !value_is_dead(&graph->values[graph_find_value(graph, tensor)]);
}

/* Fills the fields from either operation. */
static weftStatus_t read_op(struct scaling *s, const struct region *region) {
    *s = (struct scaling){.op = region_node(region, 0)->op, .region = region, .graph = region->graph};
    if (op_of(s->op) == &block_scale_quantize_op) {
        const struct block_scale_quantize_op *op = (const struct block_scale_quantize_op *)s->op;
        s->x = op->x, s->y = op->y, s->scale = op->scale, s->math = op->math, s->quantize = op;
    } else if (op_of(s->op) == &block_scale_dequantize_op) {
        const struct block_scale_dequantize_op *op = (const struct block_scale_dequantize_op *)s->op;
        s->x = op->x, s->y = op->y, s->scale = op->scale, s->math = op->math, s->is_negative = op->is_negative;
    } else {
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s has no block scales.", descriptor_label(s->op));
    }
    /* Elements per scale along each dim. */
    s->block = block_scale_extents(s->op);
    s->has_scale = is_needed(s->graph, s->scale);
    return WEFT_STATUS_SUCCESS;
}

/* Coordinates are u32 in kernels; positions are i64 if there are more elements. Types narrower than a byte are stored
   by whole bytes. */
static weftStatus_t check_tensor(const struct scaling *s, const struct tensor *tensor) {
    if (!cuda_element_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
             descriptor_label(s->op), descriptor_label(&tensor->base), dtype_of((weftDataType_t)tensor->type)->name);
    for (int64_t i = 0; i < tensor->dims.count; i++)
        if (tensor->dims.at[i] >= INT32_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s. Kernels count to 2^31 in each.",
                 descriptor_label(s->op), descriptor_label(&tensor->base), tensor_dims_text(tensor));
    return WEFT_STATUS_SUCCESS;
}

/* A single node; the layouts may have any strides. */
static weftStatus_t analyse(struct scaling *s, const struct region *region) {
    TRY(read_op(s, region));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(s->op),
             descriptor_label(region_node(region, 1)->op));
    TRY(check_tensor(s, s->x));
    TRY(check_tensor(s, s->y));
    return check_tensor(s, s->scale);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct scaling s;
    TRY(analyse(&s, region));
    /* Quantization reads x twice: for the scales, and for the elements. */
    double bytes = (double)(tensor_bytes(s.x) * (s.quantize ? 2 : 1) + tensor_bytes(s.scale) + tensor_bytes(s.y));
    offer->seconds = (s.quantize ? 2 : 1) * PRICE_LAUNCH_SECONDS + price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

/* The dims whose extents exceed 1, in the order of the strides of `like`, slowest first. Dims of extent 1 need no
   coordinates. */
static int order_dims(const struct dims *extents, const struct tensor *like, int *order) {
    int count = 0;
    for (int i = 0; i < (int)extents->count; i++) {
        int at = count;
        if (extents->at[i] == 1)
            continue;
        for (; at > 0 && like->strides.at[order[at - 1]] < like->strides.at[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        count++;
    }
    return count;
}

/* Emits i<dim>: the index along a dim, split off `rest`; the slowest is what remains. Divisors are arguments: sizes are
   never part of the text. */
static void emit_coordinate(struct kernel_source *source, int dim, int64_t extent, bool is_slowest) {
    char text[32];
    if (is_slowest) {
        text_add(&source->code, "    const u32 i%d = (u32)rest;\n", dim);
        return;
    }
    snprintf(text, sizeof text, "extent%d", dim);
    emit_divisor(source, extent, text);
    text_add(&source->code, "    const u32 i%d = (u32)split(rest, p.%s);\n", dim, text);
}

/* Advances one of the positions (of x, y or scale) along a dim by an index expression. */
static void emit_advance(struct kernel_source *source, const char *name, int dim, const char *index, int64_t stride) {
    char text[32];
    snprintf(text, sizeof text, "%s_stride%d", name, dim);
    emit_number(source, stride, text);
    text_add(&source->code, "    %s += (i64)%s * p.%s;\n", name, index, text);
}

/* Advances the position of the scale. For tiled scales, the row and column are collected and used at the end. */
static void emit_scale_advance(struct kernel_source *source, const struct tensor *scale, int dim, const char *index) {
    int rank = (int)scale->dims.count;
    if (!scale_is_tiled(scale) || dim < rank - 2)
        emit_advance(source, "scale", dim, index, scale->strides.at[dim]);
    else
        text_add(&source->code, "    %s = %s;\n", dim == scale_column(scale) ? "column" : "row", index);
}

/* Emits nothing if scales have plain strides; see map/scales.cuh. */
static void emit_tile(struct kernel_source *source, const struct tensor *scale) {
    if (!scale_is_tiled(scale))
        return;
    emit_number(source, scale->dims.at[scale_column(scale)] / SCALE_TILE_COLUMNS, "tiles");
    text_add(&source->code, "    scale += tile_offset(row, column, p.tiles);\n");
}

/* Emits begin_block(): blocks are counted in x's memory order. It returns the number of elements that the block has:
   fewer at the end of an axis, none in padding of a tile of scales. */
static void emit_block(struct kernel_source *source, const struct scaling *s) {
    int order[WEFT_DIM_MAX], count = order_dims(&s->scale->dims, s->x, order), axis = block_scale_axis(s->quantize);
    /* `left`: elements from the block's first to the end of the axis. */
    emit_number(source, s->x->dims.at[axis], "length");
    emit_number(source, s->quantize->block_size, "block");
    text_add(&source->code,
             "DEVICE i64 begin_block(const arguments& p, position rest, i64& x, i64& scale) {\n"
             "    i64 left = p.length;\n    bool is_inside = true;\n    [[maybe_unused]] u32 row = 0, column = 0;\n");
    for (int k = count; k-- > 0;) {
        char index[32], extent[32];
        int dim = order[k];
        snprintf(index, sizeof index, "i%d", dim);
        emit_coordinate(source, dim, s->scale->dims.at[dim], k == 0);
        emit_scale_advance(source, s->scale, dim, index);
        if (dim == axis) {
            text_add(&source->code, "    left -= (i64)%s * p.block;\n", index);
            snprintf(index, sizeof index, "i%d * p.block", dim);
        } else if (s->scale->dims.at[dim] != s->x->dims.at[dim]) { /* padding of tiles */
            snprintf(extent, sizeof extent, "x_extent%d", dim);
            emit_number(source, s->x->dims.at[dim], extent);
            text_add(&source->code, "    is_inside = is_inside && %s < p.%s;\n", index, extent);
        }
        emit_advance(source, "x", dim, index, s->x->strides.at[dim]);
    }
    emit_tile(source, s->scale);
    text_add(&source->code, "    return is_inside ? left < p.block ? left : p.block : 0;\n}\n\n");
}

/* Emits locate(): elements are counted in y's memory order. order, count: from order_dims; the fastest dim is split off
   `rest` first. */
static void emit_locate(struct kernel_source *source, const struct scaling *s, const int *order, int count) {
    text_add(&source->code, "DEVICE void locate(const arguments& p, position rest, i64& x, i64& scale, i64& y) {\n"
                            "    [[maybe_unused]] u32 row = 0, column = 0;\n");
    for (int k = count; k-- > 0;) {
        char index[32], block[64];
        int dim = order[k];
        snprintf(index, sizeof index, "i%d", dim);
        emit_coordinate(source, dim, s->y->dims.at[dim], k == 0);
        emit_advance(source, "x", dim, index, s->x->strides.at[dim]);
        emit_advance(source, "y", dim, index, s->y->strides.at[dim]);
        /* Elements that share a scale along this dim. */
        if (s->block.at[dim] > 1) {
            snprintf(block, sizeof block, "block%d", dim);
            emit_divisor(source, s->block.at[dim], block);
            snprintf(block, sizeof block, "divide(i%d, p.block%d)", dim, dim);
        } else {
            snprintf(block, sizeof block, "%s", index);
        }
        emit_scale_advance(source, s->scale, dim, block);
    }
    emit_tile(source, s->scale);
    text_add(&source->code, "}\n\n");
}

/* Emits find(): the element at a position in y's memory, counted as in locate(); false between elements. Used if
   threads write whole bytes of y, whose strides may leave gaps. */
static void emit_find(struct kernel_source *source, const struct tensor *y, const int *order, int count) {
    text_add(&source->code, "DEVICE bool find(const arguments& p, i64 rest, position& at) {\n    at = 0;\n");
    for (int k = 0; k < count; k++) {
        char stride[32], extent[32];
        snprintf(stride, sizeof stride, "find_stride%d", order[k]);
        snprintf(extent, sizeof extent, "find_extent%d", order[k]);
        emit_number(source, y->strides.at[order[k]], stride);
        emit_number(source, y->dims.at[order[k]], extent);
        text_add(&source->code,
                 "    if (rest / p.%s >= p.%s) return false;\n"
                 "    at = at * (position)p.%s + (position)(rest / p.%s);\n    rest %%= p.%s;\n",
                 stride, extent, extent, stride, stride);
    }
    text_add(&source->code, "    return rest == 0;\n}\n\n");
}

/* Emits the type <name>_t and address <name>; scales that are not outputs are in the workspace. */
static void emit_tensor(struct kernel_source *source, const struct scaling *s, const struct tensor *tensor,
                        const char *name) {
    char type[32];
    snprintf(type, sizeof type, "%s_t", name);
    text_add(&source->constants, "using %s = %s;\n", type, cuda_element_name((weftDataType_t)tensor->type));
    if (tensor == s->scale && !s->has_scale)
        emit_scratch(source, type, 0, name);
    else
        emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(s->graph, tensor), 0, name);
}

/* Emits what both kernels share. positions: number of blocks, or of elements. */
static void begin_source(struct kernel_source *source, const struct scaling *s, bool is_double, int64_t positions) {
    kernel_source_init(source, s->region);
    emit_constant(source, "THREADS", THREADS);
    text_add(&source->constants, "using math_t = %s;\nusing position = %s;\n", is_double ? "double" : "float",
             index_type(positions));
    text_add(&source->code, "#include \"core/gather.cuh\"\n#include \"map/scales.cuh\"\n\n");
}

/* 64 blocks per multiprocessor are enough for any length: blocks loop with the grid's stride. */
static weftStatus_t end_source(struct kernel_source *source, struct cuda_step *state, const char *file,
                               const char *entry, int64_t threads, const struct device *device, struct arena *arena) {
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    int64_t grid = divide_up(threads, THREADS), most = (int64_t)device->cuda.multiprocessors * 64;
    TRY(kernel_finish(source, kernel, file, entry, arena));
    kernel->grid[0] = (uint32_t)(grid < most ? grid : most);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    kernel->is_dependent = device->cuda.major >= 9;
    return WEFT_STATUS_SUCCESS;
}

/* A warp, or half of it, per block if its elements are contiguous; otherwise adjacent threads process adjacent
   blocks. */
static int lanes_of(const struct scaling *s) {
    int lanes = 1;
    if (s->x->strides.at[block_scale_axis(s->quantize)] != 1)
        return 1;
    while (lanes < WARP && lanes * 2 <= s->quantize->block_size)
        lanes *= 2;
    return lanes;
}

/* The first kernel: lanes_of() threads compute a block's scale, reading x once. */
static weftStatus_t add_scales(const struct scaling *s, struct cuda_step *state, const struct device *device,
                               struct arena *arena) {
    int64_t blocks = tensor_elements(s->scale);
    struct kernel_source source;
    begin_source(&source, s, s->x->type == WEFT_DATA_DOUBLE, blocks);
    emit_constant(&source, "LANES", lanes_of(s));
    emit_constant(&source, "IS_POWER", s->scale->type == WEFT_DATA_FP8_E8M0);
    text_add(&source.constants, "constexpr double MOST = %.17g, SCALE_MOST = %.17g;\n", block_scale_most(s->y),
             block_scale_most(s->scale));
    emit_tensor(&source, s, s->x, "x");
    emit_tensor(&source, s, s->scale, "scale");
    emit_number(&source, blocks, "blocks");
    emit_number(&source, s->x->strides.at[block_scale_axis(s->quantize)], "step");
    emit_block(&source, s);
    return end_source(&source, state, "map/block_scales.cuh", "block_scales", blocks * lanes_of(s), device, arena);
}

/* Quotients are rounded once, as if they were exact; float suffices only for powers of two. Products with floats may be
   rounded twice. */
static bool is_double(const struct scaling *s) {
    bool is_wide = s->x->type == WEFT_DATA_DOUBLE || s->y->type == WEFT_DATA_DOUBLE ||
                   s->scale->type == WEFT_DATA_DOUBLE || s->math == WEFT_DATA_DOUBLE;
    return is_wide || (s->quantize && s->scale->type != WEFT_DATA_FP8_E8M0);
}

/* The second kernel, or the only one. Elements narrower than a byte are written by whole bytes, so that no two threads
   store to one. */
static weftStatus_t add_values(const struct scaling *s, struct cuda_step *state, const struct device *device,
                               struct arena *arena) {
    /* items: bytes, or elements. */
    bool is_by_byte = !cuda_type_name((weftDataType_t)s->y->type);
    int64_t items = is_by_byte ? tensor_bytes(s->y) : tensor_elements(s->y);
    int order[WEFT_DIM_MAX], count = order_dims(&s->y->dims, s->y, order);
    struct kernel_source source;
    begin_source(&source, s, is_double(s), tensor_elements(s->y));
    emit_constant(&source, "IS_QUANTIZED", s->quantize != NULL);
    emit_constant(&source, "IS_NEGATIVE", s->is_negative);
    emit_tensor(&source, s, s->x, "x");
    emit_tensor(&source, s, s->scale, "scale");
    emit_tensor(&source, s, s->y, "y");
    emit_number(&source, items, "items");
    emit_locate(&source, s, order, count);
    if (is_by_byte)
        emit_find(&source, s->y, order, count);
    else
        /* Every position in y's memory that threads count is an element. */
        text_add(&source.code, "DEVICE bool find(const arguments&, i64, position&) { return true; }\n\n");
    return end_source(&source, state, "map/block_values.cuh", "block_values", items, device, arena);
}

/* Scales are computed first and read as stored, even if they are not outputs: then they are in the workspace. */
static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct scaling s;
    struct cuda_step *state;
    TRY(analyse(&s, &step->region));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (tensor_elements(s.y) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    /* Both kernels are one step: the second waits for the first. */
    if (s.quantize)
        TRY(add_scales(&s, state, device, arena));
    if (is_needed(s.graph, s.y))
        TRY(add_values(&s, state, device, arena));
    /* Elements are divided by the scales even if these are not outputs. */
    step->workspace_bytes = s.has_scale ? 0 : tensor_bytes(s.scale);
    if (!s.quantize)
        return arena_print(arena, &step->detail, "times the scales of blocks");
    return arena_print(arena, &step->detail, "scales by %d thread%s each, then elements", lanes_of(&s),
                       plural(lanes_of(&s)));
}

const struct family cuda_block_scale = {
    .name = "cuda.block_scale",
    .doc = "block-scaled quantization and dequantization",
    .accepts = accepts,
    .build = build,
};
