/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the window family share: pooling.c serves, plan.c decides, emit.c prints; nchw.c does both for
   images that lie in memory as planes, tma.c for windows that go one by one. */
#ifndef WEFT_ENGINES_CUDA_POOLING_H
#define WEFT_ENGINES_CUDA_POOLING_H

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
enum pooling_kernel {
    RESAMPLE,
    RESAMPLE_BWD,
    POOL,
    POOL_BWD,
    POOL_TEAM,      /* few large windows */
    POOL_TMA,       /* windows that go one by one over channels side by side */
    POOL_TMA_BWD,   /* the gradient of their maxima */
    POOL_UNALIGNED, /* channels whose number fits no wide accesses */
    POOL_NCHW,      /* images that lie as planes: parts of them */
    POOL_NCHW_BWD,  /* the gradient of these */
    POOL_WHOLE,     /* one window per plane */
};

/* How planes go through shared memory, in elements of x, or of dy for gradients: rows lie `pitch` apart, the memory's
   begin at `left`, and what a thread reads first of a row lies `phase` after `first`, `seen` of them. Chosen by
   nchw.c, printed as constants and arguments; of the other kernels all 0. */
struct nchw_tile {
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
struct tma_tile {
    int64_t lanes;        /* runs of channels side by side */
    int64_t along, below; /* patches of results */
};

/* g and the flags come from the operation; kernel, run, patch and what follows from choose_kernel. */
struct pooling {
    const struct region *region;
    const struct device *device;
    const struct descriptor *op;
    struct resample_geometry g;
    enum pooling_kernel kernel;
    int run;
    bool is_wide; /* numbers of the geometry pass 32 bits */
    bool has_y, has_index;
    bool index_is_scratch; /* between the two kernels of a gradient that finds its maxima first */
    int64_t patch[3];      /* positions along each axis that a thread makes; of dx, steps of windows */
    int64_t rows;          /* patches along the second axis that neighbouring threads take: POOL_ROWS positions */
    int64_t tile_columns;  /* of POOL_UNALIGNED: positions of a row that a block makes of all channels, */
    int64_t pitch;         /* and from row to row of x in shared memory */
    struct nchw_tile nchw;
    struct tma_tile tma;
};

/* Bytes of so many elements of an operand. */
static inline int64_t pooling_bytes(const struct resample_operand *operand, int64_t count) {
    return dtype_bytes((weftDataType_t)operand->tensor->type, count);
}

/* The tensor that is made. */
static inline const struct resample_operand *pooling_result(const struct pooling *w) {
    return w->g.backward ? &w->g.x : &w->g.y;
}

/* What it is made of, beside numbers of maxima: x, or dy. */
static inline const struct resample_operand *pooling_source(const struct pooling *w) {
    return w->g.backward ? &w->g.y : &w->g.x;
}

/* Whether an operand is read or written. */
bool pooling_uses(const struct pooling *w, const struct resample_operand *operand);

/* Whether a window may see padding, and nothing but padding. */
bool pooling_has_padding(const struct resample_geometry *g);
bool pooling_may_be_empty(const struct resample_geometry *g);

/* How many patches there are along an axis, and the number of the first one, which may lie in the padding. */
int64_t pooling_patches(const struct pooling *w, int axis);
int64_t pooling_first_patch(const struct pooling *w, int axis);

/* Whether an operand lies as packed planes. */
bool pooling_is_planes(const struct resample_geometry *g, const struct resample_operand *operand);

static inline double pooling_product(const int64_t *numbers) {
    return (double)numbers[0] * (double)numbers[1] * (double)numbers[2];
}

/* ---- plan.c ---- */

/* Fills the geometry and chooses the kernel, or says why the region is none of ours. */
weftStatus_t pooling_analyse(struct pooling *w, const struct region *region, const struct device *device);
/* Whether a gradient finds its maxima in a kernel of its own, and the two passes that it then takes. */
bool pooling_finds_first(const struct pooling *w);
weftStatus_t pooling_split(struct pooling passes[2], const struct pooling *w, struct arena *arena);
/* What threads take one by one: patches of runs of channels. */
int64_t pooling_items(const struct pooling *w);
/* Whether windows without gaps go in whole steps, few enough, over what padding does not change. */
bool pooling_is_pool(const struct pooling *w);
/* Whether the channels of all positions lie in one segment. */
bool pooling_is_packed_last(const struct resample_geometry *g, const struct resample_operand *operand);

/* ---- emit.c ---- */

/* The kernels' functions, each in a file of its name. */
extern const char *const pooling_entries[];
weftStatus_t pooling_build_kernel(struct cuda_kernel *kernel, const struct pooling *w, struct arena *arena);

/* ---- nchw.c, tma.c ---- */

/* Choose a kernel of planes, or of boxes, if one serves. */
void pooling_find_nchw(struct pooling *w);
void pooling_find_tma(struct pooling *w);

/* The number of blocks. */
int64_t pooling_blocks_of_nchw(const struct pooling *w);
int64_t pooling_blocks_of_tma(const struct pooling *w);

/* Print what they need beyond the others, and give the shared memory of a block. */
uint32_t pooling_emit_nchw(struct kernel_source *source, const struct pooling *w);
uint32_t pooling_emit_tma(struct kernel_source *source, const struct pooling *w);
void pooling_emit_maps(struct kernel_source *source, const struct pooling *w);

#endif
