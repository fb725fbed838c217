/* SPDX-License-Identifier: Apache-2.0 */
/* The Hopper family: one matmul or convolution of 16-bit or 8-bit operands with TMA and wgmma, followed by pointwise
   operations and reductions. The host code chooses and generates; product/hopper/product_sm90.cuh computes tiles of the
   product, product/combine_splits.cuh adds the partial sums of split-K, and product/combine_partials.cuh those of
   reductions. The contraction family is the fallback for everything that this family declines. */
#include "engines/cuda/product/hopper/hopper.h"
#include "base/number.h"
#include "engines/cuda/families.h"
#include "graph/ops/matmul.h"

enum {
    IDLE_SHARE = 33,         /* at most 1 in this many multiprocessors may be idle so that blocks keep to their
                                  columns */
    SKINNY_ROWS = 128,       /* results with at most this many rows are also tried with A and B swapped */
    STAGES_MIN = 3,          /* minimum stages of 128 bytes of k */
    MULTIPROCESSORS_MIN = 4, /* required by a cluster of two parts */
};

static const double REDUCTION_SECONDS = 4e-6; /* a small reduction as a separate kernel */

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

weftStatus_t hopper_check_device(const struct device *device, const char *family) {
    if (device->cuda.major != 9 || device->cuda.minor != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "the %s runs on compute capability 9.0, '%s' has %d.%d", family,
             device->name, device->cuda.major, device->cuda.minor);
    if (device->cuda.multiprocessors < MULTIPROCESSORS_MIN)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "the %s requires %d multiprocessors, '%s' has %d", family,
             MULTIPROCESSORS_MIN, device->name, device->cuda.multiprocessors);
    return WEFT_STATUS_SUCCESS;
}

/* Signed or unsigned: wgmma accepts both, in any combination. */
static bool is_int8(weftDataType_t type) { return type == WEFT_DATA_INT8 || type == WEFT_DATA_UINT8; }

/* True for two floats, which are narrowed to tf32 if the request allows it. */
static bool has_floats(const struct contraction *c) {
    return c->operand[OPERAND_A].tensor->type == WEFT_DATA_FLOAT &&
           c->operand[OPERAND_B].tensor->type == WEFT_DATA_FLOAT && c->arithmetic == FMA_FLOAT;
}

/* Accepts two equal 16-bit types, any two FP8 or 8-bit integer types, or, if they may be narrowed, two floats. */
static weftStatus_t check_arithmetic(const struct contraction *c) {
    weftDataType_t a = (weftDataType_t)c->operand[OPERAND_A].tensor->type;
    weftDataType_t b = (weftDataType_t)c->operand[OPERAND_B].tensor->type;
    enum arithmetic sum = c->arithmetic;
    if (contraction_has_overrides(c) && c->fill != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED,
             "%s: elements outside its overrides have the value %g; this engine supports only 0.",
             descriptor_label(c->node->op), c->fill);
    bool is_half = a == b && dtype_is_half(a) && (sum == MMA_F16 || sum == MMA_BF16);
    bool is_byte =
        (dtype_is_fp8(a) && dtype_is_fp8(b) && sum == MMA_F16) || (is_int8(a) && is_int8(b) && sum == MMA_INT8);
    bool narrows = c->region->allow & RELAX_TF32;
    if (!is_half && !is_byte && !(narrows && has_floats(c)))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: unsupported operand types: %s x %s; this engine multiplies %s.",
             descriptor_label(c->node->op), dtype_of(a)->name, dtype_of(b)->name,
             narrows ? "two floats, halves, bfloat16 or FP8 summed in float, or two 8-bit integers"
                     : "two halves, bfloat16 or FP8 summed in float, or two 8-bit integers");
    /* Coordinates of maps have 32 bits, and an empty sum has no step. */
    if (c->is_direct || !c->is_small || modes_extent(&c->modes[K]) == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: empty, tiny or larger than 2^31 along an index; use the contraction family.",
             descriptor_label(c->node->op));
    return WEFT_STATUS_SUCCESS;
}

/* The partial sums of splits cannot be reduced. If splitting without reductions, followed by a separate reduction that
   reads the result again, is faster, the fused one is refused. The comparison plans a copy without reductions and
   without knobs, because these may rule out that split. */
static weftStatus_t check_reductions(const struct hopper *h, const struct device *device) {
    const struct tensor *result = h->c.region->graph->values[h->c.result].tensor;
    if (h->c.epilogue.reduction_count == 0 || !h->tile)
        return WEFT_STATUS_SUCCESS;
    struct hopper bare = *h;
    bare.c.epilogue.reduction_count = 0;
    for (int span = 0; span < SPANS; span++)
        bare.c.epilogue.spans[span].count = 0;
    hopper_plan(&bare, device, NULL);
    double separate =
        bare.seconds + REDUCTION_SECONDS + (double)tensor_own_bytes(result) / (double)device->cuda.bandwidth;
    if (separate < h->seconds)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: splitting its sums %d times is faster than fusing its reductions.",
             descriptor_label(h->c.node->op), bare.splits);
    return WEFT_STATUS_SUCCESS;
}

/* The prologue may read vectors along A's rows and along k, if these are dimensions of the map. Vectors are pairs along
   k: two 16-bit elements in a register of wgmma's A. */
static weftStatus_t find_prologue(struct prologue *prologue, const struct hopper *h) {
    const struct map_view *view = &h->view[OPERAND_A];
    *prologue = (struct prologue){.c = &h->c, .vector_length = 2};
    if (h->c.prologue_count > 0 && h->is_by_images && !h->is_matrix)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: operations before it are fused only if its channels are contiguous.",
             descriptor_label(h->c.node->op));
    for (int i = 0; i < view->count; i++) {
        const struct view_dim *dim = &view->dims[i];
        if (h->c.prologue_count > 0 && dim->per_group > 0)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: operations before it are fused only if there is one group.",
                 descriptor_label(h->c.node->op));
        if (dim->role == ROLE_K || dim->role == ROLE_OUTER)
            prologue->axes[prologue->axis_count++] =
                (struct prologue_axis){dim->extent, dim->stride, dim->role == ROLE_K};
    }
    return prologue_find(prologue);
}

/* The operand with a prologue becomes the first one. h->tile is NULL if no tile fits, which is not an error yet. knobs:
   NULL only in accepts. */
static weftStatus_t analyse_as(struct hopper *h, const struct region *region, const struct device *device,
                               const struct knob_choices *knobs, bool is_swapped) {
    struct prologue prologue;
    *h = (struct hopper){0};
    TRY(contraction_find_prepared(&h->c, region));
    h->is_swapped = is_swapped || h->c.operand[OPERAND_B].prepared != NO_PROLOGUE;
    if (h->is_swapped)
        contraction_swap(&h->c);
    hopper_order(h);
    TRY(contraction_analyse(&h->c, device));
    TRY(check_arithmetic(&h->c));
    TRY(hopper_shape(h));
    TRY(hopper_find_parts(h));
    TRY(hopper_scales(h));
    TRY(find_prologue(&prologue, h));
    bool is_fast = contraction_math(h->c.node) == WEFT_DATA_FAST_FLOAT_FOR_FP8 && !hopper_is_scaled(h);
    h->promotes = dtype_is_fp8((weftDataType_t)h->c.operand[OPERAND_A].tensor->type) && !is_fast;
    hopper_plan(h, device, knobs);
    return knobs ? WEFT_STATUS_SUCCESS : check_reductions(h, device);
}

/* Compares the product as given with the product of swapped A and B. With few rows, swapping makes them the columns,
   for which narrow tiles exist. It is tried if it may be faster: if no tile fits otherwise, if rows are contiguous in
   memory, so that the swapped product stores whole accesses, or if there are few rows. A failure of the second attempt
   is ignored and its message cleared. */
static weftStatus_t analyse(struct hopper *h, const struct region *region, const struct device *device,
                            const struct knob_choices *knobs) {
    struct hopper swapped;
    TRY(hopper_check_device(device, "Hopper family"));
    TRY(analyse_as(h, region, device, knobs, false));
    bool lead_is_row = h->c.epilogue.lead == ROW, is_skinny = modes_extent(&h->c.modes[ROW]) <= SKINNY_ROWS;
    if (!h->is_swapped && (!h->tile || lead_is_row || is_skinny)) {
        if (analyse_as(&swapped, region, device, knobs, true) != WEFT_STATUS_SUCCESS)
            status_clear();
        else if (!h->tile || (swapped.tile && swapped.seconds < h->seconds))
            *h = swapped;
    }
    if (!h->tile)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: no tile of the Hopper family fits.",
             descriptor_label(h->c.node->op));
    return WEFT_STATUS_SUCCESS;
}

/* Companion nodes: block scales of the product's operands, otherwise the prologue of one operand. Both operands may
   have scales, one may have a prologue. Returns the number of nodes written. */
static int companions(const struct graph *graph, int node, int *nodes) {
    const struct node *product = &graph->nodes[node];
    int count = 0;
    if (op_of(product->op) != &matmul_op && !conv_is(product->op))
        return 0;
    for (int i = 0; i < product->operand_count && op_of(product->op) == &matmul_op; i++) {
        int producer = graph->values[product->operands[i]].producer;
        bool is_new = count == 0 || nodes[count - 1] != producer;
        if (!product->is_output[i] && producer >= 0 && is_new &&
            op_of(graph->nodes[producer].op) == &block_scale_dequantize_op)
            nodes[count++] = producer;
    }
    return count > 0 ? count : prologue_companions(graph, node, nodes);
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct hopper h;
    TRY(analyse(&h, region, device, NULL));
    offer->seconds = h.seconds;
    offer->used = has_floats(&h.c) ? RELAX_TF32 : 0;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* Number of consumer warpgroups that share a tile, and of all consumer warpgroups of a block. */
static int tile_groups(const struct hopper *h) { return h->tile->rows / (h->tile->row_blocks * 64); }
static int consumer_groups(const struct hopper *h) { return tile_is_pingpong(h->tile) ? 2 : tile_groups(h); }

static unsigned shared_bytes(const struct hopper *h) {
    const struct hopper_tile *tile = h->tile;
    struct pipeline_shape shape = {
        .block_m = tile->rows,
        .block_n = tile->columns,
        .group_rows = tile->row_blocks * 64,
        .stages = h->stages,
        .consumer_warps = consumer_groups(h) * 4,
        .cluster_splits = tile_splits(tile),
        .result_bytes = hopper_result_bytes(h),
        .results = h->second ? 2 : 1,
        .is_staged = h->store != NULL,
        .epilogue_tiles = h->epilogue_tiles,
        .column_reductions = h->c.epilogue.spans[SPAN_COLUMN].count,
        .own_barriers = tile_splits(tile) > 1    ? 1
                        : tile_is_pingpong(tile) ? 2
                                                 : 0,
        .aux_load = h->has_aux_load,
    };
    return pipeline_memory_of(shape).bytes;
}

/* If an operand with the result's layout is loaded, there are epilogue tiles for a whole tile, at the cost of stages.
   Each part of the result then needs its own epilogue tile, because all loads are issued before the first store. */
static bool fits_aux_load(struct hopper *h) {
    h->has_aux_load = true; /* affects the barriers */
    h->stages = h->tile->stages;
    h->epilogue_tiles = h->tile->row_blocks * h->tile->columns / hopper_epilogue_columns(h);
    /* Drop stages until it fits, but not below STAGES_MIN. */
    while (shared_bytes(h) > SHARED_MAX && h->stages > STAGES_MIN)
        h->stages--;
    return shared_bytes(h) <= SHARED_MAX;
}

/* The first operand with the result's layout is copied by TMA into the epilogue tiles from which the results are
   stored. Threads load the other operands at the positions of their sums. */
static void plan_aux_load(struct hopper *h) {
    for (int k = 0; k < h->c.epilogue.count && h->stores_boxes && tile_splits(h->tile) == 1 && !h->second; k++) {
        h->has_aux_load = epilogue_has_layout_of(&h->c, k, h->store) && fits_aux_load(h);
        if (h->has_aux_load) {
            h->auxiliary = k;
            h->c.epilogue.at[k].is_auxiliary = true;
            return;
        }
    }
    hopper_fit(h);
}

/* Two epilogue tiles per warp, so that one can be filled while TMA reads the other. Next to a single one, the stages of
   the tile table fit, or one fewer; pipeline.cuh asserts it. */
void hopper_fit(struct hopper *h) {
    h->stages = h->tile->stages;
    h->epilogue_tiles = 2;
    if (shared_bytes(h) > SHARED_MAX)
        h->epilogue_tiles = 1;
    if (shared_bytes(h) > SHARED_MAX)
        h->stages--;
}

/* True if each batch entry of the result is a matrix that TMA can store. Maps have one dimension each for rows, columns
   and entries; phases interleave in memory. Threads store other staged results by address. */
static bool stores_boxes(const struct hopper *h) {
    return h->store && h->c.phase_count == 0 && h->c.epilogue.mode_count[ROW] <= 1 &&
           h->c.epilogue.mode_count[BATCH] <= 1;
}

/* Number of clusters that run concurrently: a multiple of the tiles of a row if each cluster keeps to its column. */
static int64_t active_clusters(const struct hopper *h, const struct device *device, int64_t tiles) {
    int64_t clusters = hopper_clusters(h->tile, device);
    clusters = tiles < clusters ? tiles : clusters;
    return h->keeps_column ? clusters - clusters % hopper_tiles_along(h, COLUMN) : clusters;
}

/* Counts the lines of partial sums. Reductions of columns have one per consumer warpgroup for each of its tiles or for
   all of them, reductions of rows one per column of tiles, and reductions of everything one per warp. */
static void plan_reductions(struct hopper *h, const struct device *device) {
    const struct reduced_span *spans = h->c.epilogue.spans;
    int64_t clusters = hopper_clusters(h->tile, device), tiles_n = hopper_tiles_along(h, COLUMN);
    int64_t batches = modes_extent(&h->c.modes[BATCH]);
    /* The number of clusters must be a multiple of the tiles of a row, so that each cluster stays in its column; some
       may then be idle. */
    h->keeps_column = spans[SPAN_COLUMN].count > 0 && !spans[SPAN_COLUMN].keeps_batch &&
                      clusters % tiles_n * IDLE_SHARE <= clusters && tiles_n <= clusters;
    int64_t blocks = active_clusters(h, device, hopper_tiles(h, h->tile)) * h->tile->cluster;
    int64_t rows_of_tiles = hopper_tiles_along(h, ROW) * h->tile->cluster * batches;
    h->lines[SPAN_COLUMN] = h->keeps_column ? blocks / tiles_n * consumer_groups(h) : rows_of_tiles * tile_groups(h);
    h->lines[SPAN_ROW] = tiles_n * batches;
    h->lines[SPAN_ALL] = blocks * consumer_groups(h) * 4;
}

/* Two 16-bit results are both staged, if TMA can store both. Not with splits, which store no results, and not if a
   single result is staged already. */
static void plan_second(struct hopper *h) {
    const struct epilogue_operand *stores[2];
    if (h->store || h->splits > 1 || epilogue_find_stored(&h->c, 2, stores) != 2)
        return;
    h->store = stores[0];
    h->stores_boxes = stores_boxes(h);
    if (h->stores_boxes)
        h->second = stores[1];
    else
        h->store = NULL;
}

/* Chooses how sums are stored: through epilogue tiles in shared memory, possibly with only one of them or one stage
   less; otherwise in runs from registers. */
static void plan_epilogue(struct hopper *h) {
    h->store = h->splits > 1 ? NULL : hopper_find_store(h);
    h->stores_boxes = stores_boxes(h);
    plan_second(h);
    if (h->store)
        h->c.epilogue.run = 2;          /* the layout of the accumulators */
    else if (h->c.epilogue.lead == ROW) /* otherwise adjacent elements of a column are in other threads */
        h->c.epilogue.run = hopper_gathers_rows(h) ? h->c.epilogue.run : 1;
    else if (h->c.epilogue.reduction_count > 0)
        h->c.epilogue.run = h->c.epilogue.run > 1 ? 2 : 1;
    plan_aux_load(h);
}

/* Inputs of the graph can be loaded before the previous kernel ends if that kernel belongs to this plan, because it has
   already waited for all earlier writers. A kernel before the plan may still be writing them. */
static void plan_early(struct hopper *h, const struct step *step) {
    const struct value *values = h->c.region->graph->values;
    for (int f = 0; f < OPERANDS && cuda_follows(step) && !contraction_has_overrides(&h->c); f++)
        h->is_early[f] = !h->parts[f] && value_is_input(&values[h->c.operand[f].value]);
}

/* Constants for all parts of the kernel, also for families that generate their own coordinates. */
void hopper_emit_tile(struct kernel_source *source, const struct hopper *h) {
    const struct hopper_tile *tile = h->tile;
    emit_constant(source, "BLOCK_M", tile->rows);
    emit_constant(source, "BLOCK_N", tile->columns);
    emit_constant(source, "ROW_BLOCKS", tile->row_blocks);
    emit_constant(source, "STAGES", h->stages);
    emit_constant(source, "CLUSTER", tile->cluster);
    emit_constant(source, "READS_TILE", hopper_reads_tile(h));
    emit_constant(source, "IS_STAGED", h->store != NULL);
    emit_constant(source, "STORES_BOXES", h->stores_boxes);
    emit_constant(source, "RESULT_BYTES", hopper_result_bytes(h));
    emit_constant(source, "RESULTS", h->second ? 2 : 1);
    emit_constant(source, "AUX_LOAD", h->has_aux_load);
    emit_constant(source, "EPILOGUE_TILES", h->store ? h->epilogue_tiles : 1);
    emit_constant(source, "KEEPS_COLUMN", h->keeps_column);
    emit_constant(source, "REDUCES_STAGED", h->c.epilogue.reduces_stored);
    if (h->promotes) {
        emit_constant(source, "HAS_SCALES", hopper_is_scaled(h));
        emit_constant(source, "SCALE_COLUMNS", hopper_scale_columns(h, tile));
    }
    reductions_emit_kinds(source, &h->c);
}

/* Selects the kernel by main loop and schedule, see the table in backend/README.md; scheme_fits excludes all other
   combinations. */
weftStatus_t hopper_build_kernel(struct kernel_source *source, struct cuda_kernel *kernel, const struct hopper *h,
                                 struct arena *arena) {
    const struct hopper_tile *tile = h->tile;
    bool is_split = tile_splits(tile) > 1;
    if (is_split && h->promotes)
        return kernel_finish(source, kernel, "product/hopper/product_cluster_split_promoted_sm90.cuh",
                             "product_cluster_split_promoted_sm90", arena);
    if (is_split)
        return kernel_finish(source, kernel, "product/hopper/product_cluster_split_sm90.cuh",
                             "product_cluster_split_sm90", arena);
    if (h->promotes)
        return kernel_finish(source, kernel, "product/hopper/product_promoted_sm90.cuh", "product_promoted_sm90",
                             arena);
    if (h->c.prologue_count > 0)
        return kernel_finish(source, kernel, "product/hopper/product_prologue_sm90.cuh", "product_prologue_sm90",
                             arena);
    if (tile_is_pingpong(tile))
        return kernel_finish(source, kernel, "product/hopper/product_pingpong_sm90.cuh", "product_pingpong_sm90",
                             arena);
    return kernel_finish(source, kernel, "product/hopper/product_sm90.cuh", "product_sm90", arena);
}

/* Sizes and divisors by which product/hopper/tile_scheduler.cuh decodes the number of a tile, and which operands can be
   loaded early: numbers instead of constants, so that layers share a program regardless of their position in a plan. */
void hopper_emit_scheduler(struct kernel_source *source, const struct hopper *h, const struct device *device,
                           int64_t batches, int64_t rows, int64_t columns) {
    const struct hopper_tile *tile = h->tile;
    int64_t height = (int64_t)tile->rows * tile->cluster;
    int64_t tiles_m = divide_up(rows, height), tiles_n = divide_up(columns, tile->columns);
    int64_t raster_rows = hopper_raster_rows(h, device, tiles_m, tiles_n);
    emit_number(source, rows, "rows");
    emit_number(source, columns, "columns");
    emit_number(source, h->steps, "steps");
    emit_number(source, tiles_m, "tiles_m");
    emit_number(source, batches * tiles_m * tiles_n * h->splits, "tiles");
    emit_divisor(source, tiles_m * tiles_n, "tiles_per_entry");
    emit_number(source, raster_rows, "raster_rows");
    emit_divisor(source, raster_rows * tiles_n, "tiles_per_raster_group");
    emit_divisor(source, batches, "batches");
    emit_number(source, h->is_early[OPERAND_A], "a_is_early");
    emit_number(source, h->is_early[OPERAND_B], "b_is_early");
}

/* Addresses of the partial sums of each span, and the number of lines per batch entry. */
static void emit_partials(struct kernel_source *source, const struct hopper *h) {
    int64_t batches = modes_extent(&h->c.modes[BATCH]);
    for (int span = 0; span < SPANS; span++) {
        if (h->c.epilogue.spans[span].count == 0)
            continue;
        reductions_emit_partials(source, &h->c, h->lines, (enum span)span);
        emit_number(source, h->lines[span] / batches, named("%s_lines_per_entry", span_names[span]).text);
        if (span == SPAN_COLUMN)
            emit_number(source, hopper_tiles_along(h, COLUMN), "tiles_n");
    }
}

void hopper_launch(struct cuda_kernel *kernel, const struct hopper *h, const struct device *device, int64_t tiles) {
    const struct hopper_tile *tile = h->tile;
    /* Persistent, except for a cluster split, whose clusters compute one tile each. */
    int64_t blocks = (int64_t)tile->cluster * tile_splits(tile), clusters = active_clusters(h, device, tiles);
    contraction_set_launch(kernel, (tile_splits(tile) > 1 ? tiles : clusters) * blocks,
                           (1 + consumer_groups(h)) * WARPGROUP, shared_bytes(h));
    kernel->cluster = blocks > 1 ? (uint32_t)blocks : 0;
    /* The kernel itself waits for the previous launch, after it has initialised its barriers (programmatic dependent
       launch). */
    kernel->is_dependent = true;
}

/* Code is emitted in the order of calls: later functions call earlier ones. */
static weftStatus_t build_tiles(struct cuda_kernel *kernel, const struct hopper *h, const struct device *device,
                                struct arena *arena) {
    struct kernel_source source;
    struct prologue prologue;
    kernel_source_init(&source, h->c.region);
    /* Signed, so that the compiler can extract constants from sums of indices and keep few addresses. */
    emit_type(&source, "sum_t", arithmetic_rows[h->c.arithmetic].sum);
    text_add(&source.constants, "using index = i32;\n");
    text_add(&source.code, "#include \"core/gather.cuh\"\n\n");
    emit_constant(&source, "LEAD_IS_ROW", h->c.epilogue.lead == ROW);
    hopper_emit_tile(&source, h);
    hopper_emit_maps(&source, h);
    hopper_emit_operands(&source, h);
    hopper_emit_scales(&source, h);
    TRY(find_prologue(&prologue, h));
    prologue_emit(&source, &prologue);
    wgmma_emit(&source.code, h->tile->columns, (weftDataType_t)h->c.operand[OPERAND_A].tensor->type,
               (weftDataType_t)h->c.operand[OPERAND_B].tensor->type,
               h->c.prologue_count > 0         ? WGMMA_A_REGISTERS
               : h->view[OPERAND_A].is_k_major ? WGMMA_A_K_MAJOR
                                               : WGMMA_A_MN_MAJOR,
               !h->view[OPERAND_B].is_k_major);
    hopper_emit_scheduler(&source, h, device, modes_extent(&h->c.modes[BATCH]), modes_extent(&h->c.modes[ROW]),
                          modes_extent(&h->c.modes[COLUMN]));
    emit_partials(&source, h);
    contraction_emit_epilogue(&source, &h->c);
    if (h->store)
        hopper_emit_result(&source, h);
    TRY(hopper_build_kernel(&source, kernel, h, arena));
    hopper_launch(kernel, h, device, hopper_tiles(h, h->tile) * h->splits);
    return WEFT_STATUS_SUCCESS;
}

/* Writes the text for explain(). */
static weftStatus_t describe(struct step *step, const struct hopper *h, struct arena *arena) {
    const struct hopper_tile *tile = h->tile;
    int epilogue_count = 0;
    for (int i = 0; i < h->c.region->count; i++)
        epilogue_count += contraction_is_in_epilogue(&h->c, region_node(h->c.region, i));
    bool has_image = h->view[OPERAND_A].is_image || h->view[OPERAND_B].is_image;
    return arena_print(
        arena, &step->detail,
        "wgmma, tiles of %dx%d%s%s, %d stages, clusters of %d, %d split%s, %s%s%s%s%s%s, epilogue: %d operation%s",
        tile->rows, tile->columns, h->is_swapped ? " swapped" : "",
        tile_splits(tile) > 1    ? " split over clusters"
        : tile_is_pingpong(tile) ? " in ping-pong"
                                 : "",
        h->stages, tile->cluster, h->splits, plural(h->splits), has_image ? "image" : "matrix",
        h->k_is_pixels ? " of pixels" : "",
        hopper_is_scaled(h)       ? ", scaled by blocks"
        : h->c.prologue_count > 0 ? ", prologue"
        : h->promotes             ? ", promoted"
                                  : "",
        h->store ? ", staged" : "", h->c.epilogue.reduction_count ? ", reductions" : "",
        h->is_early[OPERAND_A] || h->is_early[OPERAND_B] ? ", inputs ahead" : "", epilogue_count,
        plural(epilogue_count));
}

/* The tiled kernel, then the kernels that combine splits or partial sums of reductions. */
static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    struct hopper h;
    struct cuda_kernel *kernel;
    TRY(analyse(&h, &step->region, device, knobs));
    step->seconds = h.seconds;
    TRY(contraction_add_kernel(&kernel, step, &h.c, arena));
    if (!kernel)
        return WEFT_STATUS_SUCCESS;
    if (h.splits > 1)
        TRY(contraction_add_combine(step, &h.c, arena));
    plan_epilogue(&h); /* after the combining kernel, which has its own runs */
    plan_reductions(&h, device);
    plan_early(&h, step);
    TRY(build_tiles(kernel, &h, device, arena));
    TRY(reductions_build(step, &h.c, h.lines, arena));
    return describe(step, &h, arena);
}

static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, HOPPER_TILE_ROWS, 1, 0, "row of the tile table; 0 chooses"},
    {WEFT_KNOB_TYPE_SPLIT_K, 0, HOPPER_SPLITS_MAX, 1, 0, "parts that each sum is split into; 0 chooses"},
    {0},
};

const struct family cuda_hopper = {
    .name = "cuda.hopper",
    .doc = "a matmul or convolution of 16-bit or 8-bit operands, or of floats narrowed to tf32, with pointwise "
           "operations and reductions after it, on Hopper's tensor cores",
    .wants_boxes = true,
    .knobs = knobs,
    .accepts = accepts,
    .companions = companions,
    .build = build,
    .may_alias = contraction_may_alias,
    .relaxes = contraction_relaxes,
    .gathers = hopper_gathers,
};
