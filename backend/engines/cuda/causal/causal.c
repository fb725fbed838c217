/* SPDX-License-Identifier: Apache-2.0 */
/* Causal family: causal convolutions of sequences and their gradients. The host code assigns the sequences to threads
   and emits their layouts; the device files in this folder compute:
     forward               forward.cuh
     gradients             backward.cuh or, for channels-last sequences, backward_channels.cuh, which read everything
                           once, and combine.cuh
     with long filters     forward.cuh for dS and for dX, filter.cuh, combine.cuh */
#include "graph/ops/causal_conv.h"
#include "base/number.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

#include <stdio.h>

enum {
    WARP = 32,
    THREADS_MIN = 64, /* minimum per block */
    THREADS_MOST = 256,
    ACCESS_BYTES = 16,
    TAPS_SHORT = 16,           /* maximum that stays in registers; longer filters are processed in chunks */
    TAPS_FEW = 4,              /* few enough for many threads */
    TAPS_SHORT_DOUBLE = 4,     /* TAPS_SHORT for doubles */
    CHUNK = 8,                 /* taps of a long filter per chunk */
    TAPS_RUN = 32,             /* taps of all channels of a thread */
    LAST_BYTES = 4,            /* bytes of adjacent channels per thread, so that a warp reads 128 */
    STRIPS_PER_THREAD = 2,     /* per thread, if there are enough: taps are loaded once for all of them */
    STRIPS_PER_THREAD_MAX = 4, /* the same for gradients, whose sums are stored once for all, and for longer filters */
    SEGMENT_STRIPS = 4,        /* per thread that iterates over the steps */
    WARPS_WANTED = 24,         /* per multiprocessor */
    BLOCKS_WANTED = 16,        /* per multiprocessor */
    PARTS_MAX = 65535,         /* blocks along y */
    PITCH = 8,                 /* elements that row strides in scratch are a multiple of */
};

/* The results of forward.cuh. */
enum result { RESULT_Y, RESULT_DS, RESULT_DX };

/* Strides of a sequence in elements, for a tensor or, if it is NULL, for scratch memory in the type of the sums. */
struct sequence {
    const struct tensor *tensor;
    int64_t batch, channel, step;
};

struct causal {
    const struct causal_conv_op *op;
    const struct region *region;
    bool is_backward, is_double, is_last, is_long, has_dx, has_dweight, has_dbias;
    int64_t batch, channels, steps, taps;
    int64_t chunk, chunks;              /* taps in registers, and number of chunks */
    bool shifts;                        /* sequences are unaligned, and strips begin at aligned accesses */
    bool walks;                         /* iterates over the steps, the last of which stay in registers */
    int64_t run, strip, length, strips; /* elements per access; steps per strip, and in total; parts of a sequence */
    int blocks;                         /* per multiprocessor */
    int64_t threads, groups;            /* threads of a block; number of blocks along the channels */
    int64_t parts, strips_each;         /* number of blocks along the strips, and strips of each */
    int64_t ds_bytes, ds_row;           /* dS in scratch */
};

/* ---- Supported operations ---------------------------------------------------------------------------------------- */

static bool is_stored(const struct region *region, const struct tensor *tensor) {
    return tensor && !value_is_dead(&region->graph->values[graph_find_value(region->graph, tensor)]);
}

/* Sums are computed in double if any tensor is double. */
static bool needs_double(const struct causal_conv_op *op) {
    const struct tensor *tensors[] = {op->x, op->weight, op->bias, op->y, op->dy, op->dx, op->dweight, op->dbias};
    bool is_double = op->math == WEFT_DATA_DOUBLE;
    for (int i = 0; i < 8; i++)
        is_double = is_double || (tensors[i] && tensors[i]->type == WEFT_DATA_DOUBLE);
    return is_double;
}

/* The tensors that accesses of several elements read or write. */
static int sequences_of(const struct causal *c, const struct tensor **sequences) {
    const struct tensor *tensors[] = {c->op->x, c->op->y, c->op->dy, c->has_dx ? c->op->dx : NULL};
    int count = 0;
    for (int i = 0; i < 4; i++)
        if (tensors[i])
            sequences[count++] = tensors[i];
    return count;
}

/* True if each run of adjacent elements along a dim is one aligned access, or several whole ones. */
static bool is_whole(const struct tensor *tensor, int dim, int64_t run) {
    int64_t bytes = min64(run * dtype_bytes((weftDataType_t)tensor->type, 1), ACCESS_BYTES);
    bool is_aligned = tensor->strides.at[dim] == 1 && tensor->alignment % bytes == 0;
    for (int i = 0; i < 3; i++)
        is_aligned = is_aligned && (i == dim || tensor->dims.at[i] == 1 || tensor->strides.at[i] % run == 0);
    return is_aligned;
}

/* True if accesses to all sequences become aligned by starting each of them the same number of steps early. */
static bool can_shift(const struct tensor *const *tensors, int count, int64_t run) {
    for (int i = 0; i < count; i++) {
        const int64_t *strides = tensors[i]->strides.at, *first = tensors[0]->strides.at;
        int64_t bytes = min64(run * dtype_bytes((weftDataType_t)tensors[i]->type, 1), ACCESS_BYTES);
        if (strides[CAUSAL_TIME] != 1 || tensors[i]->alignment % bytes != 0 ||
            (strides[CAUSAL_BATCH] - first[CAUSAL_BATCH]) % run != 0 ||
            (strides[CAUSAL_CHANNEL] - first[CAUSAL_CHANNEL]) % run != 0)
            return false;
    }
    return true;
}

/* Chooses as many adjacent elements as one access to all sequences can load, or fewer if the taps of as many channels
   would fill the registers. */
static void choose_run(struct causal *c) {
    const struct tensor *tensors[4];
    int count = sequences_of(c, tensors), dim = c->is_last ? CAUSAL_CHANNEL : CAUSAL_TIME;
    int64_t least = ACCESS_BYTES;
    for (int i = 0; i < count; i++)
        least = min64(least, dtype_bytes((weftDataType_t)tensors[i]->type, 1));
    int64_t taps_run = c->walks ? TAPS_RUN / 2 : TAPS_RUN;
    int64_t bytes = !c->is_last ? ACCESS_BYTES : LAST_BYTES;
    c->run = max64(bytes / least, 1);
    while (c->is_last && c->run > 1 && (c->run * c->chunk > taps_run || c->run > c->channels))
        c->run /= 2;
    int64_t most = c->run;
    for (int i = 0; i < count; i++)
        while (c->run > 1 && !is_whole(tensors[i], dim, c->run))
            c->run /= 2;
    c->shifts = c->run < most && !c->is_last && !c->is_long && can_shift(tensors, count, most);
    c->run = c->shifts ? most : c->run;
}

/* Blocks per multiprocessor that the compiler must leave registers for: the maximum without spills. For devices other
   than Hopper, it uses a few more registers for 16-bit gradients. */
static int blocks_of(const struct causal *c, const struct device *device) {
    bool is_hopper = device->cuda.major == 9;
    if (c->is_double || c->taps > TAPS_FEW)
        return 1;
    if (c->walks)
        return 3;
    return c->is_backward ? (is_hopper || c->run < 8 ? 4 : 2) : c->is_last ? 5 : 8;
}

/* Steps per strip. One access per lane covers a whole strip, so that lanes read adjacent memory; gradients and longer
   filters, whose windows are wider, use two. */
static int64_t strip_of(const struct causal *c) {
    int64_t accesses = c->is_backward || c->taps > TAPS_FEW ? 2 : 1;
    if (c->is_double || c->walks)
        return 8;
    return c->is_last ? 8 * accesses : max64(c->run, 4) * accesses;
}

/* Threads that iterate over the steps compute those at their boundaries twice, but must be numerous enough to fill the
   device; other threads compute one strip. */
static void choose_length(struct causal *c, const struct device *device) {
    int64_t lag = c->taps - 1, groups = divide_up(c->channels, WARP * c->run), strips = SEGMENT_STRIPS;
    int64_t least = max64(divide_up(4 * lag, c->strip), 1),
            warps = (int64_t)device->cuda.multiprocessors * WARPS_WANTED;
    while (c->walks && strips / 2 >= least && c->batch * divide_up(c->steps, strips * c->strip - lag) * groups < warps)
        strips /= 2;
    c->length = c->walks ? max64(strips, least) * c->strip - lag : c->strip;
    c->strips = c->steps ? divide_up(c->steps + (c->shifts ? c->run - 1 : 0), c->length) : 0;
}

/* Chooses enough blocks for every multiprocessor if there are enough strips, else one strip per thread. */
static void choose_blocks(struct causal *c, const struct device *device) {
    int64_t all = c->batch * c->strips, lanes = c->is_last ? WARP : 1;
    c->threads = THREADS_MOST;
    while (c->threads > THREADS_MIN && c->threads / lanes >= 2 * all)
        c->threads /= 2;
    int64_t workers = c->threads / lanes,
            strips_each = c->is_backward || c->taps > TAPS_FEW ? STRIPS_PER_THREAD_MAX : STRIPS_PER_THREAD;
    c->groups = divide_up(c->channels, lanes * (c->is_last ? c->run : 1));
    int64_t wanted = divide_up((int64_t)device->cuda.multiprocessors * BLOCKS_WANTED, max64(c->groups, 1));
    int64_t parts = max64(divide_up(all, workers * strips_each), min64(wanted, divide_up(all, workers)));
    /* A multiple of the number of workers: in a partial round most of them would wait. */
    c->strips_each = max64(divide_up(all, min64(max64(parts, 1), PARTS_MAX) * workers), 1) * workers;
    c->parts = divide_up(all, c->strips_each);
}

static weftStatus_t read_op(struct causal *c, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &causal_conv_op && op_of(op) != &causal_conv_bwd_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a causal convolution.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    *c = (struct causal){.op = (const struct causal_conv_op *)op, .region = region};
    const struct tensor *x = c->op->x;
    c->is_backward = op_of(op) == &causal_conv_bwd_op;
    c->batch = x->dims.at[CAUSAL_BATCH], c->channels = x->dims.at[CAUSAL_CHANNEL], c->steps = x->dims.at[CAUSAL_TIME];
    c->taps = causal_conv_taps(c->op);
    c->has_dx = is_stored(region, c->op->dx);
    c->has_dweight = is_stored(region, c->op->dweight), c->has_dbias = is_stored(region, c->op->dbias);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse(struct causal *c, const struct region *region, const struct device *device) {
    TRY(read_op(c, region));
    c->is_double = needs_double(c->op);
    /* With a single step, any layout is channels-last. */
    c->is_last = c->steps == 1 || c->op->x->strides.at[CAUSAL_TIME] != 1;
    c->is_long = c->taps > (c->is_double ? TAPS_SHORT_DOUBLE : TAPS_SHORT);
    c->chunk = c->is_long ? CHUNK : c->taps;
    c->chunks = divide_up(c->taps, c->chunk);
    c->walks = c->is_backward && c->is_last && !c->is_long;
    choose_run(c);
    c->strip = strip_of(c);
    c->blocks = blocks_of(c, device);
    choose_length(c, device);
    if (c->steps + c->taps > INT32_MAX / 2 || c->batch * c->strips > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: x is %s. Kernels count to 2^30 steps, and to 2^31 parts of %lld.",
             descriptor_label(&c->op->base), tensor_dims_text(c->op->x), (long long)c->length);
    choose_blocks(c, device);
    c->ds_row = divide_up(c->is_last ? c->channels : c->steps, PITCH) * PITCH;
    c->ds_bytes = c->batch * (c->is_last ? c->steps : c->channels) * c->ds_row * (c->is_double ? 8 : 4);
    return WEFT_STATUS_SUCCESS;
}

/* The larger of the time to access memory once, and the products at half of the device's rate. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct causal c;
    const struct tensor *tensors[4];
    TRY(analyse(&c, region, device));
    double bytes = c.is_backward && c.is_long ? 3.0 * (double)c.ds_bytes : 0;
    for (int i = sequences_of(&c, tensors); i-- > 0;)
        bytes += (double)tensor_bytes(tensors[i]);
    double clock = device->cuda.clock_khz > 0 ? (double)device->cuda.clock_khz * 1e3 : 1.5e9;
    double computing = op_flops(&c.op->base) / (128.0 * clock * (double)device->cuda.multiprocessors);
    double moving = price_moving(bytes, device);
    offer->seconds =
        PRICE_LAUNCH_SECONDS * (c.is_backward ? c.is_long ? 4 : 2 : 1) + (moving > computing ? moving : computing);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

struct name {
    char text[24];
};

static struct name named(const char *name, const char *suffix) {
    struct name suffixed;
    snprintf(suffixed.text, sizeof suffixed.text, "%s_%s", name, suffix);
    return suffixed;
}

static struct sequence sequence_of(const struct tensor *t) {
    return t ? (struct sequence){t, t->strides.at[CAUSAL_BATCH], t->strides.at[CAUSAL_CHANNEL],
                                 t->strides.at[CAUSAL_TIME]}
             : (struct sequence){0};
}

/* dS, at the beginning of scratch, in the layout of x. */
static struct sequence scratch_of(const struct causal *c) {
    return c->is_last ? (struct sequence){NULL, c->steps * c->ds_row, 1, c->ds_row}
                      : (struct sequence){NULL, c->channels * c->ds_row, c->ds_row, 1};
}

static const char *sums_type(const struct causal *c) { return c->is_double ? "double" : "float"; }

/* Emits a type and a pointer. NULL: scratch, or a pointer that the kernel does not use. */
static void emit_memory(struct kernel_source *source, const struct causal *c, const struct tensor *tensor,
                        const char *name, const char *type) {
    if (tensor) {
        emit_type(source, type, (weftDataType_t)tensor->type);
        emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(source->graph, tensor), 0, name);
    } else {
        text_add(&source->constants, "using %s = %s;\n", type, sums_type(c));
        emit_scratch(source, sums_type(c), 0, name);
    }
}

static void emit_sequence(struct kernel_source *source, const struct causal *c, struct sequence s, const char *name) {
    emit_memory(source, c, s.tensor, name, named(name, "t").text);
    emit_number(source, s.batch, named(name, "b").text);
    emit_number(source, s.channel, named(name, "c").text);
    emit_number(source, s.step, named(name, "l").text);
}

/* Emits what all kernels over strips need. */
static void emit_common(struct kernel_source *source, const struct causal *c, bool has_bias, bool is_reversed) {
    const struct tensor *weight = c->op->weight, *bias = has_bias ? c->op->bias : NULL;
    text_add(&source->constants, "using sum_t = %s;\n", sums_type(c));
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {{"CHANNELS_LAST", c->is_last},
                     {"RUN", c->run},
                     {"STRIP", c->strip},
                     {"SHIFTS", c->shifts},
                     {"THREADS", c->threads},
                     {"BLOCKS", c->blocks},
                     {"TAPS", c->chunk},
                     {"IS_LONG", c->is_long},
                     {"IS_REVERSED", is_reversed},
                     {"HAS_BIAS", bias != NULL},
                     {"IS_SILU", causal_conv_is_silu(c->op)}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        emit_constant(source, constants[i].name, constants[i].value);
    emit_number(source, c->channels, "channels");
    emit_number(source, c->steps, "steps");
    emit_number(source, c->taps, "taps");
    emit_number(source, c->chunks, "chunks");
    emit_number(source, c->batch * c->strips, "strips_all");
    emit_number(source, c->strips_each, "strips_each");
    emit_number(source, c->length, "length");
    emit_divisor(source, max64(c->strips, 1), "strips");
    emit_memory(source, c, weight, "weight", "weight_t");
    emit_number(source, weight->strides.at[0], "weight_c");
    emit_number(source, weight->strides.at[1], "weight_k");
    emit_memory(source, c, bias, "bias", "bias_t");
    emit_number(source, bias ? bias->strides.at[0] : 0, "bias_c");
}

/* Emits `partial`: the location of the blocks' sums in scratch. */
static void emit_partial(struct kernel_source *source, const struct causal *c, int64_t offset) {
    emit_scratch(source, sums_type(c), offset, "partial");
}

static void set_grid(struct cuda_kernel *kernel, const struct causal *c, int64_t chunks) {
    kernel->grid[0] = (uint32_t)c->groups;
    kernel->grid[1] = (uint32_t)c->parts;
    kernel->grid[2] = (uint32_t)chunks;
    kernel->block = (uint32_t)c->threads;
}

static weftStatus_t add_forward(struct cuda_step *state, const struct causal *c, enum result result,
                                struct arena *arena) {
    struct kernel_source source;
    struct sequence ds = scratch_of(c);
    kernel_source_init(&source, c->region);
    emit_common(&source, c, result != RESULT_DX, result == RESULT_DX);
    emit_constant(&source, "RESULT", result);
    emit_sequence(&source, c, result == RESULT_DX ? ds : sequence_of(c->op->x), "x");
    emit_sequence(&source, c, result == RESULT_DS ? sequence_of(c->op->dy) : (struct sequence){0}, "dy");
    emit_sequence(&source, c,
                  result == RESULT_Y    ? sequence_of(c->op->y)
                  : result == RESULT_DS ? ds
                                        : sequence_of(c->op->dx),
                  "y");
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "causal/forward.cuh", "causal_forward", arena));
    set_grid(kernel, c, 1);
    return WEFT_STATUS_SUCCESS;
}

/* Adds the kernel that computes all gradients at once, or only the sums. */
static weftStatus_t add_sums(struct cuda_step *state, const struct causal *c, int64_t partial, struct arena *arena) {
    struct kernel_source source;
    const struct tensor *dx = c->has_dx ? c->op->dx : NULL;
    kernel_source_init(&source, c->region);
    emit_common(&source, c, true, false);
    emit_constant(&source, "HAS_DX", dx != NULL);
    emit_sequence(&source, c, sequence_of(c->op->x), "x");
    emit_sequence(&source, c, c->is_long ? scratch_of(c) : sequence_of(c->op->dy), "dy");
    emit_sequence(&source, c, sequence_of(dx), "dx");
    emit_partial(&source, c, partial);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    if (c->is_long)
        TRY(kernel_finish(&source, kernel, "causal/filter.cuh", "causal_filter", arena));
    else if (c->walks)
        TRY(kernel_finish(&source, kernel, "causal/backward_channels.cuh", "causal_backward_channels", arena));
    else
        TRY(kernel_finish(&source, kernel, "causal/backward.cuh", "causal_backward", arena));
    set_grid(kernel, c, c->is_long ? c->chunks : 1);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_combine(struct cuda_step *state, const struct causal *c, int64_t partial, struct arena *arena) {
    struct kernel_source source;
    const struct tensor *dweight = c->has_dweight ? c->op->dweight : NULL, *dbias = c->has_dbias ? c->op->dbias : NULL;
    kernel_source_init(&source, c->region);
    text_add(&source.constants, "using sum_t = %s;\n", sums_type(c));
    emit_constant(&source, "THREADS", THREADS_MOST);
    emit_constant(&source, "HAS_DW", dweight != NULL);
    emit_constant(&source, "HAS_DB", dbias != NULL);
    emit_number(&source, c->channels, "channels");
    emit_number(&source, c->taps, "taps");
    emit_number(&source, c->parts, "parts");
    emit_memory(&source, c, dweight, "dweight", "dw_t");
    emit_number(&source, dweight ? dweight->strides.at[0] : 0, "dweight_c");
    emit_number(&source, dweight ? dweight->strides.at[1] : 0, "dweight_k");
    emit_memory(&source, c, dbias, "dbias", "db_t");
    emit_number(&source, dbias ? dbias->strides.at[0] : 0, "dbias_c");
    emit_partial(&source, c, partial);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "causal/combine.cuh", "causal_combine", arena));
    kernel->grid[0] = (uint32_t)divide_up((c->taps + 1) * c->channels, THREADS_MOST);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS_MOST;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building steps ---------------------------------------------------------------------------------------------- */

/* Scratch holds dS of long filters, followed by partial sums. For empty sequences the sums are 0: combine.cuh adds zero
   parts. */
static weftStatus_t add_gradients(struct step *step, struct cuda_step *state, const struct causal *c,
                                  struct arena *arena) {
    int64_t partial = c->is_long ? divide_up(c->ds_bytes, 64) * 64 : 0;
    step->workspace_bytes = partial + c->parts * (c->taps + 1) * c->channels * (c->is_double ? 8 : 4);
    if (c->is_long && c->parts > 0)
        TRY(add_forward(state, c, RESULT_DS, arena));
    if (c->is_long && c->has_dx && c->parts > 0)
        TRY(add_forward(state, c, RESULT_DX, arena));
    if (c->parts > 0)
        TRY(add_sums(state, c, partial, arena));
    return c->has_dweight || c->has_dbias ? add_combine(state, c, partial, arena) : WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct causal c;
    struct cuda_step *state;
    TRY(analyse(&c, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (c.channels == 0 || (c.parts == 0 && !c.is_backward))
        return arena_print(arena, &step->detail, "nothing to compute");
    if (c.is_backward)
        TRY(add_gradients(step, state, &c, arena));
    else
        TRY(add_forward(state, &c, RESULT_Y, arena));
    return arena_print(arena, &step->detail,
                       "%lld tap%s%s, strips of %lld step%s%s, %lld element%s per access%s; %d %s", (long long)c.taps,
                       plural(c.taps), c.is_long ? " in chunks of 8" : " in registers", (long long)c.strip,
                       plural(c.strip), c.is_last ? " of adjacent channels" : "", (long long)c.run, plural(c.run),
                       c.shifts ? ", shifted" : "", state->count, state->count == 1 ? "launch" : "launches");
}

const struct family cuda_causal = {
    .name = "cuda.causal",
    .doc = "depthwise causal convolutions of sequences, and their gradients",
    .accepts = accepts,
    .build = build,
};
