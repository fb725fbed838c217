/* SPDX-License-Identifier: Apache-2.0 */
/* Matmul as a product of packed matrices: decides which operand provides the rows, and which batch dimensions become
   rows. Nothing is transposed in memory: packing reads any strides, and the traversal stores any. */
#include "graph/ops/matmul.h"
#include "base/number.h"
#include "engines/cpu/product/contraction.h"
#include "graph/ops/block_scale.h"

static const double PACK_COST = 8; /* see struct product */

static const struct matmul_op *op_at(const struct node *node) { return (const struct matmul_op *)node->op; }

/* True if the transposed product is computed, C^T = B^T A^T: if its rows are the contiguous ones in memory, or if b is
   nearly a vector. With n < 8, more than half of a kernel's 16 columns would be padding. */
static bool is_transposed(const struct matmul_op *op) {
    const struct tensor *c = op->c;
    int64_t columns = c->dims.count - 1, rows = columns - 1, m = c->dims.at[rows], n = c->dims.at[columns];
    return n < 8 ? m > n : m >= 8 && c->strides.at[rows] == 1 && c->strides.at[columns] != 1;
}

/* Describes the product for the prediction and the choice of a kernel; the batch affects neither. */
static struct product product(const struct node *node) {
    const struct matmul_op *op = op_at(node);
    int64_t last = op->c->dims.count - 1, m = op->c->dims.at[last - 1], n = op->c->dims.at[last];
    return (struct product){.packs_bytes = true,
                            .a = op->a,
                            .b = op->b,
                            .math = matmul_math(op),
                            .alpha = 1,
                            .packing = PACK_COST,
                            .depth = (double)op->a->dims.at[last],
                            .rows = is_transposed(op) ? n : m,
                            .columns = is_transposed(op) ? m : n};
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* Adds a loop to the batch, or extends the last one if the matrices of both are contiguous. The extent is never 0:
   find_batch returns earlier. */
static bool add_batch(struct gemm_matrix *matrix, int64_t extent, int64_t stride) {
    int last = matrix->batch_rank - 1;
    if (extent == 1)
        return true;
    if (last >= 0 && matrix->batch_strides[last] == stride * extent) {
        matrix->batch_dims[last] *= extent;
        matrix->batch_strides[last] = stride;
        return true;
    }
    if (matrix->batch_rank == WEFT_DIM_MAX)
        return false;
    matrix->batch_dims[matrix->batch_rank] = extent;
    matrix->batch_strides[matrix->batch_rank++] = stride;
    return true;
}

/* Expresses an operand's batch, for each entry of the result's, as loops (see matmul_batch_entry). Along a dimension
   each of its entries is used for whole / extent consecutive entries of the result: a second loop of stride 0. */
static bool find_batch(struct gemm_matrix *matrix, const struct tensor *operand, const struct tensor *result) {
    for (int64_t i = 0; i < result->dims.count - 2; i++) {
        int64_t whole = result->dims.at[i], extent = operand->dims.at[i];
        if (whole == 0)
            return true;
        if (!add_batch(matrix, extent, operand->strides.at[i]) || !add_batch(matrix, whole / extent, 0))
            return false;
    }
    return true;
}

static weftStatus_t check_batch(const struct node *node, const struct tensor *operand) {
    struct gemm_matrix matrix = {0};
    if (!find_batch(&matrix, operand, op_at(node)->c))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: the batch of %s has more than %d different strides. Make it "
             "contiguous.",
             descriptor_label(node->op), descriptor_label(&operand->base), WEFT_DIM_MAX);
    return WEFT_STATUS_SUCCESS;
}

/* The operation of the region that dequantizes an operand, or NULL if the operand is in memory. */
static const struct block_scale_dequantize_op *dequantized(const struct region *region, const struct tensor *operand) {
    const struct node *maker = region_producer(region, operand);
    return maker ? (const struct block_scale_dequantize_op *)maker->op : NULL;
}

/* Overrides of M, N and K are passed at run time and differ between batch entries, but panels are planned earlier. */
static weftStatus_t check(const struct region *region, const struct node *node) {
    const struct matmul_op *op = op_at(node);
    const struct tensor *operands[] = {op->a, op->b};
    if (op->m_override || op->n_override || op->k_override)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s has overrides of M, N or K, which the packed product does not read. Mask the result, or split the "
             "batch.",
             descriptor_label(node->op));
    for (int i = 0; i < 2; i++) {
        const struct block_scale_dequantize_op *from = dequantized(region, operands[i]);
        TRY(check_batch(node, from ? from->x : operands[i]));
        TRY(check_batch(node, from ? from->scale : operands[i]));
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- The product ------------------------------------------------------------------------------------------------- */

/* The dimensions of an operand that form the rows (of A) or columns (of B), and k. */
struct sides {
    int64_t dim, depth_dim;
};

static struct gemm_matrix matrix_of(const struct tensor *tensor, const struct tensor *result, struct sides sides) {
    struct gemm_matrix matrix = {.type = (weftDataType_t)tensor->type,
                                 .stride = tensor->strides.at[sides.dim],
                                 .depth_stride = tensor->strides.at[sides.depth_dim]};
    find_batch(&matrix, tensor, result);
    return matrix;
}

/* Dequantized operands are packed directly from their quantized numbers and scales. */
static struct factor factor_of(const struct region *region, const struct tensor *tensor, const struct tensor *result,
                               struct sides sides, gemm_pack *pack, int group) {
    const struct block_scale_dequantize_op *op = dequantized(region, tensor);
    struct factor factor = {.pack = pack, .group = group, .value = graph_find_value(region->graph, tensor)};
    if (!op) {
        factor.matrix = matrix_of(tensor, result, sides);
        return factor;
    }
    struct dims block = block_scale_extents(&op->base);
    factor = (struct factor){.pack = pack_dequant,
                             .group = 1,
                             .value = graph_find_value(region->graph, op->x),
                             .scale_value = graph_find_value(region->graph, op->scale)};
    factor.scaled = (struct quantized){.matrix = matrix_of(op->x, result, sides),
                                       .scales = matrix_of(op->scale, result, sides),
                                       .block = block.at[sides.dim],
                                       .depth_block = block.at[sides.depth_dim],
                                       .type = (weftDataType_t)op->y->type,
                                       .sign = op->is_negative ? -1 : 1};
    return factor;
}

/* True if the whole batch uses the same matrix, with or without a loop of stride 0. */
static bool is_shared(const struct gemm_matrix *matrix) {
    return matrix->batch_rank == 0 || (matrix->batch_rank == 1 && matrix->batch_strides[0] == 0);
}

/* Merges a batch into a single product if all entries share b and a's rows are contiguous across entries: b is then
   packed once for more rows. */
static void merge_batch(struct piece *piece) {
    struct gemm_matrix *a = &piece->a.matrix, *b = &piece->b.matrix;
    bool shares_b = is_shared(b) && (piece->b.pack != pack_dequant || is_shared(&piece->b.scaled.scales));
    if (piece->gemm.batch < 2 || !shares_b || piece->a.pack == pack_dequant || a->batch_rank != 1 ||
        a->batch_strides[0] != a->stride * piece->gemm.m)
        return;
    piece->gemm.m *= piece->gemm.batch;
    piece->gemm.batch = 1;
    a->batch_rank = b->batch_rank = 0;
}

static weftStatus_t plan(struct contraction *contraction, const struct region *region, const struct node *node,
                         const struct gemm_kernel *kernel, struct arena *arena) {
    const struct matmul_op *op = op_at(node);
    const struct tensor *c = op->c;
    int64_t rows = c->dims.count - 2, columns = rows + 1, m = c->dims.at[rows], n = c->dims.at[columns];
    bool transposed = is_transposed(op);
    struct axis axes[WEFT_DIM_MAX];
    struct piece *piece;
    TRY(arena_alloc(arena, &piece, sizeof *piece));
    piece->gemm =
        (struct gemm){.batch = 1, .m = transposed ? n : m, .n = transposed ? m : n, .k = op->a->dims.at[columns]};
    /* Axes are in the order of c's dims: batch, rows, columns. The traversal's rows are then batch and rows, as gemm
       counts them. */
    for (int i = 0; i < c->dims.count; i++)
        axes[i] = (struct axis){.dim = i, .extent = c->dims.at[i], .step = 1};
    for (int i = 0; i < rows; i++)
        piece->gemm.batch *= c->dims.at[i];
    const struct sides sides_a = {rows, columns}, sides_b = {columns, rows};
    piece->a = factor_of(region, transposed ? op->b : op->a, c, transposed ? sides_b : sides_a, gemm_pack_of_a(kernel),
                         kernel->group_a);
    piece->b = factor_of(region, transposed ? op->a : op->b, c, transposed ? sides_a : sides_b, gemm_pack_of_b(kernel),
                         kernel->group_b);
    /* The traversal's last loop must be gemm's columns. */
    if (transposed) {
        struct axis row = axes[rows];
        axes[rows] = axes[columns];
        axes[columns] = row;
    }
    /* The traversal needs no change: its rows cover the whole batch in either case. */
    merge_batch(piece);
    rows_columns_plan(&piece->walk, &contraction->program, axes, (int)c->dims.count, false);
    contraction->pieces = piece;
    contraction->piece_count = 1;
    return WEFT_STATUS_SUCCESS;
}

const struct contraction_kind matmul_contraction = {check, product, plan};
