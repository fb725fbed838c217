/* patch_epilogue: from a warpgroup's sums, pairs of pixels of a filter, to a tile of results in shared memory, which
   store_tiles stores. The tile overwrites the patch that was just read or, with AUX_LOAD, the auxiliary operand
   Planes    IS_PLANAR: y is NCHW, with contiguous pixels; sums are pairs of pixels already, and their layout is
             [TILE_H][64 filters][TILE_W] */

/* Bit j is set if pixel 8j + first of a tile belongs to the result. */
DEVICE constexpr u32 octets_within(i32 lines, i32 columns, i32 first) {
    u32 octets = 0;
#pragma unroll 1
    for (int j = 0; j < PIXELS / 8; ++j)
        octets |= (u32)((j * 8 + first) / PITCH < lines && (j * 8 + first) % PITCH < columns) << j;
    return octets;
}
/* The same masks for tiles that are entirely inside the result, as constants: for a thread, where first is 2 (lane % 4)
   + E, and for all threads. */
template <int E> struct whole_octets {
    static constexpr u32 OCTETS[4] = {octets_within(TILE_H, TILE_W, E), octets_within(TILE_H, TILE_W, 2 + E),
                                      octets_within(TILE_H, TILE_W, 4 + E), octets_within(TILE_H, TILE_W, 6 + E)};
    static constexpr u32 OF_ALL = OCTETS[0] & OCTETS[1] & OCTETS[2] & OCTETS[3];
    static DEVICE u32 mine() {
        const u32 low = lane_index() & 1 ? OCTETS[1] : OCTETS[0], high = lane_index() & 1 ? OCTETS[3] : OCTETS[2];
        return lane_index() & 2 ? high : low;
    }
};
template <class P> DEVICE bool is_within(const P &p, const tile_coordinates &at, i32 filter) {
    return at.image < (i32)p.images && at.line + TILE_H <= (i32)p.lines && at.column + TILE_W <= (i32)p.positions &&
           filter + 64 <= (i32)p.columns;
}

/* Register 4j + 2h + e holds filter 16 * warp + lane / 4 + 8h, pixel 8j + 2 (lane % 4) + e. Pairs of pixels become
   words 2j + h, which replace those of the auxiliary operand. A template, so that generated functions are looked up
   late. */
template <bool IS_WITHIN, class P>
DEVICE void run_epilogue(u32 (&r_pairs)[PIXELS / 4], const sums &r_y, const P &p, i32 filter,
                         const tile_coordinates &at, register_reductions<P> &reductions) {
    const i32 mine = filter + (warp_index() % 4 * 16 + lane_index() / 4) % FILTERS_OF_TILE, last = (i32)p.columns - 1;
    const index k[2] = {mine < last ? mine : last,
                        mine + 8 < last ? mine + 8 : last}; /* filters after the last one are not stored */
    decltype(fetch(p, 0, 0, k[0])) in[2] = {fetch(p, 0, 0, k[0]), fetch(p, 0, 0, k[1])};
    u32 octets[2] = {whole_octets<0>::mine(), whole_octets<1>::mine()};
    constexpr u32 OF_ALL[2] = {whole_octets<0>::OF_ALL, whole_octets<1>::OF_ALL};
#pragma unroll
    for (int e = 0; e < 2 && !IS_WITHIN; ++e)
        octets[e] &= octets_within(at.image < (i32)p.images ? (i32)p.lines - at.line : 0, (i32)p.positions - at.column,
                                   (i32)(lane_index() % 4) * 2 + e);
#pragma unroll
    for (int j = 0; j < PIXELS / 8; ++j) {
        decltype(evaluate(p, 0, 0, k[0], run<sum_t, RUN>{}, in[0])) out[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if constexpr (AUX_LOAD)
                set_aux_pair(in[h], r_pairs[2 * j + h]);
            out[h] = evaluate(p, 0, 0, k[h], run<sum_t, RUN>{{r_y[4 * j + 2 * h], r_y[4 * j + 2 * h + 1]}}, in[h]);
            r_pairs[2 * j + h] = pair_of(out[h]);
        }
#pragma unroll
        for (int i = 0; i < 4 && register_reductions<P>::EXIST; ++i) {
            const int h = i % 2, e = i / 2; /* this order separates additions to the same sum */
            const bool is_filter = IS_WITHIN || register_reductions<P>::WHOLES == 0 || mine + 8 * h <= last;
            if ((IS_WITHIN && OF_ALL[e] >> j & 1) || (is_filter && octets[e] >> j & 1)) {
                if constexpr (REDUCES_STORED)
                    reductions.add(elements_of(p, (u16)(r_pairs[2 * j + h] >> 16 * e)), h, 0);
                else
                    reductions.add(out[h], h, e);
            }
        }
    }
}

/* Writes pairs unchanged, without the unused columns. The filters of a warp cause no bank conflicts if TILE_W / 8 is
   odd. */
DEVICE void write_planes(const u32 (&r_pairs)[PIXELS / 4], u32 s_y) {
    const u32 pair = lane_index() % 4 * 2, row = warp_index() % 4 * 16 + lane_index() / 4;
#pragma unroll
    for (int j = 0; j < PIXELS / 8; ++j) {
        const bool wraps = j * 8 % PITCH + pair >= PITCH;
        const u32 line = j * 8 / PITCH + wraps, column = j * 8 % PITCH + pair - (wraps ? PITCH : 0);
        if (column >= TILE_W || line >= TILE_H)
            continue;
#pragma unroll
        for (int h = 0; h < 2; ++h)
            store_pair(s_y + line * LINE_BYTES + ((row + 8 * h) * TILE_W + column) * 2, r_pairs[2 * j + h]);
    }
}

/* Transposing each block of 8 x 8 makes the 64 filters of a pixel one row of 128 bytes. It also drops the unused
   columns of the pitch, so that the dense TILE_H x TILE_W box of y remains. Returns the address of a lane's row in the
   four blocks of a pair of octets. */
DEVICE u32 row_of_blocks(u32 s_y, int pair, u32 lane) {
    constexpr u32 CHUNKS = MEMORY.result_bytes / 16;
    const bool is_pair = pair * 16 + 8 < PIXELS; /* the last octet may be single */
    const u32 pixel = pair * 16 + lane / 16 * 8 + lane % 8, line = pixel / PITCH, column = pixel % PITCH,
              eight = warp_index() % 4 * 2 + lane / 8 % 2, chunk = eight % CHUNKS;
    const bool is_wanted = column < TILE_W && line < TILE_H && (is_pair || lane < 16);
    const u32 row = !is_wanted ? SPARE_ROW : PITCH == TILE_W ? pixel : line * TILE_W + column;
    return s_y + eight / CHUNKS * MEMORY.result_slice + row * MEMORY.result_bytes +
           (chunk ^ row / (8 / CHUNKS) % CHUNKS) * 16;
}

/* Reads the words of the auxiliary operand in the layout of run_epilogue; write_pixels writes words into rows of pixels
   for the store. */
DEVICE void read_pixels(u32 (&r_pairs)[PIXELS / 4], u32 s_y, u32 lane) {
#pragma unroll
    for (int pair = 0; pair < (PIXELS + 15) / 16; ++pair) {
        u32 blocks[4];
        load_matrices_transposed(blocks, row_of_blocks(s_y, pair, lane));
#pragma unroll
        for (int i = 0; i < 4 && pair * 4 + i < PIXELS / 4; ++i)
            r_pairs[pair * 4 + i] = blocks[i];
    }
}
DEVICE void write_pixels(const u32 (&r_pairs)[PIXELS / 4], u32 s_y, u32 lane) {
#pragma unroll
    for (int pair = 0; pair < (PIXELS + 15) / 16; ++pair) {
        const int second = pair * 16 + 8 < PIXELS ? pair * 4 + 2 : pair * 4;
        const u32 blocks[4] = {r_pairs[pair * 4], r_pairs[pair * 4 + 1], r_pairs[second], r_pairs[second + 1]};
        store_matrices_transposed(row_of_blocks(s_y, pair, lane), blocks);
    }
}

template <class P>
DEVICE void write_tile(const sums &r_y, const P &p, i32 filter, u32 slot, int group, const result_cursor &result,
                       const tile_coordinates &at, register_reductions<P> &reductions) {
    u32 lane = lane_index();
    if constexpr (AUX_LOAD || register_reductions<P>::EXIST)
        fence_register(lane); /* keeps the compiler from holding derived values over all tiles; see ready_patch */
    const u32 out = group * RESULT_SLOTS + result.slot, s_y = AUX_LOAD ? result_slot(out) : patch_slot(slot);
    u32 r_pairs[PIXELS / 4];
    if constexpr (AUX_LOAD) {
        wait(result_ready(out), result.phase);
        read_pixels(r_pairs, s_y, lane);
    }
    if (!register_reductions<P>::EXIST || is_within(p, at, filter))
        run_epilogue<true>(r_pairs, r_y, p, filter, at, reductions);
    else
        run_epilogue<false>(r_pairs, r_y, p, filter, at, reductions);
    if constexpr (!AUX_LOAD) {
        wait(result_ready(out), result.phase ^ 1); /* otherwise result_written could be two phases ahead of its
                                                      reader */
        sync_threads(1 + group, 128);              /* all four warps have read the patch */
    }
    if constexpr (AUX_LOAD)
        lane = __shfl_sync(~0u, lane, lane); /* otherwise the compiler would keep the addresses of all reads for the
                                                writes */
    if constexpr (IS_PLANAR)
        write_planes(r_pairs, s_y);
    else
        write_pixels(r_pairs, s_y, lane);
    publish_to_async_proxy();
    __syncwarp();
    release(result_written(out));
}
