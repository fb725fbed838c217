/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_fwd of few queries and many keys, such as in decoding, at memory bandwidth: the queries of all heads that share
   a key head are one tile, and several CTAs split the keys. The portable family handles what is declined here. */
#include "base/number.h"
#include "engines/cuda/attention/attention.h"
#include "engines/cuda/attention/decode_geometry.h"
#include "engines/cuda/families.h"

#include <math.h>

/* Limits: queries per head, columns of a head, CTAs that split the keys, rows of a tile, key heads per CTA, portable
   cluster size. */
enum { QUERIES_MAX = 64, DEPTH_MAX = 256, SPLITS_MAX = 128, ROWS_MAX = 64, HEADS_MAX = 4, CLUSTER_MAX = 8 };

/* A CTA has 16 row_warps rows. key_groups: warp groups that process slices of keys in turn, each with `stages` slices
   in shared memory. Their sums are combined in shared memory at the end. */
static const struct decode_tile {
    int row_warps, key_groups, stages;
} tiles[] = {{1, 8, 3}, {1, 8, 2}, {1, 4, 3}, {1, 4, 2}, {1, 2, 3}, {1, 2, 2}, {2, 4, 4},
             {2, 4, 2}, {2, 2, 3}, {2, 2, 2}, {4, 2, 5}, {4, 2, 3}, {4, 1, 4}, {4, 1, 2}};
enum { TILE_COUNT = sizeof tiles / sizeof *tiles };

/* The knob INPUT_TMA_ENABLE: how keys and values are loaded. */
enum { LOADS_CHOSEN, LOADS_BY_THREADS, LOADS_BY_TMA };

/* How the CTAs that split the keys combine their sums; the kernel uses these values. */
enum split { SPLIT_NONE, SPLIT_CLUSTER, SPLIT_WORKSPACE };

/* Multiply-adds per clock and SM on tensor cores, the fraction that is reached, and the duration of a launch. */
static const double PRODUCTS_PER_CLOCK = 1024, EFFICIENCY = 0.4, START_SECONDS = 3e-6;

/* Rates of reading keys and values, measured on an H200 over all tiles and splits of 13 shapes. MEMORY_EFFICIENCY:
   fraction of the nominal bandwidth. SLICE_SECONDS: latency of a slice. MULTIPLY_SECONDS: a group's MMAs of a slice and
   16 rows. CROWDED_RATE: fraction of the rate if more than CROWDED_SECONDS of reading are in flight. CLUSTER_RATE:
   fraction of the rate with clusters of LARGE_CLUSTER or more CTAs, which cannot fill all GPCs. BYTES_PER_CLOCK: limit
   of one SM. */
static const double MEMORY_EFFICIENCY = 0.93, SLICE_SECONDS = 1.6e-6, MULTIPLY_SECONDS = 0.45e-6;
static const double CROWDED_SECONDS = 2.2e-6, CROWDED_RATE = 0.98, CLUSTER_RATE = 0.7, BYTES_PER_CLOCK = 34;
enum { LARGE_CLUSTER = 3 };

/* WAVE_SECONDS: prologue and epilogue of each wave after the first, longer if queries are converted to wider types.
   CLUSTER_WAIT_SECONDS: per CTA of a cluster that waits until all of its CTAs can be launched. Combining takes
   CLUSTER_SECONDS in a cluster, or MERGE_SECONDS plus PART_SECONDS per split through the workspace. */
static const double WAVE_SECONDS = 2e-6, BYTE_WAVE_SECONDS = 6e-6, CLUSTER_WAIT_SECONDS = 0.9e-6;
static const double CLUSTER_SECONDS = 0.5e-6, MERGE_SECONDS = 5e-6, PART_SECONDS = 0.2e-6;
/* Per sum that is combined, with MANY_ROWS or more rows: 64 rows of 160 columns in 5 parts took 20.7 us on an H200, the
   Hopper kernel 5.4. */
static const double MERGED_SUM_SECONDS = 0.29e-9;
enum { MANY_ROWS = 64 };
/* From a CTA's first load of a head to its last store, which is exposed if there are few keys: 16,384 heads of 64 keys,
   62 waves of CTAs of two heads, took 464 us on an H200. */
static const double HEAD_SECONDS = 3.5e-6;

struct decode {
    const struct cuda_attention *c;
    const struct decode_tile *tile;
    struct attention_depth depth, value_depth;
    int64_t shared_bytes;
    int64_t group, rows, row_tiles; /* group: query heads per key head */
    int64_t heads;                  /* key heads per CTA */
    int64_t ctas;                   /* concurrent CTAs per SM */
    int64_t splits, split_slices;
    double reading; /* seconds to read all keys and values */
    int parts;
    bool uses_tma;
};

static int tile_rows(const struct decode_tile *t) { return 16 * t->row_warps; }
static int tile_warps(const struct decode_tile *t) { return t->row_warps * t->key_groups; }

/* ---- Planning ---- */

static int64_t key_bytes(const struct decode *d) { return dtype_bytes((weftDataType_t)d->c->a->k->type, 1); }

/* True if each key, or value, has its own scale, which is copied with it. */
static bool has_row_scales(const struct decode *d) {
    const struct attention *a = d->c->a;
    return attention_key_scales(a->descale_k, a->k_table) == ATTENTION_SCALES_ROWS ||
           attention_key_scales(a->descale_v, a->v_table) == ATTENTION_SCALES_ROWS;
}

/* Slices with half the bytes are twice as many. */
static int stages_of(const struct decode *d, const struct decode_tile *t) {
    return key_bytes(d) == 1 ? 2 * t->stages : t->stages;
}

/* The memory of a CTA of `heads` key heads. */
static struct decode_memory memory_of(const struct decode *d, const struct decode_tile *t, int64_t heads) {
    struct decode_shape shape = {
        .element = (int)key_bytes(d),
        .uses_tma = d->uses_tma,
        .has_row_scales = has_row_scales(d),
        .rows = tile_rows(t),
        .heads = (int)heads,
        .key_groups = t->key_groups,
        .stages = stages_of(d, t),
        .depth = d->depth.padded,
        .values = d->value_depth.padded,
    };
    return decode_memory_of(shape);
}

static int64_t shared_bytes(const struct decode *d, const struct decode_tile *t, int64_t heads) {
    return memory_of(d, t, heads).bytes;
}

/* Keys and values together. */
static int64_t slice_bytes(const struct decode *d, const struct decode_tile *t) {
    return memory_of(d, t, 1).slice_bytes;
}

/* The bytes of a slice that are read: columns are padded only in shared memory. */
static double read_bytes(const struct decode *d, const struct decode_tile *t) {
    double used = (double)(KEYS * key_bytes(d) * (d->c->depth + d->c->value_depth)), all = (double)slice_bytes(d, t);
    return used < all ? used : all;
}

/* If the rows fill half a tile or less, a smaller tile is used. */
static bool tile_fits(const struct decode *d, const struct decode_tile *t) {
    int64_t rows = tile_rows(t), wanted = d->rows < ROWS_MAX ? d->rows : ROWS_MAX;
    return rows >= wanted && (rows == 16 || rows / 2 < wanted) &&
           shared_bytes(d, t, 1) <= d->c->device->cuda.shared_per_block;
}

/* With few keys in total, they are read before a large CTA has started. */
static bool is_too_large(const struct decode *d, const struct decode_tile *t) {
    enum { LARGE_GROUPS = 4, LARGE_SLICES = 2 };
    int64_t slices = d->c->batches * d->c->key_heads * divide_up(d->c->keys, KEYS);
    return t->key_groups >= LARGE_GROUPS &&
           slices < t->key_groups * (int64_t)LARGE_SLICES * d->c->device->cuda.multiprocessors;
}

/* CTAs that fit on an SM. Each needs 1 KB more shared memory. Register use is limited; with fewer, threads that hold
   the addresses of their copies would spill. */
static int64_t resident_ctas(const struct decode *d, const struct decode_tile *t, int64_t shared) {
    enum { REGISTERS = 168, COPYING_REGISTERS = 176 };
    const struct cuda_properties *cuda = &d->c->device->cuda;
    int64_t by_memory = cuda->shared_per_multiprocessor / (shared + 1024);
    int64_t registers = d->uses_tma ? REGISTERS : COPYING_REGISTERS;
    int64_t by_registers = cuda->registers_per_multiprocessor / (tile_warps(t) * 32 * registers);
    return max64(1, by_memory < by_registers ? by_memory : by_registers);
}

/* The maximum number of key slices that one row sees. With both bounds, the visible window moves with the query, so its
   length is that of both bounds and the queries together. */
static int64_t max_slices(const struct decode *d) {
    const struct cuda_attention *c = d->c;
    const struct attention *a = c->a;
    bool has_both = a->left_bound < c->keys && a->right_bound < c->keys;
    int64_t visible = has_both ? a->left_bound + a->right_bound + c->queries : c->keys;
    visible = visible < 0 ? 0 : visible < c->keys ? visible : c->keys;
    return divide_up(visible, KEYS) + (visible < c->keys); /* the first key may be in the middle of a slice */
}

/* A cluster combines sums in shared memory; more CTAs than a cluster allows use the workspace. */
static enum split split_of(const struct decode *d, int64_t splits) {
    if (splits == 1)
        return SPLIT_NONE;
    return splits <= min64(CLUSTER_MAX, d->c->device->cuda.cluster_most) ? SPLIT_CLUSTER : SPLIT_WORKSPACE;
}

/* Returns the row tiles of one key head. */
static int64_t row_tiles_of(const struct decode *d, const struct decode_tile *t) {
    return divide_up(d->rows, tile_rows(t));
}

/* CTAs before keys are split. */
static int64_t units_of(const struct decode *d, const struct decode_tile *t, int64_t heads) {
    return d->c->batches * d->c->key_heads / heads * row_tiles_of(d, t);
}

/* A candidate division of the work: each of `ctas` CTAs reads `slices` slices, and `slots` of them run concurrently. */
struct division {
    const struct decode_tile *tile;
    int64_t heads, splits, split_slices;
    int64_t ctas, slices, slots;
    int64_t shared_bytes, resident; /* shared memory per CTA; CTAs per SM */
};

/* Bytes per second that `ctas` CTAs read together: limited by latency and MMA throughput, by memory bandwidth, and by
   what SMs can receive. */
static double reading_rate(const struct decode *d, const struct division *w, int64_t ctas) {
    const struct cuda_properties *cuda = &d->c->device->cuda;
    int64_t busy = ctas < cuda->multiprocessors ? ctas : cuda->multiprocessors;
    double bytes = (double)(ctas * w->tile->key_groups) * read_bytes(d, w->tile), ahead = stages_of(d, w->tile) - 1;
    double waiting = SLICE_SECONDS / ahead, multiplying = MULTIPLY_SECONDS * w->tile->row_warps;
    bool is_large = split_of(d, w->splits) == SPLIT_CLUSTER && w->splits >= LARGE_CLUSTER;
    double memory = (double)cuda->bandwidth * MEMORY_EFFICIENCY * (is_large ? CLUSTER_RATE : 1);
    double rate = bytes / (waiting > multiplying ? waiting : multiplying);
    double taken = (double)busy * cuda->clock_khz * 1e3 * BYTES_PER_CLOCK;
    if (rate > memory)
        rate = bytes * ahead > memory * CROWDED_SECONDS ? memory * CROWDED_RATE : memory;
    return rate < taken ? rate : taken;
}

/* Predicted seconds: full waves, a possibly smaller last one, and combining the splits. */
static double seconds_of(const struct decode *d, const struct division *w) {
    int64_t full_waves = w->ctas / w->slots, rest = w->ctas % w->slots, waves = full_waves + (rest > 0);
    double bytes = (double)w->slices * read_bytes(d, w->tile);
    double seconds = (double)(waves - 1) * (key_bytes(d) == 1 ? BYTE_WAVE_SECONDS : WAVE_SECONDS);
    if (full_waves)
        seconds += (double)(full_waves * w->slots) * bytes / reading_rate(d, w, w->slots);
    if (rest)
        seconds += (double)rest * bytes / reading_rate(d, w, rest);
    if (split_of(d, w->splits) == SPLIT_CLUSTER)
        seconds += CLUSTER_SECONDS + (double)((waves - 1) * w->splits) * CLUSTER_WAIT_SECONDS;
    if (split_of(d, w->splits) == SPLIT_WORKSPACE)
        seconds += MERGE_SECONDS + (double)w->splits * PART_SECONDS;
    if (w->splits > 1 && tile_rows(w->tile) >= MANY_ROWS)
        seconds += (double)(w->splits * tile_rows(w->tile) * d->value_depth.padded) * MERGED_SUM_SECONDS;
    return seconds;
}

/* Adopts a division that is clearly faster than the best so far. On ties and near ties, the first one wins: larger
   tiles, fewer heads and splits. */
static void consider(struct decode *d, const struct division *w) {
    static const double CLEARLY = 0.99;
    double seconds = seconds_of(d, w);
    if (d->tile && seconds > d->reading * CLEARLY)
        return;
    d->reading = seconds, d->tile = w->tile, d->heads = w->heads, d->row_tiles = row_tiles_of(d, w->tile);
    d->shared_bytes = w->shared_bytes, d->ctas = w->resident;
    d->split_slices = w->split_slices, d->splits = w->splits;
}

/* Tries all numbers of splits for the given heads per CTA, or only the one that a knob requests. With `each` slices per
   split, fewer splits may be enough. Stops when a split no longer keeps all groups busy. */
static void consider_splits(struct decode *d, const struct decode_tile *t, int64_t heads, int64_t asked) {
    int64_t slices = max64(max_slices(d), 1), shared = shared_bytes(d, t, heads),
            resident = resident_ctas(d, t, shared);
    for (int64_t splits = asked > 0 ? asked : 1; splits <= SPLITS_MAX; splits++) {
        int64_t each = divide_up(slices, splits), needed = divide_up(slices, each);
        struct division w = {.tile = t, .heads = heads, .splits = needed, .split_slices = each};
        /* every CTA reads the same number of slices of each of its heads */
        w.ctas = units_of(d, t, heads) * needed, w.slices = each * heads;
        w.shared_bytes = shared, w.resident = resident, w.slots = resident * d->c->device->cuda.multiprocessors;
        consider(d, &w);
        if (asked > 0 || each * heads <= t->key_groups)
            return;
    }
}

/* Maximum key heads per CTA. Sharing pays off for short rows: the heads of a key are adjacent in memory, and the start
   of a wave costs a larger share of its time. Rows of LONG_ROW bytes are read as fast by CTAs of one head, which finish
   independently. */
static int64_t max_heads(const struct decode *d, const struct decode_tile *t) {
    enum { LONG_ROW = 256 };
    return key_bytes(d) * d->c->depth >= LONG_ROW ? 1 : t->key_groups < HEADS_MAX ? t->key_groups : HEADS_MAX;
}

/* Powers of two that divide key heads and groups, so that all CTAs are alike; one head if the request cannot be met. */
static void consider_heads(struct decode *d, const struct decode_tile *t, int64_t asked, int64_t splits) {
    bool is_served = false;
    for (int64_t heads = 1; heads <= HEADS_MAX; heads *= 2) {
        bool is_wanted = asked ? heads == asked : heads <= max_heads(d, t);
        if (!is_wanted || d->c->key_heads % heads || t->key_groups % heads ||
            shared_bytes(d, t, heads) > d->c->device->cuda.shared_per_block)
            continue;
        consider_splits(d, t, heads, splits);
        is_served = true;
    }
    if (!is_served)
        consider_splits(d, t, 1, splits);
}

/* Tries the three largest tiles that fit; variants with fewer stages only if more do not fit. Smaller tiles are not
   faster. */
static void consider_tiles(struct decode *d, int64_t heads, int64_t splits) {
    enum { CANDIDATES = 3 };
    int considered = 0, groups = 0;
    for (int i = 0; i < TILE_COUNT && considered < CANDIDATES; i++) {
        const struct decode_tile *t = &tiles[i];
        if (!tile_fits(d, t) || is_too_large(d, t) || t->key_groups == groups)
            continue;
        consider_heads(d, t, heads, splits);
        groups = t->key_groups, considered++;
    }
}

/* Chooses the tile, the heads per CTA and the splits that read fastest; knobs fix any of the three. */
static weftStatus_t divide_work(struct decode *d, const struct knob_choices *knobs) {
    int64_t heads = knob_value(knobs, WEFT_KNOB_TYPE_SLICED), splits = knob_value(knobs, WEFT_KNOB_TYPE_SPLIT_K);
    int64_t asked = knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE);
    if (splits > SPLITS_MAX) /* a value from the range of another family */
        splits = 0;
    if (asked > 0 && asked <= TILE_COUNT && tile_fits(d, &tiles[asked - 1]))
        consider_heads(d, &tiles[asked - 1], heads, splits);
    if (!d->tile)
        consider_tiles(d, heads, splits);
    if (!d->tile)
        return attention_decline(d->c, "the smallest decoding tile needs more shared memory than the device has");
    return WEFT_STATUS_SUCCESS;
}

/* Checks only dimensions with extent above 1; the last one is contiguous. */
static bool has_positive_strides(const struct tensor *tensor) {
    bool is_positive = true;
    for (int i = 0; i < 3; i++)
        is_positive = is_positive && (tensor->dims.at[i] == 1 || tensor->strides.at[i] > 0);
    return is_positive;
}

/* True if TMA can load the slices: none crosses a page, and strides are positive multiples of 16 bytes. */
static bool can_use_tma(const struct cuda_attention *c) {
    const struct attention *a = c->a;
    return c->device->cuda.major >= 9 && (!a->k_table || a->k->dims.at[2] % KEYS == 0) &&
           (!a->v_table || a->v->dims.at[2] % KEYS == 0) && has_positive_strides(a->k) && has_positive_strides(a->v);
}

/* Derives everything that building needs from shapes, device and knobs. */
static weftStatus_t plan_decode(struct decode *d, const struct cuda_attention *c, const struct knob_choices *knobs) {
    *d = (struct decode){.c = c, .group = c->heads / max64(c->key_heads, 1)};
    d->rows = d->group * c->queries;
    d->depth = attention_depth_of(c->depth, DEPTH_MAX);
    d->value_depth = attention_depth_of(c->value_depth, DEPTH_MAX);
    if (key_bytes(d) == 1) { /* an 8-bit load covers 32 columns */
        d->depth.padded = round_up(d->depth.padded, 32);
        d->value_depth.padded = round_up(d->value_depth.padded, 32);
    }
    /* FLOAT results expose the rounding of P to 16 bits, so P gets a second part */
    d->parts = c->forward->o->type == WEFT_DATA_FLOAT ? 2 : 1;
    d->uses_tma = can_use_tma(c) && knob_value(knobs, WEFT_KNOB_TYPE_INPUT_TMA_ENABLE) != LOADS_BY_THREADS;
    return divide_work(d, knobs);
}

/* ---- Accepting ---- */

/* Supported 8-bit types. */
static bool is_byte(int32_t type) {
    return type == WEFT_DATA_FP8_E4M3 || type == WEFT_DATA_FP8_E5M2 || type == WEFT_DATA_INT8;
}

static weftStatus_t check_operand(const struct cuda_attention *c, const struct tensor *tensor) {
    weftDataType_t type = (weftDataType_t)tensor->type;
    bool is_served = type == c->arithmetic->staged || is_byte(type);
    if (!is_served || attention_run(tensor) * dtype_bytes(type, 1) < RUN_BYTES)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s must be of type %s, FP8 or INT8 with contiguous rows, aligned to %d bytes; the portable "
             "attention family handles it.",
             descriptor_label(region_node(c->region, 0)->op), descriptor_label(&tensor->base),
             c->arithmetic->staged_name, RUN_BYTES);
    return WEFT_STATUS_SUCCESS;
}

/* Contiguous scales are copied unchanged. */
static weftStatus_t check_scales(const struct cuda_attention *c) {
    const struct attention *a = c->a;
    const struct cuda_properties *cuda = &c->device->cuda;
    bool k_is_byte = is_byte(a->k->type), v_is_byte = is_byte(a->v->type);
    if (attention_query_scales(c, false) == ATTENTION_SCALES_BLOCKS ||
        attention_key_scales(a->descale_k, a->k_table) == ATTENTION_SCALES_BLOCKS ||
        attention_key_scales(a->descale_v, a->v_table) == ATTENTION_SCALES_BLOCKS)
        return attention_decline(c, "decoding does not support block scales");
    if (k_is_byte != v_is_byte)
        return attention_decline(c, "decoding requires that both k and v have 8 bits, or neither");
    if (k_is_byte && cuda->major * 10 + cuda->minor < 89)
        return attention_decline(c, "decoding with 8-bit k and v requires compute capability 8.9 or newer");
    if (!k_is_byte && (a->descale_k || a->descale_v))
        return attention_decline(c, "decoding supports scales only with 8-bit k and v");
    if ((a->descale_k && a->descale_k->type != WEFT_DATA_FLOAT) ||
        (a->descale_v && a->descale_v->type != WEFT_DATA_FLOAT))
        return attention_decline(c, "decoding requires scales of k and v of type FLOAT");
    return WEFT_STATUS_SUCCESS;
}

/* Each error names one unsupported feature. The remaining cases have pages or tensors with at most one scale per
   row. */
static weftStatus_t check_decode(const struct cuda_attention *c) {
    if (!c->forward)
        return attention_decline(c, "decoding has no backward pass");
    if (c->queries > QUERIES_MAX)
        return attention_decline(c, "there are more than 64 queries");
    if (!c->has_async || !c->arithmetic->is_mma)
        return attention_decline(c, "decoding requires f16 or bf16 and compute capability 8.0 or newer");
    TRY(check_scales(c));
    if (attention_drops(c->a) || attention_wants(c, c->forward->rng_dump))
        return attention_decline(c, "decoding does not support dropout");
    if (attention_has_ragged_rows(c))
        return attention_decline(c, "decoding supports ragged offsets only for page tables");
    if (c->a->block_mask)
        return attention_decline(c, "decoding does not support a block mask");
    if (c->key_heads != c->value_heads)
        return attention_decline(c, "decoding requires equal numbers of k and v heads");
    if (c->depth > DEPTH_MAX || c->value_depth > DEPTH_MAX)
        return attention_decline(c, "decoding supports head dimensions up to 256");
    if (!c->lines || !c->keys || !c->depth || !c->value_depth)
        return attention_decline(c, "a matrix operand is empty");
    TRY(check_operand(c, c->a->k));
    return check_operand(c, c->a->v);
}

static weftStatus_t analyse(struct decode *d, struct cuda_attention *c, const struct region *region,
                            const struct device *device, const struct knob_choices *knobs) {
    TRY(attention_analyse(c, region, device));
    TRY(check_decode(c));
    return plan_decode(d, c, knobs);
}

/* The maximum of memory time, MMA time (which matters with many rows), and latency per head (with few keys of many
   heads). */
static double predict(const struct decode *d) {
    const struct cuda_attention *c = d->c;
    const struct cuda_properties *cuda = &c->device->cuda;
    double keys = (double)(max_slices(d) * KEYS), heads = (double)(c->batches * c->key_heads);
    double rows = (double)(d->row_tiles * tile_rows(d->tile)), columns = (double)(c->depth + c->value_depth);
    double rate = PRODUCTS_PER_CLOCK * cuda->clock_khz * 1e3 * cuda->multiprocessors * EFFICIENCY;
    double computing = heads * rows * keys * columns / rate;
    int64_t waves = divide_up(units_of(d, d->tile, d->heads) * d->splits, d->ctas * cuda->multiprocessors);
    double waiting = (double)((waves - 1) * d->heads) * HEAD_SECONDS;
    return START_SECONDS + fmax(waiting, fmax(d->reading, computing));
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct cuda_attention c;
    struct decode d;
    TRY(analyse(&d, &c, region, device, NULL));
    offer->seconds = predict(&d);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---- */

/* The type of P. f16 has more precision than bf16, but not the range of P times row scales of V. */
static const char *p_type_name(const struct decode *d) {
    const struct attention *a = d->c->a;
    if (key_bytes(d) > 1)
        return d->c->arithmetic->staged_name;
    return attention_key_scales(a->descale_v, a->v_table) == ATTENTION_SCALES_ROWS ? "bf16" : "f16";
}

static void emit_tile(struct kernel_source *source, const struct decode *d) {
    emit_constant(source, "WARPS", tile_warps(d->tile));
    emit_constant(source, "ROW_WARPS", d->tile->row_warps);
    emit_constant(source, "KEY_GROUPS", d->tile->key_groups);
    emit_constant(source, "HEADS", d->heads);
    emit_constant(source, "STAGES", stages_of(d, d->tile));
    emit_constant(source, "USES_TMA", d->uses_tma);
    emit_constant(source, "SPLIT", split_of(d, d->splits));
    emit_constant(source, "DEPTH", d->depth.padded);
    emit_constant(source, "VALUES", d->value_depth.padded);
    emit_constant(source, "PARTS", d->parts);
    text_add(&source->constants, "using p_t = %s;\n", p_type_name(d));
    /* queries of deeper heads would need too many registers */
    emit_constant(source, "ROWS_IN_REGISTERS", d->depth.padded <= 128);
    emit_constant(source, "CTAS", d->ctas);
    emit_constant(source, "SHARED_BYTES", d->shared_bytes);
}

/* Emits a map with boxes of KEYS rows of BOX_BYTES; columns past the end of a row are zeros. */
static void emit_map_of(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                        const char *name) {
    int64_t bytes = dtype_bytes((weftDataType_t)tensor->type, 1);
    struct cuda_map map = {.form = {.type = bytes == 1                       ? TENSOR_MAP_U8
                                            : tensor->type == WEFT_DATA_HALF ? TENSOR_MAP_F16
                                                                             : TENSOR_MAP_BF16,
                                    .rank = 4,
                                    .box = {(uint32_t)(BOX_BYTES / bytes), KEYS, 1, 1},
                                    .swizzle = TENSOR_MAP_128B,
                                    .promotion = TENSOR_MAP_L2_128B}};
    for (int i = 0; i < 4; i++) {
        int dim = (int[]){3, 2, 1, 0}[i];
        map.form.dims[i] = (uint64_t)tensor->dims.at[dim];
        if (i > 0) /* the stride is unused if there is only one row, head or batch entry */
            map.form.strides[i - 1] =
                tensor->dims.at[dim] == 1 ? RUN_BYTES : (uint64_t)(tensor->strides.at[dim] * bytes);
    }
    emit_map(source, graph_find_value(c->graph, tensor), &map, name);
}

/* Emits the maps first, as emit_map requires; then what all attention kernels share, then decode's own. */
static weftStatus_t build_main(struct step *step, const struct decode *d, struct cuda_kernel *kernel,
                               struct arena *arena) {
    const struct cuda_attention *c = d->c;
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    if (d->uses_tma) {
        emit_map_of(&source, c, c->a->k, "k_map");
        emit_map_of(&source, c, c->a->v, "v_map");
    } else {
        text_add(&source.constants, "#include \"core/ptx_sm90.cuh\"\n"); /* otherwise included with the maps */
    }
    attention_emit_scores(&source, c);
    emit_tile(&source, d);
    emit_constant(&source, "O_IS_PAIR", attention_run(c->forward->o) % 2 == 0);
    emit_constant(&source, "VALUES_ARE_EVEN", c->value_depth % 2 == 0);
    attention_emit_operand(&source, c, c->a->q, "q", "Q_RUN");
    attention_emit_operand(&source, c, c->a->k, "k", "K_RUN");
    attention_emit_operand(&source, c, c->a->v, "v", "V_RUN");
    attention_emit_pages(&source, c, c->a->k_table, c->a->k, "k", "K_PAGE");
    attention_emit_pages(&source, c, c->a->v_table, c->a->v, "v", "V_PAGE");
    attention_emit_ends(&source, c);
    attention_emit_scales(&source, c, true);
    emit_number(&source, c->key_heads, "key_heads");
    emit_number(&source, d->group, "group");
    emit_number(&source, d->rows, "rows");
    emit_number(&source, d->row_tiles, "tiles");
    emit_number(&source, d->split_slices, "split_slices");
    /* a cluster's partial sums stay on chip; only those of the workspace count */
    int64_t bytes = attention_emit_splits(&source, c, d->splits);
    step->workspace_bytes = split_of(d, d->splits) == SPLIT_WORKSPACE ? bytes : 0;
    TRY(kernel_finish(&source, kernel, "attention/decode.cuh", "attention_decode", arena));
    kernel->shared_bytes = (uint32_t)d->shared_bytes;
    kernel->cluster = split_of(d, d->splits) == SPLIT_CLUSTER ? (uint32_t)d->splits : 0;
    kernel->is_dependent = c->device->cuda.major >= 9;
    return attention_grid(kernel, c, units_of(d, d->tile, d->heads) * d->splits, tile_warps(d->tile));
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
    /* The kernels run in stream order: clear, main kernel, merge. */
    TRY(attention_build_amax_clear(&c, state, arena));
    TRY(build_main(step, &d, &state->kernels[state->count++], arena));
    if (split_of(&d, d.splits) == SPLIT_WORKSPACE)
        TRY(attention_build_merge(&c, d.splits, &state->kernels[state->count++], arena));
    return arena_print(arena, &step->detail,
                       "%s, %d row%s, %d group%s of warps with %d slice%s of %d keys%s, %lld head%s, %lld split%s",
                       c.arithmetic->doc, tile_rows(d.tile), plural(tile_rows(d.tile)), d.tile->key_groups,
                       plural(d.tile->key_groups), stages_of(&d, d.tile), plural(stages_of(&d, d.tile)), KEYS,
                       d.uses_tma ? " by TMA" : "", (long long)d.heads, plural(d.heads), (long long)d.splits,
                       plural(d.splits));
}

static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, TILE_COUNT, 1, 0,
     "warps over rows x groups over keys x slices in flight: 1 1x8x3, 2 1x8x2, 3 1x4x3, 4 1x4x2, 5 1x2x3, 6 1x2x2, "
     "7 2x4x4, 8 2x4x2, 9 2x2x3, 10 2x2x2, 11 4x2x5, 12 4x2x3, 13 4x1x4, 14 4x1x2; 0 chooses"},
    {WEFT_KNOB_TYPE_SLICED, 0, HEADS_MAX, 1, 0, "key heads that share a CTA: 1, 2 or 4; 0 chooses"},
    {WEFT_KNOB_TYPE_INPUT_TMA_ENABLE, 0, LOADS_BY_TMA, 1, 0,
     "loads of keys and values: 1 by threads, 2 by TMA if possible; 0 chooses"},
    {WEFT_KNOB_TYPE_SPLIT_K, 0, SPLITS_MAX, 1, 0, "parts that the keys are split into; 0 chooses"},
    {0},
};

const struct family cuda_attention_decode = {
    .name = "cuda.attention_decode",
    .doc = "attention of few queries and many keys, at memory bandwidth",
    .knobs = knobs,
    .accepts = accepts,
    .build = build,
};
