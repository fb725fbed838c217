/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a pooling or an interpolation: its geometry, the kernel, and the results of a thread. It emits no code. */
#include "base/number.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/pooling/pooling.h"

#include <math.h>
#include <string.h>

enum { RUN_MAX = 16 }; /* maximum channels per access */

/* Limits of the pool kernels, tuned on an H200; in elements unless noted. */
enum {
    POOL_RUN = 8,                   /* channels per thread */
    POOL_STEP = 4,                  /* maximum step of windows, along each axis */
    POOL_SIDES = 9,                 /* maximum elements of dx per patch */
    POOL_REACHING = 16,             /* maximum positions that contribute to a patch of dx */
    POOL_FOUND_AGAIN = 4,           /* the same if their maxima are recomputed */
    POOL_ROWS = 4,                  /* positions along the second axis that adjacent threads share */
    TEAM_MAX = 16,                  /* maximum rows of a large window, one warp each */
    UNALIGNED_ACCESS_BYTES = 2,     /* maximum bytes per access: wider ones need no shared memory */
    UNALIGNED_CHANNEL_BYTES = 32,   /* minimum bytes of all channels of a position */
    UNALIGNED_TILE_BYTES = 18 << 10 /* maximum bytes of a tile in shared memory */
};

/* Half of 31 bits: sums of two such numbers fit in 32 bits. */
static const double INT32_REACH = WEFT_INDEX32_MAX / 2 + 1;

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

static weftStatus_t check_tensor(const struct pooling *w, const struct tensor *tensor) {
    if (!tensor)
        return WEFT_STATUS_SUCCESS;
    TRY(tensor_check_plain(tensor, w->op));
    if (!cuda_type_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
             descriptor_label(w->op), descriptor_label(&tensor->base), dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* Returns the number of channels of an operand per access. */
static int64_t channels_per_access(const struct resample_operand *operand) {
    /* Only contiguous elements can share an access; all positions must be multiples of it. */
    if (operand->channel_stride != 1)
        return 1;
    int64_t fits = gcd64(operand->tensor->alignment, 16) / dtype_bytes((weftDataType_t)operand->tensor->type, 1);
    int64_t run = gcd64(fits > 1 ? fits : 1, operand->batch_stride);
    for (int i = 0; i < 3; i++)
        run = gcd64(run, operand->size[i] > 1 ? operand->size_stride[i] : 0);
    return run;
}

/* True if it is read or visible in memory. */
static bool is_stored(const struct region *region, const struct tensor *tensor) {
    int value = tensor ? graph_find_value(region->graph, tensor) : -1;
    return value >= 0 && !value_is_dead(&region->graph->values[value]);
}

/* The gradient of a mean whose windows have step one is such a mean itself, of dy. Each output has the same weight, and
   padding of zeros does not change that, so the forward kernels compute the gradient as well. */
static void make_forward_mean(struct pooling *w) {
    struct resample_geometry *g = &w->g;
    bool is_mean = (g->mode == WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING && g->padding != WEFT_EDGE_VAL_PAD) ||
                   (g->mode == WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING && !pooling_has_padding(g));
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
        /* Element x of dx is in the windows at x + offset - span + 1 .. x + offset, a dilation apart: a window with the
           same number of taps over dy. */
        g->offset[i] = resample_span(g, i) - 1 - g->offset[i];
}

/* Computes whether coordinates, times steps and denominators, exceed 32 bits. */
static void find_reach(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    for (int i = 0; i < 3; i++) {
        /* As double, since the products themselves may exceed 64 bits. */
        double y = ((double)g->y.size[i] + 1) * (double)g->step[i] + fabs((double)g->offset[i]);
        double x = ((double)g->x.size[i] + (double)resample_span(g, i) + 1) * (double)g->denominator[i];
        w->is_wide = w->is_wide || x + y > INT32_REACH;
    }
}

/* ---- Patches ----------------------------------------------------------------------------------------------------- */

/* Positions that contribute to a patch of dx, along one axis. */
static int64_t reaching(const struct pooling *w, int axis) {
    return (w->g.taps[axis] - 1) / w->g.step[axis] + w->patch[axis];
}

/* True if the elements of x that a thread unrolls into registers fit: all planes of a window, and the rows and columns
   of its patch. */
static bool forward_fits(const struct pooling *w) {
    int64_t loads = w->g.taps[0];
    for (int i = 1; i < 3; i++)
        loads *= (w->patch[i] - 1) * w->g.step[i] + w->g.taps[i];
    return loads <= POOL_LOADS;
}

/* A recomputed maximum needs a window per position, hence the lower limit. */
static bool backward_fits(const struct pooling *w) {
    int64_t sides = w->patch[1] * w->g.step[1] * w->patch[2] * w->g.step[2], all = reaching(w, 1) * reaching(w, 2);
    return sides <= POOL_SIDES && all <= (pooling_uses(w, &w->g.saved) ? POOL_FOUND_AGAIN : POOL_REACHING);
}

/* True if windows have no gaps, whole steps and few taps, and padding does not change results. Edge padding, and means
   with padding of minus infinity, change numbers at the border. */
static bool is_pool(const struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    bool excludes = g->mode == WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING;
    bool is_mean = excludes || g->mode == WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING;
    bool is_pool = (g->mode == WEFT_RESAMPLE_MAXPOOL || is_mean) && !w->is_wide &&
                   pooling_product(g->taps) <= POOL_TAPS &&
                   (excludes || (g->padding != WEFT_EDGE_VAL_PAD && !(is_mean && g->padding == WEFT_NEG_INF_PAD)));
    for (int i = 0; i < 3; i++)
        is_pool = is_pool && g->x.size[i] > 0 && g->y.size[i] > 0 && g->denominator[i] == 1 &&
                  g->step[i] <= POOL_STEP && g->dilation[i] == 1;
    return is_pool;
}

/* Overlapping windows share what a thread loads; windows two rows further share it through L1. Two adjacent
   results share all but a step of their windows. Patches along the third axis always pay off if windows are small;
   along the second only if they have step one. */
static void find_patch(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    bool is_small = pooling_product(g->taps) <= POOL_SHARED_TAPS;
    w->kernel = g->backward ? RESAMPLE_BWD : RESAMPLE;
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
    w->rows = w->run > 1 && pooling_patches(w, 1) >= rows ? rows : 1;
}

/* Windows that hardly overlap, and are so large that one thread per window would leave too few threads. */
static void find_team(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    if (w->kernel == POOL && w->run > 1 && pooling_product(g->taps) > POOL_SHARED_TAPS && g->taps[0] == 1 &&
        g->taps[1] > 1 && g->taps[1] <= TEAM_MAX && (g->y.size[1] == 1 || g->step[1] >= g->taps[1]))
        w->kernel = POOL_TEAM;
}

/* True if the channels of all positions are contiguous. */
bool pooling_is_packed_last(const struct resample_geometry *g, const struct resample_operand *operand) {
    int64_t stride = g->c;
    bool is_packed = operand->channel_stride == 1 && operand->tensor->alignment % 16 == 0;
    for (int i = 3; i-- > 0; stride *= operand->size[i])
        is_packed = is_packed && (operand->size[i] == 1 || operand->size_stride[i] == stride);
    return is_packed && (g->n == 1 || operand->batch_stride == stride);
}

/* Finds how many positions of a row a block computes from shared memory, which is used if accesses would be short: an
   even share of the row. Rows of all channels are copied whole, in chunks that keep their offset; reads from shared
   memory need no alignment. */
static void find_unaligned(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    int64_t size = pooling_bytes(&g->x, 1), row = g->y.size[2], most;
    if (w->kernel != POOL || w->run * size > UNALIGNED_ACCESS_BYTES || g->c * size < UNALIGNED_CHANNEL_BYTES ||
        g->x.size[0] != 1 || g->taps[0] != 1 || g->step[0] != 1 || g->offset[0] != 0 || 16 % size != 0 ||
        pooling_may_be_empty(g) || !pooling_is_packed_last(g, &g->x) || tensor_bytes(g->x.tensor) % 16 != 0 ||
        g->n * g->y.size[1] * row >= INT32_MAX)
        return;
    struct pooling tall = *w;
    tall.patch[1] = tall.patch[2] = 2;
    int64_t down = g->y.size[1] > 1 && pooling_product(g->taps) <= POOL_SHARED_TAPS && forward_fits(&tall) ? 2 : 1;
    most =
        (UNALIGNED_TILE_BYTES / ((down - 1) * g->step[1] + g->taps[1]) / (g->c * size) - g->taps[2]) / g->step[2] + 1;
    if (most < 2 && most < row)
        return;
    int64_t tiles = divide_up(row, most);
    w->kernel = POOL_UNALIGNED;
    w->run = 1;
    w->rows = 1;
    w->patch[1] = down;
    w->patch[2] = row > 1 ? 2 : 1;
    w->tile_columns = round_up(divide_up(row, tiles), w->patch[2]);
    w->pitch = ((w->tile_columns - 1) * g->step[2] + g->taps[2]) * g->c + 16 / size;
    /* The row pitch is congruent to that of memory modulo a line, so that all rows have the same offset in both. */
    while ((g->x.size[2] * g->c - w->pitch) % (POOL_LINE / size) != 0)
        w->pitch++;
}

/* Chooses how many channels are processed at once, and the results of a thread. run: the number of channels that every
   operand can access at once. */
static void choose_kernel(struct pooling *w) {
    const struct resample_operand *operands[] = {&w->g.x, &w->g.y, &w->g.index, &w->g.saved};
    int64_t run = gcd64(RUN_MAX, w->g.c);
    for (int k = 0; k < 4; k++)
        if (pooling_uses(w, operands[k]))
            run = gcd64(run, channels_per_access(operands[k]));
    /* Each of the following replaces the preceding choice if it is better; they are ordered from general to special. */
    w->run = (int)run;
    find_reach(w);
    find_patch(w);
    find_team(w);
    pooling_find_tma(w);
    find_unaligned(w);
    pooling_find_nchw(w);
}

/* ---- Analysis ---------------------------------------------------------------------------------------------------- */

/* A single node. The geometry is changed here if that allows another kernel; the operation is not. */
weftStatus_t pooling_analyse(struct pooling *w, const struct region *region, const struct device *device) {
    *w = (struct pooling){.region = region, .device = device, .op = region_node(region, 0)->op};
    bool is_resample = op_of(w->op) == &resample_op || op_of(w->op) == &resample_backward_op;
    if (!is_resample)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is neither pooling nor interpolation.",
             descriptor_label(w->op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: nothing is fused with it, %s needs a kernel of its own.",
             descriptor_label(w->op), descriptor_label(region_node(region, 1)->op));
    w->g = resample_geometry(w->op);
    const struct resample_geometry *g = &w->g;
    if (pooling_product(g->taps) >= INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: its window has %g elements; kernels count to 2^31.",
             descriptor_label(w->op), pooling_product(g->taps));
    w->has_y = g->backward || is_stored(region, g->y.tensor);
    w->has_index = g->backward ? g->index.tensor != NULL : is_stored(region, g->index.tensor);
    const struct resample_operand *operands[] = {&g->x, &g->y, &g->index, &g->saved};
    for (int k = 0; k < 4; k++)
        TRY(check_tensor(w, operands[k]->tensor));
    make_forward_mean(w);
    for (int i = 0; i < 3 && !w->g.backward; i++)
        if (w->g.y.size[i] == 1 && w->g.denominator[i] == 1)
            w->g.step[i] = 1; /* a single position has no step */
    choose_kernel(w);
    return WEFT_STATUS_SUCCESS;
}

/* True if a gradient finds its maxima in a separate kernel: overlapping windows would each be searched by all patches
   that they contribute to, and NCHW tiles are read with their indices. */
bool pooling_finds_first(const struct pooling *w) {
    bool overlaps = false;
    for (int i = 0; i < 3; i++)
        overlaps = overlaps || resample_span(&w->g, i) > w->g.step[i];
    return w->g.backward && pooling_uses(w, &w->g.saved) && pooling_product(w->g.taps) < INT8_MAX &&
           (overlaps || (w->run == 1 && pooling_is_planes(&w->g, &w->g.saved)));
}

/* The layout of indices: one per element of dy, without gaps, in the order of dx; dy itself may be broadcast. */
static void pack_numbers(struct resample_operand *numbers, struct tensor *tensor, const struct resample_geometry *g) {
    int64_t *const strides[] = {&numbers->channel_stride, &numbers->size_stride[2], &numbers->size_stride[1],
                                &numbers->size_stride[0], &numbers->channel_stride};
    const int64_t extents[] = {g->c, numbers->size[2], numbers->size[1], numbers->size[0], g->c};
    int64_t step = 1;
    int first = g->x.channel_stride == 1 ? 0 : 1;
    for (int i = first; i < first + 4; i++) {
        *strides[i] = step;
        step *= extents[i];
    }
    numbers->batch_stride = step;
    tensor->strides.at[0] = numbers->batch_stride;
    tensor->strides.at[1] = numbers->channel_stride;
    for (int i = 0; i < g->spatial; i++)
        tensor->strides.at[2 + i] = numbers->size_stride[3 - g->spatial + i];
}

/* The two passes: a forward one that writes only tap indices, and the gradient that uses them. The first pass is the
   forward pool without y; taps fit INT8, as pooling_finds_first ensures. */
weftStatus_t pooling_split(struct pooling passes[2], const struct pooling *w, struct arena *arena) {
    struct tensor *numbers;
    TRY(arena_copy(arena, &numbers, w->g.y.tensor, sizeof *numbers));
    /* Tap indices: windows have fewer than INT8_MAX taps here, see pooling_finds_first. */
    numbers->type = WEFT_DATA_INT8;
    numbers->alignment = 16;
    struct resample_operand index = w->g.y;
    index.tensor = numbers;
    pack_numbers(&index, numbers, &w->g);
    for (int i = 0; i < 2; i++) {
        passes[i] = *w;
        passes[i].g.index = index;
        passes[i].has_index = passes[i].index_is_scratch = true;
    }
    struct resample_geometry *first = &passes[0].g;
    first->backward = passes[0].has_y = false;
    first->x = first->saved;
    first->saved.tensor = NULL;
    first->alpha = 1;
    first->beta = 0;
    for (int i = 0; i < 2; i++)
        choose_kernel(&passes[i]);
    return WEFT_STATUS_SUCCESS;
}

/* Number of work items of threads: patches of runs of channels. */
int64_t pooling_items(const struct pooling *w) {
    const struct resample_operand *result = pooling_result(w);
    if (result->size[0] * result->size[1] * result->size[2] == 0)
        return 0;
    int64_t groups = divide_up(pooling_patches(w, 1), w->rows);
    return w->g.n * (w->g.c / w->run) * pooling_patches(w, 0) * groups * w->rows * pooling_patches(w, 2);
}
