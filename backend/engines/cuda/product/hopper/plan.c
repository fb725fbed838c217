/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the tile and the number of splits of k that minimize the predicted time over a table. Pure functions. */
#include "base/number.h"
#include "engines/cuda/product/hopper/hopper.h"

/* Indexed by the knob TILE_SIZE minus 1. Efficiencies and the constants below are fitted to products and convolutions
   of the benchmark, each timed with every tile on an H200: `python -m benchmarks matmul conv --tiles` reports how close
   the chosen tiles come to the best ones. Tiles of a cluster split are as efficient as the same tiles without it.
   4096^3 of bf16, us: an H100's 174 by tile 3, 204 to 214 by tile 29; an H200's 181 and 186. */
static const struct hopper_tile tiles[HOPPER_TILE_ROWS] = {
    /* 1 */ {.rows = 256, .columns = 192, .row_blocks = 2, .stages = 3, .cluster = 2, .efficiency = 0.93},
    /* 2 */ {.rows = 128, .columns = 256, .row_blocks = 1, .stages = 4, .cluster = 2, .efficiency = 0.945},
    /* 3 */ {.rows = 128, .columns = 256, .row_blocks = 1, .stages = 4, .cluster = 1, .efficiency = 0.953},
    /* 4 */ {.rows = 256, .columns = 128, .row_blocks = 2, .stages = 4, .cluster = 1, .efficiency = 0.91},
    /* 5 */ {.rows = 256, .columns = 160, .row_blocks = 2, .stages = 4, .cluster = 1, .efficiency = 0.95},
    /* 6 */ {.rows = 128, .columns = 192, .row_blocks = 1, .stages = 4, .cluster = 2, .efficiency = 0.90},
    /* 7 */ {.rows = 128, .columns = 192, .row_blocks = 1, .stages = 4, .cluster = 1, .efficiency = 0.94},
    /* 8 */ {.rows = 128, .columns = 160, .row_blocks = 1, .stages = 5, .cluster = 1, .efficiency = 0.90},
    /* 9 */ {.rows = 128, .columns = 128, .row_blocks = 1, .stages = 6, .cluster = 2, .efficiency = 0.86},
    /* 10 */ {.rows = 128, .columns = 128, .row_blocks = 1, .stages = 6, .cluster = 1, .efficiency = 0.93},
    /* 11 */ {.rows = 128, .columns = 96, .row_blocks = 1, .stages = 7, .cluster = 1, .efficiency = 0.75},
    /* 12 */ {.rows = 256, .columns = 64, .row_blocks = 2, .stages = 5, .cluster = 1, .efficiency = 0.72},
    /* 13 */ {.rows = 128, .columns = 64, .row_blocks = 1, .stages = 8, .cluster = 1, .efficiency = 0.80},
    /* 14 */ {.rows = 128, .columns = 32, .row_blocks = 1, .stages = 9, .cluster = 1, .efficiency = 0.40},
    /* 15 */ {.rows = 256, .columns = 192, .row_blocks = 2, .stages = 3, .cluster = 1, .efficiency = 0.93},
    /* 16 */ {.rows = 128, .columns = 16, .row_blocks = 1, .stages = 11, .cluster = 1, .efficiency = 0.30},
    /* 17 */ {.rows = 192, .columns = 192, .row_blocks = 1, .stages = 3, .cluster = 1, .efficiency = 0.94},
    /* 18 */ {.rows = 256, .columns = 128, .row_blocks = 2, .stages = 4, .cluster = 2, .efficiency = 0.89},
    /* 19 */ {.rows = 192, .columns = 128, .row_blocks = 1, .stages = 5, .cluster = 1, .efficiency = 0.94},
    /* 20 */ {.rows = 256, .columns = 96, .row_blocks = 2, .stages = 5, .cluster = 1, .efficiency = 0.85},
    /* 21 */ {.rows = 256, .columns = 160, .row_blocks = 2, .stages = 4, .cluster = 2, .efficiency = 0.90},
    /* 22 */ {.rows = 128, .columns = 224, .row_blocks = 1, .stages = 5, .cluster = 1, .efficiency = 0.88},
    /* 23 */ {.rows = 192, .columns = 160, .row_blocks = 1, .stages = 5, .cluster = 1, .efficiency = 0.96},
    /* 24 */ {.rows = 256, .columns = 32, .row_blocks = 2, .stages = 6, .cluster = 1, .efficiency = 0.36},
    /* 25 */
    {.rows = 128,
     .columns = 128,
     .row_blocks = 1,
     .stages = 6,
     .cluster = 1,
     .efficiency = 0.93,
     .schedule = SCHEDULE_CLUSTER_SPLIT},
    /* 26 */
    {.rows = 128,
     .columns = 16,
     .row_blocks = 1,
     .stages = 11,
     .cluster = 1,
     .efficiency = 0.30,
     .schedule = SCHEDULE_CLUSTER_SPLIT},
    /* 27 */
    {.rows = 128,
     .columns = 32,
     .row_blocks = 1,
     .stages = 9,
     .cluster = 1,
     .efficiency = 0.40,
     .schedule = SCHEDULE_CLUSTER_SPLIT},
    /* 28 */
    {.rows = 128,
     .columns = 64,
     .row_blocks = 1,
     .stages = 8,
     .cluster = 1,
     .efficiency = 0.80,
     .schedule = SCHEDULE_CLUSTER_SPLIT},
    /* 29 */
    {.rows = 128,
     .columns = 128,
     .row_blocks = 2,
     .stages = 6,
     .cluster = 1,
     .efficiency = 0.935,
     .schedule = SCHEDULE_PINGPONG},
    /* 30 */
    {.rows = 128,
     .columns = 160,
     .row_blocks = 2,
     .stages = 5,
     .cluster = 1,
     .efficiency = 0.95,
     .schedule = SCHEDULE_PINGPONG},
    /* 31 */
    {.rows = 128,
     .columns = 192,
     .row_blocks = 2,
     .stages = 5,
     .cluster = 1,
     .efficiency = 0.96,
     .schedule = SCHEDULE_PINGPONG},
    /* 32 */ {.rows = 128, .columns = 64, .row_blocks = 1, .stages = 8, .cluster = 4, .efficiency = 0.80},
    /* 33 */ {.rows = 128, .columns = 32, .row_blocks = 1, .stages = 9, .cluster = 4, .efficiency = 0.40},
    /* 34 */
    {.rows = 128,
     .columns = 160,
     .row_blocks = 1,
     .stages = 5,
     .cluster = 1,
     .efficiency = 0.80,
     .schedule = SCHEDULE_CLUSTER_SPLIT},
    /* 35 */
    {.rows = 128,
     .columns = 192,
     .row_blocks = 1,
     .stages = 4,
     .cluster = 1,
     .efficiency = 0.98,
     .schedule = SCHEDULE_CLUSTER_SPLIT},
};

/* Properties of the chip; clocks are per multiprocessor. They are fitted, because the chip lowers its clock at its
   power limit, so that long products run slower than the nominal clock suggests. */
static const double POWERED_CLOCK = 1.54e9; /* Hz, under the power limit, if all multiprocessors are busy */
static const double CLOCK_MAX = 1.98e9;     /* Hz */
static const double IDLE_POWER = 0.4; /* share of an idle multiprocessor's power that raises the clock of the others */
/* Multiply-adds per clock of a multiprocessor. A step is 128 bytes of k for all types: 64 halves at this rate, 128
   bytes at twice, 32 tf32 at half the rate; so every step takes the same number of clocks, and 64 represents all
   types. */
static const double PRODUCTS_PER_CLOCK = 2048;    /* products of 16-bit operands */
static const double INSTRUCTIONS_PER_CLOCK = 128; /* scalar instructions */
static const double FILL_BYTES_PER_CLOCK = 77;    /* from L2, if not all multiprocessors load at once */
static const double L2_BYTES_PER_SECOND = 4.5e12; /* for all multiprocessors */
static const double MEMORY_SHARE = 0.85;          /* share of the bandwidth that copies reach */
static const double SKINNY_MEMORY_SHARE = 0.94;   /* the same for clusters of four, which need less from L2 */
static const double UNHIDDEN_SHARE = 0.2;         /* share of the shorter of computing and moving that is not hidden */

/* Overhead of a kernel, and of the one that combines splits. */
static const double LAUNCH_SECONDS = 1e-6, COMBINE_SECONDS = 2.5e-6;
/* Extra time for few rows, which leave half of each tile empty: 64 rows by 4096 x 4096 take 18.7 us this way, 15.8
   swapped (H100). */
static const double HALF_EMPTY_SECONDS = 3e-6;
static const double CLUSTER_CLOCKS = 1500; /* clocks until the blocks of a cluster can see each other's barriers */

/* The epilogue of a tile, which only overlaps with the products of another tile. */
static const double EPILOGUE_CLOCKS = 580;
static const double EPILOGUE_ELEMENTS_PER_CLOCK = 23;
static const double PINGPONG_CLOCKS = 300; /* clocks until the other of the two warpgroups gets the tensor cores */

/* Clocks per element that is stored individually; in part of a sector, with 8 elements of its column; in an access of
   fewer than ACCESS_BYTES; or loaded at the position of its sum. */
static const double SINGLE_CLOCKS = 3.5, SHORT_COLUMN_CLOCKS = 0.4, SHORT_CLOCKS = 0.14, LOAD_CLOCKS = 1.3;

/* Factors of a tile's efficiency: with promotion, with several scales among its columns, and with block scales in
   general. */
static const double PROMOTED_SHARE = 0.95, SCALED_SHARE = 0.96, BLOCK_SCALES_SHARE = 0.82;

/* Efficiency of tiles of 128x64 if a matrix is contiguous along k: 333 rows by 6400 x 1600, 309 ns per step instead of
   178 with neither (H200). Factor for the wider tiles of a cluster split, whose blocks are twice as many. */
static const double NARROW_SHARE = 0.6, CLUSTER_SPLIT_SHARE = 0.9;

/* Clocks of a prologue per row of A and step, half of which overlaps with products; the second number applies if k is
   pixels of an image, which may be outside. */
static const double PROLOGUE_CLOCKS_PER_ROW = 5.2, PROLOGUE_CLOCKS_PER_LINE = 8.8;

enum {
    SECTOR_BYTES = 32,           /* in L2 */
    ACCESS_BYTES = 16,           /* maximum bytes per access of a thread */
    LONG_STEPS = 48,             /* steps along k of a long matrix product */
    SPLIT_STEPS_MIN = 4,         /* minimum steps along k that make a split worthwhile */
    SPLIT_BYTES_MAX = 256000000, /* maximum bytes of partial sums in the workspace */
    SCALES_MAX = 3,              /* maximum scales along a tile's columns; along rows, each row has its scale in a
                                    register */
    ACCUMULATORS_MAX = 256,      /* columns of all row blocks that leave registers for epilogue operands */
    FETCHED_WORDS_MAX = 10,      /* maximum words of epilogue operands that fit in the registers of wide tiles */
    FETCHED_WORDS_MAX_WITH_REDUCTIONS = 2,
};

/* Groups of multiprocessors (GPCs) are not multiples of four, so an eighth of the clusters of four cannot be placed. */
int64_t hopper_clusters(const struct hopper_tile *tile, const struct device *device) {
    int64_t clusters = device->cuda.multiprocessors / tile->cluster;
    return tile_is_skinny(tile) ? clusters * 7 / 8 : clusters;
}

int64_t hopper_tiles(const struct hopper *h, const struct hopper_tile *tile) {
    return modes_extent(&h->c.modes[BATCH]) *
           divide_up(modes_extent(&h->c.modes[ROW]), (int64_t)tile->rows * tile->cluster) *
           divide_up(modes_extent(&h->c.modes[COLUMN]), tile->columns);
}

int64_t hopper_tiles_along(const struct hopper *h, enum index index) {
    int64_t rows = (int64_t)h->tile->rows * h->tile->cluster;
    return divide_up(modes_extent(&h->c.modes[index]), index == ROW ? rows : h->tile->columns);
}

/* Brute force: the height of a group is at most the number of clusters. Ties go to the lower height. */
int64_t hopper_raster_rows(const struct hopper *h, const struct device *device, int64_t tiles_m, int64_t tiles_n) {
    int64_t clusters = hopper_clusters(h->tile, device), least = INT64_MAX, best = 1;
    for (int64_t height = 1; height <= tiles_m && height <= clusters && !h->keeps_column; height++) {
        /* The tiles that run concurrently, and the rows of A and columns of B that they read: the smallest number fits
           L2 best. */
        int64_t across = divide_up(clusters, height) < tiles_n ? divide_up(clusters, height) : tiles_n;
        int64_t down = divide_up(clusters, height * across) * height;
        int64_t lines = down * h->tile->rows * h->tile->cluster + across * h->tile->columns;
        if (lines < least) {
            least = lines;
            best = height;
        }
    }
    int64_t groups = (2 * tiles_m + best) / (2 * best);
    return divide_up(tiles_m, groups > 1 ? groups : 1);
}

/* Returns the time of computing and moving bytes that overlap. */
static double overlapped_seconds(const struct hopper_tile *tile, double computing, double moving) {
    moving /= tile_is_skinny(tile) ? SKINNY_MEMORY_SHARE : MEMORY_SHARE;
    double longer = computing > moving ? computing : moving, shorter = computing + moving - longer;
    return LAUNCH_SECONDS + longer + UNHIDDEN_SHARE * shorter;
}

static double step_clocks(const struct hopper_tile *tile) {
    /* A step takes as long as its products or as loading a slot, whichever is longer; blocks of a cluster each load a
       share of B. */
    double lines = tile->rows + (double)tile->columns / tile->cluster;
    double fill = lines * HOPPER_K_BYTES / FILL_BYTES_PER_CLOCK;
    double step = (double)tile->rows * tile->columns * 64 / PRODUCTS_PER_CLOCK / tile->efficiency;
    return step > fill ? step : fill;
}

/* With ping-pong, a block has two tiles in flight: one multiplies during the epilogue of the other, so a turn takes the
   longer of the two; if that is the epilogue, half of their sum. The last epilogue does not overlap. */
double hopper_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                      double epilogue, double moving) {
    double clusters = (double)(hopper_clusters(tile, device) / tile_splits(tile));
    /* The last wave takes as long as a full one, however few tiles it has, except for the halves of a cluster split,
       which wait for memory. */
    double full_waves = (double)divide_up((int64_t)units, clusters), share = units / clusters;
    double waves = tile_splits(tile) > 1 && share > 1 ? share : full_waves, area = (double)tile->rows * tile->columns;
    double summing = steps / tile_splits(tile) * step_clocks(tile), at_work = tile_is_pingpong(tile) ? 2 * area : area;
    double end = EPILOGUE_CLOCKS + at_work * (1 / EPILOGUE_ELEMENTS_PER_CLOCK + epilogue / INSTRUCTIONS_PER_CLOCK);
    /* each of two groups computes a tile */
    double turn = PINGPONG_CLOCKS + (summing > end ? summing : (summing + end) / 2);
    double clocks = (tile->cluster * tile_splits(tile) > 1 ? CLUSTER_CLOCKS : 0) +
                    (tile_is_pingpong(tile) ? waves * turn + end : waves * (summing + end));
    /* Idle multiprocessors leave power, and thus clock, to the others. */
    double idle = waves > 0 ? 1 - units / (waves * clusters) : 0, clock = POWERED_CLOCK / (1 - IDLE_POWER * idle);
    return overlapped_seconds(tile, clocks / (clock < CLOCK_MAX ? clock : CLOCK_MAX), moving);
}

/* A lower bound over all numbers of splits: all multiprocessors are busy all the time, and there is no epilogue. It
   includes neither waves nor epilogues; consider() stops trying more splits when it exceeds the best time. */
static double least_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                            double moving) {
    double clusters = (double)(hopper_clusters(tile, device) / tile_splits(tile));
    double clocks = units * steps / tile_splits(tile) * step_clocks(tile) / clusters;
    return overlapped_seconds(tile, clocks / POWERED_CLOCK, moving);
}

/* Two warpgroups with few columns each do not hide the cost of promotion, nor that of several scales among a tile's
   columns. */
static struct hopper_tile promoted_tile(const struct hopper *h, const struct hopper_tile *tile) {
    struct hopper_tile adjusted = *tile;
    if (hopper_is_scaled(h))
        adjusted.efficiency *= BLOCK_SCALES_SHARE;
    if (tile->row_blocks == 1 && tile->rows == 128 && tile->columns <= 160)
        adjusted.efficiency *= PROMOTED_SHARE;
    if (hopper_scale_columns(h, tile) < tile->columns)
        adjusted.efficiency *= SCALED_SHARE;
    return adjusted;
}

/* Warps that transform A cannot issue products at the same time. */
static struct hopper_tile prologue_tile(const struct hopper *h, const struct hopper_tile *tile) {
    struct hopper_tile adjusted = *tile;
    bool by_pixels = h->k_is_pixels && h->view[OPERAND_A].is_image;
    /* Chosen so that a step takes the longer of the plain step and the prologue plus half of the products. */
    double step = (double)tile->rows * tile->columns * 64 / PRODUCTS_PER_CLOCK, bare = step / tile->efficiency;
    double used = tile->rows * (by_pixels ? PROLOGUE_CLOCKS_PER_LINE : PROLOGUE_CLOCKS_PER_ROW) + bare / 2;
    adjusted.efficiency = step / (used > bare ? used : bare);
    return adjusted;
}

/* 288: of 224 registers (pipeline.cuh), 144 are left besides addresses and those of a piece. A thread has half as many
   sums as the tile has columns, and as many elements of each operand; epilogue_fetched_words counts 4 for 4 of them. */
bool hopper_reads_tile(const struct hopper *h) {
    int words = epilogue_fetched_words(&h->c.epilogue);
    return h->c.epilogue.lead == ROW && h->splits == 1 && h->c.epilogue.reduction_count == 0 &&
           h->tile->row_blocks == 1 && words > 0 && h->tile->columns * (1 + words / 4) <= 288;
}

bool hopper_gathers_rows(const struct hopper *h) {
    return h->c.epilogue.lead == ROW && h->c.epilogue.run >= 4 && h->c.epilogue.reduction_count == 0;
}

/* Additional time if warps store pieces shorter than an L2 sector or single elements, and load epilogue operands at the
   positions of the sums. Staged results are stored whole, and their operands are loaded whole or ahead, except for
   phases: a 1x1 data gradient of stride 2 to 256 x 56 x 56 x 256 with two such operands took 2,294 us (H200). */
static double scattered_seconds(const struct hopper *h, const struct device *device) {
    const struct epilogue *epilogue = &h->c.epilogue;
    int last = epilogue->mode_count[epilogue->lead] - 1;
    double clocks = 0;
    bool is_staged = hopper_find_store(h) != NULL;
    for (int k = 0; k < epilogue->count && (!is_staged || h->c.phase_count > 0); k++) {
        const struct epilogue_operand *operand = &epilogue->at[k];
        int64_t bytes = epilogue->run * dtype_bytes(operand->type, 1),
                stride = last < 0 ? 1 : operand->strides[epilogue->lead][last];
        enum index other = epilogue->lead == ROW ? COLUMN : ROW;
        bool is_whole = stride != 0 && epilogue->mode_count[other] > 0 && operand->strides[other][0] != 0;
        if (operand->role == EPILOGUE_LOAD || operand->role == EPILOGUE_OLD)
            clocks += is_whole && !hopper_reads_tile(h) ? LOAD_CLOCKS : 0;
        else if (is_staged)
            continue;
        else if (operand->role == EPILOGUE_STORE && stride != 1)
            clocks += SINGLE_CLOCKS;
        else if (operand->role == EPILOGUE_STORE && epilogue->lead == ROW && !hopper_gathers_rows(h))
            clocks += 8 * dtype_bytes(operand->type, 1) < SECTOR_BYTES ? SHORT_COLUMN_CLOCKS : 0;
        else if (operand->role == EPILOGUE_STORE && epilogue->run == 1) /* one access per element of any type */
            clocks += bytes < ACCESS_BYTES ? SHORT_CLOCKS * ACCESS_BYTES / 2 : 0;
        else if (operand->role == EPILOGUE_STORE)
            clocks += bytes < ACCESS_BYTES ? SHORT_CLOCKS * ACCESS_BYTES / (double)bytes : 0;
    }
    return clocks * (double)contraction_elements(&h->c) / device->cuda.multiprocessors / POWERED_CLOCK;
}

/* True for a matrix product with an operand that is contiguous along k, and with a long k: 1024^3 is fastest with tiles
   of 128x64. */
static bool has_k_major_matrix(const struct hopper *h) {
    return h->is_matrix && h->steps >= LONG_STEPS && (h->view[OPERAND_A].is_k_major || h->view[OPERAND_B].is_k_major);
}

/* Such operands are read in pieces of 128 bytes, one of each row at a time, which L2 delivers more slowly. Few columns
   are read once and leave L2 to the other operand. */
static struct hopper_tile k_major_tile(const struct hopper *h, const struct hopper_tile *tile) {
    struct hopper_tile adjusted = *tile;
    bool is_narrow = modes_extent(&h->c.modes[COLUMN]) <= 64;
    if (tile->rows == 128 && tile->columns == 64 && !is_narrow)
        adjusted.efficiency = NARROW_SHARE;
    if (tile_splits(tile) > 1 && !is_narrow)
        adjusted.efficiency *= CLUSTER_SPLIT_SHARE;
    return adjusted;
}

/* Returns the tile with its efficiency for this product. */
static struct hopper_tile used_tile(const struct hopper *h, const struct hopper_tile *tile) {
    if (!h->promotes && h->c.prologue_count == 0 && has_k_major_matrix(h))
        return k_major_tile(h, tile);
    return h->promotes ? promoted_tile(h, tile) : h->c.prologue_count > 0 ? prologue_tile(h, tile) : *tile;
}

/* 8: a partial sum is written and read, 4 bytes each. */
static double combine_seconds(double elements, int splits) {
    return splits == 1 ? 0 : COMBINE_SECONDS + elements * splits * 8 / L2_BYTES_PER_SECOND;
}

/* Number of epilogue operands in memory. */
static int memory_operands(const struct hopper *h) {
    int count = 0;
    for (int k = 0; k < h->c.epilogue.count; k++)
        count += h->c.epilogue.at[k].role != EPILOGUE_REDUCED;
    return count;
}

/* True if the accumulators leave few registers for anything but the output. */
static bool has_many_accumulators(const struct hopper_tile *tile) {
    return tile->row_blocks * tile->columns > ACCUMULATORS_MAX;
}

/* Half as many registers as columns: 128 of the 160 that each of three consumer warpgroups has, 192 of the 232 of two
   (pipeline.cuh). Ping-pong has no room for two sets of sums. */
bool hopper_can_promote(const struct hopper_tile *tile) {
    return !tile_is_pingpong(tile) &&
           (tile->row_blocks + 1) * tile->columns <= (tile->rows / tile->row_blocks > 128 ? 256 : 384);
}

/* True if one tile covers all rows or all columns of a matrix: the other operand is read once. */
static bool is_skinny(const struct hopper *h, const struct hopper_tile *tile) {
    return h->is_matrix &&
           (modes_extent(&h->c.modes[ROW]) <= tile->rows || modes_extent(&h->c.modes[COLUMN]) <= tile->columns);
}

/* True for a matrix whose swapped product would fill its tiles. */
static bool is_half_empty(const struct hopper *h, const struct hopper_tile *tile) {
    return h->is_matrix && 2 * modes_extent(&h->c.modes[ROW]) <= tile->rows &&
           modes_extent(&h->c.modes[COLUMN]) > tile->rows;
}

/* True if splitting k in halves within a cluster may be faster: for an image, or a matrix that is contiguous along k,
   with so few tiles that at least half of the multiprocessors would be idle, and for skinny products, whose other
   operand is read once anyway; with few columns, some multiprocessors may then compute two halves. 64 rows by 4096 x
   11008: 30.5 to 27.9 us; x 16384 34.3 to 36.4, x 57344 118 to 125 (H200). */
static bool should_split(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    int64_t blocks = hopper_tiles(h, tile) * tile_splits(tile), multiprocessors = device->cuda.multiprocessors;
    bool is_image = h->view[OPERAND_A].is_image, is_narrow = !is_image && modes_extent(&h->c.modes[COLUMN]) <= 64;
    return (is_image ? h->c.phase_count == 0 : is_skinny(h, tile) || has_k_major_matrix(h)) &&
           2 * blocks <= (is_narrow ? 3 : 2) * multiprocessors;
}

/* True if clusters of four should share the few columns of a skinny product, which leaves L2 almost entirely to the
   other operand. The blocks of a cluster wait for each other, so each loads more slowly: nearly all multiprocessors
   must be busy, for one or two waves. 64 rows by 4096 x 14336: 33.5 to 31.1 us, by 8192 x 28672 121 to 111; with four
   waves 118 to 134 (H200). */
static bool should_share(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    int64_t units = hopper_tiles(h, tile), clusters = hopper_clusters(tile, device);
    bool is_full = units <= 2 * clusters && 20 * units >= 17 * clusters * (units > clusters ? 2 : 1);
    return is_full && is_skinny(h, tile) && 2 * modes_extent(&h->c.modes[COLUMN]) > tile->columns && !h->promotes &&
           h->c.prologue_count == 0;
}

/* Registers for epilogue operands. One with the result's layout is copied instead; 4 is the number that
   epilogue_fetched_words counts for it. */
static int fetched_words(const struct hopper *h) {
    const struct epilogue_operand *store = epilogue_find_half(&h->c);
    int words = epilogue_fetched_words(&h->c.epilogue);
    for (int k = 0; k < h->c.epilogue.count && store; k++)
        if (epilogue_has_layout_of(&h->c, k, store))
            return words - 4;
    return words;
}

/* True if columns are reduced from epilogue tiles. For two sums per column, this needs fewer instructions, which one
   warpgroup of a ping-pong would take from the other. Without ping-pong, nothing hides the latency of shared memory,
   and it is slower. */
static bool reduces_staged(const struct hopper *h, const struct hopper_tile *tile) {
    return tile_is_pingpong(tile) && h->c.epilogue.spans[SPAN_COLUMN].count > 1 && epilogue_reduces_only_stored(&h->c);
}

/* Partial sums of reductions leave fewer registers for the accumulators; ping-pong prefetches less. */
static bool reductions_fit(const struct hopper *h, const struct hopper_tile *tile) {
    const struct reduced_span *spans = h->c.epilogue.spans;
    bool has_columns = spans[SPAN_COLUMN].count > 0, has_others = spans[SPAN_ROW].count + spans[SPAN_ALL].count > 0;
    int columns = tile->row_blocks * tile->columns, groups = tile->rows / (tile->row_blocks * 64);
    if (h->c.epilogue.reduction_count == 0)
        return true;
    if (reduces_staged(h, tile))
        return tile->columns % 32 == 0;
    if (has_many_accumulators(tile) || tile_splits(tile) > 1 || (has_columns && tile->columns % 32 != 0) ||
        (has_columns && has_others && columns > 128) ||
        (has_columns && columns > 192 && fetched_words(h) > FETCHED_WORDS_MAX_WITH_REDUCTIONS))
        return false;
    return has_others ? tile->row_blocks == 1 || tile->columns < 128 || tile_is_pingpong(tile)
                      : groups <= 2 || columns < 192 || memory_operands(h) < 2;
}

/* Two wide blocks of rows need two sets of addresses; ping-pong prefetches less. */
static bool operands_fit(const struct hopper *h, const struct hopper_tile *tile) {
    int most = !tile_is_pingpong(tile) ? 2 : fetched_words(h) > 4 ? 3 : 4;
    return tile->row_blocks == 1 || tile->columns < 128 || memory_operands(h) <= most;
}

/* True if registers hold two steps of A besides the accumulators; reductions need some more. A step of A is 16
   registers per block of 64 rows, so two are 32; accumulators are columns / 2. The bound is CONSUMER_REGISTERS of
   pipeline.cuh. */
static bool can_fuse_prologue(const struct hopper *h, const struct hopper_tile *tile) {
    bool is_wide = tile->rows / tile->row_blocks > 128;
    bool has_reductions = h->c.epilogue.reduction_count > 0;
    int registers = tile->row_blocks * (tile->columns / 2 + 32);
    return tile_splits(tile) == 1 && registers <= (is_wide ? has_reductions ? 88 : 112 : has_reductions ? 96 : 160);
}

/* True if each box of an MN-major operand is a whole panel of 64, and each block of a cluster loads whole ones. */
static bool panels_fit(const struct hopper *h, const struct hopper_tile *tile) {
    return (h->view[OPERAND_A].is_k_major || tile->rows % HOPPER_PANEL == 0) &&
           (h->view[OPERAND_B].is_k_major || tile->columns % (HOPPER_PANEL * tile->cluster) == 0);
}

/* Requirements of main loop and schedule on a tile. Each half of a cluster split must have enough steps. Overrides
   change rows and k per entry, which cluster split and ping-pong do not support. */
static bool scheme_fits(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    bool has_overrides = contraction_has_overrides(&h->c), has_prologue = h->c.prologue_count > 0;
    if (has_prologue && !can_fuse_prologue(h, tile))
        return false;
    if (tile_splits(tile) > 1 &&
        (h->steps < 2 * SPLIT_STEPS_MIN || has_overrides ||
         (h->view[OPERAND_A].is_image && (!should_split(h, device, tile) || tile->columns > 128))))
        return false;
    if (tile_is_pingpong(tile) && (has_prologue || has_overrides))
        return false;
    if (h->promotes && !hopper_can_promote(tile))
        return false;
    return hopper_scale_columns(h, tile) * SCALES_MAX >= tile->columns;
}

/* True if registers hold the epilogue's operands. */
static bool epilogue_fits(const struct hopper *h, const struct hopper_tile *tile) {
    bool is_wide = tile->row_blocks * tile->columns > 128 || tile->rows / tile->row_blocks > 128;
    if (is_wide && fetched_words(h) > FETCHED_WORDS_MAX)
        return false;
    if (has_many_accumulators(tile) && (memory_operands(h) > 1 || !hopper_find_store(h)))
        return false;
    return reductions_fit(h, tile) && operands_fit(h, tile);
}

static bool fits(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    bool lead_is_row = h->c.epilogue.lead == ROW;
    if (!lead_is_row && tile->columns % 32 != 0) /* required by the exchange between the lanes of a quad */
        return false;
    if (tile->columns <= 32 && !lead_is_row && modes_extent(&h->c.modes[COLUMN]) > 32) /* other tiles are faster */
        return false;
    if (tile->cluster > 1 && h->view[OPERAND_B].is_image) /* im2col boxes are not multicast */
        return false;
    if (hopper_clusters(tile, device) == 0) /* a partition of a chip */
        return false;
    return scheme_fits(h, device, tile) && epilogue_fits(h, tile) && panels_fit(h, tile);
}

/* True if a tile that fits should be chosen without a knob. */
static bool is_worthwhile(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    return (!tile_is_skinny(tile) || should_share(h, device, tile)) &&
           (tile_splits(tile) == 1 || should_split(h, device, tile));
}

/* Only if useful: many splits have many blocks, so ping-pong would have no second tile. */
static bool can_split(const struct hopper_tile *tile) {
    return !has_many_accumulators(tile) && tile_splits(tile) == 1 && !tile_is_pingpong(tile);
}

static bool split_fits(const struct hopper *h, double elements, int splits) {
    return splits == 1 || (h->c.phase_count == 0 && h->c.epilogue.reduction_count == 0 &&
                           h->steps / splits >= SPLIT_STEPS_MIN && elements * 4 * splits < SPLIT_BYTES_MAX);
}

/* Requirements that do not depend on the tile. */
struct demand {
    double moving;   /* seconds to move all bytes */
    double epilogue; /* instructions per element of the result */
    double elements; /* elements of the result */
    double steps;    /* steps along k of an average tile */
    int splits;      /* requested; 0: the fastest number */
};

/* Chooses the tile, with the fastest number of splits, if it is predicted to be faster than the current choice. If the
   number of splits is requested, only that one is considered. */
static void consider(struct hopper *h, const struct device *device, const struct hopper_tile *tile,
                     const struct demand *demand) {
    if (tile->cluster * tile_splits(tile) > device->cuda.cluster_most)
        return;
    const struct hopper_tile used = used_tile(h, tile);
    double units = (double)hopper_tiles(h, tile);
    double least = least_seconds(&used, device, units, demand->steps, demand->moving);
    int first = demand->splits > 0 ? demand->splits : 1;
    int last = demand->splits > 0 ? demand->splits : can_split(tile) ? HOPPER_SPLITS_MAX : 1;
    for (int splits = first; splits <= last; splits++) {
        double combining =
            combine_seconds(demand->elements, splits) + (is_half_empty(h, tile) ? HALF_EMPTY_SECONDS : 0);
        double steps = splits > 1 ? (double)divide_up(h->steps, splits) : demand->steps;
        if (demand->splits == 0 && !split_fits(h, demand->elements, splits))
            return;
        if (h->tile && combining + least >= h->seconds) /* more splits are no faster, either */
            return;
        double seconds =
            combining + hopper_seconds(&used, device, units * splits, steps, demand->epilogue, demand->moving);
        if ((splits > 1 && !can_split(tile)) || (h->tile && seconds >= h->seconds))
            continue;
        h->seconds = seconds;
        h->tile = tile;
        h->splits = splits;
    }
}

/* Share of the phases of a data gradient that see taps: the tiles of the others have no steps. */
static double share_of_phases(const struct hopper *h) {
    double share = 1;
    for (int i = 0; i < h->c.phase_count; i++)
        share *= (double)min64(h->c.phases[i].taps, h->c.phases[i].tap_step) / (double)h->c.phases[i].stride;
    return share;
}

/* Slowdown of the filter gradient of a volume that does not fit in L2: each slice of taps reads pixels that the others
   read long ago. Measured on an H100: 1.98 to 2.07 for 3x3x3 at 64^3 and 128^3, none at 32^3. */
static double volume_slowdown(const struct hopper *h, const struct device *device) {
    int64_t bytes = tensor_bytes(h->c.operand[OPERAND_A].tensor) + tensor_bytes(h->c.operand[OPERAND_B].tensor);
    bool is_volume = h->k_is_pixels && conv_geometry(h->c.node->op).w.size[0] > 1;
    return is_volume && bytes > device->cuda.l2_bytes ? 2 : 1;
}

void hopper_plan(struct hopper *h, const struct device *device, const struct knob_choices *knobs) {
    int64_t chosen = knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE), requested = knob_value(knobs, WEFT_KNOB_TYPE_SPLIT_K);
    int64_t block = HOPPER_K_BYTES / dtype_bytes((weftDataType_t)h->c.operand[OPERAND_A].tensor->type, 1);
    if (requested > HOPPER_SPLITS_MAX) /* value for another family */
        requested = 0;
    h->steps = divide_up(h->channels, block) * h->taps[0] * h->taps[1] * h->taps[2];
    const struct demand demand = {.moving = contraction_memory_seconds(&h->c, device),
                                  .epilogue = epilogue_instructions(&h->c),
                                  .elements = (double)contraction_elements(&h->c),
                                  .steps = (double)h->steps * share_of_phases(h),
                                  /* reductions cannot use partial sums */
                                  .splits = h->c.epilogue.reduction_count > 0 ? 0 : (int)requested};
    if (chosen > HOPPER_TILE_ROWS) /* row of another family's table */
        chosen = 0;
    h->tile = NULL;
    for (int t = 0; t < HOPPER_TILE_ROWS; t++)
        if (fits(h, device, &tiles[t]) && (chosen == 0 ? is_worthwhile(h, device, &tiles[t]) : chosen == t + 1))
            consider(h, device, &tiles[t], &demand);
    if (!h->tile)
        return;
    h->c.epilogue.reduces_stored = reduces_staged(h, h->tile);
    /* This comes after the choice, because these factors are the same for every tile, but not for other families. */
    h->seconds *= volume_slowdown(h, device);
    h->seconds += scattered_seconds(h, device) + reductions_seconds(&h->c);
    h->steps_per_split = divide_up(h->steps, (int64_t)h->splits * tile_splits(h->tile));
    /* Drop splits that would have no steps. */
    h->splits = (int)divide_up(h->steps, h->steps_per_split * tile_splits(h->tile));
    h->c.splits = h->splits;
    h->c.steps_per_split = h->steps_per_split;
}
