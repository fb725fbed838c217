/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's fast families, compared with the definitions of the operations: random graphs of pointwise operations,
   whose numbers are chosen so that every result is exact and must agree bit for bit; each mode over many arguments;
   products and convolutions of random shapes, layouts and types with fused epilogues; attention and its gradients.
   Whole buffers are compared to detect writes between the elements or after them. Prints a line per failed check; exits
   non-zero if there was one. The arguments are the first seed and a divisor: 10 runs a tenth of the random cases.
   Without arguments a fifth runs; WEFT_TEST_DAY=<number> selects a different fifth, WEFT_TEST_ALL=1 runs all. */
#include "base/dtype.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"
#include "graph/ops/attention.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed;

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = (random_state ^ (random_state >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t pick(int64_t least, int64_t most) {
    return least + (int64_t)(random_bits() % (uint64_t)(most - least + 1));
}

static bool chance(int percent) { return pick(0, 99) < percent; }

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

enum { OPS = 16, TENSORS = 64 };

/* A graph under construction and all descriptors that it references. */
struct model {
    int op_count, tensor_count;
    struct descriptor *ops[OPS], *parameters[OPS];
    struct tensor *tensors[TENSORS];
    struct graph *graph;
    bool reads_output;           /* an operation has beta != 0 */
    int64_t max_length[TENSORS]; /* maximum of a tensor of sequence lengths; 0: the tensor holds other numbers */
};

static void need(weftStatus_t status) {
    if (status == WEFT_STATUS_SUCCESS)
        return;
    printf("FAILED (seed %llu): %s\n", (unsigned long long)seed, status_text());
    exit(1);
}

static void set_i64(struct descriptor *d, weftBackendAttributeName_t name, int64_t count, const int64_t *numbers) {
    need(descriptor_set(d, name, WEFT_TYPE_INT64, count, numbers));
}

static void set_tensor(struct descriptor *d, weftBackendAttributeName_t name, struct tensor *tensor) {
    need(descriptor_set(d, name, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &tensor));
}

static void set_double(struct descriptor *d, weftBackendAttributeName_t name, double number) {
    need(descriptor_set(d, name, WEFT_TYPE_DOUBLE, 1, &number));
}

/* rank 0: everything is inferred. strides NULL: packed. */
static struct tensor *make_tensor(struct model *model, int64_t rank, const int64_t *dims, const int64_t *strides,
                                  int type, bool is_virtual) {
    struct descriptor *d;
    int64_t uid = model->tensor_count + 1;
    weftDataType_t data_type = (weftDataType_t)type;
    need(descriptor_make(&tensor_schema, &d));
    set_i64(d, WEFT_ATTR_TENSOR_UNIQUE_ID, 1, &uid);
    if (rank)
        set_i64(d, WEFT_ATTR_TENSOR_DIMENSIONS, rank, dims);
    if (rank && strides)
        set_i64(d, WEFT_ATTR_TENSOR_STRIDES, rank, strides);
    if (type != TENSOR_NO_TYPE)
        need(descriptor_set(d, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, 1, &data_type));
    need(descriptor_set(d, WEFT_ATTR_TENSOR_IS_VIRTUAL, WEFT_TYPE_BOOLEAN, 1, &is_virtual));
    need(descriptor_finalize(d));
    return model->tensors[model->tensor_count++] = (struct tensor *)d;
}

/* Computes strides for a random order of dims, sometimes with gaps. */
static void random_strides(int64_t rank, const int64_t *dims, int64_t *strides) {
    int order[WEFT_DIM_MAX];
    int64_t stride = chance(15) ? 2 : 1;
    for (int i = 0; i < rank; i++)
        order[i] = (int)(rank - 1 - i);
    for (int i = 0; i < rank && chance(60); i++) {
        int k = (int)pick(0, rank - 1), kept = order[i];
        order[i] = order[k], order[k] = kept;
    }
    for (int i = 0; i < rank; i++) {
        /* The stride of a dimension of extent 1 is never used, so it may be arbitrarily large. */
        strides[order[i]] = dims[order[i]] == 1 && chance(10) ? INT64_MAX - pick(0, 3) : stride;
        stride = stride * (dims[order[i]] > 0 ? dims[order[i]] : 1) + (chance(15) ? pick(1, 9) : 0);
    }
}

static struct tensor *make_random_tensor(struct model *model, int64_t rank, const int64_t *dims, int type,
                                         bool is_virtual) {
    int64_t strides[WEFT_DIM_MAX];
    random_strides(rank, dims, strides);
    return make_tensor(model, rank, dims, strides, type, is_virtual);
}

struct pointwise_options {
    weftDataType_t math;
    int64_t axis;
    double alpha1, alpha2;
};

static void add_pointwise(struct model *model, int mode, struct tensor *x, struct tensor *b, struct tensor *t,
                          struct tensor *out, const struct pointwise_options *options) {
    struct descriptor *pw, *op;
    bool is_backward = pointwise_find_mode(mode)->form == FORM_BACKWARD;
    float alpha1 = (float)options->alpha1, alpha2 = (float)options->alpha2;
    need(descriptor_make(&pointwise_schema, &pw));
    need(descriptor_set(pw, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, &mode));
    need(descriptor_set(pw, WEFT_ATTR_POINTWISE_MATH_PREC, WEFT_TYPE_DATA_TYPE, 1, &options->math));
    set_double(pw, WEFT_ATTR_POINTWISE_RELU_UPPER_CLIP, 6);
    set_double(pw, WEFT_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0.25);
    set_i64(pw, WEFT_ATTR_POINTWISE_AXIS, 1, &options->axis);
    need(descriptor_finalize(pw));
    need(descriptor_make(&pointwise_op.schema, &op));
    need(descriptor_set(op, WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &pw));
    need(descriptor_set(op, WEFT_ATTR_OPERATION_POINTWISE_ALPHA1, WEFT_TYPE_FLOAT, 1, &alpha1));
    need(descriptor_set(op, WEFT_ATTR_OPERATION_POINTWISE_ALPHA2, WEFT_TYPE_FLOAT, 1, &alpha2));
    set_tensor(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        set_tensor(op, is_backward ? WEFT_ATTR_OPERATION_POINTWISE_DYDESC : WEFT_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t)
        set_tensor(op, WEFT_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_tensor(op, is_backward ? WEFT_ATTR_OPERATION_POINTWISE_DXDESC : WEFT_ATTR_OPERATION_POINTWISE_YDESC, out);
    need(descriptor_finalize(op));
    model->parameters[model->op_count] = pw;
    model->ops[model->op_count++] = op;
}

static void finish_model(struct model *model) {
    struct descriptor *graph;
    need(descriptor_make(&graph_schema, &graph));
    need(
        descriptor_set(graph, WEFT_ATTR_OPERATIONGRAPH_OPS, WEFT_TYPE_BACKEND_DESCRIPTOR, model->op_count, model->ops));
    need(descriptor_finalize(graph));
    model->graph = (struct graph *)graph;
}

static void free_model(struct model *model) {
    descriptor_release(&model->graph->base);
    for (int i = 0; i < model->op_count; i++) {
        descriptor_release(model->ops[i]);
        descriptor_release(model->parameters[i]);
    }
    for (int i = 0; i < model->tensor_count; i++)
        descriptor_release(&model->tensors[i]->base);
}

/* ---- Comparison of a region with the definition ------------------------------------------------------------------ */

enum { MARGIN = 64 }; /* bytes after each buffer that must not change */

struct memory {
    char *expected, *found; /* content of a value's memory; found is NULL inside the region */
    int64_t bytes;
};

/* Visits every element of a tensor, by its offset. */
static bool next_offset(const struct tensor *tensor, int64_t *index, int64_t *offset, bool *is_started) {
    int rank = (int)tensor->dims.count;
    bool more = *is_started ? index_next(index, rank, tensor->dims.at) : index_begin(index, rank, tensor->dims.at);
    *is_started = true;
    *offset = 0;
    for (int i = 0; i < rank; i++)
        *offset += index[i] * tensor->strides.at[i];
    return more;
}

/* Distribution of the inputs. */
enum numbers { HALVES, ANY };

static void fill_input(const struct tensor *tensor, char *memory, enum numbers numbers, int64_t max_length) {
    int64_t index[WEFT_DIM_MAX], offset;
    bool is_started = false;
    while (next_offset(tensor, index, &offset, &is_started)) {
        double value = (double)pick(-8, 8) / 2;
        if (numbers == ANY)
            value = ((double)pick(-1000000, 1000000) + 0.5) / 250000;
        if (max_length)
            value = (double)pick(0, max_length);
        dtype_store((weftDataType_t)tensor->type, memory, offset, value);
    }
}

static struct memory *allocate(const struct model *model, const struct region *region, enum numbers numbers) {
    const struct graph *graph = model->graph;
    struct memory *memories = calloc((size_t)graph->value_count, sizeof *memories);
    for (int v = 0; v < graph->value_count; v++) {
        const struct value *value = &graph->values[v];
        struct memory *memory = &memories[v];
        memory->bytes = tensor_bytes(value->tensor) + MARGIN;
        memory->expected = malloc((size_t)memory->bytes);
        for (int64_t i = 0; i < memory->bytes; i++)
            memory->expected[i] = (char)(i * 37 + 11);
        /* With beta, the previous content of outputs is read, so it must be valid numbers. */
        fill_input(value->tensor, memory->expected, numbers, model->max_length[value->tensor->uid - 1]);
        if (value->producer >= 0 && !region_exports(region, v))
            continue;
        memory->found = malloc((size_t)memory->bytes);
        memcpy(memory->found, memory->expected, (size_t)memory->bytes);
    }
    return memories;
}

static void run_reference(const struct graph *graph, const struct memory *memories) {
    void **values = malloc((size_t)graph->value_count * sizeof *values);
    for (int v = 0; v < graph->value_count; v++)
        values[v] = memories[v].expected;
    for (int n = 0; n < graph->node_count; n++) {
        const struct descriptor *op = graph->nodes[n].op;
        int64_t scratch = op_of(op)->scratch_bytes ? op_of(op)->scratch_bytes(op) : 0;
        struct bindings bindings = {graph, values, malloc((size_t)scratch + 1)};
        op_of(op)->reference(op, &bindings);
        free(bindings.scratch);
    }
    free(values);
}

/* Lets outputs alias inputs where the family allows it. */
static void alias_some(const struct family *family, const struct region *region, const struct memory *memories,
                       void **values) {
    const struct graph *graph = region->graph;
    const struct step step = {.family = family, .region = *region};
    for (int out = 0; out < graph->value_count; out++)
        for (int in = 0; in < graph->value_count && graph->values[out].producer >= 0 && memories[out].found; in++) {
            if (graph->values[in].producer >= 0 || values[in] != memories[in].found || !family->may_alias ||
                !family->may_alias(&step, in, out))
                continue;
            values[in] = memories[out].found;
            memcpy(memories[out].found, memories[in].found, (size_t)memories[in].bytes);
            memcpy(memories[out].expected, memories[in].found, (size_t)memories[in].bytes);
            break;
        }
}

static void run_family(const struct family *family, const struct region *region, const struct device *device,
                       void *const *values) {
    struct arena arena = {0};
    struct step step = {.family = family, .region = *region};
    need(family->build(&step, device, NULL, &arena));
    char *workspace = malloc((size_t)step.workspace_bytes + 64);
    need(family->run(&step, values, workspace + (-(uintptr_t)workspace & 63), NULL));
    free(workspace);
    arena_free(&arena);
}

/* The distance between adjacent numbers of a type around 1. */
static double resolution(weftDataType_t type) {
    const struct dtype *row = dtype_of(type);
    return row->is_float ? ldexp(1, -row->mantissa_bits) : 0;
}

/* Lower bound on the magnitude that determines the rounding step of a narrow type. Larger values account for factors
   that were rounded to that type. */
static double least = 0x1p-6;

/* Allows an error of `ulps` float resolutions of the numbers that the result is computed from, plus one step of the
   result's type. */
static bool is_near(weftDataType_t type, double expected, double found, double ulps, double magnitude) {
    if (isnan(expected) || isnan(found) || isinf(expected))
        return isnan(expected) ? isnan(found) : expected == found;
    double error = ulps * ldexp(magnitude + fabs(expected), -23);
    if (type != WEFT_DATA_FLOAT && type != WEFT_DATA_DOUBLE && ulps > 0)
        error += dtype_of(type)->is_float ? fmax(fabs(expected), least) * resolution(type) : 1;
    return fabs(expected - found) <= error;
}

static void compare(const struct graph *graph, const struct memory *memories, double ulps, double magnitude,
                    const char *what) {
    for (int v = 0; v < graph->value_count; v++) {
        const struct tensor *tensor = graph->values[v].tensor;
        const struct memory *memory = &memories[v];
        weftDataType_t type = (weftDataType_t)tensor->type;
        int64_t index[WEFT_DIM_MAX], offset, wrong = 0;
        bool is_started = false;
        while (memory->found && next_offset(tensor, index, &offset, &is_started)) {
            double expected = dtype_load(type, memory->expected, offset);
            double found = dtype_load(type, memory->found, offset);
            if (!is_near(type, expected, found, ulps, magnitude) && wrong++ == 0)
                CHECK(false, "%s: tensor %lld, %s %s, offset %lld: expected %.9g, found %.9g", what,
                      (long long)tensor->uid, dtype_of(type)->name, tensor_dims_text(tensor), (long long)offset,
                      expected, found);
            dtype_store(type, memory->expected, offset, 0);
            dtype_store(type, memory->found, offset, 0);
        }
        CHECK(wrong == 0, "%s: tensor %lld: %lld elements differ", what, (long long)tensor->uid, (long long)wrong);
        CHECK(!memory->found || memcmp(memory->expected, memory->found, (size_t)memory->bytes) == 0,
              "%s: tensor %lld: bytes between or behind the elements changed", what, (long long)tensor->uid);
    }
}

/* Runs all nodes as one region of a family. Returns true if the family accepted it. */
static bool check_model(struct model *model, const struct family *family, enum numbers numbers, double ulps,
                        double magnitude, const char *kind) {
    int nodes[OPS];
    char what[64];
    snprintf(what, sizeof what, "%s, seed %llu", kind, (unsigned long long)seed);
    struct device device = {.kind = WEFT_DEVICE_CPU, .threads = threads_count()};
    struct offer offer = {.family = family};
    finish_model(model);
    for (int i = 0; i < model->op_count; i++)
        nodes[i] = i;
    struct region region = {.graph = model->graph, .count = model->op_count, .nodes = nodes};
    weftStatus_t status = family->accepts(&region, &device, &offer);
    CHECK(status != WEFT_STATUS_SUCCESS || offer.seconds > 0, "%s: predicts %g seconds", what, offer.seconds);
    if (status == WEFT_STATUS_SUCCESS) {
        struct memory *memories = allocate(model, &region, numbers);
        void *values[TENSORS];
        for (int v = 0; v < model->graph->value_count; v++)
            values[v] = memories[v].found;
        if (chance(50) && !model->reads_output)
            alias_some(family, &region, memories, values);
        run_reference(model->graph, memories);
        run_family(family, &region, &device, values);
        compare(model->graph, memories, ulps, magnitude, what);
        for (int v = 0; v < model->graph->value_count; v++) {
            free(memories[v].expected);
            free(memories[v].found);
        }
        free(memories);
    }
    free_model(model);
    return status == WEFT_STATUS_SUCCESS;
}

/* ---- Random graphs of exact operations --------------------------------------------------------------------------- */

static const int EXACT_MODES[] = {
    WEFT_POINTWISE_ADD,         WEFT_POINTWISE_SUB,           WEFT_POINTWISE_MUL,       WEFT_POINTWISE_MAX,
    WEFT_POINTWISE_MIN,         WEFT_POINTWISE_ABS,           WEFT_POINTWISE_CEIL,      WEFT_POINTWISE_FLOOR,
    WEFT_POINTWISE_NEG,         WEFT_POINTWISE_IDENTITY,      WEFT_POINTWISE_RELU_FWD,  WEFT_POINTWISE_RELU_BWD,
    WEFT_POINTWISE_CMP_EQ,      WEFT_POINTWISE_CMP_GT,        WEFT_POINTWISE_CMP_LE,    WEFT_POINTWISE_LOGICAL_AND,
    WEFT_POINTWISE_LOGICAL_NOT, WEFT_POINTWISE_BINARY_SELECT, WEFT_POINTWISE_GEN_INDEX, WEFT_POINTWISE_ADD_SQUARE,
};

static int random_type(void) {
    static const int types[] = {
        WEFT_DATA_FLOAT,    WEFT_DATA_FLOAT,   WEFT_DATA_FLOAT,        WEFT_DATA_HALF,
        WEFT_DATA_BFLOAT16, WEFT_DATA_DOUBLE,  WEFT_DATA_INT8,         WEFT_DATA_FP8_E5M2,
        WEFT_DATA_INT32,    WEFT_DATA_BOOLEAN, WEFT_DATA_BYTE_BOOLEAN, WEFT_DATA_UINT8,
        WEFT_DATA_INT64,    WEFT_DATA_UINT32,  WEFT_DATA_INT4,         WEFT_DATA_FP4_E2M1,
    };
    return types[pick(0, sizeof types / sizeof *types - 1)];
}

static void random_dims(int64_t *rank, int64_t *dims) {
    static const int64_t extents[] = {1, 2, 3, 5, 8, 16, 33};
    *rank = pick(1, 5);
    for (int i = 0; i < *rank; i++)
        dims[i] = extents[pick(0, 6)];
    if (chance(20)) /* long rows and many blocks */
        dims[pick(0, *rank - 1)] = pick(500, 3000);
    if (chance(3))
        dims[pick(0, *rank - 1)] = 0;
    int64_t elements = 1;
    for (int i = 0; i < *rank; i++) {
        elements *= dims[i];
        dims[i] = elements > 200000 ? 1 : dims[i];
        elements = elements > 200000 ? elements / dims[i] : elements;
    }
}

/* An operand of an operation on `dims`: an earlier result or a new input that broadcasts. */
static struct tensor *random_operand(struct model *model, struct tensor **results, int result_count, int64_t rank,
                                     const int64_t *dims) {
    static const int64_t one[] = {1};
    int64_t some[WEFT_DIM_MAX];
    if (result_count && chance(60))
        return results[pick(0, result_count - 1)];
    if (chance(15))
        return make_tensor(model, 1, one, NULL, random_type(), false);
    for (int i = 0; i < rank; i++)
        some[i] = dims[i] == 0 || chance(65) ? dims[i] : 1;
    return make_random_tensor(model, rank, some, random_type(), false);
}

static bool check_random_map(void) {
    struct model model = {0};
    int64_t rank, dims[WEFT_DIM_MAX];
    struct tensor *results[OPS];
    int count = (int)pick(1, 8), products = 0;
    random_dims(&rank, dims);
    for (int i = 0; i < count; i++) {
        int mode = EXACT_MODES[pick(0, sizeof EXACT_MODES / sizeof *EXACT_MODES - 1)];
        bool is_product = mode == WEFT_POINTWISE_MUL || mode == WEFT_POINTWISE_ADD_SQUARE;
        mode = is_product && products++ ? WEFT_POINTWISE_ADD : mode;
        enum pointwise_form form = pointwise_find_mode(mode)->form;
        struct tensor *x = random_operand(&model, results, i, rank, dims), *b = NULL, *t = NULL;
        if (form == FORM_BINARY || form == FORM_SELECT || form == FORM_BACKWARD)
            b = random_operand(&model, results, i, rank, dims);
        if (form == FORM_SELECT)
            t = random_operand(&model, results, i, rank, dims);
        struct pointwise_options options = {
            .math = WEFT_DATA_FLOAT, .axis = pick(0, rank - 1), .alpha1 = 1, .alpha2 = 1};
        if (chance(15) && pointwise_integer_evaluator(mode))
            options.math = chance(50) ? WEFT_DATA_INT32 : WEFT_DATA_BOOLEAN;
        else if (chance(15))
            options.math = WEFT_DATA_DOUBLE;
        if (chance(20) && dtype_is_float(options.math))
            options.alpha1 = 0.5, options.alpha2 = -2;
        results[i] = make_random_tensor(&model, rank, dims, random_type(), i + 1 < count && chance(70));
        add_pointwise(&model, mode, x, b, t, results[i], &options);
    }
    return check_model(&model, &cpu_map, HALVES, 0, 0, "map");
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Adds an epilogue to a result: some of bias, residual, activation; sometimes the result itself is an output, too. */
static void add_random_tail(struct model *model, struct tensor *result, enum numbers numbers) {
    int64_t rank = result->dims.count, some[WEFT_DIM_MAX];
    struct pointwise_options options = {.math = WEFT_DATA_FLOAT, .axis = 1, .alpha1 = 1, .alpha2 = 1};
    int count = (int)pick(1, 3);
    struct tensor *before = result;
    if (!result->is_virtual && chance(50))
        return;
    for (int i = 0; i < count; i++) {
        static const int smooth[] = {WEFT_POINTWISE_RELU_FWD, WEFT_POINTWISE_TANH_FWD, WEFT_POINTWISE_GELU_FWD,
                                     WEFT_POINTWISE_IDENTITY};
        static const int types[] = {WEFT_DATA_FLOAT, WEFT_DATA_HALF, WEFT_DATA_BFLOAT16, WEFT_DATA_DOUBLE};
        for (int k = 0; k < rank; k++)
            some[k] = chance(60) ? result->dims.at[k] : 1;
        struct tensor *b = NULL;
        int mode = smooth[numbers == HALVES ? 0 : pick(0, 3)];
        if (chance(60)) {
            mode = numbers == HALVES || chance(80) ? WEFT_POINTWISE_ADD : WEFT_POINTWISE_MUL;
            b = make_random_tensor(model, rank, some, types[pick(0, 3)], false);
        }
        bool is_last = i + 1 == count;
        struct tensor *out = make_random_tensor(model, rank, result->dims.at,
                                                is_last ? types[pick(0, 3)] : WEFT_DATA_FLOAT, !is_last && chance(70));
        add_pointwise(model, mode, before, b, NULL, out, &options);
        before = out;
    }
}

/* Operand types and compute type of a product. */
static const struct {
    int a, b, c, math;
} PRODUCT_TYPES[] = {
    {WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, WEFT_DATA_FLOAT},
    {WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, WEFT_DATA_HALF, WEFT_DATA_FLOAT},
    {WEFT_DATA_HALF, WEFT_DATA_HALF, WEFT_DATA_HALF, WEFT_DATA_FLOAT},
    {WEFT_DATA_BFLOAT16, WEFT_DATA_BFLOAT16, WEFT_DATA_FLOAT, WEFT_DATA_FLOAT},
    {WEFT_DATA_FP8_E4M3, WEFT_DATA_FP8_E5M2, WEFT_DATA_BFLOAT16, WEFT_DATA_FLOAT},
    {WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE},
    {WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE},
    {WEFT_DATA_INT8, WEFT_DATA_INT8, WEFT_DATA_INT32, WEFT_DATA_INT32},
    {WEFT_DATA_INT8, WEFT_DATA_UINT8, WEFT_DATA_FLOAT, WEFT_DATA_FLOAT},
};
enum { PRODUCT_TYPE_COUNT = sizeof PRODUCT_TYPES / sizeof *PRODUCT_TYPES };

static struct descriptor *make_matmul_parameters(int math) {
    struct descriptor *d;
    weftDataType_t type = (weftDataType_t)math;
    need(descriptor_make(&matmul_schema, &d));
    need(descriptor_set(d, WEFT_ATTR_MATMUL_COMP_TYPE, WEFT_TYPE_DATA_TYPE, 1, &type));
    need(descriptor_finalize(d));
    return d;
}

/* In half of the products, the sums are exact. */
static bool check_product(struct model *model, struct tensor *result, int math, int64_t depth, const char *what) {
    bool is_narrow = result->type == WEFT_DATA_HALF || result->type == WEFT_DATA_BFLOAT16;
    enum numbers numbers = math == WEFT_DATA_INT32 || chance(50) ? HALVES : ANY;
    double ulps = numbers == HALVES ? 0 : math == WEFT_DATA_DOUBLE && model->op_count == 1 ? 1e-6 : 4;
    add_random_tail(model, result, numbers);
    ulps = ulps > 0 && model->op_count > 1 ? 4 : ulps;
    return check_model(model, &cpu_contraction, numbers, ulps, (is_narrow ? 131072 : 16) * (double)(depth + 1), what);
}

static bool check_random_matmul(void) {
    static const int64_t sizes[] = {1, 2, 7, 12, 16, 31, 64, 100}, batches[] = {1, 2, 3, 4};
    struct model model = {0};
    int types = (int)pick(0, PRODUCT_TYPE_COUNT - 1);
    int64_t batch_rank = pick(0, 3), rank = batch_rank + 2;
    int64_t a[WEFT_DIM_MAX], b[WEFT_DIM_MAX], c[WEFT_DIM_MAX], depth = chance(10) ? 700 : sizes[pick(0, 7)];
    for (int i = 0; i < batch_rank; i++) {
        c[i] = batches[pick(0, 3)];
        a[i] = chance(60) ? c[i] : 1;
        b[i] = a[i] < c[i] || chance(60) ? c[i] : c[i] % 2 == 0 && chance(50) ? 2 : 1;
    }
    depth = chance(3) ? 0 : depth;
    a[rank - 2] = c[rank - 2] = chance(5) ? 1100 : sizes[pick(0, 7)];
    b[rank - 1] = c[rank - 1] = sizes[pick(0, 7)];
    a[rank - 1] = b[rank - 2] = depth;
    struct tensor *left = make_random_tensor(&model, rank, a, PRODUCT_TYPES[types].a, false);
    struct tensor *right = make_random_tensor(&model, rank, b, PRODUCT_TYPES[types].b, false);
    struct tensor *result = make_random_tensor(&model, rank, c, PRODUCT_TYPES[types].c, chance(50));
    struct descriptor *op, *parameters = make_matmul_parameters(PRODUCT_TYPES[types].math);
    need(descriptor_make(&matmul_op.schema, &op));
    need(descriptor_set(op, WEFT_ATTR_OPERATION_MATMUL_DESC, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &parameters));
    set_tensor(op, WEFT_ATTR_OPERATION_MATMUL_ADESC, left);
    set_tensor(op, WEFT_ATTR_OPERATION_MATMUL_BDESC, right);
    set_tensor(op, WEFT_ATTR_OPERATION_MATMUL_CDESC, result);
    need(descriptor_finalize(op));
    model.parameters[model.op_count] = parameters;
    model.ops[model.op_count++] = op;
    return check_product(&model, result, PRODUCT_TYPES[types].math, depth, "matmul");
}

static struct descriptor *make_conv_parameters(int math, bool flip, int spatial, const int64_t *const *lists) {
    static const weftBackendAttributeName_t names[] = {
        WEFT_ATTR_CONVOLUTION_FILTER_STRIDES, WEFT_ATTR_CONVOLUTION_DILATIONS, WEFT_ATTR_CONVOLUTION_PRE_PADDINGS,
        WEFT_ATTR_CONVOLUTION_POST_PADDINGS};
    struct descriptor *d;
    weftDataType_t type = (weftDataType_t)math;
    weftConvolutionMode_t mode = flip ? WEFT_CONVOLUTION : WEFT_CROSS_CORRELATION;
    need(descriptor_make(&convolution_schema, &d));
    need(descriptor_set(d, WEFT_ATTR_CONVOLUTION_COMP_TYPE, WEFT_TYPE_DATA_TYPE, 1, &type));
    need(descriptor_set(d, WEFT_ATTR_CONVOLUTION_CONV_MODE, WEFT_TYPE_CONVOLUTION_MODE, 1, &mode));
    for (int i = 0; i < 4; i++)
        set_i64(d, names[i], spatial, lists[i]);
    need(descriptor_finalize(d));
    return d;
}

/* The attributes of the three operations, in the order x, w, y, parameters, alpha, beta. */
static const struct {
    const struct op *op;
    weftBackendAttributeName_t names[6];
} CONVOLUTIONS[] = {
    {&conv_fprop_op,
     {WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
      WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA}},
    {&conv_dgrad_op,
     {WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
      WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA}},
    {&conv_wgrad_op,
     {WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
      WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}},
};

/* Dims of x, w and y, and the convolution's parameters. */
struct conv_shape {
    int spatial;
    int64_t rank, x[5 + 1], w[5 + 1], y[5 + 1];
    int64_t stride[3], dilation[3], pre[3], post[3];
};

static void random_conv_shape(struct conv_shape *s) {
    static const int64_t group_counts[] = {1, 1, 1, 2, 3};
    bool has_group_dim = chance(20), is_depthwise = chance(20);
    int64_t groups = group_counts[pick(0, 4)], n = pick(1, 3);
    int64_t c = chance(70) ? pick(1, 6) : pick(16, 40), k = chance(70) ? pick(1, 6) : pick(16, 40);
    if (is_depthwise)
        groups = pick(2, 20), c = k = 1;
    int first = has_group_dim ? 3 : 2;
    s->spatial = (int)pick(1, 3);
    s->rank = first + s->spatial;
    s->x[0] = s->y[0] = n;
    s->x[1] = has_group_dim ? groups : groups * c;
    s->y[1] = has_group_dim ? groups : groups * k;
    s->w[0] = has_group_dim ? groups : groups * k;
    s->w[1] = has_group_dim ? k : c;
    if (has_group_dim)
        s->x[2] = s->w[2] = c, s->y[2] = k;
    for (int i = 0; i < s->spatial; i++) {
        int64_t taps = pick(1, 4), span;
        s->stride[i] = chance(50) ? 1 : pick(2, 4);
        s->dilation[i] = chance(60) ? 1 : pick(2, 3);
        s->pre[i] = chance(50) ? 0 : pick(-1, 3);
        s->post[i] = chance(50) ? s->pre[i] : pick(-1, 3);
        span = s->dilation[i] * (taps - 1) + 1;
        int64_t size = pick(1, s->spatial == 1 ? 90 : s->spatial == 2 ? 14 : 6);
        while (size + s->pre[i] + s->post[i] < span)
            size++;
        s->x[first + i] = size;
        s->w[first + i] = taps;
        s->y[first + i] = 1 + (size + s->pre[i] + s->post[i] - span) / s->stride[i];
    }
}

static bool check_random_conv(void) {
    struct conv_shape s;
    struct model model = {0};
    int types = (int)pick(0, PRODUCT_TYPE_COUNT - 1), direction = (int)pick(0, 2), math = PRODUCT_TYPES[types].math;
    random_conv_shape(&s);
    const int64_t *dims[] = {s.x, s.w, s.y}, *lists[] = {s.stride, s.dilation, s.pre, s.post};
    int output = direction == 0 ? 2 : direction == 1 ? 0 : 1;
    bool has_scales = chance(30);
    struct tensor *tensors[3];
    for (int i = 0; i < 3; i++) {
        int type = i == output             ? PRODUCT_TYPES[types].c
                   : i == (output + 1) % 3 ? PRODUCT_TYPES[types].a
                                           : PRODUCT_TYPES[types].b;
        tensors[i] = make_random_tensor(&model, s.rank, dims[i], type, i == output && !has_scales && chance(50));
    }
    struct descriptor *op, *parameters = make_conv_parameters(math, chance(30), s.spatial, lists);
    need(descriptor_make(&CONVOLUTIONS[direction].op->schema, &op));
    for (int i = 0; i < 3; i++)
        set_tensor(op, CONVOLUTIONS[direction].names[i], tensors[i]);
    need(descriptor_set(op, CONVOLUTIONS[direction].names[3], WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &parameters));
    set_double(op, CONVOLUTIONS[direction].names[4], has_scales ? 0.5 : 1);
    set_double(op, CONVOLUTIONS[direction].names[5], has_scales && chance(60) ? -2 : 0);
    need(descriptor_finalize(op));
    model.reads_output = has_scales;
    model.parameters[model.op_count] = parameters;
    model.ops[model.op_count++] = op;
    int64_t depth = s.x[0];
    for (int i = 1; i < s.rank; i++)
        depth *= direction == 2 ? (i < s.rank - s.spatial ? 1 : s.y[i]) : s.w[i];
    return check_product(&model, tensors[output], math, depth, CONVOLUTIONS[direction].op->schema.name);
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* The names of one attribute in both operations. */
#define OF_SDPA(name) (is_backward ? WEFT_ATTR_OPERATION_SDPA_BWD_##name : WEFT_ATTR_OPERATION_SDPA_FWD_##name)

static const int ATTENTION_TYPES[] = {WEFT_DATA_FLOAT, WEFT_DATA_HALF, WEFT_DATA_BFLOAT16};

static struct tensor *make_operand(struct model *model, int64_t b, int64_t h, int64_t s, int64_t d, int type) {
    return make_random_tensor(model, 4, (const int64_t[]){b, h, s, d}, type, false);
}

static struct tensor *make_lengths(struct model *model, int64_t batch, int64_t max_length) {
    model->max_length[model->tensor_count] = max_length;
    return make_operand(model, batch, 1, 1, 1, WEFT_DATA_INT32);
}

/* Adds a random subset of the optional inputs of scores. */
static void add_terms(struct model *model, struct descriptor *op, bool is_backward, const int64_t *scores) {
    int64_t dims[4];
    if (chance(40)) {
        for (int i = 0; i < 4; i++)
            dims[i] = chance(70) ? scores[i] : 1;
        int type = chance(25) ? WEFT_DATA_BYTE_BOOLEAN : ATTENTION_TYPES[pick(0, 2)];
        set_tensor(op, OF_SDPA(BIAS_DESC_EXT), make_random_tensor(model, 4, dims, type, false));
        if (is_backward && type != WEFT_DATA_BYTE_BOOLEAN && chance(70))
            set_tensor(op, WEFT_ATTR_OPERATION_SDPA_BWD_DBIAS_DESC,
                       make_random_tensor(model, 4, dims, WEFT_DATA_FLOAT, false));
    }
    if (chance(30))
        set_tensor(op,
                   is_backward ? WEFT_ATTR_OPERATION_SDPA_BWD_SINK_DESC : WEFT_ATTR_OPERATION_SDPA_FWD_SINK_DESC_EXT,
                   make_operand(model, 1, scores[1], 1, 1, WEFT_DATA_FLOAT));
    if (chance(15))
        set_tensor(op, OF_SDPA(SEQ_LEN_KVDESC), make_lengths(model, scores[0], scores[3]));
    if (chance(15))
        set_tensor(op, OF_SDPA(SEQ_LEN_QDESC), make_lengths(model, scores[0], scores[2]));
    if (chance(15))
        set_tensor(op,
                   is_backward ? WEFT_ATTR_OPERATION_SDPA_BWD_BLOCK_MASK_DESC_EXT
                               : WEFT_ATTR_OPERATION_SDPA_FWD_BLOCK_MASK_DESC,
                   make_operand(model, scores[0], 1, (scores[2] + 127) / 128, (scores[3] + 127) / 128, WEFT_DATA_INT8));
    if (chance(20)) {
        float probability = 0.25f;
        need(descriptor_set(op, OF_SDPA(DROPOUT_PROBABILITY), WEFT_TYPE_FLOAT, 1, &probability));
        set_tensor(op, OF_SDPA(DROPOUT_SEED_DESC), make_operand(model, 1, 1, 1, 1, WEFT_DATA_INT64));
    }
}

static void set_options(struct descriptor *op, bool is_backward, int64_t depth) {
    int64_t right = pick(-3, 40), left = pick(0, 150), alignment = pick(0, 1);
    bool alibi = chance(20);
    set_double(op, OF_SDPA(SCALE_VALUE_EXT), 1.0 / (double)depth);
    if (chance(50))
        set_i64(op, OF_SDPA(RIGHT_BOUND_EXT), 1, &right);
    if (chance(30))
        set_i64(op, OF_SDPA(LEFT_BOUND_EXT), 1, &left);
    set_i64(op, OF_SDPA(ALIGNMENT_EXT), 1, &alignment);
    need(descriptor_set(op, OF_SDPA(ALIBI_EXT), WEFT_TYPE_BOOLEAN, 1, &alibi));
}

static void add_results(struct model *model, struct descriptor *op, const int64_t *s, const int64_t *heads,
                        int64_t depth, int64_t value_depth, int type) {
    bool is_backward = op->schema->op == &sdpa_bwd_op;
    struct tensor *o = make_operand(model, s[0], s[1], s[2], value_depth, type);
    set_tensor(op, OF_SDPA(ODESC), o);
    if (is_backward || chance(60))
        set_tensor(op, OF_SDPA(STATSDESC), make_operand(model, s[0], s[1], s[2], 1, WEFT_DATA_FLOAT));
    if (!is_backward)
        return;
    set_tensor(op, WEFT_ATTR_OPERATION_SDPA_BWD_DODDESC, make_operand(model, s[0], s[1], s[2], value_depth, type));
    set_tensor(op, WEFT_ATTR_OPERATION_SDPA_BWD_DQDESC, make_operand(model, s[0], s[1], s[2], depth, type));
    set_tensor(op, WEFT_ATTR_OPERATION_SDPA_BWD_DKDESC, make_operand(model, s[0], heads[1], s[3], depth, type));
    set_tensor(op, WEFT_ATTR_OPERATION_SDPA_BWD_DVDESC, make_operand(model, s[0], heads[2], s[3], value_depth, type));
}

static bool check_random_attention(bool is_backward) {
    static const int64_t head_counts[][3] = {{2, 2, 2}, {4, 2, 2}, {6, 1, 1}, {6, 2, 3}, {1, 1, 1}};
    static const int64_t rows[] = {1, 2, 6, 31, 33, 70}, keys[] = {1, 6, 127, 129, 300, 1100};
    static const int64_t depths[] = {1, 3, 8, 33, 64, 70};
    struct model model = {0};
    struct descriptor *op;
    const int64_t *heads = head_counts[pick(0, 4)];
    int type = ATTENTION_TYPES[pick(0, 2)];
    int64_t s[] = {pick(1, 2), heads[0], rows[pick(0, 5)], keys[pick(0, 5)]};
    int64_t depth = depths[pick(0, 5)], value_depth = depths[pick(0, 5)];
    need(descriptor_make(is_backward ? &sdpa_bwd_op.schema : &sdpa_fwd_op.schema, &op));
    set_tensor(op, OF_SDPA(QDESC), make_operand(&model, s[0], heads[0], s[2], depth, type));
    set_tensor(op, OF_SDPA(KDESC), make_operand(&model, s[0], heads[1], s[3], depth, type));
    set_tensor(op, OF_SDPA(VDESC), make_operand(&model, s[0], heads[2], s[3], value_depth, type));
    add_results(&model, op, s, heads, depth, value_depth, type);
    add_terms(&model, op, is_backward, s);
    set_options(op, is_backward, depth);
    need(descriptor_finalize(op));
    model.ops[model.op_count++] = op;
    /* Gradients are sums over queries or keys, and each term is a sum over the depth of the values. */
    double magnitude = is_backward ? 64 * (double)((value_depth + 1) * (s[3] > s[2] ? s[3] : s[2])) : 1024;
    /* Each bf16 weight is off by up to half a step; values are up to 4, and dropout scales by 4 / 3. */
    double before = least;
    least = type == WEFT_DATA_BFLOAT16 && !is_backward ? 3 : before;
    bool is_served = check_model(&model, &cpu_attention, ANY, 4, magnitude, is_backward ? "gradients" : "attention");
    least = before;
    return is_served;
}

/* ---- Each mode --------------------------------------------------------------------------------------------------- */

/* Modes with a discontinuity: float arithmetic may compute the value on its other side. */
static bool mode_jumps(int mode) { return mode == WEFT_POINTWISE_MOD || mode == WEFT_POINTWISE_FLOOR_MOD; }

static void check_mode(const struct pointwise_mode *mode, int type, weftDataType_t math) {
    struct model model = {0};
    static const int64_t dims[] = {3, 401};
    struct pointwise_options options = {.math = math, .axis = 1, .alpha1 = 1, .alpha2 = 1};
    struct tensor *x = make_tensor(&model, 2, dims, NULL, type, false), *b = NULL, *t = NULL;
    if (mode->form == FORM_BINARY || mode->form == FORM_SELECT || mode->form == FORM_BACKWARD)
        b = make_tensor(&model, 2, dims, NULL, type, false);
    if (mode->form == FORM_SELECT)
        t = make_tensor(&model, 2, dims, NULL, WEFT_DATA_BYTE_BOOLEAN, false);
    add_pointwise(&model, (int)mode->mode, x, b, t, make_tensor(&model, 2, dims, NULL, type, false), &options);
    bool is_double = type == WEFT_DATA_DOUBLE || math == WEFT_DATA_DOUBLE;
    if (mode_jumps((int)mode->mode) && !is_double)
        free_model((finish_model(&model), &model));
    else
        CHECK(check_model(&model, &cpu_map, ANY, is_double ? 1e-6 : 8, 4, mode->name), "%s is declined", mode->name);
}

static void check_modes(void) {
    for (int i = 0; i < pointwise_mode_count(); i++) {
        seed = (uint64_t)i;
        check_mode(pointwise_mode_at(i), WEFT_DATA_FLOAT, WEFT_DATA_FLOAT);
        check_mode(pointwise_mode_at(i), WEFT_DATA_DOUBLE, WEFT_DATA_DOUBLE);
        check_mode(pointwise_mode_at(i), WEFT_DATA_FLOAT, WEFT_DATA_DOUBLE);
        check_mode(pointwise_mode_at(i), WEFT_DATA_BFLOAT16, WEFT_DATA_FLOAT);
    }
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void check_refusal(struct model *model, const struct family *family, const char *expected) {
    struct device device = {.kind = WEFT_DEVICE_CPU, .threads = 1};
    int nodes[OPS] = {0, 1, 2};
    struct offer offer = {.family = family};
    finish_model(model);
    struct region region = {.graph = model->graph, .count = model->op_count, .nodes = nodes};
    weftStatus_t status = family->accepts(&region, &device, &offer);
    CHECK(status != WEFT_STATUS_SUCCESS && strcmp(status_text(), expected) == 0, "expected '%s', got '%s'", expected,
          status == WEFT_STATUS_SUCCESS ? "yes" : status_text());
    free_model(model);
}

static void check_map_refusals(void) {
    static const int64_t small[] = {1, 8}, large[] = {4, 8};
    struct pointwise_options options = {.math = WEFT_DATA_FLOAT, .axis = 0, .alpha1 = 1, .alpha2 = 1};
    struct model model = {0};
    struct tensor *x = make_tensor(&model, 2, small, NULL, WEFT_DATA_FLOAT, false);
    struct tensor *middle = make_tensor(&model, 2, small, NULL, WEFT_DATA_FLOAT, true);
    struct tensor *b = make_tensor(&model, 2, large, NULL, WEFT_DATA_FLOAT, false);
    add_pointwise(&model, WEFT_POINTWISE_EXP, x, NULL, NULL, middle, &options);
    add_pointwise(&model, WEFT_POINTWISE_ADD, middle, b, NULL,
                  make_tensor(&model, 2, large, NULL, WEFT_DATA_FLOAT, false), &options);
    check_refusal(&model, &cpu_map,
                  "pointwise produces dims [1,8] in a region with dims [4,8]. Only operations whose results have the "
                  "same dims are fused.");
    model = (struct model){0};
    options.math = WEFT_DATA_INT64;
    x = make_tensor(&model, 2, large, NULL, WEFT_DATA_INT64, false);
    add_pointwise(&model, WEFT_POINTWISE_ADD, x, x, NULL, make_tensor(&model, 2, large, NULL, WEFT_DATA_INT64, false),
                  &options);
    check_refusal(&model, &cpu_map,
                  "pointwise: ADD in i64 arithmetic on its operands may need more than the 53 bits of a double. Use "
                  "FLOAT or smaller integers.");
}

int main(int argc, char **argv) {
    int share = argc > 2 ? atoi(argv[2]) : argc > 1 || tests_all() ? 1 : 5;
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1 + (uint64_t)(test_day() % share) * 1000;
    int maps = 0;
    RUN(check_modes());
    RUN(check_map_refusals());
    for (seed = first; seed < first + 1000 / share; seed++) {
        random_state = seed * 1000003;
        maps += check_random_map();
    }
    int matmuls = 0;
    for (seed = first; seed < first + 300 / share; seed++) {
        random_state = seed * 1000003;
        matmuls += check_random_matmul();
    }
    int attentions = 0;
    for (seed = first; seed < first + 60 / share; seed++) {
        random_state = seed * 1000003;
        attentions += check_random_attention(seed % 2);
    }
    CHECK(attentions == 60 / share, "only %d of 60 random attentions were taken", attentions);
    CHECK(matmuls > 250 / share, "only %d of 300 random matmuls were taken", matmuls);
    int convs = 0;
    for (seed = first; seed < first + 500 / share; seed++) {
        random_state = seed * 1000003;
        convs += check_random_conv();
    }
    CHECK(convs > 450 / share, "only %d of 500 random convolutions were taken", convs);
    CHECK(maps > 500 / share, "only %d of 1000 random maps were taken", maps);
    return harness_end();
}
