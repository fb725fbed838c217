/* SPDX-License-Identifier: Apache-2.0 */
/* Access to the elements of operands, for references. */
#include "graph/graph.h"

/* A tensor of another graph, or one without a pointer, has no data. */
struct view view_of(const struct bindings *bindings, const struct tensor *tensor) {
    struct view view = {0};
    if (!tensor)
        return view;
    /* Dims and strides belong to the tensor: the view must not outlive it. */
    view.type = (weftDataType_t)tensor->type;
    view.rank = (int)tensor->dims.count;
    view.dims = tensor->dims.at;
    view.strides = tensor->strides.at;
    view.vector_count = tensor->vector_count;
    view.vector_dim = tensor->vector_dim;
    int value = bindings->graph ? graph_find_value(bindings->graph, tensor) : -1;
    view.data = value < 0 ? NULL : bindings->values[value];
    return view;
}

int64_t view_offset(const struct view *view, const int64_t *index) {
    const int64_t *dims = view->dims, *strides = view->strides, vector_count = view->vector_count;
    int64_t offset = 0, lane = 0;
    for (int i = 0, rank = view->rank; i < rank; i++) {
        /* Extents of 1 broadcast: the index may be that of a larger tensor. */
        int64_t at = dims[i] == 1 ? 0 : index[i];
        if (vector_count > 1 && i == view->vector_dim) {
            lane = at % vector_count;
            at /= vector_count;
        }
        offset += at * strides[i];
    }
    /* Strides count whole vectors; the lane is the position within one. */
    return offset * vector_count + lane;
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

/* 64-bit integers are not converted to double, which represents only 53 bits exactly. */
int64_t view_load_int(const struct view *view, const int64_t *index) {
    return dtype_load_i64(view->type, view->data, view_offset(view, index));
}

void view_store_int(const struct view *view, const int64_t *index, int64_t value) {
    dtype_store_i64(view->type, view->data, view_offset(view, index), value);
}

struct sum sum_of_products(weftDataType_t math, const struct view *a, const struct view *b) {
    return (struct sum){.is_exact = !dtype_is_float(math) && !dtype_is_float(a->type) && !dtype_is_float(b->type)};
}

void sum_add(struct sum *sum, const struct view *a, const int64_t *in_a, const struct view *b, const int64_t *in_b) {
    if (sum->is_exact)
        /* Unsigned, because overflow must wrap around like int64_t elements that hold larger sums. */
        sum->integer += (uint64_t)view_load_int(a, in_a) * (uint64_t)view_load_int(b, in_b);
    else
        sum->real += view_load(a, in_a) * view_load(b, in_b);
}

void sum_store(const struct sum *sum, const struct view *view, const int64_t *index) {
    if (sum->is_exact)
        view_store_int(view, index, (int64_t)sum->integer);
    else
        view_store(view, index, sum->real);
}

void view_load_all(const struct view *view, double *numbers) {
    int64_t index[WEFT_DIM_MAX];
    for (bool more = view->data && index_begin(index, view->rank, view->dims); more;
         more = index_next(index, view->rank, view->dims))
        *numbers++ = view_load(view, index);
}

void view_store_all(const struct view *view, const double *numbers) {
    int64_t index[WEFT_DIM_MAX];
    for (bool more = view->data && index_begin(index, view->rank, view->dims); more;
         more = index_next(index, view->rank, view->dims))
        view_store(view, index, *numbers++);
}

int64_t dims_index(const struct dims *dims, const int64_t *index) {
    int64_t offset = 0;
    for (int64_t i = 0; i < dims->count; i++)
        offset = offset * dims->at[i] + (dims->at[i] == 1 ? 0 : index[i]);
    return offset;
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

/* The last dimension is the fastest; after the last index all numbers are 0 again. */
bool index_next(int64_t *index, int rank, const int64_t *dims) {
    for (int i = rank; i-- > 0;) {
        if (++index[i] < dims[i])
            return true;
        index[i] = 0;
    }
    return false;
}
