/* tile_scheduler: the sequence of tiles of a block, and the number of steps along k of each
   Order     by split, batch entry, rasterization groups of rows of tiles, columns, rows: concurrent tiles are roughly a
             square, whose operands stay in L2
   Requires  HAS_PHASES HAS_OVERRIDES IS_SPLIT; find_entry is generated: the offset of a batch entry, and its used sizes
             */

struct tile_scheduler : tile_coordinates {
    i32 tile; /* index of a cluster's tile: CLUSTER * BLOCK_M x BLOCK_N */
    DEVICE tile_scheduler(const arguments &p) : tile(blockIdx.x / CLUSTER_BLOCKS) { locate(p); }
    DEVICE bool more(const arguments &p) const { return tile < (i32)p.tiles; }
    DEVICE void advance(const arguments &p) {
        tile += gridDim.x / CLUSTER_BLOCKS;
        locate(p);
    }

    /* Divisions take hundreds of clocks; callers overlap this with waiting for other roles. */
    DEVICE void locate(const arguments &p) {
        const u32 entry = divide(tile, p.tiles_per_entry), within = tile - entry * p.tiles_per_entry.value;
        split = divide(entry, p.batches);
        z = (index)(entry - split * p.batches.value);
        if constexpr (HAS_PHASES)
            z = (index)p.batches.value - 1 - z; /* phases with many taps have the last numbers but should run first */
        const u32 group = divide(within, p.tiles_per_raster_group),
                  inside = within - group * p.tiles_per_raster_group.value;
        const u32 first = group * (u32)p.raster_rows, left = (u32)p.tiles_m - first;
        const u32 height = left < (u32)p.raster_rows ? left : (u32)p.raster_rows;
        row = (i32)((first + inside % height) * CLUSTER + (CLUSTER > 1 ? cluster_rank() : 0)) * BLOCK_M;
        column = (i32)(inside / height) * BLOCK_N;
        row_end = (i32)p.rows;
        find_entry(p, *this);
    }
    /* All blocks of a cluster execute the same number of steps. */
    DEVICE i32 used_steps() const {
        const i32 first_row = row - (CLUSTER > 1 ? (i32)cluster_rank() * BLOCK_M : 0);
        return first_row < used[0] && column < used[1] ? (used[2] + BLOCK_K - 1) / BLOCK_K : 0;
    }
    DEVICE i32 first_step(const arguments &p) const {
        return CLUSTER_SPLITS > 1 ? (i32)(cluster_rank() * p.steps_per_split)
               : IS_SPLIT         ? (i32)(split * p.steps_per_split)
                                  : 0;
    }
    DEVICE i32 steps(const arguments &p) const {
        const i32 all = HAS_OVERRIDES ? used_steps() : HAS_PHASES ? phase_steps : (i32)p.steps;
        if constexpr (!IS_SPLIT && CLUSTER_SPLITS == 1)
            return all;
        const i32 left = all - first_step(p);
        return left < (i32)p.steps_per_split ? left : (i32)p.steps_per_split;
    }
};
