/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the window family share: window.c serves, plan.c decides, emit.c prints; planes.c does both for
   images that lie in memory as planes, boxes.c for windows that go one by one. */
#ifndef WEFT_ENGINES_CUDA_WINDOW_H
#define WEFT_ENGINES_CUDA_WINDOW_H

#include "engines/cuda/core/kernel.h"
#include "graph/ops/resample.h"

enum {
    POOL_THREADS = 128,
    POOL_LOADS = 64,       /* elements of x that a thread holds, at most */
    POOL_TAPS = 64,        /* of a window that the pool kernels serve, at most: they are unrolled */
    POOL_SHARED_TAPS = 25, /* of windows whose overlaps a thread shares, at most */
    POOL_LINE = 128        /* bytes of a line of memory */
};

/* The kernels; from POOL on, those of windows that go in whole steps and that registers hold. */
enum window_kernel {
    WINDOW,
    WINDOW_BWD,
    POOL,
    POOL_BWD,
    POOL_TEAM,       /* few large windows */
    POOL_BOXES,      /* windows that go one by one over channels side by side */
    POOL_BOXES_BWD,  /* the gradient of their maxima */
    POOL_UNALIGNED,  /* channels whose number fits no wide accesses */
    POOL_PLANES,     /* images that lie as planes: parts of them */
    POOL_PLANES_BWD, /* the gradient of these */
    POOL_WHOLE,      /* one window per plane */
};

/* How planes go through shared memory, in elements of x, or of dy for gradients: rows lie `pitch` apart, the memory's
   begin at `left`, and what a thread reads first of a row lies `phase` after `first`, `seen` of them. Chosen by
   planes.c, printed as constants and arguments; of the other kernels all 0. */
struct planes {
    int64_t tile_rows; /* rows of positions, or of patches of dx, that a tile makes; of whole planes, planes */
    int64_t along;     /* results side by side that a thread makes, and how many threads a row takes */
    int64_t columns;
    int64_t left, pitch, first, phase, seen;
    int64_t row_bytes;     /* of all that is held of a row */
    int64_t vector;        /* neighbours that a thread reads at once of shared memory */
    int64_t fill;          /* and of memory; `shifts`: from between chunks, where rows begin anywhere */
    int64_t shift, before; /* how far after a window's start a run of dx begins, the first position that reaches it */
    int64_t index_fill;
    bool is_segment; /* the tile lies in shared memory as it does in memory, without padding */
    bool shifts, index_shifts;
    int64_t grain; /* results side by side that one access takes */
    int64_t slack; /* elements that the last threads of a row may read after the last row */
};

/* How boxes of an image become windows, or those of dy their gradient: a block's threads. */
struct boxes {
    int64_t lanes;        /* runs of channels side by side */
    int64_t along, below; /* patches of results */
};

/* g and the flags come from the operation; kernel, run, patch and what follows from choose_kernel. */
struct window {
    const struct region *region;
    const struct device *device;
    const struct descriptor *op;
    struct resample_geometry g;
    enum window_kernel kernel;
    int run;
    bool is_wide; /* numbers of the geometry pass 32 bits */
    bool has_y, has_index;
    bool index_is_scratch; /* between the two kernels of a gradient that finds its maxima first */
    int64_t patch[3];      /* positions along each axis that a thread makes; of dx, steps of windows */
    int64_t rows;          /* patches along the second axis that neighbouring threads take: POOL_ROWS positions */
    int64_t tile_columns;  /* of POOL_UNALIGNED: positions of a row that a block makes of all channels, */
    int64_t pitch;         /* and from row to row of x in shared memory */
    struct planes planes;
    struct boxes boxes;
};

/* Bytes of so many elements of an operand. */
static inline int64_t window_bytes(const struct resample_operand *operand, int64_t count) {
    return dtype_bytes((weftDataType_t)operand->tensor->type, count);
}

/* The tensor that is made. */
static inline const struct resample_operand *window_result(const struct window *w) {
    return w->g.backward ? &w->g.x : &w->g.y;
}

/* What it is made of, beside numbers of maxima: x, or dy. */
static inline const struct resample_operand *window_source(const struct window *w) {
    return w->g.backward ? &w->g.y : &w->g.x;
}

/* Whether an operand is read or written. */
bool window_uses(const struct window *w, const struct resample_operand *operand);

/* Whether a window may see padding, and nothing but padding. */
bool window_has_padding(const struct resample_geometry *g);
bool window_may_be_empty(const struct resample_geometry *g);

/* How many patches there are along an axis, and the number of the first one, which may lie in the padding. */
int64_t window_patches(const struct window *w, int axis);
int64_t window_first_patch(const struct window *w, int axis);

/* Whether an operand lies as packed planes. */
bool window_is_planes(const struct resample_geometry *g, const struct resample_operand *operand);

static inline double window_product(const int64_t *numbers) {
    return (double)numbers[0] * (double)numbers[1] * (double)numbers[2];
}

/* ---- plan.c ---- */

/* Fills the geometry and chooses the kernel, or says why the region is none of ours. */
weftStatus_t window_analyse(struct window *w, const struct region *region, const struct device *device);
/* Whether a gradient finds its maxima in a kernel of its own, and the two passes that it then takes. */
bool window_finds_first(const struct window *w);
weftStatus_t window_split(struct window passes[2], const struct window *w, struct arena *arena);
/* What threads take one by one: patches of runs of channels. */
int64_t window_items(const struct window *w);
/* Whether windows without gaps go in whole steps, few enough, over what padding does not change. */
bool window_is_pool(const struct window *w);
/* Whether the channels of all positions lie in one segment. */
bool window_is_packed_last(const struct resample_geometry *g, const struct resample_operand *operand);

/* ---- emit.c ---- */

/* The kernels' functions, each in a file of its name. */
extern const char *const window_entries[];
weftStatus_t window_build_kernel(struct cuda_kernel *kernel, const struct window *w, struct arena *arena);

/* ---- planes.c, boxes.c ---- */

/* Choose a kernel of planes, or of boxes, if one serves. */
void window_find_planes(struct window *w);
void window_find_boxes(struct window *w);

/* The number of blocks. */
int64_t window_blocks_of_planes(const struct window *w);
int64_t window_blocks_of_boxes(const struct window *w);

/* Print what they need beyond the others, and give the shared memory of a block. */
uint32_t window_emit_planes(struct kernel_source *source, const struct window *w);
uint32_t window_emit_boxes(struct kernel_source *source, const struct window *w);
void window_emit_maps(struct kernel_source *source, const struct window *w);

#endif
