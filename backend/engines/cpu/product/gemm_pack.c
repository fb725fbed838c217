/* SPDX-License-Identifier: Apache-2.0 */
/* Packs operands in memory into the panels of a product. This file must not know tensors or operations. */
#include "base/dtype.h"
#include "base/number.h"
#include "base/vectors.h"
#include "engines/cpu/core/transpose16.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/gemm.h"
#include "engines/cpu/product/gemm_amx.h"

#include <string.h>

enum {
    LINE = 64, /* bytes of a cache line */
    WORDS_OF_LINE = 16,
    STRIP = 64,  /* elements along the depth that are converted at once and stay in the L1 cache */
    FETCHED = 64 /* minimum elements of a converted row for which prefetching pays off */
};

typedef uint32_t word __attribute__((may_alias, aligned(1)));

/* The batch index is decomposed starting with its fastest dimension. */
int64_t gemm_index(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0) {
    int64_t index = first * matrix->stride + k0 * matrix->depth_stride;
    for (int i = matrix->batch_rank - 1; i >= 0; i--) {
        index += batch % matrix->batch_dims[i] * matrix->batch_strides[i];
        batch /= matrix->batch_dims[i];
    }
    return index;
}

const char *gemm_corner(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0) {
    return (const char *)matrix->base + dtype_bytes(matrix->type, gemm_index(matrix, batch, first, k0));
}

bool gemm_has_floats(const struct gemm_matrix *matrix) {
    return matrix->type == WEFT_DATA_FLOAT && (uintptr_t)matrix->base % sizeof(float) == 0;
}

/* Packs rows of words [count, depth] with pitch `ld` in bytes into a panel [depth, width]. Words may be misaligned.
   Prefetches the rows of the next blocks, of this panel or the next: rows are too short for the hardware to detect a
   stream. */
static void transpose_plain(void *panel, int width, const void *rows, int64_t ld, int count, int depth) {
    typedef float four __attribute__((vector_size(16), may_alias, aligned(1)));
    const char *from = rows;
    word *to = panel;
    int i = 0;
    /* Four rows at a time: with few rows, reads use different cache sets even if ld is a power of two. */
    for (; i + 4 <= count; i += 4, from += 4 * ld, to += 4) {
        /* Blocks of 4 x 4: two shuffles of each pair of rows turn four rows into four columns. */
        const word *row[4] = {(const word *)from, (const word *)(from + ld), (const word *)(from + 2 * ld),
                              (const word *)(from + 3 * ld)};
        int d = 0;
        for (; d + 4 <= depth; d += 4) {
            for (int r = 0; r < 4 && d % WORDS_OF_LINE == 0; r++)
                __builtin_prefetch(from + (r + 4) * ld + d * 4);
            four a = *(const four *)(row[0] + d), b = *(const four *)(row[1] + d);
            four c = *(const four *)(row[2] + d), e = *(const four *)(row[3] + d);
            four ab01 = SHUFFLE(a, b, 0, 4, 1, 5);
            four ab23 = SHUFFLE(a, b, 2, 6, 3, 7);
            four ce01 = SHUFFLE(c, e, 0, 4, 1, 5);
            four ce23 = SHUFFLE(c, e, 2, 6, 3, 7);
            word *column = to + (int64_t)d * width;
            *(four *)column = SHUFFLE(ab01, ce01, 0, 1, 4, 5);
            *(four *)(column + width) = SHUFFLE(ab01, ce01, 2, 3, 6, 7);
            *(four *)(column + 2 * width) = SHUFFLE(ab23, ce23, 0, 1, 4, 5);
            *(four *)(column + 3 * width) = SHUFFLE(ab23, ce23, 2, 3, 6, 7);
        }
        /* The loops below transpose the rest of k and then the remaining rows, at most three of each. */
        for (; d < depth; d++)
            for (int lane = 0; lane < 4; lane++)
                to[(int64_t)d * width + lane] = row[lane][d];
    }
    for (; i < count; i++, from += ld, to++)
        for (int d = 0; d < depth; d++)
            to[(int64_t)d * width] = ((const word *)from)[d];
}

#if defined __x86_64__
/* The same transposition in squares of 16 x 16 words, or of halves that become floats. One cache line of each row is
   read at once, so rows may share a cache set. Measured on a Xeon: prefetching the next rows takes 1.1 times as
   long. */
TRANSPOSE16_INLINE void transpose_squares(word *to, int width, const char *from, int64_t ld, int count, int depth,
                                          int bytes) {
    for (int i = 0; i < count; i += TRANSPOSE16, from += TRANSPOSE16 * ld, to += TRANSPOSE16) {
        int rows = (int)min64(TRANSPOSE16, count - i);
        for (int d = 0; d < depth; d += TRANSPOSE16) {
            int columns = (int)min64(TRANSPOSE16, depth - d);
            __m512i square[TRANSPOSE16];
            if (bytes == 2)
                transpose16_load_f16(square, from + d * bytes, ld, rows, columns);
            else
                transpose16_load(square, from + d * bytes, ld, rows, columns);
            transpose16(square);
            transpose16_store((char *)(to + (int64_t)d * width), 4 * (int64_t)width, square, columns, rows);
        }
    }
}

TRANSPOSE16_TARGET static void transpose_words(void *panel, int width, const void *rows, int64_t ld, int count,
                                               int depth) {
    transpose_squares(panel, width, rows, ld, count, depth, 4);
}

TRANSPOSE16_TARGET static void transpose_halves(void *panel, int width, const void *rows, int64_t ld, int count,
                                                int depth) {
    transpose_squares(panel, width, rows, ld, count, depth, 2);
}
#else
static bool has_transpose16(void) { return false; }
#define transpose_words transpose_plain
#define transpose_halves transpose_plain
#endif

void gemm_transpose(void *panel, int width, const void *rows, int64_t ld, int count, int depth) {
    if (has_transpose16())
        transpose_words(panel, width, rows, ld, count, depth);
    else
        transpose_plain(panel, width, rows, ld, count, depth);
}

/* A matrix whose rows (of A; columns of B) are contiguous along the depth. A single one already is a panel. */
static void pack_contiguous_depth(const struct gemm_matrix *matrix, float *panel, int width, int64_t index, int count,
                                  int depth) {
    if (width == 1) {
        dtype_to_f32(panel, matrix->type, matrix->base, index, depth);
        return;
    }
    if (gemm_has_floats(matrix)) {
        gemm_transpose(panel, width, (const float *)matrix->base + index, matrix->stride * (int64_t)sizeof(float),
                       count, depth);
        return;
    }
    if (matrix->type == WEFT_DATA_HALF && has_transpose16()) {
        const char *rows = (const char *)matrix->base + 2 * index;
        transpose_halves(panel, width, rows, 2 * matrix->stride, count, depth);
        return;
    }
    /* Converts as many rows at a time as a square has, while the next ones are prefetched. */
    float strip[TRANSPOSE16][STRIP];
    int64_t ahead = dtype_bytes(matrix->type, TRANSPOSE16 * matrix->stride);
    for (int i = 0; i < count; i += TRANSPOSE16, index += TRANSPOSE16 * matrix->stride) {
        int rows = (int)min64(TRANSPOSE16, count - i);
        for (int d = 0; d < depth; d += STRIP) {
            int depths = (int)min64(STRIP, depth - d);
            int64_t bytes = depths < FETCHED ? 0 : dtype_bytes(matrix->type, depths);
            for (int j = 0; j < rows; j++) {
                int64_t at = index + j * matrix->stride + d;
                const char *row = (const char *)matrix->base + (bytes ? dtype_bytes(matrix->type, at) + ahead : 0);
                for (int64_t line = 0; line < bytes; line += LINE)
                    __builtin_prefetch(row + line, 0, 2);
                dtype_to_f32(strip[j], matrix->type, matrix->base, at, depths);
            }
            gemm_transpose(panel + (int64_t)d * width + i, width, strip, sizeof strip[0], rows, depths);
        }
    }
}

/* Converts a few adjacent BFLOAT16 numbers; a function call would cost more. */
static void widen(void *floats, const void *halves, int count) {
    typedef uint16_t half __attribute__((may_alias, aligned(1)));
    for (int i = 0; i < count; i++)
        ((word *)floats)[i] = (uint32_t)((const half *)halves)[i] << 16;
}

/* Rows of the panel are contiguous in memory. They are short and on separate pages, so the hardware detects no stream:
   the rows of the next panel are prefetched meanwhile, at the end of their lines, because rows are not aligned. */
static void copy_rows(float *panel, int width, const float *from, int64_t ld, int count, int depth) {
    for (int d = 0; d < depth; d++, from += ld, panel += width) {
        for (int i = WORDS_OF_LINE - 1; i < WORDS_OF_LINE - 1 + count; i += WORDS_OF_LINE)
            __builtin_prefetch(from + width + i, 0, 2);
        memcpy(panel, from, (size_t)count * sizeof *panel);
    }
}

void gemm_pack_matrix(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                      int depth) {
    const struct gemm_matrix *matrix = source;
    int64_t index = gemm_index(matrix, batch, first, k0);
    float *dst = panel;
    /* Depth is fastest in memory: rows are transposed into the panel. */
    if (matrix->depth_stride == 1) {
        pack_contiguous_depth(matrix, dst, width, index, count, depth);
        return;
    }
    if (matrix->stride == 1 && gemm_has_floats(matrix)) {
        copy_rows(dst, width, (const float *)matrix->base + index, matrix->depth_stride, count, depth);
        return;
    }
    for (int d = 0; d < depth; d++, index += matrix->depth_stride, dst += width) {
        /* One k at a time: a row of the panel is `width` contiguous elements along the other index. */
        if (gemm_has_floats(matrix)) {
            const float *src = (const float *)matrix->base + index;
            for (int i = 0; i < count; i++)
                dst[i] = src[i * matrix->stride];
        } else if (matrix->stride == 1 && matrix->type == WEFT_DATA_BFLOAT16) {
            widen(dst, (const char *)matrix->base + 2 * index, count);
        } else if (matrix->stride == 1) {
            dtype_to_f32(dst, matrix->type, matrix->base, index, count);
        } else {
            for (int i = 0; i < count; i++)
                dtype_to_f32(dst + i, matrix->type, matrix->base, index + i * matrix->stride, 1);
        }
    }
}

/* Element by element: products in double are rare, and conversion is exact for any type. */
static void pack_matrix_double(const void *source, void *panel, int width, int64_t batch, int64_t first, int count,
                               int64_t k0, int depth) {
    const struct gemm_matrix *matrix = source;
    int64_t index = gemm_index(matrix, batch, first, k0);
    double *dst = panel;
    for (int d = 0; d < depth; d++, index += matrix->depth_stride, dst += width)
        for (int i = 0; i < count; i++)
            dst[i] = dtype_load(matrix->type, matrix->base, index + i * matrix->stride);
}

/* ---- Groups ---- */

/* Elements of `bytes` bytes that are adjacent along the depth and contiguous in memory: whole groups are 4-byte words;
   the last group may have fewer elements. */
static void pack_runs(const struct gemm_matrix *matrix, const char *corner, uint32_t *panel, int width, int count,
                      int depth, int bytes) {
    int words = depth * bytes / 4, rest = depth * bytes % 4;
    gemm_transpose(panel, width, corner, matrix->stride * bytes, count, words);
    for (int i = 0; i < count && rest; i++)
        memcpy(panel + (int64_t)words * width + i, corner + i * matrix->stride * bytes + 4 * words, (size_t)rest);
}

typedef uint8_t bytes16 __attribute__((vector_size(16), may_alias, aligned(1)));
typedef uint16_t halves8 __attribute__((vector_size(16), may_alias, aligned(1)));

/* Combines two rows along the depth into pairs: low and high halves. */
static void join_pairs(uint32_t *pairs, const void *low_row, const void *high_row, int count) {
    typedef uint16_t half __attribute__((may_alias, aligned(1)));
    const half *low = low_row, *high = high_row;
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        halves8 a = *(const halves8 *)(low + i), b = *(const halves8 *)(high + i);
        *(halves8 *)(pairs + i) = SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        *(halves8 *)(pairs + i + 4) = SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (; i < count; i++)
        pairs[i] = low[i] | (uint32_t)high[i] << 16;
}

/* Interleaves the bytes of two rows into the low and high halves of each item of `pairs`. */
static inline __attribute__((always_inline)) void join_bytes(halves8 *pairs, const uint8_t *low, const uint8_t *high) {
    bytes16 a = *(const bytes16 *)low, b = *(const bytes16 *)high;
    pairs[0] = (halves8)SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    pairs[1] = (halves8)SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Combines a byte of each of four rows along the depth. */
static void join_fours(uint32_t *fours, const uint8_t *row, int64_t step, int count) {
    const uint8_t *rows[4] = {row, row + step, row + 2 * step, row + 3 * step};
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        halves8 low[2], high[2];
        join_bytes(low, rows[0] + i, rows[1] + i);
        join_bytes(high, rows[2] + i, rows[3] + i);
        for (int j = 0; j < 2; j++) {
            halves8 *to = (halves8 *)(fours + i + j * 8);
            to[0] = SHUFFLE(low[j], high[j], 0, 8, 1, 9, 2, 10, 3, 11);
            to[1] = SHUFFLE(low[j], high[j], 4, 12, 5, 13, 6, 14, 7, 15);
        }
    }
    for (; i < count; i++)
        fours[i] = rows[0][i] | (uint32_t)rows[1][i] << 8 | (uint32_t)rows[2][i] << 16 | (uint32_t)rows[3][i] << 24;
}

/* Packs element by element; the inner loop is the one with the smaller stride. Inlined for each size, which is then a
   constant. */
static inline __attribute__((always_inline)) void scatter(const struct gemm_matrix *matrix, const char *corner,
                                                          char *panel, int width, int count, int depth, int bytes) {
    int group = 4 / bytes;
    bool is_by_depth = matrix->depth_stride > matrix->stride;
    int outer = is_by_depth ? depth : count, inner = is_by_depth ? count : depth;
    for (int o = 0; o < outer; o++)
        for (int k = 0; k < inner; k++) {
            int i = is_by_depth ? k : o, d = is_by_depth ? o : k;
            memcpy(panel + ((int64_t)(d / group) * width + i) * 4 + d % group * bytes,
                   corner + (i * matrix->stride + d * matrix->depth_stride) * bytes, (size_t)bytes);
        }
}

static void pack_scattered(const struct gemm_matrix *matrix, const char *corner, char *panel, int width, int count,
                           int depth, int bytes) {
    if (bytes == 2)
        scatter(matrix, corner, panel, width, count, depth, 2);
    else
        scatter(matrix, corner, panel, width, count, depth, 1);
}

/* Packs a matrix that is strided along the depth and contiguous along the other index. Rows are prefetched, because
   each has only few bytes. */
static void pack_rows(const struct gemm_matrix *matrix, const char *corner, uint32_t *panel, int width, int count,
                      int depth, int bytes) {
    enum { AHEAD = 16 };
    int group = 4 / bytes, d = 0;
    int64_t step = matrix->depth_stride * bytes;
    for (; d + group <= depth; d += group, panel += width, corner += group * step) {
        for (int i = 0; i < group; i++)
            __builtin_prefetch(corner + (AHEAD + i) * step);
        if (bytes == 2)
            join_pairs(panel, corner, corner + step, count);
        else
            join_fours(panel, (const uint8_t *)corner, step, count);
    }
    pack_scattered(matrix, corner, (char *)panel, width, count, depth - d, bytes);
}

/* Packs elements of a type that needs no conversion in groups of 4 bytes. */
static void pack_groups(const struct gemm_matrix *matrix, void *panel, int width, int64_t batch, int64_t first,
                        int count, int64_t k0, int depth) {
    const char *corner = gemm_corner(matrix, batch, first, k0);
    int bytes = (int)dtype_bytes(matrix->type, 1);
    if (matrix->depth_stride == 1)
        pack_runs(matrix, corner, panel, width, count, depth, bytes);
    else if (matrix->stride == 1)
        pack_rows(matrix, corner, panel, width, count, depth, bytes);
    else
        pack_scattered(matrix, corner, panel, width, count, depth, bytes);
}

static void pack_bytes_b(const void *source, void *panel, int width, int64_t batch, int64_t first, int count,
                         int64_t k0, int depth) {
    pack_groups(source, panel, width, batch, first, count, k0, depth);
}

/* Adds 128 by flipping the sign bit. */
static void flip_signs(uint32_t *fours, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        fours[i] ^= 0x80808080;
}

static void pack_bytes_a(const void *source, void *panel, int width, int64_t batch, int64_t first, int count,
                         int64_t k0, int depth) {
    pack_groups(source, panel, width, batch, first, count, k0, depth);
    flip_signs(panel, divide_up(depth, 4) * width);
}

static void pack_pairs(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                       int depth) {
    const struct gemm_matrix *matrix = source;
    if (matrix->type == WEFT_DATA_BFLOAT16)
        pack_groups(matrix, panel, width, batch, first, count, k0, depth);
    else
        gemm_pack_halved(gemm_pack_matrix, source, panel, width, batch, first, count, k0, depth);
}

/* Takes the upper halves of rows of floats and combines two adjacent rows into one row of pairs. */
WIDE static void halve(uint32_t *restrict pairs, const float *restrict rows, int width, int count, int depth) {
    for (int d = 0; d < depth; d += 2, pairs += width, rows += 2 * width) {
        const word *low = (const word *)rows, *high = low + width;
        for (int i = 0; i < count; i++)
            pairs[i] = low[i] >> 16 | (high[i] & 0xffff0000);
    }
}

/* A short part of the depth at a time, which stays in the L1 cache. */
void gemm_pack_halved(gemm_pack *pack, const void *source, void *panel, int width, int64_t batch, int64_t first,
                      int count, int64_t k0, int depth) {
    float strip[STRIP * GEMM_WIDTH];
    uint32_t *pairs = panel;
    for (int d = 0; d < depth; d += STRIP, pairs += STRIP / 2 * width) {
        int rows = (int)min64(STRIP, depth - d);
        /* Clears the missing second row of the last pair. */
        if (rows % 2)
            memset(strip + rows * width, 0, (size_t)width * sizeof *strip);
        pack(source, strip, width, batch, first, count, k0 + d, rows);
        halve(pairs, strip, width, count, rows);
    }
}

/* ---- Long groups ---- */

/* Packs some groups of B at a time, as rows of words, and transposes them; group: the group size of A. */
static void pack_grouped(int group, gemm_pack *pack, const void *source, void *panel, int width, int64_t batch,
                         int64_t first, int count, int64_t k0, int depth) {
    uint32_t strip[AMX_GROUPS * GEMM_WIDTH];
    char *to = panel;
    for (int d = 0; d < depth; d += group, to += (int64_t)width * LINE) {
        if (depth - d < group)
            memset(strip, 0, sizeof strip);
        pack(source, strip, width, batch, first, count, k0 + d, (int)min64(group, depth - d));
        gemm_transpose(to, AMX_GROUPS, strip, 4 * (int64_t)width, AMX_GROUPS, count);
    }
}

void gemm_pack_grouped(gemm_pack *pack, const void *source, void *panel, int width, int64_t batch, int64_t first,
                       int count, int64_t k0, int depth) {
    pack_grouped(LINE / 2, pack, source, panel, width, batch, first, count, k0, depth);
}

/* Copies rows that are contiguous along the depth, in cache lines. Prefetches the next rows, because each has only few
   lines. */
static void pack_lines(const struct gemm_matrix *matrix, void *panel, int width, int64_t batch, int64_t first,
                       int count, int64_t k0, int depth) {
    const char *from = gemm_corner(matrix, batch, first, k0);
    int64_t bytes = dtype_bytes(matrix->type, depth), step = dtype_bytes(matrix->type, matrix->stride);
    char *to = panel;
    for (int i = 0; i < count; i++, from += step, to += LINE) {
        int64_t b = 0;
        for (; b + LINE <= bytes; b += LINE) {
            __builtin_prefetch(from + step + b);
            memcpy(to + b * width, from + b, LINE);
        }
        memcpy(to + b * width, from + b, (size_t)(bytes - b));
    }
}

static void pack_pairs_grouped(const void *source, void *panel, int width, int64_t batch, int64_t first, int count,
                               int64_t k0, int depth) {
    const struct gemm_matrix *matrix = source;
    if (matrix->type == WEFT_DATA_BFLOAT16 && matrix->depth_stride == 1)
        pack_lines(matrix, panel, width, batch, first, count, k0, depth);
    else
        gemm_pack_grouped(pack_pairs, source, panel, width, batch, first, count, k0, depth);
}

static void pack_bytes_grouped(const void *source, void *panel, int width, int64_t batch, int64_t first, int count,
                               int64_t k0, int depth) {
    const struct gemm_matrix *matrix = source;
    if (matrix->depth_stride == 1)
        pack_lines(matrix, panel, width, batch, first, count, k0, depth);
    else
        pack_grouped(LINE, pack_bytes_b, source, panel, width, batch, first, count, k0, depth);
}

/* ---- Choosing a pack function ---- */

gemm_pack *gemm_pack_of_a(const struct gemm_kernel *kernel) {
    bool is_grouped = kernel->group_a > kernel->group_b;
    switch (kernel->factors) {
    case WEFT_DATA_DOUBLE:
        return pack_matrix_double;
    case WEFT_DATA_BFLOAT16:
        return is_grouped ? pack_pairs_grouped : pack_pairs;
    case WEFT_DATA_INT8:
        return is_grouped ? pack_bytes_grouped : pack_bytes_a;
    default:
        return gemm_pack_matrix;
    }
}

/* Bytes keep their signs; everything else is packed as for A with short groups. */
gemm_pack *gemm_pack_of_b(const struct gemm_kernel *kernel) {
    if (kernel->factors == WEFT_DATA_INT8)
        return pack_bytes_b;
    return kernel->factors == WEFT_DATA_BFLOAT16 ? pack_pairs : gemm_pack_of_a(kernel);
}
