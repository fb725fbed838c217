/* block_mask: which tiles of 128 x 128 scores are active: one byte or bit each. Requires HAS_BLOCK_MASK
   MASK_TILES_IN_BYTE and the tensor block_mask. */

constexpr int MASK_TILE = 128;

/* True if the mask's tile that contains this tile of scores is active. */
template <class P> DEVICE bool is_active_tile(const P &a, i64 batch, i64 head, int query, int key) {
    if constexpr (HAS_BLOCK_MASK) {
        const int tile = key / MASK_TILE;
        const i64 offset = batch * a.block_mask_batch + head * a.block_mask_head +
                           query / MASK_TILE * a.block_mask_query + tile / MASK_TILES_IN_BYTE * a.block_mask_key;
        const i64 byte = to_integer(a.block_mask[offset]);
        return MASK_TILES_IN_BYTE == 1 ? byte != 0 : byte >> tile % 8 & 1;
    } else {
        return true;
    }
}
