/* SPDX-License-Identifier: Apache-2.0 */
/* Stores the log's mask and destination. The mask is read without a lock. Callback and user data are changed under a
   lock, because a caller may replace them while another thread logs. */
#define _GNU_SOURCE
#include "base/trace.h"

#include "base/environment.h"
#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

/* The lower bits are severities, as in weftSetCallback. This one is set only by WEFT_LOG=exec and logs each
   execution. */
enum { EXEC_BIT = 1u << 16 };

/* Severities that are logged; read at every call, therefore without a lock. */
static atomic_uint mask_bits;
static pthread_once_t mask_once = PTHREAD_ONCE_INIT;
/* Guards sink_callback and sink_udata; a NULL callback stands for stderr. */
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static weftCallback_t sink_callback;
static void *sink_udata;

/* The mask of the severities that WEFT_LOG selects; each level includes the previous ones. */
static void read_environment(void) {
    static const struct {
        const char *word;
        unsigned mask;
    } levels[] = {
        {"error", 1u << WEFT_SEV_FATAL | 1u << WEFT_SEV_ERROR},
        {"warn", 1u << WEFT_SEV_FATAL | 1u << WEFT_SEV_ERROR | 1u << WEFT_SEV_WARNING},
        /* 0xF: all four severities, from fatal to info. `plan` is the same as `info`, which has a line for each
           plan. */
        {"info", 0xF},
        {"plan", 0xF},
        {"exec", 0xF | EXEC_BIT},
    };
    /* Runs once, at the first query: programs that change WEFT_LOG later must call weftSetCallback. */
    const char *word = getenv("WEFT_LOG");
    if (!word || !*word)
        return;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (strcmp(word, levels[i].word) == 0) {
            atomic_store(&mask_bits, levels[i].mask);
            return;
        }
    environment_warn("WEFT_LOG", word, "which is not a log level. Set it to error, warn, info, plan or exec.");
}

/* The order of loads does not matter: during a change, one line more or less is acceptable. */
static unsigned mask_now(void) {
    pthread_once(&mask_once, read_environment);
    return atomic_load_explicit(&mask_bits, memory_order_relaxed);
}

bool trace_on(weftSeverity_t severity) { return mask_now() >> severity & 1u; }

bool trace_exec_on(void) { return mask_now() & EXEC_BIT; }

/* `severity` is one of four, and the index of its name. `status` is only for the callback: messages contain it
   already. */
static void send(weftSeverity_t severity, weftStatus_t status, const char *message) {
    static const char *const words[] = {"fatal", "error", "warning", "info"};
    pthread_mutex_lock(&sink_lock);
    /* Called outside of the lock, so that a callback may log, or set another callback. */
    weftCallback_t callback = sink_callback;
    void *udata = sink_udata;
    pthread_mutex_unlock(&sink_lock);
    if (!callback) {
        fprintf(stderr, "weft %s: %s\n", words[severity], message);
        return;
    }
    struct timeval now;
    gettimeofday(&now, NULL);
    weftDebug_t debug = {
        .status = status,
        .weft_version = WEFT_MAJOR * 10000 + WEFT_MINOR * 100 + WEFT_PATCHLEVEL,
        /* Wall-clock time, so that lines of several processes can be sorted. */
        .time_sec = (uint32_t)now.tv_sec,
        .time_usec = (uint32_t)now.tv_usec,
        .pid = (uint64_t)getpid(),
        .tid = (uint64_t)syscall(SYS_gettid),
    };
    callback(severity, udata, &debug, message);
}

void trace(weftSeverity_t severity, const char *format, ...) {
    if (!trace_on(severity))
        return;
    /* On the stack: logging must not allocate, because it may report a lack of memory. */
    char message[STATUS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    send(severity, WEFT_STATUS_SUCCESS, message);
}

weftStatus_t trace_failure(weftStatus_t status) {
    if (status == WEFT_STATUS_SUCCESS || !trace_on(WEFT_SEV_ERROR))
        return status;
    char message[STATUS_TEXT_BYTES];
    snprintf(message, sizeof message, "%s: %s", status_name(status), status_text());
    send(WEFT_SEV_ERROR, status, message);
    return status;
}

/* Reads the environment first, so that it does not overwrite this mask later. */
void trace_set_callback(uint32_t mask, void *udata, weftCallback_t callback) {
    mask_now();
    pthread_mutex_lock(&sink_lock);
    sink_callback = callback;
    sink_udata = udata;
    atomic_store(&mask_bits, mask);
    pthread_mutex_unlock(&sink_lock);
}

void trace_get_callback(uint32_t *mask, void **udata, weftCallback_t *callback) {
    /* Read outside of the lock: mask and sink may come from different calls of trace_set_callback. */
    unsigned now = mask_now();
    pthread_mutex_lock(&sink_lock);
    if (mask)
        *mask = now;
    if (udata)
        *udata = sink_udata;
    if (callback)
        *callback = sink_callback;
    pthread_mutex_unlock(&sink_lock);
}
