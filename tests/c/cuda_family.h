/* SPDX-License-Identifier: Apache-2.0 */
/* Shared code of the tests of the CUDA families. A test describes regions as models, lets a family build a step for
   each of them on described chips, checks the step, and queues its programs for compilation. All queued programs are
   compiled at the end, on all processors, by the copies of NVRTC that WEFT_TEST_NVRTC names (folders, separated by
   colons), in processes without sanitizers; without that variable, the copy that Weft would choose compiles them.
   Because this takes long, the work is divided: of two copies, each compiles a 36th of the pairs of case and chip,
   and WEFT_TEST_DAY=<number> selects a different 36th. A single copy compiles all pairs; WEFT_TEST_ALL=1 makes every
   copy do so. WEFT_TEST_VERBOSE=1 prints registers and grids. */
#ifndef WEFT_TESTS_CUDA_FAMILY_H
#define WEFT_TESTS_CUDA_FAMILY_H

#define _GNU_SOURCE
#include "scenario.h"

#include "engines/cuda/core/kernel.h"
#include "engines/cuda/families.h"
#include "graph/graph.h"
#include "runtime/cache.h"
#include "runtime/device.h"
#include "runtime/module.h"
#include "runtime/nvrtc.h"

#include <pthread.h>
#include <sys/socket.h>

#define BF16 WEFT_DATA_BFLOAT16
#define F16 WEFT_DATA_HALF
#define F32 WEFT_DATA_FLOAT
#define F64 WEFT_DATA_DOUBLE
#define I8 WEFT_DATA_INT8
#define I32 WEFT_DATA_INT32
#define I64 WEFT_DATA_INT64
#define E4M3 WEFT_DATA_FP8_E4M3
#define E5M2 WEFT_DATA_FP8_E5M2

/* ---- Models ------------------------------------------------------------------------------------------------------ */

enum { OPS_MAX = 16, TENSORS_MAX = 64 };

/* Operations under construction and the tensors they reference. The test owns them until the graph is created. */
struct model {
    int64_t next_uid;
    int count, kept_count;
    desc ops[OPS_MAX], kept[TENSORS_MAX];
};

static inline desc keep(struct model *m, desc tensor) {
    if (m->kept_count == TENSORS_MAX)
        abort();
    return m->kept[m->kept_count++] = tensor;
}

/* A packed tensor unless strides are given. */
static inline desc strided(struct model *m, struct extents dims, struct extents strides, int type, int64_t alignment) {
    desc made = open_tensor(m->next_uid++, dims);
    MUST(set_enum(made, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, type));
    if (strides.count)
        MUST(set_numbers(made, WEFT_ATTR_TENSOR_STRIDES, strides.count, strides.at));
    MUST(set_number(made, WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, alignment));
    return keep(m, finalized(made));
}

static inline desc typed(struct model *m, struct extents dims, int type) { return strided(m, dims, UNSET, type, 16); }

static inline struct extents channels_last_strides(struct extents dims) {
    struct extents strides = {.count = dims.count};
    int64_t stride = dims.at[1];
    strides.at[1] = 1;
    for (int64_t i = dims.count; i-- > 2; stride *= dims.at[i])
        strides.at[i] = stride;
    strides.at[0] = stride;
    return strides;
}

static inline desc channels_last(struct model *m, struct extents dims, int type) {
    return strided(m, dims, channels_last_strides(dims), type, 16);
}

/* Column-major in its last two dims. */
static inline desc turned(struct model *m, struct extents dims, int type) {
    struct extents strides = {.count = dims.count};
    int64_t last = dims.count - 1, stride = dims.at[last] * dims.at[last - 1];
    strides.at[last - 1] = 1;
    strides.at[last] = dims.at[last - 1];
    for (int64_t i = last - 1; i-- > 0; stride *= dims.at[i])
        strides.at[i] = stride;
    return strided(m, dims, strides, type, 16);
}

static inline desc inner(struct model *m) { return keep(m, virtual_tensor(m->next_uid++)); }
static inline desc number(struct model *m, float value) { return keep(m, constant(m->next_uid++, value)); }

/* Takes ownership of an operation that is not finalized yet. */
static inline void add(struct model *m, desc op) {
    if (m->count == OPS_MAX)
        abort();
    m->ops[m->count++] = finalized(op);
}

static inline void add_pointwise(struct model *m, weftPointwiseMode_t mode, desc x, desc b, desc y) {
    add(m, open_pointwise(mode, x, b, y));
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

struct built {
    desc graph;
    int nodes[OPS_MAX];
    struct step step;
    struct arena arena;
};

/* Returns the first engine that contains the family. */
static inline const struct engine *engine_of(const struct family *family) {
    for (int e = 0; e < engine_count; e++)
        for (int f = 0; engines[e]->families[f]; f++)
            if (engines[e]->families[f] == family)
                return engines[e];
    return NULL;
}

/* Relaxations that the steps use. */
static int relaxations;

/* Builds the whole model as one region of a family, with the relaxed kernel even if the exact one is faster. The result
   must be released even after a failure. */
static inline weftStatus_t build(struct built *built, const struct family *family, void (*fill)(struct model *m),
                                 const struct device *device) {
    struct model m = {.next_uid = 1};
    struct knob_choices none = {0};
    struct offer offer = {.family = family};
    *built = (struct built){0};
    fill(&m);
    built->graph = graph_of(m.count, m.ops);
    for (int i = 0; i < m.kept_count; i++)
        drop(m.kept[i]);
    const struct graph *graph = (const struct graph *)built->graph;
    for (int i = 0; i < graph->node_count; i++)
        built->nodes[i] = i;
    built->step.family = family;
    built->step.region = (struct region){graph, graph->node_count, built->nodes, engine_of(family), relaxations};
    built->step.used = relaxations;
    TRY(family->accepts(&built->step.region, device, &offer));
    CHECK(offer.seconds > 0 && offer.seconds < 1, "%g seconds", offer.seconds);
    return family->build(&built->step, device, &none, &built->arena);
}

static inline void release(struct built *built) {
    arena_free(&built->arena);
    drop(built->graph);
}

static inline const struct cuda_step *state_of(const struct built *built) { return built->step.state; }

/* Checks the invariants of every launch, independent of the family. */
static inline void check_launches(const char *name, const struct built *built, const struct device *device) {
    const struct cuda_step *state = state_of(built);
    for (int i = 0; i < state->count; i++) {
        const struct cuda_kernel *kernel = &state->kernels[i];
        for (int axis = 0; axis < 3; axis++)
            CHECK(kernel->grid[axis] >= 1 && kernel->grid[axis] <= device->cuda.max_grid[axis],
                  "%s: kernel %d: %u blocks along axis %d", name, i, kernel->grid[axis], axis);
        CHECK(device->cuda.major >= 9 || (!kernel->is_dependent && !kernel->cluster),
              "%s: kernel %d overlaps or clusters where chips cannot", name, i);
        CHECK((int64_t)kernel->shared_bytes <= device->cuda.shared_per_block, "%s: %u shared bytes", name,
              kernel->shared_bytes);
        CHECK(kernel->block % 32 == 0 && kernel->block >= 32 && kernel->block <= 1024, "%s: %u threads", name,
              kernel->block);
    }
}

/* ---- Compiling --------------------------------------------------------------------------------------------------- */

struct wanted {
    char name[96], arch[16], entry[32], *text, *detail;
    struct kernel_needs needs;
    unsigned grid, block;
    int number, arch_index; /* of the case, and of its chip; -1: the only chip tested */
};

static struct wanted *wanted;
static int wanted_count, case_count, copy_index, copy_count = 1;
static bool is_without_compiler;

/* A program that may spill: its name and the versions of NVRTC that are known to spill. An entry without a name ends a
   list. */
struct spill {
    const char *name, *arch;
    int major;
};
static const struct spill *allowed_spills;

/* True if the assembler's advice about wgmma (codes C7501 and up) is an error: most of it makes a kernel several times
   slower. */
static bool forbids_advice;

static inline bool may_spill(const struct wanted *one, int version) {
    for (const struct spill *spill = allowed_spills; spill && spill->name; spill++)
        if (strcmp(spill->name, one->name) == 0 && strcmp(spill->arch, one->arch) == 0 &&
            spill->major == version / 1000)
            return true;
    return false;
}

static inline const int (*test_archs(int *count))[2] {
    static const int archs[][2] = {{8, 0}, {9, 0}, {10, 0}, {12, 0}};
    *count = sizeof archs / sizeof *archs;
    return archs;
}

/* Queues the programs of a step for compilation for its chip, which has index arch_index among the tested chips, or -1
   if the case has only one chip. */
static inline void want(const char *name, const struct built *built, const struct device *device, int arch_index) {
    const struct cuda_step *state = state_of(built);
    for (int i = 0; i < state->count; i++) {
        wanted = realloc(wanted, (size_t)(wanted_count + 1) * sizeof *wanted);
        struct wanted *next = &wanted[wanted_count++];
        *next = (struct wanted){.text = strdup(state->kernels[i].program),
                                .detail = strdup(built->step.detail ? built->step.detail : ""),
                                .needs = {.shared_bytes = (int)state->kernels[i].shared_bytes,
                                          .argument_bytes = (size_t)state->kernels[i].argument_count * 8},
                                .grid = state->kernels[i].grid[0],
                                .block = state->kernels[i].block,
                                .number = case_count,
                                .arch_index = arch_index};
        snprintf(next->name, sizeof next->name, "%.60s: %s", name, state->kernels[i].entry);
        snprintf(next->entry, sizeof next->entry, "%s", state->kernels[i].entry);
        device_arch(next->arch, device);
    }
}

static inline bool is_repeated(int index) {
    for (int i = 0; i < index; i++)
        if (strcmp(wanted[i].arch, wanted[index].arch) == 0 && strcmp(wanted[i].text, wanted[index].text) == 0)
            return true;
    return false;
}

/* Checks that the code contains the kernel and that the kernel accepts the arguments the host passes: the fake driver
   reads them from the cubin. */
static inline void load_on_fake(const struct wanted *one, const struct compiled *compiled) {
    struct device device;
    const struct code *code;
    struct kernel *kernel = NULL;
    DO(device_find(&device, WEFT_DEVICE_CUDA, 0));
    DO(cache_adopt(&code, one->name, compiled->image, compiled->bytes, compiled->is_ptx));
    weftStatus_t status = kernel_load(&kernel, &device, code, one->entry, &one->needs);
    CHECK(status == WEFT_STATUS_SUCCESS, "%s for %s: %s", one->name, one->arch, status_text());
    kernel_release(kernel);
    cache_release(code);
}

/* ---- NVRTC in a separate process: tests/fake_cuda/plain_nvrtc.c ------ */

struct plain_nvrtc {
    FILE *to, *from;
    pid_t process;
};

/* Starts a process with the copy of NVRTC in a folder. */
static inline void plain_start(struct plain_nvrtc *plain, const char *folder, int version) {
    char path[1024];
    int ends[2];
    snprintf(path, sizeof path, "%s/libnvrtc.so.%d", folder, version / 1000);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "there is no pair of sockets");
    plain->process = fork();
    if (plain->process == 0) {
        dup2(ends[1], 0);
        dup2(ends[1], 1);
        execl(PLAIN_NVRTC, PLAIN_NVRTC, path, (char *)NULL);
        _exit(2);
    }
    close(ends[1]);
    plain->to = fdopen(ends[0], "wb");
    plain->from = fdopen(dup(ends[0]), "rb");
}

static inline void plain_end(struct plain_nvrtc *plain) {
    int status = -1;
    shutdown(fileno(plain->to), SHUT_WR);
    fclose(plain->to);
    fclose(plain->from);
    waitpid(plain->process, &status, 0);
    CHECK(status == 0, "plain_nvrtc ended with %x", (unsigned)status);
}

static inline void plain_send(struct plain_nvrtc *plain, const char *text) {
    uint64_t bytes = strlen(text);
    fwrite(&bytes, sizeof bytes, 1, plain->to);
    fwrite(text, 1, bytes, plain->to);
}

/* Receives a string, appends a NUL, and returns its length. */
static inline size_t plain_receive(struct plain_nvrtc *plain, void *string) {
    uint64_t bytes = 0;
    if (fread(&bytes, sizeof bytes, 1, plain->from) != 1)
        abort();
    char *text = calloc(1, bytes + 1);
    if (!text || fread(text, 1, bytes, plain->from) != bytes)
        abort();
    *(char **)string = text;
    return bytes;
}

/* Same as nvrtc_compile, but returns false on failure. */
static inline bool plain_compile(struct plain_nvrtc *plain, struct compiled *compiled, const char *target,
                                 const struct program *program) {
    uint64_t counts[] = {(uint64_t)program->header_count, (uint64_t)program->option_count + 1};
    char option[64];
    int64_t result = -1;
    fwrite(counts, sizeof counts, 1, plain->to);
    plain_send(plain, program->text);
    for (int i = 0; i < program->header_count; i++)
        plain_send(plain, program->headers[i].name);
    for (int i = 0; i < program->header_count; i++)
        plain_send(plain, program->headers[i].text);
    snprintf(option, sizeof option, "--gpu-architecture=%s", target);
    plain_send(plain, option);
    for (int i = 0; i < program->option_count; i++)
        plain_send(plain, program->options[i]);
    fflush(plain->to);
    if (fread(&result, sizeof result, 1, plain->from) != 1)
        abort();
    plain_receive(plain, &compiled->log);
    compiled->bytes = plain_receive(plain, &compiled->image);
    return result == 0 && compiled->bytes;
}

/* Compiles in the separate process if there is one, else by the library itself. The library is also used if this copy
   of NVRTC supports the chip only through PTX. */
static inline bool compile_program(struct plain_nvrtc *plain, struct compiled *compiled,
                                   const struct nvrtc_choice *choice, const struct program *program) {
    return plain->process && !choice->is_ptx ? plain_compile(plain, compiled, choice->target, program)
                                             : nvrtc_compile(compiled, choice, program) == WEFT_STATUS_SUCCESS;
}

static inline void compile(const struct wanted *one, struct plain_nvrtc *plain) {
    static const char *const options[] = {"-std=c++17", "--ptxas-options=-v"};
    struct nvrtc_choice choice;
    struct compiled compiled = {0};
    struct program program = {.name = "test.cu", .text = one->text, .option_count = 2, .options = options};
    struct program_header headers[DEVICE_FILES_MAX];
    uint8_t digest[32];
    program.header_count = kernel_headers(headers, digest, one->text);
    program.headers = headers;
    bool is_compiled =
        nvrtc_choose(&choice, one->arch) == WEFT_STATUS_SUCCESS && compile_program(plain, &compiled, &choice, &program);
    CHECK(is_compiled, "%s for %s: %s%s", one->name, one->arch, status_text(), compiled.log ? compiled.log : "");
    bool spills = false;
    for (const char *at = compiled.log; at && (at = strstr(at, "bytes stack frame, ")) != NULL; at++)
        spills = spills || strncmp(at, "bytes stack frame, 0 bytes spill", 32) != 0;
    CHECK(!spills || may_spill(one, choice.version), "%s for %s spills with NVRTC %d:\n%s", one->name, one->arch,
          choice.version, compiled.log);
    CHECK(!forbids_advice || !compiled.log || !strstr(compiled.log, "(C75"), "%s for %s with NVRTC %d:\n%s", one->name,
          one->arch, choice.version, compiled.log);
    const char *used = compiled.log ? strstr(compiled.log, "Used ") : NULL;
    if (getenv("WEFT_TEST_VERBOSE"))
        printf("%-44s %-8s %d %.18s | grid %u x %u | %s\n", one->name, one->arch, choice.version, used ? used : "",
               one->grid, one->block, one->detail);
    if (is_compiled && getenv("WEFT_LIBCUDA"))
        load_on_fake(one, &compiled);
    compiled_free(&compiled);
    status_clear();
}

/* True if this copy of NVRTC must compile the program in this run. */
static inline bool is_its_turn(const struct wanted *one) {
    if (copy_count == 1 || tests_all())
        return true;
    enum { TURNS = 36 };
    int chip = one->arch_index < 0 ? 0 : one->arch_index;
    return (one->number + chip + test_day()) % TURNS == TURNS / copy_count * copy_index;
}

static atomic_int next_wanted;

/* Body of a compiling thread, which has its own compiler. */
static inline void *compile_some(void *plain) {
    int i;
    while ((i = atomic_fetch_add(&next_wanted, 1)) < wanted_count)
        if (is_its_turn(&wanted[i]) && !is_repeated(i))
            compile(&wanted[i], plain);
    return NULL;
}

static inline void compile_with_one_copy(void) {
    enum { MOST = 16 };
    pthread_t helpers[MOST];
    struct plain_nvrtc compilers[MOST] = {0};
    int count = device_host_threads() < MOST ? device_host_threads() : MOST;
    const char *folder = getenv("WEFT_TEST_NVRTC") ? getenv("WEFT_NVRTC") : NULL;
    struct nvrtc_choice choice;
    if (nvrtc_choose(&choice, "sm_90a")) {
        printf("not observed: whether kernels compile: %s\n", status_text());
        is_without_compiler = true;
        return;
    }
    for (int i = 0; i < count && folder; i++)
        plain_start(&compilers[i], folder, choice.version);
    for (int i = 0; i < count; i++)
        pthread_create(&helpers[i], NULL, compile_some, &compilers[i]);
    for (int i = 0; i < count; i++)
        pthread_join(helpers[i], NULL);
    for (int i = 0; i < count && folder; i++)
        plain_end(&compilers[i]);
}

/* Ends the test and returns the exit status of main: 77 if nothing failed but no compiler was found. */
static inline int compile_wanted(void) {
    const char *folders = getenv("WEFT_TEST_NVRTC");
    char variable[1024];
    for (const char *at = folders; at && (at = strchr(at, ':')) != NULL; at++)
        copy_count++;
    if (!folders || !*folders)
        compile_with_one_copy();
    for (const char *at = folders; at && *at; at += strcspn(at, ":"), at += *at == ':', copy_index++) {
        snprintf(variable, sizeof variable, "WEFT_NVRTC=%.*s", (int)strcspn(at, ":"), at);
        if (wanted_count)
            in_child("compile_with_one_copy", compile_with_one_copy,
                     (const char *const[]){variable, "WEFT_LIBCUDA=" FAKE_CUDA, "FAKE_CUDA_VERSION=19000", NULL});
    }
    for (int i = 0; i < wanted_count; i++)
        free(wanted[i].text), free(wanted[i].detail);
    free(wanted);
    remove_scratch();
    int failed = harness_end();
    return failed ? failed : is_without_compiler ? 77 : 0;
}

/* ---- Tables of cases --------------------------------------------------------------------------------------------- */

struct family_case {
    const struct family *family;
    void (*fill)(struct model *m);
    const char *name, *detail; /* expected in the step's detail on sm_90; NULL: not checked */
};

/* Builds each case for every chip, or only for the chips of one major compute capability (0: all), and queues it for
   compilation. */
static inline void build_cases(const struct family_case *cases, int count, int major) {
    int arch_count;
    const int (*archs)[2] = test_archs(&arch_count);
    for (int c = 0; c < count; c++, case_count++)
        for (int a = 0; a < arch_count; a++) {
            struct device device;
            struct built built;
            if (major && major != archs[a][0])
                continue;
            MUST(device_describe_cuda(&device, archs[a][0], archs[a][1]));
            weftStatus_t status = build(&built, cases[c].family, cases[c].fill, &device);
            CHECK(status == WEFT_STATUS_SUCCESS, "%s: %s", cases[c].name, status_text());
            if (!status && archs[a][0] == 9 && cases[c].detail)
                CHECK(strstr(built.step.detail, cases[c].detail), "%s: %s", cases[c].name, built.step.detail);
            if (!status) {
                check_launches(cases[c].name, &built, &device);
                want(cases[c].name, &built, &device, major ? -1 : a);
            }
            status_clear();
            release(&built);
        }
}

struct refused_case {
    const struct family *family;
    void (*fill)(struct model *m);
    const char *message; /* the complete message */
};

static inline void check_refusals(const struct refused_case *cases, int count) {
    struct device device;
    MUST(device_describe_cuda(&device, 9, 0));
    for (int i = 0; i < count; i++) {
        struct built built;
        weftStatus_t status = build(&built, cases[i].family, cases[i].fill, &device);
        CHECK(status != WEFT_STATUS_SUCCESS, "'%s' did not come", cases[i].message);
        EXACTLY(status_text(), "%s", cases[i].message);
        status_clear();
        release(&built);
    }
}

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

#endif
