/* SPDX-License-Identifier: Apache-2.0 */
/* Runs NVRTC in a process without sanitizers, because their memory management nearly doubles its time. argv[1] is the
   library. The process reads programs from standard input and writes results to standard output until the input ends:
     program   the number of headers and of options, then strings: its text, names of headers, their texts, options
     answer    the result of NVRTC, the log, the code
   Strings are preceded by their length and have no terminating zero; numbers have 64 bits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int (*version)(int *major, int *minor);
    int (*create)(void **program, const char *text, const char *name, int headers, const char *const *texts,
                  const char *const *names);
    int (*destroy)(void **program);
    int (*compile)(void *program, int options, const char *const *texts);
    int (*cubin_size)(void *program, size_t *bytes);
    int (*cubin)(void *program, char *to);
    int (*log_size)(void *program, size_t *bytes);
    int (*log)(void *program, char *to);
} nvrtc;

static void *checked(void *pointer, const char *what) {
    if (!pointer) {
        fprintf(stderr, "%s: %s\n", what, dlerror());
        exit(2);
    }
    return pointer;
}

/* Loads NVRTC, and its library of built-in functions by path, so that NVRTC does not have to search for the latter. */
static void load(const char *path) {
    static const char *const names[] = {"nvrtcVersion",           "nvrtcCreateProgram", "nvrtcDestroyProgram",
                                        "nvrtcCompileProgram",    "nvrtcGetCUBINSize",  "nvrtcGetCUBIN",
                                        "nvrtcGetProgramLogSize", "nvrtcGetProgramLog"};
    void *library = checked(dlopen(path, RTLD_NOW | RTLD_LOCAL), path);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *entry = checked(dlsym(library, names[i]), names[i]);
        memcpy((char *)&nvrtc + i * sizeof entry, &entry, sizeof entry);
    }
    char builtins[PATH_MAX];
    int major = 0, minor = 0;
    nvrtc.version(&major, &minor);
    snprintf(builtins, sizeof builtins, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(strrchr(path, '/') - path), path,
             major, minor);
    checked(dlopen(builtins, RTLD_NOW | RTLD_LOCAL), builtins);
}

/* Returns false at the end of the input. */
static int read_number(uint64_t *number) { return fread(number, sizeof *number, 1, stdin) == 1; }

static char *read_string(void) {
    uint64_t bytes = 0;
    if (!read_number(&bytes))
        exit(2);
    char *text = checked(calloc(1, bytes + 1), "memory");
    if (fread(text, 1, bytes, stdin) != bytes)
        exit(2);
    return text;
}

static void write_bytes(const char *at, uint64_t bytes) {
    fwrite(&bytes, sizeof bytes, 1, stdout);
    fwrite(at, 1, bytes, stdout);
}

/* Writes an output of NVRTC for a program: its log or its code. */
static void write_part(void *program, int (*size)(void *, size_t *), int (*get)(void *, char *)) {
    size_t bytes = 0;
    char *part = NULL;
    if (size(program, &bytes) == 0 && bytes && get(program, part = checked(calloc(1, bytes), "memory")))
        bytes = 0;
    write_bytes(part, bytes);
    free(part);
}

static void compile(char **strings, uint64_t headers, uint64_t options) {
    void *program = NULL;
    const char *const *names = (const char *const *)strings + 1, *const *texts = names + headers;
    int64_t result = nvrtc.create(&program, strings[0], "test.cu", (int)headers, texts, names);
    if (!result)
        result = nvrtc.compile(program, (int)options, texts + headers);
    fwrite(&result, sizeof result, 1, stdout);
    write_part(program, nvrtc.log_size, nvrtc.log);
    write_part(program, nvrtc.cubin_size, nvrtc.cubin);
    fflush(stdout);
    nvrtc.destroy(&program);
}

int main(int count, char **words) {
    uint64_t headers = 0, options = 0;
    if (count != 2)
        return 2;
    load(words[1]);
    while (read_number(&headers) && read_number(&options)) {
        uint64_t strings = 1 + 2 * headers + options;
        char **all = checked(calloc(strings, sizeof *all), "memory");
        for (uint64_t i = 0; i < strings; i++)
            all[i] = read_string();
        compile(all, headers, options);
        for (uint64_t i = 0; i < strings; i++)
            free(all[i]);
        free(all);
    }
    return 0;
}
