/* SPDX-License-Identifier: Apache-2.0 */
/* sum + a * b for the kernels of products: sum and b are vectors, and a is a single factor for all lanes. If the CPU
   multiplies narrow types, a factor has 32 bits: a group of elements that are adjacent along the depth, and whose
   products are summed together. The intrinsics of packed products are only in this file and in gemm_amx.c.

   bf16   two per factor. Products are exact, and each is added and rounded to nearest even as by an FMA, the upper half
          first. Factors and sums below 2^-126 count as 0, whatever the thread's mode.
   bytes  four per factor, a unsigned and b signed. Sums are exact and wrap around at 32 bits. */
#ifndef WEFT_ENGINES_CPU_DOT_H
#define WEFT_ENGINES_CPU_DOT_H

#define ADD_PRODUCT(sum, a, b) ((sum) + (a) * (b))

/* Loads a vector of factors, directly or from the same number of IEEE halves; LOAD_HALF: one float from a half. */
#define LOAD_FACTORS(at) (*(const factors *)(at))

#if defined(__x86_64__)
#include <immintrin.h>

/* A pair of bf16 in every lane. Clang 16 crashes when it selects instructions for such a broadcast, so an empty asm
   hides the type from it. */
#if defined __clang__ && __clang_major__ == 16
#define BROADCAST_PAIR(pair)                                                                                           \
    ({                                                                                                                 \
        __m512i broadcast_pair = _mm512_set1_epi32(pair);                                                              \
        __asm__("" : "+v"(broadcast_pair));                                                                            \
        broadcast_pair;                                                                                                \
    })
#else
#define BROADCAST_PAIR(pair) _mm512_set1_epi32(pair)
#endif
#define ADD_PAIRS_AVX512(sum, a, b)                                                                                    \
    ((vector)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)BROADCAST_PAIR((int)(a)), (__m512bh)(b)))
#define ADD_BYTES_AVX512(sum, a, b)                                                                                    \
    ((vector)_mm512_dpbusd_epi32((__m512i)(sum), _mm512_set1_epi32((int)(a)), (__m512i)(b)))

#define LOAD_HALF(half) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)))
#define LOAD_HALVES_AVX512(at) ((factors)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(at))))
#define LOAD_HALVES_AVX2(at) ((factors)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at))))
#endif

#endif
