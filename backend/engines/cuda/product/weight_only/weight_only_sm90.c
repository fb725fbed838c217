/* SPDX-License-Identifier: Apache-2.0 */
/* The weight-only family of Hopper: some hundred rows times weights of 4 or 8 bits with block scales, followed by
   pointwise operations. For fewer rows the weight-only family is faster, whose warps each multiply what they read; for
   more rows, dequantising the weights in memory is faster. */
#include "base/number.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/hopper/hopper.h"
#include "engines/cuda/product/weight_only/weight_only.h"
#include "engines/cuda/product/weight_only/weight_only_sm90_geometry.h"

#include <math.h>

enum {
    SPAN = 32,       /* weights of a step that share a scale */
    ROWS_MAX = 1024, /* rows of A, at most */
    CLUSTER_MAX = 8, /* blocks per cluster */
    SUMS_MAX = 64,   /* columns of products of four math warpgroups, limited by registers; with two, twice as
                            many */
    TILES = 2,       /* number of tile sizes: 128 and 256 columns */
    STAGES_MAX = 8,  /* steps in shared memory */
    REPACK_THREADS = 128,
};

static const double LAUNCH_SECONDS = 2.5e-6; /* launch overhead of two kernels, the first of which repacks rows */
static const double FILL_SECONDS = 2.5e-6;   /* time until the first step of a block arrives, and to finish its tile */
static const double SPLIT_SECONDS = 3e-6;    /* time until the blocks of a cluster have read each other's sums */
/* Clock of a busy H200 in Hz; the share of its bandwidth that weights reach; the share of the shorter of computing and
   moving that does not overlap with the longer one. */
static const double CLOCK = 1.75e9, MEMORY_SHARE = 0.8, UNHIDDEN_SHARE = 0.2;
/* 16-bit products, per multiprocessor. */
static const double PRODUCTS_PER_CLOCK = 2048;
/* with four math warpgroups, whose products are narrower */
static const double EFFICIENCY = 0.78, EFFICIENCY_OF_FOUR = 0.71;
static const double STEP_SECONDS = 0.33e-6, STEP_SECONDS_PER_COLUMN = 0.9e-9; /* lower bound per step */
static const double L2_BYTES_PER_SECOND = 6.5e12;
static const double CLUSTERED_SHARE = 0.9; /* share of all multiprocessors that can be part of clusters of more than
                                              two */

struct weight_only_sm90 {
    struct weight_product p;
    int columns, tokens, splits, stages; /* columns of a tile; rows of a tile; blocks that share k; slots in shared
                                            memory */
    int64_t steps;
    double seconds;
};

/* ---- Tile -------------------------------------------------------------------------------------------------------- */

/* 4 or 8. */
static int weight_bits(const struct weight_only_sm90 *w) { return 16 * 8 / w->p.length; }

/* Scales per column and step: one, two or four, the number of blocks that start in a step. */
static int scales(const struct weight_only_sm90 *w) {
    bool is_one = w->p.group >= w->p.k_count || w->p.group % STEP == 0;
    return is_one ? 1 : w->p.group % (STEP / 2) == 0 ? 2 : STEP / SPAN;
}

static struct weight_only_sm90_memory memory_of(const struct weight_only_sm90 *w) {
    struct weight_only_sm90_shape shape = {
        .tokens = w->tokens, .rows = w->columns, .bits = weight_bits(w), .scales = scales(w), .stages = w->stages};
    return weight_only_sm90_memory_of(shape);
}

/* Fitted to products of 8192 x 8192 on an H200. Everything that concurrent blocks load in a step comes from L2. A step
   takes the longest of multiplying, loading and the minimum time of unpacking. */
static double predict(const struct weight_only_sm90 *w, const struct device *device) {
    double a_bytes = (double)w->tokens * STEP * 2, w_bytes = (double)w->columns * STEP * weight_bits(w) / 8;
    int64_t blocks = divide_up(w->p.columns, w->columns) * divide_up(w->p.rows, w->tokens) * w->splits;
    double efficiency = w->columns > 128 ? EFFICIENCY_OF_FOUR : EFFICIENCY;
    double usable = device->cuda.multiprocessors * (w->splits > 2 ? CLUSTERED_SHARE : 1);
    int64_t clusters = (int64_t)usable / w->splits;
    /* Clusters with more blocks than the device has multiprocessors can never run. */
    if (!clusters)
        return INFINITY;
    int64_t waves = divide_up(blocks, clusters * w->splits);
    double step = (double)w->columns * w->tokens * STEP / PRODUCTS_PER_CLOCK / efficiency / CLOCK;
    double fill = (a_bytes + w_bytes) * (double)divide_up(blocks, waves) / L2_BYTES_PER_SECOND;
    double least = STEP_SECONDS + STEP_SECONDS_PER_COLUMN * w->columns;
    step = step > fill ? step : fill;
    step = step > least ? step : least;
    double tile_seconds =
        FILL_SECONDS + (w->splits > 1 ? SPLIT_SECONDS : 0) + (double)divide_up(w->steps, w->splits) * step;
    double computing = (double)waves * tile_seconds;
    double moving = (double)(tensor_bytes(w->p.weights->x) + tensor_bytes(w->p.weights->scale)) / MEMORY_SHARE /
                    (double)device->cuda.bandwidth;
    double longer = computing > moving ? computing : moving, shorter = computing + moving - longer;
    return LAUNCH_SECONDS + longer + UNHIDDEN_SHARE * shorter;
}

/* Divides the rows into tiles of about equal height, as few as registers allow. */
static int tile_rows(const struct weight_only_sm90 *w) {
    int most = SUMS_MAX * 256 / w->columns, grain = w->p.rows > SUMS_MAX ? 32 : 16;
    /* A thread repacks 32 elements of a row. */
    int64_t each = divide_up(w->p.rows, divide_up(w->p.rows, most));
    return (int)divide_up(each, grain) * grain;
}

/* Minimizes the predicted time over two or four math warpgroups and splits, which are powers of two. Knobs restrict
   both; a requested number of splits takes precedence over faster ones if it leaves no block idle. */
static void choose_tile(struct weight_only_sm90 *w, const struct device *device, const struct knob_choices *knobs) {
    struct weight_only_sm90 at = *w;
    int64_t chosen = knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE), requested = knob_value(knobs, WEFT_KNOB_TYPE_SPLIT_K);
    int64_t clusters = min64(CLUSTER_MAX, device->cuda.cluster_most);
    at.steps = w->steps = divide_up(w->p.k_count, STEP);
    w->splits = 0;
    for (int tile = 1; tile <= TILES; tile++)
        for (at.splits = 1; at.splits <= clusters && at.splits <= at.steps; at.splits *= 2) {
            bool has_idle_block =
                divide_up(at.steps, divide_up(at.steps, at.splits)) < at.splits; /* a block would have no step */
            bool is_excluded =
                (chosen > 0 && chosen <= TILES && chosen != tile) || (requested > 0 && at.splits > requested);
            at.columns = tile * 128;
            at.tokens = tile_rows(&at);
            at.seconds = predict(&at, device);
            if (has_idle_block || is_excluded ||
                (w->splits && at.seconds >= w->seconds && !(requested > 0 && at.splits == requested)))
                continue;
            w->columns = at.columns;
            w->tokens = at.tokens;
            w->splits = at.splits;
            w->seconds = at.seconds;
        }
    /* As many steps in flight as fit, because registers allow only one block per multiprocessor anyway. */
    w->stages = SHARED_MAX / (int)memory_of(w).stage_bytes;
    w->stages = w->stages < STAGES_MAX ? w->stages : STAGES_MAX;
}

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

/* Lanes unpack spans of 32 weights with one scale; sums are scaled once per step. */
static weftStatus_t analyse(struct weight_only_sm90 *w, const struct region *region, const struct device *device,
                            const struct knob_choices *knobs) {
    *w = (struct weight_only_sm90){0};
    TRY(hopper_check_device(device, "weight-only family of Hopper"));
    TRY(weight_product_find(&w->p, region, device, ROWS_MAX));
    TRY(weight_product_check_blocks(&w->p, w->p.scales_sums ? STEP : SPAN));
    choose_tile(w, device, knobs);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct weight_only_sm90 w;
    TRY(analyse(&w, region, device, NULL));
    offer->seconds = w.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* Builds the kernel that repacks A in the order of k, in the workspace: [rows, steps * STEP], zeros past k. */
static weftStatus_t build_repack(struct step *step, const struct weight_only_sm90 *w, struct arena *arena) {
    struct cuda_step *state = step->state;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    const struct tensor *a = w->p.c.operand[OPERAND_A].tensor;
    struct kernel_source source;
    int64_t each = w->steps * (STEP / SPAN), threads = each * w->p.rows;
    kernel_source_init(&source, &step->region);
    text_add(&source.constants, "using weight_t = %s;\n", cuda_element_name((weftDataType_t)w->p.weights->x->type));
    text_add(&source.code, "#include \"core/gather.cuh\"\n\n");
    emit_constant(&source, "THREADS", REPACK_THREADS);
    emit_pointer(&source, (weftDataType_t)a->type, w->p.c.operand[OPERAND_A].value, 0, "a");
    emit_scratch(&source, "void", 0, "ordered");
    emit_number(&source, w->p.a_row, "a_row");
    emit_number(&source, w->p.rows, "rows");
    emit_number(&source, w->p.k_count, "k_count");
    emit_divisor(&source, each, "parts");
    TRY(kernel_finish(&source, kernel, "product/weight_only/repack.cuh", "repack", arena));
    kernel->grid[0] = (uint32_t)divide_up(threads, REPACK_THREADS);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = REPACK_THREADS;
    /* Its reads wait for the previous kernel, but its launch does not. */
    kernel->is_dependent = true;
    step->workspace_bytes = w->p.rows * w->steps * STEP * 2;
    return WEFT_STATUS_SUCCESS;
}

/* A is in the workspace (value -1) and is loaded in boxes of 64 along k: the row of the 128-byte swizzle, two per step.
   Weights are loaded from the tensor as bytes, whatever their type, one step at a time: rows of 64 bytes without
   swizzle, of 128 with it. */
static void emit_maps(struct kernel_source *source, const struct weight_only_sm90 *w) {
    bool is_half = w->p.c.operand[OPERAND_A].tensor->type == WEFT_DATA_HALF;
    int row = STEP * weight_bits(w) / 8; /* bytes of weights per step */
    const struct cuda_map a = {.form = {.type = is_half ? TENSOR_MAP_F16 : TENSOR_MAP_BF16,
                                        .rank = 2,
                                        .dims = {(uint64_t)(w->steps * STEP), (uint64_t)w->p.rows},
                                        .strides = {(uint64_t)(w->steps * STEP * 2)},
                                        .box = {STEP / 2, (uint32_t)w->tokens},
                                        .swizzle = TENSOR_MAP_128B,
                                        .promotion = TENSOR_MAP_L2_128B}};
    const struct cuda_map weights = {
        .form = {.type = TENSOR_MAP_U8,
                 .rank = 2,
                 .dims = {(uint64_t)(w->p.k_count * weight_bits(w) / 8), (uint64_t)w->p.columns},
                 .strides = {(uint64_t)w->p.w_row},
                 .box = {(uint32_t)row, (uint32_t)w->columns},
                 .swizzle = row == 128 ? TENSOR_MAP_128B : TENSOR_MAP_PLAIN,
                 .promotion = TENSOR_MAP_L2_128B}};
    emit_map(source, -1, &a, "a_map");
    emit_map(source, graph_find_value(source->graph, w->p.weights->x), &weights, "w_map");
}

/* A and B are swapped: the tensor core's rows are columns of the result, ROWS per tile, and its columns are TOKENS. */
static weftStatus_t build_product(struct step *step, struct weight_only_sm90 *w, struct arena *arena) {
    struct cuda_step *state = step->state;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    struct kernel_source source;
    struct epilogue *epilogue = &w->p.c.epilogue;
    /* Sums are stored through shared memory, four adjacent columns per thread. */
    epilogue->run = epilogue->lead == COLUMN && epilogue->run % 4 == 0 ? 4 : 1;
    kernel_source_init(&source, &step->region);
    emit_maps(&source, w);
    weight_product_emit(&source, &w->p);
    emit_constant(&source, "ROWS", w->columns);
    emit_constant(&source, "TOKENS", w->tokens);
    emit_constant(&source, "SPLITS", w->splits);
    emit_constant(&source, "STAGES", w->stages);
    emit_constant(&source, "SCALES", scales(w));
    emit_number(&source, w->steps, "steps");
    emit_number(&source, divide_up(w->steps, w->splits), "steps_per_split");
    weftDataType_t type = (weftDataType_t)w->p.c.operand[OPERAND_A].tensor->type;
    wgmma_emit(&source.code, w->tokens, type, type, WGMMA_A_REGISTERS, false);
    epilogue_emit(&source, &w->p.c);
    TRY(kernel_finish(&source, kernel, "product/weight_only/weight_only_sm90.cuh", "weight_only_sm90", arena));
    /* Blocks of a cluster are adjacent along x and share a tile's k. */
    kernel->grid[0] = (uint32_t)(divide_up(w->p.columns, w->columns) * w->splits);
    kernel->grid[1] = (uint32_t)divide_up(w->p.rows, w->tokens);
    kernel->grid[2] = 1;
    /* One producer warpgroup, and one consumer per 64 columns. */
    kernel->block = (uint32_t)(w->columns / 64 + 1) * WARPGROUP;
    kernel->cluster = w->splits > 1 ? (uint32_t)w->splits : 0;
    kernel->shared_bytes = memory_of(w).bytes;
    kernel->is_dependent = true;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct weight_only_sm90 w;
    struct cuda_step *state;
    TRY(analyse(&w, &step->region, device, knobs));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    step->seconds = w.seconds;
    /* The kernels run in this order; the second one waits for the first one before it reads A. */
    TRY(build_repack(step, &w, arena));
    TRY(build_product(step, &w, arena));
    return arena_print(
        arena, &step->detail,
        "wgmma, weights dequantised in registers, tiles of %d columns by %d rows, %d stages, %d split%s, "
        "epilogue: %d operation%s",
        w.columns, w.tokens, w.stages, w.splits, plural(w.splits), w.p.rest.count - 1, plural(w.p.rest.count - 1));
}

static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, TILES, 1, 0, "columns of a tile, in units of 128; 0 chooses"},
    {WEFT_KNOB_TYPE_SPLIT_K, 0, CLUSTER_MAX, 1, 0, "blocks that share each sum, at most; 0 chooses"},
    {0},
};

const struct family cuda_weight_only_sm90 = {
    .name = "cuda.weight_only_sm90",
    .doc = "some hundred rows times weights of 4 or 8 bits with block scales, and the pointwise operations after it, "
           "on Hopper",
    .knobs = knobs,
    .accepts = accepts,
    .companions = weight_product_companions,
    .build = build,
    .may_alias = contraction_may_alias,
};
