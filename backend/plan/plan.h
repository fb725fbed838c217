/* SPDX-License-Identifier: Apache-2.0 */
/* Execution plans: immutable after finalize, shareable by threads. */
#ifndef WEFT_PLAN_PLAN_H
#define WEFT_PLAN_PLAN_H

#include "base/number.h"
#include "plan/engine.h"
#include "plan/steps.h"
#include "plan/variant_pack.h"
#include <pthread.h>

/* A tensor for which the user passes a pointer, and the requirements on that pointer. */
struct slot {
    int value;
    int64_t uid, bytes, alignment;
    bool is_written;
    int first_permission, permission_count; /* range in plan->permissions, for written slots */
};

/* Where an input may overlap an output, according to the step that writes the output. */
struct permission {
    int in;         /* value number */
    int64_t offset; /* in bytes from the output, at which the input must start; -1: no overlap is allowed */
};

/* A node whose index operands are checked before a step; see index_check.h. */
struct index_check {
    int node, step;
};

/* Number of threads that can run a plan as a CUDA graph concurrently; each uses its own graph. */
enum { CACHED_GRAPHS_MAX = 8 };

/* The attributes of the descriptor come first; finalize fills `draft` and everything after it. After that only these
   change: spare_frame and cached_graphs (atomically), overrides (under its lock), and what steps packed of frozen
   inputs (plan_freeze, while no execution is running). */
struct plan {
    struct descriptor base;
    struct weftContext *handle;
    struct engine_config *config;
    struct graph *graph; /* planned on the fastest engine if there is no config */
    int64_t workspace_bytes;
    struct list computed_intermediates, run_only_intermediates;
    struct list blob; /* a saved plan to load, set by the user */
    struct descriptor *kernel_cache;
    struct device_properties *device_properties;
    int32_t retention;
    struct list slot_uids, tag;
    struct list slots_json, report, kernels; /* always empty: written on request */
    int64_t workspace_limit;
    bool with_code, element_aligned, cuda_graph;
    struct aot_codes aot_codes; /* code to use instead of compiling; points into `blob` */
    bool has_unused_code;       /* the blob contains code, but with_code is not set */

    struct draft draft;
    int slot_count;
    struct slot *slots; /* sorted by uid */
    struct permission *permissions;
    int index_check_count;
    struct index_check *index_checks;
    _Atomic(void *) spare_frame;                      /* see run.c */
    _Atomic(void *) cached_graphs[CACHED_GRAPHS_MAX]; /* see cuda_graph_cache.c */
    pthread_mutex_t override_lock;
    struct plan_override *overrides; /* plans for overridden shapes, built on demand */
    int assumption_count;            /* see general_plan.h */
    int *assumptions;                /* values */
    struct plan *general;            /* built on demand, under override_lock */
};

extern const struct schema plan_schema;

/* Executes with one address per slot. The caller has checked the size of the workspace. */
weftStatus_t plan_run(struct plan *plan, const uint64_t *addresses, void *workspace, weftStream_t stream);

/* Lets steps pack the inputs that have an address and keep the result; earlier results are released. No execution may
   be running. */
weftStatus_t plan_freeze(struct plan *plan, const uint64_t *addresses);

/* Callback for each step in order, after it has completed, or on a GPU after it has been enqueued. */
struct step_watch {
    weftStatus_t (*passed)(void *context, int step);
    void *context;
};

/* plan_run with a callback per step; a plan that runs as one CUDA graph is executed step by step. */
weftStatus_t plan_run_watched(struct plan *plan, const uint64_t *addresses, void *workspace, weftStream_t stream,
                              const struct step_watch *watch);

/* plan_run with a variant pack: looks up the pointers, and plans again if shapes are overridden. */
weftStatus_t plan_run_pack(struct plan *plan, const struct variant_pack *pack, weftStream_t stream);

/* Writes the plan's kernels into a CUDA graph of the caller instead of running them. */
weftStatus_t plan_write_cuda_graph(struct plan *plan, const struct variant_pack *pack, void *cuda_graph,
                                   bool is_update);

/* Builds a plan for a changed graph; otherwise it has the properties of `plan`. The caller releases it. */
struct changes;
weftStatus_t plan_change(struct plan **out, const struct plan *plan, const struct changes *changes);

/* The plan for a variant pack: `plan` itself, or a plan for the overridden shapes. The caller releases it. */
weftStatus_t plan_for_pack(struct plan **out, struct plan *plan, const struct variant_pack *pack);
void plan_free_overrides(struct plan *plan);

/* Runs only the steps, in order, on memory that has been checked. watch may be NULL. */
weftStatus_t plan_run_steps(const struct plan *plan, void *const *values, void *workspace, weftStream_t stream,
                            const struct step_watch *watch);

/* Allocates the frame of executions in advance, so that they allocate nothing. */
weftStatus_t plan_make_frame(struct plan *plan);
void plan_free_frame(struct plan *plan);

/* Alignment in bytes that the plan requires of a tensor's address, a power of two. GPUs load whole elements, so their
   alignment is required even if the tensor declares less. Other engines only require element alignment: there, a larger
   declared alignment would refuse pointers that work. */
static inline int64_t plan_alignment(const struct plan *plan, const struct tensor *tensor) {
    int64_t element = tensor_element_bytes(tensor);
    return plan->draft.engine->takes_any_alignment ? min64(tensor->alignment, element)
                                                   : max64(tensor->alignment, element);
}

/* report.c: JSON of the plan's steps and decisions, of the part that executions need, and of the kernels. */
void plan_write_report(const struct descriptor *plan, struct text *json);
void plan_write_slots(const struct descriptor *plan, struct text *json);
void plan_write_kernels(const struct descriptor *plan, struct text *json);

#endif
