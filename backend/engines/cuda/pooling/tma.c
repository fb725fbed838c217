/* SPDX-License-Identifier: Apache-2.0 */
/* Channels-last windows with steps of one. Each element is in several windows, so it pays off to load boxes of the
   image into shared memory with TMA: pooling/pool_tma.cuh. */
#include "base/number.h"
#include "engines/cuda/pooling/pooling.h"

enum {
    ACCESS = 16,    /* bytes: what a thread reads per pixel, and the multiple that TMA requires of strides */
    LANES_MAX = 16, /* adjacent threads along the channels */
    LANES_MIN = 4,  /* 64 bytes of channels */
    DOWN = 4,       /* rows of a thread's patch */
};

/* True if adjacent windows along an axis share all but one row of elements. */
static bool is_dense(const struct pooling *w, int axis) {
    return w->g.step[axis] == 1 && w->g.taps[axis] > 1 && pooling_result(w)->size[axis] > 1;
}

/* True if TMA can load boxes of an operand: its strides are multiples of 16 bytes, and so is a box's row of `channels`.
   Elements of 8 bytes have no map type here. images: their number; the stride of a single one has no meaning. */
static bool has_strides(const struct resample_operand *o, int64_t images, int64_t channels) {
    int64_t size = pooling_bytes(o, 1);
    bool is_supported = size <= 4 && channels * size % ACCESS == 0 && o->tensor->alignment % ACCESS == 0 &&
                        (images == 1 || o->batch_stride * size % ACCESS == 0);
    for (int i = 1; i < 3; i++)
        is_supported =
            is_supported && (o->size[i] == 1 || (o->size_stride[i] > 0 && o->size_stride[i] * size % ACCESS == 0));
    return is_supported;
}

/* A block has at most POOL_THREADS: lanes along channels, the rest along patches in both directions, in equal
   shares. */
void pooling_find_tma(struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    const struct resample_operand *read = pooling_source(w), *result = pooling_result(w);
    /* Runs of channels, in equal slices of at most LANES_MAX, each for one block. */
    int64_t groups = g->c / w->run, slices = divide_up(groups, LANES_MAX),
            lanes = groups ? divide_up(groups, slices) : 0;
    /* Gradients use the indices of their maxima; forward computes none, and no window of a maximum may be empty. */
    bool serves = g->backward ? w->kernel == POOL_BWD && w->has_index
                              : w->kernel == POOL && !w->has_index &&
                                    !(g->mode == WEFT_RESAMPLE_MAXPOOL && pooling_may_be_empty(g));
    if (!serves || w->device->cuda.major < 9 || !is_dense(w, 1) || !is_dense(w, 2) || g->x.size[0] != 1 ||
        g->taps[0] != 1 || g->offset[0] != 0 || pooling_bytes(read, w->run) != ACCESS || groups < LANES_MIN ||
        !has_strides(read, g->n, lanes * w->run) || (g->backward && !has_strides(&g->index, g->n, lanes * w->run)))
        return;
    w->kernel = g->backward ? POOL_TMA_BWD : POOL_TMA;
    w->rows = 1;
    w->patch[1] = DOWN;
    w->patch[2] = g->backward ? 2 : w->patch[2];
    struct tma_tile *b = &w->tma;
    b->lanes = lanes;
    int64_t threads = POOL_THREADS / b->lanes, pairs = divide_up(result->size[2], w->patch[2]),
            heights = divide_up(result->size[1], DOWN);
    /* Equal tiles along a row, then as many patches below as threads are left. */
    b->along = divide_up(pairs, divide_up(pairs, threads));
    b->below = threads / b->along < heights ? threads / b->along : heights;
}

/* Per block: results in both directions, and the extents of the source that their windows read. */
static int64_t columns_of(const struct pooling *w) { return w->tma.along * w->patch[2]; }
static int64_t rows_of(const struct pooling *w) { return w->tma.below * w->patch[1]; }
static int64_t columns_seen(const struct pooling *w) { return columns_of(w) + w->g.taps[2] - 1; }
static int64_t rows_seen(const struct pooling *w) { return rows_of(w) + w->g.taps[1] - 1; }
static int64_t slices_of(const struct pooling *w) { return divide_up(w->g.c / w->run, w->tma.lanes); }
static int64_t tiles_of(const struct pooling *w) { return divide_up(pooling_result(w)->size[2], columns_of(w)); }
static int64_t bands_of(const struct pooling *w) { return divide_up(pooling_result(w)->size[1], rows_of(w)); }

int64_t pooling_blocks_of_tma(const struct pooling *w) { return w->g.n * bands_of(w) * slices_of(w) * tiles_of(w); }

/* Returns the bytes of one box: [rows_seen][columns_seen][channels]. */
static int64_t bytes_of_box(const struct pooling *w, const struct resample_operand *o) {
    return pooling_bytes(o, columns_seen(w) * rows_seen(w) * w->tma.lanes * w->run);
}

/* A copy depends only on sizes: bf16 stands for all types of 2 bytes, i32 for all of 4. */
static void emit_map_of(struct kernel_source *source, const struct pooling *w, const struct resample_operand *o,
                        const char *name) {
    int64_t size = pooling_bytes(o, 1), strides[] = {o->size_stride[2], o->size_stride[1], o->batch_stride};
    /* Channels, columns, rows, images, the contiguous dim first. Out-of-bounds elements read as zero. */
    int64_t dims[] = {w->g.c, o->size[2], o->size[1], w->g.n};
    int64_t box[] = {w->tma.lanes * w->run, columns_seen(w), rows_seen(w), 1};
    bool is_scratch = o == &w->g.index && w->index_is_scratch;
    struct cuda_map map = {.form = {.type = size == 1   ? TENSOR_MAP_U8
                                            : size == 2 ? TENSOR_MAP_BF16
                                                        : TENSOR_MAP_I32,
                                    .rank = 4,
                                    .promotion = TENSOR_MAP_L2_128B}};
    for (int i = 0; i < 4; i++) {
        map.form.dims[i] = (uint64_t)dims[i];
        map.form.box[i] = (uint32_t)box[i];
        if (i > 0)
            /* The driver rejects strides that are not multiples of 16 bytes, even along dims of one element. */
            map.form.strides[i - 1] = dims[i] > 1 ? (uint64_t)(strides[i - 1] * size) : ACCESS;
    }
    emit_map(source, is_scratch ? -1 : graph_find_value(w->region->graph, o->tensor), &map, name);
}

/* Emits the maps, which come before all other fields. */
void pooling_emit_maps(struct kernel_source *source, const struct pooling *w) {
    emit_map_of(source, w, pooling_source(w), w->g.backward ? "y_map" : "x_map");
    if (w->g.backward)
        emit_map_of(source, w, &w->g.index, "index_map");
}

/* The indices of maxima follow dy, beginning at a cache line. Returns the bytes of shared memory. */
uint32_t pooling_emit_tma(struct kernel_source *source, const struct pooling *w) {
    int64_t first = bytes_of_box(w, pooling_source(w)), second = w->g.backward ? bytes_of_box(w, &w->g.index) : 0;
    int64_t numbers_at = round_up(first, POOL_LINE);
    emit_number(source, first + second, "box_bytes");
    if (w->g.backward)
        emit_number(source, numbers_at, "numbers_at");
    emit_number(source, columns_of(w), "tile_columns");
    emit_number(source, rows_of(w), "tile_rows");
    emit_number(source, columns_seen(w), "columns_seen");
    emit_number(source, w->tma.below, "below");
    emit_number(source, w->g.c, "channels");
    emit_divisor(source, w->tma.along, "along");
    emit_divisor(source, tiles_of(w), "tiles");
    emit_divisor(source, slices_of(w), "slices");
    emit_divisor(source, bands_of(w), "bands");
    return (uint32_t)(w->g.backward ? numbers_at + second : first);
}
