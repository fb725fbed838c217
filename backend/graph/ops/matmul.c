/* SPDX-License-Identifier: Apache-2.0 */
/* matmul: C[b..,m,n] = sum over k of A[b..,m,k] * B[b..,k,n]. Batch extents broadcast if one divides the other, which
   grouped heads of attention need. Overrides set M, N and K for each batch entry: elements of A and B outside of them
   are replaced by the padding value. A transposed operand is expressed by its strides; it has no attribute. */
#include "graph/ops/matmul.h"

/* ---- The parameter descriptor ------------------------------------------------------------------------------------ */

static const struct row parameter_rows[] = {
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct matmul, math, WEFT_ATTR_MATMUL_COMP_TYPE, "compute_data_type",
              .keeps_fast = true,
              .doc = "accumulation type; FAST_FLOAT_FOR_FP8 permits 13-bit sums of FP8. Unset: INT32 for 8-bit "
                     "integers, INT64 for wider ones, FLOAT for all others"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct matmul, padding, WEFT_ATTR_MATMUL_PADDING_VALUE, "padding",
              .doc = "value of the elements of A and B outside the overrides"),
};

const struct schema matmul_schema = {
    .kind = WEFT_BACKEND_MATMUL_DESCRIPTOR,
    .name = "matmul parameters",
    .doc = "compute type and padding of a matrix multiplication",
    .size = sizeof(struct matmul),
    ROWS(parameter_rows),
};

/* ---- The operation ----------------------------------------------------------------------------------------------- */

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct matmul_op, parameters, WEFT_ATTR_OPERATION_MATMUL_DESC, "parameters",
              .required = true, .target = WEFT_BACKEND_MATMUL_DESCRIPTOR, .doc = "compute type and padding"),
    TENSOR_ROW(ROLE_INPUT, struct matmul_op, a, WEFT_ATTR_OPERATION_MATMUL_ADESC, "A", .required = true,
               .shape = "[batch.., M, K]", .doc = "left operand"),
    TENSOR_ROW(ROLE_INPUT, struct matmul_op, b, WEFT_ATTR_OPERATION_MATMUL_BDESC, "B", .required = true,
               .shape = "[batch.., K, N]", .doc = "right operand"),
    /* Numbers in device memory, so that one plan supports sizes that are known only at run time. */
    TENSOR_ROW(ROLE_INPUT, struct matmul_op, m_override, WEFT_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, "m_override",
               .shape = "[batch.., 1, 1]", .doc = "rows in use of each batch entry, INT32 or INT64"),
    TENSOR_ROW(ROLE_INPUT, struct matmul_op, n_override, WEFT_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, "n_override",
               .shape = "[batch.., 1, 1]", .doc = "columns in use of each batch entry, INT32 or INT64"),
    TENSOR_ROW(ROLE_INPUT, struct matmul_op, k_override, WEFT_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, "k_override",
               .shape = "[batch.., 1, 1]", .doc = "extent of k in use for each batch entry, INT32 or INT64"),
    TENSOR_ROW(ROLE_OUTPUT, struct matmul_op, c, WEFT_ATTR_OPERATION_MATMUL_CDESC, "C", .required = true,
               .shape = "[batch.., M, N]", .doc = "product"),
    VALUE_ROW(WEFT_TYPE_INT64, struct matmul_op, batch_count,
              WEFT_ATTR_OPERATION_MATMUL_IRREGULARLY_STRIDED_BATCH_COUNT, "irregularly_strided_batch_count",
              .doc = "accepted for compatibility and ignored"),
};

static const struct method methods[] = {
    {"matmul", "batched matrix product : C[b,m,n] = sum_k A[b,m,k] * B[b,k,n]", NULL,
     "A B compute_data_type padding=0.0 name * m_override=None n_override=None k_override=None", "C"},
    {0},
};

/* Checks A and B before C is inferred from them: ranks, inner sizes, batch extents. */
static weftStatus_t check_inputs(const struct matmul_op *op) {
    const struct tensor *a = op->a, *b = op->b;
    int64_t rank = a->dims.count;
    TRY(check_rank(&op->base, "A", a, 2, WEFT_DIM_MAX));
    if (b->dims.count != rank)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: A has %lld dim%s %s, B has %lld dim%s %s. Give both the same rank, with extents of 1 in front.",
             descriptor_label(&op->base), (long long)rank, plural(rank), tensor_dims_text(a), (long long)b->dims.count,
             plural(b->dims.count), tensor_dims_text(b));
    int64_t k = a->dims.at[rank - 1], other = b->dims.at[rank - 2];
    /* A common cause is a B stored as [N, K]: the message says how to fix it. */
    if (k != other)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: inner sizes differ: A is %s (K=%lld), B is %s (K=%lld). Swap B's last two dims and strides if it is "
             "[N,K].",
             descriptor_label(&op->base), tensor_dims_text(a), (long long)k, tensor_dims_text(b), (long long)other);
    for (int64_t i = 0; i < rank - 2; i++) {
        int64_t left = a->dims.at[i], right = b->dims.at[i];
        int64_t less = left < right ? left : right, more = left < right ? right : left;
        /* If one extent divides the other, adjacent entries of the larger operand share an entry of the smaller one. */
        bool fits = less == more || more == 1 || (less && more % less == 0);
        if (!fits)
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                 "%s: batch dimension %lld is %lld in A %s and %lld in B %s. Make one divide the other.",
                 descriptor_label(&op->base), (long long)i, (long long)left, tensor_dims_text(a), (long long)right,
                 tensor_dims_text(b));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Takes the larger extent of each batch dimension, which the smaller one divides; an extent of 0 stays 0. */
static void product_dims(const struct matmul_op *op, struct dims *dims) {
    int64_t rank = op->a->dims.count;
    *dims = op->a->dims;
    for (int64_t i = 0; i < rank - 2; i++)
        if (dims->at[i] == 1 || (op->b->dims.at[i] > dims->at[i] && dims->at[i] > 0))
            dims->at[i] = op->b->dims.at[i];
    /* M comes from A, whose last dimension was K. */
    dims->at[rank - 1] = op->b->dims.at[rank - 1];
}

weftDataType_t matmul_math(const struct matmul_op *op) {
    return product_math(&op->parameters->base, WEFT_ATTR_MATMUL_COMP_TYPE, op->parameters->math, op->a, op->b);
}

/* C: dims of the product, row-major, and a type that depends on those of A and B. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct matmul_op *op = (struct matmul_op *)descriptor;
    TRY(check_inputs(op));
    struct dims dims;
    product_dims(op, &dims);
    tensor_infer_dims(op->c, dims.count, dims.at);
    /* Row-major, regardless of the order of A and B. */
    tensor_infer_strides(op->c, NULL);
    weftDataType_t natural = dtype_promote((weftDataType_t)op->a->type, (weftDataType_t)op->b->type);
    weftDataType_t math = math_type((int32_t)matmul_math(op));
    /* Integer sums need the wider type in which they are accumulated; floats are rounded back. */
    tensor_infer_type(op->c, dtype_is_integer(natural) ? math : tensor_result_type(op->c, natural, math));
    return WEFT_STATUS_SUCCESS;
}

/* Checks that C has the dims of the product, and that overrides are integers, one for each batch entry or for
   several. */
static weftStatus_t check(const struct descriptor *descriptor) {
    const struct matmul_op *op = (const struct matmul_op *)descriptor;
    struct dims dims;
    product_dims(op, &dims);
    TRY(check_dims(descriptor, "C", op->c, dims.count, dims.at));
    /* Overrides have one number for each batch entry of C, or one for all. */
    dims.at[dims.count - 2] = dims.at[dims.count - 1] = 1;
    static const char *const keys[] = {"m_override", "n_override", "k_override"};
    const struct tensor *overrides[] = {op->m_override, op->n_override, op->k_override};
    struct tensor full = {.dims = dims};
    for (int i = 0; i < 3; i++) {
        TRY(check_broadcasts(descriptor, keys[i], overrides[i], &full));
        if (overrides[i] && !dtype_is_integer((weftDataType_t)overrides[i]->type))
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use INT32 or INT64.", descriptor_label(descriptor),
                 keys[i], dtype_of((weftDataType_t)overrides[i]->type)->name);
    }
    return WEFT_STATUS_SUCCESS;
}

/* The size in use: the override of this batch entry, or the whole extent. */
static int64_t size_in_use(const struct view *override, const int64_t *index, int64_t all) {
    int64_t size = override->data ? view_load_int(override, index) : all;
    return size < all ? size : all;
}

/* Computes C element by element. Elements of A and B outside of the sizes in use are replaced by the padding value. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct matmul_op *op = (const struct matmul_op *)descriptor;
    struct view a = view_of(bindings, op->a), b = view_of(bindings, op->b), c = view_of(bindings, op->c);
    struct view m = view_of(bindings, op->m_override), n = view_of(bindings, op->n_override),
                k = view_of(bindings, op->k_override);
    /* `row` and `column` are the indices of the last two dimensions of A, B and C. */
    int row = c.rank - 2, column = c.rank - 1;
    int64_t index[WEFT_DIM_MAX], in_a[WEFT_DIM_MAX], in_b[WEFT_DIM_MAX];
    if (!c.data)
        return;
    for (bool more = index_begin(index, c.rank, c.dims); more; more = index_next(index, c.rank, c.dims)) {
        /* Batch entries of the smaller operand are shared by adjacent entries of C. */
        for (int i = 0; i < row; i++) {
            in_a[i] = matmul_batch_entry(index[i], c.dims[i], a.dims[i]);
            in_b[i] = matmul_batch_entry(index[i], c.dims[i], b.dims[i]);
        }
        in_a[row] = index[row];
        in_b[column] = index[column];
        /* Outside of the sizes in use, operands count as padding; C is written there, too. */
        bool row_used = index[row] < size_in_use(&m, index, a.dims[row]);
        bool column_used = index[column] < size_in_use(&n, index, b.dims[column]);
        /* The loop covers all of K, because padding outside of the size in use contributes to the sum. */
        int64_t depth = a.dims[column], depth_used = size_in_use(&k, index, depth);
        /* Exact integer accumulation if a, b and the type of the sum are integers. */
        struct sum sum = sum_of_products(matmul_math(op), &a, &b);
        /* A padding value is a double, which integers cannot represent. */
        sum.is_exact = sum.is_exact && op->parameters->padding == 0;
        for (int64_t i = 0; i < depth; i++) {
            in_a[column] = in_b[row] = i;
            bool left_used = row_used && i < depth_used, right_used = column_used && i < depth_used;
            if (left_used && right_used)
                sum_add(&sum, &a, in_a, &b, in_b);
            else if (!sum.is_exact)
                sum.real += (left_used ? view_load(&a, in_a) : op->parameters->padding) *
                            (right_used ? view_load(&b, in_b) : op->parameters->padding);
        }
        sum_store(&sum, &c, index);
    }
}

/* One multiplication and one addition for each k. Overrides are ignored, because only the device knows them. */
static double flops(const struct descriptor *descriptor) {
    const struct matmul_op *op = (const struct matmul_op *)descriptor;
    return 2.0 * (double)tensor_elements(op->c) * (double)op->a->dims.at[op->a->dims.count - 1];
}

const struct op matmul_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
            .name = "matmul",
            .doc = "C[b,m,n] = sum over k of A[b,m,k] * B[b,k,n]",
            .size = sizeof(struct matmul_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &matmul_op,
        },
    .parameters = &matmul_schema,
    .methods = methods,
    .infer = infer,
    .check = check,
    .reference = reference,
    .flops = flops,
    .reference_rate = 2.5e8,
};
