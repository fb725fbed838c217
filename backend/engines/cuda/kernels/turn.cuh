/* turn: a copy between memories that lie along different dims, wherever their rows begin                  any chip, types of whole bytes
   Formula   to(axis, last) = from(axis, last): "axis" is the dim along which `from` lies in memory, "last" the one of `to`
   Tile      TILE_AXIS x TILE_LAST places through shared memory. Both memories are touched in aligned chunks of 16 bytes: rows of
             `from` keep their phase, where in its first chunk a row begins, in shared memory; a sector of `to`, 32 bytes, belongs
             to the tile in which it begins, which therefore reads HALO rows more. A block takes one tile, blocks overlap their halves
   Memory    rows as `from` has them, an odd number of words apart; where the tile holds all of the axis and short rows of `from` follow
             one another (IS_FLAT_FROM), they are one; where it holds all of the last dim and rows of `to` do (IS_FLAT_TO), so are they
   Limits    TILE_LAST is a multiple of a chunk unless IS_FLAT_TO, and of a sector where there are more tiles along the last dim
   Tried     a place between every 8 rows, as where no row shifts, for tiles that are one row of `to` or shift there (addresses: 10 % slower);
             lines of 128 bytes that belong to one tile (a third more rows to read: slower); tiles of 32 KB (fewer blocks: slower);
             blocks of 256 threads (tiles of as many bytes a thread: 1 to 5 % slower)
   Params    element, which has a type's size, THREADS TILE_AXIS TILE_LAST SHIFTS_FROM SHIFTS_TO (rows may begin inside of chunks)
             IS_FLAT_FROM IS_FLAT_TO, and locate(), from_memory(), from_place(), to_place(), along_axis(), along_last(), printed */

#include "lib/overlap.cuh"

constexpr int SIZE = (int)sizeof(element), EACH = 16 / SIZE, WORD = SIZE < 4 ? 4 / SIZE : 1;
constexpr int OWNED = 32 / SIZE, HALO = SHIFTS_TO && !IS_FLAT_TO ? OWNED - 1 : 0, ROWS = TILE_LAST + HALO;
/* In elements: from row to row, and what each chunk's worth of rows starts later, so that lanes meet in no bank. */
constexpr int LONGEST_ROW = (TILE_AXIS + EACH - 1) / EACH * EACH + (SHIFTS_FROM ? EACH : 0);
constexpr int PITCH = IS_FLAT_FROM ? TILE_AXIS : (LONGEST_ROW / WORD | (SIZE <= 4)) * WORD;
constexpr int SKEW = IS_FLAT_FROM || SHIFTS_TO || IS_FLAT_TO || EACH < 8 ? 0 : WORD;
constexpr int TILE_WORDS = ((ROWS * PITCH + ROWS / EACH * SKEW + EACH) * SIZE + 3) / 4 + 4;

DEVICE int phase_of(const element* p) { return (int)((u64)p / SIZE % EACH); }

/* Where in the tile an element of `from` lies; `phase` is that of row 0, `step` that from row to row. */
DEVICE int place_in_tile(int last, int axis, int phase, int step) {
    const int shift = IS_FLAT_FROM ? phase : SHIFTS_FROM ? (int)((u32)(phase + last * step) % EACH) : 0;
    return last * PITCH + (SKEW ? last / EACH * SKEW : 0) + axis + shift;
}

/* Chunks that reach over an end of the memory are cut: their elements come one by one. */
DEVICE bool is_cut(const arguments& a, const element* p) { return p < from_memory(a) || p + EACH > from_memory(a) + a.from_span; }

DEVICE void fill_cut(u32* tile, const arguments& a, const element* from, int phase, int step, int axis_left, int rows) {
    const element* const last = from + ((rows - 1) * a.from_step + axis_left - 1);
    if (!is_cut(a, from - phase_of(from)) && !is_cut(a, last - phase_of(last))) return;
    for (int n = threadIdx.x; n < rows * axis_left; n += THREADS) {
        const int row = n / axis_left, axis = n % axis_left;
        const element* const p = from + (row * a.from_step + axis);
        if (is_cut(a, p - phase_of(p))) ((element*)tile)[place_in_tile(row, axis, phase, step)] = *p;
    }
}

DEVICE void fill_tile(u32* tile, const arguments& a, const element* from, int phase, int step, int axis_left, int rows) {
    constexpr int SEGMENTS = IS_FLAT_FROM ? 1 : ROWS, LONGEST = IS_FLAT_FROM ? ROWS * TILE_AXIS : TILE_AXIS;
    constexpr int PER_SEGMENT = (LONGEST + EACH - 1) / EACH + (SHIFTS_FROM ? 1 : 0), ALL = SEGMENTS * PER_SEGMENT;
    constexpr int TURNS = (ALL + THREADS - 1) / THREADS, AT_ONCE = TURNS < 8 ? TURNS : 8;
    const int length = IS_FLAT_FROM ? rows * TILE_AXIS : axis_left;
    #pragma unroll 1
    for (int first = threadIdx.x; first < ALL; first += AT_ONCE * THREADS) {
        chunk<16> in[AT_ONCE];
        int to[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int n = first + i * THREADS, row = n / PER_SEGMENT, at = n % PER_SEGMENT * EACH;
            const int shift = SHIFTS_FROM ? (int)((u32)(phase + row * step) % EACH) : 0;
            const element* const p = from + (row * a.from_step - shift + at);
            to[i] = n < ALL && row < rows && at < shift + length && !is_cut(a, p) ? row * PITCH + (SKEW ? row / EACH * SKEW : 0) + at : -1;
            if (to[i] >= 0) in[i] = load_global<16>((u64)p);
        }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (to[i] < 0) continue;
            #pragma unroll
            for (int w = 0; w < 4; w++) tile[to[i] * SIZE / 4 + w] = in[i].words[w];
        }
    }
}

/* A chunk of which the first `skipped` elements are not ours, and neither are those from `count` on. */
DEVICE void store_chunk(element* p, const chunk<16>& r, int skipped, int count) {
    if (skipped == 0 && count >= EACH) {
        store_global((u64)p, r);
        return;
    }
    #pragma unroll
    for (int e = 0; e < EACH; e++)
        if (e >= skipped && e < count) p[e] = element_of(r, e);
}

/* Elements of one row of `to` and the next, from `last` of the row `axis` on. */
DEVICE chunk<16> take_chunk(const u32* tile, int axis, int last, int phase, int step) {
    chunk<16> out = {};
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const bool wraps = last + e >= TILE_LAST;
        put_element(out, e, ((const element*)tile)[place_in_tile(last + e - (wraps ? TILE_LAST : 0), axis + wraps, phase, step)]);
    }
    return out;
}

/* Rows of `to` one after another, as one: four lanes write neighbours, and the next four APART further, about a row, where they meet
   in other banks. */
DEVICE void empty_flat(const u32* tile, element* to, int phase, int step, int axis_left) {
    constexpr int GROUP = 4 * EACH, APART = TILE_LAST < GROUP ? 1 : TILE_LAST / GROUP, GROUPS = (TILE_AXIS * TILE_LAST + EACH + GROUP - 1) / GROUP;
    constexpr int TURNS = (GROUPS + 8 * APART - 1) / (8 * APART) * APART;
    const int length = (axis_left < TILE_AXIS ? axis_left : TILE_AXIS) * TILE_LAST, shift = SHIFTS_TO ? phase_of(to) : 0;
    const int lane = threadIdx.x % 32;
    for (int turn = threadIdx.x / 32; turn < TURNS; turn += THREADS / 32) {
        const int first = ((turn / APART * 8 + lane / 4) * APART + turn % APART) * GROUP + lane % 4 * EACH - shift;
        if (first >= length) continue;
        if (TILE_LAST >= EACH && first >= 0 && first + EACH <= length) {
            store_global((u64)(to + first), take_chunk(tile, first / TILE_LAST, first % TILE_LAST, phase, step));
            continue;
        }
        #pragma unroll 1
        for (int at = first < 0 ? 0 : first; at < first + EACH && at < length; at++)
            to[at] = ((const element*)tile)[place_in_tile(at % TILE_LAST, at / TILE_LAST, phase, step)];
    }
}

/* The chunk of a row of `to` that begins at `last`, before which `skipped` elements are another tile's. */
DEVICE void empty_chunk(const u32* tile, element* row, int axis, int last, int skipped, int phase, int step, int last_left) {
    chunk<16> out = {};
    #pragma unroll
    for (int e = 0; e < EACH; e++) put_element(out, e, ((const element*)tile)[place_in_tile(skipped && e < skipped ? last + skipped : last + e, axis, phase, step)]);
    store_chunk(row + last, out, skipped, last_left - last);
}

DEVICE void empty_rows(const u32* tile, const arguments& a, element* to, int phase, int step, int axis_left, int last_left, bool is_first) {
    constexpr int PER_ROW = TILE_LAST / EACH > 0 ? TILE_LAST / EACH : 1;
    for (int n = threadIdx.x; n < TILE_AXIS * PER_ROW; n += THREADS) {
        const int axis = n / PER_ROW;
        if (axis >= axis_left) break;
        element* const row = to + axis * a.to_step;
        const int before = SHIFTS_TO ? (int)((OWNED - (u64)row / SIZE % OWNED) % OWNED) : 0, last = n % PER_ROW * EACH + before;
        if (last < last_left) empty_chunk(tile, row, axis, last, 0, phase, step, last_left);
    }
    if (!SHIFTS_TO || !is_first) return;
    for (int n = threadIdx.x; n < TILE_AXIS * (OWNED / EACH); n += THREADS) {
        const int axis = n / (OWNED / EACH);
        if (axis >= axis_left) break;
        element* const row = to + axis * a.to_step;
        const int shift = phase_of(row), before = (int)((OWNED - (u64)row / SIZE % OWNED) % OWNED), last = n % (OWNED / EACH) * EACH - shift;
        if (last < before && last < last_left) empty_chunk(tile, row, axis, last, last < 0 ? shift : 0, phase, step, last_left);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) turn(const __grid_constant__ arguments a) {
    begin_overlapped();
    __shared__ __align__(8) u32 tile[TILE_WORDS];
    place origin = locate(a, blockIdx.x);
    const bool is_first = along_last(origin) == 0;
    const i64 axis_left = a.axis_extent - along_axis(origin), last_left = a.last_extent - along_last(origin);
    const int axis = axis_left < TILE_AXIS ? (int)axis_left : TILE_AXIS, last = last_left < ROWS ? (int)last_left : ROWS;
    const element* const from = from_place(a, origin);
    const int phase = SHIFTS_FROM ? phase_of(from) : 0, step = SHIFTS_FROM ? (int)(a.from_step % EACH) : 0;
    fill_tile(tile, a, from, phase, step, axis, last);
    fill_cut(tile, a, from, phase, step, axis, last);
    __syncthreads();
    if constexpr (IS_FLAT_TO) empty_flat(tile, to_place(a, origin), phase, step, axis);
    else empty_rows(tile, a, to_place(a, origin), phase, step, axis, last, is_first);
}
