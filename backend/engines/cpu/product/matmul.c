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

/* How dims of C become one product: the left operand has its rows, the right one its columns. A batch dimension that
   only one of them has belongs to its rows or columns if one stride covers both; other batch dimensions remain. */
struct folding {
    const struct tensor *left, *right;
    int row_dim, column_dim; /* of C */
    int64_t batch, m, n;
    bool is_row[WEFT_DIM_MAX], is_column[WEFT_DIM_MAX]; /* per batch dimension */
};

/* True if the entries of a batch dimension differ. */
static bool varies(const struct tensor *operand, int dim) {
    return operand->dims.at[dim] > 1 && operand->strides.at[dim] != 0;
}

/* True if `operand` alone has a batch dimension, whose entries continue its `count` rows or columns with `stride`. */
static bool continues(const struct tensor *operand, const struct tensor *other, int dim, int64_t extent, int64_t count,
                      int64_t stride) {
    return varies(operand, dim) && !varies(other, dim) && operand->dims.at[dim] == extent &&
           operand->strides.at[dim] == stride * count;
}

/* Innermost dimensions first, so that each continues the ones before it. An operand that is dequantized has blocks of
   scales, so its entries remain separate. */
static struct folding fold(const struct matmul_op *op, bool folds_a, bool folds_b) {
    int column = (int)op->c->dims.count - 1, row = column - 1, columns = 0;
    bool transposed = is_transposed(op), folds_left = transposed ? folds_b : folds_a;
    bool folds_right = transposed ? folds_a : folds_b;
    struct folding f = {.left = transposed ? op->b : op->a,
                        .right = transposed ? op->a : op->b,
                        .row_dim = transposed ? column : row,
                        .column_dim = transposed ? row : column,
                        .batch = 1};
    f.m = op->c->dims.at[f.row_dim];
    f.n = op->c->dims.at[f.column_dim];
    for (int i = row; i-- > 0;) {
        int64_t extent = op->c->dims.at[i];
        f.is_row[i] = folds_left && continues(f.left, f.right, i, extent, f.m, f.left->strides.at[f.row_dim]);
        f.is_column[i] = folds_right && columns < OUTER_COLUMNS &&
                         continues(f.right, f.left, i, extent, f.n, f.right->strides.at[f.column_dim]);
        columns += f.is_column[i];
        *(f.is_row[i] ? &f.m : f.is_column[i] ? &f.n : &f.batch) *= extent;
    }
    return f;
}

/* Describes the product for the prediction and the choice of a kernel; the batch affects neither. */
static struct product product(const struct node *node) {
    const struct matmul_op *op = op_at(node);
    struct folding folding = fold(op, true, true);
    return (struct product){.packs_bytes = true,
                            .a = op->a,
                            .b = op->b,
                            .math = matmul_math(op),
                            .alpha = 1,
                            .packing = PACK_COST,
                            .depth = (double)op->a->dims.at[op->c->dims.count - 1],
                            .rows = folding.m,
                            .columns = folding.n};
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
static bool find_batch(struct gemm_matrix *matrix, const struct tensor *operand, const struct tensor *result,
                       const struct folding *folding) {
    for (int64_t i = 0; i < result->dims.count - 2; i++) {
        int64_t result_extent = result->dims.at[i], extent = operand->dims.at[i];
        if (result_extent == 0)
            return true;
        if (folding->is_row[i] || folding->is_column[i])
            continue;
        if (!add_batch(matrix, extent, operand->strides.at[i]) || !add_batch(matrix, result_extent / extent, 0))
            return false;
    }
    return true;
}

static weftStatus_t check_batch(const struct node *node, const struct tensor *operand) {
    struct gemm_matrix matrix = {0};
    if (!find_batch(&matrix, operand, op_at(node)->c, &(struct folding){0}))
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

/* `dim`: the operand's rows or columns; `depth_dim`: its k. */
static struct gemm_matrix matrix_of(const struct tensor *tensor, const struct tensor *result,
                                    const struct folding *folding, int dim, int depth_dim) {
    struct gemm_matrix matrix = {.type = (weftDataType_t)tensor->type,
                                 .stride = tensor->strides.at[dim],
                                 .depth_stride = tensor->strides.at[depth_dim]};
    find_batch(&matrix, tensor, result, folding);
    return matrix;
}

/* Dequantized operands are packed directly from their quantized numbers and scales. */
static struct factor factor_of(const struct region *region, const struct tensor *result, const struct folding *folding,
                               const struct gemm_kernel *kernel, bool is_right) {
    const struct tensor *tensor = is_right ? folding->right : folding->left;
    int dim = is_right ? folding->column_dim : folding->row_dim;
    int depth_dim = is_right ? folding->row_dim : folding->column_dim;
    const struct block_scale_dequantize_op *op = dequantized(region, tensor);
    struct factor factor = {.pack = is_right ? gemm_pack_of_b(kernel) : gemm_pack_of_a(kernel),
                            .group = is_right ? kernel->group_b : kernel->group_a,
                            .value = graph_find_value(region->graph, tensor)};
    if (!op) {
        factor.matrix = matrix_of(tensor, result, folding, dim, depth_dim);
        return factor;
    }
    struct dims block = block_scale_extents(&op->base);
    factor = (struct factor){.pack = pack_dequant,
                             .group = 1,
                             .value = graph_find_value(region->graph, op->x),
                             .scale_value = graph_find_value(region->graph, op->scale)};
    factor.scaled = (struct quantized){.matrix = matrix_of(op->x, result, folding, dim, depth_dim),
                                       .scales = matrix_of(op->scale, result, folding, dim, depth_dim),
                                       .block = block.at[dim],
                                       .depth_block = block.at[depth_dim],
                                       .type = (weftDataType_t)op->y->type,
                                       .sign = op->is_negative ? -1 : 1};
    return factor;
}

/* Appends the batch dimensions that are marked; marked == NULL: those that remain. */
static int add_axes(struct axis *axes, int count, const struct folding *folding, const struct tensor *c,
                    const bool *marked) {
    for (int i = 0; i < c->dims.count - 2; i++)
        if (marked ? marked[i] : !folding->is_row[i] && !folding->is_column[i])
            axes[count++] = (struct axis){.dim = i, .extent = c->dims.at[i], .step = 1};
    return count;
}

static struct axis axis_of(const struct tensor *c, int dim) {
    return (struct axis){.dim = dim, .extent = c->dims.at[dim], .step = 1};
}

static weftStatus_t plan(struct contraction *contraction, const struct region *region, const struct node *node,
                         const struct gemm_kernel *kernel, struct arena *arena) {
    const struct matmul_op *op = op_at(node);
    const struct tensor *c = op->c;
    struct folding folding = fold(op, !dequantized(region, op->a), !dequantized(region, op->b));
    struct axis axes[WEFT_DIM_MAX];
    struct piece *piece;
    TRY(arena_alloc(arena, &piece, sizeof *piece));
    piece->gemm =
        (struct gemm){.batch = folding.batch, .m = folding.m, .n = folding.n, .k = op->a->dims.at[c->dims.count - 1]};
    piece->a = factor_of(region, c, &folding, kernel, false);
    piece->b = factor_of(region, c, &folding, kernel, true);
    /* The traversal's rows are batch and rows, as gemm counts them; its last loops are gemm's columns. */
    int count = add_axes(axes, 0, &folding, c, NULL);
    count = add_axes(axes, count, &folding, c, folding.is_row);
    axes[count++] = axis_of(c, folding.row_dim);
    int rows = count;
    count = add_axes(axes, count, &folding, c, folding.is_column);
    axes[count++] = axis_of(c, folding.column_dim);
    rows_columns_plan_split(&piece->walk, &contraction->program, axes, count, count - rows);
    contraction->pieces = piece;
    contraction->piece_count = 1;
    return WEFT_STATUS_SUCCESS;
}

const struct contraction_kind matmul_contraction = {check, product, plan};
