/* SPDX-License-Identifier: Apache-2.0 */
/* Engines, knobs, heuristics, plans, packs, shape overrides and saved plans: the exact messages of refusals, correct
   results, and that no blob does harm, however damaged it is. The oracle for results is plain double arithmetic. */
#include "base/bytes.h"
#include "base/hash.h"
#include "harness.h"
#include "plan/plan.h"

#include <math.h>

/* ---- The graph of most tests: y = relu(((x @ w) + bias) * alpha * 2.5) ------------------------------------------- */

enum { ROWS_X = 4, K = 8, N = 6, MOST_ROWS = 64 };
enum { UID_X = 1, UID_W, UID_BIAS, UID_ALPHA, UID_Y };
static const int64_t SLOTS[] = {UID_X, UID_W, UID_BIAS, UID_ALPHA, UID_Y};
enum { SLOT_COUNT = sizeof SLOTS / sizeof *SLOTS };

struct memory {
    _Alignas(64) float x[MOST_ROWS * K], w[K * N], bias[N], alpha, y[MOST_ROWS * N];
    _Alignas(64) char workspace[1 << 16];
};

/* x has dims [rows, K]; the caller releases the graph. */
static desc mlp_graph(const char *name) {
    desc x = tensor(UID_X, DIMS(ROWS_X, K)), w = tensor(UID_W, DIMS(K, N)), bias = tensor(UID_BIAS, DIMS(1, N));
    desc alpha = open_tensor(UID_ALPHA, UNSET), y = tensor(UID_Y, DIMS(ROWS_X, N)), scale = constant(12, 2.5f);
    desc product = virtual_tensor(10), sum = virtual_tensor(11), scaled = virtual_tensor(13), more = virtual_tensor(14);
    MUST(set_flag(alpha, WEFT_ATTR_TENSOR_IS_BY_VALUE, true));
    MUST(weftBackendFinalize(alpha));
    desc list[5];
    list[0] = matmul(x, w, product);
    list[1] = pointwise(WEFT_POINTWISE_ADD, product, bias, sum);
    list[2] = pointwise(WEFT_POINTWISE_MUL, sum, alpha, scaled);
    list[3] = pointwise(WEFT_POINTWISE_MUL, scaled, scale, more);
    list[4] = pointwise(WEFT_POINTWISE_RELU_FWD, more, NULL, y);
    desc graph = open_graph(5, list);
    if (name)
        MUST(set_text(graph, WEFT_ATTR_NAME_EXT, name));
    MUST(weftBackendFinalize(graph));
    for (int i = 0; i < 5; i++)
        drop(list[i]);
    drop(x), drop(w), drop(bias), drop(alpha), drop(y), drop(scale), drop(product), drop(sum), drop(scaled), drop(more);
    return graph;
}

static void fill(struct memory *m) {
    memset(m, 0, sizeof *m);
    for (int i = 0; i < MOST_ROWS * K; i++)
        m->x[i] = (float)((i * 7) % 13) - 6;
    for (int i = 0; i < K * N; i++)
        m->w[i] = (float)((i * 5) % 11) * 0.25f - 1;
    for (int i = 0; i < N; i++)
        m->bias[i] = (float)i - 2.5f;
    m->alpha = 0.5f;
    for (int i = 0; i < MOST_ROWS * N; i++)
        m->y[i] = NAN;
}

static void check_results(const struct memory *m, int rows, const char *when) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < N; c++) {
            double sum = m->bias[c];
            for (int k = 0; k < K; k++)
                sum += (double)m->x[r * K + k] * m->w[k * N + c];
            double expected = fmax(sum * m->alpha * 2.5, 0), got = m->y[r * N + c];
            CHECK(fabs(got - expected) <= 1e-5 * (1 + fabs(expected)), "%s: y[%d,%d] is %g, not %g", when, r, c, got,
                  expected);
        }
    CHECK(rows == MOST_ROWS || isnan(m->y[rows * N]), "%s: y is written past its end", when);
}

static void list_pointers(struct memory *m, void *pointers[SLOT_COUNT]) {
    void *all[SLOT_COUNT] = {m->x, m->w, m->bias, &m->alpha, m->y};
    memcpy(pointers, all, sizeof all);
}

static weftStatus_t run_flat(desc plan, struct memory *m) {
    void *pointers[SLOT_COUNT];
    uint64_t addresses[SLOT_COUNT];
    list_pointers(m, pointers);
    for (int i = 0; i < SLOT_COUNT; i++)
        addresses[i] = (uint64_t)(uintptr_t)pointers[i];
    return weftExecute(plan, SLOT_COUNT, addresses, m->workspace, NULL);
}

static desc mlp_pack(struct memory *m) {
    void *pointers[SLOT_COUNT];
    list_pointers(m, pointers);
    desc pack = open_pack(SLOT_COUNT, SLOTS, pointers);
    MUST(set_workspace(pack, m->workspace));
    return pack;
}

/* ---- Engines ----------------------------------------------------------------------------------------------------- */

static void test_engines(void) {
    desc graph = mlp_graph("mlp");
    int64_t count = get_number(graph, WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
    CHECK(count >= 1, "%lld engines", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        desc engine = make(WEFT_BACKEND_ENGINE_DESCRIPTOR);
        MUST(set_held(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, graph));
        MUST(set_number(engine, WEFT_ATTR_ENGINE_GLOBAL_INDEX, i));
        MUST(weftBackendFinalize(engine));
        char *name = get_text(engine, WEFT_ATTR_ENGINE_NAME_EXT, NULL);
        CHECK(i < count - 1 || !strcmp(name, "cpu.reference"), "the last engine is %s", name);
        free(name), drop(engine);
    }
    for (int64_t wrong = -1; wrong <= count; wrong += count + 1) {
        desc engine = make(WEFT_BACKEND_ENGINE_DESCRIPTOR);
        MUST(set_held(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, graph));
        REFUSED(
            weftBackendFinalize(engine), WEFT_STATUS_BAD_PARAM,
            "engine: attribute global_index (%d) is required and was not set. Set it: 0 .. engine_global_count - 1.",
            WEFT_ATTR_ENGINE_GLOBAL_INDEX);
        MUST(set_number(engine, WEFT_ATTR_ENGINE_GLOBAL_INDEX, wrong));
        REFUSED(weftBackendFinalize(engine), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                "engine: global_index is %lld; the engines are 0..%lld. Use one of these.", (long long)wrong,
                (long long)count - 1);
        drop(engine);
    }
    drop(graph);
}

static desc knob_choice(int32_t type, int64_t value) {
    desc choice = make(WEFT_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    MUST(set_enum(choice, WEFT_ATTR_KNOB_CHOICE_KNOB_TYPE, WEFT_TYPE_KNOB_TYPE, type));
    MUST(set_number(choice, WEFT_ATTR_KNOB_CHOICE_KNOB_VALUE, value));
    return finalized(choice);
}

static weftStatus_t finalize_with_knob(desc graph, int64_t engine, int32_t type, int64_t value, desc *config) {
    desc choice = knob_choice(type, value);
    *config = open_config(graph, engine);
    MUST(set_held(*config, WEFT_ATTR_ENGINECFG_KNOB_CHOICES, choice));
    drop(choice);
    return weftBackendFinalize(*config);
}

/* Each knob of an engine accepts its minimum and maximum, and no values beyond them; the plan's tag and its saved form
   preserve them. */
static void check_knob(desc graph, int64_t index, const char *engine, desc info) {
    int32_t type;
    desc config;
    MUST(weftBackendGetAttribute(info, WEFT_ATTR_KNOB_INFO_TYPE, WEFT_TYPE_KNOB_TYPE, 1, NULL, &type));
    long long least = get_number(info, WEFT_ATTR_KNOB_INFO_MINIMUM_VALUE),
              most = get_number(info, WEFT_ATTR_KNOB_INFO_MAXIMUM_VALUE),
              stride = get_number(info, WEFT_ATTR_KNOB_INFO_STRIDE);
    CHECK(least <= most && stride >= 1, "%s: knob %d: %lld..%lld in steps of %lld", engine, type, least, most, stride);
    for (int is_above = 0; is_above < 2; is_above++) {
        long long wrong = is_above ? most + 1 : least - 1;
        REFUSED(finalize_with_knob(graph, index, type, wrong, &config), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                "engine config: knob %d is %lld; %s accepts %lld..%lld in steps of %lld. Use one of these values.",
                type, wrong, engine, least, most, stride);
        drop(config);
    }
    if (type == WEFT_KNOB_TYPE_WORKSPACE)
        least = most; /* a limit: some graphs need more than the minimum */
    MUST(finalize_with_knob(graph, index, type, least, &config));
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR), loaded = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    MUST(weftBackendFinalize(plan));
    int64_t bytes;
    char *blob = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes);
    MUST(weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
    MUST(weftBackendFinalize(loaded));
    char *tag = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_TAG_EXT, NULL), expected[64];
    char *loaded_tag = get_text(loaded, WEFT_ATTR_EXECUTION_PLAN_TAG_EXT, NULL);
    snprintf(expected, sizeof expected, "eng%lld_k%d=%lld", (long long)index, type, least);
    CHECK(!strcmp(tag, expected) && !strcmp(loaded_tag, expected), "tags '%s' and '%s'", tag, loaded_tag);
    free(blob), free(tag), free(loaded_tag);
    drop(plan), drop(loaded), drop(config);
}

static void test_knobs(void) {
    desc graph = mlp_graph(NULL), config;
    for (int64_t i = first_cpu_index(graph); i <= reference_index(graph); i++) {
        desc engine = make(WEFT_BACKEND_ENGINE_DESCRIPTOR), infos[64];
        MUST(set_held(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, graph));
        MUST(set_number(engine, WEFT_ATTR_ENGINE_GLOBAL_INDEX, i));
        MUST(weftBackendFinalize(engine));
        char *name = get_text(engine, WEFT_ATTR_ENGINE_NAME_EXT, NULL);
        int64_t count;
        MUST(
            weftBackendGetAttribute(engine, WEFT_ATTR_ENGINE_KNOB_INFO, WEFT_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL));
        for (int64_t k = 0; k < count; k++)
            infos[k] = make(WEFT_BACKEND_KNOB_INFO_DESCRIPTOR);
        if (count)
            MUST(weftBackendGetAttribute(engine, WEFT_ATTR_ENGINE_KNOB_INFO, WEFT_TYPE_BACKEND_DESCRIPTOR, count,
                                         &count, infos));
        drop(engine);
        for (int64_t k = 0; k < count; k++) {
            check_knob(graph, i, name, infos[k]);
            drop(infos[k]);
        }
        REFUSED(finalize_with_knob(graph, i, WEFT_KNOB_TYPE_USE_TEX, 1, &config), WEFT_STATUS_BAD_PARAM,
                "engine config: %s has no knob %d. See its attribute knob_info.", name, WEFT_KNOB_TYPE_USE_TEX);
        free(name), drop(config);
    }
    drop(graph);
}

static void test_heuristics(void) {
    desc graph = mlp_graph(NULL);
    desc h = make(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR);
    REFUSED(set_enum(h, WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, 4), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "heuristics: attribute mode is 4, expected 0..3. Set a value in that range.");
    drop(h);
    for (int32_t mode = WEFT_HEUR_MODE_INSTANT; mode <= WEFT_HEUR_MODE_A; mode++) {
        h = make(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR);
        MUST(set_enum(h, WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, mode));
        MUST(set_held(h, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
        MUST(weftBackendFinalize(h));
        int64_t count, all = mode == WEFT_HEUR_MODE_FALLBACK ? 1 : cpu_engine_count(graph);
        MUST(weftBackendGetAttribute(h, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL));
        CHECK(count == all, "mode %d: %lld results, not %lld", mode, (long long)count, (long long)all);
        desc results[64];
        for (int64_t i = 0; i < count; i++)
            results[i] = make(WEFT_BACKEND_ENGINECFG_DESCRIPTOR);
        MUST(weftBackendGetAttribute(h, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, count, &count,
                                     results));
        double before = 0, seconds;
        for (int64_t i = 0; i < count; i++) {
            MUST(weftBackendGetAttribute(results[i], WEFT_ATTR_ENGINECFG_PREDICTED_SECONDS_EXT, WEFT_TYPE_DOUBLE, 1,
                                         NULL, &seconds));
            CHECK(seconds > 0 && seconds >= before, "mode %d: result %lld takes %g s after %g s", mode, (long long)i,
                  seconds, before);
            before = seconds;
            drop(results[i]);
        }
        drop(h);
    }
    drop(graph);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

static void test_workspace_limit(void) {
    desc graph = mlp_graph(NULL), config = finalized(open_config(graph, reference_index(graph)));
    long long needed = get_number(config, WEFT_ATTR_ENGINECFG_WORKSPACE_SIZE);
    CHECK(needed > 0 && needed % 64 == 0, "workspace of %lld bytes", needed);
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    REFUSED(weftBackendFinalize(plan), WEFT_STATUS_BAD_PARAM,
            "execution plan: none of engine_config, operation_graph and json is set. Set one of them.");
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    REFUSED(
        set_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, -1), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
        "execution plan: attribute workspace_limit is -1, expected 0..9223372036854775807. Set a value in that range.");
    MUST(set_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, needed - 1));
    REFUSED(
        weftBackendFinalize(plan), WEFT_STATUS_NOT_SUPPORTED,
        "execution plan: engine cpu.reference needs %lld bytes of workspace, the limit is %lld. Raise workspace_limit "
        "or choose another engine.",
        needed, needed - 1);
    MUST(set_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, needed));
    int64_t uid = 10;
    MUST(set_numbers(plan, WEFT_ATTR_EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS, 1, &uid));
    REFUSED(weftBackendFinalize(plan), WEFT_STATUS_NOT_SUPPORTED,
            "execution plan: run_only_intermediate_uids is set. Weft plans compute all of their graph.");
    MUST(set_numbers(plan, WEFT_ATTR_EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS, 0, NULL));
    MUST(weftBackendFinalize(plan));
    CHECK(get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) == needed, "the plan needs what its config says");
    drop(graph), drop(config), drop(plan);
}

/* A strict JSON parser: returns the end of a value, or NULL. */
static const char *json_value(const char *at);

static const char *json_space(const char *at) { return at ? at + strspn(at, " \t\r\n") : NULL; }

static const char *json_string(const char *at) {
    if (*at++ != '"')
        return NULL;
    for (; *at != '"'; at++) {
        if ((unsigned char)*at < 0x20)
            return NULL;
        if (*at != '\\')
            continue;
        at++;
        if (*at == 'u' && strspn(at + 1, "0123456789abcdefABCDEF") < 4)
            return NULL;
        if (!*at || !strchr("\"\\/bfnrtu", *at))
            return NULL;
    }
    return at + 1;
}

static const char *json_items(const char *at, char end, bool keys) {
    at = json_space(at + 1);
    if (*at == end)
        return at + 1;
    for (;;) {
        if (keys) {
            at = json_space(json_string(json_space(at)));
            if (!at || *at++ != ':')
                return NULL;
        }
        at = json_space(json_value(json_space(at)));
        if (!at || (*at != ',' && *at != end))
            return NULL;
        if (*at++ == end)
            return at;
        at = json_space(at);
    }
}

static const char *json_value(const char *at) {
    static const char *const words[] = {"true", "false", "null"};
    if (*at == '{' || *at == '[')
        return json_items(at, *at == '{' ? '}' : ']', *at == '{');
    if (*at == '"')
        return json_string(at);
    for (int i = 0; i < 3; i++)
        if (!strncmp(at, words[i], strlen(words[i])))
            return at + strlen(words[i]);
    char *end;
    bool starts = *at == '-' ? at[1] >= '0' && at[1] <= '9' : *at >= '0' && *at <= '9';
    strtod(at, &end);
    return starts ? end : NULL;
}

static bool is_json(const char *text) {
    const char *end = json_space(json_value(json_space(text)));
    return end && !*end;
}

static void test_report(void) {
    static const char *const bad[] = {"",    "{",    "{\"a\":}", "[1,]",   "{\"a\" 1}", "\"\\x\"",
                                      "tru", "{}{}", "[1 2]",    "\"\n\"", "{,}",       "nan"};
    static const char *const good[] = {"{}", "[]", " {\"a\":[1,-2.5e3,\"\\u00ff\\n\",true,null]} "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(!is_json(bad[i]), "the checker takes '%s'", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK(is_json(good[i]), "the checker refuses '%s'", good[i]);

    desc graph = mlp_graph("a \"quoted\\\" name\nof two lines, \xc3\xa4 and \xff"), plan = plan_of(graph);
    char *report = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT, NULL);
    CHECK(is_json(report), "%s", report);
    static const char *const said[] = {"a \\\"quoted\\\\\\\" name\\nof two lines, \xc3\xa4 and \\ufffd",
                                       "\"engine\":\"cpu.reference\"", "\"steps\":[{\"family\":\"cpu.reference\"",
                                       "\"uid\":14", "\"dims\":[4,6]"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        CHECK(strstr(report, said[i]), "the report lacks %s: %s", said[i], report);
    char *slots = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_SLOTS_EXT, NULL);
    CHECK(is_json(slots) && strstr(slots, "\"engine\":\"cpu.reference\",\"device\":{\"kind\":\"cpu\""), "%s", slots);
    free(slots);
    char *kernels = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_KERNELS_EXT, NULL);
    CHECK(strcmp(kernels, "{\"kernels\":[],\"headers\":{}}") == 0, "the CPU shows kernels: %s", kernels);
    free(kernels);
    char few[4] = "---";
    int64_t count;
    MUST(weftBackendGetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_KERNELS_EXT, WEFT_TYPE_CHAR, 2, &count, few));
    CHECK(count == 27 && strcmp(few, "{\"-") == 0, "2 characters of %lld: %s", (long long)count, few);
    char text[1 << 14];
    MUST(weftQuerySupport(graph, NULL, text, sizeof text, NULL));
    CHECK(is_json(text), "%s", text);
    size_t size;
    MUST(weftDescribe(NULL, 0, &size));
    char *all = malloc(size);
    MUST(weftDescribe(all, size, NULL));
    CHECK(is_json(all), "weftDescribe");
    free(all), free(report);
    drop(graph), drop(plan);
}

static void test_slots(void) {
    desc graph = mlp_graph(NULL), plan = plan_of(graph);
    int64_t count, *uids = get_list(plan, WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, WEFT_TYPE_INT64, 8, &count);
    CHECK(count == SLOT_COUNT && !memcmp(uids, SLOTS, sizeof SLOTS),
          "%lld slots: by uid, neither virtual tensors nor constants", (long long)count);
    free(uids);
    drop(graph), drop(plan);
}

static void test_run(void) {
    static struct memory m;
    desc graph = mlp_graph(NULL);
    for (int64_t i = first_cpu_index(graph); i <= reference_index(graph); i++) {
        desc plan = finalized(open_plan(graph, i));
        fill(&m);
        MUST(run_flat(plan, &m));
        check_results(&m, ROWS_X, "flat");
        drop(plan);
    }
    desc plan = plan_of(graph), pack = finalized(mlp_pack(&m));
    weftHandle_t handle = cpu_handle();
    fill(&m);
    MUST(weftBackendExecute(handle, plan, pack));
    check_results(&m, ROWS_X, "pack");
    MUST(weftDestroy(handle));
    drop(graph), drop(plan), drop(pack);
}

/* ---- Execution: misuse ------------------------------------------------------------------------------------------- */

static void test_flat_misuse(void) {
    static struct memory m;
    fill(&m);
    desc graph = mlp_graph("mlp"), plan = plan_of(graph);
    long long needed = get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    uint64_t good[SLOT_COUNT] = {(uintptr_t)m.x, (uintptr_t)m.w, (uintptr_t)m.bias, (uintptr_t)&m.alpha,
                                 (uintptr_t)m.y};
    uint64_t p[SLOT_COUNT];
    static const char count[] =
        "weftExecute: %d pointers for 5 slots. Give one per slot, in the order of attribute slot_unique_ids.";
    REFUSED(weftExecute(plan, 4, good, m.workspace, NULL), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, count, 4);
    REFUSED(weftExecute(plan, 6, good, m.workspace, NULL), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, count, 6);
    REFUSED(weftExecute(plan, -1, good, m.workspace, NULL), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, count, -1);
    REFUSED(weftExecute(plan, 5, NULL, m.workspace, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "weftExecute: pointers is NULL. Give an array of 5 addresses.");
    memcpy(p, good, sizeof p), p[2] = 0;
    REFUSED(weftExecute(plan, 5, p, m.workspace, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "tensor (uid 3): its pointer is NULL. Pass the address of 24 bytes.");
    memcpy(p, good, sizeof p), p[3] = 0;
    REFUSED(weftExecute(plan, 5, p, m.workspace, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "tensor (uid 4): its pointer is NULL. Pass the address of 4 bytes.");
    for (int odd = 1; odd < 4; odd++) {
        memcpy(p, good, sizeof p), p[0] += (uint64_t)odd;
        REFUSED(weftExecute(plan, 5, p, m.workspace, NULL), WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                "tensor (uid 1): pointer %p is not aligned to an element, 4 bytes. Copy the elements to an aligned "
                "address.",
                (void *)((char *)m.x + odd));
    }
    memcpy(p, good, sizeof p), p[4] = p[0] + 64;
    REFUSED(weftExecute(plan, 5, p, m.workspace, NULL), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 5) and tensor (uid 1) overlap in memory. Give the output memory of its own.");
    REFUSED(weftExecute(plan, 5, good, NULL, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "execution plan: the workspace is NULL. Pass %lld bytes, aligned to 64.", needed);
    REFUSED(weftExecute(plan, 5, good, m.workspace + 16, NULL), WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER,
            "execution plan: the workspace at %p is not aligned to 64 bytes. Align it.", (void *)(m.workspace + 16));
    CHECK(isnan(m.y[0]), "refused executions write nothing");

    struct { /* by-value scalars are host memory of any alignment */
        char shift;
        float alpha;
    } __attribute__((packed)) odd = {0, 0.5f};
    memcpy(p, good, sizeof p), p[3] = (uint64_t)((uintptr_t)&odd + 1);
    MUST(weftExecute(plan, 5, p, m.workspace, NULL));
    check_results(&m, ROWS_X, "unaligned scalar");
    memcpy(p, good, sizeof p), p[1] = p[0]; /* inputs may overlap each other */
    MUST(weftExecute(plan, 5, p, m.workspace, NULL));
    drop(graph), drop(plan);
}

static desc one_op_plan(desc op) {
    desc graph = graph_of(1, &op), plan = plan_of(graph);
    drop(graph);
    return plan;
}

/* The CPU accepts memory of any alignment that the tensors allow: here x w, on every engine. */
static void test_alignment(void) {
    _Alignas(64) char memory[3][16 * sizeof(float) + 64], workspace[4096];
    for (int declared = 1; declared <= 16; declared *= 4) {
        desc t[3];
        for (int i = 0; i < 3; i++) {
            t[i] = open_tensor(1 + i, DIMS(4, 4));
            MUST(set_number(t[i], WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, declared));
            MUST(weftBackendFinalize(t[i]));
        }
        desc op = matmul(t[0], t[1], t[2]), graph = graph_of(1, &op);
        int64_t first = first_cpu_index(graph), end = first + cpu_engine_count(graph);
        for (int64_t index = first; index < end; index++) {
            desc plan = finalized(open_plan(graph, index));
            CHECK(get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) <= (int64_t)sizeof workspace, "too small");
            int at = declared < 4 ? declared : 4;
            float from[16], to[16];
            for (int i = 0; i < 16; i++)
                from[i] = (float)i;
            for (int i = 0; i < 2; i++)
                memcpy(memory[i] + at, from, sizeof from);
            uint64_t p[3] = {(uintptr_t)memory[0] + (uint64_t)at, (uintptr_t)memory[1] + (uint64_t)at,
                             (uintptr_t)memory[2] + (uint64_t)at};
            MUST(weftExecute(plan, 3, p, workspace, NULL));
            memcpy(to, memory[2] + at, sizeof to);
            for (int i = 0; i < 16; i++) {
                float sum = 0;
                for (int k = 0; k < 4; k++)
                    sum += from[i / 4 * 4 + k] * from[k * 4 + i % 4];
                CHECK(to[i] == sum, "engine %d, aligned to %d: %g, not %g", (int)index, at, to[i], sum);
            }
            drop(plan);
        }
        drop(t[0]), drop(t[1]), drop(t[2]), drop(graph);
    }
}

static void test_aliasing(void) {
    _Alignas(64) float memory[64] = {1, 2, 3, 4, 5, 6, 7, 8};
    desc x = tensor(1, DIMS(8)), y = tensor(2, DIMS(8)), b = tensor(3, DIMS(1));
    desc plan = one_op_plan(pointwise(WEFT_POINTWISE_MUL, x, b, y));
    uint64_t at = (uintptr_t)memory, far = (uintptr_t)(memory + 32);
    memory[32] = 10;
    MUST(weftExecute(plan, 3, (uint64_t[]){at, at, far}, NULL, NULL));
    CHECK(memory[0] == 10 && memory[7] == 80, "in place: %g .. %g", memory[0], memory[7]);
    REFUSED(
        weftExecute(plan, 3, (uint64_t[]){at, at + 16, far}, NULL, NULL), WEFT_STATUS_BAD_PARAM,
        "output tensor (uid 2) and tensor (uid 1) overlap in memory. Give the output memory of its own, or exactly the "
        "same memory.");
    REFUSED(weftExecute(plan, 3, (uint64_t[]){far, at, at}, NULL, NULL), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 2) and tensor (uid 3) overlap in memory. Give the output memory of its own.");
    MUST(weftExecute(plan, 3, (uint64_t[]){at, at + 32, far}, NULL, NULL)); /* adjacent */
    drop(plan), drop(x), drop(y), drop(b);

    desc a = tensor(1, DIMS(2, 2)), c = tensor(2, DIMS(2, 2));
    plan = one_op_plan(matmul(a, a, c));
    REFUSED(weftExecute(plan, 2, (uint64_t[]){at, at}, NULL, NULL), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 2) and tensor (uid 1) overlap in memory. Give the output memory of its own.");
    memcpy(memory, (float[]){1, 2, 3, 4}, 16);
    MUST(weftExecute(plan, 2, (uint64_t[]){at, far}, NULL, NULL));
    CHECK(memory[32] == 7 && memory[35] == 22, "a squared");
    drop(plan), drop(a), drop(c);

    /* Same dims in another order: element i of x is not stored where element i of y is. */
    x = tensor(1, DIMS(2, 3)), y = open_tensor(2, DIMS(2, 3));
    MUST(set_numbers(y, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){1, 2}));
    MUST(weftBackendFinalize(y));
    plan = one_op_plan(pointwise(WEFT_POINTWISE_NEG, x, NULL, y));
    REFUSED(weftExecute(plan, 2, (uint64_t[]){at, at}, NULL, NULL), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 2) and tensor (uid 1) overlap in memory. Give the output memory of its own.");
    drop(plan), drop(x), drop(y);

    /* y must not alias x, which a later step reads. */
    x = tensor(1, DIMS(4)), y = tensor(2, DIMS(4));
    desc z = tensor(3, DIMS(4)),
         ops[2] = {pointwise(WEFT_POINTWISE_NEG, x, NULL, y), pointwise(WEFT_POINTWISE_ADD, x, y, z)};
    desc graph = graph_of(2, ops);
    plan = plan_of(graph);
    REFUSED(weftExecute(plan, 3, (uint64_t[]){at, at, far}, NULL, NULL), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 2) and tensor (uid 1) overlap in memory. Give the output memory of its own.");
    MUST(weftExecute(plan, 3, (uint64_t[]){at, far, at}, NULL, NULL)); /* z may: it is written last */
    CHECK(memory[0] == 0 && memory[3] == 0, "x - x");
    drop(graph), drop(plan), drop(x), drop(y), drop(z);

    /* Interleaved columns of one matrix do not overlap: exact to the element on either side, in either order. */
    x = open_tensor(1, DIMS(3, 2)), y = open_tensor(2, DIMS(3, 2));
    MUST(set_numbers(x, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){5, 1}));
    MUST(set_numbers(y, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){5, 1}));
    plan = one_op_plan(pointwise(WEFT_POINTWISE_NEG, finalized(x), NULL, finalized(y)));
    for (int64_t shift = -12; shift <= 12; shift++) {
        int64_t apart = (shift + 15) % 5; /* distance in columns from x to y, in a matrix of 5 */
        bool is_fit = shift == 0 || apart == 2 || apart == 3 || shift <= -12 || shift >= 12;
        for (int i = 0; i < 64; i++)
            memory[i] = (float)i;
        weftStatus_t status = weftExecute(plan, 2, (uint64_t[]){at + 80, at + 80 + (uint64_t)(4 * shift)}, NULL, NULL);
        CHECK(status == (is_fit ? WEFT_STATUS_SUCCESS : WEFT_STATUS_BAD_PARAM), "y %d elements behind x: %s",
              (int)shift, last_error());
        for (int i = 0; is_fit && i < 6; i++)
            CHECK(memory[20 + shift + i / 2 * 5 + i % 2] == -(float)(20 + i / 2 * 5 + i % 2), "y %d behind x",
                  (int)shift);
    }
    drop(plan), drop(x), drop(y);

    /* Empty tensors need no memory. */
    x = tensor(1, DIMS(0, 3)), y = tensor(2, DIMS(0, 3));
    plan = one_op_plan(pointwise(WEFT_POINTWISE_NEG, x, NULL, y));
    MUST(weftExecute(plan, 2, (uint64_t[]){0, 0}, NULL, NULL));
    drop(plan), drop(x), drop(y);
}

/* The sum of empty rows is 0, on every engine, and no element of x is read, even if its stride is 0. */
static char warning[512];

static void keep_warning(weftSeverity_t severity, void *unused, const weftDebug_t *debug, const char *message) {
    (void)severity, (void)unused, (void)debug;
    snprintf(warning, sizeof warning, "%s", message);
}

/* A graph of two operations, c = a b and d = -c, whose outputs are both stored. */
static desc two_output_plan(desc a, desc b, desc c, desc d) {
    desc ops[] = {matmul(a, b, c), pointwise(WEFT_POINTWISE_NEG, c, NULL, d)};
    desc graph = graph_of(2, ops);
    desc plan = finalized(open_plan(graph, reference_index(graph)));
    drop(graph);
    return plan;
}

/* An output with an address of its own, as the frontend's own tensors have, makes no difference. */
static void test_warm_up_with_another_output(void) {
    _Alignas(64) float memory[8] = {1, 2, 3, 4}, sums[4] = {5};
    desc a = tensor(1, DIMS(2, 2)), b = tensor(2, DIMS(2, 2)), c = tensor(3, DIMS(2, 2)), d = tensor(4, DIMS(2, 2));
    desc plan = two_output_plan(a, b, c, d);
    const int64_t uids[] = {1, 2, 3, 4};
    desc same = finalized(open_pack(4, uids, (void *[]){memory, memory, memory, sums}));
    desc other = finalized(open_pack(4, uids, (void *[]){memory, memory + 4, memory, sums}));
    weftHandle_t handle = cpu_handle();
    MUST(weftBackendExecute(handle, plan, same));
    CHECK(memory[0] == 1 && sums[0] == 5, "computed: %g, %g", memory[0], sums[0]);
    REFUSED(weftBackendExecute(handle, plan, other), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 3) and tensor (uid 1) overlap in memory. Give the output memory of its own.");
    MUST(weftDestroy(handle));
    drop(same), drop(other), drop(plan), drop(a), drop(b), drop(c), drop(d);
}

/* A variant pack with one address for all tensors computes nothing and says so; any other overlap is refused. */
static void test_warm_up(void) {
    _Alignas(64) float memory[8] = {1, 2, 3, 4};
    desc a = tensor(1, DIMS(2, 2)), b = tensor(2, DIMS(2, 2)), c = tensor(3, DIMS(2, 2));
    desc plan = one_op_plan(matmul(a, b, c));
    const int64_t uids[] = {1, 2, 3};
    desc same = finalized(open_pack(3, uids, (void *[]){memory, memory, memory}));
    desc other = finalized(open_pack(3, uids, (void *[]){memory, memory + 4, memory}));
    weftHandle_t handle = cpu_handle();
    MUST(weftSetCallback(1u << WEFT_SEV_WARNING, NULL, keep_warning));
    MUST(weftBackendExecute(handle, plan, same));
    MUST(weftSetCallback(0, NULL, NULL));
    CHECK(strstr(warning, "all inputs and an output have one address, so nothing is computed"), "'%s'", warning);
    CHECK(memory[0] == 1 && memory[3] == 4, "computed: %g .. %g", memory[0], memory[3]);
    REFUSED(weftBackendExecute(handle, plan, other), WEFT_STATUS_BAD_PARAM,
            "output tensor (uid 3) and tensor (uid 1) overlap in memory. Give the output memory of its own.");
    MUST(weftDestroy(handle));
    drop(same), drop(other), drop(plan), drop(a), drop(b), drop(c);
}

static void test_no_elements(void) {
    desc parameters = make(WEFT_BACKEND_REDUCTION_DESCRIPTOR), op = make(WEFT_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    desc x = open_tensor(1, DIMS(3, 0)), y = tensor(2, DIMS(3, 1));
    MUST(set_numbers(x, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){1, 0}));
    MUST(weftBackendFinalize(x));
    MUST(set_enum(parameters, WEFT_ATTR_REDUCTION_OPERATOR, WEFT_TYPE_REDUCTION_OPERATOR_TYPE, WEFT_REDUCE_TENSOR_ADD));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, WEFT_ATTR_OPERATION_REDUCTION_XDESC, x));
    MUST(set_held(op, WEFT_ATTR_OPERATION_REDUCTION_YDESC, y));
    MUST(set_held(op, WEFT_ATTR_OPERATION_REDUCTION_DESC, parameters));
    MUST(weftBackendFinalize(op));
    desc graph = graph_of(1, &op);
    for (int64_t index = first_cpu_index(graph); index <= reference_index(graph); index++) {
        desc plan = finalized(open_plan(graph, index));
        _Alignas(64) float sums[3] = {1, 2, 3}, workspace[1024];
        char *nothing = malloc(1); /* AddressSanitizer detects reads past its end */
        CHECK(get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) <= (int64_t)sizeof workspace, "too small");
        MUST(weftExecute(plan, 2, (uint64_t[]){(uintptr_t)nothing, (uintptr_t)sums}, workspace, NULL));
        CHECK(sums[0] == 0 && sums[1] == 0 && sums[2] == 0, "%g %g %g", sums[0], sums[1], sums[2]);
        free(nothing), drop(plan);
    }
    drop(graph), drop(x), drop(y), drop(parameters);
}

static void test_packs(void) {
    static struct memory m;
    fill(&m);
    desc graph = mlp_graph(NULL), plan = plan_of(graph), pack = mlp_pack(&m);
    long long needed = get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    weftHandle_t handle = cpu_handle();

    desc empty = make(WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR);
    REFUSED(weftBackendFinalize(empty), WEFT_STATUS_BAD_PARAM,
            "variant pack: attribute unique_ids (%d) is required and was not set. Set it: uids of the tensors, in any "
            "order.",
            WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS);
    drop(empty);
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, 2, (int64_t[]){1, 2}));
    REFUSED(weftBackendFinalize(pack), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
            "variant pack: 2 unique_ids for 5 data_pointers. Set one pointer per uid.");
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, 5, (int64_t[]){1, 2, 3, 1, 5}));
    REFUSED(weftBackendFinalize(pack), WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
            "variant pack: uid 1 occurs twice. Set one pointer per tensor.");
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, 5, (int64_t[]){1, 2, 3, 400, 5}));
    MUST(set_text(pack, WEFT_ATTR_NAME_EXT, "step 7"));
    MUST(weftBackendFinalize(pack));
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM,
            "variant pack 'step 7' has no pointer for tensor (uid 4). Add its uid and address.");
    drop(pack);

    for (int64_t bytes = 0; bytes < needed; bytes = bytes == 0 ? needed - 1 : needed) {
        pack = mlp_pack(&m);
        MUST(set_number(pack, WEFT_ATTR_VARIANT_PACK_WORKSPACE_SIZE_EXT, bytes));
        MUST(weftBackendFinalize(pack));
        REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                "execution plan: the workspace has %lld bytes, the plan needs %lld. Pass a larger one.",
                (long long)bytes, needed);
        drop(pack);
    }
    pack = mlp_pack(&m);
    MUST(set_workspace(pack, NULL));
    MUST(weftBackendFinalize(pack));
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
            "execution plan: the workspace is NULL. Pass %lld bytes, aligned to 64.", needed);
    drop(pack);
    CHECK(isnan(m.y[0]), "refused executions write nothing");

    /* Pointers are accepted in any order, including uids that are not in the plan. */
    void *pointers[7] = {m.y, NULL, &m.alpha, m.bias, m.w, m.x, NULL};
    pack = open_pack(7, (int64_t[]){5, 99, 4, 3, 2, 1, -1}, pointers);
    MUST(set_workspace(pack, m.workspace));
    MUST(set_number(pack, WEFT_ATTR_VARIANT_PACK_WORKSPACE_SIZE_EXT, needed));
    MUST(weftBackendFinalize(pack));
    MUST(weftBackendExecute(handle, plan, pack));
    check_results(&m, ROWS_X, "pack in another order");
    drop(pack), drop(plan), drop(graph);
    MUST(weftDestroy(handle));
}

/* ---- Overridden shapes ------------------------------------------------------------------------------------------- */

static desc override_pack(struct memory *m, int64_t rows, int64_t rows_of_y) {
    desc pack = mlp_pack(m);
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 2, (int64_t[]){UID_Y, UID_X}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 4, (int64_t[]){rows_of_y, N, rows, K}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 4, (int64_t[]){N, 1, K, 1}));
    return pack;
}

/* The same shapes with other strides need another plan, in either order: rows of y contiguous or every second one, and
   rows of x with doubled distance. */
static void check_other_strides(struct memory *m, weftHandle_t handle, desc plan) {
    static const int64_t steps[][2] = {{N, K}, {2 * N, K}, {N, 2 * K}, {2 * N, K}, {N, K}};
    enum { ROWS = 5 };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct memory got = {0};
        int64_t y = steps[i][0], x = steps[i][1];
        desc pack = override_pack(m, ROWS, ROWS);
        MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 4, (int64_t[]){y, 1, x, 1}));
        MUST(weftBackendFinalize(pack));
        fill(m);
        fill(&got);
        for (int64_t r = ROWS; r-- > 0;)
            memmove(m->x + r * x, m->x + r * K, K * sizeof *m->x);
        MUST(weftBackendExecute(handle, plan, pack));
        for (int64_t r = 0; r < ROWS; r++)
            memcpy(got.y + r * N, m->y + r * y, N * sizeof *m->y);
        check_results(&got, ROWS, "other strides");
        drop(pack);
    }
}

/* The plan's workspace limit also applies to its shape overrides. */
static void check_limit_of_overrides(struct memory *m, weftHandle_t handle, desc graph) {
    desc plan = open_plan(graph, reference_index(graph)), few = finalized(override_pack(m, 1, 1)),
         many = finalized(override_pack(m, 40, 40));
    desc other = finalized(open_plan(graph, reference_index(graph)));
    size_t least = 0, most = 0;
    MUST(weftGetExecutionPlanWorkspaceSize(handle, other, few, &least));
    MUST(weftGetExecutionPlanWorkspaceSize(handle, other, many, &most));
    CHECK(least < most, "%zu bytes for a row, %zu for 40", least, most);
    MUST(set_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, (int64_t)most - 1));
    MUST(weftBackendFinalize(plan));
    MUST(weftBackendExecute(handle, plan, few));
    REFUSED(weftBackendExecute(handle, plan, many), WEFT_STATUS_NOT_SUPPORTED,
            "overridden shapes: execution plan: engine cpu.reference needs %zu bytes of workspace, the limit is %zu. "
            "Raise workspace_limit or choose another engine.",
            most, most - 1);
    drop(few), drop(many), drop(plan), drop(other);
}

static void test_overrides(void) {
    static struct memory m;
    desc graph = mlp_graph("mlp"), plan = plan_of(graph);
    weftHandle_t handle = cpu_handle();
    /* More shapes than the plan caches, then the first ones again. */
    for (int64_t i = 0; i < 44; i++) {
        int64_t rows = i % 40 + 1;
        desc pack = finalized(override_pack(&m, rows, rows));
        size_t bytes = 0;
        fill(&m);
        MUST(weftGetExecutionPlanWorkspaceSize(handle, plan, pack, &bytes));
        CHECK(bytes > 0 && bytes <= sizeof m.workspace, "workspace for %lld rows is %zu", (long long)rows, bytes);
        MUST(weftBackendExecute(handle, plan, pack));
        check_results(&m, (int)rows, "overridden");
        drop(pack);
    }
    check_other_strides(&m, handle, plan);
    check_limit_of_overrides(&m, handle, graph);
    desc pack = finalized(mlp_pack(&m));
    fill(&m);
    MUST(weftBackendExecute(handle, plan, pack));
    check_results(&m, ROWS_X, "own shapes after overrides");
    drop(pack);

    fill(&m);
    pack = finalized(override_pack(&m, 5, 4));
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "overridden shapes: pointwise: x with dims [5,6] does not broadcast to [4,6]. Make each of its dims 1 or "
            "equal, of the same rank.");
    drop(pack);
    pack = finalized(override_pack(&m, -5, 4));
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "overridden shapes: tensor (uid 1): dims [-5,8]: dimension 0 is negative. Extents are 0 or more elements.");
    drop(pack);
    pack = override_pack(&m, 5, 5);
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 2, (int64_t[]){UID_Y, 77}));
    MUST(weftBackendFinalize(pack));
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM,
            "variant pack overrides uid 77, which is not in graph 'mlp'. Name a tensor of the graph.");
    drop(pack);
    pack = override_pack(&m, 5, 5);
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 3, (int64_t[]){5, N, 5}));
    REFUSED(
        weftBackendFinalize(pack), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
        "variant pack: override_shapes has 3 numbers, override_strides has 4. Set both for each overridden tensor.");
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 4, (int64_t[]){5, N, 5, K}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 3, (int64_t[]){N, 1, K}));
    REFUSED(
        weftBackendFinalize(pack), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
        "variant pack: override_shapes has 4 numbers, override_strides has 3. Set both for each overridden tensor.");
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 3, (int64_t[]){5, N, 5}));
    MUST(weftBackendFinalize(pack));
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
            "variant pack: override_shapes has 3 numbers, the overridden tensors have 4 dims in all. Give each dim.");
    drop(pack);
    pack = override_pack(&m, 5, 5);
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 2, (int64_t[]){UID_X, UID_X}));
    REFUSED(weftBackendFinalize(pack), WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
            "variant pack: override_unique_ids contains uid 1 twice. List each tensor once.");
    drop(pack);
    CHECK(isnan(m.y[0]), "refused executions write nothing");
    MUST(weftDestroy(handle));
    drop(graph), drop(plan);
}

/* ---- Saved plans ------------------------------------------------------------------------------------------------- */

enum { HEADER_BYTES = 56, VERSION_AT = 12, HASH_AT = 24 };

static desc open_loaded(const void *blob, int64_t bytes) {
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
    return plan;
}

static char *save(desc plan, int64_t *bytes) {
    return get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, bytes);
}

static void fix_hash(char *blob, int64_t bytes) {
    struct sha256 hash;
    sha256_init(&hash);
    sha256_update(&hash, blob + HEADER_BYTES, (size_t)(bytes - HEADER_BYTES));
    sha256_final((uint8_t *)blob + HASH_AT, &hash);
}

static void test_save_and_load(void) {
    static struct memory m, again;
    desc graph = mlp_graph("mlp");
    for (int64_t i = first_cpu_index(graph); i <= reference_index(graph); i++) {
        desc plan = finalized(open_plan(graph, i));
        int64_t bytes, loaded_bytes;
        char *blob = save(plan, &bytes);
        desc loaded = finalized(open_loaded(blob, bytes));
        char *loaded_blob = save(loaded, &loaded_bytes);
        CHECK(bytes == loaded_bytes && !memcmp(blob, loaded_blob, (size_t)bytes), "saved again, the same bytes");
        int64_t count,
            *uids = get_list(loaded, WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, WEFT_TYPE_INT64, 8, &count);
        CHECK(count == SLOT_COUNT && !memcmp(uids, SLOTS, sizeof SLOTS), "the same slots");
        fill(&m), fill(&again);
        MUST(run_flat(plan, &m));
        drop(plan);
        MUST(run_flat(loaded, &again));
        CHECK(!memcmp(m.y, again.y, sizeof m.y), "bitwise equal results");
        check_results(&again, ROWS_X, "loaded");

        desc config = make(WEFT_BACKEND_ENGINECFG_DESCRIPTOR), engine = make(WEFT_BACKEND_ENGINE_DESCRIPTOR);
        desc inner = make(WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
        MUST(weftBackendGetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, WEFT_TYPE_BACKEND_DESCRIPTOR, 1,
                                     NULL, &config));
        MUST(weftBackendGetAttribute(config, WEFT_ATTR_ENGINECFG_ENGINE, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, NULL,
                                     &engine));
        MUST(weftBackendGetAttribute(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, NULL,
                                     &inner));
        CHECK(get_number(inner, WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) == reference_index(graph) + 1,
              "a loaded graph knows how many engines there are");
        desc pack = finalized(override_pack(&m, 7, 7));
        weftHandle_t handle = cpu_handle();
        fill(&m);
        MUST(weftBackendExecute(handle, loaded, pack));
        check_results(&m, 7, "loaded and overridden");
        MUST(weftDestroy(handle));
        free(blob), free(loaded_blob), free(uids);
        drop(loaded), drop(config), drop(engine), drop(inner), drop(pack);
    }
    drop(graph);
}

/* Runs a plan with two slots of eight floats and its loaded copy: the second slot must have the same content. */
static void check_twin(desc plan, const char *what) {
    _Alignas(64) char workspace[256];
    _Alignas(16) float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[2][8] = {{0}};
    int64_t bytes;
    char *blob = save(plan, &bytes);
    desc loaded = finalized(open_loaded(blob, bytes));
    MUST(weftExecute(plan, 2, (uint64_t[]){(uintptr_t)in, (uintptr_t)out[0]}, workspace, NULL));
    MUST(weftExecute(loaded, 2, (uint64_t[]){(uintptr_t)in, (uintptr_t)out[1]}, workspace, NULL));
    CHECK(!memcmp(out[0], out[1], sizeof out[0]), "%s: %g %g %g, loaded %g %g %g", what, out[0][0], out[0][1],
          out[0][2], out[1][0], out[1][1], out[1][2]);
    free(blob);
    drop(plan), drop(loaded);
}

/* A loaded plan has the layouts that were inferred for the saved one, regardless of the order of inference. */
static void test_load_keeps_inferred_layouts(void) {
    desc x = open_tensor(1, DIMS(2, 4)), y = tensor(2, DIMS(2, 4)), z = open_tensor(3, DIMS(2, 4));
    MUST(set_numbers(x, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){1, 2}));
    MUST(weftBackendFinalize(x));
    MUST(set_numbers(z, WEFT_ATTR_TENSOR_STRIDES, 2, (int64_t[]){4, 1}));
    MUST(weftBackendFinalize(z));
    desc first = pointwise(WEFT_POINTWISE_NEG, x, NULL, y); /* y is column-major, like x */
    check_twin(one_op_plan(pointwise(WEFT_POINTWISE_ABS, y, NULL, z)), "an input laid out by an operation elsewhere");
    drop(first), drop(y);

    y = tensor(2, DIMS(2, 4));
    desc second = pointwise(WEFT_POINTWISE_ABS, y, NULL, z); /* the reader of y first: y is row-major */
    check_twin(one_op_plan(pointwise(WEFT_POINTWISE_NEG, x, NULL, y)), "an output laid out by its reader");
    drop(second), drop(x), drop(y), drop(z);
}

/* If y has no dims, it follows x, in a loaded plan, too. */
static void test_load_keeps_outputs_open(void) {
    desc x = tensor(1, DIMS(2, 4)), y = tensor(2, UNSET), plan = one_op_plan(pointwise(WEFT_POINTWISE_NEG, x, NULL, y));
    int64_t bytes;
    char *blob = save(plan, &bytes);
    desc plans[2] = {plan, finalized(open_loaded(blob, bytes))};
    weftHandle_t handle = cpu_handle();
    for (int i = 0; i < 2; i++) {
        _Alignas(16) float in[3] = {1, 2, 3}, out[4] = {0, 0, 0, 9};
        desc pack = open_pack(2, (int64_t[]){1, 2}, (void *[]){in, out});
        MUST(set_number(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 1));
        MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 2, (int64_t[]){3, 1}));
        MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 2, (int64_t[]){1, 1}));
        MUST(weftBackendFinalize(pack));
        MUST(weftBackendExecute(handle, plans[i], pack));
        CHECK(out[0] == -1 && out[2] == -3 && out[3] == 9, "plan %d: %g %g %g %g", i, out[0], out[1], out[2], out[3]);
        drop(pack), drop(plans[i]);
    }
    MUST(weftDestroy(handle));
    free(blob);
    drop(x), drop(y);
}

/* A descriptor that several operations reference is saved only once, at its first use. */
static void test_shared_parameters_are_saved_once(void) {
    desc t[3] = {tensor(1, DIMS(8)), virtual_tensor(2), tensor(3, DIMS(8))}, ops[2];
    desc parameters = make(WEFT_BACKEND_POINTWISE_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, WEFT_POINTWISE_EXP));
    MUST(weftBackendFinalize(parameters));
    for (int i = 0; i < 2; i++) {
        ops[i] = make(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
        MUST(set_held(ops[i], WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, parameters));
        MUST(set_held(ops[i], WEFT_ATTR_OPERATION_POINTWISE_XDESC, t[i]));
        MUST(set_held(ops[i], WEFT_ATTR_OPERATION_POINTWISE_YDESC, t[i + 1]));
        MUST(weftBackendFinalize(ops[i]));
    }
    desc graph = graph_of(2, ops);
    check_twin(plan_of(graph), "parameters that two operations hold");
    drop(graph), drop(t[0]), drop(t[1]), drop(t[2]), drop(parameters);
}

static void test_constants_survive(void) {
    desc x = tensor(1, DIMS(8)), y = tensor(2, DIMS(8)), c = constant(3, 0.1f); /* 0.1f is out of scope by now */
    int64_t bytes;
    desc plan = one_op_plan(pointwise(WEFT_POINTWISE_MUL, x, c, y));
    drop(x), drop(y), drop(c);
    char *blob = save(plan, &bytes);
    desc loaded = finalized(open_loaded(blob, bytes));
    memset(blob, 0, (size_t)bytes);
    free(blob);
    _Alignas(16) float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
    MUST(weftExecute(loaded, 2, (uint64_t[]){(uintptr_t)in, (uintptr_t)out}, NULL, NULL));
    for (int i = 0; i < 8; i++)
        CHECK(out[i] == (float)((double)in[i] * (double)0.1f), "y[%d] is %.9g", i, out[i]);
    drop(loaded);
    check_twin(plan, "constant");
}

/* A plan that failed to load accepts another blob. */
static void test_load_is_repaired(void) {
    desc graph = mlp_graph(NULL), x = tensor(1, DIMS(4)), y = tensor(2, DIMS(4));
    desc plan = plan_of(graph), other = one_op_plan(pointwise(WEFT_POINTWISE_NEG, x, NULL, y));
    int64_t bytes, other_bytes, count;
    char *blob = save(plan, &bytes), *other_blob = save(other, &other_bytes);
    desc loaded = open_loaded(blob, bytes);
    MUST(set_number(loaded, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, 0));
    CHECK(weftBackendFinalize(loaded) == WEFT_STATUS_NOT_SUPPORTED, "over the limit: %s", last_error());
    MUST(weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, other_bytes,
                                 other_blob));
    MUST(weftBackendFinalize(loaded));
    MUST(weftBackendGetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, WEFT_TYPE_INT64, 0, &count,
                                 NULL));
    CHECK(count == 2, "the second blob's plan has 2 slots, got %lld", (long long)count);
    free(blob), free(other_blob);
    drop(graph), drop(x), drop(y), drop(plan), drop(other), drop(loaded);
}

static void test_damaged_blobs(void) {
    desc graph = mlp_graph(NULL), plan = plan_of(graph);
    int64_t bytes;
    char *blob = save(plan, &bytes), *copy = malloc((size_t)bytes + 1);
    for (int64_t cut = 0; cut < bytes; cut++) {
        desc loaded = open_loaded(blob, cut);
        if (cut == 0)
            REFUSED(weftBackendFinalize(loaded), WEFT_STATUS_BAD_PARAM,
                    "execution plan: none of engine_config, operation_graph and json is set. Set one of them.");
        else
            REFUSED(weftBackendFinalize(loaded), WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT,
                    "saved plan is damaged: %s. Save the plan again.",
                    cut < HEADER_BYTES ? "it does not start with the expected magic bytes"
                                       : "its length differs from the recorded one");
        drop(loaded);
    }
    /* The body cut short in the same way, but with a header that matches the new length. */
    for (int64_t cut = HEADER_BYTES; cut < bytes; cut++) {
        int64_t length = cut - HEADER_BYTES;
        memcpy(copy, blob, (size_t)bytes);
        memcpy(copy + 16, &length, sizeof length);
        fix_hash(copy, cut);
        desc loaded = open_loaded(copy, cut);
        weftStatus_t status = weftBackendFinalize(loaded);
        CHECK(status == WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT, "%lld of %lld bytes: %s: %s", (long long)cut,
              (long long)bytes, weftGetErrorString(status), last_error());
        drop(loaded);
    }
    for (int64_t at = 0; at < bytes; at++) {
        memcpy(copy, blob, (size_t)bytes);
        copy[at] ^= 0x10;
        desc loaded = open_loaded(copy, bytes);
        weftStatus_t status = weftBackendFinalize(loaded);
        CHECK(status == (at >= 8 && at < 16 ? WEFT_STATUS_SERIALIZATION_VERSION_MISMATCH
                                            : WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT),
              "byte %lld altered: %s: %s", (long long)at, weftGetErrorString(status), last_error());
        drop(loaded);
    }
    memcpy(copy, blob, (size_t)bytes);
    copy[HEADER_BYTES + 8] ^= 0x10; /* the first character of the engine's name */
    fix_hash(copy, bytes);
    desc loaded = open_loaded(copy, bytes);
    REFUSED(weftBackendFinalize(loaded), WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT,
            "saved plan is damaged: it names an engine that this library does not have. Save the plan again.");
    drop(loaded);
    memcpy(copy, blob, (size_t)bytes);
    copy[bytes] = 0;
    loaded = open_loaded(copy, bytes + 1);
    REFUSED(weftBackendFinalize(loaded), WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT,
            "saved plan is damaged: its length differs from the recorded one. Save the plan again.");
    drop(loaded);
    uint32_t newer = (uint32_t)weftGetVersion() + 100;
    memcpy(copy + VERSION_AT, &newer, sizeof newer);
    loaded = open_loaded(copy, bytes);
    REFUSED(
        weftBackendFinalize(loaded), WEFT_STATUS_SERIALIZATION_VERSION_MISMATCH,
        "saved plan has format 2 of version %u, this library reads format 2 of version %zu. Save it again with this "
        "library.",
        newer, weftGetVersion());
    drop(loaded);
    free(blob), free(copy);
    drop(graph), drop(plan);
}

/* A blob that sets an address on an operation. Such attributes are only valid for the bytes of a constant tensor. */
static void test_blob_with_address(void) {
    desc graph = mlp_graph(NULL), plan = plan_of(graph);
    int64_t bytes;
    char *blob = save(plan, &bytes);
    struct byte_writer w;
    byte_writer_init(&w);
    byte_put_raw(&w, blob, HEADER_BYTES);
    byte_put_block(&w, "cpu.reference", 13);
    byte_put_i64(&w, 0);
    byte_put_i64(&w, 1);
    byte_put_u32(&w, WEFT_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    byte_put_u32(&w, 1);
    byte_put_u32(&w, WEFT_ATTR_OPERATION_REDUCTION_INIT_VALUES);
    byte_put_u32(&w, WEFT_TYPE_VOID_PTR);
    byte_put_i64(&w, 1);
    byte_put_raw(&w, "sixteen bytes...", 16);
    int64_t length = (int64_t)w.length - HEADER_BYTES;
    memcpy(w.data + 16, &length, sizeof length);
    fix_hash((char *)w.data, (int64_t)w.length);
    desc loaded = open_loaded(w.data, (int64_t)w.length);
    REFUSED(weftBackendFinalize(loaded), WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT,
            "saved plan is damaged: it sets an attribute that the descriptor does not have. Save the plan again.");
    byte_writer_free(&w);
    free(blob);
    drop(loaded), drop(graph), drop(plan);
}

/* Writes a descriptor with the dims of a tensor or, if count is 6, with a reference to the dims of the scores of
   earlier descriptors. */
static void put_shape(struct byte_writer *w, weftBackendDescriptorType_t kind, const int64_t *numbers, int64_t count) {
    enum { SCORES = 1 << 30 };
    bool is_tensor = kind == WEFT_BACKEND_TENSOR_DESCRIPTOR;
    byte_put_u32(w, kind);
    byte_put_u32(w, is_tensor ? 2 : 1);
    if (is_tensor) {
        byte_put_u32(w, WEFT_ATTR_TENSOR_UNIQUE_ID);
        byte_put_u32(w, WEFT_TYPE_INT64);
        byte_put_i64(w, 1);
        byte_put_i64(w, count);
    }
    byte_put_u32(w, WEFT_ATTR_TENSOR_DIMENSIONS);
    byte_put_u32(w, WEFT_TYPE_INT64 | (count == 6 ? SCORES : 0));
    byte_put_i64(w, count);
    byte_put_raw(w, numbers, (size_t)count * sizeof *numbers);
}

/* Blobs whose tensors take the dims of scores from descriptors that have no scores. */
static void test_blob_with_scores(void) {
    static const struct {
        weftBackendDescriptorType_t kind;
        int64_t before[4], rank, scores[6];
        const char *what;
    } blobs[] = {
        {WEFT_BACKEND_REDUCTION_DESCRIPTOR,
         {1, 2, 3, 4},
         4,
         {0, 0, 0, -1, -1, 0},
         "something other than a tensor has the shape of scores"},
        {WEFT_BACKEND_TENSOR_DESCRIPTOR,
         {1, 2, 3, 4},
         4,
         {0, 0, -1, -1, -1, 0},
         "scores do not refer to an earlier tensor"},
        {WEFT_BACKEND_TENSOR_DESCRIPTOR,
         {1, 2, 3, 4},
         4,
         {0, 1, 0, -1, -1, 0},
         "scores do not refer to an earlier tensor"},
        {WEFT_BACKEND_TENSOR_DESCRIPTOR,
         {1, 2, 3},
         3,
         {0, 0, 0, -1, -1, 0},
         "scores refer to a tensor that does not have four dims"},
        {WEFT_BACKEND_TENSOR_DESCRIPTOR,
         {1, 1, INT64_C(1) << 33, 1},
         4,
         {0, 0, 0, -1, -1, 0},
         "the scores exceed the address space"},
    };
    desc graph = mlp_graph(NULL), plan = plan_of(graph);
    int64_t bytes;
    char *blob = save(plan, &bytes);
    for (size_t i = 0; i < sizeof blobs / sizeof *blobs; i++) {
        struct byte_writer w;
        byte_writer_init(&w);
        byte_put_raw(&w, blob, HEADER_BYTES);
        byte_put_block(&w, "cpu.reference", 13);
        byte_put_i64(&w, 0);
        byte_put_i64(&w, 2);
        put_shape(&w, WEFT_BACKEND_TENSOR_DESCRIPTOR, blobs[i].before, blobs[i].rank);
        put_shape(&w, blobs[i].kind, blobs[i].scores, 6);
        int64_t length = (int64_t)w.length - HEADER_BYTES;
        memcpy(w.data + 16, &length, sizeof length);
        fix_hash((char *)w.data, (int64_t)w.length);
        desc loaded = open_loaded(w.data, (int64_t)w.length);
        REFUSED(weftBackendFinalize(loaded), WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT,
                "saved plan is damaged: %s. Save the plan again.", blobs[i].what);
        byte_writer_free(&w);
        drop(loaded);
    }
    free(blob);
    drop(graph), drop(plan);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* Runs a plan of any graph with memory of exactly the required size, unless that is large. */
static void run_any(desc loaded) {
    const struct plan *plan = (const struct plan *)loaded;
    int64_t most = 1 << 20, bytes = plan->workspace_bytes;
    bool is_small = bytes <= most && graph_flops(plan->draft.graph) < 1e7;
    for (int i = 0; i < plan->slot_count; i++) {
        is_small = is_small && plan->slots[i].bytes <= most && plan->slots[i].alignment <= 4096;
        bytes += is_small ? plan->slots[i].bytes : 0;
    }
    if (!is_small || bytes > most)
        return;
    void **memory = calloc((size_t)plan->slot_count + 1, sizeof *memory), *workspace = NULL;
    for (int i = 0; i < plan->slot_count; i++) {
        size_t alignment = plan->slots[i].alignment > 16 ? (size_t)plan->slots[i].alignment : 16;
        CHECK(posix_memalign(&memory[i], alignment, (size_t)plan->slots[i].bytes) == 0, "no memory");
        memset(memory[i], 0, (size_t)plan->slots[i].bytes);
    }
    CHECK(posix_memalign(&workspace, 256, (size_t)plan->workspace_bytes) == 0, "no memory");
    weftStatus_t status = weftExecute(loaded, plan->slot_count, (const uint64_t *)memory, workspace, NULL);
    CHECK(status == WEFT_STATUS_SUCCESS, "a plan that loads runs: %s", last_error());
    for (int i = 0; i < plan->slot_count; i++)
        free(memory[i]);
    free(memory), free(workspace);
}

/* ---- Packed attention: a plan whose memory contains the offsets of its operands  */

enum { BATCH = 3, HEADS = 2, ROWS_Q = 5, PAGE = 4, PAGES = 7, PAGES_EACH = 3, DEPTH = 8 };
enum {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_LENGTHS_Q,
    UID_LENGTHS_KV,
    UID_OFFSETS_Q,
    UID_OFFSETS_O,
    UID_TABLE,
    UID_STARTS
};

static desc integers(int64_t uid, struct extents dims) {
    desc t = open_tensor(uid, dims);
    MUST(set_enum(t, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_INT32));
    return t;
}

/* Queries and results are packed tokens. Keys and values are paged, and the page table is packed, too. */
static desc packed_attention(void) {
    desc lengths_q = finalized(integers(UID_LENGTHS_Q, DIMS(BATCH, 1, 1, 1)));
    desc lengths_kv = finalized(integers(UID_LENGTHS_KV, DIMS(BATCH, 1, 1, 1)));
    desc offsets_q = finalized(integers(UID_OFFSETS_Q, DIMS(BATCH + 1, 1, 1, 1)));
    desc offsets_o = finalized(integers(UID_OFFSETS_O, DIMS(BATCH + 1, 1, 1, 1)));
    desc starts = finalized(integers(UID_STARTS, DIMS(BATCH + 1, 1, 1, 1)));
    const int64_t tokens[] = {ROWS_Q * HEADS * DEPTH, DEPTH, HEADS * DEPTH, 1};
    desc q = open_tensor(UID_Q, DIMS(BATCH, HEADS, ROWS_Q, DEPTH));
    desc o = open_tensor(UID_O, DIMS(BATCH, HEADS, ROWS_Q, DEPTH));
    desc table = integers(UID_TABLE, DIMS(BATCH, 1, PAGES_EACH, 1));
    MUST(set_numbers(q, WEFT_ATTR_TENSOR_STRIDES, 4, tokens));
    MUST(set_numbers(o, WEFT_ATTR_TENSOR_STRIDES, 4, tokens));
    MUST(set_held(q, WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets_q));
    MUST(set_held(o, WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets_o));
    MUST(set_number(q, WEFT_ATTR_TENSOR_RAGGED_OFFSET_MULTIPLIER, HEADS * DEPTH));
    MUST(set_held(table, WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC, starts));
    desc k = tensor(UID_K, DIMS(PAGES, HEADS, PAGE, DEPTH)), v = tensor(UID_V, DIMS(PAGES, HEADS, PAGE, DEPTH));
    finalized(q), finalized(o), finalized(table);
    desc op = make(WEFT_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_QDESC, q));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_KDESC, k));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_VDESC, v));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_ODESC, o));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, lengths_q));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, lengths_kv));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_KDESC, table));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_VDESC, table));
    finalized(op);
    desc graph = graph_of(1, &op), all[] = {lengths_q, lengths_kv, offsets_q, offsets_o, starts, q, o, table, k, v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        drop(all[i]);
    return graph;
}

/* Memory of packed attention; packed tensors have exactly the elements of the sequences. The offsets are valid until a
   round changes one or two of them. */
struct packed_memory {
    int32_t lengths_q[BATCH], lengths_kv[BATCH], offsets_q[BATCH + 1], offsets_o[BATCH + 1], starts[BATCH + 1];
};
static const struct packed_memory legal = {
    {5, 0, 3}, {12, 1, 7}, {0, 5, 5, 8}, {0, 5 * 16, 5 * 16, 8 * 16}, {0, 3, 4, 6}};
enum { TOKENS = 8, TABLE_ENTRIES = 6, NUMBERS = sizeof(struct packed_memory) / sizeof(int32_t) };

/* Copies into a separate allocation, so that AddressSanitizer detects reads past the end. */
static void *copy_of(const void *from, size_t bytes) {
    void *copy = malloc(bytes);
    CHECK(copy, "no memory");
    memcpy(copy, from, bytes);
    return copy;
}

static weftStatus_t run_packed(desc plan, const struct packed_memory *m, const int32_t *table, float *o) {
    float numbers[PAGES * HEADS * PAGE * DEPTH];
    for (int i = 0; i < PAGES * HEADS * PAGE * DEPTH; i++)
        numbers[i] = (float)(i % 7) - 3;
    void *memory[] = {copy_of(numbers, TOKENS * HEADS * DEPTH * sizeof *numbers),
                      copy_of(numbers, sizeof numbers),
                      copy_of(numbers, sizeof numbers),
                      o,
                      copy_of(m->lengths_q, sizeof m->lengths_q),
                      copy_of(m->lengths_kv, sizeof m->lengths_kv),
                      copy_of(m->offsets_q, sizeof m->offsets_q),
                      copy_of(m->offsets_o, sizeof m->offsets_o),
                      copy_of(table, TABLE_ENTRIES * sizeof *table),
                      copy_of(m->starts, sizeof m->starts)};
    enum { COUNT = sizeof memory / sizeof *memory };
    uint64_t addresses[COUNT];
    void *workspace = NULL;
    int64_t bytes = get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    CHECK(!posix_memalign(&workspace, 256, (size_t)bytes + 1), "no memory");
    for (int i = 0; i < COUNT; i++)
        addresses[i] = (uint64_t)(uintptr_t)memory[i];
    weftStatus_t status = weftExecute(plan, COUNT, addresses, workspace, NULL);
    for (int i = 0; i < COUNT; i++)
        if (i != UID_O - 1)
            free(memory[i]);
    free(workspace);
    return status;
}

/* The last offset is the caller's statement of how much memory exists, so it must not exceed the actual size. */
static void keep_end(int32_t *end, int32_t is, int32_t most) {
    if (*end > is && *end <= most)
        *end = is;
}

/* With any offsets, the plan stays within its memory, or refuses them and writes nothing. */
static void change_numbers(desc plan, int rounds, uint64_t seed) {
    static const int32_t wild[] = {-1, 0, 1, 2, 3, 7, 8, 9, 13, 128, 129, 1 << 20, INT32_MAX, INT32_MIN};
    int64_t refused = 0;
    uint64_t state = seed;
    for (int round = 0; round <= rounds; round++) {
        struct packed_memory m = legal;
        int32_t table[TABLE_ENTRIES] = {6, 0, 3, 2, 5, 1};
        for (uint64_t changes = round ? 1 + next_random(&state) % 2 : 0; changes > 0; changes--) {
            uint64_t at = next_random(&state) % (NUMBERS + TABLE_ENTRIES), value = next_random(&state);
            int32_t number = wild[value % (sizeof wild / sizeof *wild)];
            if (at < NUMBERS)
                ((int32_t *)&m)[at] = number;
            else
                table[at - NUMBERS] = number;
        }
        keep_end(&m.offsets_q[BATCH], legal.offsets_q[BATCH], BATCH * ROWS_Q);
        keep_end(&m.offsets_o[BATCH], legal.offsets_o[BATCH], BATCH * ROWS_Q * HEADS * DEPTH);
        keep_end(&m.starts[BATCH], legal.starts[BATCH], BATCH * PAGES_EACH);
        float o[TOKENS * HEADS * DEPTH], *memory;
        for (int i = 0; i < TOKENS * HEADS * DEPTH; i++)
            o[i] = NAN;
        memory = copy_of(o, sizeof o);
        weftStatus_t status = run_packed(plan, &m, table, memory);
        CHECK(!status || (status == WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND && strstr(last_error(), "out of range")),
              "seed %llu, round %d: %s", (unsigned long long)seed, round, last_error());
        CHECK(round || !status, "legal numbers are refused: %s", last_error());
        for (int i = 0; status && i < TOKENS * HEADS * DEPTH; i++)
            CHECK(isnan(memory[i]), "seed %llu, round %d: a refused run has written", (unsigned long long)seed, round);
        refused += status != WEFT_STATUS_SUCCESS;
        free(memory);
    }
    CHECK(refused > rounds / 4 && refused < rounds, "%lld of %d rounds are refused", (long long)refused, rounds);
}

/* Changes bytes and fixes the hash, so that the parser receives them; a plan that loads nevertheless must run. */
static void mutate(desc plan, int rounds, uint64_t seed) {
    int64_t bytes, survived = 0;
    char *blob = save(plan, &bytes), *copy = malloc((size_t)bytes);
    uint64_t state = seed;
    for (int round = 0; round < rounds; round++) {
        memcpy(copy, blob, (size_t)bytes);
        for (uint64_t flips = 1 + next_random(&state) % 3; flips > 0; flips--) {
            uint64_t at = HEADER_BYTES + next_random(&state) % (uint64_t)(bytes - HEADER_BYTES);
            uint64_t random = next_random(&state);
            copy[at] = (char)(random % 4 ? (uint64_t)copy[at] ^ UINT64_C(1) << random / 4 % 8 : random / 4);
        }
        fix_hash(copy, bytes);
        desc loaded = open_loaded(copy, bytes);
        weftStatus_t status = weftBackendFinalize(loaded);
        CHECK(status == WEFT_STATUS_SUCCESS || *last_error(), "seed %llu, round %d: %s without a word",
              (unsigned long long)seed, round, weftGetErrorString(status));
        if (!status)
            run_any(loaded);
        survived += !status;
        drop(loaded);
    }
    printf("seed %llu: %lld of %d changed plans load and run\n", (unsigned long long)seed, (long long)survived, rounds);
    CHECK(survived > 0 && survived < rounds, "%lld of %d blobs load", (long long)survived, rounds);
    free(blob), free(copy);
}

static void test_mutations(void) {
    desc graph = mlp_graph("fuzz"), reference = plan_of(graph),
         fast = finalized(open_plan(graph, first_cpu_index(graph)));
    mutate(reference, 10000, 88172645463325252u);
    mutate(fast, 10000, 1234567);
    drop(graph), drop(reference), drop(fast);
    graph = packed_attention(), reference = plan_of(graph);
    fast = finalized(open_plan(graph, first_cpu_index(graph)));
    mutate(reference, 5000, 362436069);
    mutate(fast, 5000, 521288629);
    change_numbers(reference, 20000, 88675123);
    change_numbers(fast, 20000, 5783321);
    drop(graph), drop(reference), drop(fast);
}

/* ---- Device properties ------------------------------------------------------------------------------------------- */

static weftStatus_t finalize_device(const char *json, desc *device) {
    *device = make(WEFT_BACKEND_DEVICEPROP_DESCRIPTOR);
    MUST(set_text(*device, WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, json));
    return weftBackendFinalize(*device);
}

static void test_device_properties(void) {
    desc here = finalized(make(WEFT_BACKEND_DEVICEPROP_DESCRIPTOR)), there;
    char *json = get_text(here, WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, NULL);
    CHECK(is_json(json), "%s", json);
    MUST(finalize_device(json, &there));
    char *again = get_text(there, WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, NULL);
    CHECK(!strcmp(json, again), "'%s' became '%s'", json, again);
    CHECK(get_number(here, WEFT_ATTR_DEVICEPROP_THREADS_EXT) == get_number(there, WEFT_ATTR_DEVICEPROP_THREADS_EXT),
          "threads");
    free(json), free(again), drop(there), drop(here);

    MUST(finalize_device("{\"kind\":\"cpu\",\"ordinal\":0,\"threads\":96,\"name\":\"a big \\\"one\\\"\"}", &there));
    char *name = get_text(there, WEFT_ATTR_DEVICEPROP_NAME_EXT, NULL);
    CHECK(!strcmp(name, "a big \"one\"") && get_number(there, WEFT_ATTR_DEVICEPROP_THREADS_EXT) == 96 &&
              get_number(there, WEFT_ATTR_DEVICEPROP_KIND_EXT) == WEFT_DEVICE_CPU,
          "'%s'", name);
    free(name);
    desc graph = mlp_graph(NULL), plan = open_plan(graph, reference_index(graph));
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_DEVICEPROP, there));
    MUST(weftBackendFinalize(plan));
    char *report = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT, NULL);
    CHECK(strstr(report, "\"threads\":96") && is_json(report), "a plan for a device elsewhere: %s", report);
    free(report);
    drop(plan), drop(graph), drop(there);

    static const char unknown[] = "device properties: json does not describe a CPU or a GPU: '%s'. Use the text of "
                                  "attribute json of another device.";
    static const char range[] =
        "device properties: json has ordinal %s and %s threads; expected at least 0, and 1..4096. "
        "Correct the text.";
    static const char *const no_devices[] = {"x", "{}", "[1]", "{\"kind\":\"tpu\"}", "\"kind\":\"cpu\""};
    for (size_t i = 0; i < sizeof no_devices / sizeof *no_devices; i++) {
        REFUSED(finalize_device(no_devices[i], &there), WEFT_STATUS_BAD_PARAM, unknown, no_devices[i]);
        drop(there);
    }
    static const char *const numbers[][2] = {{"0", "0"},  {"0", "-1"},         {"0", "4097"},
                                             {"-1", "4"}, {"0", "4294967297"}, {"4294967296", "1"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"kind\":\"cpu\",\"ordinal\":%s,\"threads\":%s}", numbers[i][0], numbers[i][1]);
        REFUSED(finalize_device(text, &there), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, range, numbers[i][0], numbers[i][1]);
        drop(there);
    }
    desc gpu = make(WEFT_BACKEND_DEVICEPROP_DESCRIPTOR);
    MUST(set_enum(gpu, WEFT_ATTR_DEVICEPROP_DEVICE_ID, WEFT_TYPE_INT32, 1));
    REFUSED(weftBackendFinalize(gpu), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "no device cpu:1: a machine has one CPU device, cpu:0, and one cuda device per GPU. Use cpu:0 or "
            "cuda:0.");
    REFUSED(set_number(gpu, WEFT_ATTR_DEVICEPROP_KIND_EXT, 2), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "device properties: attribute kind is 2, expected 0..1. Set a value in that range.");
    drop(gpu);
}

/* A plan for another device than the handle's is refused at execution. */
static void test_wrong_device(void) {
    static struct memory m;
    desc there, graph = mlp_graph(NULL), plan = open_plan(graph, reference_index(graph)),
                pack = finalized(mlp_pack(&m));
    weftHandle_t handle = cpu_handle();
    MUST(finalize_device("{\"kind\":\"cpu\",\"ordinal\":3,\"threads\":2}", &there));
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_DEVICEPROP, there));
    MUST(weftBackendFinalize(plan));
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM,
            "weftBackendExecute: the plan is for cpu:3, the handle for cpu:0. Use a handle of the plan's device.");
    MUST(weftDestroy(handle));
    drop(there), drop(graph), drop(plan), drop(pack);
}

static void test_kernel_cache(void) {
    desc cache = finalized(make(WEFT_BACKEND_KERNEL_CACHE_DESCRIPTOR)),
         again = make(WEFT_BACKEND_KERNEL_CACHE_DESCRIPTOR);
    char *json = get_text(cache, WEFT_ATTR_KERNEL_CACHE_JSON_REPRESENTATION, NULL);
    CHECK(!strcmp(json, "{}"), "'%s'", json);
    MUST(set_text(again, WEFT_ATTR_KERNEL_CACHE_JSON_REPRESENTATION, json));
    MUST(weftBackendFinalize(again));
    free(json);
    desc graph = mlp_graph(NULL), plan = open_plan(graph, reference_index(graph));
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_KERNEL_CACHE, again));
    MUST(weftBackendFinalize(plan));
    drop(cache), drop(again), drop(graph), drop(plan);
}

/* The header guarantees that a descriptor may outlive its handle. */
static void test_handle_destroyed_first(void) {
    weftHandle_t first = cpu_handle(), second;
    desc x = tensor(1, DIMS(2)), y = tensor(2, DIMS(2)), op = pointwise(WEFT_POINTWISE_NEG, x, NULL, y);
    desc graph = open_graph(1, &op);
    MUST(weftBackendSetAttribute(graph, WEFT_ATTR_OPERATIONGRAPH_HANDLE, WEFT_TYPE_HANDLE, 1, &first));
    MUST(weftBackendFinalize(graph));
    MUST(weftDestroy(first));
    second = cpu_handle();
    desc plan = open_plan(graph, reference_index(graph));
    MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &second));
    MUST(weftBackendFinalize(plan));
    MUST(weftDestroy(second));

    _Alignas(16) float in[3] = {1, 2, 3}, out[3] = {0};
    desc pack = open_pack(2, (int64_t[]){1, 2}, (void *[]){in, out});
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 2, (int64_t[]){1, 2}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 2, (int64_t[]){3, 3}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 2, (int64_t[]){1, 1}));
    MUST(weftBackendFinalize(pack));
    first = cpu_handle();
    MUST(weftBackendExecute(first, plan, pack));
    CHECK(out[0] == -1 && out[1] == -2 && out[2] == -3, "got %g %g %g", out[0], out[1], out[2]);
    MUST(weftDestroy(first));
    drop(x), drop(y), drop(op), drop(graph), drop(plan), drop(pack);
}

/* Parameters that are set on the operation or keep their defaults, and a plan that is built directly from its graph. */
static void test_short_forms(void) {
    desc x = tensor(1, DIMS(2)), y = tensor(2, DIMS(2)), op, graph, plan, none = NULL;
    int32_t mode = WEFT_POINTWISE_NEG;
    MUST(weftBackendBuildDescriptor(WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 3,
                                    (weftAttribute_t[]){
                                        {WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, &mode},
                                        {WEFT_ATTR_OPERATION_POINTWISE_XDESC, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &x},
                                        {WEFT_ATTR_OPERATION_POINTWISE_YDESC, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &y},
                                    },
                                    &op));
    int32_t read = 0;
    MUST(weftBackendGetAttribute(op, WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, NULL, &read));
    CHECK(read == WEFT_POINTWISE_NEG, "mode is %d", read);
    MUST(weftBackendBuildDescriptor(
        WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 1,
        (weftAttribute_t[]){{WEFT_ATTR_OPERATIONGRAPH_OPS, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &op}}, &graph));
    MUST(weftBackendBuildDescriptor(
        WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 1,
        (weftAttribute_t[]){{WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &graph}},
        &plan));
    _Alignas(16) float in[2] = {1, -2}, out[2] = {0};
    MUST(weftExecute(plan, 2, (uint64_t[]){(uint64_t)in, (uint64_t)out}, NULL, NULL));
    CHECK(out[0] == -1 && out[1] == 2, "got %g %g", out[0], out[1]);

    REFUSED(weftBackendBuildDescriptor(
                WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 1,
                (weftAttribute_t[]){{WEFT_ATTR_OPERATION_POINTWISE_XDESC, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &x}}, &none),
            WEFT_STATUS_BAD_PARAM,
            "pointwise: pointwise parameters: attribute mode (0) is required and was not set. Set it: the function: "
            "weftPointwiseMode_t.");
    REFUSED(
        weftBackendBuildDescriptor(WEFT_BACKEND_TENSOR_DESCRIPTOR, 1, NULL, &none), WEFT_STATUS_BAD_PARAM_NULL_POINTER,
        "weftBackendBuildDescriptor: descriptor or attributes is NULL, or count is 1. Give an address to receive the "
        "descriptor, and count attributes.");
    CHECK(none == NULL, "a failed build wrote its result");
    drop(x), drop(y), drop(op), drop(graph), drop(plan);
}

/* ---- Attention with a nested softmax ----------------------------------------------------------------------------- */

enum { SCORE_ROWS = 2 * 2 * 3, KEYS = 5, WIDTH = 4 };

/* Tensors of an attention, by uid. Weights and scores are virtual, [2, 2, 3, 5]. */
enum { ATTENTION_Q = 1, ATTENTION_K, ATTENTION_V, ATTENTION_O, ATTENTION_SINK, ATTENTION_STATS, ATTENTION_SCORES };

struct attention_tensors {
    desc q, k, v, o, sink, stats, scores, weights;
};

static desc virtual_scores(int64_t uid, int64_t keys) {
    desc tensor = open_tensor(uid, DIMS(2, 2, 3, keys));
    MUST(set_flag(tensor, WEFT_ATTR_TENSOR_IS_VIRTUAL, true));
    return finalized(tensor);
}

static struct attention_tensors attention_tensors(void) {
    return (struct attention_tensors){.q = tensor(ATTENTION_Q, DIMS(2, 2, 3, WIDTH)),
                                      .k = tensor(ATTENTION_K, DIMS(2, 2, KEYS, WIDTH)),
                                      .v = tensor(ATTENTION_V, DIMS(2, 2, KEYS, WIDTH)),
                                      .o = tensor(ATTENTION_O, DIMS(2, 2, 3, WIDTH)),
                                      .sink = tensor(ATTENTION_SINK, DIMS(1, 2, 1, 1)),
                                      .stats = tensor(ATTENTION_STATS, DIMS(2, 2, 3, 1)),
                                      .scores = virtual_scores(ATTENTION_SCORES, KEYS),
                                      .weights = virtual_scores(ATTENTION_SCORES + 1, KEYS)};
}

static void drop_tensors(struct attention_tensors *t) {
    desc all[] = {t->q, t->k, t->v, t->o, t->sink, t->stats, t->scores, t->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        drop(all[i]);
}

static desc open_attention(const struct attention_tensors *t) {
    desc op = make(WEFT_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_QDESC, t->q));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_KDESC, t->k));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_VDESC, t->v));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_ODESC, t->o));
    MUST(set_text(op, WEFT_ATTR_NAME_EXT, "a"));
    return op;
}

static desc open_softmax(desc x, desc y, desc sink, desc stats) {
    desc softmax = make(WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR);
    MUST(set_held(softmax, WEFT_ATTR_OPERATION_SOFTMAX_XDESC, x));
    MUST(set_held(softmax, WEFT_ATTR_OPERATION_SOFTMAX_YDESC, y));
    if (sink)
        MUST(set_held(softmax, WEFT_ATTR_OPERATION_SOFTMAX_SINK_DESC, sink));
    if (stats)
        MUST(set_held(softmax, WEFT_ATTR_OPERATION_SOFTMAX_STATS_DESC, stats));
    return softmax;
}

/* Runs one attention with a sink and statistics, given by a nested softmax or by its own attributes. */
static void run_attention(bool is_nested, float o[SCORE_ROWS * WIDTH], float stats[SCORE_ROWS]) {
    struct attention_tensors t = attention_tensors();
    desc op = open_attention(&t);
    if (is_nested) {
        desc softmax = finalized(open_softmax(t.scores, t.weights, t.sink, t.stats));
        MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC, softmax));
        drop(softmax);
    } else {
        MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_SINK_DESC_EXT, t.sink));
        MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_STATSDESC, t.stats));
    }
    finalized(op);
    desc graph = graph_of(1, &op), plan = plan_of(graph);
    float numbers[2 * 2 * KEYS * WIDTH];
    for (int i = 0; i < 2 * 2 * KEYS * WIDTH; i++)
        numbers[i] = (float)(i % 7) * 0.25f - 0.5f;
    uint64_t addresses[ATTENTION_STATS];
    float *const memory[] = {numbers, numbers, numbers, o, numbers, stats};
    for (int i = 0; i < ATTENTION_STATS; i++)
        addresses[i] = (uint64_t)(uintptr_t)memory[i];
    void *workspace = NULL;
    int64_t bytes = get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    CHECK(!posix_memalign(&workspace, 256, (size_t)bytes + 1), "no memory");
    MUST(weftExecute(plan, ATTENTION_STATS, addresses, workspace, NULL));
    free(workspace);
    drop(plan), drop(graph);
    drop_tensors(&t);
}

static void refuse_softmax(const struct attention_tensors *t, desc softmax, weftStatus_t status, const char *message) {
    desc op = open_attention(t);
    finalized(softmax);
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_STATSDESC, t->stats));
    MUST(set_held(op, WEFT_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC, softmax));
    REFUSED(weftBackendFinalize(op), status, "sdpa_fwd 'a': %s", message);
    drop(softmax), drop(op);
}

static void test_nested_softmax(void) {
    float o[2][SCORE_ROWS * WIDTH], stats[2][SCORE_ROWS];
    for (int i = 0; i < 2; i++)
        run_attention(i, o[i], stats[i]);
    CHECK(!memcmp(o[0], o[1], sizeof *o) && !memcmp(stats[0], stats[1], sizeof *stats), "results differ");

    struct attention_tensors t = attention_tensors();
    desc narrow = virtual_scores(20, KEYS - 1), narrow_y = virtual_scores(21, KEYS - 1);
    desc stored = tensor(22, DIMS(2, 2, 3, KEYS)), other = tensor(23, DIMS(2, 2, 3, 1));
    refuse_softmax(&t, open_softmax(narrow, narrow_y, NULL, NULL), WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                   "x of the nested softmax has dims [2,2,3,4], expected [2,2,3,5]. Give it the dims of the scores.");
    refuse_softmax(&t, open_softmax(t.scores, stored, NULL, NULL), WEFT_STATUS_NOT_SUPPORTED,
                   "y of the nested softmax is in memory, but attention stores neither scores nor weights. Make it "
                   "virtual.");
    refuse_softmax(&t, open_softmax(t.scores, t.weights, NULL, other), WEFT_STATUS_BAD_PARAM,
                   "stats is set, and the nested softmax has another one. Set one of them.");
    desc along_rows = open_softmax(t.scores, t.weights, NULL, NULL);
    MUST(set_number(along_rows, WEFT_ATTR_OPERATION_SOFTMAX_AXIS_EXT, 2));
    refuse_softmax(&t, along_rows, WEFT_STATUS_NOT_SUPPORTED,
                   "the nested softmax has axis 2, but attention normalizes the last dimension. Leave it unset.");
    desc log2 = open_softmax(t.scores, t.weights, NULL, t.stats);
    MUST(set_flag(log2, WEFT_ATTR_OPERATION_SOFTMAX_STATS_LOG2, true));
    refuse_softmax(&t, log2, WEFT_STATUS_NOT_SUPPORTED,
                   "the nested softmax has stats_log2, which attention does not support. Leave it unset.");
    drop(narrow), drop(narrow_y), drop(stored), drop(other);
    drop_tensors(&t);
}

int main(void) {
    RUN(test_short_forms());
    RUN(test_nested_softmax());
    RUN(test_handle_destroyed_first());
    RUN(test_engines());
    RUN(test_knobs());
    RUN(test_heuristics());
    RUN(test_workspace_limit());
    RUN(test_report());
    RUN(test_slots());
    RUN(test_run());
    RUN(test_flat_misuse());
    RUN(test_alignment());
    RUN(test_aliasing());
    RUN(test_warm_up());
    RUN(test_warm_up_with_another_output());
    RUN(test_no_elements());
    RUN(test_packs());
    RUN(test_overrides());
    RUN(test_save_and_load());
    RUN(test_load_keeps_inferred_layouts());
    RUN(test_load_keeps_outputs_open());
    RUN(test_shared_parameters_are_saved_once());
    RUN(test_constants_survive());
    RUN(test_load_is_repaired());
    RUN(test_damaged_blobs());
    RUN(test_blob_with_address());
    RUN(test_blob_with_scores());
    RUN(test_mutations());
    RUN(test_device_properties());
    RUN(test_wrong_device());
    RUN(test_kernel_cache());
    return harness_end();
}
