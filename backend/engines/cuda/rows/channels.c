/* SPDX-License-Identifier: Apache-2.0 */
/* Channels family: training-mode batch norm of channels-last tensors, forward and backward, fused with adjacent
   pointwise operations. It is one cooperative launch: blocks synchronize between the statistics and the results. Data
   that was read for the statistics stays on chip as far as it fits. The row program is that of the rows family; this is
   another schedule of it (rows/channels.cuh). */
#include "base/number.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "engines/cuda/rows/schedule.h"
#include "graph/ops/norm.h"

#include <stdio.h>
#include <string.h>

enum {
    THREADS = 512,       /* consumer threads of a block */
    PRODUCER = 32,       /* extra warp, one thread of which issues the TMA copies */
    LINE_VECTORS = 8,    /* 16-byte vectors per cache line */
    BOX_POSITIONS = 256, /* maximum per copy */
    STAGES_MIN = 3,      /* minimum number of stages */
    STAGES_MAX = 32,     /* maximum number of batches in shared memory */
    OTHER_BYTES = 1024,  /* shared memory for barriers and partial results */
};

/* Cost of a launch with a grid-wide barrier, and the share of L2 that can be expected to survive from one pass to the
   next. */
static const double LAUNCH_SECONDS = 5e-6, CACHED_SHARE = 0.5;

/* A tile is `across` vectors of channels. Its positions are split into batches, which its blocks share and copy one at
   a time. Each tile gets as many blocks as the multiprocessors allow. */
struct channels {
    struct rows rows;
    struct schedule schedule;
    int64_t tiles, blocks; /* `blocks` counts the blocks of each tile */
    int64_t batches;       /* per tile */
    int64_t stay;          /* batches of a block that the copies ask L2 to retain */
    int stages;
};

/* ---- Supported regions ------------------------------------------------------------------------------------------- */

/* Inference computes no statistics and is left to other families. */
static bool is_batch_norm(const struct node *node) {
    if (op_of(node->op) == &norm_backward_op)
        return ((const struct norm_backward *)node->op)->mode == WEFT_BATCH_NORM;
    if (op_of(node->op) != &norm_forward_op)
        return false;
    const struct norm_forward *op = (const struct norm_forward *)node->op;
    return op->mode == WEFT_BATCH_NORM && !norm_is_inference_of_batch(op);
}

/* Accepts exactly one norm, because the blocks synchronize only once, between its two passes. */
static weftStatus_t check_region(const struct region *region, const struct device *device) {
    int norms = 0;
    for (int i = 0; i < region->count; i++)
        norms += is_batch_norm(region_node(region, i));
    if (norms != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: this family supports exactly one batch norm with batch statistics per region",
             descriptor_label(region_node(region, 0)->op));
    if (device->cuda.major < 9)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "TMA requires sm_90, this is sm_%d%d", device->cuda.major,
             device->cuda.minor);
    return WEFT_STATUS_SUCCESS;
}

/* Bit mask of the operands that reductions depend on. They are read in both passes and stay on chip. */
static uint32_t counted_operands(const struct schedule *s) {
    /* Pass 0 computes the statistics, see check_schedule. */
    bool is_evaluated[TERMS_MAX];
    uint32_t counted = 0;
    schedule_terms_of_pass(s, 0, is_evaluated);
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct term *term = rows_find(s->rows, s->nest.operands[k].value);
        if (!s->nest.operands[k].is_store && is_evaluated[term - s->rows->terms])
            counted |= UINT32_C(1) << k;
    }
    return counted;
}

/* True if TMA can load the resident operands: contiguous vectors in multiples of 16 bytes. */
static bool can_copy(const struct schedule *s) {
    int copies = 0;
    bool is_supported = true;
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct operand *operand = &s->nest.operands[k];
        if (!schedule_is_resident(s, k))
            continue;
        int64_t bytes = dtype_bytes(operand->type, 1);
        copies++;
        is_supported = is_supported && operand->memory >= 0 && operand->strides[0] == 1 &&
                       operand->strides[1] * bytes % 16 == 0 && operand->strides[1] > 0 &&
                       s->vectors.width * s->threads.across * bytes % 16 == 0 &&
                       s->rows->graph->values[operand->memory].tensor->alignment % 16 == 0;
    }
    return is_supported && copies > 0 && copies <= MAPS_MAX;
}

/* Preconditions that rows/channels.cuh asserts or assumes. */
static weftStatus_t check_schedule(const struct schedule *s) {
    if (!s->nest.is_columns || s->nest.row_dims != 1 || s->nest.rank != 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "every tensor must be channels-last, with positions that merge into one dimension");
    if (s->passes.closed != 1 || s->passes.storing != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "expected one pass for statistics and one for results, this region needs %d for statistics and %d in all",
             s->passes.closed, s->passes.count);
    if (schedule_calculates_in_double(s))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums are computed in float, not in double");
    if (s->vectors.width < 4)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "threads need vectors of at least 4 channels, got %d", s->vectors.width);
    if (s->vectors.per_row > INT32_MAX / 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%lld positions exceed what a copy can address",
             (long long)s->vectors.per_row);
    return WEFT_STATUS_SUCCESS;
}

/* ---- The schedule ------------------------------------------------------------------------------------------------ */

/* Fraction of the threads that do useful work if tiles are `across` vectors wide: the share of channels that fill their
   tiles, times the share of multiprocessors that have a tile. Each tile gets the same number of blocks. */
static double useful_share(const struct schedule *s, int64_t across, const struct device *device) {
    int64_t tiles = divide_up(s->vectors.strips, across), multiprocessors = device->cuda.multiprocessors;
    return (double)s->vectors.strips / (double)(tiles * across) * (double)(multiprocessors / tiles * tiles) /
           (double)multiprocessors;
}

/* Bytes that pass 1 reads again from memory because neither shared memory nor the cache holds them. */
static double reread_bytes(const struct schedule *s, const struct device *device) {
    double bytes = 0, shared = (double)device->cuda.multiprocessors * (double)device->cuda.shared_per_block;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (schedule_is_resident(s, k))
            bytes += (double)schedule_vector_bytes(s, k) * (double)s->vectors.strips * (double)s->vectors.per_row;
    bytes -= shared + CACHED_SHARE * (double)device->cuda.l2_bytes;
    return bytes > 0 ? bytes : 0;
}

/* Tiles are one cache line wide, or two if memory bandwidth dominates. Half a line is chosen only if it wastes clearly
   less: the batch norm gradient of 128x144x56x56 took 314 us with tiles of 32 channels, predicted 130 us (H200). */
static int choose_across(const struct schedule *s, const struct device *device) {
    bool is_far = reread_bytes(s, device) > 0;
    int usual = is_far ? 2 * LINE_VECTORS : LINE_VECTORS, least = is_far ? LINE_VECTORS : LINE_VECTORS / 2, across = 1;
    while (across < s->vectors.strips && across < usual)
        across *= 2;
    for (int other = across / 2; other >= least; other /= 2)
        if (useful_share(s, other, device) > 1.1 * useful_share(s, across, device))
            across = other;
    return across;
}

/* Returns the bytes of one stage in shared memory: UNROLL positions per group, for all resident operands. */
static int64_t batch_bytes(const struct schedule *s) {
    return schedule_row_bytes(s) * s->threads.across * s->memory.unroll;
}

/* Returns the maximum bytes of the per-channel numbers. */
static int64_t row_bytes(const struct schedule *s) {
    int64_t bytes = 8;
    for (int i = 0; i < s->rows->term_count; i++) {
        const struct term *term = &s->rows->terms[i];
        if (rows_is_field(s->rows, term))
            bytes += term->names * (strcmp(term->type, "float") == 0 ? 4 : 8);
    }
    return bytes;
}

/* Maps at most one block to each multiprocessor: blocks wait for each other, so all must be resident. */
static weftStatus_t map_channels(struct channels *c, const struct device *device) {
    struct schedule *s = &c->schedule;
    int64_t multiprocessors = device->cuda.multiprocessors;
    s->memory.scheme = MEMORY_CHANNELS;
    s->memory.accumulated = counted_operands(s);
    s->memory.steps = s->memory.stages = s->threads.min_blocks = 1;
    s->threads.block = THREADS;
    s->threads.across = choose_across(s, device);
    s->threads.group = s->threads.block / s->threads.across;
    s->memory.unroll = schedule_row_bytes(s) <= 16 * s->threads.group ? 2 : 1;
    if (!can_copy(s))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "TMA requires at most %d tensors, in multiples of 16 bytes", MAPS_MAX);
    /* tiles * blocks <= multiprocessors, because the barrier needs all blocks to be resident. */
    c->tiles = divide_up(s->vectors.strips, s->threads.across);
    c->batches = divide_up(s->vectors.per_row, (int64_t)s->threads.group * s->memory.unroll);
    c->blocks = c->tiles ? min64(multiprocessors / c->tiles, c->batches) : 0;
    /* A smaller grid could run concurrently with another launch of the same kernel, which would share its counters. */
    if (2 * c->tiles * c->blocks <= multiprocessors)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%lld tiles of %d channels with %lld batches of %d positions would not keep %lld multiprocessors busy",
             (long long)c->tiles, s->threads.across * s->vectors.width, (long long)c->batches,
             s->threads.group * s->memory.unroll, (long long)multiprocessors);
    /* The partial results of the warps and the per-channel numbers are in shared memory, after the stages. */
    int64_t numbers =
        s->threads.across * s->vectors.width * (s->threads.block / 32 * schedule_partial_bytes(s) + row_bytes(s));
    c->stages = (int)min64((device->cuda.shared_per_block - OTHER_BYTES - numbers) / batch_bytes(s), STAGES_MAX);
    if (c->stages < STAGES_MIN)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
             "shared memory holds %d batches of %lld bytes, at least %d are required", c->stages,
             (long long)batch_bytes(s), STAGES_MIN);
    return WEFT_STATUS_SUCCESS;
}

/* Bytes read (or stored) for all elements. Per-channel numbers are few and not counted. */
static double bytes_of(const struct schedule *s, bool is_store) {
    double bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct operand *operand = &s->nest.operands[k];
        const struct term *term = rows_find(s->rows, operand->value);
        if (operand->is_store == is_store && term->spans && term->is_needed && operand->memory >= 0)
            bytes += (double)schedule_vector_bytes(s, k) * (double)s->vectors.strips * (double)s->vectors.per_row;
    }
    return bytes;
}

/* The statistics read everything once; pass 1 reads again what neither shared memory nor L2 holds. */
static void predict(struct channels *c, const struct device *device) {
    struct schedule *s = &c->schedule;
    double again = reread_bytes(s, device), stored = bytes_of(s, true);
    /* If pass 1 reads more again than the cache holds, data retained in L2 would displace results. */
    c->stay = again > 0 ? 0 : divide_up(c->batches, c->blocks);
    s->memory.stores_evict_first = stored > CACHED_SHARE * (double)device->cuda.l2_bytes;
    s->seconds = LAUNCH_SECONDS + price_moving(bytes_of(s, false) + again + stored, device);
}

/* Compute the statistics in one pass around a sample of each channel, so that blocks combine plain sums. */
static weftStatus_t plan(struct channels *c, const struct region *region, const struct device *device) {
    TRY(check_region(region, device));
    TRY(rows_analyse(&c->rows, region, STATISTICS_SHIFTED, true));
    TRY(schedule_begin(&c->schedule, &c->rows));
    TRY(check_schedule(&c->schedule));
    TRY(map_channels(c, device));
    predict(c, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

/* Constants that rows/channels.cuh and the headers of rows require. */
static void emit_constants(struct kernel_source *source, const struct channels *c) {
    const struct schedule *s = &c->schedule;
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {
        {"WIDTH", s->vectors.width},
        {"COLUMNS", true},
        {"ACROSS", s->threads.across},
        {"GROUP", s->threads.group},
        {"THREADS", s->threads.block},
        {"UNROLL", s->memory.unroll},
        {"STAGES", c->stages},
        {"REFILLED", c->stages / 2},
        {"SLOT_VECTORS", (int64_t)s->memory.unroll * s->threads.block}, /* vectors per stage */
        {"KEPT_BYTES", schedule_row_bytes(s) / s->threads.group},
        {"VECTOR_STEP", s->threads.group},
        {"COLUMN_SUMS", 0},
    };
    text_add(&source->constants,
             "#include \"core/async.cuh\"\n#include \"core/stream.cuh\"\n#include \"core/reduce.cuh\"\n\n");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(source, constants[i].name, constants[i].value);
    text_add(&source->constants, "using position = int;\nusing column_t = float;\n\n#include \"rows/program.cuh\"\n");
}

/* A copy depends only on the element size: bf16 stands for all 16-bit types. */
static enum tensor_map_type map_type(weftDataType_t type) {
    int64_t bytes = dtype_bytes(type, 1);
    return bytes == 1 ? TENSOR_MAP_U8 : bytes == 2 ? TENSOR_MAP_BF16 : TENSOR_MAP_F32;
}

/* Tensor maps of the resident operands: positions by channels. */
static void emit_maps(struct kernel_source *source, const struct schedule *s) {
    for (int k = 0; k < s->rows->operand_count; k++) {
        const struct operand *operand = &s->nest.operands[k];
        if (!schedule_is_resident(s, k))
            continue;
        int64_t bytes = dtype_bytes(operand->type, 1);
        struct cuda_map map = {.form = {.type = map_type(operand->type), .rank = 2, .promotion = TENSOR_MAP_L2_128B},
                               .offset = operand->offset * bytes};
        char name[16];
        /* Channels are the contiguous dim, positions the other; elements out of bounds read as zero. */
        map.form.dims[0] = (uint64_t)(s->vectors.strips * s->vectors.width);
        map.form.dims[1] = (uint64_t)s->vectors.per_row;
        map.form.strides[0] = (uint64_t)(operand->strides[1] * bytes);
        map.form.box[0] = (uint32_t)(s->threads.across * s->vectors.width);
        map.form.box[1] = (uint32_t)min64((int64_t)s->memory.unroll * s->threads.group, BOX_POSITIONS);
        snprintf(name, sizeof name, "map%d", k);
        emit_map(source, operand->memory, &map, name);
    }
}

/* copy_batch(): copies one batch of all resident operands, one after another, in the layout that read_kept() expects. A
   TMA box has at most 256 positions, so a batch may need several. `policy` is the L2 policy: retain the batch or evict
   it first. */
static void emit_copy_batch(struct text *code, const struct schedule *s) {
    int64_t at = 0;
    text_add(code,
             "DEVICE void copy_batch(u32 slot, u32 arrival, const arguments& a, int channel, int place, u64 policy) {\n"
             "    for (int row = 0; row < UNROLL * GROUP; row += %d) {\n",
             BOX_POSITIONS);
    for (int k = 0; k < s->rows->operand_count; k++) {
        if (!schedule_is_resident(s, k))
            continue;
        int64_t bytes = schedule_vector_bytes(s, k);
        text_add(
            code,
            "    load_box(slot + %lld * SLOT_VECTORS + row * %lld, a.map%d, arrival, channel, place + row, policy);\n",
            (long long)at, (long long)(bytes * s->threads.across), k);
        at += bytes;
    }
    text_add(code, "    }\n}\n\n");
}

/* ---- The family -------------------------------------------------------------------------------------------------- */

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct channels c;
    TRY(plan(&c, region, device));
    offer->seconds = c.schedule.seconds;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct channels c;
    struct cuda_step *state;
    struct kernel_source source;
    TRY(plan(&c, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    const struct schedule *s = &c.schedule;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    kernel_source_init(&source, &step->region);
    emit_constants(&source, &c);
    emit_maps(&source, s);
    emit_number(&source, c.tiles, "channel_tiles");
    /* Sizes are arguments, never source text. */
    emit_number(&source, c.stay, "stay");
    rows_emit_functions(&source, s);
    emit_copy_batch(&source.code, s);
    kernel->grid[0] = (uint32_t)(c.tiles * c.blocks);
    kernel->grid[1] = kernel->grid[2] = 1;
    /* One warp more than GROUP and ACROSS account for, which is the producer. */
    kernel->block = (uint32_t)s->threads.block + PRODUCER;
    kernel->shared_bytes = (uint32_t)(batch_bytes(s) * c.stages);
    /* Cooperative: the driver refuses to start fewer than all blocks, which would deadlock. */
    kernel->is_dependent = kernel->is_cooperative = true;
    /* Each block of a tile has one partial result per channel. */
    step->workspace_bytes = c.tiles * c.blocks * s->threads.across * s->vectors.width * schedule_partial_bytes(s);
    TRY(kernel_finish(&source, kernel, "rows/channels.cuh", "channels", arena));
    int64_t batches = divide_up(c.batches, c.blocks);
    return arena_print(arena, &step->detail,
                       "tiles of %d channel%s, %lld blocks each; batches of %d positions, %lld per block, of which "
                       "%lld stay in shared memory%s",
                       s->threads.across * s->vectors.width, plural(s->threads.across * s->vectors.width),
                       (long long)c.blocks, s->threads.group * s->memory.unroll, (long long)batches,
                       (long long)min64(c.stages, batches),
                       batches <= c.stages ? ""
                       : c.stay            ? " and the others in the cache"
                                           : "");
}

const struct family cuda_channels = {
    .name = "cuda.channels",
    .doc = "batch norm of channels-last tensors, fused with adjacent pointwise operations, in one launch",
    .accepts = accepts,
    .build = build,
    .may_alias = rows_may_alias,
};
