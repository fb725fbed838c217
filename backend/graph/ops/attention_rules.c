/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of attention: inference of unset dims, strides and types, and checks of complete operands. */
#include "graph/ops/attention_rules.h"
#include "base/number.h"
#include "graph/ops/attention.h"
#include "graph/ops/attention_indices.h"

#include <stdio.h>
#include <string.h>

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

/* Query heads share keys in groups of equal size; the heads of a group are adjacent. */
static weftStatus_t check_shared_heads(const struct descriptor *op, const struct attention *a, const char *key,
                                       const struct tensor *shared) {
    int64_t heads = a->q->dims.at[1], shared_heads = shared->dims.at[1];
    /* Zero heads are valid only together with zero heads. */
    if (shared_heads ? heads % shared_heads != 0 : heads != 0)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: q %s has %lld head%s, %s %s has %lld. Make the heads of %s divide those of q.", descriptor_label(op),
             tensor_dims_text(a->q), (long long)heads, plural(heads), key, tensor_dims_text(shared),
             (long long)shared_heads, key);
    return WEFT_STATUS_SUCCESS;
}

/* Checks an integer operand of these dims. Accepts NULL. */
static weftStatus_t check_integers(const struct descriptor *op, const char *key, const struct tensor *tensor,
                                   const int64_t dims[4]) {
    if (!tensor)
        return WEFT_STATUS_SUCCESS;
    if (dims)
        TRY(check_dims(op, key, tensor, 4, dims));
    else
        TRY(check_scalar(op, key, tensor));
    if (!dtype_is_integer((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use INT32 or INT64.", descriptor_label(op), key,
             dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* Checks a container of pages and its table, if it has one. */
static weftStatus_t check_pages(const struct descriptor *op, const struct attention *a, const char *key,
                                const struct tensor *container, const char *table_key, const struct tensor *table) {
    if (!table)
        return WEFT_STATUS_SUCCESS;
    int64_t keys = attention_keys(a), size = container->dims.at[2];
    TRY(check_integers(op, table_key, table, (const int64_t[]){a->q->dims.at[0], 1, table->dims.at[2], 1}));
    /* Kernels clamp entries outside of the container to a valid page, so at least one page must exist. */
    if (container->dims.at[0] < 1 || size < 1)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s is %s, [container, heads, page size, depth], without pages, or with empty ones. Give it at least "
             "one page with at least one key.",
             descriptor_label(op), key, tensor_dims_text(container));
    /* Kernels look up a page for every key in use. */
    if (attention_table_reach(table, container) < keys)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s is %s: its pages of %lld keys hold fewer than the %lld keys of a sequence. Give it more pages.",
             descriptor_label(op), table_key, tensor_dims_text(table), (long long)size, (long long)keys);
    if (keys > INT32_MAX)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: %s is %s, of pages of %lld keys: more than 2^31 keys. Set paged_attention_max_seq_len_kv.",
             descriptor_label(op), table_key, tensor_dims_text(table), (long long)size);
    /* Pages after the length in use may belong to other sequences, so the length must be known. */
    if (!a->seq_len_kv && !a->cu_seq_len_kv)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s is set, but seq_len_kv is not. Give it, [B, 1, 1, 1] of INT32.",
             descriptor_label(op), table_key);
    return WEFT_STATUS_SUCCESS;
}

/* Runs before inference, which uses these dims. A container of pages has leading extents of its own. */
static weftStatus_t check_operands(const struct descriptor *op, const struct attention *a) {
    const int64_t *q = a->q->dims.at, *k = a->k->dims.at, *v = a->v->dims.at;
    TRY(check_rank(op, "q", a->q, 4, 4));
    TRY(check_rank(op, "k", a->k, 4, 4));
    TRY(check_rank(op, "v", a->v, 4, 4));
    TRY(check_rank(op, "paged_attention_k_table", a->k_table, 4, 4));
    TRY(check_rank(op, "paged_attention_v_table", a->v_table, 4, 4));
    /* Depth, batch size and number of keys of q, k and v must agree; a table determines the latter two instead. */
    bool k_fits = k[3] == q[3] && (a->k_table || (k[0] == q[0] && k[2] == attention_keys(a)));
    bool v_fits = a->v_table || (v[0] == q[0] && v[2] == attention_keys(a));
    /* cuDNN's frontend ignores the number with FP8 operands; so do we. */
    if (a->most_keys && !attention_is_paged(a) && !dtype_is_fp8((weftDataType_t)a->q->type))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: paged_attention_max_seq_len_kv is %lld, but there is no page table. Leave it unset.",
             descriptor_label(op), (long long)a->most_keys);
    if (!k_fits || !v_fits)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: q is %s, k %s, v %s; expected [B, Hq, Sq, Dqk], %s, %s. Swap k's last two dims and strides if it is "
             "transposed.",
             descriptor_label(op), tensor_dims_text(a->q), tensor_dims_text(a->k), tensor_dims_text(a->v),
             a->k_table ? "[container, Hk, page size, Dqk]" : "[B, Hk, Skv, Dqk]",
             a->v_table ? "[container, Hv, page size, Dv]" : "[B, Hv, Skv, Dv]");
    TRY(check_pages(op, a, "k", a->k, "paged_attention_k_table", a->k_table));
    TRY(check_pages(op, a, "v", a->v, "paged_attention_v_table", a->v_table));
    TRY(check_shared_heads(op, a, "k", a->k));
    return check_shared_heads(op, a, "v", a->v);
}

/* With a mask, no random numbers are drawn. */
static weftStatus_t check_mask_alone(const struct descriptor *op, const struct attention *a) {
    const char *other = a->dropout_probability > 0 ? "dropout_probability"
                        : a->dropout_seed          ? "dropout_seed"
                        : a->dropout_offset        ? "dropout_offset"
                                                   : NULL;
    if (a->dropout_mask && other)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: dropout is given twice, as dropout_mask and as %s. Give one.",
             descriptor_label(op), other);
    if (a->dropout_scale && !attention_drops(a))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: dropout_scale is set, but no weight is dropped. Leave it unset.",
             descriptor_label(op));
    return check_scalar(op, "dropout_scale", a->dropout_scale);
}

/* A probability requires a seed; the offset is optional. */
static weftStatus_t check_dropout(const struct descriptor *op, const struct attention *a) {
    TRY(check_integers(op, "dropout_seed", a->dropout_seed, NULL));
    TRY(check_integers(op, "dropout_offset", a->dropout_offset, NULL));
    if (!(a->dropout_probability >= 0 && a->dropout_probability <= 1))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: dropout_probability is %g. Give one in 0..1.",
             descriptor_label(op), a->dropout_probability);
    TRY(check_mask_alone(op, a));
    if (attention_draws(a) && !a->dropout_seed)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: dropout_probability is %g, but there is no dropout_seed. Set it.",
             descriptor_label(op), a->dropout_probability);
    return WEFT_STATUS_SUCCESS;
}

/* Checks a scale for a whole tensor. Accepts NULL. */
static weftStatus_t check_one_scale(const struct descriptor *op, const char *key, const struct tensor *scale) {
    return attention_check_scales(op, key, scale, NULL, 0, false);
}

/* Only block scales may be stored in tiles. */
static weftStatus_t refuse_tiles(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    if (tensor->reordering != WEFT_TENSOR_REORDERING_NONE && strncmp(row->key, "descale_", 8) != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s, %s, has reordering_type F8_128x4, which is for block scales. Set NONE (0).", descriptor_label(op),
             row->key, descriptor_label(&tensor->base));
    return WEFT_STATUS_SUCCESS;
}

/* Checks cumulative lengths; side: "q" or "kv". */
static weftStatus_t check_sums(const struct descriptor *op, const char *side, const struct attention *a,
                               const struct tensor *lengths, const struct tensor *sums) {
    char key[24];
    snprintf(key, sizeof key, "cu_seq_len_%s", side);
    TRY(check_integers(op, key, sums, (const int64_t[]){a->q->dims.at[0] + 1, 1, 1, 1}));
    if (lengths && sums)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: lengths are given twice, as seq_len_%s and as %s. Give one.",
             descriptor_label(op), side, key);
    return WEFT_STATUS_SUCCESS;
}

/* A bit or a byte per tile of 128 x 128 scores; the last tiles may be partial. */
static weftStatus_t check_block_mask(const struct descriptor *op, const struct attention *a) {
    if (!a->block_mask)
        return WEFT_STATUS_SUCCESS;
    int64_t rows = divide_up(a->q->dims.at[2], ATTENTION_MASK_TILE);
    int64_t columns = divide_up(attention_keys(a), ATTENTION_MASK_TILE);
    int32_t type = a->block_mask->type;
    if (type != WEFT_DATA_INT8 && type != WEFT_DATA_BYTE_BOOLEAN && type != WEFT_DATA_UINT8)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: block_mask has data type %s. Use INT8 or BYTE_BOOLEAN, a tile each, or UINT8, eight tiles a byte.",
             descriptor_label(op), dtype_of((weftDataType_t)type)->name);
    TRY(check_rank(op, "block_mask", a->block_mask, 4, 4));
    const int64_t *dims = a->block_mask->dims.at;
    /* Batch entries and heads may share a mask. */
    bool is_shared = (dims[0] == 1 || dims[0] == a->q->dims.at[0]) && (dims[1] == 1 || dims[1] == a->q->dims.at[1]);
    int64_t wanted[] = {a->q->dims.at[0], a->q->dims.at[1], rows,
                        attention_mask_has_bits(a) ? divide_up(columns, 8) : columns};
    if (!is_shared || dims[2] != wanted[2] || dims[3] != wanted[3])
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: block_mask is %s, expected %s: tiles of 128 x 128 scores, of %s. The first two extents may be 1.",
             descriptor_label(op), tensor_dims_text(a->block_mask), numbers_text(wanted, 4),
             attention_mask_has_bits(a) ? "UINT8 eight in a byte" : "this type a byte each");
    return WEFT_STATUS_SUCCESS;
}

/* Checks that forward and backward share. has_value: the scale was set as a number. */
static weftStatus_t check_attention(const struct descriptor *op, const struct attention *a, bool has_value) {
    const int64_t *q = a->q->dims.at;
    /* A tensor with the dims of the scores, to compare operands with. It is never stored. */
    struct tensor scores = {.dims = {4, {q[0], q[1], q[2], attention_keys(a)}}};
    TRY(check_broadcasts(op, "bias", a->bias, &scores));
    TRY(check_broadcasts(op, "dropout_mask", a->dropout_mask, &scores));
    TRY(score_modifier_check(&a->modifier, op, &scores));
    TRY(check_block_mask(op, a));
    TRY(attention_check_ragged(op, a));
    if (a->bias && dtype_is_integer((weftDataType_t)a->bias->type))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: bias has data type %s. Use a floating type to add it, or BYTE_BOOLEAN to keep keys where it is true.",
             descriptor_label(op), dtype_of((weftDataType_t)a->bias->type)->name);
    TRY(check_integers(op, "seq_len_q", a->seq_len_q, (const int64_t[]){q[0], 1, 1, 1}));
    TRY(check_integers(op, "seq_len_kv", a->seq_len_kv, (const int64_t[]){q[0], 1, 1, 1}));
    /* This visits all operands, including those that only one of the operations has. */
    TRY(op_each_operand(op, refuse_tiles, (void *)op));
    TRY(attention_check_scales(op, "descale_q", a->descale_q, a->q, 2, true));
    TRY(attention_check_scales(op, "descale_k", a->descale_k, a->k, 3, true));
    TRY(attention_check_scales(op, "descale_v", a->descale_v, a->v, 3, true));
    TRY(check_sums(op, "q", a, a->seq_len_q, a->cu_seq_len_q));
    TRY(check_sums(op, "kv", a, a->seq_len_kv, a->cu_seq_len_kv));
    TRY(check_dims(op, "sink_token", a->sink, 4, (const int64_t[]){1, q[1], 1, 1}));
    TRY(check_scalar(op, "attn_scale", a->scale));
    /* It is ambiguous which of the two the user meant. */
    if (a->scale && has_value)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: the scale is given twice, as tensor attn_scale and as number %g. Give one.",
             descriptor_label(op), a->scale_value);
    return check_dropout(op, a);
}

/* ---- Inference --------------------------------------------------------------------------------------------------- */

/* Statistics have the precision of the calculation, because backward recomputes the weights from them. */
static weftDataType_t statistics_type(const struct attention *a) {
    return a->q->type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT;
}

/* `last`: the extent after [B, Hq, Sq]. */
static void infer_statistics(struct tensor *tensor, const struct attention *a, int64_t last) {
    tensor_infer_dims(tensor, 4, (const int64_t[]){a->q->dims.at[0], a->q->dims.at[1], a->q->dims.at[2], last});
    tensor_infer_type(tensor, statistics_type(a));
}

/* A result has the memory order of `like`, and its type if it is stored. If operands of a narrow type have block
   scales, results are true values of type `wide`. */
static void infer_result(struct tensor *tensor, const struct attention *a, const struct tensor *like, int64_t last,
                         int32_t wide) {
    bool has_blocks = a->descale_q && attention_blocks_of(a->descale_q, a->q).are_blocks;
    weftDataType_t type = (weftDataType_t)(has_blocks && dtype_is_fp8((weftDataType_t)like->type) ? wide : like->type);
    tensor_infer_dims(tensor, 4, (const int64_t[]){like->dims.at[0], like->dims.at[1], like->dims.at[2], last});
    tensor_infer_strides(tensor, like);
    tensor_infer_type(tensor, tensor_result_type(tensor, type, (weftDataType_t)a->math));
}

static void infer_amax(struct tensor *tensor, const struct attention *a) {
    tensor_infer_dims(tensor, 4, (const int64_t[]){1, 1, 1, 1});
    tensor_infer_type(tensor, statistics_type(a));
}

/* Dims of results follow from q and v, which have been checked. */
weftStatus_t attention_infer_forward(struct descriptor *descriptor) {
    struct sdpa_fwd_op *op = (struct sdpa_fwd_op *)descriptor;
    TRY(check_operands(descriptor, &op->a));
    infer_result(op->o, &op->a, op->a.q, op->a.v->dims.at[3], WEFT_DATA_BFLOAT16);
    /* These functions ignore absent results. */
    infer_statistics(op->stats, &op->a, 1);
    infer_statistics(op->max, &op->a, 1);
    infer_statistics(op->sum_exp, &op->a, 1);
    infer_statistics(op->rng_dump, &op->a, attention_keys(&op->a));
    infer_amax(op->amax_s, &op->a);
    infer_amax(op->amax_o, &op->a);
    return WEFT_STATUS_SUCCESS;
}

/* All rules for complete operands: those of both operations, then those for results and scales of forward. Absent
   operands are accepted. */
weftStatus_t attention_check_forward(const struct descriptor *descriptor) {
    const struct sdpa_fwd_op *op = (const struct sdpa_fwd_op *)descriptor;
    const int64_t *q = op->a.q->dims.at;
    TRY(check_attention(descriptor, &op->a,
                        descriptor_row_is_set(descriptor, WEFT_ATTR_OPERATION_SDPA_FWD_SCALE_VALUE_EXT)));
    /* o has the depth of the values; statistics have one number per query. */
    TRY(check_dims(descriptor, "o", op->o, 4, (const int64_t[]){q[0], q[1], q[2], op->a.v->dims.at[3]}));
    TRY(check_dims(descriptor, "stats", op->stats, 4, (const int64_t[]){q[0], q[1], q[2], 1}));
    TRY(check_dims(descriptor, "score_max", op->max, 4, (const int64_t[]){q[0], q[1], q[2], 1}));
    TRY(check_dims(descriptor, "score_sum_exp", op->sum_exp, 4, (const int64_t[]){q[0], q[1], q[2], 1}));
    /* Scales of the softmax and of the result are single numbers. */
    TRY(check_one_scale(descriptor, "descale_s", op->descale_s));
    TRY(check_one_scale(descriptor, "scale_s", op->scale_s));
    TRY(check_one_scale(descriptor, "scale_o", op->scale_o));
    TRY(check_scalar(descriptor, "amax_s", op->amax_s));
    TRY(check_scalar(descriptor, "amax_o", op->amax_o));
    if (op->rng_dump && op->a.dropout_mask)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: rng_dump returns random numbers, but dropout_mask replaces these. Set only one of them.",
             descriptor_label(descriptor));
    return check_dims(descriptor, "rng_dump", op->rng_dump, 4,
                      (const int64_t[]){q[0], q[1], q[2], attention_keys(&op->a)});
}

/* Rejects gradients of a boolean bias and of an absent sink here, because their dims cannot be inferred. */
weftStatus_t attention_infer_backward(struct descriptor *descriptor) {
    struct sdpa_bwd_op *op = (struct sdpa_bwd_op *)descriptor;
    TRY(check_operands(descriptor, &op->a));
    TRY(score_modifier_infer(&op->a.modifier, descriptor));
    /* Gradients of FP8 operands with block scales have the type of o, which is wide. */
    infer_result(op->dq, &op->a, op->a.q, op->a.q->dims.at[3], op->o->type);
    infer_result(op->dk, &op->a, op->a.k, op->a.k->dims.at[3], op->o->type);
    infer_result(op->dv, &op->a, op->a.v, op->a.v->dims.at[3], op->o->type);
    infer_amax(op->amax_dq, &op->a);
    infer_amax(op->amax_dk, &op->a);
    infer_amax(op->amax_dv, &op->a);
    infer_amax(op->amax_dp, &op->a);
    if (op->dbias && op->a.bias && !dtype_is_boolean((weftDataType_t)op->a.bias->type))
        tensor_infer_like(op->dbias, op->a.bias);
    else if (op->dbias)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: dBias is set, but bias is %s. Leave dBias unset.",
             descriptor_label(descriptor), op->a.bias ? "boolean, which has no gradient" : "not");
    /* The gradient of a sink has the dims of the sink: one number per head. */
    if (op->dsink && op->a.sink)
        tensor_infer_like(op->dsink, op->a.sink);
    else if (op->dsink)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: dSink_token is set, but sink_token is not. Set both or none.",
             descriptor_label(descriptor));
    return WEFT_STATUS_SUCCESS;
}

/* Checks all scales, and the operands that are given a second time. Accepts NULL everywhere, but rejects scales of
   absent operands. */
static weftStatus_t check_backward_scales(const struct sdpa_bwd_op *op) {
    const struct descriptor *d = &op->base;
    TRY(check_dims(d, "q_T", op->q_t, 4, op->a.q->dims.at));
    TRY(check_dims(d, "k_T", op->k_t, 4, op->a.k->dims.at));
    TRY(check_dims(d, "dO_T", op->do_t, 4, op->d_o->dims.at));
    TRY(check_dims(d, "dO_f16", op->do_f16, 4, op->d_o->dims.at));
    TRY(attention_check_scales(d, "descale_o", op->descale_o, op->o, 3, true));
    TRY(attention_check_scales(d, "descale_dO", op->descale_do, op->d_o, 3, true));
    /* Operands that are given a second time in another layout or type, each with its own scales. */
    const struct {
        const char *key, *scales_key;
        const struct tensor *again, *scales;
        int dims;
    } copies[] = {{"q_T", "descale_q_T", op->q_t, op->descale_q_t, 2},
                  {"k_T", "descale_k_T", op->k_t, op->descale_k_t, 3},
                  {"dO_T", "descale_dO_T", op->do_t, op->descale_do_t, 3}};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        if (copies[i].scales && !copies[i].again)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s is set, but %s is not. Set both or none.", descriptor_label(d),
                 copies[i].scales_key, copies[i].key);
        TRY(attention_check_scales(d, copies[i].scales_key, copies[i].scales, copies[i].again, copies[i].dims, true));
    }
    const struct {
        const char *key;
        const struct tensor *scale;
    } scales[] = {{"descale_s", op->descale_s}, {"descale_dP", op->descale_dp}, {"scale_s", op->scale_s},
                  {"scale_dP", op->scale_dp},   {"scale_dQ", op->scale_dq},     {"scale_dK", op->scale_dk},
                  {"scale_dV", op->scale_dv}};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        TRY(check_one_scale(d, scales[i].key, scales[i].scale));
    TRY(check_scalar(d, "amax_dQ", op->amax_dq));
    TRY(check_scalar(d, "amax_dK", op->amax_dk));
    TRY(check_scalar(d, "amax_dV", op->amax_dv));
    return check_scalar(d, "amax_dP", op->amax_dp);
}

/* The same for backward. Gradients have the dims of the corresponding operands. */
weftStatus_t attention_check_backward(const struct descriptor *descriptor) {
    const struct sdpa_bwd_op *op = (const struct sdpa_bwd_op *)descriptor;
    const int64_t *q = op->a.q->dims.at, *k = op->a.k->dims.at, *v = op->a.v->dims.at;
    TRY(check_attention(descriptor, &op->a,
                        descriptor_row_is_set(descriptor, WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_VALUE_EXT)));
    /* Results of the forward pass must match its operands. */
    TRY(check_dims(descriptor, "o", op->o, 4, (const int64_t[]){q[0], q[1], q[2], v[3]}));
    TRY(check_dims(descriptor, "dO", op->d_o, 4, (const int64_t[]){q[0], q[1], q[2], v[3]}));
    TRY(check_dims(descriptor, "stats", op->stats, 4, (const int64_t[]){q[0], q[1], q[2], 1}));
    /* Backward does not support pages: k and v are ordinary tensors. */
    TRY(check_dims(descriptor, "dQ", op->dq, 4, q));
    TRY(check_dims(descriptor, "dK", op->dk, 4, k));
    TRY(check_dims(descriptor, "dV", op->dv, 4, v));
    if (op->dbias)
        TRY(check_dims(descriptor, "dBias", op->dbias, 4, op->a.bias->dims.at));
    TRY(check_backward_scales(op));
    return check_dims(descriptor, "dSink_token", op->dsink, 4, (const int64_t[]){1, q[1], 1, 1});
}
