/* SPDX-License-Identifier: Apache-2.0 */
/* Interface of the files of the map family: map.c implements the family, plan.c plans, emit.c emits the kernels. */
#ifndef WEFT_ENGINES_CUDA_MAP_H
#define WEFT_ENGINES_CUDA_MAP_H

#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/operand.h"

/* MAP_THREADS and TRANSPOSE_THREADS: threads per block */
enum { MAP_OPERANDS_MAX = 24, MAP_THREADS = 256, TRANSPOSE_THREADS = 128 };

/* Tiles of two dims of the space: `axis`, along which the staged operands are contiguous, and the last one, along which
   results are. Staged operands go through shared memory, so that both are accessed in whole lines. */
struct map_tile {
    int axis;                       /* -1: no tiles, threads follow the memory of the result */
    int64_t along_axis, along_last; /* extents of a tile */
    int width[MAP_OPERANDS_MAX];    /* for a staged operand: adjacent elements per load; 0: not staged */
    bool is_transpose;              /* one operand is copied to one result, by map/transpose.cuh */
    bool shifts_from, shifts_to;    /* for a transpose: rows begin between chunks of 16 bytes, in source and result */
    bool is_flat_from, is_flat_to;  /* for a transpose: rows of a tile are contiguous in memory */
};

/* map_analyse fills the space, operands, run and is_flat; map_choose, which knows the device, unroll, expects and the
   tile. */
struct map {
    const struct region *region;
    struct space space;
    int count; /* operands; the first is the store whose memory order determines the space's */
    struct operand operands[MAP_OPERANDS_MAX];
    int run, unroll;
    bool expects; /* all blocks are resident at once, and prefetch their inputs before the preceding kernel ends */
    bool is_flat; /* runs cross rows: dense operands are accessed in runs, others element by element */
    struct map_tile tile;
};

/* Sweeps over runs of `run` adjacent elements, or over tiles; the rest of a flat space, shorter than a run, is
   processed element by element. */
static inline int64_t map_runs(const struct map *map) { return space_elements(&map->space) / map->run; }
int64_t map_tiles(const struct map *map);

/* Fills the space, the operands and the length of a run, or reports why the region is not supported. */
weftStatus_t map_analyse(struct map *map, const struct region *region);

/* True if an operand is transposed relative to the result, so that tiles of it go through shared memory. */
bool map_is_tiled(const struct map *map);

/* Chooses how threads share the space, and returns the number of blocks. */
int64_t map_choose(struct map *map, const struct device *device);

/* True if an operation that moves data reads a value: adjacent elements of the result are not adjacent in it. */
bool map_moves(const struct region *region, int value);

/* Emits constants, arguments and functions of map/map.cuh or map_tiled.cuh. */
void map_emit(struct kernel_source *source, const struct map *map);

/* The same for map/transpose.cuh. */
void map_emit_transpose(struct kernel_source *source, const struct map *map);

/* True if adjacent results may share a byte. */
bool map_shares_bytes(const struct map *map);

/* True if a node computes the coordinate of an element. */
bool map_is_index(const struct node *node);

#endif
