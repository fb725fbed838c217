/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrix multiplication. C is cut into tiles, taken by threads; a tile is summed over panels
   of k in a buffer of its thread, and each of its blocks of rows is stored as its last panel is done:

       tile of C [tile_m, tile_n]             per thread, in L2/L3
         panel of B [GEMM_DEPTH, tile_n]      packed once per tile and panel, in L2/L3
           block of A [BLOCK_M, GEMM_DEPTH]   packed once per tile and panel, in L2
             kernel [rows, columns]           sums in registers, a sliver of B in L1

   It must not know tensors or operations. */
#include "engines/cpu/product/gemm.h"

#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <stdatomic.h>
#include <string.h>

enum {
    BLOCK_M = 192, /* rows of A packed at a time, before rounding to the kernel: 192 KiB of L2 */
    TILE_M = 768,  /* a tile at most. Packing costs 1/TILE_M + 1/TILE_N loads per multiplication, */
    TILE_N = 960,  /* a tile's buffers some 4 MiB per thread */
    LINE = 64,     /* alignment of buffers, bytes: the widest vector */
    PACK_COST = 16 /* multiplications in the time that packing one element takes */
};
/* Fewer multiplications than this are done before another thread wakes up. */
static const double ALONE = 1 << 20;

/* ---- Kernels ---- */

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "fp-contract=fast") /* strict C11 would keep a * b + c from fusing */
#endif

/* Sums stay in registers for all of a panel's depth: 2 * height vectors of them, two of B, one of A broadcast. A macro,
   since GCC splits vectors into what the enclosing function's target has before it inlines: one text for several
   targets can only be expanded. */
#define GEMM_KERNEL(function, attribute, real, lanes, height)                                                          \
    attribute static void function(int64_t depth, const void *a_panel, const void *b_panel, void *c_block, int64_t ld, \
                                   bool first) {                                                                       \
        typedef real vector __attribute__((vector_size(lanes * sizeof(real)), may_alias));                             \
        const real *a = a_panel, *b = b_panel;                                                                         \
        real *c = c_block;                                                                                             \
        vector sum[height][2] = {{{0}}};                                                                               \
        for (; depth > 0; depth--, a += height, b += 2 * lanes) {                                                      \
            vector left = *(const vector *)b, right = *(const vector *)(b + lanes);                                    \
            _Pragma("GCC unroll 16") for (int i = 0; i < height; i++) {                                                \
                sum[i][0] += a[i] * left;                                                                              \
                sum[i][1] += a[i] * right;                                                                             \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < height; i++, c += ld) {                                           \
            vector *left = (vector *)c, *right = (vector *)(c + lanes);                                                \
            if (first)                                                                                                 \
                *left = *right = (vector){0};                                                                          \
            *left += sum[i][0];                                                                                        \
            *right += sum[i][1];                                                                                       \
        }                                                                                                              \
    }

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f")))
#define AVX2 __attribute__((target("avx2,fma")))
GEMM_KERNEL(multiply_avx512_f32, AVX512, float, 16, 12)
GEMM_KERNEL(multiply_avx512_f64, AVX512, double, 8, 12)
GEMM_KERNEL(multiply_avx2_f32, AVX2, float, 8, 6)
GEMM_KERNEL(multiply_avx2_f64, AVX2, double, 4, 6)
#endif
/* 16-byte vectors: SSE2, NEON, or whatever the compiler makes of them */
GEMM_KERNEL(multiply_plain_f32, , float, 4, 6)
GEMM_KERNEL(multiply_plain_f64, , double, 2, 6)

#if defined(__x86_64__)
/* The same of four products at a time, of bytes without sign by bytes with one. A's have 128 added, so that B's own
   sums times 128 are taken off in the end. */
#define VNNI __attribute__((target("avx512f,avx512vnni")))
VNNI static void multiply_vnni(int64_t depth, const void *a_panel, const void *b_panel, void *c_block, int64_t ld,
                               bool first) {
    enum { HEIGHT = 12, LANES = 16 };
    /* Sums keep one type throughout: under two, GCC leaves them in memory. */
    typedef uint32_t vector __attribute__((vector_size(LANES * 4), may_alias));
    const uint32_t *a = a_panel, *b = b_panel;
    uint32_t *c = c_block;
    vector sum[HEIGHT][2] = {{{0}}}, excess[2] = {{0}};
#define DOTS(sums, bytes, other) (vector) _mm512_dpbusd_epi32((__m512i)(sums), (__m512i)(bytes), (__m512i)(other))
    for (; depth > 0; depth--, a += HEIGHT, b += 2 * LANES) {
        vector left = *(const vector *)b, right = *(const vector *)(b + LANES);
        excess[0] = DOTS(excess[0], (vector){0} + 0x80808080, left);
        excess[1] = DOTS(excess[1], (vector){0} + 0x80808080, right);
        _Pragma("GCC unroll 16") for (int i = 0; i < HEIGHT; i++) {
            sum[i][0] = DOTS(sum[i][0], (vector){0} + a[i], left);
            sum[i][1] = DOTS(sum[i][1], (vector){0} + a[i], right);
        }
    }
#undef DOTS
    _Pragma("GCC unroll 16") for (int i = 0; i < HEIGHT; i++, c += ld) {
        vector *left = (vector *)c, *right = (vector *)(c + LANES);
        if (first)
            *left = *right = (vector){0};
        *left += sum[i][0] - excess[0];
        *right += sum[i][1] - excess[1];
    }
}
#endif

static const struct gemm_kernel kernels[] = {
#if defined(__x86_64__)
    {"vnni 12x32", WEFT_DATA_INT32, 12, 32, multiply_vnni},
    {"avx512 12x32", WEFT_DATA_FLOAT, 12, 32, multiply_avx512_f32},
    {"avx512 12x16", WEFT_DATA_DOUBLE, 12, 16, multiply_avx512_f64},
    {"avx2 6x16", WEFT_DATA_FLOAT, 6, 16, multiply_avx2_f32},
    {"avx2 6x8", WEFT_DATA_DOUBLE, 6, 8, multiply_avx2_f64},
#endif
    {"plain 6x8", WEFT_DATA_FLOAT, 6, 8, multiply_plain_f32},
    {"plain 6x4", WEFT_DATA_DOUBLE, 6, 4, multiply_plain_f64},
};

/* By the name's beginning, which says what a kernel was compiled for. */
static bool cpu_runs(const struct gemm_kernel *kernel) {
#if defined(__x86_64__)
    if (strncmp(kernel->name, "vnni", 4) == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
    if (strncmp(kernel->name, "avx512", 6) == 0)
        return __builtin_cpu_supports("avx512f");
    if (strncmp(kernel->name, "avx2", 4) == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)kernel;
    return true;
}

/* Rank 1 and above are for tests, which run every kernel that the CPU has. */
const struct gemm_kernel *gemm_kernel(weftDataType_t type, int rank) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].type == type && cpu_runs(&kernels[i]) && rank-- == 0)
            return &kernels[i];
    return NULL;
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

/* Time, in multiplications per step of k, until the last thread is done. All tiles count as full ones. */
static double predict(const struct tiling *t, int64_t batch, int threads) {
    double rounds = (double)divide_up(batch * t->tiles_m * t->tiles_n, threads);
    double product = (double)t->tile_m * (double)t->tile_n;
    return rounds * (product + PACK_COST * (double)(t->tile_m + t->tile_n));
}

/* Tries finer cuts until there are as many tiles as threads: fewer threads may leave some idle, more pack more often.
   Depends on sizes and threads alone: workspace bytes and the run come to the same tiling. */
static struct tiling tiling_of(const struct gemm *gemm, int threads) {
    int64_t size = gemm->kernel->type == WEFT_DATA_DOUBLE ? 8 : 4;
    int64_t cuts_m = divide_up(gemm->m, TILE_M), cuts_n = divide_up(gemm->n, TILE_N);
    /* Multiplications of the whole product. */
    double work = (double)gemm->batch * (double)gemm->m * (double)gemm->n * (double)gemm->k;
    struct tiling best = cut(gemm, cuts_m, cuts_n);
    if (threads < 1 || work < ALONE)
        threads = 1;
    /* i more cuts along m, j more along n; the limit keeps their product near the number of threads. */
    for (int64_t i = 0; i < threads; i++) {
        for (int64_t j = 0; j <= threads / (i + 1); j++) {
            struct tiling t = cut(gemm, cuts_m + i, cuts_n + j);
            if (predict(&t, gemm->batch, threads) < predict(&best, gemm->batch, threads))
                best = t;
        }
    }
    best.threads = min64(threads, max64(1, gemm->batch * best.tiles_m * best.tiles_n));
    best.block_m = min64(best.tile_m, round_up(BLOCK_M, gemm->kernel->rows));
    /* Panels of equal depth, so that the last one is not a thin rest; at least 1 where k is 0. */
    best.depth = max64(1, divide_up(gemm->k, max64(1, divide_up(gemm->k, GEMM_DEPTH))));
    best.a_bytes = round_up(best.block_m * best.depth * size, LINE);
    best.b_bytes = round_up(best.tile_n * best.depth * size, LINE);
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
    int64_t size = gemm->kernel->type == WEFT_DATA_DOUBLE ? 8 : 4, rows = gemm->kernel->rows;
    int64_t tile_m = round_up(min64(gemm->m, TILE_M), rows);
    int64_t tile_n = round_up(min64(gemm->n, TILE_N), gemm->kernel->columns);
    int64_t depth = max64(1, min64(gemm->k, GEMM_DEPTH)), block_m = min64(tile_m, round_up(BLOCK_M, rows));
    int64_t panels = round_up(block_m * depth * size, LINE) + round_up(tile_n * depth * size, LINE);
    return LINE + max64(threads, 1) * (panels + round_up(tile_m * tile_n * size, LINE));
}

/* ---- Running ---- */

/* next_tile: threads take tiles in order, row-major within a batch entry. A job is one gemm_run; it lies on the
   caller's stack. */
struct job {
    const struct gemm *gemm;
    struct tiling tiling;
    int64_t size; /* bytes of an element */
    char *buffers;
    _Atomic int64_t next_tile;
};

/* The part of C that a thread works on, and where: row and column in C, the buffers of packed A, packed B and sums. */
struct tile {
    int64_t batch, row, rows, column, columns;
    char *a, *b, *c;
};

/* Packs [first, first + count) x [k0, k0 + depth) of one operand, panel after panel. A last panel that is not full is
   cleared, so that kernels multiply zeros instead of asking. */
static void pack(const struct job *job, gemm_pack *function, const void *source, char *panels, int width, int64_t batch,
                 int64_t first, int64_t count, int64_t k0, int depth) {
    /* Of one panel: width * depth elements. */
    int64_t panel_bytes = width * depth * job->size;
    for (int64_t i = 0; i < count; i += width, panels += panel_bytes) {
        int lanes = (int)min64(width, count - i);
        if (lanes < width)
            memset(panels, 0, (size_t)panel_bytes);
        function(source, panels, width, batch, first + i, lanes, k0, depth);
    }
}

/* Adds packed A [rows, depth] times packed B [depth, columns of the tile] to the rows from `row`. Columns outside: the
   panel of B stays in L1 while rows of A pass. */
static void multiply_block(const struct job *job, const struct tile *tile, int64_t row, int64_t rows, int depth,
                           bool first) {
    const struct gemm_kernel *kernel = job->gemm->kernel;
    int64_t ld = job->tiling.tile_n;
    /* Columns beyond the tile's are computed, too, on zeros: the buffer has room for whole kernels. */
    for (int64_t j = 0; j < tile->columns; j += kernel->columns) {
        for (int64_t i = 0; i < rows; i += kernel->rows) {
            kernel->multiply(depth, tile->a + i * depth * job->size, tile->b + j * depth * job->size,
                             tile->c + ((row + i) * ld + j) * job->size, ld, first);
        }
    }
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
    /* No panel: the sums are zeros. */
    if (gemm->k <= 0) {
        memset(tile->c, 0, (size_t)job->tiling.c_bytes);
        store_block(job, tile, 0, tile->rows);
    }
    for (int64_t k0 = 0; k0 < gemm->k; k0 += job->tiling.depth) {
        int depth = (int)min64(job->tiling.depth, gemm->k - k0);
        pack(job, gemm->pack_b, gemm->b, tile->b, gemm->kernel->columns, tile->batch, tile->column, tile->columns, k0,
             depth);
        for (int64_t row = 0; row < tile->rows; row += job->tiling.block_m) {
            int64_t rows = min64(job->tiling.block_m, tile->rows - row);
            pack(job, gemm->pack_a, gemm->a, tile->a, gemm->kernel->rows, tile->batch, tile->row + row, rows, k0,
                 depth);
            /* The first panel overwrites what the tile before has left in the buffer. */
            multiply_block(job, tile, row, rows, depth, k0 == 0);
            if (k0 + depth == gemm->k)
                store_block(job, tile, row, rows);
        }
    }
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
    while ((index = atomic_fetch_add(&job->next_tile, 1)) < gemm->batch * per_batch) {
        tile.batch = index / per_batch;
        tile.row = index % per_batch / t->tiles_n * t->tile_m;
        tile.column = index % t->tiles_n * t->tile_n;
        tile.rows = min64(t->tile_m, gemm->m - tile.row);
        tile.columns = min64(t->tile_n, gemm->n - tile.column);
        run_tile(job, &tile);
    }
}

void gemm_run(const struct gemm *gemm, int threads, void *workspace) {
    if (is_empty(gemm))
        return;
    struct job job = {.gemm = gemm, .tiling = tiling_of(gemm, threads)};
    job.size = gemm->kernel->type == WEFT_DATA_DOUBLE ? 8 : 4;
    /* Up to the next multiple of LINE. */
    job.buffers = (char *)workspace + (-(uintptr_t)workspace & (LINE - 1));
    threads_for(job.tiling.threads, run_tiles, &job);
}

/* ---- Operands in memory ---- */

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

/* Transposes rows [count, depth], `ld` from row to row, into panel [depth, width]. Four rows at a
   time: reads of few rows keep out of each other's cache sets when ld is a power of two. */
static void transpose(float *panel, int width, const float *rows, int64_t ld, int count, int depth) {
    typedef float four __attribute__((vector_size(16), may_alias, aligned(4)));
    int i = 0;
    for (; i + 4 <= count; i += 4, rows += 4 * ld) {
        /* Blocks of 4 x 4: two shuffles of each pair of rows turn four rows into four columns. */
        float *to = panel + i;
        int d = 0;
        for (; d + 4 <= depth; d += 4, to += 4 * width) {
            four a = *(const four *)(rows + d), b = *(const four *)(rows + ld + d);
            four c = *(const four *)(rows + 2 * ld + d), e = *(const four *)(rows + 3 * ld + d);
            four ab01 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            four ab23 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            four ce01 = __builtin_shufflevector(c, e, 0, 4, 1, 5);
            four ce23 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
            *(four *)to = __builtin_shufflevector(ab01, ce01, 0, 1, 4, 5);
            *(four *)(to + width) = __builtin_shufflevector(ab01, ce01, 2, 3, 6, 7);
            *(four *)(to + 2 * width) = __builtin_shufflevector(ab23, ce23, 0, 1, 4, 5);
            *(four *)(to + 3 * width) = __builtin_shufflevector(ab23, ce23, 2, 3, 6, 7);
        }
        /* Depths that are left over, and below rows that are: at most three of each. */
        for (; d < depth; d++, to += width)
            for (int lane = 0; lane < 4; lane++)
                to[lane] = rows[lane * ld + d];
    }
    for (; i < count; i++, rows += ld)
        for (int d = 0; d < depth; d++)
            panel[(int64_t)d * width + i] = rows[d];
}

/* Whether elements can be read where they lie: user memory promises no alignment. */
static bool has_floats(const struct gemm_matrix *matrix) {
    return matrix->type == WEFT_DATA_FLOAT && (uintptr_t)matrix->base % sizeof(float) == 0;
}

/* A matrix whose rows (of A; columns of B) are contiguous. */
static void pack_contiguous_depth(const struct gemm_matrix *matrix, float *panel, int width, int64_t index, int count,
                                  int depth) {
    if (has_floats(matrix)) {
        transpose(panel, width, (const float *)matrix->base + index, matrix->stride, count, depth);
        return;
    }
    /* Four rows converted at a time, so that transpose reads them as floats. */
    float strip[4][GEMM_DEPTH];
    for (int i = 0; i < count; i += 4) {
        int rows = (int)min64(4, count - i);
        for (int j = 0; j < rows; j++, index += matrix->stride)
            dtype_to_f32(strip[j], matrix->type, matrix->base, index, depth);
        transpose(panel + i, width, strip[0], GEMM_DEPTH, rows, depth);
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
    for (int d = 0; d < depth; d++, index += matrix->depth_stride, dst += width) {
        /* Depth by depth: a row of the panel is `width` neighbours along the other index. */
        if (has_floats(matrix)) {
            const float *src = (const float *)matrix->base + index;
            for (int i = 0; i < count; i++)
                dst[i] = src[i * matrix->stride];
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

/* ---- Bytes ---- */

/* Up to four neighbours along depth, with zeros behind the last. */
static int32_t four_bytes(const int8_t *bytes, int64_t step, int64_t count) {
    uint32_t four = 0;
    for (int64_t i = 0; i < min64(4, count); i++)
        four |= (uint32_t)(uint8_t)bytes[i * step] << 8 * i;
    return (int32_t)four;
}

/* Neighbours along depth lie apart, those along the other index side by side. */
static void interleave(int32_t *panel, const int8_t *bytes, int64_t step, int count) {
    const uint8_t *rows[4];
    for (int i = 0; i < 4; i++)
        rows[i] = (const uint8_t *)bytes + i * step;
    for (int i = 0; i < count; i++)
        panel[i] =
            (int32_t)(rows[0][i] | (uint32_t)rows[1][i] << 8 | (uint32_t)rows[2][i] << 16 | (uint32_t)rows[3][i] << 24);
}

/* k0 and depth count fours. */
static void pack_bytes(const struct gemm_matrix *matrix, int32_t *panel, int width, int64_t batch, int64_t first,
                       int count, int64_t k0, int depth) {
    const int8_t *bytes = (const int8_t *)matrix->base + matrix_index(matrix, batch, first, 4 * k0);
    int64_t step = matrix->depth_stride, left = matrix->depth - 4 * k0;
    int whole = (int)min64(depth, left / 4);
    if (step == 1 && matrix->stride % 4 == 0 && (uintptr_t)bytes % 4 == 0) {
        /* Floats are moved as they are. */
        transpose((float *)panel, width, (const float *)(const void *)bytes, matrix->stride / 4, count, whole);
    } else {
        for (int d = 0; d < whole; d++) {
            if (matrix->stride == 1)
                interleave(panel + (int64_t)d * width, bytes + 4 * d * step, step, count);
            for (int i = 0; i < count && matrix->stride != 1; i++)
                panel[(int64_t)d * width + i] = four_bytes(bytes + i * matrix->stride + 4 * d * step, step, 4);
        }
    }
    for (int i = 0; i < count && whole < depth; i++)
        panel[(int64_t)whole * width + i] =
            four_bytes(bytes + i * matrix->stride + 4 * whole * step, step, left - 4 * whole);
}

void gemm_pack_bytes_b(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                       int depth) {
    pack_bytes(source, panel, width, batch, first, count, k0, depth);
}

/* 128 more: the sign's bit the other way round. */
void gemm_pack_bytes_a(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                       int depth) {
    uint32_t *fours = panel;
    pack_bytes(source, panel, width, batch, first, count, k0, depth);
    for (int64_t i = 0; i < (int64_t)depth * width; i++)
        fours[i] ^= 0x80808080;
}
