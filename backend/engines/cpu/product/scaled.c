/* SPDX-License-Identifier: Apache-2.0 */
/* Packing numbers of few bits times their blocks' scales. */
#include "engines/cpu/product/scaled.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/vector.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { WORD = 32 /* bits */, ROUNDED = 1024 /* elements that are rounded at a time */ };

/* ---- Scales ------------------------------------------------------------------------------------------------------ */

/* Of `count` neighbours at a depth, each that of its block; 0 beyond. */
static void load_scales(const struct scaled *s, float *scales, int width, int64_t batch, int64_t first, int count,
                        int64_t depth) {
    int64_t depth_block = depth / s->depth_block;
    memset(scales, 0, (size_t)width * sizeof *scales);
    if (s->block == 1)
        gemm_pack_matrix(&s->scales, scales, width, batch, first, count, depth_block, 1);
    for (int64_t i = 0, end; i < count && s->block > 1; i = end) {
        int64_t block = (first + i) / s->block;
        end = min64((block + 1) * s->block - first, count);
        gemm_pack_matrix(&s->scales, scales + i, width, batch, block, 1, depth_block, 1);
        for (int64_t j = i + 1; j < end; j++)
            scales[j] = scales[i];
    }
    for (int i = 0; i < count; i++)
        scales[i] *= s->sign;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/* Calls a function whose first argument is the width of a panel: the usual ones are constants, as rows are short. */
#define OF_WIDTH(function, ...)                                                                                        \
    (width == 32 ? function(32, __VA_ARGS__) : width == 16 ? function(16, __VA_ARGS__) : function(width, __VA_ARGS__))

/* Words of whole numbers at neighbouring depths, [depth * bits / WORD, width], to the panel's rows. A mask of all ones
   leaves numbers their sign. */
INLINE void expand_rows(int width, float *restrict panel, const uint32_t *restrict words, const float *restrict scales,
                        int depth, int bits, int32_t mask) {
    for (int d = 0; d < depth; d += WORD / bits, words += width)
        for (int last = WORD - bits; last >= 0; last -= bits, panel += width)
            for (int i = 0; i < width; i++)
                panel[i] = (float)((int32_t)(words[i] << last) >> (WORD - bits) & mask) * scales[i];
}

WIDE static void expand(float *panel, const uint32_t *words, const float *scales, int width, int depth, int bits,
                        int32_t mask) {
    if (bits == 4)
        OF_WIDTH(expand_rows, panel, words, scales, depth, 4, mask);
    else
        OF_WIDTH(expand_rows, panel, words, scales, depth, 8, mask);
}

/* Bytes of words at neighbouring depths, to rows of them. */
INLINE void split_rows(int width, uint8_t *restrict bytes, const uint32_t *restrict words, int depth) {
    for (int d = 0; d < depth; d += WORD / 8, words += width)
        for (int first = 0; first < WORD; first += 8, bytes += width)
            for (int i = 0; i < width; i++)
                bytes[i] = (uint8_t)(words[i] >> first);
}

WIDE static void split(uint8_t *bytes, const uint32_t *words, int width, int depth) {
    OF_WIDTH(split_rows, bytes, words, depth);
}

INLINE void multiply_rows(int width, float *restrict panel, const float *restrict scales, int depth) {
    for (int d = 0; d < depth; d++, panel += width)
        for (int i = 0; i < width; i++)
            panel[i] *= scales[i];
}

WIDE static void multiply(float *panel, const float *scales, int width, int depth) {
    OF_WIDTH(multiply_rows, panel, scales, depth);
}

/* Whether words can be read from an element on: its neighbours along the depth lie together, from a whole byte on. */
static bool has_words(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0) {
    bool are_bytes = dtype_of(matrix->type)->bits == 8;
    bool are_halves = matrix->stride % 2 == 0 && gemm_index(matrix, batch, first, k0) % 2 == 0;
    return matrix->depth_stride == 1 && (are_bytes || (are_halves && matrix->type != WEFT_DATA_FP4_E2M1));
}

/* Neighbours along the depth go into the panel's order as words, before they are floats: that takes a quarter of the
   shuffles, or an eighth. Returns how many depths are done, in whole words. */
static int pack_words(const struct scaled *s, float *panel, const float *scales, int width, int64_t batch,
                      int64_t first, int count, int64_t k0, int depth) {
    const struct dtype *type = dtype_of(s->matrix.type);
    uint32_t words[GEMM_DEPTH / (WORD / 8) * GEMM_WIDTH];
    uint8_t bytes[GEMM_DEPTH * GEMM_WIDTH];
    int rows = has_words(&s->matrix, batch, first, k0) ? depth * type->bits / WORD : 0;
    int done = rows * WORD / type->bits;
    if (count < width)
        memset(words, 0, (size_t)(rows * width) * sizeof *words);
    if (rows > 0)
        gemm_transpose(words, width, gemm_corner(&s->matrix, batch, first, k0),
                       dtype_bytes(s->matrix.type, s->matrix.stride), count, rows);
    if (type->is_float) {
        split(bytes, words, width, done);
        dtype_to_f32(panel, s->matrix.type, bytes, 0, (int64_t)done * width);
        multiply(panel, scales, width, done);
    } else {
        int32_t mask = type->is_signed ? -1 : (1 << type->bits) - 1;
        expand(panel, words, scales, width, done, type->bits, mask);
    }
    return done;
}

/* To nearest even, as a tensor of BFLOAT16 holds them; NaN stays NaN. */
WIDE static void round_bf16(float *numbers, int count) {
    typedef uint32_t word __attribute__((may_alias));
    word *bits = (word *)numbers;
    for (int i = 0; i < count; i++) {
        uint32_t rounded = bits[i] + 0x7fff + (bits[i] >> 16 & 1), quiet = bits[i] | 0x400000;
        bits[i] = ((bits[i] & 0x7fffffff) > 0x7f800000 ? quiet : rounded) & 0xffff0000;
    }
}

/* What a tensor of the type would hold. */
static void round_all(weftDataType_t type, float *numbers, int count) {
    uint16_t halves[ROUNDED];
    if (type == WEFT_DATA_BFLOAT16)
        round_bf16(numbers, count);
    for (int i = 0; i < count && type == WEFT_DATA_HALF; i += ROUNDED) {
        int64_t some = min64(ROUNDED, count - i);
        dtype_from_f32(type, halves, 0, numbers + i, some);
        dtype_to_f32(numbers + i, type, halves, 0, some);
    }
}

/* Depths that share their scales at a time. */
void scaled_pack(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                 int depth) {
    const struct scaled *s = source;
    float scales[GEMM_WIDTH], *rows = panel;
    for (int done = 0, shared; done < depth; done += shared, rows += shared * width) {
        int64_t k = k0 + done;
        shared = (int)min64(s->depth_block - k % s->depth_block, depth - done);
        load_scales(s, scales, width, batch, first, count, k);
        int packed = pack_words(s, rows, scales, width, batch, first, count, k, shared);
        float *rest = rows + packed * width;
        gemm_pack_matrix(&s->matrix, rest, width, batch, first, count, k + packed, shared - packed);
        multiply(rest, scales, width, shared - packed);
        round_all(s->type, rows, shared * width);
    }
}
