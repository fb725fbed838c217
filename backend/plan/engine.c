/* SPDX-License-Identifier: Apache-2.0 */
/* Engine, knob and configuration descriptors: the choices for a graph, and what was chosen. Finalizing a configuration
   covers and drafts the graph, so that its time and workspace are known; nothing is compiled or loaded. */
#include "plan/engine.h"
#include "base/text.h"
#include "graph/descriptor.h"

#include <stdatomic.h>
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
    struct descriptor *made;
    struct knob_info *listed = find_knob(&self->knobs, knob->type);
    if (listed) {
        listed->least = knob->least < listed->least ? knob->least : listed->least;
        listed->most = knob->most > listed->most ? knob->most : listed->most;
        return WEFT_STATUS_SUCCESS;
    }
    TRY(descriptor_make(&knob_info_schema, &made));
    struct knob_info *info = (struct knob_info *)made;
    info->type = (int32_t)knob->type;
    info->least = knob->least;
    info->most = knob->most;
    info->stride = knob->stride;
    /* The library created it complete: no check is needed, and the user cannot set it. */
    made->finalized = true;
    self->knobs.descriptors[self->knobs.count++] = made;
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

/* ---- Configuration ----------------------------------------------------------------------------------------------- */

/* shared_memory_used is always 0: it is only known for kernels that are compiled separately. */
static const struct row config_rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct engine_config, engine, WEFT_ATTR_ENGINECFG_ENGINE, "engine",
              .required = true, .target = WEFT_BACKEND_ENGINE_DESCRIPTOR, .doc = "the engine"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct engine_config, intermediates, WEFT_ATTR_ENGINECFG_INTERMEDIATE_INFO,
              "intermediate_info", .storage = STORE_LIST, .role = ROLE_RESULT,
              .target = WEFT_BACKEND_INTERMEDIATE_INFO_DESCRIPTOR, .doc = "placeholder; always empty"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct engine_config, knobs, WEFT_ATTR_ENGINECFG_KNOB_CHOICES,
              "knob_choices", .storage = STORE_LIST, .target = WEFT_BACKEND_KNOB_CHOICE_DESCRIPTOR,
              .doc = "knobs set to other values than the engine would choose"),
    VALUE_ROW(WEFT_TYPE_INT64, struct engine_config, workspace_bytes, WEFT_ATTR_ENGINECFG_WORKSPACE_SIZE,
              "workspace_size", .role = ROLE_RESULT, .doc = "bytes of workspace that a plan will need"),
    VALUE_ROW(WEFT_TYPE_INT32, struct engine_config, shared_memory, WEFT_ATTR_ENGINECFG_SHARED_MEMORY_USED,
              "shared_memory_used", .role = ROLE_RESULT, .doc = "bytes of shared memory per block"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct engine_config, seconds, WEFT_ATTR_ENGINECFG_PREDICTED_SECONDS_EXT,
              "predicted_seconds", .role = ROLE_RESULT, .doc = "predicted time of one run"),
};

/* A value must be in the knob's range and on its grid. How a family treats a legal value is up to the family. */
static weftStatus_t check_setting(const struct engine_config *self, const struct knob_setting *setting) {
    const struct list *knobs = &self->engine->knobs;
    for (int64_t i = 0; i < knobs->count; i++) {
        const struct knob_info *info = (const struct knob_info *)knobs->descriptors[i];
        if (info->type != setting->type)
            continue;
        /* A stride of 0 means 1. */
        if (setting->value < info->least || setting->value > info->most ||
            (setting->value - info->least) % (info->stride > 0 ? info->stride : 1))
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "engine config: knob %d is %lld; %s accepts %lld..%lld in steps of %lld. Use one of these values.",
                 setting->type, (long long)setting->value, engines[self->engine->index]->name, (long long)info->least,
                 (long long)info->most, (long long)info->stride);
        return WEFT_STATUS_SUCCESS;
    }
    FAIL(WEFT_STATUS_BAD_PARAM, "engine config: %s has no knob %d. See its attribute knob_info.",
         engines[self->engine->index]->name, setting->type);
}

/* Keeps the order, because the first choice for a knob wins (knob_find). */
weftStatus_t collect_choices(struct knob_choices *choices, const struct engine_config *config, struct arena *arena) {
    struct knob_choice *items;
    /* In the planner's arena, because the configuration may be released before the plan. */
    TRY(arena_alloc(arena, &items, (size_t)config->knobs.count * sizeof *items));
    for (int64_t i = 0; i < config->knobs.count; i++) {
        const struct knob_setting *setting = (const struct knob_setting *)config->knobs.descriptors[i];
        items[i] = (struct knob_choice){.type = (weftBackendKnobType_t)setting->type, .value = setting->value};
    }
    *choices = (struct knob_choices){.count = (int)config->knobs.count, .items = items};
    return WEFT_STATUS_SUCCESS;
}

/* Drafting determines the workspace and the time of a plan. The first plan takes over the draft; later ones on the same
   device start from the cover. */
static weftStatus_t finalize_config(struct descriptor *descriptor) {
    struct engine_config *self = (struct engine_config *)descriptor;
    const struct engine *engine = engines[self->engine->index];
    for (int64_t i = 0; i < self->knobs.count; i++)
        TRY(check_setting(self, (const struct knob_setting *)self->knobs.descriptors[i]));
    const struct graph *graph = self->engine->graph;
    struct knob_choices choices;
    /* The draft has its own arena, which the plan takes over with it. The cover stays here for the other plans. */
    struct arena *arena = &self->draft_arena;
    TRY(choose_device(&self->device, self->engine->device, graph->handle, engine));
    limit_device(&self->device, &self->engine->limits);
    weftStatus_t status = collect_choices(&choices, self, arena);
    if (!status)
        status = partition(&self->cover, graph, engine, &self->device, &choices, INT64_MAX, &descriptor->arena);
    if (!status)
        status = draft_make(&self->draft, graph, engine, &self->device, &choices, &self->cover, arena);
    /* After a failure the configuration may be finalized again, so nothing of this attempt may remain. */
    if (status) {
        arena_free(arena);
        return status;
    }
    self->workspace_bytes = self->draft.workspace_bytes;
    self->seconds = self->draft.seconds;
    /* Comes last, because another thread may take the draft as soon as this flag is set. */
    atomic_store(&self->has_draft, true);
    return WEFT_STATUS_SUCCESS;
}

/* If several threads use one configuration, one of them gets the draft and the others draft from the cover. */
bool config_take_draft(struct draft *draft, struct engine_config *config, const struct device *device,
                       struct arena *arena) {
    /* Copies share the draft of the original. */
    struct engine_config *planned = config->planned ? (struct engine_config *)config->planned : config;
    /* Only exchanged if the device matches, so that the draft remains for a plan that can use it. */
    if (!device_same(device, &planned->device) || !atomic_exchange(&planned->has_draft, false))
        return false;
    *draft = planned->draft;
    arena_join(arena, &planned->draft_arena);
    return true;
}

/* The cover is in the arena of the original configuration, which the copy keeps alive. A copy has no draft of its own.
   */
static weftStatus_t copy_config(struct descriptor *target, const struct descriptor *source) {
    struct engine_config *self = (struct engine_config *)target;
    const struct engine_config *from = (const struct engine_config *)source;
    self->device = from->device;
    self->cover = from->cover;
    /* Copies of a copy reference the original, so that no chain forms. */
    self->planned = descriptor_retain(from->planned ? from->planned : (struct descriptor *)source);
    return WEFT_STATUS_SUCCESS;
}

/* Also releases a draft that no plan has taken. */
static void release_config(struct descriptor *descriptor) {
    struct engine_config *self = (struct engine_config *)descriptor;
    arena_free(&self->draft_arena);
    descriptor_release(self->planned);
}

const struct schema engine_config_schema = {
    .kind = WEFT_BACKEND_ENGINECFG_DESCRIPTOR,
    .name = "engine config",
    .doc = "an engine with its knobs set",
    .size = sizeof(struct engine_config),
    ROWS(config_rows),
    .finalize = finalize_config,
    .copy = copy_config,
    .release = release_config,
};

/* Sets an attribute to another descriptor; the attribute's row checks the kind and holds a reference. */
static weftStatus_t set_descriptor(struct descriptor *descriptor, weftBackendAttributeName_t name, void *held) {
    return descriptor_set(descriptor, name, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &held);
}

/* Sets only nonzero limits; the others stay unset. */
static weftStatus_t set_limits(struct descriptor *engine, const struct engine_limits *limits) {
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    if (limits->sm_count_target)
        status = descriptor_set(engine, WEFT_ATTR_ENGINE_SM_COUNT_TARGET, WEFT_TYPE_INT32, 1, &limits->sm_count_target);
    if (!status && limits->shared_memory_limit)
        status = descriptor_set(engine, WEFT_ATTR_ENGINE_SHARED_MEMORY_LIMIT, WEFT_TYPE_INT32, 1,
                                &limits->shared_memory_limit);
    if (!status && limits->disable_cluster_cooperative)
        status = descriptor_set(engine, WEFT_ATTR_ENGINE_DISABLE_CLUSTER_COOPERATIVE, WEFT_TYPE_BOOLEAN, 1,
                                &limits->disable_cluster_cooperative);
    return status;
}

/* Uses the same descriptors and checks as a user, so that there is only one path. */
weftStatus_t make_config(struct engine_config **out, struct graph *graph, int index,
                         struct device_properties *properties, const struct list *knobs,
                         const struct engine_limits *limits) {
    struct descriptor *engine, *config = NULL;
    int64_t global_index = index;
    TRY(descriptor_make(&engine_schema, &engine));
    weftStatus_t status = set_descriptor(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, graph);
    if (!status)
        status = descriptor_set(engine, WEFT_ATTR_ENGINE_GLOBAL_INDEX, WEFT_TYPE_INT64, 1, &global_index);
    if (!status && properties)
        status = set_descriptor(engine, WEFT_ATTR_ENGINE_DEVICEPROP, properties);
    if (!status && limits)
        status = set_limits(engine, limits);
    if (!status)
        status = descriptor_finalize(engine);
    if (!status)
        status = descriptor_make(&engine_config_schema, &config);
    if (!status)
        status = set_descriptor(config, WEFT_ATTR_ENGINECFG_ENGINE, engine);
    if (!status && knobs && knobs->count)
        status = descriptor_set(config, WEFT_ATTR_ENGINECFG_KNOB_CHOICES, WEFT_TYPE_BACKEND_DESCRIPTOR, knobs->count,
                                knobs->items);
    if (!status)
        status = descriptor_finalize(config);
    /* The configuration now holds a reference to the engine. */
    descriptor_release(engine);
    if (status) {
        descriptor_release(config);
        return status;
    }
    *out = (struct engine_config *)config;
    return WEFT_STATUS_SUCCESS;
}

/* The first engine for the same kind of device that accepts every graph, and its index; NULL if none exists. */
static const struct engine *find_fallback(const struct engine *engine, int *index) {
    for (*index = 0; *index < engine_count; ++*index)
        if (engines[*index]->is_fallback && engines[*index]->device == engine->device)
            return engines[*index];
    return NULL;
}

/* The WORKSPACE choice in a list of knobs, or NULL. The list keeps its reference. */
static struct descriptor *find_workspace_knob(const struct list *knobs) {
    for (int64_t i = 0; i < knobs->count; i++)
        if (((const struct knob_setting *)knobs->descriptors[i])->type == WEFT_KNOB_TYPE_WORKSPACE)
            return knobs->descriptors[i];
    return NULL;
}

weftStatus_t config_for_graph(struct engine_config **out, const struct engine_config *config, struct graph *graph) {
    const struct engine_descriptor *engine = config->engine;
    struct descriptor *limit = find_workspace_knob(&config->knobs);
    int fallback;
    weftStatus_t status = make_config(out, graph, (int)engine->index, engine->device, &config->knobs, &engine->limits);
    /* Statuses are grouped by thousands; every kind of NOT_SUPPORTED is a refusal. */
    bool is_declined = status / 1000 == WEFT_STATUS_NOT_SUPPORTED / 1000;
    /* If the fallback itself declines or fails, that status is returned. */
    if (!is_declined || !find_fallback(engines[engine->index], &fallback) || fallback == engine->index)
        return status;
    /* The other knobs belong to the engine that declined; the fallback would reject them. */
    const struct list knobs = {.count = limit != NULL, .items = &limit};
    return make_config(out, graph, fallback, engine->device, &knobs, &engine->limits);
}
