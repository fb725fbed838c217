/* SPDX-License-Identifier: Apache-2.0 */
/* One generic set, get, finalize and copy over schema rows: the same code for tensors, operations, engines and plans.
   It must not know any kind by name but tensors, which messages call by uid. */
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
    .doc = "the user's name of the object, for messages and pictures",
};

/* ---- Attribute types --------------------------------------------------------------------------------------------- */

#define TYPE(word, size, low, high) [WEFT_TYPE_##word] = {#word, size, low, high}
/* Element size in bytes, and for enumerations the first and last legal value; kinds with gaps check further. */
static const struct {
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
    TYPE(RESAMPLE_MODE, 4, WEFT_RESAMPLE_NEAREST, WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING),
    TYPE(PADDING_MODE, 4, WEFT_ZERO_PAD, WEFT_EDGE_VAL_PAD),
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
};
#undef TYPE

/* The array has gaps where cuDNN has numbers that Weft does not use: these have no name. */
static bool type_is_known(weftBackendAttributeType_t type) {
    return (unsigned)type < sizeof attribute_types / sizeof *attribute_types && attribute_types[type].name;
}

/* WEFT_TYPE_GENSTATS_MODE has one legal value, so that its bounds do not tell it from a plain number. */
static bool type_is_enum(weftBackendAttributeType_t type) {
    return attribute_types[type].high > attribute_types[type].low || type == WEFT_TYPE_GENSTATS_MODE;
}

/* The caller knows that the type is a known one. */
size_t attribute_type_bytes(weftBackendAttributeType_t type) { return attribute_types[type].bytes; }

const char *attribute_type_name(weftBackendAttributeType_t type) {
    return type_is_known(type) ? attribute_types[type].name : "of unknown type";
}

/* Bytes of one element as it is stored. A FLOAT attribute is kept as double: rows of both types then share their code
   and their field. */
static size_t stored_bytes(weftBackendAttributeType_t type) {
    return type == WEFT_TYPE_FLOAT ? sizeof(double) : attribute_types[type].bytes;
}

/* ---- Words ------------------------------------------------------------------------------------------------------- */

/* Texts that a message may have at once, and characters of each with the terminating zero. */
enum { SCRATCH_COUNT = 8, SCRATCH_BYTES = 320 };

/* Texts for the arguments of one message. They are used in turn: a message may hold up to SCRATCH_COUNT of them, and
   none may be kept. */
static char *scratch_text(void) {
    static _Thread_local char texts[SCRATCH_COUNT][SCRATCH_BYTES];
    static _Thread_local unsigned next;
    return texts[next++ % SCRATCH_COUNT];
}

/* A name of 200 characters, a kind and a uid stay below SCRATCH_BYTES, so that `length` never passes it. */
const char *descriptor_label(const struct descriptor *descriptor) {
    char *text = scratch_text();
    int length = snprintf(text, SCRATCH_BYTES, "%s", descriptor->schema->name);
    if (descriptor->label.count)
        length += snprintf(text + length, SCRATCH_BYTES - (size_t)length, " '%.200s'", descriptor->label.chars);
    if (descriptor->schema == &tensor_schema && descriptor_row_is_set(descriptor, WEFT_ATTR_TENSOR_UNIQUE_ID))
        snprintf(text + length, SCRATCH_BYTES - (size_t)length, " (uid %lld)",
                 (long long)((const struct tensor *)descriptor)->uid);
    return text;
}

const char *numbers_text(const int64_t *numbers, int64_t count) {
    char *text = scratch_text();
    size_t length = 0;
    text[length++] = '[';
    /* 24 bytes hold a comma, the longest 64-bit number and the closing bracket; what finds no room is left out. */
    for (int64_t i = 0; i < count && length < SCRATCH_BYTES - 24; i++)
        length += (size_t)snprintf(text + length, SCRATCH_BYTES - length, i ? ",%lld" : "%lld", (long long)numbers[i]);
    snprintf(text + length, SCRATCH_BYTES - length, "]");
    return text;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Linear: schemas have a few dozen rows, and attributes are set once. */
const struct row *schema_find_row(const struct schema *schema, weftBackendAttributeName_t name) {
    if (name == WEFT_ATTR_NAME_EXT)
        return &name_row;
    for (int i = 0; i < schema->row_count; i++)
        if (schema->rows[i].name == name)
            return &schema->rows[i];
    return NULL;
}

/* Among rows of one attribute (some take one of two types) the one that takes `type`, else the first. */
static const struct row *find_row_of_type(const struct schema *schema, weftBackendAttributeName_t name,
                                          weftBackendAttributeType_t type) {
    const struct row *first = schema_find_row(schema, name);
    for (int i = 0; first != &name_row && i < schema->row_count; i++)
        if (schema->rows[i].name == name && schema->rows[i].type == type)
            return &schema->rows[i];
    return first;
}

/* set_rows has a bit for each row, so no schema may have more than 64. The name has none: nothing depends on whether it
   was set. */
static uint64_t row_bit(const struct schema *schema, const struct row *row) {
    return row == &name_row ? 0 : UINT64_C(1) << (row - schema->rows);
}

bool row_is_set(const struct descriptor *descriptor, const struct row *row) {
    return descriptor->set_rows & row_bit(descriptor->schema, row);
}

/* Any of its rows: an attribute that takes a number or a tensor has one for each. */
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
    /* By bytes: the field's declared type is a pointer to another struct. */
    memcpy(&tensor, row_at(descriptor, row), sizeof tensor);
    return tensor;
}

/* How many elements a row holds now, and where. */
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
        /* A pointer that is NULL holds nothing, and counts as no element: a get then gives none. */
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

/* One more holder of what element i of a row holds, and one less. Descriptors and handles are counted; all else in a
   row is plain data. */
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

/* Gives up all that a row holds, and leaves the row as it is: the caller overwrites it. */
static void release_row(struct descriptor *descriptor, const struct row *row) {
    const void *items;
    int64_t count = row_count_now(descriptor, row, &items);
    for (int64_t i = 0; i < count; i++)
        release_held(row, items, i);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

/* Lists and dims begin empty, as calloc left them, and pointers as NULL. */
static void store_initial(struct descriptor *descriptor, const struct row *row) {
    void *at = (char *)descriptor + row->offset;
    if (row->storage != STORE_VALUE)
        return;
    /* As stored_bytes has it: both kinds of floats are doubles in the struct. */
    if (row->type == WEFT_TYPE_FLOAT || row->type == WEFT_TYPE_DOUBLE)
        *(double *)at = row->initial;
    else if (row->type == WEFT_TYPE_INT64)
        *(int64_t *)at = (int64_t)row->initial;
    else if (row->type == WEFT_TYPE_BOOLEAN)
        *(bool *)at = row->initial != 0;
    else if (row->type == WEFT_TYPE_INT32 || type_is_enum(row->type))
        *(int32_t *)at = (int32_t)row->initial;
}

/* The caller is the first holder. Every field that no row fills is 0. */
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

/* Relaxed: who retains has a hold already, so that nothing is ordered by it. */
struct descriptor *descriptor_retain(struct descriptor *descriptor) {
    if (descriptor)
        atomic_fetch_add_explicit(&descriptor->holders, 1, memory_order_relaxed);
    return descriptor;
}

weftStatus_t descriptor_mirror(struct arena *arena, void *out, const struct descriptor *source) {
    /* The count of holders is atomic, and other threads may change it while its neighbours are copied: it is stepped
       over. */
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

/* The last holder must see what others wrote before they let go: hence acquire and release. */
void descriptor_release(struct descriptor *descriptor) {
    if (!descriptor || atomic_fetch_sub_explicit(&descriptor->holders, 1, memory_order_acq_rel) > 1)
        return;
    /* The kind's own things first: they may need what the rows still hold. */
    const struct schema *schema = descriptor->schema;
    if (schema->release)
        schema->release(descriptor);
    for (int i = 0; i < schema->row_count; i++)
        release_row(descriptor, &schema->rows[i]);
    arena_free(&descriptor->arena);
    /* Handles to freed descriptors are told by it, as long as the memory is not used again. */
    descriptor->magic = 0;
    free(descriptor);
}

/* Forgets the lists that a failed finalize began to fill, so that the next one starts anew. */
static void drop_results(struct descriptor *descriptor) {
    for (int i = 0; i < descriptor->schema->row_count; i++) {
        const struct row *row = &descriptor->schema->rows[i];
        /* Values of results are simply overwritten; lists hold descriptors, which must be let go of. */
        if (row->role != ROLE_RESULT || row->storage != STORE_LIST)
            continue;
        release_row(descriptor, row);
        *(struct list *)((char *)descriptor + row->offset) = (struct list){0};
    }
}

/* ---- Parameters of operations ------------------------------------------------------------------------------------ */

/* The row in which an operation holds its parameter descriptor, or NULL. */
static const struct row *parameter_row(const struct schema *schema) {
    for (int i = 0; schema->op && schema->op->parameters && i < schema->row_count; i++)
        if (schema->rows[i].type == WEFT_TYPE_BACKEND_DESCRIPTOR &&
            schema->rows[i].target == (int)schema->op->parameters->kind)
            return &schema->rows[i];
    return NULL;
}

/* An operation's parameter descriptor if it has an attribute of that name; made when there is none yet. */
static weftStatus_t find_parameters(struct descriptor *op, weftBackendAttributeName_t name, struct descriptor **found) {
    const struct row *row = parameter_row(op->schema);
    *found = NULL;
    if (!row || !schema_find_row(op->schema->op->parameters, name))
        return WEFT_STATUS_SUCCESS;
    struct descriptor **held = (struct descriptor **)((char *)op + row->offset);
    if (!*held)
        /* The operation holds what is made here as it would hold one that the user gave; release_row lets go of
           either. */
        TRY(descriptor_make(op->schema->op->parameters, held));
    *found = *held;
    return WEFT_STATUS_SUCCESS;
}

/* Finalizes parameters that were set on the operation itself, or left at their defaults. */
static weftStatus_t complete_parameters(struct descriptor *op) {
    const struct row *row = parameter_row(op->schema);
    if (!row || descriptor_row_is_set(op, row->name))
        return WEFT_STATUS_SUCCESS;
    struct descriptor **held = (struct descriptor **)((char *)op + row->offset);
    if (!*held)
        TRY(descriptor_make(op->schema->op->parameters, held));
    /* A finalize of the operation that failed later on leaves its parameters finalized: they are not done twice. */
    weftStatus_t status = (*held)->finalized ? WEFT_STATUS_SUCCESS : descriptor_finalize(*held);
    if (status)
        return status_prefix(status, "%s: ", descriptor_label(op));
    /* As if the user had set them, so that a required row of parameters is content. */
    op->set_rows |= row_bit(op->schema, row);
    return WEFT_STATUS_SUCCESS;
}

/* Rules of rows first, then the kind's own. After success nothing of the descriptor changes any more. */
weftStatus_t descriptor_finalize(struct descriptor *descriptor) {
    const struct schema *schema = descriptor->schema;
    if (descriptor->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT, "%s is finalized already. Finalize a descriptor once.",
             descriptor_label(descriptor));
    /* First the parameters: their attributes may be the required ones. */
    TRY(complete_parameters(descriptor));
    for (int i = 0; i < schema->row_count; i++)
        if (schema->rows[i].required && !descriptor_row_is_set(descriptor, schema->rows[i].name))
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: attribute %s (%d) is required and was not set. Set it: %s.",
                 descriptor_label(descriptor), schema->rows[i].key, schema->rows[i].name, schema->rows[i].doc);
    weftStatus_t status = schema->finalize ? schema->finalize(descriptor) : WEFT_STATUS_SUCCESS;
    if (status)
        drop_results(descriptor);
    /* A failed finalize may be tried again, after what was wrong has been set anew. */
    descriptor->finalized = !status;
    return status;
}

/* ---- Set --------------------------------------------------------------------------------------------------------- */

/* Whether elements of `given` may be put into a row of type `wanted`. Only what loses nothing: FLOAT rows are kept as
   double, a whole number is a fraction. */
static bool converts(weftBackendAttributeType_t wanted, weftBackendAttributeType_t given) {
    return wanted == given || (wanted == WEFT_TYPE_DOUBLE && given == WEFT_TYPE_FLOAT) ||
           (wanted == WEFT_TYPE_FLOAT && given == WEFT_TYPE_DOUBLE) ||
           (wanted == WEFT_TYPE_FRACTION && given == WEFT_TYPE_INT64) ||
           (wanted == WEFT_TYPE_INT64 && given == WEFT_TYPE_INT32);
}

/* Stores element i of `elements` (of API type `given`) at `target` in the row's stored form. */
static void convert_in(void *target, weftBackendAttributeType_t wanted, weftBackendAttributeType_t given,
                       const void *elements, int64_t i) {
    const char *source = (const char *)elements + (size_t)i * attribute_types[given].bytes;
    /* The user's array may have any alignment: numbers are read from it by bytes. */
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
        /* Any byte but 0 is true; a bool that held another one would be undefined. */
        *(bool *)target = *source != 0;
    } else {
        memcpy(target, source, attribute_types[given].bytes);
    }
}

/* The descriptors that a row takes, in words. */
static const char *target_text(const struct row *row) {
    char *text = scratch_text();
    if (row->target == TARGET_ANY_OPERATION)
        return "any operation";
    snprintf(text, SCRATCH_BYTES, "descriptors of kind %d", row->target);
    return text;
}

/* Descriptors that others hold are finalized, and so immutable: holders need not watch for changes. */
static weftStatus_t check_held(const struct descriptor *descriptor, const struct row *row,
                               const struct descriptor *held, int64_t i) {
    if (!held)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: attribute %s: element %lld is NULL. Give a finalized descriptor.",
             descriptor_label(descriptor), row->key, (long long)i);
    /* Of freed memory it is told only until that is used again: a help, no protection. */
    if (held->magic != DESCRIPTOR_MAGIC)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: attribute %s: element %lld is no live descriptor. Give one made by weftBackendCreateDescriptor.",
             descriptor_label(descriptor), row->key, (long long)i);
    /* Operations are one kind to a graph; all other rows name theirs. */
    bool fits = row->target == TARGET_ANY_OPERATION ? held->schema->op != NULL : (int)held->schema->kind == row->target;
    if (!fits)
        FAIL(WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
             "%s: attribute %s takes %s, got %s of kind %d. Give a descriptor of the kind asked for.",
             descriptor_label(descriptor), row->key, target_text(row), descriptor_label(held), held->schema->kind);
    if (!held->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_NOT_FINALIZED, "%s: attribute %s: %s is not finalized. Finalize it first.",
             descriptor_label(descriptor), row->key, descriptor_label(held));
    return WEFT_STATUS_SUCCESS;
}

/* Checks one element, given as it is stored. */
static weftStatus_t check_element(const struct descriptor *descriptor, const struct row *row, const void *stored,
                                  int64_t i) {
    if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR)
        return check_held(descriptor, row, *(struct descriptor *const *)stored, i);
    const struct shared *handle = row->type == WEFT_TYPE_HANDLE ? *(struct shared *const *)stored : NULL;
    if (handle && handle->magic != SHARED_MAGIC)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: attribute %s is no live handle. Give one that weftCreate made.",
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
    int64_t low = row->most > row->least ? row->least : attribute_types[row->type].low;
    int64_t high = row->most > row->least ? row->most : attribute_types[row->type].high;
    if (value < low || value > high)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: attribute %s is %lld, legal are %lld..%lld. Give one of these.",
             descriptor_label(descriptor), row->key, (long long)value, (long long)low, (long long)high);
    /* Data types have gaps between their numbers, where no row of dtypes is. */
    bool is_fast = row->keeps_fast && value == WEFT_DATA_FAST_FLOAT_FOR_FP8;
    if (row->type == WEFT_TYPE_DATA_TYPE && !is_fast && !dtype_of((weftDataType_t)value))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
             "%s: attribute %s: Weft stores no data type %lld. Use one of the types that weftDescribe lists.",
             descriptor_label(descriptor), row->key, (long long)value);
    return WEFT_STATUS_SUCCESS;
}

/* What can be told before any element is looked at. `row` is NULL where the kind has no such attribute. */
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
        FAIL(WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "%s: attribute %s takes elements %s, got %s. Give that type.",
             descriptor_label(descriptor), row->key, attribute_type_name(row->type), attribute_type_name(type));
    int64_t most = row->storage == STORE_VALUE ? 1 : row->storage == STORE_DIMS ? WEFT_DIM_MAX : INT32_MAX;
    int64_t least = row->storage == STORE_VALUE ? 1 : 0;
    if (count < least || count > most)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: attribute %s takes %lld..%lld elements, got %lld. Give a count in that range.",
             descriptor_label(descriptor), row->key, (long long)least, (long long)most, (long long)count);
    if (count && !elements)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "%s: attribute %s: the array of %lld elements is NULL. Give its address.", descriptor_label(descriptor),
             row->key, (long long)count);
    /* A name may come with its terminating zero or without; one in the middle would hide the rest. */
    const char *end = row == &name_row && count ? memchr(elements, '\0', (size_t)count) : NULL;
    if (end && end != (const char *)elements + count - 1)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: attribute %s has a NUL at character %lld of %lld. Leave it out.",
             descriptor_label(descriptor), row->key, (long long)(end - (const char *)elements), (long long)count);
    return WEFT_STATUS_SUCCESS;
}

/* FAST_FLOAT_FOR_FP8 allows sums of less precision than FLOAT. Products know it; everything else keeps FLOAT's. No
   tensor can hold it. */
static void settle_compute_type(const struct descriptor *descriptor, const struct row *row, int32_t *type) {
    if (*type == WEFT_DATA_FAST_FLOAT_FOR_FP8 && descriptor->schema != &tensor_schema && !row->keeps_fast)
        *type = WEFT_DATA_FLOAT;
}

/* Copies the elements and holds descriptors and handles among them; on failure the attribute keeps its value. */
weftStatus_t descriptor_set(struct descriptor *descriptor, weftBackendAttributeName_t name,
                            weftBackendAttributeType_t type, int64_t count, const void *elements) {
    const struct row *row = find_row_of_type(descriptor->schema, name, type);
    if (descriptor->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT,
             "%s is finalized: its attributes cannot change. Make a new descriptor.", descriptor_label(descriptor));
    struct descriptor *parameters = NULL;
    if (!row)
        TRY(find_parameters(descriptor, name, &parameters));
    /* Attributes of the parameters may be set on the operation, whose own parameter descriptor takes them. */
    if (parameters)
        return descriptor_set(parameters, name, type, count, elements);
    TRY(check_set(descriptor, row, name, type, count, elements));

    size_t bytes = stored_bytes(row->type);
    /* Into new memory of the arena, so that a set that is refused halfway leaves the old value; what it replaces stays
       until the descriptor goes. */
    char *stored;
    /* One byte more: text ends in a zero. */
    TRY(arena_alloc(&descriptor->arena, &stored, (size_t)count * bytes + 1));
    for (int64_t i = 0; i < count; i++) {
        convert_in(stored + (size_t)i * bytes, row->type, type, elements, i);
        if (row->type == WEFT_TYPE_DATA_TYPE)
            settle_compute_type(descriptor, row, (int32_t *)(stored + (size_t)i * bytes));
        TRY(check_element(descriptor, row, stored + (size_t)i * bytes, i));
    }
    /* The new ones are retained before the old ones go: they may be the same. */
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

/* ---- Get --------------------------------------------------------------------------------------------------------- */

/* Stores one element in the type asked for, which check has found convertible. Numbers that it cannot hold are refused,
   not cut. */
static weftStatus_t convert_out(const struct descriptor *descriptor, const struct row *row,
                                weftBackendAttributeType_t wanted, const char *stored, char *element) {
    if (wanted == WEFT_TYPE_FLOAT) {
        float value = (float)*(const double *)stored;
        memcpy(element, &value, sizeof value);
    } else if (row->type == WEFT_TYPE_FRACTION && wanted == WEFT_TYPE_INT64) {
        const weftFraction_t *fraction = (const weftFraction_t *)stored;
        if (fraction->numerator % fraction->denominator)
            FAIL(WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "%s: attribute %s is %lld/%lld, no whole number. Get FRACTION.",
                 descriptor_label(descriptor), row->key, (long long)fraction->numerator,
                 (long long)fraction->denominator);
        int64_t value = fraction->numerator / fraction->denominator;
        memcpy(element, &value, sizeof value);
    } else if (row->type == WEFT_TYPE_INT64 && wanted == WEFT_TYPE_INT32) {
        int64_t whole = *(const int64_t *)stored;
        int32_t value = (int32_t)whole;
        if (value != whole)
            FAIL(WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "%s: attribute %s is %lld, which INT32 cannot hold. Get INT64.",
                 descriptor_label(descriptor), row->key, (long long)whole);
        memcpy(element, &value, sizeof value);
    } else if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR) {
        /* As cuDNN has it: descriptors are copied into those of the caller, who never gets a pointer to ours. */
        struct descriptor *target;
        memcpy(&target, element, sizeof target);
        if (!target || target->magic != DESCRIPTOR_MAGIC)
            FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
                 "%s: attribute %s is copied into descriptors that you make. Fill the array with fresh ones.",
                 descriptor_label(descriptor), row->key);
        return descriptor_copy(target, *(struct descriptor *const *)stored);
    } else {
        memcpy(element, stored, attribute_types[wanted].bytes);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Gives the elements of a row that may be read; `written` is the text of one that is written when it is asked for. */
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
    /* As cuDNN has it: whoever asks for one element need not ask how many there are. */
    else if (requested != 1)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "%s: attribute %s: the address of the count is NULL and %lld elements are requested. It may be NULL only "
             "when one is.",
             descriptor_label(descriptor), row->key, (long long)requested);
    for (int64_t i = 0; elements && i < held && i < requested; i++)
        TRY(convert_out(descriptor, row, type, (const char *)items + (size_t)i * stored_bytes(row->type),
                        (char *)elements + (size_t)i * attribute_types[type].bytes));
    return WEFT_STATUS_SUCCESS;
}

/* As many elements as requested and there are; *count tells how many there are. `elements` may be NULL, to ask for the
   count. */
weftStatus_t descriptor_get(const struct descriptor *descriptor, weftBackendAttributeName_t name,
                            weftBackendAttributeType_t type, int64_t requested, int64_t *count, void *elements) {
    const struct row *row = find_row_of_type(descriptor->schema, name, type);
    const struct row *parameters = row ? NULL : parameter_row(descriptor->schema);
    /* A finalized operation has its parameters, also those that were never set. */
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
        FAIL(WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "%s: attribute %s has elements %s, got %s. Ask for that type.",
             descriptor_label(descriptor), row->key, attribute_type_name(row->type), attribute_type_name(type));
    if (requested < 0)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: attribute %s: %lld elements requested. Request 0 or more.",
             descriptor_label(descriptor), row->key, (long long)requested);
    /* Rows with `write` are made when they are asked for, as a plan's report: they cost nothing where nobody asks. */
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

/* Copies one row and holds what is in it; `target` lets go of what it had. */
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
        /* Without memory for the list the holds just taken are given up again. */
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

/* The target becomes a finalized descriptor of its own; source and target share only what both hold. */
weftStatus_t descriptor_copy(struct descriptor *target, const struct descriptor *source) {
    if (target->schema != source->schema)
        FAIL(WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "cannot copy %s into %s. Make the target of the same kind.",
             descriptor_label(source), descriptor_label(target));
    if (target->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT,
             "%s is finalized and cannot receive a copy. Make a fresh one.", descriptor_label(target));
    for (int i = 0; i < source->schema->row_count; i++)
        TRY(copy_row(target, source, &source->schema->rows[i]));
    TRY(copy_row(target, source, &name_row));
    target->set_rows = source->set_rows;
    /* What the rows do not hold. */
    if (source->schema->copy)
        TRY(source->schema->copy(target, source));
    target->finalized = true;
    return WEFT_STATUS_SUCCESS;
}
