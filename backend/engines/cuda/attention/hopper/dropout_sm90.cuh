/* dropout_sm90: which weights of an accumulator are kept, for the kernels of sm_90. Demands those of
   attention/dropout.cuh
   Layout    a word tells of 32 elements. Element 4c + e, of row + 8 (e / 2) and column 8c + e % 2, is bit
             2c + e / 2 + 16 (e % 2): one shift takes the bits of a pair of weights to the signs of its halves
   Mask      of booleans, element by element, or two neighbouring keys at a time; read where there are scores
   Draws     a lane draws blocks of four random words for others, too, and bits are exchanged once for eight blocks
   Cost      of a block 20 products, 20 exclusive ors and two instructions for each word; of a pair of weights three.
             Keys of rounds are in uniform registers */

#include "core/philox.cuh"
#include "attention/dropout.cuh"

/* Eight blocks of random words as bits, set where a word drops its weight: bit 2c + w / 2 + 16 (w % 2) is word w of
   block c. */
struct drawn_bits {
    u32 even = 0, odd = 0;

    /* The last block comes first. above: 2^32 less the threshold, so that their sum carries where the word is not below
       it. A threshold of 2^32 keeps all, and so does that of 0, which is to drop them: see word(). */
    DEVICE void push(const philox &random, u32 above) {
        push_bit(even, random.word[2], above);
        push_bit(even, random.word[0], above);
        push_bit(odd, random.word[3], above);
        push_bit(odd, random.word[1], above);
    }
    static DEVICE void push_bit(u32 &bits, u32 word, u32 above) { bits = ptx::shift_carry_in(bits, word, above); }
    DEVICE u32 word(bool drops_all) const { return drops_all ? ~0u : even | odd << 16; }
};

/* Rows are keys. Four lanes, of neighbouring keys, share the words of their elements: the lane of key w (mod 4) draws
   for element w. */
DEVICE u32 exchange_of_keys(u32 drawn) {
    const u32 w = lane_index() / 4 % 4, shift = w / 2 + w % 2 * 16;
    u32 dropped = 0;
#pragma unroll
    for (u32 e = 0; e < 4; ++e)
        dropped |= (__shfl_sync(~0u, drawn, (lane_index() & ~12u) | e << 2) >> shift & 0x5555) << (e / 2 + e % 2 * 16);
    return dropped;
}
/* Rows are queries. Two lanes share the words of both their rows: the even one draws for the upper row. */
DEVICE u32 exchange_of_queries(u32 drawn) {
    const u32 odd = lane_index() & 1;
    const u32 other = __shfl_xor_sync(~0u, drawn, 1), upper = odd ? other : drawn, lower = odd ? drawn : other;
    return (upper >> odd & 0x55555555) | (lower >> odd & 0x55555555) << 1;
}

/* The first block of words that a lane draws, and how many come between one and the next. */
template <bool ROWS_ARE_KEYS, class P> DEVICE u64 first_draw(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    const u64 words_per_query = (u64)(p.keys + 3) / 4;
    const u64 line = (u64)(batch * (i32)p.heads + head) * (u64)p.queries * words_per_query;
    const u32 w = lane_index() / 4 % 4, odd = lane_index() & 1;
    return ROWS_ARE_KEYS ? line + (u64)(column + (i32)(w % 2)) * words_per_query + (u64)((row + (i32)(w / 2) * 8) / 4)
                         : line + (u64)(row + (i32)odd * 8) * words_per_query + (u64)(column / 4);
}

/* The same of a mask; what is beyond the scores reads the last one. */
template <bool ROWS_ARE_KEYS, int COLUMNS, class P>
DEVICE u32 read_kept(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    const dropout_mask_t *mask = p.dropout_mask + (batch * p.dropout_mask_batch + head * p.dropout_mask_head);
    const i64 row_step = ROWS_ARE_KEYS ? p.dropout_mask_key : p.dropout_mask_query;
    const i64 column_step = ROWS_ARE_KEYS ? p.dropout_mask_query : p.dropout_mask_key;
    const i32 last_row = (i32)(ROWS_ARE_KEYS ? p.keys : p.queries) - 1;
    const i32 last_column = (i32)(ROWS_ARE_KEYS ? p.queries : p.keys) - 1;
    u32 kept = 0;
#pragma unroll 4
    for (int c = 0; c < COLUMNS / 8; ++c)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const dropout_mask_t *at = mask + min(row + 8 * h, last_row) * row_step;
            float pair[2];
            if constexpr (!ROWS_ARE_KEYS && DROPOUT_MASK_IS_PAIR) {
                const auto two = load_run<dropout_mask_t, 2>(at + min(column + 8 * c, last_column - 1));
                pair[0] = to_float(two.at[0]), pair[1] = to_float(two.at[1]);
            } else {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const i64 place = min(column + 8 * c + e, last_column) * column_step;
                    pair[e] = to_float(load_run<dropout_mask_t, 1>(at + place).at[0]);
                }
            }
            kept |= (u32)(pair[0] != 0) << (2 * c + h) | (u32)(pair[1] != 0) << (2 * c + h + 16);
        }
    return kept;
}

/* A word of elements, the first of which is at (row, column), of so many columns. UNROLLED: more take registers, fewer
   a branch. */
template <bool ROWS_ARE_KEYS, int UNROLLED, int COLUMNS = 64, class P>
DEVICE u32 find_kept(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    if constexpr (HAS_DROPOUT_MASK)
        return read_kept<ROWS_ARE_KEYS, COLUMNS>(p, batch, head, row, column);
    const rng_state rng = rng_state_of(p);
    const u64 first = first_draw<ROWS_ARE_KEYS>(p, batch, head, row, column);
    const u64 step = ROWS_ARE_KEYS ? (u64)(p.keys + 3) / 4 * 8 : 2;
    drawn_bits bits;
#pragma unroll UNROLLED
    for (int c = COLUMNS / 8 - 1; c >= 0; --c)
        bits.push(philox_words(rng.seed, rng.offset, first + c * step), 0u - (rng.threshold << 8));
    const u32 drawn = bits.word(rng.threshold == 0);
    return ~(ROWS_ARE_KEYS ? exchange_of_keys(drawn) : exchange_of_queries(drawn));
}

DEVICE constexpr int bit_of(int i) { return i / 2 % 16 + i % 2 * 16; }

template <int WORDS> DEVICE bool is_kept(const u32 (&kept)[WORDS], int i) {
    return !HAS_DROPOUT || (kept[i / 32] >> bit_of(i) & 1);
}
/* Two weights, the first of which is element i, without those that are dropped. */
template <int WORDS> DEVICE void drop_pair(u32 &weights, const u32 (&kept)[WORDS], int i) {
    weights &= ptx::spread_signs<0xbb99>(kept[i / 32] << (15 - bit_of(i)));
}
/* Four weights of 8 bits: elements i, i + 1, i + 4 and i + 5. */
template <int WORDS> DEVICE void drop_four(u32 &weights, const u32 (&kept)[WORDS], int i) {
    weights &= (is_kept(kept, i) ? 0xffu : 0u) | (is_kept(kept, i + 1) ? 0xff00u : 0u) |
               (is_kept(kept, i + 4) ? 0xff0000u : 0u) | (is_kept(kept, i + 5) ? 0xff000000u : 0u);
}
