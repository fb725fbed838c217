/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libcuda once and stores the outcome with its message, so that every caller gets the same. Functions come from
   cuGetProcAddress with the version that this file was written for, so that newer drivers provide the same ones. */
#define _GNU_SOURCE
#include "runtime/driver.h"

#include "runtime/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CUDA 12.0, which came with driver 525, is the first with tensor maps and cuGetProcAddress_v2. */
enum { OLDEST_VERSION = 12000, LEGACY_STREAM = 1 /* NULL means the legacy default stream */ };

/* Written once, under load_once, then read by all threads without a lock. Zeroed if loading stopped early; print_result
   copes with missing functions. */
static struct driver table;
/* status is SUCCESS, 0, and text is empty if the driver is usable. */
static struct {
    weftStatus_t status;
    char text[1024];
    pid_t process; /* the process that started the driver */
} outcome;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

/* member: receives the address; version: CUDA version whose signature is declared here. */
#define ENTRY(member, name) {name, OLDEST_VERSION, offsetof(struct driver, member), false}
/* Names without _v2 and the like: cuGetProcAddress selects the variant by `version`. */
static const struct {
    const char *name;
    int version;
    size_t offset;
    bool is_optional;
} entries[] = {
    ENTRY(init, "cuInit"),
    ENTRY(get_error_name, "cuGetErrorName"),
    ENTRY(get_error_string, "cuGetErrorString"),
    ENTRY(device_get_count, "cuDeviceGetCount"),
    ENTRY(device_get, "cuDeviceGet"),
    ENTRY(device_get_name, "cuDeviceGetName"),
    ENTRY(device_get_attribute, "cuDeviceGetAttribute"),
    ENTRY(device_total_mem, "cuDeviceTotalMem"),
    ENTRY(device_get_uuid, "cuDeviceGetUuid"),
    ENTRY(device_primary_ctx_retain, "cuDevicePrimaryCtxRetain"),
    ENTRY(ctx_get_current, "cuCtxGetCurrent"),
    ENTRY(ctx_push_current, "cuCtxPushCurrent"),
    ENTRY(ctx_pop_current, "cuCtxPopCurrent"),
    ENTRY(thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode"),
    ENTRY(module_load_data_ex, "cuModuleLoadDataEx"),
    ENTRY(module_unload, "cuModuleUnload"),
    ENTRY(module_get_function, "cuModuleGetFunction"),
    ENTRY(func_get_attribute, "cuFuncGetAttribute"),
    ENTRY(func_set_attribute, "cuFuncSetAttribute"),
    /* Optional functions are newer than OLDEST_VERSION, or missing from some drivers that claim it. */
    {"cuFuncGetParamInfo", 12040, offsetof(struct driver, func_get_param_info), true},
    ENTRY(occupancy_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor"),
    ENTRY(launch_kernel_ex, "cuLaunchKernelEx"),
    ENTRY(mem_alloc, "cuMemAlloc"),
    ENTRY(mem_free, "cuMemFree"),
    ENTRY(memcpy_async, "cuMemcpyAsync"),
    ENTRY(stream_synchronize, "cuStreamSynchronize"),
    ENTRY(stream_create, "cuStreamCreate"),
    ENTRY(stream_destroy, "cuStreamDestroy"),
    ENTRY(stream_is_capturing, "cuStreamIsCapturing"),
    ENTRY(stream_begin_capture, "cuStreamBeginCapture"),
    ENTRY(stream_end_capture, "cuStreamEndCapture"),
    ENTRY(graph_instantiate, "cuGraphInstantiateWithFlags"),
    ENTRY(graph_exec_update, "cuGraphExecUpdate"),
    ENTRY(graph_launch, "cuGraphLaunch"),
    ENTRY(graph_exec_destroy, "cuGraphExecDestroy"),
    ENTRY(graph_destroy, "cuGraphDestroy"),
    ENTRY(graph_get_nodes, "cuGraphGetNodes"),
    ENTRY(graph_destroy_node, "cuGraphDestroyNode"),
    ENTRY(graph_add_child, "cuGraphAddChildGraphNode"),
    {"cuStreamGetId", OLDEST_VERSION, offsetof(struct driver, stream_get_id), true},
    ENTRY(event_create, "cuEventCreate"),
    ENTRY(event_destroy, "cuEventDestroy"),
    ENTRY(event_record, "cuEventRecord"),
    ENTRY(event_synchronize, "cuEventSynchronize"),
    ENTRY(event_elapsed_time, "cuEventElapsedTime"),
    ENTRY(tensor_map_encode_tiled, "cuTensorMapEncodeTiled"),
    ENTRY(tensor_map_encode_im2col, "cuTensorMapEncodeIm2col"),
};
#undef ENTRY

/* Meaning of a CUresult for a caller, and the fix. In numerical order. */
static const struct {
    int result;
    weftStatus_t status;
    const char *fix;
} meanings[] = {
    /* INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED, STUB_LIBRARY, DEVICE_UNAVAILABLE,
       INVALID_DEVICE. */
    {1, WEFT_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE, "This is a defect of Weft: report it with this text."},
    {2, WEFT_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "Free device memory, or set a smaller workspace limit."},
    {3, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
     "If this process was forked, use the spawn start method for workers; CUDA does not survive a fork."},
    {4, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "The process is ending; finish GPU work before it ends."},
    {34, WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
     "It is the stub that toolkits link with: remove its folder from LD_LIBRARY_PATH and install NVIDIA's driver."},
    {46, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
     "Another process may own the GPU exclusively: see 'nvidia-smi -q -d COMPUTE', or use another GPU."},
    {101, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "See nvidia-smi: the GPU may have fallen off the bus."},
    /* Images and contexts: INVALID_IMAGE, INVALID_CONTEXT, NO_BINARY_FOR_GPU, ECC_UNCORRECTABLE, INVALID_PTX,
       JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION. */
    {200, WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "The code was compiled for another GPU: build the plan here."},
    {201, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
     "The context of the GPU was destroyed or reset by this program; keep it alive while Weft is used."},
    {209, WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "The code was compiled for another GPU: build the plan here."},
    {214, WEFT_STATUS_EXECUTION_FAILED, "The GPU's memory failed: reset or replace it."},
    {218, WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, "This is a defect of Weft: report it with this text."},
    {221, WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
     "libnvidia-ptxjitcompiler.so.1 of the driver is missing: install the whole driver."},
    {222, WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
     "The compiler is newer than the driver: update the driver, or install an older NVRTC."},
    /* Launches: INVALID_HANDLE, ILLEGAL_ADDRESS, LAUNCH_OUT_OF_RESOURCES, LAUNCH_TIMEOUT, ILLEGAL_INSTRUCTION,
       MISALIGNED_ADDRESS, LAUNCH_FAILED. Most are sticky: they are reported by whatever call follows the kernel that
       failed. */
    {400, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
     "The stream or kernel belongs to another GPU or to a destroyed context: use one of the plan's GPU."},
    {700, WEFT_STATUS_EXECUTION_FAILED,
     "An earlier kernel of this or another library accessed memory out of bounds; this process can no longer use the "
     "GPU. Check pointers and sizes, or run under compute-sanitizer."},
    {701, WEFT_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM, "This is a defect of Weft: report it with this text."},
    {702, WEFT_STATUS_EXECUTION_FAILED, "The system's watchdog stopped a kernel: use a GPU without a display."},
    {715, WEFT_STATUS_EXECUTION_FAILED, "An earlier kernel failed; this process can no longer use the GPU."},
    {716, WEFT_STATUS_EXECUTION_FAILED,
     "An earlier kernel accessed a misaligned address; this process can no longer use the GPU. Check pointers."},
    {719, WEFT_STATUS_EXECUTION_FAILED,
     "An earlier kernel failed; this process can no longer use the GPU. Run under compute-sanitizer."},
    /* Installation: SYSTEM_NOT_READY, SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE. */
    {802, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
     "The system is not ready: on NVSwitch machines start nvidia-fabricmanager, then try again."},
    {803, WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
     "Reboot, or reload the kernel module: its version differs from that of libcuda, as after an update of the "
     "driver."},
    {804, WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
     "Remove the cuda-compat library from LD_LIBRARY_PATH, or update the driver: the library does not support this "
     "GPU."},
    /* Captures and clusters: STREAM_CAPTURE_UNSUPPORTED, _INVALIDATED, _IMPLICIT, INVALID_CLUSTER_SIZE. */
    {900, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "The stream is being captured: do this before the capture."},
    {901, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
     "An earlier error ended the capture of the stream: start a new capture."},
    {906, WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
     "Work on the default stream would join a capture: execute on the captured stream."},
    {912, WEFT_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM, "This is a defect of Weft: report it with this text."},
};

/* Unlisted results have the general status, because they concern the machine and not the call. */
static weftStatus_t interpret(int result, const char **fix) {
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].result == result) {
            *fix = meanings[i].fix;
            return meanings[i].status;
        }
    *fix = "See nvidia-smi and the kernel log.";
    return WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
}

/* "CUDA_ERROR_NO_DEVICE (100: no CUDA-capable device is detected)". If the driver did not load, the functions are
   missing and only the number is printed. */
static void print_result(char *out, size_t bytes, int result) {
    const char *name = NULL, *words = NULL;
    if (table.get_error_name)
        table.get_error_name(result, &name);
    if (table.get_error_string)
        table.get_error_string(result, &words);
    snprintf(out, bytes, "%s (%d: %s)", name ? name : "CUDA error", result, words ? words : "unknown to this driver");
}

weftStatus_t driver_fail(int result, const char *what, ...) {
    char object[512], answer[256];
    const char *fix;
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(object, sizeof object, what, arguments);
    va_end(arguments);
    print_result(answer, sizeof answer, result);
    weftStatus_t status = interpret(result, &fix);
    FAIL(status, "%s: the CUDA driver returned %s. %s", object, answer, fix);
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

#define USE_CPU "or use the CPU (device cpu:0)."

/* Sets the outcome but not the thread's message, because driver_find must stay silent. */
static void refuse(weftStatus_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void refuse(weftStatus_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(outcome.text, sizeof outcome.text, format, arguments);
    va_end(arguments);
    outcome.status = status;
}

/* Opens the library and returns its name for messages. NULL if it was refused. */
static void *open_library(const char **name) {
    /* The locations on WSL and on Jetson, in case the loader does not know them. */
    static const char *const paths[] = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1",
                                        "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1"};
    char why[LIBRARY_WHY_BYTES], other[LIBRARY_WHY_BYTES];
    const char *forced = getenv("WEFT_LIBCUDA");
    if (forced && *forced) {
        void *library = library_open(*name = forced, why);
        if (!library)
            refuse(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                   "CUDA driver: the file that WEFT_LIBCUDA names cannot be loaded (%s). Name NVIDIA's libcuda.so.1 "
                   "there, unset WEFT_LIBCUDA, " USE_CPU,
                   why);
        return library;
    }
    /* The first failure is reported, because it is the loader's own; the other paths are guesses. */
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        void *library = library_open(*name = paths[i], i == 0 ? why : other);
        if (library)
            return library;
    }
    refuse(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
           "CUDA driver: a GPU needs NVIDIA's driver, 525 or newer, but its library cannot be loaded (%s). Install the "
           "driver, give the container the GPU (docker run --gpus all), " USE_CPU,
           why);
    return NULL;
}

/* Uses dlsym, because drivers that are too old lack cuGetProcAddress_v2 and their version should be reported. */
static bool is_new_enough(void *library, const char *name) {
    int (*get_version)(int *);
    /* C has no conversion from object to function pointers; POSIX requires this form. */
    *(void **)&get_version = dlsym(library, "cuDriverGetVersion");
    if (!get_version || get_version(&table.version)) {
        refuse(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
               "CUDA driver: '%s' does not report its version, so it is not a CUDA driver. Install NVIDIA's "
               "driver, " USE_CPU,
               name);
        return false;
    }
    if (table.version >= OLDEST_VERSION)
        return true;
    refuse(WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
           "CUDA driver: Weft needs CUDA 12.0 or newer, '%s' supports %d.%d. Update NVIDIA's driver to 525 or "
           "newer, " USE_CPU,
           name, table.version / 1000, table.version % 1000 / 10);
    return false;
}

/* Fills the table; false if a required function is missing. Missing optional ones are NULL, which their users check. */
static bool find_entries(void *library, const char *name) {
    int (*get_address)(const char *, void **, int, uint64_t, int *);
    const char *missing = NULL;
    *(void **)&get_address = dlsym(library, "cuGetProcAddress_v2");
    if (!get_address)
        missing = "cuGetProcAddress_v2";
    for (size_t i = 0; !missing && i < sizeof entries / sizeof *entries; i++) {
        void *address = NULL;
        /* CUdriverProcAddressQueryResult: 0 is success, 1 no such symbol, 2 a version that the driver does not have. */
        int availability = 0;
        int result = get_address(entries[i].name, &address, entries[i].version, LEGACY_STREAM, &availability);
        if (result || availability)
            address = NULL;
        if (!address && !entries[i].is_optional)
            missing = entries[i].name;
        /* Members are function pointers of many types; POSIX has all of them in the form of an object pointer. */
        memcpy((char *)&table + entries[i].offset, &address, sizeof address);
    }
    if (missing)
        refuse(
            WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
            "CUDA driver: '%s' reports that it supports CUDA %d.%d but lacks %s. Reinstall NVIDIA's driver, " USE_CPU,
            name, table.version / 1000, table.version % 1000 / 10, missing);
    return !missing;
}

/* Stores the message for a failure of cuInit or cuDeviceGetCount, for all later callers. */
static void refuse_start(int result) {
    char answer[256];
    const char *fix;
    weftStatus_t status = interpret(result, &fix);
    print_result(answer, sizeof answer, result);
    refuse(status, "CUDA driver: it does not start: cuInit returned %s. %s Until then use the CPU (device cpu:0).",
           answer, fix);
}

/* Runs once; sets table and outcome. */
static void load(void) {
    const char *name;
    void *library = open_library(&name);
    if (!library || !is_new_enough(library, name) || !find_entries(library, name))
        return;
    int result = table.init(0);
    if (!result)
        result = table.device_get_count(&table.device_count);
    /* A driver that was started does not survive a fork, and would not report anything useful. */
    outcome.process = getpid();
    /* A driver without a GPU returns NO_DEVICE or a count of 0. */
    if (result && result != CUDA_NO_DEVICE) {
        refuse_start(result);
    } else if (result || table.device_count < 1) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        refuse(
            WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
            "CUDA driver: it supports CUDA %d.%d and finds no GPU (CUDA_VISIBLE_DEVICES is %s%s%s). Check nvidia-smi, "
            "give the container the GPU (docker run --gpus all), " USE_CPU,
            table.version / 1000, table.version % 1000 / 10, visible ? "'" : "not set", visible ? visible : "",
            visible ? "'" : "");
    }
}

weftStatus_t driver_get(const struct driver **driver) {
    pthread_once(&load_once, load);
    if (outcome.status)
        FAIL(outcome.status, "%s", outcome.text);
    /* A forked child has the parent's table but none of its threads and device mappings. */
    if (outcome.process != getpid())
        FAIL(
            WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
            "CUDA driver: this process was forked from one that had started CUDA, which does not survive a fork. Start "
            "workers by spawn (Python: multiprocessing.set_start_method('spawn')), or fork before the first use of a "
            "GPU.");
    *driver = &table;
    return WEFT_STATUS_SUCCESS;
}

/* Silent, for callers that only want to know whether there are GPUs. */
const struct driver *driver_find(void) {
    pthread_once(&load_once, load);
    return outcome.status || outcome.process != getpid() ? NULL : &table;
}
