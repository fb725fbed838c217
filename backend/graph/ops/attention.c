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
#include "graph/ops/attention_indices.h"
#include "graph/ops/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Rows are in the order of the documentation. B: batch entries; Hq, Hk, Hv: heads of queries, keys, values; Sq, Skv:
   their rows; Dqk, Dv: elements of a row. Both operations share the fields a.*, so that checks and the reference of the
   scores are written once. */
static const struct row forward_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.q, WEFT_ATTR_OPERATION_SDPA_FWD_QDESC, "q", .required = true,
               .shape = "[B, Hq, Sq, Dqk]", .doc = "queries"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.k, WEFT_ATTR_OPERATION_SDPA_FWD_KDESC, "k", .required = true,
               .shape = "[B, Hk, Skv, Dqk], Hk divides Hq", .doc = "keys"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.v, WEFT_ATTR_OPERATION_SDPA_FWD_VDESC, "v", .required = true,
               .shape = "[B, Hv, Skv, Dv], Hv divides Hq", .doc = "values"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_fwd_op, o, WEFT_ATTR_OPERATION_SDPA_FWD_ODESC, "o", .required = true,
               .shape = "[B, Hq, Sq, Dv]", .doc = "result"),
    /* Statistics: backward needs stats; score_max and score_sum_exp are its two parts. */
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_fwd_op, stats, WEFT_ATTR_OPERATION_SDPA_FWD_STATSDESC, "stats",
               .shape = "[B, Hq, Sq, 1]", .doc = "natural log of each row's sum of exponentials, sink included"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_fwd_op, max, WEFT_ATTR_OPERATION_SDPA_FWD_MAX_DESC_EXT, "score_max",
               .shape = "[B, Hq, Sq, 1]", .doc = "largest score of each row, sink included"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_fwd_op, sum_exp, WEFT_ATTR_OPERATION_SDPA_FWD_SUM_EXP_DESC_EXT, "score_sum_exp",
               .shape = "[B, Hq, Sq, 1]", .doc = "sum of e^(score - score_max) of each row, sink included"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_fwd_op, rng_dump, WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_RNG_DUMP_DESC,
               "rng_dump", .shape = "[B, Hq, Sq, Skv]", .doc = "1 if dropout keeps a weight, otherwise 0"),
    /* The scale is a tensor, as in cuDNN, or a number, which kernels use as a constant. */
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.scale, WEFT_ATTR_OPERATION_SDPA_FWD_SCALEDESC, "attn_scale",
               .shape = "[1, 1, 1, 1]", .doc = "factor of q k^T; unset: attn_scale_value"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct sdpa_fwd_op, a.scale_value, WEFT_ATTR_OPERATION_SDPA_FWD_SCALE_VALUE_EXT,
              "attn_scale_value", .initial = 1, .doc = "factor of q k^T as a number"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.bias, WEFT_ATTR_OPERATION_SDPA_FWD_BIAS_DESC_EXT, "bias",
               .shape = "[B, Hq, Sq, Skv] or 1s",
               .doc = "added to the scaled scores; a boolean bias keeps scores where it is true"),
    /* Lengths in use: elements after them are never read. cu_seq_len_*, below, are an alternative, as cumulative
       sums. */
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.seq_len_q, WEFT_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, "seq_len_q",
               .shape = "[B, 1, 1, 1]", .doc = "queries in use of each batch, INT32 or INT64; unset: all"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.seq_len_kv, WEFT_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, "seq_len_kv",
               .shape = "[B, 1, 1, 1]", .doc = "keys in use of each batch, INT32 or INT64; unset: all"),
    /* Pages: k and v are containers then, and the keys of a sequence are stored in blocks of equal size anywhere in
       them. */
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.k_table, WEFT_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_KDESC,
               "paged_attention_k_table", .shape = "[B, 1, pages, 1]",
               .doc = "page of each block of keys, INT32 or INT64; k is then [container, Hk, page size, Dqk]; may be "
                      "ragged; requires seq_len_kv"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.v_table, WEFT_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_VDESC,
               "paged_attention_v_table", .shape = "[B, 1, pages, 1]",
               .doc = "the same for v, which is then [container, Hv, page size, Dv]"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_fwd_op, a.most_keys, WEFT_ATTR_OPERATION_SDPA_FWD_MAX_SEQ_LEN_KV_EXT,
              "paged_attention_max_seq_len_kv", .least = 1, .most = INT32_MAX,
              .doc = "Skv, if there are page tables; unset: all keys that the tables reach"),
    /* The band of keys that a query sees. Bounds of 2^60 hide nothing, and sums of them fit into 64 bits. */
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_fwd_op, a.left_bound, WEFT_ATTR_OPERATION_SDPA_FWD_LEFT_BOUND_EXT,
              "diagonal_band_left_bound", .initial = ATTENTION_UNBOUNDED, .least = -ATTENTION_UNBOUNDED,
              .most = ATTENTION_UNBOUNDED, .doc = "keeps col > row + shift - bound; unset: all on the left"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_fwd_op, a.right_bound, WEFT_ATTR_OPERATION_SDPA_FWD_RIGHT_BOUND_EXT,
              "diagonal_band_right_bound", .initial = ATTENTION_UNBOUNDED, .least = -ATTENTION_UNBOUNDED,
              .most = ATTENTION_UNBOUNDED,
              .doc = "keeps col <= row + shift + bound; 0: causal; unset: all on the right"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_fwd_op, a.alignment, WEFT_ATTR_OPERATION_SDPA_FWD_ALIGNMENT_EXT,
              "diagonal_alignment", .initial = WEFT_DIAGONAL_TOP_LEFT, .least = WEFT_DIAGONAL_TOP_LEFT,
              .most = WEFT_DIAGONAL_BOTTOM_RIGHT, .doc = "shift of the bounds: weftDiagonalAlignment_t"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct sdpa_fwd_op, a.alibi, WEFT_ATTR_OPERATION_SDPA_FWD_ALIBI_EXT, "use_alibi_mask",
              .doc = "true: adds slope (col - row) to the scores"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.sink, WEFT_ATTR_OPERATION_SDPA_FWD_SINK_DESC_EXT, "sink_token",
               .shape = "[1, Hq, 1, 1]",
               .doc = "a score per head that is included in the softmax's sum and has no value"),
    /* Dropout keeps the weights that an rng operation with this seed and offset keeps, so that backward can recompute
       the mask. */
    VALUE_ROW(WEFT_TYPE_FLOAT, struct sdpa_fwd_op, a.dropout_probability,
              WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_PROBABILITY, "dropout_probability",
              .doc = "probability that a weight is dropped, 0..1; the others are multiplied by 1 / (1 - p)"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.dropout_seed, WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_SEED_DESC,
               "dropout_seed", .shape = "[1, 1, 1, 1]", .doc = "seed of dropout, INT32 or INT64"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.dropout_offset, WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_OFFSET_DESC,
               "dropout_offset", .shape = "[1, 1, 1, 1]",
               .doc = "selects one of the seed's sequences, INT32 or INT64; unset: 0"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.dropout_mask, WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_MASK_DESC_EXT,
               "dropout_mask", .shape = "[B, Hq, Sq, Skv] or 1s",
               .doc = "factor of each weight, instead of a seed; a boolean mask keeps weights where it is true"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.dropout_scale, WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_SCALE_DESC_EXT,
               "dropout_scale", .shape = "[1, 1, 1, 1]",
               .doc = "factor of kept weights, not negative; unset: 1 / (1 - p)"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct sdpa_fwd_op, unfuse_fma, WEFT_ATTR_OPERATION_SDPA_FWD_UNFUSE_FMA, "unfuse_fma",
              .doc = "true: scores are scaled, rounded and then shifted, instead of in a fused multiply-add"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct sdpa_fwd_op, a.math, WEFT_ATTR_OPERATION_SDPA_FWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type of products and softmax"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.block_mask, WEFT_ATTR_OPERATION_SDPA_FWD_BLOCK_MASK_DESC, "block_mask",
               .shape = "[B, Hq, ceil(Sq / 128), ceil(Skv / 128)]",
               .doc = "tiles of 128 x 128 scores to compute: INT8 or BYTE_BOOLEAN; UINT8 has 8 key tiles per byte, "
                      "lowest bit first; the first two extents may be 1"),
    /* The score modifier. Its operands are listed here, so that the graph knows what the attention reads. */
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct sdpa_fwd_op, a.modifier.graph, WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH,
              "subgraph", .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
              .doc = "score modifier: pointwise operations applied to the scaled scores before bias and masks"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_fwd_op, a.modifier.input_uid,
              WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, "subgraph_input_uid",
              .doc = "uid of its tensor with the scaled scores"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_fwd_op, a.modifier.output_uid,
              WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, "subgraph_output_uid",
              .doc = "uid of its tensor with the modified scores"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.modifier.operands, WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OPERANDS_EXT,
               "subgraph_operands", .storage = STORE_LIST, .shape = "[B, Hq, Sq, Skv] or 1s",
               .doc = "operands other than the scores; determined automatically"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct sdpa_fwd_op, softmax, WEFT_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC,
              "softmax", .target = WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR,
              .doc = "statistics and sink as a nested operation; not supported"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.cu_seq_len_q, WEFT_ATTR_OPERATION_SDPA_FWD_CU_SEQ_LEN_QDESC,
               "cu_seq_len_q", .shape = "[B + 1, 1, 1, 1]",
               .doc = "cumulative number of queries in use, INT32 or INT64, instead of seq_len_q"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.cu_seq_len_kv, WEFT_ATTR_OPERATION_SDPA_FWD_CU_SEQ_LEN_KVDESC,
               "cu_seq_len_kv", .shape = "[B + 1, 1, 1, 1]",
               .doc = "cumulative number of keys in use, INT32 or INT64, instead of seq_len_kv"),
    /* Scales of narrow types. Descales multiply operands after loads, scales multiply results before stores; the next
       step's scale is computed from amax. */
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, a.descale_q, WEFT_ATTR_OPERATION_SDPA_FWD_DESCALE_QDESC, "descale_q",
               .shape = "[B, Hq, 1, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dqk / 32)]",
               .doc = "factor of q, applied first"),
    TENSOR_ROW(
        ROLE_INPUT, struct sdpa_fwd_op, a.descale_k, WEFT_ATTR_OPERATION_SDPA_FWD_DESCALE_KDESC, "descale_k",
        .shape =
            "[B, Hk, Skv, 1] or 1s; block scales: [B, Hk, Skv, ceil(Dqk / 32)]; pages: [container, Hk, page size, ..]",
        .doc = "factor of k, applied first"),
    TENSOR_ROW(
        ROLE_INPUT, struct sdpa_fwd_op, a.descale_v, WEFT_ATTR_OPERATION_SDPA_FWD_DESCALE_VDESC, "descale_v",
        .shape =
            "[B, Hv, Skv, 1] or 1s; block scales: [B, Hv, ceil(Skv / 32), Dv]; pages: [container, Hv, page size, ..]",
        .doc = "factor of v, applied first"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, descale_s, WEFT_ATTR_OPERATION_SDPA_FWD_DESCALE_SDESC, "descale_s",
               .shape = "[1, 1, 1, 1]", .doc = "factor of the softmax after scale_s"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, scale_s, WEFT_ATTR_OPERATION_SDPA_FWD_SCALE_SDESC, "scale_s",
               .shape = "[1, 1, 1, 1]", .doc = "factor of the softmax before it is rounded to FP8, if it is"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_fwd_op, scale_o, WEFT_ATTR_OPERATION_SDPA_FWD_SCALE_ODESC, "scale_o",
               .shape = "[1, 1, 1, 1]", .doc = "factor of the result before it is stored as o"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_fwd_op, amax_s, WEFT_ATTR_OPERATION_SDPA_FWD_AMAX_SDESC, "amax_s",
               .shape = "[1, 1, 1, 1]", .doc = "largest value of the softmax, before scale_s"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_fwd_op, amax_o, WEFT_ATTR_OPERATION_SDPA_FWD_AMAX_ODESC, "amax_o",
               .shape = "[1, 1, 1, 1]", .doc = "largest magnitude of the result, before scale_o"),
};

/* The operands and options of the forward pass, its results, and the gradients. The options must be the same as in the
   forward pass, because only the statistics of the scores are stored. */
static const struct row backward_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.q, WEFT_ATTR_OPERATION_SDPA_BWD_QDESC, "q", .required = true,
               .shape = "[B, Hq, Sq, Dqk]", .doc = "queries"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.k, WEFT_ATTR_OPERATION_SDPA_BWD_KDESC, "k", .required = true,
               .shape = "[B, Hk, Skv, Dqk]", .doc = "keys"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.v, WEFT_ATTR_OPERATION_SDPA_BWD_VDESC, "v", .required = true,
               .shape = "[B, Hv, Skv, Dv]", .doc = "values"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, o, WEFT_ATTR_OPERATION_SDPA_BWD_ODESC, "o", .required = true,
               .shape = "[B, Hq, Sq, Dv]", .doc = "forward result"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, d_o, WEFT_ATTR_OPERATION_SDPA_BWD_DODDESC, "dO", .required = true,
               .shape = "[B, Hq, Sq, Dv]", .doc = "gradient of the forward result"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, stats, WEFT_ATTR_OPERATION_SDPA_BWD_STATSDESC, "stats", .required = true,
               .shape = "[B, Hq, Sq, 1]", .doc = "statistics that the forward pass wrote"),
    /* Gradients. dK and dV have the heads of k and v: they are summed over the query heads that share one. */
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, dq, WEFT_ATTR_OPERATION_SDPA_BWD_DQDESC, "dQ", .required = true,
               .shape = "[B, Hq, Sq, Dqk]", .doc = "gradient of q"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, dk, WEFT_ATTR_OPERATION_SDPA_BWD_DKDESC, "dK", .required = true,
               .shape = "[B, Hk, Skv, Dqk]", .doc = "gradient of k, summed over the query heads that share it"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, dv, WEFT_ATTR_OPERATION_SDPA_BWD_DVDESC, "dV", .required = true,
               .shape = "[B, Hv, Skv, Dv]", .doc = "gradient of v, summed over the query heads that share it"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, dbias, WEFT_ATTR_OPERATION_SDPA_BWD_DBIAS_DESC, "dBias",
               .shape = "[B, Hq, Sq, Skv] or 1s, like bias",
               .doc = "gradient of the bias, summed over its extents of 1"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, dsink, WEFT_ATTR_OPERATION_SDPA_BWD_DSINK_DESC, "dSink_token",
               .shape = "[1, Hq, 1, 1]", .doc = "gradient of the sink"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.scale, WEFT_ATTR_OPERATION_SDPA_BWD_SCALEDESC, "attn_scale",
               .shape = "[1, 1, 1, 1]", .doc = "factor of q k^T; unset: attn_scale_value"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct sdpa_bwd_op, a.scale_value, WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_VALUE_EXT,
              "attn_scale_value", .initial = 1, .doc = "factor of q k^T as a number"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.bias, WEFT_ATTR_OPERATION_SDPA_BWD_BIAS_DESC_EXT, "bias",
               .shape = "[B, Hq, Sq, Skv] or 1s", .doc = "the bias of the forward pass"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.seq_len_q, WEFT_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC, "seq_len_q",
               .shape = "[B, 1, 1, 1]", .doc = "queries in use of each batch, INT32 or INT64; unset: all"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.seq_len_kv, WEFT_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC, "seq_len_kv",
               .shape = "[B, 1, 1, 1]", .doc = "keys in use of each batch, INT32 or INT64; unset: all"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, a.left_bound, WEFT_ATTR_OPERATION_SDPA_BWD_LEFT_BOUND_EXT,
              "diagonal_band_left_bound", .initial = ATTENTION_UNBOUNDED, .least = -ATTENTION_UNBOUNDED,
              .most = ATTENTION_UNBOUNDED, .doc = "the left bound of the forward pass; unset: all on the left"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, a.right_bound, WEFT_ATTR_OPERATION_SDPA_BWD_RIGHT_BOUND_EXT,
              "diagonal_band_right_bound", .initial = ATTENTION_UNBOUNDED, .least = -ATTENTION_UNBOUNDED,
              .most = ATTENTION_UNBOUNDED, .doc = "the right bound of the forward pass; unset: all on the right"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, a.alignment, WEFT_ATTR_OPERATION_SDPA_BWD_ALIGNMENT_EXT,
              "diagonal_alignment", .initial = WEFT_DIAGONAL_TOP_LEFT, .least = WEFT_DIAGONAL_TOP_LEFT,
              .most = WEFT_DIAGONAL_BOTTOM_RIGHT, .doc = "the alignment of the forward pass: weftDiagonalAlignment_t"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct sdpa_bwd_op, a.alibi, WEFT_ATTR_OPERATION_SDPA_BWD_ALIBI_EXT, "use_alibi_mask",
              .doc = "true: the forward pass added slope (col - row) to the scores"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.block_mask, WEFT_ATTR_OPERATION_SDPA_BWD_BLOCK_MASK_DESC_EXT,
               "block_mask", .shape = "[B, Hq, ceil(Sq / 128), ceil(Skv / 128)]",
               .doc = "the block mask of the forward pass"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.sink, WEFT_ATTR_OPERATION_SDPA_BWD_SINK_DESC, "sink_token",
               .shape = "[1, Hq, 1, 1]", .doc = "the sink of the forward pass"),
    VALUE_ROW(WEFT_TYPE_FLOAT, struct sdpa_bwd_op, a.dropout_probability,
              WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_PROBABILITY, "dropout_probability",
              .doc = "probability with which the forward pass dropped a weight, 0..1"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.dropout_seed, WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_SEED_DESC,
               "dropout_seed", .shape = "[1, 1, 1, 1]", .doc = "seed of the forward pass, INT32 or INT64"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.dropout_offset, WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_OFFSET_DESC,
               "dropout_offset", .shape = "[1, 1, 1, 1]",
               .doc = "offset of the forward pass, INT32 or INT64; unset: 0"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.dropout_mask, WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_MASK_DESC_EXT,
               "dropout_mask", .shape = "[B, Hq, Sq, Skv] or 1s", .doc = "the mask of the forward pass"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.dropout_scale, WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_SCALE_DESC_EXT,
               "dropout_scale", .shape = "[1, 1, 1, 1]", .doc = "the scale of the forward pass"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct sdpa_bwd_op, a.math, WEFT_ATTR_OPERATION_SDPA_BWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type of products and softmax"),
    /* Hints for kernels; they may change the order of sums only. */
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, max_total_seq_len_q,
              WEFT_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q, "max_total_seq_len_q",
              .doc = "upper bound of the total number of queries, a hint"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, max_total_seq_len_kv,
              WEFT_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_KV, "max_total_seq_len_kv",
              .doc = "upper bound of the total number of keys, a hint"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct sdpa_bwd_op, is_deterministic,
              WEFT_ATTR_OPERATION_SDPA_BWD_IS_DETERMINISTIC_EXT, "is_deterministic",
              .doc = "true: results are bitwise reproducible"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct sdpa_bwd_op, a.modifier.graph, WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH,
              "subgraph", .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
              .doc = "score modifier: pointwise operations applied to the scaled scores before bias and masks"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, a.modifier.input_uid,
              WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, "subgraph_input_uid",
              .doc = "uid of its tensor with the scaled scores"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, a.modifier.output_uid,
              WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID, "subgraph_output_uid",
              .doc = "uid of its tensor with the modified scores"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.modifier.operands, WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OPERANDS_EXT,
               "subgraph_operands", .storage = STORE_LIST, .shape = "[B, Hq, Sq, Skv] or 1s",
               .doc = "operands other than the scores; determined automatically"),
    /* The gradient of the modifier: derived from its operations, or given by further operations of the same graph. */
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, a.modifier.gradient_input_uid,
              WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_INPUT_UID_EXT, "subgraph_gradient_input_uid",
              .doc = "uid of its tensor with the gradient of the modified scores; unset: gradients are derived"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, a.modifier.gradient_output_uid,
              WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_OUTPUT_UID_EXT, "subgraph_gradient_output_uid",
              .doc = "uid of its tensor with the gradient of the scaled scores"),
    VALUE_ROW(WEFT_TYPE_INT64, struct sdpa_bwd_op, a.modifier.gradient_uids,
              WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_UIDS_EXT, "subgraph_gradient_uids", .storage = STORE_LIST,
              .doc = "uids of tensors that it reads and whose gradients are requested"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, a.modifier.gradients,
               WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENTS_EXT, "subgraph_gradients", .storage = STORE_LIST,
               .shape = "[B, Hq, Sq, Skv] or 1s, like these tensors",
               .doc = "these gradients, each summed over its extents of 1"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.cu_seq_len_q, WEFT_ATTR_OPERATION_SDPA_BWD_CU_SEQ_LEN_QDESC,
               "cu_seq_len_q", .shape = "[B + 1, 1, 1, 1]",
               .doc = "cumulative number of queries in use, INT32 or INT64, instead of seq_len_q"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.cu_seq_len_kv, WEFT_ATTR_OPERATION_SDPA_BWD_CU_SEQ_LEN_KVDESC,
               "cu_seq_len_kv", .shape = "[B + 1, 1, 1, 1]",
               .doc = "cumulative number of keys in use, INT32 or INT64, instead of seq_len_kv"),
    /* Scales as in the forward pass. dP is the gradient of q k^T; it is an operand of dQ and dK, and may be rounded to
       FP8 for them. */
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.descale_q, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_QDESC_EXT, "descale_q",
               .shape = "[B, Hq, 1, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dqk / 32)]",
               .doc = "factor of q, applied first"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.descale_k, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_KDESC_EXT, "descale_k",
               .shape = "[B, Hk, Skv, 1] or 1s; block scales: [B, Hk, Skv, ceil(Dqk / 32)]",
               .doc = "factor of k, applied first"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, a.descale_v, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_VDESC_EXT, "descale_v",
               .shape = "[B, Hv, Skv, 1] or 1s; block scales: [B, Hv, Skv, ceil(Dv / 32)]",
               .doc = "factor of v, applied first"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, descale_o, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_ODESC_EXT, "descale_o",
               .shape = "[B, Hq, Sq, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dv / 32)]",
               .doc = "factor of o, applied first"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, descale_do, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_DODESC_EXT,
               "descale_dO", .shape = "[B, Hq, Sq, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dv / 32)]",
               .doc = "factor of dO, applied first"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, descale_s, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_SDESC_EXT, "descale_s",
               .shape = "[1, 1, 1, 1]", .doc = "factor of the softmax after scale_s"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, descale_dp, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_DPDESC_EXT,
               "descale_dP", .shape = "[1, 1, 1, 1]", .doc = "factor of the gradient of q k^T after scale_dP"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, scale_s, WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_SDESC_EXT, "scale_s",
               .shape = "[1, 1, 1, 1]", .doc = "factor of the softmax before it is rounded to q's type if that is FP8"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, scale_dq, WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_DQDESC_EXT, "scale_dQ",
               .shape = "[1, 1, 1, 1]", .doc = "factor of the gradient before it is stored as dQ"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, scale_dk, WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_DKDESC_EXT, "scale_dK",
               .shape = "[1, 1, 1, 1]", .doc = "factor of the gradient before it is stored as dK"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, scale_dv, WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_DVDESC_EXT, "scale_dV",
               .shape = "[1, 1, 1, 1]", .doc = "factor of the gradient before it is stored as dV"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, scale_dp, WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_DPDESC_EXT, "scale_dP",
               .shape = "[1, 1, 1, 1]",
               .doc = "factor of the gradient of q k^T before it is rounded to dO's type if that is FP8"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, amax_dq, WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DQDESC_EXT, "amax_dQ",
               .shape = "[1, 1, 1, 1]", .doc = "largest magnitude of dQ, before scale_dQ"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, amax_dk, WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DKDESC_EXT, "amax_dK",
               .shape = "[1, 1, 1, 1]", .doc = "largest magnitude of dK, before scale_dK"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, amax_dv, WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DVDESC_EXT, "amax_dV",
               .shape = "[1, 1, 1, 1]", .doc = "largest magnitude of dV, before scale_dV"),
    TENSOR_ROW(ROLE_OUTPUT, struct sdpa_bwd_op, amax_dp, WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DPDESC_EXT, "amax_dP",
               .shape = "[1, 1, 1, 1]", .doc = "largest magnitude of the gradient of q k^T, before scale_dP"),
    /* Block scales run along the dimension that a product sums over. dK, dQ and dV sum over rows: for them, q, k and dO
       may be given a second time, with blocks along S. */
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, q_t, WEFT_ATTR_OPERATION_SDPA_BWD_Q_TDESC_EXT, "q_T",
               .shape = "[B, Hq, Sq, Dqk]", .doc = "second copy of q, for dK; unset: q"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, k_t, WEFT_ATTR_OPERATION_SDPA_BWD_K_TDESC_EXT, "k_T",
               .shape = "[B, Hk, Skv, Dqk]", .doc = "second copy of k, for dQ; unset: k"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, do_t, WEFT_ATTR_OPERATION_SDPA_BWD_DO_TDESC_EXT, "dO_T",
               .shape = "[B, Hq, Sq, Dv]", .doc = "second copy of dO, for dV; unset: dO"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, do_f16, WEFT_ATTR_OPERATION_SDPA_BWD_DO_F16DESC_EXT, "dO_f16",
               .shape = "[B, Hq, Sq, Dv]", .doc = "second copy of dO, for its products with o; unset: dO"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, descale_q_t, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_Q_TDESC_EXT,
               "descale_q_T", .shape = "[B, Hq, 1, 1] or 1s; block scales: [B, Hq, ceil(Sq / 32), Dqk]",
               .doc = "factor of q_T, applied first"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, descale_k_t, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_K_TDESC_EXT,
               "descale_k_T", .shape = "[B, Hk, Skv, 1] or 1s; block scales: [B, Hk, ceil(Skv / 32), Dqk]",
               .doc = "factor of k_T, applied first"),
    TENSOR_ROW(ROLE_INPUT, struct sdpa_bwd_op, descale_do_t, WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_DO_TDESC_EXT,
               "descale_dO_T", .shape = "[B, Hq, Sq, 1] or 1s; block scales: [B, Hq, ceil(Sq / 32), Dv]",
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

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

/* Attributes without an implementation, and the alternative to each. */
static const struct {
    weftBackendAttributeName_t name;
    const char *instead;
} unserved[] = {
    {WEFT_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC, "Set stats, score_max, score_sum_exp and sink_token here instead"},
};

/* Runs before all other checks, so that the error names the attribute and not a consequence of its absence. */
static weftStatus_t refuse_unserved(const struct descriptor *op) {
    for (size_t i = 0; i < sizeof unserved / sizeof *unserved; i++)
        if (descriptor_row_is_set(op, unserved[i].name))
            FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: attribute %s is set, which attention does not support yet. %s.",
                 descriptor_label(op), schema_find_row(op->schema, unserved[i].name)->key, unserved[i].instead);
    return WEFT_STATUS_SUCCESS;
}

/* Query heads share keys in groups of equal size; the heads of a group are adjacent. */
static weftStatus_t check_shared_heads(const struct descriptor *op, const struct attention *a, const char *key,
                                       const struct tensor *shared) {
    int64_t heads = a->q->dims.at[1], own = shared->dims.at[1];
    /* Zero heads are valid only together with zero heads. */
    if (own ? heads % own != 0 : heads != 0)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: q %s has %lld heads, %s %s has %lld. Make the heads of %s divide those of q.", descriptor_label(op),
             tensor_dims_text(a->q), (long long)heads, key, tensor_dims_text(shared), (long long)own, key);
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

/* Number of keys that the table of a batch entry reaches, capped at INT64_MAX. */
static int64_t table_reach(const struct tensor *table, const struct tensor *container) {
    int64_t reach;
    return __builtin_mul_overflow(table->dims.at[2], container->dims.at[2], &reach) ? INT64_MAX : reach;
}

/* Without a table, the keys of the tensor; with a table, those that it reaches; the smaller number if k and v have
   tables. */
int64_t attention_keys(const struct attention *a) {
    if (a->most_keys && attention_is_paged(a))
        return a->most_keys;
    int64_t of_k = a->k_table ? table_reach(a->k_table, a->k) : a->k->dims.at[2];
    int64_t of_v = a->v_table ? table_reach(a->v_table, a->v) : a->v->dims.at[2];
    return !a->k_table ? of_k : !a->v_table ? of_v : min64(of_k, of_v);
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
    if (table_reach(table, container) < keys)
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

/* Every result is packed [B, H, S, D], regardless of the order of the operands. */
static bool cudnn_strides(const struct descriptor *op, const struct tensor *out, struct dims *strides) {
    (void)op;
    *strides = dims_row_major(&out->dims);
    return true;
}

/* Dims of results follow from q and v, which have been checked. */
static weftStatus_t infer_forward(struct descriptor *descriptor) {
    struct sdpa_fwd_op *op = (struct sdpa_fwd_op *)descriptor;
    TRY(refuse_unserved(descriptor));
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
static weftStatus_t check_forward(const struct descriptor *descriptor) {
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
static weftStatus_t infer_backward(struct descriptor *descriptor) {
    struct sdpa_bwd_op *op = (struct sdpa_bwd_op *)descriptor;
    TRY(refuse_unserved(descriptor));
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
static weftStatus_t check_backward(const struct descriptor *descriptor) {
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

/* ---- Finalizing: the operands of a score modifier are determined before all other checks  */

static weftStatus_t finalize_forward(struct descriptor *descriptor) {
    struct sdpa_fwd_op *op = (struct sdpa_fwd_op *)descriptor;
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

/* ---- The scores -------------------------------------------------------------------------------------------------- */

/* ALiBi's slope of a head: 2^(-8 (i+1) / n) for the first n heads, where n is the largest power of two; the remaining
   heads get slopes between these. */
static double alibi_slope(int64_t head, int64_t heads) {
    int64_t power = 1;
    while (power * 2 <= heads)
        power *= 2;
    /* Slopes in between: the odd steps of the series for twice as many heads. */
    double step = head < power ? 8.0 * (double)(head + 1) : 4.0 * (double)(2 * (head - power) + 1);
    return exp2(-step / (double)power);
}

/* State of one execution: sizes, and the operands that determine the scores. */
struct run {
    const struct attention *a;
    int64_t batches, heads, rows, columns, depth, value_depth;
    const struct bindings *bindings;
    struct view bias, seq_len_q, seq_len_kv, cu_seq_len_q, cu_seq_len_kv, sink, block_mask, dropout_mask;
    double scale, growth; /* growth: factor of kept weights */
    uint64_t seed, offset;
};

/* Without bindings, as needed to compute the size of scratch memory, all views are empty, but sizes are set. */
static struct run run_of(const struct attention *a, const struct bindings *bindings) {
    return (struct run){
        .a = a,
        .batches = a->q->dims.at[0],
        .heads = a->q->dims.at[1],
        .rows = a->q->dims.at[2],
        .columns = attention_keys(a),
        .depth = a->q->dims.at[3],
        .value_depth = a->v->dims.at[3],
        .bindings = bindings,
        .bias = view_of(bindings, a->bias),
        .seq_len_q = view_of(bindings, a->seq_len_q),
        .seq_len_kv = view_of(bindings, a->seq_len_kv),
        .cu_seq_len_q = view_of(bindings, a->cu_seq_len_q),
        .cu_seq_len_kv = view_of(bindings, a->cu_seq_len_kv),
        .sink = view_of(bindings, a->sink),
        .block_mask = view_of(bindings, a->block_mask),
        .dropout_mask = view_of(bindings, a->dropout_mask),
        /* The tensor takes precedence; check_attention rejects operations that set both. */
        .scale = view_scalar(bindings, a->scale, a->scale_value),
        .growth = view_scalar(bindings, a->dropout_scale, attention_growth(a)),
        .seed = (uint64_t)rng_scalar(bindings, a->dropout_seed, 0),
        .offset = (uint64_t)rng_scalar(bindings, a->dropout_offset, 0),
    };
}

/* Values that determine the scores of one head of one batch entry. */
struct head {
    int64_t batch, index;
    /* shift: of the diagonal, in keys; 0 if it begins at the top left. */
    int64_t rows_used, columns_used, shift;
    double slope;
    double sink; /* -inf: none */
};

/* attention_check_indices has rejected lengths outside of 0 .. all. */
static int64_t length_in_use(const struct view *lengths, const struct view *sums, int64_t batch, int64_t all) {
    int64_t length = lengths->data ? view_load_int(lengths, (const int64_t[]){batch, 0, 0, 0}) : all;
    /* Cumulative lengths: the difference of two adjacent entries. */
    if (sums->data)
        length = view_load_int(sums, (const int64_t[]){batch + 1, 0, 0, 0}) -
                 view_load_int(sums, (const int64_t[]){batch, 0, 0, 0});
    return length;
}

/* Lengths, diagonal, ALiBi slope and sink of one head: everything that a score needs in addition to its vectors. */
static struct head head_of(const struct run *run, int64_t batch, int64_t index) {
    struct head head = {.batch = batch, .index = index, .sink = -INFINITY};
    head.rows_used = length_in_use(&run->seq_len_q, &run->cu_seq_len_q, batch, run->rows);
    head.columns_used = length_in_use(&run->seq_len_kv, &run->cu_seq_len_kv, batch, run->columns);
    /* BOTTOM_RIGHT aligns the last query in use with the last key in use. */
    if (run->a->alignment == WEFT_DIAGONAL_BOTTOM_RIGHT)
        head.shift = head.columns_used - head.rows_used;
    if (run->a->alibi)
        head.slope = alibi_slope(index, run->heads);
    if (run->sink.data)
        head.sink = view_load(&run->sink, (const int64_t[]){0, index, 0, 0});
    return head;
}

/* True if the block mask includes the tile of a score. */
static bool keeps_tile(const struct run *run, const struct head *head, int64_t row, int64_t column) {
    if (!run->block_mask.data)
        return true;
    /* Eight key tiles per byte; the first one is the lowest bit. */
    int64_t tile = column / ATTENTION_MASK_TILE, bits = attention_mask_has_bits(run->a) ? 8 : 1;
    int64_t byte = view_load_int(&run->block_mask,
                                 (const int64_t[]){head->batch, head->index, row / ATTENTION_MASK_TILE, tile / bits});
    return bits == 1 ? byte != 0 : byte >> tile % 8 & 1;
}

/* The score of key `column` (with the vector k) for query `row`; -inf if the key is hidden. product: scale q k, before
   the score modifier. The order matters: hidden keys are not multiplied, so that NaN in their memory has no effect. */
static double score(const struct run *run, const struct head *head, const double *q, const double *k, int64_t row,
                    int64_t column, double *product) {
    /* Bounds are at most 2^60, rows and columns are below 2^44: the sums fit into 64 bits. */
    bool seen = row < head->rows_used && column < head->columns_used &&
                column <= row + head->shift + run->a->right_bound && column > row + head->shift - run->a->left_bound;
    if (!seen || !keeps_tile(run, head, row, column))
        return -INFINITY;
    /* A boolean bias hides like a bias of -inf, before the product is computed. */
    double bias = 0;
    if (run->bias.data) {
        bias = view_load(&run->bias, (const int64_t[]){head->batch, head->index, row, column});
        if (dtype_is_boolean(run->bias.type))
            bias = bias != 0 ? 0 : -INFINITY;
        if (bias == -INFINITY)
            return -INFINITY;
    }
    double sum = 0;
    for (int64_t d = 0; d < run->depth; d++)
        sum += q[d] * k[d];
    double modified = *product = run->scale * sum;
    if (run->a->modifier.graph)
        modified = score_modifier_apply(&run->a->modifier, run->bindings,
                                        (const int64_t[]){head->batch, head->index, row, column}, *product);
    /* If the modifier returns -inf, the key is hidden. Adding a bias could turn -inf into NaN. */
    return modified == -INFINITY ? modified : modified + bias + head->slope * (double)(column - row);
}

/* True if random numbers keep a weight. One call of Philox yields four words, for four adjacent keys of a row; the
   upper 24 bits of a word decide. */
static bool draws(const struct run *run, const struct head *head, int64_t row, int64_t column) {
    /* The row of [B, Hq, Sq, Skv] that contains this weight, in the numbering of the rng operation. */
    uint64_t line = (uint64_t)((head->batch * run->heads + head->index) * run->rows + row);
    uint64_t block = philox_index(line, (uint64_t)column, (uint64_t)run->columns);
    unsigned word = philox_words(run->seed, run->offset, block).word[column % 4];
    return word >> 8 < philox_threshold(1 - run->a->dropout_probability);
}

/* The factor by which dropout multiplies a weight. */
static double kept(const struct run *run, const struct head *head, int64_t row, int64_t column) {
    if (run->dropout_mask.data) {
        const int64_t index[] = {head->batch, head->index, row, column};
        return run->growth * view_load(&run->dropout_mask, index); /* booleans are 0 and 1 */
    }
    return !attention_draws(run->a) ? 1 : draws(run, head, row, column) ? run->growth : 0;
}

/* A view of an operand whose indices {batch, ..} refer to the entry at the tensor's ragged offset, if it has one.
   Subtracts the regular offset of the entry, because view_load adds it. */
static struct view entry_of(const struct bindings *bindings, const struct tensor *tensor, int64_t batch) {
    struct view view = view_of(bindings, tensor);
    if (!view.data || !tensor->ragged_offset)
        return view; /* also for an absent tensor */
    struct view offsets = view_of(bindings, tensor->ragged_offset);
    int64_t offset = view_load_int(&offsets, (const int64_t[]){batch, 0, 0, 0}) * tensor->ragged_multiplier;
    int64_t usual = view.dims[0] == 1 ? 0 : batch * view.strides[0];
    /* Ragged tensors have types of whole bytes. The pointer may be outside of the tensor, but all accesses are
       inside. */
    view.data = (char *)view.data + dtype_bytes(view.type, 1) * (offset - usual);
    return view;
}

/* Number of rows of a result that exist: rows after those in use belong to other entries if the tensor is ragged. */
static int64_t rows_of(const struct tensor *tensor, int64_t used) {
    return tensor && tensor->ragged_offset ? min64(used, tensor->dims.at[2]) : INT64_MAX;
}

/* Scales of an operand; all scales are 1 if it has no memory. */
struct scales_view {
    struct view memory;
    struct attention_blocks blocks;
};

/* Returns a view without memory for NULL. */
static struct scales_view scales_of(const struct bindings *bindings, const struct tensor *scales,
                                    const struct tensor *operand) {
    struct scales_view view = {.memory = view_of(bindings, scales)};
    if (scales)
        view.blocks = attention_blocks_of(scales, operand);
    return view;
}

/* `index` is that of the element, [b, h, s, d]; the blocks determine its scale. */
static double scale_at(const struct scales_view *scales, const int64_t index[4]) {
    if (!scales->memory.data)
        return 1;
    return dtype_load(scales->memory.type, scales->memory.data,
                      attention_scale_offset(&scales->memory, &scales->blocks, index));
}

/* Copies one head of a [B, H, S, D] operand, multiplied by its scales, into rows of doubles; rows from `used` on are
   0. */
static void load_scaled_head(double *to, const struct view *from, const struct scales_view *scales, int64_t batch,
                             int64_t head, int64_t used) {
    for (int64_t s = 0; s < from->dims[2]; s++)
        for (int64_t d = 0; d < from->dims[3]; d++) {
            const int64_t index[] = {batch, head, s, d};
            *to++ = s < used ? view_load(from, index) * scale_at(scales, index) : 0;
        }
}

/* Translates the index of a key or value into its position in the page that a table assigns. */
static void find_page(int64_t *index, const struct view *container, const struct view *table) {
    int64_t size = container->dims[2], key = index[2];
    /* Tables are [B, 1, pages, 1]: one per batch entry, for all heads. */
    index[0] = view_load_int(table, (const int64_t[]){index[0], 0, key / size, 0});
    index[2] = key % size;
}

/* Keys or values: memory, scales, and page table. */
struct keys_view {
    struct view memory, table;
    struct scales_view scales;
};

static struct keys_view keys_of(const struct bindings *bindings, const struct tensor *keys, const struct tensor *scales,
                                const struct tensor *table) {
    return (struct keys_view){view_of(bindings, keys), view_of(bindings, table), scales_of(bindings, scales, keys)};
}

/* Copies the keys in use of one head into rows of doubles. */
static void load_keys(double *to, const struct keys_view *keys, const struct head *head, int64_t heads) {
    const struct view *from = &keys->memory;
    /* Rows after those in use are not written: no score reads them. */
    int64_t shared = attention_shared_head(head->index, heads, from->dims[1]);
    for (int64_t key = 0; key < head->columns_used; key++) {
        int64_t index[] = {head->batch, shared, key, 0};
        if (keys->table.data)
            find_page(index, from, &keys->table);
        for (index[3] = 0; index[3] < from->dims[3]; index[3]++)
            *to++ = view_load(from, index) * scale_at(&keys->scales, index);
    }
}

/* rows: the number that exists. */
static void store_head(const struct view *to, int64_t rows, int64_t batch, int64_t head, const double *from) {
    for (int64_t s = 0; to->data && s < min64(rows, to->dims[2]); s++)
        for (int64_t d = 0; d < to->dims[3]; d++)
            view_store(to, (const int64_t[]){batch, head, s, d}, *from++);
}

static void clear(double *numbers, int64_t count) { memset(numbers, 0, (size_t)count * sizeof *numbers); }

/* Assigns arrays within a block of doubles, or only counts without a block. A block is never empty, so all arrays have
   an address. */
struct cursor {
    double *block;
    int64_t used;
};

/* The same code counts sizes and assigns arrays, so that the two agree. */
static double *take(struct cursor *cursor, int64_t count) {
    double *array = cursor->block ? cursor->block + cursor->used : NULL;
    cursor->used += count;
    return array;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

struct forward_scratch {
    double *q, *k, *v, *o; /* of one head */
    double *weights;       /* of one row */
};

/* Number of doubles that an execution needs; with a block, also sets the address of each array. */
static int64_t lay_out_forward(const struct sdpa_fwd_op *op, double *block, struct forward_scratch *scratch) {
    struct run run = run_of(&op->a, &(struct bindings){0});
    struct cursor cursor = {.block = block};
    scratch->q = take(&cursor, run.rows * run.depth);
    scratch->k = take(&cursor, run.columns * run.depth);
    scratch->v = take(&cursor, run.columns * run.value_depth);
    scratch->o = take(&cursor, run.rows * run.value_depth);
    scratch->weights = take(&cursor, run.columns);
    return cursor.used + 1;
}

static int64_t forward_scratch_bytes(const struct descriptor *descriptor) {
    struct forward_scratch scratch;
    return lay_out_forward((const struct sdpa_fwd_op *)descriptor, NULL, &scratch) * (int64_t)sizeof(double);
}

/* Computes one row's weights exp(score - max), 0 for hidden keys, their maximum and their sum, including the sink.
   Subtracting the maximum avoids overflow. A row without keys and without a sink has the maximum -inf and the sum 0. */
static void weigh_row(const struct run *run, const struct head *head, const struct forward_scratch *scratch,
                      int64_t row, double *max, double *sum) {
    const double *q = scratch->q + row * run->depth;
    double *weights = scratch->weights;
    /* Queries after those in use have no sink either: their rows are 0. */
    double sink = row < head->rows_used ? head->sink : -INFINITY;
    *max = sink;
    for (int64_t j = 0; j < run->columns; j++) {
        double product;
        weights[j] = score(run, head, q, scratch->k + j * run->depth, row, j, &product);
        *max = weights[j] > *max ? weights[j] : *max;
    }
    *sum = sink == -INFINITY ? 0 : exp(sink - *max);
    for (int64_t j = 0; j < run->columns; j++) {
        /* A second loop over the keys, because the exponentials need the maximum. */
        weights[j] = weights[j] == -INFINITY ? 0 : exp(weights[j] - *max);
        *sum += weights[j];
    }
}

/* Everything that the forward pass reads and writes. */
struct forward_views {
    const struct sdpa_fwd_op *op;
    struct keys_view k, v;
    struct scales_view descale_q;
    struct view q, o, stats, max, sum_exp, dump;
    double weight_scale, scale_o; /* weight_scale: scale and descale of the softmax, multiplied */
    double amax_s, amax_o;
};

/* Views of ragged operands are set later, per batch entry. */
static struct forward_views forward_views_of(const struct sdpa_fwd_op *op, const struct bindings *bindings) {
    return (struct forward_views){
        .op = op,
        .k = keys_of(bindings, op->a.k, op->a.descale_k, op->a.k_table),
        .v = keys_of(bindings, op->a.v, op->a.descale_v, op->a.v_table),
        .descale_q = scales_of(bindings, op->a.descale_q, op->a.q),
        .dump = view_of(bindings, op->rng_dump),
        .weight_scale = view_scalar(bindings, op->scale_s, 1) * view_scalar(bindings, op->descale_s, 1),
        .scale_o = view_scalar(bindings, op->scale_o, 1),
    };
}

/* Sets the views of operands that may be ragged to one batch entry. */
static void find_entries(struct forward_views *views, const struct bindings *bindings, int64_t batch) {
    const struct sdpa_fwd_op *op = views->op;
    views->q = entry_of(bindings, op->a.q, batch);
    views->k.memory = entry_of(bindings, op->a.k, batch);
    views->v.memory = entry_of(bindings, op->a.v, batch);
    views->k.table = entry_of(bindings, op->a.k_table, batch);
    views->v.table = entry_of(bindings, op->a.v_table, batch);
    views->o = entry_of(bindings, op->o, batch);
    views->stats = entry_of(bindings, op->stats, batch);
    views->max = entry_of(bindings, op->max, batch);
    views->sum_exp = entry_of(bindings, op->sum_exp, batch);
}

/* Stores a statistic of a row if it is requested and the row exists. */
static void store_statistic(const struct view *to, const struct tensor *tensor, const int64_t index[4], int64_t used,
                            double value) {
    if (index[2] < rows_of(tensor, used))
        view_store_if(to, index, value);
}

/* Computes one row of o from its weights. */
static void add_values(const struct run *run, const struct head *head, struct forward_views *views,
                       const struct forward_scratch *scratch, int64_t row, double sum) {
    double *o = scratch->o + row * run->value_depth;
    for (int64_t j = 0; j < run->columns; j++) {
        /* Keys of weight 0 are skipped, because the value of a hidden key may be NaN. */
        double weight = scratch->weights[j] == 0 ? 0 : scratch->weights[j] / sum * kept(run, head, row, j);
        views->amax_s = weight > views->amax_s ? weight : views->amax_s;
        for (int64_t d = 0; d < run->value_depth && weight != 0; d++)
            o[d] += weight * views->weight_scale * scratch->v[j * run->value_depth + d];
        /* 1 if dropout keeps the weight, even if the key is hidden. */
        if (views->dump.data)
            view_store(&views->dump, (const int64_t[]){head->batch, head->index, row, j}, draws(run, head, row, j));
    }
    /* amax is taken before scale_o, because the next scale_o is computed from it. */
    for (int64_t d = 0; d < run->value_depth; d++) {
        views->amax_o = fabs(o[d]) > views->amax_o ? fabs(o[d]) : views->amax_o;
        o[d] *= views->scale_o;
    }
}

/* Computes one head: loads operands as doubles with their scales, then computes each row's weights, statistics and
   result. */
static void forward_head(const struct run *run, const struct head *head, struct forward_views *views,
                         const struct forward_scratch *scratch) {
    const struct sdpa_fwd_op *op = views->op;
    load_scaled_head(scratch->q, &views->q, &views->descale_q, head->batch, head->index, head->rows_used);
    load_keys(scratch->k, &views->k, head, run->heads);
    load_keys(scratch->v, &views->v, head, run->heads);
    clear(scratch->o, run->rows * run->value_depth);
    for (int64_t i = 0; i < run->rows; i++) {
        double row_max, row_sum;
        const int64_t index[] = {head->batch, head->index, i, 0};
        weigh_row(run, head, scratch, i, &row_max, &row_sum);
        /* Avoids log(0) for a row without weight. */
        double total = row_sum == 0 ? -INFINITY : row_max + log(row_sum);
        store_statistic(&views->max, op->max, index, head->rows_used, row_max);
        store_statistic(&views->sum_exp, op->sum_exp, index, head->rows_used, row_sum);
        store_statistic(&views->stats, op->stats, index, head->rows_used, total);
        add_values(run, head, views, scratch, i, row_sum);
    }
    store_head(&views->o, rows_of(op->o, head->rows_used), head->batch, head->index, scratch->o);
}

/* Computes the heads in sequence; they share the scratch memory. */
static void forward(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct sdpa_fwd_op *op = (const struct sdpa_fwd_op *)descriptor;
    struct run run = run_of(&op->a, bindings);
    struct forward_views views = forward_views_of(op, bindings);
    struct forward_scratch scratch;
    lay_out_forward(op, bindings->scratch, &scratch);
    for (int64_t at = 0; at < run.batches * run.heads; at++) {
        /* Heads are the inner index, batch entries the outer one. */
        struct head head = head_of(&run, at / run.heads, at % run.heads);
        find_entries(&views, bindings, head.batch);
        forward_head(&run, &head, &views, &scratch);
    }
    struct view amax_s = view_of(bindings, op->amax_s), amax_o = view_of(bindings, op->amax_o);
    /* The maxima over all heads and rows: one number per execution. */
    view_store_if(&amax_s, (const int64_t[]){0, 0, 0, 0}, views.amax_s);
    view_store_if(&amax_o, (const int64_t[]){0, 0, 0, 0}, views.amax_o);
}

static double score_count(const struct attention *a) {
    return (double)a->q->dims.at[0] * (double)a->q->dims.at[1] * (double)a->q->dims.at[2] * (double)attention_keys(a);
}

/* Two products, of depth Dqk and Dv, for each score; masks are ignored. */
static double forward_flops(const struct descriptor *descriptor) {
    const struct attention *a = &((const struct sdpa_fwd_op *)descriptor)->a;
    return 2 * score_count(a) * (double)(a->q->dims.at[3] + a->v->dims.at[3]);
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
    .infer = infer_forward,
    .cudnn_strides = cudnn_strides,
    .check = check_forward,
    .check_indices = attention_check_indices,
    .reference = forward,
    .scratch_bytes = forward_scratch_bytes,
    .flops = forward_flops,
    .reference_rate = 5e8,
};

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* Arrays of doubles, row by row. */
struct backward_scratch {
    double *q, *k, *v, *o, *d_o, *stats, *dq;             /* of one query head */
    double *dk, *dv;                                      /* of the key and value head that it uses */
    double *dbias, *dsink;                                /* of the whole tensor, packed */
    double *q_for_dk, *k_for_dq, *d_o_for_dv, *d_o_for_o; /* q, k and dO, or the copies given for these products */
    double *dmodifier[SCORE_MODIFIER_GRADIENTS_MAX];
};

/* Like lay_out_forward. dK and dV are accumulated over the query heads of a group, the other sums over the whole
   execution. */
static int64_t lay_out_backward(const struct sdpa_bwd_op *op, double *block, struct backward_scratch *scratch) {
    struct run run = run_of(&op->a, &(struct bindings){0});
    struct cursor cursor = {.block = block};
    /* Number of doubles of one head's queries, keys and result. */
    int64_t q = run.rows * run.depth, k = run.columns * run.depth, o = run.rows * run.value_depth;
    scratch->q = take(&cursor, q);
    scratch->k = take(&cursor, k);
    scratch->v = take(&cursor, run.columns * run.value_depth);
    scratch->o = take(&cursor, o);
    scratch->d_o = take(&cursor, o);
    scratch->stats = take(&cursor, run.rows);
    scratch->dq = take(&cursor, q);
    scratch->dk = take(&cursor, k);
    scratch->dv = take(&cursor, run.columns * run.value_depth);
    /* Without a gradient of the bias no memory is needed. dsink is small, so it is always allocated. */
    scratch->dbias = take(&cursor, op->dbias ? tensor_elements(op->dbias) : 0);
    scratch->dsink = take(&cursor, run.heads);
    /* Operands without a second copy use the first one. */
    scratch->q_for_dk = op->q_t ? take(&cursor, q) : scratch->q;
    scratch->k_for_dq = op->k_t ? take(&cursor, k) : scratch->k;
    scratch->d_o_for_dv = op->do_t ? take(&cursor, o) : scratch->d_o;
    scratch->d_o_for_o = op->do_f16 ? take(&cursor, o) : scratch->d_o;
    for (int64_t i = 0; i < op->a.modifier.gradients.count; i++)
        /* Gradients of the modifier's operands are packed, and summed over the scores that share an element. */
        scratch->dmodifier[i] = take(&cursor, tensor_elements(op->a.modifier.gradients.tensors[i]));
    return cursor.used + 1;
}

static int64_t backward_scratch_bytes(const struct descriptor *descriptor) {
    struct backward_scratch scratch;
    return lay_out_backward((const struct sdpa_bwd_op *)descriptor, NULL, &scratch) * (int64_t)sizeof(double);
}

/* Offset of a score's gradient in the packed gradient of an operand; extents of 1 broadcast. */
static int64_t shared_place(const struct dims *dims, const int64_t *index) {
    int64_t place = 0;
    for (int64_t i = 0; i < dims->count; i++)
        place = place * dims->at[i] + (dims->at[i] == 1 ? 0 : index[i]);
    return place;
}

/* Propagates a score's gradient through the score modifier, and accumulates the gradients of its operands. */
static double carry_back(const struct attention *a, const struct run *run, const struct backward_scratch *scratch,
                         const int64_t index[4], double product, double ds) {
    const struct score_modifier *modifier = &a->modifier;
    if (!modifier->graph)
        return ds;
    for (int64_t i = 0; i < modifier->gradients.count; i++)
        /* Each operand has a derivative of its own, applied to the gradient of the modified score. */
        scratch->dmodifier[i][shared_place(&modifier->gradients.tensors[i]->dims, index)] +=
            score_modifier_carry_to(modifier, i, run->bindings, index, product, ds);
    return score_modifier_carry(modifier, run->bindings, index, product, ds);
}

/* exp(score - stats). Mathematically stats >= score, but rounding may reverse this; the result is clamped to 1. */
static double probability(double score, double stats) { return score > stats ? 1 : exp(score - stats); }

/* Conversion of a number to an operand of a product: multiplied by a scale, rounded to a type, and multiplied by the
   inverse of the scale. */
struct factor {
    double scale, descale;
    int32_t type; /* TENSOR_NO_TYPE: not rounded */
};

/* Rounds like a store into the operand's type, including saturation. */
static double as_factor(const struct factor *factor, double number) {
    double scaled = number * factor->scale, stored[1];
    if (factor->type == TENSOR_NO_TYPE)
        return scaled * factor->descale;
    dtype_store((weftDataType_t)factor->type, stored, 0, scaled);
    return dtype_load((weftDataType_t)factor->type, stored, 0) * factor->descale;
}

/* Scales of the gradients in one execution, and their largest magnitudes. */
struct backward_scales {
    struct factor weight, ds;
    double scale_dq, scale_dk, scale_dv;
    double amax_dq, amax_dk, amax_dv, amax_dp;
};

/* Absent scales are 1. Magnitudes start at 0. */
static struct backward_scales backward_scales_of(const struct sdpa_bwd_op *op, const struct bindings *bindings) {
    return (struct backward_scales){
        .weight = {view_scalar(bindings, op->scale_s, 1), view_scalar(bindings, op->descale_s, 1),
                   attention_factor_type(op->scale_s, op->a.q)},
        .ds = {view_scalar(bindings, op->scale_dp, 1), view_scalar(bindings, op->descale_dp, 1),
               attention_factor_type(op->scale_dp, op->d_o)},
        .scale_dq = view_scalar(bindings, op->scale_dq, 1),
        .scale_dk = view_scalar(bindings, op->scale_dk, 1),
        .scale_dv = view_scalar(bindings, op->scale_dv, 1),
    };
}

static void note_largest(double *largest, double number) {
    *largest = fabs(number) > *largest ? fabs(number) : *largest;
}

/* The row sum of P dP: from o, with one product for the row, or from all of its weights. */
static double sum_of_row(const struct sdpa_bwd_op *op, const struct run *run, const struct head *head,
                         const struct backward_scratch *scratch, int64_t row) {
    int64_t o_at = row * run->value_depth;
    double stats = scratch->stats[row], largest = 0, total = 0, by_weights = 0, by_o = 0, spread = 0;
    for (int64_t d = 0; d < run->value_depth; d++) {
        double product = scratch->d_o_for_o[o_at + d] * scratch->o[o_at + d];
        by_o += product, spread += fabs(product);
    }
    if (!attention_rounds_o(op))
        return by_o;
    if (head->sink != -INFINITY)
        total = probability(head->sink, stats);
    for (int64_t j = 0; j < run->columns; j++) {
        double scaled, product = 0;
        double s = score(run, head, scratch->q + row * run->depth, scratch->k + j * run->depth, row, j, &scaled);
        if (s == -INFINITY)
            continue;
        double weight = probability(s, stats);
        for (int64_t d = 0; d < run->value_depth; d++)
            product += scratch->d_o[o_at + d] * scratch->v[j * run->value_depth + d];
        largest = weight > largest ? weight : largest, total += weight;
        by_weights += weight * kept(run, head, row, j) * product;
    }
    return attention_is_saturated(op, largest, total) ? attention_better_sum(op, by_weights / total, by_o, spread)
                                                      : by_o;
}

/* Accumulates the contribution of one row to all gradients: dS = P (dP - row sum of P dP). */
static void backward_row(const struct sdpa_bwd_op *op, const struct run *run, const struct head *head,
                         const struct backward_scratch *scratch, struct backward_scales *scales, int64_t row) {
    int64_t q_at = row * run->depth, o_at = row * run->value_depth;
    double stats = scratch->stats[row], mean = sum_of_row(op, run, head, scratch, row);
    /* The sink has a weight but no value: its gradient is that of a score with dP = 0. */
    if (head->sink != -INFINITY)
        scratch->dsink[head->index] -= probability(head->sink, stats) * mean;
    for (int64_t j = 0; j < run->columns; j++) {
        int64_t k_at = j * run->depth, v_at = j * run->value_depth;
        const int64_t index[] = {head->batch, head->index, row, j};
        double scaled, s = score(run, head, scratch->q + q_at, scratch->k + k_at, row, j, &scaled);
        /* A hidden key has no weight, and its memory is not read. */
        if (s == -INFINITY)
            continue;
        double weight = probability(s, stats), factor = kept(run, head, row, j), product = 0;
        /* P as an operand of dV is rounded to q's type if that is FP8. */
        double weight_factor = as_factor(&scales->weight, weight * factor);
        for (int64_t d = 0; d < run->value_depth; d++) {
            product += scratch->d_o[o_at + d] * scratch->v[v_at + d];
            scratch->dv[v_at + d] += weight_factor * scratch->d_o_for_dv[o_at + d];
        }
        /* The bias is added after the modifier, so its gradient is taken before the modifier's. */
        double ds = weight * (factor * product - mean);
        if (op->dbias)
            /* The gradient of a bias that broadcasts is summed over the scores that share an element. */
            scratch->dbias[shared_place(&op->dbias->dims, index)] += ds;
        /* From here on, ds is the gradient of q k^T. */
        ds = run->scale * carry_back(&op->a, run, scratch, index, scaled, ds);
        note_largest(&scales->amax_dp, ds);
        ds = as_factor(&scales->ds, ds);
        /* dQ = dS k and dK = dS^T q: each score multiplies one vector of each. */
        for (int64_t d = 0; d < run->depth; d++) {
            scratch->dq[q_at + d] += ds * scratch->k_for_dq[k_at + d];
            scratch->dk[k_at + d] += ds * scratch->q_for_dk[q_at + d];
        }
    }
}

/* Loads the operands that the gradients of one query head depend on. */
static void load_backward_head(const struct sdpa_bwd_op *op, const struct run *run, const struct head *head,
                               const struct backward_scratch *scratch) {
    const struct {
        const struct tensor *tensor, *scales;
        double *to;
        bool has_keys;
    } operands[] = {
        {op->a.q, op->a.descale_q, scratch->q, false},
        {op->a.k, op->a.descale_k, scratch->k, true},
        {op->a.v, op->a.descale_v, scratch->v, true},
        {op->o, op->descale_o, scratch->o, false},
        {op->d_o, op->descale_do, scratch->d_o, false},
        {op->stats, NULL, scratch->stats, false},
        {op->q_t, op->descale_q_t, scratch->q_for_dk, false},
        {op->k_t, op->descale_k_t, scratch->k_for_dq, true},
        {op->do_t, op->descale_do_t, scratch->d_o_for_dv, false},
        {op->do_f16, NULL, scratch->d_o_for_o, false},
    };
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
        /* Skips absent operands, whose array is an alias of another one: see lay_out_backward. */
        if (!operands[i].tensor)
            continue;
        struct view view = entry_of(run->bindings, operands[i].tensor, head->batch);
        struct scales_view scales = scales_of(run->bindings, operands[i].scales, operands[i].tensor);
        load_scaled_head(operands[i].to, &view, &scales, head->batch,
                         attention_shared_head(head->index, run->heads, view.dims[1]),
                         operands[i].has_keys ? head->columns_used : head->rows_used);
    }
}

/* Stores one head of a gradient with `count` numbers, multiplied by its scale. */
static void store_gradient(const struct run *run, const struct tensor *tensor, const struct head *head, int64_t used,
                           const double *from, int64_t count, double scale, double *largest) {
    struct view view = entry_of(run->bindings, tensor, head->batch);
    int64_t shared = attention_shared_head(head->index, run->heads, tensor->dims.at[1]);
    int64_t rows = min64(rows_of(tensor, used), tensor->dims.at[2]), columns = tensor->dims.at[3];
    /* amax is taken before the scale, because the next step's scale is computed from it. */
    for (int64_t i = 0; i < count; i++)
        note_largest(largest, from[i]);
    for (int64_t i = 0; view.data && i < rows * columns; i++)
        view_store(&view, (const int64_t[]){head->batch, shared, i / columns, i % columns}, from[i] * scale);
}

/* For keys and values, only the last query head of a group stores the sum. Heads that share a key are processed in
   sequence. */
static void store_gradients(const struct sdpa_bwd_op *op, const struct run *run, const struct head *head,
                            const struct backward_scratch *scratch, struct backward_scales *scales) {
    /* Number of query heads per key head, and per value head. */
    int64_t key_share = run->heads / op->a.k->dims.at[1], value_share = run->heads / op->a.v->dims.at[1];
    store_gradient(run, op->dq, head, head->rows_used, scratch->dq, run->rows * run->depth, scales->scale_dq,
                   &scales->amax_dq);
    if (head->index % key_share == key_share - 1)
        store_gradient(run, op->dk, head, head->columns_used, scratch->dk, run->columns * run->depth, scales->scale_dk,
                       &scales->amax_dk);
    if (head->index % value_share == value_share - 1)
        store_gradient(run, op->dv, head, head->columns_used, scratch->dv, run->columns * run->value_depth,
                       scales->scale_dv, &scales->amax_dv);
}

/* Stores packed numbers into a tensor with any strides; ignores absent tensors. */
static void store_all(const struct view *to, const double *from) {
    int64_t index[WEFT_DIM_MAX];
    for (bool more = to->data && index_begin(index, to->rank, to->dims); more;
         more = index_next(index, to->rank, to->dims))
        view_store(to, index, *from++);
}

/* Clears gradients that are summed over heads or over batch entries. */
static void clear_sums(const struct sdpa_bwd_op *op, const struct run *run, const struct backward_scratch *scratch) {
    clear(scratch->dbias, op->dbias ? tensor_elements(op->dbias) : 0);
    clear(scratch->dsink, run->heads);
    for (int64_t i = 0; i < op->a.modifier.gradients.count; i++)
        clear(scratch->dmodifier[i], tensor_elements(op->a.modifier.gradients.tensors[i]));
}

/* Called once, after all heads have been added. */
static void store_sums(const struct sdpa_bwd_op *op, const struct bindings *bindings,
                       const struct backward_scratch *scratch, const struct backward_scales *scales) {
    struct view dbias = view_of(bindings, op->dbias), dsink = view_of(bindings, op->dsink);
    struct view amax_dq = view_of(bindings, op->amax_dq), amax_dk = view_of(bindings, op->amax_dk);
    struct view amax_dv = view_of(bindings, op->amax_dv), amax_dp = view_of(bindings, op->amax_dp);
    store_all(&dbias, scratch->dbias);
    store_all(&dsink, scratch->dsink);
    store_all(&amax_dq, &scales->amax_dq);
    store_all(&amax_dk, &scales->amax_dk);
    store_all(&amax_dv, &scales->amax_dv);
    store_all(&amax_dp, &scales->amax_dp);
    for (int64_t i = 0; i < op->a.modifier.gradients.count; i++) {
        struct view gradient = view_of(bindings, op->a.modifier.gradients.tensors[i]);
        store_all(&gradient, scratch->dmodifier[i]);
    }
}

/* Query heads of a group are processed in sequence, so that dK and dV of the head that they share accumulate in
   place. */
static void backward(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct sdpa_bwd_op *op = (const struct sdpa_bwd_op *)descriptor;
    struct run run = run_of(&op->a, bindings);
    struct backward_scales scales = backward_scales_of(op, bindings);
    struct backward_scratch scratch;
    lay_out_backward(op, bindings->scratch, &scratch);
    clear_sums(op, &run, &scratch);
    for (int64_t at = 0; at < run.batches * run.heads; at++) {
        struct head head = head_of(&run, at / run.heads, at % run.heads);
        load_backward_head(op, &run, &head, &scratch);
        clear(scratch.dq, run.rows * run.depth);
        /* The first query head of a group clears the sums of the shared head. */
        if (head.index % (run.heads / op->a.k->dims.at[1]) == 0)
            clear(scratch.dk, run.columns * run.depth);
        if (head.index % (run.heads / op->a.v->dims.at[1]) == 0)
            clear(scratch.dv, run.columns * run.value_depth);
        for (int64_t i = 0; i < head.rows_used; i++)
            /* Rows without visible keys have no gradient. */
            if (scratch.stats[i] != -INFINITY)
                backward_row(op, &run, &head, &scratch, &scales, i);
        store_gradients(op, &run, &head, &scratch, &scales);
    }
    store_sums(op, bindings, &scratch, &scales);
}

/* Five products: scores and dP, then dQ, dK and dV. */
static double backward_flops(const struct descriptor *descriptor) {
    const struct attention *a = &((const struct sdpa_bwd_op *)descriptor)->a;
    return 2 * score_count(a) * (double)(3 * a->q->dims.at[3] + 2 * a->v->dims.at[3]);
}

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
    .infer = infer_backward,
    .cudnn_strides = cudnn_strides,
    .check = check_backward,
    .check_indices = attention_check_indices,
    .reference = backward,
    .scratch_bytes = backward_scratch_bytes,
    .flops = backward_flops,
    .reference_rate = 5e8,
};
