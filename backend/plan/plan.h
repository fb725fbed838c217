/* SPDX-License-Identifier: Apache-2.0 */
/* Execution plans: immutable after finalize, shareable by threads. */
#ifndef WEFT_PLAN_PLAN_H
#define WEFT_PLAN_PLAN_H

#include "plan/draft.h"
#include "plan/engine.h"
#include "plan/variant_pack.h"
#include <pthread.h>

/* A tensor that a pointer must come for, and what that pointer must satisfy. */
struct slot {
    int value;
    int64_t uid, bytes, alignment;
    bool is_written;
    int first_permission, permission_count; /* of a written slot, in the plan's list */
};

/* What the step that writes a slot allows an input that it reads. */
struct permission {
    int in;         /* value */
    int64_t offset; /* it may begin exactly so many bytes after the output; -1: it may not overlap */
};

/* A node whose numbers in memory are checked before a step; see index_check.h. */
struct index_check {
    int node, step;
};

/* Threads that run a plan as a CUDA graph at once; each has a graph of its own. */
enum { REPLAYS_MAX = 8 };

/* Rows of the descriptor come first, as a user sets or reads them; from `draft` on, what finalize makes. Only
   spare_frame, replays and overrides change afterwards, the first two atomically, the last under its lock, and what
   steps keep of frozen inputs, while nothing runs (plan_freeze). */
struct plan {
    struct descriptor base;
    struct weftContext *handle;
    struct engine_config *config;
    struct graph *graph; /* to be planned on the fastest engine, when there is no config */
    int64_t workspace_bytes;
    struct list computed_intermediates, run_only_intermediates;
    struct list blob; /* as set by the user: a saved plan, to load */
    struct descriptor *kernel_cache;
    struct device_properties *device_properties;
    int32_t retention;
    struct list slot_uids, tag;
    struct list slots_json, report, kernels; /* always empty: they are written when they are asked for */
    int64_t workspace_limit;
    bool with_code, element_aligned, cuda_graph;
    struct carried_codes carried; /* code to use instead of compiling; it lies in the blob that was set */
    bool has_unused_code;         /* the blob carries code that nobody asked to use */

    struct draft draft;
    int slot_count;
    struct slot *slots; /* by uid */
    struct permission *permissions;
    int index_check_count;
    struct index_check *index_checks;
    _Atomic(void *) spare_frame;          /* see run.c */
    _Atomic(void *) replays[REPLAYS_MAX]; /* see replay.c */
    pthread_mutex_t override_lock;
    struct plan_override *overrides; /* plans for overridden shapes, made on demand */
};

extern const struct schema plan_schema;

/* Runs with one address per slot; how large the workspace is, the caller knows. */
weftStatus_t plan_run(struct plan *plan, const uint64_t *addresses, void *workspace, weftStream_t stream);

/* Lets steps keep what they pack of inputs with an address; what was kept before is dropped. No execution is under
   way. */
weftStatus_t plan_freeze(struct plan *plan, const uint64_t *addresses);

/* Is told of each step when it is done, or on a GPU enqueued, in their order. */
struct step_watch {
    weftStatus_t (*passed)(void *context, int step);
    void *context;
};

/* plan_run under watch: steps one by one, also of a plan that runs as one CUDA graph. */
weftStatus_t plan_run_watched(struct plan *plan, const uint64_t *addresses, void *workspace, weftStream_t stream,
                              const struct step_watch *watch);

/* plan_run with a pack: looks the pointers up, and plans anew where shapes are overridden. */
weftStatus_t plan_run_pack(struct plan *plan, const struct variant_pack *pack, weftStream_t stream);

/* A configuration for a plan's graph after a change: on the plan's engine with its knobs, or where that declines such a
   graph on the one that runs every graph, which keeps to the same limit of the workspace. */
weftStatus_t plan_config_again(struct engine_config **made, const struct engine_config *config, struct graph *graph);

/* The plan that serves a pack: `plan` itself, or one for the overridden shapes; the caller releases it. */
weftStatus_t plan_for_pack(struct plan **found, struct plan *plan, const struct variant_pack *pack);
void plan_free_overrides(struct plan *plan);

/* The steps alone, in order, on memory that was checked. watch: NULL for none. */
weftStatus_t plan_run_steps(const struct plan *plan, void *const *values, void *workspace, weftStream_t stream,
                            const struct step_watch *watch);

/* Makes ready what executions need beyond the plan itself, so that they allocate nothing. */
weftStatus_t plan_make_frame(struct plan *plan);
void plan_free_frame(struct plan *plan);

/* What addresses of a tensor are multiples of when the plan runs. */
int64_t plan_alignment(const struct plan *plan, const struct tensor *tensor);

/* report.c: JSON of what runs where and why, of that part of it that is needed to run, and of the kernels. */
void plan_write_report(const struct descriptor *plan, struct text *json);
void plan_write_slots(const struct descriptor *plan, struct text *json);
void plan_write_kernels(const struct descriptor *plan, struct text *json);

#endif
