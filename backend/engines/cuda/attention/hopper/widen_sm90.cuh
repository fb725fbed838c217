/* widen_sm90: converts an FP8 operand, times its block scales if any, to 16 bits, for MMAs whose operands do not have
     the K-major layout that FP8 MMAs require
   Formula   to[b,h,s,d] = from[b,h,s,d] * scale[b,h,s,d]; exact: f16 represents all of E4M3 and E5M2, and bf16
             represents them times powers of two
   Tile      a thread converts CHUNK adjacent elements of a row, 16 bytes of input
   Memory    to: [B, H, S, D], contiguous
   Limits    rows are a multiple of CHUNK; fewer than 2^31 chunks
   Params    to_t from_t THREADS, from_scales(arguments, batch, head) */

using sum_t = float;
struct no_scales {}; /* what element_scales.cuh returns without scales */

#include "attention/element_scales.cuh"

constexpr int CHUNK = 16, PART = 8; /* elements per load, and per store */

template <class S> DEVICE float scaled(float x, const S &scales, i32 row, i32 column) {
    if constexpr (same<S, no_scales>::value)
        return x;
    else
        return x * scales.of(row, column);
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_widen_sm90(const __grid_constant__ arguments p) {
    const u32 number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (u32)p.all_chunks)
        return;
    const u32 line = divide(number, p.chunks), outer = divide(line, p.rows), batch = divide(outer, p.heads);
    const i32 column = (i32)(number - line * p.chunks.value) * CHUNK, row = (i32)(line - outer * p.rows.value);
    const i64 head = outer - batch * p.heads.value;
    const auto scales = from_scales(p, batch, head);
    const run<from_t, CHUNK> x =
        load_run<from_t, CHUNK>(p.from + batch * p.from_batch + head * p.from_head + row * p.from_row + column);
#pragma unroll
    for (int part = 0; part < CHUNK; part += PART) {
        run<u32, PART / 2> pairs;
#pragma unroll
        for (int i = 0; i < PART; i += 2)
            pairs.at[i / 2] =
                rounded_pair<to_t>(scaled(to_float(x.at[part + i]), scales, row, column + part + i),
                                   scaled(to_float(x.at[part + i + 1]), scales, row, column + part + i + 1));
        store_run<u32, PART / 2>((u32 *)(p.to + (i64)number * CHUNK + part), pairs);
    }
}
