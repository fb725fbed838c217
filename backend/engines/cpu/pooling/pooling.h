/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling and interpolation on the CPU, forward and backward: shared definitions. Elements are computed in float, in
   lanes: adjacent channels of one position in channels-last layout, otherwise adjacent positions in a row of one
   channel. */
#ifndef WEFT_ENGINES_CPU_POOLING_H
#define WEFT_ENGINES_CPU_POOLING_H

#include "engines/engine.h"
#include "graph/ops/resample.h"

enum {
    POOLING_AXES = 3,
    POOLING_LANES = 1024,    /* per pass, so that maximum or sum, and position, stay in L1 */
    POOLING_ROW = 4096,      /* maximum elements of x that lanes along a row read, if they must be converted */
    POOLING_SUMS = 24 << 10, /* floats of a gradient's box or row, on the stack of a thread */
    /* approximate number of results per task of whole rows with channels; a quarter of that for rows of one channel */
    POOLING_TASK = 8 << 10,
    POOLING_LARGE = 8 << 20, /* minimum size in bytes of results that bypass the caches */
    POOLING_PLANES = 16,     /* planes that a task averages */
    POOLING_OUTSIDE = -1     /* the tap is in padding */
};

/* An input of a result along one axis: for y, an element of x that it reads as tap `tap`; for dx, the element of dy
   whose window reads it as that tap. weight: for a mean's gradient, 1 / number of elements counted. */
struct pooling_link {
    int64_t source_index, tap;
    double weight;
};

/* Results along the last axis, at a distance of one result step, that have the same links: one sweep computes them. */
struct pooling_segment {
    int64_t first, positions;
};

/* How rows of results, of y or of dx, are computed. */
struct pooling_direction {
    bool is_gradient;
    struct pooling_link **links[POOLING_AXES]; /* [result]: its first link; one more entry for the end */
    /* Distance along the last axis between consecutive results of a segment, and between the elements that these
       read. */
    int64_t result_step, source_step;
    struct pooling_segment *segments;
    int64_t segment_count;
    int64_t task_rows, tasks;
};

/* For one axis: the element of x that each tap of each output position reads. */
struct pooling_axis {
    int taps;
    int64_t stride;   /* for pools: distance between the first taps of consecutive output positions */
    int64_t *sources; /* [position][tap], or POOLING_OUTSIDE */
    float *weights;   /* [position][tap] for interpolation; NULL: all 1 */
    uint64_t *masks;  /* [position]: bit mask of the taps that are inside along this axis, at most 64 */
    int64_t *counts;  /* [position]: number of taps that a mean counts */
    int64_t *insides; /* [position]: number of taps that are elements of x */
    int64_t *starts;  /* [tap]: the first position whose tap is inside, for pools with unclamped padding */
    int64_t *ends;    /* [tap]: one past the last such position */
};

struct pooling {
    struct resample_geometry g;
    struct pooling_axis axes[POOLING_AXES];
    bool is_last;         /* lanes are channels */
    bool is_max, is_mean; /* otherwise an interpolation */
    bool reads_zeros;     /* padding is a 0 that may be the maximum */
    bool is_whole;        /* mean of a whole, contiguous plane */
    bool picks;           /* interpolation along rows whose taps are all inside */
    bool scatters;        /* gradient of a maximum that adds dy directly to planes of dx */
    /* along a row, lanes advance through x by a constant step: there are no clamped taps, and weights are equal */
    bool is_strided;
    int x, y, index, saved; /* values of the graph, or -1 */
    int64_t lanes;          /* lanes of a pass */
    struct pooling_direction forward, gradient;
    int64_t box[2]; /* for a gradient: elements of dx along the first two axes */
    int64_t tasks;
};

/* A tensor whose channels, or rows of them, are accessed. */
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

/* Adjacent positions in a row of channel c, starting at at[2]: computes the maximum of all taps and its tap number, or
   the weighted sum. */
struct pooling_lanes {
    int64_t n, c, count, at[POOLING_AXES];
};
void pooling_maximum(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                     float *best, int32_t *where);
/* factors: a multiplier for each lane's sum, or NULL. */
void pooling_sum(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                 const float *factors, float *sum);

/* Like pooling_sum, for interpolations with `picks`: first along the outer axes for a whole row, then along the row. */
void pooling_interpolate(const struct pooling *w, const struct pooling_side *x, const struct pooling_lanes *lanes,
                         float *sum);

/* Multiplier of each lane's sum: alpha divided by the number of elements that a mean counts. */
void pooling_factors(const struct pooling *w, const struct pooling_lanes *lanes, float *factors);

/* State of a parallel loop; each of the functions below runs one of its tasks. */
struct pooling_job {
    const struct pooling *pooling;
    void *const *values;
    void *workspace;
};
void pooling_forward_task(void *job, int64_t task);
void pooling_backward_task(void *job, int64_t task); /* maxima: a box */
void pooling_gather_task(void *job, int64_t task);   /* means and interpolation: rows */
void pooling_scatter_task(void *job, int64_t task);  /* scatters: a plane */
void pooling_mean_task(void *job, int64_t task);     /* is_whole, forward and backward: POOLING_PLANES planes */

/* The same tasks with channels as lanes. The gradient of a maximum without an index first finds the maxima, in the
   workspace. */
int64_t pooling_channels_workspace_bytes(const struct pooling *w);
void pooling_channels_forward_task(void *job, int64_t task);
void pooling_channels_find_task(void *job, int64_t task);
void pooling_channels_backward_task(void *job, int64_t task);

#endif
