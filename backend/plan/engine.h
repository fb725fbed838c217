/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors that name an engine and its settings, and the device they are for. */
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
    struct device device; /* filled by finalize */
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

/* How much of a GPU a plan may use; all zero: all of it. A CPU has nothing of the kind. */
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
    struct device device;       /* for which finalize planned */
    struct cover cover;         /* of the graph there, without a limit of the workspace: plans begin with it */
    struct descriptor *planned; /* the configuration in which the cover is; NULL: in this one, which is no copy */
    struct draft draft;         /* what finalize drafted, for the first plan */
    struct arena draft_arena;
    _Atomic bool has_draft; /* no plan has taken it */
};

extern const struct schema device_properties_schema, knob_info_schema, knob_setting_schema, layout_info_schema,
    intermediate_info_schema, engine_schema, engine_config_schema, heuristics_schema, kernel_cache_schema;

/* The device that a graph is planned for: the properties' if given, else the handle's, else the default one, or the
   first of the kind that the engine runs on (NULL: no engine is chosen yet). */
weftStatus_t choose_device(struct device *device, const struct device_properties *properties,
                           const struct weftContext *handle, const struct engine *engine);

/* Makes the device as small as the limits say, which are no larger than it is. */
void limit_device(struct device *device, const struct engine_limits *limits);

/* A finalized configuration of engine `index` with these knob choice descriptors (NULL: the engine's own choice) and
   limits (NULL: none); the caller releases it. */
weftStatus_t make_config(struct engine_config **out, struct graph *graph, int index,
                         struct device_properties *properties, const struct list *knobs,
                         const struct engine_limits *limits);

/* The fastest configuration that finalized heuristics found; the caller releases it. NOT_SUPPORTED when there is
   none. */
weftStatus_t heuristics_first(const struct descriptor *heuristics, struct engine_config **config);

/* Gives what finalize drafted for this device, with its memory, to whoever is the first to ask; false to others. */
bool config_take_draft(struct draft *draft, struct engine_config *config, const struct device *device,
                       struct arena *arena);

/* The settings of a configuration as families read them, in `arena`. */
weftStatus_t collect_choices(struct knob_choices *choices, const struct engine_config *config, struct arena *arena);

#endif
