/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_fwd: o = dropout(softmax(mask(modify(scale q k^T) + bias + alibi), sink)) v, and sdpa_bwd, its gradients.
   Scales: operands of narrow types are multiplied by their descales first. The softmax is multiplied by scale_s, may
   then be rounded to FP8, and is multiplied by descale_s; o is multiplied by scale_o. In the backward pass, the softmax
   times scale_s is rounded to q's type if that is FP8, and the gradient of q k^T times scale_dP to that of dO, before
   they are multiplied by descale_s and descale_dP; dQ, dK and dV are multiplied by their scales. If q_T, k_T, dO_T or
   dO_f16 are given, dK, dQ, dV and dO o are computed from them.
   Visibility: query i sees key j if both are within the lengths in use, the boolean bias is true and, with shift = 0
   (TOP_LEFT) or keys - queries in use (BOTTOM_RIGHT), j <= i + shift + right and j > i + shift - left. Hidden keys are
   never read, including those that a bias of -inf hides. Rows without a key have o = 0, stats = max = -inf, sum_exp = 0
   (with a sink: that of the sink) and no gradient; the same holds for rows after the queries in use, even with a sink.
   Dropout keeps a weight if the rng op of the same seed and offset yields BERNOULLI(1 - p) over [B, Hq, Sq, Skv]; a
   mask multiplies it instead, and is not read for hidden keys. Kept weights are multiplied by dropout_scale, or by 1 /
   (1 - p). */
#include "graph/ops/attention.h"
#include "base/number.h"
#include "base/philox.h"
#include "graph/ops/attention.h"
#include "graph/ops/attention_indices.h"
#include "graph/ops/attention_reference.h"
#include "graph/ops/attention_rules.h"
#include "graph/ops/softmax.h"

#include <string.h>

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Rows are in the order of the documentation. B: batch entries; Hq, Hk, Hv: heads of queries, keys, values; Sq, Skv:
   their rows; Dqk, Dv: elements of a row. Both operations share the fields a.*, so that checks and the reference of the
   scores are written once. */
#define FWD_TENSOR(role, field, name, key, ...)                                                                        \
    TENSOR_ROW(ROLE_##role, struct sdpa_fwd_op, field, WEFT_ATTR_OPERATION_SDPA_FWD_##name, key, __VA_ARGS__)
#define FWD_VALUE(type, field, name, key, ...)                                                                         \
    VALUE_ROW(WEFT_TYPE_##type, struct sdpa_fwd_op, field, WEFT_ATTR_OPERATION_SDPA_FWD_##name, key, __VA_ARGS__)
static const struct row forward_rows[] = {
    FWD_TENSOR(INPUT, a.q, QDESC, "q", .required = true, .shape = "[B, Hq, Sq, Dqk]", .doc = "queries"),
    FWD_TENSOR(INPUT, a.k, KDESC, "k", .required = true, .shape = "[B, Hk, Skv, Dqk], Hk divides Hq", .doc = "keys"),
    FWD_TENSOR(INPUT, a.v, VDESC, "v", .required = true, .shape = "[B, Hv, Skv, Dv], Hv divides Hq", .doc = "values"),
    FWD_TENSOR(OUTPUT, o, ODESC, "o", .required = true, .shape = "[B, Hq, Sq, Dv]", .doc = "result"),
    /* Statistics: backward needs stats; score_max and score_sum_exp are its two parts. */
    FWD_TENSOR(OUTPUT, stats, STATSDESC, "stats", .shape = "[B, Hq, Sq, 1]",
               .doc = "natural log of each row's sum of exponentials, sink included"),
    FWD_TENSOR(OUTPUT, max, MAX_DESC_EXT, "score_max", .shape = "[B, Hq, Sq, 1]",
               .doc = "largest score of each row, sink included"),
    FWD_TENSOR(OUTPUT, sum_exp, SUM_EXP_DESC_EXT, "score_sum_exp", .shape = "[B, Hq, Sq, 1]",
               .doc = "sum of e^(score - score_max) of each row, sink included"),
    FWD_TENSOR(OUTPUT, rng_dump, DROPOUT_RNG_DUMP_DESC, "rng_dump", .shape = "[B, Hq, Sq, Skv]",
               .doc = "1 if dropout keeps a weight, otherwise 0"),
    /* The scale is a tensor, as in cuDNN, or a number, which kernels use as a constant. */
    FWD_TENSOR(INPUT, a.scale, SCALEDESC, "attn_scale", .shape = "[1, 1, 1, 1]",
               .doc = "factor of q k^T; unset: attn_scale_value"),
    FWD_VALUE(DOUBLE, a.scale_value, SCALE_VALUE_EXT, "attn_scale_value", .initial = 1,
              .doc = "factor of q k^T as a number"),
    FWD_TENSOR(INPUT, a.bias, BIAS_DESC_EXT, "bias", .shape = "[B, Hq, Sq, Skv] or 1s",
               .doc = "added to the scaled scores; a boolean bias keeps scores where it is true"),
    /* Lengths in use: elements after them are never read. cu_seq_len_*, below, are an alternative, as cumulative
       sums. */
    FWD_TENSOR(INPUT, a.seq_len_q, SEQ_LEN_QDESC, "seq_len_q", .shape = "[B, 1, 1, 1]",
               .doc = "queries in use of each batch, INT32 or INT64; unset: all"),
    FWD_TENSOR(INPUT, a.seq_len_kv, SEQ_LEN_KVDESC, "seq_len_kv", .shape = "[B, 1, 1, 1]",
               .doc = "keys in use of each batch, INT32 or INT64; unset: all"),
    /* Pages: k and v are containers then, and the keys of a sequence are stored in blocks of equal size anywhere in
       them. */
    FWD_TENSOR(INPUT, a.k_table, PAGE_TABLE_KDESC, "paged_attention_k_table", .shape = "[B, 1, pages, 1]",
               .doc = "page of each block of keys, INT32 or INT64; k is then [container, Hk, page size, Dqk]; may be "
                      "ragged; requires seq_len_kv"),
    FWD_TENSOR(INPUT, a.v_table, PAGE_TABLE_VDESC, "paged_attention_v_table", .shape = "[B, 1, pages, 1]",
               .doc = "the same for v, which is then [container, Hv, page size, Dv]"),
    FWD_VALUE(INT64, a.most_keys, MAX_SEQ_LEN_KV_EXT, "paged_attention_max_seq_len_kv", .least = 1, .most = INT32_MAX,
              .doc = "Skv, if there are page tables; unset: all keys that the tables reach"),
    /* The band of keys that a query sees. Bounds of 2^60 hide nothing, and sums of them fit into 64 bits. */
    FWD_VALUE(INT64, a.left_bound, LEFT_BOUND_EXT, "diagonal_band_left_bound", .initial = ATTENTION_UNBOUNDED,
              .least = -ATTENTION_UNBOUNDED, .most = ATTENTION_UNBOUNDED,
              .doc = "keeps col > row + shift - bound; unset: all on the left"),
    FWD_VALUE(INT64, a.right_bound, RIGHT_BOUND_EXT, "diagonal_band_right_bound", .initial = ATTENTION_UNBOUNDED,
              .least = -ATTENTION_UNBOUNDED, .most = ATTENTION_UNBOUNDED,
              .doc = "keeps col <= row + shift + bound; 0: causal; unset: all on the right"),
    FWD_VALUE(INT64, a.alignment, ALIGNMENT_EXT, "diagonal_alignment", .initial = WEFT_DIAGONAL_TOP_LEFT,
              .least = WEFT_DIAGONAL_TOP_LEFT, .most = WEFT_DIAGONAL_BOTTOM_RIGHT,
              .doc = "shift of the bounds: weftDiagonalAlignment_t"),
    FWD_VALUE(BOOLEAN, a.alibi, ALIBI_EXT, "use_alibi_mask", .doc = "true: adds slope (col - row) to the scores"),
    FWD_TENSOR(INPUT, a.sink, SINK_DESC_EXT, "sink_token", .shape = "[1, Hq, 1, 1]",
               .doc = "a score per head that is included in the softmax's sum and has no value"),
    /* Dropout keeps the weights that an rng operation with this seed and offset keeps, so that backward can recompute
       the mask. */
    FWD_VALUE(FLOAT, a.dropout_probability, DROPOUT_PROBABILITY, "dropout_probability",
              .doc = "probability that a weight is dropped, 0..1; the others are multiplied by 1 / (1 - p)"),
    FWD_TENSOR(INPUT, a.dropout_seed, DROPOUT_SEED_DESC, "dropout_seed", .shape = "[1, 1, 1, 1]",
               .doc = "seed of dropout, INT32 or INT64"),
    FWD_TENSOR(INPUT, a.dropout_offset, DROPOUT_OFFSET_DESC, "dropout_offset", .shape = "[1, 1, 1, 1]",
               .doc = "selects one of the seed's sequences, INT32 or INT64; unset: 0"),
    FWD_TENSOR(INPUT, a.dropout_mask, DROPOUT_MASK_DESC_EXT, "dropout_mask", .shape = "[B, Hq, Sq, Skv] or 1s",
               .doc = "factor of each weight, instead of a seed; a boolean mask keeps weights where it is true"),
    FWD_TENSOR(INPUT, a.dropout_scale, DROPOUT_SCALE_DESC_EXT, "dropout_scale", .shape = "[1, 1, 1, 1]",
               .doc = "factor of kept weights, not negative; unset: 1 / (1 - p)"),
    FWD_VALUE(BOOLEAN, unfuse_fma, UNFUSE_FMA, "unfuse_fma",
              .doc = "true: scores are scaled, rounded and then shifted, instead of in a fused multiply-add"),
    FWD_VALUE(DATA_TYPE, a.math, COMP_TYPE_EXT, "compute_data_type", .doc = "compute type of products and softmax"),
    FWD_TENSOR(INPUT, a.block_mask, BLOCK_MASK_DESC, "block_mask", .shape = "[B, Hq, ceil(Sq / 128), ceil(Skv / 128)]",
               .doc = "tiles of 128 x 128 scores to compute: INT8 or BYTE_BOOLEAN; UINT8 has 8 key tiles per byte, "
                      "lowest bit first; the first two extents may be 1"),
    /* The score modifier. Its operands are listed here, so that the graph knows what the attention reads. */
    FWD_VALUE(BACKEND_DESCRIPTOR, a.modifier.graph, SUBGRAPH, "subgraph",
              .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
              .doc = "score modifier: pointwise operations applied to the scaled scores before bias and masks"),
    FWD_VALUE(INT64, a.modifier.input_uid, SUBGRAPH_INPUT_UID, "subgraph_input_uid",
              .doc = "uid of its tensor with the scaled scores"),
    FWD_VALUE(INT64, a.modifier.output_uid, SUBGRAPH_OUTPUT_UID, "subgraph_output_uid",
              .doc = "uid of its tensor with the modified scores"),
    FWD_TENSOR(INPUT, a.modifier.operands, SUBGRAPH_OPERANDS_EXT, "subgraph_operands", .storage = STORE_LIST,
               .shape = "[B, Hq, Sq, Skv] or 1s", .doc = "operands other than the scores; determined automatically"),
    FWD_VALUE(BACKEND_DESCRIPTOR, softmax, SOFTMAX_DESC, "softmax", .target = WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR,
              .doc = "statistics and sink as a nested operation, whose tensors become those of the attention"),
    FWD_TENSOR(INPUT, a.cu_seq_len_q, CU_SEQ_LEN_QDESC, "cu_seq_len_q", .shape = "[B + 1, 1, 1, 1]",
               .doc = "cumulative number of queries in use, INT32 or INT64, instead of seq_len_q"),
    FWD_TENSOR(INPUT, a.cu_seq_len_kv, CU_SEQ_LEN_KVDESC, "cu_seq_len_kv", .shape = "[B + 1, 1, 1, 1]",
               .doc = "cumulative number of keys in use, INT32 or INT64, instead of seq_len_kv"),
    /* Scales of narrow types. Descales multiply operands after loads, scales multiply results before stores; the next
       step's scale is computed from amax. */
    FWD_TENSOR(INPUT, a.descale_q, DESCALE_QDESC, "descale_q",
               .shape = "[B, Hq, 1, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dqk / 32)]",
               .doc = "factor of q, applied first"),
    FWD_TENSOR(
        INPUT, a.descale_k, DESCALE_KDESC, "descale_k",
        .shape =
            "[B, Hk, Skv, 1] or 1s; block scales: [B, Hk, Skv, ceil(Dqk / 32)]; pages: [container, Hk, page size, ..]",
        .doc = "factor of k, applied first"),
    FWD_TENSOR(
        INPUT, a.descale_v, DESCALE_VDESC, "descale_v",
        .shape =
            "[B, Hv, Skv, 1] or 1s; block scales: [B, Hv, ceil(Skv / 32), Dv]; pages: [container, Hv, page size, ..]",
        .doc = "factor of v, applied first"),
    FWD_TENSOR(INPUT, descale_s, DESCALE_SDESC, "descale_s", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the softmax after scale_s"),
    FWD_TENSOR(INPUT, scale_s, SCALE_SDESC, "scale_s", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the softmax before it is rounded to FP8, if it is"),
    FWD_TENSOR(INPUT, scale_o, SCALE_ODESC, "scale_o", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the result before it is stored as o"),
    FWD_TENSOR(OUTPUT, amax_s, AMAX_SDESC, "amax_s", .shape = "[1, 1, 1, 1]",
               .doc = "largest value of the softmax, before scale_s"),
    FWD_TENSOR(OUTPUT, amax_o, AMAX_ODESC, "amax_o", .shape = "[1, 1, 1, 1]",
               .doc = "largest magnitude of the result, before scale_o"),
};

/* The operands and options of the forward pass, its results, and the gradients. The options must be the same as in the
   forward pass, because only the statistics of the scores are stored. */
#define BWD_TENSOR(role, field, name, key, ...)                                                                        \
    TENSOR_ROW(ROLE_##role, struct sdpa_bwd_op, field, WEFT_ATTR_OPERATION_SDPA_BWD_##name, key, __VA_ARGS__)
#define BWD_VALUE(type, field, name, key, ...)                                                                         \
    VALUE_ROW(WEFT_TYPE_##type, struct sdpa_bwd_op, field, WEFT_ATTR_OPERATION_SDPA_BWD_##name, key, __VA_ARGS__)
static const struct row backward_rows[] = {
    BWD_TENSOR(INPUT, a.q, QDESC, "q", .required = true, .shape = "[B, Hq, Sq, Dqk]", .doc = "queries"),
    BWD_TENSOR(INPUT, a.k, KDESC, "k", .required = true, .shape = "[B, Hk, Skv, Dqk]", .doc = "keys"),
    BWD_TENSOR(INPUT, a.v, VDESC, "v", .required = true, .shape = "[B, Hv, Skv, Dv]", .doc = "values"),
    BWD_TENSOR(INPUT, o, ODESC, "o", .required = true, .shape = "[B, Hq, Sq, Dv]", .doc = "forward result"),
    BWD_TENSOR(INPUT, d_o, DODDESC, "dO", .required = true, .shape = "[B, Hq, Sq, Dv]",
               .doc = "gradient of the forward result"),
    BWD_TENSOR(INPUT, stats, STATSDESC, "stats", .required = true, .shape = "[B, Hq, Sq, 1]",
               .doc = "statistics that the forward pass wrote"),
    /* Gradients. dK and dV have the heads of k and v: they are summed over the query heads that share one. */
    BWD_TENSOR(OUTPUT, dq, DQDESC, "dQ", .required = true, .shape = "[B, Hq, Sq, Dqk]", .doc = "gradient of q"),
    BWD_TENSOR(OUTPUT, dk, DKDESC, "dK", .required = true, .shape = "[B, Hk, Skv, Dqk]",
               .doc = "gradient of k, summed over the query heads that share it"),
    BWD_TENSOR(OUTPUT, dv, DVDESC, "dV", .required = true, .shape = "[B, Hv, Skv, Dv]",
               .doc = "gradient of v, summed over the query heads that share it"),
    BWD_TENSOR(OUTPUT, dbias, DBIAS_DESC, "dBias", .shape = "[B, Hq, Sq, Skv] or 1s, like bias",
               .doc = "gradient of the bias, summed over its extents of 1"),
    BWD_TENSOR(OUTPUT, dsink, DSINK_DESC, "dSink_token", .shape = "[1, Hq, 1, 1]", .doc = "gradient of the sink"),
    BWD_TENSOR(INPUT, a.scale, SCALEDESC, "attn_scale", .shape = "[1, 1, 1, 1]",
               .doc = "factor of q k^T; unset: attn_scale_value"),
    BWD_VALUE(DOUBLE, a.scale_value, SCALE_VALUE_EXT, "attn_scale_value", .initial = 1,
              .doc = "factor of q k^T as a number"),
    BWD_TENSOR(INPUT, a.bias, BIAS_DESC_EXT, "bias", .shape = "[B, Hq, Sq, Skv] or 1s",
               .doc = "the bias of the forward pass"),
    BWD_TENSOR(INPUT, a.seq_len_q, SEQ_LEN_QDESC, "seq_len_q", .shape = "[B, 1, 1, 1]",
               .doc = "queries in use of each batch, INT32 or INT64; unset: all"),
    BWD_TENSOR(INPUT, a.seq_len_kv, SEQ_LEN_KVDESC, "seq_len_kv", .shape = "[B, 1, 1, 1]",
               .doc = "keys in use of each batch, INT32 or INT64; unset: all"),
    BWD_VALUE(INT64, a.left_bound, LEFT_BOUND_EXT, "diagonal_band_left_bound", .initial = ATTENTION_UNBOUNDED,
              .least = -ATTENTION_UNBOUNDED, .most = ATTENTION_UNBOUNDED,
              .doc = "the left bound of the forward pass; unset: all on the left"),
    BWD_VALUE(INT64, a.right_bound, RIGHT_BOUND_EXT, "diagonal_band_right_bound", .initial = ATTENTION_UNBOUNDED,
              .least = -ATTENTION_UNBOUNDED, .most = ATTENTION_UNBOUNDED,
              .doc = "the right bound of the forward pass; unset: all on the right"),
    BWD_VALUE(INT64, a.alignment, ALIGNMENT_EXT, "diagonal_alignment", .initial = WEFT_DIAGONAL_TOP_LEFT,
              .least = WEFT_DIAGONAL_TOP_LEFT, .most = WEFT_DIAGONAL_BOTTOM_RIGHT,
              .doc = "the alignment of the forward pass: weftDiagonalAlignment_t"),
    BWD_VALUE(BOOLEAN, a.alibi, ALIBI_EXT, "use_alibi_mask",
              .doc = "true: the forward pass added slope (col - row) to the scores"),
    BWD_TENSOR(INPUT, a.block_mask, BLOCK_MASK_DESC_EXT, "block_mask",
               .shape = "[B, Hq, ceil(Sq / 128), ceil(Skv / 128)]", .doc = "the block mask of the forward pass"),
    BWD_TENSOR(INPUT, a.sink, SINK_DESC, "sink_token", .shape = "[1, Hq, 1, 1]", .doc = "the sink of the forward pass"),
    BWD_VALUE(FLOAT, a.dropout_probability, DROPOUT_PROBABILITY, "dropout_probability",
              .doc = "probability with which the forward pass dropped a weight, 0..1"),
    BWD_TENSOR(INPUT, a.dropout_seed, DROPOUT_SEED_DESC, "dropout_seed", .shape = "[1, 1, 1, 1]",
               .doc = "seed of the forward pass, INT32 or INT64"),
    BWD_TENSOR(INPUT, a.dropout_offset, DROPOUT_OFFSET_DESC, "dropout_offset", .shape = "[1, 1, 1, 1]",
               .doc = "offset of the forward pass, INT32 or INT64; unset: 0"),
    BWD_TENSOR(INPUT, a.dropout_mask, DROPOUT_MASK_DESC_EXT, "dropout_mask", .shape = "[B, Hq, Sq, Skv] or 1s",
               .doc = "the mask of the forward pass"),
    BWD_TENSOR(INPUT, a.dropout_scale, DROPOUT_SCALE_DESC_EXT, "dropout_scale", .shape = "[1, 1, 1, 1]",
               .doc = "the scale of the forward pass"),
    BWD_VALUE(DATA_TYPE, a.math, COMP_TYPE_EXT, "compute_data_type", .doc = "compute type of products and softmax"),
    /* Hints for kernels; they may change the order of sums only. */
    BWD_VALUE(INT64, max_total_seq_len_q, MAX_TOTAL_SEQ_LEN_Q, "max_total_seq_len_q",
              .doc = "upper bound of the total number of queries, a hint"),
    BWD_VALUE(INT64, max_total_seq_len_kv, MAX_TOTAL_SEQ_LEN_KV, "max_total_seq_len_kv",
              .doc = "upper bound of the total number of keys, a hint"),
    BWD_VALUE(BOOLEAN, is_deterministic, IS_DETERMINISTIC_EXT, "is_deterministic",
              .doc = "true: results are bitwise reproducible"),
    BWD_VALUE(BACKEND_DESCRIPTOR, a.modifier.graph, SUBGRAPH, "subgraph",
              .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
              .doc = "score modifier: pointwise operations applied to the scaled scores before bias and masks"),
    BWD_VALUE(INT64, a.modifier.input_uid, SUBGRAPH_INPUT_UID, "subgraph_input_uid",
              .doc = "uid of its tensor with the scaled scores"),
    BWD_VALUE(INT64, a.modifier.output_uid, SUBGRAPH_OUTPUT_UID, "subgraph_output_uid",
              .doc = "uid of its tensor with the modified scores"),
    BWD_TENSOR(INPUT, a.modifier.operands, SUBGRAPH_OPERANDS_EXT, "subgraph_operands", .storage = STORE_LIST,
               .shape = "[B, Hq, Sq, Skv] or 1s", .doc = "operands other than the scores; determined automatically"),
    /* The gradient of the modifier: derived from its operations, or given by further operations of the same graph. */
    BWD_VALUE(INT64, a.modifier.gradient_input_uid, SUBGRAPH_GRADIENT_INPUT_UID_EXT, "subgraph_gradient_input_uid",
              .doc = "uid of its tensor with the gradient of the modified scores; unset: gradients are derived"),
    BWD_VALUE(INT64, a.modifier.gradient_output_uid, SUBGRAPH_GRADIENT_OUTPUT_UID_EXT, "subgraph_gradient_output_uid",
              .doc = "uid of its tensor with the gradient of the scaled scores"),
    BWD_VALUE(INT64, a.modifier.gradient_uids, SUBGRAPH_GRADIENT_UIDS_EXT, "subgraph_gradient_uids",
              .storage = STORE_LIST, .doc = "uids of tensors that it reads and whose gradients are requested"),
    BWD_TENSOR(OUTPUT, a.modifier.gradients, SUBGRAPH_GRADIENTS_EXT, "subgraph_gradients", .storage = STORE_LIST,
               .shape = "[B, Hq, Sq, Skv] or 1s, like these tensors",
               .doc = "these gradients, each summed over its extents of 1"),
    BWD_TENSOR(INPUT, a.cu_seq_len_q, CU_SEQ_LEN_QDESC, "cu_seq_len_q", .shape = "[B + 1, 1, 1, 1]",
               .doc = "cumulative number of queries in use, INT32 or INT64, instead of seq_len_q"),
    BWD_TENSOR(INPUT, a.cu_seq_len_kv, CU_SEQ_LEN_KVDESC, "cu_seq_len_kv", .shape = "[B + 1, 1, 1, 1]",
               .doc = "cumulative number of keys in use, INT32 or INT64, instead of seq_len_kv"),
    /* Scales as in the forward pass. dP is the gradient of q k^T; it is an operand of dQ and dK, and may be rounded to
       FP8 for them. */
    BWD_TENSOR(INPUT, a.descale_q, DESCALE_QDESC_EXT, "descale_q",
               .shape = "[B, Hq, 1, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dqk / 32)]",
               .doc = "factor of q, applied first"),
    BWD_TENSOR(INPUT, a.descale_k, DESCALE_KDESC_EXT, "descale_k",
               .shape = "[B, Hk, Skv, 1] or 1s; block scales: [B, Hk, Skv, ceil(Dqk / 32)]",
               .doc = "factor of k, applied first"),
    BWD_TENSOR(INPUT, a.descale_v, DESCALE_VDESC_EXT, "descale_v",
               .shape = "[B, Hv, Skv, 1] or 1s; block scales: [B, Hv, Skv, ceil(Dv / 32)]",
               .doc = "factor of v, applied first"),
    BWD_TENSOR(INPUT, descale_o, DESCALE_ODESC_EXT, "descale_o",
               .shape = "[B, Hq, Sq, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dv / 32)]",
               .doc = "factor of o, applied first"),
    BWD_TENSOR(INPUT, descale_do, DESCALE_DODESC_EXT, "descale_dO",
               .shape = "[B, Hq, Sq, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dv / 32)]",
               .doc = "factor of dO, applied first"),
    BWD_TENSOR(INPUT, descale_s, DESCALE_SDESC_EXT, "descale_s", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the softmax after scale_s"),
    BWD_TENSOR(INPUT, descale_dp, DESCALE_DPDESC_EXT, "descale_dP", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the gradient of q k^T after scale_dP"),
    BWD_TENSOR(INPUT, scale_s, SCALE_SDESC_EXT, "scale_s", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the softmax before it is rounded to q's type if that is FP8"),
    BWD_TENSOR(INPUT, scale_dq, SCALE_DQDESC_EXT, "scale_dQ", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the gradient before it is stored as dQ"),
    BWD_TENSOR(INPUT, scale_dk, SCALE_DKDESC_EXT, "scale_dK", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the gradient before it is stored as dK"),
    BWD_TENSOR(INPUT, scale_dv, SCALE_DVDESC_EXT, "scale_dV", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the gradient before it is stored as dV"),
    BWD_TENSOR(INPUT, scale_dp, SCALE_DPDESC_EXT, "scale_dP", .shape = "[1, 1, 1, 1]",
               .doc = "factor of the gradient of q k^T before it is rounded to dO's type if that is FP8"),
    BWD_TENSOR(OUTPUT, amax_dq, AMAX_DQDESC_EXT, "amax_dQ", .shape = "[1, 1, 1, 1]",
               .doc = "largest magnitude of dQ, before scale_dQ"),
    BWD_TENSOR(OUTPUT, amax_dk, AMAX_DKDESC_EXT, "amax_dK", .shape = "[1, 1, 1, 1]",
               .doc = "largest magnitude of dK, before scale_dK"),
    BWD_TENSOR(OUTPUT, amax_dv, AMAX_DVDESC_EXT, "amax_dV", .shape = "[1, 1, 1, 1]",
               .doc = "largest magnitude of dV, before scale_dV"),
    BWD_TENSOR(OUTPUT, amax_dp, AMAX_DPDESC_EXT, "amax_dP", .shape = "[1, 1, 1, 1]",
               .doc = "largest magnitude of the gradient of q k^T, before scale_dP"),
    /* Block scales run along the dimension that a product sums over. dK, dQ and dV sum over rows: for them, q, k and dO
       may be given a second time, with blocks along S. */
    BWD_TENSOR(INPUT, q_t, Q_TDESC_EXT, "q_T", .shape = "[B, Hq, Sq, Dqk]",
               .doc = "second copy of q, for dK; unset: q"),
    BWD_TENSOR(INPUT, k_t, K_TDESC_EXT, "k_T", .shape = "[B, Hk, Skv, Dqk]",
               .doc = "second copy of k, for dQ; unset: k"),
    BWD_TENSOR(INPUT, do_t, DO_TDESC_EXT, "dO_T", .shape = "[B, Hq, Sq, Dv]",
               .doc = "second copy of dO, for dV; unset: dO"),
    BWD_TENSOR(INPUT, do_f16, DO_F16DESC_EXT, "dO_f16", .shape = "[B, Hq, Sq, Dv]",
               .doc = "second copy of dO, for its products with o; unset: dO"),
    BWD_TENSOR(INPUT, descale_q_t, DESCALE_Q_TDESC_EXT, "descale_q_T",
               .shape = "[B, Hq, 1, 1] or 1s; block scales: [B, Hq, ceil(Sq / 32), Dqk]",
               .doc = "factor of q_T, applied first"),
    BWD_TENSOR(INPUT, descale_k_t, DESCALE_K_TDESC_EXT, "descale_k_T",
               .shape = "[B, Hk, Skv, 1] or 1s; block scales: [B, Hk, ceil(Skv / 32), Dqk]",
               .doc = "factor of k_T, applied first"),
    BWD_TENSOR(INPUT, descale_do_t, DESCALE_DO_TDESC_EXT, "descale_dO_T",
               .shape = "[B, Hq, Sq, 1] or 1s; block scales: [B, Hq, ceil(Sq / 32), Dv]",
               .doc = "factor of dO_T, applied first"),
};

/* Every attribute by its own name; the Python package implements the methods with cuDNN's names on top of these. */
static const struct method forward_methods[] = {
    {"sdpa_fwd",
     "attention, with every attribute under its own name : o = dropout(softmax(mask(scale q k^T + bias))) v", NULL,
     "q k v attn_scale=None attn_scale_value=None bias=None seq_len_q=None seq_len_kv=None "
     "diagonal_band_left_bound=None diagonal_band_right_bound=None diagonal_alignment=None use_alibi_mask=None "
     "sink_token=None dropout_probability=None dropout_seed=None dropout_offset=None dropout_mask=None "
     "dropout_scale=None rng_dump=None score_max=None score_sum_exp=None unfuse_fma=None block_mask=None "
     "paged_attention_k_table=None paged_attention_v_table=None "
     "paged_attention_max_seq_len_kv=None descale_q=None descale_k=None descale_v=None descale_s=None scale_s=None "
     "scale_o=None amax_s=None amax_o=None "
     "cu_seq_len_q=None cu_seq_len_kv=None subgraph=None subgraph_input_uid=None "
     "subgraph_output_uid=None",
     "o stats"},
    {0},
};

/* Required arguments first, then options, each by the key of its row. */
static const struct method backward_methods[] = {
    {"sdpa_bwd", "gradients of sdpa_fwd : dQ = scale dS k, dK = scale dS^T q, dV = P^T dO", NULL,
     "q k v o dO stats attn_scale=None attn_scale_value=None bias=None dBias=None seq_len_q=None seq_len_kv=None "
     "diagonal_band_left_bound=None diagonal_band_right_bound=None diagonal_alignment=None use_alibi_mask=None "
     "sink_token=None dSink_token=None dropout_probability=None dropout_seed=None dropout_offset=None "
     "dropout_mask=None dropout_scale=None max_total_seq_len_q=None max_total_seq_len_kv=None is_deterministic=None "
     "subgraph=None subgraph_input_uid=None "
     "subgraph_output_uid=None block_mask=None cu_seq_len_q=None cu_seq_len_kv=None "
     "subgraph_gradient_input_uid=None subgraph_gradient_output_uid=None "
     "subgraph_gradient_uids=None subgraph_gradients=None descale_q=None descale_k=None descale_v=None descale_o=None "
     "descale_dO=None descale_s=None descale_dP=None scale_s=None scale_dQ=None scale_dK=None scale_dV=None "
     "scale_dP=None amax_dQ=None amax_dK=None amax_dV=None amax_dP=None q_T=None k_T=None dO_T=None dO_f16=None "
     "descale_q_T=None descale_k_T=None descale_dO_T=None",
     "dQ dK dV"},
    {0},
};

/* Every result is packed [B, H, S, D], regardless of the order of the operands. */
static bool cudnn_strides(const struct descriptor *op, const struct tensor *out, struct dims *strides) {
    (void)op;
    *strides = dims_row_major(&out->dims);
    return true;
}

/* ---- Finalizing: the operands of a nested softmax and a score modifier are determined before all other checks ---- */

/* Refuses a nested softmax that differs from the one that attention computes. */
static weftStatus_t check_softmax(const struct sdpa_fwd_op *op, const struct softmax_op *softmax) {
    const char *label = descriptor_label(&op->base);
    const struct tensor *const inner[] = {softmax->x, softmax->y};
    /* Operands without dims, or of another rank, are refused later. */
    if (op->a.q->dims.count == 4 && op->a.k->dims.count == 4) {
        const struct dims *q = &op->a.q->dims, *x = &softmax->x->dims;
        const int64_t scores[] = {q->at[0], q->at[1], q->at[2], attention_keys(&op->a)};
        if (x->count != 4 || memcmp(x->at, scores, sizeof scores) != 0)
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                 "%s: x of the nested softmax has dims %s, expected %s. Give it the dims of the scores.", label,
                 tensor_dims_text(softmax->x), numbers_text(scores, 4));
    }
    for (int i = 0; i < 2; i++)
        if (!inner[i]->is_virtual)
            FAIL(WEFT_STATUS_NOT_SUPPORTED,
                 "%s: %s of the nested softmax is in memory, but attention stores neither scores nor weights. Make it "
                 "virtual.",
                 label, i ? "y" : "x");
    if (softmax_axis(softmax) != softmax->x->dims.count - 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED,
             "%s: the nested softmax has axis %lld, but attention normalizes the last dimension. Leave it unset.",
             label, (long long)softmax->axis);
    if (softmax->is_stats_log2 || softmax->is_infinite_nan)
        FAIL(WEFT_STATUS_NOT_SUPPORTED,
             "%s: the nested softmax has %s, which attention does not support. Leave it unset.", label,
             softmax->is_stats_log2 ? "stats_log2" : "infinite_is_nan");
    return WEFT_STATUS_SUCCESS;
}

/* Moves the sink and the statistics of a nested softmax into the attention's own attributes, from which everything else
   reads them. */
static weftStatus_t take_softmax(struct sdpa_fwd_op *op) {
    const struct softmax_op *softmax = (const struct softmax_op *)op->softmax;
    if (!softmax)
        return WEFT_STATUS_SUCCESS;
    TRY(check_softmax(op, softmax));
    const struct {
        struct tensor *inner, *own;
        weftBackendAttributeName_t name;
    } moves[] = {{softmax->sink, op->a.sink, WEFT_ATTR_OPERATION_SDPA_FWD_SINK_DESC_EXT},
                 {softmax->stats, op->stats, WEFT_ATTR_OPERATION_SDPA_FWD_STATSDESC},
                 {softmax->max, op->max, WEFT_ATTR_OPERATION_SDPA_FWD_MAX_DESC_EXT},
                 {softmax->sum_exp, op->sum_exp, WEFT_ATTR_OPERATION_SDPA_FWD_SUM_EXP_DESC_EXT}};
    for (int i = 0; i < 4; i++) {
        if (moves[i].inner && moves[i].own && moves[i].inner != moves[i].own)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s is set, and the nested softmax has another one. Set one of them.",
                 descriptor_label(&op->base), schema_find_row(op->base.schema, moves[i].name)->key);
        if (moves[i].inner && !moves[i].own)
            TRY(descriptor_set(&op->base, moves[i].name, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &moves[i].inner));
    }
    descriptor_unset(&op->base, WEFT_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t finalize_forward(struct descriptor *descriptor) {
    struct sdpa_fwd_op *op = (struct sdpa_fwd_op *)descriptor;
    TRY(take_softmax(op));
    TRY(score_modifier_resolve(&op->a.modifier, descriptor, WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID,
                               WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID,
                               WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_INPUT_UID_EXT,
                               WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_OUTPUT_UID_EXT));
    return op_finalize(descriptor);
}

static weftStatus_t finalize_backward(struct descriptor *descriptor) {
    struct sdpa_bwd_op *op = (struct sdpa_bwd_op *)descriptor;
    TRY(score_modifier_resolve(&op->a.modifier, descriptor, WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID,
                               WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID,
                               WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_INPUT_UID_EXT,
                               WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_OUTPUT_UID_EXT));
    return op_finalize(descriptor);
}

/* Copies the indices of values in the modifier's graph, which are not attributes. */
static weftStatus_t copy_forward(struct descriptor *target, const struct descriptor *source) {
    score_modifier_copy(&((struct sdpa_fwd_op *)target)->a.modifier, &((const struct sdpa_fwd_op *)source)->a.modifier);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t copy_backward(struct descriptor *target, const struct descriptor *source) {
    score_modifier_copy(&((struct sdpa_bwd_op *)target)->a.modifier, &((const struct sdpa_bwd_op *)source)->a.modifier);
    return WEFT_STATUS_SUCCESS;
}

static double score_count(const struct attention *a) {
    return (double)a->q->dims.at[0] * (double)a->q->dims.at[1] * (double)a->q->dims.at[2] * (double)attention_keys(a);
}

/* Two products, of depth Dqk and Dv, for each score; masks are ignored. */
static double forward_flops(const struct descriptor *descriptor) {
    const struct attention *a = &((const struct sdpa_fwd_op *)descriptor)->a;
    return 2 * score_count(a) * (double)(a->q->dims.at[3] + a->v->dims.at[3]);
}

/* Five products: scores and dP, then dQ, dK and dV. */
static double backward_flops(const struct descriptor *descriptor) {
    const struct attention *a = &((const struct sdpa_bwd_op *)descriptor)->a;
    return 2 * score_count(a) * (double)(3 * a->q->dims.at[3] + 2 * a->v->dims.at[3]);
}

const struct op sdpa_fwd_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR,
            .name = "sdpa_fwd",
            .doc = "attention: o = dropout(softmax(mask(scale q k^T + bias))) v",
            .size = sizeof(struct sdpa_fwd_op),
            ROWS(forward_rows),
            .finalize = finalize_forward,
            .copy = copy_forward,
            .op = &sdpa_fwd_op,
        },
    .methods = forward_methods,
    .takes_ragged = true,
    .takes_reordered = true,
    .infer = attention_infer_forward,
    .cudnn_strides = cudnn_strides,
    .check = attention_check_forward,
    .check_indices = attention_check_indices,
    .reference = attention_reference_forward,
    .scratch_bytes = attention_forward_scratch_bytes,
    .flops = forward_flops,
    .reference_rate = 5e8,
};

const struct op sdpa_bwd_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR,
            .name = "sdpa_bwd",
            .doc = "gradients of attention from its inputs, result and statistics",
            .size = sizeof(struct sdpa_bwd_op),
            ROWS(backward_rows),
            .finalize = finalize_backward,
            .copy = copy_backward,
            .op = &sdpa_bwd_op,
        },
    .methods = backward_methods,
    .takes_ragged = true,
    .takes_reordered = true,
    .infer = attention_infer_backward,
    .cudnn_strides = cudnn_strides,
    .check = attention_check_backward,
    .check_indices = attention_check_indices,
    .reference = attention_reference_backward,
    .scratch_bytes = attention_backward_scratch_bytes,
    .flops = backward_flops,
    .reference_rate = 5e8,
};
