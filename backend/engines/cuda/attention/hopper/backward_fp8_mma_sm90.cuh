/* backward_fp8_mma: FP8 operands of dQ for backward_sm90, with has_fp8_mma: K, which warpgroup 0 transposes, and dS */

/* Loads the resident K in tiles, to be transposed for dQ. */
template <class P> DEVICE void load_kt(const P &p, const work &w, u32 base, const barriers &b) {
    arrive_expecting(b.kt_full, MEMORY.kt_bytes);
#pragma unroll
    for (u32 i = 0; i < MEMORY.kt_bytes / FP8_TILE_BYTES; ++i)
        load_box(base + MEMORY.kt + i * FP8_TILE_BYTES, p.kt_map, b.kt_full, i % PANELS * 64,
                 w.resident + i / PANELS * 64, w.head, w.batch);
}
/* By warpgroup 0. */
DEVICE void transpose_k(const work &w, u32 base, const barriers &b) {
    wait(b.kt_full, 0);
#pragma unroll 1
    for (i32 i = (i32)warp_index(); i < (i32)(2 * MEMORY.kt_bytes / FP8_TILE_BYTES); i += 4)
        transpose_pair<true>(base + MEMORY.kt + i / 2 * FP8_TILE_BYTES, i % 2,
                             w.visible.keys - w.resident - i / 2 / PANELS * 64);
    publish_to_async_proxy();
    sync_threads(PART_STAGED, 128);
}

/* 64 queries x 64 columns of dS K with FP8 operands, from transposed K. */
DEVICE void issue_dq_fp8(float (&dq)[32], u32 base, u32 slot, int part) {
    const u32 ds = k_major(base + MEMORY.ds + slot * MEMORY.ds_bytes),
              keys = k_major(base + MEMORY.kt + part * FP8_TILE_BYTES);
    mma_dq_first(dq, ds, keys);
#pragma unroll
    for (int k = 1; k < BLOCK_RESIDENT / 32; ++k)
        mma_dq(dq, ds + k * 2, keys + k / 2 * (PANELS * FP8_TILE_BYTES >> 4) + k % 2 * 2);
}

/* dS as FP8, as it is published: per 8 columns, two elements of a row and two of the row 8 below. */
using fp8_words = u32[CONFIG.has_fp8_mma ? CONFIG.block_streamed / 8 : 1];
DEVICE void widen_ds(p_tile &ds, const fp8_words &ds_fp8) {
#pragma unroll
    for (int i = 0; i < CONFIG.block_streamed / 4; ++i)
        ds[i] = widened_pair<ds_operand_t>((u16)(ds_fp8[i / 2] >> i % 2 * 16));
}

/* Stores dS for dQ, K-major: rows are queries, and keys r and r + 8 of a warp are adjacent, in the order of
   transpose_k. */
DEVICE void store_ds_fp8(const fp8_words &ds_fp8, u32 s_ds, int half) {
    const u32 lane = lane_index(), chunk = (u32)half * 4 + (warp_index() & 3);
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 8; c += 4) {
        const u32 four[4] = {__byte_perm(ds_fp8[c], 0, 0x3120), __byte_perm(ds_fp8[c + 1], 0, 0x3120),
                             __byte_perm(ds_fp8[c + 2], 0, 0x3120), __byte_perm(ds_fp8[c + 3], 0, 0x3120)};
        store_matrices_transposed(s_ds + (c * 8 + lane) * 128 + (chunk ^ lane & 7) * 16, four);
    }
}
