/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation is: a schema whose tensor rows are its operands, inference of what its outputs leave unset, checks,
   and a reference: its definition as obviously right code in double precision. An op knows no engine. */
#ifndef WEFT_GRAPH_OP_H
#define WEFT_GRAPH_OP_H

#include "base/dtype.h"
#include "graph/descriptor.h"
#include "graph/tensor.h"

/* A frontend method: how languages spell an operation. One operation may have many (norm: layernorm, rmsnorm, ...). */
struct method {
    const char *name; /* "layernorm" */
    const char *doc;  /* one line: what it computes; then " : " and the formula */
    /* "key=VALUE ..." : option rows that the method fixes; enumerators without their common prefix. */
    const char *fixed;
    /* "input:x scale bias=None padding:pre+post=None" : argument[:row key[+row key]][=default], in the frontend's
       order. A row may belong to the operation's parameter descriptor. Of two arguments that fill the same row, the
       last one given wins. The word * ends what callers may give by position; arguments after it are given by name
       alone. Every method also takes compute_data_type and name: they stand where these words do, else at the end of
       the positional arguments, in this order. */
    const char *arguments;
    const char *results; /* "y mean inv_variance" : row keys of the outputs that it returns, in order */
};

/* The memory of one tensor during execution. data is NULL for an operand that is absent or that nobody reads. */
struct view {
    void *data;
    weftDataType_t type;
    int rank;
    const int64_t *dims;
    const int64_t *strides;
    int64_t vector_count, vector_dim;
};

/* How a tensor lies in memory that another may have begun: in elements. */
struct placement {
    struct dims strides;
    int64_t offset;
};

struct graph;
struct expansion;

/* The memory of a graph's values, and scratch memory of the size that the operation asked for. */
struct bindings {
    const struct graph *graph;
    void *const *values;
    void *scratch;
};

struct op {
    struct schema schema;
    /* The parameter descriptor's schema that the op has a row for (convolution, pointwise, ...), or NULL. */
    const struct schema *parameters;
    const struct method *methods; /* ends with a method without name; NULL: none */
    bool takes_ragged;            /* reads and writes tensors with ragged offsets */
    bool takes_reordered;         /* minds reordering_type; says itself of which tensors */
    /* The role that a row plays in this operation, where modes change it; NULL: always the row's own. */
    enum role (*role_of)(const struct descriptor *op, const struct row *row);
    /* Fills unset dims, strides and types of the outputs; fails only where nothing sensible can be filled in. Every
       input has dims, strides and a type by then. */
    weftStatus_t (*infer)(struct descriptor *op);
    /* The strides that cuDNN's frontend gives to output `out`, which has dims and no strides of the user's; false:
       those that `infer` chose. Called for tensors with has_cudnn_strides. NULL: always those of `infer`.
       docs/cudnn.md lists the rules. */
    bool (*cudnn_strides)(const struct descriptor *op, const struct tensor *out, struct dims *strides);
    /* Everything that must hold of complete operands. */
    weftStatus_t (*check)(const struct descriptor *op);
    /* Refuses numbers in memory by which operands are found (lengths, offsets, pages) and that are out of range, with
       the operand, the entry and the range. All integer operands have memory that the host can read; others may have
       none. It runs before the operation does. NULL: there are no such numbers. */
    weftStatus_t (*check_indices)(const struct descriptor *op, const struct bindings *bindings);
    /* The same as instructions over rows (graph/expansion.h), for the engines; NULL: it does not combine rows. */
    weftStatus_t (*expand)(const struct descriptor *op, struct expansion *expansion);
    /* Computes all outputs: the definition. */
    void (*reference)(const struct descriptor *op, const struct bindings *bindings);
    /* Bytes from the start of `out` at which input `in` may lie already, so that writing it there changes nothing; -1:
       it may not. NULL: never. Beside the rows' in_place, which is for inputs that are overwritten. */
    int64_t (*place_in)(const struct descriptor *op, const struct tensor *in, const struct tensor *out);
    /* Of operations that only move elements. How the result lies where its one input does, so that nothing runs; false:
       no strides say it. NULL: never. */
    bool (*look)(const struct descriptor *op, const struct placement *x, struct placement *y);
    /* How the k-th operand lies where the result does, so that it is made in its place. */
    bool (*fit)(const struct descriptor *op, int k, const struct placement *y, struct placement *x);
    /* Bytes of scratch that the reference wants; NULL: none. */
    int64_t (*scratch_bytes)(const struct descriptor *op);
    /* Arithmetic operations of one run; NULL: one per output element. */
    double (*flops)(const struct descriptor *op);
    /* Of those that the reference makes in a second, roughly; 0: 5e7, one element by its index after the other. */
    double reference_rate;
};

/* Finalizes an operation of any kind: resolves inputs, infers, checks. Ops name it as their schema's finalize. */
weftStatus_t op_finalize(struct descriptor *descriptor);

static inline const struct op *op_of(const struct descriptor *descriptor) { return descriptor->schema->op; }

static inline enum role op_role(const struct descriptor *op, const struct row *row) {
    return op_of(op)->role_of ? op_of(op)->role_of(op, row) : row->role;
}

/* A cudnn_strides of operations whose outputs are always packed channels last. */
bool op_channels_last(const struct descriptor *op, const struct tensor *out, struct dims *strides);

/* Operands in row order. `visit` sees each tensor row with the role that it plays in this operation, elements of list
   rows one by one; the row lives as long as the call. It stops at a failure. */
weftStatus_t op_each_operand(const struct descriptor *op,
                             weftStatus_t (*visit)(void *context, const struct row *row, struct tensor *tensor),
                             void *context);

/* A copy that nobody holds, on the tensors that `exchange` gives for its own. */
weftStatus_t op_exchange(struct descriptor **made, const struct descriptor *op,
                         struct tensor *(*exchange)(const void *context, struct tensor *tensor), const void *context,
                         struct arena *arena);

double op_flops(const struct descriptor *op);

/* The type that products of a and b are summed in: `math` where row `name` of `holder` was set; else INT32 for integers
   of 8 bits, INT64 for wider ones, FLOAT for all others. */
weftDataType_t product_math(const struct descriptor *holder, weftBackendAttributeName_t name, int32_t math,
                            const struct tensor *a, const struct tensor *b);

/* ---- Checks that many ops share; each words a failure with the op's and the tensor's names ---- */

weftStatus_t check_rank(const struct descriptor *op, const char *key, const struct tensor *tensor, int64_t least,
                        int64_t most);
/* dims of `tensor` are exactly these; NULL tensors pass. */
weftStatus_t check_dims(const struct descriptor *op, const char *key, const struct tensor *tensor, int64_t rank,
                        const int64_t *dims);
/* Each extent of `tensor` is 1 or equal to the one of `whole`, ranks equal; NULL tensors pass. */
weftStatus_t check_broadcasts(const struct descriptor *op, const char *key, const struct tensor *tensor,
                              const struct tensor *whole);
/* One element, by value or in memory; NULL tensors pass. */
weftStatus_t check_scalar(const struct descriptor *op, const char *key, const struct tensor *tensor);

/* ---- Element access for references: obviously right, not fast ---- */

/* The memory of an operand; data is NULL when tensor is NULL or has no memory in these bindings. */
struct view view_of(const struct bindings *bindings, const struct tensor *tensor);

/* Offset in elements of an index of view->rank numbers. Dimensions of extent 1 ignore their index, so that a view
   broadcasts by itself. */
int64_t view_offset(const struct view *view, const int64_t *index);
double view_load(const struct view *view, const int64_t *index);
/* The element, or `otherwise` of an operand that is absent. */
double view_load_or(const struct view *view, const int64_t *index, double otherwise);
void view_store(const struct view *view, const int64_t *index, double value);
/* Stores unless the operand is absent. */
void view_store_if(const struct view *view, const int64_t *index, double value);
int64_t view_load_int(const struct view *view, const int64_t *index);
void view_store_int(const struct view *view, const int64_t *index, int64_t value);

/* A sum of products: in integers of 64 bits, wrapping around, where a and b are whole and so is the type to calculate
   in, else in double. */
struct sum {
    bool is_exact;
    double real;
    uint64_t whole;
};
struct sum sum_of_products(weftDataType_t math, const struct view *a, const struct view *b);
void sum_add(struct sum *sum, const struct view *a, const int64_t *in_a, const struct view *b, const int64_t *in_b);
void sum_store(const struct sum *sum, const struct view *view, const int64_t *index);

/* The single element of a scalar operand, or `otherwise` when it is absent. */
double view_scalar(const struct bindings *bindings, const struct tensor *tensor, double otherwise);

/* Steps an index through dims in row-major order: for (bool more = index_begin(index, rank, dims); more;
   more = index_next(index, rank, dims)). No step is made when an extent is 0. */
bool index_begin(int64_t *index, int rank, const int64_t *dims);
bool index_next(int64_t *index, int rank, const int64_t *dims);

#endif
