/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a descriptor of any kind, driven by its schema's rows. */
#ifndef WEFT_GRAPH_DESCRIPTOR_H
#define WEFT_GRAPH_DESCRIPTOR_H

#include "graph/schema.h"

weftStatus_t descriptor_make(const struct schema *schema, struct descriptor **out);
struct descriptor *descriptor_retain(struct descriptor *descriptor);
/* Gives up one hold; NULL is allowed. */
void descriptor_release(struct descriptor *descriptor);

weftStatus_t descriptor_set(struct descriptor *descriptor, weftBackendAttributeName_t name,
                            weftBackendAttributeType_t type, int64_t count, const void *elements);
weftStatus_t descriptor_get(const struct descriptor *descriptor, weftBackendAttributeName_t name,
                            weftBackendAttributeType_t type, int64_t requested, int64_t *count, void *elements);
weftStatus_t descriptor_finalize(struct descriptor *descriptor);

/* A copy that lives with an arena and that nobody holds or releases. Others may take and leave the source meanwhile. */
weftStatus_t descriptor_mirror(struct arena *arena, void *out, const struct descriptor *source);

/* Fills an empty descriptor with what another of its kind holds. */
weftStatus_t descriptor_copy(struct descriptor *target, const struct descriptor *source);

/* The row of an attribute, or NULL when the kind has none of that name. */
const struct row *schema_find_row(const struct schema *schema, weftBackendAttributeName_t name);

/* The row every kind has: WEFT_ATTR_NAME_EXT. */
extern const struct row name_row;

/* Whether the user set an attribute, and whether in this row: an attribute may have one for a number and one for a
   tensor. */
bool descriptor_row_is_set(const struct descriptor *descriptor, weftBackendAttributeName_t name);
bool row_is_set(const struct descriptor *descriptor, const struct row *row);

/* "matmul 'qk'" or "tensor 'bias' (uid 7)". The text lives until the thread's eighth next call. */
const char *descriptor_label(const struct descriptor *descriptor);

/* "[8,128,64]", with the same life. */
const char *numbers_text(const int64_t *numbers, int64_t count);

static inline const void *row_at(const struct descriptor *descriptor, const struct row *row) {
    return (const char *)descriptor + row->offset;
}

/* The tensor of a row, or NULL when it is unset or the row is no single tensor. */
struct tensor *row_tensor(const struct descriptor *descriptor, const struct row *row);

/* Bytes of one element as the API passes it. */
size_t attribute_type_bytes(weftBackendAttributeType_t type);
const char *attribute_type_name(weftBackendAttributeType_t type);

#endif
