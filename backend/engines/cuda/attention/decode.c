/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_fwd of few queries against many keys, as decoding wants it, at the speed of memory: the queries of all heads that
   share a key head are one tile, and CTAs share the keys. Refused here, the portable family takes it. */
#include "base/number.h"
#include "engines/cuda/attention/attention.h"
#include "engines/cuda/families.h"

enum { QUERIES_MOST = 64, DEPTH_MOST = 256, SPLITS_MAX = 128, ROWS_MOST = 64, RUN_BYTES = 16 };

/* CTAs for rows of 16 row_warps; the first that fits the rows and the device is taken. */
static const struct decode_tile {
    int row_warps, key_groups, keys, stages;
} tiles[] = {{1, 4, 16, 3}, {1, 8, 16, 3}, {1, 4, 16, 2}, {1, 2, 16, 3}, {1, 2, 16, 2},
             {2, 2, 16, 3}, {2, 2, 16, 2}, {4, 2, 16, 5}, {4, 1, 16, 4}, {4, 1, 16, 2}};
enum { TILE_COUNT = sizeof tiles / sizeof *tiles };

/* The part of the memory's nominal rate that reading keys and values reaches, products of tensor cores per clock and the
   part of them that is reached, and what a launch and a second one behind it take. */
static const double MEMORY_EFFICIENCY = 0.9, PRODUCTS_PER_CLOCK = 1024, EFFICIENCY = 0.4;
static const double START_SECONDS = 3e-6, MERGE_SECONDS = 2e-6;

struct decode {
    const struct cuda_attention *c;
    const struct decode_tile *tile;
    struct attention_depth depth, value_depth;
    int64_t shared_bytes;
    int64_t group, rows, row_tiles; /* group: query heads for a key head */
    int64_t ctas;                   /* that run at once on a multiprocessor */
    int64_t splits, split_slices;
    int parts;
};

static int tile_rows(const struct decode_tile *t) { return 16 * t->row_warps; }
static int tile_warps(const struct decode_tile *t) { return t->row_warps * t->key_groups; }

/* ---- Planning ---- */

static int64_t shared_bytes(const struct decode *d, const struct decode_tile *t) {
    int64_t depth = d->depth.padded + 8, values = d->value_depth.padded + 8, rows = tile_rows(t);
    int64_t rings = (int64_t)t->key_groups * t->stages * t->keys * (depth + values) * 2 + rows * depth * 2;
    int64_t sums = t->key_groups * rows * (values + 2) * 4;
    return max64(rings, sums) + (int64_t)t->key_groups * t->stages * t->keys * 4;
}

/* Rows of half a tile or less are another tile's. */
static bool tile_fits(struct decode *d, const struct decode_tile *t) {
    int64_t rows = tile_rows(t), wanted = d->rows < ROWS_MOST ? d->rows : ROWS_MOST;
    d->shared_bytes = shared_bytes(d, t);
    return rows >= wanted && (rows == 16 || rows / 2 < wanted) &&
           d->shared_bytes <= d->c->device->cuda.shared_per_block;
}

static bool choose_tile(struct decode *d, int64_t asked) {
    d->tile = NULL;
    if (asked > 0 && asked <= TILE_COUNT && tile_fits(d, &tiles[asked - 1]))
        d->tile = &tiles[asked - 1];
    for (int i = 0; i < TILE_COUNT && !d->tile; i++)
        if (tile_fits(d, &tiles[i]))
            d->tile = &tiles[i];
    return d->tile != NULL;
}

/* CTAs that a multiprocessor has room for: each takes a kilobyte more, and threads of up to 168 registers. */
static int64_t resident_ctas(const struct decode *d) {
    const struct cuda_properties *cuda = &d->c->device->cuda;
    int64_t by_memory = cuda->shared_per_multiprocessor / (d->shared_bytes + 1024);
    int64_t by_registers = cuda->registers_per_multiprocessor / (tile_warps(d->tile) * 32 * 168);
    return max64(1, by_memory < by_registers ? by_memory : by_registers);
}

/* Most slices of keys that one row sees. */
static int64_t most_slices(const struct decode *d) {
    const struct cuda_attention *c = d->c;
    const struct attention *a = c->a;
    bool has_both = a->left_bound < c->keys && a->right_bound < c->keys;
    int64_t seen = has_both ? a->left_bound + a->right_bound + c->queries : c->keys;
    seen = seen < 0 ? 0 : seen < c->keys ? seen : c->keys;
    return divide_up(seen, d->tile->keys) + (seen < c->keys); /* the first may begin within a slice */
}

/* As many splits as fill whole waves of CTAs best. A wave costs its slices, and START_SLICES to begin and to end. */
static void choose_splits(struct decode *d, int64_t asked) {
    enum { START_SLICES = 6, MERGE_SLICES = 4 };
    const struct cuda_attention *c = d->c;
    int64_t slots = d->ctas * c->device->cuda.multiprocessors, units = c->batches * c->key_heads * d->row_tiles;
    int64_t slices = max64(most_slices(d), 1), best = INT64_MAX;
    for (int64_t splits = asked > 0 ? asked : 1; splits <= SPLITS_MAX; splits++) {
        int64_t each = divide_up(slices, splits);
        int64_t cost = divide_up(units * splits, slots) * (divide_up(each, d->tile->key_groups) + START_SLICES) +
                       (splits > 1 ? MERGE_SLICES + splits / 8 : 0);
        if (cost < best) {
            best = cost;
            d->split_slices = each;
            d->splits = divide_up(slices, each);
        }
        if (asked > 0 || each <= d->tile->key_groups)
            break;
    }
}

static weftStatus_t refuse(const struct cuda_attention *c, const char *what) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: %s; the portable attention family takes it.",
         descriptor_label(region_node(c->region, 0)->op), what);
}

static weftStatus_t plan_decode(struct decode *d, const struct cuda_attention *c, const struct knob_choices *knobs) {
    *d = (struct decode){.c = c, .group = c->heads / max64(c->key_heads, 1)};
    d->rows = d->group * c->queries;
    d->depth = attention_depth_of(c->depth, DEPTH_MOST);
    d->value_depth = attention_depth_of(c->value_depth, DEPTH_MOST);
    d->parts = c->forward->o->type == WEFT_DATA_FLOAT && !c->forward->o->is_virtual ? 2 : 1;
    if (!choose_tile(d, knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE)))
        return refuse(c, "the smallest tile of few queries takes more shared memory than there is");
    d->row_tiles = divide_up(d->rows, tile_rows(d->tile));
    d->ctas = resident_ctas(d);
    choose_splits(d, knob_value(knobs, WEFT_KNOB_TYPE_SPLIT_K));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Accepting ---- */

static weftStatus_t check_operand(const struct cuda_attention *c, const struct tensor *tensor) {
    weftDataType_t type = (weftDataType_t)tensor->type;
    if (type != c->arithmetic->staged || attention_run(tensor) * dtype_bytes(type, 1) < RUN_BYTES)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s is not of type %s with rows side by side in memory of whole %d bytes; the portable attention "
             "family takes it.",
             descriptor_label(region_node(c->region, 0)->op), descriptor_label(&tensor->base),
             c->arithmetic->staged_name, RUN_BYTES);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_decode(const struct cuda_attention *c) {
    if (!c->forward)
        return refuse(c, "decoding has no gradients");
    if (c->queries > QUERIES_MOST)
        return refuse(c, "there are more than 64 queries");
    if (!c->has_async || !c->arithmetic->is_mma)
        return refuse(c, "decoding multiplies f16 or bf16 on compute capability 8.0 or newer");
    if (c->a->dropout_probability > 0 || attention_wants(c, c->forward->rng_dump))
        return refuse(c, "decoding drops no weights");
    if (c->a->block_mask)
        return refuse(c, "decoding reads no block mask");
    if (c->key_heads != c->value_heads)
        return refuse(c, "decoding wants as many heads of k as of v");
    if (c->depth > DEPTH_MOST || c->value_depth > DEPTH_MOST)
        return refuse(c, "decoding has heads of up to 256");
    if (!c->lines || !c->keys || !c->depth || !c->value_depth)
        return refuse(c, "there is nothing to multiply");
    TRY(check_operand(c, c->a->k));
    return check_operand(c, c->a->v);
}

static weftStatus_t analyse(struct decode *d, struct cuda_attention *c, const struct region *region,
                            const struct device *device, const struct knob_choices *knobs) {
    TRY(attention_analyse(c, region, device));
    TRY(check_decode(c));
    return plan_decode(d, c, knobs);
}

static double predict(const struct decode *d) {
    const struct cuda_attention *c = d->c;
    const struct cuda_properties *cuda = &c->device->cuda;
    double keys = (double)(most_slices(d) * d->tile->keys), heads = (double)(c->batches * c->key_heads);
    double rows = (double)(d->row_tiles * tile_rows(d->tile)), columns = (double)(c->depth + c->value_depth);
    double rate = PRODUCTS_PER_CLOCK * cuda->clock_khz * 1e3 * cuda->multiprocessors * EFFICIENCY;
    double computing = heads * rows * keys * columns / rate;
    double moving = heads * keys * columns * c->arithmetic->bytes / ((double)cuda->bandwidth * MEMORY_EFFICIENCY);
    return START_SECONDS + (d->splits > 1 ? MERGE_SECONDS : 0) + (moving > computing ? moving : computing);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct cuda_attention c;
    struct decode d;
    TRY(analyse(&d, &c, region, device, NULL));
    *seconds = predict(&d);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---- */

static void print_tile(struct kernel_print *print, const struct decode *d) {
    print_constant(print, "WARPS", tile_warps(d->tile));
    print_constant(print, "ROW_WARPS", d->tile->row_warps);
    print_constant(print, "KEY_GROUPS", d->tile->key_groups);
    print_constant(print, "KEYS", d->tile->keys);
    print_constant(print, "STAGES", d->tile->stages);
    print_constant(print, "DEPTH", d->depth.padded);
    print_constant(print, "VALUES", d->value_depth.padded);
    print_constant(print, "PARTS", d->parts);
    print_constant(print, "IS_HELD", d->depth.padded <= 128);
    print_constant(print, "IS_SPLIT", d->splits > 1);
    print_constant(print, "CTAS", d->ctas);
    print_constant(print, "SHARED_BYTES", d->shared_bytes);
}

static weftStatus_t build_main(struct step *step, const struct decode *d, struct cuda_kernel *kernel,
                               struct arena *arena) {
    const struct cuda_attention *c = d->c;
    struct kernel_print print;
    kernel_print_init(&print, c->graph);
    attention_print_scores(&print, c);
    print_tile(&print, d);
    print_constant(&print, "O_IS_PAIR", attention_run(c->forward->o) % 2 == 0);
    print_constant(&print, "VALUES_ARE_EVEN", c->value_depth % 2 == 0);
    attention_print_operand(&print, c, c->a->q, "q", "Q_RUN");
    attention_print_operand(&print, c, c->a->k, "k", "K_RUN");
    attention_print_operand(&print, c, c->a->v, "v", "V_RUN");
    attention_print_pages(&print, c, c->a->k_table, c->a->k, "k", "K_PAGE");
    attention_print_pages(&print, c, c->a->v_table, c->a->v, "v", "V_PAGE");
    attention_print_ends(&print, c);
    print_number(&print, c->key_heads, "key_heads");
    print_number(&print, d->group, "group");
    print_number(&print, d->rows, "rows");
    print_number(&print, d->row_tiles, "tiles");
    print_number(&print, d->split_slices, "split_slices");
    step->workspace_bytes = attention_print_splits(&print, c, d->splits);
    TRY(kernel_finish(&print, kernel, "attention/decode.cuh", "attention_decode", arena));
    kernel->shared_bytes = (uint32_t)d->shared_bytes;
    kernel->is_dependent = c->device->cuda.major >= 9;
    return attention_grid(kernel, c, c->batches * c->key_heads * d->row_tiles * d->splits, tile_warps(d->tile));
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct cuda_attention c;
    struct decode d;
    struct cuda_step *state;
    TRY(analyse(&d, &c, &step->region, device, knobs));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    step->seconds = predict(&d);
    TRY(build_main(step, &d, &state->kernels[state->count++], arena));
    if (d.splits > 1)
        TRY(attention_build_merge(&c, d.splits, &state->kernels[state->count++], arena));
    return arena_print(arena, &step->detail, "%s, %d rows, %d groups of warps with %d slices of %d keys, %lld splits",
                       c.arithmetic->doc, tile_rows(d.tile), d.tile->key_groups, d.tile->stages, d.tile->keys,
                       (long long)d.splits);
}

static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, TILE_COUNT, 1, 0,
     "warps over rows x groups over keys x slices in flight: 1 1x4x3, 2 1x8x3, 3 1x4x2, 4 1x2x3, 5 1x2x2, 6 2x2x3, "
     "7 2x2x2, 8 4x2x5, 9 4x1x4, 10 4x1x2; 0 chooses"},
    {WEFT_KNOB_TYPE_SPLIT_K, 0, SPLITS_MAX, 1, 0, "parts that the keys are split into; 0 chooses"},
    {0},
};

const struct family cuda_attention_decode = {
    .name = "cuda.attention_decode",
    .doc = "attention of few queries against many keys, at the speed of memory",
    .knobs = knobs,
    .accepts = accepts,
    .build = build,
    .load = cuda_load,
    .run = cuda_run,
    .release = cuda_release,
};
