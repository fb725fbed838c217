/* segment: elements side by side in memory on their way to shared memory, in whole chunks of 16 bytes, with what else
   lies in their chunks. They come to lie as far from the start of a LINE as they do in memory, so that lines are copied
   whole: where they lie elsewhere, the copy engine takes longer (3x3 maxima of planes: 72 us for 60). */

/* How far from the start of a line an element lies. */
template <class T> DEVICE int phase_of(const T *p) { return (int)((u64)p % LINE / sizeof(T)); }

/* Whole chunks that hold a segment: how far from the start of the first it begins, and their bytes. */
template <class T> struct chunks_of {
    int lead;
    u32 bytes;
    DEVICE chunks_of(const T *from, int count)
        : lead((int)((u64)from % 16 / sizeof(T))),
          bytes(count > 0 ? (u32)((lead + count) * sizeof(T) + 15) / 16 * 16 : 0) {}
};

/* One thread makes the arrival of `count` segments, which the others see before anything comes. */
DEVICE void begin_segments(u64 *arrival, int count) {
    if constexpr (CHIP < 900)
        return;
    if (threadIdx.x == 0)
        make_arrival(arrival, count);
    __syncthreads();
}

/* All threads copy; on Hopper the copy engine does, as copies by threads cost as much as the arithmetic of a small
   window. */
template <class T> DEVICE void fill_segment(T *to, const T *from, int count, u64 *arrival) {
    const chunks_of<T> chunks(from, count);
    u8 *const target = (u8 *)(to - chunks.lead);
    const u8 *const source = (const u8 *)(from - chunks.lead);
    if constexpr (CHIP >= 900) {
        if (threadIdx.x > 0)
            return;
        expect_bytes(arrival, chunks.bytes);
        copy_bulk(target, source, chunks.bytes, arrival);
    } else {
#pragma unroll 1
        for (u32 at = threadIdx.x * 16; at < chunks.bytes; at += THREADS * 16) {
            if constexpr (CHIP >= 800)
                copy_async<16>(target + at, source + at, true);
            else
                *(chunk<16> *)(target + at) = *(const chunk<16> *)(source + at);
        }
    }
}

DEVICE void await_segments(u64 *arrival) {
    if constexpr (CHIP >= 800 && CHIP < 900) {
        commit_copies();
        await_copies<0>();
    }
    __syncthreads();
    if constexpr (CHIP >= 900)
        await_arrival(arrival, 0);
}

/* The first EXPECTS blocks, which start while the kernel before ends, ask for what they will read. */
template <class T> DEVICE void expect_segment(const T *from, int count) {
    const chunks_of<T> chunks(from, count);
    if (EXPECTS > 0 && threadIdx.x == 0 && blockIdx.x < EXPECTS)
        expect(from - chunks.lead, chunks.bytes);
}
