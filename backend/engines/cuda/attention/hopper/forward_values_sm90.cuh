/* forward_values: transposes 8-bit V in place for forward_sm90. Keys are permuted as in P (see forward_softmax). Keys
   past the length in use are cleared because 0 x NaN is NaN. */

constexpr u32 TRANSPOSERS = 3; /* warps */
constexpr i32 NO_MORE_VALUES = -1;

/* Address of the number of keys in use of a stage's block, counted from its first key. */
DEVICE u32 used_at(u32 stage) { return shared_address(s_memory) + MEMORY.used + stage * MEMORY.used_bytes; }

/* Tells the transposing warps that no more V follows. */
template <class C> DEVICE void end_v(const C &v) {
    wait(v_empty(v.stage), v.phase ^ 1);
    store_words(used_at(v.stage), words{{(u32)NO_MORE_VALUES}});
    arrive(v_loaded(v.stage));
}

/* `warp` is less than TRANSPOSERS. */
DEVICE void transpose_v(u32 warp) {
    constexpr u32 PAIRS = 2 * V_PANELS * (BLOCK_K / 64);
    cursor<STAGES> v;
    for (;; v.advance()) {
        wait(v_loaded(v.stage), v.phase);
        /* Only the lane that arrives below reads this word: its arrival orders the read before the producer's next
           write. */
        const i32 used = uniform(lane_index() == 0 ? load_words(used_at(v.stage)).at[0] : 0u);
        if (used == NO_MORE_VALUES)
            break;
#pragma unroll 1
        for (u32 i = warp; i < PAIRS; i += TRANSPOSERS)
            transpose_pair<false>(v_at(v.stage) + i / 2 / V_PANELS * MEMORY.vt_bytes +
                                      i / 2 % V_PANELS * FP8_TILE_BYTES,
                                  i % 2, used - (i32)(i / 2 / V_PANELS * 64));
        publish_to_async_proxy();
        __syncwarp();
        release(v_full(v.stage));
    }
}

/* Writes the rows of ones below V^T of each 64 keys. All elements are equal, so swizzling does not matter. */
DEVICE void write_ones() {
    const u32 four = rounded_four<v_t>(1, 1, 1, 1), first = threadIdx.x * 16;
    for (u32 square = 0; square < STAGES * (BLOCK_K / 64); ++square)
        if ((i32)first < (i32)ONES_BYTES)
            store_words(v_at(0) + square * MEMORY.vt_bytes + V_PANELS * FP8_TILE_BYTES + first,
                        words{{four, four, four, four}});
    publish_to_async_proxy();
}
