/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 operands with block scales. The sums of a step are multiplied by the scales when they are promoted, so blocks
   along k must be whole steps. Numbers are not rounded between scaling and product. */
#include "base/number.h"
#include "engines/cuda/product/hopper/hopper.h"
#include "graph/ops/matmul.h"

/* Every refusal reports the layout of the scales. */
static weftStatus_t decline(const struct block_scale_dequantize_op *op, const char *rule) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: scale has dims %s and strides %s; %s to be part of a product.",
         descriptor_label(&op->base), tensor_dims_text(op->scale),
         numbers_text(op->scale->strides.at, op->scale->strides.count), rule);
}

/* Determines how the scales move with batch entries: not at all, evenly, or as consecutive rows. */
static weftStatus_t find_entries(const struct hopper *h, int f, int outer_dim, struct block_scales *scales) {
    const struct block_scale_dequantize_op *op = h->c.operand[f].scaling;
    const struct modes *batch = &h->c.modes[BATCH];
    int64_t rows = modes_extent(&h->c.modes[f == OPERAND_A ? ROW : COLUMN]), entries = 1, stride = 0;
    for (int64_t i = 0; i < op->x->dims.count - 2; i++)
        if (op->x->dims.at[i] > 1) {
            stride = entries == 1 ? op->scale->strides.at[i] : -1;
            entries *= op->x->dims.at[i];
        }
    /* Either the index covers one matrix and the entries are those of the batch, or the rows of all entries are one
       index. */
    bool is_plain = rows == op->x->dims.at[outer_dim];
    bool follows = scales->outer == 1 && rows == entries * op->x->dims.at[outer_dim] &&
                   stride == op->x->dims.at[outer_dim] * scales->stride;
    if (is_plain && entries > 1 && stride >= 0 && batch->count == 1 && batch->at[0].extent == entries)
        scales->entry_stride = stride;
    else if (!(is_plain && entries == 1) && !follows)
        return decline(op, "they must be evenly spaced over the batch");
    return WEFT_STATUS_SUCCESS;
}

/* Determines the blocks of one operand along its own index and along k. A block that covers all of k counts as all its
   steps, so that one scale applies to the whole sum. */
static weftStatus_t find_scales(struct hopper *h, int f) {
    const struct block_scale_dequantize_op *op = h->c.operand[f].scaling;
    struct block_scales *scales = &h->scales[f];
    struct dims block = block_scale_extents(&op->base);
    /* The tensor dims of k and of the operand's own index: x is (.., rows, k) for A and (.., k, columns) for B. */
    bool is_a = (f == OPERAND_A) != h->is_swapped;
    int last = (int)op->x->dims.count - 1, depth_dim = is_a ? last : last - 1, outer_dim = 2 * last - 1 - depth_dim;
    int64_t k = op->x->dims.at[depth_dim], step = HOPPER_K_BYTES; /* elements of one byte */
    *scales = (struct block_scales){.exists = true,
                                    .is_negative = op->is_negative,
                                    .value = graph_find_value(h->c.region->graph, op->scale),
                                    .type = (weftDataType_t)op->scale->type,
                                    .outer = block.at[outer_dim],
                                    .steps = block.at[depth_dim] / step,
                                    .stride = op->scale->strides.at[outer_dim],
                                    .step_stride = op->scale->strides.at[depth_dim]};
    /* A block longer than k counts as one block of all steps, so that divisors get a single number. */
    if (block.at[depth_dim] >= k)
        scales->steps = divide_up(k, step);
    else if (block.at[depth_dim] % step != 0)
        return decline(op, "its blocks must be multiples of 128 along the summed dimension");
    for (int i = 0; i < last - 1; i++)
        if (block.at[i] != 1)
            return decline(op, "its blocks must be inside a matrix");
    if (scale_is_tiled(op->scale) || op->scale->is_by_value || op->scale->is_constant ||
        tensor_elements(op->scale) >= INT32_MAX)
        return decline(op, "they must be fewer than 2^31, in memory and not tiled");
    return find_entries(h, f, outer_dim, scales);
}

/* Only FP8 sums are promoted to float at each step, so only these can be scaled. */
weftStatus_t hopper_scales(struct hopper *h) {
    for (int f = 0; f < OPERANDS; f++) {
        if (!h->c.operand[f].scaling)
            continue;
        if (op_of(h->c.node->op) != &matmul_op || dtype_is_integer((weftDataType_t)h->c.operand[f].tensor->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: block scales are supported only in matmuls of FP8.",
                 descriptor_label(h->c.node->op));
        TRY(find_scales(h, f));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Returns the greatest common divisor: the columns between two block boundaries, wherever a tile starts. Returns all
   columns of the tile if B has no scales, or one for all columns. */
int hopper_scale_columns(const struct hopper *h, const struct hopper_tile *tile) {
    int64_t sharing = h->scales[OPERAND_B].outer, columns = tile->columns;
    if (!h->scales[OPERAND_B].exists || sharing >= modes_extent(&h->c.modes[COLUMN]))
        return tile->columns;
    while (sharing > 0) {
        int64_t rest = columns % sharing;
        columns = sharing;
        sharing = rest;
    }
    return (int)columns;
}

/* Scales of an operand that has none are 1, at no cost. */
static void emit_absent(struct text *code, char letter) {
    text_add(code,
             "DEVICE i32 %c_scale_at(const arguments&, index, i32, i32) { return 0; }\n"
             "DEVICE i32 %c_scale_step(const arguments&, i32) { return 0; }\n"
             "DEVICE float %c_scale(const arguments&, i32) { return 1; }\n\n",
             letter, letter, letter);
}

/* Emits a_scale_at, a_scale_step and a_scale (or b_*): the offset of the scale of a row or column for a step, its
   distance to that of the next step, and the scale. Offsets have 32 bits, because there are fewer than 2^31 scales. */
static void emit_scale_offsets(struct kernel_source *source, const struct hopper *h, int f) {
    const struct block_scales *scales = &h->scales[f];
    char letter = "ab"[f];
    const char *extent = f == OPERAND_A ? "rows" : "columns";
    emit_divisor(source, scales->outer, named("%c_scale_outer", letter).text);
    emit_divisor(source, scales->steps, named("%c_scale_steps", letter).text);
    emit_number(source, scales->stride, named("%c_scale_stride", letter).text);
    emit_number(source, scales->step_stride, named("%c_scale_stride_k", letter).text);
    emit_number(source, scales->entry_stride, named("%c_scale_entry", letter).text);
    text_add(&source->code,
             "DEVICE i32 %c_scale_at(const arguments& p, index z, i32 i, i32 step) {\n"
             "    const i32 inside = i < (i32)p.%s ? i : (i32)p.%s - 1; /* others are not finished */\n"
             "    return (i32)(divide(inside, p.%c_scale_outer) * p.%c_scale_stride + z * p.%c_scale_entry\n"
             "        + divide(step, p.%c_scale_steps) * p.%c_scale_stride_k);\n}\n",
             letter, extent, extent, letter, letter, letter, letter, letter);
    text_add(&source->code, "DEVICE i32 %c_scale_step(const arguments& p, i32 step) { return ", letter);
    /* Each step has its own scale, so no remainder is needed. */
    if (scales->steps == 1)
        text_add(&source->code, "(i32)p.%c_scale_stride_k; }\n", letter);
    else
        text_add(&source->code, "step %% (i32)p.%c_scale_steps.value ? 0 : (i32)p.%c_scale_stride_k; }\n", letter,
                 letter);
}

void hopper_emit_scales(struct kernel_source *source, const struct hopper *h) {
    for (int f = 0; f < OPERANDS && hopper_is_scaled(h); f++) {
        const struct block_scales *scales = &h->scales[f];
        char letter = "ab"[f];
        if (!scales->exists) {
            emit_absent(&source->code, letter);
            continue;
        }
        emit_pointer(source, scales->type, scales->value, 0, named("%c_scales", letter).text);
        emit_scale_offsets(source, h, f);
        text_add(&source->code,
                 "DEVICE float %c_scale(const arguments& p, i32 at) { return %sto_float(p.%c_scales[at]); }\n\n",
                 letter, scales->is_negative ? "-" : "", letter);
    }
}
