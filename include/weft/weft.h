/* SPDX-License-Identifier: Apache-2.0 */
/* weft.h: the whole of Weft's C API, in the order in which one learns it.
 *
 * Weft computes graphs of tensor operations (convolution, matmul, attention, normalisation, pooling, pointwise,
 * reductions, data movement) on a CPU or an NVIDIA GPU. A program
 *
 *   1. creates a handle:                 weftCreate
 *   2. describes tensors and operations: weftBackendCreateDescriptor, -SetAttribute, -Finalize
 *   3. gathers them in a graph:          the descriptor WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR
 *   4. asks for engines:                 the descriptor WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR
 *   5. makes a plan of one:              the descriptor WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR
 *   6. runs it, any number of times:     weftBackendExecute or weftExecute
 *
 * Names and numbers that cuDNN's backend API has too are the same after s/cudnn/weft/; what it lacks ends in _EXT or is
 * said to be Weft's own.
 *
 * Errors: every function that can fail returns a weftStatus_t. A failure leaves a sentence in the calling thread
 * (weftGetLastErrorString): where, the rule, what was expected and what came, and what to do.
 *
 * Threads: descriptors under construction belong to one thread at a time. Finalized descriptors are immutable and may
 * be shared; one plan may run on many threads at once, each call with its own workspace. A tensor whose strides are
 * left unset is completed by the first operation that is finalized with it: do that on one thread.
 *
 * Environment: WEFT_LOG=error|warn|info|plan|exec prints to stderr; WEFT_THREADS=n caps the CPU threads. For NVIDIA
 * GPUs: WEFT_DEVICE=cpu|cuda|cuda:N says what weftCreate opens, WEFT_NVRTC names the run-time compiler to use,
 * WEFT_CACHE_DIR, WEFT_CACHE=off|ro|rw and WEFT_CACHE_BYTES rule the disk cache of kernels, WEFT_DUMP_DIR receives the
 * kernels' text, WEFT_LIBCUDA names another driver library, WEFT_CHECK=1 refuses indices in memory that are out of
 * range, as the CPU always does. */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#include "weft/weft_enums.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version and errors ------------------------------------------------------------------------------------------ */

/** The version that this header describes. A program built with an older header runs with any newer library of the same
    soname. */
enum {
    WEFT_MAJOR = 0,     /**< Changes when the API breaks. */
    WEFT_MINOR = 1,     /**< Changes when the API grows. */
    WEFT_PATCHLEVEL = 0 /**< Changes with repairs. */
};

/** The largest rank of a tensor. */
enum {
    WEFT_DIM_MAX = 8 /**< Dimensions per tensor. */
};

/** The version of the loaded library: MAJOR * 10000 + MINOR * 100 + PATCHLEVEL. */
size_t weftGetVersion(void);

/** The name of a status, such as "WEFT_STATUS_BAD_PARAM". Never NULL; the text is static. */
const char *weftGetErrorString(weftStatus_t status);

/** Copies the calling thread's last error text, cut to max_size bytes with its terminating zero. Empty when the
    thread's last Weft call succeeded. message may be NULL when max_size is 0. This call keeps the text. */
void weftGetLastErrorString(char *message, size_t max_size);

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

/** A device opened for use. Create one per device; threads may share it. */
typedef struct weftContext *weftHandle_t;

/** A CUDA stream (CUstream or cudaStream_t); NULL is the default stream. The CPU ignores it. */
typedef void *weftStream_t;

/** Opens the default device: the first NVIDIA GPU if there is one that Weft can use, else the CPU.
    handle: receives the handle; release it with weftDestroy.
    Fails with BAD_PARAM_NULL_POINTER or INTERNAL_ERROR_HOST_ALLOCATION_FAILED. */
weftStatus_t weftCreate(weftHandle_t *handle);

/** Opens one device of a kind. Weft's own.
    ordinal: 0-based index of the device among its kind; 0 for the CPU.
    Fails with BAD_PARAM_OUT_OF_BOUND when there is no such device, with NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING or
    NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER when no driver can be used, with NOT_SUPPORTED_ARCH_MISMATCH for GPUs older
    than compute capability 7.5. */
weftStatus_t weftCreateForDevice(weftHandle_t *handle, weftDeviceKind_t kind, int32_t ordinal);

/** Closes a handle. Descriptors that named it stay valid. NULL is allowed and does nothing. */
weftStatus_t weftDestroy(weftHandle_t handle);

/** Sets the stream on which weftBackendExecute enqueues work. */
weftStatus_t weftSetStream(weftHandle_t handle, weftStream_t stream);

/** Reads the stream set by weftSetStream (NULL if none was). */
weftStatus_t weftGetStream(weftHandle_t handle, weftStream_t *stream);

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

/** A tensor, an operation, a graph, an engine, a plan ...: anything with attributes. A descriptor keeps alive the
    descriptors it names, so each may be destroyed as soon as the last one that needs it has been told of it. */
typedef struct weftDescriptor *weftBackendDescriptor_t;

/** A fraction: the element of WEFT_TYPE_FRACTION attributes. */
typedef struct {
    int64_t numerator;   /**< Any value. */
    int64_t denominator; /**< At least 1. */
} weftFraction_t;

/** Makes an empty descriptor of a kind. Release it with weftBackendDestroyDescriptor. */
weftStatus_t weftBackendCreateDescriptor(weftBackendDescriptorType_t kind, weftBackendDescriptor_t *descriptor);

/** Gives up the caller's hold on a descriptor. NULL is allowed and does nothing. */
weftStatus_t weftBackendDestroyDescriptor(weftBackendDescriptor_t descriptor);

/** Sets one attribute of a descriptor that is not finalized yet; setting it again replaces the value.
    type:     the type of the elements; FLOAT is taken where DOUBLE is asked, INT64 where FRACTION is.
    count:    how many elements.
    elements: address of the first; they are copied. For WEFT_TYPE_BACKEND_DESCRIPTOR an array of descriptors.
    Fails with BAD_PARAM_ATTRIBUTE_TYPE, BAD_PARAM_OUT_OF_BOUND (a value or count outside its range),
    BAD_PARAM_NOT_FINALIZED (a descriptor among the elements), BAD_PARAM_ALREADY_FINALIZED_EXT. */
weftStatus_t weftBackendSetAttribute(weftBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                     weftBackendAttributeType_t type, int64_t count, const void *elements);

/** Checks the whole descriptor, fills in what was left to be inferred, and makes it immutable. Fails as the kind's
    rules say; the descriptor then stays open for repair. */
weftStatus_t weftBackendFinalize(weftBackendDescriptor_t descriptor);

/** One attribute to set: the arguments of weftBackendSetAttribute. Weft's own. */
typedef struct {
    weftBackendAttributeName_t name; /**< Which. */
    weftBackendAttributeType_t type; /**< Of the elements. */
    int64_t count;                   /**< How many elements. */
    const void *elements;            /**< Address of the first. */
} weftAttribute_t;

/** Makes a descriptor, sets its attributes in order and finalizes it, in one call. Weft's own.
    count:      how many attributes; 0 with attributes NULL for a kind that needs none.
    descriptor: receives the finalized descriptor; untouched by a failure, which is that of the step that failed. */
weftStatus_t weftBackendBuildDescriptor(weftBackendDescriptorType_t kind, int64_t count,
                                        const weftAttribute_t *attributes, weftBackendDescriptor_t *descriptor);

/** Reads one attribute of a finalized descriptor.
    requested: how many elements fit into the array.
    count:     receives how many elements the attribute has (it may exceed requested); may be NULL when requested
               is 1.
    elements:  receives min(requested, count) elements. NULL, or requested == 0, asks for the count alone.
    Attributes that are descriptors are copied into descriptors that the caller made (with weftBackendCreateDescriptor,
    not finalized); they come back finalized. */
weftStatus_t weftBackendGetAttribute(weftBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                     weftBackendAttributeType_t type, int64_t requested, int64_t *count,
                                     void *elements);

/* ---- Execution --------------------------------------------------------------------------------------------------- */

/** Runs a plan: enqueues it on the handle's stream (GPU) or computes it (CPU) before returning. Allocates nothing.
    handle:      a handle of the device that the plan was made for.
    plan:        a finalized WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR.
    variantPack: a finalized WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR with one pointer per tensor of the graph that is not
                 virtual, host pointers for by-value tensors, and a workspace of at least the plan's size. */
weftStatus_t weftBackendExecute(weftHandle_t handle, weftBackendDescriptor_t plan, weftBackendDescriptor_t variantPack);

/** The same with a flat list of pointers, for bindings and hot loops. Weft's own.
    count:     how many pointers; must be the plan's number of slots.
    pointers:  addresses in slot order, which WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT tells. On a GPU multiples of
               what their tensors promise in WEFT_ATTR_TENSOR_BYTE_ALIGNMENT; of an element alone on the CPU and where
               the plan has WEFT_ATTR_EXECUTION_PLAN_ELEMENT_ALIGNED_EXT.
    workspace: at least WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE bytes, aligned to 64 bytes; may be NULL if that is 0.
    stream:    where to enqueue; the CPU ignores it. */
weftStatus_t weftExecute(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                         weftStream_t stream);

/** Freezes inputs of a plan, as the weights of a trained network: they keep their numbers from now on, and what kernels
    pack of them for each execution is packed once, now. Executions with the same addresses use that; with others, or
    with overridden shapes, they pack as before. Another call takes the place of the one before: with NULL alone it
    thaws all. Products and convolutions on the CPU keep about as many bytes again as the weights have; kernels of a GPU
    pack nothing. Not while the plan is executed. Weft's own.
    count:    how many pointers; must be the plan's number of slots.
    pointers: addresses in slot order, as weftExecute will get them; NULL: not frozen. Of inputs alone. */
weftStatus_t weftFreeze(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers);

/** The workspace in bytes that a plan needs for the shapes that a variant pack overrides (its own when it overrides
    none). */
weftStatus_t weftGetExecutionPlanWorkspaceSize(weftHandle_t handle, weftBackendDescriptor_t plan,
                                               weftBackendDescriptor_t variantPack, size_t *workspaceSize);

/** How long a plan takes: runs it some times, one after another, and waits. On a GPU the time between two events of the
    stream, on the CPU that of the clock. For choosing between plans by trial; not while a stream is captured. Weft's
    own.
    count, pointers, workspace, stream: as for weftExecute.
    repeats: how many runs, at least 1.
    seconds: receives the mean time of one run. */
weftStatus_t weftMeasure(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                         weftStream_t stream, int64_t repeats, double *seconds);

/** How long each step of a plan takes where it runs, with what the steps before it left in caches: runs it once, which
    does not count, then some times, one after another, with a mark behind each step, and waits. What passes between two
    steps counts as the later one's. On a GPU marked runs take turns with bare ones, and what marks take is taken off
    each step in equal shares, so that steps add up to the whole.
    Not while a stream is captured. Weft's own.
    count, pointers, workspace, stream: as for weftExecute.
    repeats:   how many such runs, at least 1; with all steps at most 65536 marks.
    stepCount: how many numbers `seconds` has room for; must be the plan's number of steps, which
               WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT lists.
    seconds:   receives the mean time of each step, in their order. */
weftStatus_t weftMeasureSteps(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                              weftStream_t stream, int64_t repeats, int64_t stepCount, double *seconds);

/* ---- Memory of devices, for programs that have no allocator of their own: all Weft's own ------------------------- */

/** Allocates memory of the handle's device, aligned to 64 bytes or more.
    address: receives it; NULL for 0 bytes. Give it back with weftFree.
    Fails with INTERNAL_ERROR_HOST_ALLOCATION_FAILED or INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED. */
weftStatus_t weftAllocate(weftHandle_t handle, size_t bytes, void **address);

/** Gives memory back to the handle's device, once no work uses it any more. NULL is allowed and does nothing. */
weftStatus_t weftFree(weftHandle_t handle, void *address);

/** Allocates memory for the work of one stream, as the results of a call after call: what weftFreeOnStream gave back on
    that stream is used again, which takes a fraction of a microsecond. On the CPU as weftAllocate.
    stream: where all work on the memory will be; not while it is captured.
    Give it back with weftFreeOnStream, or with weftFree once no work uses it any more. */
weftStatus_t weftAllocateOnStream(weftHandle_t handle, size_t bytes, weftStream_t stream, void **address);

/** Gives such memory back as soon as the last work on it is enqueued on its stream; work on other streams must be over.
    The handle keeps some freed memory until it is destroyed: 64 blocks and a sixteenth of the device's memory at most.
    It frees that when memory runs out.
    bytes, stream: as it was allocated. A stream may be destroyed while work on what was given back is under way:
    another that comes to have its address does not get that memory. What is given back after its stream was destroyed
    must be free of work. */
weftStatus_t weftFreeOnStream(weftHandle_t handle, size_t bytes, weftStream_t stream, void *address);

/** Copies bytes between memory of the host and of the handle's device, in either direction or within one, in the order
    of a stream. Returns when it is done. */
weftStatus_t weftCopy(weftHandle_t handle, void *destination, const void *source, size_t bytes, weftStream_t stream);

/** Waits until everything that was enqueued on a stream of the handle's device is done. */
weftStatus_t weftSynchronize(weftHandle_t handle, weftStream_t stream);

/* ---- Asking the library ------------------------------------------------------------------------------------------ */

/** Which engines can run a graph, with predicted times, and why the others cannot, as JSON. Needs no device. Weft's
    own.
    graph:            a finalized operation graph.
    deviceProperties: the device asked about, finalized; NULL asks about the CPU.
    text:             receives up to capacity bytes with a terminating zero; NULL with capacity 0 asks for the size.
    size:             receives the bytes that the whole text takes, terminator included; may be NULL. */
weftStatus_t weftQuerySupport(weftBackendDescriptor_t graph, weftBackendDescriptor_t deviceProperties, char *text,
                              size_t capacity, size_t *size);

/** Every descriptor kind with its attributes, every operation with its rules and frontend methods, every pointwise
    mode, as JSON: enough to generate bindings and documentation from. Arguments as for weftQuerySupport. Weft's own. */
weftStatus_t weftDescribe(char *text, size_t capacity, size_t *size);

/** What this machine offers for GPUs, as JSON, arguments as for weftQuerySupport: the driver's version, or its problem
    in words; every copy of the run-time compiler that was found, and which one serves the first GPU ("sm_90a" where
    there is none) and why; the kernel cache in memory and on disk. Weft's own. */
weftStatus_t weftDescribeMachine(char *text, size_t capacity, size_t *size);

/** Says where the run-time compiler, libnvrtc, may lie besides the usual places: what a language knows of its packages
    and the library cannot know (Python: sys.path). Plans finalized afterwards look there too. Weft's own.
    paths: folders and files, divided by colons; a folder may hold the library, or as site-packages do nvidia/cu13/lib
           or nvidia/cuda_nvrtc/lib. Replaces what was set before; NULL or empty sets none. */
weftStatus_t weftSetSearchPaths(const char *paths);

/* ---- Programs of XLA --------------------------------------------------------------------------------------------- */

/** A handler of XLA's foreign function interface, version 0.1, which runs a saved plan on the buffers and the stream of
    the call: weft.jax registers it, and writes the attributes that it reads. Weft's own.
    callFrame: the XLA_FFI_CallFrame.
    Returns an XLA_FFI_Error with Weft's sentence, or NULL. */
void *weftXlaExecute(void *callFrame);

/* ---- Operators of PyTorch ---------------------------------------------------------------------------------------- */

/** Functions with which weft.torch calls operators at the least cost to the host; with the interpreter's lock held.
    Weft's own.
    facts: a tuple of Python's that weft.torch makes.
    Returns a tuple of Python's, or NULL where the process has no interpreter of one lock, or no torch that Weft knows:
    then weft.torch calls them in Python. */
void *weftTorchFunctions(void *facts);

/* ---- Logging ----------------------------------------------------------------------------------------------------- */

/** What a log message is about. */
typedef struct {
    uint32_t weft_version; /**< weftGetVersion of the library that speaks. */
    weftStatus_t status;   /**< The status that is reported, or SUCCESS. */
    uint32_t time_sec;     /**< Wall clock: seconds since 1970. */
    uint32_t time_usec;    /**< Wall clock: microseconds of the second. */
    uint64_t pid;          /**< Process. */
    uint64_t tid;          /**< Thread. */
} weftDebug_t;

/** Receives log messages; may be called from any thread, and must not call Weft. */
typedef void (*weftCallback_t)(weftSeverity_t severity, void *udata, const weftDebug_t *debug, const char *message);

/** Sends the log to a function. mask: bit (1 << severity) lets that severity through; 0 silences it. fn: NULL goes back
    to stderr. The environment variable WEFT_LOG sets the mask at start. */
weftStatus_t weftSetCallback(uint32_t mask, void *udata, weftCallback_t fn);

/** Reads what weftSetCallback set. Each address may be NULL. */
weftStatus_t weftGetCallback(uint32_t *mask, void **udata, weftCallback_t *fn);

#ifdef __cplusplus
}
#endif

#endif
