/* SPDX-License-Identifier: Apache-2.0 */
/* Common code of all operations: finalize (resolve, infer, check), and shared checks. It uses only schemas and methods,
   and names no operation and no engine. */
#include "graph/op.h"

#include "base/number.h"

#include <stdlib.h>
#include <string.h>

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

weftStatus_t op_each_operand(const struct descriptor *op,
                             weftStatus_t (*visit)(void *context, const struct row *row, struct tensor *tensor),
                             void *context) {
    for (int i = 0; i < op->schema->row_count; i++) {
        /* A copy with the role of the row in this operation, which may depend on the mode. */
        struct row row = op->schema->rows[i];
        if (row.role != ROLE_INPUT && row.role != ROLE_OUTPUT)
            continue;
        row.role = op_role(op, &op->schema->rows[i]);
        struct tensor *single = row_tensor(op, &row);
        if (single)
            TRY(visit(context, &row, single));
        if (single && single->ragged_offset && op_of(op)->takes_ragged) {
            row.role = ROLE_INPUT; /* ragged offsets are read */
            TRY(visit(context, &row, single->ragged_offset));
        }
        const struct list *list = row_at(op, &row);
        for (int64_t k = 0; row.storage == STORE_LIST && k < list->count; k++)
            TRY(visit(context, &row, list->tensors[k]));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The list gets a new array, because the original belongs to another operation. */
static weftStatus_t exchange_list(struct list *list, struct tensor *(*exchange)(const void *, struct tensor *),
                                  const void *context, struct arena *arena) {
    TRY(arena_copy(arena, &list->tensors, list->tensors, (size_t)list->count * sizeof *list->tensors));
    for (int64_t k = 0; k < list->count; k++)
        list->tensors[k] = exchange(context, list->tensors[k]);
    return WEFT_STATUS_SUCCESS;
}

/* All other rows are shared with `op`, which must outlive the copy. */
weftStatus_t op_exchange(struct descriptor **result, const struct descriptor *op,
                         struct tensor *(*exchange)(const void *context, struct tensor *tensor), const void *context,
                         struct arena *arena) {
    struct descriptor *copy;
    TRY(descriptor_mirror(arena, &copy, op));
    for (int i = 0; i < op->schema->row_count; i++) {
        const struct row *row = &op->schema->rows[i];
        void *field = (char *)copy + row->offset;
        /* Options, including parameters, do not depend on the tensors. */
        if (row->role != ROLE_INPUT && row->role != ROLE_OUTPUT)
            continue;
        if (row->storage == STORE_LIST)
            TRY(exchange_list(field, exchange, context, arena));
        else if (row_tensor(op, row))
            *(struct tensor **)field = exchange(context, row_tensor(op, row));
    }
    *result = copy;
    return WEFT_STATUS_SUCCESS;
}

/* By default, one operation per element of the outputs. */
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

/* Integers are exact: products of 8-bit ones are accumulated in 32 bits, those of wider ones in 64. */
weftDataType_t product_math(const struct descriptor *holder, weftBackendAttributeName_t name, int32_t math,
                            const struct tensor *a, const struct tensor *b) {
    const struct dtype *of_a = dtype_of((weftDataType_t)a->type), *of_b = dtype_of((weftDataType_t)b->type);
    /* Products of two booleans are accumulated as floats, like all products with a float. */
    bool is_whole = !of_a->is_float && !of_b->is_float && !(of_a->is_boolean && of_b->is_boolean);
    if (descriptor_row_is_set(holder, name))
        return (weftDataType_t)math;
    return !is_whole ? WEFT_DATA_FLOAT : of_a->bits <= 8 && of_b->bits <= 8 ? WEFT_DATA_INT32 : WEFT_DATA_INT64;
}

/* Both checks precede inference, which assumes that dims describe the layout. */
static weftStatus_t refuse_ragged(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    if (tensor->ragged_offset && !op_of(op)->takes_ragged)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s, %s, has ragged offsets, which this operation does not support. Give a padded tensor.",
             descriptor_label(op), row->key, descriptor_label(&tensor->base));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t refuse_reordered(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    if (tensor->reordering != WEFT_TENSOR_REORDERING_NONE && !op_of(op)->takes_reordered)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: %s, %s, has reordering_type %d, which this operation does not support. Undo the reordering and set "
             "NONE (0).",
             descriptor_label(op), row->key, descriptor_label(&tensor->base), tensor->reordering);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Finalize ---------------------------------------------------------------------------------------------------- */

/* Inputs need dims and a type; unset strides become packed. A tensor between two operations has all of them once its
   producer is finalized. */
static weftStatus_t resolve_input(void *context, const struct row *row, struct tensor *tensor) {
    const struct descriptor *op = context;
    if (row->role != ROLE_INPUT)
        return WEFT_STATUS_SUCCESS;
    /* If both are missing, the message names the dims. */
    const char *missing = tensor->dims.count == 0 ? "dims" : tensor->type == TENSOR_NO_TYPE ? "data type" : NULL;
    if (missing)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: input %s, %s, has no %s yet. Set it, or finalize the operation that computes the tensor first.",
             descriptor_label(op), row->key, descriptor_label(&tensor->base), missing);
    tensor_infer_strides(tensor, NULL);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Memory locations -------------------------------------------------------------------------------------------- */

/* The dimensions of a tensor with more than one element, by ascending stride; for a ragged tensor those of one batch
   entry, because offsets define where entries begin. */
struct locations {
    int rank;
    int64_t extents[WEFT_DIM_MAX], strides[WEFT_DIM_MAX];
};

/* An insertion sort: ranks are at most WEFT_DIM_MAX. A vector counts as one location, because its elements are
   distinct. */
static struct locations locations_of(const struct tensor *tensor) {
    struct locations locations = {0};
    for (int64_t i = 0; i < tensor->dims.count; i++) {
        bool has_vectors = i == tensor->vector_dim && tensor->vector_count > 1;
        int64_t extent = has_vectors ? tensor->dims.at[i] / tensor->vector_count : tensor->dims.at[i];
        int at = locations.rank;
        /* Skipped, because the stride of such a dimension does not matter. */
        if (extent == 1 || (i == 0 && tensor->ragged_offset))
            continue;
        /* Those with larger strides move up by one. */
        for (; at && locations.strides[at - 1] > tensor->strides.at[i]; at--) {
            locations.extents[at] = locations.extents[at - 1];
            locations.strides[at] = locations.strides[at - 1];
        }
        locations.extents[at] = extent;
        locations.strides[at] = tensor->strides.at[i];
        locations.rank++;
    }
    return locations;
}

/* True if each stride exceeds the extent of all faster dimensions: then all elements are at distinct locations. The
   reverse need not hold. */
static bool is_nested(const struct locations *locations) {
    /* One more than the largest offset of all faster dimensions. */
    int64_t reach = 1;
    for (int i = 0; i < locations->rank; i++) {
        if (locations->strides[i] < reach)
            return false;
        reach += locations->strides[i] * (locations->extents[i] - 1);
    }
    return true;
}

static int compare_offsets(const void *a, const void *b) {
    int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
    return (one > other) - (one < other);
}

/* Determines whether two of `count` elements share a location, by sorting all offsets. `count` is the product of the
   extents, at most SORTED_MAX: half a megabyte of offsets. */
static weftStatus_t find_shared(const struct locations *locations, int64_t count, bool *is_shared) {
    int64_t *offsets = malloc((size_t)count * sizeof *offsets);
    if (!offsets)
        return status_no_memory((size_t)count * sizeof *offsets);
    for (int64_t i = 0; i < count; i++) {
        offsets[i] = 0;
        /* The i-th index in mixed radix, fastest dimension first; the order does not matter. */
        for (int64_t dim = 0, rest = i; dim < locations->rank; rest /= locations->extents[dim], dim++)
            offsets[i] += rest % locations->extents[dim] * locations->strides[dim];
    }
    qsort(offsets, (size_t)count, sizeof *offsets, compare_offsets);
    *is_shared = false;
    for (int64_t i = 1; i < count; i++)
        *is_shared |= offsets[i] == offsets[i - 1];
    free(offsets);
    return WEFT_STATUS_SUCCESS;
}

bool op_channels_last(const struct descriptor *op, const struct tensor *out, struct dims *strides) {
    (void)op;
    *strides = dims_channels_last(&out->dims);
    return true;
}

/* Replaces the inferred strides by those of cuDNN's frontend, unless elements would share memory, such as for an output
   that follows a broadcast input. */
static weftStatus_t take_cudnn_strides(const struct descriptor *op, struct tensor *out) {
    struct tensor changed = tensor_mirror(out);
    if (!op_of(op)->cudnn_strides(op, out, &changed.strides))
        return WEFT_STATUS_SUCCESS;
    TRY(tensor_check_reach(&changed));
    struct locations locations = locations_of(&changed);
    if (!is_nested(&locations))
        return WEFT_STATUS_SUCCESS;
    out->strides = changed.strides;
    /* These strides are required by a rule; consumers must not ignore them. */
    out->has_no_order = out->is_turned = false;
    return WEFT_STATUS_SUCCESS;
}

enum { SORTED_MAX = 1 << 16 }; /* number of elements up to which interleaved strides are checked by enumeration */

/* Determines whether two elements of a tensor share memory. is_decided: false if the tensor is too large to enumerate,
   and is_shared is only a suspicion. */
static weftStatus_t elements_share(const struct tensor *tensor, bool *is_shared, bool *is_decided) {
    struct locations locations = locations_of(tensor);
    int64_t count = 1;
    *is_shared = false, *is_decided = true;
    if (tensor_elements(tensor) == 0 || is_nested(&locations))
        return WEFT_STATUS_SUCCESS;
    /* Stops above SORTED_MAX, so that the product cannot overflow. */
    for (int i = 0; i < locations.rank && count <= SORTED_MAX; i++)
        count *= min64(locations.extents[i], SORTED_MAX + 1);
    /* Stride 0 with more than one element always shares; otherwise only enumeration decides. */
    *is_shared = true;
    *is_decided = count <= SORTED_MAX || locations.strides[0] == 0;
    return count <= SORTED_MAX ? find_shared(&locations, count, is_shared) : WEFT_STATUS_SUCCESS;
}

/* Elements of an output must not share memory: kernels write them in any order, from several threads, so the result
   would be random. */
static weftStatus_t check_places(const struct descriptor *op, const struct row *row, const struct tensor *tensor) {
    bool is_shared, is_decided;
    TRY(elements_share(tensor, &is_shared, &is_decided));
    if (!is_shared)
        return WEFT_STATUS_SUCCESS;
    FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
         is_decided
             ? "%s: output %s, %s, overlaps itself: dims %s with strides %s. Give each element its own location."
             : "%s: output %s, %s, may overlap itself: interleaved strides are checked only up to 65536 elements, not "
               "for dims %s with strides %s. Make each stride exceed the extent of all faster dimensions.",
         descriptor_label(op), row->key, descriptor_label(&tensor->base), tensor_dims_text(tensor),
         numbers_text(tensor->strides.at, tensor->strides.count));
}

/* A virtual output need not have the strides that the user set, because it need not be stored. NVIDIA's frontend
   permutes the strides of inputs, which for some shapes gives two elements one location: such strides are replaced by
   inferred ones. */
static weftStatus_t drop_shared_strides(void *context, const struct row *row, struct tensor *tensor) {
    (void)context;
    bool is_shared, is_decided;
    if (row->role != ROLE_OUTPUT || !tensor->is_virtual || !tensor->strides.count ||
        tensor->strides.count != tensor->dims.count)
        return WEFT_STATUS_SUCCESS;
    TRY(elements_share(tensor, &is_shared, &is_decided));
    if (is_shared)
        tensor->strides.count = 0;
    return WEFT_STATUS_SUCCESS;
}

/* Fields that cannot be inferred must be set by the user, except strides, which become packed. */
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
    /* Inferred dims have not been checked by the tensor's finalize. */
    weftStatus_t status = tensor_check_reach(tensor);
    if (status)
        return status_prefix(status, "%s: output %s, ", descriptor_label(op), row->key);
    return check_places(op, row, tensor);
}

/* Maximum number of rows of an operation, see row_bit in graph/descriptor.c. */
enum { OPERANDS_MAX = 64 };

/* State of operands before inference, to restore them if the operation is rejected. */
struct snapshot {
    int count;
    struct {
        struct tensor *tensor;
        /* Counts are enough: inference sets only what was empty, and values after a count of 0 do not matter. */
        int64_t rank, stride_count;
        int32_t type;
        bool is_output;
    } saved[OPERANDS_MAX];
};

/* Operands beyond OPERANDS_MAX, for example of a concat of many tensors, are not saved. */
static weftStatus_t save_operand(void *context, const struct row *row, struct tensor *tensor) {
    struct snapshot *snapshot = context;
    /* Counts and type are all that inference changes. */
    if (snapshot->count < OPERANDS_MAX) {
        int i = snapshot->count++;
        snapshot->saved[i].tensor = tensor;
        snapshot->saved[i].rank = tensor->dims.count;
        snapshot->saved[i].stride_count = tensor->strides.count;
        snapshot->saved[i].type = tensor->type;
        snapshot->saved[i].is_output = row->role == ROLE_OUTPUT;
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t op_finalize(struct descriptor *descriptor) {
    const struct op *op = op_of(descriptor);
    struct snapshot before = {0};
    TRY(op_each_operand(descriptor, save_operand, &before));
    /* Each step relies on the previous ones: infer needs inputs with dims, types and strides; check needs complete
       outputs. */
    weftStatus_t status = op_each_operand(descriptor, refuse_ragged, descriptor);
    if (!status)
        status = op_each_operand(descriptor, refuse_reordered, descriptor);
    if (!status)
        status = op_each_operand(descriptor, drop_shared_strides, NULL);
    if (!status)
        status = op_each_operand(descriptor, resolve_input, descriptor);
    if (!status)
        status = op->infer(descriptor);
    for (int i = 0; !status && op->cudnn_strides && i < before.count; i++) {
        struct tensor *tensor = before.saved[i].tensor;
        bool is_open = before.saved[i].is_output && !before.saved[i].stride_count && tensor->dims.count;
        if (is_open && tensor->has_cudnn_strides && tensor->vector_count == 1)
            status = take_cudnn_strides(descriptor, tensor);
    }
    if (!status)
        status = op_each_operand(descriptor, check_output, descriptor);
    if (!status && op->check)
        status = op->check(descriptor);
    /* A rejected operation leaves its tensors unchanged, so that the user can correct it and finalize again. */
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
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: %s has %lld dim%s %s, expected %lld..%lld. Reshape it.",
             descriptor_label(op), key, (long long)tensor->dims.count, plural(tensor->dims.count),
             tensor_dims_text(tensor), (long long)least, (long long)most);
    return WEFT_STATUS_SUCCESS;
}

/* Also applied to outputs that were just inferred, which always pass. */
weftStatus_t check_dims(const struct descriptor *op, const char *key, const struct tensor *tensor, int64_t rank,
                        const int64_t *dims) {
    if (tensor && (tensor->dims.count != rank || memcmp(tensor->dims.at, dims, (size_t)rank * sizeof *dims) != 0))
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: %s has dims %s, expected %s. Give it these dims, or none.",
             descriptor_label(op), key, tensor_dims_text(tensor), numbers_text(dims, rank));
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t check_broadcasts(const struct descriptor *op, const char *key, const struct tensor *tensor,
                              const struct tensor *full) {
    if (!tensor)
        return WEFT_STATUS_SUCCESS;
    bool fits = tensor->dims.count == full->dims.count;
    for (int64_t i = 0; fits && i < tensor->dims.count; i++)
        fits = tensor->dims.at[i] == 1 || tensor->dims.at[i] == full->dims.at[i];
    if (!fits)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s with dims %s does not broadcast to %s. Make each of its dims 1 or equal, of the same rank.",
             descriptor_label(op), key, tensor_dims_text(tensor), tensor_dims_text(full));
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t check_axis(const struct descriptor *op, int64_t axis, const char *key, const struct tensor *tensor) {
    int64_t rank = tensor->dims.count;
    if (axis < -rank || axis >= rank)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: axis is %lld, %s has %lld dim%s %s. Use a value in %lld..%lld.",
             descriptor_label(op), (long long)axis, key, (long long)rank, plural(rank), tensor_dims_text(tensor),
             (long long)-rank, (long long)rank - 1);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t check_float(const struct descriptor *op, const char *key, const struct tensor *tensor) {
    if (tensor && tensor->type != WEFT_DATA_DOUBLE && tensor->type != WEFT_DATA_FLOAT &&
        !dtype_is_half((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use DOUBLE, FLOAT, HALF or BFLOAT16.",
             descriptor_label(op), key, dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t check_index_type(const struct descriptor *op, const char *key, const struct tensor *tensor) {
    if (tensor && tensor->type != WEFT_DATA_INT32 && tensor->type != WEFT_DATA_INT64)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use INT32 or INT64.", descriptor_label(op), key,
             dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t check_scalar(const struct descriptor *op, const char *key, const struct tensor *tensor) {
    if (tensor && tensor_elements(tensor) != 1)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: %s is a scalar, its dims are %s. Use all ones.",
             descriptor_label(op), key, tensor_dims_text(tensor));
    return WEFT_STATUS_SUCCESS;
}
