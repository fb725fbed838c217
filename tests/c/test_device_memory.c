/* SPDX-License-Identifier: Apache-2.0 */
/* weftAllocate, weftFree, their stream-ordered variants, weftCopy, weftSynchronize, weftIsCapturing and weftMeasure on
   the CPU and on a fake GPU: their results, the exact messages of refusals, and the failure of each driver call in
   turn, which must leak nothing. */
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
    MUST(weftAllocateOnStream(handle, sizeof words, NULL, &memory));
    CHECK((uintptr_t)memory % 64 == 0, "%p", memory);
    MUST(weftCopy(handle, memory, words, sizeof words, NULL));
    MUST(weftFreeOnStream(handle, sizeof words, NULL, memory));
    MUST(weftAllocateOnStream(handle, 0, NULL, &none));
    CHECK(!none, "no bytes are no memory");
    MUST(weftFreeOnStream(handle, 0, NULL, NULL));
}

static void check_refusals(weftHandle_t handle) {
    char byte = 0;
    REFUSED(weftAllocate(handle, 8, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftAllocate: address is NULL. Give the address of a pointer.");
    REFUSED(weftAllocateOnStream(handle, 8, NULL, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftAllocateOnStream: address is NULL. Give the address of a pointer.");
    REFUSED(weftCopy(handle, NULL, &byte, 1, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftCopy: the destination is NULL. Give the address of 1 bytes.");
    REFUSED(weftCopy(handle, &byte, NULL, 1, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftCopy: the source is NULL. Give the address of 1 bytes.");
    REFUSED(weftIsCapturing(handle, NULL, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftIsCapturing: isCapturing is NULL. Give the address of an integer.");
    CHECK(weftIsCapturing(NULL, NULL, &(int32_t){0}) == WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s", last_error());
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
    CHECK(counts.allocations == 1 && counts.current == 0, "%d allocations, %d current", counts.allocations,
          counts.current);
    CHECK(fake->misuses(text, sizeof text) == 0, "%s", text);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* ---- Stream-ordered memory --------------------------------------------------------------------------------------- */

static int allocations(void) {
    struct fake_counts counts;
    fake->counts(&counts);
    return counts.allocations;
}

static void *made_on(weftHandle_t handle, size_t bytes, weftStream_t stream) {
    void *made = NULL;
    MUST(weftAllocateOnStream(handle, bytes, stream, &made));
    return made;
}

/* Freed memory is only reused on its stream, and only for similar sizes. */
static void check_reuse(weftHandle_t handle) {
    weftStream_t stream = (weftStream_t)0x100, other = (weftStream_t)0x200, per_thread = (weftStream_t)2;
    void *first = made_on(handle, 1000, stream), *second = made_on(handle, 1000, stream);
    MUST(weftFreeOnStream(handle, 1000, stream, first));
    MUST(weftFreeOnStream(handle, 1000, stream, second));
    void *elsewhere = made_on(handle, 1000, other), *larger = made_on(handle, 1025, stream);
    CHECK(elsewhere != first && elsewhere != second && larger != first && larger != second, "not of this kind");
    int64_t before = fake->calls();
    CHECK(made_on(handle, 700, stream) == second, "what was freed last comes first");
    CHECK(fake->calls() == before + 5, "%lld calls",
          (long long)(fake->calls() - before)); /* enter, is capturing, get id, leave */
    CHECK(made_on(handle, 1024, stream) == first, "the other one");
    MUST(weftFreeOnStream(handle, 1000, other, elsewhere));
    CHECK(made_on(handle, 900, other) == elsewhere, "of its stream");
    MUST(weftFree(handle, elsewhere));
    MUST(weftFree(handle, larger));
    MUST(weftFree(handle, first));
    MUST(weftFreeOnStream(handle, 1024, per_thread, second)); /* a per-thread stream: nothing is cached */
    CHECK(allocations() == 0, "%d allocations", allocations());
}

/* A new stream at the address of a destroyed one does not receive its memory, which pending work may still use. */
static void check_replaced_streams(weftHandle_t handle) {
    weftStream_t stream = (weftStream_t)0x100;
    void *made = made_on(handle, 1000, stream), *by_default = made_on(handle, 1000, NULL);
    MUST(weftFreeOnStream(handle, 1000, stream, made));
    MUST(weftFreeOnStream(handle, 1000, NULL, by_default));
    fake->replace_streams();
    void *other = made_on(handle, 2000, stream);
    CHECK(allocations() == 2, "%d allocations: the old stream's went", allocations());
    int64_t before = fake->calls();
    MUST(weftFreeOnStream(handle, 2000, stream, other));
    CHECK(fake->calls() == before + 3, "%lld calls: nobody asks a stream that may be gone",
          (long long)(fake->calls() - before));
    CHECK(made_on(handle, 2000, stream) == other, "its own");
    CHECK(made_on(handle, 1000, NULL) == by_default, "the default stream stays");
    MUST(weftFreeOnStream(handle, 1000, NULL, by_default));
    MUST(weftFreeOnStream(handle, 2000, stream, other));
    void *late = made_on(handle, 8, stream);
    for (uintptr_t i = 0; i < 16; i++) /* enough other streams to evict the first ones */
        MUST(weftFree(handle, made_on(handle, 8, (weftStream_t)(0x1000 + i))));
    CHECK(allocations() == 1, "%d allocations: one is in use", allocations());
    MUST(weftFreeOnStream(handle, 8, stream, late));
    MUST(weftFree(handle, made_on(handle, 1000, NULL)));
    CHECK(allocations() == 0, "%d allocations: nothing is kept for a forgotten stream", allocations());
}

/* A driver that cannot report the id of a stream: streams are identified by their addresses. */
static void on_streams_without_numbers(void) {
    open_fake();
    weftHandle_t handle = open_device(WEFT_DEVICE_CUDA);
    weftStream_t stream = (weftStream_t)0x100;
    void *made = made_on(handle, 1000, stream);
    MUST(weftFreeOnStream(handle, 1000, stream, made));
    CHECK(made_on(handle, 1000, stream) == made, "used again");
    MUST(weftFree(handle, made));
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* The cache holds at most 64 blocks and a sixteenth of the fake GPU's 16 GiB; it evicts the oldest first. */
static void check_limits(weftHandle_t handle) {
    enum { BLOCKS = 70, KEPT = 64 };
    void *made[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        made[i] = made_on(handle, 4096, NULL);
    for (int i = 0; i < BLOCKS; i++)
        MUST(weftFreeOnStream(handle, 4096, NULL, made[i]));
    CHECK(allocations() == KEPT, "%d allocations", allocations());
    for (int i = BLOCKS - 1; i >= BLOCKS - KEPT; i--)
        CHECK(made_on(handle, 4096, NULL) == made[i], "block %d", i);
    for (int i = BLOCKS - 1; i >= BLOCKS - KEPT; i--)
        MUST(weftFree(handle, made[i]));
    const size_t half = (size_t)512 << 20;
    for (int i = 0; i < 3; i++)
        made[i] = made_on(handle, half, NULL);
    for (int i = 0; i < 3; i++)
        MUST(weftFreeOnStream(handle, half, NULL, made[i]));
    CHECK(allocations() == 2, "%d allocations", allocations());
    made[0] = made_on(handle, half * 4, NULL);
    MUST(weftFreeOnStream(handle, half * 4, NULL, made[0])); /* more than the whole cache */
    CHECK(allocations() == 2, "%d allocations", allocations());
    fake->fail_at(3, 2); /* out of memory: the cache is emptied, and the driver is called again */
    MUST(weftAllocate(handle, 8, &made[0]));
    CHECK(allocations() == 1, "%d allocations", allocations());
    MUST(weftFree(handle, made[0]));
    fake->fail_at(3, 2);
    REFUSED(weftAllocate(handle, 8, &made[0]), WEFT_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
            "allocating 8 bytes of device memory: the CUDA driver returned CUDA_ERROR_OUT_OF_MEMORY (2: words for 2). "
            "Free device memory, or set a smaller workspace limit.");
}

/* The default stream does not take part in the capture, but must not be used meanwhile. */
static void check_queries_of_captures(weftHandle_t handle) {
    weftStream_t captured = (weftStream_t)0x100, streams[] = {captured, (weftStream_t)0x200, NULL};
    static const int32_t during_capture[] = {1, 0, 1};
    for (int i = 0; i < 3; i++) {
        int32_t is_capturing = -1;
        MUST(weftIsCapturing(handle, streams[i], &is_capturing));
        CHECK(is_capturing == 0, "stream %d: %d", i, is_capturing);
        fake->capture(captured);
        MUST(weftIsCapturing(handle, streams[i], &is_capturing));
        CHECK(is_capturing == during_capture[i], "stream %d: %d", i, is_capturing);
        fake->capture(NULL);
    }
}

static void check_captures(weftHandle_t handle) {
    weftStream_t stream = (weftStream_t)0x100;
    void *kept = made_on(handle, 64, stream), *none = kept;
    MUST(weftFreeOnStream(handle, 64, stream, kept));
    fake->capture(stream);
    CHECK(weftAllocateOnStream(handle, 64, stream, &none) == WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER && !none, "%p",
          none);
    CHECK(strstr(last_error(), "allocating 64 bytes for a stream: ") == last_error() &&
              strstr(last_error(), "The stream is being captured: do this before the capture."),
          "%s", last_error());
    CHECK(weftAllocateOnStream(handle, 64, NULL, &none) == WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "%s",
          last_error());
    fake->capture(NULL);
    CHECK(made_on(handle, 64, stream) == kept, "it was not lost");
    MUST(weftFree(handle, kept));
}

static void on_streams(void) {
    open_fake();
    weftHandle_t handle = open_device(WEFT_DEVICE_CUDA);
    check_reuse(handle);
    check_replaced_streams(handle);
    check_limits(handle);
    check_captures(handle);
    check_queries_of_captures(handle);
    MUST(weftFreeOnStream(handle, 64, NULL, made_on(handle, 64, NULL)));
    CHECK(allocations() == 1, "%d allocations", allocations());
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* Each driver call fails in turn: an error is reported, and nothing is lost. */
static void failing_on_streams(void) {
    open_fake();
    weftHandle_t handle = open_device(WEFT_DEVICE_CUDA);
    weftStream_t stream = (weftStream_t)0x100;
    const char *failed = "";
    for (int64_t nth = 1; failed; nth++) {
        void *made = NULL, *again = NULL;
        fake->fail_at(nth, 999);
        weftStatus_t status = weftAllocateOnStream(handle, 5000, stream, &made), freed = status;
        if (!status)
            status = freed = weftFreeOnStream(handle, 5000, stream, made);
        if (!status)
            status = weftAllocateOnStream(handle, 5000, stream, &again);
        failed = fake->failed_call();
        fake->fail_at(0, 0);
        CHECK(!failed || strstr(failed, "Pop") || status == WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "%s: %s", failed,
              weftGetErrorString(status));
        MUST(weftFree(handle, freed ? made : again));
    }
    MUST(weftDestroy(handle));
    CHECK(allocations() == 0, "%d allocations", allocations());
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
            "weftMeasure: repeats is 0; it must be 1 or more. Pass the number of executions.");
    REFUSED(weftMeasure(plan, 2, slots, NULL, NULL, 1, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftMeasure: seconds is NULL. Give the address of a double.");
    REFUSED(weftMeasure(plan, 1, slots, NULL, NULL, 1, &seconds), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
            "weftExecute: 1 pointer for 2 slots. Give one per slot, in the order of attribute slot_unique_ids.");
    y[3] = seconds = 0;
    MUST(weftMeasureSteps(plan, 2, slots, NULL, NULL, 3, 1, &seconds));
    CHECK(seconds > 0 && seconds < 1 && y[3] == -4, "%g s, %g", seconds, (double)y[3]);
    REFUSED(weftMeasureSteps(plan, 2, slots, NULL, NULL, 0, 1, &seconds), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "weftMeasureSteps: repeats is 0; it must be 1 or more. Pass the number of executions.");
    REFUSED(weftMeasureSteps(plan, 2, slots, NULL, NULL, 1, 2, &seconds), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
            "weftMeasureSteps: capacity is 2 steps, but the plan has 1. Pass one number per step, in the order of "
            "attribute report.");
    REFUSED(weftMeasureSteps(plan, 2, slots, NULL, NULL, 65536, 1, &seconds), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "weftMeasureSteps: 65536 runs of 1 step need more than 65536 marks. Use fewer repeats.");
    drop(plan);
    MUST(weftDestroy(handle));
}

static weftStatus_t measure(desc plan, const uint64_t *slots, bool by_steps, double *seconds) {
    return by_steps ? weftMeasureSteps(plan, 2, slots, NULL, NULL, 2, 1, seconds)
                    : weftMeasure(plan, 2, slots, NULL, NULL, 2, seconds);
}

/* Each driver call fails in turn. */
static void failing_to_measure(desc plan, const uint64_t *slots, bool by_steps) {
    double seconds;
    struct fake_counts before, counts;
    const char *failed = "";
    fake->counts(&before);
    for (int64_t nth = 1; failed && !strstr(failed, "Destroy"); nth++) {
        fake->fail_at(nth, 999);
        weftStatus_t status = measure(plan, slots, by_steps, &seconds);
        failed = fake->failed_call();
        fake->fail_at(0, 0);
        fake->counts(&counts);
        bool is_cleanup_call = failed && strstr(failed, "Destroy"); /* a failed cleanup call leaks its object */
        CHECK(is_cleanup_call || (counts.events == before.events && counts.current == 0), "%s: %d events, %d current",
              failed ? failed : "none", counts.events, counts.current);
        CHECK(is_cleanup_call || status == WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "%s: %s", failed,
              weftGetErrorString(status));
    }
}

/* The fake GPU's events are always a quarter of a millisecond from each other, regardless of the work between them. */
static void measuring_on_a_gpu(void) {
    open_fake();
    weftHandle_t handle = open_device(WEFT_DEVICE_CUDA);
    desc plan = negation(handle);
    void *x, *y;
    double seconds = -1;
    MUST(weftAllocate(handle, 16, &x));
    MUST(weftAllocate(handle, 16, &y));
    const uint64_t slots[] = {(uintptr_t)x, (uintptr_t)y};
    int64_t before = fake->launches();
    MUST(weftMeasure(plan, 2, slots, NULL, NULL, 5, &seconds));
    CHECK(seconds == 0.25e-3 / 5, "%g s", seconds);
    CHECK(fake->launches() == before + 5, "%lld launches", (long long)(fake->launches() - before));
    MUST(weftMeasureSteps(plan, 2, slots, NULL, NULL, 5, 1, &seconds));
    CHECK(seconds == 0.25e-3, "%g s", seconds);
    CHECK(fake->launches() == before + 16, "%lld launches", (long long)(fake->launches() - before));
    failing_to_measure(plan, slots, false);
    failing_to_measure(plan, slots, true);
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
    IN_CHILD(on_a_gpu, driver);
    IN_CHILD(on_streams, driver);
    IN_CHILD(on_streams_without_numbers, driver, "FAKE_CUDA_MISSING=cuStreamGetId");
    IN_CHILD(failing_on_streams, driver);
    IN_CHILD(measuring_on_a_gpu, driver, compiler);
    IN_CHILD(describing, driver, compiler);
    IN_CHILD(describing_without_a_driver, "WEFT_LIBCUDA=/nowhere/libcuda.so.1", compiler);
    RUN(on_the_cpu());
    RUN(measuring());
    remove_scratch();
    return harness_end();
}
