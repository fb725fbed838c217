/* SPDX-License-Identifier: Apache-2.0 */
/* Device properties: the device to plan for, either of this machine or from JSON text that another machine wrote:
     {"kind":"cpu","ordinal":0,"name":"...","threads":8}
     {"kind":"cuda","ordinal":0,"name":"...","arch":"sm_90","multiprocessors":132, ...}
   Properties of a GPU that the text leaves out are those of a typical one: {"kind":"cuda","arch":"sm_90"} is enough. */
#include "base/text.h"
#include "graph/descriptor.h"
#include "plan/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_INT32, struct device_properties, device_id, WEFT_ATTR_DEVICEPROP_DEVICE_ID, "device_id",
              .doc = "ordinal of a device of this machine"),
    VALUE_ROW(WEFT_TYPE_HANDLE, struct device_properties, handle, WEFT_ATTR_DEVICEPROP_HANDLE, "handle",
              .doc = "handle whose device is described"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct device_properties, json, WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, "json",
              .storage = STORE_LIST, .doc = "the properties as text; set it to plan for a device that is elsewhere"),
    VALUE_ROW(WEFT_TYPE_INT64, struct device_properties, kind, WEFT_ATTR_DEVICEPROP_KIND_EXT, "kind",
              .least = WEFT_DEVICE_CPU, .most = WEFT_DEVICE_CUDA, .doc = "weftDeviceKind_t of device_id; default CPU"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct device_properties, name, WEFT_ATTR_DEVICEPROP_NAME_EXT, "device_name",
              .storage = STORE_LIST, .role = ROLE_RESULT, .doc = "the device's own name"),
    VALUE_ROW(WEFT_TYPE_INT64, struct device_properties, threads, WEFT_ATTR_DEVICEPROP_THREADS_EXT, "threads",
              .role = ROLE_RESULT, .doc = "CPU threads that work on one plan"),
};

/* The numeric properties of a GPU. Reading and writing use the same table, so that written text reads back unchanged.
   */
static const struct {
    const char *key;
    size_t offset;
    bool is_wide; /* int64_t, else int */
} numbers[] = {
    {"multiprocessors", offsetof(struct cuda_properties, multiprocessors), false},
    {"clock_khz", offsetof(struct cuda_properties, clock_khz), false},
    {"bandwidth", offsetof(struct cuda_properties, bandwidth), true},
    {"memory_bytes", offsetof(struct cuda_properties, memory_bytes), true},
    {"l2_bytes", offsetof(struct cuda_properties, l2_bytes), true},
    {"shared_per_block", offsetof(struct cuda_properties, shared_per_block), false},
    {"shared_per_multiprocessor", offsetof(struct cuda_properties, shared_per_multiprocessor), false},
    {"registers_per_multiprocessor", offsetof(struct cuda_properties, registers_per_multiprocessor), false},
    {"threads_per_multiprocessor", offsetof(struct cuda_properties, threads_per_multiprocessor), false},
    {"threads_per_block", offsetof(struct cuda_properties, threads_per_block), false},
    {"cluster_most", offsetof(struct cuda_properties, cluster_most), false},
};
enum { NUMBER_COUNT = sizeof numbers / sizeof *numbers };

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* White space as in JSON. */
static const char *skip_spaces(const char *at) { return at + strspn(at, " \t\r\n"); }

/* The value of a key of a flat JSON object, or NULL. A string value that contains a quoted key and a colon would be
   mistaken for the key; texts written by Weft contain none. */
static const char *find_key(const char *json, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    for (const char *at = json; (at = strstr(at, quoted)) != NULL; at++) {
        const char *colon = skip_spaces(at + strlen(quoted));
        if (*colon == ':')
            return skip_spaces(colon + 1);
    }
    return NULL;
}

/* Copies the characters between the quotes, truncated to `bytes` including the zero; an escaped character stands for
   itself. False, without a change, if there is no string. */
static bool read_string(char *out, size_t bytes, const char *at) {
    size_t length = 0;
    if (!at || *at++ != '"')
        return false;
    for (; *at && *at != '"' && length + 1 < bytes; at++) {
        at += *at == '\\' && at[1];
        out[length++] = *at;
    }
    out[length] = '\0';
    return true;
}

/* Starts from a typical GPU of the architecture and replaces the numbers that the text contains. */
static weftStatus_t read_cuda(struct device *device, const struct descriptor *self, const char *json) {
    char arch[32];
    int major, minor;
    if (!read_string(arch, sizeof arch, find_key(json, "arch")))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: json for a GPU must contain its architecture, and '%.60s' does not. Add \"arch\":\"sm_90\".",
             descriptor_label(self), json);
    TRY(device_read_arch(&major, &minor, arch));
    TRY(device_describe_cuda(device, major, minor));
    for (int i = 0; i < NUMBER_COUNT; i++) {
        const char *text = find_key(json, numbers[i].key);
        void *member = (char *)&device->cuda + numbers[i].offset;
        /* 2^50 bytes are a petabyte: larger numbers are mistakes, and products of them could overflow. */
        int64_t number = text ? strtoll(text, NULL, 10) : 0, most = numbers[i].is_wide ? INT64_C(1) << 50 : INT32_MAX;
        if (text && (number < 1 || number > most))
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: json has %s %lld; expected 1..%lld. Correct the text.",
                 descriptor_label(self), numbers[i].key, (long long)number, (long long)most);
        if (text && numbers[i].is_wide)
            *(int64_t *)member = number;
        else if (text)
            *(int *)member = (int)number;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Fills in the whole device. Unknown keys are ignored, because a later version may write more. */
static weftStatus_t read_json(struct device *device, const struct descriptor *self, const char *json) {
    const char *ordinal = find_key(json, "ordinal"), *threads = find_key(json, "threads");
    char kind[8] = "";
    read_string(kind, sizeof kind, find_key(json, "kind"));
    bool is_cuda = strcmp(kind, "cuda") == 0;
    if (*skip_spaces(json) != '{' || (!is_cuda && strcmp(kind, "cpu") != 0))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: json does not describe a CPU or a GPU: '%.60s'. Use the text of attribute json of another device.",
             descriptor_label(self), json);
    /* The defaults are ordinal 0 and one thread. */
    long ordinal_number = ordinal ? strtol(ordinal, NULL, 10) : 0,
         thread_count = threads ? strtol(threads, NULL, 10) : 1;
    if (ordinal_number < 0 || ordinal_number > INT32_MAX || thread_count < 1 || thread_count > 4096)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: json has ordinal %ld and %ld threads; expected at least 0, and 1..4096. Correct the text.",
             descriptor_label(self), ordinal_number, thread_count);
    /* Zeroed, so that devices can be compared bytewise. */
    *device = (struct device){.kind = WEFT_DEVICE_CPU, .threads = (int)thread_count};
    if (is_cuda)
        TRY(read_cuda(device, self, json));
    device->ordinal = (int32_t)ordinal_number;
    read_string(device->name, sizeof device->name, find_key(json, "name"));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* count excludes the terminating zero, like in all lists of characters. */
static weftStatus_t set_chars(struct list *list, struct arena *arena, const char *chars) {
    TRY(arena_copy(arena, &list->items, chars, strlen(chars) + 1));
    list->count = (int64_t)strlen(chars);
    return WEFT_STATUS_SUCCESS;
}

static void add_numbers(struct text *text, const struct cuda_properties *cuda) {
    text_add(text, ",\"arch\":\"sm_%d%d\"", cuda->major, cuda->minor);
    for (int i = 0; i < NUMBER_COUNT; i++) {
        const void *member = (const char *)cuda + numbers[i].offset;
        int64_t value = numbers[i].is_wide ? *(const int64_t *)member : *(const int *)member;
        text_add(text, ",\"%s\":%lld", numbers[i].key, (long long)value);
    }
}

/* Also called for a device that was read from text, so that the text becomes complete. */
static weftStatus_t write_json(struct device_properties *properties) {
    struct text text;
    const struct device *device = &properties->device;
    text_init(&text);
    text_add(&text, "{\"kind\":\"%s\",\"ordinal\":%d,\"name\":", device_kind_name(device->kind), (int)device->ordinal);
    text_json_string(&text, device->name);
    if (device->kind == WEFT_DEVICE_CUDA)
        add_numbers(&text, &device->cuda);
    else
        text_add(&text, ",\"threads\":%d", device->threads);
    text_add(&text, "}");
    weftStatus_t status =
        text.failed ? status_no_memory(256) : set_chars(&properties->json, &properties->base.arena, text_string(&text));
    text_free(&text);
    return status;
}

/* Precedence: json, handle, device_id. */
static weftStatus_t finalize(struct descriptor *descriptor) {
    struct device_properties *properties = (struct device_properties *)descriptor;
    if (properties->json.count)
        TRY(read_json(&properties->device, descriptor, properties->json.chars));
    else if (properties->handle)
        properties->device = properties->handle->device;
    else
        TRY(device_find(&properties->device, (weftDeviceKind_t)properties->kind, properties->device_id));
    /* The attributes describe the device, whichever of the three it came from. */
    properties->kind = properties->device.kind;
    properties->device_id = properties->device.ordinal;
    properties->threads = properties->device.threads;
    TRY(set_chars(&properties->name, &descriptor->arena, properties->device.name));
    return write_json(properties);
}

/* The rows have been copied; the device is not a row. */
static weftStatus_t copy(struct descriptor *target, const struct descriptor *source) {
    ((struct device_properties *)target)->device = ((const struct device_properties *)source)->device;
    return WEFT_STATUS_SUCCESS;
}

const struct schema device_properties_schema = {
    .kind = WEFT_BACKEND_DEVICEPROP_DESCRIPTOR,
    .name = "device properties",
    .doc = "the device to plan for, on this machine or elsewhere",
    .size = sizeof(struct device_properties),
    ROWS(rows),
    .finalize = finalize,
    .copy = copy,
};

weftStatus_t choose_device(struct device *device, const struct device_properties *properties,
                           const struct weftContext *handle, const struct engine *engine) {
    if (properties)
        *device = properties->device;
    else if (handle)
        *device = handle->device;
    else
        TRY(device_choose_default(device));
    /* If neither names a device, the engine may use the first device of its kind. */
    bool is_default = !properties && !handle;
    return is_default && engine && engine->device != device->kind ? device_find(device, engine->device, 0)
                                                                  : WEFT_STATUS_SUCCESS;
}

void limit_device(struct device *device, const struct engine_limits *limits) {
    struct cuda_properties *cuda = &device->cuda;
    if (device->kind != WEFT_DEVICE_CUDA)
        return;
    if (limits->sm_count_target > 0 && limits->sm_count_target < cuda->multiprocessors)
        cuda->multiprocessors = limits->sm_count_target;
    if (limits->shared_memory_limit > 0 && limits->shared_memory_limit < cuda->shared_per_block) {
        cuda->shared_per_block = limits->shared_memory_limit;
        cuda->is_limited = true;
    }
    if (limits->disable_cluster_cooperative && cuda->cluster_most > 1) {
        cuda->cluster_most = 1;
        cuda->is_limited = true;
    }
}
