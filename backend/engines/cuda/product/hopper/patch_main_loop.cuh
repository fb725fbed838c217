/* patch_main_loop: accumulates a tile: wgmma over all taps of a patch for each block of 64 channels, after the prologue
   Prologue  HAS_PROLOGUE: read_along, read_across and prepare are generated: pointwise operations that transform a
             patch in place, once for all taps */

/* Waits for a patch and applies the prologue in place: 8 channels of a pixel at a time, for every 16th pixel. Elements
   outside the image, or after its channels, are zeros and must stay so. */
template <class P>
DEVICE void ready_patch(const P &p, const patch_cursor &patch, const tile_coordinates &at, i32 channel, int group) {
    if constexpr (!HAS_PROLOGUE) {
        wait(patch_arrived(patch.slot), patch.phase);
    } else {
        constexpr int ROWS = PATCH_H * PITCH, AT_ONCE = column_reductions::COUNT + whole_reductions::COUNT > 0 ? 2 : 4;
        u32 thread = threadIdx.x % 128;
        fence_register(thread); /* keeps the compiler from holding derived values in registers over all tiles */
        const i32 first = (i32)(thread / 8), chunk = (i32)(thread % 8), left = (i32)p.channels - channel - chunk * 8;
        const auto along = read_along(p, channel + chunk * 8, false);
        const auto across = read_across(p, 0);
        wait(patch_arrived(patch.slot), patch.phase);
        u32 s = patch_slot(patch.slot) + first * MEMORY.pixel_bytes + (chunk ^ first % 8) * 16;
        for (i32 row = first; row < ROWS; row += 16 * AT_ONCE, s += 16 * AT_ONCE * MEMORY.pixel_bytes) {
            words r[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (row + 16 * i < ROWS)
                    r[i] = load_words(s + i * 16 * MEMORY.pixel_bytes);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const i32 line = (row + 16 * i) / PITCH, column = row + 16 * i - line * PITCH;
                const bool is_inside = (u32)(at.line + (i32)p.corner_h + line) < (u32)p.x_lines &&
                                       (u32)(at.column + (i32)p.corner_w + column) < (u32)p.x_columns;
                if (row + 16 * i >= ROWS || !is_inside || left <= 0)
                    continue;
                prepare(p, r[i].at, along, across);
#pragma unroll
                for (int word = 0; word < 4 && !CHANNELS_ARE_WHOLE; ++word)
                    r[i].at[word] &= left > 2 * word + 1 ? ~0u : left == 2 * word + 1 ? 0xffff : 0;
                store_words(s + i * 16 * MEMORY.pixel_bytes, r[i]);
            }
        }
        publish_to_async_proxy();
        sync_threads(1 + group, 128);
    }
}

/* Waits for a tile's last products and releases the slots that they read. */
DEVICE void finish_products(sums &r_y, u32 last_patch, u32 last_filter) {
    if constexpr (IS_RESIDENT)
        release(main_loop_issued());
    mma_wait<0>();
    if constexpr (!IS_RESIDENT)
        release(filter_released(last_filter));
    if constexpr (AUX_LOAD)
        release(patch_released(last_patch));
#pragma unroll
    for (int i = 0; i < PIXELS / 2; ++i)
        fence_register(r_y[i]);
}

/* Multiplies all taps of a slice with few channels. The taps are short, so the overhead between separately issued taps
   would exceed the products. */
template <class P>
DEVICE void multiply_slice(sums &r_y, const P &p, const taps &seen, u32 filters, u32 patch, bool adds) {
    const u64 w = operand<A_ROW>(filters + seen.number(p, 0, 0) * MEMORY.filter_bytes, A_PANEL),
              x = operand<MEMORY.pixel_bytes>(patch + seen.pixel(p, 0, 0) * MEMORY.pixel_bytes, 0);
    const i64 line = (i64)(i32)p.move_h * PITCH * (i64)(MEMORY.pixel_bytes / 16),
              pixel = (i64)(i32)p.move_w * (i64)(MEMORY.pixel_bytes / 16),
              row = (i64)(i32)p.step_r * TAPS_S * (i64)(MEMORY.filter_bytes / 16),
              tap = (i64)(i32)p.step_s * (i64)(MEMORY.filter_bytes / 16);
    mma_fence();
#pragma unroll
    for (int r = 0; r < TAPS_R; ++r)
#pragma unroll
        for (int s = 0; s < TAPS_S; ++s)
#pragma unroll
            for (int k = 0; k < BLOCK_K / 16; ++k)
                multiply_accumulate(r_y, w + r * row + s * tap + k * A_STEP, x + r * line + s * pixel + k * B_STEP,
                                    adds || r + s + k > 0);
    mma_commit();
}

/* Returns the slot of the last patch: the result is written there, and store_tiles releases it. With AUX_LOAD the
   result is written elsewhere, and the slot is released here. */
template <class P>
DEVICE u32 multiply_tile(sums &r_y, const P &p, const taps &seen, const tile_coordinates &at, int group,
                         patch_cursor &patch, slot_cursor<FILTER_SLOTS> &filter, u32 number) {
    u32 last_patch = 0, last_filter = 0;
    if (USES_ALL_SLICES && number > 0)
        wait(main_loop_issued(), (number - 1) % 2); /* all patches before those of this tile have now arrived */
    for (i32 i = 0; i < patches_of(p); ++i) {
        ready_patch(p, patch, at, i * BLOCK_K, group);
        if (IS_RESIDENT && !USES_ALL_SLICES && number > 0)
            wait(main_loop_issued(), (number - 1) % 2); /* there is one block */
        if constexpr (MULTIPLIES_SLICES) {
            for (int tap = 0; tap < TAPS && number < CONSUMER_GROUPS; ++tap)
                wait(filter_arrived(i * TAPS + tap), 0);
            multiply_slice(r_y, p, seen, filter_slot(i * TAPS), patch_slot(patch.slot), i > 0);
            mma_wait<1>();
            if (i > 0)
                release(patch_released(last_patch));
        }
        i32 r = 0, s = 0;
        for (i32 tap = 0; tap < seen.rows * seen.columns && !MULTIPLIES_SLICES; ++tap) {
            if constexpr (IS_RESIDENT)
                filter.slot = i % SLICES * TAPS + seen.number(p, r, s);
            wait(filter_arrived(filter.slot), filter.phase);
            const u64 w = operand<A_ROW>(filter_slot(filter.slot), A_PANEL),
                      x = operand<MEMORY.pixel_bytes>(patch_slot(patch.slot) + seen.pixel(p, r, s) * MEMORY.pixel_bytes,
                                                      0);
            mma_fence();
#pragma unroll
            for (int k = 0; k < BLOCK_K / 16; ++k)
                multiply_accumulate(r_y, w + k * A_STEP, x + k * B_STEP, i + tap + k > 0);
            mma_commit();
            mma_wait<1>(); /* wait for the previous tap; the current one continues */
            if (!IS_RESIDENT && i + tap > 0)
                release(filter_released(last_filter));
            if (i > 0 && tap == 0)
                release(patch_released(last_patch));
            last_filter = filter.slot;
            if constexpr (!IS_RESIDENT)
                filter.advance();
            if (++s == seen.columns)
                s = 0, ++r;
        }
        last_patch = patch.slot;
        patch.advance_patch();
    }
    patch.end_tile();
    finish_products(r_y, last_patch, last_filter);
    return last_patch;
}
