/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling of NCHW images. Parts of a plane, or several planes, go through shared memory, whose rows have room for
   padding: pooling/pool_nchw.cuh, pool_nchw_bwd.cuh and pool_whole.cuh. */
#include "base/number.h"
#include "engines/cuda/pooling/pooling.h"

#include <string.h>

enum {
    CHUNK = 16,            /* bytes per access */
    WORD = 4,              /* bytes per bank of shared memory */
    ALONG = 4,             /* adjacent results per thread */
    WHOLE_UNIT = 16,       /* this number of planes is a multiple of chunks for any type */
    TILE_BYTES = 14 << 10, /* maximum shared memory, so that many blocks are resident */
    WHOLE_BYTES = 6 << 10, /* maximum for a tile of whole planes: pooling/pool_whole.cuh lists other sizes that were
                              tried */
};

static const int64_t BLOCKS_EACH = 8; /* blocks per multiprocessor that must exist before tiles get more planes */

/* Packed NCHW: images, channels, rows and columns without gaps. */
bool pooling_is_planes(const struct resample_geometry *g, const struct resample_operand *operand) {
    const int64_t *size = operand->size, *stride = operand->size_stride, plane = size[1] * size[2];
    return plane < INT32_MAX && size[0] == 1 && (size[2] == 1 || stride[2] == 1) &&
           (size[1] == 1 || stride[1] == size[2]) && (g->c == 1 || operand->channel_stride == plane) &&
           (g->n == 1 || operand->batch_stride == plane * g->c) &&
           operand->tensor->alignment % pooling_bytes(operand, 1) == 0 && CHUNK % pooling_bytes(operand, 1) == 0;
}

/* True if shared memory can represent padding: zero, or a number that never wins. */
static bool padding_has_number(const struct pooling *w) {
    weftDataType_t type = (weftDataType_t)w->g.x.tensor->type;
    return w->g.mode != WEFT_RESAMPLE_MAXPOOL || w->g.padding != WEFT_NEG_INF_PAD || !pooling_has_padding(&w->g) ||
           dtype_is_half(type) || type == WEFT_DATA_FLOAT ||
           (!w->has_index && (type == WEFT_DATA_INT8 || type == WEFT_DATA_UINT8));
}

/* Computes *fill, the number of elements per load of rows that are aligned to a multiple of it. If that is less than
   half a chunk, shifting whole chunks is cheaper than short accesses: returns true. */
static bool find_fill(const struct resample_operand *operand, int64_t *fill) {
    int64_t size = pooling_bytes(operand, 1);
    *fill = gcd64(gcd64(CHUNK / size, operand->size[2]), gcd64(operand->tensor->alignment, CHUNK) / size);
    bool shifts = *fill * size < CHUNK / 2;
    *fill = shifts ? CHUNK / size : *fill;
    return shifts;
}

/* Number of adjacent results per store, out of `along`. gcd64 with 0 leaves the number: a dimension of one element
   limits nothing. */
static int64_t grain_of(const struct pooling *w, const struct resample_operand *result, int64_t along) {
    int64_t unit = gcd64(result->tensor->alignment, CHUNK), fits = unit / pooling_bytes(result, 1);
    if (result->size[2] > 1 && result->size_stride[2] != 1)
        return 1;
    fits = gcd64(gcd64(fits > 1 ? fits : 1, along), result->size[2]);
    fits = gcd64(fits, w->g.n > 1 ? result->batch_stride : 0);
    fits = gcd64(fits, w->g.c > 1 ? result->channel_stride : 0);
    return gcd64(fits, result->size[1] > 1 ? result->size_stride[1] : 0);
}

/* Computes the layout of rows. Consecutive threads read `count` elements each, starting at `first`, `step` elements
   apart, up to `end`; the last ones read beyond it and ignore the data. left: space for padding before a row, in whole
   units, so that rows are aligned. Lengths are in elements; unit: an aligned access. */
static void lay_out(struct nchw_tile *p, int64_t end, int64_t first, int64_t step, int64_t count, int64_t unit) {
    p->seen = count;
    p->left = round_up(first < 0 ? -first : 0, unit);
    p->vector = p->columns == 1 ? unit : gcd64(step, unit);
    p->first = (p->left + first) / p->vector * p->vector;
    p->phase = p->left + first - p->first;
    p->pitch = round_up(p->left + end, unit);
    /* How far the last thread's access extends beyond the row. */
    p->slack = p->first + (p->columns - 1) * step + round_up(p->phase + count, p->vector) - p->pitch;
    p->slack = p->slack > 0 ? p->slack : 0;
}

/* True if rows consist of full words and the tensor of full chunks. Then a tile is one copy. */
static bool is_segment(const struct pooling *w, const struct resample_operand *o) {
    int64_t row = pooling_bytes(o, o->size[2]);
    return row % WORD == 0 && o->tensor->alignment % CHUNK == 0 && w->g.n * w->g.c * o->size[1] * row % CHUNK == 0;
}

/* The layout of rows of `width` elements as in memory; a thread's first element is `first` after their beginning. */
static void lay_out_as_memory(struct nchw_tile *p, int64_t width, int64_t first) {
    p->vector = gcd64(p->vector, width);
    p->first = (p->left + first) / p->vector * p->vector;
    p->phase = p->left + first - p->first;
    p->pitch = width;
}

/* Forward: rows of x, from which a thread computes `along` results. */
static void find_rows(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    struct nchw_tile *p = &w->nchw;
    int64_t size = pooling_bytes(&g->x, 1);
    p->along = g->y.size[2] > 2 ? ALONG : g->y.size[2];
    p->columns = divide_up(g->y.size[2], p->along);
    lay_out(p, max64(g->x.size[2], (g->y.size[2] - 1) * g->step[2] - g->offset[2] + g->taps[2]), -g->offset[2],
            p->along * g->step[2], (p->along - 1) * g->step[2] + g->taps[2], CHUNK / size);
    p->shifts = find_fill(&g->x, &p->fill);
    p->is_segment = is_segment(w, &g->x);
    if (p->is_segment)
        lay_out_as_memory(p, g->x.size[2], -g->offset[2]);
    /* All stored results must allow the same accesses. */
    p->grain = w->has_y ? grain_of(w, &g->y, p->along) : p->along;
    p->grain = w->has_index ? gcd64(p->grain, grain_of(w, &g->index, p->along)) : p->grain;
    p->row_bytes = pooling_bytes(&g->x, p->pitch);
}

/* Rows of x that this number of rows of positions reads. Those of consecutive rows overlap if windows do. */
static int64_t rows_seen(const struct pooling *w, int64_t rows) { return (rows - 1) * w->g.step[1] + w->g.taps[1]; }

/* down: rows of results per thread, as registers allow. Tiles are halved until their input rows fit in TILE_BYTES. */
static void find_forward(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    int64_t rows = g->y.size[1], down = 4;
    if (g->taps[0] != 1 || g->step[0] != 1 || g->offset[0] != 0 || !pooling_is_planes(g, &g->x) ||
        pooling_may_be_empty(g) || g->n * g->c * rows >= INT32_MAX || !padding_has_number(w))
        return;
    find_rows(w);
    /* POOL_LOADS: elements of x that a thread holds in registers. */
    while (down > 1 && (down > rows || rows_seen(w, down) * g->taps[2] > POOL_LOADS))
        down /= 2;
    rows = round_up(rows, down);
    while (rows > down && rows_seen(w, rows) * w->nchw.row_bytes > TILE_BYTES)
        rows = round_up(rows / 2, down);
    if (rows_seen(w, rows) * w->nchw.row_bytes > TILE_BYTES)
        return;
    w->kernel = POOL_NCHW;
    w->nchw.tile_rows = rows;
    w->patch[1] = down;
    w->patch[2] = 1;
}

/* The layout of dy that contributes to a run of dx, which begins where it does in memory, possibly between the starts
   of two windows. A thread has ALONG positions of dy: its run of dx is as many steps long. Floor division by hand, as
   offsets may be negative. */
static void find_rows_back(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    struct nchw_tile *p = &w->nchw;
    int64_t step = g->step[2], start = g->offset[2] / step - (g->offset[2] % step < 0), before;
    p->along = ALONG * step;
    p->columns = divide_up(g->x.size[2], p->along);
    /* Elements from the last window's start to the beginning of the row, less than a step. */
    p->shift = g->offset[2] - start * step;
    before = g->taps[2] > p->shift ? (g->taps[2] - 1 - p->shift) / step : -1;
    p->before = start - before;
    lay_out(p, max64(g->y.size[2], (g->x.size[2] - 1 + g->offset[2]) / step + 1), p->before, p->along / step,
            before + (p->along - 1 + p->shift) / step + 1, CHUNK);
    p->shifts = find_fill(&g->y, &p->fill);
    p->index_shifts = w->has_index && find_fill(&g->index, &p->index_fill);
    p->is_segment = is_segment(w, &g->y) && (!w->has_index || is_segment(w, &g->index));
    if (p->is_segment)
        lay_out_as_memory(p, g->y.size[2], p->before);
    p->grain = grain_of(w, &g->x, p->along);
    p->row_bytes = pooling_bytes(&g->y, p->pitch) + (w->has_index ? pooling_bytes(&g->index, p->pitch) : 0);
}

/* Returns the rows of positions that contribute to this number of adjacent patches. */
static int64_t rows_reaching(const struct pooling *w, int64_t groups) {
    return groups * w->patch[1] + (w->g.taps[1] - 1) / w->g.step[1];
}

/* pooling_patches depends on the patch, which is therefore set first, and restored if nothing fits. A thread computes
   ALONG steps of dx, of at most 2 elements each. */
static void find_backward(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    int64_t patch[3], groups;
    if (g->taps[0] != 1 || g->step[0] != 1 || g->offset[0] != 0 || g->step[2] > 2 || g->offset[2] <= -CHUNK ||
        pooling_uses(w, &g->saved) || !pooling_is_planes(g, &g->y) ||
        (w->has_index && !pooling_is_planes(g, &g->index)) || g->n * g->c * g->x.size[1] >= INT32_MAX)
        return;
    find_rows_back(w);
    memcpy(patch, w->patch, sizeof patch);
    w->patch[1] = g->step[1] == 1 ? 4 : g->step[1] == 2 ? 2 : 1;
    w->patch[2] = 1;
    /* Halved until the contributing rows fit. */
    groups = pooling_patches(w, 1);
    while (groups > 1 && rows_reaching(w, groups) * w->nchw.row_bytes > TILE_BYTES)
        groups = divide_up(groups, 2);
    w->nchw.tile_rows = groups;
    if (rows_reaching(w, groups) * w->nchw.row_bytes <= TILE_BYTES)
        w->kernel = POOL_NCHW_BWD;
    else
        memcpy(w->patch, patch, sizeof patch);
}

/* One window per plane, if some planes, and all of them, are whole chunks of memory. The index of the maximum is not
   stored. */
static void find_whole(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    int64_t plane = g->x.size[1] * g->x.size[2], bytes = pooling_bytes(&g->x, plane);
    bool is_whole = !w->has_index && plane > 1 && pooling_is_planes(g, &g->x) && g->x.tensor->alignment % CHUNK == 0 &&
                    g->n * g->c < INT32_MAX && g->n * g->c * bytes % CHUNK == 0 && WHOLE_UNIT * bytes <= TILE_BYTES;
    for (int i = 0; i < 3; i++)
        is_whole = is_whole && g->y.size[i] == 1 && g->offset[i] == 0 && g->taps[i] == g->x.size[i];
    if (!is_whole)
        return;
    w->kernel = POOL_WHOLE;
    w->nchw.tile_rows = WHOLE_UNIT * max64(1, WHOLE_BYTES / bytes / WHOLE_UNIT);
}

/* Applies only if channels are not contiguous: in NCHW, rows are. Replaces the general pool kernels. */
void pooling_find_nchw(struct pooling *w) {
    if (w->run > 1 || (w->kernel != POOL && w->kernel != POOL_BWD))
        return;
    if (w->g.backward) {
        find_backward(w);
        return;
    }
    find_whole(w);
    if (w->kernel == POOL)
        find_forward(w);
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

/* Sizes are arguments: another number of planes needs no compilation. */
static void emit_whole(struct kernel_source *source, const struct pooling *w) {
    emit_number(source, w->g.n * w->g.c, "planes");
    emit_number(source, w->nchw.tile_rows, "tile_planes");
    emit_divisor(source, w->g.c, "channels");
}

/* Returns the elements of the padding row that threads read: as many as one thread reads, and the rest of a line. */
static int64_t outside_of(const struct pooling *w) {
    const struct nchw_tile *p = &w->nchw;
    int64_t line = POOL_LINE / pooling_bytes(pooling_source(w), 1);
    return round_up(p->phase + p->seen + p->vector + p->left, line) - p->left;
}

/* Number of elements, out of those that a thread reads of a row, that end within it for all threads. */
static int64_t always_inside(const struct pooling *w) {
    const struct nchw_tile *p = &w->nchw;
    /* Elements of the source from one thread to the next. */
    int64_t each = w->g.backward ? p->along / w->g.step[2] : p->along * w->g.step[2];
    int64_t before = w->g.backward ? p->before : -w->g.offset[2];
    int64_t inside = pooling_source(w)->size[2] - before - (p->columns - 1) * each;
    return inside < 0 ? 0 : inside < p->seen ? inside : p->seen;
}

/* Loops and accesses depend on constants; the location of a tile on arguments. */
static void emit_layout(struct kernel_source *source, const struct pooling *w) {
    const struct nchw_tile *p = &w->nchw;
    const struct resample_operand *held = pooling_source(w);
    emit_constant(source, "FILL", p->fill);
    emit_constant(source, "SHIFTS", p->shifts);
    emit_constant(source, "VECTOR", p->vector);
    emit_constant(source, "PHASE", p->phase);
    emit_constant(source, "IS_SEGMENT", p->is_segment);
    emit_constant(source, "OUTSIDE", outside_of(w));
    emit_constant(source, "LEFT_OUT", max64(0, w->g.backward ? -p->before : w->g.offset[2]));
    emit_constant(source, "RIGHT_IN", always_inside(w));
    emit_number(source, w->g.n * w->g.c, "planes");
    emit_number(source, held->size[1] * held->size[2], "plane");
    emit_number(source, w->g.n * w->g.c * held->size[1] * held->size[2], "elements");
    emit_number(source, p->tile_rows, "tile_rows");
    emit_number(source, p->left, "left");
    emit_number(source, p->first, "first");
    emit_divisor(source, p->pitch / p->fill, "row_fills");
    emit_divisor(source, p->columns, "columns");
    emit_divisor(source, w->g.c, "channels");
    if (!w->g.backward)
        return;
    emit_constant(source, "SHIFT", p->shift);
    emit_constant(source, "INDEX_FILL", p->index_fill);
    emit_constant(source, "INDEX_SHIFTS", p->index_shifts);
    emit_number(source, p->before, "before");
    if (w->has_index)
        emit_divisor(source, p->pitch / p->index_fill, "index_row_fills");
}

/* Returns the number of tiles that divide the height of a plane. */
static int64_t bands_of(const struct pooling *w) {
    int64_t all = w->g.backward ? pooling_patches(w, 1) : w->g.y.size[1];
    return divide_up(all, w->nchw.tile_rows);
}

/* Large planes are split into bands, one per tile; otherwise a tile has as many planes as leave work for all
   multiprocessors. More planes only if the block's last round of threads is filled at least as well as before. */
static int64_t planes_of_tile(const struct pooling *w) {
    const struct nchw_tile *p = &w->nchw;
    int64_t each = 1, rows = w->g.backward ? rows_reaching(w, p->tile_rows) : rows_seen(w, p->tile_rows);
    /* Threads that a plane's results occupy. */
    int64_t items = p->columns * (w->g.backward ? p->tile_rows : p->tile_rows / w->patch[1]);
    if (bands_of(w) > 1)
        return 1;
    /* The distance from plane to plane in shared memory; the last plane ends with its rows. */
    int64_t apart = p->is_segment ? pooling_source(w)->size[1] * p->row_bytes : rows * p->row_bytes;
    for (int64_t n = 2; (n - 1) * apart + rows * p->row_bytes <= TILE_BYTES &&
                        w->g.n * w->g.c / n >= BLOCKS_EACH * w->device->cuda.multiprocessors;
         n++)
        if (round_up(n * items, POOL_THREADS) * each <= round_up(each * items, POOL_THREADS) * n)
            each = n;
    return each;
}

/* There is one tile per block. */
int64_t pooling_blocks_of_nchw(const struct pooling *w) {
    int64_t each = w->kernel == POOL_WHOLE ? w->nchw.tile_rows : planes_of_tile(w);
    return divide_up(w->g.n * w->g.c, each) * (w->kernel == POOL_WHOLE ? 1 : bands_of(w));
}

/* Bytes of a segment in shared memory, which may begin anywhere in a line, and whose chunks begin and end between
   elements. */
static int64_t bytes_of_segment(const struct resample_operand *o, int64_t count) {
    return pooling_bytes(o, count) + POOL_LINE + CHUNK;
}

/* Shared memory of a block: rows of all planes, what the last thread reads after them, and padding on both sides of a
   segment. */
uint32_t pooling_emit_nchw(struct kernel_source *source, const struct pooling *w) {
    const struct nchw_tile *p = &w->nchw;
    int64_t plane = w->g.x.size[1] * w->g.x.size[2];
    if (w->kernel == POOL_WHOLE) {
        emit_whole(source, w);
        return (uint32_t)pooling_bytes(&w->g.x, p->tile_rows * plane) + POOL_LINE;
    }
    int64_t rows = w->g.backward ? rows_reaching(w, p->tile_rows) : rows_seen(w, p->tile_rows);
    int64_t each = planes_of_tile(w);
    emit_layout(source, w);
    emit_number(source, each, "tile_planes");
    emit_divisor(source, rows, "rows_seen");
    emit_divisor(source, bands_of(w), "bands");
    emit_divisor(source, w->g.backward ? p->tile_rows : p->tile_rows / w->patch[1], "groups");
    if (p->is_segment) {
        int64_t count =
            p->left + (each - 1) * pooling_source(w)->size[1] * pooling_source(w)->size[2] + rows * p->pitch;
        int64_t bytes = bytes_of_segment(pooling_source(w), 2 * outside_of(w) + count);
        if (!w->has_index || !w->g.backward)
            return (uint32_t)bytes;
        int64_t room = round_up(p->left, POOL_LINE / pooling_bytes(&w->g.index, 1));
        emit_number(source, round_up(bytes, POOL_LINE) + pooling_bytes(&w->g.index, room - p->left), "numbers_at");
        return (uint32_t)(round_up(bytes, POOL_LINE) + bytes_of_segment(&w->g.index, outside_of(w) + room + count));
    }
    return (uint32_t)(each * rows * p->row_bytes + p->slack * (p->row_bytes / p->pitch));
}
