/* transpose: a copy between tensors that are contiguous along different dims             any chip, types of whole bytes
   Formula   to(axis, last) = from(axis, last): "axis" is the dim along which `from` is contiguous, "last" the one of
             `to`
   Tile      TILE_AXIS x TILE_LAST positions through shared memory. Both tensors are accessed in aligned chunks of 16
             bytes: rows of `from` keep their phase, the offset of a row in its first chunk, in shared memory; a sector
             of `to`, 32 bytes, belongs to the tile in which it begins, which therefore reads HALO more rows. A block
             processes one tile, and blocks overlap their halves
   Memory    rows as in `from`, at a pitch of an odd number of words. If the tile contains all of the axis and short
             rows of `from` are contiguous (IS_FLAT_FROM), they are one row; if it contains all of the last dim and rows
             of `to` are contiguous (IS_FLAT_TO), elements are in the order of `to`, and are stored in whole chunks
   Limits    TILE_LAST is a multiple of a chunk unless IS_FLAT_TO, and of a sector if there are several tiles along the
             last dim
   Tried     padding after every 8 rows, as if no row shifts, for tiles that are one row of `to` or shift there
             (addresses: 10 % slower); 128-byte lines that belong to one tile (a third more rows to read: slower);
             tiles of 32 KB (fewer blocks: slower); blocks of 256 threads (tiles with the same bytes per thread: 1 to
             5 % slower); rows in the order of `from` for a flat `to`, too, whose chunks are then assembled element by
             element (7x7 images: 15.4 us instead of 14.1, three channels of float: 189 instead of 75)
   Params    element, which has a type's size, THREADS TILE_AXIS TILE_LAST SHIFTS_FROM SHIFTS_TO (rows may begin inside
             of chunks) IS_FLAT_FROM IS_FLAT_TO, and the emitted locate(), from_memory(), from_address(), to_address(),
             along_axis(), along_last() */

#include "core/dependent_launch.cuh"

constexpr int SIZE = (int)sizeof(element), EACH = 16 / SIZE, WORD = SIZE < 4 ? 4 / SIZE : 1;
constexpr int OWNED = 32 / SIZE, HALO = SHIFTS_TO && !IS_FLAT_TO ? OWNED - 1 : 0, ROWS = TILE_LAST + HALO;
/* In elements: the row pitch, and the additional offset after each chunk's worth of rows, which avoids bank
   conflicts. */
constexpr int LONGEST_ROW = (TILE_AXIS + EACH - 1) / EACH * EACH + (SHIFTS_FROM ? EACH : 0);
constexpr int PITCH = IS_FLAT_FROM ? TILE_AXIS : (LONGEST_ROW / WORD | (SIZE <= 4)) * WORD;
constexpr int SKEW = IS_FLAT_FROM || SHIFTS_TO || EACH < 8 ? 0 : WORD;
constexpr int PLACES = IS_FLAT_TO ? TILE_AXIS * TILE_LAST + EACH : ROWS * PITCH + ROWS / EACH * SKEW + EACH;
constexpr int SKIPPED = -(1 << 30), TILE_WORDS = (PLACES * SIZE + 3) / 4 + 4;
/* For a flat `to`, a warp fills the tile with ACROSS adjacent chunks of as many rows as avoid bank conflicts. */
constexpr int ACROSS = TILE_LAST % 2 ? 8 : TILE_LAST % 4 ? 4 : 2, DOWN = 32 / ACROSS;
static_assert(IS_FLAT_TO || TILE_LAST % EACH == 0, "rows of the tile are whole chunks");

DEVICE int phase_of(const element *p) { return (int)((u64)p / SIZE % EACH); }

/* Offsets of rows in their chunks: the offset of row 0 of `from`, its increment per row, and the offset of the tile's
   part of a flat `to`. */
struct phases {
    int from, step, to;
    DEVICE int of_row(int row) const { return SHIFTS_FROM ? (int)((u32)(from + row * step) % EACH) : 0; }
    /* Returns the location in the tile of an element of `from`. */
    DEVICE int offset(int last, int axis) const {
        if (IS_FLAT_TO)
            return to + axis * TILE_LAST + last;
        return last * PITCH + (SKEW ? last / EACH * SKEW : 0) + axis + (IS_FLAT_FROM ? from : of_row(last));
    }
};

/* Chunks that extend beyond the tensor's memory are loaded element by element. */
DEVICE bool is_cut(const arguments &a, const element *p) {
    return p < from_memory(a) || p + EACH > from_memory(a) + a.from_span;
}

DEVICE bool has_cut(const arguments &a, const element *from, int axis_left, int rows) {
    const element *const last = from + ((rows - 1) * a.from_step + axis_left - 1);
    return is_cut(a, from - phase_of(from)) || is_cut(a, last - phase_of(last));
}

DEVICE void fill_cut(u32 *tile, const arguments &a, const element *from, const phases &at, int axis_left, int rows) {
    for (int n = threadIdx.x; n < rows * axis_left; n += THREADS) {
        const int row = n / axis_left, axis = n % axis_left;
        const element *const p = from + (row * a.from_step + axis);
        if (is_cut(a, p - phase_of(p)))
            ((element *)tile)[at.offset(row, axis)] = *p;
    }
}

/* If rows are contiguous, how much closer to the start an element is in the tile than the row's first elements
   indicate. */
DEVICE int wrapped_by(int axis) {
    return IS_FLAT_FROM ? (int)((u32)axis / TILE_AXIS) * (TILE_AXIS * TILE_LAST - 1) : 0;
}

/* True if chunks may be only partly in their rows: the other elements belong elsewhere. */
constexpr bool HAS_PARTS = SHIFTS_FROM || IS_FLAT_FROM || TILE_AXIS % EACH;

/* Stores a chunk in the tile at `to`. It begins at element `axis` of its row; elements before 0, and those at `length`
   and beyond, are skipped. */
DEVICE void put_chunk(u32 *tile, const chunk<16> &in, int to, int axis, int length) {
    if constexpr (!IS_FLAT_TO) {
#pragma unroll
        for (int w = 0; w < 4; w++)
            tile[to * SIZE / 4 + w] = in.words[w];
    } else if (!HAS_PARTS || (axis >= 0 && axis + EACH <= length)) {
#pragma unroll
        for (int e = 0; e < EACH; e++)
            ((element *)tile)[to + e * TILE_LAST - wrapped_by(axis + e)] = element_of(in, e);
    } else {
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (axis + e >= 0 && axis + e < length)
                ((element *)tile)[to + e * TILE_LAST - wrapped_by(axis + e)] = element_of(in, e);
    }
}

template <bool HAS_CUT>
DEVICE void fill_tile(u32 *tile, const arguments &a, const element *from, const phases &at, int axis_left, int rows) {
    constexpr int SEGMENTS = IS_FLAT_FROM ? 1 : ROWS, LONGEST = IS_FLAT_FROM ? ROWS * TILE_AXIS : TILE_AXIS;
    constexpr int PER_SEGMENT = (LONGEST + EACH - 1) / EACH + (SHIFTS_FROM ? 1 : 0),
                  GROUPS = (PER_SEGMENT + ACROSS - 1) / ACROSS;
    constexpr bool IS_GROUPED = IS_FLAT_TO && !IS_FLAT_FROM;
    constexpr int ALL = IS_GROUPED ? GROUPS * ((SEGMENTS + DOWN - 1) / DOWN) * 32 : SEGMENTS * PER_SEGMENT;
    constexpr int TURNS = (ALL + THREADS - 1) / THREADS, AT_ONCE = TURNS < 8 ? TURNS : 8;
    const int length = IS_FLAT_FROM ? rows * TILE_AXIS : axis_left;
#pragma unroll 1
    for (u32 first = threadIdx.x; first < ALL; first += AT_ONCE * THREADS) {
        chunk<16> in[AT_ONCE];
        int to[AT_ONCE], axis[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u32 n = first + i * THREADS, group = n / 32, lane = n % 32;
            const int row = (int)(IS_GROUPED ? group / GROUPS * DOWN + lane / ACROSS : n / PER_SEGMENT);
            axis[i] =
                (int)(IS_GROUPED ? group % GROUPS * ACROSS + lane % ACROSS : n % PER_SEGMENT) * EACH - at.of_row(row);
            const element *const p = from + (row * a.from_step + axis[i]);
            to[i] = n < ALL && row < rows && axis[i] < length && !(HAS_CUT && is_cut(a, p)) ? at.offset(row, axis[i])
                                                                                            : SKIPPED;
            if (to[i] != SKIPPED)
                in[i] = load_global<16>((u64)p);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (to[i] != SKIPPED)
                put_chunk(tile, in[i], to[i], axis[i], length);
    }
}

/* Stores a chunk except the first `skipped` elements and those at `count` and beyond. */
DEVICE void store_chunk(element *p, const chunk<16> &r, int skipped, int count) {
    if (skipped == 0 && count >= EACH) {
        store_global((u64)p, r);
        return;
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (e >= skipped && e < count)
            p[e] = element_of(r, e);
}

/* Stores rows of `to` one after another, in the order of the tile. */
DEVICE void empty_flat(const u32 *tile, element *to, const phases &at, int axis_left) {
    const int length = axis_left * TILE_LAST;
    for (int first = (int)threadIdx.x * EACH - at.to; first < length; first += THREADS * EACH)
        store_chunk(to + first, *(const chunk<16> *)((const element *)tile + (first + at.to)), first < 0 ? -first : 0,
                    length - first);
}

/* Stores the chunk of a row of `to` that begins at `last`; the first `skipped` elements belong to another tile. */
DEVICE void empty_chunk(const u32 *tile, element *row, int axis, int last, int skipped, const phases &at,
                        int last_left) {
    chunk<16> out = {};
#pragma unroll
    for (int e = 0; e < EACH; e++)
        put_element(out, e,
                    ((const element *)tile)[at.offset(skipped && e < skipped ? last + skipped : last + e, axis)]);
    store_chunk(row + last, out, skipped, last_left - last);
}

/* Stores what precedes the first whole chunk of each row, which no tile to the left stores. */
DEVICE void empty_heads(const u32 *tile, const arguments &a, element *to, const phases &at, int axis_left,
                        int last_left) {
    for (int n = threadIdx.x; n < TILE_AXIS * (OWNED / EACH); n += THREADS) {
        const int axis = n / (OWNED / EACH);
        if (axis >= axis_left)
            break;
        element *const row = to + axis * a.to_step;
        const int shift = phase_of(row), before = (int)((OWNED - (u64)row / SIZE % OWNED) % OWNED),
                  last = n % (OWNED / EACH) * EACH - shift;
        if (last < before && last < last_left)
            empty_chunk(tile, row, axis, last, last < 0 ? shift : 0, at, last_left);
    }
}

DEVICE void empty_rows(const u32 *tile, const arguments &a, element *to, const phases &at, int axis_left, int last_left,
                       bool is_first) {
    constexpr int PER_ROW = TILE_LAST / EACH > 0 ? TILE_LAST / EACH : 1;
    for (int n = threadIdx.x; n < TILE_AXIS * PER_ROW; n += THREADS) {
        const int axis = n / PER_ROW;
        if (axis >= axis_left)
            break;
        element *const row = to + axis * a.to_step;
        const int before = SHIFTS_TO ? (int)((OWNED - (u64)row / SIZE % OWNED) % OWNED) : 0,
                  last = n % PER_ROW * EACH + before;
        if (last < last_left)
            empty_chunk(tile, row, axis, last, 0, at, last_left);
    }
    if constexpr (SHIFTS_TO)
        if (is_first)
            empty_heads(tile, a, to, at, axis_left, last_left);
}

/* Resident blocks per multiprocessor that registers allow; chunks of bytes need more of them. */
constexpr int BLOCKS = SIZE == 1 ? 6 : CHIP < 800 ? 8 : 9;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) transpose(const __grid_constant__ arguments a) {
    begin_overlapped();
    __shared__ __align__(16) u32 tile[TILE_WORDS];
    coordinates origin = locate(a, blockIdx.x);
    const bool is_first = along_last(origin) == 0;
    const i64 axis_left = a.axis_extent - along_axis(origin), last_left = a.last_extent - along_last(origin);
    const int axis = axis_left < TILE_AXIS ? (int)axis_left : TILE_AXIS,
              last = last_left < ROWS ? (int)last_left : ROWS;
    const element *const from = from_address(a, origin);
    element *const to = to_address(a, origin);
    const phases at = {SHIFTS_FROM ? phase_of(from) : 0, SHIFTS_FROM ? (int)(a.from_step % EACH) : 0,
                       IS_FLAT_TO && SHIFTS_TO ? phase_of(to) : 0};
    const bool is_end = has_cut(a, from, axis, last);
    if (IS_FLAT_TO && !is_end)
        fill_tile<false>(tile, a, from, at, axis, last);
    else
        fill_tile<true>(tile, a, from, at, axis, last);
    if (is_end)
        fill_cut(tile, a, from, at, axis, last);
    __syncthreads();
    if constexpr (IS_FLAT_TO)
        empty_flat(tile, to, at, axis);
    else
        empty_rows(tile, a, to, at, axis, last, is_first);
}
