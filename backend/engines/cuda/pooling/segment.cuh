/* segment: copies contiguous elements to shared memory, in whole chunks of 16 bytes, including what else these chunks
   contain. Shared memory keeps their offset within a LINE, so that lines are copied whole: with other offsets TMA is
   slower (3x3 maxima of NCHW images: 72 us instead of 60). */

/* Returns the offset of an element within its line. */
template <class T> DEVICE int phase_of(const T *p) { return (int)((u64)p % LINE / sizeof(T)); }

/* The whole chunks that contain a segment: its offset in the first one, and their bytes. */
template <class T> struct chunks_of {
    int lead;
    u32 bytes;
    DEVICE chunks_of(const T *from, int count)
        : lead((int)((u64)from % 16 / sizeof(T))),
          bytes(count > 0 ? (u32)((lead + count) * sizeof(T) + 15) / 16 * 16 : 0) {}
};

/* One thread initializes the barrier of `count` segments; the others see it before any data arrives. */
DEVICE void begin_segments(u64 *arrival, int count) {
    if constexpr (CHIP < 900)
        return;
    if (threadIdx.x == 0)
        make_arrival(arrival, count);
    __syncthreads();
}

/* All threads copy; on Hopper TMA does, because copies by threads cost as much as the arithmetic of a small window. */
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

/* The first EXPECTS blocks, which start while the preceding kernel ends, prefetch their inputs. */
template <class T> DEVICE void expect_segment(const T *from, int count) {
    const chunks_of<T> chunks(from, count);
    if (EXPECTS > 0 && threadIdx.x == 0 && blockIdx.x < EXPECTS)
        expect(from - chunks.lead, chunks.bytes);
}
