/* overrides: a batch entry that uses only its first rows, columns and k. Tiles outside have no steps, sums outside are
   0, and in the step that contains the end of k the rest is cleared in shared memory, because memory there may contain
   arbitrary values.
   Requires  HAS_OVERRIDES STORED_BYTES */

/* Clears, in rows of 128 bytes along k, everything after the first `kept` bytes; in panels, whole rows. `threads`
   threads share the work. */
DEVICE void clear_k(u32 s, u32 panel, int lines, u32 used_count, u32 thread, u32 threads) {
    const u32 rows = panel ? lines / 64 * BLOCK_K : lines;
    for (u32 row = thread; row < rows; row += threads)
        for (u32 chunk = panel ? 0 : used_count / 16; chunk < 8; ++chunk) {
            const u32 at = s + row * 128 + (chunk ^ row % 8) * 16;
            const i32 left =
                panel ? row % BLOCK_K < used_count / STORED_BYTES ? 16 : 0 : (i32)(used_count - chunk * 16);
            words r = load_words(at);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                r.at[i] &= left >= 4 * i + 4 ? ~0u : left <= 4 * i ? 0 : (1u << (left - 4 * i) * 8) - 1;
            store_words(at, r);
        }
}

/* Each warpgroup clears its rows of A and its share of B, which all warpgroups multiply. Once per tile, in its last
   step. */
template <class P> DEVICE void clear_unused(const P &p, const tile_scheduler &tile, u32 slot, int group, i32 step) {
    constexpr u32 THREADS_OF_TILE = TILE_GROUPS * 128;
    const i32 used_count = tile.used[2] - (tile.first_step(p) + step) * BLOCK_K;
    if (used_count >= BLOCK_K || tile.used[2] >= (i32)p.channels)
        return;
    const u32 thread = threadIdx.x % 128, bytes = (u32)used_count * STORED_BYTES;
    clear_k(a_slot(slot) + group * GROUP_ROWS * 128, A_PANEL, GROUP_ROWS, bytes, thread, 128);
    clear_k(b_slot(slot), B_PANEL, BLOCK_N, bytes, group * 128 + thread, THREADS_OF_TILE);
    publish_to_async_proxy();
    sync_threads(1 + TILE_GROUPS, THREADS_OF_TILE); /* barriers 1 to TILE_GROUPS belong to single warpgroups */
}

/* Clears the sums of rows and columns that are not used. */
DEVICE void clear_outside(sum_t (&r_c)[BLOCK_N / 2], const tile_coordinates &tile, i32 row) {
    if (row + 64 <= tile.used[0] && tile.column + BLOCK_N <= tile.used[1])
        return;
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) {
        const bool has_row = row + (i32)(warp_index() % 4 * 16 + lane_index() / 4) + i / 2 % 2 * 8 < tile.used[0];
        if (!has_row || tile.column + i / 4 * 8 + (i32)(lane_index() % 4 * 2) + i % 2 >= tile.used[1])
            r_c[i] = 0;
    }
}

/* Waits until a slot can be multiplied. */
template <class P>
DEVICE void ready_slot(const P &p, const pipeline_cursor &use, const tile_scheduler &tile, int group, i32 step) {
    wait(arrived(use.slot), use.phase);
    if constexpr (HAS_OVERRIDES)
        clear_unused(p, tile, use.slot, group, step);
}
