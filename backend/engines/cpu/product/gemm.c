/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrix multiplication. C is divided into tiles, which threads process. A tile is summed over panels of k in a
   buffer of its thread, and each of its blocks of rows is stored after its last panel:

       tile of C [tile_m, tile_n]             per thread, in L2/L3
         panel of B [GEMM_DEPTH, tile_n]      packed once per tile and panel, in L2/L3
           block of A [BLOCK_M, GEMM_DEPTH]   packed once per tile and panel, in L2
             kernel [rows, columns]           sums in registers, a sliver of B in L1

   If a tile has few rows, floats and halves of B are multiplied in place if columns are contiguous; if B is contiguous
   along the depth, gemm_skinny.c does so for all of C. This file must not know tensors or operations. */
#include "engines/cpu/product/gemm.h"

#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/product/gemm_skinny.h"

#include <stdatomic.h>
#include <string.h>

enum {
    BLOCK_M = 192,        /* rows of A packed at a time, before rounding to the kernel: 192 KiB of L2 */
    TILE_M = 1152,        /* maximum rows of a tile; packing costs 1/TILE_M + 1/TILE_N loads per multiplication */
    TILE_N = 960,         /* maximum columns of a tile, whose buffers occupy about 5 MiB per thread */
    IN_PLACE_BLOCKS = 12, /* maximum blocks of a kernel's rows that multiply B in place */
    LINE = 64,            /* alignment of buffers in bytes: the widest vector */
    PACK_COST = 16        /* cost of packing a group of B, in multiplications of a FLOAT kernel */
};
/* One thread completes fewer multiplications of a FLOAT kernel than this before another one wakes up. */
static const double ALONE = 1 << 20;

/* Bytes of a group in a panel and of an element of C, which are equal in all kernels. */
static int64_t size_of(const struct gemm_kernel *kernel) { return kernel->type == WEFT_DATA_DOUBLE ? 8 : 4; }

/* Groups of B along k, rounded up to whole groups of A; the last ones may have fewer factors than the others, or
   none. */
static int64_t groups_of(const struct gemm_kernel *kernel, int64_t depth) {
    return round_up(depth, kernel->group_a) / kernel->group_b;
}

/* Number of extra rows at the start of a panel of B. */
static int64_t starts_of(const struct gemm_kernel *kernel) { return kernel->start ? 1 : 0; }

/* Groups of B per panel of k, except perhaps the last, in whole groups of A and, with several panels, in whole cache
   lines. Panels are equal, so that the last one is not thin; at least 1 if k is 0. Measured on a Xeon, f32 1024^3: 3
   panels are 1.02 times as fast as 4, which read and write C once more; 2 are no faster. */
static int64_t panel_groups(const struct gemm *gemm) {
    int64_t groups = groups_of(gemm->kernel, gemm->k), panels = max64(1, divide_up(groups, GEMM_DEPTH));
    int64_t unit = panels > 1 ? LINE / 4 : gemm->kernel->group_a / gemm->kernel->group_b;
    return round_up(max64(1, divide_up(groups, panels)), unit);
}

/* ---- Dividing C into tiles ---- */

struct tiling {
    int64_t tile_m, tile_n, block_m;   /* multiples of the kernel's rows, columns, rows */
    int64_t tiles_m, tiles_n, threads; /* threads: number of buffers, at least 1 */
    int64_t depth;                     /* k elements of each panel, except perhaps the last */
    int64_t a_bytes, b_bytes, c_bytes; /* per thread */
};

/* Divides C into about cuts_m x cuts_n tiles. Tile sizes are rounded up to whole kernels, so there may be fewer
   tiles. */
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

/* Time until the last thread finishes, in the same unit. All tiles count as full ones. */
static double predict(const struct tiling *t, const struct gemm *gemm, int threads) {
    double rounds = (double)divide_up(gemm->batch * t->tiles_m * t->tiles_n, threads);
    return rounds * step_cost(gemm->kernel, t->tile_m, t->tile_n);
}

/* Tries finer divisions until there are as many tiles as threads: fewer tiles may leave threads idle, more tiles pack
   more often. Depends only on sizes and the number of threads, so that gemm_workspace_bytes and gemm_run find the same
   tiling. */
static struct tiling tiling_of(const struct gemm *gemm, int threads) {
    int64_t size = size_of(gemm->kernel);
    int64_t cuts_m = divide_up(gemm->m, TILE_M), cuts_n = divide_up(gemm->n, TILE_N);
    /* For the whole product, in multiplications of a FLOAT kernel. */
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

/* Plus LINE, because the workspace may have any alignment. Whether gemm_skinny_accepts the product is known only with
   the operands. */
int64_t gemm_workspace_bytes(const struct gemm *gemm, int threads) {
    if (is_empty(gemm))
        return 0;
    struct tiling t = tiling_of(gemm, threads);
    return LINE + max64(t.threads * (t.a_bytes + t.b_bytes + t.c_bytes), gemm_skinny_workspace_bytes(gemm, threads));
}

/* Tiles are at most TILE_M x TILE_N, rounded to whole kernels, and panels at most GEMM_DEPTH deep. */
int64_t gemm_workspace_max(const struct gemm *gemm, int threads) {
    int64_t size = size_of(gemm->kernel), rows = gemm->kernel->rows;
    int64_t tile_m = round_up(min64(gemm->m, TILE_M), rows);
    int64_t tile_n = round_up(min64(gemm->n, TILE_N), gemm->kernel->columns);
    int64_t depth = max64(1, min64(groups_of(gemm->kernel, gemm->k), GEMM_DEPTH));
    int64_t block_m = min64(tile_m, round_up(BLOCK_M, rows)), b_depth = depth + starts_of(gemm->kernel);
    int64_t panels = round_up(block_m * depth * size, LINE) + round_up(tile_n * b_depth * size, LINE);
    int64_t bytes = max64(threads, 1) * (panels + round_up(tile_m * tile_n * size, LINE));
    struct gemm few = *gemm;
    few.m = min64(gemm->m, SKINNY_ROWS), few.k = min64(gemm->k, SKINNY_DEPTH);
    return LINE + max64(bytes, gemm_skinny_workspace_bytes(&few, threads));
}

/* ---- Running ---- */

/* next_tile: threads process tiles in order, row-major within a batch entry. A job is one gemm_run, on the caller's
   stack. */
struct job {
    const struct gemm *gemm;
    struct tiling tiling;
    int64_t size; /* bytes of a group and of an element of C */
    char *buffers;
    _Atomic int64_t next_tile;
};

/* The part of C that a thread processes: its row and column in C, and the buffers for packed A, packed B and sums. */
struct tile {
    int64_t batch, row, rows, column, columns;
    int64_t in_place_columns; /* the first columns, for which B is multiplied in place */
    gemm_multiply_in_place *const *in_place;
    char *a, *b, *c;
};

/* [first, first + count) x [k0, k0 + depth) of one operand. */
struct part {
    int64_t batch, first, count, k0;
    int depth;
};

/* One of the two operands: `extent` rows or columns of C, in panels of `width`, each with `starts` extra rows at its
   start. */
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

/* Packs a part, panel after panel. Incomplete last panels or groups are cleared, so that kernels multiply zeros instead
   of checking. */
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

/* Offset of a part's panels among all panels of an operand, [batch, depths, rows or columns]; the offset of the entry
   past the batch is their total size in bytes. */
static int64_t packed_offset(const struct gemm *gemm, const struct operand *operand, const struct part *part) {
    int64_t groups = groups_of(gemm->kernel, gemm->k), depth = panel_groups(gemm);
    int64_t padded_extent = round_up(operand->extent, operand->width), panels = divide_up(groups, depth);
    int64_t before = part->k0 / gemm->kernel->group_b, panel_groups = min64(depth, groups - before) + operand->starts;
    int64_t rows = part->batch * (groups + panels * operand->starts) + before + before / depth * operand->starts;
    return (rows * padded_extent + part->first * panel_groups) * size_of(gemm->kernel);
}

int64_t gemm_packed_bytes(const struct gemm *gemm, bool is_b) {
    struct operand operand = operand_of(gemm, is_b);
    return packed_offset(gemm, &operand, &(struct part){.batch = gemm->batch});
}

void gemm_prepack(const struct gemm *gemm, bool is_b, void *packed) {
    struct operand operand = operand_of(gemm, is_b);
    int64_t depth = panel_groups(gemm) * gemm->kernel->group_b;
    for (int64_t i = 0; i < gemm->batch; i++)
        for (int64_t k0 = 0; k0 < gemm->k; k0 += depth) {
            struct part part = {i, 0, operand.extent, k0, (int)min64(depth, gemm->k - k0)};
            pack_panels(gemm->kernel, &operand, (char *)packed + packed_offset(gemm, &operand, &part), part);
        }
}

/* Returns the panels of a part, which are prepacked or packed into the buffer. */
static const char *panels_of(const struct gemm *gemm, bool is_b, char *buffer, struct part part) {
    struct operand operand = operand_of(gemm, is_b);
    if (operand.packed)
        return operand.packed + packed_offset(gemm, &operand, &part);
    pack_panels(gemm->kernel, &operand, buffer, part);
    return buffer;
}

/* Panels of both operands, for the same range of the depth. */
struct panels {
    const char *a, *b;
    int64_t k0;
    int depth;
};

/* The part of C that a kernel computes at once, possibly clipped: panels of A and of B, sums in the tile's buffer, and
   the memory of C. */
struct block_of_c {
    const char *a, *b;
    gemm_multiply_in_place *const *in_place; /* NULL: b is a panel */
    int64_t b_step;                          /* row pitch of B in memory, in elements */
    char *sums;
    struct gemm_destination destination;
    int64_t rows, columns;
};

static void fetch(const struct gemm_destination *destination, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t line = 0; line < columns * destination->column_bytes; line += LINE)
            __builtin_prefetch(destination->at + i * destination->row_bytes + line, 1);
}

/* Adds the product of two panels to the sums. These are C itself if that is allowed and the kernel's block is not
   clipped. */
static void multiply_part(const struct job *job, const struct block_of_c *block, int64_t groups, bool first) {
    const struct gemm_kernel *kernel = job->gemm->kernel;
    const struct gemm_destination *destination = &block->destination;
    bool is_few = block->rows <= kernel->few_rows;
    bool is_whole = block->columns == kernel->columns && block->rows == (is_few ? kernel->few_rows : kernel->rows);
    bool is_in_place = destination->accepts_sums && is_whole;
    char *sums = is_in_place ? destination->at : block->sums;
    int64_t ld = is_in_place ? destination->row_bytes / job->size : job->tiling.tile_n;
    if (destination->at)
        fetch(destination, block->rows, block->columns);
    if (block->in_place)
        block->in_place[is_few](groups, block->a, block->b, block->b_step, sums, ld, first);
    else
        (is_few ? kernel->multiply_few : kernel->multiply)(groups, block->a, block->b, sums, ld, first);
    for (int64_t i = 0; i < block->rows && destination->accepts_sums && !is_whole; i++)
        memcpy(destination->at + i * destination->row_bytes, sums + i * ld * job->size,
               (size_t)(block->columns * job->size));
}

/* Adds packed A [rows, depth] times packed B [depth, columns of the tile] to the rows that start at `row`. Columns are
   the outer loop: the panel of B stays in L1 for all rows of A. */
static void multiply_block(const struct job *job, const struct tile *tile, const struct panels *panels, int64_t row,
                           int64_t rows, struct gemm_destination destination) {
    const struct gemm_kernel *kernel = job->gemm->kernel;
    int64_t ld = job->tiling.tile_n, groups = groups_of(kernel, panels->depth), b_depth = groups + starts_of(kernel);
    /* Columns past the tile's are also computed, from zeros: the buffer has room for whole kernels. */
    for (int64_t j = 0; j < tile->columns; j += kernel->columns) {
        for (int64_t i = 0; i < rows; i += kernel->rows) {
            struct block_of_c block = {.a = panels->a + i * groups * job->size,
                                       .b = panels->b + j * b_depth * job->size,
                                       .sums = tile->c + ((row + i) * ld + j) * job->size,
                                       .destination = destination,
                                       .rows = min64(kernel->rows, rows - i),
                                       .columns = min64(kernel->columns, tile->columns - j)};
            if (j < tile->in_place_columns) {
                block.b = gemm_corner(job->gemm->b, tile->batch, tile->column + j, panels->k0);
                block.b_step = ((const struct gemm_matrix *)job->gemm->b)->depth_stride;
                block.in_place = tile->in_place;
            }
            if (destination.at)
                block.destination.at += i * destination.row_bytes + j * destination.column_bytes;
            multiply_part(job, &block, groups, panels->k0 == 0);
        }
    }
}

/* Destination of rows. Incomplete sums are stored there only if they may be computed in place. */
static struct gemm_destination find_rows(const struct job *job, const struct tile *tile, int64_t row, int64_t rows,
                                         bool is_last) {
    const struct gemm *gemm = job->gemm;
    struct gemm_destination destination = {0};
    if (gemm->find)
        destination = gemm->find(gemm->sink, tile->batch, tile->row + row, (int)rows, tile->column);
    return is_last || destination.accepts_sums ? destination : (struct gemm_destination){0};
}

/* Stores complete rows of the tile, starting at `row`; the sink may change them in place. */
static void store_block(const struct job *job, const struct tile *tile, int64_t row, int64_t rows) {
    int64_t ld = job->tiling.tile_n;
    job->gemm->store(job->gemm->sink, tile->c + row * ld * job->size, ld, tile->batch, tile->row + row, (int)rows,
                     tile->column, (int)tile->columns);
}

/* k is the outer loop, because a panel of B is packed once for all blocks of rows. */
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
        int64_t in_place = tile->in_place_columns * (groups_of(kernel, depth) + starts_of(kernel)) * job->size;
        struct part columns = {tile->batch, tile->column + tile->in_place_columns,
                               tile->columns - tile->in_place_columns, k0, depth};
        struct panels panels = {
            .b = panels_of(gemm, true, tile->b + in_place, columns) - in_place, .k0 = k0, .depth = depth};
        for (int64_t row = 0; row < tile->rows; row += job->tiling.block_m) {
            int64_t rows = min64(job->tiling.block_m, tile->rows - row);
            panels.a = panels_of(gemm, false, tile->a, (struct part){tile->batch, tile->row + row, rows, k0, depth});
            bool is_last = k0 + depth == gemm->k;
            struct gemm_destination destination = find_rows(job, tile, row, rows, is_last);
            /* The first panel overwrites the previous tile's sums in the buffer. */
            multiply_block(job, tile, &panels, row, rows, destination);
            if (is_last && !destination.accepts_sums)
                store_block(job, tile, row, rows);
        }
    }
}

/* The function that multiplies B in place, or NULL if B must be packed. */
static gemm_multiply_in_place *const *in_place_kernels_of(const struct gemm *gemm) {
    const struct gemm_kernel *kernel = gemm->kernel;
    const struct gemm_matrix *b = gemm->b;
    if (gemm->pack_b != gemm_pack_matrix || b->stride != 1)
        return NULL;
    gemm_multiply_in_place *const *in_place = b->type == WEFT_DATA_HALF ? kernel->in_place_halves : kernel->in_place;
    return in_place[0] && (gemm_has_floats(b) || b->type == WEFT_DATA_HALF) ? in_place : NULL;
}

/* Chooses columns to multiply in place, in whole kernels, if few rows read them: packing then costs more than it saves.
   Sums are bit-identical. Rows with a pitch that is a multiple of 4 KiB evict each other from the caches: measured on a
   Xeon, even then 2 blocks are 1.4 times as fast in place, 12 are 1.03 times, and 20 are slower. */
static void choose_in_place_columns(const struct gemm *gemm, struct tile *tile) {
    bool is_packed = gemm->packed_b != NULL;
    tile->in_place =
        !is_packed && tile->rows <= IN_PLACE_BLOCKS * gemm->kernel->rows ? in_place_kernels_of(gemm) : NULL;
    tile->in_place_columns = tile->in_place ? tile->columns / gemm->kernel->columns * gemm->kernel->columns : 0;
}

/* Thread main loop: processes tiles until none is left. `thread` is the index of a set of buffers, independent of the
   pool's thread: threads_for passes each number once. */
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
        choose_in_place_columns(gemm, &tile);
        run_tile(job, &tile);
    }
    if (gemm->kernel->end)
        gemm->kernel->end();
}

void gemm_run(const struct gemm *gemm, int threads, void *workspace) {
    if (is_empty(gemm))
        return;
    /* Rounds up to the next multiple of LINE. */
    char *buffers = (char *)workspace + (-(uintptr_t)workspace & (LINE - 1));
    if (gemm_skinny_accepts(gemm)) {
        gemm_skinny_run(gemm, threads, buffers);
        return;
    }
    struct job job = {.gemm = gemm, .tiling = tiling_of(gemm, threads), .buffers = buffers};
    job.size = size_of(gemm->kernel);
    threads_for(job.tiling.threads, run_tiles, &job);
}
