/* SPDX-License-Identifier: Apache-2.0 */
/* Grid family: samples of images at the positions of a grid, and their gradients. The device files in this folder
   compute:
     forward     sample.cuh
     dgrid       sample_dgrid.cuh
     dx          clear.cuh, largest.cuh, sample_dx.cuh, which adds to sums in scratch memory, and finish.cuh. Sums are
                 integers, so that their order does not matter; a request that allows any order has floating-point sums,
                 and no largest.cuh */
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "graph/ops/grid_sample.h"

#include <stdio.h>

enum {
    WARP = 32,
    THREADS = 256,
    ACCESS_BYTES = 16,
    THREADS_WANTED = 1024, /* per multiprocessor */
    BLOCKS_EACH = 32,      /* per multiprocessor, at most: threads step through the others */
    LARGEST_BYTES = 64,    /* of scratch: the largest |dy| */
    SCRATCH_UNIT = 64,
};

/* Memory transactions of 32 bytes for the elements that adjacent positions read. */
static const double GATHER_SHARE = 0.5;

struct sampling {
    const struct grid_sample_op *op;
    const struct region *region;
    const struct device *device;
    bool is_backward, is_double, is_last, has_dx, has_dgrid;
    bool in_any_order;      /* of the sums of dx */
    const struct tensor *y; /* or dy */
    int spatial, taps;      /* taps: of all dimensions together */
    int64_t batch, channels, positions;
    int64_t run, chunk, chunks;              /* channels per access and per thread; threads per position */
    int64_t lanes;                           /* threads per position of dgrid */
    int64_t sums_bytes, special_bytes, room; /* scratch of dx; log2 of the contributions to an element */
    int64_t sums_n, sums_c, sums_s[GRID_SPATIAL_MAX];
};

/* ---- Supported operations ---------------------------------------------------------------------------------------- */

static bool is_stored(const struct region *region, const struct tensor *tensor) {
    return tensor && !value_is_dead(&region->graph->values[graph_find_value(region->graph, tensor)]);
}

static bool needs_double(const struct grid_sample_op *op) {
    const struct tensor *tensors[] = {op->x, op->grid, op->y, op->dy, op->dx, op->dgrid};
    bool found = op->math == WEFT_DATA_DOUBLE;
    for (int i = 0; i < 6; i++)
        found = found || (tensors[i] && tensors[i]->type == WEFT_DATA_DOUBLE);
    return found;
}

/* True if each run of adjacent channels is one aligned access. */
static bool is_whole(const struct tensor *tensor, int64_t run) {
    int64_t bytes = run * dtype_bytes((weftDataType_t)tensor->type, 1);
    bool whole = bytes <= ACCESS_BYTES && tensor->alignment % bytes == 0 && tensor->dims.at[1] % run == 0;
    for (int i = 0; i < tensor->dims.count; i++)
        whole = whole && (i == 1 || tensor->dims.at[i] == 1 || tensor->strides.at[i] % run == 0);
    return whole;
}

/* Adjacent channels are loaded together; positions are not adjacent in x. */
static void choose_threads(struct sampling *s) {
    int64_t items = max64(s->batch * s->positions, 1);
    int64_t wanted = (int64_t)s->device->cuda.multiprocessors * THREADS_WANTED;
    s->run = s->is_last ? 8 : 1;
    while (s->run > 1 && !(is_whole(s->op->x, s->run) && is_whole(s->y, s->run)))
        s->run /= 2;
    s->chunk = s->is_last ? s->run : divide_up(s->channels, min64(divide_up(wanted, items), max64(s->channels, 1)));
    s->chunk = max64(s->chunk, 1);
    s->chunks = max64(divide_up(s->channels, s->chunk), 1);
    int64_t most = min64(divide_up(s->channels, s->run), WARP);
    for (s->lanes = 1; 2 * s->lanes <= most && (s->is_last || s->lanes * items < wanted);)
        s->lanes *= 2;
}

/* Sums are packed, in the layout of y. */
static void choose_sums(struct sampling *s) {
    int64_t step = s->is_last ? s->channels : 1, elements = tensor_elements(s->op->x);
    for (int d = s->spatial; d-- > 0; step *= s->op->x->dims.at[2 + d])
        s->sums_s[d] = step;
    s->sums_c = s->is_last ? 1 : step;
    s->sums_n = s->is_last ? step : step * s->channels;
    int64_t bytes = s->in_any_order ? (s->is_double ? 8 : 4) : s->is_double ? 16 : 8;
    s->sums_bytes = divide_up(elements * bytes, SCRATCH_UNIT) * SCRATCH_UNIT;
    s->special_bytes = s->in_any_order ? 0 : divide_up(divide_up(elements, 16) * 4, SCRATCH_UNIT) * SCRATCH_UNIT;
    for (s->room = 1; s->room < 62 && (int64_t)1 << s->room < s->positions * s->taps;)
        s->room++;
    s->room++;
}

static weftStatus_t analyse(struct sampling *s, const struct region *region, const struct device *device, int used) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &grid_sample_op && op_of(op) != &grid_sample_bwd_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s does not sample a grid.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    *s = (struct sampling){.op = (const struct grid_sample_op *)op, .region = region, .device = device};
    const struct tensor *x = s->op->x;
    s->is_backward = op_of(op) == &grid_sample_bwd_op;
    s->y = s->is_backward ? s->op->dy : s->op->y;
    s->is_double = needs_double(s->op);
    s->has_dx = is_stored(region, s->op->dx), s->has_dgrid = is_stored(region, s->op->dgrid);
    s->in_any_order = used & RELAX_ORDER;
    s->spatial = grid_sample_spatial(s->op), s->taps = 1;
    s->batch = x->dims.at[0], s->channels = x->dims.at[1], s->positions = 1;
    for (int d = 0; d < s->spatial; d++)
        s->positions *= s->y->dims.at[2 + d], s->taps *= grid_sample_taps(s->op);
    s->is_last = s->channels > 1 && x->strides.at[1] == 1 && s->y->strides.at[1] == 1;
    choose_threads(s);
    choose_sums(s);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t price(const struct region *region, const struct device *device, int used, double *seconds) {
    struct sampling s;
    TRY(analyse(&s, region, device, used));
    if (used && !s.has_dx)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: it has no gradient of x, only that is summed in any order.",
             descriptor_label(&s.op->base));
    double reads = (double)tensor_bytes(s.op->x) / GATHER_SHARE, bytes = (double)tensor_bytes(s.op->grid);
    int launches = 0;
    if (!s.is_backward || s.has_dgrid)
        bytes += reads + (double)tensor_bytes(s.y), launches++;
    /* Sums are cleared, added to and read; dy is read twice for its largest number. */
    if (s.has_dx)
        bytes +=
            4.0 * (double)s.sums_bytes + (double)tensor_bytes(s.op->dx) + (used ? 1 : 2) * (double)tensor_bytes(s.y),
            launches += used ? 3 : 4;
    *seconds = PRICE_LAUNCH_SECONDS * launches + price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    return offer_relaxed(offer, region, device, RELAX_ORDER, price);
}

static int relaxes(const struct graph *graph, int node) {
    return op_of(graph->nodes[node].op) == &grid_sample_bwd_op ? RELAX_ORDER : 0;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

struct name {
    char text[32];
};

static struct name named(const char *name, const char *suffix, int d) {
    struct name made;
    snprintf(made.text, sizeof made.text, "%s%s%d", name, suffix, d);
    return made;
}

static void emit_memory(struct kernel_source *source, const struct tensor *tensor, const char *name, const char *type) {
    emit_type(source, type, (weftDataType_t)tensor->type);
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(source->graph, tensor), 0, name);
}

/* [N, C, ..]: pointer, type and strides. */
static void emit_image(struct kernel_source *source, const struct tensor *tensor, const char *name, const char *type,
                       const char *n, const char *c) {
    emit_memory(source, tensor, name, type);
    emit_number(source, tensor->strides.at[0], n);
    emit_number(source, tensor->strides.at[1], c);
    for (int d = 0; d < GRID_SPATIAL_MAX; d++)
        emit_number(source, d < tensor->dims.count - 2 ? tensor->strides.at[2 + d] : 0, named(name, "_s", d).text);
}

/* [N, y.., S] */
static void emit_grid(struct kernel_source *source, const struct tensor *tensor, const char *name, const char *type,
                      const char *n, const char *c) {
    int spatial = (int)tensor->dims.count - 2;
    emit_memory(source, tensor, name, type);
    emit_number(source, tensor->strides.at[0], n);
    emit_number(source, tensor->strides.at[spatial + 1], c);
    for (int d = 0; d < GRID_SPATIAL_MAX; d++)
        emit_number(source, d < spatial ? tensor->strides.at[1 + d] : 0, named(name, "_s", d).text);
}

/* Emits the declarations that taps.cuh uses. */
static void emit_geometry(struct kernel_source *source, const struct sampling *s, int64_t items) {
    const struct grid_sample_op *op = s->op;
    bool is_wide = items > INT32_MAX || tensor_elements(op->x) > INT32_MAX;
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {{"THREADS", THREADS},
                     {"SPATIAL", s->spatial},
                     {"MODE", op->mode == WEFT_RESAMPLE_BICUBIC_EXT ? 2 : op->mode},
                     {"PADDING", op->padding_mode == WEFT_ZERO_PAD       ? 0
                                 : op->padding_mode == WEFT_EDGE_VAL_PAD ? 1
                                                                         : 2},
                     {"ALIGN", op->align_corners},
                     {"CHANNELS_LAST", s->is_last},
                     {"RUN", s->run},
                     {"LANES", s->lanes},
                     {"IN_ANY_ORDER", s->in_any_order},
                     {"IS_WIDE", is_wide}};
    text_add(&source->constants, "#include \"core/reduce.cuh\"\nusing real = %s;\n", s->is_double ? "double" : "float");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(source, constants[i].name, constants[i].value);
    emit_number(source, items, "items");
    emit_number(source, s->channels, "channels");
    emit_number(source, s->chunk, "chunk");
    emit_divisor(source, s->chunks, "chunks");
    for (int d = 0; d < GRID_SPATIAL_MAX; d++) {
        emit_number(source, d < s->spatial ? op->x->dims.at[2 + d] : 1, named("x", "", d).text);
        emit_divisor(source, d < s->spatial ? max64(s->y->dims.at[2 + d], 1) : 1, named("out", "", d).text);
    }
    emit_grid(source, op->grid, "grid", "grid_t", "grid_n", "grid_c");
    emit_image(source, s->y, "y", "y_t", "y_n", "y_c");
}

/* Emits the declarations that sums.cuh uses. */
static void emit_sums(struct kernel_source *source, const struct sampling *s) {
    emit_scratch(source, "u64", 0, "largest");
    emit_scratch(source, s->in_any_order ? s->is_double ? "double" : "float" : "u64", LARGEST_BYTES, "sums");
    emit_scratch(source, "u32", LARGEST_BYTES + s->sums_bytes, "special");
    emit_number(source, s->room, "room");
    emit_number(source, s->sums_n, "sums_n");
    emit_number(source, s->sums_c, "sums_c");
    for (int d = 0; d < GRID_SPATIAL_MAX; d++)
        emit_number(source, s->sums_s[d], named("sums", "_s", d).text);
}

static weftStatus_t add_kernel(struct cuda_step *state, struct kernel_source *source, const struct sampling *s,
                               const char *file, const char *entry, int64_t threads, struct arena *arena) {
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(source, kernel, file, entry, arena));
    kernel->grid[0] =
        (uint32_t)min64(divide_up(threads, THREADS), (int64_t)s->device->cuda.multiprocessors * BLOCKS_EACH);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_forward(struct cuda_step *state, const struct sampling *s, struct arena *arena) {
    struct kernel_source source;
    int64_t items = s->batch * s->positions * s->chunks;
    kernel_source_init(&source, s->region);
    emit_geometry(&source, s, items);
    emit_image(&source, s->op->x, "x", "x_t", "x_n", "x_c");
    return add_kernel(state, &source, s, "grid/sample.cuh", "grid_sample", items, arena);
}

static weftStatus_t add_dgrid(struct cuda_step *state, const struct sampling *s, struct arena *arena) {
    struct kernel_source source;
    int64_t items = s->batch * s->positions;
    kernel_source_init(&source, s->region);
    emit_geometry(&source, s, items);
    emit_image(&source, s->op->x, "x", "x_t", "x_n", "x_c");
    emit_grid(&source, s->op->dgrid, "dgrid", "dgrid_t", "dgrid_n", "dgrid_c");
    return add_kernel(state, &source, s, "grid/sample_dgrid.cuh", "grid_sample_dgrid", items * s->lanes, arena);
}

static weftStatus_t add_clear(struct cuda_step *state, const struct sampling *s, int64_t bytes, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, s->region);
    emit_constant(&source, "THREADS", THREADS);
    emit_scratch(&source, "u64", 0, "memory");
    emit_number(&source, bytes / 8, "words");
    return add_kernel(state, &source, s, "grid/clear.cuh", "grid_clear", bytes / 8, arena);
}

/* Adds a kernel over dy: its largest number, or the contributions to dx. */
static weftStatus_t add_pass(struct cuda_step *state, const struct sampling *s, const char *file, const char *entry,
                             struct arena *arena) {
    struct kernel_source source;
    int64_t items = s->batch * s->positions * s->chunks;
    kernel_source_init(&source, s->region);
    emit_geometry(&source, s, items);
    emit_sums(&source, s);
    return add_kernel(state, &source, s, file, entry, items, arena);
}

static weftStatus_t add_finish(struct cuda_step *state, const struct sampling *s, struct arena *arena) {
    struct kernel_source source;
    const struct tensor *dx = s->op->dx;
    kernel_source_init(&source, s->region);
    emit_geometry(&source, s, 0);
    emit_sums(&source, s);
    emit_image(&source, dx, "dx", "dx_t", "dx_n", "dx_c");
    emit_number(&source, tensor_elements(dx), "elements");
    emit_divisor(&source, max64(s->channels, 1), "channels_in");
    for (int d = 0; d < GRID_SPATIAL_MAX; d++)
        emit_divisor(&source, d < s->spatial ? dx->dims.at[2 + d] : 1, named("in", "", d).text);
    return add_kernel(state, &source, s, "grid/finish.cuh", "grid_finish", tensor_elements(dx), arena);
}

static weftStatus_t add_dx(struct step *step, struct cuda_step *state, const struct sampling *s, struct arena *arena) {
    step->workspace_bytes = LARGEST_BYTES + s->sums_bytes + s->special_bytes;
    TRY(add_clear(state, s, step->workspace_bytes, arena));
    if (s->positions > 0 && !s->in_any_order)
        TRY(add_pass(state, s, "grid/largest.cuh", "grid_largest", arena));
    if (s->positions > 0)
        TRY(add_pass(state, s, "grid/sample_dx.cuh", "grid_sample_dx", arena));
    return add_finish(state, s, arena);
}

/* ---- Building steps ---------------------------------------------------------------------------------------------- */

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct sampling s;
    struct cuda_step *state;
    TRY(analyse(&s, &step->region, device, step->used));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (!s.is_backward && s.batch * s.channels * s.positions > 0)
        TRY(add_forward(state, &s, arena));
    if (s.has_dgrid && s.batch * s.positions > 0)
        TRY(add_dgrid(state, &s, arena));
    if (s.has_dx && s.batch * s.channels > 0)
        TRY(add_dx(step, state, &s, arena));
    if (state->count == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    return arena_print(arena, &step->detail, "%d taps, %lld channel%s per thread, %lld per access%s; %d %s", s.taps,
                       (long long)s.chunk, plural(s.chunk), (long long)s.run,
                       !s.has_dx        ? ""
                       : s.in_any_order ? ", sums in any order"
                                        : ", sums of integers",
                       state->count, state->count == 1 ? "launch" : "launches");
}

const struct family cuda_grid = {
    .name = "cuda.grid",
    .doc = "samples of images at the positions of a grid, and their gradients",
    .accepts = accepts,
    .build = build,
    .relaxes = relaxes,
};
