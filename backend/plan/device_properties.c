/* SPDX-License-Identifier: Apache-2.0 */
/* Device properties: which device to plan for, taken from this machine or from the JSON text that another machine
   wrote ({"kind":"cpu","ordinal":0,"threads":8,"name":"..."}). */
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

/* The text after "key": in a flat JSON object, or NULL. */
static const char *find_key(const char *json, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(json, quoted);
    return at ? at + strlen(quoted) : NULL;
}

/* The characters up to the closing quote, cut to `bytes`; escaped quotes and backslashes stand for themselves. */
static void read_string(char *out, size_t bytes, const char *at) {
    size_t length = 0;
    for (; *at && *at != '"' && length + 1 < bytes; at++) {
        at += *at == '\\' && at[1];
        out[length++] = *at;
    }
    out[length] = '\0';
}

static weftStatus_t read_json(struct device *device, const struct descriptor *self, const char *json) {
    const char *kind = find_key(json, "kind"), *ordinal = find_key(json, "ordinal"),
               *threads = find_key(json, "threads"), *name = find_key(json, "name");
    bool is_cpu = kind && strncmp(kind, "\"cpu\"", 5) == 0;
    if (json[0] != '{' || !is_cpu)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: json describes no device that Weft knows: '%.60s'. Use text that attribute json of another device "
             "gave.",
             descriptor_label(self), json);
    memset(device, 0, sizeof *device);
    device->kind = WEFT_DEVICE_CPU;
    long ordinal_said = ordinal ? strtol(ordinal, NULL, 10) : 0, threads_said = threads ? strtol(threads, NULL, 10) : 1;
    if (ordinal_said < 0 || ordinal_said > INT32_MAX || threads_said < 1 || threads_said > 4096)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: json says ordinal %ld and %ld threads; legal are 0 or more, and 1..4096. Correct the text.",
             descriptor_label(self), ordinal_said, threads_said);
    device->ordinal = (int32_t)ordinal_said;
    device->threads = (int)threads_said;
    if (name && *name == '"')
        read_string(device->name, sizeof device->name, name + 1);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t set_chars(struct list *list, struct arena *arena, const char *chars) {
    TRY(arena_copy(arena, &list->items, chars, strlen(chars) + 1));
    list->count = (int64_t)strlen(chars);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t write_json(struct device_properties *properties) {
    struct text text;
    text_init(&text);
    text_add(&text,
             "{\"kind\":\"%s\",\"ordinal\":%d,\"threads\":%d,\"name\":", device_kind_name(properties->device.kind),
             (int)properties->device.ordinal, properties->device.threads);
    text_json_string(&text, properties->device.name);
    text_add(&text, "}");
    weftStatus_t status =
        text.failed ? status_no_memory(256) : set_chars(&properties->json, &properties->base.arena, text_string(&text));
    text_free(&text);
    return status;
}

static weftStatus_t finalize(struct descriptor *descriptor) {
    struct device_properties *properties = (struct device_properties *)descriptor;
    if (properties->json.count)
        TRY(read_json(&properties->device, descriptor, properties->json.chars));
    else if (properties->handle)
        properties->device = properties->handle->device;
    else
        TRY(device_find(&properties->device, (weftDeviceKind_t)properties->kind, properties->device_id));
    properties->kind = properties->device.kind;
    properties->device_id = properties->device.ordinal;
    properties->threads = properties->device.threads;
    TRY(set_chars(&properties->name, &descriptor->arena, properties->device.name));
    return write_json(properties);
}

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
                           const struct weftContext *handle) {
    if (properties)
        *device = properties->device;
    else if (handle)
        *device = handle->device;
    else
        TRY(device_choose_default(device));
    return WEFT_STATUS_SUCCESS;
}
