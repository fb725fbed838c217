/* SPDX-License-Identifier: Apache-2.0 */
/* The contraction family: one matmul or convolution with fused pointwise operations, which are applied to each block of
   the product while it is in the cache. Dequantization of a matmul's factors is fused into packing. matmul.c and
   convolution.c describe the product as pieces; gemm.c and direct.c multiply. This file contains what both kinds share:
   checks, cost prediction, epilogue. */
#include "engines/cpu/product/contraction.h"
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"
#include "engines/cpu/product/direct_kernel.h"
#include "engines/cpu/product/gemm_skinny.h"
#include "engines/product.h"
#include "graph/ops/block_scale.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"

#include <math.h>

/* Per thread and second: two adjacent vectors of a kernel run at half their peak at 3 GHz. */
static const double FLOPS_PER_COLUMN = 3e9, DEPTHWISE_FLOPS = 20e9;
/* BYTES_PER_SECOND is shared by all threads. START_SECONDS: time before a step's first multiplication. */
static const double BYTES_PER_SECOND = 16e9;
static const double START_SECONDS = 1.4e-6;
static const double DEQUANTIZE_NANOSECONDS = 0.2;                /* per element on one thread */
static const double FLOAT_EXACT = 0x1p24, DOUBLE_EXACT = 0x1p53; /* integers up to these values are exact */

/* NULL cannot occur, because region_find_product has checked the node. */
static const struct contraction_kind *kind_of(const struct node *node) {
    return op_of(node->op) == &matmul_op ? &matmul_contraction : conv_is(node->op) ? &conv_contraction : NULL;
}

/* ---- Checking regions -------------------------------------------------------------------------------------------- */

static bool node_is_dequantize(const struct node *node) { return op_of(node->op) == &block_scale_dequantize_op; }

static bool goes_with(const struct node *node) { return node_is_pointwise(node) || node_is_dequantize(node); }

/* Accepts values that the CPU stores as plain numbers and that are computed outside the region. */
static weftStatus_t check_stored(const struct region *region, const struct node *node, int i) {
    const struct value *value = &region->graph->values[node->operands[i]];
    const struct tensor *tensor = value->tensor;
    if (!node->is_output[i] && region_makes(region, node->operands[i]))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s reads %s, which %s computes: operations are fused after a product, not before it.",
             descriptor_label(node->op), descriptor_label(&tensor->base),
             descriptor_label(region->graph->nodes[value->producer].op));
    TRY(tensor_check_plain(tensor, node->op));
    if (!dtype_of((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %d, which has no storage on the CPU.",
             descriptor_label(node->op), descriptor_label(&tensor->base), tensor->type);
    return WEFT_STATUS_SUCCESS;
}

/* A factor that is dequantized while it is packed: in float, read by only one matmul, and stored in memory. */
static weftStatus_t check_dequantized(const struct region *region, const struct node *product,
                                      const struct node *node) {
    const struct block_scale_dequantize_op *op = (const struct block_scale_dequantize_op *)node->op;
    int value = graph_find_value(region->graph, op->y);
    struct dims block = block_scale_extents(node->op);
    struct product multiplied = kind_of(product)->product(product);
    if (op_of(product->op) != &matmul_op || !node_reads(product, value) || region->graph->values[value].readers > 1 ||
        value_is_slot(&region->graph->values[value]))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: a factor is dequantised during packing only if one matmul is its only reader.",
             descriptor_label(node->op));
    for (int i = 0; i < node->operand_count; i++)
        TRY(check_stored(region, node, i));
    if (op->math == WEFT_DATA_DOUBLE || op->scale->type == WEFT_DATA_DOUBLE || product_is_wide(&multiplied))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: dequantisation during packing is not supported in double.",
             descriptor_label(node->op));
    bool are_matrices = !scale_is_tiled(op->scale);
    for (int64_t i = 0; i < block.count - 2; i++)
        are_matrices = are_matrices && block.at[i] == 1;
    if (!are_matrices)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: its scales have layout F8_128x4, or its blocks span several matrices.", descriptor_label(node->op));
    return WEFT_STATUS_SUCCESS;
}

/* The product's operands must be in memory, because a fused producer would be repeated for every tile. Low-precision
   numbers are the exception: dequantizing them during packing takes less time than writing and reading the result. */
static weftStatus_t check_operands(const struct region *region, const struct node *node) {
    for (int i = 0; i < region->count; i++)
        if (node_is_dequantize(region_node(region, i)))
            TRY(check_dequantized(region, node, region_node(region, i)));
    for (int i = 0; i < node->operand_count; i++) {
        const struct node *maker = region_producer(region, region->graph->values[node->operands[i]].tensor);
        if (node->is_output[i] || !maker || !node_is_dequantize(maker))
            TRY(check_stored(region, node, i));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Returns the largest possible sum: every product has the largest factors of both types, and all have one sign. */
static double largest_sum(const struct product *product) {
    const struct dtype *a = dtype_of((weftDataType_t)product->a->type), *b = dtype_of((weftDataType_t)product->b->type);
    return fmax(a->max, -a->lowest) * fmax(b->max, -b->lowest) * product->depth;
}

/* Integer sums must be exact, but kernels accumulate in floating point: accepts only sums that double represents. */
weftStatus_t product_check_exact(const struct descriptor *op, const struct product *product) {
    bool is_whole = !dtype_is_float((weftDataType_t)product->a->type) &&
                    !dtype_is_float((weftDataType_t)product->b->type) && !dtype_is_float(product->math);
    if (is_whole && largest_sum(product) > DOUBLE_EXACT)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: sums of products of %s and %s may need more than the 53 bits of a double. Use DOUBLE or smaller "
             "integers.",
             descriptor_label(op), dtype_of((weftDataType_t)product->a->type)->name,
             dtype_of((weftDataType_t)product->b->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* True if double is requested, or if integers may exceed what float represents. */
bool product_is_wide(const struct product *product) {
    return product->math == WEFT_DATA_DOUBLE || type_is_wide((int32_t)product->a->type) ||
           type_is_wide((int32_t)product->b->type) ||
           (!dtype_is_float(product->math) && largest_sum(product) > FLOAT_EXACT);
}

/* True if BFLOAT16 represents all values of a type as normal numbers; E8M0 contains 2^-127. */
static bool fits_pairs(const struct tensor *tensor) {
    weftDataType_t type = (weftDataType_t)tensor->type;
    return type == WEFT_DATA_BFLOAT16 || (dtype_of(type)->bits <= 8 && type != WEFT_DATA_FP8_E8M0);
}

/* Keeps narrow factors as they are if that is exact: bytes whose sums are 32-bit integers, and types that BFLOAT16
   represents if sums are float. Otherwise chooses the best FLOAT or DOUBLE kernel, which every CPU has. */
const struct gemm_kernel *product_kernel(const struct product *product) {
    const struct gemm_kernel *kernel = NULL;
    bool is_wide = product_is_wide(product), multiplies = product->rows > 0 && product->columns > 0;
    bool are_bytes = product->a->type == WEFT_DATA_INT8 && product->b->type == WEFT_DATA_INT8;
    if (product->packs_bytes && are_bytes && !dtype_is_float(product->math) && largest_sum(product) <= INT32_MAX)
        kernel = gemm_kernel(WEFT_DATA_INT8, 0);
    if (!kernel && multiplies && !is_wide && fits_pairs(product->a) && fits_pairs(product->b))
        kernel = gemm_kernel(WEFT_DATA_BFLOAT16, 0);
    return kernel ? kernel : gemm_kernel(is_wide ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT, 0);
}

/* Shared by accepts and build: finds the node that multiplies and compiles the program of the others. */
static weftStatus_t compile(struct program *program, const struct region *region, const struct node **node) {
    TRY(region_find_product(node, region, goes_with));
    TRY(check_operands(region, *node));
    TRY(kind_of(*node)->check(region, *node));
    struct product product = kind_of(*node)->product(*node);
    TRY(product_check_exact((*node)->op, &product));
    /* The result is alpha * sum + beta * (previous contents of its memory). */
    struct given given = {.value = node_result(*node),
                          .is_wide = product_is_wide(&product),
                          .is_whole = product_kernel(&product)->type == WEFT_DATA_INT32,
                          .alpha = product.alpha,
                          .beta = product.beta};
    return program_compile(program, region, region->graph->values[given.value].tensor, &given);
}

/* Overhead factor of computing padding rows or columns: 1 if the extent is a multiple. */
static double padded(int64_t extent, int width) {
    return extent > 0 ? (double)round_up(extent, width) / (double)extent : 1;
}

/* Time on one thread. rows == 0 means depthwise, without matrix products. Otherwise, `floats` and `packed` count the
   multiplications of a FLOAT kernel per step of k, for floats that are read in place and for packed panels. */
static double multiplying_seconds(const struct product *product, double flops) {
    const struct gemm_kernel *kernel = product_kernel(product);
    double rows = (double)product->rows, columns = (double)product->columns;
    if (product->rows == 0)
        return flops / DEPTHWISE_FLOPS;
    double floats = rows * columns * padded(product->rows, kernel->rows) * padded(product->columns, kernel->columns);
    double packed = floats / kernel->speed + product->packing * (rows + columns);
    if (product->reads_in_place && packed > floats)
        packed = floats;
    return flops / (rows * columns) * packed / (FLOPS_PER_COLUMN * kernel->columns);
}

/* Replaces the bytes of dequantized operands by those of the quantized numbers and scales. */
static void add_dequantizing(double *seconds, double *bytes, const struct node *node) {
    const struct block_scale_dequantize_op *op = (const struct block_scale_dequantize_op *)node->op;
    *seconds += (double)tensor_elements(op->x) * DEQUANTIZE_NANOSECONDS * 1e-9;
    *bytes += (double)tensor_own_bytes(op->x) + (double)tensor_own_bytes(op->scale) - (double)tensor_own_bytes(op->y);
}

/* The maximum of arithmetic on all threads and memory traffic. Operands are counted once, because packed panels stay in
   the cache. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct program program;
    const struct node *node;
    TRY(compile(&program, region, &node));
    struct product product = kind_of(node)->product(node);
    int threads = program.shares_bytes || device->threads < 1 ? 1 : device->threads;
    double elements = (double)tensor_elements(region->graph->values[node_result(node)].tensor);
    double computing = multiplying_seconds(&product, op_flops(node->op)) + elements * program.nanoseconds * 1e-9;
    double bytes = program.bytes + (double)tensor_own_bytes(product.a) + (double)tensor_own_bytes(product.b);
    for (int i = 0; i < region->count; i++)
        if (node_is_dequantize(region_node(region, i)))
            add_dequantizing(&computing, &bytes, region_node(region, i));
    double moving = bytes / BYTES_PER_SECOND;
    offer->seconds = START_SECONDS + (computing / threads > moving ? computing / threads : moving);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building and running ---------------------------------------------------------------------------------------- */

/* Context of gemm's store callback: state of one execution, on the stack of `run`. */
struct sink {
    const struct contraction *contraction;
    const struct piece *piece;
    void *const *values;
};

/* Applies the epilogue to a block. gemm counts rows within a batch entry, the traversal counts them over the whole
   batch. */
static void finish_block(const void *context, void *block, int64_t ld, int64_t batch, int64_t row, int rows,
                         int64_t column, int columns) {
    const struct sink *sink = context;
    program_run(&sink->contraction->program, &sink->piece->walk, sink->values, (struct block){block, ld},
                batch * sink->piece->gemm.m + row, rows, column, columns);
}

struct gemm_destination contraction_destination(const struct program *program, const struct rows_columns *walk,
                                                void *const *values, int64_t row, int rows, int64_t column) {
    struct stored stored = rows_columns_stored(program, walk, values, row, rows, column);
    /* User memory may be misaligned. */
    bool is_plain = stored.is_given && stored.at && (uintptr_t)stored.at % (uintptr_t)stored.column_bytes == 0;
    return (struct gemm_destination){stored.at, stored.row_bytes, stored.column_bytes, is_plain};
}

static struct gemm_destination find_destination(const void *context, int64_t batch, int64_t row, int rows,
                                                int64_t column) {
    const struct sink *sink = context;
    return contraction_destination(&sink->contraction->program, &sink->piece->walk, sink->values,
                                   batch * sink->piece->gemm.m + row, rows, column);
}

/* Packs factors for a BFLOAT16 kernel in two steps: floats are truncated to their upper half, and groups of B are
   regrouped for A. */
static void pack_halved(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                        int depth) {
    const struct factor *factor = source;
    gemm_pack_halved(factor->pack, &factor->base, panel, width, batch, first, count, k0, depth);
}

static void pack_grouped(const void *source, void *panel, int width, int64_t batch, int64_t first, int count,
                         int64_t k0, int depth) {
    const struct factor *factor = source;
    gemm_pack_grouped(factor->pack, &factor->base, panel, width, batch, first, count, k0, depth);
}

static void pack_halved_grouped(const void *source, void *panel, int width, int64_t batch, int64_t first, int count,
                                int64_t k0, int depth) {
    gemm_pack_grouped(pack_halved, source, panel, width, batch, first, count, k0, depth);
}

static bool has_dots(const struct piece *piece) {
    bool is_plain = piece->a.pack != pack_dequant && piece->b.pack == pack_dequant;
    return is_plain && dequant_has_dots(&piece->gemm, &piece->b.scaled);
}

/* The pack function for a factor in groups of the kernel, and its source. */
static gemm_pack *packing_of(const struct gemm_kernel *kernel, const struct factor *factor, int group,
                             const void **source) {
    bool is_done = factor->group == group;
    *source = is_done ? (const void *)&factor->base : (const void *)factor;
    if (is_done)
        return factor->pack;
    if (factor->group == kernel->group_b)
        return pack_grouped;
    return group == kernel->group_b ? pack_halved : pack_halved_grouped;
}

/* Describes the step for reports. The first piece represents all of them, because the phases of a data gradient are
   similar. */
static weftStatus_t describe(struct step *step, const struct contraction *contraction, const struct gemm_kernel *kernel,
                             struct arena *arena) {
    const struct direct *direct = &contraction->pieces[0].direct;
    const struct gemm *gemm = &contraction->pieces[0].gemm;
    const char *packed = has_dots(&contraction->pieces[0]) ? "dot products" : kernel->name;
    int fused = -1, pieces = contraction->piece_count;
    for (int i = 0; i < step->region.count; i++)
        fused += !node_is_dequantize(region_node(&step->region, i));
    if (direct->is_on && direct->is_depthwise)
        return arena_print(arena, &step->detail, "depthwise, %d fused operation%s", fused, plural(fused));
    return arena_print(
        arena, &step->detail, "%s, %d x %lld products of [%lld,%lld] x [%lld,%lld], %d fused operation%s",
        direct->is_on ? direct_kernel(0)->name : packed, pieces, (long long)gemm->batch, (long long)gemm->m,
        (long long)gemm->k, (long long)gemm->k, (long long)gemm->n, fused, plural(fused));
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct contraction *contraction;
    const struct node *node;
    TRY(arena_alloc(arena, &contraction, sizeof *contraction));
    TRY(compile(&contraction->program, &step->region, &node));
    /* Elements narrower than 8 bits share a byte, which two threads must not write. */
    contraction->threads = contraction->program.shares_bytes ? 1 : threads_count();
    struct product product = kind_of(node)->product(node);
    const struct gemm_kernel *kernel = product_kernel(&product);
    TRY(kind_of(node)->plan(contraction, &step->region, node, kernel, arena));
    /* Pieces run one after another, so the largest workspace is enough. */
    for (int i = 0; i < contraction->piece_count; i++) {
        struct piece *piece = &contraction->pieces[i];
        piece->gemm.kernel = kernel;
        piece->gemm.store = finish_block;
        piece->gemm.find = find_destination;
        int64_t bytes = gemm_workspace_bytes(&piece->gemm, contraction->threads);
        if (piece->direct.is_on)
            bytes = max64(bytes, direct_workspace_bytes(&piece->direct));
        if (has_dots(piece))
            bytes = dequant_dots_bytes(&piece->gemm);
        step->workspace_bytes = max64(bytes, step->workspace_bytes);
    }
    TRY(threads_start());
    step->state = contraction;
    return describe(step, contraction, kernel, arena);
}

static void bind_factor(struct factor *factor, void *const *values) {
    factor->base = values[factor->value];
    if (factor->pack == pack_dequant)
        factor->scaled.scales.base = values[factor->scale_value];
}

/* Copies a piece to the stack: plans are immutable, and addresses differ between executions. */
static void bind(struct piece *bound, const struct piece *piece, void *const *values) {
    *bound = *piece;
    bind_factor(&bound->a, values);
    bind_factor(&bound->b, values);
    const struct gemm_kernel *kernel = bound->gemm.kernel;
    bound->gemm.pack_a = packing_of(kernel, &bound->a, kernel->group_a, &bound->gemm.a);
    bound->gemm.pack_b = packing_of(kernel, &bound->b, kernel->group_b, &bound->gemm.b);
    bound->gemm.packed_a = prepacked_find(&bound->a.prepacked, bound->a.base);
    bound->gemm.packed_b = prepacked_find(&bound->b.prepacked, bound->b.base);
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    const struct contraction *contraction = step->state;
    bool follows = false;
    for (int i = 0; i < contraction->piece_count; i++) {
        const struct direct *direct = &contraction->pieces[i].direct;
        if (direct->is_on && direct_reads(direct, values)) {
            direct_run(direct, &contraction->program, values, workspace, follows);
            follows = true;
            continue;
        }
        /* gemm's buffers overwrite direct's copy of the image. */
        follows = false;
        struct piece piece;
        struct sink sink = {contraction, &piece, values};
        bind(&piece, &contraction->pieces[i], values);
        piece.gemm.sink = &sink;
        (has_dots(&piece) ? dequant_dots : gemm_run)(&piece.gemm, contraction->threads, workspace);
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Constant operands ------------------------------------------------------------------------------------------- */

static void release(struct step *step) {
    struct contraction *contraction = step->state;
    for (int i = 0; contraction && i < contraction->piece_count; i++) {
        prepacked_free(&contraction->pieces[i].a.prepacked);
        prepacked_free(&contraction->pieces[i].b.prepacked);
        prepacked_free(&contraction->pieces[i].direct.prepacked);
    }
}

/* Packs all panels of a constant factor, unless it is multiplied in place, or its panels repeat it: an image under many
   taps, or a matrix that the whole batch shares. Low-precision numbers are not prepacked: their panels are 4 to 8 times
   as large, and products with few rows would be limited by reading them. */
static weftStatus_t prepack_factor(struct piece *piece, const struct piece *bound, bool is_b, int64_t elements) {
    struct factor *factor = is_b ? &piece->b : &piece->a;
    int64_t bytes = gemm_packed_bytes(&bound->gemm, is_b);
    int64_t packed = bytes * 8 / dtype_of(bound->gemm.kernel->factors)->bits;
    bool stays = factor->pack == pack_dequant || gemm_skinny_accepts(&bound->gemm);
    if (bytes == 0 || packed >= 2 * elements || stays)
        return WEFT_STATUS_SUCCESS;
    TRY(prepacked_alloc(&factor->prepacked, is_b ? bound->b.base : bound->a.base, bytes));
    gemm_prepack(&bound->gemm, is_b, factor->prepacked.panels);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t freeze(struct step *step, void *const *values) {
    const struct contraction *contraction = step->state;
    release(step);
    for (int i = 0; i < contraction->piece_count; i++) {
        struct piece *piece = &contraction->pieces[i], bound;
        struct direct *direct = &piece->direct;
        bind(&bound, piece, values);
        if (direct->is_on && !direct->is_filter && values[direct->other_value]) {
            TRY(direct_prepack_filter(direct, values[direct->other_value]));
        } else if (!direct->is_on) {
            const struct value *all = step->region.graph->values;
            if (bound.a.base)
                TRY(prepack_factor(piece, &bound, false, tensor_elements(all[bound.a.value].tensor)));
            if (bound.b.base)
                TRY(prepack_factor(piece, &bound, true, tensor_elements(all[bound.b.value].tensor)));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_contraction = {
    .name = "cpu.contraction",
    .doc = "a matmul or convolution with fused pointwise operations",
    .accepts = accepts,
    .build = build,
    .run = run,
    .freeze = freeze,
    .release = release,
    .may_alias = program_may_alias,
};
