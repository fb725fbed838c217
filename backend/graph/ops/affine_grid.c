/* SPDX-License-Identifier: Apache-2.0 */
/* affine_grid: the positions that grid_sample reads for affine transformations of images.
     grid[n,o,i] = theta[n,i,S] + sum over j of theta[n,i,j] * at(o, j)
   at(o, j) is the coordinate of element o along dimension j, the last dimension first, from -1 to 1: the centers of the
   first and the last element with align_corners, otherwise their outer edges. A single element is at 0.
   Backward, with at(o, S) = 1:
     dtheta[n,i,j] = sum over o of dgrid[n,o,i] * at(o, j) */
#include "graph/ops/affine_grid.h"
#include "graph/ops/grid_sample.h"

/* ---- Rows and methods -------------------------------------------------------------------------------------------- */

static const char align_doc[] =
    "whether -1 and 1 are the centers of the first and last element; otherwise their outer edges";

/* S: spatial dimensions, 2 or 3. */
static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct affine_grid_op, theta, WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_THETA_DESC_EXT, "theta",
               .required = true, .shape = "[N, S, S + 1]", .doc = "transformations of (last, .., first, 1)"),
    TENSOR_ROW(ROLE_OUTPUT, struct affine_grid_op, grid, WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_GRID_DESC_EXT, "grid",
               .required = true, .shape = "[N, y.., S]", .doc = "positions"),
    VALUE_ROW(WEFT_TYPE_INT64, struct affine_grid_op, size, WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_SIZE_EXT, "size",
              .storage = STORE_DIMS, .least = 0, .most = INT32_MAX,
              .doc = "extents y.. of the grid; unset: those of its dims"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct affine_grid_op, align_corners,
              WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_ALIGN_CORNERS_EXT, "align_corners", .doc = align_doc),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct affine_grid_op, math, WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "type of positions and sums; DOUBLE for DOUBLE operands"),
};

static const struct row bwd_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct affine_grid_op, dgrid, WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_DGRID_DESC_EXT, "dgrid",
               .required = true, .shape = "[N, y.., S]", .doc = "gradient of the grid"),
    TENSOR_ROW(ROLE_OUTPUT, struct affine_grid_op, dtheta, WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_DTHETA_DESC_EXT,
               "dtheta", .required = true, .shape = "[N, S, S + 1]", .doc = "gradient of the transformations"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct affine_grid_op, align_corners,
              WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_ALIGN_CORNERS_EXT, "align_corners", .doc = align_doc),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct affine_grid_op, math, WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "type of positions and sums; DOUBLE for DOUBLE operands"),
};

static const struct method methods[] = {
    {"affine_grid",
     "positions under affine transformations, for grid_sample : grid[n,o,i] = theta[n,i,S] + sum_j theta[n,i,j] * "
     "at(o, j)",
     NULL, "theta size=[] align_corners=false", "grid"},
    {0},
};

static const struct method bwd_methods[] = {
    {"affine_grid_backward",
     "gradient of affine_grid, with at(o, S) = 1 : dtheta[n,i,j] = sum_o dgrid[n,o,i] * at(o, j)", NULL,
     "loss:dgrid align_corners=false", "dtheta"},
    {0},
};

/* ---- Shapes and types -------------------------------------------------------------------------------------------- */

static weftStatus_t check_given(const struct affine_grid_op *op) {
    const struct descriptor *descriptor = &op->base;
    const struct tensor *theta = op->theta;
    TRY(check_rank(descriptor, "theta", theta, 3, 3));
    int64_t spatial = theta->dims.at[1];
    if (spatial < 2 || spatial > GRID_SPATIAL_MAX || theta->dims.at[2] != spatial + 1)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: theta is %s, expected [N, 2, 3] or [N, 3, 4]. Reshape it.",
             descriptor_label(descriptor), tensor_dims_text(theta));
    if (op->size.count ? op->size.count != spatial : !op->grid->dims.count)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: theta is %s, of %lld spatial dimensions, and size %s. Set as many extents, or the dims of grid.",
             descriptor_label(descriptor), tensor_dims_text(theta), (long long)spatial,
             op->size.count ? numbers_text(op->size.at, op->size.count) : "is unset");
    return WEFT_STATUS_SUCCESS;
}

/* Dims of a grid: N, the extents, and a coordinate per dimension. */
static struct dims grid_dims(int64_t batch, const int64_t *extents, int64_t spatial) {
    struct dims dims = {.count = spatial + 2};
    dims.at[0] = batch, dims.at[spatial + 1] = spatial;
    for (int64_t i = 0; i < spatial; i++)
        dims.at[1 + i] = extents[i];
    return dims;
}

static weftStatus_t infer(struct descriptor *descriptor) {
    struct affine_grid_op *op = (struct affine_grid_op *)descriptor;
    TRY(check_given(op));
    struct dims dims = grid_dims(op->theta->dims.at[0], op->size.at, op->theta->dims.at[1]);
    tensor_infer_type(op->grid,
                      tensor_result_type(op->grid, (weftDataType_t)op->theta->type, (weftDataType_t)op->math));
    tensor_infer_dims(op->grid, dims.count, dims.at);
    tensor_infer_strides(op->grid, NULL);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t infer_bwd(struct descriptor *descriptor) {
    struct affine_grid_op *op = (struct affine_grid_op *)descriptor;
    const struct tensor *dgrid = op->dgrid;
    TRY(check_rank(descriptor, "dgrid", dgrid, 4, GRID_SPATIAL_MAX + 2));
    const int64_t spatial = dgrid->dims.count - 2, dims[] = {dgrid->dims.at[0], spatial, spatial + 1};
    if (dgrid->dims.at[spatial + 1] != spatial)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: dgrid is %s, its last dimension must be %lld: a coordinate per spatial dimension. Reshape it.",
             descriptor_label(descriptor), tensor_dims_text(dgrid), (long long)spatial);
    tensor_infer_type(op->dtheta,
                      tensor_result_type(op->dtheta, (weftDataType_t)dgrid->type, (weftDataType_t)op->math));
    tensor_infer_dims(op->dtheta, 3, dims);
    tensor_infer_strides(op->dtheta, NULL);
    return check_dims(descriptor, "dtheta", op->dtheta, 3, dims);
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct affine_grid_op *op = (const struct affine_grid_op *)descriptor;
    TRY(check_float(descriptor, "theta", op->theta));
    TRY(check_float(descriptor, "grid", op->grid));
    TRY(check_float(descriptor, "dgrid", op->dgrid));
    TRY(check_float(descriptor, "dtheta", op->dtheta));
    if (!op->theta)
        return WEFT_STATUS_SUCCESS;
    int64_t spatial = op->theta->dims.at[1];
    TRY(check_rank(descriptor, "grid", op->grid, spatial + 2, spatial + 2));
    struct dims dims = grid_dims(op->theta->dims.at[0], op->size.count ? op->size.at : op->grid->dims.at + 1, spatial);
    return check_dims(descriptor, "grid", op->grid, dims.count, dims.at);
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

/* The coordinate of element i along a dimension. */
static double coordinate_of(int64_t i, int64_t extent, bool align_corners) {
    if (align_corners)
        return extent > 1 ? 2 * (double)i / (double)(extent - 1) - 1 : 0;
    return (2 * (double)i + 1) / (double)extent - 1;
}

/* at(o, j); o: an index of a grid, without n. */
static double at_of(const struct view *grid, const int64_t *o, int j, bool align_corners) {
    int spatial = grid->rank - 2, d = spatial - 1 - j;
    return j == spatial ? 1 : coordinate_of(o[d], grid->dims[1 + d], align_corners);
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct affine_grid_op *op = (const struct affine_grid_op *)descriptor;
    struct view theta = view_of(bindings, op->theta), grid = view_of(bindings, op->grid);
    int64_t index[WEFT_DIM_MAX];
    int spatial = (int)op->theta->dims.at[1];
    for (bool more = index_begin(index, spatial + 2, op->grid->dims.at); more;
         more = index_next(index, spatial + 2, op->grid->dims.at)) {
        double sum = 0;
        for (int j = 0; j <= spatial; j++)
            sum += view_load(&theta, (int64_t[]){index[0], index[spatial + 1], j}) *
                   at_of(&grid, index + 1, j, op->align_corners);
        view_store_if(&grid, index, sum);
    }
}

static void reference_bwd(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct affine_grid_op *op = (const struct affine_grid_op *)descriptor;
    struct view dgrid = view_of(bindings, op->dgrid), dtheta = view_of(bindings, op->dtheta);
    int64_t at[3], index[WEFT_DIM_MAX];
    int spatial = dgrid.rank - 2;
    for (bool next = index_begin(at, 3, dtheta.dims); next; next = index_next(at, 3, dtheta.dims)) {
        double sum = 0;
        for (bool more = index_begin(index, spatial, dgrid.dims + 1); more;
             more = index_next(index, spatial, dgrid.dims + 1)) {
            int64_t from[WEFT_DIM_MAX] = {at[0]};
            for (int d = 0; d < spatial; d++)
                from[1 + d] = index[d];
            from[1 + spatial] = at[1];
            sum += view_load(&dgrid, from) * at_of(&dgrid, index, (int)at[2], op->align_corners);
        }
        view_store(&dtheta, at, sum);
    }
}

/* S + 1 products per element of the grid. */
static double flops(const struct descriptor *descriptor) {
    const struct affine_grid_op *op = (const struct affine_grid_op *)descriptor;
    const struct tensor *grid = op->grid ? op->grid : op->dgrid;
    return 2.0 * (double)tensor_elements(grid) * (double)(grid->dims.count - 1);
}

const struct op affine_grid_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_AFFINE_GRID_FWD_DESCRIPTOR_EXT,
            .name = "affine_grid",
            .doc = "grids of positions under affine transformations",
            .size = sizeof(struct affine_grid_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &affine_grid_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .reference = reference,
    .flops = flops,
};

const struct op affine_grid_bwd_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_AFFINE_GRID_BWD_DESCRIPTOR_EXT,
            .name = "affine_grid_backward",
            .doc = "gradients of affine transformations of a grid",
            .size = sizeof(struct affine_grid_op),
            ROWS(bwd_rows),
            .finalize = op_finalize,
            .op = &affine_grid_bwd_op,
        },
    .methods = bwd_methods,
    .infer = infer_bwd,
    .check = check,
    .reference = reference_bwd,
    .flops = flops,
};
