/* SPDX-License-Identifier: Apache-2.0 */
/* Generic set, get, finalize and copy over schema rows: the same code for tensors, operations, engines and plans. It
   does not know any kind except tensors, which messages identify by uid. */
#include "graph/descriptor.h"
#include "base/dtype.h"
#include "base/shared.h"
#include "graph/op.h"
#include "graph/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct row name_row = {
    .name = WEFT_ATTR_NAME_EXT,
    .key = "name",
    .type = WEFT_TYPE_CHAR,
    .storage = STORE_LIST,
    .offset = offsetof(struct descriptor, label),
    .doc = "the user's name of the object, for messages and drawings",
};

/* ---- Attribute types --------------------------------------------------------------------------------------------- */

/* Types of Weft's own are numbered from OWN_TYPES up, and follow cuDNN's in the table. */
enum { OWN_TYPES = 10000, OWN_TYPES_AT = 40 };
#define TYPE(word, size, low, high) [WEFT_TYPE_##word] = {#word, size, low, high}
#define OWN_TYPE(word, size, low, high) [WEFT_TYPE_##word - OWN_TYPES + OWN_TYPES_AT] = {#word, size, low, high}
/* Element size in bytes, and for enumerations the first and last legal value; enumerations with gaps are checked
   further. */
static const struct attribute_type {
    const char *name;
    size_t bytes;
    int64_t low, high;
} attribute_types[] = {
    TYPE(HANDLE, sizeof(void *), 0, 0),
    TYPE(DATA_TYPE, 4, WEFT_DATA_FLOAT, WEFT_DATA_FP8_E5M3),
    TYPE(BOOLEAN, 1, 0, 0),
    TYPE(INT64, 8, 0, 0),
    TYPE(FLOAT, 4, 0, 0),
    TYPE(DOUBLE, 8, 0, 0),
    TYPE(VOID_PTR, sizeof(void *), 0, 0),
    TYPE(CONVOLUTION_MODE, 4, WEFT_CONVOLUTION, WEFT_CROSS_CORRELATION),
    TYPE(HEUR_MODE, 4, WEFT_HEUR_MODE_INSTANT, WEFT_HEUR_MODE_A),
    TYPE(KNOB_TYPE, 4, WEFT_KNOB_TYPE_SPLIT_K, WEFT_KNOB_TYPE_WITHOUT_FAMILIES_EXT),
    TYPE(NAN_PROPOGATION, 4, WEFT_NOT_PROPAGATE_NAN, WEFT_PROPAGATE_NAN),
    TYPE(NUMERICAL_NOTE, 4, WEFT_NUMERICAL_NOTE_TENSOR_CORE, WEFT_NUMERICAL_NOTE_STRICT_NAN_PROP),
    TYPE(LAYOUT_TYPE, 4, WEFT_LAYOUT_TYPE_PREFERRED_NCHW, WEFT_LAYOUT_TYPE_PREFERRED_PAD8CK),
    TYPE(ATTRIB_NAME, 4, 0, INT32_MAX),
    TYPE(POINTWISE_MODE, 4, WEFT_POINTWISE_ADD, WEFT_POINTWISE_BINARY_SELECT),
    TYPE(BACKEND_DESCRIPTOR, sizeof(void *), 0, 0),
    TYPE(GENSTATS_MODE, 4, WEFT_GENSTATS_SUM_SQSUM, WEFT_GENSTATS_SUM_SQSUM),
    TYPE(BN_FINALIZE_STATS_MODE, 4, WEFT_BN_FINALIZE_STATISTICS_TRAINING, WEFT_BN_FINALIZE_STATISTICS_INFERENCE),
    TYPE(REDUCTION_OPERATOR_TYPE, 4, WEFT_REDUCE_TENSOR_ADD, WEFT_REDUCE_TENSOR_MUL_NO_ZEROS),
    TYPE(BEHAVIOR_NOTE, 4, WEFT_BEHAVIOR_NOTE_RUNTIME_COMPILATION, WEFT_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY),
    TYPE(TENSOR_REORDERING_MODE, 4, WEFT_TENSOR_REORDERING_NONE, WEFT_TENSOR_REORDERING_F8_128x4),
    TYPE(RESAMPLE_MODE, 4, WEFT_RESAMPLE_NEAREST, WEFT_RESAMPLE_BICUBIC_EXT),
    TYPE(PADDING_MODE, 4, WEFT_ZERO_PAD, WEFT_REFLECTION_PAD_EXT),
    TYPE(INT32, 4, 0, 0),
    TYPE(CHAR, 1, 0, 0),
    TYPE(SIGNAL_MODE, 4, WEFT_SIGNAL_SET, WEFT_SIGNAL_WAIT),
    TYPE(FRACTION, sizeof(weftFraction_t), 0, 0),
    TYPE(NORM_MODE, 4, WEFT_LAYER_NORM, WEFT_ADA_LAYER_NORM),
    TYPE(NORM_FWD_PHASE, 4, WEFT_NORM_FWD_INFERENCE, WEFT_NORM_FWD_TRAINING),
    TYPE(RNG_DISTRIBUTION, 4, WEFT_RNG_DISTRIBUTION_BERNOULLI, WEFT_RNG_DISTRIBUTION_NORMAL),
    TYPE(MOE_GROUPED_MATMUL_MODE, 4, WEFT_MOE_GROUPED_MATMUL_MODE_NONE, WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER),
    TYPE(RESHAPE_MODE, 4, WEFT_RESHAPE_VIEW_ONLY, WEFT_RESHAPE_LOGICAL),
    TYPE(OPERATIONGRAPH_MODE, 4, -1, 31),
    TYPE(CUDA_GRAPH_RETENTION, 4, 0, 1),
    OWN_TYPE(RNN_MODE_EXT, 4, WEFT_RNN_MODE_RELU, WEFT_RNN_MODE_GRU),
};
#undef TYPE
#undef OWN_TYPE

/* The row of a known type. */
static const struct attribute_type *type_row(weftBackendAttributeType_t type) {
    return &attribute_types[(int)type < OWN_TYPES ? (int)type : (int)type - OWN_TYPES + OWN_TYPES_AT];
}

/* The array has gaps at numbers of cuDNN that Weft does not use: these have no name. */
static bool type_is_known(weftBackendAttributeType_t type) {
    const int count = sizeof attribute_types / sizeof *attribute_types, own = count - OWN_TYPES_AT;
    bool is_inside = (int)type >= OWN_TYPES ? (int)type < OWN_TYPES + own : (unsigned)type < OWN_TYPES_AT;
    return is_inside && type_row(type)->name;
}

/* WEFT_TYPE_GENSTATS_MODE has a single legal value, so its bounds do not distinguish it from a number. */
static bool type_is_enum(weftBackendAttributeType_t type) {
    return type_row(type)->high > type_row(type)->low || type == WEFT_TYPE_GENSTATS_MODE;
}

/* The type must be known. */
size_t attribute_type_bytes(weftBackendAttributeType_t type) { return type_row(type)->bytes; }

const char *attribute_type_name(weftBackendAttributeType_t type) {
    return type_is_known(type) ? type_row(type)->name : "of unknown type";
}

/* Size in bytes of one stored element. FLOAT attributes are stored as double, so that rows of both types share code and
   field. */
static size_t stored_bytes(weftBackendAttributeType_t type) {
    return type == WEFT_TYPE_FLOAT ? sizeof(double) : type_row(type)->bytes;
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* Number of texts that a message may contain, and length of each, with the terminating zero. */
enum { SCRATCH_COUNT = 8, SCRATCH_BYTES = 320 };

/* Texts for the arguments of one message. They are reused in turn: a message may contain up to SCRATCH_COUNT of them,
   and none may be stored. */
static char *scratch_text(void) {
    static _Thread_local char texts[SCRATCH_COUNT][SCRATCH_BYTES];
    static _Thread_local unsigned next;
    return texts[next++ % SCRATCH_COUNT];
}

/* A name of 200 characters, a kind and a uid are shorter than SCRATCH_BYTES, so `length` never exceeds it. Names are
   parts of messages, and empty while no message is set. */
const char *descriptor_label(const struct descriptor *descriptor) {
    if (status_is_quiet())
        return "";
    char *text = scratch_text();
    int length = snprintf(text, SCRATCH_BYTES, "%s", descriptor->schema->name);
    if (descriptor->label.count)
        length += snprintf(text + length, SCRATCH_BYTES - (size_t)length, " '%.200s'", descriptor->label.chars);
    if (descriptor->schema->kind == WEFT_BACKEND_TENSOR_DESCRIPTOR &&
        descriptor_row_is_set(descriptor, WEFT_ATTR_TENSOR_UNIQUE_ID))
        snprintf(text + length, SCRATCH_BYTES - (size_t)length, " (uid %lld)",
                 (long long)((const struct tensor *)descriptor)->uid);
    return text;
}

const char *numbers_text(const int64_t *numbers, int64_t count) {
    if (status_is_quiet())
        return "";
    char *text = scratch_text();
    size_t length = 0;
    text[length++] = '[';
    /* 24 bytes are enough for a comma, the longest 64-bit number and the closing bracket; further numbers are
       omitted. */
    for (int64_t i = 0; i < count && length < SCRATCH_BYTES - 24; i++)
        length += (size_t)snprintf(text + length, SCRATCH_BYTES - length, i ? ",%lld" : "%lld", (long long)numbers[i]);
    snprintf(text + length, SCRATCH_BYTES - length, "]");
    return text;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* A linear search: schemas have a few dozen rows, and attributes are set once. */
const struct row *schema_find_row(const struct schema *schema, weftBackendAttributeName_t name) {
    if (name == WEFT_ATTR_NAME_EXT)
        return &name_row;
    for (int i = 0; i < schema->row_count; i++)
        if (schema->rows[i].name == name)
            return &schema->rows[i];
    return NULL;
}

/* An attribute may have a row for each of two types: finds the one that accepts `type`, otherwise the first. */
static const struct row *find_row_of_type(const struct schema *schema, weftBackendAttributeName_t name,
                                          weftBackendAttributeType_t type) {
    const struct row *first = schema_find_row(schema, name);
    for (int i = 0; first != &name_row && i < schema->row_count; i++)
        if (schema->rows[i].name == name && schema->rows[i].type == type)
            return &schema->rows[i];
    return first;
}

/* set_rows has a bit per row, so a schema may have at most 64. The name has none, because nothing depends on whether it
   was set. */
static uint64_t row_bit(const struct schema *schema, const struct row *row) {
    return row == &name_row ? 0 : UINT64_C(1) << (row - schema->rows);
}

bool row_is_set(const struct descriptor *descriptor, const struct row *row) {
    return descriptor->set_rows & row_bit(descriptor->schema, row);
}

/* Checks all rows of the attribute: one that accepts a number or a tensor has a row for each. */
bool descriptor_row_is_set(const struct descriptor *descriptor, weftBackendAttributeName_t name) {
    const struct schema *schema = descriptor->schema;
    for (int i = 0; i < schema->row_count; i++)
        if (schema->rows[i].name == name && row_is_set(descriptor, &schema->rows[i]))
            return true;
    return false;
}

struct tensor *row_tensor(const struct descriptor *descriptor, const struct row *row) {
    if (row->type != WEFT_TYPE_BACKEND_DESCRIPTOR || row->target != WEFT_BACKEND_TENSOR_DESCRIPTOR ||
        row->storage != STORE_VALUE)
        return NULL;
    struct tensor *tensor;
    /* memcpy, because the declared type of the field is a pointer to another struct. */
    memcpy(&tensor, row_at(descriptor, row), sizeof tensor);
    return tensor;
}

/* Number of elements that a row contains, and their address. */
static int64_t row_count_now(const struct descriptor *descriptor, const struct row *row, const void **items) {
    const void *at = row_at(descriptor, row);
    const struct list *list = at;
    const struct dims *dims = at;
    struct descriptor *held;
    switch (row->storage) {
    case STORE_LIST:
        *items = list->items;
        return list->count;
    case STORE_DIMS:
        *items = dims->at;
        return dims->count;
    case STORE_VALUE:
        /* A NULL pointer counts as no element: get then returns none. */
        *items = at;
        if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR) {
            memcpy(&held, at, sizeof held);
            return held ? 1 : 0;
        }
        return 1;
    }
    *items = NULL;
    return 0;
}

/* Retains or releases element i of a row. Only descriptors and handles have reference counts; all other elements are
   plain data. */
static void retain_held(const struct row *row, const void *items, int64_t i) {
    if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR)
        descriptor_retain(((struct descriptor *const *)items)[i]);
    if (row->type == WEFT_TYPE_HANDLE)
        shared_retain(((struct shared *const *)items)[i]);
}

static void release_held(const struct row *row, const void *items, int64_t i) {
    if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR)
        descriptor_release(((struct descriptor *const *)items)[i]);
    if (row->type == WEFT_TYPE_HANDLE)
        shared_release(((struct shared *const *)items)[i]);
}

/* Releases all elements of a row, but does not clear it: the caller overwrites it. */
static void release_row(struct descriptor *descriptor, const struct row *row) {
    const void *items;
    int64_t count = row_count_now(descriptor, row, &items);
    for (int64_t i = 0; i < count; i++)
        release_held(row, items, i);
}

/* ---- Lifetime ---------------------------------------------------------------------------------------------------- */

/* Lists and dims are empty and pointers are NULL after calloc. */
static void store_initial(struct descriptor *descriptor, const struct row *row) {
    void *at = (char *)descriptor + row->offset;
    if (row->storage != STORE_VALUE)
        return;
    /* Both kinds of floats are stored as doubles: see stored_bytes. */
    if (row->type == WEFT_TYPE_FLOAT || row->type == WEFT_TYPE_DOUBLE)
        *(double *)at = row->initial;
    else if (row->type == WEFT_TYPE_INT64)
        *(int64_t *)at = (int64_t)row->initial;
    else if (row->type == WEFT_TYPE_BOOLEAN)
        *(bool *)at = row->initial != 0;
    else if (row->type == WEFT_TYPE_INT32 || type_is_enum(row->type))
        *(int32_t *)at = (int32_t)row->initial;
}

/* The caller owns the first reference. Fields without a row are 0. */
weftStatus_t descriptor_make(const struct schema *schema, struct descriptor **out) {
    struct descriptor *descriptor = calloc(1, schema->size);
    if (!descriptor)
        return status_no_memory(schema->size);
    descriptor->magic = DESCRIPTOR_MAGIC;
    descriptor->schema = schema;
    atomic_init(&descriptor->holders, 1);
    for (int i = 0; i < schema->row_count; i++)
        store_initial(descriptor, &schema->rows[i]);
    *out = descriptor;
    return WEFT_STATUS_SUCCESS;
}

/* Relaxed: the caller already owns a reference, so no ordering is needed. */
struct descriptor *descriptor_retain(struct descriptor *descriptor) {
    if (descriptor)
        atomic_fetch_add_explicit(&descriptor->holders, 1, memory_order_relaxed);
    return descriptor;
}

weftStatus_t descriptor_mirror(struct arena *arena, void *out, const struct descriptor *source) {
    /* The reference count is atomic, and other threads may change it during the copy: the copy skips it. */
    enum { BEFORE = offsetof(struct descriptor, holders), BEHIND = offsetof(struct descriptor, schema) };
    size_t bytes = source->schema->size;
    struct descriptor *copy;
    TRY(arena_alloc(arena, &copy, bytes));
    memcpy(copy, source, BEFORE);
    atomic_init(&copy->holders, 1);
    memcpy((char *)copy + BEHIND, (const char *)source + BEHIND, bytes - BEHIND);
    memcpy(out, &copy, sizeof copy);
    return WEFT_STATUS_SUCCESS;
}

/* acquire and release, because the thread that frees it must see what others wrote before they released it. */
void descriptor_release(struct descriptor *descriptor) {
    if (!descriptor || atomic_fetch_sub_explicit(&descriptor->holders, 1, memory_order_acq_rel) > 1)
        return;
    /* Read before the rows are released, because the kind's own release may need them. */
    const struct schema *schema = descriptor->schema;
    if (schema->release)
        schema->release(descriptor);
    for (int i = 0; i < schema->row_count; i++)
        release_row(descriptor, &schema->rows[i]);
    arena_free(&descriptor->arena);
    /* Lets later calls detect freed descriptors, as long as the memory is not reused. */
    descriptor->magic = 0;
    free(descriptor);
}

/* Clears the lists that a failed finalize began to fill, so that the next one starts from scratch. */
static void drop_results(struct descriptor *descriptor) {
    for (int i = 0; i < descriptor->schema->row_count; i++) {
        const struct row *row = &descriptor->schema->rows[i];
        /* Result values are simply overwritten, but lists contain descriptors that must be released. */
        if (row->role != ROLE_RESULT || row->storage != STORE_LIST)
            continue;
        release_row(descriptor, row);
        *(struct list *)((char *)descriptor + row->offset) = (struct list){0};
    }
}

/* ---- Parameters of operations ------------------------------------------------------------------------------------ */

/* Returns the row of an operation's parameter descriptor, or NULL. */
static const struct row *parameter_row(const struct schema *schema) {
    for (int i = 0; schema->op && schema->op->parameters && i < schema->row_count; i++)
        if (schema->rows[i].type == WEFT_TYPE_BACKEND_DESCRIPTOR &&
            schema->rows[i].target == (int)schema->op->parameters->kind)
            return &schema->rows[i];
    return NULL;
}

/* The operation's parameter descriptor if it has an attribute of that name; creates it if necessary. */
static weftStatus_t find_parameters(struct descriptor *op, weftBackendAttributeName_t name,
                                    struct descriptor **parameters) {
    const struct row *row = parameter_row(op->schema);
    *parameters = NULL;
    if (!row || !schema_find_row(op->schema->op->parameters, name))
        return WEFT_STATUS_SUCCESS;
    struct descriptor **held = (struct descriptor **)((char *)op + row->offset);
    if (!*held)
        /* The operation owns a reference to a descriptor that is created here, as to one that the user set; release_row
           releases either. */
        TRY(descriptor_make(op->schema->op->parameters, held));
    *parameters = *held;
    return WEFT_STATUS_SUCCESS;
}

/* Finalizes parameters that were set on the operation itself, or that have default values. */
static weftStatus_t complete_parameters(struct descriptor *op) {
    const struct row *row = parameter_row(op->schema);
    if (!row || descriptor_row_is_set(op, row->name))
        return WEFT_STATUS_SUCCESS;
    struct descriptor **held = (struct descriptor **)((char *)op + row->offset);
    if (!*held)
        TRY(descriptor_make(op->schema->op->parameters, held));
    /* If a previous finalize of the operation failed at a later step, its parameters are finalized already. */
    weftStatus_t status = (*held)->finalized ? WEFT_STATUS_SUCCESS : descriptor_finalize(*held);
    if (status)
        return status_prefix(status, "%s: ", descriptor_label(op));
    /* As if the user had set them, to satisfy the check of required rows. */
    op->set_rows |= row_bit(op->schema, row);
    return WEFT_STATUS_SUCCESS;
}

/* Checks the rules of rows first, then those of the kind. A finalized descriptor never changes. */
weftStatus_t descriptor_finalize(struct descriptor *descriptor) {
    const struct schema *schema = descriptor->schema;
    if (descriptor->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT, "%s is finalized already. Finalize a descriptor once.",
             descriptor_label(descriptor));
    /* Parameters first, because their attributes may be required. */
    TRY(complete_parameters(descriptor));
    for (int i = 0; i < schema->row_count; i++)
        if (schema->rows[i].required && !descriptor_row_is_set(descriptor, schema->rows[i].name))
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: attribute %s (%d) is required and was not set. Set it: %s.",
                 descriptor_label(descriptor), schema->rows[i].key, schema->rows[i].name, schema->rows[i].doc);
    weftStatus_t status = schema->finalize ? schema->finalize(descriptor) : WEFT_STATUS_SUCCESS;
    if (status)
        drop_results(descriptor);
    /* After a failed finalize, the user may correct the attributes and finalize again. */
    descriptor->finalized = !status;
    return status;
}

/* ---- Set --------------------------------------------------------------------------------------------------------- */

/* True if a row of type `wanted` can store elements of type `given` without loss: FLOAT rows are stored as double, and
   every integer is also a fraction. */
static bool converts(weftBackendAttributeType_t wanted, weftBackendAttributeType_t given) {
    return wanted == given || (wanted == WEFT_TYPE_DOUBLE && given == WEFT_TYPE_FLOAT) ||
           (wanted == WEFT_TYPE_FLOAT && given == WEFT_TYPE_DOUBLE) ||
           (wanted == WEFT_TYPE_FRACTION && given == WEFT_TYPE_INT64) ||
           (wanted == WEFT_TYPE_INT64 && given == WEFT_TYPE_INT32);
}

/* Stores element i of `elements` (of API type `given`) at `target` in the stored form of the row. */
static void convert_in(void *target, weftBackendAttributeType_t wanted, weftBackendAttributeType_t given,
                       const void *elements, int64_t i) {
    const char *source = (const char *)elements + (size_t)i * type_row(given)->bytes;
    /* The user's array may have any alignment, so numbers are read with memcpy. */
    if (given == WEFT_TYPE_FLOAT) {
        float value;
        memcpy(&value, source, sizeof value);
        *(double *)target = value;
    } else if (wanted == WEFT_TYPE_FRACTION && given == WEFT_TYPE_INT64) {
        weftFraction_t *fraction = target;
        memcpy(&fraction->numerator, source, sizeof fraction->numerator);
        fraction->denominator = 1;
    } else if (wanted == WEFT_TYPE_INT64 && given == WEFT_TYPE_INT32) {
        int32_t value;
        memcpy(&value, source, sizeof value);
        *(int64_t *)target = value;
    } else if (wanted == WEFT_TYPE_BOOLEAN) {
        /* Any nonzero byte is true; another value than 0 or 1 in a bool would be undefined behaviour. */
        *(bool *)target = *source != 0;
    } else {
        memcpy(target, source, type_row(given)->bytes);
    }
}

/* The descriptors that a row accepts, for messages. */
static const char *target_text(const struct row *row) {
    char *text = scratch_text();
    if (row->target == TARGET_ANY_OPERATION)
        return "any operation";
    snprintf(text, SCRATCH_BYTES, "descriptors of kind %d", row->target);
    return text;
}

/* Referenced descriptors must be finalized, and are immutable: their owners need not watch for changes. */
static weftStatus_t check_held(const struct descriptor *descriptor, const struct row *row,
                               const struct descriptor *held, int64_t i) {
    if (!held)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: attribute %s: element %lld is NULL. Give a finalized descriptor.",
             descriptor_label(descriptor), row->key, (long long)i);
    /* Freed memory can be detected only until it is reused: this helps to find bugs, but is no protection. */
    if (held->magic != DESCRIPTOR_MAGIC)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: attribute %s: element %lld is not a valid descriptor. Pass one created by "
             "weftBackendCreateDescriptor.",
             descriptor_label(descriptor), row->key, (long long)i);
    /* A graph accepts all operations; all other rows name the kind. */
    bool fits = row->target == TARGET_ANY_OPERATION ? held->schema->op != NULL : (int)held->schema->kind == row->target;
    if (!fits)
        FAIL(WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
             "%s: attribute %s expects %s, got %s of kind %d. Pass a descriptor of the expected kind.",
             descriptor_label(descriptor), row->key, target_text(row), descriptor_label(held), held->schema->kind);
    if (!held->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_NOT_FINALIZED, "%s: attribute %s: %s is not finalized. Finalize it first.",
             descriptor_label(descriptor), row->key, descriptor_label(held));
    return WEFT_STATUS_SUCCESS;
}

/* Checks one element in its stored form. */
static weftStatus_t check_element(const struct descriptor *descriptor, const struct row *row, const void *stored,
                                  int64_t i) {
    if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR)
        return check_held(descriptor, row, *(struct descriptor *const *)stored, i);
    const struct shared *handle = row->type == WEFT_TYPE_HANDLE ? *(struct shared *const *)stored : NULL;
    if (handle && handle->magic != SHARED_MAGIC)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: attribute %s is not a valid handle. Pass one created by weftCreate.",
             descriptor_label(descriptor), row->key);
    if (row->type == WEFT_TYPE_FRACTION && ((const weftFraction_t *)stored)->denominator < 1)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: attribute %s: element %lld has denominator %lld. A denominator is at least 1.",
             descriptor_label(descriptor), row->key, (long long)i,
             (long long)((const weftFraction_t *)stored)->denominator);
    /* A row with most <= least has no bounds of its own; enumerations have those of their type. */
    bool is_enum = type_is_enum(row->type);
    if (!is_enum && row->most <= row->least)
        return WEFT_STATUS_SUCCESS;
    int64_t value = row->type == WEFT_TYPE_INT64 ? *(const int64_t *)stored : *(const int32_t *)stored;
    int64_t low = row->most > row->least ? row->least : type_row(row->type)->low;
    int64_t high = row->most > row->least ? row->most : type_row(row->type)->high;
    if (value < low || value > high)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: attribute %s is %lld, expected %lld..%lld. Set a value in that range.", descriptor_label(descriptor),
             row->key, (long long)value, (long long)low, (long long)high);
    /* Data types have gaps, in which the table of dtypes has no row. */
    bool is_fast = row->keeps_fast && value == WEFT_DATA_FAST_FLOAT_FOR_FP8;
    if (row->type == WEFT_TYPE_DATA_TYPE && !is_fast && !dtype_of((weftDataType_t)value))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: attribute %s: data type %lld is not supported. Use one of the types that weftDescribe lists.",
             descriptor_label(descriptor), row->key, (long long)value);
    return WEFT_STATUS_SUCCESS;
}

/* Checks that do not depend on the elements. `row` is NULL if the kind has no such attribute. */
static weftStatus_t check_set(const struct descriptor *descriptor, const struct row *row,
                              weftBackendAttributeName_t name, weftBackendAttributeType_t type, int64_t count,
                              const void *elements) {
    if (!row)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s has no attribute %d. See weftDescribe for those it has.",
             descriptor_label(descriptor), name);
    if (row->role == ROLE_RESULT)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: attribute %s is a result. Read it with weftBackendGetAttribute.",
             descriptor_label(descriptor), row->key);
    if (!type_is_known(type) || !converts(row->type, type))
        FAIL(WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "%s: attribute %s expects elements %s, got %s. Pass that type.",
             descriptor_label(descriptor), row->key, attribute_type_name(row->type), attribute_type_name(type));
    int64_t most = row->storage == STORE_VALUE ? 1 : row->storage == STORE_DIMS ? WEFT_DIM_MAX : INT32_MAX;
    int64_t least = row->storage == STORE_VALUE ? 1 : 0;
    if (least == most && count != least)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: attribute %s expects %lld element%s, got %lld. Pass that number.",
             descriptor_label(descriptor), row->key, (long long)least, plural(least), (long long)count);
    if (count < least || count > most)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: attribute %s expects %lld..%lld elements, got %lld. Pass a count in that range.",
             descriptor_label(descriptor), row->key, (long long)least, (long long)most, (long long)count);
    if (count && !elements)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "%s: attribute %s: the array of %lld element%s is NULL. Give its address.", descriptor_label(descriptor),
             row->key, (long long)count, plural(count));
    /* A name may include its terminating zero; a zero in the middle would hide the rest. */
    const char *end = row == &name_row && count ? memchr(elements, '\0', (size_t)count) : NULL;
    if (end && end != (const char *)elements + count - 1)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: attribute %s has a NUL at character %lld of %lld. Leave it out.",
             descriptor_label(descriptor), row->key, (long long)(end - (const char *)elements), (long long)count);
    return WEFT_STATUS_SUCCESS;
}

/* FAST_FLOAT_FOR_FP8 permits sums of less precision than FLOAT. Products support it; all other operations use FLOAT.
   Tensors cannot have this type. */
static void settle_compute_type(const struct descriptor *descriptor, const struct row *row, int32_t *type) {
    if (*type == WEFT_DATA_FAST_FLOAT_FOR_FP8 && descriptor->schema->kind != WEFT_BACKEND_TENSOR_DESCRIPTOR &&
        !row->keeps_fast)
        *type = WEFT_DATA_FLOAT;
}

/* Copies the elements and retains the descriptors and handles among them; on failure the attribute keeps its value. */
weftStatus_t descriptor_set(struct descriptor *descriptor, weftBackendAttributeName_t name,
                            weftBackendAttributeType_t type, int64_t count, const void *elements) {
    const struct row *row = find_row_of_type(descriptor->schema, name, type);
    if (descriptor->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT,
             "%s is finalized: its attributes cannot change. Create a new descriptor.", descriptor_label(descriptor));
    struct descriptor *parameters = NULL;
    if (!row)
        TRY(find_parameters(descriptor, name, &parameters));
    /* Attributes of the parameter descriptor may be set on the operation, which forwards them to its own parameter
       descriptor. */
    if (parameters)
        return descriptor_set(parameters, name, type, count, elements);
    TRY(check_set(descriptor, row, name, type, count, elements));

    size_t bytes = stored_bytes(row->type);
    /* Uses new memory of the arena, so that a failure halfway leaves the old value; the replaced memory is freed with
       the descriptor. */
    char *stored;
    /* One more byte, because text is zero-terminated. */
    TRY(arena_alloc(&descriptor->arena, &stored, (size_t)count * bytes + 1));
    for (int64_t i = 0; i < count; i++) {
        convert_in(stored + (size_t)i * bytes, row->type, type, elements, i);
        if (row->type == WEFT_TYPE_DATA_TYPE)
            settle_compute_type(descriptor, row, (int32_t *)(stored + (size_t)i * bytes));
        TRY(check_element(descriptor, row, stored + (size_t)i * bytes, i));
    }
    /* Retains the new elements before it releases the old ones, because they may be the same. */
    for (int64_t i = 0; i < count; i++)
        retain_held(row, stored, i);
    release_row(descriptor, row);

    void *at = (char *)descriptor + row->offset;
    if (row->storage == STORE_LIST)
        *(struct list *)at = (struct list){.count = count, .items = stored};
    else if (row->storage == STORE_DIMS)
        memcpy(((struct dims *)at)->at, stored, (size_t)count * bytes), ((struct dims *)at)->count = count;
    else
        memcpy(at, stored, bytes);
    descriptor->set_rows |= row_bit(descriptor->schema, row);
    return WEFT_STATUS_SUCCESS;
}

void descriptor_mark_set(struct descriptor *descriptor, weftBackendAttributeName_t name) {
    descriptor->set_rows |= row_bit(descriptor->schema, schema_find_row(descriptor->schema, name));
}

void descriptor_unset(struct descriptor *descriptor, weftBackendAttributeName_t name) {
    const struct row *row = schema_find_row(descriptor->schema, name);
    release_row(descriptor, row);
    *(void **)((char *)descriptor + row->offset) = NULL;
    descriptor->set_rows &= ~row_bit(descriptor->schema, row);
}

/* ---- Get --------------------------------------------------------------------------------------------------------- */

/* Stores one element in the requested type, which check has accepted. Fails for numbers that the type cannot represent,
   instead of truncating them. */
static weftStatus_t convert_out(const struct descriptor *descriptor, const struct row *row,
                                weftBackendAttributeType_t wanted, const char *stored, char *element) {
    if (wanted == WEFT_TYPE_FLOAT) {
        float value = (float)*(const double *)stored;
        memcpy(element, &value, sizeof value);
    } else if (row->type == WEFT_TYPE_FRACTION && wanted == WEFT_TYPE_INT64) {
        const weftFraction_t *fraction = (const weftFraction_t *)stored;
        if (fraction->numerator % fraction->denominator)
            FAIL(WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                 "%s: attribute %s is %lld/%lld, not an integer. Request FRACTION.", descriptor_label(descriptor),
                 row->key, (long long)fraction->numerator, (long long)fraction->denominator);
        int64_t value = fraction->numerator / fraction->denominator;
        memcpy(element, &value, sizeof value);
    } else if (row->type == WEFT_TYPE_INT64 && wanted == WEFT_TYPE_INT32) {
        int64_t number = *(const int64_t *)stored;
        int32_t value = (int32_t)number;
        if (value != number)
            FAIL(WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                 "%s: attribute %s is %lld, which does not fit into INT32. Request INT64.",
                 descriptor_label(descriptor), row->key, (long long)number);
        memcpy(element, &value, sizeof value);
    } else if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR) {
        /* As in cuDNN, descriptors are copied into those of the caller, and internal pointers are never returned. */
        struct descriptor *target;
        memcpy(&target, element, sizeof target);
        if (!target || target->magic != DESCRIPTOR_MAGIC)
            FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
                 "%s: attribute %s is copied into descriptors of the caller. Fill the array with newly created ones.",
                 descriptor_label(descriptor), row->key);
        return descriptor_copy(target, *(struct descriptor *const *)stored);
    } else {
        memcpy(element, stored, type_row(wanted)->bytes);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Copies the elements of a readable row; `written` is the text of a row that is generated on request. */
static weftStatus_t give_row(const struct descriptor *descriptor, const struct row *row,
                             weftBackendAttributeType_t type, const struct text *written, int64_t requested,
                             int64_t *count, void *elements) {
    const void *items;
    int64_t held = row_count_now(descriptor, row, &items);
    if (row->write) {
        items = text_string(written);
        held = (int64_t)written->length;
    }
    if (count)
        *count = held;
    /* As in cuDNN, a caller that requests a single element need not ask for the count. */
    else if (requested != 1)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "%s: attribute %s: the address of the count is NULL and %lld element%s are requested. It may be NULL only "
             "if one element is requested.",
             descriptor_label(descriptor), row->key, (long long)requested, plural(requested));
    for (int64_t i = 0; elements && i < held && i < requested; i++)
        TRY(convert_out(descriptor, row, type, (const char *)items + (size_t)i * stored_bytes(row->type),
                        (char *)elements + (size_t)i * type_row(type)->bytes));
    return WEFT_STATUS_SUCCESS;
}

/* Returns min(requested, existing) elements; *count is the number that exist. `elements` may be NULL, to get only the
   count. */
weftStatus_t descriptor_build(struct descriptor **out, const struct schema *schema, const struct setting *settings,
                              size_t count) {
    TRY(descriptor_make(schema, out));
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    for (const struct setting *s = settings; s < settings + count && !status; s++)
        if (s->count)
            status = descriptor_set(*out, s->name, s->type, s->count, s->elements);
    if (!status)
        status = descriptor_finalize(*out);
    if (status) {
        descriptor_release(*out);
        *out = NULL;
    }
    return status;
}

weftStatus_t descriptor_get(const struct descriptor *descriptor, weftBackendAttributeName_t name,
                            weftBackendAttributeType_t type, int64_t requested, int64_t *count, void *elements) {
    const struct row *row = find_row_of_type(descriptor->schema, name, type);
    const struct row *parameters = row ? NULL : parameter_row(descriptor->schema);
    /* A finalized operation has a parameter descriptor, even if none of its attributes was set. */
    if (parameters && descriptor->finalized)
        return descriptor_get(*(struct descriptor *const *)row_at(descriptor, parameters), name, type, requested, count,
                              elements);
    if (!row)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s has no attribute %d. See weftDescribe for those it has.",
             descriptor_label(descriptor), name);
    if (!descriptor->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_NOT_FINALIZED, "%s is not finalized: attribute %s cannot be read yet. Finalize it.",
             descriptor_label(descriptor), row->key);
    if (!type_is_known(type) || !converts(row->type, type))
        FAIL(WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "%s: attribute %s has elements %s, got %s. Request that type.",
             descriptor_label(descriptor), row->key, attribute_type_name(row->type), attribute_type_name(type));
    if (requested < 0)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: attribute %s: %lld elements requested. Request 0 or more.",
             descriptor_label(descriptor), row->key, (long long)requested);
    /* Rows with `write`, such as a plan's report, are generated on request, so they cost nothing otherwise. */
    struct text written;
    text_init(&written);
    if (row->write)
        row->write(descriptor, &written);
    weftStatus_t status = written.failed ? status_no_memory(written.capacity)
                                         : give_row(descriptor, row, type, &written, requested, count, elements);
    text_free(&written);
    return status;
}

/* ---- Copy -------------------------------------------------------------------------------------------------------- */

/* Copies one row and retains its elements; `target` releases its previous ones. */
static weftStatus_t copy_row(struct descriptor *target, const struct descriptor *source, const struct row *row) {
    const void *items;
    int64_t count = row_count_now(source, row, &items);
    for (int64_t i = 0; i < count; i++)
        retain_held(row, items, i);
    void *at = (char *)target + row->offset;
    if (row->storage == STORE_LIST) {
        struct list list = {.count = count};
        size_t bytes = (size_t)count * stored_bytes(row->type);
        weftStatus_t status = arena_alloc(&target->arena, &list.items, bytes + 1); /* text keeps its terminating zero */
        if (!status && bytes)
            memcpy(list.items, items, bytes);
        /* If the list cannot be allocated, the references just taken are released again. */
        for (int64_t i = 0; status && i < count; i++)
            release_held(row, items, i);
        TRY(status);
        release_row(target, row);
        *(struct list *)at = list;
    } else {
        release_row(target, row);
        memcpy(at, row_at(source, row), row->storage == STORE_DIMS ? sizeof(struct dims) : stored_bytes(row->type));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The target becomes an independent finalized descriptor; both own references to the same elements. */
weftStatus_t descriptor_copy(struct descriptor *target, const struct descriptor *source) {
    if (target->schema != source->schema)
        FAIL(WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "cannot copy %s into %s. Create the target with the same kind.",
             descriptor_label(source), descriptor_label(target));
    if (target->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT,
             "%s is finalized and cannot receive a copy. Create a new one.", descriptor_label(target));
    for (int i = 0; i < source->schema->row_count; i++)
        TRY(copy_row(target, source, &source->schema->rows[i]));
    TRY(copy_row(target, source, &name_row));
    target->set_rows = source->set_rows;
    /* Copies the fields without a row. */
    if (source->schema->copy)
        TRY(source->schema->copy(target, source));
    target->finalized = true;
    return WEFT_STATUS_SUCCESS;
}
