/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions a depthwise convolution into strips, blocks, bands, segments and parts. Pure functions; this file must not
   know about text. */
#include "base/number.h"
#include "engines/cuda/product/depthwise/depthwise.h"
#include "engines/cuda/product/depthwise/depthwise_geometry.h"

enum {
    STRIP_MAX = 16,       /* adjacent outputs per thread */
    THREADS_WANTED = 256, /* per block */
    BLOCKS_MAX = 8,       /* per multiprocessor */
    STAGES_MIN = 2,       /* bands in shared memory */
    STAGES_WANTED = 3,
    BAND_ROWS = 6,            /* rows of the image between barriers, for large filters */
    PRODUCTS_SHORT = 1000,    /* maximum number of products in the text of an unrolled band */
    MMA_TAPS_MIN = 16,        /* with fewer taps, scalar products are faster */
    PARTS_MAX = 512,          /* maximum parts of a filter gradient, each summed by a separate block */
    SPARE_REGISTERS = 16,     /* registers for values that are not counted: addresses, loop counters */
    PACKED_REGISTERS = 8,     /* spare registers if the channels of a block are not contiguous */
    REGISTERS_LIGHT = 128,    /* registers per thread, if many threads should be resident */
    REGISTERS_MAX = 255 - 45, /* the compiler needs some for moves */
    MMA_REGISTERS_LIGHT = 88, /* registers for sums and taps; the rest of a thread needs 40 */
    MMA_REGISTERS_MAX = 200,
    BLOCK_RESERVE = 1024, /* bytes of shared memory that the driver reserves per block */
};

enum { MMA_CHANNELS = 16 }; /* of a block with tensor cores */

/* Overhead of one kernel. */
static const double LAUNCH_SECONDS = 2e-6;
static const double PART_COST = 1.0 / 64; /* cost of one more part, relative to the time that a block takes for a
                                             patch */

/* ---- Index map of product/depthwise/index_map.cuh --------------------------------------------------------------- */

/* Number of rows of sums in registers: results that a period completes, and those that are still in progress after
   it. */
static int64_t slots(const struct depthwise *d) {
    const struct axis *h = &d->axes[HEIGHT_AXIS];
    return divide_up(axis_span(h) - 1, h->step) + max64(h->step, h->spread) / h->step;
}

/* Rows of the image per period, the shortest cycle of the pattern of inputs, taps and outputs. */
static int64_t inputs_of_period(const struct depthwise *d) {
    const struct axis *h = &d->axes[HEIGHT_AXIS];
    return max64(h->step, h->spread) / h->spread;
}

/* Columns of the image that `outputs` adjacent outputs see. */
static int64_t inputs_of(const struct depthwise *d, int64_t outputs) {
    const struct axis *w = &d->axes[WIDTH_AXIS];
    return inputs_under(outputs, w->step, axis_span(w), w->spread);
}

static struct depthwise_memory memory_of(const struct depthwise *d, int64_t stages) {
    int64_t tile = d->strip * d->strips;
    struct depthwise_shape shape = {
        .is_mma = d->is_mma,
        .channels_last = d->is_channels_last,
        .image_element = (int)bytes_of(d->image->tensor),
        .loss_element = is_filter(d) ? (int)bytes_of(d->g.y.tensor) : 0,
        .planes = d->is_mma ? d->images : d->axes[DEPTH_AXIS].taps,
        .input_rows = inputs_of_period(d) * d->band_periods,
        /* with tensor cores, tiles of 8 outputs see 16 inputs */
        .input_columns = d->is_mma ? tile + MMA_DEPTH - MMA_STRIP : inputs_of(d, tile),
        .band_periods = d->band_periods,
        .tile_w = tile,
        .channels = d->channels,
        .taps = depthwise_taps(d),
        .stages = stages,
    };
    return depthwise_memory_of(shape);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* Floats per thread: its taps, rows of sums, and a row of inputs. */
static int64_t registers_of(const struct depthwise *d, int64_t strip) {
    return depthwise_taps(d) + slots(d) * strip + inputs_of(d, strip);
}

/* Counts strips in a row of the result. For a data gradient with strides the first strip starts before the image, so
   that all strips see the same pattern. */
static int64_t strips_across(const struct depthwise *d, int64_t strip) {
    const struct axis *w = &d->axes[WIDTH_AXIS];
    return divide_up(w->out + wrap(-w->pre, w->spread), strip);
}

/* Chooses the strip whose rows need the fewest instructions: one per product, two per input, about six per output.
   `registers`: limit per thread. False: no strip fits. */
static bool choose_strip(struct depthwise *d, int64_t registers) {
    const struct axis *h = &d->axes[HEIGHT_AXIS], *w = &d->axes[WIDTH_AXIS];
    double best = 0;
    d->strip = 0;
    /* Multiples of the spread: product/depthwise/index_map.cuh asserts it. */
    for (int64_t strip = w->spread; strip <= max64(STRIP_MAX, w->spread); strip += w->spread) {
        double products = (double)(depthwise_taps(d) * strip) / (double)(h->step * w->spread);
        double cost =
            (double)strips_across(d, strip) * (products + 2.0 * (double)inputs_of(d, strip) + 6.0 * (double)strip);
        if (registers_of(d, strip) > registers || (d->strip && cost >= best))
            continue;
        best = cost;
        d->strip = strip;
    }
    return d->strip > 0;
}

/* Sets the number of adjacent strips in a block, with one thread per strip and channel; `tiles` blocks cover a row. */
static void set_strips(struct depthwise *d, int64_t strips) {
    d->strips = strips;
    d->threads = strips * d->channels;
    d->tiles = divide_up(strips_across(d, d->strip), strips);
}

/* Chooses the number of strips that wastes the least of the last block and reads the fewest margins; of equal ones the
   largest. */
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

/* Number of resident blocks, limited by registers and by shared memory, for a number of stages; 0 if not even one
   fits. */
static int64_t resident_blocks(const struct depthwise *d, const struct device *device, int64_t registers,
                               int64_t stages) {
    int64_t by_registers = device->cuda.registers_per_multiprocessor / (registers * d->threads),
            bytes = memory_of(d, stages).bytes;
    int64_t by_memory = device->cuda.shared_per_multiprocessor / (bytes + BLOCK_RESERVE);
    return bytes > device->cuda.shared_per_block ? 0 : min64(min64(by_registers, by_memory), BLOCKS_MAX);
}

/* Uses a third stage if two blocks stay resident with it; false: not even one block fits. */
static bool choose_stages(struct depthwise *d, const struct device *device, int64_t registers) {
    d->stages = resident_blocks(d, device, registers, STAGES_WANTED) >= 2 ? STAGES_WANTED : STAGES_MIN;
    d->blocks = resident_blocks(d, device, registers, d->stages);
    d->shared_bytes = memory_of(d, d->stages).bytes;
    return d->blocks > 0;
}

/* Chooses the periods per band: if the text stays short, the number after which each row of sums returns to its
   registers, unrolled, so that no sum is moved; otherwise they are unrolled in pairs. If such a band does not fit, it
   has one period. */
static bool choose_band(struct depthwise *d, const struct device *device, int64_t registers) {
    const struct axis *h = &d->axes[HEIGHT_AXIS];
    /* Rows of the result that a period completes. */
    int64_t ended = max64(h->step, h->spread) / h->step;
    bool is_short = d->is_mma || depthwise_taps(d) * d->strip * slots(d) <= PRODUCTS_SHORT;
    d->band_periods = is_short ? divide_up(slots(d), ended) : max64(BAND_ROWS / inputs_of_period(d), 1);
    d->unrolled = is_short ? d->band_periods : min64(d->band_periods, 2);
    if (choose_stages(d, device, registers))
        return true;
    d->band_periods = d->unrolled = 1;
    return choose_stages(d, device, registers);
}

/* Tensor cores are used for 16-bit images with stride 1 and filters that are large, but at most 9 columns wide. */
static bool can_use_mma(const struct depthwise *d) {
    const struct axis *depth = &d->axes[DEPTH_AXIS], *w = &d->axes[WIDTH_AXIS];
    weftDataType_t type = (weftDataType_t)d->image->tensor->type;
    bool is_half = dtype_is_half(type);
    bool is_flat = depth->taps == 1 && depth->in == 1 && depth->out == 1 && depth->pre == 0;
    return is_half && is_flat && d->is_channels_last && !is_filter(d) && (int)type == d->g.w.tensor->type &&
           depthwise_taps(d) >= MMA_TAPS_MIN && w->step == 1 && w->spread == 1 &&
           axis_span(w) <= MMA_DEPTH - MMA_STRIP + 1;
}

/* Chooses the lines of a block: adjacent strips of several images. With few strips, each reads a margin; a single image
   causes bank conflicts. False, with is_mma unset: registers or shared memory do not suffice. */
static bool choose_mma(struct depthwise *d, const struct device *device) {
    int64_t across = divide_up(d->axes[WIDTH_AXIS].out, MMA_STRIP), best = 0;
    /* Registers of a lane for its warp's two channels: rows of sums, and each row of taps as matrices. */
    int64_t registers = slots(d) * MMA_STRIP + d->axes[HEIGHT_AXIS].taps * 4;
    d->is_mma = true;
    d->strip = MMA_STRIP;
    d->channels = MMA_CHANNELS;
    d->threads = MMA_CHANNELS / 2 * 32;
    /* Cost: columns computed, margins read, and the bank conflicts of a single image. */
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
    d->is_mma = registers <= MMA_REGISTERS_MAX &&
                choose_band(d, device, registers <= MMA_REGISTERS_LIGHT ? REGISTERS_LIGHT : 256);
    return d->is_mma;
}

/* Uses tensor cores if applicable; otherwise the longest strip with which many threads can be resident, or one that
   fits in registers at all. Then the number of strips is reduced until a band fits. */
static weftStatus_t choose_block(struct depthwise *d, const struct device *device) {
    int64_t registers = REGISTERS_LIGHT, bytes = bytes_of(d->image->tensor);
    int64_t spare = SPARE_REGISTERS + (d->is_channels_last ? 0 : PACKED_REGISTERS);
    if (can_use_mma(d) && choose_mma(d, device))
        return WEFT_STATUS_SUCCESS;
    d->images = 1;
    /* A warp reads 128 bytes of adjacent channels if there are many and their elements are small. */
    d->channels = d->is_channels_last && bytes < 4 && d->g.groups > 32 ? 64 : 32;
    if (!choose_strip(d, REGISTERS_LIGHT - spare)) {
        registers = 256;
        if (!choose_strip(d, REGISTERS_MAX))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its %lld taps and %lld rows of sums exceed the registers",
                 descriptor_label(d->c.node->op), (long long)depthwise_taps(d), (long long)slots(d));
    }
    choose_strips(d);
    while (!choose_band(d, device, registers)) {
        if (d->strips == 1)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
                 "%s: the rows that its filter covers, %lld bytes, exceed the shared memory of a block",
                 descriptor_label(d->c.node->op), (long long)(STAGES_MIN * memory_of(d, STAGES_MIN).stage_bytes));
        set_strips(d, d->strips - 1);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Splits columns of the result into segments if the better balance over the chip outweighs the rows that are read
   twice. Each segment reads the rows of its first and last outputs again: twice the span of the filter. */
static void choose_segments(struct depthwise *d, const struct device *device) {
    const struct axis *h = &d->axes[HEIGHT_AXIS];
    int64_t jobs = divide_up(d->g.n, d->images) * d->axes[DEPTH_AXIS].out * d->tiles * d->channel_blocks, best = 0;
    d->segment_rows = max64(h->out, 1);
    for (int64_t segments = 1; segments <= min64(h->out, 64); segments++) {
        /* `used`: rounding may produce fewer segments than requested. */
        int64_t rows = divide_up(h->out, segments), used = divide_up(h->out, rows);
        int64_t cost = divide_up(jobs * used, device->cuda.multiprocessors) * (rows * h->step + 2 * axis_span(h));
        if (best == 0 || cost < best) {
            best = cost;
            d->segment_rows = rows;
        }
    }
    d->segments = divide_up(h->out, d->segment_rows);
    d->patches = divide_up(d->g.n, d->images) * d->axes[DEPTH_AXIS].out * d->tiles * d->segments;
}

/* Chooses the number of parts of the filter gradient's sum, which should load the chip evenly and give each
   multiprocessor enough threads to hide latencies. At least two, because combine_splits.cuh adds parts. Each part adds
   PART_COST to the combining kernel. */
static void choose_parts(struct depthwise *d, const struct device *device) {
    double best = 0;
    d->c.splits = 2;
    for (int64_t parts = 2; parts <= min64(d->patches, PARTS_MAX); parts++) {
        int64_t each = divide_up(d->patches, parts);
        int64_t waves = divide_up(parts * d->channel_blocks, device->cuda.multiprocessors);
        double threads = (double)(min64(waves, d->blocks) * d->threads);
        double slowness = threads < THREADS_WANTED ? THREADS_WANTED / threads : 1;
        double cost = (double)(each * waves) * slowness + (double)parts * PART_COST;
        if (best > 0 && cost >= best)
            continue;
        best = cost;
        d->c.splits = (int)parts;
    }
}

/* Seconds: computing or moving, whichever takes longer; filter gradients launch a second kernel. */
static void predict(struct depthwise *d, const struct device *device) {
    static const double RATE = 128 * 2 * 0.6; /* operations per clock of a multiprocessor */
    double bytes = (double)(tensor_bytes(d->g.x.tensor) + tensor_bytes(d->g.y.tensor) + tensor_bytes(d->g.w.tensor));
    double clock = device->cuda.clock_khz > 0 ? (double)device->cuda.clock_khz * 1e3 : 1.5e9;
    double computing = op_flops(d->c.node->op) / (RATE * clock * device->cuda.multiprocessors);
    double moving = bytes / (double)device->cuda.bandwidth;
    d->c.seconds = LAUNCH_SECONDS * (is_filter(d) ? 2 : 1) + (computing > moving ? computing : moving);
}

weftStatus_t depthwise_plan(struct depthwise *d, const struct device *device) {
    TRY(choose_block(d, device));
    d->channel_blocks = divide_up(d->g.groups, d->channels);
    choose_segments(d, device);
    if (is_filter(d))
        choose_parts(d, device);
    predict(d, device);
    return WEFT_STATUS_SUCCESS;
}
