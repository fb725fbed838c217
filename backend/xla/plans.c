/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table under one lock. Loading a plan happens under it, too: calls of several threads that want the same plan
   then load it once. A run holds the lock for a look-up alone. */
#include "xla/plans.h"
#include "base/status.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES = 1024, DEVICES_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that follows */
static struct kept_plan *table[PLACES];
static weftHandle_t handles[2][DEVICES_MAX]; /* by kind and ordinal; opened by the first plan, never closed */
static int kept_count;
static uint64_t uses;

static struct kept_plan **place_of(const struct plan_name *name) { return &table[name->key % PLACES]; }

static bool is_same(const struct plan_name *a, const struct plan_name *b) {
    return a->key == b->key && a->kind == b->kind && a->ordinal == b->ordinal && a->length == b->length &&
           !memcmp(a->text, b->text, a->length);
}

/* ---- Loading ---- */

static int digit_of(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* The bytes that hexadecimal digits stand for; to be freed. */
static weftStatus_t read_digits(char **bytes, const char *text, size_t length) {
    char *made = malloc(length / 2 + 1);
    if (!made)
        return status_no_memory(length / 2 + 1);
    for (size_t i = 0; i < length; i++) {
        int digit = digit_of(text[i]);
        if (digit < 0 || length % 2) {
            free(made);
            FAIL(WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT,
                 "weft call: attribute plan is no saved plan in hexadecimal digits. Lower the program again with "
                 "weft.jax.");
        }
        made[i / 2] = (char)(i % 2 ? made[i / 2] | digit : digit << 4);
    }
    *bytes = made;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t find_handle(weftHandle_t *handle, weftDeviceKind_t kind, int32_t ordinal) {
    if ((kind != WEFT_DEVICE_CPU && kind != WEFT_DEVICE_CUDA) || ordinal < 0 || ordinal >= DEVICES_MAX)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "weft call: device kind %d, ordinal %d; they must be %d or %d, and 0 to %d. Lower the program again with "
             "weft.jax.",
             (int)kind, (int)ordinal, WEFT_DEVICE_CPU, WEFT_DEVICE_CUDA, DEVICES_MAX - 1);
    weftHandle_t *kept = &handles[kind == WEFT_DEVICE_CUDA][ordinal];
    if (!*kept)
        TRY(weftCreateForDevice(kept, kind, ordinal));
    *handle = *kept;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t load_bytes(struct kept_plan *kept, const char *bytes, int64_t count) {
    const weftAttribute_t attributes[] = {
        {WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &kept->handle},
        {WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, count, bytes},
    };
    TRY(weftBackendBuildDescriptor(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 2, attributes, &kept->plan));
    TRY(weftBackendGetAttribute(kept->plan, WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, WEFT_TYPE_INT64, 0,
                                &kept->slot_count, NULL));
    return weftBackendGetAttribute(kept->plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, WEFT_TYPE_INT64, 1, NULL,
                                   &kept->workspace_bytes);
}

static void free_kept(struct kept_plan *kept) {
    if (kept->plan) /* the call clears the thread's error */
        weftBackendDestroyDescriptor(kept->plan);
    free((char *)kept->name.text);
    free(kept);
}

/* What is in kept->name is the caller's yet. */
static weftStatus_t load(struct kept_plan *kept) {
    const char *text = kept->name.text;
    size_t length = kept->name.length;
    char *bytes = NULL, *copy = malloc(length + 1);
    kept->name.text = copy;
    if (!copy)
        return status_no_memory(length + 1);
    memcpy(copy, text, length);
    TRY(find_handle(&kept->handle, kept->name.kind, kept->name.ordinal));
    TRY(read_digits(&bytes, copy, length));
    weftStatus_t status = load_bytes(kept, bytes, (int64_t)(length / 2));
    free(bytes);
    return status;
}

/* ---- Keeping ---- */

/* The link to the plan that was used longest ago of those that may go; NULL if all must stay. */
static struct kept_plan **find_oldest(void) {
    struct kept_plan **oldest = NULL;
    for (int i = 0; i < PLACES; i++)
        for (struct kept_plan **at = &table[i]; *at; at = &(*at)->next)
            if (!(*at)->users && !(*at)->is_captured && (!oldest || (*at)->last_use < (*oldest)->last_use))
                oldest = at;
    return oldest;
}

static void make_room(void) {
    struct kept_plan **oldest = kept_count >= KEPT_MAX ? find_oldest() : NULL;
    if (!oldest)
        return;
    struct kept_plan *gone = *oldest;
    *oldest = gone->next;
    kept_count--;
    free_kept(gone);
}

static weftStatus_t add(struct kept_plan **out, const struct plan_name *name) {
    make_room();
    struct kept_plan *made = calloc(1, sizeof *made);
    if (!made)
        return status_no_memory(sizeof *made);
    made->name = *name;
    weftStatus_t status = load(made);
    if (status) {
        free_kept(made);
        return status;
    }
    made->next = *place_of(name);
    *place_of(name) = made;
    kept_count++;
    *out = made;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t kept_plan_take(struct kept_plan **out, const struct plan_name *name) {
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    pthread_mutex_lock(&lock);
    struct kept_plan *found = *place_of(name);
    while (found && !is_same(&found->name, name))
        found = found->next;
    if (!found)
        status = add(&found, name);
    if (!status) {
        found->users++;
        found->last_use = ++uses;
        *out = found;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void kept_plan_give_back(struct kept_plan *kept, bool is_captured) {
    pthread_mutex_lock(&lock);
    kept->users--;
    kept->is_captured |= is_captured;
    pthread_mutex_unlock(&lock);
}

int kept_plan_count(void) {
    pthread_mutex_lock(&lock);
    int count = kept_count;
    pthread_mutex_unlock(&lock);
    return count;
}
