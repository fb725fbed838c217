/* SPDX-License-Identifier: Apache-2.0 */
/* Affine grids and their gradients: a thread computes rows of positions. The sums of a gradient are added up in double,
   per row and then over the rows of a grid, in order. */
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/families.h"
#include "graph/ops/affine_grid.h"
#include "graph/ops/grid_sample.h"

enum { RUN = 64, SUMS = GRID_SPATIAL_MAX * (GRID_SPATIAL_MAX + 1) };

/* Estimated for two threads. */
static const double ELEMENT_SECONDS = 3e-9; /* per thread */
static const double START_SECONDS = 1e-6;

struct affine {
    const struct affine_grid_op *op;
    bool is_backward;
    const struct tensor *grid, *theta; /* or their gradients */
    int spatial, grid_value, theta_value;
    int64_t batch, rows, length; /* rows of positions per grid, and their length */
};

struct job {
    const struct affine *a;
    void *const *values;
    double *sums; /* per row of all grids: SUMS numbers */
};

static weftStatus_t analyse(struct affine *a, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || (op_of(op) != &affine_grid_op && op_of(op) != &affine_grid_bwd_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only a single affine grid is supported, with nothing fused.",
             descriptor_label(op));
    *a = (struct affine){.op = (const struct affine_grid_op *)op, .is_backward = op_of(op) == &affine_grid_bwd_op};
    a->grid = a->is_backward ? a->op->dgrid : a->op->grid;
    a->theta = a->is_backward ? a->op->dtheta : a->op->theta;
    a->grid_value = graph_find_value(region->graph, a->grid);
    a->theta_value = graph_find_value(region->graph, a->theta);
    a->spatial = (int)a->grid->dims.count - 2;
    a->batch = a->grid->dims.at[0], a->length = a->grid->dims.at[a->spatial], a->rows = 1;
    for (int d = 0; d < a->spatial - 1; d++)
        a->rows *= a->grid->dims.at[1 + d];
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct affine a = {0};
    TRY(analyse(&a, region));
    offer->seconds =
        START_SECONDS + (double)tensor_elements(a.grid) * ELEMENT_SECONDS / (device->threads > 1 ? device->threads : 1);
    return WEFT_STATUS_SUCCESS;
}

static double coordinate_of(int64_t i, int64_t extent, bool align_corners) {
    if (align_corners)
        return extent > 1 ? 2 * (double)i / (double)(extent - 1) - 1 : 0;
    return (2 * (double)i + 1) / (double)extent - 1;
}

/* The coordinates of a row except the last dimension's, in the order of theta, and the offset of its first position. */
static int64_t row_of(const struct affine *a, int64_t task, double *at) {
    const int64_t *dims = a->grid->dims.at, *strides = a->grid->strides.at;
    int64_t row = task % a->rows, offset = task / a->rows * strides[0];
    for (int d = a->spatial - 2; d >= 0; row /= dims[1 + d], d--) {
        offset += row % dims[1 + d] * strides[1 + d];
        at[a->spatial - 1 - d] = coordinate_of(row % dims[1 + d], dims[1 + d], a->op->align_corners);
    }
    at[a->spatial] = 1;
    return offset;
}

static void forward(void *context, int64_t task) {
    const struct job *job = context;
    const struct affine *a = job->a;
    const int64_t *strides = a->grid->strides.at, *of_theta = a->theta->strides.at;
    double at[GRID_SPATIAL_MAX + 1], slopes[GRID_SPATIAL_MAX], starts[GRID_SPATIAL_MAX];
    int64_t offset = row_of(a, task, at);
    for (int i = 0; i < a->spatial; i++) {
        starts[i] = 0;
        for (int j = 0; j <= a->spatial; j++) {
            double theta = dtype_load((weftDataType_t)a->theta->type, job->values[a->theta_value],
                                      task / a->rows * of_theta[0] + i * of_theta[1] + j * of_theta[2]);
            if (j == 0)
                slopes[i] = theta;
            else
                starts[i] += theta * at[j];
        }
    }
    for (int64_t first = 0; first < a->length; first += RUN) {
        double row[RUN][GRID_SPATIAL_MAX];
        int64_t count = min64(RUN, a->length - first);
        for (int64_t o = 0; o < count; o++) {
            double x = coordinate_of(first + o, a->length, a->op->align_corners);
            for (int i = 0; i < a->spatial; i++)
                row[o][i] = starts[i] + slopes[i] * x;
            int64_t to = offset + (first + o) * strides[a->spatial];
            if (strides[a->spatial + 1] == 1)
                dtype_from_f64((weftDataType_t)a->grid->type, job->values[a->grid_value], to, row[o], a->spatial);
            else
                for (int i = 0; i < a->spatial; i++)
                    dtype_store((weftDataType_t)a->grid->type, job->values[a->grid_value],
                                to + i * strides[a->spatial + 1], row[o][i]);
        }
    }
}

/* The sums of one row. */
static void backward(void *context, int64_t task) {
    const struct job *job = context;
    const struct affine *a = job->a;
    const int64_t *strides = a->grid->strides.at;
    double at[GRID_SPATIAL_MAX + 1], totals[GRID_SPATIAL_MAX] = {0}, products[GRID_SPATIAL_MAX] = {0};
    int64_t offset = row_of(a, task, at);
    for (int64_t o = 0; o < a->length; o++) {
        double x = coordinate_of(o, a->length, a->op->align_corners);
        for (int i = 0; i < a->spatial; i++) {
            double given = dtype_load((weftDataType_t)a->grid->type, job->values[a->grid_value],
                                      offset + o * strides[a->spatial] + i * strides[a->spatial + 1]);
            totals[i] += given;
            products[i] += given * x;
        }
    }
    double *sums = job->sums + task * SUMS;
    for (int i = 0; i < a->spatial; i++)
        for (int j = 0; j <= a->spatial; j++)
            sums[i * (a->spatial + 1) + j] = j == 0 ? products[i] : totals[i] * at[j];
}

static void add_rows(const struct job *job) {
    const struct affine *a = job->a;
    const int64_t *strides = a->theta->strides.at;
    for (int64_t n = 0; n < a->batch; n++)
        for (int k = 0; k < a->spatial * (a->spatial + 1); k++) {
            double sum = 0;
            for (int64_t row = n * a->rows; row < (n + 1) * a->rows; row++)
                sum += job->sums[row * SUMS + k];
            dtype_store((weftDataType_t)a->theta->type, job->values[a->theta_value],
                        n * strides[0] + k / (a->spatial + 1) * strides[1] + k % (a->spatial + 1) * strides[2], sum);
        }
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct affine *a;
    TRY(arena_alloc(arena, &a, sizeof *a));
    TRY(analyse(a, &step->region));
    TRY(threads_start());
    if (a->is_backward)
        step->workspace_bytes = a->batch * a->rows * SUMS * (int64_t)sizeof(double);
    step->state = a;
    return arena_print(arena, &step->detail, "rows of %lld positions", (long long)a->length);
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    struct job job = {step->state, values, workspace};
    const struct affine *a = job.a;
    if (!values[a->is_backward ? a->theta_value : a->grid_value])
        return WEFT_STATUS_SUCCESS;
    threads_for(a->batch * a->rows, a->is_backward ? backward : forward, &job);
    if (a->is_backward)
        add_rows(&job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_affine_grid = {
    .name = "cpu.affine_grid",
    .doc = "grids of positions under affine transformations, and their gradients",
    .accepts = accepts,
    .build = build,
    .run = run,
};
