/* forward_values: V of 8 bits becomes V^T where it lies, for sm_90's forward kernel: wgmma takes FP8 along k alone
   Squares   of 64 keys x 64 columns: rows of 64 bytes, swizzled by 64 bytes, before and behind. Blocks of 32 x 32 of
             the diagonal stay where they are, the other two change places; each pair is one warp's work
   Order     transposed loads take pairs of bytes: a lane then has two keys of two neighbouring columns. Of 16 keys, t =
             lane % 4, it stores 2t, 2t + 1, 2t + 8, 2t + 9 side by side, which is the order of weights (see
             forward_softmax); of 16 columns, even ones are the rows 0 .. 7 of V^T, odd ones 8 .. 15: the 8 rows of a
             store lie in different banks, and a lane's results are four neighbours
   Cleared   keys past the length in use: 0 x NaN would be NaN */

constexpr u32 TRANSPOSERS = 3; /* warps */
constexpr i32 NO_MORE_VALUES = -1;

/* How many keys of a stage's block, counted from its first one, are in use. */
DEVICE u32 used_at(u32 stage) { return shared_address(s_memory) + USED_AT + stage * USED_BYTES; }

DEVICE u32 place_in_square(u32 row, u32 chunk) { return row * 64 + (chunk ^ row / 2 % 4) * 16; }

/* Those of four bytes whose keys are in use; `key`: of the first one. */
DEVICE u32 bytes_in_use(i32 key, i32 used) {
    return (key < used ? 0xffu : 0u) | (key + 1 < used ? 0xff00u : 0u) | (key + 8 < used ? 0xff0000u : 0u) |
           (key + 9 < used ? 0xff000000u : 0u);
}

/* 32 keys x 32 columns in registers: four words for each 16 columns. */
using byte_block = u32[8];

DEVICE void load_byte_block(byte_block &b, u32 square, u32 keys, u32 columns) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        u32 pairs[4];
        load_matrices_transposed(pairs, square + place_in_square(keys * 32 + lane_index(), columns * 2 + i));
#pragma unroll
        for (int half = 0; half < 2; ++half) { /* even columns and odd ones of 16 keys */
            b[4 * i + 2 * half] = __byte_perm(pairs[2 * half], pairs[2 * half + 1], 0x6420);
            b[4 * i + 2 * half + 1] = __byte_perm(pairs[2 * half], pairs[2 * half + 1], 0x7531);
        }
    }
}
DEVICE void store_byte_block(u32 square, u32 keys, u32 columns, const byte_block &b) {
    const u32 lane = lane_index();
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 four[4] = {b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]};
        store_matrices(square + place_in_square(columns * 32 + i * 16 + lane % 16, keys * 2 + lane / 16), four);
    }
}
/* used: counted from the block's first key. */
DEVICE void clear_unused(byte_block &b, i32 used) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        b[i] &= bytes_in_use(i / 2 % 2 * 16 + (i32)(lane_index() % 4 * 2), used);
}

/* The two blocks of the diagonal, or those beside it. used: counted from the square's first key. */
DEVICE void transpose_pair(u32 square, u32 is_beside, i32 used) {
    byte_block first, second;
    load_byte_block(first, square, 0, is_beside);
    load_byte_block(second, square, 1, 1 - is_beside);
    if (HAS_SEQ_LEN_KV && used < 64) {
        clear_unused(first, used);
        clear_unused(second, used - 32);
    }
    __syncwarp();
    store_byte_block(square, 0, is_beside, first);
    store_byte_block(square, 1, 1 - is_beside, second);
}

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
            transpose_pair(v_at(v.stage) + i / 2 / V_PANELS * SQUARES_BYTES + i / 2 % V_PANELS * SQUARE_BYTES, i % 2,
                           used - (i32)(i / 2 / V_PANELS * 64));
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
