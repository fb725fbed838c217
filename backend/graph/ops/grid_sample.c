/* SPDX-License-Identifier: Apache-2.0 */
/* grid_sample: reads an image at the positions of a grid, between its elements.
     y[n,c,o] = sum over taps t of weight(t) * x[n,c,index(t)]
   grid[n,o] has one coordinate per spatial dimension of x, the last dimension first: -1 is the start of the image and 1
   its end, that is, the centers of the first and the last element with align_corners, otherwise their outer edges.
   Weights are products over the dimensions: of 1 (NEAREST, half to even), 2 (BILINEAR) or 4 elements (BICUBIC_EXT, a
   convolution with a = -0.75). Elements outside of x are 0 (ZERO_PAD), the nearest one (EDGE_VAL_PAD) or those of x
   mirrored at its ends (REFLECTION_PAD_EXT). A coordinate that is not a number counts as the first element, and with
   ZERO_PAD as outside.
     dx[n,c,i] = sum of dy[n,c,o] * weight(t) over all taps with index(t) = i
     dgrid[n,o,d] = sum over c and t of dy[n,c,o] * x[n,c,index(t)] * the derivative of weight(t) by coordinate d
   The derivative is 0 where padding holds a coordinate fixed, and for NEAREST. */
#include "graph/ops/grid_sample.h"

#include <math.h>

/* ---- Rows and methods -------------------------------------------------------------------------------------------- */

/* S: spatial dimensions, 2 or 3. */
#define OPTION_ROWS(direction)                                                                                         \
    VALUE_ROW(WEFT_TYPE_RESAMPLE_MODE, struct grid_sample_op, mode,                                                    \
              WEFT_ATTR_OPERATION_GRID_SAMPLE_##direction##_MODE_EXT, "mode", .initial = WEFT_RESAMPLE_BILINEAR,       \
              .doc = "interpolation: NEAREST, BILINEAR, or in 2-D BICUBIC_EXT"),                                       \
        VALUE_ROW(WEFT_TYPE_PADDING_MODE, struct grid_sample_op, padding_mode,                                         \
                  WEFT_ATTR_OPERATION_GRID_SAMPLE_##direction##_PADDING_MODE_EXT, "padding_mode",                      \
                  .initial = WEFT_ZERO_PAD,                                                                            \
                  .doc = "elements outside of x: ZERO_PAD, EDGE_VAL_PAD or REFLECTION_PAD_EXT"),                       \
        VALUE_ROW(WEFT_TYPE_BOOLEAN, struct grid_sample_op, align_corners,                                             \
                  WEFT_ATTR_OPERATION_GRID_SAMPLE_##direction##_ALIGN_CORNERS_EXT, "align_corners",                    \
                  .doc = "whether -1 and 1 are the centers of the first and last element; otherwise their outer "      \
                         "edges"),                                                                                     \
        VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct grid_sample_op, math,                                                    \
                  WEFT_ATTR_OPERATION_GRID_SAMPLE_##direction##_COMP_TYPE_EXT, "compute_data_type",                    \
                  .doc = "type of positions, weights and sums; DOUBLE for DOUBLE operands")

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct grid_sample_op, x, WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_XDESC_EXT, "x",
               .required = true, .shape = "[N, C, x..]", .doc = "images"),
    TENSOR_ROW(ROLE_INPUT, struct grid_sample_op, grid, WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_GRID_DESC_EXT, "grid",
               .required = true, .shape = "[N, y.., S]",
               .doc = "positions: a coordinate per spatial dimension, the last dimension of x first; -1 to 1 is the "
                      "image"),
    TENSOR_ROW(ROLE_OUTPUT, struct grid_sample_op, y, WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_YDESC_EXT, "y",
               .required = true, .shape = "[N, C, y..]", .doc = "result"),
    OPTION_ROWS(FWD),
};

static const struct row bwd_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct grid_sample_op, dy, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DYDESC_EXT, "dy",
               .required = true, .shape = "[N, C, y..]", .doc = "gradient of the result"),
    TENSOR_ROW(ROLE_INPUT, struct grid_sample_op, x, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_XDESC_EXT, "x",
               .required = true, .shape = "[N, C, x..]", .doc = "images"),
    TENSOR_ROW(ROLE_INPUT, struct grid_sample_op, grid, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_GRID_DESC_EXT, "grid",
               .required = true, .shape = "[N, y.., S]", .doc = "positions, as in the forward pass"),
    TENSOR_ROW(ROLE_OUTPUT, struct grid_sample_op, dx, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DXDESC_EXT, "dx",
               .shape = "[N, C, x..]", .doc = "gradient of the images"),
    TENSOR_ROW(ROLE_OUTPUT, struct grid_sample_op, dgrid, WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DGRID_DESC_EXT, "dgrid",
               .shape = "[N, y.., S]", .doc = "gradient of the grid"),
    OPTION_ROWS(BWD),
};

#define OPTIONS " mode=BILINEAR padding_mode=ZERO_PAD align_corners=false"

static const struct method methods[] = {
    {"grid_sample",
     "images at the positions of a grid, between their elements : y[n,c,o] = sum_t weight(grid[n,o], t) * "
     "x[n, c, index(grid[n,o], t)]",
     NULL, "input:x grid" OPTIONS, "y"},
    {0},
};

static const struct method bwd_methods[] = {
    {"grid_sample_backward",
     "gradients of grid_sample : dx[n,c,i] = sum of dy[n,c,o] * weight(t) over taps with index(t) = i, dgrid[n,o,d] = "
     "sum_{c,t} dy[n,c,o] * x[n, c, index(t)] * dweight(t)/dgrid[n,o,d]",
     NULL, "loss:dy input:x grid" OPTIONS, "dx dgrid"},
    {0},
};

/* ---- Shapes and types -------------------------------------------------------------------------------------------- */

/* Runs before inference, which assumes correct ranks. */
static weftStatus_t check_inputs(const struct grid_sample_op *op) {
    const struct descriptor *descriptor = &op->base;
    const struct tensor *x = op->x, *grid = op->grid;
    TRY(check_rank(descriptor, "x", x, 4, GRID_SPATIAL_MAX + 2));
    int spatial = grid_sample_spatial(op);
    TRY(check_rank(descriptor, "grid", grid, spatial + 2, spatial + 2));
    if (grid->dims.at[0] != x->dims.at[0] || grid->dims.at[spatial + 1] != spatial)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: x is %s, grid is %s. Give it one grid per image, with %d coordinates for each position.",
             descriptor_label(descriptor), tensor_dims_text(x), tensor_dims_text(grid), spatial);
    for (int i = 0; i < spatial; i++)
        if (x->dims.at[2 + i] == 0)
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: x is %s, without elements to sample. Give it some.",
                 descriptor_label(descriptor), tensor_dims_text(x));
    return WEFT_STATUS_SUCCESS;
}

/* The batch and channels of x, the positions of the grid. */
static struct dims result_dims(const struct grid_sample_op *op) {
    struct dims dims = op->x->dims;
    for (int i = 0; i < grid_sample_spatial(op); i++)
        dims.at[2 + i] = op->grid->dims.at[1 + i];
    return dims;
}

static void infer_type(struct tensor *tensor, const struct tensor *like, weftDataType_t math) {
    if (tensor)
        tensor_infer_type(tensor, tensor_result_type(tensor, (weftDataType_t)like->type, math));
}

static weftStatus_t infer(struct descriptor *descriptor) {
    struct grid_sample_op *op = (struct grid_sample_op *)descriptor;
    TRY(check_inputs(op));
    struct dims dims = result_dims(op);
    infer_type(op->y, op->x, (weftDataType_t)op->math);
    tensor_infer_dims(op->y, dims.count, dims.at);
    tensor_infer_strides(op->y, op->x);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t infer_bwd(struct descriptor *descriptor) {
    struct grid_sample_op *op = (struct grid_sample_op *)descriptor;
    TRY(check_inputs(op));
    infer_type(op->dx, op->x, (weftDataType_t)op->math);
    infer_type(op->dgrid, op->grid, (weftDataType_t)op->math);
    tensor_infer_like(op->dx, op->x);
    tensor_infer_like(op->dgrid, op->grid);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_options(const struct grid_sample_op *op) {
    bool is_cubic = op->mode == WEFT_RESAMPLE_BICUBIC_EXT;
    if (op->mode != WEFT_RESAMPLE_NEAREST && op->mode != WEFT_RESAMPLE_BILINEAR && !is_cubic)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode %d pools. Use NEAREST, BILINEAR or BICUBIC_EXT.",
             descriptor_label(&op->base), op->mode);
    if (is_cubic && grid_sample_spatial(op) != 2)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode BICUBIC_EXT needs 2 spatial dimensions, x is %s. Use BILINEAR.",
             descriptor_label(&op->base), tensor_dims_text(op->x));
    if (op->padding_mode != WEFT_ZERO_PAD && op->padding_mode != WEFT_EDGE_VAL_PAD &&
        op->padding_mode != WEFT_REFLECTION_PAD_EXT)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: padding_mode %d is not used here. Use ZERO_PAD, EDGE_VAL_PAD or "
             "REFLECTION_PAD_EXT.",
             descriptor_label(&op->base), op->padding_mode);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct grid_sample_op *op = (const struct grid_sample_op *)descriptor;
    const struct tensor *tensors[] = {op->x, op->grid, op->y, op->dy, op->dx, op->dgrid};
    static const char *const keys[] = {"x", "grid", "y", "dy", "dx", "dgrid"};
    struct dims dims = result_dims(op);
    for (int i = 0; i < 6; i++)
        TRY(check_float(descriptor, keys[i], tensors[i]));
    TRY(check_options(op));
    TRY(check_dims(descriptor, "y", op->y, dims.count, dims.at));
    TRY(check_dims(descriptor, "dy", op->dy, dims.count, dims.at));
    TRY(check_dims(descriptor, "dx", op->dx, op->x->dims.count, op->x->dims.at));
    return check_dims(descriptor, "dgrid", op->dgrid, op->grid->dims.count, op->grid->dims.at);
}

/* ---- Positions --------------------------------------------------------------------------------------------------- */

/* A number and its derivative by the coordinate. */
struct dual {
    double value, slope;
};

/* The position in elements: 0 is the first element's center. */
static struct dual position_of(double coordinate, double extent, bool align_corners) {
    double half = (align_corners ? extent - 1 : extent) / 2;
    return (struct dual){(coordinate + 1) * half - (align_corners ? 0 : 0.5), half};
}

/* Limits a position to the elements. Both ends count as fixed. */
static struct dual clipped(struct dual at, double extent) {
    bool is_fixed = !(at.value > 0 && at.value < extent - 1);
    return (struct dual){fmin(extent - 1, fmax(at.value, 0)), is_fixed ? 0 : at.slope};
}

/* Mirrors a position at the first and last element, or at their outer edges, as often as necessary. */
static struct dual reflected(struct dual at, double extent, bool align_corners) {
    double low = align_corners ? 0 : -0.5, span = align_corners ? extent - 1 : extent;
    if (span == 0)
        return (struct dual){0, 0};
    double distance = fabs(at.value - low), slope = at.value < low ? -at.slope : at.slope;
    double rest = fmod(distance, span);
    bool is_turned = fmod(floor(distance / span), 2) != 0;
    return is_turned ? (struct dual){span - rest + low, -slope} : (struct dual){rest + low, slope};
}

static struct dual padded(const struct grid_sample_op *op, struct dual at, double extent) {
    if (op->padding_mode == WEFT_ZERO_PAD)
        return at;
    if (op->padding_mode == WEFT_REFLECTION_PAD_EXT)
        at = reflected(at, extent, op->align_corners);
    return clipped(at, extent);
}

/* ---- Taps -------------------------------------------------------------------------------------------------------- */

enum { TAPS_MAX = 4 };

/* The elements that a position reads along one dimension. */
struct taps {
    int64_t index[TAPS_MAX]; /* -1: outside of x */
    struct dual weight[TAPS_MAX];
};

static int64_t index_of(double at, double extent) { return at >= 0 && at < extent ? (int64_t)at : -1; }

/* Keys' cubic convolution at a distance: the weight of an element, and its derivative by the distance. */
static struct dual cubic(double distance) {
    const double a = -0.75, d = fabs(distance), sign = distance < 0 ? -1 : 1;
    if (d <= 1)
        return (struct dual){((a + 2) * d - (a + 3)) * d * d + 1, sign * (3 * (a + 2) * d - 2 * (a + 3)) * d};
    return (struct dual){((a * d - 5 * a) * d + 8 * a) * d - 4 * a, sign * ((3 * a * d - 10 * a) * d + 8 * a)};
}

/* Interpolates between positions, then pads each tap; the others pad the position. */
static struct taps cubic_taps(const struct grid_sample_op *op, struct dual at, double extent) {
    struct taps taps;
    double first = floor(at.value), rest = isfinite(at.value) ? at.value - first : 0;
    for (int t = 0; t < 4; t++) {
        struct dual weight = cubic(rest + 1 - t);
        taps.weight[t] = (struct dual){weight.value, weight.slope * at.slope};
        taps.index[t] = index_of(padded(op, (struct dual){first - 1 + t, 1}, extent).value, extent);
    }
    return taps;
}

static struct taps taps_of(const struct grid_sample_op *op, double coordinate, int64_t extent) {
    double n = (double)extent;
    struct taps taps = {0};
    struct dual at = position_of(coordinate, n, op->align_corners);
    if (op->mode == WEFT_RESAMPLE_BICUBIC_EXT)
        return cubic_taps(op, at, n);
    at = padded(op, at, n);
    if (op->mode == WEFT_RESAMPLE_NEAREST) {
        taps.index[0] = index_of(rint(at.value), n);
        taps.weight[0] = (struct dual){1, 0};
        return taps;
    }
    double first = floor(at.value), rest = at.value - first;
    taps.index[0] = index_of(first, n), taps.index[1] = index_of(first + 1, n);
    taps.weight[0] = (struct dual){1 - rest, -at.slope}, taps.weight[1] = (struct dual){rest, at.slope};
    return taps;
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

/* The taps of one position along all dimensions, and a choice of one tap per dimension. */
struct sample {
    int spatial, count;
    struct taps taps[GRID_SPATIAL_MAX];
    int64_t choice[GRID_SPATIAL_MAX], counts[GRID_SPATIAL_MAX];
};

/* at: n and the position. */
static struct sample sample_of(const struct grid_sample_op *op, const struct view *grid, const int64_t *at) {
    struct sample s = {.spatial = grid_sample_spatial(op), .count = grid_sample_taps(op)};
    int64_t index[WEFT_DIM_MAX];
    for (int i = 0; i <= s.spatial; i++)
        index[i] = at[i];
    for (int d = 0; d < s.spatial; d++) {
        index[s.spatial + 1] = s.spatial - 1 - d; /* the last dimension comes first */
        s.taps[d] = taps_of(op, view_load(grid, index), op->x->dims.at[2 + d]);
        s.counts[d] = s.count;
    }
    return s;
}

/* The index of the chosen element of x, after n and c; false if it is outside. */
static bool chosen(const struct sample *s, int64_t *index) {
    for (int d = 0; d < s->spatial; d++) {
        index[2 + d] = s->taps[d].index[s->choice[d]];
        if (index[2 + d] < 0)
            return false;
    }
    return true;
}

/* The weight of the chosen element, or its derivative by the position along dimension `by`. */
static double weight_of(const struct sample *s, int by) {
    double weight = 1;
    for (int d = 0; d < s->spatial; d++) {
        struct dual along = s->taps[d].weight[s->choice[d]];
        weight *= d == by ? along.slope : along.value;
    }
    return weight;
}

#define FOR_TAPS(s)                                                                                                    \
    for (bool more = index_begin((s).choice, (s).spatial, (s).counts); more;                                           \
         more = index_next((s).choice, (s).spatial, (s).counts))

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct grid_sample_op *op = (const struct grid_sample_op *)descriptor;
    struct view x = view_of(bindings, op->x), grid = view_of(bindings, op->grid), y = view_of(bindings, op->y);
    int spatial = grid_sample_spatial(op);
    int64_t at[WEFT_DIM_MAX], from[WEFT_DIM_MAX], out[WEFT_DIM_MAX];
    for (bool next = index_begin(at, spatial + 1, grid.dims); next; next = index_next(at, spatial + 1, grid.dims)) {
        struct sample s = sample_of(op, &grid, at);
        from[0] = out[0] = at[0];
        for (int d = 0; d < spatial; d++)
            out[2 + d] = at[1 + d];
        for (int64_t c = 0; c < x.dims[1]; c++) {
            double sum = 0;
            from[1] = out[1] = c;
            FOR_TAPS(s)
            if (chosen(&s, from))
                sum += weight_of(&s, -1) * view_load(&x, from);
            view_store_if(&y, out, sum);
        }
    }
}

/* Adds one channel's part: to dx, which is row-major, and to the derivatives by position. */
static void differentiate(struct sample *s, const struct view *x, int64_t *from, double dy, double *dx,
                          double *slopes) {
    FOR_TAPS(*s) {
        if (!chosen(s, from))
            continue;
        int64_t place = 0;
        for (int i = 0; i < s->spatial + 2; i++)
            place = place * x->dims[i] + from[i];
        dx[place] += dy * weight_of(s, -1);
        for (int d = 0; d < s->spatial; d++)
            slopes[d] += dy * weight_of(s, d) * view_load(x, from);
    }
}

static void reference_bwd(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct grid_sample_op *op = (const struct grid_sample_op *)descriptor;
    struct view x = view_of(bindings, op->x), grid = view_of(bindings, op->grid), dy = view_of(bindings, op->dy);
    struct view dx = view_of(bindings, op->dx), dgrid = view_of(bindings, op->dgrid);
    double *sums = bindings->scratch;
    int spatial = grid_sample_spatial(op);
    int64_t at[WEFT_DIM_MAX], from[WEFT_DIM_MAX], out[WEFT_DIM_MAX];
    for (int64_t i = 0; i < tensor_elements(op->x); i++)
        sums[i] = 0;
    for (bool next = index_begin(at, spatial + 1, grid.dims); next; next = index_next(at, spatial + 1, grid.dims)) {
        struct sample s = sample_of(op, &grid, at);
        double slopes[GRID_SPATIAL_MAX] = {0};
        from[0] = out[0] = at[0];
        for (int d = 0; d < spatial; d++)
            out[2 + d] = at[1 + d];
        for (int64_t c = 0; c < x.dims[1]; c++) {
            from[1] = out[1] = c;
            differentiate(&s, &x, from, view_load(&dy, out), sums, slopes);
        }
        for (int d = 0; d < spatial; d++) {
            at[spatial + 1] = spatial - 1 - d;
            view_store_if(&dgrid, at, slopes[d]);
        }
    }
    view_store_all(&dx, sums);
}

static int64_t bwd_scratch_bytes(const struct descriptor *descriptor) {
    return tensor_elements(((const struct grid_sample_op *)descriptor)->x) * (int64_t)sizeof(double);
}

/* A multiplication and an addition per tap and channel, and the weights of each position. */
static double flops(const struct descriptor *descriptor) {
    const struct grid_sample_op *op = (const struct grid_sample_op *)descriptor;
    double taps = 1, positions = (double)tensor_elements(op->grid) / grid_sample_spatial(op);
    for (int d = 0; d < grid_sample_spatial(op); d++)
        taps *= grid_sample_taps(op);
    return positions * (2 * taps * (double)op->x->dims.at[1] + 10 * grid_sample_spatial(op));
}

/* The same for dx, and once for each coordinate. */
static double bwd_flops(const struct descriptor *descriptor) {
    return (1 + grid_sample_spatial((const struct grid_sample_op *)descriptor)) * flops(descriptor);
}

const struct op grid_sample_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_GRID_SAMPLE_FWD_DESCRIPTOR_EXT,
            .name = "grid_sample",
            .doc = "images at the positions of a grid, between their elements",
            .size = sizeof(struct grid_sample_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &grid_sample_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .reference = reference,
    .flops = flops,
};

const struct op grid_sample_bwd_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_GRID_SAMPLE_BWD_DESCRIPTOR_EXT,
            .name = "grid_sample_backward",
            .doc = "gradients of the images and of the grid that grid_sample reads",
            .size = sizeof(struct grid_sample_op),
            ROWS(bwd_rows),
            .finalize = op_finalize,
            .op = &grid_sample_bwd_op,
        },
    .methods = bwd_methods,
    .infer = infer_bwd,
    .check = check,
    .reference = reference_bwd,
    .scratch_bytes = bwd_scratch_bytes,
    .flops = bwd_flops,
};
