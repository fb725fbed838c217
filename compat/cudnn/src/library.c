/* SPDX-License-Identifier: Apache-2.0 */
/* Versions, messages, the log and the count of calls. */
#define _GNU_SOURCE
#include "src/library.h"
#include "base/trace.h"
#include "src/missing.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Version ----------------------------------------------------------------------------------------------------- */

enum { CUDART_VERSION_REPORTED = 13000, OLDEST_VERSION = 90000, FIRST_OTHER_VERSION = 100000 };

int reported_version(void) {
    static atomic_int known;
    int version = atomic_load_explicit(&known, memory_order_relaxed);
    if (!version) {
        const char *chosen = getenv("WEFT_CUDNN_VERSION");
        version = chosen ? atoi(chosen) : 0;
        if (version < OLDEST_VERSION || version >= FIRST_OTHER_VERSION)
            version = CUDNN_VERSION;
        atomic_store_explicit(&known, version, memory_order_relaxed);
    }
    return version;
}

size_t cudnnGetVersion(void) { return (size_t)reported_version(); }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION_REPORTED; }
size_t cudnnGetMaxDeviceVersion(void) { return CUDNN_MAX_DEVICE_VERSION; }

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
    const int version = reported_version(), parts[] = {version / 10000, version / 100 % 100, version % 100};
    if (!value)
        return fail_with(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                         "cudnnGetProperty: value is NULL. Give the address of an int.");
    REQUIRE((int)type >= 0 && (int)type < 3,
            "cudnnGetProperty: type is %d: expected MAJOR_VERSION, MINOR_VERSION or PATCH_LEVEL.", (int)type);
    *value = parts[type];
    return CUDNN_STATUS_SUCCESS;
}

/* All parts of cuDNN are one library here, so their versions always match. */
cudnnStatus_t cudnnGraphVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnOpsVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnCnnVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnAdvVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSubquadraticOpsVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

enum { MESSAGE_BYTES = 2048 };

/* A copy, because Weft clears its message at each call: the cleanup after a failure would lose it. */
static _Thread_local char last_message[MESSAGE_BYTES];

/* Replaces weftX by cudnnX and WEFT_X by CUDNN_X, the names that the caller knows. */
static void use_cudnn_names(char *text) {
    char renamed[MESSAGE_BYTES];
    size_t length = 0;
    for (const char *at = text; *at && length + sizeof "CUDNN_" < sizeof renamed;) {
        bool is_constant = !strncmp(at, "WEFT_", 5);
        bool is_function = !strncmp(at, "weft", 4) && at[4] >= 'A' && at[4] <= 'Z';
        if (!is_constant && !is_function) {
            renamed[length++] = *at++;
            continue;
        }
        at += is_constant ? 5 : 4;
        length += (size_t)snprintf(renamed + length, sizeof renamed - length, is_constant ? "CUDNN_" : "cudnn");
    }
    renamed[length] = 0;
    memcpy(text, renamed, length + 1);
}

cudnnStatus_t from_weft(weftStatus_t status) {
    enum { FIRST_OWN_STATUS = 12000 }; /* caller errors of Weft's own, which have no number in cuDNN */
    if (!status)
        return CUDNN_STATUS_SUCCESS;
    weftGetLastErrorString(last_message, sizeof last_message);
    use_cudnn_names(last_message);
    if (status == WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT)
        return CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH;
    return (int)status >= FIRST_OWN_STATUS ? CUDNN_STATUS_BAD_PARAM : (cudnnStatus_t)status;
}

cudnnStatus_t fail_with(cudnnStatus_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_message, sizeof last_message, format, arguments);
    va_end(arguments);
    return status;
}

/* Reading clears the message, because frontends append it to failures of their own. */
void cudnnGetLastErrorString(char *message, size_t max_size) {
    if (message && max_size)
        snprintf(message, max_size, "%s", last_message);
    *last_message = 0;
}

/* Never NULL, because PyTorch prints the text of any number. The texts of Weft's statuses are static, so a row per
   status is filled once. */
const char *cudnnGetErrorString(cudnnStatus_t status) {
    enum { NAMES_MAX = 80, NAME_BYTES = 72, FIRST_OWN_STATUS = 12000 };
    static const char unknown[] = "CUDNN_UNKNOWN_STATUS";
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        int status;
        char name[NAME_BYTES];
    } names[NAMES_MAX];
    static int count;
    const char *of_weft = weftGetErrorString((weftStatus_t)status);
    if (strncmp(of_weft, "WEFT_STATUS_", 12) || (int)status >= FIRST_OWN_STATUS)
        return unknown;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < count && names[i].status != (int)status)
        i++;
    if (i == count && count < NAMES_MAX) {
        snprintf(names[i].name, NAME_BYTES, "CUDNN_%s", of_weft + strlen("WEFT_"));
        names[i].status = (int)status;
        count++;
    }
    pthread_mutex_unlock(&lock);
    return i < NAMES_MAX ? names[i].name : unknown;
}

/* ---- Log --------------------------------------------------------------------------------------------------------- */

static struct {
    unsigned mask;
    void *udata;
    cudnnCallback_t function;
} log_target;

static void pass_message(weftSeverity_t severity, void *udata, const weftDebug_t *debug, const char *text) {
    cudnnDebug_t converted = {.cudnn_version = (unsigned)reported_version(),
                              .cudnnStatus = (cudnnStatus_t)debug->status,
                              .time_sec = debug->time_sec,
                              .time_usec = debug->time_usec,
                              .pid = debug->pid,
                              .tid = debug->tid,
                              .cudaDeviceId = -1};
    (void)udata;
    if (log_target.function)
        log_target.function((cudnnSeverity_t)severity, log_target.udata, &converted, text);
}

cudnnStatus_t cudnnSetCallback(unsigned mask, void *udata, cudnnCallback_t function) {
    log_target.mask = mask, log_target.udata = udata, log_target.function = function;
    return from_weft(weftSetCallback(mask, NULL, function ? pass_message : NULL));
}

cudnnStatus_t cudnnGetCallback(unsigned *mask, void **udata, cudnnCallback_t *function) {
    if (mask)
        *mask = log_target.mask;
    if (udata)
        *udata = log_target.udata;
    if (function)
        *function = log_target.function;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Functions that have been called, most recent first; nothing is ever removed. */
static _Atomic(struct call_counter *) called;

cudnnStatus_t call_end(struct call_counter *counter, cudnnStatus_t status) {
    atomic_fetch_add_explicit(&counter->calls, 1, memory_order_relaxed);
    if (!atomic_load_explicit(&counter->is_listed, memory_order_relaxed) &&
        !atomic_exchange(&counter->is_listed, true)) {
        counter->next = atomic_load(&called);
        while (!atomic_compare_exchange_weak(&called, &counter->next, counter))
            ;
    }
    if (status) {
        atomic_fetch_add_explicit(&counter->failures, 1, memory_order_relaxed);
        if (trace_on(WEFT_SEV_WARNING))
            trace(WEFT_SEV_WARNING, "%s: %s: %s", counter->name, cudnnGetErrorString(status), last_message);
    }
    return status;
}

long weftCudnnCallCount(const char *name) {
    for (const struct call_counter *counter = atomic_load(&called); counter; counter = counter->next)
        if (!strcmp(counter->name, name))
            return atomic_load(&counter->calls);
    return 0;
}

/* ---- Missing functions ------------------------------------------------------------------------------------------- */

enum { MISSING_MAX = 128 };
static struct {
    pthread_mutex_t lock;
    int count;
    const char *names[MISSING_MAX];
} missing = {.lock = PTHREAD_MUTEX_INITIALIZER};

cudnnStatus_t report_missing(const char *name) {
    pthread_mutex_lock(&missing.lock);
    int i = 0;
    while (i < missing.count && strcmp(missing.names[i], name))
        i++;
    if (i == missing.count && i < MISSING_MAX)
        missing.names[missing.count++] = name;
    pthread_mutex_unlock(&missing.lock);
    if (trace_on(WEFT_SEV_WARNING))
        trace(WEFT_SEV_WARNING, "%s: not supported", name);
    return fail_with(CUDNN_STATUS_NOT_SUPPORTED,
                     "%s: Weft does not have this function. Set WEFT_CUDNN_FALLBACK to the path of a library that has "
                     "its family, if docs/dropin-functions.md lists it there.",
                     name);
}

/* ---- Start and exit ---------------------------------------------------------------------------------------------- */

__attribute__((constructor)) static void log_start(void) {
    int version = reported_version();
    if (trace_on(WEFT_SEV_INFO))
        trace(WEFT_SEV_INFO, "libcudnn.so.9: Weft %d.%d.%d serves cuDNN's functions and reports version %d.%d.%d",
              WEFT_MAJOR, WEFT_MINOR, WEFT_PATCHLEVEL, version / 10000, version / 100 % 100, version % 100);
}

__attribute__((destructor)) static void log_exit(void) {
    if (!trace_on(WEFT_SEV_INFO))
        return;
    for (const struct call_counter *counter = atomic_load(&called); counter; counter = counter->next)
        trace(WEFT_SEV_INFO, "libcudnn.so.9: %s: %ld calls, %ld failed", counter->name, atomic_load(&counter->calls),
              atomic_load(&counter->failures));
    if (!missing.count)
        trace(WEFT_SEV_INFO, "libcudnn.so.9: no missing function was called");
    for (int i = 0; i < missing.count; i++)
        trace(WEFT_SEV_INFO, "libcudnn.so.9: missing function that was called: %s", missing.names[i]);
}
