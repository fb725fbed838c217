/* SPDX-License-Identifier: Apache-2.0 */
/* An NVRTC replacement for the emulator, selected by WEFT_NVRTC: programs are compiled to PTX for the requested chip
   instead of to machine code. EMULATOR_NVRTC names the library that compiles. EMULATOR_ASSEMBLES=1 also generates
   machine code, which takes 50 % longer, so that errors and warnings of the assembler are detected. EMULATOR_CHECKS=1
   only checks the text of a program, in a third of the time, and returns code that cannot run: such code must not be
   cached. */
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

/* Declares a function of NVRTC and forwards its calls to the wrapped library. */
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
FORWARD(nvrtcGetPTXSize, "nvrtcGetPTXSize", (void *program, size_t *bytes), program, bytes)
FORWARD(nvrtcGetPTX, "nvrtcGetPTX", (void *program, char *image), program, image)
FORWARD(nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize", (void *program, size_t *bytes), program, bytes)
FORWARD(nvrtcGetProgramLog, "nvrtcGetProgramLog", (void *program, char *log), program, log)

/* ---- Programs with their constants, which are prepended to the PTX as comments ----------------------------------- */

struct program {
    struct program *next;
    void *key; /* NVRTC's */
    char *config;
};
static struct program *programs;
static pthread_mutex_t programs_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns "// config BLOCK_M = 128" for each line "inline constexpr int BLOCK_M = 128;" of a program, and the same for
   its type aliases. */
static char *read_config(const char *text) {
    static const char constant[] = "inline constexpr ", type[] = "using ";
    char *config = calloc(1, 2 * strlen(text) + 1), *end = config;
    for (const char *at = text; config && at; at = strchr(at, '\n')) {
        at += *at == '\n';
        const char *words = strncmp(at, constant, strlen(constant)) == 0 ? at + strlen(constant)
                            : strncmp(at, type, strlen(type)) == 0       ? at
                                                                         : NULL;
        if (words)
            end += sprintf(end, "// config %.*s\n", (int)strcspn(words, ";\n"), words);
    }
    return config;
}

static const char *find_config(void *program) {
    const char *config = NULL;
    pthread_mutex_lock(&programs_lock);
    for (const struct program *at = programs; at; at = at->next)
        if (at->key == program)
            config = at->config;
    pthread_mutex_unlock(&programs_lock);
    return config ? config : "";
}

int nvrtcCreateProgram(void **program, const char *text, const char *name, int count, const char *const *texts,
                       const char *const *names);
int nvrtcCreateProgram(void **program, const char *text, const char *name, int count, const char *const *texts,
                       const char *const *names) {
    int (*function)(void **, const char *, const char *, int, const char *const *, const char *const *);
    *(void **)&function = find("nvrtcCreateProgram");
    int result = function ? function(program, text, name, count, texts, names) : INTERNAL_ERROR;
    struct program *made = result ? NULL : malloc(sizeof *made);
    if (!made)
        return result;
    pthread_mutex_lock(&programs_lock);
    *made = (struct program){programs, *program, read_config(text)};
    programs = made;
    pthread_mutex_unlock(&programs_lock);
    return result;
}

int nvrtcDestroyProgram(void **program);
int nvrtcDestroyProgram(void **program) {
    int (*function)(void **);
    *(void **)&function = find("nvrtcDestroyProgram");
    pthread_mutex_lock(&programs_lock);
    for (struct program **at = &programs; *at; at = &(*at)->next)
        if ((*at)->key == *program) {
            struct program *old = *at;
            *at = old->next;
            free(old->config);
            free(old);
            break;
        }
    pthread_mutex_unlock(&programs_lock);
    return function ? function(program) : INTERNAL_ERROR;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes);
int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    int (*function)(void *, size_t *);
    *(void **)&function = find("nvrtcGetPTXSize");
    int result = function ? function(program, bytes) : INTERNAL_ERROR;
    *bytes += result ? 0 : strlen(find_config(program));
    return result;
}

int nvrtcGetCUBIN(void *program, char *image);
int nvrtcGetCUBIN(void *program, char *image) {
    int (*function)(void *, char *);
    *(void **)&function = find("nvrtcGetPTX");
    const char *config = find_config(program);
    memcpy(image, config, strlen(config));
    return function ? function(program, image + strlen(config)) : INTERNAL_ERROR;
}

const char *nvrtcGetErrorString(int result);
const char *nvrtcGetErrorString(int result) {
    const char *(*function)(int);
    *(void **)&function = find("nvrtcGetErrorString");
    return function ? function(result) : "EMULATOR_NVRTC names no NVRTC";
}

int nvrtcCompileProgram(void *program, int count, const char *const *options);
int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    static const char chip[] = "--gpu-architecture=sm_";
    const char *changed[OPTIONS_MAX + 1];
    char arch[64];
    int (*function)(void *, int, const char *const *);
    *(void **)&function = find("nvrtcCompileProgram");
    if (!function || count + 1 > OPTIONS_MAX)
        return INTERNAL_ERROR;
    for (int i = 0; i < count; i++) {
        changed[i] = options[i];
        if (!getenv("EMULATOR_ASSEMBLES") && strncmp(options[i], chip, strlen(chip)) == 0) {
            snprintf(arch, sizeof arch, "--gpu-architecture=compute_%s", options[i] + strlen(chip));
            changed[i] = arch;
        }
    }
    changed[count] = "--generate-line-info"; /* for error messages and for kernel coverage */
    return function(program, count + 1, changed);
}
