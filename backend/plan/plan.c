/* SPDX-License-Identifier: Apache-2.0 */
/* Finalizes a plan: drafts the graph on the chosen engine, loads the kernels, lists the slots. A plan is built from one
   of three sources: an engine configuration, a graph for which heuristics choose a configuration, or the bytes of a
   saved plan. How a plan runs is in run.c, the format of its bytes in save.c. */
#include "plan/plan.h"
#include "base/number.h"
#include "base/trace.h"
#include "graph/descriptor.h"
#include "plan/alias_check.h"
#include "plan/cuda_graph_cache.h"
#include "plan/general_plan.h"
#include "plan/index_check.h"
#include "plan/save.h"

#include <stdio.h>
#include <string.h>

static const struct row rows[] = {
    /* The text of rows with `write` is generated on request. */
    VALUE_ROW(WEFT_TYPE_HANDLE, struct plan, handle, WEFT_ATTR_EXECUTION_PLAN_HANDLE, "handle",
              .doc = "device to run on; unset: the device properties, or the machine's first device"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct plan, config, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
              "engine_config", .target = WEFT_BACKEND_ENGINECFG_DESCRIPTOR,
              .doc = "the engine and its knobs; or set operation_graph or json"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct plan, graph, WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT,
              "operation_graph", .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
              .doc = "a graph to plan on the engine that is predicted to be fastest, instead of engine_config"),
    VALUE_ROW(WEFT_TYPE_INT64, struct plan, workspace_bytes, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, "workspace_size",
              .role = ROLE_RESULT, .doc = "bytes of workspace that an execution needs"),
    VALUE_ROW(WEFT_TYPE_INT64, struct plan, computed_intermediates, WEFT_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS,
              "computed_intermediate_uids", .storage = STORE_LIST, .role = ROLE_RESULT,
              .doc = "placeholder; always empty"),
    VALUE_ROW(WEFT_TYPE_INT64, struct plan, run_only_intermediates, WEFT_ATTR_EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS,
              "run_only_intermediate_uids", .storage = STORE_LIST,
              .doc = "not supported: plans compute all of their graph"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct plan, blob, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, "json",
              .storage = STORE_LIST, .write = plan_write_blob,
              .doc = "get: the plan saved as bytes; set: those bytes, to load it"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct plan, kernel_cache, WEFT_ATTR_EXECUTION_PLAN_KERNEL_CACHE,
              "kernel_cache", .target = WEFT_BACKEND_KERNEL_CACHE_DESCRIPTOR, .doc = "kernels to share"),
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct plan, device_properties, WEFT_ATTR_EXECUTION_PLAN_DEVICEPROP,
              "device_properties", .target = WEFT_BACKEND_DEVICEPROP_DESCRIPTOR, .doc = "the device to plan for"),
    VALUE_ROW(WEFT_TYPE_CUDA_GRAPH_RETENTION, struct plan, retention, WEFT_ATTR_EXECUTION_PLAN_CUDA_GRAPH_RETENTION,
              "cuda_graph_retention", .doc = "accepted for compatibility; plans store nothing per CUDA graph"),
    VALUE_ROW(WEFT_TYPE_INT64, struct plan, slot_uids, WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, "slot_unique_ids",
              .storage = STORE_LIST, .role = ROLE_RESULT,
              .doc = "uids in the order in which weftExecute expects pointers"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct plan, slots_json, WEFT_ATTR_EXECUTION_PLAN_SLOTS_EXT, "slots",
              .storage = STORE_LIST, .role = ROLE_RESULT, .write = plan_write_slots,
              .doc = "engine, device and the tensors of slot_unique_ids, as in the report, as JSON"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct plan, report, WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT, "report", .storage = STORE_LIST,
              .role = ROLE_RESULT, .write = plan_write_report, .doc = "what runs where and why, as JSON"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct plan, kernels, WEFT_ATTR_EXECUTION_PLAN_KERNELS_EXT, "kernels",
              .storage = STORE_LIST, .role = ROLE_RESULT, .write = plan_write_kernels,
              .doc = "the source of the plan's kernels and of the headers that they include, as JSON"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct plan, tag, WEFT_ATTR_EXECUTION_PLAN_TAG_EXT, "tag", .storage = STORE_LIST,
              .role = ROLE_RESULT, .doc = "short name of engine and knobs: eng0_k2=3"),
    VALUE_ROW(WEFT_TYPE_INT64, struct plan, workspace_limit, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT,
              "workspace_limit", .initial = (double)(INT64_C(1) << 62), .least = 0, .most = INT64_MAX,
              .doc = "bytes of workspace that the plan may need at most"),
    VALUE_ROW(
        WEFT_TYPE_BOOLEAN, struct plan, with_code, WEFT_ATTR_EXECUTION_PLAN_WITH_CODE_EXT, "with_code",
        .doc = "true: json includes the machine code of the plan's kernels; when a plan is loaded, that code is used"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct plan, element_aligned, WEFT_ATTR_EXECUTION_PLAN_ELEMENT_ALIGNED_EXT,
              "element_aligned",
              .doc = "true: pointers only have to be aligned to their tensors' elements, whatever alignment the "
                     "tensors declare; kernels may be slower"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct plan, cuda_graph, WEFT_ATTR_EXECUTION_PLAN_CUDA_GRAPH_EXT, "cuda_graph",
              .doc =
                  "true: an execution on a GPU launches the plan's kernels as one CUDA graph, which is cached for runs "
                  "on the same memory"),
};

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

/* The bytes of a tensor that are certain to be accessible: the entries of a ragged batch are stored at run-time
   offsets. */
static int64_t accessible_bytes(const struct tensor *tensor) {
    return tensor->ragged_offset ? min64(tensor_element_bytes(tensor), tensor_bytes(tensor)) : tensor_bytes(tensor);
}

/* Slots are in the order of values, which is that of uids, so that callers can search by uid. */
static weftStatus_t list_slots(struct plan *plan) {
    const struct graph *graph = plan->draft.graph;
    struct arena *arena = &plan->base.arena;
    int64_t *uids;
    TRY(arena_alloc(arena, &plan->slots, (size_t)graph->value_count * sizeof *plan->slots));
    TRY(arena_alloc(arena, &uids, (size_t)graph->value_count * sizeof *uids));
    /* The user passes no pointer for virtual tensors, constants and views. */
    for (int v = 0; v < graph->value_count; v++) {
        const struct tensor *tensor = graph->values[v].tensor;
        if (!value_is_slot(&graph->values[v]))
            continue;
        uids[plan->slot_count] = tensor->uid;
        /* is_written: some operation produces it; all other slots are only read. */
        plan->slots[plan->slot_count++] = (struct slot){.value = v,
                                                        .uid = tensor->uid,
                                                        .bytes = accessible_bytes(tensor),
                                                        .alignment = plan_alignment(plan, tensor),
                                                        .is_written = graph->values[v].producer >= 0};
    }
    plan->slot_uids = (struct list){.count = plan->slot_count, .i64 = uids};
    return WEFT_STATUS_SUCCESS;
}

/* ---- Finalize ---------------------------------------------------------------------------------------------------- */

/* Writes the plan's tag: engine and knobs, in the order in which they were set. It distinguishes plans of one graph in
   reports and logs. */
static weftStatus_t write_tag(struct plan *plan) {
    /* snprintf returns the untruncated length, so the loop stops at the end of the buffer. */
    char tag[512];
    size_t length = (size_t)snprintf(tag, sizeof tag, "eng%lld", (long long)plan->config->engine->index);
    for (int64_t i = 0; i < plan->config->knobs.count && length < sizeof tag; i++) {
        const struct knob_setting *knob = (const struct knob_setting *)plan->config->knobs.descriptors[i];
        length += (size_t)snprintf(tag + length, sizeof tag - length, "_k%d=%lld", knob->type, (long long)knob->value);
    }
    plan->tag.count = (int64_t)strlen(tag);
    return arena_copy(&plan->base.arena, &plan->tag.items, tag, strlen(tag) + 1);
}

/* The plan's device. If the plan has a handle, its device must be one that the engine was chosen for. Properties of a
   described device match any device of the same kind; properties of a device of this machine may contain limits, which
   apply. */
static weftStatus_t choose_plan_device(struct device *device, const struct plan *plan) {
    const struct engine_descriptor *engine = plan->config->engine;
    const struct device_properties *named = plan->device_properties ? plan->device_properties : engine->device;
    /* No handle: the device of the properties, else that of the graph's handle, else the default device. */
    if (!plan->handle)
        return choose_device(device, named, engine->graph->handle, engines[engine->index]);
    const struct device *actual = &plan->handle->device;
    char wanted[DEVICE_LABEL_BYTES], given[DEVICE_LABEL_BYTES];
    if (named && !device_serves(actual, &named->device))
        FAIL(
            WEFT_STATUS_BAD_PARAM,
            "%s: a plan runs on the device that it was built for: the properties name %s, the handle %s. Pass a handle "
            "of that device, or no properties.",
            descriptor_label(&plan->base), device_label(wanted, &named->device), device_label(given, actual));
    /* Properties of a local device may have been created from text, for example with fewer multiprocessors. */
    bool has_limits = plan->device_properties && !plan->device_properties->device.is_described;
    *device = has_limits ? plan->device_properties->device : *actual;
    return WEFT_STATUS_SUCCESS;
}

/* Takes over the configuration's draft if it is for this device and still there; otherwise drafts from the
   configuration's cover if the device is the same, or else from the graph. */
static weftStatus_t draft_config(struct plan *plan, const struct device *device) {
    const struct engine_config *config = plan->config;
    struct knob_choices choices;
    if (config_take_draft(&plan->draft, plan->config, device, &plan->base.arena))
        return WEFT_STATUS_SUCCESS;
    /* The choices are in the plan's arena, like the draft that refers to them. */
    TRY(collect_choices(&choices, config, &plan->base.arena));
    return draft_make(&plan->draft, config->engine->graph, engines[config->engine->index], device, &choices,
                      device_same(device, &config->device) ? &config->cover : NULL, &plan->base.arena);
}

/* Drafts the plan. If a limited configuration is needed, it replaces the original one, so that the tag and the saved
   plan describe what runs. */
static weftStatus_t draft_plan(struct plan *plan) {
    struct device device;
    struct engine_config *limited;
    TRY(choose_plan_device(&device, plan));
    limit_device(&device, &plan->config->engine->limits);
    TRY(draft_config(plan, &device));
    /* First without the limit, because plans within a limit may be slower and most plans need little. */
    int64_t needed = plan->draft.workspace_bytes;
    if (needed <= plan->workspace_limit)
        return WEFT_STATUS_SUCCESS;
    TRY(config_within(&limited, plan->config, plan->workspace_limit));
    if (!limited)
        FAIL(WEFT_STATUS_NOT_SUPPORTED,
             "%s: engine %s needs %lld bytes of workspace, the limit is %lld. Raise workspace_limit or choose another "
             "engine.",
             descriptor_label(&plan->base), plan->draft.engine->name, (long long)needed,
             (long long)plan->workspace_limit);
    /* Release the reference to the configuration that is replaced. */
    descriptor_release(&plan->config->base);
    plan->config = limited;
    return draft_config(plan, &device);
}

/* Compiles the programs of all steps together, so that the compiler can work on several at a time, then loads them one
   by one. Plans for a described device are not loaded. */
static weftStatus_t load_steps(struct plan *plan) {
    struct draft *draft = &plan->draft;
    if (draft->engine->compile)
        TRY(draft->engine->compile(draft->steps, draft->cover.count, &draft->device, &plan->aot_codes));
    for (int s = 0; s < draft->cover.count && !draft->device.is_described; s++)
        TRY(step_load(draft->engine, &draft->steps[s], &draft->device));
    return WEFT_STATUS_SUCCESS;
}

/* Also called after a build that failed midway: steps without a family have not been built. */
static void release_steps(struct plan *plan) {
    for (int s = 0; plan->draft.steps && s < plan->draft.cover.count; s++)
        if (plan->draft.steps[s].family)
            step_release(plan->draft.engine, &plan->draft.steps[s]);
    /* Finalize may be repeated after a failure; the steps must be released only once. */
    plan->draft.steps = NULL;
}

/* The order matters: permissions need the slots, the frame needs both, and saving needs the compiled code. */
static weftStatus_t build(struct plan *plan) {
    /* A failed finalize may have counted some. */
    plan->slot_count = 0;
    TRY(draft_plan(plan));
    plan->workspace_bytes = plan->draft.workspace_bytes;
    TRY(load_steps(plan));
    TRY(list_slots(plan));
    TRY(alias_check_list(plan));
    TRY(index_check_list(plan));
    TRY(general_plan_list(plan));
    TRY(write_tag(plan));
    TRY(plan_make_frame(plan)); /* last, so that a failed attempt leaves no frame of another size */
    trace(WEFT_SEV_INFO, "plan %s of %s: engine %s, %d step%s, %lld byte%s of workspace, predicted %.3g us",
          plan->tag.chars, descriptor_label(&plan->draft.graph->base), plan->draft.engine->name,
          plan->draft.cover.count, plural(plan->draft.cover.count), (long long)plan->workspace_bytes,
          plural(plan->workspace_bytes), plan->draft.seconds * 1e6);
    return WEFT_STATUS_SUCCESS;
}

/* The properties that are set, else those of the plan's handle, else NULL. The caller releases them. */
static weftStatus_t find_properties(struct descriptor **properties, const struct plan *plan) {
    *properties = plan->device_properties ? descriptor_retain(&plan->device_properties->base) : NULL;
    if (*properties || !plan->handle)
        return WEFT_STATUS_SUCCESS;
    const struct setting handle = {WEFT_ATTR_DEVICEPROP_HANDLE, WEFT_TYPE_HANDLE, 1, &plan->handle};
    return descriptor_build(properties, &device_properties_schema, &handle, 1);
}

/* Chooses the first configuration that heuristics suggest, like a user with a heuristics descriptor. */
static weftStatus_t choose_config(struct plan *plan) {
    struct descriptor *heuristics, *properties;
    /* Modes A, B and INSTANT rank in the same way. */
    int32_t mode = WEFT_HEUR_MODE_A;
    TRY(find_properties(&properties, plan));
    const struct setting settings[] = {
        {WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &plan->graph},
        {WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, 1, &mode},
        {WEFT_ATTR_ENGINEHEUR_DEVICEPROP, WEFT_TYPE_BACKEND_DESCRIPTOR, properties != NULL, &properties},
    };
    weftStatus_t status = descriptor_build(&heuristics, &heuristics_schema, settings, 3);
    if (!status)
        status = heuristics_first(heuristics, &plan->config);
    descriptor_release(heuristics);
    descriptor_release(properties);
    return status;
}

/* Replaces the configuration with one for a graph that only guarantees element alignment. */
static weftStatus_t relax_alignment(struct plan *plan) {
    const struct engine_descriptor *engine = plan->config->engine;
    struct engine_config *config = NULL;
    struct graph *graph = NULL;
    weftStatus_t status = graph_change(&graph, engine->graph, &(struct changes){.element_aligned = true});
    if (!status)
        status = config_for_graph(&config, plan->config, graph);
    /* The configuration holds a reference to the graph. */
    descriptor_release(graph ? &graph->base : NULL);
    if (status)
        return status;
    descriptor_release(&plan->config->base);
    plan->config = config;
    return WEFT_STATUS_SUCCESS;
}

/* A plan may be finalized again after a failure: the steps are released, and so is a configuration that was loaded from
   a blob. */
static weftStatus_t finalize(struct descriptor *descriptor) {
    struct plan *plan = (struct plan *)descriptor;
    bool is_loaded = !plan->config && plan->blob.count;
    if (plan->run_only_intermediates.count)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: run_only_intermediate_uids is set. Weft plans compute all of their graph.",
             descriptor_label(descriptor));
    if (is_loaded)
        TRY(plan_load(plan));
    if (!plan->config && plan->graph)
        TRY(choose_config(plan));
    if (!plan->config)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: none of engine_config, operation_graph and json is set. Set one of them.",
             descriptor_label(descriptor));
    /* Guards the cached plans for overridden shapes, which change after finalize. */
    pthread_mutex_init(&plan->override_lock, NULL);
    weftStatus_t status = plan->element_aligned ? relax_alignment(plan) : WEFT_STATUS_SUCCESS;
    if (!status)
        status = build(plan);
    if (status)
        release_steps(plan);
    if (status == WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING && plan->has_unused_code)
        status_prefix(status,
                      "%s: the saved plan contains code, but with_code is not set, so its kernels are compiled again: ",
                      descriptor_label(descriptor));
    if (status && is_loaded) { /* the next attempt may load another blob */
        descriptor_release(&plan->config->base);
        plan->config = NULL;
        plan->aot_codes.count = 0;
    }
    return status;
}

static void release(struct descriptor *descriptor) {
    struct plan *plan = (struct plan *)descriptor;
    plan_free_overrides(plan);
    general_plan_free(plan);
    plan_free_frame(plan);
    cuda_graph_cache_free(plan);
    release_steps(plan);
}

const struct schema plan_schema = {
    .kind = WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
    .name = "execution plan",
    .doc = "a graph on an engine, ready to run",
    .size = sizeof(struct plan),
    ROWS(rows),
    .finalize = finalize,
    .release = release,
};
