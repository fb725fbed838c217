/* block_scales: the scales of blocks of elements                                                     any chip, any type
   Formula   scale = a / MOST, a a block's largest finite magnitude; rounded up to a power of two if IS_POWER; at most
             SCALE_MOST
   Tile      LANES threads share a block, adjacent threads read adjacent elements; a is 0 for a block without elements
   Params    THREADS LANES IS_POWER MOST SCALE_MOST x_t scale_t math_t position, and begin_block(): the locations of a
             block's first element and its scale, and its number of elements */

#include "core/dependent_launch.cuh"

static_assert(THREADS % 32 == 0 && 32 % LANES == 0, "the lanes of a block of elements are in one warp");

/* The next power of two, unless the number is one already. */
DEVICE double round_up_to_power(double x) {
    constexpr u64 FRACTION = (1ull << 52) - 1;
    const u64 bits = (u64)__double_as_longlong(x);
    return bits & FRACTION ? __longlong_as_double((i64)((bits | FRACTION) + 1)) : x;
}

extern "C" __global__ void __launch_bounds__(THREADS) block_scales(const __grid_constant__ arguments p) {
    constexpr math_t FINITE = (math_t)(sizeof(math_t) == 8 ? 1.7976931348623157e308 : 3.4028234663852886e38);
    begin_overlapped();
    for (i64 base = (i64)blockIdx.x * THREADS; base < p.blocks * LANES; base += (i64)gridDim.x * THREADS) {
        const i64 at = (base + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
        i64 x = 0, scale = 0, count = 0;
        if (at < p.blocks)
            count = begin_block(p, (position)at, x, scale);
        math_t magnitude = 0;
        for (i64 e = lane; e < count; e += LANES) {
            const math_t value = fabs(as<math_t>::of(*(p.x + (x + e * p.step))));
            if (value <= FINITE && value > magnitude)
                magnitude = value;
        }
#pragma unroll
        for (int width = LANES / 2; width > 0; width /= 2) {
            const math_t other = __shfl_xor_sync(0xffffffffu, magnitude, width);
            magnitude = other > magnitude ? other : magnitude;
        }
        double number = (double)magnitude / MOST;
        if constexpr (IS_POWER)
            number = round_up_to_power(number);
        if (at < p.blocks && lane == 0)
            p.scale[scale] = from<scale_t>::number(number < SCALE_MOST ? number : SCALE_MOST);
    }
}
