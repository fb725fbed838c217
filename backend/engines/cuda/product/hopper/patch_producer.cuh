/* patch_producer: one thread loads patches, one filters */

DEVICE void load_patches(const arguments &p) {
    patch_cursor fill;
    for (tile_scheduler item(p); item.more(p); item.advance(p))
        for (i32 block = 0; block < (i32)p.blocks; ++block)
            for (int group = 0; group < CONSUMER_GROUPS; ++group) {
                const tile_coordinates at = item.locate(p, group);
                wait(patch_released(fill.slot), fill.slot < PATCH_SLOTS); /* its slot's every second fill */
                arrive_expecting(patch_arrived(fill.slot), PATCH_BYTES);
                load_box(patch_slot(fill.slot), p.x_map, patch_arrived(fill.slot), block * BLOCK_K,
                         at.column + (i32)p.corner_w, at.line + (i32)p.corner_h, at.image);
                fill.advance();
            }
}

DEVICE void load_filter(const arguments &p, u32 slot, i32 number, i32 channel, i32 filter) {
    arrive_expecting(filter_arrived(slot), FILTER_BYTES);
    load_box(filter_slot(slot), p.w_map, filter_arrived(slot), A_IS_MN_MAJOR ? filter : channel, number % TAPS_S,
             number / TAPS_S, A_IS_MN_MAJOR ? channel : filter);
}

DEVICE void load_filters(const arguments &p) {
    slot_cursor<FILTER_SLOTS> fill;
    tile_scheduler item(p);
    if constexpr (IS_RESIDENT) {
        for (int number = 0; number < TAPS && item.more(p); ++number)
            load_filter(p, number, number, 0, item.filter(p));
        for (int number = 0; number < TAPS && item.more(p); ++number)
            wait(filter_arrived(number), 0); /* those that no phase of the block sees, too */
    } else {
        for (; item.more(p); item.advance(p)) {
            const taps seen = item.seen(p);
            for (i32 block = 0; block < (i32)p.blocks; ++block)
                for (i32 r = 0; r < seen.rows; ++r)
                    for (i32 s = 0; s < seen.columns; ++s) {
                        wait(filter_released(fill.slot), fill.phase ^ 1);
                        load_filter(p, fill.slot, seen.number(p, r, s), block * BLOCK_K, item.filter(p));
                        fill.advance();
                    }
        }
    }
}
