/* SPDX-License-Identifier: Apache-2.0 */
/* The stem family of Hopper: forward convolutions of 8 channels, typical of first layers, followed by pointwise
   operations, on Hopper's tensor cores. A product of the Hopper family covers k in steps of 64 channels, seven eighths
   of which would be padding here; product/stem/stem_sm90.cuh builds k from taps. The other families handle all other
   convolutions. */
#include "base/number.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/hopper/hopper.h"
#include "engines/cuda/product/stem/stem_sm90_geometry.h"
#include "runtime/device.h"

#include <stdlib.h>

enum {
    CHANNELS = 8,      /* per pixel in shared memory, whatever the image has */
    TAPS_MAX = 121,    /* 11 x 11 */
    FILTERS_MAX = 128, /* columns of a tile */
    SUMS = 256,        /* columns of blocks of 64 rows whose sums fit in the registers of a warpgroup */
    THREADS = (1 + CONSUMER_GROUPS) * WARPGROUP, /* one producer */
};

/* POWERED_CLOCK is in Hz, at the chip's power limit. */
static const double POWERED_CLOCK = 1.5e9, LAUNCH_SECONDS = 1e-6;
static const double EFFICIENCY = 0.6; /* share of the tensor cores' rate, for a stem of 7x7 taps */

/* A tap of the filter, row r and column s. */
struct tap {
    int r, s, offset; /* in pixels, relative to a position's corner of the patch */
};

/* A tile is `lines` lines of `segments` * 64 positions, with all filters. */
struct stem {
    struct contraction c;
    struct conv_geometry g;
    const struct epilogue_operand *store;
    int filters, lines, segments, taps;
    int patch_h, patch_w; /* size of a plane of the patch; there are g.stride[2] planes */
    struct tap tap[TAPS_MAX];
    int64_t tiles_p, tiles_q, tiles;
};

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

/* True if channels are last and each pixel is at a multiple of 16 bytes, so that one copy loads all of its channels. */
static bool is_aligned(const struct conv_operand *operand) {
    return operand->channel_stride == 1 && operand->outer_stride % CHANNELS == 0 &&
           operand->size_stride[1] % CHANNELS == 0 && operand->size_stride[2] % CHANNELS == 0 &&
           operand->tensor->alignment % 16 == 0;
}

/* Checks all assumptions of the kernel except shared memory, which plan_tile checks. */
static weftStatus_t check(const struct stem *s) {
    const struct conv_geometry *g = &s->g;
    weftDataType_t a = (weftDataType_t)g->x.tensor->type, b = (weftDataType_t)g->w.tensor->type;
    if (g->direction != CONV_FORWARD || g->groups != 1 || g->c != CHANNELS || g->spatial > 2 || g->flip ||
        g->k % 32 != 0 || g->k > FILTERS_MAX || g->w.size[1] * g->w.size[2] > TAPS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: this engine computes only forward convolutions of %d channels in 1 or 2 dimensions, with 32 to %d "
             "filters "
             "in steps of 32 and at most %d taps.",
             descriptor_label(s->c.node->op), CHANNELS, FILTERS_MAX, TAPS_MAX);
    if (a != b || (s->c.arithmetic != MMA_F16 && s->c.arithmetic != MMA_BF16) || s->c.is_direct || !s->c.is_small ||
        !dtype_is_half(a))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: unsupported operand types: %s x %s; this engine multiplies half or bfloat16 summed in float",
             descriptor_label(s->c.node->op), dtype_of(a)->name, dtype_of(b)->name);
    if (!is_aligned(&g->x) || !is_aligned(&g->w) || !s->store)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: tensors must be channels last and aligned to 16 bytes, with one 16-bit result.",
             descriptor_label(s->c.node->op));
    return WEFT_STATUS_SUCCESS;
}

/* For qsort. A product covers two consecutive taps, and the distance between its halves of k must not be negative, so
   taps are sorted by address. */
static int by_offset(const void *a, const void *b) {
    return ((const struct tap *)a)->offset - ((const struct tap *)b)->offset;
}

/* A tap's column is u = s * dilation: plane u % stride, at pixel u / stride in it. Positions have a distance of
   `stride` columns, so that their pixels at one tap are adjacent in a plane. */
static void find_taps(struct stem *s) {
    const struct conv_geometry *g = &s->g;
    int planes = (int)g->stride[2], reach = (int)((g->w.size[2] - 1) * g->dilation[2]);
    /* Pixels from the first tap of the first position to the last tap of the last one, columns split into planes. */
    s->patch_h = (int)((s->lines - 1) * g->stride[1] + (g->w.size[1] - 1) * g->dilation[1] + 1);
    s->patch_w = s->segments * 64 + reach / planes;
    s->taps = 0;
    for (int r = 0; r < g->w.size[1]; r++)
        for (int q = 0; q < g->w.size[2]; q++) {
            int column = q * (int)g->dilation[2], line = r * (int)g->dilation[1];
            int offset = (column % planes * s->patch_h + line) * s->patch_w + column / planes;
            s->tap[s->taps++] = (struct tap){r, q, offset};
        }
    qsort(s->tap, (size_t)s->taps, sizeof *s->tap, by_offset);
}

static unsigned shared_bytes(const struct stem *s) {
    struct stem_sm90_shape shape = {
        .planes = (int)s->g.stride[2],
        .patch_h = s->patch_h,
        .patch_w = s->patch_w,
        .taps = s->taps,
        .block_n = s->filters,
    };
    return stem_sm90_memory_of(shape).bytes;
}

/* Chooses the number of segments that wastes the fewest columns, then as many lines as fit in registers and shared
   memory. False: not even one line fits. */
static bool plan_tile(struct stem *s) {
    int64_t positions = s->g.y.size[2], least = INT64_MAX;
    s->filters = (int)s->g.k;
    /* Blocks of 64 positions whose sums fit in the registers of a warpgroup. */
    int blocks = SUMS / s->filters, best = 1;
    for (int segments = 1; segments <= blocks && segments <= 4; segments++)
        /* Among equals the widest, because its margin is read once for more positions. */
        if (divide_up(positions, segments * 64) * segments <= least) {
            least = divide_up(positions, segments * 64) * segments;
            best = segments;
        }
    s->segments = best;
    for (s->lines = blocks / best; s->lines > 0; s->lines--) {
        find_taps(s);
        if (shared_bytes(s) <= SHARED_MAX)
            break;
    }
    s->tiles_p = s->lines ? divide_up(s->g.y.size[1], s->lines) : 0;
    s->tiles_q = divide_up(positions, s->segments * 64);
    s->tiles = s->g.n * s->tiles_p * s->tiles_q;
    return s->lines > 0;
}

/* Sets everything except the prediction. The contraction is analysed for types and epilogue, but the tile belongs to
   this family. */
static weftStatus_t analyse(struct stem *s, const struct region *region, const struct device *device) {
    TRY(hopper_check_device(device, "stem family"));
    TRY(contraction_find(&s->c, region));
    if (!conv_is(s->c.node->op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a convolution", descriptor_label(s->c.node->op));
    s->g = conv_geometry(s->c.node->op);
    TRY(contraction_analyse(&s->c, device));
    s->store = epilogue_find_half(&s->c);
    TRY(check(s));
    if (!plan_tile(s))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its filters and a patch of its image do not fit in shared memory",
             descriptor_label(s->c.node->op));
    s->c.epilogue.run = 2; /* the layout of the accumulators */
    return WEFT_STATUS_SUCCESS;
}

/* Products of two taps at a time, or moving image and result, whichever takes longer. */
static double predict(const struct stem *s, const struct device *device) {
    double bytes = (double)(tensor_bytes(s->g.x.tensor) + tensor_bytes(s->g.y.tensor));
    /* A product of 64 positions x `filters` x 16 of k takes filters / 2 clocks. */
    double clocks = (double)s->tiles * s->lines * s->segments * divide_up(s->taps, 2) * s->filters / 2;
    double computing = clocks / device->cuda.multiprocessors / POWERED_CLOCK / EFFICIENCY;
    double moving = price_moving(bytes, device);
    return LAUNCH_SECONDS + (moving > computing ? moving : computing);
}

/* Only the price needs the prediction; build makes the same plan. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct stem s;
    TRY(analyse(&s, region, device));
    offer->seconds = predict(&s, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* Constants, and the taps as tables in the order of their offsets, over which loops are unrolled. */
static void emit_structure(struct kernel_source *source, const struct stem *s) {
    const struct {
        int64_t value;
        const char *name;
    } constants[] = {{s->filters, "BLOCK_N"}, {s->lines, "LINES"},        {s->segments, "SEGMENTS"},
                     {0, "STORES_BOXES"},     {s->g.stride[2], "PLANES"}, {s->g.stride[1], "STRIDE_H"},
                     {s->patch_h, "PATCH_H"}, {s->patch_w, "PATCH_W"},    {s->taps, "TAPS"}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(source, constants[i].name, constants[i].value);
    emit_type(source, "stored", (weftDataType_t)s->g.x.tensor->type);
    text_add(&source->constants, "using sum_t = float;\nusing index = i32;\n#include \"core/ptx_sm90.cuh\"\n");
    static const char *const names[] = {"OFFSET", "R", "S"};
    for (int n = 0; n < 3; n++) {
        text_add(&source->code, "__device__ constexpr int TAP_%s[] = {", names[n]);
        for (int i = 0; i < s->taps; i++)
            text_add(&source->code, "%s%d", i ? ", " : "",
                     n == 0   ? s->tap[i].offset
                     : n == 1 ? s->tap[i].r
                              : s->tap[i].s);
        text_add(&source->code, "};\n");
    }
    text_add(&source->code, "#include \"core/gather.cuh\"\n\n");
}

/* Addresses, strides in elements, extents, and the divisors that decode a tile's number into image, line and column of
   tiles. */
static void emit_arguments(struct kernel_source *source, const struct stem *s) {
    const struct conv_operand *x = &s->g.x, *w = &s->g.w;
    const struct graph *graph = s->c.region->graph;
    const struct {
        int64_t number;
        const char *name;
    } numbers[] = {{x->outer_stride, "x_n"},      {x->size_stride[1], "x_h"}, {x->size_stride[2], "x_w"},
                   {x->size[1], "height"},        {x->size[2], "width"},      {s->g.y.size[1], "lines"},
                   {s->g.y.size[2], "positions"}, {s->g.k, "columns"},        {s->g.pre[1], "pad_h"},
                   {s->g.pre[2], "pad_w"},        {w->outer_stride, "w_k"},   {w->size_stride[1], "w_r"},
                   {w->size_stride[2], "w_s"},    {s->tiles, "tiles"}};
    emit_pointer(source, (weftDataType_t)x->tensor->type, graph_find_value(graph, x->tensor), 0, "x");
    emit_pointer(source, (weftDataType_t)w->tensor->type, graph_find_value(graph, w->tensor), 0, "w");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        emit_number(source, numbers[i].number, numbers[i].name);
    emit_divisor(source, s->tiles_p, "tiles_p");
    emit_divisor(source, s->tiles_q, "tiles_q");
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct stem s;
    struct cuda_kernel *kernel;
    struct kernel_source source;
    (void)knobs;
    TRY(analyse(&s, &step->region, device));
    TRY(contraction_add_kernel(&kernel, step, &s.c, arena));
    if (!kernel)
        return WEFT_STATUS_SUCCESS;
    kernel_source_init(&source, &step->region);
    emit_structure(&source, &s);
    emit_arguments(&source, &s);
    weftDataType_t type = (weftDataType_t)s.g.x.tensor->type;
    wgmma_emit(&source.code, s.filters, type, type, WGMMA_A_K_MAJOR, false);
    epilogue_emit(&source, &s.c);
    epilogue_emit_pairs(&source, &s.c, s.store);
    epilogue_emit_address(&source, &s.c, (int)(s.store - s.c.epilogue.at));
    TRY(kernel_finish(&source, kernel, "product/stem/stem_sm90.cuh", "stem_sm90", arena));
    /* Persistent: one block per multiprocessor, because it uses all registers. */
    int64_t blocks = device->cuda.multiprocessors;
    contraction_set_launch(kernel, s.tiles < blocks ? s.tiles : blocks, THREADS, shared_bytes(&s));
    kernel->is_dependent = true;
    return arena_print(arena, &step->detail,
                       "wgmma over taps, %d lines of %d positions x %d filters, %d taps, epilogue: %d operation%s",
                       s.lines, s.segments * 64, s.filters, s.taps, step->region.count - 1,
                       plural(step->region.count - 1));
}

const struct family cuda_stem_sm90 = {
    .name = "cuda.stem_sm90",
    .doc = "a forward convolution of 8 channels and the pointwise operations after it, on Hopper's tensor cores",
    .accepts = accepts,
    .build = build,
    .may_alias = contraction_may_alias,
};
