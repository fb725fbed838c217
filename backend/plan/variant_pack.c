/* SPDX-License-Identifier: Apache-2.0 */
/* Variant packs. Finalizing a pack sorts its pointers by uid, so that an execution only merges two sorted lists. */
#include "plan/variant_pack.h"
#include "graph/descriptor.h"

#include <stdlib.h>

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_INT64, struct variant_pack, uids, WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, "unique_ids",
              .storage = STORE_LIST, .required = true, .doc = "uids of the tensors, in any order"),
    VALUE_ROW(WEFT_TYPE_VOID_PTR, struct variant_pack, pointers, WEFT_ATTR_VARIANT_PACK_DATA_POINTERS, "data_pointers",
              .storage = STORE_LIST, .required = true, .doc = "their memory, in the order of unique_ids"),
    VALUE_ROW(WEFT_TYPE_VOID_PTR, struct variant_pack, intermediates, WEFT_ATTR_VARIANT_PACK_INTERMEDIATES,
              "intermediates", .storage = STORE_LIST, .role = ROLE_RESULT, .doc = "placeholder; always empty"),
    VALUE_ROW(WEFT_TYPE_VOID_PTR, struct variant_pack, workspace, WEFT_ATTR_VARIANT_PACK_WORKSPACE, "workspace",
              .doc = "memory of the plan's workspace_size; may be NULL when that is 0"),
    VALUE_ROW(WEFT_TYPE_INT64, struct variant_pack, workspace_bytes, WEFT_ATTR_VARIANT_PACK_WORKSPACE_SIZE_EXT,
              "workspace_size", .initial = -1, .least = -1, .most = INT64_MAX,
              .doc = "bytes at workspace; when set, execute checks that they suffice"),
    VALUE_ROW(WEFT_TYPE_INT64, struct variant_pack, override_uids, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS,
              "override_unique_ids", .storage = STORE_LIST, .doc = "tensors that have other dims in this execution"),
    VALUE_ROW(WEFT_TYPE_INT64, struct variant_pack, override_shapes, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES,
              "override_shapes", .storage = STORE_LIST, .doc = "their dims, one tensor after the other"),
    VALUE_ROW(WEFT_TYPE_INT64, struct variant_pack, override_strides, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES,
              "override_strides", .storage = STORE_LIST, .doc = "their strides, one tensor after the other"),
};

/* Not a subtraction, which could overflow. */
static int by_uid(const void *a, const void *b) {
    int64_t left = ((const struct packed_pointer *)a)->uid, right = ((const struct packed_pointer *)b)->uid;
    return (left > right) - (left < right);
}

/* Checks what does not depend on the plan; the rest is checked by each execution. */
static weftStatus_t finalize(struct descriptor *descriptor) {
    struct variant_pack *pack = (struct variant_pack *)descriptor;
    if (pack->uids.count != pack->pointers.count)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: %lld unique_ids for %lld data_pointers. Set one pointer per uid.", descriptor_label(descriptor),
             (long long)pack->uids.count, (long long)pack->pointers.count);
    /* The lengths depend on the ranks in the graph, so plan_for_pack checks them. */
    if (pack->override_shapes.count != pack->override_strides.count)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: override_shapes has %lld number%s, override_strides has %lld. Set both for each overridden tensor.",
             descriptor_label(descriptor), (long long)pack->override_shapes.count, plural(pack->override_shapes.count),
             (long long)pack->override_strides.count);
    /* Quadratic in the few tensors that change their shape. */
    for (int64_t i = 0; i < pack->override_uids.count; i++)
        for (int64_t k = 0; k < i; k++)
            if (pack->override_uids.i64[i] == pack->override_uids.i64[k])
                FAIL(WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                     "%s: override_unique_ids contains uid %lld twice. List each tensor once.",
                     descriptor_label(descriptor), (long long)pack->override_uids.i64[i]);
    /* One entry per uid, sorted once for all executions. */
    TRY(arena_alloc(&descriptor->arena, &pack->sorted, (size_t)pack->uids.count * sizeof *pack->sorted));
    for (int64_t i = 0; i < pack->uids.count; i++)
        pack->sorted[i] = (struct packed_pointer){.uid = pack->uids.i64[i], .pointer = pack->pointers.pointers[i]};
    qsort(pack->sorted, (size_t)pack->uids.count, sizeof *pack->sorted, by_uid);
    /* Equal uids are adjacent after sorting. */
    for (int64_t i = 1; i < pack->uids.count; i++)
        if (pack->sorted[i].uid == pack->sorted[i - 1].uid)
            FAIL(WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "%s: uid %lld occurs twice. Set one pointer per tensor.",
                 descriptor_label(descriptor), (long long)pack->sorted[i].uid);
    return WEFT_STATUS_SUCCESS;
}

/* `sorted` is in the source's arena, so the copy builds its own. */
static weftStatus_t copy(struct descriptor *target, const struct descriptor *source) {
    (void)source;
    return finalize(target);
}

const struct schema variant_pack_schema = {
    .kind = WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR,
    .name = "variant pack",
    .doc = "the memory of one execution: a pointer per tensor, and a workspace",
    .size = sizeof(struct variant_pack),
    ROWS(rows),
    .finalize = finalize,
    .copy = copy,
};
