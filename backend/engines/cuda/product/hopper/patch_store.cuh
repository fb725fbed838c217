/* patch_store: one thread per consumer warpgroup stores its tiles, while the warpgroup computes the next one. It also
   loads the auxiliary operand of a tile, one or two tiles ahead, into the slot of the result */

/* Loads the operand of a tile into the slot of its result. A template, so that maps that were not generated are not
   looked up. */
template <class P> DEVICE void load_aux(const P &p, const tile_scheduler &item, int group, u32 slot) {
    const tile_coordinates at = item.locate(p, group);
    const u32 out = group * RESULT_SLOTS + slot;
    arrive_expecting(result_ready(out), TILE_BYTES);
    for (int i = 0; i < STACK && IS_VOLUME; ++i)
        load_box(result_slot(out) + i * MEMORY.result_slice, (&p.b_map0)[item.phase], result_ready(out), item.filter(p),
                 at.column, at.line, at.slice + i, at.image);
    if constexpr (!IS_VOLUME)
        load_box(result_slot(out), (&p.b_map0)[item.phase], result_ready(out), item.filter(p), at.column, at.line,
                 at.image);
}

template <class P> DEVICE void store_tiles(const P &p, int group) {
    patch_cursor patch;
    patch.begin(group);
    result_cursor result;
    tile_scheduler next(p); /* the tile whose operand is loaded next */
    if constexpr (AUX_LOAD)
        for (u32 slot = 0; slot < RESULT_SLOTS && next.more(p); ++slot, next.advance(p))
            load_aux(p, next, group, slot);
    for (tile_scheduler item(p); item.more(p); item.advance(p)) {
        for (i32 i = 1; i < patches_of(p); ++i)
            patch.advance_patch(); /* the result is in the tile's last patch */
        const tile_coordinates at = item.locate(p, group);
        const u32 out = group * RESULT_SLOTS + result.slot, s_y = AUX_LOAD ? result_slot(out) : patch_slot(patch.slot);
        wait(result_written(out), result.phase); /* TMA drops pixels outside y */
        for (int i = 0; i < STACK && IS_VOLUME; ++i)
            store_box((&p.y_map0)[item.phase], s_y + i * MEMORY.result_slice, item.filter(p), at.column, at.line,
                      at.slice + i, at.image);
        if constexpr (!IS_PLANAR && !IS_VOLUME)
            store_box((&p.y_map0)[item.phase], s_y, item.filter(p), at.column, at.line, at.image);
        for (int line = 0; line < TILE_H && IS_PLANAR; ++line)
            store_box(p.y_map0, s_y + line * LINE_BYTES, at.column, at.line + line, item.filter(p), at.image);
        commit_stores();
        wait_stores_read<0>();
        if constexpr (AUX_LOAD) {
            if (next.more(p))
                load_aux(p, next, group, result.slot);
            next.advance(p);
        } else {
            arrive(result_ready(out));
            arrive(patch_released(patch.slot), 4); /* for the four warps */
        }
        patch.advance_patch();
        patch.end_tile();
        result.advance();
    }
}
