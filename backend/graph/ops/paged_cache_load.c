/* SPDX-License-Identifier: Apache-2.0 */
/* paged_cache_load: the keys or values of each sequence, from the pages that a table assigns: y[b, h, s] =
   container[table[b, s / page size], h, s % page size]. Rows after the length of a sequence are 0, because their pages
   may belong to other sequences. y may be transposed, [B, H, D, S], as the second operand of a product with the
   queries. */
#include "graph/ops/paged_cache_load.h"
#include "base/number.h"
#include "graph/ops/move.h"

enum { BATCH, HEAD, ROW, COLUMN };

#define TENSOR(role, field, name, key, ...)                                                                            \
    TENSOR_ROW(ROLE_##role, struct paged_cache_load_op, field, WEFT_ATTR_OPERATION_PAGED_CACHE_LOAD_##name, key,       \
               .required = true, __VA_ARGS__)
static const struct row rows[] = {
    TENSOR(INPUT, container, CONTAINER_DESC, "container", .shape = "[pages, H, page size, D]",
           .doc = "pages of keys or values"),
    TENSOR(INPUT, length, SEQUENCE_DESC, "seq_len", .shape = "[B, 1, 1, 1]",
           .doc = "rows in use of each batch entry, INT32 or INT64"),
    TENSOR(INPUT, table, PAGE_TABLE_DESC, "page_table", .shape = "[B, 1, entries, 1]",
           .doc = "page of each block of rows, INT32 or INT64"),
    TENSOR(OUTPUT, y, YDESC, "y", .shape = "[B, H, S, D] or [B, H, D, S]",
           .doc = "rows of each sequence; 0 after its length. Unset dims: all rows that the table reaches"),
};
#undef TENSOR

static const struct method methods[] = {
    {"paged_cache_load",
     "keys or values of each sequence from a paged cache : y[b, h, s] = container[page_table[b, s / page size], h, s % "
     "page size]",
     NULL, "container seq_len page_table", "y"},
    {0},
};

bool paged_cache_load_is_transposed(const struct paged_cache_load_op *op) {
    int64_t depth = op->container->dims.at[COLUMN];
    const struct tensor *y = op->y;
    if (y->dims.at[ROW] != depth || y->dims.at[COLUMN] != depth)
        return y->dims.at[COLUMN] != depth;
    return y->strides.at[ROW] == 1 && y->strides.at[COLUMN] != 1;
}

/* Rows of a sequence: the extent of y, and the number that the table reaches. */
static int64_t row_count(const struct paged_cache_load_op *op) {
    return op->y->dims.at[paged_cache_load_is_transposed(op) ? COLUMN : ROW];
}
static int64_t reach(const struct paged_cache_load_op *op) {
    return op->table->dims.at[ROW] * op->container->dims.at[ROW];
}

static weftStatus_t check_integers(const struct descriptor *op, const char *key, const struct tensor *tensor,
                                   const int64_t *dims) {
    TRY(check_dims(op, key, tensor, 4, dims));
    if (tensor->type != WEFT_DATA_INT32 && tensor->type != WEFT_DATA_INT64)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use INT32 or INT64.", descriptor_label(op), key,
             dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t infer(struct descriptor *descriptor) {
    struct paged_cache_load_op *op = (struct paged_cache_load_op *)descriptor;
    TRY(check_rank(descriptor, "container", op->container, 4, 4));
    TRY(check_rank(descriptor, "page_table", op->table, 4, 4));
    const int64_t *container = op->container->dims.at, *table = op->table->dims.at;
    tensor_infer_dims(op->y, 4, (const int64_t[]){table[BATCH], container[HEAD], reach(op), container[COLUMN]});
    tensor_infer_strides(op->y, NULL);
    tensor_infer_type(op->y, (weftDataType_t)op->container->type);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct paged_cache_load_op *op = (const struct paged_cache_load_op *)descriptor;
    const int64_t *container = op->container->dims.at, *table = op->table->dims.at, *y = op->y->dims.at;
    const char *label = descriptor_label(descriptor);
    TRY(check_integers(descriptor, "page_table", op->table, (const int64_t[]){table[BATCH], 1, table[ROW], 1}));
    TRY(check_integers(descriptor, "seq_len", op->length, (const int64_t[]){table[BATCH], 1, 1, 1}));
    TRY(check_rank(descriptor, "y", op->y, 4, 4));
    /* Kernels clamp entries outside of the container to a valid page, so at least one page must exist. */
    if (container[BATCH] < 1 || container[ROW] < 1)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: container is %s, [pages, H, page size, D], without pages, or with empty ones. Give it at least one "
             "page with at least one row.",
             label, tensor_dims_text(op->container));
    if (y[BATCH] != table[BATCH] || y[HEAD] != container[HEAD] ||
        (y[ROW] != container[COLUMN] && y[COLUMN] != container[COLUMN]))
        FAIL(
            WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "%s: y is %s; expected [%lld, %lld, S, %lld] or [%lld, %lld, %lld, S], the batch size of page_table %s and "
            "the heads and depth of container %s. Correct its dims, or leave them unset.",
            label, tensor_dims_text(op->y), (long long)table[BATCH], (long long)container[HEAD],
            (long long)container[COLUMN], (long long)table[BATCH], (long long)container[HEAD],
            (long long)container[COLUMN], tensor_dims_text(op->table), tensor_dims_text(op->container));
    if (reach(op) < row_count(op))
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: page_table is %s: its pages of %lld rows hold fewer than the %lld rows of y. Give it more entries.",
             label, tensor_dims_text(op->table), (long long)container[ROW], (long long)row_count(op));
    return WEFT_STATUS_SUCCESS;
}

/* The entries of the table after the length in use may have any value. */
static weftStatus_t check_indices(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct paged_cache_load_op *op = (const struct paged_cache_load_op *)descriptor;
    struct view table = view_of(bindings, op->table), length = view_of(bindings, op->length);
    const char *label = descriptor_label(descriptor);
    for (int64_t b = 0; b < op->table->dims.at[BATCH] && table.data && length.data; b++) {
        int64_t rows_used = view_load_int(&length, (const int64_t[]){b, 0, 0, 0});
        if (rows_used < 0 || rows_used > row_count(op))
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: entry %lld of seq_len, %s, is out of range: expected 0..%lld, got %lld. Correct the contents of "
                 "the tensor.",
                 label, (long long)b, descriptor_label(&op->length->base), (long long)row_count(op),
                 (long long)rows_used);
        for (int64_t i = 0; i < divide_up(rows_used, op->container->dims.at[ROW]); i++) {
            int64_t page = view_load_int(&table, (const int64_t[]){b, 0, i, 0});
            if (page < 0 || page >= op->container->dims.at[BATCH])
                FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                     "%s: page %lld of batch entry %lld in page_table, %s, is out of range: expected 0..%lld, got "
                     "%lld. Correct the contents of the tensor.",
                     label, (long long)i, (long long)b, descriptor_label(&op->table->base),
                     (long long)op->container->dims.at[BATCH] - 1, (long long)page);
        }
    }
    return WEFT_STATUS_SUCCESS;
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct paged_cache_load_op *op = (const struct paged_cache_load_op *)descriptor;
    struct view container = view_of(bindings, op->container), y = view_of(bindings, op->y);
    struct view table = view_of(bindings, op->table), length = view_of(bindings, op->length);
    int64_t at[WEFT_DIM_MAX], page_rows = op->container->dims.at[ROW];
    bool is_transposed = paged_cache_load_is_transposed(op);
    if (!y.data)
        return;
    for (bool more = index_begin(at, y.rank, y.dims); more; more = index_next(at, y.rank, y.dims)) {
        int64_t row = at[is_transposed ? COLUMN : ROW], column = at[is_transposed ? ROW : COLUMN];
        if (row >= view_load_int(&length, (const int64_t[]){at[BATCH], 0, 0, 0})) {
            view_store(&y, at, 0);
            continue;
        }
        int64_t page = view_load_int(&table, (const int64_t[]){at[BATCH], 0, row / page_rows, 0});
        const int64_t from[] = {page, at[HEAD], row % page_rows, column};
        move_element(&y, view_offset(&y, at), &container, view_offset(&container, from));
    }
}

const struct op paged_cache_load_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR,
            .name = "paged_cache_load",
            .doc = "keys or values of each sequence, from the pages that a table assigns",
            .size = sizeof(struct paged_cache_load_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &paged_cache_load_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .check_indices = check_indices,
    .reference = reference,
};
