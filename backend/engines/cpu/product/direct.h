/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions in float without a matrix of patches: rows of A are read where the image lies, tap by tap, and B alone
   is packed, a few columns at a time; beside few rows it is read in place, too. An image whose channels are not
   neighbours is copied first, which costs little beside a filter of several taps or columns:
     forward, data   rows are positions of the image, columns the channels that are made, segments taps
     filter          rows are channels of dy, columns taps and channels of x, segments the images' positions
   It must not know operations. */
#ifndef WEFT_ENGINES_CPU_DIRECT_H
#define WEFT_ENGINES_CPU_DIRECT_H

#include "engines/cpu/core/rows_columns.h"
#include "engines/cpu/product/im2col.h"
#include "engines/cpu/product/prepacked.h"

enum direct_columns {
    DIRECT_CHANNELS,      /* the walk's columns are channels, its rows groups, images and positions */
    DIRECT_POSITIONS,     /* the walk's columns are positions, its rows images, groups and channels */
    DIRECT_TAPS_CHANNELS, /* of a filter's gradient: channels are fastest; its rows are groups and channels of dy */
    DIRECT_CHANNELS_TAPS, /* taps are fastest */
};

/* How a product is cut: a task has some rows and some channels of the columns, and takes the depth in parts, which do
   not depend on the number of threads. */
struct direct_tiling {
    int64_t segments, depth;            /* of a part, at most */
    int64_t rows, channels;             /* of a task, at most */
    int64_t row_tasks, channel_tasks;   /* of one group */
    int64_t splits;                     /* of the depth, whose sums are added up in the end: tasks of their own */
    int64_t threads;                    /* that there are buffers for */
    int64_t panels, sums, turned, seen; /* floats, and for `seen` pointers, of a thread's buffers */
};

/* Places of an image that is made which see the other one through the same taps: a part of it at each place within a
   step of a data gradient's stride, else all of it. */
struct direct_phase {
    struct patches patches;
    struct filter filter;
};

/* An image of single channels that is made plane by plane. Of the other image a window is copied, with zeros wherever
   taps look outside. */
struct direct_planes {
    const struct direct_phase *phases;
    int64_t counts[3];           /* of phases along each dimension: places of a phase are so far apart */
    int64_t size[3];             /* of the image that is made */
    int64_t window[3], first[3]; /* the window's size; its first place, which may be outside of the image */
};

struct direct {
    bool is_on, is_filter; /* is_filter: the filter's gradient */
    bool sees_columns;     /* of a filter's gradient: rows of B are read where the image lies, too; nothing is packed */
    bool is_depthwise;     /* one channel per group: the groups are columns of one product, and channels elsewhere */
    bool has_planes;       /* is_depthwise: positions are neighbours, and vectors run along them */
    bool scatters;         /* an image that is made: its positions are neighbours, but not those of this phase */
    enum direct_columns order;
    int64_t groups, rows, columns, segments, depth; /* of one group's product */
    int64_t step;                                   /* of A's rows, from depth to depth */
    int64_t taps; /* columns that a task's channel stands for: of DIRECT_CHANNELS_TAPS all taps, else 1 */
    int image_value, other_value; /* other: the filter, or dy */
    struct im2col image, dy;      /* `to` is what is read, a copy or not */
    struct filter filter;
    struct direct_planes planes; /* has_planes: of an image that is made */
    struct prepacked kept;       /* the filter's panels, [groups, tasks of channels, parts of the depth] */
    struct rows_columns walk;
    struct direct_tiling tiling;
};

/* Plan a product of patches and a filter of `columns` rows, and one of dy (whose taps are its positions) and patches.
   The caller has filled in values, order and walk. is_on says whether such operands can be read. */
void direct_plan_image(struct direct *direct, const struct patches *patches, const struct filter *filter,
                       int64_t images, int64_t columns, int threads);
void direct_plan_filter(struct direct *direct, const struct patches *x, const struct patches *dy, int64_t images,
                        int threads);

/* The same with one channel per group on either side. The walk of a filter's gradient has taps as rows, groups as
   columns. */
void direct_plan_channels(struct direct *direct, const struct patches *patches, const struct filter *filter,
                          int64_t images, int threads);
void direct_plan_channel_sums(struct direct *direct, const struct patches *x, const struct patches *dy, int64_t images,
                              int threads);

/* The same where planes of both images are neighbours. The caller has filled in the planes' phases, counts and size. */
void direct_plan_planes(struct direct *direct, int64_t images, int threads);

int64_t direct_workspace_bytes(const struct direct *direct);

/* Whether the memory of an execution can be read where it lies: user memory promises no alignment. */
bool direct_reads(const struct direct *direct, void *const *values);

/* Packs the filter once, for executions with the same address; not of a filter's gradient. */
weftStatus_t direct_keep_filter(struct direct *direct, const void *filter);

/* follows: whether the execution before, in this workspace, was of the same image. */
void direct_run(const struct direct *direct, const struct program *program, void *const *values, void *workspace,
                bool follows);

#endif
