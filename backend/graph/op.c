/* SPDX-License-Identifier: Apache-2.0 */
/* What all operations share: finalize (resolve, infer, check), shared checks, and element access for references. */
#include "graph/op.h"

#include <string.h>

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

weftStatus_t op_each_operand(const struct descriptor *op,
                             weftStatus_t (*visit)(void *context, const struct row *row, struct tensor *tensor),
                             void *context) {
    for (int i = 0; i < op->schema->row_count; i++) {
        struct row row = op->schema->rows[i];
        if (row.role != ROLE_INPUT && row.role != ROLE_OUTPUT)
            continue;
        row.role = op_role(op, &op->schema->rows[i]);
        struct tensor *single = row_tensor(op, &row);
        if (single)
            TRY(visit(context, &row, single));
        const struct list *list = row_at(op, &row);
        for (int64_t k = 0; row.storage == STORE_LIST && k < list->count; k++)
            TRY(visit(context, &row, list->tensors[k]));
    }
    return WEFT_STATUS_SUCCESS;
}

double op_flops(const struct descriptor *op) {
    if (op_of(op)->flops)
        return op_of(op)->flops(op);
    double flops = 0;
    for (int i = 0; i < op->schema->row_count; i++) {
        const struct tensor *tensor = row_tensor(op, &op->schema->rows[i]);
        if (tensor && op_role(op, &op->schema->rows[i]) == ROLE_OUTPUT)
            flops += (double)tensor_elements(tensor);
    }
    return flops;
}

static weftStatus_t refuse_ragged(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    if (tensor->ragged_offset && !op_of(op)->takes_ragged)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s, %s, has ragged offsets, which this operation does not read. Give a padded tensor.",
             descriptor_label(op), row->key, descriptor_label(&tensor->base));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t refuse_reordered(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    if (tensor->reordering != WEFT_TENSOR_REORDERING_NONE && !op_of(op)->takes_reordered)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s, %s, has reordering_type %d, which this operation does not read. Undo the shuffle and set NONE "
             "(0).",
             descriptor_label(op), row->key, descriptor_label(&tensor->base), tensor->reordering);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Finalize ---------------------------------------------------------------------------------------------------- */

static weftStatus_t resolve_input(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    if (row->role != ROLE_INPUT)
        return WEFT_STATUS_SUCCESS;
    const char *missing = tensor->dims.count == 0 ? "dims" : tensor->type == TENSOR_NO_TYPE ? "data type" : NULL;
    if (missing)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: input %s, %s, has no %s yet. Set it, or finalize the operation that makes the tensor first.",
             descriptor_label(op), row->key, descriptor_label(&tensor->base), missing);
    tensor_infer_strides(tensor, NULL);
    return WEFT_STATUS_SUCCESS;
}

/* No two elements of an output may share memory. */
static weftStatus_t check_output(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    if (row->role != ROLE_OUTPUT)
        return WEFT_STATUS_SUCCESS;
    if (tensor->dims.count == 0 || tensor->type == TENSOR_NO_TYPE)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: the %s of output %s, %s, cannot be inferred. Set it on the tensor.",
             descriptor_label(op), tensor->dims.count == 0 ? "dims" : "data type", row->key,
             descriptor_label(&tensor->base));
    if (tensor->is_by_value || tensor->is_constant)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: output %s, %s, is a by-value scalar, which is read only. Give it memory.",
             descriptor_label(op), row->key, descriptor_label(&tensor->base));
    tensor_infer_strides(tensor, NULL);
    weftStatus_t status = tensor_check_reach(tensor);
    if (status)
        return status_prefix(status, "%s: output %s, ", descriptor_label(op), row->key);
    /* In order of descending stride, each stride must reach past all faster dims. */
    int64_t reach = 1;
    bool used[WEFT_DIM_MAX] = {false};
    for (int64_t round = 0; round < tensor->dims.count && tensor_elements(tensor); round++) {
        int64_t dim = -1;
        for (int64_t i = 0; i < tensor->dims.count; i++)
            if (!used[i] && (dim < 0 || tensor->strides.at[i] < tensor->strides.at[dim]))
                dim = i;
        used[dim] = true;
        int64_t extent = tensor->dims.at[dim];
        if (dim == tensor->vector_dim && tensor->vector_count > 1)
            extent /= tensor->vector_count;
        if (extent == 1)
            continue;
        if (tensor->strides.at[dim] < reach)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: output %s, %s, overlaps itself: dims %s with strides %s. Give each element its own place.",
                 descriptor_label(op), row->key, descriptor_label(&tensor->base), tensor_dims_text(tensor),
                 numbers_text(tensor->strides.at, tensor->strides.count));
        reach = tensor->strides.at[dim] * (extent - 1) + reach;
    }
    return WEFT_STATUS_SUCCESS;
}

enum { OPERANDS_MAX = 64 };

/* What operands held before inference, to be put back if the op is refused. */
struct snapshot {
    int count;
    struct {
        struct tensor *tensor;
        int64_t rank, stride_count;
        int32_t type;
    } saved[OPERANDS_MAX];
};

static weftStatus_t save_operand(void *context, const struct row *row, struct tensor *tensor) {
    struct snapshot *snapshot = context;
    (void)row;
    if (snapshot->count < OPERANDS_MAX) {
        int i = snapshot->count++;
        snapshot->saved[i].tensor = tensor;
        snapshot->saved[i].rank = tensor->dims.count;
        snapshot->saved[i].stride_count = tensor->strides.count;
        snapshot->saved[i].type = tensor->type;
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t op_finalize(struct descriptor *descriptor) {
    const struct op *op = op_of(descriptor);
    struct snapshot before = {0};
    TRY(op_each_operand(descriptor, save_operand, &before));
    weftStatus_t status = op_each_operand(descriptor, refuse_ragged, descriptor);
    if (!status)
        status = op_each_operand(descriptor, refuse_reordered, descriptor);
    if (!status)
        status = op_each_operand(descriptor, resolve_input, descriptor);
    if (!status)
        status = op->infer(descriptor);
    if (!status)
        status = op_each_operand(descriptor, check_output, descriptor);
    if (!status && op->check)
        status = op->check(descriptor);
    for (int i = 0; status && i < before.count; i++) {
        before.saved[i].tensor->dims.count = before.saved[i].rank;
        before.saved[i].tensor->strides.count = before.saved[i].stride_count;
        before.saved[i].tensor->type = before.saved[i].type;
    }
    return status;
}

/* ---- Shared checks ----------------------------------------------------------------------------------------------- */

weftStatus_t check_rank(const struct descriptor *op, const char *key, const struct tensor *tensor, int64_t least,
                        int64_t most) {
    if (tensor && (tensor->dims.count < least || tensor->dims.count > most))
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: %s has %lld dims %s, expected %lld..%lld. Reshape it.",
             descriptor_label(op), key, (long long)tensor->dims.count, tensor_dims_text(tensor), (long long)least,
             (long long)most);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t check_dims(const struct descriptor *op, const char *key, const struct tensor *tensor, int64_t rank,
                        const int64_t *dims) {
    if (tensor && (tensor->dims.count != rank || memcmp(tensor->dims.at, dims, (size_t)rank * sizeof *dims) != 0))
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: %s has dims %s, expected %s. Give it these dims, or none.",
             descriptor_label(op), key, tensor_dims_text(tensor), numbers_text(dims, rank));
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t check_broadcasts(const struct descriptor *op, const char *key, const struct tensor *tensor,
                              const struct tensor *whole) {
    if (!tensor)
        return WEFT_STATUS_SUCCESS;
    bool fits = tensor->dims.count == whole->dims.count;
    for (int64_t i = 0; fits && i < tensor->dims.count; i++)
        fits = tensor->dims.at[i] == 1 || tensor->dims.at[i] == whole->dims.at[i];
    if (!fits)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s with dims %s does not broadcast to %s. Make each of its dims 1 or equal, of the same rank.",
             descriptor_label(op), key, tensor_dims_text(tensor), tensor_dims_text(whole));
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t check_scalar(const struct descriptor *op, const char *key, const struct tensor *tensor) {
    if (tensor && tensor_elements(tensor) != 1)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: %s is a scalar, its dims are %s. Use all ones.",
             descriptor_label(op), key, tensor_dims_text(tensor));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Element access ---------------------------------------------------------------------------------------------- */

struct view view_of(const struct bindings *bindings, const struct tensor *tensor) {
    struct view view = {0};
    if (!tensor)
        return view;
    view.type = (weftDataType_t)tensor->type;
    view.rank = (int)tensor->dims.count;
    view.dims = tensor->dims.at;
    view.strides = tensor->strides.at;
    view.vector_count = tensor->vector_count;
    view.vector_dim = tensor->vector_dim;
    for (int i = 0; i < bindings->count && !view.data; i++)
        if (bindings->items[i].tensor == tensor)
            view.data = bindings->items[i].data;
    return view;
}

int64_t view_offset(const struct view *view, const int64_t *index) {
    int64_t offset = 0, lane = 0;
    for (int i = 0; i < view->rank; i++) {
        int64_t at = view->dims[i] == 1 ? 0 : index[i];
        if (view->vector_count > 1 && i == view->vector_dim) {
            lane = at % view->vector_count;
            at /= view->vector_count;
        }
        offset += at * view->strides[i];
    }
    return offset * view->vector_count + lane;
}

double view_load(const struct view *view, const int64_t *index) {
    return dtype_load(view->type, view->data, view_offset(view, index));
}

double view_load_or(const struct view *view, const int64_t *index, double otherwise) {
    return view->data ? view_load(view, index) : otherwise;
}

void view_store(const struct view *view, const int64_t *index, double value) {
    dtype_store(view->type, view->data, view_offset(view, index), value);
}

void view_store_if(const struct view *view, const int64_t *index, double value) {
    if (view->data)
        view_store(view, index, value);
}

int64_t view_load_int(const struct view *view, const int64_t *index) {
    return dtype_load_i64(view->type, view->data, view_offset(view, index));
}

void view_store_int(const struct view *view, const int64_t *index, int64_t value) {
    dtype_store_i64(view->type, view->data, view_offset(view, index), value);
}

double view_scalar(const struct bindings *bindings, const struct tensor *tensor, double otherwise) {
    struct view view = view_of(bindings, tensor);
    return view.data ? dtype_load(view.type, view.data, 0) : otherwise;
}

bool index_begin(int64_t *index, int rank, const int64_t *dims) {
    bool any = true;
    for (int i = 0; i < rank; i++) {
        index[i] = 0;
        any = any && dims[i] > 0;
    }
    return any;
}

bool index_next(int64_t *index, int rank, const int64_t *dims) {
    for (int i = rank; i-- > 0;) {
        if (++index[i] < dims[i])
            return true;
        index[i] = 0;
    }
    return false;
}
