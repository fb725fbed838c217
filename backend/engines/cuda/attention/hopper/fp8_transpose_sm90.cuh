/* fp8_transpose: transposes 8-bit operands in place in shared memory, because FP8 wgmma only supports K-major operands
   Tiles     64 keys x 64 columns: rows of 64 bytes, 64-byte swizzled, before and after. The two 32 x 32 blocks on the
             diagonal are transposed in place, the other two are transposed and swapped; each pair is one warp's work
   Order     ldmatrix.trans moves pairs of bytes: a lane gets two keys of two adjacent columns. Of 16 keys, with
             t = lane % 4, it stores 2t, 2t + 1, 2t + 8, 2t + 9 next to each other. Of 16 columns, even ones become rows
             0 .. 7 and odd ones rows 8 .. 15, so that the 8 rows of a store use different banks, and a lane's results
             are four adjacent columns. BY_EIGHTS: key order 2t, 2t + 8, 2t + 1, 2t + 9, and columns in order
   Cleared   keys past the length in use
   Params    HAS_SEQ_LEN_KV */

#include "engines/cuda/attention/hopper/hopper_geometry.h"

DEVICE u32 fp8_tile_offset(u32 row, u32 chunk) { return row * 64 + (chunk ^ row / 2 % 4) * 16; }

/* Byte mask of a word: the keys in use. `key`: the first one. */
template <bool BY_EIGHTS> DEVICE u32 bytes_in_use(i32 key, i32 used) {
    const i32 second = key + (BY_EIGHTS ? 8 : 1), third = key + (BY_EIGHTS ? 1 : 8);
    return (key < used ? 0xffu : 0u) | (second < used ? 0xff00u : 0u) | (third < used ? 0xff0000u : 0u) |
           (key + 9 < used ? 0xff000000u : 0u);
}

/* 32 keys x 32 columns in registers: four words per 16 columns. */
using byte_block = u32[8];

template <bool BY_EIGHTS> DEVICE void load_byte_block(byte_block &b, u32 tile, u32 keys, u32 columns) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        u32 pairs[4];
        load_matrices_transposed(pairs, tile + fp8_tile_offset(keys * 32 + lane_index(), columns * 2 + i));
#pragma unroll
        for (int half = 0; half < 2; ++half) { /* even and odd columns of 16 keys */
            b[4 * i + 2 * half] = __byte_perm(pairs[2 * half], pairs[2 * half + 1], BY_EIGHTS ? 0x6240 : 0x6420);
            b[4 * i + 2 * half + 1] = __byte_perm(pairs[2 * half], pairs[2 * half + 1], BY_EIGHTS ? 0x7351 : 0x7531);
        }
    }
}
template <bool BY_EIGHTS> DEVICE void store_byte_block(u32 tile, u32 keys, u32 columns, const byte_block &b) {
    const u32 lane = lane_index(), row = BY_EIGHTS ? lane % 8 * 2 + lane / 8 % 2 : lane % 16;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 four[4] = {b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]};
        store_matrices(tile + fp8_tile_offset(columns * 32 + i * 16 + row, keys * 2 + lane / 16), four);
    }
}
/* used: keys in use, counted from the block's first one. */
template <bool BY_EIGHTS> DEVICE void clear_unused(byte_block &b, i32 used) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        b[i] &= bytes_in_use<BY_EIGHTS>(i / 2 % 2 * 16 + (i32)(lane_index() % 4 * 2), used);
}

/* Transposes the diagonal blocks, or the off-diagonal ones. used: counted from the tile's first key. */
template <bool BY_EIGHTS> DEVICE void transpose_pair(u32 tile, u32 is_off_diagonal, i32 used) {
    byte_block first, second;
    load_byte_block<BY_EIGHTS>(first, tile, 0, is_off_diagonal);
    load_byte_block<BY_EIGHTS>(second, tile, 1, 1 - is_off_diagonal);
    if (HAS_SEQ_LEN_KV && used < 64) {
        clear_unused<BY_EIGHTS>(first, used);
        clear_unused<BY_EIGHTS>(second, used - 32);
    }
    __syncwarp();
    store_byte_block<BY_EIGHTS>(tile, 0, is_off_diagonal, first);
    store_byte_block<BY_EIGHTS>(tile, 1, 1 - is_off_diagonal, second);
}
