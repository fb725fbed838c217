/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of panels that are packed once. */
#include "engines/cpu/product/kept.h"

#include "base/number.h"
#include "base/status.h"

#include <stdlib.h>

enum { LINE = 64 }; /* bytes of a line of the cache */

weftStatus_t kept_make(struct kept *kept, const void *of, int64_t bytes) {
    kept_free(kept);
    size_t whole = (size_t)round_up(bytes, LINE);
    kept->panels = aligned_alloc(LINE, whole);
    if (!kept->panels)
        return status_no_memory(whole);
    kept->of = of;
    return WEFT_STATUS_SUCCESS;
}

void kept_free(struct kept *kept) {
    free(kept->panels);
    *kept = (struct kept){0};
}
