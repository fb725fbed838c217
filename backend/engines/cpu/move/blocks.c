/* SPDX-License-Identifier: Apache-2.0 */
/* Transposes a plane in blocks of a few cache lines per read row and TRANSPOSE_BYTES per written row, whose memory is
   prefetched during the previous block. Both memories are accessed in whole lines, once each, although consecutive
   accesses are a row pitch from each other. The limit is the number of outstanding cache lines; shuffles take less
   time. Adjacent lines arrive faster, because processors prefetch some: measured on a Xeon from the third-level cache,
   a single line per row takes 4.8 to 6.7 ns, and each of four adjacent lines takes 2.2 ns. If there are only a few
   rows, each is a stream, which hardware prefetches best. */
#include "engines/cpu/move/blocks.h"

#include <string.h>

#include "base/number.h"
#include "base/vectors.h"
#include "engines/cpu/core/transpose16.h"
#include "engines/cpu/core/vector.h"

/* Sizes in bytes. Every x86-64 and 64-bit ARM processor has such vectors. */
enum { VECTOR = 16, LINE = 64 };

/* Maximum bytes per row of a block of a narrow plane, so that its tiles stay in L1. */
enum { NARROW_BYTES = 1024 };

/* A block of rows x columns, to[i * to_stride + j] = from[j * from_stride + i], strides in elements, and the memory
   that the next block reads and writes. */
struct block {
    char *to;
    const char *from;
    int64_t to_stride, from_stride;
    int rows, columns;
    char *next_to; /* NULL if this is the last block */
    const char *next_from;
    int next_rows, next_columns;
    /* The last wrapped_rows rows are stored ring_rows earlier, and the last wrapped_columns columns ring_columns
       earlier: see find_range. */
    int wrapped_rows, wrapped_columns;
    int64_t ring_rows, ring_columns;
    bool is_large;
};

/* Prefetches row j of the next block's input, of the same size as this block, into L2: rows at distances of a power of
   two would evict each other from L1. */
static inline void fetch_read(const struct block *block, int j, int bytes) {
    for (int at = 0; at < block->rows * bytes && block->next_to; at += LINE)
        __builtin_prefetch(block->next_from + j * block->from_stride * bytes + at, 0, 2);
}

/* Prefetches row i of the next block's output, unless stores bypass the caches. */
static inline void fetch_written(const struct block *block, int i, int bytes) {
    for (int at = 0; at < block->columns * bytes && block->next_to && !block->is_large; at += LINE)
        __builtin_prefetch(block->next_to + i * block->to_stride * bytes + at, 1);
}

/* ---- Tiles in registers ------------------------------------------------------------------------------------------ */

/* Indices for SHUFFLE that interleave the lower or the upper halves of two vectors. */
#define LOW_2 0, 2
#define HIGH_2 1, 3
#define LOW_4 0, 4, 1, 5
#define HIGH_4 2, 6, 3, 7
#define LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#define LOW_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* tile_<count>: transposes count x count elements; count is a power of 2. Row i zipped with row i + count/2 becomes
   rows 2i and 2i + 1; after log2(count) rounds the square is transposed. */
#define TILE(element, count)                                                                                           \
    static void tile_##count(element *to, int64_t to_stride, const element *from, int64_t from_stride) {               \
        typedef element vector __attribute__((vector_size(VECTOR)));                                                   \
        typedef element unaligned __attribute__((vector_size(VECTOR), aligned(1), may_alias));                         \
        vector rows[count], zipped[count];                                                                             \
        _Pragma("GCC unroll 16") for (int i = 0; i < count; i++) rows[i] =                                             \
            *(const unaligned *)(from + i * from_stride);                                                              \
        _Pragma("GCC unroll 4") for (int kernel = 1; kernel < count; kernel *= 2) {                                    \
            _Pragma("GCC unroll 8") for (int i = 0; i < count / 2; i++) {                                              \
                zipped[2 * i] = SHUFFLE(rows[i], rows[i + count / 2], LOW_##count);                                    \
                zipped[2 * i + 1] = SHUFFLE(rows[i], rows[i + count / 2], HIGH_##count);                               \
            }                                                                                                          \
            _Pragma("GCC unroll 16") for (int i = 0; i < count; i++) rows[i] = zipped[i];                              \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < count; i++) * (unaligned *)(to + i * to_stride) = rows[i];        \
    }

/* ---- Blocks of tiles --------------------------------------------------------------------------------------------- */

/* fill_<count>: transposes the block into `memory`, which is a buffer or its own destination. Remainders smaller than a
   tile are covered by a tile that overlaps the previous one; blocks smaller than a tile are copied element by
   element. */
#define FILL(element, count)                                                                                           \
    TILE(element, count)                                                                                               \
    static void fill_##count(void *memory, int64_t to_stride, const struct block *block) {                             \
        element *to = memory;                                                                                          \
        const element *from = (const void *)block->from;                                                               \
        int64_t stride = block->from_stride;                                                                           \
        int rows = block->rows, columns = block->columns;                                                              \
        if (rows < count || columns < count) {                                                                         \
            for (int i = 0; i < rows; i++)                                                                             \
                for (int j = 0; j < columns; j++)                                                                      \
                    to[i * to_stride + j] = from[j * stride + i];                                                      \
            return;                                                                                                    \
        }                                                                                                              \
        for (int j = 0; j < columns; j += count) {                                                                     \
            int left = j < columns - count ? j : columns - count;                                                      \
            for (int i = 0; i < rows; i += count) {                                                                    \
                int top = i < rows - count ? i : rows - count;                                                         \
                tile_##count(to + top * to_stride + left, to_stride, from + left * stride + top, stride);              \
            }                                                                                                          \
        }                                                                                                              \
    }

FILL(uint64_t, 2)
FILL(uint32_t, 4)
FILL(uint16_t, 8)
FILL(uint8_t, 16)

static void fill(void *to, int64_t to_stride, const struct block *block, int bytes) {
    if (bytes == 1)
        fill_16(to, to_stride, block);
    else if (bytes == 2)
        fill_8(to, to_stride, block);
    else if (bytes == 4)
        fill_4(to, to_stride, block);
    else
        fill_2(to, to_stride, block);
}

/* Bypasses the caches if the address is aligned: a line that is written completely need not be read first. */
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

/* Number of columns that start in the same line, if their distance is `step` bytes: one prefetch serves all of them. */
static int columns_of_line(int64_t step) { return step > 0 && step < LINE ? (int)(LINE / step) : 1; }

static void block_buffered(const struct block *block, int bytes) {
    _Alignas(LINE) char buffer[LINE * TRANSPOSE_BYTES];
    int step = columns_of_line(block->from_stride * bytes);
    for (int j = 0; j < block->columns; j += step)
        fetch_read(block, j, bytes);
    fill(buffer, TRANSPOSE_BYTES / bytes, block, bytes);
    for (int i = 0; i < block->rows; i++) {
        fetch_written(block, i, bytes);
        write_row(block->to + i * block->to_stride * bytes, buffer + i * TRANSPOSE_BYTES, block->columns * bytes,
                  block->is_large);
    }
}

/* ---- Blocks of whole cache lines in registers -------------------------------------------------------------------- */

/* Lines per row that a block reads and writes (log2), measured on a Xeon. */
static inline int block_shift(int bytes) { return bytes == 4 ? 2 : 1; }
static inline int block_lines(int bytes) { return 1 << block_shift(bytes); }

#if defined __x86_64__
#define WITH_AVX512 __attribute__((target("avx512f,avx512bw")))
#define INLINE static inline __attribute__((always_inline))

/* Volatile, so that it is loaded once: with few registers, the shuffles of both halves would load it twice. */
typedef volatile long long whole_line __attribute__((vector_size(LINE), aligned(1), may_alias));

/* Zips 4 / bytes lines, so that the 4 bytes of each column are adjacent; zipped[part] has four of every VECTOR / bytes
   columns, starting with the (4 * part)th. */
WITH_AVX512 INLINE void zip_lines(__m512i *zipped, const char *from, int64_t stride, int bytes) {
    __m512i line[4];
    for (int i = 0; i < 4 / bytes; i++)
        line[i] = (__m512i) * (const whole_line *)(from + i * stride);
    if (bytes == 4) {
        zipped[0] = line[0];
    } else if (bytes == 2) {
        zipped[0] = _mm512_unpacklo_epi16(line[0], line[1]);
        zipped[1] = _mm512_unpackhi_epi16(line[0], line[1]);
    } else {
        __m512i low[2] = {_mm512_unpacklo_epi8(line[0], line[1]), _mm512_unpacklo_epi8(line[2], line[3])};
        __m512i high[2] = {_mm512_unpackhi_epi8(line[0], line[1]), _mm512_unpackhi_epi8(line[2], line[3])};
        zipped[0] = _mm512_unpacklo_epi16(low[0], low[1]);
        zipped[1] = _mm512_unpackhi_epi16(low[0], low[1]);
        zipped[2] = _mm512_unpacklo_epi16(high[0], high[1]);
        zipped[3] = _mm512_unpackhi_epi16(high[0], high[1]);
    }
}

/* Memory that is prefetched while a square is transposed: one line for each line that it reads or writes, because more
   at a time would stall each other and the square. block_lines adjacent lines per row, of as few rows as possible. */
struct ahead {
    const char *read, *written;
};

/* Transposes a square of whole lines; strides in bytes. */
WITH_AVX512 INLINE void transpose_lines(char *to, int64_t to_stride, const char *from, int64_t from_stride, int bytes,
                                        struct ahead ahead) {
    int parts = 4 / bytes, lane = VECTOR / bytes, lines = block_lines(bytes);
    __m512i r[4][16];
    _Pragma("GCC unroll 16") for (int k = 0; k < 16; k++) {
        __m512i zipped[4];
        zip_lines(zipped, from + k * parts * from_stride, from_stride, bytes);
        for (int n = k * parts; n < (k + 1) * parts; n++)
            __builtin_prefetch(ahead.read + n / lines * from_stride + n % lines * LINE, 0, 2);
        _Pragma("GCC unroll 4") for (int part = 0; part < parts; part++) r[part][k] = zipped[part];
    }
    _Pragma("GCC unroll 4") for (int part = 0; part < parts; part++) {
        transpose16(r[part]);
        _Pragma("GCC unroll 16") for (int k = 0; k < 16; k++) {
            int n = part * 16 + k;
            __builtin_prefetch(ahead.written + n / lines * to_stride + n % lines * LINE, 1);
            _mm512_storeu_si512(to + (k / 4 * lane + 4 * part + k % 4) * to_stride, r[part][k]);
        }
    }
}

/* The code takes about 5 KB per element size. */
typedef void transpose_square(char *to, int64_t to_stride, const char *from, int64_t from_stride, struct ahead ahead);
#define TRANSPOSE_SQUARE(bytes)                                                                                        \
    WITH_AVX512 static void transpose_##bytes(char *to, int64_t to_stride, const char *from, int64_t from_stride,      \
                                              struct ahead ahead) {                                                    \
        transpose_lines(to, to_stride, from, from_stride, bytes, ahead);                                               \
    }
TRANSPOSE_SQUARE(1)
TRANSPOSE_SQUARE(2)
TRANSPOSE_SQUARE(4)

/* Returns a mask of `count` bytes, at most a line. */
INLINE uint64_t bytes_mask(int count) { return ~UINT64_C(0) >> (LINE - count); }

/* Transposes through buffers. This is for squares whose rows or columns wrap, so that part of each line is stored
   elsewhere, or whose stores bypass the caches. */
WITH_AVX512 static void transpose_buffered(char *to, const char *from, const struct block *block, bool has_rows,
                                           bool has_columns, bool is_streamed, int bytes, transpose_square *kernel,
                                           struct ahead ahead) {
    _Alignas(LINE) char read[LINE * LINE], written[LINE * LINE];
    int64_t to_stride = block->to_stride * bytes, from_stride = block->from_stride * bytes;
    int64_t rows_back = has_rows ? block->ring_rows : 0, columns_back = has_columns ? block->ring_columns : 0;
    int side = LINE / bytes, shift = block_shift(bytes), lines = (1 << shift) - 1, k = 0;
    int rows = has_rows ? side - block->wrapped_rows : side;
    int columns = has_columns ? side - block->wrapped_columns : side;
    __mmask64 mask = bytes_mask(rows * bytes);
    do {
        from -= k == columns ? columns_back * from_stride : 0;
        __m512i line = _mm512_maskz_loadu_epi8(mask, from);
        line = _mm512_mask_loadu_epi8(line, ~mask, from - rows_back * bytes);
        _mm512_store_si512(read + k * LINE, line);
        __builtin_prefetch(ahead.read + (k >> shift) * from_stride + (k & lines) * LINE, 0, 2);
        from += from_stride;
    } while (++k < side);
    kernel(written, LINE, read, LINE, (struct ahead){read, written});
    mask = bytes_mask(columns * bytes);
    for (int i = 0; i < side; i++, to += to_stride) {
        to -= i == rows ? rows_back * to_stride : 0;
        __m512i line = _mm512_load_si512(written + i * LINE);
        if (is_streamed) {
            _mm512_stream_si512((void *)to, line);
        } else {
            __builtin_prefetch(ahead.written + (i >> shift) * to_stride + (i & lines) * LINE, 1);
            _mm512_mask_storeu_epi8(to, mask, line);
            _mm512_mask_storeu_epi8(to - columns_back * bytes, ~mask, line);
        }
    }
}

/* The n-th share, of `rows` rows, of `count` rows that later squares read or write; `own` if there are fewer. */
static const char *fetch_share(const char *memory, int64_t stride, int count, int n, int rows, const char *own) {
    return n * rows < count ? memory + n * rows * stride : own;
}

/* Transposes squares along the written rows. Output is prefetched one row of squares ahead, so that it is still in L1;
   input is prefetched one block ahead. */
static void block_avx512(const struct block *block, int bytes) {
    int side = LINE / bytes, square = 0, share = side / block_lines(bytes);
    int64_t to_stride = block->to_stride * bytes, from_stride = block->from_stride * bytes;
    transpose_square *kernel = bytes == 1 ? transpose_1 : bytes == 2 ? transpose_2 : transpose_4;
    for (int i = 0; i < block->rows; i += side) {
        bool is_last = i + side >= block->rows;
        const char *written = is_last ? block->next_to : block->to + (i + side) * to_stride;
        int written_rows = block->is_large ? 0 : is_last ? block->next_rows : block->rows - i - side;
        for (int j = 0, nth = 0; j < block->columns; j += side, nth++, square++) {
            /* Remainders smaller than a square are covered by a square that overlaps the previous ones. */
            int top = i < block->rows - side ? i : block->rows - side;
            int left = j < block->columns - side ? j : block->columns - side;
            char *to = block->to + top * to_stride + left * bytes;
            const char *from = block->from + left * from_stride + top * bytes;
            struct ahead ahead = {fetch_share(block->next_from, from_stride, block->next_columns, square, share, from),
                                  fetch_share(written, to_stride, written_rows, nth, share, to)};
            bool has_rows = block->wrapped_rows && i + side >= block->rows;
            bool has_columns = block->wrapped_columns && j + side >= block->columns;
            bool is_streamed = block->is_large && !has_columns && ((uintptr_t)to | (uint64_t)to_stride) % LINE == 0;
            if (has_rows || has_columns || is_streamed)
                transpose_buffered(to, from, block, has_rows, has_columns, is_streamed, bytes, kernel, ahead);
            else
                kernel(to, to_stride, from, from_stride, ahead);
        }
    }
}
#endif

/* ---- Planes ------------------------------------------------------------------------------------------------------ */

static bool has_whole_lines(int bytes) {
#if defined __x86_64__
    return bytes <= 4 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
#else
    (void)bytes;
    return false;
#endif
}

static void transpose_block(const struct block *block, bool has_square, bool is_narrow, int bytes) {
#if defined __x86_64__
    if (has_square) {
        block_avx512(block, bytes);
        return;
    }
#endif
    (void)has_square;
    if (is_narrow)
        fill(block->to, block->to_stride, block, bytes);
    else
        block_buffered(block, bytes);
}

/* Address of an element of the plane. */
static char *address_to(const struct plane *p, int64_t i, int64_t j) {
    return p->to + (i * p->to_stride + j) * p->bytes;
}
static const char *address_from(const struct plane *p, int64_t i, int64_t j) {
    return p->from + (j * p->from_stride + i) * p->bytes;
}

/* The rows or columns of a plane in a strip, starting at `first`. Either the first block is shorter by `fewer`, so that
   the others start at cache lines, or the last `wrapped` elements are the first ones of the plane. */
struct range {
    int64_t first, count, fewer, wrapped;
};

/* End of a block that starts at `start`, with at most `most` elements. */
static int64_t block_end(const struct range *range, int64_t start, int64_t most) {
    return min64(start + most - (start ? 0 : range->fewer), range->count);
}

/* Range of a strip over `length` contiguous elements, `stride` from one row to the next. If all rows have the same
   offset in their cache lines and are long, blocks and strips start at cache lines. If the plane consists of whole
   lines, the elements before the first line boundary and after the last one together form a line: the range wraps. Such
   a square takes as long as two, so short rows are aligned only if they `must` be, as written ones are: unaligned reads
   cost AVX-512 less. */
static struct range find_range(const void *memory, int64_t stride, int64_t length, int bytes, bool wraps, bool must,
                               int64_t start, int64_t strip) {
    enum { WRAPPED_BYTES = 1024 };
    bool is_even = stride * bytes % LINE == 0 && length * bytes >= TRANSPOSE_BYTES;
    wraps = wraps && length * bytes >= WRAPPED_BYTES;
    int64_t head = is_even && (wraps || must) ? (int64_t)(-(uintptr_t)memory % LINE) / bytes : 0;
    if (wraps) {
        int64_t count = min64(strip, length - start);
        return (struct range){start + head, count, 0, start + count == length ? head : 0};
    }
    int64_t first = start ? min64(start + head, length) : 0;
    int64_t fewer = head && start == 0 ? LINE / bytes - head : 0;
    return (struct range){first, min64(start + strip + head, length) - first, fewer, 0};
}

void transpose(const struct plane *plane, bool is_rows, int64_t start, int64_t strip) {
    int bytes = plane->bytes;
    bool has_lines = has_whole_lines(bytes), wraps = has_lines && (plane->rows | plane->columns) * bytes % LINE == 0;
    struct range across = find_range(plane->from, plane->from_stride, plane->rows, bytes, wraps, !has_lines,
                                     is_rows ? start : 0, is_rows ? strip : plane->rows);
    struct range along = find_range(plane->to, plane->to_stride, plane->columns, bytes, wraps, true,
                                    is_rows ? 0 : start, is_rows ? plane->columns : strip);
    bool is_narrow = min64(across.count, along.count) * bytes < LINE, has_square = has_lines && !is_narrow;
    struct plane part = *plane;
    part.to = address_to(plane, across.first, along.first), part.from = address_from(plane, across.first, along.first);
    part.rows = across.count, part.columns = along.count;
    if (plane->next_to) {
        part.next_to = plane->next_to + (part.to - plane->to);
        part.next_from = plane->next_from + (part.from - plane->from);
    }
    /* Bytes per row that a block reads and writes; a buffer holds one line of each row that is read. */
    int read = has_square ? block_lines(bytes) * LINE : is_narrow ? NARROW_BYTES : LINE;
    int written = has_square ? read : is_narrow ? NARROW_BYTES : TRANSPOSE_BYTES;
    int64_t most_rows = read / bytes, most_columns = written / bytes;
    int64_t i_end = block_end(&across, 0, most_rows), j_end = block_end(&along, 0, most_columns);
    struct block block = {.next_to = part.to,
                          .next_from = part.from,
                          .to_stride = part.to_stride,
                          .from_stride = part.from_stride,
                          .next_rows = (int)i_end,
                          .next_columns = (int)j_end,
                          .ring_rows = plane->rows,
                          .ring_columns = plane->columns,
                          .is_large = part.is_large};
    int64_t i, j = 0;
    for (bool is_last = i_end <= 0 || j_end <= 0; !is_last;) {
        block.to = block.next_to, block.from = block.next_from;
        block.rows = block.next_rows, block.columns = block.next_columns;
        block.wrapped_rows = i_end == part.rows ? (int)across.wrapped : 0;
        block.wrapped_columns = j_end == part.columns ? (int)along.wrapped : 0;
        /* After the last row come the first ones of the next columns; after the plane's last block comes the next
           plane. */
        i = i_end < part.rows ? i_end : 0, j = i ? j : j_end;
        is_last = j == part.columns, j = is_last ? 0 : j;
        i_end = block_end(&across, i, most_rows), j_end = block_end(&along, j, most_columns);
        block.next_to = is_last ? part.next_to : address_to(&part, i, j);
        block.next_from = is_last ? part.next_from : address_from(&part, i, j);
        block.next_rows = block.next_to ? (int)(i_end - i) : 0;
        block.next_columns = block.next_to ? (int)(j_end - j) : 0;
        transpose_block(&block, has_square, is_narrow, bytes);
    }
#if defined __x86_64__
    if (part.is_large)
        _mm_sfence(); /* only this orders stores that bypass the caches */
#endif
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

typedef char line __attribute__((vector_size(LINE), aligned(1), may_alias));

/* Copies at least one line; the last one overlaps the previous one. */
static inline __attribute__((always_inline)) void copy_lines(char *to, const char *from, int64_t bytes) {
    int64_t i = 0;
    for (; i + 4 * LINE <= bytes; i += 4 * LINE) {
        line a = *(const line *)(from + i), b = *(const line *)(from + i + LINE);
        line c = *(const line *)(from + i + 2 * LINE), d = *(const line *)(from + i + 3 * LINE);
        *(line *)(to + i) = a;
        *(line *)(to + i + LINE) = b;
        *(line *)(to + i + 2 * LINE) = c;
        *(line *)(to + i + 3 * LINE) = d;
    }
    for (; i + LINE <= bytes; i += LINE)
        *(line *)(to + i) = *(const line *)(from + i);
    if (i < bytes)
        *(line *)(to + bytes - LINE) = *(const line *)(from + bytes - LINE);
}

/* Short scattered runs are prefetched, because the hardware detects no stream. */
WIDE void copy_runs(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t rows, int64_t bytes) {
    enum { AHEAD = 8, SHORT = 4 * LINE };
    bool is_apart = bytes <= SHORT && from_step != bytes;
    for (int64_t row = 0; row < rows; row++, to += to_step, from += from_step) {
        for (int64_t i = 0; i < bytes && is_apart; i += LINE)
            __builtin_prefetch(from + AHEAD * from_step + i);
        if (bytes >= LINE)
            copy_lines(to, from, bytes);
        else
            memmove(to, from, (size_t)bytes);
    }
}

/* ---- Every second element ---------------------------------------------------------------------------------------- */

#define SECOND(element)                                                                                                \
    WIDE static void second_##element(element *restrict to, const element *restrict from, int64_t count) {             \
        for (int64_t i = 0; i < count; i++)                                                                            \
            to[i] = from[2 * i];                                                                                       \
    }

SECOND(uint8_t)
SECOND(uint16_t)
SECOND(uint32_t)
SECOND(uint64_t)

void copy_second(void *to, const void *from, int64_t count, int bytes) {
    if (bytes == 1)
        second_uint8_t(to, from, count);
    else if (bytes == 2)
        second_uint16_t(to, from, count);
    else if (bytes == 4)
        second_uint32_t(to, from, count);
    else
        second_uint64_t(to, from, count);
}

/* ---- Few planes -------------------------------------------------------------------------------------------------- */

/* With a constant number of planes, the loops are vectorized. */
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
