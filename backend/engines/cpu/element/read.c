/* SPDX-License-Identifier: Apache-2.0 */
/* Elements that are read at other positions: dequantization of block-scaled numbers, and moves that convert the type or
   have elements narrower than a byte. */
#include "base/number.h"
#include "engines/cpu/core/compute_type.h"
#include "engines/cpu/element/element.h"
#include "graph/ops/block_scale.h"
#include "graph/ops/concat.h"
#include "graph/ops/reshape.h"
#include "graph/ops/slice.h"
#include "graph/ops/transpose.h"

static const double RUN_NANOSECONDS = 0.8, SINGLE_NANOSECONDS = 5; /* per element on one thread */

/* ---- Sources ----------------------------------------------------------------------------------------------------- */

static struct element_source source_of(const struct tensor *tensor, const int64_t *strides) {
    struct element_source source = {.tensor = tensor, .type = (weftDataType_t)tensor->type};
    for (int i = 0; i < WEFT_DIM_MAX; i++) {
        source.strides[i] = strides[i];
        source.shares[i] = 1;
    }
    return source;
}

/* Adds a part of the result along the axis; a single part covers all of it. */
static void add_part(struct element *e, const struct tensor *tensor, const int64_t *strides, int64_t extent) {
    struct element_source *part = &e->parts[e->part_count++];
    *part = source_of(tensor, strides);
    part->offset = -e->starts[e->part_count - 1] * strides[e->axis];
    e->starts[e->part_count] = e->starts[e->part_count - 1] + extent;
    e->is_wide = e->is_wide || type_is_wide(tensor->type) || type_is_wide(e->y->type);
    e->nanoseconds = strides[e->column_dim] == 1 ? RUN_NANOSECONDS : SINGLE_NANOSECONDS;
}

/* Columns are the last dim, unless both sides are contiguous along another one. */
static void choose_columns(struct element *e, const struct tensor *y, const int64_t *strides) {
    e->y = y;
    e->column_dim = (int)y->dims.count - 1;
    for (int i = 0; i < (int)y->dims.count; i++)
        if (y->strides.at[i] == 1 && strides[i] == 1 && y->dims.at[i] > 1)
            e->column_dim = i;
}

/* Reads scales by their strides; scales in tiled layout are left to the reference. */
weftStatus_t element_dequantize(struct element *e) {
    const struct block_scale_dequantize_op *op = (const struct block_scale_dequantize_op *)e->op;
    if (scale_is_tiled(op->scale))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: its scales have layout F8_128x4", descriptor_label(e->op));
    struct dims block = block_scale_extents(e->op);
    choose_columns(e, op->y, op->x->strides.at);
    add_part(e, op->x, op->x->strides.at, op->x->dims.at[0]);
    e->scale = source_of(op->scale, op->scale->strides.at);
    for (int64_t i = 0; i < block.count; i++)
        e->scale.shares[i] = block.at[i];
    e->has_scale = true;
    e->sign = op->is_negative ? -1 : 1;
    e->is_wide = e->is_wide || op->math == WEFT_DATA_DOUBLE || type_is_wide(op->scale->type);
    return WEFT_STATUS_SUCCESS;
}

/* Unchanged elements need no conversion. Neither double nor float represents all 64-bit integers exactly. */
static weftStatus_t check_types(const struct descriptor *op, const struct tensor *x, const struct tensor *y) {
    if (x->type == y->type && dtype_of((weftDataType_t)x->type)->bits >= 8)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: its elements need no conversion, so cpu.move copies them faster",
             descriptor_label(op));
    if (x->type != WEFT_DATA_INT64 && y->type != WEFT_DATA_INT64)
        return WEFT_STATUS_SUCCESS;
    FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: from %s to %s. INT64 is only moved, not converted.",
         descriptor_label(op), dtype_of((weftDataType_t)x->type)->name, dtype_of((weftDataType_t)y->type)->name);
}

/* Reads elements in the order of y's dims; x must be contiguous in that order. */
static weftStatus_t find_reshaped(const struct reshape_op *op, int64_t *strides) {
    int64_t packed[2] = {1, 1};
    const struct tensor *sides[2] = {op->x, op->y};
    for (int k = 0; k < 2; k++)
        for (int64_t i = sides[k]->dims.count; i-- > 0; packed[k] *= sides[k]->dims.at[i]) {
            if (k == 1)
                strides[i] = packed[k];
            else if (op->x->dims.at[i] != 1 && op->x->strides.at[i] != packed[k])
                FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: x is not packed in the order of its dims",
                     descriptor_label(&op->base));
        }
    if (!reshape_keeps_order(op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: y stores the elements in another order",
             descriptor_label(&op->base));
    return WEFT_STATUS_SUCCESS;
}

static void find_sliced(const struct slice_op *op, int64_t *strides, int64_t *offset) {
    for (int64_t i = 0; i < op->y->dims.count; i++) {
        strides[i] = op->x->strides.at[i] * slice_step(op, i);
        *offset += op->start.at[i] * op->x->strides.at[i];
    }
}

weftStatus_t element_move(struct element *e) {
    /* all three structs start with the same fields */
    const struct transpose_op *op = (const struct transpose_op *)e->op;
    int64_t strides[WEFT_DIM_MAX] = {0}, offset = 0;
    TRY(check_types(e->op, op->x, op->y));
    if (op_of(e->op) == &transpose_op)
        for (int64_t i = 0; i < op->y->dims.count; i++)
            strides[i] = op->x->strides.at[op->permutation.at[i]];
    else if (op_of(e->op) == &slice_op)
        find_sliced((const struct slice_op *)e->op, strides, &offset);
    else
        TRY(find_reshaped((const struct reshape_op *)e->op, strides));
    choose_columns(e, op->y, strides);
    add_part(e, op->x, strides, op->y->dims.at[0]);
    e->parts[0].offset = offset;
    return WEFT_STATUS_SUCCESS;
}

/* For parts of several types, or with elements narrower than a byte; parts of one type are moved without conversion. */
weftStatus_t element_concat(struct element *e) {
    const struct concat_op *op = (const struct concat_op *)e->op;
    bool is_same = true;
    if (op->inputs.count > ELEMENT_PARTS || op->inplace_index >= 0 || op->placed)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: it has more than %d inputs, or inputs that are already in place", descriptor_label(e->op),
             ELEMENT_PARTS);
    e->y = op->y;
    e->column_dim = (int)op->y->dims.count - 1;
    e->axis = concat_axis(op);
    for (int64_t k = 0; k < op->inputs.count; k++) {
        const struct tensor *x = op->inputs.tensors[k];
        bool may_convert = x->type == op->y->type || (x->type != WEFT_DATA_INT64 && op->y->type != WEFT_DATA_INT64);
        if (!may_convert || x->type == WEFT_DATA_INT64)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: INT64 is only moved, not converted.",
                 descriptor_label(e->op));
        is_same = is_same && x->type == op->y->type && dtype_of((weftDataType_t)x->type)->bits >= 8;
        add_part(e, x, x->strides.at, x->dims.at[e->axis]);
    }
    if (is_same)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: its elements need no conversion, so cpu.move copies them faster",
             descriptor_label(e->op));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Offset of the first element of a row. */
static int64_t offset_of(const struct element_source *source, const struct element *e, int64_t row) {
    int64_t offset = source->offset;
    for (int64_t i = e->y->dims.count; i-- > 0;)
        if (i != e->column_dim) {
            offset += row % e->y->dims.at[i] / source->shares[i] * source->strides[i];
            row /= e->y->dims.at[i];
        }
    return offset;
}

static void load(bool is_wide, void *to, const struct element_source *source, const void *memory, int64_t at,
                 int64_t count) {
    if (is_wide)
        dtype_to_f64(to, source->type, memory, at, count);
    else
        dtype_to_f32(to, source->type, memory, at, count);
}

static void *advanced(const struct element *e, void *to, int64_t elements) {
    return (char *)to + elements * (int64_t)(e->is_wide ? sizeof(double) : sizeof(float));
}

static void multiply(const struct element *e, void *to, double factor, int64_t count) {
    for (int64_t i = 0; i < count && e->is_wide; i++)
        ((double *)to)[i] *= factor;
    for (int64_t i = 0; i < count && !e->is_wide; i++)
        ((float *)to)[i] *= (float)factor;
}

/* Applies scales block by block along the row. */
static void apply_scales(const struct element *e, const void *scales, void *to, int64_t row, int64_t column,
                         int64_t count) {
    int64_t share = e->scale.shares[e->column_dim], first = offset_of(&e->scale, e, row);
    for (int64_t done = 0; done < count;) {
        int64_t block = (column + done) / share, taken = min64((block + 1) * share - column - done, count - done);
        double factor = dtype_load(e->scale.type, scales, first + block * e->scale.strides[e->column_dim]);
        multiply(e, advanced(e, to, done), e->sign * factor, taken);
        done += taken;
    }
}

/* Reads a run of a row within one part. */
static void read_part(const struct element *e, const struct element_source *part, void *const *values, void *to,
                      int64_t row, int64_t column, int64_t count) {
    int64_t step = part->strides[e->column_dim], at = offset_of(part, e, row) + column * step;
    if (step == 1 || count == 1)
        load(e->is_wide, to, part, values[part->value], at, count);
    for (int64_t i = 0; i < count && step != 1 && count != 1; i++)
        load(e->is_wide, advanced(e, to, i), part, values[part->value], at + i * step, 1);
}

/* Coordinate of a row of a concatenation along the axis. */
static int64_t coordinate_of(const struct element *e, int64_t row) {
    for (int64_t i = e->column_dim - 1; i > e->axis; i--)
        row /= e->y->dims.at[i];
    return row % e->y->dims.at[e->axis];
}

void element_read(const struct element *e, void *const *values, void *to, int64_t row, int64_t column, int64_t count) {
    bool is_along = e->axis == e->column_dim && e->part_count > 1;
    int64_t coordinate = is_along || e->part_count == 1 ? 0 : coordinate_of(e, row);
    for (int k = 0; k < e->part_count; k++) {
        int64_t first = is_along ? max64(column, e->starts[k]) : column;
        int64_t end = is_along ? min64(column + count, e->starts[k + 1]) : column + count;
        bool is_here = is_along || (coordinate >= e->starts[k] && coordinate < e->starts[k + 1]);
        if (is_here && end > first)
            read_part(e, &e->parts[k], values, advanced(e, to, first - column), row, first, end - first);
    }
    if (e->has_scale)
        apply_scales(e, values[e->scale.value], to, row, column, count);
}
