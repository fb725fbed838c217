/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_fwd on CUDA: tile selection, packing of shared heads, key splits, and kernels. */
#include "base/number.h"
#include "engines/cuda/attention/attention.h"
#include "engines/cuda/attention/forward_geometry.h"

#include <stdio.h>

/* Tiles, best first, for results, and queries in registers, of up to `max_columns` columns; the first that fits the
   device is used. is_lean: registers suffice only without the features of attention_is_rich. */
static const struct {
    bool is_mma, is_lean;
    int max_columns;
    struct attention_tile tile;
} tiles[] = {
    {true, true, 64, {4, 2, 64, 2, true}},     {true, true, 96, {4, 2, 64, 2, false}},
    {true, false, 64, {4, 2, 32, 2, false}},   {true, true, 128, {4, 2, 32, 2, false}},
    {true, true, 128, {4, 1, 64, 2, true}},    {true, false, 128, {4, 1, 32, 2, true}},
    {true, false, 128, {2, 1, 32, 2, true}},   {true, true, 256, {4, 1, 32, 2, false}},
    {true, false, 256, {4, 1, 16, 2, false}},  {true, false, 256, {2, 1, 16, 2, false}},
    {true, false, 256, {1, 1, 16, 1, false}},  {false, true, 64, {4, 1, 32, 2, false}},
    {false, true, 128, {4, 1, 32, 1, false}},  {false, false, 128, {4, 1, 16, 1, false}},
    {false, false, 128, {2, 1, 16, 1, false}}, {false, false, 128, {1, 1, 16, 1, false}},
    {false, false, 128, {1, 1, 8, 1, false}},
};

/* SPLITS_MAX: key splits that one kernel merges; PACKED_QUERIES_MAX: queries per head up to which heads share a tile;
   warps per block of the small kernels. */
enum { SPLITS_MAX = 64, PACKED_QUERIES_MAX = 64, MERGE_WARPS = 4, DUMP_WARPS = 8 };

struct forward {
    const struct attention_tile *tile;
    struct attention_depth depth, value_depth;
    int64_t shared_bytes;
    int64_t groups, pack, rows, tiles, splits; /* pack: number of heads whose queries form `rows` */
    int parts;
};

/* Queries of a block: 16 m_tiles per warp. */
static int64_t tile_rows(const struct attention_tile *t) { return t->warps * t->m_tiles * 16; }

static int64_t shared_bytes(const struct cuda_attention *c, const struct attention_tile *t, const struct forward *f) {
    struct forward_shape shape = {
        .element = c->arithmetic->bytes,
        .needs_scratch = !c->arithmetic->is_mma,
        .rows = (int)tile_rows(t),
        .keys = t->columns,
        .stages = t->stages,
        .depth = f->depth.chunk,
        .values = f->value_depth.chunk,
    };
    return forward_memory_of(shape).bytes;
}

/* is_sliced: queries and keys may be loaded in slices. An unsliced tile that leaves room for only one warp would always
   be bound by memory latency. */
static bool choose_tile(struct forward *f, const struct cuda_attention *c, bool is_sliced) {
    f->depth = attention_depth_of(c->depth, is_sliced ? c->arithmetic->max_columns : INT32_MAX);
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        const struct attention_tile *t = &tiles[i].tile;
        if (tiles[i].is_mma != c->arithmetic->is_mma || (tiles[i].is_lean && attention_is_rich(c, f->parts)) ||
            f->value_depth.chunk > tiles[i].max_columns || (t->in_registers && f->depth.padded > tiles[i].max_columns))
            continue;
        if (t->warps == 1 && !is_sliced)
            continue;
        if (t->m_tiles > 1 && f->rows <= tile_rows(t) / 2)
            continue; /* warps without rows still help to load tiles; a second m-tile without rows would be wasted */
        f->tile = t;
        f->shared_bytes = shared_bytes(c, t, f);
        if (f->shared_bytes <= c->device->cuda.shared_per_block)
            return true;
    }
    return false;
}

/* Splits such that two blocks per SM run at once, each with at least two tiles of keys. More splits would need a second
   wave, which takes nearly as long as the first. */
static int64_t count_splits(const struct cuda_attention *c, const struct forward *f) {
    int64_t units = c->batches * f->groups * f->tiles * f->value_depth.chunks;
    int64_t wanted = 2 * (int64_t)c->device->cuda.multiprocessors / max64(units, 1);
    int64_t useful = divide_up(c->keys, f->tile->columns) / 2;
    int64_t splits = wanted < useful ? wanted : useful;
    return splits < 2 ? 1 : splits < SPLITS_MAX ? splits : SPLITS_MAX;
}

/* Packing: heads that share keys form one tile of queries if there are few queries. parts: P that leads to a FLOAT
   result is split into hi and lo halves, whose MMAs are summed. */
static weftStatus_t plan_forward(struct forward *f, const struct cuda_attention *c) {
    int64_t share = c->heads / max64(c->key_heads, 1);
    bool is_packed =
        c->key_heads == c->value_heads && share > 1 && c->queries <= PACKED_QUERIES_MAX && !c->a->block_mask;
    const struct tensor *o = c->forward->o;
    *f = (struct forward){.pack = is_packed ? share : 1};
    f->groups = c->heads / f->pack;
    f->rows = c->queries * f->pack;
    f->parts = c->arithmetic->is_mma && o->type == WEFT_DATA_FLOAT ? 2 : 1;
    f->value_depth = attention_depth_of(c->value_depth, attention_max_columns(c, f->parts));
    if (!choose_tile(f, c, false) && !choose_tile(f, c, true))
        return attention_decline_shared_memory(c, f->shared_bytes);
    f->tiles = divide_up(f->rows, tile_rows(f->tile));
    f->splits = count_splits(c, f);
    return WEFT_STATUS_SUCCESS;
}

/* Planning decides whether a tile exists; attention.c predicts the cost. */
weftStatus_t attention_forward_accepts(const struct cuda_attention *c) {
    struct forward f;
    return plan_forward(&f, c);
}

/* ---- Emitting ---- */

/* Emits the possible outputs, each with a pointer and strides if it is requested. */
void attention_emit_ends(struct kernel_source *source, const struct cuda_attention *c) {
    attention_emit_wanted(source, c, c->forward->o, "o", "HAS_O");
    attention_emit_wanted(source, c, c->forward->stats, "stats", "HAS_STATS");
    attention_emit_wanted(source, c, c->forward->max, "max", "HAS_MAX");
    attention_emit_wanted(source, c, c->forward->sum_exp, "sum_exp", "HAS_SUM_EXP");
}

/* Emits the arrays in this order: partial O, then row maxima and row sums of each split and line, each aligned to 64
   bytes. */
int64_t attention_emit_splits(struct kernel_source *source, const struct cuda_attention *c, int64_t splits) {
    int64_t lines = splits * c->lines, bytes = c->arithmetic->sum_bytes;
    int64_t o_bytes = round_up(lines * c->value_depth * bytes, 64), line_bytes = round_up(lines * bytes, 64);
    emit_number(source, splits, "splits");
    emit_scratch(source, c->arithmetic->sum_name, 0, "split_o");
    emit_scratch(source, c->arithmetic->sum_name, o_bytes, "split_max");
    emit_scratch(source, c->arithmetic->sum_name, o_bytes + line_bytes, "split_sum");
    return splits > 1 ? o_bytes + 2 * line_bytes : 0;
}

/* Grid: batch entries x groups of heads x tiles of queries x chunks of values x key splits. */
static weftStatus_t build_main(struct step *step, const struct cuda_attention *c, const struct forward *f,
                               struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    attention_emit_scores(&source, c);
    attention_emit_tile(&source, f->tile, "KEYS", f->shared_bytes);
    emit_constant(&source, "DEPTH", f->depth.chunk);
    emit_constant(&source, "IS_SLICED", f->depth.chunks > 1);
    emit_constant(&source, "VALUES", f->value_depth.chunk);
    emit_constant(&source, "PARTS", f->parts);
    emit_constant(&source, "IS_SPLIT", f->splits > 1);
    emit_constant(&source, "IS_PACKED", f->pack > 1);
    emit_constant(&source, "O_IS_PAIR", attention_run(c->forward->o) % 2 == 0);
    attention_emit_operand(&source, c, c->a->q, "q", "Q_RUN");
    attention_emit_operand(&source, c, c->a->k, "k", "K_RUN");
    attention_emit_operand(&source, c, c->a->v, "v", "V_RUN");
    attention_emit_pages(&source, c, c->a->k_table, c->a->k, "k", "K_PAGE");
    attention_emit_pages(&source, c, c->a->v_table, c->a->v, "v", "V_PAGE");
    attention_emit_ends(&source, c);
    attention_emit_scales(&source, c, f->pack > 1);
    emit_number(&source, f->groups, "groups");
    emit_number(&source, f->pack, "pack");
    emit_number(&source, f->rows, "rows");
    emit_number(&source, f->tiles, "tiles");
    emit_number(&source, f->value_depth.chunks, "chunks");
    step->workspace_bytes = attention_emit_splits(&source, c, f->splits);
    TRY(kernel_finish(&source, kernel, "attention/forward.cuh", "attention_fwd", arena));
    kernel->shared_bytes = (uint32_t)f->shared_bytes;
    return attention_grid(kernel, c, c->batches * f->groups * f->tiles * f->value_depth.chunks * f->splits,
                          f->tile->warps);
}

/* One warp per query rescales the sums of all splits to their common maximum, in a fixed order. */
weftStatus_t attention_build_merge(const struct cuda_attention *c, int64_t splits, struct cuda_kernel *kernel,
                                   struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    attention_emit_scores(&source, c);
    emit_constant(&source, "WARPS", MERGE_WARPS);
    attention_emit_ends(&source, c);
    attention_emit_scales(&source, c, true);
    attention_emit_splits(&source, c, splits);
    TRY(kernel_finish(&source, kernel, "attention/merge_splits.cuh", "attention_merge", arena));
    kernel->is_dependent = c->device->cuda.major >= 9;
    return attention_grid(kernel, c, divide_up(c->lines, MERGE_WARPS), MERGE_WARPS);
}

/* Blocks update the amax atomically, so it has to be initialised: to 0, as absolute values are not negative. */
weftStatus_t attention_build_amax_clear(const struct cuda_attention *c, struct cuda_step *state, struct arena *arena) {
    const struct tensor *outputs[ATTENTION_AMAX_MAX];
    int count = attention_amax_outputs(c, outputs);
    if (!count)
        return WEFT_STATUS_SUCCESS;
    struct kernel_source source;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    kernel_source_init(&source, c->region);
    text_add(&source.code, "template <class P> DEVICE void clear_amax(const P &a) {\n");
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "amax%d", i);
        emit_pointer(&source, (weftDataType_t)outputs[i]->type, graph_find_value(c->graph, outputs[i]), 0, name);
        text_add(&source.code, "    *a.%s = 0;\n", name);
    }
    text_add(&source.code, "}\n");
    TRY(kernel_finish(&source, kernel, "attention/amax_clear.cuh", "attention_amax_clear", arena));
    kernel->is_dependent = c->device->cuda.major >= 9;
    return attention_grid(kernel, c, 1, 1);
}

/* 4: one Philox call yields four random words, for four keys. At most `enough` blocks, which loop over the lines. */
static weftStatus_t build_dump(const struct cuda_attention *c, struct cuda_kernel *kernel, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    attention_emit_scores(&source, c);
    emit_constant(&source, "WARPS", DUMP_WARPS);
    attention_emit_tensor(&source, c, c->forward->rng_dump, "dump", NULL);
    TRY(kernel_finish(&source, kernel, "attention/dropout_dump.cuh", "attention_dump", arena));
    int64_t blocks = divide_up(c->lines * divide_up(c->keys, 4), DUMP_WARPS * 32);
    int64_t enough = (int64_t)c->device->cuda.multiprocessors * 64;
    return attention_grid(kernel, c, blocks < enough ? blocks : enough, DUMP_WARPS);
}

weftStatus_t attention_forward_build(struct step *step, const struct cuda_attention *c, struct cuda_step *state,
                                     struct arena *arena) {
    struct forward f;
    TRY(plan_forward(&f, c));
    const struct sdpa_fwd_op *op = c->forward;
    if (c->lines && c->keys && attention_wants(c, op->rng_dump))
        TRY(build_dump(c, &state->kernels[state->count++], arena));
    TRY(attention_build_amax_clear(c, state, arena));
    if (c->lines &&
        (attention_wants(c, op->o) || attention_wants(c, op->stats) || attention_wants(c, op->max) ||
         attention_wants(c, op->sum_exp) || attention_wants(c, op->amax_s) || attention_wants(c, op->amax_o))) {
        TRY(build_main(step, c, &f, &state->kernels[state->count++], arena));
        if (f.splits > 1)
            TRY(attention_build_merge(c, f.splits, &state->kernels[state->count++], arena));
    }
    return arena_print(arena, &step->detail, "%s, %d x %d tiles%s, %d in flight, %lld split%s", c->arithmetic->doc,
                       (int)tile_rows(f.tile), f.tile->columns, f.depth.chunks > 1 ? " in slices" : "", f.tile->stages,
                       (long long)f.splits, plural(f.splits));
}
