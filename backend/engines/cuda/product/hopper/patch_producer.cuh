/* patch_producer: one thread loads patches, another one filters */

template <class P> DEVICE void load_patch(const P &p, u32 fill, i32 number, const tile_coordinates &at) {
    const i32 channel = number / SLICES * BLOCK_K, column = at.column + (i32)p.corner_w,
              line = at.line + (i32)p.corner_h;
    wait(patch_released(fill), fill < PATCH_SLOTS); /* the parity alternates with the fills of a slot */
    arrive_expecting(patch_arrived(fill), MEMORY.patch_bytes);
    if constexpr (IS_VOLUME)
        load_box(patch_slot(fill), p.x_map, patch_arrived(fill), channel, column, line,
                 at.slice + (i32)p.corner_d + number % SLICES * (i32)p.move_d, at.image);
    else
        load_box(patch_slot(fill), p.x_map, patch_arrived(fill), channel, column, line, at.image);
}

DEVICE void load_patches(const arguments &p) {
    patch_cursor fill;
    for (tile_scheduler item(p); item.more(p); item.advance(p))
        for (i32 i = 0; i < CONSUMER_GROUPS * patches_of(p); ++i) {
            const int group = USES_ALL_SLICES ? i / SLICES : i % CONSUMER_GROUPS;
            load_patch(p, fill.slot, USES_ALL_SLICES ? i % SLICES : i / CONSUMER_GROUPS, item.locate(p, group));
            fill.advance();
        }
}

/* Loads one tap of a slice. A slice of the result that does not see this slice of the filter gets a tap outside the
   filter, which TMA fills with zeros. */
template <class P> DEVICE void load_filter(const P &p, u32 slot, i32 slice, i32 number, i32 channel, i32 filter) {
    const i32 x = A_IS_MN_MAJOR ? filter : channel, y = number % TAPS_S, z = number / TAPS_S,
              last = A_IS_MN_MAJOR ? channel : filter;
    arrive_expecting(filter_arrived(slot), MEMORY.filter_bytes);
    if constexpr (IS_VOLUME) {
#pragma unroll 1
        for (int i = 0; i < STACK; ++i)
            load_box(filter_slot(slot) + i * (MEMORY.filter_bytes / STACK), p.w_map, filter_arrived(slot), x, y, z,
                     (i32)p.first_t + (slice - i) * (i32)p.step_t, last);
    } else {
        load_box(filter_slot(slot), p.w_map, filter_arrived(slot), x, y, z, last);
    }
}

DEVICE void load_filters(const arguments &p) {
    slot_cursor<FILTER_SLOTS> fill;
    tile_scheduler item(p);
    if constexpr (IS_RESIDENT) {
        for (int number = 0; number < SLICES * TAPS && item.more(p); ++number)
            load_filter(p, number, number / TAPS, number % TAPS, 0, item.filter(p));
        for (int number = 0; number < SLICES * TAPS && item.more(p); ++number)
            wait(filter_arrived(number), 0); /* including those that no phase of the block uses */
    } else {
        for (; item.more(p); item.advance(p)) {
            const taps seen = item.seen(p);
            for (i32 i = 0; i < patches_of(p); ++i)
                for (i32 r = 0; r < seen.rows; ++r)
                    for (i32 s = 0; s < seen.columns; ++s) {
                        wait(filter_released(fill.slot), fill.phase ^ 1);
                        load_filter(p, fill.slot, i % SLICES, seen.number(p, r, s), i / SLICES * BLOCK_K,
                                    item.filter(p));
                        fill.advance();
                    }
        }
    }
}
