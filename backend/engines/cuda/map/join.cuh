/* join: concatenates rows of packed tensors                                              any chip, types of whole bytes
   Formula   row r of y is row r of each source, one after another
   Tile      a thread copies UNROLL chunks of EACH elements of y, THREADS chunks apart, and loops over the rest; loads
             precede stores: y is written once and in order, whatever the lengths of rows
   Memory    if rows are whole chunks (IS_ALIGNED), a chunk is one load; else it is extracted from two aligned loads.
             Chunks that contain the end of a row, and those at the ends of a source, are copied element by element
   Tried     several shifted chunks per thread at once (10 % slower for 4)
   Params    element, which has a type's size, EACH THREADS UNROLL IS_ALIGNED position, and the emitted find() */

#include "core/dependent_launch.cuh"

constexpr int BYTES = EACH * (int)sizeof(element);

/* True if a chunk is within one row of its source, and the aligned chunks that contain it are within the source's
   memory. */
DEVICE bool is_whole(const piece &from) {
    const u64 first = from.at - from.at % 16;
    return from.left >= EACH && first >= from.begin && first + 32 <= from.end;
}

DEVICE void copy_elements(const arguments &p, i64 first) {
#pragma unroll 1
    for (int e = 0; e < EACH && first + e < p.elements; e++) {
        position rest = (position)(first + e);
        const i64 column = (i64)split(rest, p.length);
        to_memory(p)[first + e] = *(const element *)find(p, (i64)rest, column).at;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) join(const __grid_constant__ arguments p) {
    begin_overlapped();
    for (i64 first = (i64)blockIdx.x * THREADS * UNROLL + threadIdx.x; first * EACH < p.elements;
         first += (i64)gridDim.x * THREADS * UNROLL) {
        chunk<BYTES> in[UNROLL];
        bool has[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const i64 at = (first + u * THREADS) * EACH;
            has[u] = at < p.elements;
            if (!has[u])
                continue;
            position rest = (position)at;
            const i64 column = (i64)split(rest, p.length);
            const piece from = find(p, (i64)rest, column);
            if constexpr (IS_ALIGNED) {
                in[u] = load_global<BYTES>(from.at);
            } else {
                has[u] = is_whole(from);
                if (has[u])
                    in[u] = load_shifted<BYTES>(from.at);
            }
        }
        u32 left = 0;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const i64 at = (first + u * THREADS) * EACH;
            if (has[u])
                store_global((u64)(to_memory(p) + at), in[u]);
            else if (at < p.elements)
                left |= 1u << u;
        }
        if constexpr (!IS_ALIGNED) {
#pragma unroll 1
            for (int u = 0; u < UNROLL; u++)
                if (left >> u & 1)
                    copy_elements(p, (first + u * THREADS) * EACH);
        }
    }
}
