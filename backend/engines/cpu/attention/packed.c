/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/attention/packed.h"

#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/gemm_amx.h"

#include <string.h>

enum { LINE_WORDS = PACKED / 2 };

/* User memory may be misaligned. */
typedef const uint16_t half __attribute__((may_alias, aligned(1)));

/* ---- Left factors ------------------------------------------------------------------------------------------------ */

void packed_rows(const struct rows *rows, int64_t row, int64_t count, int64_t depth, uint32_t *to) {
    const int64_t lines = packed_size(depth) / PACKED, panel = lines * PACKED * LINE_WORDS;
    const int64_t full = depth / PACKED, rest = depth % PACKED;
    for (int64_t i = 0; i < packed_size(count); i++) {
        uint32_t *line = to + i / PACKED * panel + i % PACKED * LINE_WORDS;
        half *from = i < count ? rows_at(rows, row + i) : NULL;
        for (int64_t j = 0; j < lines; j++, line += PACKED * LINE_WORDS) {
            if (!from || j == full)
                memset(line, 0, PACKED * sizeof *from);
            if (from)
                memcpy(line, from + j * PACKED, (size_t)(j < full ? PACKED : rest) * sizeof *from);
        }
    }
}

/* Pairs up the elements of two rows, at most PACKED of them. Missing elements are 0. */
WIDE static void join_rows(half *restrict low, half *restrict high, int64_t count, uint32_t *restrict pairs) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        pairs[i] = low[i] | (uint32_t)high[i] << 16;
    for (int64_t i = count; i < PACKED; i++)
        pairs[i] = 0;
}

WIDE static bool has_wild(const uint32_t *pairs, int64_t count) {
    uint32_t nonfinite = 0;
    for (int64_t i = 0; i < count; i++)
        nonfinite |= ((pairs[i] & 0x7f80) == 0x7f80) | ((pairs[i] & 0x7f800000) == 0x7f800000);
    return nonfinite;
}

bool packed_columns(const struct rows *rows, int64_t row, int64_t count, int64_t depth, uint32_t *to) {
    static const uint16_t zeros[PACKED];
    const int64_t lines = packed_size(count) / PACKED;
    uint32_t pairs[LINE_WORDS * PACKED];
    struct gemm_matrix matrix = {.base = pairs, .type = WEFT_DATA_FLOAT, .stride = PACKED, .depth_stride = 1};
    bool has_nonfinite = false;
    for (int64_t j = 0; j < lines; j++)
        for (int64_t d = 0; d < depth; d += PACKED) {
            int64_t columns = depth - d < PACKED ? depth - d : PACKED;
            for (int64_t p = 0; p < LINE_WORDS; p++) {
                int64_t i = j * PACKED + 2 * p;
                half *low = i < count ? rows_at(rows, row + i) : NULL;
                half *high = i + 1 < count ? rows_at(rows, row + i + 1) : NULL;
                join_rows(low ? low + d : zeros, high ? high + d : zeros, columns, pairs + p * PACKED);
            }
            has_nonfinite = has_nonfinite || has_wild(pairs, LINE_WORDS * PACKED);
            /* Words are moved as if they were floats. */
            gemm_pack_matrix(&matrix, to + (d * lines + j * PACKED) * LINE_WORDS, LINE_WORDS, 0, 0, LINE_WORDS, 0,
                             PACKED);
        }
    return has_nonfinite;
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

#if HAS_AMX
#include <immintrin.h>

_Static_assert((int)PACKED == (int)AMX_BLOCK && (int)PANEL == (int)AMX_BLOCK, "a block of C is PACKED x PANEL");

bool packed_runs(void) { return cpu_runs("amx-bf16"); }
void packed_begin(void) { amx_begin(); }
void packed_end(void) { amx_end(); }

/* Converts two vectors to one vector of pairs. */
__attribute__((target("avx512bf16,avx512bw"))) static inline __m512i pair(__m512 low, __m512 high, __m512i order) {
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

__attribute__((target("avx512bf16,avx512bw"))) void packed_pairs(const float *columns, int64_t depth, uint32_t *to) {
    int16_t indices[PACKED]; /* 0, 16, 1, 17, ...: interleaves the lower and the upper half */
    for (int i = 0; i < PACKED; i++)
        indices[i] = (int16_t)(i / 2 + i % 2 * 16);
    const __m512i order = _mm512_loadu_si512(indices);
    for (int64_t d = 0; d < packed_size(depth); d += 2, columns += 2 * PANEL)
        for (int i = 0; i < PANEL; i += 16, to += 16) {
            __m512 low = d < depth ? _mm512_loadu_ps(columns + i) : _mm512_setzero_ps();
            __m512 high = d + 1 < depth ? _mm512_loadu_ps(columns + PANEL + i) : _mm512_setzero_ps();
            _mm512_storeu_si512(to, pair(low, high, order));
        }
}

void packed_product(int64_t m, int64_t depth, const uint32_t *a, const uint32_t *b, float *c, bool adds) {
    const int64_t groups = packed_size(depth) / 2;
    for (; m > 0; m -= PACKED, a += PACKED * groups, c += PACKED * PANEL)
        amx_multiply_bf16(groups, a, b, c, PANEL, !adds);
}
#else
bool packed_runs(void) { return false; }
void packed_begin(void) {}
void packed_end(void) {}
void packed_pairs(const float *columns, int64_t depth, uint32_t *to) { (void)columns, (void)depth, (void)to; }
void packed_product(int64_t m, int64_t depth, const uint32_t *a, const uint32_t *b, float *c, bool adds) {
    (void)m, (void)depth, (void)a, (void)b, (void)c, (void)adds;
}
#endif
