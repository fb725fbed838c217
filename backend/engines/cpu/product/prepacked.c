/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for panels that are packed once. */
#include "engines/cpu/product/prepacked.h"

#include "base/number.h"
#include "base/status.h"

#include <stdlib.h>

enum { LINE = 64 }; /* bytes of a cache line */

weftStatus_t prepacked_alloc(struct prepacked *prepacked, const void *of, int64_t bytes) {
    prepacked_free(prepacked);
    size_t aligned_bytes = (size_t)round_up(bytes, LINE);
    prepacked->panels = aligned_alloc(LINE, aligned_bytes);
    if (!prepacked->panels)
        return status_no_memory(aligned_bytes);
    prepacked->of = of;
    return WEFT_STATUS_SUCCESS;
}

void prepacked_free(struct prepacked *prepacked) {
    free(prepacked->panels);
    *prepacked = (struct prepacked){0};
}
