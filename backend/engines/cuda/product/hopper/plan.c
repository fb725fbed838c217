/* SPDX-License-Identifier: Apache-2.0 */
/* Which tile, and into how many parts the depth is split: the least predicted time over a table. Pure. */
#include "base/number.h"
#include "engines/cuda/product/hopper/hopper.h"

/* Efficiencies and the numbers below are fitted to products and convolutions of the benchmark, each timed with every
   tile on an H200: `python -m weft bench matmul conv --tiles` tells how near what they choose comes to the best tile.
   Tiles in two parts are as efficient as their like in one. */
static const struct hopper_tile tiles[HOPPER_TILE_ROWS] = {
    {256, 192, 2, 3, 2, 0.93, 1, false}, {128, 256, 1, 4, 2, 0.945, 1, false}, {128, 256, 1, 4, 1, 0.945, 1, false},
    {256, 128, 2, 4, 1, 0.91, 1, false}, {256, 160, 2, 4, 1, 0.95, 1, false},  {128, 192, 1, 4, 2, 0.90, 1, false},
    {128, 192, 1, 4, 1, 0.94, 1, false}, {128, 160, 1, 5, 1, 0.90, 1, false},  {128, 128, 1, 6, 2, 0.86, 1, false},
    {128, 128, 1, 6, 1, 0.93, 1, false}, {128, 96, 1, 7, 1, 0.75, 1, false},   {256, 64, 2, 5, 1, 0.72, 1, false},
    {128, 64, 1, 8, 1, 0.80, 1, false},  {128, 32, 1, 9, 1, 0.40, 1, false},   {256, 192, 2, 3, 1, 0.93, 1, false},
    {128, 16, 1, 11, 1, 0.30, 1, false}, {192, 192, 1, 3, 1, 0.94, 1, false},  {256, 128, 2, 4, 2, 0.89, 1, false},
    {192, 128, 1, 5, 1, 0.94, 1, false}, {256, 96, 2, 5, 1, 0.85, 1, false},   {256, 160, 2, 4, 2, 0.90, 1, false},
    {128, 224, 1, 5, 1, 0.88, 1, false}, {192, 160, 1, 5, 1, 0.96, 1, false},  {256, 32, 2, 6, 1, 0.36, 1, false},
    {128, 128, 1, 6, 1, 0.93, 2, false}, {128, 16, 1, 11, 1, 0.30, 2, false},  {128, 32, 1, 9, 1, 0.40, 2, false},
    {128, 64, 1, 8, 1, 0.80, 2, false},  {128, 128, 2, 6, 1, 0.935, 1, true},  {128, 160, 2, 5, 1, 0.95, 1, true},
    {128, 192, 2, 5, 1, 0.96, 1, true},
};

static const double LAUNCH_SECONDS = 1e-6, COMBINE_SECONDS = 2.5e-6;
static const double CLUSTER_CLOCKS = 1500;        /* before the blocks of a cluster see each other's barriers */
static const double END_CLOCKS = 580;             /* of a tile, */
static const double END_ELEMENTS_PER_CLOCK = 23;  /* and its stores, which only another tile's products hide, */
static const double INSTRUCTIONS_PER_CLOCK = 128; /* and what is done to its elements before */
static const double TURN_CLOCKS = 300;            /* until the next one of two warpgroups has the tensor cores */
/* Of an element that leaves alone, in part of a sector with 8 of its column, or in an access that is part of one; that is
   read where the sum lies. */
static const double ALONE_CLOCKS = 3.5, SHORT_COLUMN_CLOCKS = 0.4, SHORT_CLOCKS = 0.14, LOAD_CLOCKS = 1.3;
static const double POWERED_CLOCK = 1.54e9; /* under the power limit, when all multiprocessors work */
static const double MOST_CLOCK = 1.98e9;
static const double IDLE_POWER = 0.4;          /* of its power that an idle one leaves to the clock of the others */
static const double PRODUCTS_PER_CLOCK = 2048; /* of 16-bit factors, per multiprocessor */
static const double FILL_BYTES_PER_CLOCK = 77; /* from L2, per multiprocessor, when not all ask at once */
static const double MEMORY_SHARE = 0.85;       /* of the bandwidth that copies reach */
static const double UNHIDDEN_SHARE = 0.2;      /* of the shorter one of computing and moving */
static const double PROMOTED_SHARE = 0.95, SCALED_SHARE = 0.96, BLOCK_SCALES_SHARE = 0.82;
static const double PREPARING_CLOCKS_PER_ROW = 5.2;  /* and step, beside which half of the products are hidden; */
static const double PREPARING_CLOCKS_PER_LINE = 8.8; /* where the depth is pixels of an image, that lie inside or not */
static const double L2_BYTES_PER_SECOND = 4.5e12;
enum {
    SECTOR_BYTES = 32,
    ACCESS_BYTES = 16,
    SPLITS_LEAST_STEPS = 4,
    SCALES_MOST = 3,        /* of a tile's columns: rows have a scale for each in registers */
    FETCHED_WORDS_MAX = 10, /* that wide tiles have registers for, */
    FETCHED_WORDS_MAX_TOTALLED = 2,
};

static int64_t tiles_along(int64_t extent, int64_t block) { return divide_up(extent, block); }

int64_t hopper_tiles(const struct hopper *h, const struct hopper_tile *tile) {
    return digits_extent(&h->c.digits[BATCH]) *
           tiles_along(digits_extent(&h->c.digits[ROW]), (int64_t)tile->rows * tile->cluster) *
           tiles_along(digits_extent(&h->c.digits[COLUMN]), tile->columns);
}

int64_t hopper_tiles_along(const struct hopper *h, enum index index) {
    int64_t rows = (int64_t)h->tile->rows * h->tile->cluster;
    return tiles_along(digits_extent(&h->c.digits[index]), index == ROW ? rows : h->tile->columns);
}

int64_t hopper_band(const struct hopper *h, const struct device *device, int64_t tiles_m, int64_t tiles_n) {
    int64_t clusters = device->cuda.multiprocessors / h->tile->cluster, least = INT64_MAX, best = 1;
    for (int64_t band = 1; band <= tiles_m && band <= clusters && !h->stays; band++) {
        int64_t across = tiles_along(clusters, band) < tiles_n ? tiles_along(clusters, band) : tiles_n;
        int64_t down = tiles_along(clusters, band * across) * band;
        int64_t lines = down * h->tile->rows * h->tile->cluster + across * h->tile->columns;
        if (lines < least) {
            least = lines;
            best = band;
        }
    }
    int64_t bands = (2 * tiles_m + best) / (2 * best);
    return tiles_along(tiles_m, bands > 1 ? bands : 1);
}

/* Of what computes and what moves bytes at the same time. */
static double overlapped_seconds(double computing, double moving) {
    moving /= MEMORY_SHARE;
    double longer = computing > moving ? computing : moving, shorter = computing + moving - longer;
    return LAUNCH_SECONDS + longer + UNHIDDEN_SHARE * shorter;
}

static double step_clocks(const struct hopper_tile *tile) {
    double lines = tile->rows + (double)tile->columns / tile->cluster;
    double fill = lines * HOPPER_DEPTH_BYTES / FILL_BYTES_PER_CLOCK;
    double step = (double)tile->rows * tile->columns * 64 / PRODUCTS_PER_CLOCK / tile->efficiency;
    return step > fill ? step : fill;
}

static double clusters_of(const struct hopper_tile *tile, const struct device *device) {
    return (double)(device->cuda.multiprocessors / (tile->cluster * tile->parts));
}

double hopper_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                      double finishing, double moving) {
    double clusters = clusters_of(tile, device);
    double waves = (double)divide_up((int64_t)units, clusters), area = (double)tile->rows * tile->columns;
    double summing = steps / tile->parts * step_clocks(tile), at_work = tile->alternates ? 2 * area : area;
    double end = END_CLOCKS + at_work * (1 / END_ELEMENTS_PER_CLOCK + finishing / INSTRUCTIONS_PER_CLOCK);
    double turn = TURN_CLOCKS + (summing > end ? summing : (summing + end) / 2); /* two groups make a tile each */
    double clocks = (tile->cluster * tile->parts > 1 ? CLUSTER_CLOCKS : 0) +
                    (tile->alternates ? waves * turn + end : waves * (summing + end));
    double idle = waves > 0 ? 1 - units / (waves * clusters) : 0, clock = POWERED_CLOCK / (1 - IDLE_POWER * idle);
    return overlapped_seconds(clocks / (clock < MOST_CLOCK ? clock : MOST_CLOCK), moving);
}

/* What no split of the sums takes less than: all multiprocessors are at work all the time, and nothing ends. */
static double least_seconds(const struct hopper_tile *tile, const struct device *device, double units, double steps,
                            double moving) {
    double clocks = units * steps / tile->parts * step_clocks(tile) / clusters_of(tile, device);
    return overlapped_seconds(clocks / POWERED_CLOCK, moving);
}

/* Two warpgroups of few columns each do not hide from each other what promotion takes, nor what several scales of a tile's columns do. */
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
    bool by_pixels = h->depth_is_pixels && h->view[FACTOR_A].is_image;
    double step = (double)tile->rows * tile->columns * 64 / PRODUCTS_PER_CLOCK, bare = step / tile->efficiency;
    double used = tile->rows * (by_pixels ? PREPARING_CLOCKS_PER_LINE : PREPARING_CLOCKS_PER_ROW) + bare / 2;
    made.efficiency = step / (used > bare ? used : bare);
    return made;
}

/* What it takes more that a warp stores pieces shorter than a sector of L2, or elements apart, and reads what sums meet
   where they end. */
static double scattered_seconds(const struct hopper *h, const struct device *device) {
    const struct finish *finish = &h->c.finish;
    int last = finish->digit_count[finish->lead] - 1;
    double clocks = 0;
    for (int k = 0; k < finish->count && !hopper_find_store(h); k++) {
        const struct finisher *operand = &finish->at[k];
        int64_t bytes = finish->run * dtype_bytes(operand->type, 1),
                stride = last < 0 ? 1 : operand->strides[finish->lead][last];
        enum index other = finish->lead == ROW ? COLUMN : ROW;
        bool is_whole = stride != 0 && finish->digit_count[other] > 0 && operand->strides[other][0] != 0;
        if (operand->role == FINISH_LOAD || operand->role == FINISH_OLD)
            clocks += is_whole ? LOAD_CLOCKS : 0;
        else if (operand->role == FINISH_STORE && stride != 1)
            clocks += ALONE_CLOCKS;
        else if (operand->role == FINISH_STORE && finish->lead == ROW)
            clocks += 8 * dtype_bytes(operand->type, 1) < SECTOR_BYTES ? SHORT_COLUMN_CLOCKS : 0;
        else if (operand->role == FINISH_STORE && finish->run == 1) /* an access for each, of whatever type */
            clocks += bytes < ACCESS_BYTES ? SHORT_CLOCKS * ACCESS_BYTES / 2 : 0;
        else if (operand->role == FINISH_STORE)
            clocks += bytes < ACCESS_BYTES ? SHORT_CLOCKS * ACCESS_BYTES / (double)bytes : 0;
    }
    return clocks * (double)contraction_elements(&h->c) / device->cuda.multiprocessors / POWERED_CLOCK;
}

/* A tile as efficient as it is for this product. */
static struct hopper_tile used_tile(const struct hopper *h, const struct hopper_tile *tile) {
    return h->promotes ? promoted(h, tile) : h->c.before_count > 0 ? preparing(h, tile) : *tile;
}

static double combine_seconds(double elements, int splits) {
    return splits == 1 ? 0 : COMBINE_SECONDS + elements * splits * 8 / L2_BYTES_PER_SECOND;
}

int hopper_operands(const struct hopper *h) {
    int count = 0;
    for (int k = 0; k < h->c.finish.count; k++)
        count += h->c.finish.at[k].role != FINISH_TOTAL;
    return count;
}

/* Whether its sums leave registers for no more than their way out. */
static bool is_deep(const struct hopper_tile *tile) { return tile->row_blocks * tile->columns > 256; }

bool hopper_can_promote(const struct hopper_tile *tile) {
    return !tile->alternates &&
           (tile->row_blocks + 1) * tile->columns <= (tile->rows / tile->row_blocks > 128 ? 256 : 384);
}

/* Whether one tile covers all rows or all columns of a matrix: the other factor is read once. */
static bool is_skinny(const struct hopper *h, const struct hopper_tile *tile) {
    return h->is_matrix &&
           (digits_extent(&h->c.digits[ROW]) <= tile->rows || digits_extent(&h->c.digits[COLUMN]) <= tile->columns);
}

/* Registers for operands: one that lies like the result is copied instead. */
static int fetched_words(const struct hopper *h) {
    const struct finisher *store = finish_find_half(&h->c);
    int words = finish_fetched_words(&h->c.finish);
    for (int k = 0; k < h->c.finish.count && store; k++)
        if (finish_lies_alike(&h->c, k, store))
            return words - 4;
    return words;
}

/* Whether columns are totalled of slabs on their way out. Two totals of each column cost fewer instructions so, and those are
   what one of two warpgroups in turn takes from the other; where none hides them, waiting for shared memory takes longer. */
static bool totals_slabs(const struct hopper *h, const struct hopper_tile *tile) {
    return tile->alternates && h->c.finish.totals[SPAN_COLUMN].count > 1 && totals_of_stored(&h->c);
}

/* Totals on their way leave fewer registers for the sums; warpgroups in turn read less ahead. */
static bool totals_fit(const struct hopper *h, const struct hopper_tile *tile) {
    const struct totals *totals = h->c.finish.totals;
    bool has_columns = totals[SPAN_COLUMN].count > 0, has_others = totals[SPAN_ROW].count + totals[SPAN_ALL].count > 0;
    int columns = tile->row_blocks * tile->columns, groups = tile->rows / (tile->row_blocks * 64);
    if (h->c.finish.reducer_count == 0)
        return true;
    if (totals_slabs(h, tile))
        return tile->columns % 32 == 0;
    if (is_deep(tile) || tile->parts > 1 || (has_columns && tile->columns % 32 != 0) ||
        (has_columns && has_others && columns > 128) ||
        (has_columns && columns > 192 && fetched_words(h) > FETCHED_WORDS_MAX_TOTALLED))
        return false;
    return has_others ? tile->row_blocks == 1 || tile->columns < 128 || tile->alternates
                      : groups <= 2 || columns < 192 || hopper_operands(h) < 2;
}

/* Two wide blocks of rows have two blocks of addresses, too; warpgroups in turn read less ahead. */
static bool operands_fit(const struct hopper *h, const struct hopper_tile *tile) {
    int most = !tile->alternates ? 2 : fetched_words(h) > 4 ? 3 : 4;
    return tile->row_blocks == 1 || tile->columns < 128 || hopper_operands(h) <= most;
}

/* Whether registers hold two steps of A beside the sums; totals take some more. */
static bool can_prepare(const struct hopper *h, const struct hopper_tile *tile) {
    bool is_wide = tile->rows / tile->row_blocks > 128;
    bool has_totals = h->c.finish.reducer_count > 0;
    int held = tile->row_blocks * (tile->columns / 2 + 32);
    return tile->parts == 1 && held <= (is_wide ? has_totals ? 88 : 112 : has_totals ? 96 : 160);
}

/* What a tile demands of the operands: a quad finishes 32 columns; slabs of what is not along the depth are 64 wide,
   and each block of a cluster loads whole ones. */
static bool fits(const struct hopper *h, const struct hopper_tile *tile) {
    bool lead_is_row = h->c.finish.lead == ROW;
    if (!totals_fit(h, tile) || (!lead_is_row && tile->columns % 32 != 0) ||
        (tile->cluster > 1 && h->view[FACTOR_B].is_image))
        return false;
    if ((tile->row_blocks * tile->columns > 128 || tile->rows / tile->row_blocks > 128) &&
        fetched_words(h) > FETCHED_WORDS_MAX)
        return false;
    if (h->c.before_count > 0 && !can_prepare(h, tile))
        return false;
    if (tile->parts > 1 &&
        (!is_skinny(h, tile) || h->steps < 2 * SPLITS_LEAST_STEPS || contraction_has_overrides(&h->c)))
        return false;
    if (h->promotes && !hopper_can_promote(tile))
        return false;
    if (tile->alternates && (h->c.before_count > 0 || contraction_has_overrides(&h->c)))
        return false;
    if (hopper_scale_columns(h, tile) * SCALES_MOST < tile->columns)
        return false;
    if (is_deep(tile) && (hopper_operands(h) > 1 || !hopper_find_store(h)))
        return false;
    if (!operands_fit(h, tile))
        return false;
    for (int f = 0; f < FACTORS; f++)
        if (!h->view[f].along_depth &&
            (f == FACTOR_A ? tile->rows : tile->columns) % (64 * (f == FACTOR_B ? tile->cluster : 1)))
            return false;
    return tile->columns > 32 || lead_is_row || digits_extent(&h->c.digits[COLUMN]) <= 32;
}

/* Where it pays: many splits have many blocks, and nothing to do in turn. */
static bool can_split(const struct hopper_tile *tile) {
    return !is_deep(tile) && tile->parts == 1 && !tile->alternates;
}

static bool split_fits(const struct hopper *h, double elements, int splits) {
    return splits == 1 || (h->c.phase_count == 0 && h->c.finish.reducer_count == 0 &&
                           h->steps / splits >= SPLITS_LEAST_STEPS && elements * 4 * splits < 256e6);
}

/* Of the phases of a data gradient, those that see taps: the others' tiles have no steps. */
static double share_of_phases(const struct hopper *h) {
    double share = 1;
    for (int i = 0; i < h->c.phase_count; i++)
        share *= (double)min64(h->c.phases[i].taps, h->c.phases[i].tap_step) / (double)h->c.phases[i].stride;
    return share;
}

void hopper_plan(struct hopper *h, const struct device *device, const struct knob_choices *knobs) {
    int64_t chosen = knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE), asked = knob_value(knobs, WEFT_KNOB_TYPE_SPLIT_K);
    int64_t block = HOPPER_DEPTH_BYTES / dtype_bytes((weftDataType_t)h->c.factor[FACTOR_A].tensor->type, 1);
    h->steps = tiles_along(h->channels, block) * h->taps[0] * h->taps[1] * h->taps[2];
    double moving = contraction_memory_seconds(&h->c, device), finishing = finish_instructions(&h->c),
           elements = (double)contraction_elements(&h->c), all_steps = (double)h->steps * share_of_phases(h);
    h->tile = NULL;
    if (chosen > HOPPER_TILE_ROWS) /* a row of another family's table */
        chosen = 0;
    if (h->c.finish.reducer_count > 0) /* which parts of sums cannot feed */
        asked = 0;
    for (int t = 0; t < HOPPER_TILE_ROWS; t++) {
        if (!fits(h, &tiles[t]) || (chosen > 0 && chosen != t + 1))
            continue;
        const struct hopper_tile used = used_tile(h, &tiles[t]);
        double units = (double)hopper_tiles(h, &tiles[t]);
        double least = least_seconds(&used, device, units, all_steps, moving);
        int most = asked > 0 ? (int)asked : can_split(&tiles[t]) ? HOPPER_SPLITS_MAX : 1;
        for (int splits = asked > 0 ? (int)asked : 1; splits <= most && (asked > 0 || split_fits(h, elements, splits));
             splits++) {
            double combining = combine_seconds(elements, splits);
            double steps = splits > 1 ? (double)tiles_along(h->steps, splits) : all_steps;
            if (h->tile && combining + least >= h->seconds) /* nor with more of them */
                break;
            double seconds = combining + hopper_seconds(&used, device, units * splits, steps, finishing, moving);
            if ((splits == 1 || can_split(&tiles[t])) && (!h->tile || seconds < h->seconds)) {
                h->seconds = seconds;
                h->tile = &tiles[t];
                h->splits = splits;
            }
        }
    }
    if (!h->tile)
        return;
    h->c.finish.totals_stored = totals_slabs(h, h->tile);
    h->seconds += scattered_seconds(h, device);
    h->steps_per_split = tiles_along(h->steps, (int64_t)h->splits * h->tile->parts);
    h->splits = (int)tiles_along(h->steps, h->steps_per_split * h->tile->parts); /* every part has steps to do */
    h->c.splits = h->splits;
    h->c.steps_per_split = h->steps_per_split;
}
