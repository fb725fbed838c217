/* SPDX-License-Identifier: Apache-2.0 */
/* The contraction family: one matmul or convolution and the pointwise operations behind it, in one kernel, or in two when
   the sum is split. The host half decides and prints; product/portable_mma.cuh and _fma.cuh make tiles of the
   product, product/portable_direct.cuh single elements of small ones, product/combine_splits.cuh brings the parts of split sums together. */
#include "base/number.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/contraction.h"
#include "engines/product.h"

#include <stdlib.h>
#include <string.h>

enum {
    DIRECT_THREADS = 128,
    COMBINE_THREADS = 256,
    COMBINE_SHARERS_MAX = 32,         /* eight runs side by side are whole lines still */
    COMBINE_THREADS_WANTED = 1 << 17, /* as many as load at the same time */
    GROUP_TILES = 8,                  /* rows of tiles that are walked together, so that their factors meet in L2 */
};

static const int64_t GRID_MAX = INT32_MAX;

/* ---- Accepting ---------------------------------------------------------------------------------------------------- */

static bool is_scaling(const struct node *node) { return op_of(node->op) == &block_scale_dequantize_op; }

static bool goes_behind(const struct node *node) { return op_of(node->op) == &pointwise_op; }

static bool goes_around(const struct node *node) { return goes_behind(node) || totals_serve(node) || is_scaling(node); }

static bool is_preparing(const struct node *node) { return goes_behind(node) || is_scaling(node); }

/* Nodes that go around the product may be in front of it. */
static weftStatus_t check_operands(const struct region *region, bool takes_prepared, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        const struct value *value = &region->graph->values[node->operands[i]];
        const struct tensor *tensor = value->tensor;
        bool is_made_here = value->producer >= 0 && region_has(region, value->producer);
        if (!node->is_output[i] && is_made_here &&
            !(takes_prepared && is_preparing(&region->graph->nodes[value->producer])))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s reads %s, which %s makes: operations are fused behind a product, not before it.",
                 descriptor_label(node->op), descriptor_label(&tensor->base),
                 descriptor_label(region->graph->nodes[value->producer].op));
        TRY(tensor_check_plain(tensor, node->op));
        if (!cuda_type_name((weftDataType_t)tensor->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
                 descriptor_label(node->op), descriptor_label(&tensor->base),
                 dtype_of((weftDataType_t)tensor->type)->name);
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t find(struct contraction *c, const struct region *region,
                         bool (*goes_with)(const struct node *node)) {
    const struct node *node;
    *c = (struct contraction){.region = region};
    TRY(region_find_product(&node, region, goes_with));
    TRY(check_operands(region, goes_with == goes_around, node));
    TRY(contraction_shape(c, node));
    for (int f = 0; f < FACTORS; f++)
        c->factor[f].prepared = NOTHING_BEFORE;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t contraction_find(struct contraction *c, const struct region *region) {
    return find(c, region, goes_behind);
}

/* A factor that the region scales becomes the tensor whose blocks are scaled, where both lie alike. */
static weftStatus_t take_scaling(struct contraction *c, struct factor *factor, int *count) {
    const struct graph *graph = c->region->graph;
    int producer = graph->values[factor->value].producer;
    if (producer < 0 || !region_has(c->region, producer) || !is_scaling(&graph->nodes[producer]))
        return WEFT_STATUS_SUCCESS;
    const struct descriptor *op = graph->nodes[producer].op;
    const struct block_scale_dequantize_op *scaling = (const struct block_scale_dequantize_op *)op;
    bool is_alike = scaling->x->vector_count == 1;
    for (int64_t i = 0; i < scaling->x->dims.count; i++)
        is_alike = is_alike && scaling->x->strides.at[i] == scaling->y->strides.at[i];
    if (!is_alike || region_exports(c->region, factor->value))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: %s must have the strides of %s and be read by the product alone, to be scaled within it.",
             descriptor_label(op), descriptor_label(&scaling->y->base), descriptor_label(&scaling->x->base));
    factor->scaling = scaling;
    factor->tensor = scaling->x;
    factor->value = graph_find_value(graph, scaling->x);
    ++*count;
    return WEFT_STATUS_SUCCESS;
}

static bool is_before(const struct contraction *c, const struct node *node) {
    for (int i = 0; i < c->before_count; i++)
        if (c->before[i] == node)
            return true;
    return false;
}

static bool reads(const struct node *node, int value) {
    for (int k = 0; k < node->operand_count; k++)
        if (node->operands[k] == value && !node->is_output[k])
            return true;
    return false;
}

/* Whether what a pointwise node makes becomes the factor, and nothing else. */
static weftStatus_t check_before(const struct contraction *c, const struct node *node, int prepared, bool *is) {
    int out = 0;
    while (!node->is_output[out])
        out++;
    out = node->operands[out];
    bool is_shared = region_exports(c->region, out);
    *is = out == prepared;
    for (int i = 0; i < c->region->count; i++) {
        const struct node *reader = region_node(c->region, i);
        if (!reads(reader, out))
            continue;
        *is = *is || is_before(c, reader);
        is_shared = is_shared || !(is_before(c, reader) || (reader == c->node && out == prepared));
    }
    if (*is && is_shared)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: what it makes must be read by the product alone.",
             descriptor_label(node->op));
    return WEFT_STATUS_SUCCESS;
}

/* The one tensor of the factor's dims and strides that operations before the product read takes its place. */
static weftStatus_t take_prepared(struct contraction *c, struct factor *factor) {
    const struct graph *graph = c->region->graph;
    int input = NOTHING_BEFORE;
    for (int b = 0; b < c->before_count; b++)
        for (int k = 0; k < c->before[b]->operand_count; k++) {
            int value = c->before[b]->operands[k], producer = graph->values[value].producer;
            const struct tensor *tensor = graph->values[value].tensor;
            if (c->before[b]->is_output[k] || (producer >= 0 && region_has(c->region, producer)) ||
                !tensor_same_layout(tensor, factor->tensor) || value == input)
                continue;
            if (input != NOTHING_BEFORE)
                FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: %s and %s would both become its factor.",
                     descriptor_label(c->node->op), descriptor_label(&graph->values[input].tensor->base),
                     descriptor_label(&tensor->base));
            input = value;
        }
    if (input == NOTHING_BEFORE)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: operations before it read no tensor of %s's type, dims and strides, to become it in its place.",
             descriptor_label(c->node->op), descriptor_label(&factor->tensor->base));
    factor->prepared = factor->value;
    factor->value = input;
    factor->tensor = graph->values[input].tensor;
    return WEFT_STATUS_SUCCESS;
}

/* Pointwise operations of the region that lead to a factor. */
static weftStatus_t find_before(struct contraction *c, struct factor *factor) {
    int count = c->before_count;
    for (int i = c->region->count; i-- > 0;) {
        const struct node *node = region_node(c->region, i);
        bool is = false;
        if (op_of(node->op) != &pointwise_op || is_before(c, node))
            continue;
        TRY(check_before(c, node, factor->value, &is));
        if (!is)
            continue;
        if (count > 0 || c->before_count == BEFORE_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s: up to %d operations before one of its factors are fused with it.", descriptor_label(c->node->op),
                 BEFORE_MAX);
        c->before[c->before_count++] = node;
    }
    return c->before_count > count ? take_prepared(c, factor) : WEFT_STATUS_SUCCESS;
}

weftStatus_t contraction_find_prepared(struct contraction *c, const struct region *region) {
    int taken = 0;
    TRY(find(c, region, goes_around));
    for (int f = 0; f < FACTORS; f++)
        TRY(take_scaling(c, &c->factor[f], &taken));
    for (int f = 0; f < FACTORS; f++)
        TRY(find_before(c, &c->factor[f]));
    for (int i = 0; i < region->count; i++)
        taken -= is_scaling(region_node(region, i));
    if (taken < 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: scales of blocks multiply its factors here and nothing else.", descriptor_label(c->node->op));
    return WEFT_STATUS_SUCCESS;
}

bool contraction_is_behind(const struct contraction *c, const struct node *node) {
    return node != c->node && !is_scaling(node) && !is_before(c, node);
}

weftStatus_t contraction_may_narrow(void) {
    const char *wish = getenv("NVIDIA_TF32_OVERRIDE");
    if (wish && strcmp(wish, "0") == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "NVIDIA_TF32_OVERRIDE=0 forbids to narrow floats to tf32. Unset it.");
    return WEFT_STATUS_SUCCESS;
}

bool contraction_narrows(const struct graph *graph, int node) {
    const struct node *product = &graph->nodes[node];
    bool has_half = false, has_bfloat16 = false, has_float = false;
    for (int k = 0; k < product->operand_count; k++) {
        int32_t type = graph->values[product->operands[k]].tensor->type;
        has_half = has_half || (!product->is_output[k] && type == WEFT_DATA_HALF);
        has_bfloat16 = has_bfloat16 || (!product->is_output[k] && type == WEFT_DATA_BFLOAT16);
        has_float = has_float || (!product->is_output[k] && type == WEFT_DATA_FLOAT);
    }
    return node_is_product(product) && (has_float || (has_half && has_bfloat16));
}

static weftStatus_t analyse(struct contraction *c, const struct region *region, const struct device *device,
                            const struct knob_choices *knobs, bool narrows) {
    TRY(contraction_find(c, region));
    c->narrows = narrows;
    TRY(contraction_plan(c, device, knobs));
    if (narrows && c->arithmetic != MMA_TF32)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: only tiles of floats summed in float are narrowed to tf32, from compute capability 8.0 on.",
             descriptor_label(c->node->op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct contraction c;
    TRY(analyse(&c, region, device, NULL, false));
    *seconds = c.seconds;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts_tf32(const struct region *region, const struct device *device, double *seconds) {
    struct contraction c;
    TRY(contraction_may_narrow());
    TRY(analyse(&c, region, device, NULL, true));
    *seconds = c.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ----------------------------------------------------------------------------------------------------- */

int64_t contraction_elements(const struct contraction *c) {
    return digits_extent(&c->digits[BATCH]) * digits_extent(&c->digits[ROW]) * digits_extent(&c->digits[COLUMN]);
}

/* What all three kernels are printed with. */
static void print_common(struct kernel_print *print, const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    kernel_print_init(print, c->region->graph);
    text_add(&print->constants, "using sum_t = %s;\nusing index = %s;\n", row->sum, c->is_small ? "u32" : "i64");
    print_constant(print, "LEAD_IS_ROW", c->finish.lead == ROW);
    text_add(&print->code, "#include \"core/gather.cuh\"\n\n");
}

static void print_splits(struct kernel_print *print, const struct contraction *c) {
    print_number(print, c->splits, "splits");
    print_number(print, c->steps_per_split, "steps_per_split");
    if (c->splits > 1)
        print_scratch(print, "sum_t", 0, "partial");
}

void contraction_print_end(struct kernel_print *print, const struct contraction *c) {
    print_constant(print, "IS_SPLIT", c->splits > 1);
    print_splits(print, c);
    if (c->splits == 1) {
        finish_print(print, c);
        return;
    }
    print_constant(print, "RUN", c->finish.run);
    print_constant(print, "FETCHED_WORDS", 0);
}

/* The type that numbers tiles or results, of which `most` exist. */
static void print_position(struct kernel_print *print, int64_t most) {
    text_add(&print->constants, "using position = %s;\n", most < INT32_MAX ? "u32" : "i64");
}

static int tile_threads(const struct contraction *c) {
    const struct tile *tile = c->tile;
    return arithmetic_rows[c->arithmetic].is_mma ? tile->warps_m * tile->warps_n * 32
                                                 : tile->rows / tile->thread_m * (tile->columns / tile->thread_n);
}

/* Blocks that shall fit on a multiprocessor: two, which hide each other's waits, where 128 registers per thread hold the
   sums and what is on its way. */
static int resident_blocks(const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    bool is_large = c->tile->rows + c->tile->columns > 192, is_light = row->is_mma && c->has_k16;
    for (int f = 0; f < FACTORS; f++)
        is_light = is_light && c->factor[f].run >= 4 && dtype_bytes((weftDataType_t)c->factor[f].tensor->type, 1) == 2;
    return row->bytes == 1 || (is_large && !is_light) ? 1 : 2;
}

static uint32_t grid_of(int64_t blocks) { return (uint32_t)(blocks < GRID_MAX ? blocks : GRID_MAX); }

void contraction_print_tile(struct kernel_print *print, const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    const struct tile *tile = c->tile;
    print_common(print, c);
    if (row->is_mma)
        print_constant(print, "HAS_K16", c->has_k16);
    print_constant(print, "BLOCK_M", tile->rows);
    print_constant(print, "BLOCK_N", tile->columns);
    print_constant(print, "BLOCK_K", row->block_depth);
    print_constant(print, row->is_mma ? "WARPS_M" : "THREAD_M", row->is_mma ? tile->warps_m : tile->thread_m);
    print_constant(print, row->is_mma ? "WARPS_N" : "THREAD_N", row->is_mma ? tile->warps_n : tile->thread_n);
    print_constant(print, "THREADS", tile_threads(c));
    print_constant(print, "BLOCKS", resident_blocks(c));
    print_constant(print, "HAS_FILL", c->fill != 0);
}

/* tiles: along rows, along columns, and batch entries. */
weftStatus_t contraction_finish_tiles(struct kernel_print *print, struct cuda_kernel *kernel,
                                      const struct contraction *c, const int64_t tiles[3], struct arena *arena) {
    int64_t all = tiles[0] * tiles[1] * tiles[2] * c->splits;
    bool is_mma = arithmetic_rows[c->arithmetic].is_mma;
    print_real(print, c->fill, "fill");
    print_constant(print, "GROUP_TILES", GROUP_TILES);
    print_number(print, tiles[0], "tiles_m");
    print_divisor(print, tiles[0] * tiles[1], "tiles_per_entry");
    print_divisor(print, GROUP_TILES * tiles[1], "tiles_per_group");
    print_divisor(print, tiles[2], "batches");
    print_number(print, all, "tiles");
    print_position(print, all);
    TRY(kernel_finish(print, kernel, is_mma ? "product/portable_mma.cuh" : "product/portable_fma.cuh", "contraction",
                      arena));
    kernel->grid[0] = grid_of(all);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)tile_threads(c);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build_tiles(struct cuda_kernel *kernel, const struct contraction *c, struct arena *arena) {
    const struct tile *tile = c->tile;
    struct kernel_print print;
    const int64_t tiles[] = {divide_up(digits_extent(&c->digits[ROW]), tile->rows),
                             divide_up(digits_extent(&c->digits[COLUMN]), tile->columns),
                             digits_extent(&c->digits[BATCH])};
    contraction_print_tile(&print, c);
    contraction_print_factors(&print, c);
    contraction_print_end(&print, c);
    return contraction_finish_tiles(&print, kernel, c, tiles, arena);
}

static weftStatus_t build_direct(struct cuda_kernel *kernel, const struct contraction *c, struct arena *arena) {
    struct kernel_print print;
    int64_t runs = contraction_elements(c) / c->finish.run;
    print_common(&print, c);
    print_constant(&print, "THREADS", DIRECT_THREADS);
    contraction_print_factors(&print, c);
    contraction_print_end(&print, c);
    print_number(&print, runs, "runs");
    TRY(kernel_finish(&print, kernel, "product/portable_direct.cuh", "direct", arena));
    kernel->grid[0] = grid_of(divide_up(runs, DIRECT_THREADS));
    kernel->grid[1] = (uint32_t)c->splits; /* SPLITS_MAX at most */
    kernel->grid[2] = 1;
    kernel->block = DIRECT_THREADS;
    return WEFT_STATUS_SUCCESS;
}

/* Threads that share the parts of a run of results: few results keep few threads busy. Where there are several, the grid
   has a block for all that these make at a time. */
static int64_t combine_sharers(const struct contraction *c, int64_t runs) {
    int64_t sharers = 1;
    while (sharers * 2 <= c->splits && sharers < COMBINE_SHARERS_MAX && runs * sharers < COMBINE_THREADS_WANTED)
        sharers *= 2;
    return sharers;
}

weftStatus_t contraction_add_combine(struct step *step, const struct contraction *c, struct arena *arena) {
    struct cuda_step *state = step->state;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    struct kernel_print print;
    int64_t runs = contraction_elements(c) / c->finish.run, sharers = combine_sharers(c, runs);
    int64_t together = COMBINE_THREADS / sharers;
    print_common(&print, c);
    print_constant(&print, "THREADS", COMBINE_THREADS);
    print_splits(&print, c);
    finish_print(&print, c);
    bool lead_is_row = c->finish.lead == ROW;
    print_divisor(&print, digits_extent(&c->digits[lead_is_row ? ROW : COLUMN]), "along");
    print_divisor(&print, digits_extent(&c->digits[lead_is_row ? COLUMN : ROW]), "across");
    print_number(&print, runs, "runs");
    print_number(&print, sharers, "sharers");
    print_number(&print, divide_up(c->splits, sharers), "parts_each");
    print_position(&print, contraction_elements(c));
    TRY(kernel_finish(&print, kernel, "product/combine_splits.cuh", "combine", arena));
    kernel->grid[0] = grid_of(divide_up(runs, together));
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = COMBINE_THREADS;
    int64_t bytes = contraction_elements(c) * c->splits * arithmetic_rows[c->arithmetic].sum_bytes;
    step->workspace_bytes = round_up(bytes, 64);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t describe(struct step *step, const struct contraction *c, struct arena *arena) {
    static const char *const names[] = {[MMA_F16] = "f16 tensor cores",
                                        [MMA_BF16] = "bf16 tensor cores",
                                        [MMA_INT8] = "int8 tensor cores",
                                        [MMA_TF32] = "tf32 tensor cores",
                                        [FMA_FLOAT] = "f32",
                                        [FMA_DOUBLE] = "f64",
                                        [FMA_INT32] = "i32",
                                        [FMA_INT64] = "i64"};
    if (c->is_direct)
        return arena_print(arena, &step->detail, "%s, one thread per %d results, %d splits, %d operations behind",
                           names[c->arithmetic], c->finish.run, c->splits, c->region->count - 1);
    return arena_print(arena, &step->detail, "%s, tiles of %dx%dx%d, %d splits, %d operations behind",
                       names[c->arithmetic], c->tile->rows, c->tile->columns,
                       arithmetic_rows[c->arithmetic].block_depth, c->splits, c->region->count - 1);
}

static weftStatus_t build_any(struct step *step, const struct device *device, const struct knob_choices *knobs,
                              struct arena *arena, bool narrows) {
    struct contraction c;
    struct cuda_step *state;
    TRY(analyse(&c, &step->region, device, knobs, narrows));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    step->seconds = c.seconds;
    if (contraction_elements(&c) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(c.is_direct ? build_direct(kernel, &c, arena) : build_tiles(kernel, &c, arena));
    if (c.splits > 1)
        TRY(contraction_add_combine(step, &c, arena));
    return describe(step, &c, arena);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    return build_any(step, device, knobs, arena, false);
}

static weftStatus_t build_tf32(struct step *step, const struct device *device, const struct knob_choices *knobs,
                               struct arena *arena) {
    return build_any(step, device, knobs, arena, true);
}

/* Whether a node is the product of a region, or makes what that reads. */
static bool leads_to_product(const struct region *region, const struct node *node) {
    bool leads = node_is_product(node);
    for (int k = 0; k < node->operand_count && !leads; k++)
        for (int i = 0; i < region->count && node->is_output[k] && !leads; i++)
            leads =
                reads(region_node(region, i), node->operands[k]) && leads_to_product(region, region_node(region, i));
    return leads;
}

bool contraction_may_alias(const struct step *step, int in, int out) {
    const struct region *region = &step->region;
    for (int i = 0; i < region->count; i++)
        if (reads(region_node(region, i), in) && leads_to_product(region, region_node(region, i)))
            return false;
    return tensor_same_layout(region->graph->values[in].tensor, region->graph->values[out].tensor);
}

static const struct knob knobs[] = {
    {WEFT_KNOB_TYPE_TILE_SIZE, 0, TILE_ROWS, 1, 0,
     "rows x columns of a tile: 1 128x128, 2 128x64, 3 64x128, 4 64x64, 5 128x32, 6 32x128, 7 32x32; 0 chooses"},
    {WEFT_KNOB_TYPE_SPLIT_K, 0, SPLITS_MAX, 1, 0, "parts that each sum is split into; 0 chooses"},
    {0},
};

const struct family cuda_contraction = {
    .name = "cuda.contraction",
    .doc = "a matmul or convolution and the pointwise operations behind it",
    .knobs = knobs,
    .accepts = accepts,
    .build = build,
    .load = cuda_load,
    .run = cuda_run,
    .may_alias = contraction_may_alias,
    .release = cuda_release,
};

const struct family cuda_contraction_tf32 = {
    .name = "cuda.contraction.tf32",
    .doc = "a matmul or convolution of floats, narrowed to tf32, and the pointwise operations behind it",
    .narrows = contraction_narrows,
    .knobs = knobs,
    .accepts = accepts_tf32,
    .build = build_tf32,
    .load = cuda_load,
    .run = cuda_run,
    .may_alias = contraction_may_alias,
    .release = cuda_release,
};
