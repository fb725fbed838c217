/* SPDX-License-Identifier: Apache-2.0 */
/* Creates, changes, finalizes, reads and copies descriptors of any kind, driven by the rows of their schema. */
#ifndef WEFT_GRAPH_DESCRIPTOR_H
#define WEFT_GRAPH_DESCRIPTOR_H

#include "graph/schema.h"

weftStatus_t descriptor_make(const struct schema *schema, struct descriptor **out);
struct descriptor *descriptor_retain(struct descriptor *descriptor);
/* Releases one reference; NULL is allowed. */
void descriptor_release(struct descriptor *descriptor);

weftStatus_t descriptor_set(struct descriptor *descriptor, weftBackendAttributeName_t name,
                            weftBackendAttributeType_t type, int64_t count, const void *elements);
weftStatus_t descriptor_get(const struct descriptor *descriptor, weftBackendAttributeName_t name,
                            weftBackendAttributeType_t type, int64_t requested, int64_t *count, void *elements);
weftStatus_t descriptor_finalize(struct descriptor *descriptor);

/* Creates a descriptor, sets attributes and finalizes it. Settings with count 0 are skipped. */
struct setting {
    weftBackendAttributeName_t name;
    weftBackendAttributeType_t type;
    int64_t count;
    const void *elements;
};
weftStatus_t descriptor_build(struct descriptor **out, const struct schema *schema, const struct setting *settings,
                              size_t count);

/* Marks an attribute as set by the user, after its field was written directly. */
void descriptor_mark_set(struct descriptor *descriptor, weftBackendAttributeName_t name);

/* Unsets a tensor or another descriptor that a row holds. */
void descriptor_unset(struct descriptor *descriptor, weftBackendAttributeName_t name);

/* A copy in an arena, without a reference count. Other threads may retain and release the source at the same time. */
weftStatus_t descriptor_mirror(struct arena *arena, void *out, const struct descriptor *source);

/* Copies the contents of a descriptor into an empty one of the same kind. */
weftStatus_t descriptor_copy(struct descriptor *target, const struct descriptor *source);

/* The row of an attribute, or NULL if the kind has no such attribute. */
const struct row *schema_find_row(const struct schema *schema, weftBackendAttributeName_t name);

/* The row that every kind has: WEFT_ATTR_NAME_EXT. */
extern const struct row name_row;

/* True if the user set an attribute, in any of its rows, or in this row: an attribute may have one row for a number and
   one for a tensor. */
bool descriptor_row_is_set(const struct descriptor *descriptor, weftBackendAttributeName_t name);
bool row_is_set(const struct descriptor *descriptor, const struct row *row);

/* "matmul 'qk'" or "tensor 'bias' (uid 7)". The text is valid until the thread's eighth next call. */
const char *descriptor_label(const struct descriptor *descriptor);

/* Returns "[8,128,64]", valid for the same time. */
const char *numbers_text(const int64_t *numbers, int64_t count);

static inline const void *row_at(const struct descriptor *descriptor, const struct row *row) {
    return (const char *)descriptor + row->offset;
}

/* The tensor of a row, or NULL if it is unset or the row is not a single tensor. */
struct tensor *row_tensor(const struct descriptor *descriptor, const struct row *row);

/* Returns the size in bytes of one element in the API. */
size_t attribute_type_bytes(weftBackendAttributeType_t type);
const char *attribute_type_name(weftBackendAttributeType_t type);

#endif
