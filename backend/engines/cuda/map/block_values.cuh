/* block_values: elements divided or multiplied by the scale of their block                           any chip, any type
   Formula   IS_QUANTIZED: y = x / scale, 0 if the scale is 0; else y = x scale, IS_NEGATIVE: -x scale
   Tile      a thread computes one element of y, adjacent threads adjacent elements; for types narrower than a byte, all
             elements of a byte
   Params    THREADS IS_QUANTIZED IS_NEGATIVE x_t scale_t y_t math_t position, and locate(): the locations of an element
             in x, y and scale; for types narrower than a byte also find(): the element at a position in y's memory */

#include "core/dependent_launch.cuh"

DEVICE y_t make_value(const arguments &p, i64 x, i64 scale) {
    const math_t value = as<math_t>::of(load_run<x_t, 1>(p.x + x).at[0]), factor = as<math_t>::of(*(p.scale + scale));
    if constexpr (IS_QUANTIZED)
        return from<y_t>::number(factor > 0 ? value / factor : (math_t)0);
    return from<y_t>::number(value * (IS_NEGATIVE ? -factor : factor));
}

extern "C" __global__ void __launch_bounds__(THREADS) block_values(const __grid_constant__ arguments p) {
    constexpr int EACH = 8 / (BITS<y_t> < 8 ? BITS<y_t> : 8);
    begin_overlapped();
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < p.items; item += (i64)gridDim.x * THREADS) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            position at = (position)item;
            if (EACH > 1 && !find(p, item * EACH + e, at))
                continue;
            i64 x = 0, scale = 0, y = 0;
            locate(p, at, x, scale, y);
            store_run<y_t, 1>(p.y + y, {make_value(p, x, scale)});
        }
    }
}
