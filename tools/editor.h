/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC's own declarations, for editors: tools/editor.py has clangd read them before a device file. */
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __host__ __attribute__((host))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(...)
#define __grid_constant__

__device__ unsigned __float_as_uint(float x);
__device__ int __float_as_int(float x);
__device__ float __uint_as_float(unsigned x);
__device__ float __int_as_float(int x);
__device__ long long __double_as_longlong(double x);
__device__ double __longlong_as_double(long long x);
__device__ int __double2hiint(double x);
__device__ double __hiloint2double(int high, int low);
__device__ long long __double2ll_rn(double x);
__device__ float __double2float_rz(double x);
__device__ float __ll2float_rz(long long x);
__device__ unsigned __umulhi(unsigned x, unsigned y);
__device__ unsigned long long __umul64hi(unsigned long long x, unsigned long long y);
__device__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector);
__device__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift);
__device__ int __clz(int x);
__device__ int __popc(unsigned x);
__device__ int __ffs(int x);
__device__ unsigned long __cvta_generic_to_shared(const void *pointer);

__device__ void __syncthreads();
__device__ int __syncthreads_or(int predicate);
__device__ void __syncwarp(unsigned mask = ~0u);
__device__ void __threadfence();
__device__ int __any_sync(unsigned mask, int predicate);
__device__ unsigned __ballot_sync(unsigned mask, int predicate);
template <class T> __device__ T __shfl_sync(unsigned mask, T x, int lane, int width = 32);
template <class T> __device__ T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = 32);
template <class T> __device__ T __shfl_up_sync(unsigned mask, T x, unsigned lanes, int width = 32);
template <class T> __device__ T __shfl_down_sync(unsigned mask, T x, unsigned lanes, int width = 32);
template <class T> __device__ T atomicAdd(T *at, T x);
template <class T> __device__ T atomicMax(T *at, T x);
template <class T> __device__ T atomicMin(T *at, T x);

template <class T> __device__ T min(T x, T y);
template <class T> __device__ T max(T x, T y);
__device__ float fmaf(float x, float y, float z);
__device__ float __log2f(float x);
__device__ void sincospif(float x, float *sine, float *cosine);

/* clang-format off */
/* Functions of libm, each for float and for double. */
#define ONE(name)                                                                                                      \
    __device__ float name##f(float x);                                                                                 \
    __device__ double name(double x);
#define TWO(name)                                                                                                      \
    __device__ float name##f(float x, float y);                                                                        \
    __device__ double name(double x, double y);
ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log1p) ONE(sqrt) ONE(rsqrt) ONE(fabs) ONE(ceil) ONE(floor)
ONE(sin) ONE(cos) ONE(tan) ONE(tanh) ONE(erf) ONE(erfc) ONE(rint) ONE(trunc)
TWO(pow) TWO(atan2) TWO(fmod) TWO(fmin) TWO(fmax) TWO(copysign)
