/* SPDX-License-Identifier: Apache-2.0 */
/* Layout of a saved plan, little-endian:
     "WEFTPLAN", u32 format, u32 library version, i64 bytes of the body, SHA-256 of the body, body
   body:       engine name (block); i64 number of knobs and limits, each u32 type or attribute and i64 value; graph;
               i64 pieces of machine code (0 unless requested), each 32 bytes of identity, u8 is_ptx, image (block)
   graph:      i64 number of descriptors, each u32 kind, u32 rows, each u32 attribute, u32 type, i64 count, elements.
               The type's highest bit marks values that were inferred, not set. The next bit marks dimensions of a
               tensor that are those of attention's scores: the elements are q, k, v, the page tables of k and v
               (descriptors, or -1) and the maximum number of keys; the strides are packed.
               Descriptors among the elements are i64 indices of earlier ones; the last descriptor is the graph.
   The reader trusts nothing: lengths are checked against the available bytes, values as a user's. */
#include "plan/save.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/number.h"
#include "graph/descriptor.h"
#include "graph/ops.h"
#include "graph/ops/attention.h"

#include <stdlib.h>
#include <string.h>

enum { FORMAT = 2, HEADER_BYTES = 8 + 4 + 4 + 8 + 32 };
/* Smallest encoding of each. The reader bounds a count by the bytes that are left, so that a damaged count is rejected
   before memory of that size is allocated. */
enum { KNOB_BYTES = 4 + 8, DESCRIPTOR_BYTES = 4 + 4, CODE_BYTES = 32 + 1 + 8 };
/* Attribute types are below 2^30, so two bits are free. */
static const uint32_t INFERRED = UINT32_C(1) << 31, SCORES = UINT32_C(1) << 30; /* flags in a row's type */
/* q, k, v, and the page tables of k and v. */
enum { SCORES_OPERANDS = 5 };
static const char MAGIC[8] = {'W', 'E', 'F', 'T', 'P', 'L', 'A', 'N'};

static uint32_t library_version(void) { return WEFT_MAJOR * 10000 + WEFT_MINOR * 100 + WEFT_PATCHLEVEL; }

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* The descriptors of a graph, each after the ones that it references. Saved bytes refer to a descriptor by its index.
   */
struct listing {
    const struct descriptor **items;
    int64_t count;
    size_t bytes;        /* allocated size of items */
    int64_t *buckets;    /* hash table with linear probing: index + 1, or 0; at most half full */
    size_t bucket_count; /* a power of two */
    bool failed;
};

/* The bucket of a descriptor, or the empty one where it belongs. Terminates because at most half of the buckets are in
   use. */
static int64_t *bucket_of(const struct listing *listing, const struct descriptor *descriptor) {
    uint64_t hash =
        (uint64_t)(uintptr_t)descriptor * UINT64_C(0x9E3779B97F4A7C15); /* 2^64 divided by the golden ratio */
    /* The upper half of the product is the best mixed part of a multiplicative hash; the addresses differ little in
       their low bits. */
    for (size_t at = hash >> 32;; at++) {
        int64_t *bucket = &listing->buckets[at & (listing->bucket_count - 1)];
        if (*bucket == 0 || listing->items[*bucket - 1] == descriptor)
            return bucket;
    }
}

/* -1 if it is not in the list. */
static int64_t index_of(const struct listing *listing, const struct descriptor *descriptor) {
    return listing->count ? *bucket_of(listing, descriptor) - 1 : -1;
}

/* Doubles the hash table. */
static bool grow_buckets(struct listing *listing) {
    size_t wanted = listing->bucket_count ? 2 * listing->bucket_count : 64;
    int64_t *buckets = calloc(wanted, sizeof *buckets);
    if (!buckets)
        return false;
    /* Buckets depend on the size of the table, so all entries are inserted again. */
    free(listing->buckets);
    listing->buckets = buckets;
    listing->bucket_count = wanted;
    for (int64_t i = 0; i < listing->count; i++)
        *bucket_of(listing, listing->items[i]) = i + 1;
    return true;
}

/* False if memory is exhausted; the list is unchanged then. */
static bool append_descriptor(struct listing *listing, const struct descriptor *descriptor) {
    size_t count = (size_t)listing->count + 1;
    void *grown = bytes_grow(listing->items, &listing->bytes, count * sizeof *listing->items);
    if (!grown)
        return false;
    listing->items = grown;
    /* Grow before inserting, so that bucket_of always finds an empty bucket. */
    if (2 * count > listing->bucket_count && !grow_buckets(listing))
        return false;
    listing->items[listing->count++] = descriptor;
    *bucket_of(listing, descriptor) = listing->count;
    return true;
}

/* Returns the number of descriptors in a row and a pointer to them; 0 for rows of other types. A single descriptor is a
   list of one, or of none if it is unset. */
static int64_t find_children(const struct descriptor *descriptor, const struct row *row,
                             struct descriptor *const **children) {
    const struct list *list = row_at(descriptor, row);
    if (row->type != WEFT_TYPE_BACKEND_DESCRIPTOR)
        return 0;
    *children = row->storage == STORE_LIST ? list->descriptors : row_at(descriptor, row);
    return row->storage == STORE_LIST ? list->count : **children != NULL;
}

/* Appends a descriptor after the ones that it references, each once. The recursion is as deep as descriptors reference
   each other: operations, parameters, tensors, offsets. */
static void list_descriptors(struct listing *listing, const struct descriptor *descriptor) {
    if (index_of(listing, descriptor) >= 0)
        return;
    for (int i = 0; i < descriptor->schema->row_count; i++) {
        struct descriptor *const *children = NULL;
        int64_t count = find_children(descriptor, &descriptor->schema->rows[i], &children);
        for (int64_t k = 0; k < count; k++)
            list_descriptors(listing, children[k]);
    }
    listing->failed = listing->failed || !append_descriptor(listing, descriptor);
}

/* Writes what precedes the elements of a row: attribute, type with flags, count. */
static void put_row_head(struct byte_writer *writer, const struct row *row, int64_t count, bool is_set) {
    byte_put_u32(writer, (uint32_t)row->name);
    byte_put_u32(writer, (uint32_t)row->type | (is_set ? 0 : INFERRED));
    byte_put_i64(writer, count);
}

/* Writes an int64 row with other values than the descriptor's. */
static void put_numbers(struct byte_writer *writer, const struct row *row, const int64_t *numbers, int64_t count) {
    put_row_head(writer, row, count, true);
    byte_put_raw(writer, numbers, (size_t)count * sizeof *numbers);
}

/* Tensors store constants in 16 bytes, whatever their type. */
static void put_row(struct byte_writer *writer, const struct listing *listing, const struct descriptor *descriptor,
                    const struct row *row) {
    const struct list *list = row_at(descriptor, row);
    const struct dims *dims = row_at(descriptor, row);
    struct descriptor *const *children = NULL;
    int64_t count = row->storage == STORE_LIST ? list->count : row->storage == STORE_DIMS ? dims->count : 1;
    /* A scalar is stored in the descriptor itself. */
    const void *items = row->storage == STORE_LIST ? list->items : row->storage == STORE_DIMS ? dims->at : (void *)list;
    /* The label is no row of the schema; if it exists, it counts as set. */
    bool is_set = row == &name_row || row_is_set(descriptor, row);
    if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR) {
        count = find_children(descriptor, row, &children);
        put_row_head(writer, row, count, is_set);
        for (int64_t i = 0; i < count; i++)
            byte_put_i64(writer, index_of(listing, children[i]));
    } else if (row->type == WEFT_TYPE_VOID_PTR) { /* only constants in a graph have this type */
        put_row_head(writer, row, 1, is_set);
        byte_put_raw(writer, ((const struct tensor *)descriptor)->constant, 16);
    } else {
        /* Float rows are stored and set as doubles. */
        size_t bytes = row->type == WEFT_TYPE_FLOAT ? sizeof(double) : attribute_type_bytes(row->type);
        put_row_head(writer, row, count, is_set);
        byte_put_raw(writer, items, (size_t)count * bytes);
    }
}

/* The index of a tensor among the overridden ones, and the offset of its dims in the lists, where the tensors follow
   each other; -1 if it is not overridden. `overrides` may be NULL. */
static int64_t find_override(const struct graph *graph, const struct variant_pack *overrides,
                             const struct tensor *tensor, int64_t *offset) {
    *offset = 0;
    for (int64_t i = 0; overrides && i < overrides->override_uids.count; i++) {
        int value = graph_find_uid(graph, overrides->override_uids.i64[i]);
        if (value >= 0 && graph->values[value].tensor == tensor)
            return i;
        *offset += value >= 0 ? graph->values[value].tensor->dims.count : 0;
    }
    return -1;
}

/* For a tensor of a score modifier's graph, the attention that uses the modifier, and whether the tensor is the scores
   themselves or is computed in the graph. NULL for all other tensors. Linear in the number of operations. */
static const struct attention *find_modified(const struct graph *graph, const struct tensor *tensor, bool *is_scores,
                                             bool *is_derived) {
    for (int i = 0; i < graph->node_count; i++) {
        const struct attention *a = attention_of(graph->nodes[i].op);
        int value = a && a->modifier.graph ? graph_find_value(a->modifier.graph, tensor) : -1;
        if (value < 0)
            continue;
        bool has_gradient = a->modifier.gradient_output >= 0;
        *is_scores = value == a->modifier.input || (has_gradient && value == a->modifier.gradient_input);
        *is_derived = a->modifier.graph->values[value].producer >= 0;
        return a;
    }
    *is_scores = *is_derived = false;
    return NULL;
}

/* Writes the shape of attention scores as a rule instead of numbers, so that overridden shapes of q, k and v change the
   scores too. */
static void put_scores(struct byte_writer *writer, const struct listing *listing, const struct attention *a) {
    const struct tensor *operands[SCORES_OPERANDS] = {a->q, a->k, a->v, a->k_table, a->v_table};
    byte_put_u32(writer, WEFT_ATTR_TENSOR_DIMENSIONS);
    byte_put_u32(writer, WEFT_TYPE_INT64 | SCORES);
    byte_put_i64(writer, SCORES_OPERANDS + 1);
    for (int i = 0; i < SCORES_OPERANDS; i++)
        byte_put_i64(writer, operands[i] ? index_of(listing, &operands[i]->base) : -1);
    byte_put_i64(writer, a->most_keys);
}

/* True if a row that operations may infer has a value. Unset rows of other kinds have defaults, which need no bytes. */
static bool is_known(const struct tensor *tensor, const struct row *row) {
    return (row->name == WEFT_ATTR_TENSOR_DIMENSIONS && tensor->dims.count) ||
           (row->name == WEFT_ATTR_TENSOR_STRIDES && tensor->strides.count) ||
           (row->name == WEFT_ATTR_TENSOR_DATA_TYPE && tensor->type != TENSOR_NO_TYPE);
}

/* True if a tensor's alignment is reduced to that of its elements; views inside the graph infer theirs. */
static bool loses_alignment(const struct tensor *tensor, const struct changes *changes) {
    return changes->element_aligned && !tensor->is_virtual && !tensor->is_constant;
}

/* Handles and results belong to this process and are not saved. Inferred values are saved, because operations in
   another graph or order might have inferred them, except the type of a virtual result, which is free while it is
   unset, and, with overrides, the shapes that follow from others. */
static bool row_is_saved(const struct graph *graph, const struct descriptor *descriptor, const struct row *row,
                         const struct changes *changes) {
    bool is_set = row_is_set(descriptor, row);
    if (row->type == WEFT_TYPE_HANDLE || row->role == ROLE_RESULT)
        return false;
    if (descriptor->schema != &tensor_schema)
        return is_set;
    const struct tensor *tensor = (const struct tensor *)descriptor;
    bool is_shape = row->name == WEFT_ATTR_TENSOR_DIMENSIONS || row->name == WEFT_ATTR_TENSOR_STRIDES;
    int value = graph_find_value(graph, tensor);
    /* Produced by an operation, which infers the shape of a virtual tensor and what the user left unset. */
    bool follows = value >= 0 && graph->values[value].producer >= 0 && (tensor->is_virtual || !is_set);
    int64_t offset;
    bool is_scores = false, is_derived = false;
    if (row->name == WEFT_ATTR_TENSOR_DATA_TYPE && tensor->is_virtual && follows)
        return is_set;
    /* The scores of a modifier's graph follow from q and k, even if they were set. */
    if (is_shape && changes->overrides)
        find_modified(graph, tensor, &is_scores, &is_derived);
    follows = follows || is_scores || is_derived;
    if (is_shape && changes->overrides && (follows || find_override(graph, changes->overrides, tensor, &offset) >= 0))
        return false;
    if (row->name == WEFT_ATTR_TENSOR_BYTE_ALIGNMENT && loses_alignment(tensor, changes))
        return false;
    return is_set || is_known(tensor, row);
}

/* The header contains the number of rows: those that row_is_saved selects, and those that the changes add. */
static void put_descriptor(struct byte_writer *writer, const struct listing *listing, const struct graph *graph,
                           const struct descriptor *descriptor, const struct changes *changes) {
    const struct schema *schema = descriptor->schema;
    const struct tensor *tensor = schema == &tensor_schema ? (const struct tensor *)descriptor : NULL;
    int64_t offset = 0, override = tensor ? find_override(graph, changes->overrides, tensor, &offset) : -1;
    bool is_relaxed = tensor && loses_alignment(tensor, changes), is_scores = false, is_derived;
    const struct attention *modified =
        tensor && changes->overrides ? find_modified(graph, tensor, &is_scores, &is_derived) : NULL;
    /* An override adds two rows (dims and strides), a reduced alignment one, scores one. */
    uint32_t rows = (uint32_t)(descriptor->label.count > 0) + (override >= 0 ? 2 : 0) + is_relaxed + is_scores;
    for (int i = 0; i < schema->row_count; i++)
        rows += row_is_saved(graph, descriptor, &schema->rows[i], changes);
    byte_put_u32(writer, (uint32_t)schema->kind);
    byte_put_u32(writer, rows);
    if (descriptor->label.count > 0)
        put_row(writer, listing, descriptor, &name_row);
    for (int i = 0; i < schema->row_count; i++)
        if (row_is_saved(graph, descriptor, &schema->rows[i], changes))
            put_row(writer, listing, descriptor, &schema->rows[i]);
    /* After the tensor's own rows, from which row_is_saved excludes these. */
    if (override >= 0) {
        const struct variant_pack *pack = changes->overrides;
        put_numbers(writer, schema_find_row(schema, WEFT_ATTR_TENSOR_DIMENSIONS), pack->override_shapes.i64 + offset,
                    tensor->dims.count);
        put_numbers(writer, schema_find_row(schema, WEFT_ATTR_TENSOR_STRIDES), pack->override_strides.i64 + offset,
                    tensor->dims.count);
    }
    if (is_scores)
        put_scores(writer, listing, modified);
    /* Never larger than the declared alignment. */
    if (is_relaxed)
        put_numbers(writer, schema_find_row(schema, WEFT_ATTR_TENSOR_BYTE_ALIGNMENT),
                    (const int64_t[]){min64(tensor->alignment, tensor_element_bytes(tensor))}, 1);
}

/* Constants are saved with their tensors; the contents of other tensors belong to the user and are never saved. */
static weftStatus_t save_graph(struct byte_writer *writer, const struct graph *graph, const struct changes *changes) {
    struct listing listing = {0};
    /* In an order in which they can be finalized: producers first, because shapes are inferred from them. */
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].completes)
            list_descriptors(&listing, graph->nodes[i].completes);
    list_descriptors(&listing, &graph->base);
    byte_put_i64(writer, listing.count);
    for (int64_t i = 0; i < listing.count && !listing.failed; i++)
        put_descriptor(writer, &listing, graph, listing.items[i], changes);
    free(listing.items);
    free(listing.buckets);
    return listing.failed || writer->failed ? status_no_memory(writer->length) : WEFT_STATUS_SUCCESS;
}

/* Lists the code of each program once, because steps share programs. Quadratic in the programs of one plan, a few
   dozen. */
static weftStatus_t list_codes(struct aot_code **codes, int64_t *count, const struct draft *draft) {
    struct aot_code next;
    size_t bytes = 0;
    for (int s = 0; s < draft->cover.count; s++)
        for (int i = 0; draft->engine->code && draft->engine->code(&draft->steps[s], i, &next); i++) {
            /* The index of the code, or the count if it is new. */
            int64_t known = 0;
            while (known < *count && memcmp((*codes)[known].identity, next.identity, sizeof next.identity) != 0)
                known++;
            void *grown = bytes_grow(*codes, &bytes, (size_t)(known + 1) * sizeof next);
            if (!grown)
                return status_no_memory(bytes);
            *codes = grown;
            (*codes)[known] = next;
            *count += known == *count;
        }
    return WEFT_STATUS_SUCCESS;
}

/* The count is 0 if code was not requested. */
static weftStatus_t put_codes(struct byte_writer *body, const struct plan *plan) {
    struct aot_code *codes = NULL;
    int64_t count = 0;
    weftStatus_t status = plan->with_code ? list_codes(&codes, &count, &plan->draft) : WEFT_STATUS_SUCCESS;
    byte_put_i64(body, count);
    for (int64_t i = 0; i < count; i++) {
        byte_put_raw(body, codes[i].identity, sizeof codes[i].identity);
        byte_put_u8(body, codes[i].is_ptx);
        byte_put_block(body, codes[i].image, codes[i].bytes);
    }
    free(codes);
    return status;
}

/* Writes a limit of the engine, if it is set. Limits share the list with the knobs; attribute numbers and knob numbers
   do not overlap. */
static void put_limit(struct byte_writer *body, weftBackendAttributeName_t name, int64_t value) {
    if (value) {
        byte_put_u32(body, (uint32_t)name);
        byte_put_i64(body, value);
    }
}

/* Engines are saved by name, because their order may change between versions. */
static weftStatus_t put_body(struct byte_writer *body, const struct plan *plan) {
    const char *name = plan->draft.engine->name;
    byte_put_block(body, name, strlen(name));
    const struct engine_limits *limits = &plan->config->engine->limits;
    int limit_count = !!limits->sm_count_target + !!limits->shared_memory_limit + limits->disable_cluster_cooperative;
    byte_put_i64(body, plan->config->knobs.count + limit_count);
    put_limit(body, WEFT_ATTR_ENGINE_SM_COUNT_TARGET, limits->sm_count_target);
    put_limit(body, WEFT_ATTR_ENGINE_SHARED_MEMORY_LIMIT, limits->shared_memory_limit);
    put_limit(body, WEFT_ATTR_ENGINE_DISABLE_CLUSTER_COOPERATIVE, limits->disable_cluster_cooperative);
    for (int64_t i = 0; i < plan->config->knobs.count; i++) {
        const struct knob_setting *knob = (const struct knob_setting *)plan->config->knobs.descriptors[i];
        byte_put_u32(body, (uint32_t)knob->type);
        byte_put_i64(body, knob->value);
    }
    TRY(save_graph(body, plan->config->engine->graph, &(struct changes){0}));
    return put_codes(body, plan);
}

/* Reports a failure in the text's flag, like any `write` of a row; the message is in the status. */
void plan_write_blob(const struct descriptor *descriptor, struct text *bytes) {
    struct byte_writer body, head;
    byte_writer_init(&body);
    byte_writer_init(&head);
    weftStatus_t status = put_body(&body, (const struct plan *)descriptor);
    uint8_t digest[32];
    struct sha256 hash;
    sha256_init(&hash);
    sha256_update(&hash, body.data, body.length);
    /* Detects damage, not forgery: the digest of a forged blob can be forged too. */
    sha256_final(digest, &hash);
    byte_put_raw(&head, MAGIC, sizeof MAGIC);
    byte_put_u32(&head, FORMAT);
    byte_put_u32(&head, library_version());
    byte_put_i64(&head, (int64_t)body.length);
    byte_put_raw(&head, digest, sizeof digest);
    text_add_chars(bytes, (const char *)head.data, head.length);
    text_add_chars(bytes, (const char *)body.data, body.length);
    bytes->failed = bytes->failed || status || body.failed || head.failed;
    byte_writer_free(&body);
    byte_writer_free(&head);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* All damage has one status, because the remedy is the same. */
static weftStatus_t fail_damaged(const char *damage) {
    FAIL(WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT, "saved plan is damaged: %s. Save the plan again.", damage);
}

/* Reads a count of items of at least least_bytes each. A count that exceeds the remaining bytes marks the reader as bad
   before anything is allocated. If the count itself is truncated, no bytes remain. */
static int64_t get_count(struct byte_reader *reader, size_t least_bytes) {
    size_t left = reader->length - reader->position, taken = left < sizeof(int64_t) ? left : sizeof(int64_t);
    return byte_get_count(reader, (int64_t)((left - taken) / least_bytes));
}

/* Reads `count` elements of a row and sets them. Allocates one more, because calloc(0) may return NULL. */
static weftStatus_t get_elements(struct byte_reader *reader, struct descriptor *descriptor, const struct row *row,
                                 struct descriptor *const *loaded, int64_t loaded_count, int64_t count) {
    /* Float rows are saved as doubles, see put_row. */
    weftBackendAttributeType_t type = row->type == WEFT_TYPE_FLOAT ? WEFT_TYPE_DOUBLE : row->type;
    if (type == WEFT_TYPE_VOID_PTR) {
        unsigned char constant[16];
        void *address = constant;
        byte_get_raw(reader, constant, sizeof constant);
        TRY(descriptor_set(descriptor, row->name, type, 1, &address));
        /* `constant` is on this stack frame, and the tensor copies it only when it is finalized. */
        struct tensor *tensor = (struct tensor *)descriptor;
        return arena_copy(&descriptor->arena, &tensor->constant_address, constant, sizeof constant);
    }
    /* Bounded by the remaining bytes, so that a blob of a kilobyte cannot request a gigabyte. */
    size_t bytes = attribute_type_bytes(type);
    if ((uint64_t)count * 8 > reader->length - reader->position &&
        (uint64_t)count * bytes > reader->length - reader->position)
        return fail_damaged("a list is longer than the bytes that are left");
    char *elements = calloc((size_t)count + 1, bytes);
    if (!elements)
        return status_no_memory((size_t)count * bytes);
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    if (type == WEFT_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++) {
            int64_t index = byte_get_i64(reader);
            /* Only earlier descriptors, so a blob cannot encode a cycle. */
            if (index < 0 || index >= loaded_count)
                status = fail_damaged("a descriptor references one that does not precede it");
            else
                ((struct descriptor **)elements)[i] = loaded[index];
        }
    else
        byte_get_raw(reader, elements, (size_t)count * bytes);
    /* Checks type, count and range as for a user's call, and copies. */
    if (!status)
        status = descriptor_set(descriptor, row->name, type, count, elements);
    free(elements);
    return status;
}

/* Reads the operands of scores, which must be earlier tensors of four dims. Those at `optional` and beyond may be
   missing. */
static weftStatus_t get_operands(struct byte_reader *reader, struct tensor *operands[SCORES_OPERANDS], int optional,
                                 struct descriptor *const *loaded, int64_t loaded_count) {
    for (int i = 0; i < SCORES_OPERANDS; i++) {
        int64_t index = byte_get_i64(reader);
        if (index >= loaded_count || (index < 0 && i < optional) ||
            (index >= 0 && loaded[index]->schema != &tensor_schema))
            return fail_damaged("scores do not refer to an earlier tensor");
        operands[i] = index < 0 ? NULL : (struct tensor *)loaded[index];
        /* attention_keys below reads four dims. */
        if (operands[i] && operands[i]->dims.count != 4)
            return fail_damaged("scores refer to a tensor that does not have four dims");
    }
    return WEFT_STATUS_SUCCESS;
}

/* Sets the dims of a tensor to those of the scores of the operands, with packed strides. */
static weftStatus_t get_scores(struct byte_reader *reader, struct descriptor *descriptor,
                               struct descriptor *const *loaded, int64_t loaded_count, int64_t count) {
    struct tensor *operands[SCORES_OPERANDS];
    if (descriptor->schema != &tensor_schema || count != SCORES_OPERANDS + 1)
        return fail_damaged("something other than a tensor has the shape of scores");
    TRY(get_operands(reader, operands, 3, loaded, loaded_count));
    /* A descriptor on the stack with only the members that attention_keys reads. */
    struct attention a = {.q = operands[0],
                          .k = operands[1],
                          .v = operands[2],
                          .k_table = operands[3],
                          .v_table = operands[4],
                          .most_keys = byte_get_i64(reader)};
    const int64_t *q = a.q->dims.at;
    int64_t keys = attention_keys(&a), rows, heads;
    /* The strides must not overflow. */
    if (__builtin_mul_overflow(q[2], keys, &rows) || __builtin_mul_overflow(q[1], rows, &heads))
        return fail_damaged("the scores exceed the address space");
    TRY(descriptor_set(descriptor, WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 4,
                       (const int64_t[]){q[0], q[1], q[2], keys}));
    return descriptor_set(descriptor, WEFT_ATTR_TENSOR_STRIDES, WEFT_TYPE_INT64, 4,
                          (const int64_t[]){heads, rows, keys, 1});
}

/* loaded[i] is set as soon as the descriptor exists, so that the caller can release it after a failure. descriptor_set
   checks each value as it does for a user. */
static weftStatus_t get_descriptor(struct byte_reader *reader, struct descriptor **loaded, int64_t loaded_count) {
    const struct schema *schema = ops_find_schema((weftBackendDescriptorType_t)byte_get_u32(reader));
    uint32_t rows = byte_get_u32(reader);
    /* Only kinds of the graph layer: a blob cannot create plans or handles. */
    if (!schema || reader->bad)
        return fail_damaged("it contains a descriptor of a kind that does not occur in graphs");
    TRY(descriptor_make(schema, &loaded[loaded_count]));
    for (uint32_t i = 0; i < rows; i++) {
        weftBackendAttributeName_t name = (weftBackendAttributeName_t)byte_get_u32(reader);
        uint32_t marked_type = byte_get_u32(reader);
        weftBackendAttributeType_t type = (weftBackendAttributeType_t)(marked_type & ~(INFERRED | SCORES));
        int64_t count = get_count(reader, 1);
        /* The attribute is ignored: only dimensions are marked. */
        if (marked_type & SCORES) {
            TRY(get_scores(reader, loaded[loaded_count], loaded, loaded_count, count));
            continue;
        }
        const struct row *row = NULL;
        /* A row is identified by name and type; a known name with another type is damage. */
        for (int k = 0; k < schema->row_count && !row; k++)
            if (schema->rows[k].name == name && schema->rows[k].type == type)
                row = &schema->rows[k];
        if (name == name_row.name && type == name_row.type)
            row = &name_row;
        bool is_constant = schema == &tensor_schema; /* only there a pointer stands for bytes */
        if (!row || reader->bad || row->type == WEFT_TYPE_HANDLE || (row->type == WEFT_TYPE_VOID_PTR && !is_constant))
            return fail_damaged("it sets an attribute that the descriptor does not have");
        TRY(get_elements(reader, loaded[loaded_count], row, loaded, loaded_count, count));
        /* Inferred rows are set like others, then marked as unset, as inference would have left them. */
        if (marked_type & INFERRED && row != &name_row)
            loaded[loaded_count]->set_rows &= ~(UINT64_C(1) << (row - schema->rows));
    }
    if (reader->bad)
        return fail_damaged("it is truncated");
    return descriptor_finalize(loaded[loaded_count]);
}

/* Reads a graph and finalizes it; the caller owns it. Descriptors hold references to each other, so the list can be
   released once the graph is retained. */
static weftStatus_t load_graph(struct graph **graph, struct byte_reader *reader) {
    int64_t count = get_count(reader, DESCRIPTOR_BYTES);
    struct descriptor **loaded = calloc((size_t)count + 1, sizeof *loaded);
    weftStatus_t status = loaded ? WEFT_STATUS_SUCCESS : status_no_memory((size_t)count * sizeof *loaded);
    for (int64_t i = 0; i < count && !status; i++)
        status = get_descriptor(reader, loaded, i);
    /* The graph references all others, so it is last. */
    if (!status && (count == 0 || loaded[count - 1]->schema != &graph_schema))
        status = fail_damaged("it contains no graph");
    *graph = status ? NULL : (struct graph *)descriptor_retain(loaded[count - 1]);
    /* The graph layer does not know the engines; the API sets this for a user's graph. */
    if (*graph)
        (*graph)->engine_count = engine_count;
    for (int64_t i = 0; loaded && i < count; i++)
        descriptor_release(loaded[i]);
    free(loaded);
    return status;
}

/* Saves and loads in memory, so that there is only one way to rebuild a graph. */
weftStatus_t graph_change(struct graph **changed, const struct graph *graph, const struct changes *changes) {
    struct byte_writer writer;
    struct byte_reader reader;
    byte_writer_init(&writer);
    weftStatus_t status = save_graph(&writer, graph, changes);
    byte_reader_init(&reader, writer.data, writer.length);
    if (!status)
        status = load_graph(changed, &reader);
    /* The handle is not saved. */
    if (!status) {
        (*changed)->handle = context_retain(graph->handle);
        (*changed)->assumes_nothing = graph->assumes_nothing || changes->assumes_nothing;
    }
    byte_writer_free(&writer);
    return status;
}

/* Checks the whole header before the body is read. `body` refers to the blob's memory. */
static weftStatus_t open_body(struct byte_reader *body, const struct list *blob) {
    struct byte_reader header;
    char magic[sizeof MAGIC];
    uint8_t digest[32], actual[32];
    byte_reader_init(&header, blob->items, (size_t)blob->count);
    byte_get_raw(&header, magic, sizeof magic);
    uint32_t format = byte_get_u32(&header), version = byte_get_u32(&header);
    int64_t length = byte_get_count(&header, INT64_MAX);
    byte_get_raw(&header, digest, sizeof digest);
    if (header.bad || memcmp(magic, MAGIC, sizeof MAGIC) != 0)
        return fail_damaged("it does not start with the expected magic bytes");
    /* Only the same version, because rows, defaults and enumerators may have another meaning in other versions. */
    if (format != FORMAT || version != library_version())
        FAIL(WEFT_STATUS_SERIALIZATION_VERSION_MISMATCH,
             "saved plan has format %u of version %u, this library reads format %d of version %u. Save it again with "
             "this library.",
             format, version, FORMAT, library_version());
    if (length != blob->count - HEADER_BYTES)
        return fail_damaged("its length differs from the recorded one");
    struct sha256 hash;
    sha256_init(&hash);
    sha256_update(&hash, (const char *)blob->items + HEADER_BYTES, (size_t)length);
    sha256_final(actual, &hash);
    if (memcmp(digest, actual, sizeof digest) != 0)
        return fail_damaged("its bytes do not match their hash");
    byte_reader_init(body, (const char *)blob->items + HEADER_BYTES, (size_t)length);
    return WEFT_STATUS_SUCCESS;
}

/* Code is always checked, but only used if the user requested it. Images are used in place; the blob is in the plan's
   arena, so they live as long as the plan. PTX must end with a zero, because the driver reads it as text. */
static weftStatus_t load_codes(struct byte_reader *body, struct plan *plan) {
    struct aot_code *codes;
    int64_t count = get_count(body, CODE_BYTES);
    TRY(arena_alloc(&plan->base.arena, &codes, (size_t)count * sizeof *codes));
    for (int64_t i = 0; i < count; i++) {
        byte_get_raw(body, codes[i].identity, sizeof codes[i].identity);
        codes[i].is_ptx = byte_get_u8(body) != 0;
        const char *image = (const char *)byte_get_block(body, &codes[i].bytes);
        if (!codes[i].bytes || (codes[i].is_ptx && image[codes[i].bytes - 1] != '\0'))
            return fail_damaged("a piece of its code is truncated");
        codes[i].image = image;
    }
    if (body->bad || body->position != body->length)
        return fail_damaged("it does not end at the expected position");
    plan->aot_codes = (struct aot_codes){.count = plan->with_code ? count : 0, .items = codes};
    plan->has_unused_code = count && !plan->with_code;
    return WEFT_STATUS_SUCCESS;
}

/* Stores a limit; false if the name or value is not one of a limit. Setting the limit as an attribute checks it
   further. */
static bool read_limit(struct engine_limits *limits, int32_t name, int64_t value) {
    bool fits = value > 0 && value <= INT32_MAX;
    if (name == WEFT_ATTR_ENGINE_SM_COUNT_TARGET && fits)
        limits->sm_count_target = (int32_t)value;
    else if (name == WEFT_ATTR_ENGINE_SHARED_MEMORY_LIMIT && fits)
        limits->shared_memory_limit = (int32_t)value;
    else if (name == WEFT_ATTR_ENGINE_DISABLE_CLUSTER_COOPERATIVE && fits)
        limits->disable_cluster_cooperative = true;
    else
        return false;
    return true;
}

/* Reads knob choices and limits; the caller releases the choices, also after a failure. */
static weftStatus_t load_knobs(struct byte_reader *body, struct list *settings, struct engine_limits *limits,
                               struct arena *arena) {
    /* get_count never returns more than fits into the remaining bytes. */
    int64_t most = get_count(body, KNOB_BYTES);
    TRY(arena_alloc(arena, &settings->items, (size_t)most * sizeof *settings->descriptors));
    for (int64_t i = 0; i < most; i++) {
        int32_t type = (int32_t)byte_get_u32(body);
        int64_t value = byte_get_i64(body);
        if (read_limit(limits, type, value))
            continue;
        TRY(make_setting(&settings->descriptors[settings->count], type, value));
        settings->count++;
    }
    return WEFT_STATUS_SUCCESS;
}

/* By name, because the order of engines may differ between builds. */
static weftStatus_t find_engine(struct byte_reader *body, int64_t *index) {
    size_t length;
    const uint8_t *name = byte_get_block(body, &length);
    for (*index = 0; *index < engine_count; ++*index)
        if (name && strlen(engines[*index]->name) == length && memcmp(engines[*index]->name, name, length) == 0)
            return WEFT_STATUS_SUCCESS;
    return fail_damaged("it names an engine that this library does not have");
}

/* The configuration holds references to knobs and graph, so the local ones are released. */
weftStatus_t plan_load(struct plan *plan) {
    struct byte_reader body;
    struct graph *graph = NULL;
    struct arena arena = {0};
    struct list knobs = {0};
    struct engine_limits limits = {0};
    int64_t index;
    TRY(open_body(&body, &plan->blob));
    TRY(find_engine(&body, &index));
    weftStatus_t status = load_knobs(&body, &knobs, &limits, &arena);
    if (!status)
        status = load_graph(&graph, &body);
    if (!status)
        status = load_codes(&body, plan);
    if (!status) {
        /* As if the user had created the graph with the plan's handle. */
        graph->handle = context_retain(plan->handle);
        status = make_config(&plan->config, graph, (int)index, plan->device_properties, &knobs, &limits);
    }
    for (int64_t i = 0; i < knobs.count; i++)
        descriptor_release(knobs.descriptors[i]);
    arena_free(&arena);
    descriptor_release(graph ? &graph->base : NULL);
    return status;
}
