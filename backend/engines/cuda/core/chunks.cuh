/* chunks: copies of elements, 16 bytes at a time, by global address. `element` has the size of the elements' type. */

/* Inserts an element into a chunk whose bytes are 0 there. */
template <int BYTES> DEVICE void put_element(chunk<BYTES> &to, int e, element x) {
    constexpr int SIZE = (int)sizeof(element);
    if constexpr (SIZE < 4)
        to.words[e * SIZE / 4] |= (u32)x << e * SIZE % 4 * 8;
    else
        for (int w = 0; w < SIZE / 4; w++)
            to.words[e * SIZE / 4 + w] = (u32)((u64)x >> 32 * w);
}
template <int BYTES> DEVICE element element_of(const chunk<BYTES> &r, int e) {
    constexpr int SIZE = (int)sizeof(element);
    if constexpr (SIZE < 4)
        return (element)(r.words[e * SIZE / 4] >> e * SIZE % 4 * 8);
    else if constexpr (SIZE == 4)
        return r.words[e];
    else
        return (element)((u64)r.words[e * 2 + 1] << 32 | r.words[e * 2]);
}

/* A position in a row of one of several packed tensors: its address, the number of elements left in its row, and the
   bounds of the tensor. */
struct piece {
    u64 at;
    i64 left;
    u64 begin, end;
};

/* The position `left` elements before the end of a row of `count` elements. */
DEVICE piece piece_of(const void *x, i64 row, i64 left, i64 count, i64 elements) {
    const u64 begin = (u64)x;
    return piece{begin + (u64)((row + 1) * count - left) * sizeof(element), left, begin,
                 begin + (u64)elements * sizeof(element)};
}

/* Loads the bytes at p from the one or two aligned 16-byte chunks that contain them. */
template <int BYTES> DEVICE chunk<BYTES> load_shifted(u64 p) {
    const u32 phase = (u32)p % 16;
    const chunk<16> low = load_global<16>(p - phase), high = load_global<16>((p + BYTES - 1) / 16 * 16);
    u32 w[8];
    chunk<BYTES> out;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = low.words[i];
        w[4 + i] = high.words[i];
    }
#pragma unroll
    for (int i = 0; i < 6; i++)
        w[i] = phase & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; i++)
        w[i] = phase & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < BYTES / 4; i++)
        out.words[i] = __funnelshift_r(w[i], w[i + 1], phase % 4 * 8);
    return out;
}
