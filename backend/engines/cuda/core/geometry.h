/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry of a kernel is its tile, its threads and its layout of shared memory. The host plans with it and the
   kernel addresses memory with it, so both include one header, NAME_geometry.h, which is valid C11 and CUDA C++. Such a
   header uses only built-in types. A function that returns a layout is marked GEOMETRY: device code calls it to
   initialise constants. */
#ifndef WEFT_ENGINES_CUDA_CORE_GEOMETRY_H
#define WEFT_ENGINES_CUDA_CORE_GEOMETRY_H

#ifdef __cplusplus
#define GEOMETRY constexpr __device__
#else
#define GEOMETRY static inline
#endif

/* For sm_90: maximum shared memory of a block in bytes (227 KiB), threads of a warpgroup, and bytes of an mbarrier. */
enum { SHARED_MAX = 232448, WARPGROUP = 128, BARRIER_BYTES = 8 };

GEOMETRY long long geometry_max(long long a, long long b) { return a > b ? a : b; }

GEOMETRY long long geometry_divide_up(long long a, long long b) { return (a + b - 1) / b; }

GEOMETRY long long geometry_round_up(long long a, long long b) { return geometry_divide_up(a, b) * b; }

#endif
