/* SPDX-License-Identifier: Apache-2.0 */
/* Execution plans: immutable after finalize, shareable by threads. */
#ifndef WEFT_PLAN_PLAN_H
#define WEFT_PLAN_PLAN_H

#include "plan/draft.h"
#include "plan/engine.h"
#include "plan/variant_pack.h"
#include <pthread.h>

/* A tensor that a pointer must come for, and what that pointer must satisfy. */
struct slot {
    int value;
    int64_t uid, bytes, alignment;
};

/* Two slots whose memory must not overlap, at least one of them written. */
struct conflict {
    int a, b;        /* a is written */
    int64_t allowed; /* b may begin exactly so many bytes after a; -1: nowhere */
};

struct plan {
    struct descriptor base;
    struct weftContext *handle;
    struct engine_config *config;
    struct graph *graph; /* to be planned on the fastest engine, when there is no config */
    int64_t workspace_bytes;
    struct list computed_intermediates, run_only_intermediates;
    struct list blob; /* as set by the user: a saved plan; then what save makes */
    struct descriptor *kernel_cache;
    struct device_properties *device_properties;
    int32_t retention;
    struct list slot_uids, report, tag;
    int64_t workspace_limit;
    bool with_code;
    struct carried_codes carried; /* code to use instead of compiling; it lies in the blob that was set */
    bool has_unused_code;         /* the blob carries code that nobody asked to use */

    struct draft draft;
    int slot_count;
    struct slot *slots; /* by uid */
    int conflict_count;
    struct conflict *conflicts;
    pthread_mutex_t override_lock;
    struct plan_override *overrides; /* plans for overridden shapes, made on demand */
};

extern const struct schema plan_schema;

/* Runs with one pointer per slot. workspace_bytes: what is at workspace, or -1 when the caller did not tell. */
weftStatus_t plan_run(const struct plan *plan, void *const *pointers, void *workspace, int64_t workspace_bytes,
                      weftStream_t stream);

/* The same with a pack: looks the pointers up, and plans anew where shapes are overridden. */
weftStatus_t plan_run_pack(struct plan *plan, const struct variant_pack *pack, weftStream_t stream);

/* The plan that serves a pack: `plan` itself, or one for the overridden shapes; the caller releases it. */
weftStatus_t plan_for_pack(struct plan **found, struct plan *plan, const struct variant_pack *pack);
void plan_free_overrides(struct plan *plan);

/* report.c: what runs where and why, as JSON in the plan's arena. */
weftStatus_t plan_write_report(struct plan *plan);

#endif
