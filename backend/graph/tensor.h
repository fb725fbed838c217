/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: shape, strides, data type, identity. What the user leaves unset of an operation's output is inferred when
     the
   operation is finalized (tensor_infer_*); everything else is immutable after finalize. */
#ifndef WEFT_GRAPH_TENSOR_H
#define WEFT_GRAPH_TENSOR_H

#include "graph/schema.h"

/* The data type of a tensor that has none yet. */
enum { TENSOR_NO_TYPE = -1 };

struct tensor {
    struct descriptor base;
    int64_t uid;
    struct dims dims;    /* extents in elements; count 0: to be inferred */
    struct dims strides; /* in elements (in vectors when vectorised); count 0: to be chosen */
    int32_t type;        /* weftDataType_t or TENSOR_NO_TYPE */
    int64_t alignment;   /* bytes that every pointer to it is a multiple of */
    int64_t vector_count, vector_dim;
    bool is_virtual, is_by_value;
    bool is_free;      /* the user set no type: exact within a kernel, of its type only where it is stored */
    bool has_no_order; /* its strides were inferred of a broadcast, for which any would do */
    bool is_turned;    /* they were inferred of a transpose: nothing that leaves the graph follows them */
    /* It has no memory: who reads it reads the parts that the concatenation joins which makes it. All have its type and
       its stride along the axis; other strides are the first part's, and by one factor those of the next. Such tensors
       are made for planning alone (graph/views.h). */
    bool is_gathered;
    bool has_cudnn_strides; /* strides that an output leaves unset are those of cuDNN's frontend (graph/op.h) */
    int32_t reordering;
    void *constant_address; /* as set: address of the scalar's bytes */
    bool is_constant;
    unsigned char constant[16]; /* the scalar's bytes */
    struct tensor *ragged_offset;
    int64_t ragged_multiplier;
};

extern const struct schema tensor_schema;

int64_t tensor_elements(const struct tensor *tensor);

/* Bytes of an element, at least 1. */
int64_t tensor_element_bytes(const struct tensor *tensor);

/* Bytes from the tensor's pointer to its last element; 0 for an empty one. */
int64_t tensor_bytes(const struct tensor *tensor);

/* Of these, what its elements may take: those between them may be another tensor's. */
int64_t tensor_own_bytes(const struct tensor *tensor);

/* Where an entry of `rows` rows of a ragged tensor [B, H, rows, D] may be. Its offset and the last offset, which is the
   end of the tensor, are in units of the tensor's multiplier: 0 <= offset <= end <= most. In elements, its last row
   begins at offset * multiplier + (rows - 1) * row: at `latest` or before, and `width` or more before the end. All of
   this is memory that the tensor's dims and strides describe as batch entries one after the other. */
struct ragged_entries {
    int64_t most;       /* units */
    int64_t latest;     /* elements: behind it the heads of a row would leave the memory */
    int64_t row, width; /* elements: from row to row, and of one row */
};
struct ragged_entries tensor_ragged_entries(const struct tensor *tensor);

/* The type that a reader within the same kernel sees. */
static inline weftDataType_t tensor_type_inside(const struct tensor *tensor) {
    return tensor->is_free ? WEFT_DATA_FLOAT : (weftDataType_t)tensor->type;
}

/* Refuses dims and strides that reach farther than memory does; all arithmetic on sizes relies on it. */
weftStatus_t tensor_check_reach(const struct tensor *tensor);

/* NOT_SUPPORTED_LAYOUT for an operation whose tensor lies in vectors. */
weftStatus_t tensor_check_plain(const struct tensor *tensor, const struct descriptor *op);

/* A copy that nobody holds or releases. Others may take and leave the source meanwhile. */
struct tensor tensor_mirror(const struct tensor *tensor);

/* Row-major without gaps, in this order of dims. */
bool tensor_is_packed(const struct tensor *tensor);

/* "[8,128,64]". */
const char *tensor_dims_text(const struct tensor *tensor);

bool tensor_same_dims(const struct tensor *a, const struct tensor *b);

/* Same dims, strides and data type: element i of both has the same address offset. */
bool tensor_same_layout(const struct tensor *a, const struct tensor *b);

/* ---- Inference: each fills in only what is unset; NULL tensors are left alone ---- */

void tensor_infer_dims(struct tensor *tensor, int64_t rank, const int64_t *dims);
void tensor_infer_type(struct tensor *tensor, weftDataType_t type);

/* The type that results calculated in `math` may have: FLOAT for FAST_FLOAT_FOR_FP8, which only allows less
   precision. */
static inline weftDataType_t math_type(int32_t math) {
    return math == WEFT_DATA_FAST_FLOAT_FOR_FP8 ? WEFT_DATA_FLOAT : (weftDataType_t)math;
}

/* The type of a result that is calculated in `math` from inputs of type `natural`: that of the inputs for a result in
   memory, the compute type for a virtual one, which so loses nothing; DOUBLE stays DOUBLE. */
weftDataType_t tensor_result_type(const struct tensor *result, weftDataType_t natural, weftDataType_t math);

/* Packs the dims in the order in which the strides of `like` descend (row-major when like is NULL or of another
   rank). */
void tensor_infer_strides(struct tensor *tensor, const struct tensor *like);

/* Strides of packed dims. The dimension with the smallest number in `order`, which may be strides, is fastest; of equal
   numbers, the first dimension. */
struct dims dims_packed(const struct dims *dims, const struct dims *order);
struct dims dims_row_major(const struct dims *dims);
/* Dimension 1 is fastest, then the last one to the third, and the first one is slowest. */
struct dims dims_channels_last(const struct dims *dims);

/* The three of them, after another tensor's dims, order and type. */
void tensor_infer_like(struct tensor *tensor, const struct tensor *like);

#endif
