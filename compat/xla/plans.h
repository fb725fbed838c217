/* SPDX-License-Identifier: Apache-2.0 */
/* Cache of the plans that XLA's calls execute. Each is loaded once per device and shared by all later calls, whichever
   executable they belong to, and by all threads. At most CACHED_PLANS_MAX plans are cached, unless more are in use at
   once or part of captured graphs. */
#ifndef WEFT_XLA_PLANS_H
#define WEFT_XLA_PLANS_H

#include "weft/weft.h"

#include <stdbool.h>

enum { CACHED_PLANS_MAX = 4096 };

/* The key of a plan. */
struct plan_name {
    uint64_t key;     /* hash of the text, computed by the caller; the text is compared too */
    const char *text; /* the saved plan in hexadecimal digits */
    size_t length;
    weftDeviceKind_t kind;
    int32_t ordinal;
};

struct cached_plan {
    struct cached_plan *next; /* in the same bucket */
    struct plan_name name;    /* owns its text */
    weftHandle_t handle;
    weftBackendDescriptor_t plan;
    int64_t slot_count, workspace_bytes;
    int users; /* calls that are executing it */
    bool is_captured;
    uint64_t last_use; /* counts calls */
};

/* Returns the plan for a name and loads it if it is not cached; the caller releases it. */
weftStatus_t cached_plan_acquire(struct cached_plan **out, const struct plan_name *name);

/* is_captured: a captured graph contains the plan's kernels, so the plan is never evicted. */
void cached_plan_release(struct cached_plan *cached, bool is_captured);

/* Number of cached plans. */
int cached_plan_count(void);

#endif
