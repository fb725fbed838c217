/* SPDX-License-Identifier: Apache-2.0 */
/* Reports this machine's support for GPUs as JSON, so that diagnostics can tell what is missing; and sets further
   search paths for the compiler. Missing components are reported, and are not errors. */
#include "api/reply.h"
#include "runtime/cache.h"
#include "runtime/device.h"
#include "runtime/driver.h"
#include "runtime/nvrtc.h"

#include <stdio.h>
#include <string.h>

/* Without a GPU, compilers are checked for this chip. */
static const char NEWEST_TUNED[] = "sm_90a";

static void add_driver(struct text *out) {
    const struct driver *driver;
    bool is_there = driver_get(&driver) == WEFT_STATUS_SUCCESS;
    text_add(out, "{\"version\":");
    if (is_there)
        /* CUDA's own numbering: 12040 is 12.4. */
        text_add(out, "\"%d.%d\"", driver->version / 1000, driver->version % 1000 / 10);
    else
        text_add(out, "null");
    text_add(out, ",\"gpus\":%d,\"problem\":", is_there ? driver->device_count : 0);
    text_json_string(out, is_there ? NULL : status_text());
    text_add(out, "}");
}

weftStatus_t weftDescribeMachine(char *text, size_t capacity, size_t *size) {
    status_clear();
    struct text out;
    struct device device;
    char arch[16];
    text_init(&out);
    text_add(&out, "{\"driver\":");
    add_driver(&out);
    snprintf(arch, sizeof arch, "%s", NEWEST_TUNED);
    /* The first GPU's architecture, which compilers must support; NEWEST_TUNED without a GPU. */
    if (device_count(WEFT_DEVICE_CUDA) && device_find(&device, WEFT_DEVICE_CUDA, 0) == WEFT_STATUS_SUCCESS)
        device_arch(arch, &device);
    text_add(&out, ",\"arch\":\"%s\",\"compilers\":", arch);
    nvrtc_report(&out, arch);
    text_add(&out, ",\"cache\":");
    cache_report(&out);
    text_add(&out, "}");
    /* A failed search for a driver or a compiler sets the thread's message. */
    status_clear();
    return reply_text("weftDescribeMachine", &out, text, capacity, size);
}

weftStatus_t weftSetSearchPaths(const char *paths) {
    status_clear();
    return nvrtc_set_search_paths(paths);
}
