/* SPDX-License-Identifier: Apache-2.0 */
/* Which tile, and into how many splits of k: the least predicted time over a table. Pure. */
#include "base/number.h"
#include "engines/cuda/product/hopper/hopper.h"

/* By the number of the knob TILE_SIZE. Efficiencies and the numbers below are fitted to products and convolutions of
   the benchmark, each timed with every tile on an H200: `python -m weft bench matmul conv --tiles` tells how near what
   they choose comes to the best tile. Tiles of a cluster split are as efficient as their like without.
   4096^3 of bf16, us: an H100's 174 by tile 3, 204 to 214 by tile 29; an H200's 181 and 186. */
static const struct hopper_tile tiles[HOPPER_TILE_ROWS] = {
    /*  1 */ {.rows = 256, .columns = 192, .row_blocks = 2, .stages = 3, .cluster = 2, .efficiency = 0.93},
    /*  2 */ {.rows = 128, .columns = 256, .row_blocks = 1, .stages = 4, .cluster = 2, .efficiency = 0.945},
    /*  3 */ {.rows = 128, .columns = 256, .row_blocks = 1, .stages = 4, .cluster = 1, .efficiency = 0.953},
    /*  4 */ {.rows = 256, .columns = 128, .row_blocks = 2, .stages = 4, .cluster = 1, .efficiency = 0.91},
    /*  5 */ {.rows = 256, .columns = 160, .row_blocks = 2, .stages = 4, .cluster = 1, .efficiency = 0.95},
    /*  6 */ {.rows = 128, .columns = 192, .row_blocks = 1, .stages = 4, .cluster = 2, .efficiency = 0.90},
    /*  7 */ {.rows = 128, .columns = 192, .row_blocks = 1, .stages = 4, .cluster = 1, .efficiency = 0.94},
    /*  8 */ {.rows = 128, .columns = 160, .row_blocks = 1, .stages = 5, .cluster = 1, .efficiency = 0.90},
    /*  9 */ {.rows = 128, .columns = 128, .row_blocks = 1, .stages = 6, .cluster = 2, .efficiency = 0.86},
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
};

/* The chip. Clocks are those of a multiprocessor. Fitted: the chip lowers its clock under its power limit, so long
   products run slower than the nominal clock says. */
static const double POWERED_CLOCK = 1.54e9; /* Hz, under the power limit, when all multiprocessors work */
static const double MOST_CLOCK = 1.98e9;    /* Hz */
static const double IDLE_POWER = 0.4; /* share of its power that an idle multiprocessor leaves to the others' clock */
/* Multiply-adds of a multiprocessor. A step is 128 bytes of k whatever the type: 64 halves at this rate, 128 bytes at
   twice, 32 tf32 at half of it; so all steps take the same clocks, and 64 stands for all. */
static const double PRODUCTS_PER_CLOCK = 2048;    /* of 16-bit operands */
static const double INSTRUCTIONS_PER_CLOCK = 128; /* of single threads */
static const double FILL_BYTES_PER_CLOCK = 77;    /* from L2, when not all ask at once */
static const double L2_BYTES_PER_SECOND = 4.5e12; /* of all multiprocessors */
static const double MEMORY_SHARE = 0.85;          /* of the bandwidth that copies reach */
static const double SKINNY_MEMORY_SHARE = 0.94;   /* of clusters of four, which ask L2 for less */
static const double UNHIDDEN_SHARE = 0.2;         /* of the shorter one of computing and moving */

/* A kernel, and the one that combines splits. */
static const double LAUNCH_SECONDS = 1e-6, COMBINE_SECONDS = 2.5e-6;
/* Of few rows that leave half of each tile empty: 64 rows by 4096 x 4096 take 18.7 us so, 15.8 swapped (H100). */
static const double HALF_EMPTY_SECONDS = 3e-6;
static const double CLUSTER_CLOCKS = 1500; /* before the blocks of a cluster see each other's barriers */

/* The epilogue of a tile, which only another tile's products hide. */
static const double EPILOGUE_CLOCKS = 580;
static const double EPILOGUE_ELEMENTS_PER_CLOCK = 23;
static const double PINGPONG_CLOCKS = 300; /* until the next one of two warpgroups has the tensor cores */

/* Clocks for an element that is stored alone; in part of a sector, with 8 of its column; in an access of fewer than
   ACCESS_BYTES; or that is loaded where the sum lies. */
static const double ALONE_CLOCKS = 3.5, SHORT_COLUMN_CLOCKS = 0.4, SHORT_CLOCKS = 0.14, LOAD_CLOCKS = 1.3;

/* Shares of a tile's efficiency that promotion leaves, several scales in its columns, and scales of blocks at all. */
static const double PROMOTED_SHARE = 0.95, SCALED_SHARE = 0.96, BLOCK_SCALES_SHARE = 0.82;

/* A prologue, for each row of A and step, beside which half of the products are hidden; or where k is pixels of an
   image, that lie inside or not. */
static const double PREPARING_CLOCKS_PER_ROW = 5.2, PREPARING_CLOCKS_PER_LINE = 8.8;

enum {
    SECTOR_BYTES = 32,             /* of L2 */
    ACCESS_BYTES = 16,             /* of a thread, at most */
    SPLITS_LEAST_STEPS = 4,        /* along k, that a split is worth */
    SPLITS_MOST_BYTES = 256000000, /* of partial sums in the workspace */
    SCALES_MOST = 3,               /* along a tile's columns: rows have a scale for each in registers */
    ACCUMULATORS_MOST = 256,       /* columns of all row blocks, beside which registers hold epilogue operands */
    FETCHED_WORDS_MAX = 10,        /* of epilogue operands that wide tiles have registers for, */
    FETCHED_WORDS_MAX_WITH_REDUCTIONS = 2,
};

/* Groups of multiprocessors (GPCs) are no multiples of four: an eighth of the clusters of four finds no place. */
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
        /* The tiles that are at work at one time, and the rows of A and columns of B that these read: the fewest fit L2
           best. */
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

/* Of what computes and what moves bytes at the same time. */
static double overlapped_seconds(const struct hopper_tile *tile, double computing, double moving) {
    moving /= tile_is_skinny(tile) ? SKINNY_MEMORY_SHARE : MEMORY_SHARE;
    double longer = computing > moving ? computing : moving, shorter = computing + moving - longer;
    return LAUNCH_SECONDS + longer + UNHIDDEN_SHARE * shorter;
}

static double step_clocks(const struct hopper_tile *tile) {
    /* A step takes as long as its products or as filling a slot, whichever is longer; blocks of a cluster load a share
       of B each. */
    double lines = tile->rows + (double)tile->columns / tile->cluster;
    double fill = lines * HOPPER_K_BYTES / FILL_BYTES_PER_CLOCK;
    double step = (double)tile->rows * tile->columns * 64 / PRODUCTS_PER_CLOCK / tile->efficiency;
    return step > fill ? step : fill;
}

/* In a ping-pong two tiles are under way in a block: one multiplies while the other's epilogue runs, so a turn is the
   longer of the two; where the epilogue is the longer one, half of what both take. The last epilogue is seen whole. */
double hopper_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                      double epilogue, double moving) {
    double clusters = (double)(hopper_clusters(tile, device) / tile_splits(tile));
    /* The last wave is as long as a full one, however few tiles it has; but for the halves of a cluster split, which
       wait for memory. */
    double whole = (double)divide_up((int64_t)units, clusters), share = units / clusters;
    double waves = tile_splits(tile) > 1 && share > 1 ? share : whole, area = (double)tile->rows * tile->columns;
    double summing = steps / tile_splits(tile) * step_clocks(tile), at_work = tile_is_pingpong(tile) ? 2 * area : area;
    double end = EPILOGUE_CLOCKS + at_work * (1 / EPILOGUE_ELEMENTS_PER_CLOCK + epilogue / INSTRUCTIONS_PER_CLOCK);
    double turn = PINGPONG_CLOCKS + (summing > end ? summing : (summing + end) / 2); /* two groups make a tile each */
    double clocks = (tile->cluster * tile_splits(tile) > 1 ? CLUSTER_CLOCKS : 0) +
                    (tile_is_pingpong(tile) ? waves * turn + end : waves * (summing + end));
    /* Idle multiprocessors leave power, and so clock, to the others. */
    double idle = waves > 0 ? 1 - units / (waves * clusters) : 0, clock = POWERED_CLOCK / (1 - IDLE_POWER * idle);
    return overlapped_seconds(tile, clocks / (clock < MOST_CLOCK ? clock : MOST_CLOCK), moving);
}

/* What no split of the sums takes less than: all multiprocessors are at work all the time, and nothing ends. A lower
   bound that grows with neither waves nor ends: consider() stops trying more splits by it. */
static double least_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                            double moving) {
    double clusters = (double)(hopper_clusters(tile, device) / tile_splits(tile));
    double clocks = units * steps / tile_splits(tile) * step_clocks(tile) / clusters;
    return overlapped_seconds(tile, clocks / POWERED_CLOCK, moving);
}

/* Two warpgroups of few columns each do not hide from each other what promotion takes, nor what several scales of a
   tile's columns do. */
static struct hopper_tile promoted(const struct hopper *h, const struct hopper_tile *tile) {
    struct hopper_tile made = *tile;
    if (hopper_is_scaled(h))
        made.efficiency *= BLOCK_SCALES_SHARE;
    if (tile->row_blocks == 1 && tile->rows == 128 && tile->columns <= 160)
        made.efficiency *= PROMOTED_SHARE;
    if (hopper_scale_columns(h, tile) < tile->columns)
        made.efficiency *= SCALED_SHARE;
    return made;
}

/* What changes A on its way keeps its warps from issuing products. */
static struct hopper_tile preparing(const struct hopper *h, const struct hopper_tile *tile) {
    struct hopper_tile made = *tile;
    bool by_pixels = h->k_is_pixels && h->view[OPERAND_A].is_image;
    /* Chosen so that a step takes the longer of the bare one and of preparing plus half of the products. */
    double step = (double)tile->rows * tile->columns * 64 / PRODUCTS_PER_CLOCK, bare = step / tile->efficiency;
    double used = tile->rows * (by_pixels ? PREPARING_CLOCKS_PER_LINE : PREPARING_CLOCKS_PER_ROW) + bare / 2;
    made.efficiency = step / (used > bare ? used : bare);
    return made;
}

/* 288: of 224 registers (pipeline.cuh) 144 are left beside addresses and those of a piece; a thread has half as many
   sums as the tile has columns, and of an operand as many elements, 4 of which epilogue_fetched_words counts as 4. */
bool hopper_reads_tile(const struct hopper *h) {
    int words = epilogue_fetched_words(&h->c.epilogue);
    return h->c.epilogue.lead == ROW && h->splits == 1 && h->c.epilogue.reduction_count == 0 &&
           h->tile->row_blocks == 1 && words > 0 && h->tile->columns * (1 + words / 4) <= 288;
}

bool hopper_gathers_rows(const struct hopper *h) {
    return h->c.epilogue.lead == ROW && h->c.epilogue.run >= 4 && h->c.epilogue.reduction_count == 0;
}

/* What it takes more that a warp stores pieces shorter than a sector of L2, or elements apart, and reads epilogue
   operands where the sums lie. Staged results leave whole, and what they meet is read whole or ahead, but between
   phases: a 1x1 data gradient of stride 2 to 256 x 56 x 56 x 256 that two of them join took 2,294 us (H200). */
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
            clocks += ALONE_CLOCKS;
        else if (operand->role == EPILOGUE_STORE && epilogue->lead == ROW && !hopper_gathers_rows(h))
            clocks += 8 * dtype_bytes(operand->type, 1) < SECTOR_BYTES ? SHORT_COLUMN_CLOCKS : 0;
        else if (operand->role == EPILOGUE_STORE && epilogue->run == 1) /* an access for each, of whatever type */
            clocks += bytes < ACCESS_BYTES ? SHORT_CLOCKS * ACCESS_BYTES / 2 : 0;
        else if (operand->role == EPILOGUE_STORE)
            clocks += bytes < ACCESS_BYTES ? SHORT_CLOCKS * ACCESS_BYTES / (double)bytes : 0;
    }
    return clocks * (double)contraction_elements(&h->c) / device->cuda.multiprocessors / POWERED_CLOCK;
}

/* A tile as efficient as it is for this product. */
static struct hopper_tile used_tile(const struct hopper *h, const struct hopper_tile *tile) {
    return h->promotes ? promoted(h, tile) : h->c.before_count > 0 ? preparing(h, tile) : *tile;
}

/* 8: a partial sum is written and read, 4 bytes each. */
static double combine_seconds(double elements, int splits) {
    return splits == 1 ? 0 : COMBINE_SECONDS + elements * splits * 8 / L2_BYTES_PER_SECOND;
}

int hopper_operands(const struct hopper *h) {
    int count = 0;
    for (int k = 0; k < h->c.epilogue.count; k++)
        count += h->c.epilogue.at[k].role != EPILOGUE_REDUCED;
    return count;
}

/* Whether accumulators leave registers for little beyond the output. */
static bool is_deep(const struct hopper_tile *tile) { return tile->row_blocks * tile->columns > ACCUMULATORS_MOST; }

/* Half as many registers as columns: 128 of the 160 that three consumer warpgroups have each, 192 of the 232 of two
   (pipeline.cuh). A ping-pong has no room for two sets of sums. */
bool hopper_can_promote(const struct hopper_tile *tile) {
    return !tile_is_pingpong(tile) &&
           (tile->row_blocks + 1) * tile->columns <= (tile->rows / tile->row_blocks > 128 ? 256 : 384);
}

/* Whether one tile covers all rows or all columns of a matrix: the other operand is read once. */
static bool is_skinny(const struct hopper *h, const struct hopper_tile *tile) {
    return h->is_matrix &&
           (modes_extent(&h->c.modes[ROW]) <= tile->rows || modes_extent(&h->c.modes[COLUMN]) <= tile->columns);
}

/* Of a matrix whose swapped product would fill its tiles. */
static bool is_half_empty(const struct hopper *h, const struct hopper_tile *tile) {
    return h->is_matrix && 2 * modes_extent(&h->c.modes[ROW]) <= tile->rows &&
           modes_extent(&h->c.modes[COLUMN]) > tile->rows;
}

/* Where k is worth halves: of an image with so few tiles that half of the multiprocessors would have none; of skinny
   products, whose other operand is read once anyhow, and where columns are few, some multiprocessors may make two
   halves. 64 rows by 4096 x 11008: 30.5 to 27.9 us; x 16384 34.3 to 36.4, x 57344 118 to 125 (H200). */
static bool pays_split(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    int64_t blocks = hopper_tiles(h, tile) * tile_splits(tile), multiprocessors = device->cuda.multiprocessors;
    bool is_image = h->view[OPERAND_A].is_image, is_narrow = !is_image && modes_extent(&h->c.modes[COLUMN]) <= 64;
    return (is_image ? h->c.phase_count == 0 : is_skinny(h, tile)) &&
           2 * blocks <= (is_narrow ? 3 : 2) * multiprocessors;
}

/* Where clusters of four share the few columns of a skinny product: its other operand then has L2 nearly for itself.
   Blocks of a cluster wait for each other, so that each loads more slowly: nearly all multiprocessors must be at work,
   for one or two waves. 64 rows by 4096 x 14336: 33.5 to 31.1 us, by 8192 x 28672 121 to 111; of four waves 118 to 134
   (H200). */
static bool pays_sharing(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    int64_t units = hopper_tiles(h, tile), clusters = hopper_clusters(tile, device);
    bool is_full = units <= 2 * clusters && 20 * units >= 17 * clusters * (units > clusters ? 2 : 1);
    return is_full && is_skinny(h, tile) && 2 * modes_extent(&h->c.modes[COLUMN]) > tile->columns && !h->promotes &&
           h->c.before_count == 0;
}

/* Registers for operands: one that lies like the result is copied instead. 4: what epilogue_fetched_words counted for
   that operand. */
static int fetched_words(const struct hopper *h) {
    const struct epilogue_operand *store = epilogue_find_half(&h->c);
    int words = epilogue_fetched_words(&h->c.epilogue);
    for (int k = 0; k < h->c.epilogue.count && store; k++)
        if (epilogue_lies_alike(&h->c, k, store))
            return words - 4;
    return words;
}

/* Whether columns are reduced from epilogue tiles. Two sums of each column cost fewer instructions so, and those are
   what one warpgroup of a ping-pong takes from the other; where none hides them, waiting for shared memory takes
   longer. */
static bool reduces_staged(const struct hopper *h, const struct hopper_tile *tile) {
    return tile_is_pingpong(tile) && h->c.epilogue.spans[SPAN_COLUMN].count > 1 && reductions_are_of_stored(&h->c);
}

/* Partial sums of reductions leave fewer registers for the accumulators; a ping-pong reads less ahead. */
static bool reductions_fit(const struct hopper *h, const struct hopper_tile *tile) {
    const struct reduced_span *spans = h->c.epilogue.spans;
    bool has_columns = spans[SPAN_COLUMN].count > 0, has_others = spans[SPAN_ROW].count + spans[SPAN_ALL].count > 0;
    int columns = tile->row_blocks * tile->columns, groups = tile->rows / (tile->row_blocks * 64);
    if (h->c.epilogue.reduction_count == 0)
        return true;
    if (reduces_staged(h, tile))
        return tile->columns % 32 == 0;
    if (is_deep(tile) || tile_splits(tile) > 1 || (has_columns && tile->columns % 32 != 0) ||
        (has_columns && has_others && columns > 128) ||
        (has_columns && columns > 192 && fetched_words(h) > FETCHED_WORDS_MAX_WITH_REDUCTIONS))
        return false;
    return has_others ? tile->row_blocks == 1 || tile->columns < 128 || tile_is_pingpong(tile)
                      : groups <= 2 || columns < 192 || hopper_operands(h) < 2;
}

/* Two wide blocks of rows have two blocks of addresses, too; a ping-pong reads less ahead. */
static bool operands_fit(const struct hopper *h, const struct hopper_tile *tile) {
    int most = !tile_is_pingpong(tile) ? 2 : fetched_words(h) > 4 ? 3 : 4;
    return tile->row_blocks == 1 || tile->columns < 128 || hopper_operands(h) <= most;
}

/* Whether registers hold two steps of A beside the accumulators; reductions take some more. A step of A is 16 registers
   for each block of 64 rows, two of them 32; columns / 2 are accumulators. CONSUMER_REGISTERS of pipeline.cuh is the
   bound. */
static bool can_prepare(const struct hopper *h, const struct hopper_tile *tile) {
    bool is_wide = tile->rows / tile->row_blocks > 128;
    bool has_reductions = h->c.epilogue.reduction_count > 0;
    int registers = tile->row_blocks * (tile->columns / 2 + 32);
    return tile_splits(tile) == 1 && registers <= (is_wide ? has_reductions ? 88 : 112 : has_reductions ? 96 : 160);
}

/* Whether each box of an MN-major operand is a whole panel of 64, and each block of a cluster loads whole ones. */
static bool panels_fit(const struct hopper *h, const struct hopper_tile *tile) {
    return (h->view[OPERAND_A].is_k_major || tile->rows % HOPPER_PANEL == 0) &&
           (h->view[OPERAND_B].is_k_major || tile->columns % (HOPPER_PANEL * tile->cluster) == 0);
}

/* What main loop and schedule ask of a tile. Each half of a cluster split shall have steps enough. Overrides change
   rows and k by entry, which it and a ping-pong do not look at. */
static bool scheme_fits(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    bool has_overrides = contraction_has_overrides(&h->c), has_prologue = h->c.before_count > 0;
    if (has_prologue && !can_prepare(h, tile))
        return false;
    if (tile_splits(tile) > 1 && (!pays_split(h, device, tile) || h->steps < 2 * SPLITS_LEAST_STEPS || has_overrides))
        return false;
    if (tile_is_pingpong(tile) && (has_prologue || has_overrides))
        return false;
    if (h->promotes && !hopper_can_promote(tile))
        return false;
    return hopper_scale_columns(h, tile) * SCALES_MOST >= tile->columns;
}

/* Whether registers hold what the epilogue reads. */
static bool epilogue_fits(const struct hopper *h, const struct hopper_tile *tile) {
    bool is_wide = tile->row_blocks * tile->columns > 128 || tile->rows / tile->row_blocks > 128;
    if (is_wide && fetched_words(h) > FETCHED_WORDS_MAX)
        return false;
    if (is_deep(tile) && (hopper_operands(h) > 1 || !hopper_find_store(h)))
        return false;
    return reductions_fit(h, tile) && operands_fit(h, tile);
}

static bool fits(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    bool lead_is_row = h->c.epilogue.lead == ROW;
    if (!lead_is_row && tile->columns % 32 != 0) /* which a quad of lanes exchanges */
        return false;
    if (tile->columns <= 32 && !lead_is_row && modes_extent(&h->c.modes[COLUMN]) > 32) /* others are faster */
        return false;
    if (tile->cluster > 1 && h->view[OPERAND_B].is_image) /* im2col boxes are not shared */
        return false;
    if (hopper_clusters(tile, device) == 0) /* a slice of a chip */
        return false;
    return scheme_fits(h, device, tile) && epilogue_fits(h, tile) && panels_fit(h, tile);
}

/* Of tiles that fit: whether to choose it unasked. */
static bool pays(const struct hopper *h, const struct device *device, const struct hopper_tile *tile) {
    return !tile_is_skinny(tile) || pays_sharing(h, device, tile);
}

/* Where it pays: many splits have many blocks, and no second tile for a ping-pong. */
static bool can_split(const struct hopper_tile *tile) {
    return !is_deep(tile) && tile_splits(tile) == 1 && !tile_is_pingpong(tile);
}

static bool split_fits(const struct hopper *h, double elements, int splits) {
    return splits == 1 || (h->c.phase_count == 0 && h->c.epilogue.reduction_count == 0 &&
                           h->steps / splits >= SPLITS_LEAST_STEPS && elements * 4 * splits < SPLITS_MOST_BYTES);
}

/* What does not depend on the tile. */
struct demand {
    double moving;   /* seconds that all bytes need */
    double epilogue; /* instructions per element of the result */
    double elements; /* of the result */
    double steps;    /* along k, of a tile on average */
    int splits;      /* asked for; 0: as many as pay */
};

/* Takes the tile, with as many splits as pay, if it is predicted to be faster than what was found so far. Asked for
   splits, it takes that number or leaves the tile alone. */
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
        if (h->tile && combining + least >= h->seconds) /* nor with more of them */
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

/* Of the phases of a data gradient, those that see taps: the others' tiles have no steps. */
static double share_of_phases(const struct hopper *h) {
    double share = 1;
    for (int i = 0; i < h->c.phase_count; i++)
        share *= (double)min64(h->c.phases[i].taps, h->c.phases[i].tap_step) / (double)h->c.phases[i].stride;
    return share;
}

/* How much longer the filter gradient of a volume takes that L2 does not hold: each slice of taps reads pixels that the
   others read long ago. Measured on an H100: 1.98 to 2.07 for 3x3x3 at 64^3 and 128^3, nothing at 32^3. */
static double far_volume(const struct hopper *h, const struct device *device) {
    int64_t bytes = tensor_bytes(h->c.operand[OPERAND_A].tensor) + tensor_bytes(h->c.operand[OPERAND_B].tensor);
    bool is_volume = h->k_is_pixels && conv_geometry(h->c.node->op).w.size[0] > 1;
    return is_volume && bytes > device->cuda.l2_bytes ? 2 : 1;
}

void hopper_plan(struct hopper *h, const struct device *device, const struct knob_choices *knobs) {
    int64_t chosen = knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE), asked = knob_value(knobs, WEFT_KNOB_TYPE_SPLIT_K);
    int64_t block = HOPPER_K_BYTES / dtype_bytes((weftDataType_t)h->c.operand[OPERAND_A].tensor->type, 1);
    if (asked > HOPPER_SPLITS_MAX) /* in the range of another family */
        asked = 0;
    h->steps = divide_up(h->channels, block) * h->taps[0] * h->taps[1] * h->taps[2];
    const struct demand demand = {.moving = contraction_memory_seconds(&h->c, device),
                                  .epilogue = epilogue_instructions(&h->c),
                                  .elements = (double)contraction_elements(&h->c),
                                  .steps = (double)h->steps * share_of_phases(h),
                                  /* reductions are not fed by partial sums */
                                  .splits = h->c.epilogue.reduction_count > 0 ? 0 : (int)asked};
    if (chosen > HOPPER_TILE_ROWS) /* a row of another family's table */
        chosen = 0;
    h->tile = NULL;
    for (int t = 0; t < HOPPER_TILE_ROWS; t++)
        if (fits(h, device, &tiles[t]) && (chosen == 0 ? pays(h, device, &tiles[t]) : chosen == t + 1))
            consider(h, device, &tiles[t], &demand);
    if (!h->tile)
        return;
    h->c.epilogue.reduces_stored = reduces_staged(h, h->tile);
    /* After the choice: it is the same for every tile, but not for other families. */
    h->seconds *= far_volume(h, device);
    h->seconds += scattered_seconds(h, device) + reductions_seconds(&h->c);
    h->steps_per_split = divide_up(h->steps, (int64_t)h->splits * tile_splits(h->tile));
    /* Every split has steps to do. */
    h->splits = (int)divide_up(h->steps, h->steps_per_split * tile_splits(h->tile));
    h->c.splits = h->splits;
    h->c.steps_per_split = h->steps_per_split;
}
