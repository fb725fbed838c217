/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise family: convolutions whose groups have one channel in and one
   out, forward and both gradients, and the pointwise operations behind them.
   They are bound by memory and by what surrounds each product, so taps, sums
   and a strip of the image live in registers: filter, strides and dilations are
   text here, the rest of the geometry are arguments. kernels/depthwise.cuh
   makes images, kernels/depthwise_mma.cuh those of 16 bits by tensor cores,
   kernels/depthwise_filter.cuh filters; what follows the sum is the
   contraction's. */
#include "engines/cuda/contraction.h"
#include "engines/cuda/families.h"
#include "graph/ops/convolution.h"

enum {
    STRIP_MAX = 16,
    THREADS_WANTED = 256,
    BLOCKS_MAX = 8,
    STAGES_LEAST = 2,
    STAGES_WANTED = 3,
    BAND_ROWS = 6, /* of the image, between barriers */
    PARTS_MAX = 512,
    SPARE_REGISTERS = 16,      /* beside what is counted: addresses, loop counters */
    REGISTERS_LIGHT = 128,     /* of a thread, when many threads shall be resident */
    REGISTERS_MOST = 255 - 45, /* the compiler moves some of them about */
    MMA_REGISTERS_LIGHT = 88,  /* sums and taps beside which the rest of a thread needs 40 */
    MMA_REGISTERS_MOST = 200,
    BLOCK_RESERVE = 1024, /* bytes of shared memory that the driver takes of each block */
};

/* kernels/depthwise_mma.cuh: 16 lines of 8 outputs, and what lies between
 * lines, pixels and planes for the banks' sake. */
enum { MMA_LINES = 16, MMA_STRIP = 8, MMA_DEPTH = 16, MMA_CHANNELS = 16, LINE_PAD = 1, PIXEL_PAD = 4, PLANE_PAD = 8 };

static const double LAUNCH_SECONDS = 2e-6, REACH_MAX = 1 << 30;

/* Where outputs, taps and inputs lie along a dimension; kernels/lib/lattice.cuh
 * knows what for. */
struct axis {
    int64_t taps, step, spread, dilation, pre;
    int64_t in, out; /* extents: of the image, and of the result or, in the filter
                      gradient, of dy */
};

enum { DEPTH_AXIS, HEIGHT_AXIS, WIDTH_AXIS, AXES };

struct depthwise {
    struct contraction c; /* the result and what follows it */
    struct conv_geometry g;
    const struct conv_operand *image;
    struct axis axes[AXES];
    bool is_channels_last, is_mma;
    int image_run, loss_run; /* neighbours per copy */
    int64_t strip, strips, channels, threads, band_periods, stages, blocks;
    int64_t images; /* side by side in a block */
    int64_t stage_bytes, shared_bytes;
    int64_t channel_blocks, tiles, segments, segment_rows, patches; /* patches: blocks of one channel block */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t wrap(int64_t n, int64_t size) { return (n % size + size) % size; }
static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a < 0 ? -a : a; }

static bool is_filter(const struct depthwise *d) { return d->g.direction == CONV_FILTER; }
static int64_t bytes_of(const struct tensor *tensor) { return dtype_bytes((weftDataType_t)tensor->type, 1); }

/* ---- What kernels/lib/lattice.cuh computes, too
 * ------------------------------------------------------------------ */

static int64_t span(const struct axis *axis) { return (axis->taps - 1) * axis->dilation + 1; }

/* Rows of results on their way: those that a period completes, and those that
 * it leaves. */
static int64_t slots(const struct depthwise *d) {
    const struct axis *h = &d->axes[HEIGHT_AXIS];
    return divide_up(span(h) - 1, h->step) + most(h->step, h->spread) / h->step;
}

static int64_t inputs_of_period(const struct depthwise *d) {
    const struct axis *h = &d->axes[HEIGHT_AXIS];
    return most(h->step, h->spread) / h->spread;
}

static int64_t taps(const struct depthwise *d) {
    return d->axes[DEPTH_AXIS].taps * d->axes[HEIGHT_AXIS].taps * d->axes[WIDTH_AXIS].taps;
}

static int64_t inputs_of(const struct depthwise *d, int64_t outputs) {
    const struct axis *w = &d->axes[WIDTH_AXIS];
    return ((outputs - 1) * w->step + span(w) - 1) / w->spread + 1;
}

static int64_t band_bytes(const struct depthwise *d, int64_t planes, int64_t rows, int64_t columns, int64_t bytes) {
    int64_t word = bytes < 4 ? 4 / bytes : 1, pitch = (divide_up(columns, word) | 1) * word;
    int64_t row = d->is_channels_last ? columns * d->channels : d->channels * pitch;
    return divide_up(planes * rows * row * bytes, 16) * 16;
}

static int64_t stage_bytes(const struct depthwise *d) {
    int64_t tile = d->strip * d->strips, rows = inputs_of_period(d) * d->band_periods;
    if (d->is_mma)
        return d->images * (rows * (tile + MMA_DEPTH - MMA_STRIP) * d->channels + PLANE_PAD) *
               bytes_of(d->image->tensor);
    int64_t bytes = band_bytes(d, d->axes[DEPTH_AXIS].taps, rows, inputs_of(d, tile), bytes_of(d->image->tensor));
    return bytes + (is_filter(d) ? band_bytes(d, 1, d->band_periods, tile, bytes_of(d->g.y.tensor)) : 0);
}

/* ---- Shape
 * -------------------------------------------------------------------------------------------------------
 */

static void find_axes(struct depthwise *d) {
    const struct conv_geometry *g = &d->g;
    bool is_data = g->direction == CONV_DATA;
    for (int i = 0; i < AXES; i++)
        d->axes[i] = (struct axis){
            .taps = g->w.size[i],
            .step = is_data ? 1 : g->stride[i],
            .spread = is_data ? g->stride[i] : 1,
            .dilation = g->dilation[i],
            .pre = is_data ? (g->w.size[i] - 1) * g->dilation[i] - g->pre[i] : g->pre[i],
            .in = is_data ? g->y.size[i] : g->x.size[i],
            .out = is_data ? g->x.size[i] : g->y.size[i],
        };
    d->image = is_data ? &g->y : &g->x;
}

static void add_digit(struct digits *digits, int64_t extent, int64_t dim) {
    if (extent != 1)
        digits->at[digits->count++] =
            (struct digit){.extent = extent, .dim = (int)dim, .dim_step = 1, .phase = NO_PHASE};
}

/* Rows of the result are images and positions, or taps; columns are channels.
 */
static void find_digits(struct depthwise *d) {
    const struct conv_operand *result = is_filter(d) ? &d->g.w : d->g.direction == CONV_DATA ? &d->g.x : &d->g.y;
    struct digits *digits = d->c.digits;
    for (int index = 0; index < INDICES; index++)
        digits[index].count = 0;
    if (!is_filter(d))
        add_digit(&digits[ROW], d->g.n, 0);
    for (int i = 0; i < AXES; i++)
        add_digit(&digits[ROW], result->size[i], result->tensor->dims.count - AXES + i);
    add_digit(&digits[COLUMN], d->g.groups, is_filter(d) ? 0 : 1);
    d->c.phase_count = 0;
}

static int run_of(const struct depthwise *d, const struct conv_operand *operand) {
    int64_t run = gcd(16, operand->tensor->alignment) / bytes_of(operand->tensor);
    if (!d->is_channels_last || run < 1)
        return 1;
    run = gcd(gcd(run, d->g.groups), d->g.n > 1 ? operand->outer_stride : 0);
    for (int i = 0; i < AXES; i++)
        run = gcd(run, operand->size[i] > 1 ? operand->size_stride[i] : 0);
    return (int)run;
}

static bool is_served(const struct tensor *tensor) {
    weftDataType_t type = (weftDataType_t)tensor->type;
    bool is_float = type == WEFT_DATA_FLOAT || type == WEFT_DATA_HALF || type == WEFT_DATA_BFLOAT16 ||
                    type == WEFT_DATA_FP8_E4M3 || type == WEFT_DATA_FP8_E5M2;
    return is_float && !tensor->is_by_value && !tensor->is_constant;
}

static weftStatus_t check_node(const struct depthwise *d, const struct device *device) {
    const struct conv_op *op = (const struct conv_op *)d->c.node->op;
    const char *label = descriptor_label(&op->base);
    weftDataType_t math = (weftDataType_t)op->parameters->math;
    const struct tensor *image = d->image->tensor, *second = is_filter(d) ? d->g.y.tensor : d->g.w.tensor;
    if (device->cuda.major < 8)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "%s: copies that pass by the registers begin with sm_80", label);
    if (d->g.c != 1 || d->g.k != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: its groups have %lld channels in and %lld out. One of each is "
             "served.",
             label, (long long)d->g.c, (long long)d->g.k);
    if (!is_served(image) || !is_served(second))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s and %s: floats of 8 to 32 bits in memory are served", label,
             descriptor_label(&image->base), descriptor_label(&second->base));
    if (math == WEFT_DATA_DOUBLE || (!dtype_is_float(math) && math != WEFT_DATA_FAST_FLOAT_FOR_FP8))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: sums are float here. Set compute_data_type FLOAT.", label);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_reach(const struct depthwise *d) {
    double rows = (double)d->g.n * (double)d->g.groups;
    for (int i = 0; i < AXES; i++) {
        const struct axis *axis = &d->axes[i];
        double outputs = (double)axis->out * (double)axis->step, inputs = (double)axis->in * (double)axis->spread;
        double reach = outputs + inputs + (double)span(axis) + (double)most(axis->pre, -axis->pre);
        rows *= (double)axis->out;
        if (reach > REACH_MAX || rows > INT32_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: more than 2^30 positions or 2^31 results",
                 descriptor_label(d->c.node->op));
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Plan
 * --------------------------------------------------------------------------------------------------------
 */

static int64_t registers_of(const struct depthwise *d, int64_t strip) {
    return taps(d) + slots(d) * strip + inputs_of(d, strip);
}

static int64_t strips_across(const struct depthwise *d, int64_t strip) {
    const struct axis *w = &d->axes[WIDTH_AXIS];
    return divide_up(w->out + wrap(-w->pre, w->spread), strip);
}

/* The strip whose rows take the fewest instructions: a product each, two per
 * input, about six per output. */
static bool choose_strip(struct depthwise *d, int64_t registers) {
    const struct axis *h = &d->axes[HEIGHT_AXIS], *w = &d->axes[WIDTH_AXIS];
    double best = 0;
    d->strip = 0;
    for (int64_t strip = w->spread; strip <= most(STRIP_MAX, w->spread); strip += w->spread) {
        double products = (double)(taps(d) * strip) / (double)(h->step * w->spread);
        double cost =
            (double)strips_across(d, strip) * (products + 2.0 * (double)inputs_of(d, strip) + 6.0 * (double)strip);
        if (registers_of(d, strip) > registers || (d->strip && cost >= best))
            continue;
        best = cost;
        d->strip = strip;
    }
    return d->strip > 0;
}

static void set_strips(struct depthwise *d, int64_t strips) {
    d->strips = strips;
    d->threads = strips * d->channels;
    d->tiles = divide_up(strips_across(d, d->strip), strips);
}

static void choose_strips(struct depthwise *d) {
    int64_t across = strips_across(d, d->strip), best = 0;
    for (int64_t strips = 1; strips * d->channels <= THREADS_WANTED; strips++) {
        int64_t cost = divide_up(across, strips) * (strips + 1); /* a block reads a margin, too */
        if (best && cost > best)
            continue;
        best = cost;
        set_strips(d, strips);
    }
}

/* As the kernels' struct memory. */
static int64_t shared_bytes(const struct depthwise *d, int64_t stages) {
    int64_t passing = 2 * MMA_LINES * (MMA_STRIP + LINE_PAD) * (d->channels + PIXEL_PAD) * (int64_t)sizeof(float);
    int64_t bytes = most(stages * d->stage_bytes, d->channels * (taps(d) | 1) * (int64_t)sizeof(float));
    return divide_up(bytes, 16) * 16 + (d->is_mma ? passing : 0);
}

/* How many blocks may be resident, by registers and by shared memory, for a
 * number of stages; 0: not one. */
static int64_t resident_blocks(const struct depthwise *d, const struct device *device, int64_t registers,
                               int64_t stages) {
    int64_t by_registers = device->cuda.registers_per_multiprocessor / (registers * d->threads),
            bytes = shared_bytes(d, stages);
    int64_t by_memory = device->cuda.shared_per_multiprocessor / (bytes + BLOCK_RESERVE);
    return bytes > device->cuda.shared_per_block ? 0 : least(least(by_registers, by_memory), BLOCKS_MAX);
}

/* Long bands, three of them where two blocks have room. */
static bool choose_stages(struct depthwise *d, const struct device *device, int64_t registers) {
    d->blocks = 0;
    for (int64_t rows = BAND_ROWS; rows > 0 && d->blocks == 0; rows /= 2) {
        d->band_periods = most(rows / inputs_of_period(d), 1);
        d->stage_bytes = stage_bytes(d);
        d->stages = resident_blocks(d, device, registers, STAGES_WANTED) >= 2 ? STAGES_WANTED : STAGES_LEAST;
        d->blocks = resident_blocks(d, device, registers, d->stages);
    }
    d->shared_bytes = shared_bytes(d, d->stages);
    return d->blocks > 0;
}

/* Tensor cores take 16-bit images whose filters are at most 9 columns wide and
 * walk by one. */
static bool is_for_mma(const struct depthwise *d) {
    const struct axis *depth = &d->axes[DEPTH_AXIS], *w = &d->axes[WIDTH_AXIS];
    weftDataType_t type = (weftDataType_t)d->image->tensor->type;
    bool is_half = type == WEFT_DATA_HALF || type == WEFT_DATA_BFLOAT16;
    bool is_flat = depth->taps == 1 && depth->in == 1 && depth->out == 1 && depth->pre == 0;
    return is_half && is_flat && d->is_channels_last && !is_filter(d) && (int)type == d->g.w.tensor->type &&
           w->step == 1 && w->spread == 1 && span(w) <= MMA_DEPTH - MMA_STRIP + 1;
}

/* The lines of a block: strips side by side, as many images; few strips read a
 * margin each, one image meets itself in the banks. */
static bool choose_mma(struct depthwise *d, const struct device *device) {
    int64_t across = divide_up(d->axes[WIDTH_AXIS].out, MMA_STRIP), best = 0;
    int64_t registers = slots(d) * MMA_STRIP + d->axes[HEIGHT_AXIS].taps * 4;
    d->is_mma = true;
    d->strip = MMA_STRIP;
    d->channels = MMA_CHANNELS;
    d->threads = MMA_CHANNELS / 2 * 32;
    for (int64_t strips = 1; strips <= MMA_LINES; strips *= 2) {
        int64_t images = MMA_LINES / strips, blocks = divide_up(across, strips) * divide_up(d->g.n, images);
        int64_t cost = blocks * (MMA_LINES * MMA_STRIP + MMA_STRIP * images + (images == 1 ? 20 : 0));
        if (best && cost >= best)
            continue;
        best = cost;
        d->strips = strips;
        d->images = images;
    }
    d->tiles = divide_up(across, d->strips);
    d->is_mma = registers <= MMA_REGISTERS_MOST &&
                choose_stages(d, device, registers <= MMA_REGISTERS_LIGHT ? REGISTERS_LIGHT : 256);
    return d->is_mma;
}

static weftStatus_t choose_block(struct depthwise *d, const struct device *device) {
    int64_t registers = REGISTERS_LIGHT, bytes = bytes_of(d->image->tensor);
    if (is_for_mma(d) && choose_mma(d, device))
        return WEFT_STATUS_SUCCESS;
    d->images = 1;
    d->channels = d->is_channels_last && bytes < 4 && d->g.groups > 32 ? 64 : 32;
    if (!choose_strip(d, REGISTERS_LIGHT - SPARE_REGISTERS)) {
        registers = 256;
        if (!choose_strip(d, REGISTERS_MOST))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: its %lld taps and the %lld rows of sums on their way exceed "
                 "the registers",
                 descriptor_label(d->c.node->op), (long long)taps(d), (long long)slots(d));
    }
    choose_strips(d);
    while (!choose_stages(d, device, registers)) {
        if (d->strips == 1)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: the rows under its filter, %lld bytes, exceed the shared "
                 "memory of a block",
                 descriptor_label(d->c.node->op), (long long)(STAGES_LEAST * d->stage_bytes));
        set_strips(d, d->strips - 1);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Cuts columns of the result where that spreads them better over the chip than
 * the rows read twice cost. */
static void choose_segments(struct depthwise *d, const struct device *device) {
    const struct axis *h = &d->axes[HEIGHT_AXIS];
    int64_t whole = divide_up(d->g.n, d->images) * d->axes[DEPTH_AXIS].out * d->tiles * d->channel_blocks, best = 0;
    d->segment_rows = most(h->out, 1);
    for (int64_t segments = 1; segments <= least(h->out, 64); segments++) {
        int64_t rows = divide_up(h->out, segments), used = divide_up(h->out, rows);
        int64_t cost = divide_up(whole * used, device->cuda.multiprocessors) * (rows * h->step + 2 * span(h));
        if (best == 0 || cost < best) {
            best = cost;
            d->segment_rows = rows;
        }
    }
    d->segments = divide_up(h->out, d->segment_rows);
    d->patches = divide_up(d->g.n, d->images) * d->axes[DEPTH_AXIS].out * d->tiles * d->segments;
}

/* Parts of the filter gradient's sum: as many as load the chip evenly, and each multiprocessor with more than one block,
   which hide each other's waits. Two at least: combine.cuh adds parts. */
static void choose_parts(struct depthwise *d, const struct device *device) {
    int64_t best = 0;
    d->c.splits = 2;
    for (int64_t parts = 2; parts <= least(d->patches, PARTS_MAX); parts++) {
        int64_t each = divide_up(d->patches, parts), blocks = parts * d->channel_blocks;
        int64_t waves = divide_up(blocks, device->cuda.multiprocessors), work = each * (waves == 1 ? 96 : 64 * waves);
        if (best && work + parts >= best)
            continue;
        best = work + parts;
        d->c.splits = (int)parts;
    }
}

static void predict(struct depthwise *d, const struct device *device) {
    static const double RATE = 128 * 2 * 0.6; /* operations per clock of a multiprocessor */
    double bytes = (double)(tensor_bytes(d->g.x.tensor) + tensor_bytes(d->g.y.tensor) + tensor_bytes(d->g.w.tensor));
    double clock = device->cuda.clock_khz > 0 ? (double)device->cuda.clock_khz * 1e3 : 1.5e9;
    double computing = op_flops(d->c.node->op) / (RATE * clock * device->cuda.multiprocessors);
    double moving = bytes / (double)device->cuda.bandwidth;
    d->c.seconds = LAUNCH_SECONDS * (is_filter(d) ? 2 : 1) + (computing > moving ? computing : moving);
}

static weftStatus_t analyse(struct depthwise *d, const struct region *region, const struct device *device) {
    *d = (struct depthwise){0};
    TRY(contraction_find(&d->c, region));
    if (!conv_is(d->c.node->op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is no convolution", descriptor_label(d->c.node->op));
    d->g = conv_geometry(d->c.node->op);
    find_axes(d);
    TRY(check_node(d, device));
    TRY(check_reach(d));
    find_digits(d);
    d->c.arithmetic = FMA_FLOAT;
    d->c.is_small = true;
    d->c.splits = 1;
    TRY(finish_analyse(&d->c));
    d->is_channels_last = d->image->group_stride == 1 && (!is_filter(d) || d->g.y.group_stride == 1);
    d->image_run = run_of(d, d->image);
    d->loss_run = run_of(d, &d->g.y);
    TRY(choose_block(d, device));
    d->channel_blocks = divide_up(d->g.groups, d->channels);
    choose_segments(d, device);
    if (is_filter(d))
        choose_parts(d, device);
    predict(d, device);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct depthwise d;
    TRY(analyse(&d, region, device));
    *seconds = d.c.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Printing
 * ----------------------------------------------------------------------------------------------------
 */

static void print_structure(struct kernel_print *print, const struct depthwise *d) {
    static const char letters[] = "DHW";
    const struct axis *depth = &d->axes[DEPTH_AXIS];
    for (int i = 0; i < AXES; i++) {
        const struct axis *axis = &d->axes[i];
        print_constant(print, named("TAPS_%c", letters[i]).text, axis->taps);
        if (i == DEPTH_AXIS) /* there are few planes, walked one by one: their steps
                            are arguments */
            continue;
        print_constant(print, named("STEP_%c", letters[i]).text, axis->step);
        print_constant(print, named("SPREAD_%c", letters[i]).text, axis->spread);
        print_constant(print, named("DILATION_%c", letters[i]).text, axis->dilation);
    }
    print_constant(print, "HAS_DEPTH", depth->taps != 1 || depth->in != 1 || depth->out != 1 || depth->pre != 0);
    print_constant(print, "STRIP", d->strip);
    print_constant(print, "STRIPS", d->strips);
    print_constant(print, "CHANNELS", d->channels);
    print_constant(print, "CHANNELS_LAST", d->is_channels_last);
    print_constant(print, "IMAGE_RUN", d->image_run);
    print_constant(print, "BAND_PERIODS", d->band_periods);
    print_constant(print, "STAGES", d->stages);
    print_constant(print, "THREADS", d->threads);
    print_constant(print, "BLOCKS", d->blocks);
}

static void print_operand(struct kernel_print *print, const struct depthwise *d, const struct conv_operand *operand,
                          const char *name) {
    static const char letters[] = "dhw";
    const struct tensor *tensor = operand->tensor;
    print_type(print, named("%s_t", name).text, (weftDataType_t)tensor->type);
    print_pointer(print, (weftDataType_t)tensor->type, graph_find_value(d->c.region->graph, tensor), 0, name);
    print_number(print, operand->outer_stride, named("%s_n", name).text);
    print_number(print, operand->group_stride, named("%s_c", name).text);
    for (int i = 0; i < AXES; i++)
        print_number(print, operand->size_stride[i], named("%s_%c", name, letters[i]).text);
}

static void print_geometry(struct kernel_print *print, const struct depthwise *d) {
    static const char *const names[] = {"depth", "height", "width"};
    const struct axis *depth = &d->axes[DEPTH_AXIS], *height = &d->axes[HEIGHT_AXIS], *width = &d->axes[WIDTH_AXIS];
    for (int i = 0; i < AXES; i++) {
        print_number(print, d->axes[i].in, named("%s_in", names[i]).text);
        print_number(print, d->axes[i].out, named("%s_out", names[i]).text);
    }
    print_number(print, depth->step, "step_d");
    print_number(print, depth->spread, "spread_d");
    print_number(print, depth->dilation, "dilation_d");
    print_number(print, depth->pre, "pre_d");
    print_number(print, height->pre, "pre_h");
    print_number(print, width->pre, "pre_w");
    print_number(print, wrap(-width->pre, width->spread), "shift_w");
    print_number(print, d->segment_rows, "segment_rows");
    print_number(print, d->g.groups, "channels");
    print_number(print, d->g.n, "images");
    print_divisor(print, d->channel_blocks, "channel_blocks");
    print_divisor(print, d->tiles, "tiles_w");
    print_divisor(print, d->segments, "segments");
    print_divisor(print, depth->out, "depths");
}

/* The data gradient meets the taps in reverse, and so does a flipped filter. */
static void print_taps(struct kernel_print *print, const struct depthwise *d) {
    static const char letters[] = "dhw";
    const struct conv_operand *w = &d->g.w;
    bool is_reversed = d->g.flip != (d->g.direction == CONV_DATA);
    int64_t first = 0;
    print_pointer(print, (weftDataType_t)w->tensor->type, graph_find_value(d->c.region->graph, w->tensor), 0, "filter");
    for (int i = 0; i < AXES; i++) {
        first += is_reversed ? (w->size[i] - 1) * w->size_stride[i] : 0;
        print_number(print, is_reversed ? -w->size_stride[i] : w->size_stride[i], named("filter_%c", letters[i]).text);
    }
    print_number(print, w->group_stride, "filter_c");
    print_number(print, first, "filter_first");
}

static weftStatus_t build_kernel(struct cuda_kernel *kernel, struct depthwise *d, struct arena *arena) {
    struct kernel_print print;
    if (!is_filter(d) && (!d->is_mma || d->c.finish.lead == ROW))
        d->c.finish.run = 1; /* a thread has no neighbours but along the width, and
                            these in registers */
    kernel_print_init(&print, d->c.region->graph);
    text_add(&print.constants, "using sum_t = float;\nusing index = u32;\n");
    text_add(&print.code, "#include \"lib/gather.cuh\"\n\n");
    print_constant(&print, "LEAD_IS_ROW", d->c.finish.lead == ROW);
    print_structure(&print, d);
    print_operand(&print, d, d->image, "image");
    print_geometry(&print, d);
    if (is_filter(d)) {
        print_operand(&print, d, &d->g.y, "loss");
        print_constant(&print, "LOSS_RUN", d->loss_run);
        print_constant(&print, "IS_FLIPPED", d->g.flip);
        print_number(&print, d->patches, "patches");
    } else {
        print_taps(&print, d);
    }
    contraction_print_end(&print, &d->c);
    if (is_filter(d))
        TRY(kernel_finish(&print, kernel, "depthwise_filter.cuh", "depthwise_filter", arena));
    else if (d->is_mma)
        TRY(kernel_finish(&print, kernel, "depthwise_mma.cuh", "depthwise_mma", arena));
    else
        TRY(kernel_finish(&print, kernel, "depthwise.cuh", "depthwise", arena));
    kernel->grid[0] = (uint32_t)((is_filter(d) ? d->c.splits : d->patches) * d->channel_blocks);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)d->threads;
    kernel->shared_bytes = (uint32_t)d->shared_bytes;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct depthwise d;
    struct cuda_step *state;
    (void)knobs;
    TRY(analyse(&d, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    int64_t elements = contraction_elements(&d.c);
    if (elements == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    TRY(build_kernel(&state->kernels[state->count++], &d, arena));
    if (is_filter(&d)) {
        TRY(contraction_build_combine(&state->kernels[state->count++], &d.c, arena));
        step->workspace_bytes = divide_up(elements * d.c.splits * (int64_t)sizeof(float), 64) * 64;
    }
    return arena_print(arena, &step->detail,
                       "%s%lld taps in registers, strips of %lld, %lld in a block of %lld "
                       "channels, %lld segments of %lld rows, "
                       "%d parts, %d operations behind",
                       d.is_mma ? "tensor cores, " : "", (long long)taps(&d), (long long)d.strip, (long long)d.strips,
                       (long long)d.channels, (long long)d.segments, (long long)d.segment_rows, d.c.splits,
                       d.c.region->count - 1);
}

const struct family cuda_depthwise = {
    .name = "cuda.depthwise",
    .doc = "a convolution with one channel per group, and the pointwise "
           "operations behind it",
    .accepts = accepts,
    .build = build,
    .load = cuda_load,
    .run = cuda_run,
    .may_alias = contraction_may_alias,
    .release = cuda_release,
};
