/* SPDX-License-Identifier: Apache-2.0 */
/* Emits the kernels of the pooling family: constants, operands, and how a thread finds its result from the number of an
   item. plan.c has made all decisions. */
#include "base/number.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/pooling/pooling.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    THREADS = 256,       /* per block of the general kernels */
    UNROLLED_TAPS = 16,  /* maximum taps of the general kernels that are unrolled */
    COORDINATES_MAX = 6, /* per item */
    AHEAD = 528,         /* distance in blocks of L2 prefetches: four per multiprocessor of an H200 */
};

/* ---- Code generation --------------------------------------------------------------------------------------------- */

/* Arguments are integers: kernels reinterpret the bits of the double. */
static void emit_bits(struct kernel_source *source, double number, const char *name) {
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    emit_number(source, bits, name);
}

/* One number per axis: <name>0, <name>1, <name>2. */
static void emit_numbered(struct kernel_source *source, const int64_t *numbers, const char *name) {
    char text[32];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s%d", name, i);
        emit_number(source, numbers[i], text);
    }
}

/* Emits the type, the strides and, if it is used, the pointer of an operand. An absent operand also has a type, because
   kernels name it. name: the name of its strides; pointer: the name of the field and, with _t, of the type. */
static void emit_operand(struct kernel_source *source, const struct pooling *w, const struct resample_operand *operand,
                         const char *name, const char *pointer) {
    char text[32];
    weftDataType_t type = operand->tensor ? (weftDataType_t)operand->tensor->type : WEFT_DATA_INT8;
    if (operand == &w->g.index && w->index_is_scratch)
        emit_scratch(source, cuda_type_name(type), 0, pointer);
    else if (pooling_uses(w, operand))
        emit_pointer(source, type, graph_find_value(w->region->graph, operand->tensor), 0, pointer);
    snprintf(text, sizeof text, "%s_t", pointer);
    emit_type(source, text, type);
    snprintf(text, sizeof text, "%s_n", pointer);
    emit_number(source, operand->batch_stride, text);
    snprintf(text, sizeof text, "%s_c", pointer);
    emit_number(source, operand->channel_stride, text);
    emit_numbered(source, operand->size_stride, name);
}

/* A mode of an item's number: the coordinate that it contributes to, and its step there. */
struct item_mode {
    const char *name;
    int64_t extent, stride, times;
};

/* The modes of an item, slowest first in memory: the result's image, run of channels, and position or patch along each
   axis. Rows of patches that adjacent threads share come right before the channels. The artificial strides -1 and -2
   sort channels last and their rows before them, in any layout. */
static int list_modes(const struct pooling *w, struct item_mode *modes) {
    const struct resample_operand *result = pooling_result(w);
    int64_t step1 = w->kernel >= POOL && !w->g.backward ? w->patch[1] : 1,
            step2 = w->kernel >= POOL && !w->g.backward ? w->patch[2] : 1;
    /* Slowest first for NCDHW; the sort by strides below decides. */
    const struct item_mode all[] = {
        {"n", w->g.n, result->batch_stride, 1},
        {"at[0]", pooling_patches(w, 0), result->size_stride[0], 1},
        {"at[1]", divide_up(pooling_patches(w, 1), w->rows), result->size_stride[1], w->rows * step1},
        {"at[2]", pooling_patches(w, 2), result->size_stride[2], step2},
        {"at[1]", w->rows, w->run > 1 ? -1 : result->size_stride[1], step1},
        {"c", w->g.c / w->run, w->run > 1 ? -2 : result->channel_stride, w->run},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int at = count;
        if (all[i].extent == 1)
            continue;
        for (; at > 0 && modes[at - 1].stride < all[i].stride; at--)
            modes[at] = modes[at - 1];
        modes[at] = all[i];
        count++;
    }
    return count;
}

/* Emits locate(): the coordinates of an item from its number, the fastest mode first. times: positions of a patch, as
   text. */
static void emit_locate(struct kernel_source *source, const struct pooling *w) {
    struct item_mode modes[COORDINATES_MAX];
    int count = list_modes(w, modes);
    text_add(&source->code,
             "DEVICE coordinates locate(const arguments& p, position rest) {\n    coordinates to = {};\n");
    for (int k = count; k-- > 0;) {
        char text[32];
        snprintf(text, sizeof text, "mode%d", k);
        if (k > 0)
            emit_divisor(source, modes[k].extent, text);
        text_add(&source->code, "    to.%s += ", modes[k].name);
        text_add(&source->code, k > 0 ? "split(rest, p.%s)" : "rest", text);
        text_add(&source->code, modes[k].times == 1 ? ";\n" : " * %lld;\n", (long long)modes[k].times);
    }
    text_add(&source->code, "    return to;\n}\n\n");
}

/* float represents integers up to 2^24, so wider ones are compared and summed in double; so are interpolated ones,
   which must round halves correctly. */
static bool computes_in_double(const struct pooling *w) {
    const struct resample *p = ((const struct resample_op *)w->op)->parameters;
    const struct tensor *tensors[] = {w->g.x.tensor, w->g.y.tensor, w->g.saved.tensor};
    bool is_double = p->math == WEFT_DATA_DOUBLE;
    for (int k = 0; k < 3; k++)
        if (tensors[k])
            is_double = is_double || tensors[k]->type == WEFT_DATA_DOUBLE ||
                        (dtype_is_integer((weftDataType_t)tensors[k]->type) &&
                         (dtype_bytes((weftDataType_t)tensors[k]->type, 1) > 1 || w->g.mode == WEFT_RESAMPLE_BILINEAR));
    return is_double;
}

/* A team has one warp per row of a window. */
static int threads_of(const struct pooling *w) {
    return w->kernel == POOL_TEAM ? 32 * (int)w->g.taps[1] : w->kernel >= POOL ? POOL_THREADS : THREADS;
}

static bool is_tma(const struct pooling *w) { return w->kernel == POOL_TMA || w->kernel == POOL_TMA_BWD; }

/* True if blocks loop over the result. Blocks of the other kernels compute one tile each. */
static bool loops_over_items(const struct pooling *w) { return w->kernel < POOL_TMA; }

static bool is_nchw(const struct pooling *w) { return w->kernel == POOL_NCHW || w->kernel == POOL_NCHW_BWD; }

/* True if maxima are computed in pairs of 16 bits in their stored form: also with indices if the device compares pairs
   and NaN wins. */
static bool is_paired(const struct pooling *w) {
    weftDataType_t type = (weftDataType_t)w->g.x.tensor->type;
    bool finds = !w->has_index || (w->g.propagates_nan && (type == WEFT_DATA_HALF || w->device->cuda.major >= 9));
    return w->kernel >= POOL && w->kernel != POOL_WHOLE && !w->g.backward && w->g.mode == WEFT_RESAMPLE_MAXPOOL &&
           finds && (w->run % 2 == 0 || w->run == 1) && dtype_is_half(type) && w->device->cuda.major >= 8;
}

/* Resident blocks per multiprocessor that registers must allow: the launch bounds from which the compiler derives
   registers. The first condition that holds decides. */
static int blocks_of(const struct pooling *w) {
    bool is_mean = w->g.mode != WEFT_RESAMPLE_MAXPOOL, is_small = w->patch[1] * w->patch[2] <= 2;
    if (w->kernel == POOL_TEAM)
        return 1024 / threads_of(w);
    if (w->kernel == POOL_WHOLE)
        return 8;
    if (pooling_product(w->g.taps) > POOL_SHARED_TAPS)
        return 2;
    if (computes_in_double(w) || pooling_uses(w, &w->g.saved) || pooling_product(w->g.taps) > 9)
        return 3;
    if (w->kernel == POOL_TMA_BWD)
        return 5;
    if (is_nchw(w))
        return w->has_index || w->g.backward ? 6 : is_paired(w) ? 12 : 8;
    if (w->kernel == POOL_UNALIGNED)
        return 8;
    if (w->has_index && !w->g.backward)
        return is_paired(w) ? 4 : 3;
    if (w->g.backward && (is_mean || is_small))
        return is_small ? 6 : 5;
    return is_mean || is_paired(w) || is_small ? 5 : 4;
}

/* True if offsets in memory exceed 31 bits. POOL_TAPS more than the size, because windows extend beyond the image
   before they are clipped. */
static bool has_far_elements(const struct pooling *w) {
    const struct resample_operand *operands[] = {&w->g.x, &w->g.y, &w->g.index, &w->g.saved};
    double farthest = 0;
    for (int k = 0; k < 4; k++) {
        const struct resample_operand *o = operands[k];
        double last = (double)w->g.n * (double)o->batch_stride + (double)w->g.c * (double)o->channel_stride;
        for (int i = 0; i < 3; i++)
            last += ((double)o->size[i] + POOL_TAPS) * (double)o->size_stride[i];
        farthest = pooling_uses(w, o) && last > farthest ? last : farthest;
    }
    return farthest >= WEFT_INDEX32_MAX;
}

/* Returns the maximum for kernels that loop with the grid's stride. */
static int64_t max_blocks(const struct device *device) { return (int64_t)device->cuda.multiprocessors * 256; }

/* For POOL_UNALIGNED: tiles per row, and rows of tiles. */
static int64_t unaligned_tiles(const struct pooling *w) { return divide_up(w->g.y.size[2], w->tile_columns); }
static int64_t unaligned_tile_rows(const struct pooling *w) { return divide_up(w->g.y.size[1], w->patch[1]); }

/* Blocks with one tile each, or one item per thread. The warps of a team compute 32 items together. */
static int64_t blocks_at_all(const struct pooling *w) {
    int64_t each = w->kernel == POOL_TEAM ? 32 : threads_of(w);
    if (w->kernel >= POOL_NCHW)
        return pooling_blocks_of_nchw(w);
    if (is_tma(w))
        return pooling_blocks_of_tma(w);
    if (w->kernel == POOL_UNALIGNED)
        return w->g.n * unaligned_tile_rows(w) * unaligned_tiles(w);
    return divide_up(pooling_items(w), each);
}

/* How many of the first blocks prefetch their inputs before the preceding kernel ends: the resident ones, if each warp
   reads one segment per tap, or each block one. 0: none. */
static int64_t expects(const struct pooling *w) {
    int64_t at_once = 8 * (int64_t)w->device->cuda.multiprocessors;
    bool is_team = w->kernel == POOL_TEAM && w->g.c / w->run % 32 == 0 && w->g.taps[2] <= 32 &&
                   pooling_bytes(&w->g.x, w->run) == 16 && w->g.x.tensor->alignment % 16 == 0 &&
                   blocks_at_all(w) <= at_once;
    bool is_segment = w->kernel == POOL_NCHW && w->nchw.is_segment;
    return (is_team || is_segment) && w->device->cuda.major >= 9 ? at_once : 0;
}

/* Distance in blocks of L2 prefetches, for kernels in which arithmetic delays loads. 0: no prefetches. */
static int prefetch_distance(const struct pooling *w) {
    const struct resample_operand *read = pooling_source(w);
    return w->kernel == POOL_BWD && w->device->cuda.major >= 9 && w->run > 1 && pooling_is_packed_last(&w->g, read) &&
                   blocks_at_all(w) > 4 * AHEAD && blocks_at_all(w) <= max_blocks(w->device)
               ? AHEAD
               : 0;
}

/* All kernels get the same constants, even those that they do not use, because they share headers. */
static void emit_constants(struct kernel_source *source, const struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    /* Few taps are unrolled; 0 means that the number is an argument. */
    bool is_maximum = g->mode == WEFT_RESAMPLE_MAXPOOL, excludes = g->mode == WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING;
    bool is_pool = w->kernel >= POOL, unrolls = is_pool || pooling_product(g->taps) <= UNROLLED_TAPS;
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {
        {"RUN", is_nchw(w) ? w->nchw.along : w->run},
        {"ALONG_ROWS", is_nchw(w)},
        {"EXPECTS", expects(w)},
        {"AHEAD", prefetch_distance(w)},
        {"GRAIN", is_nchw(w) ? w->nchw.grain : w->run},
        {"THREADS", threads_of(w)},
        {"TAPS0", unrolls ? g->taps[0] : 0},
        {"TAPS1", unrolls ? g->taps[1] : 0},
        {"TAPS2", unrolls ? g->taps[2] : 0},
        {"DILATION0", g->dilation[0]},
        {"DILATION1", g->dilation[1]},
        {"DILATION2", g->dilation[2]},
        {"STEP0", is_pool ? g->step[0] : 0},
        {"STEP1", is_pool ? g->step[1] : 0},
        {"STEP2", is_pool ? g->step[2] : 0},
        {"PATCH1", w->patch[1]},
        {"PATCH2", w->patch[2]},
        {"BLOCKS", blocks_of(w)},
        {"LANES", w->tma.lanes},
        {"LINE", POOL_LINE},
        {"IS_DILATED", g->dilation[0] > 1 || g->dilation[1] > 1 || g->dilation[2] > 1},
        {"IS_PAIRED", is_paired(w)},
        {"IS_SCALED", g->alpha != 1},
        {"WANTS_WHERE", g->backward || w->has_index},
        {"IS_MAXIMUM", is_maximum},
        {"IS_LINEAR", g->mode == WEFT_RESAMPLE_BILINEAR},
        {"IS_POOL", is_maximum || excludes || g->mode == WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING},
        {"IS_WHOLE", g->denominator[0] == 1 && g->denominator[1] == 1 && g->denominator[2] == 1},
        {"CLAMPS", g->padding == WEFT_EDGE_VAL_PAD && !excludes},
        {"SKIPS_PADDING", g->padding == WEFT_NEG_INF_PAD},
        {"MAY_BE_EMPTY", g->padding == WEFT_NEG_INF_PAD && pooling_may_be_empty(g)},
        {"EXCLUDES_PADDING", excludes},
        {"PROPAGATES_NAN", g->propagates_nan},
        {"HAS_Y", w->has_y},
        {"HAS_INDEX", w->has_index},
        {"HAS_SAVED", pooling_uses(w, &g->saved)},
        {"HAS_OLD", g->beta != 0},
    };
    /* Kernels that copy to shared memory. */
    if (w->kernel >= POOL_TMA)
        text_add(&source->constants, "#include \"core/async.cuh\"\n#include \"core/stream.cuh\"\n\n");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(source, constants[i].name, constants[i].value);
    text_add(
        &source->constants,
        "using element = u16;\nusing math_t = %s;\nusing length_t = %s;\nusing offset_t = %s;\nusing position = %s;\n",
        computes_in_double(w) ? "double" : "float", w->is_wide ? "i64" : "i32", has_far_elements(w) ? "i64" : "i32",
        index_type(pooling_items(w)));
}

/* Emits what blocks prefetch to L2: equal shares of the source's memory, one per block, in whole chunks of 16 bytes, as
   prefetches require. */
static void emit_ahead(struct kernel_source *source, const struct pooling *w) {
    const struct resample_operand *read = pooling_source(w);
    int64_t bytes = tensor_bytes(read->tensor), parts = blocks_at_all(w);
    if (!prefetch_distance(w))
        return;
    emit_number(source, round_up(divide_up(bytes, parts), 16), "ahead_bytes");
    emit_number(source, bytes / 16 * 16, "whole");
}

/* Emits the arguments: sizes, strides, addresses, factors. */
static void emit_geometry(struct kernel_source *source, const struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    /* The tensor whose maxima are computed: `lowest` is the lowest number of its type. */
    const struct tensor *compared = g->backward && g->saved.tensor ? g->saved.tensor : g->x.tensor;
    const struct dtype *type = dtype_of((weftDataType_t)compared->type);
    emit_numbered(source, g->x.size, "x");
    emit_numbered(source, g->y.size, "y");
    emit_numbered(source, g->taps, "taps");
    emit_numbered(source, g->step, "step");
    emit_numbered(source, g->offset, "offset");
    emit_numbered(source, g->denominator, "denominator");
    emit_operand(source, w, &g->x, "x_stride", "x");
    emit_operand(source, w, &g->y, "y_stride", "y");
    emit_operand(source, w, &g->index, "index_stride", "index");
    emit_operand(source, w, &g->saved, "saved_stride", "saved");
    emit_bits(source, g->alpha, "alpha");
    emit_bits(source, g->beta, "beta");
    emit_bits(source, type->is_float ? -INFINITY : type->lowest, "lowest");
    emit_number(source, pooling_items(w), "runs");
    if (w->kernel == POOL_BWD || w->kernel == POOL_NCHW_BWD) {
        emit_number(source, pooling_first_patch(w, 1), "first1");
        emit_number(source, pooling_first_patch(w, 2), "first2");
    }
    emit_ahead(source, w);
}

/* Kernel functions, each in a file of its name. */
const char *const pooling_entries[] = {
    [RESAMPLE] = "resample",           [RESAMPLE_BWD] = "resample_bwd",     [POOL] = "pool",
    [POOL_BWD] = "pool_bwd",           [POOL_TEAM] = "pool_team",           [POOL_TMA] = "pool_tma",
    [POOL_TMA_BWD] = "pool_tma_bwd",   [POOL_UNALIGNED] = "pool_unaligned", [POOL_NCHW] = "pool_nchw",
    [POOL_NCHW_BWD] = "pool_nchw_bwd", [POOL_WHOLE] = "pool_whole",
};

/* Adds POOL_LINE, because a tile keeps its memory's offset within a line. Returns the bytes of shared memory. */
static uint32_t emit_unaligned(struct kernel_source *source, const struct pooling *w) {
    emit_number(source, w->tile_columns, "tile_columns");
    emit_number(source, w->pitch, "pitch");
    emit_divisor(source, unaligned_tiles(w), "tiles");
    emit_divisor(source, unaligned_tile_rows(w), "bands");
    emit_divisor(source, w->g.c, "channels");
    return (uint32_t)pooling_bytes(&w->g.x, ((w->patch[1] - 1) * w->g.step[1] + w->g.taps[1]) * w->pitch) + POOL_LINE;
}

/* Emits how a kernel finds its positions; returns the shared memory of a block. Tiled kernels have their own
   coordinates; all others use locate(). */
static uint32_t emit_positions(struct kernel_source *source, const struct pooling *w) {
    if (w->kernel >= POOL_NCHW)
        return pooling_emit_nchw(source, w);
    if (is_tma(w))
        return pooling_emit_tma(source, w);
    if (w->kernel == POOL_UNALIGNED)
        return emit_unaligned(source, w);
    emit_locate(source, w);
    return 0;
}

/* Maps come first, as emit_map requires. */
weftStatus_t pooling_build_kernel(struct cuda_kernel *kernel, const struct pooling *w, struct arena *arena) {
    const char *file;
    TRY(arena_print(arena, &file, "pooling/%s.cuh", pooling_entries[w->kernel]));
    struct kernel_source source;
    kernel_source_init(&source, w->region);
    if (is_tma(w))
        pooling_emit_maps(&source, w);
    emit_constants(&source, w);
    emit_geometry(&source, w);
    text_add(&source.code,
             "#include \"core/gather.cuh\"\n#include \"core/chunks.cuh\"\n#include \"pooling/geometry.cuh\"\n%s\n",
             w->kernel >= POOL ? "#include \"pooling/pool_common.cuh\"\n" : "");
    int64_t blocks = blocks_at_all(w), most = max_blocks(w->device);
    kernel->shared_bytes = emit_positions(&source, w);
    TRY(kernel_finish(&source, kernel, file, pooling_entries[w->kernel], arena));
    kernel->grid[0] = (uint32_t)(loops_over_items(w) && blocks > most ? most : blocks);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)threads_of(w);
    kernel->is_dependent = w->kernel >= POOL && w->device->cuda.major >= 9;
    return WEFT_STATUS_SUCCESS;
}
