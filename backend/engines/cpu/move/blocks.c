/* SPDX-License-Identifier: Apache-2.0 */
/* A block is read in tiles of as many rows as a vector has elements, transposed in registers into a buffer on the
   stack, and written a row at a time: both memories are touched by whole cache lines, once. */
#include "engines/cpu/move/blocks.h"

#include <string.h>

#include "engines/cpu/core/vector.h"

#if defined __x86_64__
#include <immintrin.h>
#endif

/* Bytes. Every x86-64 and every 64-bit ARM has such vectors. */
enum { VECTOR = 16, LINE = 64 };

/* ---- Tiles in registers ------------------------------------------------------------------------------------------ */

/* The lower, or the upper, halves of two vectors, element by element in turn. */
#if defined(__clang__)
#define ZIP(lanes, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ZIP(lanes, a, b, ...) __builtin_shuffle(a, b, (lanes){__VA_ARGS__})
#endif
#define LOW_2 0, 2
#define HIGH_2 1, 3
#define LOW_4 0, 4, 1, 5
#define HIGH_4 2, 6, 3, 7
#define LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#define LOW_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* tile_<count>: a square of count x count elements, count a power of 2. Row i zipped with row i + count/2 becomes rows
   2i and 2i + 1; after log2(count) times the square is transposed. */
#define TILE(element, count)                                                                                           \
    static void tile_##count(element *to, int64_t to_stride, const element *from, int64_t from_stride) {               \
        typedef element vector __attribute__((vector_size(VECTOR)));                                                   \
        typedef element unaligned __attribute__((vector_size(VECTOR), aligned(1), may_alias));                         \
        vector rows[count], zipped[count];                                                                             \
        _Pragma("GCC unroll 16") for (int i = 0; i < count; i++) rows[i] =                                             \
            *(const unaligned *)(from + i * from_stride);                                                              \
        _Pragma("GCC unroll 4") for (int turn = 1; turn < count; turn *= 2) {                                          \
            _Pragma("GCC unroll 8") for (int i = 0; i < count / 2; i++) {                                              \
                zipped[2 * i] = ZIP(vector, rows[i], rows[i + count / 2], LOW_##count);                                \
                zipped[2 * i + 1] = ZIP(vector, rows[i], rows[i + count / 2], HIGH_##count);                           \
            }                                                                                                          \
            _Pragma("GCC unroll 16") for (int i = 0; i < count; i++) rows[i] = zipped[i];                              \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < count; i++) * (unaligned *)(to + i * to_stride) = rows[i];        \
    }

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* block_<count>: into a buffer whose rows are of `side` elements: whole tiles, and what is left of them one by one. */
#define BLOCK(element, count)                                                                                          \
    TILE(element, count)                                                                                               \
    static void block_##count(void *buffer, const void *memory, int64_t stride, int rows, int columns) {               \
        enum { SIDE = TRANSPOSE_BYTES / (int)sizeof(element) };                                                        \
        element *to = buffer;                                                                                          \
        const element *from = memory;                                                                                  \
        int whole_rows = rows - rows % count, whole_columns = columns - columns % count;                               \
        for (int j = 0; j < whole_columns; j += count)                                                                 \
            for (int i = 0; i < whole_rows; i += count)                                                                \
                tile_##count(to + i * SIDE + j, SIDE, from + j * stride + i, stride);                                  \
        for (int i = 0; i < rows; i++)                                                                                 \
            for (int j = i < whole_rows ? whole_columns : 0; j < columns; j++)                                         \
                to[i * SIDE + j] = from[j * stride + i];                                                               \
    }

BLOCK(uint64_t, 2)
BLOCK(uint32_t, 4)
BLOCK(uint16_t, 8)
BLOCK(uint8_t, 16)

/* Past the caches where the place is aligned: a line that is written whole need not be read first. */
static void write_row(char *to, const char *row, int bytes, bool is_large) {
#if defined __x86_64__
    if (is_large && bytes % LINE == 0 && (uintptr_t)to % LINE == 0) {
        for (int i = 0; i < bytes; i += VECTOR)
            _mm_stream_si128((__m128i *)(to + i), *(const __m128i *)(row + i));
        return;
    }
#endif
    (void)is_large;
    memcpy(to, row, (size_t)bytes);
}

/* Stores past the caches are ordered by nothing else. */
void fence_blocks(void) {
#if defined __x86_64__
    _mm_sfence();
#endif
}

/* ---- Tiles of whole cache lines ---------------------------------------------------------------------------------- */

/* 16 x 16 elements of 4 bytes in 16 registers: each line of both memories is touched once, so that strides that map
   all of them onto one set of a cache cost nothing, and there is no buffer. */
#if defined __x86_64__
#define WITH_AVX512 __attribute__((target("avx512f")))

/* Twice the halves of neighbours, as 32 and as 64 bits, then 128-bit quarters: rows become columns. */
WITH_AVX512 static inline __attribute__((always_inline)) void turn_lines(__m512i *r) {
    __m512i t[16];
    _Pragma("GCC unroll 8") for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4) {
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
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) r[i] = t[i];
}

/* Up to 16 x 16: what is not there is neither read nor written. */
WITH_AVX512 static void turn_tile(uint32_t *to, int64_t to_stride, const uint32_t *from, int64_t from_stride, int rows,
                                  int columns, bool is_large) {
    __m512i r[16];
    __mmask16 is_row = (__mmask16)((1u << rows) - 1), is_column = (__mmask16)((1u << columns) - 1);
    /* Lines of the tiles behind the next ones: nothing else in the processor sees that they follow. */
    for (int j = 0; j < 16; j++) {
        __builtin_prefetch(from + j * from_stride + 32);
        __builtin_prefetch(to + (j + 32) * to_stride, 1);
    }
    _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) r[j] =
        j < columns ? _mm512_maskz_loadu_epi32(is_row, from + j * from_stride) : _mm512_setzero_si512();
    turn_lines(r);
    bool is_streamed = is_large && columns == 16 && (uintptr_t)to % LINE == 0 && to_stride % 16 == 0;
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) {
        if (i < rows && is_streamed)
            _mm512_stream_si512((void *)(to + i * to_stride), r[i]);
        else if (i < rows)
            _mm512_mask_storeu_epi32(to + i * to_stride, is_column, r[i]);
    }
}

static void turn_tiles(uint32_t *to, int64_t to_stride, const uint32_t *from, int64_t from_stride, int rows,
                       int columns, bool is_large) {
    for (int i = 0; i < rows; i += 16)
        for (int j = 0; j < columns; j += 16)
            turn_tile(to + i * to_stride + j, to_stride, from + j * from_stride + i, from_stride,
                      rows - i < 16 ? rows - i : 16, columns - j < 16 ? columns - j : 16, is_large);
}
#endif

void transpose_block(void *to, int64_t to_stride, const void *from, int64_t from_stride, int rows, int columns,
                     int bytes, bool is_large) {
#if defined __x86_64__
    if (bytes == 4 && __builtin_cpu_supports("avx512f")) {
        turn_tiles(to, to_stride, from, from_stride, rows, columns, is_large);
        return;
    }
#endif
    _Alignas(LINE) char buffer[TRANSPOSE_BYTES * TRANSPOSE_BYTES];
    if (bytes == 1)
        block_16(buffer, from, from_stride, rows, columns);
    else if (bytes == 2)
        block_8(buffer, from, from_stride, rows, columns);
    else if (bytes == 4)
        block_4(buffer, from, from_stride, rows, columns);
    else
        block_2(buffer, from, from_stride, rows, columns);
    for (int i = 0; i < rows; i++)
        write_row((char *)to + i * to_stride * bytes, buffer + i * TRANSPOSE_BYTES, columns * bytes, is_large);
}

WIDE void copy_run(char *to, const char *from, int64_t bytes) {
    typedef char line __attribute__((vector_size(64), aligned(1), may_alias));
    int64_t i = 0;
    for (; i + 256 <= bytes; i += 256) {
        line a = *(const line *)(from + i), b = *(const line *)(from + i + 64);
        line c = *(const line *)(from + i + 128), d = *(const line *)(from + i + 192);
        *(line *)(to + i) = a;
        *(line *)(to + i + 64) = b;
        *(line *)(to + i + 128) = c;
        *(line *)(to + i + 192) = d;
    }
    for (; i + 64 <= bytes; i += 64)
        *(line *)(to + i) = *(const line *)(from + i);
    memmove(to + i, from + i, (size_t)(bytes - i));
}

/* ---- Few planes -------------------------------------------------------------------------------------------------- */

/* With their number as a constant the loops become vector code. */
#define LOOP_OF(element, count_of_planes, left, right)                                                                 \
    for (int64_t i = 0; i < count; i++)                                                                                \
        for (int j = 0; j < count_of_planes; j++)                                                                      \
            ((element *)to)[left] = ((const element *)from)[right];                                                    \
    return

#define PLANES_OF(element, count_of_planes)                                                                            \
    if (few == count_of_planes && is_joined) {                                                                         \
        LOOP_OF(element, count_of_planes, i * count_of_planes + j, j * stride + i);                                    \
    } else if (few == count_of_planes) {                                                                               \
        LOOP_OF(element, count_of_planes, j * stride + i, i * count_of_planes + j);                                    \
    }

#define INTERLEAVE(element)                                                                                            \
    WIDE static void interleave_##element(void *restrict to, const void *restrict from, int64_t stride, int few,       \
                                          int64_t count, bool is_joined) {                                             \
        PLANES_OF(element, 2)                                                                                          \
        PLANES_OF(element, 3)                                                                                          \
        PLANES_OF(element, 4)                                                                                          \
    }

INTERLEAVE(uint8_t)
INTERLEAVE(uint16_t)
INTERLEAVE(uint32_t)
INTERLEAVE(uint64_t)

void interleave(void *to, const void *from, int64_t stride, int few, int64_t count, int bytes, bool is_joined) {
    if (bytes == 1)
        interleave_uint8_t(to, from, stride, few, count, is_joined);
    else if (bytes == 2)
        interleave_uint16_t(to, from, stride, few, count, is_joined);
    else if (bytes == 4)
        interleave_uint32_t(to, from, stride, few, count, is_joined);
    else
        interleave_uint64_t(to, from, stride, few, count, is_joined);
}
