/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations: an engine with its knobs set. Finalizing one covers and drafts the graph, so that its time and
   workspace are known; nothing is compiled or loaded. */
#include "graph/descriptor.h"
#include "plan/engine.h"

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

weftStatus_t make_setting(struct descriptor **out, int32_t type, int64_t value) {
    const struct setting settings[] = {{WEFT_ATTR_KNOB_CHOICE_KNOB_TYPE, WEFT_TYPE_KNOB_TYPE, 1, &type},
                                       {WEFT_ATTR_KNOB_CHOICE_KNOB_VALUE, WEFT_TYPE_INT64, 1, &value}};
    return descriptor_build(out, &knob_setting_schema, settings, 2);
}

/* Uses the same descriptors and checks as a user, so that there is only one path. Limits of 0 stay unset. */
weftStatus_t make_config(struct engine_config **out, struct graph *graph, int index,
                         struct device_properties *properties, const struct list *knobs,
                         const struct engine_limits *limits) {
    struct descriptor *engine, *config;
    int64_t global_index = index;
    const struct setting of_engine[] = {
        {WEFT_ATTR_ENGINE_OPERATION_GRAPH, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &graph},
        {WEFT_ATTR_ENGINE_GLOBAL_INDEX, WEFT_TYPE_INT64, 1, &global_index},
        {WEFT_ATTR_ENGINE_DEVICEPROP, WEFT_TYPE_BACKEND_DESCRIPTOR, properties != NULL, &properties},
        {WEFT_ATTR_ENGINE_SM_COUNT_TARGET, WEFT_TYPE_INT32, limits->sm_count_target != 0, &limits->sm_count_target},
        {WEFT_ATTR_ENGINE_SHARED_MEMORY_LIMIT, WEFT_TYPE_INT32, limits->shared_memory_limit != 0,
         &limits->shared_memory_limit},
        {WEFT_ATTR_ENGINE_DISABLE_CLUSTER_COOPERATIVE, WEFT_TYPE_BOOLEAN, limits->disable_cluster_cooperative,
         &limits->disable_cluster_cooperative},
    };
    TRY(descriptor_build(&engine, &engine_schema, of_engine, sizeof of_engine / sizeof *of_engine));
    const struct setting of_config[] = {
        {WEFT_ATTR_ENGINECFG_ENGINE, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &engine},
        {WEFT_ATTR_ENGINECFG_KNOB_CHOICES, WEFT_TYPE_BACKEND_DESCRIPTOR, knobs->count, knobs->items},
    };
    weftStatus_t status = descriptor_build(&config, &engine_config_schema, of_config, 2);
    descriptor_release(engine); /* the configuration holds a reference to it */
    if (!status)
        *out = (struct engine_config *)config;
    return status;
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

weftStatus_t config_within(struct engine_config **out, const struct engine_config *config, int64_t workspace_limit) {
    const struct engine_descriptor *engine = config->engine;
    struct arena arena = {0};
    struct descriptor *setting, **items;
    *out = NULL;
    TRY(make_setting(&setting, WEFT_KNOB_TYPE_WORKSPACE, workspace_limit));
    const int64_t count = config->knobs.count;
    weftStatus_t status = arena_alloc(&arena, &items, (size_t)(count + 1) * sizeof *items);
    if (!status) {
        items[0] = setting; /* the first choice of a type wins */
        for (int64_t i = 0; i < count; i++)
            items[i + 1] = config->knobs.descriptors[i];
        const struct list knobs = {.count = count + 1, .items = items};
        status = make_config(out, engine->graph, (int)engine->index, engine->device, &knobs, &engine->limits);
    }
    arena_free(&arena);
    descriptor_release(setting);
    /* The caller composes the error message. */
    return status == WEFT_STATUS_NOT_SUPPORTED ? WEFT_STATUS_SUCCESS : status;
}
