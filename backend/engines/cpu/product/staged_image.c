/* SPDX-License-Identifier: Apache-2.0 */
/* Copies images: runs of positions by some channels at a time, each of which is a strided matrix that gemm's packing
   functions transpose or convert. */
#include "engines/cpu/product/staged_image.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"

#include <string.h>

enum {
    RUN = 64,     /* positions per task: with 64 channels, 16 KiB on either side */
    CHANNELS = 8, /* channels that are copied at a time, while the next ones are prefetched */
    LINE = 16,    /* floats of a cache line */
    LINE_BYTES = 64
};

/* Computes the number of positions before and after the image that taps see. */
static void border_of(const struct patches *p, int i, int64_t *before, int64_t *after) {
    int64_t reach = (p->taps[i] - 1) * p->tap_step[i], last = (p->positions[i] - 1) * p->step[i];
    *before = max64(0, -(p->offset[i] + min64(0, reach)));
    *after = max64(0, last + p->offset[i] + max64(0, reach) - (p->size[i] - 1));
}

/* Merges contiguous dimensions of the image into dimension 2. */
static void merge_image(struct patches *image) {
    for (int i = 0; i < 3; i++) {
        image->positions[i] = image->size[i];
        image->taps[i] = image->step[i] = 1;
        image->offset[i] = 0;
    }
    patches_simplify(image);
}

/* Merges the channels of all groups if their stride is constant. */
static void merge_groups(struct patches *image) {
    int64_t stride = image->channels == 1 ? image->group_stride : image->channel_stride;
    if (image->channels != 1 && image->group_stride != image->channels * stride)
        return;
    image->channels *= image->groups;
    image->channel_stride = stride;
    image->groups = 1;
}

/* Rounds up to an odd number of cache lines: rows with such a pitch map to different cache sets. */
static int64_t round_to_odd_lines(int64_t floats) {
    return floats < LINE ? floats : LINE * (divide_up(floats, LINE) | 1);
}

/* Chooses the layout of the copy. */
static void lay_out(struct staged_image *stage) {
    struct patches *to = &stage->to;
    int64_t positions = patches_count(to->size), all = to->groups * to->channels;
    to->type = WEFT_DATA_FLOAT;
    to->channel_stride = stage->is_planes ? round_to_odd_lines(stage->images * positions) : 1;
    to->group_stride = to->channels * to->channel_stride;
    /* With a border, adjacent positions must be contiguous for taps. */
    to->stride[2] = stage->is_planes ? 1 : stage->is_bordered ? all : round_to_odd_lines(all);
    to->image_stride = positions * to->stride[2];
    to->stride[1] = to->stride[2] * to->size[2];
    to->stride[0] = to->stride[1] * to->size[1];
}

void staged_image_plan(struct staged_image *stage, const struct patches *patches, int64_t images, bool is_planes,
                       bool is_bordered) {
    *stage = (struct staged_image){.is_on = true,
                                   .is_planes = is_planes,
                                   .is_bordered = is_bordered,
                                   .images = images,
                                   .from = *patches,
                                   .to = *patches};
    for (int i = 0; i < 3 && is_bordered; i++) {
        int64_t after;
        border_of(patches, i, &stage->before[i], &after);
        stage->to.size[i] += stage->before[i] + after;
        stage->to.offset[i] += stage->before[i];
    }
    lay_out(stage);
    if (stage->from.groups != 1)
        merge_groups(&stage->from);
    if (!is_bordered)
        merge_image(&stage->from);
}

int64_t staged_image_floats(const struct staged_image *stage) {
    const struct patches *to = &stage->to;
    if (!stage->is_on)
        return 0;
    return stage->is_planes ? to->groups * to->group_stride : stage->images * to->image_stride;
}

struct job {
    const struct staged_image *stage;
    float *copy;
    int64_t lines, parts; /* per image: lines of positions; parts per line */
};

/* Copies some channels of one group at `count` positions. */
static void copy_matrix(const struct staged_image *stage, int64_t index, float *to, int channels, int count) {
    const struct patches *from = &stage->from;
    struct gemm_matrix matrix = {.base = (const char *)from->base + dtype_bytes(from->type, index), .type = from->type};
    bool is_same = from->channel_stride == 1 && from->stride[2] == channels && stage->to.stride[2] == channels;
    if (is_same && !stage->is_planes && from->type == WEFT_DATA_FLOAT) {
        memcpy(to, matrix.base, (size_t)channels * (size_t)count * sizeof(float));
        return;
    }
    matrix.stride = stage->is_planes ? from->stride[2] : from->channel_stride;
    matrix.depth_stride = stage->is_planes ? from->channel_stride : from->stride[2];
    if (stage->is_planes)
        gemm_pack_matrix(&matrix, to, (int)stage->to.channel_stride, 0, 0, count, 0, channels);
    else
        gemm_pack_matrix(&matrix, to, (int)stage->to.stride[2], 0, 0, channels, 0, count);
}

/* Prefetches the lines of memory that are used next: each row has too few for the hardware prefetcher. */
static void fetch_rows(const char *row, int64_t row_bytes, int64_t rows, int64_t bytes, bool is_written) {
    for (int64_t i = 0; i < rows; i++, row += row_bytes)
        for (int64_t byte = 0; byte < bytes; byte += LINE_BYTES)
            if (is_written)
                __builtin_prefetch(row + byte, 1, 3);
            else
                __builtin_prefetch(row + byte, 0, 3);
}

/* Prefetches the next channels on each side on which positions are contiguous. */
static void fetch_channels(const struct staged_image *stage, int64_t index, const float *to, int64_t channels,
                           int count) {
    const struct patches *from = &stage->from;
    int64_t rows = min64(channels, CHANNELS);
    if (from->stride[2] == 1)
        fetch_rows((const char *)from->base + dtype_bytes(from->type, index),
                   dtype_bytes(from->type, from->channel_stride), rows, dtype_bytes(from->type, count), false);
    if (stage->is_planes)
        fetch_rows((const char *)to, stage->to.channel_stride * (int64_t)sizeof(float), rows,
                   count * (int64_t)sizeof(float), true);
}

/* Copies all channels at `count` positions of a line, starting at `first`. */
static void copy_positions(const struct staged_image *stage, float *copy, int64_t image, int64_t line, int64_t first,
                           int count) {
    const struct patches *from = &stage->from, *to = &stage->to;
    int64_t position[3] = {line / from->size[1], line % from->size[1], first}, index = image * from->image_stride;
    int64_t at = image * to->image_stride;
    for (int i = 0; i < 3; i++) {
        index += position[i] * from->stride[i];
        at += stage->is_bordered ? (position[i] + stage->before[i]) * to->stride[i] : 0;
    }
    /* Without a border, the copy's positions are contiguous, even if dimensions were merged. */
    if (!stage->is_bordered)
        at += (line * from->size[2] + first) * to->stride[2];
    /* Adjacent channels of another type are converted together. */
    bool is_few = from->stride[2] == 1 || (stage->is_planes && from->type == WEFT_DATA_FLOAT);
    int64_t most = is_few ? CHANNELS : GEMM_DEPTH;
    for (int64_t group = 0; group < from->groups; group++)
        for (int64_t channel = 0; channel < from->channels; channel += most) {
            int64_t corner = index + group * from->group_stride + channel * from->channel_stride;
            float *target = copy + at + group * to->group_stride + channel * to->channel_stride;
            if (is_few)
                fetch_channels(stage, corner + most * from->channel_stride, target + most * to->channel_stride,
                               from->channels - channel - most, count);
            copy_matrix(stage, corner, target, (int)min64(most, from->channels - channel), count);
        }
}

static void copy_part(void *context, int64_t task) {
    const struct job *job = context;
    const struct staged_image *stage = job->stage;
    int64_t first = task % job->parts * RUN, line = task / job->parts;
    copy_positions(stage, job->copy, line / job->lines, line % job->lines, first,
                   (int)min64(RUN, stage->from.size[2] - first));
}

/* A copy with a border is cleared completely first: such images have few channels. */
void staged_image_run(struct staged_image *stage, const void *base, float *copy) {
    stage->from.base = base;
    stage->to.base = copy;
    if (stage->is_bordered)
        memset(copy, 0, (size_t)staged_image_floats(stage) * sizeof(float));
    struct job job = {stage, copy, stage->from.size[0] * stage->from.size[1], divide_up(stage->from.size[2], RUN)};
    threads_for(stage->images * job.lines * job.parts, copy_part, &job);
}
