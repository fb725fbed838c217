/* patch_sm90: a convolution of stride 1, or a data gradient, whose image is fetched once and not once per tap           16-bit, channels last, wgmma; sm_90a
   Formula   y[n,p,q,k] = finish(sum over taps r, s and c of x[n, p + corner_h + line(r), q + corner_w + column(s), c] * w(r, s, c, k))
   Idea      a patch of the image, [PATCH_H][PITCH] pixels of 64 channels, lies in shared memory and is the factor of all taps: pixel (i, j) of
             the tile is row i * PITCH + j, and a tap reads the rows that begin some pixels later. The swizzle follows the address, not the
             factor, so a factor may begin at any pixel. Rows with j >= TILE_W are computed and thrown away
             Filters are the product's 64 rows and pixels its columns: 64 x 256 reads 80 bytes of shared memory per clock, 64 x 64 would read 128
   Tile      64 filters x TILE_H * TILE_W pixels for each of two math warpgroups; persistent over pairs of tiles
   Roles     warp 0: load_patches;   warp 1: load_filters;   warps 2, 3: store_tiles, one per math warpgroup
             warpgroups 1, 2: multiply_tile, then write_tile, into the patch just read, which is the tile's way out as well
   Barriers  patch_arrived [2 * PATCH_SLOTS];   patch_finished [PATCH_SLOTS];   filter_arrived, filter_finished [FILTER_SLOTS];   result_written,
             result_stored [2], multiplied. The warpgroups take patches in turn, and copies may arrive out of turn: each fill of a slot has a barrier of
             its own for each of them, or one that skips the other's fill would take a phase for the one two fills ago
   Resident  with one block of channels, all taps of 64 filters stay in shared memory and filter_finished is never used. The warpgroups then
             take turns: one multiplies, at the rate of both, while the other prepares and ends its tiles. multiplied: the last products of
             a tile are under way, and those of the next may follow
   Gradient  dx is a convolution of dy with the taps backwards and filters that lie along their own index (IS_TURNED); with strides,
             elements of dx at distance `stride` are a phase that sees every so-manieth tap: an image of its own, with a map of its own
   Planes    IS_PLANAR: y lies pixel by pixel, NCHW; sums are pairs of pixels already, and lie as [TILE_H][64 filters][TILE_W] on their way out
   Prologue  HAS_PROLOGUE: read_along, read_across and prepare are printed: pointwise operations on a patch where it lies, once for all taps
   Totals    per filter, of the result as it is stored, in registers before it leaves (column_totals and elements_of are printed): a block
             keeps to its filters, a thread to two of them, so that nothing meets before the last tile; totals.cuh joins the blocks' parts
   Limits    one result of 16 bits; what is read behind the sum depends on the filter alone; strides of 16 bytes
   Params    TILE_H TILE_W PATCH_H PITCH TAPS_R TAPS_S PATCH_SLOTS FILTER_SLOTS IS_RESIDENT IS_TURNED IS_PLANAR HAS_PROLOGUE RUN index sum_t, and
             multiply_accumulate (m64 x PIXELS x 32 bytes)
   Tried     storing by the math warpgroups: 2,000 clocks per tile slower; totals from the patch on its way out, by the math warpgroups or by
             the storers: convolutions of 64 channels 45 and 100 % slower than from registers; starting one of them some taps late: no gain */

/* ---- What this kernel demands ---- */

constexpr int MATH_GROUPS = 2, THREADS = (1 + MATH_GROUPS) * 128, BLOCK_K = 64, TAPS = TAPS_R * TAPS_S;
constexpr int PIXELS = ((TILE_H - 1) * PITCH + TILE_W + 7) / 8 * 8; /* columns of the product */
constexpr u32 PIXEL_BYTES = BLOCK_K * 2;
constexpr u32 PATCH_BYTES = PATCH_H * PITCH * PIXEL_BYTES; /* [PATCH_H, PITCH, 64], swizzled */
constexpr u32 READ_BYTES = ((PATCH_H - TILE_H) * PITCH + PITCH - TILE_W + PIXELS) * PIXEL_BYTES; /* the last tap reads past the patch */
constexpr u32 PATCH_SLOT = ((READ_BYTES > PATCH_BYTES ? READ_BYTES : PATCH_BYTES) + 1023) / 1024 * 1024;
constexpr u32 FILTER_BYTES = 64 * BLOCK_K * 2; /* of one tap: [64 filters, 64 channels], or turned */
constexpr u32 FILTERS = PATCH_SLOTS * PATCH_SLOT, BARRIERS = FILTERS + FILTER_SLOTS * FILTER_BYTES;
constexpr u32 A_SLAB = IS_TURNED ? FILTER_BYTES : 0, A_STEP = IS_TURNED ? 128 : 2, B_STEP = 2; /* units of 16 bytes for 16 channels */
constexpr int SPARE_ROW = TILE_H * TILE_W; /* pixels nobody wants are written here */
constexpr u32 LINE_BYTES = 64 * TILE_W * 2; /* of a planar tile: [64 filters, TILE_W] */

static_assert(PIXELS <= 256, "one wgmma covers a tile");
static_assert(SPARE_ROW < PATCH_H * PITCH, "the patch must have a row to spare");
static_assert(!IS_PLANAR || (TILE_W % 8 == 0 && PITCH % 2 == 0), "planes leave in rows of 16 bytes, and pairs of pixels share a line");
static_assert(!IS_RESIDENT || FILTER_SLOTS == TAPS, "resident filters need a slot per tap");
static_assert(PATCH_SLOTS >= 3, "a patch is given back one tap into the next one: with two slots a warpgroup would wait for itself");
static_assert(BARRIERS + (3 * PATCH_SLOTS + 2 * FILTER_SLOTS + 2 * MATH_GROUPS + 1) * 8 <= 232448, "227 KB is all a block can have");

extern __shared__ __align__(1024) unsigned char s_memory[];

/* Fills of patches are counted twice round the slots. */
DEVICE u32 slot_of(u32 fill) { return fill < PATCH_SLOTS ? fill : fill - PATCH_SLOTS; }
DEVICE u32 patch_slot(u32 fill) { return shared_address(s_memory) + slot_of(fill) * PATCH_SLOT; }
DEVICE u32 filter_slot(u32 slot) { return shared_address(s_memory) + FILTERS + slot * FILTER_BYTES; }
DEVICE u32 patch_arrived(u32 fill) { return shared_address(s_memory) + BARRIERS + fill * 8; }
DEVICE u32 patch_finished(u32 fill) { return patch_arrived(2 * PATCH_SLOTS + slot_of(fill)); }
DEVICE u32 filter_arrived(u32 slot) { return patch_arrived(3 * PATCH_SLOTS + slot); }
DEVICE u32 filter_finished(u32 slot) { return filter_arrived(FILTER_SLOTS + slot); }
DEVICE u32 result_written(u32 group) { return filter_arrived(2 * FILTER_SLOTS + group); }
DEVICE u32 result_stored(u32 group) { return result_written(MATH_GROUPS + group); }
DEVICE u32 multiplied() { return result_written(2 * MATH_GROUPS); }

template <u32 SLOTS> struct ring_cursor {
    u32 slot = 0, phase = 0;
    DEVICE void advance(u32 by = 1) { if ((slot += by) >= SLOTS) { slot -= SLOTS; phase ^= 1; } }
};
using patch_cursor = ring_cursor<2 * PATCH_SLOTS>;

/* ---- Which tiles: a phase, those with many taps first; two neighbours of pixels; one of filters ---- */

struct place { i32 image, line, column; };

/* What a phase sees: how many taps, which of the filter's the first is, and how far from the patch's corner it reads. */
struct taps {
    i32 rows, columns, first_row, first_column, line, column;
    DEVICE taps(i64 word)
        : rows((i32)(word & 255)), columns((i32)(word >> 8 & 255)), first_row((i32)(word >> 16 & 255)), first_column((i32)(word >> 24 & 255)),
          line((i32)(word >> 32 & 0xffff)), column((i32)(word >> 48)) {}
    DEVICE i32 number(const arguments& p, i32 r, i32 s) const { return (first_row + r * (i32)p.step_r) * TAPS_S + first_column + s * (i32)p.step_s; }
    DEVICE i32 pixel(const arguments& p, i32 r, i32 s) const { return (line + r * (i32)p.move_h) * PITCH + column + s * (i32)p.move_w; }
};

struct item_walk {
    i32 index, phase;
    u32 within; /* its phase */
    DEVICE item_walk(const arguments& p) : index(blockIdx.x) { locate_phase(p); }
    DEVICE bool more(const arguments& p) const { return index < (i32)p.items; }
    DEVICE void advance(const arguments& p) { index += gridDim.x; locate_phase(p); }
    DEVICE void locate_phase(const arguments& p) {
        phase = (i32)divide((u32)index, p.items_of_phase);
        within = (u32)index - (u32)phase * p.items_of_phase.value;
    }
    DEVICE taps seen(const arguments& p) const { return taps((&p.phase0)[phase]); }
    DEVICE i32 filter(const arguments& p) const {
        u32 rest = within;
        return (i32)split(rest, p.filter_tiles) * 64;
    }
    /* The second tile may lie behind the last image, where zeros are read and nothing is stored. */
    DEVICE place locate(const arguments& p, int group) const {
        u32 rest = divide(within, p.filter_tiles) * 2 + group;
        const i32 column = (i32)split(rest, p.tiles_q) * TILE_W, line = (i32)split(rest, p.tiles_p) * TILE_H;
        return {(i32)rest, line, column};
    }
};

/* ---- The loaders: one thread each ---- */

DEVICE void load_patches(const arguments& p) {
    patch_cursor fill;
    for (item_walk item(p); item.more(p); item.advance(p))
        for (i32 block = 0; block < (i32)p.blocks; ++block)
            for (int group = 0; group < MATH_GROUPS; ++group) {
                const place at = item.locate(p, group);
                wait(patch_finished(fill.slot), fill.slot < PATCH_SLOTS); /* its slot's every second fill */
                arrive_expecting(patch_arrived(fill.slot), PATCH_BYTES);
                load_box(patch_slot(fill.slot), p.x_map, patch_arrived(fill.slot), block * BLOCK_K, at.column + (i32)p.corner_w, at.line + (i32)p.corner_h, at.image);
                fill.advance();
            }
}

DEVICE void load_filter(const arguments& p, u32 slot, i32 number, i32 channel, i32 filter) {
    arrive_expecting(filter_arrived(slot), FILTER_BYTES);
    load_box(filter_slot(slot), p.w_map, filter_arrived(slot), IS_TURNED ? filter : channel, number % TAPS_S, number / TAPS_S, IS_TURNED ? channel : filter);
}

DEVICE void load_filters(const arguments& p) {
    ring_cursor<FILTER_SLOTS> fill;
    item_walk item(p);
    if constexpr (IS_RESIDENT) {
        for (int number = 0; number < TAPS && item.more(p); ++number) load_filter(p, number, number, 0, item.filter(p));
        for (int number = 0; number < TAPS && item.more(p); ++number) wait(filter_arrived(number), 0); /* those that no phase of the block sees, too */
        return;
    }
    for (; item.more(p); item.advance(p)) {
        const taps seen = item.seen(p);
        for (i32 block = 0; block < (i32)p.blocks; ++block)
            for (i32 r = 0; r < seen.rows; ++r)
                for (i32 s = 0; s < seen.columns; ++s) {
                    wait(filter_finished(fill.slot), fill.phase ^ 1);
                    load_filter(p, fill.slot, seen.number(p, r, s), block * BLOCK_K, item.filter(p));
                    fill.advance();
                }
    }
}

/* ---- The math warpgroups ---- */

using sums = sum_t[PIXELS / 2]; /* a thread's part of [64 filters, PIXELS] */

DEVICE void release(u32 barrier) { if (lane_index() == 0) arrive(barrier); } /* one arrival per warp, after its own mma_wait */

/* The prologue of a patch where it lies: 8 channels of a pixel at a time, of pixels 16 apart. What is outside the image, or behind its
   channels, is zeros, and shall be. */
template <class P> DEVICE void ready_patch(const P& p, const patch_cursor& patch, const place& at, i32 channel, int group) {
    if constexpr (!HAS_PROLOGUE) {
        wait(patch_arrived(patch.slot), patch.phase);
    } else {
        constexpr int ROWS = PATCH_H * PITCH, AT_ONCE = column_totals::COUNT > 0 ? 2 : 4;
        u32 thread = threadIdx.x % 128;
        settle(thread); /* what follows from it would be kept in registers over all tiles */
        const i32 first = (i32)(thread / 8), chunk = (i32)(thread % 8), left = (i32)p.channels - channel - chunk * 8;
        const auto along = read_along(p, channel + chunk * 8, false);
        const auto across = read_across(p, 0);
        wait(patch_arrived(patch.slot), patch.phase);
        u32 s = patch_slot(patch.slot) + first * PIXEL_BYTES + (chunk ^ first % 8) * 16;
        for (i32 row = first; row < ROWS; row += 16 * AT_ONCE, s += 16 * AT_ONCE * PIXEL_BYTES) {
            words r[AT_ONCE];
            #pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) if (row + 16 * i < ROWS) r[i] = load_words(s + i * 16 * PIXEL_BYTES);
            #pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const i32 line = (row + 16 * i) / PITCH, column = row + 16 * i - line * PITCH;
                const bool is_inside = (u32)(at.line + (i32)p.corner_h + line) < (u32)p.x_lines && (u32)(at.column + (i32)p.corner_w + column) < (u32)p.x_columns;
                if (row + 16 * i >= ROWS || !is_inside || left <= 0) continue;
                prepare(p, r[i].at, along, across);
                #pragma unroll
                for (int word = 0; word < 4; ++word) r[i].at[word] &= left > 2 * word + 1 ? ~0u : left == 2 * word + 1 ? 0xffff : 0;
                store_words(s + i * 16 * PIXEL_BYTES, r[i]);
            }
        }
        publish_to_async_proxy();
        sync_threads(1 + group, 128);
    }
}

/* Returns the slot of the last patch: the result goes there, and store_tiles gives it back. */
template <class P> DEVICE u32 multiply_tile(sums& r_y, const P& p, const taps& seen, const place& at, int group, patch_cursor& patch, ring_cursor<FILTER_SLOTS>& filter,
                                         u32 number) {
    u32 last_patch = 0, last_filter = 0;
    for (i32 block = 0; block < (i32)p.blocks; ++block) {
        ready_patch(p, patch, at, block * BLOCK_K, group);
        if (IS_RESIDENT && number > 0) wait(multiplied(), (number - 1) % 2); /* there is one block */
        i32 r = 0, s = 0;
        for (i32 tap = 0; tap < seen.rows * seen.columns; ++tap) {
            if constexpr (IS_RESIDENT) filter.slot = seen.number(p, r, s);
            wait(filter_arrived(filter.slot), filter.phase);
            const u64 w = operand(filter_slot(filter.slot), A_SLAB), x = operand(patch_slot(patch.slot) + seen.pixel(p, r, s) * PIXEL_BYTES, 0);
            mma_fence();
            #pragma unroll
            for (int k = 0; k < BLOCK_K / 16; ++k) multiply_accumulate(r_y, w + k * A_STEP, x + k * B_STEP, block + tap + k > 0);
            mma_commit();
            mma_wait<1>(); /* the previous tap is done, this one runs on */
            if (!IS_RESIDENT && block + tap > 0) release(filter_finished(last_filter));
            if (block > 0 && tap == 0) release(patch_finished(last_patch));
            last_filter = filter.slot;
            if constexpr (!IS_RESIDENT) filter.advance();
            if (++s == seen.columns) s = 0, ++r;
        }
        last_patch = patch.slot;
        patch.advance(MATH_GROUPS); /* the other warpgroup has the slot between */
    }
    if constexpr (IS_RESIDENT) release(multiplied());
    mma_wait<0>();
    if constexpr (!IS_RESIDENT) release(filter_finished(last_filter));
    #pragma unroll
    for (int i = 0; i < PIXELS / 2; ++i) settle(r_y[i]);
    return last_patch;
}

/* What a thread has seen of the two filters whose sums it has, as they are stored. Its pixels 2 (lane % 4) + e of the octets that count
   are a bit each, the same for all tiles that lie within y. A template, so that what was not printed is not looked up. */
template <class P> struct taken_totals {
    static constexpr int COUNT = column_totals::COUNT;
    float r_total[COUNT > 0 ? COUNT : 1][2];

    DEVICE taken_totals() {
        #pragma unroll
        for (int i = 0; i < 2 * COUNT; ++i) r_total[i / 2][i % 2] = column_totals::none(i / 2);
    }
    static DEVICE constexpr u32 octets_within(i32 lines, i32 columns, i32 first) {
        u32 octets = 0;
        for (int j = 0; j < PIXELS / 8; ++j) octets |= (u32)((j * 8 + first) / PITCH < lines && (j * 8 + first) % PITCH < columns) << j;
        return octets;
    }
    template <int E> static DEVICE u32 whole_octets() { /* constants */
        constexpr u32 octets[] = {octets_within(TILE_H, TILE_W, E), octets_within(TILE_H, TILE_W, 2 + E), octets_within(TILE_H, TILE_W, 4 + E), octets_within(TILE_H, TILE_W, 6 + E)};
        const u32 low = lane_index() & 1 ? octets[1] : octets[0], high = lane_index() & 1 ? octets[3] : octets[2];
        return lane_index() & 2 ? high : low;
    }

    DEVICE void take(const P& p, u32 bits, int h) {
        const auto out = elements_of(p, (u16)bits);
        #pragma unroll
        for (int t = 0; t < COUNT; ++t) r_total[t][h] = column_totals::joined(t, r_total[t][h], out.columns[t].at[0]);
    }
    DEVICE void take_tile(const P& p, const place& at, const u32 (&r_pairs)[PIXELS / 4]) {
        const i32 lines = at.image < (i32)p.images ? (i32)p.lines - at.line : 0, columns = (i32)p.positions - at.column;
        u32 octets[2] = {whole_octets<0>(), whole_octets<1>()};
        for (int e = 0; e < 2 && (lines < TILE_H || columns < TILE_W); ++e)
            octets[e] &= octets_within(lines, columns, (i32)(lane_index() % 4) * 2 + e);
        #pragma unroll
        for (int j = 0; j < PIXELS / 8; ++j)
            #pragma unroll
            for (int e = 0; e < 2; ++e)
                if (octets[e] >> j & 1)
                    #pragma unroll
                    for (int h = 0; h < 2; ++h) take(p, r_pairs[2 * j + h] >> 16 * e, h);
    }

    DEVICE void end_all(const P& p, i32 filter, int group) {
        const i64 line = blockIdx.x / p.filter_tiles.value * MATH_GROUPS + group;
        #pragma unroll
        for (int i = 0; i < 2 * COUNT; ++i) {
            const int t = i / 2, h = i % 2;
            float total = r_total[t][h];
            #pragma unroll
            for (int mask = 1; mask <= 2; mask *= 2) total = column_totals::joined(t, total, __shfl_xor_sync(~0u, total, mask));
            const i32 column = filter + (i32)(warp_index() % 4 * 16 + lane_index() / 4) + 8 * h;
            if (lane_index() % 4 == 0 && column < (i32)p.columns) p.column_parts[(t * p.column_lines + line) * p.columns + column] = total;
        }
    }
};

/* Register 4j + 2h + e is filter 16 * warp + lane / 4 + 8h, pixel 8j + 2 (lane % 4) + e. Pairs of pixels become words 2j + h. A
   template, so that what is printed is looked up late. */
template <class P> DEVICE void finish_sums(u32 (&r_pairs)[PIXELS / 4], const sums& r_y, const P& p, i32 filter) {
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 mine = filter + warp_index() % 4 * 16 + lane_index() / 4 + 8 * h, last = (i32)p.columns - 1;
        const index k = mine < last ? mine : last; /* what is behind the last filter is not stored */
        const auto in = fetch(p, 0, 0, k);
        #pragma unroll
        for (int j = 0; j < PIXELS / 8; ++j) {
            u32 bits[2];
            #pragma unroll
            for (int e = 0; e < 2; ++e) bits[e] = bits_of(evaluate(p, 0, 0, k, run<sum_t, 1>{{r_y[4 * j + 2 * h + e]}}, in));
            r_pairs[2 * j + h] = bits[0] | bits[1] << 16;
        }
    }
}

/* Pairs as they are, without the unwanted columns. Filters of a warp meet in no bank where TILE_W / 8 is odd. */
DEVICE void write_planes(const u32 (&r_pairs)[PIXELS / 4], u32 s_y) {
    const u32 pair = lane_index() % 4 * 2, row = warp_index() % 4 * 16 + lane_index() / 4;
    #pragma unroll
    for (int j = 0; j < PIXELS / 8; ++j) {
        const bool wraps = j * 8 % PITCH + pair >= PITCH;
        const u32 line = j * 8 / PITCH + wraps, column = j * 8 % PITCH + pair - (wraps ? PITCH : 0);
        if (column >= TILE_W || line >= TILE_H) continue;
        #pragma unroll
        for (int h = 0; h < 2; ++h) store_pair(s_y + line * LINE_BYTES + ((row + 8 * h) * TILE_W + column) * 2, r_pairs[2 * j + h]);
    }
}

/* Turning each block of 8 x 8 over makes a pixel's 64 filters one row of 128 bytes, and drops the unwanted columns of the pitch on
   the way: what is left is the dense TILE_H x TILE_W box of y. */
template <class P> DEVICE void write_tile(const sums& r_y, const P& p, i32 filter, u32 slot, int group, u32 tiles_written, const place& at,
                                          taken_totals<P>& taken) {
    u32 lane = lane_index();
    if constexpr (taken_totals<P>::COUNT > 0) settle(lane); /* here, too */
    const u32 chunk = warp_index() % 4 * 2 + lane / 8 % 2, s_y = patch_slot(slot);
    u32 r_pairs[PIXELS / 4];
    finish_sums(r_pairs, r_y, p, filter);
    if constexpr (taken_totals<P>::COUNT > 0) taken.take_tile(p, at, r_pairs);
    wait(result_stored(group), tiles_written + 1 & 1); /* else result_written could run two phases ahead of its reader */
    sync_threads(1 + group, 128);                      /* all four warps have read the patch */
    if constexpr (IS_PLANAR) write_planes(r_pairs, s_y);
    #pragma unroll
    for (int pair = 0; pair < (PIXELS + 15) / 16 && !IS_PLANAR; ++pair) {
        const bool whole = pair * 16 + 8 < PIXELS; /* the last octet may stand alone */
        const u32 pixel = pair * 16 + lane / 16 * 8 + lane % 8, line = pixel / PITCH, column = pixel % PITCH;
        const u32 row = column < TILE_W && line < TILE_H && (whole || lane < 16) ? line * TILE_W + column : SPARE_ROW;
        const u32 second = whole ? pair * 4 + 2 : pair * 4;
        const u32 blocks[4] = {r_pairs[pair * 4], r_pairs[pair * 4 + 1], r_pairs[second], r_pairs[second + 1]};
        store_matrices_transposed(s_y + row * PIXEL_BYTES + (chunk ^ row % 8) * 16, blocks);
    }
    publish_to_async_proxy();
    __syncwarp();
    release(result_written(group));
}

template <class P> DEVICE void multiply_tiles(const P& p, int group) {
    sums r_y;
    taken_totals<P> taken;
    patch_cursor patch;
    ring_cursor<FILTER_SLOTS> filter;
    patch.advance(group);
    u32 tiles_written = 0;
    for (item_walk item(p); item.more(p); item.advance(p)) {
        const u32 slot = multiply_tile(r_y, p, item.seen(p), HAS_PROLOGUE ? item.locate(p, group) : place{}, group, patch, filter, 2 * tiles_written + group);
        write_tile(r_y, p, item.filter(p), slot, group, tiles_written++, item.locate(p, group), taken);
    }
    if constexpr (taken_totals<P>::COUNT > 0) taken.end_all(p, item_walk(p).filter(p), group);
}

/* ---- The storers: one thread for each math warpgroup, which is at its next tile by then ---- */

DEVICE void store_tiles(const arguments& p, int group) {
    patch_cursor patch;
    patch.advance(group);
    u32 phase = 0;
    for (item_walk item(p); item.more(p); item.advance(p)) {
        for (i32 block = 1; block < (i32)p.blocks; ++block) patch.advance(MATH_GROUPS); /* the result lies in the tile's last patch */
        const place at = item.locate(p, group);
        wait(result_written(group), phase);
        const u32 s_y = patch_slot(patch.slot); /* what hangs over y is dropped */
        if constexpr (!IS_PLANAR) store_box((&p.y_map0)[item.phase], s_y, item.filter(p), at.column, at.line, at.image);
        for (int line = 0; line < TILE_H && IS_PLANAR; ++line) store_box(p.y_map0, s_y + line * LINE_BYTES, at.column, at.line + line, item.filter(p), at.image);
        commit_stores();
        wait_stores_read<0>();
        arrive(result_stored(group));
        arrive(patch_finished(patch.slot), 4); /* for the four warps */
        patch.advance(MATH_GROUPS);
        phase ^= 1;
    }
}

/* ---- The kernel ---- */

extern "C" __global__ void __launch_bounds__(THREADS, 1) patch_sm90(const __grid_constant__ arguments p) {
    const u32 warp = warp_index();
    if (warp == 0 && elect_one()) {
        prefetch_map(p.x_map);
        prefetch_map(p.w_map);
        for (u32 fill = 0; fill < 2 * PATCH_SLOTS; ++fill) barrier_init(patch_arrived(fill), 1);
        for (u32 slot = 0; slot < PATCH_SLOTS; ++slot) barrier_init(patch_finished(slot), 4);
        for (u32 slot = 0; slot < FILTER_SLOTS; ++slot) { barrier_init(filter_arrived(slot), 1); barrier_init(filter_finished(slot), MATH_GROUPS * 4); }
        for (u32 group = 0; group < MATH_GROUPS; ++group) { barrier_init(result_written(group), 4); barrier_init(result_stored(group), 1); }
        barrier_init(multiplied(), 4);
        barrier_init_fence();
    }
    __syncthreads();
    let_next_kernel_start(); /* its prologue may run now; it waits before it touches memory */
    wait_for_previous_kernel();
    if (warp < 4) {
        shrink_registers<40>();
        if (warp == 0 && elect_one()) load_patches(p);
        if (warp == 1 && elect_one()) load_filters(p);
        if (warp >= 2 && elect_one()) store_tiles(p, warp - 2);
    } else {
        grow_registers<232>();
        multiply_tiles(p, warp / 4 - 1);
    }
}
