/* SPDX-License-Identifier: Apache-2.0 */
/* The block scale family: low-precision numbers with one scale per block. A task processes up to LANES adjacent indices
   of the last dim together, block by block along the blocks' axis: maximum magnitudes, scales, quotients, all in
   double, so that each result is rounded once. */
#include "graph/ops/block_scale.h"

#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"

#include <math.h>

enum { LANES = 64, NUMBERS = 4096 }; /* NUMBERS: size of a block with all its lanes, on the stack */

static const double NANOSECONDS = 3, BYTES_PER_SECOND = 14e9, START_SECONDS = 1e-6; /* per element on one thread */

struct quantizer {
    const struct block_scale_quantize_op *op;
    int x, y, scale; /* values of the graph */
    int axis, last;
    int64_t lanes, strips, tasks; /* lanes per task; adjacent strips of lanes */
};

/* ---- Accepting and building -------------------------------------------------------------------------------------- */

static weftStatus_t check_tensors(const struct region *region) {
    const struct node *node = region_node(region, 0);
    for (int k = 0; k < node->operand_count; k++) {
        const struct tensor *tensor = region->graph->values[node->operands[k]].tensor;
        if (tensor->vector_count != 1)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s is stored in vectors of elements",
                 descriptor_label(node->op), descriptor_label(&tensor->base));
        if (tensor->reordering != WEFT_TENSOR_REORDERING_NONE)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s has layout F8_128x4", descriptor_label(node->op),
                 descriptor_label(&tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse(struct quantizer *q, const struct region *region) {
    const struct node *node = region_node(region, 0);
    if (region->count > 1 || op_of(node->op) != &block_scale_quantize_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only a single quantisation is supported, with nothing fused",
             descriptor_label(node->op));
    TRY(check_tensors(region));
    const struct block_scale_quantize_op *op = (const struct block_scale_quantize_op *)node->op;
    *q = (struct quantizer){.op = op, .axis = block_scale_axis(op), .last = (int)op->x->dims.count - 1};
    if (op->block_size > NUMBERS)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: blocks have %d elements, at most %d are supported",
             descriptor_label(node->op), op->block_size, NUMBERS);
    q->x = graph_find_value(region->graph, op->x);
    q->y = graph_find_value(region->graph, op->y);
    q->scale = graph_find_value(region->graph, op->scale);
    /* Lanes are along the last dim, unless the blocks are. */
    int64_t adjacent = q->axis == q->last ? 1 : op->x->dims.at[q->last];
    q->lanes = max64(1, min64(min64(LANES, NUMBERS / op->block_size), adjacent));
    q->strips = divide_up(adjacent, q->lanes);
    int64_t along = op->x->dims.at[q->axis], elements = tensor_elements(op->x);
    q->tasks = elements ? elements / along / adjacent * q->strips : 0;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct quantizer q;
    TRY(analyse(&q, region));
    bool shares_bytes = dtype_of((weftDataType_t)q.op->y->type)->bits < 8;
    double computing = (double)tensor_elements(q.op->x) * NANOSECONDS * 1e-9;
    computing /= shares_bytes || device->threads < 1 ? 1 : device->threads;
    double moving = (double)(tensor_bytes(q.op->x) + tensor_bytes(q.op->y)) / BYTES_PER_SECOND;
    offer->seconds = START_SECONDS + (computing > moving ? computing : moving);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct quantizer *q;
    TRY(arena_alloc(arena, &q, sizeof *q));
    TRY(analyse(q, &step->region));
    TRY(threads_start());
    step->state = q;
    return arena_print(arena, &step->detail, "blocks of %d, %lld adjacent", q->op->block_size, (long long)q->lanes);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

struct job {
    const struct quantizer *q;
    void *const *values;
};

/* Offset of a task in a tensor that has x's dims except along the axis. */
static int64_t offset_of(const struct quantizer *q, const struct tensor *tensor, int64_t task) {
    int64_t offset = q->axis == q->last ? 0 : task % q->strips * q->lanes * tensor->strides.at[q->last];
    task /= q->strips;
    for (int i = q->last; i-- > 0;) {
        int64_t extent = i == q->axis ? 1 : q->op->x->dims.at[i];
        offset += task % extent * tensor->strides.at[i];
        task /= extent;
    }
    return offset;
}

/* Load and store strided runs of `count` numbers, as double. */
static void load(double *to, const struct tensor *tensor, const void *memory, int64_t at, int64_t stride,
                 int64_t count) {
    if (stride == 1)
        dtype_to_f64(to, (weftDataType_t)tensor->type, memory, at, count);
    for (int64_t i = 0; i < count && stride != 1; i++)
        dtype_to_f64(to + i, (weftDataType_t)tensor->type, memory, at + i * stride, 1);
}

static void store(const struct tensor *tensor, void *memory, int64_t at, int64_t stride, const double *from,
                  int64_t count) {
    if (stride == 1)
        dtype_from_f64((weftDataType_t)tensor->type, memory, at, from, count);
    for (int64_t i = 0; i < count && stride != 1; i++)
        dtype_from_f64((weftDataType_t)tensor->type, memory, at + i * stride, from + i, 1);
}

/* Numbers are [count][lanes]; infinities and NaN do not count towards the maximum. */
static void find_scales(const struct quantizer *q, double *scales, const double *numbers, int64_t count,
                        int64_t lanes) {
    for (int64_t i = 0; i < lanes; i++)
        scales[i] = 0;
    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < lanes; i++) {
            double size = fabs(numbers[j * lanes + i]);
            scales[i] = size > scales[i] && size <= 1.7976931348623157e308 ? size : scales[i];
        }
    for (int64_t i = 0; i < lanes; i++)
        scales[i] = block_scale_stored(q->op, scales[i]);
}

static void divide(double *numbers, const double *scales, int64_t count, int64_t lanes) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < lanes; i++)
            numbers[j * lanes + i] = scales[i] > 0 ? numbers[j * lanes + i] / scales[i] : 0;
}

/* Quantizes one block with its lanes, starting at element x. Along the contiguous axis it is one run, otherwise a run
   of lanes per step. */
static void quantize(const struct job *job, int64_t x, int64_t y, int64_t scale, int64_t count, int64_t lanes) {
    const struct quantizer *q = job->q;
    const struct block_scale_quantize_op *op = q->op;
    double numbers[NUMBERS], scales[LANES];
    bool is_run = q->axis == q->last;
    int64_t run = is_run ? count : lanes, runs = is_run ? 1 : count, last = q->last;
    for (int64_t j = 0; j < runs; j++)
        load(numbers + j * run, op->x, job->values[q->x], x + j * op->x->strides.at[q->axis], op->x->strides.at[last],
             run);
    find_scales(q, scales, numbers, count, lanes);
    if (job->values[q->scale])
        store(op->scale, job->values[q->scale], scale, op->scale->strides.at[last], scales, lanes);
    divide(numbers, scales, count, lanes);
    for (int64_t j = 0; j < runs && job->values[q->y]; j++)
        store(op->y, job->values[q->y], y + j * op->y->strides.at[q->axis], op->y->strides.at[last], numbers + j * run,
              run);
}

static void run_task(void *context, int64_t task) {
    const struct job *job = context;
    const struct quantizer *q = job->q;
    const struct block_scale_quantize_op *op = q->op;
    int64_t x = offset_of(q, op->x, task), y = offset_of(q, op->y, task), scale = offset_of(q, op->scale, task);
    int64_t along = op->x->dims.at[q->axis], lanes = q->lanes;
    if (q->axis != q->last)
        lanes = min64(lanes, op->x->dims.at[q->last] - task % q->strips * q->lanes);
    for (int64_t first = 0, block = 0; first < along; first += op->block_size, block++)
        quantize(job, x + first * op->x->strides.at[q->axis], y + first * op->y->strides.at[q->axis],
                 scale + block * op->scale->strides.at[q->axis], min64(op->block_size, along - first), lanes);
}

/* Elements that share a byte are written by one thread. */
static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)workspace, (void)stream;
    struct job job = {step->state, values};
    if (dtype_of((weftDataType_t)job.q->op->y->type)->bits >= 8)
        threads_for(job.q->tasks, run_task, &job);
    else
        for (int64_t task = 0; task < job.q->tasks; task++)
            run_task(&job, task);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_block_scale = {
    .name = "cpu.block_scale",
    .doc = "quantisation to low-precision numbers with a scale per block",
    .accepts = accepts,
    .build = build,
    .run = run,
};
