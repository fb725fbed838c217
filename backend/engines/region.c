/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of a graph: operations that one family takes together. */
#include "engines/engine.h"

bool region_has(const struct region *region, int node) {
    for (int i = 0; i < region->count; i++)
        if (region->nodes[i] == node)
            return true;
    return false;
}

bool region_exports(const struct region *region, int value) {
    const struct value *read = &region->graph->values[value];
    if (value_is_slot(read))
        return true;
    for (int i = 0; i < read->readers; i++)
        if (!region_has(region, read->read_by[i]))
            return true;
    return false;
}
