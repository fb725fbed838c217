/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrent family: the steps of a recurrent layer and their gradients. A step is one product of the states of all
   sequences with the recurrent weights, which are packed once, followed by the formula on contiguous rows. If there are
   enough sequences, each thread runs all steps of some of them, so that no thread waits for another one. */
#include "engines/cpu/recurrent/recurrent.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"

enum {
    LINE = 64,
    PART_MIN = 8,  /* sequences of a part: fewer would not fill the product's kernel */
    STEPS_MIN = 3, /* steps for which packing the matrices pays off */
};

/* Measured with one thread on an EPYC: products and formulas. */
static const double FLOPS_PER_SECOND = 2e10;
static const double UNIT_SECONDS = 4e-9;
static const double START_SECONDS = 2e-6;

static struct operand operand_of(const struct region *region, const struct tensor *tensor) {
    return (struct operand){tensor, tensor ? graph_find_value(region->graph, tensor) : -1};
}

static void find_operands(struct recurrent *c, const struct region *region) {
    const struct recurrence_op *op = c->op;
#define FIND(name) c->name = operand_of(region, op->name)
    FIND(x), FIND(weight), FIND(bias), FIND(hx), FIND(cx), FIND(seq_len), FIND(projection), FIND(y), FIND(hy), FIND(cy);
    FIND(gates), FIND(dy), FIND(dhy), FIND(dcy), FIND(dx), FIND(drecurrent), FIND(previous), FIND(dhx), FIND(dcx);
    FIND(dprojected), FIND(unprojected);
#undef FIND
}

static bool needs_double(const struct recurrence_op *op) {
    const struct tensor *tensors[RECURRENCE_TENSORS];
    bool found = op->math == WEFT_DATA_DOUBLE;
    recurrence_tensors(op, tensors);
    for (int i = 0; i < RECURRENCE_TENSORS; i++)
        found = found || (tensors[i] && tensors[i]->type == WEFT_DATA_DOUBLE);
    return found;
}

struct gemm recurrent_product(const struct recurrent *c, bool is_projection) {
    const struct recurrence_sizes *s = &c->sizes;
    int64_t rows = is_projection ? s->projected : s->gates * s->units,
            columns = is_projection ? s->units : s->projected;
    const struct gemm_kernel *kernel = gemm_kernel(c->is_double ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT, 0);
    return (struct gemm){.kernel = kernel,
                         .batch = 1,
                         .m = c->entries,
                         .n = c->is_backward ? columns : rows,
                         .k = c->is_backward ? rows : columns,
                         .pack_a = gemm_pack_of_a(kernel),
                         .pack_b = gemm_pack_of_b(kernel)};
}

/* Forward multiplies by the transposed matrix. */
struct gemm_matrix recurrent_matrix(const struct recurrent *c, bool is_projection, void *const *values) {
    const struct operand *matrix = is_projection ? &c->projection : &c->weight;
    const int64_t *strides = matrix->tensor->strides.at;
    return (struct gemm_matrix){.base = values[matrix->value],
                                .type = (weftDataType_t)matrix->tensor->type,
                                .stride = strides[c->is_backward ? 1 : 0],
                                .depth_stride = strides[c->is_backward ? 0 : 1]};
}

static weftStatus_t analyse(struct recurrent *c, const struct region *region, const struct device *device) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || (op_of(op) != &recurrence_op && op_of(op) != &recurrence_bwd_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only a single recurrence is supported, with nothing fused.",
             descriptor_label(op));
    *c = (struct recurrent){.op = (const struct recurrence_op *)op, .is_backward = op_of(op) == &recurrence_bwd_op};
    find_operands(c, region);
    c->is_double = needs_double(c->op);
    c->sizes = recurrence_sizes(c->op);
    int64_t all = device->threads > 1 ? device->threads : 1;
    c->parts = max64(min64(all, c->sizes.batch / PART_MIN), 1);
    c->entries = divide_up(c->sizes.batch, c->parts);
    c->parts = c->entries ? divide_up(c->sizes.batch, c->entries) : 0;
    c->threads = c->parts > 1 ? 1 : (int)all;
    c->packs = c->sizes.steps >= STEPS_MIN;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct recurrent c;
    TRY(analyse(&c, region, device));
    double threads = device->threads > 1 ? device->threads : 1;
    double units = (double)c.sizes.steps * (double)c.sizes.batch * (double)(c.sizes.units * c.sizes.gates);
    double work = op_flops(&c.op->base) / FLOPS_PER_SECOND * (c.is_double ? 2 : 1) + units * UNIT_SECONDS;
    offer->seconds = START_SECONDS + work / threads;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct recurrent *c;
    TRY(arena_alloc(arena, &c, sizeof *c));
    TRY(analyse(c, &step->region, device));
    TRY(threads_start());
    step->state = c;
    const int64_t size = c->is_double ? 8 : 4;
    struct gemm weight = recurrent_product(c, false), projection = recurrent_product(c, true);
    c->product_bytes = round_up(max64(gemm_workspace_bytes(&weight, c->threads),
                                      c->projection.tensor ? gemm_workspace_bytes(&projection, c->threads) : 0),
                                LINE);
    c->part_bytes = round_up(c->entries * recurrent_numbers(&c->sizes) * size, LINE) + c->product_bytes;
    c->projection_at = c->weight_at + (c->packs ? round_up(gemm_packed_bytes(&weight, true), LINE) : 0);
    c->bias_at = c->projection_at;
    if (c->packs && c->projection.tensor)
        c->bias_at += round_up(gemm_packed_bytes(&projection, true), LINE);
    c->parts_at = c->bias_at + round_up(c->sizes.gates * c->sizes.units * size, LINE);
    step->workspace_bytes = c->parts_at + c->parts * c->part_bytes;
    return arena_print(arena, &step->detail, "%lld part%s of %lld sequence%s, %lld gate%s of %lld unit%s",
                       (long long)c->parts, plural(c->parts), (long long)c->entries, plural(c->entries),
                       (long long)c->sizes.gates, plural(c->sizes.gates), (long long)c->sizes.units,
                       plural(c->sizes.units));
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    const struct recurrent *c = step->state;
    (c->is_double ? recurrent_run_f64 : recurrent_run_f32)(c, values, workspace);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_recurrent = {
    .name = "cpu.recurrent",
    .doc = "the steps of recurrent layers, and their gradients",
    .accepts = accepts,
    .build = build,
    .run = run,
};
