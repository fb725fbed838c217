/* SPDX-License-Identifier: Apache-2.0 */
/* The grid family: samples of images at the positions of a grid, and their gradients. A block of positions is turned
   into offsets and weights once, for all channels. Images that are not in the compute type are copied first. dx is
   summed by one thread per channel, in the order of the positions. */
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"
#include "engines/cpu/grid/sample.h"

/* Estimated for two threads. */
static const double POSITION_SECONDS = 30e-9; /* per thread: offsets and weights of one position */
static const double TAP_SECONDS = 0.5e-9;     /* per thread: one tap of one channel */
static const double SCATTER_SECONDS = 1.5e-9; /* the same for dx */
static const double START_SECONDS = 1e-6;
enum { TASKS_PER_THREAD = 4 };

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static int value_of(const struct region *region, const struct tensor *tensor) {
    return tensor ? graph_find_value(region->graph, tensor) : -1;
}

static struct image image_of(const struct region *region, const struct tensor *tensor) {
    struct image image = {.value = value_of(region, tensor)};
    if (!tensor)
        return image;
    image.type = (weftDataType_t)tensor->type;
    image.n = tensor->strides.at[0], image.c = tensor->strides.at[1];
    for (int d = 0; d < tensor->dims.count - 2; d++)
        image.spatial[d] = tensor->strides.at[2 + d];
    return image;
}

static struct grid grid_of(const struct region *region, const struct tensor *tensor) {
    struct grid grid = {.value = value_of(region, tensor)};
    if (!tensor)
        return grid;
    int spatial = (int)tensor->dims.count - 2;
    grid.type = (weftDataType_t)tensor->type;
    grid.n = tensor->strides.at[0], grid.coordinate = tensor->strides.at[spatial + 1];
    for (int d = 0; d < spatial; d++)
        grid.spatial[d] = tensor->strides.at[1 + d];
    return grid;
}

static bool needs_double(const struct grid_sample_op *op) {
    const struct tensor *tensors[] = {op->x, op->grid, op->y, op->dy, op->dx, op->dgrid};
    bool found = op->math == WEFT_DATA_DOUBLE;
    for (int i = 0; i < 6; i++)
        found = found || (tensors[i] && tensors[i]->type == WEFT_DATA_DOUBLE);
    return found;
}

/* The packed copy of an operand: channels outermost, or innermost if they are adjacent in memory. */
static struct image copy_of(const struct sampling *s) {
    struct image copy = {.value = -1};
    int64_t step = s->is_last ? s->channels : 1;
    for (int d = s->spatial; d-- > 0; step *= s->extents[d])
        copy.spatial[d] = step;
    copy.c = s->is_last ? 1 : step;
    copy.n = s->is_last ? step : step * s->channels;
    return copy;
}

/* The last dimensions of y whose positions have one stride are a line. */
static void choose_lines(struct sampling *s) {
    int d = s->spatial - 1;
    s->line = s->out[d];
    while (d > 0 && s->y.spatial[d - 1] == s->y.spatial[d] * s->out[d])
        s->line *= s->out[--d];
    for (s->lines = 1; d-- > 0;)
        s->lines *= s->out[d];
    s->blocks = divide_up(s->line, BLOCK);
}

/* Loops keep offsets in a plane as 32 bits. */
static weftStatus_t check_plane(const struct sampling *s, const struct image *image) {
    int64_t last = 0;
    for (int d = 0; d < s->spatial; d++)
        last += (s->extents[d] - 1) * image->spatial[d];
    if (last > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: x is %s. Loops address 2^31 elements of an image.",
             descriptor_label(&s->op->base), tensor_dims_text(s->op->x));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse(struct sampling *s, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || (op_of(op) != &grid_sample_op && op_of(op) != &grid_sample_bwd_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only a single grid_sample is supported, with nothing fused.",
             descriptor_label(op));
    *s = (struct sampling){.op = (const struct grid_sample_op *)op, .is_backward = op_of(op) == &grid_sample_bwd_op};
    const struct tensor *x = s->op->x, *y = s->is_backward ? s->op->dy : s->op->y;
    s->is_double = needs_double(s->op);
    s->spatial = grid_sample_spatial(s->op), s->taps = 1;
    s->batch = x->dims.at[0], s->channels = x->dims.at[1];
    for (int d = 0; d < s->spatial; d++)
        s->extents[d] = x->dims.at[2 + d], s->out[d] = y->dims.at[2 + d], s->taps *= grid_sample_taps(s->op);
    s->x = image_of(region, x), s->y = image_of(region, y), s->dx = image_of(region, s->op->dx);
    s->grid = grid_of(region, s->op->grid), s->dgrid = grid_of(region, s->op->dgrid);
    s->is_last = s->channels > 1 && s->x.c == 1 && s->y.c == 1 && (s->dx.value < 0 || s->dx.c == 1);
    weftDataType_t type = s->is_double ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
    s->read = s->x.type == type ? s->x : copy_of(s);
    s->written = s->dx.type == type ? s->dx : copy_of(s);
    choose_lines(s);
    TRY(check_plane(s, &s->read));
    return check_plane(s, &s->written);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct sampling s;
    TRY(analyse(&s, region));
    int threads = device->threads > 1 ? device->threads : 1;
    double positions = (double)s.batch * (double)s.lines * (double)s.line;
    double reads = positions * s.taps * (double)s.channels;
    double each = positions * POSITION_SECONDS + reads * TAP_SECONDS;
    offer->seconds = START_SECONDS;
    if (!s.is_backward || s.dgrid.value >= 0)
        offer->seconds += each / threads;
    if (s.dx.value >= 0)
        offer->seconds += (positions * POSITION_SECONDS * TASKS_PER_THREAD + reads * SCATTER_SECONDS) / threads;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building and running ---------------------------------------------------------------------------------------- */

/* Chooses as many channels per task as leave each thread a few tasks. */
static void choose_chunk(struct sampling *s) {
    int64_t tasks = divide_up((int64_t)threads_count() * TASKS_PER_THREAD, max64(s->batch, 1));
    s->chunk = min64(max64(divide_up(s->channels, tasks), 1), s->is_last ? SAMPLE_CHANNELS : INT64_MAX);
    s->chunks = divide_up(s->channels, s->chunk);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct sampling *s;
    TRY(arena_alloc(arena, &s, sizeof *s));
    TRY(analyse(s, &step->region));
    TRY(threads_start());
    choose_chunk(s);
    int64_t bytes = divide_up(tensor_elements(s->op->x) * (s->is_double ? 8 : 4), 64) * 64;
    s->written.offset = s->read.value < 0 ? bytes : 0;
    step->workspace_bytes = (s->read.value < 0 ? bytes : 0) + (s->dx.value >= 0 && s->written.value < 0 ? bytes : 0);
    step->state = s;
    return arena_print(arena, &step->detail, "%d taps, blocks of %d positions%s%s", s->taps, BLOCK,
                       s->is_last ? ", adjacent channels" : "", s->read.value < 0 ? ", of a copy of x" : "");
}

static bool is_stored(int value, void *const *values) { return value >= 0 && values[value]; }

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    struct sample_job job = {step->state, values, workspace};
    const struct sampling *s = job.s;
    const struct sample_loops *loops = s->is_double ? &sample_loops_f64 : &sample_loops_f32;
    bool computes_grid = is_stored(s->dgrid.value, values),
         computes_y = !s->is_backward && is_stored(s->y.value, values);
    int64_t blocks = s->batch * s->lines * s->blocks;
    if (s->read.value < 0 && (computes_grid || computes_y))
        threads_for(s->batch * s->chunks, loops->load, &job);
    if (computes_y)
        threads_for(blocks, loops->forward, &job);
    if (computes_grid)
        threads_for(blocks, loops->dgrid, &job);
    if (is_stored(s->dx.value, values))
        threads_for(s->batch * s->chunks, loops->dx, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_grid = {
    .name = "cpu.grid",
    .doc = "samples of images at the positions of a grid, and their gradients",
    .accepts = accepts,
    .build = build,
    .run = run,
};
