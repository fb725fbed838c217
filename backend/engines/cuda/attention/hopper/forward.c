/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_fwd on Hopper: forward_sm90.cuh, preceded by a kernel that resets the tile counter if tiles are scheduled
   dynamically. FP8 with block scales (MXFP8) is converted to bf16 first, and other FP8 to f16 if deep heads leave no
   registers for a bias. */
#include "base/number.h"
#include "engines/cuda/attention/hopper/forward_geometry.h"
#include "engines/cuda/attention/hopper/hopper.h"
#include "engines/cuda/families.h"

enum {
    DEPTH_MAX = 256,
    BIAS_STAGES_MAX = 2,
    ONES = 8,            /* an MMA's columns are a multiple of this */
    CROWDED_DEPTH = 192, /* deepest V head of FP8 that leaves registers for a bias */
    DECODE_QUERIES = 16, /* with at most this number of queries, most of a tile is empty and one SM reads all keys */
    DECODE_KEYS = 256,
    SHORT_KEYS = 256,   /* with more keys, wide tiles reuse loads better */
    FEW_TILES = 4,      /* maximum tiles per head that load K and V at full memory bandwidth */
    DYNAMIC_ROUNDS = 4, /* tiles per SM from which dynamic scheduling pays off */
};

/* Duration from which the launch that resets the counter pays off. With bounds, tiles differ in duration. */
static const double DYNAMIC_SECONDS = 80e-6, BOUNDED_DYNAMIC_SECONDS = 40e-6;
static const double RASTER_BYTES = 34e6; /* K and V that stay in L2 */
static const double FLOPS_PER_CLOCK = 4096, EFFICIENCY = 0.6, START_SECONDS = 4e-6;
/* FP8, relative to the same rate: exponentials take as long as MMAs at twice that rate, and twice as long if heads are
   half as deep. */
static const double FP8_EFFICIENCY = 0.8, FP8_THREE_EFFICIENCY = 0.88, FP8_SHALLOW_EFFICIENCY = 0.52;
static const double SHORT_EFFICIENCY = 0.4, FOUR_CONSUMER_EFFICIENCY = 0.5, THREE_EFFICIENCY = 0.64;
/* Cycles of an SM per score for each term; the same for all head depths (H100, 4096 keys). */
static const double BIAS_CLOCKS = 0.03, MODIFIER_CLOCKS = 0.04, ALIBI_CLOCKS = 0.006;
static const double DRAWN_CLOCKS = 0.25, MASK_CLOCKS = 0.14;
/* Prologue and epilogue of a tile. With three consumers and no ping-pong, MMAs of the others overlap them. */
static const double TILE_SECONDS = 1.6e-6, THREE_TILE_SECONDS = 0.6e-6;

/* By padded depth, narrowest first. Registers: per thread of consumers and of the producer after reallocation. terms:
   maximum number of score terms for which registers suffice. */
static const struct forward_tile {
    int terms;
    int depth, value_depth; /* maximum */
    int keys, groups, stages, o_stages, consumer_registers, producer_registers;
    bool ping_pong;
    int ctas;             /* per SM */
    int q_register_steps; /* k-steps of Q in registers, which halves the shared memory traffic of their MMAs */
    int early_exps;       /* scores of a thread that are exponentiated during the last MMA, without a bias or dropout */
} tiles[] = {
    {0, 64, 64, 128, 3, 4, 0, 160, 32, false, 1, 0, 0},   {1, 64, 64, 128, 3, 4, 0, 160, 32, false, 1, 0, 0},
    {1, 64, 64, 128, 2, 3, 0, 232, 40, true, 1, 0, 0},    {5, 64, 64, 96, 2, 3, 0, 232, 40, true, 1, 0, 0},
    {1, 128, 128, 128, 2, 2, 0, 232, 40, true, 1, 0, 32}, {5, 128, 128, 96, 2, 2, 0, 232, 40, true, 1, 0, 0},
    {1, 192, 128, 128, 2, 2, 1, 232, 40, true, 1, 0, 40}, {5, 192, 128, 96, 2, 2, 1, 232, 40, true, 1, 0, 0},
    {1, 192, 192, 96, 2, 2, 1, 232, 40, true, 1, 0, 0},   {5, 192, 192, 64, 2, 2, 1, 232, 40, true, 1, 0, 0},
    {1, 256, 256, 64, 2, 2, 2, 232, 40, true, 1, 0, 0},   {5, 256, 256, 48, 2, 2, 2, 232, 40, true, 1, 0, 0},
    {5, 256, 256, 32, 2, 2, 2, 232, 40, true, 1, 0, 0},
};

/* FP8: the producer's warps transpose V and need more registers. Tiles of a block mask require PING_PONG. */
static const struct forward_tile fp8_tiles[] = {
    {0, 64, 64, 128, 3, 4, 0, 152, 56, false, 1, 0, 0},  {1, 64, 64, 128, 2, 4, 0, 216, 72, true, 1, 0, 0},
    {5, 64, 64, 64, 2, 4, 0, 216, 72, true, 1, 0, 0},    {1, 128, 128, 128, 2, 4, 0, 216, 72, false, 1, 4, 0},
    {1, 128, 128, 128, 2, 4, 0, 216, 72, true, 1, 0, 0}, {5, 128, 128, 64, 2, 4, 0, 216, 72, true, 1, 0, 0},
    {1, 192, 128, 128, 2, 2, 0, 216, 72, true, 1, 0, 0}, {5, 192, 128, 64, 2, 4, 0, 216, 72, true, 1, 0, 0},
    {0, 192, 192, 128, 2, 2, 0, 216, 72, true, 1, 0, 0}, {5, 192, 192, 64, 2, 3, 0, 216, 72, true, 1, 0, 0},
    {0, 256, 256, 64, 2, 3, 2, 224, 56, true, 1, 4, 0},  {5, 256, 256, 64, 2, 3, 0, 216, 72, true, 1, 0, 0},
};

/* Short sequences: see CTAS. With four consumers, one CTA has all queries of a head and reads K and V once. */
static const struct forward_tile short_tiles[] = {
    {0, 64, 64, 64, 1, 3, 0, 128, 32, false, 3, 0, 0},
    {0, 64, 64, 64, 4, 4, 0, 112, 32, false, 1, 0, 0},
    {0, 128, 128, 64, 1, 2, 0, 216, 40, false, 2, 0, 0},
};
enum { SHORT_TILE_COUNT = sizeof short_tiles / sizeof *short_tiles };

/* Soft cap: the exponentials take longer than the MMAs; without ping-pong, both consumers compute them concurrently. */
static const struct forward_tile soft_cap_tiles[] = {
    {1, 128, 128, 128, 2, 2, 0, 232, 40, false, 1, 2, 0},
    {1, 256, 256, 64, 2, 2, 2, 232, 40, false, 1, 0, 0},
};
enum { SOFT_CAP_TILE_COUNT = sizeof soft_cap_tiles / sizeof *soft_cap_tiles };

/* Bias by TMA, whose boxes would need the remaining shared memory; Q is read from registers instead. */
static const struct forward_tile bias_tile = {1, 128, 128, 128, 2, 2, 0, 232, 40, true, 1, 8, 0};

/* The tile for products without score terms: three consumers read K and V two thirds as often, and their prologues and
   epilogues overlap with each other's MMAs. FP8 is faster only if MMAs compute the row sums. */
static const struct forward_tile three_consumer_tile = {0, 128, 128, 64, 3, 4, 0, 160, 32, false, 1, 4, 0};
static const struct forward_tile fp8_three_consumer_tile = {0, 128, 128, 64, 3, 6, 0, 152, 56, false, 1, 0, 0};

struct forward {
    const struct cuda_attention *c;
    const struct sdpa_fwd_op *op;
    const struct forward_tile *tile;
    bool is_fp8;
    int depth, value_depth; /* padded */
    int q_stages, o_stages; /* 2 and 0: O is staged in a Q buffer */
    int ones;               /* columns of ones after those of V: 0, or 8, the minimum of an MMA */
    int bias_stages;        /* 0: no bias, or it is read from global memory */
    int64_t tiles, all_tiles, raster_heads;
    bool is_dynamic;
    double seconds;
    struct cuda_attention wide; /* c with converted operands */
    struct attention_widened widened;
};

/* ---- Accepting ---- */

/* True if q, k and v are FP8; each may be E4M3 or E5M2. */
static bool are_fp8(const struct cuda_attention *c) {
    return dtype_is_fp8((weftDataType_t)c->a->q->type) && dtype_is_fp8((weftDataType_t)c->a->k->type) &&
           dtype_is_fp8((weftDataType_t)c->a->v->type);
}

/* True if the MMAs use FP8. */
static bool is_fp8(const struct cuda_attention *c) { return are_fp8(c) && !c->widened; }

/* True if an operand has block scales along its rows; then the operands are converted. */
static bool has_block_scales(const struct cuda_attention *c) {
    return attention_query_scales(c, false) == ATTENTION_SCALES_BLOCKS ||
           attention_key_scales(c->a->descale_k, NULL) == ATTENTION_SCALES_BLOCKS ||
           attention_key_scales(c->a->descale_v, NULL) == ATTENTION_SCALES_BLOCKS;
}

/* True if FP8 MMAs leave no registers for a bias, which they read from global memory. */
static bool is_crowded(const struct cuda_attention *c) { return c->value_depth > CROWDED_DEPTH && c->a->bias != NULL; }

/* Sets f->c to what the kernel reads. f16 represents all of FP8, bf16 all of FP8 times powers of two. */
static void begin(struct forward *f, const struct cuda_attention *c) {
    weftDataType_t type = has_block_scales(c) ? WEFT_DATA_BFLOAT16 : WEFT_DATA_HALF;
    *f = (struct forward){.c = c, .op = c->forward, .widened.type = type};
    if (!are_fp8(c) || !(has_block_scales(c) || is_crowded(c)) || c->a->k_table || c->a->v_table)
        return;
    attention_hopper_widen(&f->widened, c->a->q, c->a->descale_q);
    attention_hopper_widen(&f->widened, c->a->k, c->a->descale_k);
    attention_hopper_widen(&f->widened, c->a->v, c->a->descale_v);
    f->wide = *c;
    f->wide.widened = &f->widened;
    f->c = &f->wide;
}

/* The operand as the kernel reads it. */
static const struct tensor *as_read(const struct cuda_attention *c, const struct tensor *tensor) {
    const struct attention_wide_operand *wide = attention_hopper_wide(c, tensor);
    return wide ? &wide->tensor : tensor;
}

/* True if an operand has scales that are neither one number per head nor, for converted operands, block scales. */
static bool has_other_scales(const struct cuda_attention *c) {
    const int kinds[] = {attention_query_scales(c, false), attention_key_scales(c->a->descale_k, NULL),
                         attention_key_scales(c->a->descale_v, NULL)};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i] > ATTENTION_SCALES_HEAD && !(c->widened && kinds[i] == ATTENTION_SCALES_BLOCKS))
            return true;
    return false;
}

/* Checks for features that the kernel lacks; check_all checks layouts. */
static weftStatus_t check_features(const struct cuda_attention *c) {
    const struct sdpa_fwd_op *op = c->forward;
    if (c->a->k_table || c->a->v_table)
        return attention_decline(c, "Hopper's forward kernel does not support paged K and V");
    if (attention_is_scaled(c) && !are_fp8(c))
        return attention_decline(c, "Hopper's forward kernel supports scales only with FP8");
    if (has_other_scales(c))
        return attention_decline(c, "Hopper's forward kernel supports scales per head, not per row or block");
    if (attention_wants(c, op->rng_dump))
        return attention_decline(c, "Hopper's forward kernel does not output the dropout mask");
    if (attention_hopper_multiplies_by_mask(c))
        return attention_decline(c, "Hopper's forward kernel supports only boolean dropout masks");
    if (!attention_wants(c, op->o))
        return attention_decline(c, "Hopper's forward kernel always computes o, which is not requested");
    if (c->depth > DEPTH_MAX || c->value_depth > DEPTH_MAX)
        return attention_decline(c, "Hopper's forward kernel supports head dimensions up to 256");
    if (!c->lines || !c->keys || !c->depth || !c->value_depth)
        return attention_decline(c, "a matrix operand is empty");
    if (c->queries <= DECODE_QUERIES && c->keys > DECODE_KEYS)
        return attention_decline(c, "with few queries and many keys, splitting the keys is faster");
    return WEFT_STATUS_SUCCESS;
}

/* With FP8 or converted operands, O has a type of its own; otherwise all four tensors share one type. */
static weftStatus_t check_all(const struct cuda_attention *c) {
    const struct tensor *operands[] = {c->a->q, c->a->k, c->a->v, c->forward->o};
    weftDataType_t out = (weftDataType_t)c->forward->o->type;
    TRY(check_features(c));
    if (are_fp8(c) && !dtype_is_fp8(out) && !dtype_is_half(out))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: o has data type %s; with FP8 operands it must be FP8, f16 or bf16.",
             descriptor_label(region_node(c->region, 0)->op), dtype_of(out)->name);
    if (c->widened) {
        TRY(attention_hopper_check_tma_rows(c, c->forward->o));
        return attention_hopper_check_widened(c);
    }
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++)
        TRY(is_fp8(c) ? attention_hopper_check_tma_rows(c, operands[i])
                      : attention_hopper_check_tma_16bit(c, operands[i]));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Planning ---- */

/* Number of panels, whose rows have 128 bytes. */
static int panels(int depth, const struct tensor *tensor) {
    return (int)divide_up(dtype_bytes((weftDataType_t)tensor->type, depth), PANEL_ROW);
}

static unsigned shared_bytes(const struct forward *f) {
    const struct forward_tile *t = f->tile;
    struct forward_shape shape = {
        .is_fp8 = f->is_fp8,
        .head_qk = f->depth,
        .head_v = f->value_depth,
        .ones = f->ones,
        .block_k = t->keys,
        .groups = t->groups,
        .stages = t->stages,
        .q_stages = f->q_stages,
        .o_stages = f->o_stages,
        .bias_stages = f->bias_stages,
    };
    return forward_memory_of(shape).bytes;
}

static bool is_bounded(const struct attention *a) {
    return a->left_bound != ATTENTION_UNBOUNDED || a->right_bound != ATTENTION_UNBOUNDED || a->seq_len_kv ||
           a->cu_seq_len_kv;
}

/* Number of heads whose tiles are interleaved, those with most visible keys first: a multiple of the query heads that
   share K and V. As many as fit in L2, in sets of equal size, since a smaller last set would start its longest tiles
   when others finish. If a head has few tiles, no more heads than fill the SMs, so that loads are spread over time.
   Without bounds, all tiles take equally long, and interleaving heads has no benefit. */
static int64_t raster_heads(const struct forward *f) {
    const struct cuda_attention *c = f->c;
    int64_t share = c->heads / c->key_heads, key_heads = c->batches * c->key_heads;
    double bytes = (double)c->keys * (double)(dtype_bytes((weftDataType_t)as_read(c, c->a->k)->type, c->depth) +
                                              dtype_bytes((weftDataType_t)as_read(c, c->a->v)->type, c->value_depth));
    int64_t fit = bytes < RASTER_BYTES ? (int64_t)(RASTER_BYTES / bytes) : 1;
    if (f->tiles <= FEW_TILES)
        fit = min64(fit, divide_up(c->device->cuda.multiprocessors, f->tiles * share));
    return !is_bounded(c->a) ? share : share * divide_up(key_heads, divide_up(key_heads, fit));
}

/* The fraction of the peak MMA rate with long rows of tiles. */
static double efficiency(const struct forward *f) {
    return f->tile->ctas > 1                     ? SHORT_EFFICIENCY
           : f->tile->groups > 3                 ? FOUR_CONSUMER_EFFICIENCY
           : f->tile == &three_consumer_tile     ? THREE_EFFICIENCY
           : f->tile == &fp8_three_consumer_tile ? FP8_THREE_EFFICIENCY
           : !f->is_fp8                          ? EFFICIENCY
           : f->value_depth <= 64                ? FP8_SHALLOW_EFFICIENCY
                                                 : FP8_EFFICIENCY;
}

static double tile_seconds(const struct forward *f) {
    return f->tile == &three_consumer_tile || f->tile == &fp8_three_consumer_tile ? THREE_TILE_SECONDS : TILE_SECONDS;
}

static double term_clocks(const struct attention *a) {
    return (a->bias ? BIAS_CLOCKS : 0) + (a->modifier.graph ? MODIFIER_CLOCKS : 0) + (a->alibi ? ALIBI_CLOCKS : 0) +
           (attention_draws(a) ? DRAWN_CLOCKS : 0) + (a->dropout_mask ? MASK_CLOCKS : 0);
}

/* Models waves of tiles over all SMs; a partial wave counts as a full one. CTAs that share an SM alternate their MMAs,
   and their prologues and epilogues overlap. */
static double predict(const struct forward *f, int64_t multiprocessors) {
    const struct cuda_attention *c = f->c;
    const struct node *node = region_node(c->region, 0);
    double rate = FLOPS_PER_CLOCK * c->device->cuda.clock_khz * 1e3 * efficiency(f);
    double bytes = 0;
    double rows = (double)(f->tiles * GROUP_Q * f->tile->groups) / (double)c->queries;
    int64_t each = divide_up(f->all_tiles, multiprocessors); /* tiles per SM, which run one after another */
    double visible =
        attention_visible_fraction(c) * rows / (double)f->all_tiles; /* share of all scores that a tile sees */
    double flops = op_flops(node->op) * visible;
    double scores = (double)(c->batches * c->heads * c->queries) * (double)c->keys * visible;
    double terms = scores * term_clocks(c->a) / (c->device->cuda.clock_khz * 1e3);
    for (int i = 0; i < node->operand_count; i++)
        bytes += (double)tensor_own_bytes(c->graph->values[node->operands[i]].tensor);
    /* Operands and results are transferred once: heads that share K and V read them from L2. */
    double moving = bytes / (double)c->device->cuda.bandwidth;
    double computing = (double)each * (flops / rate + terms) + (double)divide_up(each, f->tile->ctas) * tile_seconds(f);
    return START_SECONDS + attention_hopper_predict_widening(c) + (moving > computing ? moving : computing);
}

/* True if a block of keys is a whole number of bias boxes. */
static bool has_tma_bias(const struct forward *f, const struct forward_tile *t) {
    return !f->is_fp8 && t->keys % 64 == 0 && attention_hopper_has_tma_bias(f->c);
}

/* True if everything computed from the scores has 16 bits or fewer: P, but no statistics, which are floats. */
static bool is_rounded(const struct forward *f) {
    return !attention_wants(f->c, f->op->stats) && !attention_wants(f->c, f->op->max) &&
           !attention_wants(f->c, f->op->sum_exp);
}

/* A block of keys must be within one tile of the block mask, and PING_PONG makes both consumers skip the same blocks.
   Three consumers have no registers for a bias from global memory, nor for the longer functions of a modifier. */
static bool fits(const struct forward_tile *t, const struct forward *f, int terms) {
    const struct attention *a = f->c->a;
    bool is_inside = t->ping_pong && ATTENTION_MASK_TILE % t->keys == 0;
    return t->depth >= f->depth && t->value_depth >= f->value_depth && t->terms >= terms &&
           (is_inside || !a->block_mask) && (t->groups < 3 || !a->bias || has_tma_bias(f, t)) &&
           (t->groups < 3 || !a->modifier.graph || is_rounded(f));
}

/* Returns as many stages as fit into the remaining shared memory. */
static int bias_stages(struct forward *f) {
    int stages = has_tma_bias(f, f->tile) ? BIAS_STAGES_MAX : 0;
    for (f->bias_stages = stages; stages > 0 && shared_bytes(f) > SHARED_MAX; f->bias_stages = stages)
        stages--;
    return stages;
}

/* Number of score terms, in the units of the tables. With FP8, dropout needs the registers of two. */
static int count_terms(const struct attention *a, bool is_fp8) {
    return (a->bias != NULL) + (a->modifier.graph != NULL) + a->alibi + (is_fp8 ? 2 : 1) * attention_drops(a);
}

/* True if the P V MMAs compute the row sums. These are sums of rounded P, which suits O but not the statistics, and
   they exclude dropped elements. The ones follow the columns of V, which must fill whole tiles, and an MMA has 256
   columns at most. With a modifier, such as a soft cap, which checks the sums, they are computed in registers. */
static bool has_ones(const struct forward *f) {
    const struct attention *a = f->c->a;
    return f->is_fp8 && is_rounded(f) && !attention_drops(a) && !a->modifier.graph && f->value_depth % FP8_TILE == 0 &&
           f->value_depth < DEPTH_MAX;
}

/* Derives the plan from the tile. O is staged in a Q buffer if it has no more panels than Q; otherwise it gets its own
   staging, and Q one buffer instead of two. */
static void plan_tile(struct forward *f, const struct forward_tile *tile) {
    const struct cuda_attention *c = f->c;
    bool fits_q = panels(f->value_depth, f->op->o) <= panels(f->depth, as_read(c, c->a->q));
    f->tile = tile;
    f->o_stages = tile->o_stages == 0 && !fits_q ? 1 : tile->o_stages;
    f->q_stages = f->o_stages == 0 ? 2 : 1;
    f->ones = has_ones(f) ? ONES : 0;
    f->bias_stages = bias_stages(f);
    f->tiles = divide_up(c->queries, GROUP_Q * tile->groups);
    f->all_tiles = c->batches * c->heads * f->tiles;
    f->seconds = predict(f, c->device->cuda.multiprocessors);
}

/* Adopts another tile if it is predicted to be faster. */
static void consider(struct forward *f, const struct forward_tile *tile, int terms) {
    struct forward other = *f;
    if (!fits(tile, f, terms))
        return;
    plan_tile(&other, tile);
    if (other.seconds < f->seconds)
        *f = other;
}

/* If there are few tiles, all run concurrently, and the default tile is kept. */
static void consider_others(struct forward *f, int terms) {
    const struct cuda_attention *c = f->c;
    if (f->all_tiles <= c->device->cuda.multiprocessors)
        return;
    bool is_short = c->keys <= SHORT_KEYS;
    if (!is_short && c->a->left_bound == ATTENTION_UNBOUNDED && f->depth == three_consumer_tile.depth &&
        (!f->is_fp8 || f->ones))
        consider(f, f->is_fp8 ? &fp8_three_consumer_tile : &three_consumer_tile, terms);
    for (int i = 0; is_short && !f->is_fp8 && i < SHORT_TILE_COUNT; i++)
        if (short_tiles[i].groups == 1 || c->queries <= GROUP_Q * short_tiles[i].groups)
            consider(f, &short_tiles[i], terms);
}

/* The last tile of each table fits every depth and every number of terms, and its keys divide the tile of a block mask,
   so the search ends. */
static weftStatus_t plan_forward(struct forward *f) {
    const struct cuda_attention *c = f->c;
    int64_t multiprocessors = c->device->cuda.multiprocessors;
    f->is_fp8 = is_fp8(c);
    int terms = count_terms(c->a, f->is_fp8);
    f->depth = (int)round_up(c->depth, f->is_fp8 ? 32 : 16);
    f->value_depth = (int)round_up(c->value_depth, f->is_fp8 ? 32 : 16);
    const struct forward_tile *tile = f->is_fp8 ? fp8_tiles : tiles;
    /* Tables are ordered by depth, then by terms, so the first tile that fits is the best. */
    while (!fits(tile, f, terms))
        tile++;
    for (int i = 0; attention_is_soft_cap(c) && !f->is_fp8 && i < SOFT_CAP_TILE_COUNT; i++)
        if (tile->depth == soft_cap_tiles[i].depth && fits(&soft_cap_tiles[i], f, terms))
            tile = &soft_cap_tiles[i];
    bool is_tma_bias = has_tma_bias(f, &bias_tile) && tile->depth == bias_tile.depth;
    if (is_tma_bias && fits(&bias_tile, f, terms))
        tile = &bias_tile;
    plan_tile(f, tile);
    consider_others(f, terms);
    f->raster_heads = raster_heads(f);
    if (f->all_tiles > INT32_MAX / 2)
        return attention_decline(c, "Hopper's forward kernel supports fewer than 2^30 tiles");
    f->is_dynamic = f->all_tiles > DYNAMIC_ROUNDS * multiprocessors * f->tile->ctas &&
                    f->seconds > (is_bounded(c->a) ? BOUNDED_DYNAMIC_SECONDS : DYNAMIC_SECONDS);
    return WEFT_STATUS_SUCCESS;
}

/* Does what building would do, without emitting source; seconds: see predict. */
weftStatus_t attention_hopper_forward_accepts(const struct cuda_attention *c, double *seconds) {
    struct forward f;
    begin(&f, c);
    TRY(check_all(f.c));
    TRY(plan_forward(&f));
    *seconds = f.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* Plans with the chosen tile scheduler. */
static weftStatus_t plan_schedule(struct forward *f, const struct cuda_attention *c, const struct knob_choices *knobs) {
    int64_t schedule = knob_value(knobs, WEFT_KNOB_TYPE_KERNEL_CFG);
    begin(f, c);
    TRY(plan_forward(f));
    f->is_dynamic = schedule == ATTENTION_SCHEDULE_CHOSEN ? f->is_dynamic : schedule == ATTENTION_SCHEDULE_DYNAMIC;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Emitting ---- */

/* Boxes: queries of one consumer, a block of keys, V in tiles to be transposed, 16 queries of O per warp, a consumer's
   panel of the bias. */
static void emit_maps(struct kernel_source *source, const struct forward *f) {
    const struct attention *a = f->c->a;
    attention_hopper_emit_map(source, f->c, a->q, GROUP_Q, "q_map");
    attention_hopper_emit_map(source, f->c, a->k, f->tile->keys, "k_map");
    if (f->is_fp8)
        attention_hopper_emit_box_map(source, f->c, a->v, FP8_TILE, FP8_TILE, "v_map");
    else
        attention_hopper_emit_map(source, f->c, a->v, f->tile->keys, "v_map");
    attention_hopper_emit_map(source, f->c, f->op->o, 16, "o_map");
    if (f->bias_stages)
        attention_hopper_emit_map(source, f->c, a->bias, GROUP_Q, "bias_map");
    attention_hopper_emit_entry(source, f->c, a->q, "q");
    attention_hopper_emit_entry(source, f->c, a->k, "k");
    attention_hopper_emit_entry(source, f->c, a->v, "v");
    attention_hopper_emit_entry(source, f->c, f->op->o, "o");
}

/* Heads that are shallower than their tile have fewer k-steps, of 32 bytes. */
static int count_q_register_steps(const struct forward *f) {
    int steps = f->depth / (f->is_fp8 ? 32 : 16);
    return f->tile->q_register_steps < steps ? f->tile->q_register_steps : steps;
}

/* With a bias or dropout, their computation overlaps the MMA and needs the registers. */
static int count_early_exps(const struct forward *f) {
    return f->c->a->bias || attention_drops(f->c->a) ? 0 : f->tile->early_exps;
}

static void emit_tile(struct kernel_source *source, const struct forward *f) {
    const struct forward_tile *t = f->tile;
    weftDataType_t type = (weftDataType_t)as_read(f->c, f->c->a->q)->type;
    emit_type(source, "in_t", type);
    emit_type(source, "v_t", (weftDataType_t)as_read(f->c, f->c->a->v)->type);
    emit_type(source, "out_t", (weftDataType_t)f->op->o->type);
    emit_constant(source, "IS_BF16", type == WEFT_DATA_BFLOAT16);
    emit_constant(source, "HEAD_QK", f->depth);
    emit_constant(source, "HEAD_V", f->value_depth);
    emit_constant(source, "ONES", f->ones);
    emit_constant(source, "BLOCK_K", t->keys);
    emit_constant(source, "GROUPS", t->groups);
    emit_constant(source, "STAGES", t->stages);
    emit_constant(source, "Q_STAGES", f->q_stages);
    emit_constant(source, "O_STAGES", f->o_stages);
    emit_constant(source, "BIAS_STAGES", f->bias_stages);
    emit_constant(source, "CTAS", f->tile->ctas);
    emit_constant(source, "PING_PONG", t->ping_pong);
    emit_constant(source, "Q_REGISTER_STEPS", count_q_register_steps(f));
    emit_constant(source, "EARLY_EXPS", count_early_exps(f));
    emit_constant(source, "CONSUMER_REGISTERS", t->consumer_registers);
    emit_constant(source, "PRODUCER_REGISTERS", t->producer_registers);
    emit_constant(source, "SHARED_BYTES", shared_bytes(f));
}

/* True if no output has rows past the queries in use. */
static bool skips_unused_tiles(const struct forward *f) {
    const struct tensor *outputs[] = {f->op->o, f->op->stats, f->op->max, f->op->sum_exp};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (attention_wants(f->c, outputs[i]) && !outputs[i]->ragged_offset)
            return false;
    return true;
}

/* Outputs other than O, each only if requested, and the sink, which is added to the row sums. */
static void emit_outputs(struct kernel_source *source, const struct forward *f) {
    const struct tensor *sink = f->c->a->sink;
    emit_constant(source, "SKIPS_UNUSED_TILES", skips_unused_tiles(f));
    attention_emit_wanted(source, f->c, f->op->stats, "stats", "HAS_STATS");
    attention_emit_wanted(source, f->c, f->op->max, "max", "HAS_MAX");
    attention_emit_wanted(source, f->c, f->op->sum_exp, "sum_exp", "HAS_SUM_EXP");
    emit_constant(source, "HAS_SINK", sink != NULL);
    if (!sink)
        return;
    emit_pointer(source, (weftDataType_t)sink->type, graph_find_value(f->c->graph, sink), 0, "sink");
    emit_number(source, sink->dims.at[1] == 1 ? 0 : sink->strides.at[1], "sink_step");
}

/* Arguments of the tile order in forward_tiles_sm90.cuh. Only the dynamic schedule reads `counter`, which is in the
   workspace. */
static void emit_schedule(struct kernel_source *source, const struct forward *f) {
    const struct cuda_attention *c = f->c;
    emit_number(source, c->heads, "heads");
    attention_emit_scales(source, c, false);
    emit_number(source, f->tiles, "tiles");
    emit_number(source, f->all_tiles, "all_tiles");
    emit_number(source, c->batches * c->heads, "all_heads");
    emit_number(source, f->raster_heads, "raster_heads");
    emit_number(source, f->is_dynamic, "is_dynamic");
    emit_scratch(source, "u32", 0, "counter");
}

/* S = Q K^T with Q from shared memory or registers; the first k-step overwrites the accumulators. O += P V with P from
   registers. P of FP8 is E4M3, with values in 0 .. 448. */
static void emit_mmas(struct text *code, const struct forward *f) {
    const char *type = cuda_type_name((weftDataType_t)as_read(f->c, f->c->a->q)->type);
    const char *k_type = cuda_type_name((weftDataType_t)as_read(f->c, f->c->a->k)->type);
    const char *v_type = cuda_type_name((weftDataType_t)as_read(f->c, f->c->a->v)->type);
    struct attention_mma s = {"mma_s", type, f->tile->keys, .is_fp8 = f->is_fp8, .b_type = k_type, .adds = MMA_ADDS};
    struct attention_mma s_first = {"mma_s_first",   type, f->tile->keys, .is_fresh = true, .is_fp8 = f->is_fp8,
                                    .b_type = k_type};
    struct attention_mma s_registers = s, s_registers_first = s_first;
    s_registers.name = "mma_s_registers", s_registers_first.name = "mma_s_registers_first";
    s_registers.a = s_registers_first.a = MMA_A_REGISTERS;
    struct attention_mma o = {"mma_o",
                              f->is_fp8 ? "e4m3" : type,
                              f->value_depth + f->ones,
                              .a = MMA_A_REGISTERS,
                              .b_is_mn = !f->is_fp8,
                              .is_fp8 = f->is_fp8,
                              .b_is_narrow = f->is_fp8,
                              .b_type = v_type,
                              .adds = MMA_ADDS_AT_RUN_TIME};
    attention_hopper_emit_mma(code, &s);
    attention_hopper_emit_mma(code, &s_first);
    attention_hopper_emit_mma(code, &s_registers);
    attention_hopper_emit_mma(code, &s_registers_first);
    attention_hopper_emit_mma(code, &o);
}

/* Persistent: launches at most as many CTAs as fit on the device. */
static weftStatus_t build_main(const struct forward *f, struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_source source;
    int64_t slots = f->c->device->cuda.multiprocessors * f->tile->ctas;
    kernel_source_init(&source, f->c->region);
    emit_maps(&source, f);
    attention_hopper_emit_scores(&source, f->c);
    attention_hopper_emit_terms(&source, f->c, is_rounded(f));
    attention_emit_soft_cap(&source, f->c, is_rounded(f));
    attention_emit_modifier_factors(&source, f->c);
    attention_emit_block_mask(&source, f->c);
    attention_emit_dropout(&source, f->c);
    emit_tile(&source, f);
    emit_outputs(&source, f);
    emit_schedule(&source, f);
    emit_mmas(&source.code, f);
    TRY(kernel_finish(&source, kernel, "attention/hopper/forward_sm90.cuh", "attention_forward_sm90", arena));
    kernel->shared_bytes = shared_bytes(f);
    kernel->is_dependent = true;
    return attention_grid(kernel, f->c, f->all_tiles < slots ? f->all_tiles : slots,
                          (f->tile->groups + 1) * WARPGROUP / 32);
}

/* A single-thread kernel that zeroes the counter of the dynamic schedule, because the workspace is uninitialised. */
static weftStatus_t build_counter(const struct forward *f, struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, f->c->region);
    text_add(&source.constants, "#include \"core/ptx_sm90.cuh\"\n");
    emit_scratch(&source, "u32", 0, "counter");
    TRY(kernel_finish(&source, kernel, "attention/hopper/forward_counter_sm90.cuh", "attention_forward_counter_sm90",
                      arena));
    kernel->is_dependent = true;
    return attention_grid(kernel, f->c, 1, 1);
}

weftStatus_t attention_hopper_forward_build(struct step *step, const struct cuda_attention *c,
                                            const struct knob_choices *knobs, struct cuda_step *state,
                                            struct arena *arena) {
    struct forward f;
    enum { COUNTER_BYTES = 64 };
    TRY(plan_schedule(&f, c, knobs));
    /* The workspace starts with the counter, followed by the converted operands. */
    f.widened.workspace_at = COUNTER_BYTES;
    TRY(attention_hopper_build_widening(f.c, state, arena));
    if (f.is_dynamic)
        TRY(build_counter(&f, &state->kernels[state->count++], arena));
    TRY(attention_build_amax_clear(c, state, arena));
    TRY(build_main(&f, &state->kernels[state->count++], arena));
    step->workspace_bytes = f.c->widened ? COUNTER_BYTES + f.widened.bytes : f.is_dynamic ? COUNTER_BYTES : 0;
    return arena_print(arena, &step->detail, "%swgmma of %s, heads of %d and %d, %d queries x %d keys, %s schedule",
                       f.c->widened ? "FP8 widened, then " : "",
                       cuda_type_name((weftDataType_t)as_read(f.c, c->a->q)->type), f.depth, f.value_depth,
                       GROUP_Q * f.tile->groups, f.tile->keys, f.is_dynamic ? "dynamic" : "static");
}
