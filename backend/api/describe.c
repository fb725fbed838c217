/* SPDX-License-Identifier: Apache-2.0 */
/* weftDescribe prints the data types, every schema row, the methods of every operation and every pointwise mode as
   JSON. Python's methods, the manifest and docs/operations.md are generated from it. It does not know kinds, operations
   or modes by name, so that new ones are included automatically. */
#include "api/reply.h"
#include "base/dtype.h"
#include "graph/graph.h"
#include "graph/ops.h"
#include "graph/ops/pointwise.h"
#include "plan/schemas.h"

#include <math.h>

/* Adds a comma between the items of a JSON array or object that begins at `start`. */
static void separate(struct text *out, size_t start) {
    if (out->length > start)
        text_add(out, ",\n");
}

/* Adds "key":"value", with null for NULL. */
static void member(struct text *out, const char *key, const char *value) {
    text_add(out, "\"%s\":", key);
    text_json_string(out, value);
}

static void describe_types(struct text *out) {
    size_t start = out->length;
    /* The enumeration has numbers that Weft does not implement: they have no row. */
    for (int type = WEFT_DATA_FLOAT; type <= WEFT_DATA_FP8_E5M3; type++) {
        const struct dtype *row = dtype_of((weftDataType_t)type);
        if (!row)
            continue;
        separate(out, start);
        text_add(out, "{\"type\":%d,", type);
        member(out, "name", row->name);
        text_add(out, ",\"bits\":%d,\"class\":\"%s\",\"exponent_bits\":%d,\"mantissa_bits\":%d,\"lowest\":", row->bits,
                 row->is_float     ? "float"
                 : row->is_boolean ? "boolean"
                                   : "integer",
                 row->exponent_bits, row->mantissa_bits);
        text_json_number(out, row->lowest);
        text_add(out, ",\"max\":");
        text_json_number(out, row->max);
        text_add(out, "}");
    }
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

/* True if `initial` has a meaning: for numbers, enumerations and booleans. */
static bool has_initial(const struct row *row) {
    bool is_pointer =
        row->type == WEFT_TYPE_BACKEND_DESCRIPTOR || row->type == WEFT_TYPE_HANDLE || row->type == WEFT_TYPE_VOID_PTR;
    return row->storage == STORE_VALUE && row->role == ROLE_OPTION && !row->required && !is_pointer;
}

static void describe_row(struct text *out, const struct row *row) {
    static const char *const roles[] = {
        [ROLE_OPTION] = "option", [ROLE_INPUT] = "input", [ROLE_OUTPUT] = "output", [ROLE_RESULT] = "result"};
    static const char *const storages[] = {[STORE_VALUE] = "value", [STORE_DIMS] = "dims", [STORE_LIST] = "list"};
    text_add(out, "{\"name\":%d,", row->name);
    member(out, "key", row->key);
    text_add(out, ",\"type\":\"%s\",\"role\":\"%s\",\"storage\":\"%s\",\"required\":%s,\"target\":",
             attribute_type_name(row->type), roles[row->role], storages[row->storage],
             row->required ? "true" : "false");
    /* The number of the descriptor kind that the row accepts. */
    if (row->type == WEFT_TYPE_BACKEND_DESCRIPTOR)
        text_add(out, "%d", row->target);
    else
        text_add(out, "null");
    /* In a row without bounds, both are 0. */
    if (row->most > row->least)
        text_add(out, ",\"least\":%lld,\"most\":%lld", (long long)row->least, (long long)row->most);
    else
        text_add(out, ",\"least\":null,\"most\":null");
    /* Has no meaning for lists, tensors and required rows, whose field in the table is 0. */
    text_add(out, ",\"initial\":");
    text_json_number(out, has_initial(row) ? row->initial : NAN); /* null: no default, or no bound */
    text_add(out, ",");
    member(out, "in_place", row->in_place);
    text_add(out, ",");
    member(out, "shape", row->shape);
    text_add(out, ",");
    member(out, "doc", row->doc);
    text_add(out, "}");
}

/* Opens an object and does not close it: operations add more members. */
static void describe_rows(struct text *out, const struct schema *schema) {
    text_add(out, "{\"kind\":%d,", schema->kind);
    member(out, "name", schema->name);
    text_add(out, ",");
    member(out, "doc", schema->doc);
    text_add(out, ",\"rows\":[\n");
    for (int i = 0; i < schema->row_count; i++) {
        describe_row(out, &schema->rows[i]);
        text_add(out, ",\n");
    }
    /* Every kind has this row, which no table lists. */
    describe_row(out, &name_row);
    text_add(out, "]");
}

static void describe_descriptor(struct text *out, size_t start, const struct schema *schema) {
    separate(out, start);
    describe_rows(out, schema);
    text_add(out, "}");
}

/* Operations share parameter descriptors; each is printed with the first operation that has it. */
static bool is_first_with_parameters(int index) {
    for (int i = 0; i < index; i++)
        if (ops[i]->parameters == ops[index]->parameters)
            return false;
    return ops[index]->parameters != NULL;
}

/* Every kind that weftBackendCreateDescriptor supports, except operations, which have an array of their own. */
static void describe_descriptors(struct text *out) {
    size_t start = out->length;
    describe_descriptor(out, start, &tensor_schema);
    describe_descriptor(out, start, &graph_schema);
    for (int i = 0; ops[i]; i++)
        if (is_first_with_parameters(i))
            describe_descriptor(out, start, ops[i]->parameters);
    for (int i = 0; plan_schemas[i]; i++)
        describe_descriptor(out, start, plan_schemas[i]);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* The texts of a method, unchanged: generators parse the syntax of `arguments` (graph/op.h). */
static void describe_method(struct text *out, const struct method *method) {
    text_add(out, "{");
    member(out, "name", method->name);
    text_add(out, ",");
    member(out, "doc", method->doc);
    text_add(out, ",");
    member(out, "fixed", method->fixed);
    text_add(out, ",");
    member(out, "arguments", method->arguments);
    text_add(out, ",");
    member(out, "results", method->results);
    text_add(out, "}");
}

static void describe_operations(struct text *out) {
    size_t start = out->length;
    for (int i = 0; ops[i]; i++) {
        separate(out, start);
        describe_rows(out, &ops[i]->schema);
        /* The kind of the parameter descriptor, whose rows are listed with the descriptors. */
        if (ops[i]->parameters)
            text_add(out, ",\"parameters\":%d,\"methods\":[\n", ops[i]->parameters->kind);
        else
            text_add(out, ",\"parameters\":null,\"methods\":[\n");
        /* Operations without methods print an empty array. */
        size_t methods_start = out->length;
        for (const struct method *method = ops[i]->methods; method && method->name; method++) {
            separate(out, methods_start);
            describe_method(out, method);
        }
        text_add(out, "]}");
    }
}

/* One object per mode; `formula` is C, which engines emit and the documentation shows. */
static void describe_pointwise_modes(struct text *out) {
    /* Names of the forms; a form is the number and kind of a mode's operands. */
    static const char *const forms[] = {[FORM_UNARY] = "unary",
                                        [FORM_BINARY] = "binary",
                                        [FORM_SELECT] = "select",
                                        [FORM_BACKWARD] = "backward",
                                        [FORM_INDEX] = "index"};
    size_t start = out->length;
    for (int i = 0; i < pointwise_mode_count(); i++) {
        const struct pointwise_mode *mode = pointwise_mode_at(i);
        separate(out, start);
        text_add(out, "{\"mode\":%d,", mode->mode);
        member(out, "name", mode->name);
        text_add(out, ",\"form\":\"%s\",", forms[mode->form]);
        member(out, "formula", mode->formula);
        text_add(out, ",");
        member(out, "method", mode->method);
        text_add(out, ",");
        member(out, "arguments", mode->arguments);
        text_add(out, ",");
        member(out, "doc", mode->doc);
        text_add(out, "}");
    }
}

/* Generates the text at each call, and copies at most `capacity` bytes. */
weftStatus_t weftDescribe(char *text, size_t capacity, size_t *size) {
    status_clear();
    struct text out;
    text_init(&out);
    /* If memory runs out, the text's flag `failed` is set, which reply_text reports. */
    text_add(&out, "{\"version\":%zu,\n\"data_types\":[\n", weftGetVersion());
    describe_types(&out);
    text_add(&out, "],\n\"descriptors\":[\n");
    describe_descriptors(&out);
    text_add(&out, "],\n\"operations\":[\n");
    describe_operations(&out);
    text_add(&out, "],\n\"pointwise_modes\":[\n");
    describe_pointwise_modes(&out);
    text_add(&out, "]}\n");
    return reply_text("weftDescribe", &out, text, capacity, size);
}
