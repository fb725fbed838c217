/* SPDX-License-Identifier: Apache-2.0 */
/* weft.h: Weft's complete C API, in the order in which a program uses it.
 *
 * Weft computes graphs of tensor operations (convolution, matmul, attention, normalisation, pooling, pointwise,
 * reductions, data movement) on a CPU or an NVIDIA GPU. A program
 *
 *   1. creates a handle:                 weftCreate
 *   2. describes tensors and operations: weftBackendCreateDescriptor, -SetAttribute, -Finalize
 *   3. combines them into a graph:       the descriptor WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR
 *   4. queries engines:                  the descriptor WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR
 *   5. builds a plan with one of them:   the descriptor WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR
 *   6. runs it, any number of times:     weftBackendExecute or weftExecute
 *
 * Names and numbers are those of cuDNN's backend API after s/cudnn/weft/; additions end in _EXT or are marked as Weft's
 * own.
 *
 * Errors: every function that can fail returns a weftStatus_t. A failure also sets a message for the calling thread
 * (weftGetLastErrorString): where, the rule, the expected and the actual value, and the fix.
 *
 * Threads: descriptors under construction belong to one thread at a time. Finalized descriptors are immutable and may
 * be shared; one plan may run on many threads at once, each call with its own workspace. The strides of a tensor that
 * leaves them unset are inferred when the first operation that uses it is finalized: do that on one thread.
 *
 * Environment: WEFT_LOG=error|warn|info|plan|exec prints to stderr; WEFT_THREADS=n caps the CPU threads. For NVIDIA
 * GPUs: WEFT_DEVICE=cpu|cuda|cuda:N selects the device that weftCreate opens, WEFT_NVRTC selects the run-time compiler,
 * WEFT_CACHE_DIR, WEFT_CACHE=off|ro|rw and WEFT_CACHE_BYTES configure the disk cache of kernels, WEFT_DUMP_DIR is a
 * folder to which kernel sources are written, WEFT_LIBCUDA selects another driver library, WEFT_CHECK=1 rejects indices
 * in memory that are out of range, which the CPU always does. */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#include "weft/weft_enums.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version and errors ------------------------------------------------------------------------------------------ */

/** The version of this header. A program built with an older header runs with any newer library of the same soname. */
enum {
    WEFT_MAJOR = 0,     /**< Changes when the API breaks. */
    WEFT_MINOR = 1,     /**< Changes when the API grows. */
    WEFT_PATCHLEVEL = 0 /**< Changes with bug fixes. */
};

/** The largest rank of a tensor. */
enum {
    WEFT_DIM_MAX = 8 /**< Dimensions per tensor. */
};

/** The version of the loaded library: MAJOR * 10000 + MINOR * 100 + PATCHLEVEL. */
size_t weftGetVersion(void);

/** The name of a status, such as "WEFT_STATUS_BAD_PARAM". Never NULL; the text is static. */
const char *weftGetErrorString(weftStatus_t status);

/** Copies the calling thread's last error message, truncated to max_size bytes including the terminating zero. It is
    empty if the thread's last Weft call succeeded. message may be NULL if max_size is 0. Does not clear the message. */
void weftGetLastErrorString(char *message, size_t max_size);

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

/** An opened device. Create one per device; threads may share it. */
typedef struct weftContext *weftHandle_t;

/** A CUDA stream (CUstream or cudaStream_t); NULL is the default stream. The CPU ignores it. */
typedef void *weftStream_t;

/** A CUDA graph (CUgraph or cudaGraph_t). */
typedef void *weftCudaGraph_t;

/** Opens the default device: the first NVIDIA GPU that Weft can use, otherwise the CPU.
    handle: receives the handle; release it with weftDestroy.
    Fails with BAD_PARAM_NULL_POINTER or INTERNAL_ERROR_HOST_ALLOCATION_FAILED. */
weftStatus_t weftCreate(weftHandle_t *handle);

/** Opens a device of a kind. Weft's own.
    ordinal: 0-based index among devices of that kind; 0 for the CPU.
    Fails with BAD_PARAM_OUT_OF_BOUND if no such device exists, with NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING or
    NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER if no driver can be used, with NOT_SUPPORTED_ARCH_MISMATCH for GPUs older
    than compute capability 7.5. */
weftStatus_t weftCreateForDevice(weftHandle_t *handle, weftDeviceKind_t kind, int32_t ordinal);

/** Closes a handle. Descriptors that reference it stay valid. NULL is allowed and does nothing. */
weftStatus_t weftDestroy(weftHandle_t handle);

/** Sets the stream on which weftBackendExecute enqueues work. */
weftStatus_t weftSetStream(weftHandle_t handle, weftStream_t stream);

/** Returns the stream set by weftSetStream, or NULL if none was set. */
weftStatus_t weftGetStream(weftHandle_t handle, weftStream_t *stream);

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

/** A tensor, an operation, a graph, an engine, a plan ...: any object with attributes. A descriptor retains the
    descriptors that its attributes reference, so a descriptor may be destroyed once it has been set as an attribute of
    all others that need it. */
typedef struct weftDescriptor *weftBackendDescriptor_t;

/** A fraction: the element of WEFT_TYPE_FRACTION attributes. */
typedef struct {
    int64_t numerator;   /**< Any value. */
    int64_t denominator; /**< At least 1. */
} weftFraction_t;

/** Creates an empty descriptor of a kind. Release it with weftBackendDestroyDescriptor. */
weftStatus_t weftBackendCreateDescriptor(weftBackendDescriptorType_t kind, weftBackendDescriptor_t *descriptor);

/** Releases the caller's reference to a descriptor. NULL is allowed and does nothing. */
weftStatus_t weftBackendDestroyDescriptor(weftBackendDescriptor_t descriptor);

/** Sets one attribute of a descriptor that is not finalized yet; setting it again replaces the value.
    type:     the type of the elements; FLOAT is accepted for DOUBLE, and INT64 for FRACTION.
    count:    number of elements.
    elements: address of the first one; they are copied. For WEFT_TYPE_BACKEND_DESCRIPTOR an array of descriptors.
    Fails with BAD_PARAM_ATTRIBUTE_TYPE, BAD_PARAM_OUT_OF_BOUND (a value or count outside its range),
    BAD_PARAM_NOT_FINALIZED (a descriptor among the elements), BAD_PARAM_ALREADY_FINALIZED_EXT. */
weftStatus_t weftBackendSetAttribute(weftBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                     weftBackendAttributeType_t type, int64_t count, const void *elements);

/** Checks the whole descriptor, infers unset attributes, and makes it immutable. If a rule of its kind is violated it
    fails, and attributes can still be corrected. */
weftStatus_t weftBackendFinalize(weftBackendDescriptor_t descriptor);

/** One attribute to set: the arguments of weftBackendSetAttribute. Weft's own. */
typedef struct {
    weftBackendAttributeName_t name; /**< The attribute. */
    weftBackendAttributeType_t type; /**< Type of the elements. */
    int64_t count;                   /**< Number of elements. */
    const void *elements;            /**< Address of the first one. */
} weftAttribute_t;

/** Creates a descriptor, sets its attributes in order and finalizes it, in one call. Weft's own.
    count:      number of attributes; 0 with attributes NULL for a kind that needs none.
    descriptor: receives the finalized descriptor; unchanged on failure. The error is that of the failing step. */
weftStatus_t weftBackendBuildDescriptor(weftBackendDescriptorType_t kind, int64_t count,
                                        const weftAttribute_t *attributes, weftBackendDescriptor_t *descriptor);

/** Reads one attribute of a finalized descriptor.
    requested: capacity of the array, in elements.
    count:     receives the number of elements of the attribute, which may exceed requested; may be NULL if requested
               is 1.
    elements:  receives min(requested, count) elements. NULL, or requested == 0, queries only the count.
    Attributes that are descriptors are copied into descriptors that the caller created (with
    weftBackendCreateDescriptor, not finalized), which are finalized by the call. */
weftStatus_t weftBackendGetAttribute(weftBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                     weftBackendAttributeType_t type, int64_t requested, int64_t *count,
                                     void *elements);

/* ---- Execution --------------------------------------------------------------------------------------------------- */

/** Runs a plan: enqueues it on the handle's stream (GPU) or computes it (CPU) before returning. Allocates nothing.
    handle:      a handle of the device that the plan was built for.
    plan:        a finalized WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR.
    variantPack: a finalized WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR with one pointer per tensor of the graph that is not
                 virtual, host pointers for by-value tensors, and a workspace of at least the plan's size. */
weftStatus_t weftBackendExecute(weftHandle_t handle, weftBackendDescriptor_t plan, weftBackendDescriptor_t variantPack);

/** Writes the kernels of a plan into a CUDA graph, as one child graph, instead of running them. The graph uses the
    kernels of the plan and the pointers of the variant pack: keep the plan until the graph and what was instantiated
    from it are destroyed.
    handle, plan, variantPack: as for weftBackendExecute. By-value numbers become part of the graph. The plan must be
                 for a GPU, and the variant pack must not override shapes.
    graph:       an empty graph, of cudaGraphCreate or cuGraphCreate. To add the plan to a graph with other nodes, add
                 this one as a child (cudaGraphAddChildGraphNode). */
weftStatus_t weftBackendPopulateCudaGraph(weftHandle_t handle, weftBackendDescriptor_t plan,
                                          weftBackendDescriptor_t variantPack, weftCudaGraph_t graph);

/** Replaces the pointers and by-value numbers in such a graph, or in a child graph that was copied from it. The kernels
    stay the same, so that an executable graph can be updated (cudaGraphExecUpdate).
    handle, plan, variantPack: as for weftBackendPopulateCudaGraph, with the same plan.
    graph:       a graph that weftBackendPopulateCudaGraph has written. */
weftStatus_t weftBackendUpdateCudaGraph(weftHandle_t handle, weftBackendDescriptor_t plan,
                                        weftBackendDescriptor_t variantPack, weftCudaGraph_t graph);

/** The same as weftBackendExecute with a flat array of pointers, for bindings and hot loops. Weft's own.
    count:     number of pointers; must be the plan's number of slots.
    pointers:  addresses in slot order, see WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT. On a GPU they must be
               multiples of the tensors' WEFT_ATTR_TENSOR_BYTE_ALIGNMENT; on the CPU, and if the plan has
               WEFT_ATTR_EXECUTION_PLAN_ELEMENT_ALIGNED_EXT, only of the element size.
    workspace: at least WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE bytes, aligned to 64 bytes; may be NULL if that is 0.
    stream:    the stream to enqueue on; the CPU ignores it. */
weftStatus_t weftExecute(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                         weftStream_t stream);

/** Declares inputs of a plan constant, such as the weights of a trained network: their values must not change from now
    on, and data that kernels would pack at each execution is packed once, now. Executions with the same addresses use
    the packed data; those with other addresses or with overridden shapes pack as before. Each call replaces the
    previous one; if all pointers are NULL, no input is constant any more. Products and convolutions on the CPU need
    about as much memory again as the weights; GPU kernels pack nothing. Must not be called during an execution of the
    plan. Weft's own.
    count:    number of pointers; must be the plan's number of slots.
    pointers: addresses in slot order, as later passed to weftExecute; NULL for slots that are not constant. Only
              inputs can be constant. */
weftStatus_t weftFreeze(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers);

/** The workspace in bytes that a plan needs for the shapes that a variant pack overrides, or for its own shapes if none
    are overridden. */
weftStatus_t weftGetExecutionPlanWorkspaceSize(weftHandle_t handle, weftBackendDescriptor_t plan,
                                               weftBackendDescriptor_t variantPack, size_t *workspaceSize);

/** Measures the time of a plan: executes it repeatedly, in sequence, and waits. On a GPU, measures the time between two
    events of the stream, on the CPU the wall-clock time. For choosing between plans by experiment; not while a stream
    is captured. Weft's own.
    count, pointers, workspace, stream: as for weftExecute.
    repeats: number of executions, at least 1.
    seconds: receives the mean time of one execution. */
weftStatus_t weftMeasure(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                         weftStream_t stream, int64_t repeats, double *seconds);

/** Measures the time of each step within a plan, with the cache contents that previous steps leave: executes the plan
    once as a warm-up, then repeatedly, in sequence, with a mark after each step, and waits. The time between two steps
    is attributed to the later one. On a GPU, executions with and without marks alternate, and the overhead of the marks
    is subtracted from all steps in equal shares, so that the steps add up to the whole.
    Not while a stream is captured. Weft's own.
    count, pointers, workspace, stream: as for weftExecute.
    repeats:   number of such executions, at least 1; repeats times steps must not exceed 65536 marks.
    stepCount: capacity of `seconds`; must be the plan's number of steps, which WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT
               lists.
    seconds:   receives the mean time of each step, in their order. */
weftStatus_t weftMeasureSteps(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                              weftStream_t stream, int64_t repeats, int64_t stepCount, double *seconds);

/** Queries whether work that is enqueued on a stream of the handle's device now does not run, but becomes part of a
    CUDA graph, or fails because another stream is being captured. A captured graph uses the kernels of the plans that
    were executed during its capture: keep these plans until the graph is destroyed. Weft's own.
    isCapturing: receives 1 or 0; always 0 on the CPU. */
weftStatus_t weftIsCapturing(weftHandle_t handle, weftStream_t stream, int32_t *isCapturing);

/* ---- Device memory, for programs without an allocator of their own: all Weft's own ------------------------------- */

/** Allocates memory on the handle's device, aligned to at least 64 bytes.
    address: receives the address; NULL for 0 bytes. Free it with weftFree.
    Fails with INTERNAL_ERROR_HOST_ALLOCATION_FAILED or INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED. */
weftStatus_t weftAllocate(weftHandle_t handle, size_t bytes, void **address);

/** Frees memory of the handle's device. No pending work may use it. NULL is allowed and does nothing. */
weftStatus_t weftFree(weftHandle_t handle, void *address);

/** Allocates memory for work on one stream, such as the results of a sequence of calls. Memory that weftFreeOnStream
    has freed on that stream is reused, which takes a fraction of a microsecond. On the CPU, the same as weftAllocate.
    stream: the stream of all work on the memory; it must not be in capture.
    Free the memory with weftFreeOnStream, or with weftFree if no pending work uses it. */
weftStatus_t weftAllocateOnStream(weftHandle_t handle, size_t bytes, weftStream_t stream, void **address);

/** Frees such memory. Work on it may still be pending on its stream, but not on other streams.
    The handle retains some freed memory until it is destroyed: at most 64 blocks and a sixteenth of the device's
    memory. It frees that if memory runs out.
    bytes, stream: those of the allocation. The stream may be destroyed while work on freed memory is pending: a new
    stream with the same address does not get that memory. Memory that is freed after its stream was destroyed must not
    have pending work. */
weftStatus_t weftFreeOnStream(weftHandle_t handle, size_t bytes, weftStream_t stream, void *address);

/** Copies bytes between the host and the handle's device, in either direction or within one of them, in the order of a
    stream. Returns when the copy is complete. */
weftStatus_t weftCopy(weftHandle_t handle, void *destination, const void *source, size_t bytes, weftStream_t stream);

/** Waits until all work enqueued on a stream of the handle's device is complete. */
weftStatus_t weftSynchronize(weftHandle_t handle, weftStream_t stream);

/* ---- Queries ----------------------------------------------------------------------------------------------------- */

/** Queries which engines support a graph, with predicted times, and why the others do not, as JSON. Needs no device.
    Weft's own.
    graph:            a finalized operation graph.
    deviceProperties: the device to plan for, finalized; NULL for the CPU.
    text:             receives up to capacity bytes with a terminating zero; NULL with capacity 0 queries the size.
    size:             receives the size of the whole text in bytes, terminator included; may be NULL. */
weftStatus_t weftQuerySupport(weftBackendDescriptor_t graph, weftBackendDescriptor_t deviceProperties, char *text,
                              size_t capacity, size_t *size);

/** Describes every descriptor kind with its attributes, every operation with its rules and frontend methods, and every
    pointwise mode, as JSON: sufficient to generate bindings and documentation. Arguments as for weftQuerySupport.
    Weft's own. */
weftStatus_t weftDescribe(char *text, size_t capacity, size_t *size);

/** Describes this machine's support for GPUs, as JSON: the driver's version, or why it cannot be used; all copies of
    the run-time compiler that were found, which one is used for the first GPU ("sm_90a" without a GPU) and why; the
    kernel cache in memory and on disk. Arguments as for weftQuerySupport. Weft's own. */
weftStatus_t weftDescribeMachine(char *text, size_t capacity, size_t *size);

/** Sets additional search paths for the run-time compiler, libnvrtc: those that a language knows from its packages,
    such as Python's sys.path. Used by plans that are finalized afterwards. Weft's own.
    paths: folders and files, separated by colons; a folder may contain the library itself or, like site-packages,
           nvidia/cu13/lib or nvidia/cuda_nvrtc/lib. Replaces previous paths; NULL or empty sets none. */
weftStatus_t weftSetSearchPaths(const char *paths);

/* ---- Logging ----------------------------------------------------------------------------------------------------- */

/** Context of a log message. */
typedef struct {
    uint32_t weft_version; /**< weftGetVersion of the library that logs. */
    weftStatus_t status;   /**< The reported status, or SUCCESS. */
    uint32_t time_sec;     /**< Wall clock: seconds since 1970. */
    uint32_t time_usec;    /**< Wall clock: microseconds of the second. */
    uint64_t pid;          /**< Process. */
    uint64_t tid;          /**< Thread. */
} weftDebug_t;

/** Receives log messages; may be called from any thread, and must not call Weft. */
typedef void (*weftCallback_t)(weftSeverity_t severity, void *udata, const weftDebug_t *debug, const char *message);

/** Redirects the log to a function. mask: bit (1 << severity) enables that severity; 0 disables the log. fn: NULL
    selects stderr. The environment variable WEFT_LOG sets the initial mask. */
weftStatus_t weftSetCallback(uint32_t mask, void *udata, weftCallback_t fn);

/** Returns the settings of weftSetCallback. Each address may be NULL. */
weftStatus_t weftGetCallback(uint32_t *mask, void **udata, weftCallback_t *fn);

#ifdef __cplusplus
}
#endif

#endif
