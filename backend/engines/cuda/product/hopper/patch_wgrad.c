/* SPDX-License-Identifier: Apache-2.0 */
/* Filter gradients of the patch family of Hopper: convolutions of stride 1, of images and volumes, with few channels
   and filters. The Hopper family loads its operands once per tap and computes little with them;
   product/hopper/patch_wgrad_sm90.cuh loads them once per slice of taps. Where that is slower, the Hopper family is
   chosen. */
#include "base/number.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/hopper/patch.h"
#include "engines/cuda/product/hopper/patch_wgrad_geometry.h"

#include <math.h>

/* Limits of the kernel. */
enum {
    THREADS = (1 + CONSUMER_GROUPS) * WARPGROUP,
    PRODUCT_K = 16, /* adjacent pixels */
    TAPS_MAX = 18,  /* per slice */
    SUMS_MAX = 96,  /* sums per thread: 128 registers hold them and the offsets of taps */
    BOX_MAX = 256,  /* pixels along a dimension of a box */
    STAGES_MIN = 3,
    STAGES_MAX = 8,
};

static const double POWERED_CLOCK = 1.54e9;       /* Hz, under the power limit, if all multiprocessors are busy */
static const double PRODUCTS_PER_CLOCK = 2048;    /* products of 16-bit operands */
static const double SHARED_BYTES_PER_CLOCK = 128; /* reads of shared memory */
static const double FILL_BYTES_PER_CLOCK = 40;    /* from L2 */
static const double COMBINING_RATE = 2e12;        /* bytes per second of partial sums, written and read */
static const double TILE_CLOCKS = 150;            /* to wait for a tile and for its last products */
static const double EFFICIENCY = 0.9;             /* share of the rate of the slower of the two, measured on an H200 */

static const int channel_blocks[] = {64, 32, 16};
static const int tile_columns[] = {16, 32, 64}, tile_lines[] = {16, 8, 4, 2, 1};
enum { CHANNEL_BLOCKS = 3, TILE_WIDTHS = 3, TILE_HEIGHTS = 5, TILE_PIXELS_MAX = 256 };

/* A block sums one kind: a slice of taps, ROWS filters and `block` channels, over a part of the tiles of pixels. */
struct patch_wgrad {
    struct contraction c;
    struct conv_geometry g;
    int block;          /* channels */
    int lines, columns; /* size of a tile of dY */
    int patch_h, pitch; /* pixels of X that a tile reads */
    int stages;         /* in shared memory */
    int64_t channel_blocks, filter_tiles, tiles_p, tiles_q, tiles;
    int parts;
    double seconds;
};

/* Returns the taps of a slice of the filter. */
static int64_t taps_of(const struct patch_wgrad *h) { return h->g.w.size[1] * h->g.w.size[2]; }
static bool is_volume(const struct patch_wgrad *h) { return h->g.spatial == 3; }
static int64_t kinds_of(const struct patch_wgrad *h) { return h->g.w.size[0] * h->channel_blocks * h->filter_tiles; }

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

static weftStatus_t check_shape(const struct patch_wgrad *h) {
    const struct conv_geometry *g = &h->g;
    bool is_plain =
        g->direction == CONV_FILTER && g->groups == 1 && g->spatial >= 2 && taps_of(h) > 1 && taps_of(h) <= TAPS_MAX;
    if (!is_plain || g->stride[0] * g->stride[1] * g->stride[2] != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: this engine computes only filter gradients of convolutions of stride 1 in one group, of images and "
             "volumes and of 2 to %d taps in each slice.",
             descriptor_label(h->c.node->op), TAPS_MAX);
    return WEFT_STATUS_SUCCESS;
}

/* Checks types and the layout: boxes of channels of X and of filters of dY. */
static weftStatus_t check_types(const struct patch_wgrad *h) {
    const struct conv_geometry *g = &h->g;
    weftDataType_t x = (weftDataType_t)g->x.tensor->type, loss = (weftDataType_t)g->y.tensor->type;
    if (!dtype_is_half(x) || x != loss || !dtype_is_float(math_type(g->math)) || g->math == WEFT_DATA_DOUBLE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: unsupported operand types: %s x %s; this engine multiplies two halves or two bfloat16 summed in "
             "float.",
             descriptor_label(h->c.node->op), dtype_of(x)->name, dtype_of(loss)->name);
    if (!patch_is_aligned(&g->x) || !patch_is_aligned(&g->y))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: image and loss must be channels last and aligned to 16 bytes.",
             descriptor_label(h->c.node->op));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

static struct patch_wgrad_memory memory_of(const struct patch_wgrad *h) {
    struct patch_wgrad_shape shape = {
        .channels = h->block,
        .tile_h = h->lines,
        .tile_w = h->columns,
        .patch_h = h->patch_h,
        .pitch = h->pitch,
        .stages = h->stages,
    };
    return patch_wgrad_memory_of(shape);
}

/* Clocks per tile and block: the longer of loading the tile and multiplying, which is limited by the products or by
   their reads of shared memory, dY once per warpgroup and X once per tap. */
static double tile_clocks(const struct patch_wgrad *h) {
    double steps = h->lines * h->columns / PRODUCT_K, taps = (double)taps_of(h);
    double products = taps * ROWS * h->block * PRODUCT_K / PRODUCTS_PER_CLOCK,
           reading = (CONSUMER_GROUPS * ROWS + taps * h->block) * PRODUCT_K * 2 / SHARED_BYTES_PER_CLOCK,
           fetching = memory_of(h).stage_bytes / FILL_BYTES_PER_CLOCK, multiplying = steps * fmax(products, reading);
    return TILE_CLOCKS + fmax(multiplying, fetching);
}

/* Sets everything that depends on the tile; false if it does not fit. */
static bool fit(struct patch_wgrad *h, int block, int lines, int columns) {
    const struct conv_geometry *g = &h->g;
    int64_t reach_h = (g->w.size[1] - 1) * g->dilation[1], reach_w = (g->w.size[2] - 1) * g->dilation[2];
    bool are_few = divide_up(taps_of(h), CONSUMER_GROUPS) * block / 2 <= SUMS_MAX;
    if (!are_few || lines * columns > TILE_PIXELS_MAX || lines + reach_h > BOX_MAX || columns + reach_w > BOX_MAX)
        return false;
    h->block = block;
    h->lines = lines;
    h->columns = columns;
    h->patch_h = lines + (int)reach_h;
    h->pitch = columns + (int)reach_w;
    h->stages = (int)min64(SHARED_MAX / (memory_of(h).stage_bytes + 2 * BARRIER_BYTES), STAGES_MAX);
    h->channel_blocks = divide_up(g->c, block);
    h->filter_tiles = divide_up(g->k, ROWS);
    h->tiles_p = divide_up(g->y.size[1], lines);
    h->tiles_q = divide_up(g->y.size[2], columns);
    h->tiles = g->n * g->y.size[0] * h->tiles_p * h->tiles_q;
    return h->stages >= STAGES_MIN && h->tiles <= INT32_MAX;
}

/* As many parts as blocks of every kind run concurrently, but at least two, because combine_splits.cuh adds them. The
   time is that of the longest block, or of moving all bytes once, plus the second kernel, which adds the partial
   sums. */
static void predict(struct patch_wgrad *h, const struct device *device) {
    int64_t kinds = kinds_of(h), at_once = device->cuda.multiprocessors;
    h->parts = (int)max64(min64(at_once / kinds, h->tiles), 2);
    double rounds = (double)divide_up(h->tiles, h->parts) * (double)divide_up(kinds * h->parts, at_once),
           computing = rounds * tile_clocks(h) / POWERED_CLOCK / EFFICIENCY,
           moving = price_moving((double)(tensor_bytes(h->g.x.tensor) + tensor_bytes(h->g.y.tensor)), device),
           sums = 2.0 * h->parts * (double)contraction_elements(&h->c) * sizeof(float);
    h->seconds = 2 * PRICE_LAUNCH_SECONDS + fmax(computing, moving) + sums / COMBINING_RATE;
}

static weftStatus_t choose_tile(struct patch_wgrad *h, const struct device *device) {
    struct patch_wgrad best = *h;
    best.seconds = INFINITY;
    for (int i = 0; i < CHANNEL_BLOCKS * TILE_WIDTHS * TILE_HEIGHTS; i++) {
        if (!fit(h, channel_blocks[i / TILE_HEIGHTS / TILE_WIDTHS], tile_lines[i % TILE_HEIGHTS],
                 tile_columns[i / TILE_HEIGHTS % TILE_WIDTHS]))
            continue;
        predict(h, device);
        if (h->seconds < best.seconds)
            best = *h;
    }
    *h = best;
    if (isinf(h->seconds))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: a patch of all taps exceeds a TMA box or shared "
             "memory.",
             descriptor_label(h->c.node->op));
    h->c.splits = h->parts;
    h->c.epilogue.run = 1;
    return WEFT_STATUS_SUCCESS;
}

/* The complete plan, in the order of dependences. */
static weftStatus_t analyse(struct patch_wgrad *h, const struct region *region, const struct device *device) {
    *h = (struct patch_wgrad){0};
    TRY(hopper_check_device(device, "patch family"));
    TRY(contraction_find(&h->c, region));
    if (!conv_is(h->c.node->op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a convolution", descriptor_label(h->c.node->op));
    h->g = conv_geometry(h->c.node->op);
    TRY(check_shape(h));
    TRY(check_types(h));
    TRY(contraction_analyse_result(&h->c, &h->g));
    return choose_tile(h, device);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct patch_wgrad h;
    TRY(analyse(&h, region, device));
    offer->seconds = h.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

static void emit_structure(struct kernel_source *source, const struct patch_wgrad *h) {
    const struct conv_geometry *g = &h->g;
    const struct {
        int64_t value;
        const char *name;
    } constants[] = {{h->block, "CHANNELS"},
                     {is_volume(h), "IS_VOLUME"},
                     {g->flip, "IS_FLIPPED"},
                     {g->w.size[0], "TAPS_T"},
                     {g->w.size[1], "TAPS_R"},
                     {g->w.size[2], "TAPS_S"},
                     {g->dilation[0], "DILATION_T"},
                     {g->dilation[1], "DILATION_R"},
                     {g->dilation[2], "DILATION_S"},
                     {h->lines, "TILE_H"},
                     {h->columns, "TILE_W"},
                     {h->patch_h, "PATCH_H"},
                     {h->pitch, "PITCH"},
                     {h->stages, "STAGES"}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(source, constants[i].name, constants[i].value);
    emit_constant(source, "LEAD_IS_ROW", h->c.epilogue.lead == ROW);
    text_add(&source->constants, "using sum_t = float;\nusing index = u32;\n#include \"core/ptx_sm90.cuh\"\n");
    text_add(&source->code, "#include \"core/gather.cuh\"\n\n");
}

/* Tensor maps precede all other arguments. */
static void emit_maps(struct kernel_source *source, const struct patch_wgrad *h) {
    const struct graph *graph = h->c.region->graph;
    const struct cuda_map image = patch_map(&h->g.x, is_volume(h), h->g.c, h->g.n,
                                            (int[]){h->block, h->pitch, h->patch_h, 1}),
                          loss =
                              patch_map(&h->g.y, is_volume(h), h->g.k, h->g.n, (int[]){ROWS, h->columns, h->lines, 1});
    emit_map(source, graph_find_value(graph, h->g.x.tensor), &image, "x_map");
    emit_map(source, graph_find_value(graph, h->g.y.tensor), &loss, "loss_map");
}

static void emit_numbers(struct kernel_source *source, const struct patch_wgrad *h) {
    const struct conv_geometry *g = &h->g;
    emit_number(source, g->x.size[0], "depth");
    emit_number(source, g->pre[0], "pre_d");
    emit_number(source, g->pre[1], "pre_h");
    emit_number(source, g->pre[2], "pre_w");
    emit_number(source, g->k, "filters");
    emit_number(source, g->c, "channels");
    emit_number(source, h->tiles, "tiles");
    emit_divisor(source, g->w.size[0], "taps_t");
    emit_divisor(source, h->channel_blocks, "channel_blocks");
    emit_divisor(source, h->filter_tiles, "filter_tiles");
    emit_divisor(source, g->y.size[0], "slices");
    emit_divisor(source, h->tiles_p, "tiles_p");
    emit_divisor(source, h->tiles_q, "tiles_q");
}

static weftStatus_t emit_kernel(struct cuda_kernel *kernel, const struct patch_wgrad *h, struct arena *arena) {
    struct kernel_source source;
    weftDataType_t type = (weftDataType_t)h->g.x.tensor->type;
    kernel_source_init(&source, h->c.region);
    emit_structure(&source, h);
    emit_maps(&source, h);
    emit_numbers(&source, h);
    wgmma_emit(&source.code, h->block, type, type, WGMMA_A_REGISTERS, true);
    contraction_emit_epilogue(&source, &h->c);
    return kernel_finish(&source, kernel, "product/hopper/patch_wgrad_sm90.cuh", "patch_wgrad_sm90", arena);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct patch_wgrad h;
    struct cuda_kernel *kernel;
    (void)knobs;
    TRY(analyse(&h, &step->region, device));
    TRY(contraction_add_kernel(&kernel, step, &h.c, arena));
    if (!kernel)
        return WEFT_STATUS_SUCCESS;
    TRY(emit_kernel(kernel, &h, arena));
    contraction_set_launch(kernel, kinds_of(&h) * h.parts, THREADS, memory_of(&h).bytes);
    kernel->is_dependent = true;
    TRY(contraction_add_combine(step, &h.c, arena));
    return arena_print(arena, &step->detail,
                       "wgmma over patches of %dx%d pixels, tiles of %dx%d, %d channel%s, %d stages, %d part%s, "
                       "epilogue: %d operation%s",
                       h.patch_h, h.pitch, h.lines, h.columns, h.block, plural(h.block), h.stages, h.parts,
                       plural(h.parts), step->region.count - 1, plural(step->region.count - 1));
}

const struct family cuda_patch_wgrad_sm90 = {
    .name = "cuda.patch_wgrad_sm90",
    .doc = "a filter gradient of few channels, which reads patches once for all taps of a slice, and the pointwise "
           "operations after it, on Hopper",
    .wants_boxes = true,
    .accepts = accepts,
    .build = build,
    .may_alias = contraction_may_alias,
};
