/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor kinds of this layer: engines, configurations, heuristics, plans, variant packs, devices. */
#ifndef WEFT_PLAN_SCHEMAS_H
#define WEFT_PLAN_SCHEMAS_H

#include "graph/schema.h"

/* Ends with NULL. */
extern const struct schema *const plan_schemas[];

#endif
