/* SPDX-License-Identifier: Apache-2.0 */
/* Packs panels for direct.c. */
#include "engines/cpu/product/panels.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/vector.h"

#include <string.h>

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Copies `rows` rows of `count` floats, where count is a compile-time constant. */
static inline void copy_columns(float *restrict to, int64_t to_ld, const float *restrict from, int64_t from_ld,
                                int64_t rows, int count) {
    for (int64_t i = 0; i < rows; i++, to += to_ld, from += from_ld)
        for (int j = 0; j < count; j++)
            to[j] = from[j];
}

/* Copies any number of floats in powers of two: a panel's row is too short for a loop over its length. */
WIDE static void copy_rows(float *restrict to, int64_t to_ld, const float *restrict from, int64_t from_ld,
                           int64_t count, int64_t rows) {
    int64_t at = 0;
    for (; at + 64 <= count; at += 64)
        copy_columns(to + at, to_ld, from + at, from_ld, rows, 64);
    if (count & 32)
        copy_columns(to + at, to_ld, from + at, from_ld, rows, 32), at += 32;
    if (count & 16)
        copy_columns(to + at, to_ld, from + at, from_ld, rows, 16), at += 16;
    if (count & 8)
        copy_columns(to + at, to_ld, from + at, from_ld, rows, 8), at += 8;
    if (count & 4)
        copy_columns(to + at, to_ld, from + at, from_ld, rows, 4), at += 4;
    for (; at < count; at++)
        copy_columns(to + at, to_ld, from + at, from_ld, rows, 1);
}

/* ---- Filters ----------------------------------------------------------------------------------------------------- */

enum { MIXED = 8192, WIDEST = 64 }; /* floats that are transposed at once; maximum columns of a panel */

/* Packs elements base[index + column * stride + depth * depth_stride]. */
static void pack(const struct filter *f, float *panel, int width, int64_t index, int count, int64_t stride, int depth,
                 int64_t depth_stride) {
    struct gemm_matrix matrix = {.base = (const char *)f->base + dtype_bytes(f->type, index),
                                 .type = f->type,
                                 .stride = stride,
                                 .depth_stride = depth_stride};
    gemm_pack_matrix(&matrix, panel, width, 0, 0, count, 0, depth);
}

/* Taps are contiguous in memory: some channels with all taps are transposed together into `mixed`, [channels, taps,
   width], whose rows are then copied to their taps. */
static void pack_by_channels(const struct filter *f, float *panel, int width, int64_t index, int count,
                             const struct depths *depths) {
    float mixed[MIXED];
    int64_t taps = patches_count(f->taps);
    int64_t most = f->channel_stride == taps ? min64(MIXED / width, GEMM_DEPTH) / taps : 1;
    for (int64_t channel = 0; channel < depths->count; channel += most) {
        int64_t channels = min64(most, depths->count - channel);
        pack(f, mixed, width, index + (depths->first + channel) * f->channel_stride, count, f->row_stride,
             (int)(channels * taps), 1);
        for (int64_t tap = 0; tap < depths->segments; tap++)
            copy_rows(panel + (tap * depths->count + channel) * width, width, mixed + (depths->segment + tap) * width,
                      taps * width, count, channels);
    }
}

/* Packs a range of the depth with a constant stride. */
static void pack_run_of_filter(const struct filter *f, float *panel, int width, int64_t index, int count,
                               int64_t depth) {
    for (int64_t d = 0; d < depth; d += GEMM_DEPTH)
        pack(f, panel + d * width, width, index + d * f->channel_stride, count, f->row_stride,
             (int)min64(GEMM_DEPTH, depth - d), f->channel_stride);
}

/* One tap after the other, or all at once if they can be merged. */
static void pack_by_taps(const struct filter *f, float *panel, int width, int64_t index, int count,
                         const struct depths *depths) {
    struct filter simplified = *f;
    filter_simplify(&simplified);
    if (patches_count(simplified.taps) == 1 && depths->count == f->channels) {
        pack_run_of_filter(f, panel, width, index + depths->segment * f->channels * f->channel_stride, count,
                           depths->segments * depths->count);
        return;
    }
    for (int64_t i = 0; i < depths->segments; i++, panel += depths->count * width) {
        int64_t taps[3], at = index + depths->first * f->channel_stride;
        patches_unravel(depths->segment + i, f->taps, taps);
        for (int j = 0; j < 3; j++)
            at += taps[j] * f->tap_stride[j];
        pack_run_of_filter(f, panel, width, at, count, depths->count);
    }
}

/* True if taps are contiguous in memory; dimensions of one tap do not matter. */
static bool taps_are_adjacent(const struct filter *f) {
    int64_t reach = 1;
    for (int i = 2; i >= 0; i--) {
        if (f->taps[i] != 1 && f->tap_stride[i] != reach)
            return false;
        reach *= f->taps[i];
    }
    return reach > 1 && reach <= MIXED / WIDEST;
}

void panels_of_filter(const struct filter *f, float *panel, int width, int64_t group, int64_t column, int count,
                      const struct depths *depths) {
    int64_t index = f->first + group * f->group_stride + column * f->row_stride;
    if (count < width)
        memset(panel, 0, (size_t)(depths->segments * depths->count * width) * sizeof(float));
    if (taps_are_adjacent(f))
        pack_by_channels(f, panel, width, index, count, depths);
    else
        pack_by_taps(f, panel, width, index, count, depths);
}

void panels_of_channels(const struct filter *f, float *panel, int64_t column, int64_t count,
                        const struct depths *depths) {
    int64_t index = f->first + column * f->group_stride;
    if (taps_are_adjacent(f)) {
        pack(f, panel, (int)count, index + depths->segment, (int)count, f->group_stride, (int)depths->segments, 1);
        return;
    }
    for (int64_t i = 0; i < depths->segments; i++, panel += count) {
        int64_t taps[3], at = index;
        patches_unravel(depths->segment + i, f->taps, taps);
        for (int j = 0; j < 3; j++)
            at += taps[j] * f->tap_stride[j];
        pack(f, panel, (int)count, at, (int)count, f->group_stride, 1, 1);
    }
}

/* ---- Images ------------------------------------------------------------------------------------------------------ */

static void clear_rows(float *to, int64_t ld, int64_t count, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        memset(to + i * ld, 0, (size_t)count * sizeof(float));
}

/* Packs a run of positions under one tap: `count` columns. */
static void pack_run_of_image(const struct patches *p, float *panel, int width, const struct run *run, int64_t tap,
                              int64_t channel, int64_t count) {
    int64_t taps[3], first[3], index = run->origin + channel;
    patches_unravel(tap, p->taps, taps);
    for (int i = 0; i < 3; i++)
        first[i] = run->place[i] * p->step[i] + p->offset[i] + taps[i] * p->tap_step[i];
    int64_t before, end;
    patches_inside(p, first, run->count, &before, &end);
    for (int i = 0; i < 3; i++)
        index += first[i] * p->stride[i];
    int64_t step = p->step[2] * p->stride[2];
    clear_rows(panel, width, count, before);
    clear_rows(panel + end * width, width, count, run->count - end);
    if (end > before)
        copy_rows(panel + before * width, width, (const float *)p->base + index + before * step, step, count,
                  end - before);
}

void panels_of_image(const struct patches *p, float *panel, int width, int64_t group, int64_t channel, int64_t channels,
                     int64_t column, int count, const struct depths *depths) {
    int64_t per_image = patches_count(p->positions);
    if (count < width)
        memset(panel, 0, (size_t)(depths->segments * depths->count * width) * sizeof(float));
    for (int64_t s = 0; s < depths->segments; s++)
        for (int64_t i = 0; i < depths->count;) {
            struct run run =
                patches_run(p, group, (depths->segment + s) * per_image + depths->first + i, depths->count - i);
            for (int64_t j = 0; j < count;) {
                int64_t tap = (column + j) / channels, at = (column + j) % channels;
                int64_t part = min64(count - j, channels - at);
                pack_run_of_image(p, panel + i * width + j, width, &run, tap, channel + at, part);
                j += part;
            }
            i += run.count;
            if (i == depths->count)
                panel += depths->count * width;
        }
}
