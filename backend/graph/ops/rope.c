/* SPDX-License-Identifier: Apache-2.0 */
/* rope: rotates pairs of elements at the end of each head by angles that depend on the position of the token.
     y[a] = scale (x[a] cos(f[a]) - x[b] sin(f[a]))     y[b] = scale (x[b] cos(f[b]) + x[a] sin(f[b]))
   a and b are the elements of a pair: i and i + R / 2 of the R rotated ones, or 2 i and 2 i + 1 if they are
   interleaved; f is the row of freqs of the token's position: its index in the sequence, unless `positions` names it.
   Elements before the rotated ones are only scaled. The gradient multiplies by the transpose of this matrix:
     dx[a] = scale (dy[a] cos(f[a]) + dy[b] sin(f[b]))     dx[b] = scale (dy[b] cos(f[b]) - dy[a] sin(f[a])) */
#include "graph/ops/rope.h"

#include <math.h>
#include <string.h>

/* B sequences of S tokens and H heads of D elements, R of which are rotated; P positions. */
static const char positions_doc[] =
    "position of each token, or of the first token of each sequence, INT32 or INT64; unset: the index of the token";
static const char pairs_doc[] = "true: pairs are adjacent elements; default: element i of each half";

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct rope_op, x, WEFT_ATTR_OPERATION_ROPE_FWD_XDESC, "x", .required = true,
               .shape = "[B, H, S, D]", .doc = "heads"),
    TENSOR_ROW(ROLE_INPUT, struct rope_op, freqs, WEFT_ATTR_OPERATION_ROPE_FWD_FREQSDESC, "freqs", .required = true,
               .shape = "[P, 1, 1, R]", .doc = "angle of each position and element, in radians"),
    TENSOR_ROW(ROLE_INPUT, struct rope_op, positions, WEFT_ATTR_OPERATION_ROPE_FWD_POSITIONS_DESC_EXT, "positions",
               .shape = "[B, 1, S, 1] or [B, 1, 1, 1]", .doc = positions_doc),
    TENSOR_ROW(ROLE_OUTPUT, struct rope_op, y, WEFT_ATTR_OPERATION_ROPE_FWD_YDESC, "y", .required = true,
               .shape = "[B, H, S, D]", .doc = "rotated heads"),
    VALUE_ROW(WEFT_TYPE_FLOAT, struct rope_op, scale, WEFT_ATTR_OPERATION_ROPE_FWD_OUTPUT_SCALE, "output_scale",
              .initial = 1, .doc = "factor of the result"),
    VALUE_ROW(WEFT_TYPE_INT64, struct rope_op, rotated, WEFT_ATTR_OPERATION_ROPE_FWD_ROPE_DIM, "rope_dim", .least = 0,
              .most = INT32_MAX, .doc = "number of elements at the end of each head that are rotated; 0: all"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct rope_op, is_interleaved, WEFT_ATTR_OPERATION_ROPE_FWD_IS_INTERLEAVED_EXT,
              "interleaved", .doc = pairs_doc),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct rope_op, math, WEFT_ATTR_OPERATION_ROPE_FWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type; DOUBLE for DOUBLE operands"),
};

static const struct row backward_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct rope_op, x, WEFT_ATTR_OPERATION_ROPE_BWD_DYDESC, "dy", .required = true,
               .shape = "[B, H, S, D]", .doc = "gradient of the result"),
    TENSOR_ROW(ROLE_INPUT, struct rope_op, freqs, WEFT_ATTR_OPERATION_ROPE_BWD_FREQSDESC, "freqs", .required = true,
               .shape = "[P, 1, 1, R]", .doc = "angle of each position and element, in radians"),
    TENSOR_ROW(ROLE_INPUT, struct rope_op, positions, WEFT_ATTR_OPERATION_ROPE_BWD_POSITIONS_DESC_EXT, "positions",
               .shape = "[B, 1, S, 1] or [B, 1, 1, 1]", .doc = positions_doc),
    TENSOR_ROW(ROLE_OUTPUT, struct rope_op, y, WEFT_ATTR_OPERATION_ROPE_BWD_DXDESC, "dx", .required = true,
               .shape = "[B, H, S, D]", .doc = "gradient of the heads"),
    VALUE_ROW(WEFT_TYPE_FLOAT, struct rope_op, scale, WEFT_ATTR_OPERATION_ROPE_BWD_OUTPUT_SCALE, "output_scale",
              .initial = 1, .doc = "factor of the forward result"),
    VALUE_ROW(WEFT_TYPE_INT64, struct rope_op, rotated, WEFT_ATTR_OPERATION_ROPE_BWD_ROPE_DIM, "rope_dim", .least = 0,
              .most = INT32_MAX, .doc = "number of elements at the end of each head that were rotated; 0: all"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct rope_op, is_interleaved, WEFT_ATTR_OPERATION_ROPE_BWD_IS_INTERLEAVED_EXT,
              "interleaved", .doc = pairs_doc),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct rope_op, math, WEFT_ATTR_OPERATION_ROPE_BWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type; DOUBLE for DOUBLE operands"),
};

static const struct method methods[] = {
    {"rotary_embedding",
     "rotary position embedding: rotates pairs of elements at the end of each head : y = output_scale * (x * "
     "cos(freqs) + (-x2, x1) * sin(freqs))",
     NULL, "input:x freqs positions=None output_scale=1.0 rope_dim=0 interleaved=false", "y"},
    {0},
};

static const struct method backward_methods[] = {
    {"rotary_embedding_backward",
     "gradient of rotary_embedding: rotates by the opposite angles : dx = output_scale * (dy * cos(freqs) + (dy2, "
     "-dy1) * sin(freqs))",
     NULL, "loss:dy freqs positions=None output_scale=1.0 rope_dim=0 interleaved=false", "dx"},
    {0},
};

static bool is_backward(const struct rope_op *op) { return op_of(&op->base) == &rope_backward_op; }
static const char *x_key(const struct rope_op *op) { return is_backward(op) ? "dy" : "x"; }

static weftStatus_t infer(struct descriptor *descriptor) {
    struct rope_op *op = (struct rope_op *)descriptor;
    TRY(check_rank(descriptor, x_key(op), op->x, 4, 4));
    tensor_infer_type(op->y, tensor_result_type(op->y, (weftDataType_t)op->x->type, (weftDataType_t)op->math));
    tensor_infer_like(op->y, op->x);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_positions(const struct rope_op *op) {
    const int64_t *dims = op->x->dims.at, positions = op->freqs->dims.at[0];
    if (!op->positions && positions < dims[ROPE_STEP])
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: freqs is %s, with %lld positions, but %s is %s, with %lld tokens. Give an angle for each token, or "
             "positions.",
             descriptor_label(&op->base), tensor_dims_text(op->freqs), (long long)positions, x_key(op),
             tensor_dims_text(op->x), (long long)dims[ROPE_STEP]);
    if (!op->positions)
        return WEFT_STATUS_SUCCESS;
    TRY(check_index_type(&op->base, "positions", op->positions));
    TRY(check_rank(&op->base, "positions", op->positions, 4, 4));
    return check_dims(&op->base, "positions", op->positions, 4,
                      (int64_t[]){dims[ROPE_BATCH], 1, rope_has_offsets(op) ? 1 : dims[ROPE_STEP], 1});
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct rope_op *op = (const struct rope_op *)descriptor;
    const int64_t extent = op->x->dims.at[ROPE_ELEMENT], rotated = rope_rotated(op);
    TRY(check_rank(descriptor, "freqs", op->freqs, 4, 4));
    if (rotated % 2 || rotated > extent)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: rope_dim is %lld, heads have %lld elements. Rotate an even number of at most that many.",
             descriptor_label(descriptor), (long long)rotated, (long long)extent);
    TRY(check_dims(descriptor, "freqs", op->freqs, 4, (int64_t[]){op->freqs->dims.at[0], 1, 1, rotated}));
    if (!dtype_is_float((weftDataType_t)op->x->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use a floating-point type.", descriptor_label(descriptor),
             x_key(op), dtype_of((weftDataType_t)op->x->type)->name);
    TRY(check_dims(descriptor, is_backward(op) ? "dx" : "y", op->y, 4, op->x->dims.at));
    return check_positions(op);
}

/* The position of a token; `at` is an index of x. */
static int64_t position_of(const struct rope_op *op, const struct view *positions, const int64_t *at) {
    int64_t step = at[ROPE_STEP];
    if (!op->positions)
        return step;
    bool has_offsets = rope_has_offsets(op);
    int64_t named = view_load_int(positions, (int64_t[]){at[ROPE_BATCH], 0, has_offsets ? 0 : step, 0});
    return has_offsets ? named + step : named;
}

static weftStatus_t check_numbers(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct rope_op *op = (const struct rope_op *)descriptor;
    struct view positions = view_of(bindings, op->positions);
    int64_t at[] = {0, 0, 0, 0}, dims[] = {op->x->dims.at[ROPE_BATCH], 1, op->x->dims.at[ROPE_STEP], 1};
    for (bool more = positions.data && index_begin(at, 4, dims); more; more = index_next(at, 4, dims)) {
        int64_t position = position_of(op, &positions, at);
        if (position < 0 || position >= op->freqs->dims.at[0])
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: token %lld of sequence %lld has a position in positions, %s, that is out of range: expected "
                 "0..%lld, got %lld. Correct the contents of the tensor, or give more rows of freqs.",
                 descriptor_label(descriptor), (long long)at[ROPE_STEP], (long long)at[ROPE_BATCH],
                 descriptor_label(&op->positions->base), (long long)op->freqs->dims.at[0] - 1, (long long)position);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Element by element: its partner has the other index of the pair. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct rope_op *op = (const struct rope_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y), freqs = view_of(bindings, op->freqs),
                positions = view_of(bindings, op->positions);
    const int64_t kept = rope_kept(op), distance = rope_distance(op);
    int64_t at[4], other[4];
    for (bool more = y.data && index_begin(at, 4, y.dims); more; more = index_next(at, 4, y.dims)) {
        int64_t i = at[ROPE_ELEMENT] - kept;
        double value = view_load(&x, at);
        if (i >= 0) {
            bool is_second = i / distance % 2;
            int64_t partner = is_second ? i - distance : i + distance;
            int64_t row = position_of(op, &positions, at);
            double own_angle = view_load(&freqs, (int64_t[]){row, 0, 0, i});
            double angle = is_backward(op) ? view_load(&freqs, (int64_t[]){row, 0, 0, partner}) : own_angle;
            memcpy(other, at, sizeof other);
            other[ROPE_ELEMENT] = kept + partner;
            double term = view_load(&x, other) * sin(angle);
            value = value * cos(own_angle) + (is_second != is_backward(op) ? term : -term);
        }
        view_store(&y, at, op->scale * value);
    }
}

static double flops(const struct descriptor *descriptor) {
    return 3 * (double)tensor_elements(((const struct rope_op *)descriptor)->x);
}

const struct op rope_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR,
            .name = "rope_fwd",
            .doc = "rotary position embedding",
            .size = sizeof(struct rope_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &rope_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .check_indices = check_numbers,
    .reference = reference,
    .flops = flops,
};

const struct op rope_backward_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR,
            .name = "rope_bwd",
            .doc = "gradient of the rotary position embedding",
            .size = sizeof(struct rope_op),
            ROWS(backward_rows),
            .finalize = op_finalize,
            .op = &rope_backward_op,
        },
    .methods = backward_methods,
    .infer = infer,
    .check = check,
    .check_indices = check_numbers,
    .reference = reference,
    .flops = flops,
};
