/* SPDX-License-Identifier: Apache-2.0 */
/* An operation: a schema whose tensor rows are its operands, inference of unset fields of its outputs, checks, and a
   reference, which defines the results by simple code in double precision. Operations do not know engines. */
#ifndef WEFT_GRAPH_OP_H
#define WEFT_GRAPH_OP_H

#include "base/dtype.h"
#include "graph/descriptor.h"
#include "graph/tensor.h"

/* A method of the frontends. One operation may have several (norm: layernorm, rmsnorm, ...). */
struct method {
    const char *name; /* "layernorm" */
    const char *doc;  /* one line: what it computes, then " : " and the formula */
    /* "key=VALUE ...": option rows that the method fixes; enumerators without their common prefix. */
    const char *fixed;
    /* "input:x scale bias=None padding:pre+post=None": argument[:row key[+row key]][=default], in the frontend's order.
       A row may belong to the operation's parameter descriptor. If two arguments set the same row, the last one wins.
       The word * ends the positional arguments; arguments after it are keyword-only. Every method also has
       compute_data_type and name: at the position of these words, otherwise after the last positional argument, in this
       order. */
    const char *arguments;
    const char *results; /* "y mean inv_variance": row keys of the outputs that it returns, in order */
};

/* The memory of one tensor during execution. data is NULL if the operand is absent or not needed. */
struct view {
    void *data;
    weftDataType_t type;
    int rank;
    const int64_t *dims;
    const int64_t *strides;
    int64_t vector_count, vector_dim;
};

/* Location of a tensor inside another one's memory, in elements. */
struct placement {
    struct dims strides;
    int64_t offset;
};

struct graph;
struct expansion;
struct op_writer;

enum { DECOMPOSITION_MAX = 20 }; /* maximum number of operations that replace a composite one */

/* The memory of a graph's values, and scratch memory of the size that the operation requested. */
struct bindings {
    const struct graph *graph;
    void *const *values;
    void *scratch;
};

struct op {
    struct schema schema;
    /* Schema of the parameter descriptor that the op has a row for (convolution, pointwise, ...), or NULL. */
    const struct schema *parameters;
    const struct method *methods; /* terminated by a method without name; NULL if there are none */
    bool takes_ragged;            /* supports tensors with ragged offsets */
    bool takes_reordered;         /* supports reordering_type, and checks itself which tensors may have one */
    /* The role that a row has in this operation if the role depends on the mode; NULL: always the role of the row. */
    enum role (*role_of)(const struct descriptor *op, const struct row *row);
    /* Infers unset dims, strides and types of the outputs; fails only if no reasonable value exists. All inputs have
       dims, strides and a type. */
    weftStatus_t (*infer)(struct descriptor *op);
    /* The strides that cuDNN's frontend gives to output `out`, which has dims and no strides set by the user. Returns
       false to use those of `infer`. Called for tensors with has_cudnn_strides. NULL: always those of `infer`.
       docs/cudnn.md lists the rules. */
    bool (*cudnn_strides)(const struct descriptor *op, const struct tensor *out, struct dims *strides);
    /* Checks all rules for complete operands. */
    weftStatus_t (*check)(const struct descriptor *op);
    /* Validates indices in memory (lengths, offsets, pages): fails with the operand, the entry and the valid range. All
       integer operands have memory that the host can read; other operands may have none. Runs before the operation.
       NULL if there are no such indices. */
    weftStatus_t (*check_indices)(const struct descriptor *op, const struct bindings *bindings);
    /* The formula as instructions over rows (graph/expansion.h), for the engines; NULL if it does not combine rows. */
    weftStatus_t (*expand)(const struct descriptor *op, struct expansion *expansion);
    /* For composite operations: writes the primitive operations, at most DECOMPOSITION_MAX, that are the nodes of a
       graph instead of this one; the last one writes its output. NULL for all others. */
    weftStatus_t (*decompose)(const struct descriptor *op, struct op_writer *writer);
    /* Computes all outputs; this defines the operation. NULL if it is composite. */
    void (*reference)(const struct descriptor *op, const struct bindings *bindings);
    /* Offset in bytes from the start of `out` at which input `in` may be stored, because writing it there has no
       effect; -1 if it may not. NULL: never. The rows' in_place is about inputs that are overwritten instead. */
    int64_t (*offset_in_result)(const struct descriptor *op, const struct tensor *in, const struct tensor *out);
    /* For operations that only move elements: the layout of the result as a view of its only input, so that no kernel
       runs; false if strides cannot express it. NULL: never. */
    bool (*result_layout)(const struct descriptor *op, const struct placement *x, struct placement *y);
    /* The layout of operand k as a view of the result, so that it is computed in place. */
    bool (*operand_layout)(const struct descriptor *op, int k, const struct placement *y, struct placement *x);
    /* Bytes of scratch memory of the reference; NULL: none. */
    int64_t (*scratch_bytes)(const struct descriptor *op);
    /* Arithmetic operations of one run; NULL: one per output element. */
    double (*flops)(const struct descriptor *op);
    /* Arithmetic operations that the reference performs per second, approximately; 0: 5e7, for element by element with
       index arithmetic. */
    double reference_rate;
};

/* Finalizes an operation of any kind: resolves inputs, infers, checks. The `finalize` of their schemas. */
weftStatus_t op_finalize(struct descriptor *descriptor);

static inline const struct op *op_of(const struct descriptor *descriptor) { return descriptor->schema->op; }

static inline enum role op_role(const struct descriptor *op, const struct row *row) {
    return op_of(op)->role_of ? op_of(op)->role_of(op, row) : row->role;
}

/* A cudnn_strides for operations whose outputs are always packed channels last. */
bool op_channels_last(const struct descriptor *op, const struct tensor *out, struct dims *strides);

/* Visits operands in row order. `visit` gets each tensor row with its role in this operation, and the tensors of list
   rows one by one. The row is valid during the call. Stops at the first failure. */
weftStatus_t op_each_operand(const struct descriptor *op,
                             weftStatus_t (*visit)(void *context, const struct row *row, struct tensor *tensor),
                             void *context);

/* A copy without a reference count whose tensors are replaced by the results of `exchange`. */
weftStatus_t op_exchange(struct descriptor **result, const struct descriptor *op,
                         struct tensor *(*exchange)(const void *context, struct tensor *tensor), const void *context,
                         struct arena *arena);

double op_flops(const struct descriptor *op);

/* The type in which products of a and b are accumulated: `math` if row `name` of `holder` was set; otherwise INT32 for
   8-bit integers, INT64 for wider ones, FLOAT for all others. */
weftDataType_t product_math(const struct descriptor *holder, weftBackendAttributeName_t name, int32_t math,
                            const struct tensor *a, const struct tensor *b);

/* ---- Common checks; messages name the operation and the tensor -------------------------------- */

weftStatus_t check_rank(const struct descriptor *op, const char *key, const struct tensor *tensor, int64_t least,
                        int64_t most);
/* Checks that `tensor` has exactly these dims. Accepts NULL. */
weftStatus_t check_dims(const struct descriptor *op, const char *key, const struct tensor *tensor, int64_t rank,
                        const int64_t *dims);
/* Checks that each extent of `tensor` is 1 or equal to that of `full`, and that ranks are equal. Accepts NULL. */
weftStatus_t check_broadcasts(const struct descriptor *op, const char *key, const struct tensor *tensor,
                              const struct tensor *full);
/* Checks that `axis` names a dimension of `tensor`; negative numbers count from the last one. */
weftStatus_t check_axis(const struct descriptor *op, int64_t axis, const char *key, const struct tensor *tensor);
/* Checks for DOUBLE, FLOAT, HALF or BFLOAT16. Accepts NULL. */
weftStatus_t check_float(const struct descriptor *op, const char *key, const struct tensor *tensor);
/* Checks for INT32 or INT64. Accepts NULL. */
weftStatus_t check_index_type(const struct descriptor *op, const char *key, const struct tensor *tensor);
/* Checks for one element, by value or in memory. Accepts NULL. */
weftStatus_t check_scalar(const struct descriptor *op, const char *key, const struct tensor *tensor);

/* The dimension that an axis names. */
static inline int axis_dimension(int64_t axis, const struct tensor *tensor) {
    return (int)(axis < 0 ? axis + tensor->dims.count : axis);
}

/* ---- element_access.c: the elements of operands, for references: simple, not fast ------------- */

/* The memory of an operand; data is NULL if the tensor is NULL or has no memory in these bindings. */
struct view view_of(const struct bindings *bindings, const struct tensor *tensor);

/* Offset in elements of an index of view->rank numbers. Dimensions of extent 1 ignore their index, so that views
   broadcast. */
int64_t view_offset(const struct view *view, const int64_t *index);
double view_load(const struct view *view, const int64_t *index);
/* The element, or `otherwise` if the operand is absent. */
double view_load_or(const struct view *view, const int64_t *index, double otherwise);
void view_store(const struct view *view, const int64_t *index, double value);
/* Stores the value unless the operand is absent. */
void view_store_if(const struct view *view, const int64_t *index, double value);
int64_t view_load_int(const struct view *view, const int64_t *index);
void view_store_int(const struct view *view, const int64_t *index, int64_t value);

/* A sum of products: in 64-bit integers, with wrap-around, if a, b and the type of the calculation are integers;
   otherwise in double. */
struct sum {
    bool is_exact;
    double real;
    uint64_t integer;
};
struct sum sum_of_products(weftDataType_t math, const struct view *a, const struct view *b);
void sum_add(struct sum *sum, const struct view *a, const int64_t *in_a, const struct view *b, const int64_t *in_b);
void sum_store(const struct sum *sum, const struct view *view, const int64_t *index);

/* Copy between a row-major array of numbers and an operand of any layout; absent operands are ignored. */
void view_load_all(const struct view *view, double *numbers);
void view_store_all(const struct view *view, const double *numbers);

/* Row-major index in a packed tensor of these dims; extents of 1 broadcast. */
int64_t dims_index(const struct dims *dims, const int64_t *index);

/* The element of a scalar operand, or `otherwise` if it is absent. */
double view_scalar(const struct bindings *bindings, const struct tensor *tensor, double otherwise);

/* Iterates an index over dims in row-major order: for (bool more = index_begin(index, rank, dims); more; more =
   index_next(index, rank, dims)). There are no iterations if an extent is 0. */
bool index_begin(int64_t *index, int rank, const int64_t *dims);
bool index_next(int64_t *index, int rank, const int64_t *dims);

#endif
