/* SPDX-License-Identifier: Apache-2.0 */
#include "src/plan_cache.h"

#include <stdlib.h>
#include <string.h>

int32_t common_alignment(int count, const void *const *addresses) {
    uintptr_t bits = 16;
    for (int i = 0; i < count; i++)
        bits |= (uintptr_t)addresses[i];
    return (int32_t)(bits & -bits);
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* Functions without a choice of engines are deterministic, as most algorithms of cuDNN are. TF32 is allowed unless the
   program asked for exact products. */
static bool is_allowed(weftBackendDescriptor_t config, bool is_exact) {
    weftBackendDescriptor_t engine = NULL;
    char name[32] = "";
    int64_t count;
    if (!weftBackendCreateDescriptor(WEFT_BACKEND_ENGINE_DESCRIPTOR, &engine) &&
        !weftBackendGetAttribute(config, WEFT_ATTR_ENGINECFG_ENGINE, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine))
        weftBackendGetAttribute(engine, WEFT_ATTR_ENGINE_NAME_EXT, WEFT_TYPE_CHAR, sizeof name - 1, &count, name);
    weftBackendDestroyDescriptor(engine);
    return !strstr(name, "unordered") && !(is_exact && strstr(name, "tf32"));
}

enum { CONFIGS_MAX = 8 };

/* The first configuration that the rules allow and of which a plan can be built. */
static void build_first(struct builder *b, int64_t count, const weftBackendDescriptor_t *configs, bool is_exact,
                        weftBackendDescriptor_t *plan) {
    weftStatus_t status = WEFT_STATUS_NOT_SUPPORTED;
    for (int64_t i = 0; i < count && i < CONFIGS_MAX && !*plan; i++)
        if (is_allowed(configs[i], is_exact))
            status = weftBackendBuildDescriptor(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 2,
                                                (weftAttribute_t[]){VALUE(EXECUTION_PLAN_HANDLE, HANDLE, b->handle),
                                                                    NODE(EXECUTION_PLAN_ENGINE_CONFIG, configs[i])},
                                                plan);
    if (!*plan)
        builder_check(b, status);
}

static void choose(struct builder *b, node graph, bool is_exact, weftBackendDescriptor_t *plan) {
    const weftBackendHeurMode_t mode = WEFT_HEUR_MODE_A;
    weftBackendDescriptor_t configs[CONFIGS_MAX] = {0};
    int64_t count = 0;
    const node heuristics =
        build(b, WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR, 2,
              (weftAttribute_t[]){NODE(ENGINEHEUR_OPERATION_GRAPH, graph), VALUE(ENGINEHEUR_MODE, HEUR_MODE, mode)});
    for (int i = 0; i < CONFIGS_MAX && !b->status; i++)
        builder_check(b, weftBackendCreateDescriptor(WEFT_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i]));
    if (!b->status)
        builder_check(b, weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR,
                                                 CONFIGS_MAX, &count, configs));
    if (!b->status)
        build_first(b, count, configs, is_exact, plan);
    for (int i = 0; i < CONFIGS_MAX; i++)
        weftBackendDestroyDescriptor(configs[i]);
}

static cudnnStatus_t build_plan(cudnnHandle_t handle, const void *key, bool is_exact, build_graph *graph_of,
                                struct cached_plan *result) {
    const struct key_head *head = key;
    struct builder b = {
        .handle = handle->weft, .next_uid = UID_VIRTUAL, .alignment = head->alignment ? head->alignment : 16};
    int64_t count = 0;
    graph_of(&b, key);
    const node graph = build(&b, WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 2,
                             (weftAttribute_t[]){VALUE(OPERATIONGRAPH_HANDLE, HANDLE, b.handle),
                                                 LIST(OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, b.op_count, b.ops)});
    if (!b.status)
        choose(&b, graph, is_exact, &result->plan);
    if (!b.status)
        builder_check(&b, weftBackendGetAttribute(result->plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                  WEFT_TYPE_INT64, 1, &count, &result->workspace_bytes));
    if (!b.status)
        builder_check(&b, weftBackendGetAttribute(result->plan, WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT,
                                                  WEFT_TYPE_INT64, PLAN_SLOTS_MAX, &count, result->slots));
    result->slot_count = (int)count;
    builder_free(&b);
    return b.status;
}

/* ---- The cache --------------------------------------------------------------------------------------------------- */

/* FNV-1a */
static uint64_t hash_of(const void *key, size_t bytes) {
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)key)[i]) * 1099511628211u;
    return hash;
}

static void plan_free(struct cached_plan *plan) {
    weftBackendDestroyDescriptor(plan->plan);
    free(plan->key);
    free(plan);
}

static cudnnStatus_t create_plan(cudnnHandle_t handle, const void *key, size_t key_bytes, bool is_exact,
                                 build_graph *graph, struct cached_plan **created) {
    struct cached_plan *plan = calloc(1, sizeof *plan);
    void *copy = malloc(key_bytes);
    *created = NULL;
    if (!plan || !copy) {
        free(plan);
        free(copy);
        return fail_with(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory.");
    }
    plan->key = memcpy(copy, key, key_bytes);
    plan->key_bytes = key_bytes;
    cudnnStatus_t status = build_plan(handle, key, is_exact, graph, plan);
    if (status)
        plan_free(plan);
    else
        *created = plan;
    return status;
}

/* Built under the lock: a second thread that asks for the same key waits for the plan instead of building another. */
cudnnStatus_t plan_get(cudnnHandle_t handle, const void *key, size_t key_bytes, bool is_exact, build_graph *graph,
                       struct cached_plan **plan) {
    const uint64_t hash = hash_of(key, key_bytes) ^ is_exact;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    struct cached_plan **bucket = &handle->plans[hash % PLAN_BUCKETS];
    pthread_mutex_lock(&handle->lock);
    struct cached_plan *cached = *bucket;
    while (cached && (cached->hash != hash || cached->key_bytes != key_bytes || memcmp(cached->key, key, key_bytes)))
        cached = cached->next;
    if (!cached) {
        status = create_plan(handle, key, key_bytes, is_exact, graph, &cached);
        if (cached) {
            cached->hash = hash, cached->next = *bucket;
            *bucket = cached;
        }
    }
    pthread_mutex_unlock(&handle->lock);
    *plan = cached;
    return status;
}

void plans_free(cudnnHandle_t handle) {
    for (int i = 0; i < PLAN_BUCKETS; i++)
        for (struct cached_plan *plan = handle->plans[i], *next; plan; plan = next) {
            next = plan->next;
            plan_free(plan);
        }
}

/* ---- Execution --------------------------------------------------------------------------------------------------- */

enum { WORKSPACE_ALIGNMENT = 64 };

cudnnStatus_t plan_execute(cudnnHandle_t handle, const struct cached_plan *plan, int count,
                           const struct binding *bindings, void *workspace, size_t workspace_bytes) {
    uint64_t addresses[PLAN_SLOTS_MAX];
    for (int s = 0; s < plan->slot_count; s++) {
        int i = 0;
        while (i < count && bindings[i].uid != plan->slots[s])
            i++;
        if (i == count)
            return fail_with(CUDNN_STATUS_INTERNAL_ERROR, "no address for tensor %lld.", (long long)plan->slots[s]);
        addresses[s] = (uint64_t)(uintptr_t)bindings[i].address;
    }
    bool is_usable = workspace && workspace_bytes >= (size_t)plan->workspace_bytes &&
                     (uintptr_t)workspace % WORKSPACE_ALIGNMENT == 0;
    if (!is_usable) {
        cudnnStatus_t status = handle_scratch(handle, (size_t)plan->workspace_bytes, &workspace);
        if (status)
            return status;
    }
    return from_weft(weftExecute(plan->plan, plan->slot_count, addresses, workspace, handle->stream));
}

cudnnStatus_t plan_run_graph(cudnnHandle_t handle, const void *key, size_t key_bytes, build_graph *graph, int count,
                             const struct binding *bindings) {
    struct cached_plan *plan;
    cudnnStatus_t status = plan_get(handle, key, key_bytes, false, graph, &plan);
    return status ? status : plan_execute(handle, plan, count, bindings, NULL, 0);
}
