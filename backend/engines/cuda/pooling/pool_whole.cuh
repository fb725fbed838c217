/* pool_whole: the maximum or mean of whole planes of images (NCHW)                               any type, sm_75 and up
   Formula   y[n,c] = f over all elements of plane n, c: a row of PLANE elements
   Tile      tile_planes planes go through shared memory as one segment (pooling/segment.cuh); LANES adjacent lanes
             share a plane
   Limits    x is packed, and tile_planes planes are whole chunks, as all of them are; one result, without the index of
             the maximum
   Tried     means of 7x7, 8.3 us: copies by threads (10.5), tiles of 2, 3 or 6 KiB instead of 5 (20.8, 10.8, 8.7),
             prefetching tiles before the preceding kernel ends (0.6 more)
   Params    as pool.cuh, and LINE; RUN is 1 */

#include "pooling/segment.cuh"

extern __shared__ __align__(128) u8 shared[];

constexpr int LANES = 4, PLANE = TAPS1 * TAPS2;
static_assert(THREADS % 32 == 0, "all lanes of a warp exchange values");

DEVICE math_t combine(math_t a, math_t b) { return IS_MAXIMUM ? larger(a, b) : a + b; }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_whole(const __grid_constant__ arguments p) {
    __shared__ u64 arrival;
    begin_segments(&arrival, 1);
    const i64 first = (i64)blockIdx.x * p.tile_planes;
    const u32 planes = (u32)(p.planes - first < p.tile_planes ? p.planes - first : p.tile_planes);
    begin_overlapped();
    const x_t *const memory = p.x + first * PLANE;
    x_t *const tile = (x_t *)shared + phase_of(memory);
    fill_segment(tile, memory, (int)planes * PLANE, &arrival);
    await_segments(&arrival);
    const math_t none =
        IS_MAXIMUM ? (math_t)__longlong_as_double(PROPAGATES_NAN ? (i64)0xfff0000000000000ull : 0x7ff8000000000000ll)
                   : (math_t)0;
    const u32 lane = threadIdx.x % LANES;
    for (u32 n = threadIdx.x / LANES; n < (planes + 31) / 32 * 32; n += THREADS / LANES) {
        const x_t *const row = tile + (n < planes ? n : planes - 1) * PLANE;
        math_t result = none;
#pragma unroll
        for (int i = 0; i < PLANE; i += LANES)
            if (i + LANES <= PLANE || i + lane < PLANE)
                result = combine(result, as<math_t>::of(row[i + lane]));
#pragma unroll
        for (int apart = LANES / 2; apart > 0; apart /= 2)
            result = combine(result, __shfl_xor_sync(~0u, result, apart));
        if (lane > 0 || n >= planes)
            continue;
        u32 image = (u32)(first + n);
        const i64 channel = split(image, p.channels), at = (i64)image * p.y_n + channel * p.y_c;
        math_t value = (IS_SCALED ? (math_t)__longlong_as_double(p.alpha) : (math_t)1) *
                       (IS_MAXIMUM ? result : share<y_t>(result, (length_t)PLANE));
        if constexpr (HAS_OLD)
            value += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(p.y[at]);
        p.y[at] = from<y_t>::number(value);
    }
}
