/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses how a contraction is computed: the arithmetic from the data types, vector accesses from the operands'
   strides, and tile and splits from predicted times. Pure functions; this file must not know about text. */
#include "base/number.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/product/contraction.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"
#include "graph/ops/moe.h"

/* Indexed by the knob TILE_SIZE minus 1. Efficiency: the share of peak arithmetic that a grid of many blocks reaches;
   smaller tiles load more per product. */
static const struct tile mma_tiles[TILE_ROWS] = {
    {.rows = 128, .columns = 128, .warps_m = 2, .warps_n = 4, .efficiency = 0.60},
    {.rows = 128, .columns = 64, .warps_m = 4, .warps_n = 2, .efficiency = 0.50},
    {.rows = 64, .columns = 128, .warps_m = 2, .warps_n = 4, .efficiency = 0.50},
    {.rows = 64, .columns = 64, .warps_m = 4, .warps_n = 2, .efficiency = 0.40},
    {.rows = 128, .columns = 32, .warps_m = 4, .warps_n = 2, .efficiency = 0.32},
    {.rows = 32, .columns = 128, .warps_m = 2, .warps_n = 4, .efficiency = 0.32},
    {.rows = 32, .columns = 32, .warps_m = 2, .warps_n = 2, .efficiency = 0.20},
};
static const struct tile fma_tiles[TILE_ROWS] = {
    {.rows = 128, .columns = 128, .thread_m = 8, .thread_n = 8, .efficiency = 0.80},
    {.rows = 128, .columns = 64, .thread_m = 8, .thread_n = 4, .efficiency = 0.65},
    {.rows = 64, .columns = 128, .thread_m = 4, .thread_n = 8, .efficiency = 0.65},
    {.rows = 64, .columns = 64, .thread_m = 4, .thread_n = 4, .efficiency = 0.55},
    {.rows = 128, .columns = 32, .thread_m = 8, .thread_n = 4, .efficiency = 0.45},
    {.rows = 32, .columns = 128, .thread_m = 4, .thread_n = 8, .efficiency = 0.45},
    {.rows = 32, .columns = 32, .thread_m = 4, .thread_n = 4, .efficiency = 0.35},
};

/* Launch overhead, including the first and last steps of a kernel, which nothing overlaps. */
static const double LAUNCH_SECONDS = 2e-6;
static const double INSTRUCTIONS_PER_CLOCK = 128; /* per multiprocessor */
/* Instructions per access: to split an index into modes, and to compute offset, bounds and load; images have three
   coordinates in addition. */
static const double MATRIX_INSTRUCTIONS = 30, IMAGE_INSTRUCTIONS = 90;
/* Every product loads both factors, mostly from L1, and computes their addresses. */
static const double DIRECT_RATE = 0.15; /* relative to the FMA rate */

/* ---- Vector accesses of operands --------------------------------------------------------------------------------- */

/* The longest vector along `index`: its last mode is contiguous and changes no coordinate, and all other offsets are
   multiples of the vector length. 1 if each element must be read separately. */
static int operand_run(const struct contraction *c, int f, int index) {
    const struct product_operand *operand = &c->operand[f];
    int last = c->modes[index].count - 1;
    const struct mode *inner = &c->modes[index].at[last];
    /* An override may end a row inside a vector. */
    if (last < 0 || inner->stride[f] != 1 || inner->phase != NO_PHASE || operand->tensor->is_by_value ||
        operand->tensor->is_constant || contraction_has_overrides(c))
        return 1;
    for (int i = 0; i < COORDINATES; i++)
        if (inner->step[f][i])
            return 1;
    /* Elements per access of at most 16 bytes, such that every mode and the first element are multiples of it. */
    int64_t fits = gcd64(operand->tensor->alignment, 16) / dtype_bytes(operand_type(c, f), 1);
    int64_t run = gcd64(gcd64(fits > 1 ? fits : 1, inner->extent), operand->first);
    for (int i = 0; i < INDICES; i++)
        for (int d = 0; d < c->modes[i].count; d++)
            if (i != index || d != last)
                run = gcd64(run, c->modes[i].at[d].stride[f]);
    for (int p = 0; p < c->phase_count; p++)
        run = gcd64(run, f == OPERAND_A ? c->phases[p].a_stride : c->phases[p].b_stride);
    return (int)run;
}

/* Distance between consecutive elements along an index; INT64_MAX if it has no modes. gcd64(x, 0) is |x|, and strides
   may be negative. */
static int64_t inner_stride(const struct contraction *c, int f, int index) {
    const struct modes *modes = &c->modes[index];
    return modes->count ? gcd64(modes->at[modes->count - 1].stride[f], 0) : INT64_MAX;
}

/* Chooses the access direction of operand f: along k or along its own index, whichever allows longer vectors. If both
   are equal, the one with the smaller stride. */
static void choose_access(struct contraction *c, int f) {
    int outer = f == OPERAND_A ? ROW : COLUMN;
    int along_outer = operand_run(c, f, outer), along_k = operand_run(c, f, K);
    c->operand[f].is_k_major =
        along_outer == along_k ? inner_stride(c, f, K) <= inner_stride(c, f, outer) : along_k > along_outer;
    c->operand[f].run = along_k > along_outer ? along_k : along_outer;
}

/* All elements of a run of results have the same coordinates, and their elements in A and B are contiguous, equal or
   evenly spaced. An operand that cannot be read in vectors of `run` is read element by element, which is slower but
   correct. */
static void choose_direct_access(struct contraction *c) {
    const struct modes *batch = &c->modes[BATCH];
    int last = batch->count - 1;
    int64_t run = c->epilogue.run;
    for (int f = 0; f < OPERANDS; f++) {
        run = last < 0 ? 1 : gcd64(run, batch->at[last].extent);
        for (int i = 0; i < COORDINATES; i++)
            if (last >= 0 && batch->at[last].step[f][i])
                run = 1;
        if (last >= 0 && batch->at[last].phase != NO_PHASE)
            run = 1;
        c->epilogue.run = (int)run;
    }
    for (int f = 0; f < OPERANDS; f++)
        c->operand[f].run = (int)gcd64(run, operand_run(c, f, BATCH)) == run ? (int)run : 1;
}

/* ---- Tile and splits --------------------------------------------------------------------------------------------- */

static double tiles_along(int64_t extent, int block) { return (double)divide_up(extent, block); }

/* Share of an operand that is read. If a filter has fewer taps than its stride, some pixels of the image are skipped;
   that saves traffic if the skipped pixels or lines are at least a sector. */
static double read_share(const struct contraction *c, const struct product_operand *operand) {
    double share = 1;
    if (!conv_is(c->node->op))
        return share;
    const struct conv_geometry g = conv_geometry(c->node->op);
    const struct tensor *read =
        operand->prepared == NO_PROLOGUE ? operand->tensor : c->region->graph->values[operand->prepared].tensor;
    for (int i = 0; i < 3 && read == g.x.tensor; i++)
        if (g.w.size[i] < g.stride[i] &&
            dtype_bytes((weftDataType_t)read->type, g.x.size_stride[i]) >= PRICE_SECTOR_BYTES)
            share *= (double)g.w.size[i] / (double)g.stride[i];
    return share;
}

double contraction_memory_seconds(const struct contraction *c, const struct device *device) {
    double bytes = 0;
    for (int f = 0; f < OPERANDS; f++)
        bytes += (double)tensor_own_bytes(c->operand[f].tensor) * read_share(c, &c->operand[f]);
    for (int k = 0; k < c->epilogue.count; k++)
        if (c->epilogue.at[k].role != EPILOGUE_INDEX && c->epilogue.at[k].role != EPILOGUE_LIMIT)
            bytes += (double)tensor_own_bytes(c->region->graph->values[c->epilogue.at[k].value].tensor);
    return bytes / (double)device->cuda.bandwidth;
}

/* Time to write the partial sums of a split and to read them back, through memory both ways. L2 may hold them, but that
   is not assumed. */
static double split_seconds(const struct contraction *c, const struct device *device, int splits) {
    double bytes = (double)contraction_elements(c) * (double)contraction_sum_bytes(c) * splits * 2;
    return splits == 1 ? 0 : LAUNCH_SECONDS + bytes / (double)device->cuda.bandwidth;
}

/* A split needs at least four steps per part and less than 128 MB of workspace. */
static bool split_fits(const struct contraction *c, int splits, int64_t steps) {
    double bytes = (double)contraction_elements(c) * (double)contraction_sum_bytes(c) * splits;
    return splits == 1 || (steps / splits >= 4 && bytes < 128e6);
}

/* The number of tiles over the batch, including partial tiles. */
static double tiles_of(const struct contraction *c, const struct tile *tile) {
    return (double)modes_extent(&c->modes[BATCH]) * tiles_along(modes_extent(&c->modes[ROW]), tile->rows) *
           tiles_along(modes_extent(&c->modes[COLUMN]), tile->columns);
}

/* Time of all waves of blocks with one block per multiprocessor, without memory traffic. */
static double computing_seconds(const struct contraction *c, const struct device *device, const struct tile *tile,
                                int splits, int64_t steps) {
    double rate = contraction_rate(c->arithmetic, device) * tile->efficiency, tiles = tiles_of(c, tile) * splits;
    double steps_each = (double)divide_up(steps, splits);
    double products = 2.0 * tile->rows * tile->columns * arithmetic_rows[c->arithmetic].block_k;
    double waves = tiles / device->cuda.multiprocessors;
    double full_waves = (double)(int64_t)waves;
    /* A partial wave takes as long as a full one, until there are enough waves that blocks no longer run in
       lockstep. */
    waves = waves > 8 ? waves : full_waves < waves ? full_waves + 1 : full_waves;
    /* The first loads and the last stores of a tile are not overlapped. */
    return waves * (steps_each * products / rate + 1e-6);
}

/* The criterion by which tiles are chosen. moving: time of the memory traffic. */
static double tile_seconds(const struct contraction *c, const struct device *device, const struct tile *tile,
                           int splits, int64_t steps, double moving) {
    double seconds = computing_seconds(c, device, tile, splits, steps);
    return LAUNCH_SECONDS + (seconds > moving ? seconds : moving) + split_seconds(c, device, splits);
}

/* Time to compute addresses and load the elements of both operands, which does not overlap with the products. Each tile
   reads them again, one vector at a time. The limit is instruction issue rather than bandwidth, because all threads
   compute an address per access. With fewer blocks than multiprocessors, the others are idle. */
static double gathering_seconds(const struct contraction *c, const struct device *device, int64_t steps) {
    double accesses = 0;
    for (int f = 0; f < OPERANDS; f++)
        accesses += (double)(f == OPERAND_A ? c->tile->rows : c->tile->columns) / c->operand[f].run;
    accesses *= tiles_of(c, c->tile) * (double)steps * arithmetic_rows[c->arithmetic].block_k;
    double instructions = accesses * (conv_is(c->node->op) ? IMAGE_INSTRUCTIONS : MATRIX_INSTRUCTIONS);
    double blocks = tiles_of(c, c->tile) * c->splits, multiprocessors = device->cuda.multiprocessors;
    double busy = blocks < multiprocessors ? blocks : multiprocessors;
    return instructions / (INSTRUCTIONS_PER_CLOCK * (double)device->cuda.clock_khz * 1e3 * (busy > 0 ? busy : 1));
}

/* Minimizes predicted time over tiles and splits. The number of splits grows by half in each step, because close values
   differ little. The comparison of tiles ignores gathering; the price, which compares families, includes it. */
static void choose_tile(struct contraction *c, const struct device *device, const struct knob_choices *knobs) {
    const struct tile *tiles = arithmetic_rows[c->arithmetic].is_mma ? mma_tiles : fma_tiles;
    int64_t block = arithmetic_rows[c->arithmetic].block_k;
    int64_t steps = divide_up(modes_extent(&c->modes[K]), block);
    int64_t chosen = knob_value(knobs, WEFT_KNOB_TYPE_TILE_SIZE), requested = knob_value(knobs, WEFT_KNOB_TYPE_SPLIT_K);
    if (chosen > TILE_ROWS) /* row of another family's table */
        chosen = 0;
    if (requested > SPLITS_MAX) /* value for another family */
        requested = 0;
    bool has_long_elements =
        arithmetic_rows[c->arithmetic].bytes == 8; /* 8-byte elements: larger tiles do not fit in shared
                                                                 memory */
    double moving = contraction_memory_seconds(c, device);
    c->tile = NULL;
    for (int t = 0; t < TILE_ROWS; t++) {
        if (has_long_elements ? tiles[t].rows + tiles[t].columns > 128 : chosen > 0 && chosen != t + 1)
            continue;
        for (int64_t splits = requested > 0 ? requested : 1;
             splits <= SPLITS_MAX && (requested > 0 || split_fits(c, (int)splits, steps));
             splits += splits < 4 ? 1 : splits / 2) {
            double seconds = tile_seconds(c, device, &tiles[t], (int)splits, steps, moving);
            if (!c->tile || seconds < c->seconds) {
                c->seconds = seconds;
                c->tile = &tiles[t];
                c->splits = (int)splits;
            }
            if (requested > 0)
                break;
        }
    }
    c->steps_per_split = divide_up(steps, c->splits);
    /* Drop splits that would have no steps. */
    if (c->steps_per_split > 0)
        c->splits = (int)divide_up(steps, c->steps_per_split);
    c->seconds = LAUNCH_SECONDS + computing_seconds(c, device, c->tile, c->splits, steps) +
                 gathering_seconds(c, device, steps) + moving / PRICE_MEMORY_SHARE +
                 split_seconds(c, device, c->splits);
}

/* The direct kernel (one thread per run of results) is faster if tiles would be nearly empty: depthwise convolutions
   and batches of tiny products. `share` is the fraction of the smallest tile, 32 x 32, that the product fills; above
   1/6, tensor cores are faster. */
static bool prefers_direct(const struct contraction *c) {
    int64_t rows = modes_extent(&c->modes[ROW]), columns = modes_extent(&c->modes[COLUMN]);
    bool is_matmul = op_of(c->node->op) == &matmul_op;
    double share = (rows < 32 ? (double)rows / 32 : 1) * (columns < 32 ? (double)columns / 32 : 1);
    if (contraction_has_overrides(c) || modes_extent(&c->modes[BATCH]) < 2)
        return false;
    return share <= 1.0 / 6 && (!is_matmul || (rows <= 64 && columns <= 64 && c->k_count <= 1024));
}

static void plan_direct(struct contraction *c, const struct device *device, const struct knob_choices *knobs) {
    /* 1,024 threads per multiprocessor suffice to hide memory latency. K is split until there are that many threads,
       with at least 64 products each. */
    double threads = (double)device->cuda.multiprocessors * 1024,
           runs = (double)contraction_elements(c) / c->epilogue.run;
    int64_t k = modes_extent(&c->modes[K]), chosen = knob_value(knobs, WEFT_KNOB_TYPE_SPLIT_K);
    c->splits = 1;
    while (c->splits < SPLITS_MAX && runs * c->splits < threads && k / (c->splits * 2) >= 64)
        c->splits *= 2;
    if (chosen > 0)
        c->splits = (int)(chosen <= k ? chosen : 1);
    c->steps_per_split = divide_up(k, c->splits);
    if (c->steps_per_split > 0)
        c->splits = (int)divide_up(k, c->steps_per_split);
    double share = runs * c->splits / threads;
    double rate =
        contraction_rate(c->arithmetic, device) * device->cuda.multiprocessors * DIRECT_RATE * (share < 1 ? share : 1);
    double computing = 2 * (double)contraction_elements(c) * c->k_count / rate,
           moving = contraction_memory_seconds(c, device);
    c->seconds = LAUNCH_SECONDS + (computing > moving ? computing : moving) + split_seconds(c, device, c->splits);
}

/* True if 32-bit indices suffice, so that a division is one multiplication. Computed in double because products of
   extents may overflow. */
static bool has_small_indices(const struct contraction *c) {
    bool small = true;
    for (int index = 0; index < INDICES; index++) {
        double extent = 1;
        for (int d = 0; d < c->modes[index].count; d++)
            extent *= (double)c->modes[index].at[d].extent;
        small = small && extent < (double)WEFT_INDEX32_MAX - 256; /* the last tiles extend past it */
    }
    return small;
}

/* The direct kernel does not use tensor cores. */
static enum arithmetic without_mma(enum arithmetic arithmetic) {
    return arithmetic == MMA_INT8 ? FMA_INT32 : arithmetic_rows[arithmetic].is_mma ? FMA_FLOAT : arithmetic;
}

/* The epilogue is analysed before modes are merged, because it has its own modes and merges them according to the
   result's operands. */
weftStatus_t contraction_analyse(struct contraction *c, const struct device *device) {
    c->arithmetic = contraction_arithmetic(c, device);
    c->has_k16 = device->cuda.major >= 8;
    c->is_direct = prefers_direct(c);
    if (c->is_direct) {
        c->arithmetic = without_mma(c->arithmetic);
        contraction_flatten(c);
    }
    TRY(epilogue_analyse(c));
    bool has_overrides = contraction_has_overrides(c); /* overrides need the original batch dimensions */
    for (int index = has_overrides ? ROW : BATCH; index < INDICES && !c->is_direct; index++)
        modes_merge(&c->modes[index]);
    c->is_small = has_small_indices(c);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t contraction_plan(struct contraction *c, const struct device *device, const struct knob_choices *knobs) {
    TRY(contraction_analyse(c, device));
    if (c->is_direct) {
        choose_direct_access(c);
        plan_direct(c, device, knobs);
    } else {
        for (int f = 0; f < OPERANDS; f++)
            choose_access(c, f);
        choose_tile(c, device, knobs);
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- The result of a convolution --------------------------------------------------------------------------------- */

/* Extents of 1 need no mode: their coordinate is 0. */
static void add_result_mode(struct modes *modes, int64_t extent, int64_t dim) {
    if (extent != 1)
        modes->at[modes->count++] = (struct mode){.extent = extent, .dim = (int)dim, .dim_step = 1, .phase = NO_PHASE};
}

/* Replaces the contraction's modes by those of the result: the epilogue indexes only results, and BATCH and K are
   empty. */
static void find_result_modes(struct contraction *c, const struct conv_geometry *g) {
    bool is_filter = g->direction == CONV_FILTER;
    const struct conv_operand *result = is_filter ? &g->w : g->direction == CONV_DATA ? &g->x : &g->y;
    int64_t rank = result->tensor->dims.count, channel = rank - g->spatial - 1;
    for (int index = 0; index < INDICES; index++)
        c->modes[index].count = 0;
    c->phase_count = 0;
    add_result_mode(&c->modes[ROW], is_filter ? g->k : g->n, is_filter ? channel - 1 : 0);
    for (int i = 0; i < 3; i++)
        add_result_mode(&c->modes[is_filter ? COLUMN : ROW], result->size[i], rank - 3 + i);
    add_result_mode(&c->modes[COLUMN], g->direction == CONV_FORWARD ? g->k : g->c, channel);
}

weftStatus_t contraction_analyse_result(struct contraction *c, const struct conv_geometry *g) {
    find_result_modes(c, g);
    c->arithmetic = FMA_FLOAT; /* epilogue() receives floats */
    c->is_small = true;
    c->splits = 1;
    TRY(epilogue_analyse(c));
    if (contraction_elements(c) > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: more than 2^31 results", descriptor_label(c->node->op));
    return WEFT_STATUS_SUCCESS;
}
