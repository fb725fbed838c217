/* SPDX-License-Identifier: Apache-2.0 */
/* Packs low-precision numbers times the scales of their blocks. */
#include "engines/cpu/product/pack_dequant.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/gemm_small.h"
#include "engines/cpu/product/low_bits.h"

#include <string.h>

/* Rows have constant lengths, so unrolling would only increase code size. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O2", "vect-cost-model=dynamic")
#endif

#define INLINE static inline __attribute__((always_inline))

enum {
    WORD = 32,                /* in bits */
    ROUNDED = 1024,           /* elements that are rounded at a time */
    DOT_ROWS = LOW_BITS_ROWS, /* maximum rows of A for dot products */
    DOT_COLUMNS = 64,         /* columns per task */
    DOT_BLOCKS = 32,          /* maximum blocks whose scales are floats at a time */
    DOT_FLOATS = 6 << 10,     /* maximum floats of A in addition to these scales: 24 KiB */
    DOT_LINES = 8,            /* columns whose parts of a block are read one after another */
    DOT_DEPTH = 32            /* minimum depth of a block */
};

/* ---- Scales ------------------------------------------------------------------------------------------------------ */

/* Loads the block scales of `count` adjacent indices at one k; scales past the last are 0. */
static void load_scales(const struct quantized *s, float *scales, int width, int64_t batch, int64_t first, int count,
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

/* Calls a function whose first argument is the width of a panel. Rows are short, so the usual widths (12 for A) are
   passed as constants. */
#define OF_WIDTH(function, ...)                                                                                        \
    (width == 32   ? function(32, __VA_ARGS__)                                                                         \
     : width == 16 ? function(16, __VA_ARGS__)                                                                         \
     : width == 12 ? function(12, __VA_ARGS__)                                                                         \
                   : function(width, __VA_ARGS__))

/* Expands words of integers that are adjacent along the depth, [depth * bits / WORD, width], to the panel's rows. A
   mask of all ones preserves signs. */
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

/* Splits words that are adjacent along the depth into rows of bytes. */
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

/* True if whole words can be read starting at an element: the matrix is contiguous along the depth, and the element
   starts at a whole byte. */
static bool has_words(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0) {
    bool are_bytes = dtype_of(matrix->type)->bits == 8;
    bool are_halves = matrix->stride % 2 == 0 && gemm_index(matrix, batch, first, k0) % 2 == 0;
    return matrix->depth_stride == 1 && (are_bytes || (are_halves && matrix->type != WEFT_DATA_FP4_E2M1));
}

/* Transposes packed words along the depth into the panel's order before converting them to float: this takes a quarter
   or an eighth of the shuffles. Returns the length of the processed part of the depth, in whole words. */
static int pack_words(const struct quantized *s, float *panel, const float *scales, int width, int64_t batch,
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

/* Rounds to BFLOAT16, to nearest even; NaN stays NaN. */
WIDE static void round_bf16(float *numbers, int count) {
    typedef uint32_t word __attribute__((may_alias));
    word *bits = (word *)numbers;
    for (int i = 0; i < count; i++) {
        uint32_t rounded = bits[i] + 0x7fff + (bits[i] >> 16 & 1), quiet = bits[i] | 0x400000;
        bits[i] = ((bits[i] & 0x7fffffff) > 0x7f800000 ? quiet : rounded) & 0xffff0000;
    }
}

/* Rounds to the precision of a tensor of the type. */
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

/* Processes elements along the depth that share their scales together. */
void pack_dequant(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                  int depth) {
    const struct quantized *s = source;
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

/* ---- Dot products ------------------------------------------------------------------------------------------------ */

/* State of one product, on the stack. */
struct dots {
    const struct gemm *gemm;
    const struct quantized *b;
    const struct small_kernel *kernel;
    float *rows; /* rows of A, [batch, m, k] */
    int64_t tasks;
    bool is_whole; /* numbers are widened in registers instead of a buffer */
};

bool dequant_has_dots(const struct gemm *gemm, const struct quantized *b) {
    return gemm->m > 0 && gemm->m <= DOT_ROWS && gemm->k > 0 && gemm->kernel->factors == WEFT_DATA_FLOAT &&
           b->type == WEFT_DATA_FLOAT && b->matrix.depth_stride == 1 && min64(b->depth_block, gemm->k) >= DOT_DEPTH;
}

int64_t dequant_dots_bytes(const struct gemm *gemm) {
    return gemm->batch * gemm->m * gemm->k * (int64_t)sizeof(float) + (int64_t)sizeof(float);
}

/* True if low_bits.h supports the type, blocks have whole groups, and columns start at whole bytes. */
static bool has_groups(const struct gemm *gemm, const struct quantized *b) {
    const struct gemm_matrix *matrix = &b->matrix;
    bool are_bytes = matrix->stride % 2 == 0;
    for (int i = 0; i < matrix->batch_rank; i++)
        are_bytes = are_bytes && matrix->batch_strides[i] % 2 == 0;
    return low_bits_supports(matrix->type) && (are_bytes || dtype_of(matrix->type)->bits == 8) &&
           gemm->k % LOW_BITS_GROUP == 0 && min64(b->depth_block, gemm->k) % LOW_BITS_GROUP == 0;
}

static void unpack_row(const struct dots *dots, int64_t row) {
    const struct gemm *gemm = dots->gemm;
    float *to = dots->rows + row * gemm->k;
    for (int64_t k0 = 0; k0 < gemm->k; k0 += GEMM_DEPTH)
        gemm->pack_a(gemm->a, to + k0, 1, row / gemm->m, row % gemm->m, 1, k0, (int)min64(GEMM_DEPTH, gemm->k - k0));
    if (dots->is_whole)
        low_bits_arrange(dots->b->matrix.type, to, gemm->k);
}

/* Adds the products with part of a block, for `columns` columns, starting at `first`; sums are [m, DOT_COLUMNS]. */
static void add_dots(const struct dots *dots, float *sums, int64_t batch, int64_t first, int columns, int64_t k0,
                     int depth) {
    const struct gemm_matrix *matrix = &dots->b->matrix;
    const struct gemm *gemm = dots->gemm;
    float numbers[DOT_LINES][GEMM_DEPTH], scales[DOT_LINES], products[DOT_ROWS * DOT_LINES];
    struct small_skinny few = {(int)gemm->m, columns, depth, numbers, GEMM_DEPTH};
    for (int i = 0; i < columns; i++)
        dtype_to_f32(numbers[i], matrix->type, matrix->base, gemm_index(matrix, batch, first + i, k0), depth);
    load_scales(dots->b, scales, DOT_LINES, batch, first, columns, k0);
    dots->kernel->dots[SMALL_FLOAT](&few, dots->rows + batch * gemm->m * gemm->k + k0, gemm->k, products, DOT_LINES);
    for (int64_t i = 0; i < gemm->m; i++)
        for (int j = 0; j < columns; j++)
            sums[i * DOT_COLUMNS + j] += scales[j] * products[i * DOT_LINES + j];
}

/* Adds the products of whole blocks, for all of a task's columns. */
static void add_groups(const struct dots *dots, float *sums, int64_t batch, int64_t first, int columns, int64_t k0,
                       int64_t depth) {
    const struct gemm *gemm = dots->gemm;
    const struct gemm_matrix *matrix = &dots->b->matrix;
    int64_t block = dots->b->depth_block;
    float scales[DOT_BLOCKS][DOT_COLUMNS];
    struct low_bits few = {.type = matrix->type,
                           .numbers = gemm_corner(matrix, batch, first, k0),
                           .column_bytes = dtype_bytes(matrix->type, matrix->stride),
                           .depth = depth,
                           .block = block,
                           .scales = scales[0],
                           .scale_ld = DOT_COLUMNS};
    for (int64_t i = 0; i * block < depth; i++)
        load_scales(dots->b, scales[i], DOT_COLUMNS, batch, first, columns, k0 + i * block);
    low_bits_dots(&few, columns, dots->rows + batch * gemm->m * gemm->k + k0, gemm->k, (int)gemm->m, sums, DOT_COLUMNS);
}

/* Depth of as many whole blocks as fit into the L1 cache together with the rows of A. */
static int64_t dot_depth(const struct gemm *gemm, int64_t block) {
    int64_t least = min64(block, gemm->k);
    return least * max64(1, min64(DOT_BLOCKS, DOT_FLOATS / (gemm->m * least)));
}

/* Processes some columns of a batch entry, a few at a time along the whole depth. */
static void run_dots(void *context, int64_t task) {
    const struct dots *dots = context;
    const struct gemm *gemm = dots->gemm;
    int64_t batch = task / dots->tasks, first = task % dots->tasks * DOT_COLUMNS, block = dots->b->depth_block;
    int columns = (int)min64(DOT_COLUMNS, gemm->n - first);
    float sums[DOT_ROWS * DOT_COLUMNS] = {0};
    for (int64_t k0 = 0, depth; k0 < gemm->k && dots->is_whole; k0 += depth) {
        depth = min64(dot_depth(gemm, block), gemm->k - k0);
        add_groups(dots, sums, batch, first, columns, k0, depth);
    }
    for (int j = 0; j < columns && !dots->is_whole; j += DOT_LINES)
        for (int64_t k0 = 0, depth; k0 < gemm->k; k0 += depth) {
            depth = min64(min64(block - k0 % block, GEMM_DEPTH), gemm->k - k0);
            add_dots(dots, sums + j, batch, first + j, (int)min64(DOT_LINES, columns - j), k0, (int)depth);
        }
    gemm->store(gemm->sink, sums, DOT_COLUMNS, batch, 0, (int)gemm->m, first, columns);
}

void dequant_dots(const struct gemm *gemm, int threads, void *workspace) {
    struct dots dots = {
        .gemm = gemm, .b = gemm->b, .kernel = small_kernel(0), .tasks = divide_up(gemm->n, DOT_COLUMNS)};
    dots.is_whole = has_groups(gemm, dots.b);
    dots.rows = (float *)((char *)workspace + (-(uintptr_t)workspace & (sizeof(float) - 1)));
    for (int64_t row = 0; row < gemm->batch * gemm->m; row++)
        unpack_row(&dots, row);
    if (threads > 1)
        threads_for(gemm->batch * dots.tasks, run_dots, &dots);
    for (int64_t task = 0; task < gemm->batch * dots.tasks && threads <= 1; task++)
        run_dots(&dots, task);
}
