/* SPDX-License-Identifier: Apache-2.0 */
/* Map family: a connected group of pointwise operations and data movement of one shape, in one sweep over the memory of
   its result. Each thread processes runs of adjacent elements; values inside the region stay in registers. plan.c plans
   the sweep, emit.c emits it, map.cuh and map_tiled.cuh loop over it. */
#include "engines/cuda/map/map.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

#include <math.h>

/* The time of a block of a tiled sweep, however empty its tile: estimated from a copy of 229,376 blocks on an H200. */
static const double TILE_SECONDS = 1e-9;

/* Every tensor is read or written once. A tiled sweep costs an additional launch, because blocks wait for whole
   tiles. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct map map;
    TRY(map_analyse(&map, region));
    double bytes = 0;
    for (int k = 0; k < map.count; k++)
        if (map.operands[k].memory >= 0)
            bytes += (double)tensor_own_bytes(region->graph->values[map.operands[k].memory].tensor);
    offer->seconds = PRICE_LAUNCH_SECONDS + price_moving(bytes, device);
    if (map_is_tiled(&map))
        offer->seconds = PRICE_LAUNCH_SECONDS + fmax(offer->seconds, (double)map_choose(&map, device) * TILE_SECONDS);
    return WEFT_STATUS_SUCCESS;
}

/* Builds one kernel: a transpose, a sweep over tiles, or a plain sweep. */
static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct map map;
    struct cuda_step *state;
    struct kernel_source source;
    TRY(map_analyse(&map, &step->region));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (space_elements(&map.space) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    int64_t blocks = map_choose(&map, device);
    bool is_tiled = map.tile.axis >= 0;
    kernel_source_init(&source, &step->region);
    if (map.tile.is_transpose)
        map_emit_transpose(&source, &map);
    else
        map_emit(&source, &map);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    const char *file = map.tile.is_transpose ? "map/transpose.cuh" : is_tiled ? "map/map_tiled.cuh" : "map/map.cuh";
    const char *entry = map.tile.is_transpose ? "transpose" : is_tiled ? "map_tile" : "map";
    TRY(kernel_finish(&source, kernel, file, entry, arena));
    /* A flat space shorter than a run has only a rest, for which there is one block. */
    kernel->grid[0] = blocks ? (uint32_t)blocks : 1;
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = map.tile.is_transpose ? TRANSPOSE_THREADS : MAP_THREADS;
    kernel->is_dependent = device->cuda.major >= 9;
    if (map.tile.is_transpose)
        return arena_print(arena, &step->detail, "transposes tiles of %lldx%lld, %d dim%s",
                           (long long)map.tile.along_axis, (long long)map.tile.along_last, map.space.rank,
                           plural(map.space.rank));
    if (is_tiled)
        return arena_print(arena, &step->detail, "%d operation%s, tiles of %lldx%lld, runs of %d, %d dim%s",
                           step->region.count, plural(step->region.count), (long long)map.tile.along_axis,
                           (long long)map.tile.along_last, map.run, map.space.rank, plural(map.space.rank));
    return arena_print(arena, &step->detail, "%d operation%s, runs of %d, %d dim%s", step->region.count,
                       plural(step->region.count), map.run, map.space.rank, plural(map.space.rank));
}

/* Reads of a run precede its writes, and no other thread reads what a thread writes. Moved values are read at other
   positions than they are written. */
static bool may_alias(const struct step *step, int in, int out) {
    const struct region *region = &step->region;
    return tensor_same_layout(region->graph->values[in].tensor, region->graph->values[out].tensor) &&
           !map_moves(region, in);
}

const struct family cuda_map = {
    .name = "cuda.map",
    .shares_reads = true,
    .doc = "pointwise operations and data movement of one shape in one sweep",
    .accepts = accepts,
    .build = build,
    .may_alias = may_alias,
};
