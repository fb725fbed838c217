/* SPDX-License-Identifier: Apache-2.0 */
/* The weight-only family: a few rows times weights of 4 or 8 bits with block scales, followed by pointwise operations.
   Such a product takes as long as reading the weights, so they are dequantised on their way into the tensor cores,
   never in memory. For many rows, the block_scale family dequantises them in memory for the product families. */
#include "engines/cuda/product/weight_only/weight_only.h"
#include "base/number.h"
#include "engines/cuda/families.h"
#include "engines/cuda/product/weight_only/weight_only_geometry.h"
#include "graph/ops/block_scale.h"
#include "graph/ops/matmul.h"

enum {
    ROWS_MAX = 64,         /* maximum rows of A, all of which each warp processes */
    WARPS = 16,            /* warps per multiprocessor: one block, or two of half as many warps */
    BLOCKS_MAX = 2,        /* maximum blocks of 16 columns per warp */
    SUMS_MAX = 16,         /* fragments whose sums fit in the registers of a warp */
    ROWS_OF_FRAGMENT = 8,  /* rows of A per mma.sync */
    COLUMNS_OF_BLOCK = 16, /* columns of weights per mma.sync */
    ACCESS_BYTES = 16,     /* bytes per copy to shared memory */
    STAGES_MIN = 2,        /* minimum steps in shared memory */
    STAGES_MAX = 3,
    FEW_TOKENS = 2,         /* up to this number, the L1 cache holds A for all warps */
    SHARED_RESERVED = 1024, /* bytes of shared memory that the driver reserves per block */
};

/* Launch overhead; the share of memory bandwidth that weights reach; L2 bandwidth; and L2 bandwidth for A when each
   block reads it again. */
static const double LAUNCH_SECONDS = 2e-6, MEMORY_SHARE = 0.8, L2_BYTES_PER_SECOND = 5.5e12;
static const double AGAIN_BYTES_PER_SECOND = 2.2e12;
/* Per weight and multiprocessor: clocks to convert it, and to multiply it by 8 rows. */
static const double WEIGHT_CLOCKS = 0.027, FRAGMENT_CLOCKS = 0.021;

/* A warp computes 16 * blocks columns of all rows, of which there are at most 8 * tokens. A block of threads has
   `across` warps for different columns, and warps / across warps that share k. */
struct weight_only {
    struct weight_product p;
    int tokens, blocks, across, warps; /* in units of 8 rows; in units of 16 columns; warps along columns; warps of a
                                          block of threads */
    int shared;                        /* bytes of shared memory per multiprocessor */
    double seconds;
};

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

/* Returns the dequantising node, or NULL. */
static const struct node *find_weights(const struct region *region) {
    for (int i = 0; i < region->count; i++)
        if (op_of(region_node(region, i)->op) == &block_scale_dequantize_op)
            return region_node(region, i);
    return NULL;
}

/* The only reader of the dequantised weights, or -1 if there are others, which would need them in memory. */
static int find_reader(const struct graph *graph, const struct block_scale_dequantize_op *op) {
    const struct value *value = &graph->values[graph_find_value(graph, op->y)];
    /* A slot is the user's memory, which must be written. */
    bool is_one = !value_is_slot(value) && value->readers == 1;
    return is_one && op_of(graph->nodes[value->read_by[0]].op) == &matmul_op ? value->read_by[0] : -1;
}

/* A region that grows from a matmul includes the node of its weights from the start. Returns the number of nodes
   written: 0 or 1. */
int weight_product_companions(const struct graph *graph, int node, int *nodes) {
    const struct node *product = &graph->nodes[node];
    for (int i = 0; op_of(product->op) == &matmul_op && i < product->operand_count; i++) {
        int producer = graph->values[product->operands[i]].producer;
        if (!product->is_output[i] && producer >= 0 && op_of(graph->nodes[producer].op) == &block_scale_dequantize_op) {
            nodes[0] = producer;
            return 1;
        }
    }
    return 0;
}

/* Finds the region without its weights: a contraction whose B stands for the dequantised tensor. A region that consists
   of only the weights is refused until it includes the matmul. */
static weftStatus_t find_rest(struct weight_product *w, const struct region *region) {
    const struct node *node = find_weights(region);
    if (!node)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the region has no weights to dequantise.",
             descriptor_label(region_node(region, 0)->op));
    w->weights = (const struct block_scale_dequantize_op *)node->op;
    int reader = find_reader(region->graph, w->weights), count = 0;
    if (reader < 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: its result must be read by exactly one matmul.",
             descriptor_label(node->op));
    for (int i = 0; i < region->count && count < MODES_MAX; i++)
        if (region_node(region, i) != node)
            w->nodes[count++] = region->nodes[i];
    if (!region_has(region, reader))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: its matmul must be part of the same region.",
             descriptor_label(node->op));
    /* The loop above stopped at its limit. */
    if (count < region->count - 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: more than %d operations after it.",
             descriptor_label(node->op), MODES_MAX - 1);
    w->rest = (struct region){.graph = region->graph, .count = count, .nodes = w->nodes};
    return WEFT_STATUS_SUCCESS;
}

/* Either weights and scales are multiplied in the type of A, with the rounding of the graph, or the graph dequantises
   to float and scales multiply the sums. Both compute what the graph specifies. */
static weftStatus_t check_types(struct weight_product *w) {
    const struct block_scale_dequantize_op *op = w->weights;
    weftDataType_t a = (weftDataType_t)w->c.operand[OPERAND_A].tensor->type, x = (weftDataType_t)op->x->type;
    bool is_whole = x == WEFT_DATA_INT4 || x == WEFT_DATA_UINT4 || x == WEFT_DATA_INT8 || x == WEFT_DATA_UINT8;
    w->scales_sums = op->y->type == WEFT_DATA_FLOAT;
    bool fits = w->scales_sums ? op->scale->type != WEFT_DATA_DOUBLE
                               : op->y->type == (int32_t)a && op->scale->type == (int32_t)a;
    if (!is_whole || !dtype_is_half(a) || !fits || op->math != WEFT_DATA_FLOAT)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: expected 4-bit or 8-bit integers that are dequantised to float, or, with scales of the type of the "
             "other "
             "operand, "
             "half or bfloat16, to this type; got %s with scales of %s, dequantised to %s and multiplied by %s.",
             descriptor_label(&op->base), dtype_of(x)->name, dtype_of((weftDataType_t)op->scale->type)->name,
             dtype_of((weftDataType_t)op->y->type)->name, dtype_of(a)->name);
    return WEFT_STATUS_SUCCESS;
}

/* True if all dims before the last two are 1. */
static bool is_matrix(const struct tensor *tensor) {
    for (int64_t i = 0; i < tensor->dims.count - 2; i++)
        if (tensor->dims.at[i] != 1)
            return false;
    return tensor->dims.count >= 2;
}

/* The stride of a dimension counted from the end; 1 is the last one. Leading dims may be missing. */
static int64_t stride_from_end(const struct tensor *tensor, int back) {
    return tensor->strides.at[tensor->dims.count - back];
}

/* Minimum block along k: the weights of a lane share a scale or, if sums are scaled, those of a step. A step is a quad
   of lanes with one access each. */
static int64_t min_block(const struct weight_product *w) { return w->scales_sums ? 4 * w->length : w->length; }

static weftStatus_t fail_layout(const struct weight_product *w, int64_t least) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
         "%s: expected rows times one matrix of weights, both contiguous along k and aligned to %d "
         "bytes, with blocks of multiples of %lld weights along k.",
         descriptor_label(w->c.node->op), ACCESS_BYTES, (long long)least);
}

weftStatus_t weight_product_check_blocks(const struct weight_product *w, int64_t least) {
    return w->group % least != 0 && w->group < w->k_count ? fail_layout(w, least) : WEFT_STATUS_SUCCESS;
}

/* Sets strides and blocks. x is (k, columns) with contiguous k, as is A: lanes read 16 bytes of each along k. */
static weftStatus_t check_layout(struct weight_product *w) {
    const struct block_scale_dequantize_op *op = w->weights;
    const struct matmul_op *product = (const struct matmul_op *)w->c.node->op;
    const struct tensor *a = product->a, *x = op->x;
    int64_t bits = x->type == WEFT_DATA_INT4 || x->type == WEFT_DATA_UINT4 ? 4 : 8;
    struct dims extents = block_scale_extents(&op->base);
    w->length = (int)(ACCESS_BYTES * 8 / bits);
    /* Weights per scale along k, and along the columns. */
    w->group = extents.at[x->dims.count - 2];
    w->block = extents.at[x->dims.count - 1];
    w->a_row = stride_from_end(a, 2);
    w->w_row = stride_from_end(x, 1) * bits / 8;
    w->scale_k = stride_from_end(op->scale, 2);
    w->scale_row = stride_from_end(op->scale, 1);
    bool are_matrices = product->b == op->y && is_matrix(a) && is_matrix(x) && !scale_is_tiled(op->scale);
    bool are_whole = stride_from_end(a, 1) == 1 && stride_from_end(x, 2) == 1 && w->k_count % w->length == 0 &&
                     w->a_row % 8 == 0 && stride_from_end(x, 1) % w->length == 0 && a->alignment % ACCESS_BYTES == 0 &&
                     x->alignment % ACCESS_BYTES == 0 && !a->is_by_value && !x->is_by_value && !a->is_constant;
    if (!are_matrices || !are_whole)
        return fail_layout(w, min_block(w));
    /* A lane applies one scale to all weights of an access. */
    return weight_product_check_blocks(w, min_block(w));
}

weftStatus_t weight_product_find(struct weight_product *w, const struct region *region, const struct device *device,
                                 int64_t rows_most) {
    TRY(find_rest(w, region));
    /* A contraction for the checks and the epilogue; its tile is not used. */
    TRY(contraction_find(&w->c, &w->rest));
    TRY(contraction_analyse(&w->c, device));
    w->rows = modes_extent(&w->c.modes[ROW]);
    w->columns = modes_extent(&w->c.modes[COLUMN]);
    w->k_count = modes_extent(&w->c.modes[K]);
    if (w->rows == 0 || w->columns == 0 || w->k_count == 0 || w->c.is_direct || !w->c.is_small ||
        contraction_has_overrides(&w->c) || w->c.fill != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: empty, tiny, larger than 2^31 along an index, or with overrides; dequantise the weights in "
             "memory.",
             descriptor_label(w->c.node->op));
    if (w->rows > rows_most)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: this engine supports up to %lld rows; for %lld rows, dequantise the weights in "
             "memory.",
             descriptor_label(w->c.node->op), (long long)rows_most, (long long)w->rows);
    TRY(check_types(w));
    return check_layout(w);
}

/* ---- Tile -------------------------------------------------------------------------------------------------------- */

/* True if sums leave registers for only half of the warps: one block per multiprocessor, with half as many warps. */
static bool needs_many_registers(const struct weight_only *w) { return w->tokens > (w->p.scales_sums ? 2 : 4); }
static int resident(const struct weight_only *w, int warps) { return needs_many_registers(w) ? 1 : WARPS / warps; }

/* Each block of threads reads all of A, mostly from L2; with few blocks, each gets all warps of a multiprocessor.
   `columns`: per block. */
static double predict(const struct weight_only *w, const struct device *device, int64_t columns, int warps) {
    double weights = (double)tensor_bytes(w->p.weights->x) + (double)tensor_bytes(w->p.weights->scale);
    double blocks = (double)divide_up(w->p.columns, columns);
    double slots = (double)device->cuda.multiprocessors * resident(w, warps);
    /* `share`: average utilisation of the multiprocessors' slots over all waves. */
    double waves = (double)divide_up((int64_t)blocks, slots), share = blocks / (waves * slots);
    double moving = weights / (MEMORY_SHARE * (double)device->cuda.bandwidth);
    /* A few rows stay in the L1 cache. */
    double rereading = w->tokens > FEW_TOKENS ? blocks * (double)(w->p.rows * w->p.k_count * 2) : 0;
    double filling = weights / L2_BYTES_PER_SECOND + rereading / AGAIN_BYTES_PER_SECOND;
    return LAUNCH_SECONDS + (moving > filling ? moving : filling) / share;
}

/* Time to convert the weights and to multiply them, which does not depend on the tile. */
static double computing_seconds(const struct weight_only *w, const struct device *device) {
    double clocks = (double)w->p.columns * (double)w->p.k_count * (WEIGHT_CLOCKS + FRAGMENT_CLOCKS * w->tokens);
    return clocks / ((double)device->cuda.clock_khz * 1e3 * device->cuda.multiprocessors);
}

/* Rows are grouped into a power of two fragments of 8. Then the fastest combination of columns per warp, warps per
   block, and warps along columns is chosen. At least two warps share k. */
static void choose_tile(struct weight_only *w, const struct device *device) {
    int fragments = (int)divide_up(w->p.rows, ROWS_OF_FRAGMENT);
    w->tokens = 1;
    while (w->tokens < fragments)
        w->tokens *= 2;
    const int most = w->p.scales_sums ? SUMS_MAX / 2 : SUMS_MAX; /* a step then has separate sums */
    w->blocks = 0;
    for (int blocks = BLOCKS_MAX; blocks >= 1; blocks /= 2)
        for (int warps = WARPS / 2; warps <= (needs_many_registers(w) ? WARPS / 2 : WARPS); warps *= 2)
            for (int across = 1; across <= warps / 2; across *= 2) {
                double seconds = predict(w, device, (int64_t)across * blocks * COLUMNS_OF_BLOCK, warps);
                if (blocks * w->tokens > most || (w->blocks && seconds >= w->seconds))
                    continue;
                w->blocks = blocks;
                w->warps = warps;
                w->across = across;
                w->seconds = seconds;
            }
}

static weftStatus_t analyse(struct weight_only *w, const struct region *region, const struct device *device) {
    *w = (struct weight_only){0};
    if (device->cuda.major < 8)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
             "the weight-only family requires compute capability 8.0, '%s' has %d.%d", device->name, device->cuda.major,
             device->cuda.minor);
    TRY(weight_product_find(&w->p, region, device, ROWS_MAX));
    w->shared = device->cuda.shared_per_multiprocessor;
    choose_tile(w, device);
    /* With many rows, the multiplication dominates, which no tile changes. */
    double computing = LAUNCH_SECONDS + computing_seconds(w, device);
    w->seconds = computing > w->seconds ? computing : w->seconds;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct weight_only w;
    TRY(analyse(&w, region, device));
    offer->seconds = w.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

static struct weight_only_memory memory_of(const struct weight_only *w, bool stages_a, int stages) {
    struct weight_only_shape shape = {
        .warps_across = w->across,
        .warps_deep = w->warps / w->across,
        .blocks = w->blocks,
        .tokens = w->tokens,
        .length = w->p.length,
        .stages_a = stages_a,
        .stages = stages,
    };
    return weight_only_memory_of(shape);
}

/* Bytes of shared memory per block such that all resident blocks fit. */
static int shared_of_block(const struct weight_only *w) { return w->shared / resident(w, w->warps) - SHARED_RESERVED; }

/* True if the elements of A for a step are staged with its weights. */
static bool stages_a(const struct weight_only *w) {
    return shared_of_block(w) / memory_of(w, true, 1).stage_bytes >= STAGES_MIN;
}

/* With few rows at most two, because the remaining memory serves as L1 cache for A. */
static int stages(const struct weight_only *w) {
    int fit = shared_of_block(w) / memory_of(w, stages_a(w), 1).stage_bytes;
    int most = w->tokens > FEW_TOKENS ? STAGES_MAX : STAGES_MIN;
    return fit < most ? fit : most;
}

/* The scale is at column / scale_block and k / scale_group. */
void weight_product_emit(struct kernel_source *source, const struct weight_product *w) {
    const struct block_scale_dequantize_op *op = w->weights;
    text_add(&source->constants, "using sum_t = float;\nusing index = u32;\n");
    text_add(&source->constants, "using weight_t = %s;\nusing scale_t = %s;\n",
             cuda_element_name((weftDataType_t)op->x->type), cuda_type_name((weftDataType_t)op->scale->type));
    emit_type(source, "factor_t", (weftDataType_t)w->c.operand[OPERAND_A].tensor->type);
    text_add(&source->code, "#include \"core/gather.cuh\"\n\n");
    emit_constant(source, "SCALES_SUMS", w->scales_sums);
    emit_constant(source, "IS_NEGATIVE", op->is_negative);
    emit_pointer(source, (weftDataType_t)op->scale->type, graph_find_value(source->graph, op->scale), 0, "scale");
    emit_number(source, w->scale_row, "scale_row");
    emit_number(source, w->scale_k, "scale_k");
    emit_divisor(source, w->block, "scale_block");
    emit_divisor(source, w->group, "scale_group");
    emit_number(source, w->rows, "rows");
    emit_number(source, w->columns, "columns");
    emit_number(source, w->k_count, "k_count");
}

/* Constants of the tile, then addresses and strides; strides of the weights are in bytes. */
static void emit_structure(struct kernel_source *source, const struct weight_only *w) {
    const struct tensor *a = w->p.c.operand[OPERAND_A].tensor;
    weight_product_emit(source, &w->p);
    emit_constant(source, "LEAD_IS_ROW", w->p.c.epilogue.lead == ROW);
    emit_constant(source, "TOKENS", w->tokens);
    emit_constant(source, "BLOCKS", w->blocks);
    emit_constant(source, "WARPS_ACROSS", w->across);
    emit_constant(source, "WARPS_DEEP", w->warps / w->across);
    emit_constant(source, "RESIDENT", resident(w, w->warps));
    emit_constant(source, "STAGES", stages(w));
    emit_constant(source, "STAGES_A", stages_a(w));
    emit_pointer(source, (weftDataType_t)a->type, graph_find_value(source->graph, a), 0, "a");
    emit_pointer(source, WEFT_DATA_UINT8, graph_find_value(source->graph, w->p.weights->x), 0, "w");
    emit_number(source, w->p.a_row, "a_row");
    emit_number(source, w->p.w_row, "w_row");
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct weight_only w;
    struct cuda_step *state;
    struct kernel_source source;
    TRY(analyse(&w, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    /* At the end a thread has two adjacent columns if the result's layout permits it. */
    w.p.c.epilogue.run = w.p.c.epilogue.lead == COLUMN && w.p.c.epilogue.run % 2 == 0 ? 2 : 1;
    kernel_source_init(&source, &step->region);
    emit_structure(&source, &w);
    epilogue_emit(&source, &w.p.c);
    TRY(kernel_finish(&source, kernel, "product/weight_only/weight_only.cuh", "weight_only", arena));
    int64_t columns = (int64_t)w.across * w.blocks * COLUMNS_OF_BLOCK;
    kernel->grid[0] = (uint32_t)divide_up(w.p.columns, columns);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)w.warps * 32;
    kernel->shared_bytes = (uint32_t)memory_of(&w, stages_a(&w), stages(&w)).bytes;
    /* Programmatic dependent launch requires sm_90: weights are then loaded before the previous kernel has ended. */
    kernel->is_dependent = device->cuda.major >= 9;
    return arena_print(arena, &step->detail,
                       "weights dequantised in registers, %d columns by %d rows, epilogue: %d operation%s",
                       (int)columns, w.tokens * ROWS_OF_FRAGMENT, w.p.rest.count - 1, plural(w.p.rest.count - 1));
}

const struct family cuda_weight_only = {
    .name = "cuda.weight_only",
    .doc = "a few rows times weights of 4 or 8 bits with block scales, and the pointwise operations after it",
    .accepts = accepts,
    .companions = weight_product_companions,
    .build = build,
    .may_alias = contraction_may_alias,
};
