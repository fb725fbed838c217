/* SPDX-License-Identifier: Apache-2.0 */
/* Packs patches and filters: a panel is divided into rectangles in which memory is a plain strided matrix (some
   channels of one tap, at consecutive positions along the last dimension), and each is packed at once. */
#include "engines/cpu/product/patches.h"

#include "base/dtype.h"
#include "base/number.h"

#include <string.h>

/* A panel of gemm, of which one rectangle is written at a time. */
struct panel {
    void *data;
    int width;
    struct packing packing;
};

/* Returns the address of the group of a lane that starts at a given k. */
static void *corner(const struct panel *panel, int64_t lane, int64_t depth) {
    return (char *)panel->data + (depth / panel->packing.group * panel->width + lane) * panel->packing.bytes;
}

/* Writes zeros where a tap is outside the image: gemm multiplies them like other numbers. */
static void clear(const struct panel *panel, int64_t lane, int64_t lanes, int64_t depth, int64_t depths) {
    for (int64_t i = 0; i < depths; i += panel->packing.group)
        memset(corner(panel, lane, depth + i), 0, (size_t)(lanes * panel->packing.bytes));
}

/* Packs elements base[index + i * stride + d * depth_stride]. The index is folded into the base, so that the matrix
   starts there. */
static void copy(const struct panel *panel, int64_t lane, int64_t lanes, int64_t depth, int64_t depths,
                 const void *base, weftDataType_t type, int64_t index, int64_t stride, int64_t depth_stride) {
    /* Types have whole bytes: convolution declines others. */
    struct gemm_matrix matrix = {.base = (const char *)base + dtype_bytes(type, index),
                                 .type = type,
                                 .stride = stride,
                                 .depth_stride = depth_stride};
    panel->packing.pack(&matrix, corner(panel, lane, depth), panel->width, 0, 0, (int)lanes, 0, (int)depths);
}

/* ---- Patches ----------------------------------------------------------------------------------------------------- */

struct run patches_run(const struct patches *p, int64_t batch, int64_t position, int64_t most) {
    /* Positions count through one image, or through all images; then the image index is split off first. */
    int64_t per_image = patches_count(p->positions);
    int64_t image = p->batch_has_images ? batch / p->groups : position / per_image;
    struct run run;
    patches_unravel(p->batch_has_images ? position : position % per_image, p->positions, run.place);
    run.count = min64(most, p->positions[2] - run.place[2]);
    run.origin = image * p->image_stride + batch % p->groups * p->group_stride;
    return run;
}

void patches_inside(const struct patches *p, const int64_t *first, int64_t count, int64_t *before, int64_t *end) {
    *before = min64(max64(divide_up(-first[2], p->step[2]), 0), count);
    *end = min64(max64(divide_up(p->size[2] - first[2], p->step[2]), *before), count);
    /* The outer dimensions are constant along the run: if one is outside, the whole run is. */
    for (int i = 0; i < 2; i++)
        if (first[i] < 0 || first[i] >= p->size[i])
            *before = *end = count;
}

/* Packs a run of positions under one tap for some channels. The run is along lanes or the depth, starting at `at`; the
   channels are along the other one, starting at `channel_at`. */
static void pack_run(const struct patches *p, const struct panel *panel, const struct run *run, int64_t at, int64_t tap,
                     int64_t channel, int64_t channels, int64_t channel_at) {
    int64_t taps[3], first[3];
    int64_t index = run->origin + channel * p->channel_stride;
    patches_unravel(tap, p->taps, taps);
    /* Position of the tap in the image at the start of the run; negative before the image. */
    for (int i = 0; i < 3; i++)
        first[i] = run->place[i] * p->step[i] + p->offset[i] + taps[i] * p->tap_step[i];
    int64_t before, end;
    patches_inside(p, first, run->count, &before, &end);
    index += first[0] * p->stride[0] + first[1] * p->stride[1];
    index += (first[2] + before * p->step[2]) * p->stride[2];
    int64_t step = p->step[2] * p->stride[2];
    /* Clears the depth before and after the part, then packs the part. */
    if (p->positions_are_depth) {
        clear(panel, channel_at, channels, at, before);
        clear(panel, channel_at, channels, at + end, run->count - end);
        if (end > before)
            copy(panel, channel_at, channels, at + before, end - before, p->base, p->type, index, p->channel_stride,
                 step);
    } else {
        /* The same with lanes and depth exchanged. */
        if (before > 0)
            clear(panel, at, before, channel_at, channels);
        if (run->count > end)
            clear(panel, at + end, run->count - end, channel_at, channels);
        if (end > before)
            copy(panel, at + before, end - before, channel_at, channels, p->base, p->type, index, step,
                 p->channel_stride);
    }
}

/* Packs in rectangles: a run of positions x some channels under one tap. */
void patches_pack(const void *source, void *data, int width, int64_t batch, int64_t first, int count, int64_t k0,
                  int depth) {
    const struct patches *p = source;
    const struct panel panel = {data, width, p->packing};
    int64_t position = p->positions_are_depth ? k0 : first, positions = p->positions_are_depth ? depth : count;
    int64_t index = p->positions_are_depth ? first : k0, indices = p->positions_are_depth ? count : depth;
    /* Iterates over runs of positions and, within each, over the taps with their channels. */
    for (int64_t i = 0; i < positions;) {
        struct run run = patches_run(p, batch, position + i, positions - i);
        for (int64_t j = 0; j < indices;) {
            int64_t tap = (index + j) / p->channels, channel = (index + j) % p->channels;
            int64_t channels = min64(indices - j, p->channels - channel);
            pack_run(p, &panel, &run, i, tap, channel, channels, j);
            j += channels;
        }
        i += run.count;
    }
}

/* True for a dimension that is read completely and unchanged: one tap, at its own position. */
static bool is_plain(const struct patches *p, int i) {
    return p->taps[i] == 1 && p->offset[i] == 0 && p->step[i] == 1 && p->size[i] == p->positions[i];
}

/* Merges dimensions from the last one outwards, as long as they are complete and contiguous. Dimension 2 becomes the
   product; the others keep one position. */
void patches_simplify(struct patches *p) {
    for (int i = 1; i >= 0 && is_plain(p, i) && is_plain(p, 2); i--) {
        if (p->size[i] != 1 && p->stride[i] != p->stride[2] * p->size[2])
            return;
        p->size[2] = p->positions[2] = p->size[i] * p->size[2];
        p->size[i] = p->positions[i] = 1;
    }
}

/* ---- Filters ----------------------------------------------------------------------------------------------------- */

/* Depth is taps and, fastest, channels: rectangles are one tap's channels x `count` rows. */
void filter_pack(const void *source, void *data, int width, int64_t batch, int64_t first, int count, int64_t k0,
                 int depth) {
    const struct filter *f = source;
    const struct panel panel = {data, width, f->packing};
    for (int64_t j = 0; j < depth;) {
        int64_t tap = (k0 + j) / f->channels, channel = (k0 + j) % f->channels, taps[3];
        int64_t channels = min64(depth - j, f->channels - channel);
        /* Index of this tap and channel in the panel's first row. */
        int64_t index =
            f->first + batch % f->groups * f->group_stride + first * f->row_stride + channel * f->channel_stride;
        patches_unravel(tap, f->taps, taps);
        for (int i = 0; i < 3; i++)
            index += taps[i] * f->tap_stride[i];
        copy(&panel, 0, count, j, channels, f->base, f->type, index, f->row_stride, f->channel_stride);
        j += channels;
    }
}

/* Starts with the fastest tap dimension, because channels are faster than taps. */
void filter_simplify(struct filter *f) {
    for (int i = 2; i >= 0; i--) {
        if (f->taps[i] != 1 && f->tap_stride[i] != f->channels * f->channel_stride)
            return;
        f->channels *= f->taps[i];
        f->taps[i] = 1;
    }
}
