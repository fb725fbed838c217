/* SPDX-License-Identifier: Apache-2.0 */
/* The handler that XLA calls for a Weft graph. The saved plan is an attribute, arguments and results are buffers, and
   the last result is the workspace, so that XLA allocates it with its own memory. Work is enqueued on XLA's stream
   without waiting. weft.jax wrote the attributes when the program was lowered. */
#include "xla/execute.h"
#include "xla/failure.h"
#include "xla/ffi.h"
#include "xla/plans.h"

#include <string.h>

enum { SLOTS_MAX = 512 };

/* ---- Attributes ---- */

/* The attributes of a call. */
struct request {
    struct plan_name name;
    /* The source of each slot's address: an index into the arguments, followed by the results, followed by the scalars.
       */
    const int64_t *places;
    int64_t place_count;
    const int64_t *scalars; /* by-value tensors, one per word */
    int64_t scalar_count;
};

static const void *find_attribute(const struct xla_attributes *attributes, const char *name, int kind) {
    size_t length = strlen(name);
    for (int64_t i = 0; i < attributes->count; i++) {
        const struct xla_span *attribute_name = attributes->names[i];
        if (attribute_name->length == length && !memcmp(attribute_name->chars, name, length))
            return attributes->kinds[i] == kind ? attributes->each[i] : NULL;
    }
    return NULL;
}

static bool read_number(int64_t *out, const struct xla_attributes *attributes, const char *name) {
    const struct xla_scalar *scalar = find_attribute(attributes, name, XLA_SCALAR);
    if (!scalar || scalar->type != XLA_S64)
        return false;
    memcpy(out, scalar->value, sizeof *out);
    return true;
}

static bool read_numbers(const int64_t **out, int64_t *count, const struct xla_attributes *attributes,
                         const char *name) {
    const struct xla_array *array = find_attribute(attributes, name, XLA_ARRAY);
    if (!array || array->type != XLA_S64)
        return false;
    *out = array->data;
    *count = (int64_t)array->count;
    return true;
}

static weftStatus_t read_request(struct request *out, const struct xla_attributes *attributes) {
    int64_t key, kind;
    const struct xla_span *plan = find_attribute(attributes, "plan", XLA_STRING);
    if (!plan || !read_number(&key, attributes, "key") || !read_number(&kind, attributes, "device") ||
        !read_numbers(&out->places, &out->place_count, attributes, "places") ||
        !read_numbers(&out->scalars, &out->scalar_count, attributes, "scalars"))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "weft call: it lacks an attribute of plan (text), key and device (int64), places and scalars (arrays of "
             "int64). Lower the program again with the weft.jax of this library.");
    out->name = (struct plan_name){
        .key = (uint64_t)key, .text = plan->chars, .length = plan->length, .kind = (weftDeviceKind_t)kind};
    return WEFT_STATUS_SUCCESS;
}

/* ---- Running ---- */

static uint64_t address_of(const struct xla_buffers *buffers, int64_t i) {
    return (uint64_t)(uintptr_t)((const struct xla_buffer *)buffers->each[i])->data;
}

static weftStatus_t gather(uint64_t pointers[SLOTS_MAX], const struct xla_call *call, const struct request *request,
                           int64_t slot_count) {
    int64_t arguments = call->arguments.count, results = call->results.count;
    if (request->place_count != slot_count || slot_count > SLOTS_MAX)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "weft call: %lld places for %lld slots, of which there may be %d. Lower the program again, as smaller "
             "graphs if there are too many.",
             (long long)request->place_count, (long long)slot_count, SLOTS_MAX);
    for (int64_t i = 0; i < slot_count; i++) {
        int64_t source = request->places[i];
        if (source >= 0 && source < arguments)
            pointers[i] = address_of(&call->arguments, source);
        else if (source >= arguments && source - arguments < results)
            pointers[i] = address_of(&call->results, source - arguments);
        else if (source >= 0 && source - arguments - results < request->scalar_count)
            pointers[i] = (uint64_t)(uintptr_t)&request->scalars[source - arguments - results];
        else
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "weft call: slot %lld is at place %lld, and there are %lld arguments, %lld results and %lld scalars. "
                 "Lower the program again with weft.jax.",
                 (long long)i, (long long)source, (long long)arguments, (long long)results,
                 (long long)request->scalar_count);
    }
    return WEFT_STATUS_SUCCESS;
}

/* The workspace is the last result, if the plan needs one. */
static weftStatus_t find_workspace(void **out, const struct xla_call *call, int64_t needed) {
    int64_t last = call->results.count - 1, given = 0;
    *out = NULL;
    if (!needed)
        return WEFT_STATUS_SUCCESS;
    const struct xla_buffer *buffer = last >= 0 ? call->results.each[last] : NULL;
    if (buffer && buffer->rank == 1)
        given = buffer->dims[0];
    if (given < needed)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "weft call: its last result, the workspace, has %lld bytes, the plan on this device needs %lld. Lower the "
             "program again on a machine with such a device.",
             (long long)given, (long long)needed);
    *out = buffer->data;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t run(const struct xla_call *call, const struct request *request, const struct cached_plan *cached,
                        weftStream_t stream) {
    uint64_t pointers[SLOTS_MAX];
    void *workspace;
    TRY(gather(pointers, call, request, cached->slot_count));
    TRY(find_workspace(&workspace, call, cached->workspace_bytes));
    return weftExecute(cached->plan, cached->slot_count, pointers, workspace, stream);
}

/* True if the launches become part of a captured graph, which then needs the plan's kernels as long as it exists. */
static weftStatus_t find_capture(bool *is_captured, const struct cached_plan *cached, weftStream_t stream) {
    *is_captured = false;
    if (cached->name.kind == WEFT_DEVICE_CPU)
        return WEFT_STATUS_SUCCESS;
    int32_t is_capturing = 0;
    TRY(weftIsCapturing(cached->handle, stream, &is_capturing));
    *is_captured = is_capturing;
    return WEFT_STATUS_SUCCESS;
}

/* The initialization call only loads the plan, because code must not be loaded while a stream is captured. */
static weftStatus_t serve(const struct xla_call *call, const struct request *request, weftStream_t stream) {
    struct cached_plan *cached;
    bool is_captured = false;
    TRY(cached_plan_acquire(&cached, &request->name));
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    if (call->stage == XLA_EXECUTE) {
        status = find_capture(&is_captured, cached, stream);
        if (!status)
            status = run(call, request, cached, stream);
    }
    cached_plan_release(cached, is_captured);
    return status;
}

/* ---- Interface to XLA ---- */

static int code_of(weftStatus_t status) {
    if (status == WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        status == WEFT_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return XLA_RESOURCE_EXHAUSTED;
    switch ((int)status / 1000) {
    case 2:
    case 12:
        return XLA_INVALID_ARGUMENT;
    case 3:
        return XLA_UNIMPLEMENTED;
    default:
        return XLA_INTERNAL;
    }
}

static struct xla_error *error_of(const struct xla_api *api, weftStatus_t status) {
    if (!status)
        return NULL;
    char text[FAILURE_TEXT_BYTES];
    failure_copy_text(text);
    struct xla_error_arguments arguments = {{sizeof arguments, NULL}, text, code_of(status)};
    return api->error_create(&arguments);
}

/* The device and the stream of a call on a GPU. */
static struct xla_error *find_device(int32_t *ordinal, weftStream_t *stream, const struct xla_call *call) {
    const struct xla_api *api = call->api;
    struct xla_ordinal_arguments device = {{sizeof device, NULL}, call->context, 0};
    struct xla_stream_arguments queue = {{sizeof queue, NULL}, call->context, NULL};
    if (!XLA_HAS(api, struct xla_api, device_ordinal_get))
        return error_of(api, failure_set(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                                         "weft call: this XLA does not pass the device to handlers. Install "
                                         "a newer jaxlib, 0.6.1 at least."));
    struct xla_error *error = api->device_ordinal_get(&device);
    if (!error && call->stage == XLA_EXECUTE)
        error = api->stream_get(&queue);
    *ordinal = device.ordinal;
    *stream = queue.stream;
    return error;
}

static struct xla_error *answer(const struct xla_call *call) {
    struct request request;
    weftStream_t stream = NULL;
    failure_clear();
    weftStatus_t status = read_request(&request, &call->attributes);
    if (!status && request.name.kind != WEFT_DEVICE_CPU) {
        struct xla_error *error = find_device(&request.name.ordinal, &stream, call);
        if (error)
            return error;
    }
    if (!status)
        status = serve(call, &request, stream);
    return error_of(call->api, status);
}

/* The size of the struct shows whether XLA knows the member. */
static void describe(struct xla_metadata *metadata) {
    metadata->version.major = XLA_MAJOR;
    metadata->version.minor = XLA_MINOR;
    if (metadata->bytes >= offsetof(struct xla_metadata, traits) + sizeof metadata->traits)
        metadata->traits = XLA_COMMAND_BUFFER_COMPATIBLE;
}

void *weftXlaExecute(void *call_frame) {
    struct xla_call *call = call_frame;
    if (!call || !XLA_HAS(call, struct xla_call, api))
        return NULL; /* the error cannot be reported */
    struct xla_extension *extension = call->head.extensions;
    if (extension && extension->type == XLA_EXTENSION_METADATA) {
        describe(extension->metadata);
        return NULL;
    }
    if (!XLA_HAS(call, struct xla_call, attributes.count))
        return error_of(call->api,
                        failure_set(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                                    "weft call: its frame has %zu bytes, of which version %d.%d of XLA's foreign "
                                    "function interface has more. Install a newer jaxlib, 0.6.1 at least.",
                                    call->head.bytes, XLA_MAJOR, XLA_MINOR));
    return call->stage == XLA_INITIALIZE || call->stage == XLA_EXECUTE ? answer(call) : NULL;
}
