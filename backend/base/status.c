/* SPDX-License-Identifier: Apache-2.0 */
/* The list of statuses with their names, and the thread-local message of the last failure. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Thread-local, like errno: failures on other threads do not affect it. Longer messages are truncated. */
static _Thread_local char last_text[STATUS_TEXT_BYTES];
static _Thread_local bool is_quiet;

/* A table and not a switch, so that a test can iterate over it; in the order of the header. */
#define STATUS(name) {WEFT_STATUS_##name, "WEFT_STATUS_" #name}
static const struct {
    weftStatus_t value;
    const char *name;
} names[] = {
    STATUS(SUCCESS),
    STATUS(NOT_INITIALIZED),
    STATUS(SUBLIBRARY_VERSION_MISMATCH),
    STATUS(SERIALIZATION_VERSION_MISMATCH),
    STATUS(DEPRECATED),
    STATUS(LICENSE_ERROR),
    STATUS(RUNTIME_IN_PROGRESS),
    STATUS(RUNTIME_FP_OVERFLOW),
    STATUS(SUBLIBRARY_LOADING_FAILED),
    STATUS(BAD_PARAM),
    STATUS(BAD_PARAM_NULL_POINTER),
    STATUS(BAD_PARAM_MISALIGNED_POINTER),
    STATUS(BAD_PARAM_NOT_FINALIZED),
    STATUS(BAD_PARAM_OUT_OF_BOUND),
    STATUS(BAD_PARAM_SIZE_INSUFFICIENT),
    STATUS(BAD_PARAM_STREAM_MISMATCH),
    STATUS(BAD_PARAM_SHAPE_MISMATCH),
    STATUS(BAD_PARAM_DUPLICATED_ENTRIES),
    STATUS(BAD_PARAM_ATTRIBUTE_TYPE),
    STATUS(BAD_PARAM_CUDA_GRAPH_MISMATCH),
    STATUS(BAD_PARAM_DESCRIPTOR_TYPE),
    STATUS(BAD_PARAM_ALREADY_FINALIZED_EXT),
    STATUS(BAD_PARAM_CYCLE_EXT),
    STATUS(BAD_PARAM_DAMAGED_BLOB_EXT),
    STATUS(NOT_SUPPORTED),
    STATUS(NOT_SUPPORTED_GRAPH_PATTERN),
    STATUS(NOT_SUPPORTED_SHAPE),
    STATUS(NOT_SUPPORTED_DATA_TYPE),
    STATUS(NOT_SUPPORTED_LAYOUT),
    STATUS(NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER),
    STATUS(NOT_SUPPORTED_INCOMPATIBLE_CUDART),
    STATUS(NOT_SUPPORTED_ARCH_MISMATCH),
    STATUS(NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING),
    STATUS(NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE),
    STATUS(NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT),
    STATUS(NOT_SUPPORTED_PADDING),
    STATUS(NOT_SUPPORTED_BAD_LAUNCH_PARAM),
    STATUS(NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API),
    STATUS(NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE),
    STATUS(INTERNAL_ERROR),
    STATUS(INTERNAL_ERROR_COMPILATION_FAILED),
    STATUS(INTERNAL_ERROR_UNEXPECTED_VALUE),
    STATUS(INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
    STATUS(INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED),
    STATUS(INTERNAL_ERROR_BAD_LAUNCH_PARAM),
    STATUS(INTERNAL_ERROR_TEXTURE_CREATION_FAILED),
    STATUS(EXECUTION_FAILED),
    STATUS(EXECUTION_FAILED_CUDA_DRIVER),
    STATUS(EXECUTION_FAILED_CUBLAS),
    STATUS(EXECUTION_FAILED_CUDART),
    STATUS(EXECUTION_FAILED_CURAND),
};
#undef STATUS

/* A linear search over some fifty rows: names are needed only when something failed or is printed. */
const char *status_name(weftStatus_t status) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].value == status)
            return names[i].name;
    return "WEFT_STATUS_UNKNOWN";
}

bool status_quiet(bool quiet) {
    bool before = is_quiet;
    is_quiet = quiet;
    return before;
}

bool status_is_quiet(void) { return is_quiet; }

weftStatus_t status_fail(weftStatus_t status, const char *format, ...) {
    if (is_quiet) {
        status_clear();
        return status;
    }
    /* Arguments may point into last_text, so the new message is formatted in a separate buffer. vsnprintf truncates
       long messages and terminates them. */
    char fresh[STATUS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fresh, sizeof fresh, format, arguments);
    va_end(arguments);
    /* Copies only the text, not the whole 4 KiB. */
    memcpy(last_text, fresh, strlen(fresh) + 1);
    return status;
}

/* The only message without a user-defined name, because the allocator knows none. Callers may add a prefix. It ends
   quiet, because nothing else is tried after it. */
weftStatus_t status_no_memory(size_t bytes) {
    status_quiet(false);
    FAIL(WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
         "out of memory: the host could not allocate %zu bytes. Free memory or build a smaller graph.", bytes);
}

weftStatus_t status_prefix(weftStatus_t status, const char *format, ...) {
    /* A prefix consists of a few names; a longer one is truncated, the error after it is kept. */
    char prefix[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    return status_fail(status, "%s%s", prefix, last_text);
}

/* Clears only this thread's message. */
void status_clear(void) { last_text[0] = '\0'; }

const char *status_text(void) { return last_text; }
