/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table under one lock. Plans are loaded under the lock too, so that calls of several threads load a plan once.
   An execution only holds the lock for the lookup. */
#include "xla/plans.h"
#include "xla/failure.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024, DEVICES_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static struct cached_plan *table[BUCKETS];
static weftHandle_t handles[2][DEVICES_MAX]; /* by kind and ordinal; opened by the first plan, never closed */
static int cached_count;
static uint64_t uses;

static struct cached_plan **bucket_of(const struct plan_name *name) { return &table[name->key % BUCKETS]; }

static bool is_same(const struct plan_name *a, const struct plan_name *b) {
    return a->key == b->key && a->kind == b->kind && a->ordinal == b->ordinal && a->length == b->length &&
           !memcmp(a->text, b->text, a->length);
}

/* ---- Loading ---- */

static int digit_of(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* Decodes hexadecimal digits; the caller frees the bytes. */
static weftStatus_t read_digits(char **bytes, const char *text, size_t length) {
    char *created = malloc(length / 2 + 1);
    if (!created)
        return failure_no_memory(length / 2 + 1);
    for (size_t i = 0; i < length; i++) {
        int digit = digit_of(text[i]);
        if (digit < 0 || length % 2) {
            free(created);
            FAIL(WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT,
                 "weft call: attribute plan is no saved plan in hexadecimal digits. Lower the program again with "
                 "weft.jax.");
        }
        created[i / 2] = (char)(i % 2 ? created[i / 2] | digit : digit << 4);
    }
    *bytes = created;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t find_handle(weftHandle_t *handle, weftDeviceKind_t kind, int32_t ordinal) {
    if ((kind != WEFT_DEVICE_CPU && kind != WEFT_DEVICE_CUDA) || ordinal < 0 || ordinal >= DEVICES_MAX)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "weft call: device kind %d, ordinal %d; they must be %d or %d, and 0 to %d. Lower the program again with "
             "weft.jax.",
             (int)kind, (int)ordinal, WEFT_DEVICE_CPU, WEFT_DEVICE_CUDA, DEVICES_MAX - 1);
    weftHandle_t *cached = &handles[kind == WEFT_DEVICE_CUDA][ordinal];
    if (!*cached)
        TRY(weftCreateForDevice(cached, kind, ordinal));
    *handle = *cached;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t load_bytes(struct cached_plan *cached, const char *bytes, int64_t count) {
    const weftAttribute_t attributes[] = {
        {WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &cached->handle},
        {WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, count, bytes},
    };
    TRY(weftBackendBuildDescriptor(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 2, attributes, &cached->plan));
    TRY(weftBackendGetAttribute(cached->plan, WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, WEFT_TYPE_INT64, 0,
                                &cached->slot_count, NULL));
    return weftBackendGetAttribute(cached->plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, WEFT_TYPE_INT64, 1, NULL,
                                   &cached->workspace_bytes);
}

static void free_cached(struct cached_plan *cached) {
    if (cached->plan) /* only then, because the call clears the thread's error */
        weftBackendDestroyDescriptor(cached->plan);
    free((char *)cached->name.text);
    free(cached);
}

/* On entry the text in cached->name belongs to the caller; it is replaced by a copy. */
static weftStatus_t load(struct cached_plan *cached) {
    const char *text = cached->name.text;
    size_t length = cached->name.length;
    char *bytes = NULL, *copy = malloc(length + 1);
    cached->name.text = copy;
    if (!copy)
        return failure_no_memory(length + 1);
    memcpy(copy, text, length);
    TRY(find_handle(&cached->handle, cached->name.kind, cached->name.ordinal));
    TRY(read_digits(&bytes, copy, length));
    weftStatus_t status = load_bytes(cached, bytes, (int64_t)(length / 2));
    free(bytes);
    return status;
}

/* ---- Caching ---- */

/* The link to the least recently used plan that can be evicted; NULL if all are in use. */
static struct cached_plan **find_oldest(void) {
    struct cached_plan **oldest = NULL;
    for (int i = 0; i < BUCKETS; i++)
        for (struct cached_plan **at = &table[i]; *at; at = &(*at)->next)
            if (!(*at)->users && !(*at)->is_captured && (!oldest || (*at)->last_use < (*oldest)->last_use))
                oldest = at;
    return oldest;
}

static void make_room(void) {
    struct cached_plan **oldest = cached_count >= CACHED_PLANS_MAX ? find_oldest() : NULL;
    if (!oldest)
        return;
    struct cached_plan *evicted = *oldest;
    *oldest = evicted->next;
    cached_count--;
    free_cached(evicted);
}

static weftStatus_t add(struct cached_plan **out, const struct plan_name *name) {
    make_room();
    struct cached_plan *created = calloc(1, sizeof *created);
    if (!created)
        return failure_no_memory(sizeof *created);
    created->name = *name;
    weftStatus_t status = load(created);
    if (status) {
        free_cached(created);
        return status;
    }
    created->next = *bucket_of(name);
    *bucket_of(name) = created;
    cached_count++;
    *out = created;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t cached_plan_acquire(struct cached_plan **out, const struct plan_name *name) {
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    pthread_mutex_lock(&lock);
    struct cached_plan *cached = *bucket_of(name);
    while (cached && !is_same(&cached->name, name))
        cached = cached->next;
    if (!cached)
        status = add(&cached, name);
    if (!status) {
        cached->users++;
        cached->last_use = ++uses;
        *out = cached;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void cached_plan_release(struct cached_plan *cached, bool is_captured) {
    pthread_mutex_lock(&lock);
    cached->users--;
    cached->is_captured |= is_captured;
    pthread_mutex_unlock(&lock);
}

int cached_plan_count(void) {
    pthread_mutex_lock(&lock);
    int count = cached_count;
    pthread_mutex_unlock(&lock);
    return count;
}
