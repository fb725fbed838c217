/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of engines and their settings, and of the device to plan for. */
#ifndef WEFT_PLAN_ENGINE_H
#define WEFT_PLAN_ENGINE_H

#include "plan/steps.h"

struct device_properties {
    struct descriptor base;
    int32_t device_id;
    struct weftContext *handle;
    struct list json;
    int64_t kind;
    struct list name;
    int64_t threads;
    struct device device; /* set by finalize */
};

struct knob_info {
    struct descriptor base;
    int32_t type;
    int64_t most, least, stride;
};

struct knob_setting {
    struct descriptor base;
    int32_t type;
    int64_t value;
};

/* Limits on the use of a GPU; 0 or false: no limit. CPUs ignore them. */
struct engine_limits {
    int32_t sm_count_target, shared_memory_limit;
    bool disable_cluster_cooperative;
};

struct engine_descriptor {
    struct descriptor base;
    struct graph *graph;
    int64_t index;
    struct list knobs, numerical_notes, layouts, behavior_notes, name, families;
    struct engine_limits limits;
    struct device_properties *device;
};

struct engine_config {
    struct descriptor base;
    struct engine_descriptor *engine;
    struct list intermediates, knobs;
    int64_t workspace_bytes;
    int32_t shared_memory;
    double seconds;
    struct device device; /* the device that finalize planned for */
    struct cover cover;   /* the cover for that device, without a workspace limit; plans start from it */
    struct descriptor
        *planned; /* the configuration that this one is a copy of, which owns the cover; NULL if this is no copy */
    struct draft draft; /* drafted by finalize, for the first plan */
    struct arena draft_arena;
    _Atomic bool has_draft; /* no plan has taken the draft */
};

extern const struct schema device_properties_schema, knob_info_schema, knob_setting_schema, layout_info_schema,
    intermediate_info_schema, engine_schema, engine_config_schema, heuristics_schema, kernel_cache_schema;

/* The device to plan for: that of the properties if given, else of the handle, else the default device. If the latter
   is not of the engine's kind, the first device of that kind (engine may be NULL). */
weftStatus_t choose_device(struct device *device, const struct device_properties *properties,
                           const struct weftContext *handle, const struct engine *engine);

/* Reduces the device's resources to the limits. */
void limit_device(struct device *device, const struct engine_limits *limits);

/* Creates a finalized knob choice; the caller releases it. */
weftStatus_t make_setting(struct descriptor **out, int32_t type, int64_t value);

/* Creates a finalized configuration of engine `index` with these knob choice descriptors and limits; the caller
   releases it. */
weftStatus_t make_config(struct engine_config **out, struct graph *graph, int index,
                         struct device_properties *properties, const struct list *knobs,
                         const struct engine_limits *limits);

/* Creates a configuration for a changed graph: the same engine and knobs, or, if that engine declines the graph, the
   engine that accepts every graph, with the same workspace limit. */
weftStatus_t config_for_graph(struct engine_config **out, const struct engine_config *config, struct graph *graph);

/* Creates a configuration with a workspace limit in addition; NULL if its engine cannot respect it. */
weftStatus_t config_within(struct engine_config **out, const struct engine_config *config, int64_t workspace_limit);

/* The fastest configuration of finalized heuristics; the caller releases it. NOT_SUPPORTED if none was found. */
weftStatus_t heuristics_first(const struct descriptor *heuristics, struct engine_config **config);

/* Hands over the draft, with its memory, if it is for this device. The first caller gets it; false for all others. */
bool config_take_draft(struct draft *draft, struct engine_config *config, const struct device *device,
                       struct arena *arena);

/* Converts the knob settings of a configuration to the form that families read, in `arena`. */
weftStatus_t collect_choices(struct knob_choices *choices, const struct engine_config *config, struct arena *arena);

#endif
