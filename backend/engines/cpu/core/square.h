/* SPDX-License-Identifier: Apache-2.0 */
/* Squares of 16 x 16 words of 4 bytes, transposed in AVX-512's registers: of all that transposes, the intrinsics. */
#ifndef WEFT_ENGINES_CPU_SQUARE_H
#define WEFT_ENGINES_CPU_SQUARE_H

#include <stdint.h>

enum { SQUARE = 16 }; /* words of a side: a cache line of each row */

#if defined __x86_64__
#include <immintrin.h>

#define SQUARE_INLINE __attribute__((target("avx512f"))) static inline __attribute__((always_inline))

/* Twice the halves of neighbours, as 32 and as 64 bits, then 128-bit quarters: rows become columns. */
SQUARE_INLINE void square_transpose(__m512i *r) {
    __m512i t[SQUARE];
    _Pragma("GCC unroll 8") for (int i = 0; i < SQUARE; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < SQUARE; i += 4) {
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
    _Pragma("GCC unroll 16") for (int i = 0; i < SQUARE; i++) r[i] = t[i];
}

/* From rows [rows, columns] into [columns, rows], in memory of any alignment; both are SQUARE at most, strides in
   bytes. Nothing beyond is read or written. */
SQUARE_INLINE void square_copy(char *to, int64_t to_stride, const char *from, int64_t from_stride, int rows,
                               int columns) {
    __m512i r[SQUARE];
    if (rows == SQUARE && columns == SQUARE) {
        _Pragma("GCC unroll 16") for (int i = 0; i < SQUARE; i++) r[i] = _mm512_loadu_si512(from + i * from_stride);
        square_transpose(r);
        _Pragma("GCC unroll 16") for (int i = 0; i < SQUARE; i++) _mm512_storeu_si512(to + i * to_stride, r[i]);
        return;
    }
    __mmask16 read = (__mmask16)(0xffff >> (SQUARE - columns)), written = (__mmask16)(0xffff >> (SQUARE - rows));
    /* Rows that are not there are the last one again. */
    _Pragma("GCC unroll 16") for (int i = 0; i < SQUARE; i++) r[i] =
        _mm512_maskz_loadu_epi32(read, from + (i < rows ? i : rows - 1) * from_stride);
    square_transpose(r);
    _Pragma("GCC unroll 16") for (int i = 0; i < SQUARE; i++) if (i < columns)
        _mm512_mask_storeu_epi32(to + i * to_stride, written, r[i]);
}
#endif

#endif
