/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_fwd on Hopper: forward_sm90.cuh, and before it, where whoever is free takes the next tile, what resets the
   counter of tiles. FP8 with scales of blocks (MXFP8) is widened to bf16 before, and to f16 where deep heads leave no
   registers for a bias. */
#include "base/number.h"
#include "engines/cuda/attention/hopper/hopper.h"
#include "engines/cuda/families.h"

enum {
    WARPGROUP = 128,
    GROUP_QUERIES = 64,
    ROW_BYTES = 128, /* of a panel of 64 columns */
    DEPTH_MAX = 256,
    TILES_IN_FLIGHT = 2,
    TILE_BYTES = 32,
    BIAS_ELEMENT_BYTES = 2,
    BIAS_STAGES_MOST = 2,
    BARRIER_BYTES = 8,
    ONES = 8,            /* the columns that a product's are a multiple of */
    USED_BYTES = 16,     /* how many keys of a stage's values are in use */
    PARKED_BYTES = 2,    /* of a sum of FP8 that is promoted */
    CROWDED_DEPTH = 192, /* values of a head of FP8 that leave registers for a bias */
    DECODE_QUERIES = 16, /* so few leave most of a tile empty, and blocks of keys to one multiprocessor */
    DECODE_KEYS = 256,
    SHORT_KEYS = 256,   /* of more the wide tiles make better use of what they load */
    FEW_TILES = 4,      /* of a head, which loads K and V as fast as memory gives them */
    DYNAMIC_ROUNDS = 4, /* of tiles on each multiprocessor, from which on a schedule at run time pays */
};

/* From which on it pays for the launch that resets its counter: with bounds tiles take different times. */
static const double DYNAMIC_SECONDS = 80e-6, BOUNDED_DYNAMIC_SECONDS = 40e-6;
static const double RASTER_BYTES = 34e6; /* of K and V that stay in L2 */
static const double FLOPS_PER_CLOCK = 4096, EFFICIENCY = 0.6, START_SECONDS = 4e-6;
/* Of the same: exponentials take as long as products of twice the rate, and twice as long where heads are half as
   deep. */
static const double FP8_EFFICIENCY = 0.8, FP8_THREE_EFFICIENCY = 0.88, FP8_SHALLOW_EFFICIENCY = 0.52;
static const double SHORT_EFFICIENCY = 0.4, CROWDED_EFFICIENCY = 0.5, THREE_EFFICIENCY = 0.64;
/* Of a multiprocessor, for a score, by terms: alike at all depths of heads (H100, 4096 keys). */
static const double BIAS_CLOCKS = 0.03, MODIFIER_CLOCKS = 0.04, ALIBI_CLOCKS = 0.006;
static const double DRAWN_CLOCKS = 0.25, MASK_CLOCKS = 0.14;
/* Before the first product of a tile and behind its last one; under the others' products, where three take no turns. */
static const double TILE_SECONDS = 1.6e-6, THREE_TILE_SECONDS = 0.6e-6;

/* By the padded depths, narrowest first. Registers: what consumers and the producer move to. terms: of what joins
   the products, at most so many find registers. */
static const struct forward_tile {
    int terms;
    int depth, value_depth; /* most */
    int keys, groups, stages, o_stages, consumer_registers, producer_registers;
    bool ping_pong;
    int ctas;  /* that share a multiprocessor */
    int kept;  /* steps of queries in registers, whose products read half as much from shared memory */
    int early; /* scores of a thread that become weights while the last products run: without a bias or dropout */
} tiles[] = {
    {0, 64, 64, 128, 3, 4, 0, 160, 32, false, 1, 0, 0},   {1, 64, 64, 128, 3, 4, 0, 160, 32, false, 1, 0, 0},
    {1, 64, 64, 128, 2, 3, 0, 232, 40, true, 1, 0, 0},    {5, 64, 64, 96, 2, 3, 0, 232, 40, true, 1, 0, 0},
    {1, 128, 128, 128, 2, 2, 0, 232, 40, true, 1, 0, 32}, {5, 128, 128, 96, 2, 2, 0, 232, 40, true, 1, 0, 0},
    {1, 192, 128, 128, 2, 2, 1, 232, 40, true, 1, 0, 40}, {5, 192, 128, 96, 2, 2, 1, 232, 40, true, 1, 0, 0},
    {1, 192, 192, 96, 2, 2, 1, 232, 40, true, 1, 0, 0},   {5, 192, 192, 64, 2, 2, 1, 232, 40, true, 1, 0, 0},
    {1, 256, 256, 64, 2, 2, 2, 232, 40, true, 1, 0, 0},   {5, 256, 256, 48, 2, 2, 2, 232, 40, true, 1, 0, 0},
    {5, 256, 256, 32, 2, 2, 2, 232, 40, true, 1, 0, 0},
};

/* Of FP8: the producer's warps turn V over, and take more. Tiles of a block mask need consumers that take turns. */
static const struct forward_tile fp8_tiles[] = {
    {0, 64, 64, 128, 3, 4, 0, 152, 56, false, 1, 0, 0},  {1, 64, 64, 128, 2, 4, 0, 216, 72, true, 1, 0, 0},
    {5, 64, 64, 64, 2, 4, 0, 216, 72, true, 1, 0, 0},    {1, 128, 128, 128, 2, 4, 0, 216, 72, false, 1, 4, 0},
    {1, 128, 128, 128, 2, 4, 0, 216, 72, true, 1, 0, 0}, {5, 128, 128, 64, 2, 4, 0, 216, 72, true, 1, 0, 0},
    {1, 192, 128, 128, 2, 2, 0, 216, 72, true, 1, 0, 0}, {5, 192, 128, 64, 2, 4, 0, 216, 72, true, 1, 0, 0},
    {0, 192, 192, 128, 2, 2, 0, 216, 72, true, 1, 0, 0}, {5, 192, 192, 64, 2, 3, 0, 216, 72, true, 1, 0, 0},
    {0, 256, 256, 64, 2, 3, 2, 224, 56, true, 1, 4, 0},  {5, 256, 256, 64, 2, 3, 0, 216, 72, true, 1, 0, 0},
};

/* Of short sequences: see CTAS. Four consumers have all queries of a head, which reads K and V once. */
static const struct forward_tile short_tiles[] = {
    {0, 64, 64, 64, 1, 3, 0, 128, 32, false, 3, 0, 0},
    {0, 64, 64, 64, 4, 4, 0, 112, 32, false, 1, 0, 0},
    {0, 128, 128, 64, 1, 2, 0, 216, 40, false, 2, 0, 0},
};
enum { SHORT_TILE_COUNT = sizeof short_tiles / sizeof *short_tiles };

/* Of a soft cap, whose weights take longer than their products: consumers that take no turns make them side by side. */
static const struct forward_tile soft_cap_tiles[] = {
    {1, 128, 128, 128, 2, 2, 0, 232, 40, false, 1, 2, 0},
    {1, 256, 256, 64, 2, 2, 2, 232, 40, false, 1, 0, 0},
};
enum { SOFT_CAP_TILE_COUNT = sizeof soft_cap_tiles / sizeof *soft_cap_tiles };

/* Of a bias in boxes, which would take what shared memory has left: so products read no queries there. */
static const struct forward_tile bias_tile = {1, 128, 128, 128, 2, 2, 0, 232, 40, true, 1, 8, 0};

/* Of scores that nothing joins: three consumers read K and V two thirds as often, and begin and end their tiles under
   each other's products. Of FP8 they are faster where products sum the weights alone. */
static const struct forward_tile three_tile = {0, 128, 128, 64, 3, 4, 0, 160, 32, false, 1, 4, 0};
static const struct forward_tile fp8_three_tile = {0, 128, 128, 64, 3, 6, 0, 152, 56, false, 1, 0, 0};

struct forward {
    const struct cuda_attention *c;
    const struct sdpa_fwd_op *op;
    const struct forward_tile *tile;
    bool is_fp8;
    int depth, value_depth; /* padded */
    int q_stages, o_stages; /* 2 and 0: O leaves through the Q that is done with */
    int ones;               /* columns of ones behind those of V: 0 or 8, the fewest a product takes */
    int bias_stages;        /* 0: bias is read from memory, or there is none */
    int64_t tiles, all_tiles, raster_heads;
    bool is_dynamic;
    double seconds;
    struct cuda_attention wide; /* c, where operands are widened */
    struct attention_widened widened;
};

/* ---- Accepting ---- */

/* Whether q, k and v are; each may be E4M3 or E5M2. */
static bool are_fp8(const struct cuda_attention *c) {
    return dtype_is_fp8((weftDataType_t)c->a->q->type) && dtype_is_fp8((weftDataType_t)c->a->k->type) &&
           dtype_is_fp8((weftDataType_t)c->a->v->type);
}

/* Whether products are of FP8. */
static bool is_fp8(const struct cuda_attention *c) { return are_fp8(c) && !c->widened; }

/* Whether one of them has scales of blocks along its rows: such products are made of widened operands. */
static bool has_block_scales(const struct cuda_attention *c) {
    return attention_query_scales(c, false) == ATTENTION_SCALES_BLOCKS ||
           attention_key_scales(c->a->descale_k, NULL) == ATTENTION_SCALES_BLOCKS ||
           attention_key_scales(c->a->descale_v, NULL) == ATTENTION_SCALES_BLOCKS;
}

/* Whether FP8 leaves no registers for a bias, which then is read from memory. */
static bool is_crowded(const struct cuda_attention *c) { return c->value_depth > CROWDED_DEPTH && c->a->bias != NULL; }

/* f->c becomes what the kernel reads. f16 holds all of FP8, bf16 that times powers of two. */
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

/* An operand as the kernel reads it. */
static const struct tensor *as_read(const struct cuda_attention *c, const struct tensor *tensor) {
    const struct attention_wide_operand *wide = attention_hopper_wide(c, tensor);
    return wide ? &wide->tensor : tensor;
}

/* What is refused here the portable family takes: no case fails by it. */
static weftStatus_t refuse(const struct cuda_attention *c, const char *what) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: %s; the portable attention family takes it.",
         descriptor_label(region_node(c->region, 0)->op), what);
}

/* Scales that are neither one number of a head nor, of what is widened, of blocks. */
static bool has_other_scales(const struct cuda_attention *c) {
    const int kinds[] = {attention_query_scales(c, false), attention_key_scales(c->a->descale_k, NULL),
                         attention_key_scales(c->a->descale_v, NULL)};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i] > ATTENTION_SCALES_HEAD && !(c->widened && kinds[i] == ATTENTION_SCALES_BLOCKS))
            return true;
    return false;
}

/* What the operation asks for that the kernel lacks; see check_all for how operands lie. */
static weftStatus_t check_features(const struct cuda_attention *c) {
    const struct sdpa_fwd_op *op = c->forward;
    if (c->a->k_table || c->a->v_table)
        return refuse(c, "Hopper's forward kernel reads no pages");
    if (attention_is_scaled(c) && !are_fp8(c))
        return refuse(c, "Hopper's forward kernel multiplies FP8 alone by scales");
    if (has_other_scales(c))
        return refuse(c, "Hopper's forward kernel has a scale of a head, not of a row or a block");
    if (attention_wants(c, op->rng_dump))
        return refuse(c, "Hopper's forward kernel dumps no dropout mask");
    if (attention_hopper_multiplies_by_mask(c))
        return refuse(c, "Hopper's forward kernel drops weights by a mask of booleans alone");
    if (!attention_wants(c, op->o))
        return refuse(c, "Hopper's forward kernel makes o, which is not wanted");
    if (c->depth > DEPTH_MAX || c->value_depth > DEPTH_MAX)
        return refuse(c, "Hopper's forward kernel has heads of up to 256");
    if (!c->lines || !c->keys || !c->depth || !c->value_depth)
        return refuse(c, "there is nothing to multiply");
    if (c->queries <= DECODE_QUERIES && c->keys > DECODE_KEYS)
        return refuse(c, "few queries of many keys are better split by keys");
    return WEFT_STATUS_SUCCESS;
}

/* Of FP8, or widened, the result has a type of its own; else all four tensors have one. */
static weftStatus_t check_all(const struct cuda_attention *c) {
    const struct tensor *boxed[] = {c->a->q, c->a->k, c->a->v, c->forward->o};
    weftDataType_t out = (weftDataType_t)c->forward->o->type;
    TRY(check_features(c));
    if (are_fp8(c) && !dtype_is_fp8(out) && !dtype_is_half(out))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: o has data type %s; of FP8 it is FP8, f16 or bf16 here.",
             descriptor_label(region_node(c->region, 0)->op), dtype_of(out)->name);
    if (c->widened) {
        TRY(attention_hopper_check_rows(c, c->forward->o));
        return attention_hopper_check_widened(c);
    }
    for (size_t i = 0; i < sizeof boxed / sizeof *boxed; i++)
        TRY(is_fp8(c) ? attention_hopper_check_rows(c, boxed[i]) : attention_hopper_check_boxed(c, boxed[i]));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Planning ---- */

/* Panels of columns in rows of 128 bytes. */
static int panels(int depth, const struct tensor *tensor) {
    return (int)divide_up(dtype_bytes((weftDataType_t)tensor->type, depth), ROW_BYTES);
}

/* Q of each group, stages of K and V, O's panels of 16 rows for each warp, the parked sums of FP8, boxes of the bias,
   tiles that the scheduler has handed out, barriers. Must agree with forward_sm90.cuh, which is given the number. */
static int64_t shared_bytes(const struct forward *f) {
    const struct forward_tile *t = f->tile;
    int64_t q = (int64_t)panels(f->depth, as_read(f->c, f->c->a->q)) * ROW_BYTES * GROUP_QUERIES * t->groups;
    int64_t k = (int64_t)panels(f->depth, as_read(f->c, f->c->a->k)) * ROW_BYTES * t->keys;
    int64_t v = dtype_bytes((weftDataType_t)as_read(f->c, f->c->a->v)->type, round_up(f->value_depth, 64) * t->keys);
    int64_t ones = (int64_t)f->ones * t->keys;
    int64_t o = (int64_t)4 * t->groups * f->o_stages * 16 * ROW_BYTES;
    int64_t stage = k + v + ones + (f->is_fp8 ? 5 * BARRIER_BYTES + USED_BYTES : 4 * BARRIER_BYTES);
    int64_t barriers = 2 * (f->q_stages + f->bias_stages) * t->groups;
    int64_t bias = (int64_t)f->bias_stages * t->groups * GROUP_QUERIES * t->keys * BIAS_ELEMENT_BYTES;
    int64_t sums = f->is_fp8 ? (int64_t)GROUP_QUERIES * t->groups * f->value_depth * PARKED_BYTES : 0;
    return f->q_stages * q + t->stages * stage + o + sums + bias + TILES_IN_FLIGHT * t->groups * TILE_BYTES +
           barriers * BARRIER_BYTES;
}

static bool is_bounded(const struct attention *a) {
    return a->left_bound != ATTENTION_UNBOUNDED || a->right_bound != ATTENTION_UNBOUNDED || a->seq_len_kv ||
           a->cu_seq_len_kv;
}

/* Heads whose tiles are taken together, those that see most keys first: a multiple of those that share keys, which read
   the same K and V. As many as stay in L2, in sets of one size: a smaller last one would begin its longest tiles when
   others end. Of few tiles only as many as there are multiprocessors, so that loads do not come all at once. Without
   bounds all tiles are as long, and nothing is gained by taking several heads together. */
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

/* The part of the products' rate that long rows of tiles reach. */
static double efficiency(const struct forward *f) {
    return f->tile->ctas > 1            ? SHORT_EFFICIENCY
           : f->tile->groups > 3        ? CROWDED_EFFICIENCY
           : f->tile == &three_tile     ? THREE_EFFICIENCY
           : f->tile == &fp8_three_tile ? FP8_THREE_EFFICIENCY
           : !f->is_fp8                 ? EFFICIENCY
           : f->value_depth <= 64       ? FP8_SHALLOW_EFFICIENCY
                                        : FP8_EFFICIENCY;
}

static double tile_seconds(const struct forward *f) {
    return f->tile == &three_tile || f->tile == &fp8_three_tile ? THREE_TILE_SECONDS : TILE_SECONDS;
}

static double term_clocks(const struct attention *a) {
    return (a->bias ? BIAS_CLOCKS : 0) + (a->modifier.graph ? MODIFIER_CLOCKS : 0) + (a->alibi ? ALIBI_CLOCKS : 0) +
           (attention_draws(a) ? DRAWN_CLOCKS : 0) + (a->dropout_mask ? MASK_CLOCKS : 0);
}

/* By rounds of tiles over all multiprocessors: a started round counts whole. CTAs that share one take turns at
   products, and begin and end their tiles beside each other. */
static double predict(const struct forward *f, int64_t multiprocessors) {
    const struct cuda_attention *c = f->c;
    const struct node *node = region_node(c->region, 0);
    double rate = FLOPS_PER_CLOCK * c->device->cuda.clock_khz * 1e3 * efficiency(f);
    double bytes = 0;
    double rows = (double)(f->tiles * GROUP_QUERIES * f->tile->groups) / (double)c->queries;
    /* Tiles of a multiprocessor come one behind the other, so that a started round counts whole. */
    int64_t each = divide_up(f->all_tiles, multiprocessors);             /* tiles of a multiprocessor */
    double seen = attention_seen_share(c) * rows / (double)f->all_tiles; /* by a tile, of all that there is */
    double flops = op_flops(node->op) * seen;
    double scores = (double)(c->batches * c->heads * c->queries) * (double)c->keys * seen;
    double terms = scores * term_clocks(c->a) / (c->device->cuda.clock_khz * 1e3);
    for (int i = 0; i < node->operand_count; i++)
        bytes += (double)tensor_own_bytes(c->graph->values[node->operands[i]].tensor);
    /* Operands and results move once: heads that share keys read them from L2. */
    double moving = bytes / (double)c->device->cuda.bandwidth;
    double computing = (double)each * (flops / rate + terms) + (double)divide_up(each, f->tile->ctas) * tile_seconds(f);
    return START_SECONDS + attention_hopper_predict_widening(c) + (moving > computing ? moving : computing);
}

/* Whether blocks of keys have whole boxes of the bias. */
static bool has_boxed_bias(const struct forward *f, const struct forward_tile *t) {
    return !f->is_fp8 && t->keys % 64 == 0 && attention_hopper_has_boxed_bias(f->c);
}

/* Whether all that is made of scores has 16 bits or fewer: weights, and no statistics, which are floats. */
static bool is_rounded(const struct forward *f) {
    return !attention_wants(f->c, f->op->stats) && !attention_wants(f->c, f->op->max) &&
           !attention_wants(f->c, f->op->sum_exp);
}

/* Tiles of scores lie in one of a block mask's, and consumers that take turns pass over the same ones. Three consumers
   have no registers for a bias that is read from memory, nor for the longer functions of a modifier. */
static bool fits(const struct forward_tile *t, const struct forward *f, int terms) {
    const struct attention *a = f->c->a;
    bool is_inside = t->ping_pong && ATTENTION_MASK_TILE % t->keys == 0;
    return t->depth >= f->depth && t->value_depth >= f->value_depth && t->terms >= terms &&
           (is_inside || !a->block_mask) && (t->groups < 3 || !a->bias || has_boxed_bias(f, t)) &&
           (t->groups < 3 || !a->modifier.graph || is_rounded(f));
}

/* As many as there is room for beside the rest. */
static int bias_stages(struct forward *f) {
    int stages = has_boxed_bias(f, f->tile) ? BIAS_STAGES_MOST : 0;
    for (f->bias_stages = stages; stages > 0 && shared_bytes(f) > SHARED_MAX; f->bias_stages = stages)
        stages--;
    return stages;
}

/* What joins the products, as tiles count it. Beside FP8 drawing takes the registers of two. */
static int count_terms(const struct attention *a, bool is_fp8) {
    return (a->bias != NULL) + (a->modifier.graph != NULL) + a->alibi + (is_fp8 ? 2 : 1) * attention_drops(a);
}

/* Whether weights of FP8 are summed by the products that multiply them: as they were rounded, which suits results and
   no statistics, and without those that are dropped. Ones come right behind V's columns, which have to fill their
   squares, and a product has 256 at most. Modifiers, of which a soft cap looks at sums, keep theirs. */
static bool has_ones(const struct forward *f) {
    const struct attention *a = f->c->a;
    return f->is_fp8 && is_rounded(f) && !attention_drops(a) && !a->modifier.graph && f->value_depth % SQUARE == 0 &&
           f->value_depth < DEPTH_MAX;
}

/* What follows from the tile. O leaves through Q's room where it has no more panels; else it has some of its own, and Q
   one buffer instead of two. */
static void plan_tile(struct forward *f, const struct forward_tile *tile) {
    const struct cuda_attention *c = f->c;
    bool fits_q = panels(f->value_depth, f->op->o) <= panels(f->depth, as_read(c, c->a->q));
    f->tile = tile;
    f->o_stages = tile->o_stages == 0 && !fits_q ? 1 : tile->o_stages;
    f->q_stages = f->o_stages == 0 ? 2 : 1;
    f->ones = has_ones(f) ? ONES : 0;
    f->bias_stages = bias_stages(f);
    f->tiles = divide_up(c->queries, GROUP_QUERIES * tile->groups);
    f->all_tiles = c->batches * c->heads * f->tiles;
    f->seconds = predict(f, c->device->cuda.multiprocessors);
}

/* Another tile, where it is predicted to take less. */
static void consider(struct forward *f, const struct forward_tile *tile, int terms) {
    struct forward other = *f;
    if (!fits(tile, f, terms))
        return;
    plan_tile(&other, tile);
    if (other.seconds < f->seconds)
        *f = other;
}

/* Of few tiles none waits for another. */
static void consider_others(struct forward *f, int terms) {
    const struct cuda_attention *c = f->c;
    if (f->all_tiles <= c->device->cuda.multiprocessors)
        return;
    bool is_short = c->keys <= SHORT_KEYS;
    if (!is_short && c->a->left_bound == ATTENTION_UNBOUNDED && f->depth == three_tile.depth && (!f->is_fp8 || f->ones))
        consider(f, f->is_fp8 ? &fp8_three_tile : &three_tile, terms);
    for (int i = 0; is_short && !f->is_fp8 && i < SHORT_TILE_COUNT; i++)
        if (short_tiles[i].groups == 1 || c->queries <= GROUP_QUERIES * short_tiles[i].groups)
            consider(f, &short_tiles[i], terms);
}

/* The table ends with tiles for every depth and every term, in keys that divide a block mask's tile: the search ends.
   */
static weftStatus_t plan_forward(struct forward *f) {
    const struct cuda_attention *c = f->c;
    int64_t multiprocessors = c->device->cuda.multiprocessors;
    f->is_fp8 = is_fp8(c);
    int terms = count_terms(c->a, f->is_fp8);
    f->depth = (int)round_up(c->depth, f->is_fp8 ? 32 : 16);
    f->value_depth = (int)round_up(c->value_depth, f->is_fp8 ? 32 : 16);
    const struct forward_tile *tile = f->is_fp8 ? fp8_tiles : tiles;
    /* The first that fits is the best: tables are ordered by depths, then by the terms that registers hold. */
    while (!fits(tile, f, terms))
        tile++;
    for (int i = 0; attention_is_soft_cap(c) && !f->is_fp8 && i < SOFT_CAP_TILE_COUNT; i++)
        if (tile->depth == soft_cap_tiles[i].depth && fits(&soft_cap_tiles[i], f, terms))
            tile = &soft_cap_tiles[i];
    bool is_boxed_bias = has_boxed_bias(f, &bias_tile) && tile->depth == bias_tile.depth;
    if (is_boxed_bias && fits(&bias_tile, f, terms))
        tile = &bias_tile;
    plan_tile(f, tile);
    consider_others(f, terms);
    f->raster_heads = raster_heads(f);
    if (f->all_tiles > INT32_MAX / 2)
        return refuse(c, "Hopper's forward kernel counts tiles in 31 bits");
    f->is_dynamic = f->all_tiles > DYNAMIC_ROUNDS * multiprocessors * f->tile->ctas &&
                    f->seconds > (is_bounded(c->a) ? BOUNDED_DYNAMIC_SECONDS : DYNAMIC_SECONDS);
    return WEFT_STATUS_SUCCESS;
}

/* What building would do, without printing; seconds: by predict. */
weftStatus_t attention_hopper_forward_accepts(const struct cuda_attention *c, double *seconds) {
    struct forward f;
    begin(&f, c);
    TRY(check_all(f.c));
    TRY(plan_forward(&f));
    *seconds = f.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* The plan with the tile scheduler that was chosen. */
static weftStatus_t plan_schedule(struct forward *f, const struct cuda_attention *c, const struct knob_choices *knobs) {
    int64_t schedule = knob_value(knobs, WEFT_KNOB_TYPE_KERNEL_CFG);
    begin(f, c);
    TRY(plan_forward(f));
    f->is_dynamic = schedule == ATTENTION_SCHEDULE_CHOSEN ? f->is_dynamic : schedule == ATTENTION_SCHEDULE_DYNAMIC;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Printing ---- */

/* Boxes: queries of one consumer, a block of keys, squares of V where it is turned over, 16 queries of a warp on the
   way out, a consumer's panel of the bias. */
static void print_maps(struct kernel_print *print, const struct forward *f) {
    const struct attention *a = f->c->a;
    attention_hopper_print_map(print, f->c, a->q, GROUP_QUERIES, "q_map");
    attention_hopper_print_map(print, f->c, a->k, f->tile->keys, "k_map");
    if (f->is_fp8)
        attention_hopper_print_box_map(print, f->c, a->v, SQUARE, SQUARE, "v_map");
    else
        attention_hopper_print_map(print, f->c, a->v, f->tile->keys, "v_map");
    attention_hopper_print_map(print, f->c, f->op->o, 16, "o_map");
    if (f->bias_stages)
        attention_hopper_print_map(print, f->c, a->bias, GROUP_QUERIES, "bias_map");
    attention_hopper_print_entry(print, f->c, a->q, "q");
    attention_hopper_print_entry(print, f->c, a->k, "k");
    attention_hopper_print_entry(print, f->c, a->v, "v");
    attention_hopper_print_entry(print, f->c, f->op->o, "o");
}

/* Heads that are less deep than their tile have fewer steps, of 32 bytes. */
static int kept_steps(const struct forward *f) {
    int steps = f->depth / (f->is_fp8 ? 32 : 16);
    return f->tile->kept < steps ? f->tile->kept : steps;
}

/* Elements of a bias, and what dropout keeps, are found meanwhile, and take the registers. */
static int early_scores(const struct forward *f) {
    return f->c->a->bias || attention_drops(f->c->a) ? 0 : f->tile->early;
}

static void print_tile(struct kernel_print *print, const struct forward *f) {
    const struct forward_tile *t = f->tile;
    weftDataType_t type = (weftDataType_t)as_read(f->c, f->c->a->q)->type;
    print_type(print, "in_t", type);
    print_type(print, "v_t", (weftDataType_t)as_read(f->c, f->c->a->v)->type);
    print_type(print, "out_t", (weftDataType_t)f->op->o->type);
    print_constant(print, "IS_BF16", type == WEFT_DATA_BFLOAT16);
    print_constant(print, "HEAD_QK", f->depth);
    print_constant(print, "HEAD_V", f->value_depth);
    print_constant(print, "ONES", f->ones);
    print_constant(print, "BLOCK_K", t->keys);
    print_constant(print, "GROUPS", t->groups);
    print_constant(print, "STAGES", t->stages);
    print_constant(print, "Q_STAGES", f->q_stages);
    print_constant(print, "O_STAGES", f->o_stages);
    print_constant(print, "BIAS_STAGES", f->bias_stages);
    print_constant(print, "CTAS", f->tile->ctas);
    print_constant(print, "PING_PONG", t->ping_pong);
    print_constant(print, "KEPT_STEPS", kept_steps(f));
    print_constant(print, "EARLY", early_scores(f));
    print_constant(print, "CONSUMER_REGISTERS", t->consumer_registers);
    print_constant(print, "PRODUCER_REGISTERS", t->producer_registers);
    print_constant(print, "SHARED_BYTES", shared_bytes(f));
}

/* Whether no result has rows behind the queries in use. */
static bool makes_used_alone(const struct forward *f) {
    const struct tensor *made[] = {f->op->o, f->op->stats, f->op->max, f->op->sum_exp};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (attention_wants(f->c, made[i]) && !made[i]->ragged_offset)
            return false;
    return true;
}

/* Statistics beside o, each stored where somebody wants it, and the sink, which joins the sums at the end of a row. */
static void print_outputs(struct kernel_print *print, const struct forward *f) {
    const struct tensor *sink = f->c->a->sink;
    print_constant(print, "MAKES_USED_ALONE", makes_used_alone(f));
    attention_print_wanted(print, f->c, f->op->stats, "stats", "HAS_STATS");
    attention_print_wanted(print, f->c, f->op->max, "max", "HAS_MAX");
    attention_print_wanted(print, f->c, f->op->sum_exp, "sum_exp", "HAS_SUM_EXP");
    print_constant(print, "HAS_SINK", sink != NULL);
    if (!sink)
        return;
    print_pointer(print, (weftDataType_t)sink->type, graph_find_value(f->c->graph, sink), 0, "sink");
    print_number(print, sink->dims.at[1] == 1 ? 0 : sink->strides.at[1], "sink_step");
}

/* The order of tiles as forward_tiles_sm90.cuh counts it. `counter` is in the workspace and read by the dynamic
   schedule alone. */
static void print_schedule(struct kernel_print *print, const struct forward *f) {
    const struct cuda_attention *c = f->c;
    print_number(print, c->heads, "heads");
    attention_print_scales(print, c, false);
    print_number(print, f->tiles, "tiles");
    print_number(print, f->all_tiles, "all_tiles");
    print_number(print, c->batches * c->heads, "all_heads");
    print_number(print, f->raster_heads, "raster_heads");
    print_number(print, f->is_dynamic, "is_dynamic");
    print_scratch(print, "u32", 0, "counter");
}

/* S = Q K^T with Q from shared memory or kept in registers, whose first step replaces what was there, and O += P V with
   P from registers. Weights of FP8 are E4M3: they lie between 0 and 448. */
static void print_products(struct text *code, const struct forward *f) {
    const char *type = cuda_type_name((weftDataType_t)as_read(f->c, f->c->a->q)->type);
    const char *k_type = cuda_type_name((weftDataType_t)as_read(f->c, f->c->a->k)->type);
    const char *v_type = cuda_type_name((weftDataType_t)as_read(f->c, f->c->a->v)->type);
    struct attention_product scores = {"multiply_scores",   type, f->tile->keys, .is_fp8 = f->is_fp8, .b_type = k_type,
                                       .adds = PRODUCT_ADDS};
    struct attention_product first = {
        "multiply_scores_first", type, f->tile->keys, .is_fresh = true, .is_fp8 = f->is_fp8, .b_type = k_type};
    struct attention_product kept = scores, kept_first = first;
    kept.name = "multiply_kept", kept_first.name = "multiply_kept_first";
    kept.a = kept_first.a = PRODUCT_A_REGISTERS;
    struct attention_product values = {
        "multiply_values",        f->is_fp8 ? "e4m3" : type, f->value_depth + f->ones,
        .a = PRODUCT_A_REGISTERS, .b_is_mn = !f->is_fp8,     .is_fp8 = f->is_fp8,
        .b_is_narrow = f->is_fp8, .b_type = v_type,          .adds = PRODUCT_ADDS_AT_RUN_TIME};
    attention_hopper_print_product(code, &scores);
    attention_hopper_print_product(code, &first);
    attention_hopper_print_product(code, &kept);
    attention_hopper_print_product(code, &kept_first);
    attention_hopper_print_product(code, &values);
}

/* Persistent: as many CTAs as there is room for take tile after tile. */
static weftStatus_t build_main(const struct forward *f, struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_print print;
    int64_t slots = f->c->device->cuda.multiprocessors * f->tile->ctas;
    kernel_print_init(&print, f->c->region);
    print_maps(&print, f);
    attention_hopper_print_scores(&print, f->c);
    attention_hopper_print_terms(&print, f->c, is_rounded(f));
    attention_print_soft_cap(&print, f->c, is_rounded(f));
    attention_print_modifier_factors(&print, f->c);
    attention_print_block_mask(&print, f->c);
    attention_print_dropout(&print, f->c);
    print_tile(&print, f);
    print_outputs(&print, f);
    print_schedule(&print, f);
    print_products(&print.code, f);
    TRY(kernel_finish(&print, kernel, "attention/hopper/forward_sm90.cuh", "attention_forward_sm90", arena));
    kernel->shared_bytes = (uint32_t)shared_bytes(f);
    kernel->is_dependent = true;
    return attention_grid(kernel, f->c, f->all_tiles < slots ? f->all_tiles : slots,
                          (f->tile->groups + 1) * WARPGROUP / 32);
}

/* A launch of one thread that makes the dynamic schedule's counter 0: the workspace comes as the caller has left it. */
static weftStatus_t build_counter(const struct forward *f, struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_print print;
    kernel_print_init(&print, f->c->region);
    text_add(&print.constants, "#include \"core/ptx_sm90.cuh\"\n");
    print_scratch(&print, "u32", 0, "counter");
    TRY(kernel_finish(&print, kernel, "attention/hopper/forward_counter_sm90.cuh", "attention_forward_counter_sm90",
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
    /* The counter comes first in the workspace, then what is widened. */
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
                       GROUP_QUERIES * f.tile->groups, f.tile->keys, f.is_dynamic ? "dynamic" : "static");
}
