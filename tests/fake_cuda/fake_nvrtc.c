/* SPDX-License-Identifier: Apache-2.0 */
/* A run-time compiler that does not compile: it writes an image with the names of the kernels in a program, which
   fake_cuda loads. The file fake_nvrtc.txt next to the library configures it. Every call reads the file, which contains
   one setting per line:
     version 12 9          version of the compiler; default 13 0
     archs 75 80 90        supported architectures; default 75 80 86 89 90 100 120
     result 7              result of every compilation
     delay 50              duration of a compilation in milliseconds
     empty                 the code is empty
   A line "#error words" in the text or in a header makes the compilation fail with the message of NVRTC. The image
   lists the kernels of the text and of the headers that it includes. The size of their arguments is computed from
   "struct arguments {" in the text, with one field per line, or read from a line
   "// fake: <kernel> <bytes of its arguments> <static shared bytes>". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID_INPUT = 3, INVALID_OPTION = 5, COMPILATION = 6, ARCHS_MAX = 32, HEADERS_MAX = 128 };

struct program {
    char *text, *name, *image, *log;
    int header_count;
    char **header_texts, **header_names;
    bool is_ptx;
};

struct settings {
    int major, minor, result, delay, arch_count, archs[ARCHS_MAX];
    bool is_empty;
};

/* State of this copy of the library: number of compiled programs, maximum of concurrent compilations, and number of
   live objects. */
extern atomic_int fake_nvrtc_compiles, fake_nvrtc_at_once, fake_nvrtc_alive;
atomic_int fake_nvrtc_compiles, fake_nvrtc_at_once, fake_nvrtc_alive;

/* Number of fallible calls so far, and the call that must fail (0: none). */
extern atomic_int fake_nvrtc_calls, fake_nvrtc_fail_call;
atomic_int fake_nvrtc_calls, fake_nvrtc_fail_call;

static bool fails_now(void) { return atomic_fetch_add(&fake_nvrtc_calls, 1) + 1 == fake_nvrtc_fail_call; }

static void read_line(struct settings *settings, char *line) {
    if (sscanf(line, "version %d %d", &settings->major, &settings->minor) == 2 ||
        sscanf(line, "result %d", &settings->result) == 1 || sscanf(line, "delay %d", &settings->delay) == 1)
        return;
    if (strncmp(line, "empty", 5) == 0)
        settings->is_empty = true;
    if (strncmp(line, "archs", 5) != 0)
        return;
    settings->arch_count = 0;
    for (char *at = line + 5, *end; settings->arch_count < ARCHS_MAX; at = end) {
        int arch = (int)strtol(at, &end, 10);
        if (end == at)
            return;
        settings->archs[settings->arch_count++] = arch;
    }
}

static struct settings read_settings(void) {
    struct settings settings = {.major = 13, .arch_count = 7, .archs = {75, 80, 86, 89, 90, 100, 120}};
    Dl_info self;
    char path[PATH_MAX], line[256];
    if (!dladdr((void *)&fake_nvrtc_compiles, &self) || strlen(self.dli_fname) + 32 > sizeof path)
        return settings;
    strcpy(path, self.dli_fname);
    strcpy(strrchr(path, '/') + 1, "fake_nvrtc.txt");
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        read_line(&settings, line);
    if (file)
        fclose(file);
    return settings;
}

static void add(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char **text, const char *format, ...) {
    char *added = NULL, *joined = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&added, format, arguments) < 0 || asprintf(&joined, "%s%s", *text ? *text : "", added) < 0)
        abort();
    va_end(arguments);
    free(*text);
    free(added);
    *text = joined;
}

int nvrtcVersion(int *major, int *minor);
int nvrtcVersion(int *major, int *minor) {
    struct settings settings = read_settings();
    *major = settings.major;
    *minor = settings.minor;
    return OK;
}

int nvrtcGetNumSupportedArchs(int *count);
int nvrtcGetNumSupportedArchs(int *count) {
    *count = read_settings().arch_count;
    return OK;
}

int nvrtcGetSupportedArchs(int *archs);
int nvrtcGetSupportedArchs(int *archs) {
    struct settings settings = read_settings();
    memcpy(archs, settings.archs, (size_t)settings.arch_count * sizeof *archs);
    return OK;
}

const char *nvrtcGetErrorString(int result);
const char *nvrtcGetErrorString(int result) {
    return result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : result == OK ? "NVRTC_SUCCESS" : "NVRTC_ERROR_OTHER";
}

int nvrtcCreateProgram(void **out, const char *text, const char *name, int count, const char *const *texts,
                       const char *const *names);
int nvrtcCreateProgram(void **out, const char *text, const char *name, int count, const char *const *texts,
                       const char *const *names) {
    if (!text || count < 0 || count > HEADERS_MAX || fails_now())
        return INVALID_INPUT;
    struct program *program = calloc(1, sizeof *program);
    add(&program->text, "%s", text);
    add(&program->name, "%s", name ? name : "default_program");
    program->header_count = count;
    program->header_texts = calloc((size_t)count + 1, sizeof(char *));
    program->header_names = calloc((size_t)count + 1, sizeof(char *));
    for (int i = 0; i < count; i++) {
        add(&program->header_texts[i], "%s", texts[i]);
        add(&program->header_names[i], "%s", names[i]);
    }
    add(&program->log, "%s", "");
    atomic_fetch_add(&fake_nvrtc_alive, 1);
    *out = program;
    return OK;
}

int nvrtcDestroyProgram(void **handle);
int nvrtcDestroyProgram(void **handle) {
    struct program *program = *handle;
    for (int i = 0; i < program->header_count; i++) {
        free(program->header_texts[i]);
        free(program->header_names[i]);
    }
    free(program->header_texts);
    free(program->header_names);
    free(program->text);
    free(program->name);
    free(program->image);
    free(program->log);
    free(program);
    atomic_fetch_sub(&fake_nvrtc_alive, 1);
    *handle = NULL;
    return OK;
}

/* Logs the messages that NVRTC emits for "#error" lines; returns false if there was one. */
static bool check_text(struct program *program, const char *name, const char *text) {
    int line = 1;
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n', line++) {
        const char *first = at + strspn(at, " \t");
        if (strncmp(first, "#error ", 7) != 0)
            continue;
        add(&program->log,
            "%s(%d): error: #error directive: %.*s\n  %.*s\n   ^\n\n1 error detected in the compilation of \"%s\".\n",
            name, line, (int)strcspn(first + 7, "\n"), first + 7, (int)strcspn(first, "\n"), first, program->name);
        return false;
    }
    return true;
}

/* Finds the name of the kernel that "__global__" at `at` declares: the word before the first parenthesis that does not
   belong to an attribute such as __launch_bounds__(128). */
static int find_name(const char **name, const char *at) {
    for (at += strlen("__global__"); *at; at++) {
        if (*at != '(')
            continue;
        const char *end = at, *start;
        while (end[-1] == ' ')
            end--;
        for (start = end; strspn(start - 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"); start--)
            ;
        if (strncmp(start, "__", 2) != 0) {
            *name = start;
            return (int)(end - start);
        }
        at = strchr(at, ')');
        if (!at)
            return 0;
    }
    return 0;
}

/* Bytes of the arguments: 8 for pointers, numbers and scalars in memory, 16 for divisors, 128 for tensor maps, which
   are aligned to 64; -1 if the text does not declare them. */
static long long count_arguments(const char *text) {
    const char *at = strstr(text, "struct arguments {\n");
    long long bytes = 0, alignment = 8;
    for (at = at ? strchr(at, '\n') + 1 : NULL; at && strncmp(at, "};", 2) != 0; at = strchr(at, '\n') + 1) {
        bool is_map = strncmp(at, "    tensor_map ", 15) == 0;
        bytes += is_map ? 128 : strncmp(at, "    divisor ", 12) == 0 ? 16 : 8;
        alignment = is_map ? 64 : alignment;
    }
    return at ? (bytes + alignment - 1) / alignment * alignment : -1;
}

static void add_kernels(struct program *program, const char *text) {
    for (const char *at = text; (at = strstr(at, "__global__")); at++) {
        const char *name;
        char marker[160];
        long long bytes = count_arguments(program->text);
        int length = find_name(&name, at), shared = 0;
        if (!length)
            continue;
        snprintf(marker, sizeof marker, "// fake: %.*s ", length, name);
        const char *note = strstr(program->text, marker);
        if (note)
            sscanf(note + strlen(marker), "%lld %d", &bytes, &shared);
        if (program->is_ptx)
            add(&program->image, ".visible .entry %.*s()\n", length, name);
        else
            add(&program->image, "kernel %.*s %lld %d\n", length, name, bytes, shared);
    }
}

/* Adds the kernels of all headers that a text includes, directly or indirectly, each once. */
static void add_included(struct program *program, const char *text, bool *is_added) {
    for (const char *at = text; (at = strstr(at, "#include \"")) != NULL;) {
        at += strlen("#include \"");
        size_t length = strcspn(at, "\"");
        for (int i = 0; i < program->header_count; i++) {
            const char *name = program->header_names[i];
            if (is_added[i] || strlen(name) != length || strncmp(name, at, length) != 0)
                continue;
            is_added[i] = true;
            add_kernels(program, program->header_texts[i]);
            add_included(program, program->header_texts[i], is_added);
        }
    }
}

static bool knows(const struct settings *settings, int arch) {
    for (int i = 0; i < settings->arch_count; i++)
        if (settings->archs[i] == arch)
            return true;
    return false;
}

static void delay(int milliseconds) {
    static atomic_int now;
    int count = atomic_fetch_add(&now, 1) + 1, most = fake_nvrtc_at_once;
    while (count > most && !atomic_compare_exchange_weak(&fake_nvrtc_at_once, &most, count))
        ;
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
    atomic_fetch_sub(&now, 1);
}

int nvrtcCompileProgram(void *handle, int count, const char *const *options);
int nvrtcCompileProgram(void *handle, int count, const char *const *options) {
    struct program *program = handle;
    struct settings settings = read_settings();
    const char *target = NULL;
    atomic_fetch_add(&fake_nvrtc_compiles, 1);
    delay(settings.delay);
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], "--gpu-architecture=", 19) == 0)
            target = options[i] + 19;
    program->is_ptx = target && strncmp(target, "compute_", 8) == 0;
    int arch = target ? atoi(target + (program->is_ptx ? 8 : 3)) : 0;
    if (settings.result)
        return settings.result;
    if (fails_now())
        return INVALID_INPUT;
    if (!knows(&settings, arch))
        return INVALID_OPTION;
    bool is_right = check_text(program, program->name, program->text);
    for (int i = 0; is_right && i < program->header_count; i++)
        is_right = check_text(program, program->header_names[i], program->header_texts[i]);
    if (!is_right)
        return COMPILATION;
    if (program->is_ptx)
        add(&program->image, ".version 8.0\n.target sm_%d\n", arch);
    else
        add(&program->image, "FAKECUBIN %s\n", target);
    add_kernels(program, program->text);
    bool is_added[HEADERS_MAX] = {false};
    add_included(program, program->text, is_added);
    for (int i = 0; i < count; i++)
        add(&program->image, "// option %s\n", options[i]);
    if (settings.is_empty)
        *program->image = '\0';
    return OK;
}

static int tell(const char *text, bool is_ours, size_t *bytes, char *out) {
    if (fails_now())
        return INVALID_INPUT;
    size_t length = is_ours && text && *text ? strlen(text) + 1 : 0;
    if (bytes)
        *bytes = length;
    if (out)
        memcpy(out, text, length);
    return OK;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes);
int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    return tell(((struct program *)program)->image, !((struct program *)program)->is_ptx, bytes, NULL);
}

int nvrtcGetCUBIN(void *program, char *out);
int nvrtcGetCUBIN(void *program, char *out) {
    return tell(((struct program *)program)->image, !((struct program *)program)->is_ptx, NULL, out);
}

int nvrtcGetPTXSize(void *program, size_t *bytes);
int nvrtcGetPTXSize(void *program, size_t *bytes) {
    return tell(((struct program *)program)->image, ((struct program *)program)->is_ptx, bytes, NULL);
}

int nvrtcGetPTX(void *program, char *out);
int nvrtcGetPTX(void *program, char *out) {
    return tell(((struct program *)program)->image, ((struct program *)program)->is_ptx, NULL, out);
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes);
int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    if (fails_now())
        return INVALID_INPUT;
    *bytes = strlen(((struct program *)program)->log) + 1;
    return OK;
}

int nvrtcGetProgramLog(void *program, char *out);
int nvrtcGetProgramLog(void *program, char *out) {
    if (fails_now())
        return INVALID_INPUT;
    strcpy(out, ((struct program *)program)->log);
    return OK;
}
