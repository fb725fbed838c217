/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA attention family without a GPU: which arithmetic, tiles and kernels it chooses, that its memory stays linear,
   what it declines and in which words, and that every kernel it prints compiles for all generations of chips with no
   spills. WEFT_TEST_NVRTC names more folders to look for NVRTC in; without a copy the last is not observed, and said so. */
#include "engines/cuda/attention.h"
#include "engines/cuda/families.h"
#include "graph/graph.h"
#include "harness.h"
#include "runtime/device.h"
#include "runtime/nvrtc.h"

#define BF16 WEFT_DATA_BFLOAT16
#define F16 WEFT_DATA_HALF
#define F32 WEFT_DATA_FLOAT
#define F64 WEFT_DATA_DOUBLE
#define E4M3 WEFT_DATA_FP8_E4M3
#define BOOL WEFT_DATA_BYTE_BOOLEAN
#define BIT WEFT_DATA_BOOLEAN

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

struct attention_case {
    const char *name;
    weftDataType_t type, out, bias_type; /* of q, k, v and dO; of results */
    int64_t batch, heads, shared_heads, value_heads, queries, keys, depth, value_depth;
    int64_t bias[4]; /* 0: none */
    bool is_causal, is_padded, has_alibi, has_sink, is_odd;
    float dropout;
    const char *forward, *backward; /* on sm_90: what the details begin with */
    int forward_kernels, backward_kernels;
};

static const struct attention_case cases[] = {
    {"bf16 64", BF16, BF16, 0, 4, 16, 16, 16, 2048, 2048, 64, 64, .forward = "bf16 on tensor cores, 128 x 64 tiles",
     .backward = "bf16 on tensor cores, 64 x 64 tiles", .forward_kernels = 1, .backward_kernels = 3},
    {"bf16 128 causal, grouped, padded", BF16, BF16, 0, 2, 32, 8, 8, 4096, 4096, 128, 128, .is_causal = true,
     .is_padded = true, .forward = "bf16 on tensor cores, 128 x 32 tiles",
     .backward = "bf16 on tensor cores, 64 x 32 tiles", .forward_kernels = 1, .backward_kernels = 3},
    {"f16 128 with everything", F16, F32, F32, 2, 12, 6, 4, 1000, 1001, 120, 128, .bias = {1, 12, 1000, 1001},
     .is_causal = true, .is_padded = true, .has_alibi = true, .has_sink = true, .dropout = 0.1f,
     .forward = "f16 on tensor cores, 64 x 32 tiles", .backward = "f16 on tensor cores, 64 x 32 tiles",
     .forward_kernels = 2, .backward_kernels = 6},
    {"bf16 192 and 128, masked", BF16, BF16, BOOL, 1, 16, 16, 16, 2048, 2048, 192, 128, .bias = {1, 1, 1, 2048},
     .forward = "bf16 on tensor cores, 64 x 16 tiles", .backward = "bf16 on tensor cores, 64 x 32 tiles",
     .forward_kernels = 1, .backward_kernels = 4},
    {"decode", BF16, BF16, 0, 4, 32, 8, 8, 1, 32768, 128, 128, .is_padded = true,
     .forward = "bf16 on tensor cores, 64 x 64 tiles, 2 in flight, 9 splits", .backward = "bf16 on tensor cores",
     .forward_kernels = 2, .backward_kernels = 3},
    {"fp8 64, odd strides", E4M3, BF16, 0, 2, 8, 8, 8, 513, 515, 64, 64, .is_causal = true, .is_odd = true,
     .has_alibi = true,
     .forward = "f16 on tensor cores", .backward = "bf16 on tensor cores", .forward_kernels = 2, .backward_kernels = 3},
    {"bf16 256", BF16, BF16, 0, 1, 16, 16, 16, 2048, 2048, 256, 256, .is_causal = true,
     .forward = "bf16 on tensor cores, 64 x 32 tiles", .backward = "bf16 on tensor cores, 64 x 32 tiles",
     .forward_kernels = 1, .backward_kernels = 4},
    {"float", F32, F32, F32, 2, 8, 4, 4, 512, 512, 64, 64, .bias = {1, 8, 512, 512}, .has_sink = true,
     .forward = "float multiply-adds", .backward = "float multiply-adds", .forward_kernels = 2, .backward_kernels = 5},
    {"double, one key head", F64, F64, F64, 1, 4, 1, 4, 65, 130, 17, 20, .bias = {1, 1, 1, 1}, .is_causal = true,
     .has_alibi = true, .dropout = 0.5f, .forward = "double multiply-adds", .backward = "double multiply-adds",
     .forward_kernels = 3, .backward_kernels = 5},
    {"bf16, results in double", BF16, F64, 0, 2, 4, 2, 2, 100, 130, 64, 64, .forward = "double multiply-adds",
     .backward = "double multiply-adds", .forward_kernels = 2, .backward_kernels = 4},
    {"bf16, masked by bits", BF16, BF16, BIT, 2, 4, 4, 4, 100, 130, 64, 64, .bias = {2, 1, 100, 130},
     .dropout = 0.5f, .forward = "bf16 on tensor cores", .backward = "bf16 on tensor cores", .forward_kernels = 3,
     .backward_kernels = 3},
    {"no keys", F32, F32, 0, 2, 2, 2, 2, 70, 0, 16, 16, .forward = "float", .backward = "float", .forward_kernels = 1,
     .backward_kernels = 2},
    {"no queries", F32, F32, 0, 2, 2, 2, 2, 0, 70, 16, 16, .forward = "float", .backward = "float",
     .forward_kernels = 0, .backward_kernels = 1},
};

struct tensors {
    int64_t next_uid;
    bool is_odd;
};

static desc tensor4(struct tensors *t, int64_t b, int64_t h, int64_t s, int64_t d, weftDataType_t type) {
    desc made = open_tensor(t->next_uid++, DIMS(b, h, s, d));
    MUST(set_enum(made, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, type));
    if (t->is_odd)
        MUST(set_numbers(made, WEFT_ATTR_TENSOR_STRIDES, 4, (int64_t[]){h * s * (d + 1) + 3, s * (d + 1), d + 1, 1}));
    return finalized(made);
}

static void hold(desc op, weftBackendAttributeName_t name, desc held) {
    MUST(set_held(op, name, held));
    drop(held);
}

static desc forward_of(const struct attention_case *c) {
    struct tensors t = {1, c->is_odd};
    desc op = make(WEFT_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    weftDataType_t statistics = c->type == F64 ? F64 : F32;
    hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_QDESC, tensor4(&t, c->batch, c->heads, c->queries, c->depth, c->type));
    hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_KDESC, tensor4(&t, c->batch, c->shared_heads, c->keys, c->depth, c->type));
    hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_VDESC,
         tensor4(&t, c->batch, c->value_heads, c->keys, c->value_depth, c->type));
    hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_ODESC,
         tensor4(&t, c->batch, c->heads, c->queries, c->value_depth, c->out));
    hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_STATSDESC, tensor4(&t, c->batch, c->heads, c->queries, 1, statistics));
    MUST(set_number(op, WEFT_ATTR_OPERATION_SDPA_FWD_RIGHT_BOUND_EXT, c->is_causal ? 0 : ATTENTION_UNBOUNDED));
    MUST(set_flag(op, WEFT_ATTR_OPERATION_SDPA_FWD_ALIBI_EXT, c->has_alibi));
    if (c->bias[0])
        hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_BIAS_DESC_EXT,
             tensor4(&t, c->bias[0], c->bias[1], c->bias[2], c->bias[3], c->bias_type));
    if (c->is_padded) {
        hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, tensor4(&t, c->batch, 1, 1, 1, WEFT_DATA_INT32));
        hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, tensor4(&t, c->batch, 1, 1, 1, WEFT_DATA_INT64));
    }
    if (c->has_sink)
        hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_SINK_DESC_EXT, tensor4(&t, 1, c->heads, 1, 1, statistics));
    if (c->dropout > 0) {
        MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_PROBABILITY, WEFT_TYPE_FLOAT, 1,
                                     &c->dropout));
        hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_SEED_DESC, tensor4(&t, 1, 1, 1, 1, WEFT_DATA_INT64));
        hold(op, WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_RNG_DUMP_DESC,
             tensor4(&t, c->batch, c->heads, c->queries, c->keys, F32));
    }
    return op;
}

static desc backward_of(const struct attention_case *c) {
    struct tensors t = {1, c->is_odd};
    desc op = make(WEFT_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR);
    weftDataType_t statistics = c->type == F64 ? F64 : F32;
    int64_t b = c->batch, h = c->heads;
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_QDESC, tensor4(&t, b, h, c->queries, c->depth, c->type));
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_KDESC, tensor4(&t, b, c->shared_heads, c->keys, c->depth, c->type));
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_VDESC, tensor4(&t, b, c->value_heads, c->keys, c->value_depth, c->type));
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_ODESC, tensor4(&t, b, h, c->queries, c->value_depth, c->type));
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_DODDESC, tensor4(&t, b, h, c->queries, c->value_depth, c->type));
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_STATSDESC, tensor4(&t, b, h, c->queries, 1, statistics));
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_DQDESC, tensor4(&t, b, h, c->queries, c->depth, c->out));
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_DKDESC, tensor4(&t, b, c->shared_heads, c->keys, c->depth, c->out));
    hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_DVDESC, tensor4(&t, b, c->value_heads, c->keys, c->value_depth, c->out));
    MUST(set_number(op, WEFT_ATTR_OPERATION_SDPA_BWD_RIGHT_BOUND_EXT, c->is_causal ? 0 : ATTENTION_UNBOUNDED));
    MUST(set_flag(op, WEFT_ATTR_OPERATION_SDPA_BWD_ALIBI_EXT, c->has_alibi));
    for (int i = 0; c->bias[0] && i < (c->bias_type == BOOL || c->bias_type == BIT ? 1 : 2); i++)
        hold(op, i ? WEFT_ATTR_OPERATION_SDPA_BWD_DBIAS_DESC : WEFT_ATTR_OPERATION_SDPA_BWD_BIAS_DESC_EXT,
             tensor4(&t, c->bias[0], c->bias[1], c->bias[2], c->bias[3], c->bias_type));
    if (c->is_padded) {
        hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC, tensor4(&t, b, 1, 1, 1, WEFT_DATA_INT32));
        hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC, tensor4(&t, b, 1, 1, 1, WEFT_DATA_INT64));
    }
    for (int i = 0; c->has_sink && i < 2; i++)
        hold(op, i ? WEFT_ATTR_OPERATION_SDPA_BWD_DSINK_DESC : WEFT_ATTR_OPERATION_SDPA_BWD_SINK_DESC,
             tensor4(&t, 1, h, 1, 1, statistics));
    if (c->dropout > 0) {
        MUST(weftBackendSetAttribute(op, WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_PROBABILITY, WEFT_TYPE_FLOAT, 1,
                                     &c->dropout));
        hold(op, WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_SEED_DESC, tensor4(&t, 1, 1, 1, 1, WEFT_DATA_INT64));
    }
    return op;
}

/* ---- Building and compiling -------------------------------------------------------------------------------------- */

struct built {
    desc graph;
    int node;
    struct step step;
    struct arena arena;
};

static weftStatus_t build(struct built *built, desc op, const struct device *device) {
    struct knob_choices none = {0};
    double seconds = -1;
    *built = (struct built){0};
    MUST(weftBackendFinalize(op));
    built->graph = graph_of(1, &op);
    built->step.family = &cuda_attention;
    built->step.region = (struct region){(const struct graph *)built->graph, 1, &built->node};
    TRY(cuda_attention.accepts(&built->step.region, device, &seconds));
    CHECK(seconds > 0 && seconds < 1, "%g seconds", seconds);
    return cuda_attention.build(&built->step, device, &none, &built->arena);
}

static void release(struct built *built) {
    arena_free(&built->arena);
    drop(built->graph);
}

static void check_launches(const char *name, const struct built *built, const struct device *device) {
    const struct cuda_step *state = built->step.state;
    for (int i = 0; i < state->count; i++) {
        const struct cuda_kernel *kernel = &state->kernels[i];
        CHECK(kernel->grid[0] >= 1 && kernel->grid[1] == 1 && kernel->grid[2] == 1, "%s: grid of kernel %d", name, i);
        CHECK((int64_t)kernel->shared_bytes <= device->cuda.shared_per_block, "%s: %u shared bytes", name,
              kernel->shared_bytes);
        CHECK(kernel->block % 32 == 0 && kernel->block <= 1024, "%s: %u threads", name, kernel->block);
    }
}

static void compile(const char *name, const struct built *built, const struct device *device) {
    static const char *const options[] = {"-std=c++17", "--ptxas-options=-v"};
    const struct cuda_step *state = built->step.state;
    struct nvrtc_choice choice;
    char arch[16];
    device_arch(arch, device);
    if (nvrtc_choose(&choice, arch)) {
        printf("not observed: %s for %s: %s\n", name, arch, status_text());
        status_clear();
        return;
    }
    for (int i = 0; i < state->count; i++) {
        struct compiled compiled;
        struct program program = {
            .name = "attention.cu", .text = state->kernels[i].program, .option_count = 2, .options = options};
        program.headers = kernel_files(&program.header_count);
        weftStatus_t status = nvrtc_compile(&compiled, &choice, &program);
        CHECK(status == WEFT_STATUS_SUCCESS, "%s for %s: %s", name, arch, status_text());
        bool spills = false;
        for (const char *at = compiled.log; at && (at = strstr(at, "bytes stack frame, ")) != NULL; at++)
            spills = spills || strncmp(at, "bytes stack frame, 0 bytes spill", 32) != 0;
        CHECK(!spills, "%s for %s, %s spills:\n%s", name, arch, state->kernels[i].entry, compiled.log);
        const char *used = compiled.log ? strstr(compiled.log, "Used ") : NULL;
        if (getenv("WEFT_TEST_VERBOSE"))
            printf("%-34s %-8s %-20s %.18s | grid %u x %u | %s\n", name, arch, state->kernels[i].entry,
                   used ? used : "", state->kernels[i].grid[0], state->kernels[i].block, built->step.detail);
        compiled_free(&compiled);
        status_clear();
    }
}

static void check_case(const struct attention_case *c, bool is_forward, const struct device *device) {
    char name[96];
    struct built built;
    snprintf(name, sizeof name, "%s, %s", c->name, is_forward ? "forward" : "backward");
    weftStatus_t status = build(&built, is_forward ? forward_of(c) : backward_of(c), device);
    CHECK(status == WEFT_STATUS_SUCCESS, "%s for %d.%d: %s", name, device->cuda.major, device->cuda.minor,
          status_text());
    if (!status) {
        const struct cuda_step *state = built.step.state;
        const char *detail = is_forward ? c->forward : c->backward;
        int kernels = is_forward ? c->forward_kernels : c->backward_kernels;
        if (device->cuda.major == 9) {
            CHECK(strncmp(built.step.detail, detail, strlen(detail)) == 0, "%s: %s", name, built.step.detail);
            CHECK(state->count == kernels, "%s: %d kernels, expected %d", name, state->count, kernels);
        }
        check_launches(name, &built, device);
        compile(name, &built, device);
    }
    status_clear();
    release(&built);
}

/* What a T4's 64 KB do not hold. */
static bool is_too_large(const struct attention_case *c, int major) { return major == 7 && c->depth > 192; }

static void cases_build_and_compile(void) {
    static const int archs[][2] = {{7, 5}, {8, 0}, {9, 0}, {10, 0}, {12, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int a = 0; a < 5; a++) {
            struct device device;
            MUST(device_describe_cuda(&device, archs[a][0], archs[a][1]));
            if (is_too_large(&cases[i], archs[a][0]))
                continue;
            check_case(&cases[i], true, &device);
            check_case(&cases[i], false, &device);
        }
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Sequences twice as long take twice the workspace, not four times. */
static void workspace_is_linear(void) {
    struct attention_case c = {"linear", BF16, BF16, 0, 1, 8, 8, 8, 8192, 8192, 128, 128, .dropout = 0};
    struct device device;
    int64_t bytes[2];
    MUST(device_describe_cuda(&device, 9, 0));
    for (int i = 0; i < 2; i++) {
        struct built built;
        MUST(build(&built, backward_of(&c), &device));
        bytes[i] = built.step.workspace_bytes;
        release(&built);
        c.queries *= 2, c.keys *= 2;
    }
    CHECK(bytes[0] == 8 * 8192 * 8 && bytes[1] == 2 * bytes[0], "%lld and %lld bytes", (long long)bytes[0],
          (long long)bytes[1]);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static desc wide_heads(void) {
    struct attention_case c = {"wide", BF16, BF16, 0, 1, 1, 1, 1, 64, 64, 4096, 64, .dropout = 0};
    return forward_of(&c);
}

static desc four_bits(void) {
    struct attention_case c = {"narrow", WEFT_DATA_INT4, F32, 0, 1, 1, 1, 1, 64, 64, 64, 64, .dropout = 0};
    return forward_of(&c);
}

static desc addition(void) {
    struct tensors t = {1, false};
    desc x = tensor4(&t, 1, 1, 1, 8, F32), b = tensor4(&t, 1, 1, 1, 8, F32), y = tensor4(&t, 1, 1, 1, 8, F32);
    desc op = open_pointwise(WEFT_POINTWISE_ADD, x, b, y);
    drop(x), drop(b), drop(y);
    return op;
}

static void refusals_are_worded(void) {
    static const struct {
        desc (*make)(void);
        weftStatus_t status;
        const char *message;
    } refusals[] = {
        {wide_heads, WEFT_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
         "sdpa_fwd: heads of 4096 and 64 elements need 265040 bytes of shared memory, H200 (described) has 232448. Use "
         "smaller heads or a narrower data type."},
        {four_bits, WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
         "sdpa_fwd: tensor (uid 1) has data type i4, which kernels cannot store."},
        {addition, WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
         "pointwise: this family serves one sdpa_fwd or sdpa_bwd at a time."},
    };
    struct device device;
    MUST(device_describe_cuda(&device, 9, 0));
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct built built;
        REFUSED(build(&built, refusals[i].make(), &device), refusals[i].status, "%s", refusals[i].message);
        status_clear();
        release(&built);
    }
}

int main(void) {
    const char *places = getenv("WEFT_TEST_NVRTC");
    if (places)
        nvrtc_set_search_paths(places);
    cases_build_and_compile();
    workspace_is_linear();
    refusals_are_worded();
    return harness_end();
}
