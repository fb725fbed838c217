/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that XLA's calls run, each loaded once for a device and kept for the calls that follow, whichever executable
   they are of. At most KEPT_MAX are kept, unless more are in use at once or in captured graphs. Threads share them. */
#ifndef WEFT_XLA_PLANS_H
#define WEFT_XLA_PLANS_H

#include "runtime/context.h"
#include "weft/weft.h"

#include <stdbool.h>

enum { KEPT_MAX = 4096 };

/* By what a plan is found. */
struct plan_name {
    uint64_t key;     /* of the text: other texts have other keys, as good as always */
    const char *text; /* the saved plan in hexadecimal digits */
    size_t length;
    weftDeviceKind_t kind;
    int32_t ordinal;
};

struct kept_plan {
    struct kept_plan *next; /* of those with the same place in the table */
    struct plan_name name;  /* with a text of its own */
    weftHandle_t handle;
    weftBackendDescriptor_t plan;
    int64_t slot_count, workspace_bytes;
    int users; /* calls that run it just now */
    bool is_captured;
    uint64_t last_use; /* counts calls */
};

/* The plan of a name, loaded if it is not kept; to be given back. */
weftStatus_t kept_plan_take(struct kept_plan **out, const struct plan_name *name);

/* is_captured: a graph now has its kernels, so that it stays for good. */
void kept_plan_give_back(struct kept_plan *kept, bool is_captured);

/* How many are kept. */
int kept_plan_count(void);

#endif
