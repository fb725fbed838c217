/* SPDX-License-Identifier: Apache-2.0 */
/* Engine and knob descriptors: the choices for a graph. */
#include "plan/engine.h"
#include "base/text.h"
#include "graph/descriptor.h"

#include <string.h>

/* ---- Knobs ------------------------------------------------------------------------------------------------------- */

/* Created by list_knob; users can only read it. */
static const struct row knob_info_rows[] = {
    VALUE_ROW(WEFT_TYPE_KNOB_TYPE, struct knob_info, type, WEFT_ATTR_KNOB_INFO_TYPE, "type", .role = ROLE_RESULT,
              .doc = "which knob"),
    VALUE_ROW(WEFT_TYPE_INT64, struct knob_info, most, WEFT_ATTR_KNOB_INFO_MAXIMUM_VALUE, "maximum_value",
              .role = ROLE_RESULT, .doc = "largest legal value"),
    VALUE_ROW(WEFT_TYPE_INT64, struct knob_info, least, WEFT_ATTR_KNOB_INFO_MINIMUM_VALUE, "minimum_value",
              .role = ROLE_RESULT, .doc = "smallest legal value"),
    VALUE_ROW(WEFT_TYPE_INT64, struct knob_info, stride, WEFT_ATTR_KNOB_INFO_STRIDE, "stride", .role = ROLE_RESULT,
              .doc = "distance between legal values"),
};

const struct schema knob_info_schema = {
    .kind = WEFT_BACKEND_KNOB_INFO_DESCRIPTOR,
    .name = "knob info",
    .doc = "the legal values of a knob of an engine",
    .size = sizeof(struct knob_info),
    ROWS(knob_info_rows),
};

/* Created by the user, or when a saved plan is loaded. */
static const struct row knob_setting_rows[] = {
    VALUE_ROW(WEFT_TYPE_KNOB_TYPE, struct knob_setting, type, WEFT_ATTR_KNOB_CHOICE_KNOB_TYPE, "knob_type",
              .required = true, .doc = "which knob"),
    VALUE_ROW(WEFT_TYPE_INT64, struct knob_setting, value, WEFT_ATTR_KNOB_CHOICE_KNOB_VALUE, "knob_value",
              .required = true, .doc = "its value"),
};

const struct schema knob_setting_schema = {
    .kind = WEFT_BACKEND_KNOB_CHOICE_DESCRIPTOR,
    .name = "knob choice",
    .doc = "a knob set to a value",
    .size = sizeof(struct knob_setting),
    ROWS(knob_setting_rows),
};

/* ---- Placeholders of cuDNN's interface --------------------------------------------------------------------------- */

/* The attribute that lists these is always empty. */
struct layout_info {
    struct descriptor base;
    int64_t uid;
    struct list types;
};

static const struct row layout_info_rows[] = {
    VALUE_ROW(WEFT_TYPE_INT64, struct layout_info, uid, WEFT_ATTR_LAYOUT_INFO_TENSOR_UID, "tensor_uid",
              .role = ROLE_RESULT, .doc = "the tensor"),
    VALUE_ROW(WEFT_TYPE_LAYOUT_TYPE, struct layout_info, types, WEFT_ATTR_LAYOUT_INFO_TYPES, "types",
              .storage = STORE_LIST, .role = ROLE_RESULT, .doc = "layouts that the engine prefers for it"),
};

const struct schema layout_info_schema = {
    .kind = WEFT_BACKEND_LAYOUT_INFO_DESCRIPTOR,
    .name = "layout info",
    .doc = "layouts that an engine prefers for a tensor",
    .size = sizeof(struct layout_info),
    ROWS(layout_info_rows),
};

/* Always empty too: Weft's intermediate tensors have no public names. */
struct intermediate_info {
    struct descriptor base;
    int64_t uid, size;
    struct list data_uids, attributes;
};

static const struct row intermediate_info_rows[] = {
    VALUE_ROW(WEFT_TYPE_INT64, struct intermediate_info, uid, WEFT_ATTR_INTERMEDIATE_INFO_UNIQUE_ID, "unique_id",
              .role = ROLE_RESULT, .doc = "the intermediate tensor"),
    VALUE_ROW(WEFT_TYPE_INT64, struct intermediate_info, size, WEFT_ATTR_INTERMEDIATE_INFO_SIZE, "size",
              .role = ROLE_RESULT, .doc = "its bytes"),
    VALUE_ROW(WEFT_TYPE_INT64, struct intermediate_info, data_uids, WEFT_ATTR_INTERMEDIATE_INFO_DEPENDENT_DATA_UIDS,
              "dependent_data_uids", .storage = STORE_LIST, .role = ROLE_RESULT, .doc = "tensors it is computed from"),
    VALUE_ROW(WEFT_TYPE_ATTRIB_NAME, struct intermediate_info, attributes,
              WEFT_ATTR_INTERMEDIATE_INFO_DEPENDENT_ATTRIBUTES, "dependent_attributes", .storage = STORE_LIST,
              .role = ROLE_RESULT, .doc = "attributes it depends on"),
};

const struct schema intermediate_info_schema = {
    .kind = WEFT_BACKEND_INTERMEDIATE_INFO_DESCRIPTOR,
    .name = "intermediate info",
    .doc = "placeholder of cuDNN's interface; Weft keeps intermediates in the workspace and lists none",
    .size = sizeof(struct intermediate_info),
    ROWS(intermediate_info_rows),
};

/* ---- Engine ------------------------------------------------------------------------------------------------------ */

/* The limits apply to GPUs; CPU engines ignore them. */
static const struct row engine_rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct engine_descriptor, graph, WEFT_ATTR_ENGINE_OPERATION_GRAPH,
              "operation_graph", .required = true, .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
              .doc = "the graph to serve"),
    VALUE_ROW(WEFT_TYPE_INT64, struct engine_descriptor, index, WEFT_ATTR_ENGINE_GLOBAL_INDEX, "global_index",
              .required = true, .doc = "0 .. engine_global_count - 1"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct engine_descriptor, knobs, WEFT_ATTR_ENGINE_KNOB_INFO, "knob_info",
              .storage = STORE_LIST, .role = ROLE_RESULT, .target = WEFT_BACKEND_KNOB_INFO_DESCRIPTOR,
              .doc = "the knobs that can be set"),
    VALUE_ROW(WEFT_TYPE_NUMERICAL_NOTE, struct engine_descriptor, numerical_notes, WEFT_ATTR_ENGINE_NUMERICAL_NOTE,
              "numerical_note", .storage = STORE_LIST, .role = ROLE_RESULT, .doc = "numerical properties"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct engine_descriptor, layouts, WEFT_ATTR_ENGINE_LAYOUT_INFO,
              "layout_info", .storage = STORE_LIST, .role = ROLE_RESULT, .target = WEFT_BACKEND_LAYOUT_INFO_DESCRIPTOR,
              .doc = "preferred layouts; Weft's engines accept any"),
    VALUE_ROW(WEFT_TYPE_BEHAVIOR_NOTE, struct engine_descriptor, behavior_notes, WEFT_ATTR_ENGINE_BEHAVIOR_NOTE,
              "behavior_note", .storage = STORE_LIST, .role = ROLE_RESULT, .doc = "properties of building and running"),
    VALUE_ROW(WEFT_TYPE_INT32, struct engine_descriptor, limits.sm_count_target, WEFT_ATTR_ENGINE_SM_COUNT_TARGET,
              "sm_count_target", .most = INT32_MAX, .doc = "multiprocessors of a GPU to plan for at most; 0: all"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct engine_descriptor, device, WEFT_ATTR_ENGINE_DEVICEPROP,
              "device_properties", .target = WEFT_BACKEND_DEVICEPROP_DESCRIPTOR, .doc = "the device to plan for"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct engine_descriptor, limits.disable_cluster_cooperative,
              WEFT_ATTR_ENGINE_DISABLE_CLUSTER_COOPERATIVE, "disable_cluster_cooperative",
              .doc = "true: use no kernels of cooperating clusters"),
    VALUE_ROW(WEFT_TYPE_INT32, struct engine_descriptor, limits.shared_memory_limit,
              WEFT_ATTR_ENGINE_SHARED_MEMORY_LIMIT, "shared_memory_limit", .most = INT32_MAX,
              .doc = "bytes of a GPU's shared memory per block to use at most; 0: all"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct engine_descriptor, name, WEFT_ATTR_ENGINE_NAME_EXT, "engine_name",
              .storage = STORE_LIST, .role = ROLE_RESULT, .doc = "the engine's name"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct engine_descriptor, families, WEFT_ATTR_ENGINE_FAMILIES_EXT, "families",
              .storage = STORE_LIST, .role = ROLE_RESULT,
              .doc = "its kernel families, in the order of the bits of knob WITHOUT_FAMILIES_EXT"),
};

/* NULL if the list has no knob of that type. Linear in a dozen knobs. */
static struct knob_info *find_knob(const struct list *knobs, weftBackendKnobType_t type) {
    for (int64_t i = 0; i < knobs->count; i++)
        if (((const struct knob_info *)knobs->descriptors[i])->type == (int32_t)type)
            return (struct knob_info *)knobs->descriptors[i];
    return NULL;
}

/* Workspace limit in bytes, which every engine respects (draft_make). The default, 2^48, means no limit: no machine has
   that much memory. */
#define WORKSPACE_MOST (INT64_C(1) << 48)
static const struct knob workspace_knob = {WEFT_KNOB_TYPE_WORKSPACE,    0, WORKSPACE_MOST, 1, WORKSPACE_MOST,
                                           "bytes of workspace at most"};

/* One bit per family, starting with the first one, so that tests and users can restrict which families serve a graph.
   */
#define ALL_FAMILIES ((INT64_C(1) << WITHOUT_FAMILIES_BITS) - 1)
static const struct knob families_knob = {WEFT_KNOB_TYPE_WITHOUT_FAMILIES_EXT, 0, ALL_FAMILIES, 1, 0,
                                          "families to exclude, one bit each"};

/* Lists a knob. If several families have it, the listed range covers all of theirs: a family that does not know a value
   chooses another. */
static weftStatus_t list_knob(struct engine_descriptor *self, const struct knob *knob) {
    struct descriptor *created;
    struct knob_info *listed = find_knob(&self->knobs, knob->type);
    if (listed) {
        listed->least = knob->least < listed->least ? knob->least : listed->least;
        listed->most = knob->most > listed->most ? knob->most : listed->most;
        return WEFT_STATUS_SUCCESS;
    }
    TRY(descriptor_make(&knob_info_schema, &created));
    struct knob_info *info = (struct knob_info *)created;
    info->type = (int32_t)knob->type;
    info->least = knob->least;
    info->most = knob->most;
    info->stride = knob->stride;
    /* The library created it complete: no check is needed, and the user cannot set it. */
    created->finalized = true;
    self->knobs.descriptors[self->knobs.count++] = created;
    return WEFT_STATUS_SUCCESS;
}

/* Lists the knobs of all families and the planner's own two. A family's list is terminated by a knob without doc. */
static weftStatus_t list_knobs(struct engine_descriptor *self, const struct engine *engine) {
    /* Enough for the knobs of all families and the planner's two; knobs of one type are merged. */
    int most = 2;
    for (int f = 0; engine->families[f]; f++)
        for (const struct knob *knob = engine->families[f]->knobs; knob && knob->doc; knob++)
            most++;
    TRY(arena_alloc(&self->base.arena, &self->knobs.items, (size_t)most * sizeof(void *)));
    for (int f = 0; engine->families[f]; f++)
        for (const struct knob *knob = engine->families[f]->knobs; knob && knob->doc; knob++)
            TRY(list_knob(self, knob));
    TRY(list_knob(self, &workspace_knob));
    return list_knob(self, &families_knob);
}

/* Family names in the order of the engine's list, separated by spaces. A name is one word. */
static weftStatus_t list_families(struct engine_descriptor *self, const struct engine *engine) {
    struct text names;
    text_init(&names);
    for (int f = 0; engine->families[f]; f++)
        text_add(&names, "%s%s", f ? " " : "", engine->families[f]->name);
    /* Without the terminating zero. */
    self->families.count = (int64_t)strlen(text_string(&names));
    weftStatus_t status = names.failed ? status_no_memory(names.capacity)
                                       : arena_copy(&self->base.arena, &self->families.items, text_string(&names),
                                                    (size_t)self->families.count + 1);
    text_free(&names);
    return status;
}

/* Attribute lists are stored in the descriptor's arena, so the engine's are copied. */
static weftStatus_t finalize_engine(struct descriptor *descriptor) {
    struct engine_descriptor *self = (struct engine_descriptor *)descriptor;
    if (self->index < 0 || self->index >= engine_count)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: global_index is %lld; the engines are 0..%d. Use one of these.",
             descriptor_label(descriptor), (long long)self->index, engine_count - 1);
    const struct engine *engine = engines[self->index];
    struct arena *arena = &descriptor->arena;
    TRY(list_knobs(self, engine));
    TRY(list_families(self, engine));
    self->name.count = (int64_t)strlen(engine->name);
    TRY(arena_copy(arena, &self->name.items, engine->name, (size_t)self->name.count + 1));
    self->numerical_notes.count = engine->numerical_note_count;
    TRY(arena_copy(arena, &self->numerical_notes.items, engine->numerical_notes,
                   (size_t)engine->numerical_note_count * sizeof *engine->numerical_notes));
    self->behavior_notes.count = engine->behavior_note_count;
    return arena_copy(arena, &self->behavior_notes.items, engine->behavior_notes,
                      (size_t)engine->behavior_note_count * sizeof *engine->behavior_notes);
}

const struct schema engine_schema = {
    .kind = WEFT_BACKEND_ENGINE_DESCRIPTOR,
    .name = "engine",
    .doc = "one implementation of graphs",
    .size = sizeof(struct engine_descriptor),
    ROWS(engine_rows),
    .finalize = finalize_engine,
};
