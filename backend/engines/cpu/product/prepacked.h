/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of an operand that is frozen (weftFreeze): packed once, for one address. Executions that have another one pack
   for themselves. */
#ifndef WEFT_ENGINES_CPU_PREPACKED_H
#define WEFT_ENGINES_CPU_PREPACKED_H

#include "weft/weft.h"

#include <stdint.h>

/* Zeroed: nothing is kept. */
struct prepacked {
    void *panels;   /* aligned to a line of the cache */
    const void *of; /* whose panels they are */
};

/* Memory for the panels of what lies at an address, which the caller then packs; what was kept before is gone. */
weftStatus_t prepacked_alloc(struct prepacked *kept, const void *of, int64_t bytes);
void prepacked_free(struct prepacked *kept);

/* The panels of what lies at an address; NULL: they are not kept. */
static inline const void *prepacked_find(const struct prepacked *kept, const void *address) {
    return kept->of == address ? kept->panels : NULL;
}

#endif
