/* pool_whole: the maximum or mean of whole planes of images (NCHW)                                   any type, sm_75 and up
   Formula   y[n,c] = f over all elements of plane n, c: a row of PLANE elements
   Tile      tile_planes planes, which lie in one stretch of memory, pass through shared memory in chunks of 16 bytes; LANES lanes
             side by side share a plane
   Limits    x is packed, and tile_planes planes are whole chunks, as all of them are; one result, of the maximum no number
   Params    as pool.cuh; RUN is 1 */

#include "lib/async.cuh"

extern __shared__ __align__(16) u8 shared[];

constexpr int LANES = 4, EACH = 16 / (int)sizeof(x_t), PLANE = TAPS1 * TAPS2;

DEVICE void fill_tile(const x_t* from, u32 count) {
    for (u32 at = threadIdx.x * EACH; at < count; at += THREADS * EACH) {
        x_t* const to = (x_t*)shared + at;
        if constexpr (CHIP >= 800) copy_async<16>(to, from + at, true);
        else *(chunk<16>*)to = *(const chunk<16>*)(from + at);
    }
    if constexpr (CHIP >= 800) {
        commit_copies();
        await_copies<0>();
    }
    __syncthreads();
}

DEVICE math_t combine(math_t a, math_t b) { return IS_MAXIMUM ? larger(a, b) : a + b; }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_whole(const __grid_constant__ arguments p) {
    begin_overlapped();
    const i64 first = (i64)blockIdx.x * p.tile_planes;
    const u32 planes = (u32)(p.planes - first < p.tile_planes ? p.planes - first : p.tile_planes);
    fill_tile(p.x + first * PLANE, planes * PLANE);
    const math_t none = IS_MAXIMUM ? (math_t)__longlong_as_double(PROPAGATES_NAN ? (i64)0xfff0000000000000ull : 0x7ff8000000000000ll) : (math_t)0;
    const u32 lane = threadIdx.x % LANES;
    for (u32 n = threadIdx.x / LANES; n < (planes + 31) / 32 * 32; n += THREADS / LANES) {
        const x_t* const row = (const x_t*)shared + (n < planes ? n : planes - 1) * PLANE;
        math_t made = none;
        #pragma unroll
        for (int i = 0; i < PLANE; i += LANES)
            if (i + LANES <= PLANE || i + lane < PLANE) made = combine(made, as<math_t>::of(row[i + lane]));
        #pragma unroll
        for (int apart = LANES / 2; apart > 0; apart /= 2) made = combine(made, __shfl_xor_sync(~0u, made, apart));
        if (lane > 0 || n >= planes) continue;
        u32 image = (u32)(first + n);
        const i64 channel = split(image, p.channels), at = (i64)image * p.y_n + channel * p.y_c;
        math_t value = (IS_SCALED ? (math_t)__longlong_as_double(p.alpha) : (math_t)1) * (IS_MAXIMUM ? made : share<y_t>(made, (length_t)PLANE));
        if constexpr (HAS_OLD) value += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(p.y[at]);
        p.y[at] = from<y_t>::number(value);
    }
}
