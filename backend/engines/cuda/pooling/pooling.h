/* SPDX-License-Identifier: Apache-2.0 */
/* Interface of the files of the pooling family: pooling.c implements the family, plan.c plans, emit.c emits the
   kernels; nchw.c does both for NCHW images, tma.c for windows with steps of one. */
#ifndef WEFT_ENGINES_CUDA_POOLING_H
#define WEFT_ENGINES_CUDA_POOLING_H

#include "engines/cuda/core/kernel.h"
#include "graph/ops/resample.h"

enum {
    POOL_THREADS = 128,
    POOL_LOADS = 64,       /* maximum elements of x that a thread holds */
    POOL_TAPS = 64,        /* maximum taps of the pool kernels, which unroll them */
    POOL_SHARED_TAPS = 25, /* maximum taps of windows whose overlaps a thread shares */
    POOL_LINE = 128        /* bytes of a cache line */
};

/* The kernels. POOL and the following ones are for windows with whole steps that fit in registers. */
enum pooling_kernel {
    RESAMPLE,
    RESAMPLE_BWD,
    POOL,
    POOL_BWD,
    POOL_TEAM,      /* few large windows */
    POOL_TMA,       /* channels-last windows with steps of one */
    POOL_TMA_BWD,   /* the gradient of their maxima */
    POOL_UNALIGNED, /* channels-last images without wide aligned accesses */
    POOL_NCHW,      /* parts of NCHW images */
    POOL_NCHW_BWD,  /* the gradient of these */
    POOL_WHOLE,     /* one window per plane */
};

/* Layout of NCHW tiles in shared memory, in elements of x, or of dy for gradients: rows have a pitch of `pitch`, the
   image's rows begin at `left`, and a thread's first element of a row is `phase` after `first`; it reads `seen`
   elements. Chosen by nchw.c, emitted as constants and arguments; all 0 for other kernels. */
struct nchw_tile {
    int64_t tile_rows; /* rows of positions, or of patches of dx, per tile; planes, if a tile has whole ones */
    int64_t along;     /* adjacent results per thread, and threads per row */
    int64_t columns;
    int64_t left, pitch, first, phase, seen;
    int64_t row_bytes; /* bytes of a row in shared memory */
    int64_t vector;    /* adjacent elements per load from shared memory */
    int64_t fill;      /* adjacent elements per load from global memory; `shifts`: from two chunks, because rows are
                          unaligned */
    /* offset of a run of dx from a window's start, and the first position that contributes to it */
    int64_t shift, before;
    int64_t index_fill;
    bool is_segment; /* the tile is stored as in memory, without padding */
    bool shifts, index_shifts;
    int64_t grain; /* adjacent results per store */
    int64_t slack; /* elements that the last threads of a row may read after the last row */
};

/* How the threads of a block share TMA boxes of an image or, for gradients, of dy. */
struct tma_tile {
    int64_t lanes;        /* runs of contiguous channels */
    int64_t along, below; /* patches of results */
};

/* g and the flags come from the operation; choose_kernel sets kernel, run, patch and what follows. */
struct pooling {
    const struct region *region;
    const struct device *device;
    const struct descriptor *op;
    struct resample_geometry g;
    enum pooling_kernel kernel;
    int run;
    bool is_wide; /* numbers of the geometry exceed 32 bits */
    bool has_y, has_index;
    bool index_is_scratch; /* passed between the two kernels of a gradient that finds its maxima first */
    int64_t patch[3];      /* positions per thread along each axis; for dx, steps of windows */
    int64_t rows;          /* patches along the second axis that adjacent threads share: POOL_ROWS positions */
    int64_t tile_columns;  /* for POOL_UNALIGNED: positions of a row that a block computes for all channels */
    int64_t pitch;         /* for POOL_UNALIGNED: row pitch of x in shared memory */
    struct nchw_tile nchw;
    struct tma_tile tma;
};

/* Returns the bytes of `count` elements of an operand. */
static inline int64_t pooling_bytes(const struct resample_operand *operand, int64_t count) {
    return dtype_bytes((weftDataType_t)operand->tensor->type, count);
}

/* The tensor that is computed. */
static inline const struct resample_operand *pooling_result(const struct pooling *w) {
    return w->g.backward ? &w->g.x : &w->g.y;
}

/* Returns the tensor from which the result is computed, besides indices of maxima: x, or dy. */
static inline const struct resample_operand *pooling_source(const struct pooling *w) {
    return w->g.backward ? &w->g.y : &w->g.x;
}

/* True if an operand is read or written. */
bool pooling_uses(const struct pooling *w, const struct resample_operand *operand);

/* True if a window may contain padding; and if one may contain only padding. */
bool pooling_has_padding(const struct resample_geometry *g);
bool pooling_may_be_empty(const struct resample_geometry *g);

/* Number of patches along an axis, and the index of the first one, which may be in the padding. */
int64_t pooling_patches(const struct pooling *w, int axis);
int64_t pooling_first_patch(const struct pooling *w, int axis);

/* True if an operand is packed in NCHW order. */
bool pooling_is_planes(const struct resample_geometry *g, const struct resample_operand *operand);

static inline double pooling_product(const int64_t *numbers) {
    return (double)numbers[0] * (double)numbers[1] * (double)numbers[2];
}

/* ---- plan.c ---- */

/* Fills the geometry and chooses the kernel, or reports why the region is not supported. */
weftStatus_t pooling_analyse(struct pooling *w, const struct region *region, const struct device *device);
/* True if a gradient finds its maxima in a separate kernel; and the two passes that it then consists of. */
bool pooling_finds_first(const struct pooling *w);
weftStatus_t pooling_split(struct pooling passes[2], const struct pooling *w, struct arena *arena);
/* Number of work items of threads: patches of runs of channels. */
int64_t pooling_items(const struct pooling *w);
/* True if the channels of all positions are contiguous. */
bool pooling_is_packed_last(const struct resample_geometry *g, const struct resample_operand *operand);

/* ---- emit.c ---- */

/* The kernels' functions, each in a file of its name. */
extern const char *const pooling_entries[];
weftStatus_t pooling_build_kernel(struct cuda_kernel *kernel, const struct pooling *w, struct arena *arena);

/* ---- nchw.c, tma.c ---- */

/* Choose an NCHW kernel, or a TMA kernel, if one applies. */
void pooling_find_nchw(struct pooling *w);
void pooling_find_tma(struct pooling *w);

/* The number of blocks. */
int64_t pooling_blocks_of_nchw(const struct pooling *w);
int64_t pooling_blocks_of_tma(const struct pooling *w);

/* Emit what they need in addition to other kernels, and return the shared memory of a block. */
uint32_t pooling_emit_nchw(struct kernel_source *source, const struct pooling *w);
uint32_t pooling_emit_tma(struct kernel_source *source, const struct pooling *w);
void pooling_emit_maps(struct kernel_source *source, const struct pooling *w);

#endif
