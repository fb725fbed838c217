/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the devices of this machine, describes those of others, and holds one context per GPU. */
#define _GNU_SOURCE 1 /* sched_getaffinity */
#include "runtime/device.h"

#include "base/environment.h"
#include "base/number.h"
#include "runtime/cgroup.h"
#include "runtime/driver.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CUDA_DEVICES_MAX: GPUs that a process may enter. OLDEST_ARCH: sm_75, the first with mma.sync on 16-bit operands,
   which kernels use. */
enum { CUDA_DEVICES_MAX = 64, OLDEST_ARCH = 75 };

const char *device_kind_name(weftDeviceKind_t kind) { return kind == WEFT_DEVICE_CPU ? "cpu" : "cuda"; }

/* Reads the processor's name as Linux reports it; "CPU" if it does not. */
static void read_cpu_name(char *name, size_t bytes) {
    snprintf(name, bytes, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        /* Lines are "model name<tab>: text"; the text starts two characters after the colon. */
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, bytes, "%s", colon + 2);
        break;
    }
    if (file)
        fclose(file);
}

/* Computed once, because the thread pool keeps its size as long as the process lives. */
static int host_threads;

/* WEFT_THREADS can lower the number but not raise it: more threads than processors only wait for each other. */
static void count_host_threads(void) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t set; /* a container or taskset may allow fewer than are online */
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cpus = CPU_COUNT(&set);
    cpus = (long)min64(cpus, cgroup_processors(""));
#endif
    host_threads = (int)max64(1, min64(cpus, environment_number("WEFT_THREADS", cpus)));
}

int device_host_threads(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, count_host_threads);
    return host_threads;
}

/* ---- GPUs of this machine ---------------------------------------------------------------------------------------- */

/* Device attributes that map to one member of struct cuda_properties each, all of type int. */
static const struct {
    enum cuda_device_attribute attribute;
    size_t offset;
} int_attributes[] = {
    {CUDA_COMPUTE_CAPABILITY_MAJOR, offsetof(struct cuda_properties, major)},
    {CUDA_COMPUTE_CAPABILITY_MINOR, offsetof(struct cuda_properties, minor)},
    {CUDA_MULTIPROCESSOR_COUNT, offsetof(struct cuda_properties, multiprocessors)},
    {CUDA_CLOCK_RATE, offsetof(struct cuda_properties, clock_khz)},
    {CUDA_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, offsetof(struct cuda_properties, shared_per_block)},
    {CUDA_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, offsetof(struct cuda_properties, shared_per_multiprocessor)},
    {CUDA_MAX_REGISTERS_PER_MULTIPROCESSOR, offsetof(struct cuda_properties, registers_per_multiprocessor)},
    {CUDA_MAX_THREADS_PER_MULTIPROCESSOR, offsetof(struct cuda_properties, threads_per_multiprocessor)},
    {CUDA_MAX_THREADS_PER_BLOCK, offsetof(struct cuda_properties, threads_per_block)},
};

/* Cluster size that CUDA guarantees on every chip with clusters. */
static int cluster_most(int major) { return major >= 9 ? 8 : 1; }

/* Returns the first driver result that is not success; after a failure no further call is made. */
static int read_properties(struct device *device, const struct driver *driver) {
    struct cuda_properties *cuda = &device->cuda;
    int id, value, memory_khz = 0, bus_bits = 0;
    size_t memory;
    int result = driver->device_get(&id, device->ordinal);
    if (!result)
        result = driver->device_get_name(device->name, sizeof device->name, id);
    if (!result)
        result = driver->device_total_mem(&memory, id);
    if (!result)
        result = driver->device_get_uuid(cuda->uuid, id);
    /* After a failure `value` is unset; the caller discards the device. */
    for (size_t i = 0; !result && i < sizeof int_attributes / sizeof *int_attributes; i++) {
        result = driver->device_get_attribute(&value, int_attributes[i].attribute, id);
        memcpy((char *)cuda + int_attributes[i].offset, &value, sizeof value);
    }
    /* The three attributes have consecutive numbers. */
    for (int axis = 0; !result && axis < 3; axis++) {
        result = driver->device_get_attribute(&value, CUDA_MAX_GRID_DIM_X + axis, id);
        cuda->max_grid[axis] = value;
    }
    if (!result)
        result = driver->device_get_attribute(&value, CUDA_L2_CACHE_SIZE, id);
    if (!result)
        result = driver->device_get_attribute(&memory_khz, CUDA_MEMORY_CLOCK_RATE, id);
    if (!result)
        result = driver->device_get_attribute(&bus_bits, CUDA_GLOBAL_MEMORY_BUS_WIDTH, id);
    if (result)
        return result;
    cuda->cluster_most = cluster_most(cuda->major);
    cuda->l2_bytes = value;
    cuda->memory_bytes = (int64_t)memory;
    cuda->bandwidth = (int64_t)memory_khz * 1000 * 2 * bus_bits / 8; /* two transfers per clock */
    return CUDA_SUCCESS;
}

/* Reports the existing ordinals: "cuda:0..3", or "cuda:0" if there is only one. */
static weftStatus_t fail_to_find(int32_t ordinal, int count) {
    char last[16] = "";
    if (count > 1)
        snprintf(last, sizeof last, "..%d", count - 1);
    FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
         "no device cuda:%d on this machine: Weft found %d cuda device%s. Use cuda:0%s or cpu:0.", (int)ordinal, count,
         count == 1 ? "" : "s", last);
}

static weftStatus_t find_cuda(struct device *device, int32_t ordinal) {
    const struct driver *driver;
    TRY(driver_get(&driver));
    /* A negative ordinal would index the table of contexts. */
    if (ordinal < 0 || ordinal >= driver->device_count || ordinal >= CUDA_DEVICES_MAX)
        return fail_to_find(ordinal, driver->device_count);
    device->kind = WEFT_DEVICE_CUDA;
    device->ordinal = ordinal;
    int result = read_properties(device, driver);
    if (result)
        return driver_fail(result, "cuda:%d: reading its properties", (int)ordinal);
    /* All properties that the driver reports have been read; unusable values are rejected or replaced here. */
    const struct cuda_properties *cuda = &device->cuda;
    if (cuda->major * 10 + cuda->minor < OLDEST_ARCH)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
             "cuda:%d (%s): kernels need compute capability 7.5 or newer, this GPU has %d.%d. Use a newer GPU or the "
             "CPU (device cpu:0).",
             (int)ordinal, device->name, cuda->major, cuda->minor);
    /* A bandwidth of 0 would make every prediction infinite. */
    if (cuda->bandwidth <= 0) { /* some virtual GPUs do not report it */
        struct device typical;
        TRY(device_describe_cuda(&typical, cuda->major, cuda->minor));
        device->cuda.bandwidth = typical.cuda.bandwidth;
    }
    return WEFT_STATUS_SUCCESS;
}

int device_count(weftDeviceKind_t kind) {
    if (kind == WEFT_DEVICE_CPU)
        return 1;
    const struct driver *driver = driver_find();
    return driver ? driver->device_count : 0;
}

weftStatus_t device_find(struct device *device, weftDeviceKind_t kind, int32_t ordinal) {
    memset(device, 0, sizeof *device);
    /* Ordinals are counted after CUDA_VISIBLE_DEVICES has been applied. */
    if (kind == WEFT_DEVICE_CUDA)
        return find_cuda(device, ordinal);
    if (kind != WEFT_DEVICE_CPU || ordinal != 0)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "no device cpu:%d: a machine has one CPU device, cpu:0, and one cuda device per GPU. Use cpu:0 or "
             "cuda:0.",
             (int)ordinal);
    device->kind = kind;
    device->ordinal = ordinal;
    device->threads = device_host_threads();
    read_cpu_name(device->name, sizeof device->name);
    return WEFT_STATUS_SUCCESS;
}

/* The device that WEFT_DEVICE names, or a failure; if it is not set, the first GPU that kernels can run on, else the
   CPU. */
weftStatus_t device_choose_default(struct device *device) {
    const char *named = getenv("WEFT_DEVICE");
    /* GPUs that are too old are skipped, so that a machine with an old and a new one uses the new one. */
    if (!named || !*named) {
        int count = device_count(WEFT_DEVICE_CUDA);
        for (int i = 0; i < count; i++)
            if (device_find(device, WEFT_DEVICE_CUDA, i) == WEFT_STATUS_SUCCESS)
                return WEFT_STATUS_SUCCESS;
        if (count)
            status_clear(); /* the user did not request the unusable GPU */
        return device_find(device, WEFT_DEVICE_CPU, 0);
    }
    /* "cuda:", "cuda:x" and "cuda:1x" are refused and not read as cuda:0. */
    char *end;
    bool has_ordinal = strncmp(named, "cuda:", 5) == 0;
    long ordinal = has_ordinal ? strtol(named + 5, &end, 10) : 0;
    if (strcmp(named, "cpu") == 0)
        return device_find(device, WEFT_DEVICE_CPU, 0);
    if (strcmp(named, "cuda") == 0 || (has_ordinal && end != named + 5 && !*end && ordinal >= 0 && ordinal < INT32_MAX))
        return device_find(device, WEFT_DEVICE_CUDA, (int32_t)ordinal);
    FAIL(WEFT_STATUS_BAD_PARAM, "WEFT_DEVICE is '%s'; it must be cpu, cuda or cuda:N. Correct or unset it.", named);
}

/* ---- GPUs of other machines -------------------------------------------------------------------------------------- */

#define MIB(n) ((int64_t)(n) << 20)
#define GIB(n) ((int64_t)(n) << 30)
#define KIB(n) ((n) * 1024)

/* One well-known GPU per generation; the limits are those of its compute capability. */
static const struct {
    int arch;
    const char *name;
    /* clock_khz: boost clock; bandwidth: bytes per second; memory, L2 and shared memory: bytes. shared_per_block is
       what a kernel may request: 1 KiB less than the multiprocessor has, if CUDA reserves that much per block. */
    int multiprocessors, clock_khz;
    int64_t bandwidth, memory_bytes, l2_bytes;
    int shared_per_block, shared_per_multiprocessor, threads_per_multiprocessor;
    /* Clocks and bandwidths are from NVIDIA's data sheets. They only affect predictions, never correctness. */
} known[] = {
    /* Ascending by arch, because device_describe_cuda searches from the end. */
    {75, "T4", 40, 1590000, 320000000000, GIB(16), MIB(4), KIB(64), KIB(64), 1024},
    {80, "A100", 108, 1410000, 2039000000000, GIB(80), MIB(40), KIB(163), KIB(164), 2048},
    {86, "RTX 3090", 82, 1695000, 936000000000, GIB(24), MIB(6), KIB(99), KIB(100), 1536},
    {87, "Orin", 16, 1300000, 204800000000, GIB(64), MIB(4), KIB(163), KIB(164), 1536},
    {89, "RTX 4090", 128, 2520000, 1008000000000, GIB(24), MIB(72), KIB(99), KIB(100), 1536},
    {90, "H200", 132, 1980000, 4800000000000, GIB(141), MIB(60), KIB(227), KIB(228), 2048},
    {100, "B200", 148, 1965000, 8000000000000, GIB(180), MIB(126), KIB(227), KIB(228), 2048},
    {103, "B300", 148, 1965000, 8000000000000, GIB(270), MIB(126), KIB(227), KIB(228), 2048},
    {110, "Thor", 20, 1575000, 273000000000, GIB(128), MIB(32), KIB(227), KIB(228), 1536},
    {120, "RTX 5090", 170, 2407000, 1792000000000, GIB(32), MIB(96), KIB(99), KIB(100), 1536},
    {121, "GB10", 48, 2418000, 273000000000, GIB(128), MIB(24), KIB(99), KIB(100), 1536},
};

/* Only the properties that planning and compiling need. The ordinal and the UUID are zero: the device stands for any
   GPU of that chip. */
weftStatus_t device_describe_cuda(struct device *device, int major, int minor) {
    memset(device, 0, sizeof *device);
    /* Finds the newest known chip that is not newer: the same one, or an older one that resembles it. A chip that is
       newer than all rows gets the numbers of the newest. */
    size_t row = sizeof known / sizeof *known;
    while (row > 0 && known[row - 1].arch > major * 10 + minor)
        row--;
    if (row == 0 || minor < 0 || minor > 9)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
             "device description: kernels need compute capability 7.5 or newer, not %d.%d. Name a newer GPU, as "
             "\"sm_90\".",
             major, minor);
    row--;
    device->kind = WEFT_DEVICE_CUDA;
    device->is_described = true;
    snprintf(device->name, sizeof device->name, "%s%s (described)",
             known[row].arch == major * 10 + minor ? "" : "like ", known[row].name);
    device->cuda = (struct cuda_properties){
        .major = major,
        .minor = minor,
        .multiprocessors = known[row].multiprocessors,
        .clock_khz = known[row].clock_khz,
        .bandwidth = known[row].bandwidth,
        .memory_bytes = known[row].memory_bytes,
        .l2_bytes = known[row].l2_bytes,
        .shared_per_block = known[row].shared_per_block,
        .shared_per_multiprocessor = known[row].shared_per_multiprocessor,
        /* The same on every chip since sm_75. */
        .registers_per_multiprocessor = 65536,
        .threads_per_multiprocessor = known[row].threads_per_multiprocessor,
        .threads_per_block = 1024,
        .cluster_most = cluster_most(major),
        /* Limits of gridDim.x, y and z in the CUDA C++ Programming Guide, the same since compute capability 3.0. */
        .max_grid = {INT32_MAX, 65535, 65535},
    };
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t device_read_arch(int *major, int *minor, const char *text) {
    char *end = NULL;
    /* The last digit is the minor version, the others are the major version: 90 is 9.0, 103 is 10.3. */
    const char *digits = strncmp(text, "sm_", 3) == 0 ? text + 3 : text;
    long arch = *digits >= '0' && *digits <= '9' ? strtol(digits, &end, 10) : 0;
    /* A suffix selects a feature set; device_arch adds the one that Weft uses. */
    if (end && (*end == 'a' || *end == 'f'))
        end++;
    if (!end || *end || arch < 10 || arch > 9999)
        FAIL(WEFT_STATUS_BAD_PARAM, "'%.40s' is not a GPU architecture. Use the form \"sm_90\".", text);
    *major = (int)arch / 10;
    *minor = (int)arch % 10;
    return WEFT_STATUS_SUCCESS;
}

/* `% 1000` and `% 10` bound the length, because the compiler checks it against 16; real numbers are smaller. */
void device_arch(char arch[16], const struct device *device) {
    snprintf(arch, 16, "sm_%d%d%s", device->cuda.major % 1000, device->cuda.minor % 10,
             /* On sm_90 and newer, kernels use architecture-specific instructions (wgmma), whose target ends in a. */
             device->cuda.major >= 9 ? "a" : "");
}

/* True if a plan for `planned` can run on `actual`. `planned` may be a described device, `actual` never is. CPU plans
   run on every CPU, because the engines query the number of threads when they run. */
bool device_serves(const struct device *actual, const struct device *planned) {
    if (actual->kind != planned->kind || actual->is_described)
        return false;
    if (actual->kind == WEFT_DEVICE_CPU)
        return true;
    bool is_same_chip = actual->cuda.major == planned->cuda.major && actual->cuda.minor == planned->cuda.minor;
    /* Two GPUs of one chip may differ in memory and multiprocessors, so a plan for a real GPU is bound to its ordinal.
       */
    return is_same_chip && (planned->is_described || planned->ordinal == actual->ordinal);
}

/* Devices are created zeroed, so that padding compares equal too. */
bool device_same(const struct device *a, const struct device *b) { return memcmp(a, b, sizeof *a) == 0; }

const char *device_label(char text[DEVICE_LABEL_BYTES], const struct device *device) {
    char arch[32] = "";
    if (device->kind == WEFT_DEVICE_CUDA)
        snprintf(arch, sizeof arch, ", sm_%d%d", device->cuda.major, device->cuda.minor);
    snprintf(text, DEVICE_LABEL_BYTES, "%s:%d (%s%s)", device_kind_name(device->kind), (int)device->ordinal,
             device->name, arch);
    return text;
}

/* ---- Entering ---------------------------------------------------------------------------------------------------- */

/* Written once, before the first context is published, so that any thread that sees a context may read it. */
static const struct driver *context_driver;
/* By ordinal; NULL until the device is entered for the first time. */
static _Atomic(void *) contexts[CUDA_DEVICES_MAX];
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

/* Afterwards contexts[ordinal] is set, by this thread or by another. */
static weftStatus_t retain_context(const struct device *device) {
    const struct driver *driver;
    void *context = NULL;
    int id, result = CUDA_SUCCESS;
    TRY(driver_get(&driver));
    /* If two threads get here first, one of them opens the GPU. The context is retained until the process ends, because
       retaining and releasing it takes milliseconds. */
    pthread_mutex_lock(&context_lock);
    if (!atomic_load(&contexts[device->ordinal])) {
        result = driver->device_get(&id, device->ordinal);
        if (!result)
            result = driver->device_primary_ctx_retain(&context, id);
        if (!result) {
            if (!context_driver)
                context_driver = driver;
            atomic_store(&contexts[device->ordinal], context);
        }
    }
    pthread_mutex_unlock(&context_lock);
    return result ? driver_fail(result, "cuda:%d: opening it", (int)device->ordinal) : WEFT_STATUS_SUCCESS;
}

/* Hot path: one atomic load and one driver call if the context is already current. */
weftStatus_t device_enter(struct device_scope *scope, const struct device *device) {
    *scope = (struct device_scope){0};
    if (device->kind != WEFT_DEVICE_CUDA || device->is_described || device->ordinal < 0 ||
        device->ordinal >= CUDA_DEVICES_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
             "%s:%d (%s): loading and running code need a GPU of this machine, which this device is not. Save the plan "
             "and run it where the GPU is.",
             device_kind_name(device->kind), (int)device->ordinal, device->name);
    /* The acquire pairs with the store in retain_context: a thread that sees the context also sees context_driver. */
    void *context = atomic_load_explicit(&contexts[device->ordinal], memory_order_acquire), *current = NULL;
    if (!context) {
        TRY(retain_context(device));
        context = atomic_load(&contexts[device->ordinal]);
    }
    /* Another library may have made another context current, or none. Pushing lets device_leave restore it. */
    scope->driver = context_driver;
    int result = scope->driver->ctx_get_current(&current);
    /* The usual case, because PyTorch makes the same primary context current: nothing to push or pop. */
    if (!result && current == context)
        return WEFT_STATUS_SUCCESS;
    if (!result)
        result = scope->driver->ctx_push_current(context);
    if (result)
        return driver_fail(result, "cuda:%d: making it current", (int)device->ordinal);
    scope->is_pushed = true;
    return WEFT_STATUS_SUCCESS;
}

/* Scopes nest: leave in the reverse order of enter, on the same thread. */
void device_leave(const struct device_scope *scope) {
    void *popped;
    if (scope->is_pushed)
        scope->driver->ctx_pop_current(&popped);
}
