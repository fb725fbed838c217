/* SPDX-License-Identifier: Apache-2.0 */
/* Converts FP8 operands to 16 bits, in the workspace, before the kernels that read them. Hopper's FP8 MMAs require both
   operands to be K-major; some operands of gradients, and block scales, are not. */
#include "base/number.h"
#include "engines/cuda/attention/hopper/hopper.h"

/* A thread converts 16 elements of one row, a 16-byte load; rows are a multiple of that. */
enum { WIDEN_THREADS = 256, WIDEN_CHUNK = 16 };

static const double WIDEN_SECONDS = 2e-6; /* per kernel */

/* Block scales multiply the converted elements; scales of a head multiply the MMA results. */
static const struct tensor *of_blocks(const struct tensor *scales, const struct tensor *operand) {
    return scales && attention_blocks_of(scales, operand).are_blocks ? scales : NULL;
}

/* The copy is packed in the order of the dims, for any strides of the source. Offsets are multiples of 64 bytes; TMA
   needs 16. */
void attention_hopper_widen(struct attention_widened *w, const struct tensor *narrow, const struct tensor *scales) {
    struct attention_wide_operand *operand = &w->operands[w->count++];
    *operand = (struct attention_wide_operand){narrow, of_blocks(scales, narrow), tensor_mirror(narrow), w->bytes};
    struct tensor *tensor = &operand->tensor;
    tensor->type = w->type;
    tensor->alignment = 64;
    int64_t stride = 1;
    for (int i = 3; i >= 0; i--) {
        tensor->strides.at[i] = stride;
        stride *= tensor->dims.at[i];
    }
    w->bytes += round_up(tensor_bytes(tensor), 64);
}

/* Checks what the conversion kernel, which counts chunks in 31 bits, can read. */
weftStatus_t attention_hopper_check_widened(const struct cuda_attention *c) {
    for (int i = 0; i < c->widened->count; i++) {
        const struct tensor *narrow = c->widened->operands[i].narrow;
        if (narrow->ragged_offset)
            FAIL(WEFT_STATUS_NOT_SUPPORTED,
                 "%s: %s is ragged, and ragged FP8 cannot be converted; the portable attention family handles it.",
                 descriptor_label(region_node(c->region, 0)->op), descriptor_label(&narrow->base));
        if (tensor_elements(narrow) / WIDEN_CHUNK > INT32_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has too many elements to be converted. Split the batch.",
                 descriptor_label(region_node(c->region, 0)->op), descriptor_label(&narrow->base));
        TRY(attention_hopper_check_tma_rows(c, narrow));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Each operand is read once, and written and read back at twice its size. */
double attention_hopper_predict_widening(const struct cuda_attention *c) {
    double bandwidth = (double)c->device->cuda.bandwidth;
    return c->widened ? c->widened->count * WIDEN_SECONDS + 1.5 * (double)c->widened->bytes / bandwidth : 0;
}

/* One thread per chunk, in the order of the copy; divisors recover the source row of a chunk. */
static weftStatus_t build_one(const struct cuda_attention *c, const struct attention_wide_operand *operand,
                              struct cuda_kernel *kernel, struct arena *arena) {
    const struct tensor *narrow = operand->narrow;
    const int64_t *dims = narrow->dims.at;
    int64_t chunks = tensor_elements(narrow) / WIDEN_CHUNK;
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    emit_constant(&source, "THREADS", WIDEN_THREADS);
    emit_type(&source, "to_t", c->widened->type);
    attention_emit_tensor(&source, c, narrow, "from", NULL);
    emit_scratch(&source, "to_t", c->widened->workspace_at + operand->offset, "to");
    emit_number(&source, chunks, "all_chunks");
    emit_divisor(&source, dims[3] / WIDEN_CHUNK, "chunks");
    emit_divisor(&source, dims[2], "rows");
    emit_divisor(&source, dims[1], "heads");
    attention_emit_element_scales(&source, c, operand->scales, narrow, "from");
    TRY(kernel_finish(&source, kernel, "attention/hopper/widen_sm90.cuh", "attention_widen_sm90", arena));
    return attention_grid(kernel, c, divide_up(chunks, WIDEN_THREADS), WIDEN_THREADS / 32);
}

weftStatus_t attention_hopper_build_widening(const struct cuda_attention *c, struct cuda_step *state,
                                             struct arena *arena) {
    for (int i = 0; c->widened && i < c->widened->count; i++)
        TRY(build_one(c, &c->widened->operands[i], &state->kernels[state->count++], arena));
    return WEFT_STATUS_SUCCESS;
}
