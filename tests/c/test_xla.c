/* SPDX-License-Identifier: Apache-2.0 */
/* The handler that XLA calls, called by a minimal XLA, on the CPU and on a fake GPU: its metadata, the plans that it
   runs, the exact messages of refusals, and the plans that it caches. */
#define _GNU_SOURCE
#include "scenario.h"
#include "xla/execute.h"
#include "xla/ffi.h"
#include "xla/plans.h"

/* ---- A minimal XLA ----------------------------------------------------------------------------------------------- */

static struct {
    char message[1024]; /* of the last error; empty if no error occurred */
    int code;
    int32_t ordinal;
    void *stream;
} said;

static struct xla_error *create_error(void *arguments) {
    const struct xla_error_arguments *error = arguments;
    snprintf(said.message, sizeof said.message, "%s", error->message);
    said.code = error->code;
    return (struct xla_error *)&said;
}

static struct xla_error *get_stream(void *arguments) {
    ((struct xla_stream_arguments *)arguments)->stream = said.stream;
    return NULL;
}

static struct xla_error *get_ordinal(void *arguments) {
    ((struct xla_ordinal_arguments *)arguments)->ordinal = said.ordinal;
    return NULL;
}

static struct xla_api api = {.head = {sizeof api, NULL},
                             .error_create = create_error,
                             .stream_get = get_stream,
                             .device_ordinal_get = get_ordinal};

/* ---- Calls of y = -x on four numbers ----------------------------------------------------------------------------- */

struct call {
    struct xla_call frame;
    struct xla_buffer x, y, workspace;
    int64_t dims, workspace_dims;
    void *arguments[1], *results[2];
    int kinds[5];
    struct xla_span names[5], *name_list[5], plan;
    struct xla_scalar device, key;
    struct xla_array places, scalars;
    void *values[5];
    int64_t device_value, key_value, place_values[2], scalar_values[1];
};

static desc plan_of_mode(weftHandle_t handle, weftPointwiseMode_t mode) {
    desc x = tensor(1, DIMS(4)), y = tensor(2, DIMS(4)), op = pointwise(mode, x, NULL, y);
    desc graph = make(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR), plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(weftBackendSetAttribute(graph, WEFT_ATTR_OPERATIONGRAPH_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    MUST(set_held(graph, WEFT_ATTR_OPERATIONGRAPH_OPS, op));
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT, finalized(graph)));
    finalized(plan);
    drop(x), drop(y), drop(op), drop(graph);
    return plan;
}

/* Returns the plan as digits; the caller frees them. */
static char *saved_mode(weftDeviceKind_t kind, weftPointwiseMode_t mode) {
    weftHandle_t handle;
    int64_t count;
    MUST(weftCreateForDevice(&handle, kind, 0));
    desc plan = plan_of_mode(handle, mode);
    unsigned char *bytes = (unsigned char *)get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &count);
    char *digits = malloc(2 * (size_t)count + 1);
    for (int64_t i = 0; i < count; i++)
        snprintf(digits + 2 * i, 3, "%02x", bytes[i]);
    free(bytes);
    drop(plan);
    MUST(weftDestroy(handle));
    return digits;
}

static char *saved(weftDeviceKind_t kind) { return saved_mode(kind, WEFT_POINTWISE_NEG); }

static void name_attribute(struct call *call, int i, const char *name, int kind, void *value) {
    call->names[i] = (struct xla_span){name, strlen(name)};
    call->name_list[i] = &call->names[i];
    call->kinds[i] = kind;
    call->values[i] = value;
}

static void prepare(struct call *call, const char *plan, weftDeviceKind_t kind, float *x, float *y) {
    static int buffer_kinds[] = {XLA_BUFFER, XLA_BUFFER};
    *call = (struct call){.dims = 4, .device_value = kind, .key_value = 7, .place_values = {0, 1}};
    call->x = (struct xla_buffer){{sizeof call->x, NULL}, 11, x, 1, &call->dims};
    call->y = (struct xla_buffer){{sizeof call->y, NULL}, 11, y, 1, &call->dims};
    call->arguments[0] = &call->x, call->results[0] = &call->y;
    call->plan = (struct xla_span){plan, strlen(plan)};
    call->device = (struct xla_scalar){XLA_S64, &call->device_value};
    call->key = (struct xla_scalar){XLA_S64, &call->key_value};
    call->places = (struct xla_array){XLA_S64, 2, call->place_values};
    call->scalars = (struct xla_array){XLA_S64, 1, call->scalar_values};
    name_attribute(call, 0, "device", XLA_SCALAR, &call->device);
    name_attribute(call, 1, "key", XLA_SCALAR, &call->key);
    name_attribute(call, 2, "places", XLA_ARRAY, &call->places);
    name_attribute(call, 3, "plan", XLA_STRING, &call->plan);
    name_attribute(call, 4, "scalars", XLA_ARRAY, &call->scalars);
    call->frame = (struct xla_call){.head = {sizeof call->frame, NULL}, .api = &api, .stage = XLA_EXECUTE};
    call->frame.arguments = (struct xla_buffers){{0, NULL}, 1, buffer_kinds, call->arguments};
    call->frame.results = (struct xla_buffers){{0, NULL}, 1, buffer_kinds, call->results};
    call->frame.attributes = (struct xla_attributes){{0, NULL}, 5, call->kinds, call->name_list, call->values};
}

static void must_run(struct call *call) {
    *said.message = 0;
    CHECK(!weftXlaExecute(&call->frame), "%s", said.message);
}

static void must_refuse(struct call *call, int code, const char *message) {
    *said.message = 0;
    CHECK(weftXlaExecute(&call->frame) == &said, "it answered nothing");
    CHECK(said.code == code, "code %d, expected %d", said.code, code);
    EXACTLY(said.message, "%s", message);
}

/* ---- Metadata ---------------------------------------------------------------------------------------------------- */

static void metadata(void) {
    struct xla_metadata told = {.bytes = sizeof told, .version = {.major = 9, .minor = 9}};
    struct xla_extension extension = {sizeof extension, XLA_EXTENSION_METADATA, NULL, &told};
    struct xla_call call = {.head = {sizeof call, &extension}, .api = &api};
    CHECK(!weftXlaExecute(&call), "%s", said.message);
    CHECK(told.version.major == 0 && told.version.minor == 1, "%d.%d", told.version.major, told.version.minor);
    CHECK(told.traits == XLA_COMMAND_BUFFER_COMPATIBLE, "%u", told.traits);
    told.traits = 0;
    told.bytes = offsetof(struct xla_metadata, traits);
    CHECK(!weftXlaExecute(&call) && told.traits == 0, "it wrote behind what XLA knows");
    CHECK(!weftXlaExecute(NULL), "nobody called");
}

/* ---- On the CPU -------------------------------------------------------------------------------------------------- */

static void check_runs(const char *plan) {
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    struct call call;
    prepare(&call, plan, WEFT_DEVICE_CPU, x, y);
    for (int stage = 0; stage < XLA_INITIALIZE; stage++) {
        call.frame.stage = stage;
        must_run(&call);
        CHECK(cached_plan_count() == 0, "stage %d loaded a plan", stage);
    }
    call.frame.stage = XLA_INITIALIZE;
    must_run(&call);
    CHECK(cached_plan_count() == 1 && y[3] == 0, "%d kept, %g", cached_plan_count(), (double)y[3]);
    call.frame.stage = XLA_EXECUTE;
    must_run(&call);
    CHECK(cached_plan_count() == 1 && y[0] == -1 && y[3] == -4, "%d kept, %g", cached_plan_count(), (double)y[3]);
}

static void check_attributes(const char *plan) {
    float x[4] = {0}, y[4];
    struct call call;
    for (int i = 0; i < 10; i++) { /* each attribute with another name, and with another type */
        prepare(&call, plan, WEFT_DEVICE_CPU, x, y);
        if (i < 5)
            call.names[i].length--;
        else
            call.kinds[i - 5] = 2;
        must_refuse(&call, XLA_INVALID_ARGUMENT,
                    "weft call: it lacks an attribute of plan (text), key and device (int64), places and scalars "
                    "(arrays of int64). Lower the program again with the weft.jax of this library.");
    }
    prepare(&call, plan, WEFT_DEVICE_CPU, x, y);
    call.places.type = call.scalars.type = 4;
    CHECK(weftXlaExecute(&call.frame) == &said, "int32 is not int64");
}

static void check_refusals(const char *plan) {
    float x[4] = {0}, y[4];
    struct call call;
    static const int64_t wrong[] = {-1, 3, INT64_MAX};
    char message[512];
    for (int i = 0; i < 3; i++) {
        prepare(&call, plan, WEFT_DEVICE_CPU, x, y);
        call.place_values[1] = wrong[i];
        snprintf(message, sizeof message,
                 "weft call: slot 1 is at place %lld, and there are 1 arguments, 1 results and 1 scalars. Lower the "
                 "program again with weft.jax.",
                 (long long)wrong[i]);
        must_refuse(&call, XLA_INVALID_ARGUMENT, message);
    }
    prepare(&call, plan, WEFT_DEVICE_CPU, x, y);
    call.places.count = 1;
    must_refuse(&call, XLA_INVALID_ARGUMENT,
                "weft call: 1 places for 2 slots, of which there may be 512. Lower the program again, as smaller "
                "graphs if there are too many.");
    prepare(&call, "0g", WEFT_DEVICE_CPU, x, y);
    must_refuse(&call, XLA_INVALID_ARGUMENT,
                "weft call: attribute plan is no saved plan in hexadecimal digits. Lower the program again with "
                "weft.jax.");
    prepare(&call, "abc", WEFT_DEVICE_CPU, x, y);
    CHECK(weftXlaExecute(&call.frame) == &said, "an odd number of digits");
    prepare(&call, plan, 3, x, y);
    must_refuse(&call, XLA_INVALID_ARGUMENT,
                "weft call: device kind 3, ordinal 0; they must be 0 or 1, and 0 to 63. Lower the program again with "
                "weft.jax.");
}

/* A truncated plan is refused by the parser and not cached. */
static void check_damage(const char *plan) {
    float x[4] = {0}, y[4];
    struct call call;
    int before = cached_plan_count();
    prepare(&call, plan, WEFT_DEVICE_CPU, x, y);
    call.plan.length -= 2;
    call.key_value = 8;
    CHECK(weftXlaExecute(&call.frame) == &said && said.code == XLA_INVALID_ARGUMENT, "%s", said.message);
    CHECK(cached_plan_count() == before, "%d kept", cached_plan_count());
}

/* A name that differs in one field refers to another plan; an equal name refers to the same plan, even if its text is
   stored elsewhere. */
static void check_names(const char *plan) {
    char *again = strdup(plan), *other = saved_mode(WEFT_DEVICE_CPU, WEFT_POINTWISE_ABS);
    const struct plan_name names[] = {
        {.key = 70, .text = plan, .length = strlen(plan), .kind = WEFT_DEVICE_CPU},
        {.key = 71, .text = plan, .length = strlen(plan), .kind = WEFT_DEVICE_CPU},
        {.key = 70 + 1024, .text = plan, .length = strlen(plan), .kind = WEFT_DEVICE_CPU}, /* same cache slot */
        {.key = 70, .text = other, .length = strlen(other), .kind = WEFT_DEVICE_CPU},
    };
    enum { COUNT = sizeof names / sizeof *names };
    struct cached_plan *kept[COUNT], *found;
    int before = cached_plan_count();
    for (int i = 0; i < COUNT; i++) {
        MUST(cached_plan_acquire(&kept[i], &names[i]));
        CHECK(cached_plan_count() == before + i + 1, "name %d: %d kept", i, cached_plan_count());
    }
    for (int i = 0; i < COUNT; i++) {
        struct plan_name name = names[i];
        name.text = name.text == plan ? again : other;
        MUST(cached_plan_acquire(&found, &name));
        CHECK(found == kept[i], "name %d", i);
        cached_plan_release(found, false), cached_plan_release(kept[i], false);
    }
    struct plan_name on_gpu = names[0];
    on_gpu.kind = WEFT_DEVICE_CUDA; /* the text is for the CPU: no cached plan may be used */
    CHECK(cached_plan_acquire(&found, &on_gpu) != WEFT_STATUS_SUCCESS, "a plan of another kind of device");
    free(again), free(other);
}

static void check_old_runtimes(const char *plan) {
    float x[4] = {0}, y[4];
    struct call call;
    prepare(&call, plan, WEFT_DEVICE_CPU, x, y);
    call.frame.head.bytes = offsetof(struct xla_call, attributes);
    char message[512];
    snprintf(message, sizeof message,
             "weft call: its frame has %zu bytes, of which version 0.1 of XLA's foreign function interface has more. "
             "Install a newer jaxlib, 0.6.1 at least.",
             call.frame.head.bytes);
    must_refuse(&call, XLA_UNIMPLEMENTED, message);
    call.frame.head.bytes = offsetof(struct xla_call, api);
    CHECK(!weftXlaExecute(&call.frame), "there is nobody to tell");
    prepare(&call, plan, WEFT_DEVICE_CUDA, x, y);
    api.head.bytes = offsetof(struct xla_api, device_ordinal_get);
    must_refuse(&call, XLA_UNIMPLEMENTED,
                "weft call: this XLA does not pass the device to handlers. Install a newer jaxlib, 0.6.1 at "
                "least.");
    api.head.bytes = sizeof api;
}

/* ---- On a GPU ---------------------------------------------------------------------------------------------------- */

static void check_stream(const char *plan, weftHandle_t handle) {
    void *x, *y;
    struct call call;
    struct fake_counts before, after;
    MUST(weftAllocate(handle, 16, &x));
    MUST(weftAllocate(handle, 16, &y));
    prepare(&call, plan, WEFT_DEVICE_CUDA, x, y);
    said.ordinal = 1;
    said.stream = &call; /* any address */
    call.frame.stage = XLA_INITIALIZE;
    fake->counts(&before);
    int64_t launches = fake->launches();
    must_run(&call);
    fake->counts(&after);
    CHECK(after.modules == before.modules + 1 && fake->launches() == launches, "%d modules", after.modules);
    call.frame.stage = XLA_EXECUTE;
    fake->capture(&call);
    fake->begin_execution();
    must_run(&call);
    fake->end_execution();
    fake->capture(NULL);
    struct fake_launch last;
    CHECK(fake->launches() == launches + 1 && fake->launch(launches, &last), "%lld", (long long)fake->launches());
    CHECK(last.stream == said.stream && last.device == 1, "stream %p, device %d", last.stream, last.device);
    MUST(weftFree(handle, x));
    MUST(weftFree(handle, y));
}

/* Loads `count` plans, each under a different key, and returns the number of loaded modules. */
static int modules_after(struct call *call, int count) {
    struct fake_counts counts;
    for (int i = 0; i < count; i++) {
        call->key_value++;
        must_run(call);
    }
    fake->counts(&counts);
    return counts.modules;
}

/* New plans evict the least recently used ones, but never a captured plan, which is the one on device 1. */
static void check_capacity(const char *plan, const char *device_plan) {
    float x[4] = {1, 2, 3, 4}, y[4];
    struct call call, other;
    prepare(&call, plan, WEFT_DEVICE_CPU, x, y);
    prepare(&other, device_plan, WEFT_DEVICE_CUDA, x, y);
    call.frame.stage = other.frame.stage = XLA_INITIALIZE;
    said.ordinal = 0;
    must_run(&other);
    CHECK(modules_after(&call, CACHED_PLANS_MAX - 2) == 2 && cached_plan_count() == CACHED_PLANS_MAX, "%d kept",
          cached_plan_count());
    must_run(&other); /* used again, so that others are evicted first */
    CHECK(modules_after(&call, CACHED_PLANS_MAX - 2) == 2 && cached_plan_count() == CACHED_PLANS_MAX, "%d kept",
          cached_plan_count());
    CHECK(modules_after(&call, 1) == 1 && cached_plan_count() == CACHED_PLANS_MAX, "%d kept", cached_plan_count());
    call.frame.stage = XLA_EXECUTE;
    call.key_value = 8; /* evicted, and loaded again */
    must_run(&call);
    CHECK(cached_plan_count() == CACHED_PLANS_MAX && y[3] == -4, "%d kept, %g", cached_plan_count(), (double)y[3]);
}

static void on_the_cpu(void) {
    char *plan = saved(WEFT_DEVICE_CPU);
    check_runs(plan);
    check_attributes(plan);
    check_refusals(plan);
    check_damage(plan);
    check_names(plan);
    check_old_runtimes(plan);
    free(plan);
}

static void on_a_gpu(void) {
    open_fake();
    char *plan = saved(WEFT_DEVICE_CPU), *device_plan = saved(WEFT_DEVICE_CUDA);
    weftHandle_t handle;
    MUST(weftCreateForDevice(&handle, WEFT_DEVICE_CUDA, 1));
    check_stream(device_plan, handle);
    check_capacity(plan, device_plan);
    MUST(weftDestroy(handle));
    free(plan);
    free(device_plan);
}

int main(void) {
    RUN(metadata());
    IN_CHILD(on_a_gpu, "WEFT_LIBCUDA=" FAKE_CUDA, "WEFT_NVRTC=" FAKE_NVRTC);
    RUN(on_the_cpu());
    remove_scratch();
    return harness_end();
}
