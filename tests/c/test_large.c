/* SPDX-License-Identifier: Apache-2.0 */
/* Large graphs: planning costs work and memory in proportion to the number of operations, saving and loading support
   any number, and execution works on threads with small stacks. The oracle is integer arithmetic that float32 computes
   exactly. */
#include "base/arena.h"
#include "engines/engine.h"
#include "graph/graph.h"
#include "harness.h"
#include "plan/partition/partition.h"

#include <pthread.h>

enum { WIDTH = 8, THREADS = 4 };
#ifdef __SANITIZE_ADDRESS__
enum { SMALL_STACK = 128 << 10 }; /* instrumentation enlarges stack frames */
#else
enum { SMALL_STACK = 64 << 10 };
#endif

/* ---- A long chain: y = x + count * b ----------------------------------------------------------------------------- */

enum { UID_X = 1, UID_B, UID_Y, UID_BETWEEN };

static desc chain_graph(int count) {
    desc x = tensor(UID_X, DIMS(WIDTH)), b = tensor(UID_B, DIMS(WIDTH)), from = x;
    desc *list = malloc((size_t)count * sizeof *list);
    for (int i = 0; i < count; i++) {
        desc to = i + 1 < count ? virtual_tensor(UID_BETWEEN + i) : tensor(UID_Y, DIMS(WIDTH));
        list[i] = pointwise(WEFT_POINTWISE_ADD, from, b, to);
        drop(from);
        from = to;
    }
    drop(from), drop(b);
    desc graph = graph_of(count, list);
    free(list);
    return graph;
}

struct run {
    desc plan;
    int count, seed;
};

static void run_chain(const struct run *run) {
    _Alignas(64) float x[WIDTH], b[WIDTH], y[WIDTH];
    char *workspace = aligned_alloc(256, 4096);
    CHECK(get_number(run->plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) <= 4096, "what is read no more is used again");
    for (int i = 0; i < WIDTH; i++)
        x[i] = (float)(run->seed + i), b[i] = (float)(i - 1), y[i] = -1;
    MUST(weftExecute(run->plan, 3, (uint64_t[]){(uintptr_t)x, (uintptr_t)b, (uintptr_t)y}, workspace, NULL));
    for (int i = 0; i < WIDTH; i++)
        CHECK(y[i] == (float)(run->seed + i + run->count * (i - 1)), "y[%d] is %g", i, y[i]);
    free(workspace);
}

static void *run_often(void *argument) {
    struct run run = *(struct run *)argument;
    for (int round = 0; round < 3; round++, run.seed += 10)
        run_chain(&run);
    return NULL;
}

/* Runs several threads at once, each with a stack that is much smaller than a table of the graph's values. */
static void run_on_small_stacks(void *(*run)(void *), void *argument) {
    pthread_t threads[THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, SMALL_STACK) == 0, "no stack of %d bytes", SMALL_STACK);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], &attributes, run, argument)) {
            printf("no thread %d\n", i);
            exit(1);
        }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_attr_destroy(&attributes);
}

/* More than 65536 descriptors, an old limit of saved plans: each step has an operation, its parameters and its
   result. */
static void test_chain(void) {
    enum { COUNT = 22000 };
    desc graph = chain_graph(COUNT);
    for (int reference = 0; reference < 2; reference++) {
        desc plan = finalized(open_plan(graph, reference ? reference_index(graph) : first_cpu_index(graph)));
        int64_t bytes, loaded_bytes;
        char *blob = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes);
        desc loaded = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        MUST(
            weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
        MUST(weftBackendFinalize(loaded));
        char *again = get_text(loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &loaded_bytes);
        CHECK(bytes == loaded_bytes && !memcmp(blob, again, (size_t)bytes), "saved again, the same bytes");
        run_on_small_stacks(run_often, &(struct run){plan, COUNT, 5});
        run_on_small_stacks(run_often, &(struct run){loaded, COUNT, 7});
        free(blob), free(again);
        drop(plan), drop(loaded);
    }
    drop(graph);
}

/* ---- Many slots: y_i = -x_i -------------------------------------------------------------------------------------- */

enum { PAIRS = 5000, SLOTS = 2 * PAIRS };

struct wide {
    desc plan;
    weftHandle_t handle;
};

/* The slots in order of their uids: x_0, y_0, x_1, y_1, ... */
static desc wide_plan(void) {
    static desc list[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        desc x = tensor(2 * i + 1, DIMS(WIDTH)), y = tensor(2 * i + 2, DIMS(WIDTH));
        list[i] = pointwise(WEFT_POINTWISE_NEG, x, NULL, y);
        drop(x), drop(y);
    }
    desc graph = graph_of(PAIRS, list), plan = plan_of(graph);
    drop(graph);
    return plan;
}

/* Stores the slots one after another; x_i is filled with i. */
static float *wide_memory(uint64_t *pointers) {
    float *memory = aligned_alloc(64, SLOTS * WIDTH * sizeof *memory);
    for (int s = 0; s < SLOTS; s++) {
        pointers[s] = (uintptr_t)(memory + s * WIDTH);
        for (int i = 0; i < WIDTH; i++)
            memory[s * WIDTH + i] = (float)(s / 2);
    }
    return memory;
}

static void check_wide(const float *memory, const char *how) {
    int wrong = 0;
    for (int s = 0; s < SLOTS; s++)
        for (int i = 0; i < WIDTH; i++)
            wrong += memory[s * WIDTH + i] != (float)(s % 2 ? -(s / 2) : s / 2);
    CHECK(wrong == 0, "%s: %d elements are wrong", how, wrong);
}

static void *run_wide(void *argument) {
    const struct wide *wide = argument;
    uint64_t *pointers = malloc(SLOTS * sizeof *pointers);
    int64_t *uids = malloc(SLOTS * sizeof *uids);
    float *memory = wide_memory(pointers);
    MUST(weftExecute(wide->plan, SLOTS, pointers, NULL, NULL));
    check_wide(memory, "flat");
    free(memory), memory = wide_memory(pointers);
    for (int s = 0; s < SLOTS; s++)
        uids[s] = s + 1;
    desc pack = finalized(open_pack(SLOTS, uids, (void **)pointers));
    MUST(weftBackendExecute(wide->handle, wide->plan, pack));
    check_wide(memory, "pack");
    drop(pack);
    free(memory), free(pointers), free(uids);
    return NULL;
}

static void refuse_overlap(desc plan, const uint64_t *pointers, int a, int b, const char *also) {
    REFUSED(weftExecute(plan, SLOTS, pointers, NULL, NULL), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid %d) and tensor (uid %d) overlap in memory. Give the output memory of its own%s.", a + 1,
            b + 1, also);
}

/* The alias check is exact to the byte on either side, for many slots as for few. */
static void test_wide_overlaps(desc plan) {
    static uint64_t pointers[SLOTS];
    enum { BYTES = WIDTH * sizeof(float), X = 2000, Y = X + 1 };
    float *memory = wide_memory(pointers);
    const uint64_t x = pointers[X], y = pointers[Y];
    pointers[Y] = x;
    MUST(weftExecute(plan, SLOTS, pointers, NULL, NULL));
    CHECK(memory[X * WIDTH] == -X / 2, "in place: %g", memory[X * WIDTH]);
    pointers[Y] = pointers[Y + 1];
    refuse_overlap(plan, pointers, Y, Y + 1, ""); /* the input of another operation */
    pointers[Y] = pointers[Y + 2];
    refuse_overlap(plan, pointers, Y, Y + 2, "");
    pointers[Y] = y, pointers[0] = y - BYTES / 2; /* an input that starts before the output */
    refuse_overlap(plan, pointers, Y, 0, ", or exactly the same memory");
    pointers[0] = y; /* an input that is read before the output is written */
    MUST(weftExecute(plan, SLOTS, pointers, NULL, NULL));
    pointers[0] = x; /* inputs may overlap each other */
    MUST(weftExecute(plan, SLOTS, pointers, NULL, NULL));
    free(memory);
}

/* All slots are columns of one matrix, two columns each, and none overlaps another. */
static void test_columns(void) {
    enum { COUNT = 80, COLUMNS = 2 * COUNT, ROWS = 3 };
    desc list[COUNT / 2], t[COUNT];
    static float memory[ROWS * COLUMNS + 1];
    uint64_t pointers[COUNT];
    for (int s = 0; s < COUNT; s++) {
        t[s] = open_tensor(s + 1, DIMS(ROWS, 2));
        MUST(set_numbers(t[s], WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){COLUMNS, 1}));
        MUST(weftBackendFinalize(t[s]));
        pointers[s] = (uintptr_t)(memory + 2 * (COUNT - 1 - s)); /* outputs before their inputs */
    }
    for (int i = 0; i < COUNT / 2; i++)
        list[i] = pointwise(WEFT_POINTWISE_NEG, t[2 * i], NULL, t[2 * i + 1]);
    desc graph = graph_of(COUNT / 2, list), plan = plan_of(graph);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        memory[i] = (float)i;
    MUST(weftExecute(plan, COUNT, pointers, NULL, NULL));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        CHECK(memory[i] == (float)(i / 2 % 2 ? i : -(i + 2)), "element %d: %g", i, memory[i]);
    pointers[41] += sizeof *memory; /* overlaps half of its input, which starts after it */
    REFUSED(
        weftExecute(plan, COUNT, pointers, NULL, NULL), WEFT_STATUS_BAD_PARAM,
        "output tensor (uid 42) and tensor (uid 41) overlap in memory. Give the output memory of its own, or exactly "
        "the same memory.");
    pointers[41] -= 2 * sizeof *memory; /* overlaps the next operation's input, which starts before it */
    REFUSED(weftExecute(plan, COUNT, pointers, NULL, NULL), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 42) and tensor (uid 43) overlap in memory. Give the output memory of its own%s.", "");
    drop(graph), drop(plan);
    for (int s = 0; s < COUNT; s++)
        drop(t[s]);
}

static void test_wide(void) {
    struct wide wide = {wide_plan(), cpu_handle()};
    run_on_small_stacks(run_wide, &wide);
    test_wide_overlaps(wide.plan);
    test_columns();
    drop(wide.plan);
    MUST(weftDestroy(wide.handle));
}

/* ---- Work and memory of a partition ------------------------------------------------------------------------------ */

enum { REGION_MOST = 3 };
static int64_t questions;
static atomic_llong bytes_asked; /* counted across several threads */

/* The library's arenas allocate with this function; see CMakeLists.txt. */
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    bytes_asked += (int64_t)(count * bytes);
    return __real_calloc(count, bytes);
}

/* Accepts up to three operations, so that every region grows and is refused further growth. */
static weftStatus_t accept_few(const struct region *region, const struct device *device, struct offer *offer) {
    (void)device;
    questions++;
    offer->seconds = 1e-6;
    return region->count <= REGION_MOST ? WEFT_STATUS_SUCCESS : WEFT_STATUS_NOT_SUPPORTED;
}

static weftStatus_t accept_none(const struct region *region, const struct device *device, struct offer *offer) {
    (void)region, (void)device, (void)offer;
    questions++;
    return WEFT_STATUS_NOT_SUPPORTED;
}

struct work {
    int64_t questions, bytes;
};

static struct work partition_chain(int count) {
    static const struct family refusing = {.name = "refusing", .accepts = accept_none},
                               growing = {.name = "growing", .accepts = accept_few};
    static const struct family *const families[] = {&refusing, &growing, NULL};
    const struct engine engine = {.name = "counting", .device = WEFT_DEVICE_CPU, .families = families};
    const struct device device = {.kind = WEFT_DEVICE_CPU};
    const struct knob_choices none = {0};
    struct arena arena = {0};
    struct cover cover;
    desc graph = chain_graph(count);
    questions = 0, bytes_asked = 0;
    MUST(partition(&cover, (const struct graph *)graph, &engine, &device, &none, INT64_MAX, &arena));
    CHECK(cover.count == count / REGION_MOST, "%d parts of %d operations", cover.count, count);
    struct work work = {questions, bytes_asked};
    arena_free(&arena);
    drop(graph);
    return work;
}

/* Ten times the operations cause ten times the queries to families and require ten times the memory, not a hundred
   times. */
static void test_partition_is_linear(void) {
    struct work few = partition_chain(1200), many = partition_chain(12000);
    CHECK(many.questions <= 11 * few.questions, "%lld questions of 1200 operations, %lld of 12000",
          (long long)few.questions, (long long)many.questions);
    CHECK(many.bytes <= 12 * few.bytes, "%lld bytes for 1200 operations, %lld for 12000", (long long)few.bytes,
          (long long)many.bytes);
}

int main(void) {
    RUN(test_partition_is_linear());
    RUN(test_wide());
    RUN(test_chain());
    return harness_end();
}
