/* SPDX-License-Identifier: Apache-2.0 */
/* The window family: one pooling or interpolation, or its gradient, in one sweep over its result. The host half decides and
   prints constants: small windows in whole steps are the pool kernels' (window.h), all others window/window.cuh's and
   window_bwd.cuh's, and window/geometry.cuh knows the geometry. */
#include "engines/cuda/window/window.h"
#include "base/number.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 256, LONGEST_RUN = 16, UNROLLED_TAPS = 16, DIGITS_MAX = 6 };

/* Of the pool kernels: what registers hold, and what is worth unrolling. */
enum {
    POOL_RUN = 8,
    POOL_TAPS = 64,
    POOL_SHARED_TAPS = 25,
    POOL_STEP = 4,
    POOL_SIDES = 9,
    POOL_REACHING = 16,
    POOL_FOUND_AGAIN = 4,
    POOL_ROWS = 4,
    TEAM_MAX = 16,
    AHEAD = 528,
    LOOSE_ACCESS = 2,    /* bytes */
    LOOSE_CHANNELS = 32, /* bytes */
    LOOSE_BYTES = 18 << 10
};

static const double INT32_REACH = 1 << 30;
static const double LAUNCH_SECONDS = 2e-6;

static double product(const int64_t *numbers) { return (double)numbers[0] * (double)numbers[1] * (double)numbers[2]; }

/* ---- Accepting ---------------------------------------------------------------------------------------------------- */

static weftStatus_t check_tensor(const struct window *w, const struct tensor *tensor) {
    if (!tensor)
        return WEFT_STATUS_SUCCESS;
    TRY(tensor_check_plain(tensor, w->op));
    if (!cuda_type_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
             descriptor_label(w->op), descriptor_label(&tensor->base), dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* How many channels of an operand one access takes. */
static int64_t channels_per_access(const struct resample_operand *operand) {
    if (operand->channel_stride != 1)
        return 1;
    int64_t fits = gcd64(operand->tensor->alignment, 16) / dtype_bytes((weftDataType_t)operand->tensor->type, 1);
    int64_t run = gcd64(fits > 1 ? fits : 1, operand->batch_stride);
    for (int i = 0; i < 3; i++)
        run = gcd64(run, operand->size[i] > 1 ? operand->size_stride[i] : 0);
    return run;
}

static bool is_stored(const struct region *region, const struct tensor *tensor) {
    int value = tensor ? graph_find_value(region->graph, tensor) : -1;
    return value >= 0 && !value_is_dead(&region->graph->values[value]);
}

/* The gradient of a mean whose windows go step by step is such a mean itself, of dy. */
static void turn_mean(struct window *w) {
    struct resample_geometry *g = &w->g;
    bool is_mean = (g->mode == WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING && g->padding != WEFT_EDGE_VAL_PAD) ||
                   (g->mode == WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING && !window_has_padding(g));
    struct resample_operand dx = g->x;
    for (int i = 0; i < 3; i++)
        is_mean = is_mean && g->denominator[i] == 1 && g->step[i] == 1;
    if (!g->backward || !is_mean)
        return;
    g->backward = false;
    g->mode = WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING;
    g->padding = WEFT_ZERO_PAD;
    g->x = g->y;
    g->y = dx;
    g->saved.tensor = NULL;
    for (int i = 0; i < 3; i++)
        g->offset[i] = g->taps[i] - 1 - g->offset[i];
}

static void find_reach(struct window *w) {
    const struct resample_geometry *g = &w->g;
    for (int i = 0; i < 3; i++) {
        double y = ((double)g->y.size[i] + 1) * (double)g->step[i] + fabs((double)g->offset[i]);
        double x = ((double)g->x.size[i] + (double)g->taps[i] + 1) * (double)g->denominator[i];
        w->is_wide = w->is_wide || x + y > INT32_REACH;
    }
}

/* ---- Patches ------------------------------------------------------------------------------------------------------ */

/* Positions that reach into a patch of dx, along one axis. */
static int64_t reaching(const struct window *w, int axis) {
    return (w->g.taps[axis] - 1) / w->g.step[axis] + w->patch[axis];
}

static bool forward_fits(const struct window *w) {
    int64_t loads = w->g.taps[0];
    for (int i = 1; i < 3; i++)
        loads *= (w->patch[i] - 1) * w->g.step[i] + w->g.taps[i];
    return loads <= POOL_LOADS;
}

static bool backward_fits(const struct window *w) {
    int64_t sides = w->patch[1] * w->g.step[1] * w->patch[2] * w->g.step[2], all = reaching(w, 1) * reaching(w, 2);
    return sides <= POOL_SIDES && all <= (window_uses(w, &w->g.saved) ? POOL_FOUND_AGAIN : POOL_REACHING);
}

/* Whether windows go in whole steps, few enough, over what padding does not change. */
static bool is_pool(const struct window *w) {
    const struct resample_geometry *g = &w->g;
    bool excludes = g->mode == WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING;
    bool is_mean = excludes || g->mode == WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING;
    bool is = (g->mode == WEFT_RESAMPLE_MAXPOOL || is_mean) && !w->is_wide && product(g->taps) <= POOL_TAPS &&
              (excludes || (g->padding != WEFT_EDGE_VAL_PAD && !(is_mean && g->padding == WEFT_NEG_INF_PAD)));
    for (int i = 0; i < 3; i++)
        is = is && g->x.size[i] > 0 && g->y.size[i] > 0 && g->denominator[i] == 1 && g->step[i] <= POOL_STEP;
    return is;
}

/* Windows that overlap share what a thread loads; those of rows two steps apart share it through the first cache. */
static void find_patch(struct window *w) {
    const struct resample_geometry *g = &w->g;
    bool is_small = product(g->taps) <= POOL_SHARED_TAPS;
    w->kernel = g->backward ? WINDOW_BWD : WINDOW;
    w->rows = 1;
    for (int i = 0; i < 3; i++) {
        bool is_dense = g->step[i] == 1 && g->taps[i] > 1;
        w->patch[i] = i > 0 && g->y.size[i] > 1 && is_small && (i == 2 || is_dense) ? 2 : 1;
    }
    if (!is_pool(w))
        return;
    if (g->backward && !backward_fits(w))
        w->patch[1] = w->patch[2] = 1;
    if (!(g->backward ? backward_fits(w) : forward_fits(w)))
        return;
    w->kernel = g->backward ? POOL_BWD : POOL;
    w->run = w->run > POOL_RUN ? POOL_RUN : w->run;
    int64_t rows = POOL_ROWS / w->patch[1];
    w->rows = w->run > 1 && window_patches(w, 1) >= rows ? rows : 1;
}

/* Windows that hardly share elements, and are so large that a thread each would be few. */
static void find_team(struct window *w) {
    const struct resample_geometry *g = &w->g;
    if (w->kernel == POOL && w->run > 1 && product(g->taps) > POOL_SHARED_TAPS && g->taps[0] == 1 && g->taps[1] > 1 &&
        g->taps[1] <= TEAM_MAX && (g->y.size[1] == 1 || g->step[1] >= g->taps[1]))
        w->kernel = POOL_TEAM;
}

/* Whether the channels of all positions lie in one stretch. */
static bool is_packed_last(const struct resample_geometry *g, const struct resample_operand *operand) {
    int64_t stride = g->c;
    bool is_packed = operand->channel_stride == 1 && operand->tensor->alignment % 16 == 0;
    for (int i = 3; i-- > 0; stride *= operand->size[i])
        is_packed = is_packed && (operand->size[i] == 1 || operand->size_stride[i] == stride);
    return is_packed && (g->n == 1 || operand->batch_stride == stride);
}

/* Positions of a row whose windows a block takes in shared memory, where accesses would be short: an even part of the row. */
static void find_loose(struct window *w) {
    const struct resample_geometry *g = &w->g;
    int64_t size = window_bytes(&g->x, 1), row = g->y.size[2], most;
    if (w->kernel != POOL || w->run * size > LOOSE_ACCESS || g->c * size < LOOSE_CHANNELS || g->x.size[0] != 1 ||
        g->taps[0] != 1 || g->step[0] != 1 || g->offset[0] != 0 || 16 % size != 0 || window_may_be_empty(g) ||
        !is_packed_last(g, &g->x) || tensor_bytes(g->x.tensor) % 16 != 0 || g->n * g->y.size[1] * row >= INT32_MAX)
        return;
    struct window tall = *w;
    tall.patch[1] = tall.patch[2] = 2;
    int64_t down = g->y.size[1] > 1 && product(g->taps) <= POOL_SHARED_TAPS && forward_fits(&tall) ? 2 : 1;
    most = (LOOSE_BYTES / ((down - 1) * g->step[1] + g->taps[1]) / (g->c * size) - g->taps[2]) / g->step[2] + 1;
    if (most < 2 && most < row)
        return;
    int64_t tiles = divide_up(row, most);
    w->kernel = POOL_LOOSE;
    w->run = 1;
    w->rows = 1;
    w->patch[1] = down;
    w->patch[2] = row > 1 ? 2 : 1;
    w->tile_columns = round_up(divide_up(row, tiles), w->patch[2]);
    w->pitch = ((w->tile_columns - 1) * g->step[2] + g->taps[2]) * g->c + 16 / size;
    while ((g->x.size[2] * g->c - w->pitch) % (POOL_LINE / size) != 0)
        w->pitch++;
}

/* How many channels go at once, and what a thread makes of them. */
static void find_walk(struct window *w) {
    const struct resample_operand *operands[] = {&w->g.x, &w->g.y, &w->g.index, &w->g.saved};
    int64_t run = gcd64(LONGEST_RUN, w->g.c);
    for (int k = 0; k < 4; k++)
        if (window_uses(w, operands[k]))
            run = gcd64(run, channels_per_access(operands[k]));
    w->run = (int)run;
    find_reach(w);
    find_patch(w);
    find_team(w);
    window_find_boxes(w);
    find_loose(w);
    window_find_planes(w);
}

/* ---- Analysis ----------------------------------------------------------------------------------------------------- */

static weftStatus_t analyse(struct window *w, const struct region *region, const struct device *device) {
    *w = (struct window){.region = region, .device = device, .op = region_node(region, 0)->op};
    bool is_resample = op_of(w->op) == &resample_op || op_of(w->op) == &resample_backward_op;
    if (!is_resample)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is neither pooling nor interpolation.",
             descriptor_label(w->op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: nothing is fused with it, %s needs a kernel of its own.",
             descriptor_label(w->op), descriptor_label(region_node(region, 1)->op));
    w->g = resample_geometry(w->op);
    const struct resample_geometry *g = &w->g;
    if (product(g->taps) >= INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its window has %g elements; kernels count to 2^31.",
             descriptor_label(w->op), product(g->taps));
    w->has_y = g->backward || is_stored(region, g->y.tensor);
    w->has_index = g->backward ? g->index.tensor != NULL : is_stored(region, g->index.tensor);
    const struct resample_operand *operands[] = {&g->x, &g->y, &g->index, &g->saved};
    for (int k = 0; k < 4; k++)
        TRY(check_tensor(w, operands[k]->tensor));
    turn_mean(w);
    for (int i = 0; i < 3 && !w->g.backward; i++)
        if (w->g.y.size[i] == 1 && w->g.denominator[i] == 1)
            w->g.step[i] = 1; /* a single position takes none */
    find_walk(w);
    return WEFT_STATUS_SUCCESS;
}

/* Whether a gradient finds its maxima in a kernel of its own: windows that share elements would each be searched by all
   patches that they reach, and planes are read with their numbers. */
static bool finds_first(const struct window *w) {
    bool overlaps = w->g.taps[0] > w->g.step[0] || w->g.taps[1] > w->g.step[1] || w->g.taps[2] > w->g.step[2];
    return w->g.backward && window_uses(w, &w->g.saved) && product(w->g.taps) < INT8_MAX &&
           (overlaps || (w->run == 1 && window_is_planes(&w->g, &w->g.saved)));
}

/* The two passes: a forward one that leaves nothing but numbers of taps, laid out like y, and the gradient by them. */
static weftStatus_t split(struct window passes[2], const struct window *w, struct arena *arena) {
    struct tensor *numbers;
    TRY(arena_copy(arena, &numbers, w->g.y.tensor, sizeof *numbers));
    numbers->type = WEFT_DATA_INT8;
    numbers->alignment = 16;
    for (int i = 0; i < 2; i++) {
        passes[i] = *w;
        passes[i].g.index = w->g.y;
        passes[i].g.index.tensor = numbers;
        passes[i].has_index = passes[i].index_is_scratch = true;
    }
    struct resample_geometry *first = &passes[0].g;
    first->backward = passes[0].has_y = false;
    first->x = first->saved;
    first->saved.tensor = NULL;
    first->alpha = 1;
    first->beta = 0;
    for (int i = 0; i < 2; i++)
        find_walk(&passes[i]);
    return WEFT_STATUS_SUCCESS;
}

/* What threads take one by one: patches of runs of channels. */
static int64_t turns_of(const struct window *w) {
    const struct resample_operand *result = window_result(w);
    if (result->size[0] * result->size[1] * result->size[2] == 0)
        return 0;
    int64_t groups = divide_up(window_patches(w, 1), w->rows);
    return w->g.n * (w->g.c / w->run) * window_patches(w, 0) * groups * w->rows * window_patches(w, 2);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct window w;
    TRY(analyse(&w, region, device));
    const struct resample_operand *operands[] = {&w.g.x, &w.g.y, &w.g.index, &w.g.saved};
    double bytes = 0;
    for (int k = 0; k < 4; k++)
        if (window_uses(&w, operands[k]))
            bytes += (double)tensor_bytes(operands[k]->tensor);
    *seconds = LAUNCH_SECONDS + price_moving(bytes, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Printing ----------------------------------------------------------------------------------------------------- */

static void print_bits(struct kernel_print *print, double number, const char *name) {
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    print_number(print, bits, name);
}

static void print_numbered(struct kernel_print *print, const int64_t *numbers, const char *name) {
    char text[32];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s%d", name, i);
        print_number(print, numbers[i], text);
    }
}

/* Type, strides and, where it is used, pointer of an operand. */
static void print_operand(struct kernel_print *print, const struct window *w, const struct resample_operand *operand,
                          const char *name, const char *pointer) {
    char text[32];
    weftDataType_t type = operand->tensor ? (weftDataType_t)operand->tensor->type : WEFT_DATA_INT8;
    if (operand == &w->g.index && w->index_is_scratch)
        print_scratch(print, cuda_type_name(type), 0, pointer);
    else if (window_uses(w, operand))
        print_pointer(print, type, graph_find_value(w->region->graph, operand->tensor), 0, pointer);
    snprintf(text, sizeof text, "%s_t", pointer);
    print_type(print, text, type);
    snprintf(text, sizeof text, "%s_n", pointer);
    print_number(print, operand->batch_stride, text);
    snprintf(text, sizeof text, "%s_c", pointer);
    print_number(print, operand->channel_stride, text);
    print_numbered(print, operand->size_stride, name);
}

/* A digit of the number of a turn: which coordinate it adds to, and how much each. */
struct digit {
    const char *name;
    int64_t extent, stride, times;
};

/* The digits of a turn, slowest first in memory: the result's image, run of channels, and place or patch along each axis.
   Rows of patches that neighbours take come right before the channels. */
static int list_digits(const struct window *w, struct digit *digits) {
    const struct resample_operand *result = window_result(w);
    int64_t step1 = w->kernel >= POOL && !w->g.backward ? w->patch[1] : 1,
            step2 = w->kernel >= POOL && !w->g.backward ? w->patch[2] : 1;
    const struct digit all[] = {
        {"n", w->g.n, result->batch_stride, 1},
        {"at[0]", window_patches(w, 0), result->size_stride[0], 1},
        {"at[1]", divide_up(window_patches(w, 1), w->rows), result->size_stride[1], w->rows * step1},
        {"at[2]", window_patches(w, 2), result->size_stride[2], step2},
        {"at[1]", w->rows, w->run > 1 ? -1 : result->size_stride[1], step1},
        {"c", w->g.c / w->run, w->run > 1 ? -2 : result->channel_stride, w->run},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int at = count;
        if (all[i].extent == 1)
            continue;
        for (; at > 0 && digits[at - 1].stride < all[i].stride; at--)
            digits[at] = digits[at - 1];
        digits[at] = all[i];
        count++;
    }
    return count;
}

static void print_locate(struct kernel_print *print, const struct window *w) {
    struct digit digits[DIGITS_MAX];
    int count = list_digits(w, digits);
    text_add(&print->code, "DEVICE place locate(const arguments& p, position rest) {\n    place to = {};\n");
    for (int k = count; k-- > 0;) {
        char text[32];
        snprintf(text, sizeof text, "digit%d", k);
        if (k > 0)
            print_divisor(print, digits[k].extent, text);
        text_add(&print->code, "    to.%s += ", digits[k].name);
        text_add(&print->code, k > 0 ? "split(rest, p.%s)" : "rest", text);
        text_add(&print->code, digits[k].times == 1 ? ";\n" : " * %lld;\n", (long long)digits[k].times);
    }
    text_add(&print->code, "    return to;\n}\n\n");
}

/* float holds whole numbers to 2^24, so wider ones are compared and summed in double; interpolated ones as well, whose
   halves must round as they should. */
static bool computes_in_double(const struct window *w) {
    const struct resample *p = ((const struct resample_op *)w->op)->parameters;
    const struct tensor *tensors[] = {w->g.x.tensor, w->g.y.tensor, w->g.saved.tensor};
    bool is_double = p->math == WEFT_DATA_DOUBLE;
    for (int k = 0; k < 3; k++)
        if (tensors[k])
            is_double = is_double || tensors[k]->type == WEFT_DATA_DOUBLE ||
                        (dtype_is_integer((weftDataType_t)tensors[k]->type) &&
                         (dtype_bytes((weftDataType_t)tensors[k]->type, 1) > 1 || w->g.mode == WEFT_RESAMPLE_BILINEAR));
    return is_double;
}

static int threads_of(const struct window *w) {
    return w->kernel == POOL_TEAM ? 32 * (int)w->g.taps[1] : w->kernel >= POOL ? POOL_THREADS : THREADS;
}

static bool is_boxes(const struct window *w) { return w->kernel == POOL_BOXES || w->kernel == POOL_BOXES_BWD; }

/* Whether blocks go over the result as often as it takes. */
static bool takes_turns(const struct window *w) { return w->kernel < POOL_BOXES; }

static bool is_planes(const struct window *w) { return w->kernel == POOL_PLANES || w->kernel == POOL_PLANES_BWD; }

/* Whether maxima are found of pairs as they lie in memory: with their numbers where chips compare pairs, and where a NaN
   is above all. */
static bool is_paired(const struct window *w) {
    weftDataType_t type = (weftDataType_t)w->g.x.tensor->type;
    bool finds = !w->has_index || (w->g.propagates_nan && (type == WEFT_DATA_HALF || w->device->cuda.major >= 9));
    return w->kernel >= POOL && w->kernel != POOL_WHOLE && !w->g.backward && w->g.mode == WEFT_RESAMPLE_MAXPOOL &&
           finds && (w->run % 2 == 0 || w->run == 1) && dtype_is_half(type) && w->device->cuda.major >= 8;
}

/* How many blocks a multiprocessor's registers must hold at once. */
static int blocks_of(const struct window *w) {
    bool is_mean = w->g.mode != WEFT_RESAMPLE_MAXPOOL, is_small = w->patch[1] * w->patch[2] <= 2;
    if (w->kernel == POOL_TEAM)
        return 1024 / threads_of(w);
    if (w->kernel == POOL_WHOLE)
        return 8;
    if (product(w->g.taps) > POOL_SHARED_TAPS)
        return 2;
    if (computes_in_double(w) || window_uses(w, &w->g.saved) || product(w->g.taps) > 9)
        return 3;
    if (w->kernel == POOL_BOXES_BWD)
        return 5;
    if (is_planes(w))
        return w->has_index || w->g.backward ? 6 : is_paired(w) ? 12 : 8;
    if (w->kernel == POOL_LOOSE)
        return 8;
    if (w->has_index && !w->g.backward)
        return is_paired(w) ? 4 : 3;
    if (w->g.backward && (is_mean || is_small))
        return is_small ? 6 : 5;
    return is_mean || is_paired(w) || is_small ? 5 : 4;
}

/* Whether places in memory pass 31 bits. */
static bool has_far_elements(const struct window *w) {
    const struct resample_operand *operands[] = {&w->g.x, &w->g.y, &w->g.index, &w->g.saved};
    double farthest = 0;
    for (int k = 0; k < 4; k++) {
        const struct resample_operand *o = operands[k];
        double last = (double)w->g.n * (double)o->batch_stride + (double)w->g.c * (double)o->channel_stride;
        for (int i = 0; i < 3; i++)
            last += ((double)o->size[i] + POOL_TAPS) * (double)o->size_stride[i];
        farthest = window_uses(w, o) && last > farthest ? last : farthest;
    }
    return farthest >= INT32_MAX;
}

static int64_t most_blocks(const struct device *device) { return (int64_t)device->cuda.multiprocessors * 256; }

/* Of POOL_LOOSE: tiles of a row, and rows of them. */
static int64_t loose_tiles(const struct window *w) { return divide_up(w->g.y.size[2], w->tile_columns); }
static int64_t loose_bands(const struct window *w) { return divide_up(w->g.y.size[1], w->patch[1]); }

/* Blocks that take a tile each, or one turn per thread. */
static int64_t blocks_at_all(const struct window *w) {
    int64_t each = w->kernel == POOL_TEAM ? 32 : threads_of(w);
    if (w->kernel >= POOL_PLANES)
        return window_blocks_of_planes(w);
    if (is_boxes(w))
        return window_blocks_of_boxes(w);
    if (w->kernel == POOL_LOOSE)
        return w->g.n * loose_bands(w) * loose_tiles(w);
    return divide_up(turns_of(w), each);
}

/* How many of the first blocks ask for what they read before the kernel before has ended: those that run at once, where each
   warp reads one stretch per tap, or each block one. */
static int64_t expects(const struct window *w) {
    int64_t at_once = 8 * (int64_t)w->device->cuda.multiprocessors;
    bool is_team = w->kernel == POOL_TEAM && w->g.c / w->run % 32 == 0 && w->g.taps[2] <= 32 &&
                   window_bytes(&w->g.x, w->run) == 16 && w->g.x.tensor->alignment % 16 == 0 &&
                   blocks_at_all(w) <= at_once;
    bool is_stretch = w->kernel == POOL_PLANES && w->planes.is_stretch;
    return (is_team || is_stretch) && w->device->cuda.major >= 9 ? at_once : 0;
}

/* How many blocks ahead of its own a block asks for what is read, where arithmetic leaves loads waiting. */
static int ahead_of(const struct window *w) {
    const struct resample_operand *read = window_source(w);
    return w->kernel == POOL_BWD && w->device->cuda.major >= 9 && w->run > 1 && is_packed_last(&w->g, read) &&
                   blocks_at_all(w) > 4 * AHEAD && blocks_at_all(w) <= most_blocks(w->device)
               ? AHEAD
               : 0;
}

static void print_constants(struct kernel_print *print, const struct window *w) {
    const struct resample_geometry *g = &w->g;
    bool is_maximum = g->mode == WEFT_RESAMPLE_MAXPOOL, excludes = g->mode == WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING;
    bool is_pool = w->kernel >= POOL, unrolls = is_pool || product(g->taps) <= UNROLLED_TAPS;
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {
        {"RUN", is_planes(w) ? w->planes.along : w->run},
        {"ALONG_ROWS", is_planes(w)},
        {"EXPECTS", expects(w)},
        {"AHEAD", ahead_of(w)},
        {"GRAIN", is_planes(w) ? w->planes.grain : w->run},
        {"THREADS", threads_of(w)},
        {"TAPS0", unrolls ? g->taps[0] : 0},
        {"TAPS1", unrolls ? g->taps[1] : 0},
        {"TAPS2", unrolls ? g->taps[2] : 0},
        {"STEP0", is_pool ? g->step[0] : 0},
        {"STEP1", is_pool ? g->step[1] : 0},
        {"STEP2", is_pool ? g->step[2] : 0},
        {"PATCH1", w->patch[1]},
        {"PATCH2", w->patch[2]},
        {"BLOCKS", blocks_of(w)},
        {"LANES", w->boxes.lanes},
        {"LINE", POOL_LINE},
        {"IS_PAIRED", is_paired(w)},
        {"IS_SCALED", g->alpha != 1},
        {"WANTS_WHERE", g->backward || w->has_index},
        {"IS_MAXIMUM", is_maximum},
        {"IS_LINEAR", g->mode == WEFT_RESAMPLE_BILINEAR},
        {"IS_POOL", is_maximum || excludes || g->mode == WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING},
        {"IS_WHOLE", g->denominator[0] == 1 && g->denominator[1] == 1 && g->denominator[2] == 1},
        {"CLAMPS", g->padding == WEFT_EDGE_VAL_PAD && !excludes},
        {"SKIPS_PADDING", g->padding == WEFT_NEG_INF_PAD},
        {"MAY_BE_EMPTY", g->padding == WEFT_NEG_INF_PAD && window_may_be_empty(g)},
        {"EXCLUDES_PADDING", excludes},
        {"PROPAGATES_NAN", g->propagates_nan},
        {"HAS_Y", w->has_y},
        {"HAS_INDEX", w->has_index},
        {"HAS_SAVED", window_uses(w, &g->saved)},
        {"HAS_OLD", g->beta != 0},
    };
    if (w->kernel >= POOL_BOXES)
        text_add(&print->constants, "#include \"core/async.cuh\"\n#include \"core/stream.cuh\"\n\n");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        print_constant(print, constants[i].name, constants[i].value);
    text_add(
        &print->constants,
        "using element = u16;\nusing math_t = %s;\nusing length_t = %s;\nusing offset_t = %s;\nusing position = %s;\n",
        computes_in_double(w) ? "double" : "float", w->is_wide ? "i64" : "i32", has_far_elements(w) ? "i64" : "i32",
        turns_of(w) < INT32_MAX ? "u32" : "i64");
}

/* What blocks ask for ahead: slabs of the memory that is read, as many as there are blocks. */
static void print_ahead(struct kernel_print *print, const struct window *w) {
    const struct resample_operand *read = window_source(w);
    int64_t bytes = tensor_bytes(read->tensor), slabs = blocks_at_all(w);
    if (!ahead_of(w))
        return;
    print_number(print, round_up(divide_up(bytes, slabs), 16), "slab");
    print_number(print, bytes / 16 * 16, "whole");
}

static void print_geometry(struct kernel_print *print, const struct window *w) {
    const struct resample_geometry *g = &w->g;
    const struct tensor *compared = g->backward && g->saved.tensor ? g->saved.tensor : g->x.tensor;
    const struct dtype *type = dtype_of((weftDataType_t)compared->type);
    print_numbered(print, g->x.size, "x");
    print_numbered(print, g->y.size, "y");
    print_numbered(print, g->taps, "taps");
    print_numbered(print, g->step, "step");
    print_numbered(print, g->offset, "offset");
    print_numbered(print, g->denominator, "denominator");
    print_operand(print, w, &g->x, "x_stride", "x");
    print_operand(print, w, &g->y, "y_stride", "y");
    print_operand(print, w, &g->index, "index_stride", "index");
    print_operand(print, w, &g->saved, "saved_stride", "saved");
    print_bits(print, g->alpha, "alpha");
    print_bits(print, g->beta, "beta");
    print_bits(print, type->is_float ? -INFINITY : type->lowest, "lowest");
    print_number(print, turns_of(w), "runs");
    if (w->kernel == POOL_BWD || w->kernel == POOL_PLANES_BWD) {
        print_number(print, window_first_patch(w, 1), "first1");
        print_number(print, window_first_patch(w, 2), "first2");
    }
    print_ahead(print, w);
}

/* Functions, each in a file of its name. */
static const char *const entries[] = {
    [WINDOW] = "window",
    [WINDOW_BWD] = "window_bwd",
    [POOL] = "pool",
    [POOL_BWD] = "pool_bwd",
    [POOL_TEAM] = "pool_team",
    [POOL_BOXES] = "pool_boxes",
    [POOL_BOXES_BWD] = "pool_boxes_bwd",
    [POOL_LOOSE] = "pool_unaligned",
    [POOL_PLANES] = "pool_planes",
    [POOL_PLANES_BWD] = "pool_planes_bwd",
    [POOL_WHOLE] = "pool_whole",
};

static uint32_t print_loose(struct kernel_print *print, const struct window *w) {
    print_number(print, w->tile_columns, "tile_columns");
    print_number(print, w->pitch, "pitch");
    print_divisor(print, loose_tiles(w), "tiles");
    print_divisor(print, loose_bands(w), "bands");
    print_divisor(print, w->g.c, "channels");
    return (uint32_t)window_bytes(&w->g.x, ((w->patch[1] - 1) * w->g.step[1] + w->g.taps[1]) * w->pitch) + POOL_LINE;
}

/* How a kernel finds its places; gives the shared memory of a block. */
static uint32_t print_places(struct kernel_print *print, const struct window *w) {
    if (w->kernel >= POOL_PLANES)
        return window_print_planes(print, w);
    if (is_boxes(w))
        return window_print_boxes(print, w);
    if (w->kernel == POOL_LOOSE)
        return print_loose(print, w);
    print_locate(print, w);
    return 0;
}

static weftStatus_t build_kernel(struct cuda_kernel *kernel, const struct window *w, struct arena *arena) {
    const char *file;
    TRY(arena_print(arena, &file, "window/%s.cuh", entries[w->kernel]));
    struct kernel_print print;
    kernel_print_init(&print, w->region);
    if (is_boxes(w))
        window_print_maps(&print, w);
    print_constants(&print, w);
    print_geometry(&print, w);
    text_add(&print.code,
             "#include \"core/gather.cuh\"\n#include \"core/chunks.cuh\"\n#include \"window/geometry.cuh\"\n%s\n",
             w->kernel >= POOL ? "#include \"window/pool_common.cuh\"\n" : "");
    int64_t blocks = blocks_at_all(w), most = most_blocks(w->device);
    kernel->shared_bytes = print_places(&print, w);
    TRY(kernel_finish(&print, kernel, file, entries[w->kernel], arena));
    kernel->grid[0] = (uint32_t)(takes_turns(w) && blocks > most ? most : blocks);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)threads_of(w);
    kernel->is_dependent = w->kernel >= POOL && w->device->cuda.major >= 9;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct window passes[2];
    struct cuda_step *state;
    int count = 1;
    TRY(analyse(&passes[0], &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (turns_of(&passes[0]) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    if (finds_first(&passes[0])) {
        struct window whole = passes[0];
        TRY(split(passes, &whole, arena));
        step->workspace_bytes = tensor_bytes(passes[0].g.index.tensor);
        count = 2;
    }
    for (int i = 0; i < count; i++)
        if (turns_of(&passes[i]) > 0)
            TRY(build_kernel(&state->kernels[state->count++], &passes[i], arena));
    const struct window *w = &passes[count - 1];
    return arena_print(
        arena, &step->detail, "%s%s: windows of %lldx%lldx%lld, runs of %d channels, patches of %lldx%lld",
        count > 1 ? "maxima first, " : "", entries[w->kernel], (long long)w->g.taps[0], (long long)w->g.taps[1],
        (long long)w->g.taps[2], w->run, (long long)w->patch[1], (long long)w->patch[2]);
}

const struct family cuda_window = {
    .name = "cuda.window",
    .doc = "pooling and interpolation, and their gradients",
    .accepts = accepts,
    .build = build,
};
