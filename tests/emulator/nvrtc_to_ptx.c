/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC as the emulator wants it, chosen by WEFT_NVRTC: whatever is asked for a chip comes as PTX for that chip, in the
   place of machine code. EMULATOR_NVRTC names the copy that compiles. EMULATOR_ASSEMBLES=1: it makes the machine code,
   too, which takes half as long again, so that a program that the assembler refuses or warns of is seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INTERNAL_ERROR = 11, OPTIONS_MAX = 64 };

static void *library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    const char *path = getenv("EMULATOR_NVRTC");
    library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library)
        fprintf(stderr, "emulator: EMULATOR_NVRTC names no NVRTC (%s)\n", path ? dlerror() : "it is not set");
}

static void *find(const char *name) {
    pthread_once(&once, load);
    return library ? dlsym(library, name) : NULL;
}

/* Declares a function of NVRTC and hands its call on to the copy behind. */
#define FORWARD(name, behind, parameters, ...)                                                                         \
    int name parameters;                                                                                               \
    int name parameters {                                                                                              \
        int(*function) parameters;                                                                                     \
        *(void **)&function = find(behind);                                                                            \
        return function ? function(__VA_ARGS__) : INTERNAL_ERROR;                                                      \
    }

FORWARD(nvrtcVersion, "nvrtcVersion", (int *major, int *minor), major, minor)
FORWARD(nvrtcGetNumSupportedArchs, "nvrtcGetNumSupportedArchs", (int *count), count)
FORWARD(nvrtcGetSupportedArchs, "nvrtcGetSupportedArchs", (int *archs), archs)
FORWARD(nvrtcCreateProgram, "nvrtcCreateProgram",
        (void **program, const char *text, const char *name, int count, const char *const *texts,
         const char *const *names),
        program, text, name, count, texts, names)
FORWARD(nvrtcDestroyProgram, "nvrtcDestroyProgram", (void **program), program)
FORWARD(nvrtcGetCUBINSize, "nvrtcGetPTXSize", (void *program, size_t *bytes), program, bytes)
FORWARD(nvrtcGetCUBIN, "nvrtcGetPTX", (void *program, char *image), program, image)
FORWARD(nvrtcGetPTXSize, "nvrtcGetPTXSize", (void *program, size_t *bytes), program, bytes)
FORWARD(nvrtcGetPTX, "nvrtcGetPTX", (void *program, char *image), program, image)
FORWARD(nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize", (void *program, size_t *bytes), program, bytes)
FORWARD(nvrtcGetProgramLog, "nvrtcGetProgramLog", (void *program, char *log), program, log)

const char *nvrtcGetErrorString(int result);
const char *nvrtcGetErrorString(int result) {
    const char *(*function)(int);
    *(void **)&function = find("nvrtcGetErrorString");
    return function ? function(result) : "EMULATOR_NVRTC names no NVRTC";
}

int nvrtcCompileProgram(void *program, int count, const char *const *options);
int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    static const char chip[] = "--gpu-architecture=sm_";
    const char *changed[OPTIONS_MAX];
    char arch[64];
    int (*function)(void *, int, const char *const *);
    *(void **)&function = find("nvrtcCompileProgram");
    if (!function || count > OPTIONS_MAX)
        return INTERNAL_ERROR;
    if (getenv("EMULATOR_ASSEMBLES"))
        return function(program, count, options);
    for (int i = 0; i < count; i++) {
        changed[i] = options[i];
        if (strncmp(options[i], chip, strlen(chip)) == 0) {
            snprintf(arch, sizeof arch, "--gpu-architecture=compute_%s", options[i] + strlen(chip));
            changed[i] = arch;
        }
    }
    return function(program, count, changed);
}
