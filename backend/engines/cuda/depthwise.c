/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise family: convolutions whose channels each have a filter of their own, forward and, with stride 1, the data
   gradient, in 16 bits and channels last, and the pointwise operations behind them. They do few products per element, so
   what counts is that each element is loaded once: kernels/depthwise.cuh keeps a patch of the image in shared memory.
   Other depthwise convolutions are the contraction family's. */
#include "engines/cuda/contraction.h"
#include "engines/cuda/families.h"
#include "graph/ops/convolution.h"

enum {
    TAPS_MAX = 7,
    STRIDE_MAX = 2,
    STRIP = 7, /* pixels of a warp; four strips side by side are 28, a common width */
    STRIPS = 4,
    ROWS = 2,
    WARPS = 8,
    CHANNELS = 64,
};

static const double FMA_PER_CLOCK = 128 * 0.6; /* of a multiprocessor, beside conversions and loads */
static const double LAUNCH_SECONDS = 1e-6;

struct depthwise {
    struct contraction c;
    struct conv_geometry g;
    struct conv_operand image, result; /* what is walked, what is made */
    int64_t pre[3];
};

/* ---- Accepting ---------------------------------------------------------------------------------------------------- */

static bool is_channels_last(const struct conv_operand *operand) {
    return operand->group_stride == 1 && operand->size_stride[2] > 0 && operand->size_stride[2] % 8 == 0 &&
           operand->size_stride[1] % 8 == 0 && operand->outer_stride % 8 == 0 && operand->tensor->alignment % 16 == 0;
}

/* Whether the results, in the order of the digits, are images, lines, columns and channels. */
static bool counts_pixels(const struct depthwise *d) {
    const struct digits *batch = &d->c.digits[BATCH];
    int64_t extents[] = {d->g.n, d->result.size[1], d->result.size[2], d->g.groups};
    int at = 0;
    for (int i = 0; i < 4; i++)
        if (extents[i] != 1) {
            if (at == batch->count || batch->at[at].extent != extents[i])
                return false;
            at++;
        }
    return at == batch->count;
}

static weftStatus_t check_geometry(const struct depthwise *d) {
    const struct conv_geometry *g = &d->g;
    bool fits = g->groups > 1 && g->c == 1 && g->k == 1 && g->groups % 8 == 0 && !g->flip && g->spatial <= 2;
    for (int i = 1; i < 3; i++)
        fits = fits && g->w.size[i] <= TAPS_MAX && g->dilation[i] == 1 && g->stride[i] == g->stride[2];
    fits = fits && g->stride[2] <= (g->direction == CONV_DATA ? 1 : STRIDE_MAX) && g->direction != CONV_FILTER;
    if (!fits)
        FAIL(
            WEFT_STATUS_NOT_SUPPORTED_SHAPE,
            "%s: depthwise convolutions forward or, with stride 1, to data are computed here, of at most 2 dimensions, "
            "filters to %dx%d, strides to %d, no dilation, channels in eights.",
            descriptor_label(d->c.node->op), TAPS_MAX, TAPS_MAX, STRIDE_MAX);
    weftDataType_t a = (weftDataType_t)d->image.tensor->type, b = (weftDataType_t)g->w.tensor->type;
    if (a != b || (a != WEFT_DATA_HALF && a != WEFT_DATA_BFLOAT16) || d->c.arithmetic != FMA_FLOAT)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: half or bfloat16 summed in float is computed here, not %s and %s", descriptor_label(d->c.node->op),
             dtype_of(a)->name, dtype_of(b)->name);
    if (!is_channels_last(&d->image) || !counts_pixels(d) || d->c.finish.run < 2 || !d->c.is_small || !d->c.is_direct)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: tensors must be channels last, aligned to 16 bytes",
             descriptor_label(d->c.node->op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse(struct depthwise *d, const struct region *region, const struct device *device) {
    TRY(contraction_find(&d->c, region));
    if (!conv_is(d->c.node->op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is no convolution", descriptor_label(d->c.node->op));
    d->g = conv_geometry(d->c.node->op);
    bool is_data = d->g.direction == CONV_DATA;
    d->image = is_data ? d->g.y : d->g.x;
    d->result = is_data ? d->g.x : d->g.y;
    for (int i = 0; i < 3; i++)
        d->pre[i] = is_data ? d->g.w.size[i] - 1 - d->g.pre[i] : d->g.pre[i];
    TRY(contraction_plan(&d->c, device, NULL));
    TRY(check_geometry(d));
    d->c.finish.run = 2;
    d->c.splits = 1;
    return WEFT_STATUS_SUCCESS;
}

static double predict(const struct depthwise *d, const struct device *device) {
    double bytes = (double)(tensor_bytes(d->image.tensor) + tensor_bytes(d->result.tensor));
    double products = (double)contraction_elements(&d->c) * d->c.depth;
    double clock = device->cuda.clock_khz > 0 ? (double)device->cuda.clock_khz * 1e3 : 1.5e9;
    double moving = bytes / (double)device->cuda.bandwidth;
    double computing = products / (FMA_PER_CLOCK * device->cuda.multiprocessors * clock);
    return LAUNCH_SECONDS + (moving > computing ? moving : computing);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct depthwise d;
    TRY(analyse(&d, region, device));
    *seconds = predict(&d, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ----------------------------------------------------------------------------------------------------- */

static int64_t parts(int64_t extent, int64_t part) { return (extent + part - 1) / part; }

static void print_structure(struct kernel_print *print, const struct depthwise *d) {
    print_constant(print, "TAPS_R", d->g.w.size[1]);
    print_constant(print, "TAPS_S", d->g.w.size[2]);
    print_constant(print, "STRIDE", d->g.stride[2]);
    print_constant(print, "ROWS", ROWS);
    print_constant(print, "STRIP", STRIP);
    print_constant(print, "IS_TURNED", d->g.direction == CONV_DATA);
    print_type(print, "stored", (weftDataType_t)d->image.tensor->type);
    text_add(&print->constants, "using sum_t = float;\nusing index = i32;\n");
    text_add(&print->code, "#include \"lib/gather.cuh\"\n\n");
}

static int64_t print_arguments(struct kernel_print *print, const struct depthwise *d) {
    const struct conv_operand *x = &d->image, *w = &d->g.w, *y = &d->result;
    const struct graph *graph = d->c.region->graph;
    const struct {
        int64_t number;
        const char *name;
    } numbers[] = {{x->outer_stride, "x_n"},  {x->size_stride[1], "x_h"}, {x->size_stride[2], "x_w"},
                   {x->size[1], "height"},    {x->size[2], "width"},      {y->size[1], "lines"},
                   {y->size[2], "columns"},   {d->g.groups, "channels"},  {d->pre[1], "pad_h"},
                   {d->pre[2], "pad_w"},      {w->group_stride, "w_c"},   {w->size_stride[1], "w_r"},
                   {w->size_stride[2], "w_s"}};
    print_pointer(print, (weftDataType_t)x->tensor->type, graph_find_value(graph, x->tensor), 0, "x");
    print_pointer(print, (weftDataType_t)w->tensor->type, graph_find_value(graph, w->tensor), 0, "w");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        print_number(print, numbers[i].number, numbers[i].name);
    int64_t tiles_p = parts(y->size[1], WARPS / STRIPS * ROWS), tiles_q = parts(y->size[2], STRIPS * STRIP);
    int64_t tiles_c = parts(d->g.groups, CHANNELS);
    print_divisor(print, tiles_p, "tiles_p");
    print_divisor(print, tiles_q, "tiles_q");
    print_divisor(print, tiles_c, "tiles_c");
    return d->g.n * tiles_p * tiles_q * tiles_c;
}

static uint32_t shared_bytes(const struct depthwise *d) {
    int64_t stride = d->g.stride[2], taps_r = d->g.w.size[1], taps_s = d->g.w.size[2];
    int64_t height = (WARPS / STRIPS * ROWS - 1) * stride + taps_r, width = (STRIPS * STRIP - 1) * stride + taps_s;
    return (uint32_t)(height * width * CHANNELS * 2 + taps_r * taps_s * CHANNELS * (int64_t)sizeof(float));
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct depthwise d;
    struct cuda_step *state;
    struct kernel_print print;
    (void)knobs;
    TRY(analyse(&d, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (contraction_elements(&d.c) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    kernel_print_init(&print, step->region.graph);
    print_structure(&print, &d);
    int64_t tiles = print_arguments(&print, &d);
    finish_print(&print, &d.c);
    TRY(kernel_finish(&print, kernel, "depthwise.cuh", "depthwise", arena));
    kernel->grid[0] = (uint32_t)tiles;
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = WARPS * 32;
    kernel->shared_bytes = shared_bytes(&d);
    return arena_print(arena, &step->detail, "depthwise %lldx%lld, patches of %dx%d pixels, %d operations behind",
                       (long long)d.g.w.size[1], (long long)d.g.w.size[2], WARPS / STRIPS * ROWS, STRIPS * STRIP,
                       step->region.count - 1);
}

const struct family cuda_depthwise = {
    .name = "cuda.depthwise",
    .doc = "a depthwise convolution in 16 bits and channels last, and the pointwise operations behind it",
    .accepts = accepts,
    .build = build,
    .load = cuda_load,
    .run = cuda_run,
    .may_alias = contraction_may_alias,
    .release = cuda_release,
};
