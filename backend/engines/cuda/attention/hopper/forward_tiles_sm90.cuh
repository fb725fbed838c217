/* forward_tiles: maps tiles to queries, their order, and the keys that they see, for forward_sm90. A tile is BLOCK_Q
   queries of one head, GROUP_Q per consumer warpgroup; keys are processed in blocks of BLOCK_K.
   Order     heads in raster groups whose K and V fit L2; within a group, tiles with the most visible keys first, heads
             innermost
   Schedule  static (every gridDim.x-th tile), or dynamic with a counter that starts at zero: an idle CTA takes the next
             tile */

#include "attention/block_mask.cuh"
#include "attention/lengths.cuh"

/* ---- Visible keys ---- */

/* Query i sees keys i + low .. min(i + high, keys) - 1. Queries at `queries` and beyond see none. */
struct bounds {
    i32 queries, keys; /* in use */
    i32 low = 0, high = 0;

    DEVICE bounds(const arguments &a, i32 queries_used, i32 keys_used) : queries(queries_used), keys(keys_used) {
        const i64 shift = IS_BOTTOM_RIGHT ? keys - queries : 0;
        if constexpr (HAS_LEFT)
            low = clamp(shift - a.left + 1, -LIMIT, LIMIT);
        if constexpr (HAS_RIGHT)
            high = clamp(shift + a.right + 1, -LIMIT, LIMIT);
    }
    DEVICE i32 first_key(i32 query) const { return HAS_LEFT ? max(query + low, 0) : 0; }
    DEVICE i32 last_key(i32 query) const { return HAS_RIGHT ? min(query + high, keys) : keys; }

    static constexpr i32 LIMIT = 1 << 30; /* larger than any extent; sums do not overflow */
    static DEVICE i32 clamp(i64 x, i32 least, i32 most) { return (i32)min(max(x, (i64)least), (i64)most); }
};

/* Blocks of keys first .. last - 1. */
struct range {
    i32 first, last;
};

/* Blocks that queries from .. until - 1 see. If they see none, one (masked) block, so that the same code yields
   zeros. */
DEVICE range visible_blocks(const bounds &b, i32 from, i32 until) {
    const i32 first = b.first_key(from) / BLOCK_K, last = (b.last_key(until - 1) + BLOCK_K - 1) / BLOCK_K;
    return from < until && first < last ? range{first, last} : range{0, 1};
}

/* ---- Tiles ---- */

struct tile {
    i32 row, head, batch;
    range blocks; /* visible to any query of the tile; last == 0: no more tiles */
    i32 queries, keys;
    i32 o_outer; /* O_IS_RAGGED: TMA coordinate of the entry */
};

/* Blocks visible to one consumer's queries; empty if it has none. With PING_PONG, both consumers process the same
   blocks. */
DEVICE range group_blocks(const arguments &a, const tile &t, u32 group) {
    const i32 from = t.row + (i32)group * GROUP_Q;
    if constexpr (PING_PONG)
        return t.blocks;
    if (from >= (SKIPS_UNUSED_TILES ? t.queries : (i32)a.queries))
        return range{t.blocks.first, t.blocks.first};
    const range visible = visible_blocks(bounds(a, t.queries, t.keys), from, min(from + GROUP_Q, t.queries));
    const i32 last = min(max(visible.last, t.blocks.first + 1), t.blocks.last);
    return range{min(max(visible.first, t.blocks.first), last - 1), last};
}

/* ---- Block mask: a block of keys is within one tile of the mask ---- */

template <class P> DEVICE bool is_active_block(const P &a, const tile &t, i32 block) {
    return is_active_tile(a, t.batch, t.head, t.row, block * BLOCK_K);
}
/* Trims the range to the first and last active blocks. If none is active, the range is one block whose keys are all
   hidden. */
template <class P> DEVICE void trim(const P &a, tile &t) {
    while (t.blocks.first < t.blocks.last && !is_active_block(a, t, t.blocks.last - 1))
        --t.blocks.last;
    while (t.blocks.first < t.blocks.last && !is_active_block(a, t, t.blocks.first))
        ++t.blocks.first;
    if (t.blocks.first == t.blocks.last)
        t.blocks = range{0, 1}, t.keys = 0;
}
/* The next active block below `block`, which must not be the first. */
template <class P> DEVICE i32 next_active_block(const P &a, const tile &t, i32 block) {
    --block;
    while (HAS_BLOCK_MASK && block > t.blocks.first && !is_active_block(a, t, block))
        --block;
    return block;
}

DEVICE tile find_tile(const arguments &a, u32 index) {
    const u32 group_tiles = (u32)a.raster_heads * (u32)a.tiles, group = index / group_tiles;
    const u32 within = index - group * group_tiles, first_head = group * (u32)a.raster_heads;
    const u32 heads = min((u32)a.raster_heads, (u32)a.all_heads - first_head), down = within / heads;
    const u32 outer = first_head + within - down * heads, batch = outer / (u32)a.heads;
    tile t{(i32)((u32)a.tiles - 1 - down) * BLOCK_Q,
           (i32)(outer - batch * (u32)a.heads),
           (i32)batch,
           {0, 0},
           queries_in_use(a, batch),
           keys_in_use(a, batch),
           0};
    if constexpr (O_IS_RAGGED)
        t.o_outer = o_entry(a, t.batch, t.queries).outer;
    t.blocks = visible_blocks(bounds(a, t.queries, t.keys), t.row, min(t.row + BLOCK_Q, t.queries));
    if constexpr (HAS_BLOCK_MASK)
        trim(a, t);
    return t;
}

/* Returns the index of the next tile. */
DEVICE u32 next_index(const arguments &a, u32 index) {
    return a.is_dynamic ? gridDim.x + atomicAdd(a.counter, 1u) : index + gridDim.x;
}

/* The first tile at or after `index`, in this CTA's order, that has queries in use. */
DEVICE u32 skip_empty_tiles(const arguments &a, u32 index) {
    while (index < (u32)a.all_tiles) {
        const tile t = find_tile(a, index);
        if (t.row < t.queries)
            break;
        index = next_index(a, index);
    }
    return index;
}

/* The producer passes tiles to the consumers through shared memory. */
DEVICE void send_tile(u32 address, const tile &t) {
    store_words(address, words{{(u32)t.row, (u32)t.head, (u32)t.batch, (u32)t.queries}});
    store_words(address + 16, words{{(u32)t.blocks.first, (u32)t.blocks.last, (u32)t.keys, (u32)t.o_outer}});
}
DEVICE tile read_tile(u32 address) {
    const words a = load_words(address), b = load_words(address + 16);
    return tile{(i32)a.at[0], (i32)a.at[1], (i32)a.at[2], {(i32)b.at[0], (i32)b.at[1]},
                (i32)a.at[3], (i32)b.at[2], (i32)b.at[3]};
}
/* Reads a tile by a whole warp. The shuffles show the compiler that the values are warp-uniform. */
DEVICE i32 uniform(u32 x) { return (i32)__shfl_sync(~0u, x, 0); }
DEVICE tile receive_tile(u32 address) {
    const words a = load_words(address), b = load_words(address + 16);
    return tile{uniform(a.at[0]), uniform(a.at[1]), uniform(a.at[2]), {uniform(b.at[0]), uniform(b.at[1])},
                uniform(a.at[3]), uniform(b.at[2]), (i32)b.at[3]};
}
