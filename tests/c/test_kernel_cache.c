/* SPDX-License-Identifier: Apache-2.0 */
/* From program text to machine code: which copy of NVRTC is chosen, the messages if none is usable or if compilation
   fails, what the cache compiles once and what it compiles again, and how it handles a folder or an entry that is
   damaged, planted or full. The compilers are copies of the one in tests/fake_cuda, each with separate settings. */
#define _GNU_SOURCE
#include "scenario.h"

#include "base/hash.h"
#include "engines/cuda/core/kernel.h"
#include "runtime/cache.h"
#include "runtime/nvrtc.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>

enum { THREADS = 8 };

static struct program program_of(const char *text) {
    static const char *const options[] = {"--std=c++17", "-default-device"};
    return (struct program){.name = "test.cu", .text = text, .option_count = 2, .options = options};
}

static const char simple_text[] = "__global__ void k() {}\n";

/* The log, received through the user's callback. */
static char logged[8192];

static void keep_log(weftSeverity_t severity, void *unused, const weftDebug_t *debug, const char *message) {
    (void)unused, (void)debug;
    if (severity == WEFT_SEV_WARNING)
        snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", message);
}

static void watch_log(void) {
    logged[0] = '\0';
    weftSetCallback(1u << WEFT_SEV_WARNING, NULL, keep_log);
}

/* Returns a number from one of the reports. The key looks like "\"damaged\":". */
static int64_t reported(const char *key) {
    struct text json;
    text_init(&json);
    cache_report(&json);
    const char *at = strstr(text_string(&json), key);
    int64_t number = at ? strtoll(at + strlen(key), NULL, 10) : -1;
    text_free(&json);
    return number;
}

/* ---- Choosing a copy --------------------------------------------------------------------------------------------- */

static int version_for(const char *arch) {
    struct nvrtc_choice choice;
    DO(nvrtc_choose(&choice, arch));
    EXACTLY(choice.target, "%s", arch);
    CHECK(!choice.is_ptx && choice.file_bytes > 0, "%s", arch);
    return choice.version;
}

static void no_driver_takes_newest(void) { CHECK(version_for("sm_90a") == 13000, "%d", version_for("sm_90a")); }
static void driver_13_takes_13(void) { CHECK(version_for("sm_90a") == 13000, "%d", version_for("sm_90a")); }
static void missing_builtins_are_the_last_resort(void) {
    CHECK(version_for("sm_90a") == 12090, "%d", version_for("sm_90a"));
}
static void driver_12_takes_12(void) { CHECK(version_for("sm_90a") == 12090, "%d", version_for("sm_90a")); }

static void each_arch_its_copy(void) {
    CHECK(version_for("sm_90") == 13000, "both know it");
    CHECK(version_for("sm_75") == 12090, "only 12.9 knows it");
}

/* A chip newer than all known ones: PTX of the newest one that the driver supports, never of one newer than the
   driver. */
static void ptx_for_new_chip(void) {
    struct nvrtc_choice choice;
    bool is_old_driver = strcmp(getenv("FAKE_CUDA_VERSION"), "12090") == 0;
    DO(nvrtc_choose(&choice, "sm_130a"));
    CHECK(choice.is_ptx && choice.version == (is_old_driver ? 12090 : 13000), "%d", choice.version);
    EXACTLY(choice.target, is_old_driver ? "compute_120" : "compute_90");
}

static void no_ptx_for_older_driver(void) {
    struct nvrtc_choice choice;
    REFUSED(
        nvrtc_choose(&choice, "sm_130a"), WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
        "NVRTC: kernels for sm_130a need a copy of 12.0 or newer that supports the chip and is no newer than the "
        "driver; none of the copies found is usable: %s/13/libnvrtc.so.13 (13.0): it supports sm_80 to sm_90 but not "
        "sm_130; "
        "%s/12/libnvrtc.so.12 (12.9): it supports sm_75 to sm_120 but not sm_130. Name another in WEFT_NVRTC, unset "
        "it, or: pip install nvidia-cuda-nvrtc-cu12.",
        scratch, scratch);
}

static void first_of_equals(void) {
    struct text json;
    DO(WEFT_STATUS_SUCCESS);
    text_init(&json);
    nvrtc_report(&json, "sm_90a");
    EXACTLY(
        text_string(&json),
        "[{\"path\":\"%s/13/libnvrtc.so.13\",\"found_by\":\"WEFT_NVRTC\",\"version\":\"13.0\",\"archs\":[80,86,90],"
        "\"builtins\":true,\"is_chosen\":true,\"verdict\":\"chosen: the newest that supports the chip and the "
        "driver\"},"
        "{\"path\":\"%s/same/libnvrtc.so.13\",\"found_by\":\"WEFT_NVRTC\",\"version\":\"13.0\",\"archs\":[80,86,90],"
        "\"builtins\":true,\"is_chosen\":false,\"verdict\":\"the same version was found before\"},"
        "{\"path\":\"%s/12/libnvrtc.so.12\",\"found_by\":\"WEFT_NVRTC\",\"version\":\"12.9\",\"archs\":[75,90,120],"
        "\"builtins\":true,\"is_chosen\":false,\"verdict\":\"a newer copy is used\"},"
        "{\"path\":\"%s/11/libnvrtc.so.11\",\"found_by\":\"WEFT_NVRTC\",\"version\":\"11.8\",\"archs\":[75,90],"
        "\"builtins\":false,\"is_chosen\":false,\"verdict\":\"it is older than 12.0\"}]",
        scratch, scratch, scratch, scratch);
    text_free(&json);
    CHECK(!*last_error(), "%s", last_error());
}

static void nothing_there(void) {
    struct nvrtc_choice choice;
    REFUSED(
        nvrtc_choose(&choice, "sm_90a"), WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
        "NVRTC: WEFT_NVRTC is '%s', which neither is nor contains a libnvrtc.so.12 or newer. Name its folder or file, "
        "or unset WEFT_NVRTC.",
        getenv("WEFT_NVRTC"));
    REFUSED(nvrtc_choose(&choice, "h100"), WEFT_STATUS_BAD_PARAM,
            "NVRTC: 'h100' is not a GPU architecture. Use the form \"sm_90\".");
}

/* The usual folders contain no copy. */
static void none_found(void) {
    struct nvrtc_choice choice;
    if (nvrtc_choose(&choice, "sm_90a") == WEFT_STATUS_SUCCESS) {
        printf("not observed: a machine without NVRTC (this one has one)\n");
        return;
    }
    EXACTLY(
        last_error(),
        "NVRTC: kernels are compiled by libnvrtc.so.12 or newer, and none was found among loaded libraries, wheels, "
        "conda, the system's libraries and CUDA toolkits. Fix: %s; or set WEFT_NVRTC to its folder.",
        "pip install nvidia-cuda-nvrtc (needs driver 580 or newer; nvidia-cuda-nvrtc-cu12 needs 525)");
}

/* Missing, too old, too new, wrong chip, broken: the status is that of the newest copy. */
static void refused_choice(const char *folder, weftStatus_t status, const char *verdict, const char *install) {
    struct nvrtc_choice choice;
    const char *driver = strcmp(getenv("WEFT_LIBCUDA"), FAKE_CUDA) == 0 ? " and is no newer than the driver" : "";
    REFUSED(nvrtc_choose(&choice, "sm_90a"), status,
            "NVRTC: kernels for sm_90a need a copy of 12.0 or newer that supports the chip%s; none of the copies "
            "found is usable: %s/%s: %s. Name another in WEFT_NVRTC, unset it, or: %s.",
            driver, scratch, folder, verdict, install);
}

static const char either[] =
    "pip install nvidia-cuda-nvrtc (needs driver 580 or newer; nvidia-cuda-nvrtc-cu12 needs 525)";

static void too_old(void) {
    refused_choice("11/libnvrtc.so.11 (11.8)", WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                   "it is older than 12.0", either);
}

static void too_new(void) {
    refused_choice("13/libnvrtc.so.13 (13.0)", WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
                   "it is newer than the driver, which supports CUDA 12.9", "pip install nvidia-cuda-nvrtc-cu12");
}

static void wrong_chip(void) {
    refused_choice("later/libnvrtc.so.13 (13.0)", WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
                   "it supports sm_100 to sm_120 but not sm_90", either);
}

static void broken_file(void) {
    char verdict[600];
    snprintf(verdict, sizeof verdict, "it cannot be loaded: %s/broken/libnvrtc.so.13: file too short", scratch);
    refused_choice("broken/libnvrtc.so.13", WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING, verdict, either);
}

static void another_library(void) {
    refused_choice("other/libnvrtc.so.13", WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                   "it lacks nvrtcVersion", either);
}

static void no_archs(void) {
    refused_choice("silent/libnvrtc.so.13", WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                   "it does not report its version and architectures", either);
}

/* ---- Searching all folders: copies of version 19.x have priority over those of the machine ----------------------- */

static void found_as(const char *how, const char *folder) {
    struct text json;
    char wanted[640];
    text_init(&json);
    nvrtc_report(&json, "sm_90a");
    snprintf(wanted, sizeof wanted, "{\"path\":\"%s/%s\",\"found_by\":\"%s\",\"version\":\"19.0\"", scratch, folder,
             how);
    const char *at = strstr(text_string(&json), wanted);
    CHECK(at && strstr(at, "\"is_chosen\":true"), "%s in %s", wanted, text_string(&json));
    text_free(&json);
}

static void in_search_paths(void) {
    char paths[1200];
    struct nvrtc_choice choice;
    nvrtc_set_search_paths("/nowhere::/tmp");
    status_clear();
    weftStatus_t before = nvrtc_choose(&choice, "sm_90a"); /* the machine may have its own copy */
    CHECK(before || choice.version < 19000, "%d", choice.version);
    snprintf(paths, sizeof paths, "/nowhere:%s", place("site"));
    nvrtc_set_search_paths(paths); /* Python may set them late */
    found_as("search paths", "site/nvidia/cu13/lib/libnvrtc.so.13");
    nvrtc_set_search_paths(NULL); /* the chosen copy stays */
    found_as("search paths", "site/nvidia/cu13/lib/libnvrtc.so.13");
}

static void in_old_wheel(void) {
    nvrtc_set_search_paths(place("oldsite"));
    found_as("search paths", "oldsite/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
}

static void loaded_already(void) {
    CHECK(dlopen(place("site/nvidia/cu13/lib/libnvrtc.so.13"), RTLD_NOW), "%s", dlerror());
    found_as("loaded already", "site/nvidia/cu13/lib/libnvrtc.so.13");
}

static void in_conda(void) { found_as("CONDA_PREFIX", "conda/lib/libnvrtc.so.12"); }
static void in_cuda_home(void) { found_as("CUDA_HOME", "toolkit/lib64/libnvrtc.so.13"); }
static void in_cuda_path(void) { found_as("CUDA_PATH", "toolkit/lib64/libnvrtc.so.13"); }

static void install_copies(void) {
    install_nvrtc("13", 13, "version 13 0\narchs 80 86 90\n");
    install_nvrtc("same", 13, "version 13 0\narchs 80 86 90\n");
    install_nvrtc("12", 12, "version 12 9\narchs 75 90 120\n");
    install_nvrtc("11", 11, "version 11 8\narchs 75 90\n");
    install_nvrtc("later", 13, "version 13 0\narchs 100 120\n");
    install_nvrtc("silent", 13, "archs\n");
    copy_file(FAKE_NVRTC, "13", "libnvrtc-builtins.so.13.0");
    copy_file(FAKE_NVRTC, "same", "libnvrtc-builtins.so.13.0");
    copy_file(FAKE_NVRTC, "12", "libnvrtc-builtins.so.12.9");
    install_nvrtc("incomplete", 13, "version 13 0\narchs 80 86 90\n");
    copy_file(FAKE_CUDA, "other", "libnvrtc.so.13");
    make_folder(place("broken"));
    write_text(place("broken/libnvrtc.so.13"), "no library");
    make_folder(place("empty"));
    install_nvrtc("site/nvidia/cu13/lib", 13, "version 19 0\n");
    install_nvrtc("oldsite/nvidia/cuda_nvrtc/lib", 12, "version 19 0\n");
    install_nvrtc("conda/lib", 12, "version 19 0\n");
    install_nvrtc("toolkit/lib64", 13, "version 19 0\n");
}

static void test_choosing(void) {
    const char *driver = "WEFT_LIBCUDA=" FAKE_CUDA, *none = "WEFT_LIBCUDA=/nowhere";
    char both[1200], four[2400];
    snprintf(both, sizeof both, "WEFT_NVRTC=%s:%s", place("13"), place("12/libnvrtc.so.12"));
    snprintf(four, sizeof four, "WEFT_NVRTC=%s:%s:%s:%s", place("13"), place("same"), place("12"), place("11"));
    IN_CHILD(no_driver_takes_newest, both, none);
    IN_CHILD(driver_13_takes_13, both, driver);
    IN_CHILD(driver_12_takes_12, both, driver, "FAKE_CUDA_VERSION=12040");
    snprintf(both, sizeof both, "WEFT_NVRTC=%s:%s", place("incomplete"), place("12"));
    IN_CHILD(missing_builtins_are_the_last_resort, both, driver);
    snprintf(both, sizeof both, "WEFT_NVRTC=%s:%s", place("13"), place("12/libnvrtc.so.12"));
    IN_CHILD(each_arch_its_copy, both, driver);
    IN_CHILD(ptx_for_new_chip, both, driver, "FAKE_CUDA_VERSION=12090");
    IN_CHILD(ptx_for_new_chip, both, driver, "FAKE_CUDA_VERSION=13000");
    IN_CHILD(no_ptx_for_older_driver, both, driver, "FAKE_CUDA_VERSION=12080");
    IN_CHILD(first_of_equals, four, none);
    IN_CHILD(nothing_there, place_variable("WEFT_NVRTC", "empty"), none);
    IN_CHILD(nothing_there, "WEFT_NVRTC=/nowhere", none);
    IN_CHILD(none_found, none);
    IN_CHILD(too_old, place_variable("WEFT_NVRTC", "11"), none);
    IN_CHILD(too_new, place_variable("WEFT_NVRTC", "13"), driver, "FAKE_CUDA_VERSION=12090");
    IN_CHILD(wrong_chip, place_variable("WEFT_NVRTC", "later"), none);
    IN_CHILD(broken_file, place_variable("WEFT_NVRTC", "broken"), none);
    IN_CHILD(another_library, place_variable("WEFT_NVRTC", "other"), none);
    IN_CHILD(no_archs, place_variable("WEFT_NVRTC", "silent"), none);
    IN_CHILD(in_search_paths, none);
    IN_CHILD(in_old_wheel, none);
    IN_CHILD(loaded_already, none);
    IN_CHILD(in_conda, none, place_variable("CONDA_PREFIX", "conda"));
    IN_CHILD(in_cuda_home, none, place_variable("CUDA_HOME", "toolkit"));
    IN_CHILD(in_cuda_path, none, place_variable("CUDA_PATH", "toolkit"));
}

/* ---- Compiling --------------------------------------------------------------------------------------------------- */

static void compiling(void) {
    const struct code *code;
    const struct program_header headers[] = {{"core/math.cuh", "int f();\n\n\t  #error no f\n"}};
    struct program program = program_of(simple_text);
    DO(cache_get(&code, &program, "sm_90a"));
    EXACTLY(code->image, "FAKECUBIN sm_90a\nkernel k -1 0\n// option --gpu-architecture=sm_90a\n// option --std=c++17\n"
                         "// option -default-device\n");
    CHECK(code->bytes == strlen(code->image) + 1 && !code->is_ptx && !*code->log, "%zu bytes", code->bytes);
    EXACTLY(code->name, "test.cu");
    cache_release(code);
    program.text = "int x;\n  #error too new\n";
    REFUSED(
        cache_get(&code, &program, "sm_90a"), WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED,
        "NVRTC 13.0, sm_90a: 'test.cu' does not compile: test.cu line 2: #error directive: too new: `#error too new`. "
        "This is a defect of Weft: report it with the program, which WEFT_DUMP_DIR=<folder> saves. Log:\ntest.cu(2): "
        "error: "
        "#error directive: too new\n  #error too new\n   ^\n\n1 error detected in the compilation of \"test.cu\".\n");
    CHECK(!code, "a refused cache_get gives none");
    program.text = simple_text;
    program.header_count = 1;
    program.headers = headers;
    REFUSED(
        cache_get(&code, &program, "sm_90a"), WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED,
        "NVRTC 13.0, sm_90a: 'test.cu' does not compile: core/math.cuh line 3: #error directive: no f: `#error no f`. "
        "This is a defect of Weft: report it with the program, which WEFT_DUMP_DIR=<folder> saves. "
        "Log:\ncore/math.cuh(3): "
        "error: #error directive: no f\n  #error no f\n   ^\n\n1 error detected in the compilation of \"test.cu\".\n");
}

/* One folder whose settings change: a failure is not cached. */
static void failing(void) {
    const struct code *code;
    struct program program = program_of(simple_text);
    write_text(place("compiler/fake_nvrtc.txt"), "result 1\n");
    REFUSED(cache_get(&code, &program, "sm_90a"), WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
            "NVRTC 13.0, sm_90a: out of host memory while 'test.cu' was compiled. Free memory or build fewer plans at "
            "once.");
    write_text(place("compiler/fake_nvrtc.txt"), "result 7\n");
    REFUSED(cache_get(&code, &program, "sm_90a"), WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
            "NVRTC 13.0: '%s/compiler/libnvrtc.so.13' cannot use its own libnvrtc-builtins.so.13.0, which must be in "
            "the same folder. Reinstall NVRTC: %s.",
            scratch, either);
    write_text(place("compiler/fake_nvrtc.txt"), "result 5\n");
    REFUSED(cache_get(&code, &program, "sm_90a"), WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED,
            "NVRTC 13.0, sm_90a: 'test.cu' does not compile: NVRTC_ERROR_OTHER. This is a defect of Weft: report it "
            "with the program, which WEFT_DUMP_DIR=<folder> saves. Log: empty");
    write_text(place("compiler/fake_nvrtc.txt"), "empty\n");
    REFUSED(cache_get(&code, &program, "sm_90a"), WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED,
            "NVRTC 13.0, sm_90a: it compiled a program but produced no code (NVRTC_SUCCESS). Reinstall NVRTC: %s.",
            either);
    write_text(place("compiler/fake_nvrtc.txt"), "");
    DO(cache_get(&code, &program, "sm_90a"));
    cache_release(code);
    CHECK(reported("\"compiled\":") == 5 && reported("\"in_memory\":") == 1, "five tries, one result");
    atomic_int *left = dlsym(dlopen(place("compiler/libnvrtc.so.13"), RTLD_NOW), "fake_nvrtc_alive");
    CHECK(*left == 0, "%d programs of NVRTC leaked", *left);
}

static void dumping(void) {
    static const struct {
        const char *name, *text;
    } files[] = {{"test.cu", simple_text},
                 {"core/math.cuh", "int f();\n"},
                 {"options.txt", "NVRTC 13.0\n--gpu-architecture=sm_90a\n--std=c++17\n-default-device\n"},
                 {"log.txt", ""}};
    const struct program_header headers[] = {{"core/math.cuh", "int f();\n"}, {"../../escaped", "never written"}};
    struct program program = program_of(simple_text);
    const struct code *code;
    size_t bytes;
    program.header_count = 2;
    program.headers = headers;
    DO(cache_get(&code, &program, "sm_90a"));
    DIR *root = opendir(place("dump"));
    char folder[300] = "";
    for (struct dirent *item; root && (item = readdir(root));)
        if (strncmp(item->d_name, "test.cu-", 8) == 0 && strlen(item->d_name) == 8 + 12)
            snprintf(folder, sizeof folder, "dump/%s", item->d_name);
    CHECK(root && *folder, "no folder for the program");
    closedir(root);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *text = read_whole(place("%s/%s", folder, files[i].name), &bytes);
        EXACTLY(text ? text : "nothing", "%s", files[i].text);
        free(text);
    }
    char *image = read_whole(place("%s/image.cubin", folder), &bytes);
    CHECK(image && bytes == code->bytes && memcmp(image, code->image, bytes) == 0, "the machine code");
    free(image);
    CHECK(access(place("escaped"), F_OK) != 0, "a header's name left the folder");
    cache_release(code);
}

/* Captures stderr while `work` runs. */
static void hear_errors(char *said, size_t bytes, void (*work)(void)) {
    FILE *file = tmpfile();
    int kept = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    work();
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    said[fread(said, 1, bytes - 1, file)] = 0;
    fclose(file);
}

static void compile_two(void) {
    static const char *const texts[] = {"__global__ void k() {}", "__global__ void l() {}"};
    for (int i = 0; i < 2; i++) {
        struct program program = program_of(texts[i]);
        const struct code *code;
        DO(cache_get(&code, &program, "sm_90a"));
        cache_release(code);
    }
}

static void dumping_nowhere(void) {
    char said[512];
    hear_errors(said, sizeof said, compile_two);
    EXACTLY(said, "weft warning: WEFT_DUMP_DIR is '/dev/null/dump', where files cannot be written. Name a writable "
                  "folder.\n");
}

/* ---- Keys and memory --------------------------------------------------------------------------------------------- */

/* Each part of a program changes the key; the same program has the same key. */
static void keys(void) {
    static const char *const one[] = {"-a", "-b"}, *const swapped[] = {"-b", "-a"}, *const joined[] = {"-a-b"};
    static const struct program_header header = {"a.cuh", "x"}, renamed = {"b.cuh", "x"}, edited = {"a.cuh", "y"},
                                       moved = {"a.cu", "hx"};
    static const char *const texts[] = {"__global__ void k() {}", "__global__ void k() {} "};
    const struct program programs[] = {
        {.name = "p", .text = texts[0], .option_count = 2, .options = one},
        {.name = "q", .text = texts[0], .option_count = 2, .options = one},
        {.name = "p", .text = texts[1], .option_count = 2, .options = one},
        {.name = "p__global__ ", .text = texts[0] + 11, .option_count = 2, .options = one},
        {.name = "p", .text = texts[0], .option_count = 2, .options = swapped},
        {.name = "p", .text = texts[0], .option_count = 1, .options = joined},
        {.name = "p", .text = texts[0], .option_count = 1, .options = one},
        {.name = "p", .text = texts[0], .header_count = 1, .headers = &header},
        {.name = "p", .text = texts[0], .header_count = 1, .headers = &renamed},
        {.name = "p", .text = texts[0], .header_count = 1, .headers = &edited},
        {.name = "p", .text = texts[0], .header_count = 1, .headers = &moved},
    };
    enum { COUNT = sizeof programs / sizeof *programs };
    const struct code *first[COUNT], *other, *again;
    for (int i = 0; i < COUNT; i++)
        DO(cache_get(&first[i], &programs[i], "sm_90a"));
    CHECK(reported("\"compiled\":") == COUNT, "%lld", (long long)reported("\"compiled\":"));
    uint8_t digest[32]; /* headers with the same digest are the same headers */
    struct program known = programs[7];
    cache_digest_headers(digest, &header, 1);
    known.headers_digest = digest;
    DO(cache_get(&again, &known, "sm_90a"));
    CHECK(again == first[7], "by its digest");
    cache_release(again);
    uint8_t identity[32]; /* a program with an identity is not hashed again for that target */
    cache_identify(identity, &known, "sm_90a");
    known.identity = identity;
    known.text = "not looked at";
    DO(cache_get(&again, &known, "sm_90a"));
    CHECK(again == first[7], "by its identity");
    cache_release(again);
    DO(cache_get(&other, &programs[0], "sm_90"));
    CHECK(reported("\"compiled\":") == COUNT + 1, "another target is another program");
    for (int i = 0; i < COUNT; i++) {
        DO(cache_get(&again, &programs[i], "sm_90a"));
        CHECK(again == first[i], "program %d", i);
        cache_release(again);
        cache_release(first[i]);
    }
    cache_release(other);
    cache_release(NULL);
    CHECK(reported("\"compiled\":") == COUNT + 1 && reported("\"shared\":") == COUNT + 2, "all shared");
}

/* Sets reached[i][j] if device file i is j or includes it, directly or not. */
static void find_includes(bool reached[DEVICE_FILES_MAX][DEVICE_FILES_MAX]) {
    int count;
    char line[128];
    const struct program_header *files = device_files(&count);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            snprintf(line, sizeof line, "#include \"%s\"", files[j].name);
            reached[i][j] = i == j || strstr(files[i].text, line);
        }
    for (int k = 0; k < count; k++)
        for (int i = 0; i < count; i++)
            for (int j = 0; j < count; j++)
                reached[i][j] = reached[i][j] || (reached[i][k] && reached[k][j]);
}

/* The headers of a text that includes files i and j are those that either reaches, and the key covers the names and
   texts of these and of no others. */
static void check_headers(const bool *of_i, const bool *of_j, const char *text) {
    struct program_header headers[DEVICE_FILES_MAX];
    uint8_t digest[32], expected[32], each[32];
    struct sha256 hash;
    int count, found = kernel_headers(headers, digest, text), next = 0;
    const struct program_header *files = device_files(&count);
    sha256_init(&hash);
    for (int k = 0; k < count; k++)
        if (of_i[k] || of_j[k]) {
            CHECK(next < found && headers[next].text == files[k].text, "%s reaches %s", text, files[k].name);
            cache_digest_headers(each, &files[k], 1);
            sha256_update(&hash, each, sizeof each);
            next++;
        }
    sha256_final(expected, &hash);
    CHECK(next == found && memcmp(digest, expected, sizeof digest) == 0, "%s", text);
}

static void headers_of_texts(void) {
    static bool reached[DEVICE_FILES_MAX][DEVICE_FILES_MAX], none[DEVICE_FILES_MAX];
    char text[256];
    int count;
    const struct program_header *files = device_files(&count);
    find_includes(reached);
    for (int i = 0; i < count; i++) {
        int j = (i * 7 + 3) % count; /* another file, in either order */
        snprintf(text, sizeof text, "#include \"%s\"\n", files[i].name);
        check_headers(reached[i], none, text);
        snprintf(text, sizeof text, "#include \"%s\"\n#include \"%s\"\n", files[j].name, files[i].name);
        check_headers(reached[i], reached[j], text);
    }
    check_headers(none, none, "#include \"core/no_such_file.cuh\"\n// core/math.cuh\n");
}

/* Unreferenced code is evicted if the cache is too large, least recently used first; referenced code stays. */
static void idle_code(void) {
    enum { MIB = 1 << 20, COUNT = 6 };
    const struct code *codes[COUNT], *again;
    char *image = calloc(1, 20 * MIB);
    for (int i = 0; i < COUNT; i++) {
        image[0] = (char)i;
        DO(cache_adopt(&codes[i], "big", image, 20 * MIB, false));
    }
    CHECK(reported("\"in_memory\":") == COUNT, "held");
    for (int i = 0; i < COUNT - 1; i++)
        cache_release(codes[(i + 2) % COUNT]); /* 2 3 4 5 0; 1 stays referenced */
    CHECK(reported("\"in_memory\":") == 4, "%lld: three idle, one held", (long long)reported("\"in_memory\":"));
    for (int i = 0; i < COUNT; i++) {
        int64_t before = reported("\"shared\":");
        if (i == 2 || i == 3)
            continue; /* evicted */
        image[0] = (char)i;
        DO(cache_adopt(&again, "big", image, 20 * MIB, false));
        CHECK(reported("\"shared\":") == before + 1, "code %d was there", i);
        cache_release(again);
    }
    cache_release(codes[1]);
    free(image);
}

/* ---- Threads: one compiles, all get the code or the error -------------------------------------------------------- */

static const char *shared_text;
static weftStatus_t thread_status[THREADS];
static char thread_text[THREADS][1024];
static const struct code *thread_code[THREADS];

static void *get_code(void *index) {
    intptr_t i = (intptr_t)index;
    struct program program = program_of(shared_text);
    thread_status[i] = cache_get(&thread_code[i], &program, "sm_90a");
    snprintf(thread_text[i], sizeof thread_text[i], "%s", status_text());
    return NULL;
}

static void get_code_together(const char *text) {
    pthread_t threads[THREADS];
    shared_text = text;
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, get_code, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void together(void) {
    get_code_together(simple_text);
    for (int i = 0; i < THREADS; i++) {
        CHECK(!thread_status[i] && thread_code[i] == thread_code[0], "thread %d: %s", i, thread_text[i]);
        cache_release(thread_code[i]);
    }
    CHECK(reported("\"compiled\":") == 1 && reported("\"shared\":") == THREADS - 1, "compiled once");
    get_code_together("#error no\n");
    for (int i = 0; i < THREADS; i++) {
        CHECK(thread_status[i] == WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED && !thread_code[i], "thread %d", i);
        CHECK(strcmp(thread_text[i], thread_text[0]) == 0 && strstr(thread_text[i], "test.cu line 1"), "%s",
              thread_text[i]);
    }
    CHECK(reported("\"compiled\":") == 2, "failed once");
    CHECK(reported("\"in_memory\":") == 1, "the failure is not kept");
}

static void *get_many(void *index) {
    for (int i = 0; i < 100; i++) {
        char text[64];
        const struct code *code;
        snprintf(text, sizeof text, "// %d\n%s", ((int)(intptr_t)index + i) % 10,
                 i % 13 == 12 ? "#error no\n" : simple_text);
        struct program program = program_of(text);
        weftStatus_t status = cache_get(&code, &program, "sm_90a");
        CHECK((status == WEFT_STATUS_SUCCESS) == (i % 13 != 12), "%d: %s", i, last_error());
        cache_release(code);
    }
    return NULL;
}

static void many_threads(void) {
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, get_many, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(reported("\"in_memory\":") == 10, "%lld", (long long)reported("\"in_memory\":"));
}

/* ---- Disk -------------------------------------------------------------------------------------------------------- */

static const char *disk_text = simple_text; /* the program that the scenarios below compile */

static void get_and_release(void) {
    const struct code *code;
    struct program program = program_of(disk_text);
    DO(cache_get(&code, &program, "sm_90a"));
    CHECK(strncmp(code->image, "FAKECUBIN sm_90a\n", 17) == 0 && code->bytes == strlen(code->image) + 1, "right code");
    cache_release(code);
}

static void compiles_anew(void) {
    get_and_release();
    CHECK(reported("\"compiled\":") == 1 && reported("\"hits\":") == 0, "compiled");
}

static void finds_on_disk(void) {
    get_and_release();
    CHECK(reported("\"compiled\":") == 0 && reported("\"hits\":") == 1, "found");
}

/* Drops the entry, logs that, compiles, and stores a valid entry. */
static void heals(void) {
    watch_log();
    get_and_release();
    CHECK(reported("\"compiled\":") == 1 && reported("\"damaged\":") == 1 && reported("\"saved\":") == 1, "healed");
    CHECK(strstr(logged, "kernel cache: '") && strstr(logged, "it is dropped and compiled again."), "logged: %s",
          logged);
}

static void unused_but_fine(void) {
    watch_log();
    compiles_anew();
    CHECK(reported("\"saved\":") == 0 && !*logged, "quiet: %s", logged);
}

/* Returns the only entry of a cache folder. */
static const char *entry_of(const char *folder) {
    static char name[400];
    DIR *items = opendir(place("%s", folder));
    name[0] = '\0';
    for (struct dirent *item; items && (item = readdir(items));)
        if (item->d_name[0] != '.') {
            CHECK(!*name && strlen(item->d_name) == 69, "%s", item->d_name);
            snprintf(name, sizeof name, "%s/%s", folder, item->d_name);
        }
    if (items)
        closedir(items);
    return name;
}

static void write_bytes(const char *path, const char *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || (bytes && fwrite(data, bytes, 1, file) != 1) || fclose(file) != 0)
        abort();
}

/* Another build of the same compiler version may generate different code. */
static void test_rebuilt_compiler(const char *compiler) {
    char cache[600];
    snprintf(cache, sizeof cache, "%s", place_variable("WEFT_CACHE_DIR", "builds"));
    install_nvrtc("rebuilt", 13, "");
    FILE *library = fopen(place("rebuilt/libnvrtc.so.13"), "ab");
    if (!library || fputc(0, library) < 0 || fclose(library) != 0)
        abort();
    IN_CHILD(compiles_anew, compiler, cache, "WEFT_CACHE=rw");
    IN_CHILD(compiles_anew, place_variable("WEFT_NVRTC", "rebuilt"), cache, "WEFT_CACHE=rw");
    IN_CHILD(finds_on_disk, compiler, cache, "WEFT_CACHE=rw");
}

static void test_damage(const char *compiler, const char *cache) {
    size_t bytes, other_bytes;
    char path[512];
    snprintf(path, sizeof path, "%s", place("%s", entry_of("cache")));
    char *good = read_whole(path, &bytes), *bad = malloc(bytes + 1);
    for (size_t at = 0; at < bytes; at += at < 84 ? 4 : 29) { /* header fields, and some payload bytes */
        memcpy(bad, good, bytes);
        bad[at] ^= 0x10;
        write_bytes(path, bad, bytes);
        IN_CHILD(heals, compiler, cache, "WEFT_CACHE=rw");
    }
    const size_t lengths[] = {0, 1, 83, 84, bytes - 1, bytes + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(bad, good, bytes);
        bad[bytes] = 0;
        write_bytes(path, bad, lengths[i]);
        IN_CHILD(heals, compiler, cache, "WEFT_CACHE=rw");
    }
    IN_CHILD(finds_on_disk, compiler, cache, "WEFT_CACHE=rw");

    /* A valid entry of another program under this name. */
    disk_text = "__global__ void other() {}\n";
    IN_CHILD(compiles_anew, compiler, place_variable("WEFT_CACHE_DIR", "others"), "WEFT_CACHE=rw");
    disk_text = simple_text;
    char *other = read_whole(place("%s", entry_of("others")), &other_bytes);
    write_bytes(path, other, other_bytes);
    free(other);
    IN_CHILD(heals, compiler, cache, "WEFT_CACHE=rw");

    /* Entries that are not regular files: a link to a valid entry, a pipe, a folder. */
    write_bytes(place("elsewhere"), good, bytes);
    unlink(path);
    CHECK(symlink(place("elsewhere"), path) == 0, "symlink");
    IN_CHILD(heals, compiler, cache, "WEFT_CACHE=rw");
    unlink(path);
    CHECK(mkfifo(path, 0600) == 0, "mkfifo");
    IN_CHILD(heals, compiler, cache, "WEFT_CACHE=rw");
    char *now = read_whole(path, &other_bytes);
    CHECK(other_bytes == bytes && memcmp(now, good, bytes) == 0, "healed entries are as before");
    free(now);
    free(good);
    free(bad);
}

static void ignored_folder(const char *why) {
    watch_log();
    compiles_anew();
    EXACTLY(logged, "kernel cache: '%s' %s\n", getenv("WEFT_CACHE_DIR"), why);
    CHECK(reported("\"saved\":") == 0, "nothing kept");
}

static void others_can_write(void) {
    ignored_folder(
        "is ignored: others can write it, who could plant code there. Set WEFT_CACHE_DIR to a folder that only you "
        "can write (chmod 700).");
}

static void belongs_to_another(void) {
    ignored_folder(
        "is ignored: it belongs to another user, who could plant code there. Set WEFT_CACHE_DIR to a folder that "
        "only you can write (chmod 700).");
}

static void is_a_link(void) {
    ignored_folder("cannot be opened (it is a link or not a folder). Every process compiles its kernels again; set "
                   "WEFT_CACHE_DIR to a folder of yours, or WEFT_CACHE=off to silence this warning.");
}

static void cannot_be_made(void) {
    ignored_folder(
        "cannot be opened (No such file or directory). Every process compiles its kernels again; set WEFT_CACHE_DIR "
        "to a folder of yours, or WEFT_CACHE=off to silence this warning.");
}

static void no_home(void) {
    watch_log();
    compiles_anew();
    EXACTLY(logged, "kernel cache: no folder for it: HOME is not set. Set WEFT_CACHE_DIR, or WEFT_CACHE=off to silence "
                    "this warning.\n");
}

/* Invalid settings cause one warning on stderr. */
static void bad_mode(void) {
    char said[512];
    hear_errors(said, sizeof said, finds_on_disk);
    EXACTLY(said, "weft warning: WEFT_CACHE is 'yes', which is not rw, ro or off. It is taken as rw.\n");
}

static void test_folders(const char *compiler) {
    struct stat info;
    make_folder(place("open"));
    chmod(place("open"), 0770);
    IN_CHILD(others_can_write, compiler, place_variable("WEFT_CACHE_DIR", "open"), "WEFT_CACHE=rw");
    CHECK(symlink(place("cache"), place("link")) == 0, "symlink");
    IN_CHILD(is_a_link, compiler, place_variable("WEFT_CACHE_DIR", "link"), "WEFT_CACHE=rw");
    write_text(place("file"), "");
    IN_CHILD(is_a_link, compiler, place_variable("WEFT_CACHE_DIR", "file"), "WEFT_CACHE=rw");
    IN_CHILD(cannot_be_made, compiler, place_variable("WEFT_CACHE_DIR", "absent"), "WEFT_CACHE=ro");
    IN_CHILD(no_home, compiler, "HOME=", "XDG_CACHE_HOME=", "WEFT_CACHE=rw");
    IN_CHILD(bad_mode, compiler, place_variable("WEFT_CACHE_DIR", "cache"), "WEFT_CACHE=yes");
    if (geteuid() == 0) {
        make_folder(place("foreign"));
        CHECK(chown(place("foreign"), 12345, 12345) == 0, "chown");
        IN_CHILD(belongs_to_another, compiler, place_variable("WEFT_CACHE_DIR", "foreign"), "WEFT_CACHE=rw");
    } else {
        printf("not observed: a cache folder of another user (only root can make one)\n");
    }
    /* Default location: a new folder that only this user can access, inside the existing one. */
    IN_CHILD(compiles_anew, compiler, place_variable("XDG_CACHE_HOME", "xdg"), "WEFT_CACHE=rw");
    CHECK(stat(place("xdg/weft/v1"), &info) == 0 && (info.st_mode & 07777) == 0700, "0700");
    CHECK(stat(place("%s", entry_of("xdg/weft/v1")), &info) == 0 && (info.st_mode & 07777) == 0600, "0600");
    IN_CHILD(finds_on_disk, compiler, place_variable("XDG_CACHE_HOME", "xdg"), "WEFT_CACHE=rw");
    IN_CHILD(compiles_anew, compiler, place_variable("HOME", "home"), "XDG_CACHE_HOME=", "WEFT_CACHE=rw");
    CHECK(*entry_of("home/.cache/weft/v1"), "~/.cache/weft/v1");
    IN_CHILD(unused_but_fine, compiler, place_variable("HOME", "home"), "XDG_CACHE_HOME=", "WEFT_CACHE=off");
}

/* ro: reads entries, but does not store, repair or mark them as used. */
static void only_read(void) {
    watch_log();
    get_and_release();
    CHECK(reported("\"hits\":") == 1 && reported("\"saved\":") == 0, "found");
    disk_text = "__global__ void another() {}\n";
    get_and_release();
    CHECK(reported("\"compiled\":") == 1 && reported("\"saved\":") == 0 && !*logged, "%s", logged);
}

static void only_read_damaged(void) {
    watch_log();
    compiles_anew();
    CHECK(reported("\"damaged\":") == 1 && reported("\"saved\":") == 0, "not repaired");
}

static void test_read_only(const char *compiler, const char *cache) {
    char path[512];
    struct stat before, after;
    snprintf(path, sizeof path, "%s", place("%s", entry_of("cache")));
    const struct timespec long_ago[2] = {{1000000, 0}, {1000000, 0}};
    utimensat(AT_FDCWD, path, long_ago, 0);
    IN_CHILD(only_read, compiler, cache, "WEFT_CACHE=ro");
    CHECK(stat(path, &after) == 0 && after.st_mtim.tv_sec == 1000000, "ro does not mark as used");
    IN_CHILD(finds_on_disk, compiler, cache, "WEFT_CACHE=rw");
    CHECK(stat(path, &after) == 0 && after.st_mtim.tv_sec > 1000000, "rw does");
    CHECK(truncate(path, 50) == 0 && stat(path, &before) == 0, "truncate");
    IN_CHILD(only_read_damaged, compiler, cache, "WEFT_CACHE=ro");
    CHECK(stat(path, &after) == 0 && after.st_ino == before.st_ino && after.st_size == 50, "ro leaves it");
    IN_CHILD(heals, compiler, cache, "WEFT_CACHE=rw");
}

/* ---- The size limit ---------------------------------------------------------------------------------------------- */

/* Four programs of about 20 kB each in a cache of 70 kB: the fourth evicts the least recently used one. */
static char *big_text(int which) {
    static char text[24000];
    int length = snprintf(text, sizeof text, "// %d\n", which);
    for (int i = 0; i < 300; i++)
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "__global__ void kernel_with_a_long_name_so_that_images_are_large_%d() {}\n", i);
    return text;
}

static void get_big(int which, bool is_new) {
    int64_t before = reported("\"compiled\":");
    disk_text = big_text(which);
    get_and_release();
    CHECK(reported("\"compiled\":") == before + is_new, "program %d", which);
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* resolution of file time stamps */
}

static void fill(void) {
    get_big(0, true);
    get_big(1, true);
    get_big(2, true);
    CHECK(reported("\"evicted\":") == 0 && reported("\"entries\":") == 3, "all fit");
}

static void overflow(void) {
    get_big(0, false); /* used again: 1 is now the oldest */
    get_big(3, true);
    CHECK(reported("\"evicted\":") == 1 && reported("\"entries\":") == 3, "%lld evicted, %lld left",
          (long long)reported("\"evicted\":"), (long long)reported("\"entries\":"));
    CHECK(reported("\"bytes\":") <= 70000 && reported("\"limit\":") == 70000, "%lld bytes",
          (long long)reported("\"bytes\":"));
}

static void after_overflow(void) {
    get_big(0, false);
    get_big(2, false);
    get_big(3, false);
}

static void drives_out_all(void) {
    get_big(4, true);
    CHECK(reported("\"entries\":") == 0, "larger than the limit: not kept");
}

static void test_limit(const char *compiler) {
    const char *limit = "WEFT_CACHE_BYTES=70000";
    char cache[600];
    struct stat info;
    snprintf(cache, sizeof cache, "%s", place_variable("WEFT_CACHE_DIR", "small"));
    IN_CHILD(fill, compiler, cache, limit, "WEFT_CACHE=rw");
    write_text(place("small/.tmp-1-1-1"), "left by a process that died");
    write_text(place("small/.tmp-2-2-2"), "being written");
    const struct timespec long_ago[2] = {{1000000, 0}, {1000000, 0}};
    utimensat(AT_FDCWD, place("small/.tmp-1-1-1"), long_ago, 0);
    IN_CHILD(overflow, compiler, cache, limit, "WEFT_CACHE=rw");
    CHECK(stat(place("small/.tmp-1-1-1"), &info) != 0 && stat(place("small/.tmp-2-2-2"), &info) == 0, "stale files go");
    IN_CHILD(after_overflow, compiler, cache, limit, "WEFT_CACHE=rw");
    IN_CHILD(drives_out_all, compiler, cache, "WEFT_CACHE_BYTES=1000", "WEFT_CACHE=rw");
}

/* ---- Concurrent processes ---------------------------------------------------------------------------------------- */

static void test_processes(const char *compiler) {
    pid_t children[4];
    fflush(NULL);
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            atomic_store(&harness_failures, 0);
            IN_CHILD(many_threads, compiler, place_variable("WEFT_CACHE_DIR", "busy"), "WEFT_CACHE=rw");
            exit(harness_end());
        }
    }
    for (int i = 0; i < 4; i++) {
        int status = -1;
        waitpid(children[i], &status, 0);
        CHECK(status == 0, "process %d: %x", i, (unsigned)status);
    }
}

int main(void) {
    char compiler[600], slow[600], cache[600];
    install_copies();
    RUN(test_choosing());

    install_nvrtc("compiler", 13, "");
    install_nvrtc("slow", 13, "delay 100\n");
    snprintf(compiler, sizeof compiler, "%s", place_variable("WEFT_NVRTC", "compiler"));
    snprintf(slow, sizeof slow, "%s", place_variable("WEFT_NVRTC", "slow"));
    snprintf(cache, sizeof cache, "%s", place_variable("WEFT_CACHE_DIR", "cache"));
    IN_CHILD(compiling, compiler);
    IN_CHILD(failing, compiler);
    IN_CHILD(dumping, compiler, place_variable("WEFT_DUMP_DIR", "dump"));
    IN_CHILD(dumping_nowhere, compiler, "WEFT_DUMP_DIR=/dev/null/dump");
    IN_CHILD(keys, compiler);
    RUN(headers_of_texts());
    IN_CHILD(idle_code, compiler);
    IN_CHILD(together, slow);
    IN_CHILD(many_threads, compiler);

    IN_CHILD(compiles_anew, compiler, cache, "WEFT_CACHE=rw");
    IN_CHILD(finds_on_disk, compiler, cache, "WEFT_CACHE=rw");
    IN_CHILD(compiles_anew, slow, cache, "WEFT_CACHE=off");
    RUN(test_rebuilt_compiler(compiler));
    RUN(test_damage(compiler, cache));
    RUN(test_folders(compiler));
    RUN(test_read_only(compiler, cache));
    RUN(test_limit(compiler));
    RUN(test_processes(compiler));
    remove_scratch();
    return harness_end();
}
