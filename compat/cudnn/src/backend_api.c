/* SPDX-License-Identifier: Apache-2.0 */
/* The graph API. Descriptors and attributes are Weft's own under cuDNN's names; this file handles the differences:
   handles are wrapped, failures have cuDNN's numbers, a few attributes have another form, and the notes of engines mean
   what they mean in cuDNN. */
#include "src/handle.h"

#include <stdlib.h>
#include <string.h>

/* ---- Lifetime ---------------------------------------------------------------------------------------------------- */

/* Deprecated in cuDNN: descriptors are initialized when they are created. */
cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t descriptor) {
    if (!descriptor)
        return fail_with(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnBackendInitialize: the descriptor is NULL.");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t *descriptor) {
    RETURN_COUNTED(from_weft(
        weftBackendCreateDescriptor((weftBackendDescriptorType_t)kind, (weftBackendDescriptor_t *)descriptor)));
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    return from_weft(weftBackendDestroyDescriptor(descriptor));
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    RETURN_COUNTED(from_weft(weftBackendFinalize(descriptor)));
}

/* ---- Setting attributes ------------------------------------------------------------------------------------------ */

/* A std::vector: libstdc++ and libc++ both store three pointers. */
struct vector {
    const char *begin, *end, *capacity;
};

static size_t vector_bytes(const struct vector *vector) { return (size_t)(vector->end - vector->begin); }

/* cuDNN passes overridden shapes as the address of a std::vector<std::vector<int64_t>>, Weft as one list of numbers. */
static cudnnStatus_t set_vectors(cudnnBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                 const struct vector *outer) {
    const struct vector *inner = (const struct vector *)(const void *)outer->begin;
    const size_t count = vector_bytes(outer) / sizeof *inner;
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += vector_bytes(&inner[i]);
    char *numbers = malloc(bytes ? bytes : 1), *at = numbers;
    if (!numbers)
        return fail_with(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory.");
    for (size_t i = 0; i < count; at += vector_bytes(&inner[i]), i++)
        if (vector_bytes(&inner[i]))
            memcpy(at, inner[i].begin, vector_bytes(&inner[i]));
    cudnnStatus_t status = from_weft(
        weftBackendSetAttribute(descriptor, name, WEFT_TYPE_INT64, (int64_t)(bytes / sizeof(int64_t)), numbers));
    free(numbers);
    return status;
}

/* A graph may have no handle, such as a sub-graph, or one that is built for the device of another machine. */
static cudnnStatus_t set_handle(cudnnBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                cudnnHandle_t handle) {
    if (!handle)
        return CUDNN_STATUS_SUCCESS;
    REQUIRE_HANDLE(handle);
    return from_weft(weftBackendSetAttribute(descriptor, name, WEFT_TYPE_HANDLE, 1, &handle->weft));
}

enum { WORKSPACE_ALIGNMENT = 64 };

/* NVIDIA's frontend stores its own tensors before the plan's in one workspace, at multiples of 16 bytes. Reported sizes
   have room to align the address. */
static size_t with_slack(size_t bytes) { return bytes ? bytes + WORKSPACE_ALIGNMENT : 0; }

static void *align_workspace(const void *address_of_workspace) {
    uintptr_t workspace;
    memcpy(&workspace, address_of_workspace, sizeof workspace);
    return (void *)((workspace + WORKSPACE_ALIGNMENT - 1) & ~(uintptr_t)(WORKSPACE_ALIGNMENT - 1));
}

static cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                   weftBackendAttributeType_t type, int64_t count, const void *elements) {
    static const weftDataType_t genstats_math = WEFT_DATA_FLOAT;
    static const int64_t kind = WEFT_DEVICE_CUDA;
    const bool is_one = count == 1 && elements;
    void *workspace;
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    if (type == WEFT_TYPE_HANDLE && is_one) {
        cudnnHandle_t handle;
        memcpy(&handle, elements, sizeof handle);
        return set_handle(descriptor, name, handle);
    }
    bool is_override =
        name == WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES || name == WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES;
    if (is_override && type == WEFT_TYPE_VOID_PTR && elements)
        return set_vectors(descriptor, name, elements);
    if (name == WEFT_ATTR_VARIANT_PACK_WORKSPACE && is_one) {
        workspace = align_workspace(elements);
        elements = &workspace;
    }
    /* NVIDIA's frontend sets this attribute to a number of its own enumeration, which is an integer type here. */
    if (name == WEFT_ATTR_OPERATION_GENSTATS_MATH_PREC && is_one && *(const int32_t *)elements != WEFT_DATA_DOUBLE)
        elements = &genstats_math;
    /* Device numbers are those of GPUs; Weft's need the kind of device. */
    if (name == WEFT_ATTR_DEVICEPROP_DEVICE_ID)
        status = weftBackendSetAttribute(descriptor, WEFT_ATTR_DEVICEPROP_KIND_EXT, WEFT_TYPE_INT64, 1, &kind);
    if (!status)
        status = weftBackendSetAttribute(descriptor, name, type, count, elements);
    return from_weft(status);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
    RETURN_COUNTED(
        set_attribute(descriptor, (weftBackendAttributeName_t)name, (weftBackendAttributeType_t)type, count, elements));
}

/* ---- Reading attributes ------------------------------------------------------------------------------------------ */

enum { NOTES_MAX = 16 };

/* In cuDNN, TENSOR_CORE of a float graph means TF32, and programs that want none reject it; DOWN_CONVERT_INPUTS means
   half precision, which PyTorch and XLA always reject. Weft's engine "cuda" computes float products exactly, and
   "cuda.tf32" rounds their operands, so the first loses TENSOR_CORE and the second DOWN_CONVERT_INPUTS. */
static cudnnStatus_t get_notes(cudnnBackendDescriptor_t engine, int64_t requested, int64_t *count, void *elements) {
    char name[32] = "";
    int64_t length = 0, total = 0, reported = 0;
    weftBackendNumericalNote_t notes[NOTES_MAX];
    weftStatus_t status =
        weftBackendGetAttribute(engine, WEFT_ATTR_ENGINE_NAME_EXT, WEFT_TYPE_CHAR, sizeof name - 1, &length, name);
    if (!status)
        status = weftBackendGetAttribute(engine, WEFT_ATTR_ENGINE_NUMERICAL_NOTE, WEFT_TYPE_NUMERICAL_NOTE, NOTES_MAX,
                                         &total, notes);
    if (status)
        return from_weft(status);
    const bool is_rounded = strstr(name, "tf32");
    for (int64_t i = 0; i < total && i < NOTES_MAX; i++)
        if (notes[i] != (is_rounded ? WEFT_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS : WEFT_NUMERICAL_NOTE_TENSOR_CORE))
            notes[reported++] = notes[i];
    if (count)
        *count = reported;
    if (elements && requested > 0)
        memcpy(elements, notes, (size_t)(reported < requested ? reported : requested) * sizeof *notes);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                   weftBackendAttributeType_t type, int64_t requested, int64_t *count, void *elements) {
    if (name == WEFT_ATTR_ENGINE_NUMERICAL_NOTE && type == WEFT_TYPE_NUMERICAL_NOTE)
        return get_notes(descriptor, requested, count, elements);
    cudnnStatus_t status = from_weft(weftBackendGetAttribute(descriptor, name, type, requested, count, elements));
    bool is_size = name == WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE || name == WEFT_ATTR_ENGINECFG_WORKSPACE_SIZE;
    if (!status && is_size && elements && requested > 0)
        *(int64_t *)elements = (int64_t)with_slack((size_t)*(int64_t *)elements);
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t *count,
                                       void *elements) {
    RETURN_COUNTED(get_attribute(descriptor, (weftBackendAttributeName_t)name, (weftBackendAttributeType_t)type,
                                 requested, count, elements));
}

/* ---- Execution --------------------------------------------------------------------------------------------------- */

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    REQUIRE_HANDLE(handle);
    return from_weft(weftBackendExecute(handle->weft, plan, pack));
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    RETURN_COUNTED(execute(handle, plan, pack));
}

cudnnStatus_t cudnnBackendPopulateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                            cudnnBackendDescriptor_t pack, cudaGraph_t graph) {
    REQUIRE_HANDLE(handle);
    RETURN_COUNTED(from_weft(weftBackendPopulateCudaGraph(handle->weft, plan, pack, graph)));
}

cudnnStatus_t cudnnBackendUpdateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                          cudnnBackendDescriptor_t pack, cudaGraph_t graph) {
    REQUIRE_HANDLE(handle);
    RETURN_COUNTED(from_weft(weftBackendUpdateCudaGraph(handle->weft, plan, pack, graph)));
}

cudnnStatus_t cudnnGetExecutionPlanWorkspaceSize(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                                 cudnnBackendDescriptor_t pack, size_t *bytes) {
    REQUIRE_HANDLE(handle);
    cudnnStatus_t status = from_weft(weftGetExecutionPlanWorkspaceSize(handle->weft, plan, pack, bytes));
    if (!status)
        *bytes = with_slack(*bytes);
    return status;
}
