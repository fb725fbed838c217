/* dropout_sm90: which weights of an accumulator are kept, for the kernels of sm_90. Bit 4c + e of word c / 8 is element
   4c + e: row + 8 (e / 2), column 8c + e % 2. Demands those of attention/dropout.cuh. */

#include "core/philox.cuh"
#include "attention/dropout.cuh"

/* Rows are keys. Four lanes, of neighbouring keys, share the words of their elements: the lane of key w (mod 4) draws
   for element w. */
DEVICE u32 kept_of_keys(const rng_state &rng, u64 line, u64 words_per_query, i32 key, i32 query) {
    const u32 w = lane_index() / 4 % 4;
    const u32 drawn =
        keep_bits(rng, line + (u64)(query + (i32)(w % 2)) * words_per_query + (u64)((key + (i32)(w / 2) * 8) / 4));
    u32 bits = 0;
#pragma unroll
    for (u32 e = 0; e < 4; ++e)
        bits |= (__shfl_sync(~0u, drawn, (lane_index() & ~12u) | e << 2) >> w & 1) << e;
    return bits;
}
/* Rows are queries. Two lanes share the words of both their rows: the even one draws for the upper row. */
DEVICE u32 kept_of_queries(const rng_state &rng, u64 line, u64 words_per_query, i32 query, i32 key) {
    const u32 odd = lane_index() & 1;
    const u32 drawn = keep_bits(rng, line + (u64)(query + (i32)odd * 8) * words_per_query + (u64)(key / 4));
    const u32 other = __shfl_xor_sync(~0u, drawn, 1), upper = odd ? other : drawn, lower = odd ? drawn : other;
    return (upper >> 2 * odd & 3) | (lower >> 2 * odd & 3) << 2;
}

/* A word of elements, the first of which is at (row, column). UNROLLED: more take registers, fewer a branch. */
template <bool ROWS_ARE_KEYS, int UNROLLED, class P>
DEVICE u32 find_kept(const P &p, i32 batch, i32 head, i32 row, i32 column) {
    const rng_state rng = rng_state_of(p);
    const u64 words_per_query = (u64)(p.keys + 3) / 4;
    const u64 line = (u64)(batch * (i32)p.heads + head) * (u64)p.queries * words_per_query;
    u32 kept = 0;
#pragma unroll UNROLLED
    for (int c = 0; c < 8; ++c)
        kept |= (ROWS_ARE_KEYS ? kept_of_keys(rng, line, words_per_query, row, column + 8 * c)
                               : kept_of_queries(rng, line, words_per_query, row, column + 8 * c))
                << 4 * c;
    return kept;
}
template <int WORDS> DEVICE bool is_kept(const u32 (&kept)[WORDS], int i) {
    return !HAS_DROPOUT || (kept[i / 32] >> i % 32 & 1);
}
/* Two weights, the first of which is element i, without those that are dropped. */
template <int WORDS> DEVICE void drop_pair(u32 &weights, const u32 (&kept)[WORDS], int i) {
    weights &= (is_kept(kept, i) ? 0xffffu : 0u) | (is_kept(kept, i + 1) ? 0xffff0000u : 0u);
}
/* Four weights of 8 bits: elements i, i + 1, i + 4 and i + 5. */
template <int WORDS> DEVICE void drop_four(u32 &weights, const u32 (&kept)[WORDS], int i) {
    weights &= (is_kept(kept, i) ? 0xffu : 0u) | (is_kept(kept, i + 1) ? 0xff00u : 0u) |
               (is_kept(kept, i + 4) ? 0xff0000u : 0u) | (is_kept(kept, i + 5) ? 0xff000000u : 0u);
}
template <class P> DEVICE float growth_of(const P &p) {
    if constexpr (HAS_DROPOUT)
        return (float)__longlong_as_double(p.growth);
    else
        return 1.0f;
}
