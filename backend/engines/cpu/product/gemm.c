/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrix multiplication. C is cut into tiles, taken by threads; a tile is summed over panels
   of k in a buffer of its thread, and each of its blocks of rows is stored as its last panel is done:

       tile of C [tile_m, tile_n]             per thread, in L2/L3
         panel of B [GEMM_DEPTH, tile_n]      packed once per tile and panel, in L2/L3
           block of A [BLOCK_M, GEMM_DEPTH]   packed once per tile and panel, in L2
             kernel [rows, columns]           sums in registers, a sliver of B in L1

   Where a tile has few rows, floats and halves of B are multiplied where they lie.
   It must not know tensors or operations. */
#include "engines/cpu/product/gemm.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/dot.h"
#include "engines/cpu/product/tiles.h"

#include <stdatomic.h>
#include <string.h>

enum {
    BLOCK_M = 192,     /* rows of A packed at a time, before rounding to the kernel: 192 KiB of L2 */
    TILE_M = 1152,     /* a tile at most. Packing costs 1/TILE_M + 1/TILE_N loads per multiplication, */
    TILE_N = 960,      /* a tile's buffers some 5 MiB per thread */
    LOOSE_BLOCKS = 12, /* of kernels' rows, at most, that multiply B where it lies */
    LINE = 64,         /* alignment of buffers, bytes: the widest vector */
    PACK_COST = 16     /* multiplications of a FLOAT kernel in the time that packing a group of B takes */
};
/* Fewer multiplications of a FLOAT kernel than this are done before another thread wakes up. */
static const double ALONE = 1 << 20;

/* ---- Kernels ---- */

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "fp-contract=fast") /* strict C11 would keep a * b + c from fusing */
#endif

/* Sums stay in registers for all of a panel's depth: 2 * height vectors of them, two of B, one of A broadcast. A macro,
   since GCC splits vectors into what the enclosing function's target has before it inlines: one text for several
   targets can only be expanded. width: of A's panel, of which the first `height` rows are multiplied; factor: a group,
   as big as a sum; stored: what B's are in memory; ADD, LOAD: of dot.h. b_step: elements from one row of B to the next;
   fetches: the next columns of each row, as rows far apart are no stream to the CPU; of lines their ends, since rows
   begin anywhere.
   Measured on a Xeon: 14 x 32, 8 x 48 and fetching A are no faster; from L2 this is 94 % of what FMAs alone reach. */
#define GEMM_LOOP(function, attribute, real, lanes, width, height, factor, ADD, has_start, stored, LOAD)               \
    attribute static inline __attribute__((always_inline)) void function(                                              \
        int64_t groups, const void *a_panel, const void *b_rows, int64_t b_step, bool fetches, void *c_block,          \
        int64_t ld, bool first) {                                                                                      \
        typedef real vector __attribute__((vector_size(lanes * sizeof(real)), may_alias));                             \
        typedef factor factors                                                                                         \
            __attribute__((vector_size(lanes * sizeof(factor)), may_alias, aligned(sizeof(factor))));                  \
        const factor *a = a_panel;                                                                                     \
        const stored *b = b_rows;                                                                                      \
        real *c = c_block;                                                                                             \
        /* C in the user's memory begins anywhere. */                                                                  \
        typedef vector unaligned __attribute__((aligned(sizeof(real))));                                               \
        vector sum[height][2] = {{{0}}};                                                                               \
        if (has_start) {                                                                                               \
            _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) for (int j = 0; j < 2; j++) sum[i][j] =          \
                *(const vector *)(b + j * lanes);                                                                      \
            b += b_step;                                                                                               \
        }                                                                                                              \
        for (; groups > 0; groups--, a += width, b += b_step) {                                                        \
            factors left = LOAD(b), right = LOAD(b + lanes);                                                           \
            for (size_t line = LINE - 1; fetches && line < LINE + 2 * lanes * sizeof *b - 1; line += LINE)             \
                __builtin_prefetch((const char *)(b + 2 * lanes) + line, 0, 2);                                        \
            _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) {                                                \
                sum[i][0] = ADD(sum[i][0], a[i], left);                                                                \
                sum[i][1] = ADD(sum[i][1], a[i], right);                                                               \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < height; i++, c += ld) {                                           \
            unaligned *left = (unaligned *)c, *right = (unaligned *)(c + lanes);                                       \
            if (first)                                                                                                 \
                *left = *right = (vector){0};                                                                          \
            *left += sum[i][0];                                                                                        \
            *right += sum[i][1];                                                                                       \
        }                                                                                                              \
    }

/* All rows of a panel, and its first few. */
#define GEMM_LOOPS(name, attribute, real, lanes, width, few, factor, ADD, has_start, stored, LOAD)                     \
    GEMM_LOOP(loop_##name, attribute, real, lanes, width, width, factor, ADD, has_start, stored, LOAD)                 \
    GEMM_LOOP(loop_few_##name, attribute, real, lanes, width, few, factor, ADD, has_start, stored, LOAD)

/* Of panels. */
#define GEMM_PACKED(function, loop, attribute, lanes)                                                                  \
    attribute static void function(int64_t groups, const void *a, const void *b, void *c, int64_t ld, bool first) {    \
        loop(groups, a, b, 2 * lanes, false, c, ld, first);                                                            \
    }
#define GEMM_KERNELS(name, attribute, real, lanes, width, few, factor, ADD, has_start)                                 \
    GEMM_LOOPS(name, attribute, real, lanes, width, few, factor, ADD, has_start, factor, LOAD_FACTORS)                 \
    GEMM_PACKED(multiply_##name, loop_##name, attribute, lanes)                                                        \
    GEMM_PACKED(multiply_few_##name, loop_few_##name, attribute, lanes)

/* Of B as it lies in memory. */
#define GEMM_LOOSE(name, attribute)                                                                                    \
    attribute static void loose_##name(int64_t depth, const void *a, const void *b, int64_t b_step, void *c,           \
                                       int64_t ld, bool first) {                                                       \
        loop_##name(depth, a, b, b_step, true, c, ld, first);                                                          \
    }                                                                                                                  \
    attribute static void loose_few_##name(int64_t depth, const void *a, const void *b, int64_t b_step, void *c,       \
                                           int64_t ld, bool first) {                                                   \
        loop_few_##name(depth, a, b, b_step, true, c, ld, first);                                                      \
    }

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f")))
#define AVX512_PAIRS __attribute__((target("avx512f,avx512bf16")))
#define AVX512_BYTES __attribute__((target("avx512f,avx512vnni")))
#define AVX2 __attribute__((target("avx2,fma,f16c")))
GEMM_KERNELS(avx512_f32, AVX512, float, 16, 12, 4, float, ADD_PRODUCT, false)
GEMM_KERNELS(avx512_f64, AVX512, double, 8, 12, 4, double, ADD_PRODUCT, false)
GEMM_KERNELS(avx512_bf16, AVX512_PAIRS, float, 16, 12, 4, uint32_t, ADD_PAIRS_AVX512, false)
GEMM_KERNELS(avx512_i8, AVX512_BYTES, uint32_t, 16, 12, 4, uint32_t, ADD_BYTES_AVX512, true)
GEMM_KERNELS(avx2_f32, AVX2, float, 8, 6, 2, float, ADD_PRODUCT, false)
GEMM_KERNELS(avx2_f64, AVX2, double, 4, 6, 2, double, ADD_PRODUCT, false)
GEMM_LOOSE(avx512_f32, AVX512)
GEMM_LOOSE(avx2_f32, AVX2)
GEMM_LOOPS(avx512_f16, AVX512, float, 16, 12, 4, float, ADD_PRODUCT, false, uint16_t, LOAD_HALVES_AVX512)
GEMM_LOOPS(avx2_f16, AVX2, float, 8, 6, 2, float, ADD_PRODUCT, false, uint16_t, LOAD_HALVES_AVX2)
GEMM_LOOSE(avx512_f16, AVX512)
GEMM_LOOSE(avx2_f16, AVX2)
#endif
/* 16-byte vectors: SSE2, NEON, or whatever the compiler makes of them */
GEMM_KERNELS(plain_f32, , float, 4, 6, 2, float, ADD_PRODUCT, false)
GEMM_KERNELS(plain_f64, , double, 2, 6, 2, double, ADD_PRODUCT, false)
GEMM_LOOSE(plain_f32, )

#if defined(__x86_64__)
/* A's bytes have 128 added, as the CPU multiplies bytes without sign by bytes with one: sums start from B's own sums
   times -128. */
AVX512_BYTES static void start_avx512_i8(int64_t groups, void *b_panel) {
    enum { LANES = 16 };
    typedef uint32_t vector __attribute__((vector_size(LANES * 4), may_alias));
    vector *b = b_panel, excess[2] = {{0}};
    for (int64_t g = 1; g <= groups; g++)
        for (int j = 0; j < 2; j++)
            excess[j] = ADD_BYTES_AVX512(excess[j], 0x80808080, b[2 * g + j]);
    for (int j = 0; j < 2; j++)
        b[j] = 0 - excess[j];
}
#endif

#define MULTIPLY(name) .multiply = multiply_##name, .multiply_few = multiply_few_##name
#define LOOSE(name) {loose_##name, loose_few_##name}
#define TILES(name)                                                                                                    \
    .multiply = tiles_multiply_##name, .multiply_few = tiles_multiply_few_##name, .begin = tiles_begin, .end = tiles_end

static const struct gemm_kernel kernels[] = {
#if HAS_AMX
    {"amx-int8 32x32", WEFT_DATA_INT8, WEFT_DATA_INT32, 64, 4, 32, 32, 16, 32, TILES(i8)},
    {"amx-bf16 32x32", WEFT_DATA_BFLOAT16, WEFT_DATA_FLOAT, 32, 2, 16, 32, 16, 32, TILES(bf16)},
#endif
#if defined(__x86_64__)
    {"avx512vnni 12x32", WEFT_DATA_INT8, WEFT_DATA_INT32, 4, 4, 4, 12, 4, 32, MULTIPLY(avx512_i8),
     .start = start_avx512_i8},
    {"avx512bf16 12x32", WEFT_DATA_BFLOAT16, WEFT_DATA_FLOAT, 2, 2, 1, 12, 4, 32, MULTIPLY(avx512_bf16)},
    {"avx512 12x32", WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, 1, 1, 1, 12, 4, 32, MULTIPLY(avx512_f32),
     .loose = LOOSE(avx512_f32), .loose_halves = LOOSE(avx512_f16)},
    {"avx512 12x16", WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE, 1, 1, 1, 12, 4, 16, MULTIPLY(avx512_f64)},
    {"avx2 6x16", WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, 1, 1, 1, 6, 2, 16, MULTIPLY(avx2_f32), .loose = LOOSE(avx2_f32),
     .loose_halves = LOOSE(avx2_f16)},
    {"avx2 6x8", WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE, 1, 1, 1, 6, 2, 8, MULTIPLY(avx2_f64)},
#endif
    {"plain 6x8", WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, 1, 1, 1, 6, 2, 8, MULTIPLY(plain_f32), .loose = LOOSE(plain_f32)},
    {"plain 6x4", WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE, 1, 1, 1, 6, 2, 4, MULTIPLY(plain_f64)},
};

/* Rank 1 and above are for tests, which run every kernel that the CPU has. */
const struct gemm_kernel *gemm_kernel(weftDataType_t factors, int rank) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].factors == factors && cpu_runs(kernels[i].name) && rank-- == 0)
            return &kernels[i];
    return NULL;
}

/* Of a group in a panel, and of an element of C: kernels have both of one size. */
static int64_t size_of(const struct gemm_kernel *kernel) { return kernel->type == WEFT_DATA_DOUBLE ? 8 : 4; }

/* Groups of B along k, in whole groups of A; the last ones may have fewer factors than the others, or none. */
static int64_t groups_of(const struct gemm_kernel *kernel, int64_t depth) {
    return round_up(depth, kernel->group_a) / kernel->group_b;
}

/* Rows in front of a panel of B. */
static int64_t starts_of(const struct gemm_kernel *kernel) { return kernel->start ? 1 : 0; }

/* Groups of B in each panel of k but perhaps the last, in whole groups of A: equally many, so that the last one is not a
   thin rest; at least 1 where k is 0. */
static int64_t panel_groups(const struct gemm *gemm) {
    int64_t groups = groups_of(gemm->kernel, gemm->k), panels = max64(1, divide_up(groups, GEMM_DEPTH));
    return round_up(max64(1, divide_up(groups, panels)), gemm->kernel->group_a / gemm->kernel->group_b);
}

/* ---- Cutting C into tiles ---- */

struct tiling {
    int64_t tile_m, tile_n, block_m;   /* multiples of the kernel's rows, columns, rows */
    int64_t tiles_m, tiles_n, threads; /* threads: how many buffers, at least 1 */
    int64_t depth;                     /* of all panels of k but perhaps the last */
    int64_t a_bytes, b_bytes, c_bytes; /* one thread's buffers */
};

/* Cuts C into about cuts_m x cuts_n tiles. Tile sizes are rounded up to whole kernels, so there may be fewer tiles than
   cuts. */
static struct tiling cut(const struct gemm *gemm, int64_t cuts_m, int64_t cuts_n) {
    struct tiling t = {0};
    t.tile_m = round_up(divide_up(gemm->m, cuts_m), gemm->kernel->rows);
    t.tile_n = round_up(divide_up(gemm->n, cuts_n), gemm->kernel->columns);
    t.tiles_m = divide_up(gemm->m, t.tile_m);
    t.tiles_n = divide_up(gemm->n, t.tile_n);
    return t;
}

/* Time of a step of k, in multiplications of a FLOAT kernel. */
static double step_cost(const struct gemm_kernel *kernel, int64_t m, int64_t n) {
    return (double)m * (double)n / kernel->speed + PACK_COST / (double)kernel->group_b * (double)(m + n);
}

/* The same until the last thread is done. All tiles count as full ones. */
static double predict(const struct tiling *t, const struct gemm *gemm, int threads) {
    double rounds = (double)divide_up(gemm->batch * t->tiles_m * t->tiles_n, threads);
    return rounds * step_cost(gemm->kernel, t->tile_m, t->tile_n);
}

/* Tries finer cuts until there are as many tiles as threads: fewer threads may leave some idle, more pack more often.
   Depends on sizes and threads alone: workspace bytes and the run come to the same tiling. */
static struct tiling tiling_of(const struct gemm *gemm, int threads) {
    int64_t size = size_of(gemm->kernel);
    int64_t cuts_m = divide_up(gemm->m, TILE_M), cuts_n = divide_up(gemm->n, TILE_N);
    /* Of the whole product. */
    double work = (double)gemm->batch * (double)gemm->k * step_cost(gemm->kernel, gemm->m, gemm->n);
    struct tiling best = cut(gemm, cuts_m, cuts_n);
    if (threads < 1 || work < ALONE)
        threads = 1;
    /* i more cuts along m, j more along n; the limit keeps their product near the number of threads. */
    for (int64_t i = 0; i < threads; i++) {
        for (int64_t j = 0; j <= threads / (i + 1); j++) {
            struct tiling t = cut(gemm, cuts_m + i, cuts_n + j);
            if (predict(&t, gemm, threads) < predict(&best, gemm, threads))
                best = t;
        }
    }
    best.threads = min64(threads, max64(1, gemm->batch * best.tiles_m * best.tiles_n));
    best.block_m = min64(best.tile_m, round_up(BLOCK_M, gemm->kernel->rows));
    int64_t depth = panel_groups(gemm);
    best.depth = depth * gemm->kernel->group_b;
    best.a_bytes = round_up(best.block_m * depth * size, LINE);
    best.b_bytes = round_up(best.tile_n * (depth + starts_of(gemm->kernel)) * size, LINE);
    best.c_bytes = round_up(best.tile_m * best.tile_n * size, LINE);
    return best;
}

/* Stores nothing. k may be 0: that stores zeros. */
static bool is_empty(const struct gemm *gemm) { return gemm->batch <= 0 || gemm->m <= 0 || gemm->n <= 0; }

/* LINE more, as the workspace may have any alignment. */
int64_t gemm_workspace_bytes(const struct gemm *gemm, int threads) {
    if (is_empty(gemm))
        return 0;
    struct tiling t = tiling_of(gemm, threads);
    return LINE + t.threads * (t.a_bytes + t.b_bytes + t.c_bytes);
}

/* Tiles are no larger than TILE_M x TILE_N, in whole kernels, and panels no deeper than GEMM_DEPTH. */
int64_t gemm_workspace_most(const struct gemm *gemm, int threads) {
    int64_t size = size_of(gemm->kernel), rows = gemm->kernel->rows;
    int64_t tile_m = round_up(min64(gemm->m, TILE_M), rows);
    int64_t tile_n = round_up(min64(gemm->n, TILE_N), gemm->kernel->columns);
    int64_t depth = max64(1, min64(groups_of(gemm->kernel, gemm->k), GEMM_DEPTH));
    int64_t block_m = min64(tile_m, round_up(BLOCK_M, rows)), b_depth = depth + starts_of(gemm->kernel);
    int64_t panels = round_up(block_m * depth * size, LINE) + round_up(tile_n * b_depth * size, LINE);
    return LINE + max64(threads, 1) * (panels + round_up(tile_m * tile_n * size, LINE));
}

/* ---- Where operands lie ---- */

/* Index of the element at (first, k0) in one matrix of a batch. The batch index is taken apart from its fastest
   dimension on. */
static int64_t matrix_index(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0) {
    int64_t index = first * matrix->stride + k0 * matrix->depth_stride;
    for (int i = matrix->batch_rank - 1; i >= 0; i--) {
        index += batch % matrix->batch_dims[i] * matrix->batch_strides[i];
        batch /= matrix->batch_dims[i];
    }
    return index;
}

/* The element that a panel of a matrix begins with; elements are whole bytes. */
static const char *corner_of(const struct gemm_matrix *matrix, int64_t batch, int64_t first, int64_t k0) {
    return (const char *)matrix->base + dtype_bytes(matrix->type, matrix_index(matrix, batch, first, k0));
}

/* Whether elements can be read where they lie: user memory promises no alignment. */
static bool has_floats(const struct gemm_matrix *matrix) {
    return matrix->type == WEFT_DATA_FLOAT && (uintptr_t)matrix->base % sizeof(float) == 0;
}

/* ---- Running ---- */

/* next_tile: threads take tiles in order, row-major within a batch entry. A job is one gemm_run; it lies on the
   caller's stack. */
struct job {
    const struct gemm *gemm;
    struct tiling tiling;
    int64_t size; /* bytes of a group, and of an element of C */
    char *buffers;
    _Atomic int64_t next_tile;
};

/* The part of C that a thread works on, and where: row and column in C, the buffers of packed A, packed B and sums. */
struct tile {
    int64_t batch, row, rows, column, columns;
    int64_t loose_columns; /* the first of them, of which B is multiplied where it lies */
    gemm_multiply_loose *const *loose;
    char *a, *b, *c;
};

/* [first, first + count) x [k0, k0 + depth) of one operand. */
struct part {
    int64_t batch, first, count, k0;
    int depth;
};

/* One of the two operands: `extent` rows of C, or columns, in panels of `width`, of which each has `starts` rows in
   front. */
struct operand {
    gemm_pack *pack;
    const void *source;
    const char *packed; /* as in struct gemm */
    int64_t extent, starts;
    int width;
};

static struct operand operand_of(const struct gemm *gemm, bool is_b) {
    const struct gemm_kernel *kernel = gemm->kernel;
    if (is_b)
        return (struct operand){gemm->pack_b, gemm->b, gemm->packed_b, gemm->n, starts_of(kernel), kernel->columns};
    return (struct operand){gemm->pack_a, gemm->a, gemm->packed_a, gemm->m, 0, kernel->rows};
}

/* Packs a part, panel after panel. A last panel or group that is not full is cleared, so that kernels multiply zeros
   instead of asking. */
static void pack_panels(const struct gemm_kernel *kernel, const struct operand *operand, char *panels,
                        struct part part) {
    int64_t groups = groups_of(kernel, part.depth), row_bytes = operand->width * size_of(kernel);
    for (int64_t i = 0; i < part.count; i += operand->width, panels += (groups + operand->starts) * row_bytes) {
        int lanes = (int)min64(operand->width, part.count - i);
        char *panel = panels + operand->starts * row_bytes;
        if (lanes < operand->width || part.depth % kernel->group_a)
            memset(panel, 0, (size_t)(groups * row_bytes));
        operand->pack(operand->source, panel, operand->width, part.batch, part.first + i, lanes, part.k0, part.depth);
        if (operand->starts)
            kernel->start(groups, panels);
    }
}

/* Where the panels of a part begin among all of an operand, [batch, depths, rows or columns]; that of the entry behind
   the batch is their size, in bytes. */
static int64_t packed_offset(const struct gemm *gemm, const struct operand *operand, const struct part *part) {
    int64_t groups = groups_of(gemm->kernel, gemm->k), depth = panel_groups(gemm);
    int64_t whole = round_up(operand->extent, operand->width), panels = divide_up(groups, depth);
    int64_t before = part->k0 / gemm->kernel->group_b, here = min64(depth, groups - before) + operand->starts;
    int64_t rows = part->batch * (groups + panels * operand->starts) + before + before / depth * operand->starts;
    return (rows * whole + part->first * here) * size_of(gemm->kernel);
}

int64_t gemm_packed_bytes(const struct gemm *gemm, bool is_b) {
    struct operand operand = operand_of(gemm, is_b);
    return packed_offset(gemm, &operand, &(struct part){.batch = gemm->batch});
}

void gemm_pack_whole(const struct gemm *gemm, bool is_b, void *packed) {
    struct operand operand = operand_of(gemm, is_b);
    int64_t depth = panel_groups(gemm) * gemm->kernel->group_b;
    for (int64_t i = 0; i < gemm->batch; i++)
        for (int64_t k0 = 0; k0 < gemm->k; k0 += depth) {
            struct part part = {i, 0, operand.extent, k0, (int)min64(depth, gemm->k - k0)};
            pack_panels(gemm->kernel, &operand, (char *)packed + packed_offset(gemm, &operand, &part), part);
        }
}

/* The panels of a part: among all that are packed already, or in the buffer. */
static const char *panels_of(const struct gemm *gemm, bool is_b, char *buffer, struct part part) {
    struct operand operand = operand_of(gemm, is_b);
    if (operand.packed)
        return operand.packed + packed_offset(gemm, &operand, &part);
    pack_panels(gemm->kernel, &operand, buffer, part);
    return buffer;
}

/* Of both operands, at the same depths. */
struct panels {
    const char *a, *b;
    int64_t k0;
    int depth;
};

/* A part of C that a kernel makes at once, or as much of it as there is: panels of A and of B, sums in the tile's
   buffer, and where C is stored. */
struct block_of_c {
    const char *a, *b;
    gemm_multiply_loose *const *loose; /* NULL: b is a panel */
    int64_t b_step;                    /* of B in memory: elements from row to row */
    char *sums;
    struct gemm_place place;
    int64_t rows, columns;
};

static void fetch(const struct gemm_place *place, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t line = 0; line < columns * place->column_bytes; line += LINE)
            __builtin_prefetch(place->at + i * place->row_bytes + line, 1);
}

/* Adds the product of two panels to the sums, which are C itself where that may be and the kernel makes no more than
   there is of it. */
static void multiply_part(const struct job *job, const struct block_of_c *block, int64_t groups, bool first) {
    const struct gemm_kernel *kernel = job->gemm->kernel;
    const struct gemm_place *place = &block->place;
    bool is_few = block->rows <= kernel->few_rows;
    bool is_whole = block->columns == kernel->columns && block->rows == (is_few ? kernel->few_rows : kernel->rows);
    bool is_in_place = place->takes_sums && is_whole;
    char *sums = is_in_place ? place->at : block->sums;
    int64_t ld = is_in_place ? place->row_bytes / job->size : job->tiling.tile_n;
    if (place->at)
        fetch(place, block->rows, block->columns);
    if (block->loose)
        block->loose[is_few](groups, block->a, block->b, block->b_step, sums, ld, first);
    else
        (is_few ? kernel->multiply_few : kernel->multiply)(groups, block->a, block->b, sums, ld, first);
    for (int64_t i = 0; i < block->rows && place->takes_sums && !is_whole; i++)
        memcpy(place->at + i * place->row_bytes, sums + i * ld * job->size, (size_t)(block->columns * job->size));
}

/* Adds packed A [rows, depth] times packed B [depth, columns of the tile] to the rows from `row`. Columns outside: the
   panel of B stays in L1 while rows of A pass. */
static void multiply_block(const struct job *job, const struct tile *tile, const struct panels *panels, int64_t row,
                           int64_t rows, struct gemm_place place) {
    const struct gemm_kernel *kernel = job->gemm->kernel;
    int64_t ld = job->tiling.tile_n, groups = groups_of(kernel, panels->depth), b_depth = groups + starts_of(kernel);
    /* Columns beyond the tile's are computed, too, on zeros: the buffer has room for whole kernels. */
    for (int64_t j = 0; j < tile->columns; j += kernel->columns) {
        for (int64_t i = 0; i < rows; i += kernel->rows) {
            struct block_of_c block = {.a = panels->a + i * groups * job->size,
                                       .b = panels->b + j * b_depth * job->size,
                                       .sums = tile->c + ((row + i) * ld + j) * job->size,
                                       .place = place,
                                       .rows = min64(kernel->rows, rows - i),
                                       .columns = min64(kernel->columns, tile->columns - j)};
            if (j < tile->loose_columns) {
                block.b = corner_of(job->gemm->b, tile->batch, tile->column + j, panels->k0);
                block.b_step = ((const struct gemm_matrix *)job->gemm->b)->depth_stride;
                block.loose = tile->loose;
            }
            if (place.at)
                block.place.at += i * place.row_bytes + j * place.column_bytes;
            multiply_part(job, &block, groups, panels->k0 == 0);
        }
    }
}

/* Where rows go: those of sums that are not complete only where they may be made there. */
static struct gemm_place find_rows(const struct job *job, const struct tile *tile, int64_t row, int64_t rows,
                                   bool is_last) {
    const struct gemm *gemm = job->gemm;
    struct gemm_place place = {0};
    if (gemm->find)
        place = gemm->find(gemm->sink, tile->batch, tile->row + row, (int)rows, tile->column);
    return is_last || place.takes_sums ? place : (struct gemm_place){0};
}

/* Rows `row` on of the tile, complete; the sink may change them in place. */
static void store_block(const struct job *job, const struct tile *tile, int64_t row, int64_t rows) {
    int64_t ld = job->tiling.tile_n;
    job->gemm->store(job->gemm->sink, tile->c + row * ld * job->size, ld, tile->batch, tile->row + row, (int)rows,
                     tile->column, (int)tile->columns);
}

/* k in the outer loop, as a panel of B is packed once for all blocks of rows. */
static void run_tile(const struct job *job, const struct tile *tile) {
    const struct gemm *gemm = job->gemm;
    const struct gemm_kernel *kernel = gemm->kernel;
    /* No panel: the sums are zeros. */
    if (gemm->k <= 0) {
        memset(tile->c, 0, (size_t)job->tiling.c_bytes);
        store_block(job, tile, 0, tile->rows);
    }
    for (int64_t k0 = 0; k0 < gemm->k; k0 += job->tiling.depth) {
        int depth = (int)min64(job->tiling.depth, gemm->k - k0);
        int64_t loose = tile->loose_columns * (groups_of(kernel, depth) + starts_of(kernel)) * job->size;
        struct part columns = {tile->batch, tile->column + tile->loose_columns, tile->columns - tile->loose_columns, k0,
                               depth};
        struct panels panels = {.b = panels_of(gemm, true, tile->b + loose, columns) - loose, .k0 = k0, .depth = depth};
        for (int64_t row = 0; row < tile->rows; row += job->tiling.block_m) {
            int64_t rows = min64(job->tiling.block_m, tile->rows - row);
            panels.a = panels_of(gemm, false, tile->a, (struct part){tile->batch, tile->row + row, rows, k0, depth});
            bool is_last = k0 + depth == gemm->k;
            struct gemm_place place = find_rows(job, tile, row, rows, is_last);
            /* The first panel overwrites what the tile before has left in the buffer. */
            multiply_block(job, tile, &panels, row, rows, place);
            if (is_last && !place.takes_sums)
                store_block(job, tile, row, rows);
        }
    }
}

/* What multiplies B where it lies; NULL: it must be packed. */
static gemm_multiply_loose *const *loose_of(const struct gemm *gemm) {
    const struct gemm_kernel *kernel = gemm->kernel;
    const struct gemm_matrix *b = gemm->b;
    if (gemm->pack_b != gemm_pack_matrix || b->stride != 1)
        return NULL;
    gemm_multiply_loose *const *loose = b->type == WEFT_DATA_HALF ? kernel->loose_halves : kernel->loose;
    return loose[0] && (has_floats(b) || b->type == WEFT_DATA_HALF) ? loose : NULL;
}

/* Columns are multiplied where they lie, as far as they are whole kernels, where few rows read them: packing costs more
   than it saves then. Sums are the same bit by bit. Rows a multiple of 4 KiB apart take each other's places in the
   caches: measured on a Xeon, even then 2 blocks are 1.4 times as quick so, 12 are 1.03 times, 20 are slower. */
static void find_loose(const struct gemm *gemm, struct tile *tile) {
    bool is_packed = gemm->packed_b != NULL;
    tile->loose = !is_packed && tile->rows <= LOOSE_BLOCKS * gemm->kernel->rows ? loose_of(gemm) : NULL;
    tile->loose_columns = tile->loose ? tile->columns / gemm->kernel->columns * gemm->kernel->columns : 0;
}

/* One thread: takes tiles until none is left. `thread` numbers a set of buffers, whichever thread of the pool it is:
   threads_for gives each number once. */
static void run_tiles(void *context, int64_t thread) {
    struct job *job = context;
    const struct gemm *gemm = job->gemm;
    const struct tiling *t = &job->tiling;
    int64_t per_batch = t->tiles_m * t->tiles_n, index;
    struct tile tile;
    tile.a = job->buffers + thread * (t->a_bytes + t->b_bytes + t->c_bytes);
    tile.b = tile.a + t->a_bytes;
    tile.c = tile.b + t->b_bytes;
    if (gemm->kernel->begin)
        gemm->kernel->begin();
    while ((index = atomic_fetch_add(&job->next_tile, 1)) < gemm->batch * per_batch) {
        tile.batch = index / per_batch;
        tile.row = index % per_batch / t->tiles_n * t->tile_m;
        tile.column = index % t->tiles_n * t->tile_n;
        tile.rows = min64(t->tile_m, gemm->m - tile.row);
        tile.columns = min64(t->tile_n, gemm->n - tile.column);
        find_loose(gemm, &tile);
        run_tile(job, &tile);
    }
    if (gemm->kernel->end)
        gemm->kernel->end();
}

void gemm_run(const struct gemm *gemm, int threads, void *workspace) {
    if (is_empty(gemm))
        return;
    struct job job = {.gemm = gemm, .tiling = tiling_of(gemm, threads)};
    job.size = size_of(gemm->kernel);
    /* Up to the next multiple of LINE. */
    job.buffers = (char *)workspace + (-(uintptr_t)workspace & (LINE - 1));
    threads_for(job.tiling.threads, run_tiles, &job);
}

/* ---- Operands in memory ---- */

enum {
    WORDS_OF_LINE = 16,
    FETCHED = 64 /* elements of a row that is converted, at least, for it to be fetched */
};

/* Transposes rows [count, depth] of words of 4 bytes, `ld` bytes from row to row, into panel [depth, width]. Words may
   lie anywhere. Four rows at a time: reads of few rows keep out of each other's cache sets when ld is a power of two.
   The next four, of this panel or the next, are fetched meanwhile: rows are too short for the CPU to see a stream. */
static void transpose(void *panel, int width, const void *rows, int64_t ld, int count, int depth) {
    typedef float four __attribute__((vector_size(16), may_alias, aligned(1)));
    typedef uint32_t word __attribute__((may_alias, aligned(1)));
    const char *from = rows;
    word *to = panel;
    int i = 0;
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
            four ab01 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            four ab23 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            four ce01 = __builtin_shufflevector(c, e, 0, 4, 1, 5);
            four ce23 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
            word *column = to + (int64_t)d * width;
            *(four *)column = __builtin_shufflevector(ab01, ce01, 0, 1, 4, 5);
            *(four *)(column + width) = __builtin_shufflevector(ab01, ce01, 2, 3, 6, 7);
            *(four *)(column + 2 * width) = __builtin_shufflevector(ab23, ce23, 0, 1, 4, 5);
            *(four *)(column + 3 * width) = __builtin_shufflevector(ab23, ce23, 2, 3, 6, 7);
        }
        /* Depths that are left over, and below rows that are: at most three of each. */
        for (; d < depth; d++)
            for (int lane = 0; lane < 4; lane++)
                to[(int64_t)d * width + lane] = row[lane][d];
    }
    for (; i < count; i++, from += ld, to++)
        for (int d = 0; d < depth; d++)
            to[(int64_t)d * width] = ((const word *)from)[d];
}

/* A matrix whose rows (of A; columns of B) are contiguous. */
static void pack_contiguous_depth(const struct gemm_matrix *matrix, float *panel, int width, int64_t index, int count,
                                  int depth) {
    if (has_floats(matrix)) {
        transpose(panel, width, (const float *)matrix->base + index, matrix->stride * (int64_t)sizeof(float), count,
                  depth);
        return;
    }
    /* Four rows converted at a time, so that transpose reads them as floats, while the next four are fetched. */
    float strip[4][GEMM_DEPTH];
    int64_t bytes = depth < FETCHED ? 0 : dtype_bytes(matrix->type, depth);
    int64_t ahead = dtype_bytes(matrix->type, 4 * matrix->stride);
    for (int i = 0; i < count; i += 4) {
        int rows = (int)min64(4, count - i);
        for (int j = 0; j < rows; j++, index += matrix->stride) {
            const char *row = (const char *)matrix->base + (bytes ? dtype_bytes(matrix->type, index) + ahead : 0);
            for (int64_t line = 0; line < bytes; line += LINE)
                __builtin_prefetch(row + line);
            dtype_to_f32(strip[j], matrix->type, matrix->base, index, depth);
        }
        transpose(panel + i, width, strip, sizeof strip[0], rows, depth);
    }
}

/* A few neighbours of BFLOAT16: a call would cost more. */
static void widen(void *floats, const void *halves, int count) {
    typedef uint32_t word __attribute__((may_alias));
    typedef uint16_t half __attribute__((may_alias, aligned(1)));
    for (int i = 0; i < count; i++)
        ((word *)floats)[i] = (uint32_t)((const half *)halves)[i] << 16;
}

/* Rows of the panel are neighbours in memory. There they are short and on pages of their own, where the CPU sees no
   stream: those of the next panel are fetched meanwhile, the ends of their lines, since they begin anywhere. */
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
    int64_t index = matrix_index(matrix, batch, first, k0);
    float *dst = panel;
    /* Depth fastest in memory: rows are transposed into the panel. */
    if (matrix->depth_stride == 1) {
        pack_contiguous_depth(matrix, dst, width, index, count, depth);
        return;
    }
    if (matrix->stride == 1 && has_floats(matrix)) {
        copy_rows(dst, width, (const float *)matrix->base + index, matrix->depth_stride, count, depth);
        return;
    }
    for (int d = 0; d < depth; d++, index += matrix->depth_stride, dst += width) {
        /* Depth by depth: a row of the panel is `width` neighbours along the other index. */
        if (has_floats(matrix)) {
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

/* Element by element: products in double are rare, and exact in any type. */
void gemm_pack_matrix_double(const void *source, void *panel, int width, int64_t batch, int64_t first, int count,
                             int64_t k0, int depth) {
    const struct gemm_matrix *matrix = source;
    int64_t index = matrix_index(matrix, batch, first, k0);
    double *dst = panel;
    for (int d = 0; d < depth; d++, index += matrix->depth_stride, dst += width)
        for (int i = 0; i < count; i++)
            dst[i] = dtype_load(matrix->type, matrix->base, index + i * matrix->stride);
}

/* ---- Groups ---- */

/* Elements of `bytes` at `depth` neighbouring depths, which lie together in memory: whole groups are words of 4 bytes,
   the last one may have fewer elements. */
static void pack_runs(const struct gemm_matrix *matrix, const char *corner, uint32_t *panel, int width, int count,
                      int depth, int bytes) {
    int whole = depth * bytes / 4, rest = depth * bytes % 4;
    transpose(panel, width, corner, matrix->stride * bytes, count, whole);
    for (int i = 0; i < count && rest; i++)
        memcpy(panel + (int64_t)whole * width + i, corner + i * matrix->stride * bytes + 4 * whole, (size_t)rest);
}

typedef uint8_t bytes16 __attribute__((vector_size(16), may_alias, aligned(1)));
typedef uint16_t halves8 __attribute__((vector_size(16), may_alias, aligned(1)));

/* Of two depths the low and the high halves. */
static void join_pairs(uint32_t *pairs, const void *low_row, const void *high_row, int count) {
    typedef uint16_t half __attribute__((may_alias, aligned(1)));
    const half *low = low_row, *high = high_row;
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        halves8 a = *(const halves8 *)(low + i), b = *(const halves8 *)(high + i);
        *(halves8 *)(pairs + i) = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        *(halves8 *)(pairs + i + 4) = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (; i < count; i++)
        pairs[i] = low[i] | (uint32_t)high[i] << 16;
}

/* Bytes of two rows in turn, as the low and the high half of an item of `pairs`. */
static inline __attribute__((always_inline)) void join_bytes(halves8 *pairs, const uint8_t *low, const uint8_t *high) {
    bytes16 a = *(const bytes16 *)low, b = *(const bytes16 *)high;
    pairs[0] = (halves8)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    pairs[1] = (halves8)__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Of four depths a byte each. */
static void join_fours(uint32_t *fours, const uint8_t *row, int64_t step, int count) {
    const uint8_t *rows[4] = {row, row + step, row + 2 * step, row + 3 * step};
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        halves8 low[2], high[2];
        join_bytes(low, rows[0] + i, rows[1] + i);
        join_bytes(high, rows[2] + i, rows[3] + i);
        for (int j = 0; j < 2; j++) {
            halves8 *to = (halves8 *)(fours + i + j * 8);
            to[0] = __builtin_shufflevector(low[j], high[j], 0, 8, 1, 9, 2, 10, 3, 11);
            to[1] = __builtin_shufflevector(low[j], high[j], 4, 12, 5, 13, 6, 14, 7, 15);
        }
    }
    for (; i < count; i++)
        fours[i] = rows[0][i] | (uint32_t)rows[1][i] << 8 | (uint32_t)rows[2][i] << 16 | (uint32_t)rows[3][i] << 24;
}

/* Element by element, nearer neighbours first. Inlined for each size, which is then a constant. */
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

/* Depths lie apart, neighbours along the other index side by side. Rows are fetched ahead: there are few bytes of
   each. */
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

/* Elements of a type that are packed as they are, in groups of 4 bytes. */
static void pack_groups(const struct gemm_matrix *matrix, void *panel, int width, int64_t batch, int64_t first,
                        int count, int64_t k0, int depth) {
    const char *corner = corner_of(matrix, batch, first, k0);
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

/* 128 more: the sign's bit the other way round. */
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

/* The upper halves of two rows of floats, `width` apart. */
static void halve(uint32_t *pairs, const float *rows, int width, int count) {
    typedef uint32_t word __attribute__((may_alias));
    const word *low = (const word *)rows, *high = low + width;
    for (int i = 0; i < count; i++)
        pairs[i] = low[i] >> 16 | (high[i] & 0xffff0000);
}

/* Few depths at a time, which stay in the L1 cache. */
void gemm_pack_halved(gemm_pack *pack, const void *source, void *panel, int width, int64_t batch, int64_t first,
                      int count, int64_t k0, int depth) {
    enum { STRIP = 64 };
    float strip[STRIP * GEMM_WIDTH];
    uint32_t *pairs = panel;
    for (int d = 0; d < depth; d += STRIP) {
        int rows = (int)min64(STRIP, depth - d);
        /* The second row of a last pair. */
        if (rows % 2)
            memset(strip + rows * width, 0, (size_t)width * sizeof *strip);
        pack(source, strip, width, batch, first, count, k0 + d, rows);
        for (int i = 0; i < rows; i += 2, pairs += width)
            halve(pairs, strip + i * width, width, count);
    }
}

/* ---- Long groups ---- */

/* Some groups of B at a time, as rows of words that are transposed; group: of A. */
static void pack_grouped(int group, gemm_pack *pack, const void *source, void *panel, int width, int64_t batch,
                         int64_t first, int count, int64_t k0, int depth) {
    uint32_t strip[TILE_GROUPS * GEMM_WIDTH];
    char *to = panel;
    for (int d = 0; d < depth; d += group, to += (int64_t)width * LINE) {
        if (depth - d < group)
            memset(strip, 0, sizeof strip);
        pack(source, strip, width, batch, first, count, k0 + d, (int)min64(group, depth - d));
        transpose(to, TILE_GROUPS, strip, 4 * (int64_t)width, TILE_GROUPS, count);
    }
}

void gemm_pack_grouped(gemm_pack *pack, const void *source, void *panel, int width, int64_t batch, int64_t first,
                       int count, int64_t k0, int depth) {
    pack_grouped(LINE / 2, pack, source, panel, width, batch, first, count, k0, depth);
}

/* Rows that lie together along the depth: lines of them. The next row's are fetched: there are few of each. */
static void pack_lines(const struct gemm_matrix *matrix, void *panel, int width, int64_t batch, int64_t first,
                       int count, int64_t k0, int depth) {
    const char *from = corner_of(matrix, batch, first, k0);
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

/* ---- Which packing ---- */

gemm_pack *gemm_pack_of_a(const struct gemm_kernel *kernel) {
    bool is_grouped = kernel->group_a > kernel->group_b;
    switch (kernel->factors) {
    case WEFT_DATA_DOUBLE:
        return gemm_pack_matrix_double;
    case WEFT_DATA_BFLOAT16:
        return is_grouped ? pack_pairs_grouped : pack_pairs;
    case WEFT_DATA_INT8:
        return is_grouped ? pack_bytes_grouped : pack_bytes_a;
    default:
        return gemm_pack_matrix;
    }
}

/* Bytes keep their signs; all else is as in A of short groups. */
gemm_pack *gemm_pack_of_b(const struct gemm_kernel *kernel) {
    if (kernel->factors == WEFT_DATA_INT8)
        return pack_bytes_b;
    return kernel->factors == WEFT_DATA_BFLOAT16 ? pack_pairs : gemm_pack_of_a(kernel);
}
