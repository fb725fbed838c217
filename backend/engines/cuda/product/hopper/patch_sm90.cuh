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
             way_ready [2 * RESULT_SLOTS], multiplied. The warpgroups take patches in turn, and copies may arrive out of turn: each fill of a
             slot has a barrier of its own for each of them, or one that skips the other's fill would take a phase for the one two fills ago
   Resident  with one block of channels, all taps of 64 filters stay in shared memory and filter_finished is never used. The warpgroups then
             take turns: one multiplies, at the rate of both, while the other prepares and ends its tiles. multiplied: the last products of
             a tile are under way, and those of the next may follow
   Gradient  dx is a convolution of dy with the taps backwards and filters that lie along their own index (IS_TURNED); with strides,
             elements of dx at distance `stride` are a phase that sees every so-manieth tap: an image of its own, with a map of its own
   Planes    IS_PLANAR: y lies pixel by pixel, NCHW; sums are pairs of pixels already, and lie as [TILE_H][64 filters][TILE_W] on their way out
   Prologue  HAS_PROLOGUE: read_along, read_across and prepare are printed: pointwise operations on a patch where it lies, once for all taps
   Brought   BRINGS: an operand that lies like the result comes by TMA, a tile or two ahead, to where the result leaves from, which then is not
             a patch, but one of RESULT_SLOTS of each warpgroup. way_ready: it has come; else, a result has left the patch
   Totals    in registers, of what evaluate() makes or, TOTALS_OF_STORED, of the 16 bits that leave (elements_of): per filter, where a block
             keeps to its filters and a thread to two of them, so that nothing meets before the last tile; or of everything. In tiles that
             lie within the result, most pixels need not be asked for. combine_partials.cuh joins the blocks' parts
   Limits    one result of 16 bits; what else is read behind the sum depends on the filter alone; strides of 16 bytes
   Params    TILE_H TILE_W PATCH_H PITCH TAPS_R TAPS_S PATCH_SLOTS FILTER_SLOTS RESULT_SLOTS IS_RESIDENT IS_TURNED IS_PLANAR HAS_PHASES
             HAS_PROLOGUE CHANNELS_ARE_WHOLE BRINGS TOTALS_OF_STORED RUN index sum_t, and multiply_accumulate (m64 x PIXELS x 32 bytes)
   Measured  H200, bf16, 3x3 of 64 filters on 128x64x56x56: 41.5 us; with bias and relu 42.9, scale, bias, a residual and relu 50.5, amax 45,
             genstats 48, behind scale, bias and relu 48, between both 58; its data gradient through relu with sums of batch norm 58;
             1x1 of 64 to 256 the same, 139. `python -m weft bench fused --only 'conv|dgrad'`
   Tried     storing by the math warpgroups: 2,000 clocks per tile slower; totals from the patch on its way out, by the math warpgroups or by
             the storers: convolutions of 64 channels 45 and 100 % slower than from registers; starting one of them some taps late: no gain.
             Totals of a tile behind all its pairs: up to 3 % slower than between them; by a predicate for each pixel: within noise.
             Convolutions forward with strides, each phase of the image a part of the depth: 3x3 of 128 a quarter slower than the Hopper
             family. One tap, where nothing is totalled: with a residual 127 us for the Hopper family's 122, with nothing as fast */

/* ---- What this kernel demands ---- */

constexpr int MATH_GROUPS = 2, THREADS = (1 + MATH_GROUPS) * 128, BLOCK_K = 64, TAPS = TAPS_R * TAPS_S;
constexpr int PIXELS = ((TILE_H - 1) * PITCH + TILE_W + 7) / 8 * 8; /* columns of the product */
constexpr u32 PIXEL_BYTES = BLOCK_K * 2;
constexpr u32 PATCH_BYTES = PATCH_H * PITCH * PIXEL_BYTES; /* [PATCH_H, PITCH, 64], swizzled */
constexpr u32 READ_BYTES =
    ((PATCH_H - TILE_H) * PITCH + PITCH - TILE_W + PIXELS) * PIXEL_BYTES; /* the last tap reads past the patch */
constexpr u32 TILE_BYTES = TILE_H * TILE_W * PIXEL_BYTES;                 /* [TILE_H, TILE_W, 64 filters], swizzled */
DEVICE constexpr u32 whole_slots(u32 a, u32 b) { return ((a > b ? a : b) + 1023) / 1024 * 1024; }
constexpr u32 PATCH_SLOT = whole_slots(READ_BYTES, whole_slots(PATCH_BYTES, TILE_BYTES + PIXEL_BYTES));
constexpr u32 RESULT_SLOT = BRINGS ? whole_slots(TILE_BYTES + PIXEL_BYTES, 0) : 0;
constexpr u32 FILTER_BYTES = 64 * BLOCK_K * 2; /* of one tap: [64 filters, 64 channels], or turned */
constexpr u32 FILTERS = PATCH_SLOTS * PATCH_SLOT, RESULTS = FILTERS + FILTER_SLOTS * FILTER_BYTES,
              BARRIERS = RESULTS + MATH_GROUPS * RESULT_SLOTS * RESULT_SLOT;
constexpr u32 A_SLAB = IS_TURNED ? FILTER_BYTES : 0, A_STEP = IS_TURNED ? 128 : 2,
              B_STEP = 2;                   /* units of 16 bytes for 16 channels */
constexpr int SPARE_ROW = TILE_H * TILE_W;  /* pixels nobody wants are written here */
constexpr u32 LINE_BYTES = 64 * TILE_W * 2; /* of a planar tile: [64 filters, TILE_W] */

static_assert(PIXELS <= 256, "one wgmma covers a tile");
static_assert(!IS_PLANAR || (TILE_W % 8 == 0 && PITCH % 2 == 0),
              "planes leave in rows of 16 bytes, and pairs of pixels share a line");
static_assert(!IS_RESIDENT || FILTER_SLOTS == TAPS, "resident filters need a slot per tap");
static_assert(PATCH_SLOTS >= 3,
              "a patch is given back one tap into the next one: with two slots a warpgroup would wait for itself");
static_assert(BARRIERS + (3 * PATCH_SLOTS + 2 * FILTER_SLOTS + 2 * MATH_GROUPS * RESULT_SLOTS + 1) * 8 <= 232448,
              "227 KB is all a block can have");

extern __shared__ __align__(1024) unsigned char s_memory[];

/* Fills of patches are counted twice round the slots. */
DEVICE u32 slot_of(u32 fill) { return fill < PATCH_SLOTS ? fill : fill - PATCH_SLOTS; }
DEVICE u32 patch_slot(u32 fill) { return shared_address(s_memory) + slot_of(fill) * PATCH_SLOT; }
DEVICE u32 result_slot(u32 way) { return shared_address(s_memory) + RESULTS + way * RESULT_SLOT; }
DEVICE u32 filter_slot(u32 slot) { return shared_address(s_memory) + FILTERS + slot * FILTER_BYTES; }
DEVICE u32 patch_arrived(u32 fill) { return shared_address(s_memory) + BARRIERS + fill * 8; }
DEVICE u32 patch_finished(u32 fill) { return patch_arrived(2 * PATCH_SLOTS + slot_of(fill)); }
DEVICE u32 filter_arrived(u32 slot) { return patch_arrived(3 * PATCH_SLOTS + slot); }
DEVICE u32 filter_finished(u32 slot) { return filter_arrived(FILTER_SLOTS + slot); }
DEVICE u32 result_written(u32 way) {
    return filter_arrived(2 * FILTER_SLOTS + way);
} /* way out: group * RESULT_SLOTS + slot */
DEVICE u32 way_ready(u32 way) { return result_written(MATH_GROUPS * RESULT_SLOTS + way); }
DEVICE u32 multiplied() { return result_written(2 * MATH_GROUPS * RESULT_SLOTS); }

template <u32 SLOTS> struct ring_cursor {
    u32 slot = 0, phase = 0;
    DEVICE void advance(u32 by = 1) {
        if ((slot += by) >= SLOTS) {
            slot -= SLOTS;
            phase ^= 1;
        }
    }
};
using patch_cursor = ring_cursor<2 * PATCH_SLOTS>;
using result_cursor = ring_cursor<RESULT_SLOTS>;

/* ---- Which tiles: a phase, those with many taps first; two neighbours of pixels; one of filters ---- */

struct place {
    i32 image, line, column;
};

/* What a phase sees: how many taps, which of the filter's the first is, and how far from the patch's corner it reads. */
struct taps {
    i32 rows, columns, first_row, first_column, line, column;
    DEVICE taps(i64 word)
        : rows((i32)(word & 255)), columns((i32)(word >> 8 & 255)), first_row((i32)(word >> 16 & 255)),
          first_column((i32)(word >> 24 & 255)), line((i32)(word >> 32 & 0xffff)), column((i32)(word >> 48)) {}
    DEVICE i32 number(const arguments &p, i32 r, i32 s) const {
        return (first_row + r * (i32)p.step_r) * TAPS_S + first_column + s * (i32)p.step_s;
    }
    DEVICE i32 pixel(const arguments &p, i32 r, i32 s) const {
        return (line + r * (i32)p.move_h) * PITCH + column + s * (i32)p.move_w;
    }
};

struct item_walk {
    i32 index, phase;
    u32 within; /* its phase */
    DEVICE item_walk(const arguments &p) : index(blockIdx.x) { locate_phase(p); }
    DEVICE bool more(const arguments &p) const { return index < (i32)p.items; }
    DEVICE void advance(const arguments &p) {
        index += gridDim.x;
        locate_phase(p);
    }
    DEVICE void locate_phase(const arguments &p) {
        phase = HAS_PHASES ? (i32)divide((u32)index, p.items_of_phase) : 0;
        within = (u32)index - (u32)phase * p.items_of_phase.value;
    }
    DEVICE taps seen(const arguments &p) const { return taps((&p.phase0)[phase]); }
    DEVICE i32 filter(const arguments &p) const {
        u32 rest = within;
        return (i32)split(rest, p.filter_tiles) * 64;
    }
    /* The second tile may lie behind the last image, where zeros are read and nothing is stored. */
    DEVICE place locate(const arguments &p, int group) const {
        u32 rest = divide(within, p.filter_tiles) * 2 + group;
        const i32 column = (i32)split(rest, p.tiles_q) * TILE_W, line = (i32)split(rest, p.tiles_p) * TILE_H;
        return {(i32)rest, line, column};
    }
};

/* ---- The loaders: one thread each ---- */

DEVICE void load_patches(const arguments &p) {
    patch_cursor fill;
    for (item_walk item(p); item.more(p); item.advance(p))
        for (i32 block = 0; block < (i32)p.blocks; ++block)
            for (int group = 0; group < MATH_GROUPS; ++group) {
                const place at = item.locate(p, group);
                wait(patch_finished(fill.slot), fill.slot < PATCH_SLOTS); /* its slot's every second fill */
                arrive_expecting(patch_arrived(fill.slot), PATCH_BYTES);
                load_box(patch_slot(fill.slot), p.x_map, patch_arrived(fill.slot), block * BLOCK_K,
                         at.column + (i32)p.corner_w, at.line + (i32)p.corner_h, at.image);
                fill.advance();
            }
}

DEVICE void load_filter(const arguments &p, u32 slot, i32 number, i32 channel, i32 filter) {
    arrive_expecting(filter_arrived(slot), FILTER_BYTES);
    load_box(filter_slot(slot), p.w_map, filter_arrived(slot), IS_TURNED ? filter : channel, number % TAPS_S,
             number / TAPS_S, IS_TURNED ? channel : filter);
}

DEVICE void load_filters(const arguments &p) {
    ring_cursor<FILTER_SLOTS> fill;
    item_walk item(p);
    if constexpr (IS_RESIDENT) {
        for (int number = 0; number < TAPS && item.more(p); ++number)
            load_filter(p, number, number, 0, item.filter(p));
        for (int number = 0; number < TAPS && item.more(p); ++number)
            wait(filter_arrived(number), 0); /* those that no phase of the block sees, too */
    } else {
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
}

/* ---- The math warpgroups ---- */

using sums = sum_t[PIXELS / 2]; /* a thread's part of [64 filters, PIXELS] */

DEVICE void release(u32 barrier) {
    if (lane_index() == 0)
        arrive(barrier);
} /* one arrival per warp, after its own mma_wait */

/* The prologue of a patch where it lies: 8 channels of a pixel at a time, of pixels 16 apart. What is outside the image, or behind its
   channels, is zeros, and shall be. */
template <class P>
DEVICE void ready_patch(const P &p, const patch_cursor &patch, const place &at, i32 channel, int group) {
    if constexpr (!HAS_PROLOGUE) {
        wait(patch_arrived(patch.slot), patch.phase);
    } else {
        constexpr int ROWS = PATCH_H * PITCH, AT_ONCE = column_totals::COUNT + whole_totals::COUNT > 0 ? 2 : 4;
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
            for (int i = 0; i < AT_ONCE; ++i)
                if (row + 16 * i < ROWS)
                    r[i] = load_words(s + i * 16 * PIXEL_BYTES);
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
                store_words(s + i * 16 * PIXEL_BYTES, r[i]);
            }
        }
        publish_to_async_proxy();
        sync_threads(1 + group, 128);
    }
}

/* Returns the slot of the last patch: the result goes there, and store_tiles gives it back; or, BRINGS, elsewhere, and it is given back here. */
template <class P>
DEVICE u32 multiply_tile(sums &r_y, const P &p, const taps &seen, const place &at, int group, patch_cursor &patch,
                         ring_cursor<FILTER_SLOTS> &filter, u32 number) {
    u32 last_patch = 0, last_filter = 0;
    for (i32 block = 0; block < (i32)p.blocks; ++block) {
        ready_patch(p, patch, at, block * BLOCK_K, group);
        if (IS_RESIDENT && number > 0)
            wait(multiplied(), (number - 1) % 2); /* there is one block */
        i32 r = 0, s = 0;
        for (i32 tap = 0; tap < seen.rows * seen.columns; ++tap) {
            if constexpr (IS_RESIDENT)
                filter.slot = seen.number(p, r, s);
            wait(filter_arrived(filter.slot), filter.phase);
            const u64 w = operand(filter_slot(filter.slot), A_SLAB),
                      x = operand(patch_slot(patch.slot) + seen.pixel(p, r, s) * PIXEL_BYTES, 0);
            mma_fence();
#pragma unroll
            for (int k = 0; k < BLOCK_K / 16; ++k)
                multiply_accumulate(r_y, w + k * A_STEP, x + k * B_STEP, block + tap + k > 0);
            mma_commit();
            mma_wait<1>(); /* the previous tap is done, this one runs on */
            if (!IS_RESIDENT && block + tap > 0)
                release(filter_finished(last_filter));
            if (block > 0 && tap == 0)
                release(patch_finished(last_patch));
            last_filter = filter.slot;
            if constexpr (!IS_RESIDENT)
                filter.advance();
            if (++s == seen.columns)
                s = 0, ++r;
        }
        last_patch = patch.slot;
        patch.advance(MATH_GROUPS); /* the other warpgroup has the slot between */
    }
    if constexpr (IS_RESIDENT)
        release(multiplied());
    mma_wait<0>();
    if constexpr (!IS_RESIDENT)
        release(filter_finished(last_filter));
    if constexpr (BRINGS)
        release(patch_finished(last_patch));
#pragma unroll
    for (int i = 0; i < PIXELS / 2; ++i)
        settle(r_y[i]);
    return last_patch;
}

/* What a thread has seen of the two filters whose sums it has, and of all. A template, so that what was not printed is not looked up. */
template <class P> struct taken_totals {
    static constexpr int COLUMNS = column_totals::COUNT, WHOLES = whole_totals::COUNT;
    static constexpr bool EXIST = COLUMNS + WHOLES > 0;
    float r_columns[COLUMNS > 0 ? COLUMNS : 1][2], r_whole[WHOLES > 0 ? WHOLES : 1];

    DEVICE taken_totals() {
#pragma unroll
        for (int i = 0; i < 2 * COLUMNS; ++i)
            r_columns[i / 2][i % 2] = column_totals::none(i / 2);
#pragma unroll
        for (int t = 0; t < WHOLES; ++t)
            r_whole[t] = whole_totals::none(t);
    }

    template <class F> DEVICE void take(const F &out, int h, int e) {
        if constexpr (COLUMNS > 0) {
#pragma unroll
            for (int t = 0; t < COLUMNS; ++t)
                r_columns[t][h] = column_totals::joined(t, r_columns[t][h], out.columns[t].at[e]);
        }
        if constexpr (WHOLES > 0) {
#pragma unroll
            for (int t = 0; t < WHOLES; ++t)
                r_whole[t] = whole_totals::joined(t, r_whole[t], out.wholes[t].at[e]);
        }
    }

    template <class T, int LANES> static DEVICE float lanes_total(int t, float total) {
#pragma unroll
        for (int mask = 1; mask < LANES; mask *= 2)
            total = T::joined(t, total, __shfl_xor_sync(~0u, total, mask));
        return total;
    }
    DEVICE void end_all(const P &p, i32 filter, int group) {
        const i64 line = blockIdx.x / p.filter_tiles.value * MATH_GROUPS + group,
                  warp = (blockIdx.x * MATH_GROUPS + group) * 4 + warp_index() % 4;
        if constexpr (COLUMNS > 0) {
#pragma unroll
            for (int i = 0; i < 2 * COLUMNS; ++i) {
                const int t = i / 2, h = i % 2;
                const float total = lanes_total<column_totals, 4>(t, r_columns[t][h]);
                const i32 column = filter + (i32)(warp_index() % 4 * 16 + lane_index() / 4) + 8 * h;
                if (lane_index() % 4 == 0 && column < (i32)p.columns)
                    p.column_parts[(t * p.column_lines + line) * p.columns + column] = total;
            }
        }
        if constexpr (WHOLES > 0) {
#pragma unroll
            for (int t = 0; t < WHOLES; ++t) {
                const float total = lanes_total<whole_totals, 32>(t, r_whole[t]);
                if (lane_index() == 0)
                    p.whole_parts[t * p.whole_lines + warp] = total;
            }
        }
    }
};

/* Which pixels 8j + first of a tile are of the result, a bit for each j. */
DEVICE constexpr u32 octets_within(i32 lines, i32 columns, i32 first) {
    u32 octets = 0;
#pragma unroll 1
    for (int j = 0; j < PIXELS / 8; ++j)
        octets |= (u32)((j * 8 + first) / PITCH < lines && (j * 8 + first) % PITCH < columns) << j;
    return octets;
}
/* The same of a thread, first being 2 (lane % 4) + E, and of all threads, in tiles that lie within the result: constants. */
template <int E> struct whole_octets {
    static constexpr u32 OCTETS[4] = {octets_within(TILE_H, TILE_W, E), octets_within(TILE_H, TILE_W, 2 + E),
                                      octets_within(TILE_H, TILE_W, 4 + E), octets_within(TILE_H, TILE_W, 6 + E)};
    static constexpr u32 OF_ALL = OCTETS[0] & OCTETS[1] & OCTETS[2] & OCTETS[3];
    static DEVICE u32 mine() {
        const u32 low = lane_index() & 1 ? OCTETS[1] : OCTETS[0], high = lane_index() & 1 ? OCTETS[3] : OCTETS[2];
        return lane_index() & 2 ? high : low;
    }
};
template <class P> DEVICE bool lies_within(const P &p, const place &at, i32 filter) {
    return at.image < (i32)p.images && at.line + TILE_H <= (i32)p.lines && at.column + TILE_W <= (i32)p.positions &&
           filter + 64 <= (i32)p.columns;
}

/* Register 4j + 2h + e is filter 16 * warp + lane / 4 + 8h, pixel 8j + 2 (lane % 4) + e. Pairs of pixels become words 2j + h, where
   those of the operand are that is brought. A template, so that what is printed is looked up late. */
template <bool IS_WITHIN, class P>
DEVICE void finish_sums(u32 (&r_pairs)[PIXELS / 4], const sums &r_y, const P &p, i32 filter, const place &at,
                        taken_totals<P> &taken) {
    const i32 mine = filter + warp_index() % 4 * 16 + lane_index() / 4, last = (i32)p.columns - 1;
    const index k[2] = {mine < last ? mine : last,
                        mine + 8 < last ? mine + 8 : last}; /* what is behind the last filter is not stored */
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
            if constexpr (BRINGS)
                bring_pair(in[h], r_pairs[2 * j + h]);
            out[h] = evaluate(p, 0, 0, k[h], run<sum_t, RUN>{{r_y[4 * j + 2 * h], r_y[4 * j + 2 * h + 1]}}, in[h]);
            r_pairs[2 * j + h] = pair_of(out[h]);
        }
#pragma unroll
        for (int i = 0; i < 4 && taken_totals<P>::EXIST; ++i) {
            const int h = i % 2, e = i / 2; /* so that additions to one total do not follow each other */
            const bool is_filter = IS_WITHIN || taken_totals<P>::WHOLES == 0 || mine + 8 * h <= last;
            if ((IS_WITHIN && OF_ALL[e] >> j & 1) || (is_filter && octets[e] >> j & 1)) {
                if constexpr (TOTALS_OF_STORED)
                    taken.take(elements_of(p, (u16)(r_pairs[2 * j + h] >> 16 * e)), h, 0);
                else
                    taken.take(out[h], h, e);
            }
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
        if (column >= TILE_W || line >= TILE_H)
            continue;
#pragma unroll
        for (int h = 0; h < 2; ++h)
            store_pair(s_y + line * LINE_BYTES + ((row + 8 * h) * TILE_W + column) * 2, r_pairs[2 * j + h]);
    }
}

/* Turning each block of 8 x 8 over makes a pixel's 64 filters one row of 128 bytes, and drops the unwanted columns of the pitch on
   the way: what is left is the dense TILE_H x TILE_W box of y. Where a lane's row of the four blocks of a pair of octets is: */
DEVICE u32 row_of_blocks(u32 s_y, int pair, u32 lane) {
    const bool whole = pair * 16 + 8 < PIXELS; /* the last octet may stand alone */
    const u32 pixel = pair * 16 + lane / 16 * 8 + lane % 8, line = pixel / PITCH, column = pixel % PITCH,
              chunk = warp_index() % 4 * 2 + lane / 8 % 2;
    const bool is_wanted = column < TILE_W && line < TILE_H && (whole || lane < 16);
    const u32 row = !is_wanted ? SPARE_ROW : PITCH == TILE_W ? pixel : line * TILE_W + column;
    return s_y + row * PIXEL_BYTES + (chunk ^ row % 8) * 16;
}

template <class P>
DEVICE void write_tile(const sums &r_y, const P &p, i32 filter, u32 slot, int group, const result_cursor &result,
                       const place &at, taken_totals<P> &taken) {
    constexpr int PAIRS = (PIXELS + 15) / 16;
    u32 lane = lane_index();
    if constexpr (BRINGS || taken_totals<P>::EXIST)
        settle(lane); /* here, too */
    const u32 way = group * RESULT_SLOTS + result.slot, s_y = BRINGS ? result_slot(way) : patch_slot(slot);
    u32 r_pairs[PIXELS / 4];
    if constexpr (BRINGS) {
        wait(way_ready(way), result.phase);
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            u32 blocks[4];
            load_matrices_transposed(blocks, row_of_blocks(s_y, pair, lane));
#pragma unroll
            for (int i = 0; i < 4 && pair * 4 + i < PIXELS / 4; ++i)
                r_pairs[pair * 4 + i] = blocks[i];
        }
    }
    if (!taken_totals<P>::EXIST || lies_within(p, at, filter))
        finish_sums<true>(r_pairs, r_y, p, filter, at, taken);
    else
        finish_sums<false>(r_pairs, r_y, p, filter, at, taken);
    if constexpr (!BRINGS) {
        wait(way_ready(way), result.phase ^ 1); /* else result_written could run two phases ahead of its reader */
        sync_threads(1 + group, 128);           /* all four warps have read the patch */
    }
    if constexpr (BRINGS)
        lane = __shfl_sync(~0u, lane, lane); /* else all addresses of what is read would be kept for what is written */
    if constexpr (IS_PLANAR)
        write_planes(r_pairs, s_y);
#pragma unroll
    for (int pair = 0; pair < PAIRS && !IS_PLANAR; ++pair) {
        const int second = pair * 16 + 8 < PIXELS ? pair * 4 + 2 : pair * 4;
        const u32 blocks[4] = {r_pairs[pair * 4], r_pairs[pair * 4 + 1], r_pairs[second], r_pairs[second + 1]};
        store_matrices_transposed(row_of_blocks(s_y, pair, lane), blocks);
    }
    publish_to_async_proxy();
    __syncwarp();
    release(result_written(way));
}

template <class P> DEVICE void multiply_tiles(const P &p, int group) {
    sums r_y;
    taken_totals<P> taken;
    patch_cursor patch;
    ring_cursor<FILTER_SLOTS> filter;
    patch.advance(group);
    result_cursor result;
    u32 tile = 0;
    for (item_walk item(p); item.more(p); item.advance(p)) {
        const u32 slot = multiply_tile(r_y, p, item.seen(p), HAS_PROLOGUE ? item.locate(p, group) : place{}, group,
                                       patch, filter, 2 * tile++ + group);
        write_tile(r_y, p, item.filter(p), slot, group, result, item.locate(p, group), taken);
        result.advance();
    }
    taken.end_all(p, item_walk(p).filter(p), group);
}

/* ---- The storers: one thread for each math warpgroup, which is at its next tile by then ---- */

/* The operand of a tile comes to where the result goes. A template, so that maps that were not printed are not looked up. */
template <class P> DEVICE void bring_operand(const P &p, const item_walk &item, int group, u32 slot) {
    const place at = item.locate(p, group);
    const u32 way = group * RESULT_SLOTS + slot;
    arrive_expecting(way_ready(way), TILE_BYTES);
    load_box(result_slot(way), (&p.b_map0)[item.phase], way_ready(way), item.filter(p), at.column, at.line, at.image);
}

template <class P> DEVICE void store_tiles(const P &p, int group) {
    patch_cursor patch;
    patch.advance(group);
    result_cursor result;
    item_walk next(p); /* whose operand comes next */
    if constexpr (BRINGS)
        for (u32 slot = 0; slot < RESULT_SLOTS && next.more(p); ++slot, next.advance(p))
            bring_operand(p, next, group, slot);
    for (item_walk item(p); item.more(p); item.advance(p)) {
        for (i32 block = 1; block < (i32)p.blocks; ++block)
            patch.advance(MATH_GROUPS); /* the result lies in the tile's last patch */
        const place at = item.locate(p, group);
        const u32 way = group * RESULT_SLOTS + result.slot, s_y = BRINGS ? result_slot(way) : patch_slot(patch.slot);
        wait(result_written(way), result.phase); /* what hangs over y is dropped */
        if constexpr (!IS_PLANAR)
            store_box((&p.y_map0)[item.phase], s_y, item.filter(p), at.column, at.line, at.image);
        for (int line = 0; line < TILE_H && IS_PLANAR; ++line)
            store_box(p.y_map0, s_y + line * LINE_BYTES, at.column, at.line + line, item.filter(p), at.image);
        commit_stores();
        wait_stores_read<0>();
        if constexpr (BRINGS) {
            if (next.more(p))
                bring_operand(p, next, group, result.slot);
            next.advance(p);
        } else {
            arrive(way_ready(way));
            arrive(patch_finished(patch.slot), 4); /* for the four warps */
        }
        patch.advance(MATH_GROUPS);
        result.advance();
    }
}

/* ---- The kernel ---- */

extern "C" __global__ void __launch_bounds__(THREADS, 1) patch_sm90(const __grid_constant__ arguments p) {
    const u32 warp = warp_index();
    if (warp == 0 && elect_one()) {
        prefetch_map(p.x_map);
        prefetch_map(p.w_map);
        for (u32 fill = 0; fill < 2 * PATCH_SLOTS; ++fill)
            barrier_init(patch_arrived(fill), 1);
        for (u32 slot = 0; slot < PATCH_SLOTS; ++slot)
            barrier_init(patch_finished(slot), 4);
        for (u32 slot = 0; slot < FILTER_SLOTS; ++slot) {
            barrier_init(filter_arrived(slot), 1);
            barrier_init(filter_finished(slot), MATH_GROUPS * 4);
        }
        for (u32 way = 0; way < MATH_GROUPS * RESULT_SLOTS; ++way) {
            barrier_init(result_written(way), 4);
            barrier_init(way_ready(way), 1);
        }
        barrier_init(multiplied(), 4);
        barrier_init_fence();
    }
    __syncthreads();
    let_next_kernel_start(); /* its prologue may run now; it waits before it touches memory */
    wait_for_previous_kernel();
    if (warp < 4) {
        shrink_registers<40>();
        if (warp == 0 && elect_one())
            load_patches(p);
        if (warp == 1 && elect_one())
            load_filters(p);
        if (warp >= 2 && elect_one())
            store_tiles(p, warp - 2);
    } else {
        grow_registers<232>();
        multiply_tiles(p, warp / 4 - 1);
    }
}
