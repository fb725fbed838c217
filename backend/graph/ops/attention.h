/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled dot-product attention, forward and backward, as engines read it. */
#ifndef WEFT_GRAPH_OPS_ATTENTION_H
#define WEFT_GRAPH_OPS_ATTENTION_H

#include "graph/op.h"
#include "graph/ops/attention_scales.h"
#include "graph/ops/score_modifier.h"

/* What forward and backward share: everything that the scores depend on. */
struct attention {
    struct tensor *q, *k, *v;         /* [B, Hq, Sq, Dqk], [B, Hk, Skv, Dqk], [B, Hv, Skv, Dv] */
    struct tensor *k_table, *v_table; /* [B, 1, pages, 1], may be ragged: k, or v, is [container, H, page size, D] */
    int64_t most_keys;                /* Skv where tables say it; 0: all that they reach */
    struct tensor *descale_q;         /* [B, Hq, 1, 1] or 1s, or of blocks */
    struct tensor *descale_k, *descale_v;  /* [B, H, Skv, 1] or 1s, of pages [container, H, page size, 1] or 1s, or of
                                              blocks */
    struct tensor *scale;                  /* instead of scale_value */
    struct tensor *bias;                   /* added, or a boolean mask: true keeps */
    struct tensor *seq_len_q, *seq_len_kv; /* [B, 1, 1, 1] */
    struct tensor *sink;                   /* [1, Hq, 1, 1] */
    struct tensor *block_mask;             /* [B or 1, Hq or 1, tiles of queries, tiles of keys, or bytes of 8] */
    struct tensor *dropout_seed, *dropout_offset;
    struct tensor *dropout_mask;  /* instead of a seed: multiplies weights; [B, Hq, Sq, Skv] or 1s */
    struct tensor *dropout_scale; /* instead of 1 / (1 - p): multiplies those that are kept */
    double scale_value, dropout_probability;
    int64_t left_bound, right_bound; /* ATTENTION_UNBOUNDED: hides nothing */
    int64_t alignment;               /* weftDiagonalAlignment_t */
    bool alibi;
    int32_t math;
    struct score_modifier modifier;              /* of the scaled scores, before bias and masks */
    struct tensor *cu_seq_len_q, *cu_seq_len_kv; /* [B + 1, 1, 1, 1]: running sums of these, instead */
};

struct sdpa_fwd_op {
    struct descriptor base;
    struct attention a;
    struct tensor *o, *stats, *max, *sum_exp, *rng_dump;
    struct tensor *descale_s, *scale_s, *scale_o, *amax_s, *amax_o; /* [1, 1, 1, 1] */
    bool unfuse_fma;
    /* Refused when set. */
    struct descriptor *softmax;
};

struct sdpa_bwd_op {
    struct descriptor base;
    struct attention a;
    struct tensor *o, *d_o, *stats;
    struct tensor *dq, *dk, *dv, *dbias, *dsink;
    struct tensor *q_t, *k_t, *do_t, *do_f16; /* q, k and dO once more: for dK, dQ, dV and dO o */
    struct tensor *descale_o, *descale_do, *descale_q_t, *descale_k_t, *descale_do_t;
    struct tensor *descale_s, *descale_dp, *scale_s, *scale_dp; /* [1, 1, 1, 1], as all below */
    struct tensor *scale_dq, *scale_dk, *scale_dv;
    struct tensor *amax_dq, *amax_dk, *amax_dv, *amax_dp;
    int64_t max_total_seq_len_q, max_total_seq_len_kv; /* hints for ragged workspace */
    bool is_deterministic;
};

extern const struct op sdpa_fwd_op;
extern const struct op sdpa_bwd_op;

/* The common part of an attention operation, NULL of any other. */
static inline const struct attention *attention_of(const struct descriptor *op) {
    if (op->schema->op == &sdpa_fwd_op)
        return &((const struct sdpa_fwd_op *)op)->a;
    return op->schema->op == &sdpa_bwd_op ? &((const struct sdpa_bwd_op *)op)->a : NULL;
}

/* A row's dS subtracts the sum of its P dP, which equals the sum of its dO o. Where one weight is nearly 1, dP and that
   sum differ by far less than they are, and by less than o of 16 bits is rounded by: such rows sum P dP instead.
   largest, total: of the row's weights, the sink's included in the total, by which the sum is divided. */
static inline bool attention_rounds_o(const struct sdpa_bwd_op *op) {
    return dtype_is_half((weftDataType_t)op->o->type) && !op->a.descale_q && !op->do_f16;
}
static inline double attention_roundoff(const struct sdpa_bwd_op *op) {
    return op->o->type == WEFT_DATA_BFLOAT16 ? 0x1p-8 : 0x1p-11;
}
static inline bool attention_is_saturated(const struct sdpa_bwd_op *op, double largest, double total) {
    double missing = 1 - total, roundoff = attention_roundoff(op);
    return largest > 0.5 && missing <= roundoff && missing >= -roundoff;
}

/* The better of both sums; spread: the sum of |dO o|. If they differ by more than o and weights are rounded by, o is
   not the product of these weights and values: the keys are some of many, or the caller adds another gradient to o. */
static inline double attention_better_sum(const struct sdpa_bwd_op *op, double by_weights, double by_o, double spread) {
    double off = by_weights - by_o, most = 2 * attention_roundoff(op) * spread;
    return off <= most && off >= -most ? by_weights : by_o;
}

/* A bound that hides nothing: farther than any row is from any column, and still adds up in 64 bits. */
#define ATTENTION_UNBOUNDED (INT64_C(1) << 60)

enum { ATTENTION_MASK_TILE = 128 }; /* queries, and keys, of a tile of a block mask */

/* Whether a block mask has eight tiles of keys in a byte. */
static inline bool attention_mask_has_bits(const struct attention *a) { return a->block_mask->type == WEFT_DATA_UINT8; }

/* Whether keys or values are stored in pages. */
static inline bool attention_is_paged(const struct attention *a) { return a->k_table || a->v_table; }

/* Skv. */
int64_t attention_keys(const struct attention *a);

/* Whether weights are multiplied by what is drawn, or by that or a mask. */
static inline bool attention_draws(const struct attention *a) { return a->dropout_probability > 0; }
static inline bool attention_drops(const struct attention *a) { return attention_draws(a) || a->dropout_mask; }

/* What kept weights are multiplied by where no tensor says it; 0: none is kept. */
static inline double attention_growth(const struct attention *a) {
    return a->dropout_probability < 1 ? 1 / (1 - a->dropout_probability) : 0;
}

/* What the softmax, or the gradient of q k^T, becomes where it is a factor: q's, or dO's, type where that is FP8 and
   has a scale, and itself, TENSOR_NO_TYPE, elsewhere. */
static inline int32_t attention_factor_type(const struct tensor *scale, const struct tensor *like) {
    return scale && dtype_is_fp8((weftDataType_t)like->type) ? like->type : TENSOR_NO_TYPE;
}

/* The key or value head that serves query head `head`. */
static inline int64_t attention_shared_head(int64_t head, int64_t heads, int64_t shared) {
    return head / (heads / shared);
}

#endif
