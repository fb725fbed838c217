/* SPDX-License-Identifier: Apache-2.0 */
/* Source text, tensor maps and arguments that the Hopper attention kernels share. */
#include "engines/cuda/attention/hopper/hopper.h"
#include "engines/cuda/core/index_type.h"

#include <stdio.h>
#include <string.h>

enum {
    OUTER_MAX = INT32_MAX,
    OUTER_BYTES = 16
}; /* extent and unit of the outer dimension of ragged entries, see
                                                     varlen_sm90.cuh */

/* These kernels use wgmma of sm_90a, which Blackwell does not have. */
weftStatus_t attention_hopper_check_device(const struct device *device) {
    if (device->cuda.major != 9 || device->cuda.minor != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
             "Hopper's attention kernels require compute capability 9.0, '%s' has %d.%d", device->name,
             device->cuda.major, device->cuda.minor);
    return WEFT_STATUS_SUCCESS;
}

/* Returns the bytes of a number of elements of the tensor's type, which is a multiple of whole bytes. */
static int64_t bytes_of(const struct tensor *tensor, int64_t elements) {
    return dtype_bytes((weftDataType_t)tensor->type, elements);
}

/* TMA requires strides and addresses that are multiples of 16 bytes, and positive strides for extents above 1. A ragged
   tensor is one dimension of tokens, so its batch stride is ignored. */
weftStatus_t attention_hopper_check_tma_rows(const struct cuda_attention *c, const struct tensor *tensor) {
    bool fits = tensor->strides.at[3] == 1 && tensor->alignment % 16 == 0;
    fits = fits && bytes_of(tensor, tensor->dims.at[3]) % 16 == 0;
    for (int i = tensor->ragged_offset ? 1 : 0; i < 3; i++) {
        int64_t stride = tensor->strides.at[i];
        fits = fits && (tensor->dims.at[i] == 1 || (stride > 0 && bytes_of(tensor, stride) % 16 == 0));
    }
    if (!fits) /* a tensor of one element always fails, so no operand here is passed by value */
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s must have contiguous rows, and strides and alignment of multiples of 16 bytes, for TMA.",
             descriptor_label(region_node(c->region, 0)->op), descriptor_label(&tensor->base));
    return WEFT_STATUS_SUCCESS;
}

/* Also checks that the tensor has q's type, which must be f16 or bf16. */
weftStatus_t attention_hopper_check_tma_16bit(const struct cuda_attention *c, const struct tensor *tensor) {
    if (tensor->type != c->a->q->type || !dtype_is_half((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, q has %s; all must be f16 or all bf16.",
             descriptor_label(region_node(c->region, 0)->op), descriptor_label(&tensor->base),
             dtype_of((weftDataType_t)tensor->type)->name, dtype_of((weftDataType_t)c->a->q->type)->name);
    return attention_hopper_check_tma_rows(c, tensor);
}

const struct attention_wide_operand *attention_hopper_wide(const struct cuda_attention *c,
                                                           const struct tensor *narrow) {
    for (int i = 0; c->widened && i < c->widened->count; i++)
        if (c->widened->operands[i].narrow == narrow)
            return &c->widened->operands[i];
    return NULL;
}

/* A ragged tensor has one map for all entries. Its batch dimension has steps of 16 bytes, which reach the first row of
   any entry, and rows past the last row of an entry are out of bounds of the map. */
void attention_hopper_emit_box_map(struct kernel_source *source, const struct cuda_attention *c,
                                   const struct tensor *narrow, int rows, int row_bytes, const char *name) {
    const struct attention_wide_operand *wide = attention_hopper_wide(c, narrow);
    const struct tensor *tensor = wide ? &wide->tensor : narrow;
    int64_t bytes = bytes_of(tensor, 1);
    struct cuda_map map = {.form = {.type = bytes == 1                       ? TENSOR_MAP_U8
                                            : tensor->type == WEFT_DATA_HALF ? TENSOR_MAP_F16
                                                                             : TENSOR_MAP_BF16,
                                    .rank = 4,
                                    .box = {(uint32_t)(row_bytes / bytes), (uint32_t)rows, 1, 1},
                                    .swizzle = row_bytes == 64 ? TENSOR_MAP_64B : TENSOR_MAP_128B,
                                    .promotion = TENSOR_MAP_L2_128B},
                           .offset = wide ? c->widened->workspace_at + wide->offset : 0};
    for (int i = 0; i < 4; i++) {
        int dim = (int[]){3, 2, 1, 0}[i];
        map.form.dims[i] = (uint64_t)tensor->dims.at[dim];
        if (i > 0) /* the stride is unused if there is only one row, head or batch entry */
            map.form.strides[i - 1] = tensor->dims.at[dim] == 1 ? 16 : (uint64_t)(tensor->strides.at[dim] * bytes);
    }
    if (tensor->ragged_offset) { /* the base of the map is the extent of the rows before the tensor, see
                                    varlen_sm90.cuh */
        map.form.dims[3] = OUTER_MAX;
        map.form.strides[2] = OUTER_BYTES;
        map.offset = -(int64_t)(map.form.dims[1] * map.form.strides[0]);
    }
    if (source->map_count == 0)
        text_add(&source->constants, "#include \"core/ptx_sm90.cuh\"\n#include \"attention/hopper/varlen_sm90.cuh\"\n");
    emit_map(source, wide ? -1 : graph_find_value(c->graph, narrow), &map, name);
}

void attention_hopper_emit_map(struct kernel_source *source, const struct cuda_attention *c,
                               const struct tensor *tensor, int rows, const char *name) {
    attention_hopper_emit_box_map(source, c, tensor, rows, 128, name);
}

bool attention_hopper_multiplies_by_mask(const struct cuda_attention *c) {
    return c->a->dropout_mask && !dtype_is_boolean((weftDataType_t)c->a->dropout_mask->type);
}

bool attention_hopper_has_tma_bias(const struct cuda_attention *c) {
    const struct tensor *bias = c->a->bias;
    if (!bias || !dtype_is_half((weftDataType_t)bias->type))
        return false;
    bool fits =
        bias->dims.at[2] == c->queries && bias->dims.at[3] == c->keys && bytes_of(bias, attention_run(bias)) == 16;
    for (int i = 0; i < 3; i++)
        fits = fits && (bias->dims.at[i] == 1 || bias->strides.at[i] > 0);
    return fits;
}

/* Emits the arguments of ragged_entry: offsets of the entries in elements, the extent of the rows as the map has it,
   and the row stride in elements. */
static void emit_offsets(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                         const char *name) {
    const struct tensor *offsets = tensor->ragged_offset;
    int64_t row = tensor->dims.at[2] == 1 ? OUTER_BYTES / bytes_of(tensor, 1) : tensor->strides.at[2]; /* as in the
                                                                                                          map */
    char field[48];
    snprintf(field, sizeof field, "%s_offsets", name);
    emit_ragged(source, (weftDataType_t)offsets->type, graph_find_value(c->graph, offsets), offsets->strides.at[0],
                tensor->ragged_multiplier, field);
    snprintf(field, sizeof field, "%s_rows", name);
    emit_number(source, tensor->dims.at[2], field);
    snprintf(field, sizeof field, "%s_row", name);
    emit_number(source, row, field);
}

void attention_hopper_emit_entry(struct kernel_source *source, const struct cuda_attention *c,
                                 const struct tensor *tensor, const char *name) {
    bool is_ragged = tensor->ragged_offset != NULL;
    char flag[48];
    snprintf(flag, sizeof flag, "%s_IS_RAGGED", name);
    /* The constant's prefix is NAME in upper case. */
    for (char *at = flag; *at; at++)
        *at = (char)(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    emit_constant(source, flag, is_ragged);
    text_add(&source->code, "template <class P> DEVICE box_origin %s_entry(const P &p, i32 batch, i32 used) {\n", name);
    if (!is_ragged) {
        text_add(&source->code, "    return box_origin{0, batch};\n}\n\n");
        return;
    }
    emit_offsets(source, c, tensor, name);
    text_add(&source->code, "    return ragged_entry<%d>(batch * p.%s_offsets, p.%s_row, p.%s_rows, used);\n}\n\n",
             (int)(OUTER_BYTES / bytes_of(tensor, 1)), name, name, name);
}

/* Kernels omit the test of a bound that is ATTENTION_UNBOUNDED. */
void attention_hopper_emit_scores(struct kernel_source *source, const struct cuda_attention *c) {
    const struct attention *a = c->a;
    int64_t scale;
    memcpy(&scale, &a->scale_value, sizeof scale);
    emit_number(source, c->queries, "queries");
    emit_number(source, c->keys, "keys");
    emit_number(source, a->left_bound, "left");
    emit_number(source, a->right_bound, "right");
    emit_constant(source, "HAS_LEFT", a->left_bound != ATTENTION_UNBOUNDED);
    emit_constant(source, "HAS_RIGHT", a->right_bound != ATTENTION_UNBOUNDED);
    emit_constant(source, "IS_BOTTOM_RIGHT", a->alignment == WEFT_DIAGONAL_BOTTOM_RIGHT);
    emit_constant(source, "HAS_SCALE", a->scale != NULL);
    if (a->scale)
        emit_pointer(source, (weftDataType_t)a->scale->type, graph_find_value(c->graph, a->scale), 0, "scale");
    else
        emit_number(source, scale, "scale");
    attention_emit_lengths(source, c);
}

/* The set of terms is compiled in; operands and strides are arguments. BIAS_IS_PAIR: two adjacent keys are one load.
   BIAS_IS_NEAR: offsets into the bias fit 31 bits, which halves their registers. */
void attention_hopper_emit_terms(struct kernel_source *source, const struct cuda_attention *c, bool is_rounded) {
    static const char *const axes[] = {"batch", "head", "query", "key"};
    const struct tensor *bias = c->a->bias;
    emit_constant(source, "HAS_ALIBI", c->a->alibi);
    emit_constant(source, "BIAS", !bias ? 0 : dtype_is_boolean((weftDataType_t)bias->type) ? 2 : 1);
    emit_constant(source, "BIAS_IS_PAIR",
                  bias && cuda_type_name((weftDataType_t)bias->type) && bias->dims.at[3] == c->keys &&
                      attention_run(bias) % 2 == 0);
    emit_constant(source, "BIAS_IS_NEAR", !bias || tensor_bytes(bias) < WEFT_INDEX32_MAX);
    if (bias)
        attention_emit_tensor(source, c, bias, "bias", axes);
    else
        text_add(&source->constants, "using bias_t = float;\n"); /* the kernel refers to the type */
    attention_emit_modifier(source, c, is_rounded);
}

/* The high word of a descriptor is constant: the stride between groups of eight rows, 1,024 bytes (0x40 in units of 16
   bytes) for 128-byte rows or 512 (0x20) for 64-byte rows, and the swizzle mode (bits 30 and 31). */
void attention_hopper_emit_mma(struct text *code, const struct attention_mma *product) {
    /* Operands of the asm statement, in order: the accumulators, A (a low word, or four registers), B, and the
       predicate. */
    bool in_registers = product->a == MMA_A_REGISTERS, asks = product->adds == MMA_ADDS_AT_RUN_TIME;
    int count = product->columns / 2, b = count + (in_registers ? 4 : 1);
    text_add(
        code, "DEVICE void %s(float (&d)[%d], %s a, u32 b%s) {\n    asm volatile(\"{ .reg .pred p; .reg .b64 %sb; ",
        product->name, count, in_registers ? "const u32*" : "u32", asks ? ", u32 adds" : "", in_registers ? "" : "a, ");
    if (asks)
        text_add(code, "setp.ne.b32 p, %%%d, 0; ", b + 1);
    else
        text_add(code, "setp.ne.b32 p, %d, 0; ", product->adds == MMA_ADDS);
    if (!in_registers)
        text_add(code, "mov.b64 a, {%%%d, 0x40000040}; ", count);
    text_add(code, "mov.b64 b, {%%%d, %s};\"\n        \" wgmma.mma_async.sync.aligned.m64n%dk%d.f32.%s.%s {", b,
             product->b_is_narrow ? "0x80000020" : "0x40000040", product->columns, product->is_fp8 ? 32 : 16,
             product->type, product->b_type ? product->b_type : product->type);
    for (int i = 0; i < count; i++)
        text_add(code, "%s%%%d", i ? "," : "", i);
    text_add(code, "}, ");
    if (in_registers)
        text_add(code, "{%%%d,%%%d,%%%d,%%%d}", count, count + 1, count + 2, count + 3);
    else
        text_add(code, "a");
    text_add(code, ", b, p, 1, 1%s%s; }\"\n        : ",
             in_registers || product->is_fp8 ? ""
             : product->a == MMA_A_MN        ? ", 1"
                                             : ", 0",
             product->is_fp8    ? ""
             : product->b_is_mn ? ", 1"
                                : ", 0");
    for (int i = 0; i < count; i++)
        text_add(code, "%s\"%sf\"(d[%d])", i ? ", " : "", product->is_fresh ? "=" : "+", i);
    text_add(code, "\n        : %s\"r\"(b)%s);\n}\n\n",
             in_registers ? "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), " : "\"r\"(a), ",
             asks ? ", \"r\"(adds)" : "");
}
