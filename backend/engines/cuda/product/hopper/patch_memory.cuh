/* patch_memory: shared memory of patch_sm90: patches, filters, results, and the barriers between its roles
   Barriers  patch_arrived [2 * PATCH_SLOTS];   patch_released [PATCH_SLOTS];   filter_arrived, filter_released
             [FILTER_SLOTS];   result_written, result_ready [2 * RESULT_SLOTS];   main_loop_issued
   Fills     The warpgroups use patches in turn, and copies may arrive in any order. Each slot therefore has two
             barriers for alternate fills: a warpgroup that skips the other's fill of a single barrier would mistake its
             phase for that of the fill two before
   Resident  with one block of channels, all taps of 64 filters stay in shared memory, and filter_released is not used.
             The warpgroups then run in ping-pong: one multiplies, at the rate of both, while the other runs the
             prologue and epilogue of its tiles. main_loop_issued: the last products of a tile have been issued, and
             those of the next tile may follow */

constexpr int BLOCK_K = CHANNELS, TAPS = TAPS_R * TAPS_S; /* per slice */
constexpr int FILTERS_OF_TILE = 64 / STACK, SLICES = TAPS_T + STACK - 1;
constexpr patch_memory MEMORY = patch_memory_of(
    patch_shape{CHANNELS, STACK, TILE_H, TILE_W, PATCH_H, PITCH, PATCH_SLOTS, FILTER_SLOTS, RESULT_SLOTS, AUX_LOAD});
constexpr int PIXELS = MEMORY.pixels;             /* columns of the product */
constexpr u32 TILE_BYTES = TILE_H * TILE_W * 128; /* [STACK][TILE_H, TILE_W, FILTERS_OF_TILE], swizzled */
constexpr u32 A_ROW = A_IS_MN_MAJOR ? MEMORY.result_bytes : MEMORY.pixel_bytes,
              A_PANEL = A_IS_MN_MAJOR ? MEMORY.filter_bytes / STACK : 0,
              A_STEP = A_IS_MN_MAJOR ? MEMORY.result_bytes : 2,
              B_STEP = 2; /* steps: units of 16 bytes for 16 channels */
/* dummy row for pixels that are not part of the result */
constexpr int SPARE_ROW = TILE_H * TILE_W;
constexpr u32 LINE_BYTES = 64 * TILE_W * 2; /* a line of a planar tile: [64 filters, TILE_W] */

static_assert(PIXELS <= 256, "one wgmma covers a tile");
static_assert(!IS_PLANAR || (TILE_W % 8 == 0 && PITCH % 2 == 0),
              "planes leave in rows of 16 bytes, and pairs of pixels share a line");
static_assert(!IS_RESIDENT || FILTER_SLOTS == SLICES * TAPS, "resident filters need a slot per tap");
static_assert(!HAS_PROLOGUE || (BLOCK_K == 64 && !IS_VOLUME), "a prologue is generated for rows of 64 channels");
static_assert(!IS_RESIDENT || SLICES <= 2 * PATCH_SLOTS, "a warpgroup skips the other's slices in one step");
static_assert(PATCH_SLOTS >= 3,
              "a patch is given back one tap into the next one: with two slots a warpgroup would wait for itself");
static_assert(MEMORY.bytes <= SHARED_MAX, "227 KB is all a block can have");

extern __shared__ __align__(1024) unsigned char s_memory[];

/* The number of a patch's fill counts modulo twice the number of slots. */
DEVICE u32 slot_of(u32 fill) { return fill < PATCH_SLOTS ? fill : fill - PATCH_SLOTS; }
DEVICE u32 patch_slot(u32 fill) { return shared_address(s_memory) + slot_of(fill) * MEMORY.patch_slot; }
DEVICE u32 result_slot(u32 out) { return shared_address(s_memory) + MEMORY.results + out * MEMORY.result_slot; }
DEVICE u32 filter_slot(u32 slot) { return shared_address(s_memory) + MEMORY.filters + slot * MEMORY.filter_bytes; }
DEVICE u32 patch_arrived(u32 fill) { return shared_address(s_memory) + MEMORY.barriers + fill * 8; }
DEVICE u32 patch_released(u32 fill) { return patch_arrived(2 * PATCH_SLOTS + slot_of(fill)); }
DEVICE u32 filter_arrived(u32 slot) { return patch_arrived(3 * PATCH_SLOTS + slot); }
DEVICE u32 filter_released(u32 slot) { return filter_arrived(FILTER_SLOTS + slot); }
/* out: group * RESULT_SLOTS + slot. */
DEVICE u32 result_written(u32 out) { return filter_arrived(2 * FILTER_SLOTS + out); }
DEVICE u32 result_ready(u32 out) { return result_written(CONSUMER_GROUPS * RESULT_SLOTS + out); }
DEVICE u32 main_loop_issued() { return result_written(2 * CONSUMER_GROUPS * RESULT_SLOTS); }

template <u32 SLOTS> struct slot_cursor {
    u32 slot = 0, phase = 0;
    DEVICE void advance(u32 by = 1) {
        if ((slot += by) >= SLOTS) {
            slot -= SLOTS;
            phase ^= 1;
        }
    }
};
/* A tile uses `patches_of(p)` patches, one per slice and block of channels. The warpgroups use them alternately or, in
   ping-pong over several slices, all patches of a tile at once, so that the warpgroup that multiplies never waits for
   slots of the one that does not. */
constexpr bool USES_ALL_SLICES = IS_RESIDENT && SLICES > 1;
constexpr bool MULTIPLIES_SLICES = IS_RESIDENT && BLOCK_K < 64 && !HAS_PHASES; /* all taps of a slice at once */
DEVICE i32 patches_of(const arguments &p) { return (i32)p.blocks * SLICES; }
struct patch_cursor : slot_cursor<2 * PATCH_SLOTS> {
    DEVICE void begin(int group) { advance(group * (USES_ALL_SLICES ? SLICES : 1)); }
    DEVICE void advance_patch() { advance(USES_ALL_SLICES ? 1 : CONSUMER_GROUPS); }
    DEVICE void end_tile() {
        if constexpr (USES_ALL_SLICES)
            advance(SLICES);
    }
};
using result_cursor = slot_cursor<RESULT_SLOTS>;

/* Each warp arrives once, after its own mma_wait. */
DEVICE void release(u32 barrier) {
    if (lane_index() == 0)
        arrive(barrier);
}

using sums = sum_t[PIXELS / 2]; /* a thread's share of [64 filters, PIXELS] */
