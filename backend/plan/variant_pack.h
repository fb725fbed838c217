/* SPDX-License-Identifier: Apache-2.0 */
/* The pointers of one execution, by uid. */
#ifndef WEFT_PLAN_VARIANT_PACK_H
#define WEFT_PLAN_VARIANT_PACK_H

#include "graph/schema.h"

struct packed_pointer {
    int64_t uid;
    void *pointer;
};

struct variant_pack {
    struct descriptor base;
    struct list uids, pointers, intermediates;
    void *workspace;
    int64_t workspace_bytes; /* -1: not specified */
    struct list override_uids, override_shapes, override_strides;
    struct packed_pointer *sorted; /* by uid */
};

extern const struct schema variant_pack_schema;

#endif
