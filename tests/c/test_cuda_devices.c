/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs that are not present: describing them, planning and compiling for them on a machine without a GPU, and moving
   the plan and its code to a machine that has one. The tests use the driver and the compiler of tests/fake_cuda; each
   machine is a separate process. */
#define _GNU_SOURCE
#include "scenario.h"

#include "base/hash.h"

static const char *const driver = "WEFT_LIBCUDA=" FAKE_CUDA, *const compiler = "WEFT_NVRTC=" FAKE_NVRTC;
static const char *const no_driver = "WEFT_LIBCUDA=/nowhere/libcuda.so.1", *const no_compiler = "WEFT_NVRTC=/nowhere";

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

static weftStatus_t finalize_device(const char *json, desc *device) {
    *device = make(WEFT_BACKEND_DEVICEPROP_DESCRIPTOR);
    MUST(set_text(*device, WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, json));
    return weftBackendFinalize(*device);
}

static desc device_of(const char *json) {
    desc device;
    MUST(finalize_device(json, &device));
    return device;
}

static char *json_of(desc device) { return get_text(device, WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION, NULL); }

static const char h200[] =
    "{\"kind\":\"cuda\",\"ordinal\":0,\"name\":\"H200 (described)\",\"arch\":\"sm_90\",\"multiprocessors\":132,"
    "\"clock_khz\":1980000,\"bandwidth\":4800000000000,\"memory_bytes\":151397597184,\"l2_bytes\":62914560,"
    "\"shared_per_block\":232448,\"shared_per_multiprocessor\":233472,\"registers_per_multiprocessor\":65536,"
    "\"threads_per_multiprocessor\":2048,\"threads_per_block\":1024,\"cluster_most\":8}";

/* The architecture is sufficient; further keys of the text replace typical values. The text of a device, parsed again,
   describes the same device. */
static void test_descriptions(void) {
    static const char *const texts[][2] = {
        {"{\"kind\":\"cuda\",\"arch\":\"sm_90\"}", h200},
        {"{\"arch\": \"90a\",\n \"kind\" : \"cuda\"}", h200},
        {h200, h200},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        desc device = device_of(texts[i][0]);
        char *json = json_of(device);
        EXACTLY(json, "%s", texts[i][1]);
        CHECK(get_number(device, WEFT_ATTR_DEVICEPROP_KIND_EXT) == WEFT_DEVICE_CUDA, "a GPU");
        free(json), drop(device);
    }
    desc device = device_of("{\"kind\":\"cuda\",\"name\":\"mine\",\"arch\":\"sm_86\",\"ordinal\":3,\"l2_bytes\":77}");
    char *json = json_of(device);
    CHECK(strstr(json, "\"ordinal\":3,\"name\":\"mine\",\"arch\":\"sm_86\"") && strstr(json, "\"l2_bytes\":77,") &&
              strstr(json, "\"multiprocessors\":82,"),
          "%s", json);
    free(json), drop(device);
}

static void test_wrong_descriptions(void) {
    static const struct {
        const char *json;
        weftStatus_t status;
        const char *words;
    } wrong[] = {
        {"{\"kind\":\"cuda\"}", WEFT_STATUS_BAD_PARAM,
         "device properties: json for a GPU must contain its architecture, and '{\"kind\":\"cuda\"}' does not. Add "
         "\"arch\":\"sm_90\"."},
        {"{\"kind\":\"cuda\",\"arch\":90}", WEFT_STATUS_BAD_PARAM,
         "device properties: json for a GPU must contain its architecture, and '{\"kind\":\"cuda\",\"arch\":90}' does "
         "not. Add \"arch\":\"sm_90\"."},
        {"{\"kind\":\"cuda\",\"arch\":\"hopper\"}", WEFT_STATUS_BAD_PARAM,
         "'hopper' is not a GPU architecture. Use the form \"sm_90\"."},
        {"{\"kind\":\"cuda\",\"arch\":\"sm_70\"}", WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
         "device description: kernels need compute capability 7.5 or newer, not 7.0. Name a newer GPU, as "
         "\"sm_90\"."},
        {"{\"kind\":\"cuda\",\"arch\":\"sm_90\",\"multiprocessors\":0}", WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
         "device properties: json has multiprocessors 0; expected 1..2147483647. Correct the text."},
        {"{\"kind\":\"cuda\",\"arch\":\"sm_90\",\"bandwidth\":-1}", WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
         "device properties: json has bandwidth -1; expected 1..1125899906842624. Correct the text."},
        {"{\"kind\":\"cuda\",\"arch\":\"sm_90\",\"clock_khz\":4294967296}", WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
         "device properties: json has clock_khz 4294967296; expected 1..2147483647. Correct the text."},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        desc device;
        REFUSED(finalize_device(wrong[i].json, &device), wrong[i].status, "%s", wrong[i].words);
        drop(device);
    }
}

/* ---- Plans that move between machines ---------------------------------------------------------------------------- */

static desc relu_graph(void) {
    desc x = tensor(1, DIMS(4)), y = tensor(2, DIMS(4)), op = pointwise(WEFT_POINTWISE_RELU_FWD, x, NULL, y);
    desc graph = graph_of(1, &op);
    drop(x), drop(y);
    return graph;
}

static desc open_described(const char *arch, bool with_code) {
    char json[64];
    snprintf(json, sizeof json, "{\"kind\":\"cuda\",\"arch\":\"%s\"}", arch);
    desc graph = relu_graph(), device = device_of(json), plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT, graph));
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_DEVICEPROP, device));
    MUST(set_flag(plan, WEFT_ATTR_EXECUTION_PLAN_WITH_CODE_EXT, with_code));
    drop(graph), drop(device);
    return plan;
}

static weftStatus_t execute(desc plan) {
    static float x[4], y[4];
    return weftExecute(plan, 2, (uint64_t[]){(uintptr_t)x, (uintptr_t)y}, NULL, NULL);
}

static void write_plan(desc plan, const char *name) {
    int64_t bytes;
    char *blob = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes);
    FILE *file = fopen(place("%s", name), "wb");
    CHECK(file && fwrite(blob, (size_t)bytes, 1, file) == 1 && fclose(file) == 0, "%s", name);
    free(blob);
}

/* A machine without a GPU and driver builds plans for other machines, but cannot run them. */
static void made_elsewhere(void) {
    static const char *const archs[] = {"sm_90", "sm_80", "sm_130"};
    char name[64];
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        desc plan = finalized(open_described(archs[i], true)), plain = finalized(open_described(archs[i], false));
        snprintf(name, sizeof name, "%s.plan", archs[i]);
        write_plan(plan, name);
        snprintf(name, sizeof name, "%s.plain", archs[i]);
        write_plan(plain, name);
        drop(plan), drop(plain);
    }
    desc plan = finalized(open_described("sm_90", false));
    REFUSED(execute(plan), WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
            "execution plan: it was built for a described GPU, cuda:0 (H200 (described), sm_90), which this machine "
            "does not have. Save it (attribute json) and load it with a handle of the machine that has the GPU.");
    weftHandle_t handle = cpu_handle();
    float numbers[4];
    desc pack = finalized(open_pack(2, (int64_t[]){1, 2}, (void *[]){numbers, numbers}));
    REFUSED(weftBackendExecute(handle, plan, pack), WEFT_STATUS_BAD_PARAM,
            "weftBackendExecute: the plan is for cuda:0, the handle for cpu:0. Use a handle of the plan's device.");
    drop(pack), drop(plan);

    desc device = device_of("{\"kind\":\"cuda\",\"arch\":\"sm_90\"}");
    plan = open_described("sm_90", false);
    MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    CHECK(weftBackendFinalize(plan) == WEFT_STATUS_BAD_PARAM &&
              strstr(last_error(),
                     "execution plan: a plan runs on the device that it was built for: the properties name "
                     "cuda:0 (H200 (described), sm_90), the handle cpu:0 ("),
          "%s", last_error());
    drop(plan), drop(device);
    MUST(weftDestroy(handle));
}

static void no_compiler_elsewhere(void) {
    desc plan = open_described("sm_90", true);
    REFUSED(
        weftBackendFinalize(plan), WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
        "NVRTC: WEFT_NVRTC is '/nowhere', which neither is nor contains a libnvrtc.so.12 or newer. Name its folder or "
        "file, or unset WEFT_NVRTC.");
    drop(plan);
}

static const char *file_name; /* of the plan to load */

static desc open_saved(const char *blob, size_t bytes, weftHandle_t handle, bool with_code) {
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, (int64_t)bytes,
                                 blob));
    if (handle)
        MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    MUST(set_flag(plan, WEFT_ATTR_EXECUTION_PLAN_WITH_CODE_EXT, with_code));
    return plan;
}

static desc open_file(weftHandle_t handle, bool with_code) {
    size_t bytes;
    char *blob = read_whole(place("%s", file_name), &bytes);
    CHECK(blob, "no %s", file_name);
    desc plan = open_saved(blob, bytes, handle, with_code);
    free(blob);
    return plan;
}

static weftHandle_t gpu(void) {
    weftHandle_t handle = NULL;
    MUST(weftCreateForDevice(&handle, WEFT_DEVICE_CUDA, 0));
    return handle;
}

static int compilations(void) { return *(atomic_int *)dlsym(dlopen(FAKE_NVRTC, RTLD_NOW), "fake_nvrtc_compiles"); }

/* A plan with code needs no compiler, even if its shapes are overridden, and it is saved with its code again. */
static void runs_with_its_code(void) {
    open_fake();
    weftHandle_t handle = gpu();
    desc plan = finalized(open_file(handle, true));
    MUST(execute(plan));
    CHECK(fake->launches() == 1, "%lld launches", (long long)fake->launches());
    static float x[8], y[8];
    desc pack = open_pack(2, (int64_t[]){1, 2}, (void *[]){x, y});
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, 2, (int64_t[]){1, 2}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 2, (int64_t[]){8, 8}));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 2, (int64_t[]){1, 1}));
    MUST(weftBackendExecute(handle, plan, finalized(pack)));
    CHECK(fake->launches() == 2, "%lld launches", (long long)fake->launches());
    size_t bytes, count;
    char *blob = read_whole(place("%s", file_name), &bytes);
    char *again = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, (int64_t *)&count);
    CHECK(bytes == count && memcmp(blob, again, bytes) == 0, "saved again it is %zu bytes, not %zu", count, bytes);
    free(blob), free(again);
    drop(pack), drop(plan);
    MUST(weftDestroy(handle));
    check_clean(1);
}

/* Code is used if it was requested and is for this chip; otherwise the kernel is compiled, once. */
static void compiles_else(void) {
    open_fake();
    weftHandle_t handle = gpu();
    bool is_other_chip = strcmp(file_name, "sm_90.plan") != 0;
    for (int asked = 1; asked >= 0; asked--) {
        int before = compilations(), expected = asked == is_other_chip;
        desc plan = finalized(open_file(handle, asked));
        MUST(execute(plan));
        CHECK(compilations() - before == expected, "asked %d: %d compilations", asked, compilations() - before);
        drop(plan);
    }
    MUST(weftDestroy(handle));
    check_clean(1);
}

static void refused_unasked(void) {
    weftHandle_t handle = gpu();
    desc plan = open_file(handle, false);
    REFUSED(weftBackendFinalize(plan), WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
            "execution plan: the saved plan contains code, but with_code is not set, so its kernels are compiled "
            "again: NVRTC: WEFT_NVRTC "
            "is '/nowhere', which neither is nor contains a libnvrtc.so.12 or newer. Name its folder or file, or unset "
            "WEFT_NVRTC.");
    drop(plan);
    MUST(weftDestroy(handle));
}

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

enum { HEADER_BYTES = 56, HASH_AT = 24, LENGTH_AT = 16 };

static void fix_header(char *blob, size_t bytes) {
    struct sha256 hash;
    int64_t length = (int64_t)bytes - HEADER_BYTES;
    memcpy(blob + LENGTH_AT, &length, sizeof length);
    sha256_init(&hash);
    sha256_update(&hash, blob + HEADER_BYTES, bytes - HEADER_BYTES);
    sha256_final((uint8_t *)blob + HASH_AT, &hash);
}

static weftStatus_t load_bytes(const char *blob, size_t bytes, weftHandle_t handle) {
    desc plan = open_saved(blob, bytes, handle, true);
    weftStatus_t status = weftBackendFinalize(plan);
    char kept[4096];
    snprintf(kept, sizeof kept, "%s", last_error());
    drop(plan);
    return status ? status_fail(status, "%s", kept) : status;
}

static void damaged(void) {
    size_t bytes;
    open_fake();
    weftHandle_t handle = gpu();
    char *blob = read_whole(place("sm_90.plan"), &bytes), *image = memmem(blob, bytes, "FAKECUBIN", 9);
    char *end = memmem(blob, bytes, "FAKECUBIN sm_90a\nkernel map ", 28) ? blob + bytes : NULL;
    CHECK(image && end, "the plan carries the kernel's code");
    image[20] ^= 1;
    REFUSED(load_bytes(blob, bytes, handle), WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT,
            "saved plan is damaged: its bytes do not match their hash. Save the plan again.");
    image[20] ^= 1;
    for (size_t cut = (size_t)(image - blob) - 50; cut < bytes; cut++) { /* inside the code, or before it */
        memset(blob + LENGTH_AT, 0, 8);
        fix_header(blob, cut);
        weftStatus_t status = load_bytes(blob, cut, handle);
        CHECK(status == WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT, "cut to %zu of %zu: %s: %s", cut, bytes,
              weftGetErrorString(status), last_error());
    }
    status_clear();
    /* The driver rejects data that is no code for this chip: the kernel is compiled. */
    memcpy(image, "NOTACUBIN", 9);
    fix_header(blob, bytes);
    int before = compilations();
    DO(load_bytes(blob, bytes, handle));
    CHECK(compilations() == before + 1, "%d compilations", compilations() - before);
    free(blob);
    MUST(weftDestroy(handle));
    check_clean(1);
}

int main(void) {
    RUN(test_descriptions());
    RUN(test_wrong_descriptions());
    IN_CHILD(no_compiler_elsewhere, no_driver, no_compiler);
    IN_CHILD(made_elsewhere, no_driver, compiler);
    file_name = "sm_90.plan";
    IN_CHILD(runs_with_its_code, driver, no_compiler);
    IN_CHILD(refused_unasked, driver, no_compiler);
    IN_CHILD(compiles_else, driver, compiler);
    IN_CHILD(damaged, driver, compiler);
    file_name = "sm_130.plan"; /* PTX, which the driver compiles */
    IN_CHILD(runs_with_its_code, driver, no_compiler, "FAKE_CUDA_ARCH=130");
    file_name = "sm_80.plan";
    IN_CHILD(runs_with_its_code, driver, no_compiler, "FAKE_CUDA_ARCH=80");
    IN_CHILD(refused_unasked, driver, no_compiler);
    IN_CHILD(compiles_else, driver, compiler);
    remove_scratch();
    return harness_end();
}
