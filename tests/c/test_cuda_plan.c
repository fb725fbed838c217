/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for a GPU, without a GPU: the engine "cuda" with the driver and the compiler of tests/fake_cuda. Covers the
   driver calls of an execution, operations that an execution must not perform, the failure of each call in turn,
   several devices, stream capture, and threads. Linked with --wrap, so that the library's allocations pass through this
   file. Build with WEFT_SANITIZE=thread to detect races. */
#define _GNU_SOURCE
#include "scenario.h"

#include "base/hash.h"
#include "runtime/device.h"

#include <pthread.h>
#include <sys/mman.h>

enum { THREADS = 8, ROWS = 32, WIDTH = 64, WORKSPACE_BYTES = 1 << 20, SLOTS = 4 };

static const char *const driver = "WEFT_LIBCUDA=" FAKE_CUDA, *const compiler = "WEFT_NVRTC=" FAKE_NVRTC;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

static atomic_int allocations;

void *__wrap_malloc(size_t bytes) { return atomic_fetch_add(&allocations, 1), __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) {
    return atomic_fetch_add(&allocations, 1), __real_calloc(count, bytes);
}
void *__wrap_realloc(void *old, size_t bytes) { return atomic_fetch_add(&allocations, 1), __real_realloc(old, bytes); }

/* ---- Graphs and plans -------------------------------------------------------------------------------------------- */

/* y = relu(x): one kernel. */
static desc relu_graph(struct extents dims) {
    desc x = tensor(1, dims), y = tensor(2, dims), op = pointwise(WEFT_POINTWISE_RELU_FWD, x, NULL, y);
    desc graph = graph_of(1, &op);
    drop(x), drop(y);
    return graph;
}

/* y = relu(relu(softmax(x w)) v), with uids 1 to 4. It needs at least three kernels, because the inner relu prevents a
   match of the attention pattern. */
static desc chain_graph(void) {
    desc x = tensor(1, DIMS(ROWS, WIDTH)), w = tensor(2, DIMS(WIDTH, WIDTH)), v = tensor(3, DIMS(WIDTH, WIDTH));
    desc y = tensor(4, DIMS(ROWS, WIDTH)), xw = virtual_tensor(5), soft = virtual_tensor(6),
         clipped = virtual_tensor(7), product = virtual_tensor(8);
    desc list[5] = {matmul(x, w, xw), make(WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR)};
    MUST(set_held(list[1], WEFT_ATTR_OPERATION_SOFTMAX_XDESC, xw));
    MUST(set_held(list[1], WEFT_ATTR_OPERATION_SOFTMAX_YDESC, soft));
    MUST(set_number(list[1], WEFT_ATTR_OPERATION_SOFTMAX_AXIS_EXT, 1));
    MUST(weftBackendFinalize(list[1]));
    list[2] = pointwise(WEFT_POINTWISE_RELU_FWD, soft, NULL, clipped);
    list[3] = matmul(clipped, v, product);
    list[4] = pointwise(WEFT_POINTWISE_RELU_FWD, product, NULL, y);
    desc graph = graph_of(5, list);
    drop(x), drop(w), drop(v), drop(y), drop(xw), drop(soft), drop(clipped), drop(product);
    return graph;
}

static weftHandle_t gpu(int32_t ordinal) {
    weftHandle_t handle = NULL;
    MUST(weftCreateForDevice(&handle, WEFT_DEVICE_CUDA, ordinal));
    return handle;
}

static desc open_gpu_plan(desc graph, weftHandle_t handle) {
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT, graph));
    if (handle)
        MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    return plan;
}

static int64_t workspace_of(desc plan) { return get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE); }

/* Memory of one execution. Kernels do not run, so its content does not matter. */
struct memory {
    _Alignas(64) float slots[SLOTS][WIDTH * WIDTH];
    _Alignas(64) char workspace[WORKSPACE_BYTES];
};

static weftStatus_t execute(desc plan, int64_t count, struct memory *m, void *stream) {
    uint64_t pointers[SLOTS];
    for (int i = 0; i < SLOTS; i++)
        pointers[i] = (uintptr_t)m->slots[i];
    return weftExecute(plan, count, pointers, m->workspace, stream);
}

static struct fake_launch launch_at(int64_t index) {
    struct fake_launch launch = {0};
    CHECK(fake->launch(index, &launch), "no launch %lld", (long long)index);
    return launch;
}

/* True if an argument of a launch is this address. */
static bool has_argument(const struct fake_launch *launch, const void *address) {
    uint64_t words[sizeof launch->arguments / 8];
    memcpy(words, launch->arguments, sizeof words);
    for (size_t i = 0; i < launch->argument_bytes / 8 && i < sizeof words / 8; i++)
        if (words[i] == (uintptr_t)address)
            return true;
    return false;
}

static atomic_int *of_compiler(const char *name) {
    atomic_int *found = dlsym(dlopen(getenv("WEFT_NVRTC"), RTLD_NOW), name);
    if (!found)
        abort();
    return found;
}

/* ---- Driver calls of an execution -------------------------------------------------------------------------------- */

static void one_kernel(void) {
    static struct memory m;
    static int stream;
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = relu_graph(DIMS(4)), plan = finalized(open_gpu_plan(graph, handle));
    MUST(execute(plan, 2, &m, &stream));
    CHECK(fake->launches() == 1, "%lld launches", (long long)fake->launches());
    struct fake_launch launch = launch_at(0);
    EXACTLY(launch.kernel, "map");
    CHECK(launch.device == 0 && launch.stream == &stream && launch.grid[0] == 1, "%d %p %u", launch.device,
          launch.stream, launch.grid[0]);
    CHECK(has_argument(&launch, m.slots[0]) && has_argument(&launch, m.slots[1]), "the addresses are arguments");

    MUST(weftSetStream(handle, &launch));
    desc pack = finalized(open_pack(2, (int64_t[]){1, 2}, (void *[]){m.slots[2], m.slots[3]}));
    MUST(weftBackendExecute(handle, plan, pack));
    launch = launch_at(1);
    CHECK(launch.stream != &stream && has_argument(&launch, m.slots[2]) && has_argument(&launch, m.slots[3]),
          "the handle's stream, the pack's memory");
    drop(pack), drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* A workspace limit skips families that need more, and a saved plan keeps the limit. */
static void little_workspace(void) {
    open_fake();
    weftHandle_t handle = gpu(0);
    const int64_t dims[3][2] = {{2048, 2047}, {2047, 256}, {2048, 256}};
    desc t[3];
    for (int i = 0; i < 3; i++) {
        t[i] = open_tensor(1 + i, DIMS(dims[i][0], dims[i][1]));
        MUST(set_enum(t[i], WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_BFLOAT16));
        MUST(weftBackendFinalize(t[i]));
    }
    desc op = matmul(t[0], t[1], t[2]), graph = graph_of(1, &op), plan = finalized(open_gpu_plan(graph, handle));
    drop(t[0]), drop(t[1]), drop(t[2]);
    CHECK(get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) > 0, "a factor is packed");
    drop(plan);
    plan = open_gpu_plan(graph, handle);
    MUST(set_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, 0));
    MUST(weftBackendFinalize(plan));
    int64_t bytes;
    char *blob = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes);
    desc loaded = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    MUST(weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
    MUST(weftBackendFinalize(loaded));
    for (int i = 0; i < 2; i++) {
        desc each = i ? loaded : plan;
        char *tag = get_text(each, WEFT_ATTR_EXECUTION_PLAN_TAG_EXT, NULL);
        EXACTLY(tag, "eng0_k%d=0", WEFT_KNOB_TYPE_WORKSPACE);
        CHECK(get_number(each, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) == 0, "none is left");
        free(tag);
    }
    free(blob);
    drop(plan), drop(loaded), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

static desc load_plan(weftHandle_t handle, desc saved, bool element_aligned) {
    int64_t bytes;
    char *blob = get_text(saved, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes);
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
    if (element_aligned)
        MUST(set_flag(plan, WEFT_ATTR_EXECUTION_PLAN_ELEMENT_ALIGNED_EXT, true));
    MUST(weftBackendFinalize(plan));
    free(blob);
    return plan;
}

static void check_alignment(desc plan, struct memory *m, int declared, int64_t taken) {
    char *x = (char *)m->slots[0], *y = (char *)m->slots[1];
    for (int64_t at = 1; at < taken; at++) {
        const char *what = taken == 4 ? "an element, 4 bytes. Copy the elements to an aligned address."
                                      : "16 bytes. Align the memory, set a smaller alignment on the "
                                        "tensor, or build the plan with element_aligned.";
        REFUSED(weftExecute(plan, 2, (uint64_t[]){(uintptr_t)(x + at), (uintptr_t)y}, NULL, NULL),
                WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor (uid 1): pointer %p is not aligned to %s",
                (void *)(x + at), what);
        REFUSED(weftExecute(plan, 2, (uint64_t[]){(uintptr_t)x, (uintptr_t)(y + at)}, NULL, NULL),
                WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor (uid 2): pointer %p is not aligned to %s",
                (void *)(y + at), what);
    }
    MUST(weftExecute(plan, 2, (uint64_t[]){(uintptr_t)(x + taken), (uintptr_t)(y + taken)}, NULL, NULL));
    char *report = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT, NULL), wanted[32];
    snprintf(wanted, sizeof wanted, "\"alignment\":%lld,", (long long)taken);
    CHECK(strstr(report, wanted), "declared %d: no %s in %s", declared, wanted, report);
    free(report);
}

/* A plan accepts the alignment that its tensors declare, but no address inside an element. With element_aligned it
   accepts any element, and so does a saved copy of such a plan. */
static void less_aligned(void) {
    static struct memory m;
    open_fake();
    weftHandle_t handle = gpu(0);
    for (int declared = 2; declared <= 16; declared *= 2) {
        desc t[2];
        for (int i = 0; i < 2; i++) {
            t[i] = open_tensor(1 + i, DIMS(64));
            MUST(set_number(t[i], WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, declared));
            MUST(weftBackendFinalize(t[i]));
        }
        desc op = pointwise(WEFT_POINTWISE_RELU_FWD, t[0], NULL, t[1]), graph = graph_of(1, &op);
        desc plan = finalized(open_gpu_plan(graph, handle)), in_place = open_gpu_plan(graph, handle);
        MUST(set_flag(in_place, WEFT_ATTR_EXECUTION_PLAN_ELEMENT_ALIGNED_EXT, true));
        MUST(weftBackendFinalize(in_place));
        desc made[] = {load_plan(handle, plan, true), load_plan(handle, in_place, false)};
        if (declared != 8)
            check_alignment(plan, &m, declared, declared < 4 ? 4 : declared);
        check_alignment(in_place, &m, declared, 4);
        for (int i = 0; i < 2; i++)
            check_alignment(made[i], &m, declared, 4), drop(made[i]);
        drop(t[0]), drop(t[1]), drop(plan), drop(in_place), drop(graph);
    }
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* Number of allocations when a plan runs on y = relu(x) of `extent` elements. */
static int allocations_of(weftHandle_t handle, desc plan, struct memory *m, int64_t extent) {
    desc pack = open_pack(2, (int64_t[]){1, 2}, (void *[]){m->slots[0], m->slots[1]});
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 2, (int64_t[]){1, 2}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 2, (int64_t[]){extent, extent}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 2, (int64_t[]){1, 1}));
    MUST(weftBackendFinalize(pack));
    int before = allocations;
    MUST(weftBackendExecute(handle, plan, pack));
    int made = allocations - before;
    drop(pack);
    return made;
}

/* A plan caches its state for the 32 most recent shapes, and creates each once. */
static void kept_shapes(void) {
    static struct memory m;
    enum { KEPT = 32 };
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = relu_graph(DIMS(4)), plan = finalized(open_gpu_plan(graph, handle));
    for (int turn = 0; turn < 2; turn++)
        for (int64_t extent = 1; extent <= KEPT; extent++) {
            int made = allocations_of(handle, plan, &m, extent);
            CHECK((made == 0) == (turn == 1), "turn %d, %lld elements: %d allocations", turn, (long long)extent, made);
        }
    CHECK(allocations_of(handle, plan, &m, 1) == 0, "the oldest of them is the newest now");
    CHECK(allocations_of(handle, plan, &m, KEPT + 1) > 0, "one shape more");
    CHECK(allocations_of(handle, plan, &m, 1) == 0, "ran last but one");
    CHECK(allocations_of(handle, plan, &m, 3) == 0, "the oldest that is kept");
    CHECK(allocations_of(handle, plan, &m, 2) > 0, "the oldest was dropped");
    drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* Kernels that copy with tensor maps get maps encoded for the addresses of the current execution. */
static void tensor_maps(void) {
    open_fake();
    weftHandle_t handle = gpu(0);
    desc t[3];
    for (int i = 0; i < 3; i++) {
        t[i] = open_tensor(1 + i, DIMS(4096, 4096));
        MUST(set_enum(t[i], WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_BFLOAT16));
        MUST(weftBackendFinalize(t[i]));
    }
    desc op = matmul(t[0], t[1], t[2]), graph = graph_of(1, &op), plan = finalized(open_gpu_plan(graph, handle));
    drop(t[0]), drop(t[1]), drop(t[2]);
    for (uint64_t day = 1; day <= 2; day++) { /* the addresses are not dereferenced */
        const uint64_t addresses[] = {day << 40, day << 41, day << 42};
        MUST(weftExecute(plan, 3, addresses, (void *)(UINT64_C(1) << 45), NULL));
        struct fake_launch launch = launch_at(fake->launches() - 1);
        EXACTLY(launch.kernel, "product_pingpong_sm90");
        CHECK(has_argument(&launch, (void *)(day << 40)) && has_argument(&launch, (void *)(day << 41)), "day %d",
              (int)day);
    }
    drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* An execution only enters the context, launches and leaves; it neither allocates nor synchronizes. */
static void bare_execution(void) {
    static struct memory m;
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graphs[] = {relu_graph(DIMS(4)), chain_graph()};
    for (int i = 0; i < 2; i++) {
        desc plan = finalized(open_gpu_plan(graphs[i], handle));
        int64_t slots = i ? 4 : 2, calls = fake->calls(), launches = fake->launches();
        int before = allocations;
        CHECK(workspace_of(plan) <= WORKSPACE_BYTES, "%lld bytes", (long long)workspace_of(plan));
        fake->begin_execution();
        MUST(execute(plan, slots, &m, NULL));
        fake->end_execution();
        CHECK(allocations == before, "an execution allocates %d times", allocations - before);
        launches = fake->launches() - launches;
        CHECK(launches >= (i ? 3 : 1), "%lld launches", (long long)launches);
        CHECK(fake->calls() - calls <= launches + 3 * (i ? 3 : 1), "%lld calls for %lld launches",
              (long long)(fake->calls() - calls), (long long)launches);
        drop(plan), drop(graphs[i]);
    }
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* Empty tensors launch no kernels. */
static void empty_tensors(void) {
    static struct memory m;
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = relu_graph(DIMS(4, 0)), plan = finalized(open_gpu_plan(graph, handle));
    MUST(execute(plan, 2, &m, NULL));
    CHECK(fake->launches() == 0, "%lld launches", (long long)fake->launches());
    drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(-1);
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

/* A chain of matmuls: at most two of its intermediates are live at a time. */
static desc long_chain(int count) {
    desc list[16], x = tensor(1, DIMS(WIDTH, WIDTH)), w = tensor(2, DIMS(WIDTH, WIDTH)), before = x;
    for (int i = 0; i < count; i++) {
        desc after = i + 1 < count ? virtual_tensor(10 + i) : tensor(3, DIMS(WIDTH, WIDTH));
        list[i] = matmul(before, w, after);
        drop(before);
        before = after;
    }
    drop(before), drop(w);
    return graph_of(count, list);
}

static void in_workspace(void) {
    static struct memory m;
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = long_chain(8), plan = finalized(open_gpu_plan(graph, handle));
    int64_t needed = workspace_of(plan), one = WIDTH * WIDTH * (int64_t)sizeof(float);
    CHECK(needed >= 2 * one && needed <= 3 * one, "%lld bytes for intermediates of %lld", (long long)needed,
          (long long)one);
    MUST(execute(plan, 3, &m, NULL));
    CHECK(fake->launches() >= 8, "%lld launches", (long long)fake->launches());
    for (int64_t i = 0; i < fake->launches(); i++) {
        struct fake_launch launch = launch_at(i);
        bool reads_x = has_argument(&launch, m.slots[0]), writes_y = has_argument(&launch, m.slots[2]), inside = false;
        for (int64_t at = 0; at < needed; at += 64)
            inside |= has_argument(&launch, m.workspace + at);
        CHECK(inside && reads_x == (i == 0) && has_argument(&launch, m.slots[1]), "launch %lld", (long long)i);
        CHECK(writes_y == (i + 1 == fake->launches()), "launch %lld", (long long)i);
    }
    drop(plan);
    plan = open_gpu_plan(graph, handle);
    MUST(set_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, needed - 1));
    REFUSED(
        weftBackendFinalize(plan), WEFT_STATUS_NOT_SUPPORTED,
        "execution plan: engine cuda.tf32 needs %lld bytes of workspace, the limit is %lld. Raise workspace_limit or "
        "choose another engine.",
        (long long)needed, (long long)needed - 1);
    MUST(set_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, needed));
    MUST(weftBackendFinalize(plan));
    drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* ---- Several devices --------------------------------------------------------------------------------------------- */

static void two_devices(void) {
    static struct memory m;
    open_fake();
    weftHandle_t handles[2] = {gpu(0), gpu(1)};
    desc graph = relu_graph(DIMS(4)), plans[2], pack = finalized(open_pack(2, (int64_t[]){1, 2}, (void *[]){&m, &m}));
    for (int i = 0; i < 2; i++)
        plans[i] = finalized(open_gpu_plan(graph, handles[i]));
    CHECK(*of_compiler("fake_nvrtc_compiles") == 1, "%d compilations of one program for equal chips",
          *of_compiler("fake_nvrtc_compiles"));
    for (int i = 0; i < 2; i++) {
        MUST(weftBackendExecute(handles[i], plans[i], pack));
        CHECK(launch_at(i).device == i, "device %d", launch_at(i).device);
        REFUSED(
            weftBackendExecute(handles[1 - i], plans[i], pack), WEFT_STATUS_BAD_PARAM,
            "weftBackendExecute: the plan is for cuda:%d, the handle for cuda:%d. Use a handle of the plan's device.",
            i, 1 - i);
    }
    desc other = make(WEFT_BACKEND_DEVICEPROP_DESCRIPTOR), plan = open_gpu_plan(graph, handles[0]);
    MUST(weftBackendSetAttribute(other, WEFT_ATTR_DEVICEPROP_HANDLE, WEFT_TYPE_HANDLE, 1, &handles[1]));
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_DEVICEPROP, finalized(other)));
    REFUSED(weftBackendFinalize(plan), WEFT_STATUS_BAD_PARAM,
            "execution plan: a plan runs on the device that it was built for: the properties name cuda:1 (Fake GPU 1, "
            "sm_90), the handle cuda:0 (Fake GPU 0, sm_90). Pass a handle of that device, or no properties.");
    drop(plan), drop(other);
    for (int i = 0; i < 2; i++)
        drop(plans[i]);
    drop(pack), drop(graph);
    MUST(weftDestroy(handles[0]));
    MUST(weftDestroy(handles[1]));
    check_clean(2);
}

/* ---- Captured streams -------------------------------------------------------------------------------------------- */

static void *build_one(void *unused) {
    desc graph = relu_graph(DIMS(3, 5)), plan = open_gpu_plan(graph, NULL);
    MUST(weftBackendFinalize(plan));
    drop(plan), drop(graph);
    return unused;
}

/* Captured executions launch the same kernels; other threads may build plans meanwhile. */
static void captured(void) {
    static struct memory m;
    static int stream;
    pthread_t builder;
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = chain_graph(), plan = finalized(open_gpu_plan(graph, handle));
    fake->capture(&stream);
    MUST(execute(plan, 4, &m, &stream));
    CHECK(fake->launches() >= 3 && launch_at(0).stream == &stream, "%lld launches", (long long)fake->launches());
    REFUSED(
        execute(plan, 4, &m, NULL), WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
        "cuda:0: launching kernel '%s': the CUDA driver returned CUDA_ERROR_STREAM_CAPTURE_IMPLICIT (906: words for "
        "906). Work on the default stream would join a capture: execute on the captured stream.",
        launch_at(0).kernel);
    pthread_create(&builder, NULL, build_one, NULL);
    pthread_join(builder, NULL);
    fake->capture(NULL);
    drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* ---- As one CUDA graph ------------------------------------------------------------------------------------------- */

static desc open_replayed_plan(desc graph, weftHandle_t handle) {
    desc plan = open_gpu_plan(graph, handle);
    MUST(set_flag(plan, WEFT_ATTR_EXECUTION_PLAN_CUDA_GRAPH_EXT, true));
    return plan;
}

static int graphs_alive(void) {
    struct fake_counts counts;
    fake->counts(&counts);
    return counts.graphs;
}

/* A graph contains the same kernels in the same order as separate launches. A run on the same memory creates nothing,
   and calls the driver as often as one kernel does. A run on other memory updates the same graph. */
static void replayed(void) {
    static struct memory memories[2];
    static int stream;
    struct fake_launch single[16];
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = chain_graph(), plain = finalized(open_gpu_plan(graph, handle));
    desc plan = finalized(open_replayed_plan(graph, handle));
    MUST(execute(plain, 4, &memories[0], &stream));
    int64_t count = fake->launches();
    for (int64_t i = 0; i < count; i++)
        single[i] = launch_at(i);
    for (int run = 0; run < 5; run++) {
        const struct memory *m = &memories[run / 2 % 2];
        int64_t calls = fake->calls(), first = fake->launches();
        int before = allocations;
        bool is_again = run == 1 || run == 3;
        if (is_again)
            fake->begin_execution();
        MUST(execute(plan, 4, (struct memory *)m, &stream));
        fake->end_execution();
        CHECK(fake->launches() - first == count, "%lld launches", (long long)(fake->launches() - first));
        CHECK(graphs_alive() == 1, "run %d: %d graphs", run, graphs_alive());
        CHECK(!is_again || allocations == before, "run %d allocates", run);
        CHECK(!is_again || fake->calls() - calls <= 5, "run %d: %lld calls", run, (long long)(fake->calls() - calls));
        for (int64_t i = 0; i < count; i++) {
            const struct fake_launch launch = launch_at(first + i);
            bool is_same = !memcmp(launch.arguments, single[i].arguments, sizeof launch.arguments);
            CHECK(!strcmp(launch.kernel, single[i].kernel) && launch.stream == &stream, "%s", launch.kernel);
            CHECK(launch.is_dependent == single[i].is_dependent, "%s", launch.kernel);
            CHECK(is_same == (m == &memories[0]), "run %d, kernel %lld: arguments", run, (long long)i);
        }
    }
    drop(plan), drop(plain), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* The key of a cached graph contains each address, each by-value number and the workspace. If one of them differs, the
   plan captures again, and its kernels are launched with the new value. */
static void replayed_with_one_difference(void) {
    static struct memory memory, other;
    static int stream;
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = chain_graph(), plan = finalized(open_replayed_plan(graph, handle));
    CHECK(workspace_of(plan) > 0, "the workspace holds values between the kernels");
    for (int difference = 0; difference <= 4; difference++) { /* the slots, then the workspace */
        uint64_t pointers[4];
        void *workspace = memory.workspace, *expected = other.workspace;
        for (int i = 0; i < 4; i++)
            pointers[i] = (uintptr_t)memory.slots[i];
        MUST(weftExecute(plan, 4, pointers, workspace, &stream));
        if (difference < 4)
            pointers[difference] = (uintptr_t)(expected = other.slots[difference]);
        else
            workspace = expected;
        int64_t first = fake->launches(), count;
        MUST(weftExecute(plan, 4, pointers, workspace, &stream));
        bool is_seen = false;
        count = fake->launches();
        for (int64_t i = first; i < count; i++) {
            struct fake_launch launch = launch_at(i);
            is_seen = is_seen || has_argument(&launch, expected);
        }
        CHECK(is_seen, "difference %d: no kernel is launched with the other address", difference);
    }
    drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* While the caller captures its own graph, kernels are launched one by one. */
static void replayed_while_captured(void) {
    static struct memory m;
    static int stream;
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = chain_graph(), plan = finalized(open_replayed_plan(graph, handle));
    fake->capture(&stream);
    MUST(execute(plan, 4, &m, &stream));
    CHECK(fake->launches() >= 3 && graphs_alive() == 0, "%lld launches", (long long)fake->launches());
    REFUSED(
        execute(plan, 4, &m, NULL), WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
        "cuda:0: launching kernel '%s': the CUDA driver returned CUDA_ERROR_STREAM_CAPTURE_IMPLICIT (906: words for "
        "906). Work on the default stream would join a capture: execute on the captured stream.",
        launch_at(0).kernel);
    fake->capture(NULL);
    drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* ---- Each call failing in turn ----------------------------------------------------------------------------------- */

/* Builds and runs a plan of several kernels on the second GPU, and stops at the first failure. */
static weftStatus_t build_and_run(void) {
    static struct memory m, memories[2];
    weftHandle_t handle = NULL;
    weftStatus_t status = weftCreateForDevice(&handle, WEFT_DEVICE_CUDA, 1);
    if (status)
        return status;
    desc graph = chain_graph(), plan = open_gpu_plan(graph, handle), replayed_plan = open_replayed_plan(graph, handle);
    status = weftBackendFinalize(plan);
    if (!status)
        status = execute(plan, 4, &m, NULL);
    if (!status)
        status = weftBackendFinalize(replayed_plan);
    for (int i = 0; i < 2 && !status; i++) /* the second run updates the graph to other memory */
        status = execute(replayed_plan, 4, &memories[i], NULL);
    char kept[4096]; /* destroying the objects resets the error */
    snprintf(kept, sizeof kept, "%s", last_error());
    drop(plan), drop(replayed_plan), drop(graph);
    MUST(weftDestroy(handle));
    if (status)
        status_fail(status, "%s", kept);
    return status;
}

static struct {
    int64_t driver_calls, compiler_calls;
} *total; /* shared with child processes */

static void counting(void) {
    open_fake();
    MUST(build_and_run());
    check_clean(1);
    total->driver_calls = fake->calls();
    total->compiler_calls = *of_compiler("fake_nvrtc_calls");
}

static int64_t failing_call;

static void failing_driver(void) {
    open_fake();
    fake->fail_at(failing_call, 999);
    weftStatus_t status = build_and_run();
    const char *call = fake->failed_call();
    CHECK(call, "call %lld did not come", (long long)failing_call);
    if (!call)
        return;
    bool is_start = strcmp(call, "cuInit") == 0 || strcmp(call, "cuDeviceGetCount") == 0;
    CHECK(status || is_cleanup(call), "%s failed, and nobody said so", call);
    if (status) {
        CHECK(status == WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "%s: %s", call, weftGetErrorString(status));
        CHECK(strstr(last_error(), " returned CUDA_ERROR_UNKNOWN (999: words for 999). See nvidia-smi"), "%s: %s", call,
              last_error());
    }
    status_clear();
    fake->fail_at(0, 0);
    if (is_start || is_cleanup(call))
        return;
    check_clean(-1);
    MUST(build_and_run());
    check_clean(1);
}

static void failing_compiler(void) {
    open_fake();
    *of_compiler("fake_nvrtc_fail_call") = (int)failing_call;
    weftStatus_t status = build_and_run();
    CHECK(!status || status == WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, "%s", weftGetErrorString(status));
    CHECK(!status || (strstr(last_error(), "NVRTC 13.0, sm_90a: ") && strstr(last_error(), "NVRTC_ERROR_OTHER")), "%s",
          last_error());
    status_clear();
    CHECK(*of_compiler("fake_nvrtc_alive") == 0, "%d programs alive", *of_compiler("fake_nvrtc_alive"));
    check_clean(-1);
    MUST(build_and_run());
    check_clean(1);
}

static void test_each_call_failing(void) {
    total = mmap(NULL, sizeof *total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    IN_CHILD(counting, driver, compiler, "WEFT_THREADS=1");
    CHECK(total->driver_calls > 50 && total->compiler_calls >= 3 * 5, "%lld and %lld calls",
          (long long)total->driver_calls, (long long)total->compiler_calls);
    for (failing_call = 1; failing_call <= total->driver_calls; failing_call++)
        IN_CHILD(failing_driver, driver, compiler, "WEFT_THREADS=1");
    for (failing_call = 1; failing_call <= total->compiler_calls; failing_call++)
        IN_CHILD(failing_compiler, driver, compiler);
}

/* ---- Damaged saved plans ----------------------------------------------------------------------------------------- */

enum { BLOBS = 600, HEADER_BYTES = 56, HASH_AT = 24 };

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Changes a few bits or bytes of a graph and fixes the hash: the plan loads or is refused, whatever the families then
   receive. */
static void mutations(void) {
    uint64_t state = 1;
    int64_t bytes, survived = 0;
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = chain_graph(), plan = finalized(open_gpu_plan(graph, handle));
    char *blob = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes), *copy = malloc((size_t)bytes);
    for (int round = 0; round < BLOBS; round++) {
        memcpy(copy, blob, (size_t)bytes);
        for (uint64_t i = next_random(&state) % 3 + 1; i > 0; i--) {
            uint64_t at = HEADER_BYTES + next_random(&state) % (uint64_t)(bytes - HEADER_BYTES);
            uint64_t random = next_random(&state);
            copy[at] = (char)(random % 4 ? (uint64_t)copy[at] ^ UINT64_C(1) << random / 4 % 8 : random / 4);
        }
        struct sha256 hash;
        sha256_init(&hash);
        sha256_update(&hash, copy + HEADER_BYTES, (size_t)(bytes - HEADER_BYTES));
        sha256_final((uint8_t *)copy + HASH_AT, &hash);
        desc loaded = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        MUST(
            weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, copy));
        MUST(weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
        weftStatus_t status = weftBackendFinalize(loaded);
        survived += status == WEFT_STATUS_SUCCESS;
        CHECK(status == WEFT_STATUS_SUCCESS || *last_error(), "round %d: %s without a word", round,
              weftGetErrorString(status));
        drop(loaded);
    }
    CHECK(survived > 0 && survived < BLOBS, "%lld of %d blobs load", (long long)survived, BLOBS);
    free(blob), free(copy);
    drop(graph), drop(plan);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 20, SHAPES = 3 };

static desc shared_plan, shared_graph;
static weftHandle_t shared_handles[2];
static pthread_barrier_t start;

/* Threads run one plan, each on a separate stream and memory, and build plans of equal and of different programs. */
static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    struct memory *m = aligned_alloc(64, sizeof *m);
    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS; round++) {
        MUST(execute(shared_plan, 4, m, m)); /* the stream decides which memory is used */
        desc graph = relu_graph(DIMS(5, 1 + (round + thread) % SHAPES));
        desc plan = finalized(open_gpu_plan(graph, shared_handles[thread % 2]));
        MUST(execute(plan, 2, m, m));
        drop(plan), drop(graph);
        plan = finalized(open_gpu_plan(shared_graph, shared_handles[round % 2]));
        MUST(execute(plan, 4, m, m));
        drop(plan);
    }
    free(m);
    return NULL;
}

static void run_threads(desc (*open)(desc graph, weftHandle_t handle)) {
    pthread_t all[THREADS];
    open_fake();
    shared_handles[0] = gpu(0);
    shared_handles[1] = gpu(1);
    shared_graph = chain_graph();
    shared_plan = finalized(open(shared_graph, shared_handles[0]));
    int compiles = *of_compiler("fake_nvrtc_compiles");
    pthread_barrier_init(&start, NULL, THREADS);
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&all[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
    pthread_barrier_destroy(&start);
    int more = *of_compiler("fake_nvrtc_compiles") - compiles;
    CHECK(more <= SHAPES, "%d compilations more: threads that want one program wait for one compilation", more);
    int64_t launches = fake->launches();
    for (int64_t i = launches - 64; i < launches; i++) {
        struct fake_launch launch = launch_at(i);
        const struct memory *m = launch.stream;
        bool is_own = has_argument(&launch, m->slots[0]) || has_argument(&launch, m->slots[3]);
        for (int at = 0; at < WORKSPACE_BYTES && !is_own; at += 64)
            is_own = has_argument(&launch, m->workspace + at);
        CHECK(is_own, "launch %lld of '%s' has memory of another thread", (long long)i, launch.kernel);
    }
    drop(shared_plan), drop(shared_graph);
    MUST(weftDestroy(shared_handles[0]));
    MUST(weftDestroy(shared_handles[1]));
    check_clean(2);
}

static void threads(void) { run_threads(open_gpu_plan); }
static void threads_replayed(void) { run_threads(open_replayed_plan); }

/* The programs of one plan compile in parallel. */
static void parallel_compilation(void) {
    open_fake();
    weftHandle_t handle = gpu(0);
    desc graph = chain_graph(), plan = finalized(open_gpu_plan(graph, handle));
    int at_once = *of_compiler("fake_nvrtc_at_once"), wanted = device_host_threads() > 1 ? 2 : 1;
    CHECK(at_once >= wanted && at_once <= device_host_threads(), "%d at once", at_once);
    drop(plan), drop(graph);
    MUST(weftDestroy(handle));
    check_clean(1);
}

#ifdef __SANITIZE_THREAD__ /* it reports nothing on a single thread */
enum { THREADS_ALONE = true };
#else
enum { THREADS_ALONE = false };
#endif

static void test_one_thread(void) {
    IN_CHILD(one_kernel, driver, compiler);
    IN_CHILD(little_workspace, driver, compiler);
    IN_CHILD(less_aligned, driver, compiler);
    IN_CHILD(kept_shapes, driver, compiler);
    IN_CHILD(tensor_maps, driver, compiler);
    IN_CHILD(bare_execution, driver, compiler);
    IN_CHILD(empty_tensors, driver, compiler);
    IN_CHILD(in_workspace, driver, compiler);
    IN_CHILD(two_devices, driver, compiler);
    IN_CHILD(captured, driver, compiler);
    IN_CHILD(replayed, driver, compiler);
    IN_CHILD(replayed_with_one_difference, driver, compiler);
    IN_CHILD(replayed_while_captured, driver, compiler);
    test_each_call_failing();
    IN_CHILD(mutations, driver, compiler);
}

int main(void) {
    if (!THREADS_ALONE)
        test_one_thread();
    IN_CHILD(threads, driver, compiler);
    IN_CHILD(threads_replayed, driver, compiler);
    install_nvrtc("slow", 13, "delay 60\n");
    IN_CHILD(parallel_compilation, driver, place_variable("WEFT_NVRTC", "slow/libnvrtc.so.13"));
    IN_CHILD(parallel_compilation, driver, place_variable("WEFT_NVRTC", "slow/libnvrtc.so.13"), "WEFT_THREADS=1");
    remove_scratch();
    return harness_end();
}
