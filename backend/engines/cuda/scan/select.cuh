/* select: the best elements of long lines
   Types     any, by their keys
   Method    a radix search finds the key of the last element, 8 bits at a time, by histograms; then all elements with
             better keys and the first ones with this key are listed and sorted. Every step has one result, whatever the
             order of threads
   Tile      a block processes a line. The list, of p.padded entries (a power of two), is in shared memory, or in the
             workspace (IS_WIDE)
   Params    THREADS IS_WIDE SORTED IS_LEAST NAN_IS_FIRST HAS_VALUES HAS_INDICES, key_t, number_t */
#include "scan/keys.cuh"

struct search {
    u32 bins[256], digit, needed, listed;
};

/* Finds the bin that contains the needed-th best key; then `needed` counts keys of this bin. One warp. */
DEVICE void find_digit(search &s) {
    const int lane = threadIdx.x, top = 255 - lane * 8;
    u32 own = 0;
    for (int i = 0; i < 8; i++)
        own += s.bins[top - i];
    u32 upto = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const u32 other = __shfl_up_sync(0xffffffffu, upto, distance);
        upto += lane >= distance ? other : 0;
    }
    const u32 needed = s.needed;
    __syncwarp();
    if (upto >= needed && upto - own < needed) {
        u32 above = upto - own;
        int bin = top;
        while (above + s.bins[bin] < needed)
            above += s.bins[bin--];
        s.digit = (u32)bin;
        s.needed = needed - above;
    }
}

/* Returns the key of the last element; s.needed becomes the number of elements with this key, and s.bins[s.digit] the
   number of all elements with it. */
DEVICE key_t find_last(search &s, const arguments &p, const x_t *x) {
    key_t last = 0, known = 0;
    if (threadIdx.x == 0)
        s.needed = (u32)p.count;
    for (int shift = sizeof(key_t) * 8 - 8; shift >= 0; shift -= 8) {
        __syncthreads();
        for (int i = threadIdx.x; i < 256; i += THREADS)
            s.bins[i] = 0;
        __syncthreads();
        for (i64 i = threadIdx.x; i < p.length; i += THREADS) {
            const key_t key = key_of(x[i * p.x_step]);
            if ((key & known) == last)
                atomicAdd(&s.bins[(u32)(key >> shift) & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32)
            find_digit(s);
        __syncthreads();
        last |= (key_t)s.digit << shift;
        known |= (key_t)255 << shift;
    }
    return last;
}

/* Lists the elements from `last` on: all with better keys in any order, and the first s.needed equal ones. */
DEVICE void list(element *entries, search &s, const arguments &p, const x_t *x, key_t last) {
    __shared__ u32 warps[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool takes_all = s.bins[s.digit] == s.needed;
    const u32 first = (u32)p.count - s.needed; // entries of equal keys follow the better ones
    u32 equal = 0;
    if (threadIdx.x == 0)
        s.listed = 0;
    __syncthreads();
    for (i64 at = 0; at < p.length; at += THREADS) {
        const i64 i = at + threadIdx.x;
        const key_t key = i < p.length ? key_of(x[i * p.x_step]) : (key_t)0;
        const bool is_equal = i < p.length && key == last, is_better = i < p.length && key > last;
        if (is_better || (takes_all && is_equal))
            entries[atomicAdd(&s.listed, 1u)] = {key, (i32)i};
        if (takes_all || equal >= s.needed)
            continue;
        const u32 votes = __ballot_sync(0xffffffffu, is_equal);
        if (lane == 0)
            warps[warp] = __popc(votes);
        __syncthreads();
        u32 before = equal + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < THREADS / 32; w++) {
            before += w < warp ? warps[w] : 0;
            equal += warps[w];
        }
        if (is_equal && before < s.needed)
            entries[first + before] = {key, (i32)i};
        __syncthreads();
    }
    for (i64 i = p.count + threadIdx.x; i < p.padded; i += THREADS)
        entries[i] = element::none();
    __syncthreads();
}

/* Bitonic sort, best first. */
DEVICE void sort(element *entries, i64 count) {
    for (i64 size = 2; size <= count; size *= 2)
        for (i64 distance = size / 2; distance > 0; distance /= 2) {
            for (i64 i = threadIdx.x; i < count / 2; i += THREADS) {
                const i64 a = i / distance * distance * 2 + i % distance, b = a + distance;
                const element at_a = entries[a], at_b = entries[b];
                if ((a & size) == 0 ? at_b.precedes(at_a) : at_a.precedes(at_b)) {
                    entries[a] = at_b;
                    entries[b] = at_a;
                }
            }
            __syncthreads();
        }
}

extern "C" __global__ void __launch_bounds__(THREADS) select(const __grid_constant__ arguments p) {
    __shared__ search s;
    __shared__ element shared[SORTED];
    const u32 line = blockIdx.x;
    element *entries = IS_WIDE ? p.entries + line * p.padded : shared;
    const x_t *x = p.x + x_line(p, line);
    const key_t last = find_last(s, p, x);
    list(entries, s, p, x, last);
    sort(entries, p.padded);
    for (i64 r = threadIdx.x; r < p.count; r += THREADS)
        store_element(p, line, r, entries[r].position);
}
