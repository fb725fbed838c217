/* forward_values: V of 8 bits becomes V^T where it lies, for sm_90's forward kernel; keys are in the order of weights,
   see forward_softmax, and those past the length in use are cleared: 0 x NaN would be NaN */

constexpr u32 TRANSPOSERS = 3; /* warps */
constexpr i32 NO_MORE_VALUES = -1;

/* How many keys of a stage's block, counted from its first one, are in use. */
DEVICE u32 used_at(u32 stage) { return shared_address(s_memory) + USED_AT + stage * USED_BYTES; }

/* The producer's last word. */
template <class C> DEVICE void end_values(const C &v) {
    wait(v_empty(v.stage), v.phase ^ 1);
    store_words(used_at(v.stage), words{{(u32)NO_MORE_VALUES}});
    arrive(values_loaded(v.stage));
}

/* Warp `warp` of TRANSPOSERS. */
DEVICE void transpose_values(u32 warp) {
    constexpr u32 PAIRS = 2 * V_PANELS * (BLOCK_K / 64);
    cursor<STAGES> v;
    for (;; v.advance()) {
        wait(values_loaded(v.stage), v.phase);
        /* The lane that arrives below is the one that reads what the producer writes again. */
        const i32 used = uniform(lane_index() == 0 ? load_words(used_at(v.stage)).at[0] : 0u);
        if (used == NO_MORE_VALUES)
            break;
#pragma unroll 1
        for (u32 i = warp; i < PAIRS; i += TRANSPOSERS)
            transpose_pair<false>(v_at(v.stage) + i / 2 / V_PANELS * SQUARES_BYTES + i / 2 % V_PANELS * SQUARE_BYTES,
                                  i % 2, used - (i32)(i / 2 / V_PANELS * 64));
        publish_to_async_proxy();
        __syncwarp();
        release(v_full(v.stage));
    }
}

/* Rows of ones behind the squares of each 64 keys. Their order does not matter, swizzled or not. */
DEVICE void write_ones() {
    const u32 four = rounded_four<v_t>(1, 1, 1, 1), first = threadIdx.x * 16;
    for (u32 square = 0; square < STAGES * (BLOCK_K / 64); ++square)
        if ((i32)first < (i32)ONES_BYTES)
            store_words(v_at(0) + square * SQUARES_BYTES + V_PANELS * SQUARE_BYTES + first,
                        words{{four, four, four, four}});
    publish_to_async_proxy();
}
