/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel cache descriptor: cuDNN's interface for sharing compiled kernels between plans. Weft always shares them, in
   memory and on disk, so this descriptor only stores and returns what a program written for cuDNN sets. */
#include "graph/descriptor.h"
#include "plan/engine.h"

/* is_cached, revision and entries are always 0. */
struct kernel_cache {
    struct descriptor base;
    struct graph *graph;
    bool is_cached;
    struct list json;
    int64_t revision, entries;
};

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct kernel_cache, graph, WEFT_ATTR_KERNEL_CACHE_OPERATION_GRAPH,
              "operation_graph", .target = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
              .doc = "a graph whose kernels will be shared"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct kernel_cache, is_cached, WEFT_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED,
              "is_enginecfg_kernel_cached", .role = ROLE_RESULT,
              .doc = "whether this descriptor holds kernels itself: no"),
    VALUE_ROW(WEFT_TYPE_CHAR, struct kernel_cache, json, WEFT_ATTR_KERNEL_CACHE_JSON_REPRESENTATION, "json",
              .storage = STORE_LIST, .doc = "the cache as text; it holds nothing that a plan would need"),
    VALUE_ROW(WEFT_TYPE_INT64, struct kernel_cache, revision, WEFT_ATTR_KERNEL_CACHE_REVISION, "revision",
              .role = ROLE_RESULT, .doc = "changes of the cache since it was created"),
    VALUE_ROW(WEFT_TYPE_INT64, struct kernel_cache, entries, WEFT_ATTR_KERNEL_CACHE_ENTRY_COUNT, "entry_count",
              .role = ROLE_RESULT, .doc = "kernels in the descriptor itself"),
};

/* Text that the user set is returned unchanged; otherwise the value is an empty JSON object. */
static weftStatus_t finalize(struct descriptor *descriptor) {
    struct kernel_cache *cache = (struct kernel_cache *)descriptor;
    static const char empty[] = "{}";
    if (cache->json.count)
        return WEFT_STATUS_SUCCESS;
    TRY(arena_copy(&descriptor->arena, &cache->json.items, empty, sizeof empty));
    /* Without the terminating zero. */
    cache->json.count = sizeof empty - 1;
    return WEFT_STATUS_SUCCESS;
}

const struct schema kernel_cache_schema = {
    .kind = WEFT_BACKEND_KERNEL_CACHE_DESCRIPTOR,
    .name = "kernel cache",
    .doc = "kernels shared between plans; Weft shares them by itself",
    .size = sizeof(struct kernel_cache),
    ROWS(rows),
    .finalize = finalize,
};
