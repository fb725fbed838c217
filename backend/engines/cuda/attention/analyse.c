/* SPDX-License-Identifier: Apache-2.0 */
/* Analysis of an attention operation, for all attention families: its sizes, scales and outputs, and the arithmetic:
   tensor cores for operands of 16 bits or fewer, otherwise FMAs. */
#include "base/number.h"
#include "engines/cuda/attention/attention.h"

/* max_columns: limited by the registers of an accumulator element. */
static const struct attention_arithmetic mma_f16 = {WEFT_DATA_HALF,       "f16", "float", 2, 4, true, 256,
                                                    "f16 on tensor cores"};
static const struct attention_arithmetic mma_bf16 = {WEFT_DATA_BFLOAT16,    "bf16", "float", 2, 4, true, 256,
                                                     "bf16 on tensor cores"};
static const struct attention_arithmetic fma_float = {WEFT_DATA_FLOAT,      "float", "float", 4, 4, false, 128,
                                                      "float multiply-adds"};
static const struct attention_arithmetic fma_double = {WEFT_DATA_DOUBLE,      "double", "double", 8, 8, false, 64,
                                                       "double multiply-adds"};

/* Multiply-adds per clock and SM, and the fraction of them that these kernels reach. */
enum { MMA_PER_CLOCK = 1024, FMA_PER_CLOCK = 128 };
static const double EFFICIENCY = 0.5;

/* Outputs that are absent, or that no consumer or caller uses, are not computed. */
bool attention_wants(const struct cuda_attention *c, const struct tensor *output) {
    return output && !value_is_dead(&c->graph->values[graph_find_value(c->graph, output)]);
}

/* True if elements of an operand of the backward pass are multiplied by scales as they are loaded. A single scale does
   not count, because it multiplies the product. */
static bool loads_scaled(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    if (!op)
        return false;
    const struct tensor *scales[] = {c->a->descale_q, c->a->descale_k, c->a->descale_v, op->descale_do,
                                     op->descale_q_t, op->descale_k_t, op->descale_do_t};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (scales[i] && tensor_elements(scales[i]) > 1)
            return true;
    return false;
}

/* parts: hi and lo parts of P, if P is rounded. */
bool attention_is_rich(const struct cuda_attention *c, int parts) {
    return parts > 1 || loads_scaled(c) || c->a->bias || c->a->modifier.graph || attention_drops(c->a) ||
           c->arithmetic->sum_bytes > 4;
}

bool attention_is_ragged(const struct cuda_attention *c) {
    const struct node *node = region_node(c->region, 0);
    for (int i = 0; i < node->operand_count; i++)
        if (c->graph->values[node->operands[i]].tensor->ragged_offset)
            return true;
    return false;
}

bool attention_has_ragged_rows(const struct cuda_attention *c) {
    struct attention_ragged list[ATTENTION_RAGGED_MAX];
    int count = attention_ragged_operands(region_node(c->region, 0)->op, list);
    for (int i = 0; i < count; i++)
        if (list[i].tensor != c->a->k_table && list[i].tensor != c->a->v_table)
            return true;
    return false;
}

/* Half if scores need registers, too. */
int attention_max_columns(const struct cuda_attention *c, int parts) {
    bool is_short = c->arithmetic->is_mma && attention_is_rich(c, parts);
    return is_short ? c->arithmetic->max_columns / 2 : c->arithmetic->max_columns;
}

/* One scale per head is a constant of the block, unless rows of several heads share a tile; then it is a value per
   row. */
int attention_query_scales(const struct cuda_attention *c, bool is_packed) {
    const struct tensor *scales = c->a->descale_q;
    if (!scales)
        return ATTENTION_SCALES_NONE;
    if (attention_blocks_of(scales, c->a->q).are_blocks)
        return ATTENTION_SCALES_BLOCKS;
    return is_packed && scales->dims.at[1] > 1 ? ATTENTION_SCALES_ROWS : ATTENTION_SCALES_HEAD;
}

/* Each page of a container has its own rows, so only a scale that is common to all entries is a head's. */
int attention_key_scales(const struct tensor *scales, const struct tensor *table) {
    if (!scales)
        return ATTENTION_SCALES_NONE;
    /* tiled (reordered), or several along the depth */
    if (scales->reordering || scales->dims.at[3] > 1)
        return ATTENTION_SCALES_BLOCKS;
    bool is_of_head = scales->dims.at[2] == 1 && (!table || scales->dims.at[0] == 1);
    return is_of_head ? ATTENTION_SCALES_HEAD : ATTENTION_SCALES_ROWS;
}

/* The pointers may be NULL. */
static bool is_any_set(const struct tensor *const *tensors, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (tensors[i])
            return true;
    return false;
}

/* Includes operands that are given in two layouts (q_t, ..), as for FP8 gradients. */
static bool is_backward_scaled(const struct sdpa_bwd_op *op) {
    const struct tensor *scales[] = {op->descale_o, op->descale_do, op->descale_s, op->descale_dp, op->scale_s,
                                     op->scale_dp,  op->scale_dq,   op->scale_dk,  op->scale_dv,   op->amax_dq,
                                     op->amax_dk,   op->amax_dv,    op->amax_dp,   op->q_t,        op->k_t,
                                     op->do_t,      op->do_f16};
    return is_any_set(scales, sizeof scales / sizeof *scales);
}

bool attention_is_scaled(const struct cuda_attention *c) {
    const struct sdpa_fwd_op *op = c->forward;
    if (c->a->descale_q || c->a->descale_k || c->a->descale_v)
        return true;
    if (!op)
        return is_backward_scaled(c->backward);
    const struct tensor *scales[] = {op->descale_s, op->scale_s, op->scale_o, op->amax_s, op->amax_o};
    return is_any_set(scales, sizeof scales / sizeof *scales);
}

/* In the order in which kernels clear and fill them. */
int attention_amax_outputs(const struct cuda_attention *c, const struct tensor *outputs[ATTENTION_AMAX_MAX]) {
    const struct sdpa_fwd_op *f = c->forward;
    const struct sdpa_bwd_op *b = c->backward;
    const struct tensor *all[ATTENTION_AMAX_MAX] = {f ? f->amax_s : b->amax_dq, f ? f->amax_o : b->amax_dk,
                                                    f ? NULL : b->amax_dv, f ? NULL : b->amax_dp};
    int count = 0;
    for (int i = 0; i < ATTENTION_AMAX_MAX; i++)
        if (attention_wants(c, all[i]))
            outputs[count++] = all[i];
    return count;
}

/* 16: the depth of one 16-bit MMA. A depth of 0 counts as 1, so that tiles exist. */
struct attention_depth attention_depth_of(int64_t depth, int max_chunk) {
    struct attention_depth result = {.chunks = divide_up(depth > 0 ? depth : 1, max_chunk)};
    result.chunk = round_up(divide_up(depth > 0 ? depth : 1, result.chunks), 16);
    result.padded = result.chunk * result.chunks;
    return result;
}

weftStatus_t attention_decline(const struct cuda_attention *c, const char *reason) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: %s; the portable attention family handles it.",
         descriptor_label(region_node(c->region, 0)->op), reason);
}

weftStatus_t attention_decline_shared_memory(const struct cuda_attention *c, int64_t shared_bytes) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
         "%s: the smallest tile needs %lld bytes of shared memory, %s has %lld. Use a narrower data type.",
         descriptor_label(region_node(c->region, 0)->op), (long long)shared_bytes, c->device->name,
         (long long)c->device->cuda.shared_per_block);
}

/* The grid has one dimension; kernels decompose the block index. */
weftStatus_t attention_grid(struct cuda_kernel *kernel, const struct cuda_attention *c, int64_t blocks, int warps) {
    if (blocks > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %lld blocks of %s exceed the size of a grid. Split the batch.",
             descriptor_label(region_node(c->region, 0)->op), (long long)blocks, kernel->entry);
    kernel->grid[0] = (uint32_t)blocks;
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)warps * 32;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Accepting ---- */

/* is_bias: elements below a byte are allowed, because they are read one by one. Half of 31 bits, so that the sum of two
   coordinates does not overflow. */
static weftStatus_t check_operand(const struct descriptor *op, const struct tensor *tensor, bool is_bias) {
    weftDataType_t type = (weftDataType_t)tensor->type;
    if (!(is_bias ? cuda_element_name(type) : cuda_type_name(type)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store.",
             descriptor_label(op), descriptor_label(&tensor->base), dtype_of(type)->name);
    TRY(tensor_check_plain(tensor, op));
    for (int64_t i = 0; i < tensor->dims.count; i++)
        if (tensor->dims.at[i] >= INT32_MAX / 2)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s; the maximum extent is %d.", descriptor_label(op),
                 descriptor_label(&tensor->base), tensor_dims_text(tensor), INT32_MAX / 2 - 1);
    return WEFT_STATUS_SUCCESS;
}

/* 8-bit types, which f16 and bf16 represent exactly. */
static bool is_8bit(int32_t type) {
    return dtype_is_fp8((weftDataType_t)type) || type == WEFT_DATA_INT8 || type == WEFT_DATA_UINT8;
}

/* Elements that are multiplied by row or block scales as they are loaded may exceed the range of f16. */
static bool has_row_scales(const struct attention *a) {
    bool has_q_scales =
        a->descale_q && (a->descale_q->dims.at[1] > 1 || attention_blocks_of(a->descale_q, a->q).are_blocks);
    return has_q_scales || attention_key_scales(a->descale_k, a->k_table) >= ATTENTION_SCALES_ROWS ||
           attention_key_scales(a->descale_v, a->v_table) >= ATTENTION_SCALES_ROWS;
}

/* Types that float does not represent exactly. */
static bool is_wide(int32_t type) {
    return type == WEFT_DATA_DOUBLE || type == WEFT_DATA_INT32 || type == WEFT_DATA_UINT32 || type == WEFT_DATA_INT64;
}

/* True if an operand or result in memory has more precision than float. */
static bool has_double(const struct cuda_attention *c) {
    const struct node *node = region_node(c->region, 0);
    for (int i = 0; i < node->operand_count; i++) {
        const struct tensor *tensor = c->graph->values[node->operands[i]].tensor;
        if (tensor->type == WEFT_DATA_DOUBLE && !tensor->is_by_value && !tensor->is_constant)
            return true;
    }
    return c->a->math == WEFT_DATA_DOUBLE;
}

/* The narrowest arithmetic that multiplies all operands exactly; double if any is read or requested in double. f16
   mixed with bf16 does not use tensor cores, because neither type represents the other. Turing (no k16) has no bf16
   MMA. */
static const struct attention_arithmetic *choose_arithmetic(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *factors[] = {
        c->a->q, c->a->k, c->a->v, op ? op->d_o : NULL, op ? op->q_t : NULL, op ? op->k_t : NULL, op ? op->do_t : NULL};
    int halves = 0, bfloats = 0, eights = 0, wide = has_double(c), count = 0;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        if (!factors[i])
            continue;
        int32_t type = factors[i]->type;
        halves += type == WEFT_DATA_HALF;
        bfloats += type == WEFT_DATA_BFLOAT16;
        eights += is_8bit(type);
        wide |= is_wide(type);
        count++;
    }
    if (wide)
        return &fma_double;
    /* Gradients of FP8 operands may exceed the range of f16. */
    bool prefers_bf16 = bfloats || (!halves && c->has_k16 && (c->backward || has_row_scales(c->a)));
    /* types without tensor core support here, such as float, or two types that no 16-bit type represents */
    if (halves + bfloats + eights < count || (halves && bfloats) || (prefers_bf16 && !c->has_k16))
        return &fma_float;
    return prefers_bf16 ? &mma_bf16 : &mma_f16;
}

/* Amax outputs are of type FLOAT. The largest P is only known before dropout. */
static weftStatus_t check_amax(const struct cuda_attention *c) {
    const struct tensor *outputs[ATTENTION_AMAX_MAX];
    int count = attention_amax_outputs(c, outputs);
    for (int i = 0; i < count; i++)
        if (outputs[i]->type != WEFT_DATA_FLOAT)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s. Kernels compute FLOAT.",
                 descriptor_label(region_node(c->region, 0)->op), descriptor_label(&outputs[i]->base),
                 dtype_of((weftDataType_t)outputs[i]->type)->name);
    if (c->forward && c->forward->amax_s && attention_drops(c->a))
        FAIL(WEFT_STATUS_NOT_SUPPORTED,
             "%s: amax_s of a softmax with dropout is not supported; the reference family handles it.",
             descriptor_label(region_node(c->region, 0)->op));
    return WEFT_STATUS_SUCCESS;
}

/* The common start of both directions and all attention families; c points into region and graph. */
weftStatus_t attention_analyse(struct cuda_attention *c, const struct region *region, const struct device *device) {
    const struct node *node = region_node(region, 0);
    bool is_forward = op_of(node->op) == &sdpa_fwd_op;
    if (region->count != 1 || (!is_forward && op_of(node->op) != &sdpa_bwd_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: this family serves one sdpa_fwd or sdpa_bwd at a time.",
             descriptor_label(node->op));
    *c = (struct cuda_attention){.region = region, .graph = region->graph, .device = device};
    c->forward = is_forward ? (const struct sdpa_fwd_op *)node->op : NULL;
    c->backward = is_forward ? NULL : (const struct sdpa_bwd_op *)node->op;
    c->a = is_forward ? &c->forward->a : &c->backward->a;
    for (int i = 0; i < node->operand_count; i++) {
        const struct tensor *tensor = c->graph->values[node->operands[i]].tensor;
        TRY(check_operand(node->op, tensor,
                          tensor == c->a->bias || tensor == c->a->dropout_mask || attention_modifies_with(c, tensor)));
    }
    TRY(attention_check_modifier(c));
    TRY(check_amax(c));
    c->has_k16 = c->has_async = device->cuda.major >= 8;
    c->arithmetic = choose_arithmetic(c);
    c->batches = c->a->q->dims.at[0];
    c->heads = c->a->q->dims.at[1];
    c->queries = c->a->q->dims.at[2];
    c->depth = c->a->q->dims.at[3];
    c->key_heads = c->a->k->dims.at[1];
    /* paged: the number of keys that the page tables address */
    c->keys = attention_keys(c->a);
    c->value_heads = c->a->v->dims.at[1];
    c->value_depth = c->a->v->dims.at[3];
    c->lines = c->batches * c->heads * c->queries;
    if (c->keys >= INT32_MAX / 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: the page tables address %lld keys; the maximum extent is %d.",
             descriptor_label(node->op), (long long)c->keys, INT32_MAX / 2 - 1);
    return WEFT_STATUS_SUCCESS;
}

/* Samples at most PIECES_MAX blocks of queries at equal distances: exact for short sequences, accurate for long ones,
   and of bounded cost. */
double attention_visible_fraction(const struct cuda_attention *c) {
    enum { TILE_ROWS = 128, PIECES_MAX = 256 };
    /* offset from a query's index to its last visible key, before bounds */
    int64_t shift = c->a->alignment == WEFT_DIAGONAL_BOTTOM_RIGHT ? c->keys - c->queries : 0;
    int64_t pieces = min64(divide_up(c->queries, TILE_ROWS), PIECES_MAX), visible = 0;
    for (int64_t i = 0; i < pieces; i++) {
        int64_t first = c->queries * i / pieces, last = c->queries * (i + 1) / pieces - 1;
        int64_t from = max64(first + shift - c->a->left_bound + 1, 0);
        int64_t to = min64(last + shift + c->a->right_bound, c->keys - 1);
        visible += max64(to - from + 1, 0);
    }
    return pieces && c->keys ? (double)visible / ((double)pieces * (double)c->keys) : 1;
}

/* 2: a multiply-add is two operations. Doubles are at half the rate of floats here. */
double attention_predict_flops(const struct cuda_attention *c, double flops) {
    const struct cuda_properties *cuda = &c->device->cuda;
    double rate = 2.0 * cuda->clock_khz * 1e3 * cuda->multiprocessors * EFFICIENCY;
    return flops / (rate * (c->arithmetic->is_mma ? MMA_PER_CLOCK : FMA_PER_CLOCK / (c->arithmetic->sum_bytes / 4)));
}
