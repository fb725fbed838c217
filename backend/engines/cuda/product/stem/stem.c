/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions and tiling of the stem family: product/stem/stem.cuh computes results, stem_dgrad.cuh gradients of images,
   stem_wgrad.cuh gradients of filters. This file must not know about text. */
#include "engines/cuda/product/stem/stem.h"
#include "base/number.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

enum {
    TAPS_MIN = 2,   /* a filter of one tap is a matmul */
    TAPS_MAX = 128, /* all taps are unrolled */
    /* Maximum sums of a warp for dx: phases times fragments, in units of four registers. */
    SUMS_MAX = 24,
    FILTER_WARPS = 8,     /* product/stem/stem_wgrad.cuh distributes the taps and filters among them */
    FILTER_STAGES = 3,    /* tiles of X and dY in shared memory */
    IMAGE_WARPS = 4,      /* per block of the forward kernel and the data gradient */
    BLOCK_RESERVE = 1024, /* bytes of shared memory that the driver reserves per block */
};

/* Launch overhead of one kernel. REACH_MAX: limit of positions, so that the sum of two fits in 32 bits. */
static const double LAUNCH_SECONDS = 2e-6, REACH_MAX = 1 << 30;
static const double RATE = 1024;       /* products per clock of a multiprocessor, by mma.sync */
static const double EFFICIENCY = 0.63; /* the share of this rate that gradients of a stem of 7x7 taps reach */

/* By direction. */
static const struct stem_tile forward_tiles[] = {{16, 16}, {8, 32}, {4, 64}, {8, 16}};
static const struct stem_tile data_tiles[] = {{16, 16}, {8, 32}, {8, 16}};
static const struct stem_tile filter_tiles[] = {{8, 16}, {4, 32}, {2, 64}, {4, 16}, {2, 16}};
static const struct {
    const struct stem_tile *tiles;
    int count, warps, stages, blocks; /* resident blocks, limited by registers */
} shapes[] = {
    [CONV_FORWARD] = {forward_tiles, sizeof forward_tiles / sizeof *forward_tiles, IMAGE_WARPS, 1, 3},
    [CONV_DATA] = {data_tiles, sizeof data_tiles / sizeof *data_tiles, IMAGE_WARPS, 1, 2},
    [CONV_FILTER] = {filter_tiles, sizeof filter_tiles / sizeof *filter_tiles, FILTER_WARPS, FILTER_STAGES, 1},
};

/* Taps of a filter, over both dimensions. */
static int64_t taps_of(const struct stem *s) { return s->g.w.size[HEIGHT] * s->g.w.size[WIDTH]; }

/* ---- Conditions -------------------------------------------------------------------------------------------------- */

/* Kernels read operands from the caller's memory or from the workspace. */
static bool is_supported(const struct tensor *tensor, weftDataType_t type) {
    return (weftDataType_t)tensor->type == type && !tensor->is_by_value && !tensor->is_constant;
}

/* All operands have one 16-bit type, and products are summed in float. */
static weftStatus_t check_types(const struct stem *s) {
    const struct conv_op *op = (const struct conv_op *)s->c.node->op;
    const struct tensor *a = s->c.operand[OPERAND_A].tensor, *b = s->c.operand[OPERAND_B].tensor;
    weftDataType_t type = (weftDataType_t)a->type, math = math_type(op->parameters->math);
    bool is_half = dtype_is_half(type);
    if (!is_half || !is_supported(a, type) || !is_supported(b, type) || !dtype_is_float(math) ||
        math == WEFT_DATA_DOUBLE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: %s and %s must have the same 16-bit float type, with products summed in float",
             descriptor_label(&op->base), descriptor_label(&a->base), descriptor_label(&b->base));
    return WEFT_STATUS_SUCCESS;
}

/* Conditions that do not depend on the layout: the chip, one group of few channels, the number of taps, extents. */
static weftStatus_t check_node(const struct stem *s, const struct device *device) {
    const struct conv_geometry *g = &s->g;
    const char *label = descriptor_label(s->c.node->op);
    bool is_flat = g->x.size[0] == 1 && g->w.size[0] == 1 && g->y.size[0] == 1;
    if (device->cuda.major < 8)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "%s: mma.sync with 16 halves requires sm_80", label);
    if (g->groups != 1 || g->c > CHANNELS_MAX || !is_flat)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: expected one group of at most %d channels in at most two dimensions",
             label, CHANNELS_MAX);
    if (taps_of(s) < TAPS_MIN || taps_of(s) > TAPS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its filters have %lld tap%s; expected %d to %d", label,
             (long long)taps_of(s), plural(taps_of(s)), TAPS_MIN, TAPS_MAX);
    for (int i = HEIGHT; i <= WIDTH; i++) {
        /* In double, because products of 64-bit extents could overflow. */
        double span = (double)g->w.size[i] * (double)g->dilation[i], pre = (double)max64(g->pre[i], -g->pre[i]);
        if ((double)g->x.size[i] + (double)g->y.size[i] * (double)g->stride[i] + span + pre > REACH_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: more than 2^30 positions", label);
    }
    return check_types(s);
}

/* ---- The result -------------------------------------------------------------------------------------------------- */

/* Analyses the epilogue. Kernels index results by u32. */
static weftStatus_t analyse_result(struct stem *s) {
    TRY(contraction_analyse_result(&s->c, &s->g));
    /* Runs must stay within the row of an image that a fragment covers; rows of dx start at a column that depends on
       the padding. */
    if (s->c.epilogue.lead == ROW && s->g.direction == CONV_FORWARD)
        s->c.epilogue.run = (int)gcd64(s->c.epilogue.run, s->g.y.size[WIDTH]);
    if (s->c.epilogue.lead == ROW && s->g.direction == CONV_DATA)
        s->c.epilogue.run = 1;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* In bytes, for `tile` and the chosen filters. */
static int64_t shared_bytes(const struct stem *s, const struct stem_tile *tile) {
    const struct conv_geometry *g = &s->g;
    struct stem_shape shape = {
        .taps_h = g->w.size[HEIGHT],
        .taps_w = g->w.size[WIDTH],
        .stride_h = g->stride[HEIGHT],
        .stride_w = g->stride[WIDTH],
        .dilation_h = g->dilation[HEIGHT],
        .dilation_w = g->dilation[WIDTH],
        .tile_p = tile->rows,
        .tile_q = tile->columns,
        .filters = s->filters,
        .warps = s->warps,
        .stages = s->stages,
        .lead_is_row = s->c.epilogue.lead == ROW,
    };
    return (g->direction == CONV_FORWARD ? stem_memory_of(shape)
            : g->direction == CONV_DATA  ? stem_dgrad_memory_of(shape)
                                         : stem_wgrad_memory_of(shape))
        .bytes;
}

/* The number of positions that tiles cover along dimension i (HEIGHT or WIDTH), and the first one; see
   product/stem/stem_dgrad.cuh for those of dx, which count from `pre` before the image in whole strides. */
static int64_t positions(struct stem *s, int i) {
    const struct conv_geometry *g = &s->g;
    if (g->direction != CONV_DATA)
        return g->y.size[i];
    s->first[i] = divide_down(g->pre[i], g->stride[i]);
    return divide_down(g->pre[i] + g->x.size[i] - 1, g->stride[i]) - s->first[i] + 1;
}

/* Filters per block, in multiples of what its warps share. A data gradient sums over all filters, so a single block has
   all of them. */
static void choose_filters(struct stem *s) {
    int64_t k = s->g.k;
    if (s->g.direction == CONV_DATA) /* the filters are the summed dimension */
        s->filters = divide_up(max64(k, 1), 32) * 32;
    else
        s->filters = k <= 16 && s->g.direction == CONV_FORWARD ? 16 : k <= 32 ? 32 : 64;
    s->filter_tiles = s->g.direction == CONV_DATA ? 1 : divide_up(k, s->filters);
}

/* Chooses the tile that wastes the fewest outputs and reads the least in addition, with as many blocks per
   multiprocessor as registers allow. Cost: outputs, including partial ones, and the bytes read for them; higher if
   fewer blocks than intended hide each other's loads. */
static weftStatus_t choose_tile(struct stem *s, const struct device *device) {
    const struct conv_geometry *g = &s->g;
    int64_t down = positions(s, HEIGHT), across = positions(s, WIDTH), phases = g->stride[HEIGHT] * g->stride[WIDTH];
    double best = 0;
    s->warps = shapes[g->direction].warps;
    s->stages = shapes[g->direction].stages;
    choose_filters(s);
    for (int t = 0; t < shapes[g->direction].count; t++) {
        const struct stem_tile *tile = &shapes[g->direction].tiles[t];
        int64_t bytes = shared_bytes(s, tile), fragments = tile->rows * tile->columns / (16 * s->warps);
        int64_t blocks =
            min64(device->cuda.shared_per_multiprocessor / (bytes + BLOCK_RESERVE), shapes[g->direction].blocks);
        int64_t p = divide_up(down, tile->rows), q = divide_up(across, tile->columns);
        double cost = (double)(p * q) * (tile->rows * tile->columns + (double)bytes / 512) /
                      (0.5 + 0.5 * (double)blocks / shapes[g->direction].blocks);
        /* True if the sums of all phases of a data gradient fit in registers. */
        bool fits_registers = g->direction != CONV_DATA || fragments * phases <= SUMS_MAX;
        if (bytes > device->cuda.shared_per_block || blocks == 0 || !fits_registers || (s->tile && cost >= best))
            continue;
        best = cost;
        s->tile = tile;
        s->blocks = blocks;
        s->shared_bytes = bytes;
        s->tiles_p = p;
        s->tiles_q = q;
    }
    s->tiles = g->n * s->tiles_p * s->tiles_q;
    if (!s->tile || s->tiles > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %lld filters of %lld taps exceed shared memory or registers",
             descriptor_label(s->c.node->op), (long long)g->k, (long long)taps_of(s));
    return WEFT_STATUS_SUCCESS;
}

/* Each block of the filter gradient computes one part of its sum; at least two, because combine_splits.cuh adds parts.
   There are as many as can be resident, because blocks are persistent over tiles. */
static int64_t blocks_per_filter_tile(const struct stem *s, const struct device *device) {
    int64_t resident = max64(s->blocks * device->cuda.multiprocessors / max64(s->filter_tiles, 1), 1);
    return s->g.direction == CONV_FILTER ? max64(min64(s->tiles, resident), 2) : min64(s->tiles, resident);
}

/* Computing or moving, whichever takes longer; filter gradients launch a second kernel. Padded channels and filters
   count as products, because tensor cores multiply them. */
static void predict(struct stem *s, const struct device *device) {
    double bytes = (double)(tensor_bytes(s->g.x.tensor) + tensor_bytes(s->g.y.tensor));
    /* If the device's clock is unknown, this is the clock of a busy chip. */
    double clock = device->cuda.clock_khz > 0 ? (double)device->cuda.clock_khz * 1e3 : 1.5e9;
    double products = (double)s->tiles * s->tile->rows * s->tile->columns * (double)taps_of(s) * CHANNELS_MAX *
                      (double)(s->filter_tiles * s->filters);
    double computing = products / (RATE * EFFICIENCY * clock * device->cuda.multiprocessors);
    double moving = price_moving(bytes, device);
    s->c.seconds = LAUNCH_SECONDS * (s->g.direction == CONV_FILTER ? 2 : 1) + (computing > moving ? computing : moving);
}

/* The complete plan, in the order of dependences. */
static weftStatus_t analyse(struct stem *s, const struct region *region, const struct device *device) {
    *s = (struct stem){0};
    TRY(contraction_find(&s->c, region));
    if (!conv_is(s->c.node->op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a convolution", descriptor_label(s->c.node->op));
    s->g = conv_geometry(s->c.node->op);
    TRY(check_node(s, device));
    TRY(analyse_result(s));
    TRY(choose_tile(s, device));
    if (s->g.direction == CONV_FILTER)
        s->c.splits = (int)blocks_per_filter_tile(s, device);
    predict(s, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- The family -------------------------------------------------------------------------------------------------- */

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct stem s;
    TRY(analyse(&s, region, device));
    offer->seconds = s.c.seconds;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct stem s;
    struct cuda_kernel *kernel;
    (void)knobs;
    TRY(analyse(&s, &step->region, device));
    TRY(contraction_add_kernel(&kernel, step, &s.c, arena));
    if (!kernel)
        return WEFT_STATUS_SUCCESS;
    TRY(stem_emit(kernel, &s, arena));
    contraction_set_launch(kernel, blocks_per_filter_tile(&s, device) * s.filter_tiles, s.warps * 32, s.shared_bytes);
    /* A second kernel adds the partial sums that the blocks of a filter gradient stored in the workspace. */
    if (s.c.splits > 1)
        TRY(contraction_add_combine(step, &s.c, arena));
    return arena_print(arena, &step->detail,
                       "tiles of %dx%d, %lld filters, %lld tap%s of 8 channels, %d part%s, epilogue: %d operation%s",
                       s.tile->rows, s.tile->columns, (long long)s.filters, (long long)taps_of(&s), plural(taps_of(&s)),
                       s.c.splits, plural(s.c.splits), s.c.region->count - 1, plural(s.c.region->count - 1));
}

const struct family cuda_stem = {
    .name = "cuda.stem",
    .doc = "a convolution of images of at most 8 channels or a gradient of it, and the pointwise operations after it",
    .accepts = accepts,
    .build = build,
    .may_alias = contraction_may_alias,
};
