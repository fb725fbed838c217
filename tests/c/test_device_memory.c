/* SPDX-License-Identifier: Apache-2.0 */
/* weftAllocate, weftFree, weftCopy, weftSynchronize and weftMeasure on the CPU and on a fake GPU: what they give, what they
   refuse by exact words, and every call to the driver failing in turn, which must leave nothing behind. */
#define _GNU_SOURCE
#include "scenario.h"

#include <pthread.h>

static weftHandle_t open_device(weftDeviceKind_t kind) {
    weftHandle_t handle = NULL;
    MUST(weftCreateForDevice(&handle, kind, 0));
    return handle;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void check_memory(weftHandle_t handle) {
    static const char words[] = "there and back again";
    char back[sizeof words] = "";
    void *memory = NULL, *other = NULL, *none = &memory;
    MUST(weftAllocate(handle, sizeof words, &memory));
    MUST(weftAllocate(handle, sizeof words, &other));
    CHECK((uintptr_t)memory % 64 == 0 && (uintptr_t)other % 64 == 0, "%p, %p", memory, other);
    MUST(weftCopy(handle, memory, words, sizeof words, NULL));
    MUST(weftCopy(handle, other, memory, sizeof words, NULL));
    MUST(weftCopy(handle, back, other, sizeof words, NULL));
    EXACTLY(back, "%s", words);
    MUST(weftSynchronize(handle, NULL));
    MUST(weftFree(handle, memory));
    MUST(weftFree(handle, other));
    MUST(weftAllocate(handle, 0, &none));
    CHECK(!none, "no bytes are no memory");
    MUST(weftCopy(handle, NULL, NULL, 0, NULL));
    MUST(weftFree(handle, NULL));
}

static void check_refusals(weftHandle_t handle) {
    char byte = 0;
    REFUSED(weftAllocate(handle, 8, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftAllocate: address is NULL. Give the address of a pointer.");
    REFUSED(weftCopy(handle, NULL, &byte, 1, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftCopy: the destination is NULL. Give the address of 1 bytes.");
    REFUSED(weftCopy(handle, &byte, NULL, 1, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftCopy: the source is NULL. Give the address of 1 bytes.");
    CHECK(weftAllocate(NULL, 8, (void *[]){NULL}) == WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s", last_error());
    CHECK(strncmp(last_error(), "weftAllocate: ", 14) == 0, "%s", last_error());
}

static void on_the_cpu(void) {
    weftHandle_t handle = open_device(WEFT_DEVICE_CPU);
    check_memory(handle);
    check_refusals(handle);
    MUST(weftDestroy(handle));
}

static void on_a_gpu(void) {
    open_fake();
    weftHandle_t handle = open_device(WEFT_DEVICE_CUDA);
    struct fake_counts counts;
    char text[512];
    check_memory(handle);
    check_refusals(handle);
    fake->counts(&counts);
    CHECK(counts.allocations == 0 && counts.current == 0, "%d allocations, %d current", counts.allocations,
          counts.current);
    CHECK(fake->misuses(text, sizeof text) == 0, "%s", text);
    MUST(weftDestroy(handle));
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

/* y = -x on four numbers. */
static desc negation(weftHandle_t handle) {
    desc x = tensor(1, DIMS(4)), y = tensor(2, DIMS(4)), op = pointwise(WEFT_POINTWISE_NEG, x, NULL, y);
    desc graph = make(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR), plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(weftBackendSetAttribute(graph, WEFT_ATTR_OPERATIONGRAPH_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    MUST(set_held(graph, WEFT_ATTR_OPERATIONGRAPH_OPS, op));
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT, finalized(graph)));
    finalized(plan);
    drop(x), drop(y), drop(op), drop(graph);
    return plan;
}

static void measuring(void) {
    weftHandle_t handle = open_device(WEFT_DEVICE_CPU);
    desc plan = negation(handle);
    _Alignas(64) float x[4] = {1, 2, 3, 4}, y[4] = {0};
    const uint64_t slots[] = {(uintptr_t)x, (uintptr_t)y};
    double seconds = -1;
    MUST(weftMeasure(plan, 2, slots, NULL, NULL, 3, &seconds));
    CHECK(seconds > 0 && seconds < 1 && y[3] == -4, "%g s, %g", seconds, (double)y[3]);
    REFUSED(weftMeasure(plan, 2, slots, NULL, NULL, 0, &seconds), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "weftMeasure: repeats is 0; it must be 1 or more. Give how often to run the plan.");
    REFUSED(weftMeasure(plan, 2, slots, NULL, NULL, 1, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftMeasure: seconds is NULL. Give the address of a double.");
    REFUSED(weftMeasure(plan, 1, slots, NULL, NULL, 1, &seconds), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
            "weftExecute: 1 pointers for 2 slots. Give one per slot, in the order of attribute slot_unique_ids.");
    drop(plan);
    MUST(weftDestroy(handle));
}

/* The fake's events are a quarter of a millisecond apart, whatever lies between them. */
static void measuring_on_a_gpu(void) {
    open_fake();
    weftHandle_t handle = open_device(WEFT_DEVICE_CUDA);
    desc plan = negation(handle);
    void *x, *y;
    double seconds = -1;
    struct fake_counts counts;
    MUST(weftAllocate(handle, 16, &x));
    MUST(weftAllocate(handle, 16, &y));
    const uint64_t slots[] = {(uintptr_t)x, (uintptr_t)y};
    int64_t before = fake->launches();
    MUST(weftMeasure(plan, 2, slots, NULL, NULL, 5, &seconds));
    CHECK(seconds == 0.25e-3 / 5, "%g s", seconds);
    CHECK(fake->launches() == before + 5, "%lld launches", (long long)(fake->launches() - before));
    const char *failed = "";
    for (int64_t nth = 1; failed && !strstr(failed, "Destroy"); nth++) { /* each call to the driver failing in turn */
        fake->fail_at(nth, 999);
        weftStatus_t status = weftMeasure(plan, 2, slots, NULL, NULL, 2, &seconds);
        failed = fake->failed_call();
        fake->fail_at(0, 0);
        fake->counts(&counts);
        bool is_cleanup_call = failed && strstr(failed, "Destroy"); /* what it could not free stays */
        CHECK(is_cleanup_call || (counts.events == 0 && counts.current == 0), "%s: %d events, %d current",
              failed ? failed : "none", counts.events, counts.current);
        CHECK(is_cleanup_call || status == WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "%s: %s", failed,
              weftGetErrorString(status));
    }
    MUST(weftFree(handle, x));
    MUST(weftFree(handle, y));
    drop(plan);
    MUST(weftDestroy(handle));
}

/* ---- The machine ------------------------------------------------------------------------------------------------- */

static void describing(void) {
    static char text[65536];
    size_t size = 0;
    MUST(weftDescribeMachine(NULL, 0, &size));
    CHECK(size > 2 && size <= sizeof text, "%zu bytes", size);
    MUST(weftDescribeMachine(text, sizeof text, NULL));
    CHECK(
        strstr(text,
               "{\"driver\":{\"version\":\"13.0\",\"gpus\":2,\"problem\":null},\"arch\":\"sm_90a\",\"compilers\":[{") ==
            text,
        "%s", text);
    CHECK(strstr(text, "\"is_chosen\":true") && strstr(text, ",\"cache\":{\"compiled\":0,"), "%s", text);
}

static void describing_without_a_driver(void) {
    static char text[65536];
    MUST(weftDescribeMachine(text, sizeof text, NULL));
    CHECK(strstr(text, "{\"driver\":{\"version\":null,\"gpus\":0,\"problem\":\"CUDA driver: ") == text, "%s", text);
}

int main(void) {
    const char *const driver = "WEFT_LIBCUDA=" FAKE_CUDA, *const compiler = "WEFT_NVRTC=" FAKE_NVRTC;
    on_the_cpu();
    measuring();
    IN_CHILD(on_a_gpu, driver);
    IN_CHILD(measuring_on_a_gpu, driver, compiler);
    IN_CHILD(describing, driver, compiler);
    IN_CHILD(describing_without_a_driver, "WEFT_LIBCUDA=/nowhere/libcuda.so.1", compiler);
    remove_scratch();
    return harness_end();
}
