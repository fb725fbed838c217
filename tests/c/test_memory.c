/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation failures: a program that builds, runs, saves and loads plans is repeated with its n-th allocation failing,
   for n = 1, 2, ... until none fails. The failing call must report the failure. Then the program either stops, and
   nothing may leak, or it repeats the call, and all results must be correct. Linked with --wrap, so that only the
   library's allocations pass through this file. */
#include "harness.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

enum way { GIVES_UP, TRIES_AGAIN, FOR_GOOD }; /* FOR_GOOD: stops, and all later allocations fail, too */

static enum way way;
static bool armed;         /* true: allocations are counted */
static long until_failure; /* number of allocations before the next failure */
static bool has_failed;

static bool fails_now(void) {
    if (!armed || until_failure < 0)
        return false;
    if (until_failure-- > 0)
        return false;
    has_failed = true;
    if (way == FOR_GOOD)
        until_failure = 0;
    return true;
}

void *__wrap_malloc(size_t bytes) { return fails_now() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return fails_now() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return fails_now() ? NULL : __real_realloc(old, bytes); }

/* A call that may run out of memory, inside a function that returns false to stop. */
#define STEP(call)                                                                                                     \
    do {                                                                                                               \
        armed = true;                                                                                                  \
        weftStatus_t step_status = (call);                                                                             \
        armed = false;                                                                                                 \
        if (step_status == WEFT_STATUS_SUCCESS)                                                                        \
            break;                                                                                                     \
        CHECK(has_failed && step_status == WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "%s: %s: %s", #call,     \
              weftGetErrorString(step_status), last_error());                                                          \
        CHECK(strstr(last_error(), "out of memory: the host could not allocate "), "%s: '%s'", #call, last_error());   \
        if (way != TRIES_AGAIN)                                                                                        \
            return false;                                                                                              \
        MUST(call);                                                                                                    \
    } while (0)

/* ---- The program ------------------------------------------------------------------------------------------------- */

enum { DESCRIPTORS_MAX = 128, ROWS = 4, WIDTH = 4, MORE_ROWS = 5 };

struct program {
    int count;
    desc all[DESCRIPTORS_MAX]; /* released at the end */
    weftHandle_t handle;
    desc graph, config, plan, loaded;
    _Alignas(64) float x[MORE_ROWS * WIDTH], w[WIDTH * WIDTH], y[MORE_ROWS * WIDTH];
    _Alignas(64) char workspace[1 << 14];
};

static bool add(struct program *p, weftBackendDescriptorType_t kind, desc *made) {
    desc *place = &p->all[p->count];
    STEP(weftBackendCreateDescriptor(kind, place));
    p->count++;
    *made = *place;
    return true;
}

static bool add_tensor(struct program *p, int64_t uid, bool is_virtual, desc *t) {
    int64_t dims[2] = {ROWS, WIDTH};
    if (!add(p, WEFT_BACKEND_TENSOR_DESCRIPTOR, t))
        return false;
    STEP(set_number(*t, WEFT_ATTR_TENSOR_UNIQUE_ID, uid));
    STEP(set_flag(*t, WEFT_ATTR_TENSOR_IS_VIRTUAL, is_virtual));
    if (!is_virtual)
        STEP(set_numbers(*t, WEFT_ATTR_TENSOR_DIMENSIONS, 2, dims));
    STEP(set_enum(*t, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_FLOAT));
    STEP(set_text(*t, WEFT_ATTR_NAME_EXT, "a tensor with a name that is longer than most"));
    STEP(weftBackendFinalize(*t));
    return true;
}

/* y = relu(x @ w + x) with w of [WIDTH, WIDTH] = [ROWS, WIDTH]. */
static bool make_graph(struct program *p) {
    desc x, w, product, sum, y, mm, add_parameters, relu_parameters, ops[3];
    if (!add_tensor(p, 1, false, &x) || !add_tensor(p, 2, false, &w) || !add_tensor(p, 3, true, &product) ||
        !add_tensor(p, 4, true, &sum) || !add_tensor(p, 5, false, &y) || !add(p, WEFT_BACKEND_MATMUL_DESCRIPTOR, &mm) ||
        !add(p, WEFT_BACKEND_POINTWISE_DESCRIPTOR, &add_parameters) ||
        !add(p, WEFT_BACKEND_POINTWISE_DESCRIPTOR, &relu_parameters) ||
        !add(p, WEFT_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &ops[0]) ||
        !add(p, WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &ops[1]) ||
        !add(p, WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &ops[2]) ||
        !add(p, WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &p->graph))
        return false;
    STEP(weftBackendFinalize(mm));
    STEP(set_enum(add_parameters, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, WEFT_POINTWISE_ADD));
    STEP(weftBackendFinalize(add_parameters));
    STEP(set_enum(relu_parameters, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, WEFT_POINTWISE_RELU_FWD));
    STEP(weftBackendFinalize(relu_parameters));
    STEP(set_held(ops[0], WEFT_ATTR_OPERATION_MATMUL_DESC, mm));
    STEP(set_held(ops[0], WEFT_ATTR_OPERATION_MATMUL_ADESC, x));
    STEP(set_held(ops[0], WEFT_ATTR_OPERATION_MATMUL_BDESC, w));
    STEP(set_held(ops[0], WEFT_ATTR_OPERATION_MATMUL_CDESC, product));
    STEP(weftBackendFinalize(ops[0]));
    STEP(set_held(ops[1], WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, add_parameters));
    STEP(set_held(ops[1], WEFT_ATTR_OPERATION_POINTWISE_XDESC, product));
    STEP(set_held(ops[1], WEFT_ATTR_OPERATION_POINTWISE_BDESC, x));
    STEP(set_held(ops[1], WEFT_ATTR_OPERATION_POINTWISE_YDESC, sum));
    STEP(weftBackendFinalize(ops[1]));
    STEP(set_held(ops[2], WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, relu_parameters));
    STEP(set_held(ops[2], WEFT_ATTR_OPERATION_POINTWISE_XDESC, sum));
    STEP(set_held(ops[2], WEFT_ATTR_OPERATION_POINTWISE_YDESC, y));
    STEP(weftBackendFinalize(ops[2]));
    STEP(weftBackendSetAttribute(p->graph, WEFT_ATTR_OPERATIONGRAPH_OPS, WEFT_TYPE_BACKEND_DESCRIPTOR, 3, ops));
    STEP(set_text(p->graph, WEFT_ATTR_NAME_EXT, "scarce"));
    STEP(weftBackendFinalize(p->graph));
    return true;
}

/* Queries heuristics for this machine's device in the form in which another machine describes it, and copies the
   fastest configuration. */
static bool choose_engine(struct program *p) {
    static const char device_text[] =
        "{\"kind\":\"cpu\",\"ordinal\":0,\"threads\":2,\"name\":\"the \\\"other\\\" one\"}";
    desc device, cache, heuristics, copy, graph;
    char text[8];
    int64_t count = 0;
    if (!add(p, WEFT_BACKEND_DEVICEPROP_DESCRIPTOR, &device) || !add(p, WEFT_BACKEND_KERNEL_CACHE_DESCRIPTOR, &cache) ||
        !add(p, WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics) ||
        !add(p, WEFT_BACKEND_ENGINECFG_DESCRIPTOR, &p->config) || !add(p, WEFT_BACKEND_DEVICEPROP_DESCRIPTOR, &copy) ||
        !add(p, WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &graph))
        return false;
    STEP(set_text(device, WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, device_text));
    STEP(weftBackendFinalize(device));
    STEP(weftBackendFinalize(cache));
    STEP(weftBackendGetAttribute(cache, WEFT_ATTR_KERNEL_CACHE_JSON_REPRESENTATION, WEFT_TYPE_CHAR, 2, &count, text));
    CHECK(count == 2 && !memcmp(text, "{}", 2), "an empty cache is %lld bytes", (long long)count);
    STEP(weftBackendGetAttribute(device, WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, WEFT_TYPE_CHAR, 7, &count, text));
    CHECK(count == sizeof device_text - 1 && !memcmp(text, device_text, 7), "the device is %lld bytes",
          (long long)count);
    STEP(set_held(heuristics, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, p->graph));
    STEP(set_held(heuristics, WEFT_ATTR_ENGINEHEUR_DEVICEPROP, device));
    STEP(set_enum(heuristics, WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, WEFT_HEUR_MODE_A));
    STEP(weftBackendFinalize(heuristics));
    STEP(weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                 &p->config));
    CHECK(count == cpu_engine_count(p->graph), "no engine is lost: %lld", (long long)count);
    STEP(weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_DEVICEPROP, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                 &copy));
    STEP(weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, WEFT_TYPE_BACKEND_DESCRIPTOR, 1,
                                 &count, &graph)); /* the copy references the list of operations, too */
    return true;
}

static bool make_plan(struct program *p) {
    if (!add(p, WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan))
        return false;
    STEP(set_held(p->plan, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, p->config));
    STEP(weftBackendFinalize(p->plan));
    return true;
}

static void check_y(const struct program *p, int rows, const char *when) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < WIDTH; c++) {
            double sum = p->x[r * WIDTH + c];
            for (int k = 0; k < WIDTH; k++)
                sum += (double)p->x[r * WIDTH + k] * p->w[k * WIDTH + c];
            CHECK(p->y[r * WIDTH + c] == (sum > 0 ? sum : 0), "%s: y[%d,%d] is %g, not %g", when, r, c,
                  p->y[r * WIDTH + c], sum);
        }
}

static bool run(struct program *p, desc plan, bool overrides) {
    int64_t uids[3] = {1, 2, 5}, changed[2] = {1, 5}, rows = overrides ? MORE_ROWS : ROWS;
    int64_t shapes[4] = {MORE_ROWS, WIDTH, MORE_ROWS, WIDTH}, strides[4] = {WIDTH, 1, WIDTH, 1};
    void *pointers[3] = {p->x, p->w, p->y};
    size_t bytes;
    desc pack;
    if (!add(p, WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack))
        return false;
    STEP(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, 3, uids));
    STEP(weftBackendSetAttribute(pack, WEFT_ATTR_VARIANT_PACK_DATA_POINTERS, WEFT_TYPE_VOID_PTR, 3, pointers));
    STEP(set_workspace(pack, p->workspace));
    if (overrides) {
        STEP(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 2, changed));
        STEP(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 4, shapes));
        STEP(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 4, strides));
    }
    STEP(weftBackendFinalize(pack));
    STEP(weftGetExecutionPlanWorkspaceSize(p->handle, plan, pack, &bytes));
    CHECK(bytes <= sizeof p->workspace, "%zu bytes of workspace", bytes);
    memset(p->y, 0xFF, sizeof p->y);
    STEP(weftBackendExecute(p->handle, plan, pack));
    check_y(p, (int)rows, overrides ? "overridden" : "run");
    return true;
}

static bool save_and_load(struct program *p) {
    static char blob[1 << 15];
    int64_t bytes = 0;
    if (!add(p, WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->loaded))
        return false;
    STEP(weftBackendGetAttribute(p->plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, sizeof blob,
                                 &bytes, blob));
    CHECK(bytes > 0 && (size_t)bytes <= sizeof blob, "%lld bytes saved", (long long)bytes);
    STEP(weftBackendSetAttribute(p->loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
    STEP(weftBackendFinalize(p->loaded));
    return true;
}

static bool ask(struct program *p) {
    static char text[1 << 18];
    int64_t count;
    STEP(weftBackendGetAttribute(p->loaded, WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT, WEFT_TYPE_CHAR, sizeof text, &count,
                                 text));
    CHECK(text[count - 1] == '}', "the report ends with %c", text[count - 1]);
    STEP(weftQuerySupport(p->graph, NULL, text, sizeof text, NULL));
    CHECK(strstr(text, "\"engine\":\"cpu.reference\",\"supported\":true"), "%s", text);
    STEP(weftDescribe(text, sizeof text, NULL));
    return true;
}

static bool run_program(struct program *p) {
    STEP(weftCreateForDevice(&p->handle, WEFT_DEVICE_CPU, 0));
    return make_graph(p) && choose_engine(p) && make_plan(p) && run(p, p->plan, false) && run(p, p->plan, true) &&
           save_and_load(p) && run(p, p->loaded, false) && run(p, p->loaded, true) && ask(p);
}

int main(void) {
    static struct program p;
    for (way = GIVES_UP; way <= FOR_GOOD; way++) {
        long n = 0;
        do {
            memset(&p, 0, sizeof p);
            for (int i = 0; i < MORE_ROWS * WIDTH; i++)
                p.x[i] = (float)(i % 5 - 2), p.w[i % (WIDTH * WIDTH)] = (float)(i % 3 - 1);
            until_failure = n++;
            has_failed = false;
            bool done = run_program(&p);
            CHECK(done || has_failed, "allocation %ld: gave up for another reason", n);
            armed = false;
            while (p.count > 0)
                drop(p.all[--p.count]);
            MUST(weftDestroy(p.handle));
        } while (has_failed && n < 100000 && !harness_failures);
        printf("%s: %ld allocations\n",
               way == GIVES_UP      ? "gives up"
               : way == TRIES_AGAIN ? "tries again"
                                    : "for good",
               n - 1);
        CHECK(n > 100, "only %ld allocations: they do not pass through here", n - 1);
    }
    return harness_end();
}
