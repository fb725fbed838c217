/* dropout_sm90: dropout keep masks of accumulators, for the kernels of sm_90. Requires what attention/dropout.cuh does
   Layout    a word covers 32 elements. Element 4c + e, at row + 8 (e / 2) and column 8c + e % 2, is bit
             2c + e / 2 + 16 (e % 2), so one shift moves the bits of a pair of elements to the signs of its halves
   Mask      of booleans: a lane reads four adjacent bytes where it would generate a Philox block, or single elements if
             rows are not a multiple of words
   Philox    a lane generates blocks of four random words for other lanes, too; bits are exchanged once per eight blocks
   Cost      20 multiplications, 20 xors and two instructions per word for a block; three instructions per pair of
             elements. Round keys are in uniform registers */

#include "core/philox.cuh"
#include "attention/dropout.cuh"

/* Eight blocks of random words reduced to bits, which are set if a word drops its element: bit 2c + w / 2 + 16 (w % 2)
   is word w of block c. */
struct drawn_bits {
    u32 even = 0, odd = 0;

    /* The last block is pushed first. `above` is 2^32 minus the threshold, so the addition carries if the word is not
       below the threshold. For a threshold of 2^32, `above` is 0 and nothing is dropped. It is also 0 for a threshold
       of 0, which drops everything: see word(). */
    DEVICE void push(const philox &random, u32 above) {
        push_bit(even, random.word[2], above);
        push_bit(even, random.word[0], above);
        push_bit(odd, random.word[3], above);
        push_bit(odd, random.word[1], above);
    }
    /* Each of four bytes drops its element if it is 0. */
    DEVICE void push(u32 bytes) {
        const u32 dropped = ~(((bytes & 0x7f7f7f7f) + 0x7f7f7f7f) | bytes) & 0x80808080;
        even = even << 2 | (dropped >> 22 & 2) | (dropped >> 7 & 1);
        odd = odd << 2 | (dropped >> 30 & 2) | (dropped >> 15 & 1);
    }
    static DEVICE void push_bit(u32 &bits, u32 word, u32 above) { bits = ptx::shift_carry_in(bits, word, above); }
    DEVICE u32 word(bool drops_all) const { return drops_all ? ~0u : even | odd << 16; }
};

/* Rows are keys. Four lanes of adjacent keys share the words of their elements: the lane of key w (mod 4) generates
   element w. */
DEVICE u32 exchange_of_keys(u32 drawn) {
    const u32 w = lane_index() / 4 % 4, shift = w / 2 + w % 2 * 16;
    u32 dropped = 0;
#pragma unroll
    for (u32 e = 0; e < 4; ++e)
        dropped |= (__shfl_sync(~0u, drawn, (lane_index() & ~12u) | e << 2) >> shift & 0x5555) << (e / 2 + e % 2 * 16);
    return dropped;
}
/* Rows are queries. Two lanes share the words of both their rows: the even lane generates the upper row. */
DEVICE u32 exchange_of_queries(u32 drawn) {
    const u32 odd = lane_index() & 1;
    const u32 other = __shfl_xor_sync(~0u, drawn, 1), upper = odd ? other : drawn, lower = odd ? drawn : other;
    return (upper >> odd & 0x55555555) | (lower >> odd & 0x55555555) << 1;
}

/* Index of the first Philox block that a lane generates. */
template <bool ROWS_ARE_KEYS, class P> DEVICE u64 first_draw(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    const u64 words_per_query = (u64)(p.keys + 3) / 4;
    const u64 line = (u64)(batch * (i32)p.heads + head) * (u64)p.queries * words_per_query;
    const u32 w = lane_index() / 4 % 4, odd = lane_index() & 1;
    return ROWS_ARE_KEYS ? line + (u64)(column + (i32)(w % 2)) * words_per_query + (u64)((row + (i32)(w / 2) * 8) / 4)
                         : line + (u64)(row + (i32)odd * 8) * words_per_query + (u64)(column / 4);
}

/* Reads from a mask what a lane would generate: four keys of a query as a word of bytes. Indices beyond the scores are
   clamped. */
template <bool ROWS_ARE_KEYS, int COLUMNS, class P>
DEVICE u32 read_words(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    const u32 w = lane_index() / 4 % 4, odd = lane_index() & 1;
    const i32 query = ROWS_ARE_KEYS ? column + (i32)(w % 2) : row + (i32)odd * 8;
    const i32 key = (ROWS_ARE_KEYS ? row + (i32)(w / 2) * 8 : column) & ~3;
    const dropout_mask_t *mask = p.dropout_mask + (batch * p.dropout_mask_batch + head * p.dropout_mask_head);
    u32 bytes[COLUMNS / 8];
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; ++c) {
        const i32 q = min(query + (ROWS_ARE_KEYS ? 8 * c : 0), (i32)p.queries - 1);
        bytes[c] =
            *(const u32 *)(mask + q * p.dropout_mask_query + min(key + (ROWS_ARE_KEYS ? 0 : 8 * c), (i32)p.keys - 4));
    }
    drawn_bits bits;
#pragma unroll
    for (int c = COLUMNS / 8 - 1; c >= 0; --c)
        bits.push(bytes[c]);
    return bits.word(false);
}

/* Reads a mask of other layouts element by element, without an exchange. */
template <bool ROWS_ARE_KEYS, int COLUMNS, class P>
DEVICE u32 read_elements(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    const dropout_mask_t *mask = p.dropout_mask + (batch * p.dropout_mask_batch + head * p.dropout_mask_head);
    u32 keep_mask = 0;
#pragma unroll 4
    for (int c = 0; c < COLUMNS / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const i32 across = row + e / 2 * 8, along = column + 8 * c + e % 2;
            const i32 query = min(ROWS_ARE_KEYS ? along : across, (i32)p.queries - 1);
            const i32 key = min(ROWS_ARE_KEYS ? across : along, (i32)p.keys - 1);
            const auto one =
                load_run<dropout_mask_t, 1>(mask + query * p.dropout_mask_query + key * p.dropout_mask_key);
            keep_mask |= (u32)(to_float(one.at[0]) != 0) << (2 * c + e / 2 + 16 * (e % 2));
        }
    return keep_mask;
}

/* UNROLLED: larger values need more registers, smaller ones more branches. */
template <bool ROWS_ARE_KEYS, int UNROLLED, int COLUMNS, class P>
DEVICE u32 draw_words(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    const rng_state rng = rng_state_of(p);
    const u64 first = first_draw<ROWS_ARE_KEYS>(p, batch, head, row, column);
    const u64 step = ROWS_ARE_KEYS ? (u64)(p.keys + 3) / 4 * 8 : 2;
    drawn_bits bits;
#pragma unroll UNROLLED
    for (int c = COLUMNS / 8 - 1; c >= 0; --c)
        bits.push(philox_words(rng.seed, rng.offset, first + c * step), 0u - (rng.threshold << 8));
    return bits.word(rng.threshold == 0);
}

/* Keep mask of 32 elements, the first of which is at (row, column), over COLUMNS columns. */
template <bool ROWS_ARE_KEYS, int UNROLLED, int COLUMNS = 64, class P>
DEVICE u32 compute_keep_mask(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    if constexpr (HAS_DROPOUT_MASK && !DROPOUT_MASK_IN_WORDS) {
        return read_elements<ROWS_ARE_KEYS, COLUMNS>(p, batch, head, row, column);
    } else {
        u32 dropped;
        if constexpr (HAS_DROPOUT_MASK)
            dropped = read_words<ROWS_ARE_KEYS, COLUMNS>(p, batch, head, row, column);
        else
            dropped = draw_words<ROWS_ARE_KEYS, UNROLLED, COLUMNS>(p, batch, head, row, column);
        return ~(ROWS_ARE_KEYS ? exchange_of_keys(dropped) : exchange_of_queries(dropped));
    }
}

DEVICE constexpr int bit_of(int i) { return i / 2 % 16 + i % 2 * 16; }

template <int WORDS> DEVICE bool is_kept(const u32 (&keep_mask)[WORDS], int i) {
    return !HAS_DROPOUT || (keep_mask[i / 32] >> bit_of(i) & 1);
}
/* Clears the dropped elements of a pair; i is its first element. */
template <int WORDS> DEVICE void drop_pair(u32 &p_pair, const u32 (&keep_mask)[WORDS], int i) {
    p_pair &= ptx::spread_signs<0xbb99>(keep_mask[i / 32] << (15 - bit_of(i)));
}
/* Clears the dropped elements of four 8-bit ones: i, i + 1, i + 4 and i + 5. */
template <int WORDS> DEVICE void drop_four(u32 &p_pair, const u32 (&keep_mask)[WORDS], int i) {
    p_pair &= (is_kept(keep_mask, i) ? 0xffu : 0u) | (is_kept(keep_mask, i + 1) ? 0xff00u : 0u) |
              (is_kept(keep_mask, i + 4) ? 0xff0000u : 0u) | (is_kept(keep_mask, i + 5) ? 0xff000000u : 0u);
}
