/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor kind: its rows, its checks, and simple queries of operations and engines. All sizes and strides are in
   elements, or in vectors if the tensor is vectorised. Dims and strides of a finalized tensor can be multiplied in
   64-bit arithmetic without overflow. The role of a tensor in a graph is stored in the graph. */
#include "graph/tensor.h"

#include "base/dtype.h"
#include "base/number.h"
#include "graph/descriptor.h"

#include <stdlib.h>
#include <string.h>

/* Maximum number of elements from the first to the last. With 8 bytes each, this covers all 47-bit addresses, and the
   sum of the sizes of 65536 such tensors does not overflow. */
static const int64_t REACH_MAX = INT64_C(1) << 44;

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_INT64, struct tensor, uid, WEFT_ATTR_TENSOR_UNIQUE_ID, "uid", .required = true,
              .doc = "number that identifies the tensor in its graph and in variant packs; unique in a graph"),
    VALUE_ROW(WEFT_TYPE_INT64, struct tensor, dims, WEFT_ATTR_TENSOR_DIMENSIONS, "dims", .storage = STORE_DIMS,
              .doc = "extent of each dimension in elements, 0 or more; an operation's output may leave it unset"),
    VALUE_ROW(WEFT_TYPE_INT64, struct tensor, strides, WEFT_ATTR_TENSOR_STRIDES, "strides", .storage = STORE_DIMS,
              .doc = "distance in elements between adjacent elements along each dimension; unset: packed. It has no "
                     "meaning for a dimension of one element, where values above 2^36 are stored as 2^36"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct tensor, type, WEFT_ATTR_TENSOR_DATA_TYPE, "data_type",
              .initial = TENSOR_NO_TYPE, .doc = "type of an element; an operation's output may leave it unset"),
    VALUE_ROW(WEFT_TYPE_INT64, struct tensor, alignment, WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, "alignment", .initial = 16,
              .least = 1, .most = 4096, .doc = "alignment of each pointer to the tensor in bytes, a power of two"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct tensor, is_virtual, WEFT_ATTR_TENSOR_IS_VIRTUAL, "is_virtual",
              .doc = "true: exists inside the graph only and gets no pointer"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct tensor, is_by_value, WEFT_ATTR_TENSOR_IS_BY_VALUE, "is_by_value",
              .doc = "true: one element, whose host address is in the variant pack"),
    VALUE_ROW(WEFT_TYPE_VOID_PTR, struct tensor, constant_address, WEFT_ATTR_TENSOR_CONSTANT_VALUE, "constant_value",
              .doc = "address of the scalar's bytes, copied at finalize: a constant of the graph"),
    VALUE_ROW(WEFT_TYPE_INT64, struct tensor, vector_count, WEFT_ATTR_TENSOR_VECTOR_COUNT, "vector_count", .initial = 1,
              .least = 1, .most = 64, .doc = "number of adjacent elements along vectorized_dimension"),
    VALUE_ROW(WEFT_TYPE_INT64, struct tensor, vector_dim, WEFT_ATTR_TENSOR_VECTORIZED_DIMENSION, "vectorized_dimension",
              .initial = -1, .least = -1, .most = WEFT_DIM_MAX - 1,
              .doc = "dimension that vector_count splits; strides then count vectors"),
    VALUE_ROW(WEFT_TYPE_TENSOR_REORDERING_MODE, struct tensor, reordering, WEFT_ATTR_TENSOR_REORDERING_MODE,
              "reordering_type", .doc = "reordered storage of special formats"),
    TENSOR_ROW(ROLE_OPTION, struct tensor, ragged_offset, WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC, "ragged_offset",
               .shape = "[B+1,1,1,1]",
               .doc = "element offset of each batch entry, INT32 or INT64: entries have the alignment of the tensor"),
    VALUE_ROW(WEFT_TYPE_INT64, struct tensor, ragged_multiplier, WEFT_ATTR_TENSOR_RAGGED_OFFSET_MULTIPLIER,
              "ragged_offset_multiplier", .initial = 1, .least = 1, .most = INT32_MAX,
              .doc = "factor of every ragged offset"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct tensor, has_cudnn_strides, WEFT_ATTR_TENSOR_CUDNN_STRIDES_EXT, "cudnn_strides",
              .doc = "true: strides that an operation's output leaves unset are those of cuDNN's frontend"),
};

weftStatus_t tensor_check_reach(const struct tensor *t) {
    /* Extents of 0 count as 1 here: the other extents must be in range, too, otherwise inferred strides would
       overflow. */
    int64_t elements = 1, last = 0, step;
    for (int64_t i = 0; i < t->dims.count; i++)
        if (__builtin_mul_overflow(elements, t->dims.at[i] ? t->dims.at[i] : 1, &elements))
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: dims %s multiply to more than 2^63 elements. Use smaller dims.", descriptor_label(&t->base),
                 tensor_dims_text(t));
    /* Packed, as inference will set it: the index of the last element is the number of elements less one. */
    if (t->strides.count == 0)
        last = elements - 1;
    /* Each term is below 2^63 or rejected, and the sum is checked after each term, so it never wraps around. */
    for (int64_t i = 0; i < t->strides.count && last < REACH_MAX; i++) {
        int64_t extent = t->dims.at[i] ? t->dims.at[i] - 1 : 0;
        if (__builtin_mul_overflow(t->strides.at[i], extent, &step) || __builtin_add_overflow(last, step, &last))
            last = REACH_MAX;
    }
    if (last >= REACH_MAX)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: dims %s with strides %s reach past 2^44 elements. Use smaller ones.", descriptor_label(&t->base),
             tensor_dims_text(t), numbers_text(t->strides.at, t->strides.count));
    return WEFT_STATUS_SUCCESS;
}

/* Signs and counts are checked first: the reach is calculated from non-negative numbers. */
static weftStatus_t check_extents(const struct tensor *t) {
    const char *label = descriptor_label(&t->base);
    for (int64_t i = 0; i < t->dims.count; i++)
        if (t->dims.at[i] < 0)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: dims %s: dimension %lld is negative. Extents are 0 or more elements.", label, tensor_dims_text(t),
                 (long long)i);
    /* Strides may be absent: they are inferred, or packed. */
    if (t->strides.count && t->strides.count != t->dims.count)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: %lld stride%s for %lld dim%s. Give one stride per dimension, or none for a packed tensor.", label,
             (long long)t->strides.count, plural(t->strides.count), (long long)t->dims.count, plural(t->dims.count));
    for (int64_t i = 0; i < t->strides.count; i++)
        if (t->strides.at[i] < 0)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: strides %s: stride %lld is negative. Point at the lowest element and use strides of 0 or more.",
                 label, numbers_text(t->strides.at, t->strides.count), (long long)i);
    return tensor_check_reach(t);
}

weftStatus_t tensor_check_plain(const struct tensor *t, const struct descriptor *op) {
    if (t->vector_count != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s has vector_count %lld. Use plain strides, vector_count 1.",
             descriptor_label(op), descriptor_label(&t->base), (long long)t->vector_count);
    return WEFT_STATUS_SUCCESS;
}

/* vector_count 1 is a plain tensor, regardless of vector_dim. */
static weftStatus_t check_vectors(const struct tensor *t) {
    const char *label = descriptor_label(&t->base);
    if (t->vector_count == 1)
        return WEFT_STATUS_SUCCESS;
    if (t->vector_dim < 0 || t->vector_dim >= t->dims.count)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: vector_count is %lld and vectorized_dimension %lld, but the tensor has dims %s. Choose one of them.",
             label, (long long)t->vector_count, (long long)t->vector_dim, tensor_dims_text(t));
    /* Vectors must be complete: kernels do not check for the end of a dimension inside of a vector. */
    if (t->dims.at[t->vector_dim] % t->vector_count)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: dimension %lld has %lld element%s, which is not a multiple of vector_count %lld. Pad it to a "
             "multiple.",
             label, (long long)t->vector_dim, (long long)t->dims.at[t->vector_dim], plural(t->dims.at[t->vector_dim]),
             (long long)t->vector_count);
    return WEFT_STATUS_SUCCESS;
}

/* Copies a constant's bytes into the tensor; `constant` is large enough for the widest element. */
static weftStatus_t take_constant(struct tensor *t) {
    const char *label = descriptor_label(&t->base);
    if (!descriptor_row_is_set(&t->base, WEFT_ATTR_TENSOR_CONSTANT_VALUE))
        return WEFT_STATUS_SUCCESS;
    tensor_infer_dims(t, 1, (const int64_t[]){1});
    if (t->type == TENSOR_NO_TYPE || tensor_elements(t) != 1 || !t->constant_address)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: a constant has one element, a data type and the address of its bytes; dims are %s, data type %d. Set "
             "all three.",
             label, tensor_dims_text(t), t->type);
    /* The user may free the memory after finalize. */
    memcpy(t->constant, t->constant_address, (size_t)dtype_bytes((weftDataType_t)t->type, 1));
    t->is_constant = true;
    return WEFT_STATUS_SUCCESS;
}

enum { IDLE_STRIDE_BITS = 36 }; /* strides of 8-byte elements stay below 2^40 bytes, the limit of a tensor map */

/* The stride of a dimension with at most one element is never used, so any value is legal. Clamping it avoids overflow,
   regardless of how engines multiply. */
static void limit_idle_strides(struct tensor *t) {
    for (int64_t i = 0; i < t->strides.count; i++)
        if (t->dims.at[i] <= 1)
            t->strides.at[i] = min64(t->strides.at[i], INT64_C(1) << IDLE_STRIDE_BITS);
}

/* Dims, strides and type of an output may be unset: the operation that computes it infers them. Nothing else may change
   later. */
static weftStatus_t finalize_tensor(struct descriptor *descriptor) {
    struct tensor *t = (struct tensor *)descriptor;
    const char *label = descriptor_label(descriptor);
    TRY(check_extents(t));
    limit_idle_strides(t);
    TRY(check_vectors(t));
    TRY(take_constant(t));
    /* Offsets determine the location of a tensor; the location of the offsets must not depend on further offsets. */
    if (t->ragged_offset && t->ragged_offset->ragged_offset)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: ragged_offset, %s, has ragged offsets of its own. Give plain offsets.", label,
             descriptor_label(&t->ragged_offset->base));
    /* A power of two has one bit set. */
    if (t->alignment & (t->alignment - 1))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: alignment is %lld bytes, which is not a power of two. Use 1, 2, 4 ... 4096.", label,
             (long long)t->alignment);
    /* The orders of cuDNN that Weft supports; operations check which tensors may have one. */
    if (t->reordering != WEFT_TENSOR_REORDERING_NONE && t->reordering != WEFT_TENSOR_REORDERING_F8_128x4)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: reordering_type is %d; Weft supports plain order, and block scales in F8_128x4 (3). Undo the "
             "reordering and set NONE (0).",
             label, t->reordering);
    if (t->is_by_value && t->is_virtual)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s is both virtual and by value. A by-value scalar comes from the variant pack.",
             label);
    /* Scalars need neither dims nor strides from the user: they have one element. */
    if (t->is_by_value && t->dims.count == 0)
        tensor_infer_dims(t, 1, (const int64_t[]){1});
    if (t->is_by_value && tensor_elements(t) != 1)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: a by-value tensor has one element, its dims are %s. Use all ones.", label, tensor_dims_text(t));
    if ((t->is_by_value || t->is_constant) && t->strides.count == 0)
        tensor_infer_strides(t, NULL);
    return WEFT_STATUS_SUCCESS;
}

/* Fields without a row: the bytes of a constant, whose address may be invalid by now. */
static weftStatus_t copy_tensor(struct descriptor *target, const struct descriptor *source) {
    struct tensor *to = (struct tensor *)target;
    const struct tensor *from = (const struct tensor *)source;
    memcpy(to->constant, from->constant, sizeof to->constant);
    to->is_constant = from->is_constant;
    return WEFT_STATUS_SUCCESS;
}

const struct schema tensor_schema = {
    .kind = WEFT_BACKEND_TENSOR_DESCRIPTOR,
    .name = "tensor",
    .doc = "an operand: shape, strides, data type and identity; the variant pack provides its memory",
    .size = sizeof(struct tensor),
    ROWS(rows),
    .finalize = finalize_tensor,
    .copy = copy_tensor,
};

/* The empty product, 1, if the dims are unset. */
int64_t tensor_elements(const struct tensor *tensor) {
    int64_t elements = 1;
    for (int64_t i = 0; i < tensor->dims.count; i++)
        elements *= tensor->dims.at[i];
    return elements;
}

int64_t tensor_element_bytes(const struct tensor *tensor) { return dtype_bytes((weftDataType_t)tensor->type, 1); }

/* Includes gaps between elements, but not after the last one. */
int64_t tensor_bytes(const struct tensor *tensor) {
    if (tensor_elements(tensor) == 0)
        return 0;
    /* Offset of the last element, or vector, from the first. */
    int64_t last = 0;
    for (int64_t i = 0; i < tensor->dims.count; i++) {
        int64_t extent = tensor->dims.at[i];
        if (i == tensor->vector_dim && tensor->vector_count > 1)
            extent /= tensor->vector_count;
        last += (extent - 1) * tensor->strides.at[i];
    }
    return dtype_bytes((weftDataType_t)tensor->type, (last + 1) * tensor->vector_count);
}

/* Less than tensor_bytes if strides leave gaps, such as in a slice. Never more, even if elements share memory, as they
   do in broadcasts. */
int64_t tensor_own_bytes(const struct tensor *tensor) {
    int64_t elements = dtype_bytes((weftDataType_t)tensor->type, tensor_elements(tensor));
    return tensor->is_gathered ? elements : min64(tensor_bytes(tensor), elements);
}

static int64_t product_of(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* With one row per entry, the batch stride is the distance of rows, because the stride of an extent of 1 does not
   matter. The batch stride of a single entry may describe more memory than its rows need, for example for tokens before
   the first. */
struct ragged_entries tensor_ragged_entries(const struct tensor *tensor) {
    const int64_t *dims = tensor->dims.at, *strides = tensor->strides.at;
    int64_t row = dims[2] > 1 ? strides[2] : dims[0] > 1 ? strides[0] : INT64_MAX;
    int64_t width = 1, reach = 1, entry = max64(strides[0], dims[2] > 1 ? product_of(dims[2], row) : 0);
    for (int i = 1; i < 4; i += 2) {
        int64_t extent = dims[i] > 1 ? product_of(dims[i], strides[i]) : 1;
        entry = max64(entry, extent);
        reach += (dims[i] - 1) * strides[i];
        /* Heads outside of the rows, such as in [H, tokens, D], are not covered by offsets. */
        width += extent <= row ? (dims[i] - 1) * strides[i] : 0;
    }
    int64_t size = product_of(dims[0], entry);
    return (struct ragged_entries){size / tensor->ragged_multiplier, size - reach, row == INT64_MAX ? width : row,
                                   width};
}

struct tensor tensor_mirror(const struct tensor *tensor) {
    /* The reference count is atomic and must not be copied as bytes; all fields after it may be. */
    enum { BEHIND = offsetof(struct tensor, base) + offsetof(struct descriptor, schema) };
    struct tensor copy = {.base.magic = tensor->base.magic};
    memcpy((char *)&copy + BEHIND, (const char *)tensor + BEHIND, sizeof copy - BEHIND);
    return copy;
}

/* Strides of dimensions of extent 1 are ignored. */
bool tensor_is_packed(const struct tensor *tensor) {
    int64_t expected = 1;
    if (tensor->vector_count > 1)
        return false;
    /* Starts with the last dimension, whose elements are adjacent. */
    for (int64_t i = tensor->dims.count; i-- > 0;) {
        if (tensor->dims.at[i] != 1 && tensor->strides.at[i] != expected)
            return false;
        expected *= tensor->dims.at[i];
    }
    return true;
}

const char *tensor_dims_text(const struct tensor *tensor) { return numbers_text(tensor->dims.at, tensor->dims.count); }

static bool same_numbers(const struct dims *a, const struct dims *b) {
    return a->count == b->count && memcmp(a->at, b->at, (size_t)a->count * sizeof *a->at) == 0;
}

bool tensor_same_dims(const struct tensor *a, const struct tensor *b) { return same_numbers(&a->dims, &b->dims); }

/* Strides of extents of 1 are compared, too, because callers multiply by them. */
bool tensor_same_layout(const struct tensor *a, const struct tensor *b) {
    return same_numbers(&a->dims, &b->dims) && same_numbers(&a->strides, &b->strides) && a->type == b->type &&
           a->vector_count == b->vector_count && a->vector_dim == b->vector_dim;
}

/* Fields that the user has set are kept; checks verify them later. This holds for every infer function. */
void tensor_infer_dims(struct tensor *tensor, int64_t rank, const int64_t *dims) {
    if (!tensor || tensor->dims.count)
        return;
    tensor->dims.count = rank;
    memcpy(tensor->dims.at, dims, (size_t)rank * sizeof *dims);
}

/* Rounding a virtual result to the type of its inputs would lose precision without saving memory. */
weftDataType_t tensor_result_type(const struct tensor *result, weftDataType_t natural, weftDataType_t math) {
    return result->is_virtual && natural != WEFT_DATA_DOUBLE ? math : natural;
}

void tensor_infer_type(struct tensor *tensor, weftDataType_t type) {
    if (tensor && tensor->type == TENSOR_NO_TYPE)
        tensor->type = (int32_t)type;
}

/* True if dimension a is inside of dimension b in memory. In a packed tensor a dimension of extent 1 has the stride of
   the next outer one, so of equal strides the one with extent 1 is inside. */
static bool runs_faster(const struct tensor *tensor, int64_t a, int64_t b) {
    if (tensor->strides.at[a] != tensor->strides.at[b])
        return tensor->strides.at[a] < tensor->strides.at[b];
    return tensor->dims.at[a] == 1 && tensor->dims.at[b] != 1;
}

void tensor_infer_strides(struct tensor *tensor, const struct tensor *like) {
    if (!tensor || tensor->strides.count || !tensor->dims.count)
        return;
    int64_t rank = tensor->dims.count;
    /* Vectorised tensors have a packed order of their own, which strides of plain tensors do not describe. */
    bool follow = like && like != tensor && like->strides.count == rank && tensor->vector_count == 1 &&
                  (tensor->is_virtual || !like->is_turned);
    tensor->is_turned = follow && like->is_turned;
    /* An insertion sort: ranks are small, and the order of equal strides must not change. */
    int64_t order[WEFT_DIM_MAX]; /* dims from the fastest to the slowest */
    for (int64_t i = 0; i < rank; i++) {
        int64_t dim = rank - 1 - i, at = i;
        for (; follow && at > 0 && runs_faster(like, dim, order[at - 1]); at--)
            order[at] = order[at - 1];
        order[at] = dim;
    }
    int64_t stride = 1;
    for (int64_t i = 0; i < rank; i++) {
        int64_t extent = tensor->dims.at[order[i]];
        tensor->strides.at[order[i]] = stride;
        if (order[i] == tensor->vector_dim && tensor->vector_count > 1)
            extent /= tensor->vector_count;
        /* An extent of 0 counts as 1, so that the strides of an empty tensor are those of its other dimensions. */
        if (__builtin_mul_overflow(stride, extent > 0 ? extent : 1, &stride))
            stride = INT64_MAX; /* tensor_check_reach rejects it */
    }
    tensor->strides.count = rank;
}

struct dims dims_packed(const struct dims *dims, const struct dims *order) {
    struct dims strides = {.count = dims->count};
    int64_t fastest[WEFT_DIM_MAX], stride = 1;
    for (int64_t i = 0; i < dims->count; i++) {
        int64_t at = i;
        for (; at > 0 && order->at[i] < order->at[fastest[at - 1]]; at--)
            fastest[at] = fastest[at - 1];
        fastest[at] = i;
    }
    for (int64_t i = 0; i < dims->count; i++) {
        int64_t extent = dims->at[fastest[i]];
        strides.at[fastest[i]] = stride;
        /* An extent of 0 counts as 1. tensor_check_reach rejects overflows. */
        if (__builtin_mul_overflow(stride, extent > 0 ? extent : 1, &stride))
            stride = INT64_MAX;
    }
    return strides;
}

struct dims dims_row_major(const struct dims *dims) {
    struct dims order = {.count = dims->count};
    for (int64_t i = 0; i < dims->count; i++)
        order.at[i] = -i;
    return dims_packed(dims, &order);
}

struct dims dims_channels_last(const struct dims *dims) {
    struct dims order = {.count = dims->count};
    for (int64_t i = 0; i < dims->count; i++)
        order.at[i] = i == 1 ? -dims->count : -i;
    return dims_packed(dims, &order);
}

/* Dims first, because strides depend on them. */
void tensor_infer_like(struct tensor *tensor, const struct tensor *like) {
    if (!tensor)
        return;
    tensor_infer_dims(tensor, like->dims.count, like->dims.at);
    tensor_infer_strides(tensor, like);
    tensor_infer_type(tensor, (weftDataType_t)like->type);
}
