/* SPDX-License-Identifier: Apache-2.0 */
/* Affine grids and their gradients: affine.cuh; affine_bwd.cuh for parts of the positions, then affine_combine.cuh. */
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "graph/ops/affine_grid.h"
#include "graph/ops/grid_sample.h"

#include <stdio.h>

enum {
    THREADS = 256,
    BLOCKS_MAX = 1 << 20,
    BATCH_BLOCKS_MAX = 65535, /* blocks along y */
    PARTS_MAX = 64,           /* blocks that share a grid */
    POSITIONS_PER_THREAD = 4, /* at least, of a part */
};

struct affine {
    const struct affine_grid_op *op;
    const struct region *region;
    bool is_backward, is_double;
    const struct tensor *grid, *theta; /* or their gradients */
    int spatial;
    int64_t batch, positions, parts;
};

static weftStatus_t analyse(struct affine *a, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &affine_grid_op && op_of(op) != &affine_grid_bwd_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not an affine grid.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    *a = (struct affine){.op = (const struct affine_grid_op *)op, .region = region};
    a->is_backward = op_of(op) == &affine_grid_bwd_op;
    a->grid = a->is_backward ? a->op->dgrid : a->op->grid;
    a->theta = a->is_backward ? a->op->dtheta : a->op->theta;
    a->is_double =
        a->grid->type == WEFT_DATA_DOUBLE || a->theta->type == WEFT_DATA_DOUBLE || a->op->math == WEFT_DATA_DOUBLE;
    a->spatial = (int)a->grid->dims.count - 2;
    a->batch = a->grid->dims.at[0], a->positions = 1;
    for (int d = 0; d < a->spatial; d++)
        a->positions *= a->grid->dims.at[1 + d];
    a->parts = min64(max64(divide_up(a->positions, THREADS * POSITIONS_PER_THREAD), 1), PARTS_MAX);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct affine a = {0};
    TRY(analyse(&a, region));
    offer->seconds =
        PRICE_LAUNCH_SECONDS * (a.is_backward ? 2 : 1) + price_moving((double)tensor_bytes(a.grid), device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

static void emit_memory(struct kernel_source *source, const struct tensor *tensor, const char *name, const char *type) {
    emit_type(source, type, (weftDataType_t)tensor->type);
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(source->graph, tensor), 0, name);
}

static void emit_common(struct kernel_source *source, const struct affine *a) {
    text_add(&source->constants, "#include \"core/reduce.cuh\"\nusing real = %s;\n", a->is_double ? "double" : "float");
    emit_constant(source, "THREADS", THREADS);
    emit_constant(source, "SPATIAL", a->spatial);
    emit_constant(source, "ALIGN", a->op->align_corners);
    emit_constant(source, "IS_WIDE", a->batch * a->positions > INT32_MAX);
    emit_number(source, a->batch, "batch");
    emit_number(source, a->positions, "positions");
    emit_number(source, a->batch * a->positions, "items");
    emit_number(source, a->parts, "parts");
}

static void emit_grid(struct kernel_source *source, const struct affine *a) {
    emit_memory(source, a->grid, "grid", "grid_t");
    emit_number(source, a->grid->strides.at[0], "grid_n");
    emit_number(source, a->grid->strides.at[a->spatial + 1], "grid_c");
    for (int d = 0; d < GRID_SPATIAL_MAX; d++) {
        char name[32];
        snprintf(name, sizeof name, "grid_s%d", d);
        emit_number(source, d < a->spatial ? a->grid->strides.at[1 + d] : 0, name);
        snprintf(name, sizeof name, "out%d", d);
        emit_divisor(source, d < a->spatial ? max64(a->grid->dims.at[1 + d], 1) : 1, name);
    }
}

static void emit_theta(struct kernel_source *source, const struct affine *a) {
    emit_memory(source, a->theta, "theta", "theta_t");
    emit_number(source, a->theta->strides.at[0], "theta_n");
    emit_number(source, a->theta->strides.at[1], "theta_i");
    emit_number(source, a->theta->strides.at[2], "theta_j");
}

static weftStatus_t add_kernel(struct cuda_step *state, struct kernel_source *source, const char *file,
                               const char *entry, int64_t blocks, int64_t rows, struct arena *arena) {
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(source, kernel, file, entry, arena));
    kernel->grid[0] = (uint32_t)min64(blocks, BLOCKS_MAX);
    kernel->grid[1] = (uint32_t)min64(rows, BATCH_BLOCKS_MAX);
    kernel->grid[2] = 1;
    kernel->block = THREADS;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_forward(struct cuda_step *state, const struct affine *a, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, a->region);
    emit_common(&source, a);
    emit_grid(&source, a);
    emit_theta(&source, a);
    return add_kernel(state, &source, "grid/affine.cuh", "affine_grid", divide_up(a->batch * a->positions, THREADS), 1,
                      arena);
}

static weftStatus_t add_backward(struct cuda_step *state, const struct affine *a, struct arena *arena) {
    struct kernel_source source;
    const char *type = a->is_double ? "double" : "float";
    kernel_source_init(&source, a->region);
    emit_common(&source, a);
    emit_grid(&source, a);
    emit_scratch(&source, type, 0, "partial");
    TRY(add_kernel(state, &source, "grid/affine_bwd.cuh", "affine_grid_bwd", a->parts, a->batch, arena));
    kernel_source_init(&source, a->region);
    emit_common(&source, a);
    emit_theta(&source, a);
    emit_scratch(&source, type, 0, "partial");
    return add_kernel(state, &source, "grid/affine_combine.cuh", "affine_combine",
                      divide_up(a->batch * a->spatial * (a->spatial + 1), THREADS), 1, arena);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs, (void)device;
    struct affine a;
    struct cuda_step *state;
    TRY(analyse(&a, &step->region));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (a.batch == 0 || (a.positions == 0 && !a.is_backward))
        return arena_print(arena, &step->detail, "nothing to compute");
    if (a.is_backward) {
        step->workspace_bytes = a.batch * a.parts * a.spatial * (a.spatial + 1) * (a.is_double ? 8 : 4);
        TRY(add_backward(state, &a, arena));
        return arena_print(arena, &step->detail, "%lld part%s of each grid", (long long)a.parts, plural(a.parts));
    }
    TRY(add_forward(state, &a, arena));
    return arena_print(arena, &step->detail, "a thread per position");
}

const struct family cuda_affine_grid = {
    .name = "cuda.affine_grid",
    .doc = "grids of positions under affine transformations, and their gradients",
    .accepts = accepts,
    .build = build,
};
