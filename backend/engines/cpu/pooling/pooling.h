/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling and interpolation on the CPU, both ways: what its halves share. Elements are computed in float, as lanes:
   neighbouring channels at one position where channels lie side by side, else neighbouring positions of a row of one
   channel. */
#ifndef WEFT_ENGINES_CPU_POOLING_H
#define WEFT_ENGINES_CPU_POOLING_H

#include "engines/engine.h"
#include "graph/ops/resample.h"

enum {
    POOLING_AXES = 3,
    POOLING_LANES = 1024,    /* of one pass: best or sum, and position, stay in L1 */
    POOLING_ROW = 4096,      /* elements of x that lanes along a row read, at most, where they must be converted */
    POOLING_SUMS = 24 << 10, /* floats of a gradient's box or row, on the stack of a thread */
    POOLING_TASK = 8 << 10,  /* results of a task of whole rows of channels, about; of rows a quarter */
    POOLING_LARGE = 8 << 20, /* bytes of a result of which nothing stays in caches */
    POOLING_PLANES = 16,     /* that a task averages */
    POOLING_OUTSIDE = -1     /* a tap in padding */
};

/* What a result along one axis is made of: an element of y that x reads as tap `tap`, or of dx an element of dy that
   read it so. weight: of a gradient of a mean divided by what that counts. */
struct pooling_link {
    int64_t place, tap;
    double weight;
};

/* Results along the last axis, a result step apart, that are made alike: one sweep makes them. */
struct pooling_segment {
    int64_t first, positions;
};

/* How rows of results are made, of y or of dx. */
struct pooling_way {
    bool is_gradient;
    struct pooling_link **links[POOLING_AXES]; /* [result] the first of its own; one more: the end */
    /* Along the last axis, from a result of a segment to the next one, and between the elements that these read. */
    int64_t result_step, source_step;
    struct pooling_segment *segments;
    int64_t segment_count;
    int64_t task_rows, tasks;
};

/* Along one axis: which element of x each tap of each output position reads. */
struct pooling_axis {
    int taps;
    int64_t stride;   /* of pools: from one output position's first tap to the next one's */
    int64_t *places;  /* [position][tap]; POOLING_OUTSIDE: none */
    float *weights;   /* [position][tap] of interpolation; NULL: all 1 */
    uint64_t *masks;  /* [position]: bits of the window's taps that are inside along this axis, of at most 64 taps */
    int64_t *counts;  /* [position]: taps that a mean counts */
    int64_t *insides; /* [position]: taps that are elements of x */
    int64_t *starts;  /* [tap]: the first position whose tap is inside, of pools whose paddings are not clamped */
    int64_t *ends;    /* [tap]: behind the last such */
};

struct pooling {
    struct resample_geometry g;
    struct pooling_axis axes[POOLING_AXES];
    bool is_last;           /* lanes are channels */
    bool is_max, is_mean;   /* otherwise an interpolation */
    bool reads_zeros;       /* padding is a 0 that may be the maximum */
    bool is_whole;          /* a mean of all of a plane, whose elements lie side by side */
    bool picks;             /* an interpolation of rows whose taps along them are all inside */
    bool scatters;          /* a maximum's gradient that goes straight from dy to planes of dx */
    bool is_strided;        /* along a row, lanes step through x: no tap is clamped, no weight differs */
    int x, y, index, saved; /* values of the graph; -1: none */
    int64_t lanes;          /* of a pass */
    struct pooling_way forward, gradient;
    int64_t box[2]; /* of a gradient: elements of dx along the first two axes */
    int64_t tasks;
};

/* One of a tensor's channels or rows of them: elements from `base` on. */
struct pooling_side {
    weftDataType_t type;
    void *data;
    const struct resample_operand *operand;
};

static inline int64_t pooling_offset(const struct resample_operand *operand, int64_t n, int64_t c, const int64_t *at) {
    int64_t offset = n * operand->batch_stride + c * operand->channel_stride;
    for (int i = 0; i < POOLING_AXES; i++)
        offset += at[i] * operand->size_stride[i];
    return offset;
}

static inline struct pooling_side pooling_side_of(const struct resample_operand *operand, void *data) {
    weftDataType_t type = operand->tensor ? (weftDataType_t)operand->tensor->type : WEFT_DATA_FLOAT;
    return (struct pooling_side){type, data, operand};
}

/* Neighbouring positions of a row of channel c, from at[2] on: the best of all taps, and which tap that is; or the
   weighted sum. */
struct pooling_lanes {
    int64_t n, c, count, at[POOLING_AXES];
};
void pooling_maximum(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                     float *best, int32_t *where);
/* factors: NULL, or what each lane's sum is multiplied with. */
void pooling_sum(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                 const float *factors, float *sum);

/* The same of interpolations that pick: outer axes first, of all of a row, then along it. */
void pooling_interpolate(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                         float *sum);

/* What a sum is multiplied with, for each lane: alpha over what a mean counts. */
void pooling_factors(const struct pooling *w, const struct pooling_lanes *lanes, float *factors);

/* Whole tasks, for threads_for. */
struct pooling_job {
    const struct pooling *pooling;
    void *const *values;
    void *workspace;
};
void pooling_forward_task(void *job, int64_t task);
void pooling_backward_task(void *job, int64_t task); /* of maxima: of a box */
void pooling_gather_task(void *job, int64_t task);   /* of means and interpolation: of rows */
void pooling_scatter_task(void *job, int64_t task);  /* scatters: of a plane */
void pooling_mean_task(void *job, int64_t task);     /* is_whole, both ways: of POOLING_PLANES planes */

/* The same where lanes are channels. A maximum's gradient without an index has that found first, in workspace. */
int64_t pooling_channels_workspace_bytes(const struct pooling *w);
void pooling_channels_forward_task(void *job, int64_t task);
void pooling_channels_find_task(void *job, int64_t task);
void pooling_channels_backward_task(void *job, int64_t task);

#endif
