/* SPDX-License-Identifier: Apache-2.0 */
/* Shared code of the C tests: checks that print and count failures, and helpers that create descriptors through the
   public API. It must not depend on the library's internals. A test program is a list of functions followed by
   `return harness_end();`. */
#ifndef WEFT_TESTS_HARNESS_H
#define WEFT_TESTS_HARNESS_H

#include "weft/weft.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_int harness_failures;
static int harness_runs;       /* number of functions that ran */
static bool harness_is_inside; /* inside a test function: the functions it runs are part of it */

/* True if a function must run: all do, unless WEFT_TEST_ONLY=<name> selects one. call: the function's name, followed by
   its arguments. */
static inline bool harness_wants(const char *call) {
    const char *only = getenv("WEFT_TEST_ONLY");
    size_t length = only ? strlen(only) : 0;
    bool is_named = !length || (!strncmp(call, only, length) && (!call[length] || call[length] == '('));
    return is_named || harness_is_inside;
}

/* Runs a test function of the program, if it is selected. */
#define RUN(call) RUN_NAMED(#call, call)
#define RUN_NAMED(name, call)                                                                                          \
    do {                                                                                                               \
        bool was_inside = harness_is_inside;                                                                           \
        if (!harness_wants(name))                                                                                      \
            break;                                                                                                     \
        harness_is_inside = true, harness_runs++;                                                                      \
        call;                                                                                                          \
        harness_is_inside = was_inside;                                                                                \
    } while (0)

/* Selects the subset of cases that a long test runs (tests/tiers.py). */
static inline int64_t test_day(void) {
    const char *chosen = getenv("WEFT_TEST_DAY");
    return chosen ? strtoll(chosen, NULL, 10) : 0;
}
static inline bool tests_all(void) { return getenv("WEFT_TEST_ALL") != NULL; }

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            atomic_fetch_add(&harness_failures, 1);                                                                    \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                                     \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

static inline const char *last_error(void) {
    static _Thread_local char text[4096];
    weftGetLastErrorString(text, sizeof text);
    return text;
}

/* A call that must succeed and leave no error text. Later calls depend on it, so a failure ends the program. */
#define MUST(call) must(__FILE__, __LINE__, #call, call)
static inline void must(const char *file, int line, const char *call, weftStatus_t status) {
    if (status == WEFT_STATUS_SUCCESS && !*last_error())
        return;
    printf("%s:%d: %s: expected success, got %s: %s\n", file, line, call, weftGetErrorString(status), last_error());
    exit(1);
}

/* A call that must fail with this status and exactly this message (printf format and arguments). */
#define REFUSED(call, status, ...) refused(__FILE__, __LINE__, #call, call, status, __VA_ARGS__)
static inline void refused(const char *file, int line, const char *call, weftStatus_t got, weftStatus_t wanted,
                           const char *format, ...) {
    char message[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (got == wanted && strcmp(message, last_error()) == 0)
        return;
    atomic_fetch_add(&harness_failures, 1);
    printf("%s:%d: %s\n  expected %s: %s\n  got      %s: %s\n", file, line, call, weftGetErrorString(wanted), message,
           weftGetErrorString(got), last_error());
}

static inline int harness_end(void) {
    if (harness_failures)
        printf("%d checks failed\n", harness_failures);
    if (getenv("WEFT_TEST_ONLY") && !harness_runs) {
        printf("no function that RUN or IN_CHILD runs is called %s\n", getenv("WEFT_TEST_ONLY"));
        return 1;
    }
    return harness_failures ? 1 : 0;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

typedef weftBackendDescriptor_t desc;

static inline desc make(weftBackendDescriptorType_t kind) {
    desc made = NULL;
    MUST(weftBackendCreateDescriptor(kind, &made));
    return made;
}

static inline void drop(desc descriptor) { MUST(weftBackendDestroyDescriptor(descriptor)); }

static inline desc finalized(desc descriptor) {
    MUST(weftBackendFinalize(descriptor));
    return descriptor;
}

static inline weftStatus_t set_numbers(desc d, weftBackendAttributeName_t name, int64_t count, const int64_t *numbers) {
    return weftBackendSetAttribute(d, name, WEFT_TYPE_INT64, count, numbers);
}

static inline weftStatus_t set_number(desc d, weftBackendAttributeName_t name, int64_t number) {
    return set_numbers(d, name, 1, &number);
}

static inline weftStatus_t set_enum(desc d, weftBackendAttributeName_t name, weftBackendAttributeType_t type,
                                    int32_t value) {
    return weftBackendSetAttribute(d, name, type, 1, &value);
}

static inline weftStatus_t set_flag(desc d, weftBackendAttributeName_t name, bool value) {
    return weftBackendSetAttribute(d, name, WEFT_TYPE_BOOLEAN, 1, &value);
}

static inline weftStatus_t set_held(desc d, weftBackendAttributeName_t name, desc held) {
    return weftBackendSetAttribute(d, name, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &held);
}

static inline weftStatus_t set_text(desc d, weftBackendAttributeName_t name, const char *text) {
    return weftBackendSetAttribute(d, name, WEFT_TYPE_CHAR, (int64_t)strlen(text), text);
}

static inline int64_t get_number(desc d, weftBackendAttributeName_t name) {
    int64_t number = INT64_MIN;
    MUST(weftBackendGetAttribute(d, name, WEFT_TYPE_INT64, 1, NULL, &number));
    return number;
}

/* Returns all elements in memory that the caller frees, followed by a NUL. */
static inline void *get_list(desc d, weftBackendAttributeName_t name, weftBackendAttributeType_t type, size_t bytes,
                             int64_t *count) {
    MUST(weftBackendGetAttribute(d, name, type, 0, count, NULL));
    void *list = calloc((size_t)*count + 1, bytes);
    MUST(weftBackendGetAttribute(d, name, type, *count, count, list));
    return list;
}

static inline char *get_text(desc d, weftBackendAttributeName_t name, int64_t *count) {
    int64_t ignored;
    return get_list(d, name, WEFT_TYPE_CHAR, 1, count ? count : &ignored);
}

/* Opens the CPU even if there is a GPU. */
static inline weftHandle_t cpu_handle(void) {
    weftHandle_t handle = NULL;
    MUST(weftCreateForDevice(&handle, WEFT_DEVICE_CPU, 0));
    return handle;
}

/* ---- Tensors and operations -------------------------------------------------------------------------------------- */

struct extents {
    int64_t count;
    int64_t at[WEFT_DIM_MAX];
};
#define DIMS(...) ((struct extents){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})
#define UNSET ((struct extents){0})

/* Creates a tensor that is not finalized: uid, FLOAT, and dims unless they are UNSET. */
static inline desc open_tensor(int64_t uid, struct extents dims) {
    desc tensor = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    MUST(set_number(tensor, WEFT_ATTR_TENSOR_UNIQUE_ID, uid));
    MUST(set_enum(tensor, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_FLOAT));
    if (dims.count)
        MUST(set_numbers(tensor, WEFT_ATTR_TENSOR_DIMENSIONS, dims.count, dims.at));
    return tensor;
}

static inline desc tensor(int64_t uid, struct extents dims) { return finalized(open_tensor(uid, dims)); }

/* Creates a virtual tensor; everything except its uid is inferred. */
static inline desc virtual_tensor(int64_t uid) {
    desc tensor = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    MUST(set_number(tensor, WEFT_ATTR_TENSOR_UNIQUE_ID, uid));
    MUST(set_flag(tensor, WEFT_ATTR_TENSOR_IS_VIRTUAL, true));
    return finalized(tensor);
}

static inline desc constant(int64_t uid, float value) {
    desc tensor = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    void *address = &value;
    MUST(set_number(tensor, WEFT_ATTR_TENSOR_UNIQUE_ID, uid));
    MUST(set_enum(tensor, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_FLOAT));
    MUST(weftBackendSetAttribute(tensor, WEFT_ATTR_TENSOR_CONSTANT_VALUE, WEFT_TYPE_VOID_PTR, 1, &address));
    return finalized(tensor);
}

/* Creates an operation that is not finalized; b may be NULL. */
static inline desc open_pointwise(weftPointwiseMode_t mode, desc x, desc b, desc y) {
    desc parameters = make(WEFT_BACKEND_POINTWISE_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, mode));
    MUST(weftBackendFinalize(parameters));
    desc op = make(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_XDESC, x));
    if (b)
        MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_BDESC, b));
    MUST(set_held(op, WEFT_ATTR_OPERATION_POINTWISE_YDESC, y));
    drop(parameters);
    return op;
}

static inline desc pointwise(weftPointwiseMode_t mode, desc x, desc b, desc y) {
    return finalized(open_pointwise(mode, x, b, y));
}

static inline desc open_matmul(desc a, desc b, desc c) {
    desc parameters = finalized(make(WEFT_BACKEND_MATMUL_DESCRIPTOR));
    desc op = make(WEFT_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_DESC, parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_ADESC, a));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_BDESC, b));
    MUST(set_held(op, WEFT_ATTR_OPERATION_MATMUL_CDESC, c));
    drop(parameters);
    return op;
}

static inline desc matmul(desc a, desc b, desc c) { return finalized(open_matmul(a, b, c)); }

/* ---- Graphs and plans -------------------------------------------------------------------------------------------- */

static inline desc open_graph(int64_t count, desc *list) {
    desc graph = make(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    MUST(weftBackendSetAttribute(graph, WEFT_ATTR_OPERATIONGRAPH_OPS, WEFT_TYPE_BACKEND_DESCRIPTOR, count, list));
    return graph;
}

/* Takes ownership of the operations: afterwards only the graph references them. */
static inline desc graph_of(int64_t count, desc *list) {
    desc graph = finalized(open_graph(count, list));
    for (int64_t i = 0; i < count; i++)
        drop(list[i]);
    return graph;
}

/* Creates an engine configuration that is not finalized, for the engine with this index. */
static inline desc open_config(desc graph, int64_t index) {
    desc engine = make(WEFT_BACKEND_ENGINE_DESCRIPTOR), config = make(WEFT_BACKEND_ENGINECFG_DESCRIPTOR);
    MUST(set_held(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, graph));
    MUST(set_number(engine, WEFT_ATTR_ENGINE_GLOBAL_INDEX, index));
    MUST(weftBackendFinalize(engine));
    MUST(set_held(config, WEFT_ATTR_ENGINECFG_ENGINE, engine));
    drop(engine);
    return config;
}

/* The reference engine, which runs every graph, is the last one in the list. */
static inline int64_t reference_index(desc graph) {
    return get_number(graph, WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) - 1;
}

/* Number of engines that run on the CPU. */
static inline int64_t cpu_engine_count(desc graph) {
    int64_t count = 0, all = reference_index(graph) + 1;
    for (int64_t i = 0; i < all; i++) {
        desc engine = make(WEFT_BACKEND_ENGINE_DESCRIPTOR);
        MUST(set_held(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, graph));
        MUST(set_number(engine, WEFT_ATTR_ENGINE_GLOBAL_INDEX, i));
        MUST(weftBackendFinalize(engine));
        char *name = get_text(engine, WEFT_ATTR_ENGINE_NAME_EXT, NULL);
        count += strncmp(name, "cpu.", 4) == 0;
        free(name), drop(engine);
    }
    return count;
}

/* CPU engines come last in the list. */
static inline int64_t first_cpu_index(desc graph) { return reference_index(graph) + 1 - cpu_engine_count(graph); }

static inline desc open_plan(desc graph, int64_t index) {
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR), config = finalized(open_config(graph, index));
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    drop(config);
    return plan;
}

/* Creates a plan on the reference engine. */
static inline desc plan_of(desc graph) { return finalized(open_plan(graph, reference_index(graph))); }

static inline desc open_pack(int64_t count, const int64_t *uids, void *const *pointers) {
    desc pack = make(WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR);
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, count, uids));
    MUST(weftBackendSetAttribute(pack, WEFT_ATTR_VARIANT_PACK_DATA_POINTERS, WEFT_TYPE_VOID_PTR, count, pointers));
    return pack;
}

static inline weftStatus_t set_workspace(desc pack, void *workspace) {
    return weftBackendSetAttribute(pack, WEFT_ATTR_VARIANT_PACK_WORKSPACE, WEFT_TYPE_VOID_PTR, 1, &workspace);
}

#endif
