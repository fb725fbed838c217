/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled dot-product attention, forward and backward: the fields that engines read. */
#ifndef WEFT_GRAPH_OPS_ATTENTION_H
#define WEFT_GRAPH_OPS_ATTENTION_H

#include "graph/op.h"
#include "graph/ops/attention_scales.h"
#include "graph/ops/score_modifier.h"

/* Operands and options that forward and backward share: everything that determines the scores. */
struct attention {
    struct tensor *q, *k, *v;             /* [B, Hq, Sq, Dqk], [B, Hk, Skv, Dqk], [B, Hv, Skv, Dv] */
    struct tensor *k_table, *v_table;     /* [B, 1, pages, 1], may be ragged; then k, or v, is [container, H, page size,
                                         D] */
    int64_t most_keys;                    /* Skv if the user set it for page tables; 0 means all keys that the tables
                                         reach */
    struct tensor *descale_q;             /* [B, Hq, 1, 1] or 1s, or block scales */
    struct tensor *descale_k, *descale_v; /* [B, H, Skv, 1] or 1s, of pages [container, H, page size, 1] or 1s, or
                                              block scales */
    struct tensor *scale;                 /* replaces scale_value */
    struct tensor *bias;                  /* added to the scores, or a boolean mask (true keeps) */
    struct tensor *seq_len_q, *seq_len_kv; /* [B, 1, 1, 1] */
    struct tensor *sink;                   /* [1, Hq, 1, 1] */
    struct tensor *block_mask;             /* [B or 1, Hq or 1, query tiles, key tiles or bytes of 8 key tiles] */
    struct tensor *dropout_seed, *dropout_offset;
    struct tensor *dropout_mask;  /* replaces the seed: multiplies the weights; [B, Hq, Sq, Skv] or 1s */
    struct tensor *dropout_scale; /* replaces 1 / (1 - p) as the factor of kept weights */
    double scale_value, dropout_probability;
    int64_t left_bound, right_bound; /* ATTENTION_UNBOUNDED hides nothing */
    int64_t alignment;               /* weftDiagonalAlignment_t */
    bool alibi;
    int32_t math;
    struct score_modifier modifier;              /* applied to the scaled scores, before bias and masks */
    struct tensor *cu_seq_len_q, *cu_seq_len_kv; /* [B + 1, 1, 1, 1]: cumulative lengths, replace seq_len_* */
};

struct sdpa_fwd_op {
    struct descriptor base;
    struct attention a;
    struct tensor *o, *stats, *max, *sum_exp, *rng_dump;
    struct tensor *descale_s, *scale_s, *scale_o, *amax_s, *amax_o; /* [1, 1, 1, 1] */
    bool unfuse_fma;
    struct descriptor *softmax; /* NULL once finalized: its operands are stats, max, sum_exp and a.sink then */
};

struct sdpa_bwd_op {
    struct descriptor base;
    struct attention a;
    struct tensor *o, *d_o, *stats;
    struct tensor *dq, *dk, *dv, *dbias, *dsink;
    struct tensor *q_t, *k_t, *do_t, *do_f16; /* further copies of q, k and dO, for dK, dQ, dV and dO o */
    struct tensor *descale_o, *descale_do, *descale_q_t, *descale_k_t, *descale_do_t;
    struct tensor *descale_s, *descale_dp, *scale_s, *scale_dp; /* [1, 1, 1, 1], as are all below */
    struct tensor *scale_dq, *scale_dk, *scale_dv;
    struct tensor *amax_dq, *amax_dk, *amax_dv, *amax_dp;
    int64_t max_total_seq_len_q, max_total_seq_len_kv; /* hints for the size of ragged workspace */
    bool is_deterministic;
};

extern const struct op sdpa_fwd_op;
extern const struct op sdpa_bwd_op;

/* The common part of an attention operation; NULL for any other operation. */
static inline const struct attention *attention_of(const struct descriptor *op) {
    if (op->schema->op == &sdpa_fwd_op)
        return &((const struct sdpa_fwd_op *)op)->a;
    return op->schema->op == &sdpa_bwd_op ? &((const struct sdpa_bwd_op *)op)->a : NULL;
}

/* dS of a row subtracts the row sum of P dP, which equals that of dO o. If one weight is nearly 1, dP and this sum
   differ by far less than their magnitude, and by less than the rounding of a 16-bit o: such rows sum P dP instead.
   largest, total: the maximum and the sum of the row's weights. The sink is included in the total, and the sum is
   divided by it. */
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

/* Chooses the more accurate of the two sums. spread: the sum of |dO o|. If they differ by more than the rounding of o
   and the weights, o is not the product of these weights and values: the keys are a part of all keys, or the caller
   adds another gradient to o. */
static inline double attention_better_sum(const struct sdpa_bwd_op *op, double by_weights, double by_o, double spread) {
    double off = by_weights - by_o, most = 2 * attention_roundoff(op) * spread;
    return off <= most && off >= -most ? by_weights : by_o;
}

/* A bound that hides nothing: larger than any distance between row and column, and sums of it fit into 64 bits. */
#define ATTENTION_UNBOUNDED (INT64_C(1) << 60)

enum { ATTENTION_MASK_TILE = 128 }; /* number of queries, and of keys, per tile of a block mask */

/* True if a block mask packs eight key tiles into a byte. */
static inline bool attention_mask_has_bits(const struct attention *a) { return a->block_mask->type == WEFT_DATA_UINT8; }

/* True if keys or values are stored in pages. */
static inline bool attention_is_paged(const struct attention *a) { return a->k_table || a->v_table; }

/* Skv. */
int64_t attention_keys(const struct attention *a);

/* True if dropout multiplies the weights, by random numbers or by a mask. */
static inline bool attention_draws(const struct attention *a) { return a->dropout_probability > 0; }
static inline bool attention_drops(const struct attention *a) { return attention_draws(a) || a->dropout_mask; }

/* The factor of kept weights unless a tensor sets it; 0 if dropout keeps none. */
static inline double attention_keep_scale(const struct attention *a) {
    return a->dropout_probability < 1 ? 1 / (1 - a->dropout_probability) : 0;
}

/* The type to which the softmax, or the gradient of q k^T, is rounded before it becomes an operand: the type of q, or
   of dO, if that is FP8 and has a scale. Otherwise TENSOR_NO_TYPE: it is not rounded. */
static inline int32_t attention_factor_type(const struct tensor *scale, const struct tensor *like) {
    return scale && dtype_is_fp8((weftDataType_t)like->type) ? like->type : TENSOR_NO_TYPE;
}

/* ALiBi's slope of a head: 2^(-8 (i+1) / n) for the first n heads, where n is the largest power of two; the remaining
   heads get slopes between these. */
double attention_alibi_slope(int64_t head, int64_t heads);

/* The key or value head that query head `head` uses. */
static inline int64_t attention_shared_head(int64_t head, int64_t heads, int64_t shared) {
    return head / (heads / shared);
}

#endif
