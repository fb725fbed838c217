/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes are widened by conversion instructions; 4-bit numbers are looked up in a register that contains all sixteen
   values of the type. */
#include "engines/cpu/product/low_bits.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/vector.h"

#include <string.h>

enum { LANES = LOW_BITS_GROUP / 2, LINE = 64 }; /* LINE: in bytes */

static bool are_nibbles(weftDataType_t type) { return dtype_of(type)->bits == 4; }

/* Within a group of nibbles, the lower ones come first, then the upper ones. */
void low_bits_arrange(weftDataType_t type, float *row, int64_t depth) {
    float group[LOW_BITS_GROUP];
    for (int64_t d = 0; d < depth && are_nibbles(type); d += LOW_BITS_GROUP) {
        for (int i = 0; i < LOW_BITS_GROUP; i++)
            group[i % 2 * LANES + i / 2] = row[d + i];
        memcpy(row + d, group, sizeof group);
    }
}

#if defined __x86_64__
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f")))
#define INLINE AVX512 static inline __attribute__((always_inline))

/* A loop with a constant count, so that the arrays it indexes stay in registers. */
#define EACH(i, count) _Pragma("GCC unroll 4") for (int i = 0; i < (count); i++)

enum kind { SIGNED_BYTES, UNSIGNED_BYTES, NIBBLES };

static enum kind kind_of(weftDataType_t type) {
    return are_nibbles(type) ? NIBBLES : type == WEFT_DATA_INT8 ? SIGNED_BYTES : UNSIGNED_BYTES;
}

bool low_bits_supports(weftDataType_t type) {
    bool is_known = type == WEFT_DATA_INT8 || type == WEFT_DATA_UINT8 || type == WEFT_DATA_INT4 ||
                    type == WEFT_DATA_UINT4 || type == WEFT_DATA_FP4_E2M1;
    return is_known && __builtin_cpu_supports("avx512f");
}

INLINE __m128i load_bytes(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)(const void *)at); }

/* Widens a group of numbers of a column, starting at depth d. */
INLINE void widen(enum kind kind, __m512 *numbers, const uint8_t *column, int64_t d, __m512 table) {
    if (kind == NIBBLES) {
        /* Only the lower four bits of each index are used. */
        __m512i bytes = _mm512_cvtepu8_epi32(load_bytes(column + d / 2));
        numbers[0] = _mm512_permutexvar_ps(bytes, table);
        numbers[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
        return;
    }
    for (int i = 0; i < 2; i++) {
        __m128i bytes = load_bytes(column + d + i * LANES);
        numbers[i] =
            _mm512_cvtepi32_ps(kind == SIGNED_BYTES ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
    }
}

/* Multiplies `height` rows and `width` columns, and prefetches the columns after these, line by line. */
INLINE void add_columns(int height, int width, enum kind kind, const struct low_bits *few, const uint8_t *const *column,
                        const float *const *row, const float *scales, __m512 table, float *sums, int64_t sum_ld) {
    const int64_t ahead = width * few->column_bytes, line = kind == NIBBLES ? 2 * LINE : LINE;
    __m512 totals[4][4];
    EACH(i, height) EACH(j, width) totals[i][j] = _mm512_setzero_ps();
    for (int64_t first = 0; first < few->depth; first += few->block, scales += few->scale_ld) {
        int64_t end = min64(first + few->block, few->depth);
        __m512 sum[4][4];
        EACH(i, height) EACH(j, width) sum[i][j] = _mm512_setzero_ps();
        for (int64_t d = first; d < end; d += LOW_BITS_GROUP) {
            for (int j = 0; j < width && d % line == 0; j++)
                __builtin_prefetch(column[j] + ahead + d * LINE / line, 0, 2);
            EACH(j, width) {
                __m512 numbers[2];
                widen(kind, numbers, column[j], d, table);
                EACH(i, height) {
                    sum[i][j] = _mm512_fmadd_ps(numbers[0], _mm512_loadu_ps(row[i] + d), sum[i][j]);
                    sum[i][j] = _mm512_fmadd_ps(numbers[1], _mm512_loadu_ps(row[i] + d + LANES), sum[i][j]);
                }
            }
        }
        EACH(i, height)
        EACH(j, width) totals[i][j] = _mm512_fmadd_ps(_mm512_set1_ps(scales[j]), sum[i][j], totals[i][j]);
    }
    EACH(i, height) EACH(j, width) sums[i * sum_ld + j] += _mm512_reduce_add_ps(totals[i][j]);
}

/* More rows leave registers for fewer columns. */
INLINE void add_some(enum kind kind, const struct low_bits *few, int count, const uint8_t *const *column,
                     const float *const *row, const float *scales, __m512 table, float *sums, int64_t sum_ld) {
    if (count == 1)
        add_columns(1, 4, kind, few, column, row, scales, table, sums, sum_ld);
    else if (count == 2)
        add_columns(2, 4, kind, few, column, row, scales, table, sums, sum_ld);
    else
        for (int j = 0; j < LOW_BITS_COLUMNS; j += 2)
            add_columns(4, 2, kind, few, column + j, row, scales + j, table, sums + j, sum_ld);
}

AVX512 void low_bits_dots(const struct low_bits *few, int columns, const float *rows, int64_t row_ld, int count,
                          float *sums, int64_t sum_ld) {
    enum kind kind = kind_of(few->type);
    const float *row[LOW_BITS_ROWS];
    float codes[LANES] = {0};
    for (int i = 0; i < LOW_BITS_ROWS; i++)
        row[i] = rows + (i < count ? i : count - 1) * row_ld;
    for (int i = 0; i < LANES && kind == NIBBLES; i++) {
        uint8_t code = (uint8_t)i;
        dtype_to_f32(codes + i, few->type, &code, 0, 1);
    }
    __m512 table = _mm512_loadu_ps(codes);
    for (int j = 0; j < columns; j += LOW_BITS_COLUMNS) {
        const uint8_t *column[LOW_BITS_COLUMNS];
        for (int i = 0; i < LOW_BITS_COLUMNS; i++)
            column[i] = (const uint8_t *)few->numbers + min64(j + i, columns - 1) * few->column_bytes;
        if (kind == NIBBLES)
            add_some(NIBBLES, few, count, column, row, few->scales + j, table, sums + j, sum_ld);
        else if (kind == SIGNED_BYTES)
            add_some(SIGNED_BYTES, few, count, column, row, few->scales + j, table, sums + j, sum_ld);
        else
            add_some(UNSIGNED_BYTES, few, count, column, row, few->scales + j, table, sums + j, sum_ld);
    }
}
#else
bool low_bits_supports(weftDataType_t type) { return (void)type, false; }

void low_bits_dots(const struct low_bits *few, int columns, const float *rows, int64_t row_ld, int count, float *sums,
                   int64_t sum_ld) {
    (void)few, (void)columns, (void)rows, (void)row_ld, (void)count, (void)sums, (void)sum_ld;
}
#endif
