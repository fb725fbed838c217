/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions in float without a matrix of patches: rows of A are read in place in the image, tap by tap, and only B
   is packed, a few columns at a time; with few rows, B is read in place, too. An image whose channels are not
   contiguous is copied first, which costs little compared with a filter of several taps or columns:
     forward, data   rows are positions of the image, columns the computed channels, segments taps
     filter          rows are channels of dy, columns taps and channels of x, segments the images' positions
   This file must not know operations. */
#ifndef WEFT_ENGINES_CPU_DIRECT_H
#define WEFT_ENGINES_CPU_DIRECT_H

#include "engines/cpu/core/rows_columns.h"
#include "engines/cpu/product/prepacked.h"
#include "engines/cpu/product/staged_image.h"

enum direct_columns {
    DIRECT_CHANNELS,      /* the traversal's columns are channels, its rows groups, images and positions */
    DIRECT_POSITIONS,     /* the traversal's columns are positions, its rows images, groups and channels */
    DIRECT_TAPS_CHANNELS, /* for a filter gradient: channels are fastest; rows are groups and channels of dy */
    DIRECT_CHANNELS_TAPS, /* taps are fastest */
};

/* How a product is divided: a task has some rows and some channels of the columns, and processes the depth in parts,
   which do not depend on the number of threads. */
struct direct_tiling {
    int64_t segments, depth;          /* maximum of a part */
    int64_t rows, channels;           /* maximum of a task */
    int64_t row_tasks, channel_tasks; /* per group */
    /* splits of the depth, which are separate tasks; their sums are added at the end */
    int64_t splits;
    int64_t threads;                            /* number of threads that have buffers */
    int64_t panels, sums, transposed, pointers; /* floats, and pointers of `pointers`, in a thread's buffers */
};

/* Positions of a computed image that see the other one through the same taps: for a data gradient, those at one
   position within a step of the stride; otherwise all of them. */
struct direct_phase {
    struct patches patches;
    struct filter filter;
};

/* An image of single channels that is computed plane by plane. A window of the other image is copied, with zeros where
   taps are outside. */
struct direct_planes {
    const struct direct_phase *phases;
    /* number of phases along each dimension, which is also the distance between positions of a phase */
    int64_t counts[3];
    int64_t size[3];             /* extents of the computed image */
    int64_t window[3], first[3]; /* size of the window; its first position, which may be outside the image */
};

struct direct {
    bool is_on, is_filter; /* is_filter: the filter gradient */
    /* for a filter gradient: rows of B are also read in place in the image; nothing is packed */
    bool reads_columns_in_place;
    /* one channel per group: the groups are the columns of one product, in the roles of channels */
    bool is_depthwise;
    bool has_planes; /* is_depthwise: positions are contiguous, and vectors run along them */
    bool scatters;   /* the computed image has contiguous positions, but those of this phase are not */
    enum direct_columns order;
    int64_t groups, rows, columns, segments, depth; /* per product of a group */
    int64_t step;                                   /* depth stride of A's rows */
    int64_t taps;                  /* columns per channel of a task: all taps for DIRECT_CHANNELS_TAPS, otherwise 1 */
    int image_value, other_value;  /* other: the filter, or dy */
    struct staged_image image, dy; /* `to` is the image that is read, whether copied or not */
    struct filter filter;
    struct direct_planes planes; /* with has_planes: for a computed image */
    struct prepacked prepacked;  /* the filter's panels, [groups, tasks of channels, parts of the depth] */
    struct rows_columns walk;
    struct direct_tiling tiling;
};

/* Plan a product of patches and a filter with `columns` rows, or of dy (whose taps are its positions) and patches. The
   caller has set values, order and walk. is_on reports whether such operands can be read. */
void direct_plan_image(struct direct *direct, const struct patches *patches, const struct filter *filter,
                       int64_t images, int64_t columns, int threads);
void direct_plan_filter(struct direct *direct, const struct patches *x, const struct patches *dy, int64_t images,
                        int threads);

/* The same plans with one channel per group on both sides. The traversal of a filter gradient has taps as rows and
   groups as columns. */
void direct_plan_channels(struct direct *direct, const struct patches *patches, const struct filter *filter,
                          int64_t images, int threads);
void direct_plan_channel_sums(struct direct *direct, const struct patches *x, const struct patches *dy, int64_t images,
                              int threads);

/* The same plan if the positions of both images are contiguous. The caller has set the planes' phases, counts and
   size. */
void direct_plan_planes(struct direct *direct, int64_t images, int threads);

int64_t direct_workspace_bytes(const struct direct *direct);

/* True if the memory of an execution can be read in place: user memory may be misaligned. */
bool direct_reads(const struct direct *direct, void *const *values);

/* Packs the filter once, for executions with the same address; not for a filter gradient. */
weftStatus_t direct_prepack_filter(struct direct *direct, const void *filter);

/* follows: the previous execution in this workspace used the same image. */
void direct_run(const struct direct *direct, const struct program *program, void *const *values, void *workspace,
                bool follows);

#endif
