/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_bwd on Hopper. backward_rows_sm90.cuh computes per-query statistics. The unordered family then runs one pass of
   backward_sm90.cuh for all gradients, in which CTAs add dQ to float sums in any order, and backward_sums_sm90.cuh
   converts the sums to rows. The deterministic family runs one pass for dK and dV and another one for dQ, which
   computes the scores twice. If many query heads share a key head, a CTA processes some of them, and
   backward_sums_sm90.cuh adds the parts. FP8 operands are converted to f16 first; a pass for all gradients computes S,
   dP and dQ from the FP8 operands, though. MXFP8 (block scales) is converted to bf16. It has two copies of each
   operand, one for S and dP, one for the gradients, and each gradient has its own pass. */
#include "base/number.h"
#include "engines/cuda/attention/hopper/backward_geometry.h"
#include "engines/cuda/attention/hopper/hopper.h"

enum {
    THREADS = 3 * WARPGROUP,
    ROWS_THREADS = 256,
    SINK_THREADS = 256,
    SUMS_THREADS = 128,
    BLOCKS_PER_SET = 128, /* about one per SM */
    HEADS_PER_PART =
        4, /* of those that share a key head: with more, CTAs of unequal length drift out of step, and the sums do not
              stay in L2. 8 heads of 8192 take 6.3 ms, 4 heads take 4.6 ms (H100) */
    STEPS_PER_PART = 16, /* CTAs with fewer steps are not split to occupy more SMs */
    DEPTH_OF_BOTH = 128, /* deepest head whose dK and dV both fit in registers with f16 dropout, or with dropout and a
                            bias or mask */
    DEPTH_OF_MASK = 192, /* deepest head whose dK fits in registers with ragged tensors and a block mask */
};

static const double PRODUCTS_PER_CLOCK = 2048, EFFICIENCY = 0.55, START_SECONDS = 3e-6;
static const double BLOCK_SECONDS = 6.5e-6; /* prologue of a CTA, and storing its gradients */

/* Gradients that a pass computes, and its share of the multiply-adds of the operation, which has five matmuls. */
enum grads { GRADS_ALL, GRADS_DKV, GRADS_DK, GRADS_DV, GRADS_DQ };
static const struct {
    const char *name;
    double share;
    bool kv_resident, has_dqk, has_dv;
} kinds[] = {
    [GRADS_ALL] = {"all gradients", 1, true, true, true}, [GRADS_DKV] = {"dK and dV", 0.8, true, true, true},
    [GRADS_DK] = {"dK", 0.6, true, true, false},          [GRADS_DV] = {"dV", 0.4, true, false, true},
    [GRADS_DQ] = {"dQ", 0.6, false, true, false},
};

/* By padded depth, smallest first, then fastest first. stages: of streamed Q or K, and of V or dO; two leave room for
   bias boxes. Registers: per thread of the two consumers, and of the producer, after reallocation. has_derivatives:
   they suffice for the derivatives of a score modifier, too. */
static const struct backward_tile {
    enum grads grads;
    bool has_derivatives;
    int head, value_head, block_streamed, stages, vdo_stages, consumer_registers, producer_registers;
} tiles[] = {
    {GRADS_ALL, false, 64, 64, 128, 3, 3, 216, 72},  {GRADS_ALL, false, 64, 64, 128, 2, 2, 216, 72},
    {GRADS_ALL, true, 64, 64, 64, 3, 3, 216, 72},    {GRADS_ALL, false, 128, 128, 64, 3, 3, 208, 88},
    {GRADS_ALL, true, 128, 128, 64, 3, 3, 216, 72},  {GRADS_DKV, false, 64, 64, 128, 4, 4, 240, 24},
    {GRADS_DKV, true, 64, 64, 64, 4, 4, 240, 24},    {GRADS_DKV, true, 128, 128, 64, 4, 4, 240, 24},
    {GRADS_DKV, false, 192, 128, 64, 3, 3, 240, 24}, {GRADS_DK, true, 64, 64, 64, 4, 4, 240, 24},
    {GRADS_DK, true, 128, 128, 64, 4, 4, 240, 24},   {GRADS_DK, true, 192, 128, 64, 3, 3, 240, 24},
    {GRADS_DK, true, 192, 192, 64, 3, 2, 240, 24},   {GRADS_DK, true, 256, 256, 64, 2, 1, 240, 24},
    {GRADS_DV, true, 64, 64, 64, 4, 4, 240, 24},     {GRADS_DV, true, 128, 128, 64, 4, 4, 240, 24},
    {GRADS_DV, true, 192, 128, 64, 4, 4, 240, 24},   {GRADS_DV, true, 192, 192, 64, 3, 3, 240, 24},
    {GRADS_DV, true, 256, 256, 64, 2, 2, 240, 24},   {GRADS_DQ, false, 64, 64, 128, 4, 4, 240, 24},
    {GRADS_DQ, true, 64, 64, 64, 4, 4, 240, 24},     {GRADS_DQ, false, 128, 128, 128, 2, 2, 240, 24},
    {GRADS_DQ, true, 128, 128, 64, 4, 4, 240, 24},   {GRADS_DQ, true, 192, 128, 64, 3, 3, 240, 24},
    {GRADS_DQ, true, 192, 192, 64, 3, 2, 240, 24},   {GRADS_DQ, true, 256, 256, 64, 2, 1, 240, 24},
};

/* dK and dQ of MXFP8: streamed rows are loaded twice, for S and for the gradient. */
static const struct backward_tile mxfp8_tiles[] = {
    {GRADS_DK, false, 64, 64, 64, 4, 4, 240, 24},   {GRADS_DK, false, 128, 128, 64, 3, 3, 240, 24},
    {GRADS_DK, false, 192, 128, 64, 2, 2, 240, 24}, {GRADS_DK, false, 192, 192, 64, 2, 1, 240, 24},
    {GRADS_DQ, false, 64, 64, 64, 4, 4, 240, 24},   {GRADS_DQ, false, 128, 128, 64, 3, 3, 240, 24},
    {GRADS_DQ, false, 192, 128, 64, 2, 2, 240, 24}, {GRADS_DQ, false, 192, 192, 64, 2, 1, 240, 24},
};

/* All FP8 gradients in one pass. The scales need registers, which leaves too few for longer steps with heads of 64
   columns. */
static const struct backward_tile fp8_tiles[] = {{GRADS_ALL, false, 64, 64, 64, 4, 4, 216, 72},
                                                 {GRADS_ALL, false, 128, 128, 64, 3, 3, 216, 72}};

enum { PASSES_MAX = 3 };

/* The passes of an operation, and the layout of statistics and sums, which are stored by blocks of queries. */
struct backward {
    const struct cuda_attention *c;
    const struct sdpa_bwd_op *op;
    const struct backward_tile *passes[PASSES_MAX];
    int pass_count;
    bool reduces_dq, has_derivatives;
    bool stores_dq; /* reduces_dq, and each query sees only the keys of one CTA, so nothing is added */
    int head, value_head, block_q;
    int64_t q_blocks, tiles; /* tiles: blocks of queries, over all heads */
    int64_t key_blocks;
    weftDataType_t type;                /* of MMA operands */
    bool is_fp8;                        /* c is `wide`, whose operands are converted */
    bool is_mxfp8;                      /* MXFP8: all scales are block scales */
    bool has_fp8_mma;                   /* S, dP and dQ use FP8 MMAs, and streamed rows are loaded twice */
    const struct cuda_attention *given; /* c before conversion */
    struct cuda_attention wide;
    struct attention_widened widened;
};

/* ---- Accepting ---- */

/* Checks for features that no pass supports, whatever the tile. */
static weftStatus_t check_features(const struct cuda_attention *c) {
    if (c->a->modifier.gradient_output >= 0 && !score_modifier_gradient_is_linear(&c->a->modifier))
        return attention_decline(
            c, "Hopper's backward kernel requires that the score modifier's given gradient is linear in "
               "the incoming gradient");
    if (!c->lines || !c->keys || !c->depth || !c->value_depth)
        return attention_decline(c, "a matrix operand is empty");
    if (attention_hopper_multiplies_by_mask(c))
        return attention_decline(c, "Hopper's backward kernel supports only boolean dropout masks");
    if (c->backward->stats->type != WEFT_DATA_FLOAT)
        return attention_decline(c, "Hopper's backward kernel requires statistics of type FLOAT");
    return WEFT_STATUS_SUCCESS;
}

/* True for MXFP8: all operands, both copies of them, and the two of dO have block scales, and nothing else has a
   scale. */
static bool has_block_scales(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *pairs[][2] = {
        {c->a->descale_q, c->a->q}, {c->a->descale_k, c->a->k}, {c->a->descale_v, c->a->v},  {op->descale_do, op->d_o},
        {op->descale_q_t, op->q_t}, {op->descale_k_t, op->k_t}, {op->descale_do_t, op->do_t}};
    const struct tensor *others[] = {op->descale_o, op->descale_s, op->descale_dp, op->scale_s,
                                     op->scale_dp,  op->scale_dq,  op->scale_dk,   op->scale_dv};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!pairs[i][0] || !pairs[i][1] || !attention_blocks_of(pairs[i][0], pairs[i][1]).are_blocks)
            return false;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i])
            return false;
    return op->do_f16 && op->q_t != c->a->q && op->k_t != c->a->k && op->do_t != op->d_o;
}

/* True if each scale is a single number or absent. */
static bool has_plain_scales(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *scales[] = {c->a->descale_q, c->a->descale_k, c->a->descale_v, op->descale_o, op->descale_do};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (scales[i] && tensor_elements(scales[i]) != 1)
            return false;
    return !op->q_t && !op->k_t && !op->do_t && !op->do_f16;
}

static bool is_fp8(int32_t type) { return dtype_is_fp8((weftDataType_t)type); }

/* MXFP8: results of type FLOAT need more than one rounding of their operands. */
static weftStatus_t check_copies(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *outputs[] = {op->dq, op->dk, op->dv};
    if (!is_fp8(op->q_t->type) || !is_fp8(op->k_t->type) || !is_fp8(op->do_t->type))
        return attention_decline(c, "with block scales, Hopper's backward kernel requires q_T, k_T and dO_T of FP8");
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (attention_wants(c, outputs[i]) && dtype_bytes((weftDataType_t)outputs[i]->type, 1) > 2)
            return attention_decline(
                c, "with block scales, Hopper's backward kernel supports only results of 16 bits or fewer");
    return WEFT_STATUS_SUCCESS;
}

/* has_copies: MXFP8. */
static weftStatus_t check_fp8(const struct cuda_attention *c, bool is_mxfp8) {
    const struct sdpa_bwd_op *op = c->backward;
    if (!is_fp8(c->a->q->type) || !is_fp8(c->a->k->type) || !is_fp8(c->a->v->type) || !is_fp8(op->d_o->type))
        return attention_decline(c, "Hopper's backward kernel supports scales only if q, k, v and dO are FP8");
    if (is_mxfp8)
        TRY(check_copies(c));
    if (!is_mxfp8 && !has_plain_scales(c))
        return attention_decline(
            c, "Hopper's backward kernel supports one scale per operand, or block scales of all operands");
    if (!is_mxfp8 && (!op->scale_s || !op->scale_dp))
        return attention_decline(c, "Hopper's backward kernel requires scale_s and scale_dP with FP8");
    if (c->a->bias || c->a->modifier.graph || attention_drops(c->a))
        return attention_decline(c,
                                 "with FP8 scales there are too few registers for a bias, a score modifier or dropout");
    if (attention_wants(c, op->dsink))
        return attention_decline(c,
                                 "Hopper's backward kernel does not compute the gradient of the sink with FP8 scales");
    if (attention_is_ragged(c))
        return attention_decline(c, "Hopper's backward kernel does not support ragged FP8 tensors");
    return WEFT_STATUS_SUCCESS;
}

/* Checks the converted operands, and o and the results, which may have any type, in rows that are accessed in
   vectors. */
static weftStatus_t check_fp8_operands(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *read[] = {op->o, op->do_f16, c->a->k, c->a->v}, *outputs[] = {op->dq, op->dk, op->dv};
    TRY(attention_hopper_check_widened(c));
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        if (read[i])
            TRY(attention_hopper_check_tma_rows(c, read[i]));
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (attention_wants(c, outputs[i]))
            TRY(attention_hopper_check_tma_rows(c, outputs[i]));
    return WEFT_STATUS_SUCCESS;
}

/* o and dO are read by rows only, but must have the TMA layout. */
static weftStatus_t check_operands(const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *read[] = {c->a->q, c->a->k, c->a->v, op->o, op->d_o}, *outputs[] = {op->dq, op->dk, op->dv};
    if (c->widened)
        return check_fp8_operands(c);
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        TRY(attention_hopper_check_tma_16bit(c, read[i]));
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (attention_wants(c, outputs[i]))
            TRY(attention_hopper_check_tma_16bit(c, outputs[i]));
    return WEFT_STATUS_SUCCESS;
}

/* A 64-column panel that is entirely past the columns must not be requested: see varlen_sm90.cuh. */
static weftStatus_t check_ragged(const struct backward *b) {
    /* This happens for values of 64 columns with a depth of 128: their tile has 128 columns for both. */
    bool has_outer = b->head - b->c->depth >= 64 || b->value_head - b->c->value_depth >= 64;
    if (!attention_is_ragged(b->c))
        return WEFT_STATUS_SUCCESS;
    if (has_outer)
        return attention_decline(
            b->c, "Hopper's backward kernel supports ragged tensors only if it pads heads by fewer than 64 columns");
    if (b->head > DEPTH_OF_MASK && b->c->a->block_mask)
        return attention_decline(b->c,
                                 "with such heads there are too few registers for a block mask with ragged tensors");
    return WEFT_STATUS_SUCCESS;
}

/* True if streamed `qk` rows are loaded twice. */
static bool loads_twice(const struct backward *b, const struct backward_tile *t) {
    return b->has_fp8_mma || (b->is_mxfp8 && kinds[t->grads].has_dqk);
}

/* True if TMA loads the bias: in passes that reduce dQ, if there is room. */
static bool has_tma_bias(const struct backward *b, const struct backward_tile *t) {
    return t->grads == GRADS_ALL && !b->is_fp8 && attention_hopper_has_tma_bias(b->c);
}

/* The variant of the kernel for a tile, except for members that do not change its memory; see emit_config. */
static struct backward_config config_of(const struct backward *b, const struct backward_tile *t) {
    return (struct backward_config){
        .kv_resident = kinds[t->grads].kv_resident,
        .has_dqk = kinds[t->grads].has_dqk,
        .has_dv = kinds[t->grads].has_dv,
        .reduces_dq = b->reduces_dq,
        .has_fp8_mma = b->has_fp8_mma,
        .loads_twice = loads_twice(b, t),
        .has_tma_bias = has_tma_bias(b, t),
        .head = t->head,
        .value_head = t->value_head,
        .block_streamed = t->block_streamed,
        .stages = t->stages,
        .vdo_stages = t->vdo_stages,
        .consumer_registers = t->consumer_registers,
        .producer_registers = t->producer_registers,
    };
}

static unsigned shared_bytes(const struct backward *b, const struct backward_tile *t) {
    return backward_memory_of(config_of(b, t)).bytes;
}

/* If queries fill only half of a step, the tile with steps half as long is used. */
static bool fits(const struct backward_tile *t, const struct backward *b) {
    bool is_half_empty = t->grads == GRADS_ALL && t->block_streamed > 64 && b->c->queries <= 64;
    return !is_half_empty && t->has_derivatives >= b->has_derivatives && t->head >= b->c->depth &&
           t->value_head >= b->c->value_depth && shared_bytes(b, t) <= SHARED_MAX;
}

/* The first tile that fits, or NULL. Tables are ordered by depth, so it is the best. */
static const struct backward_tile *find_tile(const struct backward *b, enum grads grads) {
    bool loads_twice = b->is_mxfp8 && kinds[grads].has_dqk;
    const struct backward_tile *from = b->has_fp8_mma ? fp8_tiles : loads_twice ? mxfp8_tiles : tiles;
    size_t count = b->has_fp8_mma ? sizeof fp8_tiles / sizeof *fp8_tiles
                   : loads_twice  ? sizeof mxfp8_tiles / sizeof *mxfp8_tiles
                                  : sizeof tiles / sizeof *tiles;
    for (size_t i = 0; i < count; i++)
        if (from[i].grads == grads && fits(&from[i], b))
            return &from[i];
    return NULL;
}

/* Adds a pass with the best tile, or fails with the depth that is not supported. */
static weftStatus_t add_pass(struct backward *b, enum grads grads) {
    const struct backward_tile *tile = find_tile(b, grads);
    if (tile) {
        b->passes[b->pass_count++] = tile;
        return WEFT_STATUS_SUCCESS;
    }
    FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
         "%s: head dimensions %lld and %lld are too large for Hopper's backward kernel to compute %s; the "
         "portable attention family handles it.",
         descriptor_label(region_node(b->c->region, 0)->op), (long long)b->c->depth, (long long)b->c->value_depth,
         kinds[grads].name);
}

/* Two passes if k and v have different numbers of heads, registers do not hold both gradients, or one is not
   requested. */
static weftStatus_t add_passes_of_keys(struct backward *b, bool wants_k, bool wants_v) {
    const struct attention *a = b->c->a;
    /* With dropout, f16, a bias or a block mask uses the registers that the second gradient would need. */
    bool is_rich = attention_drops(a) && (a->q->type == WEFT_DATA_HALF || a->bias || a->block_mask);
    bool is_together = wants_k && wants_v && b->c->key_heads == b->c->value_heads && !b->is_mxfp8;
    if (is_together && !(is_rich && b->c->depth > DEPTH_OF_BOTH) && find_tile(b, GRADS_DKV))
        return add_pass(b, GRADS_DKV);
    if (wants_k)
        TRY(add_pass(b, GRADS_DK));
    return wants_v ? add_pass(b, GRADS_DV) : WEFT_STATUS_SUCCESS;
}

/* One pass for all gradients, which adds dQ in any order, or a pass for keys followed by one for queries. */
static weftStatus_t plan_passes(struct backward *b) {
    bool wants_q = attention_wants(b->c, b->op->dq), wants_k = attention_wants(b->c, b->op->dk);
    bool wants_v = attention_wants(b->c, b->op->dv);
    if (b->reduces_dq && b->op->is_deterministic)
        return attention_decline(b->c, "a deterministic result is required, and this kernel adds dQ in any order");
    if (b->reduces_dq && !(wants_q && wants_k && wants_v))
        return attention_decline(b->c, "this kernel computes dQ, dK and dV together, and not all are requested");
    if (b->reduces_dq && b->is_mxfp8)
        return attention_decline(
            b->c, "this kernel computes dQ, dK and dV together, and MXFP8 needs separate operands for each");
    if (b->reduces_dq && b->c->key_heads != b->c->value_heads)
        return attention_decline(
            b->c, "this kernel computes dK and dV together, and k and v have different numbers of heads");
    if (b->reduces_dq && attention_drops(b->c->a) && b->c->a->q->type == WEFT_DATA_HALF)
        return attention_decline(b->c, "with the sums of dQ there are too few registers for dropout of f16");
    if (b->reduces_dq && attention_drops(b->c->a) && (b->c->a->bias || b->c->a->modifier.graph))
        return attention_decline(
            b->c, "with the sums of dQ there are too few registers for dropout with a bias or a score modifier");
    if (b->reduces_dq)
        return add_pass(b, GRADS_ALL);
    TRY(add_passes_of_keys(b, wants_k, wants_v));
    if (wants_q)
        TRY(add_pass(b, GRADS_DQ));
    return b->pass_count ? WEFT_STATUS_SUCCESS : attention_decline(b->c, "no gradient is requested");
}

/* Sets b->c to a copy of the operation whose operands are in the workspace: elsewhere in this file, only b->is_fp8
   shows FP8. */
static weftStatus_t widen_operands(struct backward *b) {
    const struct cuda_attention *c = b->c;
    b->is_mxfp8 = has_block_scales(c);
    TRY(check_fp8(c, b->is_mxfp8));
    b->is_fp8 = true;
    b->has_fp8_mma = b->reduces_dq;
    b->type = b->widened.type = b->is_mxfp8 ? WEFT_DATA_BFLOAT16 : WEFT_DATA_HALF;
    attention_hopper_widen(&b->widened, c->a->q, c->a->descale_q);
    attention_hopper_widen(&b->widened, b->op->d_o, b->op->descale_do);
    if (!b->has_fp8_mma) {
        attention_hopper_widen(&b->widened, c->a->k, c->a->descale_k);
        attention_hopper_widen(&b->widened, c->a->v, c->a->descale_v);
    }
    if (b->is_mxfp8) {
        attention_hopper_widen(&b->widened, b->op->q_t, b->op->descale_q_t);
        attention_hopper_widen(&b->widened, b->op->k_t, b->op->descale_k_t);
        attention_hopper_widen(&b->widened, b->op->do_t, b->op->descale_do_t);
    }
    b->wide = *c;
    b->wide.widened = &b->widened;
    b->c = &b->wide;
    return WEFT_STATUS_SUCCESS;
}

/* The first pass that computes dS, which also computes amax_dP; or NULL. */
static const struct backward_tile *first_of_ds(const struct backward *b) {
    for (int i = 0; i < b->pass_count; i++)
        if (kinds[b->passes[i]->grads].has_dqk)
            return b->passes[i];
    return NULL;
}

/* amax_dP is computed with dS. */
static weftStatus_t check_amax(const struct backward *b) {
    if (attention_wants(b->c, b->op->amax_dp) && !first_of_ds(b))
        return attention_decline(b->c, "amax_dP is requested without dQ and dK");
    return WEFT_STATUS_SUCCESS;
}

/* True if every query sees at least one key, and all of them are in one block of keys. Otherwise, rows of dQ would not
   be stored. */
static bool is_one_block(const struct cuda_attention *c) {
    const struct attention *a = c->a;
    bool has_lengths = a->seq_len_q || a->seq_len_kv || a->cu_seq_len_q || a->cu_seq_len_kv || attention_is_ragged(c);
    bool sees_first_key = a->alignment == WEFT_DIAGONAL_TOP_LEFT || c->keys >= c->queries;
    return c->keys <= BLOCK_RESIDENT && !has_lengths && !a->block_mask && a->left_bound == ATTENTION_UNBOUNDED &&
           a->right_bound >= 0 && sees_first_key;
}

/* Statistics are stored by blocks of queries. The first pass determines the block size: its streamed rows, or its
   resident rows if it computes dQ. */
static weftStatus_t plan_backward(struct backward *b, const struct cuda_attention *c, bool reduces_dq) {
    *b = (struct backward){
        .c = c, .given = c, .op = c->backward, .reduces_dq = reduces_dq, .type = (weftDataType_t)c->a->q->type};
    if (attention_is_scaled(c))
        TRY(widen_operands(b));
    c = b->c;
    b->has_derivatives =
        c->a->modifier.graph && (c->a->modifier.gradient_output >= 0 || !score_modifier_is_shift(&c->a->modifier));
    TRY(check_features(c));
    TRY(check_operands(c));
    TRY(plan_passes(b));
    TRY(check_amax(b));
    b->head = b->passes[0]->head;
    b->value_head = b->passes[0]->value_head;
    b->block_q = !kinds[b->passes[0]->grads].kv_resident ? BLOCK_RESIDENT : b->passes[0]->block_streamed;
    b->q_blocks = divide_up(c->queries, b->block_q);
    b->tiles = c->batches * c->heads * b->q_blocks;
    b->key_blocks = divide_up(c->keys, BLOCK_RESIDENT);
    b->stores_dq = reduces_dq && !b->is_fp8 && is_one_block(c);
    return check_ragged(b);
}

/* ---- Emitting ---- */

/* Two floats per query: lse2 and delta. */
static int64_t statistics_bytes(const struct backward *b) { return round_up(b->tiles * 2 * b->block_q * 4, 64); }
static bool needs_dq_sums(const struct backward *b) { return b->reduces_dq && !b->stores_dq; }
static int64_t dq_sums_bytes(const struct backward *b) {
    return needs_dq_sums(b) ? b->tiles * b->block_q * b->head * 4 : 0;
}

/* Heads of the resident side: a CTA with resident keys iterates over the queries of all heads that share them. */
static int64_t resident_heads(const struct cuda_attention *c, enum grads grads) {
    return grads == GRADS_DQ ? c->heads : grads == GRADS_DV ? c->value_heads : c->key_heads;
}

/* True if bounds cause CTAs of unequal length. */
static bool has_bounds(const struct cuda_attention *c) {
    return c->a->right_bound < c->keys || c->a->left_bound < c->queries;
}

/* Query heads that a CTA with resident keys processes, of those that share its head. Few if CTAs drift out of step
   while they add dQ, or if there are too few CTAs for the device and enough steps. */
static int64_t heads_per_part(const struct backward *b, enum grads grads) {
    const struct cuda_attention *c = b->c;
    int64_t kv_heads = resident_heads(c, grads), group = c->heads / kv_heads,
            blocks = c->batches * kv_heads * b->key_blocks;
    /* CTAs of unequal length need a second wave for balance. */
    int64_t enough = c->device->cuda.multiprocessors * (has_bounds(c) ? 2 : 1);
    int64_t heads = b->reduces_dq && has_bounds(c) ? min64(group, HEADS_PER_PART) : group;
    while (heads > 1 && heads * b->q_blocks > STEPS_PER_PART && blocks * divide_up(group, heads) < enough)
        heads = divide_up(heads, 2);
    return divide_up(group, divide_up(group, heads));
}

/* Number of partial gradients of a key head, each over heads_per_part query heads; 1: the pass stores the gradient
   itself. */
static int64_t part_count(const struct backward *b, enum grads grads) {
    return kinds[grads].kv_resident ? divide_up(b->c->heads / resident_heads(b->c, grads), heads_per_part(b, grads))
                                    : 1;
}

/* Bytes of the partial gradients of k, or v. */
static int64_t parts_bytes(const struct backward *b, bool of_values) {
    for (int i = 0; i < b->pass_count; i++) {
        enum grads grads = b->passes[i]->grads;
        int64_t parts = part_count(b, grads), width = of_values ? b->value_head : b->head;
        if (kinds[grads].kv_resident && (of_values ? kinds[grads].has_dv : kinds[grads].has_dqk) && parts > 1)
            return b->c->batches * resident_heads(b->c, grads) * parts * b->key_blocks * BLOCK_RESIDENT * width * 4;
    }
    return 0;
}

/* Offset in the workspace, after the statistics and the sums of dQ. */
static int64_t parts_offset(const struct backward *b, bool of_values) {
    return statistics_bytes(b) + dq_sums_bytes(b) + (of_values ? parts_bytes(b, false) : 0);
}

/* Emits NAME_of(arguments) for each scale; it returns 1 if the scale is absent or already applied to the elements. */
static void emit_scales(struct kernel_source *source, const struct backward *b) {
    const struct attention *a = b->c->a;
    const struct sdpa_bwd_op *op = b->op;
    const struct {
        const struct tensor *tensor;
        const char *name;
    } scales[] = {{a->descale_q, "descale_q"},    {a->descale_k, "descale_k"},     {a->descale_v, "descale_v"},
                  {op->descale_o, "descale_o"},   {op->descale_do, "descale_d_o"}, {op->descale_s, "descale_s"},
                  {op->descale_dp, "descale_dp"}, {op->scale_s, "scale_s"},        {op->scale_dp, "scale_dp"},
                  {op->scale_dq, "scale_dq"},     {op->scale_dk, "scale_dk"},      {op->scale_dv, "scale_dv"}};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        const struct tensor *scale = b->is_mxfp8 ? NULL : scales[i].tensor;
        text_add(&source->code, "template <class P> DEVICE float %s_of(const P &p) {\n    return ", scales[i].name);
        text_add(&source->code, scale ? "to_float(*p.%s);\n}\n\n" : "1;\n}\n\n", scales[i].name);
        if (scale)
            emit_pointer(source, (weftDataType_t)scale->type, graph_find_value(b->c->graph, scale), 0, scales[i].name);
    }
}

/* Emits what FP8 adds: scales, operand types, and whether the pass computes the amax of dS. */
static void emit_fp8(struct kernel_source *source, const struct backward *b, bool tracks_ds) {
    bool has_amax = tracks_ds && attention_wants(b->c, b->op->amax_dp);
    emit_constant(source, "IS_FP8", b->is_fp8);
    attention_emit_scale(source, b->c, has_amax ? b->op->amax_dp : NULL, "amax_ds", "HAS_AMAX_DS");
    if (b->is_fp8)
        emit_scales(source, b);
    bool rounds = b->is_fp8 && !b->is_mxfp8;
    emit_type(source, "p_operand_t", rounds ? (weftDataType_t)b->c->a->q->type : b->type);
    emit_type(source, "ds_operand_t", rounds ? (weftDataType_t)b->op->d_o->type : b->type);
}

/* Emits what all kernels need. */
static void emit_shared(struct kernel_source *source, const struct backward *b) {
    attention_hopper_emit_scores(source, b->c);
    emit_type(source, "in_t", b->type);
    emit_constant(source, "IS_BF16", b->type == WEFT_DATA_BFLOAT16);
    emit_scratch(source, "float", 0, "statistics");
    if (needs_dq_sums(b))
        emit_scratch(source, "float", statistics_bytes(b), "dq_sum");
}

/* Emits how dropout changes the statistics: see backward_rows_sm90.cuh. */
static void emit_keep_probability(struct kernel_source *source, const struct backward *b) {
    emit_constant(source, "HAS_DROPOUT", attention_drops(b->c->a));
    attention_emit_scale(source, b->c, b->c->a->dropout_scale, "dropout_scale", "HAS_DROPOUT_SCALE");
    if (attention_drops(b->c->a) && !b->c->a->dropout_scale)
        attention_emit_real(source, 1 - b->c->a->dropout_probability, "keep_probability");
}

/* True if constant factors of all scores are known separately: if the modifier's gradient is derived. */
static bool has_factors(const struct backward *b) {
    return b->has_derivatives && b->c->a->modifier.gradient_output < 0;
}
static bool is_soft_cap(const struct backward *b) { return has_factors(b) && attention_is_soft_cap(b->c); }

/* True if a single-instruction tanh, with an error of 2^-11 of a score, is accurate enough; P of f16 has that many
   bits. */
static bool is_rounded(const struct cuda_attention *c) { return c->a->q->type != WEFT_DATA_HALF; }

/* Emits derivative_factor_of(arguments): the constant factor of all derivatives, which is multiplied into the scale of
   dQ and dK instead. For a soft cap, it is the product of both factors. */
static void emit_derivative_factor(struct kernel_source *source, bool has_both) {
    text_add(&source->code,
             "template <class P> DEVICE float derivative_factor_of(const P &%s) {\n    return %s;\n}\n\n",
             has_both ? "p" : "", has_both ? "factor_before(p) * factor_after(p)" : "1.0f");
}

/* Prologue: delta and lse2 of each query, and zeroed sums of dQ. */
static weftStatus_t build_rows(const struct backward *b, struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, b->c->region);
    text_add(&source.constants, "#include \"core/ptx_sm90.cuh\"\n");
    emit_shared(&source, b);
    emit_fp8(&source, b, false);
    emit_constant(&source, "HEAD", b->head);
    emit_constant(&source, "VALUE_HEAD", b->value_head);
    emit_constant(&source, "BLOCK_Q", b->block_q);
    emit_constant(&source, "REDUCES_DQ", needs_dq_sums(b));
    emit_keep_probability(&source, b);
    emit_constant(&source, "THREADS", ROWS_THREADS);
    emit_divisor(&source, b->q_blocks, "q_blocks");
    emit_divisor(&source, b->c->heads, "heads");
    emit_number(&source, b->c->value_depth, "value_depth");
    attention_emit_tensor(&source, b->c, b->op->o, "o", NULL);
    attention_emit_tensor(&source, b->c, b->op->do_f16 ? b->op->do_f16 : b->op->d_o, "d_o", NULL);
    attention_emit_tensor(&source, b->c, b->op->stats, "stats", NULL);
    TRY(kernel_finish(&source, kernel, "attention/hopper/backward_rows_sm90.cuh", "attention_backward_rows_sm90",
                      arena));
    return attention_grid(kernel, b->c, b->tiles, ROWS_THREADS / 32);
}

/* Float sums of a gradient and their layout. Padded rows and columns of one sum; offset in the workspace in bytes;
   numbers of heads, blocks and parts, from outermost to innermost; is_of_keys: rows past the keys in use are zeroed,
   otherwise rows past the queries in use. */
struct gradient_sums {
    const struct tensor *gradient;
    int rows, width;
    int64_t offset, heads, blocks, parts;
    bool is_of_keys, scales;
    const struct tensor *amax;    /* FP8: amax, */
    const char *descales, *scale; /* factors that give true values, and the factor of the stored values */
};

static void emit_results_of_fp8(struct kernel_source *source, const struct backward *b, const struct gradient_sums *s) {
    const struct tensor *amax = b->is_fp8 && attention_wants(b->c, s->amax) ? s->amax : NULL;
    attention_emit_scale(source, b->c, amax, "amax_dqk", "HAS_AMAX_DQK");
    if (!b->is_fp8)
        return;
    text_add(&source->code, "template <class P> DEVICE float sums_scale_of(const P &p) {\n    return %s;\n}\n\n",
             s->descales);
    text_add(&source->code, "template <class P> DEVICE float output_scale_of(const P &p) {\n    return %s;\n}\n\n",
             s->scale);
}

/* Converts float sums to rows of the gradient's type. Parts are added in order, so the result is deterministic. */
static weftStatus_t build_gradient(const struct backward *b, const struct gradient_sums *s, struct cuda_kernel *kernel,
                                   struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, b->c->region);
    text_add(&source.constants, "#include \"core/ptx_sm90.cuh\"\n");
    attention_hopper_emit_scores(&source, b->c);
    emit_type(&source, "in_t", b->type);
    emit_constant(&source, "IS_BF16", b->type == WEFT_DATA_BFLOAT16);
    emit_fp8(&source, b, false);
    emit_results_of_fp8(&source, b, s);
    emit_constant(&source, "ROWS", s->rows);
    emit_constant(&source, "WIDTH", s->width);
    emit_constant(&source, "IS_OF_KEYS", s->is_of_keys);
    emit_constant(&source, "HAS_PARTS", s->parts > 1);
    emit_constant(&source, "SCALES", s->scales);
    emit_derivative_factor(&source, s->scales && is_soft_cap(b));
    if (s->scales && is_soft_cap(b)) {
        attention_emit_modifier(&source, b->c, true);
        attention_emit_modifier_factors(&source, b->c);
    }
    emit_scratch(&source, "float", s->offset, "sums");
    emit_divisor(&source, s->blocks, "blocks");
    emit_divisor(&source, s->heads, "heads");
    emit_number(&source, s->gradient->dims.at[3], "width");
    if (s->parts > 1)
        emit_number(&source, s->parts, "parts");
    attention_emit_tensor(&source, b->c, s->gradient, "gradient", NULL);
    TRY(kernel_finish(&source, kernel, "attention/hopper/backward_sums_sm90.cuh", "attention_backward_sums_sm90",
                      arena));
    return attention_grid(kernel, b->c, b->c->batches * s->heads * s->blocks, SUMS_THREADS / 32);
}

/* dQ, to which CTAs with resident keys have added. */
static weftStatus_t build_queries(const struct backward *b, struct cuda_kernel *kernel, struct arena *arena) {
    struct gradient_sums sums = {b->op->dq,
                                 b->block_q,
                                 b->head,
                                 statistics_bytes(b),
                                 b->c->heads,
                                 b->q_blocks,
                                 1,
                                 .scales = true,
                                 .amax = b->op->amax_dq,
                                 .descales = "descale_dp_of(p) * descale_k_of(p)",
                                 .scale = "scale_dq_of(p)"};
    return build_gradient(b, &sums, kernel, arena);
}

/* dK and dV, whose parts include all factors. */
static weftStatus_t build_parts(const struct backward *b, const struct backward_tile *t, struct cuda_step *state,
                                struct arena *arena) {
    int64_t parts = part_count(b, t->grads);
    for (int of_values = 0; of_values < 2 && parts > 1; of_values++) {
        if (!(of_values ? kinds[t->grads].has_dv : kinds[t->grads].has_dqk))
            continue;
        struct gradient_sums sums = {of_values ? b->op->dv : b->op->dk,
                                     BLOCK_RESIDENT / 2,
                                     of_values ? b->value_head : b->head,
                                     parts_offset(b, of_values),
                                     resident_heads(b->c, t->grads),
                                     2 * b->key_blocks,
                                     parts,
                                     .is_of_keys = true,
                                     .amax = of_values ? b->op->amax_dv : b->op->amax_dk,
                                     .descales = of_values ? "descale_s_of(p) * descale_d_o_of(p)"
                                                           : "descale_dp_of(p) * descale_q_of(p)",
                                     .scale = of_values ? "scale_dv_of(p)" : "scale_dk_of(p)"};
        TRY(build_gradient(b, &sums, &state->kernels[state->count++], arena));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The sink's gradient sums the statistics of build_rows, one head per block. */
static weftStatus_t build_sink(const struct backward *b, struct cuda_kernel *kernel, struct arena *arena) {
    const struct tensor *sink = b->c->a->sink, *dsink = b->op->dsink;
    struct kernel_source source;
    kernel_source_init(&source, b->c->region);
    emit_constant(&source, "BLOCK_Q", b->block_q);
    emit_constant(&source, "THREADS", SINK_THREADS);
    emit_type(&source, "dsink_t", (weftDataType_t)dsink->type);
    emit_pointer(&source, (weftDataType_t)sink->type, graph_find_value(b->c->graph, sink), 0, "sink");
    emit_number(&source, sink->dims.at[1] == 1 ? 0 : sink->strides.at[1], "sink_step");
    emit_pointer(&source, (weftDataType_t)dsink->type, graph_find_value(b->c->graph, dsink), 0, "dsink");
    emit_number(&source, dsink->dims.at[1] == 1 ? 0 : dsink->strides.at[1], "dsink_step");
    emit_number(&source, b->c->batches, "batches");
    emit_number(&source, b->c->heads, "heads");
    emit_number(&source, b->q_blocks, "q_blocks");
    emit_scratch(&source, "float", 0, "statistics");
    emit_keep_probability(&source, b);
    TRY(kernel_finish(&source, kernel, "attention/hopper/backward_sink_sm90.cuh", "attention_backward_sink_sm90",
                      arena));
    return attention_grid(kernel, b->c, b->c->heads, SINK_THREADS / 32);
}

/* The resident and the streamed side swap between passes for keys and for queries; the kernel only knows `qk` and
   `vdo`. */
static void emit_maps(struct kernel_source *source, const struct backward *b, const struct backward_tile *t) {
    const struct cuda_attention *c = b->c;
    enum { BOXES = 7, GRADIENTS = 4 };
    /* is_absent: a gradient that this pass does not compute, or does not store by TMA, has no map and no coordinate
       function. With FP8 MMAs, S and dP read the original operands. */
    bool kv_resident = kinds[t->grads].kv_resident, has_parts = part_count(b, t->grads) > 1, is_absent[BOXES] = {0};
    const struct tensor *d_o = b->is_mxfp8 && t->grads == GRADS_DV ? b->op->do_t : b->op->d_o;
    const struct {
        const struct tensor *tensor;
        int rows;
        const char *map, *entry;
    } boxes[] = {
        {kv_resident ? c->a->k : c->a->q, BLOCK_RESIDENT, "resident_qk_map", "resident_qk"},
        {kv_resident ? c->a->v : b->op->d_o, BLOCK_RESIDENT, "resident_vdo_map", "resident_vdo"},
        {kv_resident ? c->a->q : c->a->k, t->block_streamed, "streamed_qk_map", "streamed_qk"},
        {kv_resident ? d_o : c->a->v, t->block_streamed, "streamed_vdo_map", "streamed_vdo"},
        {kv_resident ? b->op->dk : b->op->dq, BLOCK_RESIDENT / 2, "dqk_map", "dqk"},
        {b->op->dv, BLOCK_RESIDENT / 2, "dv_map", "dv"},
        {b->has_fp8_mma ? c->a->q
         : kv_resident  ? b->op->q_t
                        : b->op->k_t,
         t->block_streamed, "dqk_operand_map", "dqk_operand"},
    };
    is_absent[4] = !kinds[t->grads].has_dqk || has_parts || b->is_fp8;
    is_absent[5] = !kinds[t->grads].has_dv || has_parts || b->is_fp8;
    is_absent[6] = !loads_twice(b, t);
    for (int i = 0; i < BOXES; i++)
        if (!is_absent[i])
            attention_hopper_emit_map(source, i < GRADIENTS && b->has_fp8_mma ? b->given : c, boxes[i].tensor,
                                      boxes[i].rows, boxes[i].map);
    if (b->has_fp8_mma) {
        attention_hopper_emit_map(source, c, b->op->d_o, t->block_streamed, "dv_operand_map");
        attention_hopper_emit_box_map(source, c, c->a->k, FP8_TILE, FP8_TILE, "kt_map");
    }
    if (b->stores_dq)
        attention_hopper_emit_map(source, c, b->op->dq, PART_ROWS, "dq_map");
    if (has_tma_bias(b, t))
        attention_hopper_emit_map(source, c, c->a->bias, t->block_streamed, "bias_map");
    for (int i = 0; i < BOXES; i++)
        if (!is_absent[i])
            attention_hopper_emit_entry(source, c, boxes[i].tensor, boxes[i].entry);
    for (int i = 4; i < 6; i++)
        if (is_absent[i])
            emit_constant(source, i == 4 ? "DQK_IS_RAGGED" : "DV_IS_RAGGED", 0);
}

/* Type of an operand of S, dP and dQ. */
static const char *factor_type(const struct backward *b, const struct tensor *tensor) {
    return cuda_type_name(b->has_fp8_mma ? (weftDataType_t)tensor->type : b->type);
}

/* S and dP: resident rows x streamed rows, both K-major. dQ or dK, and dV: P or dS from registers times streamed rows,
   which are MN-major. mma_dq: dQ of 64 x 64, with dS from shared memory, transposed. FP8: all but dK and dV, whose sums
   FP8 accumulators cannot represent; dS and K are K-major. */
static void emit_mmas(struct text *code, const struct backward *b, const struct backward_tile *t) {
    const char *type = cuda_type_name(b->type);
    const char *q = factor_type(b, b->c->a->q), *k = factor_type(b, b->c->a->k), *v = factor_type(b, b->c->a->v);
    const char *d_o = factor_type(b, b->op->d_o);
    bool is_fp8 = b->has_fp8_mma;
    int dq_a = is_fp8 ? MMA_A_K : MMA_A_MN;
    const struct attention_mma products[] = {
        {"mma_s", k, t->block_streamed, .b_type = q, .is_fp8 = is_fp8, .adds = MMA_ADDS},
        {"mma_s_first", k, t->block_streamed, .b_type = q, .is_fp8 = is_fp8, .is_fresh = true},
        {"mma_dp", v, t->block_streamed, .b_type = d_o, .is_fp8 = is_fp8, .adds = MMA_ADDS},
        {"mma_dp_first", v, t->block_streamed, .b_type = d_o, .is_fp8 = is_fp8, .is_fresh = true},
        {"mma_dqk", type, t->head, .a = MMA_A_REGISTERS, .b_is_mn = true, .adds = MMA_ADDS},
        {"mma_dv", type, t->value_head, .a = MMA_A_REGISTERS, .b_is_mn = true, .adds = MMA_ADDS},
        {"mma_dq", d_o, 64, .b_type = k, .is_fp8 = is_fp8, .a = dq_a, .b_is_mn = !is_fp8, .b_is_narrow = is_fp8,
         .adds = MMA_ADDS},
        {"mma_dq_first", d_o, 64, .b_type = k, .is_fp8 = is_fp8, .a = dq_a, .b_is_mn = !is_fp8, .b_is_narrow = is_fp8},
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        attention_hopper_emit_mma(code, &products[i]);
}

/* True if the pass stores no rows past those in use. */
static bool skips_unused_tiles(const struct backward *b, const struct backward_tile *t) {
    const struct tensor *dqk = kinds[t->grads].kv_resident ? b->op->dk : b->op->dq;
    if (b->is_fp8)
        return false;
    return part_count(b, t->grads) > 1 ||
           ((!kinds[t->grads].has_dqk || dqk->ragged_offset) && (!kinds[t->grads].has_dv || b->op->dv->ragged_offset));
}

static void emit_config(struct kernel_source *source, const struct backward *b, const struct backward_tile *t) {
    struct backward_config config = config_of(b, t);
    config.kv_heads_differ = b->c->key_heads != b->c->value_heads;
    config.stores_dq = b->stores_dq;
    config.has_derivatives = b->has_derivatives;
    config.has_factors = has_factors(b);
    config.is_soft_cap = is_soft_cap(b);
    config.has_parts = part_count(b, t->grads) > 1;
    config.skips_unused_tiles = skips_unused_tiles(b, t);
    config.block_q = b->block_q;
    text_add(&source->constants, "#include \"engines/cuda/attention/hopper/backward_geometry.h\"\n"
                                 "inline constexpr backward_config CONFIG = {");
#define MEMBER(name) text_add(&source->constants, "/* " #name " */ %d, ", config.name);
    BACKWARD_CONFIG(MEMBER)
#undef MEMBER
    text_add(&source->constants, "};\n");
}

/* The tensor, or NULL if it is not requested or another pass computes it. */
static const struct tensor *wanted(const struct backward *b, const struct tensor *tensor, bool is_computed) {
    return is_computed && attention_wants(b->c, tensor) ? tensor : NULL;
}

/* FP8: gradients and amax outputs that a pass stores itself. */
static void emit_results(struct kernel_source *source, const struct backward *b, const struct backward_tile *t) {
    bool kv_resident = kinds[t->grads].kv_resident, stores_dqk = kinds[t->grads].has_dqk;
    bool stores_dv = kinds[t->grads].has_dv;
    const struct tensor *amax_dqk = kv_resident ? b->op->amax_dk : b->op->amax_dq;
    stores_dqk = stores_dqk && part_count(b, t->grads) == 1;
    stores_dv = stores_dv && part_count(b, t->grads) == 1;
    attention_emit_scale(source, b->c, wanted(b, amax_dqk, stores_dqk), "amax_dqk", "HAS_AMAX_DQK");
    attention_emit_scale(source, b->c, wanted(b, b->op->amax_dv, stores_dv), "amax_dv", "HAS_AMAX_DV");
    if (!b->is_fp8)
        return;
    emit_number(source, b->c->depth, "depth");
    emit_number(source, b->c->value_depth, "value_depth");
    if (stores_dqk)
        attention_emit_tensor(source, b->c, kv_resident ? b->op->dk : b->op->dq, "dqk", NULL);
    if (stores_dv)
        attention_emit_tensor(source, b->c, b->op->dv, "dv", NULL);
}

/* If CTAs have unequal length, several heads are interleaved, and the CTAs with most steps come first. */
static int64_t heads_per_set(const struct cuda_attention *c, int64_t resident_blocks) {
    return has_bounds(c) && resident_blocks < BLOCKS_PER_SET ? BLOCKS_PER_SET / resident_blocks : 1;
}

/* Emits how a CTA with resident keys finds its query heads, and where its partial gradients are stored. */
static void emit_parts(struct kernel_source *source, const struct backward *b, const struct backward_tile *t) {
    int64_t parts = part_count(b, t->grads);
    if (parts == 1)
        return;
    emit_number(source, parts, "parts");
    emit_number(source, heads_per_part(b, t->grads), "heads_per_part");
    if (kinds[t->grads].has_dqk)
        emit_scratch(source, "float", parts_offset(b, false), "dqk_parts");
    if (kinds[t->grads].has_dv)
        emit_scratch(source, "float", parts_offset(b, true), "dv_parts");
}

/* Constant factors of all scores are multiplied into those of the kernel. */
static void emit_factors(struct kernel_source *source, const struct backward *b) {
    emit_derivative_factor(source, is_soft_cap(b));
    if (!has_factors(b))
        return;
    attention_emit_modifier_factors(source, b->c);
    attention_emit_between_gradient(source, b->c);
}

/* One launch: one CTA per BLOCK_RESIDENT resident rows of each head, or per part of the query heads that share it. */
static weftStatus_t build_pass(const struct backward *b, const struct backward_tile *t, struct cuda_kernel *kernel,
                               struct arena *arena) {
    const struct cuda_attention *c = b->c;
    bool kv_resident = kinds[t->grads].kv_resident;
    int64_t resident_blocks = divide_up(kv_resident ? c->keys : c->queries, BLOCK_RESIDENT),
            heads = resident_heads(c, t->grads), outer = heads * part_count(b, t->grads);
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    emit_maps(&source, b, t);
    emit_shared(&source, b);
    emit_config(&source, b, t);
    emit_fp8(&source, b, t == first_of_ds(b));
    emit_results(&source, b, t);
    attention_hopper_emit_terms(&source, c, is_rounded(c));
    attention_emit_modifier_gradient(&source, c);
    emit_factors(&source, b);
    attention_emit_block_mask(&source, c);
    attention_emit_dropout(&source, c);
    emit_number(&source, c->heads, "heads");
    emit_number(&source, outer, "resident_heads");
    emit_number(&source, c->heads / (kv_resident ? heads : c->key_heads), "group");
    emit_number(&source, b->q_blocks, "q_blocks");
    emit_number(&source, resident_blocks, "resident_blocks");
    emit_number(&source, heads_per_set(c, resident_blocks), "heads_per_set");
    emit_parts(&source, b, t);
    if (c->key_heads != c->value_heads)
        emit_number(&source, c->heads / (t->grads == GRADS_DV ? c->key_heads : c->value_heads), "other_group_size");
    emit_mmas(&source.code, b, t);
    TRY(kernel_finish(&source, kernel, "attention/hopper/backward_sm90.cuh", "attention_backward_sm90", arena));
    kernel->shared_bytes = shared_bytes(b, t);
    return attention_grid(kernel, c, c->batches * outer * resident_blocks, THREADS / 32);
}

/* ---- Entry points of the family ---- */

/* CTAs of a pass. */
static int64_t blocks_of(const struct backward *b, const struct backward_tile *t) {
    const struct cuda_attention *c = b->c;
    return c->batches * resident_heads(c, t->grads) * part_count(b, t->grads) *
           divide_up(kinds[t->grads].kv_resident ? c->keys : c->queries, BLOCK_RESIDENT);
}

/* MMA time at the rate of long sequences, prologue and epilogue per wave of CTAs, and memory traffic between
   kernels. */
static double predict(const struct backward *b) {
    const struct cuda_properties *cuda = &b->c->device->cuda;
    double rate = PRODUCTS_PER_CLOCK * 2.0 * cuda->clock_khz * 1e3 * cuda->multiprocessors * EFFICIENCY;
    double flops = op_flops(region_node(b->c->region, 0)->op) * attention_visible_fraction(b->c),
           seconds = START_SECONDS;
    for (int i = 0; i < b->pass_count; i++)
        seconds += flops * kinds[b->passes[i]->grads].share / rate +
                   BLOCK_SECONDS * (double)divide_up(blocks_of(b, b->passes[i]), cuda->multiprocessors);
    seconds += attention_backward_predict_biases(b->c) + attention_hopper_predict_widening(b->c);
    seconds += 3.0 * (double)dq_sums_bytes(b) / (double)cuda->bandwidth; /* cleared, added to and read */
    return seconds + 2.0 * (double)(parts_bytes(b, false) + parts_bytes(b, true)) / (double)cuda->bandwidth;
}

weftStatus_t attention_hopper_backward_accepts(const struct cuda_attention *c, bool reduces_dq, double *seconds) {
    struct backward b;
    TRY(plan_backward(&b, c, reduces_dq));
    *seconds = predict(&b);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t attention_hopper_backward_build(struct step *step, const struct cuda_attention *c, bool reduces_dq,
                                             struct cuda_step *state, struct arena *arena) {
    struct backward b;
    TRY(plan_backward(&b, c, reduces_dq));
    /* Workspace: statistics, sums of dQ, partial dK and dV, converted operands; the rest is for the gradients of
       biases. */
    b.widened.workspace_at = parts_offset(&b, true) + parts_bytes(&b, true);
    TRY(attention_hopper_build_widening(b.c, state, arena));
    TRY(attention_build_amax_clear(c, state, arena));
    TRY(build_rows(&b, &state->kernels[state->count++], arena));
    for (int i = 0; i < b.pass_count; i++)
        TRY(build_pass(&b, b.passes[i], &state->kernels[state->count++], arena));
    if (needs_dq_sums(&b))
        TRY(build_queries(&b, &state->kernels[state->count++], arena));
    for (int i = 0; i < b.pass_count; i++)
        TRY(build_parts(&b, b.passes[i], state, arena));
    if (attention_wants(c, c->backward->dsink))
        TRY(build_sink(&b, &state->kernels[state->count++], arena));
    step->workspace_bytes = parts_offset(&b, true) + parts_bytes(&b, true) + b.widened.bytes;
    /* Gradients of a bias or of a modifier's operands are sums over queries, keys or heads; portable kernels recompute
       the scores for them. */
    if (attention_backward_wants_biases(c))
        TRY(attention_backward_build_biases(step, c, step->workspace_bytes, state, arena));
    const char *names[PASSES_MAX] = {"", "", ""};
    for (int i = 0; i < b.pass_count; i++)
        names[i] = kinds[b.passes[i]->grads].name;
    return arena_print(arena, &step->detail, "%swgmma of %s%s, heads of %d and %d, %s%s%s%s%s, %d x %d tiles",
                       b.is_fp8 && !b.has_fp8_mma ? "FP8 widened, then " : "", b.has_fp8_mma ? "FP8 and " : "",
                       cuda_type_name(b.type), b.head, b.value_head, names[0], b.pass_count > 1 ? ", then " : "",
                       names[1], b.pass_count > 2 ? ", then " : "", names[2], BLOCK_RESIDENT,
                       b.passes[0]->block_streamed);
}
