/* SPDX-License-Identifier: Apache-2.0 */
/* Details of cuDNN's interface on which programs depend, on the CPU: a C program that is written for cuDNN, compiled
   with cudnn.h and linked to libcudnn.so.9. It runs under sanitizers, and without them against the release library. */
#include <cudnn.h>

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            char text[1024];                                                                                           \
            cudnnGetLastErrorString(text, sizeof text);                                                                \
            pthread_mutex_lock(&lock);                                                                                 \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, text);                                           \
            failures++;                                                                                                \
            pthread_mutex_unlock(&lock);                                                                               \
        }                                                                                                              \
    } while (0)

/* True if the thread's last message contains the text. */
static bool message_has(const char *text) {
    char message[1024];
    cudnnGetLastErrorString(message, sizeof message);
    return strstr(message, text) != NULL;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

typedef cudnnBackendDescriptor_t desc;

static desc create(cudnnBackendDescriptorType_t kind) {
    desc created = NULL;
    EXPECT(cudnnBackendCreateDescriptor(kind, &created) == CUDNN_STATUS_SUCCESS);
    return created;
}

static void set(desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *elements) {
    EXPECT(cudnnBackendSetAttribute(d, name, type, count, elements) == CUDNN_STATUS_SUCCESS);
}

static void set_desc(desc d, cudnnBackendAttributeName_t name, desc value) {
    set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(desc d) { EXPECT(cudnnBackendFinalize(d) == CUDNN_STATUS_SUCCESS); }

/* In the order in which NVIDIA's frontend sets attributes: strides before the tensor is virtual. */
static desc tensor_with_strides(int64_t uid, bool is_virtual, const int64_t *dims, const int64_t *strides) {
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const int64_t alignment = 4;
    desc d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    finalize(d);
    return d;
}

static desc tensor(int64_t uid, bool is_virtual, int64_t n, int64_t c, int64_t h, int64_t w) {
    return tensor_with_strides(uid, is_virtual, (int64_t[]){n, c, h, w}, (int64_t[]){c * h * w, h * w, w, 1});
}

static desc pointwise(cudnnPointwiseMode_t mode, desc x, desc b, desc y, const float *alpha2) {
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    desc parameters = create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    desc op = create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set(parameters, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(parameters, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finalize(parameters);
    set_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, parameters);
    set_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        set_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_desc(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    if (alpha2)
        set(op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, alpha2);
    finalize(op);
    cudnnBackendDestroyDescriptor(parameters);
    return op;
}

static void destroy(int count, const desc *all) {
    for (int i = 0; i < count; i++)
        cudnnBackendDestroyDescriptor(all[i]);
}

/* The plan of the first configuration, and its workspace. */
struct plan {
    desc graph, heuristics, config, engine, plan;
    int64_t workspace_bytes;
};

static struct plan build(cudnnHandle_t handle, int count, const desc *ops) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_INSTANT;
    int64_t configs = 0;
    struct plan p = {.graph = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
                     .heuristics = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR),
                     .config = create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
                     .engine = create(CUDNN_BACKEND_ENGINE_DESCRIPTOR),
                     .plan = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
    set(p.graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, ops);
    set(p.graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(p.graph);
    set_desc(p.heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, p.graph);
    set(p.heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(p.heuristics);
    /* Programs query the number of results first, then fill descriptors of their own. */
    EXPECT(cudnnBackendGetAttribute(p.heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                    &configs, NULL) == CUDNN_STATUS_SUCCESS &&
           configs >= 1);
    EXPECT(cudnnBackendGetAttribute(p.heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                    &configs, &p.config) == CUDNN_STATUS_SUCCESS);
    EXPECT(cudnnBackendGetAttribute(p.config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, NULL,
                                    &p.engine) == CUDNN_STATUS_SUCCESS);
    set_desc(p.plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, p.config);
    set(p.plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(p.plan);
    EXPECT(cudnnBackendGetAttribute(p.plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, NULL,
                                    &p.workspace_bytes) == CUDNN_STATUS_SUCCESS);
    return p;
}

static void destroy_plan(struct plan *p) {
    destroy(5, (desc[]){p->graph, p->heuristics, p->config, p->engine, p->plan});
}

/* Executes with a workspace that is aligned to 16 bytes and no more, as that of NVIDIA's frontend. */
static cudnnStatus_t execute(cudnnHandle_t handle, const struct plan *p, int count, const int64_t *uids,
                             void *const *pointers) {
    char *memory = malloc((size_t)p->workspace_bytes + 128);
    size_t beyond = (uintptr_t)memory % 64;
    void *workspace = p->workspace_bytes ? memory + (64 - beyond) + 16 : NULL;
    desc pack = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    finalize(pack);
    cudnnStatus_t status = cudnnBackendExecute(handle, p->plan, pack);
    cudnnBackendDestroyDescriptor(pack);
    free(memory);
    return status;
}

/* ---- A fused convolution, on several threads --------------------------------------------------------------------- */

enum { N = 2, C = 8, H = 9, K = 4, OUTPUTS = N * K * H * H };

static desc convolution(desc x, desc w, desc y) {
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t spatial = 2, ones[] = {1, 1}, zeros[] = {0, 0};
    const double alpha = 1, beta = 0; /* XLA sets doubles, PyTorch floats */
    desc parameters = create(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    desc op = create(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    set(parameters, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(parameters, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(parameters, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
    set(parameters, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    set(parameters, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, ones);
    set(parameters, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, zeros);
    set(parameters, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, zeros);
    finalize(parameters);
    set_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, parameters);
    set_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
    set_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w);
    set_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
    set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_DOUBLE, 1, &alpha);
    set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_DOUBLE, 1, &beta);
    finalize(op);
    cudnnBackendDestroyDescriptor(parameters);
    return op;
}

static double largest_error(const float *x, const float *w, const float *y) {
    double largest = 0;
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++)
            for (int i = 0; i < H * H; i++) {
                double sum = 0;
                for (int c = 0; c < C; c++)
                    sum += (double)x[(n * C + c) * H * H + i] * w[k * C + c];
                double error = fabs(y[(n * K + k) * H * H + i] - (sum > 0 ? sum : 0));
                largest = error > largest || isnan(error) ? error : largest;
            }
    return largest;
}

/* y = relu(conv(x, w) + 0 z), where XLA and PyTorch bind z to the memory of y, which is not initialized. */
static void *run_fused(void *context) {
    cudnnHandle_t handle = context;
    const float zero = 0;
    float *x = malloc(N * C * H * H * sizeof *x), *w = malloc(K * C * sizeof *w), *y = malloc(OUTPUTS * sizeof *y);
    for (int i = 0; i < N * C * H * H; i++)
        x[i] = sinf((float)i);
    for (int i = 0; i < K * C; i++)
        w[i] = cosf((float)i);
    for (int i = 0; i < OUTPUTS; i++)
        y[i] = NAN;
    desc X = tensor(0, false, N, C, H, H), W = tensor('w', false, K, C, 1, 1), S = tensor('C', true, N, K, H, H);
    desc Z = tensor('z', false, N, K, H, H), A = tensor('A', true, N, K, H, H), Y = tensor('y', false, N, K, H, H);
    desc ops[] = {convolution(X, W, S), pointwise(CUDNN_POINTWISE_ADD, S, Z, A, &zero),
                  pointwise(CUDNN_POINTWISE_RELU_FWD, A, NULL, Y, NULL)};
    struct plan p = build(handle, 3, ops);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    EXPECT(cudnnBackendGetAttribute(p.engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                    CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) == CUDNN_STATUS_SUCCESS);
    for (int i = 0; i < count; i++)
        EXPECT(notes[i] != CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS); /* PyTorch and XLA reject such engines */
    EXPECT(execute(handle, &p, 4, (int64_t[]){0, 'w', 'z', 'y'}, (void *[]){x, w, y, y}) == CUDNN_STATUS_SUCCESS);
    EXPECT(largest_error(x, w, y) < 1e-5);
    destroy_plan(&p);
    destroy(9, (desc[]){X, W, S, Z, A, Y, ops[0], ops[1], ops[2]});
    free(x), free(w), free(y);
    return NULL;
}

/* Threads of XLA's compiler share one handle without a lock. */
static void test_threads_share_a_handle(cudnnHandle_t handle) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, run_fused, handle);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

/* Programs without TF32 reject engines with the note TENSOR_CORE, and PyTorch and XLA always reject
   DOWN_CONVERT_INPUTS: of the engines of a GPU, one must remain for each. Needs no GPU, only its description. */
static void test_notes_of_the_engines_of_a_gpu(void) {
    static const char json[] = "{\"kind\":\"cuda\",\"arch\":\"sm_90\"}";
    int64_t engines = 0, exact = 0, rounded = 0, count;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    desc X = tensor('x', false, N, C, H, H), W = tensor('w', false, K, C, 1, 1), Y = tensor('y', false, N, K, H, H);
    desc op = convolution(X, W, Y), graph = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    desc device = create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, sizeof json - 1, json);
    finalize(device);
    set_desc(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
    finalize(graph);
    EXPECT(!cudnnBackendGetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, 1, NULL,
                                     &engines));
    for (int64_t i = 0; i < engines; i++) {
        desc engine = create(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        set_desc(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
        set(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &i);
        set_desc(engine, CUDNN_ATTR_ENGINE_DEVICEPROP, device);
        if (cudnnBackendFinalize(engine) == CUDNN_STATUS_SUCCESS) {
            bool has_tensor_cores = false, is_accepted = true;
            EXPECT(!cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                             CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes));
            for (int64_t n = 0; n < count; n++) {
                has_tensor_cores |= notes[n] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
                is_accepted &= notes[n] != CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS &&
                               notes[n] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
            }
            exact += is_accepted && !has_tensor_cores;
            rounded += is_accepted && has_tensor_cores;
        }
        cudnnBackendDestroyDescriptor(engine);
    }
    EXPECT(exact >= 1 && rounded >= 1);
    destroy(6, (desc[]){X, W, Y, op, graph, device});
}

/* ---- Single details ---------------------------------------------------------------------------------------------- */

/* NVIDIA's frontend permutes the strides of inputs for virtual tensors, which may give two elements one location. */
static void test_virtual_strides_may_overlap(cudnnHandle_t handle) {
    const int64_t dims[] = {1, 2, 3, 4}, overlapping[] = {24, 2, 1, 1};
    float x[24], y[24];
    desc X = tensor('x', false, 1, 2, 3, 4), V = tensor_with_strides('v', true, dims, overlapping);
    desc Y = tensor('y', false, 1, 2, 3, 4);
    desc ops[] = {pointwise(CUDNN_POINTWISE_NEG, X, NULL, V, NULL), pointwise(CUDNN_POINTWISE_ABS, V, NULL, Y, NULL)};
    for (int i = 0; i < 24; i++)
        x[i] = (float)(i - 12);
    struct plan p = build(handle, 2, ops);
    EXPECT(execute(handle, &p, 2, (int64_t[]){'x', 'y'}, (void *[]){x, y}) == CUDNN_STATUS_SUCCESS);
    for (int i = 0; i < 24; i++)
        EXPECT(y[i] == fabsf(x[i]));
    destroy_plan(&p);
    destroy(5, (desc[]){X, V, Y, ops[0], ops[1]});
}

/* Frontends build this operation for cuDNN 9.21 and later. */
static void test_diagonal_band_mask(cudnnHandle_t handle) {
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_CMP_GE;
    float x[24], y[24], fill = -1;
    desc X = tensor('x', false, 1, 2, 3, 4), B = tensor('b', false, 1, 1, 1, 1), Y = tensor('y', false, 1, 2, 3, 4);
    desc op = create(CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR);
    set_desc(op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, X);
    set_desc(op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, B);
    set_desc(op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, Y);
    set(op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    finalize(op);
    for (int i = 0; i < 24; i++)
        x[i] = (float)i;
    struct plan p = build(handle, 1, &op);
    EXPECT(execute(handle, &p, 3, (int64_t[]){'x', 'b', 'y'}, (void *[]){x, &fill, y}) == CUDNN_STATUS_SUCCESS);
    for (int i = 0; i < 24; i++)
        EXPECT(y[i] == (i / 4 % 3 >= i % 4 ? x[i] : fill));
    destroy_plan(&p);
    destroy(4, (desc[]){X, B, Y, op});
}

/* Keys in pages, transposed for the product with the queries, as NVIDIA's frontend loads them. */
static void test_paged_cache_load(cudnnHandle_t handle) {
    const cudnnDataType_t type = CUDNN_DATA_INT32;
    const int64_t dims[] = {2, 1, 3, 5}, strides[] = {15, 15, 1, 3}, table_dims[] = {2, 1, 3, 1},
                  packed[] = {3, 3, 1, 1};
    const int64_t length_dims[] = {2, 1, 1, 1}, ones[] = {1, 1, 1, 1};
    int table[] = {3, 0, 2, 1, 99, 99}, lengths[] = {5, 1};
    float container[24], y[30];
    desc pages = tensor('c', false, 4, 1, 2, 3), Y = tensor_with_strides('y', false, dims, strides);
    desc T = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR), L = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    desc integers[] = {T, L};
    for (int i = 0; i < 2; i++) {
        const int64_t uid = i ? 'l' : 't', alignment = 4;
        set(integers[i], CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
        set(integers[i], CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, i ? length_dims : table_dims);
        set(integers[i], CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, i ? ones : packed);
        set(integers[i], CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
        set(integers[i], CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
        finalize(integers[i]);
    }
    desc op = create(CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR);
    set_desc(op, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC, pages);
    set_desc(op, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC, T);
    set_desc(op, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC, L);
    set_desc(op, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC, Y);
    finalize(op);
    for (int i = 0; i < 24; i++)
        container[i] = (float)i;
    struct plan p = build(handle, 1, &op);
    EXPECT(execute(handle, &p, 4, (int64_t[]){'c', 't', 'l', 'y'}, (void *[]){container, table, lengths, y}) ==
           CUDNN_STATUS_SUCCESS);
    for (int b = 0; b < 2; b++)
        for (int row = 0; row < 5; row++)
            for (int column = 0; column < 3; column++)
                EXPECT(y[b * 15 + row * 3 + column] ==
                       (row < lengths[b] ? container[table[b * 3 + row / 2] * 6 + row % 2 * 3 + column] : 0));
    destroy_plan(&p);
    destroy(5, (desc[]){pages, Y, T, L, op});
}

/* NVIDIA's frontend executes a loaded plan once with one address for all tensors. */
static void test_warm_up_with_one_address(cudnnHandle_t handle) {
    float memory[N * C * H * H] = {0};
    desc X = tensor('x', false, N, C, H, H), W = tensor('w', false, K, C, 1, 1), Y = tensor('y', false, N, K, H, H);
    desc op = convolution(X, W, Y);
    struct plan p = build(handle, 1, &op);
    const int64_t uids[] = {'x', 'w', 'y'};
    EXPECT(execute(handle, &p, 3, uids, (void *[]){memory, memory, memory}) == CUDNN_STATUS_SUCCESS);
    /* Other overlaps remain errors. */
    EXPECT(execute(handle, &p, 3, uids, (void *[]){memory, memory + 64, memory}) == CUDNN_STATUS_BAD_PARAM);
    EXPECT(message_has("overlap in memory"));
    destroy_plan(&p);
    destroy(4, (desc[]){X, W, Y, op});
}

/* Versions 9.21 and later of NVIDIA's frontend pass a number of their own enumeration. */
static void test_genstats_math(void) {
    const int type = 3;
    desc op = create(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    set(op, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnnBackendDestroyDescriptor(op);
}

/* A std::vector<std::vector<int64_t>>, as memory. */
static void test_overridden_shapes(void) {
    struct vector {
        const void *begin, *end, *capacity;
    };
    const int64_t dims[] = {2, 3, 4}, others[] = {5, 6};
    const struct vector inner[] = {{dims, dims + 3, dims + 3}, {others, others + 2, others + 2}};
    const struct vector outer = {inner, inner + 2, inner + 2};
    desc pack = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(pack, CUDNN_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, CUDNN_TYPE_VOID_PTR, 1, &outer);
    cudnnBackendDestroyDescriptor(pack);
}

static void test_device_properties_are_of_a_gpu(void) {
    const int32_t device = 0;
    desc properties = create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(properties, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &device);
    EXPECT(cudnnBackendFinalize(properties) != CUDNN_STATUS_SUCCESS); /* no GPU with WEFT_DEVICE=cpu: not the CPU */
    cudnnBackendDestroyDescriptor(properties);
}

static void test_versions_and_names(void) {
    int parts[3];
    for (int i = 0; i < 3; i++)
        EXPECT(cudnnGetProperty((libraryPropertyType)i, &parts[i]) == CUDNN_STATUS_SUCCESS);
    EXPECT((size_t)(parts[0] * 10000 + parts[1] * 100 + parts[2]) == cudnnGetVersion());
    EXPECT(cudnnGetVersion() == CUDNN_VERSION); /* programs refuse a library that is older than their header */
    EXPECT(!strcmp(cudnnGetErrorString(CUDNN_STATUS_NOT_SUPPORTED), "CUDNN_STATUS_NOT_SUPPORTED"));
    EXPECT(cudnnGetErrorString((cudnnStatus_t)123456) != NULL); /* PyTorch prints any number */
    EXPECT(cudnnGraphVersionCheck() == CUDNN_STATUS_SUCCESS && cudnnOpsVersionCheck() == CUDNN_STATUS_SUCCESS);
}

static void test_errors_have_numbers_of_cudnn(void) {
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    desc X = tensor(1, false, 1, 1, 1, 1);
    EXPECT(CUDNN_STATUS_CATEGORY(cudnnBackendSetAttribute(X, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
                                                          &type)) == CUDNN_STATUS_BAD_PARAM);
    EXPECT(message_has("finalized"));
    EXPECT(message_has("") && !message_has("finalized")); /* reading clears the message */
    cudnnBackendDestroyDescriptor(X);
    EXPECT(cudnnBackendExecute(NULL, NULL, NULL) == CUDNN_STATUS_BAD_PARAM);
    EXPECT(message_has("the handle is not live"));
}

static int callback_calls;
static void count_call(cudnnSeverity_t severity, void *udata, const cudnnDebug_t *debug, const char *message) {
    EXPECT(udata == &callback_calls && debug->cudnn_version == CUDNN_VERSION && message && severity <= CUDNN_SEV_INFO);
    callback_calls++;
}

static void test_missing_functions_are_named(void) {
    cudnnFusedOpsPlan_t plan;
    cudnnCallback_t function;
    cudnnRNNDescriptor_t rnn;
    EXPECT(cudnnSetCallback(CUDNN_SEV_WARNING_EN, &callback_calls, count_call) == CUDNN_STATUS_SUCCESS);
    EXPECT(cudnnGetCallback(NULL, NULL, &function) == CUDNN_STATUS_SUCCESS && function == count_call);
    EXPECT(cudnnCreateFusedOpsPlan(&plan, CUDNN_FUSED_SCALE_BIAS_ACTIVATION_WGRAD) == CUDNN_STATUS_NOT_SUPPORTED);
    EXPECT(message_has("cudnnCreateFusedOpsPlan: Weft does not have this function."));
    EXPECT(cudnnCreateRNNDescriptor(&rnn) == CUDNN_STATUS_NOT_SUPPORTED);
    EXPECT(message_has("cudnnCreateRNNDescriptor: Weft does not have this function."));
    EXPECT(callback_calls == 2);
    EXPECT(cudnnSetCallback(0, NULL, NULL) == CUDNN_STATUS_SUCCESS);
}

static void test_descriptors_return_what_was_set(void) {
    cudnnTensorDescriptor_t t;
    cudnnConvolutionDescriptor_t c;
    cudnnPoolingDescriptor_t p;
    cudnnDataType_t type;
    cudnnConvolutionMode_t mode;
    cudnnPoolingMode_t pooling;
    cudnnNanPropagation_t nan;
    int rank = 0, dims[8] = {0}, strides[8] = {0}, n[8];
    size_t bytes = 0;
    EXPECT(!cudnnCreateTensorDescriptor(&t) && !cudnnCreateConvolutionDescriptor(&c) &&
           !cudnnCreatePoolingDescriptor(&p));
    EXPECT(!cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NHWC, CUDNN_DATA_HALF, 2, 3, 4, 5));
    EXPECT(!cudnnGetTensorNdDescriptor(t, 3, &type, &rank, dims, strides)); /* writes 3 of 4 dimensions */
    EXPECT(type == CUDNN_DATA_HALF && rank == 4 && dims[2] == 4 && dims[3] == 0 && strides[0] == 60 && strides[1] == 1);
    EXPECT(!cudnnGetTensorSizeInBytes(t, &bytes) && bytes == 240);
    EXPECT(!cudnnSetConvolution2dDescriptor(c, 1, 2, 3, 4, 5, 6, CUDNN_CONVOLUTION, CUDNN_DATA_FLOAT));
    EXPECT(!cudnnGetConvolution2dDescriptor(c, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &mode, &type));
    for (int i = 0; i < 6; i++)
        EXPECT(n[i] == i + 1);
    EXPECT(mode == CUDNN_CONVOLUTION && type == CUDNN_DATA_FLOAT);
    EXPECT(!cudnnSetPooling2dDescriptor(p, CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 6, 5, 4, 3, 2, 1));
    EXPECT(!cudnnGetPooling2dDescriptor(p, &pooling, &nan, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5]));
    for (int i = 0; i < 6; i++)
        EXPECT(n[i] == 6 - i);
    EXPECT(pooling == CUDNN_POOLING_MAX && nan == CUDNN_PROPAGATE_NAN);
    EXPECT(cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2, 0, 4, 5) == CUDNN_STATUS_BAD_PARAM);
    EXPECT(message_has("dimension 1 has extent 0: expected at least 1."));
    EXPECT(!cudnnDestroyTensorDescriptor(t) && !cudnnDestroyConvolutionDescriptor(c) &&
           !cudnnDestroyPoolingDescriptor(p));
}

/* The reserve and workspace sizes may be 0, and their addresses NULL; workspaces that are too small are replaced. */
static void test_batch_norm_needs_no_workspace(cudnnHandle_t handle) {
    const float one = 1, zero = 0, scale[] = {1, 2}, bias[] = {0, 1};
    float x[] = {1, 3, 2, 6}, y[4];
    cudnnTensorDescriptor_t t, s;
    EXPECT(!cudnnCreateTensorDescriptor(&t) && !cudnnCreateTensorDescriptor(&s));
    EXPECT(!cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2, 2, 1, 1));
    EXPECT(!cudnnDeriveBNTensorDescriptor(s, t, CUDNN_BATCHNORM_SPATIAL));
    EXPECT(!cudnnBatchNormalizationForwardTrainingEx(handle, CUDNN_BATCHNORM_SPATIAL, CUDNN_BATCHNORM_OPS_BN, &one,
                                                     &zero, t, x, NULL, NULL, t, y, s, scale, bias, 1, NULL, NULL, 0,
                                                     NULL, NULL, NULL, NULL, 0, NULL, 0));
    EXPECT(fabsf(y[0] + 1) < 1e-5f && fabsf(y[2] - 1) < 1e-5f && fabsf(y[1] + 1) < 1e-5f && fabsf(y[3] - 3) < 1e-5f);
    EXPECT(!cudnnDestroyTensorDescriptor(t) && !cudnnDestroyTensorDescriptor(s));
}

int main(void) {
    static char streams[2];
    cudnnHandle_t handle = NULL;
    cudaStream_t stream = (void *)&streams[0];
    EXPECT(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
    EXPECT(cudnnSetStream(handle, (cudaStream_t)&streams[1]) == CUDNN_STATUS_SUCCESS);
    EXPECT(cudnnGetStream(handle, &stream) == CUDNN_STATUS_SUCCESS && stream == (cudaStream_t)&streams[1]);
    EXPECT(cudnnSetStream(handle, NULL) == CUDNN_STATUS_SUCCESS);
    test_versions_and_names();
    test_errors_have_numbers_of_cudnn();
    test_missing_functions_are_named();
    test_descriptors_return_what_was_set();
    test_genstats_math();
    test_notes_of_the_engines_of_a_gpu();
    test_overridden_shapes();
    test_device_properties_are_of_a_gpu();
    test_virtual_strides_may_overlap(handle);
    test_diagonal_band_mask(handle);
    test_paged_cache_load(handle);
    test_warm_up_with_one_address(handle);
    test_batch_norm_needs_no_workspace(handle);
    run_fused(handle);
    test_threads_share_a_handle(handle);
    EXPECT(cudnnDestroy(handle) == CUDNN_STATUS_SUCCESS);
    printf("%d failures\n", failures);
    return failures != 0;
}
