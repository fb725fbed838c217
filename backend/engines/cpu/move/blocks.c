/* SPDX-License-Identifier: Apache-2.0 */
/* A plane is transposed in blocks of one cache line of each row that is read and TRANSPOSE_BYTES of each that is
   written, whose memory the block before has fetched: both memories are touched by whole lines, once, as far apart as
   their rows lie. What bounds it is how many lines come at once; shuffles are hidden behind them. */
#include "engines/cpu/move/blocks.h"

#include <string.h>

#include "base/number.h"
#include "engines/cpu/core/square.h"
#include "engines/cpu/core/vector.h"

/* Bytes. Every x86-64 and every 64-bit ARM has such vectors. */
enum { VECTOR = 16, LINE = 64 };

/* A block of rows x columns, to[i * to_stride + j] = from[j * from_stride + i], strides in elements, and what the next
   one reads and writes. */
struct block {
    char *to;
    const char *from;
    int64_t to_stride, from_stride;
    int rows, columns; /* at most LINE and TRANSPOSE_BYTES */
    char *next_to;
    const char *next_from;
    bool is_large;
};

/* Line j of what the next block reads, into L2: rows a power of two apart would evict each other from L1. */
static inline void fetch_read(const struct block *block, int j, int bytes) {
    __builtin_prefetch(block->next_from + j * block->from_stride * bytes, 0, 2);
}

/* `at`: bytes into row i of its writing. */
static inline void fetch_written(const struct block *block, int i, int at, int bytes) {
    __builtin_prefetch(block->next_to + i * block->to_stride * bytes + at, 1);
}

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

/* ---- Blocks by way of a buffer ----------------------------------------------------------------------------------- */

/* fill_<count>: a buffer whose rows are TRANSPOSE_BYTES long: whole tiles, and what is left of them one by one. */
#define FILL(element, count)                                                                                           \
    TILE(element, count)                                                                                               \
    static void fill_##count(void *buffer, const struct block *block) {                                                \
        enum { SIDE = TRANSPOSE_BYTES / (int)sizeof(element) };                                                        \
        element *to = buffer;                                                                                          \
        const element *from = (const void *)block->from;                                                               \
        int64_t stride = block->from_stride;                                                                           \
        int rows = block->rows, columns = block->columns;                                                              \
        int whole_rows = rows - rows % count, whole_columns = columns - columns % count;                               \
        for (int j = 0; j < whole_columns; j += count) {                                                               \
            for (int k = j; k < j + count; k++)                                                                        \
                fetch_read(block, k, sizeof(element));                                                                 \
            for (int i = 0; i < whole_rows; i += count)                                                                \
                tile_##count(to + i * SIDE + j, SIDE, from + j * stride + i, stride);                                  \
        }                                                                                                              \
        for (int i = 0; i < rows; i++)                                                                                 \
            for (int j = i < whole_rows ? whole_columns : 0; j < columns; j++)                                         \
                to[i * SIDE + j] = from[j * stride + i];                                                               \
    }

FILL(uint64_t, 2)
FILL(uint32_t, 4)
FILL(uint16_t, 8)
FILL(uint8_t, 16)

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

static void block_buffered(const struct block *block, int bytes) {
    _Alignas(LINE) char buffer[LINE * TRANSPOSE_BYTES];
    if (bytes == 1)
        fill_16(buffer, block);
    else if (bytes == 2)
        fill_8(buffer, block);
    else if (bytes == 4)
        fill_4(buffer, block);
    else
        fill_2(buffer, block);
    for (int i = 0; i < block->rows; i++) {
        for (int at = 0; at < TRANSPOSE_BYTES && !block->is_large; at += LINE)
            fetch_written(block, i, at, bytes);
        write_row(block->to + i * block->to_stride * bytes, buffer + i * TRANSPOSE_BYTES, block->columns * bytes,
                  block->is_large);
    }
}

/* ---- Blocks of whole lines in registers -------------------------------------------------------------------------- */

#if defined __x86_64__
#define WITH_AVX512 __attribute__((target("avx512f,avx512bw")))
#define INLINE static inline __attribute__((always_inline))

/* Of 4 / bytes lines, which together have 4 bytes of each column, these bytes side by side; of two lines zipped[part]
   has four of every eight columns, from the (4 * part)th on. */
WITH_AVX512 INLINE void zip_lines(__m512i *zipped, const char *from, int64_t stride, int bytes) {
    zipped[0] = _mm512_loadu_si512(from);
    if (bytes == 2) {
        __m512i even = zipped[0], odd = _mm512_loadu_si512(from + stride);
        zipped[0] = _mm512_unpacklo_epi16(even, odd);
        zipped[1] = _mm512_unpackhi_epi16(even, odd);
    }
}

/* A square of whole lines; strides in bytes. */
WITH_AVX512 INLINE void turn_square(char *to, int64_t to_stride, const char *from, int64_t from_stride, int bytes,
                                    bool is_streamed) {
    int parts = 4 / bytes, lane = VECTOR / bytes;
    __m512i r[2][16];
    _Pragma("GCC unroll 16") for (int k = 0; k < 16; k++) {
        __m512i zipped[2];
        zip_lines(zipped, from + k * parts * from_stride, from_stride, bytes);
        _Pragma("GCC unroll 2") for (int part = 0; part < parts; part++) r[part][k] = zipped[part];
    }
    _Pragma("GCC unroll 2") for (int part = 0; part < parts; part++) {
        square_transpose(r[part]);
        _Pragma("GCC unroll 16") for (int k = 0; k < 16; k++) {
            char *at = to + (k / 4 * lane + 4 * part + k % 4) * to_stride;
            if (is_streamed)
                _mm512_stream_si512((void *)at, r[part][k]);
            else
                _mm512_storeu_si512(at, r[part][k]);
        }
    }
}

/* What is less than a square: its lines, and those that it becomes, stand in buffers whole. */
WITH_AVX512 INLINE void turn_part(char *to, int64_t to_stride, const char *from, int64_t from_stride, int rows,
                                  int columns, int bytes) {
    _Alignas(LINE) char read[LINE * LINE], written[LINE * LINE];
    __mmask64 row_bytes = ~UINT64_C(0) >> (LINE - columns * bytes),
              column_bytes = ~UINT64_C(0) >> (LINE - rows * bytes);
    for (int j = 0; j < LINE / bytes; j++)
        _mm512_store_si512(read + j * LINE, j < columns ? _mm512_maskz_loadu_epi8(column_bytes, from + j * from_stride)
                                                        : _mm512_setzero_si512());
    turn_square(written, LINE, read, LINE, bytes, false);
    for (int i = 0; i < rows; i++)
        _mm512_mask_storeu_epi8(to + i * to_stride, row_bytes, _mm512_load_si512(written + i * LINE));
}

WITH_AVX512 INLINE void block_of(const struct block *block, int bytes) {
    int side = LINE / bytes;
    int64_t to_stride = block->to_stride * bytes, from_stride = block->from_stride * bytes;
    for (int j = 0; j < block->columns; j += side) {
        char *to = block->to + j * bytes;
        const char *from = block->from + j * from_stride;
        int columns = block->columns - j < side ? block->columns - j : side;
        for (int k = 0; k < side; k++) {
            fetch_read(block, j + k, bytes);
            if (!block->is_large)
                fetch_written(block, k, j * bytes, bytes);
        }
        if (block->rows < side || columns < side)
            turn_part(to, to_stride, from, from_stride, block->rows, columns, bytes);
        else if (block->is_large && ((uintptr_t)to | (uint64_t)to_stride) % LINE == 0)
            turn_square(to, to_stride, from, from_stride, bytes, true);
        else
            turn_square(to, to_stride, from, from_stride, bytes, false);
    }
}

WITH_AVX512 static void block_avx512(const struct block *block, int bytes) {
    if (bytes == 2)
        block_of(block, 2);
    else
        block_of(block, 4);
}
#endif

/* ---- Planes ------------------------------------------------------------------------------------------------------ */

static void transpose_block(const struct block *block, int bytes) {
#if defined __x86_64__
    if ((bytes == 2 || bytes == 4) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
        block_avx512(block, bytes);
        return;
    }
#endif
    block_buffered(block, bytes);
}

int64_t transpose_head(const void *memory, int64_t stride, int64_t count, int bytes) {
    bool is_even = stride * bytes % LINE == 0;
    return is_even && count * bytes >= TRANSPOSE_BYTES ? (int64_t)(-(uintptr_t)memory % LINE) / bytes : 0;
}

void transpose(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows, int64_t columns,
               int bytes, bool is_large) {
    int64_t head_rows = transpose_head(from, from_stride, rows, bytes);
    int64_t head_columns = transpose_head(to, to_stride, columns, bytes);
    for (int64_t j = 0, j_end; j < columns; j = j_end) {
        j_end = min64(j == 0 && head_columns ? head_columns : j + TRANSPOSE_BYTES / bytes, columns);
        for (int64_t i = 0, i_end; i < rows; i = i_end) {
            i_end = min64(i == 0 && head_rows ? head_rows : i + LINE / bytes, rows);
            /* Behind the last row the next columns' first. */
            int64_t next_i = i_end < rows ? i_end : 0, next_j = i_end < rows ? j : j_end;
            struct block block = {.to = (char *)to + (i * to_stride + j) * bytes,
                                  .from = (const char *)from + (j * from_stride + i) * bytes,
                                  .to_stride = to_stride,
                                  .from_stride = from_stride,
                                  .rows = (int)(i_end - i),
                                  .columns = (int)(j_end - j),
                                  .next_to = (char *)to + (next_i * to_stride + next_j) * bytes,
                                  .next_from = (const char *)from + (next_j * from_stride + next_i) * bytes,
                                  .is_large = is_large};
            transpose_block(&block, bytes);
        }
    }
#if defined __x86_64__
    if (is_large)
        _mm_sfence(); /* stores past the caches are ordered by nothing else */
#endif
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

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
