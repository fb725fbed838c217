/* SPDX-License-Identifier: Apache-2.0 */
/* Transposes 16 x 16 blocks of 4-byte words in AVX-512 registers. */
#ifndef WEFT_ENGINES_CPU_TRANSPOSE16_H
#define WEFT_ENGINES_CPU_TRANSPOSE16_H

#include <stdbool.h>
#include <stdint.h>

enum { TRANSPOSE16 = 16 }; /* words per side: one cache line of each row */

#if defined __x86_64__
#include <immintrin.h>

/* Target attributes of functions that call the helpers below; transpose16 itself needs fewer features. */
#define TRANSPOSE16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))
#define TRANSPOSE16_INLINE TRANSPOSE16_TARGET static inline __attribute__((always_inline))

static inline bool has_transpose16(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

/* Two rounds of unpacking, of 32 and 64 bits, then two of 128-bit shuffles: rows become columns. */
__attribute__((target("avx512f"))) static inline __attribute__((always_inline)) void transpose16(__m512i *r) {
    __m512i t[TRANSPOSE16];
    _Pragma("GCC unroll 8") for (int i = 0; i < TRANSPOSE16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < TRANSPOSE16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88), b = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        __m512i c = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd), d = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
        t[i] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < TRANSPOSE16; i++) r[i] = t[i];
}

/* Loads up to 16 rows and columns from memory of any alignment, with a row pitch of `stride` bytes. Reads nothing
   outside. Missing rows repeat the last one; missing columns are 0. */
TRANSPOSE16_INLINE void transpose16_load(__m512i *r, const char *from, int64_t stride, int rows, int columns) {
    __mmask16 mask = (__mmask16)(0xffff >> (TRANSPOSE16 - columns));
    _Pragma("GCC unroll 16") for (int i = 0; i < TRANSPOSE16; i++) r[i] =
        _mm512_maskz_loadu_epi32(mask, from + (i < rows ? i : rows - 1) * stride);
}

/* Like transpose16_load, for IEEE halves, which are converted to float. */
TRANSPOSE16_INLINE void transpose16_load_f16(__m512i *r, const char *from, int64_t stride, int rows, int columns) {
    __mmask16 mask = (__mmask16)(0xffff >> (TRANSPOSE16 - columns));
    _Pragma("GCC unroll 16") for (int i = 0; i < TRANSPOSE16; i++) r[i] =
        (__m512i)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from + (i < rows ? i : rows - 1) * stride));
}

TRANSPOSE16_INLINE void transpose16_store(char *to, int64_t stride, const __m512i *r, int rows, int columns) {
    __mmask16 mask = (__mmask16)(0xffff >> (TRANSPOSE16 - columns));
    _Pragma("GCC unroll 16") for (int i = 0; i < TRANSPOSE16; i++) if (i < rows)
        _mm512_mask_storeu_epi32(to + i * stride, mask, r[i]);
}
#endif

#endif
