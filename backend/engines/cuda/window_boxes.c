/* SPDX-License-Identifier: Apache-2.0 */
/* Windows that go one by one over channels that lie side by side. Each element is in so many of them that it pays to have it
   in shared memory, where Hopper's copy engine brings boxes of the image: kernels/pool_boxes.cuh. */
#include "engines/cuda/window.h"

enum { ACCESS = 16, LANES_MOST = 16, LANES_LEAST = 4, DOWN = 4 };

static int64_t parts(int64_t number, int64_t unit) { return (number + unit - 1) / unit; }

static bool is_dense(const struct resample_geometry *g, int axis) {
    return g->step[axis] == 1 && g->taps[axis] > 1 && g->y.size[axis] > 1;
}

/* Whether the copy engine can walk the image: strides are whole accesses, which `run` has seen to where it uses them. */
static bool has_strides(const struct resample_operand *x) {
    bool has = true;
    for (int i = 1; i < 3; i++)
        has = has && (x->size[i] == 1 || x->size_stride[i] > 0);
    return has;
}

void window_find_boxes(struct window *w) {
    const struct resample_geometry *g = &w->g;
    int64_t size = window_bytes(&g->x, 1), groups = g->c / w->run, slices = parts(groups, LANES_MOST);
    bool repeats_nothing = g->mode == WEFT_RESAMPLE_MAXPOOL && window_may_be_empty(g);
    if (w->kernel != POOL || w->device->cuda.major < 9 || w->has_index || !is_dense(g, 1) || !is_dense(g, 2) ||
        g->x.size[0] != 1 || g->taps[0] != 1 || g->offset[0] != 0 || w->run * size != ACCESS || size > 4 ||
        groups < LANES_LEAST || !has_strides(&g->x) || repeats_nothing)
        return;
    w->kernel = POOL_BOXES;
    w->rows = 1;
    w->patch[1] = DOWN;
    struct boxes *b = &w->boxes;
    b->lanes = parts(groups, slices);
    int64_t threads = POOL_THREADS / b->lanes, pairs = parts(g->y.size[2], w->patch[2]),
            heights = parts(g->y.size[1], DOWN);
    b->along = parts(pairs, parts(pairs, threads));
    b->below = threads / b->along < heights ? threads / b->along : heights;
}

static int64_t columns_of(const struct window *w) { return w->boxes.along * w->patch[2]; }
static int64_t rows_of(const struct window *w) { return w->boxes.below * w->patch[1]; }
static int64_t columns_seen(const struct window *w) { return columns_of(w) + w->g.taps[2] - 1; }
static int64_t rows_seen(const struct window *w) { return rows_of(w) + w->g.taps[1] - 1; }
static int64_t slices_of(const struct window *w) { return parts(w->g.c / w->run, w->boxes.lanes); }

int64_t window_blocks_of_boxes(const struct window *w) {
    return w->g.n * parts(w->g.y.size[1], rows_of(w)) * slices_of(w) * parts(w->g.y.size[2], columns_of(w));
}

/* Prints the map, which comes before all else. */
void window_print_map(struct kernel_print *print, const struct window *w) {
    const struct resample_operand *x = &w->g.x;
    int64_t size = window_bytes(x, 1), strides[] = {x->size_stride[2], x->size_stride[1], x->batch_stride};
    int64_t dims[] = {w->g.c, x->size[2], x->size[1], w->g.n};
    int64_t box[] = {w->boxes.lanes * w->run, columns_seen(w), rows_seen(w), 1};
    struct cuda_map map = {.form = {.type = size == 1   ? TENSOR_MAP_U8
                                            : size == 2 ? TENSOR_MAP_BF16
                                                        : TENSOR_MAP_I32,
                                    .rank = 4,
                                    .promotion = TENSOR_MAP_L2_128B}};
    for (int i = 0; i < 4; i++) {
        map.form.dims[i] = (uint64_t)dims[i];
        map.form.box[i] = (uint32_t)box[i];
        if (i > 0)
            map.form.strides[i - 1] = dims[i] > 1 ? (uint64_t)(strides[i - 1] * size) : ACCESS;
    }
    print_map(print, graph_find_value(w->region->graph, x->tensor), &map, "x_map");
}

uint32_t window_print_boxes(struct kernel_print *print, const struct window *w) {
    int64_t bytes = columns_seen(w) * rows_seen(w) * w->boxes.lanes * ACCESS;
    print_number(print, bytes, "box_bytes");
    print_number(print, columns_of(w), "tile_columns");
    print_number(print, rows_of(w), "tile_rows");
    print_number(print, columns_seen(w), "columns_seen");
    print_number(print, w->boxes.below, "below");
    print_number(print, w->g.c, "channels");
    print_divisor(print, w->boxes.along, "along");
    print_divisor(print, parts(w->g.y.size[2], columns_of(w)), "tiles");
    print_divisor(print, slices_of(w), "slices");
    print_divisor(print, parts(w->g.y.size[1], rows_of(w)), "bands");
    return (uint32_t)bytes;
}
