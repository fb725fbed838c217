/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: shape, strides, data type, identity. Unset fields of an operation's output are inferred when the operation
   is finalized (tensor_infer_*); everything else is immutable after finalize. */
#ifndef WEFT_GRAPH_TENSOR_H
#define WEFT_GRAPH_TENSOR_H

#include "graph/schema.h"

/* The data type of a tensor whose type is not set yet. */
enum { TENSOR_NO_TYPE = -1 };

struct tensor {
    struct descriptor base;
    int64_t uid;
    struct dims dims;    /* extents in elements; count 0 until inferred */
    struct dims strides; /* in elements (in vectors if vectorised); count 0 until chosen */
    int32_t type;        /* weftDataType_t or TENSOR_NO_TYPE */
    int64_t alignment;   /* bytes; every pointer to the tensor is a multiple of it */
    int64_t vector_count, vector_dim;
    bool is_virtual, is_by_value;
    bool is_free;      /* the user set no type: exact within a kernel, rounded to its type only if it is stored */
    bool has_no_order; /* its strides were inferred from a broadcast, so any others would do */
    bool is_turned;    /* its strides were inferred from a transpose: outputs of the graph do not follow them */
    /* The tensor has no memory: its readers read the inputs of the concatenation that computes it. All of these have
       its type and its stride along the axis; their other strides are those of the first input, multiplied by one
       factor per input. Such tensors exist during planning only (graph/views.h). */
    bool is_gathered;
    bool has_cudnn_strides; /* unset strides of an output are those of cuDNN's frontend (graph/op.h) */
    int32_t reordering;
    void *constant_address; /* as set by the user: address of the scalar's bytes */
    bool is_constant;
    unsigned char constant[16]; /* the scalar's bytes; of a by-value scalar, those that a plan assumes */
    bool is_assumed;            /* by value, and assumed to have this number (graph/patterns/assumptions.h) */
    bool is_relied_on;          /* is_assumed, and the graph was changed accordingly */
    struct tensor *ragged_offset;
    int64_t ragged_multiplier;
};

extern const struct schema tensor_schema;

int64_t tensor_elements(const struct tensor *tensor);

/* Size of an element in bytes, at least 1. */
int64_t tensor_element_bytes(const struct tensor *tensor);

/* Bytes from the tensor's pointer to the end of its last element; 0 for an empty tensor. */
int64_t tensor_bytes(const struct tensor *tensor);

/* The number of these that its elements occupy; gaps between them may belong to other tensors. */
int64_t tensor_own_bytes(const struct tensor *tensor);

/* Bounds for the entries of a ragged tensor [B, H, rows, D] with `rows` rows each. The offset of an entry and the last
   offset, which is the end of the tensor, are in units of the tensor's multiplier: 0 <= offset <= end <= most. In
   elements, the last row of an entry begins at offset * multiplier + (rows - 1) * row, which must not exceed `latest`
   and must be at least `width` before the end. All of this refers to the memory that the tensor's dims and strides
   describe as consecutive batch entries. */
struct ragged_entries {
    int64_t most;       /* units */
    int64_t latest;     /* elements: after it, the heads of a row would exceed the memory */
    int64_t row, width; /* elements: distance between rows, and width of a row */
};
struct ragged_entries tensor_ragged_entries(const struct tensor *tensor);

/* The type that readers within the same kernel see. */
static inline weftDataType_t tensor_type_inside(const struct tensor *tensor) {
    return tensor->is_free ? WEFT_DATA_FLOAT : (weftDataType_t)tensor->type;
}

/* Rejects dims and strides that exceed any memory; all arithmetic on sizes relies on it. */
weftStatus_t tensor_check_reach(const struct tensor *tensor);

/* Fails with NOT_SUPPORTED_LAYOUT for an operation whose tensor is vectorised. */
weftStatus_t tensor_check_plain(const struct tensor *tensor, const struct descriptor *op);

/* A copy without a reference count. Other threads may retain and release the source at the same time. */
struct tensor tensor_mirror(const struct tensor *tensor);

/* True if row-major without gaps, in this order of dims. */
bool tensor_is_packed(const struct tensor *tensor);

/* "[8,128,64]". */
const char *tensor_dims_text(const struct tensor *tensor);

bool tensor_same_dims(const struct tensor *a, const struct tensor *b);

/* True if dims, strides and data type are equal: element i of both has the same address offset. */
bool tensor_same_layout(const struct tensor *a, const struct tensor *b);

/* ---- Inference: these set only fields that are unset, and ignore NULL ------------ */

void tensor_infer_dims(struct tensor *tensor, int64_t rank, const int64_t *dims);
void tensor_infer_type(struct tensor *tensor, weftDataType_t type);

/* The type of results that are calculated in `math`: FLOAT for FAST_FLOAT_FOR_FP8, which only permits less
   precision. */
static inline weftDataType_t math_type(int32_t math) {
    return math == WEFT_DATA_FAST_FLOAT_FOR_FP8 ? WEFT_DATA_FLOAT : (weftDataType_t)math;
}

/* The type of a result that is calculated in `math` from inputs of type `natural`: the type of the inputs if the result
   is in memory; the compute type if it is virtual, so that it loses nothing; DOUBLE stays DOUBLE. */
weftDataType_t tensor_result_type(const struct tensor *result, weftDataType_t natural, weftDataType_t math);

/* Packs the dims in the order of the strides of `like` (row-major if like is NULL or has another rank). */
void tensor_infer_strides(struct tensor *tensor, const struct tensor *like);

/* Strides of packed dims. The dimension with the smallest number in `order`, which may contain strides, is the fastest;
   of equal numbers, the first dimension. */
struct dims dims_packed(const struct dims *dims, const struct dims *order);
struct dims dims_row_major(const struct dims *dims);
/* Dimension 1 is the fastest, followed by the last to the third one; the first one is the slowest. */
struct dims dims_channels_last(const struct dims *dims);

/* Infers dims, order and type from another tensor. */
void tensor_infer_like(struct tensor *tensor, const struct tensor *like);

#endif
