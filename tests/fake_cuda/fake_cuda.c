/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_cuda.h"
#include "../emulator/emulator.h"

#include <elf.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FREED_KEPT = 16, FREED_BYTES_MAX = 1 << 20 };
/* New and freed memory is filled with this value, to expose reads of uninitialized memory; larger allocations are not
   filled, because that takes too long. */
enum { POISON = 0xFF, POISONED_BYTES_MAX = 1 << 28 };
enum { DEVICES_MAX = 8, STACK_MAX = 16, KERNELS_MAX = 16, LAUNCHES_KEPT = 64, RECORDED_MAX = 64 };
enum { ARGUMENT_BYTES_MAX = 3848 };
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_IMPLICIT = 906,
    GRAPH_EXEC_UPDATE_FAILURE = 910,
    INVALID_CLUSTER_SIZE = 912,
};

struct context {
    int device, retained;
};

struct function {
    struct item *module;
    char name[64];
    int64_t argument_bytes; /* -1: unknown */
    int static_shared, max_threads, max_dynamic_shared;
    bool allows_large_clusters;
};

struct recording;

/* All objects of the driver share this type, so that a handle of the wrong kind is detected. */
struct item {
    struct item *next;
    enum { MODULE, EVENT, MEMORY, STREAM, GRAPH, NODE, EXECUTABLE } kind;
    const struct item *graph;    /* of a node, which is a child graph */
    struct recording *recording; /* of a graph or of a stream that is being captured; otherwise NULL */
    struct context *context;
    size_t bytes;
    int count;
    struct function functions[KERNELS_MAX];
    struct module *code; /* PTX: the code to run; NULL: launches are only recorded */
    _Alignas(256) unsigned char memory[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects everything below */
static bool is_set_up, is_started;
static int version = 13000, device_count = 2, arch = 90, large, shared_kib;
static struct context contexts[DEVICES_MAX];
static struct item *alive, *freed[FREED_KEPT];
static int64_t call_count, fail_call, launch_count;
static int fail_result, misuse_count;
static bool is_executing;
static void *captured; /* the captured stream, or NULL */
static int64_t streams_replaced;
static char misuse_text[512];
static const char *last_call = "", *failed_call;
static struct fake_launch launches[LAUNCHES_KEPT];
static _Thread_local struct context *stack[STACK_MAX];
static _Thread_local int depth, capture_mode;
static _Thread_local char emulated_error[1024]; /* error of this thread's last failed launch */

static int64_t setting(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

/* The caller must hold the lock. */
static void set_up(void) {
    if (is_set_up)
        return;
    is_set_up = true;
    version = (int)setting("FAKE_CUDA_VERSION", version);
    device_count = (int)setting("FAKE_CUDA_DEVICES", device_count);
    arch = (int)setting("FAKE_CUDA_ARCH", arch);
    large = (int)setting("FAKE_CUDA_LARGE", 0);
    shared_kib = (int)setting("FAKE_CUDA_SHARED", 0);
    const char *fail = getenv("FAKE_CUDA_FAIL"), *colon = fail ? strchr(fail, ':') : NULL;
    if (colon) {
        fail_call = strtoll(fail, NULL, 10);
        fail_result = atoi(colon + 1);
    }
    for (int i = 0; i < DEVICES_MAX; i++)
        contexts[i].device = i;
}

static void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void misuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(misuse_text, sizeof misuse_text, format, arguments);
    va_end(arguments);
    misuse_count++;
}

static bool breaks_capture(const char *name) {
    static const char *const calls[] = {
        "cuMemAlloc_v2",       "cuMemFree_v2",       "cuModuleLoadDataEx",         "cuModuleUnload",
        "cuStreamSynchronize", "cuEventSynchronize", "cuGraphInstantiateWithFlags"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(name, calls[i]) == 0)
            return captured && capture_mode != 2;
    return false;
}

/* Begins a call and locks the mutex. Returns OK, or the result that the call must return immediately. */
static int enter(const char *name, bool is_slow, bool needs_context) {
    pthread_mutex_lock(&lock);
    set_up();
    last_call = name;
    call_count++;
    if (call_count == fail_call) {
        failed_call = name;
        return fail_result;
    }
    if (is_slow && is_executing)
        misuse("%s while a plan executes", name);
    if (!is_started && strcmp(name, "cuInit") != 0) {
        misuse("%s before cuInit", name);
        return 3;
    }
    if (needs_context && depth == 0) {
        misuse("%s without a current context", name);
        return INVALID_CONTEXT;
    }
    if (breaks_capture(name)) {
        misuse("%s while a stream is captured", name);
        return CAPTURE_UNSUPPORTED;
    }
    return OK;
}

static int leave(int result) {
    pthread_mutex_unlock(&lock);
    return result;
}

#define ENTER(is_slow, needs_context)                                                                                  \
    do {                                                                                                               \
        int entered = enter(__func__, is_slow, needs_context);                                                         \
        if (entered)                                                                                                   \
            return leave(entered);                                                                                     \
    } while (0)

static struct item *find_alive(const void *handle, int kind) {
    for (struct item *item = alive; item; item = item->next)
        if (item == handle && (int)item->kind == kind)
            return item;
    misuse("%s with a handle that is not alive", last_call);
    return NULL;
}

static struct item *make_alive(int kind, size_t bytes) {
    struct item *item = aligned_alloc(256, (sizeof *item + bytes + 255) / 256 * 256);
    if (!item)
        return NULL;
    memset(item, 0, sizeof *item);
    item->kind = (unsigned)kind;
    item->bytes = bytes;
    if (kind == MEMORY && bytes <= POISONED_BYTES_MAX)
        memset(item->memory, POISON, bytes);
    item->context = stack[depth - 1];
    item->next = alive;
    alive = item;
    return item;
}

/* Selects the piece or the allocation, whichever is nearer, among those that begin at or before an address. */
static void find_nearer(const struct item *item, bool was_freed, uint64_t address, struct memory_piece *piece) {
    uint64_t from = (uintptr_t)item->memory;
    if (item->kind == MEMORY && from <= address && from >= piece->from)
        *piece = (struct memory_piece){from, from + item->bytes, was_freed};
}

/* The emulator calls this without holding the lock. */
static bool find_memory(uint64_t address, struct memory_piece *piece) {
    *piece = (struct memory_piece){0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FREED_KEPT; i++)
        if (freed[i])
            find_nearer(freed[i], true, address, piece);
    for (const struct item *item = alive; item; item = item->next)
        find_nearer(item, false, address, piece);
    pthread_mutex_unlock(&lock);
    return piece->to != 0;
}

/* Keeps the small allocations that were freed most recently, so that a use after free is reported. */
static void release(struct item *item) {
    static unsigned next;
    if (item->kind == MEMORY && item->bytes <= FREED_BYTES_MAX) {
        memset(item->memory, POISON, item->bytes);
        struct item *oldest = freed[next % FREED_KEPT];
        freed[next++ % FREED_KEPT] = item;
        item = oldest;
    }
    free(item);
}

static int end_life(const void *handle, int kind) {
    struct item *item = find_alive(handle, kind), **at = &alive;
    if (!item)
        return INVALID_HANDLE;
    while (*at != item)
        at = &(*at)->next;
    *at = item->next;
    if (item->code)
        emulator_unload(item->code);
    free(item->recording);
    item->recording = NULL;
    release(item);
    return OK;
}

/* ---- Initialization, devices, contexts --------------------------------------------------------------------------- */

static int cuInit(unsigned flags) {
    ENTER(true, false);
    is_started = flags == 0;
    return leave(device_count < 1 ? NO_DEVICE : flags ? INVALID_VALUE : OK);
}

static int cuGetErrorName(int result, const char **name) {
    static const struct {
        int result;
        const char *name;
    } names[] = {{1, "CUDA_ERROR_INVALID_VALUE"},
                 {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {100, "CUDA_ERROR_NO_DEVICE"},
                 {200, "CUDA_ERROR_INVALID_IMAGE"},
                 {201, "CUDA_ERROR_INVALID_CONTEXT"},
                 {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
                 {400, "CUDA_ERROR_INVALID_HANDLE"},
                 {500, "CUDA_ERROR_NOT_FOUND"},
                 {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
                 {34, "CUDA_ERROR_STUB_LIBRARY"},
                 {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
                 {999, "CUDA_ERROR_UNKNOWN"},
                 {3, "CUDA_ERROR_NOT_INITIALIZED"},
                 {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE"},
                 {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}};
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].result == result)
            *name = names[i].name;
    return *name ? OK : INVALID_VALUE;
}

static int cuGetErrorString(int result, const char **words) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "words for %d", result);
    *words = result == LAUNCH_FAILED && *emulated_error ? emulated_error : text;
    return OK;
}

static int cuDeviceGetCount(int *count) {
    ENTER(false, false);
    *count = device_count;
    return leave(OK);
}

static int cuDeviceGet(int *device, int ordinal) {
    ENTER(false, false);
    *device = 100 + ordinal; /* differs from the ordinal, so that confusing the two is detected */
    return leave(ordinal >= 0 && ordinal < device_count && ordinal < DEVICES_MAX ? OK : INVALID_DEVICE);
}

static bool is_device(int device) { return device >= 100 && device < 100 + device_count; }

static int cuDeviceGetName(char *name, int bytes, int device) {
    ENTER(false, false);
    snprintf(name, (size_t)bytes, "Fake GPU %d", device - 100);
    return leave(is_device(device) ? OK : INVALID_DEVICE);
}

static int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER(false, false);
    *bytes = (size_t)16 << 30;
    return leave(is_device(device) ? OK : INVALID_DEVICE);
}

static int cuDeviceGetUuid_v2(uint8_t uuid[16], int device) {
    ENTER(false, false);
    for (int i = 0; i < 16; i++)
        uuid[i] = (uint8_t)(device - 100 + i);
    return leave(is_device(device) ? OK : INVALID_DEVICE);
}

/* Maximum bytes of shared memory per block. FAKE_CUDA_SHARED lowers it, so that small cases exceed it and take other
   paths. A multiprocessor has one KiB more. */
static int shared_most(void) {
    int kib = arch < 80 ? 63 : arch == 80 || arch == 87 ? 163 : arch < 90 || arch >= 120 ? 99 : 227;
    return (shared_kib && shared_kib < kib ? shared_kib : kib) << 10;
}

static int threads_most(void) { return arch < 80 ? 1024 : arch == 86 || arch == 89 || arch >= 120 ? 1536 : 2048; }

static int cuDeviceGetAttribute(int *value, int attribute, int device) {
    /* Columns: attribute; a small GPU; an H200 with the requested number of multiprocessors. */
    static const int table[][3] = {
        {1, 1024, 1024}, {5, INT32_MAX, INT32_MAX}, {6, 65535, 65535}, {7, 65535, 65535},       {13, 1500000, 1980000},
        {16, 4, 0},      {36, 1000000, 3201000},    {37, 512, 6016},   {38, 8 << 20, 60 << 20}, {82, 65536, 65536}};
    ENTER(false, false);
    if (!is_device(device))
        return leave(INVALID_DEVICE);
    *value = -1;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i][0] == attribute)
            *value = table[i][large ? 2 : 1];
    if (attribute == 16 && large)
        *value = large;
    if (attribute == 39)
        *value = threads_most();
    if (attribute == 81 || attribute == 97)
        *value = shared_most() + (attribute == 81 ? 1 << 10 : 0);
    if (attribute == 75)
        *value = arch / 10;
    if (attribute == 76)
        *value = arch % 10;
    if (*value < 0) {
        misuse("cuDeviceGetAttribute of attribute %d", attribute);
        return leave(INVALID_VALUE);
    }
    return leave(OK);
}

static int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER(true, false);
    if (!is_device(device))
        return leave(INVALID_DEVICE);
    *context = &contexts[device - 100];
    contexts[device - 100].retained++;
    return leave(OK);
}

static int cuCtxGetCurrent(void **context) {
    ENTER(false, false);
    *context = depth ? stack[depth - 1] : NULL;
    return leave(OK);
}

static int cuCtxPushCurrent_v2(void *context) {
    ENTER(false, false);
    if (depth == STACK_MAX || (struct context *)context < contexts ||
        (struct context *)context >= contexts + DEVICES_MAX || !((struct context *)context)->retained) {
        misuse("cuCtxPushCurrent of no live context");
        return leave(INVALID_CONTEXT);
    }
    stack[depth++] = context;
    return leave(OK);
}

static int cuCtxPopCurrent_v2(void **context) {
    ENTER(false, true);
    *context = stack[--depth];
    return leave(OK);
}

static int cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(false, false);
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return leave(OK);
}

/* ---- Modules ----------------------------------------------------------------------------------------------------- */

static struct function *add_function(struct item *module, const char *name, size_t length) {
    if (module->count == KERNELS_MAX || length >= sizeof module->functions->name)
        return NULL;
    struct function *function = &module->functions[module->count++];
    *function =
        (struct function){.module = module, .argument_bytes = -1, .max_threads = 1024, .max_dynamic_shared = 48 << 10};
    memcpy(function->name, name, length);
    return function;
}

/* The format of the fake compiler: "FAKECUBIN sm_90a", then "kernel <name> <argument bytes> <static shared>". */
static int read_fake_cubin(struct item *module, const char *image) {
    int made_for = 0, offset = 0;
    if (sscanf(image, "FAKECUBIN sm_%d", &made_for) != 1)
        return INVALID_IMAGE;
    if (made_for / 10 != arch / 10 || made_for > arch)
        return NO_BINARY_FOR_GPU;
    char name[64];
    long long bytes;
    int shared;
    for (const char *line = strchr(image, '\n'); line; line = strchr(line + 1, '\n'))
        if (sscanf(line, "\nkernel %63s %lld %d%n", name, &bytes, &shared, &offset) == 3) {
            struct function *function = add_function(module, name, strlen(name));
            if (function) {
                function->argument_bytes = bytes;
                function->static_shared = shared;
                function->max_dynamic_shared -= shared;
            }
        }
    return OK;
}

/* PTX from NVRTC is run; PTX from the fake compiler declares kernels without code. */
static int read_ptx(struct item *module, const char *image, char error[512]) {
    struct emulated_kernel kernel;
    if (strstr(image, ".address_size")) {
        module->code = emulator_load(image, error);
        if (!module->code)
            fprintf(stderr, "fake_cuda: %s\n", error);
        for (int i = 0; module->code && emulator_tell(module->code, i, &kernel); i++) {
            struct function *function = add_function(module, kernel.name, strlen(kernel.name));
            if (!function)
                return INVALID_IMAGE;
            function->argument_bytes = (int64_t)kernel.argument_bytes;
            function->static_shared = (int)kernel.static_shared_bytes;
            function->max_dynamic_shared -= function->static_shared;
            function->max_threads = kernel.max_threads;
        }
        return module->code ? OK : INVALID_IMAGE;
    }
    for (const char *at = image; (at = strstr(at, ".entry ")); at++) {
        const char *name = at + strlen(".entry ");
        add_function(module, name, strcspn(name, " (\n"));
    }
    return OK;
}

/* The total size of the parameters, from the .nv.info section of a kernel. Attribute 0x17 describes one parameter,
   whose size is stored above bit 18 of the third word. (Offsets are relative to the start of the kernel's parameters in
   constant memory, which may be unaligned.) */
static int64_t read_parameter_bytes(const unsigned char *info, size_t bytes) {
    enum { PARAMETER = 0x17, HAS_VALUE = 4 };
    int64_t sum = 0;
    for (size_t at = 0; at + 4 <= bytes;) {
        unsigned length = info[at] == HAS_VALUE ? info[at + 2] | (unsigned)info[at + 3] << 8 : 0;
        uint32_t words[3];
        if (info[at] == HAS_VALUE && info[at + 1] == PARAMETER && length >= sizeof words && at + 4 + length <= bytes) {
            memcpy(words, info + at + 4, sizeof words);
            sum += words[2] >> 18;
        }
        at += 4 + length;
    }
    return sum;
}

/* Section headers may be unaligned. */
static Elf64_Shdr section_at(const unsigned char *image, int index) {
    Elf64_Ehdr header;
    Elf64_Shdr section;
    memcpy(&header, image, sizeof header);
    memcpy(&section, image + header.e_shoff + (size_t)index * sizeof section, sizeof section);
    return section;
}

/* A real cubin: its kernels are the sections .text.<name>. */
static int read_elf(struct item *module, const unsigned char *image) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    const char *names = (const char *)image + section_at(image, header.e_shstrndx).sh_offset;
    for (int i = 0; i < header.e_shnum; i++) {
        const char *name = names + section_at(image, i).sh_name;
        struct function *function = NULL;
        if (strncmp(name, ".text.", 6) == 0)
            function = add_function(module, name + 6, strlen(name + 6));
        for (int k = 0; function && k < header.e_shnum; k++) {
            Elf64_Shdr section = section_at(image, k);
            const char *other = names + section.sh_name;
            if (strncmp(other, ".nv.info.", 9) == 0 && strcmp(other + 9, function->name) == 0)
                function->argument_bytes = read_parameter_bytes(image + section.sh_offset, section.sh_size);
        }
    }
    return OK;
}

static int cuModuleLoadDataEx(void **module, const void *image, unsigned count, const int *options, void **values) {
    ENTER(true, true);
    if (capture_mode != 2)
        misuse("cuModuleLoadDataEx would break the capture of another thread's stream");
    struct item *made = make_alive(MODULE, 0);
    if (!made)
        return leave(OUT_OF_MEMORY);
    char error[512] = "a log of the loader";
    int result = memcmp(image, ELFMAG, SELFMAG) == 0                     ? read_elf(made, image)
                 : strncmp(image, "FAKECUBIN", strlen("FAKECUBIN")) == 0 ? read_fake_cubin(made, image)
                 : strstr(image, ".version")                             ? read_ptx(made, image, error)
                                                                         : INVALID_IMAGE;
    if (result) {
        if (count == 2 && options[0] == 5 && options[1] == 6)
            snprintf(values[0], (size_t)(uintptr_t)values[1], "%s", error);
        end_life(made, MODULE);
        return leave(result);
    }
    *module = made;
    return leave(OK);
}

static int cuModuleUnload(void *module) {
    ENTER(true, true);
    const struct item *found = find_alive(module, MODULE);
    if (found && found->context != stack[depth - 1])
        misuse("cuModuleUnload in another context");
    return leave(end_life(module, MODULE));
}

static int cuModuleGetFunction(void **function, void *module, const char *name) {
    ENTER(true, true);
    struct item *found = find_alive(module, MODULE);
    if (!found)
        return leave(INVALID_HANDLE);
    for (int i = 0; i < found->count; i++)
        if (strcmp(found->functions[i].name, name) == 0) {
            *function = &found->functions[i];
            return leave(OK);
        }
    return leave(NOT_FOUND);
}

static struct function *find_function(const void *handle) {
    for (struct item *item = alive; item; item = item->next)
        for (int i = 0; item->kind == MODULE && i < item->count; i++)
            if (handle == &item->functions[i])
                return &item->functions[i];
    misuse("%s with a function that is not loaded", last_call);
    return NULL;
}

static int cuFuncGetAttribute(int *value, int attribute, void *handle) {
    ENTER(true, true);
    const struct function *function = find_function(handle);
    if (!function)
        return leave(INVALID_HANDLE);
    *value = attribute == 0   ? function->max_threads
             : attribute == 1 ? function->static_shared
             : attribute == 3 ? 0
             : attribute == 4 ? 40
                              : -1;
    return leave(*value < 0 ? INVALID_VALUE : OK);
}

static int cuFuncSetAttribute(void *handle, int attribute, int value) {
    ENTER(true, true);
    struct function *function = find_function(handle);
    if (!function)
        return leave(INVALID_HANDLE);
    if (attribute == 8 && value + function->static_shared <= shared_most())
        function->max_dynamic_shared = value;
    else if (attribute == 14)
        function->allows_large_clusters = value;
    else
        return leave(INVALID_VALUE);
    return leave(OK);
}

static int cuFuncGetParamInfo(void *handle, size_t index, size_t *offset, size_t *bytes) {
    ENTER(true, true);
    const struct function *function = find_function(handle);
    if (!function || function->argument_bytes < 0)
        return leave(function ? NOT_SUPPORTED : INVALID_HANDLE);
    if (index > 0 || !function->argument_bytes)
        return leave(INVALID_VALUE);
    *offset = 0;
    *bytes = (size_t)function->argument_bytes;
    return leave(OK);
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

struct attribute {
    uint32_t id, pad, words[16];
};

struct config {
    uint32_t grid[3], block[3], shared_bytes;
    void *stream;
    struct attribute *attributes;
    uint32_t attribute_count;
};

/* Fills the record and performs the checks of the driver. */
static int check_launch(struct fake_launch *launch, const struct config *config, const struct function *function) {
    static const uint32_t grid_max[] = {INT32_MAX, 65535, 65535}, block_max[] = {1024, 1024, 64};
    uint64_t threads = 1, cluster = 1;
    memcpy(launch->grid, config->grid, sizeof launch->grid);
    memcpy(launch->block, config->block, sizeof launch->block);
    launch->shared_bytes = config->shared_bytes;
    launch->stream = config->stream;
    for (uint32_t i = 0; i < config->attribute_count; i++) {
        if (config->attributes[i].id == 4)
            memcpy(launch->cluster, config->attributes[i].words, sizeof launch->cluster);
        else if (config->attributes[i].id == 2)
            launch->is_cooperative = config->attributes[i].words[0] == 1;
        else if (config->attributes[i].id == 6)
            launch->is_dependent = config->attributes[i].words[0] == 1;
        else
            return INVALID_VALUE;
    }
    for (int axis = 0; axis < 3; axis++) {
        if (!config->grid[axis] || config->grid[axis] > grid_max[axis] || !config->block[axis] ||
            config->block[axis] > block_max[axis])
            return INVALID_VALUE;
        threads *= config->block[axis];
        if (launch->cluster[0] && (!launch->cluster[axis] || config->grid[axis] % launch->cluster[axis]))
            return INVALID_CLUSTER_SIZE;
        cluster *= launch->cluster[0] ? launch->cluster[axis] : 1;
    }
    if (cluster > (function->allows_large_clusters ? 16u : 8u))
        return INVALID_CLUSTER_SIZE;
    return threads > (uint64_t)function->max_threads || (int64_t)config->shared_bytes > function->max_dynamic_shared
               ? INVALID_VALUE
               : OK;
}

static int emulate(const struct function *function, const struct config *config, const struct fake_launch *launch,
                   void **arguments) {
    struct launch_shape shape = {.dynamic_shared_bytes = config->shared_bytes};
    memcpy(shape.grid, launch->grid, sizeof shape.grid);
    memcpy(shape.block, launch->block, sizeof shape.block);
    memcpy(shape.cluster, launch->cluster, sizeof shape.cluster);
    if (emulator_launch(function->module->code, function->name, &shape, arguments ? arguments[0] : NULL, find_memory,
                        emulated_error))
        return OK;
    fprintf(stderr, "fake_cuda: %s\n", emulated_error);
    return LAUNCH_FAILED;
}

/* ---- CUDA graphs: recordings of launches ---- */

struct recorded {
    struct config config;
    struct attribute attributes[3];
    void *function;
    bool has_arguments;
    _Alignas(64) unsigned char arguments[ARGUMENT_BYTES_MAX];
};

struct recording {
    int count;
    struct recorded at[RECORDED_MAX];
};

/* Allocates an empty recording, whose arguments need a larger alignment than calloc guarantees. */
static struct recording *make_recording(void) {
    struct recording *made = aligned_alloc(_Alignof(struct recording), sizeof *made);
    if (made)
        memset(made, 0, sizeof *made);
    return made;
}

/* The recording of a captured stream, or NULL if work runs immediately. */
static struct recording *recording_of(const void *stream) {
    for (struct item *item = alive; item; item = item->next)
        if (item == stream && item->kind == STREAM)
            return item->recording;
    return NULL;
}

static int record(struct recording *recording, const struct config *config, const struct function *function,
                  void *handle, void **arguments) {
    if (recording->count == RECORDED_MAX || config->attribute_count > 3)
        return NOT_SUPPORTED;
    struct recorded *made = &recording->at[recording->count++];
    size_t bytes = function->argument_bytes < 0 ? ARGUMENT_BYTES_MAX : (size_t)function->argument_bytes;
    *made = (struct recorded){.config = *config, .function = handle, .has_arguments = arguments != NULL};
    memcpy(made->attributes, config->attributes, config->attribute_count * sizeof *config->attributes);
    if (arguments)
        memcpy(made->arguments, arguments[0], bytes);
    return OK;
}

/* Must be called with the lock held; releases it. */
static int launch_now(const struct config *config, void *handle, void **arguments, void **extra) {
    struct fake_launch launch = {0};
    const struct function *function = find_function(handle);
    if (!function)
        return leave(INVALID_HANDLE);
    if (function->module->context != stack[depth - 1]) {
        misuse("cuLaunchKernelEx of '%s' in another context", function->name);
        return leave(INVALID_CONTEXT);
    }
    if (captured && !config->stream)
        return leave(CAPTURE_IMPLICIT);
    if (recording_of(config->stream))
        return leave(record(recording_of(config->stream), config, function, handle, arguments));
    int result = check_launch(&launch, config, function);
    if (!result && (extra || (function->argument_bytes > 0 && !(arguments && arguments[0]))))
        result = INVALID_VALUE;
    if (result) {
        misuse("cuLaunchKernelEx of '%s' beyond the limits", function->name);
        return leave(result);
    }
    launch.device = function->module->context->device;
    memcpy(launch.kernel, function->name, sizeof launch.kernel);
    if (function->argument_bytes > 0) {
        if ((uintptr_t)arguments[0] % 8)
            misuse("cuLaunchKernelEx of '%s' with arguments at an odd address", function->name);
        launch.argument_bytes = (size_t)function->argument_bytes;
        for (size_t i = 0; i < launch.argument_bytes; i++) { /* reads all bytes, like the driver; stores some of them */
            uint8_t byte = ((const volatile uint8_t *)arguments[0])[i];
            if (i < sizeof launch.arguments)
                launch.arguments[i] = byte;
        }
    }
    launches[launch_count++ % LAUNCHES_KEPT] = launch;
    leave(OK);
    return function->module->code ? emulate(function, config, &launch, arguments) : OK;
}

static int cuLaunchKernelEx(const struct config *config, void *handle, void **arguments, void **extra) {
    ENTER(false, true);
    return launch_now(config, handle, arguments, extra);
}

static int cuStreamCreate(void **stream, unsigned flags) {
    ENTER(true, true);
    *stream = make_alive(STREAM, 0);
    return leave(!*stream ? OUT_OF_MEMORY : flags > 1 ? INVALID_VALUE : OK);
}

static int cuStreamDestroy_v2(void *stream) {
    ENTER(true, true);
    return leave(end_life(stream, STREAM));
}

static int cuStreamBeginCapture_v2(void *stream, int mode) {
    ENTER(false, true);
    struct item *item = find_alive(stream, STREAM);
    if (!item || item->recording || mode < 0 || mode > 2)
        return leave(INVALID_VALUE);
    item->recording = make_recording();
    return leave(item->recording ? OK : OUT_OF_MEMORY);
}

static int cuStreamEndCapture(void *stream, void **graph) {
    ENTER(false, true);
    struct item *item = find_alive(stream, STREAM), *made = item && item->recording ? make_alive(GRAPH, 0) : NULL;
    *graph = made;
    if (!made)
        return leave(INVALID_VALUE);
    made->recording = item->recording;
    item->recording = NULL;
    return leave(OK);
}

static int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    ENTER(true, true);
    const struct item *item = find_alive(graph, GRAPH);
    struct item *made = item && !flags ? make_alive(EXECUTABLE, 0) : NULL;
    *executable = made;
    if (!made)
        return leave(INVALID_VALUE);
    made->recording = make_recording();
    if (!made->recording)
        return leave(OUT_OF_MEMORY);
    *made->recording = *item->recording;
    for (const struct item *node = alive; node; node = node->next)
        for (int i = 0; node->kind == NODE && node->graph == item && i < node->recording->count; i++) {
            if (made->recording->count == RECORDED_MAX)
                return leave(NOT_SUPPORTED);
            made->recording->at[made->recording->count++] = node->recording->at[i];
        }
    return leave(OK);
}

static int cuGraphCreate(void **graph, unsigned flags) {
    ENTER(true, true);
    struct item *made = flags ? NULL : make_alive(GRAPH, 0);
    *graph = made;
    if (!made)
        return leave(INVALID_VALUE);
    made->recording = make_recording();
    return leave(made->recording ? OK : OUT_OF_MEMORY);
}

/* A copy of the child's kernels. */
static int cuGraphAddChildGraphNode(void **node, void *graph, void *const *dependencies, size_t count, void *child) {
    ENTER(false, true);
    const struct item *parent = find_alive(graph, GRAPH), *from = find_alive(child, GRAPH);
    struct item *made = parent && from && !count && !dependencies ? make_alive(NODE, 0) : NULL;
    *node = made;
    if (!made)
        return leave(INVALID_VALUE);
    made->graph = parent;
    made->recording = make_recording();
    if (!made->recording)
        return leave(OUT_OF_MEMORY);
    *made->recording = *from->recording;
    return leave(OK);
}

/* The kernels of a captured graph count as nodes, but cannot be listed. */
static int cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    ENTER(false, true);
    const struct item *parent = find_alive(graph, GRAPH);
    size_t found = parent ? (size_t)parent->recording->count : 0;
    for (struct item *item = alive; parent && item; item = item->next)
        if (item->kind == NODE && item->graph == parent) {
            if (nodes && found < *count)
                nodes[found] = item;
            found++;
        }
    *count = found;
    return leave(parent ? OK : INVALID_VALUE);
}

static int cuGraphDestroyNode(void *node) {
    ENTER(false, true);
    return leave(end_life(node, NODE));
}

/* Both graphs must have the same kernels, like in the driver. */
static int cuGraphExecUpdate_v2(void *executable, void *graph, void *update) {
    ENTER(false, true);
    const struct item *to = find_alive(executable, EXECUTABLE), *from = find_alive(graph, GRAPH);
    if (!to || !from || !update)
        return leave(INVALID_VALUE);
    bool is_same = to->recording->count == from->recording->count;
    for (int i = 0; is_same && i < from->recording->count; i++)
        is_same = to->recording->at[i].function == from->recording->at[i].function;
    if (is_same)
        *to->recording = *from->recording;
    return leave(is_same ? OK : GRAPH_EXEC_UPDATE_FAILURE);
}

static int cuGraphLaunch(void *executable, void *stream) {
    ENTER(false, true);
    const struct item *item = find_alive(executable, EXECUTABLE);
    if (!item || (captured && !stream))
        return leave(item ? CAPTURE_IMPLICIT : INVALID_HANDLE);
    int result = OK;
    for (int i = 0; i < item->recording->count && !result; i++) {
        struct recorded *at = &item->recording->at[i];
        struct config config = at->config;
        config.attributes = at->attributes;
        config.stream = stream;
        result = launch_now(&config, at->function, at->has_arguments ? (void *[]){at->arguments} : NULL, NULL);
        pthread_mutex_lock(&lock); /* launch_now has released the lock */
    }
    return leave(result);
}

static int cuGraphExecDestroy(void *executable) {
    ENTER(true, true);
    return leave(end_life(executable, EXECUTABLE));
}

static int cuGraphDestroy(void *graph) {
    ENTER(false, true);
    for (struct item *item = alive, *next; item; item = next) {
        next = item->next;
        if (item->kind == NODE && item->graph == graph)
            end_life(item, NODE);
    }
    return leave(end_life(graph, GRAPH));
}

static int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *handle, int threads, size_t shared_bytes) {
    ENTER(true, true);
    const struct function *function = find_function(handle);
    if (!function || threads < 1)
        return leave(INVALID_VALUE);
    int by_threads = threads_most() / threads;
    int by_shared = shared_bytes ? (int)(((size_t)shared_most() + (1 << 10)) / shared_bytes) : 32;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    return leave(OK);
}

/* ---- Memory, streams, events ------------------------------------------------------------------------------------- */

static int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    ENTER(true, true);
    struct item *made = bytes ? make_alive(MEMORY, bytes) : NULL;
    *address = made ? (uint64_t)(uintptr_t)made->memory : 0;
    return leave(made ? OK : bytes ? OUT_OF_MEMORY : INVALID_VALUE);
}

static int cuMemFree_v2(uint64_t address) {
    ENTER(true, true);
    return leave(end_life((const char *)(uintptr_t)address - offsetof(struct item, memory), MEMORY));
}

static int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t bytes, void *stream) {
    (void)stream;
    ENTER(false, true);
    memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
    return leave(OK);
}

static int cuStreamSynchronize(void *stream) {
    (void)stream;
    ENTER(true, true);
    return leave(OK);
}

static int cuStreamIsCapturing(void *stream, int *status) {
    ENTER(false, true);
    *status = captured && stream == captured;
    return leave(captured && !stream ? CAPTURE_IMPLICIT : OK);
}

static int cuStreamGetId(void *stream, uint64_t *number) {
    ENTER(false, true);
    *number = (uintptr_t)stream + (uint64_t)streams_replaced;
    return leave(OK);
}

static int cuEventCreate(void **event, unsigned flags) {
    ENTER(true, true);
    *event = make_alive(EVENT, 0);
    return leave(!*event ? OUT_OF_MEMORY : flags ? INVALID_VALUE : OK);
}

static int cuEventDestroy_v2(void *event) {
    ENTER(true, true);
    return leave(end_life(event, EVENT));
}

static int cuEventRecord(void *event, void *stream) {
    (void)stream;
    ENTER(false, true);
    return leave(find_alive(event, EVENT) ? OK : INVALID_HANDLE);
}

static int cuEventSynchronize(void *event) {
    ENTER(true, true);
    return leave(find_alive(event, EVENT) ? OK : INVALID_HANDLE);
}

static int cuEventElapsedTime(float *milliseconds, void *start, void *stop) {
    ENTER(true, true);
    *milliseconds = 0.25f;
    return leave(find_alive(start, EVENT) && find_alive(stop, EVENT) ? OK : INVALID_HANDLE);
}

/* ---- Tensor maps ------------------------------------------------------------------------------------------------- */

static int cuTensorMapEncodeTiled(struct tensor_map *map, int type, uint32_t rank, uint64_t address,
                                  const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                  const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
    ENTER(false, false);
    return leave(tensor_map_encode_tiled(map, type, rank, address, dims, strides, box, steps, interleave, swizzle,
                                         promotion, fill));
}

static int cuTensorMapEncodeIm2col(struct tensor_map *map, int type, uint32_t rank, uint64_t address,
                                   const uint64_t *dims, const uint64_t *strides, const int *lower, const int *upper,
                                   uint32_t channels, uint32_t pixels, const uint32_t *steps, int interleave,
                                   int swizzle, int promotion, int fill) {
    ENTER(false, false);
    return leave(tensor_map_encode_im2col(map, type, rank, address, dims, strides, lower, upper, channels, pixels,
                                          steps, interleave, swizzle, promotion, fill));
}

/* ---- Exported functions ------------------------------------------------------------------------------------------ */

int cuDriverGetVersion(int *out);
int cuDriverGetVersion(int *out) {
    pthread_mutex_lock(&lock);
    set_up();
    *out = version;
    return leave(OK);
}

#define NAMED(name, suffix) {#name, (void *)name##suffix}
static const struct {
    const char *name;
    void *address;
} entries[] = {
    NAMED(cuInit, ),
    NAMED(cuGetErrorName, ),
    NAMED(cuGetErrorString, ),
    NAMED(cuDeviceGetCount, ),
    NAMED(cuDeviceGet, ),
    NAMED(cuDeviceGetName, ),
    NAMED(cuDeviceGetAttribute, ),
    NAMED(cuDeviceTotalMem, _v2),
    NAMED(cuDeviceGetUuid, _v2),
    NAMED(cuDevicePrimaryCtxRetain, ),
    NAMED(cuCtxGetCurrent, ),
    NAMED(cuCtxPushCurrent, _v2),
    NAMED(cuCtxPopCurrent, _v2),
    NAMED(cuThreadExchangeStreamCaptureMode, ),
    NAMED(cuModuleLoadDataEx, ),
    NAMED(cuModuleUnload, ),
    NAMED(cuModuleGetFunction, ),
    NAMED(cuFuncGetAttribute, ),
    NAMED(cuFuncSetAttribute, ),
    NAMED(cuFuncGetParamInfo, ),
    NAMED(cuOccupancyMaxActiveBlocksPerMultiprocessor, ),
    NAMED(cuLaunchKernelEx, ),
    NAMED(cuMemAlloc, _v2),
    NAMED(cuMemFree, _v2),
    NAMED(cuMemcpyAsync, ),
    NAMED(cuStreamSynchronize, ),
    NAMED(cuStreamCreate, ),
    NAMED(cuStreamDestroy, _v2),
    NAMED(cuStreamIsCapturing, ),
    NAMED(cuStreamBeginCapture, _v2),
    NAMED(cuStreamEndCapture, ),
    NAMED(cuGraphInstantiateWithFlags, ),
    NAMED(cuGraphExecUpdate, _v2),
    NAMED(cuGraphLaunch, ),
    NAMED(cuGraphExecDestroy, ),
    NAMED(cuGraphDestroy, ),
    NAMED(cuGraphCreate, ),
    NAMED(cuGraphGetNodes, ),
    NAMED(cuGraphDestroyNode, ),
    NAMED(cuGraphAddChildGraphNode, ),
    NAMED(cuStreamGetId, ),
    NAMED(cuEventCreate, ),
    NAMED(cuEventDestroy, _v2),
    NAMED(cuEventRecord, ),
    NAMED(cuEventSynchronize, ),
    NAMED(cuEventElapsedTime, ),
    NAMED(cuTensorMapEncodeTiled, ),
    NAMED(cuTensorMapEncodeIm2col, ),
};

int cuGetProcAddress_v2(const char *name, void **address, int asked, uint64_t flags, int *found);
int cuGetProcAddress_v2(const char *name, void **address, int asked, uint64_t flags, int *found) {
    const char *missing = getenv("FAKE_CUDA_MISSING");
    *address = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (strcmp(entries[i].name, name) == 0 && !(missing && strcmp(missing, name) == 0) && asked <= version &&
            flags == 1)
            *address = entries[i].address;
    *found = *address ? 0 : 1;
    return *address ? OK : NOT_FOUND;
}

static void fail_at(int64_t nth, int result) {
    pthread_mutex_lock(&lock);
    set_up();
    fail_call = nth ? call_count + nth : 0;
    fail_result = result;
    failed_call = NULL;
    pthread_mutex_unlock(&lock);
}

static const char *tell_failed(void) {
    pthread_mutex_lock(&lock);
    const char *told = failed_call;
    pthread_mutex_unlock(&lock);
    return told;
}

static int64_t tell_calls(void) {
    pthread_mutex_lock(&lock);
    int64_t told = call_count;
    pthread_mutex_unlock(&lock);
    return told;
}

static void tell_counts(struct fake_counts *counts) {
    *counts = (struct fake_counts){.current = depth, .capture_mode = capture_mode};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEVICES_MAX; i++)
        counts->contexts += contexts[i].retained;
    for (const struct item *item = alive; item; item = item->next) {
        counts->modules += item->kind == MODULE;
        counts->events += item->kind == EVENT;
        counts->allocations += item->kind == MEMORY;
        counts->streams += item->kind == STREAM;
        counts->graphs += item->kind == GRAPH || item->kind == EXECUTABLE;
    }
    pthread_mutex_unlock(&lock);
}

static void set_executing(bool now) {
    pthread_mutex_lock(&lock);
    is_executing = now;
    pthread_mutex_unlock(&lock);
}

static void begin_execution(void) { set_executing(true); }
static void end_execution(void) { set_executing(false); }

static void capture(void *stream) {
    pthread_mutex_lock(&lock);
    captured = stream;
    pthread_mutex_unlock(&lock);
}

static void replace_streams(void) {
    pthread_mutex_lock(&lock);
    streams_replaced++;
    pthread_mutex_unlock(&lock);
}

static int tell_misuses(char *text, size_t bytes) {
    pthread_mutex_lock(&lock);
    snprintf(text, bytes, "%s", misuse_text);
    int told = misuse_count;
    pthread_mutex_unlock(&lock);
    return told;
}

static int64_t tell_launches(void) {
    pthread_mutex_lock(&lock);
    int64_t told = launch_count;
    pthread_mutex_unlock(&lock);
    return told;
}

static bool tell_launch(int64_t index, struct fake_launch *launch) {
    pthread_mutex_lock(&lock);
    bool is_kept = index >= 0 && index < launch_count && index >= launch_count - LAUNCHES_KEPT;
    if (is_kept)
        *launch = launches[index % LAUNCHES_KEPT];
    pthread_mutex_unlock(&lock);
    return is_kept;
}

extern const struct fake_cuda fake_cuda;
const struct fake_cuda fake_cuda = {fail_at,         tell_failed,   tell_calls, tell_counts,
                                    begin_execution, end_execution, capture,    replace_streams,
                                    tell_misuses,    tell_launches, tell_launch};
