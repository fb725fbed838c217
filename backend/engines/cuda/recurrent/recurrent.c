/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent family: the steps of recurrent layers and their gradients. One launch runs all steps: each block owns some
   hidden units and some sequences, keeps its rows of the recurrent weights in shared memory if they fit, and exchanges
   states with the other blocks of the same sequences after each step. The device files in this folder compute:
     packed matrices, initial states   prepare.cuh
     forward, backward                 forward.cuh, backward.cuh, with steps.cuh */
#include "graph/ops/recurrence.h"
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

#include <stdio.h>
#include <string.h>

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    COLUMNS = 4,          /* sequences of a tile */
    ROWS = 4,             /* rows of a tile that are not the gates of a unit */
    ROUND = 128,          /* elements of the depth per round of a warp */
    LINE = 256,           /* alignment of parts of the workspace */
    STATIC_SHARED = 1024, /* what the kernels leave of a block's shared memory */
};

/* Measured on an H200: a meeting of all blocks. */
static const double MEETING_SECONDS = 1.5e-6;

struct recurrent {
    const struct recurrence_op *op;
    const struct region *region;
    bool is_backward, is_double, is_resident;
    struct recurrence_sizes sizes;
    weftDataType_t matrix_type;
    int64_t blocks, groups;                      /* blocks of a group, and groups of sequences */
    int64_t units_each, rows_each, entries_each; /* parts of a block */
    int64_t weight_row, weight_rows;             /* packed matrices */
    int64_t projection_row, projection_rows;
    int64_t state_row, other_row;                                          /* exchanged states */
    int64_t counters, weights, projections, states, others, cells, direct; /* offsets in the workspace */
    int64_t bytes;
};

/* ---- Supported operations ---------------------------------------------------------------------------------------- */

static bool is_stored(const struct region *region, const struct tensor *tensor) {
    return tensor && !value_is_dead(&region->graph->values[graph_find_value(region->graph, tensor)]);
}

static bool needs_double(const struct recurrence_op *op) {
    const struct tensor *tensors[RECURRENCE_TENSORS];
    bool found = op->math == WEFT_DATA_DOUBLE;
    recurrence_tensors(op, tensors);
    for (int i = 0; i < RECURRENCE_TENSORS; i++)
        found = found || (tensors[i] && tensors[i]->type == WEFT_DATA_DOUBLE);
    return found;
}

static int64_t place(int64_t *end, int64_t bytes) {
    int64_t at = *end;
    *end = round_up(*end + bytes, LINE);
    return at;
}

/* As many blocks as there are multiprocessors, and warps of each with at least one tile, as far as there are. */
static void choose_blocks(struct recurrent *c, const struct device *device) {
    const struct recurrence_sizes *s = &c->sizes;
    int64_t all = max64(device->cuda.multiprocessors, 1), tiles = divide_up(s->batch, COLUMNS);
    int64_t least = max64(divide_up(WARPS, tiles), c->is_backward || c->op->projection ? ROWS : 1);
    c->units_each = max64(divide_up(s->units, all), least);
    c->blocks = divide_up(s->units, c->units_each);
    int64_t groups = max64(min64(all / c->blocks, divide_up(tiles * c->units_each, WARPS)), 1);
    c->entries_each = divide_up(tiles, min64(groups, tiles)) * COLUMNS;
    c->groups = divide_up(s->batch, c->entries_each);
    c->rows_each = round_up(divide_up(s->projected, c->blocks), c->op->projection ? ROWS : 1);
    if (!c->op->projection)
        c->rows_each = c->units_each;
}

static void place_memory(struct recurrent *c, const struct device *device) {
    const struct recurrence_sizes *s = &c->sizes;
    const int64_t size = c->is_double ? 8 : 4, all = s->gates * s->units, entries = c->groups * c->entries_each;
    const int64_t matrix = dtype_bytes(c->matrix_type, 1);
    c->weight_row = c->state_row = round_up(c->is_backward ? all : s->projected, ROUND);
    c->weight_rows = c->is_backward ? c->blocks * c->rows_each + ROWS : c->blocks * c->units_each * s->gates;
    c->projection_row = c->other_row = round_up(c->is_backward ? s->projected : s->units, ROUND);
    c->projection_rows = c->blocks * (c->is_backward ? c->units_each : c->rows_each) + ROWS;
    int64_t rows = c->is_backward ? round_up(c->rows_each, ROWS) : c->units_each * s->gates;
    c->is_resident = rows * c->weight_row * matrix <= device->cuda.shared_per_block - STATIC_SHARED;
    c->counters = place(&c->bytes, c->groups * 4);
    c->weights = place(&c->bytes, c->weight_rows * c->weight_row * matrix);
    c->projections = place(&c->bytes, c->op->projection ? c->projection_rows * c->projection_row * matrix : 0);
    c->states = place(&c->bytes, 2 * entries * c->state_row * size);
    c->others = place(&c->bytes, c->op->projection ? entries * c->other_row * size : 0);
    c->cells = place(&c->bytes, s->batch * s->units * size);
    c->direct = place(&c->bytes, c->is_backward ? s->batch * s->projected * size : 0);
}

static weftStatus_t analyse(struct recurrent *c, const struct region *region, const struct device *device) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &recurrence_op && op_of(op) != &recurrence_bwd_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a recurrence.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: nothing is fused with it, %s needs a kernel of its own.",
             descriptor_label(op), descriptor_label(region_node(region, 1)->op));
    *c = (struct recurrent){.op = (const struct recurrence_op *)op, .region = region};
    c->is_backward = op_of(op) == &recurrence_bwd_op;
    c->is_double = needs_double(c->op);
    c->sizes = recurrence_sizes(c->op);
    const struct recurrence_sizes *s = &c->sizes;
    if (s->steps == 0 || s->batch == 0 || s->units == 0 || s->projected == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: it has %lld steps of %lld sequences and %lld units. Kernels need at "
             "least one of each.",
             descriptor_label(op), (long long)s->steps, (long long)s->batch, (long long)s->units);
    choose_blocks(c, device);
    if (2 * s->steps * c->blocks > INT32_MAX || s->batch > INT32_MAX / 2 || s->gates * s->units > INT32_MAX / 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: it has %lld steps of %lld sequences and %lld units. Kernels count to "
             "2^30.",
             descriptor_label(op), (long long)s->steps, (long long)s->batch, (long long)s->units);
    const struct tensor *projection = c->op->projection;
    c->matrix_type = c->is_double ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
    if (!projection || projection->type == c->op->weight->type)
        c->matrix_type = (weftDataType_t)c->op->weight->type;
    place_memory(c, device);
    return WEFT_STATUS_SUCCESS;
}

/* The products of each step at half of the device's rate, and its meetings. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct recurrent c;
    TRY(analyse(&c, region, device));
    double clock = device->cuda.clock_khz > 0 ? (double)device->cuda.clock_khz * 1e3 : 1.5e9;
    double computing = op_flops(&c.op->base) / (128.0 * clock * (double)(c.blocks * c.groups)) * (c.is_double ? 2 : 1);
    double meetings = (double)c.sizes.steps * (c.op->projection ? 2 : 1) * MEETING_SECONDS;
    offer->seconds = 2 * PRICE_LAUNCH_SECONDS + computing + meetings;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

static const char *sums_type(const struct recurrent *c) { return c->is_double ? "double" : "float"; }

/* Emits type, pointer and strides of an operand; absent ones have the type of the sums. */
static void emit_operand(struct kernel_source *source, const struct recurrent *c, const struct tensor *tensor,
                         const char *name) {
    char text[32];
    snprintf(text, sizeof text, "has_%s", name);
    emit_constant(source, text, tensor != NULL);
    snprintf(text, sizeof text, "%s_t", name);
    if (tensor) {
        emit_type(source, text, (weftDataType_t)tensor->type);
        emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(source->graph, tensor), 0, name);
    } else {
        text_add(&source->constants, "using %s = %s;\n", text, sums_type(c));
        emit_scratch(source, sums_type(c), 0, name);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s_%d", name, i);
        emit_number(source, tensor && i < tensor->strides.count ? tensor->strides.at[i] : 0, text);
    }
}

/* Emits what both kernels need of the layer and of the workspace. */
static void emit_common(struct kernel_source *source, const struct recurrent *c) {
    const struct recurrence_sizes *s = &c->sizes;
    text_add(&source->constants, "using sum_t = %s;\n", sums_type(c));
    emit_type(source, "matrix_t", c->matrix_type);
    emit_constant(source, "THREADS", THREADS);
    emit_constant(source, "GATES", s->gates);
    emit_constant(source, "IS_BACKWARD", c->is_backward);
    const struct {
        const char *name;
        int64_t number;
    } numbers[] = {{"steps", s->steps},
                   {"batch", s->batch},
                   {"units", s->units},
                   {"projected", s->projected},
                   {"groups", c->groups},
                   {"entries", c->groups * c->entries_each},
                   {"weight_row", c->weight_row},
                   {"weight_rows", c->weight_rows},
                   {"projection_row", c->projection_row},
                   {"projection_rows", c->projection_rows},
                   {"state_row", c->state_row},
                   {"other_row", c->other_row}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        emit_number(source, numbers[i].number, numbers[i].name);
    emit_scratch(source, "unsigned int", c->counters, "counters");
    emit_scratch(source, "matrix_t", c->weights, "weights");
    emit_scratch(source, "matrix_t", c->projections, "projections");
    emit_scratch(source, sums_type(c), c->states, "states");
    emit_scratch(source, sums_type(c), c->others, "others");
    emit_scratch(source, sums_type(c), c->cells, "cells");
    emit_scratch(source, sums_type(c), c->direct, "direct");
    emit_operand(source, c, c->op->projection, "projection");
    emit_operand(source, c, c->op->hx, "hx");
}

static weftStatus_t add_prepare(struct cuda_step *state, const struct recurrent *c, const struct device *device,
                                struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    emit_common(&source, c);
    emit_operand(&source, c, c->op->weight, "weight");
    emit_operand(&source, c, c->is_backward ? c->op->dcy : c->op->cx, "cx");
    emit_operand(&source, c, c->op->dhy, "dhy");
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "recurrent/prepare.cuh", "recurrent_prepare", arena));
    int64_t most = max64(c->weight_rows * c->weight_row, 2 * c->groups * c->entries_each * c->state_row);
    int64_t blocks = min64(divide_up(most, THREADS), 8 * (int64_t)max64(device->cuda.multiprocessors, 1));
    kernel->grid[0] = (uint32_t)max64(blocks, 1);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    return WEFT_STATUS_SUCCESS;
}

/* The bits of a double, as an argument. */
static int64_t bits_of(double number) {
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static void emit_operands(struct kernel_source *source, const struct recurrent *c) {
    const struct recurrence_op *op = c->op;
    const struct region *r = c->region;
#define STORED(name) is_stored(r, op->name) ? op->name : NULL
    const struct {
        const struct tensor *tensor;
        const char *name;
    } forward[] = {{op->x, "x"},       {op->bias, "bias"},       {STORED(y), "y"},        {STORED(hy), "hy"},
                   {STORED(cy), "cy"}, {STORED(gates), "gates"}, {op->seq_len, "seq_len"}},
      backward[] = {{op->dy, "dy"},
                    {op->y, "y"},
                    {op->gates, "gates"},
                    {op->cx, "cx"},
                    {op->seq_len, "seq_len"},
                    {STORED(dx), "dx"},
                    {STORED(drecurrent), "drecurrent"},
                    {STORED(previous), "previous"},
                    {STORED(dhx), "dhx"},
                    {STORED(dcx), "dcx"},
                    {STORED(dprojected), "dprojected"},
                    {STORED(unprojected), "unprojected"}};
#undef STORED
    for (size_t i = 0; i < sizeof forward / sizeof *forward && !c->is_backward; i++)
        emit_operand(source, c, forward[i].tensor, forward[i].name);
    for (size_t i = 0; i < sizeof backward / sizeof *backward && c->is_backward; i++)
        emit_operand(source, c, backward[i].tensor, backward[i].name);
}

static weftStatus_t add_steps(struct cuda_step *state, const struct recurrent *c, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    text_add(&source.constants, "#include \"core/stream.cuh\"\n\n");
    emit_common(&source, c);
    emit_operands(&source, c);
    emit_constant(&source, "MODE", c->op->mode);
    emit_constant(&source, "SAVED", recurrence_saved(c->op->mode));
    emit_constant(&source, "IS_REVERSE", c->op->is_reverse);
    emit_constant(&source, "CLIPS", recurrence_clips(c->op));
    emit_constant(&source, "RESIDENT", c->is_resident);
    emit_number(&source, bits_of(c->op->clip_min), "clip_min");
    emit_number(&source, bits_of(c->op->clip_max), "clip_max");
    emit_number(&source, c->blocks, "blocks");
    emit_number(&source, c->units_each, "units_each");
    emit_number(&source, c->rows_each, "rows_each");
    emit_number(&source, c->entries_each, "entries_each");
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    if (c->is_backward)
        TRY(kernel_finish(&source, kernel, "recurrent/backward.cuh", "recurrent_backward", arena));
    else
        TRY(kernel_finish(&source, kernel, "recurrent/forward.cuh", "recurrent_forward", arena));
    int64_t rows = c->is_backward ? round_up(c->rows_each, ROWS) : c->units_each * c->sizes.gates;
    kernel->grid[0] = (uint32_t)(c->blocks * c->groups);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    if (c->is_resident)
        kernel->shared_bytes = (uint32_t)(rows * c->weight_row * dtype_bytes(c->matrix_type, 1));
    kernel->is_cooperative = true;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building steps ---------------------------------------------------------------------------------------------- */

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct recurrent c;
    struct cuda_step *state;
    TRY(analyse(&c, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    step->workspace_bytes = c.bytes;
    TRY(add_prepare(state, &c, device, arena));
    TRY(add_steps(state, &c, arena));
    return arena_print(arena, &step->detail, "%lld group%s of %lld block%s, %lld unit%s each, weights in %s",
                       (long long)c.groups, plural(c.groups), (long long)c.blocks, plural(c.blocks),
                       (long long)c.units_each, plural(c.units_each), c.is_resident ? "shared memory" : "the cache");
}

const struct family cuda_recurrent = {
    .name = "cuda.recurrent",
    .doc = "the steps of recurrent layers, and their gradients, in one launch",
    .accepts = accepts,
    .build = build,
};
