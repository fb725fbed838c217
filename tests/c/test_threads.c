/* SPDX-License-Identifier: Apache-2.0 */
/* Threads: each builds, saves, loads and runs its own graphs, and all run one shared plan, each call with separate
   memory and workspace; some of these calls override shapes, and some fail. Build with WEFT_SANITIZE=thread to detect
   races. */
#include "harness.h"

#include <math.h>
#include <pthread.h>

enum { THREADS = 12, ROUNDS = 12, ROWS = 6, MORE_ROWS = 9, WIDTH = 5, LARGE = 192 };

static desc shared_plan, shared_graph, shared_x, large_plan;
static weftHandle_t shared_handle;
static pthread_barrier_t start;

struct memory {
    _Alignas(64) float x[MORE_ROWS * WIDTH], w[WIDTH * WIDTH], y[MORE_ROWS * WIDTH];
    _Alignas(64) char workspace[1 << 14];
};

/* y = tanh(x @ w + x), of [ROWS, WIDTH]. Takes ownership of x. */
static desc make_graph(desc x) {
    desc w = tensor(2, DIMS(WIDTH, WIDTH)), y = tensor(3, DIMS(ROWS, WIDTH));
    desc product = virtual_tensor(4), sum = virtual_tensor(5), list[3];
    list[0] = matmul(x, w, product);
    list[1] = pointwise(WEFT_POINTWISE_ADD, product, x, sum);
    list[2] = pointwise(WEFT_POINTWISE_TANH_FWD, sum, NULL, y);
    desc graph = graph_of(3, list);
    drop(x), drop(w), drop(y), drop(product), drop(sum);
    return graph;
}

static void fill(struct memory *m, int seed) {
    for (int i = 0; i < MORE_ROWS * WIDTH; i++) {
        m->x[i] = (float)((i * 7 + seed) % 11) * 0.1f - 0.5f;
        m->w[i % (WIDTH * WIDTH)] = (float)((i * 5 + seed) % 7) * 0.2f - 0.6f;
        m->y[i] = NAN;
    }
}

static void check(const struct memory *m, int rows, const char *what) {
    int wrong = 0;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < WIDTH; c++) {
            double sum = m->x[r * WIDTH + c];
            for (int k = 0; k < WIDTH; k++)
                sum += (double)m->x[r * WIDTH + k] * m->w[k * WIDTH + c];
            wrong += !(fabs(m->y[r * WIDTH + c] - tanh(sum)) < 1e-5);
        }
    for (int i = rows * WIDTH; i < MORE_ROWS * WIDTH; i++)
        wrong += !isnan(m->y[i]);
    CHECK(wrong == 0, "%s: %d elements are wrong", what, wrong);
}

static void run_flat(desc plan, struct memory *m, int seed, const char *what) {
    fill(m, seed);
    CHECK(get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) <= (int64_t)sizeof m->workspace, "workspace");
    MUST(weftExecute(plan, 3, (uint64_t[]){(uintptr_t)m->x, (uintptr_t)m->w, (uintptr_t)m->y}, m->workspace, NULL));
    check(m, ROWS, what);
}

/* Overrides the number of rows of the shared plan's x and y; different threads use the same shapes at once. */
static void run_overridden(struct memory *m, int64_t rows, int seed) {
    desc pack = open_pack(3, (int64_t[]){1, 2, 3}, (void *[]){m->x, m->w, m->y});
    size_t bytes;
    MUST(set_workspace(pack, m->workspace));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 2, (int64_t[]){1, 3}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 4, (int64_t[]){rows, WIDTH, rows, WIDTH}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 4, (int64_t[]){WIDTH, 1, WIDTH, 1}));
    MUST(weftBackendFinalize(pack));
    fill(m, seed);
    MUST(weftGetExecutionPlanWorkspaceSize(shared_handle, shared_plan, pack, &bytes));
    CHECK(bytes <= sizeof m->workspace, "%zu bytes of workspace", bytes);
    MUST(weftBackendExecute(shared_handle, shared_plan, pack));
    check(m, (int)rows, "overridden");
    drop(pack);
}

static void build_and_run(struct memory *m, int seed) {
    desc graph = make_graph(tensor(1, DIMS(ROWS, WIDTH)));
    int64_t first = first_cpu_index(graph), bytes;
    desc plan = finalized(open_plan(graph, first + seed % cpu_engine_count(graph))),
         loaded = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    drop(graph);
    run_flat(plan, m, seed, "own plan");
    char *blob = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes);
    MUST(weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
    MUST(weftBackendFinalize(loaded));
    drop(plan);
    run_flat(loaded, m, seed + 1, "loaded plan");
    free(blob);
    drop(loaded);
}

/* Builds plans of the shared graph, and graphs over a shared tensor. */
static void build_on_shared(struct memory *m, int seed) {
    desc plan = plan_of(shared_graph), heuristics = make(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR);
    run_flat(plan, m, seed, "plan of a shared graph");
    MUST(set_held(heuristics, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, shared_graph));
    MUST(set_enum(heuristics, WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, WEFT_HEUR_MODE_A));
    MUST(weftBackendFinalize(heuristics));
    desc fastest = make(WEFT_BACKEND_ENGINECFG_DESCRIPTOR), graph;
    MUST(weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, NULL,
                                 &fastest));
    drop(heuristics), drop(fastest), drop(plan);

    desc y = tensor(2, UNSET), op = pointwise(WEFT_POINTWISE_NEG, shared_x, NULL, y);
    graph = graph_of(1, &op);
    plan = plan_of(graph);
    fill(m, seed);
    MUST(weftExecute(plan, 2, (uint64_t[]){(uintptr_t)m->x, (uintptr_t)m->y}, m->workspace, NULL));
    CHECK(m->y[7] == -m->x[7], "graph over a shared tensor: %g", m->y[7]);
    drop(y), drop(graph), drop(plan);
}

/* A product of ones, scaled by the thread's number, that is large enough for the thread pool, which serves one caller
   at a time. */
static void run_large(int thread) {
    float *memory = aligned_alloc(64, 3 * sizeof(float) * LARGE * LARGE), *y = memory + 2 * LARGE * LARGE;
    char *workspace = aligned_alloc(64, 1 << 20);
    for (int i = 0; i < 2 * LARGE * LARGE; i++)
        memory[i] = i < LARGE * LARGE ? 1 : (float)thread;
    CHECK(get_number(large_plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) <= 1 << 20, "workspace");
    uint64_t pointers[3] = {(uintptr_t)memory, (uintptr_t)(memory + LARGE * LARGE), (uintptr_t)y};
    MUST(weftExecute(large_plan, 3, pointers, workspace, NULL));
    int wrong = 0;
    for (int i = 0; i < LARGE * LARGE; i++)
        wrong += y[i] != (float)(LARGE * thread);
    CHECK(wrong == 0, "large product: %d elements are wrong", wrong);
    free(memory), free(workspace);
}

/* Each thread reads only its own error. */
static void fail_alone(int thread) {
    desc t = open_tensor(thread, DIMS(2, -1));
    for (int i = 0; i < 20; i++)
        REFUSED(weftBackendFinalize(t), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                "tensor (uid %d): dims [2,-1]: dimension 1 is negative. Extents are 0 or more elements.", thread);
    drop(t);
}

static atomic_int messages;

static void count_message(weftSeverity_t severity, void *udata, const weftDebug_t *debug, const char *message) {
    (void)severity, (void)debug;
    atomic_fetch_add((atomic_int *)udata, message[0] != '\0');
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    struct memory *m = aligned_alloc(64, sizeof *m);
    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS; round++) {
        int seed = thread * 100 + round;
        run_flat(shared_plan, m, seed, "shared plan");
        run_overridden(m, 1 + (thread + round) % MORE_ROWS, seed);
        build_and_run(m, seed);
        build_on_shared(m, seed);
        fail_alone(thread);
        run_large(thread);
        if (thread == 0)
            MUST(weftSetCallback(round % 2 ? 1u << WEFT_SEV_ERROR : 0, &messages, count_message));
        if (thread == 1)
            MUST(weftSetStream(shared_handle, NULL));
    }
    free(m);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    shared_handle = cpu_handle();
    shared_graph = make_graph(tensor(1, DIMS(ROWS, WIDTH)));
    shared_plan = finalized(open_plan(shared_graph, first_cpu_index(shared_graph)));
    shared_x = open_tensor(1, DIMS(ROWS, WIDTH)); /* with strides: otherwise operations infer them */
    MUST(set_numbers(shared_x, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){WIDTH, 1}));
    MUST(weftBackendFinalize(shared_x));
    desc a = tensor(1, DIMS(LARGE, LARGE)), b = tensor(2, DIMS(LARGE, LARGE)), c = tensor(3, DIMS(LARGE, LARGE));
    desc product = matmul(a, b, c), large_graph = graph_of(1, &product);
    large_plan = finalized(open_plan(large_graph, first_cpu_index(large_graph)));
    drop(a), drop(b), drop(c), drop(large_graph);
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i)) {
            printf("no thread %d\n", i);
            return 1;
        }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    MUST(weftSetCallback(0, NULL, NULL));
    CHECK(messages > 0, "errors of all threads were logged");
    drop(shared_plan), drop(shared_graph), drop(shared_x), drop(large_plan);
    MUST(weftDestroy(shared_handle));
    return harness_end();
}
