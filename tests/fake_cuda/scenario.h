/* SPDX-License-Identifier: Apache-2.0 */
/* Support for tests of events that occur once per process (loading the driver, finding compilers, opening the cache):
   each scenario runs against the fakes in a child process with its own environment. */
#ifndef WEFT_TESTS_SCENARIO_H
#define WEFT_TESTS_SCENARIO_H

#include "../c/harness.h"
#include "base/status.h"
#include "fake_cuda.h"

#include <dirent.h>
#include <dlfcn.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A call of an internal function that must succeed; the previous error is cleared first, like at an API entry. */
#define DO(call) (status_clear(), must(__FILE__, __LINE__, #call, call))

#define EXACTLY(got, ...) exactly(__FILE__, __LINE__, got, __VA_ARGS__)
static inline void exactly(const char *file, int line, const char *got, const char *format, ...) {
    char wanted[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wanted, sizeof wanted, format, arguments);
    va_end(arguments);
    if (strcmp(got, wanted) == 0)
        return;
    atomic_fetch_add(&harness_failures, 1);
    printf("%s:%d\n  expected %s\n  got      %s\n", file, line, wanted, got);
}

/* ---- The fake driver --------------------------------------------------------------------------------------------- */

static const struct fake_cuda *fake;

static inline void open_fake(void) {
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    fake = library ? dlsym(library, "fake_cuda") : NULL;
    if (!fake)
        abort();
}

/* Checks that only contexts are left, which live as long as the process (-1: any number of them), and that no rule of
   the driver was violated. */
static inline void check_clean(int contexts) {
    struct fake_counts counts;
    char text[512];
    fake->counts(&counts);
    CHECK(counts.modules == 0 && counts.events == 0 && counts.allocations == 0 && counts.current == 0,
          "%d modules, %d events, %d allocations, %d contexts current", counts.modules, counts.events,
          counts.allocations, counts.current);
    CHECK(counts.streams == 0 && counts.graphs == 0, "%d streams, %d CUDA graphs", counts.streams, counts.graphs);
    CHECK(counts.capture_mode == 0, "capture mode %d", counts.capture_mode);
    CHECK(contexts < 0 || counts.contexts == contexts, "%d contexts, not %d", counts.contexts, contexts);
    int misuses = fake->misuses(text, sizeof text);
    CHECK(misuses == 0, "%d misuses: %s", misuses, text);
}

/* Calls that release resources have no way to report errors; objects that they could not free leak. */
static inline bool is_cleanup(const char *call) {
    static const char *const calls[] = {
        "cuModuleUnload",      "cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2",
        "cuMemFree_v2",        "cuEventDestroy_v2",  "cuThreadExchangeStreamCaptureMode",
        "cuGraphDestroy",      "cuGraphExecDestroy", "cuStreamDestroy_v2",
        "cuGraphExecUpdate_v2"}; /* if it fails, the graph is instantiated again */
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(call, calls[i]) == 0)
            return true;
    return false;
}

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static char scratch[] = "/tmp/weft-test-XXXXXX"; /* created by the first call of folder(); removed by remove_scratch */
static bool has_scratch;

/* The path of a name in the scratch folder; only the last few results are valid. */
static inline const char *place(const char *format, ...) {
    static char paths[8][512];
    static int turn;
    char *path = paths[turn++ % 8], name[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (!has_scratch && !mkdtemp(scratch))
        abort();
    has_scratch = true;
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

/* "NAME=<scratch>/name" for IN_CHILD; only the last result is valid. */
static inline const char *place_variable(const char *variable, const char *name) {
    static char text[640];
    snprintf(text, sizeof text, "%s=%s", variable, place("%s", name));
    return text;
}

static inline void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0)
        abort();
}

/* Reads a whole file and appends a zero; the caller frees the result. Returns NULL if the file does not exist. */
static inline char *read_whole(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = calloc(1, *bytes + 1);
    if (*bytes && fread(data, *bytes, 1, file) != 1)
        abort();
    fclose(file);
    return data;
}

static inline void make_folder(const char *path) {
    char part[512];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(part, 0700);
        *slash = '/';
    }
    mkdir(part, 0700);
}

/* Copies a file to <scratch>/<folder>/<name>. */
static inline void copy_file(const char *source, const char *folder, const char *name) {
    size_t bytes = 0;
    char path[512], *data = read_whole(source, &bytes);
    make_folder(place("%s", folder));
    snprintf(path, sizeof path, "%s/%s", place("%s", folder), name);
    FILE *file = fopen(path, "wb");
    if (!data || !file || fwrite(data, bytes, 1, file) != 1 || fclose(file) != 0)
        abort();
    free(data);
}

/* Installs a run-time compiler and its settings in a subfolder of the scratch folder. */
static inline void install_nvrtc(const char *folder, int major, const char *settings) {
    char name[64];
    snprintf(name, sizeof name, "libnvrtc.so.%d", major);
    copy_file(FAKE_NVRTC, folder, name);
    write_text(place("%s/fake_nvrtc.txt", folder), settings);
}

static inline int remove_item(const char *path, const struct stat *info, int kind, struct FTW *walk) {
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

static inline void remove_tree(const char *path) { nftw(path, remove_item, 16, FTW_DEPTH | FTW_PHYS); }

static inline void remove_scratch(void) {
    if (has_scratch)
        remove_tree(scratch);
}

/* ---- Child processes --------------------------------------------------------------------------------------------- */

/* Runs a scenario in a child process whose environment has these variables ("NAME=value", or "NAME=" to unset) and no
   other variables of Weft and CUDA. Failures of the child count as failures of this test. Must run before anything
   executes on the CPU in this process: a thread that is starting may hold a lock of AddressSanitizer, for which the
   child would wait forever. */
#define IN_CHILD(scenario, ...)                                                                                        \
    RUN_NAMED(#scenario, in_child(#scenario, scenario, (const char *const[]){__VA_ARGS__, NULL}))
static inline void in_child(const char *name, void (*scenario)(void), const char *const *variables) {
    static const char *const ours[] = {"WEFT_LIBCUDA", "WEFT_NVRTC",    "WEFT_CACHE",           "WEFT_CACHE_DIR",
                                       "WEFT_DEVICE",  "WEFT_DUMP_DIR", "WEFT_CACHE_BYTES",     "WEFT_LOG",
                                       "CUDA_HOME",    "CUDA_PATH",     "CUDA_VISIBLE_DEVICES", "CONDA_PREFIX"};
    if (!has_scratch)
        place("%s", "");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
            unsetenv(ours[i]);
        setenv("WEFT_CACHE", "off", 1);
        for (int i = 0; variables[i]; i++) {
            char variable[64];
            snprintf(variable, sizeof variable, "%.*s", (int)strcspn(variables[i], "="), variables[i]);
            if (variables[i][strlen(variable) + 1])
                setenv(variable, variables[i] + strlen(variable) + 1, 1);
            else
                unsetenv(variable);
        }
        atomic_store(&harness_failures, 0);
        scenario();
        exit(harness_end());
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "scenario %s with %s: status %x", name,
          variables[0] ? variables[0] : "", (unsigned)status);
}

#endif
