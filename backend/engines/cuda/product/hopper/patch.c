/* SPDX-License-Identifier: Apache-2.0 */
/* The patch family of Hopper: convolutions of stride 1 and data gradients, of images and volumes, followed by pointwise
   operations that depend only on the filter and at most one tensor with the result's layout. The Hopper family reads an
   image once per tap, which exceeds the bandwidth of L2 if few filters share it; product/hopper/patch_sm90.cuh reads it
   once. Where that is slower, the Hopper family is chosen. */
#include "base/number.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/hopper/patch.h"
#include "engines/cuda/product/hopper/patch_geometry.h"

/* Limits of the kernel. */
enum {
    THREADS = (1 + CONSUMER_GROUPS) * WARPGROUP,
    CHANNELS_MAX = 64, /* per block of channels, whose pixels are rows of 128 bytes */
    CHANNELS_MIN = 16, /* or of 32 bytes */
    STACK_MAX = 4,     /* slices of the result in the product's rows */
    TAPS_MAX = 49,     /* taps per slice of a filter: 7 x 7 */
    TAPS_T_MAX = 7,    /* slices of a filter */
    PHASES_MAX = 4,    /* maximum phases of a strided data gradient, each with its own map of results */
    KEPT_FILTER_TILES_MAX =
        8, /* maximum tiles of 64 filters; a block keeps to one of them if the filters are reduced */
};

/* Pixels of a tile, the columns of the product: limited by wgmma and by the extent of a TMA box. Less if registers also
   hold an epilogue operand; even less with reductions, or with addresses of rows that start at any pixel of an octet;
   and least with a prologue. */
enum { PIXELS_MAX = 256, PIXELS_MAX_AUX = 240, PIXELS_MAX_AUX_MORE = 208, PIXELS_MAX_AUX_PREPARED = 128 };

/* Slots in shared memory; slots of results are per warpgroup. */
enum { PATCHES_MIN = 3, PATCHES_MAX = 8, FILTERS_MIN = 4, FILTERS_MAX = 9, RESULTS_MAX = 2 };

/* Size of the tile table. */
enum { TILE_HEIGHTS = 6, TILE_WIDTHS = 12, TILES = TILE_HEIGHTS * TILE_WIDTHS };

/* Fitted to convolutions of the benchmark on an H200; clocks are per multiprocessor. */
static const double POWERED_CLOCK = 1.54e9; /* Hz, under the power limit, if all multiprocessors are busy */
static const double LAUNCH_SECONDS = 1e-6;
static const double MEMORY_SHARE = 0.85;            /* share of the bandwidth that copies reach */
static const double UNHIDDEN_SHARE = 0.2;           /* share of the shorter of computing and moving that is not
                                                       hidden */
static const double PRODUCTS_PER_CLOCK = 2048;      /* products of 16-bit operands */
static const double EFFICIENCY = 0.97;              /* share of that rate that the main loop reaches */
static const double FILL_BYTES_PER_CLOCK = 76;      /* from L2 */
static const double SHARED_BYTES_PER_CLOCK = 120;   /* reads and writes of shared memory */
static const double PROLOGUE_CLOCKS = 11;           /* clocks of a prologue for 64 channels of a pixel of both tiles */
static const double EPILOGUE_CLOCKS = 400;          /* epilogue of a tile, overlapped with the next one's products */
static const double EXPOSED_EPILOGUE_CLOCKS = 1800; /* the same if no patch is being loaded meanwhile */

/* Lines and columns of tiles; 0 lines: as many as one product covers. */
static const int tile_lines[TILE_HEIGHTS] = {0, 14, 7, 4, 2, 1};
static const int tile_columns[TILE_WIDTHS] = {7, 8, 14, 16, 28, 32, 43, 56, 64, 112, 128, 224};

/* The taps that a phase reads along a spatial dimension: number of taps, position of the first one in the filter, and
   its offset from the corner. */
struct phase_taps {
    int64_t taps, first, offset;
};

/* A spatial dimension: position i of a phase starts at pixel corner + i, and each next tap reads `move` pixels further
   on. */
struct axis {
    int64_t phases, step, move, corner, reach;
    int64_t positions; /* number of positions of the longest phase */
    struct phase_taps seen[PHASES_MAX];
};

/* Filters are the product's rows and pixels its columns, because the width of wgmma can be any multiple of 8. */
struct patch {
    struct contraction c;
    struct prologue prologue;
    struct conv_geometry g;
    struct axis axis[3];                 /* lines, columns, slices */
    const struct conv_operand *in, *out; /* the image that is read and the image that is written */
    int64_t channels, filters, blocks;
    const struct epilogue_operand *store;
    struct epilogue_operand *auxiliary;      /* epilogue operand that is loaded into the result's slot, or NULL */
    bool is_planar;                          /* each filter of the result is a plane of contiguous pixels */
    int block;                               /* channels per patch */
    int stack;                               /* slices of the result in the product's rows */
    int lines, columns;                      /* size of a tile */
    int patch_h, pitch;                      /* size of its patch in pixels */
    int patches, filter_slots, result_slots; /* in shared memory; result_slots are per warpgroup */
    bool is_resident;
    int64_t tiles_o, tiles_p, tiles_q, filter_tiles, items; /* per phase */
    int64_t lines_of_partials[SPANS];                       /* lines of partial sums in the workspace */
    double seconds;
};

/* Taps of a slice of the filter; each phase sees some of them. */
static int taps_of(const struct patch *h) { return (int)(h->g.w.size[1] * h->g.w.size[2]); }

static int phases_of(const struct patch *h) { return (int)(h->axis[0].phases * h->axis[1].phases); }

static bool is_volume(const struct patch *h) { return h->g.spatial == 3; }

/* Filters of a tile, and slices of the image that it reads. */
static int filters_of_tile(const struct patch *h) { return ROWS / h->stack; }
static int slices_of(const struct patch *h) { return (int)h->g.w.size[0] + h->stack - 1; }

static struct patch_memory memory_of(const struct patch *h) {
    struct patch_shape shape = {
        .channels = h->block,
        .stack = h->stack,
        .tile_h = h->lines,
        .tile_w = h->columns,
        .patch_h = h->patch_h,
        .pitch = h->pitch,
        .patch_slots = h->patches,
        .filter_slots = h->filter_slots,
        .result_slots = h->result_slots,
        .aux_load = h->auxiliary != NULL,
    };
    return patch_memory_of(shape);
}

/* Columns of the product. */
static int pixels_of(const struct patch *h) { return memory_of(h).pixels; }

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

/* True if channels are contiguous and strides a, b, c of 16-bit elements are multiples of 16 bytes. */
static bool is_aligned(const struct tensor *tensor, int64_t channel_stride, int64_t a, int64_t b, int64_t c) {
    return channel_stride == 1 && a % 8 == 0 && b % 8 == 0 && c % 8 == 0 && a > 0 && b > 0 && c > 0 &&
           tensor->alignment % 16 == 0 && !tensor->is_by_value && !tensor->is_constant;
}

bool patch_is_aligned(const struct conv_operand *o) {
    return is_aligned(o->tensor, o->channel_stride, o->outer_stride, o->size_stride[1], o->size_stride[2]) &&
           (o->size[0] == 1 || o->size_stride[0] % 8 == 0);
}

/* The stored tensor, which is not the product's own result if operations follow. */
static const struct tensor *result_of(const struct patch *h) {
    return h->c.region->graph->values[h->store->value].tensor;
}

/* Stride of a dimension; 8, which passes every alignment test, for dimensions that the tensor does not have. */
enum image_dim { IMAGE, SLICE, LINE, PIXEL };
static int64_t image_stride(const struct tensor *tensor, enum image_dim dim) {
    int64_t at = dim == IMAGE ? 0 : tensor->dims.count - 1 - (PIXEL - dim);
    return dim == IMAGE || at >= 2 ? tensor->strides.at[at] : 8;
}

static bool image_is_aligned(const struct tensor *tensor) {
    return is_aligned(tensor, 1, image_stride(tensor, IMAGE), image_stride(tensor, LINE),
                      image_stride(tensor, PIXEL)) &&
           image_stride(tensor, SLICE) > 0 && image_stride(tensor, SLICE) % 8 == 0;
}

/* The single store if it is planar: NCHW with the last dimension contiguous and all other strides multiples of 16
   bytes. Otherwise NULL. */
static const struct epilogue_operand *find_planar(const struct patch *h) {
    const struct epilogue *epilogue = &h->c.epilogue;
    const struct epilogue_operand *operand = NULL;
    for (int k = 0; k < epilogue->count; k++)
        if (epilogue->at[k].role == EPILOGUE_STORE) {
            if (operand || is_volume(h) || dtype_bytes(epilogue->at[k].type, 1) != 2 || h->c.phase_count > 0)
                return NULL;
            operand = &epilogue->at[k];
        }
    const struct tensor *tensor = operand ? h->c.region->graph->values[operand->value].tensor : NULL;
    int64_t last = operand ? tensor->dims.count - 1 : 0;
    for (int64_t i = 0; i < last; i++)
        if (tensor->strides.at[i] <= 0 || tensor->strides.at[i] % 8 != 0)
            return NULL;
    return operand && tensor->strides.at[last] == 1 && tensor->alignment % 16 == 0 ? operand : NULL;
}

/* One group: patches are rectangles in one slice of an image. */
static weftStatus_t check_shape(const struct patch *h) {
    const struct conv_geometry *g = &h->g;
    bool is_plain = g->direction != CONV_FILTER && g->groups == 1 && g->stride[0] == 1 && taps_of(h) <= TAPS_MAX &&
                    g->w.size[0] <= TAPS_T_MAX;
    bool has_phases = g->direction == CONV_DATA && g->stride[1] * g->stride[2] <= PHASES_MAX;
    if (!is_plain || (!has_phases && g->stride[1] * g->stride[2] != 1))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: this engine computes only convolutions of stride 1 in one group with at most %d taps, and data "
             "gradients "
             "of at most %d phases; in volumes, the taps are those of a slice, and filters have at most %d slices.",
             descriptor_label(h->c.node->op), TAPS_MAX, PHASES_MAX, TAPS_T_MAX);
    return WEFT_STATUS_SUCCESS;
}

/* Also checks the layout: channels last, so that 64 channels of a pixel are one row of the swizzle; boxes of 64
   channels are loaded, and a box of results is stored. */
static weftStatus_t check_types(const struct patch *h) {
    weftDataType_t a = (weftDataType_t)h->in->tensor->type, b = (weftDataType_t)h->g.w.tensor->type;
    bool is_half = dtype_is_half(a) && a == b;
    if (!is_half || (h->c.arithmetic != MMA_F16 && h->c.arithmetic != MMA_BF16) || h->c.is_direct || !h->c.is_small)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: unsupported operand types: %s x %s; this engine multiplies two halves or two bfloat16 summed in "
             "float.",
             descriptor_label(h->c.node->op), dtype_of(a)->name, dtype_of(b)->name);
    if (!patch_is_aligned(h->in) || !patch_is_aligned(&h->g.w) || !h->store ||
        (!h->is_planar && !image_is_aligned(result_of(h))))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: operands must be channels last and aligned to 16 bytes, with one 16-bit result.",
             descriptor_label(h->c.node->op));
    return WEFT_STATUS_SUCCESS;
}

/* Finds the first epilogue operand that has the result's layout. Planar results are stored line by line and have no
   tile into which another operand could be loaded. */
static void find_auxiliary(struct patch *h) {
    struct epilogue *epilogue = &h->c.epilogue;
    bool has_pairs = epilogue->mode_count[ROW] > 0;
    for (int k = 0; k < epilogue->count && has_pairs && h->store && !h->is_planar && !h->auxiliary; k++)
        if (epilogue_has_layout_of(&h->c, k, h->store) &&
            image_is_aligned(h->c.region->graph->values[epilogue->at[k].value].tensor)) {
            h->auxiliary = &epilogue->at[k];
            h->auxiliary->is_auxiliary = true;
        }
}

/* True if a reduction reads the result, whether or not it is part of the region. */
static bool is_reduced(const struct patch *h) {
    const struct graph *graph = h->c.region->graph;
    const struct value *value = &graph->values[h->store->value];
    for (int i = 0; i < value->readers; i++)
        if (reductions_support(&graph->nodes[value->read_by[i]]))
            return true;
    return false;
}

/* Other epilogue operands may depend on the filter, but not on the pixel. */
static weftStatus_t check_epilogue(const struct patch *h) {
    const struct epilogue *epilogue = &h->c.epilogue;
    for (int k = 0; k < epilogue->count; k++) {
        bool depends_on_pixel = epilogue->at[k].role != EPILOGUE_LOAD && epilogue->at[k].role != EPILOGUE_REDUCED;
        for (int index = BATCH; index <= ROW; index++)
            for (int d = 0; d < epilogue->mode_count[index]; d++)
                depends_on_pixel = depends_on_pixel || epilogue->at[k].strides[index][d] != 0;
        /* The tensor maps enforce the limits of phases. */
        if (depends_on_pixel && &epilogue->at[k] != h->store && &epilogue->at[k] != h->auxiliary &&
            epilogue->at[k].role != EPILOGUE_LIMIT)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
                 "%s: only operations that read nothing else, a number per filter, or one tensor with the layout of "
                 "the result "
                 "are fused after it.",
                 descriptor_label(h->c.node->op));
    }
    if (taps_of(h) * h->g.w.size[0] == 1 && (!h->auxiliary || !is_reduced(h)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: a single tap is supported only with reductions and with a tensor that has the layout of the result; "
             "otherwise "
             "the Hopper family is as fast.",
             descriptor_label(h->c.node->op));
    bool is_other = epilogue->spans[SPAN_ROW].count > 0 || h->c.phase_count > 0 || is_volume(h),
         keeps_filters = epilogue->spans[SPAN_COLUMN].count > 0;
    if (epilogue->reduction_count > 0 && (is_other || (keeps_filters && h->filters > KEPT_FILTER_TILES_MAX * 64)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: only reductions to one number or per filter, with at most %d filters, in one or two dimensions "
             "and with one phase, are fused after it.",
             descriptor_label(h->c.node->op), KEPT_FILTER_TILES_MAX * 64);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Taps and phases --------------------------------------------------------------------------------------------- */

/* Computes corner and reach over all phases; false if a phase sees nothing. Offsets become relative to the smallest
   one, so that they are not negative in kernels. */
static bool find_corner(struct axis *axis) {
    int64_t least = INT64_MAX, most = INT64_MIN;
    for (int64_t z = 0; z < axis->phases; z++) {
        const struct phase_taps *seen = &axis->seen[z];
        int64_t last = seen->offset + (seen->taps - 1) * axis->move;
        int64_t low = last < seen->offset ? last : seen->offset, high = last < seen->offset ? seen->offset : last;
        if (seen->taps == 0)
            return false;
        least = low < least ? low : least;
        most = high > most ? high : most;
    }
    for (int64_t z = 0; z < axis->phases; z++)
        axis->seen[z].offset -= least;
    axis->corner = least;
    axis->reach = most - least;
    return true;
}

/* A forward convolution has one phase, which sees all taps. */
static void find_forward(struct axis *axis, const struct conv_geometry *g, int i) {
    *axis = (struct axis){.phases = 1, .step = 1, .move = g->dilation[i], .positions = g->y.size[i]};
    axis->seen[0] = (struct phase_taps){g->w.size[i], 0, -g->pre[i]};
}

/* Elements of dx at a distance of `stride` see the same taps, in reverse order. step: the smallest number of taps after
   which the same phase recurs, stride / gcd(dilation, stride). */
static void find_backward(struct axis *axis, const struct conv_geometry *g, int i) {
    int64_t taps = g->w.size[i], stride = g->stride[i], dilation = g->dilation[i], step = 1;
    while (step * dilation % stride != 0)
        step++;
    *axis = (struct axis){.phases = stride, .step = step, .move = -(step * dilation / stride)};
    axis->positions = divide_up(g->x.size[i], stride);
    for (int64_t z = 0; z < stride; z++) {
        int64_t first = 0;
        while (first < taps && (z + g->pre[i] - first * dilation) % stride != 0)
            first++;
        axis->seen[z] = (struct phase_taps){first < taps ? (taps - 1 - first) / step + 1 : 0, first,
                                            (z + g->pre[i] - first * dilation) / stride};
    }
}

/* A flipped filter is read backwards, starting at its last tap. */
static bool find_axis(struct axis *axis, const struct conv_geometry *g, int i) {
    (g->direction == CONV_FORWARD ? find_forward : find_backward)(axis, g, i);
    if (g->flip) {
        axis->step = -axis->step;
        for (int64_t z = 0; z < axis->phases; z++)
            axis->seen[z].first = g->w.size[i] - 1 - axis->seen[z].first;
    }
    return find_corner(axis);
}

/* ---- The tile ---------------------------------------------------------------------------------------------------- */

/* All taps of the filters if they fit in addition to the patches, otherwise some stages of them. The number of patches
   is maximized first, then filters use the rest. False: even the minimum does not fit. */
static bool fit_slots(struct patch *h) {
    for (h->patches = PATCHES_MAX; h->patches >= PATCHES_MIN; h->patches--) {
        h->filter_slots = h->is_resident ? taps_of(h) * slices_of(h) : FILTERS_MAX;
        while (!h->is_resident && h->filter_slots > FILTERS_MIN && memory_of(h).bytes > SHARED_MAX)
            h->filter_slots--;
        if (memory_of(h).bytes <= SHARED_MAX)
            return true;
    }
    return false;
}

/* Tiles with one block of channels are short, so copies for the next one should be under way before they end. */
static bool fit_results(struct patch *h) {
    for (h->result_slots = h->auxiliary && h->is_resident ? RESULTS_MAX : 1; h->result_slots > 0; h->result_slots--)
        if (fit_slots(h))
            return true;
    return false;
}

/* Volumes may have too many taps to keep resident. */
static bool plan_slots(struct patch *h) {
    h->is_resident = h->blocks == 1;
    if (fit_results(h) && (!h->is_resident || slices_of(h) <= 2 * h->patches))
        return true;
    h->is_resident = false;
    return is_volume(h) && fit_results(h);
}

static double largest(double a, double b, double c) {
    double most = a > b ? a : b;
    return most > c ? most : c;
}

/* Predicted time: the maximum of products, copies into shared memory and shared memory traffic for each wave of items,
   or the time to move all bytes. bytes: the image, the result and the auxiliary operand once; filters are few. Clocks
   are per block, one of which runs on a multiprocessor. */
static double predict(const struct patch *h, const struct device *device) {
    double phases = phases_of(h), taps = taps_of(h) / phases; /* average taps of a phase */
    double items = (double)h->items * phases, blocks = device->cuda.multiprocessors;
    double waves = (double)(int64_t)(items / blocks);
    waves += waves * blocks < items;
    struct patch_memory memory = memory_of(h);
    double products = (double)memory.pixels * ROWS * CONSUMER_GROUPS * h->block * taps;
    double fill = CONSUMER_GROUPS * memory.patch_bytes + (h->is_resident ? 0 : taps * memory.filter_bytes);
    double read = CONSUMER_GROUPS * (ROWS + (double)memory.pixels) * memory.pixel_bytes * taps;
    double step = largest(products / PRODUCTS_PER_CLOCK / EFFICIENCY, fill / FILL_BYTES_PER_CLOCK,
                          (fill + read) / SHARED_BYTES_PER_CLOCK);
    if (h->c.prologue_count > 0)
        step += PROLOGUE_CLOCKS * h->patch_h * h->pitch;
    double end = h->auxiliary || h->patches > PATCHES_MIN ? EPILOGUE_CLOCKS : EXPOSED_EPILOGUE_CLOCKS;
    double computing = waves * (step * (double)h->blocks * slices_of(h) + end) / POWERED_CLOCK;
    double bytes = (double)(tensor_own_bytes(h->in->tensor) + (h->auxiliary ? 2 : 1) * tensor_own_bytes(result_of(h)));
    double moving = bytes / (double)device->cuda.bandwidth / MEMORY_SHARE;
    double longer = computing > moving ? computing : moving, shorter = computing + moving - longer;
    return LAUNCH_SECONDS + longer + UNHIDDEN_SHARE * shorter + reductions_seconds(&h->c);
}

/* Lines of a tile with this number of columns that one product covers: the largest number for which (lines - 1) * pitch
   + columns stays within PIXELS_MAX. */
static int max_lines(const struct patch *h, int columns) {
    return (PIXELS_MAX - columns) / (columns + (int)h->axis[1].reach) + 1;
}

/* Sets a tile of the table; false if it does not fit. A copy's box has at most 256 elements per dimension, which limits
   patch and pitch. Items are counted in 32 bits over both warpgroups and all phases. */
static bool set_tile(struct patch *h, int tile) {
    int lines = tile_lines[tile / TILE_WIDTHS], columns = tile_columns[tile % TILE_WIDTHS];
    lines = lines ? lines : max_lines(h, columns);
    h->lines = lines;
    h->columns = columns;
    h->patch_h = lines + (int)h->axis[0].reach;
    h->pitch = columns + (int)h->axis[1].reach;
    h->tiles_p = divide_up(h->axis[0].positions, lines);
    h->tiles_q = divide_up(h->axis[1].positions, columns);
    h->items = divide_up(h->g.n * h->tiles_o * h->tiles_p * h->tiles_q, CONSUMER_GROUPS) * h->filter_tiles;
    int most = !h->auxiliary                                            ? PIXELS_MAX
               : h->c.prologue_count > 0                                ? PIXELS_MAX_AUX_PREPARED
               : h->c.epilogue.reduction_count > 0 || h->pitch % 8 != 0 ? PIXELS_MAX_AUX_MORE
                                                                        : PIXELS_MAX_AUX;
    bool can_store = !h->is_planar || (columns % 8 == 0 && h->pitch % 2 == 0);
    return can_store && h->patch_h <= PIXELS_MAX && h->pitch <= PIXELS_MAX && pixels_of(h) <= most && plan_slots(h) &&
           h->items < INT32_MAX / CONSUMER_GROUPS / PHASES_MAX;
}

/* Few channels make narrow rows. With few filters, the product's rows hold several slices of the result. These see the
   same slices of the image except for the first and the last ones: STACK of them cost as many products as taps + STACK
   - 1. */
static void plan_product(struct patch *h) {
    int64_t slices = h->g.w.size[0];
    bool is_narrow = h->c.prologue_count == 0, stacks = slices > 1 && (h->axis[2].move == 1 || h->axis[2].move == -1);
    h->block = CHANNELS_MAX;
    while (is_narrow && h->block > CHANNELS_MIN && h->channels <= h->block / 2)
        h->block /= 2;
    h->stack = 1;
    while (stacks && h->stack < STACK_MAX && h->filters <= filters_of_tile(h) / 2)
        h->stack *= 2;
    h->blocks = divide_up(h->channels, h->block);
    h->filter_tiles = divide_up(h->filters, filters_of_tile(h));
    h->tiles_o = divide_up(h->axis[2].positions, h->stack);
}

/* Minimizes the predicted time over a table, so that a small number of kernels serves images of all sizes. Sets the
   best tile again at the end; false: none fits. */
static bool plan(struct patch *h, const struct device *device, const struct knob_choices *knobs) {
    int64_t chosen = knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE);
    int best = -1;
    if (chosen > TILES) /* row of another family's table */
        chosen = 0;
    plan_product(h);
    for (int i = 0; i < TILES; i++) {
        if ((chosen > 0 && chosen != i + 1) || !set_tile(h, i))
            continue;
        double seconds = predict(h, device);
        if (best < 0 || seconds < h->seconds) {
            h->seconds = seconds;
            best = i;
        }
    }
    return best >= 0 && set_tile(h, best);
}

/* The prologue applies to the image, whose tensor it reads: A of the product, although wgmma's A is the filter. */
static weftStatus_t find_image_prologue(struct patch *h) {
    const struct contraction *c = &h->c;
    struct conv_operand *in = h->g.direction == CONV_DATA ? &h->g.y : &h->g.x;
    if (c->operand[OPERAND_A].scaling || c->operand[OPERAND_B].scaling || c->operand[OPERAND_B].prepared != NO_PROLOGUE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: operations before it may only precede its image.",
             descriptor_label(c->node->op));
    in->tensor = c->operand[OPERAND_A].tensor;
    if (is_volume(h) && c->prologue_count > 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: operations before it are fused only on images of one or two dimensions.",
             descriptor_label(c->node->op));
    h->prologue = (struct prologue){.c = c, .vector_length = 8, .axis_count = 1, .axes = {{h->channels, 1, true}}};
    return prologue_find(&h->prologue);
}

/* Fills in the patch: the operation, its operands, then the tile. The order matters: check_types reads the store,
   find_auxiliary the epilogue's modes, and plan both. */
static weftStatus_t analyse(struct patch *h, const struct region *region, const struct device *device,
                            const struct knob_choices *knobs) {
    TRY(hopper_check_device(device, "patch family"));
    *h = (struct patch){0};
    TRY(contraction_find_prepared(&h->c, region));
    if (!conv_is(h->c.node->op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a convolution", descriptor_label(h->c.node->op));
    h->g = conv_geometry(h->c.node->op);
    bool is_data = h->g.direction == CONV_DATA;
    h->in = is_data ? &h->g.y : &h->g.x;
    h->out = is_data ? &h->g.x : &h->g.y;
    h->channels = is_data ? h->g.k : h->g.c;
    h->filters = is_data ? h->g.c : h->g.k;
    TRY(check_shape(h));
    TRY(find_image_prologue(h));
    TRY(contraction_analyse(&h->c, device));
    h->store = epilogue_find_half(&h->c);
    h->is_planar = !h->store && find_planar(h);
    h->store = h->is_planar ? find_planar(h) : h->store;
    TRY(check_types(h));
    find_auxiliary(h);
    TRY(check_epilogue(h));
    bool sees_image =
        find_axis(&h->axis[0], &h->g, 1) && find_axis(&h->axis[1], &h->g, 2) && find_axis(&h->axis[2], &h->g, 0);
    if (contraction_elements(&h->c) == 0 || h->channels == 0 || !sees_image)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it is empty, or some positions see no element.",
             descriptor_label(h->c.node->op));
    if (!plan(h, device, knobs))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: patches of its image and its filters do not fit in shared memory",
             descriptor_label(h->c.node->op));
    h->c.epilogue.reduces_stored =
        h->c.epilogue.reduction_count > 0 && reductions_read_only_value(&h->c, h->store->value);
    h->c.epilogue.lead = ROW; /* a thread has pairs of pixels */
    h->c.epilogue.run = 2;
    return WEFT_STATUS_SUCCESS;
}

/* The Hopper family reads the image once per tap, but may still be faster. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct patch h;
    TRY(analyse(&h, region, device, NULL));
    offer->seconds = h.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* Constants of patch_sm90.cuh: sizes of tile and filter are text, those of the image are not. */
static void emit_structure(struct kernel_source *source, const struct patch *h) {
    const struct conv_geometry *g = &h->g;
    const struct {
        int64_t value;
        const char *name;
    } constants[] = {{h->lines, "TILE_H"},
                     {h->columns, "TILE_W"},
                     {h->patch_h, "PATCH_H"},
                     {h->pitch, "PITCH"},
                     {h->block, "CHANNELS"},
                     {h->stack, "STACK"},
                     {is_volume(h), "IS_VOLUME"},
                     {g->w.size[0], "TAPS_T"},
                     {g->w.size[1], "TAPS_R"},
                     {g->w.size[2], "TAPS_S"},
                     {h->patches, "PATCH_SLOTS"},
                     {h->filter_slots, "FILTER_SLOTS"},
                     {h->result_slots, "RESULT_SLOTS"},
                     {h->is_resident, "IS_RESIDENT"},
                     {g->direction == CONV_DATA, "A_IS_MN_MAJOR"},
                     {h->is_planar, "IS_PLANAR"},
                     {phases_of(h) > 1, "HAS_PHASES"},
                     {h->c.prologue_count > 0, "HAS_PROLOGUE"},
                     {h->channels % 8 == 0, "CHANNELS_ARE_WHOLE"},
                     {h->auxiliary != NULL, "AUX_LOAD"},
                     {h->c.epilogue.reduces_stored, "REDUCES_STORED"}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(source, constants[i].name, constants[i].value);
    text_add(&source->constants, "using sum_t = float;\nusing index = i32;\n");
    text_add(&source->code, "#include \"core/gather.cuh\"\n\n");
}

static enum tensor_map_type map_type(int32_t type) { return type == WEFT_DATA_HALF ? TENSOR_MAP_F16 : TENSOR_MAP_BF16; }

/* A dimension of a map: number of elements, stride, and extent of a box. */
struct map_dim {
    int64_t size, stride;
    int box;
};

/* Starts with the innermost dimension; dimensions of size 0, which only volumes have, are skipped. The swizzle is that
   of a box's rows. */
static struct tensor_map_form form_of(int32_t type, const struct map_dim dims[5]) {
    int row = dims[0].box * 2;
    struct tensor_map_form form = {.type = map_type(type),
                                   .swizzle = row == 128  ? TENSOR_MAP_128B
                                              : row == 64 ? TENSOR_MAP_64B
                                                          : TENSOR_MAP_32B,
                                   .promotion = TENSOR_MAP_L2_128B};
    for (int i = 0; i < 5; i++) {
        if (dims[i].size == 0)
            continue;
        form.dims[form.rank] = (uint64_t)dims[i].size;
        form.box[form.rank] = (uint32_t)dims[i].box;
        if (form.rank > 0)
            form.strides[form.rank - 1] = (uint64_t)dims[i].stride * 2;
        form.rank++;
    }
    return form;
}

/* Columns, lines, filters and images; one line is stored at a time. Without swizzle, because the columns of a line are
   contiguous in memory and shorter than the swizzle's span. */
static struct cuda_map planar_map(const struct patch *h) {
    const struct tensor *tensor = result_of(h);
    int channel = (int)tensor->dims.count - h->g.spatial - 1;
    const struct map_dim dims[5] = {{h->out->size[2], 1, h->columns},
                                    {h->out->size[1], image_stride(tensor, LINE), 1},
                                    {h->filters, tensor->strides.at[channel], ROWS},
                                    {h->g.n, image_stride(tensor, IMAGE), 1}};
    struct cuda_map map = {.form = form_of(h->store->type, dims)};
    map.form.swizzle = TENSOR_MAP_PLAIN;
    return map;
}

/* Each phase of the result, or of an operand with its layout, is an image of its own. */
static struct cuda_map map_of_phase(const struct patch *h, const struct epilogue_operand *operand, int64_t line,
                                    int64_t column) {
    const struct tensor *tensor = h->c.region->graph->values[operand->value].tensor;
    int64_t lines = h->axis[0].phases, columns = h->axis[1].phases;
    int64_t of_line = image_stride(tensor, LINE), of_pixel = image_stride(tensor, PIXEL);
    if (h->is_planar)
        return planar_map(h);
    const struct map_dim dims[5] = {{h->filters, 1, filters_of_tile(h)},
                                    {divide_up(h->out->size[2] - column, columns), of_pixel * columns, h->columns},
                                    {divide_up(h->out->size[1] - line, lines), of_line * lines, h->lines},
                                    {is_volume(h) ? h->out->size[0] : 0, image_stride(tensor, SLICE), 1},
                                    {h->g.n, image_stride(tensor, IMAGE), 1}};
    return (struct cuda_map){.form = form_of(operand->type, dims), .offset = (line * of_line + column * of_pixel) * 2};
}

/* Emits for each phase the map of a tensor with the result's layout, or the taps that it sees. Taps are at most
   TAPS_MAX and offsets below 256, so bytes and 16-bit fields suffice. Phases with the most taps come first, because
   they take longest. */
static void emit_phases(struct kernel_source *source, const struct patch *h, const struct epilogue_operand *mapped,
                        const char *name) {
    int number = 0;
    for (int64_t taps = taps_of(h); taps > 0; taps--)
        for (int64_t z = 0; z < phases_of(h); z++) {
            int64_t line = z / h->axis[1].phases, column = z % h->axis[1].phases;
            const struct phase_taps *a = &h->axis[0].seen[line], *b = &h->axis[1].seen[column];
            if (a->taps * b->taps != taps)
                continue;
            const struct name field = named("%s%d", name, number++);
            if (mapped) {
                struct cuda_map map = map_of_phase(h, mapped, line, column);
                emit_map(source, mapped->value, &map, field.text);
            } else {
                emit_number(source,
                            a->taps | b->taps << 8 | a->first << 16 | b->first << 24 | a->offset << 32 |
                                b->offset << 48,
                            field.text);
            }
        }
}

struct cuda_map patch_map(const struct conv_operand *o, bool is_volume, int64_t channels, int64_t outer,
                          const int box[4]) {
    const struct map_dim dims[5] = {{channels, 1, box[0]},
                                    {o->size[2], o->size_stride[2], box[1]},
                                    {o->size[1], o->size_stride[1], box[2]},
                                    {is_volume ? o->size[0] : 0, o->size_stride[0], 1},
                                    {outer, o->outer_stride, box[3]}};
    return (struct cuda_map){.form = form_of(o->tensor->type, dims)};
}

/* Tensor maps precede all other arguments. For a data gradient, filters are the contiguous dimension and the product's
   rows. */
static void emit_maps(struct kernel_source *source, const struct patch *h) {
    const struct graph *graph = h->c.region->graph;
    bool is_data = h->g.direction == CONV_DATA;
    int inner = is_data ? filters_of_tile(h) : h->block, outer = is_data ? h->block : filters_of_tile(h);
    const struct cuda_map image = patch_map(h->in, is_volume(h), h->channels, h->g.n,
                                            (int[]){h->block, h->pitch, h->patch_h, 1}),
                          filters = patch_map(&h->g.w, is_volume(h), h->g.c, h->g.k, (int[]){inner, 1, 1, outer});
    emit_map(source, h->c.operand[OPERAND_A].value, &image, "x_map");
    emit_map(source, graph_find_value(graph, h->g.w.tensor), &filters, "w_map");
    emit_phases(source, h, h->store, "y_map");
    if (h->auxiliary)
        emit_phases(source, h, h->auxiliary, "b_map");
}

/* Slice j of the image, counted from corner_d, is read with tap first_t + step_t * (j - i) for slice i of the
   result. */
static void emit_slices(struct kernel_source *source, const struct patch *h) {
    const struct axis *axis = &h->axis[2];
    bool is_backwards = axis->move < 0;
    int64_t last = axis->seen[0].first + (axis->seen[0].taps - 1) * axis->step;
    emit_number(source, is_backwards ? last : axis->seen[0].first, "first_t");
    emit_number(source, is_backwards ? -axis->step : axis->step, "step_t");
    emit_number(source, axis->corner, "corner_d");
    emit_number(source, is_backwards ? -axis->move : axis->move, "move_d");
    emit_divisor(source, h->tiles_o, "tiles_o");
}

/* Emits the numbers for the item scheduler and the producer. */
static void emit_numbers(struct kernel_source *source, const struct patch *h) {
    emit_phases(source, h, NULL, "phase");
    emit_number(source, h->axis[0].step, "step_r");
    emit_number(source, h->axis[1].step, "step_s");
    emit_number(source, h->axis[0].move, "move_h");
    emit_number(source, h->axis[1].move, "move_w");
    emit_number(source, h->axis[0].corner, "corner_h");
    emit_number(source, h->axis[1].corner, "corner_w");
    emit_number(source, h->blocks, "blocks");
    emit_number(source, h->filters, "columns");
    emit_number(source, h->items * phases_of(h), "items");
    emit_divisor(source, h->items, "items_of_phase");
    emit_divisor(source, h->filter_tiles, "filter_tiles");
    emit_number(source, h->g.n, "images");
    if (h->c.prologue_count > 0) {
        emit_number(source, h->in->size[1], "x_lines");
        emit_number(source, h->in->size[2], "x_columns");
        emit_number(source, h->channels, "channels");
    }
    emit_number(source, h->out->size[1], "lines");
    emit_number(source, h->out->size[2], "positions");
    emit_divisor(source, h->tiles_p, "tiles_p");
    emit_divisor(source, h->tiles_q, "tiles_q");
    if (is_volume(h))
        emit_slices(source, h);
}

/* A block keeps the same resident filters, or the filters that it reduces, for all its items. The number of blocks is
   then a multiple of the filter tiles: item i belongs to filter tile i % filter_tiles, so a block gets the same one in
   each round. */
static int64_t active_blocks(const struct patch *h, const struct device *device) {
    int64_t blocks = device->cuda.multiprocessors, items = h->items * phases_of(h);
    if (h->is_resident || h->c.epilogue.spans[SPAN_COLUMN].count > 0)
        blocks -= blocks % h->filter_tiles;
    return items < blocks ? items : blocks;
}

/* Counts the lines of partial sums. Reductions of columns have one per consumer warpgroup of the blocks that share the
   filters, and reductions of everything have one number per warp. */
static void plan_reductions(struct patch *h, int64_t blocks) {
    h->lines_of_partials[SPAN_COLUMN] = blocks / h->filter_tiles * CONSUMER_GROUPS;
    h->lines_of_partials[SPAN_ALL] = blocks * CONSUMER_GROUPS * 4;
}

/* Maps precede all other fields, then functions follow in the order of their calls. */
static weftStatus_t emit_kernel(struct cuda_kernel *kernel, const struct patch *h, struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, h->c.region);
    emit_structure(&source, h);
    emit_maps(&source, h);
    emit_numbers(&source, h);
    for (int span = 0; span < SPANS; span++)
        if (h->c.epilogue.spans[span].count > 0)
            reductions_emit_partials(&source, &h->c, h->lines_of_partials, (enum span)span);
    /* Filters are the product's rows, pixels its columns. */
    wgmma_emit(&source.code, pixels_of(h), (weftDataType_t)h->g.w.tensor->type, (weftDataType_t)h->in->tensor->type,
               h->g.direction == CONV_DATA ? WGMMA_A_MN_MAJOR : WGMMA_A_K_MAJOR, false);
    reductions_emit_kinds(&source, &h->c);
    if (h->c.epilogue.reduces_stored)
        reductions_emit_stored(&source, &h->c, h->store);
    prologue_emit(&source, &h->prologue);
    epilogue_emit(&source, &h->c);
    epilogue_emit_pairs(&source, &h->c, h->store);
    if (h->auxiliary)
        text_add(&source.code, "DEVICE void set_aux_pair(fetched& in, u32 pair) { *(u32*)&in.f%d = pair; }\n\n",
                 (int)(h->auxiliary - h->c.epilogue.at));
    return kernel_finish(&source, kernel, "product/hopper/patch_sm90.cuh", "patch_sm90", arena);
}

/* Writes the text for explain(). */
static weftStatus_t describe(struct step *step, const struct patch *h, struct arena *arena) {
    return arena_print(
        arena, &step->detail,
        "wgmma over patches of %dx%d pixels, tiles of %s%dx%d, %d phase%s, %d patches and %d%s filter taps in shared "
        "memory%s%s%s%s, epilogue: %d operation%s",
        h->patch_h, h->pitch, is_volume(h) ? (const char *[]){"1x", "2x", "4x"}[h->stack / 2] : "", h->lines,
        h->columns, phases_of(h), plural(phases_of(h)), h->patches, h->filter_slots, h->is_resident ? " resident" : "",
        h->is_planar ? ", planar" : "", h->c.prologue_count > 0 ? ", prologue" : "",
        h->auxiliary ? ", auxiliary load" : "", h->c.epilogue.reduction_count > 0 ? ", reductions" : "",
        step->region.count - 1 - h->c.prologue_count, plural(step->region.count - 1 - h->c.prologue_count));
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct patch h;
    struct cuda_kernel *kernel;
    TRY(analyse(&h, &step->region, device, knobs));
    int64_t blocks = active_blocks(&h, device);
    plan_reductions(&h, blocks);
    step->seconds = h.seconds;
    TRY(contraction_add_kernel(&kernel, step, &h.c, arena)); /* never NULL, because analyse() refuses empty results */
    TRY(emit_kernel(kernel, &h, arena));
    contraction_set_launch(kernel, blocks, THREADS, memory_of(&h).bytes);
    kernel->is_dependent = true;
    TRY(reductions_build(step, &h.c, h.lines_of_partials, arena));
    return describe(step, &h, arena);
}

static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, TILES, 1, 0,
     "tile: 1 + 12 l + c, l and c counting tile_lines and tile_columns; 0 chooses"},
    {0},
};

const struct family cuda_patch_sm90 = {
    .name = "cuda.patch_sm90",
    .doc = "a convolution or a data gradient with pointwise operations and reductions after it, which reads patches "
           "once, on "
           "Hopper",
    .wants_boxes = true,
    .knobs = knobs,
    .accepts = accepts,
    .companions = prologue_companions,
    .build = build,
    .may_alias = contraction_may_alias,
};
