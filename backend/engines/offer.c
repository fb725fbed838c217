/* SPDX-License-Identifier: Apache-2.0 */
/* Families of an engine asked about a region, and their prices compared. It knows no family by name: whom a caller
   means, it says by `may`. */
#include "engines/engine.h"

weftStatus_t engine_offer(struct offer *best, const struct engine *engine, const struct region *region,
                          const struct device *device, bool (*may)(const struct family *family)) {
    /* What is returned where no family is asked at all. */
    weftStatus_t status = WEFT_STATUS_NOT_SUPPORTED;
    *best = (struct offer){0};
    for (int f = 0; engine && engine->families[f]; f++) {
        const struct family *family = engine->families[f];
        double seconds;
        /* A combination would ask back here, without end. */
        if (family->combines || !engine_uses(engine, family) || (may && !may(family)))
            continue;
        /* A refusal leaves its words in the thread's text; the caller clears them where another family serves. */
        status = family->accepts(region, device, &seconds);
        /* Strictly less: of equal prices the first in the list stays. */
        if (!status && (!best->family || seconds < best->seconds))
            *best = (struct offer){family, seconds};
    }
    return best->family ? WEFT_STATUS_SUCCESS : status;
}
