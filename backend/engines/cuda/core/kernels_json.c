/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a plan as JSON, for readers: the source of each kernel, its launch configuration, the compiler's log,
   and the names of the device files that it includes. The texts of these files follow once, after all kernels. */
#include "engines/cuda/core/kernel.h"

/* Marks the device files that any kernel so far includes, by their index in device_files. */
struct included {
    bool is_needed[DEVICE_FILES_MAX];
    int count;
};

/* Emits "key":"value", with a trailing comma: never the last field of an object. */
static void show_field(struct text *json, const char *key, const char *value) {
    text_add(json, "\"%s\":", key);
    text_json_string(json, value);
    text_add(json, ",");
}

/* Both lists are in the same order and share the addresses of names, so one pass suffices. Marks the files that the
   kernel includes. */
static void show_headers(struct text *json, struct included *included, const char *program) {
    struct program_header headers[DEVICE_FILES_MAX];
    uint8_t digest[32];
    int count, reached = kernel_headers(headers, digest, program), at = 0;
    const struct program_header *files = device_files(&count);
    text_add(json, "\"headers\":[");
    for (int i = 0; i < count && at < reached; i++)
        if (files[i].name == headers[at].name) {
            included->is_needed[i] = true;
            text_add(json, at++ ? "," : "");
            text_json_string(json, files[i].name);
        }
    text_add(json, "]");
}

/* Emits one object; `number` is the index of the step. The kernel must be compiled. */
static void show_kernel(struct text *json, struct included *included, int number, const struct step *step,
                        const struct cuda_kernel *kernel) {
    text_add(json, included->count++ ? ",{" : "{");
    text_add(json, "\"step\":%d,", number);
    show_field(json, "family", step->family->name);
    show_field(json, "file", kernel->file);
    show_field(json, "entry", kernel->entry);
    text_add(json, "\"grid\":[%u,%u,%u],\"block\":%u,\"cluster\":%u,\"shared_bytes\":%u,", kernel->grid[0],
             kernel->grid[1], kernel->grid[2], kernel->block, kernel->cluster, kernel->shared_bytes);
    show_field(json, "log", kernel->code->log);
    show_field(json, "text", kernel->program);
    show_headers(json, included, kernel->program);
    text_add(json, "}");
}

/* {"kernels": [..], "headers": {file: text}}: each text once, however many kernels include it. */
void cuda_show(const struct step *steps, int count, struct text *json) {
    struct included included = {.count = 0};
    int file_count, printed = 0;
    const struct program_header *files = device_files(&file_count);
    text_add(json, "{\"kernels\":[");
    for (int s = 0; s < count; s++) {
        const struct cuda_step *state = steps[s].state;
        for (int i = 0; i < state->count; i++)
            show_kernel(json, &included, s, &steps[s], &state->kernels[i]);
    }
    text_add(json, "],\"headers\":{");
    for (int i = 0; i < file_count; i++)
        if (included.is_needed[i]) {
            text_add(json, printed++ ? "," : "");
            text_json_string(json, files[i].name);
            text_add(json, ":");
            text_json_string(json, files[i].text);
        }
    text_add(json, "}}");
}
