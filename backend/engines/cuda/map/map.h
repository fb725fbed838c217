/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the map family share: map.c serves, plan.c decides, emit.c prints. */
#ifndef WEFT_ENGINES_CUDA_MAP_H
#define WEFT_ENGINES_CUDA_MAP_H

#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/operand.h"

enum { MAP_OPERANDS_MAX = 24, MAP_THREADS = 256, TRANSPOSE_THREADS = 128 }; /* threads of a block */

/* Tiles of two dims of the space: `axis`, along which the staged operands lie in memory, and the last one,
   along which results do. Staged operands go through shared memory, so that both are read and written in whole
   lines. */
struct map_tile {
    int axis;                       /* -1: no tiles, threads follow the memory of the result */
    int64_t along_axis, along_last; /* extents of a tile */
    int width[MAP_OPERANDS_MAX];    /* of a staged operand: neighbours per load; 0: loaded as ever */
    bool is_transpose;              /* one operand is copied to one result, by map/transpose.cuh */
    bool shifts_from,
        shifts_to; /* of a transpose: whether rows begin between chunks of 16 bytes, in source and result */
    bool is_flat_from, is_flat_to; /* of a transpose: whether rows of a tile follow one another in memory */
};

/* map_analyse fills the space, operands, run and is_flat; map_choose, which knows the device, unroll, expects and the
   tile. */
struct map {
    const struct region *region;
    struct space space;
    int count; /* operands; the first is the store whose memory order leads */
    struct operand operands[MAP_OPERANDS_MAX];
    int run, unroll;
    bool expects; /* all blocks run at once, and ask for what they read before the kernel before ends */
    bool is_flat; /* runs pass from row to row: dense operands are taken in runs, others one by one */
    struct map_tile tile;
};

/* Sweeps over runs of `run` neighbours, or over tiles; the rest of a flat space, shorter than a run, goes one by
   one. */
static inline int64_t map_runs(const struct map *map) { return space_elements(&map->space) / map->run; }
int64_t map_tiles(const struct map *map);

/* Fills the space, the operands and the length of a run, or says why the region is none of ours. */
weftStatus_t map_analyse(struct map *map, const struct region *region);

/* Whether an operand lies across the result, so that tiles of it go through shared memory. */
bool map_is_tiled(const struct map *map);

/* Chooses how threads share the space, and gives the number of blocks. */
int64_t map_choose(struct map *map, const struct device *device);

/* Whether an operation that moves data reads a value: neighbours of the result are not neighbours of it. */
bool map_moves(const struct region *region, int value);

/* Prints constants, arguments and functions of map/map.cuh or map_tiled.cuh. */
void map_emit(struct kernel_source *source, const struct map *map);

/* The same of map/transpose.cuh. */
void map_emit_transpose(struct kernel_source *source, const struct map *map);

/* Whether neighbours among the results may lie in one byte. */
bool map_shares_bytes(const struct map *map);

/* Whether a node gives the coordinate of an element. */
bool map_is_index(const struct node *node);

#endif
